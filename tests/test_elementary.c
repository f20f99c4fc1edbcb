/* The f64 functions for use outside ops are those of the kernels, whatever the caller's rounding.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fenv.h>
#include <string.h>

#include "tensor/elementary.h"
#include "tensor/isa.h"
#include "tensor/rng.h"

extern const struct CMUnitTest tl_tests_elementary[];
extern const size_t tl_tests_elementary_count;

enum { N = 2000 };

typedef double one(double x);
typedef void many(int64_t n, const double *x, double *y);

static void agree(one *f, many *g, const double *x, int rounding, const char *name)
{
    double y[N];
    g(N, x, y); /* a kernel is called with the environment right */
    fesetround(rounding);
    for (int i = 0; i < N; i++) {
        double z = f(x[i]);
        if (memcmp(&z, &y[i], sizeof z) != 0 && (z == z || y[i] == y[i]))
            fail_msg("%s(%a) is %a, the kernel's %a", name, x[i], z, y[i]);
    }
    assert_int_equal(fegetround(), rounding);
    fesetround(FE_TONEAREST);
}

static void the_kernels_bits(void **unused)
{
    static const int roundings[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    tl_rng_key key = tl_rng_stream(1, "elementary");
    double x[N];
    (void)unused;
    for (int i = 0; i < N; i++)
        x[i] = tl_rng_normal64(key, 0, (uint64_t)i) * (i % 3 == 0 ? 1e6 : i % 3 == 1 ? 1 : 30);
    x[0] = 0;
    x[1] = -0.0;
    const tl_isa *isa = tl_isa_at(0);
    for (int i = 0; i < 4; i++) {
        agree(tl_f64_sin, isa->math->sin64, x, roundings[i], "sin");
        agree(tl_f64_cos, isa->math->cos64, x, roundings[i], "cos");
        agree(tl_f64_exp, isa->math->exp64, x, roundings[i], "exp");
        agree(tl_f64_log, isa->math->log64, x, roundings[i], "log");
    }
}

const struct CMUnitTest tl_tests_elementary[] = {
    cmocka_unit_test(the_kernels_bits),
};
const size_t tl_tests_elementary_count = sizeof tl_tests_elementary / sizeof tl_tests_elementary[0];
