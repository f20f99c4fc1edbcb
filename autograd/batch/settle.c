/* settle.c: sends the gradients of derived values (derived.c) back to the parameters, once a step;
 * and notices when micro-batches of a step make different derived values in one place. */
#include <stdio.h>
#include <stdlib.h>

#include "autograd/batch/internal.h"

/* For tl_rerun: makes constants of the lasting tape again; parameters stand for themselves. */
static tl_tensor leaf_again(void *ctx, tl_tensor x)
{
    tl_tape *t = ctx;
    if (!tl_derived(t, x))
        return x;
    const tl_array *a = &tl_peek(t, x)->a;
    return tl_constant(t, a->data, a->dtype, tl_array_shape(a));
}

/* Runs the expression of a derived value again, and a backward through it. */
static tl_status send_back(tl_at at, tl_tensor of)
{
    tl_tape *t = at.tape;
    const unsigned mode = t->now.mode;
    const int calls = t->calls;
    const tl_value *made = tl_derived_made(t, of);
    if (made == NULL)
        return tl_tape_fail(at, TL_EUSAGE,
                            "a gradient waits in a value made of parameters that no backward has "
                            "reached since it came, from a checkpoint or from another rank: save "
                            "before the last micro-batch that uses the value, or after tl_step, "
                            "and of several ranks let each use it");
    TL_TRY(tl_derived_check(t, of));
    tl_tensor dy = tl_leaf_grad_sum(at, tl_leaf_grad_find(t, of), made->a.dtype);
    t->now.mode &= ~(unsigned)(TL_NO_GRAD | TL_FAST);
    tl_tensor y = tl_rerun(t, t->lasting, made->self, leaf_again, NULL, t);
    t->now.mode = mode;
    tl_walk w = {.t = t, .at = at, .who = "tl_backward", .y = y, .asked = y};
    w.opt = (tl_backward_options){.cotangent = dy, .partial = true};
    TL_TRY(tl_error_status(t));
    if (!tl_peek(t, y)->needs_grad) /* frozen since: its gradient goes nowhere */
        return TL_OK;
    t->calls = TL_BELOW + t->settlings;
    tl_status s = tl_walk_prepare(&w);
    if (s == TL_OK)
        s = tl_walk_run(&w);
    t->calls = calls;
    return s;
}

/* A derived value in which a gradient waits. */
typedef struct {
    uint64_t print;
    tl_tensor leaf;
} waiting;

static int by_print(const void *a, const void *b)
{
    const uint64_t x = ((const waiting *)a)->print, y = ((const waiting *)b)->print;
    return (x > y) - (x < y);
}

tl_status tl_derived_settle(tl_at at)
{
    tl_tape *t = at.tape;
    if (t->settled)
        return TL_OK;
    t->settled = true;
    waiting *w = tl_tape_room(t, (size_t)(t->n_grads - t->first_grad), sizeof *w);
    size_t n = 0;
    TL_TRY(tl_error_status(t));
    for (int i = t->first_grad; i < t->n_grads; i++)
        if (t->grad[i].live && tl_derived(t, t->grad[i].leaf))
            w[n++] = (waiting){tl_peek(t, t->grad[i].leaf)->print, t->grad[i].leaf};
    qsort(w, n, sizeof *w, by_print);
    for (size_t i = 0; i < n; i++) /* no others begin to wait: these are made of parameters alone */
        TL_TRY(tl_tape_stopped(t, send_back(at, w[i].leaf)));
    return TL_OK;
}

/* ---- micro-batches that make different derived values in one place ---- */

/* Whether backward number `call` or a later one has reached g in earlier micro-batches. */
static bool met(const tl_leaf_grad *g, int call)
{
    for (int k = 0; k < g->n_accs; k++)
        if (tl_acc_holds(&g->acc[k]) && g->acc[k].call >= call)
            return true;
    return false;
}

bool tl_derived_strays(tl_tape *t, int i, int call, char why[TL_MESSAGE_MAX])
{
    const tl_leaf_grad *g = &t->grad[i], *other = NULL;
    if (!tl_derived(t, g->leaf) || !g->reached || met(g, call))
        return false;
    const tl_value *x = tl_derived_made(t, g->leaf);
    const uint64_t h = tl_print_made(t->lasting, x);
    for (int k = t->first_grad; h != 0 && k < t->n_grads && other == NULL; k++)
        if (tl_derived(t, t->grad[k].leaf) && !t->grad[k].reached && met(&t->grad[k], call) &&
            tl_print_made(t->lasting, tl_derived_made(t, t->grad[k].leaf)) == h)
            other = &t->grad[k];
    if (other == NULL)
        return false;
    const tl_node *n = &t->lasting->node[x->node];
    snprintf(why, TL_MESSAGE_MAX,
             "%s (%.90s:%d) makes %s of parameters and constants alone, where a micro-batch before "
             "made another value, %s: what comes to each is finished apart; make one for all "
             "micro-batches, as large as any needs, and take views of it (tl_slice)",
             n->op->name, n->file == NULL ? "?" : n->file, n->line, TL_TEXT(&x->a),
             TL_TEXT(&tl_peek(t, other->leaf)->a));
    return true;
}

tl_status tl_derived_agree(tl_at at, int call)
{
    char why[TL_MESSAGE_MAX];
    for (int i = at.tape->first_grad; at.tape->lasting != NULL && i < at.tape->n_grads; i++)
        if (tl_derived_strays(at.tape, i, call, why))
            return tl_tape_fail(at, TL_EUSAGE, "tl_backward: TL_STRICT: %s", why);
    return TL_OK;
}
