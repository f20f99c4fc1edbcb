/* shard.c: an optimizer's state cut over ranks. Each rank updates its part of the parameters, and
 * may be the only one to have their gradients. Updated weights, and state for a checkpoint, go
 * round. */
#include <stdlib.h>

#include "nn/group/internal.h"
#include "nn/opt.h"

int tl_group_shard(tl_group *g)
{
    if (tl_group_size(g) > 1)
        g->sharded = true;
    return tl_group_size(g);
}

/* Sends a tensor of the model: a head with its name, then its bytes. */
static tl_status send_tensor(tl_group *g, what w, const char *name, const tl_array *a)
{
    TL_TRY(tl_group_send(g, w, g->link.rank, name, strlen(name) + 1));
    return tl_group_send_pieces(g, a->data, bytes_of(a));
}

/* Sends the parameters that this rank updates, or their state, and then the end of that kind, with
 * the optimizer's settings. */
static tl_status send_own(tl_group *g, what w, const char *own, size_t bytes)
{
    tl_model *m = tl_tape_model(g->t);
    tl_opt_cut cut = tl_opt_cut_of(m, g->link.size);
    for (int i = 0; i < tl_model_count(m); i++) {
        const tl_named p = tl_model_at(m, i);
        tl_array a;
        char name[TL_NAME_MAX];
        if (tl_opt_part(&cut, &p) != g->link.rank || !p.param)
            continue;
        if (w == WEIGHTS)
            TL_TRY(p.frozen ? TL_OK : send_tensor(g, w, p.name, &p.array));
        for (int k = 0; w == STATE && tl_opt_kind(k) != NULL; k++) {
            snprintf(name, sizeof name, "%s%s", tl_opt_kind(k), p.name);
            if (tl_array_of(g->t, tl_model_find(m, name), &a))
                TL_TRY(send_tensor(g, w, name, &a));
        }
    }
    return tl_group_send(g, w + 1, g->link.rank, own, bytes);
}

/* The tensor that g->text names, and its array. State is made if need be (by rank 0). */
static tl_tensor place_of(tl_group *g, what w, tl_array *a)
{
    tl_model *m = tl_tape_model(g->t);
    const char *of = w == STATE ? tl_opt_state_of(g->text) : g->text;
    tl_tensor x = tl_model_find(m, of);
    if (w == STATE && tl_array_of(g->t, x, a))
        x = tl_buffer(g->t, m, g->text, tl_dtype_compute(a->dtype), tl_array_shape(a));
    if (!tl_array_of(g->t, x, a))
        tl_group_fail(g, TL_ENAME, "tl_group: rank %d has no parameter '%.100s'", g->link.rank, of);
    return x;
}

/* Hands on the state of another rank, for which this one has no place. */
static tl_status hand_on(tl_group *g)
{
    tl_array a;
    if (!tl_array_of(g->t, tl_model_find(tl_tape_model(g->t), tl_opt_state_of(g->text)), &a))
        return tl_group_fail(g, TL_ENAME, "tl_group: rank %d has no parameter of '%.100s'",
                             g->link.rank, g->text);
    a.dtype = tl_dtype_compute(a.dtype);
    void *bytes = tl_group_alloc(g, bytes_of(&a));
    if (bytes == NULL)
        return TL_ENOMEM;
    /* After a failure the link may still be reading it: it is not freed. */
    TL_TRY(tl_group_receive_pieces(g, bytes, bytes_of(&a), true));
    TL_TRY(tl_group_settle(g, NULL));
    free(bytes);
    return TL_OK;
}

/* Receives what `others` ranks have sent, each up to its end. It is handed on, but not back to the
 * rank that sent it; state no further than to rank 0. */
