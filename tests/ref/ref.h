/* The independent judge: a naive reference of every op, written from NUMERICS.md alone. It shares
 * no source with the library.
 *
 * Values travel as double, which holds every f64, f32, f16 and bf16 exactly, and every operation is
 * followed by an explicit ref_round to the compute type. For + - * / and sqrt of two f32 that is
 * the f32 operation itself (53 >= 2*24 + 2: the double rounding is innocuous); fma goes through
 * fmaf. Compile with -ffp-contract=off, link with -lmpfr -lgmp -lm.
 *
 * A tensor is row-major and contiguous, `data` holds the storage bits (f16 and bf16 as uint16_t,
 * bool as uint8_t 0 or 1). Every function that returns or fills in a ref_tensor allocates it: the
 * caller ends it with ref_free. Misuse prints a line and aborts.
 *
 * Accumulators (`acc`): NULL starts at +0. Otherwise a tensor with as many elements as the result,
 * read at the start and left with the sum so far, so that the next call continues it. Folds: f64
 * (NUMERICS 3.2). Chains and scatter-add: the compute type, or f64 for a chain with acc_f64.
 *
 * Comments that begin with "NUMERICS does not say" mark readings that the contract leaves open. */
#ifndef TESTS_REF_REF_H
#define TESTS_REF_REF_H

#include <stdint.h>

typedef enum { REF_F64, REF_F32, REF_F16, REF_BF16, REF_I64, REF_BOOL } ref_dtype;

typedef struct {
    ref_dtype dtype;
    int ndim;
    int64_t dim[8];
    void *data;
} ref_tensor;

/* ---- tensors (ref_tensor.c) ---- */
ref_tensor ref_new(ref_dtype dtype, int ndim, const int64_t *dim); /* zeros */
ref_tensor ref_like(const ref_tensor *x, ref_dtype dtype);         /* zeros of x's shape */
ref_tensor ref_from(ref_dtype dtype, int ndim, const int64_t *dim, const double *values);
ref_tensor ref_from_i64(int ndim, const int64_t *dim, const int64_t *values);
ref_tensor ref_copy(const ref_tensor *x);
void ref_free(ref_tensor *x);
int64_t ref_numel(const ref_tensor *x);
int ref_itemsize(ref_dtype dtype);
double ref_get(const ref_tensor *x, int64_t i); /* widened exactly (i64: exact below 2^53) */
int64_t ref_get_i64(const ref_tensor *x, int64_t i);
void ref_set(ref_tensor *x, int64_t i, double v); /* rounded once to the storage dtype */
void ref_set_i64(ref_tensor *x, int64_t i, int64_t v);
int ref_same_bits(const ref_tensor *x,
                  const ref_tensor *y); /* dtype, shape, bits; all NaNs are one (1.5) */
void ref_check(int condition,
               const char *message); /* aborts with the message if the condition is false */
void ref_unflatten(int ndim, const int64_t *dim, int64_t flat, int64_t *ix);
int64_t ref_flatten(int ndim, const int64_t *dim, const int64_t *ix);
int64_t ref_broadcast_at(
    const ref_tensor *x, int ndim,
    const int64_t *ix); /* the element of x that meets index ix of a larger shape */
ref_tensor ref_broadcast_shape(const ref_tensor *a, const ref_tensor *b, ref_dtype dtype);

/* ---- scalars (ref_scalar.c, ref_math.c) ---- */
ref_dtype ref_compute(ref_dtype storage);    /* f64 for f64, f32 for the other floating types */
double ref_round(ref_dtype dtype, double v); /* to nearest even in the dtype, subnormals kept */
double ref_fma(ref_dtype c, double x, double y, double z); /* x*y + z rounded once to c */
double ref_max2(double x, double y);                       /* NaN wins, +0 > -0 */
double ref_min2(double x, double y);
uint16_t ref_half_bits(ref_dtype dtype, double v); /* f16 or bf16 */
double ref_half_value(ref_dtype dtype, uint16_t bits);

/* Elementary functions. For c = f32 correctly rounded through MPFR (2.1). For c = f64 the contract
 * says only "a fixed sequence of IEEE operations, error under 1 ULP" (2.3), so the reference takes
 * these from a table that the test supplies; until then, and for NULL, the table is MPFR's,
 * correctly rounded. The table is global and is borrowed. Returns the table that it replaces. */
