/* NUMERICS.md itself: every numbered claim names tests that exist and has a break, its table of
 * elementary functions is the golden one. And no text for users puts anything off. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const struct CMUnitTest tl_tests_numerics[];
extern const size_t tl_tests_numerics_count;

static char *read_text(const char *path)
{
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    char *text = calloc(1, 1 << 20);
    assert_non_null(text);
    assert_true(fread(text, 1, (1 << 20) - 1, f) < (1 << 20) - 1);
    fclose(f);
    return text;
}

/* "4.2 " at the start of a line; the length of the number, or 0. */
static size_t number_at(const char *line)
{
    size_t n = strspn(line, "0123456789"),
           m = n && line[n] == '.' ? strspn(line + n + 1, "0123456789") : 0;
    return m && line[n + 1 + m] == ' ' ? n + 1 + m : 0;
}

static bool exists(const char *what)
{
    char path[128], rule[64];
    if (strncmp(what, "test_", 5) == 0) {
        snprintf(path, sizeof path, TL_ROOT "/tests/%s.c", what);
        FILE *f = fopen(path, "r"), *runner = f ? fopen(TL_ROOT "/tests/runner.c", "r") : NULL;
        if (f == NULL || runner == NULL)
            return false;
        fclose(f);
        fclose(runner);
        char *text = read_text(TL_ROOT "/tests/runner.c");
        snprintf(rule, sizeof rule, "X(%s)", what + 5);
        bool listed = strstr(text, rule) != NULL;
        free(text);
        return listed;
    }
    if (strncmp(what, "make ", 5) != 0)
        return false;
    snprintf(rule, sizeof rule, "\n%.*s:", (int)strcspn(what + 5, " "), what + 5);
    char *text = read_text(TL_ROOT "/Makefile");
    bool found = strstr(text, rule) != NULL;
    free(text);
    return found;
}

/* The names in back quotes of the bracket at p. */
static int names_at(const char *p, const char *claim, int length)
{
    int names = 0;
    const char *end = strchr(p, ']');
    for (const char *q = p; end != NULL && (q = strchr(q, '`')) != NULL && q < end;
         q = strchr(q + 1, '`') + 1) {
        char what[64];
        snprintf(what, sizeof what, "%.*s", (int)strcspn(q + 1, "`"), q + 1);
        if (!exists(what))
            fail_msg("claim %.*s names %s, which is not there", length, claim, what);
        names++;
    }
    return names;
}

/* From its number to the next claim or section. */
static void check_claim(const char *claim, size_t length, const char *end)
{
    int names = 0;
    for (const char *p = claim; (p = strstr(p, "[`")) != NULL && p < end; p++)
        names += names_at(p, claim, (int)length);
    if (names == 0)
        fail_msg("claim %.*s names no test", (int)length, claim);
}

static void test_claims(void **unused)
{
    (void)unused;
    char *text = read_text(TL_ROOT "/NUMERICS.md"), *claim = NULL;
    size_t length = 0;
    int claims = 0;
    for (char *line = text, *next; line != NULL; line = next) {
        next = strchr(line, '\n');
        next = next != NULL ? next + 1 : NULL;
        size_t n = number_at(line);
        if (n == 0 && line[0] != '#' && next != NULL)
            continue;
        if (claim != NULL)
            check_claim(claim, length, line);
        claims += n > 0;
        claim = n > 0 ? line : NULL;
        length = n;
    }
    printf("%d claims\n", claims);
    assert_true(claims > 50);
    free(text);
}

/* tests/broken.sh breaks each claim, or says that another target holds it. */
static void test_every_claim_is_broken(void **unused)
{
    (void)unused;
    char *text = read_text(TL_ROOT "/NUMERICS.md"), *script = read_text(TL_ROOT "/tests/broken.sh"),
         *elsewhere = strstr(script, "\n# elsewhere: ");
    int without = 0;
    assert_non_null(elsewhere);
    for (char *line = text; line != NULL; line = strchr(line, '\n')) {
        line += line != text;
        int n = (int)number_at(line);
        char broken[64], named[64];
        snprintf(broken, sizeof broken, "\nbreaks %.*s \"", n, line);
        snprintf(named, sizeof named, " %.*s", n, line);
        const char *there = n > 0 ? strstr(elsewhere, named) : NULL;
        if (n == 0 || strstr(script, broken) != NULL ||
            (there != NULL && there < strchr(elsewhere + 1, '\n')))
            continue;
        print_error("tests/broken.sh has no break of claim %.*s\n", n, line);
        without++;
    }
    assert_int_equal(without, 0);
    free(text);
    free(script);
}

