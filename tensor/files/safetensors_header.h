/* safetensors_header.h: a header, parsed and checked; safetensors.c reads the data behind it. Also
 * files that are written but not yet in their place. For all rooms. */
#ifndef TL_SAFETENSORS_HEADER_H
#define TL_SAFETENSORS_HEADER_H

#include "tensor/files/file.h"
#include "tensor/files/safetensors.h"

typedef struct {
    const char *name; /* in the header's text */
    tl_dtype dtype;
    tl_shape shape;
    uint64_t begin, end; /* bytes of the data, end past the last */
    void *data;          /* filled in by the reader */
} tl_st_tensor;

typedef struct {
    char *text;            /* a copy of the header, which holds every name and value */
    tl_st_tensor *tensors; /* in order of offset when parsed */
    tl_st_meta *meta;      /* in order of key */
    int n, cap, n_meta, cap_meta;
} tl_st_header;

/* Parses n bytes of header for data of data_bytes bytes; path is for messages. On
 * success the tensors cover the data exactly, in order. Fails with TL_EFORMAT or
 * TL_ENOMEM, and then h is empty. */
tl_status tl_st_header_parse(tl_st_header *h, const char *header, size_t n, uint64_t data_bytes,
                             const char *path, tl_err *err);
void tl_st_header_free(tl_st_header *h);

/* Does what tl_st_write does before the writer's commit; *out is NULL on failure. */
tl_status tl_st_begin(tl_writer **out, const char *path, const tl_st_entry *e, int n,
                      const tl_st_meta *meta, int n_meta, tl_err *err);

/* Hex digits of the seal, a file's SHA-256 in its own metadata. They are hashed as zeros.
 */
enum { TL_ST_DIGITS = 64 };

#endif
