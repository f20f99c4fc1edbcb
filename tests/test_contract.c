/* What make contract prints where nothing was compared: each op has an answer on the axes "all
 * inputs" and "gradient's reference", from its traits, its cases and a run of its gradient. The
 * other axes are test_invariance's and test_reference's. An answer that is not so, or is missing,
 * fails here. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "autograd/internal.h"
#include "tests/cases/cases.h"
#include "tests/support/contract.h"
#include "tests/support/math_sources.h"

extern const struct CMUnitTest tl_tests_contract[];
extern const size_t tl_tests_contract_count;

/* ---- all inputs ---- */

/* NULL: one number goes in and one comes out, so that all of f16 and bf16 can be tried
 * (test_math_half). */
static const char *too_many(const tl_op *op)
{
    if (op->traits & TL_VIEW)
        return "a view: it shows the input's bits in other places and computes none";
    if (op->n_in == 0)
        return "no input: its attributes say what comes out";
    if (op->n_in != 1)
        return "several inputs: too many combinations to try all";
    if (!(op->traits & TL_POINTWISE))
        return "reads whole tensors, not one number: too many combinations to try all";
    if (op->attr != NULL &&
        strcmp(op->name, "pow") != 0) /* whose exponents are functions of their own */
        return "an attribute besides its input: too many combinations to try all";
    return NULL;
}

/* The runs over all 2^32 inputs that left their digest: a line "NAME DIGEST", NAME with the
 * exponent for pow. */
static bool has_digest(const char *op)
{
    char line[128];
    bool found = false;
    FILE *f = fopen(TL_ROOT "/tests/golden/math32.txt", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f) != NULL) {
        line[strcspn(line, " ")] = '\0';
        size_t n = strcmp(op, "pow") == 0 ? 3 : strlen(line);
        found |= strncmp(line, op, n) == 0 && op[n] == '\0';
    }
    fclose(f);
    return found;
}

/* The digests were made from the sources of this build. */
static bool proof_stands(void)
{
    char hex[TL_SHA256_HEX];
    assert_true(tl_math_sources(hex));
    return tl_math_golden("sources", hex);
}

static void test_sources_are_those_that_were_run(void **unused)
{
    (void)unused;
    if (!proof_stands())
        fail_msg("the f32 functions or their flags have changed since all inputs were run: make "
                 "exhaustive FN=all, then commit tests/golden/math32.txt");
}

/* pow is a function of its own for some exponents, and only those were tried. */
static void say_exponents(void)
{
    char line[128], reason[256] = "proved for the exponents";
    FILE *f = fopen(TL_ROOT "/tests/golden/math32.txt", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f) != NULL)
        if (strncmp(line, "pow", 3) == 0) {
            size_t n = strlen(reason);
            snprintf(reason + n, sizeof reason - n, " %.*s", (int)strcspn(line + 3, " "), line + 3);
        }
    fclose(f);
    strcat(reason, " only; others go through f64 (NUMERICS 2.4)");
    tl_ran_only("pow", "all f32", reason);
    tl_ran_only("pow", "all f16", reason);
    tl_ran_only("pow", "all bf16", reason);
}

static void say_all_f32(const tl_op *op, bool proved, const char *reason)
{
    if (proved && proof_stands())
        tl_ran(op->name, "all f32");
    else if (proved)
        tl_ran_none(op->name, "all f32",
                    "the sources have changed since all inputs were run (make exhaustive FN=all)");
    else if (reason != NULL)
        tl_ran_none(op->name, "all f32", reason);
    else
        tl_ran_none(op->name, "all f32",
                    op->traits & TL_HEAVY ? "composed, as NUMERICS.md writes it, of functions "
                                            "proved over all inputs and single IEEE operations"
                                          : "one exact or IEEE operation: nothing is approximated");
}

static void test_all_inputs(void **unused)
{
    (void)unused;
    int digests = 0;
    for (int i = 0; i < tl_op_count(); i++) {
        const tl_op *op = tl_op_at(i);
        const char *reason = too_many(op);
        bool proved = has_digest(op->name);
        assert_false(proved && reason != NULL);
        digests += proved;
        if (reason != NULL) {
            tl_ran_none(op->name, "all bf16", reason);
            tl_ran_none(op->name, "all f16", reason);
        }
        say_all_f32(op, proved, reason);
    }
    say_exponents();
    assert_true(digests > 0);
}

/* ---- the gradient's reference ---- */

/* A case's gradient runs, and is made of listed ops: each of those has a reference of its own
 * (test_registry). */
static bool made_of_listed_ops(const tl_case *c)
{
    ref_tensor leaf[CASE_INPUTS];
    tl_tensor in[CASE_INPUTS];
    tl_tape *t = tl_tape_new(NULL);
    case_run r = tl_case_run(c, TL_F32);
    uint64_t state = tl_case_seed(1, &r, CASE_PLAIN);
    tl_case_fill(&r, &state, CASE_PLAIN, leaf);
    case_call k = {&r, leaf, false};
    int n = tl_case_floats(t, &k, in);
    for (int i = 0; i < n; i++)
        tl_require_grad(t, in[i]);
    tl_tensor loss = tl_sum(t, tl_case_function(t, in, n, &k), TL_ALL, false);
    uint32_t forward = t->n_nodes;
    tl_backward(t, loss);
    bool good = n > 0 && !tl_failed(t) && t->n_nodes > forward;
    for (uint32_t i = 0; i < t->n_nodes; i++)
        good &= tl_op_find(t->node[i].op->name) == t->node[i].op;
    if (tl_failed(t))
        fprintf(stderr, "%s\n", tl_error(t));
    tl_case_free(r.n, leaf);
    tl_free(t);
    return good;
}

/* The case whose gradient shall be run; NULL where a reference of the gradient is compared
 * (test_reference), or there is none to run. */
static const tl_case *without_reference(const char *op)
{
    const tl_case *found = NULL;
    for (int i = 0; i < tl_case_count(); i++) {
        const tl_case *c = tl_case_at(i);
        if (strcmp(c->op, op) != 0)
            continue;
        if (c->gradient != NULL)
            return NULL;
        if (found == NULL && !(c->flags & (CASE_BIG | CASE_NO_CHECK)))
            found = c;
    }
    return found;
}

static void test_gradients(void **unused)
{
    (void)unused;
    int bad = 0;
    for (int i = 0; i < tl_op_count(); i++) {
        const tl_op *op = tl_op_at(i);
        const tl_case *c = without_reference(op->name);
        if (op->traits & TL_NONDIFF) /* whatever its cases are */
            tl_ran_none(
                op->name, "reference-grad",
                "not differentiable: a gradient through it is refused or has nowhere to go");
        else if (c != NULL && made_of_listed_ops(c))
            tl_ran_none(op->name, "reference-grad",
                        "its gradient is calls of other listed ops, each held by the reference of "
                        "its own; make gradcheck judges the whole");
        else if (c != NULL && ++bad)
            fprintf(stderr,
                    "op %s, case '%s': the gradient does not run, or is not made of listed ops\n",
                    op->name, c->name);
    }
    assert_int_equal(bad, 0);
}

const struct CMUnitTest tl_tests_contract[] = {cmocka_unit_test(
                                                   test_sources_are_those_that_were_run),
                                               cmocka_unit_test(test_all_inputs),
                                               cmocka_unit_test(test_gradients)};
const size_t tl_tests_contract_count = sizeof tl_tests_contract / sizeof tl_tests_contract[0];
