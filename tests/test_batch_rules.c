/* Every listed op's rule of dependence on the batch, against what the op computes. Calls of the op
 * are taken from its cases, and axes dealt out among their inputs at random. Where the rule says
 * that an output is per sample along an axis, the op is run on some of the samples, in another
 * order, some twice: each must have its bits. Where it says that an output is a total, samples one
 * by one must add up to it. TL_TEST_SEED repeats a run. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/batch.h"
#include "tests/cases/cases.h"
#include "tests/support/axes.h"

extern const struct CMUnitTest tl_tests_batch_rules[];
extern const size_t tl_tests_batch_rules_count;

enum { INPUTS = 16, OUTPUTS = 8, BLOCKS = 64, TRIALS = 12 };

/* An input as dealt: its own array; along `spread`, if not -1, it is one element seen often. */
typedef struct {
    bool present;
    tl_array a;
    tl_batch batch;
    int spread;
} operand;

/* A call, of n samples in blocks of `size`; picked: those that are run. */
typedef struct {
    const tl_op *op;
    _Alignas(16) char attrs[1024];
    unsigned mode;
    int n_in;
    operand in[INPUTS];
    int64_t n, size, picked[BLOCKS];
    int n_picked;
    unsigned spreads; /* inputs seen often: as often as there are samples */
    double scale;     /* of what is a total */
} problem;

typedef struct {
    tl_array a[OUTPUTS];
    tl_batch batch[OUTPUTS];
} results;

static char label[160];
static int complaints;

static void complain(const char *what, int i)
{
    if (complaints++ < 40)
        print_error("%s: %s %d\n", label, what, i);
}

static tl_array fresh(const tl_array *like)
{
    tl_array y = *like;
    const size_t bytes = (size_t)tl_array_count(like) * tl_dtype_size(like->dtype);
    tl_array_set_contiguous(&y);
    y.data = calloc(1, bytes + 1);
    assert_non_null(y.data);
    return y;
}

/* Blocks of x along an axis (-1: all of it). */
static tl_array blocks_of(const tl_array *x, int axis, const int64_t *block, int n, int64_t size)
{
    tl_array y = *x;
    if (axis >= 0)
        y.dim[axis] = n * size;
    y = fresh(&y);
    for (int k = 0; axis >= 0 && k < n && tl_array_count(&y) > 0; k++) {
        tl_array from = *x, to = y;
        const int64_t unit = (int64_t)tl_dtype_size(x->dtype);
        from.dim[axis] = to.dim[axis] = size;
        from.data = (char *)x->data + block[k] * size * x->stride[axis] * unit;
        to.data = (char *)y.data + k * size * y.stride[axis] * unit;
        tl_array_copy(&to, &from);
    }
    if (axis < 0 && tl_array_count(x) > 0)
        tl_array_copy(&y, x);
    return y;
}

static tl_tensor give(tl_tape *t, const problem *p, int i)
{
    const operand *x = &p->in[i];
    const int64_t zero = 0, now = p->n_picked * p->size;
    if (!x->present)
        return TL_NONE;
    tl_array a = x->spread >= 0 ? blocks_of(&x->a, x->spread, &zero, 1, 1)
                                : blocks_of(&x->a, x->batch, p->picked, p->n_picked, p->size);
    if (x->batch == TL_TOTAL)
        for (int64_t e = 0; e < tl_array_count(&a); e++)
            tl_array_put(&a, e, p->scale * tl_array_get(&a, e));
    tl_shape s = tl_array_shape(&a);
    tl_tensor y = tl_data(t, (const void *)a.data, a.dtype, s);
    free(a.data);
    if (x->spread >= 0) {
        s.dim[x->spread] = p->spreads & TL_BIT(i) ? now : p->n;
        y = tl_expand(t, y, s);
    }
    if (!tl_is_none(y))
        tl_batch_set(tl_peek(t, y), x->batch);
    return y;
}

/* Sizes among the attributes that are those of the samples: of `was`, the output along axis at. */
static void resize(problem *p, const tl_array *was, int at, int64_t now)
{
    for (const tl_attr *f = p->op->attr; f != NULL && f->name != NULL; f++) {
        tl_shape *s = (void *)(p->attrs + f->offset);
        const bool sizes = strcmp(f->name, "shape") == 0 || strcmp(f->name, "batch") == 0;
        if (sizes && p->op != &tl_op_permute && at >= 0 && at < s->ndim &&
            s->dim[at] == was->dim[at])
            s->dim[at] = now;
    }
}

