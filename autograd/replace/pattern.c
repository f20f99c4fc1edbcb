/* pattern.c: a small program as plain data - made from a traced tape, or by hand. */
#include "autograd/replace/internal.h"

#include <string.h>

static int fields(const tl_op *op)
{
    int n = 0;
    while (op->attr != NULL && op->attr[n].name != NULL)
        n++;
    return n;
}

/* ---- built by hand ---- */

tl_pattern *tl_pattern_new(void)
{
    tl_pattern *p = tl_calloc(1, sizeof *p + TL_PATTERN_NODES * sizeof *p->node);
    if (p == NULL)
        return NULL;
    p->mem = &p->own;
    p->room = TL_PATTERN_NODES;
    p->node = (tl_pattern_node *)(p + 1);
    return p;
}

void tl_pattern_free(tl_pattern *p)
{
    if (p != NULL)
        tl_bump_free(&p->own);
    tl_free_raw(p);
}

tl_pattern_ref tl_pattern_input(int i) { return (tl_pattern_ref){TL_REF_ARG, i}; }
tl_pattern_ref tl_pattern_absent(void) { return (tl_pattern_ref){TL_REF_NONE, 0}; }

/* x names something of p. */
static bool known(tl_pattern *p, tl_pattern_ref x)
{
    if (x.node == TL_REF_ARG && x.at >= 0 && x.at < TL_PATTERN_MOST)
        p->n_args = x.at >= p->n_args ? x.at + 1 : p->n_args;
    else if (x.node != TL_REF_NONE &&
             (x.node < 0 || x.node >= p->n_nodes || x.at < 0 || x.at >= p->node[x.node].op->n_out))
        tl_fail(&p->err, TL_EUSAGE, "names output %d of call %d, which it has not", x.at, x.node);
    return p->err.status == TL_OK;
}

tl_pattern_ref tl_pattern_call(tl_pattern *p, const tl_op *op, const void *attrs,
                               const tl_pattern_ref *in, int n_in)
{
    if (p == NULL || p->err.status != TL_OK || TL_NEED(&p->err, op) != TL_OK ||
        TL_NEED_N(&p->err, in, n_in) != TL_OK)
        return tl_pattern_absent();
    if (p->n_nodes == p->room || n_in > TL_PATTERN_ARGS || (op->n_in >= 0 && n_in != op->n_in))
        tl_fail(&p->err, TL_EUSAGE,
                "calls %s with %d inputs as call %d; it takes %d, and a pattern has at most %d "
                "calls of at most %d inputs",
                op->name, n_in, p->n_nodes, op->n_in, TL_PATTERN_NODES, TL_PATTERN_ARGS);
    for (int k = 0; p->err.status == TL_OK && k < n_in; k++)
        known(p, in[k]);
    const size_t n_fields = (size_t)fields(op) + 1;
    tl_pattern_node n = {op, tl_bump_get(p->mem, op->attr_size + n_fields), n_in, {{0}}, NULL};
    if (n.attrs == NULL)
        tl_fail(&p->err, TL_ENOMEM, "no memory for a pattern of %d calls", p->n_nodes);
    if (p->err.status != TL_OK)
        return tl_pattern_absent();
    n.scalar = (signed char *)n.attrs + op->attr_size;
    if (attrs != NULL)
        memcpy(n.attrs, attrs, op->attr_size);
    if (n_in > 0)
        memcpy(n.in, in, (size_t)n_in * sizeof *in);
    memset(n.scalar, -1, n_fields);
    p->node[p->n_nodes] = n;
    return (tl_pattern_ref){p->n_nodes++, 0};
}

void tl_pattern_free_attr(tl_pattern *p, tl_pattern_ref call, const char *attr, int scalar)
{
    if (p == NULL || p->err.status != TL_OK)
        return;
    const tl_pattern_node *n = call.node < 0 || call.node >= p->n_nodes ? NULL
                                                                        : &p->node[call.node];
    int i = n == NULL || attr == NULL ? -1 : fields(n->op) - 1;
    while (i >= 0 && strcmp(n->op->attr[i].name, attr) != 0)
        i--;
    if (i < 0 || scalar < 0 || scalar >= TL_PATTERN_SCALARS)
        tl_fail(
            &p->err, TL_EUSAGE,
            "frees attribute '%.60s' of call %d (%s) as scalar %d: it has none, or there are %d "
            "calls and at most %d scalars",
            attr == NULL ? "NULL" : attr, call.node, n == NULL ? "none" : n->op->name, scalar,
            p->n_nodes, TL_PATTERN_SCALARS);
    else
        n->scalar[i] = (signed char)scalar;
}

void tl_pattern_output(tl_pattern *p, int i, tl_pattern_ref x)
{
    if (p == NULL || !known(p, x))
        return;
    if (i < 0 || i >= TL_PATTERN_OUTS) {
        tl_fail(&p->err, TL_EUSAGE, "has at most %d outputs; this is number %d", TL_PATTERN_OUTS,
                i);
        return;
    }
    while (p->n_out <= i)
        p->out[p->n_out++] = tl_pattern_absent();
    p->out[i] = x;
}

