/* rule.c: a replacement, checked when it is registered, with copies of all that it is described by:
 * its programs called and traced, with gradients or without, and what is asked of them. */
#include <string.h>

#include "autograd/replace/internal.h"

/* ---- seed(y..., c...) -> a number whose gradient by y[i] is c[i] ---- */

static tl_status seed_shape(tl_call *c)
{
    c->out[0] = tl_array_make(TL_F32, &TL_SCALAR, NULL);
    return TL_OK;
}

static tl_status seed_forward(tl_call *c)
{
    *(float *)c->out[0].data = 0;
    return TL_OK;
}

static void seed_vjp(tl_vjp *g)
{
    for (int i = 0; i < g->n_in / 2; i++)
        g->dx[i] = g->in[g->n_in / 2 + i];
}

static const tl_op seed_op = {.name = "seed",
                              .n_in = -1,
                              .n_out = 1,
                              .shape = seed_shape,
                              .forward = seed_forward,
                              .vjp = seed_vjp,
                              .saves_in = ~0u};

tl_tensor tl_rule_seed(tl_tape *t, const tl_tensor *y, const tl_tensor *c, int n)
{
    tl_tensor in[2 * TL_PATTERN_OUTS];
    for (int i = 0; i < n; i++) {
        in[i] = y[i];
        in[n + i] = c[i];
    }
    return n == 0 ? TL_NONE : tl_apply1(TL_AT(t), &seed_op, NULL, in, 2 * n);
}

/* ---- search or replace, with gradients or without ---- */

tl_tape *tl_rule_tape(void)
{
    tl_tape *t = tl_tape_new(NULL);
    tl_tracing *s = t == NULL ? NULL : tl_tracing_new(t->arena);
    if (s != NULL && tl_trace_on(t, s))
        return t;
    tl_object_end(t);
    tl_tracing_free(s);
    return NULL;
}

void tl_rule_tape_end(tl_tape *t)
{
    tl_tracing *s = t == NULL ? NULL : tl_tracing_of(t);
    tl_object_end(t);
    tl_tracing_free(s);
}

static void add_leaf(tl_tape *t, const tl_array *a, int i, bool grad, tl_tensor *leaf)
{
    *leaf = tl_trace_leaf(t, a, (tl_leaf){TL_LEAF_INPUT, (uint32_t)i, 0});
    if (!tl_is_none(*leaf))
        tl_peek(t, *leaf)->needs_grad = grad;
}

/* The gradients of the seeded outputs together, behind them in out: by each argument that takes
 * one. Each such output's cotangent is one more argument. How many outputs there are then. */
static int add_gradients(const tl_rule *r, tl_tape *t, const tl_rule_at *w, tl_tensor *arg,
                         tl_tensor *out)
{
    tl_tensor x[TL_PATTERN_ARGS], y[TL_PATTERN_OUTS], c[TL_PATTERN_OUTS];
    int n = 0, seeds = 0;
    for (int i = 0; i < r->o.n_out && !tl_failed(t); i++) {
        const tl_value *v = tl_is_none(out[i]) ? NULL : tl_peek(t, out[i]);
        if (!(w->seeded & TL_BIT(i)) || v == NULL || !v->needs_grad)
            continue;
        tl_shape s = tl_array_shape(&v->a);
        tl_array a = tl_array_make(v->a.dtype, &s, NULL);
        const tl_array *like = &w->array[r->o.n_in + i];
        add_leaf(t, tl_array_same_shape(like, &a) && like->dtype == a.dtype ? like : &a,
                 r->o.n_in + i, false, &arg[r->o.n_in + i]);
        y[seeds] = out[i];
        c[seeds++] = arg[r->o.n_in + i];
    }
    for (int i = 0; i < r->o.n_in; i++)
        if (w->grad[i])
            x[n++] = arg[i];
    tl_tensor seed = tl_rule_seed(t, y, c, seeds);
    if (seeds == 0 || n == 0)
        return r->o.n_out;
    tl_gradients(t, seed, x, n, TL_NONE, out + r->o.n_out);
    return r->o.n_out + n;
}

/* What may not be in a program: it is not called when a graph runs, and never twice. */
static tl_status check_program(const tl_tape *t, const char *who, tl_err *err)
{
    if (tl_tracing_of(t)->n_hook + tl_tracing_of(t)->n_watch > 0)
        return tl_fail(err, TL_EUSAGE, "its %s calls tl_host or tl_watch", who);
    for (const tl_node *n = t->node; n < t->node + t->n_nodes; n++)
        if (n->op->traits & TL_RANDOM || tl_node_mutates(n))
            return tl_fail(err, TL_EUSAGE, "its %s calls %s, which %s", who, n->op->name,
                           n->op->traits & TL_RANDOM ? "draws random numbers"
                                                     : "changes its operand in place");
    return TL_OK;
}

