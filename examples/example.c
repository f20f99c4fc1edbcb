/* example.c: in order: the beginning, checkpoints, the loop, progress, pictures. Flags are in
 * example_flags.c, --csv and --svg in example_files.c. */
#include "examples/example.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

struct ex_run ex = {.steps = 1000,
                    .batch = 32,
                    .lr = 1e-3,
                    .seed = 1,
                    .log_every = 1,
                    .unit = "samples",
                    .units = 1};

static const ex_program *program;
static tl_compiled *micro, *last;
static bool terminal;
static int64_t first_step;
static double seconds, spoke, sum; /* of training; when a line was said; of losses since then */
static int64_t summed;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void complain(const char *fmt, va_list ap)
{
    fflush(stdout);
    fprintf(stderr, "%s: ", program->name);
    if (ex.group != NULL)
        fprintf(stderr, "rank %d: ", tl_group_rank(ex.group));
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
}

void ex_warn(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    complain(fmt, ap);
    va_end(ap);
}

_Noreturn void ex_die(int status, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    complain(fmt, ap);
    va_end(ap);
    if (status == EX_INTERRUPTED) /* mpirun ends all as soon as one does: first all have said so */
        tl_group_count(ex.group, 0);
    exit(status);
}

void ex_check(tl_status s)
{
    if (s != TL_OK || tl_failed(ex.t))
        ex_die(EX_FAILED, "%s", tl_error(ex.t)); /* or its model's error */
    if (ex.opt != NULL && tl_failed(ex.opt))
        ex_die(EX_FAILED, "%s", tl_error(ex.opt));
}

const char *ex_name(void) { return program->name; }

void *ex_need(void *p)
{
    if (p == NULL)
        ex_die(EX_FAILED, "out of memory");
    return p;
}

/* By AdamW in f32: weights, gradients, two means. What a step computes comes on top. */
void ex_fits(double parameters)
{
    const long pages = sysconf(_SC_PHYS_PAGES); /* -1: not known */
    const double need = 16 * parameters, have = (double)pages * (double)sysconf(_SC_PAGESIZE);
    if (have > 0 && need > have && !ex.shard)
        ex_die(EX_FAILED,
               "%.3g parameters, their gradients and the optimizer's state are %.3g GB; this "
               "machine has %.3g",
               parameters, need / 1e9, have / 1e9);
}

/* Of several processes rank 0 alone speaks, and writes all but logs. */
static void group_begin(void)
{
    tl_link link;
    tl_err e = {.status = TL_OK};
    if (tl_link_mpi(&link, 0, &e) != TL_OK)
        ex_die(EX_FAILED, "%s", e.message);
    if (link.size == 1) {
        link.end(link.ctx, false);
        return;
    }
    static char own_log[TL_LOG_PATH];
    if (ex.log != NULL) {
        snprintf(own_log, sizeof own_log, "%s.%d", ex.log, link.rank);
        ex.log = own_log;
    }
    ex.group = ex_need(tl_group_new(ex.t, link));
    ex_check(tl_group_total(ex.group, ex.total));
    if (link.rank > 0)
        ex.csv = ex.svg = NULL;
    if (link.rank > 0 && freopen("/dev/null", "w", stdout) == NULL)
        ex_die(EX_FAILED, "cannot write /dev/null: %s", strerror(errno));
}

void ex_begin(int argc, char **argv, const ex_program *p)
{
    program = p;
    ex_flags_read(p, argc, argv);
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error of writing */
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (ex.threads > 0) /* else TL_THREADS holds */
        tl_threads_set((int)ex.threads);
    ex.last = ex.stop_at > 0 ? ex.stop_at : ex.steps;
    ex.count = (double)ex.batch;
    ex.m = ex_need(tl_model_new(.seed = (uint64_t)ex.seed));
    ex.t = ex_need(tl_tape_new(ex.m));
    ex.total = tl_data(ex.m, (double[]){0}, TL_F64, TL_SCALAR);
    group_begin();
    ex_files_check();
    if (ex.save != NULL && tl_group_rank(ex.group) == 0)
        ex_check(tl_checkpoint_writable(ex.m, ex.save));
    spoke = now();
}

/* ---- checkpoints: weights, optimizer, and as notes what the run was ---- */

enum { KEPT = 4, NOTES = 48 };
static struct {
    const char *key;
    char *value;
    bool must;
} kept[KEPT];
static int n_kept;

