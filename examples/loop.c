/* loop [ROWS [STOP]]: a training loop with all that a long run needs - batches in another order
 * each epoch, micro-batches of ROWS samples (64), dropout, a checkpoint, and going on after STOP.
 *
 *     build/loop && build/loop 8 300 && build/loop 16     the first hash and the last are the same
 *
 * Read after spiral.c. docs/pytorch.md says where things are for those who come from PyTorch.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tally_data.h>

enum { SAMPLES = 500, BATCH = 64, STEPS = 600 };
static const char file[] = "loop.safetensors";

/* 1. The sum of this micro-batch's losses, divided by the number of samples in the whole batch:
 *    micro-batches then add up to the batch's mean. A draw of dropout belongs to a sample's number,
 *    which the loader counts through all epochs, and to a name of its own. */
static tl_tensor loss_of(tl_tape *t, tl_model *m, const tl_tensor in[2], const tl_loader *l)
{
    int64_t rows = tl_shape_of(t, in[0]).dim[0], number[BATCH];
    for (int64_t i = 0; i < rows; i++)
        number[i] = l->number + i;
    tl_tensor h = tl_relu(t, tl_linear(t, m, "first", in[0], 32));
    h = tl_dropout(t, h, 0.2, .stream = "hidden",
                   .sample = tl_data(t, number, TL_I64, TL_DIMS(rows)));
    return tl_cross_entropy(t, tl_linear(t, m, "last", h, 2), in[1], TL_MEAN,
                            .count = tl_scalar(t, TL_F64, (double)l->size));
}

/* 2. Points in a square, inside or outside of a circle. */
static void points(float x[SAMPLES][2], int64_t y[SAMPLES])
{
    const tl_rng_key key = tl_rng_stream(7, "points");
    for (int i = 0; i < SAMPLES; i++) {
        x[i][0] = 2 * (float)tl_rng_uniform64(key, 0, (uint64_t)i) - 1;
        x[i][1] = 2 * (float)tl_rng_uniform64(key, 1, (uint64_t)i) - 1;
        y[i] = x[i][0] * x[i][0] + x[i][1] * x[i][1] < 0.5f;
    }
}

int main(int argc, char **argv)
{
    char none[] = "", *end[2] = {none, none}; /* behind the numbers */
    const long rows = argc > 1 ? strtol(argv[1], &end[0], 10) : BATCH;
    const long stop = argc > 2 ? strtol(argv[2], &end[1], 10) : STEPS;
    if (argc > 3 || *end[0] != '\0' || *end[1] != '\0' || rows < 1 || rows > BATCH || stop < 1 ||
        stop > STEPS) {
        const int help = argc == 2 &&
                         (strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "--help") == 0);
        fprintf(
            help ? stdout : stderr,
            "usage: loop [ROWS [STOP]]   trains in micro-batches of ROWS samples, 1 to %d, up to\n"
            "                            step STOP, 1 to %d, and goes on from %s\n",
            BATCH, STEPS, file);
        return help ? 0 : 2;
    }
    FILE *there = fopen(file, "rb");
    if (there == NULL && errno != ENOENT) { /* there may be one, which must not be written over */
        perror(file);
        return 1;
    }
    static float x[SAMPLES][2];
    static int64_t y[SAMPLES];
    points(x, y);
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_mode_push(t, TL_STRICT); /* what would make the hash depend on the split is an error */
    tl_opt *opt = tl_adamw_new(m, .lr = 1e-2, .schedule = {TL_COSINE, .total = STEPS});
    const tl_array data[] = {tl_samples(TL_F32, TL_DIMS(SAMPLES, 2), x),
                             tl_samples(TL_I64, TL_DIMS(SAMPLES), y)};
    tl_loader l = tl_loader_new(t, "points", data, 2, .batch = BATCH);
    tl_tensor in[2];

    /* 3. A checkpoint holds parameters, the optimizer's state and the loader's place. Parameters
     *    are made by the first forward call, so there is one before they are loaded. */
    if (there != NULL) {
        fclose(there);
        tl_tensor one[] = {tl_data(t, x, TL_F32, TL_DIMS(1, 2)), tl_data(t, y, TL_I64, TL_DIMS(1))};
        l.size = 1;
        loss_of(t, m, one, &l);
        tl_tape_reset(t);
        if (tl_checkpoint_load(m, opt, file, NULL, NULL, 0) == TL_OK)
            printf("going on from step %lld\n", (long long)tl_opt_steps(opt));
    }

    /* 4. A step: all micro-batches of a batch, with a reset after each; gradients add up until the
     *    optimizer takes them. */
    while (!tl_failed(t) && !tl_failed(m) && tl_opt_steps(opt) < stop) {
        double sum = 0;
        do {
            if (tl_loader_next(t, &l, rows, in) == 0)
                break;
            tl_tensor loss = loss_of(t, m, in, &l);
            tl_backward(t, loss);
            sum += tl_item(t, loss);
            if (l.left == 0)
                tl_step(opt, t);
            tl_tape_reset(t);
        } while (l.left > 0);
        if (!tl_failed(t) && tl_opt_steps(opt) % 100 == 0)
            printf("step %3lld  loss %.4f\n", (long long)tl_opt_steps(opt), sum);
    }
    char hash[65];
    int ok = tl_error_status(t) == TL_OK && tl_checkpoint_save(m, opt, file, NULL, 0) == TL_OK &&
             tl_model_sha256(m, hash) == TL_OK;
    if (ok)
        printf("weights sha256 %s\n", hash);
    else
        fprintf(stderr, "loop: %s\n", tl_error(t));
    if (ok && stop == STEPS)
        remove(file);
    errno = EIO;
    if (fflush(stdout) != 0 || ferror(stdout)) {
        perror("loop: cannot write the output");
        ok = 0;
    }
    tl_free(opt, t, m);
    return !ok;
}
