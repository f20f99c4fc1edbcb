/* tape.c: making, resetting and reading tapes; modes and places. */
#include "autograd/internal.h"

#include <math.h>
#include <string.h>

#include "tensor/files/hash.h"
#include "tensor/print.h"
#include "tensor/threads.h"

static void tape_destroy(void *object);

tl_tape *tl_tape_bare(tl_model *m)
{
    tl_tape *t = tl_calloc(1, sizeof *t);
    if (t == NULL)
        return NULL;
    t->head.kind = TL_KIND_TAPE;
    t->head.destroy = tape_destroy;
    t->model = m;
    tl_object_hold(m);
    t->generation = 1;
    t->limit = 3;
    if (tl_values_init(&t->values) != TL_OK) {
        tape_destroy(t);
        return NULL;
    }
    return t;
}

tl_tape *tl_tape_new(tl_model *m)
{
    tl_tape *t = tl_tape_bare(m);
    if (t == NULL)
        return NULL;
    t->arena = tl_arena_new("tape");
    t->grad_arena = tl_arena_new("gradients");
    if (t->arena == NULL || t->grad_arena == NULL) {
        tape_destroy(t);
        return NULL;
    }
    tl_environment_check(&t->head.err);
    return t;
}

tl_model *tl_tape_model(const tl_tape *t) { return t == NULL ? NULL : t->model; }

static void release_values(tl_tape *t)
{
    uint32_t n = atomic_load(&t->values.count);
    for (uint32_t i = 0; i < n; i++)
        tl_storage_release(tl_values_at(&t->values, i)->st);
    atomic_store(&t->values.count, 0);
}

/* Gradients of this tape's own leaves end with it; those of parameters stay. */
static void drop_leaf_grads(tl_tape *t, bool all)
{
    int kept = 0;
    for (int i = 0; i < t->n_grads; i++) {
        tl_leaf_grad *g = &t->grad[i];
        if (!all && g->leaf.owner != t->values.owner) {
            t->grad[kept++] = *g;
            continue;
        }
        for (int k = 0; k < g->cap; k++)
            tl_storage_release(g->use[k].st);
        tl_free_raw(g->use);
    }
    t->n_grads = kept;
}

static void tape_destroy(void *object)
{
    tl_tape *t = object;
    TL_TELL(t, freed, t);
    tl_free_raw(t->watcher);
    if (t->values.chunk != NULL)
        release_values(t);
    drop_leaf_grads(t, true);
    tl_free_raw(t->grad);
    tl_values_free(&t->values);
    tl_free_raw(t->node);
    tl_free_raw(t->site);
    tl_choices_free(t);
    tl_bump_free(&t->bump);
    tl_arena_free(t->arena);
    tl_arena_free(t->grad_arena);
    tl_object_release(t->model);
    tl_free_raw(t);
}

void tl_tape_reset(tl_tape *t)
{
    if (t == NULL)
        return;
    TL_TELL(t, reset, t);
    release_values(t);
    drop_leaf_grads(t, false);
    t->n_nodes = 0;
    t->phase = 0;
    t->steps = 0;
    t->segments = NULL;
    tl_bump_reset(&t->bump);
    if (++t->generation == 0)
        t->generation = 1;
}

void tl_tape_limit(tl_tape *t, int steps)
{
    if (t != NULL)
        t->limit = steps > 0 ? steps : 0;
}

tl_status tl_tape_steps(tl_at at, int n)
{
    tl_tape *t = at.tape;
    if (tl_failed(t))
        return tl_error_status(t);
    if (n > 0 && t->limit > 0 && t->steps > t->limit - n)
        return tl_tape_fail(at, TL_EUSAGE,
                            "%d optimizer steps in one recording of %u nodes and %u values, where "
                            "%d are the limit: forgot tl_tape_reset? tl_tape_limit raises it",
                            t->steps + n, t->n_nodes, (unsigned)atomic_load(&t->values.count),
                            t->limit);
    t->steps += n > 0 && t->limit > 0 ? n : 0;
    return TL_OK;
}

