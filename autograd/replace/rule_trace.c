/* rule_trace.c: the programs of a replacement, traced. */
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

tl_tape *tl_rule_tape(tl_tracing **s)
{
    tl_tape *t = tl_tape_new(NULL);
    *s = t == NULL ? NULL : tl_tracing_new(t->arena);
    if (*s != NULL && tl_trace_on(t, *s))
        return t;
    tl_free(t);
    tl_tracing_free(*s);
    return NULL;
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

tl_pattern *tl_rule_trace(const tl_rule *r, bool search, tl_tape *t, tl_bump *mem,
                          const tl_rule_at *w, tl_err *err)
{
    tl_tensor arg[TL_PATTERN_ARGS] = {TL_NONE}, out[TL_PATTERN_ARGS + TL_PATTERN_OUTS] = {TL_NONE};
    tl_pattern_values v = {w->scalar, r->o.ctx, r->form};
    int n_out = r->o.n_out;
    tl_error_clear(t);
    tl_tape_reset(t);
    tl_tracing_of(t)->n_hook = tl_tracing_of(t)->n_watch = 0;
    for (int i = 0; i < r->o.n_in; i++)
        add_leaf(t, &w->array[i], i, w->grad[i], &arg[i]);
    (search ? r->o.search : r->o.replace)(t, arg, r->o.n_in, out, n_out, &v);
    if (w->seeded != 0)
        n_out = add_gradients(r, t, w, arg, out);
    const char *who = search ? "search" : "replacement";
    if (tl_failed(t))
        return tl_fail(err, t->head.err.status, "its %s cannot be traced here: %.400s", who,
                       tl_error(t)),
               NULL;
    if (tl_tracing_of(t)->n_hook + tl_tracing_of(t)->n_watch > 0)
        return tl_fail(err, TL_EUSAGE, "its %s calls tl_host or tl_watch", who), NULL;
    for (uint32_t i = 0; i < t->n_nodes; i++)
        if (t->node[i].op->traits & TL_RANDOM || tl_node_mutates(&t->node[i]))
            return tl_fail(err, TL_EUSAGE, "its %s calls %s, which %s", who, t->node[i].op->name,
                           t->node[i].op->traits & TL_RANDOM ? "draws random numbers"
                                                             : "changes its operand in place"),
                   NULL;
    tl_err e = {.status = TL_OK};
    tl_pattern *p = tl_pattern_of_tape(mem, t, arg, w->seeded != 0 ? r->n_args : r->o.n_in, out,
                                       n_out, search ? r->o.scalars : NULL,
                                       search ? r->o.n_scalars : 0, &e);
    if (p == NULL)
        tl_fail(err, e.status, "its %s: %.400s", who, e.message);
    return p;
}
