/* tape.h: the tape - recording, reading, gradients. Public.
 *
 * Thread use: one tape, one thread at a time. Several threads may each run a tape over one model;
 * they may even make its parameters together (the first one there makes each). tl_step, tl_write
 * and tl_load run alone. */
#ifndef TL_TAPE_H
#define TL_TAPE_H

#include <stdio.h>

#include "autograd/handle.h"
#include "tensor/array.h"
#include "tensor/c_type.h"
TL_BEGIN

/* A new tape over model m (borrowed; may be NULL). NULL when out of memory. It has failed already
 * (TL_EUSAGE) where the environment has a TL_ISA or TL_THREADS that means nothing. */
tl_tape *tl_tape_new(tl_model *m);
tl_model *tl_tape_model(const tl_tape *t);

/* Forgets every value and node: their handles become stale. Keeps the memory for the next step, the
 * parameters' gradients, and a recorded error. */
void tl_tape_reset(tl_tape *t);

/* How many optimizer steps one recording may have: 3 unless said otherwise, 0 for any number. More
 * look like a forgotten tl_tape_reset, with memory that grows until there is none: TL_EUSAGE. */
void tl_tape_limit(tl_tape *t, int steps);
/* Counts n of them, as tl_step does before it changes anything, and an optimizer of your own may.
 * TL_EUSAGE beyond the limit. */
tl_status tl_tape_steps(tl_at at, int n);

/* The object (tape, model or optimizer) has failed; its first error as text, "" if none. NULL
 * counts as failed (an object that could not be made). A tape without an error of its own speaks
 * for its model in all three: over a model that has failed nothing is recorded. */
bool tl_failed(const void *object);
const char *tl_error(const void *object);
tl_status tl_error_status(const void *object);
/* Forgets the error; a tape's accumulated gradients go with it, and its model's error. Does nothing
 * where there is none. A call on a model (tl_data, tl_load, tl_save, ...) begins by forgetting an
 * error that was read, by tl_error; where nobody has, it does nothing and returns that error. */
void tl_error_clear(void *object);

/* Frees tapes, models, optimizers, graphs, in any order; NULLs are skipped. What another object
 * still needs - a model its tapes and optimizers, an optimizer the graphs that step with it - lives
 * on until that is freed, too. Where nobody has read the error of one (tl_error) or cleared it, a
 * line on stderr says what it is; and where something has been freed before, that, untouched - as
 * long as nothing new lies at its address. */
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
/* Whether tl_free says so; it does unless told otherwise, for the whole process. */
void tl_warnings(bool on);

/* A tensor with a copy of row-major data: on a tape until its reset, or in a model for the model's
 * life. Errors go to the owner; the zero handle then: TL_EDTYPE where the elements are of a C type
 * that dtype is not stored as (c_type.h; void * and char * are not checked), TL_EUSAGE for NULL
 * where the shape has elements (tl_zeros). */
#define tl_data(owner, data, dtype, shape) \
    tl_data_at(owner, data, TL_C_TYPE(data), dtype, shape, __FILE__, __LINE__)
tl_tensor tl_data_tape_at(tl_tape *t, const void *data, const char *c_type, tl_dtype dtype,
                          tl_shape shape, const char *file, int line);
tl_tensor tl_data_model_at(tl_model *m, const void *data, const char *c_type, tl_dtype dtype,
                           tl_shape shape, const char *file, int line);
/* The same, filled with zeros. */
#define tl_zeros(owner, dtype, shape) tl_zeros_at(owner, dtype, shape, __FILE__, __LINE__)
tl_tensor tl_zeros_tape_at(tl_tape *t, tl_dtype dtype, tl_shape shape, const char *file, int line);
tl_tensor tl_zeros_model_at(tl_model *m, tl_dtype dtype, tl_shape shape, const char *file,
                            int line);
