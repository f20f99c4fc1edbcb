/* The public face: what tally.h and tally_extend.h reach, in C and in C++, and what the libraries
 * show. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "tests/support/declared.h"
#include "tests/support/skip.h"
#include "tests/temp_dir.h"

extern const struct CMUnitTest tl_tests_face[];
extern const size_t tl_tests_face_count;

#define GROUP_H "nn/group/group.h" /* of a library of its own */
#define FACE "tally_data.h tally_models.h tally_extend.h tally_bind.h"
enum {
    TEXT = 1 << 16,
    MOST_LINES = 1800,
    MOST_DATA = 190,
    MOST_MODELS = 110,
    MOST_MORE = 1060,
    MOST_BIND = 40
};

static int succeeds(const char *command)
{
    char *text = calloc(1, TEXT);
    FILE *p = popen(command, "r");
    assert_non_null(text);
    assert_non_null(p);
    fread(text, 1, TEXT - 1, p);
    int bad = pclose(p) != 0 || *text != '\0';
    if (bad)
        print_error("%s\n%s", command, text);
    free(text);
    return !bad;
}

/* ---- headers ---- */

/* The headers that one reaches, itself first, as one text of names with blanks between. */
static char *reached_by(const char *header)
{
    char command[512];
    snprintf(command, sizeof command,
             "cd '" TL_ROOT
             "' && ${CC:-cc} -I. -MM %s | sed 's/.*://; s/\\\\$//' | tr -s ' ' '\\n' "
             "| sed '/^$/d' | awk '!met[$0]++' | tr '\\n' ' '",
             header);
    return output_of(command);
}

static void headers_are_public_and_short(void **unused)
{
    (void)unused;
    char *whole = reached_by(FACE), *user = reached_by("tally.h"),
         *files = reached_by("tally_data.h"), *bind = reached_by("tally_bind.h"),
         *decoders = reached_by("tally_models.h"), *rest = NULL;
    int lines = 0, data = 0, models = 0, more = 0, own = 0, headers = 0, bad = 0;
    for (char *h = strtok_r(whole, " ", &rest); h != NULL; h = strtok_r(NULL, " ", &rest)) {
        char command[512], word[256];
        snprintf(command, sizeof command, "cat '" TL_ROOT "/%s'", h);
        snprintf(word, sizeof word, "%s ", h);
        char *text = output_of(command), *begin = strstr(text, "TL_BEGIN\n");
        int *those = strstr(user, word) != NULL       ? &lines
                     : strstr(files, word) != NULL    ? &data
                     : strstr(bind, word) != NULL     ? &own
                     : strstr(decoders, word) != NULL ? &models
                                                      : &more;
        for (const char *c = text; *c != '\0'; c++)
            *those += *c == '\n';
        headers++;
        if (strncmp(h, "tally", 5) != 0 &&
            (strncmp(h, "tensor/kernels/", 15) == 0 || strstr(text, "Public") == NULL ||
             begin == NULL || strstr(begin, "\nTL_END\n") == NULL ||
             strstr(begin, "#include") != NULL || strstr(text, "_Atomic") != NULL)) {
            print_error("%s is within the reach of users\n", h);
            bad++;
        }
        free(text);
    }
    print_message(
        "%d public headers; tally.h reaches %d lines, tally_data.h %d, tally_models.h %d, "
        "tally_extend.h %d more\n",
        headers, lines, data, models, more);
    free(whole);
    free(files);
    free(bind);
    free(decoders);
    free(user);
    assert_true(headers > 20 && lines > 500 && more > 200 && bad == 0);
    if (lines > MOST_LINES)
        fail_msg("tally.h reaches %d lines, more than %d", lines, MOST_LINES);
    if (data > MOST_DATA)
        fail_msg("tally_data.h reaches %d lines more, more than %d", data, MOST_DATA);
    if (own > MOST_BIND)
        fail_msg("tally_bind.h has %d lines, more than %d", own, MOST_BIND);
    if (models > MOST_MODELS)
        fail_msg("tally_models.h reaches %d lines more, more than %d", models, MOST_MODELS);
    if (more > MOST_MORE)
        fail_msg("tally_extend.h reaches %d lines more, more than %d", more, MOST_MORE);
}

static bool in_word(char c) { return isalnum((unsigned char)c) || c == '_'; }

/* The next place of the word of n bytes in text, or NULL. */
static const char *next_word(const char *text, const char *word, size_t n)
{
    for (const char *c = text; (c = strchr(c, *word)) != NULL; c++)
        if (strncmp(c, word, n) == 0 && !in_word(c[n]) && (c == text || !in_word(c[-1])))
            return c;
    return NULL;
}