int tl_mode_push(tl_tape *t, unsigned mode)
{
    const int depth = tl_mode_open(t, mode);
    if (mode != TL_INVARIANT || t == NULL || t->mode_depth == depth || t->choice == NULL)
        return depth;
    if (!tl_choice_open((tl_at){t, __FILE__, __LINE__}, NULL, TL_ANY_DTYPE, "invariant"))
        tl_mode_pop(t, depth);
    else
        t->mode &= ~(unsigned)TL_FAST;
    return depth;
}

int tl_mode_open(tl_tape *t, unsigned mode)
{
    if (t == NULL)
        return 0;
    int depth = t->mode_depth;
    if (depth == TL_MODE_DEPTH) {
        tl_fail(&t->head.err, TL_EUSAGE,
                "tl_mode_push: %d scopes are open, more than that looks like a missing tl_mode_pop",
                depth);
        return depth;
    }
    t->mode_stack[depth].mode = t->mode;
    t->mode_stack[depth].choice = t->choice;
    if (mode & TL_FAST &&
        !tl_choice_open((tl_at){t, __FILE__, __LINE__}, NULL, TL_ANY_DTYPE, "fast"))
        return depth;
    t->mode_depth++;
    t->mode |= mode;
    return depth;
}

void tl_mode_pop(tl_tape *t, int depth)
{
    if (t == NULL || depth < 0 || depth >= t->mode_depth)
        return;
    t->mode = t->mode_stack[depth].mode;
    t->choice = t->mode_stack[depth].choice;
    t->mode_depth = depth;
}

unsigned tl_mode(const tl_tape *t) { return t == NULL ? 0 : t->mode; }

bool tl_traced(const tl_tape *t) { return t != NULL && t->recorder != NULL; }

void tl_record_with(tl_tape *t, const tl_recorder *r, void *ctx)
{
    if (t == NULL || r == NULL)
        return;
    t->recorder = r;
    t->recorder_ctx = ctx;
    t->mode |= TL_TRACE;
}

tl_status tl_tape_fail(tl_at at, tl_status s, const char *fmt, ...)
{
    if (at.tape == NULL)
        return s;
    char text[TL_MESSAGE_MAX];
    va_list ap;
    va_start(ap, fmt);
    tl_err e = {.status = TL_OK};
    tl_vfail(&e, s, fmt, ap);
    va_end(ap);
    memcpy(text, e.message, sizeof text);
    at = tl_place(at);
    return tl_fail(&at.tape->head.err, s, "%.400s (%.90s:%d)", text,
                   at.file == NULL ? "?" : at.file, at.line);
}

tl_status tl_tape_need(tl_at at, const char *func, const char *what, bool there, int64_t n)
{
    tl_err e = {.status = TL_OK};
    return tl_need(&e, func, what, there, n) == TL_OK ? TL_OK
                                                      : tl_tape_fail(at, e.status, "%s", e.message);
}

tl_value *tl_model_value(const tl_model *m, tl_tensor x)
{
    if (m == NULL || x.owner != m->values.owner ||
        x.index >= atomic_load_explicit(&m->values.count, memory_order_acquire))
        return NULL;
    return tl_values_at(&m->values, x.index);
}

tl_value *tl_peek(const tl_tape *t, tl_tensor x)
{
    if (x.owner != t->values.owner)
        return tl_model_value(t->model, x);
    if (x.generation != t->generation || x.index >= atomic_load(&t->values.count))
        return NULL;
    return tl_values_at(&t->values, x.index);
}

