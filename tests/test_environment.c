/* The caller's floating-point environment decides no bit of what is read, drawn, written, compiled
 * and checked outside of ops, and the locale none of what is said and written. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tally_data.h>

#include "autograd/internal.h"
#include "tensor/print.h"
#include "tests/cases/cases.h"
#include "tests/support/comma.h"
#include "tests/support/environment.h"
#include "tests/support/print_text.h"
#include "tests/support/skip.h"

extern const struct CMUnitTest tl_tests_environment[];
extern const size_t tl_tests_environment_count;

enum { ROOM = 8192 };
static char said[ROOM];
static size_t at;

static void say(const char *text) { at += (size_t)snprintf(said + at, ROOM - at, "%s\n", text); }

/* By its bits: printf is one of those who are tested. */
static void say_f64(double x)
{
    uint64_t u;
    char hex[24];
    memcpy(&u, &x, sizeof u);
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)u);
    say(hex);
}

static void say_hash(tl_tape *t, tl_tensor x)
{
    char hex[65] = "";
    tl_sha256(t, x, hex);
    say(hex);
}

static void reading(tl_tape *t, tl_model *m)
{
    static const double numbers[] = {0x1.234568p-140, 0x1.8p-24, 0.1, 0x1.fffffffffffffp-1030};
    (void)m;
    for (int i = 0; i < 4; i++)
        for (int d = 0; d < TL_DTYPE_COUNT; d++)
            if (tl_dtype_is_float((tl_dtype)d)) {
                say_f64(tl_item(t, tl_scalar(t, (tl_dtype)d, numbers[i])));
                say_hash(t, tl_fill(t, (tl_dtype)d, TL_DIMS(3), numbers[i]));
            }
}

/* Elements, by the calls that read and write one, and in a file. */
static void elements(tl_tape *t, tl_model *m)
{
    static const double numbers[] = {0x1.23p-141, 0x1.8p-24, 0.1, -0x1.fffffffffffffp-1030,
                                     0x1p-133};
    double room[5];
    char hex[41];
    tl_err err = {.status = TL_OK};
    (void)t, (void)m;
    for (int d = 0; d < TL_DTYPE_COUNT; d++) {
        if (!tl_dtype_is_float((tl_dtype)d))
            continue;
        tl_array a = tl_array_make((tl_dtype)d, &TL_DIMS(5), room);
        for (int i = 0; i < 5; i++) {
            tl_array_put(&a, i, numbers[i]);
            say_f64(tl_array_get(&a, i));
        }
        if (tl_arrays_save("environment.npy", NULL, &a, 1, &err) != TL_OK)
            fail_msg("%s", err.message);
        unsigned char byte[20];
        FILE *f = fopen("environment.npy", "rb");
        assert_true(f != NULL && fseek(f, -20, SEEK_END) == 0 && fread(byte, 20, 1, f) == 1);
        fclose(f);
        for (int i = 0; i < 20; i++)
            snprintf(hex + 2 * i, 3, "%02x", byte[i]);
        say(hex);
    }
    remove("environment.npy");
}

static void drawing(tl_tape *t, tl_model *m)
{
    tl_rng_key key = tl_rng_stream(7, "environment");
    double x[9], y[9];
    float z[9];
    (void)t, (void)m;
    tl_rng_fill_normal64(x, 9, key, 1, 2);
    tl_rng_fill_uniform64(y, 9, key, 3, 4);
    tl_rng_fill_uniform32(z, 9, key, 5, 6);
    for (int i = 0; i < 9; i++) {
        say_f64(x[i]);
        say_f64(y[i]);
        say_f64((double)z[i]);
        say_f64(tl_rng_normal64(key, 7, (uint64_t)i));
        say_f64(tl_rng_uniform64(key, 8, (uint64_t)i));
        say_f64((double)tl_rng_uniform32(key, 9, (uint64_t)i));
    }
}

