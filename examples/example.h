/* example.h: what the examples share, so that each shows its own idea: flags, a loop of steps and
 * micro-batches, progress, stop and resume, pictures.
 *
 *     ex_begin(argc, argv, &program);   reads the flags; then make data and ex.opt
 *     ex_ready();                       resumes, if told to
 *     while (ex_step())                 a step, all its micro-batches
 *         if (ex_due())
 *             ex_say(ex.mean, "");      a line of progress
 *     return ex_end();                  prints the hash of the weights
 *
 * Everything that goes wrong ends the program with a message (ex_die, ex_check). */
#ifndef TL_EXAMPLE_H
#define TL_EXAMPLE_H

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <nn/group/group.h>
#include <tally_data.h>

enum { EX_DONE = 0, EX_FAILED = 1, EX_WRONG_USE = 2, EX_INTERRUPTED = 130 }; /* exit statuses */

/* A flag of a program's own. What the field holds when the flags are read is the default. */
enum { EX_WHOLE, EX_REAL, EX_YES, EX_WORD, EX_FREE = 4, EX_WRITES = 8 };
typedef struct {
    int kind; /* + EX_FREE: changes no weight, so checkpoints of runs with another value fit;
               * + EX_WRITES: a file that is written, which no other flag may name */
    const char *flag;
    void *field; /* int64_t, double, bool, const char * */
    double least, most;
    const char *meaning;
} ex_option;

typedef struct {
    const char *name, *about; /* about: what --help says first */
    const ex_option *options;
    int n_options;
    /* Rows first .. first + rows - 1 of the batch of a step, as what the loss takes. */
    void (*batch)(int64_t step, int64_t first, int64_t rows, tl_tensor *in);
    int n_in;
    /* The sum of their losses, divided by ex.count, whatever rows there are; adds the sum to
     * ex.total as well. */
    tl_tensor (*loss)(tl_tape *t, const tl_tensor *in);
    const char *columns; /* of --csv, whose rows the program writes; NULL: step,loss */
} ex_program;

/* The flags of all, and the run. Defaults may be set before ex_begin. */
extern struct ex_run {
    int64_t steps, stop_at, batch, micro_batch, seed, threads, save_every, log_every, log_keep,
        verify_every;
    double lr;
    bool compile, shard; /* the optimizer is one of parts, the group's */
    const char *save, *resume, *csv, *svg, *log;

    tl_model *m;
    tl_tape *t;
    tl_opt *opt;        /* the program's to make */
    tl_group *group;    /* of the processes that mpirun has started; NULL: one */
    tl_tensor total;    /* 0-d f64 of the model: the sum of losses of a step */
    double count;       /* what a step's sum is divided by; ex_begin: --batch */
    const char *unit;   /* of the speed: "samples", and */
    int64_t units;      /* how many of them a sample is; 1 */
    int64_t step, last; /* steps made; --stop-at, or --steps */
    double loss, mean;  /* of the last step; of those since the last line */
    FILE *csv_file;     /* or NULL */
} ex;

_Noreturn void ex_die(int status, const char *fmt, ...) TL_PRINTF(2, 3);
void ex_warn(const char *fmt, ...) TL_PRINTF(1, 2); /* says what is wrong, and goes on */
void ex_check(tl_status s);                         /* of a call, and of what was recorded */
const char *ex_name(void);                          /* of the program */
void *ex_need(void *p);                             /* dies of NULL */
void ex_multiple(const char *flag, int64_t x, const char *of, int64_t y);
void ex_fits(double parameters); /* dies if they cannot be trained in this machine's memory */

/* Reads what stands on the command line; --help ends the program. */
void ex_flags_read(const ex_program *p, int argc, char **argv);
/* The program's own flags come first; NULL after the last. */
const ex_option *ex_flag(int i);
/* Its value; 17 digits tell any two doubles apart. */
const char *ex_flag_text(const ex_option *o, char buf[TL_NOTE_MAX], int digits);

void ex_begin(int argc, char **argv, const ex_program *p);
/* What else a checkpoint keeps, before ex_ready: `must` is compared, the other is given back, in up
 * to TL_NOTE_MAX bytes. Both are borrowed. */
