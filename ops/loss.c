/* cross_entropy, nll: the calls with all their options, made of the ops of cross_entropy.c, which
 * has the formulas
 * Shape:  values (..., classes), targets (...) -> 0-d, or the targets' shape for losses of each
 *         row; a view brings another dim of classes to the end
 * Dtype:  values f16 bf16 f32 f64; targets i64; loss the compute type; total f64
 * Bits:   the ops' (NUMERICS 6.5, 6.9, 6.10); class weights and losses of each row are compositions
 *         of log_softmax, nll and gather (6.15)
 * VJP:    those of the ops they are made of
 * Errors: TL_ESHAPE TL_EDTYPE TL_EINDEX (a target outside the classes) TL_EDOMAIN (reduction,
 *         smoothing) TL_EUSAGE (a count or a total for losses of each row)
 */
#include "ops/build.h"

/* z with its classes last. They lie along dim; 0, the default, means the last one. */
static tl_tensor classes_last(tl_at at, const char *name, tl_tensor z, int dim)
{
    tl_shape s = tl_shape_of(at.tape, z), order = {.ndim = s.ndim};
    const int d = dim == 0 ? s.ndim - 1 : tl_dim_of(at, name, z, dim);
    int n = 0;
    if (d < 0 || d == s.ndim - 1)
        return z;
    for (int i = 0; i < s.ndim; i++)
        if (i != d)
            order.dim[n++] = i;
    order.dim[n] = d;
    return tl_permute_at(at, z, order);
}

/* Refuses options that would be ignored. */
static tl_status check_options(tl_at at, const char *name, tl_cross_entropy_options o)
{
    if (o.ignore_index != 0 && !o.ignore)
        return tl_tape_fail(at, TL_EUSAGE, "%s: ignore_index is %lld; .ignore = true is needed too",
                            name, (long long)o.ignore_index);
    if (o.reduction != TL_MEAN && !tl_is_none(o.count))
        return tl_tape_fail(at, TL_EUSAGE,
                            "%s: a count divides a mean (TL_MEAN); the reduction is %d", name,
                            (int)o.reduction);
    return TL_OK;
}

/* Checks for z (..., classes) the options that only the compositions have. */
static tl_status check(tl_at at, const char *name, tl_tensor z, tl_tensor targets,
                       tl_cross_entropy_options o)
{
    tl_shape s = tl_shape_of(at.tape, targets), lead = tl_shape_of(at.tape, z),
             w = tl_is_none(o.weight) ? TL_SCALAR : tl_shape_of(at.tape, o.weight);
    tl_dtype dtype = tl_dtype_of(at.tape, z);
    int64_t n = lead.ndim > 0 ? lead.dim[lead.ndim - 1] : 0;
    if (--lead.ndim < 0)
        return tl_tape_fail(at, TL_ESHAPE, "%s: one number has no classes", name);
    if (!tl_dtype_is_float(dtype))
        return tl_tape_fail(at, TL_EDTYPE, "%s: classes of %s; floats are needed", name,
                            tl_dtype_name(dtype));
    if (!(o.smoothing >= 0 && o.smoothing <= 1))
        return tl_tape_fail(at, TL_EDOMAIN, "%s: label smoothing is %g; 0 to 1 is possible", name,
                            o.smoothing);
    if (!tl_is_none(o.weight) && (w.ndim != 1 || w.dim[0] != n))
        return tl_tape_fail(at, TL_ESHAPE, "%s: weight has shape %s for %lld classes", name,
                            TL_TEXT_OF(&w), (long long)n);
    if (o.reduction == TL_EACH && !tl_is_none(o.total))
        return tl_tape_fail(at, TL_EUSAGE, "%s: losses of each row have no total", name);
    if (!tl_shape_equal(&s, &lead))
        return tl_tape_fail(at, TL_ESHAPE, "%s: targets %s for rows %s", name, TL_TEXT_OF(&s),
                            TL_TEXT_OF(&lead));
    return TL_OK;
}

/* The mask of ignored rows; TL_NONE without .ignore. */
static tl_tensor ignored_rows(tl_at at, tl_tensor targets, tl_cross_entropy_options o)
{
    return o.ignore ? tl_eq_at(at, targets, tl_integer(at, o.ignore_index)) : TL_NONE;
}

/* x, one number for each row, as (..., 1), to go with (..., classes). */
static tl_tensor of_rows(tl_at at, tl_tensor x)
{
    tl_shape one = tl_shape_of(at.tape, x);
    one.dim[one.ndim++] = 1;
    return tl_reshape_told(at, x, one, tl_batch_of(at.tape, x));
}

/* x with 0 where the mask, if there is one, is true. */
static tl_tensor without(tl_at at, tl_tensor x, tl_tensor mask)
{
    return tl_is_none(mask) ? x : tl_masked_fill_at(at, x, mask, 0);
}

