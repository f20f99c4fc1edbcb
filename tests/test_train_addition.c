/* The program train_addition before it trains: flags, checkpoints of other runs, places where
 * nothing can be written. What it trains is held by test_golden and test_examples; train_text,
 * which says more, by test_train_text. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "tests/temp_dir.h"

extern const struct CMUnitTest tl_tests_train_addition[];
extern const size_t tl_tests_train_addition_count;

static temp_dir dir;

static int begin(void **unused)
{
    (void)unused;
    return temp_dir_make(&dir) ? 0 : -1;
}

static int end(void **unused)
{
    (void)unused;
    temp_dir_remove(&dir);
    return 0;
}

/* The program with these flags, in this environment, ends with that status and says this; `not` it
 * does not say. */
static void says_with(const char *setting, const char *program, const char *flags, int status,
                      const char *words, const char * not )
{
    char command[2048], text[8192];
    snprintf(command, sizeof command, "cd '%s' && env %s " TL_BUILD "/%s %s 2>&1", dir.path,
             setting, program, flags);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    int got = pclose(f);
    if (!WIFEXITED(got) || WEXITSTATUS(got) != status || strstr(text, words) == NULL ||
        (not != NULL && strstr(text, not ) != NULL))
        fail_msg("%s %s: status %x, %d and '%s' wanted: %s", program, flags, (unsigned)got, status,
                 words, text);
}

static void says(const char *program, const char *flags, int status, const char *words,
                 const char * not )
{
    says_with("", program, flags, status, words, not );
}

static void help_is_given(void **unused)
{
    static const char *const program[] = {"train_addition", "train_text", "tally-diff", "reveal"};
    (void)unused;
    for (size_t i = 0; i < sizeof program / sizeof *program; i++) {
        char usage[64];
        snprintf(usage, sizeof usage, "usage: %s", program[i]);
        says(program[i], "-h", 0, usage, NULL);
        says(program[i], "--help", 0, usage, NULL);
    }
}

static void bad_flags(void **unused)
{
    (void)unused;
    says("train_addition", "--bogus 3", 2, "unknown flag '--bogus'", NULL);
    says("train_addition", "--steps", 2, "--steps needs a value", NULL);
    says("train_addition", "--resume ''", 2, "--resume needs a value, not an empty one", NULL);
    says("train_addition", "--steps x", 2, "--steps x: a whole number from 1", NULL);
    says("train_addition", "--model rnn", 2, "--model rnn: llama, gpt2 or lstm is needed", NULL);
    says("train_addition", "--width 12", 2, "--width 12 is not a multiple of 8", NULL);
    says("train_addition", "--batch 6 --micro-batch 4", 2,
         "--batch 6 is not a multiple of --micro-batch 4", NULL);
}

#define SMALL "--steps 4 --batch 4 --layers 1 --test 2 --threads 1 "

static void what_cannot_be_written_is_said_first(void **unused)
{
    (void)unused;
    says("train_addition", SMALL "--width 8 --save nowhere/x", 1,
         "nowhere/x: cannot be written: No such file", "step 1");
    says("train_addition", SMALL "--width 8 --save .", 1, ".: is a directory", "step 1");
    says("train_text", "--text " TL_ROOT "/README.md --steps 1 --save .", 1, ".: is a directory",
         "training");
    says("train_addition", SMALL "--width 8 --csv nowhere/x", 1,
         "cannot write nowhere/x: No such file", "step 1");
}

static void a_checkpoint_of_another_run(void **unused)
{
    (void)unused;
    says("train_addition", SMALL "--width 8 --stop-at 2 --save ck", 0, "step 2/4", NULL);
    says("train_addition", SMALL "--width 16 --lr 0.25 --resume ck", 2,
         "ck is of another run: --width 8, here 16; --lr 0.005, here 0.25\n", "--steps");
    says("train_addition", SMALL "--width 8 --seed 7 --resume ck", 2,
         "ck is of another run: --seed 1, here 7\n", NULL);
    says("train_addition", SMALL "--width 8 --resume nowhere", 1, "nowhere", NULL);
    says("train_addition", SMALL "--width 8 --resume ck", 0, "step 4/4", NULL);
    says("train_text",
         "--text " TL_ROOT "/README.md --width 16 --heads 2 --kv-heads 1 --layers 1 --resume ck", 2,
         "ck is not a checkpoint of train_text", "step 1");
}

static void settings_that_mean_nothing(void **unused)
{
    (void)unused;
    says_with("TL_THREADS=abc", "train_addition", SMALL "--width 8", 1,
              "TL_THREADS=abc in the environment", "step 1");
    says_with("TL_WITHOUT=nonsense", "train_addition", SMALL "--width 8 --compile", 1,
              "there is no replacement 'nonsense'", "step 1");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
const struct CMUnitTest tl_tests_train_addition[] = {
    TEST(help_is_given),
    TEST(bad_flags),
    TEST(what_cannot_be_written_is_said_first),
    TEST(a_checkpoint_of_another_run),
    TEST(settings_that_mean_nothing),
};
const size_t tl_tests_train_addition_count = sizeof tl_tests_train_addition /
                                             sizeof tl_tests_train_addition[0];
