/* judge.c: one check of a function's gradients. The function is recorded, its numeric derivatives
 * are compared with its analytic gradients, the comparisons are judged, and the worst one is kept.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "autograd/check/shadow.h"
#include "tensor/threads.h"

/* ---- recording ---- */

/* A random sign times 1/2 to 3/2: no cotangent is near zero, and no two are alike. */
static double draw(tl_checker *c)
{
    double u = tl_rng_uniform64(c->key, 0, c->draws++);
    return u < 0.5 ? -(0.5 + 2 * u) : 2 * u - 0.5;
}

static tl_dtype coarser(tl_dtype a, tl_dtype b) { return tl_unit_of(b) > tl_unit_of(a) ? b : a; }

/* The coarsest dtype that gradients pass through: of the leaves and of all that is computed from
 * them. */
static tl_status find_unit(tl_checker *c)
{
    tl_tape *t = c->s.rec;
    uint32_t *order, n;
    c->dtype = TL_F64;
    for (int i = 0; i < c->s.n_leaves; i++)
        c->dtype = coarser(c->dtype, c->s.leaf[i].v->a.dtype);
    if (tl_canonical_order(t, c->s.y, TL_TO_GRAD, &order, &n) != TL_OK)
        return tl_fail(&c->s.err, TL_ENOMEM, "no memory to order the nodes");
    for (uint32_t i = 0; i < n; i++)
        for (int j = 0; j < t->node[order[i]].n_out; j++) {
            const tl_value *v = tl_values_at(&t->values, t->node[order[i]].out + (uint32_t)j);
            if (v->needs_grad)
                c->dtype = coarser(c->dtype, v->a.dtype);
        }
    c->unit = tl_unit_of(c->dtype);
    return TL_OK;
}

/* A random cotangent that all dtypes that gradients pass through hold exactly, with all the bits of
 * the coarsest of them, so that any further rounding on the way shows. */
static tl_status make_cotangent(tl_checker *c)
{
    tl_shadow *s = &c->s;
    s->n_y = tl_array_count(&tl_peek(s->rec, s->y)->a);
    s->cotangent = tl_calloc((size_t)s->n_y, sizeof *s->cotangent);
    if (s->cotangent == NULL)
        return tl_fail(&s->err, TL_ENOMEM, "no memory for a cotangent of %lld elements",
                       (long long)s->n_y);
    for (int64_t i = 0; i < s->n_y; i++)
        s->cotangent[i] = tl_rounded_to(c->dtype, draw(c));
    return TL_OK;
}

tl_status tl_check_begin(tl_checker *c, const tl_subject *f)
{
    const tl_at at = f->at;
    tl_tape *t = at.tape;
    if (tl_failed(t))
        return tl_fail(&c->s.err, tl_error_status(t), "the tape has failed before: %s",
                       tl_error(t));
    if (c->o.directions < 0 || c->o.elements < 0)
        tl_tape_fail(at, TL_EUSAGE, "%s: %d directions and %d elements a leaf", c->who,
                     c->o.directions, c->o.elements);
    else if (tl_mode(t) & TL_TRACE)
        tl_tape_fail(at, TL_ETRACED, "%s: reads values, which a traced function has not", c->who);
    else if (f->f == NULL)
        tl_tape_fail(at, TL_EUSAGE, "%s: there is no function: it is NULL", c->who);
    else if (f->n < 0 || (f->n > 0 && f->in == NULL))
        tl_tape_fail(at, TL_EUSAGE, "%s: %d inputs%s", c->who, f->n,
                     f->n < 0 ? "" : " are announced, but their array is NULL");
    return tl_shadow_failed(&c->s, t);
}