static tl_status receive_others(tl_group *g, what w, int others, const char *own, size_t bytes)
{
    char differs[TL_MESSAGE_MAX];
    while (others > 0) {
        head h;
        tl_array a;
        TL_TRY(tl_group_expect_some(g, &h, w));
        const bool on = next_of(g, g->link.rank) != h.n && (w == WEIGHTS || g->link.rank > 0);
        if (on)
            TL_TRY(tl_group_send(g, (what)h.what, h.n, g->text, (size_t)h.bytes));
        others -= h.what != w;
        if (h.what != w && bytes > 0 && h.bytes > 0) { /* else one of them has made no step */
            tl_group_compare(g, own, bytes, h.n, g->text, (size_t)h.bytes, differs);
            if (*differs != '\0')
                return tl_group_fail(g, TL_EUSAGE, "tl_group_weights: %s", differs);
        }
        if (h.what != w)
            continue;
        if (w == STATE && on) {
            TL_TRY(hand_on(g));
            continue;
        }
        const tl_tensor x = place_of(g, w, &a);
        TL_TRY(tl_error_status(g->t));
        TL_TRY(tl_group_receive_pieces(g, a.data, bytes_of(&a), on));
        tl_write(tl_tape_model(g->t), x, a.data, bytes_of(&a)); /* notes the change */
        TL_TRY(tl_error_status(g->t));
    }
    return TL_OK;
}

/* ---- gradients, straight to the rank that updates the parameter ---- */

/* Whether each rank has only the gradients that it updates, until they are consumed. */
static bool is_cut_apart(const tl_group *g) { return g->opt != NULL && g->opt->away.t == g->t; }

/* An update by anything but the cut optimizer's tl_step would take some gradients for all of them.
 * What a backward adds now would be missing in other ranks and in the sum of squares. */
void tl_group_check_update(tl_group *g)
{
    if (!is_cut_apart(g))
        return;
    if (!g->opt->stepping)
        tl_group_fail(g, TL_EUSAGE,
                      "tl_group_cut: an update, but gradients have gone to the ranks whose part of "
                      "an optimizer takes them: by its tl_step, called and not compiled");
    else if (g->accumulated != tl_accumulated(g->t))
        tl_group_fail(g, TL_EUSAGE,
                      "tl_group_cut: a backward between tl_group_share and tl_step, when gradients "
                      "have gone to the ranks that take them");
}

void tl_group_updated(tl_group *g, tl_model *m)
{
    tl_object_release(g->stepped);
    g->stepped = NULL;
    for (int i = tl_model_count(m); i-- > 0 && g->stepped == NULL;) {
        const tl_named x = tl_model_at(m, i);
        const void *whose = tl_opt_state_owner(m, &x);
        if (tl_object_given(whose) && ((const tl_opt *)whose)->stepping)
            tl_object_hold(g->stepped = (tl_opt *)(uintptr_t)whose);
    }
}

void tl_group_cleared(tl_group *g)
{
    if (is_cut_apart(g))
        g->opt->away.t = NULL;
}

void tl_group_uncut(tl_group *g)
{
    if (is_cut_apart(g))
        tl_grad_clear(g->t);
    tl_object_release(g->opt);
    g->opt = NULL;
}

bool tl_group_is_cut(tl_group *g)
{
    if (g->opt != NULL && !tl_object_given(g->opt)) /* it has been freed */
        tl_group_uncut(g);
    return g->opt != NULL;
}

tl_status tl_group_cut(tl_group *g, tl_opt *opt)
{
    if (tl_group_size(g) == 1)
        return g == NULL ? TL_OK : tl_error_status(g->t);
    TL_TRY(tl_group_begins(g));
    if (!tl_object_given(opt) || opt->model != tl_tape_model(g->t) ||
        opt->o.parts != g->link.size || opt->o.part != g->link.rank)
        return tl_group_fail(g, TL_EUSAGE,
                             "tl_group_cut: an optimizer of the tape's model is needed, that of "
                             "rank %d of %d made with .part = %d, .parts = %d",
                             g->link.rank, g->link.size, g->link.rank, g->link.size);
    tl_group_uncut(g);
    tl_object_hold(g->opt = opt);
    g->sharded = true;
    return TL_OK;
}

/* All gradients in the model's order, and their squares, added up as tl_step would. Returns how
 * many gradients there are. */
