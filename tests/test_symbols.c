/* test_symbols.c: the library calls no function of the C library that could decide
 * a bit (NUMERICS 2.5): of libm it may use fma and sqrt, which IEEE 754 defines, and
 * log10 for a picture. And what its machine code must and must not hold. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#ifndef TL_BUILD
#define TL_BUILD "build"
#endif

static const char *const forbidden[] = {"exp",  "exp2",  "expm1", "log",    "log2",   "log1p",
                                        "sin",  "cos",   "tan",   "sincos", "sinh",   "cosh",
                                        "tanh", "asin",  "acos",  "atan",   "atan2",  "pow",
                                        "cbrt", "hypot", "erf",   "erfc",   "tgamma", "lgamma"};

/* name, as double or with f (float) or l (long double) behind it, or a vector variant. */
static int is_forbidden(const char *symbol)
{
    for (size_t i = 0; i < sizeof forbidden / sizeof *forbidden; i++) {
        size_t n = strlen(forbidden[i]);
        if (strncmp(symbol, forbidden[i], n) == 0 &&
            (symbol[n] == '\0' || strcmp(symbol + n, "f") == 0 || strcmp(symbol + n, "l") == 0))
            return 1;
    }
    return strncmp(symbol, "_ZGV", 4) == 0;
}

static void no_libm_function_decides_a_bit(void **state)
{
    (void)state;
    char line[512], name[256];
    int undefined = 0, known = 0, bad = 0;
    FILE *nm = popen("nm -u '" TL_BUILD "/libtally.a' 2>&1", "r");
    assert_non_null(nm);
    while (fgets(line, sizeof line, nm) != NULL)
        if (sscanf(line, " U %255s", name) == 1) {
            undefined++;
            known += strcmp(name, "fma") == 0 || strcmp(name, "sqrt") == 0 ||
                     strcmp(name, "malloc") == 0 || strcmp(name, "memcpy") == 0;
            if (is_forbidden(name)) {
                print_error("the library calls %s\n", name);
                bad++;
            }
        }
    assert_int_equal(pclose(nm), 0);
    assert_true(undefined > 100 && known > 0); /* the listing is what it should be */
    assert_int_equal(bad, 0);
}

/* gcc's vectoriser makes these of a*b + c beside d*e - f, whatever -ffp-contract says; no kernel
 * means them. */
static void no_fused_add_subtract(void **state)
{
    (void)state;
    char line[512];
    int instructions = 0, bad = 0;
    FILE *dump = popen("objdump -d --no-show-raw-insn '" TL_BUILD "/libtally.a' 2>&1", "r");
    assert_non_null(dump);
    while (fgets(line, sizeof line, dump) != NULL) {
        instructions += strchr(line, '\t') != NULL;
        if (strstr(line, "fmaddsub") != NULL || strstr(line, "fmsubadd") != NULL) {
            print_error("%s", line);
            bad++;
        }
    }
    assert_int_equal(pclose(dump), 0);
    assert_true(instructions > 10000); /* the listing is what it should be */
    assert_int_equal(bad, 0);
}

static void the_check_knows_its_names(void **state)
{
    (void)state;
    assert_true(is_forbidden("exp") && is_forbidden("expf") && is_forbidden("powl") &&
                is_forbidden("_ZGVbN4v_expf"));
    assert_false(is_forbidden("sqrt") || is_forbidden("fma") || is_forbidden("tl_exp_at") ||
                 is_forbidden("log10"));
}

const struct CMUnitTest tl_tests_symbols[] = {
    cmocka_unit_test(no_libm_function_decides_a_bit),
    cmocka_unit_test(no_fused_add_subtract),
    cmocka_unit_test(the_check_knows_its_names),
};
const size_t tl_tests_symbols_count = sizeof tl_tests_symbols / sizeof *tl_tests_symbols;
