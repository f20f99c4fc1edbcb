/* Every kernel table against the scalar level, bit for bit, over the sizes on which boundaries sit
 * and at every misalignment: row kernels, pointwise tiles, conversions, optimizer updates; and
 * flags under which they compile. (math, gemm and attention have their own; test_reference compares
 * the scalar level, and all others, with tests/ref through the ops.) TL_TEST_SEED repeats a run. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/isa.h"
#include "tests/cases/cases.h"
#include "tests/support/skip.h"

extern const struct CMUnitTest tl_tests_levels[];
extern const size_t tl_tests_levels_count;

enum { ROOM = 704, OFFSETS = 4 };

/* 0, 1; around vectors (4, 8, 16), lanes (32), twice that, blocks and tiles (256), twice that
 * (512). */
static const int64_t sizes[] = {0,  1,   2,   3,   4,   5,   7,   8,   9,   15,  16,  17,
                                24, 31,  32,  33,  47,  48,  49,  63,  64,  65,  95,  96,
                                97, 127, 128, 129, 255, 256, 257, 301, 511, 512, 513, 655};
enum { SIZES = sizeof sizes / sizeof *sizes };

static bool alike_f64(const double *x, const double *y, int n)
{
    for (int i = 0; i < n; i++)
        if (memcmp(&x[i], &y[i], sizeof *x) != 0 && !(x[i] != x[i] && y[i] != y[i]))
            return false;
    return true;
}

#define T float
#define S 32
#define P(name) name##_32
#include "tests/level_rows.t.h"

#define T double
#define S 64
#define P(name) name##_64
#include "tests/level_rows.t.h"

/* 27 kernels and slot 0 for each compute type, adamw and sgd among them: a new one wants a call in
 * level_rows.t.h, or in step(). */
_Static_assert(sizeof(tl_row_table) == 2 * 28 * sizeof(void (*)(void)),
               "a row kernel is not compared");

