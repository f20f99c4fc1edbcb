/* messages.c: what goes round the ring - heads and texts, which are kept until the link has taken
 * them, and the numbers that follow; and how a failure goes round. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
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

/* A head and a text that have been sent. */
typedef struct block {
    struct block *next;
    head h;
    char text[];
} block;

int tl_group_rank(const tl_group *g) { return g == NULL ? 0 : g->link.rank; }
int tl_group_size(const tl_group *g) { return g == NULL ? 1 : g->link.size; }
tl_group_cost tl_group_costs(const tl_group *g) { return g == NULL ? (tl_group_cost){0} : g->cost; }

tl_status tl_group_fail(tl_group *g, tl_status s, const char *fmt, ...)
{
    char message[TL_MESSAGE_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    if (!tl_failed(g->t))
        tl_group_over(g, message);
    return tl_tape_fail(tl_nowhere(g->t), s, "%s", message);
}

void *tl_group_alloc(tl_group *g, size_t bytes)
{
    void *p = malloc(bytes + 1);
    if (p == NULL)
        tl_group_fail(g, TL_ENOMEM, "tl_group: no memory for %zu bytes", bytes);
    return p;
}

/* ---- bytes ---- */

/* Passes an error of the link on to the tape. */
static tl_status check(tl_group *g, tl_status s, const tl_err *e)
{
    return s == TL_OK ? TL_OK : tl_group_fail(g, s, "tl_group: %s", e->message);
}

tl_status tl_group_send_bytes(tl_group *g, const void *bytes, size_t n)
{
    tl_err e = {.status = TL_OK};
    g->cost.sent += (int64_t)n;
    return n == 0 ? TL_OK : check(g, g->link.send(g->link.ctx, g->to, bytes, n, &e), &e);
}

tl_status tl_group_receive_bytes(tl_group *g, void *bytes, size_t n)
{
    tl_err e = {.status = TL_OK};
    return n == 0 ? TL_OK : check(g, g->link.receive(g->link.ctx, g->from, bytes, n, &e), &e);
}

tl_status tl_group_send_pieces(tl_group *g, const void *bytes, size_t n)
{
    for (size_t at = 0; at < n; at += PIECE)
        TL_TRY(tl_group_send_bytes(g, (const char *)bytes + at, n - at < PIECE ? n - at : PIECE));
    return TL_OK;
}

tl_status tl_group_receive_pieces(tl_group *g, void *bytes, size_t n, bool on)
{
    for (size_t at = 0; at < n; at += PIECE) {
        char *piece = (char *)bytes + at;
        const size_t size = n - at < PIECE ? n - at : PIECE;
        TL_TRY(tl_group_settle(g, piece));
        TL_TRY(tl_group_receive_bytes(g, piece, size));
        TL_TRY(on ? tl_group_send_bytes(g, piece, size) : TL_OK);
    }
    return TL_OK;
}

void tl_group_forget(tl_group *g)
{
    for (block *b; (b = g->sent) != NULL; free(b))
        g->sent = b->next;
}

tl_status tl_group_settle(tl_group *g, const void *bytes)
{
    tl_err e = {.status = TL_OK};
    if (g->link.size > 1)
        TL_TRY(check(g, g->link.settle(g->link.ctx, bytes, &e), &e));
    if (bytes == NULL)
        tl_group_forget(g);
    return TL_OK;
}

/* ---- messages ---- */

tl_status tl_group_send(tl_group *g, what w, int n, const void *text, size_t bytes)
{
    if (g->folding && w != SUMS && w != END && w != FAILED)
        return tl_group_fail(g, TL_EUSAGE,
                             "tl_group: %s between tl_group_backward and tl_group_fold",
                             what_text[w - SUMS]);
    block *b = tl_group_alloc(g, sizeof *b + bytes);
    if (b == NULL)
        return TL_ENOMEM;
    b->h = (head){.what = w,
                  .n = n,
                  .step = g->step,
                  .round = g->round,
                  .until = g->part.first + g->part.n,
                  .of = g->part.of,
                  .bytes = (int64_t)bytes,
                  .program = g->program};
    if (bytes > 0)
        memcpy(b->text, text, bytes);
    b->next = g->sent;
    g->sent = b;
    TL_TRY(tl_group_send_bytes(g, &b->h, sizeof b->h));
    return tl_group_send_bytes(g, b->text, bytes);
}

/* Receives head and text of the next message, of whatever kind. A message that a rank has failed is
 * handed on, and is the tape's error. */
static tl_status receive(tl_group *g, head *h)
{
    TL_TRY(tl_group_receive_bytes(g, h, sizeof *h));
    if (h->what < SUMS || h->what > FAILED || h->bytes < 0 || h->bytes > MOST_TEXT || h->n < 0)
        return tl_group_fail(g, TL_EFORMAT,
                             "tl_group: rank %d sends what rank %d does not understand (%08x): "
                             "another version, or byte order",
                             g->from, g->link.rank, (unsigned)h->what);
    const size_t bytes = (size_t)h->bytes;
    if (bytes >= g->room) {
        free(g->text);
        g->text = tl_group_alloc(g, bytes);
        g->room = g->text == NULL ? 0 : bytes + 1;
        TL_TRY(g->text == NULL ? TL_ENOMEM : TL_OK);
    }
    TL_TRY(tl_group_receive_bytes(g, g->text, bytes));
    g->text[bytes] = '\0';
    if (h->what == FAILED) {
        if (next_of(g, g->link.rank) != h->n)
            tl_group_send(g, FAILED, h->n, g->text, bytes);
        char why[TL_MESSAGE_MAX];
        snprintf(why, sizeof why, "rank %d has failed: %.400s", h->n, g->text);
        g->told = true;
        tl_group_over(g, why);
        return tl_group_fail(g, TL_EIO, "tl_group: %s", why);
    }
    if (h->step == g->step && h->round == g->round)
        return TL_OK;
    return tl_group_fail(g, TL_EUSAGE,
                         "tl_group: rank %d is in micro-batch %" PRId64 " of step %" PRId64
                         ", rank %d in micro-batch %" PRId64 " of step %" PRId64,
                         g->from, h->round + 1, h->step + 1, g->link.rank, g->round + 1,
                         g->step + 1);
}

static tl_status expect(tl_group *g, head *h, what w, what or)
{
    TL_TRY(receive(g, h));
    if (h->what == w || h->what == or)
        return TL_OK;
    return tl_group_fail(g, TL_EUSAGE,
                         "tl_group: rank %d sends %s, where rank %d expects %s: they make "
                         "different calls",
                         g->from, what_text[h->what - SUMS], g->link.rank, what_text[w - SUMS]);
}

tl_status tl_group_expect(tl_group *g, head *h, what w) { return expect(g, h, w, w); }
tl_status tl_group_expect_some(tl_group *g, head *h, what w) { return expect(g, h, w, w + 1); }

tl_status tl_group_receive_number(tl_group *g, what w, int *n, void *number)
{
    head h;
    TL_TRY(tl_group_expect(g, &h, w));
    if (h.bytes != 8)
        return tl_group_fail(g, TL_EFORMAT, "tl_group: rank %d sends %s of %" PRId64 " bytes",
                             g->from, what_text[w - SUMS], h.bytes);
    memcpy(number, g->text, 8);
    *n = h.n;
    return TL_OK;
}

tl_status tl_group_round(tl_group *g, what w, int *n, void *number)
{
    TL_TRY(is_last(g) ? TL_OK : tl_group_receive_number(g, w, n, number));
    return hands_on(g) ? tl_group_send(g, w, *n, number, 8) : TL_OK;
}

void tl_group_over(tl_group *g, const char *why)
{
    if (*g->why == '\0')
        snprintf(g->why, sizeof g->why, "%s", why);
}

/* After a failure nothing goes on: what ranks have sent since cannot be told from new messages. */
tl_status tl_group_begins(tl_group *g)
{
    TL_TRY(tl_error_status(g->t));
    return *g->why == '\0' ? TL_OK
                           : tl_tape_fail(tl_nowhere(g->t), TL_EIO,
                                          "tl_group: it has ended with a failure: %.400s", g->why);
}

tl_status tl_group_ends(tl_group *g)
{
    const tl_status s = tl_error_status(g->t);
    if (s != TL_OK)
        tl_group_over(g, tl_error(g->t));
    if (*g->why != '\0' && !g->told && g->link.size > 1) {
        g->told = true;
        tl_group_send(g, FAILED, g->link.rank, g->why, strlen(g->why));
    }
    return s;
}
