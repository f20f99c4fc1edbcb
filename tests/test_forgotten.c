/* What users forget or mistake - data of another type, no data, a learning rate, a width, a name, a
 * reset, a look at the error - is an error that says so, or right. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tally_data.h>
#include <tally_extend.h>

#ifndef TL_ROOT
#define TL_ROOT "."
#endif

extern const struct CMUnitTest tl_tests_forgotten[];
extern const size_t tl_tests_forgotten_count;

/* The object has failed with this status, and its message holds every word given (up to NULL); it
 * is cleared. */
static void assert_said(void *object, tl_status want, ...)
{
    va_list ap;
    va_start(ap, want);
    if (!tl_failed(object) || tl_error_status(object) != want)
        fail_msg("%s wanted, got %s: %s", tl_status_name(want),
                 tl_status_name(tl_error_status(object)), tl_error(object));
    for (const char *word; (word = va_arg(ap, const char *)) != NULL;)
        if (strstr(tl_error(object), word) == NULL)
            fail_msg("'%s' is missing in: %s", word, tl_error(object));
    va_end(ap);
    tl_error_clear(object);
    assert_false(tl_failed(object));
}

/* ---- data ---- */

/* A BOOL that is another number would count as that number here, and as 1 in files and hashes. */
static void a_bool_is_0_or_1(void **unused)
{
    (void)unused;
    const unsigned char bytes[] = {1, 0, 255};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_tensor flags = tl_buffer(t, m, "flags", TL_BOOL, TL_DIMS(3));
    assert_int_equal(tl_write(m, flags, bytes, 3), TL_EDOMAIN);
    assert_non_null(strstr(tl_error(m), "tl_write: element 2 of BOOL data is 255"));
    tl_error_clear(m);
    assert_int_equal(tl_write(m, flags, (unsigned char[]){1, 0, 1}, 3), TL_OK);
    for (int i = 0; i < 3; i++) {
        assert_true(tl_is_none(i == 0   ? tl_data(t, bytes, TL_BOOL, TL_DIMS(3))
                               : i == 1 ? tl_constant(t, bytes, TL_BOOL, TL_DIMS(3))
                                        : tl_bound(t, bytes, TL_BOOL, TL_DIMS(3))));
        assert_int_equal(tl_error_status(t), TL_EDOMAIN);
        tl_error_clear(t);
    }
    assert_true(tl_is_none(tl_data(m, bytes, TL_BOOL, TL_DIMS(3))));
    tl_error_clear(m);
    tl_free(t, m);
}

/* Every C type with every dtype, as a pointer, an array, rows and rows of rows, const and not. */
#define FORMS(type, stored)                                                                       \
    do {                                                                                          \
        static type one[8], two[2][4], three[2][2][2];                                            \
        static const type fixed[8], rows[2][4];                                                   \
        type *p = one;                                                                            \
        for (tl_dtype d = TL_F64; d < TL_DTYPE_COUNT; d++) {                                      \
            tl_tensor x[] = {                                                                     \
                tl_data(t, one, d, TL_DIMS(4)),     tl_data(t, p, d, TL_DIMS(4)),                 \
                tl_data(t, two, d, TL_DIMS(2, 2)),  tl_data(t, three, d, TL_DIMS(1, 2, 2)),       \
                tl_data(t, fixed, d, TL_DIMS(4)),   tl_data(t, rows, d, TL_DIMS(4)),              \
                tl_data(t, &one, d, TL_DIMS(4)),    tl_data(t, &one[1], d, TL_DIMS(1)),           \
                tl_data(t, two[1], d, TL_DIMS(4)),  tl_data(t, ((type[]){0, 1}), d, TL_DIMS(2)),  \
                tl_constant(t, one, d, TL_DIMS(4)), tl_bound(t, one, d, TL_DIMS(4))};             \
            const void *any = one;                                                                \
            for (size_t i = 0; i < sizeof x / sizeof *x; i++)                                     \
                assert_int_equal(tl_is_none(x[i]), !(stored));                                    \
            if (!(stored))                                                                        \
                assert_said(t, TL_EDTYPE, "tl_data", #type, tl_dtype_name(d), "test_forgotten.c", \
                            NULL);                                                                \
            assert_false(tl_is_none(tl_data(t, any, d, TL_DIMS(1))));                             \
            assert_false(tl_is_none(tl_data(t, (char *)one, d, TL_DIMS(1))));                     \
            tl_tensor y = tl_data(m, two, d, TL_DIMS(2, 2));                                      \
            assert_int_equal(tl_is_none(y), !(stored));                                           \
            if (!(stored))                                                                        \
                assert_said(m, TL_EDTYPE, "tl_data", #type, tl_dtype_name(d), "test_forgotten.c", \
                            NULL);                                                                \
        }                                                                                         \
    } while (0)

static void data_have_the_type_of_their_dtype(void **unused)
{
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    (void)unused;
    FORMS(float, d == TL_F32);
    FORMS(double, d == TL_F64);
    FORMS(_Bool, d == TL_BOOL);
    FORMS(signed char, false);
    FORMS(unsigned char, d == TL_BOOL);
    FORMS(short, false);
    FORMS(unsigned short, d == TL_F16 || d == TL_BF16);
    FORMS(int, false);
    FORMS(unsigned, false);
    FORMS(long, d == TL_I64);
    FORMS(unsigned long, d == TL_I64);
    FORMS(long long, d == TL_I64);
    FORMS(unsigned long long, d == TL_I64);
    tl_free(t, m);
}

static void rows_apart_and_labels_of_ints(void **unused)
{
    tl_tape *t = tl_tape_new(NULL);
    static float a[3], b[3];
    float *rows[2] = {a, b};
    const float *const fixed[2] = {a, b};
    struct {
        float x, y;
    } points[2] = {{1, 2}, {3, 4}};
    static double four[2][2][2][2];
    int labels[4] = {0, 1, 1, 0};
    (void)unused;
    assert_true(tl_is_none(tl_data(t, rows, TL_F32, TL_DIMS(2, 3))));
    assert_said(t, TL_EDTYPE, "pointers", "float *", NULL);
    assert_true(tl_is_none(tl_data(t, fixed, TL_F32, TL_DIMS(2, 3))));
    assert_said(t, TL_EDTYPE, "pointers", NULL);
    assert_true(tl_is_none(tl_data(t, labels, TL_I64, TL_DIMS(4))));
    assert_said(t, TL_EDTYPE, "int", "I64", "int64_t", NULL);
    float out[4];
    assert_int_equal(tl_keep(t, tl_data(t, points, TL_F32, TL_DIMS(2, 2)), out, sizeof out), TL_OK);
    assert_memory_equal(out, points, sizeof out);
    assert_false(tl_is_none(tl_data(t, four, TL_F64, TL_DIMS(16))));
    assert_false(tl_failed(t));
    tl_free(t);
}

