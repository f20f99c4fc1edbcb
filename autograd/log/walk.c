/* walk.c: the results of a step in canonical order, each with its key.
 *
 * The forward results of a pass are numbered when its backward begins, those of a vjp when it has
 * been recorded, those of an update at its end. A program may record calls in any order, so nodes
 * are walked from their results, inputs first, left to right. */
#include "autograd/batch.h"
#include "autograd/log/internal.h"

static bool stopped(const tl_run_log *l) { return l->failure.status != TL_OK; }

/* Input k of n is the memory that n changes. */
static bool changes(const tl_node *n, int k)
{
    return n->op->traits & TL_MUTATES && k == n->op->mutates;
}

/* ---- forward ---- */

/* Gives the n nodes, and the leaves that they read, keys of that pass in order; views, too, since
 * their vjps have results. logged: also entries. Returns a hash of the program: its ops and the
 * keys of their inputs. */
static uint64_t number(tl_tape *t, const uint32_t *order, uint32_t n, int pass, bool logged)
{
    tl_run_log *l = tl_log_of(t);
    uint64_t program = 1;
    tl_log_key k = {.pass = pass};
    tl_log_forget_keys(t);
    for (uint32_t i = 0; i < n && !stopped(l); i++) {
        const tl_node *node = &t->node[order[i]];
        if (k.at + (uint32_t)node->n_in >= TL_KEY_AT_MAX)
            tl_fail(&l->failure, TL_ENOMEM, "no room to log %u ops", n);
        for (int j = 0; j < node->n_in; j++) {
            const tl_tensor x = tl_log_resolve(t, node->in[j]);
            if (tl_log_key_of(t, x) == 0 && !changes(node, j) && tl_peek(t, x) != NULL) {
                k.at++;
                tl_log_leaf(t, x, tl_log_key_pack(k), logged);
            }
            program = tl_mix(program, tl_log_key_of(t, x));
        }
        program = tl_mix_text(program, node->op->name);
        k.at++;
        tl_log_node(t, node, tl_log_key_pack(k), logged);
    }
    return program;
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
        return tl_fail(&l->failure, TL_EUSAGE,
                       "more than %d backwards of different programs in one step", TL_KEY_UPDATE),
               -1;
    if (!tl_grow(&l->pass, &l->cap_passes, l->n_passes, sizeof *l->pass))
        return tl_fail(&l->failure, TL_ENOMEM, "no memory for the log"), -1;
    l->pass[l->n_passes] = (tl_log_pass){program, t->generation, count};
    return l->n_passes++;
}

/* Numbers all that is below y, which is recorded and still there. Walks it twice: only the whole
 * program tells which pass it is. */
static void number_below(tl_tape *t, tl_tensor y)
{
    tl_run_log *l = tl_log_of(t);
    uint32_t *order, n;
    if (tl_canonical_order(t, y, TL_TO_ALL, &order, &n) != TL_OK)
        return;
    const uint64_t program = number(t, order, n, 0, false);
    if (!stopped(l))
        l->now = tl_log_pass_of(t, program);
    if (!stopped(l))
        number(t, order, n, l->now, true);
}

void tl_log_number_forward(tl_tape *t, tl_tensor y)
{
    number_below(t, y);
    tl_log_keys_out(t);
}

static void backward_begins(void *ctx, tl_tape *t, tl_tensor y)
{
    tl_run_log *l = ctx;
    if (stopped(l))
        return;
    if (l->of_trace) { /* its results had their keys before anything was replaced */
        tl_log_keys_in(t, ++l->now);
        return;
    }
    number_below(t, y);
    tl_log_settle(l);
}

void tl_log_reached(tl_tape *t, tl_tensor y)
{
    if (t != NULL && !tl_failed(t) && !tl_traced(t) && y.owner == t->values.owner &&
        y.generation == t->generation && tl_log_of(t) != NULL)
        backward_begins(tl_log_of(t), t, y);
}

/* Takes bytes of values that a segment has computed again: they were dropped before that. */
static void segment_restored(void *ctx, tl_tape *t, uint32_t first, uint32_t end)
{
    const tl_run_log *l = ctx;
    for (uint32_t i = first; i < end && !stopped(l) && tl_log_full(l); i++)
        for (int j = 0; j < t->node[i].n_out; j++) {
            const uint32_t value = t->node[i].out + (uint32_t)j;
            const uint64_t *e = tl_key_map_find(&l->at, tl_log_mark_of(t, value).now);
            if (e != NULL && tl_values_at(&t->values, value)->restored)
                tl_log_take_output(t, &l->entry[*e], &t->node[i], j);
        }
}

