/* Every sum of every op: its order is found from outside (tl_reveal_order) at every vector level
 * and compared with the tree that NUMERICS states. The registry is walked: an op must have a probe
 * (tests/support/reveal_*.c), or be of a kind that cannot sum, or stand in the list below with what
 * it does instead. TL_TEST_OP takes one op. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "ops/list.h"
#include "tally.h"
#include "tensor/isa.h"
#include "tests/support/reveal_probes.h"

extern const struct CMUnitTest tl_tests_reveal[];
extern const size_t tl_tests_reveal_count;

/* Ops that are neither pointwise nor views, and sum nothing. */
static const struct {
    const char *op, *does;
} no_sum[] = {
    {"fill", "writes a constant"},
    {"store", "rounds an update"},
    {"contiguous", "copies"},
    {"cast", "rounds"},
    {"concat", "copies"},
    {"stack_samples", "copies"},
    {"slice_grad", "copies"},
    {"floor_divide", "divides numbers"},
    {"remainder", "divides numbers"},
    {"clamp", "chooses"},
    {"where", "chooses"},
    {"max", "chooses"},
    {"min", "chooses"},
    {"argmax", "chooses"},
    {"gather", "copies"},
    {"one_hot", "writes constants"},
    {"positions", "counts"},
    {"causal_mask", "compares"},
    {"nll_grad", "writes one weight"},
    {"dropout", "chooses and scales"},
    {"draw", "draws"},
    {"argsort", "chooses"},
    {"pool_places", "chooses"},
    {"swiglu_grad", "element by element"},
    {"rotary", "adds two products"},
    {"rotary_", "adds two products"},
    {"rotary_turn", "turns signs"},
    {"rotary_halves", "adds two products"},
    {"sgd", "element by element"},
    {"adamw", "element by element"},
    {"master", "chooses"},
    {"assign", "copies"},
};
enum { NO_SUM = sizeof no_sum / sizeof no_sum[0] };

static bool listed_without(const char *op)
{
    for (int i = 0; i < NO_SUM; i++)
        if (strcmp(no_sum[i].op, op) == 0)
            return true;
    return false;
}

static int probes_of(const char *op, bool backward)
{
    int n = 0;
    for (int i = 0; i < reveal_probe_count(); i++)
        n += strcmp(reveal_probe_at(i)->op, op) == 0 && (!backward || reveal_probe_at(i)->backward);
    return n;
}

/* Each op answers for its sums, those that fold a parameter's gradient for these too. */
static void test_every_op_answers(void **unused)
{
    (void)unused;
    int missing = 0;
    for (int i = 0; i < tl_op_count(); i++) {
        const tl_op *op = tl_op_at(i);
        bool without = op->traits & (TL_POINTWISE | TL_VIEW) || listed_without(op->name);
        const char *lacks = probes_of(op->name, false) == 0 && !without
                                ? "neither has a probe of its sums nor is said to have none"
                            : listed_without(op->name) && probes_of(op->name, false) > 0
                                ? "has a probe, and is said to sum nothing"
                            : op->folds != 0 && probes_of(op->name, true) == 0
                                ? "folds gradients, and no probe shows them"
                                : NULL;
        if (lacks != NULL)
            fprintf(stderr, "op %s: %s\n", op->name, lacks);
        missing += lacks != NULL;
    }
    for (int i = 0; i < NO_SUM; i++)
        if (tl_op_find(no_sum[i].op) == NULL)
            fail_msg("%s is no op", no_sum[i].op);
    for (int i = 0; i < reveal_probe_count(); i++)
        if (tl_op_find(reveal_probe_at(i)->op) == NULL)
            fail_msg("%s is no op", reveal_probe_at(i)->op);
    assert_int_equal(missing, 0);
}

static int compared, wrong;

static void compare(reveal_run *r, int64_t n)
{
    char text[400] = "";
    tl_order *found, *stated = tl_order_new(n);
    tl_err err = {0};
    const char *what = r->probe->what;
    r->probe->stated(stated, n);
    compared++;
    tl_error_clear(r->tape);
    if (tl_reveal_order(reveal_probe_sum, r, r->dtype, n, &found, &err) != TL_OK) {
        fprintf(stderr, "%s, %s, %s, %s, %lld terms: %s %s\n", r->probe->op, what,
                tl_isa_now()->name, tl_dtype_name(r->dtype), (long long)n, err.message,
                tl_failed(r->tape) ? tl_error(r->tape) : "");
        wrong++;
    } else if (!tl_order_same(found, stated)) {
        tl_order_format(text, sizeof text, found, NULL);
        fprintf(stderr, "%s, %s, %s, %s, %lld terms: not the order stated, but %s\n", r->probe->op,
                what, tl_isa_now()->name, tl_dtype_name(r->dtype), (long long)n, text);
        wrong++;
    }
    tl_order_free(found);
    tl_order_free(stated);
}

