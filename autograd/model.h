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
uint64_t tl_model_seed(const tl_model *m);        /* the seed in force */
void tl_model_reseed(tl_model *m, uint64_t seed); /* for later draws, until a checkpoint is read */

/* How a new parameter is filled: keyed by the model's seed and its name, so the order in which
 * parameters are made does not matter. Default: zeros, or a layer's own. */
typedef enum {
    TL_INIT_DEFAULT,
    TL_INIT_ZEROS,
    TL_INIT_ONES,
    TL_INIT_UNIFORM, /* in [-scale, scale), then rounded to the dtype */
    TL_INIT_NORMAL   /* of standard deviation scale */
} tl_init_kind;
typedef struct {
    tl_init_kind kind;
    double scale; /* of uniform and normal ones: above 0 */
} tl_init;

/* Bytes of a tensor's name, with its NUL. A parameter's limit leaves room for the buffers that an
 * optimizer names after it ("adamw.m.NAME"). */
enum { TL_NAME_MAX = 192, TL_PARAM_NAME_MAX = 180 };

/* The parameter of that name, made and filled at the first call. TL_ESHAPE, TL_EDTYPE: it has
 * another shape or dtype, or dtype is not a float. TL_ENAME: no file can hold the name (empty, too
 * long, not UTF-8, "__metadata__"); a buffer has it; or, in this recording, another layer looked it
 * up, or the same one called at another line, and neither is shared (.shared = true). At the same
 * line (a loop over time) it is used again. Outside layers and under TL_NO_GRAD any code may. */
#define tl_param(t, m, name, dtype, shape, ...) \
    tl_param_at(TL_AT(t), m, name, dtype, shape, TL_MAKE(tl_init){__VA_ARGS__})
tl_tensor tl_param_at(tl_at at, tl_model *m, const char *name, tl_dtype dtype, tl_shape shape,
                      tl_init init);
/* A named tensor that is saved but not trained (a cache, optimizer state). */
#define tl_buffer(t, m, name, dtype, shape) tl_buffer_at(TL_AT(t), m, name, dtype, shape)
tl_tensor tl_buffer_at(tl_at at, tl_model *m, const char *name, tl_dtype dtype, tl_shape shape);

/* Named tensors in order of name (by bytes), 0 .. tl_model_count(m) - 1. */
typedef struct {
    const char *name;
    tl_tensor tensor;
    tl_array array;       /* borrows the storage */
    bool param;           /* false: a buffer */
    bool frozen, changed; /* a parameter that is not trained now; written since it was made */
} tl_named;
int tl_model_count(tl_model *m);
tl_named tl_model_at(tl_model *m, int i);
tl_tensor tl_model_find(tl_model *m, const char *name); /* the zero handle if unknown */
int64_t tl_model_parameters(tl_model *m);               /* elements of all parameters */

/* Freezes the parameters whose names begin with prefix, or trains them again, and returns how many
 * there are. A parameter made later follows the last call that covers it. A step drops the gradient
 * of one that is frozen by then. tl_backward: TL_ENAME if none has the prefix (false takes it
 * back), TL_EUSAGE if one was used before it was thawed. */
int tl_model_freeze(tl_model *m, const char *prefix, bool frozen);

/* All parameters, or those of names like "*.lora_*" (TL_ENAME: none has such a name). */
typedef struct {
    const char *only;
} tl_part;
/* tl_save writes them to a safetensors file, whole or not at all, with the float buffers NAME.x of
 * layers that have a parameter NAME.y: BatchNorm's statistics, but no state of an optimizer or a
 * loader. tl_load reads such a file, which must hold just these: shapes and dtypes must agree; on
 * an error the model is as it was. A state_dict of PyTorch with the same names makes such a file
 * (save_file in safetensors.torch); its BatchNorm's .num_batches_tracked is ignored. */
#define tl_save(m, path, ...) tl_save_with(m, path, TL_MAKE(tl_part){__VA_ARGS__})
tl_status tl_save_with(tl_model *m, const char *path, tl_part part);
#define tl_load(m, path, ...) tl_load_with(m, path, TL_MAKE(tl_part){__VA_ARGS__})
tl_status tl_load_with(tl_model *m, const char *path, tl_part part);
/* SHA-256, in hex, over every parameter in order of name: name, dtype, shape, bytes. */
tl_status tl_model_sha256(tl_model *m, char hex[65]);
TL_END
#endif
