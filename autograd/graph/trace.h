/* trace.h: a trace, which is a program recorded on a tape without storage: the data beside that
 * tape (trace.c), backward in it (marks.c), and recording it again (rebuild.c). For autograd/graph/
 * and the room of replacements, which include it through internal.h. */
#ifndef TL_GRAPH_TRACE_H
#define TL_GRAPH_TRACE_H

#include "autograd/graph/graph.h"
#include "autograd/batch.h"

/* What a leaf of a trace stands for. */
typedef enum {
    TL_LEAF_NONE,     /* no leaf: a node made it, or it is the model's */
    TL_LEAF_INPUT,    /* in[at] of the program */
    TL_LEAF_BOUND,    /* host memory that every run reads: tracing->bound[at] */
    TL_LEAF_CONSTANT, /* tracing->constant[at] */
    TL_LEAF_ACC,      /* accumulator `use` of gradient record t->grad[at] */
} tl_leaf_kind;
typedef struct {
    tl_leaf_kind kind;
    uint32_t at, use;
} tl_leaf;

typedef struct {
    tl_array a;
    tl_storage *st;
} tl_constant_leaf;

typedef struct {
    tl_host_when when;
    tl_host_fn *f;
    void *ctx;
    int part; /* of the program */
} tl_host_hook;

typedef struct {
    tl_tensor x;
    double *to;
    const char *file;
    int line, part;
} tl_watch_entry;

/* The data of a trace beside its tape. They are handed on when the tape is recorded again. */
typedef struct tl_tracing {
    tl_tape *user;          /* the tape whose gradients the program may find; NULL: none */
    tl_arena *arena;        /* of that tape: for constants, the slab, copies */
    bool whole;             /* backward is recorded as one node; else op by op */
    bool clears_first;      /* the program drops gradients before its first backward */
    bool has_backward;      /* it calls tl_backward */
    bool put_off;           /* ... with .put_off: gradients wait when a run is over */
    bool strict;            /* ... under TL_STRICT */
    bool reads;             /* its first part reads gradients */
    bool has_earlier;       /* it has found gradients on the user's tape */
    int calls;              /* of tl_backward on that tape, before the program's first */
    uint64_t frozen;        /* the model's frozen parameters when the trace began */
    const tl_tensor *given; /* the inputs, while the program is traced */
    tl_array *bound;        /* host memory */
    tl_constant_leaf *constant;
    tl_host_hook *hook;
    tl_watch_entry *watch;
    tl_tensor *missed; /* parameters whose gradients it asked for when there were none */
    void **held;       /* objects that live as long as the trace */
    int n_bound, n_constant, n_hook, n_watch, n_missed, n_held;
    int cap_bound, cap_constant, cap_hook, cap_watch, cap_missed, cap_held;
} tl_tracing;

/* What the program did with a gradient. */
typedef struct {
    bool earlier; /* it found it on the user's tape */
    bool read;    /* it has read it */
    bool reached; /* a backward of its own has come to it */
    int summed;   /* how many accumulators its first read summed: later ones are not in it */
} tl_grad_note;

/* A program falls into parts: each time it consumes gradients the next part begins, with gradient
 * records of its own. */
typedef struct {
    tl_grad_note *note; /* by gradient record */
    uint32_t cap_notes;
    int *first; /* by part: its first gradient record */
    int n_parts, cap_parts;
} tl_part_grads;

/* The data of one tape of a trace; the context of its recorder (trace.c). */
typedef struct {
    tl_tracing *tracing; /* borrowed */
    tl_leaf *leaf;       /* by value */
    int *part_of;        /* by node */
    uint32_t cap_leaves, cap_nodes;
    tl_part_grads grads;
    int part;   /* of the nodes that are recorded now */
    int wanted; /* gradient records before this one have been searched for derived values */
    bool reads; /* gradients have been read in the first part */
    /* By value of the model: 1 + the last of the first n_seen nodes to change it in place. */
    int32_t *changed;
    uint32_t n_changed, n_seen;
} tl_traced_tape;

