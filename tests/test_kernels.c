/* test_kernels.c: selecting kernels - the listing, which one ran, scopes by op and dtype, a user's own kernels
 * forward, in backward, in segments and in graphs, and those that declare the contract's bits without giving them. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <tally.h>

#include "ops/list.h"
#include "tensor/isa.h"

extern const struct CMUnitTest tl_tests_kernels[];
extern const size_t tl_tests_kernels_count;

static tl_tape *t;
static tl_model *m;

static int begin(void **unused)
{
    (void)unused;
    m = tl_model_new(.seed = 7);
    t = tl_tape_new(m);
    return t == NULL;
}

static int end(void **unused)
{
    (void)unused;
    tl_free(t, m);
    return 0;
}

static void fails(tl_status s, const char *words)
{
    if (tl_error_status(t) != s || strstr(tl_error(t), words) == NULL)
        fail_msg("%s and '%s' wanted: %s: %s", tl_status_name(s), words, tl_status_name(tl_error_status(t)), tl_error(t));
    tl_error_clear(t);
}

static void sound(void)
{
    if (tl_failed(t))
        fail_msg("%s", tl_error(t));
}

static void ran(tl_tensor x, const char *want)
{
    const char *got = tl_kernel_of(t, x);
    sound();
    assert_string_equal(got, want);
}

/* "OP DTYPE invariant LEVEL" */
static void ran_own(tl_tensor x, const char *op_and_dtype)
{
    char want[64];
    snprintf(want, sizeof want, "%s invariant %s", op_and_dtype, tl_isa_now()->name);
    ran(x, want);
}

static tl_tensor numbers(tl_dtype d, int64_t rows, int64_t cols, int k) { return tl_probe_numbers(t, d, TL_DIMS(rows, cols), k, false); }
static tl_tensor weight(const char *name, int64_t rows, int64_t cols) { return tl_param(t, m, name, TL_F32, TL_DIMS(rows, cols), TL_INIT_NORMAL, 1); }
static tl_tensor total(tl_tensor x) { return tl_sum(t, x, TL_ALL, false); }

static void hash_of(tl_tensor x, char hex[65])
{
    tl_sha256(t, x, hex);
    sound();
}

/* ---- a user's kernels ---- */

static int calls;

/* The chain of NUMERICS 5, as naively as it stands there, spoilt in one of several ways. */
typedef enum { RIGHT, HALVES, TWO_ROUNDINGS, MINUS_ZERO, FORGETS, IN_F64, BACKWARDS, FAULTS } fault;

static float element(const tl_gemm_args *g, int64_t i, int64_t j, fault how)
{
    const float *a = (const float *)g->a.data + i * g->a.rs, *b = (const float *)g->b.data + j * g->b.cs;
    const bool goes_on = g->accumulate && how != FORGETS;
    float acc = goes_on ? ((float *)g->c)[i * g->rsc + j * g->csc] : 0, second = 0;
    double wide = (double)acc;
    for (int64_t n = 0; n < g->k; n++) {
        int64_t p = how == BACKWARDS ? g->k - 1 - n : n;
        float x = a[p * g->a.cs], y = b[p * g->b.rs];
        volatile float product = x * y;
        wide += (double)x * (double)y;
        if (how == TWO_ROUNDINGS)
            acc = acc + product;
        else if (how == HALVES && p >= 256) /* as a library does that starts each block of K from zero */
            second = fmaf(x, y, second);
        else
            acc = fmaf(x, y, acc);
    }
    acc = how == IN_F64 ? (float)wide : how == HALVES ? acc + second : acc;
    return how == MINUS_ZERO ? acc : acc + 0.0f;
}

static bool multiply(const tl_gemm_args *g, fault how)
{
    if (g->f64 || g->a.type != TL_GEMM_F32 || g->b.type != TL_GEMM_F32)
        return false;
    calls++;
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t j = 0; j < g->n; j++)
            ((float *)g->c)[i * g->rsc + j * g->csc] = element(g, i, j, how);
    return true;
}