/* Data that end before their shape does. Of a parameter's array nothing is known. */
static tl_tensor of_unknown_size(tl_tape *t, const float *x)
{
    return tl_data(t, x, TL_F32, TL_DIMS(2));
}

static void data_have_the_size_of_their_shape(void **unused)
{
    static float x[100][2];
    static double y[4];
    static const int64_t z[2];
    float(*part)[2] = &x[50];
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    assert_true(tl_is_none(tl_data(t, x, TL_F32, TL_DIMS(200, 2))));
    assert_said(t, TL_ESHAPE, "tl_data: F32 of that shape has 1600 bytes", "end after 800",
                "test_forgotten.c", NULL);
    assert_true(tl_is_none(tl_data(t, &x[98], TL_F32, TL_DIMS(5))));
    assert_said(t, TL_ESHAPE, "20 bytes", "end after 16", NULL);
    assert_true(tl_is_none(tl_constant(t, y, TL_F64, TL_DIMS(5))));
    assert_said(t, TL_ESHAPE, "tl_constant", "end after 32", NULL);
    assert_true(tl_is_none(tl_bound(t, y, TL_F64, TL_DIMS(5))));
    assert_said(t, TL_ESHAPE, "tl_bound", "end after 32", NULL);
    assert_true(tl_is_none(tl_data(m, z, TL_I64, TL_DIMS(3))));
    assert_said(m, TL_ESHAPE, "I64 of that shape has 24", "end after 16", "test_forgotten.c", NULL);
    const tl_array short_one = tl_samples(TL_F64, TL_DIMS(5, 1), y);
    assert_int_equal(tl_loader_new(t, "it", &short_one, 1, .batch = 1).n, 0);
    assert_said(t, TL_ESHAPE, "array 0: F64 of that shape has 40 bytes", "end after 32", NULL);
    assert_false(tl_is_none(tl_data(t, x, TL_F32, TL_DIMS(200))));
    assert_false(tl_is_none(tl_data(t, part, TL_F32, TL_DIMS(50, 2))));
    assert_false(tl_is_none(tl_data(t, &x[50], TL_F32, TL_DIMS(50, 2))));
    assert_false(tl_is_none(of_unknown_size(t, x[0])));
    /* What is read goes where it fits; integers may take the bits of anything. */
    tl_tensor f = tl_data(t, x, TL_F32, TL_DIMS(8)), n = tl_data(t, z, TL_I64, TL_DIMS(2));
    uint32_t bits[8];
    double wide[4] = {0}, pair[2];
    float few[5];
    assert_int_equal(tl_keep(t, n, pair, sizeof pair), TL_EDTYPE);
    assert_said(t, TL_EDTYPE, "tl_keep: the data are of the C type double, but I64 is stored as",
                NULL);
    assert_int_equal(tl_keep(t, f, wide, sizeof wide), TL_EDTYPE);
    assert_said(t, TL_EDTYPE, "double, but F32 is stored as float", NULL);
    double *apart[1] = {wide};
    assert_int_equal(tl_keep(t, tl_data(t, wide, TL_F64, TL_DIMS(1)), apart, 8), TL_EDTYPE);
    assert_said(t, TL_EDTYPE, "tl_keep: the data are pointers (double *)", NULL);
    assert_int_equal(tl_keep(t, f, few, 32), TL_ESHAPE);
    assert_said(t, TL_ESHAPE, "has 32 bytes, but the data given end after 20", NULL);
    assert_int_equal(tl_keep(t, f, bits, sizeof bits), TL_OK);
    assert_int_equal(tl_keep(t, n, (void *)pair, sizeof pair), TL_OK);
    static struct { /* whose elements begin in what would be its padding */
        double scale;
        int n;
        float at[];
    } row = {1, 6, {1, 2, 3, 4, 5, 6}};
    assert_false(tl_is_none(tl_data(t, row.at, TL_F32, TL_DIMS(6))));
    assert_false(tl_failed(t));
    const tl_array no_shape = tl_samples(TL_F64, TL_DIMS(-5, 1), y);
    assert_int_equal(tl_loader_new(t, "it", &no_shape, 1, .batch = 1).n, 0);
    assert_said(t, TL_EDOMAIN, "from -5 samples", NULL);
    tl_free(t, m);
}

static void no_data(void **unused)
{
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    float *none = NULL, out[6] = {1, 1, 1, 1, 1, 1};
    static const float zeros[6];
    (void)unused;
    assert_true(tl_is_none(tl_data(t, NULL, TL_F32, TL_DIMS(2, 3))));
    assert_said(t, TL_EUSAGE, "F32 [2, 3]", "tl_zeros", "tl_fill", "test_forgotten.c", NULL);
    assert_true(tl_is_none(tl_data(m, none, TL_F32, TL_DIMS(2, 3))));
    assert_said(m, TL_EUSAGE, "F32 [2, 3]", "tl_zeros", "test_forgotten.c", NULL);
    assert_true(tl_is_none(tl_bound(t, none, TL_F32, TL_DIMS(2, 3))));
    assert_said(t, TL_EUSAGE, "F32 [2, 3]", NULL);
    assert_false(
        tl_is_none(tl_data(t, NULL, TL_F32, TL_DIMS(0, 3)))); /* there is nothing to give */
    assert_false(tl_is_none(tl_data(m, none, TL_F32, TL_DIMS(3, 0))));
    tl_tensor z[2] = {tl_zeros(t, TL_F32, TL_DIMS(2, 3)), tl_zeros(m, TL_F32, TL_DIMS(2, 3))};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tl_keep(t, z[i], out, sizeof out), TL_OK);
        assert_memory_equal(out, zeros, sizeof out);
    }
    assert_int_equal(tl_require_grad(t, z[0]), TL_OK);
    assert_true(tl_is_none(tl_zeros(m, TL_F32, TL_DIMS(-1))));
    assert_said(m, TL_ESHAPE, "tl_zeros", "test_forgotten.c", NULL);
    assert_true(tl_is_none(tl_zeros(t, TL_F32, TL_DIMS(-1))));
    assert_said(t, TL_ESHAPE, "tl_zeros", "test_forgotten.c", NULL);
    tl_free(t, m);
}

/* ---- a reset ---- */

typedef struct {
    tl_model *m;
    tl_tape *t;
    tl_opt *o;
    tl_compiled *c;
    tl_tensor in[2];
    int steps; /* of one call of the program */
    void **victim;
} run;

/* One micro-batch of two samples: the program that the tests below repeat. */
static void micro_batch(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *m)
{
    tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(2, 3), .kind = TL_INIT_ONES);
    (void)n;
    tl_tensor y = tl_sum(t, tl_tanh(t, tl_matmul(t, in[0], w)), TL_ALL, false);
    tl_backward(t, y);
    if (n_out > 0)
        out[0] = y;
}

