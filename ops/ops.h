/* ops.h: every op, with its formula. Public.
 *
 * An op takes a tape and tensors, and returns a new tensor of the tape (tally.h has the rules of
 * errors and ownership). Floats are f64, f32, f16 and bf16. The card that opens an op's file says
 * more. This page leaves out tl_ and the tape: neg(x) is tl_neg(t, x).
 *
 * Pointwise: operands broadcast. f32, f16 and bf16 may be mixed, which gives f32; f64 goes with
 * f64 only. A constant c is rounded to the compute type: f32 for f16 and bf16, else x's dtype.
 *   neg(x)         -x                 exp(x)      e^x                sigmoid(x)   1/(1 + e^-x)
 *   abs(x)         |x|                expm1(x)    e^x - 1            softplus(x)  log(1 + e^x)
 *   square(x)      x*x                exp2(x)     2^x                relu(x)      max(x, 0)
 *   reciprocal(x)  1/x                log(x)                         silu(x)      x*sigmoid(x)
 *   sqrt(x)                           log1p(x)    log(1 + x)         gelu(x)      x*Phi(x), by erf
 *   rsqrt(x)       1/sqrt(x)          log2(x)                        gelu_tanh(x) gelu, by tanh
 *   sin(x) cos(x) tanh(x) erf(x)      pow(x, c)   x^c                swiglu(a, b) silu(a)*b
 *   add(a, b)      a + b              sub(a, b)   a - b              mul(a, b)    a*b
 *   div(a, b)      a/b                maximum(a, b)                  minimum(a, b)
 *   scale(x, c)    x*c                shift(x, c) x + c              cast(x, dtype)
 *   clamp(x, lo, hi)                  x limited to [lo, hi]; an infinite bound is no bound
 *   eq(a, b) ne(a, b) lt(a, b)        a == b, a != b, a < b,
 *   le(a, b) gt(a, b) ge(a, b)        a <= b, a > b, a >= b, as bool
 *   where(cond, a, b)                 cond ? a : b, of floats, i64 or bool
 *   logical_and(a, b) logical_or(a, b) logical_not(x)  bool; in other dtypes, nonzero is true
 *   floor_divide(a, b) remainder(a, b)  i64, rounded down; add, sub, mul take i64, too, mod 2^64
 *   fill(dtype, shape, value) masked_fill(x, mask, value)  value everywhere; mask ? value : x
 *   silu_grad(dy, x)                  dy*(s*(1 + x*(1 - s))), s = sigmoid(x)
 *   gelu_grad(dy, x) gelu_tanh_grad(dy, x)  the gradients of gelu and gelu_tanh (NUMERICS 2.9)
 *
 * Movement. Negative dims count from the end. The first six give views, which share x's storage.
 *   reshape(x, shape)                 one size may be -1; copies where the strides allow no view
 *   permute(x, dims)                  dim i of the result is dim dims[i] of x
 *   transpose(x, d0, d1)              two dims swapped
 *   slice(x, dim, start, stop, step)  every step-th index of a dim, step > 0; start and stop as in
 *                                     Python: negative from the end, then cut to [0, size]
 *   select(x, dim, index)             one index of a dim, which is dropped
 *   expand(x, shape)                  x broadcast to a shape
 *   diagonal(x, offset, dim1, dim2)   elements (i, i + offset) of two dims, as the last dim
 *   tril(x, k) triu(x, k)             x where column <= row + k (triu: >=), else 0; last two dims
 *   arange(dtype, start, stop, step)  start, start + step, ... before stop
 *   contiguous(x)                     row-major; x itself where it already is
 *   concat(xs, n, dim)                n tensors joined along a dim
 *   stack(xs, n, dim)                 n tensors of one shape along a new dim
 *   split(x, size, dim, out, n)       sets out[0 .. n) to views of x: pieces of `size` along a dim
 *   chunk(x, n, dim, out)             the same with pieces of ceil(length/n), which must make n
 *   split_sizes(x, sizes, n, dim, out)  the same with these sizes; n is the number of pieces
 *   slice_grad(dy, size, dim, start, step)  zeros, with dy where slice took its elements from
 *
 * Reductions over dims: TL_DIMS(...) or TL_ALL. keepdims keeps them as size 1.
 *   sum(x, dims, keepdims) mean(x, dims, keepdims)  the mean divides by the number of elements
 *   max(x, dims, keepdims) min(x, dims, keepdims)   NaN wins, +0 > -0
 *   argmax(x, dim, keepdims)          i64: the index of the first maximum
 *   var(x, dims, correction, keepdims)  sum of (x - mean)^2, divided by n - correction (0 or 1)
 *   mse(a, b)                         mean of (a - b)^2 over all elements; only one may broadcast
 *   cumsum(x, dim, reverse)           running sums along a dim, from its start or (reverse) end
 *   argsort(x, dim, descending)       i64: indices by x; NaN is the largest; ties keep their order
 *   sort(x, dim, descending, ids)     x in that order; sets *ids to the indices, unless ids is NULL
 *   topk(x, k, dim, smallest, ids)    the first k in descending (smallest: ascending) order
 *   sum_to(x, shape, acc)             x summed down to a shape that broadcasts to x's, and added in
 *                                     place to acc, f64 (f32 for an x of that shape), or TL_NONE
 *
 * Products.
 *   matmul(a, b)                      (..., m, k) @ (..., k, n), batches broadcast; 1-d as in numpy
 *   matmul_acc64(a, b)                matmul, summed and accumulated in f64 and rounded once
 *   matmul_to(a, b, dtype)            matmul, summed in the compute type and rounded once, to dtype
 *   mm(a, b) bmm(a, b)                (m, k) @ (k, n); (b, m, k) @ (b, k, n)
 *   addmm(c, a, b, beta, alpha)       beta*c + alpha*(a @ b), a and b 2-d; c broadcasts to (m, n).
 *                                     With beta = 0, c's numbers are ignored; it has no gradient
 *
 * Windows. Options follow, as .name = value.
 *   conv2d(x, w)                      x (n, c, h, w), w (o, c/groups, kh, kw) -> (n, o, oh, ow)
 *   conv1d(x, w)                      x (n, c, l), w (o, c/groups, k) -> (n, o, ol)
 *   max_pool2d(x) avg_pool2d(x)       the maximum or mean of each window of (h, w)
 *   max_pool1d(x) avg_pool1d(x)       the same for windows of (l). A mean counts padding as zeros
 *   pad(x, dim, before, after, value)  x with constants before and after it along a dim
 *
 * Rows. gamma and beta have the shape of x's last dims, which are the row; either may be TL_NONE.
 *   softmax(x, dim) log_softmax(x, dim)  e^(x - max), divided by its sum; the logarithm of that
 *   logsumexp(x, dims, keepdims)      log of the sum of e^x over dims
 *   rms_norm(x, gamma, eps)           x*rstd*gamma, rstd = 1/sqrt(mean(x^2) + eps). eps = NAN means
 *                                     the compute type's epsilon; eps < 0 is an error
 *   rms_norm_dims(x, n, eps)          over the last n dims, without a weight
 *   rms_norm_plus_one(x, gamma, eps)  with 1 + gamma as the weight
 *   rms_norm_rstd(x, gamma, eps, rstd)  rms_norm; also sets *rstd
 *   add_rms_norm(x1, x2, gamma, eps, rstd, sum)  rms_norm(x1 + x2). The sum is rounded first, as
 *                                     two ops would; sets *rstd and *sum = x1 + x2 unless NULL
 *   layer_norm(x, gamma, beta, eps)   (x - mean)*rstd*gamma + beta, rstd = 1/sqrt(var + eps)
 *   layer_norm_stats(x, gamma, beta, eps, mean, rstd)  also sets *mean and *rstd, unless NULL
 *
 * Positions. r1 holds cosines, r2 sines. R(x) turns a pair (a, b) into (-b, a). Elements i and i +
 * d/2 are a pair (TL_ROTARY_HALF), or 2i and 2i + 1 (TL_ROTARY_INTERLEAVED); there is no default.
 *   rotary(x, r1, r2, pairing)        r1*x + r2*R(x)
 *   rotary_turned(x, r1, r2, pairing) the conjugate: r1*x - R(r2*x)
 *   rotary_(x, r1, r2, pairing)       rotary in place, also on a view: consumes x, returns its new
 *                                     handle. TL_EINPLACE: a table, or a leaf x, takes a gradient
 *   rotary_halves(x1, x2, c, s, conjugate, y2)  on separate halves (..., h): y1 = c*x1 - s*x2 and
 *                                     *y2 = c*x2 + s*x1; the conjugate has -s for s
 *   rotary_ids(x, r1, r2, ids, seq, pairing)  with rows of full tables (positions, d), looked up by
 *                                     ids, i64 (b, s) or (s). seq is x's dim of positions; axis 0
 *                                     (1 if that is 0) is the batch. TL_EINDEX outside the table
 *   rotary_offsets(x, r1, r2, offset, seq, pairing)  the same for positions offset[i], offset[i] +
 *                                     1, ... of sample i; offset is i64 (b)
 *   rotary_widen(half, pairing)       a half-width table (..., d/2) widened to (..., d)
 *   positions(offset, n)              i64 (b, n): offset[i] + j. TL_EINDEX beyond 64 bits
 *   positions_after(start, offset, n) max(0, offset[i] + j - start[i]); tokens begin at start (b)
 *
 * Lookup. ids are i64; an id outside the table or dim is TL_EINDEX.
 *   embedding(table, ids)             rows of table (rows, n), of any dtype -> (ids..., n)
 *   embedding_padded(table, ids, padding)  the same; row number `padding` takes no gradient
 *   embedding_acc64(table, ids)       embedding with a gradient that folds in f64
 *   gather(x, ids, dim)               elements along dim; ids has x's rank, other dims at most x's
 *   index_select(x, dim, ids)         slices of x by number along a dim; ids (n)
 *   scatter_add_dim(dy, ids, dim, shape)  gather's gradient: dy added to zeros in the compute type
 *   one_hot(ids, classes, dtype)      (..., classes) of ones and zeros
 *
 * Recurrence. Options follow as .name = value. The layers in nn.h (tl_lstm, ...) own the weights.
 *   recur(gates, w, cell)             all steps of an LSTM, GRU or RNN of n units (G = 4, 3, 1):
 *                                     the input's gates (b, s, G*n), w (G*n, n), of one float dtype
 *                                     -> states (b, s, n). TL_EDOMAIN: no such cell. TL_ESHAPE,
 *                                     TL_EDTYPE: an operand or option does not fit (c: LSTMs only)
 *
 * Training. Options follow as .name = value, but reduction, p and stream go first and bare.
 *   cross_entropy(logits, targets, reduction)  -log_softmax(logits) at the targets: logits (...,
 *                                     classes), targets i64 (...) -> 0-d, or (...) for TL_EACH
 *   nll(logp, targets, reduction)     the same of log-probabilities, without smoothing
 *   bce_with_logits(x, y, reduction)  -(y*log(sigmoid(x)) + (1 - y)*log(1 - sigmoid(x)))
 *   attention(q, k, v)                softmax(scale*(q k^T)) v: q (b, hq, sq, d), k and v (b, hkv,
 *                                     sk, d), hq a multiple of hkv -> (b, hq, sq, d), laid out as q
 *   causal_mask(queries, keys)        the keys that attention allows, bool (queries, keys), or (b,
 *                                     queries, keys) with ranges: key j <= query i + keys - queries
 *   dropout(x, p)                     0 with probability p, else x/(1 - p); x itself under TL_EVAL.
 *                                     A draw depends on the model's seed, the stream, the sample's
 *                                     number and the place in the sample, and on nothing else
 *
 * Randomness. Draws as in dropout, of one dim or more; with sample numbers, axis 0 holds samples.
 *   uniform(dtype, shape, stream) normal(dtype, shape, stream)  in [0, 1), rounded; mean 0, var 1
 *   bernoulli(p, stream)              1 with probability p, else 0 (in padding 1, if p > 0); as p
 *                                     TL_EDOMAIN if p is outside [0, 1], unless it is traced
 *   permutation(n, stream)            0 .. n-1 in random order, i64 (n); with sample (b): (b, n) */
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
#define TL_BINARY_OPS(X)                                                                         \
    X(add) X(sub) X(mul) X(div) X(maximum) X(minimum) X(eq) X(ne) X(lt) X(le) X(gt) X(ge)        \
    X(swiglu) X(silu_grad) X(gelu_grad) X(gelu_tanh_grad)
