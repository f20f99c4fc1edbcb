/* What a user holds and sees: handles that go stale, the first error that sticks with its place,
 * modes, detached values, traces. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <tally_extend.h>

extern const struct CMUnitTest tl_tests_handles[];
extern const size_t tl_tests_handles_count;

static const float six[6] = {1, 2, 3, 4, 5, 6};

/* The tape has failed with this status, and its message holds every word given (up to NULL). */
static void assert_failed(tl_tape *t, tl_status want, ...)
{
    va_list ap;
    va_start(ap, want);
    assert_true(tl_failed(t));
    if (tl_error_status(t) != want)
        fail_msg("%s wanted, got %s: %s", tl_status_name(want), tl_status_name(tl_error_status(t)),
                 tl_error(t));
    for (const char *word; (word = va_arg(ap, const char *)) != NULL;)
        if (strstr(tl_error(t), word) == NULL)
            fail_msg("'%s' is missing in: %s", word, tl_error(t));
    va_end(ap);
}

static void assert_clear(tl_tape *t)
{
    tl_error_clear(t);
    assert_false(tl_failed(t));
    assert_string_equal(tl_error(t), "");
    assert_int_equal(tl_error_status(t), TL_OK);
}

#define assert_none(x) assert_true(tl_is_none(x))

/* ---- handles ---- */

static void stale_handles(void **unused)
{
    tl_tape *t = tl_tape_new(NULL), *other = tl_tape_new(NULL);
    tl_tensor x = tl_data(t, six, TL_F32, TL_DIMS(2, 3)), y = tl_exp(t, x),
              theirs = tl_data(other, six, TL_F32, TL_DIMS(6));
    (void)unused;
    assert_none(tl_exp(t, theirs));
    assert_failed(t, TL_ESTALE, "exp", "another tape", NULL);
    assert_clear(t);
    assert_none(tl_exp(t, TL_NONE));
    assert_failed(t, TL_ESTALE, "exp", "failed", NULL);
    assert_clear(t);
    tl_tape_reset(t);
    for (int i = 0; i < 3; i++)
        tl_data(t, six, TL_F32, TL_DIMS(6)); /* the same places hold other values now */
    assert_none(tl_exp(t, y));
    assert_failed(t, TL_ESTALE, "exp", "reset", NULL);
    assert_clear(t);
    tl_tensor wild = {y.owner, 1000000, y.generation + 1}; /* no such value */
    assert_none(tl_neg(t, wild));
    assert_failed(t, TL_ESTALE, "neg", NULL);
    assert_clear(t);
    float out[6];
    assert_int_equal(tl_keep(t, x, out, sizeof out), TL_ESTALE);
    tl_free(t, other);
}

static void a_value_changed_in_place_has_a_new_handle(void **unused)
{
    tl_tape *t = tl_tape_new(NULL);
    const double start[2] = {10, 20};
    tl_tensor x = tl_data(t, six, TL_F32, TL_DIMS(3, 2)),
              acc = tl_data(t, start, TL_F64, TL_DIMS(2)), sum = tl_sum_to(t, x, TL_DIMS(2), acc);
    double out[2] = {0};
    (void)unused;
    assert_int_equal(tl_keep(t, sum, out, sizeof out), TL_OK);
    assert_true(out[0] == 19 && out[1] == 32);
    assert_none(tl_neg(t, acc));
    assert_failed(t, TL_ESTALE, "neg", "in place", NULL);
    tl_free(t);
}

static void models_own_their_handles(void **unused)
{
    tl_model *m = tl_model_new(.seed = 1), *other = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_tensor mine = tl_data(m, six, TL_F32, TL_DIMS(6)),
              theirs = tl_data(other, six, TL_F32, TL_DIMS(6));
    (void)unused;
    for (int i = 0; i < 3; i++) {
        assert_true(tl_item(t, tl_sum(t, mine, TL_ALL, false)) == 21);
        tl_tape_reset(t); /* the model's tensors do not go stale */
    }
    assert_none(tl_neg(t, theirs));
    assert_failed(t, TL_ESTALE, "another", NULL);
    assert_clear(t);
    assert_none(tl_param(t, other, "p", TL_F32, TL_DIMS(2), TL_INIT_ONES, 1));
    assert_failed(t, TL_EUSAGE, "'p'", "another model", __FILE__, NULL);
    assert_int_equal(tl_write(m, theirs, six, sizeof six), TL_ESTALE);
    tl_free(t, m, other);
}

