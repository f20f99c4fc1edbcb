/* Lesson 3: five ways to add the same numbers, side by side.
 *
 * What differs is the tree of additions. Each may be off by half a gap, and what it loses is lost
 * to all additions above it: a deep tree (a plain loop) errs more than a flat one. Kahan's loop
 * (1965) has that tree, but makes up for what an addition lost in the next term, for four times the
 * work. One sum may be lucky, so all add the numbers in the same 100 shuffled orders.
 */
#include <math.h>
#include <tally_data.h>
#include <tally_extend.h>

#include "examples/course/course.h"

enum { N = 4096, SHUFFLES = 100, LANES = 4, DRAWN = 12 };

static float add(int *operations, float a, float b) { return ++*operations, a + b; }

static double left(void *ops, int64_t n, const void *terms)
{
    float s = ((const float *)terms)[0];
    for (int64_t i = 1; i < n; i++)
        s = add(ops, s, ((const float *)terms)[i]);
    return (double)s;
}

static double pairwise(void *ops, int64_t n, const void *terms)
{
    const float *x = terms;
    if (n == 1)
        return (double)x[0];
    double first = pairwise(ops, n - n / 2, x), second = pairwise(ops, n / 2, x + n - n / 2);
    return (double)add(ops, (float)first, (float)second);
}

static double lanes(void *ops, int64_t n, const void *terms) /* as a vector unit does it */
{
    float s[LANES];
    const float *x = terms;
    for (int64_t i = 0; i < n; i++)
        s[i % LANES] = i < LANES ? x[i] : add(ops, s[i % LANES], x[i]);
    return pairwise(ops, n < LANES ? n : LANES, s);
}

static double kahan(void *ops, int64_t n, const void *terms)
{
    float s = ((const float *)terms)[0], excess = 0;
    for (int64_t i = 1; i < n; i++) {
        float y = add(ops, ((const float *)terms)[i], -excess), t = add(ops, s, y);
        excess = add(ops, add(ops, t, -s), -y); /* without rounding, this would be 0 */
        s = t;
    }
    return (double)s;
}

/* Draws the tree below a node; sets *x to its middle and returns how high it is. */
static double draw(FILE *f, const tl_order *o, int64_t node, double *next, double *x)
{
    double a, b;
    if (tl_order_size(o, node) == 1) {
        *x = *next += 16;
        fprintf(f, "<text x='%g' y='195' font-size='10' text-anchor='middle'>%d</text>\n", *x,
                (int)node);
        return 180;
    }
    double ya = draw(f, o, tl_order_child(o, node, 0), next, &a);
    double yb = draw(f, o, tl_order_child(o, node, 1), next, &b), top = fmin(ya, yb) - 14;
    fprintf(f, "<path d='M%g %gV%gH%gV%g' %s/>\n", a, ya, top, b, yb, course_line(' '));
    return *x = (a + b) / 2, top;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        tl_sum_fn *sum;
    } way[] = {{"left", left}, {"lanes", lanes}, {"pairwise", pairwise}, {"kahan", kahan}};
    static float x[N];
    double mean[4] = {0}, worst[4] = {0}, truth = 0, next = 0, middle;
    int ops[4] = {0};
    tl_rng_key key = tl_rng_stream(1, "lesson 3");
    tl_rng_fill_uniform32(x, N, key, 0, 0); /* from 0 to 1 */
    for (int i = 0; i < N; i++)
        truth += (double)x[i]; /* a double has room for every bit of this sum */
    double gap = (double)(nextafterf((float)truth, 1e9f) - (float)truth);
    FILE *svg = course_svg(argc, argv, 860, 230);
    printf("way       operations   error in gaps: mean   worst   tree of 12 terms\n");
    for (uint64_t k = 1; k <= SHUFFLES; k++) {
        for (int w = 0; w < 4; w++) {
            double error = fabs(way[w].sum(&ops[w], N, x) - truth) / gap;
            mean[w] += error / SHUFFLES;
            worst[w] = fmax(worst[w], error);
        }
        for (uint64_t i = N - 1; i > 0; i--) { /* shuffle */
            uint64_t j = tl_rng_below(key, k, i, i + 1);
            float swap = x[i];
            x[i] = x[j];
            x[j] = swap;
        }
    }
    for (int w = 0; w < 4; w++) {
        printf("%-8s  %10d   %19.2f   %5.2f   ", way[w].name, ops[w] / SHUFFLES, mean[w], worst[w]);
        tl_order *o = NULL; /* found from outside: which of huge and tiny numbers meet first? */
        if (tl_reveal_order(way[w].sum, &ops[w], TL_F32, DRAWN, &o, NULL) != TL_OK)
            return course_end(false, "the order of a sum can be found.");
        tl_order_print(stdout, o, NULL);
        if (svg != NULL) {
            fprintf(svg, "<text x='%g' y='220'>%s</text>\n", next + 16, way[w].name);
            draw(svg, o, tl_order_root(o), &next, &middle);
            next += 24;
        }
        tl_order_free(o);
    }
    printf("exact     %10d                  0.00    0.00   any (in double: nothing is lost)\n", N);
    printf("(The exact sum is not a float: the nearest one is %.2f gaps off.)\n",
           fabs((double)(float)truth - truth) / gap);
    bool held = mean[0] > mean[1] && mean[1] > mean[2] && mean[2] > mean[3];
    return course_end(held, "at equal cost a flatter tree is better; Kahan's extra work pays.");
}