#define FAULT(how, id)                                                                                  \
    static bool gemm_##id(const tl_gemm_args *g) { return multiply(g, how); }                           \
    static tl_status run_##id(tl_call *c) { return tl_matmul_with(c, gemm_##id); }
FAULT(RIGHT, right)
FAULT(HALVES, halves)
FAULT(TWO_ROUNDINGS, two_roundings)
FAULT(MINUS_ZERO, minus_zero)
FAULT(FORGETS, forgets)
FAULT(IN_F64, in_f64)
FAULT(BACKWARDS, backwards)

#define MATMUL(id, bits) {.op = "matmul", .name = "test-" #id, .dtype = TL_F32, .mode = bits, .run = run_##id}
static const tl_kernel declared[FAULTS] = {
    [RIGHT] = MATMUL(right, TL_INVARIANT),
    [HALVES] = MATMUL(halves, TL_INVARIANT),
    [TWO_ROUNDINGS] = MATMUL(two_roundings, TL_INVARIANT),
    [MINUS_ZERO] = MATMUL(minus_zero, TL_INVARIANT),
    [FORGETS] = MATMUL(forgets, TL_INVARIANT),
    [IN_F64] = MATMUL(in_f64, TL_INVARIANT),
    [BACKWARDS] = MATMUL(backwards, TL_INVARIANT),
};
static const tl_kernel own_bits = {.op = "matmul", .name = "test-own", .dtype = TL_F32, .mode = TL_FAST, .run = run_halves};

static void doubled(const tl_tile *k)
{
    calls++;
    for (int64_t i = 0; i < k->n; i++) {
        if (k->dtype == TL_F64)
            ((double *)k->out)[i] = 2 * ((const double *)k->in[0])[i];
        else
            ((float *)k->out)[i] = 2 * ((const float *)k->in[0])[i];
    }
}

static void negated(const tl_tile *k)
{
    for (int64_t i = 0; i < k->n; i++)
        ((float *)k->out)[i] = -((const float *)k->in[0])[i];
}

static bool wide_enough(const tl_call *c) { return c->in[0]->dim[0] >= 4; }

static const tl_kernel silu_doubled = {.op = "silu", .name = "test-doubled", .dtype = TL_ANY_DTYPE, .mode = TL_FAST, .tile = doubled, .fits = wide_enough};
static const tl_kernel silu_grad_doubled = {.op = "silu_grad", .name = "test-doubled", .dtype = TL_F32, .mode = TL_FAST, .tile = doubled};
static const tl_kernel neg_right = {.op = "neg", .name = "test-neg", .dtype = TL_F32, .mode = TL_INVARIANT, .tile = negated};
static const tl_kernel neg_wrong = {.op = "neg", .name = "test-wrong", .dtype = TL_F32, .mode = TL_INVARIANT, .tile = doubled};
static const tl_kernel tile_of_matmul = {.op = "matmul", .name = "test-tile", .dtype = TL_F32, .mode = TL_FAST, .tile = doubled};
/* Two levels of one kernel, which give different answers so that one sees which ran. */
static const tl_kernel abs_low = {.op = "abs", .name = "test-levels", .dtype = TL_F32, .mode = TL_FAST, .isa = "scalar", .tile = doubled};
static const tl_kernel abs_high = {.op = "abs", .name = "test-levels", .dtype = TL_F32, .mode = TL_FAST, .isa = "v3", .tile = negated};
static const tl_kernel abs_never = {.op = "abs", .name = "test-never", .dtype = TL_F32, .mode = TL_FAST, .isa = "v99", .tile = doubled};

/* The table belongs to the process: once. */
static void registered(void)
{
    static bool done;
    const tl_kernel *const others[] = {&own_bits, &silu_doubled, &silu_grad_doubled, &neg_right, &neg_wrong, &tile_of_matmul, &abs_low, &abs_high, &abs_never};
    for (size_t i = 0; i < sizeof others / sizeof *others && !done; i++)
        assert_int_equal(tl_kernel_register(t, others[i]), TL_OK);
    for (int i = 0; i < FAULTS && !done; i++)
        assert_int_equal(tl_kernel_register(t, &declared[i]), TL_OK);
    done = true;
    calls = 0;
}

