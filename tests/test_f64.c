/* dtypes that are said and not said: an option of f64 means f64, none at all the default, and
 * models in f64 train with every optimizer, called and compiled alike. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "tests/cases/run_model.h"
#include "tests/support/expect.h"

extern const struct CMUnitTest tl_tests_f64[];
extern const size_t tl_tests_f64_count;

static tl_tensor two_ids(tl_tape *t)
{
    return tl_data(t, ((int64_t[]){1, 2}), TL_I64, TL_DIMS(1, 2));
}

static void a_models_dtype_is_that_of_its_config(void **unused)
{
    static const tl_dtype said[] = {TL_DTYPE_DEFAULT, TL_F64, TL_F32, TL_F16, TL_BF16};
    (void)unused;
    for (int i = 0; i < 10; i++) {
        run_way w = {.gpt2 = i & 1, .dtype = said[i / 2]};
        tl_dtype want = w.dtype == TL_DTYPE_DEFAULT ? TL_F32 : w.dtype;
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_kv_cache c = run_cache(m, &w, 1, 4);
        int mode = tl_mode_push(t, TL_NO_GRAD | TL_EVAL);
        tl_tensor z = run_logits(t, m, &w, two_ids(t), (tl_decoder_options){.columns.cache = &c});
        tl_mode_pop(t, mode);
        if (tl_failed(t) || tl_dtype_of(t, z) != want || tl_dtype_of(t, c.k) != want)
            fail_msg("%s of %s: %s", w.gpt2 ? "gpt2" : "llama", tl_dtype_name(w.dtype),
                     tl_error(t));
        for (int k = 0; k < tl_model_count(m); k++) {
            tl_named p = tl_model_at(m, k);
            if (p.param && p.array.dtype != want)
                fail_msg("'%s' is %s", p.name, tl_dtype_name(p.array.dtype));
            if (strncmp(p.name, "rope", 4) == 0) /* no coarser than what it turns */
                assert_int_equal(p.array.dtype, tl_dtype_compute(want));
        }
        tl_free(t, m);
    }
}

static void a_layers_dtype_is_that_of_its_option(void **unused)
{
    static const tl_dtype of_x[] = {TL_F64, TL_F32};
    (void)unused;
    for (int i = 0; i < 6; i++) {
        tl_dtype said = (tl_dtype[]){TL_DTYPE_DEFAULT, TL_F64, TL_F32}[i / 2];
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_tensor x = tl_fill(t, of_x[i & 1], TL_DIMS(2, 3), 1);
        tl_linear(t, m, "l", x, 4, .dtype = said); /* of two dtypes, an error, not another dtype */
        assert_int_equal(tl_model_at(m, tl_model_count(m) - 1).array.dtype,
                         said != TL_DTYPE_DEFAULT ? said : of_x[i & 1]);
        tl_free(t, m);
    }
}

static void no_dtype_is_an_error(void **unused)
{
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_tensor x = tl_fill(t, TL_F32, TL_DIMS(2, 2), 1);
    const tl_dtype none = TL_DTYPE_DEFAULT;
    const double number = 1;
    (void)unused;
    for (int i = 0; i < 11; i++) {
        tl_tensor y = TL_NONE;
        switch (i) {
        case 0: y = tl_fill(t, none, TL_DIMS(2), 1); break;
        case 1: y = tl_scalar(t, none, 1); break;
        case 2: y = tl_cast(t, x, none); break;
        case 3: y = tl_data(t, (const void *)&number, none, TL_DIMS(1)); break;
        case 4: y = tl_param(t, m, "p", none, TL_DIMS(2), TL_INIT_ONES, 1); break;
        case 5: y = tl_buffer(t, m, "b", none, TL_DIMS(2)); break;
        case 6: y = tl_one_hot(t, two_ids(t), 3, none); break;
        case 7: y = tl_matmul_to(t, x, x, none); break;
        case 8:
            y = tl_embed_at(TL_AT(t), m, "e", two_ids(t), 3, 2, 1, none, (tl_layer_options){0});
            break;
        case 9: y = tl_bound(t, (const void *)&number, none, TL_DIMS(1)); break;
        case 10: y = tl_constant(t, (const void *)&number, none, TL_DIMS(1)); break;
        }
        if (!tl_is_none(y) || tl_error_status(t) != TL_EDTYPE ||
            strstr(tl_error(t), "dtype") == NULL)
            fail_msg("call %d: %s", i, tl_error(t));
        tl_error_clear(t);
    }
    assert_int_equal(tl_model_count(m), 0);
    assert_true(tl_is_none(tl_kv_cache_new(m, none, 1, 1, 1, 1, 1).k));
    assert_int_equal(tl_error_status(m), TL_EDTYPE);
    tl_free(t, m);
}

