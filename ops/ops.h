/* ops.h: every op, with its formula. Public.
 *
 * An op takes a tape and tensors, which it borrows, and returns a new tensor of the tape; if it
 * fails, the zero handle, with the error and the caller's place on the tape. Floats: f64 f32 f16
 * bf16. Each op's file opens with its card: formula, shapes, dtypes, bits, errors. This page leaves
 * out tl_ and the tape: neg(x) is tl_neg(t, x).
 *
 * Pointwise: operands broadcast; f32, f16 and bf16 meet in f32, f64 meets f64 only; a constant c is
 * rounded to the compute type.
 *   neg(x)         -x                 exp(x)      e^x                sigmoid(x)   1/(1 + e^-x)
 *   abs(x)         |x|                expm1(x)    e^x - 1            softplus(x)  log(1 + e^x)
 *   square(x)      x*x                exp2(x)     2^x                relu(x)      max(x, 0)
 *   reciprocal(x)  1/x                log(x)                         silu(x)      x*sigmoid(x)
 *   sqrt(x)                           log1p(x)    log(1 + x)         gelu(x)      x*Phi(x), by erf
 *   rsqrt(x)       1/sqrt(x)          log2(x)                        gelu_tanh(x) the same by tanh
 *   sin(x)                            cos(x)                         tanh(x)
 *   erf(x)                            pow(x, c)   x^c                swiglu(a, b) silu(a)*b
 *   add(a, b)      a + b              sub(a, b)   a - b              mul(a, b)    a*b
 *   div(a, b)      a/b                maximum(a, b)                  minimum(a, b)
 *   scale(x, c)    x*c                shift(x, c) x + c              cast(x, dtype)
 *   clamp(x, lo, hi)                  x within [lo, hi]; an infinite bound is none
 *   eq(a, b) ne(a, b) lt(a, b)        a == b, a != b, a < b,
 *   le(a, b) gt(a, b) ge(a, b)        a <= b, a > b, a >= b, as bool
 *   where(cond, a, b)                 cond ? a : b, of floats, i64 or bool
 *   logical_and(a, b) logical_or(a, b) logical_not(x)  of bool; of other types, not equal to 0
 *   floor_divide(a, b) remainder(a, b)  of i64, rounded down as in Python; add, sub, mul take i64
 *                                     too, modulo 2^64
 *   masked_fill(x, mask, value)       mask ? value : x
 *   fill(dtype, shape, value)         value everywhere
 *   silu_grad(dy, x)                  dy*(s*(1 + x*(1 - s))), s = sigmoid(x)
 *   gelu_grad(dy, x)                  the gradient of gelu; of gelu_tanh:
 *   gelu_tanh_grad(dy, x)             (NUMERICS 2.9)
 *
 * Movement. Dims below 0 count from the end. The first six are views: the storage is shared.
 *   reshape(x, shape)                 one size may be -1; copies where strides force it
 *   permute(x, dims)                  dim i of the result is dim dims[i] of x
 *   transpose(x, d0, d1)              two dims change places
 *   slice(x, dim, start, stop, step)  every step-th (> 0) of a dim; start, stop as in Python: from
 *                                     the end below 0, brought within [0, size]
 *   select(x, dim, index)             one index of a dim, which goes
 *   expand(x, shape)                  x broadcast to a shape
 *   diagonal(x, offset, dim1, dim2)   elements (i, i + offset) of two dims, as the last dim
 *   tril(x, k) triu(x, k)             x where column <= row + k (>=) of the last two dims, else 0
 *   arange(dtype, start, stop, step)  start, start + step, ... before stop
 *   contiguous(x)                     row-major: x itself if it is
 *   concat(xs, n, dim)                n tensors one after the other along a dim
 *   stack(xs, n, dim)                 n tensors of one shape along a new dim
 *   split(x, size, dim, out, n)       n views of x into out: pieces of that size along a dim,
 *   chunk(x, n, dim, out)             n pieces of ceil(size/n),
 *   split_sizes(x, sizes, n, dim, out)  pieces of these sizes. n must be how many there are
 *   slice_grad(dy, size, dim, start, step)  dy at its places among zeros
 *
 * Reductions over dims: TL_DIMS(...), or TL_ALL. keepdims keeps them as size 1.
 *   sum(x, dims, keepdims)            also mean, max, min
 *   argmax(x, dim, keepdims)          i64, the first of equals
 *   var(x, dims, correction, keepdims)  sum of (x - mean)^2 over n - correction, which is 0 or 1
 *   mse(a, b)                         mean of (a - b)^2 over all
 *   cumsum(x, dim, reverse)           partial sums along a dim, from its start or its end
 *   sum_to(x, shape, acc)             x folded down to a shape that it broadcasts from; acc is
 *                                     continued in place: TL_NONE, or of that shape
 *
 * Products.
 *   matmul(a, b)                      (..., m, k) @ (..., k, n), batch dims broadcast; 1-d operands
 *                                     as in numpy
 *   matmul_acc64(a, b)                the chain and its accumulators in f64, rounded once
 *   matmul_to(a, b, dtype)            the chain in the compute type, rounded once to dtype: of bf16
 *                                     operands an f32 result never was bf16
 *   mm(a, b)                          (m, k) @ (k, n)
 *   bmm(a, b)                         (b, m, k) @ (b, k, n)
 *   addmm(c, a, b, beta, alpha)       beta*c + alpha*(a @ b) of 2-d a, b; c broadcasts to (m, n).
 *                                     beta = 0: c is not read, NaN or not, and takes no gradient
 *
 * Rows. gamma and beta, or TL_NONE, have the shape of x's last dims: the row.
 *   softmax(x, dim)                   e^(x - max)/sum
 *   log_softmax(x, dim)               its logarithm
 *   logsumexp(x, dims, keepdims)      log of the sum of e^x over dims
 *   rms_norm(x, gamma, eps)           x*rstd*gamma, rstd = 1/sqrt(mean(x^2) + eps). eps < 0 is an
 *                                     error; NAN: the compute type's epsilon
 *   rms_norm_dims(x, n, eps)          over the last n dims, without a weight
 *   rms_norm_plus_one(x, gamma, eps)  with the weight 1 + gamma
 *   rms_norm_rstd(x, gamma, eps, rstd)  gives *rstd, too
 *   add_rms_norm(x1, x2, gamma, eps, rstd, sum)  rms_norm(x1 + x2), the sum rounded first, as by
 *                                     two ops; *rstd and *sum (or NULL) take rstd and x1 + x2
 *   layer_norm(x, gamma, beta, eps)   (x - mean)*rstd*gamma + beta, rstd = 1/sqrt(var + eps)
 *   layer_norm_stats(x, gamma, beta, eps, mean, rstd)  gives *mean and *rstd (NULL: not wanted)
 *
 * Positions. r1, r2 are cosines and sines; R(x) swaps the two of each pair and negates the first;
 * what pairs (TL_ROTARY_HALF: i and i + d/2; TL_ROTARY_INTERLEAVED: 2i and 2i + 1) has no default.
 *   rotary(x, r1, r2, pairing)        r1*x + r2*R(x)
 *   rotary_turned(x, r1, r2, pairing) the conjugate: r1*x - R(r2*x)
 *   rotary_(x, r1, r2, pairing)       rotary in place on a view; x is consumed, the result is its
 *                                     new name. Tables that need a gradient are TL_EINPLACE
 *   rotary_halves(x1, x2, c, s, conjugate, y2)  of two halves (..., h) that lie apart: y1 = c*x1 -
 *                                     s*x2, *y2 = c*x2 + s*x1; conjugate: with -s for s
 *   rotary_ids(x, r1, r2, ids, seq, pairing)  rows of full tables (positions, d) by ids, i64 (b, s)
 *                                     or (s). seq is x's dim of positions; the batch is its axis 0,
 *                                     or 1 where seq is 0. Outside of the table: TL_EINDEX
 *   rotary_offsets(x, r1, r2, offset, seq, pairing)  by an offset, i64 (b), for each sample
 *   rotary_widen(half, pairing)       a half-width table (..., d/2) as a full one (..., d)
 *   positions(offset, n)              i64 (b, n): offset[i] + j
 *   positions_after(start, offset, n) of samples padded on the left, whose first token is in column
 *                                     start[i]: max(0, offset[i] + j - start[i]);
 *                                     TL_EINDEX beyond 64 bits
 *
 * Rows by number: ids are i64; one outside of the table or dim is TL_EINDEX.
 *   embedding(table, ids)             rows of table (rows, n) -> (ids..., n)
 *   embedding_padded(table, ids, padding)  the row of that number takes no gradient
 *   embedding_acc64(table, ids)       the same; its gradient folds in f64, as that of a table that
 *                                     is sliced and broadcast does
 *   gather(x, ids, dim)               elements along a dim; ids of x's rank, no larger elsewhere
 *   scatter_add_dim(dy, ids, dim, shape)  its gradient: dy added into zeros, in the compute type
 *   one_hot(ids, classes, dtype)      (..., classes) of ones and zeros
 *
 * Training. Options follow, as .name = value.
 *   cross_entropy(logits, targets, reduction)  -log_softmax(logits) at the targets: logits (...,
 *                                     classes), targets i64 (...) -> 0-d; TL_EACH: (...)
 *   nll(logp, targets, reduction)     the same from log-probabilities (no smoothing)
 *   bce_with_logits(x, y, reduction)  -(y*log(sigmoid(x)) + (1 - y)*log(1 - sigmoid(x)))
 *   attention(q, k, v)                softmax(scale*(q k^T)) v: q (b, hq, sq, d), k, v (b, hkv, sk,
 *                                     d), hq a multiple of hkv -> (b, hq, sq, d), laid out as q is
 *   causal_mask(queries, keys)        the keys that attention allows, as bool (queries, keys), with
 *                                     ranges (b, queries, keys): key j <= query i + keys - queries
 *   dropout(x, p)                     a fraction p set to 0, the rest times 1/(1 - p). A draw is of
 *                                     the model's seed, the stream, the sample's number and its
 *                                     place there: no batch split, padding or order changes it.
 *                                     Under the mode TL_EVAL it is x itself */
