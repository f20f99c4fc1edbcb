/* threads.h: one way to use several threads, which cannot change a bit. Public.
 *
 * Work is cut into tasks over OUTPUT elements; no sum is ever split between tasks, so the number of
 * threads decides only who computes what. In every thread the floating-point environment is put
 * right for the time of the call (round to nearest even, subnormals kept) and restored afterwards.
 */
#ifndef TL_THREADS_H
#define TL_THREADS_H

#include <stdbool.h>
#include <stdint.h>

#include "tensor/status.h"
TL_BEGIN

/* Threads for kernels, process-wide; 0 means one per core. Default: TL_THREADS from the
 * environment, else one per core. Values above 256 count as 256. To be set while no other thread
 * computes. */
void tl_threads_set(int n);
int tl_threads(void);

/* body(ctx, begin, end, thread) over [0, n) in contiguous chunks, at most one chunk a thread
 * number, none shorter than grain unless it is the only one. A thread that is done takes over
 * chunks that nobody has begun. Runs on the calling thread alone inside another parallel region,
 * while another thread's range runs, and in a forked child. */
typedef void tl_range_fn(void *ctx, int64_t begin, int64_t end, int thread);
void tl_parallel_for(int64_t n, int64_t grain, tl_range_fn *body, void *ctx);

/* Chunks tl_parallel_for would use at most for n items of that grain (>= 1). */
int tl_parallel_width(int64_t n, int64_t grain);

/* The floating-point control word, saved and put right; restored by leave. */
typedef struct {
    uint64_t word;
} tl_fpenv;
tl_fpenv tl_fpenv_enter(void);
void tl_fpenv_leave(tl_fpenv saved);

/* The same where numbers become text or come from it: the C library rounds digits by a mode of its
 * own, on x86 the x87 unit's. */
typedef struct {
    tl_fpenv word;
    int rounding;
} tl_textenv;
tl_textenv tl_textenv_enter(void);
void tl_textenv_leave(tl_textenv saved);
TL_END
#endif
