/* observer.h: what watches a tape - a log, a profiler, a check of your own. Public.
 *
 * An observer is a constant struct of callbacks, attached to a tape with a context. It hears what
 * happens there in the order in which it happens, on the thread that uses the tape; NULL callbacks
 * are skipped. Several observers hear it in the order in which they were attached. They may read
 * anything (arrays borrow the tape's memory until the callback returns), must not attach or detach,
 * and change nothing, except where it says so: watched or not, a program has the same bits.
 * examples/profile.c is a whole one. */
#ifndef TL_OBSERVER_H
#define TL_OBSERVER_H

#include "autograd/op.h"
#include "autograd/tape.h"
TL_BEGIN

/* What a call belongs to; 0: the forward pass. */
enum {
    TL_PHASE_UPDATE = 1u << 0,   /* between tl_update_begin and tl_update_end (tl_step) */
    TL_PHASE_GRADIENT = 1u << 1, /* tl_grad puts a gradient together */
    TL_PHASE_BACKWARD = 1u << 2, /* a vjp has called it */
};

#define TL_WATCHED_MODES 0xffff0000u /* observers' own, for `mode` */
#define TL_NO_NODE UINT32_MAX        /* of a call not on the tape: a step of a run, tl_assign */

/* One op, about to run or just run. */
typedef struct {
    const tl_call *call; /* op, attributes, mode, kernel, arrays in and out */
    const char *file;    /* of the user's call; in backward, of the one that it differentiates */
    int line;
    unsigned phase;
    uint32_t node; /* its number on the tape, from 0 after each reset, or TL_NO_NODE */
    int fused;     /* ops that run as one loop, `call` being the last of them; else 1 */
} tl_seen;

/* What the vjp of one recorded call gave. Nodes from `first` on are those that it recorded. */
typedef struct {
    const tl_op *op;
    const char *file;
    int line;
    uint32_t node, first;
    int n_in, n_out;
    const tl_tensor *in, *dy; /* inputs of the call; cotangents of its outputs, TL_NONE for none */
    const bool *wants;        /* of each input: it takes a gradient */
    tl_tensor *dx;
    const tl_tensor *delivered; /* in delivered(): what waits for input k now, of its shape; TL_NONE
                                 * where an accumulator has taken it */
} tl_given;

typedef struct {
    bool follows;  /* also attached to tapes that compute again for this one (tl_gradcheck) */
    unsigned mode; /* runs() and ran() hear only of calls in a scope of these modes; 0: of all */

    void (*runs)(void *ctx, tl_tape *t, const tl_seen *c);
    /* Another status than TL_OK, with an error on t, makes the call fail. */
    tl_status (*ran)(void *ctx, tl_tape *t, const tl_seen *c);
    void (*recorded)(void *ctx, tl_tape *t, uint32_t node); /* views, too, and what is kept */
    /* Those that were needed have been recorded again for that, one by one, and forgotten. */
    void (*segment_restored)(void *ctx, tl_tape *t, uint32_t first, uint32_t end);

    void (*backward_begins)(void *ctx, tl_tape *t, tl_tensor y);
    /* Fresh from the vjp, before they are brought to the inputs' shapes; dx may be replaced. */
    void (*gave)(void *ctx, tl_tape *t, const tl_given *g);
    void (*delivered)(void *ctx, tl_tape *t, const tl_given *g);
    /* All that this backward, or this run of a graph, brings to a parameter waits for tl_accumulate
     * (.put_off), which may be called here. An error on t ends the backward, or the run. */
    void (*put_off)(void *ctx, tl_tape *t, const char *param);
    void (*backward_ends)(void *ctx, tl_tape *t);

    void (*update_begins)(void *ctx, tl_tape *t); /* or a run of a graph with an update */
    void (*updated)(void *ctx, tl_tape *t);
    void (*cleared)(void *ctx, tl_tape *t); /* gradients are about to be dropped (tl_grad_clear) */
    void (*reset)(void *ctx, tl_tape *t);   /* values and nodes are about to be forgotten */
    void (*freed)(void *ctx, tl_tape *t);   /* the tape ends; it can still be read */
} tl_observer;

/* Attaches o, which must outlive the tape, with a context. TL_EUSAGE if it is attached already. */
tl_status tl_observe(tl_tape *t, const tl_observer *o, void *ctx);
/* Detaches o, without a call of freed(); nothing if it is not attached. */
void tl_observe_end(tl_tape *t, const tl_observer *o);
/* The context that o is attached with; NULL if it is not. */
void *tl_observed(const tl_tape *t, const tl_observer *o);

/* Bracket an optimizer's update. tl_step does; a program that updates parameters by itself calls
 * begin before it reads gradients, and end when the parameters are new. */
void tl_update_begin(tl_tape *t);
void tl_update_end(tl_tape *t);

/* Observers that every tape has, for modes of their own, ended by NULL: only runs() and ran() are
 * called, with a NULL context. */
extern const tl_observer *const tl_observers_shipped[];
TL_END
#endif
