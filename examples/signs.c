#include <tally.h>
#include <stdio.h>

static tl_tensor mlp(tl_tape *t, const tl_tensor *in, int n, void *ctx)
{
    (void)n;
    tl_model *m = ctx;
    tl_tensor h = tl_linear(t, m, "l1", in[0], 16);
    tl_tensor z = tl_linear(t, m, "l2", tl_tanh(t, h), 2);
    return tl_cross_entropy(t, z, in[1], TL_MEAN);
}

int main(void)
{
    static float X[200][2];
    static int64_t Y[200];
    for (int i = 0; i < 200; i++) {             /* a grid of points: are both signs the same? */
        X[i][0] = (i % 20) / 10.f - 1;
        X[i][1] = (i / 20) / 5.f - 1;
        Y[i] = X[i][0] * X[i][1] > 0;
    }
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor in[] = {tl_data(m, X, TL_F32, TL_DIMS(200, 2)), tl_data(m, Y, TL_I64, TL_DIMS(200))};
    tl_tape *t = tl_tape_new(m);
    tl_opt *opt = tl_adamw_new(m, .lr = 1e-2);
    for (int i = 0; i < 500 && !tl_failed(t); i++) {
        tl_tensor loss = mlp(t, in, 2, m);
        tl_backward(t, loss);
        tl_step(opt, t);
        if (i % 100 == 0) printf("%d %g\n", i, tl_item(t, loss));
        tl_tape_reset(t);
    }
    int ok = tl_gradcheck(t, mlp, in, 2, m) == TL_RIGHT && tl_save(m, "signs.safetensors") == TL_OK;
    if (!ok) fprintf(stderr, "%s\n", tl_error(t));
    tl_free(opt, t, m);
    return !ok;
}