/* ---- the table ---- */

static void every_op_stands_in_the_table_at_every_level(void **unused)
{
    (void)unused;
    for (int op = 0; op < tl_op_count(); op++) {
        int levels = 0, found = 0;
        while (tl_isa_at(levels) != NULL)
            levels++;
        tl_kernel_row row;
        for (int i = 0; tl_kernel_at(i, &row); i++)
            if (strcmp(row.op, tl_op_at(op)->name) == 0 && strcmp(row.name, "invariant") == 0) {
                assert_string_equal(row.isa, tl_isa_at(found)->name);
                assert_int_equal(row.mode, TL_INVARIANT);
                found++;
            }
        assert_int_equal(found, tl_op_at(op)->traits & TL_VIEW ? 0 : levels);
    }
    tl_kernel_row row;
    assert_false(tl_kernel_at(-1, &row));
}

static void a_registered_kernel_is_listed_once(void **unused)
{
    (void)unused;
    registered();
    int found = 0;
    tl_kernel_row row;
    for (int i = 0; tl_kernel_at(i, &row); i++)
        if (strcmp(row.name, "test-levels") == 0 && strcmp(row.isa, "v3") == 0) {
            assert_string_equal(row.op, "abs");
            assert_int_equal(row.dtype, TL_F32);
            assert_int_equal(row.mode, TL_FAST);
            found++;
        }
    assert_int_equal(found, 1);
}

static void a_registration_that_makes_no_sense_is_refused(void **unused)
{
    static const tl_kernel nameless = {.op = "matmul", .name = "", .run = run_right}, reserved = {.op = "matmul", .name = "invariant", .run = run_right},
                           fast = {.op = "neg", .name = "fast", .tile = doubled}, empty = {.op = "neg", .name = "test-empty"},
                           both = {.op = "neg", .name = "test-both", .tile = doubled, .run = run_right},
                           blind = {.op = "softmax", .name = "test-blind", .dtype = TL_F32, .mode = TL_INVARIANT, .run = run_right};
    (void)unused;
    registered();
    assert_int_equal(tl_kernel_register(t, &nameless), TL_ENAME);
    fails(TL_ENAME, "needs the name");
    tl_kernel_register(t, NULL);
    fails(TL_ENAME, "needs the name");
    tl_kernel_register(t, &reserved);
    fails(TL_ENAME, "'invariant' is taken");
    tl_kernel_register(t, &fast);
    fails(TL_ENAME, "'fast' is taken");
    tl_kernel_register(t, &empty);
    fails(TL_EUSAGE, "run or tile");
    tl_kernel_register(t, &both);
    fails(TL_EUSAGE, "run or tile");
    tl_kernel_register(t, &blind);
    fails(TL_EUSAGE, "softmax has no probe");
    tl_kernel_register(t, &own_bits);
    fails(TL_ENAME, "already");
}

/* ---- which one ran ---- */

static void what_ran_is_told(void **unused)
{
    static const tl_dtype dtypes[] = {TL_F32, TL_F64, TL_BF16, TL_F16};
    static const char *const names[] = {"matmul F32", "matmul F64", "matmul BF16", "matmul F16"};
    (void)unused;
    for (int i = 0; i < 4; i++)
        ran_own(tl_matmul(t, numbers(dtypes[i], 3, 4, 0), numbers(dtypes[i], 4, 2, 1)), names[i]);
    tl_tensor w = weight("w", 4, 4);
    ran(w, "");
    ran(numbers(TL_F32, 2, 2, 0), "");
    ran(tl_transpose(t, w, 0, 1), "permute F32 view");
    ran_own(tl_fill(t, TL_I64, TL_DIMS(2), 1), "fill I64");
    ran_own(tl_where(t, tl_lt(t, w, tl_neg(t, w)), w, w), "where F32");
    int s = tl_mode_push(t, TL_TRACE);
    ran(tl_exp(t, w), "exp F32 traced");
    tl_mode_pop(t, s);
    char before[16];
    snprintf(before, sizeof before, "%s", tl_isa_now()->name);
    for (int i = 0; tl_isa_at(i) != NULL; i++) {
        tl_isa_force(tl_isa_at(i)->name);
        ran_own(tl_exp(t, w), "exp F32");
    }
    tl_isa_force(before);
    assert_null(tl_kernel_of(t, TL_NONE));
    fails(TL_ESTALE, "tl_kernel_of");
}

