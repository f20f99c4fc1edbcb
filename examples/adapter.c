/* adapter: a Llama reads this project's text, is frozen, and learns the same text in capitals by a
 * low-rank adapter: each projection y = x W^T becomes y + x (A B), where A B has as many elements
 * as W and is made of few. A B is made once a step, not once a micro-batch, and so is its gradient:
 * the weights have one hash for any --micro-batch.
 *
 * --adapter FILE writes the adapter alone; --start FILE begins with one.
 * Source: Hu et al. 2021.
 */
#include <ctype.h>

#include "examples/example.h"

enum { SEQ = 32, AT_ONCE = 256 };
static int64_t rank = 4, pretrain = 200, width = 32;
static const char *adapter, *start;
static const ex_option own[] = {
    {EX_WORD + EX_FREE, "--text", &ex_text.path, 0, 0,
     "learn from this file; else this project's own text"},
    {EX_WHOLE, "--rank", &rank, 1, 64, "columns of A, rows of B"},
    {EX_WHOLE, "--width", &width, 4, 1024, "of the Llama; a multiple of 4"},
    {EX_WHOLE, "--pretrain", &pretrain, 0, 1e9, "steps of the Llama itself, before it is frozen"},
    {EX_WORD + EX_FREE + EX_WRITES, "--adapter", &adapter, 0, 0,
     "write the adapter here at the end"},
    {EX_WORD, "--start", &start, 0, 0, "begin with this adapter"},
};
static tl_llama_config config;
static bool adapts, capitals;

/* What stands for y = x W^T: .lora_a (inputs, rank), .lora_b (rank, outputs), which is 0 at first.
 */
static tl_tensor adapted(tl_tape *t, const char *name, tl_tensor x, tl_tensor y, void *ctx)
{
    char a[TL_NAME_MAX], b[TL_NAME_MAX];
    const tl_shape in = tl_shape_of(t, x), out = tl_shape_of(t, y);
    (void)ctx;
    snprintf(a, sizeof a, "%s.lora_a", name);
    snprintf(b, sizeof b, "%s.lora_b", name);
    tl_tensor ab = tl_matmul(
        t, tl_param(t, ex.m, a, TL_F32, TL_DIMS(in.dim[in.ndim - 1], rank), TL_INIT_NORMAL, 0.1),
        tl_param(t, ex.m, b, TL_F32, TL_DIMS(rank, out.dim[out.ndim - 1]), TL_INIT_ZEROS, 0));
    return tl_add(t, y, tl_matmul(t, x, ab));
}

static tl_tensor loss_of(tl_tape *t, const tl_tensor *in)
{
    const tl_hook hook = {adapts ? adapted : NULL, NULL};
    tl_tensor z = tl_llama(t, ex.m, &config, in[0], .project = hook);
    return tl_cross_entropy(t, z, in[1], TL_MEAN, .total = ex.total,
                            .count = tl_scalar(t, TL_F64, ex.count));
}

/* The id of a letter's capital; its own, if the text has none of that. */
static int64_t capital(int64_t id)
{
    const int byte = toupper(ex_text.byte_of[id]);
    const int64_t to = ex_text.id_of[byte];
    return ex_text.byte_of[to] == byte ? to : id;
}

/* Windows of the text; in capitals, once the Llama can read. */
static void batch(int64_t step, int64_t first, int64_t rows, tl_tensor *in)
{
    static int64_t ids[AT_ONCE][SEQ], targets[AT_ONCE][SEQ];
    tl_rng_key key = tl_rng_stream((uint64_t)ex.seed, capitals ? "capitals" : "windows");
    for (int64_t i = 0; i < rows; i++) {
        uint64_t at = tl_rng_below(key, (uint64_t)step, (uint64_t)(first + i),
                                   (uint64_t)(ex_text.train - SEQ));
        ex_text_window((int64_t)at, ids[i], targets[i]);
        for (int k = 0; k < SEQ && capitals; k++) {
            ids[i][k] = capital(ids[i][k]);
            targets[i][k] = capital(targets[i][k]);
        }
    }
    in[0] = tl_data(ex.t, ids, TL_I64, TL_DIMS(rows, SEQ));
    in[1] = tl_data(ex.t, targets, TL_I64, TL_DIMS(rows, SEQ));
}