tl_value *tl_deref_view(tl_at at, tl_tensor x, const char *who)
{
    tl_tape *t = at.tape;
    if (x.owner == 0) {
        tl_tape_fail(at, TL_ESTALE, "%s: given the handle of a call that failed or never happened",
                     who);
        return NULL;
    }
    tl_value *v = tl_peek(t, x);
    if (v == NULL && x.owner == t->values.owner)
        tl_tape_fail(
            at, TL_ESTALE,
            "%s: value %u was made before the tape was reset (its generation is %u, the tape's %u)",
            who, x.index, x.generation, t->generation);
    else if (v == NULL)
        tl_tape_fail(at, TL_ESTALE,
                     "%s: value %u belongs to another tape or model (owner %u; this tape is %u)",
                     who, x.index, x.owner, t->values.owner);
    else if (v->consumed)
        tl_tape_fail(at, TL_ESTALE,
                     "%s: value %u was changed in place; use the handle that call returned", who,
                     x.index),
            v = NULL;
    else if (v->freed)
        tl_tape_fail(at, TL_ESTALE,
                     "%s: value %u was freed by backward; copy it out before (tl_keep), or pass "
                     ".retain = true",
                     who, x.index),
            v = NULL;
    return v;
}

/* A value is what its memory held when it was made: where that is gone, so is the value. The
 * model's tensors and accumulators of gradients are variables: what shows them shows what they hold
 * now. */
tl_value *tl_deref(tl_at at, tl_tensor x, const char *who)
{
    tl_value *v = tl_deref_view(at, x, who);
    if (v == NULL || v->st == NULL || v->st->arena != at.tape->arena)
        return v;
    const tl_change *c = tl_storage_changed(v->st, v->born, &v->a);
    if (c == NULL)
        return v;
    tl_tape_fail(at, TL_EINPLACE,
                 "%s: value %u was changed in place through another view of its memory, by %s "
                 "(%.90s:%d); use what that call returned",
                 who, x.index, c->what, c->file == NULL ? "?" : c->file, c->line);
    return NULL;
}

tl_tensor tl_tape_value(tl_tape *t, const tl_array *a, tl_storage *st)
{
    uint32_t i;
    tl_value *v = tl_values_push(&t->values, &i);
    if (v == NULL) {
        tl_fail(&t->head.err, TL_ENOMEM, "no memory for the record of tensor %u",
                (unsigned)atomic_load(&t->values.count));
        return TL_NONE;
    }
    v->a = *a;
    v->st = st;
    if (st != NULL) {
        tl_storage_retain(st);
        v->born = st->version;
    }
    v->generation = t->generation;
    return (tl_tensor){t->values.owner, i, t->generation};
}

tl_status tl_data_check(const void *data, const char *c_type, tl_dtype dtype, const tl_shape *shape,
                        tl_err *err)
{
    char text[TL_SHAPE_TEXT];
    TL_TRY(tl_shape_check(shape, dtype, err));
    if (data == NULL && tl_shape_count(shape) > 0)
        return tl_fail(err, TL_EUSAGE,
                       "no data for %s %s; tl_zeros makes zeros, tl_fill any number",
                       tl_dtype_name(dtype), tl_shape_text(text, shape));
    return tl_c_type_check(c_type, dtype, err);
}

/* A leaf with a copy of data; of zeros without. */
static tl_tensor leaf(tl_at at, const char *who, tl_source kind, const void *data, tl_dtype dtype,
                      tl_shape shape)
{
    tl_tape *t = at.tape;
    if (t->recorder != NULL)
        return t->recorder->source(t->recorder_ctx, at, who, kind, data, dtype, shape);
    tl_array a = tl_array_make(dtype, &shape, NULL);
    if (t->mode & TL_TRACE)
        return tl_tape_value(t, &a, NULL);
    size_t bytes = (size_t)tl_shape_count(&shape) * tl_dtype_size(dtype);
    tl_storage *st = tl_storage_new(t->arena, bytes, data == NULL);
    if (st == NULL) {
        tl_tape_fail(at, TL_ENOMEM, "%s: no memory for %zu bytes", who, bytes);
        return TL_NONE;
    }
    if (data != NULL && bytes)
        memcpy(st->data, data, bytes);
    a.data = st->data;
    tl_tensor x = tl_tape_value(t, &a, st);
    tl_storage_release(st);
    return x;
}

