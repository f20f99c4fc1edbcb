/* trace.c: a program run on a tape without storage. */
#include <string.h>

#include "autograd/graph/internal.h"

tl_tracing *tl_tracing_new(tl_arena *arena)
{
    tl_tracing *s = tl_calloc(1, sizeof *s);
    if (s != NULL)
        s->arena = arena;
    return s;
}

void tl_tracing_free(tl_tracing *s)
{
    if (s == NULL)
        return;
    for (int i = 0; i < s->n_constant; i++)
        tl_storage_release(s->constant[i].st);
    tl_free_raw(s->bound);
    tl_free_raw(s->constant);
    tl_free_raw(s->hook);
    tl_free_raw(s->watch);
    tl_free_raw(s);
}

tl_tape *tl_trace_tape(tl_tape *user, tl_tracing *s)
{
    tl_tape *t = tl_tape_bare(user->model);
    if (t == NULL)
        return NULL;
    t->mode = user->mode | TL_TRACE;
    t->tracing = s;
    t->limit = user->limit;
    if (tl_choice_follow(t, user->choice))
        return t;
    tl_free(t);
    return NULL;
}

bool tl_tracing_whole(const tl_tape *t) { return t->tracing != NULL && t->tracing->whole; }

tl_tensor tl_trace_leaf(tl_tape *t, const tl_array *a, tl_leaf_kind kind, uint32_t at, uint32_t use)
{
    tl_array shaped = *a;
    shaped.data = NULL;
    tl_tensor x = tl_tape_value(t, &shaped, NULL);
    if (tl_is_none(x))
        return x;
    tl_value *v = tl_values_at(&t->values, x.index);
    v->leaf = (uint8_t)kind;
    v->leaf_at = at;
    v->leaf_use = use;
    return x;
}

const int32_t *tl_trace_changes(tl_tape *t, uint32_t *n)
{
    *n = t->model == NULL ? 0 : atomic_load(&t->model->values.count);
    int32_t *last = tl_bump_get(&t->bump, ((size_t)*n + 1) * sizeof *last);
    if (last == NULL)
        return NULL;
    memset(last, 0xff, *n * sizeof *last);
    for (uint32_t i = 0; i < t->n_nodes; i++) {
        const tl_node *node = &t->node[i];
        for (int k = 0; k < node->n_in; k++) {
            tl_tensor x = tl_node_writes(t, node, k) ? tl_bottom(t, node->in[k]) : TL_NONE;
            if (!tl_is_none(x) && x.owner != t->values.owner)
                last[x.index] = (int32_t)i;
        }
    }
    return last;
}

tl_tensor tl_trace_accumulator(tl_tape *t, const tl_array *a, uint32_t leaf, uint32_t use)
{
    return tl_trace_leaf(t, a, TL_LEAF_ACC, leaf, use);
}

bool tl_trace_accumulator_of(const tl_tape *t, tl_tensor x, uint32_t *leaf, uint32_t *use)
{
    tl_tensor bottom = tl_bottom(t, x);
    const tl_value *v = bottom.owner == t->values.owner ? tl_values_at(&t->values, bottom.index)
                                                        : NULL;
    if (v == NULL || v->leaf != TL_LEAF_ACC)
        return false;
    *leaf = v->leaf_at;
    *use = v->leaf_use;
    return true;
}

/* Room for one more in a list that grows by doubling; false when out of memory. */
static bool room(void *list, int n, size_t size)
{
    void **p = list;
    if (n & (n - 1)) /* full only at powers of two, and at 0 */
        return true;
    void *grown = tl_realloc(*p, (size_t)(n ? 2 * n : 1) * size);
    if (grown != NULL)
        *p = grown;
    return grown != NULL;
}

static tl_tensor no_memory(tl_at at, const char *who)
{
    tl_tape_fail(at, TL_ENOMEM, "%s: no memory while tracing", who);
    return TL_NONE;
}

