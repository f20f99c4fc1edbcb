/* internal.h: the records behind tapes and models, and what the files of autograd/ and its rooms
 * share with each other.
 *
 * Value records live in chunks that never move, so a pointer to one stays valid while more are
 * added and, in a model, while another thread reads. Nodes and gradient records may move when one
 * is added: hold their number, or copy them. */
#ifndef TL_AUTOGRAD_INTERNAL_H
#define TL_AUTOGRAD_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "autograd/kernel.h"
#include "autograd/model.h"
#include "autograd/author.h"
#include "autograd/observer.h"
#include "autograd/op.h"
#include "autograd/recorder.h"
#include "autograd/tape.h"
#include "tensor/storage.h"
#include "tensor/memory.h"

/* ---- values ---- */

/* One tensor of a tape or a model. */
typedef struct {
    tl_array a;
    tl_storage *st; /* NULL in a trace, and once the memory has been released */
    uint32_t generation;
    uint32_t born;   /* the version of st that holds this value; a view has its base's */
    int32_t node;    /* the node that produced it; -1: a leaf */
    uint8_t out;     /* which of that node's outputs it is */
    tl_batch batch;  /* how it depends on the batch */
    int64_t samples; /* how many samples it holds or totals; -1: it has none, or mixes them */
    bool needs_grad;
    bool plain;         /* row-major, and of a dtype that is computed in */
    bool fixed;         /* made of parameters and constants alone, none of them repeated */
    bool kept;          /* its memory is kept from an earlier micro-batch for later ones */
    bool consumed;      /* changed in place: a newer handle names the result */
    bool held;          /* a backward walk owns it and releases it itself */
    bool freed;         /* backward has released its memory */
    bool let_go;        /* tl_let_go has released its memory; `freed` is set as well */
    bool dropped;       /* a segment has released its memory, and recomputes it on demand */
    bool lent;          /* it is an accumulator (tl_grad lends them) */
    bool restored;      /* a segment has recomputed it: st is not the storage of recording */
    tl_tensor source;   /* of a leaf that a vjp detached or a walk holds: the original value */
    tl_tensor detached; /* of a fixed leaf: the value it was detached from */
    tl_tensor bottom;   /* the value that owns its memory; a cache of tl_bottom */
    uint32_t part;      /* a view of only some of the samples: which view; 0: it has all of them */
    uint64_t print;     /* of a fixed value: what it was made of (batch/derived.c), or its name */
    uint64_t after; /* on a lasting tape: the last change below it when its contents were made */
} tl_value;

/* A table of value records. */
enum { TL_CHUNK = 256, TL_CHUNKS = 16384 };
typedef struct {
    uint32_t owner; /* a unique number, never 0: the `owner` of handles */
    _Atomic uint32_t count;
    tl_value **chunk;
} tl_values;

tl_status tl_values_init(tl_values *v);
void tl_values_free(tl_values *v);
/* Adds n records of leaves, zeroed but for the generation, with their handles. False, adding none,
 * when out of memory or full. */
bool tl_values_push(tl_values *v, uint32_t generation, int n, tl_value **made, tl_tensor *handle);
/* Removes all records from `first` on and releases their storage. */
void tl_values_drop(tl_values *v, uint32_t first);
/* Allocates the chunks for that many more records; false when out of memory. */
bool tl_values_room(tl_values *v, uint32_t more);
tl_value *tl_values_at(const tl_values *v, uint32_t i);

/* ---- nodes ---- */

enum { TL_OUTS = 8 }; /* outputs of an op, at most */

/* The kernel selections in force (kernel.h); NULL: none. */
typedef struct tl_choice tl_choice;

/* One recorded call: all that is needed to differentiate it or to run it again. */
typedef struct {
    const tl_op *op;
    void *attrs;
    unsigned mode;
    int n_in, n_out;
    const tl_tensor *in;
    uint32_t out;             /* index of the first output value; the others follow it */
    const uint32_t *versions; /* of the inputs' storages, then the outputs', at recording */
    bool needs_grad;
    const char *file, *call; /* call: the function that the program called; NULL: not known */
    int line;
    uint8_t phase;                  /* TL_PHASE_... bits: what it was recorded for */
    const struct tl_kernel *kernel; /* the kernel that ran; NULL: the op's own */
    const char *level;              /* the vector level it ran at */
    const tl_choice *choice;        /* selections in force, for backward and re-runs */
    /* Scratch of tl_postorder (walk.h). */
    uint32_t visit; /* the last walk that reached this node */
    int32_t link;   /* the node it was reached from, then its predecessor in the order */
    int next;       /* the input to follow next */
    uint64_t below; /* on a lasting tape: the last change below it */
} tl_node;

