/* internal.h: the inside of a graph, shared by autograd/graph/ only.
 *
 * A graph is made in this order, each step in a file of its own:
 *
 *   trace.c     the program runs on a tape without storage; backward is one node there (marks.c)
 *   replace.c   subgraphs give way to registered replacements
 *   rebuild.c   the tape is recorded again with backward op by op
 *   record.c    under a log: which value is which result of the called program
 *   live.c      where each value lies, and, after simplify.c, which nodes are needed
 *   simplify.c  equal values and constants
 *   spoilt.c    no value is read whose memory has been changed since
 *   fuse.c      pointwise nodes that are computed inside their users' loops (fused.c)
 *   plan.c      calls and arrays made ready, what is computed twice (again.c), the slab
 *   run.c       inputs bound (bind.c), steps run, written into the log; or put off (later.c)
 *
 * After rebuild.c nodes stay as they are; the later steps only write beside them. */
#ifndef TL_GRAPH_INTERNAL_H
#define TL_GRAPH_INTERNAL_H

#include "autograd/graph/graph.h"
#include "autograd/batch.h"

/* What a leaf of a trace stands for. */
typedef enum {
    TL_LEAF_NONE,     /* made by a node, or the model's */
    TL_LEAF_INPUT,    /* in[at] of the program */
    TL_LEAF_BOUND,    /* host memory read at every run: tracing->bound[at] */
    TL_LEAF_CONSTANT, /* tracing->constant[at] */
    TL_LEAF_ACC,      /* accumulator: use `use` of t->grad[at] */
} tl_leaf_kind;
typedef struct {
    tl_leaf_kind kind;
    uint32_t at, use; /* at counts within the kind */
} tl_leaf;

typedef struct {
    const void *data;
    tl_array a;
} tl_bound_leaf;

typedef struct {
    tl_array a;
    tl_storage *st;
} tl_constant_leaf;

typedef struct {
    tl_host_when when;
    tl_host_fn *f;
    void *ctx;
    int part;
} tl_host_hook;

typedef struct {
    tl_tensor x;
    double *to;
    const char *file;
    int line, part;
} tl_watch_entry;

/* What belongs to a trace beside nodes and values; handed on from tape to tape. */
typedef struct tl_tracing {
    tl_tape *user;     /* whose gradients the program may find; NULL: nobody's */
    bool whole;        /* backward stays one node; else it is recorded op by op */
    bool clears_first; /* the program drops gradients before its first backward, */
    bool clears;       /* or consumes them after one (tl_grad_clear, tl_step) */
    bool has_backward;
    bool put_off;           /* its gradients wait when a run is over */
    bool strict;            /* a tl_backward under TL_STRICT */
    bool reads;             /* the first part reads gradients */
    bool has_earlier;       /* gradients that it found on the user's tape */
    int calls;              /* of tl_backward there, before the program's first */
    const tl_tensor *given; /* inputs, while the program is traced */
    tl_bound_leaf *bound;
    tl_constant_leaf *constant;
    tl_host_hook *hook;
    tl_watch_entry *watch;
    void **held; /* objects */
    int n_bound, n_constant, n_hook, n_watch, n_held;
    tl_arena *arena; /* the user's: constants, the slab, copies */
} tl_tracing;

/* What a trace knows of a gradient record. */
typedef struct {
    bool earlier; /* it found the gradient on the user's tape, */
    bool none;    /* or asked for it when nothing had come to it */
    bool read;    /* it has read it */
    bool reached; /* by a backward of its own */
} tl_grad_note;

/* What belongs to one tape of a trace, beside its values, nodes and gradient records; the context
 * of its recorder (trace.c). The program falls in parts: each time it consumes gradients the next
 * begins, with gradient records of its own. */
typedef struct {
    tl_tracing *tracing; /* borrowed: handed on from tape to tape */
    tl_leaf *leaf;       /* by value */
    int *part_of;        /* by node */
    tl_grad_note *note;  /* by gradient record */
    int *first_grad;     /* by part: its first gradient record */
    uint32_t cap_leaves, cap_nodes, cap_notes;
    int n_parts, part;
    int32_t *changed; /* by value of the model: the last node of those before n_seen to change it */
    uint32_t n_changed, n_seen;
} tl_traced_tape;

