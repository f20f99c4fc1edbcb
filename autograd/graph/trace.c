/* trace.c: the recorder of a trace. A trace is a tape without storage: it runs no op, and calls
 * that need contents are answered here. Beside the tape it keeps what each leaf stands for, and the
 * part of the program that each node belongs to. marks.c has its backward and gradients. */
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
    for (int i = 0; i < s->n_held; i++)
        tl_object_release(s->held[i]);
    tl_free_raw(s->held);
    tl_free_raw(s->bound);
    tl_free_raw(s->constant);
    tl_free_raw(s->hook);
    tl_free_raw(s->watch);
    tl_free_raw(s->missed);
    tl_free_raw(s);
}

static tl_status no_memory(tl_at at, const char *who)
{
    return tl_tape_fail(at, TL_ENOMEM, "%s: no memory while tracing", who);
}

/* ---- data beside a tape ---- */

/* Entry i of a table that grows as needed, its new entries zero; NULL, with an error on t, if there
 * is no memory. */
static void *entry(tl_tape *t, void *table, uint32_t *cap, uint32_t i, size_t size)
{
    char **p = table;
    if (tl_grow_to(table, cap, i, size))
        return *p + i * size;
    tl_fail(&t->head.err, TL_ENOMEM, "no memory for %zu bytes beside a trace", (2 * i + 64) * size);
    return NULL;
}

tl_leaf tl_leaf_of(const tl_tape *t, tl_tensor x)
{
    const tl_traced_tape *k = tl_traced_of(t);
    return x.owner == t->values.owner && x.index < k->cap_leaves ? k->leaf[x.index]
                                                                 : (tl_leaf){TL_LEAF_NONE, 0, 0};
}

int tl_node_part(const tl_tape *t, uint32_t node)
{
    const tl_traced_tape *k = tl_traced_of(t);
    return node < k->cap_nodes ? k->part_of[node] : 0;
}

int tl_grad_part(const tl_tape *t, int record)
{
    const tl_part_grads *p = &tl_traced_of(t)->grads;
    int part = p->n_parts - 1;
    while (p->first[part] > record) /* the first part begins with record 0 */
        part--;
    return part;
}

void tl_trace_take_gradients(tl_tape *dst, tl_tape *src)
{
    tl_part_grads *to = &tl_traced_of(dst)->grads, *from = &tl_traced_of(src)->grads, old = *to;
    tl_key_map_free(&dst->grad_at);
    dst->grad_at = src->grad_at;
    src->grad_at = (tl_key_map){0};
    dst->grad = src->grad;
    dst->n_grads = src->n_grads;
    dst->cap_grads = src->cap_grads;
    src->grad = NULL;
    src->n_grads = src->cap_grads = 0;
    *to = *from;
    *from = old; /* freed with src */
}

static void recorded(void *ctx, tl_tape *t, uint32_t node)
{
    tl_traced_tape *k = ctx;
    int *part = entry(t, &k->part_of, &k->cap_nodes, node, sizeof *part);
    if (part != NULL)
        *part = k->part;
}

static void forget(void *ctx, TL_UNUSED tl_tape *t)
{
    tl_traced_tape *k = ctx;
    if (k->cap_leaves > 0)
        memset(k->leaf, 0, k->cap_leaves * sizeof *k->leaf);
    k->n_seen = 0;
    k->wanted = 0;
}

static void freed(void *ctx, TL_UNUSED tl_tape *t)
{
    tl_traced_tape *k = ctx;
    tl_free_raw(k->leaf);
    tl_free_raw(k->part_of);
    tl_free_raw(k->grads.note);
    tl_free_raw(k->grads.first);
    tl_free_raw(k->changed);
    tl_free_raw(k);
}

/* Observers of the user's tape may replace what a vjp returns: here, for all runs. */
static void gave(void *ctx, tl_tape *t, const tl_given *g)
{
    tl_tape *user = ((tl_traced_tape *)ctx)->tracing->user;
    if (user != NULL) /* else the program is a pattern's */
        TL_TELL(user, gave, t, g);
}

uint64_t tl_trace_givers(const tl_tape *user)
{
    uint64_t h = 0;
    for (int i = 0; i < user->n_watchers; i++)
        if (user->watcher[i].o->gave != NULL)
            h = tl_mix(h, (uintptr_t)user->watcher[i].o);
    return h;
}

