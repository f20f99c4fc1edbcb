/* Lesson 13: RMSNorm, and what is kept for backward.
 *
 * RMSNorm divides each row of n numbers by its root mean square:
 *
 *     y = x * rstd,  rstd = 1 / sqrt(mean(x^2) + eps)      (a tiny eps: no division by 0)
 *
 * If dy is the gradient of y, the rules of calculus give that of x:
 *
 *     dx = rstd * (dy - y * mean(dy * y))
 *
 * So backward needs rstd and y. Each can be kept, which takes memory, or computed again from x. y
 * is as long as x and costs one product per number: compute it again. rstd is one number per row
 * but costs a pass over the whole row: keep it. (Results, y too, stay on the tape until backward
 * has passed them, unless they are run again.) Five operations keep five results. Whole blocks have
 * the same choice: keep what goes in, and run them again in backward. Same operations, same bits.
 */
#include <string.h>
#include <tally_data.h>
#include <tally_extend.h>

#include "examples/course/course.h"

enum { ROWS = 64, N = 256, LAYERS = 16, MOST = 400, WAYS = 4 };
static const struct {
    const char *name;
    bool one_op;
    int block; /* layers that are run again together; 0: none */
} way[WAYS] = {{"five operations for a norm", false, 0},
               {"one, which keeps rstd", true, 0},
               {"the same, 4 layers run again", true, 4},
               {"the same, each run again", true, 1}};
static float x[ROWS][N], dx[WAYS][ROWS][N];

static tl_tensor norm(tl_tape *t, tl_tensor h, bool one_op)
{
    if (one_op)
        return tl_rms_norm(t, h, TL_NONE, 1e-5);
    tl_tensor mean = tl_mean(t, tl_square(t, h), TL_DIMS(1), true);
    return tl_mul(t, h, tl_rsqrt(t, tl_shift(t, mean, 1e-5)));
}

/* Whether the formula above, for some dy, has the bits that backward has when told it (.cotangent;
 * a loss, one number, needs none: its gradient is 1). */
static bool by_hand(void)
{
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor in = tl_data(t, x, TL_F32, TL_DIMS(ROWS, N)), dy = tl_sin(t, in), rstd;
    tl_require_grad(t, in);
    tl_tensor y = tl_rms_norm_rstd(t, in, TL_NONE, 1e-5, &rstd);
    tl_tensor mean = tl_mean(t, tl_mul(t, dy, y), TL_DIMS(1), true);
    tl_keep(t, tl_mul(t, rstd, tl_sub(t, dy, tl_mul(t, y, mean))), dx[0], sizeof x);
    tl_backward(t, y, .cotangent = dy);
    tl_keep(t, tl_grad(t, in), dx[1], sizeof x);
    tl_free(t);
    return memcmp(dx[0], dx[1], sizeof x) == 0;
}

/* Memory, in arrays as large as x, after each operation, which is when Tally calls ran(). */
static double used[WAYS][MOST], kept[WAYS], most[WAYS];
static int operations[WAYS];
static tl_status ran(void *w, tl_tape *t, const tl_seen *unused)
{
    int k = *(int *)w;
    (void)unused;
    used[k][operations[k]++ % MOST] = (double)tl_memory_stats(t).tape.used / sizeof x;
    return TL_OK;
}
static const tl_observer watch = {.ran = ran};

/* Forward and backward through layers h + tanh(norm(h)). */
static bool train(int w)
{
    tl_tape *t = tl_tape_new(NULL);
    tl_observe(t, &watch, &w);
    tl_tensor in = tl_data(t, x, TL_F32, TL_DIMS(ROWS, N)), h = in;
    tl_require_grad(t, in);
    for (int i = 0; i < LAYERS;) {
        uint32_t begin = tl_segment_begin(t);
        do
            h = tl_add(t, h, tl_tanh(t, norm(t, h, way[w].one_op)));
        while (++i % (way[w].block > 0 ? way[w].block : LAYERS) != 0);
        if (way[w].block > 0)
            tl_segment_end(t, begin, &h, 1, false); /* of the block, only h is kept */
    }
    kept[w] = (double)tl_memory_stats(t).tape.used / sizeof x;
    tl_backward(t, tl_sum(t, h, TL_ALL, false));
    most[w] = (double)tl_memory_stats(t).tape.peak / sizeof x;
    bool ok = tl_keep(t, tl_grad(t, in), dx[w], sizeof x) == TL_OK;
    tl_free(t);
    return ok && operations[w] <= MOST;
}

int main(int argc, char **argv)
{
    for (int i = 0; i < ROWS * N; i++)
        x[i / N][i % N] = (float)tl_rng_normal64(tl_rng_stream(1, "rows"), 0, (uint64_t)i);
    bool held = by_hand() && train(0) && train(1) && train(2) && train(3);
    FILE *svg = course_svg(argc, argv, 640, 250);
    printf("memory, in arrays as large as x     after forward   at most   operations   dx\n");
    for (int w = 0; w < WAYS; w++) {
        bool same = memcmp(dx[w], dx[1], sizeof x) == 0;
        held &= same == (w > 0) && (int)(1e5f * dx[w][0][0] / dx[1][0][0] + 0.5f) == 100000;
        printf("%-34s  %13.2f   %7.2f   %10d   %s\n", way[w].name, kept[w], most[w], operations[w],
               same ? "the same bits" : "rounded elsewhere");
        if (svg == NULL || w == 3)
            continue;
        fprintf(svg, "<path %s stroke-width='2' d='M40 220", course_line("bac"[w]));
        for (int i = 0; i < operations[w]; i++)
            fprintf(svg, "L%.1f %.1f", 40 + 1.5 * i, 220 - 3 * used[w][i]);
        fprintf(svg, "'/>\n<text %s x='330' y='%d'>%s</text>\n", course_fill("bac"[w]), 24 + 18 * w,
                way[w].name);
    }
    if (svg != NULL)
        fprintf(svg,
                "<path d='M40 10V220H630' %s/><text x='8' y='44'>60</text><text x='8' y='134'>"
                "30</text><text x='40' y='240'>Arrays in memory, operation after operation</text>",
                course_line('d'));
    held &= kept[1] < kept[0] && most[2] < most[1] / 2;
    return course_end(held, "what is cheap to compute again need not be kept.");
}
