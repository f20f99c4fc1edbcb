/* GPT-2, LayerNorm and the GELU unit against naive loops in double over the parameters by name, and
 * the whole model's gradients. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <tally.h>

extern const struct CMUnitTest tl_tests_gpt2[];
extern const size_t tl_tests_gpt2_count;

enum { VOCAB = 11, W = 8, LAYERS = 2, HEADS = 2, S = 5, B = 2, MOST = 4 * W * W };

static const tl_gpt2_config config = {
    .vocab = VOCAB, .width = W, .layers = LAYERS, .heads = HEADS, .max_positions = S + 1};
static const int64_t ids[B * S] = {3, 10, 0, 8, 3, 1, 7, 7, 5, 9};

/* ---- naive: one sample, rows of W ---- */

/* A parameter, f32, as doubles. */
static void param(tl_tape *t, tl_model *m, const char *prefix, const char *name, double *out, int n)
{
    char buf[128];
    float v[MOST];
    snprintf(buf, sizeof buf, "%s%s%s", prefix, *prefix ? "." : "", name);
    assert_true(n <= MOST);
    if (tl_keep(t, tl_model_find(m, buf), v, (size_t)n * sizeof *v) != TL_OK)
        fail_msg("%s: %s", buf, tl_error(t));
    for (int i = 0; i < n; i++)
        out[i] = (double)v[i];
}

static void naive_norm(tl_tape *t, tl_model *m, const char *name, const double *x, double *y)
{
    double w[W], b[W], mean = 0, var = 0;
    param(t, m, name, "weight", w, W);
    param(t, m, name, "bias", b, W);
    for (int i = 0; i < W; i++)
        mean += x[i] / W;
    for (int i = 0; i < W; i++)
        var += (x[i] - mean) * (x[i] - mean) / W;
    for (int i = 0; i < W; i++)
        y[i] = (x[i] - mean) / sqrt(var + 1e-5) * w[i] + b[i];
}

static void naive_linear(tl_tape *t, tl_model *m, const char *prefix, const char *name,
                         const double *x, int n, double *y, int outputs)
{
    char layer[128];
    double w[MOST], b[4 * W];
    snprintf(layer, sizeof layer, "%s.%s", prefix, name);
    param(t, m, layer, "weight", w, outputs * n);
    param(t, m, layer, "bias", b, outputs);
    for (int o = 0; o < outputs; o++) {
        y[o] = b[o];
        for (int i = 0; i < n; i++)
            y[o] += w[o * n + i] * x[i];
    }
}

static double naive_gelu(double x, bool by_tanh)
{
    return by_tanh ? 0.5 * x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)))
                   : 0.5 * x * (1 + erf(x / sqrt(2)));
}

static void naive_mlp(tl_tape *t, tl_model *m, const char *name, const double *x, double *y,
                      int hidden, bool by_tanh)
{
    double h[4 * W];
    naive_linear(t, m, name, "up", x, W, h, hidden);
    for (int i = 0; i < hidden; i++)
        h[i] = naive_gelu(h[i], by_tanh);
    naive_linear(t, m, name, "down", h, hidden, y, W);
}

enum { D = W / HEADS };

/* A head's row at position s: pairs (x1, x2) by the angle s * 10000^(-2k/D). */
static void naive_rotary(double *x, int s, tl_rotary_pairing pairing)
{
    const int half = D / 2;
    for (int k = 0; k < half; k++) {
        double *x1 = pairing == TL_ROTARY_HALF ? &x[k] : &x[2 * k],
               *x2 = pairing == TL_ROTARY_HALF ? &x[k + half] : &x[2 * k + 1];
        const double a = s * pow(10000, -2.0 * k / D), was = *x1;
        *x1 = was * cos(a) - *x2 * sin(a);
        *x2 = *x2 * cos(a) + was * sin(a);
    }
}

static void naive_attention(tl_tape *t, tl_model *m, const char *name, double x[S][W],
                            double y[S][W], tl_rotary_pairing pairing)
{
    double qkv[S][3 * W], o[W];
    for (int s = 0; s < S; s++) {
        naive_linear(t, m, name, "qkv", x[s], W, qkv[s], 3 * W);
        for (int h = 0; h < 2 * HEADS && pairing != 0; h++) /* of queries and keys */
            naive_rotary(qkv[s] + h * D, s, pairing);
    }
    for (int s = 0; s < S; s++) {
        for (int h = 0; h < HEADS; h++) {
            double p[S], sum = 0;
            for (int j = 0; j <= s; j++) {
                p[j] = 0;
                for (int d = 0; d < D; d++)
                    p[j] += qkv[s][h * D + d] * qkv[j][W + h * D + d] / sqrt(D);
                sum += p[j] = exp(p[j]);
            }
            for (int d = 0; d < D; d++) {
                o[h * D + d] = 0;
                for (int j = 0; j <= s; j++)
                    o[h * D + d] += p[j] / sum * qkv[j][2 * W + h * D + d];
            }
        }
        naive_linear(t, m, name, "out", o, W, y[s], W);
    }
}

