/* array.h: dtypes, shapes and strided arrays. Public. */
#ifndef TL_ARRAY_H
#define TL_ARRAY_H

#include <stddef.h>
#include <stdint.h>

#include "tensor/status.h"
TL_BEGIN

enum { TL_MAX_DIMS = 8 };

/* name, safetensors spelling, bytes, is a floating type */
#define TL_DTYPE_LIST(X)  \
    X(F64, "F64", 8, 1)   \
    X(F32, "F32", 4, 1)   \
    X(F16, "F16", 2, 1)   \
    X(BF16, "BF16", 2, 1) \
    X(I64, "I64", 8, 0)   \
    X(BOOL, "BOOL", 1, 0)

typedef enum {
    TL_DTYPE_DEFAULT, /* 0, an option left out; no array has it */
#define TL_DTYPE_ENUM(name, text, bytes, flt) TL_##name,
    TL_DTYPE_LIST(TL_DTYPE_ENUM)
#undef TL_DTYPE_ENUM
        TL_DTYPE_COUNT
} tl_dtype;

const char *tl_dtype_name(tl_dtype d); /* "F32" */
size_t tl_dtype_size(tl_dtype d);      /* bytes of one element; 0 if no array has d */
bool tl_dtype_is_float(tl_dtype d);    /* f64, f32, f16, bf16 */
tl_dtype tl_dtype_compute(tl_dtype d); /* f64 for f64; f32 for f32, f16, bf16; else d itself */

/* A list of up to 8 sizes: TL_DIMS(2, 3); TL_SCALAR is 0-d. Ops check its ndim; the functions below
 * clamp one that is out of range. */
typedef struct {
    int ndim;
    int64_t dim[TL_MAX_DIMS];
} tl_shape;

#ifdef __cplusplus
#define TL_DIMS(...) tl_dims(__VA_ARGS__)
extern "C++" template <class... I> constexpr tl_shape tl_dims(I... size)
{
    return {int(sizeof...(size)), {int64_t(size)...}};
}
#else
#define TL_DIMS(...) \
    ((tl_shape){(int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), {__VA_ARGS__}})
#endif
#define TL_SCALAR (TL_MAKE(tl_shape){0, {0}})

/* Describes memory that someone else owns. Plain data. A 0-d array has one element. */
typedef struct tl_array {
    tl_dtype dtype;
    int ndim;
    int64_t dim[TL_MAX_DIMS];
    int64_t stride[TL_MAX_DIMS]; /* in elements; 0 where expanded, may be negative */
    void *data;                  /* element [0,...,0]; NULL in a trace */
} tl_array;

/* A contiguous array of that shape over data, which may be NULL. */
tl_array tl_array_make(tl_dtype d, const tl_shape *s, void *data);
tl_shape tl_array_shape(const tl_array *a);                     /* its dims */
int64_t tl_array_count(const tl_array *a);                      /* elements */
int64_t tl_shape_count(const tl_shape *s);                      /* of an array of that shape */
bool tl_array_same_shape(const tl_array *a, const tl_array *b); /* dims alone, not strides */
bool tl_shape_equal(const tl_shape *a, const tl_shape *b);      /* same ndim and sizes */
bool tl_array_contiguous(const tl_array *a);                    /* row-major, no gaps */
void *tl_array_at(const tl_array *a, int64_t flat);             /* element, row-major; if any */
double tl_array_get(const tl_array *a, int64_t flat); /* its value; TRUE is 1, I64 is rounded */
void tl_array_put(const tl_array *a, int64_t flat, double x); /* casts x by NUMERICS 1.8 */

/* Writes "[2, 3]" to buf, which has at least TL_SHAPE_TEXT bytes; returns buf. */
enum { TL_SHAPE_TEXT = 192 };
char *tl_shape_text(char *buf, const tl_shape *s);
char *tl_array_shape_text(char *buf, const tl_array *a); /* of the array's shape */
TL_END
#endif
