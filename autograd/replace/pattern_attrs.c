/* pattern_attrs.c: attributes compared field by field, and as text. */
#include "autograd/replace/internal.h"

#include <inttypes.h>
#include <string.h>

static size_t field_size(tl_attr_kind k)
{
    switch (k) {
    case TL_ATTR_I64: return sizeof(int64_t);
    case TL_ATTR_INT: return sizeof(int);
    case TL_ATTR_F64: return sizeof(double);
    case TL_ATTR_BOOL: return sizeof(bool);
    case TL_ATTR_DTYPE: return sizeof(tl_dtype);
    default: return 0;
    }
}

double tl_attr_number(const tl_attr *f, const void *attrs)
{
    const char *p = (const char *)attrs + f->offset;
    switch (f->kind) {
    case TL_ATTR_F64: return *(const double *)(const void *)p;
    case TL_ATTR_I64: return (double)*(const int64_t *)(const void *)p;
    case TL_ATTR_INT: return *(const int *)(const void *)p;
    case TL_ATTR_BOOL: return *(const bool *)p;
    default: return 0;
    }
}

const char *tl_attr_text(char *buf, size_t cap, const tl_attr *f, const void *attrs)
{
    const char *p = (const char *)attrs + f->offset;
    char shape[TL_SHAPE_TEXT];
    if (f->kind == TL_ATTR_SHAPE)
        snprintf(buf, cap, "%s", tl_shape_text(shape, (const tl_shape *)(const void *)p));
    else if (f->kind == TL_ATTR_DTYPE)
        snprintf(buf, cap, "%s", tl_dtype_name(*(const tl_dtype *)(const void *)p));
    else if (f->kind == TL_ATTR_I64)
        snprintf(buf, cap, "%" PRId64, *(const int64_t *)(const void *)p);
    else
        snprintf(buf, cap, "%.17g", tl_attr_number(f, attrs));
    return buf;
}

/* A dim counted from the end is the same as counted from the front. */
static bool same_dim(const tl_attr *f, const void *a, const void *b, int rank)
{
    int64_t x = (int64_t)tl_attr_number(f, a), y = (int64_t)tl_attr_number(f, b);
    return strcmp(f->name, "dim") == 0 && rank > 0 &&
           (x < 0 ? x + rank : x) == (y < 0 ? y + rank : y);
}

bool tl_attrs_agree(const tl_op *op, const void *a, const void *b, int rank,
                    const signed char *skip, const tl_attr **which)
{
    *which = NULL;
    if (op->attr == NULL)
        return op->attr_size == 0; /* without a schema they cannot be compared */
    for (int i = 0; op->attr[i].name != NULL; i++) {
        const tl_attr *f = *which = &op->attr[i];
        const char *pa = (const char *)a + f->offset, *pb = (const char *)b + f->offset;
        if (skip != NULL && skip[i] >= 0)
            continue;
        if (f->kind == TL_ATTR_SHAPE
                ? !tl_shape_equal((const tl_shape *)(const void *)pa,
                                  (const tl_shape *)(const void *)pb)
                : memcmp(pa, pb, field_size(f->kind)) != 0 && !same_dim(f, a, b, rank))
            return false;
    }
    return true;
}
