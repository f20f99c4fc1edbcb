/* Lesson 16: micro-batches that equal the whole batch.
 *
 * A batch that does not fit into memory is taken in parts, whose gradients are added up. The usual
 * way takes the mean loss of each part, scales it by 1/parts, and adds finished gradients. That is
 * another tree of additions, so different bits for each way of splitting (lesson 3). Worse, where
 * the parts are not equally long it is a different gradient: a sample in a short part weighs more.
 *
 * We divide by the count of the whole batch, and Tally lets each part continue the sums of the one
 * before it instead of adding finished sums. Then it is the same tree, however the batch is split.
 */
#include <math.h>
#include <string.h>
#include <tally_data.h>

#include "examples/course/course.h"

enum { SAMPLES = 24, WIDTH = 8 };
static float x[SAMPLES][WIDTH], y[SAMPLES][1];

/* The gradient of the weights, from parts of so many samples. */
static void continued(int part, float g[WIDTH])
{
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    for (int i = 0; i < SAMPLES; i += part) {
        int n = i + part < SAMPLES ? part : SAMPLES - i;
        tl_tensor in = tl_data(t, x[i], TL_F32, TL_DIMS(n, WIDTH));
        tl_tensor want = tl_data(t, y[i], TL_F32, TL_DIMS(n, 1));
        tl_tensor off = tl_sub(t, tl_linear(t, m, "line", in, 1), want);
        tl_tensor sum = tl_sum(t, tl_square(t, off), TL_ALL, false);
        tl_backward(t, tl_scale(t, sum, 1.0 / SAMPLES));
        tl_tape_reset(t);
    }
    tl_keep(t, tl_grad(t, tl_model_find(m, "line.weight")), g, WIDTH * sizeof *g);
    tl_free(t, m);
}

/* The usual way: each part's finished gradient on a tape of its own, added to the others. */
static void added_up(int part, float g[WIDTH])
{
    int parts = (SAMPLES + part - 1) / part;
    tl_model *m = tl_model_new(.seed = 1);
    memset(g, 0, WIDTH * sizeof *g);
    for (int i = 0; i < SAMPLES; i += part) {
        float one[WIDTH];
        int n = i + part < SAMPLES ? part : SAMPLES - i;
        tl_tape *t = tl_tape_new(m);
        tl_tensor in = tl_data(t, x[i], TL_F32, TL_DIMS(n, WIDTH));
        tl_tensor want = tl_data(t, y[i], TL_F32, TL_DIMS(n, 1));
        tl_tensor loss = tl_mse(t, tl_linear(t, m, "line", in, 1), want);
        tl_backward(t, tl_scale(t, loss, 1.0 / parts));
        tl_keep(t, tl_grad(t, tl_model_find(m, "line.weight")), one, sizeof one);
        for (int k = 0; k < WIDTH; k++)
            g[k] += one[k];
        tl_free(t);
    }
    tl_free(m);
}

/* The largest difference between two elements. */
static double farthest(const float a[WIDTH], const float b[WIDTH])
{
    double most = 0;
    for (int k = 0; k < WIDTH; k++) {
        const double apart = fabs((double)a[k] - (double)b[k]);
        most = apart > most ? apart : most;
    }
    return most;
}

int main(void)
{
    static const int part[] = {24, 12, 8, 6, 3, 1, 10, 7};
    const float zero[WIDTH] = {0};
    float whole[WIDTH], ours[WIDTH], usual[WIDTH];
    bool same = true, bits = false, wrong = false;
    tl_rng_key key = tl_rng_stream(1, "micro-batches");
    for (uint64_t i = 0; i < SAMPLES; i++) {
        for (uint64_t k = 0; k < WIDTH; k++)
            x[i][k] = (float)tl_rng_normal64(key, i, k);
        y[i][0] = (float)tl_rng_normal64(key, i, WIDTH);
    }
    continued(SAMPLES, whole);
    const double size = farthest(whole, zero);

    printf("             error, relative to the gradient's largest element\n");
    printf("at a time    Tally        scaled by 1/parts\n");
    for (int i = 0; i < 8; i++) {
        continued(part[i], ours);
        added_up(part[i], usual);
        double worst[2] = {farthest(ours, whole), farthest(usual, whole)};
        printf("%9d    %-10g   %.1e%s\n", part[i], worst[0] / size, worst[1] / size,
               SAMPLES % part[i] == 0 ? "" : "   parts of unequal length");
        same &= memcmp(whole, ours, sizeof whole) == 0;
        bits |= SAMPLES % part[i] == 0 && worst[1] > 0;
        wrong |= SAMPLES % part[i] != 0 && worst[1] / size > 1e-3;
    }
    return course_end(same && bits && wrong, "sums that continue have one result for any split.");
}