/* The Llama by itself: a loop of its own, as its optimizer ends here. */
static void learn_to_read(void)
{
    tl_opt *opt = ex_need(tl_adamw_new(ex.m, .lr = 3e-3));
    tl_tape *groups = ex.t; /* here each process learns from all samples */
    ex.t = ex_need(tl_tape_new(ex.m));
    for (int64_t step = 0; step < pretrain; step++) {
        tl_tensor in[2];
        batch(step, 0, ex.batch, in);
        ex_check(tl_backward(ex.t, loss_of(ex.t, in)));
        ex_check(tl_step(opt, ex.t));
        tl_tape_reset(ex.t);
        ex_wait("the Llama reads: step %" PRId64 " of %" PRId64 "\n", step + 1, pretrain);
    }
    tl_free(opt, ex.t);
    ex.t = groups;
}

/* Elements of the adapter's parameters, and of the others. */
static void count(int64_t n[2])
{
    n[0] = n[1] = 0;
    for (int i = 0; i < tl_model_count(ex.m); i++) {
        tl_named p = tl_model_at(ex.m, i);
        if (p.param)
            n[strstr(p.name, ".lora_") == NULL] += tl_array_count(&p.array);
    }
}

/* The mean loss of a batch that is never trained on, in capitals. */
static double measure(void)
{
    tl_tensor in[2];
    int mode = tl_mode_push(ex.t, TL_NO_GRAD);
    ex_check(tl_write(ex.m, ex.total, (double[]){0}, sizeof(double)));
    batch(-1, 0, ex.batch, in);
    loss_of(ex.t, in);
    ex_check(TL_OK);
    tl_mode_pop(ex.t, mode);
    tl_tape_reset(ex.t);
    return tl_item(ex.t, ex.total) / ex.count;
}

/* All is frozen, but for the adapters, which the first call makes. */
static void add_adapters(void)
{
    tl_tensor in[2];
    adapts = capitals = true;
    batch(0, 0, 1, in);
    loss_of(ex.t, in);
    tl_tape_reset(ex.t);
    for (int i = 0; i < tl_model_count(ex.m); i++) {
        tl_named p = tl_model_at(ex.m, i);
        if (p.param)
            tl_model_freeze(ex.m, p.name, strstr(p.name, ".lora_") == NULL);
    }
    if (start != NULL)
        ex_check(tl_load(ex.m, start, .only = "*.lora_*"));
}

int main(int argc, char **argv)
{
    ex.steps = 200, ex.batch = 16, ex.lr = 1e-2, ex.unit = "bytes", ex.units = ex_text.seq = SEQ;
    ex_begin(
        argc, argv,
        &(ex_program){"adapter",
                      "A frozen Llama learns to write in capital letters by a low-rank adapter.\n",
                      own, sizeof own / sizeof *own, batch, 2, loss_of, NULL});
    if (ex.batch > AT_ONCE || width % 4 != 0)
        ex_die(EX_WRONG_USE,
               "--batch %" PRId64 " above %d, or --width %" PRId64 " no multiple of 4", ex.batch,
               AT_ONCE, width);
    if (adapter != NULL) /* to know before training */
        ex_check(tl_checkpoint_writable(ex.m, adapter));
    ex_text_read();
    config = (tl_llama_config){.vocab = ex_text.vocab,
                               .width = width,
                               .layers = 2,
                               .heads = 2,
                               .hidden = 2 * width,
                               .max_positions = SEQ,
                               .pairing = TL_ROTARY_HALF};
    ex.count = (double)(ex.batch * SEQ);
    learn_to_read();
    add_adapters();
    ex.opt = tl_adamw_new(ex.m, .lr = ex.lr);
    int64_t n[2];
    double before = measure();
    count(n);
    ex_ready();
    printf("frozen    the Llama's %" PRId64 " parameters, after %" PRId64 " steps\n"
           "trained   the adapter's %" PRId64 ", %.1f%% as many\n\n",
           n[1], pretrain, n[0], 100.0 * (double)n[0] / (double)n[1]);
    while (ex_step())
        if (ex_due())
            ex_say(ex.mean, "");
    printf("\nloss on other text in capitals %.4f before, %.4f now\n"
           "bytes of the adapter alone %" PRId64 ", of the whole %" PRId64 "\n",
           before, measure(), 4 * n[0], 4 * (n[0] + n[1]));
    if (adapter != NULL)
        ex_check(tl_save(ex.m, adapter, .only = "*.lora_*"));
    return ex_end();
}