#ifndef TL_OPS_H
#define TL_OPS_H

#include "autograd/handle.h"
#include "tensor/array.h"
TL_BEGIN

/* clang-format off */
#define TL_UNARY_OPS(X)                                                                          \
    X(neg) X(abs) X(square) X(reciprocal) X(sqrt) X(rsqrt) X(exp) X(log) X(sin) X(cos) X(tanh)   \
    X(sigmoid) X(relu) X(silu) X(erf) X(log1p) X(expm1) X(exp2) X(log2) X(softplus) X(gelu)      \
    X(gelu_tanh)
/* clang-format on */
#define X(name) tl_tensor tl_##name##_at(tl_at at, tl_tensor x);
TL_UNARY_OPS(X)
#undef X
#define tl_neg(t, x) tl_neg_at(TL_AT(t), x)
#define tl_abs(t, x) tl_abs_at(TL_AT(t), x)
#define tl_square(t, x) tl_square_at(TL_AT(t), x)
#define tl_reciprocal(t, x) tl_reciprocal_at(TL_AT(t), x)
#define tl_sqrt(t, x) tl_sqrt_at(TL_AT(t), x)
#define tl_rsqrt(t, x) tl_rsqrt_at(TL_AT(t), x)
#define tl_exp(t, x) tl_exp_at(TL_AT(t), x)
#define tl_log(t, x) tl_log_at(TL_AT(t), x)
#define tl_sin(t, x) tl_sin_at(TL_AT(t), x)
#define tl_cos(t, x) tl_cos_at(TL_AT(t), x)
#define tl_tanh(t, x) tl_tanh_at(TL_AT(t), x)
#define tl_sigmoid(t, x) tl_sigmoid_at(TL_AT(t), x)
#define tl_relu(t, x) tl_relu_at(TL_AT(t), x)
#define tl_silu(t, x) tl_silu_at(TL_AT(t), x)
#define tl_erf(t, x) tl_erf_at(TL_AT(t), x)
#define tl_log1p(t, x) tl_log1p_at(TL_AT(t), x)
#define tl_expm1(t, x) tl_expm1_at(TL_AT(t), x)
#define tl_exp2(t, x) tl_exp2_at(TL_AT(t), x)
#define tl_log2(t, x) tl_log2_at(TL_AT(t), x)
#define tl_softplus(t, x) tl_softplus_at(TL_AT(t), x)
#define tl_gelu(t, x) tl_gelu_at(TL_AT(t), x)
#define tl_gelu_tanh(t, x) tl_gelu_tanh_at(TL_AT(t), x)

