/* record.c: a graph that can be logged. It knows which of its values is which result of the called
 * program, and a run writes the lines of that program into the log of its tape.
 *
 * Forward results are numbered while the program is as it was called (trace.c), and a value keeps
 * its key when it is replaced or recorded again. Results of backward are numbered when it is
 * recorded op by op, those of the update at the end. The result of a replacement has the key of the
 * value that it replaces, which has the same bytes. Values inside it, and those of its own vjp,
 * have no key.
 *
 * A run can only write the bytes that it has in memory: a value that is computed inside its users'
 * loops, that another value stands for, or that a replacement left out has a line without bytes, or
 * none. The slab is used again while the run goes on, so bytes are copied before hashing. */
#include <string.h>

#include "autograd/graph/internal.h"
#include "autograd/log/internal.h"

/* ---- keys ---- */

tl_status tl_graph_keys_begin(tl_graph *g)
{
    if (tl_log_of(g->user) == NULL || tl_log_of_trace(g->t) == TL_OK)
        return TL_OK;
    return tl_fail(&g->head.err, TL_ENOMEM, "no memory to log a graph");
}

void tl_graph_keys_forward(tl_graph *g)
{
    tl_run_log *l = tl_log_of(g->t);
    if (l == NULL)
        return;
    for (uint32_t i = 0; i < g->t->n_nodes; i++)
        if (g->t->node[i].op == &tl_op_mark_backward)
            tl_log_number_forward(g->t, g->t->node[i].in[0]);
    l->now = -1; /* backward counts its passes again */
}

tl_status tl_graph_keys_end(tl_graph *g)
{
    tl_run_log *l = tl_log_of(g->t);
    if (l == NULL)
        return TL_OK;
    if (l->updates > 1)
        tl_fail(&l->failure, TL_EUSAGE,
                "a graph of %d optimizer steps cannot be logged, only of one or none", l->updates);
    if (g->tracing->put_off)
        tl_fail(&l->failure, TL_EUSAGE,
                "a graph whose backward puts gradients off cannot be logged");
    tl_log_keys_in(g->t, -1);
    tl_log_number_update(g->t);
    tl_log_keys_out(g->t);
    g->pass = tl_graph_room(g, (size_t)l->n_passes, sizeof *g->pass);
    return g->head.err.status;
}

bool tl_graph_keys_missing(const tl_graph *g)
{
    return tl_log_of(g->user) != NULL && tl_log_of(g->t) == NULL && g->tracing->has_backward;
}

/* ---- a run ---- */

/* The key in this step for a key of the trace. */
static uint64_t key_now(const tl_graph *g, uint64_t key)
{
    tl_log_key k = tl_log_key_unpack(key);
    if (key == 0 || k.pass == TL_KEY_UPDATE)
        return key;
    k.pass = g->pass[k.pass];
    return tl_log_key_pack(k);
}

/* The entry in this step for `like`, an entry of the trace's log, which has everything but the keys
 * and bytes of this step. *made: it is new. NULL: the log is stopped. */
static tl_log_entry *entry_for(tl_graph *g, const tl_log_entry *like, bool *made)
{
    tl_run_log *l = tl_log_of(g->user);
    tl_log_entry *e = tl_log_entry_get(l, key_now(g, like->key), made);
    if (e == NULL || !*made)
        return e;
    uint64_t *in = tl_log_room(l, (size_t)like->n_in, sizeof *in);
    if (in == NULL)
        return NULL;
    for (int k = 0; k < like->n_in; k++)
        in[k] = key_now(g, like->in[k]);
    const uint64_t key = e->key;
    *e = *like;
    e->key = key;
    e->in = in;
    e->name = tl_log_text(l, like->name);
    e->attrs = tl_log_text(l, like->attrs);
    return e;
}

static void take_copy(tl_graph *g, const tl_log_entry *e, const tl_array *a)
{
    tl_array copy;
    tl_storage *st = tl_graph_copy(g, a, &copy);
    if (st == NULL)
        tl_fail(&tl_log_of(g->user)->failure, TL_ENOMEM, "no memory to log %zu bytes",
                tl_array_room(a));
    else
        tl_log_take(tl_log_of(g->user), e, &copy, st);
    tl_storage_release(st);
}

