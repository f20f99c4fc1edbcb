/* train_addition: a small Llama, or GPT-2, learns to add three-digit numbers from examples.
 *
 *     "123+456=9750"    the answer 0579 stands last digit first, so that each digit
 *                       needs only digits and carries that came before it
 *
 * One pair of numbers in ten is held out, in both orders: training never draws it.
 * At the end the model adds pairs it never saw, and is right only if every digit is.
 * tests/golden/runs.txt holds the hashes of a few short runs, for anyone to compare.
 *
 * In order: options, examples, model, stop and resume, training, accuracy, main.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <tally.h>
#include <time.h>
#include <unistd.h>

enum { DONE = 0, FAILED = 1, WRONG_USE = 2, HEADS = 4 };

/* ---- options ---- */

typedef struct {
    int64_t steps, stop_at, batch, micro_batch, width, layers, test, threads, seed, log_every,
        log_keep;
    double lr;
    const char *model, *dtype, *save, *resume, *csv, *log;
    bool compile;
} options;

static _Noreturn void help(void)
{
    puts("usage: train_addition [--flag value]...\n\n"
         "  --steps 1500      optimizer steps\n"
         "  --stop-at 0       end after this step of --steps; 0: after the last\n"
         "  --batch 128       sums a step\n"
         "  --micro-batch 0   sums at a time, same result; divides --batch; 0: all\n"
         "  --model llama     or gpt2\n"
         "  --dtype f32       of weights and activations, or bf16\n"
         "  --width 64        of the model; a multiple of 8 (4 heads of even size)\n"
         "  --layers 2        decoder blocks\n"
         "  --lr 0.005        highest learning rate\n"
         "  --test 5000       sums never seen to try at the end\n"
         "  --threads 0       same result with any number; 0: TL_THREADS, else one a core\n"
         "  --seed 1          of every random draw\n"
         "  --compile         trace the training step once and replay it, same result\n"
         "  --save FILE       write weights and optimizer (safetensors)\n"
         "  --resume FILE     continue from there, to the same final weights\n"
         "  --csv FILE        write step,loss,accuracy\n"
         "  --log FILE        write what each op computed, to compare two runs with tally-diff\n"
         "  --log-every 1     of every so many steps; of the others only losses, norms and rates\n"
         "  --log-keep 0      and all values of this step, beside the log; 0: of none\n\n"
         "exit status: 0 done, 1 failed, 2 wrong use");
    exit(DONE);
}