tl_status tl_check_record(tl_checker *c, const tl_subject *f)
{
    tl_shadow *s = &c->s;
    tl_tape *t = f->at.tape;
    c->key = tl_rng_stream(c->o.seed ? c->o.seed : 20, "tl_gradcheck");
    s->rec = tl_tape_new(t->model);
    s->run = tl_tape_new(t->model);
    s->copies = tl_calloc(2 * (size_t)f->n, sizeof *s->copies);
    if (s->copies == NULL || s->rec == NULL || s->run == NULL)
        return tl_fail(&s->err, TL_ENOMEM, "no memory for the tapes of the check");
    tl_observe_like(s->rec, t); /* a failure sticks to the tape, which then records nothing */
    tl_observe_like(s->run, t);
    TL_TRY(tl_shadow_record(f, c->who, !c->o.skip_inputs, s->rec, s->copies, &s->y, &s->err));
    const tl_value *y = tl_peek(s->rec, s->y);
    c->empty = !tl_dtype_is_float(y->a.dtype) || !y->needs_grad;
    if (c->empty)
        return tl_fail(
            &s->err, TL_ENOGRAD,
            "the function's result is not a floating tensor that depends on an input or parameter");
    TL_TRY(tl_check_sanity(c, f));
    TL_TRY(tl_shadow_leaves(s, s->copies, f->n, !c->o.skip_inputs));
    TL_TRY(find_unit(c));
    TL_TRY(make_cotangent(c));
    TL_TRY(tl_shadow_analytic(s));
    TL_TRY(tl_shadow_sway(s, c->unit));
    return tl_shadow_terms(s);
}

/* ---- judging ---- */

/* Root mean square of x, an array by element, over a leaf. */
static double rms(const double *x, const tl_shadow_leaf *l)
{
    double sum = 0;
    for (int64_t i = l->first; i < l->first + l->n; i++)
        sum = tl_hypotenuse(sum, x[i]);
    return sum / sqrt((double)(l->n ? l->n : 1));
}

/* The same, not a mean, of x times dir. */
static double norm_along(const tl_shadow *s, const double *x)
{
    double sum = 0;
    for (int64_t k = 0; k < s->n; k++)
        sum = tl_hypotenuse(sum, s->dir[k] != 0 ? x[k] * s->dir[k] : 0);
    return sum;
}

/* A derivative along a path that is compared, and its values by the gradients. */
typedef struct {
    tl_path path;
    tl_numeric num;
    double g[2];                  /* by the analytic gradients */
    double scale;                 /* its size */
    double terms;                 /* and that of its terms, which may cancel */
    double sway;                  /* how far a rounding of the leaves moves it */
    double tolerance[2], over[2]; /* by compare() */
    const char *why;              /* the text for it where every op is right by itself */
} derivative;

static void note(tl_checker *c, tl_verdict v, const derivative *d, double excess)
{
    static const int weight[] = {0, 4, 3, 2, 1}; /* wrong outweighs kink outweighs ... */
    tl_gradcheck_report *r = c->r;
    const tl_shadow_leaf *l = d->path.leaf;
    if (weight[v] < weight[r->verdict] || (v == r->verdict && !(excess > c->worst)))
        return;
    c->worst = excess;
    c->worst_leaf = l == NULL ? -1 : (int)(l - c->s.leaf);
    c->why = d->why;
    r->verdict = v;
    r->element = d->path.element;
    r->numeric = d->num.value;
    r->error = d->num.error;
    c->below = d->num.below;
    c->above = d->num.above;
    r->analytic = isnan(d->g[1]) ? (double)NAN : d->g[1]; /* a NaN without a sign */
    r->analytic_f64 = isnan(d->g[0]) ? (double)NAN : d->g[0];
    const double off = fabs(d->num.value - d->g[1]);
    r->relative = off / fmax(fmax(fabs(d->num.value), fabs(d->g[1])), 1e-300);
    r->ulps = off / (2 * c->unit * fmax(fabs(d->g[1]), 1e-300));
    snprintf(r->leaf, sizeof r->leaf, "%s", l == NULL ? "all leaves at once" : l->name);
}

/* The part of the gradient that roundings, all in one direction, may amount to. 2000 units of f16
 * would be all of it, and of bf16 8 times as much, so that nothing could be wrong there. 64 are 3%
 * and 25%. */
