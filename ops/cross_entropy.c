/* cross_entropy: sum over rows of log(sum exp z) - z_target, divided by a count or not; with label
 * smoothing e the row's loss is (1-e) of that and e of its mean over all classes. And nll, further
 * down
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

/* Values (..., classes) of that name, targets (...) and a count (or NULL) fit together. */
static tl_status check(tl_call *c, const tl_loss_attrs *a, const char *name, const tl_array *z,
                       const tl_array *targets, const tl_array *count)
{
    tl_array lead = *z;
    char sz[TL_SHAPE_TEXT], st[TL_SHAPE_TEXT];
    if (a->reduction != TL_MEAN && a->reduction != TL_SUM)
        return tl_call_fail(c, TL_EDOMAIN, "reduction %lld; say TL_MEAN, TL_SUM or TL_EACH",
                            (long long)a->reduction);
    if (!(a->smoothing >= 0 && a->smoothing <= 1))
        return tl_call_fail(c, TL_EDOMAIN, "label smoothing is %g; 0 to 1 is possible",
                            a->smoothing);
    if (!tl_dtype_is_float(z->dtype) || targets->dtype != TL_I64)
        return tl_call_fail(c, TL_EDTYPE, "%s %s, targets %s; a float and I64 are needed", name,
                            tl_dtype_name(z->dtype), tl_dtype_name(targets->dtype));
    lead.ndim--;
    if (z->ndim < 1 || !tl_array_same_shape(&lead, targets))
        return tl_call_fail(c, TL_ESHAPE, "%s %s for targets %s", name, tl_array_shape_text(sz, z),
                            tl_array_shape_text(st, targets));
    if (count != NULL && (count->dtype != TL_F64 || tl_array_count(count) != 1))
        return tl_call_fail(c, TL_EDTYPE, "the count is %s %s; one F64 is needed",
                            tl_array_shape_text(sz, count), tl_dtype_name(count->dtype));
    return TL_OK;
}

/* out[0] is the running total (continued, if given), out[1] the loss. */
static tl_status outputs(tl_call *c, const tl_array *total, tl_dtype dtype)
{
    tl_shape none = TL_SCALAR;
    c->out[0] = total != NULL ? *total : tl_array_make(TL_F64, &none, NULL);
    if (c->out[0].dtype != TL_F64 || c->out[0].ndim != 0)
        return tl_call_fail(c, TL_EDTYPE, "the total must be a 0-d F64");
    c->out[1] = tl_array_make(tl_dtype_compute(dtype), &none, NULL);
    return TL_OK;
}

static int64_t target_of(const tl_array *targets, int64_t row)
{
    return *(const int64_t *)tl_array_at(targets, row);
}

/* Every target is a class or ignored; *counted is how many are not. */
static tl_status check_targets(tl_call *c, const tl_loss_attrs *a, const tl_array *targets,
                               int64_t classes, int64_t *counted)
{
    int64_t rows = tl_array_count(targets);
    *counted = 0;
    for (int64_t r = 0; r < rows; r++) {
        int64_t t = target_of(targets, r);
        if (ignored(a, t))
            continue;
        if (t < 0 || t >= classes)
            return tl_call_fail(c, TL_EINDEX, "target %lld in row %lld; there are %lld classes",
                                (long long)t, (long long)r, (long long)classes);
        ++*counted;
    }
    return TL_OK;
}

/* Adds the rows' losses in order to the total, and divides by a count (NULL: counted) for a mean.
 */
static void total_of(tl_call *c, const tl_loss_attrs *a, const double *loss,
                     const tl_array *targets, int64_t counted, const tl_array *count,
                     const tl_array *total)
{
    int64_t rows = tl_array_count(targets);
    double sum = total != NULL ? *(double *)total->data : 0;
    for (int64_t r = 0; r < rows; r++)
        if (!ignored(a, target_of(targets, r)))
            sum += loss[r];
    sum += 0;
    *(double *)c->out[0].data = sum;
    double n = count != NULL ? *(double *)count->data : (double)counted,
           y = a->reduction == TL_MEAN ? sum / n : sum;
    tl_isa_now()->convert->cast(1, TL_F64, &y, c->out[1].dtype, c->out[1].data);
}

/* ---- cross_entropy ---- */

