/* test_kernels.c: selecting kernels - the listing, which one ran, scopes by op and dtype. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "autograd/pointwise.h"
#include "ops/list.h"
#include "tensor/isa.h"
#include "tests/support/own_kernels.h"
#include "tests/support/fresh.h"

extern const struct CMUnitTest tl_tests_kernels[];
extern const size_t tl_tests_kernels_count;

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
    own_kernels(t);
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
    static const tl_kernel
        nameless = {.op = "matmul", .name = "", .run = own_matmul},
        reserved = {.op = "matmul", .name = "invariant", .run = own_matmul},
        fast = {.op = "neg", .name = "fast", .tile = own_doubled},
        empty = {.op = "neg", .name = "test-empty"},
        both = {.op = "neg", .name = "test-both", .tile = own_doubled, .run = own_matmul},
        blind = {.op = "softmax",
                 .name = "test-blind",
                 .dtype = TL_F32,
                 .mode = TL_INVARIANT,
                 .run = own_matmul},
        modal = {.op = "matmul",
                 .name = "test-modal",
                 .mode = TL_FAST | TL_NO_GRAD,
                 .run = own_matmul},
        level = {.op = "matmul",
                 .name = "test-level",
                 .mode = TL_FAST,
                 .isa = "avx2",
                 .run = own_matmul},
        typed = {.op = "matmul",
                 .name = "test-typed",
                 .dtype = (tl_dtype)77,
                 .mode = TL_FAST,
                 .run = own_matmul},
        integers = {.op = "neg", .name = "test-integers", .dtype = TL_I64, .tile = own_doubled};
    (void)unused;
    own_kernels(t);
    assert_int_equal(tl_kernel_register(t, &nameless), TL_ENAME);
    expect_failure(t, TL_ENAME, "needs the name");
    tl_kernel_register(t, NULL);
    expect_failure(t, TL_ENAME, "needs the name");
    tl_kernel_register(t, &reserved);
    expect_failure(t, TL_ENAME, "'invariant' is taken");
    tl_kernel_register(t, &fast);
    expect_failure(t, TL_ENAME, "'fast' is taken");
    tl_kernel_register(t, &empty);
    expect_failure(t, TL_EUSAGE, "run or tile");
    tl_kernel_register(t, &both);
    expect_failure(t, TL_EUSAGE, "run or tile");
    tl_kernel_register(t, &blind);
    expect_failure(t, TL_EUSAGE, "softmax has no probe");
    tl_kernel_register(t, &modal);
    expect_failure(t, TL_EUSAGE, "TL_INVARIANT (0) or TL_FAST");
    tl_kernel_register(t, &level);
    expect_failure(t, TL_EUSAGE, "'avx2', which is not a vector level");
    tl_kernel_register(t, &typed);
    expect_failure(t, TL_EDTYPE, "kernel 'test-typed': 77 is not a dtype");
    tl_kernel_register(t, &integers);
    expect_failure(t, TL_EDTYPE, "compare floats alone, not I64");
    tl_kernel_register(t, &own_bits);
    expect_failure(t, TL_ENAME, "already");
}

/* ---- which one ran ---- */

/* In a process of its own, whose table is full at the end. */
static void a_full_table_is_refused(void **unused)
{
    enum { MANY = 400 };
    static tl_kernel k[MANY];
    static char name[MANY][24];
    int status = 0;
    (void)unused;
    const pid_t child = fork();
    if (child == 0) {
        int n = 0;
        for (; n < MANY && !tl_failed(t); n++) {
            snprintf(name[n], sizeof name[n], "test-many-%d", n);
            k[n] = (tl_kernel){.op = "matmul", .name = name[n], .mode = TL_FAST, .run = own_matmul};
            tl_kernel_register(t, &k[n]);
        }
        _exit(n > 100 && n < MANY && tl_error_status(t) == TL_ENOMEM &&
                      strstr(tl_error(t), "the table holds 256 kernels and is full") != NULL
                  ? 0
                  : 1);
    }
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    assert_int_equal(status, 0);
}

