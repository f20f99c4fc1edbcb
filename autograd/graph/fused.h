/* fused.h: several pointwise ops in one loop. Private to autograd/graph/.
 *
 * The loop goes over `shape` tile by tile; each op computes into a tile buffer of its own,
 * in order, from operands (arrays, gathered and widened as in pointwise.c) and from earlier
 * ops' tiles. What an op stores in f16 or bf16 when it stands alone is rounded to that and
 * widened again here, stored or not: the bits are those of the ops one by one. */
#ifndef TL_FUSED_H
#define TL_FUSED_H

#include "autograd/graph/internal.h"

typedef struct tl_fused_op tl_fused_op; /* fused.c */

struct tl_fused {
    int n_ops, n_in, n_out;
    tl_fused_op *op;
    tl_tensor *in_value, *out_value; /* what the loop reads and stores */
    tl_array *in, *out;              /* where they lie: laid out by plan.c */
    tl_shape shape;
};

/* The loop that computes nodes[0 .. n) (pointwise, of one shape, each after those it reads; all
 * but those whose value is stored are inlined), in g's bump memory. NULL with g's error. */
tl_fused *tl_fused_new(tl_graph *g, const uint32_t *nodes, int n);
/* To be called when the arrays' dims are known, once: which operands are used where they lie. */
void tl_fused_ready(tl_fused *f);
void tl_fused_run(const tl_fused *f);

/* The nodes that the loop storing node `last` computes, inlined ones first, into nodes (room for
 * all of the graph's); returns how many. */
int tl_fuse_members(tl_graph *g, uint32_t last, uint32_t *nodes);

#endif