static void naive_block(tl_tape *t, tl_model *m, int layer, double x[S][W],
                        tl_rotary_pairing pairing)
{
    double a[S][W], b[S][W];
    char name[4][64];
    static const char *const parts[] = {"norm1", "attention", "norm2", "mlp"};
    for (int i = 0; i < 4; i++)
        snprintf(name[i], sizeof name[i], "blocks.%d.%s", layer, parts[i]);
    for (int s = 0; s < S; s++)
        naive_norm(t, m, name[0], x[s], a[s]);
    naive_attention(t, m, name[1], a, b, pairing);
    for (int s = 0; s < S; s++) {
        for (int i = 0; i < W; i++)
            x[s][i] += b[s][i];
        naive_norm(t, m, name[2], x[s], a[s]);
        naive_mlp(t, m, name[3], a[s], b[s], 4 * W, true);
        for (int i = 0; i < W; i++)
            x[s][i] += b[s][i];
    }
}

static void naive_gpt2(tl_tape *t, tl_model *m, const int64_t *id, double z[S][VOCAB],
                       tl_rotary_pairing pairing)
{
    double table[VOCAB * W], places[(S + 1) * W] = {0}, x[S][W], y[W];
    param(t, m, "embed", "weight", table, VOCAB * W);
    if (pairing == 0)
        param(t, m, "positions", "weight", places, (S + 1) * W);
    for (int s = 0; s < S; s++)
        for (int i = 0; i < W; i++)
            x[s][i] = table[id[s] * W + i] + places[s * W + i];
    for (int l = 0; l < LAYERS; l++)
        naive_block(t, m, l, x, pairing);
    for (int s = 0; s < S; s++) {
        naive_norm(t, m, "norm", x[s], y);
        for (int v = 0; v < VOCAB; v++) {
            z[s][v] = 0;
            for (int i = 0; i < W; i++)
                z[s][v] += y[i] * table[v * W + i];
        }
    }
}

/* ---- tests ---- */

/* All parameters away from what they are drawn as: a bias of zeros or a weight of ones would hide
 * much. */
static void stir(tl_model *m)
{
    for (int i = 0; i < tl_model_count(m); i++) {
        tl_named p = tl_model_at(m, i);
        float v[MOST];
        int64_t n = tl_array_count(&p.array);
        if (!p.param)
            continue;
        assert_true(n <= MOST);
        for (int64_t k = 0; k < n; k++)
            v[k] = ((const float *)p.array.data)[k] * 4 + 0.3f * (float)sin(1.7 * (double)k + i);
        assert_int_equal(tl_write(m, p.tensor, v, (size_t)n * sizeof *v), TL_OK);
    }
}

static void close_to(double got, double want, const char *what, int at)
{
    if (!(fabs(got - want) <= 2e-5 * (1 + fabs(want))))
        fail_msg("%s: element %d is %.9g, %.9g expected", what, at, got, want);
}

/* Learned positions, and both pairings of rotary ones in their place. */
static void a_gpt2_is_what_its_formula_says(void **unused)
{
    (void)unused;
    for (tl_rotary_pairing pairing = 0; pairing <= TL_ROTARY_INTERLEAVED; pairing++) {
        tl_gpt2_config c = config;
        tl_model *m = tl_model_new(.seed = 9);
        tl_tape *t = tl_tape_new(m);
        float z[B][S][VOCAB];
        double want[S][VOCAB];
        c.pairing = pairing;
        c.max_positions = pairing == 0 ? c.max_positions : 0;
        tl_gpt2(t, m, &c, tl_data(t, ids, TL_I64, TL_DIMS(B, S)));
        assert_int_equal(tl_is_none(tl_model_find(m, "positions.weight")), pairing != 0);
        stir(m);
        tl_tape_reset(t);
        assert_int_equal(tl_keep(t, tl_gpt2(t, m, &c, tl_data(t, ids, TL_I64, TL_DIMS(B, S))), z,
                                 sizeof z),
                         TL_OK);
        for (int b = 0; b < B; b++) {
            naive_gpt2(t, m, ids + b * S, want, pairing);
            for (int i = 0; i < S * VOCAB; i++)
                close_to((double)z[b][i / VOCAB][i % VOCAB], want[i / VOCAB][i % VOCAB], "logits",
                         i);
        }
        tl_free(t, m);
    }
}

