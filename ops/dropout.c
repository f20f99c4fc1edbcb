/* dropout: y = x / (1 - p) where a draw is kept, 0 where it is dropped
 * Shape:  x (b, ...) -> the same; sample i64: 0-d, the number of row 0, or (b), the number of each
 *         row; start i64 (b) or none
 * Dtype:  f16 bf16 f32 f64
 * Bits:   element e of row i is kept if uniform32(key, sample number of i, e) >= p; y = x * s, s =
 *         1/(1-p) in f64, rounded to the compute type; dropped: +0 (NUMERICS 11.3). With start, e
 *         counts from index start[i] of axis 1. The key is of the model's seed and the stream's
 *         name.
 * VJP:    dx = dropout(dy) with the same draws: nothing is kept but the sample numbers
 * Errors: TL_ESHAPE TL_EDTYPE TL_EDOMAIN (p outside [0, 1]) TL_EINDEX (a start) TL_EUSAGE (no
 *         stream, no model)
 * Source: Srivastava et al. 2014
 */
#include "ops/build.h"
#include "autograd/model.h"
#include "tensor/rng.h"

typedef struct {
    double p;
    int64_t key; /* both words: low half first */
} dropout_attrs;

static const tl_attr dropout_schema[] = {{"p", TL_ATTR_F64, offsetof(dropout_attrs, p)},
                                         {"key", TL_ATTR_I64, offsetof(dropout_attrs, key)},
                                         {0}};

static tl_status dropout_shape(tl_call *c)
{
    const dropout_attrs *a = c->attrs;
    const tl_array *x = c->in[0], *sample = c->in[1];
    char sx[TL_SHAPE_TEXT], ss[TL_SHAPE_TEXT];
    if (!(a->p >= 0 && a->p <= 1))
        return tl_call_fail(c, TL_EDOMAIN, "p is %g; a probability in [0, 1] is needed", a->p);
    if (!tl_dtype_is_float(x->dtype) || sample->dtype != TL_I64)
        return tl_call_fail(c, TL_EDTYPE, "x is %s, sample %s; a float and I64 are needed",
                            tl_dtype_name(x->dtype), tl_dtype_name(sample->dtype));
    if (x->ndim == 0 || sample->ndim > 1 || (sample->ndim == 1 && sample->dim[0] != x->dim[0]))
        return tl_call_fail(
            c, TL_ESHAPE,
            "x has shape %s, sample %s; one number, or one for each row of x, is needed",
            tl_array_shape_text(sx, x), tl_array_shape_text(ss, sample));
    const tl_array *start = c->in[2];
    if (start != NULL &&
        (start->dtype != TL_I64 || start->ndim != 1 || start->dim[0] != x->dim[0] || x->ndim < 2))
        return tl_call_fail(
            c, TL_ESHAPE,
            "x has shape %s, start %s, %s; I64 for each row of x (b, s, ...) are needed",
            tl_array_shape_text(sx, x), tl_array_shape_text(ss, start),
            tl_dtype_name(start->dtype));
    c->out[0] = *x;
    return TL_OK;
}

typedef struct {
    tl_array x, y; /* contiguous, the compute type */
    const tl_array *sample, *start;
    int64_t n, inner; /* elements of a row of axis 0; of one index of axis 1 */
    double p;
    tl_rng_key key;
} job;

enum { BLOCK = 256 };

static uint64_t sample_of(const job *j, int64_t row)
{
    if (j->sample->ndim == 0)
        return (uint64_t) * (const int64_t *)j->sample->data + (uint64_t)row;
    return (uint64_t) * (const int64_t *)tl_array_at(j->sample, row);
}

/* Elements of a row that are padding. */
static int64_t skipped(const job *j, int64_t row)
{
    return j->start == NULL ? 0 : *(const int64_t *)tl_array_at(j->start, row) * j->inner;
}

/* m elements of a row from e on, none of them padding. */
static void block(const job *j, int64_t row, int64_t e, int64_t m)
{
    float u[BLOCK];
    double scale = 1 / (1 - j->p);
    int64_t at = row * j->n + e;
    tl_rng_fill_uniform32(u, (size_t)m, j->key, sample_of(j, row), (uint64_t)(e - skipped(j, row)));
    if (j->x.dtype == TL_F64)
        for (int64_t i = 0; i < m; i++)
            ((double *)j->y.data)[at + i] = (double)u[i] >= j->p
                                                ? ((const double *)j->x.data)[at + i] * scale
                                                : 0;
    else
        for (int64_t i = 0; i < m; i++)
            ((float *)j->y.data)[at + i] = (double)u[i] >= j->p
                                               ? ((const float *)j->x.data)[at + i] * (float)scale
                                               : 0;
}