typedef struct {
    double (*exp)(double);
    double (*log)(double);
    double (*sin)(double);
    double (*cos)(double);
    double (*tanh)(double);
    double (*sigmoid)(double);
    double (*rsqrt)(double);
    double (*pow)(double, double);
} ref_f64_table;
const ref_f64_table *ref_set_f64_functions(const ref_f64_table *table);

double ref_exp1(ref_dtype c, double x);
double ref_log1(ref_dtype c, double x);
double ref_sin1(ref_dtype c, double x);
double ref_cos1(ref_dtype c, double x);
double ref_tanh1(ref_dtype c, double x);
double ref_sigmoid1(ref_dtype c, double x);
double ref_rsqrt1(ref_dtype c, double x);
double ref_sqrt1(ref_dtype c, double x);
double ref_pow1(ref_dtype c, double x, double exponent);

/* Lanes (3.1): start, add the term with index i, sum. */
typedef struct {
    ref_dtype c;
    double l[32];
} ref_lanes;
void ref_lanes_start(ref_lanes *s, ref_dtype c);
void ref_lanes_add(ref_lanes *s, int64_t i, double term);
double ref_lanes_sum(const ref_lanes *s);

/* ---- pointwise (ref_pointwise.c, ref_compare.c): result in x's dtype; two inputs have one dtype
 * and broadcast ---- */
ref_tensor ref_neg(const ref_tensor *x);
ref_tensor ref_abs(const ref_tensor *x);
ref_tensor ref_square(const ref_tensor *x);
ref_tensor ref_sqrt(const ref_tensor *x);
ref_tensor ref_rsqrt(const ref_tensor *x);
ref_tensor ref_exp(const ref_tensor *x);
ref_tensor ref_log(const ref_tensor *x);
ref_tensor ref_sin(const ref_tensor *x);
ref_tensor ref_cos(const ref_tensor *x);
ref_tensor ref_tanh(const ref_tensor *x);
ref_tensor ref_sigmoid(const ref_tensor *x);
ref_tensor ref_silu(const ref_tensor *x);
ref_tensor ref_relu(const ref_tensor *x);
ref_tensor ref_pow(const ref_tensor *x, double exponent);
ref_tensor ref_scale(const ref_tensor *x, double k); /* x * k */
ref_tensor ref_shift(const ref_tensor *x, double k); /* x + k */
ref_tensor ref_add(const ref_tensor *a, const ref_tensor *b);
ref_tensor ref_sub(const ref_tensor *a, const ref_tensor *b);
ref_tensor ref_mul(const ref_tensor *a, const ref_tensor *b);
ref_tensor ref_div(const ref_tensor *a, const ref_tensor *b);
ref_tensor ref_maximum(const ref_tensor *a, const ref_tensor *b);
ref_tensor ref_minimum(const ref_tensor *a, const ref_tensor *b);
ref_tensor ref_eq(const ref_tensor *a, const ref_tensor *b); /* comparisons: any dtype -> bool */
ref_tensor ref_ne(const ref_tensor *a, const ref_tensor *b);
ref_tensor ref_lt(const ref_tensor *a, const ref_tensor *b);
ref_tensor ref_le(const ref_tensor *a, const ref_tensor *b);
ref_tensor ref_gt(const ref_tensor *a, const ref_tensor *b);
ref_tensor ref_ge(const ref_tensor *a, const ref_tensor *b);
ref_tensor ref_where(const ref_tensor *cond, const ref_tensor *a,
                     const ref_tensor *b); /* cond bool; a, b of one dtype */
ref_tensor ref_cast(const ref_tensor *x, ref_dtype to);

/* ---- reductions (ref_reduce.c): dims is a bit mask, bit d = dimension d; keepdims leaves reduced
 * dims as 1 ---- */
ref_tensor ref_sum(const ref_tensor *x, unsigned dims, int keepdims, ref_tensor *acc);
ref_tensor ref_mean(const ref_tensor *x, unsigned dims, int keepdims);
ref_tensor ref_max(const ref_tensor *x, unsigned dims, int keepdims);
ref_tensor ref_argmax(const ref_tensor *x, int dim, int keepdims); /* i64 */
ref_tensor ref_sum_to(const ref_tensor *x, int ndim, const int64_t *dim, ref_tensor *acc);

/* ---- matmul (ref_matmul_op.c): a (..., M, K), b (..., K, N) -> (..., M, N) in dtype out. out_dim
 * NULL: all batch dims, broadcast. Otherwise the output's shape, aligned at the right: batch dims
 * that it lacks, or has as 1, belong to the chain (5.1). ---- */
