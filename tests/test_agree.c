/* Ops and layers beside PyTorch's (agree.py), where make deps-peers has installed that. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tally.h>

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

/* The comparison below reads the structs from the headers, which is seen where nobody can compare.
 */
static void structs_are_read_as_they_are(void **state)
{
#define X(t)          \
    {                 \
#t, sizeof(t) \
    }
    static const struct {
        const char *name;
        size_t size;
    } have[] = {X(tl_tensor),
                X(tl_at),
                X(tl_shape),
                X(tl_named),
                X(tl_array),
                X(tl_init),
                X(tl_hook),
                X(tl_rotary_scaling),
                X(tl_columns),
                X(tl_conv_options),
                X(tl_pool_options),
                X(tl_cross_entropy_options),
                X(tl_bce_options),
                X(tl_attention_options),
                X(tl_recur_options),
                X(tl_linear_options),
                X(tl_layer_options),
                X(tl_convolve_options),
                X(tl_channel_norm_options),
                X(tl_mlp_gelu_options),
                X(tl_mlp_swiglu_options),
                X(tl_part),
                X(tl_self_attention_options),
                X(tl_recurrent_options)};
#undef X
    char name[128];
    size_t size, said = 0;
    (void)state;
    if (system("python3 -c '' 2>&-") != 0)
        TL_SKIP();
    FILE *f = popen("python3 " TL_ROOT "/tests/agree.py headers", "r");
    assert_non_null(f);
    while (fscanf(f, "%127s %zu", name, &size) == 2) {
        size_t i = 0;
        while (i < sizeof have / sizeof *have && strcmp(have[i].name, name) != 0)
            i++;
        if (strncmp(name, "tl_", 3) == 0 && i == sizeof have / sizeof *have)
            fail_msg("agree.py reads %s, which is not compared here", name);
        if (i < sizeof have / sizeof *have && have[i].size != size)
            fail_msg("%s has %zu bytes, and %zu as agree.py reads it", name, have[i].size, size);
        said += i < sizeof have / sizeof *have;
    }
    assert_int_equal(pclose(f), 0);
    assert_int_equal(said, sizeof have / sizeof *have);
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
    cmocka_unit_test(structs_are_read_as_they_are),
    cmocka_unit_test(values_and_gradients_agree_with_pytorch),
    cmocka_unit_test(weights_go_to_pytorch_and_come_back_in_files),
};
const size_t tl_tests_agree_count = sizeof tl_tests_agree / sizeof *tl_tests_agree;
