/* runner.c: every test group in one program.
 *
 *   runner [GROUP ...]     runs all groups, or those named; the last line is
 *                          "N passed, N failed" and the exit status the verdict: 2, and nothing
 *                          has run, where a name is no group's.
 *
 * With TL_TEST_STOP=1 it ends behind the first test that failed. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/tape.h"
#include "tests/support/names.h"
#include "tests/support/skip.h"

/* clang-format off */
#define GROUPS(X)                                                                                 \
    X(math) X(math_half) X(gemm) X(half_rounding) X(attention) X(ref) X(ref_gradients)            \
    X(ref_training) X(hash) X(fingerprint) X(rng) X(file) X(safetensors)                          \
    X(safetensors_damage) X(safetensors_seal)                                                     \
    X(fuzz_files) X(fuzz_api) X(extremes) X(print) X(array) X(arena)                              \
    X(ranges) X(threads) X(environment) X(environment_ops) X(handles) X(tape) X(refusals)         \
    X(errors) X(out_of_memory) X(model) X(state_dict) X(checkpoint) X(training) X(shadow)         \
    X(memory) X(symbols) X(models) X(llmc) X(faults) X(segment) X(let_go) X(anomaly)              \
    X(explain) X(batch)                                                                           \
    X(batch_rules) X(folds) X(gradients) X(half) X(masters) X(optimizers) X(numerics)             \
    X(contract) X(messages) X(observer) X(train_addition) X(log) X(log_bad) X(log_diff)           \
    X(levels) X(graph_edges) X(graph_assign) X(examples) X(graph_parts) X(graph_before)           \
    X(graph_size) X(graph) X(graph_training) X(segment_outputs) X(graph_uses) X(small_stack)      \
    X(programs) X(simplify) X(fuse) X(cost) X(order) X(reveal) X(hidden_sums) X(change)           \
    X(culprit) X(rotary_table) X(rotary_halves) X(in_place) X(half_products) X(includes)          \
    X(elementary) X(faults_rows) X(faults_norm) X(faults_rotary) X(faults_checker)                \
    X(gradients_checker) X(curve) X(gpt2) X(layers) X(recurrent) X(accumulate)                    \
    X(splits) X(group) X(shard)                                                                   \
    X(registry) X(reference) X(invariance) X(rotary) X(walk) X(graph_ops) X(readme) X(golden)     \
    X(kernels) X(kernels_backward) X(kernels_promise) X(train_text) X(pattern) X(pattern_places)  \
    X(pattern_rules) X(pattern_registration) X(patterns_shipped) X(patterns_written)              \
    X(pattern_joint) X(pattern_outputs) X(checkpoint_step) X(decoding) X(invariant_training)      \
    X(forgotten) X(derived) X(f64) X(api) X(face) X(man) X(agree) X(python) X(arrays) X(loader)   \
    X(course)
/* clang-format on */

#define X(name)                                       \
    extern const struct CMUnitTest tl_tests_##name[]; \
    extern const size_t tl_tests_##name##_count;
GROUPS(X)
#undef X

static size_t passed, failed;
size_t tl_tests_skipped;

static const char *group_at(int i)
{
#define X(name) #name,
    static const char *const names[] = {GROUPS(X) NULL};
#undef X
    return names[i];
}

static int wanted(const char *name, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], name) == 0)
            return 1;
    return argc < 2;
}

static void run(const char *name, const struct CMUnitTest *tests, size_t n)
{
    bool stop = getenv("TL_TEST_STOP") != NULL;
    size_t step = stop ? 1 : n;
    for (size_t i = 0; i < n && !(stop && failed > 0); i += step) {
        int bad = _cmocka_run_group_tests(name, tests + i, step, NULL, NULL);
        size_t f = bad < 0 ? step : (size_t)bad;
        failed += f;
        passed += step - f;
    }
}

int main(int argc, char **argv)
{
    if (!names_known("test group", argc - 1, argv + 1, group_at))
        return 2;
    tl_warnings(false); /* tests let errors go unread; test_forgotten.c looks at what is said */
#define X(name)                    \
    if (wanted(#name, argc, argv)) \
        run(#name, tl_tests_##name, tl_tests_##name##_count);
    GROUPS(X)
#undef X
    passed -= tl_tests_skipped;
    printf("%zu passed, %zu failed", passed, failed);
    if (tl_tests_skipped > 0)
        printf(", %zu skipped", tl_tests_skipped);
    putchar('\n');
    return failed > 0 || passed == 0;
}
