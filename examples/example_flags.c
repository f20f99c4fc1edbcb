/* example_flags.c: the flags of all examples, and reading them and a program's own. */
#include <errno.h>
#include <math.h>
#include <sys/stat.h>

#include "examples/example.h"

static const ex_program *program;

void ex_multiple(const char *flag, int64_t x, const char *of, int64_t y)
{
    if (y < 1 || x % y != 0)
        ex_die(EX_WRONG_USE, "%s %" PRId64 " is not a multiple of %s %" PRId64, flag, x, of, y);
}

static const ex_option common[] = {
    {EX_WHOLE, "--steps", &ex.steps, 1, 1e9, "optimizer steps"},
    {EX_WHOLE, "--batch", &ex.batch, 1, 1e5, "samples a step"},
    {EX_WHOLE + EX_FREE, "--micro-batch", &ex.micro_batch, 0, 1e5,
     "samples at a time, same result; divides --batch; 0: all"},
    {EX_REAL, "--lr", &ex.lr, 1e-12, 10, "highest learning rate"},
    {EX_WHOLE, "--seed", &ex.seed, 0, 9e15, "of every random draw"},
    {EX_WHOLE + EX_FREE, "--threads", &ex.threads, 0, 256,
     "same result with any; 0: TL_THREADS, else one a core"},
    {EX_YES + EX_FREE, "--compile", &ex.compile, 0, 1,
     "trace the step once and replay it, same result"},
    {EX_WORD + EX_FREE + EX_WRITES, "--save", &ex.save, 0, 0, "write a checkpoint here at the end"},
    {EX_WHOLE + EX_FREE, "--save-every", &ex.save_every, 0, 1e9,
     "write it each time after so many steps, too"},
    {EX_WHOLE + EX_FREE, "--stop-at", &ex.stop_at, 0, 1e9,
     "end after this step of --steps; 0: the last"},
    {EX_WORD + EX_FREE, "--resume", &ex.resume, 0, 0,
     "continue from this checkpoint, to the same weights"},
    {EX_WORD + EX_FREE + EX_WRITES, "--csv", &ex.csv, 0, 0, "write numbers of the steps here"},
    {EX_WORD + EX_FREE + EX_WRITES, "--svg", &ex.svg, 0, 0, "draw the loss by step here"},
    {EX_WORD + EX_FREE + EX_WRITES, "--log", &ex.log, 0, 0,
     "write what each op computed, to compare two runs with tally-diff"},
    {EX_WHOLE + EX_FREE, "--log-every", &ex.log_every, 1, 1e9,
     "log every so many steps; of the others only the loss"},
    {EX_WHOLE + EX_FREE, "--log-keep", &ex.log_keep, 0, 1e9,
     "keep all values of this step, beside the log; 0: none"},
    {EX_WHOLE + EX_FREE, "--verify-every", &ex.verify_every, 0, 1e9,
     "compare the weights of all processes after so many steps; 0: the first and the last"},
};
enum { COMMON = sizeof common / sizeof *common };

static int kind_of(const ex_option *o) { return o->kind % EX_FREE; }

const ex_option *ex_flag(int i)
{
    int own = program->n_options;
    return i < own ? &program->options[i] : i < own + COMMON ? &common[i - own] : NULL;
}

const char *ex_flag_text(const ex_option *o, char buf[TL_NOTE_MAX], int digits)
{
    int kind = kind_of(o);
    const char *word = kind == EX_WORD ? *(const char **)o->field : NULL;
    if (kind == EX_WHOLE)
        snprintf(buf, TL_NOTE_MAX, "%" PRId64, *(int64_t *)o->field);
    else if (kind == EX_REAL)
        snprintf(buf, TL_NOTE_MAX, "%.*g", digits, *(double *)o->field);
    else
        snprintf(buf, TL_NOTE_MAX, "%s",
                 kind == EX_YES ? (*(bool *)o->field ? "1" : "0")
                 : word != NULL ? word
                                : "");
    return buf;
}

static _Noreturn void help(void)
{
    char preset[TL_NOTE_MAX];
    printf("usage: %s [--flag value]...\n\n%s\nFlags and their defaults:\n\n", program->name,
           program->about);
    for (int i = 0; ex_flag(i) != NULL; i++) {
        const ex_option *o = ex_flag(i);
        int kind = kind_of(o);
        ex_flag_text(o, preset, 6);
        printf("  %-14s %-6s %s\n", o->flag,
               kind == EX_YES                ? ""
               : kind == EX_WORD && !*preset ? "FILE"
                                             : preset,
               o->meaning);
    }
    puts(
        "\nexit status: 0 done, 1 failed, 2 wrong use, 130 interrupted (saved first, with --save)");
    if (fflush(stdout) != 0 || ferror(stdout))
        ex_die(EX_FAILED, "cannot write the output: %s", strerror(errno));
    exit(EX_DONE);
}

