/* culprit.c: finds the op whose gradient is wrong.
 *
 * After a verdict of wrong the recorded function is run once more with all its values kept. Then
 * every op that gradients went through is made a function of its own, from the inputs it had to the
 * outputs that were used. The checker judges it as it judges any function, so a bend is no fault.
 * The quotient of the analytic and the numeric gradient, element by element, tells the kind of
 * error. */
#include <math.h>
#include <string.h>

#include "autograd/batch.h"
#include "autograd/check/shadow.h"

/* ---- piece: an op of this file's own that leads into and out of the op in question, so that no
 * other op can disturb the check ---- */

/* The elements from `at` on of its inputs, laid one after another, in that shape. The gradient by
 * one of the inputs is a piece of (zeros, dy, zeros). */
typedef struct {
    int64_t at;
    tl_shape shape;
} piece_attrs;

static const tl_attr piece_schema[] = {{"at", TL_ATTR_I64, offsetof(piece_attrs, at)},
                                       {"shape", TL_ATTR_SHAPE, offsetof(piece_attrs, shape)},
                                       {0}};

static tl_status piece_shape(tl_call *c)
{
    const piece_attrs *p = c->attrs;
    tl_dtype widest = c->in[0]->dtype;
    for (int i = 1; i < c->n_in; i++)
        if (tl_dtype_size(c->in[i]->dtype) > tl_dtype_size(widest))
            widest = c->in[i]->dtype;
    c->out[0] = tl_array_make(widest, &p->shape, NULL);
    return TL_OK;
}

static tl_status piece_forward(tl_call *c)
{
    const piece_attrs *p = c->attrs;
    int64_t n = tl_array_count(&c->out[0]), to = -p->at;
    for (int i = 0; i < c->n_in; i++)
        for (int64_t k = 0; k < tl_array_count(c->in[i]); k++, to++)
            if (to >= 0 && to < n)
                tl_array_put(&c->out[0], to, tl_array_get(c->in[i], k));
    return TL_OK;
}

static void piece_vjp(tl_vjp *g);
static const tl_op piece = {.name = "piece",
                            .n_in = -1,
                            .n_out = 1,
                            .attr = piece_schema,
                            .attr_size = sizeof(piece_attrs),
                            .shape = piece_shape,
                            .forward = piece_forward,
                            .vjp = piece_vjp};

static void piece_vjp(tl_vjp *g)
{
    const piece_attrs *p = g->attrs;
    int64_t total = 0, at = 0;
    for (int i = 0; i < g->n_in; i++) {
        tl_shape s = tl_shape_of(g->t, g->in[i]);
        total += tl_shape_count(&s);
    }
    tl_fill_attrs zeros = {TL_DIMS(total), tl_dtype_of(g->t, g->dy[0]), 0};
    tl_tensor z = tl_apply1(TL_AT(g->t), &tl_op_fill, &zeros, NULL, 0);
    for (int i = 0; i < g->n_in; i++) {
        piece_attrs back = {total + at - p->at, tl_shape_of(g->t, g->in[i])};
        if (g->wants[i])
            g->dx[i] = tl_apply1(TL_AT(g->t), &piece, &back, (tl_tensor[]){z, g->dy[0], z}, 3);
        at += tl_shape_count(&back.shape);
    }
}

/* ---- an op alone ---- */

typedef struct {
    tl_tape *walk; /* where its inputs are */
    tl_node node;  /* a copy, because the tape may grow */
    unsigned used; /* outputs that gradients went through, a bit each */
    int n;         /* how many inputs take gradients */
    tl_tensor *in; /* the values of these */
    int *which;    /* their numbers among the node's inputs */
} alone;

/* The tl_function that runs the op. An input that was a leaf in the run is one here, where its
 * gradient accumulates; others come out of a piece, which hands the gradient on. */
