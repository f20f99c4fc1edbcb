/* test_kernels_promise.c: kernels that declare the contract's bits, those that give them and those
 * that do not; and kernels outside the promise, which are named. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tensor/memory.h"
#include "tests/support/own_kernels.h"
#include "tests/support/fresh.h"

extern const struct CMUnitTest tl_tests_kernels_promise[];
extern const size_t tl_tests_kernels_promise_count;

/* ---- the promise ---- */

/* Right but for infinities. */
static void turned_if_finite(const tl_tile *k)
{
    const float *x = k->in[0];
    for (int64_t i = 0; i < k->n; i++)
        ((float *)k->out)[i] = isinf(x[i]) ? fabsf(x[i]) : -x[i];
}

static void a_kernel_that_disobeys_is_refused(void **unused)
{
    char line[512], words[64];
    (void)unused;
    own_kernels(t);
    for (int i = RIGHT + 1; i < FAULTS; i++) {
        int bad = tl_kernel_check("matmul", TL_F32, own_declared[i].name, line, sizeof line);
        if (bad <= 0 || strncmp(line, "matmul F32 on [", 15) != 0 ||
            strstr(line, "the contract's") == NULL)
            fail_msg("%s: %d: %s", own_declared[i].name, bad, line);
        for (int again = 0; again < 2; again++) {
            int s = tl_kernel_push(t, "matmul", TL_F32, own_declared[i].name);
            snprintf(words, sizeof words, "'%s' of matmul declares", own_declared[i].name);
            expect_failure(t, TL_EUSAGE, words);
            expect_library(t, own_product(t, TL_F32), "matmul F32"); /* no scope is open */
            tl_mode_pop(t, s);
        }
    }
    assert_true(tl_kernel_check("neg", TL_F32, "test-wrong", line, sizeof line) > 0);
    assert_non_null(strstr(line, "neg F32 on [1]: element 0 is"));
    tl_kernel_push(t, "neg", TL_F32, "test-wrong");
    expect_failure(t, TL_EUSAGE, "refused: neg F32 on [1]");
    static const tl_kernel finite = {.op = "neg",
                                     .name = "test-finite",
                                     .dtype = TL_F32,
                                     .tile = turned_if_finite};
    static bool registered; /* as long as the process */
    if (!registered)
        assert_int_equal(tl_kernel_register(t, &finite), TL_OK);
    registered = true;
    assert_true(tl_kernel_check("neg", TL_F32, "test-finite", line, sizeof line) > 0);
    assert_non_null(strstr(line, "is inf, the contract's -inf"));
    assert_int_equal(tl_kernel_check("neg", TL_F64, "test-wrong", line, sizeof line), -1);
    assert_int_equal(tl_kernel_check("silu_grad", TL_F32, "no such", line, sizeof line), -1);
    assert_int_equal(tl_kernel_check("matmul", TL_F32, "test-halves", NULL, 0),
                     tl_kernel_check("matmul", TL_F32, "test-halves", line, sizeof line));
}

static void a_kernel_that_obeys_is_taken_and_changes_nothing(void **unused)
{
    char line[512], hex[2][2][65];
    (void)unused;
    own_kernels(t);
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
        own_calls = 0;
        tl_tensor w = own_weight(t, m, "w", 20, 300),
                  z = tl_neg(t, tl_matmul(t, own_numbers(t, TL_F32, 30, 20, 0), w)),
                  y = own_total(t, tl_sin(t, z));
        tl_mode_pop(t, s);
        char text[512];
        assert_int_equal(tl_explain_invariance(t, y, text, sizeof text), 0);
        assert_int_equal(own_calls, pass);
        own_hash(t, z, hex[pass][0]);
        tl_backward(t, y);
        assert_int_equal(own_calls, 2 * pass);
        own_hash(t, tl_grad(t, w), hex[pass][1]);
    }
    assert_string_equal(hex[0][0], hex[1][0]);
    assert_string_equal(hex[0][1], hex[1][1]);
}

