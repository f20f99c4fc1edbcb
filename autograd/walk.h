/* walk.h: nodes in canonical order, the gradients of leaves, the walk of a backward, segments.
 * Private to autograd/ and its rooms, which get it through internal.h. */
#ifndef TL_WALK_H
#define TL_WALK_H

/* ---- order.c: what a node reads; the canonical order ---- */

/* The node that made x, if it is a view that shows no element twice; else NULL. */
const tl_node *tl_view_at(const tl_tape *t, const tl_value *x);
/* Adds to *offset how many bytes behind the first element of its input, `of`, that of view n lies,
 * by the op's shape rule, which only moves an address: there need be nothing. */
tl_status tl_view_offset(const tl_node *n, const tl_array *of, int64_t *offset, tl_err *err);
/* The leaf that x is, or shows through such views; TL_NONE if there is none. */
tl_tensor tl_leaf_under(const tl_tape *t, tl_tensor x);
/* Where the gradient of input k of n accumulates: a leaf, or a fixed value of which n makes an
 * unfixed one (batch/derived.c), seen through views. TL_NONE: it goes on to the input's node. */
tl_tensor tl_accumulates(const tl_tape *t, const tl_node *n, int k);

/* Whether input k of a node, or output k - n_in, has been overwritten since, and by whom. */
bool tl_changed_since(tl_tape *t, uint32_t node, int k, tl_changer *by);
/* Fails if input k of a node has been. Tape `on` then gets an error, which begins with `who` and
 * says why that matters. */
tl_status tl_input_unchanged(tl_tape *t, uint32_t node, int k, tl_tape *on, const char *who,
                             const char *why);

/* Post-order from some nodes, inputs from left to right. The path back is kept in the nodes
 * (tl_node.link), so that deep graphs do not exhaust the C stack and nodes that are not reached
 * cost nothing. Only one such walk at a time on a tape, which must record nothing meanwhile. */
typedef int32_t tl_follow(void *ctx, const tl_node *n, int k); /* node behind input k; -1: none */
typedef struct {
    tl_tape *t;
    uint32_t visit; /* this walk's number, left in the nodes it has reached */
    int32_t at;
    tl_follow *follow;
    void *ctx;
} tl_postorder;
void tl_postorder_begin(tl_postorder *o, tl_tape *t, tl_follow *follow, void *ctx);
/* Continues from a root, unless it has been reached; -1: none. */
void tl_postorder_from(tl_postorder *o, int32_t node);
/* The next node, after all those behind its inputs; -1: nothing is left below the roots so far. */
int32_t tl_postorder_next(tl_postorder *o);

/* Which nodes below y: all, even behind what a vjp has detached; those that gradients go through;
 * or, of these, only the ones above the places where gradients accumulate. */
typedef enum { TL_TO_ALL, TL_TO_GRAD, TL_TO_LEAVES } tl_order_end;
/* *order: the *n nodes in canonical order, in the tape's bump memory. */
tl_status tl_canonical_order(tl_tape *t, tl_tensor y, tl_order_end end, uint32_t **order,
                             uint32_t *n);
/* The same of TL_TO_GRAD, but below y only nodes that made values from number `first` on. */
tl_status tl_order_since(tl_tape *t, tl_tensor y, uint32_t first, uint32_t **order, uint32_t *n);

/* ---- segment.c: values that are recomputed ---- */

/* Before backward visits node n: recomputes its segment, if it is in one. */
tl_status tl_segment_restore(tl_tape *t, uint32_t n);
/* Whether a segment that has not been recomputed yet will read that value. */
bool tl_segment_awaits(const tl_tape *t, const tl_value *v);

/* ---- walk.c, backward.c: the walk of a backward ----
 *
 * The walk of tl_backward adds to the accumulators of leaves and may release values as it goes. The
 * functional walk of tl_gradients returns the gradients with respect to given targets as ordinary
 * values, which can be differentiated again. */

