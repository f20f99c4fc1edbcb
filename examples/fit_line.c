/* fit_line: the smallest training loop - a line through noisy points, by SGD.
 *
 * Read first; spiral.c is next, then train_addition.c and train_text.c.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <tally_data.h>

enum { POINTS = 100, STEPS = 200 };

/* 1. What is to become small: the mean of (line - y)^2. Ops go on the tape; tl_linear makes the
 *    line's two parameters at the first call, and finds them at later ones. */
static tl_tensor error_of(tl_tape *t, tl_model *m, tl_tensor x, tl_tensor y)
{
    tl_tensor line = tl_linear(t, m, "line", x, 1);
    return tl_mean(t, tl_square(t, tl_sub(t, line, y)), TL_ALL, false);
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        const int help = strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "--help") == 0;
        fprintf(help ? stdout : stderr,
                "usage: fit_line      fits a line to noisy points by SGD\n");
        return help ? 0 : 2;
    }
    /* 2. Points near y = 3x - 2. A draw is a function of its stream and its place, not of the draws
     * before it. */
    static float x[POINTS][1], y[POINTS][1];
    tl_rng_key noise = tl_rng_stream(7, "noise");
    for (int i = 0; i < POINTS; i++) {
        x[i][0] = (float)i / POINTS * 2 - 1;
        y[i][0] = 3 * x[i][0] - 2 + 0.1f * (float)tl_rng_normal64(noise, 0, (uint64_t)i);
    }

    /* 3. The model owns what lasts: the data and the parameters. The tape owns what a step
     * computes. The optimizer changes the parameters. */
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *opt = tl_sgd_new(m, .lr = 0.1, .momentum = 0.9);
    tl_tensor in = tl_data(m, x, TL_F32, TL_DIMS(POINTS, 1)),
              want = tl_data(m, y, TL_F32, TL_DIMS(POINTS, 1));

    /* 4. A step: predict, measure, differentiate, change, forget. No call needs checking, because
     * the first error stays on the tape and later calls do nothing. */
    for (int i = 1; i <= STEPS && !tl_failed(t); i++) {
        tl_tensor loss = error_of(t, m, in, want);
        tl_backward(t, loss);
        tl_step(opt, t);
        if (i == 1 || i % 50 == 0)
            printf("step %3d  mean squared error %.5f\n", i, tl_item(t, loss));
        tl_tape_reset(t);
    }

    /* 5. The parameters have names. */
    double slope = tl_item(t, tl_model_find(m, "line.weight")),
           level = tl_item(t, tl_model_find(m, "line.bias"));
    int failed = tl_failed(t);
    if (failed)
        fprintf(stderr, "fit_line: %s\n", tl_error(t));
    else
        printf("y = %.3f x %c %.3f, from points near y = 3 x - 2\n", slope, level < 0 ? '-' : '+',
               level < 0 ? -level : level);
    errno = EIO; /* if a write has failed before this one, which may say more */
    if (fflush(stdout) != 0 || ferror(stdout)) {
        perror("fit_line: cannot write the output");
        failed = 1;
    }
    tl_free(opt, t, m);
    return failed;
}