static void dropout_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    const job *j = ctx;
    int64_t blocks = (j->n + BLOCK - 1) / BLOCK;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        int64_t e = i % blocks * BLOCK, m = j->n - e < BLOCK ? j->n - e : BLOCK;
        int64_t pad = skipped(j, i / blocks) - e, zeros = pad < 0 ? 0 : pad < m ? pad : m;
        size_t size = tl_dtype_size(j->y.dtype);
        memset((char *)j->y.data + (size_t)(i / blocks * j->n + e) * size, 0, (size_t)zeros * size);
        block(j, i / blocks, e + zeros, m - zeros);
    }
}

static tl_status dropout_forward(tl_call *c)
{
    const dropout_attrs *a = c->attrs;
    uint64_t key = (uint64_t)a->key;
    job j = {.sample = c->in[1],
             .start = c->in[2],
             .p = a->p,
             .key = {{(uint32_t)key, (uint32_t)(key >> 32)}, TL_OK}};
    tl_storage *hx = NULL, *hy = NULL;
    int64_t rows = c->in[0]->dim[0], count = tl_array_count(c->in[0]);
    if (count == 0)
        return TL_OK;
    for (int64_t i = 0; j.start != NULL && i < rows; i++) {
        int64_t start = *(const int64_t *)tl_array_at(j.start, i);
        if (start < 0 || start > c->in[0]->dim[1])
            return tl_call_fail(c, TL_EINDEX, "row %lld starts at index %lld of %lld", (long long)i,
                                (long long)start, (long long)c->in[0]->dim[1]);
    }
    tl_status s = tl_as_compute(c, c->in[0], &j.x, &hx);
    if (s == TL_OK)
        s = tl_out_compute(c, 0, &j.y, &hy);
    j.n = count / rows;
    j.inner = c->in[0]->ndim > 1 ? j.n / c->in[0]->dim[1] : 1;
    if (s == TL_OK) {
        tl_parallel_for(rows * ((j.n + BLOCK - 1) / BLOCK), 16, dropout_range, &j);
        tl_store_compute(c, 0, &j.y, hy);
    }
    tl_storage_release(hx);
    return s;
}

static void dropout_vjp(tl_vjp *g)
{
    g->dx[0] = tl_apply1(TL_AT(g->t), &tl_op_dropout, g->attrs,
                         (tl_tensor[]){g->dy[0], g->in[1], g->in[2]}, 3);
}

const tl_op tl_op_dropout = {.name = "dropout",
                             .n_in = 3,
                             .n_out = 1,
                             .optional = TL_BIT(2),
                             .traits = TL_RANDOM,
                             .shape = dropout_shape,
                             .forward = dropout_forward,
                             .attr = dropout_schema,
                             .attr_size = sizeof(dropout_attrs),
                             .vjp = dropout_vjp,
                             .saves_in = 6};

tl_tensor tl_dropout_at(tl_at at, tl_tensor x, tl_dropout_options o)
{
    tl_model *m = tl_tape_model(at.tape);
    if (tl_mode(at.tape) & TL_EVAL)
        return x;
    if (o.stream == NULL || m == NULL) {
        tl_tape_fail(at, TL_EUSAGE,
                     "dropout: %s; draws are keyed by a model's seed and a stream's name",
                     m == NULL ? "the tape has no model" : "no stream is named");
        return TL_NONE;
    }
    tl_rng_key k = tl_rng_stream(tl_model_seed(m), o.stream);
    if (k.status != TL_OK) {
        tl_tape_fail(at, k.status, "dropout: no memory for the key of '%.80s'", o.stream);
        return TL_NONE;
    }
    dropout_attrs a = {o.p, (int64_t)((uint64_t)k.k[1] << 32 | k.k[0])};
    tl_tensor sample = tl_is_none(o.sample) ? tl_fill_at(at, TL_I64, TL_SCALAR, 0) : o.sample;
    return tl_apply1(at, &tl_op_dropout, &a, (tl_tensor[]){x, sample, o.start}, 3);
}
