/* The course: every lesson's point holds, and its output is what tests/golden/course/NAME.txt has,
 * but for lines that begin with "here:", which depend on the machine. After a change that is meant:
 *
 *     build/course/NAME | grep -v '^here:' > tests/golden/course/NAME.txt
 *
 * A lesson that finds nothing to show its point with says "here: not shown", and is skipped. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/skip.h"

#ifndef TL_BUILD
#define TL_BUILD "build"
#endif

extern const struct CMUnitTest tl_tests_course[];
extern const size_t tl_tests_course_count;

enum { ROOM = 1 << 16, LINES = 120, COLUMNS = 100 };

/* clang-format off */
#define LESSONS(X)                                                                               \
    X(01_bits) X(02_associative) X(03_orders) X(04_condition) X(05_fma) X(06_rounding)        \
    X(07_batch) X(08_threads) X(09_tape) X(10_walk) X(11_differences) X(12_wrong_gradient) \
    X(13_rms_norm) X(14_rotary) X(15_softmax) X(16_micro_batches) X(17_batch_ends) \
    X(18_resume) X(19_graph) X(20_seeds)
/* clang-format on */

/* What a file or a pipe holds, in text. */
static void read_all(FILE *f, char *text)
{
    assert_non_null(f);
    size_t n = fread(text, 1, ROOM - 1, f);
    assert_true(n < ROOM - 1);
    text[n] = '\0';
}

/* Takes the lines that begin with "here:" out of text; whether one said that the point was not
 * shown. */
static int take_out(char *text)
{
    int not_shown = 0;
    char *to = text;
    for (char *line = text, *next; *line != '\0'; line = next) {
        next = line + strcspn(line, "\n");
        next += *next == '\n';
        if (strncmp(line, "here:", 5) != 0) {
            memmove(to, line, (size_t)(next - line));
            to += next - line;
        } else {
            not_shown |= strncmp(line, "here: not shown:", 16) == 0;
        }
    }
    *to = '\0';
    return not_shown;
}

static void lesson(void **state)
{
    const char *name = *state;
    static char want[ROOM], got[ROOM], command[4096];
    if (getenv("TL_RUN") != NULL && *getenv("TL_RUN") != '\0')
        TL_SKIP(); /* under an emulator */
    snprintf(command, sizeof command, TL_ROOT "/tests/golden/course/%s.txt", name);
    FILE *f = fopen(command, "r");
    read_all(f, want);
    fclose(f);
    snprintf(command, sizeof command, "'" TL_BUILD "/course/%s' 2>&1", name);
    f = popen(command, "r");
    read_all(f, got);
    int bad = pclose(f), not_shown = take_out(got);
    if (bad)
        fail_msg("%s ends with status %d:\n%s", name, bad, got);
    if (not_shown && strncmp(want, got, strlen(got)) == 0)
        TL_SKIP();
    if (strcmp(want, got) != 0)
        fail_msg("%s prints\n%s\nand not\n%s", name, got, want);
}

/* A file that cannot be written is named as the cause: a picture's point still holds. */
static void unwritable_files_are_named(void **state)
{
    static const char *const lost = "But the picture could not be written";
    const struct {
        const char *name, *path, *want;
    } cases[] = {{"01_bits", "/none/such/x", "cannot write /none/such/x"},
                 {"01_bits", "/none/such/x", lost},
                 {"03_orders", "/none/such/x", lost},
                 {"10_walk", "/none/such/x", lost},
                 {"11_differences", "/none/such/x", lost},
                 {"13_rms_norm", "/none/such/x", lost},
                 {"01_bits", "/dev/full", lost}, /* opened, and then there is no room */
                 {"18_resume", "/none/such/x", "The checkpoint could not be written"}};
    static char got[ROOM], command[4096];
    (void)state;
    if (getenv("TL_RUN") != NULL && *getenv("TL_RUN") != '\0')
        TL_SKIP(); /* under an emulator */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(command, sizeof command, "'" TL_BUILD "/course/%s' %s 2>&1", cases[i].name,
                 cases[i].path);
        FILE *f = popen(command, "r");
        read_all(f, got);
        bool held = strstr(got, "DID NOT HOLD") == NULL && strstr(got, "The point:") != NULL;
        if (pclose(f) == 0 || strstr(got, cases[i].want) == NULL ||
            held != (cases[i].want[0] != 'T'))
            fail_msg("%s %s prints\n%s\nand not \"%s\"", cases[i].name, cases[i].path, got,
                     cases[i].want);
    }
}

