/* views: reshape, permute (and transpose), expand - x's storage, seen differently; and contiguous,
 * which copies it where it must
 * Shape:  at each op; dims may be counted from the end; contiguous: as x, row-major without gaps
 * Dtype:  any
 * Bits:   none computed
 * VJP:    reshape and permute by their inverses; expand passes dy on and the engine folds it down;
 *         contiguous: dy
 * Errors: TL_ESHAPE
 */
#include "ops/build.h"

/* ---- contiguous ---- */

static tl_status contiguous_shape(tl_call *c)
{
    c->out[0] = *c->in[0];
    return TL_OK;
}

static tl_status contiguous_forward(tl_call *c)
{
    tl_array_copy(&c->out[0], c->in[0]);
    return TL_OK;
}

static void contiguous_vjp(tl_vjp *g) { g->dx[0] = g->dy[0]; }

const tl_op tl_op_contiguous = {TL_NAMED(contiguous, 1, 1), .traits = TL_COPY,
                                .shape = contiguous_shape,  .forward = contiguous_forward,
                                .vjp = contiguous_vjp,      .batch = tl_batch_linear};

/* Returns x itself if it is row-major with any number of samples. If it is so only because there is
 * one sample, returns a view of x: like the copy of more samples, a value that takes cotangents. */
tl_tensor tl_contiguous_at(tl_at at, tl_tensor x)
{
    tl_array a;
    if (!tl_usable(at, x, "contiguous") || !tl_array_of(at.tape, x, &a) || !tl_array_contiguous(&a))
        return tl_apply1(at, &tl_op_contiguous, NULL, &x, 1);
    const int axis = tl_batch_of(at.tape, x);
    int64_t each = 1;
    for (int i = a.ndim; axis >= 0 && --i > axis;)
        each *= a.dim[i];
    if (axis >= 0 && a.dim[axis] == 1 && a.stride[axis] != each)
        return tl_reshape_at(at, x, tl_array_shape(&a));
    return x;
}

/* ---- reshape: attrs.shape may hold one -1, whose size follows from the others ---- */

typedef struct {
    tl_shape shape;
} shape_attrs;

static const tl_attr shape_schema[] = {TL_FIELD(shape, shape, SHAPE), {0}};

/* Replaces the -1 in s, if any, and checks that x has as many elements as s. */
static tl_status complete(tl_call *c, tl_shape *s)
{
    const tl_array *x = c->in[0];
    int64_t have = tl_array_count(x), known = 1;
    int open = -1;
    if (s->ndim < 0 || s->ndim > TL_MAX_DIMS)
        return tl_call_fail(c, TL_ESHAPE, "%d dims given; 0 to %d are possible", s->ndim,
                            TL_MAX_DIMS);
    for (int i = 0; i < s->ndim; i++) {
        if (s->dim[i] == -1 && open < 0)
            open = i;
        else if (__builtin_mul_overflow(known, s->dim[i], &known))
            return tl_call_fail(c, TL_ESHAPE, "%s cannot become %s: that overflows 64 bits",
                                TL_TEXT(x), TL_TEXT_OF(s));
    }
    if (open >= 0 && known > 0 && have % known == 0)
        s->dim[open] = have / known;
    for (int i = 0; i < s->ndim; i++)
        if (s->dim[i] < 0)
            return tl_call_fail(c, TL_ESHAPE, "%s cannot become %s", TL_TEXT(x), TL_TEXT_OF(s));
    if (open < 0 ? known != have : tl_shape_count(s) != have)
        return tl_call_fail(c, TL_ESHAPE, "%s has %lld elements, %s would have %lld", TL_TEXT(x),
                            (long long)have, TL_TEXT_OF(s), (long long)tl_shape_count(s));
    return TL_OK;
}

