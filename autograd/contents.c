/* contents.c: data into a tape, and numbers out of it; writing into the model; detaching. While a
 * program is traced the recorder answers in place of memory. */
#include <math.h>
#include <string.h>

#include "autograd/batch.h"
#include "tensor/files/hash.h"
#include "tensor/print.h"

#define UNSAID "%s: the recorder refuses it and does not say why"

/* Makes a leaf: a copy of data, of which the compiler knows c, or zeros. */
static tl_tensor leaf(tl_at at, const char *who, tl_source kind, bool zeros, const void *data,
                      tl_c_data c, tl_dtype dtype, tl_shape shape)
{
    tl_tape *t = at.tape;
    tl_err e = {.status = TL_OK};
    tl_array a;
    size_t bytes;
    if (tl_failed(t))
        return TL_NONE;
    if (tl_shape_lay(&shape, dtype, &a, &bytes, &e) != TL_OK ||
        (!zeros && tl_data_check(data, c, &a, &e) != TL_OK)) {
        tl_tape_fail(at, e.status, "%s: %s", who, e.message);
        return TL_NONE;
    }
    if (t->recorder != NULL) {
        const tl_tensor x = t->recorder->source(t->recorder_ctx, at, who, kind, data, dtype,
                                                tl_array_shape(&a));
        if (tl_is_none(x))
            tl_tape_fail(at, TL_EUSAGE, UNSAID, who);
        return x;
    }
    if (t->now.mode & TL_TRACE)
        return tl_handle(tl_tape_value(t, &a, NULL));
    tl_storage *st = tl_storage_new(t->arena, bytes, data == NULL);
    if (st == NULL) {
        tl_tape_fail(at, tl_storage_lack(bytes, &e), "%s: %s", who, e.message);
        return TL_NONE;
    }
    if (data != NULL && bytes)
        memcpy(st->data, data, bytes);
    a.data = st->data;
    tl_value *v = tl_tape_value(t, &a, st);
    if (kind == TL_SOURCE_CONSTANT && v != NULL)
        tl_value_fix(v);
    tl_storage_release(st);
    return tl_handle(v);
}

tl_tensor tl_data_tape_at(tl_tape *t, const void *data, tl_c_data c, tl_dtype dtype, tl_shape shape,
                          const char *file, int line)
{
    return leaf((tl_at){t, file, line, NULL}, "tl_data", TL_SOURCE_DATA, false, data, c, dtype,
                shape);
}

tl_tensor tl_constant_at(tl_at at, const void *data, tl_c_data c, tl_dtype dtype, tl_shape shape)
{
    return leaf(at, "tl_constant", TL_SOURCE_CONSTANT, false, data, c, dtype, shape);
}

tl_tensor tl_bound_at(tl_at at, const void *data, tl_c_data c, tl_dtype dtype, tl_shape shape)
{
    return leaf(at, "tl_bound", TL_SOURCE_BOUND, false, data, c, dtype, shape);
}

tl_tensor tl_zeros_tape_at(tl_tape *t, tl_dtype dtype, tl_shape shape, const char *file, int line)
{
    return leaf((tl_at){t, file, line, NULL}, "tl_zeros", TL_SOURCE_DATA, true, NULL,
                (tl_c_data){0}, dtype, shape);
}

tl_status tl_host_hold(tl_tape *t, void *object)
{
    TL_TRY(tl_error_status(t));
    return t->recorder == NULL ? TL_OK : t->recorder->hold(t->recorder_ctx, TL_AT(t), object);
}

tl_status tl_watch_at(tl_at at, tl_tensor x, double *to)
{
    const tl_tape *t = at.tape;
    TL_TRY(TL_NEED_AT(at, to));
    if (tl_traced(t))
        return tl_failed(t) ? tl_error_status(t) : t->recorder->watch(t->recorder_ctx, at, x, to);
    *to = tl_item_at((tl_at){at.tape, at.file, at.line, "tl_watch"}, x);
    return tl_error_status(t);
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
    const tl_status s = v == NULL || r == NULL ? TL_OK : r->read(at.tape->recorder_ctx, at, x, who);
    if (s != TL_OK)
        return tl_tape_fail(at, s, UNSAID, who), NULL;
    if (v != NULL && v->st == NULL) {
        tl_tape_fail(at, TL_ETRACED, "%s: value %u was recorded without contents (TL_TRACE)", who,
                     x.index);
        return NULL;
    }
    return v;
}

/* After a call that only reads, whose status is s: an error of it makes no gradient lack anything.
 */
