/* gemm_vec.t.h: the vector of one arithmetic at this level.
 *
 * Parameters: G(name) gives names their suffix; GEMM_ARITH is 32, 64 or 48 (f64
 * with exact products). Defines what vec.t.h does, with fma, and LANES.
 * Without hardware fma a vector is two double lanes, also of floats.
 */
#if VEC_FMA
#define V(name) G(name)
#define VEC_BITS GEMM_ARITH
#include "tensor/kernels/vec.t.h"
enum { G(LANES) = sizeof(G(vec)) / sizeof(G(elem)) };

#else
#if GEMM_ARITH == 32
typedef float G(elem);
#else
typedef double G(elem);
#endif
enum { G(LANES) = 2 };
typedef double_pair G(vec);
typedef G(elem) G(stored) __attribute__((vector_size(2 * sizeof(G(elem)))));
static inline G(vec) G(load)(const G(elem) * p)
{
    G(stored) x;
    memcpy(&x, p, sizeof x);
    return __builtin_convertvector(x, double_pair);
}
static inline void G(store)(G(elem) * p, G(vec) v)
{
    const G(stored) x = __builtin_convertvector(v, G(stored));
    memcpy(p, &x, sizeof x);
}
static inline G(vec) G(spread)(G(elem) x) { return (double_pair){(double)x, (double)x}; }
static inline G(vec) G(load_n)(const G(elem) * p, int64_t n)
{
    return n == 2 ? G(load)(p) : (double_pair){(double)p[0], 0};
}
static inline void G(store_n)(G(elem) * p, G(vec) v, int64_t n)
{
    if (n == 2)
        G(store)(p, v);
    else
        *p = (G(elem))v[0];
}
static inline G(vec) G(fma)(G(vec) a, G(vec) b, G(vec) c)
{
#if GEMM_ARITH == 32
    return fma_pair(a, b, c);
#elif GEMM_ARITH == 48
    return a * b + c;
#else
    return (double_pair){tl_fma(a[0], b[0], c[0]), tl_fma(a[1], b[1], c[1])};
#endif
}
#endif
