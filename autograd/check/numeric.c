/* numeric.c: Ridders' method - central differences at falling steps, extrapolated to step zero,
 * with an estimate of the error from how the extrapolations agree. Source: Ridders 1982, "Accurate
 * computation of F'(x) and F'(x)F''(x)". */
#include <math.h>

#include "autograd/check/shadow.h"

enum { LEVELS = 9, SHRINK = 2 /* of the steps, from one level to the next */ };

typedef struct {
    double plus, minus;
} pair;

static void move(tl_shadow *s, double h)
{
    for (int64_t k = 0; k < s->n; k++) {
        const double step = h * s->dir[k];
        s->x[k] = step == 0 ? s->x0[k] : s->x0[k] + step; /* -0 stays -0 */
    }
}

double tl_shadow_value_at(tl_shadow *s, double h)
{
    move(s, h);
    return tl_shadow_value(s);
}

/* The root mean square of the elements that move; infinities stay where they are. */
double tl_shadow_size(const tl_shadow *s, const tl_path *p)
{
    double sum = 0, n = 0;
    const double own = p->element < 0 ? 0 : s->x0[p->leaf->first + p->element];
    if (own != 0 && isfinite(own))
        return fabs(own);
    for (int i = 0; i < s->n_leaves; i++) {
        const double *x0 = s->x0 + s->leaf[i].first;
        for (int64_t k = 0; tl_path_moves(p, &s->leaf[i]) && k < s->leaf[i].n; k++) {
            sum = tl_hypotenuse(sum, isfinite(x0[k]) ? x0[k] : 0);
            n += isfinite(x0[k]);
        }
    }
    return sum / sqrt(n > 0 ? n : 1);
}

/* A smooth function's second difference over h shrinks with h; that of a bend stays. */
static double bend_of(const pair *f, double middle, const double *h, double noise)
{
    const int first = LEVELS - 3, last = LEVELS - 1;
    double before = (f[first].plus - 2 * middle + f[first].minus) / h[first];
    double after = (f[last].plus - 2 * middle + f[last].minus) / h[last];
    const bool stays = fabs(after) > 0.6 * fabs(before) && fabs(after) > 16 * noise / h[last];
    return stays ? after : 0;
}

/* The best entry of Ridders' table over levels from lo on. */
static tl_numeric best_from(int lo, const pair *f, const double *h, double noise)
{
    double table[LEVELS][LEVELS];
    tl_numeric best = {.value = (double)NAN, .error = HUGE_VAL};
    for (int i = lo; i < LEVELS; i++) {
        table[0][i] = (f[i].plus - f[i].minus) / (2 * h[i]);
        double floor = noise / h[i], power = 1;
        for (int j = 1; j <= i - lo; j++) {
            power *= SHRINK * SHRINK;
            table[j][i] = (table[j - 1][i] * power - table[j - 1][i - 1]) / (power - 1);
            double e = fmax(fabs(table[j][i] - table[j - 1][i]),
                            fabs(table[j][i] - table[j - 1][i - 1])) +
                       floor;
            if (e < best.error) {
                best.error = e;
                best.value = table[j][i];
                best.step = h[i];
            }
        }
    }
    return best;
}

/* Large steps can agree by chance where the function turns often. If the smallest step contradicts
 * the answer, the small steps alone decide. */
static tl_numeric extrapolate(const pair *f, const double *h, double noise)
{
    tl_numeric all = best_from(0, f, h, noise);
    double last = (f[LEVELS - 1].plus - f[LEVELS - 1].minus) / (2 * h[LEVELS - 1]);
    if (fabs(all.value - last) >
        0.05 * fmax(fabs(all.value), fabs(last)) + 16 * noise / h[LEVELS - 1])
        return best_from(LEVELS - 4, f, h, noise);
    return all;
}

/* Differences at steps that fall from `step`, extrapolated. */
static tl_numeric attempt(tl_shadow *s, double middle, double step)
{
    double h[LEVELS], scale = 0;
    pair f[LEVELS];
    for (int k = 0; k < LEVELS; k++, step /= SHRINK) {
        h[k] = step;
        f[k].plus = tl_shadow_value_at(s, step);
        f[k].minus = tl_shadow_value_at(s, -step);
        scale = fmax(scale, fmax(fabs(f[k].plus), fabs(f[k].minus)));
    }
    double noise = 4 * 0x1p-52 * fmax(scale, 1e-300);
    tl_numeric out = extrapolate(f, h, noise);
    out.bend = bend_of(f, middle, h, noise);
    out.smallest = h[LEVELS - 1];
    out.below = (middle - f[LEVELS - 1].minus) / h[LEVELS - 1];
    out.above = (f[LEVELS - 1].plus - middle) / h[LEVELS - 1];
    return out;
}

