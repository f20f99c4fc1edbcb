/* file_write.c: writing - a file is replaced wholly or not at all.
 * The steps and their order: create the temporary, write, fsync, close, rename,
 * fsync the directory. A failure at any step removes the temporary. */
#include "tensor/files/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tensor/arena.h"

#define PATH "%.300s" /* a path in a message: cut, so that the reason behind it survives */

enum { CHUNK = 1 << 30, TEMP_NAMES = 1000, TEMP_EXTRA = 40 };

struct tl_writer {
    char *path;     /* the target, symbolic links resolved */
    char *temp;     /* in the same directory */
    int fd;         /* -1 when closed */
    bool made;      /* the temporary exists */
    uint64_t bytes; /* appended so far */
    tl_err failure; /* the first; the temporary is gone by then */
};

/* Closes and removes the temporary; the target was never touched. */
static void discard(tl_writer *w)
{
    if (w->fd >= 0)
        close(w->fd);
    if (w->made)
        unlink(w->temp);
    w->fd = -1;
    w->made = false;
}

static void writer_free(tl_writer *w)
{
    tl_free_raw(w->path);
    tl_free_raw(w->temp);
    tl_free_raw(w);
}

/* The file a path means: what a symbolic link points at, or the path itself. */
static char *resolve(const char *path)
{
    struct stat st;
    if (lstat(path, &st) == 0 && S_ISLNK(st.st_mode)) {
        char *real = realpath(path, NULL);
        char *copy = real != NULL ? tl_strdup(real) : NULL;
        free(real);
        if (copy != NULL)
            return copy;
    }
    return tl_strdup(path);
}

/* Length of the directory part, with its slash; 0 for none. */
static size_t dir_length(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? (size_t)(slash - path) + 1 : 0;
}

/* Opens a file that was not there before: ".NAME.PID-K.tmp" beside the target. */
static int temp_open(tl_writer *w, size_t capacity)
{
    size_t dir = dir_length(w->path);
    for (int k = 0; k < TEMP_NAMES; k++) {
        snprintf(w->temp, capacity, "%.*s.%.180s.%ld-%d.tmp", (int)dir, w->path, w->path + dir,
                 (long)getpid(), k);
        int fd = open(w->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0 || (errno != EEXIST && errno != EINTR))
            return fd;
    }
    return -1;
}

/* Owner first: changing it may clear permission bits. Either may be refused by
 * the system, and the file is then written all the same. */
static void keep_permissions(int fd, const struct stat *st)
{
    struct stat own;
    if (fstat(fd, &own) == 0 && (own.st_uid != st->st_uid || own.st_gid != st->st_gid) &&
        fchown(fd, st->st_uid, st->st_gid) != 0 && fchown(fd, (uid_t)-1, st->st_gid) != 0)
        errno = 0;
    if (fchmod(fd, st->st_mode & 0777) != 0)
        errno = 0;
}

static tl_status writer_open(tl_writer *w, const char *path, tl_err *err)
{
    struct stat st;
    w->path = resolve(path);
    size_t capacity = w->path != NULL ? strlen(w->path) + TEMP_EXTRA : 0;
    w->temp = w->path != NULL ? tl_calloc(capacity, 1) : NULL;
    if (w->temp == NULL)
        return tl_fail(err, TL_ENOMEM, PATH ": no memory to open it for writing", path);
    if (strlen(w->path) == dir_length(w->path))
        return tl_fail(err, TL_EIO, "\"" PATH "\" names no file to write", path);
    bool exists = stat(w->path, &st) == 0;
    if (exists && !S_ISREG(st.st_mode))
        return tl_fail(err, TL_EIO, PATH ": is %s, not a regular file; not replaced", path,
                       S_ISDIR(st.st_mode) ? "a directory" : "a pipe or device");
    w->fd = temp_open(w, capacity);
    if (w->fd < 0)
        return tl_fail(err, TL_EIO, PATH ": cannot be written: %s", path, strerror(errno));
    w->made = true;
    if (exists)
        keep_permissions(w->fd, &st);
    return TL_OK;
}

tl_status tl_writer_begin(tl_writer **out, const char *path, tl_err *err)
{
    tl_writer *w = tl_calloc(1, sizeof *w);
    *out = NULL;
    if (w == NULL)
        return tl_fail(err, TL_ENOMEM, PATH ": no memory to open it for writing", path);
    w->fd = -1;
    tl_status s = writer_open(w, path, err);
    if (s != TL_OK) {
        writer_free(w);
        return s;
    }
    *out = w;
    return TL_OK;
}

tl_status tl_writer_append(tl_writer *w, const void *data, size_t n, tl_err *err)
{
    const char *p = data;
    size_t left = n;
    while (w->failure.status == TL_OK && left > 0) {
        ssize_t put = write(w->fd, p, left < CHUNK ? left : CHUNK);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0) {
            tl_fail(&w->failure, TL_EIO,
                    PATH ": cannot write %zu bytes after the first %llu: %s; "
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
    if (w->failure.status != TL_OK)
        return tl_fail(err, w->failure.status, "%s", w->failure.message);
    return TL_OK;
}

/* fsync, continued when interrupted; file systems that cannot do it are not at fault. */
static int flush(int fd)
{
    int rc;
    do
        rc = fsync(fd);
    while (rc != 0 && errno == EINTR);
    return rc != 0 && errno != EINVAL && errno != ENOSYS && errno != ENOTSUP ? -1 : 0;
}

static tl_status flush_directory(const tl_writer *w, tl_err *err)
{
    size_t n = dir_length(w->path);
    memcpy(w->temp, n ? w->path : "./", n ? n : 2); /* the name is free for use by now */
    w->temp[n ? n : 2] = '\0';
    int fd = open(w->temp, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return TL_OK; /* a directory that may be written but not read */
    int rc = flush(fd);
    int e = errno;
    close(fd);
    if (rc == 0)
        return TL_OK;
    return tl_fail(err, TL_EIO,
                   PATH ": is written and in place, but its directory could not be flushed: %s",
                   w->path, strerror(e));
}

static tl_status publish(tl_writer *w, tl_err *err)
{
    if (w->failure.status != TL_OK)
        return tl_fail(err, w->failure.status, "%s", w->failure.message);
    const char *step = "cannot flush";
    int rc = flush(w->fd), e = errno;
    if (rc == 0) {
        step = "cannot close";
        rc = close(w->fd) != 0 && errno != EINTR ? -1 : 0;
        e = errno;
        w->fd = -1;
    }
    if (rc == 0) {
        step = "cannot rename the new file over";
        rc = rename(w->temp, w->path);
        e = errno;
    }
    if (rc == 0) {
        w->made = false; /* it is the target now */
        return flush_directory(w, err);
    }
    discard(w);
    return tl_fail(err, TL_EIO, PATH ": %s (%llu bytes): %s; the file is left as it was", w->path,
                   step, (unsigned long long)w->bytes, strerror(e));
}

tl_status tl_writer_commit(tl_writer *w, tl_err *err)
{
    tl_status s = publish(w, err);
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

tl_status tl_file_write(const char *path, const void *data, size_t n, tl_err *err)
{
    tl_writer *w;
    TL_TRY(tl_writer_begin(&w, path, err));
    (void)tl_writer_append(w, data, n, NULL); /* a failure sticks until commit */
    return tl_writer_commit(w, err);
}
