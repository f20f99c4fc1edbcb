/* test_gemm.c: every vector level's matrix multiplication equals the naive chain, bit for bit.
 *
 * Buffers are compared whole, so what lies between C's elements must stay as it
 * was; they are exactly as large as the strides need, so a sanitizer sees any
 * step outside. All NaNs count as one. TL_TEST_SEED sets the seed.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/kernels/gemm.h"
#include "tensor/kernels/half.h"
#include "tests/ref/ref_gemm.h"

extern const struct CMUnitTest tl_tests_gemm[];
extern const size_t tl_tests_gemm_count;

#ifndef TL_HAVE_V2
#define TL_HAVE_V2 0
#endif
#ifndef TL_HAVE_V3
#define TL_HAVE_V3 0
#endif
#ifndef TL_HAVE_V4
#define TL_HAVE_V4 0
#endif
#ifndef TL_HAVE_NEON
#define TL_HAVE_NEON 0
#endif

typedef struct {
    const char *name;
    const tl_gemm_table *table;
} level;

static int available_levels(level *out)
{
    int n = 0;
    out[n++] = (level){ "scalar", &tl_gemm_table_scalar };
#if TL_HAVE_V2
    if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt"))
        out[n++] = (level){ "v2", &tl_gemm_table_v2 };
#endif
#if TL_HAVE_V3
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        out[n++] = (level){ "v3", &tl_gemm_table_v3 };
#endif
#if TL_HAVE_V4
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512vl"))
        out[n++] = (level){ "v4", &tl_gemm_table_v4 };
#endif
#if TL_HAVE_NEON
    out[n++] = (level){ "neon", &tl_gemm_table_neon };
#endif
    return n;
}

/* --- random values ------------------------------------------------------ */

static uint64_t state;

static uint64_t seed(void)
{
    const char *s = getenv("TL_TEST_SEED");
    return s ? strtoull(s, NULL, 0) : 20240607;
}

