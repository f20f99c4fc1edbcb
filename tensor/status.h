/* status.h: every way a call can fail, and the record of one failure. Public. */
#ifndef TL_STATUS_H
#define TL_STATUS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

/* Every public header lies between TL_BEGIN and TL_END. They declare it as C to a C++ compiler, and
 * make it visible in the shared library, which hides everything else. TL_MAKE(type){...} is a
 * struct literal in either language. */
#ifdef __cplusplus
#define TL_BEGIN \
    extern "C" { \
    _Pragma("GCC visibility push(default)")
#define TL_END                    \
    _Pragma("GCC visibility pop") \
    }
#define TL_MAKE(type) type
#else
#define TL_BEGIN _Pragma("GCC visibility push(default)")
#define TL_END _Pragma("GCC visibility pop")
#define TL_MAKE(type) (type)
#endif

TL_BEGIN

#define TL_STATUS_LIST(X)                                \
    X(OK, "no error")                                    \
    X(ESHAPE, "shapes do not fit")                       \
    X(EDTYPE, "dtype not accepted here")                 \
    X(EDOMAIN, "argument outside its domain")            \
    X(EINDEX, "index out of range")                      \
    X(ESTALE, "handle to a value that no longer exists") \
    X(EINPLACE, "saved value was changed in place")      \
    X(ENOGRAD, "gradient asked for where there is none") \
    X(ETRACED, "value read while tracing")               \
    X(ENAME, "name unknown or taken")                    \
    X(EUSAGE, "call not allowed in this state")          \
    X(ENOMEM, "out of memory")                           \
    X(EIO, "file could not be read or written")          \
    X(EFORMAT, "file is damaged or not of this format")

typedef enum {
#define TL_STATUS_ENUM(name, text) TL_##name,
    TL_STATUS_LIST(TL_STATUS_ENUM)
#undef TL_STATUS_ENUM
        TL_STATUS_COUNT
} tl_status;

/* The name of a status ("TL_ESHAPE") and its meaning, as text; never NULL. */
const char *tl_status_name(tl_status s);
const char *tl_status_text(tl_status s);

/* The first failure of an object. Later ones do not overwrite it, so that a user reads the cause
 * and not a consequence. All zero means none. */
enum { TL_MESSAGE_MAX = 1024 };
typedef struct {
    tl_status status;
    bool read; /* somebody has asked for the message */
    char message[TL_MESSAGE_MAX];
} tl_err;

#if defined(__GNUC__)
#define TL_PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))
#else
#define TL_PRINTF(fmt, first)
#endif

/* Records a failure in err, unless that is NULL or has one; returns s. Cuts messages longer than
 * TL_MESSAGE_MAX - 1. tl_vfail is to tl_fail what vprintf is to printf. */
tl_status tl_fail(tl_err *err, tl_status s, const char *fmt, ...) TL_PRINTF(3, 4);
tl_status tl_vfail(tl_err *err, tl_status s, const char *fmt, va_list ap) TL_PRINTF(3, 0);
void tl_err_clear(tl_err *err); /* forgets it; NULL is fine */

/* TL_EDOMAIN if n is negative, or if `what`, the pointer to n > 0 things, is NULL: "tl_concat: -1
 * is not a count", "tl_save: path is NULL". func: __func__ of the public function. */
tl_status tl_need(tl_err *err, const char *func, const char *what, bool there, int64_t n);
static inline bool tl_is_count(int64_t n) { return n >= 0; }
#define TL_NEED(err, p) ((p) != NULL ? TL_OK : tl_need(err, __func__, #p, false, 1))
#define TL_NEED_N(err, p, n) \
    ((p) != NULL && tl_is_count(n) ? TL_OK : tl_need(err, __func__, #p, (p) != NULL, n))

/* Returns from the function around it with the status of a call that fails. */
#define TL_TRY(call)                      \
    do {                                  \
        tl_status tl_try_status = (call); \
        if (tl_try_status != TL_OK)       \
            return tl_try_status;         \
    } while (0)
TL_END
#endif
