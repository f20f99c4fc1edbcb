/* internal.h: the inside of a graph, for autograd/graph/ and the room of replacements.
 *
 * A graph is made in this order, each step in a file of its own:
 *
 *   trace.c      the program runs on a tape without storage; backward is one node there (marks.c)
 *   replace.c    subgraphs give way to registered replacements (autograd/replace/)
 *   rebuild.c    the tape is recorded again with backward op by op; then replace.c once more
 *   record.c     under a log: which value is which result of the called program
 *   roots.c      the memory that each value lies in and, after simplify.c, the needed nodes
 *   changes.c    which nodes change memory in place; a check that no node reads a changed value
 *   simplify.c   equal values and constants
 *   fuse.c       pointwise nodes that are computed inside their users' loops (fused.c)
 *   plan.c       the steps (steps.c), what is computed a second time (recompute.c), and the slab
 *   run.c        inputs are bound (bind.c), steps run and are logged (record.c); gradients may be
 *                put off (later.c)
 *   compiled.c   a program that is traced again for inputs of other shapes
 *
 * From record.c on nodes stay as they are; the passes only write beside them. */
#ifndef TL_GRAPH_INTERNAL_H
#define TL_GRAPH_INTERNAL_H

#include "autograd/graph/trace.h"
#include "autograd/pointwise.h"

/* ---- memories and steps ---- */

/* The planning data of a value of the trace. */
typedef struct {
    tl_tensor same; /* the value that stands for it, equal bit for bit; itself if none does */
    uint32_t root;
    int32_t born; /* the node whose result it shows, itself or through views; -1: a leaf */
    bool needed;  /* by a node that runs, or as a result */
    bool offset_known;
    int64_t offset;  /* bytes from the beginning of the root */
    uint32_t number; /* when printed */
} tl_value_plan;

/* A node changes the memory of one of its inputs in place. */
typedef struct {
    uint32_t node;
    int input;
} tl_node_change;

/* The kind of a memory that values lie in: a place in the slab, or something outside. The first
 * kinds are those of leaves. */
typedef enum {
    TL_ROOT_SLAB = TL_LEAF_NONE,
    TL_ROOT_INPUT = TL_LEAF_INPUT,
    TL_ROOT_BOUND = TL_LEAF_BOUND,
    TL_ROOT_CONSTANT = TL_LEAF_CONSTANT,
    TL_ROOT_ACC = TL_LEAF_ACC,
    TL_ROOT_MODEL,  /* value `at` of the model */
    TL_ROOT_OUTPUT, /* storage of its own, to be handed out */
    TL_ROOT_DERIVED /* a derived value, kept by the user's tape: value `at` of its lasting tape */
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
    uint32_t at, use; /* as in tl_leaf */
    int acc;          /* of an accumulator, in this run: its number on the user's tape */
    size_t bytes;
    bool result;          /* an output or a watched value lies here */
    bool needed;          /* something that lies here is needed */
    tl_spot *spots;       /* all that lies here; later steps first, until results are placed */
    bool used, written;   /* by a step */
    uint32_t first, last; /* the first and the last step that uses it */
    /* Steps after this one find the value in root `remade`, where it is computed again. */
    const struct tl_plan_step *remade_by;
    uint32_t remade;
    uint32_t place;       /* in the slab, the root whose place it has: itself, if it has its own */
    uint32_t held;        /* the step until which that place is taken */
    size_t offset;        /* of that place */
    bool taken;           /* a result has been put in its place */
    char *base;           /* where it lies in this run; NULL: not bound yet */
    tl_storage *st;       /* of an output, a copied input, or a gradient that ends with the run */
    bool full;            /* a derived value whose contents an earlier run or call has made */
    bool later;           /* steps that are put off use it */
    uint32_t since;       /* the version of its storage when those steps were put off */
    struct tl_root *next; /* of the roots outside the slab */
} tl_root;

typedef struct tl_fused tl_fused;