/* ---- the first error ---- */

static void the_first_error_sticks(void **unused)
{
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor a = tl_data(t, six, TL_F32, TL_DIMS(2, 3)),
              b = tl_data(t, six, TL_F32, TL_DIMS(3, 2));
    char place[160], first[TL_MESSAGE_MAX];
    (void)unused;
    snprintf(place, sizeof place, "(%s:%d)", __FILE__, __LINE__ + 1);
    tl_tensor y = tl_exp(t, tl_add(t, a, b));
    assert_none(y);
    assert_failed(t, TL_ESHAPE, "add", "[2, 3]", "[3, 2]", place, NULL);
    snprintf(first, sizeof first, "%s", tl_error(t));
    tl_tape_memory before = tl_memory_stats(t);
    float out[6] = {-1, -1, -1, -1, -1, -1}, untouched[6] = {-1, -1, -1, -1, -1, -1};
    char hex[65] = "x";
    assert_none(tl_matmul(t, a, a)); /* wrong too, but not first */
    assert_none(tl_neg(t, a));
    assert_none(tl_data(t, six, TL_F32, TL_DIMS(6)));
    assert_none(tl_scalar(t, TL_F32, 1));
    assert_none(tl_detach(t, a));
    assert_none(tl_grad(t, a));
    assert_true(isnan(tl_item(t, a)));
    assert_int_equal(tl_keep(t, a, out, sizeof out), TL_ESHAPE);
    assert_memory_equal(out, untouched, sizeof out);
    assert_int_equal(tl_backward(t, a), TL_ESHAPE);
    assert_int_equal(tl_require_grad(t, a), TL_ESHAPE);
    assert_int_equal(tl_sha256(t, a, hex), TL_ESHAPE);
    assert_int_equal(tl_shape_of(t, a).ndim, 0);
    tl_tape_memory after = tl_memory_stats(t);
    assert_memory_equal(&before, &after, sizeof before);
    assert_string_equal(tl_error(t), first);
    tl_tape_reset(t);
    assert_true(tl_failed(t)); /* a reset keeps the error */
    assert_string_equal(tl_error(t), first);
    assert_none(tl_data(t, six, TL_F32, TL_DIMS(6)));
    assert_clear(t);
    assert_true(tl_item(t, tl_sum(t, tl_data(t, six, TL_F32, TL_DIMS(6)), TL_ALL, false)) == 21);
    assert_int_equal(tl_error_status(t), TL_OK);
    tl_free(t);
}

static void objects_that_could_not_be_made(void **unused)
{
    tl_tape *none = NULL;
    (void)unused;
    assert_true(tl_failed(none));
    assert_int_equal(tl_error_status(none), TL_ENOMEM);
    assert_non_null(strstr(tl_error(none), "memory"));
    assert_none(tl_exp(none, TL_NONE));
    assert_none(tl_data(none, six, TL_F32, TL_DIMS(6)));
    assert_true(isnan(tl_item(none, TL_NONE)));
    assert_int_equal(tl_backward(none, TL_NONE), TL_ENOMEM);
    assert_int_equal(tl_step(NULL, none), TL_ENOMEM);
    assert_int_equal(tl_save(NULL, "x"), TL_ENOMEM);
    assert_int_equal(tl_opt_group(NULL, "*", 1, 1), TL_ENOMEM);
    assert_none(tl_linear(none, NULL, "l", TL_NONE, 4));
    tl_tape_reset(none);
    tl_error_clear(none);
    tl_mode_pop(none, tl_mode_push(none, TL_NO_GRAD));
    tl_free(none, NULL);
}

