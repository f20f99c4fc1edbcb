/* shadow.c: records a function, and runs its nodes again with the leaves moved: in f64, or in the
 * user's own dtypes. Gradients are read here, too. */
#include "autograd/check/shadow.h"

#include "autograd/batch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

tl_status tl_shadow_failed(tl_shadow *s, const tl_tape *t)
{
    if (tl_failed(t))
        tl_fail(&s->err, tl_error_status(t), "%s", tl_error(t));
    return s->err.status;
}

tl_tensor tl_shadow_copy(tl_tape *on, const tl_array *a)
{
    tl_tensor x = tl_zeros(on, a->dtype, tl_array_shape(a));
    if (!tl_is_none(x))
        tl_array_copy(&tl_peek(on, x)->a, a);
    return x;
}

double tl_unit_of(tl_dtype d)
{
    return d == TL_F64 ? 0x1p-53 : d == TL_F32 ? 0x1p-24 : d == TL_F16 ? 0x1p-11 : 0x1p-8;
}

/* A leaf of the dtype and shape of `like` that holds x, each element rounded once. */
static tl_tensor rounded(tl_tape *on, const tl_array *like, const double *x)
{
    tl_tensor made = tl_zeros(on, like->dtype, tl_array_shape(like));
    for (int64_t i = 0; !tl_is_none(made) && i < tl_array_count(like); i++)
        tl_array_put(&tl_peek(on, made)->a, i, x[i]);
    return made;
}

int64_t tl_bad_element(const tl_array *a)
{
    const bool none = a == NULL || a->data == NULL || !tl_dtype_is_float(a->dtype);
    const int64_t n = none ? 0 : tl_array_count(a);
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(tl_array_get(a, i)))
            return i;
    return -1;
}

/* ---- recording ---- */

static tl_status copy_input(tl_at at, const char *what, tl_tensor x, bool grads, tl_tape *on,
                            tl_tensor *copy)
{
    const tl_value *v = tl_readable(at, x, what);
    if (v == NULL)
        return tl_error_status(at.tape);
    *copy = tl_shadow_copy(on, &v->a);
    if (tl_is_none(*copy))
        return tl_error_status(on);
    tl_batch_like(tl_peek(on, *copy), v);
    return grads && tl_dtype_is_float(v->a.dtype) ? tl_require_grad(on, *copy) : TL_OK;
}

/* Holds constant the inputs for which ops take no gradient, such as a count, since backward would
 * refuse them, and the values made of these alone. Inputs from which only counts are made are held,
 * too; those from which other values are made as well stay, and are refused. */
static tl_status hold_constants(tl_tape *t, tl_tensor y, const tl_tensor *in, int n)
{
    enum { VARIES = 1, MAKES = 2, IS = 4 }; /* by value: y varies with it; makes, or is, a count */
    uint8_t *way = tl_tape_scratch(t, atomic_load(&t->values.count) + 1);
    uint32_t *order, n_order;
    if (way == NULL || tl_canonical_order(t, y, TL_TO_GRAD, &order, &n_order) != TL_OK)
        return tl_error_status(t);
    way[y.owner == t->values.owner ? y.index : atomic_load(&t->values.count)] = VARIES;
    for (uint32_t i = n_order; i-- > 0;) {
        const tl_node *to = &t->node[order[i]];
        unsigned from = 0;
        for (int j = 0; j < to->n_out; j++)
            from |= way[to->out + (uint32_t)j] & (VARIES | MAKES);
        for (int k = 0; k < to->n_in; k++)
            if (to->in[k].owner == t->values.owner)
                way[to->in[k].index] |= (uint8_t)(from && k < 32 && to->op->nodiff_in & TL_BIT(k)
                                                      ? IS | MAKES
                                                      : from);
    }
    for (int i = 0; i < n; i++)
        if (tl_peek(t, in[i]) != NULL && /* not reset by the function */
            way[in[i].index] & (MAKES | IS) && !(way[in[i].index] & VARIES))
            tl_peek(t, in[i])->needs_grad = false;
    for (uint32_t i = 0; i < n_order; i++) {
        tl_node *to = &t->node[order[i]];
        to->needs_grad = false;
        for (int k = 0; k < to->n_in; k++)
            to->needs_grad |= !tl_is_none(to->in[k]) && tl_peek(t, to->in[k])->needs_grad;
        for (int j = 0; j < to->n_out && !to->needs_grad; j++)
            tl_values_at(&t->values, to->out + (uint32_t)j)->needs_grad = false;
    }
    return TL_OK;
}

