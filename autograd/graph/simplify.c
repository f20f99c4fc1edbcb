/* simplify.c: values that equal others bit for bit, so that one computation serves both.
 *
 * These are equal: results of the same op with the same attributes on the same inputs, unchanged in
 * between; a view and an operand that it shows as it is; a result and an input that it equals, as
 * its op says (tl_op.same_as: x*1, but not x+0), or undoes (neg of neg); and constants. Values that
 * are random, changed in place or handed out take no part: a copy that somebody may write to stays
 * a copy. Nodes are not touched; tl_value_plan.same says which value stands for which. */
#include <string.h>

#include "autograd/graph/internal.h"

enum { END = UINT32_MAX };

typedef struct {
    tl_graph *g;
    tl_array *known; /* by value: its contents, where they are known; else data is NULL */
    uint32_t *bucket, *next, mask; /* nodes by hash, ended by END */
} simplifier;

static bool unchanging(simplifier *s, tl_tensor x)
{
    return !tl_root_changes(s->g, tl_graph_root(s->g, x));
}

/* y is never changed nor handed out: another value may stand for it. */
static bool is_free(simplifier *s, tl_tensor y)
{
    return unchanging(s, y) && !s->g->roots[tl_graph_root(s->g, y)].result;
}

/* From now on x stands for y. */
static void stand_for(simplifier *s, tl_tensor y, tl_tensor x)
{
    s->g->value[y.index].same = x;
    s->g->stats.merged++;
}

/* ---- values that are known while a graph is made: small constants, and results of these ---- */

enum { MOST = 4096 }; /* bytes of a result */

/* The contents of x; NULL if they are not known. */
static const tl_array *known(simplifier *s, tl_tensor x)
{
    tl_graph *g = s->g;
    x = tl_graph_resolve(g, x);
    if (x.owner != g->t->values.owner)
        return NULL;
    const tl_value *v = tl_values_at(&g->t->values, x.index);
    if (v->node < 0 && tl_leaf_of(g->t, x).kind == TL_LEAF_CONSTANT &&
        s->known[x.index].data == NULL && tl_array_room(&v->a) <= MOST && unchanging(s, x))
        s->known[x.index] = g->tracing->constant[tl_leaf_of(g->t, x).at].a;
    return s->known[x.index].data == NULL ? NULL : &s->known[x.index];
}

/* Makes a constant of *a stand for y. */
static void settle(simplifier *s, const tl_node *n, tl_tensor y, const tl_array *a)
{
    tl_graph *g = s->g;
    tl_tensor x = tl_constant_at((tl_at){g->t, n->file, n->line, NULL}, a->data, (tl_c_data){0},
                                 a->dtype, tl_array_shape(a));
    if (tl_is_none(x)) {
        tl_fail(&g->head.err, TL_ENOMEM, "no memory for a constant of %zu bytes", tl_array_room(a));
        return;
    }
    tl_graph_adopt(g, x);
    stand_for(s, y, x);
}

/* n computes its results from its inputs and attributes alone. */
static bool is_function(const tl_node *n)
{
    return n->n_out > 0 && !(n->op->traits & TL_RANDOM) && (n->n_in > 0 || n->op == &tl_op_fill);
}

/* Computes the results of n now, if all its inputs are known; true if it has. A view of a known
 * value is known, too, but stays a view. */
static bool fold(simplifier *s, const tl_node *n)
{
    tl_graph *g = s->g;
    const tl_array *in[TL_TILE_MAX_IN] = {NULL};
    tl_array out[TL_OUTS] = {{0}};
    tl_err err = {.status = TL_OK};
    if (n->n_in > TL_TILE_MAX_IN)
        return false;
    for (int k = 0; k < n->n_in; k++)
        if (tl_is_none(n->in[k]) || (in[k] = known(s, n->in[k])) == NULL)
            return false;
    tl_call c = tl_graph_call(g, n, in, out, &err);
    if (n->op->traits & TL_VIEW) {
        if (n->op->shape(&c) == TL_OK)
            s->known[n->out] = out[0];
        return false;
    }
    for (int j = 0; j < n->n_out; j++) {
        tl_tensor y = tl_node_out(g->t, n, j);
        out[j] = *tl_graph_array(g, y);
        if (tl_array_room(&out[j]) > MOST || !tl_array_contiguous(&out[j]) || !is_free(s, y) ||
            (out[j].data = tl_graph_room(g, tl_array_room(&out[j]), 1)) == NULL)
            return false;
    }
    if (tl_op_run(&c) != TL_OK) /* a run will meet the error, where it belongs */
        return false;
    for (int j = 0; j < n->n_out; j++)
        settle(s, n, tl_node_out(g->t, n, j), &out[j]);
    g->stats.constants++;
    return true;
}

