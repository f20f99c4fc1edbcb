/* Lesson 4: the condition of a sum.
 *
 * How many digits of a sum are right depends on the terms as well as on the order. Where large
 * terms cancel, the total is small, but the roundings on the way there were those of large numbers.
 * One number says how bad it is:
 *
 *     condition = (sum of |terms|) / |sum of terms|
 *
 * It is 1 if all terms have the same sign. The relative error of a sum is about
 *
 *     condition * 2^-24 * (a small number that depends on the order)
 *
 * where 2^-24 is half a gap, relative to the number. So a condition of 10^k can cost k digits of
 * the 7 that a float has. An order may be lucky: here, terms that cancel are made side by side, and
 * in that order nothing is lost. The table is of shuffled orders.
 */
#include <math.h>
#include <tally_data.h>

#include "examples/course/course.h"

enum { PAIRS = 500, N = 2 * PAIRS + 1, ORDERS = 50, DIGITS = 7 };

int main(void)
{
    bool held = true;
    double least = HUGE_VAL, most = 0;
    tl_rng_key key = tl_rng_stream(1, "lesson 4");

    printf("condition   digits that are right   error / (condition * 2^-24)\n");
    for (int k = 0; k < 8; k++) {
        /* 1. Pairs of terms that cancel, and one term that is left over: so the sum is known. */
        float x[N], total = ldexpf(1, 9 - 4 * k);
        double size = (double)total;
        for (int i = 0; i < PAIRS; i++) {
            x[2 * i] = 0.5f + tl_rng_uniform32(key, 0, (uint64_t)i);
            x[2 * i + 1] = -x[2 * i];
            size += 2 * (double)x[2 * i];
        }
        x[N - 1] = total;
        float made = 0;
        for (int i = 0; i < N; i++)
            made += x[i];
        held &= made == total; /* as they are made, pair by pair */

        /* 2. The same terms in 50 orders, each summed from left to right: the mean error. */
        double error = 0;
        for (int order = 0; order < ORDERS; order++) {
            float sum = 0;
            for (uint64_t i = N - 1; i > 0; i--) {
                uint64_t j = tl_rng_below(key, 1 + (uint64_t)order, i, i + 1);
                float swap = x[i];
                x[i] = x[j], x[j] = swap;
            }
            for (int i = 0; i < N; i++)
                sum += x[i];
            error += fabs((double)sum - (double)total) / (double)total / ORDERS;
        }

        /* 3. Right digits as #, lost ones as dots. */
        double condition = size / (double)total, factor = error / (condition * 0x1p-24);
        int right = 0;
        for (double e = error; e < 0.5 && right < DIGITS; e *= 10)
            right++;
        printf("%9.2g   ", condition);
        for (int d = 0; d < DIGITS; d++)
            putchar(d < right ? '#' : '.');
        printf("   %28.2f\n", factor);

        least = fmin(least, factor), most = fmax(most, factor);
        held &= k > 0 || right == DIGITS;
        held &= k < 7 || right == 0;
    }

    printf("(In the first row, the total itself is the largest number on the way. In the order in\n"
           "which the terms are made, pair by pair, all eight sums are exact.)\n");

    /* The condition grew by a factor of 10^8; the rest of the error stayed a small number. */
    held &= least > 0.05 && most < 5;
    return course_end(held,
                      "a condition of 10^k can cost k digits; in shuffled orders, about k - 1.");
}
