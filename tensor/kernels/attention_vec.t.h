/* attention_vec.t.h: the vector of one compute type at this level.
 *
 * Parameters: A(name) gives names their suffix; ATTN_BITS is 32 or 64. LANES, the elements of a
 * vector, is defined from here to the end of attention.t.h. Defines what vec.t.h does, with fma.
 * Besides,
 *
 *     first             the first n lanes of a vector, the others from another
 *     meet              one value from the lanes of a vector, which meet by halves
 */
#if ATTN_BITS == 32
typedef int32_t A(mask);
#else
typedef int64_t A(mask);
#endif
#define LANES (VEC_BYTES * 8 / ATTN_BITS)
#define V(name) A(name)
#define VEC_BITS ATTN_BITS
#include "tensor/kernels/vec.t.h"
typedef A(mask) A(maskvec) __attribute__((vector_size(VEC_BYTES)));

/* As store_n, and faster where all lanes are stored. */
static inline void A(store_last)(A(elem) * p, A(vec) v, int64_t n)
{
    if (n == LANES)
        A(store)(p, v);
    else
        A(store_n)(p, v, n);
}

static inline A(vec) A(first)(A(vec) v, int64_t n, A(vec) other)
{
    static const A(mask) window[2 * LANES] = {[0 ... LANES - 1] = -1};
    A(maskvec) m;
    memcpy(&m, window + LANES - n, sizeof m);
    return (A(vec))(((A(maskvec))v & m) | ((A(maskvec))other & ~m));
}

#if !VEC_FMA && ATTN_BITS == 32 && !TL_HAS_FMA
static inline A(vec) A(fma)(A(vec) a, A(vec) b, A(vec) c)
{
#define HALF(x, i) __builtin_convertvector(VEC_PAIR(x, i), double_pair)
    const double_pair lo = fma_pair(HALF(a, 0), HALF(b, 0), HALF(c, 0)),
                      hi = fma_pair(HALF(a, 2), HALF(b, 2), HALF(c, 2));
#undef HALF
    return VEC_FOUR(__builtin_convertvector(lo, float_pair),
                    __builtin_convertvector(hi, float_pair));
}
#elif !VEC_FMA
static inline A(vec) A(fma)(A(vec) a, A(vec) b, A(vec) c)
{
    for (int i = 0; i < LANES; i++)
#if ATTN_BITS == 32
        c[i] = tl_fmaf(a[i], b[i], c[i]);
#else
        c[i] = tl_fma(a[i], b[i], c[i]);
#endif
    return c;
}
#endif

/* The sum of two vectors or, with `top`, the larger of each two lanes. */
static inline A(vec) A(both)(A(vec) x, A(vec) y, const bool top)
{
    return top ? A(max)(x, y) : x + y;
}

#define MEET(...) x = A(both)(x, VEC_SHUFFLE(A(maskvec), x, x, __VA_ARGS__), top)
static inline __attribute__((always_inline)) A(elem) A(meet)(A(vec) x, const bool top)
{
#if LANES == 16
    MEET(8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    MEET(4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
    MEET(2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    MEET(1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
#elif LANES == 8
    MEET(4, 5, 6, 7, 0, 1, 2, 3);
    MEET(2, 3, 0, 1, 6, 7, 4, 5);
    MEET(1, 0, 3, 2, 5, 4, 7, 6);
#elif LANES == 4
    MEET(2, 3, 0, 1);
    MEET(1, 0, 3, 2);
#else
    MEET(1, 0);
#endif
    return x[0];
}
#undef MEET
