/* The shipped replacements: each is there, its claims hold by the property test and on other
 * shapes, and what is not claimed is not so. What programs write is in test_patterns_written. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>

#include "ops/patterns/patterns.h"
#include "tests/support/both.h"

extern const struct CMUnitTest tl_tests_patterns_shipped[];
extern const size_t tl_tests_patterns_shipped_count;

static uint64_t seed_now(void)
{
    const char *env = getenv("TL_TEST_SEED");
    return env != NULL ? strtoull(env, NULL, 0) : 20261;
}

static void every_claim_holds(void **state)
{
    (void)state;
    uint64_t seed = seed_now();
    print_message("seed %llu (TL_TEST_SEED)\n", (unsigned long long)seed);
    for (int i = 0; tl_shipped_replacements[i] != NULL; i++) {
        tl_err e = {.status = TL_OK};
        const tl_replacement *o = tl_shipped_replacements[i];
        tl_status last = tl_replacement_compare(o->name, o->forms > 0 ? o->forms - 1 : 0, TL_F32,
                                                NULL, false, seed, 1, &e);
        if (last == TL_ENAME)
            fail_msg("%s: not every form is registered", o->name);
        e = (tl_err){.status = TL_OK};
        if (tl_replacement_check(o->name, seed, 32, &e) != TL_OK)
            fail_msg("%s", e.message);
    }
}

/* Sizes around the lanes; empty and single rows; more dims. */
static void claims_hold_for_other_shapes(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 2, 31, 32, 33, 64, 100};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int64_t rows = 0; rows < 4; rows++) {
            const int64_t n = sizes[i];
            const tl_shape norm[] = {TL_DIMS(rows, n), TL_DIMS(n)},
                           add[] = {TL_DIMS(2, rows, n), TL_DIMS(2, rows, n), TL_DIMS(n)};
            const tl_shape ce[] = {TL_DIMS(rows, n), TL_DIMS(rows)},
                           gate[] = {TL_DIMS(rows, 2, n), TL_DIMS(rows, 2, n)};
            const tl_shape att[] = {TL_DIMS(rows, 2, 3, 4), TL_DIMS(rows, 2, n, 4),
                                    TL_DIMS(rows, 2, n, 4)};
            const tl_shape group[] = {TL_DIMS(rows, 4, 3, 4), TL_DIMS(rows, 2, n, 4),
                                      TL_DIMS(rows, 2, n, 4)};
            const tl_shape pairs[] = {TL_DIMS(2, rows, 2 * n), TL_DIMS(rows, n), TL_DIMS(rows, n)},
                           picked[] = {TL_DIMS(rows, n), TL_DIMS(rows, 1)};
            const tl_shape rot[] = {TL_DIMS(2, rows, 2 * n), TL_DIMS(rows, 2 * n),
                                    TL_DIMS(rows, 2 * n)};
            tl_err e = {.status = TL_OK};
            uint64_t seed = seed_now() + (uint64_t)(n * 10 + rows);
            for (int d = TL_F64; d <= TL_F32; d++) {
                tl_replacement_compare("rms_norm", 0, (tl_dtype)d, norm, false, seed, 4, &e);
                tl_replacement_compare("rms_norm_bare", 5, (tl_dtype)d, norm, false, seed, 4, &e);
                tl_replacement_compare("rms_norm_plus_one", 1, (tl_dtype)d, norm, false, seed, 4,
                                       &e);
                tl_replacement_compare("rotary_half", 0, (tl_dtype)d, rot, false, seed, 4, &e);
                tl_replacement_compare("rotary_interleaved", (int)rows % 2, (tl_dtype)d, rot, false,
                                       seed, 4, &e);
                tl_replacement_compare("rotary_pairs", (int)rows % 2, (tl_dtype)d, pairs, false,
                                       seed, 4, &e);
                tl_replacement_compare("silu", 0, (tl_dtype)d, gate, false, seed, 4, &e);
                tl_replacement_compare("swiglu", 0, (tl_dtype)d, gate, true, seed, 4, &e);
                tl_replacement_compare("attention_full", 0, (tl_dtype)d, att, true, seed, 4, &e);
                tl_replacement_compare("attention_divided", 0, (tl_dtype)d, att, true, seed, 4, &e);
                tl_replacement_compare("attention_grouped", 0, (tl_dtype)d, group, false, seed, 4,
                                       &e);
                if (n == 100) { /* examples' targets are below 35 */
                    tl_replacement_compare("cross_entropy", 0, (tl_dtype)d, ce, false, seed, 4, &e);
                    tl_replacement_compare("cross_entropy_gather", (int)rows, (tl_dtype)d, picked,
                                           false, seed, 4, &e);
                }
            }
            for (int d = TL_F64; d <= TL_BF16; d++)
                for (int bare = 0; bare < 2; bare++)
                    tl_replacement_compare(bare ? "add_rms_norm_bare" : "add_rms_norm", 0,
                                           (tl_dtype)d, add, true, seed, 4, &e);
            if (e.status != TL_OK)
                fail_msg("%s", e.message);
        }
}