static bool run(tl_tape *t, const problem *p, results *r)
{
    tl_tensor in[INPUTS], out[OUTPUTS];
    memset(r, 0, sizeof *r);
    tl_tape_reset(t);
    for (int i = 0; i < p->n_in; i++)
        in[i] = give(t, p, i);
    const unsigned mode = t->now.mode;
    t->now.mode = p->mode;
    tl_apply(TL_AT(t), p->op, p->attrs, in, p->n_in, out);
    t->now.mode = mode;
    for (int j = 0; j < p->op->n_out && !tl_failed(t); j++) {
        tl_array a;
        assert_true(tl_array_of(t, out[j], &a));
        r->a[j] = blocks_of(&a, -1, NULL, 0, 0);
        r->batch[j] = tl_batch_of(t, out[j]);
    }
    return !tl_failed(t);
}

static void drop(results *r)
{
    for (int j = 0; j < OUTPUTS; j++)
        free(r->a[j].data);
}

static bool same(const tl_array *a, const tl_array *b)
{
    if (!tl_array_same_shape(a, b))
        return false;
    for (int64_t i = 0; i < tl_array_count(a); i++) {
        const double x = tl_array_get(a, i), y = tl_array_get(b, i);
        if (memcmp(&x, &y, sizeof x) != 0 && !(isnan(x) && isnan(y)))
            return false;
    }
    return true;
}

/* p with those blocks. */
static problem picking(const problem *p, const results *whole, const int64_t *block, int n)
{
    problem q = *p;
    q.n_picked = n;
    memcpy(q.picked, block, (size_t)n * sizeof *block);
    for (int j = 0; j < p->op->n_out; j++)
        if (whole->batch[j] >= 0)
            resize(&q, &whole->a[j], whole->batch[j],
                   whole->a[j].dim[whole->batch[j]] / (p->n / p->size) * n);
    return q;
}

/* The per-sample outputs of p are its blocks of the whole; else what is wrong. */
static const char *differs(tl_tape *t, const problem *p, const results *whole)
{
    static char why[TL_MESSAGE_MAX];
    const int64_t n = p->n / p->size;
    results got;
    if (!run(t, p, &got)) {
        snprintf(why, sizeof why, "%s", tl_error(t));
        tl_error_clear(t);
        return why;
    }
    bool ok = true;
    for (int j = 0; j < p->op->n_out; j++) {
        const tl_batch at = whole->batch[j];
        if (at < 0)
            continue;
        tl_array want = blocks_of(&whole->a[j], at, p->picked, p->n_picked,
                                  whole->a[j].dim[at] / n);
        const bool one = want.dim[at] ==
                         1; /* a sample, which reshape cannot tell from other ones */
        ok &= (one || got.batch[j] == at) && same(&got.a[j], &want);
        free(want.data);
    }
    drop(&got);
    return ok ? NULL : "is not per sample";
}

/* Any of the samples, in any order: each has the bits it has among all. A constant that is the same
 * along a dim of as many has it as long as there are samples, or as it was. */
static void check_samples(tl_tape *t, const problem *p, const results *whole, uint64_t *state)
{
    const int64_t n = p->n / p->size;
    for (int trial = 0; trial < 3; trial++) {
        int64_t block[BLOCKS];
        const int m = 1 + (int)(tl_case_random(state) % (uint64_t)(n + 1));
        for (int k = 0; k < m; k++)
            block[k] = (int64_t)(tl_case_random(state) % (uint64_t)n);
        problem q = picking(p, whole, block, m);
        const char *why = NULL;
        unsigned spread = 0;
        for (int i = 0; i < p->n_in; i++)
            spread |= p->in[i].spread >= 0 ? TL_BIT(i) : 0;
        for (q.spreads = spread; (why = differs(t, &q, whole)) != NULL && q.spreads != 0;)
            q.spreads = (q.spreads - 1) & spread;
        if (why != NULL)
            complain(why, m);
    }
}

