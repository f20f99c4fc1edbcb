/* arena.h: where memory comes from, and how much of it is in use.
 *
 * A tl_arena is one lifetime (a model's, its gradients', a tape's). Tensor
 * storage comes from a jemalloc arena of its own through mallocx, aligned to 64
 * bytes; pages that fall free stay with the arena, so steps that repeat ask the
 * operating system for nothing. In a process without jemalloc, and built with
 * JEMALLOC=0 (for sanitizers and foreign processors), the same interface stands
 * on aligned_alloc.
 *
 * A tl_storage is a counted block: views share it, the last release frees it. For all rooms but nn.
 */
#ifndef TL_ARENA_H
#define TL_ARENA_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor/array.h"
#include "tensor/process.h"
#include "tensor/memory.h"

typedef struct tl_arena tl_arena;

/* Of dtypes that are known to be some. */
typedef struct {
    const char *name;
    size_t size;
    bool is_float;
} tl_dtype_facts;
extern const tl_dtype_facts tl_dtypes[];

/* What has changed a storage in place: an op or a call, and its place (file NULL: it has none).
 * Borrowed. */
typedef struct {
    const char *what, *file;
    int line;
} tl_changer;

typedef struct tl_storage {
    void *data;         /* 64-byte aligned; never NULL, not even for 0 bytes */
    size_t bytes, size; /* asked for; of the block's class */
    int bin;            /* that class */
    tl_arena *arena;
    _Atomic int32_t refs;         /* tapes of several threads may share a model's */
    _Atomic uint32_t version;     /* grows with every change in place */
    bool blank;                   /* counts as +0 throughout: who reads it writes that first */
    struct tl_change *changes;    /* what is known of them (change.h); freed with the block */
    tl_changer whole;             /* the last that is known without a region */
    struct tl_storage *next_free; /* of a bin, or of the scratch of one call */
    struct tl_storage *next_all;
} tl_storage;

/* One arena; name is borrowed and appears in statistics. NULL when out of memory. */
tl_arena *tl_arena_new(const char *name);
/* Frees the arena and everything in it. NULL is fine. */
void tl_arena_free(tl_arena *a);

/* A block with one reference, contents undefined (zeroed on request); NULL when out of memory. NULL
 * is fine for the others. */
tl_storage *tl_storage_new(tl_arena *a, size_t bytes, bool zeroed);
/* TL_ENOMEM for a block that was not to be had; more than the machine has never is. */
tl_status tl_storage_lack(size_t bytes, tl_err *err);
/* The zeros of one that is blank are written. */
void tl_storage_settle(tl_storage *s);
void tl_storage_retain(tl_storage *s);
void tl_storage_release(tl_storage *s);

/* Checks a shape as tl_shape_check does, makes of it a row-major array that is yet to have memory,
 * and says how many bytes it needs. */
tl_status tl_shape_lay(const tl_shape *s, tl_dtype d, tl_array *a, size_t *bytes, tl_err *err);
/* n arrays are checked and laid out so, unless their strides stand already, and each is given a
 * block, st[i], contents undefined; arena NULL: none. */
tl_status tl_arrays_new(tl_arena *arena, tl_array *a, int n, bool strided, tl_storage **st,
                        tl_err *err);
/* None of n arrays has an element. */
bool tl_arrays_empty(const tl_array *a, int n);

tl_memory_stats_t tl_arena_stats(const tl_arena *a);

/* Bump memory that a reset takes back whole and keeps for the next step. */
typedef struct tl_bump_block tl_bump_block;
typedef struct {
    tl_bump_block *first, *now;
} tl_bump;
void *tl_bump_get(tl_bump *b, size_t bytes); /* zeroed, 16-byte aligned; NULL when out of memory */
/* The next bytes of bump memory are there already; false when out of memory. */
bool tl_bump_room(tl_bump *b, size_t bytes);
void tl_bump_reset(tl_bump *b);
void tl_bump_rewind(tl_bump *b, size_t used); /* to when so much was used */
size_t tl_bump_used(const tl_bump *b);
void tl_bump_free(tl_bump *b);

#endif