static tl_status reshape_shape(tl_call *c)
{
    tl_shape s = ((const shape_attrs *)c->attrs)->shape;
    TL_TRY(complete(c, &s));
    if (tl_array_count(c->in[0]) == 0)
        TL_TRY(tl_need_shape(c, &s, c->in[0]->dtype));
    if (!tl_array_reshape_view(c->in[0], &s, &c->out[0]))
        return tl_call_fail(c, TL_ESHAPE, "its strides forbid a view; use tl_contiguous first");
    return TL_OK;
}

/* In row-major order the samples are consecutive blocks, and reshape keeps that order. They lie
 * along a dim of the result if the dims before it have as many indices as those before the old
 * axis, and if the number of samples divides it. Of several such dims (all but one have size 1) the
 * smallest merges samples least with what follows; at a tie we take the old axis's place. */
static void reshape_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    const tl_array *x = c->in[0], *y = &c->out[0];
    int64_t before = 1, ahead = 1, least = INT64_MAX;
    const int behind = in[0] - (x->ndim > y->ndim ? x->ndim - y->ndim : 0); /* if dims of 1 went */
    out[0] = in[0] < 0 ? in[0] : TL_MIXED;
    for (int i = 0; i < in[0]; i++)
        before *= x->dim[i];
    for (int i = 0; in[0] >= 0 && i < y->ndim && ahead <= before; ahead *= y->dim[i++]) {
        const int64_t m = y->dim[i];
        const bool whole = c->samples > 0 ? m > 0 && m % c->samples == 0 : m == 0;
        if (ahead == before && whole && (m < least || (m == least && i == behind))) {
            out[0] = (tl_batch)i;
            least = m;
        }
    }
}

static void reshape_vjp(tl_vjp *g)
{
    g->dx[0] = tl_shaped_back(g, g->dy[0], tl_shape_of(g->t, g->in[0]));
}

const tl_op tl_op_reshape = {TL_NAMED(reshape, 1, 1), .traits = TL_VIEW,  .shape = reshape_shape,
                             TL_ATTRS(shape),         .vjp = reshape_vjp, .batch = reshape_batch};

tl_tensor tl_reshape_at(tl_at at, tl_tensor x, tl_shape shape)
{
    tl_array a, out;
    tl_err e = {.status = TL_OK};
    const tl_array *in = &a;
    tl_call c = {.op = &tl_op_reshape, .in = &in, .n_in = 1, .err = &e};
    /* Where strides forbid the view, a contiguous copy comes first, as its own node. */
    if (tl_array_of(at.tape, x, &a) && complete(&c, &shape) == TL_OK &&
        !tl_array_reshape_view(&a, &shape, &out))
        x = tl_contiguous_at(at, x);
    return tl_apply1(at, &tl_op_reshape, &(shape_attrs){shape}, &x, 1);
}

tl_tensor tl_reshape_told(tl_at at, tl_tensor x, tl_shape shape, int axis)
{
    const tl_tensor y = tl_reshape_at(at, x, shape);
    const tl_batch told = tl_batch_of(at.tape, y);
    if (axis >= 0 && told >= 0 && told != axis) /* with one sample reshape may choose another */
        tl_batch_samples_of(at.tape, y, x, axis);
    return y;
}

tl_tensor tl_shaped_back(tl_vjp *g, tl_tensor y, tl_shape shape)
{
    return tl_reshape_told(TL_AT(g->t), y, shape, tl_batch_of(g->t, g->in[0]));
}

/* ---- permute: out dim i is in dim dims[i] ---- */

static tl_status permute_shape(tl_call *c)
{
    tl_shape p = ((const shape_attrs *)c->attrs)->shape;
    const tl_array *x = c->in[0];
    bool seen[TL_MAX_DIMS] = {false};
    if (p.ndim != x->ndim)
        return tl_call_fail(c, TL_ESHAPE, "%d dims listed for a tensor of %d", p.ndim, x->ndim);
    c->out[0] = *x;
    for (int i = 0; i < p.ndim; i++) {
        int d = tl_find_dim(c, x->ndim, p.dim[i]);
        if (d < 0)
            return TL_ESHAPE;
        if (seen[d])
            return tl_call_fail(c, TL_ESHAPE, "dim %d is listed twice", d);
        seen[d] = true;
        c->out[0].dim[i] = x->dim[d];
        c->out[0].stride[i] = x->stride[d];
    }
    return TL_OK;
}

