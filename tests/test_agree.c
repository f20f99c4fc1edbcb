/* Ops and layers beside PyTorch's (agree.py), where make deps-peers has installed that. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <unistd.h>

#include "tests/support/skip.h"

#define PYTHON TL_BUILD "/peers/bin/python"

static void values_and_gradients_agree_with_pytorch(void **state)
{
    (void)state;
    if (access(PYTHON, X_OK) != 0)
        TL_SKIP();
    assert_int_equal(system(PYTHON " -W ignore " TL_ROOT "/tests/agree.py " TL_BUILD
                                   "/libtally.so >&2"),
                     0);
}

const struct CMUnitTest tl_tests_agree[] = {
    cmocka_unit_test(values_and_gradients_agree_with_pytorch),
};
const size_t tl_tests_agree_count = sizeof tl_tests_agree / sizeof *tl_tests_agree;
