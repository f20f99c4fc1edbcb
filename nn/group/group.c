/* group.c: folds that go on from rank to rank. Ranks are a ring, and messages go one way. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/observer.h"
#include "nn/group/internal.h"

int tl_group_rank(const tl_group *g) { return g == NULL ? 0 : g->link.rank; }
int tl_group_size(const tl_group *g) { return g == NULL ? 1 : g->link.size; }
tl_group_cost tl_group_costs(const tl_group *g) { return g == NULL ? (tl_group_cost){0} : g->cost; }

tl_status tl_group_parts(tl_group *g, int64_t elements)
{
    if (g == NULL)
        return TL_OK;
    if (elements < 1)
        return tl_tape_fail(tl_nowhere(g->t), TL_EDOMAIN,
                            "tl_group_parts: parts of %" PRId64 " elements; 1 or more are needed",
                            elements);
    g->most = elements;
    return TL_OK;
}

/* ---- a micro-batch ---- */

tl_group_part tl_group_take(tl_group *g, int64_t rows)
{
    const int64_t size = tl_group_size(g), rank = tl_group_rank(g);
    const int64_t each = rows / size, more = rows % size;
    tl_group_part p = {each * rank + (rank < more ? rank : more), each + (rank < more), rows};
    tl_group_begin(g, p);
    return p;
}

tl_status tl_group_begin(tl_group *g, tl_group_part part)
{
    if (g == NULL)
        return TL_OK;
    if (g->begun)
        tl_tape_fail(tl_nowhere(g->t), TL_EUSAGE,
                     "tl_group_take: the micro-batch before has not ended; call tl_group_fold");
    else if (part.first < 0 || part.n < 0 || part.n > part.of - part.first)
        tl_tape_fail(tl_nowhere(g->t), TL_EDOMAIN,
                     "tl_group_begin: %" PRId64 " samples from %" PRId64 " on, of %" PRId64, part.n,
                     part.first, part.of);
    if (g->over)
        g->cost = (tl_group_cost){0};
    g->folding = g->held = g->backward = false;
    g->within = 0;
    g->n_own = 0;
    g->over = false;
    g->accumulated = tl_accumulated(g->t);
    g->part = part;
    memset(g->added, 0, sizeof g->added);
    g->begun = !tl_failed(g->t);
    return tl_error_status(g->t);
}

int64_t tl_group_next(tl_group *g, tl_tape *t, tl_loader *l, int64_t most, tl_tensor *in)
{
    if (g == NULL || !g->begun)
        return tl_loader_next(t, l, most, in);
    /* Those before mine, mine, those behind: as many as there are. */
    const tl_group_part p = g->part;
    const int64_t want[3] = {p.first, p.n, p.of - p.first - p.n};
    int64_t got[3] = {0}, number = 0, of = 0;
    tl_tensor other[TL_LOADER_MAX];
    for (int i = 0; i < 3 && (of == 0 || l->left > 0); i++) {
        if (want[i] > 0)
            of += got[i] = tl_loader_next(t, l, want[i], i == 1 ? in : other);
        if (tl_failed(t))
            return 0;
        number = i == 1 ? l->number : number;
    }
    for (int i = 0; got[1] == 0 && i < l->n; i++) {
        tl_shape none = tl_array_shape(&l->array[i]);
        none.dim[0] = 0;
        in[i] = tl_zeros(t, l->array[i].dtype, none);
    }
    l->number = number;
    g->part = (tl_group_part){got[0], got[1], of};
    return got[1];
}

/* What the last rank has, and the end of it: w, w + 1. */
static tl_status send_all(tl_group *g, what w)
{
    for (int i = 0;;) {
        const tl_accumulating first = tl_accumulating_at(g->t, i);
        if (first.param == NULL)
            return tl_group_send(g, w + 1, 0, NULL, 0);
        int n = 0;
        g->last_found = i;
        TL_TRY(tl_group_send_sums(g, w, first.param, &n));
        i += n;
    }
}

/* A parameter that gradients wait for here, or have been added to. */
typedef struct own {
    const char *name;
    bool folded; /* in this micro-batch */
} own;

/* The number of that parameter, added where it is none yet; -1 without memory. Most stand behind
 * the one asked for last. */