static void permute_vjp(tl_vjp *g)
{
    tl_shape p = ((const shape_attrs *)g->attrs)->shape, back = p;
    for (int i = 0; i < p.ndim; i++)
        back.dim[tl_dim_from_front(p.dim[i], p.ndim)] = i;
    g->dx[0] = tl_permute(g->t, g->dy[0], back);
}

static void permute_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    const tl_shape *p = &((const shape_attrs *)c->attrs)->shape;
    out[0] = in[0];
    for (int i = 0; i < p->ndim && in[0] >= 0; i++)
        if (tl_dim_from_front(p->dim[i], p->ndim) == in[0])
            out[0] = (tl_batch)i;
}

const tl_op tl_op_permute = {TL_NAMED(permute, 1, 1), .traits = TL_VIEW,  .shape = permute_shape,
                             TL_ATTRS(shape),         .vjp = permute_vjp, .batch = permute_batch};

tl_tensor tl_permute_at(tl_at at, tl_tensor x, tl_shape dims)
{
    return tl_apply1(at, &tl_op_permute, &(shape_attrs){dims}, &x, 1);
}

tl_tensor tl_transpose_at(tl_at at, tl_tensor x, int d0, int d1)
{
    tl_shape p = {.ndim = tl_shape_of(at.tape, x).ndim};
    const int a = tl_dim_of(at, "transpose", x, d0), b = tl_dim_of(at, "transpose", x, d1);
    if (a < 0 || b < 0)
        return TL_NONE;
    for (int i = 0; i < p.ndim; i++)
        p.dim[i] = i == a ? b : i == b ? a : i;
    return tl_permute_at(at, x, p);
}

/* ---- expand: dims of size 1, and missing leading dims, repeated by zero strides ---- */

static tl_status expand_shape(tl_call *c)
{
    const tl_shape *s = &((const shape_attrs *)c->attrs)->shape;
    const tl_array *x = c->in[0];
    TL_TRY(tl_need_shape(c, s, x->dtype));
    if (!tl_dims_expand(x->ndim, x->dim, s->ndim, s->dim))
        return tl_call_fail(c, TL_ESHAPE, "%s does not expand to %s", TL_TEXT(x), TL_TEXT_OF(s));
    c->out[0] = tl_array_expand(x, s);
    return TL_OK;
}

static void expand_vjp(tl_vjp *g) { g->dx[0] = g->dy[0]; }

static void expand_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    out[0] = in[0] < 0 ? in[0] : (tl_batch)(in[0] + c->out[0].ndim - c->in[0]->ndim);
    if (in[0] >= 0 && c->in[0]->dim[in[0]] != c->out[0].dim[out[0]])
        out[0] = TL_MIXED;
}

const tl_op tl_op_expand = {TL_NAMED(expand, 1, 1), .traits = TL_VIEW | TL_REPEATS,
                            .shape = expand_shape,  TL_ATTRS(shape),
                            .vjp = expand_vjp,      .batch = expand_batch};

tl_tensor tl_expand_at(tl_at at, tl_tensor x, tl_shape shape)
{
    return tl_apply1(at, &tl_op_expand, &(shape_attrs){shape}, &x, 1);
}

tl_tensor tl_apply_along(tl_at at, const tl_op *op, const void *attrs, tl_tensor x, int dim)
{
    int nd = tl_shape_of(at.tape, x).ndim;
    if (nd == 0 || dim == -1 || dim == nd - 1)
        return tl_apply1(at, op, attrs, &x, 1);
    if (tl_dim_of(at, op->name, x, dim) < 0)
        return TL_NONE;
    tl_tensor last = tl_transpose_at(at, x, dim, -1);
    return tl_transpose_at(at, tl_apply1(at, op, attrs, &last, 1), dim, -1);
}
