/* accumulators.c: the gradient records of leaves, and in each one accumulator for every kind of use
 * (NUMERICS 10.3). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "autograd/batch.h"

static uint64_t key_of(tl_tensor leaf) { return (uint64_t)leaf.owner << 32 | leaf.index; }

tl_leaf_grad *tl_leaf_grad_find(tl_tape *t, tl_tensor leaf)
{
    const uint64_t *at = tl_key_map_find(&t->grad_at, key_of(leaf));
    for (int i = at == NULL ? -1 : (int)*at; i >= t->first_grad; i--)
        if (tl_same_handle(t->grad[i].leaf, leaf))
            return &t->grad[i];
    return NULL;
}

void tl_leaf_grads_key(tl_tape *t)
{
    tl_key_map_clear(&t->grad_at);
    for (int i = 0; i < t->n_grads; i++) /* there were as many before: this needs no memory */
        tl_key_map_put(&t->grad_at, key_of(t->grad[i].leaf), (uint64_t)i);
}

/* "=0123456789abcdef": a checkpoint can name it before a program has made the value. */
static char *derived_name(const tl_tape *t, tl_tensor leaf)
{
    char name[18];
    snprintf(name, sizeof name, "=%016" PRIx64, tl_peek(t, leaf)->print);
    return tl_strdup(name);
}

tl_leaf_grad *tl_leaf_grad_get(tl_tape *t, tl_tensor leaf)
{
    tl_leaf_grad *g = tl_leaf_grad_find(t, leaf);
    if (g != NULL)
        return g;
    char *name = NULL;
    if ((tl_derived(t, leaf) && (name = derived_name(t, leaf)) == NULL) ||
        !tl_grow(&t->grad, &t->cap_grads, t->n_grads, sizeof *g) ||
        !tl_key_map_put(&t->grad_at, key_of(leaf), (uint64_t)t->n_grads)) {
        tl_free_raw(name);
        tl_fail(&t->head.err, TL_ENOMEM, "no memory for gradient record %d", t->n_grads);
        return NULL;
    }
    t->grad[t->n_grads] = (tl_leaf_grad){.leaf = leaf, .name = name};
    return &t->grad[t->n_grads++];
}

void tl_leaf_grads_drop(tl_tape *t, uint32_t owner, uint32_t first)
{
    int kept = 0;
    t->waiting = 0;
    for (int i = 0; i < t->n_grads; i++) {
        tl_leaf_grad *g = &t->grad[i];
        g->waiting = NULL; /* bump memory, which a reset ends */
        if (owner != 0 && (g->leaf.owner != owner || g->leaf.index < first)) {
            t->grad[kept++] = *g;
            continue;
        }
        for (int k = 0; k < g->n_accs; k++) {
            tl_storage_release(g->acc[k].st);
            tl_free_raw(g->acc[k].kind);
        }
        tl_free_raw(g->acc);
        tl_free_raw(g->name);
    }
    t->n_grads = kept;
    tl_leaf_grads_key(t);
}

int tl_acc_find(const tl_leaf_grad *g, int call, const char *kind)
{
    int k = g->n_accs;
    while (k-- > 0)
        if (g->acc[k].call == call && strcmp(g->acc[k].kind, kind) == 0)
            break;
    return k;
}

int tl_acc_get(tl_tape *t, tl_leaf_grad *g, int call, const char *kind)
{
    int k = tl_acc_find(g, call, kind);
    if (k >= 0)
        return k;
    char *name = tl_strdup(kind);
    if (name == NULL || !tl_grow(&g->acc, &g->cap, g->n_accs, sizeof *g->acc)) {
        tl_free_raw(name);
        tl_fail(&t->head.err, TL_ENOMEM, "no memory for accumulator '%.100s'", kind);
        return -1;
    }
    g->acc[g->n_accs] = (tl_accumulator){.kind = name, .call = call};
    return g->n_accs++;
}

/* The order in which accumulators are added: by call, then by kind. */
static bool before(const tl_accumulator *a, const tl_accumulator *b)
{
    return a->call != b->call ? a->call < b->call : strcmp(a->kind, b->kind) < 0;
}

int tl_acc_next(const tl_leaf_grad *g, int after)
{
    int next = -1;
    for (int k = 0; k < g->n_accs; k++)
        if ((after < 0 || before(&g->acc[after], &g->acc[k])) &&
            (next < 0 || before(&g->acc[k], &g->acc[next])))
            next = k;
    return next;
}

