/* LSTM, GRU and RNN: against naive loops in double over the parameters by their names; each sample
 * of a batch as alone, at its own length, whatever the padding and the split; called and compiled;
 * a sequence in pieces; gradients; a training run's one hash. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <tally.h>

#include "tests/support/both.h"

extern const struct CMUnitTest tl_tests_recurrent[];
extern const size_t tl_tests_recurrent_count;

enum { IN = 3, HIDDEN = 4, B = 4, S = 6, LAYERS = 2, ROOM = 4096 };
typedef enum { LSTM, GRU, TANH, RELU, CELLS } cell;
static const char *const cell_names[] = {"lstm", "gru", "tanh", "relu"};

static tl_tensor run(tl_tape *t, tl_model *m, cell k, tl_tensor x, tl_recurrent_options o)
{
    return tl_recurrent_at(TL_AT(t), m, "r", x, HIDDEN, (tl_cell)((int)TL_LSTM + (int)k), o);
}

static double number(int64_t i) { return sin(1.3 * (double)i + 0.2) * 1.5; }

static void keep(tl_tape *t, tl_tensor x, void *out, size_t bytes)
{
    if (tl_keep(t, x, out, bytes) != TL_OK)
        fail_msg("%s", tl_error(t));
}

/* ---- naive, in double ---- */

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static void weights(tl_tape *t, tl_model *m, const char *what, int layer, int reverse, double *out,
                    int n)
{
    char name[64];
    snprintf(name, sizeof name, "r.%s_l%d%s", what, layer, reverse ? "_reverse" : "");
    if (tl_is_none(tl_model_find(m, name)))
        fail_msg("no parameter %s", name);
    keep(t, tl_model_find(m, name), out, (size_t)n * sizeof *out);
}

/* One sample, one layer, one direction: x (s, width) -> y (s, stride). */
static void naive(tl_tape *t, tl_model *m, cell k, int layer, int reverse, const double *x, int s,
                  int width, double *y, int stride, double *h, double *c)
{
    static double wi[ROOM], wh[ROOM], bi[ROOM], bh[ROOM];
    int gates = k == LSTM ? 4 : k == GRU ? 3 : 1, rows = gates * HIDDEN;
    weights(t, m, "weight_ih", layer, reverse, wi, rows * width);
    weights(t, m, "weight_hh", layer, reverse, wh, rows * HIDDEN);
    weights(t, m, "bias_ih", layer, reverse, bi, rows);
    weights(t, m, "bias_hh", layer, reverse, bh, rows);
    for (int step = 0; step < s; step++) {
        int at = reverse ? s - 1 - step : step;
        double g[4 * HIDDEN], u[4 * HIDDEN];
        for (int r = 0; r < rows; r++) {
            g[r] = bi[r];
            u[r] = bh[r];
            for (int i = 0; i < width; i++)
                g[r] += wi[r * width + i] * x[at * width + i];
            for (int i = 0; i < HIDDEN; i++)
                u[r] += wh[r * HIDDEN + i] * h[i];
        }
        for (int j = 0; j < HIDDEN; j++) {
            double v[4];
            for (int q = 0; q < gates; q++)
                v[q] = g[q * HIDDEN + j] + u[q * HIDDEN + j];
            if (k == LSTM) { /* PyTorch: input, forget, cell, output */
                c[j] = sigmoid(v[1]) * c[j] + sigmoid(v[0]) * tanh(v[2]);
                h[j] = sigmoid(v[3]) * tanh(c[j]);
            } else if (k == GRU) { /* reset, update, new */
                double z = sigmoid(v[1]),
                       n = tanh(g[2 * HIDDEN + j] + sigmoid(v[0]) * u[2 * HIDDEN + j]);
                h[j] = (1 - z) * n + z * h[j];
            } else
                h[j] = k == TANH ? tanh(v[0]) : v[0] > 0 ? v[0] : 0;
        }
        for (int j = 0; j < HIDDEN; j++)
            y[at * stride + j] = h[j];
    }
}

static void close_to(double got, double want, const char *what, int i)
{
    if (!(fabs(got - want) <= 1e-12 * (1 + fabs(want))))
        fail_msg("%s, element %d: %.17g, not %.17g", what, i, got, want);
}

