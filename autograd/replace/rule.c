/* rule.c: one replacement, checked when it is registered. */
#include <string.h>

#include "autograd/replace/internal.h"

static tl_status check_used(const tl_rule *r, tl_err *err)
{
    const tl_pattern *p = r->first;
    unsigned args = 0, scalars = 0;
    for (int i = 0; i < p->n_nodes; i++) {
        for (int k = 0; k < p->node[i].n_in; k++)
            args |= p->node[i].in[k].node == TL_REF_ARG ? TL_BIT(p->node[i].in[k].at) : 0;
        for (int f = 0; p->node[i].op->attr != NULL && p->node[i].op->attr[f].name != NULL; f++)
            scalars |= p->node[i].scalar[f] >= 0 ? TL_BIT(p->node[i].scalar[f]) : 0;
        if (p->node[i].op->traits & TL_RANDOM)
            return tl_fail(err, TL_EUSAGE, "its search draws random numbers (%s)",
                           p->node[i].op->name);
    }
    for (int i = 0; i < r->o.n_in; i++)
        if (!(args & TL_BIT(i)))
            return tl_fail(err, TL_EUSAGE, "its search does not use its argument '%s'",
                           r->o.example_inputs[i].name);
    for (int i = 0; i < r->o.n_scalars; i++)
        if (!(scalars & TL_BIT(i)))
            return tl_fail(
                err, TL_EUSAGE,
                "its search does not use its scalar '%s' as an attribute of that value (%g)",
                r->o.scalars[i].name, r->o.scalars[i].value);
    if (p->n_args > r->o.n_in)
        return tl_fail(err, TL_EUSAGE, "its search uses %d arguments; %d are given", p->n_args,
                       r->o.n_in);
    return TL_OK;
}

/* From the first output every node can be reached, through inputs and through users. */
static tl_status check_connected(const tl_pattern *p, tl_err *err)
{
    bool there[TL_PATTERN_NODES] = {false}, arg[TL_PATTERN_ARGS] = {false}, more = true;
    if (p->n_out < 1 || p->out[0].node < 0)
        return tl_fail(err, TL_EUSAGE, "its search computes nothing as output 0");
    for (int i = 1; i < p->n_out; i++)
        if (p->out[i].node == TL_REF_ARG)
            return tl_fail(err, TL_EUSAGE, "output %d of its search is an argument", i);
    there[p->out[0].node] = true;
    while (more) {
        more = false;
        for (int i = p->n_nodes - 1; i >= 0; i--)
            for (int k = 0; k < p->node[i].n_in; k++) {
                tl_pattern_ref x = p->node[i].in[k];
                bool *in = x.node >= 0 ? &there[x.node] : x.node == TL_REF_ARG ? &arg[x.at] : NULL;
                if (in == NULL || *in == there[i])
                    continue;
                *in = there[i] = more = true;
            }
    }
    for (int i = 0; i < p->n_nodes; i++)
        if (!there[i])
            return tl_fail(err, TL_EUSAGE, "its search has parts that share nothing (%s)",
                           p->node[i].op->name);
    return TL_OK;
}

static bool found_once(void *ctx, const tl_binding *b)
{
    (void)b;
    *(bool *)ctx = true;
    return true;
}

/* What it puts in the place of a match matches again. */
static tl_status check_endless(const tl_rule *r, tl_tape *t, tl_err *err)
{
    tl_graph g = {.t = t};
    tl_pass p = {.g = &g, .t = t};
    bool again = false;
    g.tracing = tl_tracing_of(t);
    tl_status s = tl_pass_index(&p);
    for (uint32_t i = 0; i < t->n_nodes && s == TL_OK && !again; i++)
        tl_match_pattern(&p, r, r->pattern, true, i, NULL, found_once, &again);
    tl_bump_free(&p.bump);
    if (again)
        return tl_fail(
            err, TL_EUSAGE,
            "its replacement contains what it searches for: it would be replaced for ever");
    return s == TL_OK ? s : tl_fail(err, s, "no memory");
}

