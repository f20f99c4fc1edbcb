/* shadow.c: re-running a recorded function in f64 with its leaves moved. */
#include "autograd/check/shadow.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void tl_shadow_nudge(const tl_array *a, int seed)
{
    for (int64_t i = 0; tl_dtype_is_float(a->dtype) && i < tl_array_count(a); i++)
        tl_array_put(a, i, tl_array_get(a, i) * (1 - ((i + seed) % 2 ? 1e-3 : 2e-3)));
}

tl_status tl_shadow_usable(tl_at at, const char *who, tl_function *f, const tl_tensor *in, int n)
{
    if (tl_mode(at.tape) & TL_TRACE)
        return tl_tape_fail(at, TL_ETRACED, "%s: reads values, which a traced function has not",
                            who);
    if (f == NULL)
        return tl_tape_fail(at, TL_EUSAGE, "%s: there is no function: it is NULL", who);
    if (n < 0 || (n > 0 && in == NULL))
        return tl_tape_fail(at, TL_EUSAGE, "%s: %d inputs%s", who, n,
                            n < 0 ? "" : " are announced, but their array is NULL");
    return TL_OK;
}

static tl_status copy_input(tl_at at, const char *what, tl_tensor x, bool grads, tl_tape *on,
                            tl_tensor *copy)
{
    const tl_value *v = tl_readable(at, x, what);
    if (v == NULL)
        return tl_error_status(at.tape);
    *copy = tl_zeros(on, v->a.dtype, tl_array_shape(&v->a));
    if (tl_is_none(*copy))
        return tl_error_status(on);
    tl_array_copy(&tl_peek(on, *copy)->a, &v->a);
    return grads && tl_dtype_is_float(v->a.dtype) ? tl_require_grad(on, *copy) : TL_OK;
}

tl_status tl_shadow_record(tl_at at, const char *who, tl_function *f, const tl_tensor *in, int n,
                           void *ctx, bool grads, tl_tape *on, tl_tensor *copies, tl_tensor *y,
                           tl_err *err)
{
    char what[64];
    tl_status s = TL_OK;
    for (int i = 0; i < n && s == TL_OK; i++) {
        snprintf(what, sizeof what, "%s: input %d", who, i);
        s = copy_input(at, what, in[i], grads, on, &copies[i]);
    }
    if (s == TL_OK)
        *y = f(on, copies, n, ctx);
    snprintf(what, sizeof what, "%s: the function's result", who);
    const tl_tape *failed = tl_failed(at.tape) ? at.tape : on;
    if (!tl_failed(failed) && tl_readable((tl_at){on, at.file, at.line, NULL}, *y, what) != NULL)
        return TL_OK;
    return tl_fail(err, tl_error_status(failed), "%.400s", tl_error(failed));
}

static tl_shadow_leaf *find(const tl_shadow *s, tl_tensor x)
{
    for (int i = 0; i < s->n_leaves; i++)
        if (s->leaf[i].handle.owner == x.owner && s->leaf[i].handle.index == x.index)
            return &s->leaf[i];
    return NULL;
}

static tl_status add_leaf(tl_shadow *s, tl_tensor x, bool checked, const char *name)
{
    const tl_value *v = tl_peek(s->rec, x);
    if (v == NULL || !tl_dtype_is_float(v->a.dtype) || find(s, x) != NULL)
        return TL_OK;
    tl_shadow_leaf *grown = tl_realloc(s->leaf, (size_t)(s->n_leaves + 1) * sizeof *grown);
    if (grown == NULL)
        return tl_fail(&s->err, TL_ENOMEM, "no memory for %d leaves", s->n_leaves + 1);
    s->leaf = grown;
    tl_shadow_leaf *l = &grown[s->n_leaves++];
    *l = (tl_shadow_leaf){.handle = x,
                          .checked = checked,
                          .shape = tl_array_shape(&v->a),
                          .n = tl_array_count(&v->a)};
    snprintf(l->name, sizeof l->name, "%s", name);
    l->x = tl_calloc((size_t)l->n * 6, sizeof *l->x);
    if (l->x == NULL)
        return tl_fail(&s->err, TL_ENOMEM, "no memory for leaf '%.90s' of %lld elements", name,
                       (long long)l->n);
    l->g64 = l->x + l->n;
    l->g = l->g64 + l->n;
    l->sway = l->g + l->n;
    l->noise = l->sway + l->n;
    l->noise64 = l->noise + l->n;
    for (int64_t i = 0; i < l->n; i++)
        l->x[i] = tl_array_get(&v->a, i);
    return TL_OK;
}

/* A parameter is checked when it takes gradients; other tensors of the model are constants. */
static tl_status add_other(tl_shadow *s, tl_tensor x)
{
    const tl_value *v = tl_peek(s->rec, x);
    bool of_model = x.owner != s->rec->values.owner;
    return add_leaf(s, x, of_model && v->needs_grad,
                    of_model ? tl_leaf_name(s->rec, x) : "(a constant)");
}

tl_status tl_shadow_leaves(tl_shadow *s, const tl_tensor *in, int n, bool check_inputs)
{
    uint32_t *order, count;
    char name[32];
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "input %d", i);
        TL_TRY(add_leaf(s, in[i], check_inputs, name));
    }
    if (tl_canonical_order(s->rec, s->y, TL_TO_ALL, &order, &count) != TL_OK)
        return tl_fail(&s->err, TL_ENOMEM, "no memory to order the nodes");
    for (uint32_t i = 0; i < count; i++) {
        const tl_node *node = &s->rec->node[order[i]];
        for (int k = 0; k < node->n_in; k++) {
            const tl_value *v = tl_is_none(node->in[k]) ? NULL : tl_peek(s->rec, node->in[k]);
            if (v != NULL && v->node < 0)
                TL_TRY(add_other(s, node->in[k]));
        }
    }
    s->now = tl_calloc((size_t)s->n_leaves + 1, sizeof *s->now);
    return s->now == NULL ? tl_fail(&s->err, TL_ENOMEM, "no memory for %d leaves", s->n_leaves)
                          : TL_OK;
}

