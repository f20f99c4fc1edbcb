/* marks.c: the log on its tape, and its marks of the tape's values: their names and keys. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "autograd/log/internal.h"

/* ---- keys: see key.h ---- */

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

int tl_log_by_key(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
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

/* ---- on the tape ---- */

void *tl_log_room(tl_run_log *l, size_t n, size_t size)
{
    void *p = tl_bump_get(&l->bump, n * size);
    if (p == NULL)
        tl_fail(&l->failure, TL_ENOMEM, "no memory for the log of %u results", l->n);
    return p;
}

bool tl_log_full(const tl_run_log *l)
{
    return !l->begun || l->o.every <= 1 || l->step % l->o.every == 0 || l->step == l->o.keep;
}

static void freed(void *ctx, TL_UNUSED tl_tape *t)
{
    tl_log_side *s = ctx;
    tl_free_raw(s->mark);
    tl_free_raw(s);
}

/* Holds a log's data on the tape. A tape with named values but without a log has it, too. */
static const tl_observer holder = {.freed = freed};

static tl_log_side *side_of(const tl_tape *t) { return tl_observed(t, &holder); }

/* Made if need be; NULL, with an error of the tape, when out of memory. */
static tl_log_side *side_make(tl_tape *t)
{
    tl_log_side *s = side_of(t);
    if (s != NULL)
        return s;
    s = tl_calloc(1, sizeof *s);
    if (s == NULL)
        tl_fail(&t->head.err, TL_ENOMEM, "no memory for the log of a tape");
    else if (tl_observe(t, &holder, s) == TL_OK)
        return s;
    tl_free_raw(s);
    return NULL;
}

tl_run_log *tl_log_of(const tl_tape *t)
{
    const tl_log_side *s = side_of(t);
    return s == NULL ? NULL : s->log;
}

tl_status tl_log_attach(tl_tape *t, tl_run_log *l)
{
    tl_log_side *s = side_make(t);
    if (s == NULL)
        return TL_ENOMEM;
    tl_observe_end(t, &tl_log_observer);
    if (l != NULL)
        TL_TRY(tl_observe(t, &tl_log_observer, l));
    s->log = l;
    tl_log_forget_keys(t);
    return TL_OK;
}

/* ---- marks ---- */

/* How many marks belong to existing values; 0 if the tape has been reset since. */
static uint32_t n_marks(const tl_log_side *s, const tl_tape *t)
{
    const uint32_t n = atomic_load(&t->values.count);
    if (s == NULL || s->generation != t->generation)
        return 0;
    return n < s->cap ? n : s->cap;
}

tl_log_mark tl_log_mark_of(const tl_tape *t, uint32_t value)
{
    const tl_log_side *s = side_of(t);
    return value < n_marks(s, t) ? s->mark[value] : (tl_log_mark){0};
}

/* NULL when out of memory. */
static tl_log_mark *mark_in(tl_log_side *s, const tl_tape *t, uint32_t value)
{
    if (s->generation != t->generation && s->cap > 0)
        memset(s->mark, 0, s->cap * sizeof *s->mark);
    s->generation = t->generation;
    return tl_grow_to(&s->mark, &s->cap, value, sizeof *s->mark) ? &s->mark[value] : NULL;
}

/* NULL, with an error of the tape, when out of memory. */
static tl_log_mark *mark_make(tl_tape *t, uint32_t value)
{
    tl_log_side *s = side_make(t);
    tl_log_mark *m = s == NULL ? NULL : mark_in(s, t, value);
    if (s != NULL && m == NULL)
        tl_fail(&t->head.err, TL_ENOMEM, "no memory for the log of value %u", value);
    return m;
}

void tl_log_carry(tl_tape *dst, tl_tensor x, const tl_tape *src, tl_tensor y, bool stand_in)
{
    if (tl_is_none(x) || x.owner != dst->values.owner || side_of(src) == NULL)
        return;
    tl_log_mark from = tl_log_mark_of(src, y.index);
    from.stand_in |= stand_in;
    tl_log_mark *to = from.name == NULL && from.key == 0 && !from.stand_in
                          ? NULL
                          : mark_make(dst, x.index);
    if (to == NULL || to->key != 0)
        return;
    from.now = to->now;
    *to = from;
}

void tl_log_name(tl_tape *t, tl_tensor x, const char *name)
{
    /* an update's names are read when it ends: by a log that is there, or by runs of the graph */
    const bool read = tl_lives(t) && (!(t->now.phase & TL_PHASE_UPDATE) || tl_log_of(t) != NULL ||
                                      t->recorder != NULL);
    const bool there = read && !tl_is_none(x) && x.owner == t->values.owner &&
                       tl_peek(t, x) != NULL;
    tl_log_mark *m = there ? mark_make(t, x.index) : NULL;
    if (m != NULL)
        m->name = name;
}

/* ---- keys of values ---- */

tl_tensor tl_log_resolve(const tl_tape *t, tl_tensor x)
{
    for (tl_tensor y = x;; x = y)
        if (tl_same_handle(x, y = tl_attached(t, tl_behind(t, x, TL_VIEW, 0))))
            return x;
}

/* A tensor that is no value of the tape, as a key of the table other_key. */
static uint64_t other(tl_tensor x) { return (uint64_t)x.owner << 32 | x.index; }

uint64_t tl_log_key_of(const tl_tape *t, tl_tensor x)
{
    x = tl_log_resolve(t, x);
    if (tl_is_none(x))
        return 0;
    if (x.owner == t->values.owner)
        return tl_log_mark_of(t, x.index).now;
    const uint64_t *k = tl_key_map_find(&tl_log_of(t)->other_key, other(x));
    return k != NULL ? *k : 0;
}

void tl_log_set_key(tl_tape *t, tl_tensor x, uint64_t key)
{
    tl_log_side *s = side_of(t);
    if (x.owner != t->values.owner) {
        if (!tl_key_map_put(&s->log->other_key, other(x), key))
            tl_fail(&s->log->failure, TL_ENOMEM, "no memory for the log of the model's tensors");
        return;
    }
    tl_log_mark *m = mark_in(s, t, x.index);
    if (m != NULL)
        m->now = key;
    else
        tl_fail(&s->log->failure, TL_ENOMEM, "no memory for the log of value %u", x.index);
}

void tl_log_forget_keys(tl_tape *t)
{
    tl_log_side *s = side_of(t);
    for (uint32_t i = 0, n = n_marks(s, t); i < n; i++)
        s->mark[i].now = 0;
    if (s->log != NULL)
        tl_key_map_clear(&s->log->other_key);
}

void tl_log_keys_in(tl_tape *t, int pass)
{
    tl_log_side *s = side_of(t);
    tl_log_forget_keys(t);
    for (uint32_t i = 0, n = n_marks(s, t); i < n; i++)
        if (pass < 0 || tl_log_key_unpack(s->mark[i].key).pass == pass)
            s->mark[i].now = s->mark[i].key;
    for (uint32_t i = 0; i < s->log->n; i++) {
        const tl_log_entry *e = &s->log->entry[i];
        bool model = e->from.owner != t->values.owner && tl_model_value(t->model, e->from) != NULL;
        if (model && strcmp(e->op, "state") != 0 &&
            (pass < 0 || tl_log_key_unpack(e->key).pass == pass))
            tl_log_set_key(t, e->from, e->key);
    }
}

void tl_log_keys_out(tl_tape *t)
{
    tl_log_side *s = side_of(t);
    for (uint32_t i = 0, n = n_marks(s, t); i < n; i++)
        s->mark[i].key = s->mark[i].key != 0 ? s->mark[i].key : s->mark[i].now;
}