/* Where the gradient of one input of one node goes. */
typedef struct tl_fold tl_fold; /* batch.h */
typedef struct tl_edge {
    bool wanted;
    tl_tensor cotangent; /* the gradient that waits, unless a leaf's record takes it */
    int leaf;            /* the number of that record */
    tl_fold *fold;       /* the fold there; NULL: the gradient waits */
    int use;             /* the input's number among the uses of that fold */
    uint32_t node;       /* with a leaf: whose input this is, and which one */
    int input;
    struct tl_edge *next; /* in the inbox or, with a leaf, of the uses */
} tl_edge;

/* Edges in order of use. Those to one value: their cotangents wait until all have arrived. */
typedef struct {
    tl_edge *first, *last;
} tl_inbox;

typedef struct {
    tl_tape *t;
    tl_at at;
    const char *who; /* tl_backward or tl_gradients, for errors */
    tl_tensor y;
    const tl_value *root; /* y's record */
    tl_tensor asked;      /* y as the caller named it: find_root may record a node behind it */
    tl_backward_options opt;
    const tl_tensor *target; /* functional: the values whose gradients are wanted; else NULL */
    int n_targets;
    bool lasts; /* it reaches leaves that outlive the recording */
    uint32_t *order, n;
    /* The range of nodes and values that the order spans: arrays below are indexed from its start,
     * so that what was recorded before costs this walk nothing. */
    uint32_t first_node, n_nodes, first_value, n_values;
    uint32_t made;   /* the first value that the walk makes */
    tl_edge **edge;  /* by place in the order: an edge for each input */
    unsigned *reads; /* by place in the order: the inputs that the vjp reads */
    tl_edge start;   /* brings y's own cotangent */
    tl_inbox *box;   /* by value; after those, one for each target outside the range */
    tl_inbox uses;   /* of leaves */
    uint8_t *saved;  /* by value: some vjp reads it */
    uint8_t *leads;  /* functional: by node, whether a target lies below it */
} tl_walk;

/* Orders the nodes and decides where gradients go. Refuses whatever must be refused, before
 * anything is recorded. */
tl_status tl_walk_check(tl_walk *w);
/* tl_walk_check; then delivers the first cotangent, and deals the uses of leaves out to folds. */
tl_status tl_walk_prepare(tl_walk *w);
/* Releases the values that no vjp will read. The others are released as the walk passes them. A vjp
 * that reads what its op does not declare to save finds it gone. */
void tl_walk_free_unsaved(tl_walk *w);
/* Visits all nodes, from the last to the first. */
tl_status tl_walk_run(tl_walk *w);
/* The cotangent of a value: those of its uses, added in order; TL_NONE if there are none. */
tl_tensor tl_walk_collect(tl_walk *w, const tl_inbox *b);
/* What observers are told of a vjp. */
tl_given tl_given_of(const tl_node *n, uint32_t node, uint32_t first, const tl_vjp *g);
/* The inbox of x, a value in the walk's range or a target. */
tl_inbox *tl_walk_box(const tl_walk *w, tl_tensor x);
/* Calls a node's vjp and tells observers; the vjp records nodes from number `first` on. */
tl_status tl_walk_vjp(tl_walk *w, uint32_t node, uint32_t first, tl_vjp *g);
/* Releases all values recorded since mark, except those that the walk holds. */
void tl_walk_free_since(tl_walk *w, uint32_t mark);

/* Whether n only views a leaf: then uses of its output are uses of the leaf. */
bool tl_walk_skips(const tl_walk *w, const tl_node *n);
/* x under a new record, which the walk holds: it stays when x is released. NULL for NULL or, with
 * an error, when out of memory. */
tl_value *tl_hold(tl_tape *t, tl_value *x);

/* Whether x is in the walk's range of values. */
static inline bool tl_walk_holds(const tl_walk *w, tl_tensor x)
{
    return x.owner == w->t->values.owner && x.index - w->first_value < w->n_values;
}

#endif
