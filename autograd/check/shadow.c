/* shadow.c: re-running a recorded function in f64 with its leaves moved. */
#include "autograd/check/shadow.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void tl_shadow_nudge(const tl_array *a, int seed)
{
    for (int64_t i = 0; tl_dtype_is_float(a->dtype) && i < tl_array_count(a); i++)
        tl_array_put(a, i, tl_array_get(a, i) * (1 + ((i + seed) % 2 ? 1e-3 : -1e-3)));
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
    l->x = tl_calloc((size_t)l->n * 4, sizeof *l->x);
    if (l->x == NULL)
        return tl_fail(&s->err, TL_ENOMEM, "no memory for leaf '%.90s' of %lld elements", name,
                       (long long)l->n);
    l->g64 = l->x + l->n;
    l->g = l->g64 + l->n;
    l->sway = l->g + l->n;
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

/* Leaf map of the re-run: f64 copies of floats, everything else copied as it is. */
static tl_tensor leaf_now(void *ctx, tl_tensor x)
{
    tl_shadow *s = ctx;
    tl_shadow_leaf *l = find(s, x);
    if (l == NULL) {
        const tl_value *v = tl_peek(s->rec, x);
        if (v == NULL || x.owner != s->rec->values.owner)
            return x; /* integers of the model stay where they are */
        tl_tensor c = tl_zeros(s->run, v->a.dtype, tl_array_shape(&v->a));
        if (!tl_is_none(c))
            tl_array_copy(&tl_peek(s->run, c)->a, &v->a);
        return c;
    }
    tl_tensor *now = &s->now[l - s->leaf];
    if (tl_is_none(*now)) {
        *now = tl_data(s->run, l->x, TL_F64, l->shape);
        if (l->checked && s->with_grad)
            tl_require_grad(s->run, *now);
    }
    return *now;
}

static tl_tensor rerun(tl_shadow *s, bool with_grad)
{
    tl_tape_reset(s->run);
    for (int i = 0; i < s->n_leaves; i++)
        s->now[i] = TL_NONE;
    s->with_grad = with_grad;
    int depth = tl_mode_push(s->run, with_grad ? TL_SHADOW : TL_SHADOW | TL_NO_GRAD);
    tl_tensor y = tl_rerun(s->run, s->rec, s->y, leaf_now, s);
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
        tl_shape shape = tl_shape_of(s->run, y);
        tl_tensor c = tl_data(s->run, s->cotangent, tl_dtype_of(s->run, y), shape);
        tl_backward(s->run, y, .cotangent = c, .partial = true);
    }
    for (int i = 0; i < s->n_leaves && !tl_failed(s->run); i++) {
        tl_shadow_leaf *l = &s->leaf[i];
        tl_tensor g = l->checked && !tl_is_none(s->now[i]) ? tl_grad(s->run, s->now[i]) : TL_NONE;
        if (!tl_is_none(g))
            tl_keep(s->run, g, l->g64, (size_t)l->n * sizeof(double));
    }
    tl_mode_pop(s->run, 0);
    return tl_failed(s->run) ? tl_fail(&s->err, tl_error_status(s->run), "%.400s", tl_error(s->run))
                             : TL_OK;
}

/* g64 and sway change places, and every leaf moves by a rounding unit or back. */
static void swap_and_move(tl_shadow *s, double unit)
{
    for (int i = 0; i < s->n_leaves; i++) {
        tl_shadow_leaf *l = &s->leaf[i];
        double *keep = l->g64;
        l->g64 = l->sway;
        l->sway = keep;
        for (int64_t k = 0; k < l->n; k++) {
            double by = 1 + (((k * 2654435761u) >> 7) % 2 ? unit : -unit);
            l->x[k] = unit > 0 ? l->x[k] * by : l->x[k];
        }
    }
}

tl_status tl_shadow_sway(tl_shadow *s, double unit)
{
    int64_t total = 0;
    for (int i = 0; i < s->n_leaves; i++)
        total += s->leaf[i].n;
    double *was = tl_calloc((size_t)total + 1, sizeof *was), *at = was;
    if (was == NULL)
        return tl_fail(&s->err, TL_ENOMEM, "no memory for %lld elements", (long long)total);
    for (int i = 0; i < s->n_leaves; at += s->leaf[i++].n)
        memcpy(at, s->leaf[i].x, (size_t)s->leaf[i].n * sizeof *at);
    swap_and_move(s, unit);
    tl_status st = tl_shadow_gradients(s);
    swap_and_move(s, 0);
    at = was;
    for (int i = 0; i < s->n_leaves; at += s->leaf[i++].n) {
        memcpy(s->leaf[i].x, at, (size_t)s->leaf[i].n * sizeof *at);
        for (int64_t k = 0; k < s->leaf[i].n; k++)
            s->leaf[i].sway[k] = fabs(s->leaf[i].sway[k] - s->leaf[i].g64[k]);
    }
    tl_free_raw(was);
    return st;
}