ref_tensor ref_matmul(const ref_tensor *a, const ref_tensor *b, ref_dtype out, int acc_f64,
                      int out_ndim, const int64_t *out_dim, ref_tensor *acc);

/* ---- rows (ref_rows.c, ref_norm.c) ---- */
ref_tensor ref_softmax(const ref_tensor *x, int dim);
ref_tensor ref_softmax_grad(const ref_tensor *dy, const ref_tensor *y, int dim);
ref_tensor ref_log_softmax(const ref_tensor *x, int dim);
ref_tensor ref_log_softmax_grad(const ref_tensor *dy, const ref_tensor *y, int dim);
/* The last k dims are normalized. gamma (their shape, x's dtype or f32) or NULL. y and rstd may be
 * NULL. */
void ref_rms_norm(const ref_tensor *x, const ref_tensor *gamma, int k, double eps, ref_tensor *y,
                  ref_tensor *rstd);
/* dx in x's dtype, dgamma in the compute type; either may be NULL. acc continues dgamma (f64). */
void ref_rms_norm_grad(const ref_tensor *dy, const ref_tensor *x, const ref_tensor *gamma,
                       const ref_tensor *rstd, int k, ref_tensor *dx, ref_tensor *dgamma,
                       ref_tensor *acc);
/* 6.12: e, in x's dtype; mean, dmean and drstd may be NULL. */
ref_tensor ref_norm_stats_grad(const ref_tensor *x, const ref_tensor *mean, const ref_tensor *rstd,
                               const ref_tensor *dmean, const ref_tensor *drstd, int k);

/* ---- cross entropy (ref_loss.c): z (..., classes), target i64 (...) -> one element of dtype out
 * ---- */
typedef struct {
    int mean;             /* 0: sum, 1: mean */
    int64_t ignore_index; /* rows with this target do not count */
    int64_t count;        /* divisor of the mean; negative: the number of rows not ignored */
} ref_loss_options;
ref_tensor ref_cross_entropy(const ref_tensor *z, const ref_tensor *target, ref_loss_options o,
                             ref_dtype out, ref_tensor *acc);
ref_tensor ref_cross_entropy_grad(const ref_tensor *dy, const ref_tensor *z,
                                  const ref_tensor *target, ref_loss_options o);

/* ---- attention (ref_attention.c): q (B,Hq,Sq,D), k (B,Hkv,Skv,D), v (B,Hkv,Skv,Dv) -> o
 * (B,Hq,Sq,Dv) ---- */
typedef struct {
    int causal;
    const ref_tensor *start, *end; /* i64 (B), or NULL */
} ref_keys;
ref_tensor ref_attention(const ref_tensor *q, const ref_tensor *k, const ref_tensor *v,
                         double scale, ref_keys keys);
void ref_attention_grad(const ref_tensor *dout, const ref_tensor *q, const ref_tensor *k,
                        const ref_tensor *v, double scale, ref_keys keys, ref_tensor *dq,
                        ref_tensor *dk, ref_tensor *dv);

/* ---- recurrent layers (ref_recur.c): g (b, s, G*n), w (G*n, n) -> y, c, a. h0 and c0 are (b, n)
 * or (n) ---- */
typedef enum { REF_LSTM = 1, REF_GRU, REF_TANH, REF_RELU } ref_cell;
typedef struct {
    ref_cell cell;
    int reverse;
    const ref_tensor *h0, *c0, *start, *end, *dhn, *dcn; /* or NULL */
} ref_recur_options;
void ref_recur(const ref_tensor *g, const ref_tensor *w, const ref_tensor *bias,
               ref_recur_options o, ref_tensor *y, ref_tensor *c, ref_tensor *a,
               ref_tensor last[2]);
/* dgates, du (a GRU's), dh0, dc0; dy, dc and da may be NULL. */
void ref_recur_grad(const ref_tensor *dy, const ref_tensor *dc, const ref_tensor *da,
                    const ref_tensor *y, const ref_tensor *c, const ref_tensor *a,
                    const ref_tensor *w, ref_recur_options o, ref_tensor out[4]);
/* Continues dw by du (a GRU's; else dgates). */
void ref_recur_weight(const ref_tensor *du, const ref_tensor *y, ref_recur_options o,
                      ref_tensor *acc);

