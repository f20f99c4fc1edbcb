/* shard.c: an optimizer's state cut over ranks. Each updates its part of the parameters. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nn/group/internal.h"
#include "nn/opt.h"

bool tl_group_is_state(tl_model *m, const tl_named *x)
{
    const char *of = x->param ? "" : tl_opt_state_of(x->name);
    return *of != '\0' && !tl_is_none(tl_model_find(m, of));
}

int tl_group_shard(tl_group *g)
{
    if (tl_group_size(g) > 1)
        g->sharded = true;
    return tl_group_size(g);
}

static size_t bytes_of(const tl_array *a)
{
    return (size_t)tl_array_count(a) * tl_dtype_size(a->dtype);
}

/* A tensor of the model, as a head with its name and then its bytes. */
static tl_status send_tensor(tl_group *g, what w, const char *name, const tl_array *a)
{
    TL_TRY(tl_group_send(g, w, g->link.rank, name, strlen(name) + 1));
    return tl_group_send_pieces(g, a->data, bytes_of(a));
}

/* Of the parameters that this rank updates: those, or their state. */
static tl_status send_own(tl_group *g, what w)
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
    return tl_group_send(g, w + 1, g->link.rank, NULL, 0);
}

/* Where the tensor that g->text names has its place; state is made, by rank 0. */
static tl_tensor place_of(tl_group *g, what w, tl_array *a)
{
    tl_model *m = tl_tape_model(g->t);
    const char *of = w == STATE ? tl_opt_state_of(g->text) : g->text;
    tl_tensor x = tl_model_find(m, of);
    if (w == STATE && tl_array_of(g->t, x, a))
        x = tl_buffer(g->t, m, g->text, tl_dtype_compute(a->dtype), tl_array_shape(a));
    if (!tl_array_of(g->t, x, a) && !tl_failed(g->t))
        tl_tape_fail(TL_AT(g->t), TL_ENAME, "tl_group: rank %d has no parameter '%.100s'",
                     g->link.rank, of);
    return x;
}

/* State of others, which this rank has no place for. */
static tl_status hand_on(tl_group *g)
{
    tl_array a;
    if (!tl_array_of(g->t, tl_model_find(tl_tape_model(g->t), tl_opt_state_of(g->text)), &a))
        return tl_tape_fail(TL_AT(g->t), TL_ENAME, "tl_group: rank %d has no parameter of '%.100s'",
                            g->link.rank, g->text);
    a.dtype = tl_dtype_compute(a.dtype);
    void *bytes = malloc(bytes_of(&a) + 1);
    if (bytes == NULL)
        return tl_tape_fail(TL_AT(g->t), TL_ENOMEM, "tl_group: no memory for '%.100s'", g->text);
    tl_status s = tl_group_receive_pieces(g, bytes, bytes_of(&a), true);
    s = s == TL_OK ? tl_group_settle(g) : s;
    if (s == TL_OK) /* else the ring may still have it */
        free(bytes);
    return s;
}

/* What `others` ranks have sent, each to its end; handed on, but not back. */
static tl_status receive_others(tl_group *g, what w, int others)
{
    while (others > 0) {
        head h;
        tl_array a;
        TL_TRY(tl_group_expect_sums(g, &h, w));
        const bool on = next_of(g, g->link.rank) != h.n && (w == WEIGHTS || g->link.rank > 0);
        if (on)
            TL_TRY(tl_group_send(g, (what)h.what, h.n, g->text, (size_t)h.bytes));
        others -= h.what != w;
        if (h.what != w)
            continue;
        if (w == STATE && on) {
            TL_TRY(hand_on(g));
            continue;
        }
        const tl_tensor x = place_of(g, w, &a);
        TL_TRY(tl_error_status(g->t));
        TL_TRY(tl_group_receive_pieces(g, a.data, bytes_of(&a), on));
        tl_write(tl_tape_model(g->t), x, a.data, bytes_of(&a)); /* from then on it is another */
        TL_TRY(tl_error_status(g->t));
    }
    return TL_OK;
}

tl_status tl_group_weights(tl_group *g)
{
    if (tl_group_size(g) == 1)
        return g == NULL ? TL_OK : tl_error_status(g->t);
    if (!tl_failed(g->t) && send_own(g, WEIGHTS) == TL_OK &&
        receive_others(g, WEIGHTS, g->link.size - 1) == TL_OK)
        tl_group_settle(g);
    return tl_group_ends(g);
}

/* State goes on from rank 1 to the last, and from there to rank 0. */
static tl_status gather(tl_group *g)
{
    const int rank = g->link.rank;
    TL_TRY(rank > 0 ? send_own(g, STATE) : TL_OK);
    TL_TRY(receive_others(g, STATE, (rank > 0 ? rank : g->link.size) - 1));
    return tl_group_settle(g);
}

tl_status tl_group_save(tl_group *g, tl_model *m, tl_opt *opt, const char *path,
                        const tl_note *notes, int n)
{
    if (tl_group_size(g) == 1)
        return tl_checkpoint_save(m, opt, path, notes, n);
    const int parts = opt == NULL ? 0 : opt->o.parts;
    if (!tl_failed(g->t) && parts > 1 && (parts != g->link.size || opt->o.part != g->link.rank))
        tl_tape_fail(TL_AT(g->t), TL_EUSAGE,
                     "tl_group_save: the optimizer of rank %d of %d updates part %d of %d",
                     g->link.rank, g->link.size, opt->o.part, parts);
    if (!tl_failed(g->t) && (parts <= 1 || gather(g) == TL_OK) && g->link.rank == 0) {
        if (parts > 1)
            opt->o.parts = 0; /* all of it is there */
        if (tl_checkpoint_save(m, opt, path, notes, n) != TL_OK && !tl_failed(g->t))
            tl_tape_fail(TL_AT(g->t), tl_error_status(m), "tl_group_save: %.400s", tl_error(m));
        if (parts > 1)
            opt->o.parts = parts;
    }
    return tl_group_ends(g);
}
