/* verify.c: a replacement is tested: it is found in its own example, and does what it claims.
 *
 * Search and replace are computed directly on the same random inputs - ordinary values, values of
 * very different size, many zeros of both signs, infinities and NaNs - and compared bit for bit
 * (all NaNs are one): outputs, gradients as values for random cotangents of some of the outputs, by
 * some of the inputs, and accumulators that two passes have continued. Leaves whose uses differ in
 * number or kind are not compared: a graph refuses those (compare.c). */
#include <math.h>
#include <string.h>

#include "autograd/replace/internal.h"
#include "tensor/threads.h"

typedef struct {
    const tl_form *f;
    const tl_replacement *o; /* its rule's */
    tl_dtype dtype;
    int round;
    uint64_t seed, state;
    tl_err *err;
    tl_bump mem;
    tl_rule_at at;
    tl_tape *t[2]; /* search's and the replacement's, */
    tl_rule_run r[2];
} trial;

/* ---- random inputs ---- */

static uint64_t draw(trial *k)
{
    uint64_t z = k->state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static double draw_float(trial *k)
{
    static const double special[] = {(double)INFINITY, -(double)INFINITY, (double)NAN, 0x1p-149,
                                     -0x1p-130,        0x1.fffp126,       -0x1.8p15,   0x1p-24};
    const int style = k->round % 4;
    double u = (double)(draw(k) >> 11) * 0x1p-53 * 4 - 2, sign = draw(k) & 1 ? 1 : -1;
    unsigned dice = (unsigned)(draw(k) % 48);
    if (dice < (style == 3 ? 24u : 3u))
        return 0 * sign;
    if (style == 1)
        return ldexp(u, (int)(draw(k) % 25) - 12);
    return style == 2 && dice > 45 ? special[draw(k) % 8] : u;
}

/* The same for both programs. */
static tl_tensor draw_leaf(void *ctx, tl_tape *t, const tl_array *a, int i)
{
    trial *k = ctx;
    const size_t size = tl_dtype_size(a->dtype);
    const int64_t n = tl_array_count(a), below = i < k->o->n_in ? k->o->example_inputs[i].below : 0;
    char *to = tl_bump_get(&k->mem, (size_t)(n + 1) * size);
    k->state = (k->seed * 1000003u + (uint64_t)k->round) * 31 + (uint64_t)i;
    for (int64_t e = 0; to != NULL && e < n; e++)
        tl_element_put(a->dtype, to + (size_t)e * size,
                       a->dtype == TL_I64    ? (double)(draw(k) % (uint64_t)(below > 0 ? below : 2))
                       : a->dtype == TL_BOOL ? (double)(draw(k) & 1)
                                             : draw_float(k));
    tl_tensor x = tl_data(t, to, a->dtype, tl_array_shape(a));
    if (i < k->o->n_in && k->at.grad[i])
        tl_require_grad(t, x);
    return x;
}

/* Where both are called: which arguments are f32, which take a gradient, and to which outputs
 * cotangents come. shapes NULL: the examples'. */
static void draw_place(trial *k, const tl_shape *shapes, bool backward)
{
    tl_form_example(k->f, &k->at, NULL);
    for (int i = 0; i < k->o->n_in; i++) {
        const tl_pattern_arg *a = &k->o->example_inputs[i];
        const tl_shape shape = shapes != NULL ? shapes[i] : tl_array_shape(&k->at.array[i]);
        const bool f32 = a->or_f32 && tl_dtype_compute(k->dtype) == TL_F32 && draw(k) & 1;
        k->at.array[i] = tl_array_make(a->fixed ? a->dtype : f32 ? TL_F32 : k->dtype, &shape, NULL);
        k->at.grad[i] &= backward && (k->round < 4 || draw(k) & 1);
    }
    for (int i = 0; i < k->o->n_out && backward; i++)
        k->at.seeded |= k->round < 4 || draw(k) & 1 ? TL_BIT(i) : 0;
}

/* What continues an accumulator shows a joint replacement. */
static tl_status run(trial *k, int side)
{
    tl_tape *t = k->t[side];
    tl_rule_run *r = &k->r[side];
    tl_tape_reset(t);
    tl_rule_call(k->f, side == 0, t, &k->at, draw_leaf, k, r);
    for (int pass = 0; pass < 2 && !tl_is_none(r->seed) && k->o->trace == TL_TRACE_FORWARD; pass++)
        tl_backward(t, r->seed, .retain = true);
    return !tl_failed(t) ? TL_OK
                         : tl_fail(k->err, TL_EUSAGE, "'%s' cannot be computed in %s: %.300s",
                                   k->o->name, tl_dtype_name(k->dtype), tl_error(t));
}

/* ---- both compared ---- */

static tl_status compare(trial *k, const tl_array *a, const tl_array *b, const char *what, int i)
{
    const char *name = k->o->name, *d = tl_dtype_name(k->dtype);
    char sa[TL_SHAPE_TEXT], sb[TL_SHAPE_TEXT];
    if (a->dtype != b->dtype || !tl_array_same_shape(a, b))
        return tl_fail(k->err, a->dtype != b->dtype ? TL_EDTYPE : TL_ESHAPE,
                       "'%s' in %s: %s %d is %s %s by search, %s %s by its replacement", name, d,
                       what, i, tl_dtype_name(a->dtype), tl_array_shape_text(sa, a),
                       tl_dtype_name(b->dtype), tl_array_shape_text(sb, b));
    for (int64_t e = 0, n = tl_array_count(a); e < n; e++) {
        const double x = tl_array_get(a, e), y = tl_array_get(b, e); /* widened exactly */
        if (memcmp(&x, &y, sizeof x) != 0 && !(isnan(x) && isnan(y)))
            return tl_fail(k->err, TL_EDOMAIN,
                           "'%s' in %s: element %lld of %s %d is %a by search, %a by its "
                           "replacement (seed %llu, kind of values %d)",
                           name, d, (long long)e, what, i, x, y, (unsigned long long)k->seed,
                           k->round % 4);
    }
    return TL_OK;
}

static int uses_of(const tl_fold *f)
{
    int n = 0;
    for (; f != NULL; f = f->next)
        n += f->n;
    return n;
}

static tl_status compare_accumulators(trial *k, int i)
{
    const tl_leaf_grad *a = tl_leaf_grad_find(k->t[0], k->r[0].arg[i]),
                       *b = tl_leaf_grad_find(k->t[1], k->r[1].arg[i]);
    const int n = a == NULL ? 0 : a->n_accs, others = b == NULL ? 0 : b->n_accs;
    bool alike = n == others;
    if (n > 0 && others == 0)
        return tl_fail(k->err, TL_EDOMAIN,
                       "'%s' in %s: backward uses argument '%s' %d times by search, 0 times by its "
                       "replacement",
                       k->o->name, tl_dtype_name(k->dtype), k->o->example_inputs[i].name, n);
    for (int u = 0; alike && u < n; u++)
        alike = strcmp(a->acc[u].kind, b->acc[u].kind) == 0 &&
                uses_of(a->acc[u].folds) == uses_of(b->acc[u].folds);
    for (int u = 0; alike && u < n; u++)
        if (a->acc[u].open && b->acc[u].open)
            TL_TRY(compare(k, &a->acc[u].sum, &b->acc[u].sum, "accumulator", i));
    return TL_OK;
}

static tl_status try_once(trial *k)
{
    TL_TRY(run(k, 0));
    TL_TRY(run(k, 1));
    const int n = k->o->n_out;
    if (k->r[1].n_out < k->r[0].n_out)
        return tl_fail(k->err, TL_EUSAGE,
                       "gradients come to its search, but not to its replacement");
    for (int i = 0; i < k->r[0].n_out; i++) {
        tl_array a, b;
        if (tl_is_none(k->r[0].out[i])) /* which search leaves out */
            continue;
        if (!tl_array_of(k->t[0], k->r[0].out[i], &a) || !tl_array_of(k->t[1], k->r[1].out[i], &b))
            return tl_fail(k->err, TL_EUSAGE, "'%s' gives no result %d", k->o->name, i);
        TL_TRY(compare(k, &a, &b, i < n ? "output" : "gradient", i < n ? i : i - n));
    }
    for (int i = 0; i < k->o->n_in && k->r[0].n_out > n; i++)
        if (k->at.grad[i])
            TL_TRY(compare_accumulators(k, i));
    return TL_OK;
}

static tl_status check(const tl_form *f, tl_dtype d, const tl_shape *shapes, bool backward,
                       uint64_t seed, int rounds, tl_err *err)
{
    trial k = {.f = f, .o = &f->rule->o, .dtype = d, .seed = seed, .err = err};
    k.t[0] = tl_tape_new(NULL);
    k.t[1] = tl_tape_new(NULL);
    tl_status s = k.t[0] == NULL || k.t[1] == NULL
                      ? tl_fail(err, TL_ENOMEM, "no memory for two tapes")
                      : TL_OK;
    tl_fpenv saved = tl_fpenv_enter(); /* numbers are drawn and compared outside any op */
    for (; s == TL_OK && k.round < (rounds > 0 ? rounds : 8); k.round++) {
        k.state = ~seed * 1000003u + (uint64_t)k.round;
        draw_place(&k, shapes, backward);
        s = try_once(&k);
        tl_bump_free(&k.mem);
    }
    tl_fpenv_leave(saved);
    tl_object_end(k.t[0]);
    tl_object_end(k.t[1]);
    return s;
}

/* ---- a form ---- */

static bool in_what_is_put(void *ctx, const tl_binding *b)
{
    const tl_match *m = ctx;
    int k = 0;
    while (k < m->search->n_nodes && b->node[k] >= (int32_t)m->first)
        k++;
    return k == m->search->n_nodes;
}

/* The form is found in its example, as in any graph, and not in what is put there. */
static bool found_in_example(tl_pass *p, const tl_form *f)
{
    const tl_replacement *o = &f->rule->o;
    tl_rule_run run;
    tl_rule_at w;
    tl_match m;
    if (f->pattern->out[0].node < 0)
        return tl_refuse(p, NULL, "its search computes nothing as output 0");
    for (int i = 1; i < o->n_out; i++)
        if (f->pattern->out[i].node == TL_REF_ARG)
            return tl_refuse(p, NULL, "output %d of its search is an argument", i);
    tl_form_example(f, &w, &p->why);
    w.seeded = p->joint ? TL_BIT(o->n_out) - 1 : 0;
    const tl_pattern *q = tl_rule_trace(f, true, p->t, &p->bump, &w, &run, &p->why);
    if (q == NULL)
        return false;
    if (p->joint && q->n_out == o->n_out)
        return tl_refuse(p, NULL, "it is joint, and its search has no gradient");
    if (tl_pass_index(p) != TL_OK)
        return false;
    if (!tl_candidate(p, f, (uint32_t)tl_maker_at(p->t, run.out[0]), &m))
        return tl_refuse(p, NULL, "its search has parts that share nothing (%s is one)",
                         q->node[q->out[0].node].op->name);
    if (tl_pass_index(p) != TL_OK) /* with what is put */
        return false;
    for (uint32_t i = m.first; i < p->n_nodes; i++)
        if (tl_match_pattern(p, f, m.search, true, i, NULL, in_what_is_put, &m))
            return tl_refuse(p, NULL,
                             "its replacement contains what it searches for: it would be "
                             "replaced for ever");
    return true;
}

static tl_status check_example(const tl_form *f, tl_err *err)
{
    tl_tape *t = tl_rule_tape(), *scratch = tl_rule_tape();
    tl_graph g = {.t = t, .tracing = t == NULL ? NULL : tl_tracing_of(t)};
    tl_pass p = {.g = &g, .t = t, .scratch = scratch, .example = true};
    p.joint = f->rule->o.trace == TL_TRACE_JOINT;
    if (t == NULL || scratch == NULL)
        tl_fail(&p.why, TL_ENOMEM, "no memory for two tapes");
    const bool found = p.why.status == TL_OK && found_in_example(&p, f);
    tl_bump_free(&p.bump);
    tl_rule_tape_end(t);
    tl_rule_tape_end(scratch);
    return found ? TL_OK : tl_fail(err, p.why.status, "%s", p.why.message);
}

tl_status tl_form_verify(const tl_form *f, uint64_t seed, int rounds, tl_err *err)
{
    TL_TRY(check_example(f, err));
    for (int d = TL_F64; d < TL_DTYPE_COUNT; d++) {
        bool exact = tl_form_claims(f, (tl_dtype)d, true);
        if (tl_form_claims(f, (tl_dtype)d, false))
            TL_TRY(check(f, (tl_dtype)d, NULL, exact, seed, rounds, err));
    }
    return TL_OK;
}

tl_status tl_replacement_check(const char *name, uint64_t seed, int rounds, tl_err *err)
{
    const tl_form *f = tl_form_find(name, 0, err);
    for (int i = 0; f != NULL && i < f->rule->n_forms; i++)
        TL_TRY(tl_form_verify(&f->rule->form[i], seed, rounds, err));
    return f != NULL ? TL_OK : TL_ENAME;
}

tl_status tl_replacement_compare(const char *name, int form, tl_dtype dtype, const tl_shape *shapes,
                                 bool backward, uint64_t seed, int rounds, tl_err *err)
{
    const tl_form *f = tl_form_find(name, form, err);
    return f == NULL ? TL_ENAME : check(f, dtype, shapes, backward, seed, rounds, err);
}
