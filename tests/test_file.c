/* test_file.c: reads that say what is wrong, and writes that leave the old file
 * or the new one, never part of one. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "tensor/arena.h"
#include "tensor/files/file.h"
#include "tests/temp_dir.h"

typedef struct {
    temp_dir dir;
    char target[1024]; /* holds "old" at the start of every test */
} fixture;

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    if (f == NULL || !temp_dir_make(&f->dir))
        return -1;
    temp_dir_file(f->target, &f->dir, "target");
    *state = f;
    return tl_file_write(f->target, "old", 3, NULL) == TL_OK ? 0 : -1;
}

static int teardown(void **state)
{
    fixture *f = *state;
    temp_dir_remove(&f->dir);
    free(f);
    return 0;
}

static void expect_content(const char *path, const char *want)
{
    char *data;
    size_t n;
    assert_int_equal(tl_file_read(path, 1 << 20, &data, &n, NULL), TL_OK);
    assert_int_equal(n, strlen(want));
    assert_string_equal(data, want);
    tl_free_raw(data);
}

static void expect_no_read(const char *path, size_t limit, tl_status status, const char *reason)
{
    tl_err err = {0};
    char *data = (char *)1;
    size_t n = 1;
    assert_int_equal(tl_file_read(path, limit, &data, &n, &err), status);
    assert_null(data);
    assert_int_equal(n, 0);
    assert_non_null(strstr(err.message, path));
    assert_non_null(strstr(err.message, reason));
}

static void reads_say_what_is_wrong(void **state)
{
    fixture *f = *state;
    char path[1024];
    expect_content(f->target, "old");
    expect_no_read(f->target, 2, TL_EIO, "has 3 bytes; at most 2");
    expect_no_read(f->dir.path, 100, TL_EIO, "directory");
    expect_no_read(temp_dir_file(path, &f->dir, "missing"), 100, TL_EIO, "No such file");
    temp_dir_file(path, &f->dir, "pipe");
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_no_read(path, 100, TL_EIO, "pipe or device");
    expect_no_read("/dev/zero", 100, TL_EIO, "pipe or device");
    if (geteuid() != 0) {
        assert_int_equal(chmod(f->target, 0), 0);
        expect_no_read(f->target, 100, TL_EIO, "Permission denied");
    }
    tl_alloc_fail_after(1);
    expect_no_read(f->target, 100, geteuid() != 0 ? TL_EIO : TL_ENOMEM, f->target);
    tl_alloc_fail_after(0);
}

static void a_file_that_shrinks_is_said(void **state)
{
    fixture *f = *state;
    tl_reader r;
    tl_err err = {0};
    char buf[8];
    assert_int_equal(tl_reader_open(&r, f->target, &err), TL_OK);
    assert_int_equal(r.size, 3);
    assert_int_equal(tl_reader_read(&r, buf, 2, &err), TL_OK);
    assert_memory_equal(buf, "ol", 2);
    assert_int_equal(tl_reader_read(&r, buf, 5, &err), TL_EIO);
    assert_non_null(strstr(err.message, "ends at byte 3, 4 bytes early"));
    tl_reader_close(&r);
}

static void a_write_replaces_at_commit(void **state)
{
    fixture *f = *state;
    tl_writer *w;
    assert_int_equal(tl_writer_begin(&w, f->target, NULL), TL_OK);
    assert_int_equal(tl_writer_append(w, "new ", 4, NULL), TL_OK);
    assert_int_equal(tl_writer_append(w, NULL, 0, NULL), TL_OK);
    assert_int_equal(tl_writer_append(w, "text", 4, NULL), TL_OK);
    expect_content(f->target, "old");
    assert_int_equal(temp_dir_count(&f->dir), 2);
    assert_int_equal(tl_writer_commit(w, NULL), TL_OK);
    expect_content(f->target, "new text");
    assert_int_equal(temp_dir_count(&f->dir), 1);
}

static void an_abort_leaves_nothing(void **state)
{
    fixture *f = *state;
    tl_writer *w;
    assert_int_equal(tl_writer_begin(&w, f->target, NULL), TL_OK);
    assert_int_equal(tl_writer_append(w, "new", 3, NULL), TL_OK);
    tl_writer_abort(w);
    tl_writer_abort(NULL);
    expect_content(f->target, "old");
    assert_int_equal(temp_dir_count(&f->dir), 1);
}

static void two_writers_do_not_meet(void **state)
{
    fixture *f = *state;
    tl_writer *a, *b;
    assert_int_equal(tl_writer_begin(&a, f->target, NULL), TL_OK);
    assert_int_equal(tl_writer_begin(&b, f->target, NULL), TL_OK);
    assert_int_equal(tl_writer_append(a, "first", 5, NULL), TL_OK);
    assert_int_equal(tl_writer_append(b, "second", 6, NULL), TL_OK);
    assert_int_equal(tl_writer_commit(b, NULL), TL_OK);
    expect_content(f->target, "second");
    assert_int_equal(tl_writer_commit(a, NULL), TL_OK);
    expect_content(f->target, "first");
    assert_int_equal(temp_dir_count(&f->dir), 1);
}

static void permissions_are_kept(void **state)
{
    fixture *f = *state;
    struct stat st;
    char path[1024];
    mode_t modes[] = {0640, 0600, 0444, 0755};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        assert_int_equal(chmod(f->target, modes[i]), 0);
        assert_int_equal(tl_file_write(f->target, "x", 1, NULL), TL_OK);
        assert_int_equal(stat(f->target, &st), 0);
        assert_int_equal(st.st_mode & 07777, modes[i]);
    }
    mode_t before = umask(027);
    assert_int_equal(tl_file_write(temp_dir_file(path, &f->dir, "fresh"), "x", 1, NULL), TL_OK);
    umask(before);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0640);
}

