/* gradcheck: an op of your own, softsign(x) = x / (1 + |x|), and the proof that its
 * gradient is right. A user's op is an equal of the library's: one constant struct. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <tally_extend.h>

/* 1. The kernel: n elements in a row; the tape deals with shapes, strides, broadcasting and storage
 * types. */
static void softsign_tile(const tl_tile *k)
{
    for (int64_t i = 0; i < k->n; i++)
        if (k->dtype == TL_F64)
            ((double *)k->out)[i] = ((const double *)k->in[0])[i] /
                                    (1 + fabs(((const double *)k->in[0])[i]));
        else
            ((float *)k->out)[i] = ((const float *)k->in[0])[i] /
                                   (1 + fabsf(((const float *)k->in[0])[i]));
}

/* 2. The gradient, written in ops: dx = dy / (1 + |x|)^2. */
static void softsign_vjp(tl_vjp *g)
{
    g->dx[0] = tl_div(g->t, g->dy[0], tl_square(g->t, tl_shift(g->t, tl_abs(g->t, g->in[0]), 1)));
}

static void wrong_vjp(tl_vjp *g) /* the square is missing */
{
    g->dx[0] = tl_div(g->t, g->dy[0], tl_shift(g->t, tl_abs(g->t, g->in[0]), 1));
}

/* 3. The op: its name, its inputs and outputs, what its gradient reads (bit 0: input 0). */
static const tl_op softsign = {.name = "softsign",
                               .n_in = 1,
                               .n_out = 1,
                               .traits = TL_POINTWISE,
                               .shape = tl_pointwise_shape,
                               .tile = softsign_tile,
                               .vjp = softsign_vjp,
                               .saves_in = TL_BIT(0)};
static const tl_op wrong = {.name = "softsign_wrong",
                            .n_in = 1,
                            .n_out = 1,
                            .traits = TL_POINTWISE,
                            .shape = tl_pointwise_shape,
                            .tile = softsign_tile,
                            .vjp = wrong_vjp,
                            .saves_in = TL_BIT(0)};

/* 4. A function that uses it; ctx hands on which of the two. */
static tl_tensor f(tl_tape *t, const tl_tensor *in, int n, void *ctx)
{
    return n == 1 ? tl_apply1(TL_AT(t), *(const tl_op *const *)ctx, NULL, in, 1) : TL_NONE;
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        const int help = strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "--help") == 0;
        fprintf(help ? stdout : stderr,
                "usage: gradcheck      checks a right and a wrong derivative\n");
        return help ? 0 : 2;
    }
    const float x[2][3] = {{-3, -0.5f, 0.25f}, {1, 2, 10}};
    const tl_op *ops[] = {&softsign, &wrong};
    tl_verdict verdict[2] = {TL_WRONG, TL_RIGHT};
    tl_tape *t = tl_tape_new(NULL);
    for (int i = 0; i < 2; i++) {
        tl_tensor in = tl_data(t, x, TL_F32, TL_DIMS(2, 3));
        tl_gradcheck_report report = {.verdict = TL_NO_SIGNAL};
        verdict[i] = tl_gradcheck_with(t, f, &in, 1, &ops[i], &report);
        printf("%s: %s\n", ops[i]->name, report.text);
        tl_error_clear(t); /* a verdict other than right is an error of the tape */
    }
    tl_free(t);
    int bad = verdict[0] != TL_RIGHT || verdict[1] != TL_WRONG;
    errno = EIO; /* if a write has failed before this one, which may say more */
    if (fflush(stdout) != 0 || ferror(stdout)) {
        perror("gradcheck: cannot write the output");
        bad = 1;
    }
    return bad;
}
