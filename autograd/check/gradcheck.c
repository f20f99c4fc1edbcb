/* gradcheck.c: recording, comparing, judging. See gradcheck.h. */
#include "autograd/check/gradcheck.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "autograd/check/shadow.h"
#include "tensor/threads.h"

static const char *const names[] = {"right", "wrong", "kink", "precision-limited", "no signal"};

const char *tl_verdict_name(tl_verdict v) { return (unsigned)v < 5 ? names[v] : "?"; }

/* A random sign times 1/2 to 3/2: no cotangent is near zero, none alike. */
static double draw(tl_checker *c)
{
    double u = tl_rng_uniform64(c->key, 0, c->draws++);
    return u < 0.5 ? -(0.5 + 2 * u) : 2 * u - 0.5;
}

static void widen(tl_checker *c, tl_dtype d)
{
    if (tl_unit_of(d) > c->unit) {
        c->dtype = d;
        c->unit = tl_unit_of(d);
    }
}

/* The rounding unit of what gradients pass through: of the leaves and all that is computed from
 * them. */
static tl_status find_unit(tl_checker *c)
{
    tl_tape *t = c->s.rec;
    uint32_t *order, n;
    c->dtype = TL_F64;
    c->unit = tl_unit_of(TL_F64);
    for (int i = 0; i < c->s.n_leaves; i++)
        widen(c, tl_peek(t, c->s.leaf[i].handle)->a.dtype);
    if (tl_canonical_order(t, c->s.y, TL_TO_GRAD, &order, &n) != TL_OK)
        return tl_fail(&c->s.err, TL_ENOMEM, "no memory to order the nodes");
    for (uint32_t i = 0; i < n; i++)
        for (int j = 0; j < t->node[order[i]].n_out; j++) {
            const tl_value *v = tl_values_at(&t->values, t->node[order[i]].out + (uint32_t)j);
            if (v->needs_grad)
                widen(c, v->a.dtype);
        }
    return TL_OK;
}

/* The cotangent, exact in the output's dtype, and the user's own gradients. */
static tl_status analytic(tl_checker *c)
{
    tl_shadow *s = &c->s;
    tl_array y = tl_peek(s->rec, s->y)->a;
    s->n_y = tl_array_count(&y);
    s->cotangent = tl_calloc((size_t)s->n_y + 1, sizeof(double));
    if (s->cotangent == NULL)
        return tl_fail(&s->err, TL_ENOMEM, "no memory for a cotangent of %lld elements",
                       (long long)s->n_y);
    for (int64_t i = 0; i < s->n_y; i++) {
        uint16_t exact; /* in every dtype */
        tl_element_put(TL_BF16, &exact, draw(c));
        s->cotangent[i] = tl_element_get(TL_BF16, &exact);
    }
    tl_tensor wide = tl_data(s->rec, s->cotangent, TL_F64, tl_array_shape(&y));
    tl_sum_to_attrs to = {tl_array_shape(&y), y.dtype};
    int depth = tl_mode_push(s->rec, TL_NO_GRAD);
    tl_tensor cot = tl_apply1((tl_at){s->rec, "tl_gradcheck", 0, NULL}, &tl_op_sum_to, &to,
                              (tl_tensor[]){wide, TL_NONE}, 2);
    tl_mode_pop(s->rec, depth);
    TL_TRY(tl_shadow_gradients(s));
    TL_TRY(tl_shadow_sway(s, c->unit));
    tl_backward(s->rec, s->y, .cotangent = cot, .partial = true);
    for (int i = 0; i < s->n_leaves && !tl_failed(s->rec); i++) {
        tl_shadow_leaf *l = &s->leaf[i];
        tl_tensor g = l->checked ? tl_grad(s->rec, l->handle) : TL_NONE;
        if (tl_is_none(g))
            continue;
        const tl_array *a = &tl_peek(s->rec, g)->a;
        for (int64_t k = 0; k < l->n; k++)
            l->g[k] = a->dtype == TL_F64 ? *(double *)tl_array_at(a, k)
                                         : (double)*(float *)tl_array_at(a, k);
    }
    return tl_failed(s->rec) ? tl_fail(&s->err, tl_error_status(s->rec), "%.400s", tl_error(s->rec))
                             : TL_OK;
}

