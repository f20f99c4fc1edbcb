/* pool.h: threads that wait for chunks of work, for tensor/threads.c; and what it knows besides. */
#ifndef TL_POOL_H
#define TL_POOL_H

#include <stdbool.h>

#include "tensor/threads.h"

enum { TL_POOL_MOST = 256 };

/* body over [0, n) in `chunks` chunks (2 .. TL_POOL_MOST), chunk i as thread number i, on this
 * thread and on whatever others come in time. False, and nothing has run, while another thread uses
 * the pool. */
bool tl_pool_run(int64_t n, int chunks, tl_range_fn *body, void *ctx);

/* This thread is running a chunk. */
bool tl_pool_inside(void);

/* In a forked child, which has none of its parent's threads. */
bool tl_threads_forked(void);
/* TL_EUSAGE if TL_THREADS in the environment is no whole number from 0 to TL_POOL_MOST. */
tl_status tl_threads_environment(tl_err *err);

#endif
