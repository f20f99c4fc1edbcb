/* char_lstm: a recurrent net learns to write the text it reads, byte by byte, and writes some at
 * the end. An LSTM, written out in ops: its gates are one product a step.
 *
 * Its weights are used once for each byte of a window, and still have one hash for any split into
 * micro-batches. train_text does the same with a Llama, and measures it.
 * Source: Hochreiter & Schmidhuber 1997.
 */
#include "examples/example.h"

enum { MOST = 512 };
static int64_t seq = 48, width = 96, sample = 300;
static double temperature = 0.6;
static const char *text;
static const ex_option own[] = {
    {EX_WORD + EX_FREE, "--text", &text, 0, 0, "learn this file; default: the project's own text"},
    {EX_WHOLE, "--seq", &seq, 1, MOST, "bytes a sample"},
    {EX_WHOLE, "--width", &width, 1, 65536, "of the state"},
    {EX_WHOLE + EX_FREE, "--sample", &sample, 0, 1e6, "bytes to write at the end"},
    {EX_REAL + EX_FREE, "--temperature", &temperature, 0, 100, "of them; 0: the likeliest"},
};

/* x (b, s, n) -> states (b, s, width): cell c and state h are 0 before the first step. */
static tl_tensor lstm(tl_tape *t, const char *name, tl_tensor x)
{
    char full[64];
    tl_tensor c = TL_NONE, h = TL_NONE, gate[4], all[MOST];
    snprintf(full, sizeof full, "%s.input", name);
    tl_tensor in = tl_linear(t, ex.m, full, x, 4 * width); /* of all steps at once */
    snprintf(full, sizeof full, "%s.recurrent", name);
    int64_t n = tl_shape_of(t, x).dim[1];
    for (int64_t i = 0; i < n; i++) {
        tl_tensor z = tl_select(t, in, 1, i);
        if (i > 0)
            z = tl_add(t, z, tl_linear(t, ex.m, full, h, 4 * width, .no_bias = true));
        tl_chunk(t, z, 4, 1, gate);
        tl_tensor fresh = tl_mul(t, tl_sigmoid(t, gate[0]), tl_tanh(t, gate[1]));
        c = i == 0 ? fresh : tl_add(t, tl_mul(t, tl_sigmoid(t, gate[2]), c), fresh);
        all[i] = h = tl_mul(t, tl_sigmoid(t, gate[3]), tl_tanh(t, c));
    }
    return tl_stack(t, all, (int)n, 1);
}

static tl_tensor logits_of(tl_tape *t, tl_tensor ids)
{
    tl_tensor x = tl_embed(t, ex.m, "embed", ids, ex_text.vocab, width, 0.1);
    return tl_linear(t, ex.m, "output", lstm(t, "lstm", x), ex_text.vocab);
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
    ex.steps = 1500, ex.batch = 16, ex.lr = 5e-3, ex.unit = "bytes";
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
