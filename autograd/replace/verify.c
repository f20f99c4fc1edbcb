/* verify.c: tests that a replacement keeps the bits that it claims to keep. Search and replacement
 * are computed directly on the same inputs: random ones of several kinds, then extremes of the
 * dtype, in the shapes of the examples and in others. The outputs, the gradients as values, and the
 * accumulators after two backwards are compared bit for bit (all NaNs are one). Accumulators whose
 * uses differ in number or kind are not compared: graphs refuse such a replacement (compare.c). */
#include <math.h>
#include <string.h>

#include "autograd/replace/internal.h"
#include "tensor/operands.h"
#include "tensor/rng.h"
#include "tensor/threads.h"

typedef struct {
    const tl_replacement *o;
    tl_dtype dtype;
    int round, rounds;
    uint64_t seed, tosses;
    tl_rng_key key;
    tl_err *err;
    tl_tape *t[2];     /* of search and of replace */
    tl_rule_call c[2]; /* the same */
} trial;

/* The kinds of values in a round. The rounds that were asked for are followed by as many as there
 * are extremes, in which every element is each of them once. */
static const char *const kinds[] = {"ordinary", "of very different size",
                                    "some infinities, NaNs and other extremes",
                                    "half of them zeros", "all extremes"};
enum { MIXED = 1, RARE, ZEROS, EXTREME, EXTREMES = 13 };
enum { MOST_ELEMENTS = 1 << 24 }; /* of an argument: each is drawn dozens of times */

static int kind_of(const trial *k) { return k->round >= k->rounds ? EXTREME : k->round % EXTREME; }

/* Extreme e of d: the ends of d, where its numbers lose bits, and special values. */
static double extreme(tl_dtype d, uint64_t e)
{
    /* bits of a mantissa behind the point; the largest exponent */
    static const int bits[] = {[TL_F64] = 52, [TL_F32] = 23, [TL_F16] = 10, [TL_BF16] = 7};
    static const int top[] = {[TL_F64] = 1023, [TL_F32] = 127, [TL_F16] = 15, [TL_BF16] = 127};
    const double infinity = (double)INFINITY, nan = (double)NAN, normal = ldexp(1, 1 - top[d]),
                 least = ldexp(normal, -bits[d]), most = ldexp(2 - ldexp(1, -bits[d]), top[d]);
    const double list[EXTREMES] = {most,    infinity, least,     -most,  -3 * least,
                                   nan,     normal,   -infinity, -least, most * 0.5,
                                   -normal, 0,        -0.};
    return list[e % EXTREMES];
}

/* Element e of tensor i, of dtype d. */
static double draw(const trial *k, tl_dtype d, uint64_t i, uint64_t e)
{
    const int kind = kind_of(k);
    if (kind == EXTREME)
        return extreme(d, (uint64_t)(k->round - k->rounds) * (1 + i % (EXTREMES - 1)) + e);
    const uint64_t bits = tl_rng_u64(k->key, (uint64_t)(TL_PATTERN_MOST * k->round) + i, e);
    const double u = (double)(bits >> 11) * 0x1p-51 - 2;
    const int dice = bits & 63, other = bits >> 6 & 31;
    if (dice < (kind == ZEROS ? 32 : 4))
        return other & 1 ? -0. : 0.;
    if (kind == RARE && dice > 60)
        return extreme(d, bits >> 11);
    return kind == MIXED ? ldexp(u, other - 16) : u;
}

static bool toss(trial *k) { return tl_rng_u32(k->key, ~(uint64_t)k->round, k->tosses++) & 1; }

/* An argument or cotangent, with the same numbers for both programs. */
static tl_tensor draw_leaf(void *ctx, tl_tape *t, const tl_array *a, int i)
{
    trial *k = ctx;
    const bool arg = i < k->o->n_in;
    const int64_t below = arg && k->o->example_inputs[i].below > 0 ? k->o->example_inputs[i].below
                                                                   : 2;
    const uint64_t at = (uint64_t)(TL_PATTERN_MOST * k->round + i);
    tl_tensor x = tl_zeros(t, a->dtype, tl_array_shape(a));
    for (int64_t e = 0; !tl_is_none(x) && e < tl_array_count(a); e++)
        tl_array_put(&tl_peek(t, x)->a, e,
                     tl_dtype_is_float(a->dtype)
                         ? draw(k, a->dtype, (uint64_t)i, (uint64_t)e)
                         : (double)tl_rng_below(k->key, at, (uint64_t)e, (uint64_t)below));
    if (arg && k->c[0].grad[i])
        tl_require_grad(t, x);
    return x;
}

/* Draws which arguments are f32, which take a gradient, and which outputs have a cotangent. */
static void draw_place(trial *k, const tl_shape *shapes, bool backward)
{
    const bool all = k->round < EXTREME || k->round >= k->rounds;
    tl_rule_call *c = &k->c[0];
    tl_rule_example(c->rule, shapes, c, NULL);
    for (int i = 0; i < k->o->n_in; i++) {
        const tl_pattern_arg *a = &k->o->example_inputs[i];
        const bool f32 = a->or_f32 && tl_dtype_compute(k->dtype) == TL_F32 && toss(k);
        c->array[i].dtype = a->fixed ? a->dtype : f32 ? TL_F32 : k->dtype;
        c->grad[i] &= backward && (all || toss(k));
    }
    for (int i = 0; i < k->o->n_out && backward; i++)
        c->seeded |= all || toss(k) ? TL_BIT(i) : 0;
    k->c[1] = *c;
}

