/* train_text: a small Llama learns to write the text it reads, byte by byte.
 *
 * By default the text is this project: its sources and documents. The last tenth
 * is held out and never trained on. Every random draw is a pure function of the
 * seed and of where it belongs - step, sample, position - so that neither threads
 * nor micro-batches nor a stop in between change a bit of the trained weights.
 *
 * In order: options, text, model, measuring, progress, checkpoints, training,
 * sampling, main. Start reading at main.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tally.h>
#include <time.h>
#include <unistd.h>

#include "tensor/hash.h"

enum { DONE = 0, FAILED = 1, WRONG_USE = 2, INTERRUPTED = 130 }; /* exit statuses */

static void die(int status, const char *fmt, ...) TL_PRINTF(2, 3);
static void die(int status, const char *fmt, ...)
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
    const char *text, *save, *resume, *csv;
    int64_t steps, stop_at, batch, micro_batch, seq, width, layers, heads, kv_heads, warmup, seed, threads, save_every, sample;
    double lr, clip, temperature;
    bool tied;
} opt;

/* kind, flag, field, default, smallest, largest, shapes the run (a checkpoint must agree), meaning */
#define OPTIONS(X)                                                                                                      \
    X(PATH, "--text", text, 0, 0, 0, 0, "learn this file; by default the sources and documents found here")            \
    X(WHOLE, "--steps", steps, 2000, 0, 1e9, 1, "optimizer steps; the learning rate falls along a cosine over them")   \
    X(WHOLE, "--batch", batch, 12, 1, 1e5, 1, "samples a step")                                                        \
    X(WHOLE, "--micro-batch", micro_batch, 0, 0, 1e5, 0, "samples at a time, same result; divides --batch; 0: all")    \
    X(WHOLE, "--seq", seq, 64, 1, 65536, 1, "bytes a sample")                                                          \
    X(WHOLE, "--width", width, 128, 2, 65536, 1, "of the model; a multiple of --heads")                                \
    X(WHOLE, "--layers", layers, 4, 1, 1000, 1, "decoder blocks")                                                      \
    X(WHOLE, "--heads", heads, 4, 1, 4096, 1, "query heads")                                                           \
    X(WHOLE, "--kv-heads", kv_heads, 2, 1, 4096, 1, "key and value heads; divides --heads")                            \
    X(YES, "--tied", tied, 0, 0, 1, 1, "use the embedding as output projection, too")                                  \
    X(REAL, "--lr", lr, 3e-3, 0, 10, 1, "highest learning rate")                                                       \
    X(WHOLE, "--warmup", warmup, 100, 0, 1e9, 1, "steps in which the learning rate rises from 0")                      \
    X(REAL, "--clip", clip, 1, 0, 1e9, 1, "longest gradient (global norm); 0: any")                                    \
    X(WHOLE, "--seed", seed, 1, 0, 9e15, 1, "of every random draw")                                                    \
    X(WHOLE, "--threads", threads, 0, 0, 256, 0, "same result with any number; 0: TL_THREADS, else one a core")        \
    X(PATH, "--save", save, 0, 0, 0, 0, "write a checkpoint here at the end")                                          \
    X(WHOLE, "--save-every", save_every, 0, 0, 1e9, 0, "and after so many steps each; 0: at the end only")             \
    X(WHOLE, "--stop-at", stop_at, 0, 0, 1e9, 0, "end after this step of the schedule; 0: after the last")             \
    X(PATH, "--resume", resume, 0, 0, 0, 0, "continue from this checkpoint, to the same final weights")                \
    X(WHOLE, "--sample", sample, 400, 0, 1e6, 0, "bytes to write with the trained model")                              \
    X(REAL, "--temperature", temperature, 0.8, 0, 100, 0, "of that text: 0 always takes the likeliest byte")           \
    X(PATH, "--csv", csv, 0, 0, 0, 0, "write step,loss,val,lr,grad_norm,tokens_per_s here")