/* clang-format off */
#define TL_BINARY_OPS(X)                                                                         \
    X(add) X(sub) X(mul) X(div) X(maximum) X(minimum) X(eq) X(ne) X(lt) X(le) X(gt) X(ge)        \
    X(swiglu) X(silu_grad) X(gelu_grad) X(gelu_tanh_grad)
/* clang-format on */
#define X(name) tl_tensor tl_##name##_at(tl_at at, tl_tensor a, tl_tensor b);
TL_BINARY_OPS(X)
#undef X
#define tl_add(t, a, b) tl_add_at(TL_AT(t), a, b)
#define tl_sub(t, a, b) tl_sub_at(TL_AT(t), a, b)
#define tl_mul(t, a, b) tl_mul_at(TL_AT(t), a, b)
#define tl_div(t, a, b) tl_div_at(TL_AT(t), a, b)
#define tl_maximum(t, a, b) tl_maximum_at(TL_AT(t), a, b)
#define tl_minimum(t, a, b) tl_minimum_at(TL_AT(t), a, b)
#define tl_eq(t, a, b) tl_eq_at(TL_AT(t), a, b)
#define tl_ne(t, a, b) tl_ne_at(TL_AT(t), a, b)
#define tl_lt(t, a, b) tl_lt_at(TL_AT(t), a, b)
#define tl_le(t, a, b) tl_le_at(TL_AT(t), a, b)
#define tl_gt(t, a, b) tl_gt_at(TL_AT(t), a, b)
#define tl_ge(t, a, b) tl_ge_at(TL_AT(t), a, b)
#define tl_swiglu(t, a, b) tl_swiglu_at(TL_AT(t), a, b)
#define tl_silu_grad(t, dy, x) tl_silu_grad_at(TL_AT(t), dy, x)
#define tl_gelu_grad(t, dy, x) tl_gelu_grad_at(TL_AT(t), dy, x)
#define tl_gelu_tanh_grad(t, dy, x) tl_gelu_tanh_grad_at(TL_AT(t), dy, x)

