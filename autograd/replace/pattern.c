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
        tl_fail(&p->err, TL_EUSAGE, "a pattern names output %d of call %d, which it has not", x.at,
                x.node);
    return p->err.status == TL_OK;
}

tl_pattern_ref tl_pattern_call(tl_pattern *p, const tl_op *op, const void *attrs,
                               const tl_pattern_ref *in, int n_in)
{
    if (p == NULL || p->err.status != TL_OK || TL_NEED(&p->err, op) != TL_OK ||
        TL_NEED_N(&p->err, in, n_in) != TL_OK)
        return tl_pattern_absent();
    if (p->n_nodes == p->room || n_in > TL_PATTERN_ARGS || (op->n_in >= 0 && n_in != op->n_in)) {
        tl_fail(&p->err, TL_EUSAGE,
                "a pattern calls %s with %d inputs as call %d; it takes %d, and a pattern has at "
                "most %d calls of at most %d inputs",
                op->name, n_in, p->n_nodes, op->n_in, TL_PATTERN_NODES, TL_PATTERN_ARGS);
        return tl_pattern_absent();
    }
    for (int k = 0; k < n_in; k++)
        if (!known(p, in[k]))
            return tl_pattern_absent();
    tl_pattern_node *n = &p->node[p->n_nodes];
    *n = (tl_pattern_node){op, tl_bump_get(p->mem, op->attr_size + 1), n_in,
                           tl_bump_get(p->mem, (size_t)(n_in + 1) * sizeof *in),
                           tl_bump_get(p->mem, (size_t)fields(op) + 1)};
    if (n->attrs == NULL || n->in == NULL || n->scalar == NULL) {
        tl_fail(&p->err, TL_ENOMEM, "no memory for a pattern of %d calls", p->n_nodes);
        return tl_pattern_absent();
    }
    if (attrs != NULL)
        memcpy(n->attrs, attrs, op->attr_size);
    memcpy(n->in, in, (size_t)n_in * sizeof *in);
    memset(n->scalar, -1, (size_t)fields(op) + 1);
    return (tl_pattern_ref){p->n_nodes++, 0};
}

void tl_pattern_free_attr(tl_pattern *p, tl_pattern_ref call, const char *attr, int scalar)
{
    if (p == NULL || p->err.status != TL_OK)
        return;
    if (call.node < 0 || call.node >= p->n_nodes || attr == NULL || scalar < 0 ||
        scalar >= TL_PATTERN_SCALARS) {
        tl_fail(&p->err, TL_EUSAGE, "attribute '%.60s' of call %d as scalar %d; %d calls are there",
                attr == NULL ? "NULL" : attr, call.node, scalar, p->n_nodes);
        return;
    }
    const tl_pattern_node *n = &p->node[call.node];
    int i = fields(n->op) - 1;
    while (i >= 0 && strcmp(n->op->attr[i].name, attr) != 0)
        i--;
    if (i >= 0)
        n->scalar[i] = (signed char)scalar;
    else
        tl_fail(&p->err, TL_EUSAGE, "%s has no attribute '%s'", n->op->name, attr);
}

void tl_pattern_output(tl_pattern *p, int i, tl_pattern_ref x)
{
    if (p == NULL || !known(p, x))
        return;
    if (i < 0 || i >= TL_PATTERN_OUTS) {
        tl_fail(&p->err, TL_EUSAGE, "a pattern has at most %d outputs; this is number %d",
                TL_PATTERN_OUTS, i);
        return;
    }
    for (; p->n_out <= i; p->n_out++)
        p->out[p->n_out] = tl_pattern_absent();
    p->out[i] = x;
}

/* ---- from a tape ---- */

typedef struct {
    tl_pattern *p;
    tl_tape *t;
    const tl_tensor *arg;
    int32_t *made; /* by node of the tape: its number in p */
} reader;

/* What x is called in the pattern: its node is there already. */
static tl_pattern_ref name_of(const reader *r, tl_tensor x)
{
    const int32_t node = tl_maker_at(r->t, x);
    for (int i = 0; i < TL_PATTERN_MOST && !tl_is_none(x); i++)
        if (tl_same_handle(r->arg[i], x))
            return tl_pattern_input(i);
    if (node < 0 && !tl_is_none(x))
        tl_fail(&r->p->err, TL_EUSAGE,
                "it reads a tensor that is no argument (a constant, or detached); make it one");
    return node < 0 ? tl_pattern_absent() : (tl_pattern_ref){r->made[node], tl_peek(r->t, x)->out};
}

static int32_t follow(void *ctx, const tl_node *n, int k)
{
    const reader *r = ctx;
    return tl_maker_at(r->t, n->in[k]);
}

