/* Logs that are no good: cut off, damaged, or that could not be written. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tally_data.h>

#include "autograd/log/read/internal.h"
#include "autograd/log/internal.h"
#include "tensor/files/file.h"
#include "tests/support/logged_run.h"
#include "tests/support/skip.h"
#include "tests/support/steps.h"

extern const struct CMUnitTest tl_tests_log_bad[];
extern const size_t tl_tests_log_bad_count;

/* ---- logs that are no good ---- */

static void cut(const char *from, const char *to, size_t n)
{
    char *text;
    size_t bytes;
    tl_err err = {.status = TL_OK};
    assert_int_equal(tl_file_read(logged_file(from), 1 << 28, &text, &bytes, &err), TL_OK);
    FILE *f = fopen(logged_file(to), "wb");
    fwrite(text, 1, n < bytes ? n : bytes, f);
    fclose(f);
    tl_free_raw(text);
}

static void unreadable_logs(void **unused)
{
    (void)unused;
    logged_train(logged_file("plain"), (logged_run){0});
    cut("plain", "empty", 0);
    assert_int_equal(logged_diff("plain", "empty"), 2);
    logged_says("empty is empty");
    assert_int_equal(logged_diff("plain", "nowhere"), 2);
    logged_says("nowhere");
    assert_int_equal(logged_diff("plain", "."), 2);
    cut("plain", "head", 12);
    assert_int_equal(logged_diff("plain", "head"), 2);
    logged_says("B  head: no step");
    FILE *f = fopen(logged_file("letter"), "w");
    fputs("Dear Sir,\nthis is not a log.\n", f);
    fclose(f);
    assert_int_equal(logged_diff("letter", "plain"), 2);
    logged_says("letter is not a log: it does not begin with 'tally-log'");
    f = fopen(logged_file("letter"), "w");
    fputs("tally-log\t1\n", f);
    fclose(f);
    assert_int_equal(logged_diff("letter", "plain"), 2);
    logged_says("of another version (1");
}

/* Lines that are missing may have differed: that is no success. */
static void damaged_lines_are_no_success(void **unused)
{
    (void)unused;
    for (int whole = 0; whole < 2; whole++) {
        FILE *f = fopen(logged_file(whole ? "whole" : "hurt"), "w");
        fputs("tally-log\t2\nd\tf1\tdata\tF32\t4\t\t\t\tx\t\t\n", f);
        fprintf(f, "step\t1\tfull\nf1\t%064d\n%send\t1\n", 1, whole ? "" : "f1\tno hash\n");
        fclose(f);
    }
    assert_int_equal(logged_diff("whole", "whole"), 0);
    assert_int_equal(logged_diff("whole", "hurt"), 2);
    logged_says("1 damaged line passed over");
    logged_says("But lines are damaged: what stood there has not been compared.");
}

/* A log of SHA-256 is read; it is no match for one of XXH3-128, and none is added to it. */
static void logs_of_two_hashes(void **unused)
{
    (void)unused;
    logged_train(logged_file("new"), (logged_run){.steps = 1});
    for (int steps = 1; steps <= 2; steps++) {
        FILE *f = fopen(logged_file(steps == 1 ? "old" : "older"), "w");
        fputs("tally-log\t2\nd\tf1\tdata\tF32\t4\t\t\t\tx\t\t\n", f);
        for (int i = 1; i <= steps; i++)
            fprintf(f, "step\t%d\tfull\nf1\t%064d\nend\t%d\n", i, i, i);
        fclose(f);
    }
    assert_int_equal(logged_diff("old", "older"), 0);
    logged_says("A  old: step 1 (SHA-256)\nB  older: steps 1 to 2 (SHA-256)\n");
    logged_says("No difference: 1 results of 1 step are the same.");
    logged_says_not("damaged");
    assert_int_equal(logged_diff("old", "new"), 2);
    logged_says("A  old: step 1 (SHA-256)\nB  new: step 1 (XXH3-128)\n");
    logged_says("They cannot be compared: one hashes values by SHA-256");
    logged_says_not("damaged");
    tl_tape *t = tl_tape_new(NULL);
    assert_int_equal(tl_log_open(t, logged_file("old"), .append = true), TL_EFORMAT);
    assert_non_null(strstr(tl_error(t), "old is a log of version 2; what is added would be of "
                                        "version 3"));
    tl_error_clear(t);
    FILE *notes = fopen(logged_file("notes"), "w");
    fputs("my notes\n", notes);
    fclose(notes);
    assert_int_equal(tl_log_open(t, logged_file("notes"), .append = true), TL_EFORMAT);
    assert_non_null(strstr(tl_error(t), "notes is not the log of a run: nothing is added to it"));
    tl_error_clear(t);
    notes = fopen(logged_file("notes"), "r");
    char text[64] = "";
    assert_int_equal(fread(text, 1, sizeof text - 1, notes), 9);
    assert_string_equal(text, "my notes\n");
    fclose(notes);
    assert_int_equal(tl_log_open(t, logged_file("new"), .append = true), TL_OK);
    assert_int_equal(tl_log_close(t), TL_OK);
    assert_int_equal(tl_log_open(t, logged_file("none"), .append = true), TL_OK);
    assert_int_equal(tl_log_close(t), TL_OK);
    tl_free(t);
    assert_int_equal(logged_diff("old", "older"), 0);
}

