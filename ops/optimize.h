/* optimize.h: updates of parameters as ops; nn's optimizers are made of them. Public. */
#ifndef TL_OPS_OPTIMIZE_H
#define TL_OPS_OPTIMIZE_H

#include "autograd/handle.h"
TL_BEGIN

typedef struct {
    double momentum, weight_decay;
    bool nesterov, decoupled; /* decoupled: the decay is not added to the gradient */
} tl_sgd_attrs;

typedef struct {
    double beta1, beta2, eps, weight_decay;
    bool coupled; /* Adam: the decay is added to the gradient */
} tl_adamw_attrs;

/* The sum of squares of x, by lanes in f64 (NUMERICS 12.2). */
tl_tensor tl_square_sum_at(tl_at at, tl_tensor x);
/* Changes p and the buffer b (TL_NONE without momentum) in place; lr, clip 0-d f64. */
tl_tensor tl_sgd_update_at(tl_at at, tl_tensor p, tl_tensor g, tl_tensor b, tl_tensor lr,
                           tl_tensor clip, tl_sgd_attrs a);
/* Sets p in place to x, which is of p's compute type, rounded. */
tl_tensor tl_store_at(tl_at at, tl_tensor p, tl_tensor x);
/* Sets w, the f32 master of a half p, in place to p if p is not w rounded (after a load, say). */
tl_tensor tl_master_at(tl_at at, tl_tensor w, tl_tensor p);
/* in: p, g, m, v, lr, clip factor, c1, c2 = 1/(1 - beta^step). Changes p, m and v in place. */
tl_tensor tl_adamw_update_at(tl_at at, const tl_tensor in[8], tl_adamw_attrs a);
TL_END
#endif