/* ---- from a tape ---- */

/* What x is called in the pattern; made: by node of the tape, one more than its number there. */
static tl_pattern_ref name_of(tl_pattern *p, const tl_tape *t, const tl_rule_call *c,
                              const int *made, tl_tensor x)
{
    const int32_t node = tl_maker_at(t, x);
    for (int i = 0; i < TL_PATTERN_MOST && !tl_is_none(x); i++)
        if (tl_same_handle(c->arg[i], x))
            return tl_pattern_input(i);
    if (node < 0 && !tl_is_none(x))
        tl_fail(&p->err, TL_EUSAGE,
                "reads a tensor that is no argument (a constant, or detached); make it one");
    return node < 0 ? tl_pattern_absent() : (tl_pattern_ref){made[node] - 1, tl_peek(t, x)->out};
}

/* Attributes with a scalar argument's example value stand for it. */
static void read_node(tl_pattern *p, const tl_tape *t, const tl_rule_call *c, int *made, uint32_t i)
{
    const tl_node *n = &t->node[i];
    const tl_replacement *o = &c->rule->o;
    tl_pattern_ref in[TL_PATTERN_ARGS];
    for (int k = 0; k < n->n_in && k < TL_PATTERN_ARGS; k++)
        in[k] = name_of(p, t, c, made, n->in[k]);
    const int at = tl_pattern_call(p, n->op, n->attrs, in, n->n_in).node;
    made[i] = at + 1;
    for (int f = 0; at >= 0 && f < fields(n->op); f++)
        for (int j = 0; j < o->n_scalars; j++)
            if (n->op->attr[f].kind != TL_ATTR_SHAPE && n->op->attr[f].kind != TL_ATTR_DTYPE &&
                tl_attr_number(&n->op->attr[f], n->attrs) == o->scalars[j].value)
                p->node[at].scalar[f] = (signed char)j;
}

tl_pattern *tl_pattern_of_call(tl_bump *mem, tl_tape *t, const tl_rule_call *c, tl_err *err)
{
    tl_pattern *p = tl_bump_get(mem, sizeof *p + (t->n_nodes + (size_t)1) * sizeof *p->node);
    int *made = tl_bump_get(&t->bump, (t->n_nodes + (size_t)1) * sizeof *made);
    uint32_t *order, n;
    if (p == NULL || made == NULL)
        return tl_fail(err, TL_ENOMEM, "needs more memory than there is"), NULL;
    p->node = (tl_pattern_node *)(p + 1);
    p->mem = mem;
    p->room = t->n_nodes < TL_PATTERN_NODES ? (int)t->n_nodes : TL_PATTERN_NODES;
    for (; p->n_out < c->n_out && p->err.status == TL_OK; p->n_out++) {
        const tl_tensor y = c->out[p->n_out];
        if (tl_canonical_order(t, y, TL_TO_ALL, &order, &n) != TL_OK)
            return tl_fail(err, TL_ENOMEM, "needs more memory than there is"), NULL;
        for (uint32_t i = 0; i < n && p->err.status == TL_OK; i++)
            if (made[order[i]] == 0)
                read_node(p, t, c, made, order[i]);
        p->out[p->n_out] = name_of(p, t, c, made, y);
    }
    if (p->err.status != TL_OK)
        return tl_fail(err, p->err.status, "%s", p->err.message), NULL;
    return p;
}

static tl_tensor value_of(tl_pattern_ref x, const tl_tensor *arg,
                          tl_tensor (*made)[TL_PATTERN_OUTS])
{
    return x.node >= 0 ? made[x.node][x.at] : x.node == TL_REF_ARG ? arg[x.at] : TL_NONE;
}

void tl_pattern_run(tl_at at, const tl_pattern *p, const tl_tensor *arg, tl_tensor *out)
{
    tl_tensor in[TL_PATTERN_ARGS], made[TL_PATTERN_NODES][TL_PATTERN_OUTS];
    for (int i = 0; i < p->n_nodes; i++) {
        const tl_pattern_node *q = &p->node[i];
        for (int j = 0; j < q->n_in; j++)
            in[j] = value_of(q->in[j], arg, made);
        tl_apply(at, q->op, q->attrs, in, q->n_in, made[i]);
    }
    for (int i = 0; i < p->n_out; i++)
        out[i] = value_of(p->out[i], arg, made);
}

bool tl_pattern_same(const tl_pattern *a, const tl_pattern *b)
{
    bool same = a->n_args == b->n_args && a->n_nodes == b->n_nodes && a->n_out == b->n_out &&
                memcmp(a->out, b->out, sizeof a->out) == 0;
    for (int i = 0; same && i < a->n_nodes; i++) {
        const tl_pattern_node *x = &a->node[i], *y = &b->node[i];
        same = x->op == y->op && x->n_in == y->n_in && memcmp(x->in, y->in, sizeof x->in) == 0 &&
               memcmp(x->scalar, y->scalar, (size_t)fields(x->op)) == 0 &&
               tl_attrs_agree(x->op, x->attrs, y->attrs, 0, x->scalar);
    }
    return same;
}
