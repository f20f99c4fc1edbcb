/* pattern.c: the two programs of a replacement, called with or without gradients, traced, and
 * turned into plain data that can be compared, searched for and run. */
#include "autograd/replace/internal.h"

#include <string.h>

/* ---- seed(y, c, ...) -> a number whose gradient by each y is the c behind it ---- */

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
    for (int i = 0; i < g->n_in; i += 2)
        g->dx[i] = g->in[i + 1];
}

static const tl_op seed_op = {.name = "seed",
                              .n_in = -1,
                              .n_out = 1,
                              .shape = seed_shape,
                              .forward = seed_forward,
                              .vjp = seed_vjp,
                              .saves_in = ~0u};

/* Appends the gradients of the seeded outputs, by each argument that takes one, in one backward. */
static void add_gradients(tl_rule_call *c, tl_tape *t, tl_rule_leaf *leaf, void *ctx)
{
    tl_tensor x[TL_PATTERN_ARGS], in[2 * TL_PATTERN_OUTS];
    const int n_in = c->rule->o.n_in;
    int n_x = 0, n = 0;
    for (int i = 0; i < c->n_out; i++) {
        const tl_value *v = tl_peek(t, c->out[i]);
        if (!(c->seeded & TL_BIT(i)) || v == NULL || !v->needs_grad)
            continue;
        tl_array a = v->a;
        tl_array_set_contiguous(&a);
        if (tl_array_same_shape(&c->array[n_in + i], &a) && c->array[n_in + i].dtype == a.dtype)
            a = c->array[n_in + i];
        in[n++] = c->out[i];
        in[n++] = c->arg[n_in + i] = leaf(ctx, t, &a, n_in + i);
    }
    for (int i = 0; i < n_in; i++)
        if (c->grad[i])
            x[n_x++] = c->arg[i];
    if (n == 0 || n_x == 0)
        return;
    c->seed = tl_apply1(TL_AT(t), &seed_op, NULL, in, n);
    tl_gradients(t, c->seed, x, n_x, TL_NONE, c->out + c->n_out);
    c->n_out += n_x;
}

void tl_rule_run(tl_rule_call *c, bool search, tl_tape *t, tl_rule_leaf *leaf, void *ctx)
{
    const tl_replacement *o = &c->rule->o;
    tl_pattern_values v = {c->scalar, o->ctx, c->rule->form};
    memset(c->out, 0, sizeof c->out);
    c->seed = TL_NONE;
    c->n_out = o->n_out;
    for (int i = 0; i < o->n_in; i++)
        c->arg[i] = leaf(ctx, t, &c->array[i], i);
    (search ? o->search : o->replace)(t, c->arg, o->n_in, c->out, o->n_out, &v);
    if (c->seeded != 0 && !tl_failed(t))
        add_gradients(c, t, leaf, ctx);
}

tl_tape *tl_rule_tape(tl_err *err)
{
    tl_tape *t = tl_tape_new(NULL);
    tl_tracing *s = t == NULL ? NULL : tl_tracing_new(t->arena);
    if (s != NULL && tl_trace_on(t, s))
        return t;
    if (tl_failed(t)) /* the environment's settings are wrong, perhaps */
        tl_fail(err, tl_error_status(t), "%s", tl_error(t));
    tl_fail(err, TL_ENOMEM, "no memory for a tape");
    tl_tracing_free(s);
    tl_object_end(t);
    return NULL;
}

void tl_rule_tape_end(tl_tape *t)
{
    tl_tracing_free(t == NULL ? NULL : tl_tracing_of(t)); /* its constants lie in t's arena */
    tl_object_end(t);
}

/* ---- a traced program as data ---- */

/* How many attributes the op has. */
static int fields(const tl_op *op)
{
    int n = 0;
    while (op->attr != NULL && op->attr[n].name != NULL)
        n++;
    return n;
}

/* The reference to x in the pattern; made: by node of the tape, 1 + its number in the pattern. */
static tl_pattern_ref name_of(const tl_tape *t, const int *made, tl_tensor x, tl_err *err)
{
    const int32_t node = tl_maker_at(t, x);
    const tl_leaf leaf = tl_leaf_of(t, x);
    if (leaf.kind == TL_LEAF_INPUT)
        return (tl_pattern_ref){TL_REF_ARG, (int)leaf.at};
    if (node < 0 && !tl_is_none(x))
        tl_fail(err, TL_EUSAGE,
                "reads a tensor that is no argument (a constant, or detached); make it one");
    return node < 0 ? (tl_pattern_ref){TL_REF_NONE, 0}
                    : (tl_pattern_ref){made[node] - 1, tl_peek(t, x)->out};
}

/* Adds node i of the tape to the pattern. In the rule's own pattern, an attribute with the example
 * value of a scalar argument stands for that argument; if several have that value, for the one of
 * its name. In a pattern traced at a place it has its value there. */
