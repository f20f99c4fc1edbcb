/* internal.h: what the files of autograd/ and its rooms share with each other, from the lowest up:
 * each file calls only those before it, and tape.c, which ends tapes, also those of walk.h. */
#ifndef TL_AUTOGRAD_INTERNAL_H
#define TL_AUTOGRAD_INTERNAL_H

#include "autograd/records.h"

/* ---- handle.c: objects, and from handles to records ---- */

/* The place to report: that of the outermost open call, or `at` itself. */
tl_at tl_place(tl_at at);

tl_status tl_values_init(tl_values *v);
void tl_values_free(tl_values *v);
/* Adds n records of leaves, zeroed but for their handles. False, adding none, when out of memory or
 * full. */
bool tl_values_push(tl_values *v, uint32_t generation, int n, tl_value **made);
/* Removes all records from `first` on, of which no handle is valid then, and releases their
 * storage. */
void tl_values_drop(tl_values *v, uint32_t first);
/* Allocates the chunks for that many more records; false when out of memory. */
bool tl_values_room(tl_values *v, uint32_t more);
tl_value *tl_values_at(const tl_values *v, uint32_t i);

/* Makes room for that many more nodes; TL_ENOMEM if there is none. */
tl_status tl_nodes_room(tl_tape *t, uint32_t more);

static inline bool tl_same_handle(tl_tensor a, tl_tensor b)
{
    return a.owner == b.owner && a.index == b.index && a.generation == b.generation;
}

/* The record of a handle for a call named `who`; NULL, with an error on the tape, if it cannot be
 * read. Fills blank storage with zeros, except for a call that may overwrite all of it, or only
 * views it: then its memory may have changed, too. tl_deref: for a call that reads x. */
typedef enum { TL_READS, TL_OVERWRITES, TL_VIEWS } tl_access;
tl_value *tl_look_up(tl_at at, tl_tensor x, const char *who, tl_access how);
static inline tl_value *tl_deref(tl_at at, tl_tensor x, const char *who)
{
    return tl_look_up(at, x, who, TL_READS);
}
/* The record of a handle, without an error: NULL if there is none. */
tl_value *tl_peek(const tl_tape *t, tl_tensor x);
/* The same for a handle of the model; NULL if it is not one, or was removed. */
tl_value *tl_model_value(const tl_model *m, tl_tensor x);
/* Whether the leaf is a derived value (batch/derived.c). */
static inline bool tl_derived(const tl_tape *t, tl_tensor leaf)
{
    return t->lasting != NULL && leaf.owner == t->lasting->values.owner;
}
/* The name of a tensor of the model; NULL if it has none. */
const char *tl_model_name_of(tl_model *m, tl_tensor x);
/* The parameter's name, or that of the op that made a derived value, or "(a leaf of the tape)". */
const char *tl_leaf_name(const tl_tape *t, tl_tensor leaf);

/* n zeroed elements in t's bump memory; NULL, with an error, if there is none. */
void *tl_tape_room(tl_tape *t, size_t n, size_t size);
/* Adds a leaf over a storage, which it retains; NULL, with an error, if it cannot. */
tl_value *tl_tape_value(tl_tape *t, const tl_array *a, tl_storage *st);

/* The handle of a record; TL_NONE for NULL. */
static inline tl_tensor tl_handle(const tl_value *v) { return v == NULL ? TL_NONE : v->self; }
/* The record of input k of n; NULL: it is absent, or was removed from the model. */
static inline tl_value *tl_input(const tl_node *n, int k)
{
    tl_value *v = n->value[k];
    return v != NULL && tl_same_handle(v->self, n->in[k]) ? v : NULL;
}
/* The number of the node of t that made x; -1: none has. */
int32_t tl_maker_at(const tl_tape *t, tl_tensor x);
/* The node itself, or NULL. */
const tl_node *tl_maker(const tl_tape *t, tl_tensor x);
/* What x shows through ops with one of these traits, such as TL_VIEW, and none of `without`; x
 * itself if it was made otherwise. */
