/* Layers of nn against naive loops in double over their parameters by name; what they say of the
 * batch; called and compiled; gradients. And the hook at each projection of a decoder. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fenv.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <tally.h>

#include "tests/cases/cases.h"
#include "tests/support/both.h"

extern const struct CMUnitTest tl_tests_layers[];
extern const size_t tl_tests_layers_count;

enum { N = 3, C = 4, H = 5, W = 6, ALL = N * C * H * W };

static double sample(int i) { return sin(1.7 * i + 0.3) * (1 + i % 5); }

static void values(tl_tape *t, tl_tensor x, float *out, int n)
{
    if (tl_keep(t, x, out, (size_t)n * sizeof *out) != TL_OK)
        fail_msg("%s", tl_error(t));
}

static void close_to(double got, double want, const char *what, int i)
{
    if (!(fabs(got - want) <= 2e-5 * (1 + fabs(want))))
        fail_msg("%s, element %d: %.9g, not %.9g", what, i, got, want);
}

static tl_tensor image(tl_tape *t)
{
    float x[ALL];
    for (int i = 0; i < ALL; i++)
        x[i] = (float)sample(i);
    return tl_data(t, x, TL_F32, TL_DIMS(N, C, H, W));
}

/* Weights other than the first ones, which hide half of the formula. */
static void stir(tl_tape *t, tl_model *m, const char *name, double by)
{
    tl_tensor p = tl_model_find(m, name);
    tl_assign(t, p, tl_shift(t, tl_scale(t, p, 0.5), by));
}

/* First weights do not depend on how the caller rounds, and how it rounds stays. */
static void first_weights_are_alike_however_the_caller_rounds(void **unused)
{
    float w[2][H * W];
    volatile double one = 1, sum;
    (void)unused;
    for (int i = 0; i < 2; i++) {
        tl_model *m = tl_model_new(.seed = 3);
        tl_tape *t = tl_tape_new(m);
        tl_tensor x = image(t);
        fesetround(i == 1 ? FE_UPWARD : FE_TONEAREST);
        tl_linear(t, m, "l", x, H);
        sum = one + 1e-30;
        fesetround(FE_TONEAREST);
        assert_int_equal(sum > 1, i == 1); /* it rounds as before */
        values(t, tl_model_find(m, "l.weight"), w[i], H * W);
        tl_free(t, m);
    }
    assert_memory_equal(w[0], w[1], sizeof w[0]);
}

/* ---- convolutions ---- */

static void convolutions_are_their_sums(void **unused)
{
    enum { O = 6, K = 3, G = 2, P = 1, OH = 3, OW = 6 };
    (void)unused;
    tl_model *m = tl_model_new(.seed = 3);
    tl_tape *t = tl_tape_new(m);
    float w[O * C / G * K * 2], b[O], y[N * O * OH * OW], line[N * O * 4];
    tl_tensor out = tl_convolve2d(t, m, "c", image(t), O, .kernel = {K, 2}, .stride = {2, 1},
                                  .padding = {P, P}, .dilation = {1, 2}, .groups = G);
    values(t, out, y, N * O * OH * OW);
    values(t, tl_model_find(m, "c.weight"), w, O * C / G * K * 2);
    values(t, tl_model_find(m, "c.bias"), b, O);
    for (int i = 0; i < N * O * OH * OW; i++) {
        int q = i % OW, p = i / OW % OH, o = i / OW / OH % O, n = i / OW / OH / O;
        double sum = (double)b[o];
        for (int c = 0; c < C / G; c++)
            for (int u = 0; u < K; u++)
                for (int v = 0; v < 2; v++) {
                    int r = 2 * p + u - P, s = q + 2 * v - P, from = o / (O / G) * (C / G) + c;
                    if (r >= 0 && r < H && s >= 0 && s < W)
                        sum += (double)w[((o * C / G + c) * K + u) * 2 + v] *
                               (double)(float)sample(((n * C + from) * H + r) * W + s);
                }
        close_to((double)y[i], sum, "tl_convolve2d", i);
    }
    for (int i = 0; i < O * C / G * K * 2; i++) /* drawn within 1/sqrt(inputs) */
        assert_true(fabs((double)w[i]) <= 1 / sqrt(C / G * K * 2.0));
    tl_tensor row = tl_reshape(t, image(t), TL_DIMS(N, C * H, W));
    out = tl_convolve1d(t, m, "l", row, O, .kernel = {3}, .no_bias = true);
    assert_true(tl_is_none(tl_model_find(m, "l.bias")));
    values(t, out, line, N * O * 4);
    values(t, tl_conv1d(t, row, tl_model_find(m, "l.weight")), y, N * O * 4);
    assert_memory_equal(line, y, sizeof line);
    assert_false(tl_failed(t));
    assert_true(tl_is_none(tl_convolve2d(t, m, "k", image(t), O)));
    assert_non_null(strstr(tl_error(t), "'k': .kernel must be given (it is 0 0)"));
    tl_free(t, m);
}

