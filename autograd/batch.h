/* batch.h: what the engine asks of autograd/batch/, the room that knows how values depend on
 * samples. */
#ifndef TL_AUTOGRAD_BATCH_H
#define TL_AUTOGRAD_BATCH_H

#include <string.h>

#include "autograd/internal.h"

/* ---- rules.c: how values depend on the batch ---- */

/* Sets how the results of a call depend on the batch, if some input does or weights enter a
 * TL_RANDOM op. in: room for how the inputs depend. */
void tl_batch_infer(tl_call *c, tl_value *const *value, tl_batch *in, tl_value *const *made);
/* Whether, by the op's rule, input i of n may hold the samples of n's result along that axis. */
bool tl_batch_could(tl_tape *t, const tl_node *n, int i, int axis);
/* Whether n draws by one number for all its samples, the same in each micro-batch. */
bool tl_draws_alike(const tl_tape *t, const tl_node *n);
/* Whether x may be written into dst, a tensor of the model. Under TL_STRICT it is an error if x is
 * computed from samples and dst does not hold them along that axis. */
tl_status tl_batch_assigns(tl_at at, tl_tensor dst, tl_tensor x);
/* Sets how x depends on the batch: axis is that of its samples, or TL_FREE or TL_MIXED. */
static inline void tl_batch_set(tl_value *x, int axis)
{
    x->batch = (tl_batch)axis;
    x->samples = axis < 0 ? -1 : x->a.dim[axis];
}
/* Makes x depend on the batch as y does. */
static inline void tl_batch_like(tl_value *x, const tl_value *y)
{
    x->batch = y->batch;
    x->part = y->part;
    x->samples = y->samples;
}
/* Whether all inputs that are present are made of parameters and constants alone. */
static inline bool tl_all_fixed(const tl_tape *t, const tl_tensor *in, int n)
{
    bool fixed = true;
    for (int k = 0; k < n && fixed; k++) {
        const tl_value *v = tl_peek(t, in[k]); /* NULL: none, or removed from the model */
        fixed = v != NULL ? v->fixed : tl_is_none(in[k]);
    }
    return fixed;
}
/* Leaf v now takes a gradient: neither it nor what was made of it is a constant any more. */
void tl_batch_unfix(tl_tape *t, tl_value *v);
/* Makes v, a leaf, a constant. */
static inline void tl_value_fix(tl_value *v)
{
    tl_batch_set(v, TL_FREE);
    v->fixed = true;
}

/* ---- accumulators.c: the gradients of leaves ---- */

/* The gradient record of a leaf: NULL if there is none yet. */
tl_leaf_grad *tl_leaf_grad_find(tl_tape *t, tl_tensor leaf);
/* The same, made on demand; NULL, with an error, when out of memory. */
tl_leaf_grad *tl_leaf_grad_get(tl_tape *t, tl_tensor leaf);
/* Removes the records of owner's leaves from `first` on; owner 0: all records. */
void tl_leaf_grads_drop(tl_tape *t, uint32_t owner, uint32_t first);
/* Makes the table by leaf anew after records have moved, or their leaves changed. */
void tl_leaf_grads_key(tl_tape *t);
/* The name in checkpoints, of parameters and derived values. */
const char *tl_leaf_grad_name(const tl_tape *t, const tl_leaf_grad *g);

/* The accumulator of a kind of use and a call: its index, or -1. get makes it on demand; -1, with
 * an error, when out of memory. */
int tl_acc_find(const tl_leaf_grad *g, int call, const char *kind);
int tl_acc_get(tl_tape *t, tl_leaf_grad *g, int call, const char *kind);
/* The accumulator that is added after `after` (-1: the first one); -1: no more. */
int tl_acc_next(const tl_leaf_grad *g, int after);
/* Opens accumulator k in that dtype: zero (its storage blank) unless it is open already. */
tl_status tl_acc_open(tl_tape *t, tl_leaf_grad *g, int k, tl_dtype dtype);
/* Accumulator k as a value of the tape; TL_NONE if it is not open. */
tl_tensor tl_acc_value(tl_tape *t, const tl_leaf_grad *g, int k);
/* The gradient: all accumulators added in order and rounded once. */
tl_tensor tl_leaf_grad_sum(tl_at at, const tl_leaf_grad *g, tl_dtype dtype);