#define X(name) tl_tensor tl_##name##_at(tl_at at, tl_tensor x);
TL_UNARY_OPS(X)
#undef X
#define X(name) tl_tensor tl_##name##_at(tl_at at, tl_tensor a, tl_tensor b);
TL_BINARY_OPS(X)
#undef X
#define tl_neg(t, x)        TL_OP(neg, t, x)
#define tl_abs(t, x)        TL_OP(abs, t, x)
#define tl_square(t, x)     TL_OP(square, t, x)
#define tl_reciprocal(t, x) TL_OP(reciprocal, t, x)
#define tl_sqrt(t, x)       TL_OP(sqrt, t, x)
#define tl_rsqrt(t, x)      TL_OP(rsqrt, t, x)
#define tl_exp(t, x)        TL_OP(exp, t, x)
#define tl_log(t, x)        TL_OP(log, t, x)
#define tl_sin(t, x)        TL_OP(sin, t, x)
#define tl_cos(t, x)        TL_OP(cos, t, x)
#define tl_tanh(t, x)       TL_OP(tanh, t, x)
#define tl_sigmoid(t, x)    TL_OP(sigmoid, t, x)
#define tl_relu(t, x)       TL_OP(relu, t, x)
#define tl_silu(t, x)       TL_OP(silu, t, x)
#define tl_erf(t, x)        TL_OP(erf, t, x)
#define tl_log1p(t, x)      TL_OP(log1p, t, x)
#define tl_expm1(t, x)      TL_OP(expm1, t, x)
#define tl_exp2(t, x)       TL_OP(exp2, t, x)
#define tl_log2(t, x)       TL_OP(log2, t, x)
#define tl_softplus(t, x)   TL_OP(softplus, t, x)
#define tl_gelu(t, x)       TL_OP(gelu, t, x)
#define tl_gelu_tanh(t, x)  TL_OP(gelu_tanh, t, x)

