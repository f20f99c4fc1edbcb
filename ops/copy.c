/* copy: concat, stack_samples - elements moved, none computed
 * Shape:  concat(xs, dim): sizes of dim add up; stack_samples: below
 * Dtype:  any, all alike
 * Bits:   none computed
 * VJP:    concat: each input its slice of dy
 * Errors: TL_ESHAPE TL_EDTYPE
 */
#include "ops/build.h"

/* ---- concat ---- */

typedef struct {
    int64_t dim;
} concat_attrs;

static const tl_attr concat_schema[] = {TL_FIELD(concat, dim, DIM), {0}};

static tl_status concat_shape(tl_call *c)
{
    if (c->n_in < 1)
        return tl_call_fail(c, TL_ESHAPE, "nothing to join");
    tl_array *o = &c->out[0];
    *o = *c->in[0];
    int d = tl_find_dim(c, o->ndim, ((const concat_attrs *)c->attrs)->dim);
    if (d < 0)
        return TL_ESHAPE;
    for (int i = 1; i < c->n_in; i++) {
        tl_array x = *c->in[i];
        int64_t size = x.ndim == o->ndim ? x.dim[d] : 0;
        x.dim[d] = o->dim[d];
        if (x.ndim != o->ndim || !tl_array_same_shape(&x, o))
            return tl_call_fail(c, TL_ESHAPE,
                                "input %d has shape %s, input 0 %s: only dim %d may differ", i,
                                TL_TEXT(c->in[i]), TL_TEXT(c->in[0]), d);
        if (x.dtype != o->dtype)
            return tl_call_fail(c, TL_EDTYPE, "input %d is %s, input 0 %s", i,
                                tl_dtype_name(x.dtype), tl_dtype_name(o->dtype));
        if (__builtin_add_overflow(o->dim[d], size, &o->dim[d]))
            return tl_call_fail(c, TL_ESHAPE, "sizes of dim %d add up beyond 64 bits", d);
    }
    return TL_OK;
}

static tl_status concat_forward(tl_call *c)
{
    const int d = tl_dim_from_front(((const concat_attrs *)c->attrs)->dim, c->out[0].ndim);
    int64_t at = 0;
    for (int i = 0; i < c->n_in; i++) {
        tl_array part = tl_part_of(&c->out[0], d, at, 1, c->in[i]->dim[d]);
        tl_array_copy(&part, c->in[i]);
        at += part.dim[d];
    }
    return TL_OK;
}

static void concat_vjp(tl_vjp *g)
{
    int64_t dim = ((const concat_attrs *)g->attrs)->dim, at = 0;
    for (int i = 0; i < g->n_in && !tl_failed(g->t); i++) {
        tl_shape s = tl_shape_of(g->t, g->in[i]);
        int64_t size = s.dim[tl_dim_from_front(dim, s.ndim)];
        if (g->wants[i])
            g->dx[i] = tl_slice(g->t, g->dy[0], (int)dim, at, at + size, 1);
        at += size;
    }
}

static void concat_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    const int64_t dim = ((const concat_attrs *)c->attrs)->dim;
    const int nd = c->out[0].ndim;
    out[0] = tl_batch_beside(tl_batch_meet(c, in, TL_ALL_INPUTS, nd), nd, dim);
}

const tl_op tl_op_concat = {TL_NAMED(concat, -1, 1),   .shape = concat_shape,
                            .forward = concat_forward, TL_ATTRS(concat),
                            .vjp = concat_vjp,         .batch = concat_batch};

tl_tensor tl_concat_at(tl_at at, const tl_tensor *xs, int n, int dim)
{
    return tl_apply1(at, &tl_op_concat, &(concat_attrs){dim}, xs, n);
}

/* ---- stack_samples: the samples of u inputs of one shape, interleaved: sample from + s of input i
 * becomes sample s*u + i of the result. A sample is `each` elements along an axis; in the result
 * they lie along the same axis or along a new first one. Only backward calls it, so it has no
 * gradient. ---- */

static const tl_attr tl_stack_samples_schema[] = {TL_FIELD(tl_stack_samples, axis, I64),
                                                  TL_FIELD(tl_stack_samples, to, I64),
                                                  TL_FIELD(tl_stack_samples, from, I64),
                                                  TL_FIELD(tl_stack_samples, n, I64),
                                                  TL_FIELD(tl_stack_samples, each, I64),
                                                  {0}};

