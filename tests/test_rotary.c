/* Rotary embeddings as other systems have them: both pairings, every layout, partial, broadcast, by
 * offset and by position id, gradients for unequal halves, what is kept for backward. In place:
 * test_in_place.c; halves: test_rotary_halves.c; tables: test_rotary_table.c. TL_TEST_SEED repeats
 * a run. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "tests/support/expect.h"

extern const struct CMUnitTest tl_tests_rotary[];
extern const size_t tl_tests_rotary_count;

static const tl_rotary_pairing pairings[] = {TL_ROTARY_HALF, TL_ROTARY_INTERLEAVED};
static ref_pairing of(tl_rotary_pairing p)
{
    return p == TL_ROTARY_HALF ? REF_HALF : REF_INTERLEAVED;
}

/* ---- layouts, broadcasting, partial: values and gradients ---- */

enum { B = 2, N = 3, S = 5, D = 6 };

static const struct {
    const char *name;
    tl_shape x, r1, r2;
} layouts[] = {
    {"BNSD", {4, {B, N, S, D}}, {2, {S, D}}, {2, {S, D}}},
    {"BNSD, all dims", {4, {B, N, S, D}}, {4, {1, 1, S, D}}, {4, {1, 1, S, D}}},
    {"BNSD, by sample", {4, {B, N, S, D}}, {4, {B, 1, S, D}}, {4, {B, 1, S, D}}},
    {"BNSD, by head", {4, {B, N, S, D}}, {3, {N, 1, D}}, {4, {1, N, 1, D}}},
    {"BNSD, whole", {4, {B, N, S, D}}, {4, {B, N, S, D}}, {1, {D}}},
    {"BSND", {4, {B, S, N, D}}, {3, {S, 1, D}}, {3, {S, 1, D}}},
    {"BSND, by sample", {4, {B, S, N, D}}, {4, {B, S, 1, D}}, {3, {S, 1, D}}},
    {"SBND", {4, {S, B, N, D}}, {4, {S, 1, 1, D}}, {4, {S, 1, 1, D}}},
    {"SBND, by sample", {4, {S, B, N, D}}, {4, {S, B, 1, D}}, {4, {1, B, 1, D}}},
    {"TND", {3, {S, N, D}}, {3, {S, 1, D}}, {3, {S, 1, D}}},
    {"TND, one table", {3, {S, N, D}}, {1, {D}}, {1, {D}}},
    {"partial by 4", {4, {B, N, S, D}}, {2, {S, 4}}, {2, {S, 4}}},
    {"partial by 2", {4, {B, S, N, D}}, {3, {S, 1, 2}}, {3, {S, 1, 2}}},
    {"2 dims", {3, {S, N, 2}}, {3, {S, 1, 2}}, {3, {S, 1, 2}}},
};

/* Random tables: the two halves differ, as do the elements of a pair. */
static void layout(int i, ref_dtype dx, ref_dtype dr, tl_rotary_pairing p, uint64_t *seed)
{
    ref_tensor x = tl_case_values(dx, &layouts[i].x, seed, CASE_PLAIN),
               r1 = tl_case_values(dr, &layouts[i].r1, seed, CASE_PLAIN);
    ref_tensor r2 = tl_case_values(dr, &layouts[i].r2, seed, CASE_PLAIN),
               dy = tl_case_values(dx, &layouts[i].x, seed, CASE_PLAIN);
    int64_t n = layouts[i].r1.dim[layouts[i].r1.ndim - 1];
    ref_tensor y = ref_rotary(&x, &r1, &r2, of(p), n), g[3], wide;
    ref_rotary_grad(&dy, &x, &r1, &r2, of(p), n, &g[0], &g[1], &g[2], NULL, NULL);
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor in[3] = {trained_leaf(t, &x), trained_leaf(t, &r1), trained_leaf(t, &r2)},
              out = tl_rotary(t, in[0], in[1], in[2], p);
    expect_bits(t, out, &y);
    tl_backward(t, out, .cotangent = tl_case_leaf(t, &dy));
    for (int k = 0; k < 3; k++) {
        wide = ref_cast(&g[k], ref_compute(g[k].dtype));
        expect_bits(t, tl_grad(t, in[k]), &wide);
        ref_free(&wide);
    }
    tl_free(t);
    tl_case_free(5, (ref_tensor[]){x, r1, r2, dy, y});
    tl_case_free(3, g);
}

