/* group.h: training over several processes, with the bits of one (README.md here). Public. It is in
 * libtally_group.a, beside libtally, which knows nothing of it.
 *
 *     tl_link link;
 *     tl_link_mpi(&link, 0, &err);               on an error no group takes the link
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
 * All ranks make the same calls in the same order, even a rank that has no samples. g may be NULL
 * everywhere: a group of one. Errors go to the tape. A rank that has failed tells the others: their
 * tapes fail with its message at their next call of the group. That ends the group: whoever clears
 * the error gets it again (TL_EIO). */
#ifndef TL_NN_GROUP_H
#define TL_NN_GROUP_H

#include "autograd/tape.h"
#include "nn/loader.h"
#include "nn/nn.h"
TL_BEGIN

/* How bytes go from rank to rank. Most go round a ring: to the next rank, and from the last to rank
 * 0. Only the last rank sends to any other. Between two ranks, bytes come in the order in which
 * they were sent. Errors (TL_EIO) go to e. */
typedef struct {
    void *ctx;
    int rank, size;
    /* Begins to send n > 0 bytes, which must not change until they are settled. */
    tl_status (*send)(void *ctx, int to, const void *bytes, size_t n, tl_err *e);
    /* Waits for n bytes, which were sent by one call. */
    tl_status (*receive)(void *ctx, int from, void *bytes, size_t n, tl_err *e);
    /* Waits until what was sent from that address has gone; NULL: until all has. */
    tl_status (*settle)(void *ctx, const void *bytes, tl_err *e);
    /* Whether the rank before has sent something that has not been received. May be NULL: then only
     * waiting tells. */
    bool (*comes)(void *ctx);
    void (*end)(void *ctx, bool failed);
} tl_link;

/* The ring of a duplicate of MPI_COMM_WORLD. MPI is begun if it has not been; then it ends with the
 * last link, and there can be no other (TL_EUSAGE). A library that was made without TL_MPI=1 has a
 * ring of one process. TL_EUSAGE if that process was started as one of several or, with TL_MPI=1,
 * by the mpirun of another MPI. A rank that waits for another fails if that one neither sends nor
 * takes anything for `timeout` seconds (0: TL_MPI_TIMEOUT in the environment, else 600; TL_EDOMAIN:
 * negative or NaN). */
tl_status tl_link_mpi(tl_link *out, double timeout, tl_err *e);

typedef struct tl_group tl_group;
/* The group of a tape over a model. It borrows the tape and owns the link. NULL without memory,
 * without a model, if the tape has a group already, or if the link is invalid (no rank of its size,
 * or a function missing); then the link stays the caller's, and the tape gets an error, unless the
 * link is that of a process alone. */
tl_group *tl_group_new(tl_tape *t, tl_link link);
/* Called by all ranks, before the tape ends. A rank that hangs or has failed is the tape's error.
 */
void tl_group_free(tl_group *g);
int tl_group_rank(const tl_group *g); /* which process this is, from 0 */
int tl_group_size(const tl_group *g); /* how many there are */

/* Compares each rank with rank 0: number of ranks, seed, the n notes, and name, dtype, shape and
 * contents of each named tensor of the model; and the settings of the optimizer given to
 * tl_group_cut. If one differs, all ranks fail (TL_EUSAGE) with its number and the first
 * difference. Call it once parameters are made, and whenever in doubt. */
tl_status tl_group_agree(tl_group *g, const tl_note *notes, int n);
/* The sum over all ranks, such as the count that a loss is divided by; 0 on an error. */
int64_t tl_group_count(tl_group *g, int64_t n);
/* total, 0-d f64 of the model, is a sum over the samples of all ranks: the forward pass of a
 * micro-batch adds in place (.total of a loss, tl_sum_to) to what the rank before has left. At most
 * 8. Each is added to at most once in a micro-batch (else TL_EUSAGE), by all ranks or by none. */
tl_status tl_group_total(tl_group *g, tl_tensor total);

/* Samples first .. first + n - 1 of a micro-batch of `of`. */
typedef struct {
    int64_t first, n, of;
} tl_group_part;
/* Begins a micro-batch of `rows` samples, and says which of them are this rank's: as many as any
 * other rank has, or one less. */
