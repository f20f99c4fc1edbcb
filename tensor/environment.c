/* environment.c: the variables that the library reads, and the environment that a thread computes
 * in: the floating-point one, and the locale. */
#include "tensor/environment.h"

#include <fenv.h>
#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__APPLE__)
#include <xlocale.h>
#endif
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include "tensor/isa.h"
#include "tensor/threads.h"

static tl_status check_isa(tl_err *err)
{
    const char *env = getenv("TL_ISA");
    char here[64] = "";
    if (env == NULL || *env == '\0')
        return TL_OK;
    for (int i = 0; tl_isa_at(i) != NULL; i++) {
        if (strcmp(env, tl_isa_at(i)->name) == 0)
            return TL_OK;
        snprintf(here + strlen(here), sizeof here - strlen(here), "%s%s", i > 0 ? ", " : "",
                 tl_isa_at(i)->name);
    }
    return tl_fail(
        err, TL_EUSAGE,
        "TL_ISA=%.60s in the environment is not a vector level of this processor; it has "
        "%s",
        env, here);
}

static tl_status check_threads(tl_err *err)
{
    const char *env = getenv("TL_THREADS");
    if (env == NULL ||
        (strspn(env, "0123456789") == strlen(env) && strtol(env, NULL, 10) <= TL_THREADS_MOST))
        return TL_OK;
    return tl_fail(err, TL_EUSAGE,
                   "TL_THREADS=%.60s in the environment is not a number of threads; 1 to %d are "
                   "possible, 0 means one a core",
                   env, TL_THREADS_MOST);
}

tl_status tl_environment_check(tl_err *err)
{
    TL_TRY(check_isa(err));
    return check_threads(err);
}

#if defined(__SSE2__)
enum { MXCSR_DEFAULT = 0x1f80 }; /* all exceptions masked, nearest even, no FTZ, no DAZ */

tl_fpenv tl_fpenv_enter(void)
{
    tl_fpenv saved = {_mm_getcsr()};
    if ((saved.word & ~0x3fu) != MXCSR_DEFAULT)
        _mm_setcsr(MXCSR_DEFAULT);
    return saved;
}

void tl_fpenv_leave(tl_fpenv saved)
{
    if ((saved.word & ~0x3fu) != MXCSR_DEFAULT)
        _mm_setcsr((unsigned)saved.word);
}
#elif defined(__aarch64__)
tl_fpenv tl_fpenv_enter(void)
{
    tl_fpenv saved;
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved.word));
    if (saved.word != 0)
        __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0));
    return saved;
}

void tl_fpenv_leave(tl_fpenv saved)
{
    if (saved.word != 0)
        __asm__ volatile("msr fpcr, %0" : : "r"(saved.word));
}
#else
tl_fpenv tl_fpenv_enter(void)
{
    tl_fpenv saved = {(uint64_t)fegetround()};
    if (saved.word != FE_TONEAREST)
        fesetround(FE_TONEAREST);
    return saved;
}

void tl_fpenv_leave(tl_fpenv saved)
{
    if (saved.word != FE_TONEAREST)
        fesetround((int)saved.word);
}
#endif

static pthread_once_t plain_once = PTHREAD_ONCE_INIT;
static locale_t plain; /* the C locale, kept for good; if out of memory 0, which changes nothing */

static void make_plain(void) { plain = newlocale(LC_ALL_MASK, "C", (locale_t)0); }

tl_textenv tl_textenv_enter(void)
{
    pthread_once(&plain_once, make_plain);
    tl_textenv saved = {.word = tl_fpenv_enter(), .rounding = fegetround()};
    saved.locale = (void *)uselocale(plain);
    if (saved.rounding != FE_TONEAREST)
        fesetround(FE_TONEAREST);
    return saved;
}

void tl_textenv_leave(tl_textenv saved)
{
    uselocale((locale_t)saved.locale);
    if (saved.rounding != FE_TONEAREST) {
        /* This also sets the vector unit's mode, which may have been another one. */
        fesetround(saved.rounding);
        tl_fpenv_enter();
    }
    tl_fpenv_leave(saved.word);
}