/* ---- scopes ---- */

static tl_tensor product(tl_dtype d) { return tl_matmul(t, numbers(d, 5, 300, 0), numbers(d, 300, 6, 1)); }

static void a_scope_speaks_of_one_op_and_dtype(void **unused)
{
    (void)unused;
    registered();
    int s = tl_kernel_push(t, "matmul", TL_F32, "test-own");
    ran(product(TL_F32), "matmul F32 test-own");
    ran_own(product(TL_F64), "matmul F64");
    ran_own(product(TL_BF16), "matmul BF16");
    ran_own(tl_silu(t, numbers(TL_F32, 5, 5, 0)), "silu F32");
    tl_mode_pop(t, s);
    ran_own(product(TL_F32), "matmul F32");
}

static void scopes_nest_and_the_innermost_decides(void **unused)
{
    (void)unused;
    registered();
    int outer = tl_kernel_push(t, "matmul", TL_F32, "test-own");
    int none = tl_kernel_push(t, "silu", TL_ANY_DTYPE, "test-doubled");
    ran(product(TL_F32), "matmul F32 test-own"); /* that one speaks of another op */
    int inner = tl_kernel_push(t, "matmul", TL_ANY_DTYPE, "invariant");
    ran_own(product(TL_F32), "matmul F32");
    ran(tl_silu(t, numbers(TL_F32, 5, 5, 0)), "silu F32 test-doubled");
    int all = tl_kernel_push(t, NULL, TL_ANY_DTYPE, "invariant");
    ran_own(tl_silu(t, numbers(TL_F32, 5, 5, 0)), "silu F32");
    tl_mode_pop(t, all);
    tl_mode_pop(t, inner);
    tl_mode_pop(t, inner); /* twice closes no more than once */
    ran(product(TL_F32), "matmul F32 test-own");
    tl_mode_pop(t, outer); /* and what is open inside goes with it */
    ran_own(tl_silu(t, numbers(TL_F32, 5, 5, 0)), "silu F32");
    (void)none;
}

static void an_error_path_leaves_no_scope_on(void **unused)
{
    (void)unused;
    registered();
    int s = tl_mode_push(t, 0);
    tl_kernel_push(t, "matmul", TL_F32, "test-own");
    tl_mode_push(t, TL_FAST);
    tl_kernel_push(t, "silu", TL_F32, "test-doubled");
    tl_add(t, numbers(TL_F32, 2, 2, 0), numbers(TL_F32, 3, 3, 0)); /* fails: nobody closes the three */
    tl_mode_pop(t, s);
    fails(TL_ESHAPE, "add");
    ran_own(product(TL_F32), "matmul F32");
    ran_own(tl_silu(t, numbers(TL_F32, 5, 5, 0)), "silu F32");
}

static void a_push_that_fails_opens_nothing(void **unused)
{
    (void)unused;
    registered();
    int outer = tl_kernel_push(t, "matmul", TL_F32, "test-own");
    int s = tl_kernel_push(t, "matmul", TL_F32, "no such");
    assert_int_equal(tl_kernel_push(t, "matmul", TL_F32, "test-own"), s); /* failed: nothing opens */
    fails(TL_ENAME, "no kernel 'no such' of matmul for F32");
    tl_mode_pop(t, s); /* closes nothing */
    ran(product(TL_F32), "matmul F32 test-own");
    tl_kernel_push(t, "matmull", TL_F32, "invariant");
    fails(TL_ENAME, "'matmull'");
    tl_kernel_push(t, "matmul", TL_F64, "test-own");
    fails(TL_ENAME, "for F64");
    tl_kernel_push(t, "abs", TL_F32, "test-never");
    fails(TL_ENAME, "at level");
    tl_mode_pop(t, outer);
    for (int i = 0; i < 1000; i++)
        tl_kernel_push(t, "matmul", TL_F32, "test-own");
    fails(TL_EUSAGE, "scopes are open");
    tl_mode_pop(t, 0);
    ran_own(product(TL_F32), "matmul F32");
}

