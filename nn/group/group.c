/* group.c: a micro-batch's sums go on from rank to rank, and round to all.
 *
 *     tl_group_take      the part of each rank
 *     tl_group_backward  puts the gradients of parameters off. As soon as one is complete here and
 *                        the rank before has sent its sums, it is added to these and sent on.
 *     tl_group_fold      waits for what has not come by then
 *     tl_group_share     after the last micro-batch: the sums of the last rank go round to all
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/observer.h"
#include "nn/group/internal.h"
#include "tensor/memory.h"

tl_status tl_group_parts(tl_group *g, int64_t elements)
{
    if (g == NULL)
        return TL_OK;
    if (elements < 1)
        return tl_group_fail(g, TL_EDOMAIN,
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
    if (tl_group_begins(g) == TL_OK && g->begun)
        tl_group_fail(g, TL_EUSAGE,
                      "tl_group_take: the micro-batch before has not ended; call tl_group_fold");
    else if (part.first < 0 || part.n < 0 || part.n > part.of - part.first)
        tl_group_fail(g, TL_EDOMAIN,
                      "tl_group_begin: %" PRId64 " samples from %" PRId64 " on, of %" PRId64,
                      part.n, part.first, part.of);
    if (g->step > 0 && g->round == 0)
        g->cost = (tl_group_cost){0};
    g->folding = g->announced = g->backward = g->shared = false;
    g->next_part = 0;
    g->n_params = 0;
    g->accumulated = tl_accumulated(g->t);
    g->part = part;
    memset(g->added, 0, sizeof g->added);
    g->begun = !tl_failed(g->t);
    return tl_error_status(g->t);
}

int64_t tl_group_next(tl_group *g, tl_tape *t, tl_loader *l, int64_t most, tl_tensor *in)
{
    if (g == NULL || !g->begun || l == NULL)
        return tl_loader_next(t, l, most, in);
    /* The samples before this rank's part, those of the part, and those behind it. */
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

/* ---- parameters ---- */

/* A parameter whose gradients wait here, or have been added. */
typedef struct param {
    const char *name;
    bool folded; /* in this micro-batch */
} param;

/* The parameter of that name, often the one after that asked for last; NULL: it is not listed. */
static param *find_param(tl_group *g, const char *name)
{
    for (int i = 0; i < g->n_params; i++) {
        const int k = (g->last_param + 1 + i) % g->n_params;
        if (strcmp(g->param[k].name, name) == 0)
            return &g->param[g->last_param = k];
    }
    return NULL;
}

/* The same, added if it is not listed. NULL without memory. */
static param *list_param(tl_group *g, const char *name)
{
    param *p = find_param(g, name);
    if (p != NULL)
        return p;
    if (g->n_params == g->room_params) {
        const int room = 2 * g->room_params + 64;
        param *grown = realloc(g->param, (size_t)room * sizeof *grown);
        if (grown == NULL) {
            tl_group_fail(g, TL_ENOMEM, "tl_group: no memory for %d names", room);
            return NULL;
        }
        g->param = grown;
        g->room_params = room;
    }
    g->param[g->n_params] = (param){name, false};
    return &g->param[g->last_param = g->n_params++];
}

/* Lists all parameters that the tape knows of. Those that wait must not have been folded. */
static tl_status list_params(tl_group *g)
{
    const char *name;
    for (int i = 0; (name = tl_waiting_at(g->t, i)) != NULL; i++) {
        const param *p = list_param(g, name);
        if (p != NULL && p->folded)
            return tl_group_fail(g, TL_EUSAGE,
                                 "tl_group_fold: another backward behind tl_group_backward, which "
                                 "is a micro-batch's last, has reached '%.100s'",
                                 name);
    }
    for (int i = 0; (name = tl_accumulating_at(g->t, i).param) != NULL; i++)
        list_param(g, name);
    return tl_error_status(g->t);
}

static void note_folded(tl_group *g, const char *name)
{
    param *p = find_param(g, name);
    if (p != NULL)
        p->folded = true;
}

/* ---- a fold ---- */

/* Checks that no backward has added to an accumulator at once. */
static tl_status all_waits(tl_group *g)
{
    if (g->accumulated == tl_accumulated(g->t))
        return TL_OK;
    return tl_group_fail(g, TL_EUSAGE,
                         "tl_group_fold: rank %d has a backward whose gradients do not wait for "
                         "the fold; tl_backward needs .put_off = true",
                         g->link.rank);
}

/* Begins the fold, unless it has begun. */
static tl_status begin_fold(tl_group *g)
{
    if (g->folding)
        return g->backward ? TL_OK : all_waits(g);
    g->folding = true;
    g->cost.sums = g->cost.early = 0;
    g->more = (g->link.rank > 0 || g->round > 0) && g->link.size > 1;
    if (g->link.size == 1)
        return TL_OK;
    TL_TRY(all_waits(g));
    tl_accumulating a;
    for (int i = 0; g->round == 0 && (a = tl_accumulating_at(g->t, i)).param != NULL; i++)
        if (*a.kind != '\0')
            return tl_group_fail(g, TL_EUSAGE,
                                 "tl_group_fold: '%.100s' has been added to before the micro-batch",
                                 a.param);
    /* The first rank goes on from what the last one has. */
    return is_last(g) && g->round > 0 ? tl_group_send_all(g, SUMS) : TL_OK;
}

