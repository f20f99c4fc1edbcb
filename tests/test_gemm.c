/* test_gemm.c: every vector level's matrix multiplication equals the naive chain, bit for bit.
 * TL_TEST_SEED sets the seed. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>

#include "tensor/isa.h"
#include "tests/ref/ref.h"
#include "tests/support/gemm_case.h"

extern const struct CMUnitTest tl_tests_gemm[];
extern const size_t tl_tests_gemm_count;

/* Sizes on either side of every tile: 4, 6 and 12 rows; vectors of 2 to 16 and strips of up to 128
 * columns. */
static const int64_t row_sizes[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 23, 24, 25};
static const int64_t col_sizes[] = {0,  1,  2,  3,  4,  5,  7,  8,  9,   15,  16,  17, 31,
                                    32, 33, 47, 48, 49, 63, 64, 65, 127, 128, 129, 161};

static void test_every_tile(void **unused)
{
    (void)unused;
    gemm_start();
    for (size_t i = 0; i < sizeof row_sizes / sizeof *row_sizes; i++)
        for (size_t j = 0; j < sizeof col_sizes / sizeof *col_sizes; j++)
            for (int v = 0; v < 8; v++)
                gemm_check((gemm_case){.m = row_sizes[i],
                                       .n = col_sizes[j],
                                       .k = v % 4 * 3,
                                       .la = v & 1 ? COLS : ROWS,
                                       .lb = v & 2 ? COLS : ROWS,
                                       .lc = v & 1 ? ROWS_PADDED : ROWS,
                                       .accumulate = v >= 4,
                                       .f64 = (i + j) % 2,
                                       .ta = (i + j) % 2 ? TL_GEMM_F64 : TL_GEMM_F32,
                                       .tb = (i + j) % 2 ? TL_GEMM_F64 : TL_GEMM_F32});
}

/* Few rows by columns that together are too large for the second cache, and do not end with a cache
 * line; or are a power of two apart. */
static void test_far_lines(void **unused)
{
    (void)unused;
    static const int64_t n[] = {131, 130}, k[] = {2013, 2048};
    gemm_start();
    for (int64_t m = 1; m <= TL_GEMM_LINES; m++)
        for (int v = 0; v < 8; v++) {
            const bool f64 = v & 4;
            gemm_check((gemm_case){.m = m,
                                   .n = n[v & 1],
                                   .k = f64 ? k[v & 1] / 2 : k[v & 1],
                                   .la = v & 2 ? COLS : ROWS,
                                   .lb = v & 2 ? COLS_PADDED : COLS,
                                   .accumulate = v & 2,
                                   .f64 = f64,
                                   .ta = f64 ? TL_GEMM_F64 : TL_GEMM_F32,
                                   .tb = f64 ? TL_GEMM_F64 : TL_GEMM_F32});
        }
}

/* The same by halves, which are widened on the way, and an A of any type: lines that end anywhere.
 */
static void test_lines_of_halves(void **unused)
{
    static const tl_gemm_type types[] = {TL_GEMM_F32, TL_GEMM_F16, TL_GEMM_BF16};
    static const int64_t n[] = {131, 70, 17}, k[] = {13, 203, 1031};
    (void)unused;
    gemm_start();
    for (int64_t m = 1; m <= TL_GEMM_LINES + 1; m++)
        for (int v = 0; v < 18; v++)
            gemm_check((gemm_case){.m = m,
                                   .n = n[v % 3],
                                   .k = k[(v / 3 + m) % 3],
                                   .la = v % 5 == 0   ? COLS
                                         : v % 5 == 1 ? SPREAD
                                                      : ROWS,
                                   .lb = v % 2 ? COLS_PADDED : COLS,
                                   .accumulate = v % 4 > 1,
                                   .ta = types[v % 3],
                                   .tb = types[1 + v / 9],
                                   .values = v % 3 ? PLAIN : TIES});
}

/* Few rows by a B so large that it is taken to come from memory, some of its rows at a time. */
static void test_rows_from_memory(void **unused)
{
    static const tl_gemm_type types[] = {TL_GEMM_F32, TL_GEMM_BF16, TL_GEMM_F16};
    static const int64_t m[] = {1, 2, 6, 7, 12, 24};
    (void)unused;
    gemm_start();
    for (size_t i = 0; i < sizeof m / sizeof *m; i++)
        for (int v = 0; v < 4; v++)
            gemm_check(
                (gemm_case){.m = m[i],
                            .n = v % 2 ? 1024 : 5003,
                            .k = v % 2 ? 517 : 105,
                            .la = i % 3 == 2 ? COLS : ROWS,
                            .lb = i % 2 ? ROWS_PADDED : ROWS,
                            .accumulate = (i + (size_t)v) % 2,
                            .f64 = v == 2,
                            .ta = types[v == 3 ? i % 3 : 0],
                            .tb = v == 2 ? TL_GEMM_F64 : types[v == 0 ? 0 : ((size_t)v + i) % 3]});
}