static void option_read(const ex_option *o, const char *value)
{
    char *end;
    int kind = kind_of(o);
    errno = 0;
    double x = kind == EX_YES ? 1 : strtod(value, &end);
    if (kind == EX_WORD && *value == '\0')
        ex_die(EX_WRONG_USE, "%s needs a value, not an empty one", o->flag);
    if (kind == EX_WORD)
        *(const char **)o->field = value;
    else if (kind == EX_YES)
        *(bool *)o->field = true;
    else if (*value == '\0' || *end != '\0' || !(x >= o->least && x <= o->most) ||
             (errno == ERANGE && x < 1) || /* it would be 0, or a part of it */
             (kind == EX_WHOLE && x != floor(x)))
        ex_die(EX_WRONG_USE, "%s %s: a %snumber from %.16g to %.16g is needed", o->flag, value,
               kind == EX_WHOLE ? "whole " : "", o->least, o->most);
    else if (kind == EX_REAL)
        *(double *)o->field = x;
    else
        *(int64_t *)o->field = (int64_t)x;
}

/* Which flags are files: words without a default. */
static uint64_t files;

static const char *name_in(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

/* Whether the folder of path is there. */
static bool folder_of(const char *path, struct stat *folder)
{
    char text[4096];
    const int n = snprintf(text, sizeof text, "%.*s.", (int)(name_in(path) - path), path);
    return n < (int)sizeof text && stat(text, folder) == 0;
}

/* Of two that are not there both must be written to meet. */
static bool one_file(const char *a, const char *b, bool both_written)
{
    struct stat x, y;
    if (stat(a, &x) != 0 || stat(b, &y) != 0)
        return both_written && strcmp(name_in(a), name_in(b)) == 0 && folder_of(a, &x) &&
               folder_of(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
    return S_ISREG(x.st_mode) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Trained further, a checkpoint or an adapter may take the place of the one begun with. */
static bool go_together(const char *written, const char *read)
{
    return (strcmp(written, "--save") == 0 && strcmp(read, "--resume") == 0) ||
           (strcmp(written, "--adapter") == 0 && strcmp(read, "--start") == 0);
}

/* What is written would destroy what another flag names. */
static void check_files(void)
{
    const ex_option *o, *p;
    for (int i = 0; (o = ex_flag(i)) != NULL; i++)
        for (int k = 0; (p = ex_flag(k)) != NULL; k++) {
            const bool words = p != o && files >> k & 1 && (o->kind & EX_WRITES) != 0;
            const char *a = words ? *(const char **)o->field : NULL;
            const char *b = words ? *(const char **)p->field : NULL;
            if (a != NULL && b != NULL && one_file(a, b, (p->kind & EX_WRITES) != 0) &&
                !go_together(o->flag, p->flag))
                ex_die(EX_WRONG_USE, "%s %s and %s %s are one file, and %s writes it", o->flag, a,
                       p->flag, b, o->flag);
        }
}

void ex_flags_read(const ex_program *p, int argc, char **argv)
{
    program = p;
    for (int i = 0; ex_flag(i) != NULL; i++)
        if (kind_of(ex_flag(i)) == EX_WORD && *(const char **)ex_flag(i)->field == NULL)
            files |= (uint64_t)1 << i;
    for (int i = 1; i < argc; i++) {
        int k = 0;
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            help();
        while (ex_flag(k) != NULL && strcmp(argv[i], ex_flag(k)->flag) != 0)
            k++;
        const ex_option *o = ex_flag(k);
        if (o == NULL)
            ex_die(EX_WRONG_USE, "unknown %s '%s'; --help lists all flags, as --flag value",
                   argv[i][0] == '-' ? "flag" : "argument", argv[i]);
        bool yes = kind_of(o) == EX_YES;
        if (!yes && i + 1 == argc)
            ex_die(EX_WRONG_USE, "%s needs a value", o->flag);
        option_read(o, yes ? NULL : argv[++i]);
    }
    if (ex.micro_batch == 0)
        ex.micro_batch = ex.batch;
    ex_multiple("--batch", ex.batch, "--micro-batch", ex.micro_batch);
    if (ex.stop_at > ex.steps)
        ex_die(EX_WRONG_USE, "--stop-at %" PRId64 " is beyond --steps %" PRId64, ex.stop_at,
               ex.steps);
    if (ex.log == NULL && (ex.log_keep > 0 || ex.log_every > 1))
        ex_die(EX_WRONG_USE, "--log-%s needs --log", ex.log_keep > 0 ? "keep" : "every");
    if (ex.log_keep > ex.steps)
        ex_die(EX_WRONG_USE, "--log-keep %" PRId64 " is beyond --steps %" PRId64, ex.log_keep,
               ex.steps);
    if (ex.save_every > 0 && ex.save == NULL)
        ex_die(EX_WRONG_USE, "--save-every %" PRId64 " needs --save", ex.save_every);
    check_files();
}
