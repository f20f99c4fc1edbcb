/* Examples: what each computes step by step it computes compiled, with the same bits. The programs
 * train_text and train_addition take --compile, and are run with it in test_train_text.c and
 * test_golden.c; reveal and tally-diff have no step to compile. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "tests/support/example.h"

extern const struct CMUnitTest tl_tests_examples[];
extern const size_t tl_tests_examples_count;

static void compiled_training_ends_with_the_same_weights(void **state)
{
    (void)state;
    const example list[] = {example_fit_line(), example_spiral(), example_signs()};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (strlen(list[i].called) != 64 || strcmp(list[i].called, list[i].compiled) != 0)
            fail_msg("%s: weights %s called, %s compiled", list[i].name, list[i].called,
                     list[i].compiled);
}

static void an_op_of_ones_own_compiles(void **state)
{
    (void)state;
    for (int op = 0; op < 2; op++)
        assert_true(example_gradcheck(op));
}

const struct CMUnitTest tl_tests_examples[] = {
    cmocka_unit_test(compiled_training_ends_with_the_same_weights),
    cmocka_unit_test(an_op_of_ones_own_compiles),
};
const size_t tl_tests_examples_count = sizeof tl_tests_examples / sizeof *tl_tests_examples;
