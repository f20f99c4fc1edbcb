/* graph.h: a C function over tensors, traced once, planned and replayed. Public.
 *
 * A graph is a tape recorded without storage, the trace. It holds whatever the function calls on
 * its tape: forward, backward, the optimizer's step. Running the graph gives the same bits as
 * calling the function (NUMERICS 13).
 *
 * Inside a traced function:
 *   - reading a value (tl_item, tl_keep, tl_print, tl_sha256) is TL_ETRACED; tl_watch is allowed.
 *     tl_write, tl_load, tl_save, tl_data and tl_tape_reset are TL_ETRACED, too: data comes in
 *     through in[], tl_constant if it never changes, or tl_bound if it is host memory that changes;
 *   - only the tape that it is given is used (its user's is TL_EUSAGE); a counter is a tl_host;
 *   - tl_backward may be called again after tl_step or tl_grad_clear: several steps, or several
 *     optimizers in turn, are one graph. Each part after the first has accumulators of its own
 *     beside the tape's;
 *   - tl_grad and tl_step find what earlier backwards, called or run, have left on the tape. The
 *     trace is valid for parameters that had a gradient then; tl_compile traces again for others;
 *   - tl_require_grad on an input holds for the run, not for the tensor passed: its gradient starts
 *     at zero in every run, can be read (tl_grad) and handed out inside, and ends with the run. */
#ifndef TL_GRAPH_H
#define TL_GRAPH_H

#include <stdio.h>

#include "autograd/tape.h"
TL_BEGIN

typedef struct tl_graph tl_graph;
typedef struct tl_compiled tl_compiled;

/* A function of in[0 .. n_in) that sets out[0 .. n_out). It is called once for every set of input
 * shapes and dtypes; decisions by ctx, or by a C variable (a counter), are made then. */
typedef void tl_program(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                        void *ctx);

/* When a value with several users is kept in memory instead of being computed by each of them. */
typedef struct {
    int64_t body;        /* it is kept if it takes more ops than this; 0: 30 */
    int64_t reads;       /* it is kept, where sizes are unknown, if it reads more values; 0: 4 */
    int64_t again_bytes; /* backward computes no value of fewer bytes again; 0: 4096 */
    int64_t again_steps; /* nor one that is used again within fewer steps; 0: 8 */
    bool never_inline;   /* every value is kept */
    bool heavy_inline;   /* exp, log, ... alone are no reason to keep a value */
} tl_cost_limits;

typedef struct {
    bool copy_inputs; /* copy inputs into the graph's memory; else they are read where they lie */
    bool no_fuse;     /* every op is a loop of its own */
    bool no_simplify; /* compute equal values as often as they occur, and constants in every run */
    bool no_replace;  /* no replacements, neither shipped nor registered */
    bool rounds;      /* allow replacements that round at other places */
    const char *without; /* replacements to leave out: names with commas; borrowed by tl_compiled */
    tl_cost_limits limits;
} tl_graph_options;

/* Traces f, computing nothing, on inputs of the shapes and dtypes of in, for tape t (borrowed, as
 * its model is): parameters, gradients and host numbers are t's, and f makes its parameters and
 * buffers. Returns NULL, with the error on t, on failure. Free with tl_free. */
#define tl_trace(t, f, in, n_in, n_out, ctx, ...) \
    tl_trace_at(TL_AT(t), f, in, n_in, n_out, ctx, TL_MAKE(tl_graph_options){__VA_ARGS__})
tl_graph *tl_trace_at(tl_at at, tl_program *f, const tl_tensor *in, int n_in, int n_out, void *ctx,
                      tl_graph_options o);

/* Runs the graph on in, of the traced shapes and dtypes, on the graph's tape or its model; gives
 * n_out values of that tape. They carry no gradient. TL_ENOGRAD if one needs a gradient, or an
 * input does, and the graph does not hold its backward: tl_detach it, or run under TL_NO_GRAD.
 * Nothing has run after TL_ESHAPE, TL_EDTYPE, TL_EUSAGE (other inputs or settings than were traced;
 * inside a run of g) or TL_ESTALE; a run that fails half way (no memory) has made the optimizer
 * steps before that, as a call would. On an error every out[i] is the zero handle. */
#define tl_graph_run(g, ...) /* in, n_in, out, n_out */ \
    tl_graph_run_at(__FILE__, __LINE__, g, __VA_ARGS__)
tl_status tl_graph_run_at(const char *file, int line, tl_graph *g, const tl_tensor *in, int n_in,
                          tl_tensor *out, int n_out);

/* f for any shapes. tl_run traces a graph for each new set of input shapes and dtypes, and of what
 * a trace takes as constant: scopes, the seed, which parameters are frozen, which have a gradient.
 * Each is kept, with its slab, until tl_free: pad inputs of varying length to a few lengths. A
 * graph of tensors that the model no longer has, or from before a tl_opt_group, is freed before the
 * next trace. ctx is borrowed. Free with tl_free; once its tape is freed, tl_run is TL_ESTALE. */
#define tl_compile(t, f, n_out, ctx, ...) \
    tl_compile_at(TL_AT(t), f, n_out, ctx, TL_MAKE(tl_graph_options){__VA_ARGS__})
#define tl_run(c, ...) tl_run_at(__FILE__, __LINE__, c, __VA_ARGS__) /* in, n_in, out */
tl_compiled *tl_compile_at(tl_at at, tl_program *f, int n_out, void *ctx, tl_graph_options o);
tl_status tl_run_at(const char *file, int line, tl_compiled *c, const tl_tensor *in, int n_in,
                    tl_tensor *out);
/* The graphs traced so far, in order; borrowed until the next tl_run. */
int tl_compiled_count(const tl_compiled *c);
tl_graph *tl_compiled_at(const tl_compiled *c, int i);

/* The graph as text, a line for each node: %3 = add(%1, %2) : F32 [2, 3]   # model.c:12 */
tl_status tl_graph_print(tl_graph *g, FILE *f);
/* The same for Graphviz (dot -Tsvg): blue work, green pointwise, yellow reductions, red nodes that
 * change something outside; dashed: no step of their own, in others' loops (grey) or views. */
tl_status tl_graph_dot(tl_graph *g, FILE *f);
/* Why each value with several users is kept or computed inside their loops: users u, bytes T that
 * it reads and O that it would write, both costs (inline T*u, keep T + O*(1+u)), the verdict and
 * the rule behind it. Then, for each value that backward needs: kept or made again. */
tl_status tl_graph_explain(tl_graph *g, FILE *f);
/* What replacements (replace/pattern.h) did: a line for each that was made (how often, exact or
 * not) and for each near miss (how often, where and why not). */
void tl_graph_report(const tl_graph *g, FILE *f);
/* How often the replacement of that name was made. */
int tl_graph_replaced(const tl_graph *g, const char *name);

/* The plan in numbers; sizes in bytes. */
typedef struct {
    size_t slab;          /* one block that holds every value until its last use */
    size_t values;        /* what the same values would take side by side */
    size_t written, read; /* of values, by a run */
    int nodes;            /* as recorded */
    int needed;           /* nodes left without equal, constant and unread values */
    int views;            /* of the needed nodes: they do no work */
    int steps;            /* of a run: needed nodes except views, fused; some run twice */
    int merged;           /* values replaced by an equal value or a constant */
    int constants;        /* nodes computed while the graph was made */
    double trace_seconds; /* the first trace also makes parameters and their initial values */
    double plan_seconds;
} tl_graph_stats;
tl_graph_stats tl_graph_stats_of(const tl_graph *g);
TL_END
#endif