static _Noreturn void die(int status, const char *fmt, ...) TL_PRINTF(2, 3);
static _Noreturn void die(int status, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fflush(stdout);
    fputs("train_addition: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    exit(status);
}

static int64_t whole(const char *flag, const char *value, int64_t low, int64_t high)
{
    char *end;
    long long x = strtoll(value, &end, 10);
    if (*value == '\0' || *end != '\0' || x < low || x > high)
        die(WRONG_USE, "%s %s: a whole number from %" PRId64 " to %" PRId64 " is needed", flag,
            value, low, high);
    return x;
}

static double real(const char *flag, const char *value, double low, double high)
{
    char *end;
    double x = strtod(value, &end);
    if (*value == '\0' || *end != '\0' || !(x >= low && x <= high))
        die(WRONG_USE, "%s %s: a number from %g to %g is needed", flag, value, low, high);
    return x;
}

static void one_of(const char *flag, const char *value, const char *a, const char *b)
{
    if (strcmp(value, a) != 0 && strcmp(value, b) != 0)
        die(WRONG_USE, "%s %s: %s or %s is needed", flag, value, a, b);
}

static void options_check(options *o)
{
    one_of("--model", o->model, "llama", "gpt2");
    one_of("--dtype", o->dtype, "f32", "bf16");
    if (o->micro_batch == 0)
        o->micro_batch = o->batch;
    if (o->stop_at == 0)
        o->stop_at = o->steps;
    if (o->batch % o->micro_batch != 0)
        die(WRONG_USE, "--batch %" PRId64 " is not a multiple of --micro-batch %" PRId64, o->batch,
            o->micro_batch);
    if (o->width % (2 * HEADS) != 0)
        die(WRONG_USE, "--width %" PRId64 " is not a multiple of %d: %d heads of even size",
            o->width, 2 * HEADS, HEADS);
    if (o->log == NULL && (o->log_keep > 0 || o->log_every > 1))
        die(WRONG_USE, "--log-%s needs --log", o->log_keep > 0 ? "keep" : "every");
    if (o->stop_at > o->steps)
        die(WRONG_USE, "--stop-at %" PRId64 " is beyond --steps %" PRId64, o->stop_at, o->steps);
}

static options options_read(int argc, char **argv)
{
    options o = {.model = "llama",
                 .dtype = "f32",
                 .steps = 1500,
                 .batch = 128,
                 .width = 64,
                 .layers = 2,
                 .test = 5000,
                 .seed = 1,
                 .lr = 5e-3,
                 .log_every = 1};
    struct {
        const char *flag;
        int64_t *field, low, high;
    } list[] = {
        {"--steps", &o.steps, 1, 1000000},      {"--stop-at", &o.stop_at, 0, 1000000},
        {"--batch", &o.batch, 1, 100000},       {"--micro-batch", &o.micro_batch, 0, 100000},
        {"--width", &o.width, 8, 4096},         {"--layers", &o.layers, 1, 100},
        {"--test", &o.test, 1, 80000},          {"--threads", &o.threads, 0, 256},
        {"--seed", &o.seed, 0, INT64_MAX},      {"--log-every", &o.log_every, 1, 1000000},
        {"--log-keep", &o.log_keep, 0, 1000000}};
    struct {
        const char *flag, **field;
    } words[] = {{"--model", &o.model},   {"--dtype", &o.dtype}, {"--save", &o.save},
                 {"--resume", &o.resume}, {"--csv", &o.csv},     {"--log", &o.log}};
    enum { N = sizeof list / sizeof *list, WORDS = sizeof words / sizeof *words };
    for (int i = 1; i < argc; i += 2) {
        const char *flag = argv[i], *value = argv[i + 1]; /* NULL after the last */
        bool lr = strcmp(flag, "--lr") == 0;
        int k = 0, w = 0;
        if (strcmp(flag, "--help") == 0 || strcmp(flag, "-h") == 0)
            help();
        if (strcmp(flag, "--compile") == 0) {
            o.compile = true;
            i--; /* it takes no value */
            continue;
        }
        while (k < N && strcmp(flag, list[k].flag) != 0)
            k++;
        while (w < WORDS && strcmp(flag, words[w].flag) != 0)
            w++;
        if (k == N && w == WORDS && !lr)
            die(WRONG_USE, "unknown flag '%s'; --help lists all", flag);
        if (value == NULL)
            die(WRONG_USE, "%s needs a value", flag);
        if (k < N)
            *list[k].field = whole(flag, value, list[k].low, list[k].high);
        else if (w < WORDS)
            *words[w].field = value;
        else
            o.lr = real(flag, value, 0, 10);
    }
    options_check(&o);
    return o;
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

/* Held out: one unordered pair in ten, decided by the pair alone. */
static bool held_out(tl_rng_key key, int64_t a, int64_t b)
{
    return tl_rng_below(key, (uint64_t)(a < b ? a : b), (uint64_t)(a < b ? b : a), 10) == 0;
}

typedef struct {
    tl_rng_key pairs, held;
} streams;

/* The pair number (x, y) of those held out or not: the first fitting one of a row of draws. */
static void pair(const streams *s, bool held, uint64_t x, uint64_t y, int64_t *a, int64_t *b)
{
    uint64_t i = y << 12; /* 2^11 tries: room enough */
    do {
        *a = LOW + (int64_t)tl_rng_below(s->pairs, x, i++, NUMBERS);
        *b = LOW + (int64_t)tl_rng_below(s->pairs, x, i++, NUMBERS);
    } while (held_out(s->held, *a, *b) != held);
}

/* What the model reads, and for each place what should come next; the question counts for nothing.
 */
static void write_sum(int64_t a, int64_t b, int64_t ids[SEQ], int64_t targets[SEQ])
{
    int64_t sum = a + b;
    int64_t s[SEQ + 1] = {a / 100,  a / 10 % 10,   a % 10,         PLUS,
                          b / 100,  b / 10 % 10,   b % 10,         EQUALS,
                          sum % 10, sum / 10 % 10, sum / 100 % 10, sum / 1000};
    for (int i = 0; i < SEQ; i++) {
        ids[i] = s[i];
        targets[i] = i < ASKED ? IGNORED : s[i + 1];
    }
}

/* ---- model ---- */

typedef struct {
    options o;
    streams s;
    tl_model *model;
    tl_tape *tape;
    tl_opt *optimizer;
    tl_compiled *micro, *last; /* with --compile: a micro-batch, and the last one of a step */
    tl_tensor total;           /* sum of losses of a step, in f64 */
    int64_t (*ids)[SEQ], (*targets)[SEQ],
        (*best)[SEQ]; /* best: what the model takes for likeliest */
    FILE *csv;
} run;

static void check(const run *r, tl_status s)
{
    if (s != TL_OK || tl_failed(r->tape))
        die(FAILED, "%s", tl_error(r->tape)); /* or its model's error */
}

static void *need(void *p)
{
    if (p == NULL)
        die(FAILED, "out of memory");
    return p;
}

static void csv_open(run *r)
{
    if (r->o.csv == NULL)
        return;
    r->csv = fopen(r->o.csv, "w");
    if (r->csv == NULL)
        die(FAILED, "cannot write %s: %s", r->o.csv, strerror(errno));
    fputs("step,loss,accuracy\n", r->csv);
}

static void csv_close(run *r)
{
    bool bad = r->csv != NULL && ferror(r->csv);
    if (r->csv != NULL && (fclose(r->csv) != 0 || bad))
        die(FAILED, "cannot write %s: %s", r->o.csv, strerror(errno));
}

static void run_end(run *r)
{
    tl_free(r->micro, r->last, r->optimizer, r->tape, r->model);
    free(r->ids);
    free(r->targets);
    free(r->best);
}

static tl_program micro_batch, last_micro_batch; /* below: what a step is made of */

static void run_begin(run *r)
{
    const options *o = &r->o;
    int64_t rows = o->test > o->micro_batch ? o->test : o->micro_batch;
    tl_threads_set((int)o->threads);
    r->s = (streams){tl_rng_stream((uint64_t)o->seed, "addition.pairs"),
                     tl_rng_stream((uint64_t)o->seed, "addition.held_out")};
    r->ids = need(malloc((size_t)rows * sizeof *r->ids));
    r->targets = need(malloc((size_t)rows * sizeof *r->targets));
    r->best = need(malloc((size_t)rows * sizeof *r->best));
    r->model = need(tl_model_new(.seed = (uint64_t)o->seed));
    r->tape = need(tl_tape_new(r->model));
    r->total = tl_data(r->model, (double[]){0}, TL_F64, TL_SCALAR);
    r->optimizer = need(
        tl_adamw_new(r->model, .lr = o->lr, .beta2 = 0.99, .weight_decay = 0.01, .clip = 1,
                     .schedule = {TL_COSINE, .warmup = 50, .total = o->steps, .min_ratio = 0.01}));
    r->micro = need(tl_compile(r->tape, micro_batch, 1, r));
    r->last = need(tl_compile(r->tape, last_micro_batch, 1, r));
    check(r, TL_OK);
}

/* The first rows of r->ids. */
static tl_tensor ids_of(run *r, int64_t rows)
{
    return tl_data(r->tape, r->ids, TL_I64, TL_DIMS(rows, SEQ));
}

static tl_tensor logits_of(run *r, tl_tape *t, tl_tensor ids)
{
    const options *o = &r->o;
    tl_dtype dtype = strcmp(o->dtype, "bf16") == 0 ? TL_BF16 : TL_F32;
    tl_llama_config llama = {.vocab = VOCAB,
                             .width = o->width,
                             .layers = o->layers,
                             .heads = HEADS,
                             .kv_heads = HEADS,
                             .hidden = 3 * o->width,
                             .max_positions = SEQ,
                             .dtype = dtype};
    tl_gpt2_config gpt2 = {.vocab = VOCAB,
                           .width = o->width,
                           .layers = o->layers,
                           .heads = HEADS,
                           .max_positions = SEQ,
                           .dtype = dtype};
    return strcmp(o->model, "gpt2") == 0 ? tl_gpt2(t, r->model, &gpt2, ids)
                                         : tl_llama(t, r->model, &llama, ids);
}

/* ---- stop and resume ---- */

/* What shapes the run, as notes; a checkpoint of another run is refused. */
enum { NOTES = 8 };
static const char *const keys[NOTES] = {"model", "dtype",  "steps", "batch",
                                        "width", "layers", "lr",    "seed"};

static void describe(const options *o, char values[NOTES][TL_NOTE_MAX])
{
    const int64_t numbers[NOTES] = {0, 0, o->steps, o->batch, o->width, o->layers, 0, o->seed};
    for (int i = 0; i < NOTES; i++)
        snprintf(values[i], TL_NOTE_MAX, "%" PRId64, numbers[i]);
    snprintf(values[0], TL_NOTE_MAX, "%s", o->model);
    snprintf(values[1], TL_NOTE_MAX, "%s", o->dtype);
    snprintf(values[6], TL_NOTE_MAX, "%.17g", o->lr);
}

static void save(run *r)
{
    char mine[NOTES][TL_NOTE_MAX];
    tl_note notes[NOTES];
    describe(&r->o, mine);
    for (int i = 0; i < NOTES; i++)
        notes[i] = (tl_note){keys[i], mine[i]};
    check(r, tl_checkpoint_save(r->model, r->optimizer, r->o.save, notes, NOTES));
}

static void resume(run *r)
{
    char mine[NOTES][TL_NOTE_MAX], its[NOTES][TL_NOTE_MAX], differs[512] = "";
    describe(&r->o, mine);
    check(r, tl_checkpoint_notes(r->model, r->o.resume, keys, its, NOTES));
    for (int i = 0; i < NOTES; i++)
        if (strcmp(its[i], mine[i]) != 0)
            snprintf(differs + strlen(differs), sizeof differs - strlen(differs),
                     "%s --%s %.30s, here %.30s", *differs ? ";" : "", keys[i],
                     *its[i] ? its[i] : "(none)", mine[i]);
    if (*differs)
        die(WRONG_USE, "%s is of another run:%s", r->o.resume, differs);
    memset(r->ids, 0, sizeof *r->ids);
    logits_of(r, r->tape, ids_of(r, 1)); /* makes the parameters */
    check(r, tl_checkpoint_load(r->model, r->optimizer, r->o.resume, NULL, NULL, 0));
    tl_tape_reset(r->tape);
}

/* ---- training ---- */

/* A micro-batch, forward and backward. */
static void micro_batch(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                        void *ctx)
{
    run *r = ctx;
    (void)n_in, (void)n_out;
    out[0] = tl_cross_entropy(t, logits_of(r, t, in[0]), in[1], TL_MEAN, .ignore = true,
                              .ignore_index = IGNORED,
                              .count = tl_scalar(t, TL_F64, (double)(r->o.batch * DIGITS)),
                              .total = r->total);
    tl_backward(t, out[0]);
}

static void last_micro_batch(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                             void *ctx)
{
    micro_batch(t, in, n_in, out, n_out, ctx);
    tl_step(((run *)ctx)->optimizer, t);
}

/* One step: micro-batches continue one sum of gradients and one sum of losses, so the split changes
 * no bit. */
static double train_step(run *r, int64_t step)
{
    tl_tape *t = r->tape;
    double count = (double)(r->o.batch * DIGITS);
    int64_t a, b, rows = r->o.micro_batch;
    check(r, tl_write(r->model, r->total, (double[]){0}, sizeof(double)));
    for (int64_t first = 0; first < r->o.batch; first += rows) {
        for (int64_t i = 0; i < rows; i++) {
            pair(&r->s, false, (uint64_t)step + 1, (uint64_t)(first + i), &a, &b);
            write_sum(a, b, r->ids[i], r->targets[i]);
        }
        bool last = first + rows == r->o.batch;
        tl_tensor in[2] = {ids_of(r, rows), tl_data(t, r->targets, TL_I64, TL_DIMS(rows, SEQ))},
                  loss;
        tl_log_name(t, in[0], "sums");
        tl_log_name(t, in[1], "answers");
        if (r->o.compile)
            tl_run(last ? r->last : r->micro, in, 2, &loss);
        else
            (last ? last_micro_batch : micro_batch)(t, in, 2, &loss, 1, r);
        check(r, TL_OK);
        tl_tape_reset(t);
    }
    return tl_item(t, r->total) / count;
}

/* ---- accuracy ---- */

/* How many of n held-out sums have every digit right. The model may read the right digits before
 * the one it is asked for: if it erred there, the sum has been counted as wrong already. */
static int64_t right_sums(run *r, int64_t n)
{
    int64_t a, b, right = 0;
    for (int64_t i = 0; i < n; i++) {
        pair(&r->s, true, 0, (uint64_t)i, &a, &b);
        write_sum(a, b, r->ids[i], r->targets[i]);
    }
    int mode = tl_mode_push(r->tape, TL_NO_GRAD);
    tl_tensor best = tl_argmax(r->tape, logits_of(r, r->tape, ids_of(r, n)), -1, false);
    check(r, tl_keep(r->tape, best, r->best, (size_t)n * sizeof *r->best));
    tl_mode_pop(r->tape, mode);
    tl_tape_reset(r->tape);
    for (int64_t i = 0; i < n; i++)
        right += memcmp(r->best[i] + ASKED, r->targets[i] + ASKED, DIGITS * sizeof **r->best) == 0;
    return right;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void train(run *r)
{
    int64_t every = r->o.steps / 20 > 0 ? r->o.steps / 20 : 1,
            part = r->o.test < 500 ? r->o.test : 500;
    bool terminal = isatty(STDOUT_FILENO);
    int64_t first = tl_opt_steps(r->optimizer);
    double began = now(), spoke = began;
    for (int64_t step = first + 1; step <= r->o.stop_at; step++) {
        double loss = train_step(r, step - 1);
        if (step % every != 0 && step != r->o.stop_at && now() - spoke < 2)
            continue;
        double accuracy = 100 * (double)right_sums(r, part) / (double)part, passed = now() - began;
        double left = passed / (double)(step - first) * (double)(r->o.stop_at - step);
        printf("%sstep %" PRId64 "/%" PRId64
               "  loss %.4f  accuracy %.1f%%  %.0f sums/s  %d:%02d left%s",
               terminal ? "\r" : "", step, r->o.steps, loss, accuracy,
               (double)((step - first) * r->o.batch) / passed, (int)left / 60, (int)left % 60,
               terminal ? "\033[K" : "\n");
        fflush(stdout);
        spoke = now();
        if (r->csv != NULL && (step % every == 0 || step == r->o.stop_at))
            fprintf(r->csv, "%" PRId64 ",%.6f,%.2f\n", step, loss, accuracy);
    }
    if (terminal)
        putchar('\n');
}

/* ---- main ---- */

int main(int argc, char **argv)
{
    run r = {.o = options_read(argc, argv)};
    char hash[65];
    run_begin(&r);
    if (r.o.save != NULL) /* better to hear now than after training */
        check(&r, tl_checkpoint_writable(r.model, r.o.save));
    if (r.o.resume != NULL)
        resume(&r);
    csv_open(&r);
    if (r.o.log != NULL) /* a resumed run adds its steps */
        check(&r,
              tl_log_open(r.tape, r.o.log, .every = r.o.log_every, .keep = r.o.log_keep,
                          .first = tl_opt_steps(r.optimizer) + 1, .append = r.o.resume != NULL));
    train(&r);
    int64_t right = right_sums(&r, r.o.test);
    check(&r, tl_model_sha256(r.model, hash));
    if (r.o.save != NULL)
        save(&r);
    csv_close(&r);
    printf("accuracy %.2f%% (%" PRId64 " of %" PRId64 " sums never seen)\n",
           100 * (double)right / (double)r.o.test, right, r.o.test);
    printf("weights sha256 %s\n", hash);
    fflush(stdout);
    check(&r,
          tl_log_close(r.tape)); /* a log that could not be written is a failure, but only now */
    run_end(&r);
    return fflush(stdout) != 0 || ferror(stdout) ? FAILED : DONE;
}
