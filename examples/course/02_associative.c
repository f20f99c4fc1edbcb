/* Lesson 2: addition is not associative.
 *
 * Each addition rounds its result to the nearest float. So (a + b) + c and a + (b + c) round at
 * different places, and need not agree. That is no fault of any one addition: each is as good as it
 * can be. But the answer depends on their order.
 *
 * How much? We add the same eight numbers in all 8! = 40,320 orders and count the answers.
 */
#include <math.h>
#include <string.h>

#include "examples/course/course.h"

enum { TERMS = 8, MOST = 1000 };
static const float term[TERMS] = {0.1f, -2.7f, 31.4f, 0.01f, -29.9f, 1.7f, 0.003f, 8.8f};

/* The answers found so far, and how many orders gave each. */
static float answer[MOST];
static int times[MOST], answers, orders;

static void note(float sum)
{
    int i = 0;
    while (i < answers && answer[i] != sum)
        i++;
    if (i == answers && answers < MOST)
        answer[answers++] = sum;
    if (i < MOST)
        times[i]++;
    orders++;
}

/* Extends a sum by every term not in it yet, and so goes through all orders. */
static void all_orders(float sum, unsigned used)
{
    if (used == (1u << TERMS) - 1)
        note(sum);
    for (int i = 0; i < TERMS; i++)
        if ((used >> i & 1) == 0)
            all_orders(sum + term[i], used | 1u << i);
}

int main(void)
{
    /* 1. Three numbers are enough. */
    float a = 1e8f, b = -1e8f, c = 0.5f;
    float left = (a + b) + c, right = a + (b + c);
    printf("(1e8 + -1e8) + 0.5 = %g\n1e8 + (-1e8 + 0.5) = %g\n\n", (double)left, (double)right);
    bool held = left == 0.5f && right == 0; /* floats near 1e8 are 8 apart: the 0.5 was lost */

    /* 2. Swapping two operands changes nothing, so addition does commute. */
    held &= a + b == b + a && b + c == c + b;

    /* 3. Eight numbers, every order. Doubles hold these sums to far more digits than floats. */
    double exact = 0;
    for (int i = 0; i < TERMS; i++)
        exact += (double)term[i];
    all_orders(0, 0);

    /* 4. The answers from the smallest to the largest, with a bar for how many orders gave each. */
    printf("%d orders of eight floats; their exact sum is %.8f (as decimals: 9.413)\n\n", orders,
           exact);
    printf("answer       orders\n");
    int nearest = 0, most = 0;
    for (int i = 0; i < answers; i++) {
        most = times[i] > most ? times[i] : most;
        if (fabs((double)answer[i] - exact) < fabs((double)answer[nearest] - exact))
            nearest = i;
    }
    float best = answer[nearest], last = -INFINITY;
    for (int shown = 0; shown < answers; shown++) {
        int k = -1;
        for (int i = 0; i < answers; i++)
            if (answer[i] > last && (k < 0 || answer[i] < answer[k]))
                k = i;
        last = answer[k];
        char bar[41] = "";
        memset(bar, '=', (size_t)(1 + 39 * times[k] / most));
        printf("%.8f  %5d  %s%s\n", (double)answer[k], times[k], bar,
               answer[k] == best ? "  <- nearest to exact" : "");
    }
    printf("\n%d different answers\n", answers);
    held &= orders == 40320 && answers > 10 && answers < MOST;
    return course_end(held, "the same numbers, the same machine, another order: another sum.");
}
