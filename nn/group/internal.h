/* internal.h: a group, and the messages of its ring. A message is a head, then text, then what the
 * head counts. */
#ifndef TL_NN_GROUP_INTERNAL_H
#define TL_NN_GROUP_INTERNAL_H

#include "autograd/author.h"
#include "nn/group/group.h"

enum { TOTALS = 8, TL_GROUP_PIECE = 1 << 20, TL_GROUP_BUFFERS = 4 };
/* The low byte tells a machine of another byte order. */
typedef enum {
    SUMS = 0x7a110101,
    END,
    GRADIENT,
    SHARED,
    WEIGHTS,
    WEIGHTED,
    STATE,
    STATED,
    TOTAL,
    COUNT,
    NOTES,
    SQUARES,
    FAILED
} what;

typedef struct {
    uint32_t what;
    int32_t n; /* accumulators; which total; gradients; rank that failed */
    int64_t step, round;
    int64_t until, of; /* the sender's samples end there, of so many */
    int64_t bytes;     /* of text */
} head;

struct tl_group {
    tl_tape *t;
    tl_link link;
    tl_tensor total[TOTALS];
    bool added[TOTALS]; /* to it, in this micro-batch */
    int n_totals;
    tl_group_part part;
    bool begun;           /* a micro-batch, which no fold has ended */
    uint64_t accumulated; /* when the micro-batch began, or gradients were shared */
    bool sharded;         /* the optimizer is one of parts */
    tl_opt *opt;          /* which is to have its gradients alone; held */
    bool away;            /* those of others have not come; until they are consumed */
    int to, from;         /* next and before, but for gradients that go straight to a rank */
    bool told, over;      /* my failure; the step, by tl_group_share */
    int64_t step, round;  /* steps shared; folds of this one */
    int64_t most;         /* elements of a part */
    int within;           /* which part of a parameter's sums comes next; 0: another's */
    bool gathers;         /* parts that come, as what waits here is added to the whole */
    char *text_of_first;  /* of a parameter's parts; axes: where it says those of its sums */
    const char *axes, *axes_end;
    char *buffer[TL_GROUP_BUFFERS];
    unsigned next_buffer;
    int last_found;  /* where the accumulators of the parameter before were */
    struct own *own; /* parameters whose sums may go on */
    int n_own, own_room, last_own;
    bool folding, comes; /* the fold has begun; the rank before has not sent all yet */
    bool held, backward; /* sums have been announced (next, text), but wait; it is under way */
    head next;
    struct block *sent;
    char *text; /* of the message that came last */
    size_t room;
    tl_group_cost cost;
};

static inline bool is_last(const tl_group *g) { return g->link.rank == g->link.size - 1; }
static inline int next_of(const tl_group *g, int rank) { return (rank + 1) % g->link.size; }
static inline int rank_before(const tl_group *g)
{
    return (g->link.rank + g->link.size - 1) % g->link.size;
}

/* Head and text, to g->to; n: as there. */
tl_status tl_group_send(tl_group *g, what w, int n, const void *text, size_t bytes);
/* The next message of g->from, whose text is g->text, if it is of that kind. */
tl_status tl_group_expect(tl_group *g, head *h, what w);
/* A parameter's sums (w), or the end of them. */
tl_status tl_group_expect_sums(tl_group *g, head *h, what w);
/* Something has come. */
bool tl_group_comes(tl_group *g);
/* What the head counts; more in cost.sent. */
tl_status tl_group_send_bytes(tl_group *g, const void *bytes, size_t n);
tl_status tl_group_receive_bytes(tl_group *g, void *bytes, size_t n);
/* What the link has said of itself, to the tape. */
tl_status tl_group_check(tl_group *g, tl_status s, const tl_err *e);
/* What was sent may change; forgotten: it is not waited for. */
tl_status tl_group_settle(tl_group *g);
void tl_group_forget(tl_group *g);

/* What is sent goes in pieces: a rank that hands it on need not wait for the last one. Received,
 * it is handed on at once (on). */
tl_status tl_group_send_pieces(tl_group *g, const void *bytes, size_t n);
tl_status tl_group_receive_pieces(tl_group *g, void *bytes, size_t n, bool on);

/* sums.c: part i of `of` of a parameter's sums. Of those that were received a message's text
 * [came, end) says the axes, which hold when they are handed on; NULL: they are chosen here. */
typedef struct {
    int i, of;
    const char *came, *end;
} tl_group_tile;
/* What this tape has of a parameter; *n: how many sums. */
tl_status tl_group_send_sums(tl_group *g, what w, const char *name, int *n);
/* A part has been summed here; the next rank, if there is one in this round, goes on. */
tl_status tl_group_hand_on(tl_group *g, const char *name, tl_group_tile part);
/* The accumulators that a message describes take what comes; on: and hand it on. alike: what waits
 * here can be added in those parts. */
tl_status tl_group_receive_sums(tl_group *g, const head *h, bool on, tl_group_tile *part,
                                bool *alike);

/* shard.c: an optimizer's state of a parameter. */
bool tl_group_is_state(tl_model *m, const tl_named *x);
/* Gradients go only to the rank that updates the parameter. */
bool tl_group_is_cut(tl_group *g);
tl_status tl_group_share_cut(tl_group *g);
void tl_group_uncut(tl_group *g); /* the end of it */

/* totals.c: the k-th total. */
tl_status tl_group_send_total(tl_group *g, int k, const double *x);
tl_status tl_group_receive_total(tl_group *g, int k, double *x);
/* From tl_group_new to the end: whether a backward puts nothing off. */
void tl_group_unwatch(tl_group *g);
/* How a call ends: others hear of a failure, once. */
tl_status tl_group_ends(tl_group *g);

#endif
