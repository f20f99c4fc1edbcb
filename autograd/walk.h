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
    uint32_t n_values; /* on the tape before the walk */
    tl_edge **edge;    /* of node order[i] */
    tl_inbox *box;     /* by value index; then by target, for targets of the model */
    uint8_t *saved;    /* by value index: a vjp reads it */
    const int32_t
        *changed; /* in a trace: the last node that changes a value of the model, by its index */
    uint32_t n_changed;
    uint8_t *leads; /* functional: by node, a target lies below it */
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
/* The box of target i. */
uint32_t tl_walk_target_box(const tl_walk *w, int i);

/* A view of a leaf through injective views: its uses are uses of the leaf. */
bool tl_walk_skips(const tl_walk *w, const tl_node *n);
/* Releases a value's storage and marks it. */
void tl_value_give_back(tl_value *v);

static inline bool tl_same_handle(tl_tensor a, tl_tensor b)
{
    return a.owner == b.owner && a.index == b.index && a.generation == b.generation;
}

#endif