#define tl_scale(t, x, c) tl_scale_at(TL_AT(t), x, c)
tl_tensor tl_scale_at(tl_at at, tl_tensor x, double c);
#define tl_shift(t, x, c) tl_shift_at(TL_AT(t), x, c)
tl_tensor tl_shift_at(tl_at at, tl_tensor x, double c);
#define tl_pow(t, x, c) tl_pow_at(TL_AT(t), x, c)
tl_tensor tl_pow_at(tl_at at, tl_tensor x, double c);
#define tl_clamp(t, x, lo, hi) tl_clamp_at(TL_AT(t), x, lo, hi)
tl_tensor tl_clamp_at(tl_at at, tl_tensor x, double lo, double hi);
#define tl_floor_divide(t, a, b) tl_floor_divide_at(TL_AT(t), a, b)
tl_tensor tl_floor_divide_at(tl_at at, tl_tensor a, tl_tensor b);
#define tl_remainder(t, a, b) tl_remainder_at(TL_AT(t), a, b)
tl_tensor tl_remainder_at(tl_at at, tl_tensor a, tl_tensor b);
#define tl_logical_and(t, a, b) tl_logical_and_at(TL_AT(t), a, b)
tl_tensor tl_logical_and_at(tl_at at, tl_tensor a, tl_tensor b);
#define tl_logical_or(t, a, b) tl_logical_or_at(TL_AT(t), a, b)
tl_tensor tl_logical_or_at(tl_at at, tl_tensor a, tl_tensor b);
#define tl_logical_not(t, x) tl_logical_not_at(TL_AT(t), x)
tl_tensor tl_logical_not_at(tl_at at, tl_tensor x);
#define tl_masked_fill(t, x, mask, value) tl_masked_fill_at(TL_AT(t), x, mask, value)
tl_tensor tl_masked_fill_at(tl_at at, tl_tensor x, tl_tensor mask, double value);
#define tl_where(t, cond, a, b) tl_where_at(TL_AT(t), cond, a, b)
tl_tensor tl_where_at(tl_at at, tl_tensor cond, tl_tensor a, tl_tensor b);
#define tl_cast(t, x, dtype) tl_cast_at(TL_AT(t), x, dtype)
tl_tensor tl_cast_at(tl_at at, tl_tensor x, tl_dtype dtype);
#define tl_fill(t, dtype, shape, value) tl_fill_at(TL_AT(t), dtype, shape, value)
tl_tensor tl_fill_at(tl_at at, tl_dtype dtype, tl_shape shape, double value);

#define tl_reshape(t, x, shape) tl_reshape_at(TL_AT(t), x, shape)
tl_tensor tl_reshape_at(tl_at at, tl_tensor x, tl_shape shape);
#define tl_permute(t, x, dims) tl_permute_at(TL_AT(t), x, dims)
tl_tensor tl_permute_at(tl_at at, tl_tensor x, tl_shape dims);
#define tl_transpose(t, x, d0, d1) tl_transpose_at(TL_AT(t), x, d0, d1)
tl_tensor tl_transpose_at(tl_at at, tl_tensor x, int d0, int d1);
#define tl_slice(t, x, dim, start, stop, step) tl_slice_at(TL_AT(t), x, dim, start, stop, step)
tl_tensor tl_slice_at(tl_at at, tl_tensor x, int dim, int64_t start, int64_t stop, int64_t step);
#define tl_select(t, x, dim, index) tl_select_at(TL_AT(t), x, dim, index)
tl_tensor tl_select_at(tl_at at, tl_tensor x, int dim, int64_t index);
#define tl_expand(t, x, shape) tl_expand_at(TL_AT(t), x, shape)
tl_tensor tl_expand_at(tl_at at, tl_tensor x, tl_shape shape);

