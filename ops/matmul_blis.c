/* matmul_blis.c: kernels of matmul by BLIS. A build with BLIS=0 has none.
 *
 * "blis" is BLIS as it comes: fast, and free to change bits with the shape and the processor.
 * TL_FAST takes it. "blis-chain" promises the contract's bits: it turns the small-matrix path off,
 * uses one thread, and takes no chain longer than a block of K. (256 is the smallest block of the
 * microkernels that add by fma; longer chains are the library's.) Whether the BLIS at hand keeps
 * this promise depends on the processor, since its portable kernels have no fma. So it is probed
 * before its first use, and refused if it does not. */
#include "ops/build.h"

#if TL_BLIS
#include <blis.h>

enum { SHORTEST_BLOCK = 256 };

static bool same_type(const tl_gemm_args *g)
{
    tl_gemm_type want = g->f64 ? TL_GEMM_F64 : TL_GEMM_F32;
    return g->a.type == want && g->b.type == want;
}

/* BLIS takes all strides. Its arguments are not const. */
static void multiply(const tl_gemm_args *g, rntm_t *rntm)
{
    void *a = (void *)(uintptr_t)g->a.data, *b = (void *)(uintptr_t)g->b.data;
    if (g->f64) {
        double one = 1, beta = g->accumulate ? 1 : 0;
        bli_dgemm_ex(BLIS_NO_TRANSPOSE, BLIS_NO_TRANSPOSE, g->m, g->n, g->k, &one, a, g->a.rs,
                     g->a.cs, b, g->b.rs, g->b.cs, &beta, g->c, g->rsc, g->csc, NULL, rntm);
    } else {
        float one = 1, beta = g->accumulate ? 1 : 0;
        bli_sgemm_ex(BLIS_NO_TRANSPOSE, BLIS_NO_TRANSPOSE, g->m, g->n, g->k, &one, a, g->a.rs,
                     g->a.cs, b, g->b.rs, g->b.cs, &beta, g->c, g->rsc, g->csc, NULL, rntm);
    }
}

static bool as_it_comes(const tl_gemm_args *g)
{
    if (!same_type(g))
        return false;
    rntm_t rntm;
    bli_rntm_init_from_global(&rntm);
    if (tl_parallel_width(2, 1) == 1) /* as in a forked child, which has no other thread */
        bli_rntm_set_num_threads(1, &rntm);
    multiply(g, &rntm);
    return true;
}

/* NUMERICS 1.6: -0 becomes +0. */
static void add_zero(const tl_gemm_args *g)
{
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t j = 0; j < g->n; j++) {
            if (g->f64)
                ((double *)g->c)[i * g->rsc + j * g->csc] += 0;
            else
                ((float *)g->c)[i * g->rsc + j * g->csc] += 0;
        }
}

static bool one_block(const tl_gemm_args *g)
{
    rntm_t rntm;
    if (!same_type(g) || g->accumulate || g->k > SHORTEST_BLOCK)
        return false;
    bli_rntm_init_from_global(&rntm);
    bli_rntm_set_num_threads(1, &rntm);
    bli_rntm_disable_l3_sup(&rntm);
    multiply(g, &rntm);
    add_zero(g);
    return true;
}

/* Operands and chain are all f32 or all f64. */
static bool any_chain(const tl_call *c)
{
    tl_dtype want = ((const tl_matmul_attrs *)c->attrs)->acc_f64 || c->in[0]->dtype == TL_F64
                        ? TL_F64
                        : TL_F32;
    return c->in[0]->dtype == want && c->in[1]->dtype == want;
}
static bool short_chain(const tl_call *c)
{
    return any_chain(c) && tl_matmul_is_short(c, SHORTEST_BLOCK);
}

static tl_status run_blis(tl_call *c) { return tl_matmul_with(c, as_it_comes); }
static tl_status run_chain(tl_call *c) { return tl_matmul_with(c, one_block); }

#define BLIS .op = "matmul", .name = "blis", .mode = TL_FAST, .run = run_blis, .fits = any_chain
#define BLIS_CHAIN                                                                \
    .op = "matmul", .name = "blis-chain", .mode = TL_INVARIANT, .run = run_chain, \
    .fits = short_chain
const tl_kernel tl_kernel_blis_f32 = {BLIS, .dtype = TL_F32},
                tl_kernel_blis_f64 = {BLIS, .dtype = TL_F64};
const tl_kernel tl_kernel_blis_chain_f32 = {BLIS_CHAIN, .dtype = TL_F32},
                tl_kernel_blis_chain_f64 = {BLIS_CHAIN, .dtype = TL_F64};
#endif
