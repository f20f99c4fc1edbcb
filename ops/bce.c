/* bce_with_logits: -log of the probability that sigmoid(x) gives to a target y within [0, 1]: a
 * composition
 *     l = (1 - y)*x + (1 + (pos_weight - 1)*y) * softplus(-x), times weight
 * Shape:  x and y alike; weight and pos_weight broadcast to them -> 0-d, or of x's shape (TL_EACH)
 * Dtype:  f16 bf16 f32 f64; y any; the compute type of x within, and of the result
 * Bits:   as written; the reduction is tl_sum's or tl_mean's over all (NUMERICS 6.14)
 * VJP:    those of its parts
 * Errors: TL_ESHAPE TL_EDTYPE TL_EDOMAIN (reduction)
 */
#include "ops/build.h"

tl_tensor tl_bce_with_logits_at(tl_at at, tl_tensor x, tl_tensor y, tl_bce_options o)
{
    tl_shape s = tl_shape_of(at.tape, x), sy = tl_shape_of(at.tape, y);
    char a[TL_SHAPE_TEXT], b[TL_SHAPE_TEXT];
    tl_dtype c = tl_dtype_compute(tl_dtype_of(at.tape, x));
    if (tl_failed(at.tape))
        return TL_NONE;
    if (o.reduction < TL_MEAN || o.reduction > TL_EACH) {
        tl_tape_fail(at, TL_EDOMAIN,
                     "bce_with_logits: reduction %d; say TL_MEAN, TL_SUM or TL_EACH",
                     (int)o.reduction);
        return TL_NONE;
    }
    if (!tl_shape_equal(&s, &sy)) {
        tl_tape_fail(at, TL_ESHAPE, "bce_with_logits: logits %s for targets %s",
                     tl_shape_text(a, &s), tl_shape_text(b, &sy));
        return TL_NONE;
    }
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
    if (!tl_failed(at.tape) && !tl_shape_equal(&s, &sy)) {
        tl_tape_fail(at, TL_ESHAPE, "bce_with_logits: weights make %s of logits %s",
                     tl_shape_text(b, &sy), tl_shape_text(a, &s));
        return TL_NONE;
    }
    if (o.reduction == TL_EACH)
        return l;
    tl_tensor whole = o.reduction == TL_SUM ? tl_sum_at(at, l, TL_ALL, false)
                                            : tl_mean_at(at, l, TL_ALL, false);
    tl_let_go_at(at, l);
    return whole;
}