static uint64_t start(void)
{
    const char *env = getenv("TL_TEST_SEED");
    uint64_t seed = env != NULL ? strtoull(env, NULL, 0) : 1;
    printf("TL_TEST_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

/* Near 1, or with any exponent that leaves sums finite; now and then zeros, and (special)
 * infinities and NaN. */
static double one_value(uint64_t *state, int kind)
{
    double u = 2 * tl_case_uniform(state) - 1;
    uint64_t r = tl_case_random(state);
    if (kind == 2 && r % 64 < 3)
        return r % 64 == 0 ? (double)NAN : r % 64 == 1 ? (double)INFINITY : -(double)INFINITY;
    if (r % 16 == 5)
        return r & 1024 ? 0.0 : -0.0;
    return kind == 0 ? 3 * u : ldexp(u, (int)(r >> 8 & 63) - 32);
}

enum { VALUES = 5 * ROOM, KINDS = 3 };

static void fill(double *value, uint64_t *state, int kind)
{
    for (int i = 0; i < VALUES; i++)
        value[i] = one_value(state, kind);
}

static void test_rows(void **unused)
{
    (void)unused;
    static double value[VALUES];
    uint64_t state = start();
    int calls = 0;
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; i < SIZES; i++)
            for (int off = 0; off < OFFSETS; off++) {
                fill(value, &state, kind);
                calls += compare_rows_32(value, sizes[i], off) +
                         compare_rows_64(value, sizes[i], off);
            }
    printf("%d calls compared\n", calls);
    assert_true(calls > 0 || tl_isa_at(1) == NULL);
}

/* ---- tiles ---- */

static bool same_bytes(tl_dtype d, const void *x, const void *y, int n)
{
    if (d == TL_F32)
        return alike_32(x, y, n);
    return d == TL_F64 ? alike_64(x, y, n) : memcmp(x, y, (size_t)n * tl_dtype_size(d)) == 0;
}

typedef union {
    _Alignas(64) double f64[ROOM];
    float f32[ROOM];
    int64_t i64[ROOM];
    unsigned char bytes[ROOM * 8];
} operand;

static void fill_operand(operand *o, tl_dtype d, uint64_t *state, int kind)
{
    for (int i = 0; i < ROOM; i++) {
        double v = one_value(state, kind);
        switch (d) {
        case TL_F64: o->f64[i] = v; break;
        case TL_F32: o->f32[i] = (float)v; break;
        case TL_I64: /* none is 0, for it may divide */
            o->i64[i] = ((int64_t)(tl_case_random(state) >> 1) - INT64_MAX / 2) | 1;
            o->i64[i] >>= o->i64[i] % 5 == 0 ? 62 : 0;
            o->i64[i] |= 1;
            break;
        default: o->bytes[i] = (unsigned char)(tl_case_random(state) & 1); break;
        }
    }
}

static const char *const tile_names[] = {"none",
#define X(name) #name,
                                         TL_TILE_LIST(X)
#undef X
};

/* What a tile takes, besides floats or alone. */
static bool integers(int slot) { return slot == TL_TILE_floor_divide || slot == TL_TILE_remainder; }
static bool numbers(int slot)
{
    return integers(slot) || slot == TL_TILE_where || (slot >= TL_TILE_add && slot <= TL_TILE_mul);
}

static bool compares(int slot) { return slot >= TL_TILE_eq && slot <= TL_TILE_ge; }

/* One tile at one level; in[0] of where is bool. */
static void run_tile(int level, int slot, tl_dtype d, tl_dtype to, operand in[3], int64_t n,
                     int off, operand *out)
{
    union {
        tl_const_attrs c;
        tl_clamp_attrs clamp;
        tl_cast_attrs cast;
    } attrs = {.clamp = {-0.5, 0.75}};
    if (slot == TL_TILE_cast)
        attrs.cast.dtype = to;
    tl_tile t = {.n = n, .dtype = d, .attrs = &attrs};
    for (int i = 0; i < 3; i++)
        t.in[i] = in[i].bytes +
                  (size_t)off * tl_dtype_size(i == 0 && slot == TL_TILE_where ? TL_BOOL : d);
    memset(out, 0x55, sizeof *out);
    t.out = out->bytes + (size_t)off * tl_dtype_size(compares(slot) ? TL_BOOL : to);
    tl_isa_at(level)->tile[slot](&t);
}

static int compare_tile(int slot, tl_dtype d, tl_dtype to, int64_t n, int off, uint64_t *state,
                        int kind)
{
    static operand in[3], want, got;
    tl_dtype out = compares(slot) ? TL_BOOL : to;
    int level = 1;
    for (int i = 0; i < 3; i++)
        fill_operand(&in[i], i == 0 && slot == TL_TILE_where ? TL_BOOL : d, state, kind);
    run_tile(0, slot, d, to, in, n, off, &want);
    for (; tl_isa_at(level) != NULL; level++) {
        run_tile(level, slot, d, to, in, n, off, &got);
        if (!same_bytes(out, &want, &got, ROOM))
            fail_msg("tile %s, %s to %s, %lld elements from place %d: %s and %s differ",
                     tile_names[slot], tl_dtype_name(d), tl_dtype_name(out), (long long)n, off,
                     tl_isa_at(0)->name, tl_isa_at(level)->name);
    }
    return level - 1;
}

static void test_tiles(void **unused)
{
    (void)unused;
    uint64_t state = start();
    int calls = 0;
    for (int slot = 1; slot < TL_TILE_COUNT; slot++)
        for (int i = 0; i < SIZES && sizes[i] <= TL_TILE_LEN; i++)
            for (int off = 0; off < OFFSETS; off++)
                for (int kind = 0; kind < KINDS; kind++) {
                    for (tl_dtype d = TL_F64; !integers(slot) && d <= TL_F32; d++)
                        calls += compare_tile(slot, d, d, sizes[i], off, &state, kind);
                    if (numbers(slot))
                        calls += compare_tile(slot, TL_I64, TL_I64, sizes[i], off, &state, kind);
                    if (slot == TL_TILE_where)
                        calls += compare_tile(slot, TL_BOOL, TL_BOOL, sizes[i], off, &state, kind);
                    if (compares(slot))
                        calls += compare_tile(slot, TL_I64, TL_BOOL, sizes[i], off, &state, kind);
                    static const tl_dtype computed[] = {TL_F64, TL_F32, TL_I64, TL_BOOL};
                    for (int k = 0; slot == TL_TILE_cast && k < 16; k++)
                        calls += compare_tile(slot, computed[k / 4], computed[k % 4], sizes[i], off,
                                              &state, kind);
                }
    printf("%d calls compared\n", calls);
}

/* ---- conversions: all 65536 halves widened; values around ties narrowed; strides ---- */

static void test_conversions(void **unused)
{
    (void)unused;
    static uint16_t half[ROOM * 3], want16[ROOM * 3], got16[ROOM * 3];
    static float want[ROOM], got[ROOM], wide[ROOM];
    static const int64_t strides[] = {1, 2, 3};
    uint64_t state = start();
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < SIZES; i++)
            for (int s = 0; s < 3; s++)
                for (int l = 1; tl_isa_at(l) != NULL; l++) {
                    tl_dtype dtype = d ? TL_F16 : TL_BF16;
                    for (int k = 0; k < ROOM * 3; k++)
                        half[k] = (uint16_t)tl_case_random(&state);
                    for (int k = 0; k < ROOM; k++) {
                        double tie = ldexp((double)(tl_case_random(&state) % 8192),
                                           (int)(tl_case_random(&state) % 40) - 36);
                        wide[k] = (float)(tl_case_random(&state) & 1 ? -tie : one_value(&state, 2));
                    }
                    int off = (int)(tl_case_random(&state) % OFFSETS);
                    memset(want, 0, sizeof want);
                    memset(got, 0, sizeof got);
                    memset(want16, 0, sizeof want16);
                    memset(got16, 0, sizeof got16);
                    tl_isa_at(0)->convert->widen(sizes[i], dtype, half + off, strides[s],
                                                 want + off);
                    tl_isa_at(l)->convert->widen(sizes[i], dtype, half + off, strides[s],
                                                 got + off);
                    tl_isa_at(0)->convert->narrow(sizes[i], dtype, wide + off, want16 + off,
                                                  strides[s]);
                    tl_isa_at(l)->convert->narrow(sizes[i], dtype, wide + off, got16 + off,
                                                  strides[s]);
                    if (!alike_32(want, got, ROOM) || memcmp(want16, got16, sizeof want16) != 0)
                        fail_msg("%s, %lld elements, stride %lld: %s and %s differ",
                                 tl_dtype_name(dtype), (long long)sizes[i], (long long)strides[s],
                                 tl_isa_at(0)->name, tl_isa_at(l)->name);
                }
}