/* Attributes with a scalar argument's example value stand for it. */
static void read_node(const reader *r, int32_t i, const tl_pattern_scalar *scalar, int n_scalars)
{
    const tl_node *n = &r->t->node[i];
    tl_pattern_ref in[TL_PATTERN_ARGS];
    for (int k = 0; k < n->n_in && k < TL_PATTERN_ARGS; k++)
        in[k] = name_of(r, n->in[k]);
    r->made[i] = tl_pattern_call(r->p, n->op, n->attrs, in, n->n_in).node;
    for (int f = 0; r->made[i] >= 0 && f < fields(n->op); f++)
        for (int j = 0; j < n_scalars; j++)
            if (n->op->attr[f].kind != TL_ATTR_SHAPE && n->op->attr[f].kind != TL_ATTR_DTYPE &&
                tl_attr_number(&n->op->attr[f], n->attrs) == scalar[j].value)
                r->p->node[r->made[i]].scalar[f] = (signed char)j;
}

tl_pattern *tl_pattern_of_tape(tl_bump *mem, tl_tape *t, const tl_rule_run *run,
                               const tl_pattern_scalar *scalar, int n_scalars, tl_err *err)
{
    tl_pattern *p = tl_bump_get(mem, sizeof *p);
    reader r = {p, t, run->arg, tl_bump_get(mem, (t->n_nodes + (size_t)1) * sizeof *r.made)};
    tl_postorder order;
    if (p != NULL)
        p->node = tl_bump_get(mem, (t->n_nodes + (size_t)1) * sizeof *p->node);
    if (p == NULL || r.made == NULL || p->node == NULL)
        return tl_fail(err, TL_ENOMEM, "no memory for a pattern"), NULL;
    p->mem = mem;
    p->room = (int)t->n_nodes;
    tl_postorder_begin(&order, t, follow, &r);
    for (; p->n_out < run->n_out && p->err.status == TL_OK; p->n_out++) {
        tl_postorder_from(&order, tl_maker_at(t, run->out[p->n_out]));
        for (int32_t k; p->err.status == TL_OK && (k = tl_postorder_next(&order)) >= 0;)
            read_node(&r, k, scalar, n_scalars);
        p->out[p->n_out] = name_of(&r, run->out[p->n_out]);
    }
    if (p->err.status != TL_OK)
        tl_fail(err, p->err.status, "%s", p->err.message);
    return p->err.status == TL_OK ? p : NULL;
}

typedef tl_tensor results[TL_PATTERN_OUTS];

static tl_tensor value_of(tl_pattern_ref x, const tl_tensor *arg, results *made)
{
    return x.node >= 0 ? made[x.node][x.at] : x.node == TL_REF_ARG ? arg[x.at] : TL_NONE;
}

void tl_pattern_run(tl_at at, const tl_pattern *p, const tl_tensor *arg, tl_tensor *out)
{
    results *made = tl_bump_get(&at.tape->bump, (size_t)(p->n_nodes + 1) * sizeof *made);
    tl_tensor in[TL_PATTERN_ARGS];
    if (made == NULL)
        tl_tape_fail(at, TL_ENOMEM, "no memory to call a pattern of %d calls", p->n_nodes);
    for (int i = 0; i < p->n_nodes && made != NULL; i++) {
        const tl_pattern_node *q = &p->node[i];
        for (int j = 0; j < q->n_in; j++)
            in[j] = value_of(q->in[j], arg, made);
        tl_apply(at, q->op, q->attrs, in, q->n_in, made[i]);
    }
    for (int i = 0; i < p->n_out && made != NULL; i++)
        out[i] = value_of(p->out[i], arg, made);
}

static bool same_refs(const tl_pattern_ref *a, const tl_pattern_ref *b, int n)
{
    int i = 0;
    while (i < n && a[i].node == b[i].node && a[i].at == b[i].at)
        i++;
    return i == n;
}

bool tl_pattern_same(const tl_pattern *a, const tl_pattern *b)
{
    if (a->n_args != b->n_args || a->n_nodes != b->n_nodes || a->n_out != b->n_out ||
        !same_refs(a->out, b->out, a->n_out))
        return false;
    for (int i = 0; i < a->n_nodes; i++) {
        const tl_pattern_node *x = &a->node[i], *y = &b->node[i];
        if (x->op != y->op || x->n_in != y->n_in || !same_refs(x->in, y->in, x->n_in) ||
            !tl_attrs_agree(x->op, x->attrs, y->attrs, 0, x->scalar) ||
            memcmp(x->scalar, y->scalar, (size_t)fields(x->op)) != 0)
            return false;
    }
    return true;
}