static void read_node(tl_pattern *p, tl_bump *mem, const tl_tape *t, const tl_rule_call *c,
                      int *made, uint32_t i, tl_err *err)
{
    const tl_node *n = &t->node[i];
    const tl_replacement *o = &c->rule->o;
    const size_t size = n->op->attr_size;
    char *attrs = tl_bump_get(mem, size + (size_t)fields(n->op) + 1);
    tl_pattern_node q = {n->op, attrs, n->n_in, {{0}}, NULL};
    if (attrs == NULL || n->n_in > TL_PATTERN_ARGS || p->n_nodes == TL_PATTERN_NODES) {
        tl_fail(err, attrs == NULL ? TL_ENOMEM : TL_EUSAGE,
                "calls %s with %d inputs as call %d; a pattern has at most %d of at most %d inputs",
                n->op->name, n->n_in, p->n_nodes, TL_PATTERN_NODES, TL_PATTERN_ARGS);
        return;
    }
    if (size > 0 && n->op->attr == NULL && c->rule->pattern == NULL) /* in a search */
        tl_fail(err, TL_EUSAGE, "calls %s, whose attributes have no schema (.attr)", n->op->name);
    q.scalar = (signed char *)attrs + size;
    for (int k = 0; k < n->n_in; k++)
        q.in[k] = name_of(t, made, n->in[k], err);
    if (size > 0)
        memcpy(attrs, n->attrs, size);
    for (int f = 0; f < fields(n->op); f++) {
        const tl_attr *a = &n->op->attr[f];
        q.scalar[f] = -1;
        for (int j = 0; j < o->n_scalars && c->rule->pattern == NULL; j++)
            if (tl_attr_number(a, n->attrs) == o->scalars[j].value &&
                (q.scalar[f] < 0 || strcmp(a->name, o->scalars[j].name) == 0))
                q.scalar[f] = (signed char)j;
    }
    p->node[p->n_nodes++] = q;
    made[i] = p->n_nodes;
}

/* The nodes that the outputs of the call on t depend on. */
static tl_pattern *pattern_of_call(tl_bump *mem, tl_tape *t, const tl_rule_call *c, tl_err *err)
{
    const size_t most = (size_t)(t->n_nodes < TL_PATTERN_NODES ? t->n_nodes : TL_PATTERN_NODES);
    tl_pattern *p = tl_bump_get(mem, sizeof *p + most * sizeof *p->node);
    int *made = tl_bump_get(&t->bump, (t->n_nodes + (size_t)1) * sizeof *made);
    uint32_t *order, n;
    bool room = p != NULL && made != NULL;
    for (int i = 0; room && err->status == TL_OK && i < c->n_out; i++) {
        room = tl_canonical_order(t, c->out[i], TL_TO_ALL, &order, &n) == TL_OK;
        for (uint32_t k = 0; room && err->status == TL_OK && k < n; k++)
            if (made[order[k]] == 0)
                read_node(p, mem, t, c, made, order[k], err);
        p->out[p->n_out++] = name_of(t, made, c->out[i], err);
    }
    if (!room)
        tl_fail(err, TL_ENOMEM, "needs more memory than there is");
    return err->status == TL_OK ? p : NULL;
}

static tl_tensor trace_leaf(void *ctx, tl_tape *t, const tl_array *a, int i)
{
    const tl_rule_call *c = ctx;
    tl_tensor x = tl_trace_leaf(t, a, (tl_leaf){TL_LEAF_INPUT, (uint32_t)i, 0});
    if (!tl_is_none(x))
        tl_peek(t, x)->needs_grad = i < c->rule->o.n_in && c->grad[i];
    return x;
}

/* Refuses calls that a program may not make, since it is not called when a graph runs. */
static tl_status check_program(const tl_tape *t, tl_err *err)
{
    if (tl_tracing_of(t)->n_hook + tl_tracing_of(t)->n_watch > 0)
        return tl_fail(err, TL_EUSAGE, "calls tl_host or tl_watch");
    for (const tl_node *n = t->node; n < t->node + t->n_nodes; n++) {
        const char *does = n->op->traits & TL_RANDOM ? "draws random numbers"
                           : tl_node_mutates(n)      ? "changes its operand in place"
                           : n->mode != t->now.mode || n->choice != t->now.choice
                               ? "is called in a scope of its own"
                               : NULL;
        if (n->phase == 0 && does != NULL)
            return tl_fail(err, TL_EUSAGE, "calls %s, which %s", n->op->name, does);
    }
    return TL_OK;
}

tl_pattern *tl_rule_trace(tl_rule_call *c, bool search, tl_tape *t, tl_bump *mem, tl_err *err)
{
    tl_err e = {.status = TL_OK};
    tl_pattern *p = NULL;
    tl_error_clear(t);
    tl_tape_rewind(t);
    tl_tracing_of(t)->n_hook = tl_tracing_of(t)->n_watch = 0;
    tl_rule_run(c, search, t, trace_leaf, c);
    tl_mode_pop(t, 0); /* scopes that it has left open */
    if (tl_failed(t))
        tl_fail(&e, tl_error_status(t), "cannot be traced here: %s", tl_error(t));
    else if (check_program(t, &e) == TL_OK)
        p = pattern_of_call(mem, t, c, &e);
    if (p == NULL)
        tl_fail(err, e.status, "its %s %s", search ? "search" : "replacement", e.message);
    return p;
}

bool tl_pattern_same(const tl_pattern *a, const tl_pattern *b)
{
    bool same = a->n_nodes == b->n_nodes && a->n_out == b->n_out &&
                memcmp(a->out, b->out, sizeof a->out) == 0;
    for (int i = 0; same && i < a->n_nodes; i++) {
        const tl_pattern_node *x = &a->node[i], *y = &b->node[i];
        same = x->op == y->op && x->n_in == y->n_in && memcmp(x->in, y->in, sizeof x->in) == 0 &&
               memcmp(x->scalar, y->scalar, (size_t)fields(x->op)) == 0 &&
               tl_attrs_agree(x->op, x->attrs, y->attrs, 0, x->scalar);
    }
    return same;
}
