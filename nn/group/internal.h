/* internal.h: a group, and the messages of its ring. Private to nn/group/.
 *
 * Messages go from each rank to the next, and from the last to rank 0. A message is a head, then a
 * text of head.bytes bytes, and for some kinds the numbers that the text describes. */
#ifndef TL_NN_GROUP_INTERNAL_H
#define TL_NN_GROUP_INTERNAL_H

#include "autograd/author.h"
#include "nn/group/group.h"

enum { TOTALS = 8, TL_GROUP_PIECE = 1 << 20, TL_GROUP_BUFFERS = 4 };
/* What a message brings. A kind that comes in any number is followed by its end, the next value.
 * The low byte reveals a machine of another byte order. */
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
    int32_t n;           /* how many accumulators or gradients; which total; the rank that failed */
    int64_t step, round; /* of the sender */
    int64_t until, of;   /* where the sender's samples end, and of how many */
    int64_t bytes;       /* of the text */
    uint64_t program;    /* that ranks up to the sender run, in this step; 0: none has run one */
} head;

struct tl_group {
    tl_tape *t;
    tl_link link;
    int64_t step, round; /* steps shared; micro-batches of this one that have been folded */
    tl_group_cost cost;

    /* Messages. */
    int to, from;       /* the next rank and the one before; others only while gradients are cut */
    struct block *sent; /* what the link may still be reading */
    char *text;         /* of the message that came last */
    size_t room;        /* bytes of text */
    char why[TL_MESSAGE_MAX];       /* the first failure: nothing goes round any more; "": none */
    bool told;                      /* the other ranks know, or will */
    char *buffer[TL_GROUP_BUFFERS]; /* for parts of sums that do not lie together */
    unsigned next_buffer;

    /* The micro-batch. */
    tl_group_part part;
    bool begun;           /* it has begun, and has not been folded */
    bool shared;          /* the step before it, whose gradients, of all ranks, are still there */
    bool backward;        /* its tl_group_backward is under way */
    tl_tensor y;          /* of the last tl_backward */
    bool folding;         /* its fold has begun */
    bool more;            /* the rank before has not sent all of its sums yet */
    bool announced;       /* the head and text of sums have come (next, text), not the numbers */
    head next;            /* the last message of the rank before */
    uint64_t accumulated; /* tl_accumulated when it began, or when gradients were shared */
    uint64_t program;     /* tl_programs of this rank, or if it has none, of those before it */

    /* Parameters whose sums this rank sends on. */
    struct param *param;
    int n_params, room_params, last_param;
    int last_found; /* where the accumulators of the last one begin on the tape */
    int64_t most;   /* elements in a part of a parameter's sums */
    int next_part;  /* of the parameter whose sums are coming; 0: another parameter comes next */
    bool gathers;   /* its parts are gathered: gradients here cannot be added in those parts */
    int *axis;      /* along which the parts of its sums are cut, one each */
    int n_axes;

    /* Totals of losses. */
    tl_tensor total[TOTALS];
    bool added[TOTALS]; /* to it, in this micro-batch */
    int n_totals;

    /* An optimizer cut over the ranks. */
    bool sharded;    /* there is one */
    tl_opt *opt;     /* the only one to have its gradients (tl_group_cut); held */
    tl_opt *stepped; /* the last one that made a step, if it has state; held */
};

static inline bool is_last(const tl_group *g) { return g->link.rank == g->link.size - 1; }
static inline int next_of(const tl_group *g, int rank) { return (rank + 1) % g->link.size; }
static inline int rank_before(const tl_group *g)
{
    return (g->link.rank + g->link.size - 1) % g->link.size;
}
/* Whether this rank hands on what goes round from the last rank to all others. */
static inline bool hands_on(const tl_group *g)
{
    return next_of(g, g->link.rank) != g->link.size - 1;
}

static inline size_t bytes_of(const tl_array *a)
{
    return (size_t)tl_array_count(a) * tl_dtype_size(a->dtype);
}

/* ---- messages.c ---- */

/* Records a failure on the group's tape; returns s. */
tl_status tl_group_fail(tl_group *g, tl_status s, const char *fmt, ...) TL_PRINTF(3, 4);
/* malloc; a failure is the tape's error. */
void *tl_group_alloc(tl_group *g, size_t bytes);
/* How a call of the group begins: it fails if the tape has failed, or the group ever has. And how
 * it ends: it tells the other ranks of a failure. */