tl_status tl_acc_open(tl_tape *t, tl_leaf_grad *g, int k, tl_dtype dtype)
{
    tl_accumulator *u = &g->acc[k];
    if (u->st != NULL && !u->open && u->sum.dtype != dtype) { /* another program, another dtype */
        tl_storage_release(u->st);
        u->st = NULL;
    }
    if (u->open && u->sum.dtype != dtype)
        return tl_fail(&t->head.err, TL_EUSAGE,
                       "'%s' of a parameter accumulates in %s, but in the micro-batch before in "
                       "%s: the program changed",
                       u->kind, tl_dtype_name(dtype), tl_dtype_name(u->sum.dtype));
    const tl_shape s = tl_array_shape(&tl_peek(t, g->leaf)->a);
    if (t->recorder != NULL) { /* memory comes later */
        u->sum = tl_array_make(dtype, &s, NULL);
    } else if (u->st == NULL) {
        size_t bytes = (size_t)tl_shape_count(&s) * tl_dtype_size(dtype);
        u->st = tl_storage_new(t->grad_arena, bytes, false);
        if (u->st == NULL)
            return tl_fail(&t->head.err, TL_ENOMEM, "no memory for %zu bytes of gradient", bytes);
        u->sum = tl_array_make(dtype, &s, u->st->data);
        u->st->blank = true;
    } else if (!u->open) {
        u->st->blank = true;
        tl_storage_note(u->st, (tl_changer){.what = "tl_backward"}, NULL);
    }
    u->open = true;
    return TL_OK;
}

void tl_grads_drop(tl_tape *t)
{
    TL_TELL(t, cleared, t);
    t->waiting = 0;
    for (int i = 0; i < t->n_grads; i++) {
        t->grad[i].live = false;
        t->grad[i].born = 0;
        t->grad[i].waiting = NULL;
        for (int k = 0; k < t->grad[i].n_accs; k++)
            t->grad[i].acc[k].open = false;
    }
}

tl_tensor tl_acc_value(tl_tape *t, const tl_leaf_grad *g, int k)
{
    const tl_accumulator *u = &g->acc[k];
    if (!u->open || t->recorder == NULL)
        return tl_handle(u->open ? tl_tape_value(t, &u->sum, u->st) : NULL);
    return t->recorder->accumulator(t->recorder_ctx, t, &u->sum, (uint32_t)(g - t->grad),
                                    (uint32_t)k);
}

/* Adds the accumulators in f64. A single one of the gradient's dtype is the gradient itself. */
tl_tensor tl_leaf_grad_sum(tl_at at, const tl_leaf_grad *g, tl_dtype dtype)
{
    tl_tape *t = at.tape;
    const tl_array like = tl_peek(t, g->leaf)->a;
    tl_tensor sum = TL_NONE;
    for (int k = -1; (k = tl_acc_next(g, k)) >= 0;) {
        tl_tensor x[2] = {sum, tl_acc_value(t, g, k)};
        if (tl_is_none(x[1]))
            continue;
        sum = x[1];
        if (tl_is_none(x[0]))
            continue;
        for (int i = 0; i < 2; i++)
            x[i] = tl_folded(at, x[i], TL_NONE, &like, TL_F64);
        sum = tl_apply1(at, &tl_op_add, NULL, x, 2);
    }
    if (tl_is_none(sum)) /* reached, but every path gave nothing */
        return tl_filled(at, &like, dtype, 0);
    return tl_peek(t, sum)->a.dtype == dtype ? sum : tl_folded(at, sum, TL_NONE, &like, dtype);
}

const char *tl_leaf_grad_name(const tl_tape *t, const tl_leaf_grad *g)
{
    return g->name != NULL ? g->name : tl_leaf_name(t, g->leaf);
}

const char *tl_waiting_at(const tl_tape *t, int i)
{
    for (int k = 0; i >= 0 && tl_lives(t) && k < t->n_grads; k++)
        if (t->grad[k].waiting != NULL && i-- == 0)
            return tl_leaf_grad_name(t, &t->grad[k]);
    return NULL;
}

tl_status tl_check_waiting(tl_at at, const char *who)
{
    const char *of = at.tape->waiting == 0 ? NULL : tl_waiting_at(at.tape, 0);
    return of == NULL ? TL_OK
                      : tl_tape_fail(at, TL_EUSAGE, "%s: what tl_backward put off for '%s' waits",
                                     who, of);
}
