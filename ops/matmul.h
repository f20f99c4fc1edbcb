/* matmul.h: how a matmul call is run. Private to ops/. */
#ifndef TL_OPS_MATMUL_H
#define TL_OPS_MATMUL_H

#include "ops/build.h"
#include "ops/matmul_kernel.h"

/* Forward of the matmul op: shapes are checked. */
tl_status tl_matmul_run(tl_call *c);

#ifndef TL_BLIS
#define TL_BLIS 1
#endif
#if TL_BLIS
extern const tl_kernel tl_kernel_blis_f32, tl_kernel_blis_f64, tl_kernel_blis_chain_f32,
    tl_kernel_blis_chain_f64; /* matmul_blis.c */
#endif

#endif