/* The group that is to notice a break is one of the tests that its claim names. */
static void test_breaks_run_what_the_claims_name(void **unused)
{
    (void)unused;
    char *text = read_text(TL_ROOT "/NUMERICS.md"), *script = read_text(TL_ROOT "/tests/broken.sh");
    int breaks = 0, astray = 0;
    for (const char *p = script; (p = strstr(p, "\nbreaks ")) != NULL;) {
        char number[16], group[48], start[32], name[64];
        if (sscanf(p += 8, "%15s \"%*[^\"]\" %47s", number, group) != 2)
            continue;
        snprintf(start, sizeof start, "\n%s ", number);
        snprintf(name, sizeof name, "`test_%s`", group);
        const char *claim = strstr(text, start), *end = claim, *there = NULL;
        if (claim != NULL) {
            while ((end = strchr(end + 1, '\n')) != NULL && number_at(end + 1) == 0 &&
                   end[1] != '#')
                continue;
            there = strstr(claim, name);
        }
        breaks++;
        if (there == NULL || (end != NULL && there > end)) {
            print_error("claim %s is broken for test_%s, which it does not name\n", number, group);
            astray++;
        }
    }
    assert_true(breaks > 100);
    assert_int_equal(astray, 0);
    free(text);
    free(script);
}

/* The words that a break changes are in the sources still. */
static void test_every_break_can_be_made(void **unused)
{
    (void)unused;
    char line[512], last[512] = "";
    FILE *dry = popen("DRY=1 PART='1 of 1' bash '" TL_ROOT "/tests/broken.sh' build", "r");
    assert_non_null(dry);
    while (fgets(line, sizeof line, dry) != NULL) {
        if (strstr(line, "not built") != NULL)
            print_error("%s", line);
        memcpy(last, line, sizeof last);
    }
    assert_int_equal(pclose(dry), 0);
    assert_true(atoi(last) > 100 && strstr(last, " passed, 0 failed") != NULL);
}

/* Neither the texts nor a public header (what tally.h includes) put anything off. */
static void test_nothing_is_put_off(void **unused)
{
    (void)unused;
    char *list = read_text(TL_ROOT "/tally.h"), path[512], header[128];
    static const char *const texts[] = {"NUMERICS.md", "README.md", "tests/README.md",
                                        "ops/README.md", "tally.h"};
    int looked = 0;
    for (const char *p = list; p != NULL; looked++) {
        if (looked < 4) {
            snprintf(header, sizeof header, "%s", texts[looked]);
        } else {
            p = strstr(p, "#include \"");
            if (p == NULL)
                break;
            p += strlen("#include \"");
            snprintf(header, sizeof header, "%.*s", (int)strcspn(p, "\""), p);
        }
        snprintf(path, sizeof path, TL_ROOT "/%s", header);
        char *text = read_text(path);
        if (strstr(text, "not yet") != NULL)
            fail_msg("%s puts something off", header);
        free(text);
    }
    printf("%d texts\n", looked);
    assert_true(looked > 10);
    free(list);
}

/* | exp | 4294967296 | 0 | first 16 digits |, for each line of golden/math32.txt. */
static void test_table_of_functions(void **unused)
{
    (void)unused;
    char *text = read_text(TL_ROOT "/NUMERICS.md"),
         *golden = read_text(TL_ROOT "/tests/golden/math32.txt"), *rest = golden;
    int functions = 0;
    for (char *line; (line = strtok_r(rest, "\n", &rest)) != NULL;) {
        char name[32], hex[80], row[128];
        if (line[0] == '#' || sscanf(line, "%31s %79s", name, hex) != 2 ||
            strcmp(name, "sources") == 0)
            continue;
        snprintf(row, sizeof row, "\n| %s | 4294967296 | 0 | %.16s |\n", name, hex);
        if (strstr(text, row) == NULL)
            fail_msg("NUMERICS.md does not have the line%s", row);
        functions++;
    }
    assert_int_equal(functions, 20);
    free(text);
    free(golden);
}

const struct CMUnitTest tl_tests_numerics[] = {cmocka_unit_test(test_claims),
                                               cmocka_unit_test(test_every_claim_is_broken),
                                               cmocka_unit_test(
                                                   test_breaks_run_what_the_claims_name),
                                               cmocka_unit_test(test_every_break_can_be_made),
                                               cmocka_unit_test(test_nothing_is_put_off),
                                               cmocka_unit_test(test_table_of_functions)};
const size_t tl_tests_numerics_count = sizeof tl_tests_numerics / sizeof tl_tests_numerics[0];
