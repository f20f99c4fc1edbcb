/* cross_entropy: sum over rows of log(sum exp z) - z_target, divided by a count or not; with label
 * smoothing e the row's loss is (1-e) times that plus e times its mean over all classes. nll is
 * further down
 * Shape:  logits (..., classes), targets (...) -> 0-d; 0-d also for a (classes) row and a 0-d
 *         target
 * Dtype:  logits f16 bf16 f32 f64; targets i64; loss the compute type; total f64
 * Bits:   rows' losses folded in f64, continuing `total`; one division; one rounding (NUMERICS 6.5,
 *         6.9)
 * VJP:    dz = (softmax(z) - onehot(t)) * dy/count, 0 for ignored rows (smoothed: (1-e)*onehot +
 *         e/classes).   Saves logits, targets, count.
 * Errors: TL_ESHAPE TL_EDTYPE TL_EINDEX (a target outside the classes) TL_EDOMAIN (reduction,
 *         smoothing)
 */
#include "ops/build.h"

static bool ignored(const tl_loss_attrs *a, int64_t target)
{
    return a->ignore && target == a->ignore_index;
}

/* Values (..., classes), targets (...) and a count, or NULL, fit together. */
static tl_status check(tl_call *c, const tl_array *values, const tl_array *targets,
                       const tl_array *count)
{
    const tl_loss_attrs *a = c->attrs;
    const bool entropy = c->op == &tl_op_cross_entropy || c->op == &tl_op_cross_entropy_grad;
    const char *name = entropy ? "logits" : "log-probabilities";
    tl_array lead = *values;
    if (a->reduction != TL_MEAN && a->reduction != TL_SUM)
        return tl_call_fail(c, TL_EDOMAIN, "reduction %lld; say TL_MEAN, TL_SUM or TL_EACH",
                            (long long)a->reduction);
    if (!(a->smoothing >= 0 && a->smoothing <= 1))
        return tl_call_fail(c, TL_EDOMAIN, "label smoothing is %g; 0 to 1 is possible",
                            a->smoothing);
    TL_TRY(tl_need_indexed(c, name, values, "targets", targets));
    lead.ndim--;
    if (values->ndim < 1 || !tl_array_same_shape(&lead, targets))
        return tl_call_fail(c, TL_ESHAPE, "%s %s for targets %s", name, TL_TEXT(values),
                            TL_TEXT(targets));
    if (count != NULL && (count->dtype != TL_F64 || tl_array_count(count) != 1))
        return tl_call_fail(c, TL_EDTYPE, "the count is %s %s; one F64 is needed", TL_TEXT(count),
                            tl_dtype_name(count->dtype));
    return TL_OK;
}

/* The shape rule of both losses: out[0] is the running total, which continues a given one, and
 * out[1] the loss. */
static tl_status loss_shape(tl_call *c)
{
    const tl_array *total = c->in[3];
    TL_TRY(check(c, c->in[0], c->in[1], c->in[2]));
    c->out[0] = total != NULL ? *total : tl_array_make(TL_F64, &TL_SCALAR, NULL);
    if (c->out[0].dtype != TL_F64 || c->out[0].ndim != 0)
        return tl_call_fail(c, TL_EDTYPE, "the total must be a 0-d F64");
    c->out[1] = tl_array_make(tl_dtype_compute(c->in[0]->dtype), &TL_SCALAR, NULL);
    return TL_OK;
}

/* A loss or its gradient while it runs. */
typedef struct {
    const tl_loss_attrs *a;
    const tl_array *values, *targets;
    int64_t rows, n;    /* n classes */
    double count;       /* a mean's divisor */
    double *loss;       /* of each row */
    const tl_array *dz; /* the gradient; NULL: the loss is wanted */
    double dy;          /* the cotangent of each row's loss */
} job;

/* Sets up j. Every target must be a class or ignored; without a given count those that are not
 * ignored are counted. */
static tl_status begin(tl_call *c, job *j, const tl_array *count)
{
    int64_t counted = 0;
    j->a = c->attrs;
    j->rows = tl_array_count(j->targets);
    for (int64_t r = 0; r < j->rows; r++) {
        int64_t t = tl_i64_at(j->targets, r);
        if (ignored(j->a, t))
            continue;
        if (t < 0 || t >= j->n)
            return tl_call_fail(c, TL_EINDEX, "target %lld in row %lld; there are %lld classes",
                                (long long)t, (long long)r, (long long)j->n);
        counted++;
    }
    j->count = count != NULL ? *(double *)count->data : (double)counted;
    return TL_OK;
}

