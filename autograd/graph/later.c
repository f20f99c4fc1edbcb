/* later.c: gradients that a traced backward puts off (.put_off). A run leaves them waiting on the
 * user's tape, as a called backward does; tl_accumulate then runs the steps of one parameter.
 *
 * These steps stand behind all others, those of one accumulator together. They may be asked for in
 * any order, even while the run goes on, once all steps that stood before them have run. What they
 * read therefore keeps its place in the slab for good, and inputs and host memory are copied.
 * Accumulators are bound only when they are asked for: other tapes may have added to them. The
 * graph cannot run again meanwhile: a graph with gradients refuses to run while any wait. */
#include "autograd/graph/internal.h"

enum { MOST = 8 }; /* inputs of an op that is run in parts */

/* How a step can be run in parts: axis `axis` of its sums is axis `its` of its input `input`. */
typedef struct {
    int axis, input, its;
} cut;

/* An accumulator whose steps wait. */
typedef struct tl_later {
    uint32_t sums;       /* its root */
    uint32_t from;       /* how many of the other steps must have run before it may be asked for */
    uint32_t first, end; /* its steps */
    int axis;            /* of the parameter, along which its steps can be cut; TL_WHOLE: none */
    cut *cut;            /* by step, from first on */
} tl_later;

/* ---- parts ---- */

/* A call that adds to elements [from, from + n) of its sums along an axis, and to no others. */
typedef struct {
    tl_call call;
    const tl_array *in[MOST];
    tl_array its, sum; /* the operand that is cut, and the sums */
} part;

static void make_part(part *p, const tl_call *c, cut how, int64_t from, int64_t n)
{
    for (int i = 0; i < c->n_in; i++)
        p->in[i] = c->in[i];
    p->its = tl_part_of(c->in[how.input], how.its, from, 1, n);
    p->sum = tl_part_of(&c->out[0], how.axis, from, 1, n);
    p->in[how.input] = &p->its;
    p->in[c->op->mutates] = &p->sum;
    p->call = *c;
    p->call.in = p->in;
    p->call.out = &p->sum;
    p->call.plain = p->call.begins = false;
    const tl_kernel *k = c->kernel; /* selected for the whole */
    p->call.kernel = k == NULL || k->fits == NULL || k->fits(&p->call) ? k : NULL;
}

/* The op can be called on a part: its attributes leave the shape free. */
static bool may_be_cut(const tl_call *c, cut how)
{
    part p;
    tl_err err = {.status = TL_OK};
    make_part(&p, c, how, 0, 1);
    const tl_array want = p.sum;
    p.call.err = &err;
    return c->op->shape(&p.call) == TL_OK && tl_array_same_shape(&p.sum, &want);
}

/* Finds the input with an axis that corresponds to axis how->axis of the sums. The op's rule for
 * the batch tells: if the elements along that axis of the input were samples, those of the sums
 * would be, too, and each sample has the same bits if it is computed alone. */
static bool find_cut(const tl_call *c, cut *how)
{
    const int acc = c->op->mutates;
    if (c->op->batch == NULL || c->n_in > MOST || c->in[acc] == NULL)
        return false;
    tl_call without = *c;
    const tl_array *in[MOST];
    for (int i = 0; i < c->n_in; i++)
        in[i] = i == acc ? NULL : c->in[i];
    without.in = in;
    without.samples = c->out[0].dim[how->axis];
    for (how->input = 0; how->input < c->n_in; how->input++)
        for (how->its = 0; in[how->input] != NULL && how->its < in[how->input]->ndim; how->its++) {
            tl_batch of[MOST], out = TL_MIXED;
            for (int i = 0; i < c->n_in; i++)
                of[i] = i == how->input ? (tl_batch)how->its : TL_FREE;
            if (in[how->input]->dim[how->its] == without.samples)
                c->op->batch(&without, of, &out);
            if (out == how->axis)
                return may_be_cut(c, *how);
        }
    return false;
}

/* The first axis of the accumulator along which all steps can be cut (l->cut); else TL_WHOLE. */
static int find_axis(const tl_graph *g, const tl_later *l)
{
    const tl_root *r = &g->roots[l->sums];
    const tl_array *sum = &g->t->grad[r->at].acc[r->use].sum;
    for (int axis = 0; axis < sum->ndim; axis++) {
        bool can = true;
        for (uint32_t i = l->first; i < l->end && can; i++) {
            const tl_plan_step *s = g->step[i];
            cut *how = &l->cut[i - l->first];
            const tl_array *x = &s->call.out[0];
            const bool whole = s->fused == NULL && s->n_out == 1 &&
                               tl_array_count(x) == tl_array_count(sum);
            how->axis = whole ? tl_axis_of_view(x, sum, axis) : -1;
            can = how->axis >= 0 && find_cut(&s->call, how);
        }
        if (can)
            return axis;
    }
    return TL_WHOLE;
}

