/* Ops that change an operand in place: which values that spoils, what is refused, and gradients of
 * every order. TL_TEST_SEED repeats a run. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "ops/optimize.h"
#include "tests/support/both.h"
#include "tests/support/expect.h"

extern const struct CMUnitTest tl_tests_in_place[];
extern const size_t tl_tests_in_place_count;

static const tl_rotary_pairing pairings[] = {TL_ROTARY_HALF, TL_ROTARY_INTERLEAVED};
static ref_pairing of(tl_rotary_pairing p)
{
    return p == TL_ROTARY_HALF ? REF_HALF : REF_INTERLEAVED;
}

enum { B = 2, N = 3, S = 5, D = 6 };

/* ---- in place, on views of a packed qkv (B, S, 3, N, D) ---- */

typedef struct {
    ref_tensor w, r1, r2, dy;
} packed;

static packed new_packed(uint64_t *seed)
{
    tl_shape s = {5, {B, S, 3, N, D}}, r = {3, {S, 1, 4}};
    return (packed){tl_case_values(REF_F32, &s, seed, CASE_PLAIN),
                    tl_case_values(REF_F32, &r, seed, CASE_PLAIN),
                    tl_case_values(REF_F32, &r, seed, CASE_PLAIN),
                    tl_case_values(REF_F32, &s, seed, CASE_PLAIN)};
}

/* q and k turned, v as it is: values and gradients of all three, joined. */
static void run_packed(const packed *p, tl_rotary_pairing how, bool in_place, ref_tensor *y,
                       ref_tensor *dw)
{
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor w = trained_leaf(t, &p->w), all = tl_scale(t, w, 1), r1 = tl_case_leaf(t, &p->r1),
              r2 = tl_case_leaf(t, &p->r2), part[3];
    for (int i = 0; i < 3; i++)
        part[i] = tl_select(t, all, 2, i);
    for (int i = 0; i < 2; i++) {
        tl_array before, after;
        assert_true(tl_array_of(t, part[i], &before));
        part[i] = in_place ? tl_rotary_(t, part[i], r1, r2, how)
                           : tl_rotary(t, part[i], r1, r2, how);
        expect_no_error(t);
        assert_true(tl_array_of(t, part[i], &after));
        assert_int_equal(in_place, before.data == after.data);
    }
    tl_tensor out = tl_stack(t, part, 3, 2);
    *y = tl_case_read(t, out);
    expect_no_error(t);
    tl_backward(t, out, .cotangent = tl_case_leaf(t, &p->dy));
    *dw = tl_case_read(t, tl_grad(t, w));
    expect_no_error(t);
    tl_free(t);
}

static ref_tensor piece(const ref_tensor *x, int i)
{
    ref_tensor s = ref_slice(x, 2, i, i + 1, 1), y = tl_case_shaped(&s, CASE_REF_DIMS(B, S, N, D));
    return y;
}