#define tl_diagonal(t, x, offset, dim1, dim2) tl_diagonal_at(TL_AT(t), x, offset, dim1, dim2)
tl_tensor tl_diagonal_at(tl_at at, tl_tensor x, int64_t offset, int dim1, int dim2);
#define tl_tril(t, x, k) tl_tril_at(TL_AT(t), x, k)
tl_tensor tl_tril_at(tl_at at, tl_tensor x, int64_t k);
#define tl_triu(t, x, k) tl_triu_at(TL_AT(t), x, k)
tl_tensor tl_triu_at(tl_at at, tl_tensor x, int64_t k);
#define tl_arange(t, dtype, start, stop, step) tl_arange_at(TL_AT(t), dtype, start, stop, step)
tl_tensor tl_arange_at(tl_at at, tl_dtype dtype, double start, double stop, double step);

#define tl_contiguous(t, x) tl_contiguous_at(TL_AT(t), x)
tl_tensor tl_contiguous_at(tl_at at, tl_tensor x);
#define tl_concat(t, xs, n, dim) tl_concat_at(TL_AT(t), xs, n, dim)
tl_tensor tl_concat_at(tl_at at, const tl_tensor *xs, int n, int dim);
#define tl_slice_grad(t, dy, size, dim, start, step) \
    tl_slice_grad_at(TL_AT(t), dy, size, dim, start, step)
tl_tensor tl_slice_grad_at(tl_at at, tl_tensor dy, int64_t size, int dim, int64_t start,
                           int64_t step);

#define tl_stack(t, xs, n, dim) tl_stack_at(TL_AT(t), xs, n, dim)
tl_tensor tl_stack_at(tl_at at, const tl_tensor *xs, int n, int dim);
#define tl_split(t, x, size, dim, out, n) tl_split_at(TL_AT(t), x, size, dim, out, n)
tl_status tl_split_at(tl_at at, tl_tensor x, int64_t size, int dim, tl_tensor *out, int n);
#define tl_chunk(t, x, n, dim, out) tl_chunk_at(TL_AT(t), x, n, dim, out)
tl_status tl_chunk_at(tl_at at, tl_tensor x, int n, int dim, tl_tensor *out);
#define tl_split_sizes(t, x, sizes, n, dim, out) tl_split_sizes_at(TL_AT(t), x, sizes, n, dim, out)
tl_status tl_split_sizes_at(tl_at at, tl_tensor x, const int64_t *sizes, int n, int dim,
                            tl_tensor *out);

#define TL_ALL (TL_MAKE(tl_shape){-1, {0}})
#define tl_sum(t, x, dims, keepdims) tl_sum_at(TL_AT(t), x, dims, keepdims)
tl_tensor tl_sum_at(tl_at at, tl_tensor x, tl_shape dims, bool keepdims);
#define tl_mean(t, x, dims, keepdims) tl_mean_at(TL_AT(t), x, dims, keepdims)
tl_tensor tl_mean_at(tl_at at, tl_tensor x, tl_shape dims, bool keepdims);
#define tl_max(t, x, dims, keepdims) tl_max_at(TL_AT(t), x, dims, keepdims)
tl_tensor tl_max_at(tl_at at, tl_tensor x, tl_shape dims, bool keepdims);
#define tl_argmax(t, x, dim, keepdims) tl_argmax_at(TL_AT(t), x, dim, keepdims)
tl_tensor tl_argmax_at(tl_at at, tl_tensor x, int dim, bool keepdims);
#define tl_min(t, x, dims, keepdims) tl_min_at(TL_AT(t), x, dims, keepdims)
tl_tensor tl_min_at(tl_at at, tl_tensor x, tl_shape dims, bool keepdims);
#define tl_var(t, x, dims, correction, keepdims) tl_var_at(TL_AT(t), x, dims, correction, keepdims)
tl_tensor tl_var_at(tl_at at, tl_tensor x, tl_shape dims, int correction, bool keepdims);
#define tl_mse(t, a, b) tl_mse_at(TL_AT(t), a, b)
tl_tensor tl_mse_at(tl_at at, tl_tensor a, tl_tensor b);
#define tl_cumsum(t, x, dim, reverse) tl_cumsum_at(TL_AT(t), x, dim, reverse)
tl_tensor tl_cumsum_at(tl_at at, tl_tensor x, int dim, bool reverse);
#define tl_sum_to(t, x, shape, acc) tl_sum_to_at(TL_AT(t), x, shape, acc)
tl_tensor tl_sum_to_at(tl_at at, tl_tensor x, tl_shape shape, tl_tensor acc);