/* ---- rotary (ref_rotary.c): x (..., D); r1, r2 broadcast to x with its last dim cut to the
 * rotated ones ---- */
typedef enum { REF_HALF, REF_INTERLEAVED } ref_pairing;
ref_tensor ref_rotary(const ref_tensor *x, const ref_tensor *r1, const ref_tensor *r2,
                      ref_pairing pairing, int64_t rotated);
/* dx in x's dtype; dr1, dr2 in the tables' dtype and shapes; each may be NULL. acc1, acc2 continue
 * dr1, dr2 (f64). */
void ref_rotary_grad(const ref_tensor *g, const ref_tensor *x, const ref_tensor *r1,
                     const ref_tensor *r2, ref_pairing pairing, int64_t rotated, ref_tensor *dx,
                     ref_tensor *dr1, ref_tensor *dr2, ref_tensor *acc1, ref_tensor *acc2);
/* r1, r2: f32 (n, rotated); row i is position first + i. */
void ref_rotary_table(int64_t first, int64_t n, int64_t rotated, double base, ref_pairing pairing,
                      ref_tensor *r1, ref_tensor *r2);

/* ---- moving elements (ref_index.c) ---- */
ref_tensor ref_embedding(const ref_tensor *w, const ref_tensor *ids); /* w (V, ...) */
ref_tensor ref_embedding_grad(const ref_tensor *dy, const ref_tensor *ids, int64_t rows,
                              ref_tensor *acc); /* -> (rows, ...) */
/* Of y_u = x_u w + b, x_u (samples, rows_u, k), whose cotangents are dy_u (10.3). */
void ref_fold_uses(int uses, const ref_tensor *x, const ref_tensor *dy, ref_tensor *w,
                   ref_tensor *b);
ref_tensor ref_concat(int n, const ref_tensor *const *x, int dim);
ref_tensor ref_stack_samples(int n, const ref_tensor *const *x, int axis, int to, int64_t from,
                             int64_t samples, int64_t each);
ref_tensor ref_slice(const ref_tensor *x, int dim, int64_t start, int64_t stop,
                     int64_t step); /* step > 0, stop excluded */
ref_tensor ref_slice_grad(const ref_tensor *dy, int dim, int64_t size, int64_t start,
                          int64_t step); /* zeros elsewhere */
ref_tensor ref_permute(const ref_tensor *x,
                       const int *order); /* result dim i is x's dim order[i] */

/* ---- training (ref_train.c): p, m, v, b f32 or f64, changed in place; g of that compute type; f
 * the clip factor ---- */
typedef struct {
    double mu, wd;
    int nesterov, decoupled;
} ref_sgd_options;
void ref_sgd(ref_tensor *p, const ref_tensor *g, ref_tensor *b, double f, double lr,
             ref_sgd_options o); /* b NULL: no momentum */
typedef struct {
    double lr, b1, b2, eps, wd;
} ref_adamw_options;
void ref_adamw(ref_tensor *p, const ref_tensor *g, ref_tensor *m, ref_tensor *v, double f,
               ref_adamw_options o, int64_t t); /* t from 1 */
double ref_global_norm(int n, const ref_tensor *const *g, const char *const *names);
double ref_clip_factor(double norm, double max);
double ref_warmup_cosine(double lr, double min, int64_t s, int64_t warmup,
                         int64_t total); /* t from 0 */

/* ---- activations (ref_activation.c): as the other pointwise ones; the f64 functions from a table
 * of their own ---- */
typedef struct {
    double (*erf)(double);
    double (*log1p)(double);
    double (*expm1)(double);
    double (*exp2)(double);
    double (*log2)(double);
} ref_f64_more;
const ref_f64_more *ref_set_f64_more(const ref_f64_more *table); /* as ref_set_f64_functions */
double ref_erf1(ref_dtype c, double x);
double ref_log1p1(ref_dtype c, double x);
double ref_expm1_1(ref_dtype c, double x);
double ref_exp2_1(ref_dtype c, double x);
double ref_log2_1(ref_dtype c, double x);
ref_tensor ref_erf(const ref_tensor *x);
ref_tensor ref_log1p(const ref_tensor *x);
ref_tensor ref_expm1(const ref_tensor *x);
ref_tensor ref_exp2(const ref_tensor *x);
ref_tensor ref_log2(const ref_tensor *x);
ref_tensor ref_softplus(const ref_tensor *x);
ref_tensor ref_gelu(const ref_tensor *x);
ref_tensor ref_gelu_tanh(const ref_tensor *x);
ref_tensor ref_gelu_grad(const ref_tensor *dy,
                         const ref_tensor *x); /* of one dtype; they broadcast */
