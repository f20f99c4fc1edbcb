/* anomaly.c: which op made the first NaN or infinity, and where in the program.
 *
 * Under TL_ANOMALY every result of every op is examined. The fault began at the op whose inputs are
 * finite and whose output is not. In backward the op belongs to the vjp of the node whose place is
 * reported. */
#include "autograd/check/shadow.h"
#include "autograd/observer.h"

/* Whether the call that runs on this thread was given something that is not finite. Asked before
 * its kernel runs, which may change inputs in place. */
static _Thread_local bool given;

static void look(void *ctx, tl_tape *t, const tl_seen *seen)
{
    const tl_call *c = seen->call;
    (void)ctx;
    (void)t;
    given = false;
    for (int i = 0; i < c->n_in; i++)
        given |= !(c->begins && i == c->op->mutates) && tl_bad_element(c->in[i]) >= 0;
}

static tl_status check(void *ctx, tl_tape *t, const tl_seen *seen)
{
    const tl_call *c = seen->call;
    (void)ctx;
    if (given || c->n_in == 0) /* a constant is whatever the program asked for */
        return TL_OK;
    for (int i = 0; i < c->n_out; i++) {
        int64_t bad = tl_bad_element(&c->out[i]);
        char text[TL_SHAPE_TEXT];
        if (bad >= 0)
            return tl_tape_fail((tl_at){t, seen->file, seen->line, NULL}, TL_EDOMAIN,
                                "%s%s: made %g at element %lld of its output %s from finite inputs",
                                seen->phase & TL_PHASE_BACKWARD ? "backward: " : "", c->op->name,
                                tl_array_get(&c->out[i], bad), (long long)bad,
                                tl_array_shape_text(text, &c->out[i]));
    }
    return TL_OK;
}

static const tl_observer anomaly = {.mode = TL_ANOMALY, .runs = look, .ran = check};

const tl_observer *const tl_observers_shipped[] = {&anomaly, &tl_strict, NULL};
