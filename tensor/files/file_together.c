/* file_together.c: files of one folder that take their places together, or not at all.
 *
 * The old files wait under names beside their own until the last new one is in its place. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tensor/files/file.h"
#include "tensor/memory.h"

typedef struct {
    char path[PATH_MAX];
    char old[PATH_MAX];        /* the file that was there, links followed ... */
    char aside[PATH_MAX + 16]; /* ... and where it waits; "": there was none */
    bool is_new;               /* a new file comes here; else the old one is only removed */
} place;

enum { LOCK_TRIES = 200 }; /* ten seconds */

/* Sets `aside` to a free name beside the old file. */
static tl_status free_name(place *p, tl_err *err)
{
    struct stat st;
    for (int k = 0; k < 100; k++) {
        snprintf(p->aside, sizeof p->aside, k == 0 ? "%s.old" : "%s.old%d", p->old, k);
        if (lstat(p->aside, &st) != 0 && errno == ENOENT)
            return TL_OK;
    }
    return tl_fail(err, TL_EIO, "%.200s: is there still: no name is free to keep it under", p->old);
}

/* Moves the old file out of the way, if there is one. Where a new file comes, a link stays, because
 * the new file is written through it. Where none comes, the link goes and its target stays. */
static tl_status set_aside(place *p, tl_err *err)
{
    struct stat st;
    if (p->is_new ? realpath(p->path, p->old) == NULL : lstat(p->path, &st) != 0)
        return errno == ENOENT
                   ? TL_OK
                   : tl_fail(err, TL_EIO, "%.200s: is there still: %s", p->path, strerror(errno));
    if (!p->is_new)
        memcpy(p->old, p->path, sizeof p->old);
    if (lstat(p->old, &st) != 0 || !(S_ISREG(st.st_mode) || (!p->is_new && S_ISLNK(st.st_mode))))
        return tl_fail(err, TL_EIO, "%.200s: is there still, and is not a regular file", p->path);
    tl_status s = free_name(p, err);
    if (s == TL_OK && rename(p->old, p->aside) != 0)
        s = tl_fail(err, TL_EIO, "%.200s: is there still: %s", p->path, strerror(errno));
    if (s != TL_OK)
        p->aside[0] = '\0';
    return s;
}

/* How many files could not be put back, and how many of them the message leaves out. */
typedef struct {
    int n, untold;
} lost;

/* Adds words and a file's name, without its folder, to the message if that leaves `spare` bytes. */
static void tell(tl_err *err, lost *l, const char *words, const char *path, size_t spare)
{
    const tl_err so_far = *err;
    const char *name = strrchr(path, '/') + 1;
    if (strlen(so_far.message) + strlen(words) + strlen(name) + spare >= sizeof so_far.message) {
        l->untold++;
        return;
    }
    err->status = TL_OK;
    tl_fail(err, TL_EIO, "%s%s%s", so_far.message, words, name);
}

/* Puts back what was in a place; placed: the new file is there. The message gives the reason for
 * the first file that cannot be put back, and the names of others. */
static void put_back(const place *p, bool placed, lost *l, tl_err *err)
{
    char real[PATH_MAX];
    const tl_err first = *err;
    const bool was = p->aside[0] != '\0';
    if (was ? rename(p->aside, p->old) == 0
            : !(placed && p->is_new) || realpath(p->path, real) == NULL || unlink(real) == 0)
        return;
    const char *why = strerror(errno);
    if (l->n++ > 0) {
        tell(err, l, was ? "; not put back: " : "; not removed: ", was ? p->aside : p->path, 120);
        return;
    }
    err->status = TL_OK;
    if (was)
        tl_fail(err, TL_EIO, "%.300s; and %.200s cannot be put back: %s; it is %.200s now",
                first.message, p->path, why, p->aside);
    else
        tl_fail(err, TL_EIO, "%.300s; and %.200s, which is new, cannot be removed: %s",
                first.message, p->path, why);
}

/* Puts back what was in all places, as far as possible. Readers know the other files by the last
 * one. So it comes last, and stays away if another cannot be put back: nobody reads a mixture. */
static void put_all_back(const place *p, int n, int placed, tl_err *err)
{
    lost l = {0, 0};
    const place *last = &p[n - 1];
    for (int i = n - 2; i >= 0; i--)
        put_back(&p[i], i < placed, &l, err);
    if (l.n == 0)
        put_back(last, false, &l, err);
    else if (last->aside[0] != '\0')
        tell(err, &l, "; therefore not put back: ", last->aside, 30);
    if (l.untold > 0) {
        char more[32];
        snprintf(more, sizeof more, "/%d more", l.untold);
        tell(err, &l, "; and ", more, 0);
    }
}

/* Puts the new files into their places in order; each is on the disk before the next. *placed: how
 * many are there. If only a directory could not be flushed, the file is in place and the next
 * follows. */
static tl_status place_all(tl_writer **w, int n, int *placed, tl_err *err)
{
    tl_status all = TL_OK;
    for (*placed = 0; *placed < n; ++*placed) {
        tl_writer **now = &w[*placed];
        if (*now == NULL)
            continue;
        TL_TRY(tl_writer_place(*now, err));
        tl_status s = tl_writer_commit(*now, err);
        *now = NULL;
        all = all != TL_OK ? all : s;
    }
    return all;
}

int tl_folder_lock(const char *folder, bool alone)
{
    const struct timespec pause = {0, 50 * 1000 * 1000};
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int i = 0; fd >= 0 && i < LOCK_TRIES; i++) {
        if (flock(fd, (alone ? LOCK_EX : LOCK_SH) | LOCK_NB) == 0 || errno != EWOULDBLOCK)
            break;
        nanosleep(&pause, NULL);
    }
    return fd;
}

void tl_folder_unlock(int lock)
{
    if (lock < 0)
        return;
    flock(lock, LOCK_UN); /* a forked child may hold it, too */
    close(lock);
}

tl_status tl_writers_place(tl_writer **w, const char *const *name, int n, const char *folder,
                           tl_err *err)
{
    tl_err none = {.status = TL_OK};
    tl_status s = TL_OK;
    int placed = 0, aside = 0;
    err = err != NULL ? err : &none;
    place *p = tl_calloc((size_t)n, sizeof *p);
    if (p == NULL)
        return tl_fail(err, TL_ENOMEM, "%.200s: no memory to replace %d files", folder, n);
    for (int i = 0; i < n && s == TL_OK; i++) {
        p[i].is_new = w[i] != NULL;
        if (snprintf(p[i].path, PATH_MAX, "%s/%s", folder, name[i]) >= PATH_MAX)
            s = tl_fail(err, TL_EIO, "%.200s: the path is too long", folder);
        else if (w[i] != NULL)
            s = tl_writer_flush(w[i], err);
    }
    for (; s == TL_OK && aside < n; aside++)
        s = set_aside(&p[(n - 1 + aside) % n], err); /* the last goes first */
    if (s == TL_OK)
        s = place_all(w, n, &placed, err);
    if (placed < n && aside > 0)
        put_all_back(p, n, placed, err);
    for (int i = 0; placed == n && i < n; i++)
        if (p[i].aside[0] != '\0')
            unlink(p[i].aside);
    tl_free_raw(p);
    return s;
}
