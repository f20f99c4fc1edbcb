/* arena.h: where memory comes from, and how much of it is in use.
 *
 * A tl_arena is one lifetime (a model's, its gradients', a tape's). Tensor
 * storage comes from a jemalloc arena of its own through mallocx, aligned to 64
 * bytes; pages that fall free stay with the arena, so steps that repeat ask the
 * operating system for nothing. In a process without jemalloc, and built with
 * JEMALLOC=0 (for sanitizers and foreign processors), the same interface stands
 * on aligned_alloc.
 *
 * A tl_storage is a counted block: views share it, the last release frees it.
 */
#ifndef TL_ARENA_H
#define TL_ARENA_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor/status.h"

/* What blocks come from: "jemalloc", or "aligned_alloc" where the process has no jemalloc. */
const char *tl_allocator(void);

typedef struct tl_arena tl_arena;

typedef struct tl_storage {
    void *data; /* 64-byte aligned; NULL when bytes == 0 */
    size_t bytes;
    tl_arena *arena;
    _Atomic int32_t refs;      /* tapes of several threads may share a model's */
    _Atomic uint32_t version;  /* grows with every change in place */
    struct tl_change *changes; /* what is known of them (change.h); freed with the block */
    struct tl_storage *next_free, *next_all;
} tl_storage;

/* One arena; name is borrowed and appears in statistics. NULL when out of memory. */
tl_arena *tl_arena_new(const char *name);
/* Frees the arena and everything in it. NULL is fine. */
void tl_arena_free(tl_arena *a);

/* A block with one reference, contents undefined (zeroed on request); NULL when out of memory. NULL
 * is fine for the others. */
tl_storage *tl_storage_new(tl_arena *a, size_t bytes, bool zeroed);
void tl_storage_retain(tl_storage *s);
void tl_storage_release(tl_storage *s);

/* Bookkeeping memory (nodes, names): the C heap behind the same fault hook. */
void *tl_calloc(size_t n, size_t size);
void *tl_realloc(void *p, size_t bytes);
void tl_free_raw(void *p);
char *tl_strdup(const char *s);

/* Bytes now in use, highest since the last tl_memory_peak_reset, blocks alive, what jemalloc holds
 * for it from the operating system (0 without jemalloc), and how often a block was not at hand and
 * jemalloc was asked for it. */
typedef struct {
    size_t used, peak, blocks, mapped, asked;
} tl_memory_stats_t;
tl_memory_stats_t tl_arena_stats(const tl_arena *a);
void tl_arena_peak_reset(tl_arena *a);

/* Test hook: the n-th allocation from now fails (1 = the next); 0 switches it off. */
void tl_alloc_fail_after(int64_t n);

/* Test hook: counts the bytes of bookkeeping memory from now on, or no longer; returns the most of
 * them that were in use at once since it was called last. */
int64_t tl_alloc_peak(bool watch);

#endif
