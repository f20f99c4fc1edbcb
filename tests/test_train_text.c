/* The program train_text, run as people run it: bad input, full disks, kills, and one hash however
 * it is run. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#include "tensor/isa.h"
#include "tensor/files/safetensors.h"
#include "tests/temp_dir.h"

extern const struct CMUnitTest tl_tests_train_text[];
extern const size_t tl_tests_train_text_count;

#ifndef TL_BUILD
#define TL_BUILD "build"
#endif
#define PROGRAM TL_BUILD "/train_text"

static temp_dir dir;
static char text[1024], saved[1024], other[1024], out[1 << 16], err[1 << 16];

static void write_file(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static size_t read_file(const char *path, char *bytes, size_t room)
{
    FILE *f = fopen(path, "rb");
    size_t n = f == NULL ? 0 : fread(bytes, 1, room - 1, f);
    if (f != NULL)
        fclose(f);
    bytes[n] = '\0';
    return n;
}

static int begin(void **unused)
{
    static char line[1800];
    (void)unused;
    if (!temp_dir_make(&dir))
        return -1;
    for (size_t i = 0; i < sizeof line; i++)
        line[i] = "the quick brown fox jumps over the lazy dog\n"[i * i % 7 + i % 38];
    write_file(temp_dir_file(text, &dir, "text"), line, sizeof line);
    temp_dir_file(saved, &dir, "saved");
    temp_dir_file(other, &dir, "other");
    return access(PROGRAM, X_OK);
}

static int end(void **unused)
{
    (void)unused;
    temp_dir_remove(&dir);
    return 0;
}

/* ---- running it ---- */

typedef struct {
    const char *isa, *out; /* TL_ISA; where stdout goes, if not into `out` */
    rlim_t file_size;      /* RLIMIT_FSIZE */
    bool nobody;           /* without root's rights */
} setting;

enum { ARGS = 40 };

static pid_t start(const setting *s, char *const *argv)
{
    char path[2][1024];
    temp_dir_file(path[0], &dir, ".out");
    temp_dir_file(path[1], &dir, ".err");
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0)
        return pid;
    int fd[2] = {open(s->out != NULL ? s->out : path[0], O_WRONLY | O_CREAT | O_TRUNC, 0644),
                 open(path[1], O_WRONLY | O_CREAT | O_TRUNC, 0644)};
    dup2(fd[0], 1);
    dup2(fd[1], 2);
    if (s->isa != NULL)
        setenv("TL_ISA", s->isa, 1);
    if (s->file_size > 0) {
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){s->file_size, s->file_size});
    }
    if (s->nobody && geteuid() == 0 && setuid(65534) != 0)
        _exit(126);
    execv(PROGRAM, argv);
    _exit(127);
}

static int finish(pid_t pid)
{
    char path[1024];
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    read_file(temp_dir_file(path, &dir, ".out"), out, sizeof out);
    read_file(temp_dir_file(path, &dir, ".err"), err, sizeof err);
    return status;
}

/* Small settings, then the given ones, NULL at the end; later flags win. */
static void arguments(char *argv[ARGS], const char *const *more)
{
    static const char *const base[] = {PROGRAM, "--steps",    "6",  "--batch",  "6", "--seq",
                                       "8",     "--width",    "16", "--layers", "1", "--heads",
                                       "2",     "--kv-heads", "1",  "--warmup", "2", "--sample",
                                       "10",    "--threads",  "1",  "--text"};
    int n = 0;
    for (size_t i = 0; i < sizeof base / sizeof *base; i++)
        argv[n++] = (char *)(uintptr_t)base[i];
    argv[n++] = text;
    for (; *more != NULL && n < ARGS - 1; more++)
        argv[n++] = (char *)(uintptr_t)*more;
    argv[n] = NULL;
}

static int run(const setting *s, const char *const *more)
{
    char *argv[ARGS];
    arguments(argv, more);
    return finish(start(s, argv));
}