void ex_keep(const char *key, char *value, bool must)
{
    kept[n_kept].key = key;
    kept[n_kept].value = value;
    kept[n_kept++].must = must;
}

/* Keys and values of the run; the last `n_kept` are those of ex_keep. Returns how many. */
static int describe(const char *key[NOTES], char value[NOTES][TL_NOTE_MAX])
{
    int n = 0;
    key[n] = "program";
    snprintf(value[n++], TL_NOTE_MAX, "%s", program->name);
    for (int i = 0; ex_flag(i) != NULL && n < NOTES - KEPT; i++)
        if ((ex_flag(i)->kind & EX_FREE) == 0) {
            key[n] = ex_flag(i)->flag;
            ex_flag_text(ex_flag(i), value[n++], 17);
        }
    for (int i = 0; i < n_kept; i++) {
        key[n] = kept[i].key;
        snprintf(value[n++], TL_NOTE_MAX, "%s", kept[i].value);
    }
    return n;
}

/* For a message: what has 17 digits with as few as tell it apart. */
static const char *brief(char text[TL_NOTE_MAX])
{
    char *end;
    const double x = strtod(text, &end);
    const bool long_real = *end == '\0' && strchr(text, '.') != NULL && strlen(text) > 16;
    for (int digits = 1; long_real && digits < 18; digits++) {
        snprintf(text, TL_NOTE_MAX, "%.*g", digits, x);
        if (strtod(text, NULL) == x)
            break;
    }
    return text;
}

/* The same as notes, good until the next call. */
static int notes(tl_note note[NOTES], bool briefly)
{
    static char value[NOTES][TL_NOTE_MAX];
    const char *key[NOTES];
    const int n = describe(key, value);
    for (int i = 0; i < n; i++)
        note[i] = (tl_note){key[i], briefly ? brief(value[i]) : value[i]};
    return n;
}

static tl_status save(void)
{
    tl_note note[NOTES];
    const int n = notes(note, false);
    return tl_group_save(ex.group, ex.m, ex.opt, ex.save, note, n);
}

/* All processes are of one run, and have the same weights. */
static void agree(void)
{
    static const char *const key[] = {"step", "--micro-batch", "--stop-at", "--verify-every",
                                      "--shard"};
    const int64_t value[] = {ex.step, ex.micro_batch, ex.stop_at, ex.verify_every, ex.shard};
    char text[5][32];
    tl_note note[NOTES + 6];
    int n = notes(note, true);
    note[n++] = (tl_note){"version", TL_VERSION};
    for (int i = 0; i < 5; i++) {
        snprintf(text[i], sizeof text[i], "%" PRId64, value[i]);
        note[n++] = (tl_note){key[i], text[i]};
    }
    ex_check(tl_group_agree(ex.group, note, n));
}

static void resume(void)
{
    static char mine[NOTES][TL_NOTE_MAX], its[NOTES][TL_NOTE_MAX];
    const char *key[NOTES];
    char differs[512] = "";
    int n = describe(key, mine);
    ex_check(tl_checkpoint_notes(ex.m, ex.resume, key, its, n));
    if (strcmp(its[0], mine[0]) != 0)
        ex_die(EX_WRONG_USE, "%s is not a checkpoint of %s", ex.resume, program->name);
    for (int i = 1; i < n; i++)
        if (strcmp(its[i], mine[i]) != 0 && (i < n - n_kept || kept[i - n + n_kept].must))
            snprintf(differs + strlen(differs), sizeof differs - strlen(differs),
                     "%s %s %.30s, here %.30s", *differs ? ";" : "", key[i],
                     *its[i] ? brief(its[i]) : "(none)", brief(mine[i]));
    if (*differs)
        ex_die(EX_WRONG_USE, "%s is of another run:%s", ex.resume, differs);
    tl_tensor in[8];
    program->batch(0, 0, ex.micro_batch, in);
    program->loss(ex.t, in); /* the first call makes the parameters */
    ex_check(tl_checkpoint_load(ex.m, ex.opt, ex.resume, NULL, NULL, 0));
    tl_tape_reset(ex.t);
    for (int i = 0; i < n_kept; i++)
        if (!kept[i].must) /* else they are the same */
            memcpy(kept[i].value, its[n - n_kept + i], TL_NOTE_MAX);
}

/* ---- the loop ---- */

/* What asks the program to end: from the keyboard, from whoever runs it, a terminal that is gone, a
 * reader of its output that is gone. */
