/* bench_log.h: what logging a run costs a training step. */
#ifndef TESTS_BENCH_LOG_H
#define TESTS_BENCH_LOG_H

#include <jansson.h>

/* Prints and returns, for widths 128 and 512 and 1 and 2 threads: seconds of a step without a log,
 * of one whose results are all logged, and of one between two such (.every), in interleaved rounds;
 * and the overhead of .every = 1, 10, 50, 100 that follows. */
json_t *tl_bench_log(int rounds);

#endif
