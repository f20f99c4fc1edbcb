/* bench_rows.c: ops that are bound by memory, forward and backward, in turn with PyTorch's, in the
 * cache and out of it: one thread, f32, by processor time. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tally.h"
#include "tests/bench/bench.h"

/* Arrays that do not fit the third cache, and some of half a megabyte. */
enum { SIZES = 2, HEADS = 4, POSITIONS = 64, MOST_ROUNDS = 100 };
static const struct size {
    const char *say;
    int64_t rows, width;
    int repeats; /* of a step, of which the least counts: other processes empty the cache */
} sizes[SIZES] = {{"in the cache", 256, 512, 16}, {"from memory", 16384, 1024, 1}};

/* What ops are called on, beside parameters. */
typedef struct {
    const struct size *size;
    tl_tape *t;
    tl_model *m;
    tl_opt *opt;
    tl_tensor dy, dy16, r1, r2, ids, left, right; /* the last two make a gradient for AdamW */
} inputs;

static tl_tensor param(const inputs *in, const char *name, tl_dtype dtype, tl_shape s)
{
    return tl_param(in->t, in->m, name, dtype, s, .kind = TL_INIT_UNIFORM, .scale = 1);
}

static tl_shape flat(const inputs *in) { return TL_DIMS(in->size->rows, in->size->width); }

static tl_tensor rms_norm(const inputs *in, tl_tensor *x)
{
    x[1] = param(in, "gamma", TL_F32, TL_DIMS(in->size->width));
    return tl_rms_norm(in->t, x[0], x[1], 1e-5);
}
static tl_tensor add_rms_norm(const inputs *in, tl_tensor *x)
{
    tl_tensor rstd, sum;
    x[1] = param(in, "gamma", TL_F32, TL_DIMS(in->size->width));
    x[2] = param(in, "x2", TL_F32, flat(in));
    return tl_add_rms_norm(in->t, x[0], x[2], x[1], 1e-5, &rstd, &sum);
}
static tl_tensor layer_norm(const inputs *in, tl_tensor *x)
{
    x[1] = param(in, "gamma", TL_F32, TL_DIMS(in->size->width));
    x[2] = param(in, "beta", TL_F32, TL_DIMS(in->size->width));
    return tl_layer_norm(in->t, x[0], x[1], x[2], 1e-5);
}
static tl_tensor rotary(const inputs *in, tl_tensor *x)
{
    int64_t d = in->size->width / HEADS;
    tl_tensor y = tl_reshape(in->t, x[0], TL_DIMS(in->size->rows / POSITIONS, HEADS, POSITIONS, d));
    y = tl_rotary(in->t, y, in->r1, in->r2, TL_ROTARY_HALF);
    return tl_reshape(in->t, y, flat(in));
}
static tl_tensor softmax(const inputs *in, tl_tensor *x) { return tl_softmax(in->t, x[0], -1); }
static tl_tensor cross_entropy(const inputs *in, tl_tensor *x)
{
    return tl_cross_entropy(in->t, x[0], in->ids, TL_MEAN);
}
static tl_tensor cast(const inputs *in, tl_tensor *x) { return tl_cast(in->t, x[0], TL_BF16); }

static const struct op {
    const char *name;
    tl_tensor (*call)(const inputs *in, tl_tensor *x); /* x[0] given, others set; NULL: AdamW */
    int n_x;
    double forward, backward; /* bytes for an element, those of gamma left out */
    tl_dtype dtype;           /* of the cotangent; 0: none is needed */
} ops[] = {
    /* first: it steps all parameters, of which there is one by then */
    {"adamw", NULL, 1, 28, (double)NAN, TL_F32},
    {"rms_norm", rms_norm, 2, 8, 12, TL_F32},
    {"add_rms_norm", add_rms_norm, 3, 16, 12, TL_F32},
    {"layer_norm", layer_norm, 3, 8, 12, TL_F32},
    {"rotary", rotary, 1, 8, 8, TL_F32},
    {"softmax", softmax, 1, 8, 12, TL_F32},
    {"cross_entropy", cross_entropy, 1, 4, 8, (tl_dtype)0},
    {"cast", cast, 1, 6, 6, TL_BF16},
};
enum { OPS = sizeof ops / sizeof *ops };

/* Seconds of forward and of backward: the least of the repeats. */
static void step(const struct op *op, const inputs *in, double seconds[2])
{
    seconds[0] = seconds[1] = (double)INFINITY;
    for (int i = 0; i < in->size->repeats; i++) {
        tl_tensor x[3] = {param(in, "x", TL_F32, flat(in))}, dx[3], dy = TL_NONE, y = x[0];
        if (op->dtype != 0)
            dy = op->dtype == TL_F32 ? in->dy : in->dy16;
        if (op->call == NULL)
            tl_backward(in->t, tl_matmul(in->t, in->left, x[0]), .cotangent = in->right);
        double a = tl_bench_processor();
        if (op->call == NULL)
            tl_step(in->opt, in->t);
        else
            y = op->call(in, x);
        double b = tl_bench_processor();
        if (op->call != NULL)
            tl_gradients(in->t, y, x, op->n_x, dy, dx);
        double c = tl_bench_processor();
        seconds[0] = fmin(seconds[0], b - a);
        seconds[1] = fmin(seconds[1], c - b);
        if (tl_failed(in->t))
            printf("        failed: %s\n", tl_error(in->t));
        tl_tape_reset(in->t);
    }
}

