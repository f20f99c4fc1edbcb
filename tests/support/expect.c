/* expect.c: see expect.h. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/rng.h"
#include "tests/support/expect.h"

uint64_t expect_number(const char *name, uint64_t otherwise)
{
    const char *env = getenv(name);
    char *end;
    if (env == NULL || *env == '\0')
        return otherwise;
    errno = 0;
    const uint64_t n = strtoull(env, &end, 0);
    if (*env < '0' || *env > '9' || *end != '\0' || errno != 0)
        fail_msg("%s=%s is not a number", name, env);
    return n;
}

uint64_t expect_seed(void) { return expect_number("TL_TEST_SEED", 1); }

uint64_t expect_programs(uint64_t otherwise)
{
    const uint64_t n = expect_number("TL_TEST_PROGRAMS", otherwise);
    if (n == 0)
        fail_msg("TL_TEST_PROGRAMS=0: there is nothing to run");
    return n;
}

void expect_no_error(tl_tape *t)
{
    if (tl_failed(t))
        fail_msg("seed %llu: %s", (unsigned long long)expect_seed(), tl_error(t));
}

void expect_failure(tl_tape *t, tl_status s, const char *words)
{
    if (tl_error_status(t) != s || strstr(tl_error(t), words) == NULL)
        fail_msg("%s and '%s' expected; %s, '%s'", tl_status_name(s), words,
                 tl_status_name(tl_error_status(t)), tl_error(t));
    tl_error_clear(t);
}

void expect_failure_both(tl_tape *t, tl_status s, const char *first, const char *second)
{
    if (strstr(tl_error(t), second) == NULL)
        fail_msg("'%s' expected in '%s'", second, tl_error(t));
    expect_failure(t, s, first);
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

void expect_ok(tl_tape *t, const char *what)
{
    if (tl_failed(t))
        fail_msg("%s: %s", what, tl_error(t));
}

void expect_same(tl_tape *t, tl_tensor x, tl_tensor y, const char *what)
{
    char a[65], b[65];
    if (tl_sha256(t, x, a) != TL_OK || tl_sha256(t, y, b) != TL_OK)
        fail_msg("%s: %s", what, tl_error(t));
    if (strcmp(a, b) != 0)
        fail_msg("%s: other bits", what);
}

double element_of(tl_tape *t, tl_tensor x, int64_t i)
{
    tl_array a;
    tl_tensor wide = tl_cast(t, tl_detach(t, x), TL_F64);
    if (!tl_array_of(t, wide, &a) || a.data == NULL || i >= tl_array_count(&a))
        fail_msg("no element %lld: %s", (long long)i, tl_error(t));
    return *(const double *)tl_array_at(&a, i);
}

bool has_shape(tl_tape *t, tl_tensor x, tl_shape want)
{
    tl_shape s = tl_shape_of(t, x);
    return tl_shape_equal(&s, &want);
}

tl_tensor leaf_of(tl_tape *t, tl_tensor wide, tl_dtype d)
{
    tl_tensor x = tl_zeros(t, d, tl_shape_of(t, wide));
    tl_array from, to;
    if (tl_array_of(t, tl_cast(t, wide, d), &from) && tl_array_of(t, x, &to))
        tl_array_copy(&to, &from);
    return x;
}

tl_tensor noise_leaf(tl_tape *t, const char *name, tl_dtype d, tl_shape s)
{
    tl_rng_key key = tl_rng_stream(7, name);
    tl_tensor x = tl_zeros(t, TL_F64, s);
    tl_array a;
    if (tl_array_of(t, x, &a))
        for (int64_t i = 0; i < tl_array_count(&a); i++)
            ((double *)a.data)[i] = tl_rng_normal64(key, 0, (uint64_t)i);
    return leaf_of(t, x, d);
}
