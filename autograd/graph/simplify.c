/* simplify.c: values that equal others bit for bit, so that one computation serves both.
 *
 * Equal: the same op with the same attributes on the same inputs, unchanged in between;
 * a view that shows its operand as it was; what an op says its input equals (tl_op.same_as,
 * x*1 but not x+0) or undoes (neg of neg); and constants (constants.c). Nothing random,
 * nothing that is changed in place and nothing that is handed out takes part: a copy that
 * somebody may write to stays a copy. Nodes are not touched; same[] says what stands for what. */
#include "autograd/graph/simplify.h"

#include <string.h>

enum { END = UINT32_MAX };

static const tl_array *array_of(const tl_graph *g, tl_tensor x) { return &tl_peek(g->t, x)->a; }

bool tl_simplify_free(tl_simplifier *s, tl_tensor y)
{
    uint32_t r = tl_graph_root(s->g, y);
    return !s->written[r] && !s->given[r];
}

static bool unchanging(tl_simplifier *s, tl_tensor x)
{
    return !s->written[tl_graph_root(s->g, x)];
}

void tl_simplify_same(tl_simplifier *s, tl_tensor y, tl_tensor x)
{
    s->g->same[y.index] = x;
    s->g->stats.merged++;
}

/* Of one dtype, with one layout. */
static bool alike(const tl_array *a, const tl_array *b)
{
    if (a->dtype != b->dtype || !tl_array_same_shape(a, b))
        return false;
    for (int d = 0; d < a->ndim; d++)
        if (a->dim[d] != 1 && a->stride[d] != b->stride[d])
            return false;
    return true;
}

/* ---- the same op on the same inputs ---- */

static bool may_share(const tl_node *n)
{
    bool source = n->n_in == 0 && n->op != &tl_op_fill; /* whatever it reads, it is not an input */
    if (n->op->traits & TL_RANDOM || n->mode & TL_WATCHED_MODES || n->n_out == 0 || source)
        return false;
    for (int k = 0; k < n->n_in; k++)
        if (tl_node_writes(n, k))
            return false;
    return true;
}

static uint32_t mixed(uint32_t h, uint64_t x)
{
    x = (x ^ h) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(x >> 32);
}

/* The order of two inputs that may change places does not count. */
static uint32_t hash(const tl_graph *g, const tl_node *n)
{
    uint32_t h = mixed((uint32_t)n->n_in, (uint64_t)(uintptr_t)n->op), pair = 0;
    for (int k = 0; k < n->n_in; k++) {
        tl_tensor x = tl_graph_resolve(g, n->in[k]);
        uint64_t id = (uint64_t)x.owner << 32 | x.index;
        if (n->op->traits & TL_COMMUTATIVE && k < 2)
            pair += mixed(1, id);
        else
            h = mixed(h, id);
    }
    return mixed(h, pair);
}

static bool same_input(const tl_graph *g, const tl_node *a, int i, const tl_node *b, int k)
{
    return tl_same_handle(tl_graph_resolve(g, a->in[i]), tl_graph_resolve(g, b->in[k]));
}

static bool same_inputs(const tl_graph *g, const tl_node *a, const tl_node *b)
{
    int from = 0;
    if (a->op->traits & TL_COMMUTATIVE && a->n_in >= 2 && same_input(g, a, 0, b, 1) &&
        same_input(g, a, 1, b, 0))
        from = 2;
    for (int k = from; k < a->n_in; k++)
        if (!same_input(g, a, k, b, k))
            return false;
    return true;
}

