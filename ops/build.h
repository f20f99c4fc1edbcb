/* build.h: what the files of ops/ share: parts of an op's struct, checks for shape rules, small
 * constructors, walks over strided arrays, products, recurrent layers. Private to ops/. */
#ifndef TL_OPS_BUILD_H
#define TL_OPS_BUILD_H

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "autograd/author.h"
#include "autograd/batch/samples.h"
#include "autograd/pointwise.h"
#include "autograd/tape.h"
#include "ops/list.h"
#include "ops/matmul_kernel.h"
#include "ops/ops.h"
#include "tensor/storage.h"
#include "tensor/isa.h"
#include "tensor/threads.h"

/* ---- parts of an op's struct ---- */

/* An op's name and its numbers of inputs and outputs. */
#define TL_NAMED(id, inputs, outputs) .name = #id, .n_in = inputs, .n_out = outputs
/* Its attributes, of type id_attrs, with the schema id_schema; and a field of such a schema. */
#define TL_ATTRS(id) .attr = id##_schema, .attr_size = sizeof(id##_attrs)
/* clang-format off */
#define TL_FIELD(id, field, kind) {#field, TL_ATTR_##kind, offsetof(id##_attrs, field)}
/* clang-format on */

/* A pointwise op over floats with further traits, whose vjp is id_vjp. TL_ATTRS(tl_const) if a
 * constant c is its attribute. */
#define TL_UNARY(id, more) TL_FLOATS(id, 1, more)
#define TL_BINARY(id, more) TL_FLOATS(id, 2, more)
/* clang-format off */
#define TL_FLOATS(id, inputs, more)                                                              \
    TL_NAMED(id, inputs, 1), .traits = TL_POINTWISE | (more), .shape = tl_float_shape,           \
    .slot = TL_TILE_##id, .vjp = id##_vjp
/* clang-format on */
extern const tl_attr tl_const_schema[];