tl_pattern *tl_rule_trace(const tl_form *f, bool search, tl_tape *t, tl_bump *mem,
                          const tl_rule_at *w, tl_err *err)
{
    const tl_rule *r = f->rule;
    tl_tensor arg[TL_PATTERN_MOST] = {TL_NONE}, out[TL_PATTERN_MOST] = {TL_NONE};
    tl_pattern_values v = {w->scalar, r->o.ctx, f->at};
    const char *who = search ? "search" : "replacement";
    int n_out = r->o.n_out;
    tl_error_clear(t);
    tl_tape_reset(t);
    tl_tracing_of(t)->n_hook = tl_tracing_of(t)->n_watch = 0;
    for (int i = 0; i < r->o.n_in; i++)
        add_leaf(t, &w->array[i], i, w->grad[i], &arg[i]);
    if (search && r->o.search_pattern != NULL)
        tl_pattern_run(TL_AT(t), r->o.search_pattern, arg, out);
    else
        (search ? r->o.search : r->o.replace)(t, arg, r->o.n_in, out, n_out, &v);
    if (!tl_failed(t) && check_program(t, who, err) != TL_OK)
        return NULL;
    if (w->seeded != 0)
        n_out = add_gradients(r, t, w, arg, out);
    if (tl_failed(t)) {
        tl_fail(err, t->head.err.status, "its %s cannot be traced here: %.400s", who, tl_error(t));
        return NULL;
    }
    tl_err e = {.status = TL_OK};
    tl_pattern *p = tl_pattern_of_tape(mem, t, arg, r->o.n_in + (w->seeded != 0 ? r->o.n_out : 0),
                                       out, n_out, r->o.scalars, search ? r->o.n_scalars : 0, &e);
    if (p == NULL)
        tl_fail(err, e.status, "its %s: %.400s", who, e.message);
    return p;
}

/* ---- what is asked of them ---- */

static bool found_once(void *ctx, const tl_binding *b)
{
    *(tl_binding *)ctx = *b;
    return true;
}

/* q stands somewhere in what t has recorded; with how it lies there. */
static bool stands_in(const tl_form *f, const tl_pattern *q, tl_tape *t, tl_binding *b, tl_err *err)
{
    tl_graph g = {.t = t, .tracing = tl_tracing_of(t)};
    tl_pass p = {.g = &g, .t = t};
    bool found = false;
    if (tl_pass_index(&p) != TL_OK)
        tl_fail(err, TL_ENOMEM, "no memory to look for a pattern of %d calls", q->n_nodes);
    for (uint32_t i = 0; i < t->n_nodes && err->status == TL_OK && !found; i++)
        found = tl_match_pattern(&p, f, q, true, i, NULL, found_once, b);
    tl_bump_free(&p.bump);
    return found;
}

/* The search, just traced on t: what it says is found from its first output on, with every
 * argument and scalar. */
static tl_status check_search(const tl_form *f, tl_tape *t, tl_err *err)
{
    const tl_replacement *o = &f->rule->o;
    const tl_pattern *q = f->pattern;
    tl_binding b;
    if (q->n_out < o->n_out || q->n_args > o->n_in)
        return tl_fail(err, TL_EUSAGE,
                       "its search has %d arguments and %d outputs; %d and %d are given", q->n_args,
                       q->n_out, o->n_in, o->n_out);
    if (q->out[0].node < 0)
        return tl_fail(err, TL_EUSAGE, "its search computes nothing as output 0");
    for (int i = 1; i < q->n_out; i++)
        if (q->out[i].node == TL_REF_ARG)
            return tl_fail(err, TL_EUSAGE, "output %d of its search is an argument", i);
    if (!stands_in(f, q, t, &b, err))
        return tl_fail(err, TL_EUSAGE, "its search has parts that share nothing (%s is one)",
                       q->node[q->out[0].node].op->name);
    for (int i = 0; i < o->n_in; i++)
        if (tl_is_none(b.arg[i]))
            return tl_fail(err, TL_EUSAGE, "its search does not use its argument '%s'",
                           o->example_inputs[i].name);
    for (int i = 0; i < o->n_scalars; i++)
        if (!(b.has_scalar & TL_BIT(i)))
            return tl_fail(
                err, TL_EUSAGE,
                "its search does not use its scalar '%s' as an attribute of that value (%g)",
                o->scalars[i].name, o->scalars[i].value);
    return TL_OK;
}