#define tl_matmul(t, a, b) tl_matmul_at(TL_AT(t), a, b)
tl_tensor tl_matmul_at(tl_at at, tl_tensor a, tl_tensor b);
typedef struct {
    /* of the output; operand batch dims that it has as 1 (or lacks) are folded into the chain */
    tl_shape batch;
    bool acc_f64; /* chain in f64 */
    bool wide;    /* the result stays in the compute type */
} tl_matmul_attrs;
/* a @ b folded to batch dims `batch`, continuing acc (may be absent) in place */
tl_tensor tl_matmul_into_at(tl_at at, tl_tensor a, tl_tensor b, tl_tensor acc,
                            tl_matmul_attrs attrs);
#define tl_matmul_acc64(t, a, b) tl_matmul_acc64_at(TL_AT(t), a, b)
tl_tensor tl_matmul_acc64_at(tl_at at, tl_tensor a, tl_tensor b);
#define tl_matmul_to(t, a, b, dtype) tl_matmul_to_at(TL_AT(t), a, b, dtype)
tl_tensor tl_matmul_to_at(tl_at at, tl_tensor a, tl_tensor b, tl_dtype dtype);
#define tl_mm(t, a, b) tl_mm_at(TL_AT(t), a, b)
tl_tensor tl_mm_at(tl_at at, tl_tensor a, tl_tensor b);
#define tl_bmm(t, a, b) tl_bmm_at(TL_AT(t), a, b)
tl_tensor tl_bmm_at(tl_at at, tl_tensor a, tl_tensor b);
#define tl_addmm(t, c, a, b, beta, alpha) tl_addmm_at(TL_AT(t), c, a, b, beta, alpha)
tl_tensor tl_addmm_at(tl_at at, tl_tensor c, tl_tensor a, tl_tensor b, double beta, double alpha);

#define tl_softmax(t, x, dim) tl_softmax_at(TL_AT(t), x, dim)
tl_tensor tl_softmax_at(tl_at at, tl_tensor x, int dim);
#define tl_log_softmax(t, x, dim) tl_log_softmax_at(TL_AT(t), x, dim)
tl_tensor tl_log_softmax_at(tl_at at, tl_tensor x, int dim);

#define tl_rms_norm(t, x, gamma, eps) tl_rms_norm_at(TL_AT(t), x, gamma, eps, NULL)
#define tl_rms_norm_rstd(t, x, gamma, eps, rstd) tl_rms_norm_at(TL_AT(t), x, gamma, eps, rstd)
tl_tensor tl_rms_norm_at(tl_at at, tl_tensor x, tl_tensor gamma, double eps, tl_tensor *rstd);
#define tl_rms_norm_dims(t, x, n, eps) tl_rms_norm_dims_at(TL_AT(t), x, n, eps)
tl_tensor tl_rms_norm_dims_at(tl_at at, tl_tensor x, int n, double eps);
#define tl_logsumexp(t, x, dims, keepdims) tl_logsumexp_at(TL_AT(t), x, dims, keepdims)
tl_tensor tl_logsumexp_at(tl_at at, tl_tensor x, tl_shape dims, bool keepdims);
#define tl_rms_norm_plus_one(t, x, gamma, eps) \
    tl_rms_norm_plus_one_at(TL_AT(t), x, gamma, eps, NULL)
tl_tensor tl_rms_norm_plus_one_at(tl_at at, tl_tensor x, tl_tensor gamma, double eps,
                                  tl_tensor *rstd);
#define tl_add_rms_norm(t, x1, x2, gamma, eps, rstd, sum) \
    tl_add_rms_norm_at(TL_AT(t), x1, x2, gamma, eps, rstd, sum)
tl_tensor tl_add_rms_norm_at(tl_at at, tl_tensor x1, tl_tensor x2, tl_tensor gamma, double eps,
                             tl_tensor *rstd, tl_tensor *sum);

#define tl_layer_norm(t, x, gamma, beta, eps) \
    tl_layer_norm_at(TL_AT(t), x, gamma, beta, eps, NULL, NULL)
#define tl_layer_norm_stats(t, x, gamma, beta, eps, mean, rstd) \
    tl_layer_norm_at(TL_AT(t), x, gamma, beta, eps, mean, rstd)