static void test_layouts(void **unused)
{
    uint64_t seed = expect_seed();
    (void)unused;
    for (int i = 0; i < (int)(sizeof layouts / sizeof *layouts); i++)
        for (int k = 0; k < 2; k++) {
            layout(i, REF_F64, REF_F64, pairings[k], &seed);
            layout(i, REF_F32, REF_F32, pairings[k], &seed);
            layout(i, REF_F16, REF_F32, pairings[k], &seed);
            layout(i, REF_BF16, REF_F32, pairings[k], &seed);
        }
}

/* The same numbers in another order: half of (a, b) is interleaved of a_0 b_0 a_1 b_1 ...; one in
 * the other's place is another result. */
static void test_pairings(void **unused)
{
    static const int64_t order[D] = {0, 3, 1, 4, 2, 5};
    uint64_t seed = expect_seed();
    (void)unused;
    ref_tensor x[3], z[3], y, w;
    for (int k = 0; k < 3; k++) {
        x[k] = tl_case_values(REF_F32, &TL_DIMS(D), &seed, CASE_PLAIN);
        z[k] = tl_case_gather(&x[k], D, order);
    }
    tl_tape *t = tl_tape_new(NULL);
    y = tl_case_read(t, tl_rotary(t, tl_case_leaf(t, &x[0]), tl_case_leaf(t, &x[1]),
                                  tl_case_leaf(t, &x[2]), TL_ROTARY_HALF));
    w = tl_case_gather(&y, D, order);
    expect_bits(t,
                tl_rotary(t, tl_case_leaf(t, &z[0]), tl_case_leaf(t, &z[1]), tl_case_leaf(t, &z[2]),
                          TL_ROTARY_INTERLEAVED),
                &w);
    ref_free(&w);
    w = tl_case_read(t, tl_rotary(t, tl_case_leaf(t, &x[0]), tl_case_leaf(t, &x[1]),
                                  tl_case_leaf(t, &x[2]), TL_ROTARY_INTERLEAVED));
    assert_false(ref_same_bits(&y, &w));
    for (int bad = 0; bad < 4; bad += 3) {
        assert_true(tl_is_none(tl_rotary(t, tl_case_leaf(t, &x[0]), tl_case_leaf(t, &x[1]),
                                         tl_case_leaf(t, &x[2]), (tl_rotary_pairing)bad)));
        expect_failure(t, TL_EDOMAIN, "rotary");
    }
    tl_free(t);
    tl_case_free(3, x);
    tl_case_free(3, z);
    tl_case_free(2, (ref_tensor[]){y, w});
}

static void test_shapes_that_do_not_fit(void **unused)
{
    static const struct {
        tl_shape x, r1, r2;
    } bad[] = {
        {{2, {4, 6}}, {2, {3, 6}}, {2, {3, 6}}}, {{2, {4, 6}}, {1, {8}}, {1, {8}}},
        {{2, {4, 6}}, {1, {5}}, {1, {5}}},       {{2, {4, 6}}, {1, {6}}, {1, {4}}},
        {{1, {6}}, {2, {4, 6}}, {2, {4, 6}}},
    };
    (void)unused;
    uint64_t seed = expect_seed();
    tl_tape *t = tl_tape_new(NULL);
    for (int i = 0; i < 5; i++) {
        ref_tensor x = tl_case_values(REF_F32, &bad[i].x, &seed, CASE_PLAIN),
                   r1 = tl_case_values(REF_F32, &bad[i].r1, &seed, CASE_PLAIN);
        ref_tensor r2 = tl_case_values(REF_F32, &bad[i].r2, &seed, CASE_PLAIN);
        assert_true(tl_is_none(tl_rotary(t, tl_case_leaf(t, &x), tl_case_leaf(t, &r1),
                                         tl_case_leaf(t, &r2), TL_ROTARY_HALF)));
        expect_failure(t, TL_ESHAPE, "rotary");
        tl_case_free(3, (ref_tensor[]){x, r1, r2});
    }
    tl_free(t);
}

/* ---- offsets and position ids ---- */