static void layers_are_what_their_formulas_say(void **unused)
{
    (void)unused;
    tl_model *m = tl_model_new(.seed = 9);
    tl_tape *t = tl_tape_new(m);
    double x[3][W], want[W];
    float in[3][W], y[3][3][W];
    for (int i = 0; i < 3 * W; i++)
        x[i / W][i % W] = (double)(in[i / W][i % W] = (float)sin(0.9 * i + 1) * 2);
    for (int again = 0; again < 2; again++) {
        tl_tape_reset(t);
        tl_tensor h = tl_data(t, in, TL_F32, TL_DIMS(3, W));
        tl_tensor out[3] = {tl_norm_layer(t, m, "n", h, 1e-5), tl_mlp_gelu(t, m, "e", h, 3 * W),
                            tl_mlp_gelu(t, m, "a", h, 2 * W, .by_tanh = true)};
        for (int i = 0; i < 3; i++)
            assert_int_equal(tl_keep(t, out[i], y[i], sizeof y[i]), TL_OK);
        if (again == 0)
            stir(m);
    }
    for (int r = 0; r < 3; r++)
        for (int i = 0; i < 3; i++) {
            if (i == 0)
                naive_norm(t, m, "n", x[r], want);
            else
                naive_mlp(t, m, i == 1 ? "e" : "a", x[r], want, i == 1 ? 3 * W : 2 * W, i == 2);
            for (int k = 0; k < W; k++)
                close_to((double)y[i][r][k], want[k],
                         i == 0   ? "layer_norm"
                         : i == 1 ? "gelu unit"
                                  : "gelu unit by tanh",
                         r * W + k);
        }
    tl_free(t, m);
}

static tl_tensor loss(tl_tape *t, const tl_tensor *in, int n, void *ctx)
{
    (void)n;
    return tl_cross_entropy(t,
                            tl_gpt2(t, tl_tape_model(t), ctx, in[0],
                                    .sample = tl_data(t, (int64_t[]){4}, TL_I64, TL_SCALAR)),
                            in[1], TL_MEAN);
}

static void all_gradients_of_a_gpt2_are_right(void **unused)
{
    static const int64_t targets[B * S] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    (void)unused;
    for (int kind = 0; kind < 3; kind++) {
        tl_gpt2_config c = config;
        tl_gradcheck_report r;
        tl_model *m = tl_model_new(.seed = 21);
        tl_tape *t = tl_tape_new(m);
        c.dropout = kind == 1 ? 0.25 : 0;
        c.pairing = kind == 2 ? TL_ROTARY_INTERLEAVED : 0;
        tl_tensor in[2] = {tl_data(t, ids, TL_I64, TL_DIMS(B, S)),
                           tl_data(t, targets, TL_I64, TL_DIMS(B, S))};
        if (tl_gradcheck_with(t, loss, in, 2, &c, &r, .elements = 4, .directions = 1) != TL_RIGHT)
            fail_msg("dropout %g: %s", c.dropout, r.text);
        int params = 0;
        for (int i = 0; i < tl_model_count(m); i++)
            params += tl_model_at(m, i).param;
        assert_int_equal(params, (kind < 2 ? 4 : 3) + 12 * LAYERS);
        assert_int_equal(r.leaves, params); /* every one of them was compared */
        tl_free(t, m);
    }
}

/* Refused before there is a parameter, with positions of either kind. */
static void a_negative_max_positions_changes_nothing(void **unused)
{
    (void)unused;
    for (tl_rotary_pairing pairing = 0; pairing <= TL_ROTARY_INTERLEAVED; pairing++) {
        tl_gpt2_config c = config;
        tl_model *m = tl_model_new(.seed = 21);
        tl_tape *t = tl_tape_new(m);
        c.pairing = pairing;
        c.max_positions = -3;
        assert_true(tl_is_none(tl_gpt2(t, m, &c, tl_data(t, ids, TL_I64, TL_DIMS(B, S)))));
        assert_int_equal(tl_error_status(t), TL_ESHAPE);
        assert_non_null(strstr(tl_error(t), "tl_gpt2: the config's max_positions is -3"));
        assert_int_equal(tl_model_count(m), 0);
        tl_free(t, m);
    }
}

const struct CMUnitTest tl_tests_gpt2[] = {
    cmocka_unit_test(a_negative_max_positions_changes_nothing),
    cmocka_unit_test(a_gpt2_is_what_its_formula_says),
    cmocka_unit_test(layers_are_what_their_formulas_say),
    cmocka_unit_test(all_gradients_of_a_gpt2_are_right),
};
const size_t tl_tests_gpt2_count = sizeof tl_tests_gpt2 / sizeof tl_tests_gpt2[0];
