/* recur: all steps of a recurrent layer, in one direction: LSTM, GRU, or a tanh or relu of its
 * gates
 * Shape:  gates (b, s, G*n), the input's part of them; w (G*n, n); bias (G*n) or none; h0, c0 (b,
 *         n), (n) or none: zeros; start, end (b) or none: sample i has steps start[i] <= t < end[i]
 *         and keeps its state in the others -> y (b, s, n), c (b, s, n), a (b, s, 4n), and the last
 *         states hn, cn (b, n). c holds an LSTM's cells, a the gates' values of an LSTM or a GRU;
 *         for other cells they are empty. G is 4 for an LSTM, 3 for a GRU, else 1
 * Dtype:  f16 bf16 f32 f64, all alike; a in the compute type; ranges i64
 * Bits:   a chain from the state, the cell in the compute type; the state is rounded at each step
 *         (NUMERICS 6.18)
 * VJP:    recur_grad, which recomputes no gate; w by matmul's chain over (sample, step).
 *         recur_grad's own is in primitives (recur_twice.c).   Saves w, h0, c0, ranges, y, c, a.
 * Errors: TL_ESHAPE TL_EDTYPE TL_EDOMAIN (cell)
 * Source: Hochreiter & Schmidhuber 1997, Cho et al. 2014; gates in PyTorch's order
 */
#include "ops/build.h"

static const tl_attr tl_recur_schema[] = {TL_FIELD(tl_recur, cell, I64),
                                          TL_FIELD(tl_recur, reverse, BOOL),
                                          {0}};

/* Checks input i, if present, for that dtype and shape. A state may be one row, (n), for all
 * samples. */
static tl_status fit(tl_call *c, int i, const char *name, tl_dtype d, tl_shape want)
{
    const tl_array *x = c->in[i];
    const bool row = name[1] == '0' && x != NULL && x->ndim == 1;
    tl_shape s = row ? TL_DIMS(want.dim[1]) : want, is = x == NULL ? want : tl_array_shape(x);
    if (x == NULL || (tl_shape_equal(&is, &s) && x->dtype == d))
        return TL_OK;
    return tl_call_fail(c, x->dtype != d ? TL_EDTYPE : TL_ESHAPE, "%s is %s %s; %s %s is needed",
                        name, tl_dtype_name(x->dtype), TL_TEXT(x), tl_dtype_name(d),
                        TL_TEXT_OF(&want));
}

/* Checks what recur and its gradient share: w, the states from input h0 on and the ranges from
 * input start on, for b samples of n units. */
static tl_status fit_rest(tl_call *c, int w, int h0, int start, tl_dtype d, int64_t b, int64_t n)
{
    const tl_recur_attrs *at = c->attrs;
    if (at->cell < TL_LSTM || at->cell > TL_RNN_RELU)
        return tl_call_fail(c, TL_EDOMAIN, "cell %lld is none", (long long)at->cell);
    if (!tl_dtype_is_float(d))
        return tl_call_fail(c, TL_EDTYPE, "%s; floats are needed", tl_dtype_name(d));
    if (c->in[h0 + 1] != NULL && at->cell != TL_LSTM)
        return tl_call_fail(c, TL_ESHAPE, "c0 is of an LSTM alone");
    TL_TRY(fit(c, w, "w", d, TL_DIMS(tl_recur_gates(at->cell) * n, n)));
    TL_TRY(fit(c, h0, "h0", d, TL_DIMS(b, n)));
    TL_TRY(fit(c, h0 + 1, "c0", d, TL_DIMS(b, n)));
    TL_TRY(fit(c, start, "start", TL_I64, TL_DIMS(b)));
    return fit(c, start + 1, "end", TL_I64, TL_DIMS(b));
}

