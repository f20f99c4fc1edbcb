/* anomaly.c: which op made the first NaN or infinity, and where in the program.
 *
 * Under TL_ANOMALY every result of every op is examined. The fault began at the op whose inputs are
 * finite and whose output is not. In backward the op belongs to the vjp of the node whose place is
 * reported. */
#include "autograd/check/shadow.h"
#include "autograd/observer.h"

/* The inputs that the call changes in place. */
static unsigned changed(const tl_call *c)
{
    return c->op->traits & TL_MUTATES ? TL_BIT(c->op->mutates) | c->op->changes : 0;
}

/* Whether an input is not finite: one of those that are changed, or of the others. */
static bool odd_input(const tl_call *c, bool of_changed)
{
    for (int i = 0; i < c->n_in; i++)
        if ((i < 32 && changed(c) & TL_BIT(i)) == of_changed &&
            !(c->begins && i == c->op->mutates) && tl_bad_element(c->in[i]) >= 0)
            return true;
    return false;
}

/* The last call on this thread that has begun to change an input that was not finite. */
static _Thread_local const tl_call *odd;

static void look(TL_UNUSED void *ctx, TL_UNUSED tl_tape *t, const tl_seen *seen)
{
    if (odd_input(seen->call, true))
        odd = seen->call;
    else if (odd == seen->call)
        odd = NULL;
}

static tl_status check(TL_UNUSED void *ctx, tl_tape *t, const tl_seen *seen)
{
    const tl_call *c = seen->call;
    /* A constant is whatever the program asked for, and what is odd may have come from elsewhere.
     */
    if (c->n_in == 0 || odd == c || odd_input(c, false))
        return TL_OK;
    for (int i = 0; i < c->n_out; i++) {
        int64_t bad = tl_bad_element(&c->out[i]);
        if (bad >= 0)
            return tl_tape_fail((tl_at){t, seen->file, seen->line, NULL}, TL_EDOMAIN,
                                "%s%s: made %g at element %lld of its output %s from finite inputs",
                                seen->phase & TL_PHASE_BACKWARD ? "backward: " : "", c->op->name,
                                tl_array_get(&c->out[i], bad), (long long)bad, TL_TEXT(&c->out[i]));
    }
    return TL_OK;
}

static const tl_observer anomaly = {.mode = TL_ANOMALY, .runs = look, .ran = check};

const tl_observer *const tl_observers_shipped[] = {&anomaly, &tl_strict, NULL};
