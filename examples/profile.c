/* profile [STEPS [FILE [compile]]]: where the time of a training step goes, op by op.
 *
 * Prints a table, and writes folded stacks to FILE (profile.folded), which flamegraph.pl and
 * speedscope draw. All it knows of the small Llama that it trains comes from a tl_observer. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tally_extend.h>
#include <time.h>

enum { ROWS = 1000, BATCH = 8, SEQ = 64 };

typedef struct {
    const char *op, *file, *phase;
    int line, calls;
    double seconds, bytes;
} row;
static row rows[ROWS];
static int n_rows;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* 1. The observer: two callbacks around every op. An op is counted under its phase and the line
 * that called it; in backward that is the call whose gradient it belongs to. */
static row *row_of(const tl_seen *c)
{
    const char *phase = c->phase & TL_PHASE_BACKWARD ? "backward" : c->phase ? "update" : "forward";
    row *r = rows, *end = rows + n_rows;
    while (r < end && (r->op != c->call->op->name || r->line != c->line || r->phase != phase))
        r++;
    if (r == end && n_rows < ROWS - 1) /* the last row takes what is too much */
        *r = (row){c->call->op->name, c->file, phase, .line = c->line}, n_rows++;
    return r;
}

static double bytes_of(const tl_array *a) /* NULL: an input that is absent */
{
    return a == NULL ? 0 : (double)tl_array_count(a) * (double)tl_dtype_size(a->dtype);
}

static void runs(void *began, tl_tape *t, const tl_seen *c)
{
    (void)t, (void)c;
    *(double *)began = now();
}

static tl_status ran(void *began, tl_tape *t, const tl_seen *c)
{
    double seconds = now() - *(double *)began;
    row *r = row_of(c);
    (void)t;
    for (int i = 0; i < c->call->n_in + c->call->n_out; i++)
        r->bytes += bytes_of(i < c->call->n_in ? c->call->in[i] : &c->call->out[i - c->call->n_in]);
    r->seconds += seconds;
    r->calls++;
    return TL_OK;
}
static const tl_observer profiler = {.runs = runs, .ran = ran};

/* 2. What is watched: a training step. */
static void step(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *loss, int n_out, void *opt)
{
    static const tl_llama_config config = {256, 64, 2, 4, .hidden = 176, .max_positions = SEQ};
    (void)n_in, (void)n_out;
    *loss = tl_cross_entropy(t, tl_llama(t, tl_tape_model(t), &config, in[0]), in[1], TL_MEAN);
    tl_backward(t, *loss);
    tl_step(opt, t);
}

/* 3. The table, the longest first, and the folded stacks. */
static int longer(const void *a, const void *b)
{
    return ((const row *)a)->seconds < ((const row *)b)->seconds ? 1 : -1;
}

static int unwritten(const char *path)
{
    fprintf(stderr, "profile: cannot write %s: %s\n", path, strerror(errno));
    return 1;
}

static int report(int steps, const char *path)
{
    FILE *f = fopen(path, "w");
    if (f == NULL)
        return unwritten(path);
    qsort(rows, (size_t)n_rows, sizeof *rows, longer);
    printf("phase     op                    ms/step     GB/s  calls  at\n");
    for (row *r = rows; r < rows + n_rows; r++) {
        printf("%-9s %-20s %8.3f %8.2f %6d  %s:%d\n", r->phase, r->op, 1e3 * r->seconds / steps,
               1e-9 * r->bytes / r->seconds, r->calls / steps, r->file, r->line);
        fprintf(f, "%s;%s:%d;%s %.0f\n", r->phase, r->file, r->line, r->op, 1e6 * r->seconds);
    }
    const int bad = ferror(f);
    errno = EIO; /* if a write has failed before this one, which may say more */
    return fclose(f) != 0 || bad ? unwritten(path) : 0;
}

int main(int argc, char **argv)
{
    double began;
    char *end = "";
    static int64_t ids[BATCH * SEQ + 1]; /* what comes next is one further */
    int steps = argc > 1 ? (int)strtol(argv[1], &end, 10) : 20, bad = 0;
    if (argc > 4 || *end != '\0' || steps < 1 || (argc == 4 && strcmp(argv[3], "compile") != 0)) {
        bad = argc != 2 || (strcmp(argv[1], "--help") != 0 && strcmp(argv[1], "-h") != 0);
        fprintf(bad ? stderr : stdout, "usage: profile [STEPS [FILE [compile]]]\n\nTimes the ops "
                                       "of so many steps (20), called "
                                       "or compiled; folded stacks go to FILE (profile.folded).\n");
        return 2 * bad;
    }
    for (int i = 0; i <= BATCH * SEQ; i++)
        ids[i] = i * 31 % 256;
    tl_model *m = tl_model_new(.seed = 1);
    tl_opt *opt = tl_adamw_new(m, .lr = 1e-3);
    tl_tape *t = tl_tape_new(m);
    tl_compiled *c = tl_compile(t, step, 1, opt);
    tl_tensor loss, in[2] = {tl_data(m, ids, TL_I64, TL_DIMS(BATCH, SEQ)),
                             tl_data(m, ids + 1, TL_I64, TL_DIMS(BATCH, SEQ))};
    for (int i = 0; i <= steps && !tl_failed(t); i++) {
        if (i == 1) /* the first step makes the parameters, and a graph */
            tl_observe(t, &profiler, &began);
        if (argc > 3)
            tl_run(c, in, 2, &loss);
        else
            step(t, in, 2, &loss, 1, opt);
        tl_tape_reset(t);
    }
    const char *folded = argc > 2 ? argv[2] : "profile.folded";
    bad = tl_failed(t) || report(steps, folded);
    if (!bad)
        printf("stacks for a flame graph: %s\n", folded);
    errno = EIO; /* if a write has failed before this one, which may say more */
    if (fflush(stdout) != 0 || ferror(stdout)) {
        perror("profile: cannot write the output");
        bad = 1;
    }
    fputs(tl_error(t), stderr);
    tl_free(c, opt, t, m);
    return bad;
}