/* ---- both compared ---- */

static tl_status compare(trial *k, const tl_array *a, const tl_array *b, const char *what, int i)
{
    TL_TRY(tl_same_kind(a, b, what, i, k->err));
    const int64_t e = tl_arrays_differ(a, b);
    if (e < 0)
        return TL_OK;
    return tl_fail(k->err, TL_EDOMAIN,
                   "element %lld of %s %d is %a by search, %a by its replacement (seed %llu, round "
                   "%d, values %s)",
                   (long long)e, what, i, tl_array_get(a, e), tl_array_get(b, e),
                   (unsigned long long)k->seed, k->round, kinds[kind_of(k)]);
}

static int uses_of(const tl_fold *f) { return f == NULL ? 0 : f->n + uses_of(f->next); }

static tl_status compare_accumulators(trial *k, int i)
{
    const tl_leaf_grad *a = tl_leaf_grad_find(k->t[0], k->c[0].arg[i]),
                       *b = tl_leaf_grad_find(k->t[1], k->c[1].arg[i]);
    const int n = a == NULL ? 0 : a->n_accs, others = b == NULL ? 0 : b->n_accs;
    if (n > 0 && others == 0)
        return tl_fail(k->err, TL_EDOMAIN, "argument '%s' has a gradient by its search alone",
                       k->o->example_inputs[i].name);
    for (int u = 0; u < n; u++)
        if (n != others || strcmp(a->acc[u].kind, b->acc[u].kind) != 0 ||
            uses_of(a->acc[u].folds) != uses_of(b->acc[u].folds))
            return TL_OK;
    for (int u = 0; u < n; u++)
        if (a->acc[u].open && b->acc[u].open)
            TL_TRY(compare(k, &a->acc[u].sum, &b->acc[u].sum, "accumulator", i));
    return TL_OK;
}

/* A forward replacement has two backwards; the second continues the accumulators of the first. */
static tl_status try_once(trial *k)
{
    const tl_rule_call *was = &k->c[0], *is = &k->c[1];
    const int n = k->o->n_out;
    for (int side = 0; side < 2; side++) {
        tl_tape *t = k->t[side];
        const tl_tensor *seed = &k->c[side].seed;
        tl_tape_reset(t);
        tl_rule_run(&k->c[side], side == 0, t, draw_leaf, k);
        for (int i = 0; i < 2 && !tl_is_none(*seed) && k->o->trace == TL_TRACE_FORWARD; i++)
            tl_backward(t, *seed, .retain = true);
        if (tl_failed(t))
            return tl_fail(k->err, TL_EUSAGE, "cannot be computed: %s", tl_error(t));
    }
    if (is->n_out < was->n_out)
        return tl_fail(k->err, TL_EUSAGE, "gradients come to its search alone");
    for (int i = 0; i < was->n_out; i++) {
        tl_array a, b;
        const bool by_other = tl_array_of(k->t[1], is->out[i], &b);
        if (tl_array_of(k->t[0], was->out[i], &a)) /* search may leave it out */
            TL_TRY(compare(k, &a, by_other ? &b : NULL, i < n ? "output" : "gradient",
                           i < n ? i : i - n));
    }
    for (int i = 0; i < k->o->n_in && was->n_out > n; i++)
        if (was->grad[i])
            TL_TRY(compare_accumulators(k, i));
    return TL_OK;
}

static tl_status check(const tl_rule *r, tl_dtype d, const tl_shape *shapes, bool backward,
                       uint64_t seed, int rounds, tl_err *err)
{
    tl_err e = {.status = TL_OK};
    trial k = {&r->o, d, .rounds = rounds > 0 ? rounds : 8, .seed = seed, .err = &e};
    tl_rule_example(r, shapes, &k.c[0], &e);
    for (int i = 0; i < r->o.n_in && e.status == TL_OK; i++) {
        const int64_t n = tl_array_count(&k.c[0].array[i]);
        if (n > MOST_ELEMENTS)
            tl_fail(&e, TL_ESHAPE, "argument '%s' has %lld elements; examples have %d at most",
                    r->o.example_inputs[i].name, (long long)n, MOST_ELEMENTS);
    }
    k.key = tl_rng_stream(seed, "replacement");
    k.t[0] = tl_tape_new(NULL);
    k.t[1] = tl_tape_new(NULL);
    if (k.t[0] == NULL || k.t[1] == NULL || k.key.status != TL_OK)
        tl_fail(&e, TL_ENOMEM, "no memory for two tapes");
    tl_fpenv saved = tl_fpenv_enter(); /* numbers are drawn and compared outside of ops */
    for (; e.status == TL_OK && k.round < k.rounds + EXTREMES; k.round++) {
        draw_place(&k, shapes, backward);
        try_once(&k);
    }
    tl_fpenv_leave(saved);
    tl_object_end(k.t[0]);
    tl_object_end(k.t[1]);
    char at[TL_SHAPE_TEXT + 48] = "";
    if (shapes != NULL)
        snprintf(at, sizeof at, ", %.40s being %s", k.o->example_inputs[0].name,
                 TL_TEXT_OF(&shapes[0]));
    return e.status == TL_OK ? TL_OK
                             : tl_fail(err, e.status, "'%s' in %s%s: %s", k.o->name,
                                       tl_dtype_name(d), at, e.message);
}

