/* safetensors.h: named arrays in a file, strict in what it reads, with one spelling of what it
 * writes. Public.
 *
 * The format: 8 bytes of header length n (little-endian), n bytes of JSON, then the data, which the
 * tensors cover without hole or overlap:
 *
 *   {"__metadata__":{"key":"value"},
 *    "NAME":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}, ...}
 *
 * Written: "__metadata__" first, if there is any; its keys, the tensors and their data in order of
 * the bytes of their names; no space but the padding that makes n a multiple of 8; elements as
 * tensor/files/bytes.h defines them. So equal contents give equal files. A file is replaced whole
 * or not at all (tensor/files/file.h).
 *
 * Read: the whole file is checked before anything is handed out. Refused, with the numbers: a
 * length that does not fit the file or exceeds the limit, a header that does not start with '{' or
 * is followed by more than spaces, invalid JSON or UTF-8, duplicate or unknown keys, numbers that
 * are not integers >= 0, unknown dtypes, more than 8 dims, sizes that overflow, offsets that leave
 * the data, disagree with shape and dtype, overlap or leave holes, BOOL bytes other than 0 and 1.
 *
 * Sealed: the metadata "tally.sha256" is the SHA-256 of the whole file, computed with 64 zeros for
 * its own digits. If a file has it, it is checked.
 *
 * Dtypes: F64 F32 F16 BF16 I64 BOOL. Source: github.com/huggingface/safetensors, "Format". */
#ifndef TL_SAFETENSORS_H
#define TL_SAFETENSORS_H

#include "tensor/array.h"
TL_BEGIN

#define TL_ST_METADATA "__metadata__" /* no tensor may have this name */
#define TL_ST_SEAL "tally.sha256"     /* the key of a file's digest in its metadata */
enum { TL_ST_HEADER_MAX = 100000000, TL_ST_HEADER_LIMIT = 16 << 20 };

/* Sets the process's limit of bytes beyond which headers are neither read nor written: 16 MB by
 * default, at most TL_ST_HEADER_MAX, the format's own. Returns the limit before; 0 only asks.
 * Reading takes at most 20 bytes of memory for each byte of a header. */
size_t tl_st_header_limit(size_t bytes);

typedef struct {
    const char *name;
    tl_array array;
} tl_st_entry;

typedef struct {
    const char *key, *value;
} tl_st_meta;

/* Writes n tensors, of any strides and in any order, and n_meta pairs of metadata. The value of the
 * key TL_ST_SEAL is computed. TL_ENAME (a name twice, reserved, or not UTF-8), TL_ESHAPE,
 * TL_EDTYPE, TL_EUSAGE (an array without data), TL_EDOMAIN (a header beyond the limit), TL_EIO. On
 * failure the old file, if any, is as it was. */
tl_status tl_st_write(const char *path, const tl_st_entry *e, int n, const tl_st_meta *meta,
                      int n_meta, tl_err *err);

/* Whether a tensor of that name can be written: TL_ENAME if it is NULL, reserved, or not UTF-8. */
tl_status tl_st_name_check(const char *name, tl_err *err);

/* A file read whole into memory, in host byte order, every tensor aligned for its dtype. What the
 * functions below return borrows from it. */
typedef struct tl_st_file tl_st_file;

/* Reads and checks a file into *out, for tl_st_close; NULL on failure. TL_EFORMAT (with path,
 * tensor and numbers; with both digests if they differ), TL_EIO. */
tl_status tl_st_open(tl_st_file **out, const char *path, tl_err *err);
/* The same from n bytes in memory, copied; name stands for the path in messages. */
tl_status tl_st_open_memory(tl_st_file **out, const void *bytes, size_t n, const char *name,
                            tl_err *err);
void tl_st_close(tl_st_file *f); /* NULL is fine */

/* Tensors in order of the bytes of their names, 0 .. tl_st_count(f) - 1, contiguous; name NULL when
 * out of range. */
int tl_st_count(const tl_st_file *f);
tl_st_entry tl_st_at(const tl_st_file *f, int i);
int tl_st_find(const tl_st_file *f, const char *name); /* index of a name, or -1 */
/* Copies tensor i into dst, of any strides. TL_EINDEX; TL_EDTYPE, TL_ESHAPE: dst has others. */
tl_status tl_st_read(const tl_st_file *f, int i, const tl_array *dst, tl_err *err);

/* Metadata: the value of a key, or NULL; the count of pairs; and these in order of the bytes of
 * their keys, key NULL when out of range. */
const char *tl_st_meta_get(const tl_st_file *f, const char *key);
int tl_st_meta_count(const tl_st_file *f);
tl_st_meta tl_st_meta_at(const tl_st_file *f, int i);
TL_END
#endif
