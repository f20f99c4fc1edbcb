/* bench_scaling.c: what grows with what, one thread - a Llama step over 1 to 64 samples and over 1
 * to 64 layers, with a plot; thousands of ops too small for anything but overhead to count; and
 * decoding, which reads every weight for each token. */
#include "tests/bench/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tally.h"

/* Of this thread's processor: others that use the machine disturb it least. */
static double busy(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void warn_of(const tl_tape *t)
{
    if (tl_failed(t))
        printf("        failed: %s\n", tl_error(t));
}

/* ---- a step by its samples and by its layers ---- */

enum { POINTS = 7, SEQ = 16, MOST = 64, VOCAB = 65 }; /* 1, 2, 4, ... 64 */

/* The least of several steps. */
static double seconds_of_step(int64_t samples, int64_t layers)
{
    static int64_t ids[MOST * SEQ];
    tl_llama_config c = {.vocab = VOCAB,
                         .width = 64,
                         .layers = layers,
                         .heads = 4,
                         .hidden = 192,
                         .max_positions = SEQ};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *opt = tl_adamw_new(m, .lr = 1e-3);
    double least = (double)INFINITY;
    for (int i = 0; i < MOST * SEQ; i++)
        ids[i] = (i * 7 + i / 5) % VOCAB;
    for (int i = 0; i < 12; i++) {
        const double start = busy();
        tl_tensor x = tl_data(t, ids, TL_I64, TL_DIMS(samples, SEQ));
        tl_backward(t, tl_cross_entropy(t, tl_llama(t, m, &c, x), x, TL_MEAN));
        tl_step(opt, t);
        tl_tape_reset(t);
        least = i < 2 ? least : fmin(least, busy() - start);
    }
    warn_of(t);
    tl_free(opt, t, m);
    return least;
}

/* Seconds a unit, over that of 64 of them, from 1 to 64. */
static void draw(const char *path, double over[2][POINTS])
{
    enum { X = 90, Y = 40, W = 480, H = 240 };
    static const char *const color[] = {"#0a58ca", "#c2410c"}, *const name[] = {"samples",
                                                                                "layers"};
    FILE *f = fopen(path, "w");
    if (f == NULL) {
        perror(path);
        return;
    }
    fprintf(
        f,
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %d %d' font-family='sans-serif' "
        "font-size='12'>\n<rect width='100%%' height='100%%' fill='white'/>\n"
        "<text x='%d' y='20'>time a sample or layer of a training step, over that of %d</text>\n",
        X + W + 40, Y + H + 60, X, MOST);
    for (int y = 0; y <= 3; y++)
        fprintf(f,
                "<path d='M%d %d H%d' stroke='#ccc'/><text x='%d' y='%d' text-anchor='end'>%d"
                "</text>\n",
                X, Y + H - y * H / 3, X + W, X - 8, Y + H - y * H / 3 + 4, y);
    for (int i = 0; i < POINTS; i++)
        fprintf(f, "<text x='%d' y='%d' text-anchor='middle'>%d</text>\n", X + i * W / (POINTS - 1),
                Y + H + 20, 1 << i);
    for (int k = 0; k < 2; k++) {
        fprintf(f, "<polyline fill='none' stroke='%s' stroke-width='2' points='", color[k]);
        for (int i = 0; i < POINTS; i++)
            fprintf(f, "%d,%.1f ", X + i * W / (POINTS - 1), Y + H - fmin(over[k][i], 3) * H / 3);
        fprintf(f, "'/><text x='%d' y='%d' fill='%s'>%s</text>\n", X + k * 90, Y + H + 46, color[k],
                name[k]);
    }
    fprintf(f, "</svg>\n");
    if (fclose(f) == 0)
        printf("        drawn in %s\n", path);
}

static json_t *growth(void)
{
    double seconds[2][POINTS], over[2][POINTS];
    json_t *all = json_array();
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < POINTS; i++)
            seconds[k][i] = k == 0 ? seconds_of_step(1 << i, 2) : seconds_of_step(2, 1 << i);
        printf("scaling a step of %-24s ms each:",
               k == 0 ? "1 to 64 samples, 2 layers" : "2 samples, 1 to 64 layers");
        for (int i = 0; i < POINTS; i++) {
            over[k][i] = seconds[k][i] / (1 << i) / (seconds[k][POINTS - 1] / MOST);
            printf(" %.3f", 1e3 * seconds[k][i] / (1 << i));
            json_array_append_new(all,
                                  json_pack("{s:s,s:i,s:f}", "of", k == 0 ? "samples" : "layers",
                                            "number", 1 << i, "seconds", seconds[k][i]));
        }
        printf("   (the first over the last %.2f)\n", over[k][0]);
    }
    draw(TL_BUILD "/scaling.svg", over);
    return all;
}

/* ---- thousands of tiny ops, beside loops over arrays ---- */

enum { OPS = 10000, ROUNDS = 15 };

/* x = x * a + b by two ops, over and over. */
static void chain(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    (void)n_in, (void)n_out, (void)ctx;
    out[0] = in[0];
    for (int i = 0; i < OPS / 2; i++)
        out[0] = tl_add(t, tl_mul(t, out[0], in[1]), in[2]);
}

