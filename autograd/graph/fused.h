/* fused.h: several pointwise ops in one loop. For autograd/graph/ only.
 *
 * The loop goes over its elements tile by tile. Each op in turn computes into a tile of its own,
 * from operands (arrays, gathered and widened as in op.c) and from the tiles of earlier ops. What
 * an op would store in f16 or bf16 if it stood alone is rounded to that and widened again, so the
 * bits are those of the ops one by one. Only the last op's value is written to memory. */
#ifndef TL_FUSED_H
#define TL_FUSED_H

#include "autograd/graph/internal.h"
#include "autograd/pointwise.h"

enum { TL_FUSED_OPS = 48, TL_FUSED_INS = 32 };

typedef struct {
    tl_tile_fn *tile;
    int slot; /* of the level in force; 0: tile */
    const void *attrs;
    int n_in, from[TL_TILE_MAX_IN]; /* operand i, or ~i: op i of the loop */
    tl_dtype tile_dtype;            /* of the last input's tile */
    tl_dtype dtype;                 /* of the value */
    bool stores;                    /* its kernel writes the storage dtype */
    int buffer;                     /* its tile */
} tl_fused_op;

/* What the loop reads. */
typedef struct {
    tl_tensor value;
    tl_dtype tile;
    tl_shape shape;  /* of the op that reads it: what it is broadcast to */
    tl_operand walk; /* its array, as the loop walks it */
    int buffer;      /* the tile of a gathered operand */
} tl_fused_in;

struct tl_fused {
    int n_ops, n_in, n_buffers;
    tl_fused_op *op;
    tl_fused_in *in;
    tl_tiles tiles;
    bool heavy;
    const tl_call *call; /* of the step: in[i] as above, and out[0], which the loop stores */
};

/* The loop that stores the value of that node, in g's bump memory. NULL if it is no loop of several
 * ops, or with g's error. */
tl_fused *tl_fused_new(tl_graph *g, uint32_t node);
/* The arrays of the call have their shapes and strides. */
void tl_fused_ready(tl_fused *f, const tl_call *call);
void tl_fused_run(tl_fused *f);

/* The value whose memory x shows whole and in order: through values that others stand for, detached
 * leaves and plain views. */
tl_tensor tl_fuse_whole(const tl_graph *g, tl_tensor x);
/* n may be part of a loop: pointwise, alone on its output, by its own kernel. */
bool tl_fusable(const tl_node *n);
/* The dtype of the tile in which node n reads its input k. */
tl_dtype tl_tile_dtype(const tl_graph *g, const tl_node *n, int k);

#endif
