/* f16 and bf16 parameters in matmul_to and addmm, as either operand and as the summand: their
 * gradients have one set of bits however the batch is split, and tl_explain_invariance names none
 * of them. TL_TEST_SEED repeats a run. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include <tally.h>

#include "tests/support/expect.h"

extern const struct CMUnitTest tl_tests_half_products[];
extern const size_t tl_tests_half_products_count;

enum { BATCH = 23, K = 7, N = 5, PARAMS = 2 };

typedef enum { TO_FIRST, TO_SECOND, ADDMM_FIRST, ADDMM_SECOND, FORMS } form;

typedef struct {
    form form;
    tl_dtype dtype, to;
    double beta, alpha;
} program;

static const char *const names[PARAMS] = {"w", "c"};

/* The weight and the summand of p, the batch x (n, K) and the product, its batch in rows or in
 * columns. */
static tl_tensor product(tl_tape *t, tl_model *m, const program *p, tl_tensor x)
{
    bool first = p->form == TO_FIRST || p->form == ADDMM_FIRST, add = p->form >= ADDMM_FIRST;
    tl_init some = {TL_INIT_NORMAL, 1};
    tl_tensor w = tl_param_at(TL_AT(t), m, names[0], p->dtype,
                              first ? TL_DIMS(N, K) : TL_DIMS(K, N), some);
    tl_tensor a = first ? w : x, b = first ? tl_transpose(t, x, 0, 1) : w;
    if (!add)
        return tl_matmul_to(t, a, b, p->to);
    /* the batch is axis 0: with it in columns, the summand is no parameter */
    tl_tensor c = first ? tl_fill(t, p->dtype, TL_DIMS(N, 1), 0.7)
                        : tl_param_at(TL_AT(t), m, names[1], p->dtype, TL_DIMS(N), some);
    return tl_addmm(t, c, a, b, p->beta, p->alpha);
}

/* Gradients of the parameters over the batch in parts of `micro` samples. */
static void run(const program *p, const ref_tensor *x, const ref_tensor *dy, int micro,
                char hex[PARAMS][65])
{
    tl_model *m = tl_model_new(.seed = 3);
    tl_tape *t = tl_tape_new(m);
    char text[512];
    bool columns = p->form == TO_FIRST || p->form == ADDMM_FIRST;
    for (int at = 0; at < BATCH; at += micro) {
        int end = at + micro < BATCH ? at + micro : BATCH;
        tl_tape_reset(t);
        tl_tensor y = product(t, m, p, tl_slice(t, tl_case_leaf(t, x), 0, at, end, 1));
        tl_tensor g = tl_slice(t, tl_case_leaf(t, dy), 0, at, end, 1);
        g = tl_cast(t, columns ? tl_transpose(t, g, 0, 1) : g, tl_dtype_of(t, y));
        if (tl_explain_invariance(t, y, text, sizeof text) != 0)
            fail_msg("form %d: %s%s", (int)p->form, text, tl_error(t));
        tl_backward(t, y, .cotangent = g);
    }
    for (int i = 0; i < (p->form == ADDMM_SECOND ? PARAMS : 1); i++)
        tl_sha256(t, tl_grad(t, tl_model_find(m, names[i])), hex[i]);
    expect_no_error(t);
    tl_free(t, m);
}

static void one_gradient_however_the_batch_is_split(void **unused)
{
    static const tl_dtype halves[] = {TL_F16, TL_BF16}, to[] = {TL_F32, TL_F16, TL_BF16, TL_F64};
    static const double factor[] = {1, 0.3, -1.7};
    static const int micros[] = {1, 2, 5, 22};
    uint64_t seed = expect_seed();
    (void)unused;
    for (int i = 0; i < 2 * FORMS * 12; i++) {
        program p = {(form)(i / 2 % FORMS), halves[i % 2], to[i / 8 % 4], factor[i / 8 % 3],
                     factor[(i / 8 + 1) % 3]};
        ref_dtype d = tl_case_ref_dtype(p.dtype);
        ref_tensor x = tl_case_values(d, &TL_DIMS(BATCH, K), &seed, CASE_PLAIN),
                   dy = tl_case_values(REF_F32, &TL_DIMS(BATCH, N), &seed, CASE_PLAIN);
        char want[PARAMS][65] = {{0}}, got[PARAMS][65] = {{0}};
        run(&p, &x, &dy, BATCH, want);
        for (int k = 0; k < 4; k++) {
            run(&p, &x, &dy, micros[k], got);
            if (memcmp(want, got, sizeof want) != 0)
                fail_msg(
                    "seed %llu: form %d, %s, beta %g, alpha %g: other gradients in parts of %d",
                    (unsigned long long)expect_seed(), (int)p.form, tl_dtype_name(p.dtype), p.beta,
                    p.alpha, micros[k]);
        }
        tl_case_free(2, (ref_tensor[]){x, dy});
    }
}

/* A weight may be widened on the way. */
static void a_cast_is_not_named(void **unused)
{
    (void)unused;
    tl_model *m = tl_model_new(.seed = 3);
    tl_tape *t = tl_tape_new(m);
    char text[512];
    tl_tensor w = tl_param(t, m, "w", TL_BF16, TL_DIMS(K, N)),
              x = tl_zeros(t, TL_BF16, TL_DIMS(3, K));
    assert_int_equal(tl_explain_invariance(t, tl_matmul_to(t, x, tl_cast(t, w, TL_F32), TL_F32),
                                           text, sizeof text),
                     0);
    tl_free(t, m);
}

const struct CMUnitTest tl_tests_half_products[] = {
    cmocka_unit_test(one_gradient_however_the_batch_is_split),
    cmocka_unit_test(a_cast_is_not_named),
};
const size_t tl_tests_half_products_count = sizeof tl_tests_half_products /
                                            sizeof tl_tests_half_products[0];