/* One call of a run. */
typedef struct tl_plan_step {
    uint32_t node;   /* for a fused loop, its last node */
    uint32_t at;     /* its number: g->step[at], until later.c orders them */
    tl_fused *fused; /* NULL: one op */
    tl_call call;
    const tl_array **in; /* call.in, for writing */
    tl_spot *spot;       /* of the operands that are present, then of the results */
    int n_in, n_out;     /* how many of each */
    bool again; /* it computes something a second time, for backward: all of it, or one result more
                 * than its node has */
} tl_plan_step;

/* ---- whether a value is kept ---- */

/* Is a value with several users kept in memory, or computed by each of them? The rules, in this
 * order, are those of Inductor and vLLM on a CPU:
 *   - at most one user, or neither a pointwise op nor a reduction: not kept;
 *   - exp, sigmoid, ... in the body: kept;
 *   - a large body: kept;
 *   - a fan-out over inputs alone: not kept;
 *   - bytes: with T read and O written, computing it by each of u users reads T*u, keeping it costs
 *     T + O*(1+u). Kept if T*(u-1) >= O*(1+u), so a tie is kept;
 *   - where sizes are unknown: kept if it reads more than a few values. */
typedef struct {
    bool counts;      /* a pointwise op or a reduction */
    bool heavy;       /* exp, log, ... somewhere in its body */
    bool inputs_only; /* reads nothing that the graph computes */
    bool sizes_known;
    int users;
    int body;              /* ops */
    int reads;             /* values read, scalars not counted */
    int64_t read, written; /* T and O, in bytes */
} tl_cost_question;

typedef struct {
    bool keep;
    const char *rule;      /* the one that decided */
    int64_t inlined, kept; /* bytes that either would move */
} tl_cost_answer;

tl_cost_answer tl_cost_decide(tl_cost_question q, tl_cost_limits limits);

/* A question about a value, and its answer, for tl_graph_explain. Without a rule none was asked. */
typedef struct {
    tl_cost_question question;
    tl_cost_answer answer;
} tl_decision;

/* ---- a graph ---- */

struct tl_graph {
    tl_object head;
    tl_graph *next; /* of the user's tape */
    tl_tape *user;  /* borrowed; NULL: it has been freed */
    tl_tape *t;     /* the trace */
    tl_tracing *tracing;
    tl_prints prints; /* of the program's backward walks */
    tl_graph_options opt;
    const char *file; /* of the call of tl_trace */
    int line;
    int n_in, n_out;
    tl_tensor *in, *out; /* handles of the trace */
    tl_value *given; /* by input: how it depends on samples, before the program tells its axis */
    bool needs_grad; /* an output needs one */
    /* The settings of the user's tape and model at the trace. Other settings take another graph. */
    const tl_choice *traced_choice;
    unsigned traced_mode;
    uint32_t traced_settings, traced_values; /* of the model */
    uint64_t traced_seed, traced_givers;
    tl_tensor newest; /* the model's last tensor. While it exists, so do all that the trace knows */

    tl_bump bump;         /* memory of everything below */
    tl_value_plan *value; /* by value of the trace, with room for cap_values */
    uint32_t cap_values;
    tl_root *roots;
    uint32_t n_roots, cap_roots;
    tl_root *outside;       /* the first of the roots outside the slab, which a run binds */
    uint32_t **acc_root;    /* by gradient record and use: 1 + the root; 0: none yet */
    uint32_t *model_root;   /* the same by value of the model */
    tl_node_change *change; /* all changes in place, by root, those of one root in order */
    uint32_t *first_change; /* by root: its first in change[]; the next root's is its end */
    uint32_t *order;        /* the needed nodes, in the order they run */
    uint32_t n_order;
    tl_decision *decision; /* by node: inlined or not */
    tl_decision *rest;     /* by node: kept from forward to backward, or computed again */
    tl_plan_step **step;
    uint32_t n_steps, n_now; /* steps from n_now on are put off */
    struct tl_later *later;  /* accumulators that these add to (later.c) */
    uint32_t n_later;
    tl_array *result_array; /* outputs, then watches: where they lie after a run */
    tl_spot *result_spot;
    tl_storage *slab;
    struct tl_remark *made, *missed[2]; /* replacements; those not made: forward, joint */
    tl_graph_stats stats;