/* ---- a walk over the nodes that a vjp or an update has recorded ---- */

/* Walks the nodes from `mark` on in post-order. */
typedef struct {
    tl_tape *t;
    uint32_t mark;
    tl_postorder order;
    tl_log_key key; /* of the last result; its pass tells what is walked */
} walker;

/* The key of the next result. beside: it does not count in the numbers of the others. */
static uint64_t next_key(walker *w, bool beside)
{
    if (w->key.pass == TL_KEY_UPDATE && !beside) {
        w->key.at++;
        w->key.sub = 0;
    } else {
        w->key.sub++;
    }
    return tl_log_key_pack(w->key);
}

static uint64_t entry_of_use(const tl_run_log *l, tl_tensor leaf, int use)
{
    for (uint32_t i = 0; i < l->n; i++)
        if (l->entry[i].use == use && tl_same_handle(l->entry[i].leaf, leaf))
            return l->entry[i].key;
    return 0;
}

/* Logs x, which has no key yet and was there before the walk. */
static void log_outside(walker *w, tl_tensor x)
{
    tl_tape *t = w->t;
    const tl_value *v = tl_peek(t, x);
    const bool own = x.owner == t->values.owner, traced = tl_traced(t);
    uint32_t leaf, use;
    if (v == NULL || (v->st == NULL && !traced))
        return;
    if (tl_log_in_accumulator(t, x, &leaf, &use)) {
        tl_log_set_key(t, x, entry_of_use(tl_log_of(t), t->grad[leaf].leaf, (int)use));
        return;
    }
    if (v->st != NULL && v->st->arena == t->grad_arena)
        return;
    if (traced && own && v->node >= 0 && t->node[v->node].n_in > 0)
        return; /* a replacement made it: it is no result of the called program */
    if (!own && w->key.pass == TL_KEY_UPDATE)
        return; /* an optimizer's state: it is logged as it is after the update (log_states) */
    tl_log_leaf(t, x, next_key(w, false), true);
}

/* Logs the tensors of the model that the node of result `by` reads and may change: an optimizer's
 * state, as it is after the node. */
static void log_states(walker *w, const tl_node *n, uint64_t by)
{
    tl_run_log *l = tl_log_of(w->t);
    for (int k = 0; k < n->n_in && tl_log_full(l); k++) {
        const tl_tensor x = tl_log_resolve(w->t, n->in[k]);
        if (tl_is_none(x) || x.owner == w->t->values.owner || changes(n, k) ||
            tl_log_key_of(w->t, x) != 0)
            continue;
        tl_log_entry *e = tl_log_entry_of_leaf(w->t, next_key(w, false), x);
        uint64_t *in = e == NULL ? NULL : tl_log_room(l, 1, sizeof *in);
        if (in == NULL)
            continue;
        *in = by;
        e->op = "state";
        e->in = in;
        e->n_in = 1;
    }
}

/* The node belongs to the walk. */
static bool walks(const walker *w, int32_t node)
{
    return node >= (int32_t)w->mark &&
           (w->key.pass != TL_KEY_UPDATE || w->t->node[node].phase & TL_PHASE_UPDATE);
}

/* The node that made x, if it is walked; else -1, and x gets its key. */
static int32_t enter(walker *w, tl_tensor x)
{
    const tl_tape *t = w->t;
    x = tl_is_none(x) ? x : tl_attached(t, x);
    const tl_value *v = tl_peek(t, x);
    if (v == NULL)
        return -1;
    if (x.owner == t->values.owner && walks(w, v->node))
        return v->node;
    if (tl_log_key_of(t, x) == 0)
        log_outside(w, tl_log_resolve(t, x));
    return -1;
}

static int32_t follow(void *ctx, const tl_node *n, int k)
{
    walker *w = ctx;
    return changes(n, k) && n->in[k].owner != w->t->values.owner ? -1 : enter(w, n->in[k]);
}