/* Large enough for packing of A, of B, of both, of neither. */
static void test_every_layout(void **unused)
{
    (void)unused;
    static const int64_t sizes[][3] = {
        {5, 37, 9}, {1, 300, 70}, {300, 1, 70}, {61, 70, 130}, {13, 140, 200}};
    gemm_start();
    for (int la = 0; la < LAYOUTS; la++)
        for (int lb = 0; lb < LAYOUTS; lb++)
            for (int lc = 0; lc < LAYOUTS_C; lc++)
                for (size_t s = 0; s < 5; s++) {
                    if (s > 2 && (la + lb + lc) % 3 != 0)
                        continue;
                    const bool f64 = (la + lb + lc + (int)s) % 4 == 3;
                    gemm_check((gemm_case){.m = sizes[s][0],
                                           .n = sizes[s][1],
                                           .k = s > 2 ? sizes[s][2] / 4 : sizes[s][2],
                                           .la = la,
                                           .lb = lb,
                                           .lc = lc,
                                           .accumulate = (la + lb) % 2,
                                           .f64 = f64,
                                           .ta = f64 ? TL_GEMM_F64 : TL_GEMM_F32,
                                           .tb = f64 ? TL_GEMM_F64 : TL_GEMM_F32});
                }
}

static void test_every_type(void **unused)
{
    (void)unused;
    static const tl_gemm_type types[] = {TL_GEMM_F32, TL_GEMM_F16, TL_GEMM_BF16, TL_GEMM_F64};
    gemm_start();
    for (int f64 = 0; f64 < 2; f64++)
        for (int a = 0; a < 3 + f64; a++)
            for (int b = 0; b < 3 + f64; b++)
                for (int v = 0; v < 32; v++)
                    gemm_check((gemm_case){.m = v & 1 ? 17 : 4,
                                           .n = 39,
                                           .k = v & 1 ? 71 : 20,
                                           .ta = types[a],
                                           .tb = types[b],
                                           .la = v & 2 ? COLS_PADDED : ROWS_PADDED,
                                           .lb = v & 4 ? COLS : ROWS,
                                           .lc = v & 8 ? COLS : ROWS,
                                           .f64 = f64,
                                           .accumulate = v & 2,
                                           .values = v & 16 ? TIES : PLAIN});
}

/* Every f16 and bf16 number by 1 is itself (and -0 is +0), however it is widened. */
static void test_every_half(void **unused)
{
    (void)unused;
    enum { ALL = 1 << 16 };
    uint16_t *b = calloc(ALL, sizeof *b);
    float *c = calloc(ALL, sizeof *c);
    for (int i = 0; i < ALL; i++)
        b[i] = (uint16_t)i;
    for (int l = 0; tl_isa_at(l) != NULL; l++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            const float one = 1;
            const tl_gemm_type type = bf16 ? TL_GEMM_BF16 : TL_GEMM_F16;
            const tl_gemm_args g = {.m = 1,
                                    .n = ALL,
                                    .k = 1,
                                    .a = {&one, TL_GEMM_F32, 1, 1},
                                    .b = {b, type, ALL, 1},
                                    .c = c,
                                    .rsc = ALL,
                                    .csc = 1};
            void *scratch = gemm_scratch(tl_gemm_scratch_bytes(tl_isa_at(l)->gemm, &g));
            tl_gemm_serial(tl_isa_at(l)->gemm, &g, scratch);
            for (int i = 0; i < ALL; i++) {
                const float want = (float)ref_half_value(bf16 ? REF_BF16 : REF_F16, b[i]);
                if (isnan(want) ? !isnan(c[i]) : c[i] != want || (c[i] == 0 && signbit(c[i])))
                    fail_msg("level %d: 0x%04x becomes %a, not %a", l, (unsigned)i, (double)c[i],
                             (double)want);
            }
            free(scratch);
        }
    free(c);
    free(b);
}

