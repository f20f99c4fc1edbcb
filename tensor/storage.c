/* storage.c: the storage blocks of one lifetime, and what has changed in them.
 *
 * A released block is kept, with its header, in a bin of its size class (four classes per
 * doubling). A step that repeats finds every block where the step before left it, and asks neither
 * jemalloc nor the system. What the bins hold is bounded by the peak of what was in use.
 *
 * New blocks come from a jemalloc arena of their own, if the process has jemalloc. It cannot be
 * loaded into a running process (its thread-local storage is laid out when a program starts), so
 * the library refers to it weakly: a program linked with it has it, and one that opens libtally.so
 * later, as Python does, gets aligned_alloc. Built with JEMALLOC=0 (for sanitizers), blocks have
 * their exact size and are freed at once.
 *
 * Destroying a jemalloc arena leaves addresses and some pages behind, megabytes and kilobytes each.
 * So none is destroyed: an arena that is freed gives its pages back to the system and becomes idle,
 * and tl_arena_new takes an idle one first. There are never more than ever lived at once. */
#include "tensor/storage.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#ifdef __linux__
#include <sys/sysinfo.h>
#endif
#include <unistd.h>

#ifndef TL_JEMALLOC
#define TL_JEMALLOC 1
#endif
#if TL_JEMALLOC
#include <jemalloc/jemalloc.h>
#pragma weak mallctl
#pragma weak mallocx
#pragma weak dallocx
#endif

enum { ALIGN = 64, BINS = 256 };

struct tl_arena {
    tl_storage *bin[BINS]; /* free blocks by size class; bin 0: headers without a block */
    size_t binned;         /* bytes in the bins */
    tl_storage *all;       /* every header */
    tl_memory_stats_t stats;
    tl_arena *next_idle;
#if TL_JEMALLOC
    unsigned index;        /* jemalloc's number of its arena */
    extent_hooks_t hooks;  /* how it gets memory from the system: `plain`, except for alloc */
    extent_hooks_t *plain; /* jemalloc's own */
#endif
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tl_arena *idle; /* guarded by lock */

/* ---- where blocks come from ---- */

static void *aligned(size_t bytes)
{
    return aligned_alloc(ALIGN, (bytes + ALIGN - 1) / ALIGN * ALIGN);
}

#if TL_JEMALLOC
static bool have_jemalloc(void) { return mallctl != NULL && mallocx != NULL && dallocx != NULL; }

/* mallctl of a key that has the arena's number in it: "arena.7.purge", "stats.arenas.7.mapped". */
static int ask(const tl_arena *a, const char *form, void *old, size_t *len, void *new, size_t n)
{
    char key[64];
    snprintf(key, sizeof key, form, a->index);
    return mallctl(key, old, len, new, n);
}

/* A tape of many megabytes is walked from end to end in each step, so this asks for huge pages
 * where the system has them; but not for the first pages of an arena, which may stay nearly empty.
 */
static void *map(extent_hooks_t *hooks, void *at, size_t bytes, size_t align, bool *zero,
                 bool *commit, unsigned index)
{
    enum { HUGE = 1 << 21 };
    const tl_arena *a = (const void *)((const char *)hooks - offsetof(tl_arena, hooks));
    const bool large = bytes > HUGE && at == NULL;
    void *p = a->plain->alloc(a->plain, at, bytes, large && align < HUGE ? HUGE : align, zero,
                              commit, index);
#ifdef MADV_HUGEPAGE
    if (large && p != NULL)
        (void)madvise(p, bytes, MADV_HUGEPAGE);
#endif
    return p;
}

/* Of some 4,000 none may be left: a keeps index 0, which all may share. */
static void create(tl_arena *a)
{
    size_t len = sizeof a->index;
    if (!have_jemalloc() || mallctl("arenas.create", &a->index, &len, NULL, 0) != 0)
        return;
    /* Free pages are kept: a steady state makes no system call. */
    ssize_t never = -1;
    ask(a, "arena.%u.dirty_decay_ms", NULL, NULL, &never, sizeof never);
    ask(a, "arena.%u.muzzy_decay_ms", NULL, NULL, &never, sizeof never);
    len = sizeof a->plain;
    if (ask(a, "arena.%u.extent_hooks", &a->plain, &len, NULL, 0) == 0) {
        extent_hooks_t *own = &a->hooks;
        a->hooks = *a->plain;
        a->hooks.alloc = map;
        ask(a, "arena.%u.extent_hooks", NULL, NULL, &own, sizeof own);
    }
}

static void purge(tl_arena *a)
{
    if (have_jemalloc())
        ask(a, "arena.%u.purge", NULL, NULL, NULL, 0);
}

static int flags(const tl_arena *a)
{
    return MALLOCX_ALIGN(ALIGN) | MALLOCX_ARENA(a->index) | MALLOCX_TCACHE_NONE;
}

static void *get(tl_arena *a, size_t bytes)
{
    return have_jemalloc() ? mallocx(bytes, flags(a)) : aligned(bytes);
}

static void give(tl_arena *a, void *p)
{
    if (have_jemalloc())
        dallocx(p, flags(a));
    else
        free(p);
}

static size_t mapped(const tl_arena *a)
{
    uint64_t epoch = 1;
    size_t len = sizeof epoch, bytes = 0;
    if (!have_jemalloc())
        return 0;
    mallctl("epoch", &epoch, &len, &epoch, len);
    len = sizeof bytes;
    return ask(a, "stats.arenas.%u.mapped", &bytes, &len, NULL, 0) == 0 ? bytes : 0;
}
#else
#define have_jemalloc() false
#define create(a) ((void)(a))
#define purge(a) ((void)(a))
#define get(a, bytes) aligned(bytes)
#define give(a, p) free(p)
#define mapped(a) 0
#endif

const char *tl_allocator(void) { return have_jemalloc() ? "jemalloc" : "aligned_alloc"; }

size_t tl_machine_memory(void)
{
    static _Atomic size_t most;
    size_t n = atomic_load_explicit(&most, memory_order_relaxed);
    if (n != 0)
        return n;
    n = SIZE_MAX;
#ifdef _SC_PHYS_PAGES
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (pages > 0 && page > 0)
        n = (size_t)pages > SIZE_MAX / (size_t)page ? SIZE_MAX : (size_t)pages * (size_t)page;
#endif
#ifdef __linux__
    struct sysinfo s;
    if (n != SIZE_MAX && sysinfo(&s) == 0 && s.totalswap < (SIZE_MAX - n) / s.mem_unit)
        n += s.totalswap * s.mem_unit;
#endif
    atomic_store_explicit(&most, n, memory_order_relaxed);
    return n;
}

/* ---- arenas ---- */

tl_arena *tl_arena_new(void)
{
    if (tl_alloc_fails())
        return NULL;
    pthread_mutex_lock(&lock);
    tl_arena *a = idle;
    if (a != NULL)
        idle = a->next_idle;
    pthread_mutex_unlock(&lock);
    if (a == NULL && (a = calloc(1, sizeof *a)) != NULL)
        create(a);
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
            give(a, s->data);
        tl_changes_free(s->changes);
        free(s);
    }
    memset(a->bin, 0, sizeof a->bin);
    a->binned = 0;
    a->stats = (tl_memory_stats_t){0};
    purge(a);
    pthread_mutex_lock(&lock);
    a->next_idle = idle;
    idle = a;
    pthread_mutex_unlock(&lock);
}