static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
enum { ENDS = sizeof ends / sizeof *ends };
static volatile sig_atomic_t interrupted;
static void on_interrupt(int number)
{
    interrupted = number;
    if (number == SIGINT)
        signal(SIGINT, SIG_DFL); /* a second one ends the program at once */
}

/* Those that the program was told to ignore stay ignored. */
static void catch_ends(void (*handler)(int))
{
    struct sigaction was;
    for (int i = 0; i < ENDS; i++)
        if (sigaction(ends[i], NULL, &was) == 0 && was.sa_handler != SIG_IGN)
            signal(ends[i], handler);
}

static void micro_batch(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                        void *ctx)
{
    (void)n_in, (void)n_out, (void)ctx;
    out[0] = program->loss(t, in);
    tl_group_backward(ex.group, t, out[0]);
}

static void last_micro_batch(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                             void *ctx)
{
    micro_batch(t, in, n_in, out, n_out, ctx);
    tl_step(ex.opt, t);
}

/* From the next step on; anew, but where a log goes on. */
static void open_log(void)
{
    if (ex.log != NULL)
        ex_check(tl_log_open(ex.t, ex.log, .every = ex.log_every, .keep = ex.log_keep,
                             .first = ex.step + 1,
                             .append = ex.resume != NULL || ex.step > first_step));
}

/* Of a group: gradients are there. Each process logs its update, all that they compute alike. */
static void group_update(void)
{
    const int64_t step = ex.step + 1;
    if (step == first_step + 1 || step % ex.log_every == 0 || step == ex.log_keep)
        open_log();
    tl_step(ex.opt, ex.t);
    ex_check(tl_log_close(ex.t));
    ex_check(ex.shard ? tl_group_weights(ex.group) : TL_OK);
}

void ex_ready(void)
{
    ex_need(ex.opt);
    if (ex.resume != NULL)
        resume();
    ex.step = first_step = tl_opt_steps(ex.opt);
    if (ex.step > ex.last) /* at it, there is nothing to do, which is well */
        ex_die(EX_WRONG_USE, "%s is at step %" PRId64 ", past --stop-at %" PRId64, ex.resume,
               ex.step, ex.last);
    if (ex.group == NULL)
        open_log();
    micro = ex_need(tl_compile(ex.t, micro_batch, 1, NULL));
    last = ex_need(tl_compile(ex.t, last_micro_batch, 1, NULL));
    agree();
    ex_files_begin(program);
    terminal = isatty(STDOUT_FILENO);
    catch_ends(on_interrupt);
}

/* Micro-batches continue one sum of gradients and one sum of losses: the split changes no bit. Of a
 * group a step waits for what goes round, which is no part of a graph. */
static void train_step(void)
{
    ex_check(tl_write(ex.m, ex.total, (double[]){0}, sizeof(double)));
    for (int64_t first = 0; first < ex.batch; first += ex.micro_batch) {
        const bool at_end = first + ex.micro_batch == ex.batch, whole = at_end && ex.group == NULL;
        tl_tensor in[8], loss;
        const tl_group_part part = tl_group_take(ex.group, ex.micro_batch);
        program->batch(ex.step, first + part.first, part.n, in);
        if (ex.compile)
            tl_run(whole ? last : micro, in, program->n_in, &loss);
        else
            (whole ? last_micro_batch : micro_batch)(ex.t, in, program->n_in, &loss, 1, NULL);
        tl_group_fold(ex.group);
        if (at_end && !whole) {
            tl_group_share(ex.group);
            group_update();
        }
        ex_check(TL_OK);
        tl_tape_reset(ex.t);
    }
    ex.loss = tl_item(ex.t, ex.total) / ex.count;
    if (!isfinite(ex.loss))
        ex_die(EX_FAILED, "the loss of step %" PRId64 " is %s: try a smaller --lr%s", ex.step + 1,
               isnan(ex.loss) ? "not a number" : "infinite",
               ex.save != NULL ? "; what was saved before it stays" : "");
}

static void finish(bool stopped);

