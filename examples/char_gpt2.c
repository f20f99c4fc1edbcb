/* char_gpt2: a GPT-2, written out in layers, learns to write the text it reads. Its positions are
 * a table of shape (seq, width) that is added to each sample: nothing in it depends on the batch,
 * and still it has one hash for any split into micro-batches.
 * Source: Radford et al. 2019.
 */
#include "examples/example.h"

static int64_t width = 64, layers = 2, heads = 4;
static const ex_option own[] = {
    EX_TEXT_FLAGS,
    {EX_WHOLE, "--width", &width, 1, 65536, "of the model; a multiple of --heads"},
    {EX_WHOLE, "--layers", &layers, 1, 1000, "blocks"},
    {EX_WHOLE, "--heads", &heads, 1, 4096, "of attention"},
};

/* x + attention(norm x), then x + mlp(norm x). */
static tl_tensor block(tl_tape *t, int64_t i, tl_tensor x)
{
    static const char *const part[] = {"norm1", "qkv", "norm2", "mlp"};
    char name[4][32];
    tl_tensor qkv[3];
    tl_shape s = tl_shape_of(t, x);
    for (int k = 0; k < 4; k++)
        snprintf(name[k], sizeof *name, "block%d.%s", (int)i, part[k]);
    tl_tensor h = tl_norm_layer(t, ex.m, name[0], x, 1e-5);
    tl_chunk(t, tl_linear(t, ex.m, name[1], h, 3 * width), 3, 2, qkv);
    for (int k = 0; k < 3; k++) /* (b, s, width) -> (b, heads, s, width/heads) */
        qkv[k] = tl_permute(t,
                            tl_reshape(t, qkv[k],
                                       TL_DIMS(s.dim[0], s.dim[1], heads, width / heads)),
                            TL_DIMS(0, 2, 1, 3));
    h = tl_permute(t, tl_attention(t, qkv[0], qkv[1], qkv[2]), TL_DIMS(0, 2, 1, 3));
    x = tl_add(t, x, tl_reshape(t, h, s));
    h = tl_norm_layer(t, ex.m, name[2], x, 1e-5);
    return tl_add(t, x, tl_mlp_gelu(t, ex.m, name[3], h, 4 * width, .deviation = 0.1));
}

static tl_tensor logits_of(tl_tape *t, tl_tensor ids)
{
    int64_t columns = tl_shape_of(t, ids).dim[1];
    tl_tensor table = tl_param(t, ex.m, "positions", TL_F32, TL_DIMS(ex_text.seq, width),
                               TL_INIT_NORMAL, 0.1);
    tl_tensor x = tl_embed(t, ex.m, "embed", ids, ex_text.vocab, width, 0.1);
    x = tl_add(t, x, tl_slice(t, table, 0, 0, columns, 1));
    for (int64_t i = 0; i < layers; i++)
        x = block(t, i, x);
    return tl_linear(t, ex.m, "output", tl_norm_layer(t, ex.m, "norm", x, 1e-5), ex_text.vocab);
}

int main(int argc, char **argv)
{
    ex.steps = 1500, ex.batch = 16, ex.lr = 3e-3, ex.unit = "bytes";
    ex_begin(argc, argv,
             &(ex_program){"char_gpt2", "A GPT-2 learns to write text, byte by byte.\n", own,
                           sizeof own / sizeof *own, ex_text_batch, 2, ex_text_loss, NULL});
    ex_multiple("--width", width, "--heads", heads);
    ex_fits(12. * (double)layers * (double)(width * width));
    return ex_text_learn(logits_of);
}