static inline tl_traced_tape *tl_traced_of(const tl_tape *t) { return t->recorder_ctx; }
static inline tl_tracing *tl_tracing_of(const tl_tape *t) { return tl_traced_of(t)->tracing; }
/* What x, of whatever owner, stands for. */
tl_leaf tl_leaf_of(const tl_tape *t, tl_tensor x);
/* The node of t that made x; NULL: none. Its number; -1. */
static inline int32_t tl_maker_at(const tl_tape *t, tl_tensor x)
{
    return x.owner == t->values.owner ? tl_values_at(&t->values, x.index)->node : -1;
}
static inline const tl_node *tl_maker(const tl_tape *t, tl_tensor x)
{
    int32_t at = tl_maker_at(t, x);
    return at < 0 ? NULL : &t->node[at];
}
/* Bytes of all its elements, close together. */
static inline size_t tl_array_room(const tl_array *a)
{
    return (size_t)tl_array_count(a) * tl_dtype_size(a->dtype);
}
int tl_node_part(const tl_tape *t, uint32_t node);
int tl_grad_part(const tl_tape *t, int record);
/* What is noted of a record, to be changed; NULL, with an error, without memory. */
tl_grad_note *tl_grad_note_at(tl_tape *t, int record);
/* What is recorded from now on belongs to that part. */
void tl_trace_part(tl_tape *t, int part);
/* dst takes the gradient records over from src, but for their leaves. */
void tl_trace_take_gradients(tl_tape *dst, tl_tape *src);

/* One memory that values lie in: a place in the slab, or something outside. */
typedef enum {
    TL_ROOT_SLAB,
    TL_ROOT_INPUT,
    TL_ROOT_MODEL,
    TL_ROOT_BOUND,
    TL_ROOT_CONSTANT,
    TL_ROOT_ACC,
    TL_ROOT_OUTPUT,
    TL_ROOT_DERIVED /* a derived value that the user's tape keeps (its lasting value number at) */
} tl_root_kind;

/* An array that a step reads or writes, or a result of the graph. Its data lies at the base of a
 * root + offset. */
typedef struct tl_spot {
    tl_array *a;
    uint32_t root;
    int64_t offset; /* in bytes */
    bool written;
    struct tl_plan_step *step; /* NULL: a result */
    struct tl_spot *next;      /* of the same root */
} tl_spot;

typedef struct tl_root {
    tl_root_kind kind;
    uint32_t at, use; /* number of the input, model value, ...; of a record and its accumulator */
    size_t bytes;
    bool result;    /* an output or a watched value lies here */
    tl_spot *spots; /* all that lies here; while steps are planned, those of later steps first */
    bool used;      /* by a step */
    bool written;   /* by a step */
    /* The first and last step that uses it. */
    uint32_t first, last;
    /* Steps after this one find the value in another root, where it has been computed again. */
    const struct tl_plan_step *remade_by;
    uint32_t remade;
    /* The place in the slab: that of root `place` (itself, if it has its own), taken until step
     * `held`, at `offset`. */
    uint32_t place, held;
    size_t offset;
    bool taken;           /* a result has been put in its place */
    char *base;           /* where it lies in this run; NULL: not bound yet */
    tl_storage *st;       /* of an output, a copied input, or a gradient that ends with the run */
    bool full;            /* a derived value whose contents an earlier run or call has made */
    bool later;           /* steps that are put off use it */
    uint32_t since;       /* the version of its storage when those steps were put off */
    struct tl_root *next; /* of the roots outside the slab */
} tl_root;

typedef struct tl_fused tl_fused; /* fused.h */