static void fast_is_a_scope_like_any_other(void **unused)
{
    (void)unused;
    tl_kernel_row row;
    bool blis = false;
    for (int i = 0; tl_kernel_at(i, &row); i++)
        blis |= strcmp(row.name, "blis") == 0;
    int s = tl_mode_push(t, TL_FAST);
    if (blis) {
        ran(product(TL_F32), "matmul F32 blis");
        ran(product(TL_F64), "matmul F64 blis");
    } else {
        ran_own(product(TL_F32), "matmul F32");
    }
    ran_own(product(TL_BF16), "matmul BF16"); /* BLIS has none */
    ran_own(tl_silu(t, numbers(TL_F32, 5, 5, 0)), "silu F32");
    int inner = tl_kernel_push(t, "matmul", TL_F32, "invariant");
    ran_own(product(TL_F32), "matmul F32");
    tl_mode_pop(t, inner);
    tl_mode_pop(t, s);
    int one = tl_kernel_push(t, "matmul", TL_F64, "fast");
    ran_own(product(TL_F32), "matmul F32");
    if (blis)
        ran(product(TL_F64), "matmul F64 blis");
    tl_mode_pop(t, one);
}

static void the_highest_level_that_runs_is_taken(void **unused)
{
    (void)unused;
    registered();
    char before[16];
    snprintf(before, sizeof before, "%s", tl_isa_now()->name);
    int s = tl_kernel_push(t, "abs", TL_F32, "test-levels");
    bool v3 = false;
    for (int i = 0; tl_isa_at(i) != NULL; i++) {
        v3 |= strcmp(tl_isa_at(i)->name, "v3") == 0;
        tl_isa_force(tl_isa_at(i)->name);
        tl_tensor y = tl_abs(t, tl_fill(t, TL_F32, TL_SCALAR, 3));
        ran(y, v3 ? "abs F32 test-levels v3" : "abs F32 test-levels scalar");
        assert_true(tl_item(t, y) == (v3 ? -3 : 6));
    }
    tl_isa_force(before);
    tl_mode_pop(t, s);
}

static void a_call_that_does_not_fit_is_the_library_s(void **unused)
{
    (void)unused;
    registered();
    int s = tl_kernel_push(t, "silu", TL_ANY_DTYPE, "test-doubled");
    tl_tensor small = tl_silu(t, numbers(TL_F32, 3, 2, 0)), large = tl_silu(t, tl_fill(t, TL_BF16, TL_DIMS(4), 1.5));
    tl_mode_pop(t, s);
    ran_own(small, "silu F32");
    ran(large, "silu BF16 test-doubled");
    uint16_t got[4];
    assert_int_equal(tl_keep(t, large, got, sizeof got), TL_OK);
    assert_int_equal(got[3], 0x4040); /* 3 */
    s = tl_kernel_push(t, "matmul", TL_F32, "test-tile");
    assert_true(tl_is_none(product(TL_F32)));
    tl_mode_pop(t, s);
    fails(TL_EUSAGE, "not pointwise");
}

/* ---- backward, segments, graphs ---- */

static void backward_uses_it_though_the_scope_is_closed(void **unused)
{
    char mine[2][65], library[2][65];
    (void)unused;
    registered();
    for (int pass = 0; pass < 2; pass++) {
        tl_tape_reset(t);
        tl_grad_clear(t);
        calls = 0;
        tl_tensor a = weight("a", 700, 30), b = weight("b", 30, 8);
        int s = pass ? tl_kernel_push(t, "matmul", TL_F32, "test-own") : 0;
        tl_tensor y = total(tl_tanh(t, tl_matmul(t, a, b)));
        if (pass)
            tl_mode_pop(t, s);
        assert_int_equal(calls, pass);
        assert_int_equal(tl_backward(t, y), TL_OK);
        assert_int_equal(calls, 3 * pass); /* dA = dC B^T, dB = A^T dC: the second is a chain of 700 */
        hash_of(tl_grad(t, a), pass ? mine[0] : library[0]);
        hash_of(tl_grad(t, b), pass ? mine[1] : library[1]);
    }
    assert_string_equal(mine[0], library[0]); /* chains of 8: halves are the whole */
    assert_string_not_equal(mine[1], library[1]);
    calls = 0;
    tl_grad_clear(t);
    tl_tensor y = total(tl_matmul(t, weight("a", 700, 30), weight("b", 30, 8)));
    int s = tl_kernel_push(t, "matmul", TL_F32, "test-own");
    tl_backward(t, y); /* a scope around the call of tl_backward is not the nodes' */
    tl_mode_pop(t, s);
    assert_int_equal(calls, 0);
    sound();
}

