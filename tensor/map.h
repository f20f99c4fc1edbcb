/* map.h: tables by key, and hashes to be keys. For all rooms. */
#ifndef TL_MAP_H
#define TL_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A table from keys, which are never 0, to numbers. */
typedef struct {
    uint64_t *key, *value;
    size_t n, cap; /* cap: 0 or a power of two */
    uint64_t salt; /* decides where keys lie; random where the keys may be chosen to collide */
} tl_key_map;
uint64_t *tl_key_map_find(const tl_key_map *m, uint64_t key);     /* NULL: not there */
bool tl_key_map_put(tl_key_map *m, uint64_t key, uint64_t value); /* false: out of memory */
void tl_key_map_clear(tl_key_map *m);
void tl_key_map_free(tl_key_map *m); /* it is empty then, and can be used again */

/* Mixes x into the hash h. */
uint64_t tl_mix(uint64_t h, uint64_t x);
/* Mixes in n elements, eight bytes at a time. The lowest byte of an element comes first on every
 * host; its size is a power of two. */
uint64_t tl_mix_elements(uint64_t h, const void *p, size_t n, size_t size);
uint64_t tl_mix_text(uint64_t h, const char *text);

#endif
