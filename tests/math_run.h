/* math_run.h: how the tests reach the elementary functions: by level, and by the judge's name. */
#ifndef TL_TESTS_MATH_RUN_H
#define TL_TESTS_MATH_RUN_H

#include "tensor/kernels/math.h"
#include "tests/math_oracle.h"

#include <stddef.h>

typedef struct {
    const char *name;
    const tl_math_table *table;
} tl_run_level;

/* Compiled in, best last. TL_HAVE_* come from the compile line, 0 or 1. */
static const tl_run_level tl_run_levels[] = {
    {"scalar", &tl_math_table_scalar},
#if TL_HAVE_V2
    {"v2", &tl_math_table_v2},
#endif
#if TL_HAVE_V3
    {"v3", &tl_math_table_v3},
#endif
#if TL_HAVE_V4
    {"v4", &tl_math_table_v4},
#endif
#if TL_HAVE_NEON
    {"neon", &tl_math_table_neon},
#endif
};

enum { TL_RUN_LEVELS = sizeof tl_run_levels / sizeof tl_run_levels[0] };

/* Whether this processor can run the level. */
static inline int tl_run_here(const char *level)
{
#if defined(__x86_64__)
    if (!strcmp(level, "v4"))
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    if (!strcmp(level, "v3"))
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (!strcmp(level, "v2"))
        return __builtin_cpu_supports("sse4.2");
#endif
    (void)level;
    return 1;
}

/* The stem of TL_MATH_LIST is the judge's name, or that and an underscore. */
static inline int tl_run_is(const char *stem, const char *name)
{
    size_t n = strlen(name);
    return !strncmp(stem, name, n) && (!stem[n] || !strcmp(stem + n, "_"));
}

/* y[i] = f(x[i]) by this table. */
static inline void tl_run32(const tl_math_table *t, const tl_judge *f, int64_t n, const float *x,
                            float *y)
{
#define TL_RUN_STEM(s) {#s, t->s##32},
    const struct {
        const char *stem;
        tl_math32_fn *fn;
    } fns[] = {TL_MATH_LIST(TL_RUN_STEM)};
#undef TL_RUN_STEM
    if (!f->near)
        t->pow32(n, x, f->power, y);
    for (size_t i = 0; f->near && i < sizeof fns / sizeof fns[0]; i++)
        if (tl_run_is(fns[i].stem, f->name))
            fns[i].fn(n, x, y);
}

static inline void tl_run64(const tl_math_table *t, const tl_judge *f, int64_t n, const double *x,
                            double *y)
{
#define TL_RUN_STEM(s) {#s, t->s##64},
    const struct {
        const char *stem;
        tl_math64_fn *fn;
    } fns[] = {TL_MATH_LIST(TL_RUN_STEM)};
#undef TL_RUN_STEM
    if (!f->near)
        t->pow64(n, x, f->power, y);
    for (size_t i = 0; f->near && i < sizeof fns / sizeof fns[0]; i++)
        if (tl_run_is(fns[i].stem, f->name))
            fns[i].fn(n, x, y);
}

static inline const tl_judge *tl_judge_named(const char *name)
{
    for (int i = 0; i < TL_JUDGES; i++)
        if (!strcmp(name, tl_judges[i].name))
            return &tl_judges[i];
    return NULL;
}

/* Bits, with one NaN for all. */
static inline uint32_t tl_run_bits32(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return x != x ? 0x7fc00000u : u;
}

static inline uint64_t tl_run_bits64(double x)
{
    uint64_t u;
    memcpy(&u, &x, 8);
    return x != x ? 0x7ff8000000000000u : u;
}

#endif
