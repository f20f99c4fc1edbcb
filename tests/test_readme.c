/* The program printed in README.md, taken from there: it compiles as it stands, with the line
 * printed below it, runs, and learns. And `make` takes up other flags than the last build had. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "tests/support/skip.h"
#include "tests/temp_dir.h"

extern const struct CMUnitTest tl_tests_readme[];
extern const size_t tl_tests_readme_count;

#ifndef TL_ROOT
#define TL_ROOT "."
#endif
#ifndef TL_BUILD
#define TL_BUILD "build"
#endif

/* What the library was built with, a program that links it needs, too. */
#if defined(__SANITIZE_ADDRESS__)
#define SANITIZER " -fsanitize=address,undefined"
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZER " -fsanitize=address,undefined"
#endif
#endif
#ifndef SANITIZER
#define SANITIZER ""
#endif

static char *read_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL)
        fail_msg("cannot read %s", path);
    char *text = calloc(1, 1 << 20);
    assert_non_null(text);
    size_t n = fread(text, 1, (1 << 20) - 1, f);
    fclose(f);
    text[n] = '\0';
    return text;
}

/* The lines between the first ```c and the ``` after it; *after is what follows. The caller frees.
 */
static char *first_program(char **whole, char **after)
{
    char *begin, *end;
    *whole = read_file(TL_ROOT "/README.md");
    begin = strstr(*whole, "\n```c\n");
    end = begin == NULL ? NULL : strstr(begin + 6, "\n```\n");
    if (end == NULL)
        fail_msg("README.md has no C program");
    end[1] = '\0';
    *after = end + 5;
    return begin + 6;
}

static void it_is_short(void **unused)
{
    char *text = read_file(TL_ROOT "/README.md");
    int lines = 0;
    (void)unused;
    for (const char *c = text; *c != '\0'; c++)
        lines += *c == '\n';
    assert_in_range(lines, 60, 130);
    free(text);
}

/* How many sources `make` compiles for one object, in a build of its own. */
static int compiled(const temp_dir *d, const char *flags)
{
    char line[4096];
    int n = 0;
    snprintf(line, sizeof line,
             "env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS make -C %s BUILD=%s/b JEMALLOC=0 BLIS=0 %s "
             "%s/b/tensor/isa.o 2>&1",
             TL_ROOT, d->path, flags, d->path);
    FILE *f = popen(line, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f) != NULL)
        n += strncmp(line, "  CC ", 5) == 0;
    assert_int_equal(pclose(f), 0);
    return n;
}

static void other_flags_build_anew(void **unused)
{
    temp_dir d;
    (void)unused;
    assert_true(temp_dir_make(&d));
    assert_int_equal(compiled(&d, "CC=gcc"), 1);
    assert_int_equal(compiled(&d, "CC=gcc"), 0);
    assert_int_equal(compiled(&d, "CC=gcc WERROR=1"), 0); /* changes no object */
    assert_int_equal(compiled(&d, "CC=gcc CFLAGS=-O1"), 1);
    assert_int_equal(compiled(&d, "CC=gcc CFLAGS='-O1 -DQUOTED=\\\"a\\\"'"), 1);
    assert_int_equal(compiled(&d, "CC=gcc CFLAGS='-O1 -DQUOTED=\\\"a\\\"'"), 0);
    assert_int_equal(compiled(&d, "CC='gcc -g3'"), 1);
    char line[1024];
    snprintf(line, sizeof line, "rm -r '%s'/b", d.path);
    assert_int_equal(system(line), 0);
    temp_dir_remove(&d);
}

static char *absolute(char buf[PATH_MAX], const char *path)
{
    if (realpath(path, buf) == NULL)
        fail_msg("%s is missing", path);
    return buf;
}

/* line with every `from` replaced. */
static void replace(char line[8192], const char *from, const char *to)
{
    char out[8192];
    for (char *at = line; (at = strstr(at, from)) != NULL; at += strlen(to)) {
        snprintf(out, sizeof out, "%.*s%s%s", (int)(at - line), line, to, at + strlen(from));
        strcpy(line, out);
    }
}

/* The printed command, up to "&&", for this build: its compiler, root, library and the packages it
 * was built with. */