/* ---- optimizer updates ---- */

typedef struct {
    float p[ROOM], g[ROOM], m[ROOM], v[ROOM];
    double p64[ROOM], g64[ROOM], m64[ROOM], v64[ROOM];
} state_of_step;

static void step(int level, int how, int64_t n, int off, state_of_step *s)
{
    tl_adamw_step a = {
        0.9, 0.1, 0.999, 0.001, 1e-8, 1e-3, 0.01, 1.5, 2.5, 0.7, how == 1 ? 0.02 : 0};
    tl_sgd_step d = {0.9, 1e-2, 0.01, 0.7, how == 3, how == 2};
    const tl_row_table *k = tl_isa_at(level)->row;
    if (how < 2) {
        k->adamw32(n, s->p + off, s->g + off, s->m + off, s->v + off, &a);
        k->adamw64(n, s->p64 + off, s->g64 + off, s->m64 + off, s->v64 + off, &a);
    } else {
        k->sgd32(n, s->p + off, s->g + off, how == 4 ? NULL : s->m + off, &d);
        k->sgd64(n, s->p64 + off, s->g64 + off, how == 4 ? NULL : s->m64 + off, &d);
    }
}

static void test_updates(void **unused)
{
    (void)unused;
    uint64_t state = start();
    for (int how = 0; how < 5; how++)
        for (int i = 0; i < SIZES; i++)
            for (int off = 0; off < OFFSETS; off++) {
                static state_of_step first, want, got;
                for (int k = 0; k < ROOM; k++) {
                    first.p[k] = (float)(first.p64[k] = one_value(&state, 0));
                    first.g[k] = (float)(first.g64[k] = one_value(&state, 1));
                    first.m[k] = (float)(first.m64[k] = one_value(&state, 0));
                    first.v[k] = (float)(first.v64[k] = fabs(one_value(&state, 1)));
                }
                want = first;
                step(0, how, sizes[i], off, &want);
                for (int l = 1; tl_isa_at(l) != NULL; l++) {
                    got = first;
                    step(l, how, sizes[i], off, &got);
                    if (memcmp(&want, &got, sizeof got) != 0)
                        fail_msg("update %d, %lld elements from place %d: %s and %s differ", how,
                                 (long long)sizes[i], off, tl_isa_at(0)->name, tl_isa_at(l)->name);
                }
            }
}

/* CFLAGS may bring instructions that a level is not told of: each kernel is C for any mixture. */
static void test_flags_of_users(void **unused)
{
    (void)unused;
    if (system("test \"$(uname -m)\" = x86_64 && command -v gcc > /dev/null") != 0)
        TL_SKIP();
    assert_int_equal(system(
                         "cd '" TL_ROOT
                         "' && for cc in gcc clang; do for f in tensor/kernels/*.k.c; do"
                         " for m in x86-64-v2 x86-64-v3 x86-64-v4; do for fma in -mno-fma -mfma; do"
                         " command -v $cc > /dev/null || continue; $cc -std=c11 -D_DEFAULT_SOURCE "
                         "-I. -include tensor/ieee.h -march=$m $fma"
                         " -DTL_LEVEL=scalar -Wall -Wno-psabi -Werror -fsyntax-only $f"
                         " || exit 1; done; done; done; done"),
                     0);
}

const struct CMUnitTest tl_tests_levels[] = {
    cmocka_unit_test(test_rows),           cmocka_unit_test(test_tiles),
    cmocka_unit_test(test_conversions),    cmocka_unit_test(test_updates),
    cmocka_unit_test(test_flags_of_users),
};
const size_t tl_tests_levels_count = sizeof tl_tests_levels / sizeof tl_tests_levels[0];
