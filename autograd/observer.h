/* observer.h: what watches a tape: a profiler, a check of your own. Public.
 *
 * An observer is a constant struct of callbacks, attached to a tape with a context. It is told what
 * happens there, on the thread that uses the tape; NULL callbacks are skipped. Several are told in
 * the order in which they were attached. They may read anything (arrays borrow the tape's memory
 * until the callback returns) and change nothing except where a callback says so: watched or not, a
 * program has the same bits. A run of a graph calls only runs, ran, put_off, update_begins and
 * cleared. examples/profile.c is a complete one. */
#ifndef TL_OBSERVER_H
#define TL_OBSERVER_H

#include "autograd/op.h"
#include "autograd/tape.h"
TL_BEGIN

/* What a call is made for; 0: the forward pass. */
enum {
    TL_PHASE_UPDATE = 1u << 0,   /* between tl_update_begin and tl_update_end (tl_step) */
    TL_PHASE_GRADIENT = 1u << 1, /* tl_grad adds accumulators up */
    TL_PHASE_BACKWARD = 1u << 2, /* a vjp makes it */
};

#define TL_WATCHED_MODES 0xffff0000u /* the mode bits that belong to observers */
#define TL_NO_NODE UINT32_MAX        /* for a call not on the tape: a step of a run */

/* One op, about to be recorded, about to run, or just run. */
typedef struct {
    const tl_call *call; /* op, attributes, mode, kernel, arrays in and (data once it ran) out */
    const char *file;    /* place of the user's call; in backward, of the call it differentiates */
    int line;
    unsigned phase;
    uint32_t node;  /* its number on the tape, from 0 after each reset, or TL_NO_NODE */
    int fused;      /* how many ops run as one loop, of which `call` is the last; else 1 */
    const char *by; /* the function that the program called; NULL: not known */
} tl_seen;

/* What the vjp of one recorded call returned. It has recorded the nodes from `first` on. */
typedef struct {
    const tl_op *op;
    const char *file;
    int line;
    uint32_t node, first;
    int n_in, n_out;
    const tl_tensor *in, *dy; /* inputs of the call; cotangents of its outputs, TL_NONE for none */
    const bool *wants;        /* which inputs take a gradient */
    tl_tensor *dx;
    /* In delivered(): what waits for each input, in its shape; TL_NONE: an accumulator took it. */
    const tl_tensor *delivered;
} tl_given;

typedef struct {
    bool follows;  /* also attached to tapes that recompute parts of this one (tl_gradcheck) */
    unsigned mode; /* the next three are told only of calls in these modes; 0: of all */

    /* A call is about to be recorded (not in a trace); before and after its kernel, if one runs.
     * records() and ran() may put an error on t and return it: the call fails, and what records()
     * refuses has changed nothing. They must record nothing. */
    tl_status (*records)(void *ctx, tl_tape *t, const tl_seen *c);
    void (*runs)(void *ctx, tl_tape *t, const tl_seen *c);
    tl_status (*ran)(void *ctx, tl_tape *t, const tl_seen *c);
    /* A node has been recorded: also a view, or a value that had been computed before. */
    void (*recorded)(void *ctx, tl_tape *t, uint32_t node);
    /* Nodes first .. end-1 have been recomputed: those needed were recorded again and removed. */
    void (*segment_restored)(void *ctx, tl_tape *t, uint32_t first, uint32_t end);

    void (*backward_begins)(void *ctx, tl_tape *t, tl_tensor y);
    /* What a vjp returned, before it is brought to the inputs' shapes; dx may be replaced: while a
     * program is traced (tl_traced), and values have no contents, for all of its runs. */
    void (*gave)(void *ctx, tl_tape *t, const tl_given *g);
    void (*delivered)(void *ctx, tl_tape *t, const tl_given *g);
    /* All that this backward, or run of a graph, adds to a parameter waits for tl_accumulate, which
     * may be called here (.put_off). An error on t ends the backward, or the run. */
    void (*put_off)(void *ctx, tl_tape *t, const char *param);
    void (*backward_ends)(void *ctx, tl_tape *t);

    void (*update_begins)(void *ctx, tl_tape *t); /* also: a run of a graph that updates begins */
    void (*updated)(void *ctx, tl_tape *t);
    void (*cleared)(void *ctx, tl_tape *t); /* gradients are about to be dropped (tl_grad_clear) */
    void (*reset)(void *ctx, tl_tape *t);   /* values and nodes are about to be removed */
    void (*freed)(void *ctx, tl_tape *t);   /* the tape ends; it can still be read */
} tl_observer;

/* Attaches o (outlives t; in a callback: now or from the next event on). TL_EUSAGE: attached. */
tl_status tl_observe(tl_tape *t, const tl_observer *o, void *ctx);
/* Detaches o without calling freed(); does nothing if it is not attached. */
void tl_observe_end(tl_tape *t, const tl_observer *o);
/* The context with which o is attached; NULL if it is not. */
void *tl_observed(const tl_tape *t, const tl_observer *o);

/* Bracket an optimizer's update. tl_step does so; a program that updates parameters itself calls
 * begin before it reads gradients, and end when the parameters have changed. */
void tl_update_begin(tl_tape *t);
void tl_update_end(tl_tape *t);

/* Observers that every tape has, for modes of their own; ended by NULL. Only their records(),
 * runs() and ran() are called, with a NULL context. */
extern const tl_observer *const tl_observers_shipped[];
TL_END
#endif