tl_status tl_group_begins(tl_group *g);
tl_status tl_group_ends(tl_group *g);
/* Notes the first failure of the group. */
void tl_group_over(tl_group *g, const char *why);

/* Sends head and text to g->to; n: as in the head. */
tl_status tl_group_send(tl_group *g, what w, int n, const void *text, size_t bytes);
/* Receives the next message of g->from, which must be of that kind. Its text is g->text. */
tl_status tl_group_expect(tl_group *g, head *h, what w);
/* The same, or the end of that kind. */
tl_status tl_group_expect_some(tl_group *g, head *h, what w);
/* A message whose text is a number of 8 bytes. */
tl_status tl_group_receive_number(tl_group *g, what w, int *n, void *number);
/* The last rank's number, and n, go round to all. */
tl_status tl_group_round(tl_group *g, what w, int *n, void *number);

/* The numbers that follow a text. They go in pieces, so that a rank that hands them on need not
 * wait for the last one. on: each is handed on as soon as it has come. */
tl_status tl_group_send_bytes(tl_group *g, const void *bytes, size_t n);
tl_status tl_group_receive_bytes(tl_group *g, void *bytes, size_t n);
tl_status tl_group_send_pieces(tl_group *g, const void *bytes, size_t n);
tl_status tl_group_receive_pieces(tl_group *g, void *bytes, size_t n, bool on);
/* Waits until what was sent from that address has gone; NULL: all that was sent. */
tl_status tl_group_settle(tl_group *g, const void *bytes);
/* Frees what was sent, without waiting for it. */
void tl_group_forget(tl_group *g);

/* ---- sums.c ---- */

/* Part i of `of` of a parameter's sums. came, end: the text of the message that brought it, which
 * says along which axes it is cut; NULL: this rank chooses them. */
typedef struct {
    int i, of;
    const char *came, *end;
} tl_group_tile;
/* Sends a part that has been summed here to the next rank, unless this rank is the last. */
tl_status tl_group_hand_on(tl_group *g, const char *name, tl_group_tile part);
/* Receives the numbers that a message of sums announces into the accumulators of this tape. on:
 * also hands them on. *alike: what waits here can be added in the same parts. */
tl_status tl_group_receive_sums(tl_group *g, const head *h, bool on, tl_group_tile *part,
                                bool *alike);

/* Sends all that the last rank has summed, and then the end of that kind. */
tl_status tl_group_send_all(tl_group *g, what w);
/* Receives the last rank's sums, and hands them on. */
tl_status tl_group_receive_all(tl_group *g);

/* ---- agree.c ---- */

/* Ranks are a split of the batch: refuses a backward from y that would give other bits under
 * another split. Not to be called during a backward: it is a walk. */
tl_status tl_group_promise(tl_group *g, tl_at at, tl_tensor y);
/* Refuses micro-batches whose parts do not meet: this rank's samples begin where those of the rank
 * before end; the first and the last rank have the ends. */
tl_status tl_group_parts_meet(tl_group *g, const head *h);
/* Refuses ranks of different programs, and a rank that has samples and runs none where others do. A
 * rank that has run none takes that of the rank before. */
tl_status tl_group_programs_meet(tl_group *g, const head *h);
/* The settings of the optimizer that is cut or has made the last step, as a list of keys and values
 * (each with its NUL), to be freed; *bytes 0: there is none. NULL without memory. */
char *tl_group_settings(tl_group *g, size_t *bytes);
/* The first difference from the list of rank `whose`, in words; "" if there is none. */
void tl_group_compare(const tl_group *g, const char *mine, size_t n, int whose, const char *its,
                      size_t bytes, char out[TL_MESSAGE_MAX]);

/* ---- shard.c ---- */

/* Whether gradients go only to the rank that updates the parameter. */
bool tl_group_is_cut(tl_group *g);
tl_status tl_group_share_cut(tl_group *g);
/* Stops cutting gradients, and drops those that are cut apart. */
void tl_group_uncut(tl_group *g);
/* While gradients are cut, refuses an update other than that of the optimizer. */
void tl_group_check_update(tl_group *g);
/* Notes which optimizer made the update. */
void tl_group_updated(tl_group *g, tl_model *m);
/* Called when gradients have been consumed, or dropped: each rank may have all of the next ones. */
void tl_group_cleared(tl_group *g);

/* ---- totals.c ---- */

/* Every rank gets the totals of the last. */
tl_status tl_group_share_totals(tl_group *g);
void tl_group_unwatch_totals(tl_group *g);

#endif
