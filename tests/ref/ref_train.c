/* Optimizers, global norm, schedules (section 12). Optimizer steps are per element in the
 * parameter's compute type, c; constants are f64 rounded to c. */
#include "tests/ref/ref.h"

#include <math.h>
#include <string.h>

/* f16 and bf16 gradients are widened; parameters and states are of c itself. */
static ref_dtype check_state(const ref_tensor *p, const ref_tensor *s, const ref_tensor *g)
{
    ref_check(p->dtype == ref_compute(p->dtype) && s->dtype == p->dtype,
              "optimizer: parameters and states of one compute type wanted");
    ref_check(ref_compute(g->dtype) == p->dtype, "optimizer: a gradient of that type wanted");
    ref_check(ref_numel(p) == ref_numel(g) && ref_numel(p) == ref_numel(s),
              "optimizer: shapes do not fit");
    return p->dtype;
}

/* 12.4: g' = g * f, then g' + (wd * p) unless decoupled or wd = 0; with momentum mu: b = (mu * b) +
 * g', and the step is by b, with Nesterov's by g' + (mu * b), else by g'; decoupled, wd * p is
 * added to that. */
void ref_sgd(ref_tensor *p, const ref_tensor *g, ref_tensor *b, double f, double lr,
             ref_sgd_options o)
{
    ref_dtype c = check_state(p, b ? b : p, g);
    double mu = ref_round(c, o.mu), wd = ref_round(c, o.wd);
    for (int64_t i = 0; i < ref_numel(p); i++) {
        double w = ref_get(p, i), decay = ref_round(c, wd * w),
               u = ref_round(c, ref_get(g, i) * ref_round(c, f));
        if (!o.decoupled && wd != 0)
            u = ref_round(c, u + decay);
        if (b) {
            double gradient = u;
            u = ref_round(c, ref_round(c, mu * ref_get(b, i)) + gradient);
            ref_set(b, i, u);
            if (o.nesterov)
                u = ref_round(c, gradient + ref_round(c, mu * u));
        }
        if (o.decoupled)
            u = ref_round(c, u + decay);
        ref_set(p, i, ref_round(c, w - ref_round(c, ref_round(c, lr) * u)));
    }
}

/* 12.3: 1/(1 - b^t) in f64 from the f64 constant, the power by t successive multiplications from 1,
 * rounded to c. */
static double correction(ref_dtype c, double b, int64_t t)
{
    double power = 1.0;
    for (int64_t i = 0; i < t; i++)
        power = power * b;
    return ref_round(c, 1.0 / (1.0 - power));
}

/* 12.3: g' = g * f; m = (b1 * m) + ((1-b1) * g'); v = (b2 * v) + (((1-b2) * g') * g'); u = (m * c1)
 * / (sqrt(v * c2) + eps); p = p - (lr * (u + wd * p)). 1-b1 is the f64 difference, rounded to c. */
void ref_adamw(ref_tensor *p, const ref_tensor *g, ref_tensor *m, ref_tensor *v, double f,
               ref_adamw_options o, int64_t t)
{
    ref_dtype c = check_state(p, m, g);
    double b1 = ref_round(c, o.b1), b2 = ref_round(c, o.b2), a1 = ref_round(c, 1.0 - o.b1),
           a2 = ref_round(c, 1.0 - o.b2), c1 = correction(c, o.b1, t), c2 = correction(c, o.b2, t);
    check_state(p, v, g);
    for (int64_t i = 0; i < ref_numel(p); i++) {
        double w = ref_get(p, i), gf = ref_round(c, ref_get(g, i) * ref_round(c, f));
        double mi = ref_round(c, ref_round(c, b1 * ref_get(m, i)) + ref_round(c, a1 * gf));
        double vi = ref_round(c, ref_round(c, b2 * ref_get(v, i)) +
                                     ref_round(c, ref_round(c, a2 * gf) * gf));
        double root = ref_round(c, sqrt(ref_round(c, vi * c2)));
        double u = ref_round(c, ref_round(c, mi * c1) / ref_round(c, root + ref_round(c, o.eps)));
        double step = ref_round(c, u + ref_round(c, ref_round(c, o.wd) * w));
        ref_set(m, i, mi);
        ref_set(v, i, vi);
        ref_set(p, i, ref_round(c, w - ref_round(c, ref_round(c, o.lr) * step)));
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

/* How many names stand before names[i], in the order of their bytes; equal names by index. */
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

/* 12.2: f = N > max ? max / N : 1 in f64; an update rounds it to its type. */
double ref_clip_factor(double norm, double max) { return norm > max ? max / norm : 1.0; }

/* 12.5: warm-up lr * (s+1)/w for s < w; cosine min + (0.5*(lr-min)) * (1 + cos(pi*u)), u =
 * (s-w)/(T-w), and 1 from s = T on. In f64, left to right. */
double ref_warmup_cosine(double lr, double min, int64_t s, int64_t warmup, int64_t total)
{
    const double pi = 0x1.921fb54442d18p+1;
    if (s < warmup)
        return lr * (double)(s + 1) / (double)warmup;
    double u = s < total ? (double)(s - warmup) / (double)(total - warmup) : 1;
    return min + (0.5 * (lr - min)) * (1.0 + ref_cos1(REF_F64, pi * u));
}
