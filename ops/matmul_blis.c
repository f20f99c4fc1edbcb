/* matmul_blis.c: BLIS behind TL_FAST, as it comes - fast, and free to change bits
 * with the shape and the processor. Built with BLIS=0 it is not there. */
#include "ops/matmul.h"

#ifndef TL_BLIS
#define TL_BLIS 1
#endif

#if TL_BLIS
#include <blis.h>

bool tl_blis_gemm(const tl_gemm_args *g)
{
    tl_gemm_type want = g->f64 ? TL_GEMM_F64 : TL_GEMM_F32;
    if (g->a.type != want || g->b.type != want)
        return false;
    /* BLIS takes strides as they are; its arguments are not const. */
    if (g->f64) {
        double one = 1, beta = g->accumulate ? 1 : 0;
        bli_dgemm(BLIS_NO_TRANSPOSE, BLIS_NO_TRANSPOSE, g->m, g->n, g->k, &one, (double *)(uintptr_t)g->a.data, g->a.rs, g->a.cs,
                  (double *)(uintptr_t)g->b.data, g->b.rs, g->b.cs, &beta, g->c, g->rsc, g->csc);
    } else {
        float one = 1, beta = g->accumulate ? 1 : 0;
        bli_sgemm(BLIS_NO_TRANSPOSE, BLIS_NO_TRANSPOSE, g->m, g->n, g->k, &one, (float *)(uintptr_t)g->a.data, g->a.rs, g->a.cs,
                  (float *)(uintptr_t)g->b.data, g->b.rs, g->b.cs, &beta, g->c, g->rsc, g->csc);
    }
    return true;
}
#else
bool tl_blis_gemm(const tl_gemm_args *g)
{
    (void)g;
    return false;
}
#endif
