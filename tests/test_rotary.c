/* Rotary embeddings as other systems have them: both pairings, every layout, partial, broadcast, in place on a packed qkv, by offset and
 * by position id, gradients for unequal halves, what is kept for backward, and the tables. TL_TEST_SEED repeats a run. */
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

extern const struct CMUnitTest tl_tests_rotary[];
extern const size_t tl_tests_rotary_count;

static const tl_rotary_pairing pairings[] = {TL_ROTARY_HALF, TL_ROTARY_INTERLEAVED};
static ref_pairing of(tl_rotary_pairing p) { return p == TL_ROTARY_HALF ? REF_HALF : REF_INTERLEAVED; }

static uint64_t start(void)
{
    const char *env = getenv("TL_TEST_SEED");
    return env != NULL ? strtoull(env, NULL, 0) : 1;
}

static void no_error(tl_tape *t)
{
    if (tl_failed(t))
        fail_msg("%s", tl_error(t));
}

/* The call before failed so, with these words in its message; the tape is fit again. */
static void refused(tl_tape *t, tl_status s, const char *words)
{
    if (tl_error_status(t) != s || strstr(tl_error(t), words) == NULL)
        fail_msg("status %d and '%s' expected; %d, '%s'", (int)s, words, (int)tl_error_status(t), tl_error(t));
    tl_error_clear(t);
}

static void same(tl_tape *t, tl_tensor got, const ref_tensor *want)
{
    ref_tensor g = tl_case_read(t, got);
    no_error(t);
    assert_true(ref_same_bits(&g, want));
    ref_free(&g);
}

static tl_tensor trained(tl_tape *t, const ref_tensor *x)
{
    tl_tensor h = tl_case_leaf(t, x);
    tl_require_grad(t, h);
    return h;
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
    ref_tensor x = tl_case_values(dx, &layouts[i].x, seed, CASE_PLAIN), r1 = tl_case_values(dr, &layouts[i].r1, seed, CASE_PLAIN);
    ref_tensor r2 = tl_case_values(dr, &layouts[i].r2, seed, CASE_PLAIN), dy = tl_case_values(dx, &layouts[i].x, seed, CASE_PLAIN);
    int64_t n = layouts[i].r1.dim[layouts[i].r1.ndim - 1];
    ref_tensor y = ref_rotary(&x, &r1, &r2, of(p), n), g[3], wide;
    ref_rotary_grad(&dy, &x, &r1, &r2, of(p), n, &g[0], &g[1], &g[2], NULL, NULL);
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor in[3] = {trained(t, &x), trained(t, &r1), trained(t, &r2)}, out = tl_rotary(t, in[0], in[1], in[2], p);
    same(t, out, &y);
    tl_backward(t, out, .cotangent = tl_case_leaf(t, &dy));
    for (int k = 0; k < 3; k++) {
        wide = ref_cast(&g[k], ref_compute(g[k].dtype));
        same(t, tl_grad(t, in[k]), &wide);
        ref_free(&wide);
    }
    tl_free(t);
    tl_case_free(5, (ref_tensor[]){x, r1, r2, dy, y});
    tl_case_free(3, g);
}

static void test_layouts(void **unused)
{
    uint64_t seed = start();
    (void)unused;
    for (int i = 0; i < (int)(sizeof layouts / sizeof *layouts); i++)
        for (int k = 0; k < 2; k++) {
            layout(i, REF_F64, REF_F64, pairings[k], &seed);
            layout(i, REF_F32, REF_F32, pairings[k], &seed);
            layout(i, REF_F16, REF_F32, pairings[k], &seed);
            layout(i, REF_BF16, REF_F32, pairings[k], &seed);
        }
}