static tl_tensor from_host(tl_at at, const char *who, tl_source kind, const void *data,
                           const char *c_type, tl_dtype dtype, tl_shape shape)
{
    tl_err e = {.status = TL_OK};
    if (tl_failed(at.tape))
        return TL_NONE;
    if (tl_data_check(data, c_type, dtype, &shape, &e) == TL_OK)
        return leaf(at, who, kind, data, dtype, shape);
    tl_tape_fail(at, e.status, "%s: %.400s", who, e.message);
    return TL_NONE;
}

tl_tensor tl_data_tape_at(tl_tape *t, const void *data, const char *c_type, tl_dtype dtype,
                          tl_shape shape, const char *file, int line)
{
    return from_host((tl_at){t, file, line}, "tl_data", TL_SOURCE_DATA, data, c_type, dtype, shape);
}

tl_tensor tl_constant_at(tl_at at, const void *data, const char *c_type, tl_dtype dtype,
                         tl_shape shape)
{
    return from_host(at, "tl_constant", TL_SOURCE_CONSTANT, data, c_type, dtype, shape);
}

tl_tensor tl_bound_at(tl_at at, const void *data, const char *c_type, tl_dtype dtype,
                      tl_shape shape)
{
    return from_host(at, "tl_bound", TL_SOURCE_BOUND, data, c_type, dtype, shape);
}

tl_tensor tl_zeros_tape_at(tl_tape *t, tl_dtype dtype, tl_shape shape, const char *file, int line)
{
    tl_at at = {t, file, line};
    tl_err e = {.status = TL_OK};
    if (tl_failed(t))
        return TL_NONE;
    if (tl_shape_check(&shape, dtype, &e) != TL_OK) {
        tl_tape_fail(at, e.status, "tl_zeros: %.400s", e.message);
        return TL_NONE;
    }
    return leaf(at, "tl_zeros", TL_SOURCE_DATA, NULL, dtype, shape);
}

tl_status tl_host(tl_tape *t, tl_host_when when, tl_host_fn *f, void *ctx)
{
    if (tl_failed(t))
        return tl_error_status(t);
    TL_TRY(TL_NEED_AT(TL_AT(t), f));
    if (when != TL_BEFORE && when != TL_AFTER)
        return tl_tape_fail(TL_AT(t), TL_EDOMAIN, "tl_host: %d is neither TL_BEFORE nor TL_AFTER",
                            (int)when);
    if (t->recorder != NULL)
        return t->recorder->host(t->recorder_ctx, TL_AT(t), when, f, ctx);
    f(t, ctx);
    return tl_failed(t) ? tl_error_status(t) : TL_OK;
}

tl_status tl_host_hold(tl_tape *t, void *object)
{
    if (tl_failed(t))
        return tl_error_status(t);
    return t->recorder == NULL ? TL_OK : t->recorder->hold(t->recorder_ctx, TL_AT(t), object);
}

tl_status tl_watch_at(tl_at at, tl_tensor x, double *to)
{
    tl_tape *t = at.tape;
    TL_TRY(TL_NEED_AT(at, to));
    if (t != NULL && t->recorder != NULL)
        return tl_failed(t) ? tl_error_status(t) : t->recorder->watch(t->recorder_ctx, at, x, to);
    *to = tl_item_at(at, x);
    return tl_failed(t) ? tl_error_status(t) : TL_OK;
}

tl_tensor tl_scalar_at(tl_at at, tl_dtype dtype, double value)
{
    tl_fill_attrs a = {TL_SCALAR, dtype, value};
    return tl_apply1(at, &tl_op_fill, &a, NULL, 0);
}