static void clears_first(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *m)
{
    tl_grad_clear(t);
    micro_batch(t, in, n, out, n_out, m);
}

/* Nothing goes on where the gradients before have been dropped, called or compiled. */
static void a_program_that_clears_first_is_no_second_micro_batch(void **unused)
{
    static const float x[] = {1, 2, 3, 4};
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_compiled *c = tl_compile(t, clears_first, 1, m);
    tl_mode_push(t, TL_STRICT);
    for (int compiled = 0; compiled < 2; compiled++) {
        for (int i = 0; i < 3; i++) {
            tl_tensor in = tl_data(t, x, TL_F32, TL_DIMS(2, 2)), y;
            if (compiled)
                tl_run(c, &in, 1, &y);
            else
                clears_first(t, &in, 1, NULL, 0, m);
            assert_string_equal(tl_error(t), "");
        }
        tl_tape_reset(t);
    }
    tl_free(c, t, m);
}

static void a_reset_between_micro_batches(void **unused)
{
    static const float x[] = {1, 2, 3, 4};
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_compiled *c = tl_compile(t, micro_batch, 1, m);
    for (int way = 0; way < 8; way++) {
        const bool compiled = way & 1, strict = !(way & 2), reset = way & 4;
        const int depth = tl_mode_push(t, strict ? TL_STRICT : TL_INVARIANT);
        for (int i = 0; i < 2; i++) {
            tl_tensor in = tl_data(t, x, TL_F32, TL_DIMS(2, 2)), y;
            if (compiled)
                tl_run(c, &in, 1, &y);
            else
                micro_batch(t, &in, 1, NULL, 0, m);
            assert_int_equal(tl_failed(t), strict && !reset && i > 0);
            if (reset)
                tl_tape_reset(t);
        }
        if (tl_failed(t))
            assert_said(t, TL_EUSAGE, "TL_STRICT: call 2 runs the program of call 1 again",
                        "each micro-batch needs a tl_tape_reset", "record both before the first",
                        NULL);
        tl_mode_pop(t, depth);
        tl_error_clear(t);
        tl_grad_clear(t);
        tl_tape_reset(t);
    }
    /* Two losses in each: the third call is the first one again. */
    tl_mode_push(t, TL_STRICT);
    for (int i = 0; i < 2; i++) {
        tl_tensor in = tl_data(t, x, TL_F32, TL_DIMS(2, 2)),
                  y = tl_matmul(t, in, tl_model_find(m, "w"));
        tl_tensor tanh = tl_sum(t, tl_tanh(t, y), TL_ALL, false);
        assert_int_equal(tl_backward(t, tanh, .retain = true), i == 0 ? TL_OK : TL_EUSAGE);
        tl_backward(t, tl_sum(t, tl_sin(t, y), TL_ALL, false));
    }
    assert_said(t, TL_EUSAGE, "TL_STRICT: call 3 runs the program of call 1 again", NULL);
    tl_mode_pop(t, 0);
    tl_grad_clear(t);
    tl_tape_reset(t);
    /* Several backwards of what was recorded before the first, of other programs, or ragged. */
    tl_mode_push(t, TL_STRICT);
    for (int way = 0; way < 4; way++) {
        tl_tensor w = tl_model_find(m, "w"), in = tl_data(t, x, TL_F32, TL_DIMS(2, 2)), y[3];
        for (int i = 0; i < 3; i++)
            y[i] = tl_sum(t, tl_tanh(t, tl_matmul(t, in, w)), TL_ALL, false);
        assert_int_equal(tl_backward(t, y[0], .ragged = way == 3), TL_OK);
        if (way == 0)
            assert_int_equal(tl_backward(t, y[1]), TL_OK);
        tl_tensor z = tl_tanh(t, tl_matmul(t, tl_data(t, x, TL_F32, TL_DIMS(2, 2)), w));
        if (way == 1)
            z = tl_square(t, z);
        tl_backward(t, tl_sum(t, z, TL_ALL, false), .ragged = way == 2);
        assert_int_equal(tl_failed(t), way == 0); /* it was recorded since the second */
        tl_error_clear(t);
        tl_grad_clear(t);
        tl_tape_reset(t);
    }
    tl_free(c, t, m);
}

/* Arrays of several elements stand as they are in a call: their commas end no argument of a macro.
 */
static void sum_of(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    (void)n, (void)n_out, (void)ctx;
    out[0] = tl_sum(t, tl_mul(t, in[0], in[1]), TL_ALL, false);
}

static tl_tensor product_of(tl_tape *t, const tl_tensor *in, int n, void *ctx)
{
    (void)n, (void)ctx;
    return tl_sum(t, tl_mul(t, in[0], in[1]), TL_ALL, false);
}

static void arrays_in_place(void **unused)
{
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    const tl_shape s = TL_DIMS(2);
    tl_tensor a = tl_data(t, ((double[]){1, 2}), TL_F64, s), part[2], y, dx[2],
              b = tl_data(t, ((double[]){3, 4}), TL_F64, s);
    (void)unused;
    tl_require_grad(t, a);
    tl_require_grad(t, b);
    y = tl_concat(t, (tl_tensor[]){a, b}, 2, 0);
    tl_split_sizes(t, y, (int64_t[]){1, 3}, 2, 0, part);
    assert_int_equal(tl_shape_of(t, part[1]).dim[0], 3);
    y = tl_sum(t, tl_square(t, tl_stack(t, (tl_tensor[]){a, b}, 2, 0)), TL_ALL, false);
    assert_true(tl_item(t, y) == 30);
    tl_gradients(t, y, (tl_tensor[]){a, b}, 2, TL_NONE, dx);
    assert_true(tl_item(t, tl_select(t, dx[0], 0, 1)) == 4);
    assert_int_equal(tl_gradcheck(t, product_of, (tl_tensor[]){a, b}, 2, NULL), TL_RIGHT);
    tl_compiled *c = tl_compile(t, sum_of, 1, NULL);
    tl_run(c, (tl_tensor[]){tl_detach(t, a), tl_detach(t, b)}, 2, &y);
    assert_true(tl_item(t, y) == 11);
    assert_int_equal(tl_error_status(t), TL_OK);
    tl_free(c, t, m);
}

static tl_tensor net(tl_tape *t, const tl_tensor *in, tl_model *m)
{
    return tl_mean(t, tl_square(t, tl_sub(t, tl_tanh(t, tl_linear(t, m, "l", in[0], 2)), in[1])),
                   TL_ALL, false);
}

static void program(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    run *r = ctx;
    (void)n;
    (void)n_out;
    for (int i = 0; i < r->steps; i++) {
        out[0] = net(t, in, r->m);
        tl_backward(t, out[0]);
        tl_step(r->o, t);
    }
}

