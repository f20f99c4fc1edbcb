/* list.c: the ops, kernels and probes of the library. */
#include "ops/build.h"

const tl_op *const tl_ops_shipped[] = {
#define X(name) &tl_op_##name,
    TL_OP_LIST(X)
#undef X
        NULL,
};

const tl_kernel *const tl_kernels_shipped[] = {
#if TL_BLIS
    &tl_kernel_blis_f32,
    &tl_kernel_blis_f64,
    &tl_kernel_blis_chain_f32,
    &tl_kernel_blis_chain_f64,
#endif
    NULL,
};

const tl_op_probe tl_probes_shipped[] = {{"matmul", tl_matmul_probe}, {NULL, NULL}};
