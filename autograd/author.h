/* author.h: for authors of modules and optimizers: the places of calls, state of optimizers,
 * accumulators, and the head of every object that tl_error and tl_free accept. Public. */
#ifndef TL_AUTHOR_H
#define TL_AUTHOR_H

#include "autograd/tape.h"
TL_BEGIN

/* ---- a module ---- */

/* Until the pop, errors name the place of the outermost push: a module that brackets its body makes
 * them name its caller. push returns the depth for pop. Parameters made inside belong to this layer
 * (tl_param); with `shared`, other layers may use them too. */
int tl_place_push(tl_at at);
int tl_share_push(tl_at at, bool shared);
void tl_place_pop(tl_tape *t, int depth);

/* Declares that the program will not use x again. Its memory is released at once, unless x is a
 * leaf or made of parameters alone, or a view, gradient, segment or observer may still read it. (An
 * observer that comes later does not see it.) */
#define tl_let_go(t, x) tl_let_go_at(TL_AT(t), x)
tl_status tl_let_go_at(tl_at at, tl_tensor x);

/* For a call without a place of its own. */
static inline tl_at tl_nowhere(tl_tape *t) { return TL_MAKE(tl_at){t, NULL, 0, NULL}; }
/* Records an error, with its place, unless the tape or its model has one; returns s. */
tl_status tl_tape_fail(tl_at at, tl_status s, const char *fmt, ...) TL_PRINTF(3, 4);
/* tl_need (tensor/status.h) with the place: "tl_keep: out is NULL (train.c:12)". */
tl_status tl_tape_need(tl_at at, const char *func, const char *what, bool there, int64_t n);
#define TL_NEED_AT(at, p) ((p) != NULL ? TL_OK : tl_tape_need(at, __func__, #p, false, 1))
#define TL_NEED_N_AT(at, p, n) \
    ((p) != NULL && tl_is_count(n) ? TL_OK : tl_tape_need(at, __func__, #p, (p) != NULL, n))
/* Whether x is there, neither stale nor consumed; if not, the error names `who`. */
bool tl_usable(tl_at at, tl_tensor x, const char *who);

/* A buffer with initial contents: fill(ctx, data) writes its row-major elements when it is made,
 * and asks nothing of the model, which is busy. */
typedef tl_status tl_filler(void *ctx, void *data);
tl_tensor tl_buffer_filled_at(tl_at at, tl_model *m, const char *name, tl_dtype dtype,
                              tl_shape shape, tl_filler *fill, void *ctx);
/* A named tensor may be the state of one object, its owner. take: if it has no owner, makes `owner`
 * (NULL: only looks it up) the owner and sets it to zero. Returns its owner, or NULL if it has none
 * or is not there. give: passes what `from` owns of that name (NULL: all) on to `to`, as it is. */
const void *tl_buffer_take(tl_model *m, const char *name, const void *owner);
void tl_buffer_give(tl_model *m, const char *name, const void *from, const void *to);
/* rollback removes the tensors that the model has received since mark, to undo something half done,
 * before a program uses them. Their handles are stale then. */
uint32_t tl_model_mark(tl_model *m);
void tl_model_rollback(tl_model *m, uint32_t mark);

/* ---- an optimizer ---- */

/* Counts n steps, before anything changes. TL_EUSAGE beyond tl_tape_limit. */
tl_status tl_tape_steps(tl_at at, int n);
/* Whether a program is being traced on this tape. */
bool tl_traced(const tl_tape *t);
/* In a traced function: object lives at least as long as the graph, which uses its numbers. */
tl_status tl_host_hold(tl_tape *t, void *object);
/* Something has changed that traces over m take as constant (groups, say): tl_run traces again. */
void tl_model_changed(tl_model *m);
/* A number that changes with tl_model_changed and when a parameter is made, frozen, thawed or
 * removed: while it stays the same, what was found by name is still valid. 0: m is not alive. */
uint64_t tl_model_state(const tl_model *m);

/* Accumulators, to save a step between two micro-batches and to continue it. A parameter has one
 * for each kind of use in each tl_backward of a micro-batch (NUMERICS 10.3). */
typedef struct {
    const char *param; /* name; "=...": a value made of parameters alone; NULL: i is out of range */
    int call;          /* which backward since the reset, from 0 */
    const char *kind;  /* of use; "": the parameter was reached but has received nothing */
    tl_array array;    /* borrowed */
} tl_accumulating;
int tl_accumulating_count(const tl_tape *t);
tl_accumulating tl_accumulating_at(const tl_tape *t, int i);
uint64_t tl_accumulated(const tl_tape *t); /* changes when one is added to, t's own leaves aside */
uint64_t tl_programs(const tl_tape *t);    /* a hash of the step's backwards; 0: none; 1: .ragged */
/* *out (borrowed) becomes that accumulator, made with zeros if there is none; kind "": none is
 * made. A parameter's accumulator has the parameter's shape, whatever `shape` is. TL_ENAME;
 * TL_EDTYPE: not f32 or f64; TL_EUSAGE: call is below 0 or at least 2^30, or the dtype was another;
 * TL_ESHAPE: a value made of parameters is known in another shape; TL_ETRACED; TL_ENOMEM. */
tl_status tl_accumulator_open(tl_tape *t, const char *param, int call, const char *kind,
                              tl_dtype dtype, tl_shape shape, tl_array *out);
/* The i-th name, as above, for which something waits for tl_accumulate; NULL: no more. */
const char *tl_waiting_at(const tl_tape *t, int i);

/* What waits for a parameter can be added in parts. Part i of `of` is added to the elements
 * [size * i / of, size * (i + 1) / of) of each accumulator along an axis of its own. */
/* How many parts of about `most` elements each; 1 if it can only be added as a whole. */
int tl_accumulate_parts(tl_tape *t, const char *param, int64_t most);
/* The axis for one accumulator. TL_WHOLE: it cannot be cut; TL_ANY_AXIS: nothing waits for it. */
enum { TL_WHOLE = -1, TL_ANY_AXIS = -2 };
tl_status tl_accumulator_axis(tl_tape *t, const char *param, int call, const char *kind, int *axis);
/* tl_accumulate, one part at a time, in order from 0; TL_EUSAGE out of order. */
tl_status tl_accumulate_part(tl_tape *t, const char *param, int i, int of);

/* ---- an object ---- */

typedef enum { TL_KIND_TAPE = 0x7a9e1, TL_KIND_MODEL, TL_KIND_OPT, TL_KIND_GRAPH } tl_kind;
/* The first member of each. */
typedef struct tl_object {
    tl_kind kind;
    tl_err err;
    void (*destroy)(void *);
    int32_t held;           /* how many other objects hold it; it lives until all release it */
    bool given;             /* the user owns it */
    struct tl_object *next; /* in the list of all objects */
} tl_object;

/* Another object needs this one (a tape its model, a graph the optimizer that steps in it) until it
 * releases it. NULL is fine. */
void tl_object_hold(void *object);
void tl_object_release(void *object);
/* The life of an object, whose memory comes from tl_calloc. begin is the first step of making it;
 * destroy releases what it owns, but not its own memory. give is the last step: the user owns it
 * from then on, until tl_free. take is the first step of tl_free: the user no longer owns it; false
 * if that was so already. end frees an object that the user never had. All accept NULL. */
void tl_object_begin(tl_object *o, tl_kind kind, void (*destroy)(void *));
void tl_object_give(tl_object *o);
bool tl_object_take(void *object);
void tl_object_end(void *object);
/* Whether the user owns it. One that the user has freed may live on, held by another, but must not
 * be used. */
bool tl_object_given(const void *object);
/* Whether the object exists; false for NULL. Uses only the address, so it may be asked of an object
 * that has been freed. Every call that takes an object begins with it (TL_ESTALE). */
bool tl_lives(const void *object);

/* How a call that reports errors to the object begins. An error that nobody has read is returned,
 * and the call then does nothing; one that has been read is cleared. */
tl_status tl_error_begin(void *object);
/* Where failures of the object are recorded (tl_fail); NULL for NULL. */
tl_err *tl_error_record(void *object);
TL_END
#endif
