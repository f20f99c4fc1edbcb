/* noise.c: what roundings do to a function and to its gradients, found by experiment.
 *
 * A run whose leaves and results all move by a rounding unit, up or down by chance, shows what the
 * roundings between ops do. What those within an op do, which may cancel there, the fourth
 * differences of the error of the user's gradients show at points in a row: an error of rounding
 * jumps from point to point, a wrong gradient changes smoothly, if the function does between them.
 * Sources: Vignes 1993, "A stochastic arithmetic for reliable scientific computation"; Moré and
 * Wild 2011, "Estimating computational noise". */
#include <math.h>
#include <string.h>

#include "autograd/check/shadow.h"

enum { ROLLS = 3, POINTS = 7, ORDER = 4, WINDOWS = POINTS - ORDER };

double tl_unit_of(tl_dtype d)
{
    return d == TL_F64 ? 0x1p-53 : d == TL_F32 ? 0x1p-24 : d == TL_F16 ? 0x1p-11 : 0x1p-8;
}

/* Every leaf where it was, times 1 + by or 1 - by; rounded to its dtype if asked. */
static void place(tl_shadow *s, const double *const *was, double by, bool rounded)
{
    for (int i = 0; i < s->n_leaves; i++) {
        tl_shadow_leaf *l = &s->leaf[i];
        tl_dtype d = tl_peek(s->rec, l->handle)->a.dtype;
        for (int64_t k = 0; k < l->n; k++) {
            double bits;
            l->x[k] = was[i][k] * (1 + (((k * 2654435761u) >> 7) % 2 ? by : -by));
            if (rounded) {
                tl_element_put(d, &bits, l->x[k]);
                l->x[k] = tl_element_get(d, &bits);
            }
        }
    }
}

/* x, g64 and g of every leaf, and room for windows of differences of two kinds. */
static double **remember(tl_shadow *s)
{
    int64_t total = 0;
    double **was = tl_calloc((size_t)s->n_leaves + 1, sizeof *was), *room;
    for (int i = 0; i < s->n_leaves; i++)
        total += s->leaf[i].n * (3 + 2 * WINDOWS);
    room = was == NULL ? NULL : tl_calloc((size_t)total + 1, sizeof *room);
    if (room == NULL) {
        tl_fail(&s->err, TL_ENOMEM, "no memory for %lld elements", (long long)total);
        tl_free_raw(was);
        return NULL;
    }
    for (int i = 0; i <= s->n_leaves; i++) {
        was[i] = room;
        if (i == s->n_leaves)
            break;
        memcpy(room, s->leaf[i].x, (size_t)s->leaf[i].n * 3 * sizeof *room);
        room += s->leaf[i].n * (3 + 2 * WINDOWS);
    }
    return was;
}

static void restore(tl_shadow *s, double **was)
{
    for (int i = 0; i < s->n_leaves; i++)
        memcpy(s->leaf[i].x, was[i], (size_t)s->leaf[i].n * 3 * sizeof **was);
    tl_free_raw(was[0]);
    tl_free_raw(was);
}

static double size_or_0(double x) { return isfinite(x) ? fabs(x) : 0; }

tl_status tl_shadow_sway(tl_shadow *s, double unit)
{
    double **was = remember(s);
    if (was == NULL)
        return s->err.status;
    place(s, (const double *const *)was, unit, false);
    tl_status st = tl_shadow_gradients(s);
    for (int i = 0; i < s->n_leaves; i++)
        for (int64_t k = 0, n = s->leaf[i].n; k < n; k++)
            s->leaf[i].sway[k] = size_or_0(s->leaf[i].g64[k] - was[i][n + k]);
    restore(s, was);
    return st;
}

static const double weight[ORDER + 1] = {1, -4, 6, -4, 1};