static void logs_cut_off_by_a_crash(void **unused)
{
    char *text;
    size_t bytes;
    tl_err err = {.status = TL_OK};
    (void)unused;
    logged_train(logged_file("plain"), (logged_run){0});
    assert_int_equal(tl_file_read(logged_file("plain"), 1 << 28, &text, &bytes, &err), TL_OK);
    const char *third = strstr(text, "step\t3");
    assert_non_null(third);
    cut("plain", "crash", (size_t)(third - text) + 1000);
    assert_int_equal(logged_diff("plain", "crash"), 0);
    logged_says("B  crash: steps 1 to 3, the last one cut off");
    logged_says("A goes on to step 4");
    tl_free_raw(text);
    logged_train(logged_file("crash"),
                 (logged_run){.steps = 1,
                              .log = {.append = true,
                                      .first = 9}}); /* half a line does not spoil the next one */
    assert_int_equal(logged_diff("crash", "crash"), 0);
    logged_says("B  crash: steps 1 to 9 (XXH3-128)\n");
}

/* Whatever is in a log, reading and comparing end, and touch no memory but their own. */
static void damaged_logs_are_read(void **unused)
{
    const char *given = getenv("TL_SEED");
    uint64_t seed = given != NULL ? strtoull(given, NULL, 10) : 20240611;
    tl_rng_key key = tl_rng_stream(seed, "test_log.damage");
    tl_err err = {.status = TL_OK};
    tl_log_file *good, *f;
    char *text;
    size_t bytes;
    (void)unused;
    logged_train(logged_file("plain"), (logged_run){.steps = 2, .micro_batch = 5});
    assert_int_equal(tl_file_read(logged_file("plain"), 1 << 28, &text, &bytes, &err), TL_OK);
    assert_int_equal(tl_log_read(&good, logged_file("plain"), &err), TL_OK);
    for (uint64_t round = 0; round < 300; round++) {
        char *copy = malloc(bytes);
        size_t n = round % 3 == 0 ? (size_t)tl_rng_below(key, round, 0, bytes) : bytes;
        memcpy(copy, text, bytes);
        for (uint64_t i = 0; i < 1 + round % 40; i++) {
            size_t at = 12 + (size_t)tl_rng_below(key, round, 3 * i + 1, bytes - 12),
                   kind = (size_t)tl_rng_below(key, round, 3 * i + 2, 4);
            static const char usual[] = "\t\n*+,:/.-0f9b%";
            copy[at] = (char)(kind < 3
                                  ? usual[tl_rng_below(key, round, 3 * i + 3, sizeof usual - 1)]
                                  : (int)tl_rng_below(key, round, 3 * i + 3, 256));
            if (kind == 2) /* a stretch of the file somewhere else */
                memcpy(copy + at, text + tl_rng_below(key, round, 3 * i + 3, bytes - 300),
                       bytes - at < 300 ? bytes - at : 300);
        }
        FILE *file = fopen(logged_file("damaged"), "wb");
        fwrite(copy, 1, n, file);
        fclose(file);
        free(copy);
        err.status = TL_OK;
        if (tl_log_read(&f, logged_file("damaged"), &err) != TL_OK) {
            if (err.status != TL_EFORMAT)
                fail_msg("seed %" PRIu64 ", round %" PRIu64 ": %s", seed, round, err.message);
            continue;
        }
        for (int i = 0; i < tl_log_steps(f); i++)
            for (int k = 0; k < tl_log_steps(good); k++) {
                tl_log_comparison c;
                assert_int_equal(tl_log_compare(&c, tl_log_step_at(f, i), tl_log_step_at(good, k)),
                                 TL_OK);
                tl_log_comparison_free(&c);
            }
        tl_log_file_close(f);
        if (round < 12) /* and the program says something sensible */
            assert_in_range(logged_diff("plain", "damaged"), 0, 2);
    }
    tl_log_file_close(good);
    tl_free_raw(text);
}