static tl_tensor op_alone(tl_tape *t, const tl_tensor *given, int n, void *ctx)
{
    const alone *k = ctx;
    tl_tensor out[TL_OUTS] = {TL_NONE};
    tl_tensor *in = tl_tape_scratch(t, (size_t)(k->node.n_in + 1) * sizeof *in);
    piece_attrs join = {0, {.ndim = 1}};
    int at = 0, n_out = 0;
    for (int i = 0; in != NULL && i < k->node.n_in; i++) {
        if (tl_is_none(k->node.in[i]))
            continue;
        const tl_array *a = &tl_peek(k->walk, k->node.in[i])->a;
        piece_attrs same = {0, tl_array_shape(a)};
        if (at < n && k->which[at] == i) {
            in[i] = given[at++];
            if (tl_is_none(tl_leaf_under(k->walk, k->node.in[i])))
                in[i] = tl_apply1(TL_AT(t), &piece, &same, &in[i], 1);
        } else {
            in[i] = tl_shadow_copy(t, a);
        }
    }
    if (in != NULL)
        tl_again_apply(t, &k->node, in, t->now.mode | k->node.mode | TL_APART, out);
    for (int i = 0; i < k->node.n_out; i++)
        if (k->used & TL_BIT(i)) {
            tl_shape s = tl_shape_of(t, out[i]);
            join.shape.dim[0] += tl_shape_count(&s);
            out[n_out++] = out[i];
        }
    return n_out == 1 ? out[0] : tl_apply1(TL_AT(t), &piece, &join, out, n_out);
}

/* ---- the search ---- */

typedef struct {
    tl_tape *rec, *walk;
} pair;

/* Maps leaves for tl_rerun: those of the recording tape to copies. */
static tl_tensor copied(void *ctx, tl_tensor x)
{
    const pair *p = ctx;
    const tl_value *v = tl_peek(p->rec, x);
    if (v == NULL || x.owner != p->rec->values.owner)
        return x;
    tl_tensor c = tl_shadow_copy(p->walk, &v->a);
    if (v->needs_grad)
        tl_require_grad(p->walk, c);
    return c;
}

/* By index of value: whether a gradient goes through it, to a node in `order` or from the end y. */
static uint8_t *values_used(tl_tape *t, tl_tensor y, const uint32_t *order, uint32_t n)
{
    uint8_t *used = tl_tape_scratch(t, atomic_load(&t->values.count) + 1);
    for (uint32_t i = 0; used != NULL && i < n; i++)
        for (int k = 0; k < t->node[order[i]].n_in; k++) {
            tl_tensor x = t->node[order[i]].in[k];
            if (x.owner == t->values.owner && tl_peek(t, x)->needs_grad)
                used[x.index] = 1;
        }
    if (used != NULL && y.owner == t->values.owner)
        used[y.index] = 1;
    return used;
}

/* Makes node number i a function. False if backward does not call its vjp, or out of memory. */
static bool make_alone(tl_tape *t, uint32_t i, const uint8_t *used, alone *k)
{
    const tl_node *n = &t->node[i];
    *k = (alone){.walk = t, .node = *n};
    if (n->op->traits & TL_VIEW && !(n->op->traits & TL_REPEATS) &&
        !tl_is_none(tl_leaf_under(t, n->in[0])))
        return false;
    k->in = tl_tape_scratch(t, (size_t)n->n_in * sizeof *k->in);
    k->which = tl_tape_scratch(t, (size_t)n->n_in * sizeof *k->which);
    if (k->in == NULL || k->which == NULL)
        return false;
    for (int j = 0; j < n->n_out; j++)
        k->used |= used[n->out + (uint32_t)j] ? TL_BIT(j) : 0;
    for (int j = 0; j < n->n_in; j++)
        if (!tl_is_none(n->in[j]) && tl_peek(t, n->in[j])->needs_grad) {
            k->in[k->n] = n->in[j];
            k->which[k->n++] = j;
        }
    return k->used != 0;
}

