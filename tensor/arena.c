/* arena.c: the storage blocks of one lifetime, and memory for records.
 *
 * A block that falls free is kept, with its header, in a bin of its size class
 * (four classes a doubling): a step that repeats finds every block where the step
 * before left it, and neither the heap (heap.c) nor the system is asked. What the bins
 * hold is bounded by the peak of what was in use. Without jemalloc (sanitizers)
 * blocks have their exact size and are freed at once. An arena is used by one
 * thread at a time (its tape's or its model's owner). */
#include "tensor/change.h"
#include "tensor/heap.h"

#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#ifndef TL_JEMALLOC
#define TL_JEMALLOC 1
#endif

enum { ALIGN = 64, BINS = 256 };

struct tl_arena {
    const char *name;
    tl_heap *heap;
    tl_storage *bin[BINS]; /* free blocks by size class; bin 0: headers without a block */
    size_t binned;         /* bytes in the bins */
    tl_storage *all;       /* every header */
    tl_memory_stats_t stats;
};

#ifdef TL_TEST_HOOKS
static _Atomic int64_t fail_after;

void tl_alloc_fail_after(int64_t n) { atomic_store(&fail_after, n); }

static bool fault_due(void)
{
    if (atomic_load_explicit(&fail_after, memory_order_relaxed) == 0)
        return false;
    return atomic_fetch_sub(&fail_after, 1) == 1;
}

static _Atomic bool watching;
static _Atomic int64_t in_use, most;

static int64_t size_of(void *p)
{
    return atomic_load_explicit(&watching, memory_order_relaxed) ? (int64_t)malloc_usable_size(p)
                                                                 : 0;
}

static void use(int64_t bytes)
{
    if (bytes == 0)
        return;
    int64_t now = atomic_fetch_add(&in_use, bytes) + bytes, old = atomic_load(&most);
    while (now > old && !atomic_compare_exchange_weak(&most, &old, now))
        ;
}

int64_t tl_alloc_peak(bool watch)
{
    atomic_store(&watching, watch);
    atomic_store(&in_use, 0);
    return atomic_exchange(&most, 0);
}
#else
#define fault_due() false
#define size_of(p) 0
#define use(bytes) ((void)(bytes))
#endif

void *tl_calloc(size_t n, size_t size)
{
    void *p = fault_due() ? NULL : calloc(n ? n : 1, size ? size : 1);
    use(size_of(p));
    return p;
}
void *tl_realloc(void *p, size_t bytes)
{
    int64_t old = size_of(p);
    void *q = fault_due() ? NULL : realloc(p, bytes ? bytes : 1);
    use(size_of(q)); /* both, as if it had moved */
    use(q == NULL ? 0 : -old);
    return q;
}
void tl_free_raw(void *p)
{
    use(-size_of(p));
    free(p);
}

bool tl_grow(void *list, int *cap, int n, size_t size)
{
    void *old, *grown;
    if (n < *cap)
        return true;
    memcpy(&old, list, sizeof old);
    const int more = *cap > 0 ? 2 * *cap : 4;
    grown = tl_realloc(old, (size_t)more * size);
    if (grown == NULL)
        return false;
    memcpy(list, &grown, sizeof grown);
    *cap = more;
    return true;
}

char *tl_strdup(const char *s)
{
    size_t n = s == NULL ? 0 : strlen(s) + 1;
    char *p = s == NULL ? NULL : tl_calloc(1, n);
    if (p != NULL)
        memcpy(p, s, n);
    return p;
}

tl_arena *tl_arena_new(const char *name)
{
    tl_arena *a = tl_calloc(1, sizeof *a);
    if (a == NULL)
        return NULL;
    a->name = name;
    if ((a->heap = tl_heap_open()) == NULL) {
        free(a);
        return NULL;
    }
    return a;
}

void tl_arena_free(tl_arena *a)
{
    if (a == NULL)
        return;
    while (a->all != NULL) {
        tl_storage *s = a->all;
        a->all = s->next_all;
        if (s->data != NULL)
            tl_heap_give(a->heap, s->data);
        tl_changes_free(s->changes);
        free(s);
    }
    tl_heap_close(a->heap);
    free(a);
}

/* The size class of a block, and the size of its blocks. */
static int class_of(size_t bytes, size_t *size)
{
    if (!TL_JEMALLOC) {
        *size = bytes + (bytes == 0);
        return 0;
    }
    if (bytes <= ALIGN) {
        *size = ALIGN;
        return 1;
    }
    int e = 63 - __builtin_clzll((unsigned long long)bytes - 1); /* 2^e < bytes <= 2^(e+1) */
    size_t base = (size_t)1 << e, q = (bytes - 1 - base) / (base / 4);
    *size = base + (q + 1) * (base / 4);
    return 2 + 4 * (e - 6) + (int)q;
}

static tl_storage *pop(tl_arena *a, int bin)
{
    tl_storage *s = a->bin[bin];
    if (s != NULL)
        a->bin[bin] = s->next_free;
    return s;
}

static void push(tl_arena *a, int bin, tl_storage *s)
{
    s->next_free = a->bin[bin];
    a->bin[bin] = s;
}

/* Gives all binned blocks back; their headers stay. */
static void empty_bins(tl_arena *a)
{
    for (int i = 1; i < BINS; i++)
        for (tl_storage *s; (s = pop(a, i)) != NULL;) {
            tl_heap_give(a->heap, s->data);
            s->data = NULL;
            push(a, 0, s);
        }
    a->binned = 0;
}