/* Samples one by one add up; a run without samples gives what is not of them. */
static void check_totals(tl_tape *t, const problem *p, const results *whole)
{
    const int64_t n = p->n / p->size;
    double *sum[OUTPUTS] = {NULL}, *size[OUTPUTS] = {NULL};
    for (int64_t k = -1; k < n; k++) {
        results got;
        problem q = picking(p, whole, &k, k < 0 ? 0 : 1);
        if (!run(t, &q, &got)) {
            complain(tl_error(t), (int)k);
            tl_error_clear(t);
            break;
        }
        for (int j = 0; j < p->op->n_out; j++) {
            const int64_t count = tl_array_count(&got.a[j]);
            if (whole->batch[j] != TL_TOTAL)
                continue;
            if (sum[j] == NULL) {
                sum[j] = calloc((size_t)count + 1, sizeof(double));
                size[j] = calloc((size_t)count + 1, sizeof(double));
            }
            for (int64_t i = 0; i < count; i++) {
                sum[j][i] += (k < 0 ? (double)(1 - n) : 1) * tl_array_get(&got.a[j], i);
                size[j][i] += fabs(tl_array_get(&got.a[j], i));
            }
        }
        drop(&got);
    }
    for (int j = 0; j < OUTPUTS; j++) {
        for (int64_t i = 0; sum[j] != NULL && i < tl_array_count(&whole->a[j]); i++)
            if (!(fabs(sum[j][i] - tl_array_get(&whole->a[j], i)) <= 1e-9 * (1 + size[j][i]))) {
                complain("does not add up: output", j);
                break;
            }
        free(sum[j]);
        free(size[j]);
    }
}

/* What a total goes into is linear in it, but for a constant. */
static void check_linear(tl_tape *t, problem *p, const results *whole)
{
    results twice, none;
    p->scale = 2;
    bool ok = run(t, p, &twice);
    p->scale = 0;
    ok = ok && run(t, p, &none);
    p->scale = 1;
    if (!ok) {
        tl_error_clear(t);
        complain("cannot be scaled", 0);
        return;
    }
    for (int j = 0; j < p->op->n_out; j++)
        for (int64_t i = 0; whole->batch[j] == TL_TOTAL && i < tl_array_count(&whole->a[j]); i++) {
            const double x = tl_array_get(&whole->a[j], i), y = tl_array_get(&twice.a[j], i),
                         z = tl_array_get(&none.a[j], i);
            if (isfinite(x) && !(fabs(y + z - 2 * x) <= 1e-9 * (1 + fabs(x) + fabs(y)))) {
                complain("is not linear in a total: output", j);
                break;
            }
        }
    drop(&twice);
    drop(&none);
}

/* ---- calls ---- */

/* How often an op was found per sample, a total, either of several inputs. */
typedef struct {
    int samples, totals, mixed;
} found;
static found seen[512];

/* Deals out axes; false if that makes no sense. */
static bool deal(problem *p, uint64_t *state)
{
    const bool totals = tl_case_random(state) % 5 == 0;
    p->n = -1;
    for (int i = 0; i < p->n_in; i++) {
        operand *x = &p->in[i];
        x->batch = TL_FREE;
        x->spread = -1;
        if (!x->present || x->a.ndim == 0 || tl_case_random(state) % 3 == 0)
            continue;
        if (totals) {
            x->batch = x->a.dtype == TL_F64 ? TL_TOTAL : TL_FREE;
            continue;
        }
        const int axis = (int)(tl_case_random(state) % (uint64_t)x->a.ndim);
        const int64_t n = x->a.dim[axis];
        if (n < 2 || n > BLOCKS - 2 || (p->n > 0 && n != p->n))
            continue;
        p->n = n;
        x->batch = (tl_batch)axis;
    }
    for (int i = 0; i < p->n_in && !totals; i++) { /* constants that are the same for all samples */
        operand *x = &p->in[i];
        for (int d = 0; x->present && x->batch == TL_FREE && d < x->a.ndim && x->spread < 0; d++)
            if (x->a.dim[d] == p->n && tl_case_random(state) % 2)
                x->spread = d;
    }
    bool any = false;
    for (int i = 0; i < p->n_in; i++)
        any |= p->in[i].batch != TL_FREE;
    return any;
}

static bool floats_are_f64(const problem *p)
{
    for (int i = 0; i < p->n_in; i++)
        if (p->in[i].present && tl_dtype_is_float(p->in[i].a.dtype) && p->in[i].a.dtype != TL_F64)
            return false;
    return true;
}

/* Slices of all samples name their number. */
static bool names_samples(const problem *p)
{
    if (p->op != &tl_op_slice && p->op != &tl_op_slice_grad)
        return false;
    int64_t dim = -1;
    for (const tl_attr *f = p->op->attr; f->name != NULL; f++)
        if (f->kind == TL_ATTR_DIM)
            dim = *(const int64_t *)(const void *)(p->attrs + f->offset);
    return p->in[0].batch == (dim < 0 ? dim + p->in[0].a.ndim : dim);
}

