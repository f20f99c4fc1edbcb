/* map.c: tables by key: open addressing, never more than half full; hashes of numbers and bytes. */
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
