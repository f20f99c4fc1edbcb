/* marks.c: tl_backward, tl_grad and tl_grad_clear in a trace.
 *
 * While tracing->whole, each of these calls is recorded as one node, a mark, so that the forward
 * part can still be rewritten. rebuild.c then expands the marks. */
#include "autograd/graph/internal.h"

typedef struct {
    tl_tensor leaf;
    tl_shape shape;
    tl_dtype dtype;
} grad_attrs;

static tl_status mark_shape(tl_call *c)
{
    const grad_attrs *a = c->attrs;
    if (c->n_out > 0)
        c->out[0] = tl_array_make(a->dtype, &a->shape, NULL);
    return TL_OK;
}

const tl_op tl_op_mark_backward = {.name = "backward",
                                   .n_in = 2,
                                   .optional = TL_BIT(1),
                                   .traits = TL_NONDIFF,
                                   .shape = mark_shape,
                                   .attr_size = sizeof(tl_backward_options)};
const tl_op tl_op_mark_grad = {.name = "grad",
                               .n_in = 0,
                               .n_out = 1,
                               .traits = TL_NONDIFF,
                               .shape = mark_shape,
                               .attr_size = sizeof(grad_attrs)};
const tl_op tl_op_mark_clear = {.name = "grad_clear",
                                .n_in = 0,
                                .traits = TL_NONDIFF,
                                .shape = mark_shape};

/* ---- parts of a program, and notes on its gradients ---- */

/* The note of a record, for writing; NULL, with t's error, if there is no memory. */
static tl_grad_note *note_at(tl_tape *t, int record)
{
    tl_part_grads *p = &tl_traced_of(t)->grads;
    if (tl_grow_to(&p->note, &p->cap_notes, (uint32_t)record, sizeof *p->note))
        return &p->note[record];
    tl_fail(&t->head.err, TL_ENOMEM, "no memory for note %d on a gradient", record);
    return NULL;
}

void tl_trace_part(tl_tape *t, int part)
{
    tl_traced_tape *k = tl_traced_of(t);
    tl_part_grads *p = &k->grads;
    for (; p->n_parts <= part; p->n_parts++) {
        if (!tl_grow(&p->first, &p->cap_parts, p->n_parts, sizeof *p->first)) {
            tl_tape_fail(tl_nowhere(t), TL_ENOMEM, "tl_backward: no memory while tracing");
            return;
        }
        p->first[p->n_parts] = t->n_grads;
    }
    k->part = part;
    t->first_grad = p->first[part];
}

/* ---- the calls ---- */

/* Refuses at once whatever tl_backward refuses in a called program. The leaves that backward will
 * reach have gradients from now on, which can be read. */
static tl_status mark_backward(tl_at at, tl_tensor y, const tl_backward_options *o)
{
    tl_tape *t = at.tape;
    tl_walk w = {.t = t, .at = at, .who = "tl_backward", .y = y, .asked = y, .opt = *o};
    tl_tracing *s = tl_tracing_of(t);
    if (s->has_backward && s->put_off != o->put_off)
        return tl_tape_fail(at, TL_ETRACED,
                            "tl_backward: %s .put_off, unlike one before in this trace; a run puts "
                            "off all of its gradients or none",
                            o->put_off ? "with" : "without");
    if (o->put_off && (tl_clears(t) || s->clears_first || s->reads))
        return tl_tape_fail(at, TL_ETRACED,
                            "tl_backward: .put_off in a trace that has read or dropped gradients; "
                            "call tl_step, tl_grad and tl_grad_clear outside of it");
    if (t->model != NULL && t->model->frozen != s->frozen)
        return tl_tape_fail(
            at, TL_ETRACED,
            "tl_backward: the traced function has frozen or thawed parameters, which "
            "acts when it is traced and not in each run; call tl_model_freeze "
            "outside");
    TL_TRY(tl_walk_check(&w));
    TL_TRY(tl_prints_check(&w));
    for (int i = t->first_grad; i < t->n_grads; i++)
        t->grad[i].live |= t->grad[i].reached;
    tl_apply(at, &tl_op_mark_backward, o, (tl_tensor[]){w.y, o->cotangent}, 2, NULL);
    s->has_backward = true;
    s->put_off = o->put_off;
    s->strict |= t->now.mode & TL_STRICT;
    return tl_error_status(t);
}

bool tl_trace_backward(void *ctx, tl_at at, tl_tensor y, const tl_backward_options *o, tl_status *s)
{
    const bool whole = ((tl_traced_tape *)ctx)->tracing->whole;
    if (whole) {
        const int depth = tl_place_push(at);
        *s = mark_backward(at, y, o);
        tl_place_pop(at.tape, depth);
    }
    return whole;
}

tl_tensor tl_mark_gradient(tl_at at, tl_tensor x)
{
    const tl_array *a = &tl_peek(at.tape, x)->a;
    grad_attrs g = {x, tl_array_shape(a), tl_dtype_compute(a->dtype)};
    return tl_apply1(at, &tl_op_mark_grad, &g, NULL, 0);
}

/* The program goes on with a gradient that waits on the user's tape, in all its accumulators. */
static tl_status take_earlier(tl_tape *t, const tl_leaf_grad *theirs, tl_leaf_grad *g)
{
    for (int k = 0; k < theirs->n_accs; k++) {
        const tl_accumulator *u = &theirs->acc[k];
        if (!tl_acc_holds(u))
            continue;
        const int mine = tl_acc_get(t, g, u->call, u->kind);
        TL_TRY(tl_error_status(t));
        TL_TRY(tl_acc_open(t, g, mine, u->sum.dtype));
    }
    g->live = true;
    g->born = g->born == 0 ? 1 : g->born; /* nothing has changed before the program */
    tl_tracing_of(t)->has_earlier = true;
    return TL_OK;
}