static const tl_attr loss_schema[] = {
    {"reduction", TL_ATTR_I64, offsetof(tl_loss_attrs, reduction)},
    {"ignore_index", TL_ATTR_I64, offsetof(tl_loss_attrs, ignore_index)},
    {"ignore", TL_ATTR_BOOL, offsetof(tl_loss_attrs, ignore)},
    {"smoothing", TL_ATTR_F64, offsetof(tl_loss_attrs, smoothing)},
    {0}};

static tl_status cross_entropy_shape(tl_call *c)
{
    TL_TRY(check(c, c->attrs, "logits", c->in[0], c->in[1], c->in[2]));
    return outputs(c, c->in[3], c->in[0]->dtype);
}

typedef struct {
    const tl_loss_attrs *a;
    const tl_array *z, *targets;
    int64_t n;
    double *loss; /* of each row; or the gradient, */
    void *dz;
    double weight; /* of each row */
} job;

static void loss_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const job *j = ctx;
    const tl_row_table *k = tl_isa_now()->row;
    double *loss = j->loss;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        int64_t t = target_of(j->targets, r);
        if (ignored(j->a, t))
            loss[r] = 0;
        else if (j->a->smoothing != 0)
            loss[r] = j->z->dtype == TL_F64
                          ? k->smooth_entropy64(j->n, (const double *)j->z->data + r * j->n, t,
                                                j->a->smoothing)
                          : (double)k->smooth_entropy32(j->n, (const float *)j->z->data + r * j->n,
                                                        t, j->a->smoothing);
        else if (j->z->dtype == TL_F64)
            loss[r] = k->cross_entropy64(j->n, (const double *)j->z->data + r * j->n, t);
        else
            loss[r] = (double)k->cross_entropy32(j->n, (const float *)j->z->data + r * j->n, t);
    }
}

static tl_status cross_entropy_forward(tl_call *c)
{
    job j = {.a = c->attrs,
             .z = c->in[0],
             .targets = c->in[1],
             .n = c->in[0]->dim[c->in[0]->ndim - 1]};
    int64_t rows = tl_array_count(c->in[1]), counted;
    TL_TRY(check_targets(c, j.a, j.targets, j.n, &counted));
    j.loss = tl_scratch(c, (size_t)rows * 8, false);
    if (j.loss == NULL)
        return TL_ENOMEM;
    tl_parallel_for(rows, 1 + 4096 / (j.n + 1), loss_rows, &j);
    total_of(c, j.a, j.loss, j.targets, counted, c->in[2], c->in[3]);
    return TL_OK;
}

static void cross_entropy_vjp(tl_vjp *g)
{
    if (!tl_is_none(g->dy[1]))
        g->dx[0] = tl_apply1(TL_AT(g->t), &tl_op_cross_entropy_grad, g->attrs,
                             (tl_tensor[]){g->dy[1], g->in[0], g->in[1], g->in[2]}, 4);
}

/* Samples are rows of values `at` and of the targets after them; the axis, or TL_MIXED where a mean
 * counts them. */
static tl_batch loss_axis(const tl_call *c, const tl_batch *in, int at, const tl_loss_attrs *a)
{
    const tl_batch two[] = {in[at], in[at + 1]};
    const tl_call rows = {.n_in = 2, .in = c->in + at};
    const tl_batch axis = tl_batch_meet(&rows, two, TL_ALL_INPUTS, TL_FROM_FRONT);
    const bool counts = a->reduction == TL_MEAN && c->in[at + 2] == NULL;
    return counts || in[at + 2] != TL_FREE ? TL_MIXED
           : axis == TL_FREE               ? TL_FREE
                                           : tl_batch_outside(axis, c->in[at]->ndim, 1);
}

/* A loss, and its running total, which may be of samples before. */
static void loss_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    const tl_batch a = loss_axis(c, in, 0, c->attrs);
    out[0] = out[1] = a >= 0 && (in[3] == TL_FREE || in[3] == TL_TOTAL) ? TL_TOTAL : TL_MIXED;
}

const tl_op tl_op_cross_entropy = {.name = "cross_entropy",
                                   .n_in = 4,
                                   .n_out = 2,
                                   .optional = TL_BIT(2) | TL_BIT(3),
                                   .traits = TL_MUTATES | TL_HEAVY | TL_WIDENED,
                                   .mutates = 3,
                                   .shape = cross_entropy_shape,
                                   .forward = cross_entropy_forward,
                                   .attr = loss_schema,
                                   .attr_size = sizeof(tl_loss_attrs),
                                   .vjp = cross_entropy_vjp,
                                   .saves_in = 7,
                                   .nodiff_out = 1,
                                   .batch = loss_batch};

