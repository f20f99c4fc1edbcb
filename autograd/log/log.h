/* log.h: what a run computed, written down, so that two runs can be compared. Public.
 *
 * A log holds, for every optimizer step, each op in canonical order (NUMERICS 10.1) - forward,
 * backward and the update - with the shape and the SHA-256 of each result's bytes
 * (tensor/files/bytes.h: little-endian, all NaNs alike), and the place of the call in the source
 * beside it. build/tally-diff A B names the first op in which two differ.
 *
 * A step may come in micro-batches. A result is hashed as its parts laid one after the other along
 * axis 0, and the last part by itself: the first is what a batched value is compared by, the second
 * what a value is compared by that does not grow with the batch (a loss that continues, a mask).
 * Gradients of parameters are those that the step ended with. So the split, like threads and vector
 * levels, changes nothing that is compared. Parts are joined where the same program comes again
 * after a reset of the tape; two backwards between two resets are two passes.
 *
 * A graph (tl_compile, or tl_trace after tl_log_open) writes the lines of the program that it was
 * traced from, with the bytes of what its run has in memory: a compiled run's log against a called
 * one's shows where they part. What it fused, merged or replaced has no record.
 *
 * Not logged: views (they have no bytes of their own), ops that no backward and no tl_log_reached
 * covers, values that were changed in place before backward, and graphs of several optimizer steps.
 * Logging reads; it changes no bit of the run. */
#ifndef TL_LOG_H
#define TL_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "autograd/handle.h"
#include "tensor/status.h"
TL_BEGIN

typedef struct {
    /* all results of every so many steps (and of the first); 0, 1: of each. In the other steps only
     * 0-d results: losses, norms, rates */
    int64_t every;
    int64_t keep; /* the values of this step are written, too: PATH.stepN.safetensors; 0: of none */
    int64_t first; /* number of the next step; 0: 1. A resumed run says where it stands */
    bool append;   /* add to a log that is there, as a resumed run does; else it is replaced */
} tl_log_options;

/* Logs what tape t computes from now on, to the file at path. Errors, on the tape as well: TL_EIO
 * (path, reason), TL_EUSAGE (t has a log, or a graph is being traced), TL_EDOMAIN (an option below
 * 0), TL_ENOMEM. tl_log_open(t, "run.log", .every = 50) */
#define tl_log_open(t, path, ...) \
    tl_log_open_at(TL_AT(t), path, TL_MAKE(tl_log_options){__VA_ARGS__})
tl_status tl_log_open_at(tl_at at, const char *path, tl_log_options o);

/* Ends a step of the log (it is tl_update_end, observer.h). tl_step does it; a program that updates
 * parameters by itself calls it when the gradients are whole, before it clears them. */
void tl_log_step(tl_tape *t);
/* Logs what led to y: for what no tl_backward reaches - decoding, evaluation, the gradients that
 * tl_gradients gave. y of t, while its tape stands; a stale handle, or one in a trace, is let
 * pass. */
void tl_log_reached(tl_tape *t, tl_tensor y);

/* Calls a value of the tape by a name: data that is not a parameter (a learning rate, the ids of a
 * batch), a norm. name: borrowed until the tape is freed. A stale handle is let pass; TL_ENOMEM is
 * recorded on the tape. */
void tl_log_name(tl_tape *t, tl_tensor x, const char *name);

/* What stopped the log, or "". A log that cannot be written (disk full) stops; the run goes on. */
const char *tl_log_error(const tl_tape *t);

/* Ends the log; a step that has begun is dropped. What stopped it before is reported here:
 * returned, and recorded on the tape unless that has an error. TL_OK without a log. Freeing the
 * tape ends its log, too, but has nobody to tell. */
#define tl_log_close(t) tl_log_close_at(TL_AT(t))
tl_status tl_log_close_at(tl_at at);

/* The file of the values kept of a step, in a buffer of n bytes; returns buf, NULL if it does not
 * fit: another's name would be cut to that of the log. */
enum { TL_LOG_PATH = 4096 };
char *tl_log_values_path(char *buf, size_t n, const char *path, int64_t step);
TL_END
#endif
