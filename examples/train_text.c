/* train_text: a small Llama learns to write the text it reads, byte by byte.
 *
 * By default the text is this project: its headers and documents. The last tenth is
 * held out and never trained on. Every random draw is a function of the seed and of
 * where it belongs - step, sample, position - so that neither threads nor micro-batches
 * nor a stop in between change a bit of the trained weights.
 *
 * In order: flags, model, main. The loop of training is in example.c.
 */
#include <math.h>

#include "examples/example.h"

/* ---- flags ---- */

static struct {
    int64_t width, layers, heads, kv_heads, warmup;
    double clip;
    bool tied, bf16;
} opt = {.width = 128, .layers = 4, .heads = 4, .kv_heads = 2, .warmup = 100, .clip = 1};

static const ex_option own[] = {
    EX_TEXT_FLAGS,
    {EX_WHOLE, "--width", &opt.width, 2, 65536, "of the model; a multiple of --heads"},
    {EX_WHOLE, "--layers", &opt.layers, 1, 1000, "decoder blocks"},
    {EX_WHOLE, "--heads", &opt.heads, 1, 4096, "query heads; a multiple of --kv-heads"},
    {EX_WHOLE, "--kv-heads", &opt.kv_heads, 1, 4096, "key and value heads"},
    {EX_YES, "--tied", &opt.tied, 0, 1, "the embedding is the output projection, too"},
    {EX_YES, "--bf16", &opt.bf16, 0, 1,
     "parameters and activations in bfloat16, updated through f32 masters"},
    {EX_WHOLE, "--warmup", &opt.warmup, 0, 1e9, "steps in which the learning rate rises"},
    {EX_REAL, "--clip", &opt.clip, 0, 1e9, "limit of the gradient's global norm; 0: none"},
    {EX_YES + EX_FREE, "--shard", &ex.shard, 0, 1,
     "of several processes each has part of the optimizer's state, same result"},
};

static void flags_check(void)
{
    ex_multiple("--heads", opt.heads, "--kv-heads", opt.kv_heads);
    ex_multiple("--width", opt.width, "--heads", opt.heads);
    if (opt.width / opt.heads % 2 != 0)
        ex_die(EX_WRONG_USE,
               "--width %" PRId64 " with --heads %" PRId64 " makes heads of odd size %" PRId64
               "; rotary positions turn pairs",
               opt.width, opt.heads, opt.width / opt.heads);
}

/* ---- model ---- */

static tl_llama_config config;
static int64_t at_once;        /* windows, when measuring */
static int64_t *ids, *targets; /* of so many */

static void run_begin(void)
{
    config = (tl_llama_config){.dtype = opt.bf16 ? TL_BF16 : TL_F32,
                               .vocab = ex_text.vocab,
                               .width = opt.width,
                               .layers = opt.layers,
                               .heads = opt.heads,
                               .kv_heads = opt.kv_heads,
                               .hidden = (opt.width * 8 / 3 + 31) / 32 * 32,
                               .max_positions = ex_text.seq,
                               .pairing = TL_ROTARY_HALF,
                               .tied = opt.tied};
    const double w = (double)opt.width;
    ex_fits((double)opt.layers * (2 * w * w * (1 + (double)opt.kv_heads / (double)opt.heads) +
                                  3 * w * (double)config.hidden));
    at_once = 1 + 4096 / ex_text.seq;
    size_t places = (size_t)(at_once * ex_text.seq);
    ids = ex_need(malloc(places * sizeof *ids));
    targets = ex_need(malloc(places * sizeof *targets));
    ex.count = (double)(ex.batch * ex_text.seq);
    ex.units = ex_text.seq;
    ex.opt = ex_need(tl_adamw_new(ex.m, .lr = ex.lr, .beta1 = 0.9, .beta2 = 0.99,
                                  .weight_decay = 0.1, .clip = opt.clip,
                                  .part = ex.shard ? tl_group_rank(ex.group) : 0,
                                  .parts = ex.shard ? tl_group_shard(ex.group) : 0,
                                  .schedule = {TL_COSINE, .warmup = opt.warmup, .total = ex.steps,
                                               .min_ratio = 0.05}));
    ex_check(ex.shard ? tl_group_cut(ex.group, ex.opt) : TL_OK);
    ex_check(tl_opt_group(ex.opt, "*norm*", 1, 0)); /* norms' weights do not decay */
    if (!opt.tied) /* a byte's row is met only where the byte is: */
        ex_check(tl_opt_group(ex.opt, "embed*", 10, 0)); /* it may take longer steps */
}

static tl_tensor logits_of(tl_tape *t, tl_tensor x) { return tl_llama(t, ex.m, &config, x); }

/* Adds the losses of windows in[0] with targets in[1] to the total; returns their sum / count. */
static tl_tensor sum_of(tl_tape *t, const tl_tensor *in, double count)
{
    return tl_cross_entropy(t, logits_of(t, in[0]), in[1], TL_MEAN, .ignore = true,
                            .ignore_index = EX_IGNORED, .count = tl_scalar(t, TL_F64, count),
                            .total = ex.total);
}

static tl_tensor loss_of(tl_tape *t, const tl_tensor *in) { return sum_of(t, in, ex.count); }

/* Mean loss over the held-out windows 0, every, 2*every, ... With every = 1 each held-out
 * byte but the first is a target exactly once. */