/* ---- one number throughout ---- */

/* *value: the one number that all elements of x hold; false if that is not known. */
static bool uniform(simplifier *s, tl_tensor x, double *value)
{
    const tl_graph *g = s->g;
    unsigned char one[8];
    while (x.owner == g->t->values.owner) { /* a view shows what lies below it */
        const tl_value *v = tl_values_at(&g->t->values, x.index);
        const tl_array *contents = known(s, x);
        if (contents != NULL && tl_array_count(contents) > 0) {
            tl_array a = *contents;
            size_t size = tl_dtype_size(a.dtype);
            for (int d = 0; d < a.ndim; d++)
                a.dim[d] = a.stride[d] == 0 ? 1 : a.dim[d]; /* each element once */
            for (int64_t i = 1; i < tl_array_count(&a); i++)
                if (memcmp(tl_array_at(&a, i), tl_array_at(&a, 0), size) != 0)
                    return false;
            *value = tl_array_get(&a, 0);
            return a.dtype != TL_I64; /* which a double cannot hold */
        }
        if (v->node < 0)
            return false;
        const tl_node *n = &g->t->node[v->node];
        if (n->op == &tl_op_fill) {
            const tl_fill_attrs *f = n->attrs;
            tl_element_put(v->a.dtype, one, f->value);
            *value = tl_element_get(v->a.dtype, one);
            return v->a.dtype != TL_I64 && !tl_root_changes(g, g->value[x.index].root);
        }
        if (!(n->op->traits & TL_VIEW))
            return false;
        x = tl_graph_resolve(g, n->in[0]);
    }
    return false;
}

/* ---- the same op on the same inputs ---- */