bool ex_step(void)
{
    ex_files_flush(); /* no checkpoint is ahead of its CSV */
    if (ex.save_every > 0 && ex.step % ex.save_every == 0 && ex.step > first_step &&
        ex.step < ex.last)
        ex_check(save());
    const bool stopped = tl_group_count(ex.group, interrupted != 0) > 0;
    ex_check(TL_OK);
    if (stopped || ex.step >= ex.last) {
        agree();
        finish(stopped);
        return false;
    }
    double began = now();
    train_step();
    seconds += now() - began;
    if (ex.step++ == first_step || (ex.verify_every > 0 && ex.step % ex.verify_every == 0))
        agree(); /* there are parameters now */
    sum += ex.loss;
    ex.mean = sum / (double)++summed;
    ex_files_step();
    return true;
}

/* ---- progress: lines; on a terminal also one between them that is written over ---- */

static bool round_step(void)
{
    int64_t every = ex.steps > 20 ? ex.steps / 20 : 1;
    return ex.step % every == 0 || ex.step == ex.last;
}

bool ex_due(void) { return round_step() || now() - spoke > (terminal ? 0.2 : 2); }

void ex_wait(const char *fmt, ...)
{
    va_list ap;
    if (now() - spoke < 2)
        return;
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    spoke = now();
}

double ex_speed(void)
{
    return seconds > 0 ? (double)((ex.step - first_step) * ex.batch * ex.units) / seconds : 0;
}

void ex_say(double loss, const char *measured)
{
    double left = seconds / (double)(ex.step - first_step) * (double)(ex.last - ex.step);
    printf("%sstep %" PRId64 "/%" PRId64 "  loss %.4f%s  %.0f %s/s  %d:%02d left%s",
           terminal ? "\r" : "", ex.step, ex.steps, loss, measured, ex_speed(), ex.unit,
           (int)left / 60, (int)left % 60,
           !terminal                           ? "\n"
           : round_step() || *measured != '\0' ? "\033[K\n"
                                               : "\033[K");
    fflush(stdout);
    spoke = now();
    sum = 0;
    summed = 0;
}

/* After the last step of this run. */
static void finish(bool stopped)
{
    signal(SIGPIPE, SIG_IGN); /* that the output could not be written is said at the end */
    if (terminal && summed > 0)
        putchar('\n');
    const tl_status saved = ex.save != NULL ? save() : TL_OK; /* before all that can fail */
    catch_ends(SIG_DFL);
    ex_files_end();
    if (stopped || saved != TL_OK)
        ex_files_whole();
    ex_check(saved);
    if (stopped)
        ex_die(EX_INTERRUPTED, "interrupted after step %" PRId64 "; %s%s", ex.step,
               ex.save ? "saved to " : "nothing is saved: --save FILE does",
               ex.save ? ex.save : "");
}

int ex_end(void)
{
    char hash[65];
    tl_group_count(ex.group, 0); /* names a rank that hangs by now */
    ex_check(tl_model_sha256(ex.m, hash));
    const bool said = printf("weights sha256 %s\n", hash) > 0 && fflush(stdout) == 0;
    const int lost = said ? EIO : errno; /* why this or, for all that is known, a line before it */
    const bool whole = ex_files_whole(); /* what could not be written is a failure, but only now */
    ex_check(tl_log_close(ex.t));
    tl_group_free(ex.group);
    ex.group = NULL;
    tl_free(micro, last, ex.opt, ex.t, ex.m);
    if (fflush(stdout) != 0 || ferror(stdout))
        ex_die(EX_FAILED, "cannot write the output: %s", strerror(lost));
    return whole ? EX_DONE : EX_FAILED;
}

tl_tensor ex_numbers(int64_t first, int64_t rows)
{
    int64_t *x = ex_need(malloc((size_t)rows * sizeof *x));
    for (int64_t i = 0; i < rows; i++)
        x[i] = first + i;
    tl_tensor y = tl_data(ex.t, x, TL_I64, TL_DIMS(rows));
    free(x);
    return y;
}

tl_tensor ex_mean(tl_tape *t, tl_tensor each)
{
    tl_sum_to(t, tl_detach(t, each), TL_SCALAR, ex.total);
    return tl_scale(t, tl_sum(t, each, TL_ALL, false), 1 / ex.count);
}

void ex_picture(const float *x, int64_t n, int64_t rows, int64_t columns)
{
    static const char grey[] = " .:-=+*#%@";
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = 0; i < n * columns; i++) {
            float v = x[(i / columns * rows + row) * columns + i % columns];
            char c = grey[v > 0 ? v < 1 ? (int)(v * 9.999f) : 9 : 0];
            printf("%c%c", c, c);
        }
        putchar('\n');
    }
}
