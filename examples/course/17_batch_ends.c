/* Lesson 17: where the batch ends.
 *
 * The gradient of a weight is a sum over samples. Where in the program is it summed? A line can be
 * drawn between the values that no sample has a part in and those that depend on the batch:
 *
 *                      |
 *     V --- sin --- W -+-- x times W --- tanh ---+
 *                      |                         |
 *                      +----- that times W ------+--- squares --- loss
 *                      |
 *       no samples     |        a batch of samples x
 *
 * V is trained. W is derived: it is computed from V. And it is shared: it is used twice. The usual
 * way takes each part of a batch all the way back to V and adds up finished gradients. That makes
 * another tree of additions for each way of splitting (lesson 16), and differentiates the sine
 * again for each part.
 *
 * Tally sums on the line, where the batch ends. An accumulator stands there; every sample adds to
 * it what its uses of W give, one after the other, and the next part goes on from there. What lies
 * left of the line is computed once, and differentiated once, when all samples are in.
 */
#include <string.h>
#include <tally_data.h>
#include <tally_extend.h>

#include "examples/course/course.h"

enum { SAMPLES = 24, WIDTH = 8, SIZE = WIDTH * WIDTH };
typedef enum { PLAIN, SHARED, DERIVED, KINDS } kind; /* what W is; DERIVED: and shared */
static float x[SAMPLES][WIDTH];
static int cosines; /* how often the sine was differentiated */

static tl_status ran(void *ctx, tl_tape *t, const tl_seen *c)
{
    (void)ctx, (void)t;
    cosines += strcmp(c->call->op->name, "cos") == 0;
    return TL_OK;
}
static const tl_observer count = {.ran = ran};

/* The loss of n samples, divided by the count of all. */
static tl_tensor loss_of(tl_tape *t, tl_tensor V, kind k, const float *samples, int n)
{
    tl_tensor in = tl_data(t, samples, TL_F32, TL_DIMS(n, WIDTH));
    tl_tensor W = k == DERIVED ? tl_sin(t, V) : V;
    tl_tensor h = tl_tanh(t, tl_matmul(t, in, W));
    if (k != PLAIN)
        h = tl_matmul(t, h, W);
    return tl_scale(t, tl_sum(t, tl_square(t, h), TL_ALL, false), 1.0 / SAMPLES);
}

/* The gradient of V, from so many samples at a time: sums that continue, or finished ones added. */
static bool gradient(kind k, int part, bool finished, float g[SIZE])
{
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_observe(t, &count, NULL);
    tl_tensor V = tl_param(t, m, "V", TL_F32, TL_DIMS(WIDTH, WIDTH), .kind = TL_INIT_NORMAL,
                           .scale = 0.3);
    memset(g, 0, SIZE * sizeof *g);
    cosines = 0;
    for (int i = 0; i < SAMPLES; i += part) {
        float one[SIZE];
        tl_backward(t, loss_of(t, V, k, x[i], i + part < SAMPLES ? part : SAMPLES - i));
        if (finished || i + part >= SAMPLES) {
            tl_keep(t, tl_grad(t, V), one, sizeof one);
            tl_grad_clear(t);
            for (int j = 0; j < SIZE; j++)
                g[j] += one[j];
        }
        tl_tape_reset(t);
    }
    bool failed = tl_failed(t);
    tl_free(t, m);
    return !failed;
}

int main(void)
{
    static const int part[] = {24, 12, 8, 6, 3, 1, 10, 7};
    float whole[SIZE], g[SIZE];
    bool held = true, changed = true;
    for (uint64_t i = 0; i < SAMPLES * WIDTH; i++)
        x[i / WIDTH][i % WIDTH] = (float)tl_rng_normal64(tl_rng_stream(1, "x"), 0, i);

    printf("Of the 64 elements of V's gradient, how many change when 24 samples are split,\n"
           "and how often the sine of V was differentiated:\n\n");
    printf("          finished gradients added          sums that continue\n");
    printf("at a time   plain shared derived  sine        plain shared derived  sine\n");
    for (int p = 0; p < 8; p++) {
        printf("%9d", part[p]);
        for (int finished = 1; finished >= 0; finished--) {
            for (int k = PLAIN; k < KINDS; k++) {
                int n = 0;
                held &= gradient((kind)k, SAMPLES, false, whole);
                held &= gradient((kind)k, part[p], finished, g);
                for (int i = 0; i < SIZE; i++)
                    n += g[i] != whole[i];
                printf("%*d", k == PLAIN ? 8 : 7, n);
                held &= finished || n == 0;
                changed &= !finished || p == 0 || n > 0;
            }
            printf("%7d%s", cosines, finished ? "     " : "\n");
            held &= cosines == (finished ? (SAMPLES + part[p] - 1) / part[p] : 1);
        }
    }
    return course_end(held && changed, "summed where the batch ends, any split is the whole.");
}
