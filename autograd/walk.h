/* walk.h: a backward walk - what its parts share. Private to autograd/.
 *
 * Two kinds of walk. tl_backward adds to the accumulators of leaves, seen through
 * views, and may free values as it goes. tl_gradients returns gradients by given
 * targets as ordinary values, which can be differentiated again. */
#ifndef TL_WALK_H
#define TL_WALK_H

#include "autograd/uses.h"

/* Where the gradient of one input of one node goes. */
typedef struct {
    bool wanted;
    tl_leaf_grad *leaf; /* its accumulators take it; NULL: an inbox does */
    uint32_t box;
    int use; /* k-th use of that leaf, or k-th of that value */
} tl_edge;

/* The cotangents of one value, waiting to be added in the order of its uses. */
typedef struct {
    tl_tensor *cotangent; /* one a use, TL_NONE until given */
    int n;
} tl_inbox;

typedef struct {
    tl_tape *t;
    tl_at at;
    tl_tensor y;
    tl_tensor asked; /* y as the caller named it, before tl_walk_root */
    tl_backward_options opt;
    const tl_tensor *target; /* functional walk: gradients by these; NULL: by all leaves */
    int n_targets;
    uint32_t *order, n;
    /* The nodes and values between the first and the last that the walk meets: what was recorded
     * before costs it nothing. */
    uint32_t first_node, n_nodes, first_value, n_values;
    tl_edge **edge; /* of node order[i] */
    tl_inbox *box; /* by value, from first_value on; then by target, for those that lie elsewhere */
    uint8_t *saved; /* by value, from first_value on: a vjp reads it */
    uint8_t *leads; /* functional: by node, from first_node on: a target lies below it */
} tl_walk;

/* Makes y a node's output, if it is not. */
tl_status tl_walk_root(tl_walk *w);
/* Orders the nodes, numbers the uses, places the first cotangent. */
tl_status tl_walk_prepare(tl_walk *w);
/* Gives back values that no vjp reads. */
void tl_walk_free_unsaved(tl_walk *w);
/* Visits every node from the last to the first. */
tl_status tl_walk_run(tl_walk *w);
/* The cotangents of a box, added in order; TL_NONE if there are none. */
tl_tensor tl_walk_collect(tl_walk *w, uint32_t box);
/* The box of value x. */
uint32_t tl_walk_box(const tl_walk *w, tl_tensor x);

/* The leaf under x if only injective views lie between them; TL_NONE otherwise. */
tl_tensor tl_leaf_under(const tl_tape *t, tl_tensor x);
/* A view of a leaf through injective views: its uses are uses of the leaf. */
bool tl_walk_skips(const tl_walk *w, const tl_node *n);
/* Releases a value's storage and marks it. */
void tl_value_give_back(tl_value *v);

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
