/* Recurrent layers: 6.18, and 6.19. */
#include "tests/ref/ref.h"

#include <math.h>
#include <stdlib.h>

enum { MOST = 300 }; /* units */

static int gates_of(ref_cell cell) { return cell == REF_LSTM ? 4 : cell == REF_GRU ? 3 : 1; }

/* Element e of x, rounding what a step makes. */
static double r32(const ref_tensor *x, double v) { return ref_round(ref_compute(x->dtype), v); }

static double initial(const ref_tensor *x, int64_t i, int64_t j, int64_t n)
{
    return x == NULL ? 0 : ref_get(x, x->ndim == 1 ? j : i * n + j);
}

static int made(const ref_recur_options *o, int64_t i, int64_t t)
{
    return (o->start == NULL || t >= ref_get_i64(o->start, i)) &&
           (o->end == NULL || t < ref_get_i64(o->end, i));
}

/* u_k of 6.18. */
static double from_state(const ref_tensor *w, const ref_tensor *bias, const double *h, int64_t n,
                         int64_t k)
{
    ref_dtype c = ref_compute(w->dtype);
    double u = 0;
    for (int64_t i = 0; i < n; i++)
        u = ref_fma(c, h[i], ref_get(w, k * n + i), u);
    u += 0.0;
    return bias == NULL ? u : ref_round(c, u + ref_get(bias, k));
}

static void one_step(const ref_tensor *g, int64_t row, const double *u, const ref_recur_options *o,
                     int64_t n, double *h, double *cell, double *a)
{
    ref_dtype c = ref_compute(g->dtype);
    for (int64_t j = 0; j < n; j++) {
        double x[4], s[4];
        int gates = gates_of(o->cell);
        for (int k = 0; k < gates; k++)
            x[k] = ref_round(c, ref_get(g, row * gates * n + k * n + j) + u[k * n + j]);
        if (o->cell == REF_LSTM) {
            for (int k = 0; k < 4; k++)
                a[k * n + j] = s[k] = k == 2 ? ref_tanh1(c, x[k]) : ref_sigmoid1(c, x[k]);
            double v = ref_round(c, ref_round(c, s[1] * cell[j]) + ref_round(c, s[0] * s[2]));
            cell[j] = ref_round(g->dtype, v);
            h[j] = ref_round(g->dtype, ref_round(c, s[3] * ref_tanh1(c, cell[j])));
        } else if (o->cell == REF_GRU) {
            double v = u[2 * n + j], r = ref_sigmoid1(c, x[0]), z = ref_sigmoid1(c, x[1]);
            double m = ref_tanh1(c, ref_round(c, ref_get(g, row * 3 * n + 2 * n + j) +
                                                     ref_round(c, r * v)));
            a[j] = r, a[n + j] = z, a[2 * n + j] = m, a[3 * n + j] = v;
            double one = ref_round(c, ref_round(c, 1 - z) * m);
            h[j] = ref_round(g->dtype, ref_round(c, one + ref_round(c, z * h[j])));
        } else {
            double v = o->cell == REF_TANH       ? ref_tanh1(c, x[0])
                       : x[0] > 0 || isnan(x[0]) ? x[0]
                                                 : 0;
            h[j] = ref_round(g->dtype, v);
        }
    }
}

