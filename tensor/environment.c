/* environment.c: the environment that a thread computes in: the floating-point one, and the locale.
 */
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

#include "tensor/threads.h"

/* The word that holds rounding and subnormals, and FLAGS, its bits that record exceptions. */
#if defined(__SSE2__)
enum { DEFAULT = 0x1f80 /* all exceptions masked, nearest even, no FTZ, no DAZ */, FLAGS = 0x3f };
static uint64_t fp_word(void) { return _mm_getcsr(); }
static void set_fp_word(uint64_t word) { _mm_setcsr((unsigned)word); }
#elif defined(__aarch64__)
enum { DEFAULT = 0, FLAGS = 0 };
static uint64_t fp_word(void)
{
    uint64_t word;
    __asm__ volatile("mrs %0, fpcr" : "=r"(word));
    return word;
}
static void set_fp_word(uint64_t word) { __asm__ volatile("msr fpcr, %0" : : "r"(word)); }
#else
enum { DEFAULT = FE_TONEAREST, FLAGS = 0 };
static uint64_t fp_word(void) { return (uint64_t)fegetround(); }
static void set_fp_word(uint64_t word) { fesetround((int)word); }
#endif

tl_fpenv tl_fpenv_enter(void)
{
    tl_fpenv saved = {fp_word()};
    if ((saved.word & ~(uint64_t)FLAGS) != DEFAULT)
        set_fp_word(DEFAULT);
    return saved;
}

void tl_fpenv_leave(tl_fpenv saved)
{
    if ((saved.word & ~(uint64_t)FLAGS) != DEFAULT)
        set_fp_word(saved.word);
}

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