/* Checks that the rule is found in its own example or, with shapes, in one of these shapes. */
static tl_status find(const tl_rule *r, const tl_shape *shapes, tl_err *err)
{
    tl_pass p = {.example = true, .joint = r->o.trace == TL_TRACE_JOINT};
    tl_tape *t = p.t = tl_rule_tape(&p.why), *scratch = p.scratch = tl_rule_tape(&p.why);
    tl_graph g = {.t = t, .tracing = t == NULL ? NULL : tl_tracing_of(t)};
    tl_rule_call c;
    p.g = &g;
    bool found = p.why.status == TL_OK && tl_rule_example(r, shapes, &c, &p.why) == TL_OK;
    c.seeded = p.joint ? TL_BIT(r->o.n_out) - 1 : 0;
    found = found && tl_rule_trace(&c, true, t, &p.bump, &p.why) != NULL && tl_pass_index(&p);
    tl_match m = {r, &p, r->pattern, .root = found ? (uint32_t)tl_maker_at(t, c.out[0]) : 0};
    if (!(found = found && tl_match_at(&m, NULL)))
        tl_refuse(&p, NULL, "its search has parts that share nothing");
    tl_bump_free(&p.bump);
    tl_rule_tape_end(t);
    tl_rule_tape_end(scratch);
    return found ? TL_OK : tl_fail(err, p.why.status, "%s", p.why.message);
}

/* Other sizes at which the rule is found: each of the examples' except 1 is one more or, where the
 * programs do not allow that, twice as large. False: there are none, or an extra_check decides. */
static bool other_sizes(const tl_rule *r, tl_shape *shapes)
{
    tl_rule_call c;
    tl_rule_example(r, NULL, &c, NULL);
    for (int twice = 0; twice < 2 && r->o.extra_check == NULL; twice++) {
        bool other = false;
        for (int i = 0; i < r->o.n_in; i++) {
            shapes[i] = tl_array_shape(&c.array[i]);
            for (int d = 0; d < shapes[i].ndim; d++) {
                const int64_t size = shapes[i].dim[d];
                shapes[i].dim[d] += size <= 1 ? 0 : twice ? size : 1;
                other |= size > 1;
            }
        }
        if (other && find(r, shapes, NULL) == TL_OK)
            return true;
    }
    return false;
}

static tl_status verify(const tl_rule *r, uint64_t seed, int rounds, tl_err *err)
{
    tl_shape other[TL_PATTERN_ARGS];
    TL_TRY(find(r, NULL, err));
    const int n = other_sizes(r, other) ? 2 : 1;
    for (int i = 0; i < n; i++)
        for (tl_dtype d = TL_F64; d < TL_DTYPE_COUNT; d++)
            if (tl_rule_claims(r, d, false)) {
                tl_err e = {.status = TL_OK};
                check(r, d, i == 0 ? NULL : other, tl_rule_claims(r, d, true), seed, rounds, &e);
                if (e.status == TL_EUSAGE && i > 0)
                    continue; /* it cannot be computed there, so no graph has it */
                if (e.status != TL_OK)
                    return tl_fail(err, e.status, "%s", e.message);
            }
    return TL_OK;
}

tl_status tl_register_replacement_with(tl_err *err, tl_replacement o)
{
    tl_err e = {.status = TL_OK};
    tl_rule *r = tl_rules_make(o, false, &e);
    for (int i = 0; r != NULL && i < r->o.forms && e.status == TL_OK; i++)
        verify(&r[i], 1, 8, &e); /* the test suite does so with the library's */
    if (r != NULL)
        tl_rules_add(r, &e);
    return e.status == TL_OK ? TL_OK
                             : tl_fail(err, e.status, "tl_register_replacement: '%s': %s",
                                       o.name != NULL ? o.name : "", e.message);
}

tl_status tl_replacement_check(const char *name, uint64_t seed, int rounds, tl_err *err)
{
    const tl_rule *r = tl_rule_find(name, 0, err);
    for (int i = 0; r != NULL && i < r->o.forms; i++)
        TL_TRY(verify(&r[i], seed, rounds, err));
    return r != NULL ? TL_OK : TL_ENAME;
}

tl_status tl_replacement_compare(const char *name, int form, tl_dtype dtype, const tl_shape *shapes,
                                 bool backward, uint64_t seed, int rounds, tl_err *err)
{
    const tl_rule *r = tl_rule_find(name, form, err);
    return r == NULL ? TL_ENAME : check(r, dtype, shapes, backward, seed, rounds, err);
}