void ex_keep(const char *key, char *value, bool must);
void ex_ready(void);
bool ex_step(void); /* false: there is none left; all is saved */
bool ex_due(void);  /* a line is wanted after this step */
/* Says where long work is, if nothing was said for two seconds. */
void ex_wait(const char *fmt, ...) TL_PRINTF(1, 2);
void ex_say(double loss, const char *measured); /* step, loss, what was measured, speed, time */
double ex_speed(void);                          /* units a second */
int ex_end(void);

/* ---- --csv and --svg, for example.c ---- */

void ex_files_check(void); /* dies if a folder is not there or cannot be written */
void ex_files_begin(const ex_program *p);
void ex_files_step(void);
void ex_files_flush(void); /* writes the rows so far */
void ex_files_end(void);
bool ex_files_whole(void); /* false: something could not be written, and is said */

/* ---- text, and digits ---- */

enum { EX_IGNORED = -1 };
/* Bytes, numbered by the sorted vocabulary of those that occur. */
extern struct ex_text {
    const char *path; /* --text: a file, or (NULL) the project's headers and documents */
    int64_t seq, sample;
    double temperature;
    const char *name;
    unsigned char *byte;
    int64_t n, train; /* the first `train` bytes are trained on, the others held out */
    int vocab, id_of[256];
    unsigned char byte_of[256];
    char sha256[65];
} ex_text;
/* .path, of which at least seq bytes are to train on. A line says what it is, with its hash: the
 * project's own text is another with every commit, and so are the weights. */
void ex_text_read(void);
/* seq bytes from `at` on as ids, and each one's successor as target; places beyond the text's end
 * (only the last window of all has them) count for nothing: EX_IGNORED. */
void ex_text_window(int64_t at, int64_t *ids, int64_t *targets);
/* Windows that the stream "PROGRAM.windows" draws for those rows of a step, and their targets. */
void ex_text_batch(int64_t step, int64_t first, int64_t rows, tl_tensor *in);
/* Writes .sample bytes, each drawn given the seq bytes before it, beginning at the start of a line.
 * logits: ids (1, len) -> (1, len, vocab). */
void ex_text_sample(tl_tensor (*logits)(tl_tape *t, tl_tensor ids));
/* Flags of programs that write. */
#define EX_TEXT_FLAGS                                                                           \
    {EX_WORD + EX_FREE,                                                                         \
     "--text",                                                                                  \
     &ex_text.path,                                                                             \
     0,                                                                                         \
     0,                                                                                         \
     "learn this file; default: the project's own text"},                                       \
        {EX_WHOLE, "--seq", &ex_text.seq, 1, 65536, "bytes a sample"},                          \
        {EX_WHOLE + EX_FREE, "--sample", &ex_text.sample, 0, 1e6, "bytes to write at the end"}, \
    {                                                                                           \
        EX_REAL + EX_FREE, "--temperature", &ex_text.temperature, 0, 100,                       \
            "of them; 0: always the likeliest byte"                                             \
    }
/* All of main behind ex_begin, of a net that is trained by AdamW to write: p->batch is
 * ex_text_batch, p->loss ex_text_loss. */
int ex_text_learn(tl_tensor (*logits)(tl_tape *t, tl_tensor ids));
tl_tensor ex_text_loss(tl_tape *t, const tl_tensor *in);

/* Pictures, F32 (n, 1, rows, columns) of 0 to 1, and labels, I64 (n): n drawn digits of EX_SIDE x
 * EX_SIDE, or (images not NULL) from files, whose pixels are 0 to 255; labels may be NULL then.
 * They last as long as the program. */
enum { EX_SIDE = 16 };
void ex_digits(const char *images, const char *labels, int64_t n, tl_array out[2]);

/* Dies if none is held out, or fewer than --batch are trained on. */
void ex_enough(int64_t held, int64_t trained);

/* ---- pieces ---- */

/* first, first + 1, ...: the numbers of so many samples, for draws that belong to them. */
tl_tensor ex_numbers(int64_t first, int64_t rows);
/* The mean of each sample's loss (b, ...), as a program's loss wants it. */
tl_tensor ex_mean(tl_tape *t, tl_tensor each);
/* 0 to 1 as characters from blank to black, n pictures of rows x columns side by side. */
void ex_picture(const float *x, int64_t n, int64_t rows, int64_t columns);

#endif
