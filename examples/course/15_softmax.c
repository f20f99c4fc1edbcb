/* Lesson 15: softmax and log-sum-exp.
 *
 * Softmax turns scores into probabilities: e^x divided by the sum of all e^x. Written down like
 * that it fails: e^89 is larger than any float. In true arithmetic nothing changes if the same
 * number is subtracted from every score. So subtract the largest: then no e^x is above 1, and one
 * of them is 1. The logarithm of the sum comes out as  max + log(sum of e^(x - max)).
 *
 * A loss needs the logarithm of a probability. Taking it at the end is too late: a probability of
 * 10^-50 has become 0 by then. So subtract logarithms instead of dividing: x - logsumexp(x).
 */
#include <math.h>
#include <tally.h>

#include "examples/course/course.h"

enum { N = 3 };

/* Prints three numbers; a NaN without its sign, which means nothing. */
static void row(const char *name, const float *y)
{
    printf("    %-28s", name);
    for (int i = 0; i < N; i++)
        if (isnan(y[i]))
            printf("  %11s", "not a number");
        else
            printf("  %11.4g", (double)y[i]);
    printf("\n");
}

int main(void)
{
    static const float size[] = {1, 10, 200};
    bool held = true;
    for (int k = 0; k < 3; k++) {
        float x[N] = {0, size[k] / 2, size[k]}, naive[N], p[N], late[N], direct[N];
        tl_tape *t = tl_tape_new(NULL);
        tl_tensor scores = tl_data(t, x, TL_F32, TL_DIMS(N)), e = tl_exp(t, scores);

        tl_tensor sum = tl_sum(t, e, TL_ALL, false);
        tl_keep(t, tl_div(t, e, sum), naive, sizeof naive);

        tl_tensor probability = tl_softmax(t, scores, 0);
        tl_keep(t, probability, p, sizeof p);
        tl_keep(t, tl_log(t, probability), late, sizeof late);
        tl_keep(t, tl_log_softmax(t, scores, 0), direct, sizeof direct);
        bool failed = tl_failed(t);
        tl_free(t);
        if (failed)
            return course_end(false, "every operation can be computed.");

        printf("scores %g, %g, %g\n", (double)x[0], (double)x[1], (double)x[2]);
        row("e^x / sum", naive);
        row("softmax: largest subtracted", p);
        row("log(softmax): too late", late);
        row("log_softmax", direct);

        /* In all three: the results are finite, and the smallest's logarithm is at most -size. */
        for (int i = 0; i < N; i++)
            held &= isfinite(p[i]) && isfinite(direct[i]) && direct[0] <= -size[k];
        held &= (k < 2) == (isfinite(naive[2]) != 0) && (k < 2) == (isfinite(late[0]) != 0);
    }
    printf("Near 10^-44 floats are 1.4e-45 apart (subnormals), so e^-100 = 3.720e-44 became "
           "3.784e-44,\nthe nearest of them, and its logarithm -99.98.\n");
    return course_end(held, "with the largest score subtracted, the same formula never overflows.");
}