static void a_kernel_outside_the_promise_is_named(void **unused)
{
    char text[2048], place[64];
    (void)unused;
    own_kernels(t);
    tl_tensor w = own_weight(t, m, "w", 8, 8), x = own_numbers(t, TL_F32, 6, 8, 0);
    int s = tl_kernel_push(t, "matmul", TL_F32, "test-own");
    tl_kernel_push(t, "silu_grad", TL_F32, "test-doubled");
    tl_tensor h = tl_matmul(t, x, tl_fill(t, TL_F32, TL_DIMS(8, 8), 1));
    int line = __LINE__ + 1;
    tl_tensor y = tl_silu(t, tl_matmul(t, h, w));
    tl_mode_pop(t, s);
    assert_int_equal(tl_explain_invariance(t, own_total(t, tl_exp(t, y)), text, sizeof text), 3);
    snprintf(place, sizeof place, "test_kernels_promise.c:%d", line);
    assert_non_null(strstr(text, "matmul ran kernel 'test-own' ("));
    assert_non_null(strstr(
        text,
        "kernel 'test-doubled' is selected for silu_grad")); /* only its gradient would call it */
    assert_non_null(strstr(text, place));
}

/* In a scope of TL_STRICT it is refused where it is called, in backward as well; one that keeps the
 * promise is not. */
static void strict_refuses_a_kernel_outside_the_promise(void **unused)
{
    static const struct {
        const char *op, *kernel, *words; /* NULL: it is taken */
    } cases[] = {{"matmul", "test-own", "matmul: TL_STRICT: kernel 'test-own' promises no bits"},
                 {"silu_grad", "test-doubled",
                  "silu_grad: TL_STRICT: kernel 'test-doubled' promises no bits"},
                 {"matmul", "test-right", NULL}};
    (void)unused;
    own_kernels(t);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tl_tape_reset(t);
        tl_grad_clear(t);
        const int scope = tl_mode_push(t, TL_STRICT);
        tl_kernel_push(t, cases[i].op, TL_F32, cases[i].kernel);
        tl_tensor w = own_weight(t, m, "w", 8, 8), x = own_numbers(t, TL_F32, 6, 8, 0),
                  y = own_total(t, tl_silu(t, tl_matmul(t, x, w)));
        assert_int_equal(tl_is_none(y), i == 0);
        tl_backward(t, y);
        tl_mode_pop(t, scope);
        if (cases[i].words != NULL)
            expect_failure(t, TL_EUSAGE, cases[i].words);
        else
            expect_ok(t, cases[i].kernel);
    }
}

/* Whether this machine's BLIS keeps the chain depends on the processor; what follows from it does
 * not. */
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
        expect_failure(t, TL_ENAME, "blis-chain");
        return;
    }
    if (bad > 0) {
        expect_failure(t, TL_EUSAGE, "refused: matmul F32 on");
        return;
    }
    assert_int_equal(bad, 0);
    for (int pass = 0; pass < 2; pass++) {
        tl_tensor y = tl_matmul(t, own_numbers(t, TL_F32, 200, 256, 0),
                                own_numbers(t, TL_F32, 256, 333, 1));
        if (pass)
            expect_library(t, y, "matmul F32");
        else
            expect_kernel(t, y, "matmul F32 blis-chain");
        own_hash(t, y, hex[pass]);
        expect_library(t, own_product(t, TL_F32),
                       "matmul F32"); /* 300 terms are more than a block */
        tl_mode_pop(t, s);
    }
    assert_string_equal(hex[0], hex[1]);
}

/* ---- probes that go astray ---- */

static void turned(const tl_tile *k)
{
    for (int64_t i = 0; i < k->n; i++)
        ((float *)k->out)[i] = -((const float *)k->in[0])[i];
}

