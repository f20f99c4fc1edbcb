/* kernel.h: which code computes an op - the table of kernels, choosing one, asking which one ran.
 * Public.
 *
 * The key of the table is (op, dtype, mode, instruction set). Every op of the library has its own
 * kernel, named "invariant", at every vector level: it gives the bits of NUMERICS.md and is what
 * runs. Besides there are kernels that ship with the library ("blis") and those that a program
 * registers. A kernel changes nothing until a scope on a tape selects it; there it computes the op
 * forward, in backward, and when a segment is computed again.
 *
 * Thread use: the table belongs to the process and may be read and added to by any thread;
 * selections belong to a tape. */
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
    /* TL_INVARIANT: it gives the contract's bits, and is probed before its first use; TL_FAST: it
     * gives bits of its own */
    unsigned mode;
    const char *isa;              /* the vector level that it needs ("v3"); NULL: none */
    tl_status (*run)(tl_call *c); /* the op's forward; outputs are allocated, inputs checked ... */
    tl_tile_fn *tile;             /* ... or, of a pointwise op, the tile kernel */
    bool (*fits)(const tl_call *c); /* it can do this call; NULL: all. Others go to "invariant" */
    tl_probe *probe;                /* calls to compare it on; NULL: the op's own */
} tl_kernel;

/* Puts a kernel, which must live as long as the process, into the table. Errors, on t: TL_ENAME
 * (name empty, reserved or taken; isa unknown), TL_EUSAGE (neither run nor tile, or both;
 * TL_INVARIANT without a probe), TL_ENOMEM. */
#define tl_kernel_register(t, k) tl_kernel_register_at(TL_AT(t), k)
tl_status tl_kernel_register_at(tl_at at, const tl_kernel *k);

/* A scope in which calls of op (NULL: every op) on dtype go to the kernel of that name; "invariant"
 * is the op's own, "fast" the library's fast one where there is one. The innermost scope that
 * speaks of a call decides. tl_mode_push(t, TL_FAST) is the scope (NULL, TL_ANY_DTYPE, "fast").
 * Returns the depth for tl_mode_pop; on an error no scope is opened and popping that depth does
 * nothing. Errors: TL_ENAME (no such kernel at this vector level), TL_EUSAGE (a kernel that
 * declares the contract's bits and does not give them; too many scopes). */
#define tl_kernel_push(t, op, dtype, name) tl_kernel_push_at(TL_AT(t), op, dtype, name)
int tl_kernel_push_at(tl_at at, const char *op, tl_dtype dtype, const char *name);

/* What computed x: "matmul F32 invariant v4", "matmul F32 blis", "reshape F32 view", "matmul F32
 * traced"; "" for a leaf. The tape's until its reset; NULL on an error. */
#define tl_kernel_of(t, x) tl_kernel_of_at(TL_AT(t), x)
const char *tl_kernel_of_at(tl_at at, tl_tensor x);

/* For probes: numbers of a floating dtype, the same at every call; another k, others. Of all sizes,
 * some so small that products underflow; special: zeros of both signs, infinities and NaN among
 * them, too. */
tl_tensor tl_probe_numbers(tl_tape *t, tl_dtype dtype, tl_shape shape, int k, bool special);

/* Compares a kernel with the op's own on the probe's calls, bit for bit (all NaNs are one). Returns
 * how many calls differ; buf (cut at cap) gets a line for the first, with the shapes, the element
 * and both values. -1 if it cannot be done; the line then says why. */
int tl_kernel_check(const char *op, tl_dtype dtype, const char *name, char *buf, size_t cap);

/* The table, row by row: i from 0; false past the end. The library's own kernels come first, one
 * row for each op and vector level that runs here. */
typedef struct {
    const char *op, *name, *isa; /* isa "" where none is needed */
    tl_dtype dtype;
    unsigned mode;
} tl_kernel_row;
bool tl_kernel_at(int i, tl_kernel_row *row);

/* What the library ships besides, ended by NULL; defined in ops/. */
extern const tl_kernel *const tl_kernels_shipped[];
TL_END
#endif