static run begin(int steps)
{
    static const float x[3][4] = {{1, -2, 3, 4}, {2, 1, 1, 0}, {1, 1, 2, 2}}, y[3][2] = {{1, 0}};
    run r = {.m = tl_model_new(.seed = 3), .steps = steps};
    r.in[0] = tl_data(r.m, x, TL_F32, TL_DIMS(3, 4));
    r.in[1] = tl_data(r.m, y, TL_F32, TL_DIMS(3, 2));
    r.t = tl_tape_new(r.m);
    r.o = tl_adamw_new(r.m, .lr = 1e-2);
    return r;
}

static void once(run *r, bool compiled)
{
    tl_tensor loss;
    if (!compiled) {
        program(r->t, r->in, 2, &loss, 1, r);
        return;
    }
    if (r->c == NULL)
        r->c = tl_compile(r->t, program, 1, r);
    tl_run(r->c, r->in, 2, &loss);
}

static void end(run *r) { tl_free(r->c, r->o, r->t, r->m); }

static void more_than_three_steps_without_a_reset(void **unused)
{
    (void)unused;
    for (int compiled = 0; compiled < 2; compiled++) {
        run r = begin(1);
        char before[65], after[65];
        for (int i = 0; i < 3; i++)
            once(&r, compiled);
        assert_string_equal(tl_error(r.t), "");
        tl_model_sha256(r.m, before);
        once(&r, compiled);
        tl_model_sha256(r.m, after);
        assert_int_equal(tl_opt_steps(r.o), 3); /* the fourth has not happened */
        assert_string_equal(before, after);
        assert_said(r.t, TL_EUSAGE, "4 optimizer steps", "3 are the limit", "tl_tape_reset",
                    "tl_tape_limit", "test_forgotten.c", NULL);
        for (int i = 0; i < 9; i++) { /* and with one it never comes to that */
            tl_tape_reset(r.t);
            once(&r, compiled);
        }
        assert_string_equal(tl_error(r.t), "");
        assert_int_equal(tl_opt_steps(r.o), 12);
        end(&r);
    }
}

static void a_recording_of_several_steps_says_so(void **unused)
{
    (void)unused;
    for (int compiled = 0; compiled < 2; compiled++)
        for (int limit = 0; limit < 8; limit += 5) { /* any number, and 5 */
            run r = begin(5);
            once(&r, compiled);
            assert_int_equal(tl_opt_steps(r.o), compiled ? 0 : 3); /* a trace makes all or none */
            assert_said(r.t, TL_EUSAGE, "4 optimizer steps", NULL);
            tl_tape_reset(r.t);
            int64_t done = tl_opt_steps(r.o);
            tl_tape_limit(r.t, limit);
            once(&r, compiled);
            assert_string_equal(tl_error(r.t), "");
            assert_int_equal(tl_opt_steps(r.o), done + 5);
            once(&r, compiled);
            if (limit == 0)
                assert_int_equal(tl_opt_steps(r.o), done + 10);
            else
                assert_said(r.t, TL_EUSAGE, compiled ? "10 optimizer" : "6 optimizer",
                            "5 are the limit", NULL);
            end(&r);
        }
}

/* What a recording takes grows with it, not with its square; with segments, too. */
static void records_grow_linearly(void **unused)
{
    enum { STEPS = 400 };
    (void)unused;
    for (int segments = 0; segments < 2; segments++) {
        run r = begin(1);
        size_t half = 0;
        tl_tape_limit(r.t, 0);
        for (int i = 0; i < STEPS; i++) {
            uint32_t s = tl_segment_begin(r.t);
            tl_tensor y = net(r.t, r.in, r.m);
            if (segments)
                tl_segment_end(r.t, s, &y, 1, true);
            tl_backward(r.t, y);
            tl_step(r.o, r.t);
            if (i == STEPS / 2 - 1)
                half = tl_memory_stats(r.t).records;
        }
        assert_string_equal(tl_error(r.t), "");
        assert_int_equal(tl_opt_steps(r.o), STEPS);
        size_t whole = tl_memory_stats(r.t).records;
        if (whole > 2 * half + half / 8 || whole < half)
            fail_msg("%zu bytes after %d steps, %zu after %d", half, STEPS / 2, whole, STEPS);
        end(&r);
    }
}

/* ---- numbers ---- */

static void a_learning_rate(void **unused)
{
    (void)unused;
    const tl_opt_options none[] = {{.momentum = 0.9},
                                   {.lr = 0, .schedule = {TL_COSINE, 0, 10, 0.1, 0}},
                                   {.lr = 1, .schedule = {TL_LINEAR, 2, 0, 0, 0}},
                                   {.lr = 1, .schedule = {.kind = TL_WARMUP_STABLE_DECAY}}};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        for (int kind = 0; kind < 3; kind++) {
            run r = begin(1);
            tl_free(r.o);
            r.o = kind == 0   ? tl_sgd_new_at(r.m, none[i], __FILE__, __LINE__)
                  : kind == 1 ? tl_adamw_new_at(r.m, none[i], __FILE__, __LINE__)
                              : tl_adam_new_at(r.m, none[i], __FILE__, __LINE__);
            assert_true(tl_failed(r.o));
            assert_non_null(strstr(tl_error(r.o), i < 2 ? "lr is 0" : "schedule.total is 0"));
            once(&r, false);
            assert_int_equal(tl_opt_steps(r.o), 0);
            assert_said(r.t, TL_EDOMAIN, "tl_step", i < 2 ? "lr is 0" : "schedule.total is 0",
                        "test_forgotten.c", NULL);
            end(&r);
        }
}

/* Who wants 0 has it from a schedule, or for a group. */
static void a_learning_rate_of_zero_on_purpose(void **unused)
{
    (void)unused;
    for (int i = 0; i < 2; i++) {
        run r = begin(1);
        char before[65], after[65];
        tl_free(r.o);
        r.o = i == 0 ? tl_sgd_new(r.m, .lr = 1, .schedule = {TL_LINEAR, 0, 1, 0, 0})
                     : tl_sgd_new(r.m, .lr = 1);
        once(&r, false);
        tl_tape_reset(r.t);
        if (i == 1)
            tl_opt_group(r.o, "l.*", 0, 0);
        else
            assert_true(tl_opt_lr(r.o) == 0);
        tl_model_sha256(r.m, before);
        once(&r, false);
        tl_model_sha256(r.m, after);
        assert_string_equal(tl_error(r.t), "");
        assert_int_equal(tl_opt_steps(r.o), 2);
        assert_string_equal(before, after);
        end(&r);
    }
}

static const int64_t tokens[6] = {1, 2, 3, 4, 0, 1};