#define tl_add(t, a, b)             TL_OP(add, t, a, b)
#define tl_sub(t, a, b)             TL_OP(sub, t, a, b)
#define tl_mul(t, a, b)             TL_OP(mul, t, a, b)
#define tl_div(t, a, b)             TL_OP(div, t, a, b)
#define tl_maximum(t, a, b)         TL_OP(maximum, t, a, b)
#define tl_minimum(t, a, b)         TL_OP(minimum, t, a, b)
#define tl_eq(t, a, b)              TL_OP(eq, t, a, b)
#define tl_ne(t, a, b)              TL_OP(ne, t, a, b)
#define tl_lt(t, a, b)              TL_OP(lt, t, a, b)
#define tl_le(t, a, b)              TL_OP(le, t, a, b)
#define tl_gt(t, a, b)              TL_OP(gt, t, a, b)
#define tl_ge(t, a, b)              TL_OP(ge, t, a, b)
#define tl_swiglu(t, a, b)          TL_OP(swiglu, t, a, b)
#define tl_silu_grad(t, dy, x)      TL_OP(silu_grad, t, dy, x)
#define tl_gelu_grad(t, dy, x)      TL_OP(gelu_grad, t, dy, x)
#define tl_gelu_tanh_grad(t, dy, x) TL_OP(gelu_tanh_grad, t, dy, x)