static void a_message_speaks_only_while_it_holds(void **unused)
{
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_tensor x = tl_data(m, six, TL_F32, TL_DIMS(6));
    (void)unused;
    assert_int_equal(tl_write(m, x, six, 5), TL_ESHAPE);
    assert_true(tl_failed(m));
    assert_non_null(strstr(tl_error(m), "24"));
    assert_string_equal(tl_error(t),
                        tl_error(m)); /* a tape without an error speaks for its model */
    assert_int_equal(tl_write(m, x, six, sizeof six), TL_OK);
    assert_false(tl_failed(m));
    assert_string_equal(tl_error(m), "");
    assert_string_equal(tl_error(t), "");
    tl_free(t, m);
}

/* ---- places ---- */

enum { NONE_SUCH = 99 };

static tl_tensor module(tl_at at, tl_tensor x)
{
    int place = tl_place_push(at);
    tl_tensor y = tl_transpose(at.tape, x, 0, NONE_SUCH);
    tl_place_pop(at.tape, place);
    return y;
}

#define PLACE(call)                                                   \
    do {                                                              \
        char place[160];                                              \
        snprintf(place, sizeof place, "(%s:%d)", __FILE__, __LINE__); \
        (void)(call);                                                 \
        assert_true(tl_failed(t));                                    \
        if (strstr(tl_error(t), place) == NULL)                       \
            fail_msg("%s is not named in: %s", place, tl_error(t));   \
        tl_error_clear(t);                                            \
    } while (0)

static void layers_name_their_callers_place(void **unused)
{
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_tensor x = tl_data(t, six, TL_F32, TL_DIMS(2, 3)),
              ids = tl_data(t, (int64_t[]){9}, TL_I64, TL_DIMS(1, 1));
    (void)unused;
    tl_llama_config c = {
        .vocab = 5, .width = 6, .layers = 1, .heads = 4, .kv_heads = 2, .hidden = 4};
    tl_linear(t, m, "l", x, 4);
    PLACE(tl_linear(t, m, "l", x, 5));
    PLACE(tl_linear(t, m, "ids", ids, 5));
    PLACE(tl_norm(t, m, "n", x, -1));
    PLACE(tl_embed(t, m, "e", ids, 5, 2, 1));
    PLACE(tl_self_attention(t, m, "a", x, .heads = 3));
    PLACE(tl_llama(t, m, &c, ids));
    PLACE(module(TL_AT(t), x));
    PLACE(tl_exp(t, ids));
    PLACE(tl_backward(t, x));
    PLACE(tl_tape_fail(TL_AT(t), TL_EDOMAIN, "mine"));
    tl_free(t, m);
}

static void other_calls_name_it_too(void **unused)
{
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_sgd_new(m, .lr = 1);
    tl_tensor x = tl_data(t, six, TL_F32, TL_DIMS(2, 3));
    char out[4], hex[65];
    FILE *closed = fopen("/dev/null", "r"); /* cannot be written */
    (void)unused;
    assert_non_null(closed);
    PLACE(tl_item(t, x));
    PLACE(tl_keep(t, x, out, sizeof out));
    PLACE(tl_assign(t, x, x));
    PLACE(tl_data(t, six, TL_F32, TL_DIMS(-1)));
    PLACE(tl_scalar(t, (tl_dtype)55, 1));
    PLACE(tl_sha256(t, TL_NONE, hex));
    PLACE(tl_print(t, stdout, TL_NONE));
    PLACE(tl_print(t, closed, x));
    PLACE(tl_require_grad(t, TL_NONE));
    PLACE(tl_step(o, t));
    fclose(closed);
    tl_free(o, t, m);
}

/* ---- modes ---- */