static void every_number_of_a_config(void **unused)
{
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_tensor ids = tl_data(t, tokens, TL_I64, TL_DIMS(2, 3));
    static const char *const names[] = {"vocab", "width", "layers", "heads", "hidden"};
    for (int i = 0; i < 5; i++)
        for (int64_t n = -1; n < 1; n++) {
            tl_llama_config c = {.vocab = 5, .width = 8, .layers = 1, .heads = 2, .hidden = 16};
            int64_t *const field[] = {&c.vocab, &c.width, &c.layers, &c.heads, &c.hidden};
            char is[32];
            *field[i] = n;
            snprintf(is, sizeof is, "%s is %lld", names[i], (long long)n);
            assert_true(tl_is_none(tl_llama(t, m, &c, ids)));
            assert_said(t, TL_ESHAPE, "tl_llama", is, "test_forgotten.c", NULL);
            assert_int_equal(tl_model_count(m), 0);
            tl_gpt2_config g = {c.vocab, c.width, c.layers, c.heads, c.hidden, 3, 0, 0, TL_F32, 0};
            if (i == 4 && n == 0)
                continue; /* four times the width, as in the paper */
            assert_true(tl_is_none(tl_gpt2(t, m, &g, ids)));
            assert_said(t, TL_ESHAPE, "tl_gpt2", is, "test_forgotten.c", NULL);
            assert_int_equal(tl_model_count(m), 0);
        }
    tl_llama_config c = {.vocab = 5, .width = 8, .layers = 1, .heads = 2, .hidden = 16};
    tl_gpt2_config g = {.vocab = 5, .width = 8, .layers = 1, .heads = 2};
    c.pairing = g.pairing = 7;
    assert_true(tl_is_none(tl_llama(t, m, &c, ids)));
    assert_said(t, TL_EDOMAIN, "tl_llama", "pairing is 7", "test_forgotten.c", NULL);
    assert_true(tl_is_none(tl_gpt2(t, m, &g, ids)));
    assert_said(t, TL_EDOMAIN, "tl_gpt2", "pairing is 7", "test_forgotten.c", NULL);
    assert_int_equal(tl_model_count(m), 0);
    tl_self_attention(t, m, "a", tl_zeros(t, TL_F32, TL_DIMS(1, 2, 4)));
    assert_said(t, TL_ESHAPE, "tl_self_attention", "'a'", "heads = 0", "test_forgotten.c", NULL);
    tl_free(t, m);
}

/* ---- names ---- */

static void a_group_of_nothing(void **unused)
{
    (void)unused;
    for (int compiled = 0; compiled < 2; compiled++) {
        run r = begin(1);
        assert_int_equal(tl_opt_group(r.o, "*bias", 1, 0), TL_OK); /* there is none yet */
        once(&r, compiled);
        assert_string_equal(tl_error(r.t), "");
        tl_tape_reset(r.t);
        assert_int_equal(tl_opt_group(r.o, "*baes", 1, 0), TL_OK);
        once(&r, compiled);
        assert_int_equal(tl_opt_steps(r.o), 1);
        assert_said(r.t, TL_ENAME, "'*baes'", "2 parameters", "'l.bias'", "test_forgotten.c", NULL);
        end(&r);
    }
}

static void a_freeze_of_nothing(void **unused)
{
    (void)unused;
    for (int way = 0; way < 4; way++) {
        int compiled = way & 1, steps = way >> 1;
        run r = begin(1);
        for (int i = 0; i < steps; i++) /* the program is known already */
            once(&r, compiled);
        tl_tape_reset(r.t);
        assert_int_equal(tl_model_freeze(r.m, "m.", true), 0);
        once(&r, compiled);
        assert_int_equal(tl_opt_steps(r.o), steps);
        assert_said(r.t, TL_ENAME, "tl_model_freeze(\"m.\")", "2 parameters", "'l.bias'",
                    "test_forgotten.c", NULL);
        tl_tape_reset(r.t); /* taken back by the same prefix, or by one that covers it */
        tl_model_freeze(r.m, way & 1 ? "m." : "", false);
        once(&r, compiled);
        assert_false(tl_failed(r.t));
        assert_int_equal(tl_opt_steps(r.o), steps + r.steps);
        end(&r);
    }
}

/* What is frozen before it is made is not trained: the same weights as frozen after. */
static void a_freeze_before_there_is_a_parameter(void **unused)
{
    (void)unused;
    for (int compiled = 0; compiled < 2; compiled++) {
        char hex[2][65];
        for (int early = 0; early < 2; early++) {
            run r = begin(1);
            if (!early)
                net(r.t, r.in, r.m);
            assert_int_equal(tl_model_freeze(r.m, "", true), early ? 0 : 2);
            assert_int_equal(tl_model_freeze(r.m, "l.w", false), early ? 0 : 1);
            once(&r, compiled);
            assert_string_equal(tl_error(r.t), "");
            assert_int_equal(tl_opt_steps(r.o), 1);
            for (int i = 0; i < tl_model_count(r.m); i++)
                if (tl_model_at(r.m, i).param)
                    assert_int_equal(tl_model_at(r.m, i).frozen,
                                     strcmp(tl_model_at(r.m, i).name, "l.bias") == 0);
            tl_model_sha256(r.m, hex[early]);
            assert_int_equal(tl_model_freeze(r.m, "", false), 2); /* all of them again */
            tl_tape_reset(r.t);
            once(&r, compiled);
            assert_int_equal(tl_opt_steps(r.o), 2);
            end(&r);
        }
        assert_string_equal(hex[0], hex[1]);
    }
}

/* The line of a call, as messages name it. */
static const char *here(int line)
{
    static char text[4][64];
    static int next;
    char *at = text[next++ % 4];
    snprintf(at, sizeof text[0], "test_forgotten.c:%d", line);
    return at;
}

/* A module that brackets what it calls; its layers are NAME.one and NAME.two, both of one name if
 * careless. */
static tl_tensor module(tl_at at, tl_model *m, const char *name, tl_tensor x, bool careless)
{
    char one[32], two[32];
    tl_tape *t = at.tape;
    int place = tl_place_push(at);
    snprintf(one, sizeof one, "%s.one", name);
    snprintf(two, sizeof two, "%s.%s", name, careless ? "one" : "two");
    x = tl_tanh(t, tl_linear(t, m, one, x, 8));
    x = tl_linear(t, m, two, x, 8);
    tl_place_pop(t, place);
    return x;
}

/* One that does not: it stands at its own lines, whoever calls it. */
static tl_tensor plain(tl_tape *t, tl_model *m, tl_tensor x)
{
    return tl_linear(t, m, "plain", x, 8);
}

static const float numbers[48] = {1, 2, 3, -1, -2, -3, 0.5f};

/* Two calls of each layer at two lines: refused with both; with either shared, after a reset, where
 * nothing is trained, at one line: fine. */
