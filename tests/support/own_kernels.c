#include "tests/support/own_kernels.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>

#include "tensor/isa.h"

int own_calls;

/* The chain of NUMERICS 5, as naively as it stands there, spoilt in one of several ways. */
static float element(const tl_gemm_args *g, int64_t i, int64_t j, own_fault how)
{
    const float *a = (const float *)g->a.data + i * g->a.rs,
                *b = (const float *)g->b.data + j * g->b.cs;
    const bool goes_on = g->accumulate && how != FORGETS;
    float acc = goes_on ? ((float *)g->c)[i * g->rsc + j * g->csc] : 0, second = 0;
    double wide = (double)acc;
    for (int64_t n = 0; n < g->k; n++) {
        int64_t p = how == BACKWARDS ? g->k - 1 - n : n;
        float x = a[p * g->a.cs], y = b[p * g->b.rs];
        volatile float product = x * y;
        wide += (double)x * (double)y;
        if (how == TWO_ROUNDINGS)
            acc = acc + product;
        else if (how == HALVES &&
                 p >= 256) /* as a library does that starts each block of K from zero */
            second = fmaf(x, y, second);
        else
            acc = fmaf(x, y, acc);
    }
    acc = how == IN_F64 ? (float)wide : how == HALVES ? acc + second : acc;
    return how == MINUS_ZERO ? acc : acc + 0.0f;
}

static bool multiply(const tl_gemm_args *g, own_fault how)
{
    if (g->f64 || g->a.type != TL_GEMM_F32 || g->b.type != TL_GEMM_F32)
        return false;
    own_calls++;
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t j = 0; j < g->n; j++)
            ((float *)g->c)[i * g->rsc + j * g->csc] = element(g, i, j, how);
    return true;
}

static bool gemm_right(const tl_gemm_args *g) { return multiply(g, RIGHT); }
static bool gemm_halves(const tl_gemm_args *g) { return multiply(g, HALVES); }
static bool gemm_two_roundings(const tl_gemm_args *g) { return multiply(g, TWO_ROUNDINGS); }
static bool gemm_minus_zero(const tl_gemm_args *g) { return multiply(g, MINUS_ZERO); }
static bool gemm_forgets(const tl_gemm_args *g) { return multiply(g, FORGETS); }
static bool gemm_in_f64(const tl_gemm_args *g) { return multiply(g, IN_F64); }
static bool gemm_backwards(const tl_gemm_args *g) { return multiply(g, BACKWARDS); }

tl_status own_matmul(tl_call *c) { return tl_matmul_with(c, gemm_right); }
static tl_status run_halves(tl_call *c) { return tl_matmul_with(c, gemm_halves); }
static tl_status run_two_roundings(tl_call *c) { return tl_matmul_with(c, gemm_two_roundings); }
static tl_status run_minus_zero(tl_call *c) { return tl_matmul_with(c, gemm_minus_zero); }
static tl_status run_forgets(tl_call *c) { return tl_matmul_with(c, gemm_forgets); }
static tl_status run_in_f64(tl_call *c) { return tl_matmul_with(c, gemm_in_f64); }
static tl_status run_backwards(tl_call *c) { return tl_matmul_with(c, gemm_backwards); }

#define MATMUL(id, function)                                                        \
    {                                                                               \
        .op = "matmul", .name = "test-" #id, .dtype = TL_F32, .mode = TL_INVARIANT, \
        .run = function                                                             \
    }
const tl_kernel own_declared[FAULTS] = {
    [RIGHT] = MATMUL(right, own_matmul),
    [HALVES] = MATMUL(halves, run_halves),
    [TWO_ROUNDINGS] = MATMUL(two_roundings, run_two_roundings),
    [MINUS_ZERO] = MATMUL(minus_zero, run_minus_zero),
    [FORGETS] = MATMUL(forgets, run_forgets),
    [IN_F64] = MATMUL(in_f64, run_in_f64),
    [BACKWARDS] = MATMUL(backwards, run_backwards),
};
const tl_kernel own_bits = {
    .op = "matmul", .name = "test-own", .dtype = TL_F32, .mode = TL_FAST, .run = run_halves};

void own_doubled(const tl_tile *k)
{
    own_calls++;
    for (int64_t i = 0; i < k->n; i++) {
        if (k->dtype == TL_F64)
            ((double *)k->out)[i] = 2 * ((const double *)k->in[0])[i];
        else
            ((float *)k->out)[i] = 2 * ((const float *)k->in[0])[i];
    }
}