#define RUN(s, ...) run(s, (const char *const[]){__VA_ARGS__, NULL})

/* Exit status not 0, no signal, and every word in the message. */
static void fails(int status, const char *first, const char *second, int line)
{
    if (!WIFEXITED(status) || WEXITSTATUS(status) == 0 || WEXITSTATUS(status) > 2)
        fail_msg("line %d: status %x\n%s%s", line, (unsigned)status, out, err);
    if (strncmp(err, "train_text: ", 12) != 0 || strstr(err, first) == NULL ||
        strstr(err, second) == NULL)
        fail_msg("line %d: '%s' and '%s' wanted in: %s", line, first, second, err);
    if (strstr(out, "weights sha256") != NULL)
        fail_msg("line %d: it ends as if all were well: %s", line, out);
}

#define FAILS(first, second, ...) fails(RUN(&(setting){0}, __VA_ARGS__), first, second, __LINE__)

/* Runs to the end; the weights' hash. */
static void hash_of(int status, char hex[65])
{
    if (status != 0)
        fail_msg("status %x: %s", (unsigned)status, err);
    char *last = strstr(out, "\nweights sha256 ");
    assert_non_null(last);
    assert_int_equal(sscanf(last, "\nweights sha256 %64[0-9a-f]\n", hex), 1);
    assert_int_equal(strlen(hex), 64);
    assert_int_equal(strlen(last), 1 + 15 + 64 + 1); /* it is the last line */
}

/* ---- bad input ---- */

static void bad_flags(void **unused)
{
    (void)unused;
    FAILS("--bogus", "unknown", "--bogus", "3");
    FAILS("file.txt", "", "file.txt");
    FAILS("--steps", "value", "--steps");
    FAILS("--text", "value", "--text");
    FAILS("--steps ten", "whole number", "--steps", "ten");
    FAILS("--steps 1.5", "whole number", "--steps", "1.5");
    FAILS("--steps", "number", "--steps", "");
    FAILS("--steps -1", "0", "--steps", "-1");
    FAILS("--batch 0", "1", "--batch", "0");
    FAILS("--seq 0", "1", "--seq", "0");
    FAILS("--layers 1e9", "1000", "--layers", "1e9");
    FAILS("--threads 257", "256", "--threads", "257");
    FAILS("--threads -1", "256", "--threads", "-1");
    FAILS("--lr 11", "10", "--lr", "11");
    FAILS("--lr nan", "", "--lr", "nan");
    FAILS("--lr 0.1x", "number", "--lr", "0.1x");
    FAILS("--seed 1e400", "", "--seed", "1e400");
    FAILS("--temperature -1", "100", "--temperature", "-1");
    FAILS("--batch 6", "--micro-batch 4", "--micro-batch", "4");
    FAILS("--batch 6", "--micro-batch 7", "--micro-batch", "7");
    FAILS("--width 16", "--heads 3", "--heads", "3");
    FAILS("--width 6", "3", "--width", "6");
    FAILS("--heads 2", "--kv-heads 3", "--kv-heads", "3");
    FAILS("--stop-at 7", "--steps 6", "--stop-at", "7");
    FAILS("--save-every", "--save", "--save-every", "2");
    FAILS("--log-keep 7", "--steps 6", "--log", other, "--log-keep", "7");
}