/* The page at the top of ops.h has a formula for every op below it. */
static void the_index_has_every_op(void **unused)
{
    char *text = output_of("cat '" TL_ROOT "/ops/ops.h'"), *end = strstr(text, "*/");
    int ops = 0, bad = 0;
    (void)unused;
    assert_non_null(end);
    *end = '\0';
    for (char *c = end + 1; (c = strstr(c, "\n#define tl_")) != NULL;) {
        char name[64];
        size_t n = strcspn(c += strlen("\n#define tl_"), "(");
        snprintf(name, sizeof name, "%.*s", (int)n, c);
        if (next_word(text, name, n) == NULL) {
            print_error("%s is not in the index of ops.h\n", name);
            bad++;
        }
        ops++;
    }
    free(text);
    assert_true(ops > 80);
    assert_int_equal(bad, 0);
}

/* ---- docstrings ---- */

#define WORD "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"

/* tl_data of tl_data_tape_at: the length of a name without what its macro adds. */
static size_t base_of(const char *name, size_t n)
{
    static const char *const endings[] = {"_at", "_with", "_tape", "_model"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t k = strlen(endings[i]);
        if (n > k + 3 && strncmp(name + n - k, endings[i], k) == 0)
            n -= k;
    }
    return n;
}

/* Whether a comment of so many bytes has the word, in capitals or not, as the beginning of one. */
static bool says(const char *comment, size_t length, const char *word, size_t n)
{
    for (size_t i = 1; i + n <= length; i++)
        if (strncasecmp(comment + i, word, n) == 0 && !isalpha((unsigned char)comment[i - 1]))
            return true;
    return false;
}

/* Whether a comment above `owner`, the first declared below it, is about `name` as well: their
 * names differ in nothing but words that it says. */
static bool shared(const char *comment, size_t length, const char *owner, const char *name)
{
    size_t whole = base_of(owner, strspn(owner, WORD)), n = base_of(name, strspn(name, WORD));
    for (size_t i = 0, k; i < n; i += k + 1) {
        k = strcspn(name + i, "_(");
        k = k < n - i ? k : n - i;
        bool of_owner = false;
        for (size_t j = 0, m; j < whole && !of_owner; j += m + 1) {
            m = strcspn(owner + j, "_(");
            m = m < whole - j ? m : whole - j;
            of_owner = m == k && strncmp(owner + j, name + i, k) == 0;
        }
        if (!of_owner && !says(comment, length, name + i, k))
            return false;
    }
    return true;
}

/* Whether the declaration around c has a comment of its own: beside it, or above it without a blank
 * line between and about it, too, if it is not the first below. */
static bool explained(const char *text, const char *c)
{
    const char *line = c, *end = c, *owner = NULL;
    do
        end += strcspn(end, "\n") + (end[strcspn(end, "\n")] == '\n');
    while (*end != '\0' && strchr(",\\(", end[-2]) != NULL);
    const char *beside = strstr(c, "/*");
    if (beside != NULL && beside < end)
        return true;
    while (line > text && line[-1] != '\n')
        line--;
    while (line - text > 1 && line[-2] != '\n') {
        const char *last = --line; /* the end of the line before */
        while (line > text && line[-1] != '\n')
            line--;
        if (last - line > 1 && strncmp(last - 2, "*/", 2) == 0) {
            const char *comment = last;
            while (comment > text && strncmp(comment, "/*", 2) != 0)
                comment--;
            if ((comment == text || comment[-1] == '\n') &&
                strncmp(comment, "/* clang-format", 15) != 0)
                return owner == NULL || shared(comment, (size_t)(last - comment), owner, c);
        }
        const char *name = strstr(line, "tl_");
        while (name != NULL && name < last && name[strspn(name, WORD)] != '(')
            name = strstr(name + 1, "tl_");
        if (name != NULL && name < last && *line != ' ' && strncmp(line, "typedef", 7) != 0)
            owner = name;
    }
    return false;
}

/* Whether each parameter in the brackets behind c has a name. */
static bool named(const char *c)
{
    for (c = strchr(c, '('); *c != ')';) {
        const char *begin = ++c, *end = c += strcspn(c, ",)[");
        while (isspace((unsigned char)*begin))
            begin++;
        c += strcspn(c, ",)");
        const char *name = end;
        while (name > begin && in_word(name[-1]))
            name--;
        bool none = strncmp(begin, "void)", 5) == 0 || strncmp(begin, "...", 3) == 0;
        if (!none && (name == begin || name == end || strncmp(name, "tl_", 3) == 0))
            return false;
    }
    return true;
}

