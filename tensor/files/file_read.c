/* file_read.c: reads whole files, exactly, and bytes in memory as if they were a file. */
#include "tensor/files/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tensor/memory.h"

/* Refuses all but regular files, and a file that has bytes though its size is 0. Sets r->size. */
static tl_status check_regular(tl_reader *r, tl_err *err)
{
    struct stat st;
    char first;
    if (fstat(r->fd, &st) != 0)
        return tl_file_errno(r->path, "cannot ask for the size", err);
    if (!S_ISREG(st.st_mode))
        return tl_fail(err, TL_EIO, TL_PATH ": is %s, not a regular file", r->path,
                       tl_file_other_kind(st.st_mode));
    r->size = st.st_size;
    ssize_t there = r->size == 0 ? pread(r->fd, &first, 1, 0) : 0;
    if (there < 0)
        return tl_file_errno(r->path, "cannot read its first byte", err);
    if (there > 0)
        return tl_fail(err, TL_EIO,
                       TL_PATH
                       ": says that it has 0 bytes, but has more, as files of /proc do; copy "
                       "it, and read the copy",
                       r->path);
    return TL_OK;
}

tl_status tl_reader_open(tl_reader *r, const char *path, tl_err *err)
{
    TL_TRY(TL_NEED(err, r));
    *r = (tl_reader){.fd = -1, .path = path};
    if (path == NULL)
        return tl_fail(err, TL_EIO, "cannot open for reading: the path is NULL");
    /* O_NONBLOCK: a pipe without a writer must be refused, not waited for. */
    do
        r->fd = tl_file_open(path, O_RDONLY | O_NONBLOCK, 0);
    while (r->fd < 0 && errno == EINTR);
    if (r->fd < 0)
        return tl_file_errno(path, "cannot open for reading", err);
    tl_status s = check_regular(r, err);
    if (s != TL_OK)
        tl_reader_close(r);
    return s;
}

tl_reader tl_reader_of_memory(const void *bytes, size_t n, const char *path)
{
    return (tl_reader){.fd = -1,
                       .memory = bytes,
                       .size = n < INT64_MAX ? (int64_t)n : INT64_MAX,
                       .path = path != NULL ? path : "memory"};
}

/* Some of the next n bytes, as read(2) does. */
static ssize_t read_some(const tl_reader *r, void *dst, size_t n)
{
    if (r->memory == NULL)
        return read(r->fd, dst, n);
    n = n < (uint64_t)(r->size - r->at) ? n : (size_t)(r->size - r->at);
    memcpy(dst, (const char *)r->memory + r->at, n);
    return (ssize_t)n;
}

tl_status tl_reader_read(tl_reader *r, void *dst, size_t n, tl_err *err)
{
    char *p = dst;
    size_t left = n;
    while (left > 0) {
        ssize_t got = read_some(r, p, left < TL_FILE_CHUNK ? left : TL_FILE_CHUNK);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return tl_fail(err, TL_EIO, TL_PATH ": cannot read %zu bytes at byte %lld: %s", r->path,
                           left, (long long)r->at, strerror(errno));
        if (got == 0)
            return tl_fail(err, TL_EIO,
                           TL_PATH ": ends at byte %lld, %zu bytes early (it had %lld when opened)",
                           r->path, (long long)r->at, left, (long long)r->size);
        p += got;
        left -= (size_t)got;
        r->at += got;
    }
    return TL_OK;
}

void tl_reader_close(tl_reader *r)
{
    if (r->fd >= 0)
        close(r->fd);
    r->fd = -1;
}

tl_status tl_reader_all(tl_reader *r, size_t limit, char **data, size_t *bytes, tl_err *err)
{
    if ((uint64_t)r->size > limit)
        return tl_fail(err, TL_EIO, TL_PATH ": has %lld bytes; at most %zu are accepted", r->path,
                       (long long)r->size, limit);
    size_t n = (size_t)r->size;
    char *p = n < SIZE_MAX ? tl_calloc(n + 1, 1) : NULL;
    if (p == NULL)
        return tl_fail(err, TL_ENOMEM, TL_PATH ": no memory for its %zu bytes", r->path, n);
    tl_status s = tl_reader_read(r, p, n, err);
    if (s != TL_OK) {
        tl_free_raw(p);
        return s;
    }
    *data = p;
    *bytes = n;
    return TL_OK;
}

tl_status tl_file_read(const char *path, size_t limit, char **data, size_t *bytes, tl_err *err)
{
    tl_reader r;
    TL_TRY(TL_NEED(err, data));
    TL_TRY(TL_NEED(err, bytes));
    *data = NULL;
    *bytes = 0;
    TL_TRY(tl_reader_open(&r, path, err));
    tl_status s = tl_reader_all(&r, limit, data, bytes, err);
    tl_reader_close(&r);
    return s;
}