#define TL_UNARY_CALL(id)                               \
    tl_tensor tl_##id##_at(tl_at at, tl_tensor x)       \
    {                                                   \
        return tl_apply1(at, &tl_op_##id, NULL, &x, 1); \
    }
#define TL_BINARY_CALL(id)                                               \
    tl_tensor tl_##id##_at(tl_at at, tl_tensor a, tl_tensor b)           \
    {                                                                    \
        return tl_apply1(at, &tl_op_##id, NULL, (tl_tensor[]){a, b}, 2); \
    }
#define TL_CONST_CALL(id)                                               \
    tl_tensor tl_##id##_at(tl_at at, tl_tensor x, double c)             \
    {                                                                   \
        return tl_apply1(at, &tl_op_##id, &(tl_const_attrs){c}, &x, 1); \
    }

/* ---- shape rules ---- */

/* The shape rule of a pointwise op over floats. */
tl_status tl_float_shape(tl_call *c);
/* TL_EDTYPE unless x, which the message calls `name`, is of a floating dtype. */
tl_status tl_need_float(tl_call *c, const tl_array *x, const char *name);
/* TL_EDTYPE unless x holds floats and ids holds i64. Messages call them by these names. */
tl_status tl_need_indexed(tl_call *c, const char *x_name, const tl_array *x, const char *ids_name,
                          const tl_array *ids);
/* The error of tl_shape_check, unless arrays of that shape and dtype are possible. */
tl_status tl_need_shape(tl_call *c, const tl_shape *s, tl_dtype dtype);
/* The result of an op that continues the input it mutates: that input, or out if it is absent.
 * TL_ESHAPE unless it has out's shape and that dtype. */
tl_status tl_continue(tl_call *c, const tl_array *out, tl_dtype dtype);

/* Whether an option of a 1-d kernel has a second element that matters: it may be 0, or repeat the
 * first. */
static inline bool tl_second(const int64_t v[2]) { return v[1] != 0 && v[1] != v[0]; }

/* dim of ndim, counted from the end if negative. It may be out of range. */
static inline int tl_dim_from_front(int64_t dim, int ndim)
{
    return (int)(dim < 0 ? dim + ndim : dim);
}
/* The same, or -1 and an error if it is out of range. */
int tl_find_dim(tl_call *c, int ndim, int64_t dim);
/* The dims of x as a bit mask, for a constructor. -1 and an error that names op, the dim and x's
 * shape if one is out of range or listed twice. 0 for an unusable handle, which the op reports. */
int64_t tl_dims_of(tl_at at, const char *op, tl_tensor x, tl_shape dims);
/* The same for one dim, counted from the front. */
int tl_dim_of(tl_at at, const char *op, tl_tensor x, int dim);

/* Reductions over dims (sum.c). The shape rule drops the reduced dims, or keeps them as 1. */
typedef struct {
    int64_t dims; /* bit i: dim i is reduced */
    bool keepdims;
} tl_reduce_attrs;
extern const tl_attr tl_reduce_schema[];
tl_status tl_reduce_shape(tl_call *c);
void tl_reduce_batch(const tl_call *c, const tl_batch *in, tl_batch *out);
/* x's shape with the reduced dims as 1. */
tl_shape tl_reduce_kept(tl_tape *t, tl_tensor x, int64_t dims);
/* Records the reduction op of x over dims. */
tl_tensor tl_reduce_at(tl_at at, const tl_op *op, tl_tensor x, tl_shape dims, bool keepdims);

/* A rule for `batch`: samples lie along axis 0 of the outputs and of all inputs that have any. */
void tl_first_axis(const tl_call *c, const tl_batch *in, tl_batch *out);

/* ---- constructors ---- */

/* Records an error on the tape, like tl_tape_fail; returns TL_NONE. */
#define tl_reject(at, ...) (tl_tape_fail(at, __VA_ARGS__), TL_NONE)
/* Records an op of one input and one output along `dim`, although it runs along the last dim: views
 * bring that dim to the end and back. */
tl_tensor tl_apply_along(tl_at at, const tl_op *op, const void *attrs, tl_tensor x, int dim);
/* v as a 0-d i64, exactly. (A fill holds a double.) */
tl_tensor tl_integer(tl_at at, int64_t v);
/* x cast to a dtype; x itself, not a copy, if it has that dtype already. */
static inline tl_tensor tl_in_dtype(tl_at at, tl_tensor x, tl_dtype dtype)
{
    return tl_is_none(x) || tl_dtype_of(at.tape, x) == dtype ? x : tl_cast_at(at, x, dtype);
}
/* x in its compute type. */
static inline tl_tensor tl_in_compute(tl_at at, tl_tensor x)
{
    return tl_in_dtype(at, x, tl_dtype_compute(tl_dtype_of(at.tape, x)));
}
/* x reshaped; the samples of the result, if x has any, lie along `axis`. */
tl_tensor tl_reshape_told(tl_at at, tl_tensor x, tl_shape shape, int axis);
/* y, a result of the vjp's op or the cotangent of one, in the shape of input 0, or in that shape
 * with reduced dims as 1. Its samples lie along the input's axis of samples. */
tl_tensor tl_shaped_back(tl_vjp *g, tl_tensor y, tl_shape shape);
/* Sets *to, which the user may leave out (NULL). */
static inline void tl_give(tl_tensor *to, tl_tensor x)
{
    if (to != NULL)
        *to = x;
}
/* a + b, where either may be TL_NONE. */
static inline tl_tensor tl_plus(tl_tape *t, tl_tensor a, tl_tensor b)
{
    return tl_is_none(a) ? b : tl_is_none(b) ? a : tl_add(t, a, b);
}
/* A tensor of x's dtype and shape that is `value` everywhere. */
static inline tl_tensor tl_filled_like(tl_tape *t, tl_tensor x, double value)
{
    return tl_fill(t, tl_dtype_of(t, x), tl_shape_of(t, x), value);
}
/* Zeros for the samples of `like`, which lie along `axis`: a cotangent that is absent. */
static inline tl_tensor tl_zeros_of(tl_at at, tl_dtype dtype, tl_shape shape, tl_tensor like,
                                    int axis)
{
    const tl_tensor zeros = tl_fill_at(at, dtype, shape, 0);
    tl_batch_samples_of(at.tape, zeros, like, axis);
    return zeros;
}
/* x summed by lanes over its last dim, kept as size 1. The last dim may be axis 0, which tl_sum
 * would fold. */
tl_tensor tl_sum_rows_last(tl_tape *t, tl_tensor x);

/* Attributes of cross_entropy, nll and their gradients. */
typedef struct {
    int64_t reduction, ignore_index;
    bool ignore;
    double smoothing; /* cross_entropy's; 0 for nll */
    int64_t classes;  /* nll_grad's, whose inputs do not show it; 0 for the others */
} tl_loss_attrs;

/* ---- elements ---- */

/* Converts n contiguous elements, each rounded once, on all threads. */
void tl_cast_all(int64_t n, tl_dtype from, const void *x, tl_dtype to, void *y);

/* Zeros a contiguous array. */
static inline void tl_clear(const tl_array *a) { memset(a->data, 0, tl_array_room(a)); }
/* Element i of a contiguous array. */
static inline void *tl_flat_at(const tl_array *a, int64_t i)
{
    return (char *)a->data + i * (int64_t)tl_dtype_size(a->dtype);
}
/* Element i of a contiguous array of a compute type. */
static inline double tl_number_at(const tl_array *a, int64_t i)
{
    return a->dtype == TL_F64 ? ((const double *)a->data)[i] : (double)((const float *)a->data)[i];
}
/* Element i of an i64 array, row-major. */
static inline int64_t tl_i64_at(const tl_array *a, int64_t i)
{
    return *(const int64_t *)tl_array_at(a, i);
}

/* ---- matmul, for other ops, and how batches of products are run ---- */

typedef struct {
    tl_shape batch; /* of the output; other batch dims of the operands fold into the chain */
    bool acc_f64;   /* chain in f64 */
    bool wide;      /* the result stays in the compute type */
} tl_matmul_attrs;

/* a @ b folded to batch dims `batch`, continuing acc (or TL_NONE) in place. */
tl_tensor tl_matmul_into_at(tl_at at, tl_tensor a, tl_tensor b, tl_tensor acc,
                            tl_matmul_attrs attrs);
/* Case i of the calls that a kernel is tried on; TL_NONE past the last. */
tl_tensor tl_matmul_probe(tl_tape *t, tl_dtype dtype, int i);

/* Products of one size, whose operands are strided along batch dims. */
typedef struct {
    int nd; /* batch dims */
    int64_t dim[TL_MAX_DIMS];
    int64_t sa[TL_MAX_DIMS], sb[TL_MAX_DIMS], sc[TL_MAX_DIMS];
    bool fold[TL_MAX_DIMS]; /* the products along this dim continue one chain */
    tl_gemm_args g;         /* the first product */
} tl_gemm_batches;
/* Runs them all: by fn, or by the library's kernel if fn is NULL. */
tl_status tl_gemm_batches_run(tl_call *c, const tl_gemm_batches *p, tl_gemm_fn *fn);

/* Whether each product of the call is one whole chain from +0 of at most k terms. */
bool tl_matmul_is_short(const tl_call *c, int64_t k);

#ifndef TL_BLIS
#define TL_BLIS 1
#endif
#if TL_BLIS
extern const tl_kernel tl_kernel_blis_f32, tl_kernel_blis_f64, tl_kernel_blis_chain_f32,
    tl_kernel_blis_chain_f64; /* matmul_blis.c */
#endif

/* ---- causal_mask.c ---- */

/* The keys that sample i may see, *start <= j < *end, from inputs `at` and `at` + 1, if present. */
tl_status tl_key_range(tl_call *c, int at, int64_t i, int64_t keys, int64_t *start, int64_t *end);

/* ---- recurrent layers: what the op (recur.c) and the derivative of its gradient (recur_twice.c)
 * share: attributes and the order of inputs ---- */

typedef struct {
    int64_t cell; /* tl_cell */
    bool reverse;
} tl_recur_attrs;

/* The number of gates of a cell. */
static inline int tl_recur_gates(int64_t cell)
{
    return cell == TL_LSTM ? 4 : cell == TL_GRU ? 3 : 1;
}

/* recur(gates, w, bias?, h0?, c0?, start?, end?) -> y, c, a, hn, cn */
enum { RECUR_GATES, RECUR_W, RECUR_BIAS, RECUR_H0, RECUR_C0, RECUR_START, RECUR_END, RECUR_IN };
/* recur_grad(dy?, dc?, da?, y, c, a, w, h0?, c0?, start?, end?, dhn?, dcn?) -> dgates, du,
 * dh0, dc0 */
enum { BACK_DY, BACK_DC, BACK_DA, BACK_Y, BACK_C, BACK_A, BACK_W, BACK_H0, BACK_C0, BACK_START };
enum { BACK_END = BACK_START + 1, BACK_DHN, BACK_DCN, BACK_IN };

void tl_recur_grad_vjp(tl_vjp *g); /* recur_twice.c */

/* The state before each step, (b, s, n), in primitives: h0 (b, n), (n) or none, then x without its
 * last step (recur_twice.c). edge: where a sample's steps begin, `start` or in reverse `end`. */
tl_tensor tl_recur_before(tl_tape *t, tl_tensor x, tl_tensor h0, tl_tensor edge, bool reverse);

#endif
