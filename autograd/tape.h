/* tape.h: tapes: recording, reading, gradients. Public. */
#ifndef TL_TAPE_H
#define TL_TAPE_H

#include <stdio.h>

#include "autograd/handle.h"
#include "tensor/array.h"
#include "tensor/c_type.h"
#include "tensor/process.h"
TL_BEGIN

/* ---- tapes, errors, and the end of objects ---- */

/* A new tape over model m, which may be NULL. Returns NULL when out of memory. If TL_ISA or
 * TL_THREADS in the environment makes no sense, the tape has failed from the start (TL_EUSAGE). */
tl_tape *tl_tape_new(tl_model *m);
tl_model *tl_tape_model(const tl_tape *t); /* borrowed */

/* Forgets all values and nodes; their handles become stale. Keeps memory for the next step, the
 * gradients of parameters, and an error. TL_EUSAGE if fewer tl_backward calls reached parameters
 * than in earlier micro-batches, unless one of them was `.ragged`; tl_step checks that, too. */
void tl_tape_reset(tl_tape *t);

/* How many optimizer steps may pass between two resets: 3 by default; 0: any number; TL_EDOMAIN
 * below 0. One more is TL_EUSAGE: tl_tape_reset was probably forgotten, and memory would grow. */
void tl_tape_limit(tl_tape *t, int steps);

/* Whether a tape, model, optimizer or graph has failed; its first error as text ("" if none); and
 * its status. NULL counts as failed: an object that could not be made. A tape also reports errors
 * of its model: nothing is recorded over a model that has failed. */
bool tl_failed(const void *object);
const char *tl_error(const void *object);
tl_status tl_error_status(const void *object);
/* Clears the error, if any; for a tape, its model's too. If it was the tape's, and not of a call
 * that only reads (tl_item, tl_keep, tl_print, tl_sha256), or kept a backward from the batch, drops
 * all gradients (they may lack what failed) unless in a backward: the batch begins anew. A call
 * that reports to a model (tl_data, tl_save, ...) first clears an error that tl_error has read; if
 * nobody has, the call returns it and does nothing else. */
void tl_error_clear(void *object);

/* Frees tapes, models, optimizers and graphs, in any order; skips NULLs. What another one needs
 * lives on until that is freed: a model for its tapes and optimizers, an optimizer for graphs that
 * step with it. Prints a line on stderr for an error that nobody has read or cleared, and for an
 * object freed before (unless a new one lies there). TL_EUSAGE: in a tape's op or observer. */
void tl_free_objects(void *const *objects, size_t n);
#ifdef __cplusplus
extern "C++" template <class... T> void tl_free(T *...object)
{
    void *objects[] = {object...};
    tl_free_objects(objects, sizeof...(object));
}
#else
#define tl_free(...) \
    tl_free_objects((void *[]){__VA_ARGS__}, sizeof((void *[]){__VA_ARGS__}) / sizeof(void *))
#endif
/* Switches these lines off, or on again, for the whole process. */
void tl_warnings(bool on);

/* ---- data in ---- */

/* A tensor with a copy of row-major data. It lasts until the tape's reset, or as long as the model.
 * TL_EDTYPE if data's C type is not how dtype is stored, TL_ESHAPE if the compiler knows of fewer
 * bytes (void * and char * are not checked: c_type.h), TL_EDOMAIN: a BOOL of 2, TL_EUSAGE: NULL. */
#define tl_data(owner, data, dtype, shape) \
    tl_data_at(owner, data, TL_C_DATA(data), dtype, shape, __FILE__, __LINE__)
/* The same with zeros. */
#define tl_zeros(owner, dtype, shape) tl_zeros_at(owner, dtype, shape, __FILE__, __LINE__)

/* How a value depends on the batch. 0 and above: each element along that axis is a sample. */
typedef int8_t tl_batch;
enum {
    TL_FREE = -1,  /* not at all: parameters, constants, and what is computed from them alone */
    TL_TOTAL = -2, /* it is a sum over samples: only linear ops may follow */
    TL_MIXED = -3  /* in any other way: gradients through it depend on the micro-batch split */
};
/* How x depends on it, by the rules of the ops that made it (op.h). Named tensors of the model,
 * tl_constant, 0-d data and results without inputs (tl_fill; use tl_batch_axis if one has the size
 * of the batch) are TL_FREE; other data (tl_data, tl_zeros, tl_bound) have samples along axis 0; an
 * input of a traced program is as the tensor passed for it. TL_MIXED if x is no value. */
