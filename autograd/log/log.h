/* log.h: writes down what a run computed, so that two runs can be compared. Public.
 *
 * For every optimizer step a log has each op in canonical order (NUMERICS 10.1) - forward,
 * backward, update - with the place of its call, and the shape and XXH3-128 of each result's bytes
 * (tensor/files/bytes.h: little-endian, all NaNs alike). build/tally-diff A B names the first op in
 * which two logs differ.
 *
 * A step may come in micro-batches. A result is hashed with its parts joined along axis 0, and its
 * last part by itself, for values that do not grow with the batch (a loss that continues, a mask).
 * Gradients of parameters are hashed at the end of the step. So the split, threads and vector
 * levels change nothing that is compared. Parts are joined when the same program comes again after
 * a reset of the tape; two backwards between two resets are two passes.
 *
 * A graph (tl_compile, or tl_trace after tl_log_open) writes the lines of the program it was traced
 * from, with the bytes that its run has in memory. Compared with the log of a called run, they show
 * where the two part. Results that the graph fused, merged or replaced have no record.
 *
 * Not logged: views (they have no bytes of their own), ops that no backward and no tl_log_reached
 * covers, values changed in place before backward. A run of a graph of several steps, or of one
 * with .put_off, stops the log (TL_EUSAGE). Logging changes no bit of the run. */
#ifndef TL_LOG_H
#define TL_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "autograd/handle.h"
#include "tensor/status.h"
TL_BEGIN

typedef struct {
    /* the first step and all multiples of this are logged with all results (0, 1: every step), the
     * others only with 0-d results: losses, norms, rates */
    int64_t every;
    int64_t keep;  /* the values of this step are written to PATH.stepN.safetensors; 0: none */
    int64_t first; /* the number of the next step, for a resumed run; 0: 1 */
    bool append;   /* add to an existing log, as a resumed run does; false: replace it */
} tl_log_options;

/* Logs what tape t computes from now on to the file at path. TL_EIO, TL_EUSAGE (t has a log, or is
 * tracing a graph), TL_EDOMAIN (an option below 0), TL_EFORMAT (.append to a file that is no log,
 * or one of another version). tl_log_open(t, "run.log", .every = 50) */
#define tl_log_open(t, path, ...) \
    tl_log_open_at(TL_AT(t), path, TL_MAKE(tl_log_options){__VA_ARGS__})
tl_status tl_log_open_at(tl_at at, const char *path, tl_log_options o);

/* Ends a step of the log. tl_step does it; a program that updates parameters by itself calls it
 * when the gradients are complete, before clearing them. (It is tl_update_end, observer.h.) */
void tl_log_step(tl_tape *t);
/* Logs the results that led to y where no tl_backward does: decoding, evaluation, tl_gradients.
 * Ignores a stale handle and one in a trace. */
void tl_log_reached(tl_tape *t, tl_tensor y);
/* Names a value of the tape that is no parameter: a learning rate, the ids of a batch, a norm.
 * Borrows name until the tape is freed; ignores a stale handle. */
void tl_log_name(tl_tape *t, tl_tensor x, const char *name);

/* The log's error, or "". A log that cannot be written (disk full) stops; the run goes on. */
const char *tl_log_error(const tl_tape *t);
/* Ends the log, dropping a step that has begun. Returns the error that stopped it before, which it
 * records on the tape, too; TL_OK without a log. Freeing the tape ends its log without a report. */
#define tl_log_close(t) tl_log_close_at(TL_AT(t))
tl_status tl_log_close_at(tl_at at);

/* The path of a step's kept values, for the log at path, in buf of n bytes; NULL: no room. */
enum { TL_LOG_PATH = 4096 };
char *tl_log_values_path(char *buf, size_t n, const char *path, int64_t step);
TL_END
#endif