static void modes_nest_and_unwind(void **unused)
{
    tl_tape *t = tl_tape_new(NULL);
    (void)unused;
    int a = tl_mode_push(t, TL_NO_GRAD);
    assert_int_equal(tl_mode(t), TL_NO_GRAD);
    int b = tl_mode_push(t, TL_FAST);
    assert_int_equal(tl_mode(t), TL_NO_GRAD | TL_FAST);
    int c = tl_mode_push(t, TL_NO_GRAD);
    tl_mode_pop(t, c); /* an inner scope's end does not end the outer one */
    assert_int_equal(tl_mode(t), TL_NO_GRAD | TL_FAST);
    tl_mode_pop(t, c); /* twice is harmless */
    tl_mode_pop(t, 1000);
    tl_mode_pop(t, -1);
    assert_int_equal(tl_mode(t), TL_NO_GRAD | TL_FAST);
    tl_mode_push(t, TL_TRACE);
    tl_mode_push(t, TL_TRACE);
    tl_mode_pop(t, b); /* an early exit: all that was opened since */
    assert_int_equal(tl_mode(t), TL_NO_GRAD);
    tl_mode_pop(t, a);
    assert_int_equal(tl_mode(t), TL_INVARIANT);
    for (int i = 0; i < 1000; i++)
        tl_mode_push(t, TL_NO_GRAD);
    assert_failed(t, TL_EUSAGE, "tl_mode_push", "scopes", NULL);
    tl_mode_pop(t, 0);
    assert_int_equal(tl_mode(t), TL_INVARIANT);
    tl_free(t);
}

static void no_gradient_scope_and_detach(void **unused)
{
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = tl_data(t, six, TL_F32, TL_DIMS(6));
    float g[6];
    (void)unused;
    tl_require_grad(t, x);
    int s = tl_mode_push(t, TL_NO_GRAD);
    tl_tensor quiet = tl_sum(t, tl_square(t, x), TL_ALL, false);
    tl_mode_pop(t, s);
    assert_int_equal(tl_backward(t, quiet), TL_ENOGRAD);
    assert_clear(t);
    assert_int_equal(tl_backward(t, tl_sum(t, tl_square(t, tl_detach(t, x)), TL_ALL, false)),
                     TL_ENOGRAD);
    assert_clear(t);
    assert_int_equal(tl_backward(t, tl_sum(t, tl_mul(t, x, tl_detach(t, tl_scale(t, x, 3))), TL_ALL,
                                           false)),
                     TL_OK);
    assert_int_equal(tl_keep(t, tl_grad(t, x), g, sizeof g), TL_OK);
    for (int i = 0; i < 6; i++)
        assert_true(g[i] == 3 * six[i]); /* not 6: half of the product is a constant */
    tl_free(t);
}

/* ---- traces ---- */

static void a_trace_has_shapes_and_no_contents(void **unused)
{
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    float out[6];
    char hex[65];
    (void)unused;
    tl_mode_push(t, TL_TRACE);
    tl_tensor x = tl_data(t, six, TL_F32, TL_DIMS(2, 3)), y = tl_linear(t, m, "l", tl_exp(t, x), 5),
              s = tl_sum(t, y, TL_ALL, false);
    assert_false(tl_failed(t));
    tl_shape shape = tl_shape_of(t, y);
    assert_true(shape.ndim == 2 && shape.dim[0] == 2 && shape.dim[1] == 5);
    assert_int_equal(tl_shape_of(t, s).ndim, 0);
    assert_int_equal(tl_memory_stats(t).tape.peak, 0); /* nothing was ever stored */
    assert_true(tl_memory_stats(t).nodes >= 4);
    assert_true(isnan(tl_item(t, s)));
    assert_failed(t, TL_ETRACED, "tl_item", NULL);
    assert_clear(t);
    assert_int_equal(tl_keep(t, x, out, sizeof out), TL_ETRACED);
    assert_clear(t);
    assert_int_equal(tl_sha256(t, s, hex), TL_ETRACED);
    assert_clear(t);
    assert_none(tl_add(t, x, y)); /* shapes are checked as ever */
    assert_failed(t, TL_ESHAPE, "[2, 3]", "[2, 5]", NULL);
    assert_clear(t);
    assert_int_equal(tl_backward(t, s), TL_ETRACED);
    assert_clear(t);
    tl_mode_pop(t, 0);
    tl_tensor z = tl_neg(t, y); /* what depends on a trace is a trace */
    assert_false(tl_failed(t));
    assert_true(isnan(tl_item(t, tl_sum(t, z, TL_ALL, false))));
    assert_failed(t, TL_ETRACED, NULL);
    tl_free(t, m);
}

/* ---- writing ---- */