static void command(char line[8192], const char *after, const char *folder)
{
    char root[PATH_MAX], build[PATH_MAX], to[PATH_MAX + 64];
    const char *begin = strstr(after, "\n    cc "), *cc = getenv("CC");
    const char *end = begin == NULL ? NULL : strstr(begin, " && ./signs\n");
    if (end == NULL)
        fail_msg("README.md does not say how to compile the program");
    snprintf(line, 8192, "%.*s ", (int)(end - begin - 5), begin + 5);
    snprintf(to, sizeof to, " -I%s ", absolute(root, TL_ROOT));
    replace(line, " -I. ", to);
    replace(line, " examples/signs.c ", " signs.c "); /* as it is printed */
    snprintf(to, sizeof to, "%s/libtally.a", absolute(build, TL_BUILD));
    replace(line, "build/libtally.a", to);
#if defined(TL_JEMALLOC) && !TL_JEMALLOC
    replace(line, " -ljemalloc", "");
#endif
#if defined(TL_BLIS) && !TL_BLIS
    replace(line, " -lblis", "");
#endif
    char rest[8192];
    strcpy(rest, line + 2); /* without "cc" */
    snprintf(line, 8192, "cd %s && %s -Wall -Wextra -Werror%s%.6000s 2>&1", folder,
             cc != NULL && *cc ? cc : "cc", SANITIZER, rest);
}

static int run(const char *line, char *out, size_t room)
{
    FILE *p = popen(line, "r");
    assert_non_null(p);
    size_t n = fread(out, 1, room - 1, p);
    out[n] = '\0';
    return pclose(p);
}

