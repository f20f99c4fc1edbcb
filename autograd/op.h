/* op.h: the interface that every op implements, the library's and a user's alike. Public.
 *
 * An op is one constant struct. Data flows one way: shape() checks a call, forward() or the tile
 * loop computes it, and it is recorded as a node; in backward, vjp() records more calls. The engine
 * knows no op by name except the six at the end of this file. */
#ifndef TL_OP_H
#define TL_OP_H

#include "autograd/tape.h"
#include "tensor/array.h"
#include "tensor/operands.h"
TL_BEGIN

typedef struct tl_op tl_op;

/* Attributes are a plain struct, copied by value. The schema names all fields that tell two calls
 * apart (doubles bitwise). TL_ATTR_DIM: an I64, a dim of input 0, which may count from the end. */
/* clang-format off */
typedef enum {
    TL_ATTR_I64, TL_ATTR_INT, TL_ATTR_F64, TL_ATTR_BOOL, TL_ATTR_SHAPE, TL_ATTR_DTYPE, TL_ATTR_DIM
} tl_attr_kind;
/* clang-format on */
typedef struct {
    const char *name;
    tl_attr_kind kind;
    size_t offset;
} tl_attr;

/* One call of an op while it is shaped or run. in[i] is NULL for an absent optional input. shape()
 * sets dtype, ndim and dim of each out[]; the engine then makes strides contiguous, unless shape()
 * sets `strided`: dims in another order, without gaps. A view op also sets data and strides of
 * out[0] from in[0]. attrs is the call's own copy: shape() may fill in what the user left open. */
typedef struct {
    const tl_op *op;
    void *attrs;
    int n_in, n_out;
    const tl_array *const *in;
    tl_array *out;
    unsigned mode;
    bool strided;
    struct tl_arena *arena;      /* for scratch; NULL while only shapes are asked for */
    struct tl_storage **scratch; /* the scratch taken, released when the call has run */
    tl_err *err;
    const struct tl_kernel *kernel; /* selected for this call (kernel.h); NULL: the op's own */
    bool plain;      /* all operands are row-major and in a compute type; false: not known */
    bool begins;     /* TL_BEGINS: in[mutates] counts as +0, whatever its memory holds */
    int64_t samples; /* for batch(): how many samples the inputs hold that depend on the batch */
} tl_call;

/* Records a failure, after the op's name; returns s. */
tl_status tl_call_fail(tl_call *c, tl_status s, const char *fmt, ...) TL_PRINTF(3, 4);

/* A node's backward. The vjp reads in, out and dy, and sets dx[i] where wants[i]; dx[i] may have
 * the broadcast shape, which the engine sums down. dy[j] is TL_NONE if nothing depends on output j.
 * If acc[i] is not TL_NONE, the vjp adds to that accumulator in place (NUMERICS 10.3) and returns
 * it in dx[i]; in, out and dy may then hold the samples of several calls, stacked along their axis
 * or along a new axis 0, whatever the attributes say of their number. */
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
    TL_HEAVY = 1u << 5,       /* body with exp, tanh, ...: the cost model keeps its value */
    TL_COMMUTATIVE = 1u << 6, /* inputs 0 and 1 may change places, bit for bit */
    /* out[0] is in[mutates], if present, changed in place: what shows its old elements is stale */
    TL_MUTATES = 1u << 7,
    TL_BEGINS = 1u << 8, /* overwrites all of in[mutates], and need not read it (tl_call.begins) */
    TL_STORES = 1u << 9, /* pointwise: the tile is written in the output's storage dtype */
    TL_REPEATS = 1u << 10, /* a view that shows elements more than once (expand) */
    /* one pass writes element i of all outputs, having read element i of the inputs: an output may
     * share the memory of a contiguous input of its shape and dtype (pointwise ops need not say) */
    TL_ELEMENTWISE = 1u << 11,
    /* forward() gets its operands (at most 8) row-major and in their compute types, and returns its
     * results so; the engine converts whatever is laid out or stored otherwise */
    TL_WIDENED = 1u << 12,
    TL_ROWS = 1u << 13,     /* the same, but only each row, along the last dim, is contiguous */
    TL_LOOKUP = 1u << 14,   /* forward() also runs where no output has elements: it checks ids */
    TL_ONE_PASS = 1u << 15, /* makes one pass over its inputs: cheap to recompute (rms_norm) */
    TL_NONDIFF = 1u << 16,  /* declared not differentiable: no output carries a gradient */
};

#define TL_BIT(i) (1u << (i))