tl_value *tl_readable(tl_at at, tl_tensor x, const char *who)
{
    if (tl_failed(at.tape))
        return NULL;
    tl_value *v = tl_deref(at, x, who);
    if (v != NULL && v->dropped) {
        tl_tape_fail(at, TL_ESTALE, "%s: value %u was dropped by a segment; list it in keep", who,
                     x.index);
        return NULL;
    }
    const tl_recorder *r = at.tape->recorder;
    if (v != NULL && r != NULL && r->read(at.tape->recorder_ctx, at, x, who) != TL_OK)
        return NULL;
    if (v != NULL && v->st == NULL) {
        tl_tape_fail(at, TL_ETRACED, "%s: value %u was recorded without contents (TL_TRACE)", who,
                     x.index);
        return NULL;
    }
    return v;
}

double tl_item_at(tl_at at, tl_tensor x)
{
    tl_value *v = tl_readable(at, x, "tl_item");
    if (v == NULL)
        return (double)NAN;
    if (tl_array_count(&v->a) != 1) {
        char text[TL_SHAPE_TEXT];
        tl_tape_fail(at, TL_ESHAPE, "tl_item: a tensor of shape %s does not have one element",
                     tl_array_shape_text(text, &v->a));
        return (double)NAN;
    }
    tl_fpenv saved = tl_fpenv_enter(); /* a subnormal is widened, too */
    double first = tl_array_get(&v->a, 0);
    tl_fpenv_leave(saved);
    return first;
}

tl_status tl_keep_at(tl_at at, tl_tensor x, void *out, size_t bytes)
{
    tl_tape *t = at.tape;
    tl_value *v = tl_readable(at, x, "tl_keep");
    if (v == NULL)
        return tl_error_status(t);
    size_t want = (size_t)tl_array_count(&v->a) * tl_dtype_size(v->a.dtype);
    if (bytes != want)
        return tl_tape_fail(at, TL_ESHAPE, "tl_keep: the tensor has %zu bytes, the room given %zu",
                            want, bytes);
    TL_TRY(TL_NEED_N_AT(at, out, want > 0));
    tl_shape s = tl_array_shape(&v->a);
    tl_array dst = tl_array_make(v->a.dtype, &s, out);
    tl_array_copy(&dst, &v->a);
    return TL_OK;
}

/* x is a tensor of the model, or a view of one that shows each element once. */
static bool of_model(const tl_tape *t, tl_tensor x)
{
    while (x.owner == t->values.owner) {
        const tl_value *v = tl_peek(t, x);
        const tl_op *op = v != NULL && v->node >= 0 ? t->node[v->node].op : NULL;
        if (op == NULL || !(op->traits & TL_VIEW) || op->traits & TL_REPEATS)
            return false;
        x = t->node[v->node].in[0];
    }
    return true;
}

/* Both in memory: x is copied now, and nothing recorded. */
static tl_status assign_now(tl_at at, tl_value *d, const tl_value *v)
{
    tl_err err = {.status = TL_OK};
    tl_array out = d->a;
    tl_call c = {.op = &tl_op_assign,
                 .n_in = 2,
                 .n_out = 1,
                 .in = (const tl_array *[]){&d->a, &v->a},
                 .out = &out,
                 .arena = at.tape->arena,
                 .err = &err};
    if (tl_op_run(&c) != TL_OK)
        return tl_tape_fail(at, err.status, "tl_%.400s", err.message);
    d->st->version++;
    return TL_OK;
}