/* Node a, before b, computes what b computes, from the same contents. */
static bool equal(tl_simplifier *s, uint32_t ia, const tl_node *b)
{
    tl_graph *g = s->g;
    const tl_node *a = &g->t->node[ia];
    const unsigned matters = TL_FAST | TL_SHADOW;
    if (a->op != b->op || a->n_in != b->n_in || a->n_out != b->n_out || a->kernel != b->kernel ||
        (a->mode ^ b->mode) & matters || !same_inputs(g, a, b) ||
        !tl_attrs_agree(a->op, a->attrs, b->attrs, 0, NULL))
        return false;
    for (int k = 0; k < a->n_in; k++)
        if (!tl_is_none(b->in[k]) &&
            s->change[tl_graph_root(g, tl_graph_resolve(g, b->in[k]))] >= (int64_t)ia)
            return false;
    for (int j = 0; j < a->n_out; j++) {
        tl_tensor x = tl_node_out(g->t, a, j), y = tl_node_out(g->t, b, j);
        bool view = j == 0 && b->op->traits & TL_VIEW; /* of one memory, both */
        if (!alike(array_of(g, x), array_of(g, y)) || !unchanging(s, x) ||
            (view ? !unchanging(s, y) : !tl_simplify_free(s, y)))
            return false;
    }
    return true;
}

/* An earlier node stands for node i, or it may stand for later ones. */
static bool share(tl_simplifier *s, uint32_t i)
{
    tl_graph *g = s->g;
    const tl_node *n = &g->t->node[i];
    if (!may_share(n))
        return false;
    uint32_t at = hash(g, n) & s->mask;
    for (uint32_t k = s->bucket[at]; k != END; k = s->next[k]) {
        if (!equal(s, k, n))
            continue;
        for (int j = 0; j < n->n_out; j++)
            tl_simplify_same(s, tl_node_out(g->t, n, j),
                             tl_graph_resolve(g, tl_node_out(g->t, &g->t->node[k], j)));
        return true;
    }
    s->next[i] = s->bucket[at];
    s->bucket[at] = i;
    return false;
}

/* ---- an input in another form ---- */

/* x, which the node reads, may stand for its result y: the same layout, and nobody ever changes
 * either. */
static bool stands_for(tl_simplifier *s, tl_tensor x, tl_tensor y)
{
    return alike(array_of(s->g, x), array_of(s->g, y)) && unchanging(s, x) &&
           tl_simplify_free(s, y);
}

static const tl_node *maker(const tl_graph *g, tl_tensor x)
{
    const tl_value *v = x.owner == g->t->values.owner ? tl_values_at(&g->t->values, x.index) : NULL;
    return v == NULL || v->node < 0 ? NULL : &g->t->node[v->node];
}

/* A view of views that shows what one below it shows. */
static tl_status see_through(tl_simplifier *s, const tl_node *n)
{
    tl_graph *g = s->g;
    tl_tensor y = tl_node_out(g->t, n, 0);
    int64_t at, below;
    if (!unchanging(s, y))
        return TL_OK;
    TL_TRY(tl_graph_offset(g, y, &at));
    for (const tl_node *v = n; v != NULL && v->op->traits & TL_VIEW;) {
        tl_tensor x = tl_graph_resolve(g, v->in[0]);
        TL_TRY(tl_graph_offset(g, x, &below));
        if (at == below && alike(array_of(g, x), array_of(g, y))) {
            tl_simplify_same(s, y, x);
            return TL_OK;
        }
        v = maker(g, x);
    }
    return TL_OK;
}

/* f(g(x)) for an op that undoes the other. */
static bool undo(tl_simplifier *s, const tl_node *n)
{
    tl_graph *g = s->g;
    const tl_node *m = n->op->undoes != NULL ? maker(g, tl_graph_resolve(g, n->in[0])) : NULL;
    if (m == NULL || m->op != n->op->undoes || m->kernel != NULL)
        return false;
    tl_tensor x = tl_graph_resolve(g, m->in[0]), y = tl_node_out(g->t, n, 0);
    if (!stands_for(s, x, y))
        return false;
    tl_simplify_same(s, y, x);
    return true;
}