static void they_are_their_formulas(void **unused)
{
    (void)unused;
    for (int k = 0; k < CELLS; k++)
        for (int both = 0; both < 2; both++) {
            double x[B * S * IN], h0[2 * LAYERS * B * HIDDEN], c0[2 * LAYERS * B * HIDDEN];
            double y[B * S * 2 * HIDDEN], hn[2 * LAYERS * B * HIDDEN], cn[2 * LAYERS * B * HIDDEN];
            const int d = 1 + both, states = d * LAYERS * B * HIDDEN;
            tl_model *m = tl_model_new(.seed = 4);
            tl_tape *t = tl_tape_new(m);
            for (int i = 0; i < B * S * IN; i++)
                x[i] = number(i);
            for (int i = 0; i < states; i++) {
                h0[i] = number(i + 1000) / 2;
                c0[i] = number(i + 2000);
            }
            tl_tensor last[2];
            const tl_shape shape = TL_DIMS(d * LAYERS, B, HIDDEN);
            tl_recurrent_options o = {.layers = LAYERS,
                                      .both = both,
                                      .last_h = &last[0],
                                      .last_c = &last[1],
                                      .h = tl_data(t, h0, TL_F64, shape)};
            if (k == LSTM)
                o.c = tl_data(t, c0, TL_F64, shape);
            keep(t, run(t, m, (cell)k, tl_data(t, x, TL_F64, TL_DIMS(B, S, IN)), o), y,
                 (size_t)(B * S * d * HIDDEN) * 8);
            keep(t, last[0], hn, (size_t)states * 8);
            assert_int_equal(tl_is_none(last[1]), k != LSTM);
            if (k == LSTM)
                keep(t, last[1], cn, (size_t)states * 8);
            for (int b = 0; b < B; b++) {
                double from[S * 2 * HIDDEN], to[S * 2 * HIDDEN];
                memcpy(from, x + b * S * IN, sizeof(double) * S * IN);
                for (int l = 0; l < LAYERS; l++) {
                    for (int r = 0; r < d; r++) {
                        int at = ((l * d + r) * B + b) * HIDDEN;
                        naive(t, m, (cell)k, l, r, from, S, l == 0 ? IN : d * HIDDEN,
                              to + r * HIDDEN, d * HIDDEN, h0 + at, c0 + at);
                        for (int j = 0; j < HIDDEN; j++) {
                            close_to(hn[at + j], h0[at + j], "last h", at + j);
                            if (k == LSTM)
                                close_to(cn[at + j], c0[at + j], "last c", at + j);
                        }
                    }
                    memcpy(from, to, sizeof from);
                }
                for (int i = 0; i < S * d * HIDDEN; i++)
                    close_to(y[b * S * d * HIDDEN + i], from[i], cell_names[k], i);
            }
            tl_free(t, m);
        }
}

/* ---- lengths ---- */

static const int64_t first[B] = {2, 0, 1, 3}, behind[B] = {6, 5, 6, 4};
static const tl_dtype dtypes[] = {TL_F64, TL_F32, TL_F16, TL_BF16};

typedef struct {
    double y[S * 2 * HIDDEN], dx[S * IN], last[4 * LAYERS * HIDDEN];
    char grads[65];
} result;

static tl_tensor samples(tl_tape *t, tl_dtype d, const double *x, int64_t b, int64_t s, int64_t n)
{
    return tl_cast(t, tl_data(t, x, TL_F64, TL_DIMS(b, s, n)), d);
}

/* Samples [from, to) in a batch, with their padding or, one alone, without it: y and dx of their
 * own steps, the last states. */
