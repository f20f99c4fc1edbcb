/* select.c: opening a scope in which calls run by a kernel of the table. A kernel that declares the
 * contract's bits is probed before its first use. */
#include <pthread.h>
#include <string.h>

#include "autograd/kernels/internal.h"
#include "tensor/isa.h"

/* Probes a kernel that declares the contract's bits before its first use; an error if it is
 * refused. */
static tl_status admit(tl_at at, tl_kernel_entry *e)
{
    static pthread_mutex_t probing = PTHREAD_MUTEX_INITIALIZER;
    static _Thread_local const tl_kernel_entry
        *probed;                     /* what this thread probes, under the lock */
    static _Thread_local bool asked; /* its probe selects an unprobed kernel */
    const tl_kernel_entry *outer = probed;
    bool full = false; /* there was no memory to probe it */
    char why[TL_MESSAGE_MAX];
    if (e->k->mode & TL_FAST)
        return TL_OK;
    if (outer == NULL)
        pthread_mutex_lock(&probing);
    if (e->verdict == TL_UNPROBED && outer == NULL) {
        probed = e;
        asked = false;
        const int bad = tl_kernel_probe(e->k, e->k->dtype, e->why, sizeof e->why);
        full = bad == TL_NO_ROOM;
        e->verdict = bad == 0 ? TL_OBEYS : asked || full ? TL_UNPROBED : TL_REFUSED;
        probed = NULL;
    }
    const int verdict = e->verdict;
    memcpy(why, e->why, sizeof why); /* another thread may probe it anew */
    if (outer == NULL)
        pthread_mutex_unlock(&probing);
    if (verdict == TL_UNPROBED && outer != NULL) {
        asked = true;
        return tl_tape_fail(at, TL_EUSAGE,
                            "tl_kernel_push: the probe of kernel '%.60s' of %.60s selects '%.60s' "
                            "of %.60s, which has not been probed itself",
                            outer->k->name, outer->k->op, e->k->name, e->k->op);
    }
    return verdict == TL_OBEYS
               ? TL_OK
               : tl_tape_fail(at, full ? TL_ENOMEM : TL_EUSAGE,
                              "tl_kernel_push: kernel '%.60s' of %.60s declares the contract's "
                              "bits and %s: %.200s",
                              e->k->name, e->k->op, full ? "was not probed" : "is refused", why);
}

/* The kernel's name as the table has it, which outlives the caller's; NULL, with an error, if
 * nothing matches or a match is refused. */
static const char *admitted(tl_at at, const char *op, tl_dtype dtype, const char *name)
{
    const char *found = NULL;
    if (strcmp(name, "invariant") == 0)
        return "invariant";
    for (int i = 0; tl_kernel_entry_at(i) != NULL; i++) {
        tl_kernel_entry *e = tl_kernel_entry_at(i);
        if (!tl_kernel_matches(e->k, op, dtype, name))
            continue;
        if (admit(at, e) != TL_OK)
            return NULL;
        found = e->k->name;
    }
    if (strcmp(name, "fast") == 0) /* an op that has no fast kernel runs its own */
        return "fast";
    if (found == NULL)
        tl_tape_fail(at, TL_ENAME,
                     "tl_kernel_push: no kernel '%.60s' of %.60s for %s runs at level %s", name,
                     op == NULL ? "any op" : op,
                     dtype == TL_ANY_DTYPE ? "any dtype" : tl_dtype_name(dtype),
                     tl_isa_now()->name);
    return found;
}

/* The op's name as the library or the table has it, which outlives the caller's; NULL: unknown. */
static const char *known_op(const char *op)
{
    const tl_op *known = tl_op_find(op);
    if (known != NULL)
        return known->name;
    for (int i = 0; tl_kernel_entry_at(i) != NULL; i++)
        if (strcmp(tl_kernel_entry_at(i)->k->op, op) == 0)
            return tl_kernel_entry_at(i)->k->op;
    return NULL;
}

int tl_kernel_push_at(tl_at at, const char *op, tl_dtype dtype, const char *name)
{
    tl_tape *t = at.tape;
    if (!tl_lives(t))
        return 0;
    const int depth = t->now.mode_depth;
    if (tl_failed(t))
        return depth;
    const char *lives = op == NULL ? NULL : known_op(op);
    if (name == NULL || (op != NULL && lives == NULL)) {
        tl_tape_fail(at, TL_ENAME, "tl_kernel_push: %s%.60s%s",
                     name == NULL ? "name is NULL" : "no op '", name == NULL ? "" : op,
                     name == NULL ? "" : "' has kernels");
        return depth;
    }
    if (dtype != TL_ANY_DTYPE && tl_dtype_size(dtype) == 0) {
        tl_tape_fail(at, TL_EDTYPE, "tl_kernel_push: %d is not a dtype", (int)dtype);
        return depth;
    }
    const char *kernel = admitted(at, lives, dtype, name);
    if (kernel == NULL || tl_mode_open(t, 0) != depth || tl_failed(t))
        return depth;
    if (!tl_choice_open(at, lives, dtype, kernel))
        tl_mode_pop(t, depth);
    return depth;
}