/* Makes room for that many more nodes; TL_ENOMEM if there is none. */
tl_status tl_nodes_room(tl_tape *t, uint32_t more);

/* ---- gradients ---- */

/* An accumulator: the sum of the gradients that one kind of use of a leaf brings in one backward of
 * each micro-batch (NUMERICS 10.3). */
typedef struct {
    char *kind; /* tl_use_kind; owned */
    int call;   /* which tl_backward since the reset, from 0; TL_BELOW and up: see settle.c */
    tl_storage *st;
    tl_array sum;          /* in the leaf's shape */
    bool open;             /* it holds part of the gradient that is being accumulated */
    struct tl_fold *folds; /* of the current backward */
} tl_accumulator;
enum { TL_BELOW = 1 << 30 };
/* Whether it holds part of a gradient, other than what derived values have sent back. */
static inline bool tl_acc_holds(const tl_accumulator *u) { return u->open && u->call < TL_BELOW; }

/* The gradient of one leaf: a parameter, a marked leaf of the tape, or a derived value. */
typedef struct {
    tl_tensor leaf;
    char *name; /* of a derived value; owned */
    int n_accs, cap;
    tl_accumulator *acc;
    uint64_t born; /* of a derived value: the last change below it when last reached; 0: unknown */
    bool reached;  /* the last backward reached it */
    bool live;     /* it holds a gradient */
    struct tl_fold *waiting; /* put off until tl_accumulate */
} tl_leaf_grad;

/* ---- the tape ---- */

/* Nodes first .. end-1, whose values are recomputed together (segment.c). */
typedef struct tl_segment {
    uint32_t first, end;
    bool there;                /* the values have been recomputed */
    unsigned char (*hash)[32]; /* of each value's bytes, to verify them; or NULL */
    struct tl_segment *next;
} tl_segment;

/* An attached observer. */
typedef struct {
    const tl_observer *o;
    void *ctx;
} tl_watcher;

/* A call that is open (tl_place_push). Deeper ones than TL_PLACES are counted but not kept. */
enum { TL_PLACES = 64 };
typedef struct {
    tl_at at;
    bool shared; /* its parameters may also be used from other places */
} tl_place_frame;

/* Where a recording first used a parameter: the calls that were open then. */
typedef struct {
    uint32_t generation; /* the tape's, which tells recordings apart */
    int n;
    bool shared;
    const tl_place_frame *open;
} tl_site;

/* The fingerprint of one backward walk (batch/prints.c). In a trace, those without nodes stand for
 * clearing gradients and for an optimizer's step. */
typedef struct {
    uint32_t n, generation, recorded; /* recorded: nodes of the tape when it was called */
    bool ragged;
    uint64_t *node;
} tl_print;
/* The prints since gradients were last cleared, by number of the call in its micro-batch; in a
 * trace, those of all its calls. */
typedef struct {
    tl_print *print;
    int n, cap;
    bool ragged; /* a call since the reset was */
} tl_prints;

/* How far a tape has come. */
typedef struct {
    uint32_t values, nodes;
    size_t bump;
} tl_tape_mark;

/* What is in force for the calls made on a tape. open changes it, end restores all of it. */
typedef struct {
    unsigned mode;
    const tl_choice *choice;
    int mode_depth, place_depth;
    int place_base; /* calls are stamped with the first open place from here on */
    uint8_t phase;
} tl_scope;
enum { TL_MODE_DEPTH = 64 };

struct tl_tape {
    tl_object head;
    tl_model *model;
    tl_arena *arena, *grad_arena; /* NULL in a trace */

    /* What has been recorded since the reset. */
    tl_values values;
    uint32_t generation;
    tl_bump bump;
    tl_node *node;
    uint32_t n_nodes, cap_nodes;
    uint32_t visits;      /* tl_postorder walks so far */
    tl_segment *segments; /* newest first; bump memory */
    tl_site *site;        /* by index of the model's value */
    uint32_t n_sites;
    int steps, limit; /* optimizer steps since the reset; how many are allowed (0: any) */

    tl_scope now;
    struct {
        unsigned mode;
        const tl_choice *choice;
    } mode_stack[TL_MODE_DEPTH];      /* what was in force outside each open mode */
    tl_place_frame places[TL_PLACES]; /* the outermost first */
    tl_choice *choices;               /* all selections there have been; nodes refer to them */

    /* Gradients. */
    tl_leaf_grad *grad;
    int n_grads, cap_grads;
    tl_key_map grad_at; /* leaf -> the last record with that owner and index */
    uint32_t thaws;     /* of the model, when recording began */
    bool late;          /* a leaf marked since then may have been used before */
    bool missed;        /* an error of the model has kept a backward from this batch */
    const char *inside; /* the op whose call is under way */
    int first_grad; /* records before it belong to gradients that a trace has already consumed */
    int calls;      /* tl_backward calls that reached a parameter, since the reset or a step */
    int waiting;    /* folds that wait for tl_accumulate, in all records */
    tl_prints prints;