static void batch(tl_tape *t, tl_model *m, cell k, tl_dtype d, int from, int to, bool padded,
                  result *out)
{
    double x[B * S * IN], g[B * S * 2 * HIDDEN], y[B * S * 2 * HIDDEN], dx[B * S * IN];
    int64_t start[B], end[B], n = to - from, s = padded ? S : behind[from] - first[from];
    for (int b = from; b < to; b++) {
        start[b - from] = padded ? first[b] : 0;
        end[b - from] = padded ? behind[b] : s;
        for (int64_t i = 0; i < s; i++) {
            int64_t own = i - start[b - from];
            bool in = i >= start[b - from] && i < end[b - from];
            for (int j = 0; j < IN; j++)
                x[((b - from) * s + i) * IN + j] = in ? number((b * S + own) * IN + j) : 77;
            for (int j = 0; j < 2 * HIDDEN; j++)
                g[((b - from) * s + i) * 2 * HIDDEN + j] = in ? number((b * S + own) * 2 * HIDDEN +
                                                                       j + 500)
                                                              : 55;
        }
    }
    tl_tensor in = tl_data(t, x, TL_F64, TL_DIMS(n, s, IN)), last[2], sum;
    tl_require_grad(t, in);
    tl_recurrent_options o = {
        .layers = LAYERS, .both = true, .last_h = &last[0], .last_c = &last[1], .shared = true};
    if (padded) {
        o.start = tl_data(t, start, TL_I64, TL_DIMS(n));
        o.end = tl_data(t, end, TL_I64, TL_DIMS(n));
    }
    tl_tensor r = run(t, m, k, tl_cast(t, in, d), o);
    sum = tl_sum(t, tl_mul(t, r, samples(t, d, g, n, s, 2 * HIDDEN)), TL_ALL, false);
    sum = tl_add(t, sum, tl_sum(t, tl_square(t, last[0]), TL_ALL, false));
    if (k == LSTM)
        sum = tl_add(t, sum, tl_sum(t, tl_square(t, last[1]), TL_ALL, false));
    tl_tensor wide = tl_cast(t, r, TL_F64), ends = tl_cast(t, last[0], TL_F64);
    keep(t, wide, y, (size_t)(n * s * 2 * HIDDEN) * 8);
    double h[2 * LAYERS * B * HIDDEN];
    keep(t, ends, h, (size_t)(2 * LAYERS * n * HIDDEN) * 8);
    tl_backward(t, sum);
    keep(t, tl_grad(t, in), dx, (size_t)(n * s * IN) * 8);
    for (int64_t b = 0; b < n; b++) {
        result *to_one = &out[from + b];
        memset(to_one, 0, sizeof *to_one);
        for (int64_t i = start[b]; i < end[b]; i++) {
            memcpy(to_one->y + (i - start[b]) * 2 * HIDDEN, y + (b * s + i) * 2 * HIDDEN,
                   sizeof(double) * 2 * HIDDEN);
            memcpy(to_one->dx + (i - start[b]) * IN, dx + (b * s + i) * IN, sizeof(double) * IN);
        }
        for (int l = 0; l < 2 * LAYERS; l++)
            memcpy(to_one->last + l * HIDDEN, h + (l * n + b) * HIDDEN, sizeof(double) * HIDDEN);
        for (int64_t i = 0; padded && i < s; i++) /* zeros in padding */
            for (int j = 0; (i < start[b] || i >= end[b]) && j < 2 * HIDDEN; j++)
                assert_true(y[(b * s + i) * 2 * HIDDEN + j] == 0);
    }
}

/* The gradients of all parameters, one after the other. */
static size_t gradients(tl_tape *t, tl_model *m, double *out)
{
    size_t n = 0;
    for (int i = 0; i < tl_model_count(m); i++) {
        tl_named p = tl_model_at(m, i);
        if (!p.param)
            continue;
        tl_tensor g = tl_cast(t, tl_grad(t, p.tensor), TL_F64);
        tl_shape s = tl_shape_of(t, g);
        assert_true(n + (size_t)tl_shape_count(&s) < ROOM);
        keep(t, g, out + n, (size_t)tl_shape_count(&s) * 8);
        n += (size_t)tl_shape_count(&s);
    }
    return n;
}

static void samples_are_as_alone(void **unused)
{
    (void)unused;
    for (int k = 0; k < CELLS; k++)
        for (int d = 0; d < 4; d++) {
            result together[B], alone[B];
            static double g[4][ROOM];
            size_t n = 0;
            tl_model *m = tl_model_new(.seed = 4);
            tl_tape *t = tl_tape_new(m);
            for (int way = 0; way < 4; way++) { /* one by one; all; in two parts; padded alone */
                for (int b = 0; b < B; b += way == 1 ? B : way == 2 ? 3 : 1) {
                    int to = way == 1 || (way == 2 && b == 3) ? B : way == 2 ? 3 : b + 1;
                    batch(t, m, (cell)k, dtypes[d], b, to, way > 0, way == 0 ? alone : together);
                    if (tl_failed(t))
                        fail_msg("%s", tl_error(t));
                    tl_tape_reset(t); /* a micro-batch ends */
                }
                n = gradients(t, m, g[way]);
                tl_tape_reset(t);
                tl_grad_clear(t);
                if (way > 0 && memcmp(together, alone, sizeof alone) != 0)
                    fail_msg("%s %s, way %d: a sample is not as alone", cell_names[k],
                             tl_dtype_name(dtypes[d]), way);
                if (memcmp(g[way], g[0], n * 8) != 0)
                    fail_msg("%s %s, way %d: gradients of weights differ", cell_names[k],
                             tl_dtype_name(dtypes[d]), way);
            }
            tl_free(t, m);
        }
}

