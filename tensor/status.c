/* status.c: names of the status codes, and the record of an object's first failure. */
#include "tensor/status.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "tensor/threads.h"

static const struct {
    const char *name, *text;
} known[] = {
#define X(name, text) {"TL_" #name, text},
    TL_STATUS_LIST(X)
#undef X
};

const char *tl_status_name(tl_status s)
{
    return (unsigned)s < TL_STATUS_COUNT ? known[s].name : "TL_?";
}

const char *tl_status_text(tl_status s)
{
    return (unsigned)s < TL_STATUS_COUNT ? known[s].text : "unknown status";
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* threads share a model's record */

tl_status tl_vfail(tl_err *err, tl_status s, const char *fmt, va_list ap)
{
    if (err == NULL || __atomic_load_n(&err->status, __ATOMIC_ACQUIRE) != TL_OK)
        return s;
    char said[sizeof err->message];
    size_t n = 0;
    tl_textenv saved = tl_textenv_enter();
    (void)vsnprintf(said, sizeof said, fmt, ap);
    tl_textenv_leave(saved);
    pthread_mutex_lock(&lock);
    if (err->status == TL_OK) {
        err->read = false;
        /* Messages quote files and reach terminals, so control characters are written out. */
        for (const char *c = said; *c != '\0' && n + sizeof "%1b" <= sizeof said; c++) {
            if (((unsigned char)*c >= ' ' && *c != 0x7f) || *c == '\n')
                err->message[n++] = *c;
            else
                n += (size_t)sprintf(err->message + n, "%%%02x", (unsigned char)*c);
        }
        err->message[n] = '\0';
        __atomic_store_n(&err->status, s, __ATOMIC_RELEASE); /* all threads of a model read it */
    }
    pthread_mutex_unlock(&lock);
    return s;
}

tl_status tl_fail(tl_err *err, tl_status s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    tl_vfail(err, s, fmt, ap);
    va_end(ap);
    return s;
}

tl_status tl_need(tl_err *err, const char *func, const char *what, bool there, int64_t n)
{
    size_t m = strlen(func); /* length of the name as the user writes it: without _at or _with */
    if (m > 3 && strcmp(func + m - 3, "_at") == 0)
        m -= 3;
    else if (m > 5 && strcmp(func + m - 5, "_with") == 0)
        m -= 5;
    if (n < 0)
        return tl_fail(err, TL_EDOMAIN, "%.*s: %lld is not a count", (int)m, func, (long long)n);
    return there || n == 0 ? TL_OK
                           : tl_fail(err, TL_EDOMAIN, "%.*s: %s is NULL", (int)m, func, what);
}

void tl_err_clear(tl_err *err)
{
    if (err == NULL)
        return;
    pthread_mutex_lock(&lock);
    err->message[0] = '\0';
    __atomic_store_n(&err->status, TL_OK, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
}
