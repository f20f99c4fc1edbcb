/* expect.c: see expect.h. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "tests/support/expect.h"

uint64_t expect_seed(void)
{
    const char *env = getenv("TL_TEST_SEED");
    return env != NULL ? strtoull(env, NULL, 0) : 1;
}

void expect_no_error(tl_tape *t)
{
    if (tl_failed(t))
        fail_msg("seed %llu: %s", (unsigned long long)expect_seed(), tl_error(t));
}

void expect_failure(tl_tape *t, tl_status s, const char *words)
{
    if (tl_error_status(t) != s || strstr(tl_error(t), words) == NULL)
        fail_msg("%s and '%s' expected; %s, '%s'", tl_status_name(s), words, tl_status_name(tl_error_status(t)), tl_error(t));
    tl_error_clear(t);
}

void expect_bits(tl_tape *t, tl_tensor got, const ref_tensor *want)
{
    ref_tensor g = tl_case_read(t, got);
    expect_no_error(t);
    int same = ref_same_bits(&g, want);
    ref_free(&g);
    if (!same)
        fail_msg("seed %llu: other bits than expected", (unsigned long long)expect_seed());
}

tl_tensor trained_leaf(tl_tape *t, const ref_tensor *x)
{
    tl_tensor h = tl_case_leaf(t, x);
    tl_require_grad(t, h);
    return h;
}
