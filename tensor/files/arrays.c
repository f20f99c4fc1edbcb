/* arrays.c: the arrays of a file, whose elements are converted to the dtypes of this library. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "tensor/storage.h"
#include "tensor/files/arrays_read.h"
#include "tensor/files/bytes.h"
#include "tensor/files/file.h"
#include "tensor/operands.h"
#include "tensor/threads.h"

tl_status tl_arrays_bad(const tl_arrays *f, const char *fmt, ...)
{
    char why[TL_MESSAGE_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    return tl_fail(f->err, TL_EFORMAT, "%.200s: %s", f->path, why);
}

const char *tl_arrays_quoted(char buf[TL_QUOTED], const char *s, size_t n, const char *none)
{
    size_t i = 0;
    if (n == 0)
        return none;
    buf[0] = '\'';
    for (; i < n && i < TL_QUOTED - 3; i++)
        buf[1 + i] = (char)(s[i] >= ' ' && s[i] < 0x7f ? s[i] : '?');
    memcpy(buf + 1 + i, "'", 2);
    return buf;
}

tl_status tl_arrays_take(tl_arrays *f, const char *who, uint64_t bytes)
{
    if (f->most != 0 && bytes > f->most - f->taken)
        return tl_arrays_bad(f,
                             "%s takes %" PRIu64 " bytes of memory; .most allows %" PRIu64
                             ", of which %" PRIu64 " are taken",
                             who, bytes, f->most, f->taken);
    f->taken += bytes;
    return TL_OK;
}

void *tl_arrays_block(const tl_arrays *f, size_t bytes)
{
    void *p = tl_calloc(bytes, 1);
    if (p == NULL)
        tl_fail(f->err, TL_ENOMEM, "%.200s: no memory for %zu bytes", f->path, bytes);
    return p;
}

static const char *name_of(const void *items, size_t size, int i)
{
    return *(const char *const *)(const void *)((const char *)items + (size_t)i * size);
}

tl_status tl_arrays_check_twice(const char *path, const void *items, size_t size, int n,
                                tl_status as, tl_err *err)
{
    char who[TL_QUOTED];
    const char **name = tl_calloc((size_t)n, sizeof *name);
    if (name == NULL)
        return tl_fail(err, TL_ENOMEM, "%.200s: no memory for %d names", path, n);
    for (int i = 0; i < n; i++)
        name[i] = name_of(items, size, i);
    const char *twice = tl_names_sort(name, n, sizeof *name);
    tl_free_raw(name);
    if (twice == NULL)
        return TL_OK;
    int at[2], found = 0;
    for (int i = 0; found < 2; i++)
        if (strcmp(name_of(items, size, i), twice) == 0)
            at[found++] = i;
    return tl_fail(err, as, "%.200s: arrays %d and %d are both named %s", path, at[0], at[1],
                   tl_arrays_quoted(who, twice, strlen(twice), "nothing"));
}

/* ---- elements ---- */

static tl_dtype natural(const tl_arrays_raw *r)
{
    if (r->kind == 'f')
        return r->size == 8 ? TL_F64 : r->size == 4 ? TL_F32 : TL_F16;
    return r->kind == 'b' ? TL_BOOL : TL_I64;
}

static double float_of(uint64_t bits, int size)
{
    const uint16_t half = (uint16_t)bits;
    const uint32_t low = (uint32_t)bits;
    float single;
    double wide;
    memcpy(&single, &low, sizeof single);
    memcpy(&wide, &bits, sizeof wide);
    return size == 8 ? wide : size == 4 ? (double)single : tl_element_get(TL_F16, &half);
}

/* Converts the elements into `to`, whose elements it visits in the order of the file. */
static tl_status convert(tl_arrays *f, const tl_arrays_raw *r, const tl_array *to)
{
    const int64_t n = tl_array_count(to), step = (int64_t)tl_dtype_size(to->dtype);
    tl_cursor at = tl_cursor_at(to, to->ndim, 0);
    for (int64_t i = 0; i < n; i++, tl_cursor_next(&at)) {
        uint64_t bits = tl_bytes_get(r->data + i * r->size, r->size, r->big);
        char *p = (char *)to->data + at.offset * step;
        if (r->kind == 'b' && bits > 1)
            return tl_arrays_bad(f, "element %" PRId64 " is %d; a bool is 0 or 1", i, (int)bits);
        if (r->kind == 'u' && bits > INT64_MAX)
            return tl_arrays_bad(f,
                                 "element %" PRId64 " is %" PRIu64 "; at most %" PRId64
                                 " is possible",
                                 i, bits, INT64_MAX);
        if (r->kind == 'i' && r->size < 8 && bits >> (8 * r->size - 1) != 0)
            bits -= (uint64_t)1 << 8 * r->size;
        if (r->kind == 'f')
            tl_element_put(to->dtype, p, float_of(bits, r->size));
        else
            tl_element_put_i64(to->dtype, p, (int64_t)bits);
    }
    return TL_OK;
}

