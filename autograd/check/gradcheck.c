/* gradcheck.c: tl_gradcheck and tl_gradgradcheck, and their result in words. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "autograd/check/shadow.h"
#include "tensor/threads.h"

static const char *const names[] = {"right", "wrong", "kink", "precision-limited", "no signal"};

const char *tl_verdict_name(tl_verdict v) { return (unsigned)v < 5 ? names[v] : "?"; }

/* The culprit in words. If there is none, but each op is right by itself, says so and adds `none`,
 * the conclusion from it. Returns buf. */
static const char *culprit_text(const tl_culprit *w, const char *none, char *buf, size_t cap)
{
    char what[64] = "its cotangent", by[32] = "", factor[48] = "", more[96] = "";
    buf[0] = '\0';
    if (w->op == NULL && w->judged > 0)
        snprintf(buf, cap, "each of %d ops is right by itself%s, %s: ", w->judged,
                 w->unjudged > 0 ? " (others could not be judged)" : "", none);
    if (w->op == NULL)
        return buf;
    if (w->input >= 0)
        snprintf(what, sizeof what, "input %d", w->input);
    if (w->by >= 0)
        snprintf(by, sizeof by, "input %d and ", w->by);
    if (!isnan(w->ratio))
        snprintf(factor, sizeof factor, " (analytic/numeric = %.6g)", w->ratio);
    if (w->calls + w->others > 1)
        snprintf(more, sizeof more, "; %d more calls of it and %d of other ops are wrong",
                 w->calls - 1, w->others);
    int at = snprintf(buf, cap, "%.60s (%.90s:%d): its %s by %s%s %s%s at %d of %d elements", w->op,
                      w->file == NULL ? "?" : w->file, w->line,
                      w->by < 0 ? "gradient" : "second derivative", by, what, w->kind, factor,
                      w->wrong, w->compared);
    for (int i = 0; i < w->n_worst && i < 2; i++)
        at += snprintf(buf + at, cap - (size_t)at, "%s[%lld] numeric %.6g, analytic %.6g",
                       i == 0 ? ": " : "; ", (long long)w->worst[i].element, w->worst[i].numeric,
                       w->worst[i].analytic);
    snprintf(buf + at, cap - (size_t)at, "%s. In the whole function: ", more);
    return buf;
}

/* Says so if the run in f64 gave quite another result than the recorded one, though no digits are
 * lost, as an op of the user's does that takes all its operands for floats. Returns buf. */
static const char *value_text(tl_checker *c, char *buf, size_t cap)
{
    tl_shadow *s = &c->s;
    const tl_value *y = s->rec == NULL ? NULL : tl_peek(s->rec, s->y);
    double own = 0, size = 0;
    buf[0] = '\0';
    if (s->cotangent == NULL || y == NULL || y->st == NULL || c->r->verdict == TL_RIGHT ||
        c->r->verdict == TL_PRECISION_LIMITED)
        return buf;
    for (int64_t i = 0; i < s->n_y; i++) {
        const double term = s->cotangent[i] * tl_array_get(&y->a, i);
        own += term;
        size += fabs(term);
    }
    const double wide = tl_shadow_value(s);
    if (s->err.status == TL_OK && isfinite(size) && !(fabs(wide - own) <= 0.1 * size))
        snprintf(buf, cap,
                 "; in f64 the value is %.3g, as recorded it is %.3g: does an op take doubles for "
                 "floats?",
                 wide, own);
    s->err = (tl_err){.status = TL_OK};
    return buf;
}

