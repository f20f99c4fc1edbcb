/* reveal_rows.c: probes of softmax, norms, losses and sums of squares: NUMERICS 6 and 12.2. What is
 * summed there is seldom free to be a mask: those sums are shown by the lanes of the row kernels,
 * which they share. */
#include <math.h>

#include "ops/list.h"
#include "ops/ops.h"
#include "tensor/isa.h"
#include "tests/cases/cases.h"
#include "tests/support/reveal_probes.h"

/* The lanes of the level's row kernels, on the terms widened. */
static double kernel_lanes(reveal_run *r, int64_t n, const void *x)
{
    double wide[2048];
    float narrow[2048];
    for (int64_t i = 0; i < n; i++) {
        wide[i] = reveal_term(r, x, i);
        narrow[i] = (float)wide[i];
    }
    return r->dtype == TL_F64 ? tl_isa_now()->row->lanes64(n, wide)
                              : (double)tl_isa_now()->row->lanes32(n, narrow);
}

static double kernel_lanes_f64(reveal_run *r, int64_t n, const void *x)
{
    double wide[2048];
    for (int64_t i = 0; i < n; i++)
        wide[i] = reveal_term(r, x, i);
    return tl_isa_now()->row->lanes64(n, wide);
}

/* dx = y * (dy - d), d the sum of dy * y: one more element has y = 1, dy = 0. */
static double softmax_grad(reveal_run *r, int64_t n, const void *x)
{
    tl_tensor dy = reveal_laid(r, TL_DIMS(2, n + 1), 0, n, x, n + 1, 1),
              y = reveal_full(r, TL_DIMS(2, n + 1), 1);
    return -reveal_element(r,
                           tl_apply1(TL_AT(r->tape), &tl_op_softmax_grad, NULL,
                                     (tl_tensor[]){dy, y}, 2),
                           2 * n + 1);
}

/* dx = dy - exp(y) * d: y = 0. */
static double log_softmax_grad(reveal_run *r, int64_t n, const void *x)
{
    tl_tensor dy = reveal_laid(r, TL_DIMS(2, n + 1), 0, n, x, n + 1, 1),
              y = reveal_full(r, TL_DIMS(2, n + 1), 0);
    return -reveal_element(r,
                           tl_apply1(TL_AT(r->tape), &tl_op_log_softmax_grad, NULL,
                                     (tl_tensor[]){dy, y}, 2),
                           2 * n + 1);
}

static tl_tensor stat(reveal_run *r, int64_t rows, double value)
{
    tl_dtype c = tl_dtype_compute(r->dtype);
    return tl_fill(r->tape, c, TL_DIMS(rows, 1), value);
}

/* dx or dgamma of rms_norm_grad with rstd = 1; acc may be TL_NONE. */
static tl_tensor rms_grad(reveal_run *r, tl_tensor dy, tl_tensor x, tl_tensor gamma, tl_tensor acc,
                          bool dx)
{
    const tl_op *op = &tl_op_rms_norm_grad;
    case_attrs a = {.bytes = {0}};
    tl_tensor out[2];
    tl_case_attr(op, &a, "k", 1);
    tl_case_attr(op, &a, "want_dx", dx);
    tl_case_attr(op, &a, "want_dgamma", !dx);
    tl_tensor rstd = stat(r, tl_shape_of(r->tape, x).dim[0], 1);
    tl_apply(TL_AT(r->tape), op, &a, (tl_tensor[]){dy, x, gamma, rstd, acc}, 5, out);
    return out[dx];
}

/* dx = rstd * (g - h * m), m the mean of g * h: x = 1, and one more element with dy = 0. */
static double rms_dx(reveal_run *r, int64_t n, const void *x)
{
    tl_tensor dy = reveal_laid(r, TL_DIMS(2, n + 1), 0, n, x, n + 1, 1);
    tl_tensor dx = rms_grad(r, dy, reveal_full(r, TL_DIMS(2, n + 1), 1), TL_NONE, TL_NONE, true);
    return -reveal_element(r, dx, 2 * n + 1) * (double)(n + 1);
}

