/* op.h: the interface every op implements - the library's and a user's alike. Public.
 *
 * An op is one constant struct. Data flows one way: a call is checked by shape(), recorded as a
 * node and computed by forward() or the tile loop; in backward, vjp() records more calls. The
 * engine knows no op by name but the six at the end of this file. */
#ifndef TL_OP_H
#define TL_OP_H

#include "autograd/tape.h"
#include "tensor/array.h"
#include "tensor/operands.h"
TL_BEGIN

typedef struct tl_op tl_op;

/* Attributes are a plain struct, copied by value into the node. The schema names its fields, for
 * printing and comparing (doubles bitwise, padding never read). */
/* clang-format off */
typedef enum {
    TL_ATTR_I64, TL_ATTR_INT, TL_ATTR_F64, TL_ATTR_BOOL, TL_ATTR_SHAPE, TL_ATTR_DTYPE
} tl_attr_kind;
/* clang-format on */
typedef struct {
    const char *name;
    tl_attr_kind kind;
    size_t offset;
} tl_attr;

/* One call of an op while it is shaped or run. in[i] is NULL for an absent optional input. shape()
 * sets dtype, ndim and dim of each out[]; strides are made contiguous afterwards unless `strided`
 * is set. A view op also sets data and strides of out[0] from in[0]. The attributes are the call's
 * own copy: where the user left one open, shape() may settle it by the operands. */
typedef struct {
    const tl_op *op;
    void *attrs;
    int n_in, n_out;
    const tl_array *const *in;
    tl_array *out;
    unsigned mode;
    bool strided;
    struct tl_arena *arena;      /* for scratch; NULL while only shapes are asked for */
    struct tl_storage **scratch; /* what has been taken of it, released when the call has run */
    tl_err *err;
    const struct tl_kernel *kernel; /* selected for this call (kernel.h); NULL: the op's own */
    bool plain;      /* operands are row-major, of types that are computed in; false: not known */
    bool begins;     /* TL_BEGINS: in[mutates] counts as +0, whatever its memory holds */
    int64_t samples; /* for batch(): of the inputs that depend on it */
} tl_call;

/* Records a failure, after the op's name; returns s. */
tl_status tl_call_fail(tl_call *c, tl_status s, const char *fmt, ...) TL_PRINTF(3, 4);

/* A node's backward. The vjp reads in, out and dy, and sets dx[i] where wants[i]; dx may have the
 * broadcast shape, which the engine sums down. Where acc[i] is not TL_NONE, the vjp continues that
 * accumulator in place (NUMERICS 10.3) and sets dx[i] to the result: of samples of several calls,
 * perhaps, one after the other along their axis, or moved to a new axis 0, whatever attributes say
 * of their number. dy[j] is TL_NONE where nothing depends on output j. */
typedef struct {
    tl_tape *t;
    const void *attrs;
    int n_in, n_out;
    const tl_tensor *in, *out, *dy, *acc;
    const bool *wants;
    tl_tensor *dx;
} tl_vjp;

enum {
    TL_POINTWISE = 1u << 0, /* supplies a tile kernel; the engine loops */
    TL_REDUCTION = 1u << 1,
    TL_VIEW = 1u << 2, /* out[0] is in[0] seen differently: storage shared */
    TL_COPY = 1u << 3, /* out[0] is in[0] in other memory */
    TL_RANDOM = 1u << 4,
    TL_HEAVY = 1u << 5,       /* body with exp, log, ...: the cost model keeps its value */
    TL_COMMUTATIVE = 1u << 6, /* inputs 0 and 1 may change places, bit for bit */
    /* out[0] is in[mutates], if present, changed in place: what shows an element of it is spoilt */
    TL_MUTATES = 1u << 7,
    TL_BEGINS = 1u << 8,   /* writes all of in[mutates], which it need not read (tl_call.begins) */
    TL_STORES = 1u << 9,   /* pointwise: the tile is written in the output's storage dtype */
    TL_REPEATS = 1u << 10, /* a view that shows elements more than once (expand) */
    /* element i of the outputs is made from element i of the inputs: an output may lie over a
     * contiguous input of its shape and dtype (so may a pointwise one) */
    TL_ELEMENTWISE = 1u << 11,
    /* forward() is handed its operands (at most 8) row-major and in their compute types, and gives
     * its results so; what lies or is stored otherwise the engine converts */
    TL_WIDENED = 1u << 12,
    /* the same, but only elements along the last dim lie side by side: rows lie by their strides */
    TL_ROWS = 1u << 13,
    TL_BY_ROWS = 1u << 14,  /* supplies a row kernel (slot); the engine loops, as TL_WIDENED */
    TL_ONE_PASS = 1u << 15, /* one pass over what it reads: cheap to compute again (rms_norm) */
    TL_NONDIFF = 1u << 16,  /* not differentiable, and says so: no output carries a gradient */
};