/* Adds the gradients that wait for a parameter to its sums and sends these to the next rank, in
 * parts that this rank chooses. */
static tl_status go_on(tl_group *g, const char *name)
{
    const int of = is_last(g) ? 1 : tl_accumulate_parts(g->t, name, g->most);
    for (int i = 0; i < of; i++) {
        TL_TRY(tl_accumulate_part(g->t, name, i, of));
        TL_TRY(tl_group_hand_on(g, name, (tl_group_tile){i, of, NULL, NULL}));
    }
    note_folded(g, name);
    return TL_OK;
}

/* Receives the sums, or a part of them, that have been announced, and goes on from there: with the
 * same part, if the gradients that wait here can be added in it; else once all parts have come. */
static tl_status go_on_from(tl_group *g)
{
    const char *name = g->text;
    tl_group_tile part;
    bool alike;
    g->announced = false;
    TL_TRY(tl_group_receive_sums(g, &g->next, false, &part, &alike));
    g->gathers = part.i == 0 ? !alike : g->gathers;
    if (g->gathers)
        return g->next_part > 0 ? TL_OK : go_on(g, name);
    TL_TRY(tl_accumulate_part(g->t, name, part.i, part.of));
    TL_TRY(tl_group_hand_on(g, name, part));
    if (g->next_part == 0)
        note_folded(g, name);
    return TL_OK;
}

/* Parameters go on in the order in which the rank before sends them, and after the last of them
 * those that only this rank has. While backward is under way, only those go on that have come and
 * are complete here. */
static tl_status advance(tl_group *g)
{
    while (g->more) {
        if (!g->announced) {
            if (g->backward && (g->link.comes == NULL || !g->link.comes(g->link.ctx)))
                return TL_OK;
            TL_TRY(tl_group_expect_some(g, &g->next, SUMS));
            g->announced = g->more = g->next.what == SUMS;
            if (!g->more)
                break;
        }
        if (g->backward && find_param(g, g->text) == NULL)
            return TL_OK;
        TL_TRY(go_on_from(g));
    }
    for (int i = 0; i < g->n_params; i++)
        if (!g->param[i].folded)
            TL_TRY(go_on(g, g->param[i].name));
    return TL_OK;
}

static tl_status fold(tl_group *g)
{
    TL_TRY(begin_fold(g));
    TL_TRY(list_params(g));
    TL_TRY(advance(g));
    TL_TRY(tl_group_parts_meet(g, &g->next));
    TL_TRY(tl_group_programs_meet(g, &g->next));
    TL_TRY(is_last(g) ? TL_OK : tl_group_send(g, END, 0, NULL, 0));
    return tl_group_settle(g, NULL);
}

/* ---- while backward is under way ---- */

/* A parameter is complete: all of its uses have been visited. */
static void complete(void *ctx, tl_tape *t, const char *name)
{
    tl_group *g = ctx;
    if (g->backward && !tl_failed(t) && begin_fold(g) == TL_OK && list_param(g, name) != NULL)
        advance(g);
}

/* Refuses an update with gradients that are not those of all samples. */
static void update_begins(void *ctx, tl_tape *t)
{
    tl_group *g = ctx;
    if (tl_traced(t))
        return;
    const bool unshared = g->begun || g->round > 0;
    if (unshared || (!g->shared && tl_accumulating_count(t) > 0))
        tl_group_fail(g, TL_EUSAGE,
                      "tl_group: an update before the sums of all ranks are shared; call %s first",
                      g->begun   ? "tl_group_fold and tl_group_share"
                      : unshared ? "tl_group_share"
                                 : "tl_group_take, tl_group_fold and tl_group_share");
    tl_group_check_update(g);
}

static void updated(void *ctx, tl_tape *t) { tl_group_updated(ctx, tl_tape_model(t)); }

static void cleared(void *ctx, tl_tape *t)
{
    tl_group *g = ctx;
    if (tl_traced(t))
        return;
    g->shared = false;
    tl_group_cleared(g);
}

/* Checks a backward before tl_group_backward, which checks its own, traced or not. The check waits
 * until the backward is over: it is a walk, and there is one at a time. */
static void backward_begins(void *ctx, TL_UNUSED tl_tape *t, tl_tensor y)
{
    ((tl_group *)ctx)->y = y;
}

static void backward_ends(void *ctx, tl_tape *t)
{
    tl_group *g = ctx;
    if (g->begun && !g->backward && !tl_traced(t))
        tl_group_promise(g, tl_nowhere(t), g->y);
}

static const tl_observer watches = {.backward_begins = backward_begins,
                                    .backward_ends = backward_ends,
                                    .put_off = complete,
                                    .update_begins = update_begins,
                                    .updated = updated,
                                    .cleared = cleared};

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

