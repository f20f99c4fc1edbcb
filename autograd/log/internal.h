/* internal.h: the inside of a tape's log. Private to autograd/. Each file calls those before it.
 *
 * A log has one entry for each result of the step. An entry is found by its key, which says where
 * in the canonical order the result stands; the micro-batches of a step meet in it.
 *
 * A trace has a log of its own, which writes nothing: it finds out which key each value has in the
 * called program, and its entries describe the results without their bytes (graph/record.c). */
#ifndef TL_LOG_INTERNAL_H
#define TL_LOG_INTERNAL_H

#include <stdio.h>

#include "autograd/internal.h"
#include "autograd/log/log.h"
#include "autograd/log/key.h"
#include "tensor/files/hash.h"

/* Text, inputs, rows and the hash lie in memory of the step. */
typedef struct {
    uint64_t key;
    const char *op;           /* static; "param", "buffer", "data", "state" for results of no op */
    bool update;              /* changes the parameter `name` */
    const char *name, *attrs; /* "" if there are none */
    const char *file;
    int line;
    unsigned mode;
    tl_dtype dtype;
    const uint64_t *in; /* keys of the inputs, 0: not logged */
    int n_in;
    tl_tensor from;      /* of a leaf in a trace: the tensor whose bytes it has */
    uint64_t origin;     /* of a leaf in a trace: the number by which its recorder knows it */
    tl_tensor leaf;      /* of an accumulator: the leaf whose gradient it holds */
    int use;             /* of an accumulator: which use of the leaf; -1: no accumulator */
    tl_shape shape;      /* of the first part */
    int64_t *rows;       /* axis 0 of each part */
    int parts;           /* how many have been taken */
    bool mixed;          /* parts differ in more than axis 0 */
    bool alike;          /* all parts so far have the same bytes */
    tl_fingerprint *all; /* of all parts so far; NULL: there are none */
    unsigned char last[TL_FINGERPRINT_BYTES]; /* of the last part, if there are two */
    unsigned char scalar[8];                  /* of a 0-d result: the last part itself */
    unsigned char *kept; /* the parts' own bytes, if the step is kept; kept_bytes of them */
    size_t kept_bytes;
} tl_log_entry;

/* A value whose bytes an entry has yet to take. */
typedef struct {
    uint32_t entry;
    tl_array a;
    tl_storage *st; /* retained */
} tl_log_job;

/* One backward of the step. Micro-batches of one program share it. */
typedef struct {
    uint64_t program;    /* hash of its ops and how they are joined */
    uint32_t generation; /* of the tape when the program was last seen */
    int count;           /* which of several such backwards between two resets of the tape */
} tl_log_pass;

typedef struct tl_run_log {
    tl_log_options o;
    char *path;
    FILE *f;
    tl_err failure; /* the error that stopped it */
    int64_t step;   /* being logged */
    bool begun;     /* a step has been written */
    bool compiled;  /* a graph has run in this step */
    tl_bump bump;   /* memory of the step */
    tl_log_entry *entry;
    uint32_t n;
    int cap;
    tl_key_map at;        /* key -> number of the entry */
    tl_key_map defined;   /* key -> hash of the definition that was written last */
    tl_key_map other_key; /* tensor that is no value of the tape -> its key in the current pass */
    tl_log_pass *pass;
    int n_passes, cap_passes;
    int now;              /* the current pass */
    uint32_t update_from; /* first node of the update; UINT32_MAX: none has begun */
    tl_log_job *job;
    int n_jobs, cap_jobs;
    size_t job_bytes;
    bool of_trace; /* it numbers the values of a trace and writes nothing */
    int updates;   /* in a trace: steps that its program takes */
} tl_run_log;

/* A log's record of a value of its tape. */
typedef struct {
    const char *name;
    uint64_t now;  /* its key in the current pass; 0: none yet */
    uint64_t key;  /* in a trace: of the called program's value that it is, kept when the trace is
                    * rewritten; 0: it is none */
    bool stand_in; /* in a trace: a replacement made it */
} tl_log_mark;

/* A log's data on a tape. */
typedef struct {
    tl_run_log *log;   /* NULL: values have names, and nothing is logged */
    tl_log_mark *mark; /* by value */
    uint32_t cap;
    uint32_t generation; /* of the tape when the marks were made */
} tl_log_side;

/* ---- marks.c: a tape's log, and its marks of the tape's values ---- */

