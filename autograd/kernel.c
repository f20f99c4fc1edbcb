/* kernel.c: the table of kernels - registering, finding, listing. */
#include <pthread.h>
#include <string.h>

#include "autograd/kernel_table.h"
#include "tensor/isa.h"

enum { MOST = 256 };

static tl_kernel_record table[MOST];
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

tl_kernel_record *tl_kernel_record_at(int i)
{
    pthread_once(&once, install_shipped);
    return i >= 0 && i < atomic_load_explicit(&count, memory_order_acquire) ? &table[i] : NULL;
}

/* Place of a vector level among those that run here, weakest first; -1: not here. */
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
    bool typed = k->dtype == dtype || k->dtype == TL_ANY_DTYPE || dtype == TL_ANY_DTYPE;
    int level = rank(k->isa);
    return named && typed && (op == NULL || strcmp(k->op, op) == 0) && level >= 0 &&
           level <= rank(tl_isa_now()->name);
}

const tl_kernel *tl_kernel_find(const char *op, tl_dtype dtype, const char *name)
{
    const tl_kernel *best = NULL;
    for (int i = 0; tl_kernel_record_at(i) != NULL; i++) {
        const tl_kernel *k = tl_kernel_record_at(i)->k;
        if (tl_kernel_matches(k, op, dtype, name) &&
            (best == NULL || rank(k->isa) > rank(best->isa)))
            best = k;
    }
    return best;
}

static bool same(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
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
    if ((k->run == NULL) == (k->tile == NULL))
        return tl_tape_fail(
            at, TL_EUSAGE,
            "tl_kernel_register: kernel '%.100s' of %.100s needs run or tile, one of them", k->name,
            k->op);
    for (int i = 0; tl_kernel_record_at(i) != NULL; i++) {
        const tl_kernel *have = tl_kernel_record_at(i)->k;
        if (have->dtype == k->dtype && same(have->op, k->op) && same(have->name, k->name) &&
            same(have->isa, k->isa))
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
    if (tl_failed(at.tape))
        return tl_error_status(at.tape);
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

/* Row i of the library's own: each op that computes, at each level. *i loses the rows passed over.
 */
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
    if (i < 0)
        return false;
    if (own_row(&i, row))
        return true;
    const tl_kernel_record *e = tl_kernel_record_at(i);
    if (e != NULL)
        *row = (tl_kernel_row){e->k->op, e->k->name, e->k->isa == NULL ? "" : e->k->isa,
                               e->k->dtype, e->k->mode};
    return e != NULL;
}
