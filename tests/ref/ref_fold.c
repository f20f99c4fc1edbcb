/* The gradients of a weight and a bias that are used several times (section 10.3). */
#include "tests/ref/ref.h"

void ref_fold_uses(int uses, const ref_tensor *x, const ref_tensor *dy, ref_tensor *w,
                   ref_tensor *b)
{
    const int64_t k = x[0].dim[2], n = dy[0].dim[2];
    const ref_dtype c = ref_compute(x[0].dtype);
    *w = ref_new(c, 2, (int64_t[]){k, n});
    *b = ref_new(c, 1, &n);
    ref_tensor sum = ref_new(REF_F64, 1, &n);
    for (int64_t sample = 0; sample < x[0].dim[0]; sample++)
        for (int u = 0; u < uses; u++)
            for (int64_t row = 0; row < x[u].dim[1]; row++) {
                const int64_t at = sample * x[u].dim[1] + row;
                for (int64_t j = 0; j < n; j++) {
                    const double d = ref_get(&dy[u], at * n + j);
                    for (int64_t i = 0; i < k; i++)
                        ref_set(w, i * n + j,
                                ref_fma(c, ref_get(&x[u], at * k + i), d, ref_get(w, i * n + j)));
                    ref_set(&sum, j, ref_get(&sum, j) + d);
                }
            }
    for (int64_t i = 0; i < k * n; i++)
        ref_set(w, i, ref_get(w, i) + 0);
    for (int64_t j = 0; j < n; j++)
        ref_set(b, j, ref_get(&sum, j) + 0);
    ref_free(&sum);
}