static double rms(const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sqrt(sum / (double)(n ? n : 1));
}

/* What roundings, all in one direction, may amount to, of the size of its terms. 2000 units are the
 * whole gradient in f16 and 8 times it in bf16: nothing could be wrong there. 64 are 3% and 25%. */
static double roundings(double unit) { return (unit > 0x1p-20 ? 64 : 2000) * unit; }

/* A derivative to be judged: by one element of a leaf, along a direction through it or, leaf being
 * NULL, through all. */
typedef struct {
    tl_shadow_leaf *leaf;
    int64_t element;
    const double *dir;
    double *const *dirs;
    double g, g64;     /* what it is by the two analytic gradients */
    double size, sway; /* squared: of its terms, and what a rounding of the leaves does to it */
} place;

static void note(tl_checker *c, tl_verdict v, const place *p, tl_numeric num, double excess)
{
    static const int weight[] = {0, 4, 3, 2, 1}; /* wrong outweighs kink outweighs ... */
    tl_gradcheck_report *r = c->r;
    if (weight[v] < weight[r->verdict] || (v == r->verdict && !(excess > c->worst)))
        return;
    c->worst = excess;
    r->verdict = v;
    c->leaf = p->leaf;
    r->element = p->element;
    r->numeric = num.value;
    r->error = num.error;
    r->analytic = isnan(p->g) ? (double)NAN : p->g; /* without a sign */
    r->analytic_f64 = isnan(p->g64) ? (double)NAN : p->g64;
    r->relative = fabs(num.value - p->g) / fmax(fabs(num.value), 1e-300);
    r->ulps = fabs(num.value - p->g) / (2 * c->unit * fmax(fabs(p->g), 1e-300));
    snprintf(r->leaf, sizeof r->leaf, "%s", p->leaf == NULL ? "all leaves at once" : p->leaf->name);
}

/* What moving leaf l along dir adds. */
static void add_terms(place *p, const tl_shadow_leaf *l, const double *dir)
{
    for (int64_t i = 0; i < l->n; i++) {
        p->g += l->g[i] * dir[i];
        p->g64 += l->g64[i] * dir[i];
        p->size += l->g64[i] * dir[i] * l->g64[i] * dir[i];
        p->sway += l->sway[i] * dir[i] * l->sway[i] * dir[i];
    }
}

/* What the roundings of a run do to it: of that in f64, or of the user's. */
static double noise_at(tl_checker *c, const place *p, bool own)
{
    double sum = 0;
    tl_status s = c->noised[own] ? TL_OK : (own ? tl_shadow_noise : tl_shadow_noise64)(&c->s);
    if (s != TL_OK && c->s.err.status != TL_ENOMEM) {
        c->s.err = (tl_err){.status = TL_OK}; /* a point beside these is none of its domain */
        tl_error_clear(c->s.run);
    }
    c->noised[own] = true;
    for (int i = 0; i < c->s.n_leaves; i++) {
        const tl_shadow_leaf *l = &c->s.leaf[i];
        const double *dir = p->dirs != NULL ? p->dirs[i] : l == p->leaf ? p->dir : NULL;
        const double *noise = own ? l->noise : l->noise64;
        if (l == p->leaf && p->element >= 0)
            return fmax(noise[p->element], rms(noise, l->n));
        for (int64_t k = 0; dir != NULL && k < l->n; k++)
            sum += noise[k] * dir[k] * noise[k] * dir[k];
    }
    return sqrt(sum);
}

/* How far the derivative is from its two analytic values, in tolerances. */
static void compare(const tl_checker *c, const place *p, const tl_numeric *num, double scale,
                    double tolerance[2], double over[2])
{
    tolerance[0] = 4 * num->error + 1e-9 * scale;
    tolerance[1] = tolerance[0] + roundings(c->unit) * scale +
                   fmin(32 * sqrt(p->sway), 0.25 * scale);
    over[0] = fabs(num->value - p->g64) / tolerance[0];
    over[1] = fabs(num->value - p->g) / tolerance[1];
}

/* Both are within their tolerances but for what roundings are seen to do. Ridders' estimate is no
 * bound: the jumps of the value may be more. A function that asks whether x == 1 jumps, too, by all
 * there is: in f64, where few digits are ever lost, no more than 1e-6 of the terms is excused. */