/* The same numbers in another order: half of (a, b) is interleaved of a_0 b_0 a_1 b_1 ...; one in the other's place is another result. */
static void test_pairings(void **unused)
{
    static const int64_t order[D] = {0, 3, 1, 4, 2, 5};
    uint64_t seed = start();
    (void)unused;
    ref_tensor x[3], z[3], y, w;
    for (int k = 0; k < 3; k++) {
        x[k] = tl_case_values(REF_F32, &TL_DIMS(D), &seed, CASE_PLAIN);
        z[k] = tl_case_gather(&x[k], D, order);
    }
    tl_tape *t = tl_tape_new(NULL);
    y = tl_case_read(t, tl_rotary(t, tl_case_leaf(t, &x[0]), tl_case_leaf(t, &x[1]), tl_case_leaf(t, &x[2]), TL_ROTARY_HALF));
    w = tl_case_gather(&y, D, order);
    same(t, tl_rotary(t, tl_case_leaf(t, &z[0]), tl_case_leaf(t, &z[1]), tl_case_leaf(t, &z[2]), TL_ROTARY_INTERLEAVED), &w);
    ref_free(&w);
    w = tl_case_read(t, tl_rotary(t, tl_case_leaf(t, &x[0]), tl_case_leaf(t, &x[1]), tl_case_leaf(t, &x[2]), TL_ROTARY_INTERLEAVED));
    assert_false(ref_same_bits(&y, &w));
    for (int bad = 0; bad < 4; bad += 3) {
        assert_true(tl_is_none(tl_rotary(t, tl_case_leaf(t, &x[0]), tl_case_leaf(t, &x[1]), tl_case_leaf(t, &x[2]), (tl_rotary_pairing)bad)));
        refused(t, TL_EDOMAIN, "rotary");
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
        {{2, {4, 6}}, {2, {3, 6}}, {2, {3, 6}}}, {{2, {4, 6}}, {1, {8}}, {1, {8}}}, {{2, {4, 6}}, {1, {5}}, {1, {5}}},
        {{2, {4, 6}}, {1, {6}}, {1, {4}}},       {{1, {6}}, {2, {4, 6}}, {2, {4, 6}}},
    };
    (void)unused;
    uint64_t seed = start();
    tl_tape *t = tl_tape_new(NULL);
    for (int i = 0; i < 5; i++) {
        ref_tensor x = tl_case_values(REF_F32, &bad[i].x, &seed, CASE_PLAIN), r1 = tl_case_values(REF_F32, &bad[i].r1, &seed, CASE_PLAIN);
        ref_tensor r2 = tl_case_values(REF_F32, &bad[i].r2, &seed, CASE_PLAIN);
        assert_true(tl_is_none(tl_rotary(t, tl_case_leaf(t, &x), tl_case_leaf(t, &r1), tl_case_leaf(t, &r2), TL_ROTARY_HALF)));
        refused(t, TL_ESHAPE, "rotary");
        tl_case_free(3, (ref_tensor[]){x, r1, r2});
    }
    tl_free(t);
}

/* ---- in place, on views of a packed qkv (B, S, 3, N, D) ---- */

typedef struct {
    ref_tensor w, r1, r2, dy;
} packed;

static packed new_packed(uint64_t *seed)
{
    tl_shape s = {5, {B, S, 3, N, D}}, r = {3, {S, 1, 4}};
    return (packed){tl_case_values(REF_F32, &s, seed, CASE_PLAIN), tl_case_values(REF_F32, &r, seed, CASE_PLAIN),
                    tl_case_values(REF_F32, &r, seed, CASE_PLAIN), tl_case_values(REF_F32, &s, seed, CASE_PLAIN)};
}

/* q and k turned, v as it is: values and gradients of all three, joined. */
static void run_packed(const packed *p, tl_rotary_pairing how, bool in_place, ref_tensor *y, ref_tensor *dw)
{
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor w = trained(t, &p->w), all = tl_scale(t, w, 1), r1 = tl_case_leaf(t, &p->r1), r2 = tl_case_leaf(t, &p->r2), part[3];
    for (int i = 0; i < 3; i++)
        part[i] = tl_select(t, all, 2, i);
    for (int i = 0; i < 2; i++) {
        tl_array before, after;
        assert_true(tl_array_of(t, part[i], &before));
        part[i] = in_place ? tl_rotary_(t, part[i], r1, r2, how) : tl_rotary(t, part[i], r1, r2, how);
        no_error(t);
        assert_true(tl_array_of(t, part[i], &after));
        assert_int_equal(in_place, before.data == after.data);
    }
    tl_tensor out = tl_stack(t, part, 3, 2);
    *y = tl_case_read(t, out);
    no_error(t);
    tl_backward(t, out, .cotangent = tl_case_leaf(t, &p->dy));
    *dw = tl_case_read(t, tl_grad(t, w));
    no_error(t);
    tl_free(t);
}