static const tl_observer beside = {.recorded = recorded,
                                   .gave = gave,
                                   .reset = forget,
                                   .freed = freed};

tl_tensor tl_trace_leaf(tl_tape *t, const tl_array *a, tl_leaf leaf)
{
    tl_traced_tape *k = tl_traced_of(t);
    tl_array shaped = *a;
    shaped.data = NULL;
    tl_tensor x = tl_handle(tl_tape_value(t, &shaped, NULL));
    tl_leaf *e = tl_is_none(x) ? NULL : entry(t, &k->leaf, &k->cap_leaves, x.index, sizeof *e);
    if (e == NULL)
        return TL_NONE;
    *e = leaf;
    if (leaf.kind == TL_LEAF_ACC) {
        tl_batch_set(tl_peek(t, x), TL_FREE);
        tl_peek(t, x)->lent = true;
    }
    if (leaf.kind == TL_LEAF_CONSTANT)
        tl_value_fix(tl_peek(t, x));
    return x;
}

/* ---- the recorder ---- */

static tl_tensor accumulator(TL_UNUSED void *ctx, tl_tape *t, const tl_array *a, uint32_t leaf,
                             uint32_t use)
{
    return tl_trace_leaf(t, a, (tl_leaf){TL_LEAF_ACC, leaf, use});
}

static bool accumulator_of(TL_UNUSED void *ctx, const tl_tape *t, tl_tensor x, uint32_t *leaf,
                           uint32_t *use)
{
    const tl_leaf l = tl_leaf_of(t, tl_bottom(t, x));
    *leaf = l.at;
    *use = l.use;
    return l.kind == TL_LEAF_ACC;
}

static int64_t last_change(void *ctx, tl_tape *t, tl_tensor x)
{
    tl_traced_tape *k = ctx;
    for (; k->n_seen < t->n_nodes; k->n_seen++) {
        const tl_node *n = &t->node[k->n_seen];
        for (int i = 0; i < n->n_in; i++) {
            tl_tensor y = tl_node_writes(n, i) ? tl_bottom(t, n->in[i]) : TL_NONE;
            if (tl_is_none(y) || y.owner == t->values.owner)
                continue;
            int32_t *last = entry(t, &k->changed, &k->n_changed, y.index, sizeof *last);
            if (last == NULL)
                return -1;
            *last = (int32_t)k->n_seen + 1;
        }
    }
    return x.index < k->n_changed ? (int64_t)k->changed[x.index] - 1 : -1;
}

static uint64_t origin(TL_UNUSED void *ctx, const tl_tape *t, tl_tensor x)
{
    const tl_leaf l = tl_leaf_of(t, x);
    return (uint64_t)l.kind << 32 | l.at;
}

static uint64_t fixed(void *ctx, tl_tape *t, tl_tensor x)
{
    const tl_tracing *s = ((tl_traced_tape *)ctx)->tracing;
    const tl_leaf l = tl_leaf_of(t, x);
    return l.kind == TL_LEAF_CONSTANT ? tl_derived_constant(t, &s->constant[l.at].a)
                                      : tl_derived_print(s->user, s->given[l.at]);
}

static tl_tensor constant(tl_at at, tl_tracing *s, const void *data, tl_array *a)
{
    const size_t bytes = tl_array_room(a);
    const bool room = tl_grow(&s->constant, &s->cap_constant, s->n_constant, sizeof *s->constant);
    tl_storage *st = room ? tl_storage_new(s->arena, bytes, false) : NULL;
    if (st == NULL)
        return no_memory(at, "tl_constant"), TL_NONE;
    if (bytes > 0)
        memcpy(st->data, data, bytes);
    a->data = st->data;
    s->constant[s->n_constant] = (tl_constant_leaf){*a, st};
    return tl_trace_leaf(at.tape, a, (tl_leaf){TL_LEAF_CONSTANT, (uint32_t)s->n_constant++, 0});
}

static tl_tensor bound(tl_at at, tl_tracing *s, const void *data, const tl_array *a)
{
    if (!tl_grow(&s->bound, &s->cap_bound, s->n_bound, sizeof *s->bound))
        return no_memory(at, "tl_bound"), TL_NONE;
    s->bound[s->n_bound] = *a;
    s->bound[s->n_bound].data = (void *)(uintptr_t)data; /* runs that change it copy it */
    return tl_trace_leaf(at.tape, a, (tl_leaf){TL_LEAF_BOUND, (uint32_t)s->n_bound++, 0});
}