static bool is_lost(tl_checker *c, const place *p, tl_numeric num, double scale)
{
    double tolerance[2], over[2], noise[2] = {0, 0};
    compare(c, p, &num, scale, tolerance, over);
    if (over[0] > 1) {
        noise[0] = fmin(32 * noise_at(c, p, false), 1e-6 * scale);
        num.error = fmax(num.error, fmin(2 * c->s.jumps / num.step, 2.5e-7 * scale));
        compare(c, p, &num, scale, tolerance, over);
    }
    if (over[1] > 1)
        noise[1] = noise[0] + 32 * (noise_at(c, p, true) + sqrt(p->sway));
    for (int i = 0; i < 2; i++)
        if (!((over[i] - 1) * tolerance[i] <= noise[i]))
            return false;
    return true;
}

/* Where it differs by no more than what roundings are seen to do, precision is the limit. */
static bool judge(tl_checker *c, const place *p, tl_numeric num)
{
    double scale = fmax(fmax(fabs(num.value), fabs(p->g64)),
                        fmax(sqrt(p->size), 1e-6 * c->largest));
    double tolerance[2], over[2];
    bool finite = isfinite(num.value) && isfinite(p->g) && isfinite(p->g64), lost = false;
    tl_verdict v = TL_RIGHT;
    compare(c, p, &num, scale, tolerance, over);
    if (finite && (over[0] > 1 || over[1] > 1) && num.bend <= 1e-4 * scale &&
        num.error <= 1e-4 * scale)
        lost = is_lost(c, p, num, scale);
    if (!finite)
        v = TL_WRONG;
    else if (p->g == 0 && p->g64 == 0 && fabs(num.value) <= num.error)
        v = TL_RIGHT; /* nothing on either side: no signal, if it is so everywhere */
    else if (num.bend > 1e-4 * scale)
        v = TL_KINK;
    else if (num.error > 1e-4 * scale)
        v = TL_PRECISION_LIMITED;
    else if (over[0] > 1 || over[1] > 1)
        v = lost ? TL_PRECISION_LIMITED : TL_WRONG;
    if (lost && v == TL_PRECISION_LIMITED)
        c->lost[over[0] <= 1] = true;
    bool fine64 = isfinite(p->g64) && over[0] <= 1;
    c->in_f64 |= v == TL_WRONG && !fine64;
    c->r->compared++;
    if (c->only > 0 && p->element >= 0 && c->n_seen < TL_SEEN)
        c->seen[c->n_seen++] = (tl_compared){.element = p->element,
                                             .numeric = num.value,
                                             .analytic = fine64 ? p->g : p->g64,
                                             .wrong = v == TL_WRONG};
    note(c, v, p, num, finite ? fmax(over[0], over[1]) : HUGE_VAL);
    return finite && (fabs(num.value) > 1e-9 * c->largest || fabs(p->g64) > 1e-9 * c->largest ||
                      fabs(p->g) > 1e-6 * c->largest);
}

static bool check_direction(tl_checker *c, tl_shadow_leaf *l, double *dir)
{
    place p = {.leaf = l, .element = -1, .dir = dir};
    for (int64_t i = 0; i < l->n; i++)
        dir[i] = draw(c);
    add_terms(&p, l, dir);
    return judge(c, &p, tl_shadow_derivative(&c->s, l, dir, 0));
}

/* size: of the leaf's gradients. */
static bool check_element(tl_checker *c, tl_shadow_leaf *l, int64_t e, double size)
{
    place p = {l, e, NULL, NULL, l->g[e], l->g64[e], size * size, l->sway[e] * l->sway[e]};
    return judge(c, &p, tl_shadow_derivative(&c->s, l, NULL, e));
}

/* Where most of what is wrong along a direction comes from, by halves: what a range adds to it is
 * the derivative along that range of it. */