static double validate(int64_t every)
{
    char when[48] = "before training";
    if (ex.step > 0)
        snprintf(when, sizeof when, "after step %" PRId64, ex.step);
    int64_t n = ex_text.n - ex_text.train - 1, all = (n + ex_text.seq - 1) / ex_text.seq, count = 0;
    int mode = tl_mode_push(ex.t, TL_NO_GRAD);
    ex_check(tl_write(ex.m, ex.total, (double[]){0}, sizeof(double)));
    for (int64_t w = 0; w < all;) {
        int64_t rows = 0;
        for (; rows < at_once && w < all; rows++, w += every)
            ex_text_window(ex_text.train + w * ex_text.seq, ids + rows * ex_text.seq,
                           targets + rows * ex_text.seq);
        for (int64_t i = 0; i < rows * ex_text.seq; i++)
            count += targets[i] != EX_IGNORED;
        tl_tensor in[2] = {tl_data(ex.t, ids, TL_I64, TL_DIMS(rows, ex_text.seq)),
                           tl_data(ex.t, targets, TL_I64, TL_DIMS(rows, ex_text.seq))};
        sum_of(ex.t, in, 1);
        ex_check(TL_OK);
        tl_tape_reset(ex.t);
        if (w < all)
            ex_wait("validation %s: %" PRId64 " of %" PRId64 " windows\n", when, w, all);
    }
    tl_mode_pop(ex.t, mode);
    return tl_item(ex.t, ex.total) / (double)count;
}

/* Cross entropy of the held-out part under the frequencies of single bytes in the training
 * part, each count plus one, so that no byte of the vocabulary is impossible. */
static double unigram(void)
{
    double count[256] = {0}, sum = 0;
    for (int64_t i = 0; i < ex_text.train; i++)
        count[ex_text.byte[i]]++;
    for (int64_t i = ex_text.train; i < ex_text.n; i++)
        sum -= log((count[ex_text.byte[i]] + 1) / (double)(ex_text.train + ex_text.vocab));
    return sum / (double)(ex_text.n - ex_text.train);
}

/* ---- main ---- */

static void introduce(void)
{
    printf("model     %" PRId64 " layers, width %" PRId64 ", %" PRId64 " heads on %" PRId64
           " key heads, %" PRId64 " parameters\n",
           opt.layers, opt.width, opt.heads, opt.kv_heads, tl_model_parameters(ex.m));
    printf("training  steps %" PRId64 " to %" PRId64 " of %" PRId64 " x %" PRId64 " bytes on ",
           ex.step, ex.last, ex.batch, ex_text.seq);
    if (ex.group != NULL)
        printf("%d processes of ", tl_group_size(ex.group));
    printf(
        "%d thread%s\n"
        "          a token is a byte; loss is the mean since the line before, validation that of "
        "held-out text, in nats a byte\n\n",
        tl_threads(), tl_threads() == 1 ? "" : "s");
    fflush(stdout);
}

/* Trains; every tenth of the steps some 8000 bytes spread over the held-out part are measured. */
static void train(void)
{
    int64_t measure = ex.steps > 10 ? ex.steps / 10 : 1;
    for (double lr = tl_opt_lr(ex.opt); ex_step(); lr = tl_opt_lr(ex.opt)) {
        char measured[40] = "", val[32] = "";
        if (ex.step % measure == 0 && ex.step < ex.last) {
            double x = validate(1 + (ex_text.n - ex_text.train) / 8000);
            snprintf(measured, sizeof measured, "  validation %.4f", x);
            snprintf(val, sizeof val, "%.6f", x);
        }
        if (ex.csv_file != NULL)
            fprintf(ex.csv_file, "%" PRId64 ",%.6f,%s,%.6g,%.6g,%.0f\n", ex.step, ex.loss, val, lr,
                    tl_opt_grad_norm(ex.opt), ex_speed());
        if (*measured != '\0' || ex_due())
            ex_say(ex.mean, measured);
    }
}

int main(int argc, char **argv)
{
    char before[TL_NOTE_MAX] = "";
    ex.steps = 2000, ex.batch = 12, ex.lr = 2e-3, ex.unit = "tok";
    ex_text.seq = 64, ex_text.sample = 400;
    ex_begin(argc, argv,
             &(ex_program){.name = "train_text",
                           .about = "Trains a small Llama on text, then prints what it writes, its "
                                    "loss on the held-out\nlast tenth, and the SHA-256 of its "
                                    "weights.\n",
                           .options = own,
                           .n_options = sizeof own / sizeof *own,
                           .batch = ex_text_batch,
                           .n_in = 2,
                           .loss = loss_of,
                           .columns = "step,loss,val,lr,grad_norm,tokens_per_s"});
    flags_check();
    ex_text_read();
    run_begin();
    ex_keep("text", ex_text.sha256, true);
    ex_keep("before", before, false);
    validate(ex_text.n); /* the first call makes the parameters */
    ex_ready();
    introduce();
    if (ex.resume == NULL)
        snprintf(before, sizeof before, "%.17g", validate(1));
    train();
    ex_text_sample(logits_of);
    printf("speed %.0f tok/s\nvalidation loss %.4f (%.4f before training, unigram %.4f)\n",
           ex_speed(), validate(1), strtod(before, NULL), unigram());
    free(ids);
    free(targets);
    return ex_end();
}