static inline tl_traced_tape *tl_traced_of(const tl_tape *t) { return t->recorder_ctx; }
static inline tl_tracing *tl_tracing_of(const tl_tape *t) { return tl_traced_of(t)->tracing; }
/* The program has consumed gradients after a backward (tl_grad_clear, tl_step). */
static inline bool tl_clears(const tl_tape *t) { return tl_traced_of(t)->part > 0; }
/* What leaf x, of any owner, stands for. */
tl_leaf tl_leaf_of(const tl_tape *t, tl_tensor x);
int tl_node_part(const tl_tape *t, uint32_t node);
int tl_grad_part(const tl_tape *t, int record);
/* Node n changes the memory of its input k in place. */
static inline bool tl_node_writes(const tl_node *n, int k)
{
    if (!tl_node_mutates(n) || tl_is_none(n->in[k]))
        return false;
    return k == n->op->mutates || (k < 32 && n->op->changes & TL_BIT(k));
}
/* A hash of the observers of the user's tape that may replace what vjps return. */
uint64_t tl_trace_givers(const tl_tape *user);
/* Nodes that are recorded from now on belong to that part. */
void tl_trace_part(tl_tape *t, int part);
/* Moves the gradient records of src to dst. Their leaves are still handles of src. */
void tl_trace_take_gradients(tl_tape *dst, tl_tape *src);

tl_tracing *tl_tracing_new(tl_arena *arena);
void tl_tracing_free(tl_tracing *s);
/* A tape without storage that records for `user`. It borrows s. */
tl_tape *tl_trace_tape(tl_tape *user, tl_tracing *s);
/* Makes t, a fresh tape, record for s; false if there is no memory. */
bool tl_trace_on(tl_tape *t, tl_tracing *s);
tl_tensor tl_trace_leaf(tl_tape *t, const tl_array *a, tl_leaf leaf);

/* ---- marks.c ---- */

/* While tracing->whole, tl_backward, tl_grad and tl_grad_clear are recorded as these nodes. They
 * never run. */
extern const tl_op tl_op_mark_backward, tl_op_mark_grad, tl_op_mark_clear;
static inline bool tl_is_mark(const tl_node *n)
{
    return n->op == &tl_op_mark_backward || n->op == &tl_op_mark_grad || n->op == &tl_op_mark_clear;
}
/* The recorder of a trace calls these for the three functions. */
bool tl_trace_backward(void *ctx, tl_at at, tl_tensor y, const tl_backward_options *o,
                       tl_status *s);
bool tl_trace_grad(void *ctx, tl_at at, tl_tensor x, tl_tensor *dx);
void tl_trace_clear(void *ctx, tl_tape *t);
/* Records the mark that reads the gradient of x. */
tl_tensor tl_mark_gradient(tl_at at, tl_tensor x);
/* The leaf whose gradient that mark reads, as a handle of the tape it was recorded on. */
tl_tensor tl_mark_leaf(const tl_node *n);
/* Makes on dst the call that the mark stands for. in, leaf: handles of dst. */
void tl_mark_expand(tl_tape *dst, const tl_node *n, const tl_tensor *in, tl_tensor leaf,
                    tl_tensor *out);

/* ---- rebuild.c ---- */

/* The handle on dst of x, a handle of src. Leaves are made when they are first met. */
tl_tensor tl_rebuild_map(tl_tape *dst, const tl_tape *src, tl_tensor *map, tl_tensor x);
/* Stand-ins for values of a trace. It is recorded as if the program had computed them instead. */
typedef struct {
    uint32_t n_nodes, n_values; /* those behind them are copied only where something needs them */
    const bool *gone;           /* by node: not copied */
    const tl_tensor *stand_in;  /* by value: another one of the same trace, or TL_NONE */
    uint32_t *from;             /* filled in, by node of the copy: the node it is a copy of */
    bool *cyclic; /* filled in, by node: as a stand-in its outputs lead back to its inputs */
} tl_splice;
/* Records the trace again in canonical order, with stand-ins (NULL: none), and backward op by op
 * unless `whole`. map, by value of g->t, receives the handles. NULL, with *err, if there is no
 * memory or no order. */
tl_tape *tl_graph_again(tl_graph *g, bool whole, const tl_splice *s, tl_tensor **map, tl_err *err);
/* Puts that copy in the place of g's tape, which is freed; or frees the copy. */
void tl_graph_take(tl_graph *g, tl_tape *copy, tl_tensor *map);
void tl_graph_leave(tl_tape *copy);
/* Records g's trace again and takes it. */
tl_status tl_graph_rebuild(tl_graph *g, bool whole);

#endif
