/* matmul.h: how a matmul call is run. Private to ops/. */
#ifndef TL_OPS_MATMUL_H
#define TL_OPS_MATMUL_H

#include "ops/build.h"

/* Forward of the matmul op: shapes are checked. */
tl_status tl_matmul_run(tl_call *c);

/* C (+)= A @ B by BLIS in its own way; false if it cannot (types, strides, built without). */
bool tl_blis_gemm(const tl_gemm_args *g);

#endif