static uint32_t next_random(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

/* PLAIN: 24 random bits, magnitudes near 1, either sign. TIES: few bits, so that sums
 * often fall half way between floats. SMALL: products and sums are subnormal.
 * NEAR_TIES: products that miss half a unit of the sum by 2^-46 of themselves, too
 * little for a sum in double to see; NEAR_TIES_SMALL: the same at subnormal sums.
 * SPECIAL: also zeros of both signs, infinities, NaN, the largest and the smallest. */
enum { PLAIN, TIES, SMALL, NEAR_TIES, NEAR_TIES_SMALL, SPECIAL, VALUES };

static double random_value(int values)
{
    static const double special[] = {
        0.0, -0.0, 1.0, -1.0, (double)INFINITY, -(double)INFINITY, (double)NAN, 0x1p-149,
        -0x1p-140, 0x1p-126, 0x1.fffffep127, -0x1p127, 0x1p-24, 65504, -0x1p-14, 0x1p-133,
    };
    const double sign = next_random() & 1 ? -1 : 1;
    if (values == SPECIAL && next_random() % 8 == 0)
        return special[next_random() % 16];
    if (values == TIES)
        return sign * ldexp(1 + next_random() % 4 * 0.25, -(int)(next_random() % 16));
    if (values == NEAR_TIES || values == NEAR_TIES_SMALL) {
        static const double near_one[] = { 1 + 0x1p-23, 1 - 0x1p-23, 1, 1 };
        static const int scale[] = { 0, 0, -11, -12, -12, -13 };
        return sign * ldexp(near_one[next_random() % 4], scale[next_random() % 6] - (values == NEAR_TIES ? 0 : 63));
    }
    const double x = sign * (1 + (next_random() >> 9) * 0x1p-23) * ldexp(1, (int)(next_random() % 4) - 2);
    return values == SMALL ? x * 0x1p-71 : x;
}

static char letter(tl_gemm_type type)
{
    return "sdhb"[type];
}

static size_t bytes_of(tl_gemm_type type)
{
    return type == TL_GEMM_F64 ? 8 : type == TL_GEMM_F32 ? 4 : 2;
}

static void *random_buffer(tl_gemm_type type, int64_t count, int values)
{
    char *data = malloc((size_t)count * bytes_of(type) + (count == 0));
    assert_non_null(data);
    for (int64_t i = 0; i < count; i++) {
        const double x = random_value(values);
        switch (type) {
        case TL_GEMM_F32: ((float *)data)[i] = (float)x; break;
        case TL_GEMM_F64: ((double *)data)[i] = x * (1 + next_random() * 0x1p-52); break;
        case TL_GEMM_F16: ((uint16_t *)data)[i] = ref_f64_to_h(x); break;
        case TL_GEMM_BF16: ((uint16_t *)data)[i] = ref_f64_to_b(x); break;
        }
    }
    return data;
}

/* --- layouts -------------------------------------------------------------- */

enum {
    ROWS, ROWS_PADDED, COLS, COLS_PADDED, SPREAD, ROWS_UP, COLS_BACK, LAYOUTS_C,
    ZERO_ROW = LAYOUTS_C, ZERO_COL, LAYOUTS  /* not for C */
};

typedef struct {
    int64_t rs, cs, first, count;  /* element (0,0) is at `first` of `count` */
} placed;

/* Padded layouts also start one element in: no alignment beyond the element's. */
static placed place(int layout, int64_t rows, int64_t cols)
{
    placed p = { cols, 1, 0, 0 };
    const bool padded = layout == ROWS_PADDED || layout == COLS_PADDED;
    switch (layout) {
    case ROWS_PADDED: p.rs = cols + 3; break;
    case COLS: p = (placed){ 1, rows, 0, 0 }; break;
    case COLS_PADDED: p = (placed){ 1, rows + 5, 0, 0 }; break;
    case SPREAD: p = (placed){ 2 * cols + 1, 2, 0, 0 }; break;
    case ROWS_UP: p.rs = -cols; break;
    case COLS_BACK: p.cs = -1; break;
    case ZERO_ROW: p.rs = 0; break;
    case ZERO_COL: p = (placed){ 1, 0, 0, 0 }; break;
    default: break;
    }
    if (rows > 0 && cols > 0) {
        const int64_t down = (rows - 1) * p.rs, right = (cols - 1) * p.cs;
        p.first = (down < 0 ? -down : 0) + (right < 0 ? -right : 0) + padded;
        p.count = p.first + (down > 0 ? down : 0) + (right > 0 ? right : 0) + 1;
    }
    return p;
}

/* --- one case ---------------------------------------------------------------- */

typedef struct {
    int64_t m, n, k;
    tl_gemm_type ta, tb;
    int la, lb, lc;
    bool f64, accumulate;
    int values;
    int64_t task_rows, task_cols;  /* 0: serial; else tasks of this size, last one first */
} gemm_case;

static bool same_bits(const void *x, const void *y, int64_t count, bool f64, int64_t *where)
{
    for (int64_t i = 0; i < count; i++) {
        *where = i;
        if (f64) {
            const double a = ((const double *)x)[i], b = ((const double *)y)[i];
            if (memcmp(&a, &b, 8) != 0 && !(isnan(a) && isnan(b)))
                return false;
        } else {
            const float a = ((const float *)x)[i], b = ((const float *)y)[i];
            if (memcmp(&a, &b, 4) != 0 && !(isnan(a) && isnan(b)))
                return false;
        }
    }
    return true;
}

static void *scratch_of(int64_t bytes)
{
    return bytes ? aligned_alloc(64, ((size_t)bytes + 63) / 64 * 64) : NULL;
}

static void run_tasks(const tl_gemm_table *table, const tl_gemm_args *g, int64_t rows, int64_t cols)
{
    tl_gemm_plan plan;
    if (tl_gemm_plan_make(table, g, 1, &plan) == 0)
        return;
    tl_gemm_plan_split(&plan, rows, cols);
    void *scratch = scratch_of(plan.scratch_bytes);
    for (int64_t task = plan.tasks - 1; task >= 0; task--)
        tl_gemm_task(&plan, task, scratch);
    free(scratch);
}

static void run_serial(const tl_gemm_table *table, const tl_gemm_args *g)
{
    void *scratch = scratch_of(tl_gemm_scratch_bytes(table, g));
    tl_gemm_serial(table, g, scratch);
    free(scratch);
}

static void check_levels(const gemm_case *t, const tl_gemm_args *g, const placed *pc, const void *before, const void *want)
{
    const size_t bytes = (size_t)pc->count * (t->f64 ? 8 : 4);
    level levels[5];
    const int n = available_levels(levels);
    for (int l = 0; l < n; l++) {
        tl_gemm_args x = *g;
        char *got = malloc(bytes + 1);
        int64_t where = 0;
        memcpy(got, before, bytes);
        x.c = got + pc->first * (t->f64 ? 8 : 4);
        if (t->task_rows)
            run_tasks(levels[l].table, &x, t->task_rows, t->task_cols);
        else
            run_serial(levels[l].table, &x);
        if (!same_bits(got, want, pc->count, t->f64, &where))
            fail_msg("%s: %ldx%ldx%ld types %c%c%s layouts %d %d %d%s values %d tasks %ldx%ld: "
                     "element %ld of C's buffer (seed %lu)",
                     levels[l].name, (long)t->m, (long)t->n, (long)t->k, letter(t->ta), letter(t->tb), t->f64 ? " in f64" : "",
                     t->la, t->lb, t->lc, t->accumulate ? " accumulating" : "", t->values, (long)t->task_rows,
                     (long)t->task_cols, (long)where, (unsigned long)seed());
        free(got);
    }
}

static void check(gemm_case t)
{
    const placed pa = place(t.la, t.m, t.k), pb = place(t.lb, t.k, t.n), pc = place(t.lc, t.m, t.n);
    const tl_gemm_type tc = t.f64 ? TL_GEMM_F64 : TL_GEMM_F32;
    char *a = random_buffer(t.ta, pa.count, t.values), *b = random_buffer(t.tb, pb.count, t.values);
    char *before = random_buffer(tc, pc.count, t.values), *want = malloc((size_t)pc.count * 8 + 1);
    memcpy(want, before, (size_t)pc.count * bytes_of(tc));
    const tl_gemm_args g = {
        .m = t.m, .n = t.n, .k = t.k, .rsc = pc.rs, .csc = pc.cs, .f64 = t.f64, .accumulate = t.accumulate,
        .a = { a + (size_t)pa.first * bytes_of(t.ta), t.ta, pa.rs, pa.cs },
        .b = { b + (size_t)pb.first * bytes_of(t.tb), t.tb, pb.rs, pb.cs },
    };
    ref_gemm(t.m, t.n, t.k, (ref_mat){ g.a.data, letter(t.ta), pa.rs, pa.cs }, (ref_mat){ g.b.data, letter(t.tb), pb.rs, pb.cs },
             want + (size_t)pc.first * bytes_of(tc), pc.rs, pc.cs, t.f64, t.accumulate);
    check_levels(&t, &g, &pc, before, want);
    free(a);
    free(b);
    free(before);
    free(want);
}

/* --- tests --------------------------------------------------------------------- */

/* Sizes on either side of every tile: 4, 6 and 12 rows; vectors of 2 to 16 and strips of up to 128 columns. */
static const int64_t row_sizes[] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 23, 24, 25 };
static const int64_t col_sizes[] = { 0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 127, 128, 129, 161 };