static int all_gradients(tl_group *g, tl_tensor *grad, int n, double *squares)
{
    tl_tensor sum = TL_NONE;
    int have = 0;
    const int mode = tl_mode_push(g->t, TL_NO_GRAD);
    for (int i = 0; i < n; i++) {
        const tl_named p = tl_model_at(tl_tape_model(g->t), i);
        grad[i] = p.param && !p.frozen ? tl_grad(g->t, p.tensor) : TL_NONE;
        have += !tl_is_none(grad[i]);
        sum = tl_opt_add_squares(g->t, sum, grad[i]);
    }
    *squares = tl_is_none(sum) ? 0 : tl_item(g->t, sum);
    tl_mode_pop(g->t, mode);
    return have;
}

/* Sends each gradient to the rank that needs it, and then their end to every rank. */
static tl_status send_gradients(tl_group *g, const tl_tensor *grad, int n)
{
    tl_opt_cut cut = tl_opt_cut_of(tl_tape_model(g->t), g->link.size);
    for (int i = 0; i < n; i++) {
        const tl_named p = tl_model_at(tl_tape_model(g->t), i);
        tl_array a;
        g->to = tl_opt_part(&cut, &p);
        if (g->to != g->link.rank && tl_array_of(g->t, grad[i], &a))
            TL_TRY(send_tensor(g, GRADIENT, p.name, &a));
    }
    for (g->to = 0; g->to < g->link.rank; g->to++)
        TL_TRY(tl_group_send(g, SHARED, 0, NULL, 0));
    return tl_error_status(g->t);
}

/* The part of the last rank in tl_group_share_cut. The sum of squares goes round first, or the news
 * that this rank has failed. */
static tl_status share_all(tl_group *g, tl_opt_away *away)
{
    const int n = tl_model_count(tl_tape_model(g->t));
    tl_tensor *grad = tl_group_alloc(g, (size_t)n * sizeof *grad);
    if (grad == NULL)
        return TL_ENOMEM;
    away->n = all_gradients(g, grad, n, &away->squares);
    if (!tl_failed(g->t) && tl_group_round(g, SQUARES, &away->n, &away->squares) == TL_OK &&
        send_gradients(g, grad, n) != TL_OK) {
        for (g->to = 0; g->to < g->link.rank; g->to++) /* they wait for this rank */
            tl_group_send(g, FAILED, g->link.rank, tl_error(g->t), strlen(tl_error(g->t)));
        g->told = true;
    }
    g->to = next_of(g, g->link.rank);
    free(grad);
    return tl_error_status(g->t);
}

/* An accumulator of the dtype of its parameter's gradient. */
typedef struct {
    tl_tensor of;
    int call;
    const char *kind;
} place;

/* n of them, to be freed; the gradients in them are dropped. NULL without memory. */
static place *places(tl_group *g, int *n)
{
    place *p = tl_group_alloc(g, (size_t)tl_accumulating_count(g->t) * sizeof *p);
    tl_accumulating x;
    tl_array a;
    *n = 0;
    for (int i = 0; p != NULL && (x = tl_accumulating_at(g->t, i)).param != NULL; i++) {
        const tl_tensor of = tl_model_find(tl_tape_model(g->t), x.param);
        if (*x.kind != '\0' && tl_array_of(g->t, of, &a) &&
            x.array.dtype == tl_dtype_compute(a.dtype))
            p[(*n)++] = (place){of, x.call, x.kind};
    }
    tl_grad_clear(g->t); /* p[].kind stays valid */
    return p;
}

/* The gradient that comes takes the place of all accumulators: a single one of its dtype is the
 * gradient as it stands. */
static tl_status receive_gradient(tl_group *g, const place *p, int n)
{
    tl_array a;
    place at = {place_of(g, GRADIENT, &a), 0, "gradient"};
    TL_TRY(tl_error_status(g->t));
    for (int i = 0; i < n; i++)
        if (p[i].of.owner == at.of.owner && p[i].of.index == at.of.index)
            at = p[i];
    TL_TRY(tl_accumulator_open(g->t, g->text, at.call, at.kind, tl_dtype_compute(a.dtype),
                               tl_array_shape(&a), &a));
    return tl_group_receive_pieces(g, a.data, bytes_of(&a), false);
}