    int call_shift;     /* in a run: how much higher a backward's number is than in the trace */
    uint32_t n_waiting; /* in a run: how many of later[], from the first on, may be asked for */
    int *pass;          /* in a run, by pass of the trace's log: the pass of the user's log */
    int running;        /* how many calls of its steps are under way */
    tl_err run_err;     /* of the step that runs */
};

/* A compiled program. */
struct tl_compiled {
    tl_object head;
    tl_tape *tape; /* NULL: it has been freed */
    tl_program *f;
    void *ctx;
    tl_graph_options opt;
    int n_out;
    tl_graph **graph; /* the graphs traced so far */
    int n, cap;
    tl_compiled *next; /* of the same tape */
};

/* The graphs that were traced for a tape, and its compiled programs. */
typedef struct {
    tl_graph *graphs;
    tl_compiled *compiled;
} tl_tape_graphs;
/* NULL when out of memory. */
tl_tape_graphs *tl_graphs_of(tl_tape *t);

/* TL_ENOMEM without a graph; TL_ESTALE, reported on it, if its tape has been freed. */
tl_status tl_graph_there(tl_graph *g, const char *func);
/* n zeroed elements in g's bump memory; NULL, with g's error, if there is no memory. */
void *tl_graph_room(tl_graph *g, size_t n, size_t size);
/* The shape and layout of x, of the trace or the model. */
static inline const tl_array *tl_graph_array(const tl_graph *g, tl_tensor x)
{
    return &tl_peek(g->t, x)->a;
}
/* The values that are read when the steps have run: outputs, then watched values. */
static inline int tl_graph_results(const tl_graph *g) { return g->n_out + g->tracing->n_watch; }
static inline tl_tensor *tl_graph_result(const tl_graph *g, int i)
{
    return i < g->n_out ? &g->out[i] : &g->tracing->watch[i - g->n_out].x;
}
/* The settings that differ from those of the trace, as text in buf; "" if none does. The tape's
 * mode may also be `mode`. */
enum { TL_MISFITS_TEXT = 320 };
const char *tl_graph_misfits(char buf[TL_MISFITS_TEXT], const tl_graph *g, unsigned mode);
/* Settings have changed for good since g was traced: it can never run again. */
bool tl_graph_is_over(const tl_graph *g);
/* TL_OK if in[i], a tensor, is like the input that the program was traced with; else an error,
 * reported on the tape of *at unless at is NULL. */
tl_status tl_graph_input_fits(const tl_graph *g, const tl_tensor *in, int i, const tl_at *at);

/* Puts replacements into g (replace.c). joint: after backward has been recorded op by op. */
tl_status tl_graph_replaces(tl_graph *g, bool joint);

/* ---- roots.c ---- */

tl_status tl_graph_find_roots(tl_graph *g); /* value[] and roots[] */
/* The value that stands for x. x belongs to the trace or the model. */
tl_tensor tl_graph_resolve(const tl_graph *g, tl_tensor x);
/* The value whose memory x shows whole and in order, found through stand-ins, detached leaves and
 * plain views. */
tl_tensor tl_graph_whole(const tl_graph *g, tl_tensor x);
/* The root of the value that stands for x: an index of roots[]. */
uint32_t tl_graph_root(tl_graph *g, tl_tensor x);
/* Gives a root to a constant that was recorded later, for one of the values. */
void tl_graph_adopt(tl_graph *g, tl_tensor leaf);
/* Adds r to roots[], which has room for all that there can be (tl_graph_find_roots). */
uint32_t tl_root_new(tl_graph *g, tl_root r);
/* Bytes from the beginning of x's root to its first element; 0, with g's error, if that cannot be
 * found. */
int64_t tl_graph_offset(tl_graph *g, tl_tensor x);
/* A call of node n on these arrays. */
tl_call tl_graph_call(tl_graph *g, const tl_node *n, const tl_array *const *in, tl_array *out,
                      tl_err *err);