typedef enum { PATH, WHOLE, REAL, YES } option_kind;
typedef struct {
    option_kind kind;
    const char *flag, *meaning;
    void *field;
    double preset, low, high;
    bool agree;
} option;
#define ROW(kind, flag, field, preset, low, high, agree, meaning) {kind, flag, meaning, &opt.field, preset, low, high, agree},
static const option option_list[] = {OPTIONS(ROW)};
enum { N_OPTIONS = sizeof option_list / sizeof *option_list };

static void option_set(const option *o, double x)
{
    switch (o->kind) {
    case WHOLE: *(int64_t *)o->field = (int64_t)x; break;
    case REAL: *(double *)o->field = x; break;
    case YES: *(bool *)o->field = x != 0; break;
    default: break;
    }
}

/* The option's value as text; %.17g tells any two doubles apart. */
static const char *option_text(const option *o, char buf[32])
{
    switch (o->kind) {
    case WHOLE: snprintf(buf, 32, "%" PRId64, *(int64_t *)o->field); break;
    case REAL: snprintf(buf, 32, "%.17g", *(double *)o->field); break;
    default: snprintf(buf, 32, "%s", *(bool *)o->field ? "yes" : "no"); break;
    }
    return buf;
}

static void help(void)
{
    printf("usage: train_text [--flag value]...\n\n"
           "Trains a small Llama on text and prints what it writes, its loss on the held-out last\n"
           "tenth, and the SHA-256 of its weights.\n\n");
    for (int i = 0; i < N_OPTIONS; i++) {
        const option *o = &option_list[i];
        printf("  %-14s ", o->flag);
        if (o->kind == PATH)
            printf("%-6s", "FILE");
        else if (o->kind == YES)
            printf("%-6s", "");
        else
            printf("%-6g", o->preset);
        printf(" %s\n", o->meaning);
    }
    printf("\nexit status: 0 done, 1 failed, 2 wrong use, 130 interrupted (after saving, with --save)\n");
    exit(DONE);
}

static double number(const option *o, const char *s)
{
    char *end;
    errno = 0;
    double x = strtod(s, &end);
    if (*s == '\0' || *end != '\0' || errno != 0 || (o->kind == WHOLE && x != floor(x)))
        die(WRONG_USE, "%s %s: %s number is needed", o->flag, s, o->kind == WHOLE ? "a whole" : "a");
    if (!(x >= o->low && x <= o->high))
        die(WRONG_USE, "%s %s is out of range: %.15g to %.15g", o->flag, s, o->low, o->high);
    return x;
}

static void options_check(void)
{
    const char *be = "must be a multiple of";
    if (opt.micro_batch == 0)
        opt.micro_batch = opt.batch;
    if (opt.batch % opt.micro_batch != 0)
        die(WRONG_USE, "--batch %" PRId64 " %s --micro-batch %" PRId64, opt.batch, be, opt.micro_batch);
    if (opt.width % opt.heads != 0)
        die(WRONG_USE, "--width %" PRId64 " %s --heads %" PRId64, opt.width, be, opt.heads);
    if (opt.width / opt.heads % 2 != 0)
        die(WRONG_USE, "--width %" PRId64 " / --heads %" PRId64 " gives heads of odd size %" PRId64 "; rotary positions turn pairs",
            opt.width, opt.heads, opt.width / opt.heads);
    if (opt.heads % opt.kv_heads != 0)
        die(WRONG_USE, "--heads %" PRId64 " %s --kv-heads %" PRId64, opt.heads, be, opt.kv_heads);
    if (opt.stop_at > opt.steps)
        die(WRONG_USE, "--stop-at %" PRId64 " is beyond --steps %" PRId64, opt.stop_at, opt.steps);
    if (opt.save_every > 0 && opt.save == NULL)
        die(WRONG_USE, "--save-every %" PRId64 " needs --save", opt.save_every);
}

static void options_read(int argc, char **argv)
{
    for (int i = 0; i < N_OPTIONS; i++)
        option_set(&option_list[i], option_list[i].preset);
    for (int i = 1; i < argc; i++) {
        const option *o = NULL;
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            help();
        for (int k = 0; k < N_OPTIONS; k++)
            if (strcmp(argv[i], option_list[k].flag) == 0)
                o = &option_list[k];
        if (o == NULL)
            die(WRONG_USE, "unknown flag '%s'; --help lists all", argv[i]);
        if (o->kind != YES && i + 1 == argc)
            die(WRONG_USE, "%s needs a value", o->flag);
        if (o->kind == PATH)
            *(const char **)o->field = argv[++i];
        else
            option_set(o, o->kind == YES ? 1 : number(o, argv[++i]));
    }
    options_check();
}