#define TL_BIT(i) (1u << (i))

struct tl_op {
    const char *name;
    int n_in;          /* inputs; -1: any number */
    int n_out;         /* at most 8 */
    unsigned optional; /* bit i: input i may be absent */
    unsigned traits;
    const tl_attr *attr; /* schema, ended by a NULL name; NULL: none */
    size_t attr_size;
    size_t row_dims; /* offset of the attribute (I64) that says how many dims a row has; 0: one */
    tl_status (*shape)(tl_call *c);
    tl_status (*forward)(tl_call *c); /* NULL for pointwise and view ops, and by rows */
    int slot;         /* built-in: TL_TILE_..., TL_ROW_..., one kernel a vector level */
    tl_tile_fn *tile; /* a user's pointwise op: its kernel */
    void (*vjp)(tl_vjp *g);
    unsigned saves_in, saves_out; /* what vjp reads, one bit each */
    unsigned (*saves_for)(
        unsigned wanted); /* inputs it reads when only these take gradients; NULL: saves_in */
    unsigned folds;       /* inputs whose gradient continues an accumulator ... */
    unsigned folds_f64;   /* ... which is f64 for these, else the compute type */
    bool (*folds_wide)(const void *attrs); /* all of them are f64 with these attributes; NULL: no */
    /* result 0 can be computed again by this op with these attributes from i: input i, ~j: result
     * j; its results are this op's first ones */
    struct {
        const tl_op *op;
        int n;
        signed char from[4];
    } again;
    /* this op is the gradient (dy, its inputs) of that one, and its forward(), called with one
     * output more than n_out, leaves that op's result there */
    const tl_op *result_of;
    /* The input that the result equals bit for bit wherever dtype and shape agree - for all values,
     * -0, NaN and infinities among them - or -1. constant[i]: the number that all of input i holds;
     * NULL: not known. NULL: none ever. */
    int (*same_as)(const void *attrs, const double *const *constant);
    /* without attributes, of one input each: this(that(x)) is x, bit for bit */
    const tl_op *undoes;
    /* outputs that carry no gradient (a running total): a derivative that would pass through one,
     * or through a float of a TL_NONDIFF op, is refused */
    unsigned nodiff_out;
    /* How the outputs depend on the batch, when some input does (or weights go into a TL_RANDOM op)
     * and none is mixed. An output along axis a promises: computed from any of the samples, in any
     * order, each of them has the same bits. NULL: pointwise ops align (tl_batch_aligned), others
     * mix. */
    void (*batch)(const tl_call *c, const tl_batch *in, tl_batch *out);
    int mutates;      /* with TL_MUTATES: which input */
    unsigned changes; /* inputs besides it that change in place: an optimizer's state */
};

/* Records and runs one op, whose attrs may be NULL if it has none, and fills out[0 .. n_out): with
 * zero handles on an error. */
void tl_apply(tl_at at, const tl_op *op, const void *attrs, const tl_tensor *in, int n_in,
              tl_tensor *out);
/* The same for ops with one output. */
tl_tensor tl_apply1(tl_at at, const tl_op *op, const void *attrs, const tl_tensor *in, int n_in);

/* Makes room for so many calls, of so many inputs each, of ops that change an operand in place, so
 * that they do not fail half way for want of memory. */