typedef tl_tensor by_position(tl_tape *t, tl_tensor x, tl_tensor r, tl_tensor where);
static tl_tensor by_ids(tl_tape *t, tl_tensor x, tl_tensor r, tl_tensor where)
{
    return tl_rotary_ids(t, x, r, r, where, -2, TL_ROTARY_HALF);
}
static tl_tensor by_offsets(tl_tape *t, tl_tensor x, tl_tensor r, tl_tensor where)
{
    return tl_rotary_offsets(t, x, r, r, where, 1, TL_ROTARY_HALF);
}

/* x (2, 3, 4), tables of 7 positions. */
static void out_of_table(by_position *f, const ref_tensor *where, const char *id)
{
    uint64_t seed = expect_seed();
    ref_tensor x = tl_case_values(REF_F32, &TL_DIMS(2, 3, 4), &seed, CASE_PLAIN),
               r = tl_case_values(REF_F32, &TL_DIMS(7, 4), &seed, CASE_PLAIN);
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor y = f(t, tl_case_leaf(t, &x), tl_case_leaf(t, &r), tl_case_leaf(t, where));
    if (id == NULL) {
        expect_no_error(t);
    } else {
        assert_true(tl_is_none(y));
        assert_non_null(strstr(tl_error(t), "7"));
        expect_failure(t, TL_EINDEX, id);
    }
    tl_free(t);
    tl_case_free(2, (ref_tensor[]){x, r});
}

static void test_positions_out_of_the_table(void **unused)
{
    (void)unused;
    static const struct {
        int64_t where[6];
        const char *id;
    } ids[] = {{{0, 6, 1, 2, 3, 4}, NULL},
               {{0, 1, 2, 3, 7, 5}, "7"},
               {{0, 1, 2, -1, 0, 0}, "-1"},
               {{0, 1, 2, 3, 4, 1000000007}, "1000000007"}};
    static const struct {
        int64_t where[2];
        const char *id;
    } offsets[] = {{{0, 4}, NULL}, {{4, 5}, "7"}, {{-1, 0}, "-1"}, {{0, 4000}, "4000"}};
    for (int i = 0; i < 4; i++) {
        ref_tensor a = ref_from_i64(CASE_REF_DIMS(2, 3), ids[i].where),
                   b = ref_from_i64(CASE_REF_DIMS(2), offsets[i].where);
        out_of_table(by_ids, &a, ids[i].id);
        out_of_table(by_offsets, &b, offsets[i].id);
        tl_case_free(2, (ref_tensor[]){a, b});
    }
}

/* A sample at offset o is what it is alone with the table's rows from o on. */
static void test_offsets_are_rows_of_the_table(void **unused)
{
    static const int64_t offset[B] = {4, 1};
    uint64_t seed = expect_seed();
    (void)unused;
    ref_tensor x = tl_case_values(REF_F32, &TL_DIMS(B, S, N, D), &seed, CASE_PLAIN),
               o = ref_from_i64(CASE_REF_DIMS(B), offset);
    ref_tensor r1 = tl_case_values(REF_F32, &TL_DIMS(9, D), &seed, CASE_PLAIN),
               r2 = tl_case_values(REF_F32, &TL_DIMS(9, D), &seed, CASE_PLAIN);
    for (int k = 0; k < 2; k++) {
        tl_tape *t = tl_tape_new(NULL);
        tl_tensor h = tl_case_leaf(t, &x), a = tl_case_leaf(t, &r1), b = tl_case_leaf(t, &r2);
        tl_tensor all = tl_rotary_offsets(t, h, a, b, tl_case_leaf(t, &o), k ? 1 : -3, pairings[k]);
        for (int i = 0; i < B; i++) {
            tl_shape s = TL_DIMS(S, 1, D);
            tl_tensor ra = tl_reshape(t, tl_slice(t, a, 0, offset[i], offset[i] + S, 1), s),
                      rb = tl_reshape(t, tl_slice(t, b, 0, offset[i], offset[i] + S, 1), s);
            ref_tensor one = tl_case_read(t,
                                          tl_rotary(t, tl_select(t, h, 0, i), ra, rb, pairings[k]));
            expect_bits(t, tl_select(t, all, 0, i), &one);
            ref_free(&one);
        }
        tl_free(t);
    }
    tl_case_free(4, (ref_tensor[]){x, o, r1, r2});
}

/* ---- the gradient's shortcuts ---- */