static void test_in_place_on_packed_qkv(void **unused)
{
    uint64_t seed = expect_seed();
    (void)unused;
    for (int k = 0; k < 2; k++) {
        packed p = new_packed(&seed);
        ref_tensor y[2], dw[2], want[3], grad[3], x, g;
        for (int i = 0; i < 3; i++) {
            x = piece(&p.w, i);
            g = piece(&p.dy, i);
            if (i < 2) {
                want[i] = ref_rotary(&x, &p.r1, &p.r2, of(pairings[k]), 4);
                ref_rotary_grad(&g, &x, &p.r1, &p.r2, of(pairings[k]), 4, &grad[i], NULL, NULL,
                                NULL, NULL);
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
    uint64_t seed = expect_seed();
    (void)unused;
    ref_tensor x = tl_case_values(REF_F32, &TL_DIMS(3, 4), &seed, CASE_PLAIN),
               r = tl_case_values(REF_F32, &TL_DIMS(3, 4), &seed, CASE_PLAIN);
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor c = tl_case_leaf(t, &r), leaf = trained_leaf(t, &x), table = trained_leaf(t, &r), y;
    assert_true(tl_is_none(tl_rotary_(t, leaf, c, c, TL_ROTARY_HALF)));
    expect_failure(t, TL_EINPLACE, "rotary_");
    for (int i = 0; i < 2;
         i++) { /* a table's gradient reads x as it was: refused when recorded, where it stands */
        y = tl_rotary_(t, tl_scale(t, leaf, 1), i == 0 ? table : c, i == 1 ? table : c,
                       TL_ROTARY_HALF);
        assert_true(tl_is_none(y));
        expect_failure(t, TL_EINPLACE, "rotary_: a gradient that is wanted reads input 0");
        tl_rotary_(t, tl_scale(t, leaf, 1), i == 0 ? table : c, i == 1 ? table : c, TL_ROTARY_HALF);
        expect_failure(t, TL_EINPLACE, "(tests/test_in_place.c:");
    }
    int depth = tl_mode_push(t, TL_NO_GRAD); /* nobody will ask for it */
    tl_rotary_(t, tl_scale(t, leaf, 1), table, table, TL_ROTARY_HALF);
    tl_mode_pop(t, depth);
    expect_no_error(t);
    y = tl_expand(t, tl_slice(t, tl_scale(t, leaf, 1), 0, 0, 1, 1),
                  TL_DIMS(3, 4)); /* elements shown three times */
    assert_true(tl_is_none(tl_rotary_(t, y, c, c, TL_ROTARY_HALF)));
    assert_true(tl_failed(t));
    tl_error_clear(t);
    y = tl_scale(t, leaf, 1); /* consumed: the old name is void */
    tl_rotary_(t, y, c, c, TL_ROTARY_HALF);
    expect_no_error(t);
    tl_add(t, y, c);
    assert_true(tl_failed(t));
    tl_free(t);
    tl_case_free(2, (ref_tensor[]){x, r});
}

/* What another op saved is not overwritten unseen: exp keeps its result. */
static void test_in_place_of_a_saved_value(void **unused)
{
    uint64_t seed = expect_seed();
    (void)unused;
    ref_tensor x = tl_case_values(REF_F32, &TL_DIMS(3, 4), &seed, CASE_PLAIN),
               r = tl_case_values(REF_F32, &TL_DIMS(3, 4), &seed, CASE_PLAIN);
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor c = tl_case_leaf(t, &r),
              y = tl_rotary_(t, tl_exp(t, trained_leaf(t, &x)), c, c, TL_ROTARY_HALF);
    if (!tl_failed(t))
        tl_backward(t, y, .cotangent = c);
    expect_failure(t, TL_EINPLACE, "");
    tl_free(t);
    tl_case_free(2, (ref_tensor[]){x, r});
}

/* A cotangent that two ops read: the other one gets it as it was. */
static void test_in_place_spares_the_cotangent(void **unused)
{
    uint64_t seed = expect_seed();
    (void)unused;
    ref_tensor x = tl_case_values(REF_F32, &TL_DIMS(3, 4), &seed, CASE_PLAIN),
               r = tl_case_values(REF_F32, &TL_DIMS(3, 4), &seed, CASE_PLAIN);
    for (int swap = 0; swap < 2; swap++) {
        tl_tape *t = tl_tape_new(NULL);
        tl_tensor a = trained_leaf(t, &x), b = trained_leaf(t, &x), c = tl_case_leaf(t, &r),
                  dy = tl_case_leaf(t, &r);
        tl_tensor q = tl_rotary_(t, tl_scale(t, a, 1), c, c, TL_ROTARY_HALF), w = tl_scale(t, b, 1);
        tl_backward(t, swap ? tl_add(t, w, q) : tl_add(t, q, w), .cotangent = dy);
        expect_bits(t, tl_grad(t, b), &r);
        expect_bits(t, dy, &r);
        tl_free(t);
    }
    tl_case_free(2, (ref_tensor[]){x, r});
}

/* ---- which values a change spoils ---- */

/* x (2, 3, 4) on t, its dim 1 cut into three views. */
static tl_tensor cut(tl_tape *t, tl_tensor *part, tl_tensor *table)
{
    uint64_t seed = expect_seed();
    ref_tensor v = tl_case_values(REF_F32, &TL_DIMS(2, 3, 4), &seed, CASE_PLAIN),
               r = tl_case_values(REF_F32, &TL_DIMS(4), &seed, CASE_PLAIN);
    tl_tensor x = tl_scale(t, trained_leaf(t, &v), 1);
    *table = tl_case_leaf(t, &r);
    for (int i = 0; i < 3; i++)
        part[i] = tl_select(t, x, 1, i);
    tl_case_free(2, (ref_tensor[]){v, r});
    return x;
}

static void test_a_changed_value_is_not_read(void **unused)
{
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor part[3], r, x = cut(t, part, &r), other = tl_detach(t, part[0]),
                          flat = tl_reshape(t, x, TL_DIMS(24));
    float buf[24];
    char hex[65];
    (void)unused;
    tl_rotary_(t, part[0], r, r, TL_ROTARY_HALF);
    expect_no_error(t);
    tl_scale(t, x, 2); /* the whole of it, seen through no view, another view, a view made now */
    expect_failure(t, TL_EINPLACE, "by rotary_ (tests/test_in_place.c:");
    tl_scale(t, flat, 2);
    expect_failure(t, TL_EINPLACE, "scale: value");
    tl_scale(t, other, 2);
    expect_failure(t, TL_EINPLACE, "another view");
    tl_scale(t, tl_slice(t, x, 1, 0, 2, 1), 2);
    expect_failure(t, TL_EINPLACE, "another view");
    tl_keep(t, x, buf, sizeof buf);
    expect_failure(t, TL_EINPLACE, "tl_keep");
    tl_sha256(t, x, hex);
    expect_failure(t, TL_EINPLACE, "");
    tl_rotary_(t, tl_slice(t, x, 1, 0, 1, 1), r, r,
               TL_ROTARY_HALF); /* and not changed once more under its old name */
    expect_failure(t, TL_EINPLACE, "");
    tl_backward(t, x, .cotangent = tl_fill(t, TL_F32, TL_DIMS(2, 3, 4), 1));
    expect_failure(t, TL_EINPLACE, "tl_backward");
    tl_free(t);
}

/* C leaves open which argument is evaluated first: the parts may be cut before or after another has
 * changed. */
static void test_what_is_beside_the_change_is_read(void **unused)
{
    char hex[4][65];
    (void)unused;
    for (int late = 0; late < 4; late++) {
        tl_tape *t = tl_tape_new(NULL);
        tl_tensor part[3], r, x = cut(t, part, &r);
        for (int i = 0; i < 2; i++)
            part[i] = tl_rotary_(t, late & 1 ? tl_select(t, x, 1, i) : part[i], r, r,
                                 TL_ROTARY_HALF);
        part[2] = late & 2 ? tl_slice(t, tl_detach(t, x), 1, 2, 3, 1) : part[2];
        part[2] = tl_reshape(t, part[2], TL_DIMS(2, 4));
        tl_sha256(t, tl_stack(t, part, 3, 1), hex[late]);
        expect_no_error(t);
        assert_string_equal(hex[late], hex[0]);
        tl_free(t);
    }
}

/* q is read and saved, and k, of the same memory, changes afterwards: q's gradient is not refused.
 */
static void test_saved_beside_a_change(void **unused)
{
    (void)unused;
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor part[3], r, y;
    cut(t, part, &r);
    y = tl_square(t, part[0]);
    part[1] = tl_rotary_(t, part[1], r, r, TL_ROTARY_HALF);
    y = tl_add(t, y, part[1]);
    tl_backward(t, y, .cotangent = tl_fill(t, TL_F32, TL_DIMS(2, 4), 1));
    expect_no_error(t);
    tl_free(t);
}

/* ---- gradients of every order: a re-run follows the canonical order, which knows no overwriting
 * ---- */

typedef struct {
    bool in_place;
    int order; /* in which the parts are turned and read */
} forms;

static tl_tensor table_of(tl_tape *t, double by)
{
    double v[4];
    for (int i = 0; i < 4; i++)
        v[i] = 0.5 + 0.3 * i * by;
    return tl_data(t, v, TL_F64, TL_DIMS(4));
}

static tl_tensor turn(tl_tape *t, const forms *f, tl_tensor x)
{
    tl_tensor a = table_of(t, 1), b = table_of(t, -2);
    return f->in_place ? tl_rotary_(t, x, a, b, TL_ROTARY_HALF)
                       : tl_rotary(t, x, a, b, TL_ROTARY_HALF);
}

/* w (2, 3, 4) packs q, k, v: sum over (q'^2 * k') * v, every part read where others change. */
static tl_tensor f_packed(tl_tape *t, const tl_tensor *in, int n, void *ctx)
{
    const forms *f = ctx;
    (void)n;
    tl_tensor x = tl_scale(t, in[0], 1), part[3], q, k, qq;
    for (int i = 0; i < 3; i++)
        part[i] = tl_select(t, x, 1, i);
    if (f->order == 0) {
        q = turn(t, f, part[0]);
        k = turn(t, f, part[1]);
        qq = tl_square(t, q);
    } else {
        k = turn(t, f, part[1]);
        q = turn(t, f, part[0]);
        qq = tl_square(t, q);
    }
    return tl_mul(t, tl_mul(t, qq, k), part[2]);
}

/* The old value is read before the change, but comes after it in canonical order. */
static tl_tensor f_old_and_new(tl_tape *t, const tl_tensor *in, int n, void *ctx)
{
    (void)n;
    tl_tensor x = tl_scale(t, in[0], 1), old = tl_scale(t, x, 3), new = turn(t, ctx, x);
    return tl_add(t, tl_square(t, new), old);
}

static tl_tensor f_twice(tl_tape *t, const tl_tensor *in, int n, void *ctx)
{
    (void)n;
    return tl_square(t, turn(t, ctx, turn(t, ctx, tl_scale(t, in[0], 1))));
}

static tl_function *const functions[] = {f_packed, f_old_and_new, f_twice};

static tl_tensor input(tl_tape *t)
{
    uint64_t seed = expect_seed();
    ref_tensor v = tl_case_values(REF_F64, &TL_DIMS(2, 3, 4), &seed, CASE_PLAIN);
    tl_tensor x = trained_leaf(t, &v);
    ref_free(&v);
    return x;
}

static void test_every_order_is_checked(void **unused)
{
    (void)unused;
    for (int i = 0; i < 3; i++)
        for (int order = 0; order < (i == 0 ? 2 : 1); order++) {
            forms f = {true, order};
            tl_tape *t = tl_tape_new(NULL);
            tl_tensor x = input(t);
            if (tl_gradcheck(t, functions[i], &x, 1, &f) != TL_RIGHT ||
                tl_gradgradcheck(t, functions[i], &x, 1, &f) != TL_RIGHT)
                fail_msg("function %d, order %d: %s", i, order, tl_error(t));
            tl_free(t);
        }
}

/* The same bits as out of place: values, gradients, and gradients of gradients. */
static void test_every_order_has_the_bits_out_of_place(void **unused)
{
    (void)unused;
    for (int i = 0; i < 3; i++) {
        ref_tensor want[3];
        for (int form = 0; form < 3; form++) {
            forms f = {form > 0, form == 2};
            tl_tape *t = tl_tape_new(NULL);
            tl_tensor x = input(t), out[3], y = out[0] = functions[i](t, &x, 1, &f);
            tl_gradients(t, tl_sum(t, y, TL_ALL, false), &x, 1, TL_NONE, &out[1]);
            tl_gradients(t, tl_sum(t, tl_square(t, out[1]), TL_ALL, false), &x, 1, TL_NONE,
                         &out[2]);
            expect_no_error(t);
            for (int k = 0; k < 3; k++)
                if (form == 0)
                    want[k] = tl_case_read(t, out[k]);
                else
                    expect_bits(t, out[k], &want[k]);
            tl_free(t);
        }
        tl_case_free(3, want);
    }
}

/* ---- compiled: a trace has no memory to look at ---- */

/* in: x (2, 3, 4), table (4); ctx: an int, what is wrong with it. */
static void program(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    const int wrong = *(const int *)ctx;
    (void)n;
    (void)n_out;
    tl_tensor x = tl_exp(t, in[0]), part[3], r = tl_detach(t, in[1]);
    for (int i = 0; i < 3; i++)
        part[i] = tl_select(t, x, 1, i);
    tl_tensor q = tl_rotary_(t, wrong == 2 ? tl_scale(t, part[0], 1) : part[0], r, r,
                             TL_ROTARY_HALF),
              qq = tl_square(t, q);
    part[1] = tl_rotary_(t, tl_select(t, x, 1, 1), r, r, TL_ROTARY_HALF);
    out[0] = tl_mul(t, tl_mul(t, qq, part[1]), part[2]);
    out[1] = wrong == 1 ? tl_sum(t, tl_slice(t, x, 1, 1, 3, 1), TL_DIMS(1), false) : q;
    out[2] = wrong == 3 ? x : q;
}

static void test_compiled(void **unused)
{
    static const char *const words[] = {NULL, "sum", NULL, "tl_trace"};
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in[2] = {both_data(m, TL_F32, TL_DIMS(2, 3, 4), 1),
                       both_data(m, TL_F32, TL_DIMS(4), 2)};
    for (int wrong = 0; wrong < 4; wrong++) {
        if (words[wrong] == NULL) {
            assert_true(both_ways(m, program, in, 2, 3, &wrong, (tl_graph_options){0}).same);
            continue;
        }
        for (int compiled = 0; compiled < 2; compiled++) {
            tl_tape *t = tl_tape_new(m);
            tl_tensor out[3];
            tl_graph *g = NULL;
            if (compiled)
                g = tl_trace(t, program, in, 2, 3, &wrong);
            else
                program(t, in, 2, out, 3, &wrong);
            if (!tl_failed(t) && !compiled)
                tl_scale(t, out[2], 1);
            assert_null(g);
            expect_failure(t, TL_EINPLACE, "changed in place");
            tl_free(t);
        }
    }
    tl_free(m);
}

/* exp saves its result, which is overwritten: refused by backward, and by a graph with that
 * backward. */
static void saved(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    (void)n;
    (void)n_out;
    (void)ctx;
    tl_tensor p = tl_mul(t, tl_param(t, tl_tape_model(t), "p", TL_F32, TL_DIMS(2, 4)),
                         tl_select(t, in[0], 1, 0)),
              r = tl_detach(t, in[1]);
    out[0] = tl_sum(t, tl_rotary_(t, tl_slice(t, tl_exp(t, p), 0, 0, 1, 1), r, r, TL_ROTARY_HALF),
                    TL_ALL, false);
    tl_backward(t, out[0]);
}

static void test_compiled_backward(void **unused)
{
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in[2] = {both_data(m, TL_F32, TL_DIMS(2, 3, 4), 1),
                       both_data(m, TL_F32, TL_DIMS(4), 2)},
              out[1];
    tl_tape *t = tl_tape_new(m);
    saved(t, in, 2, out, 1, NULL);
    expect_failure(t, TL_EINPLACE, "output 0 of exp");
    tl_tape_reset(t);
    assert_null(tl_trace(t, saved, in, 2, 1, NULL));
    expect_failure(t, TL_EINPLACE, "changed in place by rotary_ (tests/test_in_place.c:");
    tl_free(t, m);
}

/* ---- what an update changes beside its parameter has no other handle ---- */

enum { ITSELF, A_VIEW, SAVED, USES };
typedef struct {
    bool adamw, variable; /* the state is a buffer of the model */
    int changed, use;     /* input of the update; what becomes of it */
} state_case;

static void update_and_use(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out,
                           void *ctx)
{
    const state_case *c = ctx;
    tl_model *m = tl_tape_model(t);
    tl_tensor x[8], p = tl_param(t, m, "p", TL_F32, TL_DIMS(4)), y;
    (void)n, (void)n_out;
    for (int i = 0; i < 8; i++)
        x[i] = i < 4 ? tl_scale(t, in[0], i + 2) : tl_scalar(t, TL_F64, 0.5);
    if (c->variable) {
        tl_tensor held = tl_buffer(t, m, "state", TL_F32, TL_DIMS(4));
        tl_assign(t, held, x[c->changed]);
        x[c->changed] = held;
    }
    tl_tensor read = x[c->changed], view = tl_reshape(t, read, TL_DIMS(2, 2));
    y = tl_sum(t, tl_mul(t, p, read), TL_ALL, false);
    int mode = tl_mode_push(t, TL_NO_GRAD);
    if (c->adamw)
        tl_adamw_update_at(TL_AT(t), x, (tl_adamw_attrs){.beta1 = 0.5, .beta2 = 0.5, .eps = 1});
    else
        tl_sgd_update_at(TL_AT(t), x[0], x[1], x[2], x[4], x[5], (tl_sgd_attrs){.momentum = 0.5});
    tl_mode_pop(t, mode);
    out[0] = tl_scale(t, c->use == ITSELF ? read : c->use == A_VIEW ? view : in[0], 1);
    if (c->use == SAVED)
        tl_backward(t, y);
}

static void test_state_of_an_update(void **unused)
{
    static const struct {
        bool adamw;
        int changed;
    } ops[] = {{false, 2}, {true, 2}, {true, 3}};
    (void)unused;
    for (int i = 0; i < 3 * USES * 4; i++) {
        state_case c = {ops[i % 3].adamw, i / 3 / USES % 2, ops[i % 3].changed, i / 3 % USES};
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_tensor in = both_data(m, TL_F32, TL_DIMS(4), 1), out;
        tl_compiled *g = tl_compile(t, update_and_use, 1, &c);
        if (i / 3 / USES / 2)
            tl_run(g, &in, 1, &out);
        else
            update_and_use(t, &in, 1, &out, 1, &c);
        if (c.variable && c.use != SAVED)
            assert_string_equal(tl_error(t), ""); /* it shows what it holds now */
        else if (!tl_failed(t))
            fail_msg("%s, input %d, use %d, variable %d, compiled %d: no error",
                     c.adamw ? "adamw" : "sgd", c.changed, c.use, c.variable, i / 3 / USES / 2);
        else
            expect_failure(t, TL_EINPLACE, c.adamw ? "by adamw (tests/" : "by sgd (tests/");
        tl_free(g, t, m);
    }
}

/* ---- one memory for what a call changes and for what it reads, or changes, beside ---- */

static const struct {
    const char *op; /* whose inputs a and b share memory */
    int a, b;
} shared[] = {{"sgd", 0, 2},   {"sgd", 0, 1},     {"adamw", 0, 3},
              {"adamw", 2, 3}, {"rotary_", 0, 1}, {"rotary_", 0, 2}};

static void shares(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    const int k = *(const int *)ctx, a = shared[k].a, b = shared[k].b;
    tl_tensor x[8];
    (void)n, (void)n_out;
    for (int i = 0; i < 8; i++)
        x[i] = i < 4 ? tl_scale(t, in[0], i + 2) : tl_scalar(t, TL_F64, 0.5);
    x[b] = tl_reshape(t, x[a], TL_DIMS(4));
    if (shared[k].op[0] == 's')
        out[0] = tl_sgd_update_at(TL_AT(t), x[0], x[1], x[2], x[4], x[5],
                                  (tl_sgd_attrs){.momentum = 0.5});
    else if (shared[k].op[0] == 'a')
        out[0] = tl_adamw_update_at(TL_AT(t), x, (tl_adamw_attrs){0.5, 0.5, 1, 0, false});
    else
        out[0] = tl_rotary_(t, x[0], tl_slice(t, x[1], 0, 1, 3, 1), tl_slice(t, x[2], 0, 2, 4, 1),
                            TL_ROTARY_HALF);
}

static void test_shared_memory(void **unused)
{
    const int n = sizeof shared / sizeof *shared;
    char words[64];
    (void)unused;
    for (int i = 0; i < 2 * n; i++) {
        int k = i % n;
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_tensor in = both_data(m, TL_F32, TL_DIMS(4), 1), out;
        tl_compiled *g = tl_compile(t, shares, 1, &k);
        if (i / n)
            tl_run(g, &in, 1, &out);
        else
            shares(t, &in, 1, &out, 1, &k);
        snprintf(words, sizeof words, i / n ? "changed in place by %s (tests/" : "%s: input",
                 shared[k].op);
        expect_failure(t, TL_EINPLACE, words);
        tl_free(g, t, m);
    }
}

/* An op that changes inputs 1 and 2 beside its operand. */
static tl_status changes_shape(tl_call *c)
{
    c->out[0] = *c->in[0];
    return TL_OK;
}

static tl_status changes_run(tl_call *c)
{
    for (int i = 0; i < 3; i++)
        for (int64_t k = 0; k < tl_array_count(c->in[i]); k++)
            tl_array_put(c->in[i], k, 0);
    return TL_OK;
}

static const tl_op changes_three = {.name = "changes_three",
                                    .n_in = 3,
                                    .n_out = 1,
                                    .traits = TL_MUTATES | TL_NONDIFF,
                                    .mutates = 0,
                                    .changes = TL_BIT(1) | TL_BIT(2),
                                    .shape = changes_shape,
                                    .forward = changes_run};

/* The same with a gradient, which reads inputs 1 and 2 if it is asked for. */
static void changes_vjp(tl_vjp *g)
{
    g->dx[0] = tl_mul(g->t, g->dy[0], tl_mul(g->t, g->in[1], g->in[2]));
}
static const tl_op changes_followed = {.name = "changes_followed",
                                       .n_in = 3,
                                       .n_out = 1,
                                       .traits = TL_MUTATES,
                                       .mutates = 0,
                                       .changes = TL_BIT(1) | TL_BIT(2),
                                       .saves_in = TL_BIT(1) | TL_BIT(2),
                                       .shape = changes_shape,
                                       .forward = changes_run,
                                       .vjp = changes_vjp};

/* What an op changes beside its operand is refused what the operand is. */
static void test_what_changes_beside_the_operand(void **unused)
{
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_tensor x = both_data(m, TL_F32, TL_DIMS(3), 1), a = tl_scale(t, x, 2), b = tl_scale(t, x, 3),
              one = tl_zeros(t, TL_F32, TL_DIMS(1)),
              w = tl_param(t, m, "w", TL_F32, TL_DIMS(3), .kind = TL_INIT_ONES);
    tl_apply1(TL_AT(t), &changes_three, NULL, (tl_tensor[]){a, b, b}, 3);
    expect_failure(t, TL_EINPLACE, "input 2 lies in memory of input 1");
    tl_apply1(TL_AT(t), &changes_three, NULL, (tl_tensor[]){a, b, tl_expand(t, one, TL_DIMS(3))},
              3);
    expect_failure(t, TL_EINPLACE, "input 2, [3], shows elements more than once");
    tl_tensor y = tl_matmul(t, tl_reshape(t, x, TL_DIMS(1, 3)), tl_reshape(t, w, TL_DIMS(3, 1)));
    assert_int_equal(tl_backward(t, tl_sum(t, y, TL_ALL, false), .retain = true), TL_OK);
    tl_apply1(TL_AT(t), &changes_three, NULL, (tl_tensor[]){a, tl_grad(t, w), b}, 3);
    expect_failure(t, TL_EINPLACE, "tl_grad has lent (input 1)");
    tl_tensor leaf = tl_zeros(t, TL_F32, TL_DIMS(3)), follows = tl_scale(t, w, 2);
    tl_require_grad(t, leaf);
    tl_apply1(TL_AT(t), &changes_followed, NULL, (tl_tensor[]){a, leaf, b}, 3);
    expect_failure(t, TL_EINPLACE, "a leaf that needs a gradient in place (input 1)");
    tl_apply1(TL_AT(t), &changes_followed, NULL, (tl_tensor[]){follows, b, a}, 3);
    expect_failure(t, TL_EINPLACE, "a gradient that is wanted reads input 1 as it was");
    const uint32_t mark = tl_model_mark(m);
    tl_tensor s = tl_buffer(t, m, "s", TL_F32, TL_DIMS(3)), all = tl_slice(t, s, 0, 0, 3, 1);
    tl_model_rollback(m, mark);
    tl_apply1(TL_AT(t), &changes_three, NULL, (tl_tensor[]){a, b, all}, 3);
    expect_failure(t, TL_ESTALE, "what input 2 shows was removed from the model");
    tl_apply1(TL_AT(t), &changes_three, NULL,
              (tl_tensor[]){tl_scale(t, x, 2), tl_scale(t, x, 2), tl_scale(t, x, 2)}, 3);
    expect_no_error(t);
    tl_free(t, m);
}

/* In the model's memory as in the tape's: no input lies below what changes, no element is shown
 * twice, and a gradient that tl_grad lends stays. */
static void test_what_others_count_on(void **unused)
{
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_tensor x = both_data(m, TL_F32, TL_DIMS(12), 1),
              p = tl_reshape(t, tl_slice(t, x, 0, 0, 8, 1), TL_DIMS(2, 4)),
              r = tl_reshape(t, tl_slice(t, x, 0, 4, 12, 1), TL_DIMS(2, 4));
    tl_rotary_(t, p, r, r, TL_ROTARY_HALF);
    expect_failure(t, TL_EINPLACE, "input 1 lies in memory of input 0");
    tl_tensor one = tl_zeros(t, TL_F64, TL_DIMS(1)), three = tl_expand(t, one, TL_DIMS(3)),
              dx = tl_data(t, ((float[]){10, 20, 30}), TL_F32, TL_DIMS(3));
    tl_sum_to(t, dx, TL_DIMS(3), three);
    expect_failure(t, TL_EINPLACE, "shows elements more than once");
    for (int update = 0; update < 2; update++) { /* which may do so */
        tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(2, 2), .kind = TL_INIT_ONES),
                  c = tl_data(t, ((float[]){.5, .25}), TL_F32, TL_DIMS(2)),
                  y = tl_matmul(t, tl_data(t, ((float[]){1, 2, 3, 4}), TL_F32, TL_DIMS(2, 2)), w);
        assert_int_equal(tl_backward(t, tl_sum(t, y, TL_ALL, false)), TL_OK);
        tl_tensor g = tl_grad(t, w);
        if (update) {
            tl_update_begin(t);
            g = tl_rotary_(t, g, c, c, TL_ROTARY_HALF);
            tl_update_end(t);
            expect_no_error(t);
        }
        tl_rotary_(t, g, c, c, TL_ROTARY_HALF);
        expect_failure(t, TL_EINPLACE, "tl_grad has lent");
    }
    tl_free(t, m);
}

/* A compiled program is refused what a called one is, and may do as much. */
typedef struct {
    int what;
    tl_model *m;
} twisting;

static void twists(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    const twisting *how = ctx;
    tl_tensor c = tl_constant(t, ((float[]){.5, .25}), TL_F32, TL_DIMS(2));
    (void)n, (void)n_out;
    if (how->what == 0 || how->what == 3 || how->what == 4) { /* a gradient that was lent */
        tl_tensor w = tl_param(t, how->m, "w", TL_F32, TL_DIMS(2, 2), .kind = TL_INIT_ONES), g;
        tl_backward(t, tl_sum(t, tl_matmul(t, in[0], w), TL_ALL, false));
        g = how->what == 3 ? tl_detach(t, tl_grad(t, w)) : tl_grad(t, w);
        out[0] = how->what == 4 ? g : tl_rotary_(t, g, c, c, TL_ROTARY_HALF);
        return;
    }
    tl_tensor b = tl_buffer(t, how->m, "b", TL_F32, TL_DIMS(2, 2));
    if (how->what == 5) { /* a view of all -0, added after it has been changed */
        tl_tensor z = tl_fill(t, TL_F32, TL_DIMS(2, 2), -0.0), v = tl_transpose(t, z, 0, 1);
        tl_rotary_(t, z, c, c, TL_ROTARY_HALF);
        out[0] = tl_abs(t, tl_add(t, in[0], v));
    } else if (how->what == 1) /* memory of another input */
        out[0] = tl_rotary_(t, b, tl_select(t, b, 0, 1), c, TL_ROTARY_HALF);
    else /* the model's, detached */
        out[0] = tl_rotary_(t, tl_detach(t, b), c, c, TL_ROTARY_HALF);
}

static void test_called_and_compiled_agree(void **unused)
{
    (void)unused;
    for (int what = 0; what < 6; what++)
        for (int compiled = 0; compiled < 2; compiled++) {
            tl_model *m = tl_model_new(.seed = 1);
            tl_tape *t = tl_tape_new(m);
            twisting how = {what, m};
            tl_tensor in = both_data(m, TL_F32, TL_DIMS(2, 2), 1), out;
            tl_compiled *g = tl_compile(t, twists, 1, &how);
            if (compiled)
                tl_run(g, &in, 1, &out);
            else
                twists(t, &in, 1, &out, 1, &how);
            if (what == 4) { /* it is handed out, and changed then */
                expect_no_error(t);
                tl_tensor c = tl_data(t, ((float[]){.5, .25}), TL_F32, TL_DIMS(2));
                tl_rotary_(t, out, c, c, TL_ROTARY_HALF);
            }
            if (what == 2)
                expect_no_error(t);
            else
                expect_failure(t, TL_EINPLACE,
                               what == 5   ? "changed in place"
                               : what == 1 ? "input 1 lies in memory"
                                           : "lent");
            tl_free(g, t, m);
        }
}

/* A view that outlives the tensor of the model that it shows. */
static void test_a_view_of_what_was_removed(void **unused)
{
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    const uint32_t mark = tl_model_mark(m);
    tl_tensor b = tl_buffer(t, m, "b", TL_F32, TL_DIMS(2, 2)), v = tl_slice(t, b, 0, 0, 1, 1),
              c = tl_data(t, ((float[]){.5, .25}), TL_F32, TL_DIMS(2));
    tl_model_rollback(m, mark);
    tl_rotary_(t, v, c, c, TL_ROTARY_HALF);
    expect_failure(t, TL_ESTALE, "removed from the model");
    assert_int_equal(tl_batch_axis(t, v, 0), TL_EUSAGE);
    expect_failure(t, TL_EUSAGE, "tl_batch_axis");
    b = tl_buffer(t, m, "b", TL_F32, TL_DIMS(1, 2));
    v = tl_expand(t, b, TL_DIMS(3, 2));
    tl_model_rollback(m, mark);
    tl_buffer(t, m, "other", TL_F32, TL_DIMS(1, 2)); /* where b was */
    assert_int_equal(tl_batch_axis(t, v, 0), TL_EUSAGE);
    expect_failure(t, TL_EUSAGE, "tl_batch_axis");
    tl_free(t, m);
}

/* The gradient of what an accumulator held passes on what comes to the sum. */
static void test_a_sum_that_goes_on(void **unused)
{
    (void)unused;
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = tl_data(t, ((float[]){1, 2, 3}), TL_F32, TL_DIMS(3)), a = tl_detach(t, x);
    tl_require_grad(t, a);
    tl_tensor acc = tl_square(t, a), y = tl_sum_to(t, x, TL_DIMS(3), acc);
    assert_int_equal(tl_backward(t, tl_sum(t, y, TL_ALL, false)), TL_OK);
    assert_true(element_of(t, tl_grad(t, a), 2) == 6);
    tl_free(t);
}

/* y = x/2 in place, written through the input alone: where the call is run again it gets a copy. */
static tl_status halves_run(tl_call *c)
{
    for (int64_t i = 0; i < tl_array_count(c->in[0]); i++)
        tl_array_put(c->in[0], i, tl_array_get(c->in[0], i) / 2);
    return TL_OK;
}
static void halves_vjp(tl_vjp *g) { g->dx[0] = tl_scale(g->t, g->dy[0], .5); }
static void quarters_vjp(tl_vjp *g) { g->dx[0] = tl_scale(g->t, g->dy[0], .25); }

static tl_tensor halved(tl_tape *t, const tl_tensor *in, int n, void *op)
{
    tl_tensor x = tl_scale(t, in[0], 3);
    (void)n;
    return tl_sum(t, tl_square(t, tl_apply1(TL_AT(t), op, NULL, &x, 1)), TL_ALL, false);
}

static void test_what_writes_through_its_input_is_run_again(void **unused)
{
    (void)unused;
    for (int wrong = 0; wrong < 2; wrong++) {
        tl_op op = {.name = "halves",
                    .n_in = 1,
                    .n_out = 1,
                    .traits = TL_MUTATES,
                    .shape = changes_shape,
                    .forward = halves_run,
                    .vjp = wrong ? quarters_vjp : halves_vjp};
        tl_tape *t = tl_tape_new(NULL);
        tl_tensor x = tl_data(t, ((float[]){1, 2, -3}), TL_F32, TL_DIMS(3));
        tl_gradcheck_report r = {.text = ""};
        const tl_verdict v = tl_gradcheck_with(t, halved, &x, 1, &op, &r);
        if (v != (wrong ? TL_WRONG : TL_RIGHT) ||
            (wrong && (strstr(r.text, "halves") == NULL || strstr(r.text, "= 0.5)") == NULL)))
            fail_msg("%s", r.text);
        tl_free(t);
    }
}

/* A leaf that was changed since it was read cannot be read again for the numeric side. */
static tl_tensor changes_a_leaf(tl_tape *t, const tl_tensor *in, int n, void *ctx)
{
    tl_tensor k = tl_data(t, ((float[]){10, 20}), TL_F32, TL_DIMS(1, 2)),
              c = tl_data(t, ((float[]){.5, .25}), TL_F32, TL_DIMS(2)), d = tl_add(t, in[0], k);
    (void)n, (void)ctx;
    tl_rotary_(t, k, c, c, TL_ROTARY_HALF);
    return tl_sum(t, tl_square(t, d), TL_ALL, false);
}

static void test_a_checked_leaf_that_changed(void **unused)
{
    (void)unused;
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = tl_data(t, ((float[]){1, 2}), TL_F32, TL_DIMS(1, 2));
    assert_int_not_equal(tl_gradcheck(t, changes_a_leaf, &x, 1, NULL), TL_RIGHT);
    expect_failure_both(t, TL_EINPLACE, "input 1 of add was changed in place by rotary_", "again");
    tl_free(t);
}

/* What an op in place makes of a parameter is added use by use, which the split decides. */
static void test_what_is_changed_is_used_apart(void **unused)
{
    static const float v[2][4] = {{1, .5, .25, 2}, {3, 1, 2, .5}};
    (void)unused;
    for (int in_place = 0; in_place < 2; in_place++) {
        char text[1024];
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(2, 4), .kind = TL_INIT_ONES),
                  r = tl_constant(t, v, TL_F32, TL_DIMS(2, 4)), y = tl_neg(t, w);
        y = in_place ? tl_rotary_(t, y, r, r, TL_ROTARY_HALF)
                     : tl_rotary(t, y, r, r, TL_ROTARY_HALF);
        y = tl_sum(t, tl_mul(t, tl_data(t, v, TL_F32, TL_DIMS(2, 1, 4)), y), TL_ALL, false);
        assert_int_equal(tl_explain_invariance(t, y, text, sizeof text), in_place);
        assert_true(!in_place || strstr(text, "uses 'neg' apart from the batch") != NULL);
        const int scope = tl_mode_push(t, TL_STRICT);
        tl_rotary_(t, tl_neg(t, w), r, r, TL_ROTARY_HALF);
        expect_failure(t, TL_EUSAGE, "changed in place");
        tl_mode_pop(t, scope);
        tl_free(t, m);
    }
}

/* A value without memory has no data. */
static void test_no_memory_is_shown(void **unused)
{
    tl_array a;
    (void)unused;
    tl_tape *t = tl_tape_new(NULL);
    const int scope = tl_mode_push(t, TL_TRACE);
    tl_tensor x = tl_data(t, ((float[]){1, 2}), TL_F32, TL_DIMS(2)), v = tl_slice(t, x, 0, 0, 1, 1);
    tl_mode_pop(t, scope);
    assert_true(tl_array_of(t, v, &a) && a.data == NULL);
    tl_free(t);
}

/* A place is said once, and a parameter by its name, also through a view. */
static void test_what_was_changed_is_named(void **unused)
{
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *opt = tl_sgd_new(m, .lr = 1);
    const tl_at here = {t, "here.c", 3, NULL};
    tl_tensor x = tl_data(t, ((float[]){1, 2, 3, 4}), TL_F32, TL_DIMS(2, 2));
    for (int i = 0; i < 2; i++)
        x = tl_linear_at(here, m, i == 0 ? "a" : "b", x, 2, (tl_linear_options){0});
    tl_tensor y = tl_sum(t, x, TL_ALL, false);
    tl_backward(t, y, .retain = true);
    assert_int_equal(tl_step_at(opt, here), TL_OK);
    tl_backward(t, y);
    const char *place = strstr(tl_error(t), " (here.c:3)");
    if (place == NULL || strcmp(place, " (here.c:3)") != 0)
        fail_msg("%s", tl_error(t));
    expect_failure(t, TL_EINPLACE, "input 1 of matmul ('b.weight'), saved for its gradient");
    tl_free(opt, t, m);
}

const struct CMUnitTest tl_tests_in_place[] = {
    cmocka_unit_test(test_what_was_changed_is_named),
    cmocka_unit_test(test_what_others_count_on),
    cmocka_unit_test(test_what_changes_beside_the_operand),
    cmocka_unit_test(test_called_and_compiled_agree),
    cmocka_unit_test(test_a_view_of_what_was_removed),
    cmocka_unit_test(test_a_sum_that_goes_on),
    cmocka_unit_test(test_what_writes_through_its_input_is_run_again),
    cmocka_unit_test(test_a_checked_leaf_that_changed),
    cmocka_unit_test(test_what_is_changed_is_used_apart),
    cmocka_unit_test(test_no_memory_is_shown),
    cmocka_unit_test(test_in_place_on_packed_qkv),
    cmocka_unit_test(test_in_place_refusals),
    cmocka_unit_test(test_in_place_of_a_saved_value),
    cmocka_unit_test(test_in_place_spares_the_cotangent),
    cmocka_unit_test(test_a_changed_value_is_not_read),
    cmocka_unit_test(test_what_is_beside_the_change_is_read),
    cmocka_unit_test(test_saved_beside_a_change),
    cmocka_unit_test(test_every_order_is_checked),
    cmocka_unit_test(test_every_order_has_the_bits_out_of_place),
    cmocka_unit_test(test_compiled),
    cmocka_unit_test(test_compiled_backward),
    cmocka_unit_test(test_state_of_an_update),
    cmocka_unit_test(test_shared_memory),
};
const size_t tl_tests_in_place_count = sizeof tl_tests_in_place / sizeof tl_tests_in_place[0];