/* ---- text: bytes, numbered by the vocabulary of those that occur ---- */

static struct {
    unsigned char *byte; /* of the text */
    int64_t n, train;    /* the first `train` bytes are trained on, the others held out */
    int vocab;
    unsigned char of_id[256];
    int id_of[256];
    const char *name;
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

typedef struct {
    char **path;
    size_t n;
} file_list;

static bool is_source(const char *name)
{
    const char *dot = strrchr(name, '.');
    return strcmp(name, "Makefile") == 0 || (dot != NULL && (!strcmp(dot, ".c") || !strcmp(dot, ".h") || !strcmp(dot, ".md")));
}

/* Adds the sources in a folder; below it, too, if asked. A missing folder has none. */
static void list_sources(file_list *l, const char *folder, bool below)
{
    DIR *d = opendir(folder);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        struct stat s;
        size_t room = strlen(folder) + strlen(e->d_name) + 2;
        char *path = need(malloc(room));
        snprintf(path, room, "%s/%s", folder, e->d_name);
        if (e->d_name[0] != '.' && lstat(path, &s) == 0 && S_ISDIR(s.st_mode) && below)
            list_sources(l, path, true);
        if (e->d_name[0] != '.' && is_source(e->d_name) && S_ISREG(s.st_mode)) {
            l->path = need(realloc(l->path, (l->n + 1) * sizeof *l->path));
            l->path[l->n++] = path;
        } else {
            free(path);
        }
    }
    if (d != NULL)
        closedir(d);
}