tl_status tl_assign_at(tl_at at, tl_tensor dst, tl_tensor x)
{
    tl_tape *t = at.tape;
    if (tl_failed(t))
        return tl_error_status(t);
    tl_value *(*find)(tl_at, tl_tensor, const char *) = t->recorder != NULL ? tl_deref
                                                                            : tl_readable;
    tl_value *v = find(at, x, "tl_assign"), *d = v == NULL ? NULL : find(at, dst, "tl_assign");
    if (d == NULL)
        return tl_error_status(t);
    if (!of_model(t, dst))
        return tl_tape_fail(at, TL_EUSAGE,
                            "tl_assign: only tensors of the model and views of them can be "
                            "written; value %u is the tape's",
                            dst.index);
    char a[TL_SHAPE_TEXT], b[TL_SHAPE_TEXT];
    if (!tl_array_same_shape(&d->a, &v->a) || d->a.dtype != v->a.dtype)
        return tl_tape_fail(at, TL_ESHAPE, "tl_assign: %s %s cannot be written into %s %s",
                            tl_array_shape_text(a, &v->a), tl_dtype_name(v->a.dtype),
                            tl_array_shape_text(b, &d->a), tl_dtype_name(d->a.dtype));
    if (t->recorder == NULL)
        return assign_now(at, d, v);
    tl_apply1(at, &tl_op_assign, NULL, (tl_tensor[]){dst, x}, 2);
    return tl_error_status(t);
}

tl_status tl_print_at(tl_at at, FILE *f, tl_tensor x)
{
    tl_tape *t = at.tape;
    tl_value *v = tl_readable(at, x, "tl_print");
    if (v == NULL)
        return tl_error_status(t);
    TL_TRY(TL_NEED_AT(at, f));
    return tl_array_print(f, &v->a, &t->head.err);
}

tl_status tl_sha256_at(tl_at at, tl_tensor x, char hex[65])
{
    tl_tape *t = at.tape;
    TL_TRY(TL_NEED_AT(at, hex));
    tl_value *v = tl_readable(at, x, "tl_sha256");
    hex[0] = '\0';
    if (v == NULL)
        return tl_error_status(t);
    tl_sha256_ctx h;
    TL_TRY(tl_sha256_begin(&h, &t->head.err));
    tl_hash_array(&h, &v->a);
    return tl_sha256_finish_hex(&h, hex, &t->head.err);
}

bool tl_usable(tl_at at, tl_tensor x, const char *who)
{
    return !tl_failed(at.tape) && tl_deref_view(at, x, who) != NULL;
}

tl_shape tl_shape_of(tl_tape *t, tl_tensor x)
{
    tl_value *v = tl_failed(t) ? NULL : tl_peek(t, x);
    return v == NULL ? (tl_shape){0} : tl_array_shape(&v->a);
}

tl_dtype tl_dtype_of(tl_tape *t, tl_tensor x)
{
    tl_value *v = tl_failed(t) ? NULL : tl_peek(t, x);
    return v == NULL ? TL_F32 : v->a.dtype;
}

bool tl_array_of(tl_tape *t, tl_tensor x, tl_array *out)
{
    tl_value *v = tl_failed(t) ? NULL : tl_peek(t, x);
    if (v != NULL && out != NULL)
        *out = v->a;
    return v != NULL && out != NULL;
}

tl_status tl_require_grad_at(tl_at at, tl_tensor x)
{
    tl_tape *t = at.tape;
    tl_value *v = tl_failed(t) ? NULL : tl_deref(at, x, "tl_require_grad");
    if (v == NULL)
        return tl_error_status(t);
    if (x.owner != t->values.owner || v->node >= 0 || !tl_dtype_is_float(v->a.dtype))
        return tl_tape_fail(at, TL_EUSAGE,
                            "tl_require_grad: value %u is not a floating leaf of this tape",
                            x.index);
    v->needs_grad = true;
    return TL_OK;
}

tl_tape_memory tl_memory_stats(const tl_tape *t)
{
    if (t == NULL)
        return (tl_tape_memory){0};
    tl_tape_memory m = {.tape = tl_arena_stats(t->arena),
                        .gradients = tl_arena_stats(t->grad_arena),
                        .nodes = t->n_nodes,
                        .values = atomic_load(&t->values.count)};
    m.records = t->n_nodes * sizeof *t->node + tl_bump_used(&t->bump);
    if (t->model != NULL)
        m.model = tl_arena_stats(t->model->arena);
    return m;
}