/* ---- norms ---- */

static void naive_stats(const int *channel, int groups, int g, double *mean, double *var)
{
    int n = 0;
    (void)groups;
    *mean = *var = 0;
    for (int i = 0; i < ALL; i++)
        if (channel[i] == g)
            *mean += (double)(float)sample(i), n++;
    *mean /= n;
    for (int i = 0; i < ALL; i++)
        if (channel[i] == g)
            *var += ((double)(float)sample(i) - *mean) * ((double)(float)sample(i) - *mean);
    *var /= n;
}

static void batch_norm_is_its_formula(void **unused)
{
    (void)unused;
    tl_model *m = tl_model_new(.seed = 3);
    tl_tape *t = tl_tape_new(m);
    float y[ALL], e[ALL], mean[C], var[C];
    int channel[ALL];
    double mu, v, n = N * H * W;
    for (int i = 0; i < ALL; i++)
        channel[i] = i / (H * W) % C;
    tl_batch_norm(t, m, "n", image(t));
    stir(t, m, "n.weight", 1);
    stir(t, m, "n.bias", 0.25);
    tl_tape_reset(t);
    values(t, tl_batch_norm(t, m, "n", image(t), .momentum = 0.25), y, ALL);
    values(t, tl_model_find(m, "n.running_mean"), mean, C);
    values(t, tl_model_find(m, "n.running_var"), var, C);
    int scope = tl_mode_push(t, TL_EVAL);
    values(t, tl_batch_norm(t, m, "n", image(t), .shared = true), e, ALL);
    tl_mode_pop(t, scope);
    for (int c = 0; c < C; c++) {
        naive_stats(channel, C, c, &mu, &v);
        close_to((double)mean[c], 0.1 * mu + 0.25 * (mu - 0.1 * mu), "running mean", c);
        double first = 1 + 0.1 * (v * n / (n - 1) - 1);
        close_to((double)var[c], first + 0.25 * (v * n / (n - 1) - first), "running var", c);
    }
    for (int i = 0; i < ALL; i++) {
        int c = channel[i];
        naive_stats(channel, C, c, &mu, &v);
        double x = (double)(float)sample(i);
        close_to((double)y[i], (x - mu) / sqrt(v + 1e-5) * 1.5 + 0.25, "tl_batch_norm", i);
        close_to((double)e[i], (x - (double)mean[c]) / sqrt((double)var[c] + 1e-5) * 1.5 + 0.25,
                 "tl_batch_norm under TL_EVAL", i);
    }
    float after[C];
    values(t, tl_model_find(m, "n.running_mean"), after, C);
    assert_memory_equal(after, mean, sizeof mean); /* TL_EVAL changes nothing */
    tl_batch_norm(t, m, "one", tl_fill(t, TL_F32, TL_DIMS(1, C), 1));
    assert_non_null(strstr(tl_error(t), "'one' has one value a channel; at least 2 are needed"));
    tl_free(t, m);
}