/* One call of a run. */
typedef struct tl_plan_step {
    uint32_t node;   /* for a fused loop, its last node */
    uint32_t at;     /* its number: g->step[at] */
    tl_fused *fused; /* NULL: one op */
    tl_call call;
    const tl_array **in; /* call.in */
    tl_spot *spot;       /* of the operands that are present, then of the results */
    int n_in, n_out;     /* so many */
    bool again;          /* it computes something a second time, for backward */
} tl_plan_step;

/* TL_ENOMEM without a graph; TL_ESTALE, reported on it, if its tape has been freed. */
tl_status tl_graph_there(tl_graph *g, const char *func);

/* Is a value with several users kept in memory, or computed again by each (fuse.c)? Rules in this
 * order, as Inductor and vLLM have them on a CPU: at most one user, or no pointwise op or
 * reduction: no. A body with exp, sigmoid, ...: kept. A large body: kept. A fan-out over inputs
 * alone: not kept. Then bytes: with T read and O written, each of u users computing it reads T*u;
 * keeping it costs T + O*(1+u). Kept if T*(u-1) >= O*(1+u): a tie is kept. With sizes unknown, kept
 * if it reads more than a few values. */
typedef struct {
    bool counts;      /* a pointwise op or a reduction */
    bool heavy;       /* exp, log, ... somewhere in its body */
    bool inputs_only; /* reads nothing that the graph computes */
    bool sizes_known;
    int users, body, reads; /* ops in the body; values read, scalars not counted */
    int64_t read, written;  /* T and O, bytes */
} tl_cost_question;

typedef struct {
    bool keep;
    const char *rule;      /* that decided */
    int64_t inlined, kept; /* bytes that either would move */
} tl_cost_answer;

tl_cost_answer tl_cost_decide(tl_cost_question q, tl_cost_limits limits);

/* What was asked about a value, and answered (print.c prints it). */
typedef struct {
    bool asked;
    tl_cost_question question;
    tl_cost_answer answer;
} tl_decision;

/* What planning knows of a value of the trace. */
typedef struct {
    tl_tensor same; /* the value that stands for it, equal bit for bit; itself if none does */
    uint32_t root;
    bool offset_known;
    int64_t offset; /* bytes from the beginning of the root */
} tl_value_plan;

/* A node changes the memory of one of its inputs in place. */
typedef struct {
    uint32_t node;
    int input;
} tl_node_change;

struct tl_graph {
    tl_object head;
    tl_tape *user; /* borrowed */
    int later;     /* calls of tl_backward there before this run, beyond those before the trace */
    tl_tape *t;    /* the trace */
    tl_tracing *tracing;
    tl_prints prints; /* of the program's backward walks */
    tl_program *program;
    void *ctx;
    tl_graph_options opt;
    int n_in, n_out;
    const char *file; /* of tl_trace */
    int line;
    int *twin;              /* of an input: the first one that is the same tensor */
    tl_tensor *in, *out;    /* handles of the trace */
    tl_array *signature;    /* of the inputs */
    tl_array *result_array; /* outputs and watches, where they lie after a run */
    tl_spot *result_spot;
    const tl_choice
        *traced_choice;   /* of the user's tape: another selection of kernels is another graph, */
    unsigned traced_mode; /* as are other modes */
    uint32_t traced_settings; /* and other frozen parameters or groups of an optimizer, */
    uint64_t traced_seed;     /* and another seed */
    bool needs_grad;          /* an output does */

    tl_value_plan *value; /* by value of the trace, with room for cap_values */
    uint32_t cap_values;
    tl_root *roots;
    uint32_t n_roots, cap_roots;
    tl_root *outside;       /* the first of the roots that are not in the slab: a run binds them */
    uint32_t **acc_root;    /* by gradient record and accumulator: 1 + its root; 0: none yet */
    uint32_t *model_root;   /* the same by value of the model */
    tl_node_change *change; /* all changes in place, by root, those of one root in order ... */
    uint32_t *first_change; /* ... from this one on to the first of the next root */
    uint32_t *order, n_order; /* the needed nodes, in the order they run */
    tl_decision *decision;    /* by node: inlined or not */
    tl_decision *rest;        /* by node: kept from forward to backward, or computed again */