/* The root mean square of the value's fourth differences, as of one value. */
static double jumps(tl_shadow *s, double *const *was)
{
    double d[WINDOWS] = {0}, sum = 0;
    for (int p = 0; p < POINTS && s->err.status == TL_OK; p++) {
        place(s, (const double *const *)was, (p - POINTS / 2) * 0x1p-16, false);
        double value = tl_shadow_value(s);
        for (int w = p < ORDER ? 0 : p - ORDER; w <= p && w < WINDOWS; w++)
            d[w] += weight[p - w] * value;
    }
    for (int w = 0; w < WINDOWS; w++)
        sum += d[w] * d[w];
    return s->err.status == TL_OK && isfinite(sum) ? sqrt(sum / (70 * WINDOWS)) : 0;
}

/* At points that are `by` of themselves apart: the fourth differences of g64 in d[n], and those of
 * g - g64 in d[0] if asked, at points of the user's dtypes. */
static void differences(tl_shadow *s, double *const *was, double by, bool own)
{
    for (int p = 0; p < POINTS && s->err.status == TL_OK; p++) {
        place(s, (const double *const *)was, (p - POINTS / 2) * by, own);
        tl_shadow_gradients(s);
        s->own = own;
        if (own && s->err.status == TL_OK)
            tl_shadow_gradients(s);
        s->own = false;
        for (int w = p < ORDER ? 0 : p - ORDER; w <= p && w < WINDOWS; w++)
            for (int i = 0; i < s->n_leaves; i++) {
                const tl_shadow_leaf *l = &s->leaf[i];
                double *d = was[i] + l->n * (3 + 2 * w);
                for (int64_t k = 0; k < l->n; k++) {
                    d[k] += own ? weight[p - w] * (l->g[k] - l->g64[k]) : 0;
                    d[l->n + k] += weight[p - w] * l->g64[k];
                }
            }
    }
}

/* The root mean square of what is at d in each window, of differences that are each the sum of five
 * errors whose weights' squares come to 70. */
static double error_in(const double *d, int64_t n)
{
    double sum = 0;
    for (int w = 0; w < WINDOWS; w++)
        sum += d[2 * n * w] * d[2 * n * w];
    return sqrt(sum / (70 * WINDOWS));
}

/* An error in proportion to the gradient, or to one of its terms, is none of rounding: where the
 * gradient itself turns between the points, four times its own differences are left out, or more.
 */
static double noise_of(const double *was, int64_t n, int64_t k)
{
    double g64 = was[n + k], g = was[2 * n + k], noise = error_in(was + 3 * n + k, n);
    noise -= fmax(4, g64 != 0 ? 2 * fabs(g / g64 - 1) : 0) * error_in(was + 4 * n + k, n);
    return isfinite(noise) && noise > 0 ? noise : 0;
}

tl_status tl_shadow_noise64(tl_shadow *s)
{
    double **was = remember(s);
    if (was == NULL)
        return s->err.status;
    s->jumps = jumps(s, was);
    differences(s, was, 0x1p-24, false);
    for (int i = 0; s->err.status == TL_OK && i < s->n_leaves; i++)
        for (int64_t k = 0, n = s->leaf[i].n; k < n; k++)
            s->leaf[i].noise64[k] = size_or_0(error_in(was[i] + 4 * n + k, n));
    restore(s, was);
    return s->err.status;
}

tl_status tl_shadow_noise(tl_shadow *s)
{
    double **was = remember(s);
    if (was == NULL)
        return s->err.status;
    for (s->roll = 1; s->roll <= ROLLS && s->err.status == TL_OK; s->roll++) {
        tl_shadow_gradients(s);
        for (int i = 0; s->err.status == TL_OK && i < s->n_leaves; i++)
            for (int64_t k = 0, n = s->leaf[i].n; k < n; k++) {
                double moved = size_or_0(s->leaf[i].g64[k] - was[i][n + k]);
                s->leaf[i].noise[k] = fmax(s->leaf[i].noise[k], moved);
            }
    }
    s->roll = 0;
    differences(s, was, 0x1p-9, true);
    for (int i = 0; s->err.status == TL_OK && i < s->n_leaves; i++)
        for (int64_t k = 0; k < s->leaf[i].n; k++)
            s->leaf[i].noise[k] = fmax(s->leaf[i].noise[k], noise_of(was[i], s->leaf[i].n, k));
    restore(s, was);
    return s->err.status;
}