static tl_status hunt(tl_checker *c, tl_shadow_leaf *l, double *dir)
{
    double *part = tl_calloc((size_t)l->n + 1, sizeof *part);
    bool in_f64 = fabs(c->r->numeric - c->r->analytic_f64) >
                  0.5 * fabs(c->r->numeric - c->r->analytic);
    const double *g = in_f64 ? l->g64 : l->g;
    int64_t lo = 0, hi = l->n;
    if (part == NULL)
        return tl_fail(&c->s.err, TL_ENOMEM, "no memory for %lld elements", (long long)l->n);
    double whole = tl_shadow_derivative(&c->s, l, dir, 0).value;
    for (int64_t i = 0; i < l->n; i++)
        whole -= g[i] * dir[i];
    while (hi - lo > 1 && c->s.err.status == TL_OK) {
        int64_t middle = lo + (hi - lo) / 2;
        for (int64_t i = 0; i < l->n; i++)
            part[i] = i >= lo && i < middle ? dir[i] : 0;
        double left = tl_shadow_derivative(&c->s, l, part, 0).value;
        for (int64_t i = lo; i < middle; i++)
            left -= g[i] * dir[i];
        bool go_left = fabs(left) >= fabs(whole - left);
        *(go_left ? &hi : &lo) = middle;
        whole = go_left ? left : whole - left;
    }
    tl_free_raw(part);
    check_element(c, l, lo, rms(l->g64, l->n));
    return c->s.err.status;
}

static tl_status check_leaf(tl_checker *c, tl_shadow_leaf *l)
{
    int directions = c->o.directions ? c->o.directions : 2;
    int64_t elements = c->o.all ? l->n : c->o.elements ? c->o.elements : 8;
    bool signal = false;
    double *dir = tl_calloc((size_t)l->n + 1, sizeof *dir);
    if (dir == NULL)
        return tl_fail(&c->s.err, TL_ENOMEM, "no memory for %lld elements", (long long)l->n);
    double size = rms(l->g64, l->n);
    for (int i = 0; i < directions && l->n > 1; i++)
        signal |= check_direction(c, l, dir);
    for (int64_t k = 0; k < elements && k < l->n; k++) {
        int64_t e = l->n <= elements ? k
                                     : (int64_t)tl_rng_below(c->key, 1, c->draws++, (uint64_t)l->n);
        signal |= check_element(c, l, e, size);
    }
    if (c->only > 0 && l->n > elements && c->r->verdict == TL_WRONG)
        hunt(c, l, dir);
    tl_free_raw(dir);
    if (!signal && !c->o.constant_ok)
        note(c, TL_NO_SIGNAL, &(place){.leaf = l, .element = -1}, (tl_numeric){0}, 0);
    c->signal |= signal;
    c->r->leaves++;
    return c->s.err.status;
}

/* Every checked leaf moved at once along a random direction of its own. */
static tl_status check_at_once(tl_checker *c)
{
    tl_shadow *s = &c->s;
    double **dir = tl_calloc((size_t)s->n_leaves + 1, sizeof *dir);
    place p = {.element = -1, .dirs = dir};
    tl_status st = dir == NULL ? TL_ENOMEM : TL_OK;
    for (int i = 0; st == TL_OK && i < s->n_leaves; i++) {
        tl_shadow_leaf *l = &s->leaf[i];
        if (!l->checked)
            continue;
        dir[i] = tl_calloc((size_t)l->n + 1, sizeof **dir);
        st = dir[i] == NULL ? TL_ENOMEM : TL_OK;
        for (int64_t k = 0; st == TL_OK && k < l->n; k++)
            dir[i][k] = draw(c);
        if (st == TL_OK)
            add_terms(&p, l, dir[i]);
        c->r->leaves++;
    }
    if (st == TL_OK)
        c->signal |= judge(c, &p, tl_shadow_derivative_all(s, dir));
    else
        tl_fail(&s->err, st, "no memory for directions through %d leaves", s->n_leaves);
    for (int i = 0; dir != NULL && i < s->n_leaves; i++)
        tl_free_raw(dir[i]);
    tl_free_raw(dir);
    return s->err.status;
}