static void check(tl_tape *t, problem *p, int op, uint64_t *state)
{
    results whole;
    int64_t all[BLOCKS];
    p->size = 1;
    p->scale = 1;
    p->spreads = ~0u;
    p->n_picked = (int)(p->n > 0 ? p->n : 0);
    for (int64_t k = 0; k < BLOCKS; k++)
        p->picked[k] = all[k] = k;
    if (!run(t, p, &whole)) { /* such as one in place on what shows an element often */
        tl_error_clear(t);
        return;
    }
    bool samples = false, total = false;
    for (int j = 0; j < p->op->n_out; j++) {
        samples |= whole.batch[j] >= 0;
        total |= whole.batch[j] == TL_TOTAL;
        const int64_t out = whole.batch[j] >= 0 ? whole.a[j].dim[whole.batch[j]] : p->n;
        if (out > 0 && out < p->n)
            p->size = p->n / out > p->size ? p->n / out : p->size;
    }
    seen[op].samples += samples;
    seen[op].totals += total;
    seen[op].mixed += !samples && !total;
    snprintf(label + strlen(label), sizeof label - strlen(label), ":");
    for (int i = 0; i < p->n_in; i++) {
        char text[TL_SHAPE_TEXT];
        const size_t at = strlen(label);
        snprintf(label + at, sizeof label - at, " %s/%d%s",
                 p->in[i].present ? tl_array_shape_text(text, &p->in[i].a) : "-", p->in[i].batch,
                 p->in[i].spread >= 0 ? "*" : "");
    }
    if (p->n < 0 && total)
        check_linear(t, p, &whole);
    if (p->n > 0 && samples && !names_samples(p))
        check_samples(t, p, &whole, state);
    if (p->n > 0 && total && floats_are_f64(p) && !names_samples(p))
        check_totals(t, p, &whole);
    drop(&whole);
}

static int number_of(const tl_op *op)
{
    for (int i = 0; i < tl_op_count(); i++)
        if (tl_op_at(i) == op)
            return i;
    return -1;
}

/* The sample numbers of dropout from one of row 0, one for each row: else a part has others. */
static void number_rows(problem *p)
{
    operand *x = &p->in[1];
    if (p->op != &tl_op_dropout || x->a.ndim > 0)
        return;
    const int64_t first = *(const int64_t *)x->a.data;
    tl_array rows = x->a;
    rows.ndim = 1;
    rows.dim[0] = p->in[0].a.dim[0];
    free(x->a.data);
    x->a = fresh(&rows);
    for (int64_t i = 0; i < x->a.dim[0]; i++)
        ((int64_t *)x->a.data)[i] = first + i;
}

static void check_node(tl_tape *t, tl_tape *from, const tl_node *n, const char *name,
                       uint64_t *state)
{
    problem p = {.op = n->op, .mode = n->mode & ~(unsigned)TL_TRACE, .n_in = n->n_in};
    const int op = number_of(n->op);
    if (op < 0 || n->n_in == 0 || n->n_in > INPUTS || n->op->attr_size > sizeof p.attrs)
        return;
    if (n->op->attr_size)
        memcpy(p.attrs, n->attrs, n->op->attr_size);
    for (int i = 0; i < n->n_in; i++) {
        tl_array a;
        p.in[i].present = !tl_is_none(n->in[i]);
        if (p.in[i].present) {
            a = tl_peek(from, n->in[i])->a;
            p.in[i].a = blocks_of(&a, -1, NULL, 0, 0);
        }
    }
    number_rows(&p);
    for (int trial = 0; trial < TRIALS; trial++)
        if (deal(&p, state)) {
            snprintf(label, sizeof label, "%s of '%s'", n->op->name, name);
            check(t, &p, op, state);
        }
    for (int i = 0; i < n->n_in; i++)
        if (p.in[i].present)
            free(p.in[i].a.data);
}

/* Whoever looks at values when a backward begins: none is let go. */
static void looks(void *ctx, tl_tape *t, tl_tensor y) { (void)ctx, (void)t, (void)y; }
static const tl_observer onlooker = {.backward_begins = looks};