static void writing_and_assigning(void **unused)
{
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_tensor w = tl_data(m, six, TL_F32, TL_DIMS(2, 2)),
              x = tl_data(t, six + 2, TL_F32, TL_DIMS(2, 2));
    float out[4];
    (void)unused;
    assert_int_equal(tl_assign(t, w, tl_transpose(t, x, 0, 1)), TL_OK);
    tl_keep(t, w, out, sizeof out);
    assert_memory_equal(out, ((float[]){3, 5, 4, 6}), sizeof out);
    assert_int_equal(tl_assign(t, w, tl_transpose(t, w, 0, 1)),
                     TL_OK); /* its own elements, seen otherwise */
    tl_keep(t, w, out, sizeof out);
    assert_memory_equal(out, ((float[]){3, 4, 5, 6}), sizeof out);
    assert_int_equal(tl_assign(t, w, w), TL_OK);
    tl_keep(t, w, out, sizeof out);
    assert_memory_equal(out, ((float[]){3, 4, 5, 6}), sizeof out);
    assert_int_equal(tl_assign(t, w, tl_reshape(t, x, TL_DIMS(4))), TL_ESHAPE);
    assert_failed(t, TL_ESHAPE, "[4]", "[2, 2]", NULL);
    assert_clear(t);
    assert_int_equal(tl_assign(t, w, tl_cast(t, x, TL_F64)), TL_ESHAPE);
    assert_failed(t, TL_ESHAPE, "F64", "F32", NULL);
    assert_clear(t);
    assert_int_equal(tl_assign(t, x, w), TL_EUSAGE);
    assert_clear(t);
    assert_int_equal(tl_keep(t, w, out, 12), TL_ESHAPE);
    assert_failed(t, TL_ESHAPE, "16", "12", NULL);
    tl_free(t, m);
}

/* Another object may lie where a freed model was. */
static void an_object_of_another_kind_is_no_model(void **unused)
{
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m), *u = tl_tape_new(m);
    tl_opt *o = tl_sgd_new(m, .lr = 1);
    void *const other[] = {u, o};
    for (int i = 0; i < 2; i++) {
        assert_true(tl_is_none(tl_model_find(other[i], "w")));
        assert_int_equal(tl_model_count(other[i]), 0);
        assert_null(tl_model_at(other[i], 0).name);
        assert_int_equal(tl_model_mark(other[i]), 0);
        tl_model_rollback(other[i], 0);
        assert_true(tl_is_none(tl_param(t, other[i], "w", TL_F32, TL_DIMS(2))));
        assert_true(tl_failed(t));
        tl_error_clear(t);
    }
    tl_free(o, t, u, m);
}

/* A tensor made where a removed one lay is not the removed one: not of handles, of gradients, of
 * an optimizer's parameters. */
static void a_handle_of_a_removed_tensor_is_stale(void **unused)
{
    static const float one[] = {1, 1, 1};
    float out[3];
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_sgd_new(m, .lr = 1);
    const uint32_t mark = tl_model_mark(m);
    tl_tensor old = tl_param(t, m, "w", TL_F32, TL_DIMS(3), .kind = TL_INIT_ONES);
    assert_int_equal(tl_backward(t, tl_sum(t, old, TL_ALL, false)), TL_OK);
    tl_tape_reset(t);
    assert_int_equal(tl_accumulating_count(t), 1);
    tl_model_rollback(m, mark);
    assert_int_equal(tl_accumulating_count(t), 0); /* nor is its gradient saved */
    tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(2), .kind = TL_INIT_ONES);
    assert_int_equal(old.index, w.index);
    assert_int_equal(tl_write(m, old, one, sizeof one), TL_ESTALE);
    tl_error_clear(m);
    assert_true(tl_is_none(tl_grad(t, w))); /* what waits is the removed one's */
    assert_false(tl_failed(t));
    assert_int_equal(tl_keep(t, old, out, sizeof out), TL_ESTALE);
    assert_failed(t, TL_ESTALE, "was removed from the model", NULL);
    tl_error_clear(t);
    assert_true(tl_is_none(tl_neg(t, old)));
    assert_failed(t, TL_ESTALE, "was removed from the model", NULL);
    tl_error_clear(t);
    assert_int_equal(tl_backward(t, tl_sum(t, w, TL_ALL, false)), TL_OK);
    tl_tensor g = tl_grad(t, w);
    assert_int_equal(tl_keep(t, g, out, 2 * sizeof *out), TL_OK);
    assert_true(out[0] == 1 && out[1] == 1);
    assert_int_equal(tl_step(o, t), TL_OK); /* 1 - lr * 1 */
    assert_int_equal(tl_keep(t, w, out, 2 * sizeof *out), TL_OK);
    assert_true(out[0] == 0 && out[1] == 0);
    tl_free(o, t, m);
}