static void describe(tl_checker *c)
{
    tl_gradcheck_report *r = c->r;
    const char *name = c->who + 3; /* without the prefix */
    char culprit[TL_MESSAGE_MAX], none[256], ulps[32] = "";
    char where[48] = "along a random direction";
    if (r->analytic != 0)
        snprintf(ulps, sizeof ulps, ", %.3g ULPs", r->ulps);
    if (r->element >= 0)
        snprintf(where, sizeof where, "at element %lld", (long long)r->element);
    snprintf(none, sizeof none,
             c->in_f64 ? "so an op reads what is not its input, or the engine is wrong; the whole"
             : c->lost[0] ? "but in f64 the whole has lost digits"
             : c->lost[1] ? "and in f64 so is the whole; in %s it has lost digits"
                          : "and in f64 so is the whole; in %s it is off by more than roundings",
             tl_dtype_name(c->dtype));
    if (c->s.err.status != TL_OK)
        snprintf(r->text, sizeof r->text, "%s: %.440s", name, c->s.err.message);
    else if (r->leaves == 0)
        snprintf(r->text, sizeof r->text,
                 "%s: no signal: nothing to check, no input or parameter takes a gradient", name);
    else if (r->verdict == TL_NO_SIGNAL)
        snprintf(r->text, sizeof r->text,
                 "%s: no signal: the gradient of %s is zero on both sides everywhere", name,
                 r->leaf);
    else
        snprintf(r->text, sizeof r->text,
                 "%s: %s: %s%s, %s: numeric %.10g (error about %.2g), analytic %.10g, in f64 "
                 "%.10g: %.2g relative%s; %d comparisons of %d leaves",
                 name, tl_verdict_name(r->verdict),
                 tl_culprit_text(&r->culprit, none, culprit, sizeof culprit), r->leaf, where,
                 r->numeric, r->error, r->analytic, r->analytic_f64, r->relative, ulps, r->compared,
                 r->leaves);
}

static tl_status record(tl_checker *c, tl_at at, tl_function *f, const tl_tensor *in, int n,
                        void *ctx)
{
    tl_shadow *s = &c->s;
    tl_tape *t = at.tape;
    if (tl_failed(t))
        return tl_fail(&s->err, tl_error_status(t), "the tape has failed before: %.400s",
                       tl_error(t));
    if (c->o.directions < 0 || c->o.elements < 0)
        tl_tape_fail(at, TL_EUSAGE, "%s: %d directions and %d elements a leaf", c->who,
                     c->o.directions, c->o.elements);
    if (tl_failed(t) || tl_shadow_usable(at, c->who, f, in, n) != TL_OK)
        return tl_fail(&s->err, tl_error_status(t), "%.400s", tl_error(t));
    c->key = tl_rng_stream(c->o.seed ? c->o.seed : 20, "tl_gradcheck");
    s->rec = tl_tape_new(t->model);
    s->run = tl_tape_new(t->model);
    s->copies = tl_calloc(2 * (size_t)n + 1, sizeof *s->copies);
    if (s->copies == NULL || s->rec == NULL || s->run == NULL)
        return tl_fail(&s->err, TL_ENOMEM, "no memory for the tapes of the check");
    tl_observe_like(s->rec, t); /* without memory they fail, and record nothing */
    tl_observe_like(s->run, t);
    TL_TRY(tl_shadow_record(at, c->who, f, in, n, ctx, !c->o.skip_inputs, s->rec, s->copies, &s->y,
                            &s->err));
    const tl_value *y = tl_peek(s->rec, s->y);
    if (!tl_dtype_is_float(y->a.dtype) || !y->needs_grad)
        return tl_fail(
            &s->err, TL_ENOGRAD,
            "the function's result is no floating tensor that depends on an input or parameter");
    TL_TRY(tl_check_sanity(c, at, f, in, n, ctx));
    TL_TRY(tl_shadow_leaves(s, s->copies, n, !c->o.skip_inputs));
    TL_TRY(find_unit(c));
    return analytic(c);
}

tl_status tl_check_run(tl_checker *c, tl_at at, tl_function *f, const tl_tensor *in, int n,
                       void *ctx)
{
    memset(c->r, 0, sizeof *c->r);
    tl_status s = record(c, at, f, in, n, ctx);
    for (int i = 0; s == TL_OK && i < c->s.n_leaves; i++)
        if (c->s.leaf[i].checked)
            c->largest = fmax(c->largest, rms(c->s.leaf[i].g64, c->s.leaf[i].n));
    c->r->verdict = TL_RIGHT;
    for (int i = 0; s == TL_OK && !c->o.fast && i < c->s.n_leaves; i++)
        if (c->s.leaf[i].checked && (c->only == 0 || c->only == i + 1))
            s = check_leaf(c, &c->s.leaf[i]);
    if (s == TL_OK && c->o.fast)
        s = check_at_once(c);
    if (s == TL_OK && c->r->verdict == TL_RIGHT && !c->signal)
        c->r->verdict = TL_NO_SIGNAL;
    return s;
}

