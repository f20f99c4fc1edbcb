/* numeric.c: Ridders' method - central differences at falling steps, extrapolated to
 * step zero, with an estimate of the error from how the extrapolations agree.
 * Source: Ridders 1982, "Accurate computation of F'(x) and F'(x)F''(x)". */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "autograd/check/shadow.h"

enum { LEVELS = 9 };

typedef struct {
    double plus, minus;
} pair;

/* What moves: one leaf along dir or in one element, or all checked leaves along all[i]. */
typedef struct {
    tl_shadow_leaf *leaf;
    const double *dir;
    int64_t element;
    double *const *all;
    double **base; /* of the moved leaves, where they were */
} mover;

static void shift(tl_shadow_leaf *l, const double *base, const double *dir, int64_t element,
                  double h)
{
    memcpy(l->x, base, (size_t)l->n * sizeof *base);
    if (dir == NULL)
        l->x[element] += h;
    else
        for (int64_t i = 0; i < l->n; i++)
            l->x[i] += h * dir[i];
}

static bool moves(const tl_shadow *s, const mover *m, int i)
{
    return m->all != NULL ? m->all[i] != NULL : &s->leaf[i] == m->leaf;
}

static void move(tl_shadow *s, const mover *m, double h)
{
    for (int i = 0; i < s->n_leaves; i++)
        if (moves(s, m, i))
            shift(&s->leaf[i], m->base[i], m->all != NULL ? m->all[i] : m->dir, m->element, h);
}

static void remember(tl_shadow *s, mover *m)
{
    m->base = tl_calloc((size_t)s->n_leaves + 1, sizeof *m->base);
    for (int i = 0; m->base != NULL && i < s->n_leaves; i++)
        if (moves(s, m, i)) {
            m->base[i] = tl_calloc((size_t)s->leaf[i].n + 1, sizeof(double));
            if (m->base[i] == NULL) {
                tl_fail(&s->err, TL_ENOMEM, "no memory for %lld elements", (long long)s->leaf[i].n);
                return;
            }
            memcpy(m->base[i], s->leaf[i].x, (size_t)s->leaf[i].n * sizeof(double));
        }
    if (m->base == NULL)
        tl_fail(&s->err, TL_ENOMEM, "no memory for %d leaves", s->n_leaves);
}

static void restore(tl_shadow *s, mover *m)
{
    for (int i = 0; m->base != NULL && i < s->n_leaves; i++) {
        if (m->base[i] != NULL && s->err.status == TL_OK)
            memcpy(s->leaf[i].x, m->base[i], (size_t)s->leaf[i].n * sizeof(double));
        tl_free_raw(m->base[i]);
    }
    tl_free_raw(m->base);
}