static void what_ran_is_told(void **unused)
{
    static const tl_dtype dtypes[] = {TL_F32, TL_F64, TL_BF16, TL_F16};
    static const char *const names[] = {"matmul F32", "matmul F64", "matmul BF16", "matmul F16"};
    (void)unused;
    for (int i = 0; i < 4; i++)
        expect_library(t,
                       tl_matmul(t, own_numbers(t, dtypes[i], 3, 4, 0),
                                 own_numbers(t, dtypes[i], 4, 2, 1)),
                       names[i]);
    tl_tensor w = own_weight(t, m, "w", 4, 4);
    expect_kernel(t, w, "");
    expect_kernel(t, own_numbers(t, TL_F32, 2, 2, 0), "");
    expect_kernel(t, tl_transpose(t, w, 0, 1), "permute F32 view");
    expect_library(t, tl_fill(t, TL_I64, TL_DIMS(2), 1), "fill I64");
    expect_library(t, tl_where(t, tl_lt(t, w, tl_neg(t, w)), w, w), "where F32");
    tl_tensor id = tl_fill(t, TL_I64, TL_DIMS(4, 4), 1); /* no floats: the first input's dtype */
    expect_library(t, tl_where(t, tl_lt(t, w, tl_neg(t, w)), id, id), "where BOOL");
    int s = tl_mode_push(t, TL_TRACE);
    expect_kernel(t, tl_exp(t, w), "exp F32 traced");
    tl_mode_pop(t, s);
    char before[16];
    snprintf(before, sizeof before, "%s", tl_isa_now()->name);
    for (int i = 0; tl_isa_at(i) != NULL; i++) {
        tl_isa_force(tl_isa_at(i)->name);
        expect_library(t, tl_exp(t, w), "exp F32");
    }
    tl_isa_force(before);
    assert_null(tl_kernel_of(t, TL_NONE));
    expect_failure(t, TL_ESTALE, "tl_kernel_of");
}

/* ---- scopes ---- */

static void a_scope_speaks_of_one_op_and_dtype(void **unused)
{
    (void)unused;
    own_kernels(t);
    int s = tl_kernel_push(t, "matmul", TL_F32, "test-own");
    expect_kernel(t, own_product(t, TL_F32), "matmul F32 test-own");
    expect_library(t, own_product(t, TL_F64), "matmul F64");
    expect_library(t, own_product(t, TL_BF16), "matmul BF16");
    expect_library(t, tl_silu(t, own_numbers(t, TL_F32, 5, 5, 0)), "silu F32");
    tl_mode_pop(t, s);
    expect_library(t, own_product(t, TL_F32), "matmul F32");
    for (int i = 0; i < 2; i++) { /* one kernel, for each dtype by itself */
        s = tl_kernel_push(t, "silu", i ? TL_F64 : TL_F32, "test-doubled");
        tl_tensor narrow = tl_silu(t, own_numbers(t, TL_F32, 5, 5, 0)),
                  wide = tl_silu(t, own_numbers(t, TL_F64, 5, 5, 0));
        tl_mode_pop(t, s);
        expect_kernel(t, i ? wide : narrow, i ? "silu F64 test-doubled" : "silu F32 test-doubled");
        expect_library(t, i ? narrow : wide, i ? "silu F32" : "silu F64");
    }
}

static void scopes_nest_and_the_innermost_decides(void **unused)
{
    (void)unused;
    own_kernels(t);
    int outer = tl_kernel_push(t, "matmul", TL_F32, "test-own");
    int none = tl_kernel_push(t, "silu", TL_ANY_DTYPE, "test-doubled");
    expect_kernel(t, own_product(t, TL_F32),
                  "matmul F32 test-own"); /* that one speaks of another op */
    int inner = tl_kernel_push(t, "matmul", TL_ANY_DTYPE, "invariant");
    expect_library(t, own_product(t, TL_F32), "matmul F32");
    expect_kernel(t, tl_silu(t, own_numbers(t, TL_F32, 5, 5, 0)), "silu F32 test-doubled");
    int all = tl_kernel_push(t, NULL, TL_ANY_DTYPE, "invariant");
    expect_library(t, tl_silu(t, own_numbers(t, TL_F32, 5, 5, 0)), "silu F32");
    tl_mode_pop(t, all);
    tl_mode_pop(t, inner);
    tl_mode_pop(t, inner); /* twice closes no more than once */
    expect_kernel(t, own_product(t, TL_F32), "matmul F32 test-own");
    tl_mode_pop(t, outer); /* and what is open inside goes with it */
    expect_library(t, tl_silu(t, own_numbers(t, TL_F32, 5, 5, 0)), "silu F32");
    (void)none;
}

static void an_error_path_leaves_no_scope_on(void **unused)
{
    (void)unused;
    own_kernels(t);
    int s = tl_mode_push(t, 0);
    tl_kernel_push(t, "matmul", TL_F32, "test-own");
    tl_mode_push(t, TL_FAST);
    tl_kernel_push(t, "silu", TL_F32, "test-doubled");
    tl_add(t, own_numbers(t, TL_F32, 2, 2, 0),
           own_numbers(t, TL_F32, 3, 3, 0)); /* fails: nobody closes the three */
    tl_mode_pop(t, s);
    expect_failure(t, TL_ESHAPE, "add");
    expect_library(t, own_product(t, TL_F32), "matmul F32");
    expect_library(t, tl_silu(t, own_numbers(t, TL_F32, 5, 5, 0)), "silu F32");
}

