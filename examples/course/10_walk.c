/* Lesson 10: backward is a walk, not a sum over paths.
 *
 * The chain rule can be read as a sum: take every path from the input to the result, multiply the
 * local derivatives along it, and add up all the paths. That is right, and hopeless: where each
 * step uses the value before it twice, the paths double with every step.
 *
 * Walking backwards visits each entry of the tape once. When an entry's turn comes, everything that
 * used it has been visited, so its gradient is complete: it is the sum over all paths from there
 * on, and none of these is walked again. Twenty steps cost 60 operations, not 3 million.
 *
 * Our steps are v -> sin(v) + v / 8, so each value goes two ways. In the table, see which of the
 * two columns of operations grows with the paths, and which with the steps.
 *
 *        +- sin -+      +- sin -+      +- sin -+
 *     v -+       + -> v +       + -> v +       + -> ...
 *        +- 1/8 -+      +- 1/8 -+      +- 1/8 -+
 */
#include <math.h>
#include <tally.h>

#include "examples/course/course.h"

enum { STEPS = 20 };
static double value[STEPS + 1], gradient[STEPS + 1]; /* before and after each step */
static int operations;

/* The sum over all paths from `step` to `last` of the products of their local derivatives. */
static double by_paths(int step, int last, double product)
{
    if (step == last)
        return product;
    operations += 3; /* two products, one sum */
    return by_paths(step + 1, last, product * tl_f64_cos(value[step])) +
           by_paths(step + 1, last, product * 0.125);
}

/* The same from the other end. Each value gives its gradient to the one before it, both ways. */
static double by_walk(int last)
{
    gradient[last] = 1;
    for (int i = last - 1; i >= 0; i--, operations += 3)
        gradient[i] = gradient[i + 1] * tl_f64_cos(value[i]) + gradient[i + 1] * 0.125;
    return gradient[0];
}

/* The same by Tally, which walks over what it has recorded. */
static double by_tally(int last)
{
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = tl_data(t, &value[0], TL_F64, TL_SCALAR), v = x;
    tl_require_grad(t, x);
    for (int i = 0; i < last; i++) {
        tl_tensor wave = tl_sin(t, v), rest = tl_scale(t, v, 0.125);
        v = tl_add(t, wave, rest);
    }
    tl_backward(t, v);
    double d = tl_item(t, tl_grad(t, x));
    tl_free(t);
    return d;
}

/* The ladder with the gradients that the walk leaves at each value. */
static void draw(FILE *svg, int steps)
{
    for (int i = 0; svg != NULL && i <= steps; i++) {
        int x = 40 + 150 * i;
        fprintf(svg, "<circle cx='%d' cy='70' r='5' %s/>\n", x, course_fill('a'));
        fprintf(svg, "<text x='%d' y='100' text-anchor='middle'>v = %.4f</text>\n", x, value[i]);
        fprintf(svg, "<text x='%d' y='120' text-anchor='middle' %s>%.4f</text>\n", x,
                course_fill('b'), gradient[i]);
        if (i == steps)
            continue;
        fprintf(svg, "<path d='M%d 64C%d 25 %d 25 %d 64M%d 74C%d 88 %d 88 %d 74' %s/>\n", x + 6,
                x + 50, x + 100, x + 144, x + 8, x + 50, x + 100, x + 142, course_line(' '));
        fprintf(svg, "<text x='%d' y='28' text-anchor='middle'>sin: %.4f</text>\n", x + 75,
                tl_f64_cos(value[i]));
        fprintf(svg, "<text x='%d' y='80' text-anchor='middle'>0.125</text>\n", x + 75);
    }
    if (svg != NULL)
        fputs("<text x='40' y='150'>Above: values and local derivatives. Below: the gradients, "
              "computed from right to left.</text>\n",
              svg);
}

int main(int argc, char **argv)
{
    bool held = true;
    value[0] = 0.7;
    for (int i = 0; i < STEPS; i++)
        value[i + 1] = tl_f64_sin(value[i]) + value[i] * 0.125;

    printf("                    operations             derivative\n");
    printf(
        "steps       paths     by paths   by walk   by paths          by walk           Tally\n");
    for (int n = 5; n <= STEPS; n += 5) {
        operations = 0;
        double paths = by_paths(0, n, 1);
        int many = operations;
        operations = 0;
        double walk = by_walk(n), tally = by_tally(n);
        printf("%5d   %9d   %10d   %7d   %.13f   %.13f   %.13f\n", n, 1 << n, many, operations,
               paths, walk, tally);
        held &= fabs(paths - walk) <= 1e-12 * fabs(walk) && walk == tally;
        held &= operations == 3 * n && many == 3 * ((1 << n) - 1);
    }
    by_walk(4);
    draw(course_svg(argc, argv, 720, 165), 4);
    return course_end(held, "one visit to each entry covers all paths, however many there are.");
}