/* z (..., classes) with 0 in ignored rows, which may hold NaNs that would reach gradients. */
static tl_tensor without_rows(tl_at at, tl_tensor z, tl_tensor ignored)
{
    return tl_is_none(ignored) ? z : without(at, z, of_rows(at, ignored));
}

/* Each row's loss, from v (..., classes). */
static tl_tensor each_of(tl_at at, tl_tensor v, tl_tensor targets, tl_tensor ignored)
{
    tl_tensor y = tl_gather_at(at, v, of_rows(at, without(at, targets, ignored)), -1);
    y = tl_reshape_told(at, tl_neg_at(at, y), tl_shape_of(at.tape, targets),
                        tl_batch_of(at.tape, y));
    return without(at, y, ignored);
}

/* The shares in a row's loss of the target's class and of each class. A separate call, which the
 * compiler cannot move out of the floating-point environment. */
static __attribute__((noinline)) void shares(double smoothing, int64_t classes, double *own,
                                             double *every)
{
    *own = 1 - smoothing;
    *every = smoothing / (double)classes;
}

/* The loss from log-probabilities v. A weighted mean is divided by the sum of the targets' weights.
 */
static tl_tensor pick(tl_at at, tl_tensor v, tl_tensor targets, tl_tensor ignored,
                      tl_cross_entropy_options o)
{
    tl_loss_attrs a = {o.reduction, o.ignore_index, o.ignore, 0, 0};
    tl_shape s = tl_shape_of(at.tape, v);
    tl_tensor out[2], sum[2] = {TL_NONE, TL_NONE};
    tl_dtype c = tl_dtype_compute(tl_dtype_of(at.tape, v));
    if (tl_failed(at.tape))
        return TL_NONE;
    if (!tl_is_none(o.weight)) {
        v = tl_mul_at(at, tl_in_dtype(at, v, c), tl_in_dtype(at, o.weight, c));
        if (o.reduction == TL_MEAN && tl_is_none(o.count)) {
            tl_tensor wide = tl_neg_at(at, tl_cast_at(at, o.weight, TL_F64));
            a.reduction = TL_SUM;
            tl_apply(at, &tl_op_nll, &a,
                     (tl_tensor[]){tl_expand_at(at, wide, s), targets, TL_NONE, TL_NONE}, 4, sum);
        }
    }
    if (o.smoothing != 0) {
        tl_fpenv saved = tl_fpenv_enter();
        double own, every;
        shares(o.smoothing, s.dim[s.ndim - 1], &own, &every);
        tl_fpenv_leave(saved);
        v = tl_add_at(at, tl_scale_at(at, v, own),
                      tl_scale_at(at, tl_sum_rows_last(at.tape, v), every));
    }
    if (o.reduction == TL_EACH)
        return each_of(at, tl_in_dtype(at, v, c), targets, ignored);
    tl_apply(at, &tl_op_nll, &a, (tl_tensor[]){v, targets, o.count, o.total}, 4, out);
    return tl_is_none(sum[1]) ? out[1] : tl_div_at(at, out[1], tl_cast_at(at, sum[1], c));
}

tl_tensor tl_cross_entropy_at(tl_at at, tl_tensor z, tl_tensor targets, tl_cross_entropy_options o)
{
    tl_loss_attrs a = {o.reduction, o.ignore_index, o.ignore, o.smoothing, 0};
    tl_tensor out[2];
    if (check_options(at, "cross_entropy", o) != TL_OK)
        return TL_NONE;
    z = classes_last(at, "cross_entropy", z, o.dim);
    if (tl_is_none(o.weight) && o.reduction != TL_EACH) {
        tl_apply(at, &tl_op_cross_entropy, &a, (tl_tensor[]){z, targets, o.count, o.total}, 4, out);
        return out[1];
    }
    if (check(at, "cross_entropy", z, targets, o) != TL_OK)
        return TL_NONE;
    const tl_tensor ignored = ignored_rows(at, targets, o);
    z = without_rows(at, z, ignored);
    z = tl_in_compute(at, z);
    return pick(at, tl_log_softmax_at(at, z, -1), targets, ignored, o);
}

tl_tensor tl_nll_at(tl_at at, tl_tensor logp, tl_tensor targets, tl_cross_entropy_options o)
{
    if (o.smoothing != 0)
        return tl_reject(at, TL_EDOMAIN,
                         "nll: label smoothing is %g; it belongs to tl_cross_entropy", o.smoothing);
    if (check_options(at, "nll", o) != TL_OK)
        return TL_NONE;
    logp = classes_last(at, "nll", logp, o.dim);
    if (check(at, "nll", logp, targets, o) != TL_OK)
        return TL_NONE;
    if (tl_is_none(o.weight) && o.reduction != TL_EACH)
        return pick(at, logp, targets, TL_NONE, o); /* the op skips ignored rows */
    const tl_tensor ignored = ignored_rows(at, targets, o);
    return pick(at, without_rows(at, logp, ignored), targets, ignored, o);
}