/* The part of the other ranks. */
static tl_status share_mine(tl_group *g, tl_opt_away *away)
{
    head h = {.what = GRADIENT};
    int n;
    TL_TRY(tl_group_round(g, SQUARES, &away->n, &away->squares));
    place *p = places(g, &n);
    if (p == NULL)
        return TL_ENOMEM;
    g->from = g->link.size - 1;
    while (!tl_failed(g->t) && h.what == GRADIENT)
        if (tl_group_expect_some(g, &h, GRADIENT) == TL_OK && h.what == GRADIENT)
            receive_gradient(g, p, n);
    g->from = rank_before(g);
    free(p);
    return tl_error_status(g->t);
}

tl_status tl_group_share_cut(tl_group *g)
{
    tl_opt_away away = {.t = g->t, .state = tl_model_state(tl_tape_model(g->t))};
    TL_TRY(is_last(g) ? share_all(g, &away) : share_mine(g, &away));
    g->opt->away = away;
    g->accumulated = tl_accumulated(g->t);
    return TL_OK;
}

/* ---- weights, to all ---- */

/* Checks that o, if it updates a part of the parameters alone, has that of this rank. */
static void check_part(tl_group *g, const tl_opt *o, const char *who)
{
    if (o != NULL && o->o.parts > 1 && (o->o.parts != g->link.size || o->o.part != g->link.rank))
        tl_group_fail(g, TL_EUSAGE, "%s: the optimizer of rank %d of %d updates part %d of %d", who,
                      g->link.rank, g->link.size, o->o.part, o->o.parts);
}

tl_status tl_group_weights(tl_group *g)
{
    if (tl_group_size(g) == 1)
        return g == NULL ? TL_OK : tl_error_status(g->t);
    size_t bytes;
    char *own = tl_group_begins(g) == TL_OK ? tl_group_settings(g, &bytes) : NULL;
    check_part(g, tl_object_given(g->stepped) ? g->stepped : NULL, "tl_group_weights");
    if (own != NULL && !tl_failed(g->t) && send_own(g, WEIGHTS, own, bytes) == TL_OK &&
        receive_others(g, WEIGHTS, g->link.size - 1, own, bytes) == TL_OK)
        tl_group_settle(g, NULL);
    free(own);
    return tl_group_ends(g);
}

/* ---- checkpoints ---- */

/* State goes on from rank 1 to the last, and from there to rank 0. */
static tl_status gather(tl_group *g)
{
    const int rank = g->link.rank;
    TL_TRY(rank > 0 ? send_own(g, STATE, NULL, 0) : TL_OK);
    TL_TRY(receive_others(g, STATE, (rank > 0 ? rank : g->link.size) - 1, NULL, 0));
    return tl_group_settle(g, NULL);
}

/* Checks that the state of this rank is opt's: rank 0 could not tell whose state it receives. */
static tl_status check_owners(tl_group *g, tl_model *m, const tl_opt *opt)
{
    for (int i = 0; i < tl_model_count(m); i++) {
        const tl_named x = tl_model_at(m, i);
        const void *whose = tl_opt_state_owner(m, &x);
        if (whose != NULL && whose != opt)
            return tl_group_fail(g, TL_EUSAGE,
                                 "tl_group_save: '%.100s' is the state of another optimizer; of "
                                 "several, none can be saved whose state is cut over ranks",
                                 x.name);
    }
    return TL_OK;
}

tl_status tl_group_save(tl_group *g, tl_model *m, tl_opt *opt, const char *path,
                        const tl_note *notes, int n)
{
    if (tl_group_size(g) == 1)
        return tl_checkpoint_save(m, opt, path, notes, n);
    const bool parted = opt != NULL && opt->o.parts > 1;
    const bool gathers = parted || (opt == NULL && g->sharded);
    check_part(g, opt, "tl_group_save");
    if (parted)
        check_owners(g, m, opt);
    if (tl_group_begins(g) == TL_OK && (!gathers || gather(g) == TL_OK) && g->link.rank == 0) {
        if (parted)
            opt->gathered = true;
        if (tl_checkpoint_save(m, opt, path, notes, n) != TL_OK)
            tl_group_fail(g, tl_error_status(m), "tl_group_save: %s", tl_error(m));
        if (parted)
            opt->gathered = false;
    }
    return tl_group_ends(g);
}
