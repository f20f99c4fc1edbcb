/* list.c: the registry, and the small things that op files share. */
#include "ops/list.h"

#include "ops/matmul.h"

static const tl_op *const all[] = {
#define X(name) &tl_op_##name,
    TL_OP_LIST(X)
#undef X
};

int tl_op_count(void) { return (int)(sizeof all / sizeof all[0]); }
const tl_op *tl_op_at(int i) { return i >= 0 && i < tl_op_count() ? all[i] : NULL; }

const tl_op *tl_op_find(const char *name)
{
    for (int i = 0; name != NULL && i < tl_op_count(); i++)
        if (strcmp(all[i]->name, name) == 0)
            return all[i];
    return NULL;
}

const tl_kernel *const tl_kernels_shipped[] = {
#if TL_BLIS
    &tl_kernel_blis_f32,
    &tl_kernel_blis_f64,
    &tl_kernel_blis_chain_f32,
    &tl_kernel_blis_chain_f64,
#endif
    NULL,
};

const tl_op_probe tl_probes_shipped[] = {{"matmul", tl_matmul_probe}, {NULL, NULL}};

const tl_attr tl_const_schema[] = {{"c", TL_ATTR_F64, offsetof(tl_const_attrs, c)}, {0}};

tl_status tl_float_shape(tl_call *c)
{
    for (int i = 0; i < c->n_in; i++)
        if (!tl_dtype_is_float(c->in[i]->dtype))
            return tl_call_fail(c, TL_EDTYPE, "input %d is %s; floats are needed (cast it)", i,
                                tl_dtype_name(c->in[i]->dtype));
    return tl_pointwise_shape(c);
}

int tl_find_dim(tl_call *c, int ndim, int64_t dim)
{
    int64_t d = dim < 0 ? dim + ndim : dim;
    if (d >= 0 && d < ndim)
        return (int)d;
    tl_call_fail(c, TL_ESHAPE, "dim %lld does not exist in %d dims", (long long)dim, ndim);
    return -1;
}

/* The dims as a bit mask (TL_ALL: every one); -1 for one out of range or listed twice. */
static int64_t dim_mask(tl_shape dims, int ndim)
{
    int64_t mask = 0;
    if (dims.ndim == TL_ALL.ndim)
        return ((int64_t)1 << ndim) - 1;
    if (dims.ndim < 0 || dims.ndim > TL_MAX_DIMS)
        return -1;
    for (int i = 0; i < dims.ndim; i++) {
        int64_t d = dims.dim[i] < 0 ? dims.dim[i] + ndim : dims.dim[i];
        if (d < 0 || d >= ndim || mask >> d & 1)
            return -1;
        mask |= (int64_t)1 << d;
    }
    return mask;
}

void tl_first_axis(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    const tl_batch a = tl_batch_meet(c, in, TL_ALL_INPUTS, TL_FROM_FRONT);
    memset(out, a == 0 ? 0 : TL_MIXED, (size_t)c->n_out);
}

int64_t tl_dims_of(tl_at at, const char *op, tl_tensor x, tl_shape dims)
{
    tl_array a;
    char text[TL_SHAPE_TEXT];
    if (!tl_array_of(at.tape, x, &a))
        return 0;
    int64_t mask = dim_mask(dims, a.ndim), seen = 0;
    if (mask < 0 && (dims.ndim < 0 || dims.ndim > TL_MAX_DIMS)) {
        tl_tape_fail(at, TL_ESHAPE, "%s: %d dims are listed; 0 to %d are possible", op, dims.ndim,
                     TL_MAX_DIMS);
        return mask;
    }
    for (int i = 0; mask < 0 && i < dims.ndim; i++) {
        int64_t d = dims.dim[i] < 0 ? dims.dim[i] + a.ndim : dims.dim[i];
        bool there = d >= 0 && d < a.ndim;
        if (!there)
            tl_tape_fail(at, TL_ESHAPE, "%s: dim %lld does not exist in %s, which has %d", op,
                         (long long)dims.dim[i], tl_array_shape_text(text, &a), a.ndim);
        else if (seen >> d & 1)
            tl_tape_fail(at, TL_ESHAPE, "%s: dim %lld of %s is listed twice", op, (long long)d,
                         tl_array_shape_text(text, &a));
        seen |= there ? (int64_t)1 << d : 0;
    }
    return mask;
}