/* A run of a graph does the same before its first op and after its last. (The group may have
 * ended.) */
static void begin_run(tl_tape *t, TL_UNUSED void *unused)
{
    tl_group *g = tl_observed(t, &watches);
    if (g != NULL && !g->backward)
        begin_backward(g, tl_nowhere(t));
}

static void end_run(tl_tape *t, TL_UNUSED void *unused)
{
    tl_group *g = tl_observed(t, &watches);
    if (g != NULL && g->backward)
        end_backward(g);
}

tl_status tl_group_backward_at(tl_at at, tl_group *g, tl_tensor y)
{
    const tl_backward_options o = {.put_off = tl_group_size(g) > 1};
    const bool traced = tl_traced(at.tape);
    if (!o.put_off) {
        const char *waits;
        TL_TRY(tl_backward_at(at, y, o));
        while (!traced && (waits = tl_waiting_at(at.tape, 0)) != NULL) /* of earlier backwards */
            TL_TRY(tl_accumulate(at.tape, waits));
        return tl_error_status(at.tape);
    }
    TL_TRY(tl_error_status(at.tape));
    TL_TRY(tl_group_begins(g));
    TL_TRY(tl_group_promise(g, at, y));
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
    tl_group_begins(g);
    if (!g->begun)
        tl_group_fail(g, TL_EUSAGE, "tl_group_fold: no micro-batch has begun; call tl_group_take");
    g->begun = g->backward = false;
    if (!tl_failed(g->t) && fold(g) == TL_OK)
        g->round++;
    g->folding = false;
    return tl_group_ends(g);
}

/* ---- a step ---- */

/* The last rank's sums go round to all; or only the gradients, each to the rank that needs it. */
static tl_status share(tl_group *g)
{
    const bool cut = tl_group_is_cut(g);
    if (!cut)
        TL_TRY(is_last(g) ? tl_group_send_all(g, GRADIENT) : tl_group_receive_all(g));
    TL_TRY(tl_group_share_totals(g));
    TL_TRY(cut ? tl_group_share_cut(g) : TL_OK);
    return tl_group_settle(g, NULL);
}

tl_status tl_group_share(tl_group *g)
{
    if (g == NULL)
        return TL_OK;
    tl_group_begins(g);
    if (g->begun)
        tl_group_fail(g, TL_EUSAGE, "tl_group_share: a micro-batch has begun; call tl_group_fold");
    else if (g->round == 0 && g->link.size > 1) /* gradients would be those of one rank's samples */
        tl_group_fail(g, TL_EUSAGE,
                      "tl_group_share: no micro-batch has been folded since the step before; call "
                      "tl_group_take and tl_group_fold");
    if (!tl_failed(g->t) && (g->link.size == 1 || share(g) == TL_OK)) {
        g->step++;
        g->round = 0;
        g->program = 0;
        g->shared = true;
    }
    return tl_group_ends(g);
}

/* ---- a group ---- */

tl_group *tl_group_new(tl_tape *t, tl_link link)
{
    const bool model = t != NULL && tl_tape_model(t) != NULL,
               other = t != NULL && tl_observed(t, &watches) != NULL;
    const bool whole = link.rank >= 0 && link.rank < link.size && link.end != NULL &&
                       (link.size == 1 ||
                        (link.send != NULL && link.receive != NULL && link.settle != NULL));
    tl_group *g = model && !other && whole ? calloc(1, sizeof *g) : NULL;
    if (g == NULL) {
        if (t != NULL && (link.size != 1 || !whole)) /* NULL is a group of one */
            tl_tape_fail(tl_nowhere(t), model && !other && whole ? TL_ENOMEM : TL_EUSAGE,
                         !model  ? "tl_group_new: a tape without a model"
                         : other ? "tl_group_new: the tape has a group already"
                         : !whole
                             ? "tl_group_new: a link of rank %d of %d, or without its functions"
                             : "tl_group_new: no memory",
                         link.rank, link.size);
        return NULL;
    }
    g->t = t;
    g->link = link;
    g->to = next_of(g, link.rank);
    g->from = rank_before(g);
    g->most = 4 << 20;
    if (link.size > 1 && tl_observe(t, &watches, g) != TL_OK) {
        free(g);
        return NULL;
    }
    return g;
}

void tl_group_free(tl_group *g)
{
    if (g == NULL)
        return;
    if (*g->why == '\0')
        tl_group_count(g, 0); /* names a rank that hangs by now */
    else
        tl_group_ends(g); /* the others may not have heard */
    const bool failed = *g->why != '\0' || tl_failed(g->t);
    if (g->begun || g->round > 0) /* gradients of some samples, which an update would take */
        tl_grad_clear(g->t);
    tl_group_unwatch_totals(g);
    tl_group_uncut(g);
    tl_object_release(g->stepped);
    tl_observe_end(g->t, &watches);
    g->link.end(g->link.ctx, failed);
    tl_group_forget(g);
    for (int i = 0; i < TL_GROUP_BUFFERS; i++)
        free(g->buffer[i]);
    free(g->param);
    free(g->axis);
    free(g->text);
    free(g);
}