static void every_rule_holds(void **unused)
{
    (void)unused;
    complaints = 0;
    memset(seen, 0, sizeof seen);
    assert_true(tl_op_count() <= 512);
    tl_tape *t = tl_tape_new(NULL);
    uint64_t seed = tl_axes_seed();
    for (int k = 0; k < tl_case_count(); k++) {
        const tl_case *c = tl_case_at(k);
        tl_dtype d;
        for (int i = 0; !(c->flags & CASE_BIG) && tl_case_dtype(c, i, &d); i++) {
            if (d != TL_F64 && d != TL_F32 && d != TL_BF16)
                continue;
            case_run r = tl_case_run(c, d);
            ref_tensor leaf[CASE_INPUTS];
            tl_tensor in[CASE_INPUTS], out[CASE_OUTPUTS];
            uint64_t state = tl_case_seed(seed, &r, CASE_PLAIN);
            tl_tape *from = tl_tape_new(NULL);
            assert_int_equal(tl_observe(from, &onlooker, NULL), TL_OK);
            tl_case_fill(&r, &state, CASE_PLAIN, leaf);
            for (int j = 0; j < r.n; j++)
                in[j] = tl_case_leaf(from, &leaf[j]);
            tl_case_call(from, &r, in, out);
            assert_false(tl_failed(from));
            for (uint32_t n = 0; n < from->n_nodes; n++)
                check_node(t, from, &from->node[n], r.label, &state);
            tl_case_free(r.n, leaf);
            tl_free(from);
        }
    }
    tl_free(t);
    assert_int_equal(complaints, 0);
}

/* Optimizers' updates are of parameters: no rule, so that a use on samples is named. */
/* Whole parameters, or parts of a fold: no samples. */
static bool updates(const tl_op *op)
{
    static const char *const names[] = {"store", "assign", "master",
                                        "sgd",   "adamw",  "stack_samples"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(op->name, names[i]) == 0)
            return true;
    return false;
}

/* After the other: a rule that always says "mixed" would hold. */
static void no_rule_is_empty(void **unused)
{
    int empty = 0;
    (void)unused;
    for (int i = 0; i < tl_op_count(); i++) {
        const tl_op *op = tl_op_at(i);
        if (getenv("TL_SHOW_RULES"))
            print_message("%-20s %6d per sample %6d totals %6d mixed\n", op->name, seen[i].samples,
                          seen[i].totals, seen[i].mixed);
        if (op->n_in != 0 && seen[i].samples + seen[i].totals == 0 && !updates(op)) {
            print_error("%s: on no call does an output depend on the batch but mixed\n", op->name);
            empty++;
        }
    }
    assert_int_equal(empty, 0);
}

/* ---- views of some of the samples ---- */

typedef struct {
    int rows; /* padding behind it */
    int64_t n;
} first_attrs;

static const tl_attr first_schema[] = {{"n", TL_ATTR_I64, offsetof(first_attrs, n)}, {0}};

static tl_status first_shape(tl_call *c)
{
    c->out[0] = *c->in[0];
    c->out[0].dim[0] = ((const first_attrs *)c->attrs)->n;
    return TL_OK;
}

static void first_batch(const tl_call *c, const tl_batch *in, tl_batch *out)
{
    (void)c;
    out[0] = in[0];
}

/* Two views of the same samples meet; whatever lies between their attributes, which no schema
 * names. Views of other samples do not. */
static void parts_are_told_apart_by_their_attributes(void **unused)
{
    static const tl_op first = {.name = "first",
                                .n_in = 1,
                                .n_out = 1,
                                .attr = first_schema,
                                .attr_size = sizeof(first_attrs),
                                .traits = TL_VIEW | TL_NONDIFF,
                                .shape = first_shape,
                                .batch = first_batch};
    (void)unused;
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = tl_zeros(t, TL_F32, TL_DIMS(8, 2)), y[3], sum;
    tl_batch_axis(t, x, 0);
    for (int i = 0; i < 3; i++) {
        first_attrs a;
        memset(&a, 0x11 * (i + 1), sizeof a);
        a.n = 4;
        x = i < 2 ? x : tl_slice(t, x, 0, 2, 8, 1);
        y[i] = tl_apply1(TL_AT(t), &first, &a, &x, 1);
    }
    assert_int_equal(tl_batch_of(t, y[0]), 0);
    sum = tl_add(t, y[0], y[1]);
    assert_int_equal(tl_batch_of(t, sum), 0);
    sum = tl_add(t, y[0], y[2]);
    assert_int_equal(tl_batch_of(t, sum), TL_MIXED);
    assert_false(tl_failed(t));
    tl_free(t);
}

const struct CMUnitTest tl_tests_batch_rules[] = {cmocka_unit_test(every_rule_holds),
                                                  cmocka_unit_test(no_rule_is_empty),
                                                  cmocka_unit_test(
                                                      parts_are_told_apart_by_their_attributes)};
const size_t tl_tests_batch_rules_count = sizeof tl_tests_batch_rules /
                                          sizeof *tl_tests_batch_rules;