void ref_recur(const ref_tensor *g, const ref_tensor *w, const ref_tensor *bias,
               ref_recur_options o, ref_tensor *y, ref_tensor *c, ref_tensor *a, ref_tensor last[2])
{
    int64_t n = w->dim[1], gates = gates_of(o.cell), s = g->dim[1];
    ref_check(n <= MOST, "recur: too many units");
    *y = ref_new(g->dtype, 3, (int64_t[]){g->dim[0], s, n});
    *c = ref_new(g->dtype, 3, (int64_t[]){g->dim[0], s, o.cell == REF_LSTM ? n : 0});
    *a = ref_new(ref_compute(g->dtype), 3, (int64_t[]){g->dim[0], s, gates > 1 ? 4 * n : 0});
    last[0] = ref_new(g->dtype, 2, (int64_t[]){g->dim[0], n});
    last[1] = ref_new(g->dtype, 2, (int64_t[]){g->dim[0], c->dim[2] > 0 ? n : 0});
    for (int64_t i = 0; i < g->dim[0]; i++) {
        double h[MOST], cell[MOST], u[4 * MOST], act[4 * MOST];
        for (int64_t j = 0; j < n; j++) {
            h[j] = initial(o.h0, i, j, n);
            cell[j] = initial(o.c0, i, j, n);
        }
        for (int64_t k = 0; k < s; k++) {
            int64_t t = o.reverse ? s - 1 - k : k, row = i * s + t;
            for (int64_t j = 0; j < 4 * n; j++)
                act[j] = 0;
            if (made(&o, i, t)) {
                for (int64_t j = 0; j < gates * n; j++)
                    u[j] = from_state(w, bias, h, n, j);
                one_step(g, row, u, &o, n, h, cell, act);
            }
            for (int64_t j = 0; j < n; j++)
                ref_set(y, row * n + j, h[j]);
            for (int64_t j = 0; j < c->dim[2]; j++)
                ref_set(c, row * n + j, cell[j]);
            for (int64_t j = 0; j < a->dim[2]; j++)
                ref_set(a, row * 4 * n + j, act[j]);
        }
        for (int64_t j = 0; j < n; j++) {
            if (last[0].dim[1] > 0)
                ref_set(&last[0], i * n + j, h[j]);
            if (last[1].dim[1] > 0)
                ref_set(&last[1], i * n + j, cell[j]);
        }
    }
}

/* The state before the k-th step: the first one, where the step before is left out. */
static double before(const ref_tensor *x, const ref_tensor *first, const ref_recur_options *o,
                     int64_t i, int64_t k, int64_t j, int64_t n)
{
    int64_t s = x->dim[1], last = o->reverse ? s - k : k - 1;
    return k == 0 || !made(o, i, last) ? initial(first, i, j, n)
                                       : ref_get(x, (i * s + last) * n + j);
}

static double plus(const ref_tensor *x, double v, const ref_tensor *y, int64_t at)
{
    return y == NULL ? v : r32(x, v + ref_get(y, at));
}