/* ---- cross_entropy_grad(dy, logits, targets, count?) -> dz ---- */

static tl_status grad_shape(tl_call *c)
{
    TL_TRY(check(c, c->attrs, "logits", c->in[1], c->in[2], c->in[3]));
    if (tl_array_count(c->in[0]) != 1 || c->in[0]->dtype != tl_dtype_compute(c->in[1]->dtype))
        return tl_call_fail(c, TL_ESHAPE, "dy must be one element of the compute type");
    c->out[0] = *c->in[1];
    return TL_OK;
}

static void grad_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const job *j = ctx;
    const tl_row_table *k = tl_isa_now()->row;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        int64_t t = target_of(j->targets, r), at = r * j->n;
        if (ignored(j->a, t))
            memset((char *)j->dz + (size_t)at * tl_dtype_size(j->z->dtype), 0,
                   (size_t)j->n * tl_dtype_size(j->z->dtype));
        else if (j->a->smoothing != 0 && j->z->dtype == TL_F64)
            k->smooth_entropy_grad64(j->n, (const double *)j->z->data + at, t, j->a->smoothing,
                                     j->weight, (double *)j->dz + at);
        else if (j->a->smoothing != 0)
            k->smooth_entropy_grad32(j->n, (const float *)j->z->data + at, t, j->a->smoothing,
                                     (float)j->weight, (float *)j->dz + at);
        else if (j->z->dtype == TL_F64)
            k->cross_entropy_grad64(j->n, (const double *)j->z->data + at, t, j->weight,
                                    (double *)j->dz + at);
        else
            k->cross_entropy_grad32(j->n, (const float *)j->z->data + at, t, (float)j->weight,
                                    (float *)j->dz + at);
    }
}

static tl_status grad_forward(tl_call *c)
{
    job j = {.a = c->attrs,
             .z = c->in[1],
             .targets = c->in[2],
             .n = c->in[1]->dim[c->in[1]->ndim - 1],
             .dz = c->out[0].data};
    int64_t rows = tl_array_count(c->in[2]), counted;
    TL_TRY(check_targets(c, j.a, j.targets, j.n, &counted));
    double dy = c->in[0]->dtype == TL_F64 ? *(double *)c->in[0]->data
                                          : (double)*(float *)c->in[0]->data;
    double count = c->in[3] != NULL ? *(double *)c->in[3]->data : (double)counted;
    j.weight = j.a->reduction == TL_MEAN ? dy / count : dy;
    tl_parallel_for(rows, 1 + 4096 / (j.n + 1), grad_rows, &j);
    return TL_OK;
}

/* With cotangent u: d_dy = sum(u * dz)/dy, written as sum(u * dz at dy = 1);
 * d_z = dz's Jacobian by z = w * p*(u - sum(u*p)) on the rows that count. */
static void grad_vjp(tl_vjp *g)
{
    const tl_loss_attrs *a = g->attrs;
    tl_tape *t = g->t;
    tl_tensor u = g->dy[0], z = g->in[1], targets = g->in[2];
    tl_tensor one = tl_fill(t, tl_dtype_of(t, g->in[0]), tl_shape_of(t, g->in[0]), 1);
    if (g->wants[0]) {
        tl_tensor k = tl_apply1(TL_AT(t), &tl_op_cross_entropy_grad, a,
                                (tl_tensor[]){one, z, targets, g->in[3]}, 4);
        g->dx[0] = tl_reshape(t, tl_sum(t, tl_mul(t, u, k), TL_ALL, false),
                              tl_shape_of(t, g->in[0]));
    }
    if (!g->wants[1])
        return;
    tl_shape s = tl_shape_of(t, targets);
    s.dim[s.ndim++] = 1;
    tl_tensor p = tl_softmax(t, z, -1), w = g->in[0];
    if (a->reduction == TL_MEAN) {
        tl_tensor never = tl_integer(TL_AT(t), a->ignore_index), n = g->in[3];
        if (tl_is_none(n)) {
            tl_tensor ones = tl_fill(t, TL_F64, tl_shape_of(t, targets), 1),
                      zero = tl_scalar(t, TL_F64, 0);
            n = tl_sum(t, a->ignore ? tl_where(t, tl_ne(t, targets, never), ones, zero) : ones,
                       TL_ALL, false);
        }
        w = tl_div(t, w, tl_cast(t, n, tl_dtype_of(t, w)));
    }
    tl_tensor d = tl_mul(t, p, tl_sub(t, u, tl_sum_rows_last(t, tl_mul(t, u, p))));
    if (a->ignore) {
        tl_tensor never = tl_integer(TL_AT(t), a->ignore_index);
        d = tl_where(t, tl_ne(t, tl_reshape(t, targets, s), never), d,
                     tl_scalar(t, tl_dtype_of(t, d), 0));
    }
    g->dx[1] = tl_mul(t, d, w);
}

