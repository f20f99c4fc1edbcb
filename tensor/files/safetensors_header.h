/* safetensors_header.h: what a header says, taken apart and checked; tensor/files/safetensors.c
 * puts the data behind it. And a file that is written, but not in its place yet. For all rooms. */
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
    int n, n_meta;
} tl_st_header;

/* Parses n bytes of header for data of data_bytes bytes; path is for messages. On
 * success the tensors cover the data exactly, in order. Fails with TL_EFORMAT or
 * TL_ENOMEM, and then h is empty. */
tl_status tl_st_header_parse(tl_st_header *h, const char *header, size_t n, uint64_t data_bytes,
                             const char *path, tl_err *err);
void tl_st_header_sort_by_name(tl_st_header *h);
/* For qsort of tensors, entries and metadata, each of which begins with its name. */
int tl_st_by_name(const void *a, const void *b);
void tl_st_header_free(tl_st_header *h);

/* tl_st_write up to the writer's commit; NULL on failure. */
tl_status tl_st_begin(tl_writer **out, const char *path, const tl_st_entry *e, int n,
                      const tl_st_meta *meta, int n_meta, tl_err *err);

/* The digest of a file in its own metadata. */
enum { TL_ST_DIGITS = 64 };

/* Where the digits stand in a header of n bytes; NULL: it has no seal, or one that is no SHA-256.
 */
char *tl_st_seal_digits(char *header, size_t n);
/* Sets them to zeros, as what is hashed has them. */
void tl_st_seal_clear(char *digits);

#endif