void tl_shadow_free(tl_shadow *s)
{
    for (int i = 0; i < s->n_leaves; i++)
        tl_free_raw(s->leaf[i].x);
    tl_free_raw(s->leaf);
    tl_free_raw(s->now);
    tl_free_raw(s->cotangent);
    tl_free_raw(s->copies);
    tl_object_end(s->rec);
    tl_object_end(s->run);
}

/* Every element of a value times 1 + unit or 1 - unit, as chance has it. */
static void roll(tl_shadow *s, tl_tensor x, double unit)
{
    tl_array a;
    const tl_rng_key key = tl_rng_stream((uint64_t)s->roll, "roundings");
    bool there = !tl_is_none(x) && tl_array_of(s->run, x, &a) && a.dtype == TL_F64;
    for (int64_t i = 0; there && i < tl_array_count(&a); i++) {
        bool up = tl_rng_uniform64(key, 0, s->rolled++) < 0.5;
        *(double *)tl_array_at(&a, i) *= up ? 1 + unit : 1 - unit;
    }
}

/* Leaf map of the re-run: f64 copies of floats, or copies in their own dtype; everything else
 * copied as it is. */
static tl_tensor leaf_now(void *ctx, tl_tensor x)
{
    tl_shadow *s = ctx;
    tl_shadow_leaf *l = find(s, x);
    const tl_value *v = tl_peek(s->rec, x);
    if (l == NULL) {
        if (v == NULL || x.owner != s->rec->values.owner)
            return x; /* integers of the model stay where they are */
        tl_tensor c = tl_zeros(s->run, v->a.dtype, tl_array_shape(&v->a));
        if (!tl_is_none(c))
            tl_array_copy(&tl_peek(s->run, c)->a, &v->a);
        return c;
    }
    tl_tensor *now = &s->now[l - s->leaf];
    if (tl_is_none(*now)) {
        *now = s->own ? tl_zeros(s->run, v->a.dtype, l->shape)
                      : tl_data(s->run, l->x, TL_F64, l->shape);
        for (int64_t i = 0; s->own && !tl_is_none(*now) && i < l->n; i++)
            tl_array_put(&tl_peek(s->run, *now)->a, i, l->x[i]);
        if (s->roll > 0)
            roll(s, *now, tl_unit_of(v->a.dtype));
        if (l->checked && s->with_grad)
            tl_require_grad(s->run, *now);
    }
    return *now;
}

/* On a run with rolls, results move by a unit of what they were recorded in. */
static void roll_results(void *ctx, const tl_node *n, const tl_tensor *out)
{
    tl_shadow *s = ctx;
    for (int i = 0; s->roll > 0 && !(n->op->traits & TL_VIEW) && i < n->n_out; i++)
        roll(s, out[i], tl_unit_of(tl_values_at(&s->rec->values, n->out + (uint32_t)i)->a.dtype));
}

static tl_tensor rerun(tl_shadow *s, bool with_grad)
{
    tl_tape_reset(s->run);
    for (int i = 0; i < s->n_leaves; i++)
        s->now[i] = TL_NONE;
    s->with_grad = with_grad;
    s->rolled = 0;
    int depth = tl_mode_push(s->run, (s->own ? 0 : TL_SHADOW) | (with_grad ? 0u : TL_NO_GRAD));
    tl_tensor y = tl_rerun(s->run, s->rec, s->y, leaf_now, roll_results, s);
    if (!with_grad)
        tl_mode_pop(s->run, depth);
    if (tl_failed(s->run))
        tl_fail(&s->err, tl_error_status(s->run), "%.400s", tl_error(s->run));
    return y;
}

double tl_shadow_value(tl_shadow *s)
{
    tl_tensor y = rerun(s, false);
    if (s->err.status != TL_OK)
        return (double)NAN;
    const tl_array *a = &tl_peek(s->run, y)->a;
    double sum = 0;
    for (int64_t i = 0; i < s->n_y; i++)
        sum += s->cotangent[i] * tl_array_get(a, i);
    return sum;
}

tl_status tl_shadow_gradients(tl_shadow *s)
{
    tl_tensor y = rerun(s, true);
    if (s->err.status == TL_OK) {
        tl_tensor c = tl_zeros(s->run, tl_dtype_of(s->run, y), tl_shape_of(s->run, y));
        for (int64_t i = 0; !tl_is_none(c) && i < s->n_y; i++)
            tl_array_put(&tl_peek(s->run, c)->a, i, s->cotangent[i]);
        tl_backward(s->run, y, .cotangent = c, .partial = true);
    }
    for (int i = 0; i < s->n_leaves && !tl_failed(s->run); i++) {
        tl_shadow_leaf *l = &s->leaf[i];
        tl_tensor g = l->checked && !tl_is_none(s->now[i]) ? tl_grad(s->run, s->now[i]) : TL_NONE;
        tl_array a;
        if (!tl_is_none(g) && tl_array_of(s->run, g, &a))
            for (int64_t k = 0; k < l->n; k++)
                (s->own ? l->g : l->g64)[k] = tl_array_get(&a, k);
    }
    tl_mode_pop(s->run, 0);
    return tl_failed(s->run) ? tl_fail(&s->err, tl_error_status(s->run), "%.400s", tl_error(s->run))
                             : s->err.status;
}
