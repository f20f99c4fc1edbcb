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
    tl_changer by;
    struct tl_change *next; /* the one before */
} tl_change;

/* Two strided arrays have a byte in common. Exact for arrays cut from one layout; where
 * strides are so odd that an answer would take long, true. Source: the search is that of
 * numpy's shares_memory: bounded integers with a given sum, largest stride first. */
bool tl_arrays_overlap(const tl_array *a, const tl_array *b);
/* The same of arrays that lie nowhere yet: b begins `apart` bytes after a. */
bool tl_arrays_overlap_apart(const tl_array *a, const tl_array *b, int64_t apart);

/* Notes c (from tl_calloc, owned by s from now on; its version is set) as the newest change; or one
 * of which no region is known, which shows everywhere. */
void tl_storage_note(tl_storage *s, tl_change *c);
void tl_storage_note_whole(tl_storage *s, const char *what, const char *file, int line);

/* Whether s has changed after version `since` so that it shows in a, and what did it last. */
bool tl_storage_changed(const tl_storage *s, uint32_t since, const tl_array *a, tl_changer *by);
/* "adamw (train.c:12)", "tl_load"; returns buf. */
enum { TL_CHANGER_TEXT = 192 };
const char *tl_changer_text(char buf[TL_CHANGER_TEXT], tl_changer by);

/* Frees the list. */
void tl_changes_free(tl_change *c);

#endif
