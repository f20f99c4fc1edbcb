/* verify.c: the property test of what a replacement claims.
 *
 * Search and replace are computed directly on the same random inputs - ordinary values,
 * values of very different size, many zeros of both signs, infinities and NaNs - and compared
 * bit for bit (all NaNs are one): outputs, gradients as values for random cotangents of some of
 * the outputs, by some of the inputs, and accumulators that two passes have continued. Leaves
 * whose uses differ in number or kind are not compared: a graph refuses those (compare.c).
 */
#include <string.h>

#include "autograd/replace/verify.h"
#include "autograd/internal.h"
#include "tensor/threads.h"

/* ---- a program of the rule, computed ---- */

static tl_status take_value(tl_trial *k, bool search, tl_tape *t, tl_tensor x, const char *what,
                            int i)
{
    tl_array a;
    if (tl_failed(t) || !tl_array_of(t, x, &a))
        return tl_fail(k->err, TL_EUSAGE, "'%s' cannot be computed in %s: %.300s", k->r->o.name,
                       tl_dtype_name(k->dtype), tl_error(t));
    return tl_trial_take(k, search, &a, what, i);
}

static void call(tl_trial *k, bool search, tl_tape *t, tl_tensor *arg, tl_tensor *out)
{
    double scalar[TL_PATTERN_SCALARS];
    tl_pattern_values v = {scalar, k->r->o.ctx, k->r->form};
    for (int i = 0; i < k->r->o.n_scalars; i++)
        scalar[i] = k->r->o.scalars[i].value;
    if (search && k->r->o.search_pattern != NULL)
        tl_pattern_run(TL_AT(t), k->r->first, arg, out);
    else
        (search ? k->r->o.search : k->r->o.replace)(t, arg, k->r->o.n_in, out, k->r->o.n_out, &v);
    for (int i = 0; i < k->r->o.n_out; i++) /* what search leaves out is not compared */
        if (k->r->first->out[i].node == TL_REF_NONE)
            out[i] = TL_NONE;
}

/* One number whose gradient is random cotangents of the seeded outputs that take one in search;
 * TL_NONE if there are none. */
static tl_tensor seeded(tl_trial *k, bool search, tl_tape *t, const tl_tensor *out)
{
    tl_tensor y[TL_PATTERN_OUTS], c[TL_PATTERN_OUTS];
    int n = 0;
    k->whole |= search;
    for (int i = 0; i < k->r->o.n_out; i++) {
        const tl_value *v = tl_is_none(out[i]) ? NULL : tl_peek(t, out[i]);
        bool carries = v != NULL && v->needs_grad;
        if (search)
            k->whole &= k->seeded[i] || !carries;
        if (search)
            k->seeded[i] &= carries;
        if (search && k->seeded[i])
            k->cotangent[i] = tl_trial_array(k, v->a.dtype, tl_array_count(&v->a), 0);
        if (!k->seeded[i])
            continue;
        y[n] = out[i];
        c[n++] = tl_data(t, k->cotangent[i], tl_dtype_of(t, out[i]), tl_shape_of(t, out[i]));
    }
    return tl_rule_seed(t, y, c, n);
}

static tl_status take_gradients(tl_trial *k, bool search, tl_tape *t, tl_tensor y,
                                const tl_tensor *arg)
{
    tl_tensor x[TL_PATTERN_ARGS], dx[TL_PATTERN_ARGS];
    int n = 0;
    for (int i = 0; i < k->r->o.n_in; i++)
        if (k->grad[i])
            x[n++] = arg[i];
    tl_gradients(t, y, x, n, TL_NONE, dx);
    for (int i = 0; i < n; i++)
        TL_TRY(take_value(k, search, t, dx[i], "gradient", i));
    return TL_OK;
}

/* The uses of argument i in p, in order, directly or through views: their inputs' kinds of
 * accumulator. */
static int use_kinds(const tl_pattern *p, int i, int *kind)
{
    bool shows[TL_PATTERN_NODES] = {false};
    int n = 0;
    for (int k = 0; k < p->n_nodes; k++) {
        const tl_pattern_node *q = &p->node[k];
        for (int j = 0; j < q->n_in; j++) {
            bool of_arg = q->in[j].node >= 0 ? shows[q->in[j].node]
                                             : q->in[j].node == TL_REF_ARG && q->in[j].at == i;
            if (of_arg && q->op->traits & TL_VIEW && !(q->op->traits & TL_REPEATS))
                shows[k] = true;
            else if (of_arg && n < MAX_USES)
                kind[n++] = tl_accumulator_kind(q->op, q->attrs, j);
        }
    }
    return n;
}

/* How often backward has come to argument i, in both alike: compared are the accumulators. Where
 * the uses differ, a graph refuses the match (compare.c) - unless all gradients come to the
 * outputs: then the numbers must be those that the patterns show. */