static double roundings(double unit) { return (unit > 0x1p-20 ? 64 : 2000) * unit; }

/* How far the numeric derivative is from each analytic one, in tolerances. */
static void compare(const tl_checker *c, derivative *d)
{
    d->tolerance[0] = 4 * d->num.error + 1e-9 * d->terms;
    d->tolerance[1] = d->tolerance[0] + roundings(c->unit) * d->scale +
                      fmin(32 * d->sway, 0.25 * d->scale);
    for (int own = 0; own < 2; own++)
        d->over[own] = fabs(d->num.value - d->g[own]) / d->tolerance[own];
}

/* Clears an error: a point nearby may lie outside the function's domain. */
static void forgive(tl_checker *c)
{
    if (c->s.err.status == TL_OK || c->s.err.status == TL_ENOMEM)
        return;
    c->s.err = (tl_err){.status = TL_OK};
    tl_error_clear(c->s.run);
}

/* How far the roundings of a run move the derivative along a path. */
static double noise_at(tl_checker *c, const tl_path *p, bool own)
{
    const double *noise = c->s.noise[own];
    if (!c->noised[own] && tl_shadow_noise(&c->s, own) != TL_OK)
        forgive(c);
    c->noised[own] = true;
    if (p->element >= 0)
        return fmax(noise[p->leaf->first + p->element], rms(noise, p->leaf));
    return norm_along(&c->s, noise);
}

/* The error that some units of 1 make in a derivative by that step, if values are as large: an op
 * may add 1 and take it away again (1 - tanh^2, 1 + erf). */
static double units_of_1(tl_checker *c, double step)
{
    return 64 * 0x1p-52 * fmin(1, tl_shadow_largest(&c->s)) / step;
}

/* Both are within their tolerances except for the measured effect of roundings. Ridders' estimate
 * is no bound: the jumps of the value may be more, but so may those of a function that asks whether
 * x == 1. So in f64, where few digits are ever lost, no more than 1e-6 of the gradient is excused,
 * or some units of 1. */
static bool is_lost(tl_checker *c, derivative d)
{
    double noise[2] = {0, 0};
    if (d.over[0] > 1) {
        noise[0] = fmax(fmin(32 * noise_at(c, &d.path, false), 1e-6 * d.scale),
                        units_of_1(c, d.num.step));
        d.num.error = fmax(d.num.error, fmin(2 * c->s.jumps / d.num.step, 2.5e-7 * d.scale));
        compare(c, &d);
    }
    if (d.over[1] > 1)
        noise[1] = noise[0] + 32 * (noise_at(c, &d.path, true) + d.sway +
                                    c->unit * (d.terms - d.scale)); /* of terms that cancel */
    if (d.over[0] <= 1 && d.over[1] > 1) {
        const bool scaled = tl_shadow_scaled(&c->s, d.g[1] / d.g[0], c->unit);
        forgive(c);
        noise[1] = fmax(noise[1], scaled ? 0 : tl_shadow_units(&c->s, c->unit));
    }
    for (int own = 0; own < 2; own++)
        if (!((d.over[own] - 1) * d.tolerance[own] <= noise[own]))
            return false;
    return true;
}

static derivative take(tl_checker *c, tl_path path)
{
    const tl_shadow *s = &c->s;
    derivative d = {.path = path, .num = tl_shadow_derivative(&c->s, &path)};
    const bool one = path.element >= 0;
    const double size = one ? rms(s->g[0], path.leaf) : norm_along(s, s->g[0]);
    const double terms = one ? rms(s->terms, path.leaf) : norm_along(s, s->terms);
    for (int own = 0; own < 2; own++)
        d.g[own] = tl_shadow_along(s, s->g[own]);
    d.scale = fmax(fmax(fabs(d.num.value), fabs(d.g[0])), fmax(size, 1e-6 * c->largest));
    d.terms = fmax(d.scale, terms);
    d.sway = norm_along(s, s->sway);
    compare(c, &d);
    return d;
}