static void loss_grad_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    const tl_batch a = loss_axis(c, in, 1, c->attrs);
    out[0] = in[0] == TL_FREE ? a : TL_MIXED;
}

const tl_op tl_op_cross_entropy_grad = {.name = "cross_entropy_grad",
                                        .n_in = 4,
                                        .n_out = 1,
                                        .optional = TL_BIT(3),
                                        .traits = TL_HEAVY | TL_WIDENED,
                                        .shape = grad_shape,
                                        .forward = grad_forward,
                                        .attr = loss_schema,
                                        .attr_size = sizeof(tl_loss_attrs),
                                        .vjp = grad_vjp,
                                        .saves_in = 15,
                                        .batch = loss_grad_batch};

/* ---- nll: the negative log-likelihood of targets, from log-probabilities
 * Shape:  logp (..., classes), targets (...) -> 0-d
 * Dtype:  logp f16 bf16 f32 f64; targets i64; loss the compute type; total f64
 * Bits:   -logp at the target, rows folded in f64, continuing `total`; one division; one rounding
 *         (NUMERICS 6.10)
 * VJP:    nll_grad: -dy/count at the target, 0 elsewhere.   Saves targets, count.
 * Errors: TL_ESHAPE TL_EDTYPE TL_EINDEX (a target outside the classes) TL_EDOMAIN (reduction)
 */

static const tl_attr nll_schema[] = {{"reduction", TL_ATTR_I64, offsetof(tl_loss_attrs, reduction)},
                                     {"ignore_index", TL_ATTR_I64,
                                      offsetof(tl_loss_attrs, ignore_index)},
                                     {"ignore", TL_ATTR_BOOL, offsetof(tl_loss_attrs, ignore)},
                                     {0}};

static tl_status nll_shape(tl_call *c)
{
    TL_TRY(check(c, c->attrs, "log-probabilities", c->in[0], c->in[1], c->in[2]));
    return outputs(c, c->in[3], c->in[0]->dtype);
}

static tl_status nll_forward(tl_call *c)
{
    const tl_loss_attrs *a = c->attrs;
    const tl_array *logp = c->in[0], *targets = c->in[1];
    int64_t rows = tl_array_count(targets), n = logp->dim[logp->ndim - 1], counted;
    TL_TRY(check_targets(c, a, targets, n, &counted));
    double *loss = tl_scratch(c, (size_t)rows * 8, false);
    if (loss == NULL)
        return TL_ENOMEM;
    for (int64_t r = 0; r < rows; r++) {
        int64_t t = target_of(targets, r);
        union {
            float f;
            double d;
        } v = {.d = 0};
        if (!ignored(a, t))
            tl_isa_now()->convert->widen(1, logp->dtype, tl_array_at(logp, r * n + t), 1, &v);
        loss[r] = logp->dtype == TL_F64 ? -v.d : -(double)v.f;
    }
    total_of(c, a, loss, targets, counted, c->in[2], c->in[3]);
    return TL_OK;
}

typedef struct {
    tl_loss_attrs loss;
    int64_t classes;
} nll_grad_attrs;

static void nll_vjp(tl_vjp *g)
{
    tl_shape s = tl_shape_of(g->t, g->in[0]);
    nll_grad_attrs a = {*(const tl_loss_attrs *)g->attrs, s.dim[s.ndim - 1]};
    if (!tl_is_none(g->dy[1]))
        g->dx[0] = tl_apply1(TL_AT(g->t), &tl_op_nll_grad, &a,
                             (tl_tensor[]){g->dy[1], g->in[1], g->in[2]}, 3);
}

