/* file.c: writes whole files: a file is replaced wholly or not at all.
 *
 * A temporary is locked for as long as its writer lives, and the system drops the lock of a process
 * that was killed. So a temporary that can be locked belongs to nobody, and the next writer of the
 * same file removes it. It may also catch a new temporary that is not locked yet: the new one is
 * then lost, and its writer makes another. Nothing is removed on a file system without locks. */
#define _GNU_SOURCE /* statx */
#include "tensor/files/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tensor/memory.h"

#define TEMP ".%.180s.tally-"
#define KEPT TEMP "kept"

enum { TEMP_TRIES = 100, TEMP_EXTRA = 40, LINKS_MAX = 40, LINK_TEXT = 4096 };

tl_status tl_file_errno(const char *path, const char *what, tl_err *err)
{
    int e = errno;
    return tl_fail(err, e == ENOMEM ? TL_ENOMEM : TL_EIO, TL_PATH ": %s: %s", path, what,
                   strerror(e));
}

const char *tl_file_other_kind(mode_t mode)
{
    return S_ISDIR(mode) ? "a directory" : "a pipe or device";
}

struct tl_writer {
    char *path;     /* the target, symbolic links resolved */
    char *temp;     /* in the same directory */
    int fd;         /* of the temporary; -1: there is none, or it is the target now */
    uint64_t bytes; /* appended so far */
    tl_err failure; /* the first; the temporary is gone by then */
};

/* Removes and closes the temporary; the target was never touched. */
static void discard(tl_writer *w)
{
    if (w->fd < 0)
        return;
    unlink(w->temp);
    close(w->fd);
    w->fd = -1;
}

static void writer_free(tl_writer *w)
{
    tl_free_raw(w->path);
    tl_free_raw(w->temp);
    tl_free_raw(w);
}

/* Length of the directory part, with its slash; 0 for none. */
static size_t dir_length(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? (size_t)(slash - path) + 1 : 0;
}

/* Room for the name of the temporary, or for that of the directory. */
static size_t temp_room(const tl_writer *w) { return strlen(w->path) + TEMP_EXTRA; }

/* Writes the name of the directory over that of the temporary. */
static const char *directory(tl_writer *w)
{
    size_t n = dir_length(w->path);
    snprintf(w->temp, temp_room(w), "%.*s", n > 0 ? (int)n : 2, n > 0 ? w->path : "./");
    return w->temp;
}

/* The file that a path means: where its symbolic links lead, whether anything is there or not. NULL
 * with errno. */
static char *resolve(const char *path)
{
    char text[LINK_TEXT], *p = tl_strdup(path);
    int why = ENOMEM;
    for (int links = 0; p != NULL; links++) {
        ssize_t n = readlink(p, text, sizeof text);
        if (n < 0)
            return p; /* no link; any other fault shows when it is opened */
        why = links == LINKS_MAX ? ELOOP : n == LINK_TEXT ? ENAMETOOLONG : ENOMEM;
        size_t dir = *text == '/' ? 0 : dir_length(p);
        char *next = why == ENOMEM ? tl_calloc(dir + (size_t)n + 1, 1) : NULL;
        if (next != NULL) {
            memcpy(next, p, dir);
            memcpy(next + dir, text, (size_t)n);
        }
        tl_free_raw(p);
        p = next;
    }
    errno = why;
    return NULL;
}

/* For names that nobody can foresee, so that no leftover and no other process is in the way. */
static uint64_t random_bits(void)
{
    uint64_t x;
    struct timespec now;
    if (getentropy(&x, sizeof x) == 0)
        return x;
    clock_gettime(CLOCK_REALTIME, &now);
    return ((uint64_t)now.tv_nsec << 32 ^ (uint64_t)getpid()) * 0x9e3779b97f4a7c15u;
}