/* A file that is written is not another flag's, by whatever name. */
static void one_file_for_two_flags(void **unused)
{
    static const char *const writes[] = {"--save", "--csv", "--svg", "--log"};
    static char bytes[2000];
    char link_to[1024];
    (void)unused;
    temp_dir_file(link_to, &dir, "link");
    assert_int_equal(link(text, link_to), 0);
    for (int i = 0; i < 4; i++) {
        FAILS(writes[i], "--text", writes[i], text);
        FAILS(writes[i], "--text", writes[i], link_to);
        assert_int_equal(WEXITSTATUS(RUN(&(setting){0}, writes[i], text)), 2);
        FAILS(writes[i], writes[(i + 1) % 4], writes[i], other, writes[(i + 1) % 4], other);
    }
    assert_int_equal(read_file(text, bytes, sizeof bytes), 1800);
    assert_int_equal(RUN(&(setting){0}, "--stop-at", "3", "--save", saved), 0);
    for (int i = 1; i < 4; i++)
        FAILS(writes[i], "--resume", writes[i], saved, "--resume", saved);
    assert_int_equal(RUN(&(setting){0}, "--resume", saved, "--save", saved), 0);
    assert_int_equal(RUN(&(setting){0}, "--csv", "/dev/null", "--svg", "/dev/null"), 0);
}

static void bad_texts(void **unused)
{
    char path[1024];
    (void)unused;
    FAILS("nowhere", "No such file", "--text", temp_dir_file(path, &dir, "nowhere"));
    FAILS(dir.path, "directory", "--text", dir.path);
    write_file(other, "", 0);
    FAILS(other, "0 bytes", "--text", other);
    write_file(other, "abcdefghij", 10);
    FAILS(other, "10 bytes", "--text", other, "--seq", "32");
    FAILS(text, "1800 bytes", "--seq", "1700");
    write_file(other, "secret", 6);
    chmod(other, 0);
    int status = RUN(&(setting){.nobody = true}, "--text", other);
    if (WIFEXITED(status) && WEXITSTATUS(status) >= 126)
        return; /* this system does not let us become nobody */
    fails(status, other, "Permission denied", __LINE__);
}

static void bad_checkpoints(void **unused)
{
    static char bytes[1 << 17];
    char hex[65], again[65];
    (void)unused;
    FAILS(saved, "No such file", "--resume", saved);
    FAILS(text, "", "--resume", text);
    FAILS(dir.path, "directory", "--resume", dir.path);
    hash_of(RUN(&(setting){0}, "--save", saved, "--stop-at", "3"), hex);
    size_t n = read_file(saved, bytes, sizeof bytes);
    assert_in_range(n, 10000, sizeof bytes - 2);
    const size_t cuts[] = {0, 7, 8, 100, n / 2, n - 1};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        write_file(other, bytes, cuts[i]);
        FAILS(other, "", "--resume", other);
    }
    FAILS(saved, "is at step 3, past --stop-at 2", "--resume", saved, "--stop-at", "2");
    hash_of(RUN(&(setting){0}, "--resume", saved, "--stop-at", "3"), again); /* nothing to do */
    assert_string_equal(again, hex);
    FAILS(saved, "16", "--resume", saved, "--width", "32");
    FAILS(saved, "", "--resume", saved, "--layers", "2");
    FAILS(saved, "--seed 1", "--resume", saved, "--seed", "2");
    FAILS(saved, "--steps 6", "--resume", saved, "--steps", "7");
    FAILS(saved, "--batch 6", "--resume", saved, "--batch", "3");
    FAILS(saved, "--tied", "--resume", saved, "--tied");
    read_file(text, bytes, sizeof bytes);
    bytes[5] ^= 1;
    write_file(other, bytes, 1800);
    FAILS(saved, "", "--resume", saved, "--text", other);
}

static void places_that_cannot_be_written(void **unused)
{
    char path[1024];
    (void)unused;
    FAILS("no/such", "No such file", "--save", temp_dir_file(path, &dir, "no/such"));
    FAILS(dir.path, "", "--save", dir.path);
    FAILS("no/such.csv", "No such file", "--csv", temp_dir_file(path, &dir, "no/such.csv"));
    FAILS("/dev/full", "", "--save", "/dev/full");
    int status = RUN(&(setting){.out = "/dev/full"}, "--steps", "1");
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    assert_non_null(strstr(err, "No space left"));
}

/* ---- one hash ---- */

