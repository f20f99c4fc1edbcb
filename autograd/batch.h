/* batch.h: what the engine asks of autograd/batch/, the room that knows how values depend on
 * samples. */
#ifndef TL_AUTOGRAD_BATCH_H
#define TL_AUTOGRAD_BATCH_H

#include "autograd/internal.h"

/* ---- rules.c ---- */

/* How what a call has made depends on the batch, where some input does; in: room. */
void tl_batch_infer(tl_call *c, tl_value *const *value, tl_batch *in, tl_value *const *made);
/* Why gradients behind a node of op, with inputs in[] (records: value[], NULL for absent ones)
 * depend on the split into micro-batches; false if they do not, or if a node before
 * it is to blame. b: mixed if any output is, else output 0's. Draws are to blame for values,
 * whether or not they need a gradient. */
bool tl_batch_blames(const tl_tape *t, const tl_op *op, const tl_tensor *in, tl_value *const *value,
                     int n_in, tl_batch b, char why[TL_MESSAGE_MAX]);
/* Under TL_STRICT nothing is recorded that is outside the promise: the call is not, or an error. */
tl_status tl_batch_strict(tl_at at, const tl_call *c, const tl_tensor *in, tl_value *const *value,
                          tl_value *const *made, bool needs_grad);

/* What the call makes, of these inputs, is made of parameters and constants alone. */
bool tl_batch_fixed(const tl_op *op, tl_value *const *value, int n_in);
/* A leaf that is a constant. */
static inline void tl_value_fix(tl_value *v)
{
    tl_batch_set(v, TL_FREE);
    v->fixed = true;
}

/* ---- uses.c, fold.c, waiting.c: what comes to a leaf, added to its accumulators ---- */

/* The kind of accumulator that node n's input k goes to, a leaf or a view of one: "matmul:1", the
 * op whose sums continue, or "sum", the engine's and all others in f64; and the views between the
 * leaf and the use: "matmul:1+transpose". */
const char *tl_use_kind(const tl_tape *t, const tl_node *n, int k, char buf[TL_ATTRS_TEXT]);
/* x and y show one leaf, or derived value, through the same views. */
bool tl_same_view(const tl_tape *t, tl_tensor x, tl_tensor y);

/* The uses of a leaf that one backward adds to one accumulator through the same view, numbered in
 * canonical order. */
struct tl_fold {
    int leaf, acc;        /* the accumulator: t->grad[leaf].acc[acc] */
    tl_tensor x;          /* the input of the first use that was met */
    int n, visited;       /* uses; those whose nodes have been visited */
    struct tl_use *use;   /* those that are deferred (fold.h); NULL: none */
    struct tl_fold *next; /* of the same accumulator */

    /* While it waits for tl_accumulate. A graph has folds of its own (graph/later.c). */
    tl_status (*run)(tl_tape *t, tl_fold *f, int i, int of); /* adds part i of `of` */
    int axis;              /* of the leaf, along which parts are cut; TL_WHOLE: there are none */
    int part, parts;       /* the next part, of so many */
    int64_t from, size;    /* elements of the part along the axis; size < 0: all of the leaf */
    struct tl_fold *later; /* the next that waits for the same leaf */
};

/* Gives each use of a leaf its fold, and its number there. */
tl_status tl_fold_deal(tl_walk *w);
/* Whether the vjp of n is to compute what comes to input k now. *acc: the accumulator that it adds
 * that to, if it does. */
bool tl_fold_asks(tl_walk *w, const tl_node *n, int k, tl_fold *f, tl_tensor *acc);
/* After the vjp of order[i], for its input k: adds dx, which the vjp gave, if any, to the
 * accumulator, unless the vjp has done so itself (acc); or defers the use. */
tl_status tl_fold_deliver(tl_walk *w, uint32_t i, int k, const tl_tensor *dy, tl_tensor dx,
                          tl_tensor acc);
