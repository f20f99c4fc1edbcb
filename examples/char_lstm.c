/* char_lstm: a recurrent net learns to write the text it reads, byte by byte, and writes some at
 * the end. Its weights are used once for each byte of a window, and still it has one hash for any
 * split into micro-batches. train_text does the same with a Llama, and measures it.
 * Source: Hochreiter & Schmidhuber 1997.
 */
#include "examples/example.h"

static int64_t seq = 48, width = 96, sample = 300;
static double temperature = 0.8;
static const char *text;
static const ex_option own[] = {
    {EX_WORD + EX_FREE, "--text", &text, 0, 0, "learn this file; default: the project's own text"},
    {EX_WHOLE, "--seq", &seq, 1, 65536, "bytes a sample"},
    {EX_WHOLE, "--width", &width, 1, 65536, "of the state"},
    {EX_WHOLE + EX_FREE, "--sample", &sample, 0, 1e6, "bytes to write at the end"},
    {EX_REAL + EX_FREE, "--temperature", &temperature, 0, 100, "of them; 0: the likeliest"},
};

static tl_tensor logits_of(tl_tape *t, tl_tensor ids)
{
    tl_tensor x = tl_embed(t, ex.m, "embed", ids, ex_text.vocab, width, 0.1);
    return tl_linear(t, ex.m, "output", tl_lstm(t, ex.m, "lstm", x, width), ex_text.vocab);
}

static void batch(int64_t step, int64_t first, int64_t rows, tl_tensor *in)
{
    ex_text_batch(step, first, rows, seq, in);
}

static tl_tensor loss_of(tl_tape *t, const tl_tensor *in)
{
    return tl_cross_entropy(t, logits_of(t, in[0]), in[1], TL_MEAN, .total = ex.total,
                            .count = tl_scalar(t, TL_F64, ex.count));
}

int main(int argc, char **argv)
{
    ex.steps = 3000, ex.batch = 16, ex.lr = 5e-3, ex.unit = "bytes";
    ex_begin(argc, argv,
             &(ex_program){"char_lstm", "An LSTM learns to write text, byte by byte.\n", own,
                           sizeof own / sizeof *own, batch, 2, loss_of, NULL});
    ex_text_read(text, seq);
    ex_keep("text", ex_text.sha256, true);
    ex.units = seq;
    ex.count = (double)(ex.batch * seq);
    ex.opt = tl_adamw_new(ex.m, .lr = ex.lr, .beta2 = 0.99, .clip = 1,
                          .schedule = {TL_COSINE, .warmup = 20, .total = ex.steps,
                                       .min_ratio = 0.05});
    ex_ready();
    while (ex_step())
        if (ex_due())
            ex_say(ex.mean, "");
    if (sample > 0)
        ex_text_sample(logits_of, sample, seq, temperature);
    return ex_end();
}