static ref_tensor piece(const ref_tensor *x, int i)
{
    ref_tensor s = ref_slice(x, 2, i, i + 1, 1), y = tl_case_shaped(&s, CASE_REF_DIMS(B, S, N, D));
    return y;
}

static void test_in_place_on_packed_qkv(void **unused)
{
    uint64_t seed = start();
    (void)unused;
    for (int k = 0; k < 2; k++) {
        packed p = new_packed(&seed);
        ref_tensor y[2], dw[2], want[3], grad[3], x, g;
        for (int i = 0; i < 3; i++) {
            x = piece(&p.w, i);
            g = piece(&p.dy, i);
            if (i < 2) {
                want[i] = ref_rotary(&x, &p.r1, &p.r2, of(pairings[k]), 4);
                ref_rotary_grad(&g, &x, &p.r1, &p.r2, of(pairings[k]), 4, &grad[i], NULL, NULL, NULL, NULL);
            } else {
                want[i] = ref_copy(&x);
                grad[i] = ref_copy(&g);
            }
            tl_case_free(2, (ref_tensor[]){x, g});
        }
        ref_tensor all = ref_stack(3, (const ref_tensor *[]){&want[0], &want[1], &want[2]}, 2);
        ref_tensor dall = ref_stack(3, (const ref_tensor *[]){&grad[0], &grad[1], &grad[2]}, 2);
        for (int i = 0; i < 2; i++) {
            run_packed(&p, pairings[k], i == 1, &y[i], &dw[i]);
            assert_true(ref_same_bits(&y[i], &all));
            for (int64_t e = 0; e < ref_numel(&dall); e++)
                assert_true(ref_get(&dw[i], e) == ref_get(&dall, e));
        }
        assert_true(ref_same_bits(&dw[0], &dw[1]));
        tl_case_free(2, y);
        tl_case_free(2, dw);
        tl_case_free(3, want);
        tl_case_free(3, grad);
        tl_case_free(6, (ref_tensor[]){all, dall, p.w, p.r1, p.r2, p.dy});
    }
}

static void test_in_place_refusals(void **unused)
{
    uint64_t seed = start();
    (void)unused;
    ref_tensor x = tl_case_values(REF_F32, &TL_DIMS(3, 4), &seed, CASE_PLAIN), r = tl_case_values(REF_F32, &TL_DIMS(3, 4), &seed, CASE_PLAIN);
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor c = tl_case_leaf(t, &r), leaf = trained(t, &x), table = trained(t, &r), y;
    assert_true(tl_is_none(tl_rotary_(t, leaf, c, c, TL_ROTARY_HALF)));
    refused(t, TL_EINPLACE, "rotary_");
    for (int i = 0; i < 2; i++) { /* a table's gradient reads x as it was: refused by the call, or by backward */
        y = tl_rotary_(t, tl_scale(t, leaf, 1), i == 0 ? table : c, i == 1 ? table : c, TL_ROTARY_HALF);
        if (!tl_failed(t))
            tl_backward(t, y, .cotangent = c);
        refused(t, TL_ENOGRAD, "rotary_");
    }
    y = tl_expand(t, tl_slice(t, tl_scale(t, leaf, 1), 0, 0, 1, 1), TL_DIMS(3, 4)); /* elements shown three times */
    assert_true(tl_is_none(tl_rotary_(t, y, c, c, TL_ROTARY_HALF)));
    assert_true(tl_failed(t));
    tl_error_clear(t);
    y = tl_scale(t, leaf, 1); /* consumed: the old name is void */
    tl_rotary_(t, y, c, c, TL_ROTARY_HALF);
    no_error(t);
    tl_add(t, y, c);
    assert_true(tl_failed(t));
    tl_free(t);
    tl_case_free(2, (ref_tensor[]){x, r});
}

