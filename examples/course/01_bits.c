/* Lesson 1: numbers are made of bits, and there are gaps between them.
 *
 * A float is 32 bits: a sign s, an exponent e of 8 bits and a fraction f of 23 bits. It stands,
 * for e from 1 to 254, for
 *
 *     (-1)^s * (1 + f / 2^23) * 2^(e - 127)
 *
 * There are 2^23 floats from 1 up to 2, and just as many from 2 up to 4: twice as far apart. A
 * number that falls into a gap is rounded to the nearer of the two floats beside it, and from the
 * exact middle to the one whose last bit is 0. Much of this course comes from that.
 *
 * (In C, 0x1p-23 is 2^-23, %a prints a number that way, and ldexp(x, k) is x * 2^k.)
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "examples/course/course.h"

static uint32_t bits_of(float x)
{
    uint32_t b;
    memcpy(&b, &x, sizeof b); /* the bits as they are, without a conversion */
    return b;
}

/* 1. The three fields of some floats, and the gap to the next float above. */
static bool fields_and_gaps(void)
{
    static const float x[] = {0.1f, 1, 1.5f, 2, 100, 16777216, 1e30f};
    bool held = true;

    printf("%-14s  s exponent fraction                 gap above    gap / number\n", "number");
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) {
        uint32_t b = bits_of(x[i]), e = b >> 23 & 0xff, f = b & 0x7fffff;
        float gap = nextafterf(x[i], INFINITY) - x[i];
        printf("%-14.9g  %u ", (double)x[i], b >> 31);
        for (int k = 30; k >= 0; k--)
            printf("%s%u", k == 22 ? " " : "", b >> k & 1);
        printf("  %-11.5g  %.2g\n", (double)gap, (double)(gap / x[i]));

        held &= (double)x[i] == ldexp(1 + f * 0x1p-23, (int)e - 127); /* the formula above */
        held &= (double)gap == ldexp(1, (int)e - 127 - 23);           /* and what follows from it */
    }
    return held;
}

/* 2. A toy float with 2 bits of fraction: all its numbers from 1 to 16, drawn to scale. */
static bool toy(FILE *svg)
{
    char line[66] = "";
    int numbers = 0;
    memset(line, '.', 65);
    for (int e = 0; e < 4; e++)
        for (int f = 0; f < 4; f++, numbers++) {
            double x = ldexp(1 + f / 4.0, e), left = 20 + 45 * x;
            line[(int)(4 * x)] = f == 0 ? '#' : '|';
            if (svg == NULL)
                continue;
            fprintf(svg, "<line x1='%g' y1='%d' x2='%g' y2='60' %s/>\n", left, f == 0 ? 20 : 36,
                    left, course_line(f == 0 ? 'b' : 'a'));
            if (f == 0)
                fprintf(svg, "<text x='%g' y='78' text-anchor='middle'>%g</text>\n", left, x);
        }
    line[64] = '#';
    printf("\nA float with 2 bits of fraction, from 1 to 16 (# is a power of two):\n%s\n", line);
    if (svg != NULL)
        fprintf(svg,
                "<line x1='740' y1='20' x2='740' y2='60' %s/>"
                "<text x='740' y='78' text-anchor='middle'>16</text>"
                "<path d='M20 60H740' %s/><text x='20' y='98'>All numbers from 1 to 16 of a float "
                "with two bits of fraction: four steps from each power of two to the next</text>\n",
                course_line('b'), course_line(' '));
    return numbers == 4 * 4;
}

/* 3. What a gap does: 0.1 is not there, and above 2^24 every second whole number is missing. */
static bool missing_numbers(void)
{
    const double as_double = 0.1;
    float tenth = 0.1f, large = 16777216, next = large + 1;
    printf("\n0.1 as a float      %.20f\n0.1 as a double     %.20f\n", (double)tenth, as_double);
    printf("2^24 + 1 as a float %.0f\n", (double)next);
    return (double)tenth != as_double && next == large;
}

int main(int argc, char **argv)
{
    bool held = fields_and_gaps();
    FILE *svg = course_svg(argc, argv, 760, 110);
    held &= toy(svg);
    held &= missing_numbers();
    return course_end(held,
                      "the gap doubles at every power of two; what falls into it is rounded.");
}
