/* later.c: what a traced backward puts off (.put_off). A run leaves it waiting on the user's tape,
 * as a called backward does; tl_accumulate then runs the steps of one parameter.
 *
 * They stand behind all other steps, and come in whatever order tl_accumulate is called, from the
 * place on at which the last of the parameter's stood: what they read keeps its place in the slab
 * for good, and inputs and host memory are copied. Accumulators are bound only then, with what
 * other tapes may have put there. Nothing runs the graph again meanwhile: a graph with gradients
 * refuses to run while any wait. */
#include "autograd/graph/internal.h"

enum { MOST = 8 }; /* inputs of an op that is run in parts */

/* The accumulator of the user's tape that the step adds to, as a root; UINT32_MAX. */
static uint32_t sums_of(const tl_graph *g, const tl_plan_step *s)
{
    for (int k = 0; k < s->n_in + s->n_out; k++)
        if (s->array[k].written && tl_bind_theirs(g, &g->roots[s->array[k].root]))
            return s->array[k].root;
    return UINT32_MAX;
}

static tl_status crosses(tl_graph *g, const tl_plan_step *later, const tl_plan_step *now)
{
    const tl_node *n = &g->t->node[now->node];
    return tl_tape_fail((tl_at){g->user, n->file, n->line, NULL}, TL_ETRACED,
                        "%s changes what the gradient by %s reads, which .put_off leaves until "
                        "after the run; call this part of the program",
                        n->op->name, g->t->node[later->node].op->name);
}

/* The step changes the model: a total, statistics of a norm. Who folds beside the run has seen all
 * of that before. */
static bool changes_model(const tl_graph *g, const tl_plan_step *s)
{
    for (int k = 0; k < s->n_in + s->n_out; k++)
        if (s->array[k].written && g->roots[s->array[k].root].kind == TL_ROOT_MODEL)
            return true;
    return false;
}

/* ---- parts ---- */

/* A call that adds to elements [from, from + n) of its accumulator along an axis, alone. */
typedef struct {
    tl_call call;
    const tl_array *in[MOST];
    tl_array its, sum; /* the operand that is cut with the accumulator */
} part;

static tl_array cut(const tl_array *x, int axis, int64_t from, int64_t n)
{
    tl_array y = *x;
    y.dim[axis] = n;
    if (y.data != NULL)
        y.data = (char *)y.data + from * x->stride[axis] * (int64_t)tl_dtype_size(x->dtype);
    return y;
}

static void make_part(part *p, const tl_call *c, int axis, int input, int its, int64_t from,
                      int64_t n)
{
    for (int i = 0; i < c->n_in; i++)
        p->in[i] = c->in[i];
    p->its = cut(c->in[input], its, from, n);
    p->sum = cut(&c->out[0], axis, from, n);
    p->in[input] = &p->its;
    p->in[c->op->mutates] = &p->sum;
    p->call = *c;
    p->call.in = p->in;
    p->call.out = &p->sum;
    p->call.plain = p->call.begins = false;
    const tl_kernel *k = c->kernel; /* selected for the whole */
    p->call.kernel = k == NULL || k->fits == NULL || k->fits(&p->call) ? k : NULL;
}

/* Which axis of which input the op's rule for the batch says to be that of the sums: were the
 * input's elements there samples, the sums' would be, each with the same bits alone. What its
 * attributes say of shapes must leave it free. */
static bool find_cut(const tl_call *c, int axis, int *input, int *its)
{
    const int acc = c->op->mutates;
    if (c->op->batch == NULL || c->n_in > MOST || c->n_out != 1 || c->in[acc] == NULL)
        return false;
    tl_call without = *c;
    const tl_array *in[MOST];
    const int64_t size = c->out[0].dim[axis];
    for (int i = 0; i < c->n_in; i++)
        in[i] = i == acc ? NULL : c->in[i];
    without.in = in;
    without.samples = size;
    for (*input = 0; *input < c->n_in; ++*input)
        for (*its = 0; in[*input] != NULL && *its < in[*input]->ndim; ++*its) {
            tl_batch of[MOST], out = TL_MIXED;
            for (int i = 0; i < c->n_in; i++)
                of[i] = i == *input ? (tl_batch)*its : TL_FREE;
            if (in[*input]->dim[*its] == size)
                c->op->batch(&without, of, &out);
            if (out != axis)
                continue;
            part p;
            tl_err err = {.status = TL_OK};
            make_part(&p, c, axis, *input, *its, 0, 1);
            const tl_array want = p.sum;
            p.call.err = &err;
            return c->op->shape(&p.call) == TL_OK && tl_array_same_shape(&p.sum, &want);
        }
    return false;
}

/* Which axis of a step's sums, all of the accumulator seen some way, is that axis of the leaf; -1.
 */