/* bce_with_logits: -log of the probability that sigmoid(x) gives to a target y within [0, 1]: a
 * composition
 *     l = (1 - y)*x + (1 + (pos_weight - 1)*y) * softplus(-x), times weight
 * Shape:  x and y alike; weight and pos_weight broadcast to them -> 0-d, or of x's shape (TL_EACH)
 * Dtype:  f16 bf16 f32 f64; y any; computed in x's compute type, which the result keeps
 * Bits:   as written; the reduction is tl_sum's or tl_mean's over all (NUMERICS 6.14)
 * VJP:    those of its parts
 * Errors: TL_ESHAPE TL_EDTYPE TL_EDOMAIN (reduction)
 */

tl_tensor tl_bce_with_logits_at(tl_at at, tl_tensor x, tl_tensor y, tl_bce_options o)
{
    tl_shape s = tl_shape_of(at.tape, x), sy = tl_shape_of(at.tape, y);
    tl_dtype c = tl_dtype_compute(tl_dtype_of(at.tape, x));
    if (o.reduction < TL_MEAN || o.reduction > TL_EACH)
        return tl_reject(at, TL_EDOMAIN,
                         "bce_with_logits: reduction %d; say TL_MEAN, TL_SUM or TL_EACH",
                         (int)o.reduction);
    if (!tl_shape_equal(&s, &sy))
        return tl_reject(at, TL_ESHAPE, "bce_with_logits: logits %s for targets %s", TL_TEXT_OF(&s),
                         TL_TEXT_OF(&sy));
    x = tl_in_dtype(at, x, c);
    y = tl_in_dtype(at, y, c);
    tl_tensor minus_x = tl_neg_at(at, x), p = tl_softplus_at(at, minus_x),
              minus_y = tl_neg_at(at, y), rest = tl_shift_at(at, minus_y, 1);
    tl_let_go_at(at, minus_y);
    tl_tensor n = tl_mul_at(at, rest, x);
    if (!tl_is_none(o.pos_weight)) {
        tl_tensor w = tl_mul_at(at, tl_shift_at(at, tl_in_dtype(at, o.pos_weight, c), -1), y);
        p = tl_mul_at(at, tl_shift_at(at, w, 1), p);
    }
    tl_tensor l = tl_add_at(at, n, p), made[] = {minus_x, rest, n, p};
    for (int i = 0; i < 4; i++)
        tl_let_go_at(at, made[i]);
    if (!tl_is_none(o.weight))
        l = tl_mul_at(at, l, tl_in_dtype(at, o.weight, c));
    sy = tl_shape_of(at.tape, l);
    if (!tl_shape_equal(&s, &sy))
        return tl_reject(at, TL_ESHAPE, "bce_with_logits: weights make %s of logits %s",
                         TL_TEXT_OF(&sy), TL_TEXT_OF(&s));
    if (o.reduction == TL_EACH)
        return l;
    tl_tensor whole = o.reduction == TL_SUM ? tl_sum_at(at, l, TL_ALL, false)
                                            : tl_mean_at(at, l, TL_ALL, false);
    tl_let_go_at(at, l);
    return whole;
}

/* mse: the mean of squared differences
 * Shape:  operands broadcast, 0-d result
 * Dtype:  f16 bf16 f32 f64; computed in the compute type, which the result keeps
 * Bits:   a composition: d = a - b, y = mean(d*d) (NUMERICS 6.11)
 * VJP:    those of its parts
 * Errors: TL_ESHAPE TL_EDTYPE
 */

tl_tensor tl_mse_at(tl_at at, tl_tensor a, tl_tensor b)
{
    tl_array x, y;
    tl_shape both;
    tl_err e = {.status = TL_OK};
    if (tl_array_of(at.tape, a, &x) && tl_array_of(at.tape, b, &y)) {
        /* One operand must have the shape of both: (n, 1) against (n) is hardly ever meant. */
        if (tl_shape_broadcast(&both, &x, &y, &e) == TL_OK &&
            tl_shape_count(&both) > tl_array_count(&x) &&
            tl_shape_count(&both) > tl_array_count(&y))
            tl_fail(&e, TL_ESHAPE, "neither %s nor %s has the shape of both, %s", TL_TEXT(&x),
                    TL_TEXT(&y), TL_TEXT_OF(&both));
        if (e.status != TL_OK)
            return tl_reject(at, e.status, "mse: %s", e.message);
    }
    return tl_mean_at(at,
                      tl_square_at(at, tl_sub_at(at, tl_in_compute(at, a), tl_in_compute(at, b))),
                      TL_ALL, false);
}
