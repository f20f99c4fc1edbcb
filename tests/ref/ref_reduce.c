/* sum, mean, max, argmax, sum_to (section 4). */
#include "tests/ref/ref.h"

#include <math.h>
#include <stddef.h>

/* A subset of x's dims, in order. */
typedef struct {
    int n, dim[8];
} dims_list;

static int64_t count(const ref_tensor *x, const dims_list *l)
{
    int64_t n = 1;
    for (int i = 0; i < l->n; i++)
        n *= x->dim[l->dim[i]];
    return n;
}

/* Sets the listed dims of ix to the row-major position flat among them. */
static void place(const ref_tensor *x, const dims_list *l, int64_t flat, int64_t *ix)
{
    for (int i = l->n - 1; i >= 0; i--) {
        ix[l->dim[i]] = flat % x->dim[l->dim[i]];
        flat /= x->dim[l->dim[i]];
    }
}

typedef struct {
    dims_list kept, fold, row;
} parts;

/* 4.1: the longest trailing run of reduced dims that does not contain axis 0 is the row; the other
 * reduced dims are the fold. NUMERICS does not say: whether "trailing" means the last dims of x or
 * the last of the reduced dims. It is here the last dims of x: dims {1} of a (2,3,4) has no row and
 * is a fold in f64 over elements. A kept last dim of size 1 ends the run as well. */
static parts split(const ref_tensor *x, unsigned dims)
{
    parts p = {0};
    int first = x->ndim;
    while (first > 1 && (dims >> (first - 1) & 1))
        first--;
    for (int d = 0; d < x->ndim; d++) {
        dims_list *l = !(dims >> d & 1) ? &p.kept : d >= first ? &p.row : &p.fold;
        l->dim[l->n++] = d;
    }
    return p;
}

static ref_tensor reduced(const ref_tensor *x, unsigned dims, int keepdims, ref_dtype dtype)
{
    int ndim = 0;
    int64_t dim[8] = {0};
    for (int d = 0; d < x->ndim; d++) {
        int gone = dims >> d & 1;
        if (!gone || keepdims)
            dim[ndim++] = gone ? 1 : x->dim[d];
    }
    return ref_new(dtype, ndim, dim);
}

/* 3.1, 4.1: the row's terms by flattened row-major index within the run. */
static double row_sum(const ref_tensor *x, const parts *p, int64_t *ix)
{
    ref_lanes s;
    ref_lanes_start(&s, ref_compute(x->dtype));
    for (int64_t i = 0; i < count(x, &p->row); i++) {
        place(x, &p->row, i, ix);
        ref_lanes_add(&s, i, ref_get(x, ref_flatten(x->ndim, x->dim, ix)));
    }
    return ref_lanes_sum(&s);
}

/* 4.1: with a fold the f64 accumulator, without one the lanes' sum widened.
 * NUMERICS does not say: a sum that is given an accumulator but has no fold dims. It is here a fold
 * of one row sum. NUMERICS does not say: an empty set of dims. Each element is here a fold of one
 * element (the value itself, -0 becoming +0). */
static double sum_at(const ref_tensor *x, const parts *p, int64_t o, const double *start)
{
    int64_t ix[8] = {0};
    place(x, &p->kept, o, ix);
    if (p->row.n > 0 && p->fold.n == 0 && !start)
        return row_sum(x, p, ix);
    double acc = start ? *start : 0.0;
    for (int64_t f = 0; f < count(x, &p->fold); f++) {
        place(x, &p->fold, f, ix);
        acc = acc +
              (p->row.n > 0 ? row_sum(x, p, ix) : ref_get(x, ref_flatten(x->ndim, x->dim, ix)));
    }
    return acc + 0.0;
}

/* 1.6: +0 is added before the rounding to storage (in sum_at).
 * It is added before the rounding (1.7): a negative sum that underflows in storage stays -0. */
ref_tensor ref_sum(const ref_tensor *x, unsigned dims, int keepdims, ref_tensor *acc)
{
    parts p = split(x, dims);
    ref_tensor y = reduced(x, dims, keepdims, x->dtype);
    ref_check(!acc || (acc->dtype == REF_F64 && ref_numel(acc) == ref_numel(&y)),
              "sum: f64 accumulator of the result's size wanted");
    for (int64_t o = 0; o < ref_numel(&y); o++) {
        double start = acc ? ref_get(acc, o) : 0.0;
        double s = sum_at(x, &p, o, acc ? &start : NULL);
        if (acc)
            ref_set(acc, o, s);
        ref_set(&y, o, s);
    }
    return y;
}

