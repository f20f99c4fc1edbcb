/* Faults that other systems have had in rotary embeddings. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include <tally.h>

#include "tests/support/expect.h"
#include "tests/support/fresh.h"

extern const struct CMUnitTest tl_tests_faults_rotary[];
extern const size_t tl_tests_faults_rotary_count;

static const tl_dtype floats[] = {TL_F64, TL_F32, TL_F16, TL_BF16};

static void the_pairing_is_no_guess(void **unused)
{
    (void)unused;
    tl_tensor x = noise_leaf(t, "x", TL_F64, TL_DIMS(3, 8)),
              c = noise_leaf(t, "c", TL_F64, TL_DIMS(8)),
              s = noise_leaf(t, "s", TL_F64, TL_DIMS(8));
    assert_true(tl_is_none(tl_rotary(t, x, c, s, (tl_rotary_pairing)0)));
    expect_failure(t, TL_EDOMAIN, "pairing");
    assert_true(tl_is_none(tl_rotary(t, x, c, s, (tl_rotary_pairing)3)));
    expect_failure(t, TL_EDOMAIN, "pairing");
    tl_tensor y[2] = {tl_rotary(t, x, c, s, TL_ROTARY_HALF),
                      tl_rotary(t, x, c, s, TL_ROTARY_INTERLEAVED)};
    for (int i = 0; i < 24; i++) {
        int row = i / 8 * 8, k = i % 8;
        double half = k < 4 ? -element_of(t, x, row + k + 4) : element_of(t, x, row + k - 4),
               inter = k % 2 ? element_of(t, x, i - 1) : -element_of(t, x, i + 1);
        assert_true(element_of(t, y[0], i) ==
                    element_of(t, c, k) * element_of(t, x, i) + element_of(t, s, k) * half);
        assert_true(element_of(t, y[1], i) ==
                    element_of(t, c, k) * element_of(t, x, i) + element_of(t, s, k) * inter);
    }
}

static double largest_gap(tl_tensor a, tl_tensor b)
{
    double gap = 0;
    tl_array s;
    assert_true(tl_array_of(t, a, &s));
    for (int64_t i = 0; i < tl_array_count(&s); i++)
        gap = fmax(gap, fabs(element_of(t, a, i) - element_of(t, b, i)));
    return gap;
}

static void backward_holds_for_unequal_halves_where_the_shortcut_does_not(void **unused)
{
    static const tl_rotary_pairing pairings[] = {TL_ROTARY_HALF, TL_ROTARY_INTERLEAVED};
    (void)unused;
    for (int k = 0; k < 2; k++) {
        tl_tensor in[3] = {noise_leaf(t, "x", TL_F64, TL_DIMS(2, 3, 8)),
                           noise_leaf(t, "c", TL_F64, TL_DIMS(3, 8)),
                           noise_leaf(t, "s", TL_F64, TL_DIMS(3, 8))},
                  d[3];
        tl_tensor g = noise_leaf(t, "g", TL_F64, TL_DIMS(2, 3, 8));
        for (int i = 0; i < 3; i++)
            tl_require_grad(t, in[i]);
        tl_gradients(t, tl_rotary(t, in[0], in[1], in[2], pairings[k]), in, 3, g, d);
        expect_ok(t, "rotary");
        for (int r = 0; r < 6; r++)
            for (int i = 0; i < 8; i++) { /* dx = r1*g - R(r2*g) */
                int j = k ? i ^ 1 : (i + 4) % 8, table = r % 3 * 8;
                double sign = (k ? i % 2 : i >= 4) ? 1 : -1,
                       turned = sign *
                                (element_of(t, in[2], table + j) * element_of(t, g, r * 8 + j));
                assert_true(element_of(t, d[0], r * 8 + i) ==
                            element_of(t, in[1], table + i) * element_of(t, g, r * 8 + i) - turned);
            }
        for (int i = 0; i < 24; i++) { /* dr1 = g*x, dr2 = g*R(x), over the broadcast dim */
            int row = i / 8 * 8, e = i % 8, j = row + (k ? e ^ 1 : (e + 4) % 8);
            double sign = (k ? e % 2 : e >= 4) ? 1 : -1;
            assert_true(element_of(t, d[1], i) ==
                        element_of(t, g, i) * element_of(t, in[0], i) +
                            element_of(t, g, 24 + i) * element_of(t, in[0], 24 + i));
            assert_true(element_of(t, d[2], i) ==
                        element_of(t, g, i) * (sign * element_of(t, in[0], j)) +
                            element_of(t, g, 24 + i) * (sign * element_of(t, in[0], 24 + j)));
        }
        tl_tensor shortcut = tl_rotary(t, g, in[1], tl_neg(t, in[2]), pairings[k]),
                  other = tl_neg(t, tl_rotary(t, g, in[1], in[2], pairings[k]));
        assert_true(largest_gap(d[0], shortcut) > 0.1);
        assert_true(largest_gap(d[0], other) > 0.1);
        tl_tensor equal = tl_rotary_widen(t, noise_leaf(t, "h", TL_F64, TL_DIMS(3, 4)),
                                          pairings[k]),
                  dx; /* equal halves: the shortcut holds */
        tl_gradients(t, tl_rotary(t, in[0], in[1], equal, pairings[k]), in, 1, g, &dx);
        assert_true(largest_gap(dx, tl_rotary(t, g, in[1], tl_neg(t, equal), pairings[k])) < 1e-15);
    }
}