static void write_text(const temp_dir *dir, const char *name, const char *text)
{
    char path[1024];
    FILE *f = fopen(temp_dir_file(path, dir, name), "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

/* Compiles without a word, runs, learns, and saves. */
static void learns(const char *line, const temp_dir *dir)
{
    static char run_it[8192], out[8192];
    char path[1024];
    if (run(line, out, sizeof out) != 0 || *out != '\0')
        fail_msg("%s\n%s", line, out);
    snprintf(run_it, sizeof run_it, "cd %s && ./signs 2>&1", dir->path);
    if (run(run_it, out, sizeof out) != 0)
        fail_msg("the program fails: %s", out);
    double loss[5], last = 0;
    int step[5], n = 0;
    for (char *at = out, *next; n < 5 && sscanf(at, "%d %lf", &step[n], &loss[n]) == 2;
         at = next + 1) {
        next = strchr(at, '\n');
        assert_non_null(next);
        assert_int_equal(step[n], n * 100);
        last = loss[n++];
    }
    assert_int_equal(n, 5);
    for (int i = 1; i < n; i++)
        assert_true(loss[i] < loss[i - 1]);
    assert_true(last < loss[0] / 2);
    char *readme = read_file(TL_ROOT "/README.md"), digits[9] = "";
    const char *hash = strstr(readme, "`sha256sum signs.safetensors` prints ");
    assert_non_null(hash);
    assert_int_equal(sscanf(hash, "`sha256sum signs.safetensors` prints %8[0-9a-f]...", digits), 1);
    snprintf(run_it, sizeof run_it, "sha256sum %s", temp_dir_file(path, dir, "signs.safetensors"));
    assert_int_equal(run(run_it, out, sizeof out), 0);
    assert_memory_equal(out, digits, 8);
    free(readme);
}

static void the_printed_program(void **unused)
{
    static char line[8192];
    char *whole, *after, *program = first_program(&whole, &after);
    temp_dir dir;
    (void)unused;
    assert_true(temp_dir_make(&dir));
    write_text(&dir, "signs.c", program);
    command(line, after, dir.path);
    learns(line, &dir);
    temp_dir_remove(&dir);
    free(whole);
}

/* The same in C++, where a void * wants a cast and a struct's other fields are no mistake. */
static void in_cpp_by(const char *compiler)
{
    static char line[8192], compile[1024], text[8192];
    char *whole, *after;
    temp_dir dir;
    snprintf(compile, sizeof compile, "command -v %s > /dev/null", compiler);
    if (run(compile, line, sizeof line) != 0)
        TL_SKIP();
    assert_true(temp_dir_make(&dir));
    snprintf(text, sizeof text, "%s", first_program(&whole, &after));
    replace(text, "*m = ctx;", "*m = static_cast<tl_model *>(ctx);");
    write_text(&dir, "signs.cpp", text);
    snprintf(
        compile, sizeof compile,
        "cd %s && %s -std=c++20 -Wall -Wextra -pedantic -Werror -Wno-missing-field-initializers "
        "-fno-exceptions -I'" TL_ROOT "' -c signs.cpp -o signs.o 2>&1",
        dir.path, compiler);
    if (run(compile, line, sizeof line) != 0)
        fail_msg("%s\n%s", compile, line);
    command(line, after, dir.path);
    replace(line, " signs.c ", " signs.o ");
    learns(line, &dir);
    temp_dir_remove(&dir);
    free(whole);
}

static void the_printed_program_by_gpp(void **unused)
{
    (void)unused;
    in_cpp_by("g++");
}

static void the_printed_program_by_clangpp(void **unused)
{
    (void)unused;
    in_cpp_by("clang++");
}

static void both_compilers_take_it_as_c11(void **unused)
{
    static const char *const compilers[] = {"gcc", "clang"};
    static char line[8192], out[8192];
    int missing = 0;
    (void)unused;
    for (int i = 0; i < 2; i++) {
        snprintf(
            line, sizeof line,
            "command -v %s > /dev/null || { echo none; exit; }; %s -std=c11 -Wall -Wextra -Werror "
            "-fsyntax-only -I'" TL_ROOT "' '" TL_ROOT "/examples/signs.c' 2>&1",
            compilers[i], compilers[i]);
        if (run(line, out, sizeof out) != 0)
            fail_msg("%s\n%s", line, out);
        missing += strcmp(out, "none\n") == 0;
    }
    if (missing > 0)
        TL_SKIP();
}

static void it_stands_among_the_examples(void **unused)
{
    char *whole, *after, *program = first_program(&whole, &after),
                         *example = read_file(TL_ROOT "/examples/signs.c");
    (void)unused;
    assert_string_equal(program, example);
    free(whole);
    free(example);
}

/* The lines of a hunk that begin with ' ' or '-' stand so in the file. */
/* The lines of a hunk without those that begin with `gone`: as it was ('+') or as it becomes ('-').
 * The caller frees. */
static char *lines_without(const char *hunk, char gone)
{
    char *text = calloc(1, strlen(hunk) + 1);
    size_t n = 0;
    for (const char *end; *hunk == ' ' || *hunk == '-' || *hunk == '+'; hunk = end + 1) {
        end = strchr(hunk, '\n');
        if (strncmp(hunk, "+++", 3) == 0 || strncmp(hunk, "---", 3) == 0)
            break;
        if (*hunk == gone)
            continue;
        memcpy(text + n, hunk + 1, (size_t)(end - hunk));
        n += (size_t)(end - hunk);
    }
    return text;
}

/* It can be applied, or has been. */
static void hunk_fits(const char *path, const char *hunk)
{
    char *file = read_file(path), *old = lines_without(hunk, '+'), *new = lines_without(hunk, '-');
    if (*old == '\0' || (strstr(file, old) == NULL && strstr(file, new) == NULL))
        fail_msg("%s is not what the diff in ops/README.md changes:\n%s", path, old);
    free(file);
    free(old);
    free(new);
}

/* The op that ops/README.md adds is still added by that diff. */
static void the_diff_applies(void **unused)
{
    char *text = read_file(TL_ROOT "/ops/README.md"), path[1024] = "";
    char *at = strstr(text, "\n```diff\n"), *end = at == NULL ? NULL : strstr(at + 9, "\n```\n");
    int hunks = 0;
    (void)unused;
    assert_non_null(end);
    end[1] = '\0';
    for (char *line = at + 9; line < end; line = strchr(line, '\n') + 1) {
        if (strncmp(line, "+++ b/", 6) == 0)
            snprintf(path, sizeof path, "%s/%.*s", TL_ROOT, (int)strcspn(line + 6, "\n"), line + 6);
        if (strncmp(line, "@@ ", 3) == 0) {
            hunk_fits(path, strchr(line, '\n') + 1);
            hunks++;
        }
    }
    assert_true(hunks > 8);
    free(text);
}

const struct CMUnitTest tl_tests_readme[] = {
    cmocka_unit_test(the_diff_applies),
    cmocka_unit_test(it_is_short),
    cmocka_unit_test(other_flags_build_anew),
    cmocka_unit_test(the_printed_program),
    cmocka_unit_test(the_printed_program_by_gpp),
    cmocka_unit_test(the_printed_program_by_clangpp),
    cmocka_unit_test(both_compilers_take_it_as_c11),
    cmocka_unit_test(it_stands_among_the_examples),
};
const size_t tl_tests_readme_count = sizeof tl_tests_readme / sizeof tl_tests_readme[0];
