/* group.h: training over several processes, with the bits of one (README.md here). Public, in
 * libtally_group.a, beside libtally, which knows nothing of it.
 *
 *     tl_link link;
 *     tl_link_mpi(&link, 0, &err);
 *     tl_group *g = tl_group_new(t, link);
 *     tl_group_total(g, total);                  if the loss is given a .total
 *     for each step:
 *         for each micro-batch of `rows` samples:
 *             tl_group_part p = tl_group_take(g, rows);
 *             loss = ...                         of samples p.first .. p.first + p.n - 1
 *             tl_group_backward(g, t, loss);
 *             tl_group_fold(g);
 *             tl_tape_reset(t);
 *         tl_group_share(g);
 *         tl_step(opt, t);
 *
 * All ranks make the same calls in the same order, also on no samples. g may be NULL everywhere: a
 * group of one. Errors go to the tape; a rank that has failed tells the others, whose tapes fail
 * with its message, at their next call of the group. */
#ifndef TL_NN_GROUP_H
#define TL_NN_GROUP_H

#include "autograd/tape.h"
#include "nn/loader.h"
#include "nn/nn.h"
TL_BEGIN

/* How bytes go from rank to rank: most to the next, from the last to rank 0, which makes a ring; to
 * any other from the last alone. From one to another they come in the order in which they were
 * sent. Errors (TL_EIO) go to e. */
typedef struct {
    void *ctx;
    int rank, size;
    /* Begins to send n > 0 bytes, which must not change before they are settled. */
    tl_status (*send)(void *ctx, int to, const void *bytes, size_t n, tl_err *e);
    /* Waits for n bytes, which were sent as n. */
    tl_status (*receive)(void *ctx, int from, void *bytes, size_t n, tl_err *e);
    /* Waits until what was sent from that address has gone; NULL: from any. */
    tl_status (*settle)(void *ctx, const void *bytes, tl_err *e);
    /* Whether the rank before has sent something; NULL: not known before it is waited for. */
    bool (*comes)(void *ctx);
    void (*end)(void *ctx, bool failed);
} tl_link;

/* The ring of a duplicate of MPI_COMM_WORLD; MPI is begun if it has not been, and then ended with
 * the link. In a library that was made without TL_MPI=1 a ring of one process; TL_EUSAGE if that
 * was started as one of several, or with TL_MPI=1 by the mpirun of another MPI. A rank that neither
 * sends nor takes anything for `timeout` seconds (0: TL_MPI_TIMEOUT in the environment, else 600),
 * while another waits for it, is an error there. */
tl_status tl_link_mpi(tl_link *out, double timeout, tl_err *e);

typedef struct tl_group tl_group;
/* The group of a tape over a model, which it borrows; it owns the link. NULL without memory or a
 * model, or if the tape has one: of several processes an error of the tape, and the link stays the
 * caller's. */
tl_group *tl_group_new(tl_tape *t, tl_link link);
/* Before the tape's end, by all ranks; one that hangs or has failed is the tape's error. */
void tl_group_free(tl_group *g);
int tl_group_rank(const tl_group *g); /* which process this is, from 0 */
int tl_group_size(const tl_group *g); /* how many there are */

/* All ranks are told the first thing in which one of them differs from rank 0, and fail (TL_EUSAGE)
 * with its number: number of ranks, seed, the n notes, and name, dtype, shape and contents
 * of each named tensor of the model. Once parameters are made, or whenever in doubt. */
tl_status tl_group_agree(tl_group *g, const tl_note *notes, int n);
/* The sum over all ranks, such as the count that a loss is divided by; 0 on an error. */
int64_t tl_group_count(tl_group *g, int64_t n);
/* total, 0-d f64 of the model, is a sum over all samples: what the forward pass of a micro-batch
 * adds to in place (.total of a loss, tl_sum_to) is what the rank before has left. At most 8; each
 * is added to once in a micro-batch, by all ranks or by none: TL_EUSAGE if twice. */