static void a_push_that_fails_opens_nothing(void **unused)
{
    (void)unused;
    own_kernels(t);
    int outer = tl_kernel_push(t, "matmul", TL_F32, "test-own");
    int s = tl_kernel_push(t, "matmul", TL_F32, "no such");
    assert_int_equal(tl_kernel_push(t, "matmul", TL_F32, "test-own"),
                     s); /* failed: nothing opens */
    expect_failure(t, TL_ENAME, "no kernel 'no such' of matmul for F32");
    tl_mode_pop(t, s); /* closes nothing */
    expect_kernel(t, own_product(t, TL_F32), "matmul F32 test-own");
    tl_kernel_push(t, "matmull", TL_F32, "invariant");
    expect_failure(t, TL_ENAME, "'matmull'");
    tl_kernel_push(t, "matmul", TL_F32, NULL);
    expect_failure(t, TL_ENAME, "tl_kernel_push: name is NULL");
    tl_kernel_push(t, "matmul", TL_F64, "test-own");
    expect_failure(t, TL_ENAME, "for F64");
    tl_kernel_push(t, "abs", TL_F32, "test-never");
    expect_failure(t, TL_ENAME, "at level");
    tl_mode_pop(t, outer);
    for (int i = 0; i < 1000; i++)
        tl_kernel_push(t, "matmul", TL_F32, "test-own");
    expect_failure(t, TL_EUSAGE, "scopes are open");
    tl_mode_pop(t, 0);
    expect_library(t, own_product(t, TL_F32), "matmul F32");
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
        expect_kernel(t, own_product(t, TL_F32), "matmul F32 blis");
        expect_kernel(t, own_product(t, TL_F64), "matmul F64 blis");
    } else {
        expect_library(t, own_product(t, TL_F32), "matmul F32");
    }
    expect_library(t, own_product(t, TL_BF16), "matmul BF16"); /* BLIS has none */
    expect_library(t, tl_silu(t, own_numbers(t, TL_F32, 5, 5, 0)), "silu F32");
    int inner = tl_kernel_push(t, "matmul", TL_F32, "invariant");
    expect_library(t, own_product(t, TL_F32), "matmul F32");
    tl_mode_pop(t, inner);
    tl_mode_pop(t, s);
    int one = tl_kernel_push(t, "matmul", TL_F64, "fast");
    expect_library(t, own_product(t, TL_F32), "matmul F32");
    if (blis)
        expect_kernel(t, own_product(t, TL_F64), "matmul F64 blis");
    tl_mode_pop(t, one);
}

static void the_highest_level_that_runs_is_taken(void **unused)
{
    (void)unused;
    own_kernels(t);
    char before[16];
    snprintf(before, sizeof before, "%s", tl_isa_now()->name);
    int s = tl_kernel_push(t, "abs", TL_F32, "test-levels");
    bool v3 = false;
    for (int i = 0; tl_isa_at(i) != NULL; i++) {
        v3 |= strcmp(tl_isa_at(i)->name, "v3") == 0;
        tl_isa_force(tl_isa_at(i)->name);
        tl_tensor y = tl_abs(t, tl_fill(t, TL_F32, TL_SCALAR, 3));
        expect_kernel(t, y, v3 ? "abs F32 test-levels v3" : "abs F32 test-levels scalar");
        assert_true(tl_item(t, y) == (v3 ? -3 : 6));
    }
    tl_isa_force(before);
    tl_mode_pop(t, s);
}

static void a_call_that_does_not_fit_is_the_library_s(void **unused)
{
    (void)unused;
    own_kernels(t);
    int s = tl_kernel_push(t, "silu", TL_ANY_DTYPE, "test-doubled");
    tl_tensor small = tl_silu(t, own_numbers(t, TL_F32, 3, 2, 0)),
              large = tl_silu(t, tl_fill(t, TL_BF16, TL_DIMS(4), 1.5));
    tl_mode_pop(t, s);
    expect_library(t, small, "silu F32");
    expect_kernel(t, large, "silu BF16 test-doubled");
    uint16_t got[4];
    assert_int_equal(tl_keep(t, large, got, sizeof got), TL_OK);
    assert_int_equal(got[3], 0x4040); /* 3 */
    static const tl_kernel any = {
        .op = "silu", .name = "test-any", .dtype = TL_F32, .mode = TL_FAST, .tile = own_doubled};
    static bool registered; /* as long as the process */
    if (!registered)
        assert_int_equal(tl_kernel_register(t, &any), TL_OK);
    registered = true;
    int outer = tl_kernel_push(t, "silu", TL_F32, "test-any");
    tl_kernel_push(t, "silu", TL_F32, "test-doubled");
    small = tl_silu(t, own_numbers(t, TL_F32, 3, 2, 0)); /* nor that of the scope around it */
    tl_mode_pop(t, outer);
    expect_library(t, small, "silu F32");
    s = tl_kernel_push(t, "matmul", TL_F32, "test-tile");
    assert_true(tl_is_none(own_product(t, TL_F32)));
    tl_mode_pop(t, s);
    expect_failure(t, TL_EUSAGE, "not pointwise");
}