/* Gradients that the program asks for now may wait on the user's tape: it has dropped none yet. */
static bool finds_earlier(const tl_traced_tape *k)
{
    return k->part == 0 && !k->tracing->clears_first;
}

/* Notes that the program found no such gradient: where there is one, it may do something else. */
static bool miss(tl_tracing *s, tl_tape *t, tl_tensor x)
{
    for (int i = 0; i < s->n_missed; i++)
        if (tl_same_handle(s->missed[i], x))
            return true;
    if (!tl_grow(&s->missed, &s->cap_missed, s->n_missed, sizeof *s->missed)) {
        tl_fail(&t->head.err, TL_ENOMEM, "no memory to trace tl_grad");
        return false;
    }
    s->missed[s->n_missed++] = x;
    return true;
}

/* The record of a gradient that the program asks for, with what it finds on the user's tape; NULL,
 * with an error, if there is no memory. */
static const tl_leaf_grad *wanted(tl_traced_tape *k, tl_at at, tl_tensor x)
{
    tl_tape *t = at.tape, *user = k->tracing->user;
    tl_leaf_grad *g = tl_leaf_grad_get(t, x);
    tl_grad_note *note = g == NULL ? NULL : note_at(t, (int)(g - t->grad));
    if (note == NULL)
        return NULL;
    const tl_leaf_grad *theirs = x.owner == t->values.owner || user == NULL
                                     ? NULL
                                     : tl_leaf_grad_find(user, x);
    const bool found = theirs != NULL && theirs->live;
    if (finds_earlier(k)) {
        if (!g->live && !found && !miss(k->tracing, t, x))
            return NULL;
        note->earlier |= !g->live && found;
        if (found && take_earlier(t, theirs, g) != TL_OK)
            return NULL;
    }
    note->summed = note->read ? note->summed : tl_derived(t, x) && k->reads ? 0 : g->n_accs;
    note->read = true;
    return g;
}

/* A gradient that is read includes what waits in derived values: on the user's tape, in all that
 * exist at the first read; on this tape, also in those that have come since. */
static tl_status want_derived(tl_traced_tape *k, tl_at at)
{
    tl_tape *t = at.tape;
    const tl_tape *user = k->tracing->user;
    const bool first = k->wanted == 0 && user != NULL && finds_earlier(k);
    for (int i = 0; first && i < user->n_grads; i++)
        if (user->grad[i].live && tl_derived(user, user->grad[i].leaf))
            wanted(k, at, user->grad[i].leaf);
    k->wanted = k->wanted < t->first_grad ? t->first_grad : k->wanted;
    for (; k->wanted < t->n_grads && !tl_failed(t); k->wanted++)
        if (tl_derived(t, t->grad[k->wanted].leaf))
            wanted(k, at, t->grad[k->wanted].leaf);
    return tl_error_status(t);
}

/* Gradients that are put off are not there until a run is over and tl_accumulate is called. */
static bool waits(const tl_traced_tape *k, tl_at at, const char *who)
{
    if (k->tracing->put_off)
        tl_tape_fail(at, TL_ETRACED,
                     "%s: what tl_backward puts off in this trace waits until after the run; call "
                     "this there",
                     who);
    return k->tracing->put_off;
}

bool tl_trace_grad(void *ctx, tl_at at, tl_tensor x, tl_tensor *dx)
{
    tl_traced_tape *k = ctx;
    *dx = TL_NONE;
    if (waits(k, at, "tl_grad"))
        return true;
    const tl_leaf_grad *g = wanted(k, at, x);
    if (g == NULL || !g->live || want_derived(k, at) != TL_OK)
        return true;
    k->reads |= k->part == 0;
    k->tracing->reads |= k->part == 0;
    if (k->tracing->whole)
        *dx = tl_mark_gradient(at, x);
    return k->tracing->whole;
}

/* Another part of the program begins: its backward has gradients of its own. */
void tl_trace_clear(void *ctx, tl_tape *t)
{
    tl_traced_tape *k = ctx;
    if (waits(k, tl_nowhere(t), "tl_grad_clear"))
        return;
    if (!k->tracing->has_backward && !k->tracing->has_earlier) {
        k->tracing->clears_first = true;
        return;
    }
    if (k->tracing->whole)
        tl_apply(TL_AT(t), &tl_op_mark_clear, NULL, NULL, 0, NULL);
    tl_trace_part(t, k->part + 1);
}

void tl_mark_expand(tl_tape *dst, const tl_node *n, const tl_tensor *in, tl_tensor leaf,
                    tl_tensor *out)
{
    const tl_at at = {dst, n->file, n->line, NULL};
    if (n->op == &tl_op_mark_grad)
        out[0] = tl_grad_at(at, leaf);
    if (n->op == &tl_op_mark_clear)
        tl_grad_clear(dst);
    if (n->op != &tl_op_mark_backward)
        return;
    tl_backward_options o = *(const tl_backward_options *)n->attrs;
    o.cotangent = in[1];
    if (tl_backward_at(at, in[0], o) != TL_OK || tl_fold_recorded(dst) != TL_OK)
        return;
    for (int i = 0; i < dst->n_grads; i++) {
        tl_grad_note *note = dst->grad[i].reached ? note_at(dst, i) : NULL;
        if (note != NULL)
            note->reached = true;
    }
}

tl_tensor tl_mark_leaf(const tl_node *n) { return ((const grad_attrs *)n->attrs)->leaf; }
