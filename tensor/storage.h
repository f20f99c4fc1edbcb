/* storage.h: the memory of tensors: where it comes from, how much of it is in use, who shares it,
 * and which regions of it were changed in place, by what.
 *
 * A tl_arena is one lifetime (a model's, its gradients', a tape's). Its blocks are aligned to 64
 * bytes and come from a jemalloc arena of its own. Free pages stay with the arena, so steps that
 * repeat ask the operating system for nothing. In a process without jemalloc, and built with
 * JEMALLOC=0 (for sanitizers and foreign processors), aligned_alloc takes its place. An arena is
 * used by one thread at a time (its tape's or its model's owner).
 *
 * A tl_storage is a block with a reference count: views share it, the last release frees it. A
 * value of a tape is what its memory held when it was made. Several views can share one storage (q,
 * k and v of a packed qkv), so a change through one of them spoils exactly the values that contain
 * an element it wrote.
 *
 * For all rooms but nn. */
#ifndef TL_STORAGE_H
#define TL_STORAGE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor/array.h"
#include "tensor/c_type.h"
#include "tensor/process.h"
#include "tensor/memory.h"

typedef struct tl_arena tl_arena;

/* What changed a storage in place: an op or a call, and its place in the source (file NULL:
 * unknown). All borrowed. */
typedef struct {
    const char *what, *file;
    int line;
} tl_changer;

/* One change whose region is known. */
typedef struct tl_change {
    tl_array where;
    uint32_t version; /* of the storage after the change */
    tl_changer by;
    struct tl_change *next; /* the change before */
} tl_change;

typedef struct tl_storage {
    void *data;   /* 64-byte aligned; never NULL, not even for 0 bytes */
    size_t bytes; /* as requested; they tell the block's class, and so its size */
    tl_arena *arena;
    _Atomic int32_t refs;         /* atomic, since tapes of several threads may share a model's */
    _Atomic uint32_t version;     /* incremented by every change in place */
    _Atomic uint64_t changed;     /* the number of the last change (tl_changes); 0: none */
    bool blank;                   /* counts as all +0, not written yet (tl_storage_settle) */
    tl_change *changes;           /* changes whose region is known, newest first */
    tl_changer whole;             /* the last change whose region is unknown */
    struct tl_storage *next_free; /* of a bin, or of the scratch of one call */
    struct tl_storage *next_all;  /* of the arena */
} tl_storage;

/* NULL when out of memory. */
tl_arena *tl_arena_new(void);
/* Frees the arena and everything in it. NULL is fine. */
void tl_arena_free(tl_arena *a);
tl_memory_stats_t tl_arena_stats(const tl_arena *a);

/* A block with one reference, its contents undefined or zeroed; NULL when out of memory, or for
 * more bytes than the machine has. */
tl_storage *tl_storage_new(tl_arena *a, size_t bytes, bool zeroed);
/* Fails with TL_ENOMEM for a block that tl_storage_new could not give. */
tl_status tl_storage_lack(size_t bytes, tl_err *err);
/* Bytes of memory and swap that the machine has; SIZE_MAX where it does not tell. */
size_t tl_machine_memory(void);
/* Writes the zeros of a blank block. */
void tl_storage_settle(tl_storage *s);
void tl_storage_retain(tl_storage *s);  /* NULL is fine */
void tl_storage_release(tl_storage *s); /* NULL is fine */

/* ---- arrays in memory (array.c) ---- */

/* Checks a shape as tl_shape_check does, and describes it as a row-major array without memory that
 * needs so many bytes. */
tl_status tl_shape_lay(const tl_shape *s, tl_dtype d, tl_array *a, size_t *bytes, tl_err *err);
/* Checks n arrays in the same way, lays them out row-major unless strided says that their strides
 * are set, and gives each a block st[i] with undefined contents. arena NULL: without blocks. */
tl_status tl_arrays_new(tl_arena *arena, tl_array *a, int n, bool strided, tl_storage **st,
                        tl_err *err);
/* Gives view a the dtype of `of`, and checks its dims as tl_shape_check does, but not the number of
 * bytes: a view needs none. TL_EUSAGE if it shows elements outside `of` (checked if `of` has data),
 * or, with `once`, if it repeats elements although `of` does not. */