static void a_kernel_of_an_op_that_only_backward_calls(void **unused)
{
    (void)unused;
    registered();
    tl_tensor w = weight("w", 4, 4);
    int s = tl_kernel_push(t, "silu_grad", TL_F32, "test-doubled");
    tl_tensor y = total(tl_silu(t, w));
    tl_mode_pop(t, s);
    assert_int_equal(calls, 0);
    tl_backward(t, y);
    sound();
    assert_true(calls > 0);
    assert_true(tl_item(t, tl_max(t, tl_grad(t, w), TL_ALL, false)) == 2); /* twice the cotangent */
}

static void a_segment_is_computed_again_by_the_same_kernel(void **unused)
{
    (void)unused;
    registered();
    tl_tensor w = weight("w", 40, 40), x = numbers(TL_F32, 8, 40, 0);
    uint32_t from = tl_segment_begin(t);
    int s = tl_kernel_push(t, "matmul", TL_F32, "test-own");
    tl_tensor h = tl_exp(t, tl_tanh(t, tl_matmul(t, x, w)));
    tl_mode_pop(t, s);
    tl_segment_end(t, from, &h, 1, true); /* verified: other bits would be an error */
    tl_tensor y = total(tl_square(t, h));
    assert_int_equal(calls, 1);
    tl_backward(t, y);
    sound();
    assert_int_equal(calls, 3); /* again, and for the gradient of w */
}

static void program(tl_tape *on, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    (void)n_in, (void)n_out, (void)ctx;
    int s = tl_kernel_push(on, "silu", TL_F32, "test-doubled");
    tl_tensor h = tl_silu(on, tl_matmul(on, in[0], in[1]));
    tl_mode_pop(on, s);
    out[0] = tl_add(on, h, tl_silu(on, h));
}

static void a_graph_runs_the_kernels_it_was_traced_with(void **unused)
{
    char eager[2][65], replay[2][65];
    (void)unused;
    registered();
    tl_compiled *c = tl_compile(t, program, 1, NULL);
    for (int own = 0; own < 2; own++) {
        tl_tape_reset(t);
        int s = tl_mode_push(t, TL_NO_GRAD);
        if (own)
            tl_kernel_push(t, "matmul", TL_F32, "test-own");
        tl_tensor in[2] = {numbers(TL_F32, 6, 300, 0), numbers(TL_F32, 300, 7, 1)}, out;
        program(t, in, 2, &out, 1, NULL);
        hash_of(out, eager[own]);
        for (int again = 0; again < 2; again++) {
            calls = 0;
            assert_int_equal(tl_run(c, in, 2, &out), TL_OK);
            assert_int_equal(calls, 1 + own); /* one tile of silu; and the product */
            hash_of(out, replay[own]);
            assert_string_equal(replay[own], eager[own]);
        }
        tl_mode_pop(t, s);
    }
    assert_int_equal(tl_compiled_count(c), 2); /* another selection, another graph */
    assert_string_not_equal(eager[0], eager[1]);
    tl_free(c);
}

/* ---- the promise ---- */