tl_status tl_group_total(tl_group *g, tl_tensor total);

/* Samples first .. first + n - 1 of a micro-batch of `of`. */
typedef struct {
    int64_t first, n, of;
} tl_group_part;
/* Begins a micro-batch of `rows` samples, and says which of them are this rank's: as many as the
 * others', or one less. */
tl_group_part tl_group_take(tl_group *g, int64_t rows);
/* Or with a part that the caller chose, which goes on where that of the rank before ends. */
tl_status tl_group_begin(tl_group *g, tl_group_part part);
/* tl_loader_next, in a micro-batch that has begun for this rank's part of it, whatever `most` is:
 * the loaders of all ranks pass all of its samples, and their end may cut it. May then return 0
 * without an error: no samples, in tensors of none. */
int64_t tl_group_next(tl_group *g, tl_tape *t, tl_loader *l, int64_t most, tl_tensor *in);

/* The micro-batch's tl_backward, of several the last: what it brings to parameters is put off for
 * tl_group_fold, or, where the rank before has sent its sums by then, goes on from them while
 * backward goes on. Traced, that is so in each run of the graph. In a group of one it is
 * tl_backward. Nothing else of the group may be called between it, or that run, and
 * tl_group_fold. TL_EUSAGE: tl_explain_invariance names something in y, such as TL_MEAN without the
 * whole batch's .count. */
#define tl_group_backward(g, t, y) tl_group_backward_at(TL_AT(t), g, y)
tl_status tl_group_backward_at(tl_at at, tl_group *g, tl_tensor y);
/* After that, or tl_backward (.put_off): each parameter's sums go on from what the rank before has
 * summed (tl_accumulate); those of the first from what the last had in the micro-batch before.
 * TL_EUSAGE if parts do not meet, or a step's first backward was not put off. */
tl_status tl_group_fold(tl_group *g);
/* Sums of larger parameters go from rank to rank in parts of about so many elements (4 Mi), so that
 * all ranks fold at once; those of an op whose rule for the batch says nothing of its parameter, as
 * a whole. TL_EDOMAIN below 1. */
tl_status tl_group_parts(tl_group *g, int64_t elements);
/* Before tl_step, after the last fold: every rank gets what was summed (but tl_group_cut), and the
 * totals. */
tl_status tl_group_share(tl_group *g);

/* An optimizer's state cut over the ranks, by parameters: tl_adamw_new(m, ..., .part =
 * tl_group_rank(g), .parts = tl_group_shard(g)), which is the number of ranks. From then on ranks
 * are not compared by that state (tl_group_agree). */
int tl_group_shard(tl_group *g);
/* And gradients go from the last rank to that alone which updates the parameter, from the next
 * tl_group_share on. Until they are consumed, or dropped (tl_grad_clear), only this optimizer can
 * step, called and not compiled, and no backward may come before it; the norm to clip by is still
 * that of all, but tl_grad of what others update is the zero handle, except in the last rank.
 * Called by all ranks; the last call counts. TL_EUSAGE if it is not cut as above. */
tl_status tl_group_cut(tl_group *g, tl_opt *opt);
/* After each tl_step of an optimizer so cut: what a rank has updated goes to all. */
tl_status tl_group_weights(tl_group *g);
/* tl_checkpoint_save by rank 0, of state that all ranks have, cut or not; it then has room for all
 * of that. Path and notes are rank 0's. tl_checkpoint_load takes the file, for any number of
 * ranks. */
tl_status tl_group_save(tl_group *g, tl_model *m, tl_opt *opt, const char *path,
                        const tl_note *notes, int n);

typedef struct {
    int64_t sent;  /* bytes since the step before, or in all that step if none has begun since */
    int64_t sums;  /* bytes of accumulators in the last fold */
    int64_t early; /* of these, folded before its backward was over */
} tl_group_cost;
tl_group_cost tl_group_costs(const tl_group *g); /* of this rank */
TL_END
#endif
