/* show.c: how two tensors differ, for people: the first element, distances, a picture. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/log/values.h"
#include "tensor/threads.h"

static uint64_t bits_of(tl_dtype d, const void *p)
{
    uint64_t u = 0;
    uint32_t word;
    uint16_t half;
    switch (tl_dtype_size(d)) {
    case 8: memcpy(&u, p, 8); return u;
    case 4: memcpy(&word, p, 4); return word;
    case 2: memcpy(&half, p, 2); return half;
    default: return *(const unsigned char *)p;
    }
}

static const char *element_text(char buf[TL_ELEMENT_TEXT], tl_dtype d, const void *p)
{
    uint64_t u = bits_of(d, p);
    if (!tl_dtype_is_float(d))
        return snprintf(buf, TL_ELEMENT_TEXT, "%" PRId64, (int64_t)u), buf;
    memcpy(&u, p, tl_dtype_size(d)); /* where it lies well */
    const double x = tl_element_get(d, &u);
    if (isnan(x))
        return snprintf(buf, TL_ELEMENT_TEXT, "nan"), buf;
    for (int digits = d == TL_F64   ? 15
                      : d == TL_F32 ? 6
                                    : 3;
         digits <= 17; digits++) { /* the fewest that give it back */
        snprintf(buf, TL_ELEMENT_TEXT, "%.*g", digits, x);
        double back = strtod(buf, NULL);
        if (d == TL_F64 ? back == x : (float)back == (float)x)
            break;
    }
    return buf;
}

const char *tl_element_text(char buf[TL_ELEMENT_TEXT], tl_dtype d, const void *p)
{
    tl_textenv saved = tl_textenv_enter();
    element_text(buf, d, p);
    tl_textenv_leave(saved);
    return buf;
}

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
    int64_t left = d->first, at[TL_MAX_DIMS] = {0};
    for (int i = a->ndim; i-- > 0; left /= a->dim[i])
        at[i] = left % a->dim[i];
    fprintf(f, "  %" PRId64 " of %" PRId64 " elements differ, the first at [", d->differ, d->count);
    for (int i = 0; i < a->ndim; i++)
        fprintf(f, i > 0 ? ", %" PRId64 : "%" PRId64, at[i]);
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
        uint64_t to = (uint64_t)1 << (k - 1), from = k < 3 ? to : to / 2 + 1;
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
