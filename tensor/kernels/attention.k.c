/* attention.k.c: attention at one vector level; attention.h has the contract.
 *
 * A register tile is ATTN_ROWS rows (or keys) by two vectors: 16 accumulators where there are 32
 * registers, 8 where there are 16, and 4 where fma itself needs many. ATTN_FEW rows have a tile of
 * their own, for decoding. ATTN_BLOCK_BYTES is about how much of the cache a block of scores may
 * take. None of these decides a bit.
 */
#include "tensor/kernels/level.h"
#include "tensor/kernels/attention.h"
#include "tensor/kernels/fma.h"
#include "tensor/kernels/math.h"
#include "tensor/kernels/vec.t.h"

#if defined(__AVX512F__) || defined(__aarch64__)
#define ATTN_ROWS 8
#elif VEC_FMA
#define ATTN_ROWS 4
#else
#define ATTN_ROWS 2
#endif
#define ATTN_FEW 2
#define ATTN_BLOCK_BYTES (768 * 1024)
#define ATTN_BLOCK_MOST 96

/* The keys that a sample allows. */
typedef struct {
    int64_t start, keys;
} key_range;

static int64_t clamp(int64_t x, int64_t most) { return x < 0 ? 0 : x > most ? most : x; }

static key_range keys_of(const tl_attention_args *a, int64_t b)
{
    const int64_t start = a->key_start ? clamp(a->key_start[b], a->kv_len) : 0;
    const int64_t end = a->key_end ? clamp(a->key_end[b], a->kv_len) : a->kv_len;
    return (key_range){start, end > start ? end - start : 0};
}

/* How many of these keys query i sees; they are the first ones. */
static int64_t keys_seen(const tl_attention_args *a, key_range range, int64_t i)
{
    return a->causal ? clamp(i + (a->kv_len - a->q_len) + 1 - range.start, range.keys) : range.keys;
}

#define A(name) name##_f32
#define ATTN_BITS 32
#define ATTN_EXP TL_K(tl_math_table).exp32
#include "tensor/kernels/attention.t.h"
#undef ATTN_BITS
#undef ATTN_EXP
#undef A

#define A(name) name##_f64
#define ATTN_BITS 64
#define ATTN_EXP TL_K(tl_math_table).exp64
#include "tensor/kernels/attention.t.h"

const tl_attention_table TL_K(tl_attention_table)[2] = {
    {scratch_bytes_f32, forward_f32, backward_f32}, {scratch_bytes_f64, forward_f64, backward_f64}};
