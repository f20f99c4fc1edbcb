/* threads.c: decides how many threads a range is worth, and sets the environment of a thread: the
 * floating-point one, and the locale.
 *
 * One thread computes alone in a forked child, which has no other threads, and inside a parallel
 * region, whether ours or one of the user's OpenMP. */
#include "tensor/pool.h"

#include <locale.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <fenv.h>
#if defined(__APPLE__)
#include <xlocale.h>
#endif
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#else /* Apple's clang has no OpenMP, so the user has no regions either */
#include <unistd.h>
static int omp_get_num_procs(void) { return (int)sysconf(_SC_NPROCESSORS_ONLN); }
static int omp_in_parallel(void) { return 0; }
#endif

static _Atomic int threads; /* 0: not decided yet */
static _Atomic bool in_child;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void mark_child(void) { atomic_store(&in_child, true); }
static void install(void) { pthread_atfork(NULL, NULL, mark_child); }

bool tl_threads_forked(void)
{
    pthread_once(&once, install);
    return atomic_load_explicit(&in_child, memory_order_relaxed);
}

static int clamp(long n)
{
    if (n <= 0)
        n = omp_get_num_procs();
    return n > TL_POOL_MOST ? TL_POOL_MOST : (int)n;
}

void tl_threads_set(int n) { atomic_store(&threads, clamp(n)); }

int tl_threads(void)
{
    int n = atomic_load_explicit(&threads, memory_order_relaxed);
    if (n == 0) {
        const char *env = getenv("TL_THREADS");
        n = clamp(env != NULL ? strtol(env, NULL, 10) : 0);
        atomic_store(&threads, n);
    }
    return n;
}

tl_status tl_threads_environment(tl_err *err)
{
    const char *env = getenv("TL_THREADS");
    if (env == NULL ||
        (strspn(env, "0123456789") == strlen(env) && strtol(env, NULL, 10) <= TL_POOL_MOST))
        return TL_OK;
    return tl_fail(err, TL_EUSAGE,
                   "TL_THREADS=%.60s in the environment is not a number of threads; 1 to %d are "
                   "possible, 0 means one a core",
                   env, TL_POOL_MOST);
}

int tl_parallel_width(int64_t n, int64_t grain)
{
    const int64_t most = grain > 0 ? n / grain : n;
    if (most < 2)
        return 1;
    const int width = most < tl_threads() ? (int)most : tl_threads();
    const bool alone = width < 2 || tl_threads_forked() || tl_pool_inside() || omp_in_parallel();
    return alone ? 1 : width;
}

void tl_parallel_for(int64_t n, int64_t grain, tl_range_fn *body, void *ctx)
{
    if (n <= 0 || body == NULL)
        return;
    int width = tl_parallel_width(n, grain);
    if (width > 1 && tl_pool_run(n, width, body, ctx))
        return;
    tl_fpenv saved = tl_fpenv_enter();
    body(ctx, 0, n, 0);
    tl_fpenv_leave(saved);
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
static locale_t plain; /* C's, for the life of the process; 0, which changes nothing: no memory */

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