/* n zeroed elements in memory of the step; NULL without memory, where the log stops. */
void *tl_log_room(tl_run_log *l, size_t n, size_t size);
/* The step is logged with all its results, and not only with the 0-d ones. */
bool tl_log_full(const tl_run_log *l);
/* The step is logged with results of that many dims. */
static inline bool tl_log_wants(const tl_run_log *l, int ndim)
{
    return ndim == 0 || tl_log_full(l);
}
/* The tape's log; NULL: it has none. */
tl_run_log *tl_log_of(const tl_tape *t);
/* Makes l (NULL: none) the tape's log from now on. */
tl_status tl_log_attach(tl_tape *t, tl_run_log *l);
/* The mark of a value; most values have an empty one. */
tl_log_mark tl_log_mark_of(const tl_tape *t, uint32_t value);
/* x of dst is what y of src was, and gets its mark. stand_in: a replacement made it. */
void tl_log_carry(tl_tape *dst, tl_tensor x, const tl_tape *src, tl_tensor y, bool stand_in);
/* The value that x shows, through views and detached copies. */
tl_tensor tl_log_resolve(const tl_tape *t, tl_tensor x);
/* The key in the current pass of the value that x shows; 0: none. */
uint64_t tl_log_key_of(const tl_tape *t, tl_tensor x);
void tl_log_set_key(tl_tape *t, tl_tensor x, uint64_t key);
void tl_log_forget_keys(tl_tape *t);
/* In a trace: makes the keys of values in the called program those in the current pass, for one
 * pass or, if that is below 0, for all; and back again. */
void tl_log_keys_in(tl_tape *t, int pass);
void tl_log_keys_out(tl_tape *t);

/* ---- entry.c: entries and their bytes ---- */

tl_log_entry *tl_log_entry_get(tl_run_log *l, uint64_t key, bool *made); /* NULL: stopped */
/* A copy of s in memory of the step; "" without memory, where the log stops. */
const char *tl_log_text(tl_run_log *l, const char *s);
/* Adds a's bytes to entry e as its next part. They are taken later, but before they change. */
void tl_log_take(tl_run_log *l, const tl_log_entry *e, const tl_array *a, tl_storage *st);
/* Takes all bytes that are waiting. */
void tl_log_settle(tl_run_log *l);
/* Adds output j of n to e as its next part, unless it is gone or was changed since. */
void tl_log_take_output(tl_tape *t, const tl_log_entry *e, const tl_node *n, int j);
/* Whether x lies in an accumulator, and in which: use *use of t->grad[*leaf]. */
bool tl_log_in_accumulator(const tl_tape *t, tl_tensor x, uint32_t *leaf, uint32_t *use);
/* Gives the outputs of n the keys from `key` on; or leaf x that key. logged: those that the step is
 * logged with get an entry, which takes their bytes. */
void tl_log_node(tl_tape *t, const tl_node *n, uint64_t key, bool logged);
void tl_log_leaf(tl_tape *t, tl_tensor x, uint64_t key, bool logged);
/* The entry of a leaf, which takes its bytes; NULL: stopped. */
tl_log_entry *tl_log_entry_of_leaf(tl_tape *t, uint64_t key, tl_tensor x);
/* Forgets the step. */
void tl_log_drop_step(tl_run_log *l);

/* ---- write.c: the text ---- */

void tl_log_write_step(tl_run_log *l);
void tl_log_write_header(tl_run_log *l);

/* ---- log.c ---- */

void tl_log_free(tl_run_log *l); /* NULL is fine */
/* Gives a trace a log of its own; TL_ENOMEM. */
tl_status tl_log_of_trace(tl_tape *t);
/* The step is complete: writes it, and begins the next one. */
void tl_log_end_step(tl_tape *t);

/* ---- walk.c: where in the canonical order results stand ---- */

/* Watches a tape with a log. */
extern const tl_observer tl_log_observer;
/* In a whole trace: gives keys to the forward results below the root y of its next backward. */
void tl_log_number_forward(tl_tape *t, tl_tensor y);
/* Gives keys to the results of an update. */
void tl_log_number_update(tl_tape *t);
/* The entries of accumulators take their bytes; own: those of the tape's leaves, else those of the
 * model's parameters. */
void tl_log_take_accumulators(tl_tape *t, bool own);
/* The pass of a program of that hash: the one it had before the last reset, or a new one; -1: the
 * log has stopped. */
int tl_log_pass_of(tl_tape *t, uint64_t program);

#endif