static int own_of(tl_group *g, const char *name, bool add)
{
    for (int i = 0; i < g->n_own; i++) {
        const int k = (g->last_own + 1 + i) % g->n_own;
        if (strcmp(g->own[k].name, name) == 0)
            return g->last_own = k;
    }
    if (!add)
        return -1;
    if (g->n_own == g->own_room) {
        own *grown = realloc(g->own, (size_t)(2 * g->own_room + 64) * sizeof *grown);
        if (grown == NULL)
            return tl_tape_fail(tl_nowhere(g->t), TL_ENOMEM, "tl_group: no memory for %d names",
                                2 * g->own_room + 64),
                   -1;
        g->own = grown;
        g->own_room = 2 * g->own_room + 64;
    }
    g->own[g->n_own] = (own){name, false};
    return g->last_own = g->n_own++;
}

/* Those that the tape knows of; what waits must not have been folded. */
static tl_status list_own(tl_group *g)
{
    const char *name;
    for (int i = 0; (name = tl_waiting_at(g->t, i)) != NULL; i++) {
        const int k = own_of(g, name, true);
        if (k >= 0 && g->own[k].folded)
            return tl_tape_fail(
                tl_nowhere(g->t), TL_EUSAGE,
                "tl_group_fold: another backward behind tl_group_backward, which is "
                "a micro-batch's last, has reached '%.100s'",
                name);
    }
    for (int i = 0; (name = tl_accumulating_at(g->t, i).param) != NULL; i++)
        own_of(g, name, true);
    return tl_error_status(g->t);
}

static tl_status parts_meet(tl_group *g, const head *h)
{
    const int64_t from = g->link.rank == 0 ? 0 : h->until, of = g->part.of;
    if (g->link.rank > 0 && (h->of != of || from != g->part.first))
        return tl_tape_fail(tl_nowhere(g->t), TL_EUSAGE,
                            "tl_group: rank %d takes samples from %" PRId64 " on, of %" PRId64
                            "; those of rank %d ended at %" PRId64 " of %" PRId64,
                            g->link.rank, g->part.first, of, rank_before(g), h->until, h->of);
    const int64_t until = g->part.first + g->part.n;
    if (from != g->part.first || (is_last(g) && until != of))
        return tl_tape_fail(tl_nowhere(g->t), TL_EUSAGE,
                            "tl_group: rank %d of %d takes samples %" PRId64 " to %" PRId64
                            " of %" PRId64 ": the first is missing, or the last",
                            g->link.rank, g->link.size, g->part.first, until, of);
    return TL_OK;
}

static tl_status all_waits(const tl_group *g)
{
    if (g->link.size == 1 || g->accumulated == tl_accumulated(g->t))
        return TL_OK;
    return tl_tape_fail(tl_nowhere(g->t), TL_EUSAGE,
                        "tl_group_fold: rank %d has a backward whose gradients do not wait for the "
                        "fold; tl_backward needs .put_off = true",
                        g->link.rank);
}

/* Before the first parameter is folded. */
static tl_status begin_fold(tl_group *g)
{
    if (g->folding)
        return g->backward ? TL_OK : all_waits(g);
    g->folding = true;
    g->cost.sums = g->cost.early = 0;
    for (int i = 0; g->round == 0 && g->link.size > 1; i++) {
        const tl_accumulating a = tl_accumulating_at(g->t, i);
        if (a.param == NULL)
            break;
        if (*a.kind != '\0' && g->accumulated == tl_accumulated(g->t))
            return tl_tape_fail(tl_nowhere(g->t), TL_EUSAGE,
                                "tl_group_fold: '%.100s' has been added to before the micro-batch",
                                a.param);
    }
    TL_TRY(all_waits(g));
    g->comes = (g->link.rank > 0 || g->round > 0) && g->link.size > 1;
    return is_last(g) && g->round > 0 && g->link.size > 1
               ? send_all(g, SUMS) /* the first goes on from them */
               : TL_OK;
}

/* A parameter's sums go on from what has been received, and to the next rank, in parts of its own
 * choice. */
static tl_status go_on(tl_group *g, const char *name)
{
    const int k = own_of(g, name, false),
              of = is_last(g) ? 1 : tl_accumulate_parts(g->t, name, g->most);
    for (int i = 0; i < of; i++) {
        TL_TRY(tl_accumulate_part(g->t, name, i, of));
        TL_TRY(tl_group_hand_on(g, name, (tl_group_tile){i, of, NULL, NULL}));
    }
    if (k >= 0)
        g->own[k].folded = true;
    return TL_OK;
}

/* What has come: a part of a parameter's sums goes on as that part, where what waits here can be
 * added so; else they are gathered first. */
static tl_status go_on_from(tl_group *g, const head *h)
{
    tl_group_tile part;
    bool alike;
    TL_TRY(tl_group_receive_sums(g, h, false, &part, &alike));
    g->gathers = part.i == 0 ? !alike : g->gathers;
    if (g->gathers)
        return g->within > 0 ? TL_OK : go_on(g, g->text);
    TL_TRY(tl_accumulate_part(g->t, g->text, part.i, part.of));
    TL_TRY(tl_group_hand_on(g, g->text, part));
    const int k = g->within > 0 ? -1 : own_of(g, g->text, false);
    if (k >= 0)
        g->own[k].folded = true;
    return TL_OK;
}