tl_status tl_outputs_agree(const tl_pattern *a, const tl_array *was, const tl_pattern *b,
                           bool strides, tl_err *err)
{
    char sx[TL_SHAPE_TEXT], sy[TL_SHAPE_TEXT];
    if (b->n_out < a->n_out)
        return tl_fail(err, TL_EUSAGE, "gradients come to its search, but not to its replacement");
    for (int i = 0; i < a->n_out; i++) {
        const tl_array *x = &was[i], *y = &b->out_array[i];
        if (a->out[i].node == TL_REF_NONE)
            continue;
        if (b->out[i].node == TL_REF_NONE)
            return tl_fail(err, TL_EUSAGE, "its replacement sets no output %d", i);
        if (!tl_array_same_shape(x, y) || x->dtype != y->dtype)
            return tl_fail(err, x->dtype != y->dtype ? TL_EDTYPE : TL_ESHAPE,
                           "output %d of its replacement is %s %s, of its search %s %s", i,
                           tl_dtype_name(y->dtype), tl_array_shape_text(sy, y),
                           tl_dtype_name(x->dtype), tl_array_shape_text(sx, x));
        for (int d = 0; strides && d < x->ndim; d++)
            if (x->dim[d] > 1 && x->stride[d] != y->stride[d])
                return tl_fail(
                    err, TL_EUSAGE,
                    "output %d of the replacement has other strides in dim %d (%lld, not %lld)", i,
                    d, (long long)y->stride[d], (long long)x->stride[d]);
    }
    return TL_OK;
}

/* The form's pattern is made from the examples on t, and the whole of it is checked. */
static tl_status make_form(tl_rule *r, int at, tl_tape *t, tl_err *err)
{
    const tl_replacement *o = &r->o;
    const bool joint = o->trace == TL_TRACE_JOINT;
    tl_form *f = &r->form[at];
    tl_rule_at w = {.seeded = 0};
    tl_binding b;
    *f = (tl_form){.rule = r, .at = at};
    for (int i = 0; i < o->n_in; i++) {
        const tl_shape shape = tl_form_shape(f, i);
        const tl_dtype d = o->example_inputs[i].dtype;
        TL_TRY(tl_shape_check(&shape, d, err));
        w.array[i] = tl_array_make(d, &shape, NULL);
        w.grad[i] = tl_rule_grad(r, i);
    }
    for (int i = 0; i < o->n_scalars; i++)
        w.scalar[i] = o->scalars[i].value;
    tl_pattern *search = tl_rule_trace(f, true, t, &r->bump, &w, err), *with;
    if (search == NULL)
        return err->status;
    f->pattern = o->search_pattern != NULL ? o->search_pattern : search;
    TL_TRY(check_search(f, t, err));
    if (joint) {
        w.seeded = TL_BIT(o->n_out) - 1;
        if ((search = tl_rule_trace(f, true, t, &r->bump, &w, err)) == NULL)
            return err->status;
        if (search->n_out == o->n_out)
            return tl_fail(err, TL_EUSAGE, "it is joint, and its search has no gradient");
    }
    if ((with = tl_rule_trace(f, false, t, &r->bump, &w, err)) == NULL)
        return err->status;
    TL_TRY(tl_outputs_agree(search, search->out_array, with, false, err));
    if (search->n_nodes > TL_PATTERN_NODES)
        return tl_fail(err, TL_EUSAGE, "its search has %d calls; at most %d are possible",
                       search->n_nodes, TL_PATTERN_NODES);
    if (stands_in(f, joint ? search : f->pattern, t, &b, err))
        return tl_fail(err, TL_EUSAGE,
                       "its replacement contains what it searches for: it would be replaced for "
                       "ever");
    TL_TRY(err->status);
    return r->shipped ? TL_OK : tl_form_verify(f, 1, 8, err); /* the suite verifies ours */
}

/* ---- a rule ---- */

static void *copied(tl_bump *b, const void *from, size_t n, bool *ok)
{
    void *to = tl_bump_get(b, n + 1);
    *ok &= to != NULL;
    return to == NULL || n == 0 ? to : memcpy(to, from, n);
}

