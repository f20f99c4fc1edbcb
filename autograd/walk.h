/* walk.h: nodes in canonical order, nodes recorded again, and a walk back. Private to autograd/ and
 * its rooms, which have it through internal.h. */
#ifndef TL_WALK_H
#define TL_WALK_H

#include "autograd/internal.h"

/* The canonical order: nodes below some values, in post-order, inputs left to right. Depth-first,
 * the way back written in the nodes, so that deep graphs do not exhaust the C stack and what is not
 * reached costs nothing; a node that has been met is not met again. One such walk at a time on a
 * tape, which records nothing meanwhile. */
typedef int32_t tl_follow(void *ctx, const tl_node *n,
                          int k); /* the node behind input k; -1: none */
typedef struct {
    tl_tape *t;
    uint32_t visit; /* of nodes that have been met */
    int32_t at;
    tl_follow *follow;
    void *ctx;
} tl_postorder;
void tl_postorder_begin(tl_postorder *o, tl_tape *t, tl_follow *follow, void *ctx);
void tl_postorder_from(tl_postorder *o, int32_t node); /* a root; -1: none */
/* The next node, all behind its inputs having come before it; -1: no more below the roots so far.
 */
int32_t tl_postorder_next(tl_postorder *o);

/* All nodes below y, also behind what a vjp detached; those through which gradients go; or these
 * only down to where gradients accumulate. *order is tape bump memory. */
typedef enum { TL_TO_ALL, TL_TO_GRAD, TL_TO_LEAVES } tl_order_end;
tl_status tl_canonical_order(tl_tape *t, tl_tensor y, tl_order_end end, uint32_t **order,
                             uint32_t *n);

/* Nodes of src recorded again on dst. map: by value of src, the handle on dst; leaves are looked up
 * with leaf(ctx, handle) when they are first met. */
typedef tl_tensor tl_leaf_map(void *ctx, tl_tensor leaf);
typedef void tl_made(void *ctx, const tl_node *n, const tl_tensor *out); /* once n has run again */
typedef struct {
    tl_tape *dst;
    const tl_tape *src;
    tl_leaf_map *leaf;
    tl_made *made; /* or NULL */
    void *ctx;
    tl_tensor *map;
} tl_again;
tl_tensor tl_again_value(tl_again *r, tl_tensor x);
/* Of node n, in bump memory of dst; NULL, with an error, without any. */
const tl_tensor *tl_again_inputs(tl_again *r, const tl_node *n);
/* The call of n on dst, with these inputs in its inputs' places. */
void tl_again_apply(tl_tape *dst, const tl_node *n, const tl_tensor *in, unsigned mode,
                    tl_tensor *out);
/* Records all that y depends on again, each op in its mode; one that changes an operand in place
 * changes a copy. The handle on dst that corresponds to y. */
tl_tensor tl_rerun(tl_tape *dst, tl_tape *src, tl_tensor y, tl_leaf_map *leaf, tl_made *made,
                   void *ctx);

/* ---- backward.c, walk.c: a walk back. tl_backward adds to the accumulators of leaves, seen
 * through views, and may free values as it goes; tl_gradients returns gradients by given targets as
 * ordinary values, which can be differentiated again. ---- */

/* Where the gradient of one input of one node goes. */
typedef struct tl_fold tl_fold; /* batch.h */
typedef struct tl_edge {
    bool wanted;
    int leaf;      /* 1 + the number of the record whose accumulators take it; 0: it waits here */
    tl_fold *fold; /* of that leaf */
    int use;       /* number in the fold */
    tl_tensor cotangent;
    struct tl_edge *next; /* of the same value */
} tl_edge;

/* The cotangents of one value, waiting to be added in the order of its uses. */
typedef struct {
    tl_edge *first, *last;
} tl_inbox;

typedef struct {
    tl_tape *t;
    tl_at at;
    tl_tensor y;
    tl_tensor asked; /* y as the caller named it, before tl_walk_root */
    tl_backward_options opt;
    const tl_tensor *target; /* functional walk: gradients by these; NULL: by all leaves */
    int n_targets;
    bool lasts; /* it adds to gradients that outlive the recording */
    uint32_t *order, n;
    /* The nodes and values between the first and the last that the walk meets: what was recorded
     * before costs it nothing. */
    uint32_t first_node, n_nodes, first_value, n_values;
    tl_edge **edge;  /* of node order[i] */
    unsigned *reads; /* inputs of order[i] that its vjp reads */
    tl_edge start;   /* with y's own cotangent */
    tl_inbox *box; /* by value, from first_value on; then by target, for those that lie elsewhere */
    uint8_t *saved; /* by value, from first_value on: a vjp reads it */
    uint8_t *leads; /* functional: by node, from first_node on: a target lies below it */
} tl_walk;

/* Makes y a node's output, if it is not. */
tl_status tl_walk_root(tl_walk *w);
/* Orders the nodes and says where gradients go; whatever is to be refused is, before anything is
 * recorded. */
tl_status tl_walk_check(tl_walk *w);
/* Checks, places the first cotangent, deals leaves' uses out to folds. */
tl_status tl_walk_prepare(tl_walk *w);
/* Visits every node from the last to the first. */
tl_status tl_walk_run(tl_walk *w);
/* The box of value x. */
tl_inbox *tl_walk_box(const tl_walk *w, tl_tensor x);
/* Calls a node's vjp and tells those who watch; first: nodes from there on are its. */
tl_status tl_walk_vjp(tl_walk *w, uint32_t node, uint32_t first, tl_vjp *g);
/* Gives back everything recorded since mark that is not held. */
void tl_walk_free_since(tl_walk *w, uint32_t mark);

/* The injective view that made x; NULL: none. */
const tl_node *tl_view_at(const tl_tape *t, tl_tensor x);
/* What x shows through injective views, possibly x, if it is a leaf; else TL_NONE. */
tl_tensor tl_leaf_under(const tl_tape *t, tl_tensor x);
/* Where what comes to input k of n accumulates: a leaf, or a fixed value that n makes something
 * else of (batch/derived.c), seen through views; TL_NONE: it goes on to what made the input. */
tl_tensor tl_accumulates(const tl_tape *t, const tl_node *n, int k);
/* A view of a leaf through injective views: its uses are uses of the leaf. */
bool tl_walk_skips(const tl_walk *w, const tl_node *n);
/* The memory of input k of a node, or of output k - n_in, has changed since that was recorded, and
 * it shows there: by whom. */
bool tl_changed_since(tl_tape *t, uint32_t node, int k, tl_changer *by);
/* Releases a value's storage and marks it. */
void tl_value_give_back(tl_value *v);
/* x as a record of its own, whatever the walk gives back. */
tl_tensor tl_hold(tl_tape *t, tl_tensor x);

/* x is one of the values that saved and the first boxes are of. */
static inline bool tl_walk_holds(const tl_walk *w, tl_tensor x)
{
    return x.owner == w->t->values.owner && x.index - w->first_value < w->n_values;
}

static inline bool tl_same_handle(tl_tensor a, tl_tensor b)
{
    return a.owner == b.owner && a.index == b.index && a.generation == b.generation;
}

#endif