static void group_norm_is_its_formula(void **unused)
{
    (void)unused;
    tl_model *m = tl_model_new(.seed = 3);
    tl_tape *t = tl_tape_new(m);
    float y[ALL];
    int group[ALL];
    double mu, v;
    for (int i = 0; i < ALL; i++)
        group[i] = i / (H * W) / C * 2 + i / (H * W) % C / 2;
    tl_group_norm(t, m, "n", image(t), 2);
    stir(t, m, "n.weight", 1);
    stir(t, m, "n.bias", 0.25);
    tl_tape_reset(t);
    values(t, tl_group_norm(t, m, "n", image(t), 2, .eps = 0.5), y, ALL);
    for (int i = 0; i < ALL; i++) {
        naive_stats(group, 2 * N, group[i], &mu, &v);
        double x = (double)(float)sample(i);
        close_to((double)y[i], (x - mu) / sqrt(v + 0.5) * 1.5 + 0.25, "tl_group_norm", i);
    }
    tl_group_norm(t, m, "n", image(t), 3);
    assert_non_null(strstr(tl_error(t), "'n': 4 channels cannot be in 3 groups"));
    tl_error_clear(t);
    tl_group_norm(t, m, "n", image(t), 0);
    assert_non_null(strstr(tl_error(t), "'n': 4 channels cannot be in 0 groups"));
    tl_free(t, m);
}

/* The norms' bits (NUMERICS 6.16, 6.17), op by op in the judge's arithmetic. */
enum { TERMS = 60 };
typedef struct {
    ref_tensor x[TERMS];
    int n;
} terms;

static ref_tensor *kept(terms *s, ref_tensor x)
{
    assert_true(s->n < TERMS);
    s->x[s->n] = x;
    return &s->x[s->n++];
}

static ref_tensor *read_as(terms *s, tl_tape *t, tl_tensor x, int ndim, const int64_t *dim)
{
    ref_tensor *y = kept(s, tl_case_read(t, x));
    assert_non_null(y->data);
    *y = tl_case_shaped(y, ndim, dim);
    return y;
}

static void same_values(const ref_tensor *got, const ref_tensor *want, const char *what)
{
    if (!ref_same_bits(got, want))
        fail_msg("%s has other bits than NUMERICS.md gives it", what);
}

static const ref_tensor *affine(terms *s, tl_tape *t, tl_model *m, const ref_tensor *x)
{
    static const int64_t channels[] = {1, C, 1, 1};
    const ref_tensor *y = kept(s, ref_mul(x, read_as(s, t, tl_model_find(m, "n.weight"), 4,
                                                     channels)));
    return kept(s, ref_add(y, read_as(s, t, tl_model_find(m, "n.bias"), 4, channels)));
}

/* old + (seen - old) * 0.75 */
static const ref_tensor *followed(terms *s, const ref_tensor *old, const ref_tensor *seen)
{
    const ref_tensor *d = kept(s, ref_sub(seen, old));
    d = kept(s, ref_scale(d, 0.75));
    return kept(s, ref_add(old, d));
}