static tl_status recur_shape(tl_call *c)
{
    const tl_recur_attrs *at = c->attrs;
    const tl_array *g = c->in[RECUR_GATES];
    const int64_t gates = tl_recur_gates(at->cell);
    if (g->ndim != 3 || g->dim[2] % gates != 0)
        return tl_call_fail(c, TL_ESHAPE, "gates have shape %s; (b, s, %lld*n) is needed",
                            TL_TEXT(g), (long long)gates);
    const int64_t b = g->dim[0], n = g->dim[2] / gates;
    TL_TRY(fit_rest(c, RECUR_W, RECUR_H0, RECUR_START, g->dtype, b, n));
    TL_TRY(fit(c, RECUR_BIAS, "bias", g->dtype, TL_DIMS(gates * n)));
    const bool lstm = at->cell == TL_LSTM, has_gates = at->cell <= TL_GRU;
    const int64_t width[] = {n, lstm ? n : 0, has_gates ? 4 * n : 0};
    for (int i = 0; i < 3; i++) {
        c->out[i] = *g;
        c->out[i].dim[2] = width[i];
    }
    c->out[2].dtype = tl_dtype_compute(g->dtype);
    c->out[3] = c->out[4] = tl_array_make(g->dtype, &TL_DIMS(b, n), NULL);
    if (!lstm)
        c->out[4].dim[1] = 0;
    return TL_OK;
}

/* ---- what forward and backward share. Operands are in the compute type and row-major; an absent
 * one has no data ---- */

enum { OPERANDS = 20 };
typedef struct {
    tl_recur_attrs at;
    bool f64;
    tl_dtype dtype; /* of the states */
    int64_t size;   /* bytes of an element in the compute type */
    int64_t b, s, n;
    int64_t gates; /* G*n */
    const tl_array *start, *end;
    tl_array x[OPERANDS]; /* inputs, then outputs */
    const tl_gemm_kernel *gemm;
    int64_t k, cols, strip; /* w, packed as k x cols, and the width of its strips */
    char *packed;
    char *h, *q; /* a row of n for each sample: its state and cell, or their cotangents */
    char *panels, *product; /* rows of k, packed, and their product with w */
    char *zeros;            /* n of them */
} job;

static void *at(const job *j, const void *base, int64_t i)
{
    return (char *)(uintptr_t)base + i * j->size;
}
/* The row of sample i, where each has n elements. */
static void *row(const job *j, const void *base, int64_t i) { return at(j, base, i * j->n); }
/* Step t of sample i in x (b, s, width). */
static void *step(const job *j, const tl_array *x, int64_t i, int64_t t)
{
    return at(j, x->data, (i * j->s + t) * x->dim[2]);
}
/* Sample i of a state that is (b, n), (n) or absent. */
static const void *initial(const job *j, const tl_array *x, int64_t i)
{
    return x->data == NULL ? j->zeros : row(j, x->data, x->ndim == 1 ? 0 : i);
}
/* The index in time of the k-th step. */
static int64_t time_of(const job *j, int64_t k) { return j->at.reverse ? j->s - 1 - k : k; }

static int64_t bound(const tl_array *x, int64_t i, int64_t otherwise)
{
    return x == NULL ? otherwise : ((const int64_t *)x->data)[i * x->stride[0]];
}
/* Whether sample i has step t. */
static bool made(const job *j, int64_t i, int64_t t)
{
    return bound(j->start, i, 0) <= t && t < bound(j->end, i, INT64_MAX);
}
/* The state before the k-th step, which sample i has: that of the step before in x, or `first`. */
static const void *before(const job *j, const tl_array *x, const tl_array *first, int64_t i,
                          int64_t k)
{
    return k == 0 || !made(j, i, time_of(j, k - 1)) ? initial(j, first, i)
                                                    : step(j, x, i, time_of(j, k - 1));
}

static void copy_row(const job *j, void *to, const void *from, int64_t n)
{
    if (n > 0)
        memcpy(to, from, (size_t)(n * j->size));
}
static void clear_row(const job *j, void *to, int64_t n)
{
    if (n > 0)
        memset(to, 0, (size_t)(n * j->size));
}
static void add_row(const job *j, const void *x, void *to)
{
    TL_ROW(tl_isa_now()->row, j->f64, accumulate, j->n, x, to);
}

/* Rounds the row x to the states' dtype. */
static void rounded(const job *j, void *x)
{
    uint16_t half[256];
    if (j->dtype == TL_F64 || j->dtype == TL_F32)
        return;
    const tl_convert_table *k = tl_isa_now()->convert;
    for (int64_t i = 0; i < j->n; i += 256) {
        int64_t m = j->n - i < 256 ? j->n - i : 256;
        k->cast(m, TL_F32, (float *)x + i, j->dtype, half);
        k->widen(m, j->dtype, half, 1, (float *)x + i);
    }
}