#define tl_scale(t, x, c)                 TL_OP(scale, t, x, c)
#define tl_shift(t, x, c)                 TL_OP(shift, t, x, c)
#define tl_pow(t, x, c)                   TL_OP(pow, t, x, c)
#define tl_clamp(t, x, lo, hi)            TL_OP(clamp, t, x, lo, hi)
#define tl_masked_fill(t, x, mask, value) TL_OP(masked_fill, t, x, mask, value)
#define tl_where(t, cond, a, b)           TL_OP(where, t, cond, a, b)
#define tl_logical_and(t, a, b)           TL_OP(logical_and, t, a, b)
#define tl_logical_or(t, a, b)            TL_OP(logical_or, t, a, b)
#define tl_logical_not(t, x)              TL_OP(logical_not, t, x)
#define tl_floor_divide(t, a, b)          TL_OP(floor_divide, t, a, b)
#define tl_remainder(t, a, b)             TL_OP(remainder, t, a, b)
#define tl_cast(t, x, dtype)              TL_OP(cast, t, x, dtype)
#define tl_fill(t, dtype, shape, value)   TL_OP(fill, t, dtype, shape, value)
tl_tensor tl_scale_at(tl_at at, tl_tensor x, double c);
tl_tensor tl_shift_at(tl_at at, tl_tensor x, double c);
tl_tensor tl_pow_at(tl_at at, tl_tensor x, double c);
tl_tensor tl_clamp_at(tl_at at, tl_tensor x, double lo, double hi);
tl_tensor tl_masked_fill_at(tl_at at, tl_tensor x, tl_tensor mask, double value);
tl_tensor tl_where_at(tl_at at, tl_tensor cond, tl_tensor a, tl_tensor b);
tl_tensor tl_logical_and_at(tl_at at, tl_tensor a, tl_tensor b);
tl_tensor tl_logical_or_at(tl_at at, tl_tensor a, tl_tensor b);
tl_tensor tl_logical_not_at(tl_at at, tl_tensor x);
tl_tensor tl_floor_divide_at(tl_at at, tl_tensor a, tl_tensor b);
tl_tensor tl_remainder_at(tl_at at, tl_tensor a, tl_tensor b);
tl_tensor tl_cast_at(tl_at at, tl_tensor x, tl_dtype dtype);
tl_tensor tl_fill_at(tl_at at, tl_dtype dtype, tl_shape shape, double value);

#define tl_reshape(t, x, shape)                  TL_OP(reshape, t, x, shape)
#define tl_permute(t, x, dims)                   TL_OP(permute, t, x, dims)
#define tl_transpose(t, x, d0, d1)               TL_OP(transpose, t, x, d0, d1)
#define tl_slice(t, x, dim, start, stop, step)   TL_OP(slice, t, x, dim, start, stop, step)
#define tl_select(t, x, dim, index)              TL_OP(select, t, x, dim, index)
#define tl_expand(t, x, shape)                   TL_OP(expand, t, x, shape)
#define tl_diagonal(t, x, offset, dim1, dim2)    TL_OP(diagonal, t, x, offset, dim1, dim2)
#define tl_tril(t, x, k)                         TL_OP(tril, t, x, k)
#define tl_triu(t, x, k)                         TL_OP(triu, t, x, k)
#define tl_arange(t, dtype, start, stop, step)   TL_OP(arange, t, dtype, start, stop, step)
#define tl_contiguous(t, x)                      TL_OP(contiguous, t, x)
#define tl_concat(t, ...)                        TL_OP(concat, t, __VA_ARGS__) /* xs, n, dim */
#define tl_stack(t, ...)                         TL_OP(stack, t, __VA_ARGS__)  /* xs, n, dim */
#define tl_split(t, x, size, dim, out, n)        TL_OP(split, t, x, size, dim, out, n)
#define tl_chunk(t, x, n, dim, out)              TL_OP(chunk, t, x, n, dim, out)
#define tl_split_sizes(t, x, ...) TL_OP(split_sizes, t, x, __VA_ARGS__) /* sizes, n, dim, out */
#define tl_slice_grad(t, dy, ...) TL_OP(slice_grad, t, dy, __VA_ARGS__) /* size, dim, start, step */
tl_tensor tl_reshape_at(tl_at at, tl_tensor x, tl_shape shape);
tl_tensor tl_permute_at(tl_at at, tl_tensor x, tl_shape dims);
tl_tensor tl_transpose_at(tl_at at, tl_tensor x, int d0, int d1);
tl_tensor tl_slice_at(tl_at at, tl_tensor x, int dim, int64_t start, int64_t stop, int64_t step);
tl_tensor tl_select_at(tl_at at, tl_tensor x, int dim, int64_t index);
tl_tensor tl_expand_at(tl_at at, tl_tensor x, tl_shape shape);
tl_tensor tl_diagonal_at(tl_at at, tl_tensor x, int64_t offset, int dim1, int dim2);
tl_tensor tl_tril_at(tl_at at, tl_tensor x, int64_t k);
tl_tensor tl_triu_at(tl_at at, tl_tensor x, int64_t k);
tl_tensor tl_arange_at(tl_at at, tl_dtype dtype, double start, double stop, double step);
tl_tensor tl_contiguous_at(tl_at at, tl_tensor x);
tl_tensor tl_concat_at(tl_at at, const tl_tensor *xs, int n, int dim);
tl_tensor tl_stack_at(tl_at at, const tl_tensor *xs, int n, int dim);
tl_status tl_split_at(tl_at at, tl_tensor x, int64_t size, int dim, tl_tensor *out, int n);
tl_status tl_chunk_at(tl_at at, tl_tensor x, int n, int dim, tl_tensor *out);
tl_status tl_split_sizes_at(tl_at at, tl_tensor x, const int64_t *sizes, int n, int dim,
                            tl_tensor *out);