tl_tensor tl_layer_norm_at(tl_at at, tl_tensor x, tl_tensor gamma, tl_tensor beta, double eps,
                           tl_tensor *mean, tl_tensor *rstd);

typedef enum { TL_ROTARY_HALF = 1, TL_ROTARY_INTERLEAVED = 2 } tl_rotary_pairing;
#define tl_rotary(t, x, r1, r2, pairing) tl_rotary_at(TL_AT(t), x, r1, r2, pairing)
tl_tensor tl_rotary_at(tl_at at, tl_tensor x, tl_tensor r1, tl_tensor r2,
                       tl_rotary_pairing pairing);
#define tl_rotary_turned(t, x, r1, r2, pairing) tl_rotary_turned_at(TL_AT(t), x, r1, r2, pairing)
tl_tensor tl_rotary_turned_at(tl_at at, tl_tensor x, tl_tensor r1, tl_tensor r2,
                              tl_rotary_pairing pairing);
#define tl_rotary_halves(t, x1, x2, c, s, conjugate, y2) \
    tl_rotary_halves_at(TL_AT(t), x1, x2, c, s, conjugate, y2)
tl_tensor tl_rotary_halves_at(tl_at at, tl_tensor x1, tl_tensor x2, tl_tensor c, tl_tensor s,
                              bool conjugate, tl_tensor *y2);
#define tl_rotary_(t, x, r1, r2, pairing) tl_rotary_inplace_at(TL_AT(t), x, r1, r2, pairing)
tl_tensor tl_rotary_inplace_at(tl_at at, tl_tensor x, tl_tensor r1, tl_tensor r2,
                               tl_rotary_pairing pairing);
#define tl_rotary_ids(t, x, r1, r2, ids, seq, pairing) \
    tl_rotary_ids_at(TL_AT(t), x, r1, r2, ids, seq, pairing)
tl_tensor tl_rotary_ids_at(tl_at at, tl_tensor x, tl_tensor r1, tl_tensor r2, tl_tensor ids,
                           int seq, tl_rotary_pairing pairing);
#define tl_rotary_offsets(t, x, r1, r2, offset, seq, pairing) \
    tl_rotary_offsets_at(TL_AT(t), x, r1, r2, offset, seq, pairing)
tl_tensor tl_rotary_offsets_at(tl_at at, tl_tensor x, tl_tensor r1, tl_tensor r2, tl_tensor offset,
                               int seq, tl_rotary_pairing pairing);
#define tl_positions(t, offset, n) tl_positions_at(TL_AT(t), offset, TL_NONE, n)
#define tl_positions_after(t, start, offset, n) tl_positions_at(TL_AT(t), offset, start, n)
tl_tensor tl_positions_at(tl_at at, tl_tensor offset, tl_tensor start, int64_t n);
#define tl_rotary_widen(t, half, pairing) tl_rotary_widen_at(TL_AT(t), half, pairing)
tl_tensor tl_rotary_widen_at(tl_at at, tl_tensor half, tl_rotary_pairing pairing);
/* cos and sin tables (positions, dim) for positions first .. first+n-1 (NUMERICS 8.3), in f32; in
 * f64, for x in f64; with the frequencies scaled for long contexts as in Llama 3 (NUMERICS 8.6). */
tl_status tl_rotary_table(int64_t first, int64_t n, int64_t dim, double base,
                          tl_rotary_pairing pairing, float *r1, float *r2);
tl_status tl_rotary_table64(int64_t first, int64_t n, int64_t dim, double base,
                            tl_rotary_pairing pairing, double *r1, double *r2);
typedef struct {
    double factor;                            /* 8: long waves turn 8 times slower */
    double low_freq_factor, high_freq_factor; /* 1, 4; low < high */
    double original;                          /* positions trained on: 8192 */
} tl_rotary_scaling;
tl_status tl_rotary_table_scaled(int64_t first, int64_t n, int64_t dim, double base,
                                 tl_rotary_pairing pairing, const tl_rotary_scaling *scaling,
                                 float *r1, float *r2);

#define tl_embedding(t, table, ids) tl_embedding_at(TL_AT(t), table, ids)
tl_tensor tl_embedding_at(tl_at at, tl_tensor table, tl_tensor ids);
#define tl_embedding_padded(t, table, ids, padding) \
    tl_embedding_padded_at(TL_AT(t), table, ids, padding)
tl_tensor tl_embedding_padded_at(tl_at at, tl_tensor table, tl_tensor ids, int64_t padding);
#define tl_embedding_acc64(t, table, ids) tl_embedding_acc64_at(TL_AT(t), table, ids)
tl_tensor tl_embedding_acc64_at(tl_at at, tl_tensor table, tl_tensor ids);