static void test_every_tile(void **unused)
{
    (void)unused;
    state = seed();
    for (size_t i = 0; i < sizeof row_sizes / sizeof *row_sizes; i++)
        for (size_t j = 0; j < sizeof col_sizes / sizeof *col_sizes; j++)
            for (int v = 0; v < 8; v++)
                check((gemm_case){ .m = row_sizes[i], .n = col_sizes[j], .k = v % 4 * 3, .la = v & 1 ? COLS : ROWS,
                                   .lb = v & 2 ? COLS : ROWS, .lc = v & 1 ? ROWS_PADDED : ROWS, .accumulate = v >= 4,
                                   .f64 = (i + j) % 2, .ta = (i + j) % 2 ? TL_GEMM_F64 : TL_GEMM_F32,
                                   .tb = (i + j) % 2 ? TL_GEMM_F64 : TL_GEMM_F32 });
}

/* Large enough for packing of A, of B, of both, of neither. */
static void test_every_layout(void **unused)
{
    (void)unused;
    static const int64_t sizes[][3] = { { 5, 37, 9 }, { 1, 300, 70 }, { 300, 1, 70 }, { 61, 70, 130 }, { 13, 140, 200 } };
    state = seed();
    for (int la = 0; la < LAYOUTS; la++)
        for (int lb = 0; lb < LAYOUTS; lb++)
            for (int lc = 0; lc < LAYOUTS_C; lc++)
                for (size_t s = 0; s < 5; s++) {
                    if (s > 2 && (la + lb + lc) % 3 != 0)
                        continue;
                    const bool f64 = (la + lb + lc + (int)s) % 4 == 3;
                    check((gemm_case){ .m = sizes[s][0], .n = sizes[s][1], .k = s > 2 ? sizes[s][2] / 4 : sizes[s][2],
                                       .la = la, .lb = lb, .lc = lc, .accumulate = (la + lb) % 2, .f64 = f64,
                                       .ta = f64 ? TL_GEMM_F64 : TL_GEMM_F32, .tb = f64 ? TL_GEMM_F64 : TL_GEMM_F32 });
                }
}