/* Term 0 is what the accumulator holds. */
static double rms_dgamma(reveal_run *r, int64_t n, const void *x)
{
    double start[3] = {0, reveal_term(r, x, 0), 0};
    tl_tensor dy = reveal_laid(r, TL_DIMS(n - 1, 3), 1, n - 1, reveal_from(r, x, 1), 1, 3);
    tl_tensor acc = tl_data(r->tape, start, TL_F64, TL_DIMS(3));
    return reveal_element(r,
                          rms_grad(r, dy, reveal_full(r, TL_DIMS(n - 1, 3), 1),
                                   reveal_full(r, TL_DIMS(3), 1), acc, false),
                          1);
}

static double layer_mean(reveal_run *r, int64_t n, const void *x)
{
    tl_tensor mean, rstd;
    tl_layer_norm_stats(r->tape, reveal_laid(r, TL_DIMS(2, n), 1, n, x, n, 1), TL_NONE, TL_NONE,
                        1e-5, &mean, &rstd);
    return reveal_element(r, mean, 1) * (double)n;
}

static tl_tensor layer_grad(reveal_run *r, tl_tensor dy, tl_tensor x, tl_tensor gamma,
                            tl_tensor acc, bool dx)
{
    const tl_op *op = &tl_op_layer_norm_grad;
    int64_t rows = tl_shape_of(r->tape, x).dim[0];
    case_attrs a = {.bytes = {0}};
    tl_tensor out[2];
    tl_case_attr(op, &a, "k", 1);
    tl_case_attr(op, &a, "want_dx", dx);
    tl_case_attr(op, &a, "want_dgamma", !dx);
    tl_apply(TL_AT(r->tape), op, &a,
             (tl_tensor[]){dy, x, gamma, stat(r, rows, 0), stat(r, rows, 1), acc}, 6, out);
    return out[dx];
}

/* dx = (g - a) - h * b with a and b the means of g and of g * h: with mean 0 and rstd 1, h is x.
 * Two more elements have dy = 0, and h = 0, where dx = -a, and h = 1, where dx = -a - b. */
static tl_tensor layer_dx(reveal_run *r, int64_t n, const void *x)
{
    double zero = 0;
    tl_tensor dy = reveal_laid(r, TL_DIMS(1, n + 2), 0, n, x, 0, 1);
    tl_tensor h = reveal_laid(r, TL_DIMS(1, n + 2), 1, 1, &zero, n, 1);
    return layer_grad(r, dy, h, TL_NONE, TL_NONE, true);
}

static double layer_a(reveal_run *r, int64_t n, const void *x)
{
    return -reveal_element(r, layer_dx(r, n, x), n) * (double)(n + 2);
}

static double layer_b(reveal_run *r, int64_t n, const void *x)
{
    tl_tensor dx = layer_dx(r, n, x);
    return (reveal_element(r, dx, n) - reveal_element(r, dx, n + 1)) * (double)(n + 2);
}

static double layer_dgamma(reveal_run *r, int64_t n, const void *x)
{
    double start[3] = {0, reveal_term(r, x, 0), 0};
    tl_tensor dy = reveal_laid(r, TL_DIMS(n - 1, 3), 1, n - 1, reveal_from(r, x, 1), 1, 3);
    tl_tensor acc = tl_data(r->tape, start, TL_F64, TL_DIMS(3));
    return reveal_element(r,
                          layer_grad(r, dy, reveal_full(r, TL_DIMS(n - 1, 3), 1),
                                     reveal_full(r, TL_DIMS(3), 1), acc, false),
                          1);
}

typedef tl_tensor norm_fn(reveal_run *r, tl_tensor x, tl_tensor w);

/* The gradient of a norm's weight, its rows in two micro-batches. A row of x is (1, -1) with mean 0
 * and mean square 1, so that it is normalized already. */
static double weight_grad(reveal_run *r, int64_t n, const void *x, norm_fn *norm)
{
    tl_tensor w = reveal_leaf(r, reveal_full(r, TL_DIMS(2), 1));
    for (int part = 0; part < 2; part++) {
        tl_tensor one = reveal_full(r, TL_DIMS(n / 2, 1), 1);
        tl_tensor v = tl_concat(r->tape, ((tl_tensor[]){one, tl_neg(r->tape, one)}), 2, 1);
        tl_tensor dy = reveal_laid(r, TL_DIMS(n / 2, 2), 0, n / 2,
                                   reveal_from(r, x, part * (n / 2)), 0, 2);
        tl_backward(r->tape, norm(r, v, w), .cotangent = dy);
    }
    return reveal_element(r, tl_grad(r->tape, w), 0);
}