tl_batch tl_batch_of(tl_tape *t, tl_tensor x);
/* Declares something else: samples along that axis, TL_FREE or TL_MIXED. x must be data, a random
 * draw, the result of an op without inputs, or a view of one of these; or what tl_expand repeats
 * along that axis; or a single sample, whose axis nothing else tells. TL_EUSAGE for other values,
 * and for one that a call has used; TL_ESHAPE: no such axis. */
#define tl_batch_axis(owner, x, axis) tl_batch_axis_at(owner, x, axis, __FILE__, __LINE__)

tl_tensor tl_data_tape_at(tl_tape *t, const void *data, tl_c_data c, tl_dtype dtype, tl_shape shape,
                          const char *file, int line);
tl_tensor tl_data_model_at(tl_model *m, const void *data, tl_c_data c, tl_dtype dtype,
                           tl_shape shape, const char *file, int line);
tl_tensor tl_zeros_tape_at(tl_tape *t, tl_dtype dtype, tl_shape shape, const char *file, int line);
tl_tensor tl_zeros_model_at(tl_model *m, tl_dtype dtype, tl_shape shape, const char *file,
                            int line);
tl_status tl_batch_axis_tape_at(tl_tape *t, tl_tensor x, int axis, const char *file, int line);
tl_status tl_batch_axis_model_at(tl_model *m, tl_tensor x, int axis, const char *file, int line);
/* clang-format off */
#ifdef __cplusplus
extern "C++" {
template <class... A> tl_tensor tl_data_at(tl_tape *t, A... a) { return tl_data_tape_at(t, a...); }
template <class... A> tl_tensor tl_data_at(tl_model *m, A... a)
{ return tl_data_model_at(m, a...); }
template <class... A> tl_tensor tl_zeros_at(tl_tape *t, A... a)
{ return tl_zeros_tape_at(t, a...); }
template <class... A> tl_tensor tl_zeros_at(tl_model *m, A... a)
{ return tl_zeros_model_at(m, a...); }
template <class... A> tl_status tl_batch_axis_at(tl_tape *t, A... a)
{ return tl_batch_axis_tape_at(t, a...); }
template <class... A> tl_status tl_batch_axis_at(tl_model *m, A... a)
{ return tl_batch_axis_model_at(m, a...); }
}
#else
#define TL_OWNED(owner, name) \
    _Generic((owner), tl_tape * : name##_tape_at, tl_model * : name##_model_at)
#define tl_data_at(owner, ...)  TL_OWNED(owner, tl_data)((owner), __VA_ARGS__)
#define tl_zeros_at(owner, ...) TL_OWNED(owner, tl_zeros)((owner), __VA_ARGS__)
#define tl_batch_axis_at(owner, ...) TL_OWNED(owner, tl_batch_axis)((owner), __VA_ARGS__)
#endif
/* clang-format on */

/* A 0-d tensor of that value. TL_EDOMAIN if dtype is TL_I64 and the value is not such an integer. C
 * rounds one beyond 2^53 to a double, here and for all ops; tl_data takes it exactly. */
#define tl_scalar(t, dtype, value) TL_OP(scalar, t, dtype, value)
tl_tensor tl_scalar_at(tl_at at, tl_dtype dtype, double value);

/* Data that never changes: like tl_data, but in a traced function the graph keeps the copy. */
#define tl_constant(t, data, dtype, shape) \
    tl_constant_at(TL_AT(t), data, TL_C_DATA(data), dtype, shape)
tl_tensor tl_constant_at(tl_at at, const void *data, tl_c_data c, tl_dtype dtype, tl_shape shape);
/* Row-major host memory: its contents now or, in a traced function, at the start of each run of the
 * graph, which borrows the memory as long as it lives. */
#define tl_bound(t, data, dtype, shape) tl_bound_at(TL_AT(t), data, TL_C_DATA(data), dtype, shape)
tl_tensor tl_bound_at(tl_at at, const void *data, tl_c_data c, tl_dtype dtype, tl_shape shape);
/* Host work that goes with the ops: called now or, in a traced function, in each run of the graph,
 * before its first op or after its last one - TL_AFTER_ALL also where other work has failed, to
 * keep count of what the ops have done. ctx is borrowed as above. */
typedef enum { TL_BEFORE, TL_AFTER, TL_AFTER_ALL } tl_host_when;
typedef void tl_host_fn(tl_tape *t, void *ctx);
tl_status tl_host(tl_tape *t, tl_host_when when, tl_host_fn *f, void *ctx);

/* ---- contents out ---- */

/* Shape and dtype are known without contents, so also in a traced function. For a handle that is
 * zero or stale, and on a tape that has failed, they are 0-d and TL_F32, without an error. */
tl_shape tl_shape_of(tl_tape *t, tl_tensor x);
tl_dtype tl_dtype_of(tl_tape *t, tl_tensor x);
/* The strided array behind x, borrowed; false if there is none or t has failed. Its data is NULL in
 * a trace, or if x was changed in place, or dropped by a backward or segment. */
bool tl_array_of(tl_tape *t, tl_tensor x, tl_array *out);
/* The value of a tensor with one element, as a double; NaN, and an error, for any other. */
#define tl_item(t, x) tl_item_at(TL_AT(t), x)
double tl_item_at(tl_at at, tl_tensor x);
/* Stores x, of one element, in *to (NaN: an error): now or, if traced, after each run. */
#define tl_watch(t, x, to) tl_watch_at(TL_AT(t), x, to)
tl_status tl_watch_at(tl_at at, tl_tensor x, double *to);
/* Copies x out, row-major, in its own dtype (a float * must fit it); bytes must be its size. */
#define tl_keep(t, x, out, bytes) tl_keep_at(TL_AT(t), x, out, TL_C_DATA(out), bytes)
tl_status tl_keep_at(tl_at at, tl_tensor x, void *out, tl_c_data c, size_t bytes);
/* Prints x to f, rows and columns aligned; of more than 1000 elements the ends of each dim. */
#define tl_print(t, f, x) tl_print_at(TL_AT(t), f, x)
tl_status tl_print_at(tl_at at, FILE *f, tl_tensor x);
/* SHA-256 of dtype, shape and bytes (all NaNs as one), as 64 hex digits. */
#define tl_sha256(t, x, hex) tl_sha256_at(TL_AT(t), x, hex)
tl_status tl_sha256_at(tl_at at, tl_tensor x, char hex[65]);
/* Copies x into dst, a tensor of the model or a view of one, which has x's shape and dtype; in a
 * traced function, in each run of the graph. Not differentiable: no gradient flows into x. */
#define tl_assign(t, dst, x) tl_assign_at(TL_AT(t), dst, x)
tl_status tl_assign_at(tl_at at, tl_tensor dst, tl_tensor x);
/* Copies row-major data, of dst's size in bytes, into dst, a tensor of the model. */
tl_status tl_write(tl_model *m, tl_tensor dst, const void *data, size_t bytes);

/* ---- modes ---- */

enum {
    TL_INVARIANT = 0,     /* the default and the promise (NUMERICS.md) */
    TL_FAST = 1u << 0,    /* matmul by BLIS as it is: bits may change with the shape */
    TL_NO_GRAD = 1u << 1, /* nothing that is recorded takes a gradient */
    TL_EVAL = 1u << 6,    /* not training: dropout is the identity */
    TL_STRICT = 1u << 4,  /* recording what tl_explain_invariance would name is an error */
    TL_TRACE = 1u << 2,   /* the engine's own: shapes only, no storage, no kernels */
    TL_SHADOW = 1u << 3,  /* the engine's own: a re-run in f64, in which casts keep f64 */
    TL_APART = 1u << 5,   /* the engine's own: a re-run, in which in-place ops change a copy */
    /* bits 16 to 31 belong to observers (observer.h; TL_ANOMALY in gradcheck.h) */
};

/* Modes are scopes. push adds modes to those in force (TL_EDOMAIN: no such mode; TL_EUSAGE: 64 are
 * open) and returns the depth before it; pop returns to a depth, whatever was left open inside; one
 * that is not open does nothing. TL_INVARIANT alone brings back the contract's own kernels inside
 * TL_FAST or a selection of kernels (tl_kernel_push in kernel.h, which uses the same stack). */
int tl_mode_push(tl_tape *t, unsigned mode);
void tl_mode_pop(tl_tape *t, int depth);
unsigned tl_mode(const tl_tape *t);

/* ---- gradients ---- */

/* A view of x that carries no gradient. */
#define tl_detach(t, x) tl_detach_at(TL_AT(t), x)
tl_tensor tl_detach_at(tl_at at, tl_tensor x);
/* Marks a leaf of this tape (tl_data, tl_detach of anything) as wanting a gradient, before use. */
#define tl_require_grad(t, x) tl_require_grad_at(TL_AT(t), x)
tl_status tl_require_grad_at(tl_at at, tl_tensor x);

typedef struct {
    tl_tensor cotangent; /* of y; if absent, 1, and y must have one element */
    bool retain;         /* keep values and saved tensors, so that backward can run again */
    bool partial;        /* allow parameters that y does not reach (else TL_ENOGRAD) */
    bool ragged;         /* allow another program than in earlier micro-batches of the step (other
                          * ops, fewer calls of tl_backward) and, under TL_STRICT, that of a call
                          * before once more. Sums continue by call number: the calls of all
                          * micro-batches come first, or bits depend on the split (NUMERICS 10.3) */
    bool put_off;        /* leave parameters' gradients to tl_accumulate (traced: each run does) */
} tl_backward_options;
/* Adds the gradients of y with respect to every parameter and marked leaf to what earlier
 * micro-batches, each before a tl_tape_reset, have left there. Releases values as it passes them,
 * except y and views of leaves. If it fails no step is taken with half a gradient: a failed tape
 * refuses tl_step. A loss of parameters alone (L2 by hand) takes a call of its own in a step's last
 * micro-batch, after those of samples: tl_backward(t, loss, .partial = true, .ragged = true). */
#define tl_backward(t, y, ...) \
    tl_backward_at(TL_AT(t), y, TL_MAKE(tl_backward_options){__VA_ARGS__})
tl_status tl_backward_at(tl_at at, tl_tensor y, tl_backward_options o);
/* Adds what .put_off has left waiting for a parameter (TL_ENAME: no such parameter) to what its
 * accumulators hold by now, whether this tape has summed that or another one has
 * (tl_accumulator_open, author.h). The order of the parameters does not change the bits. Until all
 * is added, tl_grad, tl_step, a graph's backward, a checkpoint and a reset (which drops the rest)
 * are TL_EUSAGE, and what the gradients read must not change (TL_EINPLACE). */
tl_status tl_accumulate(tl_tape *t, const char *param);

/* The gradient of a parameter or marked leaf, in f32 (f64 if it is f64): its accumulators added up
 * in the order of backwards and kinds, and rounded once (NUMERICS 10.3). The zero handle if there
 * is none yet. May borrow an accumulator, which the next tl_backward changes; tl_keep copies it. */
#define tl_grad(t, x) tl_grad_at(TL_AT(t), x)
tl_tensor tl_grad_at(tl_at at, tl_tensor x);
/* Drops all accumulated gradients. */
void tl_grad_clear(tl_tape *t);
/* The gradients of y with respect to x[0 .. n), any values that take one, in dx[0 .. n); zeros if y
 * does not depend on x[i]. TL_ENOGRAD if y takes none. They are recorded and can be differentiated
 * again; nothing is released or accumulated. cotangent: of y's shape; TL_NONE for one element. */
#define tl_gradients(t, ...) tl_gradients_at(TL_AT(t), __VA_ARGS__) /* y, x, n, cotangent, dx */
tl_status tl_gradients_at(tl_at at, tl_tensor y, const tl_tensor *x, int n, tl_tensor cotangent,
                          tl_tensor *dx);

/* Checkpointing: of the values recorded between begin and end only the n in keep stay in memory.
 * The others are recomputed, with the same bits, when backward needs them; verify compares their
 * hashes with those of the first ones (TL_EINPLACE: something has changed in between). Segments do
 * not nest, end in the recording they began in, and must contain no in-place ops. */
uint32_t tl_segment_begin(tl_tape *t);
#define tl_segment_end(t, begin, keep, n, verify) \
    tl_segment_end_at(TL_AT(t), begin, keep, n, verify)
tl_status tl_segment_end_at(tl_at at, uint32_t begin, const tl_tensor *keep, int n, bool verify);

/* To be called after a forward pass and before backward: finds the ops that make gradients depend
 * on the split into micro-batches (NUMERICS 10.4), with place and reason. They are ops that make
 * TL_MIXED values, uses of parameters apart from the batch, and values made of parameters alone
 * that earlier micro-batches made differently; also whatever a kernel outside the promise has
 * computed or will compute in backward. Writes a line for each into buf (cut at cap) and returns
 * their number; -1 on an error. */
int tl_explain_invariance(tl_tape *t, tl_tensor y, char *buf, size_t cap);

typedef struct {
    tl_memory_stats_t tape, gradients, model;
    size_t nodes, values;
    size_t records; /* bytes of the records of nodes and of backward */
} tl_tape_memory;
tl_tape_memory tl_memory_stats(const tl_tape *t); /* of the tape, its gradients and its model */
TL_END
#endif
