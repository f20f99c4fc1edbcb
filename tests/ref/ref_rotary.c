/* Rotary embedding: forward, backward, table (section 8). */
#include "tests/ref/ref.h"

#include <stddef.h>

/* 8.1: R(x)_i for i below the rotated dims is sign * x[partner]. half: R(x) = (-x2, x1).
 * interleaved: R(x)[2k] = -x[2k+1], R(x)[2k+1] = x[2k]. */
static int64_t partner(ref_pairing pairing, int64_t rotated, int64_t i)
{
    if (pairing == REF_HALF)
        return i < rotated / 2 ? i + rotated / 2 : i - rotated / 2;
    return i % 2 == 0 ? i + 1 : i - 1;
}

static double sign(ref_pairing pairing, int64_t rotated, int64_t i)
{
    int first = pairing == REF_HALF ? i < rotated / 2 : i % 2 == 0;
    return first ? -1.0 : 1.0;
}

/* The shape that r1 and r2 broadcast to: x's with the last dim cut. Without data. */
static ref_tensor rotated_part(const ref_tensor *x, int64_t rotated)
{
    ref_tensor s = *x;
    ref_check(x->ndim >= 1 && rotated % 2 == 0 && rotated <= x->dim[x->ndim - 1],
              "rotary: an even number of rotated dims within x wanted");
    s.dim[x->ndim - 1] = rotated;
    s.data = NULL;
    return s;
}

/* r at element ix of the rotated part. */
static double table_at(const ref_tensor *r, int ndim, const int64_t *ix)
{
    return ref_get(r, ref_broadcast_at(r, ndim, ix));
}

/* x at ix with the last index replaced. */
static double x_at(const ref_tensor *x, const int64_t *ix, int64_t last)
{
    int64_t own[8] = {0};
    for (int d = 0; d < x->ndim - 1; d++)
        own[d] = ix[d];
    own[x->ndim - 1] = last;
    return ref_get(x, ref_flatten(x->ndim, x->dim, own));
}

/* R(x) at ix. */
static double rotated_at(const ref_tensor *x, const int64_t *ix, ref_pairing pairing,
                         int64_t rotated)
{
    int64_t i = ix[x->ndim - 1];
    return sign(pairing, rotated, i) * x_at(x, ix, partner(pairing, rotated, i));
}

/* 8.1: y_i = (r1_i * x_i) + (r2_i * R(x)_i); dims beyond the rotated ones are copied.
 * Tables of another dtype than x are widened; the compute type is x's. */
ref_tensor ref_rotary(const ref_tensor *x, const ref_tensor *r1, const ref_tensor *r2,
                      ref_pairing pairing, int64_t rotated)
{
    ref_dtype c = ref_compute(x->dtype);
    ref_tensor part = rotated_part(x, rotated), y = ref_copy(x);
    for (int64_t e = 0; e < ref_numel(&part); e++) {
        int64_t ix[8] = {0};
        ref_unflatten(part.ndim, part.dim, e, ix);
        double a = ref_round(c, table_at(r1, x->ndim, ix) * x_at(x, ix, ix[x->ndim - 1]));
        double b = ref_round(c, table_at(r2, x->ndim, ix) * rotated_at(x, ix, pairing, rotated));
        ref_set(&y, ref_flatten(x->ndim, x->dim, ix), ref_round(c, a + b));
    }
    return y;
}

/* 8.2: dx_i = (r1_i * g_i) - R(r2*g)_i. */
static ref_tensor grad_x(const ref_tensor *g, const ref_tensor *r1, const ref_tensor *r2,
                         ref_pairing pairing, int64_t rotated)
{
    ref_dtype c = ref_compute(g->dtype);
    ref_tensor part = rotated_part(g, rotated), dx = ref_copy(g);
    for (int64_t e = 0; e < ref_numel(&part); e++) {
        int64_t ix[8] = {0}, px[8] = {0};
        ref_unflatten(part.ndim, part.dim, e, ix);
        ref_unflatten(part.ndim, part.dim, e, px);
        int64_t i = ix[g->ndim - 1];
        px[g->ndim - 1] = partner(pairing, rotated, i);
        double a = ref_round(c, table_at(r1, g->ndim, ix) * x_at(g, ix, i));
        double r2g = ref_round(c, table_at(r2, g->ndim, px) * x_at(g, px, px[g->ndim - 1]));
        ref_set(&dx, ref_flatten(g->ndim, g->dim, ix),
                ref_round(c, a - sign(pairing, rotated, i) * r2g));
    }
    return dx;
}