/* ---- in pieces, compiled, gradients ---- */

static void pieces_are_the_whole(void **unused)
{
    (void)unused;
    for (int k = 0; k < CELLS; k++)
        for (int d = 0; d < 4; d++) {
            tl_model *m = tl_model_new(.seed = 4);
            tl_tape *t = tl_tape_new(m);
            double y[2][B * S * HIDDEN], x[B * S * IN];
            for (int i = 0; i < B * S * IN; i++)
                x[i] = number(i);
            tl_tensor in = samples(t, dtypes[d], x, B, S, IN), part[3], h = TL_NONE, c = TL_NONE;
            int scope = tl_mode_push(t, TL_NO_GRAD);
            keep(t, tl_cast(t, run(t, m, (cell)k, in, (tl_recurrent_options){.layers = 2}), TL_F64),
                 y[0], sizeof y[0]);
            static const int64_t cut[] = {0, 1, 4, S};
            for (int i = 0; i < 3; i++)
                part[i] = run(t, m, (cell)k, tl_slice(t, in, 1, cut[i], cut[i + 1], 1),
                              (tl_recurrent_options){
                                  .layers = 2, .h = h, .c = c, .last_h = &h, .last_c = &c});
            keep(t, tl_cast(t, tl_concat(t, part, 3, 1), TL_F64), y[1], sizeof y[1]);
            tl_mode_pop(t, scope);
            assert_memory_equal(y[0], y[1], sizeof y[0]);
            tl_free(t, m);
        }
}

/* What comes in is whole: the first layer's states are as without dropout, the second's are not. */
static void dropout_is_between_layers_alone(void **unused)
{
    (void)unused;
    for (int k = 0; k < CELLS; k++) {
        double x[B * S * IN], h[2][LAYERS][B * HIDDEN];
        for (int i = 0; i < B * S * IN; i++)
            x[i] = number(i);
        for (int way = 0; way < 2; way++) {
            tl_model *m = tl_model_new(.seed = 4);
            tl_tape *t = tl_tape_new(m);
            tl_tensor last;
            run(t, m, (cell)k, samples(t, TL_F64, x, B, S, IN),
                (tl_recurrent_options){.layers = LAYERS,
                                       .last_h = &last,
                                       .dropout = way == 0 ? 0 : 0.5,
                                       .sample = tl_scalar(t, TL_I64, 5)});
            keep(t, last, h[way], sizeof h[way]);
            tl_free(t, m);
        }
        assert_memory_equal(h[0][0], h[1][0], sizeof h[0][0]);
        assert_memory_not_equal(h[0][1], h[1][1], sizeof h[0][1]);
    }
}

typedef struct {
    cell k;
    bool second;
} program;

static tl_tensor loss(tl_tape *t, const tl_tensor *in, int n, void *ctx)
{
    const program *p = ctx;
    tl_tensor last;
    (void)n;
    tl_tensor y = run(t, tl_tape_model(t), p->k, in[0],
                      (tl_recurrent_options){.layers = p->second ? 1 : 2,
                                             .both = true,
                                             .last_h = &last,
                                             .end = in[1],
                                             .dropout = p->second ? 0 : 0.25,
                                             .sample = tl_scalar(t, TL_I64, 5)});
    return tl_add(t, tl_sum(t, tl_square(t, y), TL_ALL, false),
                  tl_sum(t, tl_square(t, last), TL_ALL, false));
}

static void step(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    tl_tensor y = loss(t, in, n, ctx);
    (void)n_out;
    tl_backward(t, y);
    out[0] = tl_detach(t, y);
    out[1] = tl_grad(t, tl_model_find(tl_tape_model(t), "r.weight_hh_l1_reverse"));
    out[2] = tl_grad(t, tl_model_find(tl_tape_model(t), "r.bias_hh_l0"));
}

