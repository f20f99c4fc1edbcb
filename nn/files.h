/* files.h: what the readers and writers of files share - messages, JSON, and the tables that say
 * which tensor of another program's file is which parameter. Private to nn/. */
#ifndef TL_NN_FILES_H
#define TL_NN_FILES_H

#include <jansson.h>

#include "nn/models.h"
#include "tensor/files/safetensors.h"

/* ---- model_file.c: what all files share ---- */

/* The file or folder that a call reads or writes, and where its errors go. */
typedef struct {
    const char *path;
    tl_err *err;
} tl_source;

/* tl_fail with "PATH: " before the message. */
tl_status tl_file_fail(const tl_source *file, tl_status s, const char *fmt, ...) TL_PRINTF(3, 4);
/* Returns s. On an error, the message of m's error then begins with `who`, the public function, if
 * it names none. */
tl_status tl_told_by(const char *who, tl_status s, tl_model *m);
/* Parses n bytes of JSON. *out is for json_decref. */
tl_status tl_source_json(json_t **out, const tl_source *file, const char *text, size_t n);
/* Reads a JSON object from the file, which may have at most `most` bytes. */
tl_status tl_source_object(json_t **out, const tl_source *file, size_t most);

/* The named tensor of a model; all zeros if there is none of that name. */
tl_named tl_model_named(tl_model *m, const char *name);
/* TL_ENAME: the model is empty, but the file is not. */
tl_status tl_source_early(const tl_source *file, const tl_st_file *f, bool empty);
/* TL_ESHAPE: the entry of the file has another shape or dtype than our array. */
tl_status tl_source_alike(const tl_source *file, const tl_st_entry *e, const tl_array *ours);

/* ---- hugging_face_config.c ---- */

/* TL_EFORMAT unless v, the value of that key, is missing, null, or of the kind needed (`is`). */
tl_status tl_of_kind(const json_t *v, bool is, const char *key, const char *needed,
                     const tl_source *file);
/* Reads a config. */
tl_status tl_hf_config(const json_t *j, tl_decoder_config *c, const tl_source *file);
/* Writes a config, with all defaults spelled out. NULL: no memory. */
json_t *tl_hf_config_json(tl_decoder_config c, const char *dtype);

/* ---- model_map.c ---- */

/* How a file lays out a tensor. TL_TRANSPOSED: its rows are inputs (GPT-2's Conv1D). TL_TURNED: the
 * rows of each head are in the order of the rotary pairing. */
typedef enum { TL_AS_IT_IS, TL_TRANSPOSED, TL_TURNED } tl_map_how;
typedef struct {
    char theirs[TL_NAME_MAX], ours[TL_NAME_MAX];
    tl_shape shape; /* ours */
    tl_map_how how;
    tl_array array; /* what to load or to save, of that shape; borrowed */
} tl_map_entry;
/* Every parameter of a decoder, in llm.c's order: kind by kind, layer by layer. */
typedef struct {
    tl_map_entry *e; /* for tl_free_raw */
    int n;
} tl_map;

/* The checks that every public function on such files makes first. The error is m's; `who` is the
 * name of the function, which may write several files (shards) or not. */
tl_status tl_map_begin(tl_model *m, const char *path, const tl_decoder_config *c, tl_model_files o,
                       const char *who, bool shards);
/* TL_EDOMAIN: the numbers of a scaling, or of a config, do not fit one another. */
tl_status tl_map_check_scaling(const tl_rotary_scaling *s, const tl_source *file);
tl_status tl_map_check(const tl_decoder_config *c, const tl_source *file);
/* Checks the config and lists its parameters. TL_EFORMAT if the layers have more elements than the
 * file has bytes, which is found before memory is taken for their names. */
tl_status tl_map_new(tl_map *out, const tl_decoder_config *c, int64_t bytes, const tl_source *file);
/* The dtype in which no number of the entries' arrays is rounded. */
tl_dtype tl_map_dtype(const tl_map *map);
/* Loading: makes the parameters of the model, in dtype d, and fills them from the arrays. */
tl_status tl_map_take(tl_model *m, const tl_map *map, tl_dtype d, tl_err *err);
/* Saving: sets the arrays to the parameters of the model. */
tl_status tl_map_give(tl_model *m, const tl_decoder_config *c, tl_map *map, tl_err *err);
/* Copies src, of any strides, to dst, which is contiguous; rounds each element once to dst's float
 * dtype. */
void tl_map_convert(const tl_array *dst, const tl_array *src);

#endif