static void partial_rotation_copies_the_rest(void **unused)
{
    (void)unused;
    for (int d = 0; d < 4; d++) {
        tl_tensor x = noise_leaf(t, "x", floats[d], TL_DIMS(2, 3, 10)),
                  c = noise_leaf(t, "c", floats[d], TL_DIMS(3, 4)),
                  s = noise_leaf(t, "s", floats[d], TL_DIMS(3, 4)), dx;
        tl_tensor g = noise_leaf(t, "g", floats[d], TL_DIMS(2, 3, 10));
        tl_require_grad(t, x);
        tl_tensor y = tl_rotary(t, x, c, s, TL_ROTARY_HALF);
        tl_gradients(t, y, &x, 1, g, &dx);
        expect_same(t, tl_slice(t, y, -1, 4, 10, 1), tl_slice(t, x, -1, 4, 10, 1), "the rest");
        expect_same(t, tl_slice(t, dx, -1, 4, 10, 1), tl_slice(t, g, -1, 4, 10, 1),
                    "the gradient of the rest");
        expect_same(t, tl_slice(t, y, -1, 0, 4, 1),
                    tl_rotary(t, tl_slice(t, x, -1, 0, 4, 1), c, s, TL_ROTARY_HALF),
                    "the rotated part");
    }
    tl_rotary(t, tl_fill(t, TL_F32, TL_DIMS(2, 10), 0), tl_fill(t, TL_F32, TL_DIMS(3), 0),
              tl_fill(t, TL_F32, TL_DIMS(3), 0), TL_ROTARY_HALF);
    expect_failure(t, TL_ESHAPE, "even");
    tl_rotary(t, tl_fill(t, TL_F32, TL_DIMS(2, 2), 0), tl_fill(t, TL_F32, TL_DIMS(4), 0),
              tl_fill(t, TL_F32, TL_DIMS(4), 0), TL_ROTARY_HALF);
    expect_failure(t, TL_ESHAPE, "4");
}

static void a_position_outside_the_table_is_an_error(void **unused)
{
    static const int64_t bad[] = {-1, 6, INT64_MAX, INT64_MIN};
    (void)unused;
    tl_tensor x = noise_leaf(t, "x", TL_F32, TL_DIMS(2, 3, 1, 8)),
              c = noise_leaf(t, "c", TL_F32, TL_DIMS(6, 8)),
              s = noise_leaf(t, "s", TL_F32, TL_DIMS(6, 8));
    for (int i = 0; i < 4; i++) {
        int64_t ids[] = {0, 5, 2, 3, bad[i], 1}, offset[] = {0, i == 1 ? 4 : bad[i]};
        assert_true(tl_is_none(
            tl_rotary_ids(t, x, c, s, tl_data(t, ids, TL_I64, TL_DIMS(2, 3)), 1, TL_ROTARY_HALF)));
        expect_failure(t, TL_EINDEX, "6");
        if (i == 2)
            continue; /* the sum overflows: a test of positions, not of the table */
        assert_true(tl_is_none(tl_rotary_offsets(t, x, c, s, tl_data(t, offset, TL_I64, TL_DIMS(2)),
                                                 1, TL_ROTARY_HALF)));
        expect_failure(t, TL_EINDEX, "");
    }
    int64_t good[] = {0, 3};
    assert_false(tl_is_none(
        tl_rotary_offsets(t, x, c, s, tl_data(t, good, TL_I64, TL_DIMS(2)), 1, TL_ROTARY_HALF)));
}