tl_tensor tl_slice_grad_at(tl_at at, tl_tensor dy, int64_t size, int dim, int64_t start,
                           int64_t step);

#define TL_ALL (TL_MAKE(tl_shape){-1, {0}})
#define tl_sum(t, x, dims, keepdims)             TL_OP(sum, t, x, dims, keepdims)
#define tl_mean(t, x, dims, keepdims)            TL_OP(mean, t, x, dims, keepdims)
#define tl_max(t, x, dims, keepdims)             TL_OP(max, t, x, dims, keepdims)
#define tl_min(t, x, dims, keepdims)             TL_OP(min, t, x, dims, keepdims)
#define tl_argmax(t, x, dim, keepdims)           TL_OP(argmax, t, x, dim, keepdims)
#define tl_var(t, x, dims, correction, keepdims) TL_OP(var, t, x, dims, correction, keepdims)
#define tl_mse(t, a, b)                          TL_OP(mse, t, a, b)
#define tl_cumsum(t, x, dim, reverse)            TL_OP(cumsum, t, x, dim, reverse)
#define tl_argsort(t, x, dim, descending)        TL_OP(argsort, t, x, dim, descending)
#define tl_sort(t, x, dim, descending, ids)      TL_OP(sort, t, x, dim, descending, ids)
#define tl_topk(t, x, k, dim, smallest, ids)     TL_OP(topk, t, x, k, dim, smallest, ids)
#define tl_sum_to(t, x, shape, acc)              TL_OP(sum_to, t, x, shape, acc)
tl_tensor tl_sum_at(tl_at at, tl_tensor x, tl_shape dims, bool keepdims);
tl_tensor tl_mean_at(tl_at at, tl_tensor x, tl_shape dims, bool keepdims);
tl_tensor tl_max_at(tl_at at, tl_tensor x, tl_shape dims, bool keepdims);
tl_tensor tl_min_at(tl_at at, tl_tensor x, tl_shape dims, bool keepdims);
tl_tensor tl_argmax_at(tl_at at, tl_tensor x, int dim, bool keepdims);
tl_tensor tl_var_at(tl_at at, tl_tensor x, tl_shape dims, int correction, bool keepdims);
tl_tensor tl_mse_at(tl_at at, tl_tensor a, tl_tensor b);
tl_tensor tl_cumsum_at(tl_at at, tl_tensor x, int dim, bool reverse);
tl_tensor tl_argsort_at(tl_at at, tl_tensor x, int dim, bool descending);
tl_tensor tl_sort_at(tl_at at, tl_tensor x, int dim, bool descending, tl_tensor *ids);
tl_tensor tl_topk_at(tl_at at, tl_tensor x, int64_t k, int dim, bool smallest, tl_tensor *ids);
tl_tensor tl_sum_to_at(tl_at at, tl_tensor x, tl_shape shape, tl_tensor acc);

#define tl_matmul(t, a, b)                TL_OP(matmul, t, a, b)
#define tl_matmul_acc64(t, a, b)          TL_OP(matmul_acc64, t, a, b)
#define tl_matmul_to(t, a, b, dtype)      TL_OP(matmul_to, t, a, b, dtype)
#define tl_mm(t, a, b)                    TL_OP(mm, t, a, b)
#define tl_bmm(t, a, b)                   TL_OP(bmm, t, a, b)
#define tl_addmm(t, c, a, b, beta, alpha) TL_OP(addmm, t, c, a, b, beta, alpha)
tl_tensor tl_matmul_at(tl_at at, tl_tensor a, tl_tensor b);
tl_tensor tl_matmul_acc64_at(tl_at at, tl_tensor a, tl_tensor b);
tl_tensor tl_matmul_to_at(tl_at at, tl_tensor a, tl_tensor b, tl_dtype dtype);
tl_tensor tl_mm_at(tl_at at, tl_tensor a, tl_tensor b);
tl_tensor tl_bmm_at(tl_at at, tl_tensor a, tl_tensor b);
tl_tensor tl_addmm_at(tl_at at, tl_tensor c, tl_tensor a, tl_tensor b, double beta, double alpha);

