/* model.h: a model owns tensors by name - parameters, buffers, data. Public. */
#ifndef TL_MODEL_H
#define TL_MODEL_H

#include "autograd/handle.h"
#include "tensor/array.h"
TL_BEGIN

typedef struct {
    uint64_t seed; /* keys every random draw of the model */
} tl_model_options;

/* An empty model; NULL when out of memory. tl_model_new(.seed = 1) */
#define tl_model_new(...) tl_model_new_with(TL_MAKE(tl_model_options){__VA_ARGS__})
tl_model *tl_model_new_with(tl_model_options o);
uint64_t tl_model_seed(const tl_model *m);
/* Another seed for the draws to come (a checkpoint that is loaded brings its own). */
void tl_model_reseed(tl_model *m, uint64_t seed);

/* How a new parameter is filled; keyed by the model's seed and its name, so the order of creation
 * does not matter. */
typedef enum {
    TL_INIT_DEFAULT,
    TL_INIT_ZEROS,
    TL_INIT_ONES,
    TL_INIT_UNIFORM,
    TL_INIT_NORMAL
} tl_init_kind; /* default: zeros, or a layer's own */
typedef struct {
    tl_init_kind kind;
    double scale; /* uniform: in [-scale, scale); normal: standard deviation */
} tl_init;

/* Bytes of a tensor's name with its NUL; a parameter's leaves room for what is saved of it under
 * longer names ("grad.uses.NAME"). */
enum { TL_NAME_MAX = 192, TL_PARAM_NAME_MAX = 180 };

/* The parameter of that name: created and filled at the first call; later calls check shape and
 * dtype (TL_ESHAPE, TL_EDTYPE). TL_ENAME: a name that no file can hold - empty, too long, not
 * UTF-8, "__metadata__" - or a buffer's. Errors go to at.tape. What a layer looks up (inside
 * tl_place_push) is that layer's: for another, or the same called at another line, it is TL_ENAME
 * in the same recording, which ends with tl_tape_reset, unless either is shared (tl_share_push, a
 * layer's .shared). At the same line it is the layer used again, as in a loop over time. Under
 * TL_NO_GRAD nothing is trained, and anyone may. */
tl_tensor tl_param_at(tl_at at, tl_model *m, const char *name, tl_dtype dtype, tl_shape shape,
                      tl_init init);
#define tl_param(t, m, name, dtype, shape, ...) \
    tl_param_at(TL_AT(t), m, name, dtype, shape, TL_MAKE(tl_init){__VA_ARGS__})

/* A named tensor that is saved but not trained (a cache, optimizer state). */
tl_tensor tl_buffer_at(tl_at at, tl_model *m, const char *name, tl_dtype dtype, tl_shape shape);
#define tl_buffer(t, m, name, dtype, shape) tl_buffer_at(TL_AT(t), m, name, dtype, shape)
/* To undo what was half done: forgets the tensors that the model got since tl_model_mark. Handles
 * to them must not be used again. */
uint32_t tl_model_mark(tl_model *m);
void tl_model_rollback(tl_model *m, uint32_t mark);
/* A buffer with contents: when it is made, fill(ctx, data) writes its row-major elements. */
typedef tl_status tl_filler(void *ctx, void *data);
tl_tensor tl_buffer_filled_at(tl_at at, tl_model *m, const char *name, tl_dtype dtype,
                              tl_shape shape, tl_filler *fill, void *ctx);

/* Named tensors in order of name (bytes). Index 0 .. tl_model_count(m) - 1. */
typedef struct {
    const char *name; /* arena: the model's life */
    tl_tensor tensor;
    tl_array array; /* borrows the storage */
    bool param;     /* false: a buffer */
    bool frozen;    /* a parameter that is not trained now */
} tl_named;
int tl_model_count(tl_model *m);
tl_named tl_model_at(tl_model *m, int i);
tl_tensor tl_model_find(tl_model *m, const char *name); /* zero handle if unknown */

/* Marks parameters whose name begins with prefix as not trained (or trained again): those there
 * are, whose number it returns, and those to come, for which the last call that means them decides.
 * A prefix that no parameter has by the time of a tl_backward is TL_ENAME there. */
int tl_model_freeze(tl_model *m, const char *prefix, bool frozen);

/* To be called where something changes that a trace over m takes as fixed, as an optimizer does for
 * its groups: graphs traced before no longer fit, and tl_run traces again. */
void tl_model_changed(tl_model *m);

/* Writes all parameters (not buffers) as safetensors: whole or not at all. */
tl_status tl_save(tl_model *m, const char *path);
/* Reads a safetensors file into the model's parameters: names, shapes and dtypes must agree; on any
 * error the model is as it was. */
tl_status tl_load(tl_model *m, const char *path);

/* SHA-256 over every parameter in order of name: name, dtype, shape, bytes. */
tl_status tl_model_sha256(tl_model *m, char hex[65]);
int64_t tl_model_parameters(tl_model *m); /* scalars in all parameters */
TL_END
#endif