static void test_special_values(void **unused)
{
    (void)unused;
    gemm_start();
    for (int v = 0; v < 800; v++) {
        const bool f64 = v % 5 == 4;
        const tl_gemm_type type = v % 7 == 0    ? TL_GEMM_BF16
                                  : v % 11 == 1 ? TL_GEMM_F16
                                                : TL_GEMM_F32;
        gemm_check((gemm_case){.m = 1 + gemm_random() % 14,
                               .n = 1 + gemm_random() % 40,
                               .k = 1 + gemm_random() % 30,
                               .f64 = f64,
                               .ta = type,
                               .tb = v % 3 ? type : TL_GEMM_F32,
                               .la = v & 1 ? COLS : ROWS,
                               .lb = v & 2 ? COLS : ROWS,
                               .accumulate = v & 4,
                               .values = v % VALUES});
    }
}

/* Rows of A that become columns, since B is transposed and large beside them: just enough rows for
 * vectors of every level, some lanes over, and chains of several blocks. */
static void test_turned(void **unused)
{
    (void)unused;
    static const int64_t rows[] = {3, 4, 6, 8, 15, 16, 29, 31, 32, 45, 48, 64},
                         inner[] = {130, 257, 1025};
    gemm_start();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int v = 0; v < 6; v++) {
            const bool f64 = v % 2;
            gemm_check((gemm_case){.m = rows[i],
                                   .n = 133 + 40 * (int64_t)((i + (size_t)v) % 3),
                                   .k = inner[(i + (size_t)v) % 3],
                                   .la = i % 2 ? COLS : ROWS,
                                   .lb = COLS,
                                   .accumulate = v >= 3,
                                   .f64 = f64,
                                   .ta = v % 3 == 0 ? TL_GEMM_BF16 : TL_GEMM_F32,
                                   .tb = f64 ? TL_GEMM_F64 : TL_GEMM_F32});
        }
}

/* One on either side of blocks along k, rows and columns. The first four are so large
 * that A and B are packed whatever their layout, in several blocks each way. */
static void test_block_edges(void **unused)
{
    (void)unused;
    static const int64_t sizes[][3] = {
        {300, 270, 1030}, {290, 260, 1025}, {300, 270, 1030}, {290, 260, 1025}, {1, 40, 63},
        {1, 40, 64},      {1, 40, 65},      {2, 140, 129},    {30, 50, 511},    {60, 50, 512},
        {60, 50, 513},    {25, 33, 1023},   {25, 33, 1024},   {25, 33, 1025},   {30, 20, 2049},
        {30, 20, 4097},   {49, 1025, 512},  {2, 4200, 64},
    };
    gemm_start();
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int f64 = 0; f64 < 2; f64++) {
            const bool heavy = sizes[s][0] * sizes[s][1] * sizes[s][2] > 30000000;
            if (heavy && f64)
                continue;
            gemm_check((gemm_case){.m = sizes[s][0],
                                   .n = sizes[s][1],
                                   .k = sizes[s][2],
                                   .la = s % 2 ? COLS : ROWS,
                                   .lb = s % 3 ? COLS : ROWS,
                                   .accumulate = s % 2,
                                   .f64 = f64,
                                   .ta = TL_GEMM_F32,
                                   .tb = f64 ? TL_GEMM_F64 : TL_GEMM_F32});
        }
}

/* A narrower A, widened by rows or columns, in blocks each way. */
static void test_widened_blocks(void **unused)
{
    (void)unused;
    static const int64_t sizes[][3] = {{300, 9, 1030}, {801, 9, 129}, {13, 70, 513}, {770, 3, 257}};
    gemm_start();
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int v = 0; v < 8; v++)
            gemm_check((gemm_case){.m = sizes[s][0],
                                   .n = sizes[s][1],
                                   .k = sizes[s][2],
                                   .la = v & 1 ? COLS : ROWS,
                                   .lb = v & 2 ? COLS : ROWS,
                                   .accumulate = v & 2,
                                   .f64 = v & 4,
                                   .ta = v % 3 == 0 ? TL_GEMM_F16
                                         : v & 4    ? TL_GEMM_F32
                                                    : TL_GEMM_BF16,
                                   .tb = v & 4 ? TL_GEMM_F64 : TL_GEMM_F32});
}

/* A narrower A that lies in neither rows nor columns, by few rows: B is read where it lies, or is
 * turned into panels. */