tl_status tl_shadow_record(const tl_subject *f, const char *who, bool grads, tl_tape *on,
                           tl_tensor *copies, tl_tensor *y, tl_err *err)
{
    char what[64];
    tl_status s = TL_OK;
    for (int i = 0; i < f->n && s == TL_OK; i++) {
        snprintf(what, sizeof what, "%s: input %d", who, i);
        s = copy_input(f->at, what, f->in[i], grads, on, &copies[i]);
    }
    const tl_scope outer = on->now; /* the scopes that are open on the caller's tape are on here */
    on->now.mode |= f->at.tape->now.mode & (TL_EVAL | TL_FAST);
    if (s == TL_OK && tl_choice_follow(on, f->at.tape->now.choice))
        *y = f->f(on, copies, f->n, f->ctx);
    on->now = outer;
    snprintf(what, sizeof what, "%s: the function's result", who);
    const tl_tape *failed = tl_failed(f->at.tape) ? f->at.tape : on;
    const tl_at at = {on, f->at.file, f->at.line, NULL};
    if (!tl_failed(failed) && on->n_grads > 0)
        tl_tape_fail(at, TL_EUSAGE, "%s: the function calls tl_backward; it must return the loss",
                     who);
    if (!tl_failed(failed) && tl_readable(at, *y, what) != NULL &&
        hold_constants(on, *y, copies, f->n) == TL_OK)
        return TL_OK;
    return tl_fail(err, tl_error_status(failed), "%s", tl_error(failed));
}

/* ---- leaves ---- */

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
    if (!tl_grow(&s->leaf, &s->cap_leaves, s->n_leaves, sizeof *s->leaf))
        return tl_fail(&s->err, TL_ENOMEM, "no memory for %d leaves", s->n_leaves + 1);
    tl_shadow_leaf *l = &s->leaf[s->n_leaves++];
    *l = (tl_shadow_leaf){x, v, checked, .first = s->n, .n = tl_array_count(&v->a)};
    s->n += l->n;
    snprintf(l->name, sizeof l->name, "%s", name);
    return TL_OK;
}

static tl_status make_arrays(tl_shadow *s)
{
    double **arrays[] = {&s->x0,   &s->x,    &s->dir,   &s->found[0], &s->found[1], &s->g[0],
                         &s->g[1], &s->sway, &s->terms, &s->noise[0], &s->noise[1], &s->diff};
    const size_t n_arrays = sizeof arrays / sizeof *arrays;
    s->x0 = tl_calloc((size_t)s->n * (n_arrays - 1 + 2 * TL_NOISE_WINDOWS), sizeof *s->x0);
    if (s->x0 == NULL)
        return tl_fail(&s->err, TL_ENOMEM, "no memory for %d leaves of %lld elements", s->n_leaves,
                       (long long)s->n);
    for (size_t i = 1; i < n_arrays; i++)
        *arrays[i] = s->x0 + (int64_t)i * s->n;
    for (int i = 0; i < s->n_leaves; i++)
        for (int64_t k = 0; k < s->leaf[i].n; k++)
            s->x0[s->leaf[i].first + k] = tl_array_get(&s->leaf[i].v->a, k);
    memcpy(s->x, s->x0, (size_t)s->n * sizeof *s->x);
    return TL_OK;
}

tl_status tl_shadow_leaves(tl_shadow *s, const tl_tensor *in, int n, bool check_inputs)
{
    uint32_t *order, count;
    char name[32];
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "input %d", i);
        const tl_value *v = tl_peek(s->rec, in[i]);
        TL_TRY(add_leaf(s, in[i], check_inputs && v != NULL && v->needs_grad, name));
    }
    if (tl_canonical_order(s->rec, s->y, TL_TO_ALL, &order, &count) != TL_OK)
        return tl_fail(&s->err, TL_ENOMEM, "no memory to order the nodes");
    for (uint32_t i = 0; i < count; i++) {
        const tl_node *node = &s->rec->node[order[i]];
        for (int k = 0; k < node->n_in; k++) {
            const tl_tensor x = node->in[k];
            const tl_value *v = tl_peek(s->rec, x);
            if (v == NULL || v->node >= 0)
                continue;
            /* A parameter is checked if it takes gradients; any other leaf is a constant. */
            bool of_model = x.owner != s->rec->values.owner;
            TL_TRY(add_leaf(s, x, of_model && v->needs_grad,
                            of_model ? tl_leaf_name(s->rec, x) : "(a constant)"));
        }
    }
    return make_arrays(s);
}

void tl_shadow_free(tl_shadow *s)
{
    tl_free_raw(s->x0);
    tl_free_raw(s->leaf);
    tl_free_raw(s->cotangent);
    tl_free_raw(s->copies);
    tl_object_end(s->rec);
    tl_object_end(s->run);
}

/* ---- running again ---- */

typedef struct {
    tl_shadow *s;
    bool own;        /* in the user's dtypes */
    bool grads;      /* leaves take gradients */
    int roll;        /* > 0: stream of the random moves */
    uint64_t rolled; /* draws from it so far */
} rerun;