    tl_plan_step **step;
    uint32_t n_steps, n_now; /* those behind n_now wait for tl_accumulate: */
    struct tl_later *fold;   /* to n_folds accumulators, of which n_waiting may be asked for */
    uint32_t n_folds, n_waiting;
    tl_graph *next; /* of the user's tape */
    tl_bump bump;   /* of everything above */
    tl_storage *slab;
    tl_err run_err;                     /* of the step that runs */
    struct tl_remark *made, *missed[2]; /* replacements; those not made, and why: forward, joint */
    int *pass;                          /* of the log in which it runs, by pass of its own */
    tl_graph_stats stats;
};

/* What is read when the steps have run: outputs, then what is watched. */
static inline int tl_graph_results(const tl_graph *g) { return g->n_out + g->tracing->n_watch; }
static inline tl_tensor *tl_graph_result(const tl_graph *g, int i)
{
    return i < g->n_out ? &g->out[i] : &g->tracing->watch[i - g->n_out].x;
}
/* Node n called on these arrays. */
tl_call tl_graph_call(tl_graph *g, const tl_node *n, const tl_array *const *in, tl_array *out,
                      tl_err *err);

/* The user's tape is in the scopes g was traced in, its mode being `mode`; the same parameters are
 * trained. */
bool tl_graph_scope_fits(const tl_graph *g, unsigned mode);
/* x can be input i, as far as the batch goes. */
bool tl_graph_input_alike(const tl_graph *g, int i, tl_tensor x);
/* The first input that is the same tensor as input i. */
int tl_graph_twin(const tl_tensor *in, int i);
tl_tracing *tl_tracing_new(tl_arena *arena);
void tl_tracing_free(tl_tracing *s);
/* A tape that records for `user`: no storage. The tracing is borrowed. */
tl_tape *tl_trace_tape(tl_tape *user, tl_tracing *s);
/* t, a fresh tape, records for s; false when out of memory. */
bool tl_trace_on(tl_tape *t, tl_tracing *s);
/* A leaf of a trace. */
tl_tensor tl_trace_leaf(tl_tape *t, const tl_array *a, tl_leaf leaf);

/* The nodes a program's backward, gradients and their clearing are recorded as while
 * tracing->whole; never run. */
extern const tl_op tl_op_mark_backward, tl_op_mark_grad, tl_op_mark_clear;
/* What the recorder of a trace makes of tl_backward, tl_grad and tl_grad_clear (marks.c). */
bool tl_trace_backward(void *ctx, tl_at at, tl_tensor y, const tl_backward_options *o,
                       tl_status *s);
bool tl_trace_grad(void *ctx, tl_at at, tl_tensor x, tl_tensor *dx);
void tl_trace_clear(void *ctx, tl_tape *t);
/* The mark for reading the gradient of x. */
tl_tensor tl_mark_gradient(tl_at at, tl_tensor x);
/* The leaf whose gradient a mark reads, as a handle of the tape it was recorded on. */
tl_tensor tl_mark_leaf(const tl_node *n);
/* Does on dst what a mark stands for. */
tl_status tl_mark_expand(tl_tape *dst, const tl_node *n, const tl_tensor *in, tl_tensor leaf,
                         tl_tensor *out);

/* A handle of src on dst; leaves are made when first met. */
tl_tensor tl_rebuild_map(tl_tape *dst, const tl_tape *src, tl_tensor *map, tl_tensor x);
/* Values of a trace that others stand for, as if the program had computed those instead. */
typedef struct {
    uint32_t n_nodes, n_values; /* what is behind them is copied only where something needs it */
    const bool *gone;           /* by node: not copied */
    const tl_tensor *stand_in;  /* by value: another of the same trace, or TL_NONE */
    uint32_t *from;             /* filled in: by node of the copy, the node it is a copy of; */
    bool *cyclic;               /* by node: it stands where its outputs lead back to its inputs */
} tl_splice;
/* g's trace recorded again in canonical order, backward op by op unless whole, with stand-ins
 * (NULL: none); map (by value of g->t) receives the handles. NULL with *err: out of memory, or
 * there is no order. */