/* What another op saved is not overwritten unseen: exp keeps its result. */
static void test_in_place_of_a_saved_value(void **unused)
{
    uint64_t seed = start();
    (void)unused;
    ref_tensor x = tl_case_values(REF_F32, &TL_DIMS(3, 4), &seed, CASE_PLAIN), r = tl_case_values(REF_F32, &TL_DIMS(3, 4), &seed, CASE_PLAIN);
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor c = tl_case_leaf(t, &r), y = tl_rotary_(t, tl_exp(t, trained(t, &x)), c, c, TL_ROTARY_HALF);
    if (!tl_failed(t))
        tl_backward(t, y, .cotangent = c);
    refused(t, TL_EINPLACE, "");
    tl_free(t);
    tl_case_free(2, (ref_tensor[]){x, r});
}

/* A cotangent that two ops read: the other one gets it as it was. */
static void test_in_place_spares_the_cotangent(void **unused)
{
    uint64_t seed = start();
    (void)unused;
    ref_tensor x = tl_case_values(REF_F32, &TL_DIMS(3, 4), &seed, CASE_PLAIN), r = tl_case_values(REF_F32, &TL_DIMS(3, 4), &seed, CASE_PLAIN);
    for (int swap = 0; swap < 2; swap++) {
        tl_tape *t = tl_tape_new(NULL);
        tl_tensor a = trained(t, &x), b = trained(t, &x), c = tl_case_leaf(t, &r), dy = tl_case_leaf(t, &r);
        tl_tensor q = tl_rotary_(t, tl_scale(t, a, 1), c, c, TL_ROTARY_HALF), w = tl_scale(t, b, 1);
        tl_backward(t, swap ? tl_add(t, w, q) : tl_add(t, q, w), .cotangent = dy);
        same(t, tl_grad(t, b), &r);
        same(t, dy, &r);
        tl_free(t);
    }
    tl_case_free(2, (ref_tensor[]){x, r});
}

/* ---- offsets and position ids ---- */

typedef tl_tensor by_position(tl_tape *t, tl_tensor x, tl_tensor r, tl_tensor where);
static tl_tensor by_ids(tl_tape *t, tl_tensor x, tl_tensor r, tl_tensor where) { return tl_rotary_ids(t, x, r, r, where, 1, TL_ROTARY_HALF); }
static tl_tensor by_offsets(tl_tape *t, tl_tensor x, tl_tensor r, tl_tensor where) { return tl_rotary_offsets(t, x, r, r, where, 1, TL_ROTARY_HALF); }

/* x (2, 3, 4), tables of 7 positions. */
static void out_of_table(by_position *f, const ref_tensor *where, const char *id)
{
    uint64_t seed = start();
    ref_tensor x = tl_case_values(REF_F32, &TL_DIMS(2, 3, 4), &seed, CASE_PLAIN), r = tl_case_values(REF_F32, &TL_DIMS(7, 4), &seed, CASE_PLAIN);
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor y = f(t, tl_case_leaf(t, &x), tl_case_leaf(t, &r), tl_case_leaf(t, where));
    if (id == NULL) {
        no_error(t);
    } else {
        assert_true(tl_is_none(y));
        assert_non_null(strstr(tl_error(t), "7"));
        refused(t, TL_EINDEX, id);
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
    } ids[] = {{{0, 6, 1, 2, 3, 4}, NULL}, {{0, 1, 2, 3, 7, 5}, "7"}, {{0, 1, 2, -1, 0, 0}, "-1"}, {{0, 1, 2, 3, 4, 1000000007}, "1000000007"}};
    static const struct {
        int64_t where[2];
        const char *id;
    } offsets[] = {{{0, 4}, NULL}, {{4, 5}, "7"}, {{-1, 0}, "-1"}, {{0, 4000}, "4000"}};
    for (int i = 0; i < 4; i++) {
        ref_tensor a = ref_from_i64(CASE_REF_DIMS(2, 3), ids[i].where), b = ref_from_i64(CASE_REF_DIMS(2), offsets[i].where);
        out_of_table(by_ids, &a, ids[i].id);
        out_of_table(by_offsets, &b, offsets[i].id);
        tl_case_free(2, (ref_tensor[]){a, b});
    }
}

