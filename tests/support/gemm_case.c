#include "tests/support/gemm_case.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/isa.h"
#include "tests/ref/ref_gemm.h"

static uint64_t state;

uint64_t gemm_seed(void)
{
    const char *s = getenv("TL_TEST_SEED");
    return s ? strtoull(s, NULL, 0) : 20240607;
}

void gemm_start(void) { state = gemm_seed(); }

uint32_t gemm_random(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

static double random_value(int values)
{
    static const double special[] = {
        0.0,         -0.0,     1.0,       -1.0,     (double)INFINITY, -(double)INFINITY,
        (double)NAN, 0x1p-149, -0x1p-140, 0x1p-126, 0x1.fffffep127,   -0x1p127,
        0x1p-24,     65504,    -0x1p-14,  0x1p-133,
    };
    const double sign = gemm_random() & 1 ? -1 : 1;
    if (values == SPECIAL && gemm_random() % 8 == 0)
        return special[gemm_random() % 16];
    if (values == TIES)
        return sign * ldexp(1 + gemm_random() % 4 * 0.25, -(int)(gemm_random() % 16));
    if (values == NEAR_TIES || values == NEAR_TIES_SMALL) {
        static const double near_one[] = {1 + 0x1p-23, 1 - 0x1p-23, 1, 1};
        static const int scale[] = {0, 0, -11, -12, -12, -13};
        return sign * ldexp(near_one[gemm_random() % 4],
                            scale[gemm_random() % 6] - (values == NEAR_TIES ? 0 : 63));
    }
    const double x = sign * (1 + (gemm_random() >> 9) * 0x1p-23) *
                     ldexp(1, (int)(gemm_random() % 4) - 2);
    return values == SMALL ? x * 0x1p-71 : x;
}

static char letter(tl_gemm_type type) { return "sdhb"[type]; }

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
        case TL_GEMM_F64: ((double *)data)[i] = x * (1 + gemm_random() * 0x1p-52); break;
        case TL_GEMM_F16: ((uint16_t *)data)[i] = ref_f64_to_h(x); break;
        case TL_GEMM_BF16: ((uint16_t *)data)[i] = ref_f64_to_b(x); break;
        }
    }
    return data;
}

typedef struct {
    int64_t rs, cs, first, count; /* element (0,0) is at `first` of `count` */
} placed;

/* Padded layouts also start one element in: no alignment beyond the element's. */
static placed place(int layout, int64_t rows, int64_t cols)
{
    placed p = {cols, 1, 0, 0};
    const bool padded = layout == ROWS_PADDED || layout == COLS_PADDED;
    switch (layout) {
    case ROWS_PADDED: p.rs = cols + 3; break;
    case COLS: p = (placed){1, rows, 0, 0}; break;
    case COLS_PADDED: p = (placed){1, rows + 5, 0, 0}; break;
    case SPREAD: p = (placed){2 * cols + 1, 2, 0, 0}; break;
    case ROWS_UP: p.rs = -cols; break;
    case COLS_BACK: p.cs = -1; break;
    case ZERO_ROW: p.rs = 0; break;
    case ZERO_COL: p = (placed){1, 0, 0, 0}; break;
    default: break;
    }
    if (rows > 0 && cols > 0) {
        const int64_t down = (rows - 1) * p.rs, right = (cols - 1) * p.cs;
        p.first = (down < 0 ? -down : 0) + (right < 0 ? -right : 0) + padded;
        p.count = p.first + (down > 0 ? down : 0) + (right > 0 ? right : 0) + 1;
    }
    return p;
}

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

void *gemm_scratch(int64_t bytes)
{
    return bytes ? aligned_alloc(64, ((size_t)bytes + 63) / 64 * 64) : NULL;
}

static void run_tasks(const tl_gemm_table *table, const tl_gemm_args *g, int64_t rows, int64_t cols)
{
    tl_gemm_plan plan;
    if (tl_gemm_plan_make(table, g, 1, &plan) == 0)
        return;
    tl_gemm_plan_split(&plan, rows, cols);
    void *scratch = gemm_scratch(plan.scratch_bytes);
    for (int64_t task = plan.tasks - 1; task >= 0; task--)
        tl_gemm_task(&plan, task, scratch);
    free(scratch);
}

static void run_serial(const tl_gemm_table *table, const tl_gemm_args *g)
{
    void *scratch = gemm_scratch(tl_gemm_scratch_bytes(table, g));
    tl_gemm_serial(table, g, scratch);
    free(scratch);
}

static void check_levels(const gemm_case *t, const tl_gemm_args *g, const placed *pc,
                         const void *before, const void *want)
{
    const size_t bytes = (size_t)pc->count * (t->f64 ? 8 : 4);
    for (int l = 0; tl_isa_at(l) != NULL; l++) {
        tl_gemm_args x = *g;
        char *got = malloc(bytes + 1);
        int64_t where = 0;
        memcpy(got, before, bytes);
        x.c = got + pc->first * (t->f64 ? 8 : 4);
        if (t->task_rows)
            run_tasks(tl_isa_at(l)->gemm, &x, t->task_rows, t->task_cols);
        else
            run_serial(tl_isa_at(l)->gemm, &x);
        if (!same_bits(got, want, pc->count, t->f64, &where))
            fail_msg("%s: %ldx%ldx%ld types %c%c%s layouts %d %d %d%s values %d tasks %ldx%ld: "
                     "element %ld of C's buffer (seed %lu)",
                     tl_isa_at(l)->name, (long)t->m, (long)t->n, (long)t->k, letter(t->ta),
                     letter(t->tb), t->f64 ? " in f64" : "", t->la, t->lb, t->lc,
                     t->accumulate ? " accumulating" : "", t->values, (long)t->task_rows,
                     (long)t->task_cols, (long)where, (unsigned long)gemm_seed());
        free(got);
    }
}

void gemm_check(gemm_case t)
{
    const placed pa = place(t.la, t.m, t.k), pb = place(t.lb, t.k, t.n), pc = place(t.lc, t.m, t.n);
    const tl_gemm_type tc = t.f64 ? TL_GEMM_F64 : TL_GEMM_F32;
    char *a = random_buffer(t.ta, pa.count, t.values), *b = random_buffer(t.tb, pb.count, t.values);
    char *before = random_buffer(tc, pc.count, t.values), *want = malloc((size_t)pc.count * 8 + 1);
    memcpy(want, before, (size_t)pc.count * bytes_of(tc));
    const tl_gemm_args g = {
        .m = t.m,
        .n = t.n,
        .k = t.k,
        .rsc = pc.rs,
        .csc = pc.cs,
        .f64 = t.f64,
        .accumulate = t.accumulate,
        .a = {a + (size_t)pa.first * bytes_of(t.ta), t.ta, pa.rs, pa.cs},
        .b = {b + (size_t)pb.first * bytes_of(t.tb), t.tb, pb.rs, pb.cs},
    };
    ref_gemm(t.m, t.n, t.k, (ref_mat){g.a.data, letter(t.ta), pa.rs, pa.cs},
             (ref_mat){g.b.data, letter(t.tb), pb.rs, pb.cs},
             want + (size_t)pc.first * bytes_of(tc), pc.rs, pc.cs, t.f64, t.accumulate);
    check_levels(&t, &g, &pc, before, want);
    free(a);
    free(b);
    free(before);
    free(want);
}