static void without_sign(const tl_tile *k)
{
    const float *x = k->in[0];
    for (int64_t i = 0; i < k->n; i++)
        ((float *)k->out)[i] = x[i] < 0 || (x[i] == 0 && 1 / x[i] < 0) ? -x[i] : x[i];
}

static tl_tensor selects(tl_tape *on, tl_dtype d, int i)
{
    int s = tl_kernel_push(on, "abs", TL_F32, "test-asked");
    tl_tensor x = i > 0 ? TL_NONE : tl_abs(on, tl_probe_numbers(on, d, TL_DIMS(9), 0, false));
    tl_mode_pop(on, s);
    return i > 0 ? TL_NONE : tl_neg(on, x);
}

static tl_tensor selects_itself(tl_tape *on, tl_dtype d, int i)
{
    tl_kernel_push(on, "neg", TL_F32, "test-asks-itself");
    return i > 0 ? TL_NONE : tl_neg(on, tl_probe_numbers(on, d, TL_DIMS(9), 0, false));
}

static tl_tensor resets(tl_tape *on, tl_dtype d, int i)
{
    tl_tensor y = tl_neg(on, tl_probe_numbers(on, d, TL_DIMS(9), 0, false));
    tl_tape_reset(on);
    return i > 0 ? TL_NONE : y;
}

static tl_tensor empty(tl_tape *on, tl_dtype d, int i)
{
    return i > 0 ? TL_NONE : tl_neg(on, tl_zeros(on, d, TL_DIMS(0)));
}

static void a_probe_that_goes_astray_is_an_error(void **unused)
{
    static const tl_kernel of[] = {
        {.op = "abs", .name = "test-asked", .dtype = TL_F32, .tile = without_sign},
        {.op = "neg", .name = "test-asks", .dtype = TL_F32, .tile = turned, .probe = selects},
        {.op = "neg", .name = "test-asks-late", .dtype = TL_F32, .tile = turned, .probe = selects},
        {.op = "neg",
         .name = "test-asks-itself",
         .dtype = TL_F32,
         .tile = turned,
         .probe = selects_itself},
        {.op = "neg", .name = "test-resets", .dtype = TL_F32, .tile = turned, .probe = resets},
        {.op = "neg", .name = "test-empty", .dtype = TL_F32, .tile = own_doubled, .probe = empty}};
    static bool registered;
    (void)unused;
    for (size_t i = 0; i < sizeof of / sizeof *of && !registered; i++)
        assert_int_equal(tl_kernel_register(t, &of[i]), TL_OK);
    const bool fresh = !registered;
    registered = true;
    if (fresh) { /* nobody has asked for that of abs before */
        tl_kernel_push(t, "neg", TL_F32, "test-asks");
        expect_failure(t, TL_EUSAGE, "selects 'test-asked' of abs, which has not been probed");
    }
    tl_mode_pop(t, tl_kernel_push(t, "abs", TL_F32, "test-asked"));
    tl_mode_pop(t, tl_kernel_push(t, "neg", TL_F32, "test-asks-late")); /* now it has been */
    tl_mode_pop(t, tl_kernel_push(t, "neg", TL_F32, "test-asks")); /* and this was not refused */
    expect_no_error(t);
    tl_kernel_push(t, "neg", TL_F32, "test-asks-itself");
    expect_failure(t, TL_EUSAGE, "selects 'test-asks-itself' of neg");
    tl_kernel_push(t, "neg", TL_F32, "test-resets");
    expect_failure(t, TL_EUSAGE, "gives no value of its tape, or resets it");
    tl_kernel_push(t, "neg", TL_F32, "test-empty");
    expect_failure(t, TL_EUSAGE, "no call with elements");
}

static void added_floats(const tl_tile *k)
{
    for (int64_t i = 0; i < k->n; i++)
        if (k->dtype == TL_F64)
            ((double *)k->out)[i] = ((const double *)k->in[0])[i] + ((const double *)k->in[1])[i];
        else if (k->dtype == TL_F32)
            ((float *)k->out)[i] = ((const float *)k->in[0])[i] + ((const float *)k->in[1])[i];
        else
            ((int64_t *)k->out)[i] = 42;
}