/* Multiplies every element of x by 1 + unit or 1 - unit at random. */
static void roll_value(rerun *r, tl_tensor x, double unit)
{
    tl_array a;
    const tl_rng_key key = tl_rng_stream((uint64_t)r->roll, "roundings");
    bool there = !tl_is_none(x) && tl_array_of(r->s->run, x, &a) && a.dtype == TL_F64;
    for (int64_t i = 0; there && i < tl_array_count(&a); i++) {
        bool up = tl_rng_uniform64(key, 0, r->rolled++) < 0.5;
        *(double *)tl_array_at(&a, i) *= up ? 1 + unit : 1 - unit;
    }
}

/* Maps leaves for tl_rerun: floating ones to their x, in f64 or in their own dtype; others to a
 * copy, except that integers of the model stay where they are. */
static tl_tensor leaf_again(void *ctx, tl_tensor x)
{
    rerun *r = ctx;
    tl_shadow *s = r->s;
    tl_shadow_leaf *l = find(s, x);
    if (l == NULL) {
        const tl_value *v = tl_peek(s->rec, x);
        return v == NULL || x.owner != s->rec->values.owner ? x : tl_shadow_copy(s->run, &v->a);
    }
    if (tl_is_none(l->again)) {
        l->again = r->own ? rounded(s->run, &l->v->a, s->x + l->first)
                          : tl_data(s->run, s->x + l->first, TL_F64, tl_array_shape(&l->v->a));
        if (r->roll > 0)
            roll_value(r, l->again, tl_unit_of(l->v->a.dtype));
        if (l->checked && r->grads)
            tl_require_grad(s->run, l->again);
    }
    return l->again;
}

/* Moves results by a rounding unit of the dtype in which they were recorded. */
static void roll_results(void *ctx, const tl_node *n, const tl_tensor *out)
{
    rerun *r = ctx;
    for (int i = 0; r->roll > 0 && !(n->op->traits & TL_VIEW) && i < n->n_out; i++) {
        const tl_value *v = tl_values_at(&r->s->rec->values, n->out + (uint32_t)i);
        roll_value(r, out[i], tl_unit_of(v->a.dtype));
    }
}

/* The result on s->run. Its modes stay in force if gradients are wanted. */
static tl_tensor run_again(rerun r)
{
    tl_shadow *s = r.s;
    tl_tape_reset(s->run);
    for (int i = 0; i < s->n_leaves; i++)
        s->leaf[i].again = TL_NONE;
    int depth = tl_mode_push(s->run, (r.own ? 0u : TL_SHADOW) | (r.grads ? 0u : TL_NO_GRAD));
    tl_tensor y = tl_rerun(s->run, s->rec, s->y, leaf_again, roll_results, &r);
    if (!r.grads)
        tl_mode_pop(s->run, depth);
    memcpy(s->x, s->x0, (size_t)s->n * sizeof *s->x);
    if (tl_failed(s->run) && !r.own)
        tl_fail(&s->err, tl_error_status(s->run), "run again in F64: %s", tl_error(s->run));
    tl_shadow_failed(s, s->run);
    return y;
}

/* Fills found[own] by a backward on t, which is rec or run. */
static tl_status backward(tl_shadow *s, tl_tape *t, tl_tensor y, bool own)
{
    tl_array a = tl_peek(t, y)->a;
    tl_backward(t, y, .cotangent = rounded(t, &a, s->cotangent), .partial = true);
    for (int i = 0; i < s->n_leaves && !tl_failed(t); i++) {
        tl_shadow_leaf *l = &s->leaf[i];
        const tl_tensor x = t == s->rec ? l->handle : l->again;
        tl_tensor g = l->checked && !tl_is_none(x) ? tl_grad(t, x) : TL_NONE;
        bool there = !tl_is_none(g) && tl_array_of(t, g, &a);
        for (int64_t k = 0; k < l->n; k++)
            s->found[own][l->first + k] = there ? tl_array_get(&a, k) : 0;
    }
    return tl_shadow_failed(s, t);
}

double tl_shadow_value(tl_shadow *s)
{
    tl_tensor y = run_again((rerun){.s = s});
    if (s->err.status != TL_OK)
        return (double)NAN;
    const tl_array *a = &tl_peek(s->run, y)->a;
    double sum = 0;
    for (int64_t i = 0; i < s->n_y; i++)
        sum += s->cotangent[i] * tl_array_get(a, i);
    return sum;
}

tl_status tl_shadow_gradients(tl_shadow *s, bool own, int roll)
{
    tl_tensor y = run_again((rerun){.s = s, .own = own, .grads = true, .roll = roll});
    if (s->err.status == TL_OK)
        backward(s, s->run, y, own);
    tl_mode_pop(s->run, 0);
    return s->err.status;
}

tl_status tl_shadow_analytic(tl_shadow *s)
{
    TL_TRY(tl_shadow_gradients(s, false, 0));
    TL_TRY(backward(s, s->rec, s->y, true));
    for (int own = 0; own < 2; own++)
        memcpy(s->g[own], s->found[own], (size_t)s->n * sizeof(double));
    return TL_OK;
}
