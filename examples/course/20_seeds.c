/* Lesson 20: many seeds, or what determinism does not tell you.
 *
 * A run that always ends with the same bits can be repeated, compared and debugged. But the bits
 * are those of one seed: one draw of the first weights. Another seed is another run, whose result
 * may be better or worse by more than the thing you wanted to compare.
 *
 * Two widths of a small net are compared, each with 12 seeds. Each run is repeatable to the last
 * bit. One seed cannot tell which width is better; 12 seeds can tell by how much on average, and
 * the standard error how far such an average may easily be off.
 */
#include <math.h>
#include <string.h>
#include <tally.h>

#include "examples/course/course.h"

enum { SIDE = 6, POINTS = SIDE * SIDE, SEEDS = 12, STEPS = 40, NARROW = 6, WIDE = 8 };
static float x[POINTS][2], y[POINTS][1];

/* The loss after some steps on y = x0 * x1; hash: of the weights. */
static double train(uint64_t seed, int width, char hash[65])
{
    double loss = 0;
    tl_model *m = tl_model_new(.seed = seed);
    tl_tape *t = tl_tape_new(m);
    tl_opt *opt = tl_adamw_new(m, .lr = 3e-2);
    tl_tensor in = tl_data(m, x, TL_F32, TL_DIMS(POINTS, 2));
    tl_tensor want = tl_data(m, y, TL_F32, TL_DIMS(POINTS, 1));
    for (int step = 0; step < STEPS; step++) {
        tl_tensor h = tl_tanh(t, tl_linear(t, m, "l1", in, width));
        tl_tensor off = tl_mse(t, tl_linear(t, m, "l2", h, 1), want);
        loss = tl_item(t, off);
        tl_backward(t, off);
        tl_step(opt, t);
        tl_tape_reset(t);
    }
    tl_model_sha256(m, hash);
    tl_free(opt, t, m);
    return loss;
}

int main(void)
{
    int wins = 0;
    bool held = true;
    double mean[2] = {0, 0}, squares = 0;
    for (int i = 0; i < POINTS; i++) {
        x[i][0] = (float)(i % SIDE) / 2.5f - 1;
        x[i][1] = (float)(i / SIDE) / 2.5f - 1;
        y[i][0] = x[i][0] * x[i][1];
    }
    printf("seed   loss: %d wide   %d wide   better\n", NARROW, WIDE);
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        char hash[4][65];
        double a = train(seed, NARROW, hash[0]), b = train(seed, WIDE, hash[1]);
        train(seed, NARROW, hash[2]); /* again: the same bits */
        train(seed, WIDE, hash[3]);
        held &= strcmp(hash[0], hash[2]) == 0 && strcmp(hash[1], hash[3]) == 0;
        printf("%4d   %12.5f %8.5f   %*d\n", (int)seed, a, b, a < b ? 1 : 3, a < b ? NARROW : WIDE);
        wins += a < b;
        mean[0] += a / SEEDS;
        mean[1] += b / SEEDS;
        squares += (a - b) * (a - b);
    }
    printf("mean   %12.5f %8.5f   %d wide is better with %d of %d seeds\n", mean[0], mean[1],
           NARROW, wins, SEEDS);
    double d = mean[0] - mean[1], error = sqrt((squares / SEEDS - d * d) / (SEEDS - 1));
    printf("%d wide is %s by %.3f +- %.3f (standard error)\n", WIDE, d < 0 ? "higher" : "lower",
           fabs(d), error);
    held &= wins > 0 && wins < SEEDS;
    return course_end(held, "one seed repeats an answer; only many tell how sure it is.");
}
