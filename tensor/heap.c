/* heap.c: blocks from a jemalloc arena per lifetime, where the process has jemalloc.
 *
 * jemalloc cannot come into a running process (its thread-local storage is laid out when a program
 * starts), so the library refers to it weakly: a program linked with it has it, and one that opens
 * libtally.so later, as Python does, gets aligned_alloc.
 *
 * A jemalloc arena that is destroyed leaves addresses and some pages behind, megabytes and
 * kilobytes each. So none is: a heap that is closed gives its pages back to the system and waits,
 * and the next to be opened is that one. There are as many as lived at once. */
#include "tensor/heap.h"
#include "tensor/arena.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#ifdef __linux__
#include <sys/sysinfo.h>
#endif
#include <unistd.h>

#ifndef TL_JEMALLOC
#define TL_JEMALLOC 1
#endif

enum { ALIGN = 64 };

static void *aligned(size_t bytes)
{
    return aligned_alloc(ALIGN, (bytes + ALIGN - 1) / ALIGN * ALIGN);
}

size_t tl_heap_most(void)
{
    static _Atomic size_t most;
    size_t n = atomic_load_explicit(&most, memory_order_relaxed);
    if (n != 0)
        return n;
    n = SIZE_MAX;
#ifdef _SC_PHYS_PAGES
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (pages > 0 && page > 0)
        n = (size_t)pages > SIZE_MAX / (size_t)page ? SIZE_MAX : (size_t)pages * (size_t)page;
#endif
#ifdef __linux__
    struct sysinfo s;
    if (n != SIZE_MAX && sysinfo(&s) == 0 && s.totalswap < (SIZE_MAX - n) / s.mem_unit)
        n += s.totalswap * s.mem_unit;
#endif
    atomic_store_explicit(&most, n, memory_order_relaxed);
    return n;
}

#if TL_JEMALLOC
#include <jemalloc/jemalloc.h>
#pragma weak mallctl
#pragma weak mallocx
#pragma weak dallocx

struct tl_heap {
    unsigned index;               /* jemalloc's number of the arena */
    extent_hooks_t hooks, *plain; /* jemalloc's own ways to the system, but for alloc; unchanged */
    tl_heap *next;                /* while it waits */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tl_heap *waiting; /* guarded by it */

static bool have_jemalloc(void) { return mallctl != NULL && mallocx != NULL && dallocx != NULL; }

const char *tl_allocator(void) { return have_jemalloc() ? "jemalloc" : "aligned_alloc"; }

/* "arena.7.purge", "stats.arenas.7.mapped" */
static int ask(const tl_heap *h, const char *form, void *old, size_t *len, void *new, size_t n)
{
    char key[64];
    snprintf(key, sizeof key, form, h->index);
    return mallctl(key, old, len, new, n);
}

/* A tape of many megabytes is walked from end to end in each step: where the system has huge pages
 * to give, it is asked for them, but for the first of an arena, which may stay nearly empty. */
static void *map(extent_hooks_t *hooks, void *at, size_t bytes, size_t align, bool *zero,
                 bool *commit, unsigned index)
{
    enum { HUGE = 1 << 21 };
    const tl_heap *h = (const void *)((const char *)hooks - offsetof(tl_heap, hooks));
    const bool large = bytes > HUGE && at == NULL;
    void *p = h->plain->alloc(h->plain, at, bytes, large && align < HUGE ? HUGE : align, zero,
                              commit, index);
#ifdef MADV_HUGEPAGE
    if (large && p != NULL)
        (void)madvise(p, bytes, MADV_HUGEPAGE);
#endif
    return p;
}

static bool create(tl_heap *h)
{
    size_t len = sizeof h->index;
    if (!have_jemalloc())
        return true;
    if (mallctl("arenas.create", &h->index, &len, NULL, 0) != 0)
        return false;
    /* Free pages stay: a steady state makes no system call. */
    ssize_t never = -1;
    ask(h, "arena.%u.dirty_decay_ms", NULL, NULL, &never, sizeof never);
    ask(h, "arena.%u.muzzy_decay_ms", NULL, NULL, &never, sizeof never);
    len = sizeof h->plain;
    if (ask(h, "arena.%u.extent_hooks", &h->plain, &len, NULL, 0) == 0) {
        extent_hooks_t *own = &h->hooks;
        h->hooks = *h->plain;
        h->hooks.alloc = map;
        ask(h, "arena.%u.extent_hooks", NULL, NULL, &own, sizeof own);
    }
    return true;
}

tl_heap *tl_heap_open(void)
{
    pthread_mutex_lock(&lock);
    tl_heap *h = waiting;
    if (h != NULL)
        waiting = h->next;
    pthread_mutex_unlock(&lock);
    if (h != NULL || (h = tl_calloc(1, sizeof *h)) == NULL || create(h))
        return h;
    tl_free_raw(h);
    return NULL;
}

void tl_heap_close(tl_heap *h)
{
    if (have_jemalloc())
        ask(h, "arena.%u.purge", NULL, NULL, NULL, 0);
    pthread_mutex_lock(&lock);
    h->next = waiting;
    waiting = h;
    pthread_mutex_unlock(&lock);
}

static int flags(const tl_heap *h)
{
    return MALLOCX_ALIGN(ALIGN) | MALLOCX_ARENA(h->index) | MALLOCX_TCACHE_NONE;
}

void *tl_heap_get(tl_heap *h, size_t bytes)
{
    return have_jemalloc() ? mallocx(bytes, flags(h)) : aligned(bytes);
}

void tl_heap_give(tl_heap *h, void *p)
{
    if (have_jemalloc())
        dallocx(p, flags(h));
    else
        free(p);
}

size_t tl_heap_mapped(const tl_heap *h)
{
    uint64_t epoch = 1;
    size_t len = sizeof epoch, mapped = 0;
    if (!have_jemalloc())
        return 0;
    mallctl("epoch", &epoch, &len, &epoch, len);
    len = sizeof mapped;
    return ask(h, "stats.arenas.%u.mapped", &mapped, &len, NULL, 0) == 0 ? mapped : 0;
}
#else
struct tl_heap {
    char none;
};

const char *tl_allocator(void) { return "aligned_alloc"; }

tl_heap *tl_heap_open(void)
{
    static tl_heap all;
    return &all;
}

void tl_heap_close(tl_heap *h) { (void)h; }

void *tl_heap_get(tl_heap *h, size_t bytes)
{
    (void)h;
    return aligned(bytes);
}

void tl_heap_give(tl_heap *h, void *p)
{
    (void)h;
    free(p);
}

size_t tl_heap_mapped(const tl_heap *h)
{
    (void)h;
    return 0;
}
#endif