static tl_status take_accumulators(tl_trial *k, bool search, tl_tape *t, const tl_tensor *arg)
{
    if (k->r->o.trace == TL_TRACE_JOINT)
        return TL_OK; /* expanded, what continues an accumulator shows it */
    for (int i = 0; i < k->r->o.n_in; i++) {
        int a[MAX_USES], b[MAX_USES], n = use_kinds(k->r->first, i, a);
        const tl_leaf_grad *g = k->grad[i] ? tl_leaf_grad_find(t, arg[i]) : NULL;
        bool alike = n == use_kinds(k->r->with, i, b) && memcmp(a, b, (size_t)n * sizeof *a) == 0;
        int uses = g == NULL ? 0 : g->n_uses;
        if (search)
            k->uses[i] = uses;
        bool lost = uses == 0 && k->uses[i] > 0;
        if (lost || (alike && k->whole && uses != k->uses[i]))
            return tl_fail(k->err, TL_EDOMAIN,
                           "'%s' in %s: backward uses argument '%s' %d times by search, %d times "
                           "by its replacement",
                           k->r->o.name, tl_dtype_name(k->dtype), k->r->o.example_inputs[i].name,
                           k->uses[i], uses);
        if (!alike)
            continue;
        if (uses != k->uses[i]) {
            k->at += k->uses[i];
            continue;
        }
        for (int u = 0; u < uses; u++)
            TL_TRY(tl_trial_take(k, search, &g->use[u].acc, "accumulator", i));
    }
    return TL_OK;
}

static tl_status run(tl_trial *k, bool search, tl_tape *t)
{
    tl_tensor arg[TL_PATTERN_ARGS], out[TL_PATTERN_OUTS] = {TL_NONE};
    tl_tape_reset(t);
    for (int i = 0; i < k->r->o.n_in; i++) {
        arg[i] = tl_data(t, k->arg[i], k->arg_dtype[i], *tl_trial_shape(k, i));
        if (k->grad[i])
            tl_require_grad(t, arg[i]);
    }
    call(k, search, t, arg, out);
    for (int i = 0; i < k->r->o.n_out; i++)
        if (!tl_is_none(out[i]) || tl_failed(t))
            TL_TRY(take_value(k, search, t, out[i], "output", i));
    tl_tensor y = k->backward ? seeded(k, search, t, out) : TL_NONE;
    if (tl_is_none(y))
        return TL_OK;
    TL_TRY(take_gradients(k, search, t, y, arg));
    tl_backward(t, y, .retain = true);
    tl_backward(t, y, .retain = true); /* the accumulators continue */
    if (tl_failed(t))
        return tl_fail(k->err, TL_EUSAGE, "'%s': %.300s", k->r->o.name, tl_error(t));
    return take_accumulators(k, search, t, arg);
}

static tl_status check(const tl_rule *r, tl_dtype d, const tl_shape *shapes, bool backward,
                       uint64_t seed, int rounds, tl_err *err)
{
    tl_err e = {.status = TL_OK};
    tl_tape *t = tl_tape_new(NULL);
    tl_status s = t == NULL ? tl_fail(&e, TL_ENOMEM, "no memory for a tape") : TL_OK;
    tl_fpenv saved = tl_fpenv_enter(); /* numbers are drawn and compared outside any op */
    for (int round = 0; s == TL_OK && round < (rounds > 0 ? rounds : 8); round++) {
        tl_trial k = {.r = r,
                      .dtype = d,
                      .shapes = shapes,
                      .backward = backward,
                      .seed = seed,
                      .state = seed * 1000003u + (uint64_t)round,
                      .err = &e};
        k.first = tl_bump_get(&k.mem, MAX_BITS * sizeof *k.first);
        tl_trial_draw(&k, round);
        s = k.first == NULL ? tl_fail(&e, TL_ENOMEM, "no memory") : run(&k, true, t);
        if (s == TL_OK)
            s = run(&k, false, t);
        if (s == TL_OK && k.at != k.n_bits)
            s = tl_fail(&e, TL_EDOMAIN, "'%s' in %s: the replacement gives fewer gradients",
                        r->o.name, tl_dtype_name(d));
        tl_bump_free(&k.mem);
    }
    tl_fpenv_leave(saved);
    tl_free(t);
    if (s != TL_OK)
        tl_fail(err, s, "%s", e.message);
    return s;
}

tl_status tl_rule_verify(const tl_rule *r, uint64_t seed, int rounds, tl_err *err)
{
    for (int d = TL_F64; d < TL_DTYPE_COUNT; d++) {
        bool exact = r->o.exact & TL_BIT(d); /* neither, of a rounding form (register.c) */
        if (exact || r->o.exact_forward & TL_BIT(d))
            TL_TRY(check(r, (tl_dtype)d, NULL, exact, seed, rounds, err));
    }
    return TL_OK;
}

tl_status tl_replacement_check(const char *name, uint64_t seed, int rounds, tl_err *err)
{
    const tl_rule *r = tl_rule_find(name, 0);
    if (r == NULL)
        return tl_fail(err, TL_ENAME, "no replacement is named '%s'", name == NULL ? "NULL" : name);
    for (; r != NULL; r = tl_rule_find(name, r->form + 1))
        TL_TRY(tl_rule_verify(r, seed, rounds, err));
    return TL_OK;
}

tl_status tl_replacement_compare(const char *name, int form, tl_dtype dtype, const tl_shape *shapes,
                                 bool backward, uint64_t seed, int rounds, tl_err *err)
{
    const tl_rule *r = tl_rule_find(name, form);
    return r == NULL || r->form != form
               ? tl_fail(err, TL_ENAME, "no replacement is named '%s', form %d",
                         name == NULL ? "NULL" : name, form)
               : check(r, dtype, shapes, backward, seed, rounds, err);
}
