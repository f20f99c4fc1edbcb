/* file.h: whole files in, whole files out - or a message that says what went wrong. For all rooms.
 *
 * Reading: a regular file of known size, read exactly. Writing: into a temporary file beside the
 * target, flushed, then renamed over it, and the directory flushed. Until that rename the old file
 * is untouched; on any failure (disk full, no permission, process killed) it is still there, whole,
 * and the temporary is removed (but see tl_writer_commit). Only a kill leaves it behind, as
 * ".NAME.tally-RANDOM.tmp"; the next writer of that file removes it. Whatever would make the rename
 * fail is refused at the beginning where it can be known: a name too long, a mount point, an
 * immutable file, another user's file in a folder of many users (sticky). Interrupted and short
 * system calls are continued. Errors: TL_EIO with path, the system's reason and byte counts;
 * TL_ENOMEM.
 */
#ifndef TL_FILE_H
#define TL_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "tensor/status.h"

#define TL_PATH "%.300s" /* a path in a message: cut, so that the reason behind it survives */
enum { TL_FILE_CHUNK = 1 << 30 /* bytes in one system call */ };
/* Reports errno. what: what could not be done with the file ("cannot be written"). */
tl_status tl_file_errno(const char *path, const char *what, tl_err *err);
/* open(2) with O_CLOEXEC, under a descriptor above 2: what a program prints that was started
 * without stdin, stdout or stderr must not go into the file. -1 with errno. */
int tl_file_open(const char *path, int flags, mode_t mode);
/* The kind of a file that is not regular, in words. */
const char *tl_file_other_kind(mode_t mode);

/* A file, or bytes in memory, being read from front to back. */
typedef struct {
    int fd;             /* -1: of memory, or closed */
    const void *memory; /* borrowed */
    int64_t size;       /* in bytes, when opened */
    int64_t at;         /* bytes read so far */
    const char *path;   /* for messages; borrowed */
} tl_reader;

/* Opens a regular file; refuses directories, pipes and devices. Borrows path. */
tl_status tl_reader_open(tl_reader *r, const char *path, tl_err *err);
/* Reads n bytes of memory; path stands for a path in messages, NULL: "memory". */
tl_reader tl_reader_of_memory(const void *bytes, size_t n, const char *path);
/* The next n bytes, exactly: a file that ends early is TL_EIO. */
tl_status tl_reader_read(tl_reader *r, void *dst, size_t n, tl_err *err);
/* The whole of a reader just opened. *data and *bytes are as for tl_file_read, but they stay as
 * they are on failure. */
tl_status tl_reader_all(tl_reader *r, size_t limit, char **data, size_t *bytes, tl_err *err);
void tl_reader_close(tl_reader *r);

/* A whole file of at most limit bytes. *data is the caller's (tl_free_raw), with
 * a NUL after the last byte that *bytes does not count; NULL and 0 on failure. */
tl_status tl_file_read(const char *path, size_t limit, char **data, size_t *bytes, tl_err *err);

/* A file being written. The target's permissions are kept (not its access lists), and its owner if
 * the system allows; if it does not allow the group, the group may do only what others may. A new
 * file gets 0666 less the umask. Nobody who may not read the target can read the temporary. A
 * symbolic link is followed: the file it names is replaced, or made. Targets that are not regular
 * files are refused. */
typedef struct tl_writer tl_writer;

/* Creates the temporary (copies path); *out is NULL on failure. Every writer wants
 * one commit or one abort. */
tl_status tl_writer_begin(tl_writer **out, const char *path, tl_err *err);
/* Adds n bytes. A failure removes the temporary at once and sticks: later appends
 * do nothing, commit reports it. */
tl_status tl_writer_append(tl_writer *w, const void *data, size_t n, tl_err *err);
/* The same as a tl_bytes_fn (bytes.h). */
tl_status tl_writer_block(void *w, const void *data, size_t n);
/* Writes what was appended to the disk, so that a full disk shows before anything is renamed. */
tl_status tl_writer_flush(tl_writer *w, tl_err *err);
/* The first half of a commit: flushes and renames. On failure the file has not been replaced. */
tl_status tl_writer_place(tl_writer *w, tl_err *err);
/* Flushes, renames, flushes the directory; frees w whatever happens. If only the
 * directory's flush fails, the new file is in place and the message says so. If the rename fails,
 * what was written stays as ".NAME.tally-kept" until somebody takes it; the message names it. */
tl_status tl_writer_commit(tl_writer *w, tl_err *err);
/* Removes the temporary and frees w. NULL is fine. */
void tl_writer_abort(tl_writer *w);

/* Puts n files of a folder into their places together. name[i] becomes what w[i] holds, and w[i] is
 * NULL afterwards; if w[i] is NULL, name[i] is removed (a link itself, not its target). Readers
 * know the other files by the last one, so it is moved away first and comes last.
 *
 * All are flushed before the first is touched, and the old ones wait as NAME.old (.old1, ... if
 * there is such a file) until the last is in place. A call that fails puts back what was there. If
 * it cannot, the message names the files, and the last one stays away. A process that is killed in
 * between leaves no last file. */
tl_status tl_writers_place(tl_writer **w, const char *const *name, int n, const char *folder,
                           tl_err *err);

/* Locks a folder: alone to replace files of it together, shared with other readers to read them
 * together. Writers and readers wait for each other for ten seconds, and then go on. Only processes
 * that ask are kept away, and only where a folder can be locked (perhaps not over a network). */
int tl_folder_lock(const char *folder, bool alone);
void tl_folder_unlock(int lock);

/* Whether tl_writer_begin would succeed at path now, for callers who will write much later. Leaves
 * nothing behind. */
tl_status tl_file_writable(const char *path, tl_err *err);

#endif