static tl_status has_read(tl_tape *t, bool failed_before, tl_status s)
{
    if (!failed_before && t->head.err.status != TL_OK && t->telling == 0 &&
        !(t->now.phase & TL_PHASE_BACKWARD)) /* else it stops what is under way */
        t->only_read = true;
    return s;
}

static double item(tl_at at, tl_tensor x)
{
    tl_value *v = tl_readable(at, x, "tl_item");
    if (v == NULL)
        return (double)NAN;
    if (tl_array_count(&v->a) != 1) {
        tl_tape_fail(at, TL_ESHAPE, "tl_item: a tensor of shape %s does not have one element",
                     TL_TEXT(&v->a));
        return (double)NAN;
    }
    return tl_array_get(&v->a, 0);
}

double tl_item_at(tl_at at, tl_tensor x)
{
    const bool failed = tl_failed(at.tape);
    const double value = item(at, x);
    has_read(at.tape, failed, TL_OK);
    return value;
}

static tl_status keep(tl_at at, tl_tensor x, void *out, tl_c_data c, size_t bytes)
{
    tl_value *v = tl_readable(at, x, "tl_keep");
    if (v == NULL)
        return tl_error_status(at.tape);
    size_t want = tl_array_room(&v->a);
    if (bytes != want)
        return tl_tape_fail(at, TL_ESHAPE, "tl_keep: the tensor has %zu bytes, the room given %zu",
                            want, bytes);
    const bool real = c.type != NULL &&
                      (strncmp(c.type, "float", 5) == 0 || strncmp(c.type, "double", 6) == 0);
    tl_err e = {.status = TL_OK};
    if (real && tl_c_data_check(c, v->a.dtype, want, &e) != TL_OK) /* integers take any bits */
        return tl_tape_fail(at, e.status, "tl_keep: %s", e.message);
    TL_TRY(tl_tape_need(at, "tl_keep", "out", out != NULL, want > 0));
    tl_shape s = tl_array_shape(&v->a);
    tl_array dst = tl_array_make(v->a.dtype, &s, out);
    tl_array_copy(&dst, &v->a);
    return TL_OK;
}

tl_status tl_keep_at(tl_at at, tl_tensor x, void *out, tl_c_data c, size_t bytes)
{
    const bool failed = tl_failed(at.tape);
    return has_read(at.tape, failed, keep(at, x, out, c, bytes));
}

/* Whether x is a tensor of the model, or a view of one without repeats. */
static bool of_model(const tl_tape *t, tl_tensor x)
{
    return tl_behind(t, x, TL_VIEW, TL_REPEATS).owner != t->values.owner;
}

/* Outside a trace: copies x at once and records nothing. */
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
        return tl_tape_fail(at, err.status, "tl_%s", err.message);
    at = tl_place(at);
    tl_storage_note(d->st, (tl_changer){tl_op_assign.name, at.file, at.line}, NULL);
    return TL_OK;
}

tl_status tl_assign_at(tl_at at, tl_tensor dst, tl_tensor x)
{
    tl_tape *t = at.tape;
    TL_TRY(tl_error_status(t));
    tl_value *(*find)(tl_at, tl_tensor, const char *) = t->recorder != NULL ? tl_deref
                                                                            : tl_readable;
    tl_value *v = find(at, x, "tl_assign"), *d = v == NULL ? NULL : find(at, dst, "tl_assign");
    if (d == NULL)
        return tl_error_status(t);
    if (!of_model(t, dst))
        return tl_tape_fail(at, TL_EUSAGE,
                            "tl_assign: only tensors of the model and views of them can be "
                            "written; value %u %s",
                            dst.index,
                            tl_behind(t, dst, TL_VIEW, 0).owner == t->values.owner
                                ? "is the tape's"
                                : "shows elements more than once");
    if (!tl_array_same_shape(&d->a, &v->a) || d->a.dtype != v->a.dtype)
        return tl_tape_fail(at, TL_ESHAPE, "tl_assign: %s %s cannot be written into %s %s",
                            TL_TEXT(&v->a), tl_dtype_name(v->a.dtype), TL_TEXT(&d->a),
                            tl_dtype_name(d->a.dtype));
    if (t->inside != NULL)
        return tl_tape_fail(at, TL_EUSAGE, "tl_assign: called inside %s", t->inside);
    TL_TRY(tl_batch_assigns(at, dst, x));
    if (t->recorder == NULL)
        return assign_now(at, d, v);
    tl_apply1(at, &tl_op_assign, NULL, (tl_tensor[]){dst, x}, 2);
    return tl_error_status(t);
}

