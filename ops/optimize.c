/* square_sum, sgd, adamw: the ops an optimizer step is made of
 * Shape:  square_sum: x any -> 0-d f64. sgd(p, g, b?, lr, clip), adamw(p, g, m, v, lr, clip, c1,
 *         c2): p, g, b, m, v alike; lr, clip, c1, c2 0-d f64, so that a step's ops stay the same
 *         from step to step
 * Dtype:  square_sum any float; sgd, adamw f32 or f64, p, g, b, m and v alike
 * Bits:   NUMERICS 12.2 to 12.4
 * VJP:    square_sum 2*dy*x; the updates none: they change p, b, m, v in place and say so
 * Errors: TL_ESHAPE TL_EDTYPE
 */
#include "ops/optimize.h"

#include "ops/build.h"

static tl_status square_sum_shape(tl_call *c)
{
    TL_TRY(tl_need_float(c, c->in[0], "x"));
    c->out[0] = tl_array_make(TL_F64, &TL_SCALAR, NULL);
    return TL_OK;
}

static tl_status square_sum_forward(tl_call *c)
{
    const tl_array *x = c->in[0];
    *(double *)c->out[0].data = TL_ROW(tl_isa_now()->row, x->dtype == TL_F64, square_sum,
                                       tl_array_count(x), x->data);
    return TL_OK;
}

static void square_sum_vjp(tl_vjp *g)
{
    tl_tensor two = tl_cast(g->t, tl_scale(g->t, g->dy[0], 2), tl_dtype_of(g->t, g->in[0]));
    g->dx[0] = tl_mul(g->t, two, g->in[0]);
}

static void square_sum_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    (void)c, out[0] = in[0] < 0 ? TL_MIXED : TL_TOTAL;
}

const tl_op tl_op_square_sum = {TL_NAMED(square_sum, 1, 1), .traits = TL_REDUCTION | TL_WIDENED,
                                .shape = square_sum_shape,  .forward = square_sum_forward,
                                .vjp = square_sum_vjp,      .saves_in = 1,
                                .batch = square_sum_batch};

TL_UNARY_CALL(square_sum)

/* The arrays come first: alike (those that are present), f32 or f64, and contiguous. The scalars
 * after them are 0-d f64. */
static tl_status update_shape(tl_call *c)
{
    const int n_arrays = c->op == &tl_op_adamw ? 4 : 3;
    for (int i = 0; i < c->n_in; i++) {
        const tl_array *x = c->in[i];
        if (x == NULL)
            continue;
        bool fits = i >= n_arrays ? x->dtype == TL_F64 && x->ndim == 0
                                  : (x->dtype == TL_F32 || x->dtype == TL_F64) &&
                                        tl_array_contiguous(x) && x->dtype == c->in[0]->dtype;
        if (!fits)
            return tl_call_fail(c, TL_EDTYPE,
                                "input %d is %s %s; contiguous tensors, all F32 or all F64, then "
                                "0-d F64 scalars",
                                i, TL_TEXT(x), tl_dtype_name(x->dtype));
        if (i < n_arrays && !tl_array_same_shape(x, c->in[0]))
            return tl_call_fail(c, TL_ESHAPE, "input %d has shape %s, the parameter %s", i,
                                TL_TEXT(x), TL_TEXT(c->in[0]));
    }
    c->out[0] = *c->in[0];
    return TL_OK;
}

static double scalar_in(const tl_call *c, int i) { return *(const double *)c->in[i]->data; }

typedef struct {
    const tl_call *c;
    const void *step; /* the op's: a tl_sgd_step or a tl_adamw_step */
} job;

static void update_range(void *ctx, int64_t from, int64_t end, TL_UNUSED int thread)
{
    const job *j = ctx;
    const tl_row_table *k = tl_isa_now()->row;
    const tl_array *const *in = j->c->in;
    const bool f64 = in[0]->dtype == TL_F64;
    const int64_t n = end - from;
    void *p = tl_flat_at(in[0], from), *g = tl_flat_at(in[1], from),
         *m = in[2] != NULL ? tl_flat_at(in[2], from) : NULL; /* sgd's b, or NULL */
    if (j->c->op == &tl_op_sgd)
        TL_ROW(k, f64, sgd, n, p, g, m, j->step);
    else
        TL_ROW(k, f64, adamw, n, p, g, m, tl_flat_at(in[3], from), j->step);
}

static tl_status update(tl_call *c, const void *step)
{
    tl_parallel_for(tl_array_count(c->in[0]), 4096, update_range, &(job){c, step});
    return TL_OK;
}

static tl_status sgd_forward(tl_call *c)
{
    const tl_sgd_attrs *a = c->attrs;
    tl_sgd_step s = {.mu = a->momentum,
                     .lr = scalar_in(c, 3),
                     .wd = a->weight_decay,
                     .clip = scalar_in(c, 4),
                     .nesterov = a->nesterov,
                     .decoupled = a->decoupled};
    return update(c, &s);
}