static void norms_have_the_bits_stated(void **unused)
{
    static const int64_t shape[] = {N, C, H, W}, channels[] = {1, C, 1, 1},
                         groups[] = {N, 2, C / 2 * H * W};
    static const tl_dtype dtypes[] = {TL_F32, TL_F16, TL_BF16};
    const double n = N * H * W;
    (void)unused;
    for (int i = 0; i < 3; i++) {
        tl_model *m = tl_model_new(.seed = 3);
        tl_tape *t = tl_tape_new(m);
        terms s = {.n = 0};
        tl_tensor x = tl_cast(t, image(t), dtypes[i]);
        const ref_tensor *wide = kept(&s, tl_case_read(t, x)), *old[2], *y;
        const ref_dtype dtype = wide->dtype;
        wide = kept(&s, ref_cast(wide, REF_F32));
        tl_batch_norm(t, m, "n", x);
        stir(t, m, "n.weight", 1.1);
        stir(t, m, "n.bias", 0.3);
        old[0] = read_as(&s, t, tl_model_find(m, "n.running_mean"), 4, channels);
        old[1] = read_as(&s, t, tl_model_find(m, "n.running_var"), 4, channels);
        tl_tensor got = tl_batch_norm(t, m, "n", x, .momentum = 0.75, .shared = true);
        const ref_tensor *mean = kept(&s, ref_mean(wide, 13, 1)),
                         *d = kept(&s, ref_sub(wide, mean)), *q = kept(&s, ref_square(d)),
                         *var = kept(&s, ref_mean(q, 13, 1));
        q = kept(&s, ref_shift(var, 1e-5));
        q = kept(&s, ref_rsqrt(q));
        y = affine(&s, t, m, kept(&s, ref_mul(d, q)));
        same_values(read_as(&s, t, got, 4, shape), kept(&s, ref_cast(y, dtype)), "batch_norm");
        same_values(read_as(&s, t, tl_model_find(m, "n.running_mean"), 4, channels),
                    followed(&s, old[0], mean), "running_mean");
        q = kept(&s, ref_scale(var, n));
        const double less = n - 1;
        q = kept(&s, ref_div(q, kept(&s, ref_from(REF_F32, 0, NULL, &less))));
        same_values(read_as(&s, t, tl_model_find(m, "n.running_var"), 4, channels),
                    followed(&s, old[1], q), "running_var");
        /* under TL_EVAL the running ones stand for both, and stay */
        const ref_tensor *run[2];
        for (int k = 0; k < 2; k++)
            run[k] = read_as(&s, t, tl_model_find(m, k ? "n.running_var" : "n.running_mean"), 4,
                             channels);
        int scope = tl_mode_push(t, TL_EVAL);
        got = tl_batch_norm(t, m, "n", x, .momentum = 0.75, .shared = true);
        tl_mode_pop(t, scope);
        d = kept(&s, ref_sub(wide, run[0]));
        q = kept(&s, ref_shift(run[1], 1e-5));
        q = kept(&s, ref_rsqrt(q));
        y = affine(&s, t, m, kept(&s, ref_mul(d, q)));
        same_values(read_as(&s, t, got, 4, shape), kept(&s, ref_cast(y, dtype)), "TL_EVAL");
        for (int k = 0; k < 2; k++)
            same_values(read_as(&s, t, tl_model_find(m, k ? "n.running_var" : "n.running_mean"), 4,
                                channels),
                        run[k], "what stays under TL_EVAL");
        tl_free(t, m);
        m = tl_model_new(.seed = 4);
        t = tl_tape_new(m);
        x = tl_cast(t, image(t), dtypes[i]);
        tl_group_norm(t, m, "n", x, 2);
        stir(t, m, "n.weight", 1.1);
        stir(t, m, "n.bias", 0.3);
        got = tl_layer_norm(t, tl_reshape(t, x, TL_DIMS(groups[0], groups[1], groups[2])), TL_NONE,
                            TL_NONE, 1e-5);
        y = affine(&s, t, m, read_as(&s, t, got, 4, shape));
        got = tl_group_norm(t, m, "n", x, 2, .shared = true);
        same_values(read_as(&s, t, got, 4, shape), y, "group_norm");
        tl_case_free(s.n, s.x);
        tl_free(t, m);
    }
}

/* BatchNorm ties samples together, and says where; the other layers do not. */
static void what_layers_say_of_the_batch(void **unused)
{
    char text[2048], line[64];
    (void)unused;
    tl_model *m = tl_model_new(.seed = 3);
    tl_tape *t = tl_tape_new(m);
    tl_tensor x = image(t);
    x = tl_convolve2d(t, m, "c", x, C, .kernel = {3, 3}, .padding = {1, 1});
    x = tl_group_norm(t, m, "g", x, 2);
    assert_int_equal(tl_explain_invariance(t, tl_sum(t, x, TL_ALL, false), text, sizeof text), 0);
    int scope = tl_mode_push(t, TL_EVAL);
    tl_tensor y = tl_sum(t, tl_batch_norm(t, m, "b", x), TL_ALL, false);
    assert_int_equal(tl_explain_invariance(t, y, text, sizeof text), 0);
    tl_mode_pop(t, scope);
    y = tl_sum(t, tl_batch_norm(t, m, "b", x, .shared = true), TL_ALL, false);
    snprintf(line, sizeof line, "test_layers.c:%d) mixes samples", __LINE__ - 1);
    assert_true(tl_explain_invariance(t, y, text, sizeof text) > 0);
    if (strstr(text, line) == NULL)
        fail_msg("no '%s' in:\n%s", line, text);
    tl_tensor same = tl_fill(t, TL_F32, TL_DIMS(N, C, H, W), 1), data = image(t);
    for (int i = 0; i < 3; i++) {
        scope = tl_mode_push(t, TL_STRICT | (i == 2 ? TL_NO_GRAD : 0u));
        if (i == 2) /* of what depends on no sample */
            tl_batch_norm(t, m, "d", same);
        assert_false(tl_failed(t));
        tl_batch_norm(t, m, "b", i == 1 ? x : data, .shared = true);
        assert_int_equal(tl_error_status(t), TL_EUSAGE);
        assert_non_null(strstr(tl_error(t), "tl_batch_norm: TL_STRICT: the statistics of 'b' tie"));
        tl_error_clear(t);
        tl_mode_pop(t, scope);
    }
    tl_free(t, m);
}

