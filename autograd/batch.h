/* batch.h: what the engine asks of autograd/batch/, the room that knows how values depend on
 * samples. */
#ifndef TL_AUTOGRAD_BATCH_H
#define TL_AUTOGRAD_BATCH_H

#include <string.h>

#include "autograd/internal.h"

/* ---- rules.c: how values depend on the batch ---- */

/* Says how the results of a call depend on the batch, some input of which does; in: room for the
 * inputs' own. */
void tl_batch_infer(tl_call *c, tl_value *const *value, tl_batch *in, tl_value *const *made);
/* Input i of n may hold the samples of n's result along that axis, by the op's rule. */
bool tl_batch_could(tl_tape *t, const tl_node *n, int i, int axis);
/* n draws by one number for all its samples, which is the same in each micro-batch. */
bool tl_draws_alike(const tl_tape *t, const tl_node *n);
/* x may be written into dst, of the model: refused under TL_STRICT if x is computed of samples and
 * dst does not hold them along that axis. */
tl_status tl_batch_assigns(tl_at at, tl_tensor dst, tl_tensor x);
/* Sets how x depends on the batch: each element along that axis is a sample; TL_FREE, TL_MIXED. */
static inline void tl_batch_set(tl_value *x, int axis)
{
    x->batch = (tl_batch)axis;
    x->samples = axis < 0 ? -1 : x->a.dim[axis];
}
/* x depends on the batch as y does. */
static inline void tl_batch_like(tl_value *x, const tl_value *y)
{
    x->batch = y->batch;
    x->part = y->part;
    x->samples = y->samples;
}
/* All of these that are there are made of parameters and constants alone. */
static inline bool tl_all_fixed(const tl_tape *t, const tl_tensor *in, int n)
{
    bool fixed = true;
    for (int k = 0; k < n; k++)
        fixed &= tl_is_none(in[k]) || tl_peek(t, in[k])->fixed;
    return fixed;
}
/* The leaf x takes a gradient: neither it nor what was made of it is a constant any more. */
void tl_batch_unfix(tl_tape *t, tl_tensor x);
/* v, a leaf, is a constant. */
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

/* The uses of a leaf that one backward adds to one accumulator through the same view (or through
 * all views, if two of them overlap), numbered in canonical order. */