    /* Derived values (batch/derived.c). */
    tl_tape *lasting; /* how they were made; NULL: there are none */
    /* Whether the results of this call on these inputs are in memory already: then before[j] is
     * result j, on the lasting tape. NULL: nothing has been made before. */
    bool (*earlier)(tl_tape *t, const tl_call *c, const tl_tensor *in, const tl_value **before);
    tl_tape_mark traced; /* of a lasting tape: graphs refer to nothing after this ... */
    bool shared;         /* ... unless one has been traced since the reset */
    tl_key_map found;    /* of a lasting tape: print -> its values of that print (derived.c) */
    struct {
        uint32_t visit;   /* of the walk that found the last changes below nodes ... */
        uint32_t names;   /* ... of the model with these parameters ... */
        uint64_t changes; /* ... after this many changes of storages */
    } looked;             /* of a lasting tape */
    tl_tensor *again;     /* a blank map of the values for tl_rerun, n_again long, or NULL */
    uint32_t n_again;
    bool settled;  /* derived values' gradients have been sent back to parameters */
    int settlings; /* in a trace: how often that was recorded */

    /* Who watches, and who redirects. */
    tl_watcher *watcher;     /* in order of attachment */
    int n_watchers, telling; /* telling: callbacks under way */
    /* Which events any of them hears, and the modes in which the shipped observers listen. */
    bool records_watched, run_watched, given_watched, values_watched;
    unsigned heard_modes;
    const tl_recorder *recorder; /* NULL: calls run */
    void *recorder_ctx;
};

/* ---- the model ---- */

typedef struct {
    char *name;
    uint32_t value;
    bool param, frozen;
    const void *owner; /* tl_buffer_take */
} tl_entry;

/* A call of tl_model_freeze, kept for parameters that are made later. */
typedef struct tl_freeze {
    bool frozen;
    bool met; /* some parameter's name begins with the prefix */
    struct tl_freeze *next;
    char prefix[];
} tl_freeze;

struct tl_model {
    tl_object head;
    tl_arena *arena;
    tl_values values;
    pthread_mutex_t lock;
    uint64_t seed;
    /* What traces take as constant. Frozen parameters are hashed: a change may be undone. */
    _Atomic uint32_t settings; /* grows when anything else of it changes */
    _Atomic uint32_t thaws;    /* grows when parameters are trained again */
    _Atomic uint64_t frozen;   /* a hash of the parameters frozen or thawed since they were made */
    _Atomic uint32_t names; /* grows when a parameter is made, frozen, thawed or a tensor removed */
    tl_entry *entry;        /* sorted by name */
    int n_entries, cap_entries;
    tl_freeze *freezes; /* newest first; the newest decides */
};

/* The name of a tensor of the model; NULL if it has none. */
const char *tl_model_name_of(tl_model *m, tl_tensor x);
/* The handle of the model's tensor i, which must be there. */
tl_tensor tl_model_handle(const tl_model *m, uint32_t i);

/* ---- handle.c: from handles to records ---- */

/* The tape's status, for a call that would add to gradients. On an error, gradients lack that call
 * from then on, and tl_error_clear drops them. */
static inline tl_status tl_may_add(tl_tape *t)
{
    const tl_status s = tl_error_status(t);
    if (tl_lives(t))
        t->missed |= s != TL_OK;
    return s;
}

/* Looks up all the records of a call at once, and fills blank storage with zeros. */
typedef struct {
    const tl_tensor *in;
    int n_in;
    unsigned optional; /* bit i: input i may be absent; found[i] is then NULL */
    unsigned begins;   /* bit i: the call may overwrite all of input i, which can stay blank */
    bool view;         /* the call only views its input, so its memory may have changed */
    tl_value **found;  /* of the inputs */
} tl_look;
/* False, with an error on the tape that names `who`, if an input cannot be read. */
bool tl_look_up(tl_at at, const char *who, tl_look *l);
/* The record of one handle; NULL, with an error on the tape, if it cannot be read. */
tl_value *tl_deref(tl_at at, tl_tensor x, const char *who);
/* The same for a call that only views x. */
tl_value *tl_deref_view(tl_at at, tl_tensor x, const char *who);
/* The same for reading contents: a segment must not have dropped them, nor a trace lack them. */
tl_value *tl_readable(tl_at at, tl_tensor x, const char *who);
/* The record of a handle, without an error: NULL if there is none. */
tl_value *tl_peek(const tl_tape *t, tl_tensor x);
/* The same for a handle of the model; NULL if it is not one, or was removed. */
tl_value *tl_model_value(const tl_model *m, tl_tensor x);
/* Whether the leaf is a derived value (batch/derived.c). */
static inline bool tl_derived(const tl_tape *t, tl_tensor leaf)
{
    return t->lasting != NULL && leaf.owner == t->lasting->values.owner;
}
/* The parameter's name, or that of the op that made a derived value, or "(a leaf of the tape)". */
const char *tl_leaf_name(const tl_tape *t, tl_tensor leaf);

