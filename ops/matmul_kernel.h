/* matmul_kernel.h: kernels for matmul, the library's others and a user's. Public.
 *
 * A user's matrix multiplication becomes a kernel (autograd/kernel.h) in two lines:
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

/* C (+)= A B of one matrix (tensor/operands.h has the fields). False: it cannot do this one, and
 * has changed nothing; the library's kernel does. */
typedef bool tl_gemm_fn(const tl_gemm_args *g);

/* The forward of matmul with its matrix products by fn: batches, strides, accumulators and the
 * rounding of the result are taken care of. */
tl_status tl_matmul_with(tl_call *c, tl_gemm_fn *fn);

/* Every product of the call is one whole chain from +0 over at most k terms, f32 or f64
 * throughout. */
bool tl_matmul_is_short(const tl_call *c, int64_t k);
TL_END
#endif