struct tl_fold {
    int leaf, acc;        /* the accumulator: t->grad[leaf].acc[acc] */
    tl_tensor x;          /* the input of the first use that was met */
    bool sought, meets;   /* of the last: whether two views of its accumulator overlap */
    int n, visited;       /* uses; those whose nodes have been visited */
    struct tl_use *use;   /* those that are deferred (internal.h); NULL: none */
    struct tl_fold *next; /* of the same accumulator */
    struct tl_fold *met;  /* another of which the same number was made (uses.c) */

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
/* Which axis of x, a view of the leaf, is that axis of the leaf, and longer than 1; -1: none. */
int tl_axis_of_view(const tl_array *x, const tl_array *leaf, int axis);
/* In a trace: records all that waits, parameter by parameter. */
tl_status tl_fold_recorded(tl_tape *t);

/* The leaf of that name in checkpoints; TL_NONE, with an error, if there is none. With a shape, a
 * derived value is made for it if need be. */
tl_tensor tl_grad_named(tl_tape *t, const char *name, tl_dtype dtype, const tl_shape *shape);

/* ---- prints.c: micro-batches of a step run the same program ---- */

/* n only shows or copies its input: whether a program has it may depend on sizes. */
static inline bool tl_passes_on(const tl_node *n) { return n->op->traits & (TL_VIEW | TL_COPY); }
/* Before a backward: the program is that of the micro-batches before (or .ragged allows others),
 * and, under TL_STRICT, what it begins with neither sums nor mixes samples. */
tl_status tl_prints_check(tl_walk *w);
/* Before an optimizer's step, and at a reset: the micro-batch had as many backwards as others. */
tl_status tl_prints_step(tl_at at);
void tl_prints_end(tl_tape *t);
/* Gradients are dropped: micro-batches begin anew. */
void tl_prints_clear(tl_tape *t);
/* At a run of a graph: checks what its trace has left. */
tl_status tl_prints_run(tl_at at, const tl_prints *traced);
void tl_prints_free(tl_prints *p);

/* ---- derived.c, settle.c: derived values, made of parameters and constants alone ---- */

/* The handle on the lasting tape of a derived value x, whose expression is noted there. TL_NONE,
 * with an error, without memory. */
tl_tensor tl_derived_leaf(tl_tape *t, tl_tensor x);
/* Its print: a number for the expression. */
static inline uint64_t tl_derived_print(tl_tape *t, tl_tensor x)
{
    return tl_is_none(tl_derived_leaf(t, x)) ? 0 : tl_peek(t, x)->print;
}
/* The print of a constant, of which the lasting tape has a copy from now on. */
uint64_t tl_derived_constant(tl_tape *t, const tl_array *a);

/* For a graph: the number on the lasting tape of the value of that print; -1: none. */
int64_t tl_derived_number(const tl_tape *t, uint64_t print);
/* Memory that keeps value `number`, laid out as a. The graph fills it unless it is full. NULL, with
 * an error, without memory. */
void *tl_derived_room(tl_tape *t, uint32_t number, const tl_array *a, bool *full);
/* Gives all that memory back. */
void tl_derived_forget(tl_tape *t);

/* The name of a derived value in checkpoints, for the caller to free; NULL without memory. */
char *tl_derived_name(const tl_tape *t, tl_tensor leaf);
/* The derived value of that name and shape, whether a program has made it yet or will (shape NULL:
 * only if one has). TL_NONE if that is no such name, or without memory. */
tl_tensor tl_derived_named(tl_tape *t, const char *name, tl_dtype dtype, const tl_shape *shape);

/* After a walk's check: the parameters below the derived values that it reaches are reached, too.
 * An error if they have changed while a gradient waits. */
tl_status tl_derived_reach(tl_tape *t);
/* That error. */
tl_status tl_derived_waits(tl_tape *t, tl_tensor leaf);
/* A run has left in the user's record `theirs` what its trace has in `mine`: notes of which
 * versions of the parameters that is. */
void tl_derived_left(tl_tape *t, tl_leaf_grad *theirs, tl_tape *trace, const tl_leaf_grad *mine);
/* Record i is of a derived value that is reached now, where micro-batches before had another one in
 * that call or a later one: made alike, of other sizes or numbers. */
bool tl_derived_strays(tl_tape *t, int i, int call, char why[TL_MESSAGE_MAX]);
/* Under TL_STRICT: none does. */
tl_status tl_derived_agree(tl_at at, int call);
/* Sends what has come to derived values back to the parameters, unless that has been done. */
tl_status tl_derived_settle(tl_at at);
/* More is about to come. */
void tl_derived_unsettle(tl_tape *t);

/* At a reset of the tape: forgets derived values, if no gradient waits in them. */
void tl_derived_reset(tl_tape *t);
/* A trace has the user's lasting tape; false without memory. */
bool tl_derived_share(tl_tape *trace, tl_tape *user);

/* ---- again.c: recorded nodes run again ---- */

/* Calls n's op on dst, with the given inputs, in that mode. */
void tl_again_apply(tl_tape *dst, const tl_node *n, const tl_tensor *in, unsigned mode,
                    tl_tensor *out);

/* Whose inputs are made of parameters and constants alone, and which was so on src, is so again. */
void tl_again_fixed(tl_tape *dst, const tl_tensor *in, const tl_tensor *out, const tl_tape *src,
                    const tl_node *n);

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
/* Those of n's inputs, in bump memory of dst; NULL, with an error, when out of memory. */
const tl_tensor *tl_again_inputs(tl_again *r, const tl_node *n);
/* Runs all that y depends on again, each node in its own mode; an op that changes its operand in
 * place changes a copy. Returns y's handle on dst. */
tl_tensor tl_rerun(tl_tape *dst, tl_tape *src, tl_tensor y, tl_leaf_map *leaf, tl_made *made,
                   void *ctx);

#endif