/* ---- logs made to take long ---- */

static const char *digits_of(char buf[65], uint64_t x)
{
    snprintf(buf, 65, "%064" PRIx64, x);
    return buf;
}

static void define(FILE *f, const char *key, const char *op, const char *shape, const char *inputs,
                   const char *kind, const char *name)
{
    fprintf(f, "d\t%s\t%s\tF32\t%s\t%s\t%s\t\t%s\t\t\n", key, op, shape, inputs, kind, name);
}

/* n leaves or updates, each with a name of its own. */
static void many_names(FILE *f, int which, int n, const char *kind, const char *op)
{
    char key[32], name[32], hex[65];
    for (int i = 1; i <= n; i++) {
        snprintf(key, sizeof key, *kind != '\0' ? "u%d" : "f%d", i);
        snprintf(name, sizeof name, "layer%d.w%s", i, *kind == '\0' && which == 1 ? "x" : "");
        define(f, key, op, "4", "", kind, name);
    }
    fputs("step\t1\tfull\n", f);
    for (int i = 1; i <= n; i++)
        fprintf(f, *kind != '\0' ? "u%d\t%s\n" : "f%d\t%s\n", i, digits_of(hex, (uint64_t)which));
    fputs("end\t1\n", f);
}
static void parameters(FILE *f, int which, int n) { many_names(f, which, n, "", "param"); }
static void updates(FILE *f, int which, int n) { many_names(f, which, n, "update", "adamw"); }

static void headers(FILE *f, int which, int n)
{
    many_names(f, which, n, "", "data");
    for (int i = 0; i < n; i++)
        fputs("d\tf1\tx\tF32\t4\t\t\t\t\t\t\ntally-log\t2\n", f);
}

/* A result of n inputs, the last of which cannot be compared; 2 parts of 2 rows here, 4 rows there.
 */
static void wide(FILE *f, int which, int n, int steps, int results)
{
    char hex[65];
    define(f, "f1", "data", "4", "", "", "");
    fprintf(f, "d\tf2\tsum\tF32\t%s\t", which == 0 ? "4" : "2*2");
    for (int i = 1; i < n; i++)
        fputs("f3,", f);
    fputs("f1\t\t\t\t\t\n", f);
    for (int k = 1; k <= steps; k++) {
        fprintf(f, "step\t%d\tfull\nf1\t-\n", k);
        for (int i = 0; i < results; i++)
            fprintf(f, "f2\t%s\n", digits_of(hex, (uint64_t)which));
        fprintf(f, "end\t%d\n", k);
    }
}
static void inputs_again_in_a_step(FILE *f, int which, int n) { wide(f, which, 4 * n, 1, n); }
static void inputs_again_in_each_step(FILE *f, int which, int n) { wide(f, which, 4 * n, n, 1); }

/* Each computed from the one before. */
static void chain(FILE *f, int which, int n)
{
    char key[32], in[32], hex[65];
    for (int i = 1; i <= n; i++) {
        snprintf(key, sizeof key, "f%d", i);
        snprintf(in, sizeof in, "f%d", i - 1);
        define(f, key, "tanh", "4", i > 1 ? in : "", "", "");
    }
    fputs("step\t1\tfull\n", f);
    for (int i = 1; i <= n; i++)
        fprintf(f, "f%d\t%s\n", i, digits_of(hex, i == n ? (uint64_t)which : 7));
    fputs("end\t1\n", f);
}

