/* The man pages (docs/man): each program in examples/ has one; each option of --help is in its
 * program's page, with the same default and words, which the page may go on from, and the other way
 * round; and they are well formed. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/declared.h"
#include "tests/support/skip.h"

extern const struct CMUnitTest tl_tests_man[];
extern const size_t tl_tests_man_count;

/* The example programs, by name: those that a source file makes, or those that take arguments. */
static char *programs(const char *takes)
{
    char command[1024];
    snprintf(command, sizeof command,
             "cd '" TL_ROOT "/examples' && grep -l '^int main(%s' *.c | sed 's/[.]c$//' | sort",
             takes);
    return output_of(command);
}

static void each_program_has_a_page_and_each_page_a_program(void **unused)
{
    (void)unused;
    char *all = programs(""),
         *pages = output_of("cd '" TL_ROOT "/docs/man' && ls | sed 's/[.]1$//' | sort");
    assert_string_equal(pages, all);
    free(all);
    free(pages);
}

/* An option of a page as a line of --help: its name, default and what is said of it. */
#define PAGE                                                                                  \
    "function end() { if (on) print tolower(on); on = \"\" } "                                \
    "/^[.](It|El)/ { end() } "                                                                \
    "/^[.]It Fl -/ { on = \"-\" $3 \" \" $5; next } "                                         \
    "on && /^[.]/ { $0 = ($1 == \".Fl\" ? \"-\" : \"\") $2 ($NF ~ /^[.;,]$/ ? $NF : \"\") } " \
    "on { on = on \" \" $0 }"

static void an_option_is_in_help_and_in_the_page(void **unused)
{
    int options = 0;
    char *all = programs("int"), *rest;
    (void)unused;
    for (char *name = strtok_r(all, "\n", &rest); name; name = strtok_r(NULL, "\n", &rest)) {
        char command[1024];
        snprintf(command, sizeof command,
                 "short=$('" TL_BUILD "/%s' -h) && [ \"$short\" = \"$('" TL_BUILD
                 "/%s' --help)\" ]",
                 name, name);
        free(output_of(command)); /* which fails unless that succeeds */
        snprintf(command, sizeof command,
                 "'" TL_BUILD "/%s' --help | awk '/^  --/ { v = substr($0, 18, 7); gsub(/ /, \"\", "
                 "v); print tolower($1 \" \" v \" \" substr($0, 25)) }' | LC_ALL=C sort",
                 name);
        char *help = output_of(command);
        snprintf(command, sizeof command,
                 "awk '" PAGE "' '" TL_ROOT "/docs/man/%s.1' | LC_ALL=C sort", name);
        char *page = output_of(command);
        char *h, *p, *more, *others;
        for (h = strtok_r(help, "\n", &more), p = strtok_r(page, "\n", &others); h && p;
             h = strtok_r(NULL, "\n", &more), p = strtok_r(NULL, "\n", &others), options++)
            if (strncmp(p, h, strlen(h)) != 0)
                fail_msg("%s: --help has '%s', the page '%s'", name, h, p);
        if (h != NULL || p != NULL)
            fail_msg("%s: '%s' is in one of --help and the page", name, h != NULL ? h : p);
        free(help);
        free(page);
    }
    free(all);
    assert_true(options > 40);
}

static void the_pages_are_well_formed(void **unused)
{
    (void)unused;
    char *with = output_of("if command -v mandoc > /dev/null; then echo mandoc -Tlint -W warning; "
                           "elif command -v groff > /dev/null; then echo groff -mdoc -ww -z; fi");
    with[strcspn(with, "\n")] = '\0';
    int there = *with != '\0';
    if (there) {
        char command[1024];
        snprintf(command, sizeof command, "%s '" TL_ROOT "'/docs/man/*.1 2>&1", with);
        char *said = output_of(command);
        assert_string_equal(said, "");
        free(said);
    }
    free(with);
    if (!there)
        TL_SKIP();
}

const struct CMUnitTest tl_tests_man[] = {
    cmocka_unit_test(each_program_has_a_page_and_each_page_a_program),
    cmocka_unit_test(an_option_is_in_help_and_in_the_page),
    cmocka_unit_test(the_pages_are_well_formed),
};
const size_t tl_tests_man_count = sizeof tl_tests_man / sizeof *tl_tests_man;