typedef struct {
    int64_t stride[2], padding[2], dilation[2]; /* for each dim; stride and dilation 0: 1 */
    int64_t groups;                             /* 0: 1 */
    tl_tensor bias;                             /* (o), or none */
} tl_conv_options;
typedef struct {
    int64_t kernel[2] /* needed */, stride[2] /* 0: kernel */, padding[2], dilation[2] /* 0: 1 */;
} tl_pool_options;
#define TL_POOL(...)    TL_MAKE(tl_pool_options){__VA_ARGS__}
#define TL_ENTROPY(...) TL_MAKE(tl_cross_entropy_options){.reduction = __VA_ARGS__}
#define TL_ATTEND(...)  TL_MAKE(tl_attention_options){__VA_ARGS__}
#define TL_DRAW(...)    TL_MAKE(tl_draw_options){.stream = __VA_ARGS__}
#define tl_conv1d(t, x, w, ...) TL_OP(conv1d, t, x, w, TL_MAKE(tl_conv_options){__VA_ARGS__})
#define tl_conv2d(t, x, w, ...) TL_OP(conv2d, t, x, w, TL_MAKE(tl_conv_options){__VA_ARGS__})
#define tl_max_pool1d(t, x, ...) TL_OP(max_pool1d, t, x, TL_POOL(__VA_ARGS__))
#define tl_max_pool2d(t, x, ...) TL_OP(max_pool2d, t, x, TL_POOL(__VA_ARGS__))
#define tl_avg_pool1d(t, x, ...) TL_OP(avg_pool1d, t, x, TL_POOL(__VA_ARGS__))
#define tl_avg_pool2d(t, x, ...) TL_OP(avg_pool2d, t, x, TL_POOL(__VA_ARGS__))
#define tl_pad(t, x, dim, before, after, value) TL_OP(pad, t, x, dim, before, after, value)
tl_tensor tl_conv1d_at(tl_at at, tl_tensor x, tl_tensor w, tl_conv_options o);
tl_tensor tl_conv2d_at(tl_at at, tl_tensor x, tl_tensor w, tl_conv_options o);
tl_tensor tl_max_pool1d_at(tl_at at, tl_tensor x, tl_pool_options o);
tl_tensor tl_max_pool2d_at(tl_at at, tl_tensor x, tl_pool_options o);
tl_tensor tl_avg_pool1d_at(tl_at at, tl_tensor x, tl_pool_options o);
tl_tensor tl_avg_pool2d_at(tl_at at, tl_tensor x, tl_pool_options o);
tl_tensor tl_pad_at(tl_at at, tl_tensor x, int dim, int64_t before, int64_t after, double value);

#define tl_softmax(t, x, dim)              TL_OP(softmax, t, x, dim)
#define tl_log_softmax(t, x, dim)          TL_OP(log_softmax, t, x, dim)
#define tl_rms_norm(t, x, gamma, eps)      TL_OP(rms_norm, t, x, gamma, eps, NULL)
#define tl_rms_norm_rstd(t, x, gamma, eps, rstd) \
    tl_rms_norm_at(TL_BY(t, rms_norm_rstd), x, gamma, eps, rstd)
#define tl_rms_norm_dims(t, x, n, eps)     TL_OP(rms_norm_dims, t, x, n, eps)
#define tl_logsumexp(t, x, dims, keepdims) TL_OP(logsumexp, t, x, dims, keepdims)
#define tl_rms_norm_plus_one(t, x, gamma, eps) TL_OP(rms_norm_plus_one, t, x, gamma, eps, NULL)
#define tl_layer_norm(t, x, gamma, beta, eps) TL_OP(layer_norm, t, x, gamma, beta, eps, NULL, NULL)
#define tl_layer_norm_stats(t, x, gamma, beta, eps, mean, rstd) \
    tl_layer_norm_at(TL_BY(t, layer_norm_stats), x, gamma, beta, eps, mean, rstd)
#define tl_add_rms_norm(t, x1, x2, gamma, eps, rstd, sum) \
    TL_OP(add_rms_norm, t, x1, x2, gamma, eps, rstd, sum)
tl_tensor tl_softmax_at(tl_at at, tl_tensor x, int dim);
tl_tensor tl_log_softmax_at(tl_at at, tl_tensor x, int dim);
tl_tensor tl_rms_norm_at(tl_at at, tl_tensor x, tl_tensor gamma, double eps, tl_tensor *rstd);
tl_tensor tl_rms_norm_dims_at(tl_at at, tl_tensor x, int n, double eps);
tl_tensor tl_logsumexp_at(tl_at at, tl_tensor x, tl_shape dims, bool keepdims);
tl_tensor tl_rms_norm_plus_one_at(tl_at at, tl_tensor x, tl_tensor gamma, double eps,
                                  tl_tensor *rstd);
tl_tensor tl_layer_norm_at(tl_at at, tl_tensor x, tl_tensor gamma, tl_tensor beta, double eps,
                           tl_tensor *mean, tl_tensor *rstd);
tl_tensor tl_add_rms_norm_at(tl_at at, tl_tensor x1, tl_tensor x2, tl_tensor gamma, double eps,
                             tl_tensor *rstd, tl_tensor *sum);

typedef enum { TL_ROTARY_HALF = 1, TL_ROTARY_INTERLEAVED = 2 } tl_rotary_pairing;
#define tl_rotary(t, x, r1, r2, pairing)        TL_OP(rotary, t, x, r1, r2, pairing)
#define tl_rotary_turned(t, x, r1, r2, pairing) TL_OP(rotary_turned, t, x, r1, r2, pairing)
#define tl_rotary_(t, x, r1, r2, pairing) \
    tl_rotary_inplace_at(TL_BY(t, rotary_), x, r1, r2, pairing)
#define tl_rotary_widen(t, half, pairing)       TL_OP(rotary_widen, t, half, pairing)
#define tl_positions(t, offset, n)              TL_OP(positions, t, offset, TL_NONE, n)
#define tl_positions_after(t, start, offset, n) \
    tl_positions_at(TL_BY(t, positions_after), offset, start, n)
#define tl_rotary_halves(t, x1, x2, c, s, conjugate, y2) \
    TL_OP(rotary_halves, t, x1, x2, c, s, conjugate, y2)
