/* Convolution and its gradients (5.8), windows (4.8), padding (9.6). */
#include "tests/ref/ref.h"

#include <math.h>

/* Element (i, j, h, w) of a 4-d tensor; +0 outside of it in the last two dims. */
static double at(const ref_tensor *x, int64_t i, int64_t j, int64_t h, int64_t w)
{
    if (h < 0 || w < 0 || h >= x->dim[2] || w >= x->dim[3])
        return 0;
    return ref_get(x, ref_flatten(4, x->dim, (int64_t[]){i, j, h, w}));
}

static ref_dtype meet(const ref_tensor *a, const ref_tensor *b)
{
    return a->dtype == b->dtype ? a->dtype : REF_F32;
}

static int64_t places(const ref_window *s, int i, int64_t size, int64_t kernel)
{
    return (size + 2 * s->pad[i] - s->dilation[i] * (kernel - 1) - 1) / s->stride[i] + 1;
}

ref_tensor ref_conv(const ref_tensor *x, const ref_tensor *w, const ref_window *s)
{
    ref_dtype c = ref_compute(x->dtype);
    int64_t dim[4] = {x->dim[0], w->dim[0], places(s, 0, x->dim[2], w->dim[2]),
                      places(s, 1, x->dim[3], w->dim[3])};
    ref_tensor y = ref_new(meet(x, w), 4, dim);
    for (int64_t e = 0; e < ref_numel(&y); e++) {
        int64_t i[8], k[8];
        ref_unflatten(4, dim, e, i);
        int64_t first = i[1] / (w->dim[0] / s->groups) * w->dim[1];
        double acc = 0;
        for (int64_t t = 0; t < w->dim[1] * w->dim[2] * w->dim[3]; t++) {
            ref_unflatten(3, w->dim + 1, t, k);
            double v = at(x, i[0], first + k[0],
                          s->stride[0] * i[2] + s->dilation[0] * k[1] - s->pad[0],
                          s->stride[1] * i[3] + s->dilation[1] * k[2] - s->pad[1]);
            acc = ref_fma(c, at(w, i[1], k[0], k[1], k[2]), v, acc);
        }
        ref_set(&y, e, acc + 0.0);
    }
    return y;
}

/* The place p of which element u is the k-th; -1 if there is none. */
static int64_t place(const ref_window *s, int i, int64_t u, int64_t k)
{
    int64_t p = u - s->dilation[i] * k + s->pad[i];
    return p < 0 || p % s->stride[i] != 0 ? -1 : p / s->stride[i];
}

ref_tensor ref_conv_dx(const ref_tensor *dy, const ref_tensor *w, const int64_t *dim,
                       const ref_window *s)
{
    ref_dtype c = ref_compute(dy->dtype);
    ref_tensor dx = ref_new(meet(dy, w), 4, dim);
    int64_t outs = w->dim[0] / s->groups, terms[3] = {outs, w->dim[2], w->dim[3]};
    for (int64_t e = 0; e < ref_numel(&dx); e++) {
        int64_t i[8], k[8];
        ref_unflatten(4, dim, e, i);
        int64_t group = i[1] / w->dim[1];
        double acc = 0;
        for (int64_t t = 0; t < terms[0] * terms[1] * terms[2]; t++) {
            ref_unflatten(3, terms, t, k);
            double v = at(dy, i[0], group * outs + k[0], place(s, 0, i[2], k[1]),
                          place(s, 1, i[3], k[2]));
            acc = ref_fma(c, at(w, group * outs + k[0], i[1] % w->dim[1], k[1], k[2]), v, acc);
        }
        ref_set(&dx, e, acc + 0.0);
    }
    return dx;
}

void ref_conv_dw(const ref_tensor *dy, const ref_tensor *x, const ref_window *s, ref_tensor *acc)
{
    for (int64_t e = 0; e < ref_numel(acc); e++) {
        int64_t i[8], p[8], terms[3] = {dy->dim[0], dy->dim[2], dy->dim[3]};
        ref_unflatten(4, acc->dim, e, i);
        int64_t first = i[0] / (acc->dim[0] / s->groups) * acc->dim[1];
        double sum = ref_get(acc, e);
        for (int64_t t = 0; t < terms[0] * terms[1] * terms[2]; t++) {
            ref_unflatten(3, terms, t, p);
            double v = at(x, p[0], first + i[1],
                          s->stride[0] * p[1] + s->dilation[0] * i[2] - s->pad[0],
                          s->stride[1] * p[2] + s->dilation[1] * i[3] - s->pad[1]);
            sum = ref_fma(acc->dtype, at(dy, p[0], i[0], p[1], p[2]), v, sum);
        }
        ref_set(acc, e, sum + 0.0);
    }
}

ref_tensor ref_pool_places(const ref_tensor *x, const ref_window *s)
{
    int64_t dim[4] = {x->dim[0], x->dim[1], places(s, 0, x->dim[2], s->kernel[0]),
                      places(s, 1, x->dim[3], s->kernel[1])};
    ref_tensor y = ref_new(REF_I64, 4, dim);
    for (int64_t e = 0; e < ref_numel(&y); e++) {
        int64_t i[8], best = -1;
        double m = 0;
        ref_unflatten(4, dim, e, i);
        for (int64_t k = 0; k < s->kernel[0] * s->kernel[1]; k++) {
            int64_t h = s->stride[0] * i[2] + s->dilation[0] * (k / s->kernel[1]) - s->pad[0],
                    w = s->stride[1] * i[3] + s->dilation[1] * (k % s->kernel[1]) - s->pad[1];
            if (h < 0 || w < 0 || h >= x->dim[2] || w >= x->dim[3])
                continue;
            double v = at(x, i[0], i[1], h, w), both = best < 0 ? v : ref_max2(m, v);
            /* what wins is not what was there */
            if (best < 0 || (!isnan(m) && (both != m || signbit(both) != signbit(m)))) {
                m = v;
                best = h * x->dim[3] + w;
            }
        }
        ref_set_i64(&y, e, best);
    }
    return y;
}

ref_tensor ref_avg_pool(const ref_tensor *x, const ref_window *s)
{
    ref_dtype c = ref_compute(x->dtype);
    int64_t dim[4] = {x->dim[0], x->dim[1], places(s, 0, x->dim[2], s->kernel[0]),
                      places(s, 1, x->dim[3], s->kernel[1])};
    ref_tensor y = ref_new(x->dtype, 4, dim);
    for (int64_t e = 0; e < ref_numel(&y); e++) {
        int64_t i[8];
        double acc = 0;
        ref_unflatten(4, dim, e, i);
        for (int64_t k = 0; k < s->kernel[0] * s->kernel[1]; k++)
            acc = ref_fma(c, 1,
                          at(x, i[0], i[1],
                             s->stride[0] * i[2] + s->dilation[0] * (k / s->kernel[1]) - s->pad[0],
                             s->stride[1] * i[3] + s->dilation[1] * (k % s->kernel[1]) - s->pad[1]),
                          acc);
        ref_set(&y, e, ref_round(c, (acc + 0.0) / (double)(s->kernel[0] * s->kernel[1])));
    }
    return y;
}
