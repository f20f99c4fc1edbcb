/* internal.h: the inside of a tape's log. Private to autograd/.
 *
 * One entry a result and step. An entry is found by its key, which says where in the
 * canonical order it stands; micro-batches meet in it. */
#ifndef TL_LOG_INTERNAL_H
#define TL_LOG_INTERNAL_H

#include <stdio.h>

#include "autograd/internal.h"
#include "autograd/log/log.h"
#include "autograd/log/key.h"
#include "tensor/files/hash.h"

typedef struct {
    uint64_t key;
    const char *op;           /* static; "param", "buffer", "data" for leaves */
    bool update;              /* changes the parameter `name` */
    const char *name, *attrs; /* bump memory of the step; "" if none */
    const char *file;
    int line;
    unsigned mode;
    tl_dtype dtype;
    const uint64_t *in; /* keys of the inputs, 0: not logged */
    int n_in;
    tl_tensor from;  /* in a trace: the leaf that its bytes are of; none for an op's result; */
    uint64_t origin; /* and what its recorder knows that by */
    tl_tensor leaf;  /* an accumulator: of this leaf, */
    int use;         /* and this use of it; -1: an ordinary result */
    tl_shape shape;  /* of the first part */
    int64_t *rows;   /* axis 0 of each part */
    int parts, cap;
    bool mixed;          /* parts differ in more than axis 0 */
    bool alike;          /* so far all parts have the same bytes */
    tl_fingerprint *all; /* of the parts so far, in memory of the step; NULL: none */
    unsigned char first[TL_FINGERPRINT_BYTES], last[TL_FINGERPRINT_BYTES]; /* if there are two */
    unsigned char scalar[8]; /* of a 0-d result: the last part */
    unsigned char *kept;     /* the parts' bytes; kept_bytes of them */
    size_t kept_bytes;
} tl_log_entry;

/* A value whose bytes an entry has yet to take. */
typedef struct {
    uint32_t entry;
    tl_array a;
    tl_storage *st; /* retained */
} tl_log_job;

/* One backward of the step: micro-batches of the same program share one. */
typedef struct {
    uint64_t program;    /* its ops and how they are joined */
    uint32_t generation; /* of the tape, when it came last */
    int count;           /* which of several such between two resets */
} tl_log_pass;

typedef struct tl_run_log {
    tl_log_options o;
    char *path;
    FILE *f;
    tl_err failure; /* what stopped it */
    int64_t step;   /* being logged */
    bool begun;     /* a step has been written */
    tl_bump bump;   /* of the step */
    tl_log_entry *entry;
    uint32_t n, cap;
    tl_key_map at;      /* key -> entry */
    tl_key_map defined; /* key -> hash of the definition last written */
    tl_log_pass *pass;
    int n_passes, cap_passes;
    uint64_t *key_of; /* by value of the tape: its entry's key, 0: none yet */
    uint32_t cap_keys, key_generation;
    tl_key_map model_key; /* value of the model -> key in the pass under way */
    tl_log_job *job;
    int n_jobs, cap_jobs;
    size_t job_bytes;
    int now;              /* pass under way */
    uint32_t update_mark; /* first node of the update, plus 1; 0: none */
    bool of_trace;        /* it numbers the values of a trace; nothing is written */
    bool compiled;        /* a graph has run in this step */
    int updates;          /* in a trace: steps that its program takes */
    char *text;           /* being written */
    size_t text_n, text_cap;
} tl_run_log;

/* What a log knows of a value of its tape: the name that it was given; in a trace the key of the
 * value that the called program has here (0: none), which stays with it over all that happens to
 * the trace, and that a replacement gave it. */
typedef struct {
    const char *name;
    uint64_t key;
    bool stand_in;
} tl_log_mark;

/* What a log has on a tape, as its observer. */
typedef struct {
    tl_run_log *log; /* NULL: names only */
    tl_log_mark *mark;
    uint32_t cap, generation;
} tl_log_side;

/* The log of a trace writes nothing: it finds out which key each value has in the called program.
 * Its entries are what is known of the results, without bytes (graph/record.c). */