static void one_name_at_two_places(void **unused)
{
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_llama_config c = {.vocab = 5, .width = 8, .layers = 1, .heads = 2, .hidden = 16};
    tl_gpt2_config g = {.vocab = 5, .width = 8, .layers = 1, .heads = 2, .max_positions = 3};
    tl_model *other = tl_model_new(.seed = 1);
    tl_tape *to = tl_tape_new(other);
    for (int kind = 0; kind < 9; kind++)
        for (int how = 0; how < 6; how++) { /* 0: refused; 1, 2: shared; 3: reset; 4: no gradient;
                                               5: at one line */
            tl_tensor x = tl_data(t, numbers, TL_F32, TL_DIMS(2, 3, 8)), y = x,
                      ids = tl_data(t, tokens, TL_I64, TL_DIMS(2, 3));
            int line[2] = {0}, scope = tl_mode_push(t, how == 4 ? TL_NO_GRAD : 0);
            bool s[2] = {how == 1, how == 2};
#define CALLS(n)                                                                  \
    line[n] = __LINE__;                                                           \
    y = kind == 0   ? tl_linear(t, m, "l", x, 8, .shared = s[n])                  \
        : kind == 1 ? tl_embed(t, m, "e", ids, 5, 8, 1, .shared = s[n])           \
        : kind == 2 ? tl_norm(t, m, "n", x, 1e-5, .shared = s[n])                 \
        : kind == 3 ? tl_norm_layer(t, m, "nl", x, 1e-5, .shared = s[n])          \
        : kind == 4 ? tl_mlp_gelu(t, m, "g", x, 8, .shared = s[n])                \
        : kind == 5 ? tl_mlp_swiglu(t, m, "s", x, 8, .shared = s[n])              \
        : kind == 6 ? tl_self_attention(t, m, "a", x, .heads = 2, .shared = s[n]) \
        : kind == 7                                                               \
            ? tl_llama(t, m, &c, ids, .shared = s[n])                             \
            : tl_gpt2(to, other, &g, tl_data(to, tokens, TL_I64, TL_DIMS(2, 3)), .shared = s[n])
            tl_tape *on = kind == 8 ? to : t;
            int outer = tl_mode_push(on, how == 4 ? TL_NO_GRAD : 0);
            for (int i = 0; i < (how == 5 ? 3 : 1); i++) {
                CALLS(0);
            }
            if (how == 3) {
                tl_tape_reset(on);
                x = tl_data(t, numbers, TL_F32, TL_DIMS(2, 3, 8));
                ids = tl_data(t, tokens, TL_I64, TL_DIMS(2, 3));
            }
            if (how != 5) {
                CALLS(1);
            }
            assert_int_equal(tl_is_none(y), how == 0);
            if (how == 0)
                assert_said(on, TL_ENAME, here(line[0]), here(line[1]), ".shared", NULL);
            assert_string_equal(tl_error(on), "");
            tl_mode_pop(on, outer);
            tl_mode_pop(t, scope);
            tl_tape_reset(t);
            tl_tape_reset(to);
        }
    tl_free(t, to, m, other);
}

static void names_that_meet_within(void **unused)
{
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_tensor x = tl_data(t, numbers, TL_F32, TL_DIMS(2, 3, 8));
    int a = __LINE__ + 1;
    tl_self_attention(t, m, "a", x, .heads = 2);
    int b = __LINE__ + 1;
    assert_true(tl_is_none(tl_linear(t, m, "a.q", x, 8, .no_bias = true)));
    assert_said(t, TL_ENAME, "'a.q.weight'", here(a), here(b), NULL);
    a = __LINE__ + 1;
    module(TL_AT(t), m, "m", x, false);
    for (int i = 0; i < 2; i++) { /* two lines, the second of which is used again */
        b = __LINE__ + 1;
        assert_true(tl_is_none(module(TL_AT(t), m, "m", x, false)));
        assert_said(t, TL_ENAME, "'m.one.weight'", here(a), here(b), NULL);
    }
    for (int i = 0; i < 2; i++)
        assert_false(tl_is_none(module(TL_AT(t), m, "loop", x, false)));
    int place = tl_share_push(TL_AT(t), true); /* what has no option is shared by a bracket */
    assert_false(tl_is_none(module(TL_AT(t), m, "m", x, false)));
    tl_place_pop(t, place);
    assert_true(tl_is_none(module(TL_AT(t), m, "careless", x, true)));
    assert_said(t, TL_ENAME, "'careless.one.weight'", "test_forgotten.c", NULL);
    plain(t, m, x);
    assert_false(tl_is_none(plain(t, m, x)));
    tl_param(t, m, "w", TL_F32, TL_DIMS(2), TL_INIT_ONES, 1); /* no layer: anyone may look it up */
    assert_false(tl_is_none(tl_param(t, m, "w", TL_F32, TL_DIMS(2), TL_INIT_ONES, 1)));
    tl_param(t, m, "late.weight", TL_F32, TL_DIMS(8, 8), TL_INIT_ONES, 1); /* and then a layer */
    assert_false(tl_is_none(tl_linear(t, m, "late", x, 8, .no_bias = true)));
    assert_string_equal(tl_error(t), "");
    tl_free(t, m);
}

static tl_tensor total_of_module(tl_tape *t, const tl_tensor *in, int n, void *ctx)
{
    (void)n;
    return tl_sum(t, module(TL_AT(t), ctx, "m", in[0], false), TL_ALL, false);
}

static void names_twice(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out,
                        void *ctx)
{
    (void)n;
    (void)n_out;
    out[0] = tl_sum(t, tl_linear(t, ctx, "c", in[0], 8), TL_ALL, false);
    out[0] = tl_add(t, out[0], tl_sum(t, tl_linear(t, ctx, "c", in[0], 8), TL_ALL, false));
}

/* Checks and graphs record again, on tapes of their own; backward under open brackets leaves them
 * as they were. */
static void names_recorded_again(void **unused)
{
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_tensor x = tl_data(m, numbers, TL_F32, TL_DIMS(1, 2, 8)), y;
    for (int i = 0; i < 2; i++) {
        int outer = tl_place_push(TL_AT(t)), inner = tl_place_push(TL_AT(t));
        for (int k = 0; k < 2; k++) {
            y = total_of_module(t, &x, 1, m);
            assert_int_equal(tl_backward(t, y), TL_OK);
        }
        tl_place_pop(t, inner);
        tl_place_pop(t, outer);
        assert_int_equal(tl_gradcheck(t, total_of_module, &x, 1, m), TL_RIGHT);
        assert_string_equal(tl_error(t), "");
    }
    tl_compiled *c = tl_compile(t, names_twice, 1, m);
    assert_int_equal(tl_run(c, &x, 1, &y), TL_ENAME);
    assert_said(t, TL_ENAME, "'c.weight'", "test_forgotten.c", NULL);
    tl_free(c, t, m);
}