/* Two falling steps in a row agree with the f64 gradient, by differences far more exact than the
 * `off` that they contradict: the second counts. */
static bool agrees(tl_checker *c, derivative *d, double step, double last, double off)
{
    for (int agree = 0; step > last; step /= 8) {
        derivative near = *d;
        near.num = tl_shadow_derivative_from(&c->s, step);
        compare(c, &near);
        const double error = fmax(near.num.error, 2 * c->s.jumps / near.num.step);
        agree = near.over[0] <= 1 && error < 0.1 * off ? agree + 1 : 0;
        if (agree == 2) {
            *d = near;
            return true;
        }
    }
    return false;
}

/* Where many bends lie close together large steps can agree by chance, and Ridders' estimate of the
 * error is none; so is that of steps which suit a mask's -1e30, but not the scores beside it. A
 * wrong gradient is wrong at every step, so the small ones are asked. A value that jumps, as one
 * that is rounded, has no slope at small steps: what the jumps amount to counts as error, and no
 * gradient of zero is excused. */
static void look_closer(tl_checker *c, derivative *d)
{
    const double off = fabs(d->num.value - d->g[0]), all = tl_shadow_size(&c->s, &d->path);
    const double size = all > 0 ? all : 1;
    if (!(d->over[0] > 1) || d->g[0] == 0)
        return;
    noise_at(c, &d->path, false); /* measures the jumps */
    if (!agrees(c, d, 1e-3 * size, 1e-9 * size, off) && size > 1e7)
        agrees(c, d, 1e-2, 1e-8, off);
}

/* The numeric derivative contradicts the f64 gradient only because the function bends within the
 * steps, and the gradient in the user's dtypes lies between the slopes of both sides. */
static bool is_bent(tl_checker *c, const derivative *d)
{
    const double off = fabs(d->num.value - d->g[0]);
    if (!(d->over[0] > 1) || fabs(d->num.value - d->g[1]) > 1.2 * off + d->tolerance[1])
        return false;
    const bool bends = tl_shadow_bends(&c->s, &d->num, off);
    forgive(c);
    return bends;
}

/* Judges the derivative along a path. Returns whether there is a signal: not 0 on both sides. */
static bool judge(tl_checker *c, tl_path path)
{
    derivative d = take(c, path);
    look_closer(c, &d);
    const tl_numeric num = d.num;
    const double *over = d.over, large = fmax(1e-4 * d.scale, 1e-9 * d.terms);
    const bool there = isfinite(d.g[1]) && isfinite(d.g[0]), finite = there && isfinite(num.value);
    tl_verdict v = TL_RIGHT;
    const bool fine64 = isfinite(d.g[0]) && over[0] <= 1;
    d.why = finite  ? "and in f64 so is the whole; in %s it is off by more than roundings"
            : there ? "but the whole has no finite values beside this point to compare with"
                    : "and in f64 so is the whole; in %s it is not finite, as after an overflow";
    if (!finite) {
        v = there ? TL_PRECISION_LIMITED : TL_WRONG;
        c->lost |= there;
    } else if (fabs(num.bend) > large && fabs(num.bend) > units_of_1(c, num.smallest)) {
        v = TL_KINK;
    } else if (d.g[1] == 0 && d.g[0] == 0 && fabs(num.value) <= num.error) {
        v = TL_RIGHT; /* nothing on either side: no signal, if it is so everywhere */
    } else if (num.error > large) {
        v = TL_PRECISION_LIMITED;
        d.why = "but differences of the whole are not exact enough to compare with";
    } else if ((over[0] > 1 || over[1] > 1) && is_lost(c, d)) {
        v = TL_PRECISION_LIMITED;
        d.why = fine64 ? "and in f64 so is the whole; in %s it has lost digits"
                       : "but in f64 the whole has lost digits";
        c->lost = true;
    } else if (over[0] > 1 || over[1] > 1) {
        v = is_bent(c, &d) ? TL_KINK : TL_WRONG;
    }
    if (v == TL_KINK)
        d.why = "but the whole has a bend there";
    c->in_f64 |= v == TL_WRONG && !fine64;
    c->r->compared++;
    if (c->only > 0 && path.element >= 0 && c->n_seen < TL_SEEN)
        c->seen[c->n_seen++] = (tl_compared){.element = path.element,
                                             .numeric = num.value,
                                             .analytic = d.g[fine64],
                                             .wrong = v == TL_WRONG};
    note(c, v, &d, finite ? fmax(over[0], over[1]) : HUGE_VAL);
    return finite && fmax(fmax(fabs(num.value), fabs(d.g[0])), 1e-3 * fabs(d.g[1])) >
                         1e-9 * fmax(c->largest, d.terms);
}