/* Rows for a thread: all of them, unless each takes a while (heavy). */
static int64_t grain_of(const job *j, bool heavy)
{
    return heavy ? 1 + 4096 / (j->n + 1) : 1 + j->rows;
}

/* The forward of both losses; `rows` computes the loss of each row. The rows' losses are added in
 * order to the total. */
static tl_status loss_run(tl_call *c, tl_range_fn *rows, bool heavy)
{
    const tl_array *values = c->in[0], *total = c->in[3];
    job j = {.values = values, .targets = c->in[1], .n = values->dim[values->ndim - 1]};
    TL_TRY(begin(c, &j, c->in[2]));
    j.loss = tl_scratch(c, (size_t)j.rows * 8, false);
    if (j.loss == NULL)
        return TL_ENOMEM;
    tl_parallel_for(j.rows, grain_of(&j, heavy), rows, &j);
    double sum = total != NULL ? *(double *)total->data : 0;
    for (int64_t r = 0; r < j.rows; r++)
        if (!ignored(j.a, tl_i64_at(j.targets, r)))
            sum += j.loss[r];
    sum += 0;
    *(double *)c->out[0].data = sum;
    const double y = j.a->reduction == TL_MEAN ? sum / j.count : sum;
    tl_isa_now()->convert->cast(1, TL_F64, &y, c->out[1].dtype, c->out[1].data);
    return TL_OK;
}

/* The forward of both gradients, whose targets are input `targets`; `rows` computes the gradient of
 * each row. */
static tl_status grad_run(tl_call *c, int targets, tl_range_fn *rows, bool heavy)
{
    const tl_array *dz = &c->out[0];
    const double y = tl_array_get(c->in[0], 0);
    job j = {.values = c->in[1], .targets = c->in[targets], .n = dz->dim[dz->ndim - 1], .dz = dz};
    TL_TRY(begin(c, &j, c->in[targets + 1]));
    j.dy = j.a->reduction == TL_MEAN ? y / j.count : y;
    tl_parallel_for(j.rows, grain_of(&j, heavy), rows, &j);
    return TL_OK;
}

/* The gradients are linear in dy, their input 0: with cotangent u, d_dy = sum(u * op at dy = 1). */
static tl_tensor dy_gradient(tl_vjp *g, const tl_op *op)
{
    tl_tape *t = g->t;
    const tl_shape s = tl_shape_of(t, g->in[0]);
    tl_tensor in[4];
    memcpy(in, g->in, (size_t)g->n_in * sizeof *in);
    in[0] = tl_filled_like(t, g->in[0], 1);
    tl_tensor dz = tl_apply1(TL_AT(t), op, g->attrs, in, g->n_in);
    return tl_reshape(t, tl_sum(t, tl_mul(t, g->dy[0], dz), TL_ALL, false), s);
}

/* ---- cross_entropy ---- */

#define REDUCTION                                                            \
    TL_FIELD(tl_loss, reduction, I64), TL_FIELD(tl_loss, ignore_index, I64), \
        TL_FIELD(tl_loss, ignore, BOOL)
static const tl_attr tl_loss_schema[] = {REDUCTION, TL_FIELD(tl_loss, smoothing, F64), {0}};

/* The loss of each row, or (dz) its gradient. */
static void entropy_rows(void *ctx, int64_t begin, int64_t end, TL_UNUSED int thread)
{
    const job *j = ctx;
    const tl_row_table *k = tl_isa_now()->row;
    const double smoothing = j->a->smoothing;
    const bool f64 = j->values->dtype == TL_F64;
    for (int64_t r = begin; r < end; r++) {
        const int64_t t = tl_i64_at(j->targets, r);
        const void *z = tl_flat_at(j->values, r * j->n);
        void *dz = j->dz == NULL ? NULL : tl_flat_at(j->dz, r * j->n);
        if (ignored(j->a, t) && dz != NULL)
            memset(dz, 0, (size_t)j->n * tl_dtype_size(j->dz->dtype));
        else if (ignored(j->a, t))
            j->loss[r] = 0;
        else if (dz != NULL)
            TL_ROW(k, f64, cross_entropy_grad, j->n, z, t, smoothing, j->dy, dz);
        else
            j->loss[r] = TL_ROW(k, f64, cross_entropy, j->n, z, t, smoothing);
    }
}

static tl_status cross_entropy_forward(tl_call *c) { return loss_run(c, entropy_rows, true); }