static tl_tensor by_rms(reveal_run *r, tl_tensor x, tl_tensor w)
{
    return tl_rms_norm(r->tape, x, w, 0);
}
static tl_tensor by_add_rms(reveal_run *r, tl_tensor x, tl_tensor w)
{
    return tl_add_rms_norm(r->tape, x, tl_scale(r->tape, x, 0), w, 0, NULL, NULL);
}
static tl_tensor by_gamma(reveal_run *r, tl_tensor x, tl_tensor w)
{
    return tl_layer_norm(r->tape, x, w, TL_NONE, 0);
}
static tl_tensor by_beta(reveal_run *r, tl_tensor x, tl_tensor w)
{
    return tl_layer_norm(r->tape, x, TL_NONE, w, 0);
}

static double rms_weight(reveal_run *r, int64_t n, const void *x)
{
    return weight_grad(r, n, x, by_rms);
}
static double add_rms_weight(reveal_run *r, int64_t n, const void *x)
{
    return weight_grad(r, n, x, by_add_rms);
}
static double layer_gamma(reveal_run *r, int64_t n, const void *x)
{
    return weight_grad(r, n, x, by_gamma);
}
static double layer_beta(reveal_run *r, int64_t n, const void *x)
{
    return weight_grad(r, n, x, by_beta);
}

#define ROW stated_lanes_of_all
#define FOLD stated_fold_of_all
#define IN_TWO .times = 2, .backward = true

const reveal_probe reveal_probes_rows[] = {
    {.op = "softmax", "lanes of the row kernels", kernel_lanes, ROW, .hidden = "exponentials"},
    {.op = "softmax_grad", "dy * y", softmax_grad, ROW},
    {.op = "log_softmax", "lanes of the row kernels", kernel_lanes, ROW, .hidden = "exponentials"},
    {.op = "log_softmax_grad", "dy", log_softmax_grad, ROW},
    {.op = "cross_entropy",
     "lanes of the row kernels",
     kernel_lanes,
     ROW,
     .hidden = "exponentials; with smoothing, losses"},
    {.op = "cross_entropy_grad",
     "lanes of the row kernels",
     kernel_lanes,
     ROW,
     .hidden = "exponentials"},
    {.op = "rms_norm", "lanes of the row kernels", kernel_lanes, ROW, .hidden = "squares"},
    {.op = "rms_norm", "gradient of the weight in two micro-batches", rms_weight, FOLD, IN_TWO},
    {.op = "rms_norm_grad", "dy * gamma * h", rms_dx, ROW},
    {.op = "rms_norm_grad", "dgamma, continued", rms_dgamma, FOLD},
    {.op = "add_rms_norm", "lanes of the row kernels", kernel_lanes, ROW, .hidden = "squares"},
    {.op = "add_rms_norm",
     "gradient of the weight in two micro-batches",
     add_rms_weight,
     FOLD,
     IN_TWO},
    {.op = "layer_norm", "the mean", layer_mean, ROW},
    {.op = "layer_norm", "lanes of the row kernels", kernel_lanes, ROW, .hidden = "squares"},
    {.op = "layer_norm", "gradient of gamma in two micro-batches", layer_gamma, FOLD, IN_TWO},
    {.op = "layer_norm", "gradient of beta in two micro-batches", layer_beta, FOLD, IN_TWO},
    {.op = "layer_norm_grad", "g", layer_a, ROW, .small = true},
    {.op = "layer_norm_grad", "g * h", layer_b, ROW, .small = true},
    {.op = "layer_norm_grad", "dgamma, continued", layer_dgamma, FOLD},
    {.op = "square_sum",
     "lanes of the row kernels, in f64",
     kernel_lanes_f64,
     ROW,
     .hidden = "squares"},
};
const int reveal_probes_rows_count = sizeof reveal_probes_rows / sizeof reveal_probes_rows[0];