struct tl_op {
    const char *name;  /* of no other op in use: it identifies values made of parameters */
    int n_in;          /* inputs; -1: any number */
    int n_out;         /* at most 8 */
    unsigned optional; /* bit i: input i may be absent */
    unsigned traits;
    const tl_attr *attr; /* schema, ended by a NULL name; NULL: none */
    size_t attr_size;
    size_t row_dims; /* offset of the I64 attribute that says how many dims a row has; 0: one dim */
    tl_status (*shape)(tl_call *c);
    tl_status (*forward)(tl_call *c); /* NULL for pointwise and view ops */
    int slot;         /* built-in: TL_TILE_..., TL_ROW_..., one kernel a vector level */
    tl_tile_fn *tile; /* a user's pointwise op: its kernel */
    void (*vjp)(tl_vjp *g);
    unsigned saves_in, saves_out; /* what vjp reads, one bit each */
    /* The inputs that vjp reads when only those of `wanted` take gradients; NULL: saves_in. */
    unsigned (*saves_for)(unsigned wanted);
    unsigned folds;     /* inputs whose gradient sums over samples: vjp adds it to acc[i] itself */
    unsigned folds_f64; /* those of `folds` whose accumulator is f64; others': the compute type */
    bool (*folds_wide)(const void *attrs); /* with these attributes all are f64; NULL: never */
    /* How output 0 can be recomputed: by op, with the same attributes, from from[0 .. n), where i
     * is input i and ~j is output j. Its outputs are this op's first ones. */
    struct {
        const tl_op *op;
        int n;
        signed char from[4];
    } again;
    /* Set if this op is the gradient (dy, then the inputs) of that op, and forward() also computes
     * that op's output 0 when it is called with one output more than n_out. */
    const tl_op *result_of;
    /* The input that output 0 equals, for all values bit for bit, if dtype and shape agree; -1:
     * none. constant[i] points to the number that input i is filled with; NULL: unknown. */
    int (*same_as)(const void *attrs, const double *const *constant);
    /* this(undoes(x)) is x, bit for bit. Both ops have one input and no attributes. */
    const tl_op *undoes;
    /* Outputs that carry no gradient (a running total), inputs that take none (a count).
     * Differentiating through one, or a float output of a TL_NONDIFF op, is refused. */
    unsigned nodiff_out, nodiff_in;
    /* How the outputs depend on the batch, given how the inputs do. Asked if some input depends on
     * it (or weights enter a TL_RANDOM op) and none is mixed. An output along axis a is a promise:
     * in any subset of the samples, in any order, each sample has the same bits. NULL: pointwise
     * ops align (tl_batch_aligned), others mix. */
    void (*batch)(const tl_call *c, const tl_batch *in, tl_batch *out);
    int mutates;      /* with TL_MUTATES, of an op with outputs: which input */
    unsigned changes; /* further inputs that change in place: an optimizer's state */
};

/* Records and runs one op and fills out[0 .. n_out), with zero handles on an error; in may lie in
 * out. tl_apply1: of ops with one output. Neither may be called inside a call on the same tape. */
void tl_apply(tl_at at, const tl_op *op, const void *attrs, const tl_tensor *in, int n_in,
              tl_tensor *out);
tl_tensor tl_apply1(tl_at at, const tl_op *op, const void *attrs, const tl_tensor *in, int n_in);

/* Makes room to record that many calls with that many inputs each. A series of ops without scratch
 * that change tensors of the model in place then cannot fail half way for want of memory. */
tl_status tl_tape_reserve(tl_tape *t, uint32_t calls, int inputs);

/* Zeroed memory that lasts until the tape's reset; NULL when out of memory. */
void *tl_tape_scratch(tl_tape *t, size_t bytes);

/* The shape rule of pointwise ops: inputs broadcast; f32, f16 and bf16 meet in f32. run: their tile
 * loop, for ops whose forward() ends in it. */
tl_status tl_pointwise_shape(tl_call *c);
tl_status tl_pointwise_run(tl_call *c);

/* ---- rules for `batch`, and the parts to make others of (batch/rules.c) ---- */

/* The batch axis of a result with ndim dims, when the inputs in `which` are aligned to its right:
 * the axis that the inputs that depend on the batch share, and along which the others have size 1.
 * TL_TOTAL if all that depend are totals. TL_MIXED if they disagree, or if an input outside of
 * `which` depends on the batch. */
#define TL_ALL_INPUTS (~0u)
enum { TL_FROM_FRONT = -1 }; /* as ndim: the inputs are aligned to the left */
tl_batch tl_batch_meet(const tl_call *c, const tl_batch *in, unsigned which, int ndim);
/* For ops whose operands broadcast: all outputs along that axis. linear: for ops linear in all
 * inputs together (add); bilinear: in each input alone (mul). With these, totals stay totals. */
void tl_batch_aligned(const tl_call *c, const tl_batch *in, tl_batch *out);
void tl_batch_linear(const tl_call *c, const tl_batch *in, tl_batch *out);
void tl_batch_bilinear(const tl_call *c, const tl_batch *in, tl_batch *out);
/* For ops that work on rows (row_dims) of all inputs except those that they fold. */
void tl_batch_rows(const tl_call *c, const tl_batch *in, tl_batch *out);
/* Axis a after the dims of a mask have been reduced, or kept as 1; TL_MIXED if a is one of them. */
tl_batch tl_batch_reduced(tl_batch a, int64_t dims, bool keep);
/* a, for an op that adds its result to input `acc`: a if acc is absent or depends alike; TL_TOTAL
 * if one of the two is a total and the other is free; else TL_MIXED. */
tl_batch tl_batch_continuing(tl_batch a, const tl_call *c, const tl_batch *in, int acc);
/* Axis a; TL_MIXED if it is one of the last k of ndim dims, which the op treats as its row. */
tl_batch tl_batch_outside(tl_batch a, int ndim, int64_t k);
/* Axis a; TL_MIXED if it is that dim (negative: counted from the end) of ndim. */
tl_batch tl_batch_beside(tl_batch a, int ndim, int64_t dim);

/* The library's ops. at: op i from 0, NULL past the end. find: by name, NULL if there is none. */
extern const tl_op *const tl_ops_shipped[]; /* ended by NULL; defined in ops/ */
int tl_op_count(void);
const tl_op *tl_op_at(int i);
const tl_op *tl_op_find(const char *name);

/* A saves_for for products: the gradient of each operand reads the other one. */
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

/* The inputs have samples of `each` elements along `axis`. Takes n samples from number `from` on
 * and stacks them along axis `to`: the same axis, or else 0, a new first dim. */
typedef struct {
    int64_t axis, to, from, n, each;
} tl_stack_samples_attrs;
typedef struct {
    int64_t dim, start, stop, step; /* start and stop inside of the dim */
} tl_slice_attrs;
TL_END
#endif
