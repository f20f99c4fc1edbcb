/* other_memory.c: the hooks of jansson and libcrypto, set before anything uses them. */
#include "tests/support/other_memory.h"

#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>

#include <jansson.h>
#include <openssl/crypto.h>

static _Atomic int64_t fail_after, blocks, bytes, most;
static _Atomic bool fail_all;
static bool hooked;

static bool refused(void)
{
    if (atomic_load(&fail_after) == 0)
        return false;
    int64_t n = atomic_fetch_sub(&fail_after, 1);
    if (n > 1)
        return false;
    atomic_store(&fail_after, atomic_load(&fail_all));
    return true;
}

static void *taken(void *p)
{
    if (p == NULL)
        return p;
    blocks++;
    int64_t now = atomic_fetch_add(&bytes, (int64_t)malloc_usable_size(p)) +
                  (int64_t)malloc_usable_size(p);
    if (now > atomic_load(&most))
        atomic_store(&most, now);
    return p;
}

static void give_back(void *p)
{
    if (p == NULL)
        return;
    blocks--;
    bytes -= (int64_t)malloc_usable_size(p);
    free(p);
}

static void *take(size_t n) { return refused() ? NULL : taken(malloc(n)); }

static void *take_at(size_t n, const char *file, int line)
{
    (void)file, (void)line;
    return n == 0 ? NULL : take(n);
}

static void give_back_at(void *p, const char *file, int line)
{
    (void)file, (void)line;
    give_back(p);
}

static void *change_at(void *p, size_t n, const char *file, int line)
{
    (void)file, (void)line;
    if (p == NULL)
        return take(n);
    if (n == 0)
        return give_back(p), NULL;
    if (refused())
        return NULL;
    int64_t old = (int64_t)malloc_usable_size(p);
    void *q = realloc(p, n);
    if (q != NULL) {
        blocks--;
        bytes -= old;
    }
    return taken(q);
}

static __attribute__((constructor)) void hook(void)
{
    hooked = CRYPTO_set_mem_functions(take_at, change_at, give_back_at) == 1;
    json_set_alloc_funcs(take, give_back);
}

bool other_memory_hooked(void) { return hooked; }

void other_memory_fail(int64_t n, bool all)
{
    atomic_store(&fail_all, all);
    atomic_store(&fail_after, n);
}

int64_t other_memory_blocks(void) { return blocks; }
int64_t other_memory_peak(void) { return atomic_exchange(&most, atomic_load(&bytes)); }