/* Multiplies rows [begin, end) of `rows`, k wide and `stride` apart, with w. The rows are packed
 * first, since rows a power of two apart would share cache sets. */
static void multiply(const job *j, const void *rows, int64_t stride, int64_t begin, int64_t end)
{
    const tl_gemm_mat a = {at(j, rows, begin * stride), j->f64 ? TL_GEMM_F64 : TL_GEMM_F32, stride,
                           1};
    void *panels = at(j, j->panels, begin * j->k);
    j->gemm->pack_a(&a, end - begin, j->k, j->strip, panels);
    j->gemm->block(&(tl_gemm_block){.m = end - begin,
                                    .n = j->cols,
                                    .k = j->k,
                                    .a = panels,
                                    .a_packed = true,
                                    .b = j->packed,
                                    .b_packed = true,
                                    .strip = j->strip,
                                    .c = at(j, j->product, begin * j->cols),
                                    .rsc = j->cols,
                                    .csc = 1});
}

/* Packs w, or its transpose, and takes the scratch. */
static tl_status prepare(tl_call *c, job *j, const tl_array *w, bool transposed)
{
    const tl_gemm_mat m = {w->data, j->f64 ? TL_GEMM_F64 : TL_GEMM_F32, transposed ? 1 : j->n,
                           transposed ? j->n : 1};
    j->k = transposed ? j->n : j->gates;
    j->cols = transposed ? j->gates : j->n;
    j->gemm = &tl_isa_now()->gemm->kernel[j->f64 ? TL_GEMM_IN_F64 : TL_GEMM_IN_F32];
    j->strip = tl_gemm_strip(j->gemm, j->b, j->cols);
    const int64_t lanes = j->gemm->lanes, packed = j->k * ((j->cols + lanes) / lanes + 1) * lanes;
    const int64_t elements = packed + j->b * (j->cols + j->k + 2 * j->n) + j->n;
    j->packed = tl_scratch(c, (size_t)(elements * j->size), false);
    if (j->packed == NULL)
        return TL_ENOMEM;
    j->product = at(j, j->packed, packed);
    j->h = at(j, j->product, j->b * j->cols);
    j->q = at(j, j->h, j->b * j->n);
    j->panels = at(j, j->q, j->b * j->n);
    j->zeros = at(j, j->panels, j->b * j->k);
    clear_row(j, j->zeros, j->n);
    j->gemm->pack_b(&m, j->cols, j->k, j->strip, j->packed);
    return TL_OK;
}

/* Runs `rows`, which makes all steps of a range of samples, over all samples. y is (b, s, n). */
static tl_status run(tl_call *c, const tl_array *y, int w, bool transposed, int start,
                     tl_range_fn *rows)
{
    job j = {.at = *(const tl_recur_attrs *)c->attrs,
             .f64 = y->dtype == TL_F64,
             .dtype = y->dtype,
             .size = y->dtype == TL_F64 ? 8 : 4,
             .b = y->dim[0],
             .s = y->dim[1],
             .n = y->dim[2],
             .gates = c->in[w]->dim[0],
             .start = c->in[start],
             .end = c->in[start + 1]};
    const double work = (double)j.s * (double)j.n * (double)j.n;
    for (int i = 0; i < c->n_in; i++)
        if (c->in[i] != NULL && c->in[i]->dtype != TL_I64)
            TL_TRY(tl_as_compute(c, c->in[i], &j.x[i]));
    TL_TRY(prepare(c, &j, &j.x[w], transposed));
    for (int i = 0; i < c->n_out; i++)
        TL_TRY(tl_out_compute(c, i, &j.x[c->n_in + i]));
    tl_parallel_for(j.b, 1 + (int64_t)(200000 / (work + 1)), rows, &j);
    for (int i = 0; i < c->n_out; i++)
        tl_store_compute(c, i, &j.x[c->n_in + i]);
    return TL_OK;
}

enum { Y = RECUR_IN, C, A, HN, CN }; /* the outputs among the operands */

