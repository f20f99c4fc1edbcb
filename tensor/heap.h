/* heap.h: where the blocks of an arena come from - jemalloc, where the process has it. For arena.c
 * alone. */
#ifndef TL_HEAP_H
#define TL_HEAP_H

#include <stddef.h>

/* Blocks of one lifetime, for one thread at a time. Pages that fall free stay with it. */
typedef struct tl_heap tl_heap;

tl_heap *tl_heap_open(void); /* NULL when out of memory */
/* All its blocks have been given back. */
void tl_heap_close(tl_heap *h);
void *tl_heap_get(tl_heap *h, size_t bytes); /* 64-byte aligned; NULL when out of memory */
void tl_heap_give(tl_heap *h, void *p);
/* Bytes of memory and swap that the machine has; SIZE_MAX where it does not tell. */
size_t tl_heap_most(void);
size_t tl_heap_mapped(const tl_heap *h); /* bytes that jemalloc holds for it; 0 if it cannot tell */

#endif
