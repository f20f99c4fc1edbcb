/* table.c: the table of kernels: its rows, adding one, the scopes that select one, and the kernel
 * of a call.
 *
 * Rows are only ever added, and each is complete before the count includes it, so readers need no
 * lock. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "autograd/kernels/internal.h"
#include "tensor/isa.h"

/* The probe's verdict on a kernel that declares the contract's bits. */
enum { UNPROBED, OBEYS, REFUSED };

typedef struct {
    const tl_kernel *k;
    int verdict;              /* read and written under the lock of admit() */
    char why[TL_MESSAGE_MAX]; /* if refused */
} entry;

enum { MOST = 256, KERNEL_TEXT = 256 };

static entry table[MOST];
static _Atomic int count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void install_shipped(void)
{
    int n = 0;
    for (; n < MOST && tl_kernels_shipped[n] != NULL; n++)
        table[n].k = tl_kernels_shipped[n];
    atomic_store(&count, n);
}

/* Row i; NULL past the end. The ops' own kernels, "invariant", have no rows here. */
static entry *record_at(int i)
{
    pthread_once(&once, install_shipped);
    return i >= 0 && i < atomic_load_explicit(&count, memory_order_acquire) ? &table[i] : NULL;
}

/* The rank of a vector level among those that run here, from 0, the weakest; -1: it does not run.
 */
static int rank(const char *isa)
{
    for (int i = 0; isa != NULL && tl_isa_at(i) != NULL; i++)
        if (strcmp(tl_isa_at(i)->name, isa) == 0)
            return i;
    return isa == NULL ? 0 : -1;
}

static bool shipped(const tl_kernel *k)
{
    for (int i = 0; tl_kernels_shipped[i] != NULL; i++)
        if (tl_kernels_shipped[i] == k)
            return true;
    return false;
}

/* Whether the kernel has that name, can do that op (NULL: any) on that dtype, and its vector level
 * runs now. "fast" names every shipped kernel with bits of its own. */
static bool matches(const tl_kernel *k, const char *op, tl_dtype dtype, const char *name)
{
    bool named = strcmp(k->name, name) == 0 ||
                 (strcmp(name, "fast") == 0 && k->mode & TL_FAST && shipped(k));
    bool typed = k->dtype == dtype || k->dtype == TL_ANY_DTYPE || dtype == TL_ANY_DTYPE;
    int level = rank(k->isa);
    return named && typed && (op == NULL || strcmp(k->op, op) == 0) && level >= 0 &&
           level <= rank(tl_isa_now()->name);
}

const tl_kernel *tl_kernel_find(const char *op, tl_dtype dtype, const char *name)
{
    const tl_kernel *best = NULL;
    for (int i = 0; record_at(i) != NULL; i++) {
        const tl_kernel *k = record_at(i)->k;
        if (matches(k, op, dtype, name) && (best == NULL || rank(k->isa) > rank(best->isa)))
            best = k;
    }
    return best;
}

static tl_status check(tl_at at, const tl_kernel *k)
{
    if (k == NULL || k->op == NULL || k->name == NULL || k->op[0] == '\0' || k->name[0] == '\0')
        return tl_tape_fail(
            at, TL_ENAME,
            "tl_kernel_register: a kernel needs the name of its op and one of its own");
    if (strcmp(k->name, "invariant") == 0 || strcmp(k->name, "fast") == 0)
        return tl_tape_fail(at, TL_ENAME,
                            "tl_kernel_register: the name '%s' is taken by the library", k->name);
    if (k->dtype != TL_ANY_DTYPE && tl_dtype_size(k->dtype) == 0)
        return tl_tape_fail(at, TL_EDTYPE, "tl_kernel_register: kernel '%.100s': %d is not a dtype",
                            k->name, (int)k->dtype);
    if ((k->run == NULL) == (k->tile == NULL))
        return tl_tape_fail(
            at, TL_EUSAGE,
            "tl_kernel_register: kernel '%.100s' of %.100s needs run or tile, one of them", k->name,
            k->op);
    if (k->mode & ~(unsigned)TL_FAST)
        return tl_tape_fail(at, TL_EUSAGE,
                            "tl_kernel_register: kernel '%.100s' of %.100s has mode %u; "
                            "TL_INVARIANT (%u) or TL_FAST (%u) is needed",
                            k->name, k->op, k->mode, TL_INVARIANT, TL_FAST);
    if (k->isa != NULL && !tl_isa_is_name(k->isa))
        return tl_tape_fail(at, TL_EUSAGE,
                            "tl_kernel_register: kernel '%.100s' of %.100s needs '%.60s', which is "
                            "not a vector level (scalar, v2, v3, v4, neon; NULL: none is needed)",
                            k->name, k->op, k->isa);
    for (int i = 0; record_at(i) != NULL; i++) {
        const tl_kernel *have = record_at(i)->k;
        if (have->dtype == k->dtype && tl_same_text(have->op, k->op) &&
            tl_same_text(have->name, k->name) && tl_same_text(have->isa, k->isa))
            return tl_tape_fail(
                at, TL_ENAME,
                "tl_kernel_register: %.100s has a kernel '%.100s' for this dtype and level already",
                k->op, k->name);
    }
    if (!(k->mode & TL_FAST) && !tl_kernel_has_probe(k))
        return tl_tape_fail(at, TL_EUSAGE,
                            "tl_kernel_register: kernel '%.100s' declares the contract's bits; "
                            "%.100s has no probe to test that by, so the kernel must bring one",
                            k->name, k->op);
    return TL_OK;
}