static tl_tensor source(void *ctx, tl_at at, const char *who, tl_source kind, const void *data,
                        tl_dtype dtype, tl_shape shape)
{
    tl_tracing *s = ((tl_traced_tape *)ctx)->tracing;
    tl_array a = tl_array_make(dtype, &shape, NULL);
    if (kind == TL_SOURCE_CONSTANT)
        return constant(at, s, data, &a);
    if (kind == TL_SOURCE_BOUND)
        return bound(at, s, data, &a);
    tl_tape_fail(at, TL_ETRACED,
                 "%s: in a traced function it would stay what it is now; pass it as an input, or "
                 "use tl_bound or tl_constant (for one number in all places, tl_fill)",
                 who);
    return TL_NONE;
}

static tl_status unread(TL_UNUSED void *ctx, tl_at at, tl_tensor x, const char *who)
{
    return tl_tape_fail(at, TL_ETRACED,
                        "%s: value %u is part of a trace and has no contents to read; return it in "
                        "out[], or use tl_watch",
                        who, x.index);
}

static tl_status host(void *ctx, tl_at at, tl_host_when when, tl_host_fn *f, void *f_ctx)
{
    tl_traced_tape *k = ctx;
    tl_tracing *s = k->tracing;
    if (!tl_grow(&s->hook, &s->cap_hook, s->n_hook, sizeof *s->hook))
        return no_memory(at, "tl_host");
    s->hook[s->n_hook++] = (tl_host_hook){when, f, f_ctx, k->part};
    return TL_OK;
}

static tl_status hold(void *ctx, tl_at at, void *object)
{
    tl_tracing *s = ((tl_traced_tape *)ctx)->tracing;
    if (!tl_grow(&s->held, &s->cap_held, s->n_held, sizeof *s->held))
        return no_memory(at, "tl_host_hold");
    tl_object_hold(object);
    s->held[s->n_held++] = object;
    return TL_OK;
}

static tl_status watch(void *ctx, tl_at at, tl_tensor x, double *to)
{
    tl_traced_tape *k = ctx;
    tl_tracing *s = k->tracing;
    const tl_value *v = tl_deref(at, x, "tl_watch");
    if (v == NULL)
        return tl_error_status(at.tape);
    if (tl_array_count(&v->a) != 1)
        return tl_tape_fail(at, TL_ESHAPE, "tl_watch: a tensor of %lld elements; one is needed",
                            (long long)tl_array_count(&v->a));
    if (!tl_grow(&s->watch, &s->cap_watch, s->n_watch, sizeof *s->watch))
        return no_memory(at, "tl_watch");
    at = tl_place(at);
    s->watch[s->n_watch++] = (tl_watch_entry){x, to, at.file, at.line, k->part};
    return TL_OK;
}

static const tl_recorder tracer = {.source = source,
                                   .read = unread,
                                   .watch = watch,
                                   .host = host,
                                   .hold = hold,
                                   .backward = tl_trace_backward,
                                   .grad = tl_trace_grad,
                                   .grad_clear = tl_trace_clear,
                                   .accumulator = accumulator,
                                   .accumulator_of = accumulator_of,
                                   .last_change = last_change,
                                   .origin = origin,
                                   .constant = fixed};

bool tl_trace_on(tl_tape *t, tl_tracing *s)
{
    tl_traced_tape *k = tl_calloc(1, sizeof *k);
    if (k == NULL || tl_observe(t, &beside, k) != TL_OK) {
        tl_free_raw(k);
        return false;
    }
    k->tracing = s;
    tl_record_with(t, &tracer, k);
    tl_trace_part(t, 0);
    return !tl_failed(t);
}

tl_tape *tl_trace_tape(tl_tape *user, tl_tracing *s)
{
    tl_tape *t = tl_tape_bare(user->model, user->head.destroy);
    if (t == NULL)
        return NULL;
    t->now.mode = user->now.mode | TL_TRACE;
    t->limit = user->limit;
    t->calls = s->calls = s->clears_first ? 0 : user->calls;
    if (tl_derived_share(t, user) && tl_trace_on(t, s) && tl_choice_follow(t, user->now.choice))
        return t;
    tl_object_end(t);
    return NULL;
}