tl_tape *tl_graph_again(tl_graph *g, bool whole, const tl_splice *s, tl_tensor **map, tl_err *err);
/* Such a copy in the place of g's tape, which is freed; or, in nobody's place, freed itself. */
void tl_graph_take(tl_graph *g, tl_tape *copy, tl_tensor *map);
void tl_graph_leave(tl_tape *copy);
/* Both: the trace again, in canonical order. */
tl_status tl_graph_rebuild(tl_graph *g, bool whole);

/* n zeroed elements in g's bump memory; NULL, with g's error, if there is no memory. */
void *tl_graph_room(tl_graph *g, size_t n, size_t size);
/* Value i of the trace. */
tl_tensor tl_graph_handle(const tl_graph *g, uint32_t i);
/* The value that stands for x, which is of the trace or the model. */
tl_tensor tl_graph_resolve(const tl_graph *g, tl_tensor x);
/* The memory x lies in (an index of roots[]); x is of the trace or the model. */
uint32_t tl_graph_root(tl_graph *g, tl_tensor x);

/* record.c: which values are which results of a log; nothing without one. Begun before the program
 * is traced, ... */
tl_status tl_graph_keys_begin(tl_graph *g);
void tl_graph_keys_forward(tl_graph *g);  /* ... when it has been, ... */
tl_status tl_graph_keys_end(tl_graph *g); /* ... and when nothing is recorded any more. */
/* Its tape's log was opened after g was traced: a run of it cannot be logged. */
bool tl_graph_keys_missing(const tl_graph *g);
/* A run into its tape's log: before its steps, after each, and after the last. */
void tl_graph_log_begin(tl_graph *g, const tl_tensor *in);
void tl_graph_log_step(tl_graph *g, const tl_plan_step *p);
void tl_graph_log_end(tl_graph *g);

/* bind.c: what a run takes from outside and leaves there.
 * A parameter of which more or less waits on the user's tape than the program found there when it
 * asked for the gradient; TL_NONE: there is none. */
tl_tensor tl_bind_misfit(tl_graph *g);
/* The gradients that wait on the user's tape are those the graph goes on with. */
tl_status tl_bind_check_gradients(tl_graph *g, tl_at at);
/* r lies at base in this run: its arrays get their data. */
void tl_root_bind(tl_root *r, void *base);
/* Every root outside the slab gets its memory. */
tl_status tl_bind_all(tl_graph *g, const tl_tensor *in);
/* The steps have run: gradients are left on the user's tape, or consumed. */
tl_status tl_bind_gradients_over(tl_graph *g);
/* The storage of an accumulator. */
tl_storage *tl_bind_accumulated(tl_graph *g, const tl_root *r);
/* Its number in the record of the user's tape. */
int tl_bind_their_acc(const tl_graph *g, const tl_root *r);
/* It is one of the user's tape, and not only of the run. */
bool tl_bind_theirs(const tl_graph *g, const tl_root *r);
/* It gets its memory. */
tl_status tl_bind_accumulator(tl_graph *g, tl_root *r);

/* run.c: the storage behind a root, other than an input where the caller has it. */
tl_storage *tl_graph_storage(tl_graph *g, const tl_root *r);
/* New memory of the user's tape with a copy of a, row-major; NULL, without an error, if there is
 * none. */
tl_storage *tl_graph_copy(tl_graph *g, const tl_array *a, tl_array *copy);
/* c: what the step calls, or a part of that. */
tl_status tl_graph_run_call(tl_graph *g, const tl_plan_step *p, tl_call *c);

/* later.c: what backward puts off comes behind all other steps. */
tl_status tl_later_order(tl_graph *g);
/* The roots that those steps touch. */
void tl_later_mark(tl_graph *g);
/* So many of the others have run: what is complete by then waits on the user's tape. */
tl_status tl_later_wait(tl_graph *g, uint32_t n);
/* A run is over: all do, for what is there now. */
tl_status tl_later_over(tl_graph *g);
/* The graph ends. */
void tl_later_forget(tl_graph *g);