tl_tensor tl_behind(const tl_tape *t, tl_tensor x, unsigned traits, unsigned without);
/* " ('NAME')" of the tensor of the model that x shows; "" if it shows none with a name. */
enum { TL_SHOWN_TEXT = 112 };
static inline const char *tl_shown_text(char buf[TL_SHOWN_TEXT], const tl_tape *t, tl_tensor x)
{
    x = tl_behind(t, x, TL_VIEW, 0);
    const char *name = t->model == NULL ? NULL : tl_model_name_of(t->model, x);
    buf[0] = '\0';
    if (name != NULL)
        snprintf(buf, TL_SHOWN_TEXT, " ('%.100s')", name);
    return buf;
}
/* The handle of value i of t; of a node's output j. */
static inline tl_tensor tl_tape_handle(const tl_tape *t, uint32_t i)
{
    return (tl_tensor){t->values.owner, i, t->generation};
}
static inline tl_tensor tl_node_out(const tl_tape *t, const tl_node *n, int j)
{
    return tl_tape_handle(t, n->out + (uint32_t)j);
}
/* Whether the node changes its operand in place. */
static inline bool tl_node_mutates(const tl_node *n)
{
    return n->op->traits & TL_MUTATES && !tl_is_none(n->in[n->op->mutates]);
}

/* The value whose memory x uses: a view's input, the operand that an in-place op changed, or the
 * value from which a vjp, or in a trace any call, detached x. TL_NONE if x has memory of its own,
 * or is not known to share it (a tl_detach of the program). */
tl_tensor tl_below(const tl_tape *t, tl_tensor x);
/* The last of those below x; x itself if it has memory of its own. */
tl_tensor tl_bottom(const tl_tape *t, tl_tensor x);
/* Whether two inputs of a call lie in one memory. In a trace only the model has memory. */
bool tl_same_memory(const tl_tape *t, tl_tensor x, tl_tensor y);
/* The value that a leaf was detached from, however often; x itself if it was not. */
tl_tensor tl_attached(const tl_tape *t, tl_tensor x);

/* Releases a value's storage and marks it as freed. */
void tl_value_give_back(tl_value *v);

/* ---- object.c: errors ---- */

/* The tape's status, for a call that would add to gradients. On an error, gradients lack that call
 * from then on, and tl_error_clear drops them. */
static inline tl_status tl_may_add(tl_tape *t)
{
    const tl_status s = tl_error_status(t);
    if (tl_lives(t))
        t->missed |= s != TL_OK;
    return s;
}

/* The model of the program that this thread records, to run it later; NULL: none. Meanwhile
 * tl_error_begin refuses calls on that model. tl_error_renew is the same without that refusal: for
 * calls that make tensors, or say what they are. */
extern _Thread_local const void *tl_recording;
tl_status tl_error_renew(void *object);
/* s is the status of a call that an error of the model may have stopped half way: the tape then
 * takes that error over, so that clearing the model's does not hide it. Returns s. */
tl_status tl_tape_stopped(tl_tape *t, tl_status s);
/* Whether no op, backward or callback is under way; if one is, an error refuses `who`. */
bool tl_between(tl_tape *t, const char *who);

/* ---- op.c: ops and their attributes ---- */

/* Attributes as text, " {eps=1e-05, k=1}"; empty if there are none. Returns buf. */
enum { TL_ATTRS_TEXT = 256 };
const char *tl_attrs_text(const tl_op *op, const void *attrs, char buf[TL_ATTRS_TEXT]);
/* Whether attributes agree, field by field, except those with skip[field] >= 0 (NULL: compare all).
 * A TL_ATTR_DIM may count from either end if the rank of input 0 is given; 0: unknown. */
bool tl_attrs_agree(const tl_op *op, const void *a, const void *b, int rank,
                    const signed char *skip);
double tl_attr_number(const tl_attr *f, const void *attrs); /* 0 for a shape or dtype */
/* Mixes attributes, or a shape, into the hash h (memory.h). */
uint64_t tl_mix_attrs(uint64_t h, const tl_op *op, const void *attrs);
uint64_t tl_mix_shape(uint64_t h, const tl_shape *s);
/* Whether the op folds the gradient of input k into the accumulator; else the engine does. */
static inline bool tl_op_folds(const tl_op *op, int k) { return k < 32 && op->folds & TL_BIT(k); }
/* Whether the op's accumulator for input k is f64. */
static inline bool tl_op_folds_f64(const tl_op *op, const void *attrs, int k)
{
    return op->folds_f64 & TL_BIT(k) || (op->folds_wide != NULL && op->folds_wide(attrs));
}
/* An error if op cannot be called with these: it may be a user's. */
tl_status tl_op_check(tl_at at, const tl_op *op, const void *attrs, const tl_tensor *in, int n_in,
                      const tl_tensor *out);
/* The inputs that op's vjp reads when those of `wanted` take gradients. */
unsigned tl_op_reads(const tl_op *op, unsigned wanted);
/* Whether a call of op that continues a overwrites all of its blank storage, which need not be
 * filled with zeros first if the op's own kernel runs and nobody watches. */
