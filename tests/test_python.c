/* The Python package of examples/python (python.py), where a Python with numpy can open this
 * build's library: not one of another processor's, nor a sanitizer's. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>

#include "tests/support/skip.h"

extern const struct CMUnitTest tl_tests_python[];
extern const size_t tl_tests_python_count;

#define PYTHON "${PYTHON:-python3} -W ignore "

static void the_package_works_with_this_library(void **unused)
{
    (void)unused;
    if (system(PYTHON "-c 'import ctypes, numpy; ctypes.CDLL(\"" TL_BUILD
                      "/libtally.so\")' 2> /dev/null") != 0)
        TL_SKIP();
    assert_int_equal(system(PYTHON TL_ROOT "/tests/python.py " TL_BUILD " >&2"), 0);
}

const struct CMUnitTest tl_tests_python[] = {
    cmocka_unit_test(the_package_works_with_this_library),
};
const size_t tl_tests_python_count = sizeof tl_tests_python / sizeof *tl_tests_python;
