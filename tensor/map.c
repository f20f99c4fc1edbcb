/* map.c: tables by key: open addressing, never more than half full. */
#include "tensor/map.h"

#include <string.h>

#include "tensor/memory.h"

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
