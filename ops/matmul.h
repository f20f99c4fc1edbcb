/* matmul.h: the op matmul for other ops, and how batches of products are run. Private to ops/. */
#ifndef TL_OPS_MATMUL_H
#define TL_OPS_MATMUL_H

#include "ops/build.h"
#include "ops/matmul_kernel.h"

typedef struct {
    tl_shape batch; /* of the output; what the operands have besides it folds into the chain */
    bool acc_f64;   /* chain in f64 */
    bool wide;      /* the result stays in the compute type */
} tl_matmul_attrs;

/* a @ b folded to batch dims `batch`, continuing acc (or TL_NONE) in place. */
tl_tensor tl_matmul_into_at(tl_at at, tl_tensor a, tl_tensor b, tl_tensor acc,
                            tl_matmul_attrs attrs);
/* Case i of the calls that a kernel is tried on; TL_NONE past the last. */
tl_tensor tl_matmul_probe(tl_tape *t, tl_dtype dtype, int i);

/* Products of one size, whose operands lie by strides along batch dims. */
typedef struct {
    int nd; /* batch dims */
    int64_t dim[TL_MAX_DIMS];
    int64_t sa[TL_MAX_DIMS], sb[TL_MAX_DIMS], sc[TL_MAX_DIMS];
    bool fold[TL_MAX_DIMS];         /* the products along this dim continue one chain */
    tl_gemm_args g;                 /* the first product */
    int64_t size_a, size_b, size_c; /* bytes of an element */
} tl_gemm_batches;
/* Runs them all, by fn if it is not NULL, else by the library's kernel. */
tl_status tl_gemm_batches_run(tl_call *c, const tl_gemm_batches *p, tl_gemm_fn *fn);

/* Forward of the matmul op: shapes are checked. */
tl_status tl_matmul_run(tl_call *c);

/* Whether each product of the call is one whole chain from +0 of at most k terms, and operands and
 * chain are all f32 or all f64. */
bool tl_matmul_is_short(const tl_call *c, int64_t k);

#ifndef TL_BLIS
#define TL_BLIS 1
#endif
#if TL_BLIS
extern const tl_kernel tl_kernel_blis_f32, tl_kernel_blis_f64, tl_kernel_blis_chain_f32,
    tl_kernel_blis_chain_f64; /* matmul_blis.c */
#endif

#endif