/* How far along dir until an element that is not 0 reaches 0. */
static double reach(const tl_shadow *s)
{
    double least = HUGE_VAL;
    for (int64_t k = 0; k < s->n; k++)
        if (s->dir[k] != 0 && s->x0[k] != 0)
            least = fmin(least, fabs(s->x0[k] / s->dir[k]));
    return least;
}

/* The first steps begin at a twentieth of the moving leaves' size. If that size is small, larger
 * steps are tried, too; and if the answer is not good enough, because the function turns quickly or
 * is not finite there, smaller ones, at last such that no element changes its sign (log). The
 * answer with the smallest error counts. */
tl_numeric tl_shadow_derivative(tl_shadow *s, const tl_path *p)
{
    tl_numeric best = {.value = (double)NAN, .error = HUGE_VAL};
    double middle = tl_shadow_value(s), size = tl_shadow_size(s, p), least = reach(s);
    double step[5] = {0.05 * (size > 0 ? size : 1), size < 1e-2 && size > 0 ? 5e-4 : 0, 5e-4 * size,
                      5e-8 * size, isfinite(least) ? 0.05 * least : 0};
    for (int k = 0; k < 5; k++) {
        const double far = (k < 4 ? 1e-6 : 1e-4) * fabs(best.value);
        bool enough = isfinite(best.value) && (k == 3 || best.error <= far);
        if (step[k] == 0 || enough)
            continue;
        tl_numeric n = attempt(s, middle, step[k]);
        if (!isfinite(best.value) || n.error < best.error)
            best = n;
    }
    return best;
}

tl_numeric tl_shadow_derivative_from(tl_shadow *s, double step)
{
    return attempt(s, tl_shadow_value(s), step);
}

double tl_shadow_along(const tl_shadow *s, const double *g)
{
    double sum = 0;
    for (int64_t k = 0; k < s->n; k++)
        sum += s->dir[k] != 0 ? g[k] * s->dir[k] : 0; /* g may be infinite elsewhere */
    return sum;
}

/* ---- a bend, or a wrong gradient? ---- */

/* The derivative at x0 + h * dir as the gradients there give it. */
static double slope_at(tl_shadow *s, double h)
{
    move(s, h);
    return tl_shadow_gradients(s, false, 0) == TL_OK ? tl_shadow_along(s, s->found[0])
                                                     : (double)NAN;
}

/* The mean slope from -h to h: by two points of each of some panels (Gauss), whose error falls with
 * the fourth power of h. */
static double mean_slope(tl_shadow *s, double h)
{
    enum { PANELS = 8 };
    double sum = 0;
    for (int i = 0; i < 2 * PANELS; i++) {
        const double at = i / 2 + 0.5 + (i % 2 ? 0.5 : -0.5) / sqrt(3);
        sum += slope_at(s, h * (2 * at / PANELS - 1)) / (2 * PANELS);
    }
    return sum;
}

/* If gradients are right, those between two points add up to the change of the value from one to
 * the other, bend or none. If they are wrong, they miss it at every step. But a gradient that is
 * wrong at x0 alone adds up as well. It is known by its neighbours, which agree with the numeric
 * derivative; on one side of a bend at least, they do not. */
bool tl_shadow_bends(tl_shadow *s, const tl_numeric *d, double off)
{
    const double near = 0x1p-24 * d->step;
    if (!(fabs(slope_at(s, near) - d->value) > 0.8 * off) &&
        !(fabs(slope_at(s, -near) - d->value) > 0.8 * off))
        return false;
    for (int part = 1; part <= 4; part *= 4) {
        const double h = d->step / part;
        const double plus = tl_shadow_value_at(s, h), minus = tl_shadow_value_at(s, -h);
        if (!(fabs((plus - minus) / (2 * h) - mean_slope(s, h)) < 0.2 * off))
            return false;
    }
    return true;
}
