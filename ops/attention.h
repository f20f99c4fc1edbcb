/* attention.h: what attention and its derivatives share. Private to ops/. */
#ifndef TL_OPS_ATTENTION_H
#define TL_OPS_ATTENTION_H

#include "ops/build.h"

typedef struct {
    double scale; /* 0: 1/sqrt(d) */
    bool full;
} tl_attention_attrs;

/* The derivative of attention_grad, in primitives. Inputs: dy, q, k, v, key_start, key_end. */
void tl_attention_grad_vjp(tl_vjp *g);

#endif