#define tl_gather(t, x, ids, dim) tl_gather_at(TL_AT(t), x, ids, dim)
tl_tensor tl_gather_at(tl_at at, tl_tensor x, tl_tensor ids, int dim);
#define tl_scatter_add_dim(t, dy, ids, dim, shape) \
    tl_scatter_add_dim_at(TL_AT(t), dy, ids, dim, shape)
tl_tensor tl_scatter_add_dim_at(tl_at at, tl_tensor dy, tl_tensor ids, int dim, tl_shape shape);
#define tl_one_hot(t, ids, classes, dtype) tl_one_hot_at(TL_AT(t), ids, classes, dtype)
tl_tensor tl_one_hot_at(tl_at at, tl_tensor ids, int64_t classes, tl_dtype dtype);

typedef enum { TL_MEAN = 1, TL_SUM = 2, TL_EACH = 3 /* each row's loss */ } tl_reduction;
typedef struct {
    tl_reduction reduction;
    /* rows with this target count for nothing; default 0 means none unless `ignore` is set */
    int64_t ignore_index;
    bool ignore;
    tl_tensor count; /* 0-d f64: divide by this instead of the rows here (micro-batches) */
    tl_tensor total; /* 0-d f64 of the model: continued in place with the sum of losses */
    /* of the labels: 1 - smoothing on the target, smoothing spread over all classes */
    double smoothing;
    /* (classes): each class's log-probability times this; the mean divides by the sum of the
     * targets' weights, unless `count` is given */
    tl_tensor weight;
    int dim; /* of the classes; 0: the last (the first is -ndim) */
} tl_cross_entropy_options;
#define tl_cross_entropy(t, logits, targets, ...)  \
    tl_cross_entropy_at(TL_AT(t), logits, targets, \
                        TL_MAKE(tl_cross_entropy_options){.reduction = __VA_ARGS__})
tl_tensor tl_cross_entropy_at(tl_at at, tl_tensor logits, tl_tensor targets,
                              tl_cross_entropy_options o);

#define tl_nll(t, logp, targets, ...) \
    tl_nll_at(TL_AT(t), logp, targets, TL_MAKE(tl_cross_entropy_options){.reduction = __VA_ARGS__})
tl_tensor tl_nll_at(tl_at at, tl_tensor logp, tl_tensor targets, tl_cross_entropy_options o);

typedef struct {
    tl_reduction reduction;
    tl_tensor weight, pos_weight; /* of each loss; of its part by y. They broadcast to x */
} tl_bce_options;
#define tl_bce_with_logits(t, x, y, ...) \
    tl_bce_with_logits_at(TL_AT(t), x, y, TL_MAKE(tl_bce_options){.reduction = __VA_ARGS__})
tl_tensor tl_bce_with_logits_at(tl_at at, tl_tensor x, tl_tensor y, tl_bce_options o);

typedef struct {
    double scale; /* 0: 1/sqrt(d) */
    bool full;    /* every key allowed; default: causal, the last query sees the last key */
    /* i64 (b): sample i sees keys key_start[i] <= j < key_end[i] alone, as a batch padded on the
     * left or right needs; absent: 0, sk. A query that sees no key gives 0 */
    tl_tensor key_start, key_end;
} tl_attention_options;
#define tl_attention(t, q, k, v, ...) \
    tl_attention_at(TL_AT(t), q, k, v, TL_MAKE(tl_attention_options){__VA_ARGS__})
tl_tensor tl_attention_at(tl_at at, tl_tensor q, tl_tensor k, tl_tensor v, tl_attention_options o);
#define tl_causal_mask(t, queries, keys, ...) \
    tl_causal_mask_at(TL_AT(t), queries, keys, TL_MAKE(tl_attention_options){__VA_ARGS__})
tl_tensor tl_causal_mask_at(tl_at at, int64_t queries, int64_t keys, tl_attention_options o);

typedef struct {
    double p;
    const char *stream; /* a name of its own for every place in the program */
    /* i64: the number of x's row 0 (0-d; rows follow), or of each row (b); absent: 0 */
    tl_tensor sample;
    /* i64 (b): row i of x (b, s, ...) begins at index start[i] of axis 1, after padding, which
     * becomes 0 */
    tl_tensor start;
} tl_dropout_options;
#define tl_dropout(t, x, ...) \
    tl_dropout_at(TL_AT(t), x, TL_MAKE(tl_dropout_options){.p = __VA_ARGS__})
tl_tensor tl_dropout_at(tl_at at, tl_tensor x, tl_dropout_options o);
TL_END
#endif