#define tl_rotary_ids(t, x, r1, r2, ids, seq, pairing) \
    TL_OP(rotary_ids, t, x, r1, r2, ids, seq, pairing)
#define tl_rotary_offsets(t, x, r1, r2, offset, seq, pairing) \
    TL_OP(rotary_offsets, t, x, r1, r2, offset, seq, pairing)
tl_tensor tl_rotary_at(tl_at at, tl_tensor x, tl_tensor r1, tl_tensor r2,
                       tl_rotary_pairing pairing);
tl_tensor tl_rotary_turned_at(tl_at at, tl_tensor x, tl_tensor r1, tl_tensor r2,
                              tl_rotary_pairing pairing);
tl_tensor tl_rotary_inplace_at(tl_at at, tl_tensor x, tl_tensor r1, tl_tensor r2,
                               tl_rotary_pairing pairing);
tl_tensor tl_rotary_widen_at(tl_at at, tl_tensor half, tl_rotary_pairing pairing);
tl_tensor tl_positions_at(tl_at at, tl_tensor offset, tl_tensor start, int64_t n);
tl_tensor tl_rotary_halves_at(tl_at at, tl_tensor x1, tl_tensor x2, tl_tensor c, tl_tensor s,
                              bool conjugate, tl_tensor *y2);
tl_tensor tl_rotary_ids_at(tl_at at, tl_tensor x, tl_tensor r1, tl_tensor r2, tl_tensor ids,
                           int seq, tl_rotary_pairing pairing);
tl_tensor tl_rotary_offsets_at(tl_at at, tl_tensor x, tl_tensor r1, tl_tensor r2, tl_tensor offset,
                               int seq, tl_rotary_pairing pairing);
/* Writes the tables for positions first .. first + n - 1 (NUMERICS 8.3): cosines into r1 and sines
 * into r2, both (n, dim), f32 or (table64) f64; scaled, unless scaling is NULL, for long contexts
 * as in Llama 3 (NUMERICS 8.6). TL_EDOMAIN if an argument is out of range. */
typedef struct {
    double factor;                            /* Llama 3: 8; long waves turn that much slower */
    double low_freq_factor, high_freq_factor; /* Llama 3: 1, 4; low < high */
    double original;                          /* positions that were trained on; Llama 3: 8192 */
} tl_rotary_scaling;
tl_status tl_rotary_table(int64_t first, int64_t n, int64_t dim, double base,
                          tl_rotary_pairing pairing, float *r1, float *r2);
tl_status tl_rotary_table64(int64_t first, int64_t n, int64_t dim, double base,
                            tl_rotary_pairing pairing, const tl_rotary_scaling *scaling,
                            double *r1, double *r2);
tl_status tl_rotary_table_scaled(int64_t first, int64_t n, int64_t dim, double base,
                                 tl_rotary_pairing pairing, const tl_rotary_scaling *scaling,
                                 float *r1, float *r2);

#define tl_embedding(t, table, ids)        TL_OP(embedding, t, table, ids)
#define tl_embedding_acc64(t, table, ids)  TL_OP(embedding_acc64, t, table, ids)
#define tl_embedding_padded(t, table, ids, padding) TL_OP(embedding_padded, t, table, ids, padding)
#define tl_gather(t, x, ids, dim)          TL_OP(gather, t, x, ids, dim)
#define tl_index_select(t, x, dim, ids)    TL_OP(index_select, t, x, dim, ids)
#define tl_scatter_add_dim(t, dy, ids, dim, shape) TL_OP(scatter_add_dim, t, dy, ids, dim, shape)
#define tl_one_hot(t, ids, classes, dtype) TL_OP(one_hot, t, ids, classes, dtype)
tl_tensor tl_embedding_at(tl_at at, tl_tensor table, tl_tensor ids);
tl_tensor tl_embedding_acc64_at(tl_at at, tl_tensor table, tl_tensor ids);
tl_tensor tl_embedding_padded_at(tl_at at, tl_tensor table, tl_tensor ids, int64_t padding);
tl_tensor tl_gather_at(tl_at at, tl_tensor x, tl_tensor ids, int dim);
tl_tensor tl_index_select_at(tl_at at, tl_tensor x, int dim, tl_tensor ids);
tl_tensor tl_scatter_add_dim_at(tl_at at, tl_tensor dy, tl_tensor ids, int dim, tl_shape shape);
tl_tensor tl_one_hot_at(tl_at at, tl_tensor ids, int64_t classes, tl_dtype dtype);
/* clang-format on */

typedef enum { TL_LSTM = 1, TL_GRU, TL_RNN_TANH, TL_RNN_RELU } tl_cell;
typedef struct {
    tl_tensor bias;       /* (G*n), added to the product of w and the state */
    tl_tensor h, c;       /* (b, n) or (n): the state before the first step; absent: zeros */
    tl_tensor start, end; /* i64 (b): sample i has steps start[i] <= t < end[i]; absent: 0, s */
    bool reverse;         /* from the last step to the first */
    tl_tensor *last_h, *last_c; /* if not NULL: the state, (b, n), after the last step */
    tl_tensor *cells;           /* an LSTM's c of every step, (b, s, n); else TL_NONE */
} tl_recur_options;
#define tl_recur(t, gates, w, cell, ...) \
    TL_OP(recur, t, gates, w, cell, TL_MAKE(tl_recur_options){__VA_ARGS__})