static tl_tensor net(tl_tape *t, const tl_tensor *in, int n, void *ctx)
{
    tl_model *m = tl_tape_model(t);
    (void)n, (void)ctx;
    tl_tensor h = tl_convolve2d(t, m, "c", in[0], 4, .kernel = {3, 2}, .padding = {1, 0});
    h = tl_batch_norm(t, m, "b", tl_tanh(t, h));
    h = tl_tanh(t, tl_group_norm(t, m, "g", tl_avg_pool2d(t, h, .kernel = {2, 2}), 2));
    h = tl_reshape(t, h, TL_DIMS(tl_shape_of(t, h).dim[0], -1));
    return tl_linear(t, m, "l", h, 3);
}

static void gradients_of_layers_are_right(void **unused)
{
    (void)unused;
    for (int eval = 0; eval < 2; eval++) {
        tl_model *m = tl_model_new(.seed = 5);
        tl_tape *t = tl_tape_new(m);
        tl_tensor in[1] = {both_data(m, TL_F64, TL_DIMS(3, 2, 4, 5), 3)};
        int scope = tl_mode_push(t, eval ? TL_EVAL : 0);
        if (tl_gradcheck(t, net, in, 1, NULL) != TL_RIGHT ||
            tl_gradgradcheck(t, net, in, 1, NULL) != TL_RIGHT)
            fail_msg("eval %d: %s", eval, tl_error(t));
        tl_mode_pop(t, scope);
        tl_free(t, m);
    }
}

static void loss_of_net(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out,
                        void *ctx)
{
    (void)n_out;
    tl_tensor z = net(t, in, n, ctx), loss = tl_cross_entropy(t, z, in[1], TL_MEAN);
    tl_backward(t, loss);
    out[0] = tl_detach(t, loss);
    out[1] = tl_grad(t, tl_model_find(tl_tape_model(t), "c.weight"));
}

static void layers_compile(void **unused)
{
    static const int64_t y[3] = {0, 2, 1};
    static const tl_dtype dtypes[] = {TL_F64, TL_F32, TL_F16, TL_BF16};
    (void)unused;
    for (int d = 0; d < 4; d++) {
        tl_model *m = tl_model_new(.seed = 5);
        tl_tensor in[2] = {both_data(m, dtypes[d], TL_DIMS(3, 2, 4, 5), 3),
                           tl_data(m, y, TL_I64, TL_DIMS(3))};
        both_result r = both_ways(m, loss_of_net, in, 2, 2, NULL, (tl_graph_options){0});
        if (!r.same)
            fail_msg("%s: called and compiled differ\n%s", tl_dtype_name(dtypes[d]), r.report);
        /* the running statistics have followed both */
        tl_model *twice = tl_model_new(.seed = 5);
        tl_tape *t = tl_tape_new(twice), *of = tl_tape_new(m);
        for (int i = 0; i < 2; i++) {
            tl_tensor own[2] = {both_data(twice, dtypes[d], TL_DIMS(3, 2, 4, 5), 3),
                                tl_data(twice, y, TL_I64, TL_DIMS(3))};
            net(t, own, 2, NULL);
            tl_tape_reset(t);
        }
        double got[4], want[4];
        size_t bytes = 4 * tl_dtype_size(tl_dtype_compute(dtypes[d]));
        assert_int_equal(tl_keep(of, tl_model_find(m, "b.running_var"), (void *)got, bytes), TL_OK);
        assert_int_equal(tl_keep(t, tl_model_find(twice, "b.running_var"), (void *)want, bytes),
                         TL_OK);
        assert_memory_equal(got, want, bytes);
        tl_free(t, of, twice, m);
    }
}