/* a with its dims in reverse order. */
static tl_array turned(const tl_array *a)
{
    tl_array t = *a;
    for (int i = 0; i < a->ndim; i++) {
        t.dim[i] = a->dim[a->ndim - 1 - i];
        t.stride[i] = a->stride[a->ndim - 1 - i];
    }
    return t;
}

/* Whether the elements lie in the file as the host has them, so that they need not be copied. */
static bool lies_ready(const tl_arrays_raw *r, tl_dtype dtype)
{
    return (r->kind == 'f' || (r->kind == 'i' && r->size == 8)) && dtype == natural(r) &&
           r->big != TL_LITTLE_ENDIAN && (uintptr_t)r->data % (size_t)r->size == 0 &&
           (!r->fortran || r->shape.ndim < 2);
}

static tl_status fill(tl_arrays *f, const tl_arrays_raw *r, tl_arrays_entry *e)
{
    tl_array *a = &e->array;
    size_t bytes = tl_array_room(a);
    if (bytes > 0 && lies_ready(r, a->dtype)) {
        a->data = (void *)(uintptr_t)r->data;
        return TL_OK;
    }
    char who[TL_QUOTED];
    TL_TRY(tl_arrays_take(f, tl_arrays_quoted(who, e->name, strlen(e->name), "its array"), bytes));
    e->own = a->data = tl_arrays_block(f, bytes);
    if (a->data == NULL)
        return TL_ENOMEM;
    const tl_array by_column = turned(a);
    return convert(f, r, r->fortran ? &by_column : a);
}

tl_status tl_arrays_add(tl_arrays *f, const char *name, size_t length, tl_arrays_entry **out)
{
    char who[TL_QUOTED];
    if (!tl_grow(&f->e, &f->cap, f->n, sizeof *f->e))
        return tl_fail(f->err, TL_ENOMEM, "%.200s: no memory for %d arrays", f->path, f->n);
    tl_arrays_entry *e = &f->e[f->n];
    *e = (tl_arrays_entry){.name = tl_arrays_block(f, length + 1)};
    if (e->name == NULL)
        return TL_ENOMEM;
    memcpy(e->name, name, length);
    f->n++;
    *out = e;
    if (strlen(e->name) != length)
        return tl_arrays_bad(f, "has a NUL in the name %s",
                             tl_arrays_quoted(who, name, length, ""));
    return TL_OK;
}

tl_status tl_arrays_add_raw(tl_arrays *f, const char *name, size_t length, const tl_arrays_raw *r)
{
    tl_arrays_entry *e;
    if (tl_shape_check(&r->shape, TL_F64, NULL) != TL_OK ||
        (uint64_t)tl_shape_count(&r->shape) * (uint64_t)r->size != r->bytes)
        return tl_arrays_bad(
            f, "the shape %s, with elements of %d bytes, does not take the %zu that follow",
            TL_TEXT_OF(&r->shape), r->size, r->bytes);
    TL_TRY(tl_arrays_add(f, name, length, &e));
    tl_dtype dtype = f->as != TL_DTYPE_DEFAULT ? f->as : natural(r);
    e->array = tl_array_make(dtype, &r->shape, NULL);
    return fill(f, r, e);
}

void tl_arrays_close(tl_arrays *f)
{
    if (f == NULL)
        return;
    for (int i = 0; i < f->n; i++) {
        tl_free_raw(f->e[i].name);
        tl_free_raw(f->e[i].own);
    }
    if (f->mapped)
        munmap(f->bytes, f->size);
    else
        tl_free_raw(f->bytes);
    tl_free_raw(f->e);
    tl_free_raw(f);
}

int tl_arrays_count(const tl_arrays *f) { return f == NULL ? 0 : f->n; }

tl_array tl_arrays_at(const tl_arrays *f, int i)
{
    return i < 0 || i >= tl_arrays_count(f) ? (tl_array){0} : f->e[i].array;
}

const char *tl_arrays_name(const tl_arrays *f, int i)
{
    return i < 0 || i >= tl_arrays_count(f) ? "" : f->e[i].name;
}

int tl_arrays_find(const tl_arrays *f, const char *name)
{
    for (int i = 0; name != NULL && i < tl_arrays_count(f); i++)
        if (strcmp(f->e[i].name, name) == 0)
            return i;
    return -1;
}
