/* graph.h: a C function over tensors, traced once, planned and replayed. Public.
 *
 * A graph is a tape recorded without storage (the trace). What it holds - forward, backward, the
 * optimizer's step - is decided by the function alone: whatever it calls on the tape it is given
 * belongs to the graph. Running a graph gives the bits that the function gives when it is called
 * directly (NUMERICS 13).
 *
 * Inside a traced function:
 *   - reading a value (tl_item, tl_keep, tl_print, tl_sha256) is TL_ETRACED;
 *   - tl_data is TL_ETRACED, too: data comes in through in[], or, if it never
 *     changes, through tl_constant; host numbers that change through tl_bound;
 *   - host work that goes with the ops (a schedule, a counter) goes into tl_host;
 *   - tl_backward may come again after tl_step or tl_grad_clear: several steps, or several
 *     optimizers in turn, are one graph. Each such part after the first has accumulators of its
 *     own, beside the tape's;
 *   - tl_grad and tl_step find what earlier backwards, called or run, have left on the tape. Which
 *     parameters have a gradient then is part of the trace: with others, tl_compile traces again;
 *   - a mark on an input (tl_require_grad) is the run's own: its gradient begins at zero in every
 *     run, is read inside (tl_grad) and handed out, and ends there; the tensor given stays
 *     unmarked.
 */
#ifndef TL_GRAPH_H
#define TL_GRAPH_H

#include <stdio.h>

#include "autograd/tape.h"
TL_BEGIN

typedef struct tl_graph tl_graph;
typedef struct tl_compiled tl_compiled;

/* A function of in[0 .. n_in) that sets out[0 .. n_out). Traced, it is called once for every set of
 * input shapes and dtypes; what it decides by ctx is decided then. */
typedef void tl_program(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                        void *ctx);

/* When a value with several users is kept in memory, and when each user computes it again. 0 in a
 * field: the default, given beside it. */
typedef struct {
    int64_t body;  /* a value whose computation takes more ops than this is kept: 30 */
    int64_t reads; /* sizes unknown: kept if it reads more values than this: 4 */
    /* smaller values, or those used again within so many steps, are not computed again: 4096, 16 */
    int64_t again_bytes, again_steps;
    bool never_inline; /* every value is kept */
    bool heavy_inline; /* exp, log, ... do not make a value kept */
} tl_cost_limits;

typedef struct {
    bool copy_inputs; /* copy inputs into memory of the graph; else they are read where they lie */
    bool no_fuse;     /* every op a loop of its own */
    bool no_simplify; /* equal values are computed as often as they occur, constants at every run */
    bool no_replace;  /* leave the shipped and registered replacements out */
    bool rounds;      /* allow replacements that round at other places, too */
    const char *without; /* names of replacements to leave out, with commas between; borrowed */
    tl_cost_limits limits;
} tl_graph_options;

/* Traces f on inputs of the shapes and dtypes of in, for tape t (borrowed, as its model is):
 * parameters, gradients and host numbers are t's. NULL with the error on t. Parameters and buffers
 * that f makes are made. Nothing is computed. Free with tl_free. */
#define tl_trace(t, f, in, n_in, n_out, ctx, ...) \
    tl_trace_at(TL_AT(t), f, in, n_in, n_out, ctx, TL_MAKE(tl_graph_options){__VA_ARGS__})
tl_graph *tl_trace_at(tl_at at, tl_program *f, const tl_tensor *in, int n_in, int n_out, void *ctx,
                      tl_graph_options o);

/* Runs the graph on in (of the traced shapes and dtypes, on the graph's tape or its model) and
 * gives n_out values of that tape, good until its reset. They carry no gradient: where an output
 * needs one and the graph does not hold its backward, tl_detach it in the program, or run under
 * TL_NO_GRAD (else TL_ENOGRAD). TL_ESHAPE or TL_EDTYPE for other inputs, TL_ESTALE for dead ones:
 * nothing has run then. On any error every out[i] is the zero handle. A run that fails half way -
 * an op without memory - has made the optimizer steps of the parts that were over, as a call
 * has. */
#define tl_graph_run(g, in, n_in, out, n_out) \
    tl_graph_run_at(__FILE__, __LINE__, g, in, n_in, out, n_out)
tl_status tl_graph_run_at(const char *file, int line, tl_graph *g, const tl_tensor *in, int n_in,
                          tl_tensor *out, int n_out);

/* f for any shapes: a graph for each set of input shapes and dtypes, traced when it is first
 * needed. NULL when out of memory. ctx is borrowed. Free with tl_free; once its tape is freed
 * tl_run is TL_ESTALE. */
#define tl_compile(t, f, n_out, ctx, ...) \
    tl_compile_with(t, f, n_out, ctx, TL_MAKE(tl_graph_options){__VA_ARGS__})
tl_compiled *tl_compile_with(tl_tape *t, tl_program *f, int n_out, void *ctx, tl_graph_options o);
#define tl_run(c, in, n_in, out) tl_run_at(__FILE__, __LINE__, c, in, n_in, out)
tl_status tl_run_at(const char *file, int line, tl_compiled *c, const tl_tensor *in, int n_in,
                    tl_tensor *out);
/* The graphs it has traced so far, in that order. */
int tl_compiled_count(const tl_compiled *c);
tl_graph *tl_compiled_at(const tl_compiled *c, int i);

/* The graph as text, a line a node: %3 = add(%1, %2) : F32 [2, 3]   # model.c:12; and as a drawing
 * for Graphviz (dot -Tsvg): blue work, green pointwise, yellow reductions, red what changes
 * something outside, dashed what costs nothing. */
tl_status tl_graph_print(tl_graph *g, FILE *f);
tl_status tl_graph_dot(tl_graph *g, FILE *f);

/* Each decision to keep a value or to compute it inside its users' loops: users u, bytes T that it
 * reads and O that it would write, both costs (inline T*u, keep T + O*(1+u)), the verdict and the
 * rule that gave it. Then the same for each value that backward finds again: kept, or computed a
 * second time. */
tl_status tl_graph_explain(tl_graph *g, FILE *f);

/* What replacements (replace/pattern.h) did: a line for each one made (how often, exact or not)
 * and for each near miss (how often, where and why not). */
void tl_graph_report(const tl_graph *g, FILE *f);
/* How often the replacement of that name was made. */
int tl_graph_replaced(const tl_graph *g, const char *name);

/* Bytes and counts of the plan. */
typedef struct {
    size_t slab;    /* one block that holds every value between its making and its last use */
    size_t values;  /* what the same values would take side by side */
    size_t written; /* bytes that a run writes, */
    size_t read;    /* and reads, of values */
    int nodes;      /* recorded, */
    /* of these what remains when equal, constant and unread values are cleared away (tl_graph_print
     * shows it), */
    int needed;
    int views;     /* and of these, views: no work */
    int steps;     /* run: what is needed and no view, fused, and some of it twice */
    int merged;    /* values that another value or a constant stands for */
    int constants; /* nodes computed while the graph was made */
    /* a first trace makes parameters, too, whose initial values take their time */
    double trace_seconds, plan_seconds;
} tl_graph_stats;
tl_graph_stats tl_graph_stats_of(const tl_graph *g);
TL_END
#endif