static void elementary(tl_tape *t, tl_model *m)
{
    static double (*const f[])(double) = {tl_f64_exp, tl_f64_log, tl_f64_sin, tl_f64_cos};
    (void)t, (void)m;
    for (int i = 0; i < 4; i++) {
        say_f64(f[i](0.7));
        say_f64(f[i](0x1.8p-1030));
    }
}

static void schedules(tl_tape *t, tl_model *m)
{
    static const tl_schedule s[] = {
        {.kind = TL_COSINE, .warmup = 3, .total = 17, .min_ratio = 0.1},
        {.kind = TL_LINEAR, .warmup = 3, .total = 17, .min_ratio = 0.1}};
    (void)t, (void)m;
    for (int i = 0; i < 36; i++)
        say_f64(tl_schedule_lr(&s[i % 2], 0.01, i / 2));
}

/* First contents, and names: a table of rotary positions is found again by one that holds a number.
 */
static void models(tl_tape *t, tl_model *m)
{
    char hex[65];
    for (int i = 0; i < 2; i++)
        tl_self_attention(t, m, "a", tl_fill(t, TL_F32, TL_DIMS(1, 3, 8), 1), .heads = 2,
                          .rope_base = 10000.1);
    for (int i = 0; i < tl_model_count(m); i++)
        say(tl_model_at(m, i).name);
    say(tl_model_sha256(m, hex) == TL_OK ? hex : "?");
}

static void texts(tl_tape *t, tl_model *m)
{
    static const uint32_t f32[] = {1, 3, 0x12345, 0x3dcccccd};
    static const uint64_t f64[] = {1, 0x3fb999999999999a};
    const tl_op *scale = tl_op_find("scale");
    tl_array a = tl_array_make(TL_F64, &TL_DIMS(3),
                               (double[]){0.12345678901234567, 1.0 / 3, 0x1.8p-1040});
    case_attrs c = {0};
    char array[256] = "", attrs[TL_ATTRS_TEXT] = "", element[TL_ELEMENT_TEXT];
    (void)t, (void)m;
    print_text(array, sizeof array, &a, NULL);
    say(array);
    tl_case_attr(scale, &c, "c", 0.12345678951);
    say(tl_attrs_text(scale, &c, attrs));
    for (int i = 0; i < 4; i++)
        say(tl_element_text(element, TL_F32, &f32[i]));
    for (int i = 0; i < 2; i++)
        say(tl_element_text(element, TL_F64, &f64[i]));
}

static void adds_little(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                        void *ctx)
{
    (void)n_in, (void)n_out, (void)ctx;
    out[0] = tl_abs(t, tl_add(t, tl_neg(t, in[0]),
                              tl_fill(t, TL_F32, TL_DIMS(4),
                                      -0x1.8p-140))); /* were it -0, it would go */
    out[1] = tl_mul(t, tl_scalar(t, TL_F32, 0.1), tl_exp(t, tl_scalar(t, TL_F32, 0.3)));
    out[2] = tl_abs(t, tl_add(t, tl_cast(t, in[0], TL_F64),
                              tl_fill(t, TL_F64, TL_DIMS(4), -0x1.8p-1040))); /* nor this */
}

static void graphs(tl_tape *t, tl_model *m)
{
    static const float x[4] = {0, 0x1p-140f, 1, -0.0f};
    tl_tensor in = tl_data(t, x, TL_F32, TL_DIMS(4)), out[3];
    tl_graph *g = tl_trace(t, adds_little, &in, 1, 3, NULL);
    (void)m;
    for (int round = 0; round < 2 && g != NULL; round++)
        if (tl_graph_run(g, &in, 1, out, 3) == TL_OK)
            for (int i = 0; i < 3; i++)
                say_hash(t, out[i]);
    tl_free(g);
}

typedef struct {
    tl_model *m;
    tl_opt *o;
} trained;

static void a_step(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    const trained *r = ctx;
    (void)n_in, (void)n_out;
    out[0] = tl_sum(t, tl_square(t, tl_linear(t, r->m, "l", in[0], 5)), TL_ALL, false);
    tl_backward(t, out[0]);
    tl_step(r->o, t);
}

