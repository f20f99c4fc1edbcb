/* table.c: the table of kernels: its rows, adding one, selections, and the kernel of a call.
 *
 * Rows are only ever added, and each is complete before the count includes it, so readers need no
 * lock. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "autograd/kernels/internal.h"
#include "tensor/isa.h"

enum { MOST = 256, KERNEL_TEXT = 256 };

static tl_kernel_entry table[MOST];
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

tl_kernel_entry *tl_kernel_entry_at(int i)
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

bool tl_kernel_matches(const tl_kernel *k, const char *op, tl_dtype dtype, const char *name)
{
    bool named = strcmp(k->name, name) == 0 ||
                 (strcmp(name, "fast") == 0 && k->mode & TL_FAST && shipped(k));
    bool any = k->dtype == TL_ANY_DTYPE && (k->mode & TL_FAST || tl_dtype_is_float(dtype));
    bool typed = k->dtype == dtype || any || dtype == TL_ANY_DTYPE;
    int level = rank(k->isa);
    return named && typed && (op == NULL || strcmp(k->op, op) == 0) && level >= 0 &&
           level <= rank(tl_isa_now()->name);
}

_Thread_local const tl_kernel *tl_kernel_probed;

/* Whether calls may run it: it promises no bits, or its probe has shown them, or is under way. */
static bool admitted(const tl_kernel_entry *e)
{
    return e->k->mode & TL_FAST || e->k == tl_kernel_probed || atomic_load(&e->verdict) == TL_OBEYS;
}

const tl_kernel *tl_kernel_find(const char *op, tl_dtype dtype, const char *name, bool all)
{
    const tl_kernel *best = NULL;
    for (int i = 0; tl_kernel_entry_at(i) != NULL; i++) {
        const tl_kernel_entry *e = tl_kernel_entry_at(i);
        if (!tl_kernel_matches(e->k, op, dtype, name) || !(all || admitted(e)))
            continue;
        if (!all && e->k == tl_kernel_probed)
            return e->k;
        if (best == NULL || rank(e->k->isa) > rank(best->isa))
            best = e->k;
    }
    return best;
}

bool tl_choice_is_own(const tl_choice *c)
{
    return c->op == NULL && c->dtype == TL_ANY_DTYPE && strcmp(c->name, "invariant") == 0;
}

const tl_kernel *tl_choice_fast(const tl_choice *c)
{
    for (int i = 0; tl_kernel_entry_at(i) != NULL; i++) {
        const tl_kernel *k = tl_kernel_entry_at(i)->k;
        if (k->mode & TL_FAST && tl_kernel_matches(k, c->op, c->dtype, c->name))
            return k;
    }
    return NULL;
}

tl_probe *tl_kernel_probe_of(const tl_kernel *k)
{
    tl_probe *probe = k->probe;
    for (const tl_op_probe *p = tl_probes_shipped; probe == NULL && p->op != NULL; p++)
        probe = strcmp(p->op, k->op) == 0 ? p->probe : NULL;
    return probe;
}

bool tl_kernel_has_probe(const tl_kernel *k)
{
    const tl_op *op = tl_op_find(k->op);
    return tl_kernel_probe_of(k) != NULL ||
           (op != NULL && op->traits & TL_POINTWISE && op->attr == NULL);
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
    if (!(k->mode & TL_FAST) && k->dtype != TL_ANY_DTYPE && !tl_dtype_is_float(k->dtype))
        return tl_tape_fail(at, TL_EDTYPE,
                            "tl_kernel_register: kernel '%.100s' declares the contract's bits, and "
                            "probes compare floats alone, not %s",
                            k->name, tl_dtype_name(k->dtype));
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
    for (int i = 0; tl_kernel_entry_at(i) != NULL; i++) {
        const tl_kernel *have = tl_kernel_entry_at(i)->k;
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
    const tl_kernel_entry *e = tl_kernel_entry_at(i);
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

tl_dtype tl_node_dtype(const tl_node *n)
{
    const tl_array *in[TL_TILE_MAX_IN];
    int n_in = n->n_in < TL_TILE_MAX_IN ? n->n_in : TL_TILE_MAX_IN;
    for (int k = 0; k < n_in; k++)
        in[k] = tl_input(n, k) == NULL ? NULL : &n->value[k]->a;
    tl_array first = n->made[0]->a;
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
        const tl_kernel *k = tl_kernel_find(call->op->name, dtype, c->name, false);
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
        snprintf(text, KERNEL_TEXT, "%.60s %s %s", n->op->name, tl_dtype_name(tl_node_dtype(n)),
                 n->op->traits & TL_VIEW ? "view" : "traced");
    else
        snprintf(text, KERNEL_TEXT, "%.60s %s %.60s%s%.60s", n->op->name,
                 tl_dtype_name(tl_node_dtype(n)), n->kernel == NULL ? "invariant" : n->kernel->name,
                 level[0] ? " " : "", level);
    return text;
}
