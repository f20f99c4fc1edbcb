/* model_map.h: which tensor of a file is which parameter. Private to nn/. */
#ifndef TL_MODEL_MAP_H
#define TL_MODEL_MAP_H

#include "nn/models.h"

/* TL_TRANSPOSED: rows are inputs there (GPT-2's Conv1D). TL_TURNED: rows of a head in the order of
 * the rotary pairing. */
typedef enum { TL_AS_IT_IS, TL_TRANSPOSED, TL_TURNED } tl_map_how;
typedef struct {
    char theirs[TL_NAME_MAX], ours[TL_NAME_MAX];
    tl_shape shape; /* ours */
    tl_map_how how;
    tl_array array; /* a borrowed array of that shape: what to load or to save */
} tl_map_entry;

enum { TL_MAP_LAYERS_MAX = 4096 };
/* What every call here checks first; the error is m's. `who` is the function as the user knows it.
 */
tl_status tl_map_begin(tl_model *m, const char *path, const tl_decoder_config *c, tl_model_files o,
                       const char *who);
/* TL_EDOMAIN: the config's numbers do not fit one another; `from` stands before the message. */
tl_status tl_map_check(const tl_decoder_config *c, const char *from, tl_err *err);
/* Every parameter of the decoder, in llm.c's order: kind by kind, layer by layer. For tl_free_raw.
 * TL_EDOMAIN as above; TL_EFORMAT: `bytes` of a file are fewer than its layers have elements, which
 * is found before there is memory for their names. */
tl_status tl_map_new(tl_map_entry **out, int *n, const tl_decoder_config *c, int64_t bytes,
                     const char *from, tl_err *err);
/* Loading: makes the parameters of the model, in dtype d, and writes them. */
tl_status tl_map_take(tl_model *m, const tl_map_entry *e, int n, tl_dtype d, tl_err *err);
/* Saving: .array is each parameter as the model has it. */
tl_status tl_map_give(tl_model *m, tl_map_entry *e, int n, tl_err *err);
/* dst, contiguous, of any float dtype and src of any strides: same shape, each element rounded
 * once.
 */
void tl_map_convert(const tl_array *dst, const tl_array *src);

#endif