/* Parameters come in the order in which the rank before has them; after the last of them those that
 * only this rank has. While backward is under way: as many as have come, and are complete. */
static tl_status advance(tl_group *g)
{
    while (g->comes) {
        if (!g->held) {
            if (g->backward && !tl_group_comes(g))
                return TL_OK;
            TL_TRY(tl_group_expect_sums(g, &g->next, SUMS));
            g->held = g->comes = g->next.what == SUMS;
            if (!g->comes)
                break;
        }
        if (g->backward && own_of(g, g->text, false) < 0)
            return TL_OK;
        g->held = false;
        TL_TRY(go_on_from(g, &g->next));
    }
    for (int i = 0; i < g->n_own; i++)
        if (!g->own[i].folded)
            TL_TRY(go_on(g, g->own[i].name));
    return TL_OK;
}

static tl_status fold(tl_group *g)
{
    TL_TRY(begin_fold(g));
    TL_TRY(list_own(g));
    TL_TRY(advance(g));
    TL_TRY(parts_meet(g, &g->next));
    TL_TRY(is_last(g) ? TL_OK : tl_group_send(g, END, 0, NULL, 0));
    return tl_group_settle(g);
}

/* ---- while backward is under way ---- */

static void complete(void *ctx, tl_tape *t, const char *param)
{
    tl_group *g = ctx;
    if (g->backward && !tl_failed(t) && begin_fold(g) == TL_OK && own_of(g, param, true) >= 0)
        advance(g);
}

/* A step between a micro-batch and tl_group_share would take gradients that are not of all. */
static void update_begins(void *ctx, tl_tape *t)
{
    const tl_group *g = ctx;
    if ((g->begun || g->round > 0) && !tl_traced(t))
        tl_tape_fail(tl_nowhere(t), TL_EUSAGE,
                     "tl_group: an update before the sums of all ranks are shared; call %s first",
                     g->begun ? "tl_group_fold and tl_group_share" : "tl_group_share");
}

static const tl_observer watches = {.put_off = complete, .update_begins = update_begins};

static tl_status begin_backward(tl_group *g, tl_at at)
{
    TL_TRY(tl_error_status(at.tape));
    if (!g->begun || g->folding)
        return tl_tape_fail(at, TL_EUSAGE,
                            g->begun
                                ? "tl_group_backward: it is a micro-batch's last, and this has "
                                  "one; of several the first are tl_backward with .put_off"
                                : "tl_group_backward: no micro-batch has begun; call "
                                  "tl_group_take");
    g->backward = true;
    return TL_OK;
}

static void end_backward(tl_group *g)
{
    g->backward = false;
    g->accumulated = g->folding ? tl_accumulated(g->t) : g->accumulated;
}

/* A graph's run brings its backwards with it; the group may have ended. */
static void begin_run(tl_tape *t, void *unused)
{
    tl_group *g = tl_observed(t, &watches);
    (void)unused;
    if (g != NULL && !g->backward)
        begin_backward(g, tl_nowhere(t));
}

static void end_run(tl_tape *t, void *unused)
{
    tl_group *g = tl_observed(t, &watches);
    (void)unused;
    if (g != NULL && g->backward)
        end_backward(g);
}

/* Ranks are a split of the batch; what another split gives other bits is of no use here. */
static tl_status keeps_the_promise(tl_at at, tl_tensor y)
{
    char why[TL_MESSAGE_MAX / 2];
    if (tl_explain_invariance(at.tape, y, why, sizeof why) <= 0)
        return tl_error_status(at.tape);
    why[strcspn(why, "\n")] = 0;
    return tl_tape_fail(at, TL_EUSAGE,
                        "tl_group_backward: the hash would depend on how many ranks there are: %s",
                        why);
}

tl_status tl_group_backward_at(tl_at at, tl_group *g, tl_tensor y)
{
    const tl_backward_options o = {.put_off = tl_group_size(g) > 1};
    const bool traced = tl_traced(at.tape);
    if (!o.put_off)
        return tl_backward_at(at, y, o);
    TL_TRY(tl_error_status(at.tape));
    TL_TRY(keeps_the_promise(at, y));
    TL_TRY(traced ? tl_host(at.tape, TL_BEFORE, begin_run, NULL) : begin_backward(g, at));
    tl_backward_at(at, y, o);
    if (traced)
        return tl_host(at.tape, TL_AFTER, end_run, NULL);
    end_backward(g);
    return tl_error_status(at.tape);
}