tl_verdict tl_check_end(tl_checker *c, tl_at at)
{
    tl_status s = c->s.err.status;
    if (s == TL_OK && c->r->culprit.op != NULL)
        c->r->verdict = TL_WRONG; /* as it may not show where digits are lost */
    tl_verdict v = c->r->verdict;
    if (s != TL_OK) /* nothing is wrong with a function that could not be looked at */
        v = c->r->verdict = tl_failed(at.tape) || s == TL_ENOMEM ? TL_NO_SIGNAL : TL_WRONG;
    describe(c);
    tl_shadow_free(&c->s);
    if (v != TL_RIGHT)
        tl_tape_fail(at, s != TL_OK ? s : TL_ENOGRAD, "%.400s", c->r->text);
    return v;
}

tl_verdict tl_gradcheck_at(tl_at at, tl_function *f, const tl_tensor *in, int n, void *ctx,
                           tl_gradcheck_options o, tl_gradcheck_report *report)
{
    tl_gradcheck_report own;
    tl_checker c = {.o = o, .r = report != NULL ? report : &own, .who = "tl_gradcheck"};
    tl_textenv saved = tl_textenv_enter(); /* differences are taken and judged outside any op */
    if (tl_check_run(&c, at, f, in, n, ctx) == TL_OK &&
        (c.r->verdict == TL_WRONG || c.lost[0] || c.lost[1]))
        tl_culprit_find(c.s.rec, c.s.y, 1, o, c.r);
    tl_verdict v = tl_check_end(&c, at);
    tl_textenv_leave(saved);
    return v;
}

/* The leaf that is input `input`, if it has that element. */
static tl_shadow_leaf *leaf_of_input(tl_checker *c, int input, int64_t element)
{
    char want[32];
    snprintf(want, sizeof want, "input %d", input);
    for (int i = 0; i < c->s.n_leaves; i++)
        if (strcmp(c->s.leaf[i].name, want) == 0 && element < c->s.leaf[i].n)
            return &c->s.leaf[i];
    tl_fail(&c->s.err, TL_EINDEX, "%s has no element %lld that takes a gradient", want,
            (long long)element);
    return NULL;
}

static tl_status curve_of(tl_checker *c, int input, int64_t element, FILE *file,
                          tl_curve_format format)
{
    tl_curve curve;
    tl_shadow_leaf *l = leaf_of_input(c, input, element);
    if (l == NULL)
        return c->s.err.status;
    double *dir = tl_calloc((size_t)l->n + 1, sizeof *dir);
    if (dir == NULL)
        return tl_fail(&c->s.err, TL_ENOMEM, "no memory for %lld elements", (long long)l->n);
    curve.analytic = element < 0 ? 0 : l->g64[element];
    for (int64_t i = 0; element < 0 && i < l->n; i++)
        curve.analytic += l->g64[i] * (dir[i] = draw(c));
    tl_shadow_curve(&c->s, l, element < 0 ? dir : NULL, element, &curve);
    tl_free_raw(dir);
    TL_TRY(c->s.err.status);
    return tl_curve_write(file, &curve, format, &c->s.err);
}

tl_status tl_gradcheck_curve_at(tl_at at, tl_function *f, const tl_tensor *in, int n, void *ctx,
                                int input, int64_t element, FILE *file, tl_curve_format format)
{
    tl_gradcheck_report r;
    tl_checker c = {.r = &r, .who = "tl_gradcheck_curve"};
    tl_textenv saved = tl_textenv_enter();
    tl_status s = tl_failed(at.tape) ? tl_error_status(at.tape) : TL_OK;
    if (s == TL_OK && (file == NULL || format > TL_CURVE_SVG))
        s = tl_fail(&c.s.err, TL_EUSAGE, file == NULL ? "the file is NULL" : "format %d is none",
                    (int)format);
    if (s == TL_OK)
        s = record(&c, at, f, in, n, ctx);
    if (s == TL_OK)
        s = curve_of(&c, input, element, file, format);
    if (s != TL_OK)
        tl_tape_fail(at, s, "tl_gradcheck_curve: %.400s", c.s.err.message);
    tl_shadow_free(&c.s);
    tl_textenv_leave(saved);
    return s;
}
