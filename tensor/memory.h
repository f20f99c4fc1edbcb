/* memory.h: memory for records, names and texts, from the C heap; tables by key; and bump memory,
 * which is carved from large blocks. In tests every allocation can be made to fail. For all rooms.
 */
#ifndef TL_MEMORY_H
#define TL_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

void *tl_calloc(size_t n, size_t size);
void *tl_realloc(void *p, size_t bytes);
void tl_free_raw(void *p);
/* Makes room for element n of a list by doubling it: list is the address of the pointer to its
 * *cap elements of that size. False, with both as they were, when out of memory. */
bool tl_grow(void *list, int *cap, int n, size_t size);
/* Makes a table of *cap elements reach element i; the new ones are zero. False as above. */
bool tl_grow_to(void *table, uint32_t *cap, uint32_t i, size_t size);
char *tl_strdup(const char *s);
/* Closes f, a stream of open_memstream that sets *text, which free() releases. False if the text is
 * cut or missing: fclose alone may not report that it had no memory. f may be NULL. */
bool tl_text_close(FILE *f, char **text);
bool tl_same_text(const char *a, const char *b); /* or both are NULL */
/* The shape of an array, or a shape, as text for a message. It lives until the block ends. */
#define TL_TEXT(array) tl_array_shape_text((char[TL_SHAPE_TEXT]){0}, array)
#define TL_TEXT_OF(shape) tl_shape_text((char[TL_SHAPE_TEXT]){0}, shape)

/* Marks a parameter that a callback does not need. */
#define TL_UNUSED __attribute__((unused))

/* A table from keys, which are never 0, to numbers. */
typedef struct {
    uint64_t *key, *value;
    size_t n, cap; /* cap: 0 or a power of two */
    uint64_t salt; /* decides where keys lie; random where the keys may be chosen to collide */
} tl_key_map;
uint64_t *tl_key_map_find(const tl_key_map *m, uint64_t key);     /* NULL: none */
bool tl_key_map_put(tl_key_map *m, uint64_t key, uint64_t value); /* false: out of memory */
void tl_key_map_clear(tl_key_map *m);
void tl_key_map_free(tl_key_map *m); /* empties it for use again */

/* Mixes x into the hash h. */
uint64_t tl_mix(uint64_t h, uint64_t x);
/* Mixes in n elements, eight bytes at a time. The lowest byte of an element comes first on every
 * host; its size is a power of two. */
uint64_t tl_mix_elements(uint64_t h, const void *p, size_t n, size_t size);
uint64_t tl_mix_text(uint64_t h, const char *text);

/* Bump memory: a reset takes all of it back at once and keeps the blocks for the next step. */
typedef struct tl_bump_block tl_bump_block;
typedef struct {
    tl_bump_block *first, *now;
} tl_bump;
void *tl_bump_get(tl_bump *b, size_t bytes); /* zeroed, 16-byte aligned; NULL when out of memory */
/* Makes sure that the next `bytes` need no allocation; false when out of memory. */
bool tl_bump_room(tl_bump *b, size_t bytes);
size_t tl_bump_used(const tl_bump *b);
/* Takes back all but the first `used` bytes, a number that tl_bump_used gave; 0 is a reset. */
void tl_bump_rewind(tl_bump *b, size_t used);
void tl_bump_free(tl_bump *b);

#ifdef TL_TEST_HOOKS /* only in the tests' own storage.o and memory.o, not in the library */
/* The n-th allocation from now fails (1 = the next), a tensor's as well; 0 switches it off. */
void tl_alloc_fail_after(int64_t n);
bool tl_alloc_fails(void); /* whether this allocation fails */
/* Starts or stops counting the bytes of this memory; returns the most that were in use at once
 * since the last call. */
int64_t tl_alloc_peak(bool watch);
#else
static inline bool tl_alloc_fails(void) { return false; }
#endif

#endif
