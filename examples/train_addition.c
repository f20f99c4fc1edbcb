/* train_addition: a small Llama, or GPT-2, learns to add three-digit numbers from examples.
 *
 *     "123+456=9750"    the answer 0579 stands last digit first, so that each digit
 *                       needs only digits and carries that came before it
 *
 * One pair of numbers in ten is held out, in both orders: training never draws it.
 * At the end the model adds pairs it never saw, and is right only if every digit is.
 * tests/golden/runs.txt holds the hashes of a few short runs, for anyone to compare.
 *
 * In order: flags, examples, model, accuracy, main. The loop of training is in example.c.
 */
#include "examples/example.h"

/* ---- flags ---- */

enum { HEADS = 4 };
static int64_t width = 64, layers = 2, test = 5000;
static const char *model = "llama", *dtype = "f32";
static const ex_option own[] = {
    {EX_WORD, "--model", &model, 0, 0, "llama, gpt2 or lstm"},
    {EX_WORD, "--dtype", &dtype, 0, 0, "of weights and activations: f32 or bf16"},
    {EX_WHOLE, "--width", &width, 8, 4096, "of the model; a multiple of 8 (4 heads of even size)"},
    {EX_WHOLE, "--layers", &layers, 1, 100, "decoder blocks"},
    {EX_WHOLE + EX_FREE, "--test", &test, 1, 80000, "sums never seen to try at the end"},
};

static void flags_check(void)
{
    if (strcmp(model, "llama") != 0 && strcmp(model, "gpt2") != 0 && strcmp(model, "lstm") != 0)
        ex_die(EX_WRONG_USE, "--model %s: llama, gpt2 or lstm is needed", model);
    if (strcmp(dtype, "f32") != 0 && strcmp(dtype, "bf16") != 0)
        ex_die(EX_WRONG_USE, "--dtype %s: f32 or bf16 is needed", dtype);
    if (width % (2 * HEADS) != 0)
        ex_die(EX_WRONG_USE, "--width %" PRId64 " is not a multiple of %d: %d heads of even size",
               width, 2 * HEADS, HEADS);
}

/* ---- examples: "abc+def=" and four digits, as ids: the digits, plus, equals ---- */

enum {
    PLUS = 10,
    EQUALS = 11,
    VOCAB = 12,
    SEQ = 11,
    ASKED = 7,
    DIGITS = 4,
    IGNORED = -1,
    LOW = 100,
    NUMBERS = 900
};
static tl_rng_key pairs, held; /* streams of draws */
static int64_t (*ids)[SEQ], (*targets)[SEQ],
    (*best)[SEQ]; /* best: what the model holds likeliest */

/* Held out: one unordered pair in ten, decided by the pair alone. */
static bool held_out(int64_t a, int64_t b)
{
    return tl_rng_below(held, (uint64_t)(a < b ? a : b), (uint64_t)(a < b ? b : a), 10) == 0;
}

/* The pair number (x, y) of those held out or not: the first fitting one of a row of draws. */
static void pair(bool out, uint64_t x, uint64_t y, int64_t *a, int64_t *b)
{
    uint64_t i = y << 12; /* 2^11 tries: room enough */
    do {
        *a = LOW + (int64_t)tl_rng_below(pairs, x, i++, NUMBERS);
        *b = LOW + (int64_t)tl_rng_below(pairs, x, i++, NUMBERS);
    } while (held_out(*a, *b) != out);
}

/* Row i: what the model reads, and for each place what should come next; the question counts for
 * nothing. */
static void write_sum(int64_t a, int64_t b, int64_t i)
{
    int64_t sum = a + b;
    int64_t s[SEQ + 1] = {a / 100,  a / 10 % 10,   a % 10,         PLUS,
                          b / 100,  b / 10 % 10,   b % 10,         EQUALS,
                          sum % 10, sum / 10 % 10, sum / 100 % 10, sum / 1000};
    for (int k = 0; k < SEQ; k++) {
        ids[i][k] = s[k];
        targets[i][k] = k < ASKED ? IGNORED : s[k + 1];
    }
}

static void batch(int64_t step, int64_t first, int64_t rows, tl_tensor *in)
{
    int64_t a, b;
    for (int64_t i = 0; i < rows; i++) {
        pair(false, (uint64_t)step + 1, (uint64_t)(first + i), &a, &b);
        write_sum(a, b, i);
    }
    in[0] = tl_data(ex.t, ids, TL_I64, TL_DIMS(rows, SEQ));
    in[1] = tl_data(ex.t, targets, TL_I64, TL_DIMS(rows, SEQ));
    tl_log_name(ex.t, in[0], "sums");
    tl_log_name(ex.t, in[1], "answers");
}

/* ---- model ---- */