static void x_is_saved_for_the_tables_gradients_only(void **unused)
{
    (void)unused;
    for (int tables = 0; tables < 2; tables++) {
        tl_tensor leaf = noise_leaf(t, "x", TL_F32, TL_DIMS(2, 8)),
                  c = noise_leaf(t, "c", TL_F32, TL_DIMS(8)),
                  s = noise_leaf(t, "s", TL_F32, TL_DIMS(8));
        tl_require_grad(t, leaf);
        if (tables)
            tl_require_grad(t, c);
        tl_tensor x = tl_scale(t, leaf, 2), y = tl_rotary(t, x, c, s, TL_ROTARY_HALF);
        tl_tensor z = tl_rotary_(t, x, tl_detach(t, c), s, TL_ROTARY_HALF); /* overwrites x */
        tl_backward(t, tl_sum(t, tl_add(t, y, z), TL_ALL, false));
        if (tables)
            expect_failure(t, TL_EINPLACE, "rotary");
        else
            expect_ok(t, "x is not needed");
        tl_tape_reset(t);
    }
}

static void in_place_on_a_packed_qkv_changes_that_part_alone(void **unused)
{
    (void)unused;
    tl_tensor leaf = noise_leaf(t, "qkv", TL_F32, TL_DIMS(2, 3, 3, 2, 8)),
              c = noise_leaf(t, "c", TL_F32, TL_DIMS(3, 1, 8)),
              s = noise_leaf(t, "s", TL_F32, TL_DIMS(3, 1, 8));
    tl_tensor want[2], g = noise_leaf(t, "g", TL_F32, TL_DIMS(2, 3, 2, 8)), dx[2];
    tl_require_grad(t, leaf);
    for (int place = 0; place < 2; place++) {
        tl_tensor qkv = tl_scale(t, leaf, 1), k = tl_select(t, qkv, 2, 1);
        tl_tensor y = place ? tl_rotary_(t, k, c, s, TL_ROTARY_HALF)
                            : tl_rotary(t, k, c, s, TL_ROTARY_HALF);
        want[place] = y;
        tl_gradients(t, y, &leaf, 1, g, &dx[place]);
        expect_ok(t, "rotary of k");
        if (place) { /* q and v lie as they lay */
            expect_same(t, tl_select(t, qkv, 2, 0), tl_select(t, leaf, 2, 0), "q");
            expect_same(t, tl_select(t, qkv, 2, 2), tl_select(t, leaf, 2, 2), "v");
            tl_error_clear(t);
        }
    }
    expect_same(t, want[0], want[1], "k");
    expect_same(t, dx[0], dx[1], "gradient");
}

/* A gradient that two receive is not turned in place for one of them. */
static void in_place_overwrites_no_gradient_that_another_reads(void **unused)
{
    (void)unused;
    tl_tensor a = noise_leaf(t, "a", TL_F64, TL_DIMS(2, 8)),
              b = noise_leaf(t, "b", TL_F64, TL_DIMS(2, 8)),
              c = noise_leaf(t, "c", TL_F64, TL_DIMS(8)),
              s = noise_leaf(t, "s", TL_F64, TL_DIMS(8));
    tl_tensor g = noise_leaf(t, "g", TL_F64, TL_DIMS(2, 8));
    tl_require_grad(t, a);
    tl_require_grad(t, b);
    tl_tensor y = tl_add(t, tl_rotary_(t, tl_scale(t, a, 1), c, s, TL_ROTARY_HALF),
                         tl_scale(t, b, 1)),
              before = tl_scale(t, g, 1);
    tl_backward(t, y, .cotangent = g);
    expect_ok(t, "backward");
    expect_same(t, tl_grad(t, b), before, "the gradient of the other summand");
    expect_same(t, g, before, "the cotangent");
    expect_same(t, tl_grad(t, a), tl_rotary_turned(t, g, c, s, TL_ROTARY_HALF),
                "the gradient through rotary");
}

const struct CMUnitTest tl_tests_faults_rotary[] = {
    TEST(the_pairing_is_no_guess),
    TEST(backward_holds_for_unequal_halves_where_the_shortcut_does_not),
    TEST(partial_rotation_copies_the_rest),
    TEST(a_position_outside_the_table_is_an_error),
    TEST(x_is_saved_for_the_tables_gradients_only),
    TEST(in_place_on_a_packed_qkv_changes_that_part_alone),
    TEST(in_place_overwrites_no_gradient_that_another_reads),
};
const size_t tl_tests_faults_rotary_count = sizeof tl_tests_faults_rotary /
                                            sizeof tl_tests_faults_rotary[0];
