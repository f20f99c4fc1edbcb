/* equation: a network that solves u'' = f on [0, 1] with u(0) = u(1) = 0, knowing nothing but f.
 * Its second derivative, by two passes of backward that are recorded as any other ops, is to be f
 * at random points; a third pass differentiates that by the weights.
 *
 * Here f(x) = -9 pi^2 sin(3 pi x) + 2, whose solution is sin(3 pi x) + x^2 - x. At the end: both
 * drawn, and the greatest distance between them.
 * Source: Raissi, Perdikaris & Karniadakis 2019.
 */
#include <math.h>

#include "examples/example.h"

enum { COLUMNS = 72, ROWS = 21, POINTS = 4 * COLUMNS };
static const double pi3 = 9.42477796076938;
static int64_t width = 32;
static const ex_option own[] = {{EX_WHOLE, "--width", &width, 1, 4096, "of the hidden layers"}};

/* x (b, 1) -> (b, 1). The factor x (1 - x) makes it 0 at both ends. */
static tl_tensor u(tl_tape *t, tl_tensor x)
{
    tl_tensor h = tl_tanh(t,
                          tl_linear(t, ex.m, "first", tl_shift(t, tl_scale(t, x, 6), -3), width));
    h = tl_tanh(t, tl_linear(t, ex.m, "second", h, width));
    return tl_mul(t, tl_linear(t, ex.m, "last", h, 1), tl_mul(t, x, tl_shift(t, tl_neg(t, x), 1)));
}

/* dy/dx of each sample: the gradient of the sum, as no sample's y depends on another's x. */
static tl_tensor derivative(tl_tape *t, tl_tensor y, tl_tensor x)
{
    tl_tensor dx;
    tl_gradients(t, tl_sum(t, y, TL_ALL, false), &x, 1, TL_NONE, &dx);
    return dx;
}

static void batch(int64_t step, int64_t first, int64_t rows, tl_tensor *in)
{
    float x[1024];
    tl_rng_key key = tl_rng_stream((uint64_t)ex.seed, "points");
    for (int64_t i = 0; i < rows; i++)
        x[i] = tl_rng_uniform32(key, (uint64_t)step, (uint64_t)(first + i));
    in[0] = tl_data(ex.t, x, TL_F32, TL_DIMS(rows, 1));
}

static tl_tensor loss_of(tl_tape *t, const tl_tensor *in)
{
    tl_tensor x = in[0];
    tl_require_grad(t, x);
    tl_tensor f = tl_shift(t, tl_scale(t, tl_sin(t, tl_scale(t, x, pi3)), -pi3 * pi3), 2);
    tl_tensor error = tl_sub(t, derivative(t, derivative(t, u(t, x), x), x), f);
    return ex_mean(t, tl_square(t, error));
}

/* The network's u as 'o', the true one as '.', where they differ. */
static void picture(void)
{
    static float x[POINTS], y[POINTS];
    static char cell[ROWS][COLUMNS + 1];
    double worst = 0;
    for (int i = 0; i < POINTS; i++)
        x[i] = ((float)i + 0.5f) / POINTS;
    tl_mode_push(ex.t, TL_NO_GRAD);
    ex_check(tl_keep(ex.t, u(ex.t, tl_data(ex.t, x, TL_F32, TL_DIMS(POINTS, 1))), y, sizeof y));
    memset(cell, ' ', sizeof cell);
    for (int i = 0; i < POINTS; i++) {
        double p = (double)x[i], want = sin(pi3 * p) + p * p - p, got = (double)y[i];
        worst = fabs(got - want) > worst ? fabs(got - want) : worst;
        int row[2] = {(int)lround((1 - want) / 2.3 * ROWS), (int)lround((1 - got) / 2.3 * ROWS)};
        for (int k = 0; k < 2; k++)
            if (row[k] >= 0 && row[k] < ROWS)
                cell[row[k]][i * COLUMNS / POINTS] = ".o"[k];
    }
    puts("\nu by x from 0 to 1, from 1 above to -1.3 below: o the network's, . the solution");
    for (int row = 0; row < ROWS; row++)
        printf("%.*s\n", COLUMNS, cell[row]);
    printf("greatest distance from the solution %.5f\n", worst);
}

int main(int argc, char **argv)
{
    ex.steps = 2000, ex.batch = 64, ex.lr = 5e-3, ex.unit = "points";
    ex_begin(argc, argv,
             &(ex_program){"equation", "A network learns to solve u'' = f.\n", own,
                           sizeof own / sizeof *own, batch, 1, loss_of, NULL});
    if (ex.batch > 1024)
        ex_die(EX_WRONG_USE, "--batch %" PRId64 ": at most 1024 points are possible", ex.batch);
    ex.opt = tl_adamw_new(ex.m, .lr = ex.lr, .beta2 = 0.99,
                          .schedule = {TL_COSINE, .warmup = 50, .total = ex.steps,
                                       .min_ratio = 0.01});
    ex_ready();
    while (ex_step())
        if (ex_due())
            ex_say(ex.mean, "");
    picture();
    return ex_end();
}