/* Node n, order[i], has been visited. Folds of which it was the last use are added, or wait. */
tl_status tl_fold_visited(tl_walk *w, uint32_t i, const tl_node *n);
/* In a trace: records all that waits, parameter by parameter. */
tl_status tl_fold_recorded(tl_tape *t);

/* ---- prints.c: the programs of a step's micro-batches ---- */

/* It only shows or copies its input: whether it is there may depend on sizes. */
static inline bool tl_passes_on(const tl_node *n) { return n->op->traits & (TL_VIEW | TL_COPY); }
/* The program is that of the micro-batches before, where nobody has asked for others. */
tl_status tl_prints_check(tl_walk *w);
/* Before an optimizer's step, and at a reset: so many backwards are over. */
tl_status tl_prints_step(tl_at at);
void tl_prints_end(tl_tape *t);
void tl_prints_clear(tl_tape *t);
/* At a run of a graph: what its trace left. */
tl_status tl_prints_run(tl_at at, const tl_prints *p);
void tl_prints_free(tl_prints *p);

static inline uint64_t tl_mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

/* ---- derived.c, settle.c: fixed values, differentiated once a step ---- */

/* The handle of a fixed value x on the lasting tape, where how it was made is noted; TL_NONE, with
 * an error, without memory. */
tl_tensor tl_derived_leaf(tl_tape *t, tl_tensor x);
/* What the call would make, of these inputs, is there, made before: before[j], on the lasting tape
 * (which there is). */
bool tl_derived_there(tl_tape *t, const tl_call *c, const tl_tensor *in, const tl_value **before);
/* For a graph: the number on the lasting tape of the value of that print, -1; and memory that keeps
 * it, laid out as a, which is to be filled unless it is full. NULL, with an error, without any. */
int64_t tl_derived_number(const tl_tape *t, uint64_t print);
void *tl_derived_room(tl_tape *t, uint32_t number, const tl_array *a, bool *full);
/* Their memory is given back. */
void tl_derived_forget(tl_tape *t);
/* Its print. */
static inline uint64_t tl_derived_print(tl_tape *t, tl_tensor x)
{
    return tl_is_none(tl_derived_leaf(t, x)) ? 0 : tl_peek(t, x)->print;
}
/* The print of a constant, which is there from now on. */
uint64_t tl_derived_constant(tl_tape *t, const tl_array *a);
/* Its name in checkpoints, as long as its record; and what has such a name and that shape, whether
 * a program has made it yet or will (shape NULL: only if one has): TL_NONE if it is no such name,
 * or without memory. */
const char *tl_derived_name(const tl_tape *t, tl_leaf_grad *g);
tl_tensor tl_derived_named(tl_tape *t, const char *name, tl_dtype dtype, const tl_shape *shape);
/* The leaf is one. */
static inline bool tl_derived(const tl_tape *t, tl_tensor leaf)
{
    return t->lasting != NULL && leaf.owner == t->lasting->values.owner;
}
/* What lies below those that are reached is reached, too, and has not changed while they wait; or
 * the error that it has. */
tl_status tl_derived_reach(tl_tape *t);
tl_status tl_derived_waits(tl_tape *t, tl_tensor leaf);
/* A run has left in theirs what its trace has in mine, of what there is now, or was. */
void tl_derived_left(tl_tape *t, tl_leaf_grad *theirs, tl_tape *trace, const tl_leaf_grad *mine);
/* Record i is of a derived value reached now, where micro-batches before had another in that call
 * or later: made alike, of other sizes or numbers. Then an error. */
bool tl_derived_strays(tl_tape *t, int i, int call, char why[TL_MESSAGE_MAX]);
tl_status tl_derived_agree(tl_at at, int call);
/* What has come to them is sent on to what they are made of; or more is about to come. */
tl_status tl_derived_settle(tl_at at);
void tl_derived_unsettle(tl_tape *t);
/* The tape is reset: they are forgotten, if nothing waits in them. */
void tl_derived_reset(tl_tape *t);
/* Those of a trace are the user's; false without memory. */
bool tl_derived_share(tl_tape *trace, tl_tape *user);

#endif
