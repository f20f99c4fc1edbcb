/* gan: two networks against each other (Goodfellow et al. 2014). A generator turns noise into
 * points; a critic tells them from points on two rings. Both learn in one step: the critic's
 * weights are detached where the generator's points pass through it to teach the generator, those
 * points where they teach the critic. At the end: where the generator's points fall. */
#include <math.h>

#include "examples/example.h"

enum { COLUMNS = 33, ROWS = 33, SHOWN = 2000, NOISE = 8 };
static int64_t width = 64;
static const ex_option own[] = {{EX_WHOLE, "--width", &width, 1, 4096, "of the hidden layers"}};

/* y = x W + b; `fixed`: its weights learn nothing from y. */
static tl_tensor layer(tl_tape *t, const char *name, tl_tensor x, int64_t outputs, bool fixed)
{
    char weight[64], bias[64];
    int64_t inputs = tl_shape_of(t, x).dim[1];
    snprintf(weight, sizeof weight, "%s.weight", name);
    snprintf(bias, sizeof bias, "%s.bias", name);
    tl_tensor w = tl_param(t, ex.m, weight, TL_F32, TL_DIMS(inputs, outputs), TL_INIT_NORMAL,
                           inputs < 10 ? 0.5 : 0.15);
    tl_tensor b = tl_param(t, ex.m, bias, TL_F32, TL_DIMS(outputs));
    return tl_add(t, tl_matmul(t, x, fixed ? tl_detach(t, w) : w), fixed ? tl_detach(t, b) : b);
}

static tl_tensor generator(tl_tape *t, tl_tensor noise)
{
    tl_tensor h = tl_relu(t, layer(t, "generator.first", noise, width, false));
    h = tl_relu(t, layer(t, "generator.second", h, width, false));
    return layer(t, "generator.last", h, 2, false);
}

/* Logits of a point's being real. */
static tl_tensor critic(tl_tape *t, tl_tensor x, bool fixed)
{
    tl_tensor h = tl_silu(t, layer(t, "critic.first", x, width, fixed));
    h = tl_silu(t, layer(t, "critic.second", h, width, fixed));
    return layer(t, "critic.last", h, 1, fixed);
}

/* Points on two rings, and the noise of as many others. */
static void batch(int64_t step, int64_t first, int64_t rows, tl_tensor *in)
{
    tl_rng_key key = tl_rng_stream((uint64_t)ex.seed, "rings");
    float *x = ex_need(malloc((size_t)rows * 2 * sizeof *x));
    int64_t number = step * ex.batch + first;
    for (int64_t i = 0; i < rows; i++) { /* the direction of two normal draws is uniform */
        double p[2], side = tl_rng_u32(key, (uint64_t)(number + i), 4) % 2 != 0 ? 1 : -1;
        tl_rng_fill_normal64(p, 2, key, (uint64_t)(number + i), 0);
        double far = sqrt(p[0] * p[0] + p[1] * p[1]);
        x[2 * i] = (float)(p[0] / far + side * 1.2);
        x[2 * i + 1] = (float)(p[1] / far + side * 0.3);
    }
    in[0] = tl_data(ex.t, x, TL_F32, TL_DIMS(rows, 2));
    in[1] = ex_numbers(number, rows);
    free(x);
}

static tl_tensor loss_of(tl_tape *t, const tl_tensor *in)
{
    tl_shape s = TL_DIMS(tl_shape_of(t, in[0]).dim[0], NOISE);
    tl_tensor made = generator(t, tl_normal(t, TL_F32, s, "noise", .sample = in[1]));
    tl_require_grad(t, in[0]);
    tl_tensor slope, real = critic(t, in[0], false), told = critic(t, tl_detach(t, made), false),
                     taken = critic(t, made, true);
    /* -log(p) of real ones and -log(1 - p) of others for the critic, -log(p) for the generator */
    tl_tensor each = tl_add(t, tl_softplus(t, tl_neg(t, real)), tl_softplus(t, told));
    each = tl_add(t, each, tl_softplus(t, tl_neg(t, taken)));
    /* and the square of the critic's slope at real points, or the two would run in circles */
    tl_gradients(t, tl_sum(t, real, TL_ALL, false), in, 1, TL_NONE, &slope);
    slope = tl_scale(t, tl_sum(t, tl_square(t, slope), TL_DIMS(1), true), 0.1);
    return ex_mean(t, tl_add(t, each, slope));
}

int main(int argc, char **argv)
{
    static float x[SHOWN][2], cell[ROWS * COLUMNS];
    ex.steps = 4000, ex.batch = 64, ex.lr = 2e-3;
    ex_begin(argc, argv,
             &(ex_program){"gan", "Two networks compete; one learns to draw two rings.\n", own,
                           sizeof own / sizeof *own, batch, 2, loss_of, NULL});
    ex.opt = tl_adam_new(ex.m, .lr = ex.lr, .beta1 = 0.5);
    ex_ready();
    while (ex_step())
        if (ex_due())
            ex_say(ex.mean, "");
    tl_mode_push(ex.t, TL_NO_GRAD);
    tl_tensor made = generator(ex.t, tl_normal(ex.t, TL_F32, TL_DIMS(SHOWN, NOISE), "shown"));
    ex_check(tl_keep(ex.t, made, x, sizeof x));
    for (int i = 0; i < SHOWN; i++) {
        float column = (x[i][0] + 2.5f) / 5 * COLUMNS, row = (1.6f - x[i][1]) / 3.2f * ROWS;
        if (column >= 0 && column < COLUMNS && row >= 0 && row < ROWS)
            cell[(int)row * COLUMNS + (int)column] += 0.15f;
    }
    puts("\npoints that the generator makes; x from -2.5 to 2.5, y from -1.6 to 1.6:");
    ex_picture(cell, 1, ROWS, COLUMNS);
    return ex_end();
}