static const float *flat(const tl_call *c, int k) { return c->in[k]->data; }

static tl_status flat_product(tl_call *c)
{
    for (int64_t i = 0; i < tl_array_count(&c->out[0]); i++)
        ((float *)c->out[0].data)[i] = flat(c, 0)[i] * flat(c, 1)[i];
    return TL_OK;
}

static bool same_shape(const tl_call *c) { return tl_array_same_shape(c->in[0], c->in[1]); }

static bool contiguous(const tl_call *c)
{
    return same_shape(c) && tl_array_contiguous(c->in[0]) && tl_array_contiguous(c->in[1]);
}

/* What takes its inputs for dense ones of one shape has to say so. */
static void strides_and_broadcasts_are_probed(void **unused)
{
    static const tl_kernel of[] = {{.op = "mul",
                                    .name = "test-flat",
                                    .dtype = TL_F32,
                                    .run = flat_product,
                                    .fits = same_shape},
                                   {.op = "mul",
                                    .name = "test-dense",
                                    .dtype = TL_F32,
                                    .run = flat_product,
                                    .fits = contiguous}};
    static bool registered;
    char line[512];
    (void)unused;
    for (int i = 0; i < 2 && !registered; i++)
        assert_int_equal(tl_kernel_register(t, &of[i]), TL_OK);
    registered = true;
    assert_int_equal(tl_kernel_check("mul", TL_F32, "test-flat", line, sizeof line), 4);
    assert_non_null(strstr(line, "mul F32 on [5, 33], [5, 33]: element"));
    assert_int_equal(tl_kernel_check("mul", TL_F32, "test-dense", line, sizeof line), 0);
}

/* A kernel of any dtype has been compared on floats, and gets no others. A probe for which memory
 * runs out is no verdict. */
static void what_no_probe_has_seen_is_the_library_s(void **unused)
{
    static const tl_kernel any = {.op = "add",
                                  .name = "test-any",
                                  .dtype = TL_ANY_DTYPE,
                                  .tile = added_floats};
    static bool registered;
    const int64_t seven = 7;
    (void)unused;
    if (!registered)
        assert_int_equal(tl_kernel_register(t, &any), TL_OK);
    for (int after = 1; !registered && after < 12; after += 2) {
        tl_alloc_fail_after(after);
        tl_kernel_push(t, "add", TL_ANY_DTYPE, "test-any");
        tl_alloc_fail_after(0);
        expect_failure(t, TL_ENOMEM, "no memory");
    }
    registered = true;
    int s = tl_kernel_push(t, "add", TL_ANY_DTYPE, "test-any");
    tl_tensor n = tl_data(t, &seven, TL_I64, TL_SCALAR), x = tl_scalar(t, TL_F64, 1);
    assert_true(tl_item(t, tl_add(t, n, n)) == 14);
    assert_string_equal(tl_kernel_of(t, tl_add(t, x, x)), "add F64 test-any");
    tl_mode_pop(t, s);
    expect_no_error(t);
}

static void a_kernel_registered_in_a_scope_waits_for_its_probe(void **unused)
{
    static const tl_kernel
        narrow = {.op = "add", .name = "test-late", .dtype = TL_F32, .tile = added_floats},
        wide = {.op = "add", .name = "test-late", .dtype = TL_F64, .tile = added_floats};
    static bool registered;
    (void)unused;
    if (!registered)
        assert_int_equal(tl_kernel_register(t, &narrow), TL_OK);
    const int s = tl_kernel_push(t, "add", TL_ANY_DTYPE, "test-late");
    tl_tensor x = tl_scalar(t, TL_F64, 1);
    if (!registered) {
        assert_int_equal(tl_kernel_register(t, &wide), TL_OK);
        expect_library(t, tl_add(t, x, x), "add F64");
    }
    registered = true;
    tl_kernel_push(t, "add", TL_F64, "test-late");
    expect_kernel(t, tl_add(t, x, x), "add F64 test-late");
    tl_mode_pop(t, s);
}