static void they_compile(void **unused)
{
    static const int64_t end[3] = {4, 2, 5};
    (void)unused;
    for (int k = 0; k < CELLS; k++)
        for (int d = 0; d < 4; d++) {
            tl_model *m = tl_model_new(.seed = 5);
            program p = {(cell)k, false};
            tl_tensor in[2] = {both_data(m, dtypes[d], TL_DIMS(3, 5, IN), 3),
                               tl_data(m, end, TL_I64, TL_DIMS(3))};
            both_result r = both_ways(m, step, in, 2, 3, &p, (tl_graph_options){0});
            if (!r.same)
                fail_msg("%s %s: called and compiled differ\n%s", cell_names[k],
                         tl_dtype_name(dtypes[d]), r.report);
            tl_free(m);
        }
}

static void gradients_are_right(void **unused)
{
    static const int64_t end[3] = {2, 3, 1};
    (void)unused;
    for (int k = 0; k < RELU; k++)
        for (int second = 0; second < 2; second++) {
            tl_model *m = tl_model_new(.seed = 5);
            tl_tape *t = tl_tape_new(m);
            program p = {(cell)k, second};
            tl_tensor in[2] = {both_data(m, TL_F64, TL_DIMS(3, 3, IN), 3),
                               tl_data(m, end, TL_I64, TL_DIMS(3))};
            tl_verdict v = second ? tl_gradgradcheck(t, loss, in, 2, &p)
                                  : tl_gradcheck(t, loss, in, 2, &p);
            if (v != TL_RIGHT)
                fail_msg("%s: %s", cell_names[k], tl_error(t));
            tl_free(t, m);
        }
}

/* Two layers of the same weights, of which one has what the other has not: a last state that the
 * loss reads, ends. */
static tl_tensor two_uses(tl_tape *t, const tl_tensor *in, int n, void *ctx)
{
    const int way = *(int *)ctx;
    tl_model *m = tl_tape_model(t);
    tl_tensor last[2], y[2];
    (void)n;
    for (int i = 0; i < 2; i++) {
        const bool more = i == (way & 1);
        y[i] = tl_gru(t, m, "r", in[0], HIDDEN, .last_h = &last[i], .shared = true,
                      .end = way >= 2 && more ? in[1] : TL_NONE);
        y[i] = tl_sum(t, tl_square(t, y[i]), TL_ALL, false);
        if (way < 2 && more)
            y[i] = tl_add(t, y[i], tl_sum(t, last[i], TL_ALL, false));
    }
    return tl_add(t, tl_scale(t, y[0], 2), y[1]);
}

static void uses_that_differ_have_their_gradients(void **unused)
{
    static const int64_t end[2] = {2, 1};
    (void)unused;
    for (int way = 0; way < 4; way++) {
        tl_model *m = tl_model_new(.seed = 5);
        tl_tape *t = tl_tape_new(m);
        const tl_tensor in[2] = {both_data(m, TL_F64, TL_DIMS(2, 3, IN), 3),
                                 tl_data(m, end, TL_I64, TL_DIMS(2))};
        if (tl_gradcheck(t, two_uses, in, 2, &way) != TL_RIGHT)
            fail_msg("%d: %s", way, tl_error(t));
        tl_free(t, m);
    }
}