static void cross_entropy_vjp(tl_vjp *g)
{
    if (!tl_is_none(g->dy[1]))
        g->dx[0] = tl_apply1(TL_AT(g->t), &tl_op_cross_entropy_grad, g->attrs,
                             (tl_tensor[]){g->dy[1], g->in[0], g->in[1], g->in[2]}, 4);
}

/* The axis along which the rows of input `at`, the values, and of the targets after it are samples.
 * TL_MIXED where a mean counts the samples at hand. */
static tl_batch loss_axis(const tl_call *c, const tl_batch *in, int at, const tl_loss_attrs *a)
{
    const tl_batch two[] = {in[at], in[at + 1]};
    const tl_call rows = {.n_in = 2, .in = c->in + at};
    const tl_batch axis = tl_batch_meet(&rows, two, TL_ALL_INPUTS, TL_FROM_FRONT);
    const bool counts = a->reduction == TL_MEAN && c->in[at + 2] == NULL;
    return counts || in[at + 2] != TL_FREE ? TL_MIXED : tl_batch_outside(axis, c->in[at]->ndim, 1);
}

/* A loss is a total over samples, and so is its running total, which may hold earlier ones. */
static void loss_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    const tl_batch a = loss_axis(c, in, 0, c->attrs);
    out[0] = out[1] = a >= 0 && (in[3] == TL_FREE || in[3] == TL_TOTAL) ? TL_TOTAL : TL_MIXED;
}

/* clang-format off */
#define LOSS(id)                                                                                 \
    TL_NAMED(id, 4, 2), .optional = TL_BIT(2) | TL_BIT(3), .mutates = 3, .shape = loss_shape,    \
    .forward = id##_forward, .vjp = id##_vjp, .nodiff_out = 1,                                   \
    .nodiff_in = TL_BIT(2) | TL_BIT(3), .batch = loss_batch
/* clang-format on */
const tl_op tl_op_cross_entropy = {LOSS(cross_entropy), TL_ATTRS(tl_loss), .saves_in = 7,
                                   .traits = TL_MUTATES | TL_HEAVY | TL_WIDENED};

/* ---- cross_entropy_grad(dy, logits, targets, count?) -> dz ---- */

static tl_status grad_shape(tl_call *c)
{
    TL_TRY(check(c, c->in[1], c->in[2], c->in[3]));
    if (tl_array_count(c->in[0]) != 1 || c->in[0]->dtype != tl_dtype_compute(c->in[1]->dtype))
        return tl_call_fail(c, TL_ESHAPE, "dy must be one element of the compute type");
    c->out[0] = *c->in[1];
    return TL_OK;
}

static tl_status grad_forward(tl_call *c) { return grad_run(c, 2, entropy_rows, true); }

/* With cotangent u: d_z = w * p*(u - sum(u*p)) on the rows that count, by dz's Jacobian. */
static void grad_vjp(tl_vjp *g)
{
    const tl_loss_attrs *a = g->attrs;
    tl_tape *t = g->t;
    tl_tensor u = g->dy[0], targets = g->in[2], counts = TL_NONE;
    if (g->wants[0])
        g->dx[0] = dy_gradient(g, &tl_op_cross_entropy_grad);
    if (!g->wants[1])
        return;
    tl_shape s = tl_shape_of(t, targets), column = s;
    column.dim[column.ndim++] = 1;
    if (a->ignore)
        counts = tl_ne(t, targets, tl_integer(TL_AT(t), a->ignore_index));
    tl_tensor p = tl_softmax(t, g->in[1], -1), w = g->in[0], n = g->in[3];
    if (a->reduction == TL_MEAN) {
        if (tl_is_none(n)) {
            tl_tensor ones = tl_fill(t, TL_F64, s, 1);
            if (a->ignore)
                ones = tl_where(t, counts, ones, tl_scalar(t, TL_F64, 0));
            n = tl_sum(t, ones, TL_ALL, false);
        }
        w = tl_div(t, w, tl_cast(t, n, tl_dtype_of(t, w)));
    }
    tl_tensor d = tl_mul(t, p, tl_sub(t, u, tl_sum_rows_last(t, tl_mul(t, u, p))));
    if (a->ignore)
        d = tl_where(t, tl_reshape(t, counts, column), d, tl_scalar(t, tl_dtype_of(t, d), 0));
    g->dx[1] = tl_mul(t, d, w);
}

static void loss_grad_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    const tl_batch a = loss_axis(c, in, 1, c->attrs);
    out[0] = in[0] == TL_FREE ? a : TL_MIXED;
}

