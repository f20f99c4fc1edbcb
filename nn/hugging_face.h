/* hugging_face.h: config.json of a folder of transformers. Private to nn/. */
#ifndef TL_HUGGING_FACE_H
#define TL_HUGGING_FACE_H

#include <jansson.h>

#include "nn/models.h"

enum { TL_CONFIG_MAX = 1 << 20 }; /* bytes */

/* A JSON object from a file of at most so many bytes, for json_decref. */
tl_status tl_hf_json(json_t **out, const char *path, size_t most, tl_err *err);
/* What it says of a decoder; path stands in messages. */
tl_status tl_hf_config(const json_t *j, tl_decoder_config *c, const char *path, tl_err *err);
/* The other way round; what a config of zeros means is said. NULL without memory. */
json_t *tl_hf_config_json(tl_decoder_config c, const char *dtype);

#endif