ref_tensor ref_gelu_tanh_grad(const ref_tensor *dy, const ref_tensor *x);
ref_tensor ref_clamp(const ref_tensor *x, double lo, double hi);
ref_tensor ref_clamp_grad(const ref_tensor *dy, const ref_tensor *x, double lo, double hi);
ref_tensor ref_masked_fill(const ref_tensor *x, const ref_tensor *mask, double value);

/* ---- gradients of pointwise functions (ref_slope.c): op by name, all of one dtype ---- */
ref_tensor ref_slope(const char *op, const ref_tensor *dy, const ref_tensor *x, const ref_tensor *y,
                     double exponent); /* of pow */
ref_tensor ref_div_slope(const ref_tensor *dy, const ref_tensor *b, const ref_tensor *y); /* of b */

/* ---- more reductions (ref_scan.c) ---- */
ref_tensor ref_min(const ref_tensor *x, unsigned dims, int keepdims);
ref_tensor ref_extreme_grad(const ref_tensor *dy, const ref_tensor *x, const ref_tensor *y,
                            unsigned dims); /* of max, min; compute type */
ref_tensor ref_var(const ref_tensor *x, unsigned dims, int correction, int keepdims);
/* Of a value that is no leaf, in its dtype. */
ref_tensor ref_var_grad(const ref_tensor *dy, const ref_tensor *x, unsigned dims, int correction);
ref_tensor ref_mse(const ref_tensor *a, const ref_tensor *b); /* of one compute type -> 0-d of it */
ref_tensor ref_cumsum(const ref_tensor *x, int dim, int reverse);

/* ---- elements by ids (ref_gather.c) ---- */
ref_tensor ref_gather(const ref_tensor *x, const ref_tensor *ids, int dim);
ref_tensor ref_scatter_add_dim(const ref_tensor *dy, const ref_tensor *ids, int dim, int ndim,
                               const int64_t *shape);                 /* compute type */
ref_tensor ref_argsort(const ref_tensor *x, int dim, int descending); /* i64 */
ref_tensor ref_one_hot(const ref_tensor *ids, int64_t classes, ref_dtype dtype);
ref_tensor ref_positions(const ref_tensor *offset, const ref_tensor *start,
                         int64_t n); /* i64 (b, n) */
ref_tensor ref_causal_mask(int64_t queries, int64_t keys, ref_keys allowed);
/* (queries, keys), with ranges (B, queries, keys) */ /* bool */
ref_tensor ref_stack(int n, const ref_tensor *const *x, int dim);

/* ---- more losses (ref_smooth.c), as cross entropy; e the smoothing ---- */
ref_tensor ref_cross_entropy_smooth(const ref_tensor *z, const ref_tensor *target,
                                    ref_loss_options o, double e, ref_dtype out, ref_tensor *acc);
ref_tensor ref_cross_entropy_smooth_grad(const ref_tensor *dy, const ref_tensor *z,
                                         const ref_tensor *target, ref_loss_options o, double e);
ref_tensor ref_nll(const ref_tensor *logp, const ref_tensor *target, ref_loss_options o,
                   ref_dtype out, ref_tensor *acc);
ref_tensor ref_nll_grad(const ref_tensor *dy, const ref_tensor *target, int64_t n,
                        ref_loss_options o, ref_dtype dtype);

/* ---- i64, and what counting makes (ref_integer.c); op + - * / %, the last two rounded down ----
 */
ref_tensor ref_integer(char op, const ref_tensor *a, const ref_tensor *b);
ref_tensor ref_arange(ref_dtype dtype, double start, double stop, double step);
ref_tensor ref_triangle(const ref_tensor *x, int64_t k, int upper);
ref_tensor ref_diagonal(const ref_tensor *x, int64_t offset, int d1, int d2);
ref_tensor ref_diagonal_grad(const ref_tensor *dy, const ref_tensor *x, int64_t offset, int d1,
                             int d2);