/* Recorded calls may have read a tensor that is gone by the time something comes back to them. */
static void what_read_a_removed_tensor_is_refused_or_left_alone(void **unused)
{
    static const float x[] = {1, 2, 3, 4};
    float g[4];
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(2, 2), .kind = TL_INIT_ONES);
    for (int way = 0; way < 4; way++) {
        const uint32_t mark = tl_model_mark(m);
        tl_tensor b = tl_data(m, x, TL_F32, TL_DIMS(2, 2)), y;
        if (way < 2) { /* in a segment, beside the gradient's way or on it */
            const uint32_t begin = tl_segment_begin(t);
            tl_tensor of_b = tl_exp(t, b);
            y = tl_mul(t, w, way == 0 ? tl_data(t, x, TL_F32, TL_DIMS(2, 2)) : of_b);
            assert_int_equal(tl_segment_end(t, begin, &y, 1, false), TL_OK);
            tl_model_rollback(m, mark);
            const tl_status s = tl_backward(t, tl_sum(t, y, TL_ALL, false));
            assert_int_equal(s, way == 0 ? TL_OK : TL_ESTALE);
            if (way == 0)
                assert_int_equal(tl_keep(t, tl_grad(t, w), g, sizeof g), TL_OK);
            else
                assert_failed(t, TL_ESTALE, "dropped by a segment", NULL);
            if (way == 0)
                assert_memory_equal(g, x, sizeof g);
        } else if (way == 2) { /* where a gradient waits */
            y = tl_matmul(t, b, w);
            assert_int_equal(tl_backward(t, tl_sum(t, y, TL_ALL, false), .put_off = true), TL_OK);
            tl_model_rollback(m, mark);
            assert_int_equal(tl_accumulate(t, "w"), TL_ESTALE);
            assert_failed(t, TL_ESTALE, "input 0 of matmul was removed from the model meanwhile",
                          NULL);
        } else { /* where a constant takes a gradient after all */
            tl_tensor c = tl_constant(t, x, TL_F32, TL_DIMS(4));
            tl_mul(t, w, b);
            tl_model_rollback(m, mark);
            assert_int_equal(tl_require_grad(t, c), TL_OK);
        }
        tl_error_clear(t);
        tl_grad_clear(t);
        tl_tape_reset(t);
        assert_false(tl_failed(t));
    }
    tl_free(t, m);
}

const struct CMUnitTest tl_tests_handles[] = {
    cmocka_unit_test(stale_handles),
    cmocka_unit_test(a_value_changed_in_place_has_a_new_handle),
    cmocka_unit_test(models_own_their_handles),
    cmocka_unit_test(the_first_error_sticks),
    cmocka_unit_test(objects_that_could_not_be_made),
    cmocka_unit_test(a_message_speaks_only_while_it_holds),
    cmocka_unit_test(layers_name_their_callers_place),
    cmocka_unit_test(other_calls_name_it_too),
    cmocka_unit_test(modes_nest_and_unwind),
    cmocka_unit_test(no_gradient_scope_and_detach),
    cmocka_unit_test(a_trace_has_shapes_and_no_contents),
    cmocka_unit_test(writing_and_assigning),
    cmocka_unit_test(an_object_of_another_kind_is_no_model),
    cmocka_unit_test(a_handle_of_a_removed_tensor_is_stale),
    cmocka_unit_test(what_read_a_removed_tensor_is_refused_or_left_alone),
};
const size_t tl_tests_handles_count = sizeof tl_tests_handles / sizeof tl_tests_handles[0];
