/* nll: the negative log-likelihood of targets, from log-probabilities
 * Shape:  logp (..., classes), targets (...) -> 0-d
 * Dtype:  logp f16 bf16 f32 f64; targets i64; loss the compute type; total f64
 * Bits:   -logp at the target, rows folded in f64, continuing `total`; one division; one rounding
 *         (NUMERICS 6.10)
 * VJP:    nll_grad: -dy/count at the target, 0 elsewhere.   Saves targets, count.
 * Errors: TL_ESHAPE TL_EDTYPE TL_EINDEX (a target outside the classes) TL_EDOMAIN (reduction)
 */
#include "ops/loss.h"

static const tl_attr nll_schema[] = {{"reduction", TL_ATTR_I64, offsetof(tl_loss_attrs, reduction)},
                                     {"ignore_index", TL_ATTR_I64,
                                      offsetof(tl_loss_attrs, ignore_index)},
                                     {"ignore", TL_ATTR_BOOL, offsetof(tl_loss_attrs, ignore)},
                                     {0}};

static tl_status nll_shape(tl_call *c)
{
    TL_TRY(tl_loss_check(c, c->attrs, "log-probabilities", c->in[0], c->in[1], c->in[2]));
    return tl_loss_outputs(c, c->in[3], c->in[0]->dtype);
}

static tl_status nll_forward(tl_call *c)
{
    const tl_loss_attrs *a = c->attrs;
    const tl_array *logp = c->in[0], *targets = c->in[1];
    int64_t rows = tl_array_count(targets), n = logp->dim[logp->ndim - 1], counted;
    TL_TRY(tl_loss_targets(c, a, targets, n, &counted));
    tl_storage *st = tl_scratch(c, (size_t)rows * 8, false);
    if (st == NULL)
        return TL_ENOMEM;
    double *loss = st->data;
    for (int64_t r = 0; r < rows; r++) {
        int64_t t = *(const int64_t *)tl_array_at(targets, r);
        union {
            float f;
            double d;
        } v = {.d = 0};
        if (!tl_loss_ignored(a, t))
            tl_isa_now()->convert->widen(1, logp->dtype, tl_array_at(logp, r * n + t), 1, &v);
        loss[r] = logp->dtype == TL_F64 ? -v.d : -(double)v.f;
    }
    tl_loss_total(c, a, loss, targets, counted, c->in[2], c->in[3]);
    tl_storage_release(st);
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
                         .nodiff_out = 1};

tl_tensor tl_nll_at(tl_at at, tl_tensor logp, tl_tensor targets, tl_cross_entropy_options o)
{
    tl_loss_attrs a = {o.reduction, o.ignore_index, o.ignore, 0};
    tl_tensor out[2];
    if (o.smoothing != 0) {
        tl_tape_fail(at, TL_EDOMAIN, "nll: label smoothing is %g; it belongs to tl_cross_entropy",
                     o.smoothing);
        return TL_NONE;
    }
    tl_apply(at, &tl_op_nll, &a, (tl_tensor[]){logp, targets, o.count, o.total}, 4, out);
    return out[1];
}

/* ---- nll_grad(dy, targets, count?) -> dlogp (targets..., classes), in dy's dtype ---- */

static const tl_attr grad_schema[] = {
    {"reduction", TL_ATTR_I64, offsetof(nll_grad_attrs, loss.reduction)},
    {"ignore_index", TL_ATTR_I64, offsetof(nll_grad_attrs, loss.ignore_index)},
    {"ignore", TL_ATTR_BOOL, offsetof(nll_grad_attrs, loss.ignore)},
    {"classes", TL_ATTR_I64, offsetof(nll_grad_attrs, classes)},
    {0}};

static tl_status grad_shape(tl_call *c)
{
    const nll_grad_attrs *a = c->attrs;
    tl_array z = *c->in[1];
    if (z.ndim >= TL_MAX_DIMS || a->classes < 0)
        return tl_call_fail(c, TL_ESHAPE, "%lld classes for targets of %d dims",
                            (long long)a->classes, z.ndim);
    z.dim[z.ndim++] = a->classes;
    z.dtype = c->in[0]->dtype;
    TL_TRY(tl_loss_check(c, &a->loss, "log-probabilities", &z, c->in[1], c->in[2]));
    if (tl_array_count(c->in[0]) != 1 || z.dtype != tl_dtype_compute(z.dtype))
        return tl_call_fail(c, TL_ESHAPE, "dy must be one element of a compute type");
    c->out[0] = z;
    return TL_OK;
}

static tl_status grad_forward(tl_call *c)
{
    const nll_grad_attrs *a = c->attrs;
    const tl_array *targets = c->in[1];
    tl_array *y = &c->out[0];
    int64_t rows = tl_array_count(targets), counted;
    TL_TRY(tl_loss_targets(c, &a->loss, targets, a->classes, &counted));
    double dy = y->dtype == TL_F64 ? *(double *)c->in[0]->data : (double)*(float *)c->in[0]->data;
    double count = c->in[2] != NULL ? *(double *)c->in[2]->data : (double)counted;
    double w = a->loss.reduction == TL_MEAN ? dy / count : dy;
    if (rows * a->classes > 0)
        memset(y->data, 0, (size_t)(rows * a->classes) * tl_dtype_size(y->dtype));
    for (int64_t r = 0; r < rows; r++) {
        int64_t t = *(const int64_t *)tl_array_at(targets, r), at = r * a->classes + t;
        if (tl_loss_ignored(&a->loss, t))
            continue;
        if (y->dtype == TL_F64)
            ((double *)y->data)[at] = -w;
        else
            ((float *)y->data)[at] = -(float)w;
    }
    return TL_OK;
}

/* Linear in dy: with cotangent u, d_dy = sum(u * nll_grad(1)). */
static void grad_vjp(tl_vjp *g)
{
    tl_tape *t = g->t;
    tl_tensor one = tl_fill(t, tl_dtype_of(t, g->in[0]), tl_shape_of(t, g->in[0]), 1);
    tl_tensor k = tl_apply1(TL_AT(t), &tl_op_nll_grad, g->attrs,
                            (tl_tensor[]){one, g->in[1], g->in[2]}, 3);
    g->dx[0] = tl_reshape(t, tl_sum(t, tl_mul(t, g->dy[0], k), TL_ALL, false),
                          tl_shape_of(t, g->in[0]));
}

const tl_op tl_op_nll_grad = {.name = "nll_grad",
                              .n_in = 3,
                              .n_out = 1,
                              .optional = TL_BIT(2),
                              .shape = grad_shape,
                              .forward = grad_forward,
                              .attr = grad_schema,
                              .attr_size = sizeof(nll_grad_attrs),
                              .vjp = grad_vjp,
                              .saves_in = 7};
