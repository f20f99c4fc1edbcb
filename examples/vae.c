/* vae: a variational autoencoder learns to draw digits. A picture x becomes a mean and a spread of
 * z; z is drawn from them, and a picture is made of it. The loss of a sample is what it would take
 * to tell x, given z, and z: cross entropy of the pixels, and the divergence of z from a standard
 * normal. The draw is keyed by the sample's number, so that the step compiles and no split into
 * micro-batches changes it.
 *
 * At the end: digits, what became of them, and pictures of z drawn from nothing.
 * Source: Kingma & Welling 2014.
 */
#include "examples/example.h"

enum { SHOWN = 5 };
static int64_t samples = 3000, latent = 8, hidden = 128;
static const char *images;
static const ex_option own[] = {
    {EX_WHOLE, "--samples", &samples, 32, 1e6, "digits to draw"},
    {EX_WORD, "--images", &images, 0, 0, "instead: pictures, IDX or .npy, (n, rows, columns)"},
    {EX_WHOLE, "--latent", &latent, 1, 1000, "numbers that a picture is made of"},
    {EX_WHOLE, "--hidden", &hidden, 1, 10000, "width of the hidden layers"},
};
static tl_array data[2];
static tl_loader loader;

/* x (b, pixels) to the mean and the logarithm of the variance of z, each (b, latent). */
static void encode(tl_tape *t, tl_tensor x, tl_tensor out[2])
{
    tl_tensor h = tl_relu(t, tl_linear(t, ex.m, "encoder.first", x, hidden));
    tl_chunk(t, tl_linear(t, ex.m, "encoder.last", h, 2 * latent), 2, 1, out);
}

/* z (b, latent) to logits of the pixels. */
static tl_tensor decode(tl_tape *t, tl_tensor z)
{
    tl_tensor h = tl_relu(t, tl_linear(t, ex.m, "decoder.first", z, hidden));
    return tl_linear(t, ex.m, "decoder.last", h, data[0].stride[0]);
}

static void batch(int64_t step, int64_t first, int64_t rows, tl_tensor *in)
{
    tl_tensor x[2];
    (void)step, (void)first; /* the loader knows */
    tl_group_next(ex.group, ex.t, &loader, rows, x);
    in[0] = tl_reshape(ex.t, x[0], TL_DIMS(rows, data[0].stride[0]));
    in[1] = ex_numbers(loader.number, rows);
}

static tl_tensor loss_of(tl_tape *t, const tl_tensor *in)
{
    tl_tensor code[2];
    encode(t, in[0], code);
    tl_tensor noise = tl_normal(t, TL_F32, tl_shape_of(t, code[0]), "z", .sample = in[1]);
    tl_tensor z = tl_add(t, code[0], tl_mul(t, tl_exp(t, tl_scale(t, code[1], 0.5)), noise));
    tl_tensor told = tl_sum(t, tl_bce_with_logits(t, decode(t, z), in[0], TL_EACH), TL_DIMS(1),
                            false);
    tl_tensor apart = tl_sub(t, tl_add(t, tl_square(t, code[0]), tl_exp(t, code[1])),
                             tl_shift(t, code[1], 1));
    return ex_mean(t, tl_add(t, told, tl_scale(t, tl_sum(t, apart, TL_DIMS(1), false), 0.5)));
}

/* Logits as pictures, side by side. */
static void show(const char *what, tl_tensor logits)
{
    int64_t rows = data[0].dim[2], columns = data[0].dim[3];
    float *x = ex_need(malloc((size_t)(SHOWN * rows * columns) * sizeof *x));
    ex_check(
        tl_keep(ex.t, tl_sigmoid(ex.t, logits), x, (size_t)(SHOWN * rows * columns) * sizeof *x));
    printf("\n%s\n", what);
    ex_picture(x, SHOWN, rows, columns);
    free(x);
}

int main(int argc, char **argv)
{
    ex.steps = 3000, ex.lr = 2e-3;
    ex_begin(argc, argv,
             &(ex_program){"vae", "A variational autoencoder learns to draw digits.\n", own,
                           sizeof own / sizeof *own, batch, 2, loss_of, NULL});
    ex_digits(images, NULL, samples, data);
    if (data[0].dim[0] < SHOWN)
        ex_die(EX_WRONG_USE, "%" PRId64 " images; %d are shown in the end", data[0].dim[0], SHOWN);
    loader = tl_loader_new(ex.t, "digits", data, 1, .batch = ex.batch, .drop_last = true);
    ex.opt = tl_adamw_new(ex.m, .lr = ex.lr,
                          .schedule = {TL_COSINE, .warmup = 20, .total = ex.steps});
    ex_check(TL_OK);
    ex_ready();
    while (ex_step())
        if (ex_due())
            ex_say(ex.mean, "");

    tl_tensor code[2], x = tl_data(ex.t, data[0].data, TL_F32, TL_DIMS(SHOWN, data[0].stride[0]));
    tl_mode_push(ex.t, TL_NO_GRAD);
    encode(ex.t, x, code);
    puts("\ndigits,");
    ex_picture(data[0].data, SHOWN, data[0].dim[2], data[0].dim[3]);
    show("and what the decoder makes of their codes:", decode(ex.t, code[0]));
    show("and of codes drawn from nothing:",
         decode(ex.t, tl_normal(ex.t, TL_F32, TL_DIMS(SHOWN, latent), "shown")));
    return ex_end();
}
