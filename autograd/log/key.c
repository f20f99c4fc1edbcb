/* key.c: keys of results, packed into a number and as text; and tables by key, which writing and
 * reading share. */
#include "autograd/log/key.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tensor/memory.h"

enum { VJP = TL_KEY_SUB_MAX + 1 }; /* added to sub: the vjp comes after the adding */

uint64_t tl_log_key_pack(tl_log_key k)
{
    uint64_t at = k.backward ? TL_KEY_AT_MAX - k.at
                             : k.at; /* backward runs from the last op to the first */
    uint64_t sub = k.backward && !k.adding ? (uint64_t)k.sub + VJP : k.sub;
    return (uint64_t)k.pass << 56 | (uint64_t)k.backward << 55 | at << 31 | sub << 8 |
           (uint64_t)k.out;
}

tl_log_key tl_log_key_unpack(uint64_t key)
{
    bool backward = key >> 55 & 1;
    uint32_t at = (uint32_t)(key >> 31 & TL_KEY_AT_MAX),
             sub = (uint32_t)(key >> 8 & (VJP | TL_KEY_SUB_MAX));
    return (tl_log_key){(int)(key >> 56),      backward,
                        backward && sub < VJP, backward ? TL_KEY_AT_MAX - at : at,
                        sub & TL_KEY_SUB_MAX,  (int)(key & 255)};
}

char *tl_log_key_text(char *buf, uint64_t key)
{
    tl_log_key k = tl_log_key_unpack(key);
    int n = 0;
    if (k.pass > 0 && k.pass < TL_KEY_UPDATE)
        n = snprintf(buf, TL_KEY_TEXT, "%d:", k.pass);
    char kind = k.pass == TL_KEY_UPDATE ? 'u' : k.adding ? 'c' : k.backward ? 'b' : 'f';
    n += snprintf(buf + n, TL_KEY_TEXT - (size_t)n, "%c%" PRIu32, kind, k.at);
    if (k.sub > 0)
        n += snprintf(buf + n, TL_KEY_TEXT - (size_t)n, ".%" PRIu32, k.sub);
    if (k.out > 0)
        snprintf(buf + n, TL_KEY_TEXT - (size_t)n, "/%d", k.out);
    return buf;
}

/* ---- tables by key: open addressing, never more than half full ---- */

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