/* What the moved elements are made of. */
static double size_of(const tl_shadow *s, const mover *m)
{
    double sum = 0, n = 0, size = 0;
    for (int i = 0; i < s->n_leaves; i++)
        for (int64_t k = 0; moves(s, m, i) && k < s->leaf[i].n; k++, n++)
            sum += m->base[i][k] * m->base[i][k];
    size = sqrt(sum / (n > 0 ? n : 1));
    if (m->all == NULL && m->dir == NULL && m->leaf->x[m->element] != 0)
        size = fabs(m->leaf->x[m->element]);
    return size;
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

/* The best entry of Ridders' table over levels from lo on. */
static tl_numeric best_from(int lo, const pair *f, const double *h, double shrink, double noise)
{
    double table[LEVELS][LEVELS];
    tl_numeric best = {.value = (double)NAN, .error = HUGE_VAL};
    for (int i = lo; i < LEVELS; i++) {
        table[0][i] = (f[i].plus - f[i].minus) / (2 * h[i]);
        double floor = noise / h[i], power = 1;
        for (int j = 1; j <= i - lo; j++) {
            power *= shrink * shrink;
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

/* Large steps can agree by chance where the function turns often: an answer that the
 * smallest step contradicts is taken from the small steps alone. */
static tl_numeric extrapolate(const pair *f, const double *h, double shrink, double noise)
{
    tl_numeric all = best_from(0, f, h, shrink, noise);
    double last = (f[LEVELS - 1].plus - f[LEVELS - 1].minus) / (2 * h[LEVELS - 1]);
    if (fabs(all.value - last) >
        0.05 * fmax(fabs(all.value), fabs(last)) + 16 * noise / h[LEVELS - 1])
        return best_from(LEVELS - 4, f, h, shrink, noise);
    return all;
}

/* Differences at steps that fall from `step`, extrapolated. */
static tl_numeric attempt(tl_shadow *s, const mover *m, double middle, double step)
{
    const double shrink = 2;
    double h[LEVELS], scale = 0;
    pair f[LEVELS];
    for (int k = 0; k < LEVELS; k++, step /= shrink) {
        h[k] = step;
        move(s, m, step);
        f[k].plus = tl_shadow_value(s);
        move(s, m, -step);
        f[k].minus = tl_shadow_value(s);
        scale = fmax(scale, fmax(fabs(f[k].plus), fabs(f[k].minus)));
    }
    double noise = 4 * 0x1p-52 * fmax(scale, 1e-300);
    tl_numeric out = extrapolate(f, h, shrink, noise);
    out.bend = bend_of(f, middle, h, noise);
    out.scale = scale;
    return out;
}

/* First with steps of a twentieth of what moves; where that is small, also with larger
 * ones, and where that is not good enough - the function turns quickly, or is not
 * finite there - with smaller ones: the answer with the smallest error counts. */
static tl_numeric derivative(tl_shadow *s, mover *m)
{
    tl_numeric best = {.value = (double)NAN, .error = HUGE_VAL};
    remember(s, m);
    if (s->err.status == TL_OK) {
        double middle = tl_shadow_value(s), size = size_of(s, m);
        double step[4] = {0.05 * (size > 0 ? size : 1), size < 1e-2 && size > 0 ? 5e-4 : 0,
                          5e-4 * size, 5e-8 * size};
        for (int k = 0; k < 4; k++) {
            bool enough = isfinite(best.value) && (k > 2 || best.error <= 1e-6 * fabs(best.value));
            if (step[k] == 0 || enough)
                continue;
            tl_numeric n = attempt(s, m, middle, step[k]);
            if (!isfinite(best.value) || n.error < best.error)
                best = n;
        }
    }
    restore(s, m);
    return best;
}

tl_numeric tl_shadow_derivative(tl_shadow *s, tl_shadow_leaf *l, const double *dir, int64_t element)
{
    return derivative(s, &(mover){.leaf = l, .dir = dir, .element = element});
}

tl_numeric tl_shadow_derivative_all(tl_shadow *s, double *const *dir)
{
    return derivative(s, &(mover){.all = dir});
}

void tl_shadow_curve(tl_shadow *s, tl_shadow_leaf *l, const double *dir, int64_t element,
                     tl_curve *c)
{
    mover m = {.leaf = l, .dir = dir, .element = element};
    tl_numeric best = tl_shadow_derivative(s, l, dir, element);
    c->value = best.value;
    c->error = best.error;
    remember(s, &m);
    if (s->err.status == TL_OK) {
        double middle = tl_shadow_value(s), h = 1;
        for (int k = 0; k < TL_CURVE_POINTS; k++, h /= 4) {
            move(s, &m, h);
            double plus = tl_shadow_value(s);
            move(s, &m, -h);
            double minus = tl_shadow_value(s);
            c->h[k] = h;
            c->central[k] = (plus - minus) / (2 * h);
            c->gap[k] = fabs(plus - 2 * middle + minus) / h;
        }
    }
    restore(s, &m);
}

/* ---- the error against the step that made it, written down ---- */

static double log10_of(double x)
{
    return log10(x > 1e-300 ? x : 1e-300); /* a picture, not a bit */
}

static void text(FILE *f, const tl_curve *c)
{
    fprintf(f, "%12s %24s %12s %12s\n", "step", "central difference", "error", "one-sided gap");
    for (int i = 0; i < TL_CURVE_POINTS; i++)
        fprintf(f, "%12.3e %24.16e %12.3e %12.3e\n", c->h[i], c->central[i],
                fabs(c->central[i] - c->analytic), c->gap[i]);
    fprintf(f, "%12s %24.16e %12.3e  (estimated error %.3e)\n", "Ridders", c->value,
            fabs(c->value - c->analytic), c->error);
    fprintf(f, "%12s %24.16e\n", "analytic", c->analytic);
}

static void csv(FILE *f, const tl_curve *c)
{
    fprintf(f, "step,central,error,one_sided_gap\n");
    for (int i = 0; i < TL_CURVE_POINTS; i++)
        fprintf(f, "%.17g,%.17g,%.17g,%.17g\n", c->h[i], c->central[i],
                fabs(c->central[i] - c->analytic), c->gap[i]);
}

enum { W = 640, H = 400, PAD = 60 };

static void svg(FILE *f, const tl_curve *c)
{
    double x0 = log10_of(c->h[TL_CURVE_POINTS - 1]), x1 = log10_of(c->h[0]), y0 = -18, y1 = 2;
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "font-family=\"sans-serif\" font-size=\"12\">\n",
            W, H);
    fprintf(f, "<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n", W, H);
    for (int e = -18; e <= 2; e += 4) {
        double y = H - PAD - (e - y0) / (y1 - y0) * (H - 2 * PAD);
        fprintf(f,
                "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/><text x=\"8\" "
                "y=\"%.1f\">1e%d</text>\n",
                PAD, W - PAD, y, y, y + 4, e);
    }
    fprintf(f, "<polyline fill=\"none\" stroke=\"#0a58ca\" stroke-width=\"2\" points=\"");
    for (int i = 0; i < TL_CURVE_POINTS; i++) {
        double x = PAD + (log10_of(c->h[i]) - x0) / (x1 - x0) * (W - 2 * PAD),
               e = log10_of(fabs(c->central[i] - c->analytic));
        fprintf(f, "%.1f,%.1f ", x, H - PAD - (fmax(e, y0) - y0) / (y1 - y0) * (H - 2 * PAD));
    }
    fprintf(f, "\"/>\n<text x=\"%d\" y=\"%d\">step, %.1e to %.1e</text>\n", W / 2 - 60, H - 20,
            c->h[TL_CURVE_POINTS - 1], c->h[0]);
    fprintf(f,
            "<text x=\"%d\" y=\"24\">error of the central difference against the analytic "
            "derivative %.6g</text>\n</svg>\n",
            PAD, c->analytic);
}

tl_status tl_curve_write(FILE *f, const tl_curve *c, tl_curve_format format, tl_err *err)
{
    if (format == TL_CURVE_SVG)
        svg(f, c);
    else if (format == TL_CURVE_CSV)
        csv(f, c);
    else
        text(f, c);
    return ferror(f) ? tl_fail(err, TL_EIO, "tl_gradcheck_curve: the file cannot be written")
                     : TL_OK;
}
