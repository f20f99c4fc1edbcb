/* constants.c: what is known while a graph is made - small constants, and what follows from them.
 */
#include <string.h>

#include "autograd/graph/simplify.h"
#include "tensor/isa.h"
#include "tensor/threads.h"

enum { MOST = 4096 }; /* bytes of a result */

static size_t bytes_of(const tl_array *a)
{
    return (size_t)tl_array_count(a) * tl_dtype_size(a->dtype);
}

/* The contents of x; NULL if they are not known. */
static const tl_array *known(tl_simplifier *s, tl_tensor x)
{
    tl_graph *g = s->g;
    x = tl_graph_resolve(g, x);
    if (x.owner != g->t->values.owner)
        return NULL;
    const tl_value *v = tl_values_at(&g->t->values, x.index);
    if (v->node < 0 && tl_leaf_of(g->t, x.index).kind == TL_LEAF_CONSTANT &&
        s->known[x.index].data == NULL && bytes_of(&v->a) <= MOST &&
        !s->written[tl_graph_root(g, x)])
        s->known[x.index] = g->tracing->constant[tl_leaf_of(g->t, x.index).at].a;
    return s->known[x.index].data == NULL ? NULL : &s->known[x.index];
}

/* Runs n on known arrays into memory of the graph's; false if it cannot be. */
static bool compute(tl_simplifier *s, const tl_node *n, const tl_array *const *in, tl_array *out)
{
    tl_graph *g = s->g;
    tl_err err = {.status = TL_OK};
    tl_call c = {.op = n->op,
                 .attrs = n->attrs,
                 .n_in = n->n_in,
                 .n_out = n->n_out,
                 .in = in,
                 .out = out,
                 .mode = n->mode & ~(unsigned)TL_TRACE,
                 .arena = g->user->arena,
                 .err = &err};
    for (int j = 0; j < n->n_out; j++) {
        out[j] = tl_values_at(&g->t->values, n->out + (uint32_t)j)->a;
        out[j].data = tl_bump_get(&g->bump, bytes_of(&out[j]) + 1);
        if (out[j].data == NULL)
            return false;
    }
    tl_fpenv saved = tl_fpenv_enter();
    bool ok = tl_op_run(&c) == TL_OK; /* an error will be met where it belongs: in a run */
    tl_fpenv_leave(saved);
    return ok;
}

/* y is that constant. */
static bool settle(tl_simplifier *s, const tl_node *n, tl_tensor y, const tl_array *a)
{
    tl_graph *g = s->g;
    tl_tensor x = tl_constant_at((tl_at){g->t, n->file, n->line}, a->data, NULL, a->dtype,
                                 tl_array_shape(a));
    if (tl_is_none(x) || x.index >= s->cap || !tl_graph_adopt(g, x)) {
        tl_fail(&g->head.err, TL_ENOMEM, "no memory for a constant of %zu bytes", bytes_of(a));
        return false;
    }
    s->known[x.index] = *a;
    tl_simplify_same(s, y, x);
    return true;
}

/* A view of something known is known; it stays a view. */
static bool fold_view(tl_simplifier *s, const tl_node *n, const tl_array *in)
{
    tl_err err = {.status = TL_OK};
    tl_array out = {0};
    tl_call c = {
        .op = n->op, .attrs = n->attrs, .n_in = 1, .n_out = 1, .in = &in, .out = &out, .err = &err};
    if (n->op->shape(&c) == TL_OK)
        s->known[n->out] = out;
    return false;
}

bool tl_simplify_fold(tl_simplifier *s, const tl_node *n)
{
    tl_graph *g = s->g;
    const tl_array *in[TL_TILE_MAX_IN];
    tl_array out[8];
    if (n->op->traits & TL_RANDOM || n->n_in > TL_TILE_MAX_IN || n->n_out == 0 ||
        (n->n_in == 0 && n->op != &tl_op_fill))
        return false;
    for (int k = 0; k < n->n_in; k++)
        if (tl_is_none(n->in[k]) || (in[k] = known(s, n->in[k])) == NULL)
            return false;
    if (n->op->traits & TL_VIEW)
        return fold_view(s, n, in[0]);
    for (int j = 0; j < n->n_out; j++) {
        tl_tensor y = tl_node_out(g->t, n, j);
        const tl_array *a = &tl_peek(g->t, y)->a;
        if (bytes_of(a) > MOST || !tl_array_contiguous(a) || !tl_simplify_free(s, y))
            return false;
    }
    if (!compute(s, n, in, out))
        return false;
    for (int j = 0; j < n->n_out; j++)
        if (!settle(s, n, tl_node_out(g->t, n, j), &out[j]))
            return true; /* with an error */
    g->stats.constants++;
    return true;
}

/* ---- one number throughout ---- */

/* One element as a double; false for i64, which a double cannot hold. */
static bool number(tl_dtype dtype, const void *p, double *value)
{
    const tl_convert_table *cv = tl_isa_now()->convert;
    float wide;
    bool half = dtype == TL_F16 || dtype == TL_BF16;
    if (dtype == TL_I64)
        return false;
    if (half)
        cv->widen(1, dtype, p, 1, &wide);
    cv->cast(1, half ? TL_F32 : dtype, half ? &wide : p, TL_F64, value);
    return true;
}

bool tl_simplify_uniform(const tl_simplifier *s, tl_tensor x, double *value)
{
    const tl_graph *g = s->g;
    unsigned char one[8];
    while (x.owner == g->t->values.owner) { /* a view shows what lies below it */
        const tl_value *v = tl_values_at(&g->t->values, x.index);
        const tl_array *a = &s->known[x.index];
        if (a->data != NULL && tl_array_count(a) > 0) {
            size_t size = tl_dtype_size(a->dtype);
            for (int64_t i = 1; i < tl_array_count(a); i++)
                if (memcmp(tl_array_at(a, i), tl_array_at(a, 0), size) != 0)
                    return false;
            return number(a->dtype, tl_array_at(a, 0), value);
        }
        if (v->node < 0)
            return false;
        const tl_node *n = &g->t->node[v->node];
        if (n->op == &tl_op_fill) {
            const tl_fill_attrs *f = n->attrs;
            tl_isa_now()->convert->cast(1, TL_F64, &f->value, v->a.dtype, one);
            return !s->written[g->root[x.index]] && number(v->a.dtype, one, value);
        }
        if (!(n->op->traits & TL_VIEW))
            return false;
        x = tl_graph_resolve(g, n->in[0]);
    }
    return false;
}