static tl_status as_product(tl_call *c) { return tl_matmul_with(c, NULL); }

static void only_matmul_is_computed_as_a_product(void **unused)
{
    static const char *const ops[] = {"add", "exp", "sum", "concat"};
    static tl_kernel k[4]; /* as long as the process */
    (void)unused;
    tl_tensor x = own_numbers(t, TL_F32, 2, 3, 0);
    for (int i = 0; i < 4; i++) {
        if (k[i].op == NULL) {
            k[i] = (tl_kernel){ops[i], "test-product", TL_F32, TL_FAST, NULL, .run = as_product};
            assert_int_equal(tl_kernel_register(t, &k[i]), TL_OK);
        }
        int s = tl_kernel_push(t, ops[i], TL_F32, "test-product");
        tl_tensor y = i == 0   ? tl_add(t, x, x)
                      : i == 1 ? tl_exp(t, x)
                      : i == 2 ? tl_sum(t, x, TL_ALL, false)
                               : tl_concat(t, ((tl_tensor[]){x, x}), 2, 0);
        assert_true(tl_is_none(y));
        expect_failure(t, TL_EUSAGE, "only matmul is computed so");
        tl_mode_pop(t, s);
    }
}

static tl_status copied_rows(tl_call *c)
{
    const size_t n = (size_t)tl_array_count(c->in[0]);
    memcpy(c->out[0].data, c->in[0]->data, n * sizeof(float));
    return TL_OK;
}

static void a_kernel_gets_its_operands_as_the_op_does(void **unused)
{
    static const tl_kernel rows = {.op = "softmax",
                                   .name = "test-rows",
                                   .dtype = TL_ANY_DTYPE,
                                   .mode = TL_FAST,
                                   .run = copied_rows};
    static bool registered; /* as long as the process */
    (void)unused;
    if (!registered)
        assert_int_equal(tl_kernel_register(t, &rows), TL_OK);
    registered = true;
    tl_tensor x = own_numbers(t, TL_F32, 3, 4, 0),
              in[] = {tl_transpose(t, x, 0, 1), tl_cast(t, x, TL_F16)};
    const int s = tl_kernel_push(t, "softmax", TL_ANY_DTYPE, "test-rows");
    for (int i = 0; i < 2; i++)
        expect_same(t, tl_softmax(t, in[i], -1), in[i], i == 0 ? "transposed" : "F16");
    tl_mode_pop(t, s);
}

/* ---- a call that the engine does not run ---- */

static void it_has_no_scratch(void **unused)
{
    tl_err err = {.status = TL_OK};
    tl_call c = {.op = &tl_op_sum, .err = &err};
    (void)unused;
    assert_null(tl_scratch(&c, 64, true));
    assert_int_equal(err.status, TL_EUSAGE);
    assert_non_null(strstr(err.message, "calls that the engine runs"));
}

const struct CMUnitTest tl_tests_kernels[] = {
    TEST(a_kernel_gets_its_operands_as_the_op_does),
    TEST(every_op_stands_in_the_table_at_every_level),
    TEST(a_registered_kernel_is_listed_once),
    TEST(a_registration_that_makes_no_sense_is_refused),
    TEST(a_full_table_is_refused),
    TEST(what_ran_is_told),
    TEST(a_scope_speaks_of_one_op_and_dtype),
    TEST(scopes_nest_and_the_innermost_decides),
    TEST(an_error_path_leaves_no_scope_on),
    TEST(a_push_that_fails_opens_nothing),
    TEST(fast_is_a_scope_like_any_other),
    TEST(the_highest_level_that_runs_is_taken),
    TEST(a_call_that_does_not_fit_is_the_library_s),
    TEST(only_matmul_is_computed_as_a_product),
    TEST(it_has_no_scratch),
};
const size_t tl_tests_kernels_count = sizeof tl_tests_kernels / sizeof *tl_tests_kernels;