/* Whether the index of ops.h has the op that tl_OP_at, or the macro around it, makes. */
static bool in_index(const char *index, const char *name, const char *behind)
{
    bool by = strncmp(behind, "(TL_BY(t, ", 10) == 0;
    const char *op = by ? behind + 10 : name + 3, *c = index;
    size_t n = by ? strcspn(op, ")") : strlen(op) - 3;
    if (!by && (strlen(name) < 7 || strcmp(op + n, "_at") != 0))
        return false;
    while ((c = next_word(c, op, n)) != NULL && c[n] != '(')
        c++;
    return c != NULL;
}

/* In the headers a function stands, itself or in a macro of its own, below a comment about it or
 * beside one; an op in the index of ops.h. */
static int undocumented(const name_list *declared, const char *text)
{
    char *index = output_of("cat '" TL_ROOT "/ops/ops.h'");
    int bad = 0;
    *strstr(index, "*/") = '\0';
    for (int i = 0; i < declared->n; i++) {
        const char *name = declared->name[i].text, *c = text;
        size_t n = strlen(name);
        bool found = !declared->name[i].function || in_index(index, name, "");
        for (; (c = next_word(c, name, n)) != NULL; c += n) {
            const char *line = c;
            while (line > text && line[-1] != '\n')
                line--;
            bool returned = c - text >= 7 && strncmp(c - 7, "return ", 7) == 0;
            bool prototype = in_word(*line) && !returned && (line - text < 2 || line[-2] != '\\');
            line += strspn(line, " ");
            if (c[n] != '(' || *line == '*' || *line == '/')
                continue;
            found = found || explained(text, c) || in_index(index, name, c + n);
            if (prototype && !named(c)) {
                print_error("%s has a parameter without a name\n", name);
                bad++;
            }
        }
        char macro[128]; /* of tl_data_tape_at and tl_data_model_at: tl_data */
        snprintf(macro, sizeof macro, "#define %.*s(", (int)base_of(name, n), name);
        const char *of = base_of(name, n) < n ? strstr(text, macro) : NULL;
        if (!found && (of == NULL || !explained(text, of + strlen("#define ")))) {
            print_error("%s has no docstring\n", name);
            bad++;
        }
    }
    free(index);
    return bad;
}

