/* addmm (5.6). */
#include "tests/ref/ref.h"

#include <stddef.h>

/* p = a @ b in c; q = p * alpha, or p where alpha = 1; r = x * beta, or x where beta = 1; y = r +
 * q. beta = 0: y = q, x is not read. */
ref_tensor ref_addmm(const ref_tensor *x, const ref_tensor *a, const ref_tensor *b, double beta,
                     double alpha)
{
    ref_dtype out = a->dtype == b->dtype ? a->dtype : REF_F32, c = ref_compute(out);
    ref_tensor p = ref_matmul(a, b, c, 0, 0, NULL, NULL), y = ref_like(&p, out);
    for (int64_t i = 0; i < ref_numel(&p); i++) {
        int64_t ix[8] = {0};
        ref_unflatten(p.ndim, p.dim, i, ix);
        double q = alpha == 1 ? ref_get(&p, i) : ref_round(c, ref_get(&p, i) * ref_round(c, alpha));
        if (beta != 0) {
            double v = ref_get(x, ref_broadcast_at(x, p.ndim, ix)),
                   r = beta == 1 ? v : ref_round(c, v * ref_round(c, beta));
            q = ref_round(c, r + q);
        }
        ref_set(&y, i, q);
    }
    ref_free(&p);
    return y;
}
