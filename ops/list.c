/* list.c: the registry, and the small things that op files share. */
#include "ops/list.h"

#include "ops/matmul.h"
#include "tensor/kernels/convert.h"

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

tl_storage *tl_scratch(tl_call *c, size_t bytes, bool zeroed)
{
    tl_storage *st = tl_storage_new(c->arena, bytes, zeroed);
    if (st == NULL)
        tl_call_fail(c, TL_ENOMEM, "no memory for %zu bytes of scratch", bytes);
    return st;
}

typedef struct {
    const tl_array *src, *dst;
} widener;

/* Rows of the last dim, widened or copied. */
static void widen_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const widener *w = ctx;
    const tl_array *a = w->src;
    int last = a->ndim - 1;
    int64_t inner = a->ndim ? a->dim[last] : 1, step = a->ndim ? a->stride[last] : 1;
    (void)thread;
    for (int64_t row = begin; row < end; row++)
        tl_isa_now()->convert->widen(inner, a->dtype, tl_array_at(a, row * inner), step,
                                     (char *)w->dst->data +
                                         row * inner * (int64_t)tl_dtype_size(w->dst->dtype));
}

tl_status tl_as_compute(tl_call *c, const tl_array *a, tl_array *out, tl_storage **held)
{
    tl_dtype d = tl_dtype_compute(a->dtype);
    *held = NULL;
    *out = *a;
    if (a->dtype == d && tl_array_contiguous(a))
        return TL_OK;
    tl_shape s = tl_array_shape(a);
    int64_t n = tl_array_count(a);
    *held = tl_scratch(c, (size_t)n * tl_dtype_size(d), false);
    if (*held == NULL)
        return TL_ENOMEM;
    *out = tl_array_make(d, &s, (*held)->data);
    widener w = {a, out};
    int64_t inner = a->ndim ? a->dim[a->ndim - 1] : 1;
    if (n > 0)
        tl_parallel_for(n / inner, 1 + 16384 / (inner + 1), widen_rows, &w);
    return TL_OK;
}

tl_status tl_out_compute(tl_call *c, int i, tl_array *out, tl_storage **held)
{
    tl_dtype d = tl_dtype_compute(c->out[i].dtype);
    *out = c->out[i];
    *held = NULL;
    if (out->dtype == d && tl_array_contiguous(out))
        return TL_OK;
    *held = tl_scratch(c, (size_t)tl_array_count(out) * tl_dtype_size(d), false);
    if (*held == NULL)
        return TL_ENOMEM;
    tl_shape s = tl_array_shape(out);
    *out = tl_array_make(d, &s, (*held)->data);
    return TL_OK;
}

void tl_store_compute(tl_call *c, int i, const tl_array *out, tl_storage *held)
{
    const tl_array *o = &c->out[i];
    int64_t n = tl_array_count(o), inner = o->ndim ? o->dim[o->ndim - 1] : 1,
            step = o->ndim ? o->stride[o->ndim - 1] : 1;
    if (held == NULL)
        return;
    for (int64_t at = 0; at < n; at += inner)
        tl_isa_now()->convert->narrow(inner, o->dtype,
                                      (const char *)out->data +
                                          at * (int64_t)tl_dtype_size(out->dtype),
                                      tl_array_at(o, at), step);
    tl_storage_release(held);
}
