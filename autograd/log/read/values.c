/* values.c: how two tensors differ: counted, and shown to people as the first element that differs,
 * a histogram of distances and a picture. */
#include "autograd/log/read/internal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "tensor/files/bytes.h"
#include "tensor/operands.h"
#include "tensor/print.h"
#include "tensor/storage.h"

static uint64_t bits_of(tl_dtype d, const void *p)
{
    return tl_bytes_get(p, (int)tl_dtype_size(d), !TL_LITTLE_ENDIAN);
}

uint64_t tl_ulp_distance(tl_dtype d, const void *a, const void *b)
{
    const uint64_t sign = (uint64_t)1 << (8 * tl_dtype_size(d) - 1);
    const void *p[2] = {a, b};
    bool nan[2];
    int64_t x[2]; /* the bits in order of the values: -0 comes just before +0 */
    for (int i = 0; i < 2; i++) {
        const uint64_t u = bits_of(d, p[i]), magnitude = u & (sign - 1);
        nan[i] = isnan(tl_element_get(d, p[i]));
        x[i] = u & sign ? -(int64_t)magnitude - 1 : (int64_t)magnitude;
    }
    if (nan[0] || nan[1])
        return nan[0] && nan[1] ? 0 : UINT64_MAX;
    return x[0] > x[1] ? (uint64_t)x[0] - (uint64_t)x[1] : (uint64_t)x[1] - (uint64_t)x[0];
}

static int bucket(uint64_t ulps)
{
    int k = 1;
    for (uint64_t reach = 1; reach < ulps && k < TL_ULP_BUCKETS - 1; k++)
        reach *= 2;
    return k;
}

static void lay_out(tl_value_difference *d, const tl_array *a)
{
    int64_t across = a->ndim > 0 ? a->dim[a->ndim - 1] : 1,
            down = across > 0 ? d->count / across : 0;
    d->cell_width = (across + TL_PICTURE_COLUMNS - 1) / TL_PICTURE_COLUMNS;
    d->cell_height = (down + TL_PICTURE_ROWS - 1) / TL_PICTURE_ROWS;
    d->columns = across > 0 ? (int)((across + d->cell_width - 1) / d->cell_width) : 0;
    d->rows = down > 0 ? (int)((down + d->cell_height - 1) / d->cell_height) : 0;
}

tl_status tl_value_compare(tl_value_difference *d, const tl_array *a, const tl_array *b,
                           tl_err *err)
{
    *d = (tl_value_difference){.count = tl_array_count(a), .first = -1};
    if (a->dtype != b->dtype)
        return tl_fail(err, TL_EDTYPE, "one is %s, the other %s", tl_dtype_name(a->dtype),
                       tl_dtype_name(b->dtype));
    if (!tl_array_same_shape(a, b))
        return tl_fail(err, TL_ESHAPE, "one has shape %s, the other %s", TL_TEXT(a), TL_TEXT(b));
    lay_out(d, a);
    int64_t across = a->ndim > 0 ? a->dim[a->ndim - 1] : 1;
    for (int64_t i = 0; i < d->count; i++) {
        const void *x = tl_array_at(a, i), *y = tl_array_at(b, i);
        int64_t row = i / across / d->cell_height, column = i % across / d->cell_width;
        bool flt = tl_dtype_is_float(a->dtype), same = memcmp(x, y, tl_dtype_size(a->dtype)) == 0;
        uint64_t ulps = same || !flt ? 0 : tl_ulp_distance(a->dtype, x, y);
        d->of[row][column]++;
        if (same || (flt && ulps == 0))
            continue;
        d->differ++;
        d->cell[row][column]++;
        d->ulps[!flt || ulps == UINT64_MAX ? 0 : bucket(ulps)]++;
        if (d->first < 0)
            d->first = i;
    }
    return TL_OK;
}

/* ---- for people ---- */

static void show_element(FILE *f, char which, const tl_array *a, int64_t i)
{
    char text[TL_ELEMENT_TEXT];
    const void *p = tl_array_at(a, i);
    fprintf(f, "    %c  %-24s", which, tl_element_text(text, a->dtype, p));
    if (tl_dtype_is_float(a->dtype))
        fprintf(f, " 0x%0*" PRIx64, 2 * (int)tl_dtype_size(a->dtype), bits_of(a->dtype, p));
    fputc('\n', f);
}

static void show_first(FILE *f, const tl_value_difference *d, const tl_array *a, const tl_array *b)
{
    const tl_cursor first = tl_cursor_at(a, a->ndim, d->first);
    fprintf(f, "  %" PRId64 " of %" PRId64 " elements differ, the first at [", d->differ, d->count);
    for (int i = 0; i < a->ndim; i++)
        fprintf(f, i > 0 ? ", %" PRId64 : "%" PRId64, first.at[i]);
    fputs("]\n", f);
    show_element(f, 'A', a, d->first);
    show_element(f, 'B', b, d->first);
}

static void show_histogram(FILE *f, const tl_value_difference *d)
{
    int low = TL_ULP_BUCKETS, high = 0;
    int64_t most = 1;
    for (int k = 1; k < TL_ULP_BUCKETS; k++) {
        if (d->ulps[k] == 0)
            continue;
        most = d->ulps[k] > most ? d->ulps[k] : most;
        low = k < low ? k : low;
        high = k;
    }
    fputs("\n  units in the last place    elements\n", f);
    for (int k = low; k <= high; k++) {
        const uint64_t to = k > 64 ? UINT64_MAX : (uint64_t)1 << (k - 1),
                       from = k < 3 ? to : ((uint64_t)1 << (k - 2)) + 1;
        char range[64];
        snprintf(range, sizeof range, from == to ? "%" PRIu64 : "%" PRIu64 " to %" PRIu64, from,
                 to);
        fprintf(f, "  %24s %9" PRId64 "  %.*s\n", range, d->ulps[k],
                (int)((d->ulps[k] * 40 + most - 1) / most),
                "########################################");
    }
    if (d->ulps[0] > 0)
        fprintf(f, "  %24s %9" PRId64 "\n", "NaN, or no floats", d->ulps[0]);
}

static void show_picture(FILE *f, const tl_value_difference *d)
{
    static const char edge[] = "----------------------------------------------------------------";
    if (d->cell_height == 1 && d->cell_width == 1)
        fputs("\n  where: the last axis across, the others down (' ' the same, '#' differs)\n", f);
    else
        fprintf(f,
                "\n  where: the last axis across, the others down, %" PRId64 " x %" PRId64
                " elements a character\n"
                "  (' ' none differs, '.' up to a tenth, ':' up to half, '+' more, '#' all)\n",
                d->cell_height, d->cell_width);
    fprintf(f, "  +%.*s+\n", d->columns, edge);
    for (int i = 0; i < d->rows; i++) {
        fputs("  |", f);
        for (int k = 0; k < d->columns; k++) {
            int64_t n = d->cell[i][k], of = d->of[i][k];
            fputc(n == 0 ? ' ' : n == of ? '#' : 10 * n <= of ? '.' : 2 * n <= of ? ':' : '+', f);
        }
        fputs("|\n", f);
    }
    fprintf(f, "  +%.*s+\n", d->columns, edge);
}

void tl_value_show(FILE *f, const tl_value_difference *d, const tl_array *a, const tl_array *b)
{
    show_first(f, d, a, b);
    show_histogram(f, d);
    if (d->count > 1)
        show_picture(f, d);
}