static void forward_step(const job *j, int64_t i, int64_t t, const void *u, void *h, void *cell)
{
    const tl_row_table *k = tl_isa_now()->row;
    const void *g = step(j, &j->x[RECUR_GATES], i, t), *b = j->x[RECUR_BIAS].data;
    void *a = j->at.cell <= TL_GRU ? step(j, &j->x[A], i, t) : NULL;
    if (j->at.cell == TL_LSTM) {
        TL_ROW(k, j->f64, lstm, j->n, g, u, b, a, cell);
        rounded(j, cell);
        TL_ROW(k, j->f64, lstm_out, j->n, a, cell, h);
    } else if (j->at.cell == TL_GRU)
        TL_ROW(k, j->f64, gru, j->n, g, u, b, a, h);
    else
        TL_ROW(k, j->f64, rnn, j->n, g, u, b, j->at.cell == TL_RNN_RELU, h);
    rounded(j, h);
}

static void forward_rows(void *ctx, int64_t begin, int64_t end, TL_UNUSED int thread)
{
    const job *j = ctx;
    for (int64_t i = begin; i < end; i++) {
        copy_row(j, row(j, j->h, i), initial(j, &j->x[RECUR_H0], i), j->n);
        copy_row(j, row(j, j->q, i), initial(j, &j->x[RECUR_C0], i), j->n);
    }
    for (int64_t k = 0; k < j->s; k++) {
        const int64_t t = time_of(j, k);
        multiply(j, j->h, j->n, begin, end);
        for (int64_t i = begin; i < end; i++) {
            void *h = row(j, j->h, i), *cell = row(j, j->q, i);
            if (made(j, i, t))
                forward_step(j, i, t, at(j, j->product, i * j->gates), h, cell);
            else
                clear_row(j, step(j, &j->x[A], i, t), j->x[A].dim[2]);
            copy_row(j, step(j, &j->x[Y], i, t), h, j->n);
            copy_row(j, step(j, &j->x[C], i, t), cell, j->x[C].dim[2]);
        }
    }
    for (int64_t i = begin; i < end; i++) {
        copy_row(j, row(j, j->x[HN].data, i), row(j, j->h, i), j->n);
        copy_row(j, row(j, j->x[CN].data, i), row(j, j->q, i), j->x[CN].dim[1]);
    }
}

static tl_status recur_forward(tl_call *c)
{
    return run(c, &c->out[0], RECUR_W, true, RECUR_START, forward_rows);
}

/* The samples of recur and its gradient lie along axis 0, in states and ranges as well; w, bias and
 * a state of one row are shared. */
static void recur_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    const int w = c->n_in == RECUR_IN ? RECUR_W : BACK_W;
    memset(out, 0, (size_t)c->n_out);
    for (int i = 0; i < c->n_in; i++) {
        const tl_array *x = c->in[i];
        const bool shared = x == NULL || i == w || (x->ndim == 1 && x->dtype != TL_I64);
        if (in[i] != (shared ? TL_FREE : 0) && (shared || in[i] != TL_FREE || x->stride[0] != 0))
            memset(out, TL_MIXED, (size_t)c->n_out);
    }
}

static void recur_vjp(tl_vjp *g)
{
    tl_tape *t = g->t;
    const tl_recur_attrs *a = g->attrs;
    tl_tensor out[4], *du = &out[a->cell == TL_GRU]; /* other cells: the same as dgates */
    const bool cells = a->cell == TL_LSTM, acts = a->cell <= TL_GRU;
    tl_tensor in[BACK_IN] = {g->dy[0],
                             cells ? g->dy[1] : TL_NONE,
                             acts ? g->dy[2] : TL_NONE,
                             g->out[0],
                             cells ? g->out[1] : TL_NONE,
                             acts ? g->out[2] : TL_NONE,
                             g->in[RECUR_W],
                             g->in[RECUR_H0],
                             g->in[RECUR_C0],
                             g->in[RECUR_START],
                             g->in[RECUR_END],
                             g->dy[3],
                             cells ? g->dy[4] : TL_NONE};
    tl_apply(TL_AT(t), &tl_op_recur_grad, a, in, BACK_IN, out);
    g->dx[RECUR_GATES] = out[0];
    g->dx[RECUR_BIAS] = *du;
    g->dx[RECUR_H0] = out[2];
    g->dx[RECUR_C0] = out[3];
    if (g->wants[RECUR_W]) {
        tl_tensor h = tl_recur_before(t, g->out[0], g->in[RECUR_H0],
                                      g->in[a->reverse ? RECUR_END : RECUR_START], a->reverse);
        g->dx[RECUR_W] = tl_matmul_into_at(TL_AT(t), tl_transpose(t, *du, 1, 2), h, g->acc[RECUR_W],
                                           (tl_matmul_attrs){.batch = TL_SCALAR});
    }
}