/* The test can fail: what is not claimed is not so. */
static void what_is_not_claimed_rounds(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int form;
        tl_dtype dtype;
        bool backward;
    } rounds[] = {{"swiglu", 0, TL_F16, false},
                  {"swiglu", 0, TL_BF16, false},
                  {"rms_norm", 0, TL_F32, true},
                  {"rms_norm", 0, TL_F64, true},
                  {"rms_norm", 0, TL_F16, false},
                  {"rms_norm", 6, TL_F32, false},
                  {"rms_norm", 9, TL_F64, false},
                  {"rms_norm", 12, TL_F32, false},
                  {"rms_norm_cast", 8, TL_F32, false},
                  {"rms_norm_bare", 0, TL_F32, true},
                  {"rms_norm_cast_gamma", 0, TL_BF16, false},
                  {"rms_norm_plus_one_gamma", 0, TL_BF16, false},
                  {"rms_norm_plus_one", 0, TL_F32, true},
                  {"silu", 0, TL_F32, true},
                  {"silu_exp", 0, TL_F32, false},
                  {"silu_exp", 1, TL_F64, false},
                  {"silu_exp", 2, TL_F32, false},
                  {"rotary_half", 0, TL_F32, true},
                  {"rotary_chunks", 0, TL_F64, true},
                  {"rotary_interleaved", 1, TL_F32, true},
                  {"rotary_pairs", 0, TL_F16, false},
                  {"rotary_half", 0, TL_F16, false},
                  {"cross_entropy", 0, TL_F32, true},
                  {"cross_entropy", 0, TL_F16, false},
                  {"cross_entropy_gather", 0, TL_F32, true},
                  {"attention_full", 0, TL_BF16, false},
                  {"attention_grouped", 0, TL_F32, true},
                  {"attention_scaled", 2, TL_F32, false},
                  {"attention_scaled", 4, TL_F32, false},
                  {"attention_scaled", 8, TL_F64, false},
                  {"attention_added", 0, TL_F32, false},
                  {"attention_chosen", 0, TL_F32, false},
                  {"attention_constant", 2, TL_F32, false},
                  {"attention_excluded", 4, TL_F64, false}};
    for (size_t i = 0; i < sizeof rounds / sizeof *rounds; i++) {
        tl_err e = {.status = TL_OK};
        if (tl_replacement_compare(rounds[i].name, rounds[i].form, rounds[i].dtype, NULL,
                                   rounds[i].backward, 5, 96, &e) != TL_EDOMAIN)
            fail_msg("%s in %s %s is exact, or fails: %s", rounds[i].name,
                     tl_dtype_name(rounds[i].dtype), rounds[i].backward ? "backward" : "forward",
                     e.message);
    }
}

const struct CMUnitTest tl_tests_patterns_shipped[] = {
    cmocka_unit_test(every_claim_holds),
    cmocka_unit_test(claims_hold_for_other_shapes),
    cmocka_unit_test(what_is_not_claimed_rounds),
};
const size_t tl_tests_patterns_shipped_count = sizeof tl_tests_patterns_shipped /
                                               sizeof *tl_tests_patterns_shipped;