/* ---- windows (ref_conv.c): x (n, c, h, w), w (o, c/groups, kh, kw) ---- */
typedef struct {
    int64_t kernel[2], stride[2], pad[2], dilation[2], groups;
} ref_window;
ref_tensor ref_conv(const ref_tensor *x, const ref_tensor *w, const ref_window *s);
ref_tensor ref_conv_dx(const ref_tensor *dy, const ref_tensor *w, const int64_t *dim,
                       const ref_window *s); /* of x's shape dim */
void ref_conv_dw(const ref_tensor *dy, const ref_tensor *x, const ref_window *s,
                 ref_tensor *acc);                                    /* continues acc */
ref_tensor ref_pool_places(const ref_tensor *x, const ref_window *s); /* i64 */
ref_tensor ref_avg_pool(const ref_tensor *x, const ref_window *s);

/* 7.3; start, mask, bias and offset may be NULL; softcap 0: none */
ref_tensor ref_attention_written(const ref_tensor *q, const ref_tensor *k, const ref_tensor *v,
                                 const ref_tensor *start, const ref_tensor *mask,
                                 const ref_tensor *bias, const ref_tensor *offset, double softcap,
                                 int causal, ref_tensor *lse);

/* dq, dk and dv, in c */
void ref_attention_written_grad(const ref_tensor *dout, const ref_tensor *q, const ref_tensor *k,
                                const ref_tensor *v, const ref_tensor *start,
                                const ref_tensor *mask, const ref_tensor *bias,
                                const ref_tensor *offset, double softcap, int causal,
                                ref_tensor g[3]);

/* ---- compositions (ref_composed.c) ---- */
typedef enum { REF_MEAN, REF_SUM, REF_EACH } ref_reduction;
ref_tensor ref_logsumexp(const ref_tensor *x, unsigned dims, int keepdims);
ref_tensor ref_logsumexp_grad(const ref_tensor *dy, const ref_tensor *x, unsigned dims);
ref_tensor ref_bce(const ref_tensor *x, const ref_tensor *y, const ref_tensor *weight,
                   const ref_tensor *pos, ref_reduction how);
/* By use and in c: of x, in (1 - y)*x and in softplus(-x), and of y, in 1 - y and in pos_weight's
 * factor. dl is the cotangent of the result. */
void ref_bce_grad(const ref_tensor *dl, const ref_tensor *x, const ref_tensor *y,
                  const ref_tensor *weight, const ref_tensor *pos, ref_reduction how,
                  ref_tensor dx[2], ref_tensor dy[2]);
ref_tensor ref_picked(const ref_tensor *logp, const ref_tensor *target, const ref_tensor *weight,
                      double e, ref_reduction how, ref_loss_options o, ref_tensor *acc);
/* of log_softmax(z), or of nll's logp, in c */
ref_tensor ref_picked_grad(const ref_tensor *dy, const ref_tensor *logp, const ref_tensor *target,
                           const ref_tensor *weight, double e, ref_reduction how,
                           ref_loss_options o);

/* ---- addmm (ref_addmm.c): a, b 2-d; x broadcasts ---- */
ref_tensor ref_addmm(const ref_tensor *x, const ref_tensor *a, const ref_tensor *b, double beta,
                     double alpha);

/* ---- rotary on two halves that lie apart (ref_rotary_halves.c) ---- */
void ref_rotary_halves(const ref_tensor *x1, const ref_tensor *x2, const ref_tensor *c,
                       const ref_tensor *s, int conjugate, ref_tensor *y1, ref_tensor *y2);
/* acc_c, acc_s: f64, continued by the tables' gradients; NULL: not wanted */
void ref_rotary_halves_grad(const ref_tensor *g1, const ref_tensor *g2, const ref_tensor *x1,
                            const ref_tensor *x2, const ref_tensor *c, const ref_tensor *s,
                            int conjugate, ref_tensor *dx1, ref_tensor *dx2, ref_tensor *acc_c,
                            ref_tensor *acc_s);

/* ---- rotary tables by position, widened, scaled (ref_rotary_more.c) ---- */
ref_tensor ref_rotary_rows(const ref_tensor *table, const ref_tensor *x, const ref_tensor *ids,
                           int seq); /* of x's shape, last dim the table's */
ref_tensor ref_rotary_widen(const ref_tensor *half, ref_pairing pairing);
typedef struct {
    double factor, low, high, original;
} ref_rotary_scaling;
void ref_rotary_table_scaled(int64_t first, int64_t n, int64_t rotated, double base,
                             ref_pairing pairing, const ref_rotary_scaling *s, ref_tensor *r1,
                             ref_tensor *r2);

#endif
