/* change.h: which regions of a storage were changed in place, and by what.
 *
 * A value of a tape is what its memory held when it was made. Several views can share one storage
 * (q, k and v of a packed qkv), so a change through one of them spoils exactly the values that
 * contain an element it wrote. */
#ifndef TL_CHANGE_H
#define TL_CHANGE_H

#include "tensor/arena.h"
#include "tensor/array.h"

typedef struct tl_change {
    tl_array where;
    uint32_t version; /* of the storage after the change */
    tl_changer by;
    struct tl_change *next; /* the change before */
} tl_change;

/* Whether two strided arrays have a byte in common. Exact for arrays cut from one layout; true
 * where strides are so odd that an answer would take too long. Source: the search of numpy's
 * shares_memory, for bounded integers with a given sum, largest stride first. */
bool tl_arrays_overlap(const tl_array *a, const tl_array *b);
/* The same for arrays that have no memory yet: b begins `apart` bytes after a. */
bool tl_arrays_overlap_apart(const tl_array *a, const tl_array *b, int64_t apart);

/* Notes c (from tl_calloc; s owns it from now on, and sets its version) as the newest change. */
void tl_storage_note(tl_storage *s, tl_change *c);
/* Notes a change of which no region is known, which may be anywhere. */
void tl_storage_note_whole(tl_storage *s, const char *what, const char *file, int line);

/* How many changes of storages have been noted in this process: the number of the last. */
uint64_t tl_changes(void);

/* Whether a change of s after version `since` may have written an element of a; *by is the last. */
bool tl_storage_changed(const tl_storage *s, uint32_t since, const tl_array *a, tl_changer *by);
/* "adamw (train.c:12)", "tl_load"; returns buf. */
enum { TL_CHANGER_TEXT = 192 };
const char *tl_changer_text(char buf[TL_CHANGER_TEXT], tl_changer by);

/* Frees the list. */
void tl_changes_free(tl_change *c);

#endif