tl_status tl_kernel_register_at(tl_at at, const tl_kernel *k)
{
    TL_TRY(tl_error_status(at.tape));
    pthread_once(&once, install_shipped);
    pthread_mutex_lock(&lock);
    tl_status s = check(at, k);
    int n = atomic_load(&count);
    if (s == TL_OK && n == MOST)
        s = tl_tape_fail(at, TL_ENOMEM,
                         "tl_kernel_register: the table holds %d kernels and is full", n);
    if (s == TL_OK) {
        table[n].k = k;
        atomic_store_explicit(&count, n + 1, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    return s;
}

/* Row *i of the ops' own kernels: one for each op that computes, at each level. False if there are
 * fewer; *i is then what is left to count. */
static bool own_row(int *i, tl_kernel_row *row)
{
    for (int op = 0; op < tl_op_count(); op++)
        for (int level = 0; !(tl_op_at(op)->traits & TL_VIEW) && tl_isa_at(level) != NULL; level++)
            if ((*i)-- == 0) {
                *row = (tl_kernel_row){tl_op_at(op)->name, "invariant", tl_isa_at(level)->name,
                                       TL_ANY_DTYPE, TL_INVARIANT};
                return true;
            }
    return false;
}

bool tl_kernel_at(int i, tl_kernel_row *row)
{
    if (i < 0 || row == NULL)
        return false;
    if (own_row(&i, row))
        return true;
    const entry *e = record_at(i);
    if (e != NULL)
        *row = (tl_kernel_row){e->k->op, e->k->name, e->k->isa == NULL ? "" : e->k->isa,
                               e->k->dtype, e->k->mode};
    return e != NULL;
}

/* ---- selections ---- */

/* The tape's record of a selection inside outer, made on demand; NULL when out of memory. */
static const tl_choice *record(tl_tape *t, const char *op, tl_dtype dtype, const char *name,
                               const tl_choice *outer)
{
    for (tl_choice *c = t->choices; c != NULL; c = c->next)
        if (c->outer == outer && c->dtype == dtype && tl_same_text(c->op, op) &&
            tl_same_text(c->name, name))
            return c;
    tl_choice *c = tl_calloc(1, sizeof *c);
    if (c == NULL)
        return NULL;
    *c = (tl_choice){op, name, dtype, outer, t->choices};
    t->choices = c;
    return c;
}

void tl_choices_free(tl_tape *t)
{
    while (t->choices != NULL) {
        tl_choice *c = t->choices;
        t->choices = c->next;
        tl_free_raw(c);
    }
}

bool tl_choice_open(tl_at at, const char *op, tl_dtype dtype, const char *name)
{
    tl_tape *t = at.tape;
    const tl_choice *c = record(t, op, dtype, name, t->now.choice);
    if (c == NULL)
        tl_tape_fail(at, TL_ENOMEM, "no memory to select a kernel");
    else
        t->now.choice = c;
    return c != NULL;
}

bool tl_choice_follow(tl_tape *dst, const tl_choice *c)
{
    if (c == NULL) {
        dst->now.choice = NULL;
        return true;
    }
    return tl_choice_follow(dst, c->outer) &&
           tl_choice_open((tl_at){dst, __FILE__, __LINE__, NULL}, c->op, c->dtype, c->name);
}

/* ---- opening a scope ---- */

/* Probes a kernel that declares the contract's bits before its first use; an error if it is
 * refused. */
static tl_status admit(tl_at at, entry *e)
{
    static pthread_mutex_t probing = PTHREAD_MUTEX_INITIALIZER;
    static _Thread_local const entry *probed; /* what this thread probes, under the lock */
    static _Thread_local bool asked;          /* its probe selects an unprobed kernel */
    const entry *outer = probed;
    if (e->k->mode & TL_FAST)
        return TL_OK;
    if (outer == NULL)
        pthread_mutex_lock(&probing);
    if (e->verdict == UNPROBED && outer == NULL) {
        probed = e;
        asked = false;
        e->verdict = tl_kernel_probe(e->k, e->k->dtype, e->why, sizeof e->why) == 0 ? OBEYS
                     : asked                                                        ? UNPROBED
                                                                                    : REFUSED;
        probed = NULL;
    }
    const int verdict = e->verdict;
    if (outer == NULL)
        pthread_mutex_unlock(&probing);
    if (verdict == UNPROBED && outer != NULL) {
        asked = true;
        return tl_tape_fail(at, TL_EUSAGE,
                            "tl_kernel_push: the probe of kernel '%.60s' of %.60s selects '%.60s' "
                            "of %.60s, which has not been probed itself",
                            outer->k->name, outer->k->op, e->k->name, e->k->op);
    }
    return verdict == OBEYS
               ? TL_OK
               : tl_tape_fail(at, TL_EUSAGE,
                              "tl_kernel_push: kernel '%.60s' of %.60s declares the contract's "
                              "bits and is refused: %.200s",
                              e->k->name, e->k->op, e->why);
}

/* The kernel's name as the table has it, which outlives the caller's; NULL, with an error, if
 * nothing matches or a match is refused. */
static const char *admitted(tl_at at, const char *op, tl_dtype dtype, const char *name)
{
    const char *found = NULL;
    if (strcmp(name, "invariant") == 0)
        return "invariant";
    for (int i = 0; record_at(i) != NULL; i++) {
        entry *e = record_at(i);
        if (!matches(e->k, op, dtype, name))
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
    for (int i = 0; record_at(i) != NULL; i++)
        if (strcmp(record_at(i)->k->op, op) == 0)
            return record_at(i)->k->op;
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

/* ---- the kernel of a call ---- */

/* The dtype of the first floating input, else of the first input, else of the output. */
static tl_dtype call_dtype(const tl_call *c)
{
    int first = -1;
    for (int i = 0; i < c->n_in; i++) {
        if (c->in[i] == NULL)
            continue;
        if (tl_dtype_is_float(c->in[i]->dtype))
            return c->in[i]->dtype;
        first = first < 0 ? i : first;
    }
    return first < 0 ? c->out[0].dtype : c->in[first]->dtype;
}

tl_dtype tl_node_dtype(const tl_tape *t, const tl_node *n)
{
    const tl_array *in[TL_TILE_MAX_IN], *out = &tl_values_at(&t->values, n->out)->a;
    int n_in = n->n_in < TL_TILE_MAX_IN ? n->n_in : TL_TILE_MAX_IN;
    for (int k = 0; k < n_in; k++) {
        const tl_value *v = tl_peek(t, n->in[k]); /* NULL, too, once removed from the model */
        in[k] = v == NULL ? NULL : &v->a;
    }
    tl_array first = *out;
    return call_dtype(&(tl_call){.n_in = n_in, .in = in, .out = &first});
}

/* The innermost scope that covers the call decides. If its kernel does not fit, the op's own runs.
 */
const tl_kernel *tl_kernel_for(const tl_choice *c, const tl_call *call)
{
    tl_dtype dtype = c == NULL ? TL_ANY_DTYPE : call_dtype(call);
    for (; c != NULL; c = c->outer) {
        if ((c->op != NULL && strcmp(c->op, call->op->name) != 0) ||
            (c->dtype != TL_ANY_DTYPE && c->dtype != dtype))
            continue;
        if (strcmp(c->name, "invariant") == 0)
            return NULL;
        const tl_kernel *k = tl_kernel_find(call->op->name, dtype, c->name);
        if (k != NULL)
            return k->fits == NULL || k->fits(call) ? k : NULL;
    }
    return NULL;
}

const char *tl_kernel_of_at(tl_at at, tl_tensor x)
{
    tl_tape *t = at.tape;
    const tl_value *v = tl_failed(t) ? NULL : tl_peek(t, x);
    if (v == NULL) {
        if (!tl_failed(t))
            tl_tape_fail(at, TL_ESTALE, "tl_kernel_of: not a value of this tape or its model");
        return NULL;
    }
    if (v->node < 0 || x.owner != t->values.owner)
        return "";
    const tl_node *n = &t->node[v->node];
    const char *level = n->kernel == NULL ? n->level : n->kernel->isa == NULL ? "" : n->kernel->isa;
    char *text = tl_bump_get(&t->bump, KERNEL_TEXT);
    if (text == NULL)
        tl_tape_fail(at, TL_ENOMEM, "tl_kernel_of: no memory");
    else if (n->op->traits & TL_VIEW || n->mode & TL_TRACE)
        snprintf(text, KERNEL_TEXT, "%.60s %s %s", n->op->name, tl_dtype_name(tl_node_dtype(t, n)),
                 n->op->traits & TL_VIEW ? "view" : "traced");
    else
        snprintf(text, KERNEL_TEXT, "%.60s %s %.60s%s%.60s", n->op->name,
                 tl_dtype_name(tl_node_dtype(t, n)),
                 n->kernel == NULL ? "invariant" : n->kernel->name, level[0] ? " " : "", level);
    return text;
}