static void walker_begin(walker *w, tl_tape *t, uint32_t mark, tl_log_key key)
{
    *w = (walker){.t = t, .mark = mark, .key = key};
    tl_postorder_begin(&w->order, t, follow, w);
}

/* Gives everything below root that has no key yet a key and an entry. */
static void walk_from(walker *w, tl_tensor root)
{
    tl_postorder_from(&w->order, enter(w, root));
    for (int32_t i; (i = tl_postorder_next(&w->order)) >= 0;) {
        const tl_node *n = &w->t->node[i];
        if (n->op->traits & TL_VIEW)
            continue;
        /* a gradient that the update reads: the nodes that put it together do not count */
        const uint64_t key = next_key(w, n->phase & TL_PHASE_GRADIENT);
        tl_log_node(w->t, n, key, true);
        if (w->key.pass == TL_KEY_UPDATE)
            log_states(w, n, key);
    }
}

/* ---- backward ---- */

/* The value that arrived at an input, or was folded into its accumulator: dx as the vjp gave it, or
 * the engine's own sum_to of dx. */
static tl_tensor arrived(tl_tape *t, uint32_t mark, tl_tensor dx, tl_tensor delivered)
{
    uint32_t leaf, use;
    if (tl_traced(t) && !tl_is_none(delivered))
        return delivered;
    const tl_storage *st = tl_is_none(delivered) ? NULL : tl_peek(t, delivered)->st;
    for (uint32_t i = t->n_nodes; i-- > mark;) {
        const tl_node *n = &t->node[i];
        if (n->op != &tl_op_sum_to || n->in[0].owner != dx.owner || n->in[0].index != dx.index)
            continue;
        if (st != NULL ? tl_values_at(&t->values, n->out)->st == st
                       : tl_log_in_accumulator(t, tl_node_out(t, n, 0), &leaf, &use))
            return tl_node_out(t, n, 0);
    }
    return dx;
}

/* In a trace: the called program adds up the same cotangents to x, in a chain of nodes that each
 * add one more. It does not if a replacement gave one of them, which has no key. */
static bool sum_is_known(const walker *w, tl_tensor x)
{
    const tl_tape *t = w->t;
    for (;;) {
        const tl_value *v = tl_is_none(x) || x.owner != t->values.owner ? NULL : tl_peek(t, x);
        if (v == NULL || v->node < 0)
            return true;
        const tl_node *n = &t->node[v->node];
        if (v->node < (int32_t)w->mark)
            return n->n_in == 0 || tl_log_key_of(t, x) != 0;
        for (int k = 1; k < n->n_in; k++)
            if (!tl_is_none(n->in[k]) && n->in[k].owner == t->values.owner &&
                tl_peek(t, n->in[k])->node >= 0 && tl_log_key_of(t, n->in[k]) == 0)
                return false;
        x = n->in[0];
    }
}

/* Marks the chain that adds up to x as visited, so that it gets no keys. */
static void pass_over(walker *w, tl_tensor x)
{
    for (int32_t i; !tl_is_none(x) && x.owner == w->t->values.owner &&
                    (i = tl_peek(w->t, x)->node) >= (int32_t)w->mark;
         x = w->t->node[i].in[0])
        w->t->node[i].visit = w->order.visit;
}

static void delivered(void *ctx, tl_tape *t, const tl_given *g)
{
    tl_run_log *l = ctx;
    walker w;
    const tl_log_mark m = tl_log_mark_of(t, t->node[g->node].out);
    if (stopped(l) || !tl_log_full(l) || m.now == 0 ||
        m.stand_in) /* of a replacement's op, whose vjp has results of its own */
        return;
    walker_begin(&w, t, g->first,
                 (tl_log_key){.pass = l->now,
                              .backward = true,
                              .adding = true,
                              .at = tl_log_key_unpack(m.now).at});
    for (int j = 0; j < g->n_out; j++)
        if (!l->of_trace || sum_is_known(&w, g->dy[j]))
            walk_from(&w, g->dy[j]);
        else
            pass_over(&w, g->dy[j]);
    w.key.adding = false;
    w.key.sub = 0;
    for (int k = 0; k < g->n_in; k++) {
        if (tl_is_none(g->dx[k]))
            continue;
        const tl_tensor x = arrived(t, g->first, g->dx[k], g->delivered[k]);
        walk_from(&w, g->dx[k]);
        walk_from(&w, x);
        if (!tl_is_none(g->delivered[k]))
            tl_log_set_key(t, g->delivered[k], tl_log_key_of(t, x));
    }
}

