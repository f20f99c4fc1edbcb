/* Lesson 5: one rounding or two.
 *
 * Processors have an instruction fma(a, b, c) that computes a * b + c and rounds once; a product
 * and a sum round twice. Compilers like to contract the second into the first, because it is
 * faster. Which of the two a program gets depends on the compiler, its flags, the processor, and
 * on which of several products it picks.
 *
 * It is not that fma is wrong: it is more accurate. But a formula that is safe with two roundings
 * may break with one, and no two builds need agree. (Tally is built with contraction switched off,
 * this lesson too, and calls fma where it means fma.)
 */
#include <math.h>
#include <tally_data.h>

#include "examples/course/course.h"

enum { TRIES = 10000 };

int main(void)
{
    /* 1. a * b + c, where a * b nearly cancels c. */
    float a = 1 + 0x1p-12f, c = -(1 + 0x1p-11f);
    float twice = a * a + c, once = fmaf(a, a, c);
    printf("a = 1 + 2^-12, c = -(1 + 2^-11)\n");
    printf("  a * a + c       two roundings   %g\n", (double)twice);
    printf("  fma(a, a, c)    one rounding    %g, which is 2^-24: the square of 2^-12\n\n",
           (double)once);
    bool held = twice == 0 && once == 0x1p-24f;

    /* 2. The length of the other side of a triangle, sqrt(x*x - y*y), with y = x: the side is 0.
     * With two roundings both products are the same number. With one, x*x is exact and y*y is not,
     * so the difference is the rounding error of y*y - which is as often negative. */
    tl_rng_key key = tl_rng_stream(1, "lesson 5");
    int zero[2] = {0}, positive[2] = {0}, nan[2] = {0};
    float example = 0;
    for (uint64_t i = 0; i < TRIES; i++) {
        float x = 1 + tl_rng_uniform32(key, 0, i), y = x;
        float side[2] = {sqrtf(x * x - y * y), sqrtf(fmaf(x, x, -(y * y)))};
        for (int k = 0; k < 2; k++) {
            zero[k] += side[k] == 0;
            positive[k] += side[k] > 0;
            nan[k] += isnan(side[k]) != 0;
        }
        if (isnan(side[1]) && example == 0)
            example = x;
    }
    printf("sqrt(x*x - y*y) for %d numbers x = y        zero   positive   not a number\n", TRIES);
    printf("  two roundings   x*x - y*y           %11d %10d %14d\n", zero[0], positive[0], nan[0]);
    printf("  contracted      fma(x, x, -(y*y))   %11d %10d %14d\n", zero[1], positive[1], nan[1]);
    printf("  such an x is %.9g: x*x - y*y is %.3g when it is contracted\n", (double)example,
           (double)fmaf(example, example, -(example * example)));
    held &= zero[0] == TRIES && nan[1] > TRIES / 4 && positive[1] > TRIES / 4;

    /* 3. A dot product: each term is rounded once or twice, and the sums part. */
    float sum[2] = {0};
    int same = 0;
    for (uint64_t i = 0; i < TRIES; i++) {
        float x = tl_rng_uniform32(key, 1, i) - 0.5f, y = tl_rng_uniform32(key, 2, i) - 0.5f;
        sum[0] += x * y;
        sum[1] = fmaf(x, y, sum[1]);
        same += same == (int)i && sum[0] == sum[1];
    }
    printf("\na dot product of %d terms      %.9g with two roundings, %.9g with fma\n", TRIES,
           (double)sum[0], (double)sum[1]);
    printf("  the two agreed up to term %d\n", same);
    held &= sum[0] != sum[1];
    return course_end(held, "fusing a product into a sum changes bits, and can even make a NaN.");
}
