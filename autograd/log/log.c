/* log.c: opening and closing a tape's log, and what stops it. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "autograd/log/state.h"

void tl_log_stop(tl_run_log *l, tl_status s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    tl_vfail(&l->failure, s, fmt, ap);
    va_end(ap);
}

bool tl_log_full(const tl_run_log *l)
{
    return !l->begun || l->o.every <= 1 || l->step % l->o.every == 0 || l->step == l->o.keep;
}

char *tl_log_values_path(char *buf, size_t n, const char *path, int64_t step)
{
    snprintf(buf, n, "%s.step%" PRId64 ".safetensors", path, step);
    return buf;
}

static void free_log(tl_run_log *l)
{
    tl_log_drop_step(l);
    if (l->f != NULL)
        fclose(l->f);
    tl_key_map_free(&l->at);
    tl_key_map_free(&l->defined);
    tl_key_map_free(&l->model_key);
    tl_bump_free(&l->bump);
    tl_free_raw(l->entry);
    tl_free_raw(l->pass);
    tl_free_raw(l->key_of);
    tl_free_raw(l->job);
    tl_free_raw(l->text);
    tl_free_raw(l->path);
    tl_free_raw(l);
}

void tl_log_free(tl_tape *t)
{
    if (t->log != NULL)
        free_log(t->log);
    t->log = NULL;
}

/* A log that was cut off ends in half a line; what comes next must not join it. */
static bool ends_in_half_a_line(FILE *f) { return fseek(f, -1, SEEK_END) == 0 && fgetc(f) != '\n'; }

tl_run_log *tl_log_of_trace(void)
{
    tl_run_log *l = tl_calloc(1, sizeof *l);
    if (l != NULL)
        l->step = 1;
    return l;
}

static tl_status open_file(tl_at at, tl_run_log *l)
{
    l->f = fopen(l->path, l->o.append ? "a+" : "w");
    if (l->f == NULL)
        return tl_tape_fail(at, TL_EIO, "tl_log_open: cannot write %.200s: %s", l->path,
                            strerror(errno));
    bool half = l->o.append && ends_in_half_a_line(l->f);
    fseek(l->f, 0, SEEK_END);
    if (half)
        fputc('\n', l->f);
    tl_log_write_header(l);
    return l->failure.status == TL_OK
               ? TL_OK
               : tl_tape_fail(at, l->failure.status, "tl_log_open: %.400s", l->failure.message);
}

tl_status tl_log_open_at(tl_at at, const char *path, tl_log_options o)
{
    tl_tape *t = at.tape;
    if (tl_failed(t))
        return tl_error_status(t);
    if (t->log != NULL || t->tracing != NULL)
        return tl_tape_fail(at, TL_EUSAGE,
                            t->log != NULL ? "tl_log_open: this tape writes a log already, %.300s"
                                           : "tl_log_open: a graph is being traced%.0s",
                            t->log != NULL ? t->log->path : "");
    if (o.every < 0 || o.keep < 0 || o.first < 0)
        return tl_tape_fail(at, TL_EDOMAIN,
                            "tl_log_open: every is %" PRId64 ", keep %" PRId64 ", first %" PRId64
                            "; none may be below 0",
                            o.every, o.keep, o.first);
    tl_run_log *l = tl_calloc(1, sizeof *l);
    if (l != NULL)
        *l = (tl_run_log){.o = o, .step = o.first > 0 ? o.first : 1, .path = tl_strdup(path)};
    tl_status s = l == NULL || l->path == NULL
                      ? tl_tape_fail(at, TL_ENOMEM, "tl_log_open: no memory for the log %.300s",
                                     path)
                      : open_file(at, l);
    if (s == TL_OK)
        t->log = l;
    else if (l != NULL)
        free_log(l);
    return s;
}

void tl_log_name(tl_tape *t, tl_tensor x, const char *name)
{
    tl_value *v = t == NULL || tl_is_none(x) || x.owner != t->values.owner ? NULL : tl_peek(t, x);
    if (v != NULL)
        v->name = name;
}

const char *tl_log_error(const tl_tape *t)
{
    return t == NULL || t->log == NULL ? "" : t->log->failure.message;
}

tl_status tl_log_close_at(tl_at at)
{
    tl_run_log *l = at.tape == NULL ? NULL : at.tape->log;
    if (l == NULL || at.tape->tracing != NULL)
        return TL_OK;
    if (fclose(l->f) != 0)
        tl_log_stop(l, TL_EIO, "%.300s: cannot be written to its end: %s", l->path,
                    strerror(errno));
    l->f = NULL;
    tl_err e = l->failure;
    tl_log_free(at.tape);
    return e.status == TL_OK ? TL_OK
                             : tl_tape_fail(at, e.status, "tl_log_close: %.400s", e.message);
}

void tl_log_end_step(tl_tape *t)
{
    tl_run_log *l = t->log;
    tl_log_settle(l);
    if (l->failure.status == TL_OK)
        tl_log_write_step(t);
    tl_log_drop_step(l);
    l->begun = true;
    l->step++;
}

void tl_log_step(tl_tape *t)
{
    tl_run_log *l = t == NULL ? NULL : t->log;
    if (t != NULL)
        t->role &= (uint8_t)~TL_ROLE_UPDATE;
    if (l == NULL || tl_failed(t))
        return;
    if (t->tracing != NULL) {
        l->updates++;
        return;
    }
    tl_log_update_end(t);
    tl_log_end_step(t);
}
