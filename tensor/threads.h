/* threads.h: parallel loops that cannot change a bit, and the floating-point environment. Public.
 *
 * Work is cut into tasks over OUTPUT elements, and no sum is split between tasks, so the number of
 * threads only decides which thread computes what. */
#ifndef TL_THREADS_H
#define TL_THREADS_H

#include <stdbool.h>
#include <stdint.h>

#include "tensor/process.h"
TL_BEGIN

/* Calls body(ctx, begin, end, thread) over [0, n) in contiguous chunks, at most one for each thread
 * number, none shorter than grain unless it is the only one. A thread that is done takes over
 * chunks that no other has begun. Everything runs on the calling thread inside another such call,
 * while another thread's call runs, and in a forked child. */
typedef void tl_range_fn(void *ctx, int64_t begin, int64_t end, int thread);
void tl_parallel_for(int64_t n, int64_t grain, tl_range_fn *body, void *ctx);
/* The most chunks that tl_parallel_for makes, to allocate scratch memory per thread; grain >= 1. */
int tl_parallel_width(int64_t n, int64_t grain);

/* The floating-point environment of the contract: rounds to nearest even and keeps subnormals.
 * Calls of the library enter it in every thread, and restore the caller's when they leave. */
typedef struct {
    uint64_t word;
} tl_fpenv;
tl_fpenv tl_fpenv_enter(void);
void tl_fpenv_leave(tl_fpenv saved);
/* The same for numbers as text, with the x87 unit's rounding and the C locale; leave restores. */
typedef struct {
    tl_fpenv word;
    int rounding;
    void *locale; /* a locale_t */
} tl_textenv;
tl_textenv tl_textenv_enter(void);
void tl_textenv_leave(tl_textenv saved);
TL_END
#endif
