/* keys.c: which value of a tape has which key. */
#include "autograd/log/internal.h"

#include <string.h>

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