static void test_every_type(void **unused)
{
    (void)unused;
    static const tl_gemm_type types[] = { TL_GEMM_F32, TL_GEMM_F16, TL_GEMM_BF16, TL_GEMM_F64 };
    state = seed();
    for (int f64 = 0; f64 < 2; f64++)
        for (int a = 0; a < 3 + f64; a++)
            for (int b = 0; b < 3 + f64; b++)
                for (int v = 0; v < 32; v++)
                    check((gemm_case){ .m = v & 1 ? 17 : 4, .n = 39, .k = v & 1 ? 71 : 20, .ta = types[a], .tb = types[b],
                                       .la = v & 2 ? COLS_PADDED : ROWS_PADDED, .lb = v & 4 ? COLS : ROWS, .lc = v & 8 ? COLS : ROWS,
                                       .f64 = f64, .accumulate = v & 2, .values = v & 16 ? TIES : PLAIN });
}

static void test_special_values(void **unused)
{
    (void)unused;
    state = seed();
    for (int v = 0; v < 800; v++) {
        const bool f64 = v % 5 == 4;
        const tl_gemm_type type = v % 7 == 0 ? TL_GEMM_BF16 : v % 11 == 1 ? TL_GEMM_F16 : TL_GEMM_F32;
        check((gemm_case){ .m = 1 + next_random() % 14, .n = 1 + next_random() % 40, .k = 1 + next_random() % 30, .f64 = f64,
                           .ta = type, .tb = v % 3 ? type : TL_GEMM_F32, .la = v & 1 ? COLS : ROWS, .lb = v & 2 ? COLS : ROWS,
                           .accumulate = v & 4, .values = v % VALUES });
    }
}

/* One on either side of blocks along k, rows and columns. The first four are so large
 * that A and B are packed whatever their layout, in several blocks each way. */
