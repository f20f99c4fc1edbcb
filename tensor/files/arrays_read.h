/* arrays_read.h: what files of arrays share, in each format. Private to tensor/files/. */
#ifndef TL_ARRAYS_READ_H
#define TL_ARRAYS_READ_H

#include "tensor/files/arrays.h"

typedef struct {
    char *name;
    tl_array array;
    void *own; /* a block that array.data lies in; NULL: that is the file's bytes */
} tl_arrays_entry;

struct tl_arrays {
    tl_arrays_entry *e;
    int n, room;
    unsigned char *bytes;
    size_t size;
    bool mapped;
    tl_dtype as;
    uint64_t most, taken; /* bytes of blocks other than the file's own; most 0: any */
    const char *path;     /* while it is opened */
    tl_err *err;
};

/* An array as it lies in a file. */
typedef struct {
    char kind; /* f i u b */
    int size;  /* of an element */
    bool big, fortran;
    tl_shape shape;
    const unsigned char *data;
    size_t bytes; /* that there are */
} tl_arrays_raw;

/* TL_EFORMAT: the file is at fault. */
tl_status tl_arrays_bad(const tl_arrays *f, const char *fmt, ...) TL_PRINTF(2, 3);
/* Text of a file in a message: in quotes, or, where it is empty, what `none` says of it. */
enum { TL_QUOTED = 33 };
const char *tl_arrays_quoted(char buf[TL_QUOTED], const char *s, size_t n, const char *none);
/* Counts a block of an array, before it is asked for; TL_EFORMAT if .most has no room for it. */
tl_status tl_arrays_take(tl_arrays *f, const char *who, uint64_t bytes);
/* A whole number of so many bytes. */
uint64_t tl_arrays_bits(const unsigned char *p, int size, bool big);
/* An empty entry at the end, named; closing frees it. */
tl_status tl_arrays_add(tl_arrays *f, const char *name, size_t length, tl_arrays_entry **out);
/* The same with those elements. */
tl_status tl_arrays_add_raw(tl_arrays *f, const char *name, size_t length, const tl_arrays_raw *r);

/* An error, with that status, if two of n names are alike. */
tl_status tl_arrays_check_twice(const char *path, const char *const *names, int n, tl_status as,
                                tl_err *err);

/* Each format's arrays from its bytes; behind CSV's there is a NUL. */
tl_status tl_npy_read(tl_arrays *f, const char *name, size_t length, const unsigned char *b,
                      size_t n);
tl_status tl_npz_read(tl_arrays *f, const unsigned char *b, size_t n);
tl_status tl_csv_read(tl_arrays *f, const char *p, size_t n);

#endif
