/* isa.c: the levels of this build, and which of them the processor can run. */
#include "tensor/isa.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/environment.h"

#define LEVEL(id)                                                                                  \
    {                                                                                              \
#id, &tl_math_table_##id, &tl_gemm_table_##id, &tl_convert_table_##id, tl_tile_table_##id, \
            &tl_row_table_##id, tl_attention_table_##id                                            \
    }

/* Weakest first. */
static const tl_isa levels[] = {
    LEVEL(scalar),
#if TL_HAVE_V2
    LEVEL(v2),
#endif
#if TL_HAVE_V3
    LEVEL(v3),
#endif
#if TL_HAVE_V4
    LEVEL(v4),
#endif
#if TL_HAVE_NEON
    LEVEL(neon),
#endif
};
enum { LEVELS = sizeof levels / sizeof levels[0] };

static _Atomic(const tl_isa *) now;

static bool runs_here(const char *name)
{
#if defined(__x86_64__)
    if (strcmp(name, "v2") == 0)
        return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt");
    if (strcmp(name, "v3") == 0)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
               __builtin_cpu_supports("bmi2");
    if (strcmp(name, "v4") == 0)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl");
#endif
    (void)name;
    return true;
}

const tl_isa *tl_isa_at(int i)
{
    for (int k = 0; k < LEVELS; k++)
        if (runs_here(levels[k].name) && i-- == 0)
            return &levels[k];
    return NULL;
}

bool tl_isa_is_name(const char *name)
{
    static const char *const all[] = {"scalar", "v2", "v3", "v4", "neon"};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (strcmp(all[i], name) == 0)
            return true;
    return false;
}

bool tl_isa_force(const char *name)
{
    for (int i = 0; tl_isa_at(i) != NULL; i++)
        if (strcmp(tl_isa_at(i)->name, name) == 0) {
            atomic_store(&now, tl_isa_at(i));
            return true;
        }
    return false;
}

const tl_isa *tl_isa_now(void)
{
    const tl_isa *is = atomic_load_explicit(&now, memory_order_acquire);
    if (is != NULL)
        return is;
    const char *env = getenv("TL_ISA");
    if (env == NULL || !tl_isa_force(env))
        for (int i = 0; tl_isa_at(i) != NULL; i++)
            atomic_store(&now, tl_isa_at(i));
    return atomic_load(&now);
}

tl_status tl_isa_check(tl_err *err)
{
    const char *env = getenv("TL_ISA");
    char here[64] = "";
    if (env == NULL || *env == '\0')
        return TL_OK;
    for (int i = 0; tl_isa_at(i) != NULL; i++) {
        if (strcmp(env, tl_isa_at(i)->name) == 0)
            return TL_OK;
        snprintf(here + strlen(here), sizeof here - strlen(here), "%s%s", i > 0 ? ", " : "",
                 tl_isa_at(i)->name);
    }
    return tl_fail(
        err, TL_EUSAGE,
        "TL_ISA=%.60s in the environment is not a vector level of this processor; it has "
        "%s",
        env, here);
}
