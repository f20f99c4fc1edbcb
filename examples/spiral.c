/* spiral: three arms of a spiral, told apart by a small network - and a picture of
 * what it learned.
 *
 * Read after fit_line.c.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <tally_data.h>

enum {
    ARMS = 3,
    PER_ARM = 100,
    POINTS = ARMS * PER_ARM,
    STEPS = 1000,
    COLUMNS = 64,
    ROWS = 32,
    CELLS = ROWS * COLUMNS
};

/* 1. A network is a function: it records ops on the tape and returns a tensor. Its parameters are
 *    made at the first call, each drawn from a stream of its own name, and found at later calls. */
static tl_tensor network(tl_tape *t, tl_model *m, tl_tensor x)
{
    tl_tensor h = tl_tanh(t, tl_linear(t, m, "first", x, 32));
    h = tl_tanh(t, tl_linear(t, m, "second", h, 32));
    return tl_linear(t, m, "last", h, ARMS); /* one score an arm */
}

/* 2. Points on the arms: radius r from 0 to 1, angle growing with it. Sine and cosine are the
 *    library's, because the C library's may differ in the last bit from machine to machine. */
static void points(tl_tape *t, float xy[POINTS][2], int64_t arm[POINTS])
{
    static float angle[POINTS], c[POINTS], s[POINTS];
    tl_rng_key noise = tl_rng_stream(7, "noise");
    for (int i = 0; i < POINTS; i++) {
        arm[i] = i / PER_ARM;
        angle[i] = (float)arm[i] * 2.0944f +
                   (float)(i % PER_ARM) / PER_ARM * 5; /* arms 120 degrees apart */
        angle[i] += 0.15f * (float)tl_rng_normal64(noise, 0, (uint64_t)i);
    }
    tl_tensor a = tl_data(t, angle, TL_F32, TL_DIMS(POINTS));
    tl_keep(t, tl_cos(t, a), c, sizeof c);
    tl_keep(t, tl_sin(t, a), s, sizeof s);
    for (int i = 0; i < POINTS; i++) {
        float r = (float)(i % PER_ARM) / PER_ARM;
        xy[i][0] = r * c[i];
        xy[i][1] = r * s[i];
    }
    tl_tape_reset(t);
}

/* 3. The class of highest score for n points; no gradients are wanted here. */
static void classify(tl_tape *t, tl_model *m, const float (*xy)[2], int64_t n, int64_t *class)
{
    int mode = tl_mode_push(t, TL_NO_GRAD);
    tl_tensor z = network(t, m, tl_data(t, xy, TL_F32, TL_DIMS(n, 2)));
    tl_keep(t, tl_argmax(t, z, -1, false), class, (size_t)n * sizeof *class);
    tl_mode_pop(t, mode);
    tl_tape_reset(t);
}

/* 4. The square from -1.1 to 1.1: the decision everywhere, the points in capitals upon it. */
static void picture(tl_tape *t, tl_model *m, const float (*xy)[2], const int64_t *arm)
{
    static float grid[CELLS][2];
    static int64_t class[CELLS];
    char cell[CELLS];
    for (int i = 0; i < CELLS; i++) {
        grid[i][0] = ((float)(i % COLUMNS) + 0.5f) / COLUMNS * 2.2f - 1.1f;
        grid[i][1] = 1.1f - ((float)(i / COLUMNS) + 0.5f) / ROWS * 2.2f;
    }
    classify(t, m, (const float(*)[2])grid, CELLS, class);
    for (int i = 0; i < CELLS; i++)
        cell[i] = ".-+"[class[i]];
    for (int i = 0; i < POINTS; i++) {
        int column = (int)((xy[i][0] + 1.1f) / 2.2f * COLUMNS),
            row = (int)((1.1f - xy[i][1]) / 2.2f * ROWS);
        if (column >= 0 && column < COLUMNS && row >= 0 && row < ROWS)
            cell[row * COLUMNS + column] = "ABC"[arm[i]];
    }
    puts("the square from -1.1 to 1.1; arms A, B, C and where . - + each is expected:");
    for (int row = 0; row < ROWS; row++)
        printf("%.*s\n", COLUMNS, cell + row * COLUMNS);
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        const int help = strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "--help") == 0;
        fprintf(help ? stdout : stderr,
                "usage: spiral      tells three arms of a spiral apart, and draws them\n");
        return help ? 0 : 2;
    }
    static float xy[POINTS][2];
    static int64_t arm[POINTS], class[POINTS];
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *opt = tl_adamw_new(m, .lr = 1e-2,
                               .schedule = {TL_COSINE, .warmup = 20, .total = STEPS});
    points(t, xy, arm);
    tl_tensor in = tl_data(m, xy, TL_F32, TL_DIMS(POINTS, 2)),
              want = tl_data(m, arm, TL_I64, TL_DIMS(POINTS));

    for (int i = 1; i <= STEPS && !tl_failed(t); i++) {
        tl_tensor loss = tl_cross_entropy(t, network(t, m, in), want, TL_MEAN);
        tl_backward(t, loss);
        tl_step(opt, t);
        if (i == 1 || i % 200 == 0)
            printf("step %4d  loss %.4f\n", i, tl_item(t, loss));
        tl_tape_reset(t);
    }

    int right = 0;
    classify(t, m, (const float(*)[2])xy, POINTS, class);
    for (int i = 0; i < POINTS; i++)
        right += class[i] == arm[i];
    picture(t, m, (const float(*)[2])xy, arm);
    printf("accuracy %.1f%% (%d of %d points)\n", 100.0 * right / POINTS, right, POINTS);
    int failed = tl_failed(t);
    if (failed)
        fprintf(stderr, "spiral: %s\n", tl_error(t));
    errno = EIO; /* if a write has failed before this one, which may say more */
    if (fflush(stdout) != 0 || ferror(stdout)) {
        perror("spiral: cannot write the output");
        failed = 1;
    }
    tl_free(opt, t, m);
    return failed;
}