tl_status tl_view_check(tl_array *a, const tl_array *of, bool once, tl_err *err);
/* Whether all of n arrays are empty. */
bool tl_arrays_empty(const tl_array *a, int n);
/* The bytes of all elements, stored side by side. */
size_t tl_array_room(const tl_array *a);
/* Whether the dtype is a compute type and the elements (with `rows`: of each row) contiguous. */
bool tl_array_plain(const tl_array *a, bool rows);
/* Whether both have the same dtype, shape and layout. */
bool tl_array_laid_alike(const tl_array *a, const tl_array *b);
/* Whether an element may show twice: the step of a dim is no longer than smaller steps reach. */
bool tl_array_repeats(const tl_array *a);

/* Copies elements from .. from + n - 1 of a, row-major, side by side; faster with few dims
 * (tl_array_collapse). */
void tl_array_gather(const tl_array *a, int64_t from, int64_t n, void *to);
/* Row-major index of the first element in which a and b differ by a bit, all NaNs counting as
 * equal; 0 if dtype or shape differ; -1 if nothing differs. */
int64_t tl_arrays_differ(const tl_array *a, const tl_array *b);

/* Visits the rows of a strided array in row-major order, without a division for each. The first
 * `lead` dims count the rows; a row is what the other dims hold. */
typedef struct {
    const tl_array *a;
    int lead;
    int64_t at[TL_MAX_DIMS]; /* index of the row */
    int64_t offset;          /* of its first element */
} tl_cursor;

/* A cursor at row number `row` of a. */
static inline tl_cursor tl_cursor_at(const tl_array *a, int lead, int64_t row)
{
    tl_cursor c = {.a = a, .lead = lead};
    for (int i = lead - 1; i >= 0 && row > 0; i--) {
        c.at[i] = row % a->dim[i];
        c.offset += c.at[i] * a->stride[i];
        row /= a->dim[i];
    }
    return c;
}

static inline void *tl_cursor_data(const tl_cursor *c)
{
    return (char *)c->a->data + c->offset * (int64_t)tl_dtype_size(c->a->dtype);
}

static inline void tl_cursor_next(tl_cursor *c)
{
    for (int i = c->lead - 1; i >= 0; i--) {
        c->offset += c->a->stride[i];
        if (++c->at[i] < c->a->dim[i])
            return;
        c->offset -= c->at[i] * c->a->stride[i];
        c->at[i] = 0;
    }
}

/* Whether n dims, aligned at the last, broadcast to the m dims `to` without enlarging them. */
bool tl_dims_expand(int n, const int64_t *dim, int m, const int64_t *to);
/* A view of n elements of a along a dim: start, start + step, ... (no data in a trace). */
tl_array tl_part_of(const tl_array *a, int dim, int64_t start, int64_t step, int64_t n);

/* c_type.c: checks the data that a call was given for a, which is contiguous: its C type fits the
 * dtype, there are enough bytes, it is not NULL where there are elements, each BOOL is 0 or 1. */
tl_status tl_data_check(const void *data, tl_c_data c, const tl_array *a, tl_err *err);

/* ---- changes in place ---- */

/* Whether two strided arrays have a byte in common. Exact for arrays cut from one layout; true
 * where strides are so odd that an answer would take too long. Source: the search of numpy's
 * shares_memory, for bounded integers with a given sum, largest stride first. */
bool tl_arrays_overlap(const tl_array *a, const tl_array *b);
/* The same for arrays that have no memory yet: b begins `apart` bytes after a. */
bool tl_arrays_overlap_apart(const tl_array *a, const tl_array *b, int64_t apart);

/* Notes a change of region c->where as the newest; s takes over c, which is from tl_calloc. c NULL:
 * the region is unknown, and may be all of s. */
void tl_storage_note(tl_storage *s, tl_changer by, tl_change *c);

/* How many changes of storages have been noted in this process: the number of the last. */
uint64_t tl_changes(void);

/* Whether a change of s after version `since` may have written an element of a. *by: the last such
 * change of a known region; if there is none, the last of an unknown one. */
bool tl_storage_changed(const tl_storage *s, uint32_t since, const tl_array *a, tl_changer *by);
/* "adamw (train.c:12)", "tl_load"; returns buf. */
enum { TL_CHANGER_TEXT = 192 };
const char *tl_changer_text(char buf[TL_CHANGER_TEXT], tl_changer by);

/* Frees the list. */
void tl_changes_free(tl_change *c);

#endif
