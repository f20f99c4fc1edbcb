/* kernel.h: which code computes an op - the table of kernels, choosing one, asking which one ran.
 * Public.
 *
 * The key of the table is (op, dtype, mode, instruction set). Every op of the library has its own
 * kernel, "invariant", at every vector level; it gives the bits of NUMERICS.md, and is what runs.
 * Others ship with the library ("blis") or are registered by a program. A kernel changes nothing
 * until a scope on a tape selects it; inside, it computes the op forward, in backward, and when a
 * segment is computed again.
 *
 * The table belongs to the process, and any thread may read it and add to it. */
#ifndef TL_KERNEL_H
#define TL_KERNEL_H

#include "autograd/op.h"
#include "autograd/tape.h"
TL_BEGIN

/* Stands for every dtype. The dtype of a call is that of its first floating input; without one, of
 * its first input; without any, of its output. */
#define TL_ANY_DTYPE TL_DTYPE_DEFAULT

/* Records one call of the op on t, number i from 0, on values that show a difference; TL_NONE past
 * the last. */
typedef tl_tensor tl_probe(tl_tape *t, tl_dtype dtype, int i);

typedef struct tl_kernel {
    const char *op;   /* its name: "matmul" */
    const char *name; /* unique to op, dtype and isa; not "invariant" or "fast" */
    tl_dtype dtype;   /* of the calls that it can do, or TL_ANY_DTYPE */
    /* TL_INVARIANT: it gives the contract's bits, and is probed before its first use, on floats,
     * which alone it gets; TL_FAST: it gives bits of its own */
    unsigned mode;
    const char *isa;                /* the vector level that it needs ("v3"); NULL: none */
    tl_status (*run)(tl_call *c);   /* the op's forward; it gets what that does (op.h) ... */
    tl_tile_fn *tile;               /* ... or, of a pointwise op, the tile kernel */
    bool (*fits)(const tl_call *c); /* it can do this call, else "invariant" does; NULL: all */
    tl_probe *probe;                /* calls to compare it on; NULL: the library's */
} tl_kernel;

/* Puts a kernel, which must live as long as the process, into the table. TL_ENAME: its name is
 * empty, reserved or taken. TL_EDTYPE: no such dtype, or one of integers with TL_INVARIANT.
 * TL_EUSAGE: neither run nor tile, or both; TL_INVARIANT without a probe; no such mode or isa. */
#define tl_kernel_register(t, k) tl_kernel_register_at(TL_AT(t), k)
tl_status tl_kernel_register_at(tl_at at, const tl_kernel *k);

/* Opens a scope in which calls of op (NULL: every op) on dtype go to the kernel of that name, where
 * "fast" is the library's fast one, if there is one. The innermost scope that covers a call
 * decides. tl_mode_push(t, TL_FAST) is the scope (NULL, TL_ANY_DTYPE, "fast"). Returns the depth
 * for tl_mode_pop; on an error no scope is opened, and popping that depth does nothing. TL_ENAME:
 * no such op, or kernel at this level. TL_EUSAGE: it does not give the contract's bits that it
 * declares, or too many scopes are open. */
#define tl_kernel_push(t, op, dtype, name) tl_kernel_push_at(TL_AT(t), op, dtype, name)
int tl_kernel_push_at(tl_at at, const char *op, tl_dtype dtype, const char *name);

/* What computed x: "matmul F32 invariant v4", "matmul F32 blis", "reshape F32 view", "matmul F32
 * traced"; "" for a leaf. */
#define tl_kernel_of(t, x) tl_kernel_of_at(TL_AT(t), x)
const char *tl_kernel_of_at(tl_at at, tl_tensor x);

/* For probes: numbers of a floating dtype, the same at every call, others for another k. They are
 * of all sizes, some so small that products underflow. special: among them are zeros of both signs,
 * infinities and NaN. */
tl_tensor tl_probe_numbers(tl_tape *t, tl_dtype dtype, tl_shape shape, int k, bool special);

/* Compares a kernel with the op's own on the probe's calls, bit for bit (all NaNs are one). Returns
 * how many calls differ, with a line on the first - shapes, element, both values - in buf (cut at
 * cap); -1, and a line that says why, if it cannot be done. */
int tl_kernel_check(const char *op, tl_dtype dtype, const char *name, char *buf, size_t cap);

/* The table, row i from 0; false past the end. First the library's own kernels, a row for each op
 * and each vector level that runs here. */
typedef struct {
    const char *op, *name, *isa; /* isa "" where none is needed */
    tl_dtype dtype;
    unsigned mode;
} tl_kernel_row;
bool tl_kernel_at(int i, tl_kernel_row *row);

/* What the library ships besides; its probes, for kernels that bring none. Defined in ops/. */
extern const tl_kernel *const tl_kernels_shipped[];
typedef struct {
    const char *op;
    tl_probe *probe;
} tl_op_probe;
extern const tl_op_probe tl_probes_shipped[];
TL_END
#endif
