/* noise.c: measures the effect of roundings on a function and on its gradients.
 *
 * Roundings between ops: in a few runs every leaf and every result moves by a rounding unit, up or
 * down at random, and the gradients are compared with those at rest. Roundings within an op may
 * cancel there, so they are seen another way: the error of the user's gradients is taken at points
 * in a row. An error of rounding jumps from point to point, which its fourth differences show; a
 * wrong gradient changes as smoothly as the function does.
 * Terms that cancel: the cotangents on the way move, and the gradient, which is linear in them, by
 * as much as its terms.
 * Sources: Vignes 1993, "A stochastic arithmetic for reliable scientific computation"; Moré and
 * Wild 2011, "Estimating computational noise". */
#include <math.h>
#include <string.h>

#include "autograd/check/shadow.h"

enum { ROLLS = 3, POINTS = 7, ORDER = 4, WINDOWS = TL_NOISE_WINDOWS };
_Static_assert(WINDOWS == POINTS - ORDER, "each window holds one fourth difference");

/* The weights of a fourth difference. The sum of their squares is 70. */
static const double weight[ORDER + 1] = {1, -4, 6, -4, 1};

/* Moves every element of every leaf to x0 * (1 + by) or x0 * (1 - by), rounded to the leaf's dtype
 * if asked. */
static void move_all(tl_shadow *s, double by, bool rounded)
{
    for (int i = 0; i < s->n_leaves; i++) {
        const tl_shadow_leaf *l = &s->leaf[i];
        double *x = s->x + l->first, *x0 = s->x0 + l->first;
        for (int64_t k = 0; k < l->n; k++) {
            x[k] = x0[k] * (1 + (((k * 2654435761u) >> 7) % 2 ? by : -by));
            if (rounded)
                x[k] = tl_rounded_to(l->v->a.dtype, x[k]);
        }
    }
}

static double size_or_0(double x) { return isfinite(x) ? fabs(x) : 0; }

tl_status tl_shadow_sway(tl_shadow *s, double unit)
{
    move_all(s, unit, false);
    TL_TRY(tl_shadow_gradients(s, false, 0));
    for (int64_t k = 0; k < s->n; k++)
        s->sway[k] = size_or_0(s->found[0][k] - s->g[0][k]);
    return TL_OK;
}

/* Multiplies every element of the gradients that a vjp gives by 1 + MOVE * u, with a random u in
 * [-1, 1). Gradients in an accumulator stay as they are. */
#define MOVE 0x1p-20

typedef struct {
    tl_rng_key key;
    uint64_t n; /* numbers drawn */
} mover;

static void move_given(void *ctx, tl_tape *t, const tl_given *g)
{
    mover *m = ctx;
    for (int i = 0; i < g->n_in; i++) {
        const tl_value *v = g->wants[i] ? tl_peek(t, g->dx[i]) : NULL;
        if (v == NULL || v->st == NULL || v->st->arena == t->grad_arena)
            continue;
        const tl_tensor moved = tl_shadow_copy(t, &v->a);
        const tl_array *a = tl_is_none(moved) ? NULL : &tl_peek(t, moved)->a;
        for (int64_t k = 0; a != NULL && k < tl_array_count(a); k++) {
            const double u = 2 * tl_rng_uniform64(m->key, 0, m->n++) - 1;
            tl_array_put(a, k, tl_array_get(a, k) * (1 + MOVE * u));
        }
        g->dx[i] = moved;
    }
}

static const tl_observer move_cotangents = {.gave = move_given};

tl_status tl_shadow_terms(tl_shadow *s)
{
    mover m = {tl_rng_stream(1, "cotangents"), 0};
    if (tl_observe(s->run, &move_cotangents, &m) != TL_OK)
        return tl_shadow_failed(s, s->run);
    for (int i = 0; i < ROLLS && tl_shadow_gradients(s, false, 0) == TL_OK; i++)
        for (int64_t k = 0; k < s->n; k++)
            s->terms[k] = fmax(s->terms[k], size_or_0(s->found[0][k] - s->g[0][k]) / MOVE);
    tl_observe_end(s->run, &move_cotangents);
    return s->err.status;
}

/* Point p of a row of points that are `by` of the leaves apart, with x0 in the middle. */
static double point(int p, double by) { return (p - POINTS / 2) * by; }

/* The root mean square of the value's fourth differences, as the error of one value. */
static double jumps(tl_shadow *s)
{
    double value[POINTS] = {0}, sum = 0;
    for (int p = 0; p < POINTS && s->err.status == TL_OK; p++) {
        move_all(s, point(p, 0x1p-16), false);
        value[p] = tl_shadow_value(s);
    }
    for (int w = 0; w < WINDOWS; w++) {
        double d = 0;
        for (int k = 0; k <= ORDER; k++)
            d += weight[k] * value[w + k];
        sum += d * d;
    }
    return s->err.status == TL_OK && isfinite(sum) ? sqrt(sum / (70 * WINDOWS)) : 0;
}

static double *diff_of(const tl_shadow *s, int w, bool errors)
{
    return s->diff + s->n * (2 * w + errors);
}

/* Fills diff with the fourth differences of the f64 gradients and, if `own`, with those of the
 * errors of the user's gradients at points that the user's dtypes hold. */