/* What the op itself says of its result. */
static bool pass_on(tl_simplifier *s, const tl_node *n)
{
    tl_graph *g = s->g;
    double value[TL_TILE_MAX_IN];
    const double *constant[TL_TILE_MAX_IN] = {NULL};
    if (n->op->same_as == NULL || n->n_in > TL_TILE_MAX_IN)
        return false;
    for (int k = 0; k < n->n_in; k++)
        if (!tl_is_none(n->in[k]) &&
            tl_simplify_uniform(s, tl_graph_resolve(g, n->in[k]), &value[k]))
            constant[k] = &value[k];
    int k = n->op->same_as(n->attrs, constant);
    if (k < 0 || !stands_for(s, tl_graph_resolve(g, n->in[k]), tl_node_out(g->t, n, 0)))
        return false;
    tl_simplify_same(s, tl_node_out(g->t, n, 0), tl_graph_resolve(g, n->in[k]));
    return true;
}

/* ---- all of it ---- */

static void note_changes(tl_simplifier *s, uint32_t i, bool ever)
{
    tl_graph *g = s->g;
    const tl_node *n = &g->t->node[i];
    for (int k = 0; k < n->n_in; k++) {
        if (!tl_node_writes(n, k))
            continue;
        uint32_t r = tl_graph_root(g, tl_graph_resolve(g, n->in[k]));
        if (ever)
            s->written[r] = true;
        else
            s->change[r] = i;
    }
}

static tl_status visit(tl_simplifier *s, uint32_t i)
{
    const tl_node *n = &s->g->t->node[i];
    bool plain = n->kernel == NULL && !(n->mode & TL_WATCHED_MODES) && !tl_node_mutates(n);
    if (plain && tl_simplify_fold(s, n))
        return s->g->head.err.status;
    if (!share(s, i) && plain) {
        if (n->op->traits & TL_VIEW)
            TL_TRY(see_through(s, n));
        else if (!undo(s, n))
            pass_on(s, n);
    }
    note_changes(s, i, false);
    return TL_OK;
}

static bool prepare(tl_simplifier *s)
{
    tl_graph *g = s->g;
    uint32_t n = atomic_load(&g->t->values.count), buckets = 16;
    while (buckets < g->t->n_nodes)
        buckets *= 2;
    s->cap = 2 * n;
    s->mask = buckets - 1;
    s->written = tl_bump_get(&g->bump, g->cap_roots + 1);
    s->given = tl_bump_get(&g->bump, g->cap_roots + 1);
    s->change = tl_bump_get(&g->bump, (g->cap_roots + 1) * sizeof *s->change);
    s->known = tl_bump_get(&g->bump, (s->cap + 1) * sizeof *s->known);
    s->bucket = tl_bump_get(&g->bump, buckets * sizeof *s->bucket);
    s->next = tl_bump_get(&g->bump, (g->t->n_nodes + 1) * sizeof *s->next);
    if (s->written == NULL || s->given == NULL || s->change == NULL || s->known == NULL ||
        s->bucket == NULL || s->next == NULL)
        return false;
    memset(s->bucket, 0xff, buckets * sizeof *s->bucket);
    memset(s->change, 0xff, (g->cap_roots + 1) * sizeof *s->change);
    for (uint32_t i = 0; i < g->t->n_nodes; i++)
        note_changes(s, i, true);
    for (int i = 0; i < g->n_out; i++)
        s->given[tl_graph_root(g, g->out[i])] = true;
    for (int i = 0; i < g->tracing->n_watch; i++)
        s->given[tl_graph_root(g, g->tracing->watch[i].x)] = true;
    return true;
}

tl_status tl_graph_simplify(tl_graph *g)
{
    tl_simplifier s = {.g = g};
    uint32_t n = atomic_load(&g->t->values.count);
    if (!prepare(&s))
        return tl_fail(&g->head.err, TL_ENOMEM, "no memory to simplify a graph of %u nodes",
                       g->t->n_nodes);
    for (uint32_t i = 0; i < n; i++) { /* a detached value is the value */
        const tl_value *v = tl_values_at(&g->t->values, i);
        if (v->node < 0 && !tl_is_none(v->source) && !s.written[g->root[i]])
            g->same[i] = v->source;
    }
    for (uint32_t i = 0; i < g->t->n_nodes; i++)
        TL_TRY(visit(&s, i));
    tl_graph_move_roots(g, n);
    return g->head.err.status;
}