const tl_op tl_op_recur = {TL_NAMED(recur, RECUR_IN, 5),
                           .optional = 0x7c,
                           .traits = TL_HEAVY,
                           .shape = recur_shape,
                           .forward = recur_forward,
                           TL_ATTRS(tl_recur),
                           .vjp = recur_vjp,
                           .saves_in = 0x7a,
                           .saves_out = 7,
                           .folds = TL_BIT(RECUR_W),
                           .batch = recur_batch};

tl_tensor tl_recur_at(tl_at place, tl_tensor gates, tl_tensor w, tl_cell cell, tl_recur_options o)
{
    tl_recur_attrs a = {cell, o.reverse};
    tl_tensor out[5], in[RECUR_IN] = {gates, w, o.bias, o.h, o.c, o.start, o.end};
    tl_apply(place, &tl_op_recur, &a, in, RECUR_IN, out);
    tl_give(o.cells, cell == TL_LSTM ? out[1] : TL_NONE);
    tl_give(o.last_h, out[3]);
    tl_give(o.last_c, cell == TL_LSTM ? out[4] : TL_NONE);
    return out[0];
}

/* ---- recur_grad: the gradients of the gates; of the part of the gates that comes from the chain
 * and the bias (du, only for a GRU: in other cells it equals the first); and of h0 and c0, if
 * present ---- */

static tl_status grad_shape(tl_call *c)
{
    const tl_recur_attrs *a = c->attrs;
    const tl_array *y = c->in[BACK_Y];
    if (y->ndim != 3)
        return tl_call_fail(c, TL_ESHAPE, "y has shape %s; (b, s, n) is needed", TL_TEXT(y));
    const bool lstm = a->cell == TL_LSTM, has_gates = a->cell <= TL_GRU;
    const int64_t b = y->dim[0], n = y->dim[2], gates = tl_recur_gates(a->cell) * n,
                  cells = lstm ? n : 0, acts = has_gates ? 4 * n : 0;
    const tl_dtype wide = tl_dtype_compute(y->dtype);
    if ((c->in[BACK_C] != NULL) != lstm || (c->in[BACK_A] != NULL) != has_gates)
        return tl_call_fail(c, TL_ESHAPE, "an LSTM has cells, an LSTM and a GRU have gates");
    TL_TRY(fit_rest(c, BACK_W, BACK_H0, BACK_START, y->dtype, b, n));
    TL_TRY(fit(c, BACK_DHN, "dhn", y->dtype, TL_DIMS(b, n)));
    TL_TRY(fit(c, BACK_DCN, "dcn", y->dtype, TL_DIMS(b, cells)));
    TL_TRY(fit(c, BACK_DY, "dy", y->dtype, tl_array_shape(y)));
    TL_TRY(fit(c, BACK_DC, "dc", y->dtype, TL_DIMS(b, y->dim[1], cells)));
    TL_TRY(fit(c, BACK_C, "c", y->dtype, TL_DIMS(b, y->dim[1], cells)));
    TL_TRY(fit(c, BACK_DA, "da", wide, TL_DIMS(b, y->dim[1], acts)));
    TL_TRY(fit(c, BACK_A, "a", wide, TL_DIMS(b, y->dim[1], acts)));
    c->out[0] = c->out[1] = c->out[2] = *y;
    c->out[0].dim[2] = gates;
    c->out[1].dim[2] = a->cell == TL_GRU ? gates : 0;
    c->out[2].ndim = 2;
    c->out[2].dim[1] = c->in[BACK_H0] == NULL ? 0 : n;
    c->out[3] = c->out[2];
    c->out[3].dim[1] = c->in[BACK_C0] == NULL ? 0 : n;
    return TL_OK;
}