static void negated(const tl_tile *k)
{
    for (int64_t i = 0; i < k->n; i++)
        ((float *)k->out)[i] = -((const float *)k->in[0])[i];
}

static bool wide_enough(const tl_call *c) { return c->in[0]->dim[0] >= 4; }

static const tl_kernel silu_doubled = {.op = "silu",
                                       .name = "test-doubled",
                                       .dtype = TL_ANY_DTYPE,
                                       .mode = TL_FAST,
                                       .tile = own_doubled,
                                       .fits = wide_enough};
static const tl_kernel silu_grad_doubled = {.op = "silu_grad",
                                            .name = "test-doubled",
                                            .dtype = TL_F32,
                                            .mode = TL_FAST,
                                            .tile = own_doubled};
static const tl_kernel neg_right = {
    .op = "neg", .name = "test-neg", .dtype = TL_F32, .mode = TL_INVARIANT, .tile = negated};
static const tl_kernel neg_wrong = {
    .op = "neg", .name = "test-wrong", .dtype = TL_F32, .mode = TL_INVARIANT, .tile = own_doubled};
static const tl_kernel tile_of_matmul = {
    .op = "matmul", .name = "test-tile", .dtype = TL_F32, .mode = TL_FAST, .tile = own_doubled};
/* Two levels of one kernel, which give different answers so that one sees which ran. */
static const tl_kernel abs_low = {.op = "abs",
                                  .name = "test-levels",
                                  .dtype = TL_F32,
                                  .mode = TL_FAST,
                                  .isa = "scalar",
                                  .tile = own_doubled};
static const tl_kernel abs_high = {.op = "abs",
                                   .name = "test-levels",
                                   .dtype = TL_F32,
                                   .mode = TL_FAST,
                                   .isa = "v3",
                                   .tile = negated};
/* A level of another processor. */
#if defined(__aarch64__)
#define ELSEWHERE "v4"
#else
#define ELSEWHERE "neon"
#endif
static const tl_kernel abs_never = {.op = "abs",
                                    .name = "test-never",
                                    .dtype = TL_F32,
                                    .mode = TL_FAST,
                                    .isa = ELSEWHERE,
                                    .tile = own_doubled};

void own_kernels(tl_tape *t)
{
    static bool done;
    const tl_kernel *const others[] = {&own_bits,  &silu_doubled, &silu_grad_doubled,
                                       &neg_right, &neg_wrong,    &tile_of_matmul,
                                       &abs_low,   &abs_high,     &abs_never};
    for (size_t i = 0; i < sizeof others / sizeof *others && !done; i++)
        assert_int_equal(tl_kernel_register(t, others[i]), TL_OK);
    for (int i = 0; i < FAULTS && !done; i++)
        assert_int_equal(tl_kernel_register(t, &own_declared[i]), TL_OK);
    done = true;
    own_calls = 0;
}

/* ---- values, and which kernel made them ---- */

void expect_kernel(tl_tape *t, tl_tensor x, const char *want)
{
    const char *got = tl_kernel_of(t, x);
    expect_no_error(t);
    assert_string_equal(got, want);
}

void expect_library(tl_tape *t, tl_tensor x, const char *op_and_dtype)
{
    char want[64];
    snprintf(want, sizeof want, "%s invariant %s", op_and_dtype, tl_isa_now()->name);
    expect_kernel(t, x, want);
}

tl_tensor own_numbers(tl_tape *t, tl_dtype d, int64_t rows, int64_t cols, int k)
{
    return tl_probe_numbers(t, d, TL_DIMS(rows, cols), k, false);
}

tl_tensor own_weight(tl_tape *t, tl_model *m, const char *name, int64_t rows, int64_t cols)
{
    return tl_param(t, m, name, TL_F32, TL_DIMS(rows, cols), TL_INIT_NORMAL, 1);
}

tl_tensor own_total(tl_tape *t, tl_tensor x) { return tl_sum(t, x, TL_ALL, false); }
tl_tensor own_product(tl_tape *t, tl_dtype d)
{
    return tl_matmul(t, own_numbers(t, d, 5, 300, 0), own_numbers(t, d, 300, 6, 1));
}

void own_hash(tl_tape *t, tl_tensor x, char hex[65])
{
    tl_sha256(t, x, hex);
    expect_no_error(t);
}