static tl_status adamw_forward(tl_call *c)
{
    const tl_adamw_attrs *a = c->attrs;
    tl_adamw_step s = {.b1 = a->beta1,
                       .b1c = 1 - a->beta1,
                       .b2 = a->beta2,
                       .b2c = 1 - a->beta2,
                       .eps = a->eps,
                       .wd = a->coupled ? 0 : a->weight_decay,
                       .l2 = a->coupled ? a->weight_decay : 0,
                       .lr = scalar_in(c, 4),
                       .clip = scalar_in(c, 5),
                       .c1 = scalar_in(c, 6),
                       .c2 = scalar_in(c, 7)};
    return update(c, &s);
}

static const tl_attr tl_sgd_schema[] = {TL_FIELD(tl_sgd, momentum, F64),
                                        TL_FIELD(tl_sgd, weight_decay, F64),
                                        TL_FIELD(tl_sgd, nesterov, BOOL),
                                        TL_FIELD(tl_sgd, decoupled, BOOL),
                                        {0}};
static const tl_attr tl_adamw_schema[] = {TL_FIELD(tl_adamw, beta1, F64),
                                          TL_FIELD(tl_adamw, beta2, F64),
                                          TL_FIELD(tl_adamw, eps, F64),
                                          TL_FIELD(tl_adamw, weight_decay, F64),
                                          TL_FIELD(tl_adamw, coupled, BOOL),
                                          {0}};

const tl_op tl_op_sgd = {
    TL_NAMED(sgd, 5, 1),    .optional = TL_BIT(2), .traits = TL_MUTATES | TL_NONDIFF,
    .mutates = 0,           .changes = TL_BIT(2),  .shape = update_shape,
    .forward = sgd_forward, TL_ATTRS(tl_sgd)};
const tl_op tl_op_adamw = {TL_NAMED(adamw, 8, 1), .traits = TL_MUTATES | TL_NONDIFF,
                           .mutates = 0,          .changes = TL_BIT(2) | TL_BIT(3),
                           .shape = update_shape, .forward = adamw_forward,
                           TL_ATTRS(tl_adamw)};

/* ---- store(p, x): p = x, rounded to p's dtype ---- */

/* The shape rule of store(p, x) and master(w, p). p is of any float dtype and the other of p's
 * compute type; both are contiguous and of one shape. */
static tl_status rounded_shape(tl_call *c)
{
    const bool store = c->op == &tl_op_store;
    const tl_array *p = c->in[store ? 0 : 1], *wide = c->in[store ? 1 : 0];
    if (!tl_array_same_shape(p, wide))
        return tl_call_fail(c, TL_ESHAPE,
                            store ? "the tensor has shape %s, x %s"
                                  : "the parameter has shape %s, its master %s",
                            TL_TEXT(p), TL_TEXT(wide));
    if (!tl_dtype_is_float(p->dtype) || wide->dtype != tl_dtype_compute(p->dtype))
        return tl_call_fail(c, TL_EDTYPE,
                            store ? "%s into %s; x has the compute type"
                                  : "a master of %s for %s; it has the compute type",
                            tl_dtype_name(wide->dtype), tl_dtype_name(p->dtype));
    if (!tl_array_contiguous(p) || !tl_array_contiguous(wide))
        return tl_call_fail(c, TL_ESHAPE, "both must be contiguous");
    c->out[0] = *c->in[0];
    return TL_OK;
}

static tl_status store_forward(tl_call *c)
{
    const tl_array *p = c->in[0], *x = c->in[1];
    tl_cast_all(tl_array_count(p), x->dtype, x->data, p->dtype, p->data);
    return TL_OK;
}

const tl_op tl_op_store = {TL_NAMED(store, 2, 1), .traits = TL_MUTATES | TL_NONDIFF, .mutates = 0,
                           .shape = rounded_shape, .forward = store_forward};

TL_BINARY_CALL(store)

/* ---- master(w, p): w becomes p, exactly, unless p is w rounded ---- */

static tl_status master_forward(tl_call *c)
{
    const tl_array *w = c->in[0], *p = c->in[1];
    const tl_convert_table *k = tl_isa_now()->convert;
    double tile[1024];
    int64_t n = tl_array_count(w), step = 1024;
    for (int64_t i = 0; i < n; i += step) {
        int64_t m = n - i < step ? n - i : step;
        tl_array rounded = {.dtype = p->dtype, .ndim = 1, .dim = {m}, .stride = {1}, .data = tile},
                 is = rounded;
        is.data = tl_flat_at(p, i);
        k->narrow(m, p->dtype, tl_flat_at(w, i), tile, 1);
        if (tl_arrays_differ(&rounded, &is) >= 0) {
            k->widen(n, p->dtype, p->data, 1, w->data);
            return TL_OK;
        }
    }
    return TL_OK;
}

const tl_op tl_op_master = {TL_NAMED(master, 2, 1), .traits = TL_MUTATES | TL_NONDIFF, .mutates = 0,
                            .shape = rounded_shape, .forward = master_forward};

TL_BINARY_CALL(master)

tl_tensor tl_sgd_update_at(tl_at at, tl_tensor p, tl_tensor g, tl_tensor b, tl_tensor lr,
                           tl_tensor clip, tl_sgd_attrs a)
{
    return tl_apply1(at, &tl_op_sgd, &a, (tl_tensor[]){p, g, b, lr, clip}, 5);
}

tl_tensor tl_adamw_update_at(tl_at at, const tl_tensor in[8], tl_adamw_attrs a)
{
    return tl_apply1(at, &tl_op_adamw, &a, in, 8);
}
