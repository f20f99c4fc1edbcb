/* read.h: reads logs and compares two of them. build/tally-diff is made of it.
 *
 * A log need not be whole. If a crash cut it off, its last step is not complete; damaged lines are
 * counted and skipped; if a step comes twice, since a run was resumed before the point where it
 * crashed, the last complete one counts. */
#ifndef TL_LOG_READ_H
#define TL_LOG_READ_H

#include <stdio.h>

#include "autograd/log/log.h"
#include "autograd/log/key.h"

/* The definition of a key. All text is borrowed from the file. */
typedef struct {
    uint64_t key;
    const char *op, *dtype, *shape, *name, *attrs, *place; /* "" where there is none */
    bool gradient; /* it is an accumulator, as it was at the end of the step */
    bool update;   /* it is the update of the parameter `name` */
    bool fast;     /* it was recorded under TL_FAST */
    uint64_t *in;  /* keys of the inputs, 0: not logged */
    int n_in;
    int parts;          /* micro-batches in which it came */
    int64_t rows, last; /* axis 0 of all parts, and of the last; -1: scalar, mixed or none */
    const char *tail;   /* the other dims, ",64,128" */
} tl_log_def;

typedef struct {
    uint64_t key;
    const tl_log_def *def;
    const char *all, *part; /* hashes of all parts and of the last one, in hex; NULL: not there */
    bool alike;             /* all parts have the same bytes */
    const char *value;      /* a scalar's number (its last part's), as text; "" for others */
    const char *line;       /* its line in the file */
} tl_log_result;

typedef struct {
    int64_t number;
    bool full;                   /* it has all results, and not only the scalars */
    bool complete;               /* its end is there */
    bool damaged;                /* some of its lines made no sense */
    bool compiled;               /* a graph ran: fused, merged or replaced results have no record */
    const tl_log_result *result; /* in ascending order of keys */
    int n;
    int order; /* its place among the steps of the file */
} tl_logged_step;

typedef struct tl_log_file tl_log_file;

/* Reads the log at path; *out is the caller's (tl_log_file_close), NULL on failure. Errors:
 * TL_EIO, TL_EFORMAT (empty, or no log), TL_ENOMEM. */
tl_status tl_log_read(tl_log_file **out, const char *path, tl_err *err);
void tl_log_file_close(tl_log_file *f); /* NULL is fine */
/* "XXH3-128", or "SHA-256" for a log of version 2. Logs of two hashes cannot be compared. */
const char *tl_log_hash(const tl_log_file *f);
int tl_log_steps(const tl_log_file *f);
/* Step i from 0, in ascending order of number; NULL past the end. Borrowed. */
const tl_logged_step *tl_log_step_at(const tl_log_file *f, int i);
/* How many lines make no sense, and the number of the first of them (from 1; 0: none). A last line
 * that was cut off does not count. */
int64_t tl_log_damaged(const tl_log_file *f, int64_t *first);
/* The result of that key in a step, or NULL. */
const tl_log_result *tl_log_find(const tl_logged_step *s, uint64_t key);

/* How a result compares with the other log's. */
typedef enum {
    TL_LOG_SAME,
    TL_LOG_DIFFERS,
    TL_LOG_UNKNOWN, /* no hashes to compare: none was taken, or splits along another axis differ */
    TL_LOG_MISSING, /* the other log has no such result */
    TL_LOG_OTHER    /* the other program does something else there */
} tl_log_verdict;

/* One step of two logs, result by result. */
typedef struct {
    const tl_logged_step *a, *b;
    bool partial;         /* a graph ran some parts of a step: fused results lack those */
    tl_log_verdict *of_a; /* of each result of a */
    int same, differ;
    int unknown;    /* of the results of which at least one log has a hash */
    int fused;      /* without a record in a log that ran compiled, and with one in the other */
    int first;      /* the first result of a that differs; -1: none */
    uint64_t other; /* the first key with another op or parameter shape in one log or, where both
                     * should have all results, only in one; 0: it is the same program */
} tl_log_comparison;

/* Compares two steps; free with tl_log_comparison_free. TL_ENOMEM. */
tl_status tl_log_compare(tl_log_comparison *c, const tl_logged_step *a, const tl_logged_step *b);
void tl_log_comparison_free(tl_log_comparison *c);

/* Two logs, and how far they have been compared. */
typedef struct {
    const char *path[2]; /* values that were kept are looked for beside these files */
    tl_log_file *file[2];
    int64_t agreed;       /* the last step that agreed; 0: none */
    int64_t agreed_whole; /* the last that agreed in all its results */
} tl_log_pair;

/* Prints how the two steps of c differ: the first op, its inputs, the path that led there, how far
 * the difference spread, and the values if both runs kept them; or that the programs are not the
 * same. Prints nothing if the steps do not differ. */
void tl_log_report(FILE *f, const tl_log_pair *p, const tl_log_comparison *c);

/* Prints text that may come from a file: control characters, and bytes that are no UTF-8, as %XX.
 */
void tl_log_print(FILE *f, const char *text);

#endif