/* What ops are without a tape: a function that is not told what calls it, an array for each result.
 */
__attribute__((noinline)) static void mul_arrays(float *y, const float *a, const float *b, int n)
{
    for (int i = 0; i < n; i++)
        y[i] = a[i] * b[i];
}

__attribute__((noinline)) static void add_arrays(float *y, const float *a, const float *b, int n)
{
    for (int i = 0; i < n; i++)
        y[i] = a[i] + b[i];
}

static json_t *tiny(int n)
{
    float *room = calloc((size_t)(OPS + 3) * (size_t)n, sizeof *room), *a = room + n, *b = a + n;
    double least[3] = {(double)INFINITY, (double)INFINITY, (double)INFINITY};
    if (room == NULL)
        return json_null();
    for (int i = 0; i < n; i++)
        room[i] = (float)i, a[i] = 0.5f, b[i] = 1;
    tl_tape *t = tl_tape_new(NULL);
    tl_compiled *c = tl_compile(t, chain, 1, NULL);
    for (int round = 0; round < ROUNDS; round++)
        for (int way = 0; way < 3; way++) {
            const double start = busy();
            if (way == 0) {
                const float *x = room;
                for (int i = 0; i < OPS; i += 2) {
                    float *y = b + (size_t)(i + 1) * (size_t)n, *z = y + n;
                    mul_arrays(y, x, a, n);
                    add_arrays(z, y, b, n);
                    x = z;
                }
            } else {
                tl_tensor in[] = {tl_data(t, room, TL_F32, TL_DIMS(n)),
                                  tl_data(t, a, TL_F32, TL_DIMS(n)),
                                  tl_data(t, b, TL_F32, TL_DIMS(n))},
                          out;
                if (way == 1)
                    chain(t, in, 3, &out, 1, NULL);
                else
                    tl_run(c, in, 3, &out);
                tl_tape_reset(t);
            }
            least[way] = round < 2 ? least[way] : fmin(least[way], busy() - start);
        }
    warn_of(t);
    printf("scaling %d ops on %4d elements, ns each: arrays %6.1f  called %6.1f  compiled %6.1f = "
           "%.2f of arrays'\n",
           OPS, n, 1e9 * least[0] / OPS, 1e9 * least[1] / OPS, 1e9 * least[2] / OPS,
           least[2] / least[0]);
    tl_free(c, t);
    free(room);
    return json_pack("{s:i,s:f,s:f,s:f}", "elements", n, "arrays_seconds", least[0] / OPS,
                     "called_seconds", least[1] / OPS, "compiled_seconds", least[2] / OPS);
}

json_t *tl_bench_scaling(int rounds)
{
    (void)rounds;
    puts("");
    tl_threads_set(1);
    json_t *ops = json_array(), *grown = growth();
    for (int n = 1; n <= 1024; n *= 32)
        json_array_append_new(ops, tiny(n));
    return json_pack("{s:o,s:o}", "growth", grown, "tiny", ops);
}

/* ---- decoding, a token at a time: weights from memory ---- */

json_t *tl_bench_decode(int rounds)
{
    enum { STEPS = 24 };
    tl_llama_config c = {.vocab = 8192,
                         .width = 1024,
                         .layers = 8,
                         .heads = 16,
                         .hidden = 2816,
                         .max_positions = STEPS};
    json_t *all = json_array();
    (void)rounds;
    puts("");
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_kv_cache cache = tl_llama_cache(m, &c, 1, STEPS);
    tl_mode_push(t, TL_NO_GRAD);
    for (int threads = 1; threads <= 2; threads++) {
        double seconds[STEPS];
        cache.n = 0;
        tl_threads_set(threads);
        for (int i = 0; i < STEPS; i++) {
            int64_t id = i * 7;
            const double start = tl_bench_now();
            tl_llama(t, m, &c, tl_data(t, &id, TL_I64, TL_DIMS(1, 1)), .columns.cache = &cache);
            seconds[i] = tl_bench_now() - start;
            tl_tape_reset(t);
        }
        warn_of(t);
        /* an embedding's row aside, each is read once */
        const double bytes = 4 * ((double)tl_model_parameters(m) - (double)(c.vocab * c.width)),
                     most = tl_bench_bandwidth_gbs();
        tl_bench_timing took = tl_bench_timing_of(seconds + 4, STEPS - 4);
        const double rate = bytes / took.median * 1e-9;
        printf("decode  %.0f MB of weights  threads %d  %7.2f ms a token (spread %2.0f%%)  %5.1f "
               "GB/s = %.2f of one core's bandwidth\n",
               bytes / 1e6, threads, 1e3 * took.median, 100 * took.spread, rate, rate / most);
        json_array_append_new(all, json_pack("{s:i,s:f,s:f,s:f}", "threads", threads, "seconds",
                                             took.median, "gbytes_per_second", rate,
                                             "fraction_of_bandwidth", rate / most));
    }
    tl_free(t, m);
    return all;
}
