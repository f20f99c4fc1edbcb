/* change.h: what was changed in place in a storage, region by region.
 *
 * A value of a tape is what its memory held when it was made. Several views share
 * one memory (q, k and v of a packed qkv), so a change through one of them spoils
 * exactly the values that show an element it has written.
 */
#ifndef TL_CHANGE_H
#define TL_CHANGE_H

#include "tensor/arena.h"
#include "tensor/array.h"

typedef struct tl_change {
    tl_array where;
    uint32_t version; /* of the storage after it */
    const char *what; /* op, and the place of its call; borrowed */
    const char *file;
    int line;
    struct tl_change *next; /* the one before */
} tl_change;

/* Two strided arrays have a byte in common. Exact for arrays cut from one layout; where
 * strides are so odd that an answer would take long, true. Source: the search is that of
 * numpy's shares_memory: bounded integers with a given sum, largest stride first. */
bool tl_arrays_overlap(const tl_array *a, const tl_array *b);
/* The same of arrays that lie nowhere yet: b begins `apart` bytes after a. */
bool tl_arrays_overlap_apart(const tl_array *a, const tl_array *b, int64_t apart);

/* Notes c (from tl_calloc, owned by s from now on; its version is set) as the newest change. c ==
 * NULL: all of s has changed. */
void tl_storage_note(tl_storage *s, tl_change *c);

/* The newest change of s after version `since` that shows in a, NULL if there is none. A
 * change of which no region is known shows everywhere. */
const tl_change *tl_storage_changed(const tl_storage *s, uint32_t since, const tl_array *a);

/* Frees the list. */
void tl_changes_free(tl_change *c);

#endif