/* replace.c; joint: after backward has been recorded op by op. */
tl_status tl_graph_replace(tl_graph *g, bool joint);

/* roots.c: value[] and roots[]. */
tl_status tl_graph_find_roots(tl_graph *g);
/* A leaf that was recorded later has a root, too; false without room. */
bool tl_graph_adopt(tl_graph *g, tl_tensor leaf);
/* Values 0 .. n-1 that lie in the memory of others lie in that of what stands for those now. */
void tl_graph_move_roots(tl_graph *g, uint32_t n);
/* Bytes from the beginning of x's root to its first element; 0, with g's error, if there is one. */
int64_t tl_graph_offset(tl_graph *g, tl_tensor x);
/* Node n changes the memory of its input k in place. */
bool tl_node_writes(const tl_node *n, int k);
tl_status tl_graph_order(tl_graph *g); /* order[] */

/* changes.c: change[], of the nodes in order[], or of all before that is known. */
tl_status tl_graph_find_changes(tl_graph *g);
/* Some node changes that root; one of the nodes first .. end-1 does. */
bool tl_root_changes(const tl_graph *g, uint32_t root);
bool tl_root_changes_between(const tl_graph *g, uint32_t root, uint32_t first, uint32_t end);
/* No node reads what has been changed in place since it was made. */
tl_status tl_graph_check_changes(tl_graph *g);

tl_status tl_graph_simplify(tl_graph *g); /* simplify.c: value[].same */
tl_status tl_graph_fuse(tl_graph *g);     /* fuse.c: decision[] */
static inline bool tl_inlined(const tl_graph *g, uint32_t node)
{
    return g->decision[node].asked && !g->decision[node].answer.keep;
}

/* plan.c: step[] and the slab. */
tl_status tl_graph_plan(tl_graph *g);
/* recompute.c: values that are not kept for backward, because it is cheaper to compute them again.
 */
tl_status tl_plan_recompute(tl_graph *g);
/* The step of a node. NULL, with g's error, if it cannot be made. */
tl_plan_step *tl_plan_step_of(tl_graph *g, uint32_t node);
/* A step that calls op, with that node's attributes, on n_in inputs: none of its arrays is there
 * yet. NULL, with g's error, if there is no memory. */
tl_plan_step *tl_step_new(tl_graph *g, uint32_t node, const tl_op *op, int n_in);
/* Its next input that is present, number k, or its next result has a copy of the array *p.a, which
 * lies at p. */
void tl_step_add_in(tl_plan_step *s, int k, tl_spot p);
void tl_step_add_out(tl_plan_step *s, tl_spot p);
/* The spots of s from that one on are listed with their roots. */
void tl_step_link(tl_graph *g, tl_plan_step *s, int first);
/* s continues an accumulator that is all of st, reads it nowhere else, and may begin there
 * (tl_may_begin). */
bool tl_step_may_begin(const tl_graph *g, const tl_plan_step *s, const tl_storage *st);
/* s reads or writes that root; or only: writes it. */
bool tl_step_touches(const tl_plan_step *s, uint32_t root, bool only_writes);
/* A step behind number `from` and before number `to` writes that root. */
bool tl_root_written_between(const tl_graph *g, uint32_t root, int64_t from, int64_t to);
/* Two neighbours may change places: neither writes what the other uses. */
bool tl_steps_may_swap(const tl_plan_step *a, const tl_plan_step *b);
/* Does nothing when run: a view or a mark. */
static inline bool tl_node_idle(const tl_node *n)
{
    return n->op->forward == NULL && !(n->op->traits & (TL_POINTWISE | TL_BY_ROWS));
}
static inline bool tl_is_mark(const tl_node *n)
{
    return n->op == &tl_op_mark_backward || n->op == &tl_op_mark_grad || n->op == &tl_op_mark_clear;
}

#endif
