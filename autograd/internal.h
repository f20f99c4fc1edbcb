/* internal.h: the inside of tapes and models, shared by autograd/ only.
 *
 * Records live in chunks that never move, so pointers to them stay good while
 * more are added and, for a model, while another thread reads. */
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
#include "tensor/change.h"

/* One tensor of a tape or a model. */
typedef struct {
    tl_array a;
    tl_storage *st; /* NULL: a trace, or given back */
    uint32_t generation;
    uint32_t born; /* version of its storage whose contents it is; a view has its base's */
    int32_t node;  /* producer, -1 for a leaf */
    uint8_t out;   /* which output of it */
    tl_batch batch;
    uint16_t part;   /* of the samples, where a view has taken some; 0: all */
    int64_t samples; /* how many there are, each as many elements along axis `batch` as any other,
                        or in a total; -1: it is free of them, or mixes them */
    bool needs_grad;
    bool plain;       /* row-major, and of a dtype that is computed in */
    bool fixed;       /* made of parameters and constants alone, and of nothing repeated */
    bool consumed;    /* changed in place: a newer handle names it */
    bool held;        /* by a walk back, which gives it back itself */
    bool freed;       /* given back by backward, or ... */
    bool let_go;      /* ... because nobody wants it any more */
    bool dropped;     /* given back by a segment: computed again on demand */
    tl_tensor source; /* a leaf that a vjp detached, or a walk holds: what it is, which a re-run
                         follows */
    tl_tensor bottom; /* in whose memory it lies, once asked (handle.c) */
    bool restored;    /* and it has been: its storage is not the one of recording */
    uint64_t print;   /* of what a fixed value is made of, once asked (batch/derived.c) */
} tl_value;

enum { TL_CHUNK = 256, TL_CHUNKS = 16384 };

typedef struct {
    uint32_t owner; /* unique id, never 0 */
    _Atomic uint32_t count;
    tl_value **chunk;
} tl_values;

tl_status tl_values_init(tl_values *v);
void tl_values_free(tl_values *v);
tl_value *tl_values_at(const tl_values *v, uint32_t i);
/* n fresh zeroed records, the first of that index; false, and none, when out of memory or full. */
bool tl_values_push(tl_values *v, int n, tl_value **made, uint32_t *first);
/* Forgets records from first on, with their storage. */
void tl_values_drop(tl_values *v, uint32_t first);
/* The next records exist already; false when out of memory. */
bool tl_values_room(tl_values *v, uint32_t more);
/* There is room for more nodes on the tape, or TL_ENOMEM. */
tl_status tl_nodes_room(tl_tape *t, uint32_t more);

/* Selections of kernels in force (kernel.h); NULL: none. */
typedef struct tl_choice tl_choice;

typedef struct {
    const tl_op *op;
    void *attrs;
    unsigned mode;
    int n_in, n_out;
    const tl_tensor *in;
    uint32_t out;             /* first output value; the others follow */
    const uint32_t *versions; /* of the storages of inputs, then outputs, at recording */
    bool needs_grad;
    const char *file;
    int line;
    uint8_t phase;                  /* what it was recorded for: TL_PHASE_... bits */
    const struct tl_kernel *kernel; /* that ran; NULL: the op's own ... */
    const char *level;              /* ... at this vector level */
    const tl_choice *choice;        /* selections in force, for backward and for running it again */
    /* tl_postorder: the walk that has come here; from which node, then the one before it in the
     * order; and the input to follow next. */
    uint32_t visit;
    int32_t link;
    int next;
} tl_node;

/* An accumulator of a leaf: of its uses by one kind of op in one backward of a micro-batch
 * (NUMERICS 10.3). */
typedef struct {
    char *kind; /* tl_use_kind; owned */
    int call;   /* of tl_backward since the reset, from 0; TL_BELOW on: batch/derived.c */
    tl_storage *st;
    tl_array sum;          /* the leaf's shape */
    bool open;             /* holds part of the gradient now being accumulated */
    struct tl_fold *folds; /* of the backward under way: one for each view of the leaf ... */
    bool meets;            /* ... or, where two of these meet, one in all */
} tl_accumulator;