static tl_status stack_samples_shape(tl_call *c)
{
    const tl_stack_samples_attrs *at = c->attrs;
    const tl_array *x = c->n_in > 0 ? c->in[0] : NULL;
    if (x == NULL || at->axis < 0 || at->axis >= x->ndim || (at->to != 0 && at->to != at->axis) ||
        (at->to != at->axis && x->ndim == TL_MAX_DIMS))
        return tl_call_fail(c, TL_ESHAPE, "%d inputs of %d dims, samples along %lld to %lld",
                            c->n_in, x == NULL ? 0 : x->ndim, (long long)at->axis,
                            (long long)at->to);
    const int64_t size = at->each > 0 ? x->dim[at->axis] / at->each : 0;
    if (at->from < 0 || at->n < 0 || at->from > size || at->n > size - at->from)
        return tl_call_fail(c, TL_EINDEX, "%lld samples of %lld from %lld on, of %lld",
                            (long long)at->n, (long long)at->each, (long long)at->from,
                            (long long)size);
    for (int i = 1; i < c->n_in; i++)
        if (c->in[i]->dtype != x->dtype || !tl_array_same_shape(c->in[i], x))
            return tl_call_fail(c, TL_ESHAPE, "input %d is %s %s, input 0 %s %s", i,
                                tl_dtype_name(c->in[i]->dtype), TL_TEXT(c->in[i]),
                                tl_dtype_name(x->dtype), TL_TEXT(x));
    tl_shape s = tl_array_shape(x);
    if (at->to != at->axis) {
        memmove(s.dim + 1, s.dim, (size_t)s.ndim++ * sizeof s.dim[0]);
        s.dim[at->axis + 1] = 1;
    }
    s.dim[at->to] = at->n * c->n_in * at->each;
    c->out[0] = tl_array_make(x->dtype, &s, NULL);
    return TL_OK;
}

static tl_status stack_samples_forward(tl_call *c)
{
    const tl_stack_samples_attrs *at = c->attrs;
    const int axis = (int)at->axis;
    const int64_t each = at->each, n = at->n;
    tl_array all = c->out[0];
    if (at->to != axis) { /* move the new first dim to where x has its samples */
        all.dim[axis + 1] = all.dim[0];
        all.stride[axis + 1] = all.stride[0];
        all.ndim--;
        memmove(all.dim, all.dim + 1, (size_t)all.ndim * sizeof all.dim[0]);
        memmove(all.stride, all.stride + 1, (size_t)all.ndim * sizeof all.stride[0]);
    }
    for (int i = 0; i < c->n_in; i++)
        for (int64_t k = 0; k < (n < each ? n : each); k++) {
            /* Whole sample k, or element k of every sample, whichever takes fewer copies. */
            const tl_array *x = c->in[i];
            tl_array to = n < each ? tl_part_of(&all, axis, (k * c->n_in + i) * each, 1, each)
                                   : tl_part_of(&all, axis, i * each + k, c->n_in * each, n),
                     from = n < each ? tl_part_of(x, axis, (at->from + k) * each, 1, each)
                                     : tl_part_of(x, axis, at->from * each + k, each, n);
            tl_array_copy(&to, &from);
        }
    return TL_OK;
}

const tl_op tl_op_stack_samples = {TL_NAMED(stack_samples, -1, 1), .traits = TL_NONDIFF,
                                   .shape = stack_samples_shape, .forward = stack_samples_forward,
                                   TL_ATTRS(tl_stack_samples)};

/* ---- assign(dst, x): dst = x, for tensors that a program writes itself (running means, averaged
 * weights)
 * Shape:  x as dst, of any strides; x may overlap dst
 * Dtype:  any, the same
 * Bits:   copied
 * VJP:    none: x counts as a constant, and dst is changed in place
 * Errors: TL_ESHAPE
 */

static tl_status assign_shape(tl_call *c)
{
    if (!tl_array_same_shape(c->in[0], c->in[1]) || c->in[0]->dtype != c->in[1]->dtype)
        return tl_call_fail(c, TL_ESHAPE, "x is %s %s, the tensor %s %s",
                            tl_dtype_name(c->in[1]->dtype), TL_TEXT(c->in[1]),
                            tl_dtype_name(c->in[0]->dtype), TL_TEXT(c->in[0]));
    c->out[0] = *c->in[0];
    return TL_OK;
}

static tl_status assign_forward(tl_call *c)
{
    const tl_array *dst = c->in[0], *x = c->in[1];
    tl_array from = *x;
    if (tl_arrays_overlap(dst, x)) {
        TL_TRY(tl_scratch_array(c, &from, false));
        tl_array_copy(&from, x);
    }
    tl_array_copy(dst, &from);
    return TL_OK;
}

const tl_op tl_op_assign = {TL_NAMED(assign, 2, 1), .traits = TL_MUTATES | TL_NONDIFF, .mutates = 0,
                            .shape = assign_shape, .forward = assign_forward};