static void steps_of_one_number(FILE *f, int which, int n)
{
    char hex[65];
    define(f, "f1", "data", "4", "", "", "");
    for (int i = 0; i < n; i++)
        fprintf(f, "step\t1\tfull\nf1\t%s\n%s", digits_of(hex, (uint64_t)(which + i)),
                i % 2 ? "end\t1\n" : "");
}

/* Keys that began their search at one place of the table as it was: the middle bits of their
 * product with the golden ratio are 0. */
static void keys_that_meet(FILE *f, int which, int n)
{
    const uint64_t golden = 0x9e3779b97f4a7c15u;
    uint64_t inverse = 1;
    char key[64], hex[65];
    for (int i = 0; i < 6; i++)
        inverse *= 2 - golden * inverse;
    for (uint64_t high = 1, found = 0; found < (uint64_t)n; high++) {
        uint64_t k = (high << 44 ^ (high * 2654435761u & 0xfffff)) * inverse;
        tl_log_key_text(key, k);
        if (tl_log_key_parse(key, strlen(key)) != k)
            continue;
        define(f, key, "data", "4", "", "", "");
        found++;
    }
    define(f, "f1", "data", "4", "", "", "");
    fprintf(f, "step\t1\tfull\nf1\t%s\nend\t1\n", digits_of(hex, (uint64_t)which));
}

static int64_t fails; /* the allocation of a report that fails; 0: none */

/* What tally-diff does with the logs a and b, to f. */
static void compare_logs(FILE *f)
{
    char path[2][1024];
    tl_log_pair p = {.agreed = 0};
    tl_err err = {.status = TL_OK};
    for (int i = 0; i < 2; i++) {
        p.path[i] = strcpy(path[i], logged_file(i == 0 ? "a" : "b"));
        assert_int_equal(tl_log_read(&p.file[i], p.path[i], &err), TL_OK);
    }
    for (int i = 0; i < tl_log_steps(p.file[0]) && i < tl_log_steps(p.file[1]); i++) {
        tl_log_comparison c;
        assert_int_equal(tl_log_compare(&c, tl_log_step_at(p.file[0], i),
                                        tl_log_step_at(p.file[1], i)),
                         TL_OK);
        tl_alloc_fail_after(fails);
        tl_log_report(f, &p, &c);
        tl_alloc_fail_after(0);
        tl_log_comparison_free(&c);
    }
    for (int i = 0; i < 2; i++)
        tl_log_file_close(p.file[i]);
}

static int64_t steps_to_compare(void (*write)(FILE *, int, int), int n)
{
    for (int i = 0; i < 2; i++) {
        FILE *f = fopen(logged_file(i == 0 ? "a" : "b"), "w");
        assert_non_null(f);
        fputs("tally-log\t2\n", f);
        write(f, i, n);
        fclose(f);
    }
    int64_t began = steps_taken();
    FILE *null = fopen("/dev/null", "w");
    compare_logs(null);
    fclose(null);
    return steps_taken() - began;
}

/* Four times the log, four times the work, or a little more to put it in order; its square would be
 * sixteen times. */
static void work_grows_with_the_log(void **unused)
{
    static const struct {
        const char *name;
        void (*write)(FILE *, int, int);
    } family[] = {{"parameters", parameters},
                  {"updates", updates},
                  {"headers", headers},
                  {"inputs again in a step", inputs_again_in_a_step},
                  {"inputs again in each step", inputs_again_in_each_step},
                  {"chain", chain},
                  {"steps of one number", steps_of_one_number},
                  {"keys that meet", keys_that_meet}};
    (void)unused;
    for (size_t i = 0; i < sizeof family / sizeof *family; i++) {
        int64_t few = steps_to_compare(family[i].write, 700),
                many = steps_to_compare(family[i].write, 2800);
        if (few < 700 || many > 6 * few)
            fail_msg("%s: %" PRId64 " steps, %" PRId64 " for four times as much", family[i].name,
                     few, many);
    }
}

/* ---- logs that speak to the terminal ---- */

static bool is_clean(const char *s)
{
    for (; *s != '\0'; s++)
        if (((unsigned char)*s < ' ' && *s != '\n') || *s == 0x7f ||
            (*s == (char)0xc2 && (unsigned char)s[1] < 0xa0) || *s == (char)0x9b)
            return false;
    return true;
}