static void describe(tl_checker *c)
{
    tl_gradcheck_report *r = c->r;
    const char *name = c->who + 3; /* without the prefix */
    char culprit[TL_MESSAGE_MAX], none[256] = "", ulps[32] = "";
    char numbers[256], value[160] = "", where[48] = "along a random direction";
    tl_textenv saved = tl_textenv_enter();
    if (c->s.err.status == TL_OK)
        value_text(c, value, sizeof value);
    if (r->analytic != 0)
        snprintf(ulps, sizeof ulps, ", %.3g ULPs", r->ulps);
    if (r->element >= 0)
        snprintf(where, sizeof where, "at element %lld", (long long)r->element);
    if (c->in_f64)
        c->why = "so an op reads what is not its input, or the engine is wrong; the whole";
    if (c->why != NULL)
        snprintf(none, sizeof none, c->why, tl_dtype_name(c->dtype));
    if (r->verdict == TL_KINK)
        snprintf(numbers, sizeof numbers,
                 "numeric %.10g from below and %.10g from above, analytic %.10g", c->below,
                 c->above, r->analytic);
    else
        snprintf(numbers, sizeof numbers,
                 "numeric %.10g (error about %.2g), analytic %.10g, in f64 %.10g: %.2g relative%s",
                 r->numeric, r->error, r->analytic, r->analytic_f64, r->relative, ulps);
    if (c->s.err.status != TL_OK)
        snprintf(r->text, sizeof r->text, "%s: %.900s", name, c->s.err.message);
    else if (r->leaves == 0)
        snprintf(r->text, sizeof r->text, "%s: no signal: nothing to check, %s", name,
                 c->why != NULL ? c->why : "no input or parameter takes a gradient");
    else if (r->verdict == TL_NO_SIGNAL)
        snprintf(r->text, sizeof r->text,
                 "%s: no signal: the gradient of %s is zero on both sides everywhere", name,
                 *r->leaf == '\0' ? "all that was checked" : r->leaf);
    else
        snprintf(r->text, sizeof r->text, "%s: %s: %s%s, %s: %s; %d comparisons of %d %s%s", name,
                 tl_verdict_name(r->verdict),
                 culprit_text(&r->culprit, none, culprit, sizeof culprit), r->leaf, where, numbers,
                 r->compared, r->leaves, r->leaves == 1 ? "leaf" : "leaves", value);
    tl_textenv_leave(saved);
}

/* ---- the calls ---- */

/* Either order of derivatives: checks, looks for the culprit, reports. */
static tl_verdict check(tl_subject f, int order, tl_gradcheck_options o,
                        tl_gradcheck_report *report)
{
    tl_gradcheck_report own, *r = report != NULL ? report : &own;
    tl_checker c = {.o = o, .r = r, .who = order == 1 ? "tl_gradcheck" : "tl_gradgradcheck"};
    int by = -1;
    tl_fpenv saved = tl_fpenv_enter(); /* differences are taken and judged outside any op */
    memset(r, 0, sizeof *r);
    tl_status s = tl_check_begin(&c, &f);
    if (s == TL_OK)
        s = order == 1 ? tl_check_run(&c, &f) : tl_check_second(&c, &f, &by);
    if (s == TL_OK && (r->verdict == TL_WRONG || c.lost)) {
        tl_culprit_find(c.s.rec, c.s.y, 1, o, r);
        if (order == 2 && r->culprit.op == NULL)
            tl_culprit_find_second(&c, &f);
        if (r->verdict == TL_WRONG && r->culprit.op == NULL)
            tl_check_beside(&c);
    }
    if (s == TL_OK && r->culprit.op != NULL)
        r->verdict = TL_WRONG; /* also where lost digits hide it */
    if (s != TL_OK)            /* a function that could not be checked is not known to be wrong */
        r->verdict = c.empty || tl_failed(f.at.tape) || s == TL_ENOMEM ? TL_NO_SIGNAL : TL_WRONG;
    describe(&c);
    tl_shadow_free(&c.s);
    if (r->verdict != TL_RIGHT)
        tl_tape_fail(f.at, s != TL_OK ? s : TL_ENOGRAD, "%s", r->text);
    tl_fpenv_leave(saved);
    return r->verdict;
}

tl_verdict tl_gradcheck_at(tl_at at, tl_function *f, const tl_tensor *in, int n, void *ctx,
                           tl_gradcheck_options o, tl_gradcheck_report *report)
{
    return check((tl_subject){at, f, in, n, ctx}, 1, o, report);
}

tl_verdict tl_gradgradcheck_at(tl_at at, tl_function *f, const tl_tensor *in, int n, void *ctx,
                               tl_gradcheck_options o, tl_gradcheck_report *report)
{
    return check((tl_subject){at, f, in, n, ctx}, 2, o, report);
}
