/* test_file.c: reads that say what is wrong, and writes that leave the old file
 * or the new one, never part of one. */
#define _GNU_SOURCE /* RTLD_NEXT */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "tensor/storage.h"
#include "tensor/files/file.h"
#include "tests/support/file_faults.h"
#include "tests/support/skip.h"
#include "tests/support/write_file.h"
#include "tests/temp_dir.h"

/* ---- what a write asks of the system: these stand before the C library's, in all of the
 * runner ---- */

static struct {
    bool on;
    int die_at;  /* the call before which the process is killed, counted from 1; 0: none */
    int meet_at; /* the call before which another process writes the target; 0: none */
    const char *target;
    int calls;
    char what[256];   /* a letter each, in order: */
    mode_t mode[256]; /* what the file that it is about may be used for at that time */
} seen;

static void another_writes(void)
{
    pid_t pid = fork();
    seen.on = false;
    if (pid == 0)
        _exit(write_file(seen.target, "other", 5, NULL) != TL_OK);
    waitpid(pid, NULL, 0);
    seen.on = true;
}

static void notice(char what, int fd)
{
    struct stat st = {0};
    if (!seen.on || seen.calls >= (int)sizeof seen.what - 1)
        return;
    if (fd >= 0)
        fstat(fd, &st);
    seen.what[seen.calls] = S_ISDIR(st.st_mode) ? 'd' : what;
    seen.mode[seen.calls++] = st.st_mode & 07777;
    if (seen.calls == seen.die_at)
        raise(SIGKILL);
    if (seen.calls == seen.meet_at)
        another_writes();
}

int flock(int fd, int operation)
{
    notice('l', fd);
    return ((int (*)(int, int))dlsym(RTLD_NEXT, "flock"))(fd, operation);
}

int fchown(int fd, uid_t user, gid_t group)
{
    notice('o', fd);
    return ((int (*)(int, uid_t, gid_t))dlsym(RTLD_NEXT, "fchown"))(fd, user, group);
}

int fchmod(int fd, mode_t mode)
{
    notice('m', fd);
    return ((int (*)(int, mode_t))dlsym(RTLD_NEXT, "fchmod"))(fd, mode);
}

static char fails; /* what: file_faults.h */
static int fails_after, fails_more;

void file_fail_after(char what, int n)
{
    fails = what == 'd' ? 'd' : 'r';
    fails_after = n;
    fails_more = what == 'R' ? INT_MAX : what == 'T' ? 2 : 0;
}

static bool failing(char what)
{
    if (what != fails || fails_after == 0 || --fails_after > 0)
        return false;
    if (fails_more > 0)
        fails_after = 1, fails_more--;
    errno = EIO;
    return true;
}

int fsync(int fd)
{
    struct stat st;
    notice('s', fd);
    if (fails_after > 0 && fstat(fd, &st) == 0 && S_ISDIR(st.st_mode) && failing('d'))
        return -1;
    return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd);
}