/* A sample at offset o is what it is alone with the table's rows from o on. */
static void test_offsets_are_rows_of_the_table(void **unused)
{
    static const int64_t offset[B] = {4, 1};
    uint64_t seed = start();
    (void)unused;
    ref_tensor x = tl_case_values(REF_F32, &TL_DIMS(B, S, N, D), &seed, CASE_PLAIN), o = ref_from_i64(CASE_REF_DIMS(B), offset);
    ref_tensor r1 = tl_case_values(REF_F32, &TL_DIMS(9, D), &seed, CASE_PLAIN), r2 = tl_case_values(REF_F32, &TL_DIMS(9, D), &seed, CASE_PLAIN);
    for (int k = 0; k < 2; k++) {
        tl_tape *t = tl_tape_new(NULL);
        tl_tensor h = tl_case_leaf(t, &x), a = tl_case_leaf(t, &r1), b = tl_case_leaf(t, &r2);
        tl_tensor all = tl_rotary_offsets(t, h, a, b, tl_case_leaf(t, &o), 1, pairings[k]);
        for (int i = 0; i < B; i++) {
            tl_shape s = TL_DIMS(S, 1, D);
            tl_tensor ra = tl_reshape(t, tl_slice(t, a, 0, offset[i], offset[i] + S, 1), s), rb = tl_reshape(t, tl_slice(t, b, 0, offset[i], offset[i] + S, 1), s);
            ref_tensor one = tl_case_read(t, tl_rotary(t, tl_select(t, h, 0, i), ra, rb, pairings[k]));
            same(t, tl_select(t, all, 0, i), &one);
            ref_free(&one);
        }
        tl_free(t);
    }
    tl_case_free(4, (ref_tensor[]){x, o, r1, r2});
}

/* ---- the gradient's shortcuts ---- */

/* dx of g against rotary(g, r1, -r2) and -rotary(g, r1, r2). */
static void shortcuts(const ref_tensor *g, const ref_tensor *r1, const ref_tensor *r2, tl_rotary_pairing p, bool *conjugate, bool *minus)
{
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = trained(t, g), a = tl_case_leaf(t, r1), b = tl_case_leaf(t, r2), h = tl_case_leaf(t, g);
    ref_tensor one = tl_case_read(t, tl_rotary(t, h, a, tl_neg(t, b), p)), two = tl_case_read(t, tl_neg(t, tl_rotary(t, h, a, b, p)));
    tl_backward(t, tl_rotary(t, x, a, b, p), .cotangent = h);
    ref_tensor dx = tl_case_read(t, tl_grad(t, x)), want;
    no_error(t);
    ref_rotary_grad(g, g, r1, r2, of(p), r1->dim[r1->ndim - 1], &want, NULL, NULL, NULL, NULL);
    assert_true(ref_same_bits(&dx, &want));
    *conjugate = ref_same_bits(&dx, &one);
    *minus = ref_same_bits(&dx, &two);
    tl_free(t);
    tl_case_free(4, (ref_tensor[]){one, two, dx, want});
}

