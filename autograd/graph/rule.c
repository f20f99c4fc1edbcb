/* rule.c: one replacement, traced and checked when it is registered. */
#include <string.h>

#include "autograd/graph/pattern_internal.h"

tl_tape *tl_rule_tape(tl_tracing **s)
{
    tl_tape *t = tl_tape_new(NULL);
    *s = t == NULL ? NULL : tl_tracing_new(t->arena);
    if (*s == NULL) {
        tl_free(t);
        return NULL;
    }
    t->tracing = *s;
    t->mode = TL_TRACE;
    return t;
}

static void add_leaf(tl_tape *t, const tl_array *a, int i, bool grad, tl_tensor *leaf)
{
    *leaf = tl_trace_leaf(t, a, TL_LEAF_INPUT, (uint32_t)i, 0);
    if (!tl_is_none(*leaf))
        tl_peek(t, *leaf)->needs_grad = grad;
}

/* The gradients of out[0] by the arguments that take one, behind it in out; the cotangent is one more argument. */
static int add_gradients(const tl_rule *r, tl_tape *t, const tl_array *like, tl_tensor *arg, tl_tensor *out)
{
    tl_tensor x[TL_PATTERN_ARGS];
    int n = 0, c = r->o.n_in;
    const tl_value *y = tl_failed(t) || tl_is_none(out[0]) ? NULL : tl_peek(t, out[0]);
    if (y == NULL)
        return 1;
    tl_shape s = tl_array_shape(&y->a);
    tl_array a = tl_array_make(y->a.dtype, &s, NULL);
    if (like != NULL && tl_array_same_shape(like, &a) && like->dtype == a.dtype)
        a = *like;
    add_leaf(t, &a, c, false, &arg[c]);
    for (int i = 0; i < r->o.n_in; i++)
        if (tl_rule_grad(r, i))
            x[n++] = arg[i];
    tl_gradients(t, out[0], x, n, arg[c], out + 1);
    return 1 + n;
}

tl_pattern *tl_rule_trace(const tl_rule *r, bool search, tl_tape *t, tl_bump *mem, const tl_array *array, const bool *grad, const double *scalar, tl_err *err)
{
    tl_tensor arg[TL_PATTERN_ARGS + 1] = {TL_NONE}, out[TL_PATTERN_ARGS + TL_PATTERN_OUTS] = {TL_NONE};
    tl_pattern_values v = {scalar, r->o.ctx};
    bool joint = r->o.trace == TL_TRACE_JOINT;
    int n_out = r->o.n_out;
    tl_error_clear(t);
    tl_tape_reset(t);
    t->tracing->n_hook = t->tracing->n_watch = 0;
    for (int i = 0; i < r->o.n_in; i++)
        add_leaf(t, &array[i], i, grad[i], &arg[i]);
    (search ? r->o.search : r->o.replace)(t, arg, r->o.n_in, out, n_out, &v);
    if (joint)
        n_out = add_gradients(r, t, r->pattern != NULL ? &array[r->o.n_in] : NULL, arg, out);
    const char *who = search ? "search" : "replacement";
    if (tl_failed(t))
        return tl_fail(err, t->head.err.status, "its %s cannot be traced here: %.400s", who, tl_error(t)), NULL;
    if (t->tracing->n_hook + t->tracing->n_watch > 0)
        return tl_fail(err, TL_EUSAGE, "its %s calls tl_host or tl_watch", who), NULL;
    for (uint32_t i = 0; i < t->n_nodes; i++)
        if (t->node[i].op->traits & TL_RANDOM || tl_node_mutates(&t->node[i]))
            return tl_fail(err, TL_EUSAGE, "its %s calls %s, which %s", who, t->node[i].op->name,
                           t->node[i].op->traits & TL_RANDOM ? "draws random numbers" : "changes its operand in place"), NULL;
    tl_err e = {.status = TL_OK};
    tl_pattern *p = tl_pattern_of_tape(mem, t, arg, r->n_args, out, n_out, search ? r->o.scalars : NULL, search ? r->o.n_scalars : 0, &e);
    if (p == NULL)
        tl_fail(err, e.status, "its %s: %.400s", who, e.message);
    return p;
}