/* ---- decoders ---- */

enum { VOCAB = 7, WIDTH = 8 };
static const int64_t ids[2][4] = {{1, 2, 3, 4}, {5, 6, 0, 1}};

typedef struct {
    char names[2048];
    double shift;
} seen;

static tl_tensor look(tl_tape *t, const char *name, tl_tensor x, tl_tensor y, void *ctx)
{
    seen *s = ctx;
    tl_shape in = tl_shape_of(t, x), out = tl_shape_of(t, y);
    size_t at = strlen(s->names);
    snprintf(s->names + at, sizeof s->names - at, "%s:%d-%d ", name, (int)in.dim[2],
             (int)out.dim[2]);
    return s->shift != 0 ? tl_shift(t, y, s->shift) : y;
}

static void decode(bool gpt, tl_rotary_pairing pairing, seen *s, float *out)
{
    tl_model *m = tl_model_new(.seed = 2);
    tl_tape *t = tl_tape_new(m);
    const tl_llama_config llama = {.vocab = VOCAB,
                                   .width = WIDTH,
                                   .layers = 2,
                                   .heads = 2,
                                   .kv_heads = 1,
                                   .hidden = 12,
                                   .pairing = pairing};
    const tl_gpt2_config gpt2 = {
        .vocab = VOCAB, .width = WIDTH, .layers = 1, .heads = 2, .max_positions = 4};
    tl_hook hook = {s == NULL ? NULL : look, s};
    tl_tensor in = tl_data(t, ids, TL_I64, TL_DIMS(2, 4));
    tl_tensor z = gpt ? tl_gpt2(t, m, &gpt2, in, .project = hook)
                      : tl_llama(t, m, &llama, in, .project = hook);
    values(t, z, out, 2 * 4 * VOCAB);
    assert_false(tl_failed(t));
    tl_free(t, m);
}

static void each_projection_can_be_hooked(void **unused)
{
    static const char *const names[] = {
        "layers.0.attention.q:8-8 layers.0.attention.k:8-4 layers.0.attention.v:8-4 "
        "layers.0.attention.o:8-8 layers.0.mlp.gate:8-12 layers.0.mlp.up:8-12 "
        "layers.0.mlp.down:12-8 layers.1.attention.q:8-8 layers.1.attention.k:8-4 "
        "layers.1.attention.v:8-4 layers.1.attention.o:8-8 layers.1.mlp.gate:8-12 "
        "layers.1.mlp.up:8-12 layers.1.mlp.down:12-8 output.proj:8-7 ",
        "blocks.0.attention.qkv:8-24 blocks.0.attention.out:8-8 blocks.0.mlp.up:8-32 "
        "blocks.0.mlp.down:32-8 "};
    (void)unused;
    for (int gpt = 0; gpt < 2; gpt++) {
        float plain[2 * 4 * VOCAB], hooked[2 * 4 * VOCAB];
        seen s = {.shift = 0};
        decode(gpt, 0, NULL, plain);
        decode(gpt, 0, &s, hooked);
        assert_string_equal(s.names, names[gpt]);
        assert_memory_equal(plain, hooked, sizeof plain);
        s.shift = 0.125;
        decode(gpt, 0, &s, hooked);
        assert_memory_not_equal(plain, hooked, sizeof plain);
    }
}

static void a_llama_takes_its_pairing(void **unused)
{
    float plain[2 * 4 * VOCAB], half[2 * 4 * VOCAB], pairs[2 * 4 * VOCAB];
    (void)unused;
    decode(false, 0, NULL, plain);
    decode(false, TL_ROTARY_HALF, NULL, half);
    decode(false, TL_ROTARY_INTERLEAVED, NULL, pairs);
    assert_memory_equal(plain, pairs, sizeof plain); /* the paper's */
    assert_memory_not_equal(plain, half, sizeof plain);
}

