/* matmul_kernel.h: kernels for matmul: the library's other ones and a user's. Public.
 *
 * A matrix multiplication of your own becomes a kernel (autograd/kernel.h) in two lines:
 *
 *     static tl_status run(tl_call *c) { return tl_matmul_with(c, my_gemm); }
 *     static const tl_kernel mine = {.op = "matmul", .name = "mine", .dtype = TL_F32,
 *                                    .mode = TL_FAST, .run = run};
 */
#ifndef TL_OPS_MATMUL_KERNEL_H
#define TL_OPS_MATMUL_KERNEL_H

#include "autograd/kernel.h"
#include "tensor/operands.h"
TL_BEGIN

/* One product: C = A B, or C += A B. False: it changed nothing; the library's kernel runs. */
typedef bool tl_gemm_fn(const tl_gemm_args *g);

/* The forward of matmul, with its products computed by fn. It handles batches, strides,
 * accumulators and the rounding of the result. TL_EUSAGE: the call is of another op. */
tl_status tl_matmul_with(tl_call *c, tl_gemm_fn *fn);
TL_END
#endif