typedef struct {
    tl_tensor leaf; /* of the tape, of the model, or a derived value: of the lasting tape */
    char *name;     /* of a derived value, once asked for; owned */
    int n_accs, cap;
    tl_accumulator *acc;
    uint32_t born;           /* of a derived value: versions of what it is made of when it was last
                                reached (batch/derived.c); 0: not known */
    bool reached;            /* by the last backward */
    bool live;               /* holds a gradient */
    struct tl_fold *waiting; /* for tl_accumulate */
} tl_leaf_grad;
enum { TL_BELOW = 1 << 30 };

/* Nodes first .. end-1, computed again as one; hash: of each value's bytes, or NULL. */
typedef struct tl_segment {
    uint32_t first, end;
    bool there; /* the values have been computed again */
    unsigned char (*hash)[32];
    struct tl_segment *next;
} tl_segment;

enum { TL_MODE_DEPTH = 64 };

typedef struct {
    const tl_observer *o;
    void *ctx;
} tl_watcher;

/* A call that is open (tl_place_push); deeper ones are counted and not kept. */
typedef struct {
    tl_at at;
    bool shared; /* parameters inside may be those of another place */
} tl_place_frame;
enum { TL_PLACES = 64 };

/* The calls that were open when a recording first used a parameter. */
typedef struct {
    uint32_t generation; /* of the tape: another, another recording */
    int n;
    bool shared;
    const tl_place_frame *open;
} tl_site;

/* What backward walks have met since gradients were cleared, by number of the call in its
 * micro-batch (batch/prints.c). Of a trace: all its calls; prints without nodes: when gradients
 * were cleared, and when stepped by. */
typedef struct {
    uint32_t n, generation;
    bool ragged;
    uint64_t *node;
} tl_print;
typedef struct {
    tl_print *print;
    int n, cap;
    bool ragged; /* since the reset, a call has been */
} tl_prints;

/* How far a tape had come. */
typedef struct {
    uint32_t values, nodes;
    size_t bump;
} tl_tape_mark;

struct tl_tape {
    tl_object head;
    tl_model *model;
    tl_arena *arena, *grad_arena;
    tl_values values;
    uint32_t generation;
    tl_bump bump;
    tl_node *node;
    uint32_t n_nodes, cap_nodes;
    uint32_t visits; /* walks (tl_postorder) */
    tl_prints prints;
    int steps, limit; /* optimizer steps since the reset, and how many there may be; 0: any */
    int waiting;      /* folds of records that wait for tl_accumulate */
    int calls;        /* of tl_backward that reached a parameter, since the reset or a step */
    unsigned mode;
    const tl_choice *choice;
    struct {
        unsigned mode;
        const tl_choice *choice;
    } mode_stack[TL_MODE_DEPTH];
    tl_choice *choices; /* every selection that there was, kept for nodes */
    int mode_depth;
    tl_place_frame places[TL_PLACES]; /* open now, the outermost first; the first from place_base on
                                         is stamped on calls */
    int place_depth, place_base;
    tl_site *site; /* by index of the model's value */
    uint32_t n_sites;
    tl_leaf_grad *grad; /* of parameters and of marked leaves */
    int n_grads, cap_grads;
    tl_tape *lasting;    /* how derived values were made (batch/derived.c); NULL: there are none */
    tl_tape_mark traced; /* of a lasting tape: graphs refer to nothing after it, */
    bool shared;         /* unless one has been traced since the reset */
    bool settled;        /* what has come to them has been sent on; how often, in a trace */
    int settlings;
    int first_grad; /* records before it are of gradients that a recorder's program has consumed */
    uint8_t phase;  /* of nodes now recorded */
    tl_segment *segments; /* bump memory, newest first */
    tl_watcher *watcher;  /* in order of attachment */
    int n_watchers;
    bool run_watched, given_watched; /* one of them hears of runs; of what vjps gave; */
    bool values_watched;             /* where a backward begins: all values are still there */
    const tl_recorder *recorder;     /* NULL: calls run */
    void *recorder_ctx;
};