static tl_status differences(tl_shadow *s, double by, bool own)
{
    memset(s->diff, 0, (size_t)s->n * 2 * WINDOWS * sizeof *s->diff);
    for (int p = 0; p < POINTS; p++) {
        for (int k = 0; k <= own; k++) {
            move_all(s, point(p, by), own);
            TL_TRY(tl_shadow_gradients(s, k == 1, 0));
        }
        for (int w = 0; w < WINDOWS; w++) {
            if (p < w || p > w + ORDER)
                continue;
            double *smooth = diff_of(s, w, false), *error = diff_of(s, w, true);
            for (int64_t k = 0; k < s->n; k++) {
                smooth[k] += weight[p - w] * s->found[0][k];
                if (own)
                    error[k] += weight[p - w] * (s->found[1][k] - s->found[0][k]);
            }
        }
    }
    return TL_OK;
}

/* The error of one gradient that the differences of element k show: root mean square. */
static double error_in(const tl_shadow *s, int64_t k, bool errors)
{
    double sum = 0;
    for (int w = 0; w < WINDOWS; w++)
        sum += diff_of(s, w, errors)[k] * diff_of(s, w, errors)[k];
    return sqrt(sum / (70 * WINDOWS));
}

/* A wrong gradient has an error in proportion to the gradient, or to one of its terms. Where the
 * gradient itself turns between the points, that looks like noise. So four times the gradient's own
 * differences are left out, or more if it is wrong by more. If a gradient's terms cancel to nothing
 * beside the largest gradient, nobody can say by how much it is wrong. */
static double noise_of(const tl_shadow *s, int64_t k, double largest)
{
    const double g64 = s->g[0][k];
    const double wrong = fabs(g64) > 1e-12 * largest ? fabs(s->g[1][k] / g64 - 1) : 0;
    double noise = error_in(s, k, true) - fmax(4, 2 * wrong) * error_in(s, k, false);
    return isfinite(noise) && noise > 0 ? noise : 0;
}

double tl_shadow_largest(tl_shadow *s)
{
    double most = s->largest;
    if (most > 0)
        return most;
    for (uint32_t i = 0; i < atomic_load(&s->rec->values.count); i++) {
        const tl_value *v = tl_values_at(&s->rec->values, i);
        const bool there = v->st != NULL && !v->dropped && tl_dtype_is_float(v->a.dtype);
        for (int64_t k = 0; there && k < tl_array_count(&v->a); k++)
            most = fmax(most, size_or_0(tl_array_get(&v->a, k)));
    }
    return s->largest = most;
}

double tl_shadow_units(const tl_shadow *s, double unit)
{
    double largest = 0, sum = 0;
    for (int64_t i = 0; i < s->n_y; i++)
        largest = fmax(largest, fabs(s->cotangent[i]));
    for (int64_t k = 0; k < s->n; k++)
        sum += s->dir[k] * s->dir[k];
    return 8 * fmin(unit, tl_unit_of(TL_F32)) * largest * sqrt(sum);
}

/* The derivative along dir by the user's gradients at a point nearby, over that in f64. */
static double ratio_at(tl_shadow *s, double by)
{
    double slope[2];
    for (int own = 0; own < 2; own++) {
        move_all(s, by, true);
        if (tl_shadow_gradients(s, own == 1, 0) != TL_OK)
            return (double)NAN;
        slope[own] = tl_shadow_along(s, s->found[own]);
    }
    return slope[1] / slope[0];
}

bool tl_shadow_scaled(tl_shadow *s, double ratio, double unit)
{
    const double by = fmax(0x1p-9, 4 * unit); /* so that a rounded leaf moves */
    bool moves = false;                       /* zeros stay zeros */
    for (int64_t k = 0; k < s->n && !moves; k++)
        moves = s->x0[k] != 0;
    bool same = moves && ratio != 0 && isfinite(ratio);
    for (int p = 0; p < POINTS && same; p++) {
        const double r = p == POINTS / 2 ? ratio : ratio_at(s, point(p, by));
        same = fabs(r - ratio) <= 1e-4 * fabs(ratio - 1);
    }
    return same;
}

static tl_status noise_in_f64(tl_shadow *s)
{
    s->jumps = jumps(s);
    TL_TRY(s->err.status);
    TL_TRY(differences(s, 0x1p-24, false));
    for (int64_t k = 0; k < s->n; k++)
        s->noise[0][k] = size_or_0(error_in(s, k, false));
    return TL_OK;
}

static tl_status noise_in_own(tl_shadow *s)
{
    for (int roll = 1; roll <= ROLLS; roll++) {
        TL_TRY(tl_shadow_gradients(s, false, roll));
        for (int64_t k = 0; k < s->n; k++)
            s->noise[1][k] = fmax(s->noise[1][k], size_or_0(s->found[0][k] - s->g[0][k]));
    }
    TL_TRY(differences(s, 0x1p-9, true));
    double largest = 0;
    for (int64_t k = 0; k < s->n; k++)
        largest = fmax(largest, size_or_0(s->g[0][k]));
    for (int64_t k = 0; k < s->n; k++)
        s->noise[1][k] = fmax(s->noise[1][k], noise_of(s, k, largest));
    return TL_OK;
}

tl_status tl_shadow_noise(tl_shadow *s, bool own)
{
    return own ? noise_in_own(s) : noise_in_f64(s);
}