static tl_status print(tl_at at, FILE *f, tl_tensor x)
{
    tl_tape *t = at.tape;
    tl_value *v = tl_readable(at, x, "tl_print");
    if (v == NULL)
        return tl_error_status(t);
    TL_TRY(tl_tape_need(at, "tl_print", "f", f != NULL, 1));
    tl_err err = {.status = TL_OK};
    if (tl_array_print(f, &v->a, &err) != TL_OK)
        return tl_tape_fail(at, err.status, "tl_%s", err.message);
    return TL_OK;
}

tl_status tl_print_at(tl_at at, FILE *f, tl_tensor x)
{
    const bool failed = tl_failed(at.tape);
    return has_read(at.tape, failed, print(at, f, x));
}

static tl_status digest(tl_at at, tl_tensor x, char hex[65])
{
    tl_tape *t = at.tape;
    TL_TRY(tl_tape_need(at, "tl_sha256", "hex", hex != NULL, 1));
    tl_value *v = tl_readable(at, x, "tl_sha256");
    hex[0] = '\0';
    if (v == NULL)
        return tl_error_status(t);
    tl_sha256_ctx h;
    TL_TRY(tl_sha256_begin(&h, &t->head.err));
    tl_hash_array(&h, &v->a);
    return tl_sha256_finish_hex(&h, hex, &t->head.err);
}

tl_status tl_sha256_at(tl_at at, tl_tensor x, char hex[65])
{
    const bool failed = tl_failed(at.tape);
    return has_read(at.tape, failed, digest(at, x, hex));
}

bool tl_usable(tl_at at, tl_tensor x, const char *who)
{
    return !tl_failed(at.tape) && tl_look_up(at, x, who, TL_VIEWS) != NULL;
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
    tl_changer by;
    if (v == NULL || out == NULL)
        return false;
    const bool changed = v->st != NULL && v->st->arena == t->arena && v->st->version != v->born &&
                         tl_storage_changed(v->st, v->born, &v->a, &by);
    if (v->st != NULL)
        tl_storage_settle(v->st);
    *out = v->a;
    out->data = v->st == NULL || changed ? NULL : out->data;
    return true;
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
    t->late |= !v->needs_grad && t->n_nodes > 0 &&
               t->node[t->n_nodes - 1].out > x.index; /* perhaps it has been used */
    v->needs_grad = true;
    tl_batch_unfix(t, v);
    return TL_OK;
}

tl_tensor tl_detach_at(tl_at at, tl_tensor x)
{
    tl_tape *t = at.tape;
    const tl_value *v = tl_failed(t) ? NULL : tl_look_up(at, x, "tl_detach", TL_VIEWS);
    if (v != NULL && v->dropped)
        tl_tape_fail(at, TL_ESTALE, "tl_detach: value %u was dropped by a segment; list it in keep",
                     x.index);
    tl_value *d = v == NULL || v->dropped ? NULL : tl_tape_value(t, &v->a, v->st);
    if (d == NULL)
        return TL_NONE;
    tl_batch_like(d, v);
    d->kept = v->kept;
    if (x.owner == t->values.owner) /* a tensor of the model is a variable (NUMERICS 10.5) */
        d->born = v->born;
    d->fixed = v->fixed;
    d->detached = v->fixed ? x : TL_NONE;
    if (t->now.phase & TL_PHASE_BACKWARD || t->recorder != NULL) {
        d->source = x;
        d->bottom = tl_bottom(t, x);
    }
    return d->self;
}

tl_status tl_write(tl_model *m, tl_tensor dst, const void *data, size_t bytes)
{
    TL_TRY(tl_error_begin(m));
    tl_value *v = tl_model_value(m, dst);
    if (v == NULL)
        return tl_fail(&m->head.err, TL_ESTALE, "tl_write: not a tensor of this model");
    if (v->st->bytes != bytes)
        return tl_fail(&m->head.err, TL_ESHAPE, "tl_write: the tensor has %zu bytes, given %zu",
                       v->st->bytes, bytes);
    TL_TRY(TL_NEED_N(&m->head.err, data, bytes > 0));
    tl_err e = {.status = TL_OK};
    if (tl_data_check(data, (tl_c_data){0}, &v->a, &e) != TL_OK)
        return tl_fail(&m->head.err, e.status, "tl_write: %s", e.message);
    if (bytes)
        memmove(v->a.data, data, bytes);
    tl_storage_note(v->st, (tl_changer){.what = "tl_write"}, NULL);
    return TL_OK;
}
