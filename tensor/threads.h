/* threads.h: one way to use several threads, which cannot change a bit. Public.
 *
 * Work is cut into tasks over OUTPUT elements, and no sum is split between tasks: the number of
 * threads decides only who computes what. */
#ifndef TL_THREADS_H
#define TL_THREADS_H

#include <stdbool.h>
#include <stdint.h>

#include "tensor/process.h"
TL_BEGIN

/* body(ctx, begin, end, thread) over [0, n) in contiguous chunks, at most one a thread number, none
 * shorter than grain unless it is the only one. A thread that is done takes over chunks that nobody
 * has begun. On the calling thread alone inside another such call, while another thread's runs, and
 * in a forked child. */
typedef void tl_range_fn(void *ctx, int64_t begin, int64_t end, int thread);
void tl_parallel_for(int64_t n, int64_t grain, tl_range_fn *body, void *ctx);
/* At most so many chunks, for scratch memory per thread; grain >= 1. */
int tl_parallel_width(int64_t n, int64_t grain);

/* The floating-point environment of the contract (to nearest even, subnormals kept), which calls of
 * the library enter in every thread and leave again. */
typedef struct {
    uint64_t word;
} tl_fpenv;
tl_fpenv tl_fpenv_enter(void);
void tl_fpenv_leave(tl_fpenv saved);
/* The same where numbers become text or come from it: the C library rounds digits by a mode of its
 * own, on x86 that of the x87 unit. leave goes back to what was before. */
typedef struct {
    tl_fpenv word;
    int rounding;
} tl_textenv;
tl_textenv tl_textenv_enter(void);
void tl_textenv_leave(tl_textenv saved);
TL_END
#endif
