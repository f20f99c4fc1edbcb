/* loader.h: batches of samples from arrays in memory. Public. */
#ifndef TL_LOADER_H
#define TL_LOADER_H

#include "autograd/model.h"
#include "autograd/tape.h"
#include "tensor/c_type.h"
TL_BEGIN

/* Samples are the indices of axis 0 of arrays in memory (tl_samples) or in a mapped file
 * (tl_arrays_open), which the caller keeps as long as the loader is used. Each epoch brings every
 * sample once, in its own order: a Fisher-Yates shuffle by the draws (epoch, i) of the stream
 * "loader.NAME" of the model's seed, as it was when the epoch began. The place in the epoch is a
 * buffer of the model, "loader.NAME" (epoch, samples handed out, number of samples, .batch), beside
 * "loading.NAME" (the options, the epoch's seed). A checkpoint saves them, and a resumed run goes
 * on with the next sample. tl_loader_new makes them: call tl_checkpoint_load after that. */

enum { TL_LOADER_MAX = 8 };
typedef struct {
    int64_t batch;  /* samples; must be given */
    bool in_order;  /* not shuffled */
    bool drop_last; /* an epoch ends with its last whole batch; default: the last may be short */
} tl_loader_options;
typedef struct {
    /* set by each call of tl_loader_next: */
    int64_t epoch;  /* from 0 */
    int64_t number; /* of the first sample, counted through all epochs; for draws (.sample) */
    int64_t size;   /* samples in the whole batch that these are part of */
    int64_t left;   /* samples of that batch yet to come; 0 after an error */
    /* the loader's own: */
    tl_model *model;
    char name[TL_NAME_MAX];
    tl_loader_options o;
    tl_array array[TL_LOADER_MAX];
    int n;
    int64_t samples, ordered;
    uint64_t seed;
    tl_tensor place, how, order;
} tl_loader;
/* Data as that dtype, row-major in that shape. If its C type or size do not fit, no loader takes
 * it. */
#define tl_samples(dtype, shape, data) tl_samples_as(dtype, shape, data, TL_C_DATA(data))
tl_array tl_samples_as(tl_dtype dtype, tl_shape shape, const void *data, tl_c_data c);
/* A loader of n arrays over the tape's model; call it once for each name. On an error, which goes
 * to t, it is all zeros. TL_ESHAPE: different lengths, too few bytes; TL_EDTYPE: data of a C type
 * that does not fit; TL_EUSAGE: no data or dims; TL_EDOMAIN: n, no .batch, no samples, fewer than a
 * batch with .drop_last; TL_ENAME: a name of more than 180 bytes. */
#define tl_loader_new(t, name, arrays, n, ...) \
    tl_loader_new_at(TL_AT(t), name, arrays, n, TL_MAKE(tl_loader_options){__VA_ARGS__})
tl_loader tl_loader_new_at(tl_at at, const char *name, const tl_array *arrays, int n,
                           tl_loader_options o);
/* The next samples, as tensors of t in in[0 .. n). Returns the number of samples, which is the size
 * of dim 0: at most `most`, a micro-batch, and no more than are left of a batch. 0 on an error,
 * which goes to t; TL_EFORMAT: a checkpoint has brought the place of other data, batches or
 * options. Within a batch, tl_checkpoint_save_tape saves the gradients of the samples before, too.
 */
#define tl_loader_next(t, l, most, in) tl_loader_next_at(TL_AT(t), l, most, in)
int64_t tl_loader_next_at(tl_at at, tl_loader *l, int64_t most, tl_tensor *in);
TL_END
#endif
