/* bench_cost.h: what the contract costs - each op's kernel beside the fastest free equivalent
 * (fast_loops.h). */
#ifndef TL_BENCH_COST_H
#define TL_BENCH_COST_H

#include <jansson.h>

#include "tensor/isa.h"

/* Prints the table, one thread; returns it as a JSON array: name, free, contract_ns, free_ns (a
 * call each), ratio. */
json_t *tl_bench_cost(const tl_isa *isa, int rounds);

#endif
