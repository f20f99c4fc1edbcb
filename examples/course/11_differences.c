/* Lesson 11: finite differences, and the U.
 *
 * A derivative can be had without calculus: move x by a step h and see how far f moves. The error
 * has two parts. Long steps see the curve of f instead of its slope: that part shrinks with h (by h
 * for a step to one side, by h^2 for one to both sides). Short steps subtract two numbers that are
 * nearly equal, and divide their rounding errors by h: that part grows as h shrinks. So the error
 * against h is a U, and its bottom is far from h = 0. The digits that are right are its mirror
 * image: fewest at both ends.
 *
 * Ridders (1982) takes two-sided differences at several long steps and extrapolates them to h = 0.
 * He also gets an estimate of his error, and so knows when to stop.
 */
#include <math.h>
#include <tally.h>

#include "examples/course/course.h"

enum { POWERS = 15, ROWS = 10 };

static double f(double x) { return tl_f64_exp(tl_f64_sin(x)); }
static double slope(double x) { return f(x) * tl_f64_cos(x); } /* from a table of derivatives */

static double one_sided(double x, double h) { return (f(x + h) - f(x)) / h; }
static double two_sided(double x, double h) { return (f(x + h) - f(x - h)) / (2 * h); }

/* Row i begins with the step h / 2^i; each further number of a row is free of one more power of
 * the step. Neighbours in the table that agree tell how far the better one may be off. */
static double ridders(double x, double h, double *estimate, int *calls)
{
    double a[ROWS][ROWS], best = 0;
    *estimate = HUGE_VAL;
    *calls = 0;
    for (int i = 0; i < ROWS; i++, h /= 2) {
        a[i][0] = two_sided(x, h);
        *calls += 2;
        double power = 4;
        for (int k = 1; k <= i; k++, power *= 4) {
            a[i][k] = (power * a[i][k - 1] - a[i - 1][k - 1]) / (power - 1);
            double e = fmax(fabs(a[i][k] - a[i][k - 1]), fabs(a[i][k] - a[i - 1][k - 1]));
            if (e < *estimate)
                *estimate = e, best = a[i][k];
        }
        if (i > 1 && fabs(a[i][i] - a[i - 1][i - 1]) > 2 * *estimate)
            break; /* from here on rounding makes it worse */
    }
    return best;
}

/* Where an error stands: 17 pixels for a power of ten, below the line that names the curves. */
static double height(double error) { return 45 - 17 * log10(error); }

/* The errors against the step, both in powers of ten: 38 pixels for a power of h. */
static void draw(FILE *svg, double error[2][POWERS], double best)
{
    fputs("<text x='8' y='22'>error of a difference</text>\n", svg);
    for (int k = 0; k < 2; k++) {
        fprintf(svg, "<path %s stroke-width='2' d='", course_line("ab"[k]));
        for (int i = 0; i < POWERS; i++)
            fprintf(svg, "%c%d %.1f", i == 0 ? 'M' : 'L', 60 + 38 * i,
                    height(error[k][POWERS - 1 - i]));
        fprintf(svg, "'/>\n<text %s x='%d' y='22'>%s</text>\n", course_fill("ab"[k]), 250 + 130 * k,
                k == 0 ? "to one side" : "to both sides");
    }
    fprintf(svg, "<path %s stroke-width='2' d='M60 %.1fH592'/>\n", course_line('c'), height(best));
    fprintf(svg, "<text %s x='490' y='%.1f'>Ridders</text>\n", course_fill('c'), height(best) - 6);
    for (int i = 0; i < 4; i++)
        fprintf(svg, "<text x='%d' y='340' text-anchor='middle'>h = 1e-%02d</text>\n",
                60 + 38 * 4 * i + 76, 13 - 4 * i);
    for (int i = 1; i < 8; i++)
        fprintf(svg, "<text x='4' y='%d'>1e-%02d</text>\n", 49 + 34 * i, 2 * i);
    fprintf(svg, "<text x='34' y='49'>1</text><path d='M50 40V320H610' %s/>\n", course_line('d'));
}

int main(int argc, char **argv)
{
    double x = 0.9, exact = slope(x), error[2][POWERS], estimate;
    int lowest[2] = {0, 0}, calls;
    FILE *svg = course_svg(argc, argv, 640, 360);

    printf("         to one side                  to both sides\n");
    printf("step     error    right digits (*)    error    right digits (*)\n");
    for (int i = 0; i < POWERS; i++) {
        double h = 1;
        for (int k = 0; k <= i; k++)
            h /= 10;
        error[0][i] = fabs(one_sided(x, h) / exact - 1);
        error[1][i] = fabs(two_sided(x, h) / exact - 1);
        printf("1e-%02d", i + 1);
        for (int k = 0; k < 2; k++) {
            int right = 0; /* a star for each digit that is right */
            for (double e = error[k][i]; e < 0.1 && right < 16; e *= 10)
                right++;
            printf("    %.1e  %-*.*s", error[k][i], k == 0 ? 16 : 0, right, "****************");
            lowest[k] = error[k][i] < error[k][lowest[k]] ? i : lowest[k];
        }
        printf("\n");
    }
    double best = ridders(x, 0.5, &estimate, &calls), off = fabs(best / exact - 1);
    printf("\nRidders, from a step of 1/2: error %.1e after %d calls of f\n", off, calls);
    printf("his own estimate of it: %.1e (an estimate, not a bound)\n", estimate / exact);

    if (svg != NULL)
        draw(svg, error, off);
    bool held = lowest[0] > 4 && lowest[0] < 10 && lowest[1] > 2 && lowest[1] < 8;
    held &= error[1][lowest[1]] < error[0][lowest[0]] && off < error[1][lowest[1]];
    return course_end(held,
                      "shorter is not better: the error is a U, and most digits are right midway.");
}