/* Checks an op; leaf >= 0: by that input alone, element by element. For `by` see
 * tl_check_second. */
static tl_status try(tl_checker *c, const alone *k, int order, int leaf, int *by)
{
    const tl_at at = {k->walk, k->node.file, k->node.line, NULL};
    const tl_subject f = {at, op_alone, k->in, k->n, (void *)k};
    c->only = leaf + 1;
    c->o.directions = 1;
    c->o.elements = leaf < 0 ? 4 : TL_SEEN - 1;
    tl_status s = order == 1 ? tl_check_run(c, &f) : tl_check_second(c, &f, by);
    tl_error_clear(k->walk);
    return s;
}

/* Names the error that a quotient of about this size shows. */
static const char *kind_of(double ratio, double near)
{
    static const struct {
        double ratio;
        const char *kind;
    } named[] = {{-1, "has the wrong sign"},
                 {0, "is missing"},
                 {2, "is doubled, or lacks a half"},
                 {0.5, "is halved, or lacks one of two equal terms"}};
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        if (fabs(ratio - named[i].ratio) <= near)
            return named[i].kind;
    return "is off by a factor";
}

/* The quotient, if it is the same for all elements that are wrong; else NaN. */
static double ratio_of(const tl_checker *c, double near)
{
    double ratio = (double)NAN, largest = 0;
    for (int i = 0; i < c->n_seen; i++)
        largest = fmax(largest, fmax(fabs(c->seen[i].numeric), fabs(c->seen[i].analytic)));
    for (int i = 0; i < c->n_seen; i++) {
        const tl_compared *e = &c->seen[i];
        double here = e->analytic / e->numeric;
        if (!e->wrong)
            continue;
        if (!isfinite(e->analytic) || !isfinite(e->numeric) ||
            fabs(e->numeric) < 1e-9 * fabs(e->analytic))
            return (double)NAN;
        if (fabs(e->numeric) < 1e-4 * largest)
            continue; /* too small for a quotient */
        if (!isnan(ratio) && fabs(here - ratio) > near * fmax(1, fabs(ratio)))
            return (double)NAN;
        ratio = isnan(ratio) ? here : ratio;
    }
    return ratio + 0.0; /* no -0 */
}

/* Keeps the few elements that are furthest off, the worst first. */
static void add_worst(tl_culprit *w, const tl_compared *e)
{
    int room = sizeof w->worst / sizeof *w->worst, at = w->n_worst;
    for (int i = 0; i < w->n_worst; i++)
        if (w->worst[i].element == e->element)
            return;
    while (at > 0 && !(fabs(e->numeric - e->analytic) <=
                       fabs(w->worst[at - 1].numeric - w->worst[at - 1].analytic)))
        at--;
    if (at == room)
        return;
    w->n_worst += w->n_worst < room;
    memmove(&w->worst[at + 1], &w->worst[at], (size_t)(w->n_worst - at - 1) * sizeof *w->worst);
    w->worst[at].element = e->element;
    w->worst[at].numeric = e->numeric;
    w->worst[at].analytic = isnan(e->analytic) ? (double)NAN : e->analytic; /* without a sign */
}

/* Writes the comparisons by the culprit's input into the report. */
static void describe(tl_culprit *w, const tl_checker *c)
{
    double near = fmax(1e-5, 16 * c->unit);
    bool finite = true;
    for (int i = 0; i < c->n_seen; i++) {
        w->compared++;
        w->wrong += c->seen[i].wrong;
        finite &= isfinite(c->seen[i].analytic) != 0;
        if (c->seen[i].wrong)
            add_worst(w, &c->seen[i]);
    }
    w->ratio = ratio_of(c, near);
    w->kind = !finite           ? "is not finite"
              : isnan(w->ratio) ? "is wrong by no one factor"
                                : kind_of(w->ratio, near);
}

