/* print.c: prints an array in passes over the elements that are shown: one finds the form that
 * suits them all, one the width, and one writes. */
#include "tensor/print.h"
#include "tensor/memory.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/operands.h"
#include "tensor/threads.h"

enum { THRESHOLD = 1000, EDGE = 3, LINE = 80, ITEM_MAX = 32 };

typedef struct {
    const tl_array *a;
    bool cut;                                      /* long dims show their ends only */
    enum { PLAIN, WHOLE, FIXED, SCIENTIFIC } form; /* PLAIN: not floats */
    int width;                                     /* of an item */
    double least, most;                            /* nonzero finite magnitudes */
    bool all_whole;
    FILE *file;
    size_t used; /* bytes of text, whether or not the file took them */
    bool failed; /* the file did not take all of them */
} printer;

static void put(printer *p, const char *text, size_t n)
{
    p->failed |= fwrite(text, 1, n, p->file) != n;
    p->used += n;
}

static void put_text(printer *p, const char *text) { put(p, text, strlen(text)); }

static void put_repeated(printer *p, char c, int64_t n)
{
    for (; n > 0; n--)
        put(p, &c, 1);
}

static double float_at(const tl_array *a, int64_t offset)
{
    return tl_element_get(a->dtype,
                          (const char *)a->data + offset * (int64_t)tl_dtype_size(a->dtype));
}

static int float_text(char *text, const printer *p, double x)
{
    if (isnan(x))
        return snprintf(text, ITEM_MAX, "nan");
    if (isinf(x))
        return snprintf(text, ITEM_MAX, x < 0 ? "-inf" : "inf");
    switch (p->form) {
    case WHOLE: return snprintf(text, ITEM_MAX, "%.0f.", x);
    case SCIENTIFIC: return snprintf(text, ITEM_MAX, "%.4e", x);
    default: return snprintf(text, ITEM_MAX, "%.4f", x);
    }
}

/* Writes the element's text; returns its length. */
static int item_text(char *text, const printer *p, int64_t offset)
{
    const tl_array *a = p->a;
    if (tl_dtype_is_float(a->dtype))
        return float_text(text, p, float_at(a, offset));
    if (a->dtype == TL_BOOL)
        return snprintf(text, ITEM_MAX,
                        ((const unsigned char *)a->data)[offset] ? "true" : "false");
    return snprintf(text, ITEM_MAX, "%lld", (long long)((const int64_t *)a->data)[offset]);
}

/* The next along a dim that is shown after element i. */
static int64_t next_shown(const printer *p, int dim, int64_t i)
{
    const int64_t n = p->a->dim[dim];
    return p->cut && n > 2 * EDGE && i == EDGE - 1 ? n - EDGE : i + 1;
}

/* Calls fn for every element that is shown. */
typedef void visit_fn(printer *p, int64_t offset);

static void visit(printer *p, int dim, int64_t offset, visit_fn *fn)
{
    if (dim == p->a->ndim) {
        fn(p, offset);
        return;
    }
    for (int64_t i = 0; i < p->a->dim[dim]; i = next_shown(p, dim, i))
        visit(p, dim + 1, offset + i * p->a->stride[dim], fn);
}

static void note_range(printer *p, int64_t offset)
{
    double x = fabs(float_at(p->a, offset));
    if (!isfinite(x) || x == 0)
        return;
    p->all_whole &= x == floor(x);
    p->least = x < p->least ? x : p->least;
    p->most = x > p->most ? x : p->most;
}

static void note_width(printer *p, int64_t offset)
{
    char text[ITEM_MAX];
    int n = item_text(text, p, offset);
    p->width = n > p->width ? n : p->width;
}

static void choose_form(printer *p)
{
    if (tl_dtype_is_float(p->a->dtype)) {
        p->all_whole = true;
        p->least = (double)INFINITY;
        visit(p, 0, 0, note_range);
        bool wide = p->most > 0 && (p->most / p->least > 1000 || p->most > 1e8);
        if (wide || (!p->all_whole && p->least < 1e-4))
            p->form = SCIENTIFIC;
        else
            p->form = p->all_whole ? WHOLE : FIXED;
    }
    visit(p, 0, 0, note_width);
}