/* 4.1: (f64) s / (f64) n, rounded once.
 * The mean of no terms is +0 / 0 = NaN. */
ref_tensor ref_mean(const ref_tensor *x, unsigned dims, int keepdims)
{
    parts p = split(x, dims);
    ref_tensor y = reduced(x, dims, keepdims, x->dtype);
    double n = (double)count(x, &p.row) * (double)count(x, &p.fold);
    for (int64_t o = 0; o < ref_numel(&y); o++)
        ref_set(&y, o, sum_at(x, &p, o, NULL) / n + 0.0);
    return y;
}

/* 4.2 */
ref_tensor ref_max(const ref_tensor *x, unsigned dims, int keepdims)
{
    parts p = split(x, dims);
    ref_tensor y = reduced(x, dims, keepdims, x->dtype);
    for (int64_t o = 0; o < ref_numel(&y); o++) {
        int64_t ix[8] = {0};
        double m = -(double)INFINITY;
        place(x, &p.kept, o, ix);
        ref_check(count(x, &p.fold) * count(x, &p.row) > 0, "an empty max is an error");
        for (int64_t f = 0; f < count(x, &p.fold); f++)
            for (int64_t i = 0; i < count(x, &p.row); i++) {
                place(x, &p.fold, f, ix);
                place(x, &p.row, i, ix);
                m = ref_max2(m, ref_get(x, ref_flatten(x->ndim, x->dim, ix)));
            }
        ref_set(&y, o, m);
    }
    return y;
}

/* Whether b is a greater maximum than a, in the order of 4.2: NaN above all, +0 above -0. */
static int greater(double b, double a)
{
    if (isnan(a))
        return 0;
    if (isnan(b))
        return 1;
    if (a == 0 && b == 0)
        return signbit(a) && !signbit(b);
    return b > a;
}

/* 4.2: the first index among ties.
 * Zeros of both signs do not tie; NaNs do. */
ref_tensor ref_argmax(const ref_tensor *x, int dim, int keepdims)
{
    ref_tensor y = reduced(x, 1u << dim, keepdims, REF_I64);
    parts p = split(x, 1u << dim);
    ref_check(x->dim[dim] > 0 || ref_numel(&y) == 0, "an empty max is an error");
    for (int64_t o = 0; o < ref_numel(&y); o++) {
        int64_t ix[8] = {0}, best = 0;
        double m = 0;
        place(x, &p.kept, o, ix);
        for (int64_t i = 0; i < x->dim[dim]; i++) {
            ix[dim] = i;
            double v = ref_get(x, ref_flatten(x->ndim, x->dim, ix));
            if (i > 0 && !greater(v, m))
                continue;
            best = i;
            m = v;
        }
        ref_set_i64(&y, o, best);
    }
    return y;
}

/* 4.3: all the elements of x, in row-major order, each added in f64 to the element of shape that it
 * meets. NUMERICS does not say: x of the very shape. It is here a fold of one element each (-0
 * becomes +0). */
ref_tensor ref_sum_to(const ref_tensor *x, int ndim, const int64_t *dim, ref_tensor *acc)
{
    ref_tensor y = ref_new(x->dtype, ndim, dim),
               own = acc ? (ref_tensor){0} : ref_new(REF_F64, ndim, dim);
    ref_tensor *a = acc ? acc : &own;
    ref_check(a->dtype == REF_F64 && ref_numel(a) == ref_numel(&y),
              "sum_to: f64 accumulator of the result's size wanted");
    ref_check(ndim <= x->ndim, "sum_to: a shape that broadcasts to x wanted");
    for (int64_t i = 0; i < ref_numel(x); i++) {
        int64_t ix[8] = {0};
        ref_unflatten(x->ndim, x->dim, i, ix);
        int64_t j = ref_broadcast_at(&y, x->ndim, ix);
        ref_set(a, j, ref_get(a, j) + ref_get(x, i));
    }
    for (int64_t j = 0; j < ref_numel(&y); j++) {
        if (ref_numel(x) > 0)
            ref_set(a, j, ref_get(a, j) + 0.0); /* 1.6 */
        ref_set(&y, j, ref_get(a, j));
    }
    ref_free(&own);
    return y;
}