/* 8.2, 4.3: sum_to of g*x (turn = 0) or of g*R(x) (turn = 1), to the shape of r: the product in the
 * compute type, the fold in f64, in row-major order of x, one rounding to r's dtype. NUMERICS does
 * not say: whether the product is rounded to x's storage dtype on the way. It is not, here. */
static ref_tensor grad_table(const ref_tensor *g, const ref_tensor *x, const ref_tensor *r,
                             int turn, ref_pairing pairing, int64_t rotated, ref_tensor *acc)
{
    ref_dtype c = ref_compute(x->dtype);
    ref_tensor part = rotated_part(x, rotated), dr = ref_like(r, r->dtype),
               sum = acc ? ref_copy(acc) : ref_like(r, REF_F64);
    ref_check(sum.dtype == REF_F64 && ref_numel(&sum) == ref_numel(r),
              "rotary: f64 accumulator of the table's size wanted");
    for (int64_t e = 0; e < ref_numel(&part); e++) {
        int64_t ix[8] = {0};
        ref_unflatten(part.ndim, part.dim, e, ix);
        int64_t to = ref_broadcast_at(r, part.ndim, ix);
        double v = turn ? rotated_at(x, ix, pairing, rotated) : x_at(x, ix, ix[x->ndim - 1]);
        ref_set(&sum, to, ref_get(&sum, to) + ref_round(c, x_at(g, ix, ix[x->ndim - 1]) * v));
    }
    for (int64_t i = 0; i < ref_numel(r); i++) {
        double s = ref_get(&sum, i) + 0.0; /* 1.6 */
        if (acc)
            ref_set(acc, i, s);
        ref_set(&dr, i, s);
    }
    ref_free(&sum);
    return dr;
}

void ref_rotary_grad(const ref_tensor *g, const ref_tensor *x, const ref_tensor *r1,
                     const ref_tensor *r2, ref_pairing pairing, int64_t rotated, ref_tensor *dx,
                     ref_tensor *dr1, ref_tensor *dr2, ref_tensor *acc1, ref_tensor *acc2)
{
    if (dx)
        *dx = grad_x(g, r1, r2, pairing, rotated);
    if (dr1)
        *dr1 = grad_table(g, x, r1, 0, pairing, rotated, acc1);
    if (dr2)
        *dr2 = grad_table(g, x, r2, 1, pairing, rotated, acc2);
}

/* 8.3: f_k = exp(-(2k/D) * log(base)) in f64, angle = position as f64 * f_k, r1 = cos, r2 = sin,
 * rounded once to f32. D is the number of rotated dims. half: column i has k = i mod D/2;
 * interleaved: k = i / 2 (the pair shares an angle). */
void ref_rotary_table(int64_t first, int64_t n, int64_t rotated, double base, ref_pairing pairing,
                      ref_tensor *r1, ref_tensor *r2)
{
    *r1 = ref_new(REF_F32, 2, (int64_t[]){n, rotated});
    *r2 = ref_new(REF_F32, 2, (int64_t[]){n, rotated});
    for (int64_t p = 0; p < n; p++)
        for (int64_t i = 0; i < rotated; i++) {
            int64_t k = pairing == REF_HALF ? i % (rotated / 2) : i / 2;
            double f = ref_exp1(REF_F64,
                                -((double)(2 * k) / (double)rotated) * ref_log1(REF_F64, base));
            double angle = (double)(first + p) * f;
            ref_set(r1, p * rotated + i, ref_cos1(REF_F64, angle));
            ref_set(r2, p * rotated + i, ref_sin1(REF_F64, angle));
        }
}
