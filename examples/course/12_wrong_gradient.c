/* Lesson 12: hunting a wrong gradient.
 *
 * A wrong gradient does not crash, and often it does not even stop the loss from falling: it only
 * has to point roughly downhill. So a falling loss proves nothing. What proves something is to
 * differentiate the same function in another way - numerically, as in lesson 11 - and compare.
 *
 * We plant five gradients for the op y = x^3, of which one is right. Each is trained with, and then
 * checked by tl_gradcheck, which has to name the op and what is wrong with it ("by no one factor":
 * not by one common to all elements).
 */
#include <tally_extend.h>

#include "examples/course/course.h"

/* ---- the op: what it computes, element by element, in f32 and in f64 ---- */

static void cube_tile(const tl_tile *k)
{
    for (int64_t i = 0; i < k->n; i++)
        if (k->dtype == TL_F64) {
            double x = ((const double *)k->in[0])[i];
            ((double *)k->out)[i] = x * x * x;
        } else {
            float x = ((const float *)k->in[0])[i];
            ((float *)k->out)[i] = x * x * x;
        }
}

/* ---- its gradient (vjp: makes dx of dy), dx = 3 x^2 dy, and likely mistakes ---- */

static void times(tl_vjp *g, double factor)
{
    tl_tensor x_squared = tl_square(g->t, g->in[0]);
    g->dx[0] = tl_mul(g->t, g->dy[0], tl_scale(g->t, x_squared, factor));
}
static void right(tl_vjp *g) { times(g, 3); }
static void lost_factor(tl_vjp *g) { times(g, 1); }
static void slightly_off(tl_vjp *g) { times(g, 3.003); }
static void wrong_sign(tl_vjp *g) { times(g, -3); }
static void lost_square(tl_vjp *g)
{
    g->dx[0] = tl_mul(g->t, g->dy[0], tl_scale(g->t, tl_abs(g->t, g->in[0]), 3));
}

#define CUBE(gradient)                                                                     \
    {                                                                                      \
        .name = #gradient, .n_in = 1, .n_out = 1, .traits = TL_POINTWISE, .vjp = gradient, \
        .shape = tl_pointwise_shape, .tile = cube_tile, .saves_in = TL_BIT(0)              \
    }
static const tl_op op[] = {CUBE(right), CUBE(lost_factor), CUBE(slightly_off), CUBE(lost_square),
                           CUBE(wrong_sign)};
enum { OPS = sizeof op / sizeof *op, POINTS = 32 };

/* ---- the function: the mean squared error of cube(a x + b) from some targets ---- */

typedef struct {
    tl_model *m;
    const tl_op *op;
} context;

static tl_tensor loss_of(tl_tape *t, const tl_tensor *in, int n, void *ctx)
{
    const context *c = ctx;
    (void)n;
    tl_tensor line = tl_linear(t, c->m, "line", in[0], 1);
    tl_tensor y = tl_apply1(TL_AT(t), c->op, NULL, &line, 1);
    return tl_mse(t, y, in[1]);
}

/* The loss after 200 steps, as a part of the loss before. */
static double train(tl_tape *t, tl_tensor in[2], context *c)
{
    tl_opt *opt = tl_sgd_new(c->m, .lr = 0.002);
    double first = 0, last = 0;
    for (int step = 0; step <= 200; step++) {
        tl_tensor loss = loss_of(t, in, 2, c);
        tl_backward(t, loss);
        last = tl_item(t, loss);
        first = step == 0 ? last : first;
        tl_step(opt, t);
        tl_tape_reset(t);
    }
    tl_free(opt);
    return last / first;
}

int main(void)
{
    float x[POINTS], y[POINTS];
    bool held = true;
    for (int i = 0; i < POINTS; i++) {
        x[i] = (float)i / POINTS + 0.5f;
        float line = 1.5f * x[i] + 0.25f; /* what is to be found */
        y[i] = line * line * line;
    }
    printf("gradient       loss left after 200 steps   verdict   where and what\n");
    for (int k = 0; k < OPS; k++) {
        context c = {tl_model_new(.seed = 2), &op[k]};
        tl_tape *t = tl_tape_new(c.m);
        tl_tensor in[] = {tl_data(c.m, x, TL_F32, TL_DIMS(POINTS, 1)),
                          tl_data(c.m, y, TL_F32, TL_DIMS(POINTS, 1))};
        tl_gradcheck_report r = {.verdict = TL_NO_SIGNAL};
        tl_verdict v = tl_gradcheck_with(t, loss_of, in, 2, &c, &r, .skip_inputs = true);
        tl_error_clear(t); /* a verdict other than "right" is an error of the tape, too */
        double left = train(t, in, &c);
        bool falls = left < 1; /* what goes uphill ends in infinities */
        printf("%-12s   ", op[k].name);
        if (falls)
            printf("%24.2f %%   %s", 100 * left, tl_verdict_name(v));
        else
            printf("%24s     %s", "more than before", tl_verdict_name(v));
        if (v == TL_WRONG)
            printf("     line %d, op %s: %s", r.culprit.line, r.culprit.op, r.culprit.kind);
        printf("\n");
        held &= v == (k == 0 ? TL_RIGHT : TL_WRONG) && falls == (op[k].vjp != wrong_sign);
        tl_free(t, c.m);
    }
    return course_end(held, "a falling loss proves nothing; a second way to the same number does.");
}
