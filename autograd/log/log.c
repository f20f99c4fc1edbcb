/* log.c: opening, stopping and closing a tape's log. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "autograd/log/internal.h"
#include "tensor/files/file.h"

void tl_log_free(tl_run_log *l)
{
    if (l == NULL)
        return;
    tl_log_drop_step(l);
    if (l->f != NULL)
        fclose(l->f);
    tl_key_map_free(&l->at);
    tl_key_map_free(&l->defined);
    tl_key_map_free(&l->other_key);
    tl_bump_free(&l->bump);
    tl_free_raw(l->entry);
    tl_free_raw(l->pass);
    tl_free_raw(l->job);
    tl_free_raw(l->path);
    tl_free_raw(l);
}

/* Checks that a run can be added to f: it is empty, or a log of this version. */
static tl_status check_log(tl_at at, const char *path, FILE *f)
{
    char line[32];
    rewind(f);
    if (fgets(line, sizeof line, f) == NULL)
        return TL_OK;
    if (strncmp(line, TL_LOG_HEAD, strlen(TL_LOG_HEAD)) != 0)
        return tl_tape_fail(at, TL_EFORMAT,
                            "tl_log_open: %.200s is not the log of a run: nothing is added to it",
                            path);
    const int version = atoi(line + strlen(TL_LOG_HEAD));
    if (version == TL_LOG_VERSION)
        return TL_OK;
    return tl_tape_fail(at, TL_EFORMAT,
                        "tl_log_open: %.200s is a log of version %d; what is added would be of "
                        "version %d, which hashes otherwise",
                        path, version, TL_LOG_VERSION);
}

/* Opens the file. It stays as it is until the rest of the log has found memory. */
static tl_status open_file(tl_at at, tl_run_log *l)
{
    const int fd = tl_file_open(l->path, (l->o.append ? O_RDWR | O_APPEND : O_WRONLY) | O_CREAT,
                                0666);
    l->f = fd < 0 ? NULL : fdopen(fd, l->o.append ? "a+" : "w");
    if (l->f == NULL && fd >= 0)
        close(fd);
    if (l->f == NULL)
        return tl_tape_fail(at, errno == ENOMEM ? TL_ENOMEM : TL_EIO,
                            "tl_log_open: cannot write %.200s: %s", l->path, strerror(errno));
    return l->o.append ? check_log(at, l->path, l->f) : TL_OK;
}

static tl_status begin_file(tl_at at, tl_run_log *l)
{
    if (!l->o.append && ftruncate(fileno(l->f), 0) != 0 && errno != EINVAL) /* a FIFO has no end */
        return tl_tape_fail(at, TL_EIO, "tl_log_open: cannot begin %.200s: %s", l->path,
                            strerror(errno));
    /* a log that was cut off ends in half a line; the next line must not join it */
    bool half = l->o.append && fseek(l->f, -1, SEEK_END) == 0 && fgetc(l->f) != '\n';
    fseek(l->f, 0, SEEK_END);
    if (half)
        fputc('\n', l->f);
    tl_log_write_header(l);
    return l->failure.status == TL_OK
               ? TL_OK
               : tl_tape_fail(at, l->failure.status, "tl_log_open: %s", l->failure.message);
}

/* Checks, before the log begins, that the values of step `keep` can be written beside it. */
static tl_status check_values(tl_at at, const char *path, int64_t keep)
{
    char values[TL_LOG_PATH];
    tl_err why = {.status = TL_OK};
    if (keep > 0 && tl_log_values_path(values, sizeof values, path, keep) == NULL)
        return tl_tape_fail(
            at, TL_EIO,
            "tl_log_open: %.100s...: a path of %zu bytes is too long for the values "
            "of step %" PRId64 " beside it",
            path, strlen(path), keep);
    if (keep > 0 && tl_file_writable(values, &why) != TL_OK)
        return tl_tape_fail(at, why.status, "tl_log_open: %s", why.message);
    return TL_OK;
}

tl_status tl_log_open_at(tl_at at, const char *path, tl_log_options o)
{
    tl_tape *t = at.tape;
    TL_TRY(tl_error_status(t));
    if (tl_traced(t))
        return tl_tape_fail(at, TL_EUSAGE, "tl_log_open: a graph is being traced");
    if (tl_log_of(t) != NULL)
        return tl_tape_fail(at, TL_EUSAGE, "tl_log_open: this tape writes a log already, %.300s",
                            tl_log_of(t)->path);
    if (o.every < 0 || o.keep < 0 || o.first < 0)
        return tl_tape_fail(at, TL_EDOMAIN,
                            "tl_log_open: every is %" PRId64 ", keep %" PRId64 ", first %" PRId64
                            "; none may be below 0",
                            o.every, o.keep, o.first);
    TL_TRY(TL_NEED_AT(at, path));
    TL_TRY(check_values(at, path, o.keep));
    tl_run_log *l = tl_calloc(1, sizeof *l);
    if (l != NULL)
        *l = (tl_run_log){.o = o,
                          .step = o.first > 0 ? o.first : 1,
                          .path = tl_strdup(path),
                          .update_from = UINT32_MAX};
    tl_status s = l == NULL || l->path == NULL ? TL_ENOMEM : open_file(at, l);
    if (s == TL_OK)
        s = tl_log_attach(t, l);
    if (s == TL_ENOMEM)
        tl_tape_fail(at, s, "tl_log_open: no memory for the log %.300s", path);
    if (s == TL_OK && (s = begin_file(at, l)) != TL_OK)
        tl_log_attach(t, NULL);
    if (s != TL_OK)
        tl_log_free(l);
    return s;
}

tl_status tl_log_of_trace(tl_tape *t)
{
    tl_run_log *l = tl_calloc(1, sizeof *l);
    if (l == NULL)
        return TL_ENOMEM;
    l->step = 1;
    l->of_trace = true;
    tl_status s = tl_log_attach(t, l);
    if (s != TL_OK)
        tl_log_free(l);
    return s;
}

const char *tl_log_error(const tl_tape *t)
{
    return tl_log_of(t) == NULL ? "" : tl_log_of(t)->failure.message;
}

tl_status tl_log_close_at(tl_at at)
{
    if (!tl_lives(at.tape))
        return tl_error_status(at.tape);
    tl_run_log *l = tl_log_of(at.tape);
    if (l == NULL || l->of_trace)
        return TL_OK;
    if (fclose(l->f) != 0)
        tl_fail(&l->failure, TL_EIO, "%.300s: cannot be written to its end: %s", l->path,
                strerror(errno));
    l->f = NULL;
    tl_err e = l->failure;
    tl_log_free(l);
    tl_log_attach(at.tape, NULL);
    return e.status == TL_OK ? TL_OK : tl_tape_fail(at, e.status, "tl_log_close: %s", e.message);
}

/* ---- steps ---- */

void tl_log_end_step(tl_tape *t)
{
    tl_run_log *l = tl_log_of(t);
    tl_log_settle(l);
    if (l->failure.status == TL_OK)
        tl_log_write_step(l);
    tl_log_drop_step(l);
    tl_log_forget_keys(t);
    l->begun = true;
    l->step++;
}

void tl_log_step(tl_tape *t) { tl_update_end(t); }