static void test_block_edges(void **unused)
{
    (void)unused;
    static const int64_t sizes[][3] = {
        { 300, 270, 1030 }, { 290, 260, 1025 }, { 300, 270, 1030 }, { 290, 260, 1025 }, { 1, 40, 63 }, { 1, 40, 64 },
        { 1, 40, 65 }, { 2, 140, 129 }, { 30, 50, 511 }, { 60, 50, 512 }, { 60, 50, 513 }, { 25, 33, 1023 },
        { 25, 33, 1024 }, { 25, 33, 1025 }, { 30, 20, 2049 }, { 30, 20, 4097 }, { 49, 1025, 512 }, { 2, 4200, 64 },
    };
    state = seed();
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int f64 = 0; f64 < 2; f64++) {
            const bool heavy = sizes[s][0] * sizes[s][1] * sizes[s][2] > 30000000;
            if (heavy && f64)
                continue;
            check((gemm_case){ .m = sizes[s][0], .n = sizes[s][1], .k = sizes[s][2], .la = s % 2 ? COLS : ROWS, .lb = s % 3 ? COLS : ROWS,
                               .accumulate = s % 2, .f64 = f64, .ta = TL_GEMM_F32, .tb = f64 ? TL_GEMM_F64 : TL_GEMM_F32 });
        }
}

static void test_every_split(void **unused)
{
    (void)unused;
    state = seed();
    for (int64_t rows = 1; rows <= 27; rows += rows < 14 ? 1 : 4)
        for (int64_t cols = 1; cols <= 71; cols += cols < 18 ? 1 : 9)
            for (int v = 0; v < 2; v++)
                check((gemm_case){ .m = 26, .n = 70, .k = 7, .la = v ? COLS : ROWS, .lb = v ? ROWS : COLS, .lc = rows % 2 ? COLS : ROWS,
                                   .accumulate = v, .task_rows = rows, .task_cols = cols });
}

/* The splits that plans choose cover C once, with no more tasks than threads. */
static void test_plans(void **unused)
{
    (void)unused;
    state = seed();
    for (int threads = 1; threads <= 96; threads = threads * 3 / 2 + 1)
        for (int v = 0; v < 40; v++) {
            const int64_t m = 1 + next_random() % 900, n = 1 + next_random() % 900, k = 1 + next_random() % 4000;
            float *c = calloc((size_t)(m * n), 4), zero = 0, one = 1;
            const tl_gemm_args g = { .m = m, .n = n, .k = 1, .a = { &one, TL_GEMM_F32, 0, 0 }, .b = { &one, TL_GEMM_F32, 0, 0 },
                                     .c = c, .rsc = v % 2 ? n : 1, .csc = v % 2 ? 1 : m, .accumulate = true };
            tl_gemm_args sized = g;
            tl_gemm_plan plan, small;
            sized.k = k;
            const int64_t tasks = tl_gemm_plan_make(&tl_gemm_table_scalar, &sized, threads, &plan);
            assert_in_range(tasks, 1, threads);
            tl_gemm_plan_make(&tl_gemm_table_scalar, &g, 1, &small);
            tl_gemm_plan_split(&small, plan.rows, plan.cols);
            assert_int_equal(small.tasks, tasks);
            void *scratch = scratch_of(small.scratch_bytes);
            for (int64_t task = 0; task < tasks; task++)
                tl_gemm_task(&small, task, scratch);
            for (int64_t i = 0; i < m * n; i++)
                zero += c[i] != 1.0f;
            assert_true(zero == 0);
            free(scratch);
            free(c);
        }
}

static void test_empty(void **unused)
{
    (void)unused;
    level levels[5];
    const int n = available_levels(levels);
    for (int l = 0; l < n; l++) {
        float c[6] = { 1, -0.0f, 3, 4, 5, 6 };
        tl_gemm_args g = { .m = 0, .n = 3, .k = 4, .c = c, .rsc = 3, .csc = 1 };
        tl_gemm_serial(levels[l].table, &g, NULL);
        g = (tl_gemm_args){ .m = 2, .n = 2, .k = 0, .c = c, .rsc = 3, .csc = 1, .accumulate = true };
        tl_gemm_serial(levels[l].table, &g, NULL);
        assert_true(c[0] == 1 && c[1] == 0 && !signbit(c[1]) && c[2] == 3 && c[3] == 4 && c[4] == 5);
        g.accumulate = false;
        tl_gemm_serial(levels[l].table, &g, NULL);
        assert_true(c[0] == 0 && c[1] == 0 && c[2] == 3 && c[3] == 0 && c[4] == 0 && c[5] == 6);
    }
}