static tl_tensor logits_of(tl_tape *t, tl_tensor x)
{
    tl_dtype type = strcmp(dtype, "bf16") == 0 ? TL_BF16 : TL_F32;
    tl_llama_config llama = {.vocab = VOCAB,
                             .width = width,
                             .layers = layers,
                             .heads = HEADS,
                             .kv_heads = HEADS,
                             .hidden = 3 * width,
                             .max_positions = SEQ,
                             .pairing = TL_ROTARY_HALF,
                             .dtype = type};
    tl_gpt2_config gpt2 = {.vocab = VOCAB,
                           .width = width,
                           .layers = layers,
                           .heads = HEADS,
                           .max_positions = SEQ,
                           .dtype = type};
    if (strcmp(model, "lstm") == 0) {
        tl_tensor h = tl_embed_at(TL_AT(t), ex.m, "embed", x, VOCAB, width, 0.5, type,
                                  (tl_layer_options){0});
        return tl_linear(t, ex.m, "output", tl_lstm(t, ex.m, "lstm", h, width, .layers = layers),
                         VOCAB);
    }
    return strcmp(model, "gpt2") == 0 ? tl_gpt2(t, ex.m, &gpt2, x) : tl_llama(t, ex.m, &llama, x);
}

static tl_tensor loss_of(tl_tape *t, const tl_tensor *in)
{
    return tl_cross_entropy(t, logits_of(t, in[0]), in[1], TL_MEAN, .ignore = true,
                            .ignore_index = IGNORED, .count = tl_scalar(t, TL_F64, ex.count),
                            .total = ex.total);
}

/* ---- accuracy ---- */

/* How many of n held-out sums have every digit right. The model may read the right digits before
 * the one it is asked for: if it erred there, the sum has been counted as wrong already. */
static int64_t right_sums(int64_t n)
{
    int64_t a, b, right = 0;
    for (int64_t i = 0; i < n; i++) {
        pair(true, 0, (uint64_t)i, &a, &b);
        write_sum(a, b, i);
    }
    int mode = tl_mode_push(ex.t, TL_NO_GRAD);
    tl_tensor x = tl_data(ex.t, ids, TL_I64, TL_DIMS(n, SEQ));
    ex_check(tl_keep(ex.t, tl_argmax(ex.t, logits_of(ex.t, x), -1, false), best,
                     (size_t)n * sizeof *best));
    tl_mode_pop(ex.t, mode);
    tl_tape_reset(ex.t);
    for (int64_t i = 0; i < n; i++)
        right += memcmp(best[i] + ASKED, targets[i] + ASKED, DIGITS * sizeof **best) == 0;
    return right;
}

/* ---- main ---- */

int main(int argc, char **argv)
{
    ex.steps = 1500, ex.batch = 128, ex.lr = 5e-3, ex.unit = "sums";
    ex_begin(argc, argv,
             &(ex_program){.name = "train_addition",
                           .about = "Trains a small decoder to add three-digit numbers.\n",
                           .options = own,
                           .n_options = sizeof own / sizeof *own,
                           .batch = batch,
                           .n_in = 2,
                           .loss = loss_of,
                           .columns = "step,loss,accuracy"});
    flags_check();
    ex_fits(13. * (double)layers * (double)(width * width));
    ex.count = (double)(ex.batch * DIGITS);
    size_t rows = (size_t)(test > ex.micro_batch ? test : ex.micro_batch);
    ids = ex_need(malloc(rows * sizeof *ids));
    targets = ex_need(malloc(rows * sizeof *targets));
    best = ex_need(malloc(rows * sizeof *best));
    pairs = tl_rng_stream((uint64_t)ex.seed, "addition.pairs");
    held = tl_rng_stream((uint64_t)ex.seed, "addition.held_out");
    ex.opt = tl_adamw_new(ex.m, .lr = ex.lr, .beta2 = 0.99, .weight_decay = 0.01, .clip = 1,
                          .schedule = {TL_COSINE, .warmup = 50, .total = ex.steps,
                                       .min_ratio = 0.01});
    ex_ready();

    int64_t part = test < 500 ? test : 500;
    while (ex_step())
        if (ex_due()) {
            double accuracy = 100 * (double)right_sums(part) / (double)part;
            char measured[40];
            snprintf(measured, sizeof measured, "  accuracy %.1f%%", accuracy);
            ex_say(ex.loss, measured);
            if (ex.csv_file != NULL)
                fprintf(ex.csv_file, "%" PRId64 ",%.6f,%.2f\n", ex.step, ex.loss, accuracy);
        }

    int64_t right = right_sums(test);
    printf("accuracy %.2f%% (%" PRId64 " of %" PRId64 " sums never seen)\n",
           100 * (double)right / (double)test, right, test);
    free(ids);
    free(targets);
    free(best);
    return ex_end();
}
