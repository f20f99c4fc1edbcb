/* fold.c: lanes within rows and folds across them, in parallel over what is kept. */
#include "ops/fold.h"

typedef struct {
    const tl_array *x, *out;
    int64_t n; /* elements of a row */
    int n_row;
    tl_storage *buf; /* a row of compute type for each thread, where rows are not direct */
} row_job;

/* Row number `row` of x in its compute type: in place, or gathered into buf. */
static const void *row_of(const row_job *j, int64_t row, int thread)
{
    const tl_array *x = j->x;
    tl_dtype d = j->out->dtype;
    tl_array part = {.dtype = x->dtype, .ndim = j->n_row};
    int lead = x->ndim - j->n_row;
    memcpy(part.dim, x->dim + lead, (size_t)j->n_row * sizeof part.dim[0]);
    memcpy(part.stride, x->stride + lead, (size_t)j->n_row * sizeof part.stride[0]);
    part.data = tl_array_at(x, row * j->n);
    tl_array_collapse(&part, 1);
    if (x->dtype == d && tl_array_contiguous(&part))
        return part.data;
    char *to = (char *)j->buf->data + (size_t)thread * (size_t)j->n * tl_dtype_size(d);
    int64_t inner = part.ndim ? part.dim[part.ndim - 1] : 1,
            step = part.ndim ? part.stride[part.ndim - 1] : 1;
    for (int64_t at = 0; at < j->n; at += inner)
        tl_isa_now()->convert->widen(inner, x->dtype, tl_array_at(&part, at), step,
                                     to + at * (int64_t)tl_dtype_size(d));
    return to;
}

static void sum_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    const row_job *j = ctx;
    const tl_row_table *k = tl_isa_now()->row;
    for (int64_t r = begin; r < end; r++) {
        const void *x = row_of(j, r, thread);
        if (j->out->dtype == TL_F64)
            ((double *)j->out->data)[r] = k->lanes64(j->n, x);
        else
            ((float *)j->out->data)[r] = k->lanes32(j->n, x);
    }
}

tl_status tl_sum_rows(tl_call *c, const tl_array *x, int n_row, const tl_array *out)
{
    row_job j = {.x = x, .out = out, .n = 1, .n_row = n_row};
    int64_t rows = tl_array_count(out);
    for (int i = x->ndim - n_row; i < x->ndim; i++)
        j.n *= x->dim[i];
    if (j.n == 0 || rows == 0) {
        if (rows > 0)
            memset(out->data, 0, (size_t)rows * tl_dtype_size(out->dtype));
        return TL_OK;
    }
    int64_t grain = 1 + 16384 / (j.n + 1);
    int width = tl_parallel_width(rows, grain);
    j.buf = tl_scratch(c, (size_t)width * (size_t)j.n * tl_dtype_size(out->dtype), false);
    if (j.buf == NULL)
        return TL_ENOMEM;
    tl_parallel_for(rows, grain, sum_range, &j);
    tl_storage_release(j.buf);
    return TL_OK;
}

typedef struct {
    tl_array v[2]; /* x and acc, acc with zero strides where elements meet */
    int split;     /* a kept dim, cut between threads */
} fold_job;

enum { GATHER = 256 };

/* n elements of the innermost dim of x, dim kept or folded, into acc. */
static void fold_inner(const tl_array *v, int64_t x_off, int64_t acc_off, int64_t n)
{
    const tl_array *x = &v[0], *acc = &v[1];
    int last = x->ndim - 1;
    int64_t xs = last < 0 ? 1 : x->stride[last], as = last < 0 ? 1 : acc->stride[last];
    const char *from = (const char *)x->data + x_off * (int64_t)tl_dtype_size(x->dtype);
    double *to = (double *)acc->data + acc_off;
    const tl_isa *isa = tl_isa_now();
    bool wide = x->dtype == TL_F64;
    union {
        float f[GATHER];
        double d[GATHER];
    } t;
    for (int64_t at = 0; at < n; at += GATHER) {
        int64_t m = n - at < GATHER ? n - at : GATHER;
        isa->convert->widen(m, x->dtype, from + at * xs * (int64_t)tl_dtype_size(x->dtype), xs, &t);
        if (as == 1) {
            wide ? isa->row->fold64(m, t.d, to + at) : isa->row->fold32(m, t.f, to + at);
            continue; /* the row kernels add +0 */
        }
        for (int64_t i = 0; i < m; i++)
            to[(at + i) * as] = (to[(at + i) * as] + (wide ? t.d[i] : (double)t.f[i])) + 0;
    }
}

static void fold_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    const fold_job *j = ctx;
    tl_array v[2] = {j->v[0], j->v[1]};
    (void)thread;
    if (v[0].ndim > 0) {
        for (int k = 0; k < 2; k++)
            v[k].data = (char *)v[k].data +
                        begin * v[k].stride[j->split] * (int64_t)tl_dtype_size(v[k].dtype);
        v[0].dim[j->split] = v[1].dim[j->split] = end - begin;
    }
    int last = v[0].ndim - 1;
    int64_t inner = last < 0 ? 1 : v[0].dim[last], outer = 1, at[TL_MAX_DIMS] = {0};
    for (int i = 0; i < last; i++)
        outer *= v[0].dim[i];
    for (int64_t r = 0; r < outer; r++) {
        int64_t off[2] = {0, 0};
        for (int i = 0; i < last; i++)
            for (int k = 0; k < 2; k++)
                off[k] += at[i] * v[k].stride[i];
        fold_inner(v, off[0], off[1], inner);
        for (int i = last - 1; i >= 0 && ++at[i] == v[0].dim[i]; i--)
            at[i] = 0;
    }
}

tl_status tl_fold_into(tl_call *c, const tl_array *x, const tl_array *acc)
{
    fold_job j = {.v = {*x, *acc}};
    (void)c;
    if (tl_array_count(x) == 0)
        return TL_OK;
    for (int i = 0; i < x->ndim; i++) {
        if (acc->dim[i] == 1)
            j.v[1].stride[i] = 0;
        j.v[1].dim[i] = x->dim[i];
    }
    tl_array_collapse(j.v, 2);
    /* The widest kept dim is what threads may divide: no element of acc is shared then. */
    int64_t widest = 0;
    for (int i = 0; i < j.v[0].ndim; i++)
        if (j.v[1].stride[i] != 0 && j.v[0].dim[i] > widest) {
            widest = j.v[0].dim[i];
            j.split = i;
        }
    if (widest == 0)
        fold_range(&j, 0, j.v[0].ndim ? j.v[0].dim[0] : 1, 0);
    else
        tl_parallel_for(widest, 1 + 32768 * widest / (tl_array_count(x) + 1), fold_range, &j);
    return TL_OK;
}

void tl_round_from_f64(const double *x, const double *n, const tl_array *out)
{
    int64_t count = tl_array_count(out);
    double part[GATHER];
    for (int64_t at = 0; at < count; at += GATHER) {
        int64_t m = count - at < GATHER ? count - at : GATHER;
        for (int64_t i = 0; i < m; i++)
            part[i] = (n != NULL ? x[at + i] / *n : x[at + i]) + 0;
        tl_isa_now()->convert->cast(m, TL_F64, part, out->dtype,
                                    (char *)out->data + at * (int64_t)tl_dtype_size(out->dtype));
    }
}