static bool same_half(uint16_t x, uint16_t y, uint16_t infinity)
{
    return x == y || ((x & 0x7fff) > infinity && (y & 0x7fff) > infinity);
}

static void test_half_widening(void **unused)
{
    (void)unused;
    for (uint32_t u = 0; u < 65536; u++) {
        const double h = (double)tl_f16_to_f32((uint16_t)u), b = (double)tl_bf16_to_f32((uint16_t)u);
        const double rh = ref_h_to_f64((uint16_t)u), rb = ref_b_to_f64((uint16_t)u);
        assert_true((isnan(h) && isnan(rh)) || (h == rh && signbit(h) == signbit(rh)));
        assert_true((isnan(b) && isnan(rb)) || (b == rb && signbit(b) == signbit(rb)));
        assert_true(same_half(tl_f32_to_f16((float)h), (uint16_t)u, 0x7c00));
        assert_true(same_half(tl_f32_to_bf16((float)b), (uint16_t)u, 0x7f80));
        assert_true(same_half(tl_f64_to_f16(h), (uint16_t)u, 0x7c00));
        assert_true(same_half(tl_f64_to_bf16(b), (uint16_t)u, 0x7f80));
    }
}

static void check_narrowing(double x)
{
    const float f = (float)x;
    for (int s = 0; s < 2; s++, x = -x) {
        assert_true(same_half(tl_f64_to_f16(x), ref_f64_to_h(x), 0x7c00));
        assert_true(same_half(tl_f64_to_bf16(x), ref_f64_to_b(x), 0x7f80));
        assert_true(same_half(tl_f32_to_f16(s ? -f : f), ref_f64_to_h((double)(s ? -f : f)), 0x7c00));
        assert_true(same_half(tl_f32_to_bf16(s ? -f : f), ref_f64_to_b((double)(s ? -f : f)), 0x7f80));
    }
}

/* Every value, every midpoint between two, the floats and doubles next to each; then anything. */
static void test_half_narrowing(void **unused)
{
    (void)unused;
    for (int t = 0; t < 2; t++) {
        const uint16_t infinity = t ? 0x7f80 : 0x7c00;
        for (uint16_t u = 0; u < infinity; u++) {
            const double x = t ? ref_b_to_f64(u) : ref_h_to_f64(u);
            const uint16_t next = (uint16_t)(u + 1);
            const double top = t ? 0x1p128 : 0x1p16;
            const double up = next == infinity ? top : t ? ref_b_to_f64(next) : ref_h_to_f64(next);
            const double points[2] = { x, x + (up - x) / 2 };
            for (int p = 0; p < 2; p++) {
                const float f = (float)points[p];
                check_narrowing(points[p]);
                check_narrowing(nextafter(points[p], (double)INFINITY));
                check_narrowing(nextafter(points[p], 0));
                check_narrowing((double)nextafterf(f, INFINITY));
                check_narrowing((double)nextafterf(f, 0));
            }
        }
    }
    state = seed();
    for (int i = 0; i < 300000; i++) {
        const uint32_t u = next_random();
        const uint64_t w = (uint64_t)next_random() << 32 | u;
        float f;
        double d;
        memcpy(&f, &u, 4);
        memcpy(&d, &w, 8);
        check_narrowing((double)f);
        check_narrowing(d);
    }
}

const struct CMUnitTest tl_tests_gemm[] = {
    cmocka_unit_test(test_every_tile),
    cmocka_unit_test(test_every_layout),
    cmocka_unit_test(test_every_type),
    cmocka_unit_test(test_special_values),
    cmocka_unit_test(test_block_edges),
    cmocka_unit_test(test_every_split),
    cmocka_unit_test(test_plans),
    cmocka_unit_test(test_empty),
    cmocka_unit_test(test_half_widening),
    cmocka_unit_test(test_half_narrowing),
};
const size_t tl_tests_gemm_count = sizeof tl_tests_gemm / sizeof *tl_tests_gemm;
