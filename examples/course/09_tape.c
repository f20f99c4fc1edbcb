/* Lesson 9: a tape, by hand, and then Tally's.
 *
 * Training moves numbers, the weights, so that a result, the loss, falls. For that we need to know
 * how the loss moves with each weight: its derivatives, which together are called the gradient.
 *
 * To differentiate a program, write down what it does while it runs: each result, the results it
 * was computed from, and how much it moves when each of these moves - its local derivatives, which
 * are known, as every operation is a simple one. That list is the tape.
 *
 * Then read it from the end to the beginning. The gradient of a value is how much the final result
 * moves when that value moves. The last value's is 1. Each entry hands its gradient on to its
 * inputs, times its local derivatives; a value that was used several times adds up what it is
 * given.
 */
#include <string.h>
#include <tally.h>

#include "examples/course/course.h"

/* ---- the whole tape ---- */

typedef struct {
    const char *op;
    double value, gradient;
    int in[2];       /* entries that it was computed from; -1: none */
    double local[2]; /* d value / d in */
} entry;

static entry tape[100];
static int used;

static int record(const char *op, double value, int a, double by_a, int b, double by_b)
{
    tape[used] = (entry){op, value, 0, {a, b}, {by_a, by_b}};
    return used++;
}

static int leaf(double x) { return record("leaf", x, -1, 0, -1, 0); }

static int add(int a, int b) { return record("add", tape[a].value + tape[b].value, a, 1, b, 1); }

static int mul(int a, int b)
{
    double x = tape[a].value, y = tape[b].value;
    return record("mul", x * y, a, y, b, x);
}

static int sine(int a)
{
    double x = tape[a].value;
    return record("sin", tl_f64_sin(x), a, tl_f64_cos(x), -1, 0);
}

static void backward(int result)
{
    tape[result].gradient = 1;
    for (int i = result; i >= 0; i--)
        for (int k = 0; k < 2; k++)
            if (tape[i].in[k] >= 0)
                tape[tape[i].in[k]].gradient += tape[i].gradient * tape[i].local[k];
}

/* ---- and its use: f(x, y) = sin(x * y) + x * x, at x = 0.5 and y = 3 ---- */

int main(void)
{
    int x = leaf(0.5), y = leaf(3);
    int wave = sine(mul(x, y));
    int square = mul(x, x);
    backward(add(wave, square));

    printf("entry  op     value     inputs  local derivatives   gradient\n");
    for (int i = 0; i < used; i++) {
        const entry *e = &tape[i];
        printf("%5d  %-4s  %9.6f  ", i, e->op, e->value);
        if (e->in[0] < 0)
            printf("%-6s  %-18s", "", "");
        else if (e->in[1] < 0)
            printf("%-6d  %-18.6f", e->in[0], e->local[0]);
        else
            printf("%d, %-3d  %.6f, %-8.6f", e->in[0], e->in[1], e->local[0], e->local[1]);
        printf("  %9.6f\n", e->gradient);
    }

    /* The rules of calculus: df/dx = y cos(xy) + 2x, df/dy = x cos(xy). */
    double cosine = tl_f64_cos(1.5);
    bool held = tape[x].gradient == 3 * cosine + 1 && tape[y].gradient == 0.5 * cosine;

    /* Tally's tape has tensors for entries, more than a hundred operations instead of three, and
     * frees each value as soon as nothing needs it any more. The list and the walk are the same. */
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor u = tl_data(t, (double[]){0.5}, TL_F64, TL_SCALAR);
    tl_tensor v = tl_data(t, (double[]){3}, TL_F64, TL_SCALAR);
    tl_require_grad(t, u);
    tl_require_grad(t, v);
    tl_tensor w = tl_sin(t, tl_mul(t, u, v));
    tl_tensor s = tl_mul(t, u, u);
    tl_backward(t, tl_add(t, w, s));
    double du = tl_item(t, tl_grad(t, u)), dv = tl_item(t, tl_grad(t, v));
    printf("\n                 df/dx               df/dy\nby hand   %.15f   %.15f\n",
           tape[x].gradient, tape[y].gradient);
    printf("Tally     %.15f   %.15f\n", du, dv);
    held &= memcmp(&du, &tape[x].gradient, sizeof du) == 0;
    held &= memcmp(&dv, &tape[y].gradient, sizeof dv) == 0;
    held &= !tl_failed(t);
    tl_free(t);
    return course_end(held,
                      "a tape is a list of what was done; read backwards, it differentiates.");
}