int tl_file_open(const char *path, int flags, mode_t mode)
{
    int held[STDERR_FILENO + 1], n = 0, fd = -1;
    /* Those of stdin, stdout and stderr that are closed are opened first, for reading: what is
     * printed meanwhile goes nowhere. */
    for (int i = 0; i <= STDERR_FILENO; i++)
        if (fcntl(i, F_GETFD) < 0 && (held[n] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
            n++;
    fd = open(path, flags | O_CLOEXEC, mode);
    int e = errno;
    if (fd >= 0 &&
        fd <= STDERR_FILENO) { /* no /dev/null, or another thread has closed one just now */
        const int low = fd;
        fd = fcntl(low, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
        e = errno;
        close(low);
    }
    while (n > 0)
        close(held[--n]);
    errno = e;
    return fd;
}

/* Creates a new file beside the target and locks it. -1 with errno. */
static int temp_open(tl_writer *w, mode_t mode)
{
    size_t dir = dir_length(w->path);
    struct stat st;
    for (int k = 0; k < TEMP_TRIES; k++) {
        snprintf(w->temp, temp_room(w), "%.*s" TEMP "%016" PRIx64 ".tmp", (int)dir, w->path,
                 w->path + dir, random_bits());
        int fd = tl_file_open(w->temp, O_WRONLY | O_CREAT | O_EXCL, mode);
        if (fd < 0 && errno != EEXIST && errno != EINTR)
            return -1;
        if (fd >= 0 && (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) &&
            fstat(fd, &st) == 0 && st.st_nlink > 0)
            return fd;
        if (fd >= 0) {
            unlink(w->temp); /* a cleaning writer has it */
            close(fd);
        }
    }
    errno = EEXIST;
    return -1;
}

/* Removes a temporary whose writer is gone. */
static void remove_if_left(int dir, const char *name)
{
    struct stat st, now;
    const int flags = O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode))
        return;
    int fd = openat(dir, name, O_RDWR | flags);
    if (fd < 0 && errno == EACCES) /* made read-only, as its target is */
        fd = openat(dir, name, O_RDONLY | flags);
    if (fd < 0)
        return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &st) == 0 &&
        fstatat(dir, name, &now, AT_SYMLINK_NOFOLLOW) == 0 && now.st_dev == st.st_dev &&
        now.st_ino == st.st_ino)
        unlinkat(dir, name, 0);
    close(fd);
}

/* Removes what killed writers of this file have left. Uses w->temp as scratch. */
static void remove_leftovers(tl_writer *w)
{
    DIR *dir = opendir(directory(w));
    if (dir == NULL)
        return; /* a directory that may be written but not read */
    const char *name = w->path + dir_length(w->path);
    size_t start = (size_t)snprintf(w->temp, temp_room(w), TEMP, name);
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        if (strncmp(e->d_name, w->temp, start) == 0 &&
            strspn(e->d_name + start, "0123456789abcdef") == 16 &&
            strcmp(e->d_name + start + 16, ".tmp") == 0)
            remove_if_left(dirfd(dir), e->d_name);
    closedir(dir);
}

/* Gives the file the owner and permissions of st. The owner comes first, because changing it may
 * clear permission bits. If the system refuses either, the file is written all the same; a group
 * that is not the target's may then do only what anybody may. */
static void keep_permissions(int fd, const struct stat *st)
{
    struct stat own;
    mode_t mode = st->st_mode & 0777;
    if (fstat(fd, &own) == 0 && (own.st_uid != st->st_uid || own.st_gid != st->st_gid) &&
        fchown(fd, st->st_uid, st->st_gid) != 0 && fchown(fd, (uid_t)-1, st->st_gid) != 0)
        mode = (mode & 0707) | (mode & 07) << 3;
    if (fchmod(fd, mode) != 0)
        errno = 0;
}

/* The errno with which renaming over the existing file would fail, as far as that can be told
 * beforehand; 0 if nothing is known. */
static int irreplaceable(tl_writer *w, const struct stat *st)
{
    struct stat dir;
#ifdef STATX_ATTR_IMMUTABLE
    struct statx x = {0};
    if (statx(AT_FDCWD, w->path, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &x) == 0 &&
        x.stx_attributes & (STATX_ATTR_IMMUTABLE | STATX_ATTR_APPEND))
        return EPERM;
#ifdef STATX_ATTR_MOUNT_ROOT
    if (x.stx_attributes & STATX_ATTR_MOUNT_ROOT)
        return EBUSY;
#endif
#endif
    const uid_t me = geteuid();
    return stat(directory(w), &dir) == 0 && dir.st_mode & S_ISVTX && me != 0 && me != dir.st_uid &&
                   me != st->st_uid
               ? EPERM
               : 0;
}