/* ---- checks at registration ---- */

static tl_status check_used(const tl_rule *r, tl_err *err)
{
    const tl_pattern *p = r->pattern;
    unsigned args = 0, scalars = 0;
    for (int i = 0; i < p->n_nodes; i++) {
        for (int k = 0; k < p->node[i].n_in; k++)
            args |= p->node[i].in[k].node == TL_REF_ARG ? TL_BIT(p->node[i].in[k].at) : 0;
        for (int f = 0; p->node[i].op->attr != NULL && p->node[i].op->attr[f].name != NULL; f++)
            scalars |= p->node[i].scalar[f] >= 0 ? TL_BIT(p->node[i].scalar[f]) : 0;
        if (p->node[i].op->traits & TL_RANDOM)
            return tl_fail(err, TL_EUSAGE, "its search draws random numbers (%s)", p->node[i].op->name);
    }
    for (int i = 0; i < r->o.n_in; i++)
        if (!(args & TL_BIT(i)))
            return tl_fail(err, TL_EUSAGE, "its search does not use its argument '%s'", r->o.example_inputs[i].name);
    for (int i = 0; i < r->o.n_scalars; i++)
        if (!(scalars & TL_BIT(i)))
            return tl_fail(err, TL_EUSAGE, "its search does not use its scalar '%s' as an attribute of that value (%g)", r->o.scalars[i].name, r->o.scalars[i].value);
    if (p->n_args > r->n_args)
        return tl_fail(err, TL_EUSAGE, "its search uses %d arguments; %d are given", p->n_args, r->n_args);
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
            return tl_fail(err, TL_EUSAGE, "its search has parts that share nothing (%s)", p->node[i].op->name);
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
    g.tracing = t->tracing;
    tl_status s = tl_pass_index(&p);
    for (uint32_t i = 0; i < t->n_nodes && s == TL_OK && !again; i++)
        tl_match_pattern(&p, r, r->pattern, true, i, NULL, found_once, &again);
    tl_bump_free(&p.bump);
    if (again)
        return tl_fail(err, TL_EUSAGE, "its replacement contains what it searches for: it would be replaced for ever");
    return s == TL_OK ? s : tl_fail(err, s, "no memory");
}

static tl_status check_outputs(const tl_pattern *a, const tl_pattern *b, bool traced, tl_err *err)
{
    char sa[TL_SHAPE_TEXT], sb[TL_SHAPE_TEXT];
    for (int i = 0; i < a->n_out; i++) {
        const tl_array *x = &a->out_array[i], *y = &b->out_array[i];
        if (a->out[i].node == TL_REF_NONE)
            continue;
        if (b->out[i].node == TL_REF_NONE)
            return tl_fail(err, TL_EUSAGE, "its replacement sets no output %d", i);
        if (traced && (!tl_array_same_shape(x, y) || x->dtype != y->dtype))
            return tl_fail(err, x->dtype != y->dtype ? TL_EDTYPE : TL_ESHAPE, "output %d of its replacement is %s %s, of its search %s %s", i, tl_dtype_name(y->dtype),
                           tl_array_shape_text(sb, y), tl_dtype_name(x->dtype), tl_array_shape_text(sa, x));
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
    r->pattern = r->o.search_pattern != NULL ? r->o.search_pattern : tl_rule_trace(r, true, t, &r->bump, array, grad, scalar, err);
    if (r->pattern == NULL)
        return err->status;
    if (r->pattern->err.status != TL_OK)
        return tl_fail(err, r->pattern->err.status, "%s", r->pattern->err.message);
    r->n_out = r->pattern->n_out;
    TL_TRY(check_used(r, err));
    TL_TRY(check_connected(r->pattern, err));
    if (r->n_out < r->o.n_out)
        return tl_fail(err, TL_EUSAGE, "its search pattern has %d outputs; %d are given", r->n_out, r->o.n_out);
    r->with = tl_rule_trace(r, false, t, &r->bump, array, grad, scalar, err);
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