/* Around the lanes, the tiles and the rows of a tile. A result in bf16 counts no more than 256
 * terms. */
static void compare_sizes(reveal_run *r)
{
    static const int64_t sizes[] = {2, 5, 31, 32, 33, 65, 70, 257};
    int times = r->probe->times ? r->probe->times : 1;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int64_t n = sizes[i] / times * times;
        bool fits = r->dtype == TL_BF16 ? n <= 70 : r->dtype != TL_F64 || n <= 70;
        if (n >= 2 && fits && !(r->probe->small && n > 70))
            compare(r, n);
    }
}

static void compare_all(const reveal_probe *p)
{
    static const tl_dtype dtypes[] = {TL_F32, TL_F64, TL_BF16, TL_F16};
    char now[16];
    reveal_run r = {.probe = p, .tape = tl_tape_new(NULL)};
    snprintf(now, sizeof now, "%s", tl_isa_now()->name);
    for (int l = 0; tl_isa_at(l) != NULL; l++)
        for (int d = 0; d < (p->f16 ? 4 : 3); d++) {
            assert_true(tl_isa_force(tl_isa_at(l)->name));
            r.dtype = dtypes[d];
            compare_sizes(&r);
        }
    tl_isa_force(now);
    tl_free(r.tape);
}

static void test_orders_are_those_stated(void **unused)
{
    (void)unused;
    const char *only = getenv("TL_TEST_OP");
    compared = wrong = 0;
    for (int i = 0; i < reveal_probe_count(); i++)
        if (only == NULL || strcmp(only, reveal_probe_at(i)->op) == 0)
            compare_all(reveal_probe_at(i));
    printf("%d orders found, %d not as stated\n", compared, wrong);
    assert_true(compared > 0);
    assert_int_equal(wrong, 0);
}

/* The example prints all its trees. */
static void test_example(void **unused)
{
    (void)unused;
    char text[1 << 14];
    FILE *f = popen(TL_BUILD "/reveal 70", "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    assert_int_equal(pclose(f), 0);
    assert_non_null(
        strstr(text, "one chain (NUMERICS 3.3), in any shape, 70 terms\n(0 + 1 + ... + 69)\n"));
    assert_non_null(strstr(text, "((0 + 32 + 64) + (16 + 48))"));
    assert_non_null(strstr(text, "BLIS"));
}

static void test_example_takes_no_nonsense(void **unused)
{
    static const char *const bad[] = {"abc",   "0",       "-5",   "10x",
                                      "10 20", "blis 10", "5001", "10 blis 3"};
    (void)unused;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char command[1024];
        snprintf(command, sizeof command, TL_BUILD "/reveal %s 2>&1", bad[i]);
        char text[512];
        FILE *f = popen(command, "r");
        assert_non_null(f);
        text[fread(text, 1, sizeof text - 1, f)] = '\0';
        int status = pclose(f);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 2 ||
            strncmp(text, "usage: reveal", 13) != 0)
            fail_msg("reveal %s: status %x, '%s'", bad[i], (unsigned)status, text);
    }
}

/* Blocks of 96 terms, each of 8 lanes that are folded in turn, added one after the other. */
static double blocks(void *ctx, int64_t n, const void *x)
{
    float sum = 0;
    (void)ctx;
    for (int64_t at = 0; at < n; at += 96) {
        float lane[8] = {0}, part = 0;
        for (int64_t i = at; i < n && i < at + 96; i++)
            lane[i % 8] += ((const float *)x)[i];
        for (int k = 0; k < 8; k++)
            part += lane[k];
        sum += part;
    }
    return (double)sum;
}

/* A fold of folds is a list of what is added in turn, not a staircase of pairs. */
static void test_folds_are_lists(void **unused)
{
    (void)unused;
    tl_order *o;
    tl_err e = {.status = TL_OK};
    char line[256];
    int lines = 0;
    assert_int_equal(tl_reveal_order(blocks, NULL, TL_F32, 96 * 12, &o, &e), TL_OK);
    FILE *f = tmpfile();
    assert_non_null(f);
    assert_int_equal(tl_order_print(f, o, &e), TL_OK);
    rewind(f);
    for (; fgets(line, sizeof line, f) != NULL; lines++) {
        if (lines == 0)
            assert_string_equal(line, "+ in turn, 1152 terms\n");
        assert_true(strspn(line, " ") <= 8 && strlen(line) <= 101);
    }
    assert_in_range(lines, 3, 24);
    fclose(f);
    tl_order_free(o);
}

const struct CMUnitTest tl_tests_reveal[] = {
    cmocka_unit_test(test_every_op_answers), cmocka_unit_test(test_orders_are_those_stated),
    cmocka_unit_test(test_example),          cmocka_unit_test(test_example_takes_no_nonsense),
    cmocka_unit_test(test_folds_are_lists),
};
const size_t tl_tests_reveal_count = sizeof tl_tests_reveal / sizeof tl_tests_reveal[0];