/* Escapes in any field, written as they are or as the format has them. */
static void escapes_are_printed_escaped(void **unused)
{
    static const char *const escape[] = {"%1b]0;x%07",
                                         "\x1b[2J",
                                         "%9b31m",
                                         "\x9b"
                                         "31m",
                                         "\xc2\x9b"
                                         "31m",
                                         "%0d",
                                         "%7f",
                                         "%08%08"};
    static const char *const field[] = {"op",         "dtype", "shape", "name",
                                        "attributes", "place", "value"};
    enum { FIELDS = 7 };
    char hex[65];
    (void)unused;
    for (size_t e = 0; e < sizeof escape / sizeof *escape; e++)
        for (int k = 0; k < FIELDS; k++)
            for (int kind = 0; kind < 3; kind++) { /* other bytes, other programs, parameters */
                for (int i = 0; i < 2; i++) {
                    const char *v[FIELDS] = {
                        kind == 2 ? "param" : "tanh", "F32", "scalar", "w", "{a=1}", "x.c:1", "5"};
                    char own[64], text[FIELDS][96];
                    for (int j = 0; j < FIELDS; j++) {
                        snprintf(own, sizeof own, "%s%s%s", v[j], j == k ? escape[e] : "",
                                 j == k && j == 2                ? ""
                                 : j == k && kind == 1 && i == 1 ? "B"
                                                                 : "");
                        snprintf(text[j], sizeof text[j], "%s",
                                 j == k && j == 2 ? "2,\x1b[2J" : own);
                    }
                    FILE *f = fopen(logged_file(i == 0 ? "a" : "b"), "w");
                    fprintf(f, "tally-log\t2\nd\tf1\t%s\t%s\t%s\t\t\t\t%s\t%s\t%s\nstep\t1\tfull\n",
                            text[0], text[1], text[2], text[3], text[4], text[5]);
                    fprintf(f, "f1\t%s\t-\t%s%s\nend\t1\n", digits_of(hex, (uint64_t)i), text[6],
                            i ? "1" : "");
                    fclose(f);
                }
                char *said = NULL;
                size_t n;
                FILE *f = open_memstream(&said, &n);
                compare_logs(f);
                fclose(f);
                if (!is_clean(said) || n == 0)
                    fail_msg("%s in %s, %d: %s", escape[e], field[k], kind, said);
                free(said);
            }
    FILE *f = fopen(logged_file("a"), "w");
    fputs("tally-log\t\x1b[2J\n", f);
    fclose(f);
    assert_int_equal(logged_diff("a", "a"), 2);
    logged_says("another version (%1b[2J");
    logged_says_not("\x1b");
    f = fopen(logged_file("a"), "w");
    fputs("tally-log\t2\nd\tf1\ttanh\tF32\t4\t\t\t\tw%1b[2J%0a \xc3\xa9\t\t\nstep\t1\tfull\n", f);
    fprintf(f, "f1\t%s\nend\t1\n", digits_of(hex, 1));
    fclose(f);
    cut("a", "b", 1 << 20);
    f = fopen(logged_file("b"), "a");
    fprintf(f, "step\t1\tfull\nf1\t%s\nend\t1\n", digits_of(hex, 2));
    fclose(f);
    assert_int_equal(logged_diff("a", "b"), 1);
    logged_says("w%1b[2J%0a \xc3\xa9");
}

/* ---- what goes wrong while a log is written ---- */

static void a_full_disk_stops_the_log_not_the_run(void **unused)
{
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_sgd_new(m, .lr = 0.1);
    (void)unused;
    if (access("/dev/full", W_OK) != 0)
        TL_SKIP();
    tl_log_open(t, logged_file("x"));
    assert_int_equal(tl_log_close(t), TL_OK);
    if (tl_log_open(t, "/dev/full") == TL_OK) { /* the header is the first to meet it */
        tl_log_close(t);
        fail_msg("the full device took a log");
    }
    assert_non_null(strstr(tl_error(t), "No space left"));
    tl_error_clear(t);
    tl_log_open(t, logged_file("x"));
    assert_non_null(freopen("/dev/full", "w", tl_log_of(t)->f)); /* the disk fills up later */
    for (int i = 0; i < 3; i++) {
        tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(3000), TL_INIT_ONES, 1);
        tl_backward(t, tl_sum(t, tl_square(t, w), TL_ALL, false));
        assert_int_equal(tl_step(o, t), TL_OK);
        tl_tape_reset(t);
    }
    assert_int_equal(tl_opt_steps(o), 3);
    assert_non_null(strstr(tl_log_error(t), "cannot be written further (step 1): No space left"));
    assert_string_equal(tl_error(t), "");
    assert_int_equal(tl_log_close(t), TL_EIO);
    assert_non_null(strstr(tl_error(t), "cannot be written further"));
    tl_free(o, t, m);
}

