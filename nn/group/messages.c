/* messages.c: what goes round the ring: heads and text, which lie still until the ring has taken
 * them; and how a failure goes round. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "nn/group/internal.h"

enum { MOST_TEXT = 1 << 26, PIECE = TL_GROUP_PIECE };
static const char *const what_text[] = {"sums",      "the end of sums",
                                        "gradients", "the end of gradients",
                                        "weights",   "the end of weights",
                                        "state",     "the end of state",
                                        "a total",   "a count",
                                        "notes",     "a sum of squares"};

/* What was sent, until it is settled. */
typedef struct block {
    struct block *next;
    head h;
    char text[];
} block;

tl_status tl_group_check(tl_group *g, tl_status s, const tl_err *e)
{
    return s == TL_OK ? TL_OK : tl_tape_fail(tl_nowhere(g->t), s, "tl_group: %.400s", e->message);
}

tl_status tl_group_send_bytes(tl_group *g, const void *bytes, size_t n)
{
    tl_err e = {.status = TL_OK};
    if (n == 0)
        return TL_OK;
    g->cost.sent += (int64_t)n;
    return tl_group_check(g, g->link.send(g->link.ctx, g->to, bytes, n, &e), &e);
}

tl_status tl_group_receive_bytes(tl_group *g, void *bytes, size_t n)
{
    tl_err e = {.status = TL_OK};
    return n == 0 ? TL_OK
                  : tl_group_check(g, g->link.receive(g->link.ctx, g->from, bytes, n, &e), &e);
}

bool tl_group_comes(tl_group *g) { return g->link.comes != NULL && g->link.comes(g->link.ctx); }

tl_status tl_group_send_pieces(tl_group *g, const void *bytes, size_t n)
{
    for (size_t at = 0; at < n; at += PIECE)
        TL_TRY(tl_group_send_bytes(g, (const char *)bytes + at, n - at < PIECE ? n - at : PIECE));
    return TL_OK;
}

tl_status tl_group_receive_pieces(tl_group *g, void *bytes, size_t n, bool on)
{
    tl_err e = {.status = TL_OK};
    for (size_t at = 0; at < n; at += PIECE) {
        char *piece = (char *)bytes + at;
        const size_t size = n - at < PIECE ? n - at : PIECE;
        TL_TRY(tl_group_check(g, g->link.settle(g->link.ctx, piece, &e), &e));
        TL_TRY(tl_group_receive_bytes(g, piece, size));
        TL_TRY(on ? tl_group_send_bytes(g, piece, size) : TL_OK);
    }
    return TL_OK;
}

tl_status tl_group_send(tl_group *g, what w, int n, const void *text, size_t bytes)
{
    if (g->folding && w != SUMS && w != END && w != FAILED)
        return tl_tape_fail(tl_nowhere(g->t), TL_EUSAGE,
                            "tl_group: %s between tl_group_backward and tl_group_fold",
                            what_text[w - SUMS]);
    block *b = malloc(sizeof *b + bytes);
    if (b == NULL)
        return tl_tape_fail(tl_nowhere(g->t), TL_ENOMEM, "tl_group: no memory for %zu bytes",
                            bytes);
    b->h = (head){w, n, g->step, g->round, g->part.first + g->part.n, g->part.of, (int64_t)bytes};
    if (bytes > 0)
        memcpy(b->text, text, bytes);
    b->next = g->sent;
    g->sent = b;
    TL_TRY(tl_group_send_bytes(g, &b->h, sizeof b->h));
    return tl_group_send_bytes(g, b->text, bytes);
}

void tl_group_forget(tl_group *g)
{
    for (block *b; (b = g->sent) != NULL; free(b))
        g->sent = b->next;
}

tl_status tl_group_settle(tl_group *g)
{
    tl_err e = {.status = TL_OK};
    TL_TRY(tl_group_check(g, g->link.settle(g->link.ctx, NULL, &e), &e));
    tl_group_forget(g);
    return TL_OK;
}

/* The next message, whose text is g->text. One that some rank has failed is the tape's error. */
static tl_status receive(tl_group *g, head *h)
{
    TL_TRY(tl_group_receive_bytes(g, h, sizeof *h));
    if (h->what < SUMS || h->what > FAILED || h->bytes < 0 || h->bytes > MOST_TEXT || h->n < 0)
        return tl_tape_fail(tl_nowhere(g->t), TL_EFORMAT,
                            "tl_group: rank %d sends what rank %d does not understand (%08x): "
                            "another version, or byte order",
                            g->from, g->link.rank, (unsigned)h->what);
    if ((size_t)h->bytes >= g->room) {
        char *grown = realloc(g->text, (size_t)h->bytes + 1);
        if (grown == NULL)
            return tl_tape_fail(tl_nowhere(g->t), TL_ENOMEM,
                                "tl_group: no memory for %" PRId64 " bytes", h->bytes);
        g->text = grown;
        g->room = (size_t)h->bytes + 1;
    }
    TL_TRY(tl_group_receive_bytes(g, g->text, (size_t)h->bytes));
    g->text[h->bytes] = '\0';
    if (h->what == FAILED) {
        g->told = true;
        if (next_of(g, g->link.rank) != h->n)
            tl_group_send(g, FAILED, h->n, g->text, (size_t)h->bytes);
        return tl_tape_fail(tl_nowhere(g->t), TL_EIO, "tl_group: rank %d has failed: %.400s", h->n,
                            g->text);
    }
    if (h->step == g->step && h->round == g->round)
        return TL_OK;
    return tl_tape_fail(tl_nowhere(g->t), TL_EUSAGE,
                        "tl_group: rank %d is in micro-batch %" PRId64 " of step %" PRId64
                        ", rank %d in micro-batch %" PRId64 " of step %" PRId64,
                        g->from, h->round + 1, h->step + 1, g->link.rank, g->round + 1,
                        g->step + 1);
}

static tl_status unexpected(tl_group *g, const head *h, what w)
{
    return tl_tape_fail(tl_nowhere(g->t), TL_EUSAGE,
                        "tl_group: rank %d sends %s, where rank %d expects %s: they make different "
                        "calls",
                        g->from, what_text[h->what - SUMS], g->link.rank, what_text[w - SUMS]);
}

tl_status tl_group_expect(tl_group *g, head *h, what w)
{
    TL_TRY(receive(g, h));
    return h->what == w ? TL_OK : unexpected(g, h, w);
}

tl_status tl_group_expect_sums(tl_group *g, head *h, what w)
{
    TL_TRY(receive(g, h));
    return h->what == w || h->what == w + 1 ? TL_OK : unexpected(g, h, w);
}

tl_status tl_group_ends(tl_group *g)
{
    const tl_status s = tl_error_status(g->t);
    if (s != TL_OK && !g->told && g->link.size > 1) {
        g->told = true;
        const char *why = tl_error(g->t);
        tl_group_send(g, FAILED, g->link.rank, why, strlen(why));
    }
    return s;
}