static tl_status check_outputs(const tl_pattern *a, const tl_pattern *b, bool traced, tl_err *err)
{
    char sa[TL_SHAPE_TEXT], sb[TL_SHAPE_TEXT];
    if (b->n_out < a->n_out)
        return tl_fail(err, TL_EUSAGE, "gradients come to its search, but not to its replacement");
    for (int i = 0; i < a->n_out; i++) {
        const tl_array *x = traced ? &a->out_array[i] : NULL, *y = &b->out_array[i];
        if (a->out[i].node == TL_REF_NONE)
            continue;
        if (b->out[i].node == TL_REF_NONE)
            return tl_fail(err, TL_EUSAGE, "its replacement sets no output %d", i);
        if (traced && (!tl_array_same_shape(x, y) || x->dtype != y->dtype))
            return tl_fail(err, x->dtype != y->dtype ? TL_EDTYPE : TL_ESHAPE,
                           "output %d of its replacement is %s %s, of its search %s %s", i,
                           tl_dtype_name(y->dtype), tl_array_shape_text(sb, y),
                           tl_dtype_name(x->dtype), tl_array_shape_text(sa, x));
    }
    return TL_OK;
}

static tl_status prepare(tl_rule *r, tl_tape *t, tl_err *err)
{
    tl_array array[TL_PATTERN_ARGS] = {{0}};
    bool grad[TL_PATTERN_ARGS] = {false};
    double scalar[TL_PATTERN_SCALARS];
    for (int i = 0; i < r->o.n_in; i++) {
        TL_TRY(tl_shape_check(&r->o.example_inputs[i].shape, r->o.example_inputs[i].dtype, err));
        array[i] = tl_array_make(r->o.example_inputs[i].dtype, &r->o.example_inputs[i].shape, NULL);
        grad[i] = tl_rule_grad(r, i);
    }
    for (int i = 0; i < r->o.n_scalars; i++)
        scalar[i] = r->o.scalars[i].value;
    tl_rule_at at = {array, grad, scalar, 0};
    r->first = r->o.search_pattern != NULL ? r->o.search_pattern
                                           : tl_rule_trace(r, true, t, &r->bump, &at, err);
    if (r->first == NULL)
        return err->status;
    if (r->first->err.status != TL_OK)
        return tl_fail(err, r->first->err.status, "%s", r->first->err.message);
    TL_TRY(check_used(r, err));
    TL_TRY(check_connected(r->first, err));
    if (r->first->n_out < r->o.n_out)
        return tl_fail(err, TL_EUSAGE, "its search pattern has %d outputs; %d are given",
                       r->first->n_out, r->o.n_out);
    r->pattern = r->first;
    r->root = r->first->node[r->first->out[0].node].op;
    if (r->o.trace == TL_TRACE_JOINT) {
        at.seeded = TL_BIT(r->o.n_out) - 1;
        r->pattern = tl_rule_trace(r, true, t, &r->bump, &at, err);
        if (r->pattern != NULL && r->pattern->n_out == r->o.n_out)
            return tl_fail(err, TL_EUSAGE, "it is joint, and its search has no gradient");
    }
    r->with = r->pattern == NULL ? NULL : tl_rule_trace(r, false, t, &r->bump, &at, err);
    if (r->with == NULL)
        return err->status;
    TL_TRY(check_outputs(r->pattern, r->with, r->o.search_pattern == NULL, err));
    return check_endless(r, t, err);
}

tl_status tl_rule_prepare(tl_rule *r, tl_err *err)
{
    tl_tracing *s;
    tl_tape *t = tl_rule_tape(&s);
    if (t == NULL)
        return tl_fail(err, TL_ENOMEM, "no memory for a tape");
    tl_status status = prepare(r, t, err);
    tl_free(t);
    tl_tracing_free(s);
    return status;
}
