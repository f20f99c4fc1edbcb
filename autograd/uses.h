/* uses.h: accumulators of leaves, shared by backward and the reading of gradients. */
#ifndef TL_USES_H
#define TL_USES_H

#include "autograd/internal.h"

tl_leaf_grad *tl_leaf_grad_find(tl_tape *t, tl_tensor leaf); /* NULL: none yet */
tl_leaf_grad *tl_leaf_grad_get(tl_tape *t, tl_tensor leaf);  /* made if need be; NULL: no memory */
tl_status tl_uses_reserve(tl_tape *t, tl_leaf_grad *g, int n);
/* Use k holds an accumulator of dtype afterwards, zero unless g is live. */
tl_status tl_use_open(tl_tape *t, tl_leaf_grad *g, int k, tl_dtype dtype);

/* Use k as a value of the tape; TL_NONE when nothing has come to it. */
tl_tensor tl_use_value(tl_tape *t, const tl_leaf_grad *g, int k);
/* x lies in the accumulator of use *use of t->grad[*leaf]. */
bool tl_use_holding(const tl_tape *t, tl_tensor x, uint32_t *leaf, uint32_t *use);

#endif