void tl_log_take_accumulators(tl_tape *t, bool own)
{
    tl_run_log *l = tl_log_of(t);
    for (uint32_t i = 0; i < l->n; i++) {
        const tl_log_entry *e = &l->entry[i];
        const tl_leaf_grad *g = e->use < 0 || own != (e->leaf.owner == t->values.owner)
                                    ? NULL
                                    : tl_leaf_grad_find(t, e->leaf);
        if (g != NULL && e->use < g->n_accs && g->acc[e->use].open)
            tl_log_take(l, e, &g->acc[e->use].sum, g->acc[e->use].st);
    }
}

static void backward_ends(void *ctx, tl_tape *t)
{
    tl_run_log *l = ctx;
    if (stopped(l))
        return;
    if (l->of_trace) {
        tl_log_keys_out(t);
        return;
    }
    tl_log_take_accumulators(t, true); /* the gradients of the tape's own leaves end with it */
    tl_log_settle(l);
}

/* ---- update ---- */

static void update_begins(void *ctx, tl_tape *t)
{
    tl_run_log *l = ctx;
    if (!l->of_trace)
        l->update_from = t->n_nodes;
}

/* Walks from the nodes whose results no other node of the update reads, in the order of recording:
 * an optimizer goes through the parameters by name. */
void tl_log_number_update(tl_tape *t)
{
    tl_run_log *l = tl_log_of(t);
    const uint32_t mark = l->update_from;
    walker w;
    l->update_from = UINT32_MAX;
    uint8_t *read = stopped(l) || mark > t->n_nodes ? NULL
                                                    : tl_bump_get(&t->bump, t->n_nodes - mark + 1);
    if (read == NULL)
        return;
    walker_begin(&w, t, mark, (tl_log_key){.pass = TL_KEY_UPDATE});
    for (uint32_t i = mark; i < t->n_nodes; i++)
        for (int k = 0; k < t->node[i].n_in; k++) {
            const tl_tensor x = t->node[i].in[k];
            int32_t p = x.owner == t->values.owner ? tl_peek(t, x)->node : -1;
            if (walks(&w, (int32_t)i) && walks(&w, p))
                read[(uint32_t)p - mark] = 1;
        }
    for (uint32_t i = mark; i < t->n_nodes; i++)
        if (walks(&w, (int32_t)i) && !read[i - mark] && t->node[i].n_out > 0 &&
            t->node[i].n_in > 0) /* a constant that nothing reads is no result */
            walk_from(&w, tl_node_out(t, &t->node[i], 0));
}

static void updated(void *ctx, tl_tape *t)
{
    tl_run_log *l = ctx;
    if (l->of_trace) {
        l->updates++;
        return;
    }
    if (!stopped(l))
        tl_log_take_accumulators(t, false);
    tl_log_number_update(t);
    tl_log_end_step(t);
}

/* ---- other events ---- */

/* The memory of an operand is about to change: bytes that wait there are taken first. */
static void runs(void *ctx, tl_tape *t, const tl_seen *c)
{
    tl_run_log *l = ctx;
    const tl_op *op = c->call->op;
    if (c->node == TL_NO_NODE || !(op->traits & TL_MUTATES) || c->call->in[op->mutates] == NULL)
        return;
    const tl_storage *st = tl_values_at(&t->values, t->node[c->node].out)->st;
    for (int i = 0; i < l->n_jobs; i++)
        if (l->job[i].st == st)
            tl_log_settle(l);
}

/* Results that led to these gradients belong to no step. After tl_step nothing is left to drop. */
static void cleared(void *ctx, tl_tape *t)
{
    tl_log_drop_step(ctx);
    tl_log_forget_keys(t);
}

static void freed(void *log, TL_UNUSED tl_tape *t) { tl_log_free(log); }

const tl_observer tl_log_observer = {.runs = runs,
                                     .backward_begins = backward_begins,
                                     .delivered = delivered,
                                     .backward_ends = backward_ends,
                                     .segment_restored = segment_restored,
                                     .update_begins = update_begins,
                                     .updated = updated,
                                     .cleared = cleared,
                                     .freed = freed};