static void every_function_is_documented(void **unused)
{
    (void)unused;
    name_list *declared = calloc(1, sizeof *declared);
    char command[4096], *headers = reached_by(FACE " " GROUP_H);
    assert_non_null(declared);
    add_declared(declared, GROUP_H);
    assert_true(declared->n > 390);
    snprintf(command, sizeof command, "cd '" TL_ROOT "' && cat %s", headers);
    char *text = output_of(command);
    assert_int_equal(undocumented(declared, text), 0);
    free(text);
    /* what it would find */
    *declared = (name_list){.n = 2, .name = {{"tl_y", true}, {"tl_z_at", true}}};
    assert_int_equal(undocumented(declared, "/* y, z */\nint tl_y(int a, char b[65]);\n"
                                            "int tl_z_at(void);\n"),
                     0);
    assert_int_equal(undocumented(declared, "/* of tl_y(a) */\n\nint tl_y(int a);\n"
                                            "int tl_z_at(void); /* z */\n"),
                     1);
    *declared = (name_list){.n = 2, .name = {{"tl_y", true}, {"tl_y_z", true}}};
    static const char below[] = "%s\nint tl_y(int a);\nint tl_y_z(int a);%s\n";
    const struct {
        const char *above, *beside;
        int bad;
    } cases[] = {{"/* y */", "", 1},  {"/* y; z: w */", "", 0},          {"/* y */", " /* w */", 0},
                 {"", " /* w */", 1}, {"/* clang-format off */", "", 2}, {"", "", 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char made[256];
        snprintf(made, sizeof made, below, cases[i].above, cases[i].beside);
        assert_int_equal(undocumented(declared, made), cases[i].bad);
    }
    *declared = (name_list){.n = 2, .name = {{"tl_y", true}, {"tl_z_at", true}}};
    assert_int_equal(undocumented(declared, "/* y, z */\nint tl_y(int a, const char *);\n"
                                            "int tl_z_at(tl_tensor);\n"),
                     2);
    free(headers);
    free(declared);
}

/* Every op has a card with all that its page of the reference shows, and every link an end. */
static void the_reference_lacks_nothing(void **unused)
{
    char command[4096], *headers = reached_by(FACE);
    temp_dir d;
    (void)unused;
    if (!succeeds("command -v ${PYTHON:-python3} > /dev/null"))
        TL_SKIP();
    assert_true(temp_dir_make(&d));
    snprintf(command, sizeof command,
             "cd '" TL_ROOT "' && ${PYTHON:-python3} docs/reference.py %s/docs %s 2>&1 >%s/out; "
             "grep -v ' 0 missing' %s/out; rm -r %s/*",
             d.path, headers, d.path, d.path, d.path);
    int whole = succeeds(command);
    temp_dir_remove(&d);
    free(headers);
    assert_true(whole);
}

/* Each by itself, too: a header includes what it needs. */
static void taken_by(const char *compiler, const char *standards, int *missing)
{
    char command[1024], *names = reached_by(FACE), *rest = NULL, *each = NULL, all[256];
    int bad = 0;
    snprintf(command, sizeof command, "command -v %s > /dev/null", compiler);
    if (!succeeds(command)) {
        (*missing)++;
        free(names);
        return;
    }
    snprintf(all, sizeof all, "%s", standards);
    for (char *h = strtok_r(names, " ", &rest); h != NULL; h = strtok_r(NULL, " ", &rest)) {
        char standard[256];
        strcpy(standard, all);
        for (char *s = strtok_r(standard, " ", &each); s != NULL; s = strtok_r(NULL, " ", &each)) {
            snprintf(command, sizeof command,
                     "echo '#include \"%s\"' | %s -x %s -std=%s -Wall -Wextra -Wshadow -pedantic "
                     "-Werror -fsyntax-only -I'" TL_ROOT "' - 2>&1",
                     h, compiler, s[1] == '+' ? "c++" : "c", s);
            bad += !succeeds(command);
        }
    }
    free(names);
    assert_int_equal(bad, 0);
}

static void c_and_cpp_take_every_header(void **unused)
{
    int missing = 0;
    (void)unused;
    taken_by("gcc", "c11", &missing);
    taken_by("clang", "c11", &missing);
    taken_by("g++", "c++17 c++20", &missing);
    taken_by("clang++", "c++17 c++20", &missing);
    if (missing > 0)
        TL_SKIP();
}

/* ---- symbols ---- */

static void exported_is_declared(void **unused)
{
    (void)unused;
    name_list *declared = calloc(1, sizeof *declared), *exported = calloc(1, sizeof *exported);
    assert_non_null(declared);
    assert_non_null(exported);
    add_declared(declared, "tally_extend.h");
    char *text = output_of("nm -D --defined-only '" TL_BUILD "/libtally.so'");
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        const char *name = strrchr(line, ' ') + 1;
        if (strncmp(name, "__", 2) != 0) /* a sanitizer's */
            add_name(exported, name, name + strlen(name), true);
    }
    free(text);
    int bad = 0;
    for (int i = 0; i < exported->n; i++)
        if (!has_name(declared, exported->name[i].text)) {
            print_error("%s is shown, but not declared\n", exported->name[i].text);
            bad++;
        }
    for (int i = 0; i < declared->n; i++)
        if (!has_name(exported, declared->name[i].text)) {
            print_error("%s is declared, but not shown\n", declared->name[i].text);
            bad++;
        }
    assert_true(exported->n > 200);
    assert_true(has_name(exported, "tl_matmul_at") && has_name(declared, "tl_op_add") &&
                has_name(declared, "tl_fail") && has_name(declared, "tl_kernels_shipped"));
    assert_false(has_name(exported, "tl_storage_new"));
    free(declared);
    free(exported);
    assert_int_equal(bad, 0);
}

/* What tests need of the library's inside, to make it fail, is in objects of the tests' own. */
static void no_test_hooks_in_the_library(void **unused)
{
    static const char *const hooks[] = {" tl_alloc_fail_after\n", " tl_alloc_peak\n",
                                        " tl_mutator\n"};
    (void)unused;
    char *library = output_of("nm '" TL_BUILD "/libtally.a' '" TL_BUILD "/libtally.so' 2>&1"),
         *runner = output_of("nm '" TL_BUILD "/tests/runner'");
    assert_non_null(strstr(library, " tl_calloc\n"));
    for (size_t i = 0; i < sizeof hooks / sizeof *hooks; i++) {
        assert_non_null(strstr(runner, hooks[i]));
        if (strstr(library, hooks[i]) != NULL)
            fail_msg("the library has the hook%s", hooks[i]);
    }
    free(library);
    free(runner);
}

const struct CMUnitTest tl_tests_face[] = {
    cmocka_unit_test(headers_are_public_and_short), cmocka_unit_test(the_index_has_every_op),
    cmocka_unit_test(every_function_is_documented), cmocka_unit_test(the_reference_lacks_nothing),
    cmocka_unit_test(c_and_cpp_take_every_header),  cmocka_unit_test(exported_is_declared),
    cmocka_unit_test(no_test_hooks_in_the_library),
};
const size_t tl_tests_face_count = sizeof tl_tests_face / sizeof tl_tests_face[0];