/* Runs part k of `of`. */
static tl_status run_part(tl_graph *g, const tl_plan_step *s, cut how, int k, int of)
{
    const int64_t size = s->call.out[0].dim[how.axis], from = size * k / of;
    part p;
    make_part(&p, &s->call, how, from, size * (k + 1) / of - from);
    return tl_graph_run_call(g, s, &p.call);
}

/* ---- the order ---- */

/* The root of the accumulator of the user's tape that the step adds to; UINT32_MAX: none. */
static uint32_t sums_of(const tl_graph *g, const tl_plan_step *s)
{
    for (int k = 0; k < s->n_in + s->n_out; k++)
        if (s->spot[k].written && tl_bind_theirs(g, &g->roots[s->spot[k].root]))
            return s->spot[k].root;
    return UINT32_MAX;
}

/* The step changes the model: a running total, the statistics of a norm. */
static bool changes_model(const tl_graph *g, const tl_plan_step *s)
{
    for (int k = 0; k < s->n_in + s->n_out; k++)
        if (s->spot[k].written && g->roots[s->spot[k].root].kind == TL_ROOT_MODEL)
            return true;
    return false;
}

static tl_status check_order(tl_graph *g, tl_plan_step **later, uint32_t n, const tl_plan_step *now)
{
    const tl_node *node = &g->t->node[now->node];
    for (uint32_t k = 0; k < n; k++)
        if (!tl_steps_may_swap(later[k], now))
            return tl_tape_fail((tl_at){g->user, node->file, node->line, NULL}, TL_ETRACED,
                                "%s changes what the gradient by %s reads, which .put_off leaves "
                                "until after the run; call this part of the program",
                                node->op->name, g->t->node[later[k]->node].op->name);
    return TL_OK;
}

/* Puts the n steps that are put off behind the others, those of an accumulator together, in the
 * order in which the accumulators are complete. At least `least` others must have run. */
static tl_status group(tl_graph *g, tl_plan_step **later, uint32_t n, uint32_t least)
{
    uint32_t at = g->n_now;
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t sums = sums_of(g, later[k]), from = later[k]->at - k; /* of the others */
        uint32_t more = k + 1;
        while (more < n && sums_of(g, later[more]) != sums)
            more++;
        if (more < n)
            continue; /* a later step adds to it, too */
        tl_later *l = &g->later[g->n_later++];
        *l = (tl_later){.sums = sums, .from = from > least ? from : least, .first = at};
        for (uint32_t i = 0; i <= k; i++)
            if (sums_of(g, later[i]) == sums)
                g->step[at++] = later[i];
        l->end = at;
        l->cut = tl_graph_room(g, l->end - l->first, sizeof *l->cut);
        if (l->cut == NULL)
            return g->head.err.status;
        l->axis = find_axis(g, l);
    }
    return TL_OK;
}

tl_status tl_later_order(tl_graph *g)
{
    uint32_t n = 0, n_later = 0, least = 0;
    g->n_now = g->n_steps;
    if (!g->tracing->put_off)
        return TL_OK;
    tl_plan_step **later = tl_graph_room(g, g->n_steps, sizeof *later);
    g->later = tl_graph_room(g, g->n_steps, sizeof *g->later);
    if (g->head.err.status != TL_OK)
        return g->head.err.status;
    for (uint32_t i = 0; i < g->n_steps; i++) {
        tl_plan_step *s = g->step[i];
        if (sums_of(g, s) != UINT32_MAX) {
            later[n_later++] = s;
            continue;
        }
        TL_TRY(check_order(g, later, n_later, s));
        g->step[n++] = s;
        if (changes_model(g, s)) /* tl_accumulate during the run must find all of this done */
            least = n;
    }
    g->n_now = n;
    return group(g, later, n_later, least);
}

/* ---- runs ---- */

/* A fold of the graph that waits on the user's tape for tl_accumulate. */
typedef struct {
    tl_fold f;
    tl_graph *g;    /* NULL: it has been freed */
    int call_shift; /* of that run */
    const tl_later *l;
} waiting;

/* The storage of a root that nobody may change between the run and tl_accumulate; NULL: none. */
static tl_storage *shared(tl_graph *g, const tl_root *r)
{
    return r->kind == TL_ROOT_ACC ? NULL : tl_graph_storage(g, r);
}