/* Until the temporary has the target's owner, only its writer may use it: nobody who may not read
 * the target may ever read it. */
static tl_status writer_open(tl_writer *w, const char *path, tl_err *err)
{
    struct stat st;
    bool exists = stat(path, &st) == 0;
    if (!exists && errno == ENAMETOOLONG)
        return tl_file_errno(path, "cannot be written", err);
    if (exists && !S_ISREG(st.st_mode))
        return tl_fail(err, TL_EIO, TL_PATH ": is %s, not a regular file; not replaced", path,
                       tl_file_other_kind(st.st_mode));
    w->path = resolve(path);
    if (w->path == NULL)
        return tl_file_errno(path, "cannot be written", err);
    if (strlen(w->path) == dir_length(w->path))
        return tl_fail(err, TL_EIO, "\"" TL_PATH "\" names no file to write", path);
    w->temp = tl_calloc(temp_room(w), 1);
    if (w->temp == NULL)
        return tl_fail(err, TL_ENOMEM, TL_PATH ": no memory to open it for writing", path);
    errno = exists ? irreplaceable(w, &st) : 0;
    if (errno != 0)
        return tl_file_errno(path, "cannot be replaced", err);
    remove_leftovers(w);
    w->fd = temp_open(w, exists ? 0600 : 0666);
    if (w->fd < 0)
        return tl_file_errno(path, "cannot be written", err);
    if (exists)
        keep_permissions(w->fd, &st);
    return TL_OK;
}

tl_status tl_writer_begin(tl_writer **out, const char *path, tl_err *err)
{
    TL_TRY(TL_NEED(err, out));
    *out = NULL;
    TL_TRY(TL_NEED(err, path));
    tl_writer *w = tl_calloc(1, sizeof *w);
    if (w == NULL)
        return tl_fail(err, TL_ENOMEM, TL_PATH ": no memory to open it for writing", path);
    w->fd = -1;
    tl_status s = writer_open(w, path, err);
    if (s == TL_OK)
        *out = w;
    else
        writer_free(w);
    return s;
}

/* Reports the first failure, if there was one. */
static tl_status failed(const tl_writer *w, tl_err *err)
{
    return w->failure.status == TL_OK ? TL_OK
                                      : tl_fail(err, w->failure.status, "%s", w->failure.message);
}

/* write(2). Beyond the limit of a file's size (RLIMIT_FSIZE) the system also sends this thread
 * SIGXFSZ, which would end the process: it is taken away again, and the error remains. */
static ssize_t put_some(int fd, const void *p, size_t n)
{
    sigset_t one, mask, before, after;
    int signal;
    sigemptyset(&one);
    sigaddset(&one, SIGXFSZ);
    sigpending(&before);
    pthread_sigmask(SIG_BLOCK, &one, &mask);
    const ssize_t put = write(fd, p, n);
    const int e = errno;
    sigpending(&after);
    if (sigismember(&after, SIGXFSZ) && !sigismember(&before, SIGXFSZ))
        sigwait(&one, &signal);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    errno = e;
    return put;
}

tl_status tl_writer_append(tl_writer *w, const void *data, size_t n, tl_err *err)
{
    const char *p = data;
    size_t left = n;
    while (w->failure.status == TL_OK && left > 0) {
        ssize_t put = put_some(w->fd, p, left < TL_FILE_CHUNK ? left : TL_FILE_CHUNK);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0) {
            tl_fail(&w->failure, TL_EIO,
                    TL_PATH ": cannot write %zu bytes after the first %llu: %s; "
                            "the file is left as it was",
                    w->path, left, (unsigned long long)w->bytes,
                    put == 0 ? "nothing was accepted" : strerror(errno));
            discard(w);
            break;
        }
        p += put;
        left -= (size_t)put;
        w->bytes += (uint64_t)put;
    }
    return failed(w, err);
}

