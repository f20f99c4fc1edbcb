/* Ops and layers beside PyTorch's (agree.py), where make deps-peers has installed that. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/support/skip.h"

#define PYTHON TL_BUILD "/peers/bin/python"

static void agrees(const char *how)
{
    char command[1024];
    if (access(PYTHON, X_OK) != 0)
        TL_SKIP();
    snprintf(command, sizeof command,
             PYTHON " -W ignore " TL_ROOT "/tests/agree.py " TL_BUILD "/libtally.so %s >&2", how);
    assert_int_equal(system(command), 0);
}

static void values_and_gradients_agree_with_pytorch(void **state)
{
    (void)state;
    agrees("");
}

static void weights_go_to_pytorch_and_come_back_in_files(void **state)
{
    (void)state;
    agrees("files");
}

const struct CMUnitTest tl_tests_agree[] = {
    cmocka_unit_test(values_and_gradients_agree_with_pytorch),
    cmocka_unit_test(weights_go_to_pytorch_and_come_back_in_files),
};
const size_t tl_tests_agree_count = sizeof tl_tests_agree / sizeof *tl_tests_agree;
