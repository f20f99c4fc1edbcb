/* prints.c: notices when micro-batches of one step run different programs.
 *
 * Each tl_backward leaves the print (fingerprint) of its walk: in canonical order, a number for
 * each node, made of its op, its dtype and what it reads. The same call of a later micro-batch must
 * have the same print. Sizes do not count; nor do views, copies and, in gradients, sums that undo a
 * broadcast, since a program may contain them for some sizes only. A trace notes the prints of all
 * its calls, and each run compares them with those of the tape. Prints are the same in every
 * process, so the ranks of a group can compare theirs (tl_programs). */
#include <string.h>

#include "autograd/batch/internal.h"

/* What a trace notes between prints, as a print without nodes. */
enum { CLEARED, STEPPED };

static void drop(tl_prints *p)
{
    for (int i = 0; i < p->n; i++) {
        tl_free_raw(p->print[i].node);
        tl_free_raw(p->print[i].draw);
    }
    p->n = 0;
}

void tl_prints_free(tl_prints *p)
{
    drop(p);
    tl_free_raw(p->print);
    *p = (tl_prints){0};
}

/* Adds a copy of x to the tape's prints. */
static tl_status keep(tl_at at, tl_print x)
{
    tl_prints *p = &at.tape->prints;
    uint64_t *node = x.node == NULL ? NULL : tl_calloc((size_t)x.n + 1, sizeof *node);
    tl_shape *draw = x.n_draws == 0 ? NULL : tl_calloc((size_t)x.n_draws, sizeof *draw);
    if ((x.node != NULL && node == NULL) || (x.n_draws > 0 && draw == NULL) ||
        !tl_grow(&p->print, &p->cap, p->n, sizeof *p->print)) {
        tl_free_raw(node);
        tl_free_raw(draw);
        return tl_tape_fail(at, TL_ENOMEM, "no memory to note a program of %u nodes", x.n);
    }
    if (node != NULL)
        memcpy(node, x.node, x.n * sizeof *node);
    if (draw != NULL)
        memcpy(draw, x.draw, (size_t)x.n_draws * sizeof *draw);
    x.node = node;
    x.draw = draw;
    x.generation = at.tape->generation;
    x.recorded = at.tape->n_nodes;
    p->print[p->n++] = x;
    return TL_OK;
}

uint64_t tl_programs(const tl_tape *t)
{
    static const tl_prints none;
    const tl_prints *p = tl_lives(t) ? &t->prints : &none;
    bool ragged = p->ragged;
    uint64_t h = (uint64_t)p->n;
    for (int i = 0; i < p->n; i++) {
        ragged |= p->print[i].ragged;
        h = tl_mix(h, p->print[i].n);
        for (uint32_t k = 0; k < p->print[i].n; k++)
            h = tl_mix(h, p->print[i].node[k]);
    }
    return ragged ? 1 : p->n == 0 ? 0 : h | 2;
}

/* Whether the presence of a node may depend on sizes: a view, a copy or, in a gradient, a sum that
 * undoes a broadcast, but not one over samples. */
static bool passes_on(const tl_node *n)
{
    const tl_batch axis = n->made[0]->batch;
    const bool undoes = n->op == &tl_op_sum_to && tl_is_none(n->in[1]) &&
                        n->phase & TL_PHASE_BACKWARD;
    return n->op->traits & (TL_VIEW | TL_COPY) || (undoes && axis != TL_TOTAL && axis != TL_MIXED);
}

/* Whether node n reads a derived value. */
static bool reads_derived(const tl_tape *t, const tl_node *n)
{
    bool reads = false;
    for (int k = 0; k < n->n_in; k++) {
        const tl_tensor leaf = tl_accumulates(t, n, k);
        const tl_value *v = tl_is_none(leaf) ? NULL : tl_peek(t, leaf);
        reads |= v != NULL && v->node >= 0;
    }
    return reads;
}

/* A number for what a node reads: v is one of its inputs, y its output. place[i]: the position in
 * the print of node w->first_node + i. */
static uint64_t print_of_input(const tl_walk *w, const tl_value *v, const tl_value *y,
                               const uint32_t *place)
{
    const tl_tape *t = w->t;
    while (v != NULL && v->node >= 0 && passes_on(&t->node[v->node]))
        v = tl_input(&t->node[v->node], 0);
    if (v == NULL)
        return 1;
    if (v->self.owner != t->values.owner && (v->needs_grad || y->fixed)) /* a parameter */
        return 3 + v->print;
    if (v->node < 0)
        return 2;
    if (v->needs_grad && v->fixed && !y->fixed) /* a derived value */
        return v->print;
    const uint32_t k = (uint32_t)v->node - w->first_node;
    return t->node[v->node].needs_grad && k < w->n_nodes ? ~((uint64_t)place[k] << 8 | v->out) : 2;
}

