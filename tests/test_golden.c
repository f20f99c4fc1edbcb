/* The golden runs of tests/golden/runs.txt end with the weights written there, and in
 * tests/README.md. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

extern const struct CMUnitTest tl_tests_golden[];
extern const size_t tl_tests_golden_count;

#ifndef TL_ROOT
#define TL_ROOT "."
#endif
#ifndef TL_BUILD
#define TL_BUILD "build"
#endif

enum { RUNS = 6, SMALL = 4 }; /* the small ones stand first */

typedef struct {
    char name[32], hash[65], flags[400];
} golden;

static int read_runs(golden g[RUNS])
{
    char line[600];
    int n = 0;
    FILE *f = fopen(TL_ROOT "/tests/golden/runs.txt", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f) != NULL)
        if (line[0] != '#') {
            assert_true(n < RUNS);
            assert_int_equal(sscanf(line, "%31s %64s %399[^\n]", g[n].name, g[n].hash, g[n].flags),
                             3);
            n++;
        }
    fclose(f);
    return n;
}

/* TL_RUN, where it is set, is the emulator that runs programs of this build. */
static void run(const golden *g, const char *more, char hash[65])
{
    char command[2000], line[600];
    const char *emulator = getenv("TL_RUN");
    snprintf(command, sizeof command, "%s %s/train_addition %s %s",
             emulator != NULL ? emulator : "", TL_BUILD, g->flags, more);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    strcpy(hash, "");
    while (fgets(line, sizeof line, f) != NULL)
        sscanf(line, "weights sha256 %64s", hash);
    int status = pclose(f);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("%s: status %x", command, (unsigned)status);
}

static void runs_end_with_their_weights(void **unused)
{
    static const char *const more[RUNS] = {"--threads 1",
                                           "--threads 2 --micro-batch 2",
                                           "--threads 3 --micro-batch 4",
                                           "--threads 2 --micro-batch 1 --compile",
                                           "--threads 2 --micro-batch 8",
                                           "--threads 3 --micro-batch 32 --compile"};
    golden g[RUNS];
    char hash[65];
    (void)unused;
    assert_int_equal(read_runs(g), RUNS);
    for (int i = 0; i < (getenv("TL_RUN") != NULL ? SMALL : RUNS);
         i++) { /* an emulator is spared the wide ones */
        const char *const ways[2] = {more[i], "--threads 2 --compile"};
        for (int k = 0; k < (i < SMALL ? 2 : 1); k++) {
            run(&g[i], ways[k], hash);
            if (strcmp(hash, g[i].hash) != 0)
                fail_msg("%s (%s): weights %s, golden %s", g[i].name, ways[k], hash, g[i].hash);
        }
    }
}

static void the_readme_prints_them(void **unused)
{
    static char text[1 << 16];
    golden g[RUNS];
    (void)unused;
    FILE *f = fopen(TL_ROOT "/tests/README.md", "r");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    assert_true(n > 0 && n < sizeof text - 1);
    assert_int_equal(read_runs(g), RUNS);
    for (int i = 0; i < RUNS; i++)
        if (strstr(text, g[i].hash) == NULL)
            fail_msg("tests/README.md lacks %s, the weights of %s", g[i].hash, g[i].name);
}

const struct CMUnitTest tl_tests_golden[] = {
    cmocka_unit_test(runs_end_with_their_weights),
    cmocka_unit_test(the_readme_prints_them),
};
const size_t tl_tests_golden_count = sizeof tl_tests_golden / sizeof tl_tests_golden[0];