static tl_status by_element(tl_call *c)
{
    for (int64_t i = 0; i < tl_array_count(&c->out[0]); i++)
        tl_array_put(&c->out[0], i, -tl_array_get(c->in[0], i));
    return TL_OK;
}

/* Kernels of one name: each is probed by itself, whichever was there first. */
static void a_kernel_is_probed_beside_others_of_its_name(void **unused)
{
    static const tl_kernel of[] = {
        {.op = "neg", .name = "test-beside", .dtype = TL_ANY_DTYPE, .run = by_element},
        {.op = "neg", .name = "test-beside", .dtype = TL_F32, .run = by_element}};
    static bool registered;
    (void)unused;
    for (int i = 0; i < 2 && !registered; i++)
        assert_int_equal(tl_kernel_register(t, &of[i]), TL_OK);
    registered = true;
    const int s = tl_kernel_push(t, "neg", TL_F32, "test-beside");
    expect_kernel(t, tl_neg(t, tl_scalar(t, TL_F32, 1)), "neg F32 test-beside");
    tl_mode_pop(t, s);
}

static tl_status repeated_sum(tl_call *c)
{
    for (int64_t i = 0; i < tl_array_count(&c->out[0]); i++)
        ((float *)c->out[0].data)[i] = flat(c, 0)[i % tl_array_count(c->in[0])] +
                                       flat(c, 1)[i % tl_array_count(c->in[1])];
    return TL_OK;
}

static tl_status last_stride_alone(tl_call *c)
{
    const int64_t step = c->in[0]->stride[c->in[0]->ndim - 1];
    for (int64_t i = 0; i < tl_array_count(&c->out[0]); i++)
        ((float *)c->out[0].data)[i] = -flat(c, 0)[i * step % tl_array_count(c->in[0])];
    return TL_OK;
}

static bool dense(const tl_call *c)
{
    return tl_array_contiguous(c->in[0]) && tl_array_contiguous(c->in[1]);
}

static void columns_and_transposes_are_probed(void **unused)
{
    static const tl_kernel of[] = {
        {.op = "add", .name = "test-repeated", .dtype = TL_F32, .run = repeated_sum, .fits = dense},
        {.op = "neg", .name = "test-last-stride", .dtype = TL_F32, .run = last_stride_alone},
        {.op = "neg", .name = "test-by-element", .dtype = TL_F32, .run = by_element}};
    static bool registered;
    char line[512];
    (void)unused;
    for (int i = 0; i < 3 && !registered; i++)
        assert_int_equal(tl_kernel_register(t, &of[i]), TL_OK);
    registered = true;
    for (int i = 0; i < 3; i++)
        assert_int_equal(tl_kernel_check(of[i].op, TL_F32, of[i].name, line, sizeof line) > 0,
                         i < 2);
}

const struct CMUnitTest tl_tests_kernels_promise[] = {
    TEST(columns_and_transposes_are_probed),
    TEST(a_kernel_is_probed_beside_others_of_its_name),
    TEST(a_kernel_registered_in_a_scope_waits_for_its_probe),
    TEST(what_no_probe_has_seen_is_the_library_s),
    TEST(strides_and_broadcasts_are_probed),
    TEST(a_probe_that_goes_astray_is_an_error),
    TEST(a_kernel_that_disobeys_is_refused),
    TEST(a_kernel_that_obeys_is_taken_and_changes_nothing),
    TEST(a_kernel_outside_the_promise_is_named),
    TEST(strict_refuses_a_kernel_outside_the_promise),
    TEST(blis_is_taken_only_if_it_keeps_the_chain),
};
const size_t tl_tests_kernels_promise_count = sizeof tl_tests_kernels_promise /
                                              sizeof *tl_tests_kernels_promise;
