/* arrays.h: arrays in files of other programs - .npy and .npz, IDX, CSV. Public.
 *
 * The first bytes say which it is: "\x93NUMPY" .npy, "PK\3\4" .npz, two zeros IDX, all else CSV. A
 * file is read whole or not at all; its claims are compared with its bytes before memory is taken.
 *
 *   .npy  versions 1 to 3. f8 f4 f2 become F64 F32 F16; i1 i2 i4 i8 u1 u2 u4 u8 I64 (a u8 beyond
 *         2^63 - 1 is refused); b1 BOOL; no others. Either byte order, C or Fortran order.
 *   .npz  numpy's savez and savez_compressed: NAME.npy, stored or deflated (1 to 1032), each CRC.
 *   IDX   the digit files' format: types 8 9 B C (1, 1, 2, 4 bytes) become I64, D F32, E F64.
 *   CSV   rows of numbers with commas between them, LF or CR LF at the end, as many in each; empty
 *         lines at the end and a first row without any number (names, perhaps in quotes) are left
 *         out. F64 (rows, columns), each rounded once (1e400 to inf), with a point in every locale.
 *
 * Source: numpy.lib.format; PKWARE's APPNOTE.TXT; LeCun's page of MNIST; RFC 4180. */
#ifndef TL_ARRAYS_H
#define TL_ARRAYS_H

#include "tensor/array.h"
TL_BEGIN

/* The arrays of one file, row-major. */
typedef struct tl_arrays tl_arrays;

typedef struct {
    tl_dtype as;   /* a float dtype that all numbers are rounded to; default: as above */
    bool map;      /* map it (no CSV): elements that lie there as the host has them are read when
                    * touched. If another process cuts the file short, this one ends */
    uint64_t most; /* limit of bytes for arrays besides the file's; beyond: TL_EFORMAT; 0: any */
} tl_arrays_options;

/* Opens a file into *out, for tl_arrays_close; NULL on failure. TL_EFORMAT with the path and the
 * byte, row or element; TL_EDTYPE: `as` is not a float; TL_EIO, TL_ENOMEM. */
#define tl_arrays_open(out, path, err, ...) \
    tl_arrays_open_with(out, path, err, TL_MAKE(tl_arrays_options){__VA_ARGS__})
tl_status tl_arrays_open_with(tl_arrays **out, const char *path, tl_err *err, tl_arrays_options o);
/* The same from n bytes in memory, copied; name stands for the path in messages. */
tl_status tl_arrays_open_memory(tl_arrays **out, const void *bytes, size_t n, const char *name,
                                tl_err *err, tl_arrays_options o);
void tl_arrays_close(tl_arrays *f); /* NULL is fine */

/* Array i, 0 .. tl_arrays_count(f) - 1 in the file's order, borrowed from f; data NULL when out of
 * range. Its name in an .npz without ".npy"; else "". */
int tl_arrays_count(const tl_arrays *f);
tl_array tl_arrays_at(const tl_arrays *f, int i);
const char *tl_arrays_name(const tl_arrays *f, int i);
int tl_arrays_find(const tl_arrays *f, const char *name); /* index of a name, or -1 */

/* Writes n arrays of any strides: .npz under those names, or (names NULL, n 1) .npy. BF16 becomes
 * f4. TL_ENAME (duplicate, empty, too long, not UTF-8), TL_EUSAGE, TL_EIO: the old file stays. */
tl_status tl_arrays_save(const char *path, const char *const *names, const tl_array *arrays, int n,
                         tl_err *err);
TL_END
#endif