tl_memory_stats_t tl_arena_stats(const tl_arena *a)
{
    if (a == NULL)
        return (tl_memory_stats_t){0};
    tl_memory_stats_t out = a->stats;
    out.mapped = mapped(a);
    return out;
}

/* ---- blocks ---- */

/* The size class of a block, and the size of the blocks in it. */
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

/* Frees the block; its header stays. */
static void drop_block(tl_arena *a, tl_storage *s)
{
    give(a, s->data);
    s->data = NULL;
    push(a, 0, s);
}

static void empty_bins(tl_arena *a)
{
    for (int i = 1; i < BINS; i++)
        for (tl_storage *s; (s = pop(a, i)) != NULL;)
            drop_block(a, s);
    a->binned = 0;
}

/* A header with a new block, or NULL. */
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
    s->data = get(a, size);
    a->stats.asked++;
    if (s->data == NULL && a->binned > 0) {
        empty_bins(a);
        s->data = get(a, size);
    }
    if (s->data == NULL) {
        push(a, 0, s);
        return NULL;
    }
    return s;
}

/* The system hands out addresses for more memory than there is, and kills the process that writes
 * there. */
static bool beyond_reason(size_t bytes)
{
    enum { LARGE = 1 << 28 };
    return bytes > LARGE && (bytes > SIZE_MAX / 4 || bytes > tl_machine_memory());
}

tl_status tl_storage_lack(size_t bytes, tl_err *err)
{
    const size_t most = tl_machine_memory();
    return beyond_reason(bytes) && most != SIZE_MAX
               ? tl_fail(err, TL_ENOMEM,
                         "no memory for %zu bytes: memory and swap of this machine are %zu", bytes,
                         most)
               : tl_fail(err, TL_ENOMEM, "no memory for %zu bytes", bytes);
}

tl_storage *tl_storage_new(tl_arena *a, size_t bytes, bool zeroed)
{
    if (a == NULL || tl_alloc_fails())
        return NULL;
    size_t size;
    const int bin = class_of(bytes, &size);
    tl_storage *s = bin > 0 ? pop(a, bin) : NULL;
    if (s != NULL)
        a->binned -= size;
    else if (beyond_reason(bytes) || (s = fresh(a, size)) == NULL)
        return NULL;
    if (zeroed)
        memset(s->data, 0, bytes);
    s->bytes = bytes;
    s->arena = a;
    s->blank = false;
    atomic_init(&s->refs, 1);
    atomic_init(&s->version, 0);
    atomic_init(&s->changed, 0);
    a->stats.used += bytes;
    a->stats.blocks++;
    if (a->stats.used > a->stats.peak)
        a->stats.peak = a->stats.used;
    return s;
}