static int axis_there(const tl_plan_step *s, const tl_array *leaf, int axis)
{
    const tl_array *x = &s->call.out[0];
    int64_t stride = 1;
    for (int i = axis + 1; i < leaf->ndim; i++)
        stride *= leaf->dim[i];
    int j = s->fused != NULL || s->call.n_out != 1 || tl_array_count(x) != tl_array_count(leaf)
                ? -1
                : x->ndim - 1;
    while (j >= 0 && (x->dim[j] != leaf->dim[axis] || x->stride[j] != stride))
        j--;
    return j;
}

static const tl_array *leaf_of(const tl_graph *g, uint32_t sums)
{
    return &tl_peek(g->t, g->t->grad[g->roots[sums].at].leaf)->a;
}

/* The first axis along which all that is added to an accumulator can be cut; TL_WHOLE. */
static int axis_of(const tl_graph *g, uint32_t sums)
{
    const tl_array *leaf = leaf_of(g, sums);
    for (int axis = 0; axis < leaf->ndim; axis++) {
        bool can = leaf->dim[axis] > 1;
        for (uint32_t i = g->n_now; i < g->n_steps && can; i++) {
            int input, its, there;
            if (g->step[i].sums == sums)
                can = (there = axis_there(&g->step[i], leaf, axis)) >= 0 &&
                      find_cut(&g->step[i].call, there, &input, &its);
        }
        if (can)
            return axis;
    }
    return TL_WHOLE;
}

static tl_status run_part(tl_graph *g, uint32_t i, int axis, int k, int of)
{
    const tl_plan_step *s = &g->step[i];
    const int there = axis_there(s, leaf_of(g, s->sums), axis);
    const int64_t size = s->call.out[0].dim[there], from = size * k / of,
                  n = size * (k + 1) / of - from;
    int input, its;
    part p;
    find_cut(&s->call, there, &input, &its);
    make_part(&p, &s->call, there, input, its, from, n);
    return tl_graph_run_call(g, s, &p.call);
}

/* ---- the order ---- */

/* An accumulator whose steps wait, ... */
typedef struct tl_later {
    uint32_t sums;
    uint32_t from; /* ... until so many others have run; */
    int axis;      /* along which they can be cut */
} tl_later;

/* The accumulators, as they are complete: the last of the steps that add to one tells. */
static void list_folds(tl_graph *g, const uint32_t *from, uint32_t least)
{
    uint32_t n = 0;
    for (uint32_t k = g->n_steps; k-- > g->n_now;) {
        const uint32_t sums = g->step[k].sums, at = from[k - g->n_now];
        uint32_t i = 0;
        while (i < n && g->fold[i].sums != sums)
            i++;
        if (i == n)
            g->fold[n++] = (tl_later){sums, at > least ? at : least, axis_of(g, sums)};
    }
    g->n_folds = n;
    for (uint32_t i = 0; i < n / 2; i++) {
        const tl_later last = g->fold[n - 1 - i];
        g->fold[n - 1 - i] = g->fold[i];
        g->fold[i] = last;
    }
}

tl_status tl_later_order(tl_graph *g)
{
    uint32_t n = 0, n_later = 0, changed = 0;
    g->n_now = g->n_steps;
    if (!g->tracing->put_off)
        return TL_OK;
    tl_plan_step *later = tl_bump_get(&g->bump, (g->n_steps + 1) * sizeof *later);
    uint32_t *from = tl_bump_get(&g->bump, (g->n_steps + 1) * sizeof *from);
    g->fold = tl_bump_get(&g->bump, (g->n_steps + 1) * sizeof *g->fold);
    if (later == NULL || from == NULL || g->fold == NULL)
        return tl_fail(&g->head.err, TL_ENOMEM, "no memory to put off %u steps", g->n_steps);
    for (uint32_t i = 0; i < g->n_steps; i++) {
        const uint32_t sums = sums_of(g, &g->step[i]);
        if (sums != UINT32_MAX) {
            from[n_later] = n;
            later[n_later] = g->step[i];
            later[n_later++].sums = sums;
            continue;
        }
        for (uint32_t k = 0; k < n_later; k++)
            if (!tl_steps_may_swap(&later[k], &g->step[i]))
                return crosses(g, &later[k], &g->step[i]);
        g->step[n++] = g->step[i];
        changed = changes_model(g, &g->step[i]) ? n : changed;
    }
    g->n_now = n;
    for (uint32_t k = 0; k < n_later; k++)
        g->step[n + k] = later[k];
    list_folds(g, from, changed);
    return TL_OK;
}

void tl_later_mark(tl_graph *g)
{
    for (uint32_t i = g->n_now; i < g->n_steps; i++)
        for (int k = 0; k < g->step[i].n_in + g->step[i].n_out; k++) {
            tl_root *r = &g->roots[g->step[i].array[k].root];
            r->later = true;
            r->last = g->n_steps;
        }
}

/* ---- runs ---- */

