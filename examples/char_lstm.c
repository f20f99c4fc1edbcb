/* char_lstm: a recurrent net learns to write the text it reads, byte by byte, and writes some at
 * the end. Its weights are used once for each byte of a window, and still it has one hash for any
 * split into micro-batches. train_text does the same with a Llama, and measures it.
 * Source: Hochreiter & Schmidhuber 1997.
 */
#include "examples/example.h"

static int64_t width = 96;
static const ex_option own[] = {
    EX_TEXT_FLAGS,
    {EX_WHOLE, "--width", &width, 1, 65536, "of the state"},
};

static tl_tensor logits_of(tl_tape *t, tl_tensor ids)
{
    tl_tensor x = tl_embed(t, ex.m, "embed", ids, ex_text.vocab, width, 0.1);
    return tl_linear(t, ex.m, "output", tl_lstm(t, ex.m, "lstm", x, width), ex_text.vocab);
}

int main(int argc, char **argv)
{
    ex.steps = 3000, ex.batch = 16, ex.lr = 5e-3, ex.unit = "bytes";
    ex_begin(argc, argv,
             &(ex_program){"char_lstm", "An LSTM learns to write text, byte by byte.\n", own,
                           sizeof own / sizeof *own, ex_text_batch, 2, ex_text_loss, NULL});
    return ex_text_learn(logits_of);
}