static json_t *row_of(const struct op *op, const inputs *in, tl_bench_peer *p, int rounds,
                      double budget)
{
    static double over[2][MOST_ROUNDS];
    double own[2], least[2] = {(double)INFINITY, (double)INFINITY},
                   theirs[2] = {least[0], least[0]};
    double elements = (double)(in->size->rows * in->size->width), bandwidth = 0;
    double start = tl_bench_now();
    int n = 0;
    step(op, in, own);
    tl_bench_peer_step(p, op->name);
    while (n < rounds && n < MOST_ROUNDS && (n < 9 || tl_bench_now() - start < budget)) {
        step(op, in, own);
        bool there = isfinite(tl_bench_peer_step(p, op->name));
        double other[2] = {p->spent - p->update, p->update};
        for (int k = 0; k < 2; k++) {
            over[k][n] = there ? other[k] / own[k] : (double)NAN;
            least[k] = fmin(least[k], own[k]);
            theirs[k] = there ? fmin(theirs[k], other[k]) : (double)NAN;
        }
        if (n++ % 8 == 0)
            bandwidth = fmax(bandwidth, tl_bench_bandwidth_gbs());
    }
    json_t *row = json_pack("{s:s,s:s}", "op", op->name, "where", in->size->say);
    printf("    %-13s", op->name);
    for (int k = 0; k < 2; k++) {
        static const char *const pass[] = {"forward", "backward"};
        double bytes = (k == 0 ? op->forward : op->backward) * elements;
        if (isnan(bytes))
            continue;
        tl_bench_timing r = tl_bench_timing_of(over[k], n);
        printf("  %s %8.3f ms %6.1f GB/s %5.2f of moving, torch %5.2f %5.2f x (%2.0f%%)", pass[k],
               least[k] * 1e3, bytes / least[k] * 1e-9, least[k] * bandwidth * 1e9 / bytes,
               r.median, theirs[k] / least[k], 100 * r.spread);
        json_object_set_new(row, pass[k], json_real(least[k]));
    }
    putchar('\n');
    return row;
}

json_t *tl_bench_rows(int rounds)
{
    json_t *all = json_array();
    tl_threads_set(1);
    for (int i = 0; i < SIZES; i++) {
        const struct size *s = &sizes[i];
        inputs in = {.size = s, .m = tl_model_new(.seed = 1)};
        int64_t d = s->width / HEADS, *ids = calloc((size_t)s->rows, sizeof *ids);
        float *r = calloc((size_t)(2 * POSITIONS * d), sizeof *r),
              *dy = calloc((size_t)(s->rows * s->width), sizeof *dy);
        uint16_t *dy16 = calloc((size_t)(s->rows * s->width), sizeof *dy16);
        in.t = tl_tape_new(in.m);
        in.opt = tl_adamw_new(in.m, .lr = 1e-3);
        for (int64_t k = 0; k < s->rows; k++)
            ids[k] = k * 7919 % s->width;
        for (int64_t k = 0; k < s->rows * s->width; k++)
            dy[k] = (float)(k * 7919 % 2003) / 2003, dy16[k] = (uint16_t)(0x3f00 + k % 128);
        in.dy = tl_data(in.m, dy, TL_F32, flat(&in));
        in.dy16 = tl_data(in.m, dy16, TL_BF16, flat(&in));
        in.left = tl_data(in.m, dy, TL_F32, TL_DIMS(1, s->rows));
        in.right = tl_data(in.m, dy, TL_F32, TL_DIMS(1, s->width));
        tl_rotary_table(0, POSITIONS, d, 10000, TL_ROTARY_HALF, r, r + POSITIONS * d);
        in.r1 = tl_data(in.m, r, TL_F32, TL_DIMS(POSITIONS, d));
        in.r2 = tl_data(in.m, r + POSITIONS * d, TL_F32, TL_DIMS(POSITIONS, d));
        in.ids = tl_data(in.m, ids, TL_I64, TL_DIMS(s->rows));
        tl_bench_peer p = tl_bench_peer_open(
            "rows", (int64_t[TL_BENCH_NUMBERS]){s->rows, s->width, s->repeats}, 1);
        printf(
            "\nops bound by memory, %s (%lld x %lld), 1 thread: the least time, and over that of "
            "moving its bytes at measured bandwidth; PyTorch's over ours, the median of rounds "
            "(spread) and by the least\n",
            s->say, (long long)s->rows, (long long)s->width);
        for (int k = 0; k < OPS; k++)
            json_array_append_new(all, row_of(&ops[k], &in, &p, rounds, 50.0 / (OPS * SIZES)));
        tl_bench_peer_close(&p);
        tl_free(in.opt, in.t, in.m);
        free(ids);
        free(r);
        free(dy);
        free(dy16);
    }
    return all;
}