/* Rates, powers and norms, of steps that are called and then of compiled ones; and how many numbers
 * there are from 0 to 1. */
static void steps(tl_tape *t, tl_model *m)
{
    trained r = {m, tl_adamw_new(m, .lr = 0.01, .weight_decay = 0.1, .clip = 0.1,
                                 .schedule = {.kind = TL_COSINE, .warmup = 3, .total = 17})};
    tl_compiled *c = tl_compile(t, a_step, 1, &r);
    static const double part[] = {1.0 / 3, 1.0 / 7, 0.1, 1.0 / 49};
    char hex[65];
    for (int i = 0; i < 8; i++) {
        tl_tensor x = tl_fill(t, TL_F64, TL_DIMS(2, 7), 0.3), out;
        if (i < 4)
            a_step(t, &x, 1, &out, 1, &r);
        else
            tl_run(c, &x, 1, &out);
        say_hash(t, out);
        tl_tape_reset(t);
    }
    say(tl_model_sha256(m, hex) == TL_OK ? hex : "?");
    for (int i = 0; i < 4; i++)
        say_hash(t, tl_arange(t, TL_F64, 0, 1, part[i]));
    tl_free(c);
    tl_free(r.o);
}

static tl_tensor curved(tl_tape *t, const tl_tensor *in, int n, void *ctx)
{
    (void)n, (void)ctx;
    return tl_sum(t, tl_tanh(t, tl_square(t, in[0])), TL_ALL, false);
}

static void curve_of(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                     void *ctx)
{
    (void)n_out;
    out[0] = curved(t, in, n_in, ctx);
}

static tl_status as_input(tl_call *c)
{
    c->out[0] = *c->in[0];
    return TL_OK;
}

/* 3*x in f32, 2*x in f64. */
static tl_status three_or_two(tl_call *c)
{
    for (int64_t i = 0; i < tl_array_count(&c->out[0]); i++)
        if (c->in[0]->dtype == TL_F64)
            ((double *)c->out[0].data)[i] = 2 * ((const double *)c->in[0]->data)[i];
        else
            ((float *)c->out[0].data)[i] = 3 * ((const float *)c->in[0]->data)[i];
    return TL_OK;
}

static void three_vjp(tl_vjp *g) { g->dx[0] = tl_scale(g->t, g->dy[0], 3); }

static tl_tensor of_two_minds(tl_tape *t, const tl_tensor *in, int n, void *ctx)
{
    static const tl_op op = {.name = "user_three_or_two",
                             .n_in = 1,
                             .n_out = 1,
                             .shape = as_input,
                             .forward = three_or_two,
                             .vjp = three_vjp};
    (void)ctx;
    return tl_apply1(TL_AT(t), &op, NULL, in, n);
}

static void checks(tl_tape *t, tl_model *m)
{
    tl_tensor x = tl_data(t, ((float[]){0.3f, -1.2f, 0.8f}), TL_F32, TL_DIMS(3));
    tl_tensor one = tl_data(t, ((float[]){1.5f}), TL_F32, TL_DIMS(1));
    tl_gradcheck_report r;
    (void)m;
    tl_gradcheck_with(t, of_two_minds, &one, 1, NULL, &r, .seed = 3, .all = true);
    assert_non_null(strstr(r.text, "in f64 the value is"));
    say(r.text);
    tl_error_clear(t);
    tl_gradcheck_with(t, curved, &x, 1, NULL, &r, .seed = 3);
    say(r.text);
    for (int format = TL_CURVE_TEXT; format <= TL_CURVE_SVG; format++) {
        char *text = NULL;
        size_t size = 0;
        FILE *f = open_memstream(&text, &size);
        tl_gradcheck_curve(t, curved, &x, 1, NULL, 0, 1, f, (tl_curve_format)format);
        fclose(f);
        say(text);
        free(text);
    }
}