static void a_kernel_that_disobeys_is_refused(void **unused)
{
    char line[512], words[64];
    (void)unused;
    registered();
    for (int i = RIGHT + 1; i < FAULTS; i++) {
        int bad = tl_kernel_check("matmul", TL_F32, declared[i].name, line, sizeof line);
        if (bad <= 0 || strncmp(line, "matmul F32 on [", 15) != 0 || strstr(line, "the contract's") == NULL)
            fail_msg("%s: %d: %s", declared[i].name, bad, line);
        for (int again = 0; again < 2; again++) {
            int s = tl_kernel_push(t, "matmul", TL_F32, declared[i].name);
            snprintf(words, sizeof words, "'%s' of matmul declares", declared[i].name);
            fails(TL_EUSAGE, words);
            ran_own(product(TL_F32), "matmul F32"); /* no scope is open */
            tl_mode_pop(t, s);
        }
    }
    assert_true(tl_kernel_check("neg", TL_F32, "test-wrong", line, sizeof line) > 0);
    assert_non_null(strstr(line, "neg F32 on [1]: element 0 is"));
    tl_kernel_push(t, "neg", TL_F32, "test-wrong");
    fails(TL_EUSAGE, "refused: neg F32 on [1]");
    assert_int_equal(tl_kernel_check("neg", TL_F64, "test-wrong", line, sizeof line), -1);
    assert_int_equal(tl_kernel_check("silu_grad", TL_F32, "no such", line, sizeof line), -1);
    assert_int_equal(tl_kernel_check("matmul", TL_F32, "test-halves", NULL, 0), tl_kernel_check("matmul", TL_F32, "test-halves", line, sizeof line));
}

static void a_kernel_that_obeys_is_taken_and_changes_nothing(void **unused)
{
    char line[512], hex[2][2][65];
    (void)unused;
    registered();
    assert_int_equal(tl_kernel_check("matmul", TL_F32, "test-right", line, sizeof line), 0);
    assert_string_equal(line, "");
    for (int pass = 0; pass < 2; pass++) {
        tl_tape_reset(t);
        tl_grad_clear(t);
        int s = tl_mode_push(t, 0);
        if (pass) {
            tl_kernel_push(t, "matmul", TL_F32, "test-right");
            tl_kernel_push(t, "neg", TL_F32, "test-neg");
        }
        calls = 0;
        tl_tensor w = weight("w", 20, 300), z = tl_neg(t, tl_matmul(t, numbers(TL_F32, 30, 20, 0), w)), y = total(tl_sin(t, z));
        tl_mode_pop(t, s);
        char text[512];
        assert_int_equal(tl_explain_invariance(t, y, text, sizeof text), 0);
        assert_int_equal(calls, pass);
        hash_of(z, hex[pass][0]);
        tl_backward(t, y);
        assert_int_equal(calls, 2 * pass);
        hash_of(tl_grad(t, w), hex[pass][1]);
    }
    assert_string_equal(hex[0][0], hex[1][0]);
    assert_string_equal(hex[0][1], hex[1][1]);
}

static void a_kernel_outside_the_promise_is_named(void **unused)
{
    char text[2048], place[64];
    (void)unused;
    registered();
    tl_tensor w = weight("w", 8, 8), x = numbers(TL_F32, 6, 8, 0);
    int s = tl_kernel_push(t, "matmul", TL_F32, "test-own");
    tl_kernel_push(t, "silu_grad", TL_F32, "test-doubled");
    int line = __LINE__ + 1;
    tl_tensor y = tl_silu(t, tl_matmul(t, tl_matmul(t, x, tl_fill(t, TL_F32, TL_DIMS(8, 8), 1)), w));
    tl_mode_pop(t, s);
    assert_int_equal(tl_explain_invariance(t, total(tl_exp(t, y)), text, sizeof text), 3);
    snprintf(place, sizeof place, "test_kernels.c:%d", line);
    assert_non_null(strstr(text, "matmul ran kernel 'test-own' ("));
    assert_non_null(strstr(text, "kernel 'test-doubled' is selected for silu_grad")); /* only its gradient would call it */
    assert_non_null(strstr(text, place));
}