static void test_widened_spread(void **unused)
{
    static const tl_gemm_type types[] = {TL_GEMM_F16, TL_GEMM_BF16, TL_GEMM_F32};
    (void)unused;
    gemm_start();
    for (int64_t m = 1; m <= 7; m++)
        for (int v = 0; v < 12; v++)
            gemm_check((gemm_case){.m = m,
                                   .n = 70,
                                   .k = 45,
                                   .la = SPREAD,
                                   .lb = v & 1 ? COLS_PADDED : COLS,
                                   .accumulate = v & 2,
                                   .f64 = v >= 6,
                                   .ta = types[v % 3],
                                   .tb = v >= 6 ? TL_GEMM_F64 : TL_GEMM_F32});
}

static void test_every_split(void **unused)
{
    (void)unused;
    gemm_start();
    for (int64_t rows = 1; rows <= 27; rows += rows < 14 ? 1 : 4)
        for (int64_t cols = 1; cols <= 71; cols += cols < 18 ? 1 : 9)
            for (int v = 0; v < 2; v++)
                gemm_check((gemm_case){.m = 26,
                                       .n = 70,
                                       .k = 7,
                                       .la = v ? COLS : ROWS,
                                       .lb = v ? ROWS : COLS,
                                       .lc = rows % 2 ? COLS : ROWS,
                                       .accumulate = v,
                                       .task_rows = rows,
                                       .task_cols = cols});
}

/* The splits that plans choose cover C once, with no more tasks than threads. */
static void test_plans(void **unused)
{
    (void)unused;
    gemm_start();
    for (int threads = 1; threads <= 96; threads = threads * 3 / 2 + 1)
        for (int v = 0; v < 40; v++) {
            const int64_t m = 1 + gemm_random() % 900, n = 1 + gemm_random() % 900,
                          k = 1 + gemm_random() % 4000;
            float *c = calloc((size_t)(m * n), 4), zero = 0, one = 1;
            const tl_gemm_args g = {.m = m,
                                    .n = n,
                                    .k = 1,
                                    .a = {&one, TL_GEMM_F32, 0, 0},
                                    .b = {&one, TL_GEMM_F32, 0, 0},
                                    .c = c,
                                    .rsc = v % 2 ? n : 1,
                                    .csc = v % 2 ? 1 : m,
                                    .accumulate = true};
            tl_gemm_args sized = g;
            tl_gemm_plan plan, small;
            sized.k = k;
            const int64_t tasks = tl_gemm_plan_make(&tl_gemm_table_scalar, &sized, threads, &plan);
            assert_in_range(tasks, 1, threads);
            tl_gemm_plan_make(&tl_gemm_table_scalar, &g, 1, &small);
            tl_gemm_plan_split(&small, plan.rows, plan.cols);
            assert_int_equal(small.tasks, tasks);
            void *scratch = gemm_scratch(small.scratch_bytes);
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
    for (int l = 0; tl_isa_at(l) != NULL; l++) {
        float c[6] = {1, -0.0f, 3, 4, 5, 6};
        tl_gemm_args g = {.m = 0, .n = 3, .k = 4, .c = c, .rsc = 3, .csc = 1};
        tl_gemm_serial(tl_isa_at(l)->gemm, &g, NULL);
        g = (tl_gemm_args){.m = 2, .n = 2, .k = 0, .c = c, .rsc = 3, .csc = 1, .accumulate = true};
        tl_gemm_serial(tl_isa_at(l)->gemm, &g, NULL);
        assert_true(c[0] == 1 && c[1] == 0 && !signbit(c[1]) && c[2] == 3 && c[3] == 4 &&
                    c[4] == 5);
        g.accumulate = false;
        tl_gemm_serial(tl_isa_at(l)->gemm, &g, NULL);
        assert_true(c[0] == 0 && c[1] == 0 && c[2] == 3 && c[3] == 0 && c[4] == 0 && c[5] == 6);
    }
}

const struct CMUnitTest tl_tests_gemm[] = {
    cmocka_unit_test(test_every_tile),      cmocka_unit_test(test_far_lines),
    cmocka_unit_test(test_lines_of_halves), cmocka_unit_test(test_rows_from_memory),
    cmocka_unit_test(test_every_layout),    cmocka_unit_test(test_every_type),
    cmocka_unit_test(test_special_values),  cmocka_unit_test(test_turned),
    cmocka_unit_test(test_block_edges),     cmocka_unit_test(test_widened_blocks),
    cmocka_unit_test(test_widened_spread),  cmocka_unit_test(test_every_split),
    cmocka_unit_test(test_plans),           cmocka_unit_test(test_empty),
    cmocka_unit_test(test_every_half),
};
const size_t tl_tests_gemm_count = sizeof tl_tests_gemm / sizeof *tl_tests_gemm;