/* flag: "--tied" or none */
static void one_hash(const char *flag)
{
    static const char *const micro[] = {"1", "2", "3", "6"}, *const threads[] = {"2", "3", "8"};
    const setting plain = {0};
    char want[65], got[65];
    hash_of(RUN(&plain, flag), want);
    for (int i = 0; i < 4; i++) {
        hash_of(RUN(&plain, "--micro-batch", micro[i], flag), got);
        assert_string_equal(got, want);
    }
    for (int i = 0; i < 3; i++) {
        hash_of(RUN(&plain, "--threads", threads[i], flag), got);
        assert_string_equal(got, want);
    }
    for (int i = 0; tl_isa_at(i) != NULL; i++) {
        hash_of(RUN(&(setting){.isa = tl_isa_at(i)->name}, "--threads", "2", "--micro-batch", "3",
                    flag),
                got);
        assert_string_equal(got, want);
    }
    for (int i = 1; i < 4; i++) {
        hash_of(RUN(&plain, "--compile", "--threads", "2", "--micro-batch", micro[i], flag), got);
        assert_string_equal(got, want);
    }
    for (int stop = 1; stop < 6; stop += 2) {
        char at[8];
        snprintf(at, sizeof at, "%d", stop);
        assert_int_equal(RUN(&plain, "--save", saved, "--stop-at", at, "--save-every", "1", flag),
                         0);
        hash_of(RUN(&plain, "--resume", saved, "--threads", "3", flag), got);
        assert_string_equal(got, want);
    }
    hash_of(RUN(&plain, "--sample", "0", "--save", saved, "--csv", other, flag),
            got); /* nor does looking on */
    assert_string_equal(got, want);
    hash_of(RUN(&plain, "--seed", "2", flag), got);
    assert_string_not_equal(got, want);
}

static void one_hash_however_it_is_run(void **unused)
{
    (void)unused;
    one_hash(NULL);
}

static void and_one_for_tied_weights(void **unused)
{
    (void)unused;
    one_hash("--tied");
}

static void the_last_three_lines(void **unused)
{
    double speed, after, before, unigram;
    char hex[65], *line = out;
    int used = 0, lines = 0;
    (void)unused;
    hash_of(RUN(&(setting){0}, "--steps", "60", "--lr", "0.01"), hex);
    for (char *p = out; *p; p++)
        lines += *p == '\n';
    for (int skip = lines - 3; skip > 0; line++)
        skip -= *line == '\n';
    int n = sscanf(line,
                   "speed %lf tok/s\nvalidation loss %lf (%lf before training, unigram "
                   "%lf)\nweights sha256 %64[0-9a-f]%n",
                   &speed, &after, &before, &unigram, hex, &used);
    if (n != 5 || strcmp(line + used, "\n") != 0)
        fail_msg("the last lines are not as promised:\n%s", line);
    assert_true(speed > 0 && after > 0 && after < before && unigram > 0);
    assert_string_equal(err, "");
}

/* ---- saving under trouble ---- */

static void a_full_disk_keeps_the_old_checkpoint(void **unused)
{
    static char was[1 << 17], now[1 << 17];
    char hex[65], got[65];
    (void)unused;
    hash_of(RUN(&(setting){0}, NULL), hex);
    assert_int_equal(RUN(&(setting){0}, "--save", saved, "--stop-at", "3"), 0);
    size_t n = read_file(saved, was, sizeof was);
    assert_in_range(n, 10000, sizeof was - 2);
    for (rlim_t limit = 2000; limit < n; limit += n / 5) {
        int status = RUN((&(setting){.file_size = limit, .out = "/dev/null"}), "--save", saved,
                         "--resume", saved);
        out[0] = '\0';
        fails(status, saved, "File too large", __LINE__);
        assert_int_equal(read_file(saved, now, sizeof now), n);
        assert_memory_equal(was, now, n);
    }
    assert_int_equal(temp_dir_count(&dir), 4); /* text, saved, .out, .err: no temporary is left */
    hash_of(RUN(&(setting){0}, "--resume", saved), got);
    assert_string_equal(got, hex);
}