typedef struct {
    tl_fold f;
    tl_graph *g; /* NULL: it has been freed */
    int later;   /* g->later of that run */
    const tl_later *fold;
} waiting;

/* Memory that others may change between the run and tl_accumulate. */
static tl_storage *shared(tl_graph *g, const tl_root *r)
{
    const bool is = r->later && (r->kind == TL_ROOT_MODEL || r->kind == TL_ROOT_OUTPUT ||
                                 r->kind == TL_ROOT_DERIVED);
    return is ? tl_graph_storage(g, r) : NULL;
}

static tl_status unchanged(tl_graph *g, const tl_plan_step *s)
{
    tl_changer by;
    char text[TL_CHANGER_TEXT];
    const tl_node *n = &g->t->node[s->node];
    for (int k = 0; k < s->n_in; k++) {
        const tl_root *r = &g->roots[s->array[k].root];
        const tl_storage *st = shared(g, r);
        if (st != NULL && tl_storage_changed(st, r->since, s->array[k].a, &by))
            return tl_tape_fail((tl_at){g->user, n->file, n->line, NULL}, TL_EINPLACE,
                                "tl_accumulate: input %d of %s was changed meanwhile by %s", k,
                                n->op->name, tl_changer_text(text, by));
    }
    return TL_OK;
}

static tl_status fold(tl_tape *t, tl_fold *f, int i, int of)
{
    const waiting *w = (const waiting *)f;
    tl_graph *g = w->g;
    if (g == NULL)
        return tl_tape_fail(tl_nowhere(t), TL_ESTALE,
                            "tl_accumulate: the graph whose run put this off has been freed");
    const tl_later *l = w->fold;
    tl_root *r = &g->roots[l->sums];
    g->later = w->later;
    for (uint32_t k = g->n_now; k < g->n_steps; k++)
        if (g->step[k].sums == l->sums)
            TL_TRY(unchanged(g, &g->step[k]));
    TL_TRY(tl_bind_accumulator(g, r));
    if (of > 1) /* no part begins where memory is blank */
        tl_storage_settle(tl_bind_accumulated(g, r));
    for (uint32_t k = g->n_now; k < g->n_steps; k++)
        if (g->step[k].sums == l->sums)
            TL_TRY(of > 1 ? run_part(g, k, l->axis, i, of) : tl_graph_run_step(g, k));
    tl_bind_accumulated(g, r)->version += i == of - 1;
    return TL_OK;
}

/* What steps read of memory that others may change is as it is now. */
static void note_versions(tl_graph *g, uint32_t sums)
{
    for (uint32_t i = g->n_now; i < g->n_steps; i++)
        for (int k = 0; g->step[i].sums == sums && k < g->step[i].n_in; k++) {
            tl_root *r = &g->roots[g->step[i].array[k].root];
            const tl_storage *st = shared(g, r);
            r->since = st == NULL ? 0 : st->version;
        }
}

static tl_status wait_for(tl_graph *g, const tl_later *l)
{
    tl_tape *u = g->user;
    const tl_root *r = &g->roots[l->sums];
    tl_leaf_grad *theirs = tl_leaf_grad_find(u, g->t->grad[r->at].leaf);
    waiting *w = tl_bump_get(&u->bump, sizeof *w);
    if (w == NULL)
        return tl_fail(&u->head.err, TL_ENOMEM, "tl_run: no memory to put a gradient off");
    *w = (waiting){{.run = fold, .axis = l->axis, .acc = tl_bind_their_acc(g, r)}, g, g->later, l};
    w->f.later = theirs->waiting;
    theirs->waiting = &w->f;
    u->waiting++;
    note_versions(g, l->sums);
    for (const tl_later *more = l + 1; more < g->fold + g->n_folds; more++)
        if (g->roots[more->sums].at == r->at)
            return TL_OK;
    const char *param = u->n_watchers > 0 ? tl_leaf_grad_name(u, theirs) : NULL;
    if (param != NULL)
        TL_TELL(u, put_off, u, param);
    return u->head.err.status;
}

tl_status tl_later_wait(tl_graph *g, uint32_t n)
{
    for (; g->n_waiting < g->n_folds && g->fold[g->n_waiting].from <= n; g->n_waiting++)
        TL_TRY(wait_for(g, &g->fold[g->n_waiting]));
    return TL_OK;
}

tl_status tl_later_over(tl_graph *g)
{
    for (tl_root *r = g->outside; g->n_now < g->n_steps && r != NULL; r = r->next) {
        const tl_storage *st = shared(g, r);
        r->since = st == NULL ? 0 : st->version;
    }
    return tl_later_wait(g, g->n_now);
}

void tl_later_forget(tl_graph *g)
{
    for (int i = 0; i < g->user->n_grads; i++)
        for (tl_fold *f = g->user->grad[i].waiting; f != NULL; f = f->later)
            if (f->run == fold && ((waiting *)f)->g == g)
                ((waiting *)f)->g = NULL;
}