static tl_status check_unchanged(tl_graph *g, const tl_plan_step *s)
{
    tl_changer by;
    char text[TL_CHANGER_TEXT];
    const tl_node *n = &g->t->node[s->node];
    for (int k = 0; k < s->n_in; k++) {
        const tl_root *r = &g->roots[s->spot[k].root];
        const tl_storage *st = shared(g, r);
        if (st != NULL && tl_storage_changed(st, r->since, s->spot[k].a, &by))
            return tl_tape_fail((tl_at){g->user, n->file, n->line, NULL}, TL_EINPLACE,
                                "tl_accumulate: input %d of %s was changed meanwhile by %s", k,
                                n->op->name, tl_changer_text(text, by));
    }
    return TL_OK;
}

static tl_status accumulate(tl_tape *t, tl_fold *f, int i, int of)
{
    const waiting *w = (const waiting *)f;
    tl_graph *g = w->g;
    if (g == NULL)
        return tl_tape_fail(tl_nowhere(t), TL_ESTALE,
                            "tl_accumulate: the graph whose run put this off has been freed");
    const tl_later *l = w->l;
    tl_root *r = &g->roots[l->sums];
    g->call_shift = w->call_shift;
    for (uint32_t k = l->first; k < l->end; k++)
        TL_TRY(check_unchanged(g, g->step[k]));
    TL_TRY(tl_bind_accumulator(g, r));
    if (of > 1) /* no part begins where memory is blank */
        tl_storage_settle(tl_graph_storage(g, r));
    for (uint32_t k = l->first; k < l->end; k++)
        TL_TRY(of > 1 ? run_part(g, g->step[k], l->cut[k - l->first], i, of)
                      : tl_graph_run_call(g, g->step[k], &g->step[k]->call));
    tl_graph_storage(g, r)->version += i == of - 1;
    return TL_OK;
}

/* Notes the versions of all that the steps of l read, which must not change from now on. */
static void note_versions(tl_graph *g, const tl_later *l)
{
    for (uint32_t i = l->first; i < l->end; i++)
        for (int k = 0; k < g->step[i]->n_in; k++) {
            tl_root *r = &g->roots[g->step[i]->spot[k].root];
            const tl_storage *st = shared(g, r);
            r->since = st == NULL ? 0 : st->version;
        }
}

static tl_status wait_for(tl_graph *g, const tl_later *l)
{
    tl_tape *u = g->user;
    const tl_root *r = &g->roots[l->sums];
    tl_leaf_grad *theirs = tl_leaf_grad_find(u, g->t->grad[r->at].leaf);
    waiting *w = tl_tape_room(u, 1, sizeof *w);
    TL_TRY(u->head.err.status);
    *w = (waiting){{.run = accumulate, .axis = l->axis, .size = -1, .acc = r->acc},
                   g,
                   g->call_shift,
                   l};
    w->f.later = theirs->waiting;
    theirs->waiting = &w->f;
    u->waiting++;
    note_versions(g, l);
    for (const tl_later *more = l + 1; more < g->later + g->n_later; more++)
        if (g->roots[more->sums].at == r->at)
            return TL_OK; /* the parameter is not complete yet */
    const char *param = u->n_watchers > 0 ? tl_leaf_grad_name(u, theirs) : NULL;
    if (param != NULL)
        TL_TELL(u, put_off, u, param);
    return u->head.err.status;
}

tl_status tl_later_wait(tl_graph *g, uint32_t n)
{
    for (; g->n_waiting < g->n_later && g->later[g->n_waiting].from <= n; g->n_waiting++)
        TL_TRY(wait_for(g, &g->later[g->n_waiting]));
    return TL_OK;
}

tl_status tl_later_over(tl_graph *g)
{
    for (uint32_t i = 0; i < g->n_later; i++)
        note_versions(g, &g->later[i]); /* the run itself has changed some of that */
    return tl_later_wait(g, g->n_now);
}

static bool is_of(const tl_fold *f, const tl_graph *g)
{
    return f->run == accumulate && ((const waiting *)f)->g == g;
}

bool tl_later_waits(const tl_graph *g)
{
    for (int i = 0; i < g->user->n_grads; i++)
        for (const tl_fold *f = g->user->grad[i].waiting; f != NULL; f = f->later)
            if (is_of(f, g))
                return true;
    return false;
}

void tl_later_forget(tl_graph *g)
{
    for (int i = 0; i < g->user->n_grads; i++)
        for (tl_fold *f = g->user->grad[i].waiting; f != NULL; f = f->later)
            if (is_of(f, g))
                ((waiting *)f)->g = NULL;
}
