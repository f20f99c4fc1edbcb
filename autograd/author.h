/* author.h: for authors of modules and optimizers - the place of a call, accumulators, what belongs
 * to an optimizer's step, and the head of every object that tl_error, tl_failed and tl_free take.
 * Public. */
#ifndef TL_AUTHOR_H
#define TL_AUTHOR_H

#include "autograd/tape.h"
TL_BEGIN

/* ---- a module ---- */

/* Until the pop, all calls report the place of the outermost push, so a module that brackets its
 * body has messages name its caller. push returns the depth for pop. Parameters made inside are the
 * layer's (tl_param); if shared, other layers may use them, too. */
int tl_place_push(tl_at at);
int tl_share_push(tl_at at, bool shared);
void tl_place_pop(tl_tape *t, int depth);

/* Nobody will ask for x again: its memory is free at once, unless x is made of parameters alone or
 * a view, a gradient, a segment or a watcher may read it (a log opened afterwards says "-"). */
#define tl_let_go(t, x) tl_let_go_at(TL_AT(t), x)
tl_status tl_let_go_at(tl_at at, tl_tensor x);

/* The place of a call that is not told its own. */
static inline tl_at tl_nowhere(tl_tape *t) { return TL_MAKE(tl_at){t, NULL, 0, NULL}; }
/* Records an error with the place, if it is one, on the tape, unless it has one; returns s. */
tl_status tl_tape_fail(tl_at at, tl_status s, const char *fmt, ...) TL_PRINTF(3, 4);
/* tl_need (tensor/status.h) with the place: "tl_keep: out is NULL (train.c:12)". */
tl_status tl_tape_need(tl_at at, const char *func, const char *what, bool there, int64_t n);
#define TL_NEED_AT(at, p) ((p) != NULL ? TL_OK : tl_tape_need(at, __func__, #p, false, 1))
#define TL_NEED_N_AT(at, p, n) \
    ((p) != NULL && tl_is_count(n) ? TL_OK : tl_tape_need(at, __func__, #p, (p) != NULL, n))
/* Whether x can be an input now; if not, the error names `who`. */
bool tl_usable(tl_at at, tl_tensor x, const char *who);

/* A buffer with contents: fill(ctx, data) writes its row-major elements when it is made. */
typedef tl_status tl_filler(void *ctx, void *data);
tl_tensor tl_buffer_filled_at(tl_at at, tl_model *m, const char *name, tl_dtype dtype,
                              tl_shape shape, tl_filler *fill, void *ctx);
/* A named tensor that is the state of one object. take: if it is nobody's yet, it is owner's from
 * now on, and zero, whatever an owner before has left there. Returns whose it is; NULL: there is
 * none of that name. drop: what is owner's is nobody's. */
const void *tl_buffer_take(tl_model *m, const char *name, const void *owner);
void tl_buffer_drop(tl_model *m, const void *owner);
/* rollback forgets the tensors that the model got since mark, to undo what was half done. Their
 * handles must not be used again. */
uint32_t tl_model_mark(tl_model *m);
void tl_model_rollback(tl_model *m, uint32_t mark);

/* ---- an optimizer ---- */

/* Counts n steps, before anything changes; TL_EUSAGE beyond tl_tape_limit. */
tl_status tl_tape_steps(tl_at at, int n);
/* Whether a program is being traced on this tape. */
bool tl_traced(const tl_tape *t);
/* In a traced function: object lives at least as long as the graph, which uses its hooks and
 * numbers. Elsewhere nothing. */
tl_status tl_host_hold(tl_tape *t, void *object);
/* Something has changed that traces over m take as fixed, such as an optimizer's groups: tl_run
 * traces again. */
void tl_model_changed(tl_model *m);
/* Another number once a parameter is made, frozen or forgotten, or that was called: until then what
 * was found by name may be kept. 0: m does not live. */
uint64_t tl_model_state(const tl_model *m);

/* What micro-batches have left: of each parameter an accumulator for each kind of use, in each
 * tl_backward of a micro-batch (NUMERICS 10.3). To save a step half way, and to go on with it. */
typedef struct {
    const char *param; /* name; "=...": a value made of parameters alone; NULL: out of range */
    int call;          /* which backward since the reset, from 0 */
    const char *kind;  /* of use; "": the parameter has been reached, and nothing has come to it */
    tl_array array;    /* borrowed */
} tl_accumulating;
int tl_accumulating_count(const tl_tape *t);
tl_accumulating tl_accumulating_at(const tl_tape *t, int i);
/* Another number once anything has come to one of them. */
uint64_t tl_accumulated(const tl_tape *t);
/* A zeroed accumulator of dtype, or the one that is there, in *out (borrowed); kind "": none. Of a
 * parameter it has the shape, whatever `shape` is.
 * TL_ENAME, TL_EUSAGE (call below 0 or from 2^30 on, or it is there in another dtype), TL_ESHAPE (a
 * value made of parameters, known in another shape), TL_ETRACED, TL_ENOMEM. */
tl_status tl_accumulator_open(tl_tape *t, const char *param, int call, const char *kind,
                              tl_dtype dtype, tl_shape shape, tl_array *out);
/* The i-th name, as above, for which something waits (tl_accumulate); NULL: no more. */
const char *tl_waiting_at(const tl_tape *t, int i);
/* What waits for a parameter can be added in parts, each to some elements of its accumulators along
 * an axis that may be another in each of these: part i of `of` to [size * i / of,
 * size * (i + 1) / of). */
/* How many parts of about `most` elements: 1 if it can only be added as a whole. */
int tl_accumulate_parts(tl_tape *t, const char *param, int64_t most);
/* The axis for one of them. */
enum { TL_WHOLE = -1, TL_ANY_AXIS = -2 /* nothing waits for it */ };
tl_status tl_accumulator_axis(tl_tape *t, const char *param, int call, const char *kind, int *axis);
/* tl_accumulate, a part at a time, from 0 on. TL_EUSAGE for another than the next. */
tl_status tl_accumulate_part(tl_tape *t, const char *param, int i, int of);

/* ---- an object ---- */

typedef enum { TL_KIND_TAPE = 0x7a9e1, TL_KIND_MODEL, TL_KIND_OPT, TL_KIND_GRAPH } tl_kind;
/* The first member of each. */
typedef struct tl_object {
    tl_kind kind;
    tl_err err;
    void (*destroy)(void *);
    int32_t held;           /* by so many others: it lives until the last of them lets go */
    bool given;             /* the user has it */
    struct tl_object *next; /* of all */
} tl_object;

/* Another object needs this one (a tape its model, a graph an optimizer that steps in it), until it
 * releases it. NULL is fine. */
void tl_object_hold(void *object);
void tl_object_release(void *object);
/* begin, the first step of making an object, whose memory is of tl_calloc: how it ends. destroy
 * leaves the memory itself. give, the last step: from here on it is the user's, to be freed by
 * tl_free. take, the first step of tl_free: it no longer is; false if it was not. end frees one
 * that no user knows of. All may be given NULL. */
void tl_object_begin(tl_object *o, tl_kind kind, void (*destroy)(void *));
void tl_object_give(tl_object *o);
bool tl_object_take(void *object);
void tl_object_end(void *object);
/* It is the user's. What somebody else holds may live on, but must not be used any more. */
bool tl_object_given(const void *object);
/* It has not ended; false for NULL. Needs its address alone, and asks how every call begins that is
 * given an object: one that has been freed has failed (TL_ESTALE). */
bool tl_lives(const void *object);

/* How a call that reports to the object begins: it returns an error that nobody has read, and then
 * the call does nothing; one that was read it forgets. */
tl_status tl_error_begin(void *object);
/* Where failures of the object are recorded (tl_fail); NULL for NULL. */
tl_err *tl_error_record(void *object);
TL_END
#endif
