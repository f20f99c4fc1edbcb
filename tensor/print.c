/* print.c: two passes over the elements shown - one finds the form and the width
 * that suit all of them, one writes. */
#include "tensor/print.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/operands.h"
#include "tensor/threads.h"

enum { THRESHOLD = 1000, EDGE = 3, LINE = 80, ITEM_MAX = 32 };

/* Where the text goes. */
typedef struct {
    FILE *file;
    size_t used; /* bytes, those that the file did not take among them */
    bool failed;
} sink;

typedef struct {
    const tl_array *a;
    bool cut;                                      /* long dims show their ends only */
    enum { PLAIN, WHOLE, FIXED, SCIENTIFIC } form; /* PLAIN: not floats */
    int width;
    double least, most; /* nonzero finite magnitudes */
    bool all_whole;
    sink *out;
} printer;

static void put(sink *s, const char *text, size_t n)
{
    s->failed |= fwrite(text, 1, n, s->file) != n;
    s->used += n;
}

static void put_text(sink *s, const char *text) { put(s, text, strlen(text)); }

static void put_repeated(sink *s, char c, int64_t n)
{
    for (; n > 0; n--)
        put(s, &c, 1);
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

/* The element's text; returns its length. */
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

/* How many places along a dim are shown, and which index stands at place k. */
static int64_t places(const printer *p, int dim)
{
    int64_t n = p->a->dim[dim];
    return p->cut && n > 2 * EDGE ? 2 * EDGE : n;
}

static int64_t place_offset(const printer *p, int dim, int64_t k)
{
    int64_t n = p->a->dim[dim];
    if (p->cut && n > 2 * EDGE && k >= EDGE)
        k += n - 2 * EDGE;
    return k * p->a->stride[dim];
}

/* Whether "..." goes before place k. */
static bool gap_before(const printer *p, int dim, int64_t k)
{
    return p->cut && p->a->dim[dim] > 2 * EDGE && k == EDGE;
}

typedef void visit_fn(printer *p, int64_t offset);

static void visit(printer *p, int dim, int64_t offset, visit_fn *fn)
{
    if (dim == p->a->ndim) {
        fn(p, offset);
        return;
    }
    for (int64_t k = 0; k < places(p, dim); k++)
        visit(p, dim + 1, offset + place_offset(p, dim, k), fn);
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
    put_repeated(p->out, ' ', p->width - n);
    put(p->out, text, (size_t)n);
}

/* The last dim: items separated by ", ", as many to a line as fit. */
static void put_row(printer *p, int dim, int64_t offset)
{
    int64_t n = places(p, dim), in_line = 0, fit = (LINE - dim - 1) / (p->width + 2);
    put_text(p->out, "[");
    for (int64_t k = 0; k < n; k++) {
        for (int item = gap_before(p, dim, k) ? 0 : 1; item < 2; item++) {
            if (in_line > 0 && in_line >= fit) {
                put_text(p->out, ",\n");
                put_repeated(p->out, ' ', dim + 1);
                in_line = 0;
            } else if (k > 0) {
                put_text(p->out, ", ");
            }
            if (item)
                put_item(p, offset + place_offset(p, dim, k));
            else
                put_text(p->out, "...");
            in_line++;
        }
    }
    put_text(p->out, "]");
}

/* Outer dims: blocks separated by as many newlines as dims lie below. */
static void put_block(printer *p, int dim, int64_t offset)
{
    if (dim == p->a->ndim) {
        put_item(p, offset);
        return;
    }
    if (dim == p->a->ndim - 1) {
        put_row(p, dim, offset);
        return;
    }
    int64_t n = places(p, dim);
    put_text(p->out, "[");
    for (int64_t k = 0; k < n; k++) {
        for (int block = gap_before(p, dim, k) ? 0 : 1; block < 2; block++) {
            if (k > 0) {
                put_text(p->out, ",");
                put_repeated(p->out, '\n', p->a->ndim - dim - 1);
                put_repeated(p->out, ' ', dim + 1);
            }
            if (block)
                put_block(p, dim + 1, offset + place_offset(p, dim, k));
            else
                put_text(p->out, "...");
        }
    }
    put_text(p->out, "]");
}

static void put_shape(sink *s, const tl_array *a)
{
    char shape[TL_SHAPE_TEXT], name[8] = {0};
    const char *dtype = tl_dtype_name(a->dtype);
    for (size_t i = 0; dtype[i] != '\0' && i + 1 < sizeof name; i++)
        name[i] = (char)(dtype[i] >= 'A' && dtype[i] <= 'Z' ? dtype[i] + ('a' - 'A') : dtype[i]);
    put_text(s, "\n");
    put_text(s, tl_array_shape_text(shape, a));
    put_text(s, " ");
    put_text(s, name);
    put_text(s, "\n");
}

static tl_status print_to(sink *s, const tl_array *a, tl_err *err)
{
    tl_shape shape = tl_array_shape(a);
    TL_TRY(tl_shape_check(&shape, a->dtype, err));
    int64_t n = tl_array_count(a);
    if (a->data == NULL && n > 0)
        return tl_fail(err, TL_ETRACED, "print: %lld elements, but no data (is this a trace?)",
                       (long long)n);
    /* The decimal point is the C locale's for the time of the call, in this thread only. */
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    locale_t before = c != (locale_t)0 ? uselocale(c) : (locale_t)0;
    printer p = {.a = a, .cut = n > THRESHOLD, .form = PLAIN, .out = s};
    if (n == 0) {
        put_text(s, "[]");
    } else {
        choose_form(&p);
        put_block(&p, 0, 0);
    }
    put_shape(s, a);
    if (c != (locale_t)0) {
        uselocale(before);
        freelocale(c);
    }
    return TL_OK;
}

tl_status tl_array_print(FILE *f, const tl_array *a, tl_err *err)
{
    sink s = {.file = f};
    tl_textenv saved = tl_textenv_enter(); /* digits are rounded to nearest */
    tl_status status = print_to(&s, a, err);
    tl_textenv_leave(saved);
    return status == TL_OK && s.failed
               ? tl_fail(err, TL_EIO, "print: the stream did not take all of %zu bytes", s.used)
               : status;
}

/* ---- one element ---- */

static const char *element_text(char buf[TL_ELEMENT_TEXT], tl_dtype d, const void *p)
{
    int64_t u = 0; /* where it lies well */
    memcpy(&u, p, tl_dtype_size(d));
    if (!tl_dtype_is_float(d))
        return snprintf(buf, TL_ELEMENT_TEXT, "%lld",
                        (long long)(d == TL_BOOL ? *(const unsigned char *)p : u)),
               buf;
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