static uint64_t print_of(const tl_walk *w, const tl_node *n, const uint32_t *place)
{
    const tl_value *y = n->made[0];
    uint64_t h = tl_mix_text(0, n->op->name);
    h = tl_mix(tl_mix(h, (uint64_t)y->a.dtype), (uint64_t)n->n_in);
    for (int k = 0; k < n->n_in; k++)
        h = tl_mix(h, print_of_input(w, tl_input(n, k), y, place));
    return h;
}

/* A number for the kinds of use of parameters: what each is seen through decides which accumulator
 * takes its gradient. */
static uint64_t print_uses(const tl_walk *w)
{
    const tl_tape *t = w->t;
    uint64_t h = 1;
    for (uint32_t i = 0; i < w->n; i++) {
        const tl_node *n = &t->node[w->order[i]];
        char kind[TL_ATTRS_TEXT];
        for (int k = 0; k < n->n_in && !passes_on(n); k++) {
            const tl_tensor leaf = tl_accumulates(t, n, k);
            const tl_value *v = tl_is_none(leaf) ? NULL : tl_peek(t, leaf);
            if (v != NULL && v->needs_grad && leaf.owner != t->values.owner)
                h = tl_mix_text(h, tl_use_kind(t, n, k, kind));
        }
    }
    return h | 1;
}

/* Notes the draws below the root. by: their nodes. */
static tl_status print_draws(const tl_walk *w, tl_print *x, const tl_node ***by)
{
    uint32_t *order, n;
    TL_TRY(tl_canonical_order(w->t, w->y, TL_TO_ALL, &order, &n));
    x->draw = tl_tape_room(w->t, n, sizeof *x->draw);
    *by = tl_tape_room(w->t, n, sizeof **by);
    TL_TRY(tl_error_status(w->t));
    for (uint32_t i = 0; i < n; i++) {
        const tl_node *d = &w->t->node[order[i]];
        if (!(d->op->traits & TL_RANDOM))
            continue;
        x->draw[x->n_draws] = tl_array_shape(&d->made[0]->a);
        (*by)[x->n_draws++] = d;
    }
    return TL_OK;
}

/* Whether an element that two draws of these shapes both have is drawn by other numbers: its number
 * in its sample counts along all dims but axis 0. */
static bool drawn_apart(const tl_shape *x, const tl_shape *y)
{
    int64_t sx = 1, sy = 1;
    bool apart = false;
    for (int d = x->ndim - 1; d > 0 && x->ndim == y->ndim; d--) {
        apart |= sx != sy && x->dim[d] > 1 && y->dim[d] > 1;
        sx *= x->dim[d];
        sy *= y->dim[d];
    }
    return apart && x->dim[0] > 0 && y->dim[0] > 0;
}

static bool alike(const tl_print *x, const tl_print *y)
{
    return x->n == y->n && memcmp(x->node, y->node, x->n * sizeof *x->node) == 0;
}

/* Under TL_STRICT: an error if call k, whose walk begins at node `first`, runs the program of a
 * call before it on what has been recorded since. It is then another micro-batch in one recording,
 * whose gradients no sum continues. last: its print, or for a graph that of the last of its calls
 * which add to those of this tape. */
static tl_status check_reset(tl_at at, int k, const tl_print *last, uint32_t first)
{
    const tl_tape *t = at.tape;
    const bool asked = t->now.mode & TL_STRICT && !last->ragged;
    int i = asked ? k < t->prints.n ? k : t->prints.n : 0;
    while (--i >= 0) {
        const tl_print *before = &t->prints.print[i];
        if (before->node != NULL && !before->ragged && before->generation == t->generation &&
            first >= before->recorded && alike(before, last))
            break;
    }
    if (i < 0)
        return TL_OK;
    return tl_tape_fail(at, TL_EUSAGE,
                        "tl_backward: TL_STRICT: call %d runs the program of call %d again, on "
                        "what has been recorded since; each micro-batch needs a tl_tape_reset, or "
                        "its sums do not go on with those of the last (two losses of one "
                        "micro-batch: record both before the first call, or pass .ragged = true)",
                        k + 1, i + 1);
}