/* dx of g against rotary(g, r1, -r2) and -rotary(g, r1, r2). */
static void shortcuts(const ref_tensor *g, const ref_tensor *r1, const ref_tensor *r2,
                      tl_rotary_pairing p, bool *conjugate, bool *minus)
{
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = trained_leaf(t, g), a = tl_case_leaf(t, r1), b = tl_case_leaf(t, r2),
              h = tl_case_leaf(t, g);
    ref_tensor one = tl_case_read(t, tl_rotary(t, h, a, tl_neg(t, b), p)),
               two = tl_case_read(t, tl_neg(t, tl_rotary(t, h, a, b, p)));
    tl_backward(t, tl_rotary(t, x, a, b, p), .cotangent = h);
    ref_tensor dx = tl_case_read(t, tl_grad(t, x)), want;
    expect_no_error(t);
    ref_rotary_grad(g, g, r1, r2, of(p), r1->dim[r1->ndim - 1], &want, NULL, NULL, NULL, NULL);
    assert_true(ref_same_bits(&dx, &want));
    *conjugate = ref_same_bits(&dx, &one);
    *minus = ref_same_bits(&dx, &two);
    tl_free(t);
    tl_case_free(4, (ref_tensor[]){one, two, dx, want});
}

static void test_shortcuts(void **unused)
{
    uint64_t seed = expect_seed();
    (void)unused;
    for (int k = 0; k < 2; k++) {
        ref_tensor g = tl_case_values(REF_F32, &TL_DIMS(S, D), &seed, CASE_PLAIN),
                   r1 = tl_case_values(REF_F32, &TL_DIMS(S, D), &seed, CASE_PLAIN);
        ref_tensor r2 = tl_case_values(REF_F32, &TL_DIMS(S, D), &seed, CASE_PLAIN),
                   half = tl_case_values(REF_F32, &TL_DIMS(S, D / 2), &seed, CASE_PLAIN);
        ref_tensor equal = ref_rotary_widen(&half, of(pairings[k]));
        bool conjugate, minus;
        shortcuts(&g, &r1, &r2, pairings[k], &conjugate, &minus);
        assert_false(conjugate);
        assert_false(minus);
        shortcuts(&g, &r1, &equal, pairings[k], &conjugate, &minus);
        assert_true(conjugate); /* right where the two elements of a pair share their sine */
        assert_false(minus);
        tl_case_free(5, (ref_tensor[]){g, r1, r2, half, equal});
    }
}

/* ---- what backward keeps ---- */

/* x changes after it was read. That matters only where a table's gradient reads it. */
static void x_changes(int trained_table, bool want_ok)
{
    uint64_t seed = expect_seed();
    ref_tensor v = tl_case_values(REF_F32, &TL_DIMS(3, 4), &seed, CASE_PLAIN),
               r = tl_case_values(REF_F32, &TL_DIMS(3, 4), &seed, CASE_PLAIN);
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor c = tl_case_leaf(t, &r), a = trained_table == 1 ? trained_leaf(t, &r) : c,
              b = trained_table == 2 ? trained_leaf(t, &r) : c;
    tl_tensor leaf = trained_leaf(t, &v), x = tl_scale(t, leaf, 1),
              y = tl_rotary(t, x, a, b, TL_ROTARY_HALF);
    tl_rotary_(t, x, c, c, TL_ROTARY_HALF);
    if (!tl_failed(t))
        tl_backward(t, y, .cotangent = c);
    if (want_ok)
        expect_no_error(t);
    else
        expect_failure(t, TL_EINPLACE, "");
    tl_free(t);
    tl_case_free(2, (ref_tensor[]){v, r});
}

static void test_x_is_kept_for_tables_alone(void **unused)
{
    (void)unused;
    x_changes(0, true);
    x_changes(1, false);
    x_changes(2, false);
}

const struct CMUnitTest tl_tests_rotary[] = {
    cmocka_unit_test(test_layouts),
    cmocka_unit_test(test_pairings),
    cmocka_unit_test(test_shapes_that_do_not_fit),
    cmocka_unit_test(test_positions_out_of_the_table),
    cmocka_unit_test(test_offsets_are_rows_of_the_table),
    cmocka_unit_test(test_shortcuts),
    cmocka_unit_test(test_x_is_kept_for_tables_alone),
};
const size_t tl_tests_rotary_count = sizeof tl_tests_rotary / sizeof tl_tests_rotary[0];