int rename(const char *from, const char *to)
{
    notice('r', -1);
    if (failing('r'))
        return -1;
    return ((int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename"))(from, to);
}

ssize_t write(int fd, const void *data, size_t n)
{
    notice('w', fd);
    return ((ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write"))(fd, data, n);
}

static void watch(int die_at)
{
    memset(&seen, 0, sizeof seen);
    seen.die_at = die_at;
    seen.on = true;
}

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
    return write_file(f->target, "old", 3, NULL) == TL_OK ? 0 : -1;
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
    if (access("/proc/self/mem", R_OK) == 0) {
        expect_no_read("/proc/self/mem", 100, TL_EIO, "cannot read its first byte: ");
        expect_no_read("/proc/version", 100, TL_EIO, "says that it has 0 bytes, but has more");
    }
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
        assert_int_equal(write_file(f->target, "x", 1, NULL), TL_OK);
        assert_int_equal(stat(f->target, &st), 0);
        assert_int_equal(st.st_mode & 07777, modes[i]);
    }
    mode_t before = umask(027);
    assert_int_equal(write_file(temp_dir_file(path, &f->dir, "fresh"), "x", 1, NULL), TL_OK);
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
    assert_int_equal(write_file(path, "through", 7, NULL), TL_OK);
    expect_content(f->target, "through");
    assert_int_equal(lstat(path, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(temp_dir_count(&f->dir), 2);
}

/* Where a link leads to nothing yet, the file is made there, as open would. */
static void links_to_nothing_and_in_circles(void **state)
{
    fixture *f = *state;
    struct stat st;
    tl_err err = {0};
    char path[1024], file[1024];
    assert_int_equal(mkdir(temp_dir_file(path, &f->dir, "sub"), 0700), 0);
    assert_int_equal(symlink("sub/second", temp_dir_file(path, &f->dir, "first")), 0);
    assert_int_equal(symlink("../fresh", temp_dir_file(path, &f->dir, "sub/second")), 0);
    assert_int_equal(write_file(temp_dir_file(path, &f->dir, "first"), "x", 1, NULL), TL_OK);
    expect_content(temp_dir_file(file, &f->dir, "fresh"), "x");
    assert_true(lstat(path, &st) == 0 && S_ISLNK(st.st_mode));
    assert_true(lstat(file, &st) == 0 && S_ISREG(st.st_mode));
    assert_int_equal(symlink("round", temp_dir_file(path, &f->dir, "round")), 0);
    assert_int_equal(write_file(path, "x", 1, &err), TL_EIO);
    assert_non_null(strstr(err.message, "Too many levels of symbolic links"));
    assert_true(lstat(path, &st) == 0 && S_ISLNK(st.st_mode));
    assert_int_equal(symlink("none/file", temp_dir_file(path, &f->dir, "astray")), 0);
    assert_int_equal(write_file(path, "x", 1, NULL), TL_EIO);
    assert_true(lstat(path, &st) == 0 && S_ISLNK(st.st_mode));
    unlink(temp_dir_file(path, &f->dir, "sub/second"));
}

/* At every call, from the first on a temporary that exists, nobody may do with it what he may not
 * do with the target. */
static void nobody_else_reads_the_temporary(void **state)
{
    fixture *f = *state;
    mode_t before = umask(0), modes[] = {0600, 0400, 0640, 0644, 0666, 0};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        assert_int_equal(chmod(f->target, modes[i]), 0);
        watch(0);
        assert_int_equal(write_file(f->target, "secret", 6, NULL), TL_OK);
        seen.on = false;
        for (int k = 0; k < seen.calls; k++)
            if (strchr("lomws", seen.what[k]) != NULL && (seen.mode[k] & 077 & ~modes[i]) != 0)
                fail_msg("target %o: temporary %o at call %d of %s", (unsigned)modes[i],
                         (unsigned)seen.mode[k], k, seen.what);
        assert_non_null(strchr(seen.what, 'w'));
    }
    umask(before);
}

/* The same from outside: another thread looks at all that appears in the folder. */
typedef struct {
    const temp_dir *dir;
    _Atomic bool stop;
    int looks, open;
} observer;

static void *observe(void *ctx)
{
    observer *o = ctx;
    while (!o->stop) {
        DIR *dir = opendir(o->dir->path);
        struct stat st;
        for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;)
            if (strncmp(e->d_name, ".target.", 8) == 0 &&
                fstatat(dirfd(dir), e->d_name, &st, 0) == 0) {
                o->looks++;
                o->open += (st.st_mode & 077) != 0;
            }
        if (dir != NULL)
            closedir(dir);
    }
    return NULL;
}

static void an_observer_never_may_read(void **state)
{
    fixture *f = *state;
    observer o = {.dir = &f->dir};
    pthread_t thread;
    mode_t before = umask(0);
    assert_int_equal(chmod(f->target, 0600), 0);
    assert_int_equal(pthread_create(&thread, NULL, observe, &o), 0);
    for (int i = 0; i < 60 || (o.looks < 50 && i < 20000); i++)
        assert_int_equal(write_file(f->target, "secret", 6, NULL), TL_OK);
    o.stop = true;
    assert_int_equal(pthread_join(thread, NULL), 0);
    umask(before);
    assert_true(o.looks > 0);
    assert_int_equal(o.open, 0);
}

static void flushed_before_it_is_renamed_and_its_folder_after(void **state)
{
    fixture *f = *state;
    watch(0);
    assert_int_equal(write_file(f->target, "new", 3, NULL), TL_OK);
    seen.on = false;
    const char *end = strchr(seen.what, 'w');
    assert_non_null(end);
    assert_string_equal(end, "wsrd");
}

/* A container's first process has the same number in each run, and each may have been killed. */
static void names_do_not_run_out(void **state)
{
    fixture *f = *state;
    char path[1024], name[64];
    for (int k = 0; k < 1000; k++) {
        snprintf(name, sizeof name, ".target.%ld-%d.tmp", (long)getpid(), k);
        FILE *left = fopen(temp_dir_file(path, &f->dir, name), "w");
        assert_non_null(left);
        fclose(left);
    }
    assert_int_equal(write_file(f->target, "new", 3, NULL), TL_OK);
    expect_content(f->target, "new");
    assert_int_equal(temp_dir_count(&f->dir), 1001);
}

static void expect_no_write(const char *path, const char *reason)
{
    tl_err err = {0};
    assert_int_equal(write_file(path, "x", 1, &err), TL_EIO);
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
    char name[257];
    memset(name, 'n', 256);
    name[256] = '\0';
    expect_no_write(temp_dir_file(path, &f->dir, name), "File name too long");
    if (geteuid() != 0) {
        assert_int_equal(chmod(f->dir.path, 0500), 0);
        expect_no_write(f->target, "Permission denied");
        assert_int_equal(chmod(f->dir.path, 0700), 0);
    }
    expect_content(f->target, "old");
    assert_int_equal(temp_dir_count(&f->dir), 1);
}

/* Another's file in a folder of many users can be seen, but not renamed over. */
static void what_could_not_be_replaced_is_refused_at_once(void **state)
{
    fixture *f = *state;
    if (geteuid() != 0)
        skip();
    assert_int_equal(chmod(f->dir.path, 01777), 0);
    const pid_t child = fork();
    if (child == 0) {
        tl_err err = {.status = TL_OK};
        const bool said = setuid(65534) == 0 && tl_file_writable(f->target, &err) == TL_EIO &&
                          strstr(err.message, "cannot be replaced: Operation not perm") != NULL;
        _exit(said ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(temp_dir_count(&f->dir), 1);
}

static void what_cannot_be_renamed_is_kept(void **state)
{
    fixture *f = *state;
    char path[1024];
    for (int time = 0; time < 2; time++) {
        tl_err err = {.status = TL_OK};
        file_fail_after('r', 1);
        assert_int_equal(write_file(f->target, time ? "newer" : "new", time ? 5 : 3, &err), TL_EIO);
        assert_non_null(strstr(err.message, "left as it was, and the new one is "));
        assert_non_null(strstr(err.message, "/.target.tally-kept"));
        expect_content(f->target, "old");
        expect_content(temp_dir_file(path, &f->dir, ".target.tally-kept"), time ? "newer" : "new");
        assert_int_equal(temp_dir_count(&f->dir), 2);
    }
}

static void long_names_and_names_without_directory(void **state)
{
    fixture *f = *state;
    char name[256], path[1024], here[1024];
    memset(name, 'n', 255);
    name[255] = '\0';
    assert_int_equal(write_file(temp_dir_file(path, &f->dir, name), "long", 4, NULL), TL_OK);
    expect_content(path, "long");
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(chdir(f->dir.path), 0);
    assert_int_equal(write_file("target", "plain", 5, NULL), TL_OK);
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
    signal(SIGXFSZ, SIG_DFL); /* which would end this process */
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

/* Exit status 9: it died; each call before the end is a place to die. */
static int dying;
static void die_somewhere(fixture *f)
{
    static char data[3 * 16384];
    memset(data, 'n', sizeof data);
    tl_writer *w;
    watch(dying);
    if (tl_writer_begin(&w, f->target, NULL) != TL_OK)
        _exit(1);
    for (int i = 0; i < 3; i++)
        tl_writer_append(w, data, 16384, NULL);
    _exit(tl_writer_commit(w, NULL) == TL_OK ? 0 : 2);
}

static void a_kill_anywhere_leaves_a_whole_file(void **state)
{
    fixture *f = *state;
    int end = -1, old = 0, left = 0;
    for (dying = 1; end != 0 && dying < 100; dying++) {
        char *data;
        size_t n;
        assert_int_equal(write_file(f->target, "old", 3, NULL), TL_OK);
        assert_int_equal(temp_dir_count(&f->dir), 1); /* what the last one left is gone */
        end = in_child(die_somewhere, f);
        assert_true(end == 128 + SIGKILL || end == 0);
        assert_int_equal(tl_file_read(f->target, 1 << 20, &data, &n, NULL), TL_OK);
        assert_true(n == 3 || n == 3 * 16384);
        assert_int_equal(strspn(data, n == 3 ? "old" : "n"), n);
        tl_free_raw(data);
        old += n == 3;
        left += temp_dir_count(&f->dir) > 1;
    }
    assert_int_equal(end, 0);
    assert_in_range(old, 5, dying);
    assert_in_range(left, 5, dying);
}

static int pipes[2][2]; /* to the child, from it */
static void write_slowly(fixture *f)
{
    tl_writer *w;
    char byte = 0;
    if (tl_writer_begin(&w, f->target, NULL) != TL_OK || write(pipes[1][1], "b", 1) != 1 ||
        read(pipes[0][0], &byte, 1) != 1 || tl_writer_append(w, "slow", 4, NULL) != TL_OK)
        _exit(1);
    _exit(tl_writer_commit(w, NULL) == TL_OK ? 0 : 2);
}

/* Another process is writing: what it has begun is no leftover. */
static void a_writer_at_work_is_left_alone(void **state)
{
    fixture *f = *state;
    char byte;
    int status;
    assert_true(pipe(pipes[0]) == 0 && pipe(pipes[1]) == 0);
    pid_t pid = fork();
    if (pid == 0)
        write_slowly(f);
    assert_int_equal(read(pipes[1][0], &byte, 1), 1);
    for (int i = 0; i < 20; i++)
        assert_int_equal(write_file(f->target, "quick", 5, NULL), TL_OK);
    assert_int_equal(temp_dir_count(&f->dir), 2);
    assert_int_equal(write(pipes[0][1], "g", 1), 1);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    expect_content(f->target, "slow");
    assert_int_equal(temp_dir_count(&f->dir), 1);
    for (int i = 0; i < 4; i++)
        close(pipes[i / 2][i % 2]);
}

/* Another process writes the same file, and clears up, at each point of this one's writing. */
static void writers_that_meet_anywhere(void **state)
{
    fixture *f = *state;
    int calls = 1;
    for (int at = 1; at <= calls; at++) {
        watch(0);
        seen.target = f->target;
        seen.meet_at = at;
        tl_err err = {0};
        if (write_file(f->target, "mine", 4, &err) != TL_OK)
            fail_msg("call %d of %s: %s", at, seen.what, err.message);
        seen.on = false;
        calls = at == 1 ? (int)strlen(seen.what) : calls;
        assert_int_equal(temp_dir_count(&f->dir), 1);
        expect_content(f->target, seen.what[at - 1] == 'd' ? "other" : "mine");
    }
    assert_true(calls >= 5);
}

/* Processes that write one file together: no save ever fails. */
static void write_often(fixture *f)
{
    for (int i = 0; i < 60; i++)
        if (write_file(f->target, "both", 4, NULL) != TL_OK)
            _exit(1);
    _exit(0);
}

static void writers_do_not_clean_each_other_away(void **state)
{
    fixture *f = *state;
    pid_t pid[4];
    int status, bad = 0;
    for (int i = 0; i < 4; i++)
        if ((pid[i] = fork()) == 0)
            write_often(f);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
        bad += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    assert_int_equal(bad, 0);
    expect_content(f->target, "both");
    assert_int_equal(temp_dir_count(&f->dir), 1);
}

/* Only what a writer of this file can have left is removed, and nothing is waited for. */
static void what_only_looks_like_a_leftover_stays(void **state)
{
    fixture *f = *state;
    static const char *const stays[] = {".target.tally-0123456789abcde.tmp",
                                        ".target.tally-0123456789abcdef.tmp.gz",
                                        ".target.tally-0123456789abcdeF.tmp",
                                        ".other.tally-0123456789abcdef.tmp",
                                        ".target2.tally-0123456789abcdef.tmp",
                                        "target.tally-0123456789abcdef.tmp"};
    char path[1024];
    int n = 1;
    for (size_t i = 0; i < sizeof stays / sizeof *stays; i++, n++)
        fclose(fopen(temp_dir_file(path, &f->dir, stays[i]), "w"));
    temp_dir_file(path, &f->dir, ".target.tally-000000000000000a.tmp");
    n += mkfifo(path, 0600) == 0;
    temp_dir_file(path, &f->dir, ".target.tally-000000000000000b.tmp");
    n += symlink("target", path) == 0;
    temp_dir_file(path, &f->dir, ".target.tally-000000000000000c.tmp");
    n += mkdir(path, 0700) == 0;
    temp_dir_file(path, &f->dir, ".target.tally-0123456789abcdef.tmp");
    fclose(fopen(path, "w"));
    assert_int_equal(temp_dir_count(&f->dir), n + 1);
    assert_int_equal(write_file(f->target, "new", 3, NULL), TL_OK);
    assert_int_equal(temp_dir_count(&f->dir), n);
    assert_int_equal(access(path, F_OK), -1);
}

static void whether_it_can_be_written_is_said_before(void **state)
{
    fixture *f = *state;
    char path[1024];
    tl_err err = {0};
    assert_int_equal(tl_file_writable(f->target, &err), TL_OK);
    assert_int_equal(tl_file_writable(temp_dir_file(path, &f->dir, "fresh"), &err), TL_OK);
    assert_int_equal(tl_file_writable(f->dir.path, &err), TL_EIO);
    assert_non_null(strstr(err.message, "is a directory"));
    err.status = TL_OK;
    assert_int_equal(tl_file_writable(temp_dir_file(path, &f->dir, "none/file"), &err), TL_EIO);
    assert_non_null(strstr(err.message, "No such file"));
    expect_content(f->target, "old");
    assert_int_equal(temp_dir_count(&f->dir), 1);
}

/* A target of another's: the owner is kept if the system allows; a group that cannot be kept may do
 * no more than others may. */
static void write_as_another(fixture *f)
{
    if (setegid(12345) != 0 || seteuid(12345) != 0)
        _exit(1);
    _exit(write_file(f->target, "his", 3, NULL) == TL_OK ? 0 : 2);
}

static void owners_are_kept_or_groups_shut_out(void **state)
{
    fixture *f = *state;
    struct stat st;
    if (geteuid() != 0)
        TL_SKIP();
    assert_true(chown(f->target, 4321, 4321) == 0 && chmod(f->target, 0640) == 0);
    watch(0);
    assert_int_equal(write_file(f->target, "mine", 4, NULL), TL_OK);
    seen.on = false;
    assert_true(stat(f->target, &st) == 0 && st.st_uid == 4321 && st.st_gid == 4321);
    assert_int_equal(st.st_mode & 07777, 0640);
    assert_non_null(strchr(seen.what, 'o'));
    assert_int_equal(seen.mode[strchr(seen.what, 'o') - seen.what] & 077, 0);
    assert_int_equal(chown(f->dir.path, 12345, 12345), 0);
    assert_int_equal(in_child(write_as_another, f), 0);
    assert_true(stat(f->target, &st) == 0 && st.st_uid == 12345 && st.st_gid == 12345);
    assert_int_equal(st.st_mode & 07777, 0600);
}

static void a_kill_leaves_the_old_file(void **state)
{
    fixture *f = *state;
    assert_int_equal(in_child(die_before_commit, f), 128 + SIGKILL);
    expect_content(f->target, "old");
    assert_int_equal(write_file(f->target, "later", 5, NULL),
                     TL_OK); /* the orphan is not in the way */
    expect_content(f->target, "later");
    assert_int_equal(temp_dir_count(&f->dir), 1); /* nor there any more */
}

static void no_memory_leaves_the_old_file(void **state)
{
    fixture *f = *state;
    for (int n = 1; n <= 4; n++) {
        tl_err err = {0};
        tl_alloc_fail_after(n);
        tl_status s = write_file(f->target, "new", 3, &err);
        tl_alloc_fail_after(0);
        assert_int_equal(s, n <= 3 ? TL_ENOMEM : TL_OK);
        assert_int_equal(err.status, s);
        expect_content(f->target, n <= 3 ? "old" : "new");
        assert_int_equal(temp_dir_count(&f->dir), 1);
    }
}

/* A program without standard input gets descriptor 0 for its first file. */
static void files_may_have_descriptor_0(void **state)
{
    fixture *f = *state;
    char *data = NULL;
    size_t n = 0;
    tl_writer *w;
    const int in = dup(0); /* -1: this program has none */
    close(0);
    const tl_status read = tl_file_read(f->target, 100, &data, &n, NULL);
    tl_status written = tl_writer_begin(&w, f->target, NULL);
    written = written != TL_OK ? written : tl_writer_append(w, "new", 3, NULL);
    written = written != TL_OK ? written : tl_writer_commit(w, NULL);
    const bool closed = fcntl(0, F_GETFD) < 0;
    if (in >= 0) {
        dup2(in, 0);
        close(in);
    }
    assert_int_equal(read, TL_OK);
    assert_true(n == 3 && memcmp(data, "old", 3) == 0);
    tl_free_raw(data);
    assert_int_equal(written, TL_OK);
    assert_true(closed);
    expect_content(f->target, "new");
    assert_int_equal(temp_dir_count(&f->dir), 1);
}

/* A program without stdin, stdout and stderr, which prints all the same: into no file. */
static void write_while_it_prints(fixture *f)
{
    tl_writer *w;
    char *data = NULL;
    size_t n = 0;
    close(0), close(1), close(2);
    if (tl_writer_begin(&w, f->target, NULL) != TL_OK)
        _exit(1);
    for (int i = 0; i < 3; i++)
        if (write(i, "printed", 7) >= 0)
            _exit(2);
    if (tl_writer_append(w, "new", 3, NULL) != TL_OK || tl_writer_commit(w, NULL) != TL_OK)
        _exit(3);
    if (tl_file_read(f->target, 100, &data, &n, NULL) != TL_OK || n != 3)
        _exit(4);
    for (int i = 0; i < 3; i++)
        if (fcntl(i, F_GETFD) >= 0)
            _exit(5);
    _exit(0);
}

static void what_is_printed_goes_into_no_file(void **state)
{
    fixture *f = *state;
    assert_int_equal(in_child(write_while_it_prints, f), 0);
    expect_content(f->target, "new");
}

/* What is read from memory ends where that does. */
static void memory_ends_as_a_file_does(void **unused)
{
    char b[8];
    tl_err err = {.status = TL_OK};
    tl_reader r = tl_reader_of_memory("abcd", 4, NULL);
    (void)unused;
    assert_int_equal(tl_reader_read(&r, b, 3, &err), TL_OK);
    assert_memory_equal(b, "abc", 3);
    assert_int_equal(tl_reader_read(&r, b, 2, &err), TL_EIO);
    assert_non_null(strstr(err.message, "memory: ends at byte 4, 1 bytes early"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
const struct CMUnitTest tl_tests_file[] = {
    cmocka_unit_test(memory_ends_as_a_file_does),
    TEST(reads_say_what_is_wrong),
    TEST(a_file_that_shrinks_is_said),
    TEST(a_write_replaces_at_commit),
    TEST(an_abort_leaves_nothing),
    TEST(two_writers_do_not_meet),
    TEST(permissions_are_kept),
    TEST(links_are_followed),
    TEST(links_to_nothing_and_in_circles),
    TEST(nobody_else_reads_the_temporary),
    TEST(an_observer_never_may_read),
    TEST(flushed_before_it_is_renamed_and_its_folder_after),
    TEST(what_could_not_be_replaced_is_refused_at_once),
    TEST(what_cannot_be_renamed_is_kept),
    TEST(names_do_not_run_out),
    TEST(files_may_have_descriptor_0),
    TEST(what_is_printed_goes_into_no_file),
    TEST(a_kill_anywhere_leaves_a_whole_file),
    TEST(a_writer_at_work_is_left_alone),
    TEST(writers_that_meet_anywhere),
    TEST(writers_do_not_clean_each_other_away),
    TEST(what_only_looks_like_a_leftover_stays),
    TEST(whether_it_can_be_written_is_said_before),
    TEST(owners_are_kept_or_groups_shut_out),
    TEST(writes_say_what_is_wrong),
    TEST(long_names_and_names_without_directory),
    TEST(a_full_disk_leaves_the_old_file),
    TEST(a_kill_leaves_the_old_file),
    TEST(no_memory_leaves_the_old_file),
};
const size_t tl_tests_file_count = sizeof tl_tests_file / sizeof *tl_tests_file;