static void links_are_followed(void **state)
{
    fixture *f = *state;
    struct stat st;
    char path[1024];
    temp_dir_file(path, &f->dir, "link");
    assert_int_equal(symlink("target", path), 0);
    assert_int_equal(tl_file_write(path, "through", 7, NULL), TL_OK);
    expect_content(f->target, "through");
    assert_int_equal(lstat(path, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(temp_dir_count(&f->dir), 2);
}

static void expect_no_write(const char *path, const char *reason)
{
    tl_err err = {0};
    assert_int_equal(tl_file_write(path, "x", 1, &err), TL_EIO);
    assert_int_equal(err.status, TL_EIO);
    assert_non_null(strstr(err.message, reason));
}

static void writes_say_what_is_wrong(void **state)
{
    fixture *f = *state;
    char path[1024];
    expect_no_write(f->dir.path, "directory");
    expect_no_write("/dev/null", "pipe or device");
    expect_no_write("", "names no file");
    expect_no_write(temp_dir_file(path, &f->dir, "none/"), "names no file");
    expect_no_write(temp_dir_file(path, &f->dir, "none/file"), "No such file");
    if (geteuid() != 0) {
        assert_int_equal(chmod(f->dir.path, 0500), 0);
        expect_no_write(f->target, "Permission denied");
        assert_int_equal(chmod(f->dir.path, 0700), 0);
    }
    expect_content(f->target, "old");
    assert_int_equal(temp_dir_count(&f->dir), 1);
}

static void long_names_and_names_without_directory(void **state)
{
    fixture *f = *state;
    char name[256], path[1024], here[1024];
    memset(name, 'n', 255);
    name[255] = '\0';
    assert_int_equal(tl_file_write(temp_dir_file(path, &f->dir, name), "long", 4, NULL), TL_OK);
    expect_content(path, "long");
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(chdir(f->dir.path), 0);
    assert_int_equal(tl_file_write("target", "plain", 5, NULL), TL_OK);
    assert_int_equal(chdir(here), 0);
    expect_content(f->target, "plain");
    assert_int_equal(temp_dir_count(&f->dir), 2);
}

/* Runs body in a child; returns its exit status, or 128 + the signal that ended it. */
static int in_child(void (*body)(fixture *), fixture *f)
{
    pid_t pid = fork();
    int status;
    if (pid == 0) {
        body(f);
        _exit(99);
    }
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Exit status 0: both calls failed and said so. */
static void write_too_much(fixture *f)
{
    static char data[5000];
    tl_writer *w;
    tl_err err = {0}, last = {0};
    struct rlimit limit = {4096, 4096};
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0 || tl_writer_begin(&w, f->target, NULL) != TL_OK)
        _exit(1);
    if (tl_writer_append(w, data, 3000, &err) != TL_OK)
        _exit(2);
    if (tl_writer_append(w, data, 5000, &err) != TL_EIO ||
        strstr(err.message, "after the first 4096") == NULL)
        _exit(3);
    if (temp_dir_count(&f->dir) != 1 || tl_writer_append(w, data, 1, NULL) != TL_EIO)
        _exit(4);
    if (tl_writer_commit(w, &last) != TL_EIO || strcmp(err.message, last.message) != 0)
        _exit(5);
    _exit(0);
}

static void a_full_disk_leaves_the_old_file(void **state)
{
    fixture *f = *state;
    assert_int_equal(in_child(write_too_much, f), 0);
    expect_content(f->target, "old");
    assert_int_equal(temp_dir_count(&f->dir), 1);
}

static void die_before_commit(fixture *f)
{
    tl_writer *w;
    if (tl_writer_begin(&w, f->target, NULL) == TL_OK &&
        tl_writer_append(w, "new", 3, NULL) == TL_OK)
        raise(SIGKILL);
}

static void a_kill_leaves_the_old_file(void **state)
{
    fixture *f = *state;
    assert_int_equal(in_child(die_before_commit, f), 128 + SIGKILL);
    expect_content(f->target, "old");
    assert_int_equal(tl_file_write(f->target, "later", 5, NULL),
                     TL_OK); /* the orphan is not in the way */
    expect_content(f->target, "later");
}

static void no_memory_leaves_the_old_file(void **state)
{
    fixture *f = *state;
    for (int n = 1; n <= 4; n++) {
        tl_err err = {0};
        tl_alloc_fail_after(n);
        tl_status s = tl_file_write(f->target, "new", 3, &err);
        tl_alloc_fail_after(0);
        assert_int_equal(s, n <= 3 ? TL_ENOMEM : TL_OK);
        assert_int_equal(err.status, s);
        expect_content(f->target, n <= 3 ? "old" : "new");
        assert_int_equal(temp_dir_count(&f->dir), 1);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
const struct CMUnitTest tl_tests_file[] = {
    TEST(reads_say_what_is_wrong),
    TEST(a_file_that_shrinks_is_said),
    TEST(a_write_replaces_at_commit),
    TEST(an_abort_leaves_nothing),
    TEST(two_writers_do_not_meet),
    TEST(permissions_are_kept),
    TEST(links_are_followed),
    TEST(writes_say_what_is_wrong),
    TEST(long_names_and_names_without_directory),
    TEST(a_full_disk_leaves_the_old_file),
    TEST(a_kill_leaves_the_old_file),
    TEST(no_memory_leaves_the_old_file),
};
const size_t tl_tests_file_count = sizeof tl_tests_file / sizeof *tl_tests_file;
