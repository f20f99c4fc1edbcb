/* walk.c: the forward results of a pass, numbered in canonical order, and where they come from. */
#include <string.h>

#include "autograd/kernel.h"
#include "autograd/log/internal.h"

tl_log_entry *tl_log_describe(tl_tape *t, uint64_t key, const tl_node *n, int j)
{
    tl_run_log *l = tl_log_of(t);
    const tl_value *v = tl_values_at(&t->values, n->out + (uint32_t)j);
    char text[TL_ATTRS_TEXT];
    bool made;
    tl_log_entry *e = tl_log_entry_get(l, key, &made);
    if (e == NULL || !made)
        return e;
    e->op = n->op->name;
    e->attrs = tl_log_text(l, tl_attrs_text(n->op, n->attrs, text));
    e->file = n->file;
    e->line = n->line;
    e->mode = n->kernel != NULL ? n->kernel->mode
                                : TL_INVARIANT; /* what ran, not what a scope asked for */
    e->dtype = v->a.dtype;
    if (l->of_trace)
        e->shape = tl_array_shape(&v->a);
    const char *name = tl_log_mark_of(t, n->out + (uint32_t)j).name;
    e->name = tl_log_text(l, name != NULL ? name : "");
    e->n_in = n->n_in;
    uint64_t *in = tl_bump_get(&l->bump, (size_t)(n->n_in + 1) * sizeof *in);
    for (int k = 0; in != NULL && k < n->n_in; k++)
        in[k] = tl_log_key_of(t, n->in[k]);
    if (in == NULL)
        tl_log_stop(l, TL_ENOMEM, "no memory for the log of %d inputs", n->n_in);
    e->in = in;
    return e;
}

void tl_log_take_value(tl_tape *t, const tl_log_entry *e, const tl_node *n, int j)
{
    const tl_value *v = tl_values_at(&t->values, n->out + (uint32_t)j);
    uint32_t was = v->restored ? v->born : n->versions[n->n_in + j];
    tl_changer by;
    if (e != NULL && v->st != NULL && !tl_storage_changed(v->st, was, &v->a, &by))
        tl_log_take(tl_log_of(t), e, &v->a, v->st);
}

/* Bytes of the model are the same in every micro-batch: taken once a step. */
tl_log_entry *tl_log_leaf(tl_tape *t, uint64_t key, tl_tensor x)
{
    tl_run_log *l = tl_log_of(t);
    const tl_value *v = tl_peek(t, x);
    bool made, own = x.owner == t->values.owner;
    tl_log_entry *e = v == NULL ? NULL : tl_log_entry_get(l, key, &made);
    if (e == NULL)
        return NULL;
    if (made) {
        const char *name = own ? tl_log_mark_of(t, x.index).name : tl_model_name_of(t->model, x);
        e->op = own || name == NULL ? "data" : v->needs_grad ? "param" : "buffer";
        e->name = tl_log_text(l, name != NULL ? name : "");
        e->dtype = v->a.dtype;
    }
    if (l->of_trace) {
        e->from = x;
        e->origin = t->recorder->origin(t->recorder_ctx, t, x);
        e->shape = tl_array_shape(&v->a);
    } else if ((own || made) && v->st != NULL) {
        tl_log_take(l, e, &v->a, v->st);
    }
    return e;
}

void tl_log_state(tl_tape *t, uint64_t key, tl_tensor x, uint64_t by)
{
    tl_log_entry *e = tl_log_leaf(t, key, x);
    uint64_t *in = e == NULL ? NULL : tl_bump_get(&tl_log_of(t)->bump, sizeof *in);
    if (in == NULL)
        return;
    *in = by;
    e->op = "state";
    e->in = in;
    e->n_in = 1;
}

/* What the walk meets, in order: a leaf, or a node (views, too: their vjps have results). */
typedef struct {
    tl_tensor leaf;
    uint32_t node;
} item;

typedef struct {
    item *item;
    uint32_t n;
    uint64_t program; /* ops, and which item each input is */
} listing;

static void mix(uint64_t *h, uint64_t x) { *h = (*h ^ x) * 0x100000001b3u; }

static void number(tl_tape *t, tl_tensor x, uint64_t k)
{
    if (x.owner == t->values.owner)
        tl_log_set_key(t, x.index, k);
    else if (!tl_key_map_put(&tl_log_of(t)->model_key, (uint64_t)x.index + 1, k))
        tl_log_stop(tl_log_of(t), TL_ENOMEM, "no memory for the log of the model's tensors");
}

static void list_inputs(tl_tape *t, listing *s, const tl_node *n)
{
    for (int k = 0; k < n->n_in; k++) {
        tl_tensor x = tl_log_resolve(t, n->in[k]);
        bool changed = n->op->traits & TL_MUTATES && k == n->op->mutates;
        if (!tl_is_none(x) && tl_log_key_of(t, x) == 0 && !changed && tl_peek(t, x) != NULL) {
            s->item[s->n++] = (item){.leaf = x};
            number(t, x, s->n);
        }
        mix(&s->program, tl_log_key_of(t, x));
    }
}