tl_tensor tl_recur_at(tl_at at, tl_tensor gates, tl_tensor w, tl_cell cell, tl_recur_options o);

typedef enum { TL_MEAN = 1, TL_SUM = 2, TL_EACH = 3 /* each row's loss */ } tl_reduction;
typedef struct {
    tl_reduction reduction;
    int64_t ignore_index; /* with .ignore = true, rows with this target count for nothing */
    bool ignore;
    tl_tensor count; /* 0-d f64, for micro-batches: the rows of the whole batch, a mean's divisor */
    tl_tensor total; /* 0-d f64 of the model, to which losses are added: the result is of its sum */
    double smoothing; /* of labels: 1 - smoothing on the target, smoothing over all classes */
    /* (classes): a factor on each class's log-probability. The mean then divides by the sum of the
     * targets' weights, unless `count` is given. */
    tl_tensor weight;
    int dim; /* the dim of the classes; 0: the last (the first is -ndim) */
} tl_cross_entropy_options;
#define tl_cross_entropy(t, logits, targets, ...) \
    TL_OP(cross_entropy, t, logits, targets, TL_ENTROPY(__VA_ARGS__))
#define tl_nll(t, logp, targets, ...) TL_OP(nll, t, logp, targets, TL_ENTROPY(__VA_ARGS__))
tl_tensor tl_cross_entropy_at(tl_at at, tl_tensor logits, tl_tensor targets,
                              tl_cross_entropy_options o);
tl_tensor tl_nll_at(tl_at at, tl_tensor logp, tl_tensor targets, tl_cross_entropy_options o);

typedef struct {
    tl_reduction reduction;
    tl_tensor weight;     /* a factor on each loss; broadcasts to x */
    tl_tensor pos_weight; /* a factor on y*log(sigmoid(x)); broadcasts to x */
} tl_bce_options;
#define tl_bce_with_logits(t, x, y, ...) \
    TL_OP(bce_with_logits, t, x, y, TL_MAKE(tl_bce_options){.reduction = __VA_ARGS__})
tl_tensor tl_bce_with_logits_at(tl_at at, tl_tensor x, tl_tensor y, tl_bce_options o);

typedef struct {
    double scale; /* 0: 1/sqrt(d) */
    bool full;    /* every key is allowed; default: causal, the last query sees the last key */
    /* i64 (b), 0 to sk, for padding: sample i sees only keys key_start[i] <= j < key_end[i];
     * absent: 0, sk. A query that sees no key gives 0. */
    tl_tensor key_start, key_end;
    /* With any of the following, or if v is (b, hkv, sk, dv), all scores are kept in memory. */
    tl_tensor mask;   /* bool, broadcasts to (b, hq, sq, sk): false forbids a key allowed above */
    tl_tensor bias;   /* broadcasts to the same: added to the scores after scale and softcap */
    tl_tensor offset; /* i64 (b): query i sees keys j <= i + offset, unless `full` */
    double softcap;   /* c: scores become c*tanh(score/c); 0: none */
    tl_tensor *lse;   /* log-sum-exp of the scores allowed, (b, hq, sq) in the compute type */
} tl_attention_options;
#define tl_attention(t, q, k, v, ...) TL_OP(attention, t, q, k, v, TL_ATTEND(__VA_ARGS__))
#define tl_causal_mask(t, queries, keys, ...) \
    TL_OP(causal_mask, t, queries, keys, TL_ATTEND(__VA_ARGS__))
tl_tensor tl_attention_at(tl_at at, tl_tensor q, tl_tensor k, tl_tensor v, tl_attention_options o);
tl_tensor tl_causal_mask_at(tl_at at, int64_t queries, int64_t keys, tl_attention_options o);

typedef struct {
    double p;
    const char *stream; /* needed: another name for each place in the program that draws */
    tl_tensor sample;   /* i64: number of row 0 (0-d) or of each (b); absent: steps draw alike */
    tl_tensor start;    /* i64 (b): row i of x (b, s, ...) is padding, set to 0, before start[i] */
} tl_dropout_options;
#define tl_dropout(t, x, ...) TL_OP(dropout, t, x, TL_MAKE(tl_dropout_options){.p = __VA_ARGS__})
tl_tensor tl_dropout_at(tl_at at, tl_tensor x, tl_dropout_options o);

typedef struct {
    const char *stream; /* these three are as in dropout */
    tl_tensor sample, start;
} tl_draw_options;
#define tl_uniform(t, dtype, shape, ...) TL_OP(uniform, t, dtype, shape, TL_DRAW(__VA_ARGS__))
tl_tensor tl_uniform_at(tl_at at, tl_dtype dtype, tl_shape shape, tl_draw_options o);
#define tl_normal(t, dtype, shape, ...) TL_OP(normal, t, dtype, shape, TL_DRAW(__VA_ARGS__))
tl_tensor tl_normal_at(tl_at at, tl_dtype dtype, tl_shape shape, tl_draw_options o);
#define tl_bernoulli(t, p, ...) TL_OP(bernoulli, t, p, TL_DRAW(__VA_ARGS__))
tl_tensor tl_bernoulli_at(tl_at at, tl_tensor p, tl_draw_options o);
#define tl_permutation(t, n, ...) TL_OP(permutation, t, n, TL_DRAW(__VA_ARGS__))
tl_tensor tl_permutation_at(tl_at at, int64_t n, tl_draw_options o);
TL_END
#endif