tl_status tl_writer_block(void *w, const void *data, size_t n)
{
    return tl_writer_append(w, data, n, NULL);
}

/* fsync, repeated when interrupted. A file system that cannot do it is no failure. */
static int flush(int fd)
{
    int rc;
    do
        rc = fsync(fd);
    while (rc != 0 && errno == EINTR);
    return rc != 0 && errno != EINVAL && errno != ENOSYS && errno != ENOTSUP ? -1 : 0;
}

static tl_status flush_directory(tl_writer *w, tl_err *err)
{
    int fd = open(directory(w), O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return TL_OK; /* a directory that may be written but not read */
    int rc = flush(fd);
    int e = errno;
    close(fd);
    if (rc == 0)
        return TL_OK;
    return tl_fail(err, TL_EIO,
                   TL_PATH ": is written and in place, but its directory could not be flushed: %s",
                   w->path, strerror(e));
}

/* Removes the temporary and reports errno. */
static tl_status not_published(tl_writer *w, const char *step, tl_err *err)
{
    int e = errno;
    discard(w);
    tl_fail(&w->failure, TL_EIO, TL_PATH ": %s (%llu bytes): %s; the file is left as it was",
            w->path, step, (unsigned long long)w->bytes, strerror(e));
    return failed(w, err);
}

tl_status tl_writer_flush(tl_writer *w, tl_err *err)
{
    TL_TRY(failed(w, err));
    if (flush(w->fd) != 0)
        return not_published(w, "cannot flush", err);
    /* Some file systems report only at close what they could not write. Closing a duplicate keeps
     * the lock. */
    int same = fcntl(w->fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    if (same >= 0 && close(same) != 0 && errno != EINTR)
        return not_published(w, "cannot close", err);
    return TL_OK;
}

/* Called when the rename has failed. What was written may have taken long to compute, so it stays
 * beside the file, in place of what an earlier failure has left. */
static tl_status keep(tl_writer *w, tl_err *err)
{
    const int e = errno;
    const size_t dir = dir_length(w->path);
    char *kept = tl_calloc(temp_room(w), 1);
    if (kept != NULL)
        snprintf(kept, temp_room(w), "%.*s" KEPT, (int)dir, w->path, w->path + dir);
    if (kept != NULL && rename(w->temp, kept) == 0) {
        close(w->fd);
        w->fd = -1;
        flush_directory(w, NULL);
        tl_fail(&w->failure, TL_EIO,
                TL_PATH
                ": cannot rename the new file over (%llu bytes): %s; the file is left as it "
                "was, and the new one is " TL_PATH,
                w->path, (unsigned long long)w->bytes, strerror(e), kept);
    } else {
        errno = e;
        not_published(w, "cannot rename the new file over", NULL);
    }
    tl_free_raw(kept);
    return failed(w, err);
}

static tl_status place(tl_writer *w, bool alone, tl_err *err)
{
    TL_TRY(tl_writer_flush(w, err));
    if (rename(w->temp, w->path) != 0)
        return alone ? keep(w, err) : not_published(w, "cannot rename the new file over", err);
    close(w->fd);
    w->fd = -1;
    return TL_OK;
}

tl_status tl_writer_place(tl_writer *w, tl_err *err) { return place(w, false, err); }

tl_status tl_writer_commit(tl_writer *w, tl_err *err)
{
    tl_status s = w->fd >= 0 || w->failure.status != TL_OK ? place(w, true, err) : TL_OK;
    if (s == TL_OK)
        s = flush_directory(w, err);
    writer_free(w);
    return s;
}

void tl_writer_abort(tl_writer *w)
{
    if (w == NULL)
        return;
    discard(w);
    writer_free(w);
}

tl_status tl_file_writable(const char *path, tl_err *err)
{
    tl_writer *w;
    TL_TRY(tl_writer_begin(&w, path, err));
    tl_writer_abort(w);
    return TL_OK;
}