/* Under TL_STRICT: an error if call k, whose nodes are those of the micro-batches before, has sizes
 * that show in its bits. drawn: the nodes of its draws; NULL: it is of a graph. */
static tl_status sizes_meet(tl_at at, int k, const tl_print *x, const tl_print *before,
                            const tl_node **drawn)
{
    char text[TL_CHANGER_TEXT];
    if (x->uses != 0 && before->uses != 0 && x->uses != before->uses)
        return tl_tape_fail(at, TL_EUSAGE,
                            "tl_backward: TL_STRICT: call %d sees a parameter otherwise than in "
                            "the micro-batches before, through a slice, or a reshape that must "
                            "copy, for some sizes only: its sums are finished apart; see it alike "
                            "in all, or pass .ragged = true",
                            k + 1);
    for (int i = 0; i < x->n_draws && x->n_draws == before->n_draws; i++) {
        if (!drawn_apart(&x->draw[i], &before->draw[i]))
            continue;
        const tl_changer by = drawn == NULL ? (tl_changer){.what = "in a graph"}
                                            : (tl_changer){drawn[i]->op->name, drawn[i]->file,
                                                           drawn[i]->line};
        return tl_tape_fail(
            at, TL_EUSAGE,
            "tl_backward: TL_STRICT: call %d draws random numbers (%s) for samples of other inner "
            "sizes than the micro-batches before; an element's number counts along all dims of its "
            "sample, of which only the first may be padded: bring the padded dim there, pad all "
            "alike, or pass .ragged = true",
            k + 1, tl_changer_text(text, by));
    }
    return TL_OK;
}

/* Compares x, the print of call k of this micro-batch, with that of earlier micro-batches; the
 * first to make that call leaves its print. order: the nodes of x; NULL: x is of a graph. */
static tl_status meet(tl_at at, int k, tl_print x, const uint32_t *order, const tl_node **drawn)
{
    tl_tape *t = at.tape;
    tl_prints *p = &t->prints;
    p->ragged |= x.ragged;
    if (k >= p->n) {
        if (p->n > 0 && p->print[0].generation != t->generation && !x.ragged)
            return tl_tape_fail(at, TL_EUSAGE,
                                "tl_backward: call %d of this micro-batch; those before it in this "
                                "step had %d (.ragged = true allows it)",
                                k + 1, p->n);
        return keep(at, x);
    }
    if (x.ragged)
        return TL_OK;
    if (t->now.mode & TL_STRICT && x.apart)
        return tl_tape_fail(
            at, TL_EUSAGE,
            "tl_backward: TL_STRICT: call %d of this micro-batch, from what depends "
            "on no sample, counts once for each micro-batch; call it in the last "
            "one alone, after the others (.partial and .ragged = true)",
            k + 1);
    const tl_print *before = &p->print[k];
    char text[TL_CHANGER_TEXT];
    uint32_t i = 0;
    while (i < x.n && i < before->n && before->node[i] == x.node[i])
        i++;
    if (i == x.n && i == before->n)
        return t->now.mode & TL_STRICT ? sizes_meet(at, k, &x, before, drawn) : TL_OK;
    const tl_node *node = order != NULL && i < x.n ? &t->node[order[i]] : NULL;
    const tl_changer there = node == NULL ? (tl_changer){.what = "in a graph or at the end"}
                                          : (tl_changer){node->op->name, node->file, node->line};
    return tl_tape_fail(at, TL_EUSAGE,
                        "tl_backward: micro-batches of one step run different programs: node %u of "
                        "%u, %s, where one before had %u nodes; %s",
                        i, x.n, tl_changer_text(text, there), before->n,
                        node != NULL && reads_derived(t, node)
                            ? ".ragged = true allows it, but where what it reads is made of "
                              "parameters and as long as the micro-batch, make one as large as any "
                              "needs, and take views of it (tl_slice)"
                            : ".ragged = true allows it");
}

/* The print of a walk's nodes. order: the nodes that are in it; place: as in print_of_input. NULL,
 * with an error, when out of memory. */