static void wrong_use_is_refused(void **unused)
{
    tl_tape *t = tl_tape_new(NULL);
    (void)unused;
    assert_int_equal(tl_log_open(t, logged_file("no/such/folder")), TL_EIO);
    assert_non_null(strstr(tl_error(t), "No such file"));
    tl_error_clear(t);
    assert_int_equal(tl_log_open(t, logged_file("x"), .every = -1), TL_EDOMAIN);
    tl_error_clear(t);
    assert_int_equal(tl_log_open(t, logged_file("x")), TL_OK);
    assert_int_equal(tl_log_open(t, logged_file("y")), TL_EUSAGE);
    tl_error_clear(t);
    assert_int_equal(tl_log_close(t), TL_OK);
    assert_int_equal(tl_log_close(t), TL_OK);
    tl_log_open(t, logged_file("x"));
    tl_free(t);
}

/* The values that are kept lie beside the log, never in its place, however long its path. */
static void long_paths_do_not_overwrite_themselves(void **unused)
{
    char path[4200];
    int refused = 0;
    (void)unused;
    for (size_t length = 4000; length <= 4096; length++) {
        snprintf(path, sizeof path, "%s", logged_file(""));
        size_t n = strlen(path);
        while (n + 2 < length - 4) /* DIR/././././log */
            n += (size_t)sprintf(path + n, "./");
        sprintf(path + n, "%.*s", (int)(length - n), "longname");
        assert_int_equal(strlen(path), length);
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_opt *o = tl_sgd_new(m, .lr = 0.1);
        tl_status s = tl_log_open(t, path, .keep = 1);
        if (s == TL_OK) {
            tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(3), TL_INIT_ONES, 1);
            tl_backward(t, tl_sum(t, tl_square(t, w), TL_ALL, false));
            assert_int_equal(tl_step(o, t), TL_OK);
            s = tl_log_close(t);
        }
        FILE *f = fopen(path, "r");
        char first[10] = "";
        if (f != NULL) {
            first[fread(first, 1, 9, f)] = '\0';
            fclose(f);
            assert_string_equal(first, "tally-log");
        }
        if (s != TL_OK) {
            assert_int_equal(tl_error_status(t), TL_EIO);
            assert_non_null(strstr(tl_error(t), "tl_log_open"));
            assert_non_null(strstr(tl_error(t), length + strlen(".step1.safetensors") > 4095
                                                    ? "too long for the values of step 1"
                                                    : "File name too long"));
            refused++;
        }
        tl_free(o, t, m);
        remove(path);
    }
    assert_in_range(refused, 20, 90); /* of 97 */
}

static void step_program(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                         void *ctx)
{
    (void)n_in, (void)n_out;
    tl_tensor w = tl_param(t, tl_tape_model(t), "w", TL_F32, TL_DIMS(30, 30), TL_INIT_ONES, 1);
    out[0] = tl_sum(t, tl_matmul(t, tl_tanh(t, w), in[0]), TL_ALL, false);
    tl_backward(t, out[0]);
    tl_step(ctx, t);
}

static bool same_file(const char *a, const char *b)
{
    char *text[2];
    size_t bytes[2];
    tl_err err = {.status = TL_OK};
    assert_int_equal(tl_file_read(logged_file(a), 1 << 28, &text[0], &bytes[0], &err), TL_OK);
    assert_int_equal(tl_file_read(logged_file(b), 1 << 28, &text[1], &bytes[1], &err), TL_OK);
    const bool same = bytes[0] == bytes[1] && memcmp(text[0], text[1], bytes[0]) == 0;
    tl_free_raw(text[0]);
    tl_free_raw(text[1]);
    return same;
}

/* Every allocation fails once: the run goes on without its log, or says why it cannot. A log that
 * is said to be whole is. */