/* Hashes the op, its attributes and its inputs, whatever the order of two that commute. */
static uint64_t hash(const tl_graph *g, const tl_node *n)
{
    uint64_t h = tl_mix_attrs(tl_mix((uint64_t)n->n_in, (uintptr_t)n->op), n->op, n->attrs);
    uint64_t pair = 0;
    for (int k = 0; k < n->n_in; k++) {
        tl_tensor x = tl_graph_resolve(g, n->in[k]);
        uint64_t id = (uint64_t)x.owner << 32 | x.index;
        if (n->op->traits & TL_COMMUTATIVE && k < 2)
            pair += tl_mix(1, id);
        else
            h = tl_mix(h, id);
    }
    return tl_mix(h, pair);
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

/* Node ia computes what the later node ib computes, from the same contents. */
static bool equal(simplifier *s, uint32_t ia, uint32_t ib)
{
    tl_graph *g = s->g;
    const tl_node *a = &g->t->node[ia], *b = &g->t->node[ib];
    const unsigned matters = TL_FAST | TL_SHADOW;
    if (a->op != b->op || a->n_in != b->n_in || a->n_out != b->n_out || a->kernel != b->kernel ||
        (a->mode ^ b->mode) & matters || !same_inputs(g, a, b) ||
        !tl_attrs_agree(a->op, a->attrs, b->attrs, 0, NULL))
        return false;
    for (int k = 0; k < a->n_in; k++)
        if (!tl_is_none(b->in[k]) && tl_root_changes_between(g, tl_graph_root(g, b->in[k]), ia, ib))
            return false;
    for (int j = 0; j < a->n_out; j++) {
        tl_tensor x = tl_node_out(g->t, a, j), y = tl_node_out(g->t, b, j);
        bool view = j == 0 && b->op->traits & TL_VIEW; /* both are of one memory */
        if (!tl_array_laid_alike(tl_graph_array(g, x), tl_graph_array(g, y)) || !unchanging(s, x) ||
            (view ? !unchanging(s, y) : !is_free(s, y)))
            return false;
    }
    return true;
}

/* Makes the results of an equal earlier node stand for those of node i, if there is one: true. Else
 * node i may stand for later ones. */
static bool share(simplifier *s, uint32_t i)
{
    tl_graph *g = s->g;
    const tl_node *n = &g->t->node[i];
    for (int j = 0; j < n->n_out; j++) /* neither stands for another nor another for it */
        if (!unchanging(s, tl_node_out(g->t, n, j)))
            return false;
    const uint64_t at = hash(g, n) & s->mask;
    for (uint32_t k = s->bucket[at]; k != END; k = s->next[k]) {
        if (!equal(s, k, i))
            continue;
        for (int j = 0; j < n->n_out; j++)
            stand_for(s, tl_node_out(g->t, n, j),
                      tl_graph_resolve(g, tl_node_out(g->t, &g->t->node[k], j)));
        return true;
    }
    s->next[i] = s->bucket[at];
    s->bucket[at] = i;
    return false;
}

/* ---- an input in another form ---- */

/* Makes x, from which y is made, stand for y, if it has the same layout and nobody ever changes
 * either. */
static bool may_stand_for(simplifier *s, tl_tensor y, tl_tensor x)
{
    x = tl_graph_resolve(s->g, x);
    const bool may = tl_array_laid_alike(tl_graph_array(s->g, x), tl_graph_array(s->g, y)) &&
                     unchanging(s, x) && is_free(s, y);
    if (may)
        stand_for(s, y, x);
    return may;
}

/* If a value below a view of views shows the same elements, it stands for the view. */
static void see_through(simplifier *s, const tl_node *n)
{
    tl_graph *g = s->g;
    tl_tensor y = tl_node_out(g->t, n, 0), x = y;
    const int64_t at = tl_graph_offset(g, y);
    if (!unchanging(s, y))
        return;
    for (const tl_node *v = n; v != NULL && v->op->traits & TL_VIEW; v = tl_maker(g->t, x)) {
        x = tl_graph_resolve(g, v->in[0]);
        if (at == tl_graph_offset(g, x) &&
            tl_array_laid_alike(tl_graph_array(g, x), tl_graph_array(g, y))) {
            stand_for(s, y, x);
            return;
        }
    }
}

/* f(h(x)), where f undoes h, is x. */
static bool undo(simplifier *s, const tl_node *n)
{
    const tl_tape *t = s->g->t;
    const tl_node *m = n->op->undoes == NULL ? NULL : tl_maker(t, tl_graph_resolve(s->g, n->in[0]));
    return m != NULL && m->op == n->op->undoes && m->kernel == NULL &&
           may_stand_for(s, tl_node_out(t, n, 0), m->in[0]);
}

/* The result may equal an input, as the op itself says. */
static void pass_on(simplifier *s, const tl_node *n)
{
    double value[TL_TILE_MAX_IN];
    const double *constant[TL_TILE_MAX_IN] = {NULL};
    if (n->op->same_as == NULL || n->n_in > TL_TILE_MAX_IN)
        return;
    for (int k = 0; k < n->n_in; k++)
        if (!tl_is_none(n->in[k]) && uniform(s, tl_graph_resolve(s->g, n->in[k]), &value[k]))
            constant[k] = &value[k];
    const int k = n->op->same_as(n->attrs, constant);
    if (k >= 0 && k < n->n_in && !tl_is_none(n->in[k]))
        may_stand_for(s, tl_node_out(s->g->t, n, 0), n->in[k]);
}

/* ---- all of it ---- */

static tl_status visit(simplifier *s, uint32_t i)
{
    const tl_node *n = &s->g->t->node[i];
    const bool own = n->kernel == NULL; /* what the op says of itself holds */
    for (int j = 0; j < n->n_out; j++)  /* in order: a long chain is no deep recursion */
        tl_graph_offset(s->g, tl_node_out(s->g->t, n, j));
    if (n->mode & TL_WATCHED_MODES || tl_node_mutates(n))
        return TL_OK;
    if ((is_function(n) && ((own && fold(s, n)) || share(s, i))) || !own)
        return s->g->head.err.status;
    if (n->op->traits & TL_VIEW)
        see_through(s, n);
    else if (!undo(s, n))
        pass_on(s, n);
    return s->g->head.err.status;
}

tl_status tl_graph_simplify(tl_graph *g)
{
    const tl_tape *t = g->t;
    const uint32_t n = atomic_load(&t->values.count);
    uint32_t buckets = 16;
    while (buckets < t->n_nodes)
        buckets *= 2;
    simplifier s = {.g = g,
                    .known = tl_graph_room(g, g->cap_values, sizeof *s.known),
                    .bucket = tl_graph_room(g, buckets, sizeof *s.bucket),
                    .next = tl_graph_room(g, t->n_nodes, sizeof *s.next),
                    .mask = buckets - 1};
    if (g->head.err.status != TL_OK)
        return g->head.err.status;
    memset(s.bucket, 0xff, buckets * sizeof *s.bucket);
    for (uint32_t i = 0; i < n; i++) { /* a detached value is the value */
        const tl_value *v = tl_values_at(&t->values, i);
        if (v->node < 0 && !tl_is_none(v->source) && unchanging(&s, g->value[i].same))
            g->value[i].same = v->source;
    }
    for (uint32_t i = 0; i < t->n_nodes; i++)
        TL_TRY(visit(&s, i));
    for (uint32_t i = 0; i < n; i++) { /* what showed a value's memory shows its stand-in's */
        const tl_tensor below = tl_below(t, tl_tape_handle(t, i));
        if (!tl_is_none(below))
            g->value[i].root = tl_graph_root(g, below);
    }
    return g->head.err.status;
}
