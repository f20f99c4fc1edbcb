/* array.h: dtypes, shapes and strided arrays - the raw material of kernels. Public.
 *
 * A tl_array describes memory that someone else owns. It is plain data, copied by value; nothing
 * here allocates. Strides count elements, may be zero (expanded) or negative. A 0-d array has one
 * element. */
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
    TL_DTYPE_DEFAULT, /* 0, not said: an option's default; no array has it */
#define TL_DTYPE_ENUM(name, text, bytes, flt) TL_##name,
    TL_DTYPE_LIST(TL_DTYPE_ENUM)
#undef TL_DTYPE_ENUM
        TL_DTYPE_COUNT
} tl_dtype;

const char *tl_dtype_name(tl_dtype d); /* "F32" */
size_t tl_dtype_size(tl_dtype d);      /* bytes of one element; 0: no array can have it */
bool tl_dtype_is_float(tl_dtype d);
tl_dtype tl_dtype_compute(tl_dtype d); /* f64 for f64; f32 for f32, f16, bf16; else d itself */

/* A list of up to 8 sizes. Where one enters, its ndim is checked; the functions below count on
 * arrays that are sound, and take another ndim of a shape for the nearest possible. TL_DIMS(2, 3)
 * writes one down; TL_SCALAR is 0-d. */
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

typedef struct {
    tl_dtype dtype;
    int ndim;
    int64_t dim[TL_MAX_DIMS];
    int64_t stride[TL_MAX_DIMS]; /* in elements */
    void *data;                  /* element [0,...,0]; NULL in a trace */
} tl_array;

/* Checks ndim, sizes >= 0, and that elements and bytes fit in int64. */
tl_status tl_shape_check(const tl_shape *s, tl_dtype d, tl_err *err);

/* A contiguous array of that shape over data (borrowed; may be NULL). */
tl_array tl_array_make(tl_dtype d, const tl_shape *s, void *data);
tl_shape tl_array_shape(const tl_array *a);
int64_t tl_array_count(const tl_array *a); /* elements; 1 for 0-d */
int64_t tl_shape_count(const tl_shape *s);
bool tl_array_same_shape(const tl_array *a, const tl_array *b);
bool tl_shape_equal(const tl_shape *a, const tl_shape *b);
bool tl_array_contiguous(const tl_array *a);        /* row-major, no gaps */
void tl_array_set_contiguous(tl_array *a);          /* strides from dims */
void *tl_array_at(const tl_array *a, int64_t flat); /* element by row-major index */

/* The element of dtype d at p as a double (exact but for I64), and a double rounded once into it;
 * TRUE is 1. The same by row-major index. */
double tl_element_get(tl_dtype d, const void *p);
void tl_element_put(tl_dtype d, void *p, double x);
double tl_array_get(const tl_array *a, int64_t flat);
void tl_array_put(const tl_array *a, int64_t flat, double x);

/* "[2, 3]" written into buf (at least TL_SHAPE_TEXT bytes); returns buf. */
enum { TL_SHAPE_TEXT = 192 };
char *tl_shape_text(char *buf, const tl_shape *s);
char *tl_array_shape_text(char *buf, const tl_array *a);

/* The shape that a and b broadcast to (sizes equal or 1, aligned at the last dim), or TL_ESHAPE
 * with both shapes in the message. who names the caller. */
tl_status tl_shape_broadcast(tl_shape *out, const tl_array *a, const tl_array *b, tl_err *err);

/* a seen with shape s by zero strides; a must broadcast to s. */
tl_array tl_array_expand(const tl_array *a, const tl_shape *s);

/* a with its dims merged where strides allow, most compact form first to last; arrays of equal dims
 * collapse together so that one loop nest serves all. n arrays; on return all share the (smaller)
 * ndim. */
void tl_array_collapse(tl_array *arrays, int n);

/* a seen with shape s without a copy; false where strides forbid it. Counts must agree. */
bool tl_array_reshape_view(const tl_array *a, const tl_shape *s, tl_array *out);

/* Copies src to dst element by element: same shape, same dtype, any strides. The arrays must not
 * overlap. */
void tl_array_copy(const tl_array *dst, const tl_array *src);

/* What memory comes from: "jemalloc", or "aligned_alloc" where the process has no jemalloc. */
const char *tl_allocator(void);
/* Bytes now in use, highest since the tape's last reset, blocks alive, what jemalloc holds for them
 * from the operating system (0 without jemalloc), and how often a block was not at hand and had to
 * be asked for. */
typedef struct {
    size_t used, peak, blocks, mapped, asked;
} tl_memory_stats_t;
TL_END
#endif