/* Numbers of which no norm and no first draw can be made. */
static void numbers_that_make_no_sense_are_refused(void **unused)
{
    (void)unused;
    const double nan = (double)NAN, eps[] = {nan, -1};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    for (int i = 0; i < 12; i++) {
        const float four[2][2] = {{1, 2}, {3, 5}};
        const tl_tensor x = tl_data(t, four, TL_F32, TL_DIMS(2, 2));
        const int of = i / 2;
        /* For the norms that are ops NaN means the compute type's. */
        const double e = of < 3 && i % 2 == 0 ? (double)INFINITY : eps[i % 2];
        tl_tensor y = of == 0   ? tl_norm(t, m, "n", x, e)
                      : of == 1 ? tl_norm_layer(t, m, "l", x, e)
                      : of == 2 ? tl_group_norm(t, m, "g", x, 1, .eps = e)
                      : of == 3 ? tl_batch_norm(t, m, "b", x, .eps = e)
                      : of == 4 ? tl_batch_norm(t, m, "b", x, .momentum = i % 2 ? 1.5 : nan)
                                : tl_param(t, m, "p", TL_F32, TL_DIMS(2), .kind = TL_INIT_NORMAL,
                                           .scale = nan);
        if (!tl_is_none(y) || tl_error_status(t) != TL_EDOMAIN ||
            strstr(tl_error(t), "test_layers.c:") == NULL)
            fail_msg("call %d: %s", i, tl_error(t));
        tl_error_clear(t);
        tl_tape_reset(t);
    }
    tl_free(t, m);
}

/* Options that mean nothing where they stand, and positions that no table has. */
static void options_that_make_no_sense_are_refused(void **unused)
{
    (void)unused;
    static const struct {
        tl_self_attention_options o;
        tl_status status;
        const char *says;
    } bad[] = {
        {{.max_positions = 2}, TL_ESHAPE, "3 after 0, of at most 2"},
        {{.max_positions = -2}, TL_EDOMAIN, "at most -2 of them"},
        {{.rope_base = -10}, TL_EDOMAIN, "base -10"},
        {{.scaling = {.factor = 2}}, TL_EDOMAIN, "scaling by 2 from 0 to 0 of 0"},
        {{.pairing = (tl_rotary_pairing)9}, TL_EDOMAIN, "pairing 9"},
        {{.columns = {.cache = NULL}}, TL_EUSAGE, "there is none"}, /* .at is set below */
    };
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    for (int i = 0; i < 7; i++) {
        tl_self_attention_options o = bad[i % 6].o;
        const tl_tensor x = tl_zeros(t, TL_F32, TL_DIMS(1, 3, 4)),
                        image = tl_reshape(t, x, TL_DIMS(1, 2, 3, 2));
        o.heads = 1;
        o.columns.at = i == 5 ? tl_data(t, (int64_t[]){0}, TL_I64, TL_DIMS(1)) : TL_NONE;
        const tl_tensor y = i < 6 ? tl_self_attention_at(TL_AT(t), m, "a", x, o)
                                  : tl_group_norm(t, m, "g", image, 2, .momentum = 0.5);
        if (!tl_is_none(y) || tl_error_status(t) != (i < 6 ? bad[i].status : TL_EUSAGE) ||
            strstr(tl_error(t), i < 6 ? bad[i].says : "keeps no statistics") == NULL)
            fail_msg("call %d: %s", i, tl_error(t));
        tl_error_clear(t);
        tl_tape_reset(t);
    }
    tl_free(t, m);
}

const struct CMUnitTest tl_tests_layers[] = {
    cmocka_unit_test(numbers_that_make_no_sense_are_refused),
    cmocka_unit_test(options_that_make_no_sense_are_refused),
    cmocka_unit_test(first_weights_are_alike_however_the_caller_rounds),
    cmocka_unit_test(convolutions_are_their_sums),
    cmocka_unit_test(batch_norm_is_its_formula),
    cmocka_unit_test(group_norm_is_its_formula),
    cmocka_unit_test(norms_have_the_bits_stated),
    cmocka_unit_test(what_layers_say_of_the_batch),
    cmocka_unit_test(gradients_of_layers_are_right),
    cmocka_unit_test(layers_compile),
    cmocka_unit_test(each_projection_can_be_hooked),
    cmocka_unit_test(a_llama_takes_its_pairing),
};
const size_t tl_tests_layers_count = sizeof tl_tests_layers / sizeof tl_tests_layers[0];
