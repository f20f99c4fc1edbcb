/* Examples: what each computes step by step it computes compiled, with the same bits, and those
 * that take --micro-batch with any. The programs train_text and train_addition are run so in
 * test_train_text.c and test_golden.c; reveal and tally-diff have no step to compile. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/example.h"
#include "tests/support/skip.h"
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

/* The last line that a program prints is the hash of its weights. */
static void hash_of(const char *program, const char *flags, const char *more, char hash[65])
{
    char command[8192], line[1024];
    snprintf(command, sizeof command, "%s '" TL_BUILD "/%s' %s %s",
             getenv("TL_RUN") != NULL ? getenv("TL_RUN") : "", program, flags, more);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    hash[0] = '\0';
    while (fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "weights sha256 %64s", hash) != 1)
            hash[0] = '\0';
    if (pclose(f) != 0 || strlen(hash) != 64)
        fail_msg("%s: no hash at the end", command);
}

static void one_hash_for_any_split(void **state)
{
    static const char *const program[][2] = {
        {"digits", "--samples 60 --steps 4 --batch 12"},
        {"vae", "--samples 60 --steps 4 --batch 12 --hidden 16"},
        {"equation", "--steps 4 --batch 12 --width 8"},
        {"gan", "--steps 4 --batch 12 --width 8"},
        {"char_lstm",
         "--text " TL_ROOT "/tests/README.md --steps 4 --batch 12 --seq 9 --width 8 --sample 20"},
        {"char_gpt2", "--text " TL_ROOT "/tests/README.md --steps 4 --batch 12 --seq 9 --width 8 "
                      "--heads 2 --sample 20"},
        {"adapter",
         "--text " TL_ROOT "/tests/README.md --steps 4 --batch 12 --width 8 --pretrain 2"},
    };
    static const char *const way[] = {"--micro-batch 4 --threads 2", "--micro-batch 3 --compile",
                                      "--compile --threads 2", "--micro-batch 1"};
    (void)state;
    for (size_t i = 0; i < sizeof program / sizeof *program; i++) {
        char want[65], got[65], saving[4096], path[1024], svg[1024], csv[1024];
        temp_dir dir;
        hash_of(program[i][0], program[i][1], "", want);
        for (size_t k = 0; k < sizeof way / sizeof *way; k++) {
            hash_of(program[i][0], program[i][1], way[k], got);
            if (strcmp(want, got) != 0)
                fail_msg("%s: weights %s, with %s %s", program[i][0], want, way[k], got);
        }
        hash_of(program[i][0], program[i][1], "--seed 2", got);
        assert_string_not_equal(want, got);
        assert_true(temp_dir_make(&dir));
        temp_dir_file(path, &dir, "saved");
        snprintf(saving, sizeof saving, "--stop-at 3 --save '%s'", path);
        hash_of(program[i][0], program[i][1], saving, got);
        assert_string_not_equal(want, got);
        snprintf(saving, sizeof saving, "--resume '%s' --micro-batch 6 --svg '%s' --csv '%s'", path,
                 temp_dir_file(svg, &dir, "curve.svg"), temp_dir_file(csv, &dir, "numbers.csv"));
        hash_of(program[i][0], program[i][1], saving, got);
        assert_string_equal(want, got);
        assert_int_equal(temp_dir_count(&dir), 3);
        temp_dir_remove(&dir);
    }
}

/* The last line of loop in a folder of its own, where the runs before have left a checkpoint. */
static void loop_says(const char *arguments, const char *dir, char line[256])
{
    char command[4096];
    snprintf(command, sizeof command, "cd '%s' && %s '" TL_BUILD "/loop' %s", dir,
             getenv("TL_RUN") != NULL ? getenv("TL_RUN") : "", arguments);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    *line = '\0';
    for (char next[256]; fgets(next, sizeof next, f) != NULL;)
        memcpy(line, next, sizeof next);
    assert_int_equal(pclose(f), 0);
}

static void a_loop_goes_on_with_other_micro_batches(void **state)
{
    char whole[256], part[256];
    temp_dir dir;
    (void)state;
    assert_true(temp_dir_make(&dir));
    loop_says("", dir.path, whole);
    assert_non_null(strstr(whole, "weights sha256 "));
    loop_says("7 123", dir.path, part);
    assert_string_not_equal(part, whole);
    loop_says("64 200", dir.path, part);
    loop_says("16", dir.path, part);
    assert_string_equal(part, whole);
    assert_int_equal(temp_dir_count(&dir), 0);
    temp_dir_remove(&dir);
}

