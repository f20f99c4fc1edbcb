/* steps.c: a step, which is one call of a run, or one fused loop: its arrays, what it reads and
 * writes, and how it runs. */
#include "autograd/graph/internal.h"

tl_spot tl_spot_of(tl_graph *g, tl_tensor x)
{
    x = tl_graph_resolve(g, x);
    return (tl_spot){.a = &tl_peek(g->t, x)->a,
                     .root = tl_graph_root(g, x),
                     .offset = tl_graph_offset(g, x)};
}

tl_plan_step *tl_step_new(tl_graph *g, uint32_t node, const tl_op *op, int n_in)
{
    const size_t n = (size_t)(n_in + op->n_out + 1); /* recompute.c may add a result */
    tl_plan_step *s = tl_graph_room(g, 1, sizeof *s);
    tl_array *a = tl_graph_room(g, n, sizeof *a);
    const tl_array **in = tl_graph_room(g, (size_t)n_in, sizeof *in);
    tl_spot *spot = tl_graph_room(g, n, sizeof *spot);
    if (g->head.err.status != TL_OK)
        return NULL;
    *s = (tl_plan_step){.node = node, .in = in, .spot = spot};
    s->call = tl_graph_call(g, &g->t->node[node], in, a + n_in, &g->run_err);
    s->call.op = op;
    s->call.n_in = n_in;
    s->call.n_out = op->n_out;
    return s;
}

/* Makes *a, an array of s, like *p.a, lying at p. */
static void add_spot(tl_plan_step *s, tl_array *a, tl_spot p)
{
    tl_spot *spot = &s->spot[s->n_in + s->n_out];
    *a = *p.a;
    *spot = p;
    spot->a = a;
    spot->step = s;
}

void tl_step_add_in(tl_plan_step *s, int k, tl_spot p)
{
    tl_array *a = s->call.out - s->call.n_in + k;
    s->in[k] = a;
    add_spot(s, a, p);
    s->n_in++;
}

void tl_step_add_out(tl_plan_step *s, tl_spot p)
{
    p.written = true;
    add_spot(s, s->call.out + s->n_out, p);
    s->n_out++;
}

tl_plan_step *tl_plan_step_of(tl_graph *g, uint32_t node)
{
    const tl_node *n = &g->t->node[node];
    tl_fused *f = tl_fused_new(g, node);
    tl_plan_step *s = tl_step_new(g, node, n->op, f != NULL ? f->n_in : n->n_in);
    if (s == NULL)
        return NULL;
    for (int k = 0; k < s->call.n_in; k++) {
        const tl_tensor x = f != NULL ? f->in[k].value : n->in[k];
        if (tl_is_none(x))
            continue;
        tl_spot p = tl_spot_of(g, x);
        p.written = f == NULL && tl_node_writes(n, k);
        tl_step_add_in(s, k, p);
    }
    for (int j = 0; j < n->n_out; j++)
        tl_step_add_out(s, tl_spot_of(g, tl_node_out(g->t, n, j)));
    s->fused = f;
    return g->head.err.status == TL_OK ? s : NULL;
}

/* ---- who uses a root ---- */

void tl_step_link(tl_graph *g, tl_plan_step *s, int first)
{
    for (int k = first; k < s->n_in + s->n_out; k++) {
        tl_spot *p = &s->spot[k], **at = &g->roots[p->root].spots;
        while (*at != NULL && (*at)->step->at > s->at)
            at = &(*at)->next;
        p->next = *at;
        *at = p;
        g->roots[p->root].written |= p->written;
    }
}

bool tl_root_written_between(const tl_graph *g, uint32_t root, int64_t from, int64_t to)
{
    const tl_root *r = &g->roots[root];
    for (const tl_spot *p = r->written ? r->spots : NULL; p != NULL && p->step->at > from;
         p = p->next)
        if (p->written && p->step->at < to)
            return true;
    return false;
}

bool tl_step_touches(const tl_plan_step *s, uint32_t root, bool only_writes)
{
    for (int k = 0; k < s->n_in + s->n_out; k++)
        if (s->spot[k].root == root && (s->spot[k].written || !only_writes))
            return true;
    return false;
}

bool tl_steps_may_swap(const tl_plan_step *a, const tl_plan_step *b)
{
    for (int k = 0; k < b->n_in + b->n_out; k++)
        if (tl_step_touches(a, b->spot[k].root, !b->spot[k].written))
            return false;
    return true;
}

/* ---- running ---- */

tl_status tl_graph_run_call(tl_graph *g, const tl_plan_step *p, tl_call *c)
{
    tl_status s = TL_OK;
    const tl_node *n = &g->t->node[p->node];
    const char *outer = g->user->inside;
    const int n_ops = p->fused != NULL ? p->fused->n_ops : 1; /* shown as a call of the last one */
    const tl_seen seen = {c, n->file, n->line, n->phase, TL_NO_NODE, n_ops, NULL};
    g->running++; /* whoever is called from here on must not run g again */
    g->user->inside = c->op->name;
    tl_tell_runs(g->user, &seen);
    if (p->fused != NULL)
        tl_fused_run(p->fused, c);
    else
        s = tl_op_run(c);
    s = s == TL_OK ? tl_tell(g->user, &seen, true) : s;
    g->user->inside = outer;
    s = s == TL_OK ? g->user->head.err.status : s;
    g->running--;
    if (s == TL_OK && c->begins)
        tl_graph_storage(g, &g->roots[p->spot[p->n_in].root])->blank = false;
    if (s != TL_OK)
        tl_tape_fail((tl_at){g->user, n->file, n->line, NULL}, s, "%s", g->run_err.message);
    if (g->run_err.status != TL_OK)
        tl_err_clear(&g->run_err);
    return s;
}