tl_status tl_graph_order(tl_graph *g); /* order[] */

/* ---- changes.c ---- */

/* Fills change[] for the nodes in order[], or for all nodes while order[] is not known. */
tl_status tl_graph_find_changes(tl_graph *g);
/* Some node changes that root; one of the nodes first .. end-1 does. */
bool tl_root_changes(const tl_graph *g, uint32_t root);
bool tl_root_changes_between(const tl_graph *g, uint32_t root, uint32_t first, uint32_t end);
/* TL_EINPLACE if a node reads a value that was changed in place after it was made. */
tl_status tl_graph_check_changes(tl_graph *g);

/* ---- simplify.c, fuse.c, fused.c ---- */

tl_status tl_graph_simplify(tl_graph *g); /* value[].same */
tl_status tl_graph_fuse(tl_graph *g);     /* decision[] */
static inline bool tl_inlined(const tl_graph *g, uint32_t node)
{
    return g->decision[node].answer.rule != NULL && !g->decision[node].answer.keep;
}

/* Several pointwise ops in one loop, which goes over its elements tile by tile. Each op in turn
 * computes into a tile of its own, from operands (arrays, gathered and widened as in op.c) and from
 * the tiles of earlier ops. A value that its op alone would store in f16 or bf16 is rounded to that
 * and widened again, so the bits are those of the ops run one by one. Only the last op's value is
 * written to memory. */
/* The most ops of a loop, values that they read, and operands: a value that is read in several
 * shapes is as many operands. Each may need a tile (TL_TILES_BYTES). */
enum { TL_FUSED_OPS = 48, TL_FUSED_LEAVES = 32, TL_FUSED_INS = 160 };

typedef struct {
    uint32_t node;
    int slot; /* of the level in force; 0: tile */
    tl_tile_fn *tile;
    const void *attrs;
    int n_in, from[TL_TILE_MAX_IN]; /* operand i, or ~i: op i of the loop */
    tl_dtype tile_dtype;            /* of the last input's tile */
    tl_dtype dtype;                 /* of the value */
    bool stores;                    /* its kernel writes the storage dtype */
    int buffer;                     /* its tile */
} tl_fused_op;

/* An operand of the loop. */
typedef struct {
    tl_tensor value;
    tl_dtype tile;
    tl_shape shape;  /* of the op that reads it: what it is broadcast to */
    tl_operand walk; /* its array, as the loop walks it */
    int buffer;      /* the tile of a gathered operand */
} tl_fused_in;

struct tl_fused {
    int n_ops, n_in;
    tl_fused_op *op;
    tl_fused_in *in;
    tl_tiles tiles;
    bool heavy;
    char *out; /* where the run stores the last op's value */
};

/* The loop that stores the value of that node, in g's bump memory. NULL if the loop would have one
 * op alone, or with g's error. */
tl_fused *tl_fused_new(tl_graph *g, uint32_t node);
/* The call of its step has the arrays of f->in, and that of the last op's value. */
void tl_fused_run(tl_fused *f, const tl_call *call);

/* n may be part of a loop: it is pointwise, has one output and uses its op's own kernel. */
bool tl_fusable(const tl_node *n);
/* The dtype of the tile in which node n reads its input k. */
tl_dtype tl_tile_dtype(const tl_graph *g, const tl_node *n, int k);

/* ---- bind.c: memory from outside, and gradients left there ---- */

/* A parameter whose gradient does not fit the program: more or less of it waits on the user's tape
 * than the program found there when it asked. TL_NONE: there is none. */
tl_tensor tl_bind_misfit(tl_graph *g);
/* Checks that the gradients that wait on the user's tape are those that the graph goes on with. */
tl_status tl_bind_check_gradients(tl_graph *g, tl_at at);
/* The storage of a root outside the slab; of an input, a constant or host memory only if it was
 * copied, else NULL. */
tl_storage *tl_graph_storage(const tl_graph *g, const tl_root *r);
/* A row-major copy of a in new memory of the user's tape; NULL, without an error, if there is no
 * memory. */