static void out_of_memory(void **unused)
{
    static float x[900];
    int whole = 0;
    (void)unused;
    for (int compile = 0; compile < 2; compile++)
        for (int64_t n = 0; n < 700; n++) { /* 0: none fails */
            tl_model *m = tl_model_new(.seed = 1);
            tl_tape *t = tl_tape_new(m);
            tl_opt *o = tl_sgd_new(m, .lr = 0.1);
            tl_tensor in = tl_data(t, x, TL_F32, TL_DIMS(30, 30)), out;
            tl_compiled *c = tl_compile(t, step_program, 1, o);
            tl_alloc_fail_after(n);
            tl_log_open(t, logged_file(n == 0 ? "good" : "x"), .keep = 1);
            if (compile)
                tl_run(c, &in, 1, &out);
            else
                step_program(t, &in, 1, &out, 1, o);
            tl_alloc_fail_after(0);
            tl_status s = tl_log_close(t);
            assert_true(s == TL_OK || (s == TL_ENOMEM && tl_failed(t)));
            const bool good = s == TL_OK && !tl_failed(t);
            whole += good;
            if (good && n > 0 && !same_file("x", "good"))
                fail_msg("allocation %d: another log, and no error", (int)n);
            tl_free(c, o, t, m);
        }
    assert_true(whole > 10); /* the last ones have all the memory they want */
}

/* A log that cannot begin leaves the file that is there. */
static void out_of_memory_empties_no_log(void **unused)
{
    int refused = 0;
    (void)unused;
    for (int64_t n = 1;; n++) {
        FILE *f = fopen(logged_file("old"), "w");
        fputs("precious", f);
        fclose(f);
        tl_tape *t = tl_tape_new(NULL);
        tl_alloc_fail_after(n);
        const tl_status s = tl_log_open(t, logged_file("old"));
        tl_alloc_fail_after(0);
        char *text = NULL;
        size_t bytes = 0;
        tl_err err = {.status = TL_OK};
        assert_int_equal(tl_file_read(logged_file("old"), 1 << 20, &text, &bytes, &err), TL_OK);
        if (s != TL_OK && (bytes != 8 || memcmp(text, "precious", 8) != 0))
            fail_msg("allocation %d: the old log has %zu bytes", (int)n, bytes);
        tl_free_raw(text);
        refused += s == TL_ENOMEM;
        tl_error_clear(t);
        tl_free(t);
        if (s == TL_OK)
            break;
    }
    assert_true(refused > 2);
}

/* The last allocation of a report cuts its text to size. */
static void no_memory_to_say_how_they_differ(void **unused)
{
    int told = 0;
    (void)unused;
    for (int64_t n = 1; n < 40; n++) { /* far more than a report makes */
        char hex[65], *said = NULL;
        size_t bytes;
        for (int i = 0; i < 2; i++) {
            FILE *f = fopen(logged_file(i == 0 ? "a" : "b"), "w");
            fputs("tally-log\t2\nd\tf1\ttanh\tF32\t4\t\t\t\tw\t\t\nstep\t1\tfull\n", f);
            fprintf(f, "f1\t%s\nend\t1\n", digits_of(hex, (uint64_t)i));
            fclose(f);
        }
        FILE *f = open_memstream(&said, &bytes);
        fails = n;
        compare_logs(f);
        fails = 0;
        fclose(f);
        told += strcmp(said, "\nNo memory to say how they differ.\n") == 0;
        free(said);
    }
    assert_int_equal(told, 1);
}

const struct CMUnitTest tl_tests_log_bad[] = {
    cmocka_unit_test_setup_teardown(unreadable_logs, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(logs_of_two_hashes, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(out_of_memory_empties_no_log, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(logs_cut_off_by_a_crash, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(damaged_logs_are_read, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(damaged_lines_are_no_success, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(work_grows_with_the_log, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(escapes_are_printed_escaped, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(long_paths_do_not_overwrite_themselves, logged_begin,
                                    logged_end),
    cmocka_unit_test_setup_teardown(a_full_disk_stops_the_log_not_the_run, logged_begin,
                                    logged_end),
    cmocka_unit_test_setup_teardown(wrong_use_is_refused, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(out_of_memory, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(no_memory_to_say_how_they_differ, logged_begin, logged_end),
};
const size_t tl_tests_log_bad_count = sizeof tl_tests_log_bad / sizeof *tl_tests_log_bad;