typedef struct {
    alone worst;      /* the op that is furthest from right ... */
    double excess;    /* ... by how many tolerances */
    int leaf, by;     /* by which inputs it is wrong */
    const tl_op **op; /* the op of every call that is wrong */
    int n;            /* how many calls are */
} search;

/* Judges one op as a function. */
static void judge_node(search *f, const alone *k, int order, tl_gradcheck_options o, tl_culprit *w)
{
    tl_gradcheck_report r;
    tl_checker c = {.o = o, .r = &r, .who = "tl_gradcheck"};
    int by = -1;
    tl_status s = try(&c, k, order, -1, &by);
    bool judged = s == TL_OK && r.verdict != TL_KINK && r.verdict != TL_PRECISION_LIMITED;
    ++*(judged ? &w->judged : &w->unjudged);
    if (judged && r.verdict == TL_WRONG) {
        f->op[f->n++] = k->node.op;
        if (f->n == 1 || c.worst > f->excess) {
            f->worst = *k;
            f->excess = c.worst;
            f->leaf = c.worst_leaf;
            f->by = by;
        }
    }
    tl_shadow_free(&c.s);
}

/* Checks the worst op again, element by element, and writes it into the report. */
static void name_culprit(search *f, int order, tl_gradcheck_options o, tl_culprit *w)
{
    const alone *k = &f->worst;
    tl_gradcheck_report r;
    tl_checker c = {.o = o, .r = &r, .who = "tl_gradcheck"};
    w->op = k->node.op->name;
    w->file = k->node.file;
    w->line = k->node.line;
    w->input = f->leaf < k->n ? k->which[f->leaf] : -1;
    w->by = order == 1 ? -1 : k->which[f->by];
    for (int i = 0; i < f->n; i++)
        ++*(f->op[i] == k->node.op ? &w->calls : &w->others);
    if (try(&c, k, order, f->leaf, &f->by) == TL_OK && c.n_seen == 0) /* wrong along directions */
        c.seen[c.n_seen++] = (tl_compared){-1, r.numeric, r.analytic, true};
    describe(w, &c);
    tl_shadow_free(&c.s);
}

void tl_culprit_find(tl_tape *rec, tl_tensor y, int order, tl_gradcheck_options o,
                     tl_gradcheck_report *r)
{
    pair p = {rec, tl_tape_new(rec->model)};
    uint32_t *nodes, n;
    search f = {.n = 0};
    r->culprit = (tl_culprit){.by = -1};
    o = (tl_gradcheck_options){.seed = o.seed, .constant_ok = true};
    if (p.walk == NULL)
        return;
    tl_observe_like(p.walk, rec);
    y = tl_rerun(p.walk, rec, y, copied, NULL, &p);
    if (!tl_failed(p.walk) && tl_canonical_order(p.walk, y, TL_TO_GRAD, &nodes, &n) == TL_OK) {
        const uint8_t *used = values_used(p.walk, y, nodes, n);
        f.op = tl_tape_scratch(p.walk, n * sizeof *f.op);
        for (uint32_t i = 0; used != NULL && f.op != NULL && i < n; i++) {
            alone k;
            if (make_alone(p.walk, nodes[i], used, &k))
                judge_node(&f, &k, order, o, &r->culprit);
        }
    }
    if (f.n > 0)
        name_culprit(&f, order, o, &r->culprit);
    tl_object_end(p.walk);
}

void tl_culprit_find_second(tl_checker *c, const tl_subject *f)
{
    tl_tape *rec = tl_tape_new(f->at.tape->model);
    tl_tensor y, *copies = tl_calloc((size_t)f->n, sizeof *copies);
    tl_err e = {.status = TL_OK};
    if (rec != NULL)
        tl_observe_like(rec, f->at.tape);
    if (rec != NULL && copies != NULL &&
        tl_shadow_record(f, c->who, true, rec, copies, &y, &e) == TL_OK)
        tl_culprit_find(rec, y, 2, c->o, c->r);
    tl_free_raw(copies);
    tl_object_end(rec);
}
