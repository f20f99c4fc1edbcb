#include "tests/support/values.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

static uint64_t state = 12345;

uint64_t values_random(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    uint64_t z = state ^ state >> 31;
    z *= 0x9e3779b97f4a7c15u;
    return z ^ z >> 29;
}

double values_uniform(void) { return (double)(values_random() >> 11) * 0x1p-52 - 1.0; }

ref_tensor values_tensor(ref_dtype dtype, int ndim, const int64_t *dim)
{
    ref_tensor t = ref_new(dtype, ndim, dim);
    for (int64_t i = 0; i < ref_numel(&t); i++)
        ref_set(&t, i, values_uniform());
    return t;
}

void assert_value(double got, double want)
{
    if (isnan(want) && isnan(got))
        return;
    if (memcmp(&got, &want, sizeof got) != 0)
        fail_msg("got %a, want %a", got, want);
}

void assert_values(ref_tensor t, ref_dtype dtype, int64_t n, const double *want)
{
    assert_int_equal(t.dtype, dtype);
    assert_int_equal(ref_numel(&t), n);
    for (int64_t i = 0; i < n; i++)
        assert_value(ref_get(&t, i), want[i]);
    ref_free(&t);
}

void assert_near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance))
        fail_msg("got %a, want %a within %g", got, want, tolerance);
}

void values_free(int n, ref_tensor **t)
{
    for (int i = 0; i < n; i++)
        ref_free(t[i]);
}
