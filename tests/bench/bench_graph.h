/* bench_graph.h: a training step compiled, beside the same step called. */
#ifndef TESTS_BENCH_GRAPH_H
#define TESTS_BENCH_GRAPH_H

#include <jansson.h>

/* Prints and returns, for widths 128 and 512 and 1 and 2 threads: seconds of both in interleaved
 * rounds, their ratio, peak memory of both tapes; and what tracing and planning 12 layers takes. */
json_t *tl_bench_graph(int rounds);

#endif