tl_group_part tl_group_take(tl_group *g, int64_t rows);
/* The same with a part that the caller chose. It begins where that of the rank before ends. */
tl_status tl_group_begin(tl_group *g, tl_group_part part);
/* tl_loader_next. In a micro-batch that has begun it gives this rank's part, whatever `most` is:
 * the loaders of all ranks pass all samples of the micro-batch, and the end of the data may cut it.
 * It may then return 0 without an error: the part has no samples, and neither have the tensors. */
int64_t tl_group_next(tl_group *g, tl_tape *t, tl_loader *l, int64_t most, tl_tensor *in);

/* The micro-batch's tl_backward, or the last of several. The gradients that it brings to parameters
 * are added to the sums of the rank before: during backward if these have come, else in
 * tl_group_fold. If it is traced, each run of the graph does this. In a group of one it is
 * tl_backward, which also adds what earlier ones have put off; a trace that has such is refused.
 * Nothing else of the group may be called between it, or that run, and tl_group_fold. TL_EUSAGE,
 * here and in a tl_backward that is called before it (not traced), if tl_explain_invariance names
 * something in y, such as TL_MEAN without the whole batch's .count, or if y is of parameters alone,
 * which each rank would add: all ranks call tl_backward for it after tl_group_share or, where
 * gradients are cut, the last rank alone, put off, before tl_group_fold. */
#define tl_group_backward(g, t, y) tl_group_backward_at(TL_AT(t), g, y)
tl_status tl_group_backward_at(tl_at at, tl_group *g, tl_tensor y);
/* After tl_group_backward, or tl_backward (.put_off): each parameter's sums go on from what the
 * rank before has summed (tl_accumulate); rank 0's from what the last rank had in the micro-batch
 * before. TL_EUSAGE if a backward was not put off, parts do not meet, programs differ, or a rank
 * with samples has called no backward although another has. */
tl_status tl_group_fold(tl_group *g);
/* Sums of larger parameters go from rank to rank in parts of about that many elements (4 Mi by
 * default), so that all ranks fold at once. If the op's rule for the batch says nothing about its
 * parameter, they go as a whole. TL_EDOMAIN below 1. */
tl_status tl_group_parts(tl_group *g, int64_t elements);
/* After the last fold, before tl_step: every rank gets what was summed (unless tl_group_cut says
 * otherwise) and the totals. In a group of several an update of gradients that are not shared is
 * TL_EUSAGE. */
tl_status tl_group_share(tl_group *g);

/* Cuts an optimizer's state over the ranks, by parameters: tl_adamw_new(m, ..., .part =
 * tl_group_rank(g), .parts = tl_group_shard(g)). Returns the number of ranks. From then on
 * tl_group_agree does not compare that state. */
int tl_group_shard(tl_group *g);
/* Cuts gradients, too: from the next tl_group_share on, each goes only from the last rank to the
 * one that updates the parameter. Until gradients are consumed, or dropped (tl_grad_clear), only
 * this optimizer can step, called and not compiled, and no backward may come before that. The norm
 * to clip by is still that of all gradients, but tl_grad of what others update is the zero handle,
 * except in the last rank. Called by all ranks; the last call counts. TL_EUSAGE if opt is not cut
 * as above. */
tl_status tl_group_cut(tl_group *g, tl_opt *opt);
/* After each tl_step of an optimizer cut by tl_group_shard: what each rank has updated goes to all.
 * TL_EUSAGE if settings or steps differ: those of the optimizer that tl_group_cut was given, or
 * else of the last one that stepped and has state. */
tl_status tl_group_weights(tl_group *g);
/* tl_checkpoint_save by rank 0, of the state of all ranks, cut or not. Rank 0 keeps room for all of
 * it from then on. Path and notes are rank 0's. tl_checkpoint_load takes the file, for any number
 * of ranks. TL_EUSAGE: opt's state is cut, and a rank has that of another optimizer, too. With no
 * opt it is the state of all optimizers. */
tl_status tl_group_save(tl_group *g, tl_model *m, tl_opt *opt, const char *path,
                        const tl_note *notes, int n);

typedef struct {
    int64_t sent;  /* bytes in this step, or in the last one until the next begins */
    int64_t sums;  /* bytes of accumulators in the last fold */
    int64_t early; /* bytes of these that were folded before the backward was over */
} tl_group_cost;
tl_group_cost tl_group_costs(const tl_group *g); /* of this rank */
TL_END
#endif
