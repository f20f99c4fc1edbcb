/* steps.c: nodes made ready to run - their calls, their arrays, and where those lie. */
#include <string.h>

#include "autograd/graph/fused.h"
#include "autograd/graph/plan.h"
#include "autograd/kernel.h"

static tl_status find_offset(tl_graph *g, tl_tensor x, int64_t *offset)
{
    *offset = 0;
    tl_tensor below = tl_below(g->t, x);
    if (tl_is_none(below))
        return TL_OK;
    TL_TRY(tl_graph_offset(g, tl_graph_resolve(g, below), offset));
    const tl_value *v = tl_values_at(&g->t->values, x.index);
    const tl_node *n = v->node < 0 ? NULL : &g->t->node[v->node];
    if (n == NULL || !(n->op->traits & TL_VIEW))
        return TL_OK;
    char *somewhere = (char *)g; /* a view's shape rule moves an address, and follows none; NULL
                                    would say that there is none */
    tl_array in = tl_peek(g->t, n->in[0])->a, out = {0};
    const tl_array *ins = &in;
    in.data = somewhere;
    tl_call c = {.op = n->op,
                 .attrs = n->attrs,
                 .n_in = 1,
                 .n_out = 1,
                 .in = &ins,
                 .out = &out,
                 .err = &g->head.err};
    TL_TRY(n->op->shape(&c));
    *offset += (int64_t)((uintptr_t)out.data - (uintptr_t)somewhere);
    return TL_OK;
}

/* Each is worked out once: chains of views and changes in place are long. */
tl_status tl_graph_offset(tl_graph *g, tl_tensor x, int64_t *offset)
{
    if (x.owner != g->t->values.owner)
        return *offset = 0, TL_OK;
    if (!g->offset_known[x.index]) {
        TL_TRY(find_offset(g, x, &g->offset[x.index]));
        g->offset_known[x.index] = true;
    }
    *offset = g->offset[x.index];
    return TL_OK;
}

tl_status tl_plan_spot(tl_graph *g, tl_spot *p, tl_array *a, tl_tensor x, bool written)
{
    x = tl_graph_resolve(g, x);
    *a = tl_peek(g->t, x)->a;
    *p = (tl_spot){.a = a, .root = tl_graph_root(g, x), .written = written};
    return tl_graph_offset(g, x, &p->offset);
}

static tl_status no_memory(tl_graph *g, const tl_plan_step *s)
{
    return tl_fail(&g->head.err, TL_ENOMEM, "no memory to plan %s", g->t->node[s->node].op->name);
}

static tl_status op_step(tl_graph *g, tl_plan_step *s)
{
    const tl_node *n = &g->t->node[s->node];
    const tl_array **in = tl_bump_get(&g->bump, (size_t)(n->n_in + 1) * sizeof *in);
    tl_array *at = tl_bump_get(&g->bump, (size_t)(n->n_in + n->n_out + 1) * sizeof *at);
    s->array = tl_bump_get(&g->bump, (size_t)(n->n_in + n->n_out + 1) * sizeof *s->array);
    if (in == NULL || at == NULL || s->array == NULL)
        return no_memory(g, s);
    for (int k = 0; k < n->n_in; k++) {
        in[k] = tl_is_none(n->in[k]) ? NULL : &at[k];
        if (in[k] != NULL)
            TL_TRY(tl_plan_spot(g, &s->array[s->n_in++], &at[k], n->in[k], tl_node_writes(n, k)));
    }
    for (int j = 0; j < n->n_out; j++)
        TL_TRY(tl_plan_spot(g, &s->array[s->n_in + s->n_out++], &at[n->n_in + j],
                            tl_node_out(g->t, n, j), true));
    s->call = (tl_call){.op = n->op,
                        .attrs = n->attrs,
                        .n_in = n->n_in,
                        .n_out = n->n_out,
                        .in = in,
                        .out = at + n->n_in,
                        .mode = n->mode & ~(unsigned)TL_TRACE,
                        .arena = g->user->arena,
                        .err = &g->run_err,
                        .kernel = n->kernel};
    return TL_OK;
}

static tl_status loop_step(tl_graph *g, tl_plan_step *s)
{
    uint32_t nodes[TL_FUSED_OPS];
    int n = tl_fuse_members(g, s->node, nodes);
    if (n <= 1)
        return op_step(g, s);
    tl_fused *f = s->fused = tl_fused_new(g, nodes, n);
    if (f == NULL)
        return g->head.err.status;
    s->array = tl_bump_get(&g->bump, (size_t)(f->n_in + 1) * sizeof *s->array);
    if (s->array == NULL)
        return no_memory(g, s);
    for (int k = 0; k < f->n_in; k++)
        TL_TRY(tl_plan_spot(g, &s->array[s->n_in++], &f->in[k], f->in_value[k], false));
    TL_TRY(tl_plan_spot(g, &s->array[s->n_in + s->n_out++], &f->out, f->out_value, true));
    tl_fused_ready(f);
    return TL_OK;
}

tl_status tl_plan_step_of(tl_graph *g, uint32_t node, tl_plan_step *s)
{
    *s = (tl_plan_step){.node = node};
    return tl_fusable(&g->t->node[node]) ? loop_step(g, s) : op_step(g, s);
}

tl_status tl_plan_steps(tl_graph *g)
{
    g->step = tl_bump_get(&g->bump,
                          (2 * (size_t)g->n_order + 1) * sizeof *g->step); /* each may run again */
    if (g->step == NULL)
        return tl_fail(&g->head.err, TL_ENOMEM, "no memory to plan %u steps", g->n_order);
    for (uint32_t i = 0; i < g->n_order; i++) {
        const tl_node *n = &g->t->node[g->order[i]];
        g->stats.views += n->op->traits & TL_VIEW ? 1 : 0;
        if (!tl_node_idle(n) && !g->inlined[g->order[i]])
            TL_TRY(tl_plan_step_of(g, g->order[i], &g->step[g->n_steps++]));
    }
    return TL_OK;
}

/* ---- order ---- */

bool tl_step_touches(const tl_plan_step *s, uint32_t root, bool only_writes)
{
    for (int k = 0; k < s->n_in + s->n_out; k++)
        if (s->array[k].root == root && (s->array[k].written || !only_writes))
            return true;
    return false;
}

bool tl_steps_may_swap(const tl_plan_step *a, const tl_plan_step *b)
{
    for (int k = 0; k < b->n_in + b->n_out; k++)
        if (tl_step_touches(a, b->array[k].root, !b->array[k].written))
            return false;
    return true;
}

bool tl_step_folds(const tl_graph *g, const tl_plan_step *s)
{
    const tl_node *n = &g->t->node[s->node];
    return s->fused == NULL && tl_node_mutates(n) && n->n_out == 1 &&
           g->roots[s->array[s->n_in].root].kind == TL_ROOT_ACC;
}

/* Folds into a gradient's accumulator take no room and let their operands go: each runs as soon as
 * it can. */
void tl_plan_hoist_folds(tl_graph *g)
{
    for (uint32_t i = 1; i < g->n_steps; i++) {
        tl_plan_step moved = g->step[i];
        uint32_t at = i;
        for (bool folds = tl_step_folds(g, &moved);
             folds && at > 0 && tl_steps_may_swap(&g->step[at - 1], &moved); at--)
            g->step[at] = g->step[at - 1];
        g->step[at] = moved;
    }
}
