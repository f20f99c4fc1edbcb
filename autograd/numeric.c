/* numeric.c: Ridders' method - central differences at falling steps, extrapolated to
 * step zero, with an estimate of the error from how the extrapolations agree.
 * Source: Ridders 1982, "Accurate computation of F'(x) and F'(x)F''(x)". */
#include <math.h>
#include <string.h>

#include "autograd/shadow.h"

enum { LEVELS = 9 };

typedef struct {
    double plus, minus;
} pair;

static void move(tl_shadow_leaf *l, const double *base, const double *dir, int64_t element, double h)
{
    memcpy(l->x, base, (size_t)l->n * sizeof *base);
    if (dir == NULL)
        l->x[element] += h;
    else
        for (int64_t i = 0; i < l->n; i++)
            l->x[i] += h * dir[i];
}

/* A step to begin with: a twentieth of what the moved elements are made of. */
static double first_step(const tl_shadow_leaf *l, const double *base, int64_t element, bool one)
{
    double sum = 0;
    for (int64_t i = 0; i < l->n; i++)
        sum += base[i] * base[i];
    double size = sqrt(sum / (double)(l->n ? l->n : 1));
    if (one && fabs(base[element]) > size)
        size = fabs(base[element]);
    return 0.05 * (size > 1e-2 ? size : size > 0 ? 1e-2 : 1);
}

/* A smooth function's second difference over h shrinks with h; a bend's stays. */
static double bend_of(const pair *f, double middle, const double *h, double noise)
{
    double last = 0, first = 0;
    for (int k = LEVELS - 3; k < LEVELS; k++) {
        double d = fabs(f[k].plus - 2 * middle + f[k].minus) / h[k];
        if (k == LEVELS - 3)
            first = d;
        last = d;
    }
    return last > 0.6 * first && last > 16 * noise / h[LEVELS - 1] ? last : 0;
}

static tl_numeric extrapolate(const pair *f, const double *h, double shrink, double noise)
{
    double table[LEVELS][LEVELS];
    tl_numeric best = {.value = (double)NAN, .error = HUGE_VAL};
    for (int i = 0; i < LEVELS; i++) {
        table[0][i] = (f[i].plus - f[i].minus) / (2 * h[i]);
        double floor = noise / h[i], power = 1;
        for (int j = 1; j <= i; j++) {
            power *= shrink * shrink;
            table[j][i] = (table[j - 1][i] * power - table[j - 1][i - 1]) / (power - 1);
            double e = fmax(fabs(table[j][i] - table[j - 1][i]), fabs(table[j][i] - table[j - 1][i - 1])) + floor;
            if (e < best.error) {
                best.error = e;
                best.value = table[j][i];
            }
        }
    }
    return best;
}

tl_numeric tl_shadow_derivative(tl_shadow *s, tl_shadow_leaf *l, const double *dir, int64_t element)
{
    const double shrink = 2;
    double h[LEVELS], scale = 0;
    pair f[LEVELS];
    tl_numeric out = {.value = (double)NAN, .error = HUGE_VAL};
    double *base = tl_calloc((size_t)l->n + 1, sizeof *base);
    if (base == NULL) {
        tl_fail(&s->err, TL_ENOMEM, "no memory for %lld elements", (long long)l->n);
        return out;
    }
    memcpy(base, l->x, (size_t)l->n * sizeof *base);
    double middle = tl_shadow_value(s), step = first_step(l, base, element, dir == NULL);
    for (int k = 0; k < LEVELS; k++, step /= shrink) {
        h[k] = step;
        move(l, base, dir, element, step);
        f[k].plus = tl_shadow_value(s);
        move(l, base, dir, element, -step);
        f[k].minus = tl_shadow_value(s);
        scale = fmax(scale, fmax(fabs(f[k].plus), fabs(f[k].minus)));
    }
    memcpy(l->x, base, (size_t)l->n * sizeof *base);
    tl_free_raw(base);
    double noise = 4 * 0x1p-52 * fmax(scale, 1e-300);
    out = extrapolate(f, h, shrink, noise);
    out.bend = bend_of(f, middle, h, noise);
    out.scale = scale;
    return out;
}

void tl_shadow_curve(tl_shadow *s, tl_shadow_leaf *l, const double *dir, int64_t element, tl_curve *c)
{
    tl_numeric best = tl_shadow_derivative(s, l, dir, element);
    double *base = tl_calloc((size_t)l->n + 1, sizeof *base);
    c->value = best.value;
    c->error = best.error;
    if (base == NULL) {
        tl_fail(&s->err, TL_ENOMEM, "no memory for %lld elements", (long long)l->n);
        return;
    }
    memcpy(base, l->x, (size_t)l->n * sizeof *base);
    double middle = tl_shadow_value(s), h = 1;
    for (int k = 0; k < TL_CURVE_POINTS; k++, h /= 4) {
        move(l, base, dir, element, h);
        double plus = tl_shadow_value(s);
        move(l, base, dir, element, -h);
        double minus = tl_shadow_value(s);
        c->h[k] = h;
        c->central[k] = (plus - minus) / (2 * h);
        c->gap[k] = fabs(plus - 2 * middle + minus) / h;
    }
    memcpy(l->x, base, (size_t)l->n * sizeof *base);
    tl_free_raw(base);
}
