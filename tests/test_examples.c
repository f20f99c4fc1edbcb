/* Examples: what each computes step by step it computes compiled, with the same bits. The programs
 * train_text and train_addition take --compile, and are run with it in test_train_text.c and
 * test_golden.c, profile can be told to; reveal and tally-diff have no step to compile. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/example.h"
#include "tests/temp_dir.h"

#ifndef TL_BUILD
#define TL_BUILD "build"
#endif

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

/* The profiler of the examples, called and compiled: its table and its stacks name ops of the
 * library, in all three phases, and both count the same time. */
static void a_profile_names_ops_and_phases(void **state)
{
    (void)state;
    for (int compile = 0; compile < 2; compile++) {
        char path[1024], command[4096], line[512], phase[32], op[64];
        int rows = 0, stacks = 0, seen[3] = {0};
        long us, total = 0;
        double ms, table = 0;
        temp_dir dir;
        assert_true(temp_dir_make(&dir));
        temp_dir_file(path, &dir, "stacks");
        snprintf(command, sizeof command, "%s '" TL_BUILD "/profile' 2 '%s' %s",
                 getenv("TL_RUN") != NULL ? getenv("TL_RUN") : "", path, compile ? "compile" : "");
        FILE *f = popen(command, "r");
        assert_non_null(f);
        while (fgets(line, sizeof line, f) != NULL)
            if (sscanf(line, "%31s %63s %lf", phase, op, &ms) == 3) {
                assert_non_null(tl_op_find(op));
                table += ms;
                rows++;
            }
        assert_int_equal(pclose(f), 0);
        f = fopen(path, "r");
        assert_non_null(f);
        while (fgets(line, sizeof line, f) != NULL) {
            assert_int_equal(sscanf(line, "%31[^;];%*[^;];%63s %ld", phase, op, &us), 3);
            assert_non_null(tl_op_find(op));
            seen[0] |= strcmp(phase, "forward") == 0;
            seen[1] |= strcmp(phase, "backward") == 0;
            seen[2] |= strcmp(phase, "update") == 0;
            total += us;
            stacks++;
        }
        fclose(f);
        temp_dir_remove(&dir);
        assert_true(seen[0] && seen[1] && seen[2]);
        assert_true(rows > 10 && rows == stacks);
        assert_true(table > 0 && labs(total - lround(2000 * table)) <= rows * 2);
    }
}

const struct CMUnitTest tl_tests_examples[] = {
    cmocka_unit_test(a_profile_names_ops_and_phases),
    cmocka_unit_test(compiled_training_ends_with_the_same_weights),
    cmocka_unit_test(an_op_of_ones_own_compiles),
};
const size_t tl_tests_examples_count = sizeof tl_tests_examples / sizeof *tl_tests_examples;