void tl_storage_settle(tl_storage *s)
{
    if (!s->blank) /* then nothing may be written: several tapes can read one parameter */
        return;
    memset(s->data, 0, s->bytes);
    s->blank = false;
}

void tl_storage_retain(tl_storage *s)
{
    if (s != NULL)
        atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
}

void tl_storage_release(tl_storage *s)
{
    if (s == NULL || atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) > 1)
        return;
    tl_arena *a = s->arena;
    size_t size;
    const int bin = class_of(s->bytes, &size);
    tl_changes_free(s->changes);
    s->changes = NULL;
    a->stats.used -= s->bytes;
    a->stats.blocks--;
    if (bin > 0) {
        a->binned += size;
        push(a, bin, s);
    } else {
        drop_block(a, s);
    }
}

/* ---- changes in place ---- */

/* What one dim adds to the distance of two elements: stride * t with lo <= t <= hi. */
typedef struct {
    int64_t stride, lo, hi;
} reach;

enum { STEPS = 4096 };

/* Inserts a term in order of falling stride; dims of equal stride become one term. */
static int add_reach(reach *r, int n, int64_t stride, int64_t extent)
{
    reach x = {stride < 0 ? -stride : stride, stride < 0 ? -extent : 0, stride < 0 ? 0 : extent};
    int at = 0;
    if (stride == 0 || extent == 0)
        return n;
    while (at < n && r[at].stride > x.stride)
        at++;
    if (at < n && r[at].stride == x.stride) {
        r[at].lo += x.lo;
        r[at].hi += x.hi;
        return n;
    }
    for (int i = n; i > at; i--)
        r[i] = r[i - 1];
    r[at] = x;
    return n + 1;
}

static int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }

/* Whether the terms can add up to a value from low to high. */
static bool reaches(const reach *r, int n, int64_t low, int64_t high, int *steps)
{
    int64_t least = 0, most = 0;
    if (n == 0)
        return low <= 0 && high >= 0;
    for (int i = 1; i < n; i++) {
        least += r[i].stride * r[i].lo;
        most += r[i].stride * r[i].hi;
    }
    int64_t first = -floor_div(most - low, r->stride), last = floor_div(high - least, r->stride);
    first = first < r->lo ? r->lo : first;
    last = last > r->hi ? r->hi : last;
    for (int64_t t = first; t <= last; t++)
        if (--*steps < 0 || reaches(r + 1, n - 1, low - r->stride * t, high - r->stride * t, steps))
            return true;
    return false;
}

#define X(id, text, bytes, is_float) bytes,
static const uint8_t bytes_of[] = {0, TL_DTYPE_LIST(X)}; /* tl_dtype_size lies above this file */
#undef X

bool tl_arrays_overlap(const tl_array *a, const tl_array *b)
{
    return tl_arrays_overlap_apart(a, b, (int64_t)((intptr_t)b->data - (intptr_t)a->data));
}

bool tl_arrays_overlap_apart(const tl_array *a, const tl_array *b, int64_t apart)
{
    reach r[2 * TL_MAX_DIMS];
    int n = 0, steps = STEPS;
    const int64_t ea = bytes_of[a->dtype], eb = bytes_of[b->dtype];
    bool empty = false;
    for (int i = 0; i < a->ndim; i++) {
        empty |= a->dim[i] == 0;
        n = add_reach(r, n, a->stride[i] * ea, a->dim[i] - 1);
    }
    for (int i = 0; i < b->ndim; i++) {
        empty |= b->dim[i] == 0;
        n = add_reach(r, n, -b->stride[i] * eb, b->dim[i] - 1);
    }
    return !empty && reaches(r, n, apart - ea + 1, apart + eb - 1, &steps);
}

static _Atomic uint64_t changes;

uint64_t tl_changes(void) { return atomic_load(&changes); }

void tl_storage_note(tl_storage *s, tl_changer by, tl_change *c)
{
    s->changed = ++changes;
    s->version++;
    if (c == NULL) {
        s->whole = by;
        return;
    }
    c->by = by;
    c->version = s->version;
    c->next = s->changes;
    s->changes = c;
}

bool tl_storage_changed(const tl_storage *s, uint32_t since, const tl_array *a, tl_changer *by)
{
    uint32_t known = 0;
    const tl_change *c = s->changes;
    for (; s->version != since && c != NULL && c->version > since; c = c->next, known++)
        if (tl_arrays_overlap(&c->where, a)) {
            *by = c->by;
            return true;
        }
    *by = s->whole;
    return known != s->version - since;
}

const char *tl_changer_text(char buf[TL_CHANGER_TEXT], tl_changer by)
{
    snprintf(buf, TL_CHANGER_TEXT, by.file == NULL ? "%.60s" : "%.60s (%.90s:%d)",
             by.what == NULL ? "a write to all of it" : by.what, by.file, by.line);
    return buf;
}

void tl_changes_free(tl_change *c)
{
    for (tl_change *next; c != NULL; c = next) {
        next = c->next;
        tl_free_raw(c);
    }
}