/* Nor is the run lost with a file beside it: there are weights, their hash and a checkpoint. */
static void a_full_disk_for_rows_or_a_curve_keeps_the_weights(void **unused)
{
    char hex[65], got[65], why[1100];
    (void)unused;
    hash_of(RUN(&(setting){0}, "--steps", "2000"), hex);
    for (int i = 0; i < 3; i++) {
        const char *path = i < 2 ? "/dev/full" : other;
        unlink(saved);
        int status = RUN(&(setting){.file_size = i < 2 ? 0 : 70000}, "--steps", "2000", "--save",
                         saved, i == 1 ? "--svg" : "--csv", path);
        snprintf(why, sizeof why, "train_text: cannot write %s: %s\n", path,
                 i < 2 ? "No space left on device" : "File too large");
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 1 || strcmp(err, why) != 0)
            fail_msg("status %x: '%s', not '%s'", (unsigned)status, err, why);
        hash_of(0, got);
        assert_string_equal(got, hex);
        hash_of(RUN(&(setting){0}, "--steps", "2000", "--resume", saved), got);
        assert_string_equal(got, hex);
    }
}

/* The first n rows of `other` are those of steps 1 to n, and there is no more. */
static void assert_rows(int n)
{
    static char rows[1 << 17];
    int step, used = 0, columns;
    char *row = rows;
    assert_in_range(read_file(other, rows, sizeof rows), 1, sizeof rows - 2);
    assert_int_equal(strncmp(row, "step,loss,val,lr,grad_norm,tokens_per_s\n", 40), 0);
    for (int i = 1; i <= n; i++, row += used) {
        row = strchr(row, '\n') + 1;
        columns = sscanf(row, "%d,%*f,%*[^\n]%n", &step, &used);
        if (columns != 1 || step != i)
            fail_msg("row %d: %.80s", i, row);
    }
    assert_string_equal(row, "\n");
}

static void a_resumed_run_adds_its_rows(void **unused)
{
    static const char *const tail[] = {"", "4,9.9,9,9,9,9\n5,9", "4"};
    static char rows[4096];
    (void)unused;
    for (size_t i = 0; i < sizeof tail / sizeof *tail; i++) {
        unlink(other);
        assert_int_equal(RUN(&(setting){0}, "--stop-at", "3", "--csv", other, "--save", saved,
                             NULL),
                         0);
        size_t n = read_file(other, rows, sizeof rows - 32);
        strcpy(rows + n, tail[i]);
        write_file(other, rows, strlen(rows));
        assert_int_equal(RUN(&(setting){0}, "--csv", other, "--resume", saved, NULL), 0);
        assert_rows(6);
        read_file(other, rows, sizeof rows);
        assert_null(strstr(rows, "9.9"));
    }
    write_file(other, "step,loss\n1,2\n", 14); /* of another program */
    FAILS(other, "has other columns", "--csv", other, "--resume", saved);
    assert_int_equal(read_file(other, rows, sizeof rows), 14);
    unlink(other);
    assert_int_equal(RUN(&(setting){0}, "--resume", saved, "--stop-at", "3", "--svg", other), 0);
    assert_non_null(strstr(out, "there is no loss to draw"));
    assert_int_not_equal(access(other, F_OK), 0);
}

static void pause_us(long us) { nanosleep(&(struct timespec){0, us * 1000}, NULL); }

/* Killed at any moment of many saves, the checkpoint is whole, and the run can go on from it to the
 * same end. */
