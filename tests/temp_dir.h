/* temp_dir.h: a directory of a test's own, and what is left in it. */
#ifndef TL_TEMP_DIR_H
#define TL_TEMP_DIR_H

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    char path[512];
} temp_dir;

/* false when it cannot be made. */
static inline bool temp_dir_make(temp_dir *d)
{
    const char *base = getenv("TMPDIR");
    snprintf(d->path, sizeof d->path, "%.400s/tally-XXXXXX", base != NULL && *base ? base : "/tmp");
    return mkdtemp(d->path) != NULL;
}

/* "DIR/name" in a buffer of the caller's; returns it. */
static inline char *temp_dir_file(char buf[1024], const temp_dir *d, const char *name)
{
    snprintf(buf, 1024, "%s/%s", d->path, name);
    return buf;
}

/* "folder/name" gets these bytes; false if it cannot be written. */
static inline bool temp_file_write(const char *folder, const char *name, const void *bytes,
                                   size_t n)
{
    char path[2048];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    bool fine = f != NULL && fwrite(bytes, 1, n, f) == n;
    return f != NULL && fclose(f) == 0 && fine;
}

/* Entries in the directory, those that begin with a dot included. */
static inline int temp_dir_count(const temp_dir *d)
{
    DIR *dir = opendir(d->path);
    int n = 0;
    if (dir == NULL)
        return -1;
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(dir);
    return n;
}

/* Removes the directory and the files and empty directories in it. */
static inline void temp_dir_remove(const temp_dir *d)
{
    DIR *dir = opendir(d->path);
    if (dir == NULL)
        return;
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        char path[1024];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        temp_dir_file(path, d, e->d_name);
        if (unlink(path) != 0)
            rmdir(path);
    }
    closedir(dir);
    rmdir(d->path);
}

#endif