static bool list(tl_tape *t, tl_tensor y, listing *s)
{
    uint32_t *order, n;
    size_t room = 0;
    if (tl_canonical_order(t, y, TL_TO_ALL, &order, &n) != TL_OK)
        return false;
    for (uint32_t i = 0; i < n; i++)
        room += 1 + (size_t)t->node[order[i]].n_in;
    *s = (listing){.item = tl_bump_get(&t->bump, (room + 1) * sizeof *s->item),
                   .program = 0xcbf29ce484222325u};
    if (s->item == NULL || room > TL_KEY_AT_MAX)
        return tl_log_stop(tl_log_of(t), TL_ENOMEM, "no room to log %u ops", n), false;
    tl_key_map_clear(&tl_log_of(t)->model_key);
    for (uint32_t i = 0; i < n; i++) {
        const tl_node *node = &t->node[order[i]];
        list_inputs(t, s, node);
        for (const char *c = node->op->name; *c != '\0'; c++)
            mix(&s->program, (unsigned char)*c);
        s->item[s->n++] = (item){.node = order[i]};
        for (uint32_t j = 0; j < (uint32_t)node->n_out; j++)
            tl_log_set_key(t, node->out + j, s->n);
    }
    return true;
}

int tl_log_pass_of(tl_tape *t, uint64_t program)
{
    tl_run_log *l = tl_log_of(t);
    int count = 0;
    for (int i = 0; i < l->n_passes; i++)
        count += l->pass[i].program == program && l->pass[i].generation == t->generation;
    for (int i = 0; i < l->n_passes; i++)
        if (l->pass[i].program == program && l->pass[i].count == count &&
            l->pass[i].generation != t->generation) {
            l->pass[i].generation = t->generation;
            return i;
        }
    if (l->n_passes == TL_KEY_UPDATE)
        return tl_log_stop(l, TL_EUSAGE, "more than %d backwards of different programs in one step",
                           TL_KEY_UPDATE),
               -1;
    if (l->n_passes == l->cap_passes) {
        tl_log_pass *grown = tl_realloc(l->pass, (size_t)(l->cap_passes + 8) * sizeof *grown);
        if (grown == NULL)
            return tl_log_stop(l, TL_ENOMEM, "no memory for the log"), -1;
        l->pass = grown;
        l->cap_passes += 8;
    }
    l->pass[l->n_passes] = (tl_log_pass){program, t->generation, count};
    return l->n_passes++;
}

static void log_item(tl_tape *t, const item *x, uint32_t at)
{
    tl_run_log *l = tl_log_of(t);
    tl_log_key k = {.pass = l->now, .at = at};
    bool full = tl_log_full(l);
    if (!tl_is_none(x->leaf)) {
        number(t, x->leaf, tl_log_key_pack(k));
        if (full || tl_peek(t, x->leaf)->a.ndim == 0)
            tl_log_leaf(t, tl_log_key_pack(k), x->leaf);
        return;
    }
    const tl_node *n = &t->node[x->node];
    for (k.out = 0; k.out < n->n_out; k.out++) {
        uint32_t value = n->out + (uint32_t)k.out;
        tl_log_set_key(t, value, tl_log_key_pack(k));
        if (!(n->op->traits & TL_VIEW) && (full || tl_values_at(&t->values, value)->a.ndim == 0))
            tl_log_take_value(t, tl_log_describe(t, tl_log_key_pack(k), n, k.out), n, k.out);
    }
}

static void number_all(tl_tape *t, tl_tensor y)
{
    tl_run_log *l = tl_log_of(t);
    listing s;
    l->key_generation = 0; /* numbers of another pass are not this one's */
    if (!list(t, y, &s))
        return;
    l->now = tl_log_pass_of(t, s.program);
    for (uint32_t i = 0; i < s.n && l->failure.status == TL_OK; i++)
        log_item(t, &s.item[i], i + 1);
}

void tl_log_number_forward(tl_tape *t, tl_tensor y)
{
    number_all(t, y);
    tl_log_keys_out(t);
}

void tl_log_forward(tl_tape *t, tl_tensor y)
{
    tl_run_log *l = tl_log_of(t);
    if (l == NULL || l->failure.status != TL_OK)
        return;
    if (l->of_trace) { /* numbered before anything was replaced */
        tl_log_keys_in(t, ++l->now);
        if (l->key_generation == 0)
            l->key_generation = t->generation;
        return;
    }
    number_all(t, y);
    tl_log_settle(l);
}

void tl_log_reached(tl_tape *t, tl_tensor y)
{
    if (t != NULL && !tl_failed(t) && !tl_traced(t) && y.owner == t->values.owner &&
        y.generation == t->generation)
        tl_log_forward(t, y);
}

void tl_log_restored(tl_tape *t, uint32_t first, uint32_t end)
{
    tl_run_log *l = tl_log_of(t);
    if (l == NULL || l->failure.status != TL_OK || !tl_log_full(l))
        return;
    for (uint32_t i = first; i < end; i++) {
        const tl_node *n = &t->node[i];
        for (int j = 0; j < n->n_out; j++) {
            uint32_t value = n->out + (uint32_t)j;
            const uint64_t *e = value < l->cap_keys ? tl_key_map_find(&l->at, l->key_of[value])
                                                    : NULL;
            if (e != NULL && tl_values_at(&t->values, value)->restored)
                tl_log_take_value(t, &l->entry[*e], n, j);
        }
    }
}