tl_status tl_group_fold(tl_group *g)
{
    if (g == NULL)
        return TL_OK;
    if (!tl_failed(g->t) && !g->begun)
        tl_tape_fail(tl_nowhere(g->t), TL_EUSAGE,
                     "tl_group_fold: no micro-batch has begun; call tl_group_take");
    g->begun = g->backward = false;
    if (!tl_failed(g->t) && fold(g) == TL_OK)
        g->round++;
    g->folding = false;
    return tl_group_ends(g);
}

/* ---- a step ---- */

static tl_status receive_gradients(tl_group *g)
{
    const bool on = next_of(g, g->link.rank) != g->link.size - 1;
    head h;
    tl_group_tile part;
    bool alike;
    do {
        TL_TRY(tl_group_expect_sums(g, &h, GRADIENT));
        if (h.what == GRADIENT)
            TL_TRY(tl_group_receive_sums(g, &h, on, &part, &alike));
    } while (h.what == GRADIENT);
    return on ? tl_group_send(g, SHARED, 0, NULL, 0) : TL_OK;
}

/* Complete sums go round from the last rank to the one before it, or only their gradients, each to
 * the rank that needs it. */
static tl_status share(tl_group *g)
{
    const bool on = next_of(g, g->link.rank) != g->link.size - 1;
    const bool cut = tl_group_is_cut(g);
    tl_model *m = tl_tape_model(g->t);
    if (!cut)
        TL_TRY(is_last(g) ? send_all(g, GRADIENT) : receive_gradients(g));
    for (int k = 0; k < g->n_totals; k++) {
        double x = is_last(g) ? tl_item(g->t, g->total[k]) : 0;
        if (!is_last(g) && (tl_group_receive_total(g, k, &x) != TL_OK ||
                            tl_write(m, g->total[k], &x, sizeof x) != TL_OK))
            return tl_error_status(g->t);
        TL_TRY(on ? tl_group_send_total(g, k, &x) : TL_OK);
    }
    TL_TRY(cut ? tl_group_share_cut(g) : TL_OK);
    return tl_group_settle(g);
}

tl_status tl_group_share(tl_group *g)
{
    if (g == NULL)
        return TL_OK;
    if (g->begun)
        tl_tape_fail(tl_nowhere(g->t), TL_EUSAGE,
                     "tl_group_share: a micro-batch has begun; call tl_group_fold");
    else if (g->round == 0 && g->link.size > 1) /* gradients would be those of one rank's samples */
        tl_tape_fail(tl_nowhere(g->t), TL_EUSAGE,
                     "tl_group_share: no micro-batch has been folded since the step before; call "
                     "tl_group_take and tl_group_fold");
    if (!tl_failed(g->t) && (g->link.size == 1 || share(g) == TL_OK)) {
        g->step++;
        g->round = 0;
        g->over = true;
    }
    return tl_group_ends(g);
}

/* ---- a group ---- */

tl_group *tl_group_new(tl_tape *t, tl_link link)
{
    const bool model = t != NULL && tl_tape_model(t) != NULL,
               other = t != NULL && tl_observed(t, &watches) != NULL;
    tl_group *g = model && !other ? calloc(1, sizeof *g) : NULL;
    if (g == NULL && t != NULL && link.size > 1) /* NULL would be a process that trains alone */
        tl_tape_fail(tl_nowhere(t), model && !other ? TL_ENOMEM : TL_EUSAGE, "tl_group_new: %s",
                     !model  ? "a tape without a model"
                     : other ? "the tape has a group already"
                             : "no memory");
    if (g != NULL) {
        g->t = t;
        g->link = link;
        g->to = next_of(g, link.rank);
        g->from = rank_before(g);
        g->most = 4 << 20;
    }
    if (g != NULL && link.size > 1 && tl_observe(t, &watches, g) != TL_OK) {
        free(g);
        g = NULL;
    }
    return g;
}

void tl_group_free(tl_group *g)
{
    if (g == NULL)
        return;
    tl_group_count(g, 0); /* names a rank that hangs by now */
    const bool failed = tl_failed(g->t);
    tl_group_unwatch(g);
    tl_observe_end(g->t, &watches);
    tl_group_uncut(g);
    g->link.end(g->link.ctx, failed);
    tl_group_forget(g);
    for (int i = 0; i < TL_GROUP_BUFFERS; i++)
        free(g->buffer[i]);
    free(g->own);
    free(g->text_of_first);
    free(g->text);
    free(g);
}
