/* agree.c: what ranks tell each other: counts, and what must be the same in all. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nn/group/internal.h"

static tl_status receive_count(tl_group *g, int64_t *n)
{
    head h;
    TL_TRY(tl_group_expect(g, &h, COUNT));
    if (h.bytes != sizeof *n)
        return tl_tape_fail(tl_nowhere(g->t), TL_EFORMAT,
                            "tl_group: rank %d sends a count of %" PRId64 " bytes", rank_before(g),
                            h.bytes);
    memcpy(n, g->text, sizeof *n);
    return TL_OK;
}

int64_t tl_group_count(tl_group *g, int64_t n)
{
    int64_t all = 0;
    if (tl_group_size(g) == 1)
        return n;
    /* Added up to the last; then all of it goes round. */
    if (!tl_failed(g->t) && (g->link.rank == 0 || receive_count(g, &all) == TL_OK)) {
        all += n;
        if (tl_group_send(g, COUNT, 0, &all, sizeof all) == TL_OK && !is_last(g) &&
            receive_count(g, &all) == TL_OK) {
            if (next_of(g, g->link.rank) != g->link.size - 1)
                tl_group_send(g, COUNT, 0, &all, sizeof all);
        }
        if (!tl_failed(g->t))
            tl_group_settle(g);
    }
    return tl_group_ends(g) == TL_OK ? all : 0;
}

/* Keys and values, each with its NUL. */
typedef struct {
    char *text;
    size_t bytes, room;
    bool full;
} list;

static void add(list *l, const char *key, const char *value)
{
    const char *part[2] = {key, value};
    for (int i = 0; i < 2; i++) {
        const size_t n = strlen(part[i]) + 1;
        char *grown = l->bytes + n <= l->room ? l->text : realloc(l->text, 2 * l->room + n);
        l->full |= grown == NULL;
        if (grown == NULL)
            return;
        l->room = grown == l->text ? l->room : 2 * l->room + n;
        l->text = grown;
        memcpy(l->text + l->bytes, part[i], n);
        l->bytes += n;
    }
}

/* What must be the same in every rank. */
static tl_status describe(tl_group *g, const tl_note *notes, int n, list *l)
{
    tl_model *m = tl_tape_model(g->t);
    char text[256], hex[65];
    snprintf(text, sizeof text, "%d", g->link.size);
    add(l, "processes", text);
    snprintf(text, sizeof text, "%" PRIu64, tl_model_seed(m));
    add(l, "seed", text);
    for (int i = 0; i < n; i++)
        add(l, notes[i].key, notes[i].value);
    for (int i = 0; i < tl_model_count(m); i++) {
        const tl_named x = tl_model_at(m, i);
        if (g->sharded && tl_group_is_state(m, &x))
            continue; /* each rank has other */
        tl_shape s = tl_array_shape(&x.array);
        TL_TRY(tl_sha256(g->t, x.tensor, hex));
        int at = snprintf(text, sizeof text, "%s %s [", x.param ? "parameter" : "buffer",
                          tl_dtype_name(x.array.dtype));
        for (int d = 0; d < s.ndim; d++)
            at += snprintf(text + at, sizeof text - (size_t)at, "%s%" PRId64, d ? ", " : "",
                           s.dim[d]);
        snprintf(text + at, sizeof text - (size_t)at, "]%s, sha256 %.16s",
                 x.frozen ? " frozen" : "", hex);
        add(l, x.name, text);
    }
    return l->full ? tl_tape_fail(tl_nowhere(g->t), TL_ENOMEM, "tl_group_agree: no memory") : TL_OK;
}

/* The first difference from rank 0's, in words; "" if there is none. */
static void compare(const tl_group *g, const list *mine, const char *its, size_t bytes,
                    char out[TL_MESSAGE_MAX])
{
    const char *a = mine->text, *b = its;
    *out = '\0';
    while (a < mine->text + mine->bytes && b < its + bytes) {
        const char *va = a + strlen(a) + 1, *vb = b + strlen(b) + 1;
        if (strcmp(a, b) != 0 || strcmp(va, vb) != 0) {
            snprintf(out, TL_MESSAGE_MAX, "rank %d has %.60s %.100s, rank 0 has %.60s%s%.100s",
                     g->link.rank, a, va, strcmp(a, b) == 0 ? "" : b, strcmp(a, b) == 0 ? "" : " ",
                     vb);
            return;
        }
        a = va + strlen(va) + 1;
        b = vb + strlen(vb) + 1;
    }
    const bool more = a < mine->text + mine->bytes;
    if (more || b < its + bytes)
        snprintf(out, TL_MESSAGE_MAX, "rank %d has %s %.100s, unlike rank 0", g->link.rank,
                 more ? "a" : "no", more ? a : b);
}

/* Rank 0's list goes to the last, and behind it the first difference, which goes round to all. */
static tl_status agree(tl_group *g, const list *mine)
{
    const int rank = g->link.rank;
    char differs[TL_MESSAGE_MAX] = "", own[TL_MESSAGE_MAX];
    head h;
    if (rank > 0) {
        TL_TRY(tl_group_expect(g, &h, NOTES));
        compare(g, mine, g->text, (size_t)h.bytes, own);
        TL_TRY(is_last(g) ? TL_OK : tl_group_send(g, NOTES, 0, g->text, (size_t)h.bytes));
        TL_TRY(tl_group_expect(g, &h, NOTES));
        snprintf(differs, sizeof differs, "%s", *g->text != '\0' ? g->text : own);
    } else {
        TL_TRY(tl_group_send(g, NOTES, 0, mine->text, mine->bytes));
    }
    TL_TRY(tl_group_send(g, NOTES, 0, differs, strlen(differs)));
    if (!is_last(g)) {
        TL_TRY(tl_group_expect(g, &h, NOTES));
        snprintf(differs, sizeof differs, "%s", g->text);
        if (next_of(g, rank) != g->link.size - 1)
            TL_TRY(tl_group_send(g, NOTES, 0, differs, strlen(differs)));
    }
    TL_TRY(tl_group_settle(g));
    g->told |= *differs != '\0';
    return *differs == '\0'
               ? TL_OK
               : tl_tape_fail(tl_nowhere(g->t), TL_EUSAGE, "tl_group_agree: %.400s", differs);
}

tl_status tl_group_agree(tl_group *g, const tl_note *notes, int n)
{
    if (tl_group_size(g) == 1)
        return TL_OK;
    list l = {0};
    if (!tl_failed(g->t) && describe(g, notes, n, &l) == TL_OK)
        agree(g, &l);
    free(l.text);
    return tl_group_ends(g);
}
