/* sanity.c: before gradients are compared, checks that f is a function. Run twice it must give the
 * same bits (all NaNs are one), with inputs a little off it must do the same ops on the same
 * operands and constants, and it must leave its inputs alone. */
#include <math.h>

#include "autograd/check/shadow.h"

/* The contents of x, if it is a constant that the function made on t and nothing has changed: its
 * memory is its own, unlike that of a detached value, which shows an earlier value's. */
static const tl_array *constant(const tl_tape *t, tl_tensor x, const tl_tensor *in, int n)
{
    const tl_value *v = x.owner == t->values.owner ? tl_peek(t, x) : NULL;
    for (int i = 0; i < n; i++)
        if (tl_same_handle(x, in[i]))
            return NULL;
    for (uint32_t i = 0; v != NULL && i < x.index; i++)
        if (tl_values_at(&t->values, i)->st == v->st)
            return NULL;
    return v == NULL || v->node >= 0 || !tl_is_none(v->source) || v->st == NULL ||
                   v->st->version > 0 || v->a.data == NULL
               ? NULL
               : &v->a;
}

/* The place of each node of t in an order of n; NULL, with an error, without memory. */
static const uint32_t *places(tl_tape *t, const uint32_t *order, uint32_t n)
{
    uint32_t *at = tl_tape_scratch(t, (size_t)(t->n_nodes + 1) * sizeof *at);
    for (uint32_t i = 0; at != NULL && i < n; i++)
        at[order[i]] = i;
    return at;
}

/* Operand u of the first run and v of the second, on b, come from the same place: output of a node,
 * by pa and pb, input, tensor of the model, or something else that the function made. */
static bool same_operand(const tl_shadow *s, const tl_tape *b, tl_tensor u, tl_tensor v, int n,
                         const uint32_t *pa, const uint32_t *pb)
{
    const tl_value *x = tl_peek(s->rec, u), *y = tl_peek(b, v);
    const bool own = u.owner == s->rec->values.owner;
    if (x == NULL || y == NULL || own != (v.owner == b->values.owner))
        return x == y;
    if (!own || x->node < 0 || y->node < 0) {
        for (int i = 0; i < n; i++)
            if (tl_same_handle(u, s->copies[i]) != tl_same_handle(v, s->copies[n + i]))
                return false;
        return own ? x->node == y->node : tl_same_handle(u, v);
    }
    return pa[x->node] == pb[y->node] && x->out == y->out;
}

/* The second run, on b, did the same ops as the first, with the same operands. *by: the first of
 * them with other attributes or constants, which must have come from the inputs by way of the host;
 * NULL: none. False also without memory, an error of a tape. */
static bool same_ops(const tl_shadow *s, tl_tape *b, tl_tensor yb, int n, const tl_node **by)
{
    uint32_t *oa, *ob, na, nb;
    tl_tape *a = s->rec;
    if (tl_canonical_order(a, s->y, TL_TO_ALL, &oa, &na) != TL_OK ||
        tl_canonical_order(b, yb, TL_TO_ALL, &ob, &nb) != TL_OK || na != nb)
        return false;
    const uint32_t *pa = places(a, oa, na), *pb = places(b, ob, nb);
    if (pa == NULL || pb == NULL)
        return false;
    for (uint32_t i = 0; i < na; i++) {
        const tl_node *x = &a->node[oa[i]], *y = &b->node[ob[i]];
        if (x->op != y->op || x->n_in != y->n_in)
            return false;
        for (int k = 0; k < x->n_in; k++)
            if (!same_operand(s, b, x->in[k], y->in[k], n, pa, pb))
                return false;
        bool other = x->op->attr != NULL && !(x->op->traits & TL_RANDOM) &&
                     !tl_attrs_agree(x->op, x->attrs, y->attrs, 0, NULL);
        for (int k = 0; k < x->n_in && !other; k++) {
            const tl_array *u = constant(a, x->in[k], s->copies, n),
                           *v = constant(b, y->in[k], s->copies + n, n);
            other = u != NULL && v != NULL && tl_arrays_differ(u, v) >= 0;
        }
        if (other && *by == NULL)
            *by = x;
    }
    return true;
}