/* n zeroed elements in t's bump memory; NULL, with an error, if there is none. */
void *tl_tape_room(tl_tape *t, size_t n, size_t size);
/* Adds a leaf over a storage, which it retains; the zero handle on failure. */
tl_tensor tl_tape_value(tl_tape *t, const tl_array *a, tl_storage *st);

/* A tensor of a's shape that is `value` everywhere; x folded down to a's shape, which continues acc
 * unless that is TL_NONE. */
tl_tensor tl_filled(tl_at at, const tl_array *a, tl_dtype dtype, double value);
tl_tensor tl_folded(tl_at at, tl_tensor x, tl_tensor acc, const tl_array *a, tl_dtype dtype);

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

/* ---- tape.c: tapes, scopes, observers, places ---- */

/* Whether no op, backward or callback is under way; if one is, an error refuses `who`. */
bool tl_between(tl_tape *t, const char *who);
/* A tape without arenas, for traces. */
tl_tape *tl_tape_bare(tl_model *m, void (*destroy)(void *));
/* tl_mode_push without its special case for TL_INVARIANT. */
int tl_mode_open(tl_tape *t, unsigned mode);
/* s is the status of a call that an error of the model may have stopped half way: the tape then
 * takes that error over, so that clearing the model's does not hide it. Returns s. */
tl_status tl_tape_stopped(tl_tape *t, tl_status s);
/* Adds modes and phases; calls belong to the place `at`. */
tl_scope tl_scope_open(tl_at at, unsigned mode, unsigned phase);
/* Puts in force the selections, phase and place of n, perhaps another tape's, and that mode. */
tl_scope tl_scope_of(tl_tape *t, const tl_node *n, unsigned mode);
static inline void tl_scope_end(tl_tape *t, tl_scope outer) { t->now = outer; }
/* An error if two layers of one recording use the same parameter. */
tl_status tl_site_check(tl_at at, const char *name, uint32_t index);
/* Counts n optimizer steps (tl_tape_steps), for a graph whose backwards are still to come. */
tl_status tl_steps_count(tl_at at, int n);
/* Attaches to dst the observers of src that follow. */
tl_status tl_observe_like(tl_tape *dst, const tl_tape *src);
/* The model of the program that this thread records, to run it later; NULL: none. Meanwhile
 * tl_error_begin refuses calls on that model. tl_error_renew is the same without that refusal: for
 * calls that make tensors, or say what they are. */
extern _Thread_local const void *tl_recording;
tl_status tl_error_renew(void *object);

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
/* The best kernel of the table for op, dtype and name; NULL if there is none. */
const tl_kernel *tl_kernel_find(const char *op, tl_dtype dtype, const char *name);
/* The dtype by which a node's kernel was selected (kernel.h). */
tl_dtype tl_node_dtype(const tl_tape *t, const tl_node *n);

/* ---- apply.c, run.c, compute.c: a call ---- */

/* The place to report: that of the outermost open call, or `at` itself. */
tl_at tl_place(tl_at at);
/* Tells observers, who may refuse it, that a call is about to be recorded, or has run. */
tl_status tl_tell(tl_tape *t, const tl_seen *s, bool ran);
/* Tells them that it is about to run. */
void tl_tell_runs(tl_tape *t, const tl_seen *s);
/* Tells them that the last node has been recorded. */
void tl_tell_recorded(tl_tape *t);
/* Tells them any other event, with its arguments after ctx. */
#define TL_TELL(t, event, ...)                                                              \
    for (int tl_i = ((t)->telling++, 0); tl_i < (t)->n_watchers || (--(t)->telling, false); \
         tl_i++)                                                                            \
        if ((t)->watcher[tl_i].o->event != NULL)                                            \
    (t)->watcher[tl_i].o->event((t)->watcher[tl_i].ctx, __VA_ARGS__)
/* Runs the kernel of a call whose arrays are ready, in the right floating-point environment. The
 * operand of an op that changes one is output 0, or is copied there first. */
tl_status tl_op_run(tl_call *c);
/* How many trailing dims are one row, for an op that works by rows. */
int64_t tl_row_dims(const tl_call *c);

#include "autograd/walk.h"

#endif