/* Takes a leaf's bytes; those of the model once a step. */
static void take_leaf(tl_graph *g, const tl_log_entry *like, tl_log_entry *e, bool made,
                      const tl_tensor *in)
{
    tl_run_log *l = tl_log_of(g->user);
    const tl_leaf_kind kind = (tl_leaf_kind)(like->origin >> 32);
    const uint32_t at = (uint32_t)like->origin;
    if (tl_model_value(g->user->model, like->from) != NULL) {
        const tl_value *v = tl_peek(g->user, like->from);
        if (made && v->st != NULL)
            tl_log_take(l, e, &v->a, v->st);
    } else if (kind == TL_LEAF_INPUT) {
        const tl_tensor x = in[at];
        const tl_value *v = tl_peek(g->user, x);
        const char *name = x.owner != g->user->values.owner ? NULL
                                                            : tl_log_mark_of(g->user, x.index).name;
        if (made && name != NULL)
            e->name = tl_log_text(l, name);
        tl_log_take(l, e, &v->a, v->st);
    } else if (kind == TL_LEAF_CONSTANT) {
        tl_log_take(l, e, &g->tracing->constant[at].a, g->tracing->constant[at].st);
    } else if (kind == TL_LEAF_BOUND) {
        take_copy(g, e, &g->tracing->bound[at]);
    }
}

static bool is_state(const tl_log_entry *e) { return strcmp(e->op, "state") == 0; }

/* The log of the trace; NULL: the run is not logged. */
static const tl_run_log *keys_of(const tl_graph *g)
{
    const tl_run_log *l = tl_log_of(g->user);
    return l == NULL || l->failure.status != TL_OK ? NULL : tl_log_of(g->t);
}

void tl_graph_log_begin(tl_graph *g, const tl_tensor *in)
{
    tl_run_log *l = tl_log_of(g->user);
    const tl_run_log *k = keys_of(g);
    if (tl_graph_keys_missing(g))
        tl_fail(&l->failure, TL_EUSAGE,
                "the graph traced at %.200s:%d was traced before tl_log_open: open the log first",
                g->file, g->line);
    if (k != NULL && k->failure.status != TL_OK)
        tl_fail(&l->failure, k->failure.status, "%s", k->failure.message);
    if (k == NULL || l->failure.status != TL_OK || k->n == 0)
        return;
    l->compiled = true;
    for (int i = 0; i < k->n_passes; i++)
        if ((g->pass[i] = tl_log_pass_of(g->user, k->pass[i].program)) < 0)
            return;
    for (uint32_t i = 0; i < k->n && l->failure.status == TL_OK; i++) {
        bool made, leaf = !tl_is_none(k->entry[i].from) && !is_state(&k->entry[i]);
        /* A called update reads it by that key. */
        if (leaf && tl_model_value(g->user->model, k->entry[i].from) != NULL)
            tl_log_set_key(g->user, k->entry[i].from, key_now(g, k->entry[i].key));
        tl_log_entry *e = tl_log_wants(l, k->entry[i].shape.ndim)
                              ? entry_for(g, &k->entry[i], &made)
                              : NULL;
        if (e != NULL && leaf)
            take_leaf(g, &k->entry[i], e, made, in);
    }
    tl_log_settle(l); /* before anything changes */
}

void tl_graph_log_step(tl_graph *g, const tl_plan_step *p)
{
    tl_run_log *l = tl_log_of(g->user);
    const tl_node *n = &g->t->node[p->node];
    /* a gradient's step that gives one more result, a value again, still has its own */
    if (keys_of(g) == NULL || (p->again && p->n_out <= n->n_out))
        return;
    for (int j = 0; j < n->n_out; j++) {
        uint64_t key = key_now(g, tl_log_mark_of(g->t, n->out + (uint32_t)j).key);
        const uint64_t *at = key == 0 ? NULL : tl_key_map_find(&l->at, key);
        const tl_array *a = p->spot[p->n_in + j].a;
        if (at != NULL && l->entry[*at].use < 0 && tl_log_wants(l, a->ndim))
            take_copy(g, &l->entry[*at], a);
    }
}

void tl_graph_log_end(tl_graph *g)
{
    tl_run_log *l = tl_log_of(g->user);
    const tl_run_log *k = keys_of(g);
    if (k == NULL)
        return;
    for (uint32_t i = 0; i < k->n && l->failure.status == TL_OK; i++) {
        const tl_value *v = is_state(&k->entry[i]) ? tl_peek(g->user, k->entry[i].from) : NULL;
        const uint64_t *at = v == NULL ? NULL : tl_key_map_find(&l->at, k->entry[i].key);
        if (at != NULL)
            tl_log_take(l, &l->entry[*at], &v->a, v->st);
    }
    if (k->updates > 0 && l->failure.status == TL_OK) {
        tl_log_take_accumulators(g->user, false);
        tl_log_end_step(g->user);
    }
    tl_log_settle(l);
}