typedef struct {
    char *name;
    uint32_t value;
    bool param, frozen;
    const void *owner; /* tl_buffer_take */
} tl_entry;

/* What tl_model_freeze was told, for parameters that are yet to be made. */
typedef struct tl_freeze {
    bool frozen, met; /* met: a parameter's name begins with prefix */
    struct tl_freeze *next;
    char prefix[];
} tl_freeze;

struct tl_model {
    tl_object head;
    tl_arena *arena;
    tl_values values;
    pthread_mutex_t lock;
    uint64_t seed;
    uint32_t settings; /* grows whenever something changes that a trace takes as fixed: frozen
                          parameters, an optimizer's groups */
    uint32_t names;    /* grows when a parameter is made, or tensors are forgotten */
    tl_entry *entry;   /* in order of name */
    int n_entries, cap_entries;
    tl_freeze *freezes; /* newest first: it decides */
};

/* " {eps=1e-05, k=1}", nothing without attributes; returns buf. */
enum { TL_ATTRS_TEXT = 256 };
const char *tl_attrs_text(const tl_op *op, const void *attrs, char buf[TL_ATTRS_TEXT]);
/* Attributes agree field by field, but for those with skip[field] >= 0 (NULL: none). rank, of input
 * 0 (or 0: unknown): a "dim" may count from either end. */
bool tl_attrs_agree(const tl_op *op, const void *a, const void *b, int rank,
                    const signed char *skip);
double tl_attr_number(const tl_attr *f, const void *attrs); /* 0 for one that is none */

/* The name of a tensor of the model; NULL if it has none. */
const char *tl_model_name_of(tl_model *m, tl_tensor x);
/* The name of a parameter, or "(a leaf of the tape)". */
const char *tl_leaf_name(const tl_tape *t, tl_tensor leaf);
/* Every trained parameter was reached by the backward being prepared, or partial. */
tl_status tl_check_reached(tl_at at, bool partial);
/* Every tl_model_freeze meant some parameter (TL_ENAME). */
tl_status tl_check_freezes(tl_at at);

/* The records of a call, all at once: those behind handles, NULL for optional ones that are absent;
 * and fresh ones for what it makes. False, with an error on the tape, for a handle that cannot be
 * read (who names the caller), or only looked at another way, though its memory may have changed
 * elsewhere. */
typedef struct {
    const tl_tensor *in;
    int n_in, n_out;
    unsigned optional; /* a bit each */
    bool view;
    tl_value **found, **made;
    uint32_t first; /* number of the first made; the others follow */
    bool room;      /* there are that many */
} tl_look;
bool tl_look_up(tl_at at, const char *who, tl_look *l);
/* The record behind a handle, or NULL with an error on the tape. */
tl_value *tl_deref(tl_at at, tl_tensor x, const char *who);
/* The same for an op that only looks at x another way: x's memory may have changed elsewhere. */
tl_value *tl_deref_view(tl_at at, tl_tensor x, const char *who);
/* The same for reading its contents: it has been neither dropped by a segment nor only traced. */
tl_value *tl_readable(tl_at at, tl_tensor x, const char *who);
/* The record without an error. */
tl_value *tl_peek(const tl_tape *t, tl_tensor x);
tl_value *tl_model_value(const tl_model *m, tl_tensor x);

/* Row-major, and of a dtype that is computed in. */
static inline bool tl_array_plain(const tl_array *a)
{
    return a->dtype != TL_F16 && a->dtype != TL_BF16 && tl_array_contiguous(a);
}

/* Each element along that axis is a sample; or x is free of them, or mixes them. */
static inline void tl_batch_set(tl_value *x, int axis)
{
    x->batch = (tl_batch)axis;
    x->samples = axis < 0 ? -1 : x->a.dim[axis];
}
/* x depends on the batch as y does. */
static inline void tl_batch_like(tl_value *x, const tl_value *y)
{
    x->batch = y->batch;
    x->part = y->part;
    x->samples = y->samples;
}