/* Drops all gradients, without a note in a trace. */
void tl_grads_drop(tl_tape *t);
/* TL_EUSAGE if anything waits for tl_accumulate. */
tl_status tl_check_waiting(tl_at at, const char *who);

/* ---- uses.c, fold.c, waiting.c: gradients of leaves, added to their accumulators ---- */

/* The kind of accumulator that takes the gradient of node n's input k, a leaf or a view of one.
 * "matmul:1": that op continues the sum; "sum": the engine does, or the op in f64. Then the views
 * between the leaf and the use: "matmul:1+permute". */
const char *tl_use_kind(const tl_tape *t, const tl_node *n, int k, char buf[TL_ATTRS_TEXT]);

/* Adds part i of `of` of a fold. */
typedef tl_status tl_fold_run(tl_tape *t, tl_fold *f, int i, int of);
/* The uses of a leaf that one backward adds to one accumulator through the same view (or through
 * all views, if two of them overlap), numbered in canonical order. */
struct tl_fold {
    int leaf, acc;        /* the accumulator: t->grad[leaf].acc[acc] */
    const tl_value *x;    /* the input of the first use that was met */
    bool sought, meets;   /* in the newest of an accumulator: views were compared; two overlap */
    int n, visited;       /* uses; those whose nodes have been visited */
    struct tl_use *use;   /* the deferred ones (internal.h); NULL: none */
    struct tl_fold *next; /* of the same accumulator */
    struct tl_fold *met;  /* an older one with the same number_of (uses.c) */

    /* While it waits for tl_accumulate. A graph has folds of its own (graph/later.c). */
    tl_fold_run *run;
    int axis;              /* that of the leaf along which parts are cut; TL_WHOLE: none */
    int part, parts;       /* the next part, and how many there are */
    int64_t from, size;    /* elements of the part along the axis; size < 0: all of the leaf */
    struct tl_fold *later; /* the next that waits for the same leaf */
};

/* Gives each use of a leaf its fold, and its number there. */
tl_status tl_fold_deal(tl_walk *w);
/* Whether the vjp of n is to compute the gradient of input e now. *acc: the accumulator to which it
 * adds that itself, if it does. */
bool tl_fold_asks(tl_walk *w, const tl_node *n, const tl_edge *e, tl_tensor *acc);
/* Called after the vjp of n, for its input e. Adds dx, the result of the vjp if there is one, to
 * the accumulator, unless the vjp has done so itself (acc); or defers the use. */
tl_status tl_fold_deliver(tl_walk *w, const tl_node *n, const tl_edge *e, const tl_tensor *dy,
                          tl_tensor dx, tl_tensor acc);
/* Called after the visit of node n, order[i]: adds the folds it completes, or lets them wait. */
tl_status tl_fold_visited(tl_walk *w, uint32_t i, const tl_node *n);
/* The axis of x, a view of the leaf, that is that axis of the leaf and longer than 1; -1: none. */
int tl_axis_of_view(const tl_array *x, const tl_array *leaf, int axis);
/* In a trace: records all that waits, parameter by parameter. */
tl_status tl_fold_recorded(tl_tape *t);

/* The leaf of that name in checkpoints; TL_NONE, with an error, if there is none. Given a shape,
 * makes a derived value for it if need be. */
tl_tensor tl_grad_named(tl_tape *t, const char *name, tl_dtype dtype, const tl_shape *shape);

/* ---- prints.c: micro-batches of a step run the same program ---- */

/* Before a backward: checks that earlier micro-batches ran the same program (unless .ragged allows
 * others) and, under TL_STRICT, that the cotangent neither sums nor mixes samples and that no reset
 * was forgotten. */
tl_status tl_prints_check(tl_walk *w);
/* Before a step, and at a reset: checks that earlier micro-batches had no more backwards. */
tl_status tl_prints_step(tl_at at);
void tl_prints_end(tl_tape *t);
/* Called when gradients are dropped: micro-batches begin anew. */
void tl_prints_clear(tl_tape *t);
/* At a run of a graph: checks the prints that its trace has noted. */
tl_status tl_prints_run(tl_at at, const tl_prints *traced);
void tl_prints_free(tl_prints *p);

/* ---- lasting.c, derived.c, settle.c: derived values, made of parameters and constants alone ----
 */

