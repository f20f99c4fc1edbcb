/* read.h: a log read back, and two of them compared. build/tally-diff is made of it.
 *
 * Reading takes what is there: a log that a crash cut off ends in a step that is not
 * complete, damaged lines are counted and passed over, of a step that comes twice (a run
 * resumed before the point of a crash) the later one counts. */
#ifndef TL_LOG_READ_H
#define TL_LOG_READ_H

#include <stdio.h>

#include "autograd/log/log.h"
#include "autograd/log/key.h"

/* What a key stands for. All text borrows from the file. */
typedef struct {
    uint64_t key;
    const char *op, *dtype, *shape, *name, *attrs, *place; /* "" where there is none */
    bool gradient;                                         /* an accumulator: as the step left it */
    bool update;                                           /* of the parameter `name` */
    bool fast;                                             /* recorded under TL_FAST */
    uint64_t *in;                                          /* keys of the inputs, 0: not logged */
    int n_in;
    int parts;          /* micro-batches */
    int64_t rows, last; /* axis 0: of all parts, of the last; -1: scalar, mixed or none */
    const char *tail;   /* the other dims, ",64,128" */
} tl_log_def;

typedef struct {
    uint64_t key;
    const tl_log_def *def;
    const char *all, *part; /* hashes in hex: of all parts, of the last one; NULL: not there */
    bool alike;             /* all parts have the same bytes */
    const char *value;      /* of a scalar (of its last part), as text; "" for others */
    const char *line;       /* where it stood in the file */
} tl_log_result;

typedef struct {
    int64_t number;
    bool full, complete; /* all results, not only scalars; its end is there */
    bool damaged;        /* some of its lines said nothing */
    bool compiled;       /* a graph ran: what it fused, merged or replaced has no record */
    const tl_log_result *result;
    int n; /* in ascending order of keys */
} tl_logged_step;

typedef struct tl_log_file tl_log_file;

/* Reads the log at path; *out is the caller's (tl_log_file_close), NULL on failure. Errors:
 * TL_EIO, TL_EFORMAT (empty, or no log), TL_ENOMEM. */
tl_status tl_log_read(tl_log_file **out, const char *path, tl_err *err);
void tl_log_file_close(tl_log_file *f); /* NULL is fine */
/* "XXH3-128"; "SHA-256" of a log of version 2. Logs of two hashes have nothing to compare. */
const char *tl_log_hash(const tl_log_file *f);
int tl_log_steps(const tl_log_file *f);
/* In ascending order of number; 0 .. tl_log_steps(f) - 1. Borrows. */
const tl_logged_step *tl_log_step_at(const tl_log_file *f, int i);
/* Lines that say nothing, and the first of them (from 1; 0: none). The last line, cut off, is not
 * counted. */
int64_t tl_log_damaged(const tl_log_file *f, int64_t *first);
/* The result of that key in a step, or NULL. */
const tl_log_result *tl_log_find(const tl_logged_step *s, uint64_t key);

/* How a result stands to the other log's. */
typedef enum {
    TL_LOG_SAME,
    TL_LOG_DIFFERS,
    TL_LOG_UNKNOWN, /* no hash to compare: not taken, or the batch is not axis 0 and the splits
                       differ */
    TL_LOG_MISSING, /* the other log has no such result */
    TL_LOG_OTHER    /* the other program does something else there */
} tl_log_verdict;

/* One step of two logs, result by result. */
typedef struct {
    const tl_logged_step *a, *b;
    tl_log_verdict *of_a;      /* one for each result of a */
    int same, differ, unknown; /* unknown: of those that at least one log has a hash of */
    int fused;      /* without a record in the one that ran compiled, and with one in the other */
    int first;      /* in a: the first that differs; -1: none */
    uint64_t other; /* where the programs part: one log has another op there, a parameter of
                     * another shape or, where both should have all, nothing; 0: they do not */
} tl_log_comparison;

/* Compares two steps; free with tl_log_comparison_free. TL_ENOMEM. */
tl_status tl_log_compare(tl_log_comparison *c, const tl_logged_step *a, const tl_logged_step *b);
void tl_log_comparison_free(tl_log_comparison *c);

/* Two logs, and how far they have been compared. */
typedef struct {
    const char *path[2]; /* values that were kept are looked for beside them */
    tl_log_file *file[2];
    int64_t agreed, agreed_whole; /* the last step that agreed, and with all its results; 0: none */
} tl_log_pair;

/* Prints how the two steps of c differ: the first op, its inputs, the path that led there, how far
 * it spread, the values if both logs kept them; or that the programs are not the same. Nothing if
 * they do not differ. */
void tl_log_report(FILE *f, const tl_log_pair *p, const tl_log_comparison *c);

/* Prints text that files may have had a say in: control characters, and what is no UTF-8, as %XX.
 */
void tl_log_print(FILE *f, const char *text);

#endif
