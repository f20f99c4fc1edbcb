/* steps.c: called from code that was compiled with -fsanitize-coverage=trace-pc. */
#include "tests/support/steps.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

void __sanitizer_cov_trace_pc(void);
void *tl_steps_memset(void *p, int c, size_t n);

static _Atomic int64_t steps;

void __sanitizer_cov_trace_pc(void) { atomic_fetch_add_explicit(&steps, 1, memory_order_relaxed); }

void *tl_steps_memset(void *p, int c, size_t n)
{
    atomic_fetch_add_explicit(&steps, (int64_t)n, memory_order_relaxed);
    return memset(p, c, n);
}

int64_t steps_taken(void) { return atomic_load(&steps); }