const tl_op tl_op_nll = {.name = "nll",
                         .n_in = 4,
                         .n_out = 2,
                         .optional = TL_BIT(2) | TL_BIT(3),
                         .traits = TL_MUTATES,
                         .mutates = 3,
                         .shape = nll_shape,
                         .forward = nll_forward,
                         .attr = nll_schema,
                         .attr_size = sizeof(tl_loss_attrs),
                         .vjp = nll_vjp,
                         .saves_in = 6,
                         .nodiff_out = 1,
                         .batch = loss_batch};

/* ---- nll_grad(dy, targets, count?) -> dlogp (targets..., classes), in dy's dtype ---- */

static const tl_attr nll_grad_schema[] = {
    {"reduction", TL_ATTR_I64, offsetof(nll_grad_attrs, loss.reduction)},
    {"ignore_index", TL_ATTR_I64, offsetof(nll_grad_attrs, loss.ignore_index)},
    {"ignore", TL_ATTR_BOOL, offsetof(nll_grad_attrs, loss.ignore)},
    {"classes", TL_ATTR_I64, offsetof(nll_grad_attrs, classes)},
    {0}};

static tl_status nll_grad_shape(tl_call *c)
{
    const nll_grad_attrs *a = c->attrs;
    tl_array z = *c->in[1];
    if (z.ndim >= TL_MAX_DIMS || a->classes < 0)
        return tl_call_fail(c, TL_ESHAPE, "%lld classes for targets of %d dims",
                            (long long)a->classes, z.ndim);
    z.dim[z.ndim++] = a->classes;
    z.dtype = c->in[0]->dtype;
    TL_TRY(check(c, &a->loss, "log-probabilities", &z, c->in[1], c->in[2]));
    if (tl_array_count(c->in[0]) != 1 || z.dtype != tl_dtype_compute(z.dtype))
        return tl_call_fail(c, TL_ESHAPE, "dy must be one element of a compute type");
    c->out[0] = z;
    return TL_OK;
}

static tl_status nll_grad_forward(tl_call *c)
{
    const nll_grad_attrs *a = c->attrs;
    const tl_array *targets = c->in[1];
    tl_array *y = &c->out[0];
    int64_t rows = tl_array_count(targets), counted;
    TL_TRY(check_targets(c, &a->loss, targets, a->classes, &counted));
    double dy = y->dtype == TL_F64 ? *(double *)c->in[0]->data : (double)*(float *)c->in[0]->data;
    double count = c->in[2] != NULL ? *(double *)c->in[2]->data : (double)counted;
    double w = a->loss.reduction == TL_MEAN ? dy / count : dy;
    if (rows * a->classes > 0)
        memset(y->data, 0, (size_t)(rows * a->classes) * tl_dtype_size(y->dtype));
    for (int64_t r = 0; r < rows; r++) {
        int64_t t = target_of(targets, r);
        if (ignored(&a->loss, t))
            continue;
        int64_t at = r * a->classes + t;
        if (y->dtype == TL_F64)
            ((double *)y->data)[at] = -w;
        else
            ((float *)y->data)[at] = -(float)w;
    }
    return TL_OK;
}

/* Linear in dy: with cotangent u, d_dy = sum(u * nll_grad(1)). */
static void nll_grad_vjp(tl_vjp *g)
{
    tl_tape *t = g->t;
    tl_tensor one = tl_fill(t, tl_dtype_of(t, g->in[0]), tl_shape_of(t, g->in[0]), 1);
    tl_tensor k = tl_apply1(TL_AT(t), &tl_op_nll_grad, g->attrs,
                            (tl_tensor[]){one, g->in[1], g->in[2]}, 3);
    g->dx[0] = tl_reshape(t, tl_sum(t, tl_mul(t, g->dy[0], k), TL_ALL, false),
                          tl_shape_of(t, g->in[0]));
}

static void nll_grad_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    const tl_loss_attrs *a = &((const nll_grad_attrs *)c->attrs)->loss;
    const bool counts = a->reduction == TL_MEAN && c->in[2] == NULL;
    out[0] = counts || in[0] != TL_FREE || in[2] != TL_FREE || in[1] < 0 ? TL_MIXED : in[1];
}

const tl_op tl_op_nll_grad = {.name = "nll_grad",
                              .n_in = 3,
                              .n_out = 1,
                              .optional = TL_BIT(2),
                              .shape = nll_grad_shape,
                              .forward = nll_grad_forward,
                              .attr = nll_grad_schema,
                              .attr_size = sizeof(nll_grad_attrs),
                              .vjp = nll_grad_vjp,
                              .saves_in = 7,
                              .batch = nll_grad_batch};
