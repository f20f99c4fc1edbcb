/* list.h: every op, once: the pointwise ones from tensor/kernels/pointwise.t.h, and the others. A
 * new op is added to one of the two, and a test demands the rest. */
#ifndef TL_OPS_LIST_H
#define TL_OPS_LIST_H

#include "autograd/op.h"
#include "tensor/kernels/pointwise.h"

/* clang-format off */
#define TL_OP_LIST(X)                                                                            \
    TL_TILE_LIST(X)                                                                              \
    X(swiglu_grad) X(fill) X(store) X(assign) X(reshape) X(permute) X(slice) X(select) X(expand)  \
    X(contiguous) X(concat) X(stack_samples) X(slice_grad) X(sum) X(mean) X(max) X(min) X(argmax) \
    X(sum_to) X(cumsum) X(matmul) X(conv) X(pool_places) X(softmax) X(softmax_grad)               \
    X(log_softmax) X(log_softmax_grad) X(rms_norm) X(rms_norm_grad) X(add_rms_norm) X(layer_norm) \
    X(layer_norm_grad) X(rotary) X(rotary_) X(rotary_turn) X(rotary_halves) X(positions)          \
    X(embedding) X(scatter_add) X(gather) X(scatter_add_dim) X(one_hot) X(cross_entropy)          \
    X(cross_entropy_grad) X(nll) X(nll_grad) X(attention) X(attention_grad) X(causal_mask)        \
    X(dropout) X(draw) X(argsort) X(recur) X(recur_grad) X(square_sum) X(master) X(sgd) X(adamw)
/* clang-format on */

#define X(name) extern const tl_op tl_op_##name;
TL_OP_LIST(X)
#undef X

#endif