void ref_recur_grad(const ref_tensor *dy, const ref_tensor *dc, const ref_tensor *da,
                    const ref_tensor *y, const ref_tensor *c, const ref_tensor *a,
                    const ref_tensor *w, ref_recur_options o, ref_tensor out[4])
{
    int64_t n = y->dim[2], s = y->dim[1], b = y->dim[0], gates = gates_of(o.cell);
    out[0] = ref_new(y->dtype, 3, (int64_t[]){b, s, gates * n});
    out[1] = ref_new(y->dtype, 3, (int64_t[]){b, s, o.cell == REF_GRU ? gates * n : 0});
    out[2] = ref_new(y->dtype, 2, (int64_t[]){b, n});
    out[3] = ref_new(y->dtype, 2, (int64_t[]){b, o.cell == REF_LSTM ? n : 0});
#define R(v) r32(y, v)
    for (int64_t i = 0; i < b; i++) {
        double P[MOST], Q[MOST], u[4 * MOST], v[MOST];
        for (int64_t j = 0; j < n; j++) {
            P[j] = initial(o.dhn, i, j, n);
            Q[j] = initial(o.dcn, i, j, n);
        }
        for (int64_t k = s; k-- > 0;) {
            int64_t t = o.reverse ? s - 1 - k : k, row = i * s + t, at = row * 4 * n;
            for (int64_t j = 0; j < n; j++) {
                P[j] = plus(y, P[j], dy, row * n + j);
                if (o.cell == REF_LSTM)
                    Q[j] = plus(y, Q[j], dc, row * n + j);
            }
            if (!made(&o, i, t))
                continue;
            for (int64_t j = 0; j < n; j++) {
                double x[4], d[4];
                for (int g = 0; g < 4 && gates > 1; g++)
                    x[g] = ref_get(a, at + g * n + j);
                if (o.cell == REF_LSTM) {
                    double th = ref_tanh1(ref_compute(y->dtype), ref_get(c, row * n + j));
                    Q[j] = R(Q[j] + R(R(P[j] * x[3]) * R(1 - R(th * th))));
                    d[0] = R(Q[j] * x[2]);
                    d[1] = R(Q[j] * before(c, o.c0, &o, i, k, j, n));
                    d[2] = R(Q[j] * x[0]);
                    d[3] = R(P[j] * th);
                    for (int g = 0; g < 4; g++) {
                        d[g] = plus(y, d[g], da, at + g * n + j);
                        u[g * n + j] = R(d[g] *
                                         (g == 2 ? R(1 - R(x[2] * x[2])) : R(x[g] * R(1 - x[g]))));
                    }
                    Q[j] = R(Q[j] * x[1]);
                    P[j] = 0;
                } else if (o.cell == REF_GRU) {
                    double dn = plus(y, R(P[j] * R(1 - x[1])), da, at + 2 * n + j),
                           m = R(dn * R(1 - R(x[2] * x[2]))),
                           dz = R(P[j] * R(before(y, o.h0, &o, i, k, j, n) - x[2]));
                    u[j] = R(plus(y, R(m * x[3]), da, at + j) * R(x[0] * R(1 - x[0])));
                    u[n + j] = R(plus(y, dz, da, at + n + j) * R(x[1] * R(1 - x[1])));
                    u[2 * n + j] = plus(y, R(m * x[0]), da, at + 3 * n + j);
                    ref_set(&out[0], row * 3 * n + 2 * n + j, m);
                    P[j] = R(P[j] * x[1]);
                } else {
                    double h = ref_get(y, row * n + j);
                    u[j] = o.cell == REF_TANH ? R(P[j] * R(1 - R(h * h))) : h > 0 ? P[j] : 0;
                    P[j] = 0;
                }
            }
            for (int64_t j = 0; j < gates * n; j++) {
                if (o.cell != REF_GRU || j < 2 * n)
                    ref_set(&out[0], row * gates * n + j, u[j]);
                if (o.cell == REF_GRU)
                    ref_set(&out[1], row * gates * n + j, u[j]);
            }
            for (int64_t j = 0; j < n; j++) {
                v[j] = 0;
                for (int64_t g = 0; g < gates * n; g++)
                    v[j] = ref_fma(ref_compute(y->dtype), u[g], ref_get(w, g * n + j), v[j]);
                v[j] += 0.0;
            }
            for (int64_t j = 0; j < n; j++)
                P[j] = o.cell == REF_GRU ? R(P[j] + v[j]) : v[j];
        }
        for (int64_t j = 0; j < n; j++) {
            ref_set(&out[2], i * n + j, P[j]);
            if (o.cell == REF_LSTM)
                ref_set(&out[3], i * n + j, Q[j]);
        }
    }
#undef R
}

void ref_recur_weight(const ref_tensor *du, const ref_tensor *y, ref_recur_options o,
                      ref_tensor *acc)
{
    int64_t n = y->dim[2], s = y->dim[1], rows = du->dim[2];
    for (int64_t k = 0; k < rows * n; k++) {
        double v = ref_get(acc, k);
        for (int64_t i = 0; i < y->dim[0]; i++)
            for (int64_t t = 0; t < s; t++)
                v = ref_fma(acc->dtype, ref_get(du, (i * s + t) * rows + k / n),
                            before(y, o.h0, &o, i, o.reverse ? s - 1 - t : t, k % n, n), v);
        ref_set(acc, k, v + 0.0);
    }
}
