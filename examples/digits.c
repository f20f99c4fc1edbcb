/* digits: a small convolution net tells digits apart. The program draws them itself, or reads files
 * such as MNIST's: --images train-images-idx3-ubyte --labels train-labels-idx1-ubyte.
 *
 * One in six is held out. At the end: a table of what was taken for what.
 */
#include "examples/example.h"

static int64_t samples = 3000;
static const char *images, *labels;
static const ex_option own[] = {
    {EX_WHOLE, "--samples", &samples, 12, 1e6, "digits to draw"},
    {EX_WORD, "--images", &images, 0, 0, "instead: pictures, IDX or .npy, (n, rows, columns)"},
    {EX_WORD, "--labels", &labels, 0, 0, "and what they are, 0 to 9, (n)"},
};
static tl_loader loader;

static tl_tensor network(tl_tape *t, tl_tensor x)
{
    tl_tensor h = tl_convolve2d(t, ex.m, "first", x, 8, .kernel = {5, 5}, .padding = {2, 2});
    h = tl_max_pool2d(t, tl_relu(t, h), .kernel = {2, 2});
    h = tl_convolve2d(t, ex.m, "second", h, 16, .kernel = {5, 5}, .padding = {2, 2});
    h = tl_max_pool2d(t, tl_relu(t, h), .kernel = {2, 2});
    const tl_shape s = tl_shape_of(t, h); /* a process may have no samples, where -1 is any */
    h = tl_reshape(t, h, TL_DIMS(s.dim[0], s.dim[1] * s.dim[2] * s.dim[3]));
    h = tl_relu(t, tl_linear(t, ex.m, "third", h, 64));
    return tl_linear(t, ex.m, "last", h, 10);
}

static void batch(int64_t step, int64_t first, int64_t rows, tl_tensor *in)
{
    (void)step, (void)first; /* the loader knows */
    tl_group_next(ex.group, ex.t, &loader, rows, in);
}

static tl_tensor loss_of(tl_tape *t, const tl_tensor *in)
{
    return tl_cross_entropy(t, network(t, in[0]), in[1], TL_MEAN, .total = ex.total,
                            .count = tl_scalar(t, TL_F64, ex.count));
}

/* Of digits never seen, how many of each kind were taken for which. */
static void table(const tl_array held[2])
{
    int64_t count[10][10] = {{0}}, guess[100], is[100], right = 0, n = held[0].dim[0];
    tl_loader l = tl_loader_new(ex.t, "held out", held, 2, .batch = 100, .in_order = true);
    int mode = tl_mode_push(ex.t, TL_NO_GRAD);
    for (int64_t at = 0, rows; at < n; at += rows) {
        tl_tensor in[2];
        rows = tl_loader_next(ex.t, &l, 100, in);
        tl_keep(ex.t, in[1], is, (size_t)rows * sizeof *is);
        ex_check(tl_keep(ex.t, tl_argmax(ex.t, network(ex.t, in[0]), 1, false), guess,
                         (size_t)rows * sizeof *guess));
        tl_tape_reset(ex.t);
        for (int64_t i = 0; i < rows; i++) {
            count[is[i]][guess[i]]++;
            right += is[i] == guess[i];
        }
    }
    tl_mode_pop(ex.t, mode);
    puts("\ndigit  taken for    0     1     2     3     4     5     6     7     8     9");
    for (int i = 0; i < 10; i++) {
        printf("%5d            ", i);
        for (int k = 0; k < 10; k++)
            count[i][k] > 0 ? printf("%5" PRId64 " ", count[i][k]) : printf("    . ");
        putchar('\n');
    }
    printf("accuracy %.2f%% (%" PRId64 " of %" PRId64 " digits never seen)\n",
           100 * (double)right / (double)n, right, n);
}

int main(int argc, char **argv)
{
    tl_array data[2], held[2];
    ex.steps = 300, ex.lr = 2e-3;
    ex_begin(argc, argv,
             &(ex_program){"digits", "A convolution net learns to read digits.\n", own,
                           sizeof own / sizeof *own, batch, 2, loss_of, NULL});
    if ((images == NULL) != (labels == NULL))
        ex_die(EX_WRONG_USE, "--images and --labels go together");
    ex_digits(images, labels, samples, data);
    for (int i = 0; i < 2; i++) { /* the first sixth is held out */
        int64_t n = data[i].dim[0], out = n / 6;
        held[i] = data[i];
        held[i].dim[0] = out;
        data[i].data = tl_array_at(&data[i], out * data[i].stride[0]);
        data[i].dim[0] = n - out;
    }
    ex_enough(held[0].dim[0], data[0].dim[0]);
    loader = tl_loader_new(ex.t, "digits", data, 2, .batch = ex.batch, .drop_last = true);
    ex.opt = tl_adamw_new(ex.m, .lr = ex.lr,
                          .schedule = {TL_COSINE, .warmup = 20, .total = ex.steps});
    ex_check(TL_OK);
    ex_ready();
    while (ex_step())
        if (ex_due())
            ex_say(ex.mean, "");
    table(held);
    return ex_end();
}