/* ---- errors ---- */

/* What work(ctx) writes to stderr, with warnings on. */
static const char *said_by(void (*work)(void *ctx), void *ctx)
{
    static char text[4096];
    FILE *f = tmpfile();
    int saved = dup(STDERR_FILENO);
    assert_non_null(f);
    assert_true(saved >= 0);
    fflush(stderr);
    assert_true(dup2(fileno(f), STDERR_FILENO) >= 0);
    tl_warnings(true);
    work(ctx);
    tl_warnings(false);
    fflush(stderr);
    assert_true(dup2(saved, STDERR_FILENO) >= 0);
    close(saved);
    rewind(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    return text;
}

static int lines(const char *text)
{
    int n = 0;
    for (; *text; text++)
        n += *text == '\n';
    return n;
}

enum { NEVER, LOOKS, CLEARS, HUSHED };

typedef struct {
    int what, how;
} careless;

static void deal_with(void *object, int how)
{
    if (how == LOOKS)
        assert_true(strlen(tl_error(object)) > 0);
    if (how == CLEARS)
        tl_error_clear(object);
    if (how == HUSHED)
        tl_warnings(false);
}

/* A tape, a model and an optimizer whose calls fail, by a loop that goes on. */
static void a_careless_program(void *ctx)
{
    const careless *c = ctx;
    run r = begin(1);
    if (c->what == 2) {
        tl_free(r.o);
        r.o = tl_sgd_new(r.m);
    }
    if (c->what == 1)
        assert_int_equal(tl_load(r.m, "/no/such/file"), TL_EIO);
    for (int i = 0; i < 5; i++) {
        tl_tensor y = c->what == 0 ? tl_add(r.t, r.in[0], r.in[1]) : r.in[0];
        once(&r, false);
        (void)tl_item(r.t, y);
        (void)tl_failed(r.t);
        tl_tape_reset(r.t);
    }
    if (c->what == 1)
        assert_int_equal(tl_save(r.m, "/no/such/other"), TL_EIO);
    assert_int_equal(tl_opt_steps(r.o), 0);
    deal_with(r.t, c->how); /* the tape speaks for both others */
    end(&r);
}

static void a_program_without_its_tape(void *how)
{
    run r = begin(1);
    tl_compiled *c = tl_compile(r.t, names_twice, 1, r.m);
    tl_tensor y;
    tl_free(r.t, r.o);
    assert_int_equal(tl_run(c, r.in, 1, &y), TL_ESTALE);
    deal_with(c, *(int *)how);
    tl_free(c, r.m);
}

static void an_error_that_nobody_has_read(void **unused)
{
    static const char *const words[] = {"add: ", "/no/such/file", "lr is 0"};
    (void)unused;
    for (int what = 0; what < 3; what++)
        for (int how = NEVER; how <= HUSHED; how++) {
            careless c = {what, how};
            const char *text = said_by(a_careless_program, &c);
            if (lines(text) != (how == NEVER) ||
                (how == NEVER && strstr(text, words[what]) == NULL))
                fail_msg("object %d, way %d: %s", what, how, text);
        }
    for (int how = NEVER; how <= HUSHED; how++) {
        const char *text = said_by(a_program_without_its_tape, &how);
        if (lines(text) != (how == NEVER) ||
            (how == NEVER && strstr(text, "a graph is freed") == NULL))
            fail_msg("a compiled program, way %d: %s", how, text);
    }
}

/* What the library makes for itself says nothing: only what the user was told of counts. */
static void failures_that_were_handed_on(void *ctx)
{
    run r = begin(1);
    tl_compiled *c = tl_compile(r.t, names_twice, 1, r.m);
    tl_tensor y;
    (void)ctx;
    assert_int_equal(tl_run(c, r.in, 1, &y), TL_ENAME);
    assert_non_null(strstr(tl_error(r.t), "c.weight"));
    tl_error_clear(r.t);
    tl_gradcheck(r.t, total_of_module, &TL_NONE, 1, r.m);
    assert_true(strlen(tl_error(r.t)) > 0);
    tl_free(c);
    end(&r);
}

static void what_the_library_makes_for_itself_is_silent(void **unused)
{
    (void)unused;
    assert_string_equal(said_by(failures_that_were_handed_on, NULL), "");
}

static void tape_and_model_agree(void **unused)
{
    run r = begin(1);
    char path[64] = "/tmp/tally-forgotten-XXXXXX";
    int file = mkstemp(path);
    (void)unused;
    assert_true(file >= 0);
    assert_int_equal(write(file, "old", 3), 3);
    assert_int_equal(tl_load(r.m, path), TL_EFORMAT);
    assert_true(tl_failed(r.t) && tl_failed(r.m));
    assert_int_equal(tl_error_status(r.t), TL_EFORMAT);
    once(&r, false); /* nothing is trained or saved over a model that could not be loaded */
    assert_int_equal(tl_opt_steps(r.o), 0);
    assert_int_equal(tl_model_count(r.m), 0);
    assert_int_equal(tl_save(r.m, path), TL_EFORMAT);
    char bytes[4] = "";
    assert_int_equal(pread(file, bytes, 3, 0), 3);
    assert_string_equal(bytes, "old");
    assert_string_equal(tl_error(r.t), tl_error(r.m));
    assert_int_equal(tl_checkpoint_save(r.m, NULL, path, NULL, 0),
                     TL_OK); /* it has been read: the next call is another */
    assert_false(tl_failed(r.t) || tl_failed(r.m));
    assert_string_equal(tl_error(r.t), "");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tl_load(r.m, "/no/such"), TL_EIO);
        tl_error_clear(i == 0 ? (void *)r.t : (void *)r.m);
        assert_false(tl_failed(r.t) || tl_failed(r.m));
    }
    once(&r, false);
    assert_int_equal(tl_opt_steps(r.o), 1);
    close(file);
    unlink(path);
    end(&r);
}

/* ---- what has been freed ---- */

static void free_twice(void *ctx)
{
    run r = begin(1);
    tl_compiled *c = tl_compile(r.t, program, 1, &r);
    (void)ctx;
    tl_free(r.o);
    tl_free(NULL, r.o, c);
    tl_free(c, r.t);
    tl_free(r.t, r.m, r.m);
}

static void freed_twice(void **unused)
{
    (void)unused;
    const char *text = said_by(free_twice, NULL);
    assert_int_equal(lines(text), 4); /* the optimizer, the program, the tape, the model */
    assert_non_null(strstr(text, "argument 2 is not a live object"));
    free_twice(NULL); /* and without a word, where warnings are off */
}

