/* pool.h: the thread pool behind tl_parallel_for, and what the library asks of threads.c besides.
 */
#ifndef TL_POOL_H
#define TL_POOL_H

#include <stdbool.h>

#include "tensor/threads.h"

enum { TL_POOL_MOST = 256 };

/* Runs body over [0, n) in `chunks` chunks (2 .. TL_POOL_MOST), chunk i as thread number i, on this
 * thread and on whichever others come in time. Returns false, and runs nothing, while another
 * thread uses the pool. */
bool tl_pool_run(int64_t n, int chunks, tl_range_fn *body, void *ctx);

/* Whether this thread is running a chunk. */
bool tl_pool_inside(void);

/* Whether this is a forked child, which has none of its parent's threads. */
bool tl_threads_forked(void);
/* TL_EUSAGE if TL_THREADS in the environment is no whole number from 0 to TL_POOL_MOST. */
tl_status tl_threads_environment(tl_err *err);

#endif
