/* Lesson 6: correct rounding, and libraries that disagree.
 *
 * The true e^x is hardly ever a float. A function is correctly rounded if it returns the float
 * nearest to it. Then its error is at most half a gap, and there is only one such answer: two
 * correctly rounded libraries agree in every bit. The C standard does not ask for it, so most
 * libraries now and then return another float nearby, each for inputs of its own. One machine can
 * even have two that differ: glibc's expf, and the one in libmvec that computes four at once.
 *
 * Tally's functions of floats are correctly rounded (NUMERICS 2.1, tried with all 2^32 inputs).
 */
#include <dlfcn.h>
#include <math.h>
#include <tally_data.h>

#include "examples/course/course.h"

enum { TRIES = 1 << 16 };
static float x[TRIES], ours[TRIES];

typedef float four __attribute__((vector_size(16)));
typedef four vector_function(four);

/* How far y is from the truth, in gaps between floats there. The truth comes in double. */
static double error_of(float y, double truth)
{
    float near = fabsf((float)truth);
    return fabs((double)y - truth) / (double)(nextafterf(near, INFINITY) - near);
}

typedef struct {
    double error;
    int differ, at;
} result;

/* A library's floats beside the correctly rounded ones; the judge is the function in double. */
static result judge(const float *y, double (*in_double)(double))
{
    result r = {0, 0, -1};
    for (int i = 0; i < TRIES; i++) {
        double e = error_of(y[i], in_double((double)x[i]));
        r.error = e > r.error ? e : r.error;
        if (y[i] != ours[i] && r.differ++ == 0)
            r.at = i;
    }
    return r;
}

static void here(const char *who, const char *name, result r, const float *y)
{
    printf("here: %-8s %-6s error %.5f of a gap; %d answers differ", who, name, r.error, r.differ);
    if (r.at >= 0)
        printf(", as at x = %a: %a, not %a", (double)x[r.at], (double)y[r.at], (double)ours[r.at]);
    putchar('\n');
}

int main(void)
{
    static const struct {
        const char *name, *vector;
        float (*in_float)(float);
        double (*in_double)(double);
        tl_tensor (*in_tally)(tl_at at, tl_tensor x);
    } f[] = {
        {"exp", "_ZGVbN4v_expf", expf, exp, tl_exp_at},
        {"sin", "_ZGVbN4v_sinf", sinf, sin, tl_sin_at},
        {"tanh", "_ZGVbN4v_tanhf", tanhf, tanh, tl_tanh_at},
        {"log", "_ZGVbN4v_logf", logf, log, tl_log_at},
    };
    static float theirs[TRIES];
    bool held = true;
    int disagree = 0;
    tl_tape *t = tl_tape_new(NULL);
#ifdef __x86_64__
    void *libmvec = dlopen("libmvec.so.1", RTLD_NOW); /* its functions of four floats at once */
#else
    void *libmvec = NULL;
#endif
    for (int i = 0; i < TRIES; i++) /* from 0 to 8 */
        x[i] = 8 * tl_rng_uniform32(tl_rng_stream(1, "lesson 6"), 0, (uint64_t)i) + 0x1p-20f;

    printf("%d numbers from 0 to 8; the largest error, in gaps between floats:\n\n", TRIES);
    for (int k = 0; k < 4; k++) {
        tl_tensor y = f[k].in_tally(TL_AT(t), tl_data(t, x, TL_F32, TL_DIMS(TRIES)));
        tl_keep(t, y, ours, sizeof ours);
        result r = judge(ours, f[k].in_double);
        printf("Tally          %-6s error %.2f of a gap\n", f[k].name, r.error);
        held &= r.error < 0.5000001; /* the judge itself errs a little */

        for (int i = 0; i < TRIES; i++)
            theirs[i] = f[k].in_float(x[i]);
        r = judge(theirs, f[k].in_double);
        here("libm", f[k].name, r, theirs);
        disagree += r.differ;

        vector_function *v = NULL;
        if (libmvec != NULL)
            *(void **)&v = dlsym(libmvec, f[k].vector);
        for (int i = 0; v != NULL && i < TRIES; i += 4) {
            four a = {x[i], x[i + 1], x[i + 2], x[i + 3]}, b = v(a);
            for (int j = 0; j < 4; j++)
                theirs[i + j] = b[j];
        }
        if (v != NULL) {
            r = judge(theirs, f[k].in_double);
            here("libmvec", f[k].name, r, theirs);
            disagree += r.differ;
        }
    }
    held &= !tl_failed(t);
    tl_free(t);
    if (disagree == 0)
        return course_not_shown(
            held, "these libraries round all these numbers correctly, as Tally does.");
    return course_end(held,
                      "correct rounding has one answer; without it, each library has its own.");
}