/* Digits from files, as MNIST has them: as IDX. */
static void digits_are_read_from_files(void **state)
{
    char path[2][1024], flags[2200], hash[2][65];
    unsigned char b[16 + 48 * 64] = {0, 0, 8, 3, 0, 0, 0, 48, 0, 0, 0, 8, 0, 0, 0, 8};
    temp_dir dir;
    (void)state;
    assert_true(temp_dir_make(&dir));
    FILE *f = fopen(temp_dir_file(path[0], &dir, "images"), "wb");
    for (size_t i = 16; i < sizeof b; i++)
        b[i] = (unsigned char)(i * i % 251);
    assert_int_equal(fwrite(b, 1, sizeof b, f), sizeof b);
    fclose(f);
    f = fopen(temp_dir_file(path[1], &dir, "labels"), "wb");
    unsigned char labels[8 + 48] = {0, 0, 8, 1, 0, 0, 0, 48};
    for (int i = 0; i < 48; i++)
        labels[8 + i] = (unsigned char)(i % 10);
    assert_int_equal(fwrite(labels, 1, sizeof labels, f), sizeof labels);
    fclose(f);
    snprintf(flags, sizeof flags, "--images '%s' --labels '%s' --steps 2 --batch 8", path[0],
             path[1]);
    hash_of("digits", flags, "", hash[0]);
    hash_of("digits", flags, "--micro-batch 2 --compile", hash[1]);
    assert_string_equal(hash[0], hash[1]);
    temp_dir_remove(&dir);
}

/* The exit status of a program, and what it writes to both streams. */
static int said_by(const char *program, const char *flags, char *text, size_t room)
{
    char command[4096];
    snprintf(command, sizeof command, "%s '" TL_BUILD "/%s' 2>&1 %s",
             getenv("TL_RUN") != NULL ? getenv("TL_RUN") : "", program, flags);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    text[fread(text, 1, room - 1, f)] = '\0';
    int status = pclose(f);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void programs_say_how_they_are_used(void **state)
{
    static const char *const flagged[] = {"digits",     "vae",       "equation",
                                          "gan",        "char_lstm", "char_gpt2",
                                          "train_text", "adapter",   "train_addition"};
    static const char *const others[] = {"profile",    "own_fusion", "reveal",
                                         "tally-diff", "fit_line",   "spiral",
                                         "gradcheck",  "generate",   "loop"};
    char text[8192], usage[64];
    (void)state;
    for (size_t i = 0; i < 9 + 9; i++) {
        const char *program = i < 9 ? flagged[i] : others[i - 9];
        snprintf(usage, sizeof usage, "usage: %s ", program);
        int status = said_by(program, "--help", text, sizeof text);
        if (status != 0 || strncmp(text, usage, strlen(usage)) != 0)
            fail_msg("%s --help: status %d: %s", program, status, text);
        status = said_by(program, i < 9 ? "--steps 0" : "-no-such-thing", text, sizeof text);
        if (status != 2 ||
            strstr(text, i < 9 ? "--steps 0: a whole number from 1" : "usage: ") == NULL)
            fail_msg("%s misused: status %d: %s", program, status, text);
    }
    assert_int_equal(said_by("train_text", "words", text, sizeof text), 2);
    assert_non_null(strstr(text, "unknown argument 'words'"));
    assert_int_equal(said_by("train_text", "--lr 0", text, sizeof text), 2);
    assert_non_null(strstr(text, "--lr 0: a number from 1e-12 to 10 is needed"));
    assert_int_equal(said_by("vae", "--steps 300 --lr 10", text, sizeof text), 1);
    assert_non_null(strstr(text, "the loss of step 2 is infinite: try a smaller --lr"));
    assert_null(strstr(text, "sha256"));
    assert_int_equal(said_by("adapter", "--adapter /no/such/x", text, sizeof text), 1);
    assert_non_null(strstr(text, "/no/such/x"));
    assert_null(strstr(text, "held out")); /* it has not begun */
}

/* Neither is there yet, and they are named otherwise. */
static void one_file_for_two_flags_is_refused(void **state)
{
    char text[2000];
    (void)state;
    int status = said_by("train_addition", "--save none-here --csv ./none-here", text, sizeof text);
    assert_int_equal(status, 2);
    assert_non_null(strstr(text, "--save none-here and --csv ./none-here are one file"));
}

/* What nobody can read was not done. */
static void output_that_cannot_be_written_is_a_failure(void **state)
{
    static const char *const runs[][2] = {{"fit_line", ""},
                                          {"spiral", ""},
                                          {"gradcheck", ""},
                                          {"own_fusion", ""},
                                          {"profile", "1 /dev/null"},
                                          {"reveal", "2"},
                                          {"digits", "--samples 12 --batch 4 --steps 1"}};
    char flags[128], text[8192];
    (void)state;
    if (access("/dev/full", W_OK) != 0)
        TL_SKIP();
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        snprintf(flags, sizeof flags, "%s >/dev/full", runs[i][1]);
        int status = said_by(runs[i][0], flags, text, sizeof text);
        if (status != 1 || strstr(text, "cannot write the output: No space left") == NULL)
            fail_msg("%s: status %d: %s", runs[i][0], status, text);
    }
}