/* ---- training ---- */

enum { ROWS = 4, COLUMNS = 6, STEPS = 24 };

typedef struct {
    run_way way;
    tl_model *m;
    tl_opt *o;
} run;

static void a_step(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    run *r = ctx;
    (void)n_in, (void)n_out;
    tl_decoder_options o = {.sample = tl_scalar(t, TL_I64, 0)};
    tl_tensor z = run_logits(t, r->m, &r->way, in[0], o);
    out[0] = tl_cross_entropy(t, z, in[1], TL_MEAN);
    tl_backward(t, out[0]);
    tl_step(r->o, t);
}

static tl_opt *optimizer(tl_model *m, int kind)
{
    switch (kind) {
    case 0: return tl_sgd_new(m, .lr = 0.3, .momentum = 0.5, .weight_decay = 1e-3);
    case 1:
        return tl_sgd_new(m, .lr = 0.3, .momentum = 0.5, .nesterov = true, .weight_decay = 1e-3,
                          .decoupled = true);
    case 2: return tl_adam_new(m, .lr = 1e-2, .weight_decay = 1e-3);
    default: return tl_adamw_new(m, .lr = 1e-2, .weight_decay = 0.1, .clip = 1);
    }
}

/* The hash of the weights after STEPS; the losses of the first and the last step. */
static void train(const run_way *w, int kind, bool compiled, char hash[65], double loss[2])
{
    run r = {.way = *w, .m = tl_model_new(.seed = 5)};
    tl_tape *t = tl_tape_new(r.m);
    r.o = optimizer(r.m, kind);
    tl_compiled *c = tl_compile(t, a_step, 1, &r);
    for (int s = 0; s < STEPS; s++) {
        int64_t ids[ROWS * COLUMNS], next[ROWS * COLUMNS];
        tl_tensor in[2], out;
        for (int i = 0; i < ROWS * COLUMNS; i++) {
            ids[i] = i * 7 % RUN_VOCAB;
            next[i] = (ids[i] * 3 + 1) % RUN_VOCAB;
        }
        in[0] = tl_data(t, ids, TL_I64, TL_DIMS(ROWS, COLUMNS));
        in[1] = tl_data(t, next, TL_I64, TL_DIMS(ROWS, COLUMNS));
        if (compiled)
            tl_run(c, in, 2, &out);
        else
            a_step(t, in, 2, &out, 1, &r);
        if (tl_failed(t))
            fail_msg("step %d: %s", s, tl_error(t));
        loss[s > 0] = tl_item(t, out);
        tl_tape_reset(t);
    }
    for (int k = 0; k < tl_model_count(r.m); k++) /* parameters, states and tables */
        if (tl_model_at(r.m, k).array.dtype != w->dtype)
            fail_msg("'%s' is %s", tl_model_at(r.m, k).name,
                     tl_dtype_name(tl_model_at(r.m, k).array.dtype));
    assert_int_equal(tl_model_sha256(r.m, hash), TL_OK);
    tl_free(c);
    tl_free(r.o, t, r.m);
}

static void models_in_f64_train(void **unused)
{
    (void)unused;
    for (int gpt2 = 0; gpt2 < 2; gpt2++)
        for (int kind = 0; kind < 4; kind++) {
            run_way w = {.gpt2 = gpt2, .dtype = TL_F64}, narrow = {.gpt2 = gpt2, .dtype = TL_F32};
            char called[65], compiled[65], other[65];
            double loss[2], again[2], f32[2];
            train(&w, kind, false, called, loss);
            train(&w, kind, true, compiled, again);
            train(&narrow, kind, false, other, f32);
            assert_string_equal(called, compiled);
            assert_true(loss[0] == again[0] && loss[1] == again[1]);
            if (!(loss[1] < 0.8 * loss[0]))
                fail_msg("%s, optimizer %d: loss %g, then %g", gpt2 ? "gpt2" : "llama", kind,
                         loss[0], loss[1]);
            /* the f32 run is another one, nearby */
            assert_true(loss[0] != f32[0] && fabs(loss[0] - f32[0]) < 1e-5 * loss[0]);
        }
}

const struct CMUnitTest tl_tests_f64[] = {
    cmocka_unit_test(a_models_dtype_is_that_of_its_config),
    cmocka_unit_test(a_layers_dtype_is_that_of_its_option),
    cmocka_unit_test(no_dtype_is_an_error),
    cmocka_unit_test(models_in_f64_train),
};
const size_t tl_tests_f64_count = sizeof tl_tests_f64 / sizeof *tl_tests_f64;