/* Pictures have their colours without a style, and a curve is not filled. */
static void pictures_need_no_style(void **state)
{
    static const char *const names[] = {"01_bits", "03_orders", "10_walk", "11_differences",
                                        "13_rms_norm"};
    static char got[ROOM], command[4096];
    (void)state;
    if (getenv("TL_RUN") != NULL && *getenv("TL_RUN") != '\0')
        TL_SKIP(); /* under an emulator */
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int drawn = 0;
        snprintf(command, sizeof command,
                 "'" TL_BUILD "/course/%s' '" TL_BUILD "/course/test.svg' >/dev/null && "
                 "cat '" TL_BUILD "/course/test.svg' && rm '" TL_BUILD "/course/test.svg'",
                 names[i]);
        FILE *f = popen(command, "r");
        read_all(f, got);
        assert_int_equal(pclose(f), 0);
        for (char *p = got; (p = strchr(p, '<')) != NULL; p++) {
            const char *end = strchr(p, '>'), *fill = strstr(p, "fill='"),
                       *stroke = strstr(p, "stroke='#");
            const bool line = strncmp(p, "<path", 5) == 0 || strncmp(p, "<line", 5) == 0;
            const bool area = strncmp(p, "<circle", 7) == 0 || strncmp(p, "<rect", 5) == 0;
            drawn += line;
            if (((line || area) && (fill == NULL || fill > end)) ||
                (line && (stroke == NULL || stroke > end)))
                fail_msg("%s draws %.*s", names[i], (int)(end - p), p);
        }
        assert_true(drawn > 3);
    }
}

/* What nobody can read shows nothing. */
static void lost_output_is_a_failure(void **state)
{
    static const char *const names[] = {
#define X(name) #name,
        LESSONS(X)
#undef X
    };
    static char got[ROOM], command[4096];
    (void)state;
    if ((getenv("TL_RUN") != NULL && *getenv("TL_RUN") != '\0') || access("/dev/full", W_OK) != 0)
        TL_SKIP();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(command, sizeof command, "'" TL_BUILD "/course/%s' 2>&1 >/dev/full", names[i]);
        FILE *f = popen(command, "r");
        read_all(f, got);
        if (pclose(f) == 0 || strstr(got, "cannot write the output: No space left") == NULL)
            fail_msg("%s says only: %s", names[i], got);
    }
}

/* Each is short, is listed here, and has a line in the syllabus. */
static void lessons_are_lessons(void **state)
{
    static const char *const names[] = {
#define X(name) #name,
        LESSONS(X)
#undef X
    };
    static char text[ROOM], syllabus[ROOM], path[4096];
    size_t found = 0, n = sizeof names / sizeof *names;
    (void)state;
    FILE *f = fopen(TL_ROOT "/examples/course/README.md", "r");
    read_all(f, syllabus);
    fclose(f);
    DIR *d = opendir(TL_ROOT "/examples/course");
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        found += strlen(e->d_name) > 2 && strcmp(e->d_name + strlen(e->d_name) - 2, ".c") == 0;
    closedir(d);
    assert_int_equal(found, n);
    for (size_t i = 0; i < n; i++) {
        int lines = 0;
        snprintf(path, sizeof path, TL_ROOT "/examples/course/%s.c", names[i]);
        f = fopen(path, "r");
        read_all(f, text);
        fclose(f);
        for (const char *s = text; *s != '\0'; s += strcspn(s, "\n") + 1, lines++)
            if (strcspn(s, "\n") > COLUMNS)
                fail_msg("%s: line %d is longer than %d", path, lines + 1, COLUMNS);
        if (lines > LINES)
            fail_msg("%s has %d lines, more than %d", path, lines, LINES);
        snprintf(path, sizeof path, "[%s](%s.c)", names[i], names[i]);
        if (strstr(syllabus, path) == NULL)
            fail_msg("the syllabus does not have %s", path);
    }
}

/* What the golden comparison leaves out, and what it does not. */
static void marked_lines_are_left_out(void **state)
{
    char text[] = "one\nhere: 2\n  here: stays\nhere\nhere: not shown: no BLAS\nlast";
    (void)state;
    assert_true(take_out(text));
    assert_string_equal(text, "one\n  here: stays\nhere\nlast");
    assert_false(take_out(text));
}

#define X(name) {#name, lesson, NULL, NULL, #name},
const struct CMUnitTest tl_tests_course[] = {LESSONS(X)
                                                 cmocka_unit_test(unwritable_files_are_named),
                                             cmocka_unit_test(pictures_need_no_style),
                                             cmocka_unit_test(lost_output_is_a_failure),
                                             cmocka_unit_test(lessons_are_lessons),
                                             cmocka_unit_test(marked_lines_are_left_out)};
#undef X
const size_t tl_tests_course_count = sizeof tl_tests_course / sizeof *tl_tests_course;
