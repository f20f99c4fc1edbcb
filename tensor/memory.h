/* memory.h: memory for records, names and texts: the C heap, where every allocation can be made to
 * fail. For all rooms. */
#ifndef TL_MEMORY_H
#define TL_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *tl_calloc(size_t n, size_t size);
void *tl_realloc(void *p, size_t bytes);
void tl_free_raw(void *p);
/* Makes room for element n of a list by doubling it: list is the address of the pointer to its
 * *cap elements of that size. False, with both as they were, when out of memory. */
bool tl_grow(void *list, int *cap, int n, size_t size);
char *tl_strdup(const char *s);

#ifdef TL_TEST_HOOKS /* of the tests' arena.o; the library has none */
/* The n-th allocation from now fails (1 = the next), a tensor's as well; 0 switches it off. */
void tl_alloc_fail_after(int64_t n);
/* Counts the bytes of this memory from now on, or no longer; returns the most of them that were in
 * use at once since it was called last. */
int64_t tl_alloc_peak(bool watch);
#endif

#endif
