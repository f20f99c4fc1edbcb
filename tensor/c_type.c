/* c_type.c: checks data that come in: their C type against the dtype, and their values if BOOL. */
#include "tensor/c_type.h"

#include <string.h>

#include "tensor/operands.h"
#include "tensor/storage.h"

/* The C types that a dtype is stored as; a message names the first of them, or int64_t. */
static const struct {
    const char *name;
    tl_dtype dtype;
} fits[] = {
    {"float", TL_F32},
    {"double", TL_F64},
    {"unsigned short", TL_F16},
    {"unsigned short", TL_BF16},
    {"bool", TL_BOOL},
    {"_Bool", TL_BOOL},
    {"unsigned char", TL_BOOL},
    {"long long", TL_I64},
    {"unsigned long long", TL_I64},
#if __SIZEOF_LONG__ == 8
    {"long", TL_I64},
    {"unsigned long", TL_I64},
#endif
};

tl_status tl_c_data_check(tl_c_data c, tl_dtype dtype, size_t bytes, tl_err *err)
{
    /* Of a flexible array in a static struct clang 16 and older count the struct's padding alone,
     * which has less than 16 bytes. */
    const bool ends = c.bytes >= 16 && c.bytes < bytes;
    const char *stored = "";
    if (c.type == NULL)
        return TL_OK;
    for (size_t i = sizeof fits / sizeof *fits; i-- > 0;) {
        if (fits[i].dtype != dtype)
            continue;
        stored = fits[i].name;
        if (strcmp(stored, c.type) == 0)
            return !ends ? TL_OK
                         : tl_fail(err, TL_ESHAPE,
                                   "%s of that shape has %zu bytes, but the data given end after "
                                   "%zu",
                                   tl_dtype_name(dtype), bytes, c.bytes);
    }
    if (strchr(c.type, '*') != NULL)
        return tl_fail(err, TL_EDTYPE,
                       "the data are pointers (%s), not elements of %s; rows must lie one after "
                       "the other",
                       c.type, tl_dtype_name(dtype));
    return tl_fail(err, TL_EDTYPE,
                   "the data are of the C type %s, but %s is stored as %s; if they are "
                   "stored that way all the same, cast the pointer to void *",
                   c.type, tl_dtype_name(dtype), dtype == TL_I64 ? "int64_t" : stored);
}

tl_status tl_data_check(const void *data, tl_c_data c, const tl_array *a, tl_err *err)
{
    const int64_t n = tl_array_count(a);
    const unsigned char *byte = data;
    if (data == NULL && n > 0)
        return tl_fail(err, TL_EUSAGE,
                       "no data for %s %s; tl_zeros makes zeros, tl_fill any number",
                       tl_dtype_name(a->dtype), TL_TEXT(a));
    TL_TRY(tl_c_data_check(c, a->dtype, (size_t)n * tl_dtype_size(a->dtype), err));
    for (int64_t i = 0; a->dtype == TL_BOOL && i < n; i++)
        if (byte[i] > 1)
            return tl_fail(err, TL_EDOMAIN, "element %lld of BOOL data is %d; 0 and 1 are possible",
                           (long long)i, byte[i]);
    return TL_OK;
}