static void test_shortcuts(void **unused)
{
    uint64_t seed = start();
    (void)unused;
    for (int k = 0; k < 2; k++) {
        ref_tensor g = tl_case_values(REF_F32, &TL_DIMS(S, D), &seed, CASE_PLAIN), r1 = tl_case_values(REF_F32, &TL_DIMS(S, D), &seed, CASE_PLAIN);
        ref_tensor r2 = tl_case_values(REF_F32, &TL_DIMS(S, D), &seed, CASE_PLAIN), half = tl_case_values(REF_F32, &TL_DIMS(S, D / 2), &seed, CASE_PLAIN);
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
    uint64_t seed = start();
    ref_tensor v = tl_case_values(REF_F32, &TL_DIMS(3, 4), &seed, CASE_PLAIN), r = tl_case_values(REF_F32, &TL_DIMS(3, 4), &seed, CASE_PLAIN);
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor c = tl_case_leaf(t, &r), a = trained_table == 1 ? trained(t, &r) : c, b = trained_table == 2 ? trained(t, &r) : c;
    tl_tensor leaf = trained(t, &v), x = tl_scale(t, leaf, 1), y = tl_rotary(t, x, a, b, TL_ROTARY_HALF);
    tl_rotary_(t, x, c, c, TL_ROTARY_HALF);
    if (!tl_failed(t))
        tl_backward(t, y, .cotangent = c);
    if (want_ok)
        no_error(t);
    else
        refused(t, TL_EINPLACE, "");
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

/* ---- tables ---- */

#define F64_FUNCTIONS(X) X(exp) X(log) X(sin) X(cos) X(tanh) X(sigmoid) X(rsqrt)
#define X(f)                                  \
    static double f##_f64(double x)           \
    {                                         \
        double y;                             \
        tl_isa_at(0)->math->f##64(1, &x, &y); \
        return y;                             \
    }
F64_FUNCTIONS(X)
#undef X

static double pow_f64(double x, double e)
{
    double y;
    tl_isa_at(0)->math->pow64(1, &x, e, &y);
    return y;
}

static const ref_f64_table of_library = {exp_f64, log_f64, sin_f64, cos_f64, tanh_f64, sigmoid_f64, rsqrt_f64, pow_f64};

/* Bit for bit with the library's f64 functions; with correctly rounded ones to the last place, or to the angle's own error: some
 * units in the last place of frequency and angle. */
static void compare(const ref_tensor *want, const float *got, bool exact, double biggest_angle)
{
    for (int64_t i = 0; i < ref_numel(want); i++) {
        double w = ref_get(want, i), g = (double)got[i], last = fabs(w - (double)nextafterf((float)w, 2));
        if (exact ? g != w : !(fabs(g - w) <= fmax(last, 32 * biggest_angle * 0x1p-52)))
            fail_msg("element %lld is %a, %a expected", (long long)i, g, w);
    }
}

static void table(int64_t first, int64_t n, int64_t dim, double base, tl_rotary_pairing p, const tl_rotary_scaling *s)
{
    size_t bytes = (size_t)(n * dim + 1) * sizeof(float);
    float *r1 = malloc(bytes), *r2 = malloc(bytes);
    assert_true(r1 != NULL && r2 != NULL);
    assert_int_equal(s ? tl_rotary_table_scaled(first, n, dim, base, p, s, r1, r2) : tl_rotary_table(first, n, dim, base, p, r1, r2), TL_OK);
    for (int exact = 0; exact < 2; exact++) {
        ref_tensor w1, w2;
        const ref_f64_table *before = ref_set_f64_functions(exact ? &of_library : NULL);
        if (s) {
            ref_rotary_scaling rs = {s->factor, s->low_freq_factor, s->high_freq_factor, s->original};
            ref_rotary_table_scaled(first, n, dim, base, of(p), &rs, &w1, &w2);
        } else {
            ref_rotary_table(first, n, dim, base, of(p), &w1, &w2);
        }
        ref_set_f64_functions(before);
        compare(&w1, r1, exact, fabs((double)(first + n)));
        compare(&w2, r2, exact, fabs((double)(first + n)));
        tl_case_free(2, (ref_tensor[]){w1, w2});
    }
    free(r1);
    free(r2);
}

static void test_rope_table(void **unused)
{
    static const tl_rotary_scaling llama3 = {8, 1, 4, 8192}, llama32 = {32, 1, 4, 8192}, small = {2, 1, 8, 64};
    (void)unused;
    for (int k = 0; k < 2; k++) {
        table(0, 9, 2, 10000, pairings[k], NULL);
        table(0, 33, 6, 10000, pairings[k], NULL);
        table(1000, 5, 64, 500000, pairings[k], NULL);
        table(131000, 3, 128, 500000, pairings[k], NULL);
        table(7, 0, 4, 10000, pairings[k], NULL);
        table(0, 9, 128, 500000, pairings[k], &llama3);
        table(8190, 5, 128, 500000, pairings[k], &llama3);
        table(100000, 3, 64, 500000, pairings[k], &llama32);
        table(0, 70, 16, 10000, pairings[k], &small);
    }
}

/* All three regions of the scaling occur: fast waves stay, slow ones turn 8 times slower, those between lie between. */
static void test_scaling_has_three_regions(void **unused)
{
    static const tl_rotary_scaling llama3 = {8, 1, 4, 8192};
    float plain[2][128], scaled[2][128];
    int stay = 0, slow = 0, between = 0;
    (void)unused;
    tl_rotary_table(1, 1, 128, 500000, TL_ROTARY_HALF, plain[0], plain[1]);
    tl_rotary_table_scaled(1, 1, 128, 500000, TL_ROTARY_HALF, &llama3, scaled[0], scaled[1]);
    for (int i = 0; i < 64; i++) { /* at position 1 the angle is the frequency */
        double f = atan2((double)plain[1][i], (double)plain[0][i]), g = atan2((double)scaled[1][i], (double)scaled[0][i]);
        stay += f == g;
        slow += fabs(g * 8 / f - 1) < 1e-4;
        between += g < f * 0.999 && g > f / 7.99;
        assert_true(g <= f && g >= f / 8.001);
    }
    assert_true(stay > 20 && slow > 20 && between > 3 && stay + slow + between == 64);
}

static void test_tables_refuse(void **unused)
{
    static const tl_rotary_scaling crossed = {8, 4, 1, 8192}, level = {8, 4, 4, 8192}, none = {0, 1, 4, 8192};
    float a[64], b[64];
    (void)unused;
    assert_int_not_equal(tl_rotary_table(0, 2, 3, 10000, TL_ROTARY_HALF, a, b), TL_OK);
    assert_int_not_equal(tl_rotary_table(0, 2, 4, 10000, (tl_rotary_pairing)0, a, b), TL_OK);
    assert_int_not_equal(tl_rotary_table(0, -1, 4, 10000, TL_ROTARY_HALF, a, b), TL_OK);
    assert_int_not_equal(tl_rotary_table_scaled(0, 2, 4, 10000, TL_ROTARY_HALF, &crossed, a, b), TL_OK);
    assert_int_not_equal(tl_rotary_table_scaled(0, 2, 4, 10000, TL_ROTARY_HALF, &level, a, b), TL_OK);
    assert_int_not_equal(tl_rotary_table_scaled(0, 2, 4, 10000, TL_ROTARY_HALF, &none, a, b), TL_OK);
}

/* Each value of a half-width table where its pair's two elements are; widened tables are the full ones. */
static void test_widened_tables_are_the_full_ones(void **unused)
{
    float full[2][S * D], half[2][S * D / 2];
    (void)unused;
    for (int k = 0; k < 2; k++) {
        assert_int_equal(tl_rotary_table(3, S, D, 10000, pairings[k], full[0], full[1]), TL_OK);
        for (int i = 0; i < S * D / 2; i++)
            for (int j = 0; j < 2; j++)
                half[j][i] = full[j][i / (D / 2) * D + i % (D / 2) * (pairings[k] == TL_ROTARY_HALF ? 1 : 2)];
        tl_tape *t = tl_tape_new(NULL);
        for (int j = 0; j < 2; j++) {
            ref_tensor want = ref_new(REF_F32, CASE_REF_DIMS(S, D));
            memcpy(want.data, full[j], sizeof full[j]);
            same(t, tl_rotary_widen(t, tl_data(t, half[j], TL_F32, TL_DIMS(S, D / 2)), pairings[k]), &want);
            ref_free(&want);
        }
        tl_free(t);
    }
}

const struct CMUnitTest tl_tests_rotary[] = {
    cmocka_unit_test(test_layouts), cmocka_unit_test(test_pairings), cmocka_unit_test(test_shapes_that_do_not_fit),
    cmocka_unit_test(test_in_place_on_packed_qkv), cmocka_unit_test(test_in_place_refusals), cmocka_unit_test(test_in_place_of_a_saved_value),
    cmocka_unit_test(test_in_place_spares_the_cotangent), cmocka_unit_test(test_positions_out_of_the_table),
    cmocka_unit_test(test_offsets_are_rows_of_the_table), cmocka_unit_test(test_shortcuts), cmocka_unit_test(test_x_is_kept_for_tables_alone),
    cmocka_unit_test(test_rope_table), cmocka_unit_test(test_scaling_has_three_regions), cmocka_unit_test(test_tables_refuse),
    cmocka_unit_test(test_widened_tables_are_the_full_ones)};
const size_t tl_tests_rotary_count = sizeof tl_tests_rotary / sizeof tl_tests_rotary[0];
