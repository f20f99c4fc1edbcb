/* The Python package of examples/python (python.py). Skipped where there is no Python with numpy,
 * and where no Python of this machine can open the library: it is another processor's (TL_RUN runs
 * the tests) or a sanitizer's. Any other library that does not open is a failure. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>
#include <stdlib.h>

#include "tests/support/skip.h"

extern const struct CMUnitTest tl_tests_python[];
extern const size_t tl_tests_python_count;

#define PYTHON "${PYTHON:-python3} -W ignore "
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define SANITIZED true
#elif defined __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(memory_sanitizer)
#define SANITIZED true
#endif
#endif
#ifndef SANITIZED
#define SANITIZED false
#endif

static void the_package_works_with_this_library(void **unused)
{
    (void)unused;
    if (SANITIZED || getenv("TL_RUN") != NULL ||
        system(PYTHON "-c 'import numpy' 2> /dev/null") != 0)
        TL_SKIP();
    assert_int_equal(system(PYTHON TL_ROOT "/tests/python.py " TL_BUILD " >&2"), 0);
}

/* -S: without what is installed beside Python. */
static void numpy_is_asked_for(void **unused)
{
    (void)unused;
    if (system(PYTHON "-c '' 2> /dev/null") != 0 ||
        system(PYTHON "-S -c 'import numpy' 2> /dev/null") == 0)
        TL_SKIP();
    assert_int_equal(system(PYTHON "-S " TL_ROOT "/tests/python.py " TL_BUILD
                                   " 2>&1 | grep -q '^examples/python needs numpy: make python'"),
                     0);
}

const struct CMUnitTest tl_tests_python[] = {
    cmocka_unit_test(numpy_is_asked_for),
    cmocka_unit_test(the_package_works_with_this_library),
};
const size_t tl_tests_python_count = sizeof tl_tests_python / sizeof *tl_tests_python;