static int by_bytes(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void text_read_project(void)
{
    static const char *const folders[] = {"./tensor", "./autograd", "./ops", "./nn", "./examples", "./tests"};
    file_list l = {NULL, 0};
    list_sources(&l, ".", false);
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        list_sources(&l, folders[i], true);
    if (l.n == 0)
        die(FAILED, "no sources or documents in this folder; go to the project's, or name a text: --text FILE");
    qsort(l.path, l.n, sizeof *l.path, by_bytes);
    for (size_t i = 0; i < l.n; i++) {
        text_append(l.path[i]);
        free(l.path[i]);
    }
    free(l.path);
}

static void text_read(void)
{
    text.name = opt.text != NULL ? opt.text : "the project's sources and documents";
    if (opt.text != NULL)
        text_append(opt.text);
    else
        text_read_project();
    text.train = text.n - text.n / 10;
    if (text.train < opt.seq + 1 || text.n - text.train < 2)
        die(WRONG_USE, "%s has %" PRId64 " bytes; --seq %" PRId64 " needs %" PRId64 " to train on and 2 held out, a tenth of all",
            text.name, text.n, opt.seq, opt.seq + 1);
    for (int64_t i = 0; i < text.n; i++)
        text.id_of[text.byte[i]] = 1;
    for (int b = 0; b < 256; b++)
        if (text.id_of[b] != 0) {
            text.of_id[text.vocab] = (unsigned char)b;
            text.id_of[b] = text.vocab++;
        }
    tl_sha256_ctx h;
    tl_err err = {.status = TL_OK};
    tl_sha256_begin(&h, &err);
    tl_sha256_feed(&h, text.byte, (size_t)text.n);
    if (tl_sha256_finish_hex(&h, text.sha256, &err) != TL_OK)
        die(FAILED, "%s", err.message);
}

/* A window of n bytes from `at` as ids, and each one's successor as target; rows
 * beyond the text's end (only the last window has them) count for nothing. */
enum { IGNORED = -1 };
static void window(int64_t at, int64_t n, int64_t *ids, int64_t *targets)
{
    for (int64_t i = 0; i < n; i++) {
        bool in = at + i + 1 < text.n;
        ids[i] = in ? text.id_of[text.byte[at + i]] : 0;
        targets[i] = in ? text.id_of[text.byte[at + i + 1]] : IGNORED;
    }
}

/* ---- model ---- */

enum { VALIDATION_BATCH = 64 };

typedef struct {
    tl_model *model;
    tl_tape *tape;
    tl_opt *optimizer;
    tl_tensor total;         /* of the model: the sum of losses so far, in f64 */
    tl_llama_config config;
    int64_t *ids, *targets;  /* one (micro-)batch */
    double before;           /* validation loss of the untrained model */
    double last_val;
    FILE *csv;
} run;

static void check(const run *r)
{
    if (tl_failed(r->tape))
        die(FAILED, "%s", tl_error(r->tape));
}

static void check_model(const run *r, tl_status s)
{
    if (s != TL_OK)
        die(FAILED, "%s", tl_error(r->model));
}

/* Adds the losses of `rows` windows to the total and returns total / count. */
static tl_tensor loss_of(run *r, int64_t rows, double count)
{
    tl_tape *t = r->tape;
    tl_tensor ids = tl_data(t, r->ids, TL_I64, TL_DIMS(rows, opt.seq));
    tl_tensor targets = tl_data(t, r->targets, TL_I64, TL_DIMS(rows, opt.seq));
    tl_tensor logits = tl_llama(t, r->model, &r->config, ids);
    return tl_cross_entropy(t, logits, targets, TL_MEAN, .ignore = true, .ignore_index = IGNORED,
                            .count = tl_scalar(t, TL_F64, count), .total = r->total);
}

static void total_reset(run *r)
{
    double zero = 0;
    check_model(r, tl_write(r->model, r->total, &zero, sizeof zero));
}

static void run_begin(run *r)
{
    size_t rows = (size_t)(opt.micro_batch > VALIDATION_BATCH ? opt.micro_batch : VALIDATION_BATCH);
    tl_threads_set((int)opt.threads);
    r->config = (tl_llama_config){.vocab = text.vocab, .width = opt.width, .layers = opt.layers, .heads = opt.heads,
                                  .kv_heads = opt.kv_heads, .hidden = (opt.width * 8 / 3 + 31) / 32 * 32,
                                  .max_positions = opt.seq, .tied = opt.tied};
    r->ids = need(calloc(rows * (size_t)opt.seq, sizeof *r->ids));
    r->targets = need(calloc(rows * (size_t)opt.seq, sizeof *r->targets));
    r->model = tl_model_new(.seed = (uint64_t)opt.seed);
    r->tape = tl_tape_new(r->model);
    r->total = tl_data(r->model, (double[]){0}, TL_F64, TL_SCALAR);
    r->optimizer = tl_adamw_new(r->model, .lr = opt.lr, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1, .clip = opt.clip,
                                .schedule = {TL_COSINE, .warmup = opt.warmup, .total = opt.steps, .min_ratio = 0.05});
    tl_opt_group(r->optimizer, "*norm*", 1, 0); /* no decay on the norms' weights */
    check(r);
}

static void run_end(run *r)
{
    tl_free(r->optimizer, r->tape, r->model);
    free(r->ids);
    free(r->targets);
    free(text.byte);
}

/* ---- measuring ---- */

/* Mean loss over the held-out windows 0, every, 2*every, ...; every = 1 meets each
 * held-out byte but the first exactly once as a target. */
static double validate(run *r, int64_t every)
{
    int64_t held = text.n - text.train, windows = (held - 1 + opt.seq - 1) / opt.seq, count = 0;
    int mode = tl_mode_push(r->tape, TL_NO_GRAD);
    total_reset(r);
    for (int64_t w = 0; w < windows;) {
        int64_t rows = 0;
        for (; rows < VALIDATION_BATCH && w < windows; rows++, w += every)
            window(text.train + w * opt.seq, opt.seq, r->ids + rows * opt.seq, r->targets + rows * opt.seq);
        for (int64_t i = 0; i < rows * opt.seq; i++)
            count += r->targets[i] != IGNORED;
        loss_of(r, rows, 1);
        check(r);
        tl_tape_reset(r->tape);
    }
    tl_mode_pop(r->tape, mode);
    double sum = tl_item(r->tape, r->total);
    check(r);
    return sum / (double)count;
}

/* About 8000 bytes, spread over the held-out part: cheap enough to do on the way. */
static double validate_part(run *r)
{
    int64_t every = (text.n - text.train) / 8000;
    return validate(r, every > 1 ? every : 1);
}

/* Cross entropy of the held-out part under the frequencies of single bytes in the
 * training part, each count plus one so that no byte is impossible. */
static double unigram(void)
{
    double count[256] = {0}, sum = 0;
    for (int64_t i = 0; i < text.train; i++)
        count[text.byte[i]]++;
    for (int64_t i = text.train; i < text.n; i++)
        sum -= log((count[text.byte[i]] + 1) / (double)(text.train + text.vocab));
    return sum / (double)(text.n - text.train);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- progress ---- */

typedef struct {
    bool terminal;
    int64_t first, last, every; /* steps of this run; a plain line every so many */
    double seconds;             /* spent on training steps so far */
    double sum;                 /* of losses since the last plain line */
    int64_t n;
} progress;

static progress progress_begin(int64_t first, int64_t last)
{
    int64_t every = opt.steps / 20 > 0 ? opt.steps / 20 : 1;
    return (progress){.terminal = isatty(STDOUT_FILENO), .first = first, .last = last, .every = every};
}

static double tokens_per_second(const progress *p, int64_t steps_done)
{
    return p->seconds > 0 ? (double)((steps_done - p->first) * opt.batch * opt.seq) / p->seconds : 0;
}

/* After step number `step` (counted from 1). val is NaN when not measured at this step. */
static void progress_show(progress *p, run *r, int64_t step, double loss, double lr, double val)
{
    double rate = tokens_per_second(p, step);
    double left = rate > 0 ? (double)((p->last - step) * opt.batch * opt.seq) / rate : 0;
    p->sum += loss;
    p->n++;
    if (r->csv != NULL) {
        char measured[32] = "";
        if (!isnan(val))
            snprintf(measured, sizeof measured, "%.6f", val);
        fprintf(r->csv, "%" PRId64 ",%.6f,%s,%.6g,%.6g,%.0f\n", step, loss, measured, lr, tl_opt_grad_norm(r->optimizer), rate);
    }
    if (!p->terminal && step % p->every != 0 && step != p->last)
        return;
    if (!p->terminal || step % 10 == 0 || step == p->last) {
        printf("%sstep %" PRId64 "/%" PRId64 "  loss %.4f  validation %.4f  %.0f tok/s  %d:%02d left%s", p->terminal ? "\r" : "",
               step, opt.steps, p->sum / (double)p->n, r->last_val, rate, (int)left / 60, (int)left % 60,
               p->terminal ? "\033[K" : "\n");
        fflush(stdout);
        p->sum = 0;
        p->n = 0;
    }
    if (p->terminal && step == p->last)
        putchar('\n');
}

static void csv_open(run *r)
{
    if (opt.csv == NULL)
        return;
    r->csv = fopen(opt.csv, opt.resume != NULL ? "a" : "w"); /* a resumed run adds its rows */
    if (r->csv == NULL)
        die(FAILED, "cannot write %s: %s", opt.csv, strerror(errno));
    if (ftell(r->csv) == 0)
        fputs("step,loss,val,lr,grad_norm,tokens_per_s\n", r->csv);
}

static void csv_close(run *r)
{
    if (r->csv == NULL)
        return;
    bool bad = ferror(r->csv);
    if (fclose(r->csv) != 0 || bad)
        die(FAILED, "cannot write %s: %s", opt.csv, strerror(errno));
}

/* ---- checkpoints: weights, optimizer state, and what the run was ---- */

enum { N_NOTES = N_OPTIONS + 2 };

/* Notes: every option that shapes the run, the text's hash, the loss before training. */
static void checkpoint_save(run *r)
{
    tl_note note[N_NOTES];
    char value[N_OPTIONS][32], before[32];
    int n = 0;
    if (opt.save == NULL)
        return;
    for (int i = 0; i < N_OPTIONS; i++)
        if (option_list[i].agree)
            note[n++] = (tl_note){option_list[i].flag, option_text(&option_list[i], value[i])};
    snprintf(before, sizeof before, "%.17g", r->before);
    note[n++] = (tl_note){"text", text.sha256};
    note[n++] = (tl_note){"before", before};
    check_model(r, tl_checkpoint_save(r->model, r->optimizer, opt.save, note, n));
}

static void checkpoint_load(run *r)
{
    static char value[N_NOTES][TL_NOTE_MAX];
    const char *key[N_NOTES];
    for (int i = 0; i < N_OPTIONS; i++)
        key[i] = option_list[i].flag;
    key[N_OPTIONS] = "text";
    key[N_OPTIONS + 1] = "before";
    check_model(r, tl_checkpoint_load(r->model, r->optimizer, opt.resume, key, value, N_NOTES));
    for (int i = 0; i < N_OPTIONS; i++) {
        char mine[32];
        if (option_list[i].agree && strcmp(value[i], option_text(&option_list[i], mine)) != 0)
            die(WRONG_USE, "%s was made with %s %s, this run has %s", opt.resume, key[i], value[i], mine);
    }
    if (strcmp(value[N_OPTIONS], text.sha256) != 0)
        die(WRONG_USE, "%s was trained on another text than %s", opt.resume, text.name);
    r->before = strtod(value[N_OPTIONS + 1], NULL);
}

/* Better to hear now than after training that nothing can be written there. */
static void check_save_folder(void)
{
    if (opt.save == NULL)
        return;
    char *folder = need(strdup(opt.save)), *slash = strrchr(folder, '/');
    if (slash != NULL)
        slash[slash == folder] = '\0';
    if (access(slash != NULL ? folder : ".", W_OK) != 0)
        die(FAILED, "cannot write %s: %s", opt.save, strerror(errno));
    free(folder);
}

/* ---- training ---- */

static volatile sig_atomic_t interrupted;
static void on_interrupt(int signal_number)
{
    (void)signal_number;
    interrupted = 1;
}

/* One optimizer step on one batch, micro-batch by micro-batch; its mean loss. */
static double train_step(run *r, tl_rng_key key, int64_t step)
{
    double count = (double)(opt.batch * opt.seq);
    total_reset(r);
    for (int64_t first = 0; first < opt.batch; first += opt.micro_batch) {
        for (int64_t i = 0; i < opt.micro_batch; i++) {
            uint64_t starts = (uint64_t)(text.train - opt.seq);
            uint64_t at = tl_rng_below(key, (uint64_t)step, (uint64_t)(first + i), starts);
            window((int64_t)at, opt.seq, r->ids + i * opt.seq, r->targets + i * opt.seq);
        }
        tl_backward(r->tape, loss_of(r, opt.micro_batch, count));
        if (first + opt.micro_batch == opt.batch)
            tl_step(r->optimizer, r->tape);
        check(r);
        tl_tape_reset(r->tape);
    }
    return tl_item(r->tape, r->total) / count;
}

/* Trains to the end of the schedule, or to --stop-at; the speed in tokens a second. */
static double train(run *r)
{
    tl_rng_key key = tl_rng_stream((uint64_t)opt.seed, "train_text.windows");
    int64_t step = tl_opt_steps(r->optimizer), last = opt.stop_at > 0 ? opt.stop_at : opt.steps;
    int64_t measure = opt.steps / 8 > 0 ? opt.steps / 8 : 1;
    progress p = progress_begin(step, last);
    struct sigaction act = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND}; /* a second Ctrl-C ends at once */
    sigaction(SIGINT, &act, NULL);
    while (step < last && !interrupted) {
        double lr = tl_opt_lr(r->optimizer), began = now(), val = (double)NAN;
        double loss = train_step(r, key, step++);
        p.seconds += now() - began;
        if (step % measure == 0 && step < last)
            val = r->last_val = validate_part(r);
        progress_show(&p, r, step, loss, lr, val);
        if (opt.save_every > 0 && step % opt.save_every == 0 && step < last)
            checkpoint_save(r);
    }
    checkpoint_save(r);
    return tokens_per_second(&p, step);
}

/* ---- sampling ---- */

/* Draws an id from the probabilities p with a number u in [0, 1). */
static int draw(const float *p, double u)
{
    double below = 0;
    for (int i = 0; i < text.vocab; i++) {
        below += (double)p[i];
        if (u < below)
            return i;
    }
    return text.vocab - 1; /* the probabilities were rounded */
}

/* Writes n bytes, each drawn given the (at most --seq) bytes before it. */
static void sample(run *r, int64_t n)
{
    tl_tape *t = r->tape;
    tl_rng_key key = tl_rng_stream((uint64_t)opt.seed, "train_text.sample");
    int64_t *context = r->ids, len = 1;
    float p[256];
    context[0] = text.id_of['\n']; /* the start of a line; without lines, the first byte */
    int mode = tl_mode_push(t, TL_NO_GRAD);
    for (int64_t i = 0; i < n; i++) {
        tl_tensor ids = tl_data(t, context, TL_I64, TL_DIMS(1, len));
        tl_tensor logits = tl_select(t, tl_select(t, tl_llama(t, r->model, &r->config, ids), 0, 0), 0, len - 1);
        int64_t next;
        if (opt.temperature > 0) {
            tl_keep(t, tl_softmax(t, tl_scale(t, logits, 1 / opt.temperature), 0), p, (size_t)text.vocab * sizeof *p);
            next = draw(p, tl_rng_uniform64(key, 0, (uint64_t)i));
        } else {
            next = (int64_t)tl_item(t, tl_argmax(t, logits, 0, false));
        }
        check(r);
        tl_tape_reset(t);
        if (len == opt.seq)
            memmove(context, context + 1, (size_t)(--len) * sizeof *context);
        context[len++] = next;
        int c = text.of_id[next];
        putchar(iscntrl(c) && !isspace(c) ? '?' : c);
    }
    tl_mode_pop(t, mode);
    putchar('\n');
}

/* ---- main ---- */

static void introduce(const run *r)
{
    printf("text      %s: %" PRId64 " bytes, %d different, %" PRId64 " held out\n", text.name, text.n, text.vocab,
           text.n - text.train);
    printf("model     %" PRId64 " layers, width %" PRId64 ", %" PRId64 " heads on %" PRId64 " key heads, %" PRId64 " parameters%s\n",
           opt.layers, opt.width, opt.heads, opt.kv_heads, tl_model_parameters(r->model), opt.tied ? ", tied" : "");
    printf("training  %" PRId64 " steps of %" PRId64 " x %" PRId64 " bytes, from step %" PRId64 ", %d threads\n", opt.steps, opt.batch,
           opt.seq, tl_opt_steps(r->optimizer), tl_threads());
    fflush(stdout);
}

int main(int argc, char **argv)
{
    run r = {.before = (double)NAN};
    char hash[65];
    options_read(argc, argv);
    text_read();
    check_save_folder();
    run_begin(&r);
    r.before = validate(&r, 1); /* the first call makes the parameters */
    if (opt.resume != NULL)
        checkpoint_load(&r);
    r.last_val = validate_part(&r);
    csv_open(&r);
    introduce(&r);

    double speed = train(&r);
    csv_close(&r);
    if (interrupted)
        die(INTERRUPTED, "interrupted after step %" PRId64 "%s%s", tl_opt_steps(r.optimizer), opt.save ? "; saved to " : "",
            opt.save ? opt.save : "");
    if (opt.sample > 0) {
        printf("\n");
        sample(&r, opt.sample);
        printf("\n");
    }
    double after = validate(&r, 1);
    check_model(&r, tl_model_sha256(r.model, hash));
    printf("speed %.0f tok/s\n", speed);
    printf("validation loss %.4f (%.4f before training, unigram %.4f)\n", after, r.before, unigram());
    printf("weights sha256 %s\n", hash);
    run_end(&r);
    if (fflush(stdout) != 0 || ferror(stdout))
        die(FAILED, "cannot write the output: %s", strerror(errno));
    return DONE;
}