/* ---- log.c ---- */
/* A trace has one of its own from now on; TL_ENOMEM. */
tl_status tl_log_of_trace(tl_tape *t);
/* Records what stops the log, once. */
void tl_log_stop(tl_run_log *l, tl_status s, const char *fmt, ...) TL_PRINTF(3, 4);
/* All results of this step, or only the 0-d ones. */
bool tl_log_full(const tl_run_log *l);
/* NULL: it has none. */
tl_run_log *tl_log_of(const tl_tape *t);
tl_log_side *tl_log_side_of(const tl_tape *t);
tl_log_side *tl_log_side_make(tl_tape *t); /* NULL: no memory, an error of the tape */
/* l, or none, is the tape's log from now on. */
tl_status tl_log_attach(tl_tape *t, tl_run_log *l);

/* ---- entry.c: entries and their bytes ---- */
tl_log_entry *tl_log_entry_get(tl_run_log *l, uint64_t key, bool *made); /* NULL: stopped */
/* A copy of s in memory of the step; "" without memory. */
const char *tl_log_text(tl_run_log *l, const char *s);
/* The next part of entry e is a's bytes; taken later, but before they change. */
void tl_log_take(tl_run_log *l, const tl_log_entry *e, const tl_array *a, tl_storage *st);
/* Takes what is waiting. */
void tl_log_settle(tl_run_log *l);
/* st is about to change: what is waiting there is taken first. */
void tl_log_before_change(tl_tape *t, const tl_storage *st);
/* Forgets the step. */
void tl_log_drop_step(tl_run_log *l);

/* ---- walk.c, back.c, keys.c: where in the canonical order results stand ---- */
uint64_t tl_log_key_of(tl_tape *t, tl_tensor x);
void tl_log_set_key(tl_tape *t, uint32_t value, uint64_t key);
/* The mark of a value; nothing is known of most. NULL: no memory, an error of the
 * tape. */
tl_log_mark tl_log_mark_of(const tl_tape *t, uint32_t value);
tl_log_mark *tl_log_mark_make(tl_tape *t, uint32_t value);
/* x of dst is what y of src was: it has its mark. stand_in: a replacement gave it. */
void tl_log_carry(tl_tape *dst, tl_tensor x, const tl_tape *src, tl_tensor y, bool stand_in);
/* The value that x shows: through views and detached copies. */
tl_tensor tl_log_resolve(const tl_tape *t, tl_tensor x);
/* The entry of a node's output j; made and filled in from the node at its first part. */
tl_log_entry *tl_log_describe(tl_tape *t, uint64_t key, const tl_node *n, int j);
/* Output j of n is the next part of e, unless it is gone or was changed since. e may be NULL. */
void tl_log_take_value(tl_tape *t, const tl_log_entry *e, const tl_node *n, int j);
/* The entry of a leaf, which takes its bytes. */
tl_log_entry *tl_log_leaf(tl_tape *t, uint64_t key, tl_tensor x);
/* The entry of a tensor of the model that the op of entry `by` may have changed. */
void tl_log_state(tl_tape *t, uint64_t key, tl_tensor x, uint64_t by);
/* Backward is about to begin from y: everything below it is recorded and still there. */
void tl_log_forward(tl_tape *t, tl_tensor y);
/* A segment has been computed again. */
void tl_log_restored(tl_tape *t, uint32_t first, uint32_t end);
/* A vjp gave something, and it has been brought where it belongs. */
void tl_log_visit(tl_tape *t, const tl_given *g);
void tl_log_backward_end(tl_tape *t);
void tl_log_update_end(tl_tape *t);
/* Accumulators that entries of the step name take their bytes; own: those of the tape's leaves,
 * else the model's parameters'. */
void tl_log_take_accumulators(tl_tape *t, bool own);
/* The pass of a program of that hash: the one that it had before the last reset, or a new one; -1:
 * stopped. */
int tl_log_pass_of(tl_tape *t, uint64_t program);
/* All that the step has is there: it is written, and the next one begins. */
void tl_log_end_step(tl_tape *t);
/* In a trace: the values' keys from their marks, those of one pass or, if that is below 0, all; and
 * back. */
void tl_log_keys_in(tl_tape *t, int pass);
void tl_log_keys_out(tl_tape *t);
/* In a whole trace: the forward results below the root y of its next backward get their keys. */
void tl_log_number_forward(tl_tape *t, tl_tensor y);

/* ---- write.c ---- */
void tl_log_write_step(tl_tape *t);
void tl_log_write_header(tl_run_log *l);

void tl_log_write_values(tl_run_log *l);

#endif