static bool data_array(tl_at at, const char *who, const void *data, const char *c_type,
                       tl_dtype dtype, tl_shape *shape, tl_array *a)
{
    tl_err e = {.status = TL_OK};
    if (tl_data_check(data, c_type, dtype, shape, &e) != TL_OK)
        return tl_tape_fail(at, e.status, "%s: %.400s", who, e.message), false;
    *a = tl_array_make(dtype, shape, NULL);
    return true;
}

tl_tensor tl_constant_at(tl_at at, const void *data, const char *c_type, tl_dtype dtype,
                         tl_shape shape)
{
    tl_tape *t = at.tape;
    tl_array a;
    if (tl_failed(t))
        return TL_NONE;
    if (t->tracing == NULL)
        return tl_data_tape_at(t, data, c_type, dtype, shape, at.file, at.line);
    if (!data_array(at, "tl_constant", data, c_type, dtype, &shape, &a))
        return TL_NONE;
    tl_tracing *s = t->tracing;
    size_t bytes = (size_t)tl_array_count(&a) * tl_dtype_size(dtype);
    tl_storage *st = tl_storage_new(s->arena, bytes, false);
    if (st == NULL || !room(&s->constant, s->n_constant, sizeof *s->constant)) {
        tl_storage_release(st);
        return no_memory(at, "tl_constant");
    }
    if (bytes > 0)
        memcpy(st->data, data, bytes);
    a.data = st->data;
    s->constant[s->n_constant] = (tl_constant_leaf){a, st};
    return tl_trace_leaf(t, &a, TL_LEAF_CONSTANT, (uint32_t)s->n_constant++, 0);
}

tl_tensor tl_bound_at(tl_at at, const void *data, const char *c_type, tl_dtype dtype,
                      tl_shape shape)
{
    tl_tape *t = at.tape;
    tl_array a;
    if (tl_failed(t))
        return TL_NONE;
    if (t->tracing == NULL)
        return tl_data_tape_at(t, data, c_type, dtype, shape, at.file, at.line);
    if (!data_array(at, "tl_bound", data, c_type, dtype, &shape, &a))
        return TL_NONE;
    tl_tracing *s = t->tracing;
    if (!room(&s->bound, s->n_bound, sizeof *s->bound))
        return no_memory(at, "tl_bound");
    s->bound[s->n_bound] = (tl_bound_leaf){data, a};
    return tl_trace_leaf(t, &a, TL_LEAF_BOUND, (uint32_t)s->n_bound++, 0);
}

tl_status tl_host(tl_tape *t, tl_host_when when, tl_host_fn *f, void *ctx)
{
    if (tl_failed(t))
        return tl_error_status(t);
    tl_tracing *s = t->tracing;
    if (s == NULL) {
        f(t, ctx);
        return tl_failed(t) ? tl_error_status(t) : TL_OK;
    }
    if (!room(&s->hook, s->n_hook, sizeof *s->hook))
        return tl_tape_fail(TL_AT(t), TL_ENOMEM, "tl_host: no memory while tracing");
    s->hook[s->n_hook++] = (tl_host_hook){when, f, ctx, t->part};
    return TL_OK;
}

tl_status tl_watch_at(tl_at at, tl_tensor x, double *to)
{
    tl_tape *t = at.tape;
    tl_tracing *s = t == NULL ? NULL : t->tracing;
    if (s == NULL) {
        *to = tl_item_at(at, x);
        return tl_failed(t) ? tl_error_status(t) : TL_OK;
    }
    const tl_value *v = tl_failed(t) ? NULL : tl_deref(at, x, "tl_watch");
    if (v == NULL)
        return tl_error_status(t);
    if (tl_array_count(&v->a) != 1)
        return tl_tape_fail(at, TL_ESHAPE, "tl_watch: a tensor of %lld elements; one is needed",
                            (long long)tl_array_count(&v->a));
    if (!room(&s->watch, s->n_watch, sizeof *s->watch))
        return tl_tape_fail(at, TL_ENOMEM, "tl_watch: no memory while tracing");
    at = tl_place(at);
    s->watch[s->n_watch++] = (tl_watch_entry){x, to, at.file, at.line, t->part};
    return TL_OK;
}