/* Everything o points to, but for ctx, into r's own memory. */
static tl_status copy_options(tl_rule *r, tl_err *err)
{
    tl_replacement *o = &r->o;
    tl_bump *b = &r->bump;
    const size_t n_in = (size_t)o->n_in, n_shapes = (size_t)r->n_forms * n_in;
    bool ok = (r->form = tl_bump_get(b, (size_t)r->n_forms * sizeof *r->form)) != NULL;
    tl_pattern_arg *arg = copied(b, o->example_inputs, n_in * sizeof *arg, &ok);
    tl_pattern_scalar *s = copied(b, o->scalars, (size_t)o->n_scalars * sizeof *s, &ok);
    o->name = copied(b, o->name, strlen(o->name), &ok);
    if (o->form_shapes != NULL)
        o->form_shapes = copied(b, o->form_shapes, n_shapes * sizeof *o->form_shapes, &ok);
    for (int i = 0; ok && i < o->n_in; i++)
        arg[i].name = copied(b, arg[i].name, strlen(arg[i].name), &ok);
    for (int i = 0; ok && i < o->n_scalars; i++)
        s[i].name = copied(b, s[i].name, strlen(s[i].name), &ok);
    o->example_inputs = arg;
    o->scalars = s;
    return ok ? TL_OK : tl_fail(err, TL_ENOMEM, "no memory for a replacement");
}

static tl_status check_options(const tl_replacement *o, tl_err *err)
{
    int seeds = o->trace == TL_TRACE_JOINT ? o->n_out : 0;
    if (o->name == NULL || o->name[0] == 0 || strchr(o->name, ',') != NULL)
        return tl_fail(err, TL_ENAME, "it needs a name, without a comma");
    if ((o->search == NULL && o->search_pattern == NULL) || o->replace == NULL)
        return tl_fail(err, TL_EUSAGE, "a search (or search_pattern) and a replace are needed");
    if (o->n_in < 1 || o->n_in + seeds > TL_PATTERN_ARGS || o->n_out < 1 ||
        o->n_out > TL_PATTERN_OUTS || o->n_scalars < 0 || o->n_scalars > TL_PATTERN_SCALARS)
        return tl_fail(
            err, TL_EUSAGE,
            "%d arguments, %d outputs, %d scalars; 1 to %d, 1 to %d, 0 to %d are possible", o->n_in,
            o->n_out, o->n_scalars, TL_PATTERN_ARGS - seeds, TL_PATTERN_OUTS, TL_PATTERN_SCALARS);
    if (seeds > 0 && (seeds > TL_PATTERN_JOINT_OUTS || o->search_pattern != NULL))
        return tl_fail(
            err, TL_EUSAGE,
            "a joint replacement is traced, not given as a pattern, and has at most %d outputs",
            TL_PATTERN_JOINT_OUTS);
    if (o->forms < 0 || o->forms > TL_PATTERN_FORMS || (o->forms > 1 && o->search_pattern != NULL))
        return tl_fail(err, TL_EUSAGE,
                       "%d forms; 0 to %d are possible, and one of a search_pattern", o->forms,
                       TL_PATTERN_FORMS);
    if (o->example_inputs == NULL || (o->n_scalars > 0 && o->scalars == NULL))
        return tl_fail(err, TL_EUSAGE, "the lists of %d arguments and %d scalars: one is NULL",
                       o->n_in, o->n_scalars);
    if (o->trace != TL_TRACE_FORWARD && o->trace != TL_TRACE_JOINT)
        return tl_fail(err, TL_EUSAGE, "%d is no kind of trace", (int)o->trace);
    if (o->search_pattern != NULL && o->search_pattern->err.status != TL_OK)
        return tl_fail(err, o->search_pattern->err.status, "%s", o->search_pattern->err.message);
    for (int i = 0; i < o->n_in; i++)
        if (o->example_inputs[i].name == NULL || tl_dtype_size(o->example_inputs[i].dtype) == 0)
            return tl_fail(err, TL_EUSAGE, "argument %d has no name or no dtype", i);
    for (int i = 0; i < o->n_scalars; i++)
        if (o->scalars[i].name == NULL)
            return tl_fail(err, TL_EUSAGE, "scalar %d has no name", i);
    return TL_OK;
}

void tl_rule_free(tl_rule *r)
{
    if (r != NULL)
        tl_bump_free(&r->bump);
    tl_free_raw(r);
}

tl_rule *tl_rule_make(const tl_replacement *o, bool ours, tl_err *err)
{
    if (check_options(o, err) != TL_OK)
        return NULL;
    tl_rule *r = tl_calloc(1, sizeof *r);
    tl_tape *t = r == NULL ? NULL : tl_rule_tape();
    if (t == NULL) {
        tl_free_raw(r);
        return tl_fail(err, TL_ENOMEM, "no memory for a replacement"), NULL;
    }
    r->o = *o;
    r->n_forms = o->forms > 1 ? o->forms : 1;
    r->shipped = ours;
    atomic_store(&r->on, true);
    tl_status s = copy_options(r, err);
    for (int i = 0; i < r->n_forms && s == TL_OK; i++)
        s = make_form(r, i, t, err);
    tl_rule_tape_end(t);
    if (s == TL_OK)
        return r;
    tl_rule_free(r);
    return NULL;
}
