/* file_together.c: files of one folder that take their places together, or not at all.
 *
 * Old files wait under names beside their own until the last new one is in its place. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tensor/files/file.h"
#include "tensor/memory.h"

typedef struct {
    char *path,
        *aside; /* of the old file, links followed, and where it waits; NULL: none was there */
} old_file;

static tl_status join(char path[PATH_MAX], const char *folder, const char *name, tl_err *err)
{
    return snprintf(path, PATH_MAX, "%s/%s", folder, name) < PATH_MAX
               ? TL_OK
               : tl_fail(err, TL_EIO, "%.200s: the path is too long", folder);
}

/* A name beside path that nothing has. */
static tl_status free_name(char out[PATH_MAX + 16], const char *path, tl_err *err)
{
    struct stat st;
    for (int k = 0; k < 100; k++) {
        snprintf(out, PATH_MAX + 16, k == 0 ? "%s.old" : "%s.old%d", path, k);
        if (lstat(out, &st) != 0 && errno == ENOENT)
            return TL_OK;
    }
    return tl_fail(err, TL_EIO, "%.200s: is there still: no name is free to keep it under", path);
}

static void forget(old_file *f)
{
    tl_free_raw(f->path);
    tl_free_raw(f->aside);
    *f = (old_file){NULL, NULL};
}

/* Out of the way, if there is one. Where a new one comes a link stays, as the new one is written
 * through it; what only goes may be a link, and then that goes, not what it leads to. */
static tl_status set_aside(old_file *f, const char *path, bool goes, tl_err *err)
{
    char real[PATH_MAX], aside[PATH_MAX + 16];
    struct stat st;
    if (goes ? lstat(path, &st) != 0 : realpath(path, real) == NULL)
        return errno == ENOENT
                   ? TL_OK
                   : tl_fail(err, TL_EIO, "%.200s: is there still: %s", path, strerror(errno));
    const char *from = goes ? path : real;
    if (lstat(from, &st) != 0 || !(S_ISREG(st.st_mode) || (goes && S_ISLNK(st.st_mode))))
        return tl_fail(err, TL_EIO, "%.200s: is there still, and is not a regular file", path);
    TL_TRY(free_name(aside, from, err));
    f->path = tl_strdup(from);
    f->aside = tl_strdup(aside);
    tl_status s = TL_OK;
    if (f->path == NULL || f->aside == NULL)
        s = tl_fail(err, TL_ENOMEM, "%.200s: no memory to set it aside", path);
    else if (rename(from, aside) != 0)
        s = tl_fail(err, TL_EIO, "%.200s: is there still: %s", path, strerror(errno));
    if (s != TL_OK)
        forget(f);
    return s;
}

/* How many files could not be put back, and of how many the message does not tell. */
typedef struct {
    int n, untold;
} lost;

/* To the end of the message: words and a file's name without its folder, if so much room is left
 * behind them. */
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

/* A file as it was; `placed`: a new one is there. The first that cannot be so is told with the
 * reason, others by their names. */
static void put_back(const old_file *f, const char *path, bool placed, lost *l, tl_err *err)
{
    char real[PATH_MAX];
    const tl_err first = *err;
    if (f->aside != NULL ? rename(f->aside, f->path) == 0
                         : !placed || realpath(path, real) == NULL || unlink(real) == 0)
        return;
    const char *why = strerror(errno);
    if (l->n++ > 0) {
        if (f->aside == NULL)
            tell(err, l, "; not removed: ", path, 120);
        else
            tell(err, l, "; not put back: ", f->aside, 120);
        return;
    }
    err->status = TL_OK;
    if (f->aside == NULL)
        tl_fail(err, TL_EIO, "%.300s; and %.200s, which is new, cannot be removed: %s",
                first.message, path, why);
    else
        tl_fail(err, TL_EIO, "%.300s; and %.200s cannot be put back: %s; it is %.200s now",
                first.message, path, why, f->aside);
}

/* All files as they were, as far as that goes. By the last one readers know the others: it comes
 * last, and stays away where one of those is not what it was, so that nobody reads a mixture. */
static void put_all_back(const old_file *old, const char *const *name, const bool *is_new, int n,
                         int placed, const char *folder, tl_err *err)
{
    char path[PATH_MAX];
    lost l = {0, 0};
    for (int i = n - 2; i >= 0; i--) {
        (void)join(path, folder, name[i], NULL);
        put_back(&old[i], path, i < placed && is_new[i], &l, err);
    }
    (void)join(path, folder, name[n - 1], NULL);
    if (l.n == 0)
        put_back(&old[n - 1], path, false, &l, err);
    else if (old[n - 1].aside != NULL)
        tell(err, &l, "; therefore not put back: ", old[n - 1].aside, 30);
    if (l.untold > 0) {
        snprintf(path, sizeof path, "/%d more", l.untold);
        tell(err, &l, "; and ", path, 0);
    }
}

/* The places, in their order; each file is on the disk before the next. *placed: how many are
 * there. Where only a directory could not be flushed the files are in place, so the others follow.
 */
static tl_status place(tl_writer **w, int n, int *placed, tl_err *err)
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

tl_status tl_writers_place(tl_writer **w, const char *const *name, int n, const char *folder,
                           tl_err *err)
{
    tl_err none = {.status = TL_OK};
    char path[PATH_MAX];
    tl_status s = TL_OK;
    int placed = 0, aside = 0;
    err = err != NULL ? err : &none;
    for (int i = 0; i < n; i++) {
        TL_TRY(join(path, folder, name[i], err));
        if (w[i] != NULL)
            TL_TRY(tl_writer_flush(w[i], err));
    }
    bool *is_new = tl_calloc((size_t)n, sizeof *is_new);
    old_file *old = tl_calloc((size_t)n, sizeof *old);
    if (old == NULL || is_new == NULL)
        s = tl_fail(err, TL_ENOMEM, "%.200s: no memory to replace %d files", folder, n);
    for (int i = 0; s == TL_OK && i < n; i++)
        is_new[i] = w[i] != NULL;
    for (; s == TL_OK && aside < n; aside++) { /* the last goes first */
        const int i = (n - 1 + aside) % n;
        if ((s = join(path, folder, name[i], err)) == TL_OK)
            s = set_aside(&old[i], path, w[i] == NULL, err);
    }
    if (s == TL_OK)
        s = place(w, n, &placed, err);
    if (placed < n && aside > 0)
        put_all_back(old, name, is_new, n, placed, folder, err);
    for (int i = 0; old != NULL && i < n; i++) {
        if (placed == n && old[i].aside != NULL)
            unlink(old[i].aside);
        forget(&old[i]);
    }
    tl_free_raw(old);
    tl_free_raw(is_new);
    return s;
}
