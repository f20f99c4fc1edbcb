/* train_text: a small Llama learns to write the text it reads, byte by byte.
 *
 * By default the text is this project: its sources and documents. The last tenth is
 * held out and never trained on. Every random draw is a function of the seed and of
 * where it belongs - step, sample, position - so that neither threads nor micro-batches
 * nor a stop in between change a bit of the trained weights.
 *
 * In order: options, text, model, measuring, progress, checkpoints, training,
 * sampling, main. Start reading at main.
 */
#include <ctype.h>
#include <errno.h>
#include <glob.h>
#include <inttypes.h>
#include <libgen.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <tally.h>
#include <time.h>
#include <unistd.h>

#include "tensor/files/hash.h"

enum { DONE = 0, FAILED = 1, WRONG_USE = 2, INTERRUPTED = 130 }; /* exit statuses */

static _Noreturn void die(int status, const char *fmt, ...) TL_PRINTF(2, 3);
static _Noreturn void die(int status, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fflush(stdout);
    fputs("train_text: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    exit(status);
}

static void *need(void *p)
{
    if (p == NULL)
        die(FAILED, "out of memory");
    return p;
}

/* ---- options ---- */

static struct {
    const char *text, *save, *resume, *csv, *log;
    int64_t steps, stop_at, batch, micro_batch, seq, width, layers, heads, kv_heads, warmup, seed,
        threads, save_every, sample, log_every, log_keep;
    double lr, clip, temperature;
    bool tied, bf16, compile;
} opt;

/* kind, flag, field, default, least, most, 1: shapes the run, so a checkpoint must agree; meaning
 */
#define OPTIONS(X)                                                                                 \
    X(PATH, "--text", text, 0, 0, 0, 0,                                                            \
      "learn this file; default: the sources and documents found here")                            \
    X(WHOLE, "--steps", steps, 2000, 0, 1e9, 1,                                                    \
      "optimizer steps; over them the learning rate falls")                                        \
    X(WHOLE, "--batch", batch, 12, 1, 1e5, 1, "samples a step")                                    \
    X(WHOLE, "--micro-batch", micro_batch, 0, 0, 1e5, 0,                                           \
      "samples at a time, same result; 0: all of a step's")                                        \
    X(WHOLE, "--seq", seq, 64, 1, 65536, 1, "bytes a sample")                                      \
    X(WHOLE, "--width", width, 128, 2, 65536, 1, "of the model; a multiple of --heads")            \
    X(WHOLE, "--layers", layers, 4, 1, 1000, 1, "decoder blocks")                                  \
    X(WHOLE, "--heads", heads, 4, 1, 4096, 1, "query heads; a multiple of --kv-heads")             \
    X(WHOLE, "--kv-heads", kv_heads, 2, 1, 4096, 1, "key and value heads")                         \
    X(YES, "--tied", tied, 0, 0, 1, 1, "the embedding is the output projection, too")              \
    X(YES, "--bf16", bf16, 0, 0, 1, 1,                                                             \
      "parameters and activations in bfloat16, updated through f32 masters")                       \
    X(REAL, "--lr", lr, 2e-3, 0, 10, 1, "highest learning rate")                                   \
    X(WHOLE, "--warmup", warmup, 100, 0, 1e9, 1, "steps in which the learning rate rises")         \
    X(REAL, "--clip", clip, 1, 0, 1e9, 1, "longest gradient (global norm); 0: any")                \
    X(WHOLE, "--seed", seed, 1, 0, 9e15, 1, "of every random draw")                                \
    X(WHOLE, "--threads", threads, 0, 0, 256, 0,                                                   \
      "same result with any; 0: TL_THREADS, else one a core")                                      \
    X(YES, "--compile", compile, 0, 0, 1, 0,                                                       \
      "trace the training step once and replay it, same result")                                   \
    X(PATH, "--save", save, 0, 0, 0, 0, "write a checkpoint here at the end")                      \
    X(WHOLE, "--save-every", save_every, 0, 0, 1e9, 0,                                             \
      "and each time after so many steps; 0: never")                                               \
    X(WHOLE, "--stop-at", stop_at, 0, 0, 1e9, 0,                                                   \
      "end after this step of --steps; 0: after the last")                                         \
    X(PATH, "--resume", resume, 0, 0, 0, 0,                                                        \
      "continue from this checkpoint, to the same final weights")                                  \
    X(WHOLE, "--sample", sample, 400, 0, 1e6, 0, "bytes to write with the trained model")          \
    X(REAL, "--temperature", temperature, 0.8, 0, 100, 0, "of them; 0: always the likeliest byte") \
    X(PATH, "--csv", csv, 0, 0, 0, 0, "write step,loss,val,lr,grad_norm,tokens_per_s here")        \
    X(PATH, "--log", log, 0, 0, 0, 0,                                                              \
      "write what each op computed, to compare two runs with build/tally-diff")                    \
    X(WHOLE, "--log-every", log_every, 1, 1, 1e9, 0,                                               \
      "of every so many steps; of the others only the loss")                                       \
    X(WHOLE, "--log-keep", log_keep, 0, 0, 1e9, 0,                                                 \
      "and all values of this step, beside the log; 0: none")

typedef struct {
    enum { PATH, WHOLE, REAL, YES } kind;
    const char *flag, *meaning;
    void *field;
    double preset, least, most;
    bool shapes;
} option;
#define ROW(kind, flag, field, preset, least, most, shapes, meaning) \
    {kind, flag, meaning, &opt.field, preset, least, most, shapes},
static const option option_list[] = {OPTIONS(ROW)};
enum { N_OPTIONS = sizeof option_list / sizeof *option_list };

static void option_set(const option *o, double x)
{
    if (o->kind == WHOLE)
        *(int64_t *)o->field = (int64_t)x;
    else if (o->kind == REAL)
        *(double *)o->field = x;
    else if (o->kind == YES)
        *(bool *)o->field = x != 0;
}

/* The value of an option other than a path; 17 digits tell any two doubles apart. */
static const char *option_text(const option *o, char buf[32])
{
    double x = o->kind == WHOLE  ? (double)*(int64_t *)o->field
               : o->kind == REAL ? *(double *)o->field
                                 : *(bool *)o->field;
    snprintf(buf, 32, "%.17g", x);
    return buf;
}

static _Noreturn void help(void)
{
    puts("usage: train_text [--flag value]...\n\n"
         "Trains a small Llama on text, then prints what it writes, its loss on the held-out\n"
         "last tenth, and the SHA-256 of its weights. Flags and their defaults:\n");
    for (const option *o = option_list; o < option_list + N_OPTIONS; o++) {
        char preset[16] = "";
        if (o->kind != YES)
            snprintf(preset, sizeof preset, "%g", o->preset);
        printf("  %-14s %-6s %s\n", o->flag, o->kind == PATH ? "FILE" : preset, o->meaning);
    }
    puts(
        "\nexit status: 0 done, 1 failed, 2 wrong use, 130 interrupted (saved first, with --save)");
    exit(DONE);
}

static double number(const option *o, const char *s)
{
    char *end;
    double x = strtod(s, &end);
    if (*s == '\0' || *end != '\0' || isnan(x) || (o->kind == WHOLE && x != floor(x)))
        die(WRONG_USE, "%s %s: a%s number is needed", o->flag, s, o->kind == WHOLE ? " whole" : "");
    if (x < o->least || x > o->most)
        die(WRONG_USE, "%s %s is out of range: %.16g to %.16g", o->flag, s, o->least, o->most);
    return x;
}

static void multiple(const char *flag, int64_t x, const char *of, int64_t y)
{
    if (x % y != 0)
        die(WRONG_USE, "%s %" PRId64 " is not a multiple of %s %" PRId64, flag, x, of, y);
}

static void options_read(int argc, char **argv)
{
    for (int k = 0; k < N_OPTIONS; k++)
        option_set(&option_list[k], option_list[k].preset);
    for (int i = 1; i < argc; i++) {
        int k = 0;
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            help();
        while (k < N_OPTIONS && strcmp(argv[i], option_list[k].flag) != 0)
            k++;
        if (k == N_OPTIONS)
            die(WRONG_USE, "unknown flag '%s'; --help lists all", argv[i]);
        const option *o = &option_list[k];
        if (o->kind != YES && i + 1 == argc)
            die(WRONG_USE, "%s needs a value", o->flag);
        if (o->kind == PATH)
            *(const char **)o->field = argv[++i];
        else
            option_set(o, o->kind == YES ? 1 : number(o, argv[++i]));
    }
    if (opt.micro_batch == 0)
        opt.micro_batch = opt.batch;
    multiple("--batch", opt.batch, "--micro-batch", opt.micro_batch);
    multiple("--heads", opt.heads, "--kv-heads", opt.kv_heads);
    multiple("--width", opt.width, "--heads", opt.heads);
    if (opt.width / opt.heads % 2 != 0)
        die(WRONG_USE,
            "--width %" PRId64 " with --heads %" PRId64 " makes heads of odd size %" PRId64
            "; rotary positions turn pairs",
            opt.width, opt.heads, opt.width / opt.heads);
    if (opt.stop_at > opt.steps)
        die(WRONG_USE, "--stop-at %" PRId64 " is beyond --steps %" PRId64, opt.stop_at, opt.steps);
    if (opt.log_keep > 0 && opt.log == NULL)
        die(WRONG_USE, "--log-keep %" PRId64 " needs --log", opt.log_keep);
    if (opt.save_every > 0 && opt.save == NULL)
        die(WRONG_USE, "--save-every %" PRId64 " needs --save", opt.save_every);
}

/* ---- text: bytes, numbered by the sorted vocabulary of those that occur ---- */

static struct {
    const char *name;
    unsigned char *byte;
    int64_t n, train; /* the first `train` bytes are trained on, the others held out */
    int vocab, id_of[256];
    unsigned char byte_of[256];
    char sha256[TL_SHA256_HEX];
} text;

static void text_append(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL)
        die(FAILED, "cannot read %s: %s", path, strerror(errno));
    for (size_t got = 1, room = 1 << 16; got > 0; text.n += (int64_t)got) {
        text.byte = need(realloc(text.byte, (size_t)text.n + room));
        got = fread(text.byte + text.n, 1, room, f);
    }
    if (ferror(f))
        die(FAILED, "cannot read %s: %s", path, strerror(errno));
    fclose(f);
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The project's own files: the list sorted by bytes, so that no locale changes it. */
static void text_append_project(void)
{
    glob_t g;
    if (glob("{,{tensor,autograd,ops,nn,examples,tests}/{,*/,*/*/}}{*.c,*.h,*.md,Makefile}",
             GLOB_BRACE, NULL, &g) != 0)
        die(FAILED, "no sources or documents here; go to the project's folder, or name a text: "
                    "--text FILE");
    qsort(g.gl_pathv, g.gl_pathc, sizeof *g.gl_pathv, by_bytes);
    for (size_t i = 0; i < g.gl_pathc; i++)
        text_append(g.gl_pathv[i]);
    globfree(&g);
}

static void text_read(void)
{
    tl_sha256_ctx hash;
    tl_err err = {.status = TL_OK};
    text.name = opt.text != NULL ? opt.text : "the project's sources and documents";
    if (opt.text != NULL)
        text_append(opt.text);
    else
        text_append_project();
    text.train = text.n - text.n / 10;
    if (text.train <= opt.seq || text.n / 10 < 2)
        die(WRONG_USE,
            "%s is too short: %" PRId64 " bytes, of which a tenth is held out; with --seq %" PRId64
            " at least %" PRId64 " are needed",
            text.name, text.n, opt.seq, opt.seq < 18 ? 20 : opt.seq + 1 + opt.seq / 9);
    for (int64_t i = 0; i < text.n; i++)
        text.id_of[text.byte[i]] = 1;
    for (int b = 0; b < 256; b++)
        if (text.id_of[b] != 0) {
            text.byte_of[text.vocab] = (unsigned char)b;
            text.id_of[b] = text.vocab++;
        }
    tl_sha256_begin(&hash, &err);
    tl_sha256_feed(&hash, text.byte, (size_t)text.n);
    if (tl_sha256_finish_hex(&hash, text.sha256, &err) != TL_OK)
        die(FAILED, "%s", err.message);
}

/* A window of --seq bytes from `at` on as ids, and each one's successor as target; places beyond
 * the text's end (only the last window of all has them) count for nothing. */
enum { IGNORED = -1 };
static void window(int64_t at, int64_t *ids, int64_t *targets)
{
    for (int64_t i = 0; i < opt.seq; i++, at++) {
        ids[i] = at < text.n ? text.id_of[text.byte[at]] : 0;
        targets[i] = at + 1 < text.n ? text.id_of[text.byte[at + 1]] : IGNORED;
    }
}

/* ---- model ---- */

typedef struct {
    tl_model *model;
    tl_tape *tape;
    tl_opt *optimizer;
    tl_compiled *micro, *last; /* with --compile: a micro-batch, and the last one of a step */
    tl_tensor total;           /* of the model: a sum of losses, in f64 */
    tl_llama_config config;
    int64_t rows;           /* windows at a time when measuring */
    int64_t *ids, *targets; /* of a micro-batch */
    double before;          /* validation loss of the untrained model */
} run;

static void check(const run *r, tl_status s)
{
    if (s != TL_OK || tl_failed(r->tape))
        die(FAILED, "%s", tl_error(r->tape)); /* or its model's error */
}

static void run_begin(run *r)
{
    tl_threads_set((int)opt.threads);
    r->config = (tl_llama_config){.dtype = opt.bf16 ? TL_BF16 : TL_F32,
                                  .vocab = text.vocab,
                                  .width = opt.width,
                                  .layers = opt.layers,
                                  .heads = opt.heads,
                                  .kv_heads = opt.kv_heads,
                                  .hidden = (opt.width * 8 / 3 + 31) / 32 * 32,
                                  .max_positions = opt.seq,
                                  .tied = opt.tied};
    r->rows = 1 + 4096 / opt.seq;
    size_t places = (size_t)((opt.micro_batch > r->rows ? opt.micro_batch : r->rows) * opt.seq);
    r->ids = need(malloc(places * sizeof *r->ids));
    r->targets = need(malloc(places * sizeof *r->targets));
    r->model = need(tl_model_new(.seed = (uint64_t)opt.seed));
    r->tape = need(tl_tape_new(r->model));
    r->total = tl_data(r->model, (double[]){0}, TL_F64, TL_SCALAR);
    r->optimizer = need(tl_adamw_new(r->model, .lr = opt.lr, .beta1 = 0.9, .beta2 = 0.99,
                                     .weight_decay = 0.1, .clip = opt.clip,
                                     .schedule = {TL_COSINE, .warmup = opt.warmup,
                                                  .total = opt.steps, .min_ratio = 0.05}));
    check(r, tl_opt_group(r->optimizer, "*norm*", 1, 0)); /* norms' weights do not decay */
    if (!opt.tied) /* a byte's row is met only where the byte is: */
        check(r, tl_opt_group(r->optimizer, "embed*", 10, 0)); /* it may take longer steps */
}

static void run_end(run *r)
{
    tl_free(r->micro, r->last, r->optimizer, r->tape, r->model);
    free(r->ids);
    free(r->targets);
    free(text.byte);
}

/* The windows now in r->ids and r->targets: what programs take. */
static void windows_of(run *r, int64_t rows, tl_tensor in[2])
{
    in[0] = tl_data(r->tape, r->ids, TL_I64, TL_DIMS(rows, opt.seq));
    in[1] = tl_data(r->tape, r->targets, TL_I64, TL_DIMS(rows, opt.seq));
    tl_log_name(r->tape, in[0], "text read");
    tl_log_name(r->tape, in[1], "bytes that follow");
}

/* Adds the losses of the windows in[0] with targets in[1] to the total and returns total / count.
 */
static tl_tensor loss_of(run *r, tl_tape *t, const tl_tensor in[2], double count)
{
    return tl_cross_entropy(t, tl_llama(t, r->model, &r->config, in[0]), in[1], TL_MEAN,
                            .ignore = true, .ignore_index = IGNORED,
                            .count = tl_scalar(t, TL_F64, count), .total = r->total);
}

static void total_clear(run *r)
{
    check(r, tl_write(r->model, r->total, (double[]){0}, sizeof(double)));
}

/* ---- measuring ---- */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Long work speaks every two seconds at least; when it last did. */
static double spoke;

static bool silent(void) { return now() - spoke > 2; }

/* Mean loss over the held-out windows 0, every, 2*every, ... With every = 1 each held-out
 * byte but the first is a target exactly once. */
static double validate(run *r, int64_t every)
{
    int64_t targets = text.n - text.train - 1, windows = (targets + opt.seq - 1) / opt.seq,
            count = 0;
    int mode = tl_mode_push(r->tape, TL_NO_GRAD);
    total_clear(r);
    for (int64_t w = 0; w < windows;) {
        int64_t rows = 0;
        for (; rows < r->rows && w < windows; rows++, w += every)
            window(text.train + w * opt.seq, r->ids + rows * opt.seq, r->targets + rows * opt.seq);
        for (int64_t i = 0; i < rows * opt.seq; i++)
            count += r->targets[i] != IGNORED;
        tl_tensor in[2];
        windows_of(r, rows, in);
        loss_of(r, r->tape, in, 1);
        check(r, TL_OK);
        tl_tape_reset(r->tape);
        if (silent()) {
            printf("validation: %" PRId64 " of %" PRId64 " windows\n", w < windows ? w : windows,
                   windows);
            spoke = now();
        }
    }
    tl_mode_pop(r->tape, mode);
    return tl_item(r->tape, r->total) / (double)count;
}

/* On some 8000 bytes spread over the held-out part: cheap enough to do on the way. */
static double validate_part(run *r) { return validate(r, 1 + (text.n - text.train) / 8000); }

/* Cross entropy of the held-out part under the frequencies of single bytes in the training
 * part, each count plus one, so that no byte of the vocabulary is impossible. */
static double unigram(void)
{
    double count[256] = {0}, sum = 0;
    for (int64_t i = 0; i < text.train; i++)
        count[text.byte[i]]++;
    for (int64_t i = text.train; i < text.n; i++)
        sum -= log((count[text.byte[i]] + 1) / (double)(text.train + text.vocab));
    return sum / (double)(text.n - text.train);
}

/* ---- progress: a line rewritten on a terminal until validation is measured, plain lines
 * elsewhere, rows of a table ---- */

typedef struct {
    bool terminal;
    FILE *csv;
    int64_t first, last, every; /* steps of this run; a line every so many */
    double seconds;             /* spent on training steps so far */
    double sum;                 /* of the losses since the last line */
    int64_t n;
} progress;

static progress progress_begin(int64_t first, int64_t last)
{
    progress p = {.terminal = isatty(STDOUT_FILENO),
                  .first = first,
                  .last = last,
                  .every = opt.steps > 20 ? opt.steps / 20 : 1};
    if (p.terminal && p.every > 10)
        p.every = 10;
    if (opt.csv == NULL)
        return p;
    p.csv = fopen(opt.csv, opt.resume != NULL ? "a" : "w"); /* a resumed run adds its rows */
    if (p.csv == NULL)
        die(FAILED, "cannot write %s: %s", opt.csv, strerror(errno));
    if (ftell(p.csv) == 0)
        fputs("step,loss,val,lr,grad_norm,tokens_per_s\n", p.csv);
    return p;
}

static double speed(const progress *p, int64_t step)
{
    return p->seconds > 0 ? (double)((step - p->first) * opt.batch * opt.seq) / p->seconds : 0;
}

/* After the step of that number, counted from 1; val is NaN where it was not measured. */
static void progress_step(progress *p, const run *r, int64_t step, double loss, double val,
                          double lr)
{
    double rate = speed(p, step),
           left = p->seconds / (double)(step - p->first) * (double)(p->last - step);
    if (p->csv != NULL) {
        char measured[32] = "";
        if (!isnan(val))
            snprintf(measured, sizeof measured, "%.6f", val);
        fprintf(p->csv, "%" PRId64 ",%.6f,%s,%.6g,%.6g,%.0f\n", step, loss, measured, lr,
                tl_opt_grad_norm(r->optimizer), rate);
    }
    p->sum += loss;
    p->n++;
    if (step % p->every != 0 && step != p->last && isnan(val) && !silent())
        return;
    char measured[40] = "";
    if (!isnan(val))
        snprintf(measured, sizeof measured, "  validation %.4f", val);
    printf("%sstep %" PRId64 "/%" PRId64 "  loss %.4f%s  %.0f tok/s  %d:%02d left%s",
           p->terminal ? "\r" : "", step, opt.steps, p->sum / (double)p->n, measured, rate,
           (int)left / 60, (int)left % 60,
           !p->terminal ? "\n"
           : isnan(val) ? "\033[K"
                        : "\033[K\n"); /* a measured one stays */
    fflush(stdout);
    spoke = now();
    p->sum = 0;
    p->n = 0;
}

static void progress_end(progress *p)
{
    if (p->terminal)
        putchar('\n');
    bool bad = p->csv != NULL && ferror(p->csv);
    if (p->csv != NULL && (fclose(p->csv) != 0 || bad))
        die(FAILED, "cannot write %s: %s", opt.csv, strerror(errno));
}

/* ---- checkpoints: weights, optimizer, and as notes what the run was ---- */

enum { TEXT = N_OPTIONS, BEFORE, N_NOTES };

static void checkpoint_save(run *r)
{
    tl_note note[N_NOTES];
    char value[N_OPTIONS][32], before[32];
    int n = 0;
    for (int k = 0; k < N_OPTIONS; k++)
        if (option_list[k].shapes)
            note[n++] = (tl_note){option_list[k].flag, option_text(&option_list[k], value[k])};
    snprintf(before, sizeof before, "%.17g", r->before);
    note[n++] = (tl_note){"text", text.sha256};
    note[n++] = (tl_note){"before", before};
    check(r, tl_checkpoint_save(r->model, r->optimizer, opt.save, note, n));
}

static void checkpoint_load(run *r)
{
    static char value[N_NOTES][TL_NOTE_MAX];
    const char *key[N_NOTES] = {[TEXT] = "text", [BEFORE] = "before"};
    char mine[32];
    for (int k = 0; k < N_OPTIONS; k++)
        key[k] = option_list[k].flag;
    check(r, tl_checkpoint_notes(r->model, opt.resume, key, value,
                                 N_NOTES)); /* first: is it a checkpoint of this run? */
    if (value[TEXT][0] == '\0')
        die(WRONG_USE, "%s is no checkpoint of train_text", opt.resume);
    for (int k = 0; k < N_OPTIONS; k++)
        if (option_list[k].shapes && strcmp(value[k], option_text(&option_list[k], mine)) != 0)
            die(WRONG_USE, "%s was made with %s %s, but this run has %s", opt.resume, key[k],
                value[k], mine);
    if (strcmp(value[TEXT], text.sha256) != 0)
        die(WRONG_USE, "%s was made with another text than %s", opt.resume, text.name);
    check(r, tl_checkpoint_load(r->model, r->optimizer, opt.resume, key, value, N_NOTES));
    r->before = strtod(value[BEFORE], NULL);
}

/* Better to hear before training than after it that nothing can be written there. */
static void check_folder(const char *path)
{
    char *copy = need(strdup(path != NULL ? path : "."));
    if (path != NULL && access(dirname(copy), W_OK) != 0)
        die(FAILED, "cannot write %s: %s", path, strerror(errno));
    free(copy);
}

/* ---- training ---- */

static volatile sig_atomic_t interrupted;
static void on_interrupt(int signal_number) { interrupted = signal_number; }

/* A micro-batch, forward and backward. */
static void micro_batch(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                        void *ctx)
{
    (void)n_in, (void)n_out;
    out[0] = loss_of(ctx, t, in, (double)(opt.batch * opt.seq));
    tl_backward(t, out[0]);
}

static void last_micro_batch(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                             void *ctx)
{
    micro_batch(t, in, n_in, out, n_out, ctx);
    tl_step(((run *)ctx)->optimizer, t);
}

/* One step on one batch, micro-batch by micro-batch; returns its mean loss. Gradients and the
 * total of losses continue from one micro-batch to the next: the split changes no bit. */
static double train_step(run *r, tl_rng_key windows, int64_t step)
{
    double count = (double)(opt.batch * opt.seq);
    total_clear(r);
    for (int64_t first = 0; first < opt.batch; first += opt.micro_batch) {
        for (int64_t i = 0; i < opt.micro_batch; i++) {
            uint64_t at = tl_rng_below(windows, (uint64_t)step, (uint64_t)(first + i),
                                       (uint64_t)(text.train - opt.seq));
            window((int64_t)at, r->ids + i * opt.seq, r->targets + i * opt.seq);
        }
        bool last = first + opt.micro_batch == opt.batch;
        tl_tensor in[2], loss;
        windows_of(r, opt.micro_batch, in);
        if (opt.compile)
            tl_run(last ? r->last : r->micro, in, 2, &loss);
        else
            (last ? last_micro_batch : micro_batch)(r->tape, in, 2, &loss, 1, r);
        check(r, TL_OK);
        tl_tape_reset(r->tape);
    }
    return tl_item(r->tape, r->total) / count;
}

/* Trains to the end of the schedule or to --stop-at; returns the speed in tokens a second. */
static double train(run *r)
{
    tl_rng_key windows = tl_rng_stream((uint64_t)opt.seed, "train_text.windows");
    int64_t step = tl_opt_steps(r->optimizer), last = opt.stop_at > 0 ? opt.stop_at : opt.steps;
    int64_t measure = opt.steps > 10 ? opt.steps / 10 : 1;
    if (opt.log != NULL) /* a resumed run adds its steps */
        check(r, tl_log_open(r->tape, opt.log, .every = opt.log_every, .keep = opt.log_keep,
                             .first = step + 1, .append = opt.resume != NULL));
    progress p = progress_begin(step, last);
    signal(SIGINT, on_interrupt);
    r->micro = need(tl_compile(r->tape, micro_batch, 1, r));
    r->last = need(tl_compile(r->tape, last_micro_batch, 1, r));
    while (step < last && !interrupted) {
        double lr = tl_opt_lr(r->optimizer), began = now(), val = (double)NAN;
        double loss = train_step(r, windows, step++);
        p.seconds += now() - began;
        if (step % measure == 0 && step < last)
            val = validate_part(r);
        progress_step(&p, r, step, loss, val, lr);
        if (opt.save_every > 0 && step % opt.save_every == 0 && step < last)
            checkpoint_save(r);
    }
    signal(SIGINT, SIG_DFL);
    progress_end(&p);
    if (opt.save != NULL)
        checkpoint_save(r);
    if (interrupted)
        die(INTERRUPTED, "interrupted after step %" PRId64 "%s%s", step,
            opt.save ? "; saved to " : "", opt.save ? opt.save : "");
    return speed(&p, step);
}

/* ---- sampling ---- */

/* The id at which the running sum of the probabilities p passes u, a number in [0, 1). */
static int64_t draw(const float *p, double u)
{
    double sum = 0;
    for (int i = 0; i < text.vocab; i++)
        if ((sum += (double)p[i]) > u)
            return i;
    return text.vocab - 1; /* p is rounded: its sum may stay below u */
}

/* Writes n bytes, each drawn given the --seq bytes before it, beginning at the start of a line. */
static void sample(run *r, int64_t n)
{
    tl_tape *t = r->tape;
    tl_rng_key draws = tl_rng_stream((uint64_t)opt.seed, "train_text.sample");
    int64_t *context = r->ids, len = 1, next;
    int mode = tl_mode_push(t, TL_NO_GRAD);
    context[0] = text.id_of['\n'];
    for (int64_t i = 0; i < n; i++) {
        float p[256];
        tl_tensor logits = tl_llama(t, r->model, &r->config,
                                    tl_data(t, context, TL_I64, TL_DIMS(1, len)));
        logits = tl_cast(
            t, tl_reshape(t, tl_slice(t, logits, 1, len - 1, len, 1), TL_DIMS(text.vocab)), TL_F32);
        if (opt.temperature > 0) {
            tl_keep(t, tl_softmax(t, tl_scale(t, logits, 1 / opt.temperature), 0), p,
                    (size_t)text.vocab * sizeof *p);
            next = draw(p, tl_rng_uniform64(draws, 0, (uint64_t)i));
        } else {
            next = (int64_t)tl_item(t, tl_argmax(t, logits, 0, false));
        }
        check(r, TL_OK);
        tl_tape_reset(t);
        if (len == opt.seq)
            memmove(context, context + 1, (size_t)--len * sizeof *context);
        context[len++] = next;
        putchar(iscntrl(text.byte_of[next]) && !isspace(text.byte_of[next]) ? '?'
                                                                            : text.byte_of[next]);
    }
    tl_mode_pop(t, mode);
}

/* ---- main ---- */

static void introduce(const run *r)
{
    printf("text      %s: %" PRId64 " bytes, %d different, the last %" PRId64 " held out\n",
           text.name, text.n, text.vocab, text.n - text.train);
    printf("model     %" PRId64 " layers, width %" PRId64 ", %" PRId64 " heads on %" PRId64
           " key heads, %" PRId64 " parameters\n",
           opt.layers, opt.width, opt.heads, opt.kv_heads, tl_model_parameters(r->model));
    printf("training  steps %" PRId64 " to %" PRId64 " of %" PRId64 " x %" PRId64
           " bytes on %d threads\n\n",
           tl_opt_steps(r->optimizer), opt.stop_at > 0 ? opt.stop_at : opt.steps, opt.batch,
           opt.seq, tl_threads());
    fflush(stdout);
}

int main(int argc, char **argv)
{
    run r = {.before = 0};
    char hash[TL_SHA256_HEX];
    options_read(argc, argv);
    setvbuf(stdout, NULL, _IOLBF, 0);
    text_read();
    check_folder(opt.csv);
    check_folder(opt.log);
    run_begin(&r);
    if (opt.save != NULL)
        check(&r, tl_checkpoint_writable(r.model, opt.save));
    spoke = now();
    validate(&r, text.n); /* the first call makes the parameters */
    if (opt.resume != NULL)
        checkpoint_load(&r);
    introduce(&r);
    if (opt.resume == NULL)
        r.before = validate(&r, 1);

    double tokens_per_s = train(&r);
    if (opt.sample > 0) {
        putchar('\n');
        sample(&r, opt.sample);
        puts("\n");
    }
    double after = validate(&r, 1);
    check(&r, tl_model_sha256(r.model, hash));
    printf("speed %.0f tok/s\n", tokens_per_s);
    printf("validation loss %.4f (%.4f before training, unigram %.4f)\n", after, r.before,
           unigram());
    printf("weights sha256 %s\n", hash);
    fflush(stdout);
    check(&r,
          tl_log_close(r.tape)); /* a log that could not be written is a failure, but only now */
    run_end(&r);
    if (fflush(stdout) != 0 || ferror(stdout))
        die(FAILED, "cannot write the output: %s", strerror(errno));
    return DONE;
}