const tl_op tl_op_cross_entropy_grad = {TL_NAMED(cross_entropy_grad, 4, 1),
                                        .optional = TL_BIT(3),
                                        .traits = TL_HEAVY | TL_WIDENED,
                                        .shape = grad_shape,
                                        .forward = grad_forward,
                                        TL_ATTRS(tl_loss),
                                        .vjp = grad_vjp,
                                        .saves_in = 15,
                                        .nodiff_in = TL_BIT(3),
                                        .batch = loss_grad_batch};

/* ---- nll: the negative log-likelihood of targets, from log-probabilities
 * Shape:  logp (..., classes), targets (...) -> 0-d
 * Dtype:  logp f16 bf16 f32 f64; targets i64; loss the compute type; total f64
 * Bits:   -logp at the target, rows folded in f64, continuing `total`; one division; one rounding
 *         (NUMERICS 6.10)
 * VJP:    nll_grad: -dy/count at the target, 0 elsewhere.   Saves targets, count.
 * Errors: TL_ESHAPE TL_EDTYPE TL_EINDEX (a target outside the classes) TL_EDOMAIN (reduction)
 */

static const tl_attr nll_schema[] = {REDUCTION, {0}};

/* The loss of each row, or (dz, which is 0) its gradient. */
static void nll_rows(void *ctx, int64_t begin, int64_t end, TL_UNUSED int thread)
{
    const job *j = ctx;
    for (int64_t r = begin; r < end; r++) {
        const int64_t t = tl_i64_at(j->targets, r);
        if (j->dz == NULL)
            j->loss[r] = ignored(j->a, t) ? 0 : -tl_array_get(j->values, r * j->n + t);
        else if (!ignored(j->a, t))
            tl_array_put(j->dz, r * j->n + t, -j->dy);
    }
}

static tl_status nll_forward(tl_call *c) { return loss_run(c, nll_rows, false); }

static void nll_vjp(tl_vjp *g)
{
    tl_shape s = tl_shape_of(g->t, g->in[0]);
    tl_loss_attrs a = *(const tl_loss_attrs *)g->attrs;
    if (tl_failed(g->t))
        return;
    a.classes = s.dim[s.ndim - 1];
    if (!tl_is_none(g->dy[1]))
        g->dx[0] = tl_apply1(TL_AT(g->t), &tl_op_nll_grad, &a,
                             (tl_tensor[]){g->dy[1], g->in[1], g->in[2]}, 3);
}

const tl_op tl_op_nll = {LOSS(nll), .attr = nll_schema, .attr_size = sizeof(tl_loss_attrs),
                         .saves_in = 6, .traits = TL_MUTATES};

/* ---- nll_grad(dy, targets, count?) -> dlogp (targets..., classes), in dy's dtype ---- */

static const tl_attr nll_grad_schema[] = {REDUCTION, TL_FIELD(tl_loss, classes, I64), {0}};

static tl_status nll_grad_shape(tl_call *c)
{
    const int64_t classes = ((const tl_loss_attrs *)c->attrs)->classes;
    tl_array z = *c->in[1];
    if (z.ndim >= TL_MAX_DIMS || classes < 0)
        return tl_call_fail(c, TL_ESHAPE, "%lld classes for targets of %d dims", (long long)classes,
                            z.ndim);
    z.dim[z.ndim++] = classes;
    z.dtype = c->in[0]->dtype;
    TL_TRY(check(c, &z, c->in[1], c->in[2]));
    if (tl_array_count(c->in[0]) != 1 || z.dtype != tl_dtype_compute(z.dtype))
        return tl_call_fail(c, TL_ESHAPE, "dy must be one element of a compute type");
    c->out[0] = z;
    return TL_OK;
}

static tl_status nll_grad_forward(tl_call *c)
{
    tl_clear(&c->out[0]);
    return grad_run(c, 1, nll_rows, false);
}

static void nll_grad_vjp(tl_vjp *g) { g->dx[0] = dy_gradient(g, &tl_op_nll_grad); }

static void nll_grad_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    const tl_loss_attrs *a = c->attrs;
    const bool counts = a->reduction == TL_MEAN && c->in[2] == NULL;
    out[0] = counts || in[0] != TL_FREE || in[2] != TL_FREE || in[1] < 0 ? TL_MIXED : in[1];
}

const tl_op tl_op_nll_grad = {TL_NAMED(nll_grad, 3, 1), .optional = TL_BIT(2),
                              .shape = nll_grad_shape,  .forward = nll_grad_forward,
                              .attr = nll_grad_schema,  .attr_size = sizeof(tl_loss_attrs),
                              .vjp = nll_grad_vjp,      .saves_in = 7,
                              .nodiff_in = TL_BIT(2),   .batch = nll_grad_batch};