static void what_does_not_fit_is_said(void **unused)
{
    static const double x[2 * 3 * IN];
    char text[512];
    (void)unused;
    tl_model *m = tl_model_new(.seed = 5);
    tl_tape *t = tl_tape_new(m);
    tl_tensor in = tl_data(t, x, TL_F64, TL_DIMS(2, 3, IN));
    const tl_tensor state = tl_fill(t, TL_F64, TL_DIMS(1, 2, HIDDEN), 0),
                    other = tl_fill(t, TL_F32, TL_DIMS(1, 2, HIDDEN), 0),
                    ends = tl_fill(t, TL_F64, TL_DIMS(2), 1);
#define SAYS(s, call, words)                                                \
    assert_true(tl_is_none(call));                                          \
    if (tl_error_status(t) != TL_##s || strstr(tl_error(t), words) == NULL) \
        fail_msg("'%s' is not in '%s'", words, tl_error(t));                \
    tl_error_clear(t)
    SAYS(ESHAPE, tl_lstm(t, m, "r", tl_select(t, in, 0, 0), HIDDEN), "'r': x [3, 3], 4 units");
    SAYS(ESHAPE, tl_gru(t, m, "r", in, 0), "0 units");
    SAYS(ESHAPE, tl_gru(t, m, "r", in, HIDDEN, .layers = -1), "-1 layers");
    SAYS(EUSAGE, tl_rnn(t, m, "r", in, HIDDEN, .layers = 2, .dropout = 0.5), "give .sample");
    SAYS(EUSAGE, tl_rnn(t, m, "r", in, HIDDEN, .dropout = 0.5), "between layers, and there is one");
    SAYS(ESHAPE, tl_lstm(t, m, "r", in, HIDDEN, .c = in), ".c is [2, 3, 3]");
    SAYS(ESHAPE, tl_gru(t, m, "gru", in, HIDDEN, .c = state), "c0 is of an LSTM alone");
    SAYS(EDTYPE, tl_rnn(t, m, "rnn", in, HIDDEN, .h = other), "h0 is F32");
    SAYS(EDTYPE, tl_rnn(t, m, "rnn2", in, HIDDEN, .end = ends), "end is F64");
    SAYS(EDOMAIN, tl_recurrent(t, m, "r", in, HIDDEN, (tl_cell)9), "cell 9 is none");
#undef SAYS
    tl_tensor y = tl_lstm(t, m, "r", in, HIDDEN, .both = true);
    assert_int_equal(tl_explain_invariance(t, tl_sum(t, y, TL_ALL, false), text, sizeof text), 0);
    tl_free(t, m);
}

/* The op, whose layers need units, takes none: it has a gradient, and that has one. */
static void no_units_have_gradients(void **unused)
{
    (void)unused;
    for (int k = 0; k < CELLS; k++) {
        tl_tape *t = tl_tape_new(NULL);
        const tl_tensor in[] = {tl_zeros(t, TL_F32, TL_DIMS(B, S, 0)),
                                tl_zeros(t, TL_F32, TL_DIMS(0, 0))};
        tl_tensor once[2], twice[2];
        for (int i = 0; i < 2; i++)
            tl_require_grad(t, in[i]);
        tl_tensor y = tl_sum(t, tl_recur(t, in[0], in[1], (tl_cell)(TL_LSTM + k)), TL_ALL, false);
        tl_tensor last;
        tl_recur(t, in[0], in[1], (tl_cell)(TL_LSTM + k), .last_c = &last);
        assert_int_equal(tl_is_none(last), k != LSTM);
        tl_gradients(t, y, in, 2, TL_NONE, once);
        y = tl_add(t, tl_sum(t, tl_square(t, once[0]), TL_ALL, false),
                   tl_sum(t, tl_square(t, once[1]), TL_ALL, false));
        tl_gradients(t, y, in, 2, TL_NONE, twice);
        if (tl_failed(t))
            fail_msg("%s: %s", cell_names[k], tl_error(t));
        tl_free(t);
    }
}

/* The weights' hash after a step whose loss is made of gradients through recur: the states are
 * weighted, or the first state is a parameter. */
static void hash_of_second(tl_cell k, int way, int split, char hex[65])
{
    enum { ALL = 7, N = 2 };
    static double rows[ALL * 3 * 4 * N];
    const int64_t gates = (k == TL_LSTM ? 4 : k == TL_GRU ? 3 : 1) * N;
    const tl_init normal = {TL_INIT_NORMAL, 0.5};
    for (int i = 0; i < ALL * 3 * 4 * N; i++)
        rows[i] = ldexp(number(i), i * 7919 % 7 - 3);
    tl_model *m = tl_model_new(.seed = 3);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_sgd_new(m, .lr = 0.1);
    tl_mode_push(t, TL_STRICT);
    for (int from = 0; from < ALL; from += split) {
        const int n = from + split < ALL ? split : ALL - from;
        tl_tensor a = tl_data(t, rows + from * 3 * gates, TL_F64, TL_DIMS(n, 3, gates)), d,
                  w = tl_param_at(TL_AT(t), m, "w", TL_F64, TL_DIMS(gates, gates), normal),
                  u = tl_param_at(TL_AT(t), m, "u", TL_F64, TL_DIMS(gates, N), normal),
                  h = tl_param_at(TL_AT(t), m, "h", TL_F64, TL_DIMS(N), normal);
        a = tl_matmul(t, a, w);
        tl_tensor y = way == 0 ? tl_recur(t, a, u, k) : tl_recur(t, a, u, k, .h = h);
        y = way == 0 ? tl_square(t, tl_rms_norm(t, y, h, 1e-3)) : y;
        tl_gradients(t, tl_sum(t, y, TL_ALL, false), way == 0 ? &w : &u, 1, TL_NONE, &d);
        tl_backward(t, tl_sum(t, d, TL_ALL, false), .partial = true);
        if (from + n < ALL)
            tl_tape_reset(t);
    }
    tl_step(o, t);
    assert_string_equal(tl_error(t), "");
    assert_int_equal(tl_model_sha256(m, hex), TL_OK);
    tl_free(o, t, m);
}

static void second_derivatives_have_one_hash(void **unused)
{
    (void)unused;
    for (int k = 0; k < CELLS; k++)
        for (int way = 0; way < 2; way++) {
            char whole[65], split[65];
            hash_of_second((tl_cell)((int)TL_LSTM + k), way, 7, whole);
            for (int n = 1; n < 7; n++) {
                hash_of_second((tl_cell)((int)TL_LSTM + k), way, n, split);
                if (strcmp(split, whole) != 0)
                    fail_msg("%s, %d, %d samples: %s, not %s", cell_names[k], way, n, split, whole);
            }
        }
}

/* The weights' hash after a step with a penalty on gradients by inputs and weights; the first
 * states are parameters. */
static void hash_of_penalty(tl_cell k, bool reverse, int64_t before, char hex[65])
{
    enum { N = 4, MOST = 3 };
    const int64_t gates = (k == TL_LSTM ? 4 : k == TL_GRU ? 3 : 1) * N, steps = before + 2;
    const int64_t from = reverse ? 0 : before;
    const tl_init normal = {TL_INIT_NORMAL, 0.5};
    float a[B * (MOST + 2) * 4 * N] = {0};
    bool there[B * (MOST + 2)] = {false};
    int64_t start[B], end[B];
    for (int64_t i = 0; i < B * 2 * gates; i++)
        a[i / (2 * gates) * steps * gates + from * gates + i % (2 * gates)] = (float)number(i);
    for (int64_t i = 0; i < B * steps; i++)
        there[i] = i % steps >= from && i % steps < from + 2;
    for (int i = 0; i < B; i++)
        start[i] = from, end[i] = from + 2;
    tl_model *m = tl_model_new(.seed = 3);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_sgd_new(m, .lr = 0.1);
    tl_tensor x = tl_data(t, a, TL_F32, TL_DIMS(B, steps, gates)), d[2],
              is = tl_data(t, there, TL_BOOL, TL_DIMS(B, steps, 1)),
              begins = tl_data(t, start, TL_I64, TL_DIMS(B)),
              ends = tl_data(t, end, TL_I64, TL_DIMS(B)), zero = tl_scalar(t, TL_F32, 0),
              u = tl_param_at(TL_AT(t), m, "u", TL_F32, TL_DIMS(gates, N), normal),
              h = tl_param_at(TL_AT(t), m, "h", TL_F32, TL_DIMS(N), normal), c = TL_NONE;
    if (k == TL_LSTM)
        c = tl_param_at(TL_AT(t), m, "c", TL_F32, TL_DIMS(N), normal);
    tl_require_grad(t, x);
    tl_tensor y = tl_recur(t, x, u, k, .h = h, .c = c, .start = begins, .end = ends,
                           .reverse = reverse);
    y = tl_sum(t, tl_where(t, is, tl_sin(t, y), zero), TL_ALL, false);
    tl_gradients(t, y, (tl_tensor[]){x, u}, 2, TL_NONE, d);
    d[0] = tl_sum(t, tl_square(t, tl_where(t, is, d[0], zero)), TL_ALL, false);
    d[1] = tl_sum(t, tl_square(t, d[1]), TL_ALL, false);
    tl_backward(t, tl_add(t, y, tl_add(t, d[0], d[1])));
    tl_step(o, t);
    assert_string_equal(tl_error(t), "");
    assert_int_equal(tl_model_sha256(m, hex), TL_OK);
    tl_free(o, t, m);
}

static void padding_before_first_states_that_are_learned(void **unused)
{
    static const tl_cell cells[] = {TL_LSTM, TL_GRU, TL_RNN_TANH, TL_RNN_RELU};
    (void)unused;
    for (int k = 0; k < 8; k++) {
        char alone[65], padded[65];
        hash_of_penalty(cells[k / 2], k % 2, 0, alone);
        for (int n = 1; n <= 3; n++) {
            hash_of_penalty(cells[k / 2], k % 2, n, padded);
            if (strcmp(padded, alone) != 0)
                fail_msg("cell %d, %d steps %s: %s, not %s", k / 2, n,
                         k % 2 ? "behind, in reverse" : "before", padded, alone);
        }
    }
}

/* Ranges may lie apart in memory, as every other number of a list does. */
static void ranges_of_any_strides(void **unused)
{
    static const int64_t pairs[] = {0, 4, 2, 5, 1, 3}, starts[] = {0, 2, 1}, ends[] = {4, 5, 3};
    double values[3 * S * 4], weight[4], got[2][3 * S];
    (void)unused;
    for (int i = 0; i < 3 * S * 4; i++)
        values[i] = number(i);
    for (int i = 0; i < 4; i++)
        weight[i] = number(i + 7);
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor g = tl_data(t, values, TL_F64, TL_DIMS(3, S, 4)),
              w = tl_data(t, weight, TL_F64, TL_DIMS(4, 1)),
              both = tl_data(t, pairs, TL_I64, TL_DIMS(3, 2));
    for (int apart = 0; apart < 2; apart++) {
        tl_tensor start = apart ? tl_select(t, both, 1, 0) : tl_data(t, starts, TL_I64, TL_DIMS(3)),
                  end = apart ? tl_select(t, both, 1, 1) : tl_data(t, ends, TL_I64, TL_DIMS(3));
        keep(t, tl_recur(t, g, w, TL_LSTM, .start = start, .end = end), got[apart], sizeof got[0]);
    }
    assert_memory_equal(got[1], got[0], sizeof got[0]);
    assert_true(got[0][S] == 0 && got[0][S + 2] != 0); /* sample 1 begins at step 2 */
    tl_free(t);
}

/* NUMERICS 6.19: a step that is left out adds +0 * h_e to dw, which is NaN where h is
 * infinite. */
static void what_is_left_out_meets_infinities(void **unused)
{
    static const double gates[2][3] = {{1, (double)INFINITY, 3}, {1, 2, 3}}, one = 1;
    (void)unused;
    for (int k = 0; k < 4; k++) {
        const bool reverse = k % 2, none = k / 2; /* none: a sample without a step, from h0 = inf */
        const int64_t start = none ? 3 : reverse, end = none ? 3 : reverse ? 3 : 2;
        double got;
        tl_tape *t = tl_tape_new(NULL);
        tl_tensor w = tl_data(t, &one, TL_F64, TL_DIMS(1, 1));
        tl_require_grad(t, w);
        tl_tensor h0 = tl_fill(t, TL_F64, TL_DIMS(1, 1), none ? (double)INFINITY : 0);
        tl_tensor y = tl_recur(t, tl_data(t, gates[none], TL_F64, TL_DIMS(1, 3, 1)), w, TL_RNN_RELU,
                               .h = h0, .start = tl_data(t, &start, TL_I64, TL_DIMS(1)),
                               .end = tl_data(t, &end, TL_I64, TL_DIMS(1)), .reverse = reverse);
        tl_backward(t, tl_sum(t, y, TL_ALL, false));
        keep(t, tl_grad(t, w), &got, sizeof got);
        assert_true(isnan(got));
        /* the same at its own length has a finite gradient: of the last step by the first h */
        tl_tape_reset(t);
        if (!none) {
            w = tl_data(t, &one, TL_F64, TL_DIMS(1, 1));
            tl_require_grad(t, w);
            y = tl_recur(t, tl_data(t, gates[0], TL_F64, TL_DIMS(1, 2, 1)), w, TL_RNN_RELU);
            tl_backward(t, tl_sum(t, y, TL_ALL, false));
            keep(t, tl_grad(t, w), &got, sizeof got);
            assert_true(got == 1);
        }
        tl_free(t);
    }
}

const struct CMUnitTest tl_tests_recurrent[] = {
    cmocka_unit_test(ranges_of_any_strides),
    cmocka_unit_test(they_are_their_formulas),
    cmocka_unit_test(samples_are_as_alone),
    cmocka_unit_test(pieces_are_the_whole),
    cmocka_unit_test(dropout_is_between_layers_alone),
    cmocka_unit_test(they_compile),
    cmocka_unit_test(gradients_are_right),
    cmocka_unit_test(what_does_not_fit_is_said),
    cmocka_unit_test(no_units_have_gradients),
    cmocka_unit_test(second_derivatives_have_one_hash),
    cmocka_unit_test(padding_before_first_states_that_are_learned),
    cmocka_unit_test(uses_that_differ_have_their_gradients),
    cmocka_unit_test(what_is_left_out_meets_infinities),
};
const size_t tl_tests_recurrent_count = sizeof tl_tests_recurrent / sizeof tl_tests_recurrent[0];