tl_storage *tl_graph_copy(tl_graph *g, const tl_array *a, tl_array *copy);
/* Places r at base for this run, and points its arrays there. */
void tl_root_bind(tl_root *r, void *base);
/* Gives every root outside the slab its memory. */
tl_status tl_bind_all(tl_graph *g, const tl_tensor *in);
/* When the steps have run: leaves the gradients on the user's tape, or consumes them. */
tl_status tl_bind_gradients_over(tl_graph *g);
/* r is an accumulator of the user's tape, and not only of the run. */
bool tl_bind_theirs(const tl_graph *g, const tl_root *r);
/* Gives an accumulator its memory. */
tl_status tl_bind_accumulator(tl_graph *g, tl_root *r);
/* s adds to the accumulator of a gradient. */
bool tl_step_folds(const tl_graph *g, const tl_plan_step *s);

/* ---- steps.c ---- */

/* Where x lies. */
tl_spot tl_spot_of(tl_graph *g, tl_tensor x);
/* The step of a node. NULL, with g's error, if it cannot be made. */
tl_plan_step *tl_plan_step_of(tl_graph *g, uint32_t node);
/* A step that calls op, with the attributes of that node, on n_in inputs. It has no arrays yet.
 * NULL, with g's error, if there is no memory. */
tl_plan_step *tl_step_new(tl_graph *g, uint32_t node, const tl_op *op, int n_in);
/* Adds input k of s, or its next result: a copy of the array *p.a, lying at p. Inputs must be added
 * in order, and before results. */
void tl_step_add_in(tl_plan_step *s, int k, tl_spot p);
void tl_step_add_out(tl_plan_step *s, tl_spot p);
/* Lists the spots of s, from number `first` on, with their roots. */
void tl_step_link(tl_graph *g, tl_plan_step *s, int first);
/* s reads or writes that root; with only_writes: writes it. */
bool tl_step_touches(const tl_plan_step *s, uint32_t root, bool only_writes);
/* A step after number `from` and before number `to` writes that root. */
bool tl_root_written_between(const tl_graph *g, uint32_t root, int64_t from, int64_t to);
/* Two neighbours may change places: neither writes what the other uses. */
bool tl_steps_may_swap(const tl_plan_step *a, const tl_plan_step *b);
/* Makes call c: the step's own, or a part of it. */
tl_status tl_graph_run_call(tl_graph *g, const tl_plan_step *p, tl_call *c);

/* ---- recompute.c, plan.c ---- */

/* Adds steps that compute values again for backward where keeping them would cost more. */
tl_status tl_plan_recompute(tl_graph *g);
tl_status tl_graph_plan(tl_graph *g); /* step[] and the slab */

/* ---- later.c: gradients that are put off ---- */

/* Moves the steps that add to them behind all others. */
tl_status tl_later_order(tl_graph *g);
/* When n of the other steps have run: accumulators complete by then wait on the user's tape. */
tl_status tl_later_wait(tl_graph *g, uint32_t n);
/* When a run is over: all of them wait, with the operands that are there now. */
tl_status tl_later_over(tl_graph *g);
/* When the graph ends: those that still wait lose their graph. */
void tl_later_forget(tl_graph *g);
/* A gradient that a run of g has put off still waits. */
bool tl_later_waits(const tl_graph *g);

/* ---- record.c: which values are which results of a log. Without a log they do nothing. ---- */

tl_status tl_graph_keys_begin(tl_graph *g); /* before the program is traced */
void tl_graph_keys_forward(tl_graph *g);    /* when it has been */
tl_status tl_graph_keys_end(tl_graph *g);   /* when nothing is recorded any more */
/* The log of the user's tape was opened after g was traced: a run cannot be logged. */
bool tl_graph_keys_missing(const tl_graph *g);
/* Write a run into the log of the user's tape: before its steps, after each, after the last. */
void tl_graph_log_begin(tl_graph *g, const tl_tensor *in);
void tl_graph_log_step(tl_graph *g, const tl_plan_step *p);
void tl_graph_log_end(tl_graph *g);

#endif