static void messages(tl_tape *t, tl_model *m)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    tl_tensor x = tl_zeros(t, TL_F32, TL_DIMS(1000));
    tl_graph *g = tl_trace(t, curve_of, &x, 1, 1, NULL);
    (void)m;
    tl_graph_explain(g, f);
    fclose(f);
    assert_non_null(strstr(text, ".0 KB"));
    say(text);
    free(text);
    tl_dropout(t, x, 1.5);
    say(tl_error(t));
    tl_error_clear(t);
    tl_free(g);
}

/* Right but for subnormals, which it makes zero. */
static tl_status flushing_neg(tl_call *c)
{
    const uint32_t *x = c->in[0]->data;
    uint32_t *y = c->out[0].data;
    for (int64_t i = 0; i < tl_array_count(&c->out[0]); i++)
        y[i] = (x[i] & 0x7f800000u ? x[i] : x[i] & 0x80000000u) ^ 0x80000000u;
    return TL_OK;
}

static void kernels(tl_tape *t, tl_model *m)
{
    static const tl_kernel k = {.op = "neg",
                                .name = "test-flushes",
                                .dtype = TL_F32,
                                .mode = TL_INVARIANT,
                                .run = flushing_neg};
    static bool there;
    char text[512];
    (void)m;
    if (!there)
        there = tl_kernel_register(t, &k) == TL_OK;
    say(tl_kernel_check("neg", TL_F32, "test-flushes", text, sizeof text) > 0 ? "refused"
                                                                              : "taken");
    say(text);
}

static const struct {
    const char *name;
    void (*run)(tl_tape *t, tl_model *m);
} outside[] = {{"reading and filling", reading},
               {"elements", elements},
               {"drawing", drawing},
               {"elementary functions", elementary},
               {"schedules", schedules},
               {"a model", models},
               {"text", texts},
               {"graphs", graphs},
               {"steps", steps},
               {"gradcheck", checks},
               {"a plan and a message", messages},
               {"the probe of a kernel", kernels}};

/* Runs outside[i] in environment e, or where a comma is the decimal point, after the last of them.
 * False: e is changed, or something else than at first is said. */
static bool as_at_first(size_t i, int e)
{
    static char want[ROOM];
    const bool comma = e == environments();
    const char *name = comma ? "a decimal comma" : environment_name(e);
    tl_model *m = tl_model_new(.seed = 3);
    tl_tape *t = tl_tape_new(m);
    at = 0;
    if (comma)
        assert_true(comma_enter());
    else
        environment_enter(e);
    outside[i].run(t, m);
    const bool kept = comma ? comma_leave() : environment_leave(e);
    if (tl_failed(t))
        fail_msg("%s, %s: %s", outside[i].name, name, tl_error(t));
    assert_in_range(at, 1, ROOM - 1);
    if (e == 0)
        memcpy(want, said, ROOM);
    const bool same = kept && strcmp(want, said) == 0;
    if (!same)
        fprintf(stderr, "%s, %s: %s\n%s---\n%s", outside[i].name, name,
                kept ? "other bits" : "the environment is changed", want, said);
    tl_free(t, m);
    return same;
}

static void what_is_outside_of_ops(void **unused)
{
    int differ = 0;
    (void)unused;
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++)
        for (int e = 0; e < environments(); e++)
            differ += !as_at_first(i, e);
    assert_int_equal(differ, 0);
}

static void what_is_written_where_a_comma_is_the_decimal_point(void **unused)
{
    int differ = 0;
    (void)unused;
    if (!comma_enter())
        TL_SKIP();
    comma_leave();
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
        as_at_first(i, 0);
        differ += !as_at_first(i, environments());
    }
    assert_int_equal(differ, 0);
}

const struct CMUnitTest tl_tests_environment[] = {
    cmocka_unit_test(what_is_outside_of_ops),
    cmocka_unit_test(what_is_written_where_a_comma_is_the_decimal_point),
};
const size_t tl_tests_environment_count = sizeof tl_tests_environment /
                                          sizeof tl_tests_environment[0];