bool tl_op_begins(const tl_op *op, const tl_array *a, const tl_storage *st);

/* ---- kernels/table.c: selections of kernels ---- */

/* One selection, open now or remembered. Equal selections of a tape share a record, which lives as
 * long as the tape, so that nodes can refer to it. */
struct tl_choice {
    const char *op;   /* NULL: all */
    const char *name; /* "invariant", "fast" or a kernel's */
    tl_dtype dtype;
    const tl_choice *outer;
    tl_choice *next; /* in the tape's list */
};
/* Opens a selection without probing the kernel; name must outlive the tape. False on an error. */
bool tl_choice_open(tl_at at, const char *op, tl_dtype dtype, const char *name);
/* Puts the selections of another tape's node in force on dst; false, with an error, when out of
 * memory. */
bool tl_choice_follow(tl_tape *dst, const tl_choice *c);
void tl_choices_free(tl_tape *t);
/* The kernel that selections c give to a call; NULL: the op's own. */
const tl_kernel *tl_kernel_for(const tl_choice *c, const tl_call *call);
/* A kernel of other bits (TL_FAST) that a selection, of c alone, may give to a call; NULL: none. */
const tl_kernel *tl_choice_fast(const tl_choice *c);
/* It selects the op's own kernel for every call, so that those around it do nothing. */
bool tl_choice_is_own(const tl_choice *c);

/* ---- scope.c: what is in force on a tape, and who watches it ---- */

/* A tape without arenas, for traces. */
tl_tape *tl_tape_bare(tl_model *m, void (*destroy)(void *));
/* tl_mode_push without its special case for TL_INVARIANT. */
int tl_mode_open(tl_tape *t, unsigned mode);
/* Adds modes and phases; calls belong to the place `at`. */
tl_scope tl_scope_open(tl_at at, unsigned mode, unsigned phase);
/* Puts in force the selections, phase and place of n, perhaps another tape's, and that mode. */
tl_scope tl_scope_of(tl_tape *t, const tl_node *n, unsigned mode);
static inline void tl_scope_end(tl_tape *t, tl_scope outer) { t->now = outer; }
/* An error if two layers of one recording use the same parameter. */
tl_status tl_site_check(tl_at at, const char *name, uint32_t index);
/* Attaches to dst the observers of src that follow. */
tl_status tl_observe_like(tl_tape *dst, const tl_tape *src);
/* Tells the observers of a tape an event, with its arguments after ctx. */
#define TL_TELL(t, event, ...)                                   \
    for (int tl_i = ((t)->telling++, 0), tl_n = (t)->n_watchers; \
         tl_i < tl_n || (--(t)->telling, false); tl_i++)         \
        if ((t)->watcher[tl_i].o->event != NULL)                 \
    (t)->watcher[tl_i].o->event((t)->watcher[tl_i].ctx, __VA_ARGS__)

/* ---- run.c, compute.c, apply.c: a call ---- */

/* Tells observers, who may refuse it, that a call is about to be recorded, or has run. */
tl_status tl_tell(tl_tape *t, const tl_seen *s, bool ran);
/* Tells them that it is about to run. */
void tl_tell_runs(tl_tape *t, const tl_seen *s);
/* Tells them that the last node has been recorded; the status of the tape then. */
tl_status tl_tell_recorded(tl_tape *t);
/* Runs the kernel of a call whose arrays are ready, in the right floating-point environment. The
 * operand of an op that changes one is output 0, or is copied there first. */
tl_status tl_op_run(tl_call *c);
/* How many trailing dims are one row, for an op that works by rows. */
int64_t tl_row_dims(const tl_call *c);
/* A tensor of a's shape that is `value` everywhere; x folded down to a's shape, which continues acc
 * unless that is TL_NONE. */
tl_tensor tl_filled(tl_at at, const tl_array *a, tl_dtype dtype, double value);
tl_tensor tl_folded(tl_at at, tl_tensor x, tl_tensor acc, const tl_array *a, tl_dtype dtype);

/* ---- contents.c, model.c, tape.c ---- */

/* tl_deref for reading contents: a segment must not have dropped them, nor a trace lack them. */
tl_value *tl_readable(tl_at at, tl_tensor x, const char *who);
/* The handle of the model's tensor i, which must be there. */
tl_tensor tl_model_handle(const tl_model *m, uint32_t i);
/* tl_tape_reset, of a trace too. */
void tl_tape_rewind(tl_tape *t);
/* Counts n optimizer steps (tl_tape_steps), for a graph whose backwards are still to come. */
tl_status tl_steps_count(tl_at at, int n);

#include "autograd/walk.h"

#endif
