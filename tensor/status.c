/* status.c: names of the status codes, and how a first failure is kept. */
#include "tensor/status.h"

#include <stdio.h>

static const char *const names[] = {
#define X(name, text) "TL_" #name,
    TL_STATUS_LIST(X)
#undef X
};

static const char *const texts[] = {
#define X(name, text) text,
    TL_STATUS_LIST(X)
#undef X
};

const char *tl_status_name(tl_status s)
{
    return (unsigned)s < TL_STATUS_COUNT ? names[s] : "TL_?";
}

const char *tl_status_text(tl_status s)
{
    return (unsigned)s < TL_STATUS_COUNT ? texts[s] : "unknown status";
}

tl_status tl_vfail(tl_err *err, tl_status s, const char *fmt, va_list ap)
{
    if (err != NULL && err->status == TL_OK) {
        err->status = s;
        (void)vsnprintf(err->message, sizeof err->message, fmt, ap);
    }
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

void tl_err_clear(tl_err *err)
{
    err->status = TL_OK;
    err->message[0] = '\0';
}