/* A node changes its operand (present) in place. */
static inline bool tl_node_mutates(const tl_node *n)
{
    return n->op->traits & TL_MUTATES && !tl_is_none(n->in[n->op->mutates]);
}
static inline tl_tensor tl_node_out(const tl_tape *t, const tl_node *n, int j)
{
    return (tl_tensor){t->values.owner, n->out + (uint32_t)j, t->generation};
}
/* The value in whose memory x lies: what a view shows, what was changed in place into x, what a
 * detached leaf was detached from; TL_NONE if its memory is its own. And the one at the bottom of
 * that, possibly x (handle.c). */
tl_tensor tl_below(const tl_tape *t, tl_tensor x);
tl_tensor tl_bottom(const tl_tape *t, tl_tensor x);
/* What a detached leaf was detached from; x itself if it is none. */
tl_tensor tl_attached(const tl_tape *t, tl_tensor x);

/* A call of op goes over all that st, which is blank, holds when it continues a: it need not be
 * settled before, if the op's own kernel runs and nobody watches. */
static inline bool tl_may_begin(const tl_op *op, const tl_array *a, const tl_storage *st)
{
    return op->traits & TL_BEGINS &&
           (size_t)tl_array_count(a) * tl_dtype_size(a->dtype) == st->bytes;
}

/* A tape without arenas: for traces. */
tl_tape *tl_tape_bare(tl_model *m);

/* tl_mode_push for the engine: 0 is no change. */
int tl_mode_open(tl_tape *t, unsigned mode);

/* What is in force on a tape for the calls made there: changed until the end, which puts back all
 * of it. */
typedef struct {
    unsigned mode;
    const tl_choice *choice;
    int mode_depth, place_depth, place_base;
    uint8_t phase;
} tl_scope;
/* Those modes and phases besides; calls belong to that place. */
tl_scope tl_scope_open(tl_at at, unsigned mode, unsigned phase);
/* The selections and phase of n, of any tape, and that mode. */
tl_scope tl_scope_of(tl_tape *t, const tl_node *n, unsigned mode);
void tl_scope_end(tl_tape *t, tl_scope outer);

/* Puts a new value on the tape over a storage (retained); the zero handle on failure. */
tl_tensor tl_tape_value(tl_tape *t, const tl_array *a, tl_storage *st);

/* The op, not the engine, folds what comes to input k; in f64. */
static inline bool tl_op_folds(const tl_op *op, int k) { return k < 32 && op->folds & TL_BIT(k); }
static inline bool tl_op_folds_f64(const tl_op *op, const void *attrs, int k)
{
    return op->folds_f64 & TL_BIT(k) || (op->folds_wide != NULL && op->folds_wide(attrs));
}

/* The inputs that op's vjp reads when those of wanted take gradients. */
unsigned tl_op_reads(const tl_op *op, unsigned wanted);

/* No layer of the recording but one uses the parameter of that name and index (tape.c). */
tl_status tl_site_check(tl_at at, const char *name, uint32_t index);

/* tl_tape_steps where their number alone counts: a graph's backwards are yet to come. */
tl_status tl_steps_count(tl_at at, int n);

/* The place to report: the outermost pushed one, or at itself. */
tl_at tl_place(tl_at at);

/* What tl_data, tl_constant and tl_bound ask of data for a, of so many bytes: elements of its
 * dtype's C type, and not NULL where it has any. */
tl_status tl_data_check(const void *data, const char *c_type, const tl_array *a, size_t bytes,
                        tl_err *err);

/* The kernel that selections c give a call whose arrays are known; NULL: the op's own (kernel.c).
 */
const struct tl_kernel *tl_kernel_for(const tl_choice *c, const tl_call *call);
/* The dtype that selects a node's kernel (kernel.h). */
tl_dtype tl_node_dtype(const tl_tape *t, const tl_node *n);
/* Puts the selections of another tape's node in force on dst; false, with an error, when out of
 * memory. */
bool tl_choice_follow(tl_tape *dst, const tl_choice *c);
void tl_choices_free(tl_tape *t);

/* How many last dims are a row to an op that works on rows. */
static inline int64_t tl_row_dims(const tl_call *c)
{
    const size_t at = c->op->row_dims;
    return at == 0 ? 1 : *(const int64_t *)(const void *)((const char *)c->attrs + at);
}
/* Runs c->kernel, or the op's own forward or tile loop, on prepared arrays, in the right
 * floating-point environment. */