enum { DG = BACK_IN, DU, DH0, DC0 };

/* The k-th step of one sample, backwards: dh and q, the cotangents of h and of the cell after the
 * step, become those before it, except for the product's part. */
static void back_step(const job *j, int64_t i, int64_t k, void *dh, void *q)
{
    const tl_row_table *r = tl_isa_now()->row;
    const tl_array *x = j->x;
    const int64_t t = time_of(j, k), n = j->n;
    const void *a = j->at.cell <= TL_GRU ? step(j, &x[BACK_A], i, t) : NULL,
               *da = x[BACK_DA].data == NULL ? NULL : step(j, &x[BACK_DA], i, t);
    void *ds = step(j, &x[j->at.cell == TL_GRU ? DU : DG], i, t), *dg = step(j, &x[DG], i, t);
    if (j->at.cell == TL_LSTM)
        TL_ROW(r, j->f64, lstm_grad, n, dh, q, a, step(j, &x[BACK_C], i, t),
               before(j, &x[BACK_C], &x[BACK_C0], i, k), da, ds);
    else if (j->at.cell == TL_GRU)
        TL_ROW(r, j->f64, gru_grad, n, dh, a, before(j, &x[BACK_Y], &x[BACK_H0], i, k), da, dg, ds);
    else
        TL_ROW(r, j->f64, rnn_grad, n, dh, step(j, &x[BACK_Y], i, t), j->at.cell == TL_RNN_RELU,
               ds);
}

static void back_rows(void *ctx, int64_t begin, int64_t end, TL_UNUSED int thread)
{
    const job *j = ctx;
    const tl_array *x = j->x, *ds = &x[j->at.cell == TL_GRU ? DU : DG];
    const int64_t n = j->n;
    for (int64_t i = begin; i < end; i++) {
        copy_row(j, row(j, j->h, i), initial(j, &x[BACK_DHN], i), n);
        copy_row(j, row(j, j->q, i), initial(j, &x[BACK_DCN], i), n);
    }
    for (int64_t k = j->s; k-- > 0;) {
        const int64_t t = time_of(j, k);
        for (int64_t i = begin; i < end; i++) {
            void *p = row(j, j->h, i), *q = row(j, j->q, i);
            if (x[BACK_DY].data != NULL)
                add_row(j, step(j, &x[BACK_DY], i, t), p);
            if (x[BACK_DC].data != NULL && j->at.cell == TL_LSTM)
                add_row(j, step(j, &x[BACK_DC], i, t), q);
            if (made(j, i, t)) {
                back_step(j, i, k, p, q);
                continue;
            }
            clear_row(j, step(j, &x[DG], i, t), j->gates);
            clear_row(j, step(j, &x[DU], i, t), x[DU].dim[2]);
        }
        multiply(j, at(j, ds->data, t * j->gates), j->s * j->gates, begin, end);
        for (int64_t i = begin; i < end; i++) {
            void *p = row(j, j->h, i), *v = row(j, j->product, i);
            if (made(j, i, t) && j->at.cell == TL_GRU)
                add_row(j, v, p);
            else if (made(j, i, t))
                copy_row(j, p, v, n);
        }
    }
    for (int64_t i = begin; i < end; i++) {
        copy_row(j, row(j, x[DH0].data, i), row(j, j->h, i), x[DH0].dim[1]);
        copy_row(j, row(j, x[DC0].data, i), row(j, j->q, i), x[DC0].dim[1]);
    }
}

static tl_status grad_forward(tl_call *c)
{
    return run(c, c->in[BACK_Y], BACK_W, false, BACK_START, back_rows);
}

const tl_op tl_op_recur_grad = {TL_NAMED(recur_grad, BACK_IN, 4),
                                .optional = 0x1fb7,
                                .traits = TL_HEAVY,
                                .shape = grad_shape,
                                .forward = grad_forward,
                                TL_ATTRS(tl_recur),
                                .vjp = tl_recur_grad_vjp,
                                .saves_in = 0x1fff,
                                .batch = recur_batch};