/* By the type of the owner. */
#ifdef __cplusplus
extern "C++" {
template <class... A> tl_tensor tl_data_at(tl_tape *t, A... a) { return tl_data_tape_at(t, a...); }
template <class... A> tl_tensor tl_data_at(tl_model *m, A... a)
{
    return tl_data_model_at(m, a...);
}
template <class... A> tl_tensor tl_zeros_at(tl_tape *t, A... a)
{
    return tl_zeros_tape_at(t, a...);
}
template <class... A> tl_tensor tl_zeros_at(tl_model *m, A... a)
{
    return tl_zeros_model_at(m, a...);
}
}
#else
#define TL_OWNED(owner, name) \
    _Generic((owner), tl_tape * : name##_tape_at, tl_model * : name##_model_at)
#define tl_data_at(owner, ...) TL_OWNED(owner, tl_data)((owner), __VA_ARGS__)
#define tl_zeros_at(owner, ...) TL_OWNED(owner, tl_zeros)((owner), __VA_ARGS__)
#endif

/* A 0-d tensor of that value. */
#define tl_scalar(t, dtype, value) tl_scalar_at(TL_AT(t), dtype, value)
tl_tensor tl_scalar_at(tl_at at, tl_dtype dtype, double value);

/* Data that never changes: in a traced function, a copy that the graph keeps. Elsewhere it is
 * tl_data. */
#define tl_constant(t, data, dtype, shape) \
    tl_constant_at(TL_AT(t), data, TL_C_TYPE(data), dtype, shape)
tl_tensor tl_constant_at(tl_at at, const void *data, const char *c_type, tl_dtype dtype,
                         tl_shape shape);
/* Row-major host memory as a tensor: its contents now, or, in a traced function, at the beginning
 * of each run of the graph (borrowed until the graph is freed). */
#define tl_bound(t, data, dtype, shape) tl_bound_at(TL_AT(t), data, TL_C_TYPE(data), dtype, shape)
tl_tensor tl_bound_at(tl_at at, const void *data, const char *c_type, tl_dtype dtype,
                      tl_shape shape);
/* Host work that goes with the ops around it: done now, or, in a traced function, at each run of
 * the graph, before its first op or after its last. ctx is borrowed likewise. */
typedef enum { TL_BEFORE, TL_AFTER } tl_host_when;
typedef void tl_host_fn(tl_tape *t, void *ctx);
tl_status tl_host(tl_tape *t, tl_host_when when, tl_host_fn *f, void *ctx);
/* In a traced function: object lives at least as long as the graph, whose hooks and numbers are
 * its. Elsewhere nothing. */
tl_status tl_host_hold(tl_tape *t, void *object);
/* This tape is the trace of a graph (a program is being traced on it). */
bool tl_traced(const tl_tape *t);
/* Puts the value of x, of one element, into *to: now, or after each run of the graph. */
#define tl_watch(t, x, to) tl_watch_at(TL_AT(t), x, to)
tl_status tl_watch_at(tl_at at, tl_tensor x, double *to);

/* How a value depends on the batch: per sample along an axis (0 and above), or */
typedef int8_t tl_batch;
enum {
    TL_FREE = -1,  /* not at all: parameters, constants, what is computed from them alone */
    TL_TOTAL = -2, /* a sum over samples: only what is linear may follow */
    TL_MIXED = -3, /* any other way: gradients behind it depend on the split into micro-batches */
};
/* That of x, which each op's rule decides (op.h). Named tensors of the model, tl_constant and 0-d
 * data are TL_FREE; other data (tl_data, tl_zeros, tl_bound) are per sample along axis 0; an input
 * of a traced program is what the tensor passed for it is. TL_MIXED where there is no such value.
 */
tl_batch tl_batch_of(tl_tape *t, tl_tensor x);
/* Says otherwise of data, of a result of an op without inputs, or of a view of one: x is per sample
 * along that axis, or TL_FREE. Call it before x is used. TL_EUSAGE for any other value, TL_ESHAPE
 * for an axis that x has not. */
#define tl_batch_axis(owner, x, axis) tl_batch_axis_at(owner, x, axis, __FILE__, __LINE__)
tl_status tl_batch_axis_tape_at(tl_tape *t, tl_tensor x, int axis, const char *file, int line);
tl_status tl_batch_axis_model_at(tl_model *m, tl_tensor x, int axis, const char *file, int line);
#ifdef __cplusplus
extern "C++" {
template <class... A> tl_status tl_batch_axis_at(tl_tape *t, A... a)
{
    return tl_batch_axis_tape_at(t, a...);
}
template <class... A> tl_status tl_batch_axis_at(tl_model *m, A... a)
{
    return tl_batch_axis_model_at(m, a...);
}
}
#else
#define tl_batch_axis_at(owner, ...) TL_OWNED(owner, tl_batch_axis)((owner), __VA_ARGS__)
#endif

/* What is known of a tensor without its contents. */
tl_shape tl_shape_of(tl_tape *t, tl_tensor x);
tl_dtype tl_dtype_of(tl_tape *t, tl_tensor x);
/* The strided array behind x (borrowed; data NULL in a trace); false if there is none. */
bool tl_array_of(tl_tape *t, tl_tensor x, tl_array *out);
/* x can be an input now; if not, the error says why, of `who`. */
bool tl_usable(tl_at at, tl_tensor x, const char *who);
/* The value of a tensor with one element, as double; NaN and an error otherwise. */
#define tl_item(t, x) tl_item_at(TL_AT(t), x)
double tl_item_at(tl_at at, tl_tensor x);
/* Copies x out, row-major, in its own dtype; bytes must be its exact size. */
#define tl_keep(t, x, out, bytes) tl_keep_at(TL_AT(t), x, out, bytes)
tl_status tl_keep_at(tl_at at, tl_tensor x, void *out, size_t bytes);
/* Writes x into dst, a tensor of the model or a view of one (same shape and dtype), in place; in a
 * trace a node of the graph, which writes at each run. Not differentiable: x counts as a number. */
#define tl_assign(t, dst, x) tl_assign_at(TL_AT(t), dst, x)
tl_status tl_assign_at(tl_at at, tl_tensor dst, tl_tensor x);
/* Writes row-major data into dst, a tensor of the model, in place. */
tl_status tl_write(tl_model *m, tl_tensor dst, const void *data, size_t bytes);
/* x as people print arrays, to f. */
#define tl_print(t, f, x) tl_print_at(TL_AT(t), f, x)
tl_status tl_print_at(tl_at at, FILE *f, tl_tensor x);
/* SHA-256 of dtype, shape and bytes (all NaNs as one), as 64 hex digits. */
#define tl_sha256(t, x, hex) tl_sha256_at(TL_AT(t), x, hex)
tl_status tl_sha256_at(tl_at at, tl_tensor x, char hex[65]);

/* A view of x that carries no gradient. */
#define tl_detach(t, x) tl_detach_at(TL_AT(t), x)
tl_tensor tl_detach_at(tl_at at, tl_tensor x);
/* Marks a leaf of this tape (tl_data) as wanting a gradient. */
#define tl_require_grad(t, x) tl_require_grad_at(TL_AT(t), x)
tl_status tl_require_grad_at(tl_at at, tl_tensor x);

/* Checkpointing: what is recorded between begin and end keeps only the values in keep (of this
 * tape); the others are given back and computed again, the same bits, when backward needs them.
 * verify: remembers a hash of every value and compares it when it is computed again (TL_EINPLACE if
 * it differs: something changed in between). Segments do not nest; ops that change an operand in
 * place are refused at the end. */
uint32_t tl_segment_begin(tl_tape *t);
#define tl_segment_end(t, begin, keep, n, verify) \
    tl_segment_end_at(TL_AT(t), begin, keep, n, verify)
tl_status tl_segment_end_at(tl_at at, uint32_t begin, const tl_tensor *keep, int n, bool verify);

enum {
    TL_INVARIANT = 0,  /* the default and the promise (NUMERICS.md) */
    TL_FAST = 1u << 0, /* matmul by BLIS as it comes: bits may change with the shape */
    TL_NO_GRAD = 1u << 1,
    TL_TRACE = 1u << 2,  /* record shapes only, no storage, no kernels */
    TL_SHADOW = 1u << 3, /* f64 re-run: casts between floats keep f64 */
    TL_EVAL = 1u << 6,   /* not training: dropout is the identity */
    /* an op that changes an operand in place changes a copy of it: a re-run, in whatever order */
    TL_APART = 1u << 5,
    /* 1u << 16 and above: observers' (observer.h) */
};

/* Modes are scopes: push returns the depth before, pop unwinds to a depth, whatever was left open
 * inside. What is open outside stays in force; TL_INVARIANT, pushed alone, brings the contract's
 * own kernels back inside TL_FAST or a selection of kernels. tl_kernel_push (kernel.h) opens scopes
 * of one op and dtype on the same stack. */
int tl_mode_push(tl_tape *t, unsigned mode);
void tl_mode_pop(tl_tape *t, int depth);
unsigned tl_mode(const tl_tape *t);

/* Everything called until the pop reports the place of the outermost push: a module's author
 * brackets the module's body so that messages name its caller. */
int tl_place_push(tl_at at);
/* The same; if shared, parameters inside may be those of layers at other places, too (tl_param). */
int tl_share_push(tl_at at, bool shared);
void tl_place_pop(tl_tape *t, int depth);

/* Records an error on the tape, with the place, unless it has one; returns s. For modules that
 * check more than their ops do. */
tl_status tl_tape_fail(tl_at at, tl_status s, const char *fmt, ...) TL_PRINTF(3, 4);
/* tl_need (tensor/status.h) with the place: "tl_keep: out is NULL (train.c:12)". */
tl_status tl_tape_need(tl_at at, const char *func, const char *what, bool there, int64_t n);
#define TL_NEED_AT(at, p) ((p) != NULL ? TL_OK : tl_tape_need(at, __func__, #p, false, 1))
#define TL_NEED_N_AT(at, p, n) \
    ((p) != NULL && tl_is_count(n) ? TL_OK : tl_tape_need(at, __func__, #p, (p) != NULL, n))

typedef struct {
    tl_tensor cotangent; /* of the output; absent: ones for a single element */
    bool retain;         /* keep values and saved tensors: backward may run again */
    bool partial;        /* parameters the output does not reach are no error */
} tl_backward_options;

/* Gradients of y by every parameter and marked leaf that it depends on, added to what micro-batches
 * before have left. y needs one element unless a cotangent of its shape is given. Values are freed
 * as backward passes them, y excepted. On failure no gradient is half added: a failed tape refuses
 * tl_step. */
#define tl_backward(t, y, ...) \
    tl_backward_at(TL_AT(t), y, TL_MAKE(tl_backward_options){__VA_ARGS__})
tl_status tl_backward_at(tl_at at, tl_tensor y, tl_backward_options o);

/* The gradient of a parameter or marked leaf, uses added in canonical order and rounded once
 * (NUMERICS 10.3); f32, or f64 for f64. The zero handle if none yet. Borrows the accumulator where
 * it can: the next tl_backward changes it; tl_keep copies it out. */
#define tl_grad(t, x) tl_grad_at(TL_AT(t), x)
tl_tensor tl_grad_at(tl_at at, tl_tensor x);
/* The gradients of y by x[0 .. n), any values that take gradients, into dx[0 .. n): values of the
 * tape, recorded like any other, so that they can be differentiated again. Accumulators of
 * parameters stay as they are; nothing is freed. cotangent: of y's shape, or TL_NONE for a y of one
 * element. A target that y does not depend on gets zeros. */
#define tl_gradients(t, y, x, n, cotangent, dx) tl_gradients_at(TL_AT(t), y, x, n, cotangent, dx)
tl_status tl_gradients_at(tl_at at, tl_tensor y, const tl_tensor *x, int n, tl_tensor cotangent,
                          tl_tensor *dx);
/* Which parameters that y reaches keep their gradient's bits under another split into micro-batches
 * (NUMERICS 10.4), and which do not, with the op in between and what to do; and what was computed,
 * or in backward would be, by kernels outside the promise (kernel.h). Writes text, a line for each
 * such use or kernel, into buf (cut at cap); returns how many there are, or -1 on an error of the
 * tape. Call it after a forward pass, before backward. */
int tl_explain_invariance(tl_tape *t, tl_tensor y, char *buf, size_t cap);
/* Drops all accumulated gradients. */
void tl_grad_clear(tl_tape *t);

/* What micro-batches have left, as it is: each use of a parameter has an accumulator of its own
 * (NUMERICS 10.3). To save a step in its middle, and to go on with it. */
typedef struct {
    const char *param; /* name; NULL: out of range */
    int uses;
} tl_accumulating;
int tl_accumulating_count(const tl_tape *t);
tl_accumulating tl_accumulating_at(const tl_tape *t, int i);
/* The accumulator of a use (borrows); false if nothing has come to it. */
bool tl_accumulator(const tl_tape *t, const char *param, int use, tl_array *out);
/* Makes the parameter one that so many uses of have accumulated, and a zeroed accumulator of dtype
 * for one of them (*out borrows it; use -1: none). TL_ENAME, TL_EUSAGE (no such use), TL_ENOMEM. */
tl_status tl_accumulator_open(tl_tape *t, const char *param, int uses, int use, tl_dtype dtype,
                              tl_array *out);

typedef struct {
    tl_memory_stats_t tape, gradients, model;
    size_t nodes, values;
    size_t records; /* bytes of what is remembered of nodes, backward's included */
} tl_tape_memory;
tl_tape_memory tl_memory_stats(const tl_tape *t);
TL_END
#endif