/* A header with a fresh block, or NULL. */
static tl_storage *fresh(tl_arena *a, size_t size)
{
    tl_storage *s = pop(a, 0);
    if (s == NULL) {
        if ((s = calloc(1, sizeof *s)) == NULL)
            return NULL;
        s->next_all = a->all;
        a->all = s;
    }
    if (a->binned > a->stats.peak + (1u << 20))
        empty_bins(a);
    s->data = tl_heap_get(a->heap, size);
    a->stats.asked++;
    if (s->data == NULL && a->binned > 0) {
        empty_bins(a);
        s->data = tl_heap_get(a->heap, size);
    }
    if (s->data == NULL) {
        push(a, 0, s);
        return NULL;
    }
    return s;
}

/* The system hands out addresses for more than there is, and kills who writes there. */
static bool beyond_reason(size_t bytes)
{
    enum { LARGE = 1 << 28 };
    return bytes > LARGE && (bytes > SIZE_MAX / 4 || bytes > tl_heap_most());
}

tl_status tl_storage_lack(size_t bytes, tl_err *err)
{
    return beyond_reason(bytes) && tl_heap_most() != SIZE_MAX
               ? tl_fail(err, TL_ENOMEM,
                         "no memory for %zu bytes: memory and swap of this machine are %zu", bytes,
                         tl_heap_most())
               : tl_fail(err, TL_ENOMEM, "no memory for %zu bytes", bytes);
}

tl_storage *tl_storage_new(tl_arena *a, size_t bytes, bool zeroed)
{
    if (a == NULL || fault_due() || beyond_reason(bytes))
        return NULL;
    size_t size;
    const int bin = class_of(bytes, &size);
    tl_storage *s = bin > 0 ? a->bin[bin] : NULL;
    if (s != NULL) {
        a->bin[bin] = s->next_free;
        a->binned -= size;
    } else if ((s = fresh(a, size)) == NULL) {
        return NULL;
    }
    if (zeroed)
        memset(s->data, 0, bytes);
    s->bytes = bytes;
    s->bin = bin;
    s->size = size;
    s->arena = a;
    s->blank = false;
    atomic_init(&s->refs, 1);
    atomic_init(&s->version, 0);
    a->stats.used += bytes;
    a->stats.blocks++;
    if (a->stats.used > a->stats.peak)
        a->stats.peak = a->stats.used;
    return s;
}

void tl_storage_settle(tl_storage *s)
{
    if (!s->blank) /* and nothing is written: several tapes may read one parameter */
        return;
    memset(s->data, 0, s->bytes);
    s->blank = false;
}

void tl_storage_retain(tl_storage *s)
{
    if (s == NULL)
        return;
    atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
}

void tl_storage_release(tl_storage *s)
{
    if (s == NULL || atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) > 1)
        return;
    tl_arena *a = s->arena;
    if (s->changes != NULL)
        tl_changes_free(s->changes);
    s->changes = NULL;
    a->stats.used -= s->bytes;
    a->stats.blocks--;
    if (s->bin > 0) {
        a->binned += s->size;
    } else {
        tl_heap_give(a->heap, s->data);
        s->data = NULL;
    }
    push(a, s->bin, s);
}

tl_memory_stats_t tl_arena_stats(const tl_arena *a)
{
    if (a == NULL)
        return (tl_memory_stats_t){0};
    tl_memory_stats_t out = a->stats;
    out.mapped = tl_heap_mapped(a->heap);
    return out;
}

/* ---- bump memory ---- */

enum { BLOCK_BYTES = 1 << 16 };

struct tl_bump_block {
    tl_bump_block *next;
    size_t used, cap;
    _Alignas(16) unsigned char bytes[];
};

void *tl_bump_get(tl_bump *b, size_t bytes)
{
    if (bytes > PTRDIFF_MAX)
        return NULL;
    bytes = (bytes + 15) / 16 * 16;
    while (b->now != NULL && b->now->used + bytes > b->now->cap && b->now->next != NULL)
        b->now = b->now->next;
    if (b->now == NULL || b->now->used + bytes > b->now->cap) {
        size_t cap = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
        tl_bump_block *n = tl_calloc(1, sizeof *n + cap);
        if (n == NULL)
            return NULL;
        n->cap = cap;
        if (b->now == NULL)
            b->first = n;
        else
            b->now->next = n;
        b->now = n;
    }
    void *p = b->now->bytes + b->now->used;
    b->now->used += bytes;
    memset(p, 0, bytes);
    return p;
}

bool tl_bump_room(tl_bump *b, size_t bytes)
{
    tl_bump_block *k = b->now;
    if (k != NULL && bytes <= k->cap - k->used)
        return true;
    if (tl_bump_get(b, bytes) == NULL)
        return false;
    b->now->used -= (bytes + 15) / 16 * 16;
    return true;
}

void tl_bump_rewind(tl_bump *b, size_t used)
{
    b->now = b->first;
    for (tl_bump_block *k = b->first; k != NULL; k = k->next) {
        k->used = k->used < used ? k->used : used;
        used -= k->used;
        b->now = k->used > 0 ? k : b->now;
    }
}

void tl_bump_reset(tl_bump *b) { tl_bump_rewind(b, 0); }

size_t tl_bump_used(const tl_bump *b)
{
    size_t used = 0;
    for (const tl_bump_block *k = b->first; k != NULL; k = k->next)
        used += k->used;
    return used;
}

void tl_bump_free(tl_bump *b)
{
    while (b->first != NULL) {
        tl_bump_block *k = b->first;
        b->first = k->next;
        tl_free_raw(k);
    }
    b->now = NULL;
}