/* ---- the comparisons ---- */

void tl_check_aim(tl_checker *c, const tl_path *p)
{
    double *dir = c->s.dir;
    memset(dir, 0, (size_t)c->s.n * sizeof *dir);
    if (p->element >= 0) {
        dir[p->leaf->first + p->element] = 1;
        return;
    }
    for (int i = 0; i < c->s.n_leaves; i++)
        for (int64_t k = 0; tl_path_moves(p, &c->s.leaf[i]) && k < c->s.leaf[i].n; k++)
            dir[c->s.leaf[i].first + k] = draw(c);
}

/* Judges element e of a leaf; e < 0: a random direction (l NULL: through all leaves at once). */
static bool check_along(tl_checker *c, tl_shadow_leaf *l, int64_t e)
{
    const tl_path path = {l, e};
    tl_check_aim(c, &path);
    return judge(c, path);
}

/* Sets dir to `whole` from element lo to hi of the leaf, to zero elsewhere, and returns by how much
 * the gradient g is wrong along it. */
static double error_along(tl_checker *c, tl_shadow_leaf *l, const double *whole, int64_t lo,
                          int64_t hi, const double *g)
{
    double *dir = c->s.dir;
    memset(dir, 0, (size_t)c->s.n * sizeof *dir);
    memcpy(dir + l->first + lo, whole + lo, (size_t)(hi - lo) * sizeof *dir);
    double error = tl_shadow_derivative(&c->s, &(tl_path){l, -1}).value;
    for (int64_t i = lo; i < hi; i++)
        error -= g[i] * whole[i];
    return error;
}

/* Judges an element that is not finite or, found by halving, the one that most of the error along a
 * direction comes from. The error of a range is that along the part of the direction in it. */
static tl_status hunt(tl_checker *c, tl_shadow_leaf *l)
{
    for (int64_t i = 0; i < l->n; i++)
        if (!isfinite(c->s.g[0][l->first + i]) || !isfinite(c->s.g[1][l->first + i]))
            return check_along(c, l, i), c->s.err.status;
    double *whole = tl_calloc((size_t)l->n, sizeof *whole);
    if (whole == NULL)
        return tl_fail(&c->s.err, TL_ENOMEM, "no memory for %lld elements", (long long)l->n);
    for (int64_t i = 0; i < l->n; i++)
        whole[i] = draw(c);
    bool own = !(fabs(c->r->numeric - c->r->analytic_f64) >
                 0.5 * fabs(c->r->numeric - c->r->analytic));
    const double *g = c->s.g[own] + l->first;
    int64_t lo = 0, hi = l->n;
    double error = error_along(c, l, whole, lo, hi, g);
    while (hi - lo > 1 && c->s.err.status == TL_OK) {
        int64_t middle = lo + (hi - lo) / 2;
        double left = error_along(c, l, whole, lo, middle, g);
        bool go_left = fabs(left) >= fabs(error - left);
        *(go_left ? &hi : &lo) = middle;
        error = go_left ? left : error - left;
    }
    tl_free_raw(whole);
    check_along(c, l, lo);
    return c->s.err.status;
}

