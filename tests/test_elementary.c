/* The f64 functions for use outside ops are those of the kernels, whatever the caller's rounding;
 * and the kernels are made of packed instructions. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fenv.h>
#include <stdio.h>
#include <string.h>

#include "tensor/elementary.h"
#include "tensor/isa.h"
#include "tensor/rng.h"
#include "tests/support/skip.h"

#ifndef TL_BUILD
#define TL_BUILD "build"
#endif

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

/* A flag can keep the compiler from vectorising and change no bit: -fno-unsafe-math-optimizations
 * behind -fno-trapping-math turns trapping on again, and erf takes six times as long. */
static void elementary_functions_are_vectorised(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__)
    TL_SKIP(); /* a sanitizer's checks stand between the elements */
#elif defined(__x86_64__)
    static const struct {
        const char *name, *level, *registers; /* v3 tries exp and its like by vectors of its own */
    } functions[] = {{"exp", "v2", "%xmm"},
                     {"log", "v2", "%xmm"},
                     {"tanh", "v2", "%xmm"},
                     {"sin", "v3", "%ymm"},
                     {"erf", "v3", "%ymm"}};
    char line[512], command[512];
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        int packed = 0;
        snprintf(command, sizeof command,
                 "objdump -d --no-show-raw-insn --disassemble=tl_v%s32_%s '" TL_BUILD
                 "/libtally.a' 2>&1",
                 functions[i].name, functions[i].level);
        FILE *dump = popen(command, "r");
        assert_non_null(dump);
        while (fgets(line, sizeof line, dump) != NULL)
            packed += strstr(line, "pd ") != NULL && strstr(line, functions[i].registers) != NULL;
        assert_int_equal(pclose(dump), 0);
        if (packed < 10)
            fail_msg("%s in f32 at level %s: %d packed instructions", functions[i].name,
                     functions[i].level, packed);
    }
#endif
}

const struct CMUnitTest tl_tests_elementary[] = {
    cmocka_unit_test(the_kernels_bits),
    cmocka_unit_test(elementary_functions_are_vectorised),
};
const size_t tl_tests_elementary_count = sizeof tl_tests_elementary / sizeof tl_tests_elementary[0];
