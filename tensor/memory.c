/* memory.c: memory for records: the C heap, with hooks for tests; tables by key, with open
 * addressing and never more than half full; hashes that serve as keys; bump memory. */
#include "tensor/memory.h"

#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#ifdef TL_TEST_HOOKS
static _Atomic int64_t fail_after;

void tl_alloc_fail_after(int64_t n) { atomic_store(&fail_after, n); }

bool tl_alloc_fails(void)
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
#define size_of(p) 0
#define use(bytes) ((void)(bytes))
#endif

void *tl_calloc(size_t n, size_t size)
{
    void *p = tl_alloc_fails() ? NULL : calloc(n ? n : 1, size ? size : 1);
    use(size_of(p));
    return p;
}

void *tl_realloc(void *p, size_t bytes)
{
    int64_t old = size_of(p);
    void *q = tl_alloc_fails() ? NULL : realloc(p, bytes ? bytes : 1);
    use(size_of(q)); /* both count for a moment, as if it had moved */
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

bool tl_grow_to(void *table, uint32_t *cap, uint32_t i, size_t size)
{
    char *old, *grown;
    if (i < *cap)
        return true;
    memcpy(&old, table, sizeof old);
    const size_t more = 2 * (size_t)i + 64;
    grown = more > UINT32_MAX ? NULL : tl_realloc(old, more * size);
    if (grown == NULL)
        return false;
    memset(grown + *cap * size, 0, (more - *cap) * size);
    memcpy(table, &grown, sizeof grown);
    *cap = (uint32_t)more;
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

bool tl_text_close(FILE *f, char **text)
{
    bool whole = f != NULL && !ferror(f);
    whole = f != NULL && fclose(f) == 0 && whole;
    if (f != NULL && tl_alloc_fails()) { /* simulates a close whose realloc fails */
        free(*text);
        *text = NULL;
    }
    return whole && *text != NULL;
}

bool tl_same_text(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

/* ---- tables by key ---- */

static size_t slot(const tl_key_map *m, uint64_t key)
{
    uint64_t h = (key ^ m->salt) * 0x9e3779b97f4a7c15u;
    h = (h ^ h >> 32 ^ m->salt) * 0xbf58476d1ce4e5b9u;
    size_t i = (size_t)(h >> 20) & (m->cap - 1);
    while (m->key[i] != 0 && m->key[i] != key)
        i = (i + 1) & (m->cap - 1);
    return i;
}

uint64_t *tl_key_map_find(const tl_key_map *m, uint64_t key)
{
    if (m->cap == 0 || key == 0)
        return NULL;
    size_t i = slot(m, key);
    return m->key[i] == key ? &m->value[i] : NULL;
}

static bool grow(tl_key_map *m)
{
    tl_key_map bigger = {.cap = m->cap ? 2 * m->cap : 16, .salt = m->salt};
    bigger.key = tl_calloc(bigger.cap, sizeof *bigger.key);
    bigger.value = tl_calloc(bigger.cap, sizeof *bigger.value);
    if (bigger.key == NULL || bigger.value == NULL) {
        tl_key_map_free(&bigger);
        return false;
    }
    for (size_t i = 0; i < m->cap; i++)
        if (m->key[i] != 0)
            tl_key_map_put(&bigger, m->key[i], m->value[i]);
    tl_key_map_free(m);
    *m = bigger;
    return true;
}

bool tl_key_map_put(tl_key_map *m, uint64_t key, uint64_t value)
{
    if (2 * (m->n + 1) > m->cap && !grow(m))
        return false;
    size_t i = slot(m, key);
    m->n += m->key[i] == 0;
    m->key[i] = key;
    m->value[i] = value;
    return true;
}

void tl_key_map_clear(tl_key_map *m)
{
    if (m->cap > 0)
        memset(m->key, 0, m->cap * sizeof *m->key);
    m->n = 0;
}

void tl_key_map_free(tl_key_map *m)
{
    tl_free_raw(m->key);
    tl_free_raw(m->value);
    *m = (tl_key_map){.salt = m->salt};
}

uint64_t tl_mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

uint64_t tl_mix_elements(uint64_t h, const void *p, size_t n, size_t size)
{
    const unsigned char *byte = p;
    const size_t flip = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? 0 : size - 1;
    for (size_t i = 0; i < n * size; i += 8) {
        uint64_t x = 0;
        for (size_t k = i; k < i + 8 && k < n * size; k++)
            x |= (uint64_t)byte[k ^ flip] << 8 * (k - i);
        h = tl_mix(h, x);
    }
    return h;
}

uint64_t tl_mix_text(uint64_t h, const char *text)
{
    return tl_mix_elements(h, text, strlen(text), 1);
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
