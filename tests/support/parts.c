#include "tests/support/parts.h"

tl_tensor parts_layer(tl_tape *t, parts_fixture *f, const char *name, tl_tensor x)
{
    tl_tensor w = tl_param(t, f->m, name, f->dtype, TL_DIMS(WIDE, WIDE), .kind = TL_INIT_UNIFORM,
                           .scale = 0.7);
    return tl_tanh(t, tl_matmul(t, x, w));
}

tl_tensor parts_loss(tl_tape *t, parts_fixture *f, tl_tensor x)
{
    tl_tensor h = parts_layer(t, f, "d.one", parts_layer(t, f, "d.one", x)); /* twice */
    return tl_mean(t, tl_square(t, tl_cast(t, parts_layer(t, f, "d.two", h), TL_F32)), TL_ALL,
                   false);
}

parts_fixture parts_begin(tl_dtype dtype)
{
    parts_fixture f = {.m = tl_model_new(.seed = 4), .dtype = dtype};
    f.t = tl_tape_new(f.m);
    f.a = tl_adamw_new(f.m, .lr = 0.03, .weight_decay = 0.1, .clip = 0.05,
                       .schedule = {TL_COSINE, .warmup = 3, .total = 20});
    f.b = tl_sgd_new(f.m, .lr = 0.05, .momentum = 0.9);
    return f;
}

void parts_rows(parts_fixture *f, int step, tl_tensor in[2])
{
    for (int i = 0; i < 2; i++) {
        float x[ROWS * WIDE];
        for (int k = 0; k < ROWS * WIDE; k++)
            x[k] = (float)((k * 7 + step * 5 + i * 3) % 11) / 5 - 1;
        in[i] = tl_cast(f->t, tl_data(f->t, x, TL_F32, TL_DIMS(ROWS, WIDE)), f->dtype);
    }
}