static tl_status check_inputs_kept(tl_shadow *s, const tl_subject *f)
{
    for (int i = 0; i < f->n; i++) {
        const tl_value *was = tl_peek(f->at.tape, f->in[i]), *is = tl_peek(s->rec, s->copies[i]);
        if (was == NULL || is == NULL)
            return tl_fail(&s->err, TL_EUSAGE, "the function resets %s tape",
                           was == NULL ? "its caller's" : "its");
        if (was->st == NULL || is->st == NULL)
            return tl_fail(&s->err, TL_EUSAGE, "the function releases %s input %d",
                           was->st == NULL ? "its caller's" : "its", i);
        if (tl_arrays_differ(&was->a, &is->a) >= 0)
            return tl_fail(&s->err, TL_EINPLACE, "the function changes its input %d", i);
    }
    return TL_OK;
}

typedef struct {
    const tl_subject *of;
    bool nearby;
} beside;

/* Runs f, first moving the elements of its inputs by 1e-3 or 2e-3 of themselves if asked: towards
 * 0, so that numbers in [0, 1] stay there. */
static tl_tensor run_beside(tl_tape *t, const tl_tensor *in, int n, void *ctx)
{
    const beside *k = ctx;
    for (int i = 0; k->nearby && i < n; i++) {
        const tl_array *a = &tl_peek(t, in[i])->a;
        for (int64_t j = 0; tl_dtype_is_float(a->dtype) && j < tl_array_count(a); j++)
            tl_array_put(a, j, tl_array_get(a, j) * (1 - ((j + i) % 2 ? 1e-3 : 2e-3)));
    }
    return k->of->f(t, in, n, k->of->ctx);
}

tl_status tl_check_sanity(tl_checker *c, const tl_subject *f)
{
    tl_shadow *s = &c->s;
    const tl_array *first = &tl_peek(s->rec, s->y)->a;
    const int64_t bad = tl_bad_element(first);
    if (bad >= 0) {
        const double x = tl_array_get(first, bad);
        return tl_fail(&s->err, TL_EDOMAIN, "the function's result is %g at element %lld",
                       isnan(x) ? (double)NAN : x, (long long)bad); /* without a NaN's sign */
    }
    TL_TRY(check_inputs_kept(s, f));
    tl_tape *again = tl_tape_new(f->at.tape->model);
    for (int nearby = 0; nearby < 2 && s->err.status == TL_OK; nearby++) {
        tl_err e = {.status = TL_OK};
        tl_tensor y;
        const tl_node *by = NULL;
        beside k = {f, nearby != 0};
        const tl_subject twice = {f->at, run_beside, f->in, f->n, &k};
        tl_tape_reset(again);
        if (again == NULL)
            tl_fail(&s->err, TL_ENOMEM, "no memory for a second run");
        else if (tl_shadow_record(&twice, c->who, !c->o.skip_inputs, again, s->copies + f->n, &y,
                                  &e) != TL_OK)
            tl_fail(&s->err, e.status, "a second run of the function fails: %s", e.message);
        else if (!same_ops(s, again, y, f->n, &by))
            tl_fail(&s->err, tl_failed(again) || tl_failed(s->rec) ? TL_ENOMEM : TL_EUSAGE,
                    tl_failed(again) || tl_failed(s->rec) ? "no memory to compare two runs"
                    : nearby ? "the function branches: beside these inputs it does other ops"
                             : "the function is not deterministic: run twice, it does other ops");
        else if (!nearby && tl_arrays_differ(first, &tl_peek(again, y)->a) >= 0)
            tl_fail(&s->err, TL_EUSAGE,
                    "the function is not deterministic: run twice on the same inputs, it "
                    "gives other results");
        else if (by != NULL)
            tl_fail(&s->err, TL_EUSAGE,
                    "the function %s %s (%s:%d) has other attributes or constants",
                    nearby ? "takes numbers of its inputs through the host, where no gradient "
                             "goes: beside these inputs"
                           : "is not deterministic: run twice,",
                    by->op->name, by->file, by->line);
    }
    tl_object_end(again);
    return s->err.status;
}
