/* records.h: the records behind tapes and models: values, nodes, gradients, the tape, the model.
 *
 * Value records live in chunks that never move, so a pointer to one stays valid while more are
 * added and, in a model, while another thread reads. After a removal from the model it may be that
 * of another tensor: unless the value is the tape's own, ask tl_input. Nodes and gradient records
 * may move when one is added: hold their number, or copy them. */
#ifndef TL_AUTOGRAD_RECORDS_H
#define TL_AUTOGRAD_RECORDS_H

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
    tl_storage *st;  /* NULL in a trace, and once the memory has been released */
    tl_tensor self;  /* its handle; TL_NONE once the record has been removed */
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
    tl_tensor bottom;   /* the last value that tl_below leads to; TL_NONE: to none */
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
    uint32_t out; /* index of the first output value; the others follow it */
    /* Records: of the inputs (NULL: absent; see tl_input), and behind those of the outputs. */
    tl_value *const *value, *const *made;
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

/* ---- gradients ---- */

/* An accumulator: the sum of the gradients that one kind of use of a leaf brings in one backward of
 * each micro-batch (NUMERICS 10.3). */
typedef struct {
    char *kind; /* tl_use_kind; owned */
    int call;   /* which tl_backward since the reset, from 0; TL_BELOW and up: see batch/settle.c */
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
    bool apart;     /* its root depends on no sample */
    uint64_t uses;  /* of parameters, under TL_STRICT; 0: not known */
    int n_draws;    /* below its root, under TL_STRICT */
    tl_shape *draw; /* their results' */
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
    bool missed;        /* an error has kept a backward from this batch */
    bool only_read;     /* the tape's error is of a call that only reads */
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
    int busy; /* backwards and the like under way: no error of the model stops them half way */
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

#endif