/* Whether this machine's BLIS keeps the chain depends on the processor; what follows from it does not. */
static void blis_is_taken_only_if_it_keeps_the_chain(void **unused)
{
    char line[512], hex[2][65];
    (void)unused;
    tl_kernel_row row;
    bool built = false;
    for (int i = 0; tl_kernel_at(i, &row); i++)
        built |= strcmp(row.name, "blis-chain") == 0;
    int bad = tl_kernel_check("matmul", TL_F32, "blis-chain", line, sizeof line);
    int s = tl_kernel_push(t, "matmul", TL_F32, "blis-chain");
    if (!built) {
        assert_int_equal(bad, -1);
        fails(TL_ENAME, "blis-chain");
        return;
    }
    if (bad > 0) {
        fails(TL_EUSAGE, "refused: matmul F32 on");
        return;
    }
    assert_int_equal(bad, 0);
    for (int pass = 0; pass < 2; pass++) {
        tl_tensor y = tl_matmul(t, numbers(TL_F32, 200, 256, 0), numbers(TL_F32, 256, 333, 1));
        if (pass)
            ran_own(y, "matmul F32");
        else
            ran(y, "matmul F32 blis-chain");
        hash_of(y, hex[pass]);
        ran_own(product(TL_F32), "matmul F32"); /* 300 terms are more than a block */
        tl_mode_pop(t, s);
    }
    assert_string_equal(hex[0], hex[1]);
}

/* ---- threads ---- */

typedef struct {
    bool own;
    char hex[65], ran[64];
} worker;

static void *work(void *ctx)
{
    worker *w = ctx;
    for (int i = 0; i < 20; i++) {
        tl_tape *on = tl_tape_new(NULL);
        if (w->own)
            tl_kernel_push(on, "matmul", TL_F32, "test-own");
        tl_tensor y = tl_matmul(on, tl_probe_numbers(on, TL_F32, TL_DIMS(9, 600), 0, false), tl_probe_numbers(on, TL_F32, TL_DIMS(600, 9), 1, false));
        const char *name = tl_kernel_of(on, y);
        snprintf(w->ran, sizeof w->ran, "%s", name == NULL ? tl_error(on) : name);
        tl_sha256(on, y, w->hex);
        tl_free(on);
    }
    return NULL;
}

static void threads_have_scopes_of_their_own(void **unused)
{
    worker w[4] = {{.own = true}, {.own = false}, {.own = true}, {.own = false}};
    pthread_t id[4];
    (void)unused;
    registered();
    int s = tl_mode_push(t, TL_FAST);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&id[i], NULL, work, &w[i]), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(id[i], NULL);
    tl_mode_pop(t, s);
    for (int i = 0; i < 4; i++)
        assert_true((strcmp(w[i].ran, "matmul F32 test-own") == 0) == w[i].own);
    assert_string_equal(w[0].hex, w[2].hex);
    assert_string_equal(w[1].hex, w[3].hex);
    assert_string_not_equal(w[0].hex, w[1].hex);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
const struct CMUnitTest tl_tests_kernels[] = {
    TEST(every_op_stands_in_the_table_at_every_level), TEST(a_registered_kernel_is_listed_once),
    TEST(a_registration_that_makes_no_sense_is_refused), TEST(what_ran_is_told),
    TEST(a_scope_speaks_of_one_op_and_dtype),          TEST(scopes_nest_and_the_innermost_decides),
    TEST(an_error_path_leaves_no_scope_on),            TEST(a_push_that_fails_opens_nothing),
    TEST(fast_is_a_scope_like_any_other),              TEST(the_highest_level_that_runs_is_taken),
    TEST(a_call_that_does_not_fit_is_the_library_s),   TEST(backward_uses_it_though_the_scope_is_closed),
    TEST(a_kernel_of_an_op_that_only_backward_calls),  TEST(a_segment_is_computed_again_by_the_same_kernel),
    TEST(a_graph_runs_the_kernels_it_was_traced_with), TEST(a_kernel_that_disobeys_is_refused),
    TEST(a_kernel_that_obeys_is_taken_and_changes_nothing), TEST(a_kernel_outside_the_promise_is_named),
    TEST(blis_is_taken_only_if_it_keeps_the_chain),    TEST(threads_have_scopes_of_their_own),
};
const size_t tl_tests_kernels_count = sizeof tl_tests_kernels / sizeof *tl_tests_kernels;