static void a_profile_that_cannot_be_written_says_why(void **state)
{
    char text[8192];
    (void)state;
    assert_int_equal(said_by("profile", "1 /no/such/x", text, sizeof text), 1);
    assert_non_null(strstr(text, "profile: cannot write /no/such/x: No such file"));
    if (access("/dev/full", W_OK) != 0)
        TL_SKIP();
    assert_int_equal(said_by("profile", "1 /dev/full", text, sizeof text), 1);
    assert_non_null(strstr(text, "profile: cannot write /dev/full: No space left"));
}

/* Texts are told apart, and pictures and the adapter say what they show. */
static void results_say_what_they_are(void **state)
{
    static const char *const words[][6] = {
        {"adapter", "--text " TL_ROOT "/LICENSE --width 8 --pretrain 30 --steps 30 --batch 4",
         "held out, sha256 ", "frozen    the Llama's ",
         ", after 30 steps\ntrained   the adapter's ", "bytes of the adapter alone "},
        {"gan", "--steps 1 --width 4", "points that the generator makes; x from", "", "", ""},
        {"equation", "--steps 1 --width 4", "o the network's, . the solution", "", "", ""},
        {"spiral", "", "the square from -1.1 to 1.1; arms A, B, C", "", "", ""},
        {"digits", "--steps 2 --samples 40 --batch 8 --svg /dev/stdout",
         "text-anchor='middle'>step</text>", ">loss</text>", ">digits: loss of each step</text>",
         "<text y='340'>1</text>"},
    };
    static char text[1 << 16];
    double before, now;
    (void)state;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        assert_int_equal(said_by(words[i][0], words[i][1], text, sizeof text), 0);
        for (int k = 2; k < 6; k++)
            if (strstr(text, words[i][k]) == NULL)
                fail_msg("%s: '%s' is not in: %s", words[i][0], words[i][k], text);
        const char *loss = strstr(text, "loss on other text");
        if (i > 0)
            continue;
        assert_non_null(loss);
        assert_int_equal(sscanf(loss, "loss on other text in capitals %lf before, %lf now", &before,
                                &now),
                         2);
        assert_true(now > 0 && now < before && before < 10);
    }
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

/* An example is read in one sitting: those of small nets have less than 100 lines, the trainers
 * less than 250. */
static void examples_are_short(void **state)
{
    static const struct {
        const char *name;
        int most;
    } list[] = {{"digits", 99},   {"vae", 99},         {"equation", 99},
                {"gan", 99},      {"char_lstm", 99},   {"char_gpt2", 99},
                {"fit_line", 99}, {"train_text", 249}, {"train_addition", 249}};
    (void)state;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        char path[4096];
        int lines = 0;
        snprintf(path, sizeof path, TL_ROOT "/examples/%s.c", list[i].name);
        FILE *f = fopen(path, "r");
        assert_non_null(f);
        for (int c; (c = getc(f)) != EOF;)
            lines += c == '\n';
        fclose(f);
        if (lines < 1 || lines > list[i].most)
            fail_msg("%s: %d lines, at most %d", path, lines, list[i].most);
    }
}

const struct CMUnitTest tl_tests_examples[] = {
    cmocka_unit_test(examples_are_short),
    cmocka_unit_test(programs_say_how_they_are_used),
    cmocka_unit_test(one_file_for_two_flags_is_refused),
    cmocka_unit_test(output_that_cannot_be_written_is_a_failure),
    cmocka_unit_test(a_profile_that_cannot_be_written_says_why),
    cmocka_unit_test(results_say_what_they_are),
    cmocka_unit_test(a_profile_names_ops_and_phases),
    cmocka_unit_test(compiled_training_ends_with_the_same_weights),
    cmocka_unit_test(an_op_of_ones_own_compiles),
    cmocka_unit_test(one_hash_for_any_split),
    cmocka_unit_test(digits_are_read_from_files),
    cmocka_unit_test(a_loop_goes_on_with_other_micro_batches),
};
const size_t tl_tests_examples_count = sizeof tl_tests_examples / sizeof *tl_tests_examples;
