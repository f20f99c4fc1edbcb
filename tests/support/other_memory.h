/* other_memory.h: memory that jansson and libcrypto ask for, counted and refused. In the whole
 * runner, from its start. */
#ifndef TL_OTHER_MEMORY_H
#define TL_OTHER_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

/* Whether libcrypto took the hooks (not if it had memory before main). */
bool other_memory_hooked(void);
/* The n-th request from now fails, with all: and every one after it; 0: none fails. */
void other_memory_fail(int64_t n, bool all);
/* Blocks that are in use; and the most bytes that were at once since it was called last. */
int64_t other_memory_blocks(void);
int64_t other_memory_peak(void);

#endif