static void put_item(printer *p, int64_t offset)
{
    char text[ITEM_MAX];
    int n = item_text(text, p, offset);
    put_repeated(p, ' ', p->width - n);
    put(p, text, (size_t)n);
}

/* Separates an item along a dim from the one before. Items of the last dim are separated by ", ",
 * as many to a line as fit; blocks of outer dims by as many newlines as there are dims below. */
static void separate(printer *p, int dim, int64_t *in_line)
{
    const int below = p->a->ndim - dim - 1;
    const bool full = below == 0 && *in_line >= (LINE - dim - 1) / (p->width + 2);
    const int lines = full ? 1 : below;
    if (*in_line > 0) {
        put_text(p, lines > 0 ? "," : ", ");
        put_repeated(p, '\n', lines);
        put_repeated(p, ' ', lines > 0 ? dim + 1 : 0);
    }
    *in_line = full ? 1 : *in_line + 1;
}

static void put_block(printer *p, int dim, int64_t offset)
{
    int64_t in_line = 0, before = -1;
    if (dim == p->a->ndim) {
        put_item(p, offset);
        return;
    }
    put_text(p, "[");
    for (int64_t i = 0; i < p->a->dim[dim]; before = i, i = next_shown(p, dim, i)) {
        if (i > before + 1) {
            separate(p, dim, &in_line);
            put_text(p, "...");
        }
        separate(p, dim, &in_line);
        put_block(p, dim + 1, offset + i * p->a->stride[dim]);
    }
    put_text(p, "]");
}

static void put_shape(printer *p)
{
    put_text(p, "\n");
    put_text(p, TL_TEXT(p->a));
    put_text(p, " ");
    for (const char *c = tl_dtype_name(p->a->dtype); *c != '\0'; c++)
        put_repeated(p, (char)tolower(*c), 1);
    put_text(p, "\n");
}

tl_status tl_array_print(FILE *f, const tl_array *a, tl_err *err)
{
    tl_shape shape = tl_array_shape(a);
    TL_TRY(tl_shape_check(&shape, a->dtype, err));
    int64_t n = tl_array_count(a);
    if (a->data == NULL && n > 0)
        return tl_fail(err, TL_ETRACED, "print: %lld elements, but no data (is this a trace?)",
                       (long long)n);
    tl_textenv saved = tl_textenv_enter();
    printer p = {.a = a, .cut = n > THRESHOLD, .form = PLAIN, .file = f};
    if (n == 0) {
        put_text(&p, "[]");
    } else {
        choose_form(&p);
        put_block(&p, 0, 0);
    }
    put_shape(&p);
    tl_textenv_leave(saved);
    return p.failed
               ? tl_fail(err, TL_EIO, "print: the stream did not take all of %zu bytes", p.used)
               : TL_OK;
}

/* ---- one element ---- */

const char *tl_element_text(char buf[TL_ELEMENT_TEXT], tl_dtype d, const void *p)
{
    int64_t u = 0; /* aligned, as p may not be */
    memcpy(&u, p, tl_dtype_size(d));
    if (!tl_dtype_is_float(d)) {
        const int64_t x = d == TL_BOOL ? *(const unsigned char *)p : u;
        snprintf(buf, TL_ELEMENT_TEXT, "%lld", (long long)x);
        return buf;
    }
    tl_textenv saved = tl_textenv_enter();
    const double x = tl_element_get(d, &u);
    if (isnan(x))
        snprintf(buf, TL_ELEMENT_TEXT, "nan");
    /* The fewest digits that give the element back; of f16 and bf16, its float. */
    bool same = isnan(x);
    for (int digits = d == TL_F64 ? 15 : d == TL_F32 ? 6 : 3; !same && digits <= 17; digits++) {
        snprintf(buf, TL_ELEMENT_TEXT, "%.*g", digits, x);
        const double back = strtod(buf, NULL);
        same = d == TL_F64 ? back == x : (float)back == (float)x;
    }
    tl_textenv_leave(saved);
    return buf;
}