tl_status tl_tape_reserve(tl_tape *t, uint32_t calls, int inputs);

/* Zeroed memory until the tape's reset; NULL when out of memory. */
void *tl_tape_scratch(tl_tape *t, size_t bytes);

/* The shape rule of pointwise ops: inputs broadcast; f32, f16 and bf16 meet in f32. And run:
 * the tile loop, for ops whose forward ends in it. */
tl_status tl_pointwise_shape(tl_call *c);
tl_status tl_pointwise_run(tl_call *c);

/* ---- rules for `batch`, and what others are made of (batch/rules.c) ---- */

/* The axis of a result of ndim dims, to the right of which the inputs of `which` align: those that
 * depend on the batch have it in common, and the others do not extend along it. TL_TOTAL where all
 * that depend are totals. TL_MIXED where they do not agree, or an input not of `which` depends. */
#define TL_ALL_INPUTS (~0u)
enum { TL_FROM_FRONT = -1 }; /* ndim for inputs that align to the left */
tl_batch tl_batch_meet(const tl_call *c, const tl_batch *in, unsigned which, int ndim);
/* Operands broadcast: all outputs along that axis. The same of an op that is linear in all its
 * inputs at once (add), or bilinear: in each alone (mul); totals stay totals. */
void tl_batch_aligned(const tl_call *c, const tl_batch *in, tl_batch *out);
void tl_batch_linear(const tl_call *c, const tl_batch *in, tl_batch *out);
void tl_batch_bilinear(const tl_call *c, const tl_batch *in, tl_batch *out);
/* The same of an op that works on rows (row_dims) of its inputs but for those that it folds. */
void tl_batch_rows(const tl_call *c, const tl_batch *in, tl_batch *out);
/* a once the dims of a mask are reduced, or kept as 1; TL_MIXED if it is one of them. */
tl_batch tl_batch_reduced(tl_batch a, int64_t dims, bool keep);
/* a, where the op continues input `acc`, if present: totals continue totals and what is given. */
tl_batch tl_batch_continuing(tl_batch a, const tl_call *c, const tl_batch *in, int acc);
/* a, but TL_MIXED for one of the last k of ndim dims: what an op treats as its row. */
tl_batch tl_batch_outside(tl_batch a, int ndim, int64_t k);
/* a, but TL_MIXED if it is dim (from the end if negative) of ndim. */
tl_batch tl_batch_beside(tl_batch a, int ndim, int64_t dim);

/* The library's ops: op i from 0, NULL past the end; to find one by name: NULL if there is none. */
int tl_op_count(void);
const tl_op *tl_op_at(int i);
const tl_op *tl_op_find(const char *name);

/* A saves_for of products: each operand's gradient reads the other. */
unsigned tl_saves_other(unsigned wanted);

/* The engine's six: add cotangents, fill, write into the model, sum down, stack samples, slice. */
extern const tl_op tl_op_add;           /* (a, b) */
extern const tl_op tl_op_fill;          /* () attrs {shape, dtype, value} */
extern const tl_op tl_op_assign;        /* (dst, x) */
extern const tl_op tl_op_sum_to;        /* (x, acc?) attrs {shape, dtype}: fold x down to shape */
extern const tl_op tl_op_stack_samples; /* (x, ...) attrs {axis, to, from, n, each} */
extern const tl_op tl_op_slice;         /* (x) attrs {dim, start, stop, step} */

typedef struct {
    tl_shape shape;
    tl_dtype dtype;
    double value;
} tl_fill_attrs;

typedef struct {
    tl_shape shape;
    tl_dtype dtype;
} tl_sum_to_attrs;

/* Of inputs with samples of `each` elements along axis, n from number `from` on, along axis `to`:
 * the same one, or 0, a new first dim if axis is another. */
typedef struct {
    int64_t axis, to, from, n, each;
} tl_stack_samples_attrs;
typedef struct {
    int64_t dim, start, stop, step; /* start and stop inside of the dim */
} tl_slice_attrs;
TL_END
#endif