/* Notes on the lasting tape how derived value x is made; returns its handle there. TL_NONE, with an
 * error, if that fails. */
tl_tensor tl_derived_leaf(tl_tape *t, tl_tensor x);
/* Its print: a number for the expression. */
static inline uint64_t tl_derived_print(tl_tape *t, tl_tensor x)
{
    return tl_is_none(tl_derived_leaf(t, x)) ? 0 : tl_peek(t, x)->print;
}
/* The print of a constant; the lasting tape has a copy of it from now on. */
uint64_t tl_derived_constant(tl_tape *t, const tl_array *a);

/* For a graph: the number on the lasting tape of the value with that print; -1: none. */
int64_t tl_derived_number(const tl_tape *t, uint64_t print);
/* The memory that keeps value `number`, laid out as a. The graph fills it unless *full. NULL, with
 * an error, when out of memory. */
void *tl_derived_room(tl_tape *t, uint32_t number, const tl_array *a, bool *full);
/* Releases all that memory. */
void tl_derived_forget(tl_tape *t);

/* The derived value of that name and shape, made now if no program has made it yet (shape NULL:
 * only looked up). TL_NONE if that is no such name, or on an error. */
tl_tensor tl_derived_named(tl_tape *t, const char *name, tl_dtype dtype, const tl_shape *shape);

/* At the end of a walk's check: marks the parameters below the derived values that it reaches as
 * reached, too. An error if they have changed while a gradient waits. */
tl_status tl_derived_reach(tl_tape *t);
/* Reports that error. */
tl_status tl_derived_waits(tl_tape *t, tl_tensor leaf);
/* Called after a run has left in the user's record `theirs` what its trace has in `mine`: notes to
 * which versions of the parameters it belongs. */
void tl_derived_left(tl_tape *t, tl_leaf_grad *theirs, tl_tape *trace, const tl_leaf_grad *mine);
/* Whether record i is of a derived value reached now, where earlier micro-batches reached another
 * one in that call or a later one: made alike, of other sizes or numbers. */
bool tl_derived_strays(tl_tape *t, int i, int call, char why[TL_MESSAGE_MAX]);
/* Under TL_STRICT: an error if any does. */
tl_status tl_derived_agree(tl_at at, int call);
/* Sends the gradients of derived values back to the parameters, unless that has been done. */
tl_status tl_derived_settle(tl_at at);
/* Undoes that, as more gradients are about to come. */
void tl_derived_unsettle(tl_tape *t);

/* At a reset, or as gradients are dropped: forgets derived values if no gradient waits in them. */
void tl_derived_reset(tl_tape *t);
/* Gives a trace the user's lasting tape; false when out of memory. */
bool tl_derived_share(tl_tape *trace, tl_tape *user);

/* ---- again.c: recorded nodes run again ---- */

/* Calls n's op on dst, with the given inputs, in that mode. */
void tl_again_apply(tl_tape *dst, const tl_node *n, const tl_tensor *in, unsigned mode,
                    tl_tensor *out);

/* Marks as fixed what stands for fixed outputs of n, if the inputs are fixed on dst. */
void tl_again_fixed(tl_tape *dst, const tl_tensor *in, const tl_tensor *out, const tl_node *n);

/* The handle on dst that stands for a leaf of src; asked once for each. */
typedef tl_tensor tl_leaf_map(void *ctx, tl_tensor leaf);
/* Called after node n has run again. */
typedef void tl_made(void *ctx, const tl_node *n, const tl_tensor *out);
typedef struct {
    tl_tape *dst;
    const tl_tape *src;
    tl_leaf_map *leaf;
    tl_made *made; /* or NULL */
    void *ctx;
    tl_tensor *map; /* by index of src's values: the handle on dst */
} tl_again;
/* The handle on dst of x, which is a leaf or has run again. */
tl_tensor tl_again_value(tl_again *r, tl_tensor x);
/* The handles of n's inputs, in bump memory of dst; NULL, with an error, when out of memory. */
const tl_tensor *tl_again_inputs(tl_again *r, const tl_node *n);
/* Runs again all that y depends on, each node in its own mode; an op that changes its operand in
 * place changes a copy. Returns y's handle on dst. */
tl_tensor tl_rerun(tl_tape *dst, tl_tape *src, tl_tensor y, tl_leaf_map *leaf, tl_made *made,
                   void *ctx);

#endif