static uint64_t *print_nodes(const tl_walk *w, uint32_t *n, uint32_t **order, uint32_t **place)
{
    tl_tape *t = w->t;
    uint64_t *print = tl_tape_room(t, w->n, sizeof *print);
    *order = tl_tape_room(t, w->n, sizeof **order);
    *place = tl_tape_room(t, w->n_nodes, sizeof **place);
    if (print == NULL || *order == NULL || *place == NULL)
        return NULL;
    for (uint32_t i = *n = 0; i < w->n; i++) {
        const uint32_t node = w->order[i];
        if (passes_on(&t->node[node]))
            continue;
        (*place)[node - w->first_node] = *n;
        (*order)[*n] = node;
        print[(*n)++] = print_of(w, &t->node[node], *place);
    }
    return print;
}

uint64_t tl_print_made(tl_tape *l, const tl_value *x)
{
    tl_walk w = {.t = l, .n_nodes = l->n_nodes};
    uint32_t n = 0, *order, *place;
    const uint64_t *print = NULL;
    if (x != NULL && tl_canonical_order(l, x->self, TL_TO_ALL, &w.order, &w.n) == TL_OK)
        print = print_nodes(&w, &n, &order, &place);
    tl_err_clear(&l->head.err); /* out of memory: not known */
    uint64_t h = print == NULL ? 0 : print_of_input(&w, x, x, place) | 1;
    for (uint32_t i = 0; print != NULL && i < n; i++)
        h = tl_mix(h, print[i]);
    return h;
}

tl_status tl_prints_check(tl_walk *w)
{
    tl_tape *t = w->t;
    tl_print x = {.ragged = w->opt.ragged, .apart = w->root->batch == TL_FREE};
    uint32_t *order, *place;
    const tl_node **drawn = NULL;
    const tl_value *c = tl_peek(t, w->opt.cotangent);
    if (t->now.mode & TL_STRICT && c != NULL && (c->batch == TL_TOTAL || c->batch == TL_MIXED))
        return tl_tape_fail(w->at, TL_EUSAGE,
                            "tl_backward: TL_STRICT: the cotangent sums or mixes the samples of "
                            "this micro-batch");
    if (!w->lasts) { /* gradients of the tape's own leaves end with it */
        t->prints.ragged |= x.ragged && t->recorder == NULL;
        return TL_OK;
    }
    x.node = print_nodes(w, &x.n, &order, &place);
    x.uses = t->now.mode & TL_STRICT ? print_uses(w) : 0;
    TL_TRY(tl_error_status(t));
    if (t->now.mode & TL_STRICT)
        TL_TRY(print_draws(w, &x, &drawn));
    const int k = t->recorder != NULL ? t->prints.n : t->calls; /* in a trace marks count, too */
    TL_TRY(check_reset(w->at, k, &x, w->first_node));
    return t->recorder != NULL ? keep(w->at, x) : meet(w->at, k, x, order, drawn);
}

/* Checks, as a micro-batch of that many calls ends, that earlier ones had no more. */
static tl_status end(tl_at at, int calls)
{
    const tl_prints *p = &at.tape->prints;
    if (calls == 0 || calls >= p->n || p->ragged)
        return TL_OK;
    return tl_tape_fail(at, TL_EUSAGE,
                        "this micro-batch had %d tl_backward, those before it in this step %d "
                        "(.ragged = true allows it)",
                        calls, p->n);
}

void tl_prints_end(tl_tape *t)
{
    if (t->recorder == NULL)
        end(tl_nowhere(t), t->calls);
    t->prints.ragged = false;
}

tl_status tl_prints_step(tl_at at)
{
    return at.tape->recorder == NULL ? end(at, at.tape->calls) : keep(at, (tl_print){.n = STEPPED});
}

void tl_prints_clear(tl_tape *t)
{
    if (t->recorder == NULL)
        drop(&t->prints);
    else
        keep(tl_nowhere(t), (tl_print){.n = CLEARED});
}

tl_status tl_prints_run(tl_at at, const tl_prints *traced)
{
    int calls = at.tape->calls;
    const tl_print *last = NULL;
    for (int i = 0; i < traced->n; i++) { /* a program that clears first goes on with nothing */
        if (traced->print[i].node != NULL)
            last = &traced->print[i];
        else if (traced->print[i].n == CLEARED)
            break;
    }
    if (last != NULL)
        TL_TRY(check_reset(at, calls, last, UINT32_MAX));
    for (int i = 0; i < traced->n; i++) {
        const tl_print x = traced->print[i];
        if (x.node != NULL) {
            TL_TRY(meet(at, calls++, x, NULL, NULL));
        } else if (x.n == STEPPED) {
            TL_TRY(end(at, calls));
        } else {
            drop(&at.tape->prints);
            calls = 0;
        }
    }
    return TL_OK;
}