/* Also of a model without parameters, in which there is nothing to look for. */
static void another_models_optimizer(void **unused)
{
    (void)unused;
    for (int i = 0; i < 4; i++) {
        run r = begin(1), other = begin(1);
        tl_model *empty = tl_model_new(.seed = 1);
        tl_opt *mine = r.o, *of_empty = tl_sgd_new(empty, .lr = 1);
        char before[65], after[65];
        once(&other, false);
        tl_backward(r.t, net(r.t, r.in, r.m));
        tl_tape_reset(r.t);
        tl_model_sha256(r.m, before);
        r.o = i % 2 ? of_empty : other.o;
        once(&r, i / 2);
        assert_said(r.t, TL_EUSAGE, "tl_step: the optimizer is of another model",
                    "test_forgotten.c", NULL);
        tl_model_sha256(r.m, after);
        assert_string_equal(before, after);
        tl_free(of_empty, empty, mine, r.c, r.t, r.m);
        end(&other);
    }
}

static void frees(tl_tape *t, void *ctx)
{
    (void)t;
    tl_free(*(void **)ctx);
}

static void frees_on_the_way(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out,
                             void *ctx)
{
    const run *r = ctx;
    (void)n, (void)n_out;
    tl_host(t, r->steps ? TL_BEFORE : TL_AFTER, frees, r->victim);
    out[0] = net(t, in, r->m);
    tl_backward(t, out[0]);
    tl_step(r->o, t);
}

/* What host work frees of a run is there until the run is over; a program that is gone does not
 * run. */
static void freed_by_host_work(void **unused)
{
    (void)unused;
    for (int i = 0; i < 2 * 5; i++) {
        run r = begin(i % 2);
        tl_tensor out;
        tl_graph *g = NULL;
        void *what[5] = {r.m, r.o, r.t};
        r.victim = &what[i / 2];
        r.c = what[3] = tl_compile(r.t, frees_on_the_way, 1, &r);
        if (i / 2 == 4)
            g = what[4] = tl_trace(r.t, frees_on_the_way, r.in, 2, 1, &r);
        assert_int_equal(g != NULL ? tl_graph_run(g, r.in, 2, &out, 1) : tl_run(r.c, r.in, 2, &out),
                         TL_OK);
        if (i / 2 == 3)
            assert_int_equal(tl_run(r.c, r.in, 2, &out), TL_ESTALE);
        tl_free(r.c, r.t, r.o, r.m);
    }
}

/* A graph holds the optimizer that steps in it; a step that is called or traced is the user's. */
static void a_freed_optimizer(void **unused)
{
    (void)unused;
    for (int compiled = 0; compiled < 2; compiled++) {
        run r = begin(1);
        char before[65], after[65];
        once(&r, compiled);
        tl_free(r.o);
        if (compiled)
            once(&r, compiled);
        assert_string_equal(tl_error(r.t), "");
        tl_model_sha256(r.m, before);
        tl_model_freeze(r.m, "l.bias", true); /* for another graph */
        once(&r, compiled);
        assert_said(r.t, TL_ESTALE, "tl_step: the optimizer has been freed", "test_forgotten.c",
                    NULL);
        tl_model_sha256(r.m, after);
        assert_string_equal(before, after);
        tl_free(r.c, r.t, r.m);
    }
}

/* What the library makes for itself no user holds: tl_free would leave it, and say so. */
static void the_library_frees_its_own_otherwise(void **unused)
{
    char line[512] = "";
    (void)unused;
    FILE *grep = popen("cd '" TL_ROOT "' && grep -rnF 'tl_free(' --include='*.c' autograd nn ops",
                       "r");
    assert_non_null(grep);
    if (fgets(line, sizeof line, grep) != NULL)
        fail_msg("tl_object_end is wanted: %s", line);
    assert_int_not_equal(pclose(grep), 0);
}

/* Where an address comes back, as it mostly does, it is not the tape or model that was there. */
static void handles_of_what_was_freed(void **unused)
{
    (void)unused;
    for (int i = 0; i < 100; i++) {
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_tensor of_tape = tl_data(t, numbers, TL_F32, TL_DIMS(4)),
                  of_model = tl_data(m, numbers, TL_F32, TL_DIMS(4));
        tl_free(t, m);
        m = tl_model_new(.seed = 1);
        t = tl_tape_new(m);
        tl_data(t, numbers, TL_F32, TL_DIMS(4)); /* the same places hold other values now */
        tl_data(m, numbers, TL_F32, TL_DIMS(4));
        assert_true(tl_is_none(tl_exp(t, of_tape)));
        assert_said(t, TL_ESTALE, "another", NULL);
        assert_true(tl_is_none(tl_exp(t, of_model)));
        assert_said(t, TL_ESTALE, "another", NULL);
        assert_int_equal(tl_write(m, of_model, numbers, 16), TL_ESTALE);
        tl_error_clear(m);
        tl_free(t, m);
    }
}

const struct CMUnitTest tl_tests_forgotten[] = {
    cmocka_unit_test(data_have_the_type_of_their_dtype),
    cmocka_unit_test(data_have_the_size_of_their_shape),
    cmocka_unit_test(a_reset_between_micro_batches),
    cmocka_unit_test(a_program_that_clears_first_is_no_second_micro_batch),
    cmocka_unit_test(rows_apart_and_labels_of_ints),
    cmocka_unit_test(no_data),
    cmocka_unit_test(arrays_in_place),
    cmocka_unit_test(more_than_three_steps_without_a_reset),
    cmocka_unit_test(a_recording_of_several_steps_says_so),
    cmocka_unit_test(records_grow_linearly),
    cmocka_unit_test(a_learning_rate),
    cmocka_unit_test(a_learning_rate_of_zero_on_purpose),
    cmocka_unit_test(every_number_of_a_config),
    cmocka_unit_test(a_group_of_nothing),
    cmocka_unit_test(a_freeze_of_nothing),
    cmocka_unit_test(a_freeze_before_there_is_a_parameter),
    cmocka_unit_test(one_name_at_two_places),
    cmocka_unit_test(names_that_meet_within),
    cmocka_unit_test(names_recorded_again),
    cmocka_unit_test(an_error_that_nobody_has_read),
    cmocka_unit_test(what_the_library_makes_for_itself_is_silent),
    cmocka_unit_test(tape_and_model_agree),
    cmocka_unit_test(freed_twice),
    cmocka_unit_test(a_freed_optimizer),
    cmocka_unit_test(another_models_optimizer),
    cmocka_unit_test(freed_by_host_work),
    cmocka_unit_test(the_library_frees_its_own_otherwise),
    cmocka_unit_test(handles_of_what_was_freed),
    cmocka_unit_test(a_bool_is_0_or_1),
};
const size_t tl_tests_forgotten_count = sizeof tl_tests_forgotten / sizeof *tl_tests_forgotten;