static tl_status check_leaf(tl_checker *c, tl_shadow_leaf *l)
{
    int directions = c->o.directions ? c->o.directions : 2;
    int64_t elements = c->o.all ? l->n : c->o.elements ? c->o.elements : 8;
    bool signal = false;
    for (int i = 0; i < directions && l->n > 1; i++)
        signal |= check_along(c, l, -1);
    for (int64_t k = 0; k < elements && k < l->n; k++) {
        int64_t e = l->n <= elements ? k
                                     : (int64_t)tl_rng_below(c->key, 1, c->draws++, (uint64_t)l->n);
        signal |= check_along(c, l, e);
    }
    if (c->only > 0 && l->n > elements && c->r->verdict == TL_WRONG)
        hunt(c, l);
    if (!signal && !c->o.constant_ok)
        note(c, TL_NO_SIGNAL, &(derivative){.path = {l, -1}}, 0);
    c->signal |= signal;
    return c->s.err.status;
}

/* Moves the leaves that are checked a little, at random, and takes the analytic gradients there:
 * those in f64 for both if they are what is wrong; else the leaves move to numbers that their
 * dtypes hold. back: puts them back where they were recorded. */
static tl_status step_aside(tl_checker *c, bool back)
{
    tl_shadow *s = &c->s;
    const double by = c->in_f64 ? 0x1p-9 : fmax(0x1p-9, 8 * c->unit);
    for (int i = 0; i < s->n_leaves; i++) {
        tl_shadow_leaf *l = &s->leaf[i];
        const tl_dtype d = c->in_f64 ? TL_F64 : l->v->a.dtype;
        const double size = tl_shadow_size(s, &(tl_path){l, -1});
        for (int64_t k = 0; l->checked && k < l->n; k++) {
            const double x = tl_array_get(&l->v->a, k);
            s->x0[l->first + k] = tl_rounded_to(d, back ? x : x + by * size * draw(c));
            s->x[l->first + k] = s->x0[l->first + k];
        }
    }
    for (int own = 0; own < 2 && !back; own++) {
        const bool wide = own == 0 || c->in_f64;
        TL_TRY(tl_shadow_gradients(s, !wide, 0));
        memcpy(s->g[own], s->found[!wide], (size_t)s->n * sizeof(double));
    }
    return s->err.status;
}

void tl_check_beside(tl_checker *c)
{
    tl_checker at_x0 = *c;
    tl_shadow_leaf *l = c->worst_leaf < 0 ? NULL : &c->s.leaf[c->worst_leaf];
    tl_gradcheck_report r = {.verdict = TL_RIGHT};
    c->r = &r;
    for (int i = 0; i < 3 && r.verdict != TL_WRONG && step_aside(c, false) == TL_OK; i++) {
        check_along(c, l, at_x0.r->element);
        check_along(c, l, -1);
    }
    const bool right = c->s.err.status == TL_OK && r.verdict != TL_WRONG;
    forgive(c);
    step_aside(c, true);
    at_x0.s.err = c->s.err; /* that there was no memory */
    *c = at_x0;
    if (right) {
        c->r->verdict = TL_KINK;
        c->in_f64 = false;
        c->why = "but the whole is at a bend or a tie: beside it, it is right";
    }
}

tl_status tl_check_run(tl_checker *c, const tl_subject *f)
{
    memset(c->r, 0, sizeof *c->r);
    TL_TRY(tl_check_record(c, f));
    for (int i = 0; i < c->s.n_leaves; i++)
        if (c->s.leaf[i].checked) {
            c->largest = fmax(c->largest, rms(c->s.g[0], &c->s.leaf[i]));
            c->r->leaves++;
        }
    for (int i = 0; !c->o.fast && i < c->s.n_leaves; i++)
        if (c->s.leaf[i].checked && (c->only == 0 || c->only == i + 1))
            TL_TRY(check_leaf(c, &c->s.leaf[i]));
    if (c->o.fast)
        c->signal = check_along(c, NULL, -1);
    if (c->r->verdict == TL_RIGHT && !c->signal)
        c->r->verdict = TL_NO_SIGNAL;
    return c->s.err.status;
}
