/* keys.c: keys of results, packed and as text; tables by key; which value of a tape has which key.
 */
#include "autograd/log/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { VJP = TL_KEY_SUB_MAX + 1 }; /* added to sub: the vjp comes after the adding */

uint64_t tl_log_key_pack(tl_log_key k)
{
    uint64_t at = k.backward ? TL_KEY_AT_MAX - k.at
                             : k.at; /* backward runs from the last to the first */
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

/* ---- a table from keys to numbers, open addressing, never more than half full ---- */

static size_t slot(const tl_key_map *m, uint64_t key)
{
    size_t i = (size_t)((key * 0x9e3779b97f4a7c15u) >> 20) & (m->cap - 1);
    while (m->key[i] != 0 && m->key[i] != key)
        i = (i + 1) & (m->cap - 1);
    return i;
}

uint64_t *tl_key_map_find(const tl_key_map *m, uint64_t key)
{
    if (m->cap == 0)
        return NULL;
    size_t i = slot(m, key);
    return m->key[i] == key ? &m->value[i] : NULL;
}

static bool grow(tl_key_map *m)
{
    tl_key_map bigger = {.cap = m->cap ? 2 * m->cap : 256};
    bigger.key = tl_calloc(bigger.cap, sizeof *bigger.key);
    bigger.value = tl_calloc(bigger.cap, sizeof *bigger.value);
    if (bigger.key == NULL || bigger.value == NULL) {
        tl_key_map_free(&bigger);
        return false;
    }
    for (size_t i = 0; i < m->cap; i++)
        if (m->key[i] != 0) {
            size_t k = slot(&bigger, m->key[i]);
            bigger.key[k] = m->key[i];
            bigger.value[k] = m->value[i];
            bigger.n++;
        }
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
    *m = (tl_key_map){0};
}

/* ---- values of a tape ---- */

tl_tensor tl_log_resolve(const tl_tape *t, tl_tensor x)
{
    for (;;) {
        const tl_value *v = x.owner != t->values.owner ? NULL : tl_peek(t, x);
        if (v != NULL && v->node >= 0 && t->node[v->node].op->traits & TL_VIEW)
            x = t->node[v->node].in[0];
        else if (v != NULL && v->node < 0 && !tl_is_none(v->source))
            x = v->source;
        else
            return x;
    }
}

tl_log_mark tl_log_mark_of(const tl_tape *t, uint32_t value)
{
    const tl_log_side *s = tl_log_side_of(t);
    bool known = s != NULL && s->generation == t->generation && value < s->cap;
    return known ? s->mark[value] : (tl_log_mark){0};
}

tl_log_mark *tl_log_mark_make(tl_tape *t, uint32_t value)
{
    tl_log_side *s = tl_log_side_make(t);
    if (s == NULL)
        return NULL;
    if (s->generation != t->generation && s->cap > 0)
        memset(s->mark, 0, s->cap * sizeof *s->mark);
    s->generation = t->generation;
    if (value >= s->cap) {
        uint32_t cap = 2 * value + 64;
        tl_log_mark *grown = tl_realloc(s->mark, cap * sizeof *grown);
        if (grown == NULL) {
            tl_fail(&t->head.err, TL_ENOMEM, "no memory for the log of %u values", cap);
            return NULL;
        }
        memset(grown + s->cap, 0, (cap - s->cap) * sizeof *grown);
        s->mark = grown;
        s->cap = cap;
    }
    return &s->mark[value];
}

void tl_log_carry(tl_tape *dst, tl_tensor x, const tl_tape *src, tl_tensor y, bool stand_in)
{
    if (tl_is_none(x) || x.owner != dst->values.owner || tl_log_side_of(src) == NULL)
        return;
    const tl_log_mark from = tl_log_mark_of(src, y.index);
    tl_log_mark *to = from.name == NULL && from.key == 0 && !from.stand_in && !stand_in
                          ? NULL
                          : tl_log_mark_make(dst, x.index);
    if (to == NULL || to->key != 0)
        return;
    *to = from;
    to->stand_in |= stand_in;
}

void tl_log_set_key(tl_tape *t, uint32_t value, uint64_t key)
{
    tl_run_log *l = tl_log_of(t);
    if (l->key_generation != t->generation && l->cap_keys > 0)
        memset(l->key_of, 0, l->cap_keys * sizeof *l->key_of);
    l->key_generation = t->generation;
    if (value >= l->cap_keys) {
        uint32_t cap = 2 * value + 1024;
        uint64_t *grown = tl_realloc(l->key_of, cap * sizeof *grown);
        if (grown == NULL) {
            tl_log_stop(l, TL_ENOMEM, "no memory for the log of %u values", cap);
            return;
        }
        memset(grown + l->cap_keys, 0, (cap - l->cap_keys) * sizeof *grown);
        l->key_of = grown;
        l->cap_keys = cap;
    }
    l->key_of[value] = key;
}

uint64_t tl_log_key_of(tl_tape *t, tl_tensor x)
{
    const tl_run_log *l = tl_log_of(t);
    x = tl_log_resolve(t, x);
    if (tl_is_none(x))
        return 0;
    if (x.owner != t->values.owner) {
        const uint64_t *k = tl_key_map_find(&l->model_key, (uint64_t)x.index + 1);
        return k != NULL ? *k : 0;
    }
    return l->key_generation == t->generation && x.index < l->cap_keys ? l->key_of[x.index] : 0;
}

void tl_log_keys_out(tl_tape *t)
{
    const tl_run_log *l = tl_log_of(t);
    for (uint32_t i = 0;
         l->key_generation == t->generation && i < l->cap_keys && i < atomic_load(&t->values.count);
         i++) {
        tl_log_mark *m = l->key_of[i] == 0 ? NULL : tl_log_mark_make(t, i);
        if (m != NULL && m->key == 0)
            m->key = l->key_of[i];
    }
}

void tl_log_keys_in(tl_tape *t, int pass)
{
    tl_run_log *l = tl_log_of(t);
    l->key_generation = 0;
    tl_key_map_clear(&l->model_key);
    for (uint32_t i = 0, n = atomic_load(&t->values.count); i < n; i++) {
        uint64_t key = tl_log_mark_of(t, i).key;
        if (key != 0 && (pass < 0 || tl_log_key_unpack(key).pass == pass))
            tl_log_set_key(t, i, key);
    }
    for (uint32_t i = 0; i < l->n; i++) {
        const tl_log_entry *e = &l->entry[i];
        bool model = e->from.owner != t->values.owner && tl_model_value(t->model, e->from) != NULL;
        if (model && strcmp(e->op, "state") != 0 &&
            (pass < 0 || tl_log_key_unpack(e->key).pass == pass))
            tl_key_map_put(&l->model_key, (uint64_t)e->from.index + 1, e->key);
    }
}