static void a_kill_keeps_a_checkpoint(void **unused)
{
    static const char *const many[] = {"--steps",      "1000", "--width", "32",
                                       "--save-every", "1",    NULL};
    char hex[65], got[65], *argv[ARGS];
    (void)unused;
    hash_of(RUN(&(setting){0}, "--steps", "1000", "--width", "32", "--sample", "0"), hex);
    for (int round = 0; round < 12; round++) {
        const char *more[16];
        int n = 0;
        for (; many[n] != NULL; n++)
            more[n] = many[n];
        more[n++] = "--save";
        more[n++] = saved;
        more[n++] = "--csv";
        more[n++] = other;
        if (round > 0) {
            more[n++] = "--resume";
            more[n++] = saved;
        }
        more[n] = NULL;
        arguments(argv, more);
        pid_t pid = start(&(setting){0}, argv);
        for (int wait = 0; access(saved, R_OK) != 0 && wait < 5000; wait++)
            pause_us(1000);
        pause_us(20000 + round * 1700);
        kill(pid, round % 3 == 2 ? SIGTERM : SIGKILL);
        int status = finish(pid);
        assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 130);
        tl_st_file *f;
        tl_err e = {.status = TL_OK};
        if (tl_st_open(&f, saved, &e) != TL_OK)
            fail_msg("round %d: %s", round, e.message);
        tl_st_close(f);
    }
    print_message("%d temporaries left by kills\n", temp_dir_count(&dir) - 5);
    hash_of(RUN(&(setting){0}, "--steps", "1000", "--width", "32", "--sample", "0", "--resume",
                saved, "--csv", other),
            got);
    assert_string_equal(got, hex);
    assert_rows(1000);
}

/* It has printed a line about a step. */
static bool is_training(void)
{
    char path[1024];
    read_file(temp_dir_file(path, &dir, ".out"), out, sizeof out);
    return strstr(out, "\nstep ") != NULL;
}

static void what_ends_it_saves_and_says_so(void **unused)
{
    char path[1024], hex[65], got[65], *argv[ARGS];
    (void)unused;
    hash_of(RUN(&(setting){0}, "--steps", "2000"), hex);
    static const int ends[] = {SIGINT, SIGINT, SIGTERM, SIGHUP};
    for (int k = 0; k < 4; k++) {
        const bool save = k > 0;
        arguments(argv, (const char *const[]){"--steps", "2000", "--csv", "/dev/full",
                                              save ? "--save" : NULL, saved, NULL});
        unlink(temp_dir_file(path, &dir, ".out"));
        pid_t pid = start(&(setting){0}, argv);
        for (int wait = 0; !is_training() && wait < 30000; wait++)
            pause_us(1000);
        kill(pid, ends[k]);
        if (ends[k] != SIGINT) { /* a terminal that closes sends two, and batch systems repeat */
            pause_us(200);
            kill(pid, ends[k]);
        }
        int status = finish(pid);
        assert_non_null(strstr(err, "cannot write /dev/full"));
        if (WIFEXITED(status) && WEXITSTATUS(status) == 1) /* it had ended before */
            continue;
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 130);
        assert_non_null(strstr(err, "interrupted"));
        assert_non_null(strstr(err, save ? saved : "nothing is saved: --save FILE does"));
    }
    hash_of(RUN(&(setting){0}, "--steps", "2000", "--resume", saved), got);
    assert_string_equal(got, hex);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
const struct CMUnitTest tl_tests_train_text[] = {
    TEST(bad_flags),
    TEST(one_file_for_two_flags),
    TEST(bad_texts),
    TEST(bad_checkpoints),
    TEST(places_that_cannot_be_written),
    TEST(one_hash_however_it_is_run),
    TEST(and_one_for_tied_weights),
    TEST(the_last_three_lines),
    TEST(a_full_disk_keeps_the_old_checkpoint),
    TEST(a_full_disk_for_rows_or_a_curve_keeps_the_weights),
    TEST(a_resumed_run_adds_its_rows),
    TEST(a_kill_keeps_a_checkpoint),
    TEST(what_ends_it_saves_and_says_so),
};
const size_t tl_tests_train_text_count = sizeof tl_tests_train_text / sizeof tl_tests_train_text[0];
