/* Optimizers, global norm, schedules (section 12). Optimizer steps are f32 per element; constants
 * are f64 rounded to f32. */
#include "tests/ref/ref.h"

#include <math.h>
#include <string.h>

static double f32(double v) { return ref_round(REF_F32, v); }

/* NUMERICS does not say: parameters and states of other dtypes than f32, and f64 gradients. They
 * are refused here; f16 and bf16 gradients are widened. */
static void check_state(const ref_tensor *p, const ref_tensor *s, const ref_tensor *g)
{
    ref_check(p->dtype == REF_F32 && s->dtype == REF_F32,
              "optimizer: f32 parameters and states wanted");
    ref_check(ref_compute(g->dtype) == REF_F32, "optimizer: an f32, f16 or bf16 gradient wanted");
    ref_check(ref_numel(p) == ref_numel(g) && ref_numel(p) == ref_numel(s),
              "optimizer: shapes do not fit");
}

/* p = p - (lr * (u + wd * p)), the last line of 12.3 and 12.4. */
static double step(double p, double u, double lr, double wd)
{
    double decay = f32(f32(wd) * p);
    double direction = f32(u + decay);
    return f32(p - f32(f32(lr) * direction));
}

/* 12.4: g' = g * f; with momentum mu: b = (mu * b) + g', else b = g'. */
void ref_sgd(ref_tensor *p, const ref_tensor *g, ref_tensor *b, double f, double lr, double mu,
             double wd)
{
    check_state(p, b ? b : p, g);
    for (int64_t i = 0; i < ref_numel(p); i++) {
        double u = f32(ref_get(g, i) * f32(f));
        if (b) {
            u = f32(f32(f32(mu) * ref_get(b, i)) + u);
            ref_set(b, i, u);
        }
        ref_set(p, i, step(ref_get(p, i), u, lr, wd));
    }
}

/* 12.3: 1/(1 - b^t) in f64, the power by t successive multiplications, rounded to f32.
 * NUMERICS does not say: whether b here is the f64 constant or its f32 rounding. It is here the f64
 * one; the product starts at 1. */
static double correction(double b, int64_t t)
{
    double power = 1.0;
    for (int64_t i = 0; i < t; i++)
        power = power * b;
    return f32(1.0 / (1.0 - power));
}

/* 12.3: g' = g * f; m = (b1 * m) + ((1-b1) * g'); v = (b2 * v) + (((1-b2) * g') * g'); u = (m * c1)
 * / (sqrt(v * c2) + eps). 1-b1 is the f64 difference, rounded to f32. */
void ref_adamw(ref_tensor *p, const ref_tensor *g, ref_tensor *m, ref_tensor *v, double f,
               ref_adamw_options o, int64_t t)
{
    double b1 = f32(o.b1), b2 = f32(o.b2), a1 = f32(1.0 - o.b1), a2 = f32(1.0 - o.b2);
    double c1 = correction(o.b1, t), c2 = correction(o.b2, t);
    check_state(p, m, g);
    check_state(p, v, g);
    for (int64_t i = 0; i < ref_numel(p); i++) {
        double gf = f32(ref_get(g, i) * f32(f));
        double mi = f32(f32(b1 * ref_get(m, i)) + f32(a1 * gf));
        double vi = f32(f32(b2 * ref_get(v, i)) + f32(f32(a2 * gf) * gf));
        double denominator = f32(f32(sqrt(f32(vi * c2))) + f32(o.eps));
        double u = f32(f32(mi * c1) / denominator);
        ref_set(m, i, mi);
        ref_set(v, i, vi);
        ref_set(p, i, step(ref_get(p, i), u, o.lr, o.wd));
    }
}

/* 12.2: per tensor the lanes' sum of squares in f64 over the flattened gradient. */
static double sum_of_squares(const ref_tensor *g)
{
    ref_lanes s;
    ref_lanes_start(&s, REF_F64);
    for (int64_t i = 0; i < ref_numel(g); i++)
        ref_lanes_add(&s, i, ref_get(g, i) * ref_get(g, i));
    return ref_lanes_sum(&s);
}

/* How many names stand before names[i]; NUMERICS does not say: what order. It is here that of the
 * bytes (strcmp); equal names by index. */
static int rank(int n, const char *const *names, int i)
{
    int r = 0;
    for (int j = 0; j < n; j++) {
        int o = strcmp(names[j], names[i]);
        r += o < 0 || (o == 0 && j < i);
    }
    return r;
}

/* 12.2: the tensors' sums are folded in f64 in order of name; N = sqrt of that. */
double ref_global_norm(int n, const ref_tensor *const *g, const char *const *names)
{
    double acc = 0.0;
    for (int r = 0; r < n; r++)
        for (int i = 0; i < n; i++)
            if (rank(n, names, i) == r)
                acc = acc + sum_of_squares(g[i]);
    return sqrt(acc);
}

/* 12.2: f = N > max ? max / N : 1 in f64, rounded to f32. */
double ref_clip_factor(double norm, double max) { return f32(norm > max ? max / norm : 1.0); }

/* 12.5: warm-up lr * (t+1)/w for t < w; cosine min + (0.5*(lr-min)) * (1 + cos(pi*u)), u =
 * (t-w)/(T-w). In f64, left to right. NUMERICS does not say: t > T. The formula is here taken as it
 * stands (the cosine rises again). */
double ref_warmup_cosine(double lr, double min, int64_t t, int64_t warmup, int64_t total)
{
    const double pi = 0x1.921fb54442d18p+1;
    if (t < warmup)
        return lr * (double)(t + 1) / (double)warmup;
    double u = (double)(t - warmup) / (double)(total - warmup);
    return min + (0.5 * (lr - min)) * (1.0 + ref_cos1(REF_F64, pi * u));
}