tl_status tl_op_run(tl_call *c);

/* Observers hear that an op is about to run, and that it has run: one of them may refuse that. */
void tl_tell_runs(tl_tape *t, const tl_seen *s);
tl_status tl_tell_ran(tl_tape *t, const tl_seen *s);
/* Any other event of tl_observer, with its arguments after ctx. */
#define TL_TELL(t, event, ...)                         \
    for (int tl_i = 0; tl_i < (t)->n_watchers; tl_i++) \
        if ((t)->watcher[tl_i].o->event != NULL)       \
    (t)->watcher[tl_i].o->event((t)->watcher[tl_i].ctx, __VA_ARGS__)
/* What follows src follows dst, too. */
tl_status tl_observe_like(tl_tape *dst, const tl_tape *src);

/* Before node number n is visited by backward: its segment, if any, is there again. */
tl_status tl_segment_restore(tl_tape *t, uint32_t n);
/* A segment that is not there yet reads that value when it is computed again. */
bool tl_segment_awaits(const tl_tape *t, uint32_t value);

/* ---- accumulators.c: accumulators of leaves, shared by backward and the reading of gradients ----
 */

/* Nothing waits for tl_accumulate; else TL_EUSAGE. */
tl_status tl_check_waiting(tl_at at, const char *who);
/* A parameter's, or that of a derived value. */
const char *tl_leaf_grad_name(const tl_tape *t, tl_leaf_grad *g);
/* All gradients end, whatever a trace notes. */
void tl_grads_drop(tl_tape *t);
tl_leaf_grad *tl_leaf_grad_find(tl_tape *t, tl_tensor leaf); /* NULL: none yet */
tl_leaf_grad *tl_leaf_grad_get(tl_tape *t, tl_tensor leaf); /* made if need be; NULL, with an error:
                                                               no memory */
void tl_leaf_grads_drop(tl_tape *t, uint32_t owner, uint32_t first); /* of its leaves from first on;
                                                                        owner 0: all */
/* The accumulator of a kind and call, -1 if there is none; made if need be, -1: no memory. */
int tl_acc_find(const tl_leaf_grad *g, int call, const char *kind);
int tl_acc_get(tl_leaf_grad *g, int call, const char *kind);
/* It is there afterwards, in dtype, blank unless it is open. */
tl_status tl_acc_open(tl_tape *t, tl_leaf_grad *g, int k, tl_dtype dtype);
/* Use k as a value of the tape; TL_NONE when nothing has come to it. */
tl_tensor tl_acc_value(tl_tape *t, const tl_leaf_grad *g, int k);
/* The uses added in order, rounded once. */
tl_tensor tl_leaf_grad_sum(tl_at at, const tl_leaf_grad *g, tl_dtype dtype);
/* What has that name in checkpoints; TL_NONE, with an error, if nothing has. A derived value is
 * made for it, if a shape is given. */
tl_tensor tl_grad_named(tl_tape *t, const char *name, tl_dtype dtype, const tl_shape *shape);
/* x lies in the accumulator of use *use of t->grad[*leaf]. */
bool tl_acc_holding(const tl_tape *t, tl_tensor x, uint32_t *leaf, uint32_t *use);

/* ---- kernel.c: selections of kernels ---- */

/* One open or remembered selection. Equal ones of a tape are one record, which lives as long
 * as the tape, so that nodes may point to it. */
struct tl_choice {
    const char *op;   /* NULL: all */
    const char *name; /* "invariant", "fast" or a kernel's */
    tl_dtype dtype;
    const tl_choice *outer;
    tl_choice *next; /* of the tape's records */
};

/* The one with the highest level of those in the table that match (kernels/table.c); NULL if there
 * is none. */
const tl_kernel *tl_kernel_find(const char *op, tl_dtype dtype, const char *name);

/* Opens a scope without probing: name must outlive the tape. False, with an error, if it cannot. */
bool tl_choice_open(tl_at at, const char *op, tl_dtype dtype, const char *name);

#include "autograd/walk.h"

#endif
