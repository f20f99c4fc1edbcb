/* arrays_read.h: what the formats of files of arrays share. Private to tensor/files/. */
#ifndef TL_ARRAYS_READ_H
#define TL_ARRAYS_READ_H

#include "tensor/files/arrays.h"

typedef struct {
    char *name;
    tl_array array;
    void *own; /* the block that array.data lies in; NULL: it lies in the file's bytes */
} tl_arrays_entry;

struct tl_arrays {
    tl_arrays_entry *e;
    int n, cap;
    char *bytes; /* of the whole file */
    size_t size;
    bool mapped;          /* `bytes` is a mapping; else a block with a NUL behind it */
    tl_dtype as;          /* the dtype asked for */
    uint64_t most, taken; /* bytes of arrays in blocks of their own: the limit, and now */
    const char *path;     /* for messages, while it is being opened */
    tl_err *err;          /* likewise */
};

/* An array as it lies in a file. */
typedef struct {
    char kind;    /* f i u b */
    int size;     /* bytes of an element */
    bool big;     /* the highest byte first */
    bool fortran; /* column-major */
    tl_shape shape;
    const unsigned char *data;
    size_t bytes; /* how many there are, whatever the shape says */
} tl_arrays_raw;

/* TL_EFORMAT: the file is at fault. */
tl_status tl_arrays_bad(const tl_arrays *f, const char *fmt, ...) TL_PRINTF(2, 3);
/* A file's text for a message: in quotes, or `none` if it is empty. */
enum { TL_QUOTED = 33 };
const char *tl_arrays_quoted(char buf[TL_QUOTED], const char *s, size_t n, const char *none);
/* Counts the bytes of an array before they are asked for; TL_EFORMAT beyond .most. */
tl_status tl_arrays_take(tl_arrays *f, const char *who, uint64_t bytes);
/* A zeroed block, for tl_free_raw; NULL, and TL_ENOMEM in f->err, when out of memory. */
void *tl_arrays_block(const tl_arrays *f, size_t bytes);
/* Adds an empty entry of that name at the end, which closing frees. */
tl_status tl_arrays_add(tl_arrays *f, const char *name, size_t length, tl_arrays_entry **out);
/* Adds an entry of that name with those elements. */
tl_status tl_arrays_add_raw(tl_arrays *f, const char *name, size_t length, const tl_arrays_raw *r);

/* Fails with status `as` if two of n items have the same name. Each item begins with a pointer to
 * its name. The items stay in their order. */
tl_status tl_arrays_check_twice(const char *path, const void *items, size_t size, int n,
                                tl_status as, tl_err *err);

/* Read a file's arrays from its bytes. A NUL follows those of CSV. */
tl_status tl_npy_read(tl_arrays *f, const char *name, size_t length, const unsigned char *b,
                      size_t n);
tl_status tl_npz_read(tl_arrays *f, const unsigned char *b, size_t n);
tl_status tl_csv_read(tl_arrays *f, const char *p, size_t n);

#endif
