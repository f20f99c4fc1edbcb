/* arrays_csv.c: reads rows of numbers as text. The text is walked twice: the first time numbers are
 * checked and counted, the second time they are stored. The caller has entered tl_textenv. */
#include <fenv.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "tensor/files/arrays_read.h"

/* Rounds to odd, so that rounding to a narrower dtype afterwards gives the bits of one rounding. */
static double odd_of_text(const char *s)
{
    fesetround(FE_DOWNWARD);
    double down = strtod(s, NULL), up;
    uint64_t last;
    fesetround(FE_UPWARD);
    up = strtod(s, NULL);
    fesetround(FE_TONEAREST);
    memcpy(&last, &down, sizeof last);
    return down == up || (last & 1) != 0 ? down : up;
}

/* The field that begins at *p, without blanks around it; *p moves to its comma or its line's end.
 * One in quotes may hold these; it is never a number here. */
static const char *field(const char **p, size_t *n)
{
    const char *s = *p + strspn(*p, " \t"), *stop = s;
    for (bool quoted = *s == '"'; quoted; quoted = *stop == '"') {
        stop += 1 + strcspn(stop + 1, "\"");
        stop += *stop == '"';
    }
    stop += strcspn(stop, ",\r\n");
    *p = stop;
    while (stop > s && (stop[-1] == ' ' || stop[-1] == '\t'))
        stop--;
    *n = stop > s ? (size_t)(stop - s) : 0;
    return s;
}

static bool number(const char *s, size_t n, double *x)
{
    static const char *const words[] = {"nan", "inf", "infinity"};
    char *end;
    size_t sign = n > 0 && (*s == '-' || *s == '+'), i = sign;
    for (size_t k = 0; k < 3; k++)
        if (n - sign == strlen(words[k]) && strncasecmp(s + sign, words[k], n - sign) == 0)
            i = n;
    while (i < n && strchr("0123456789.eE+-", s[i]) != NULL && s[i] != '\0')
        i++;
    *x = n > 0 && i == n ? strtod(s, &end) : 0;
    return n > 0 && i == n && end == s + n;
}

/* Steps over the end of a row's line: LF or CR LF, or the end of all. */
static tl_status next_line(tl_arrays *f, const char **p, const char *end, int64_t row)
{
    const char *line = *p;
    *p += *line == '\r' && line[1] == '\n';
    *p += **p == '\n';
    if (*p > line || line >= end)
        return TL_OK;
    return tl_arrays_bad(f, "byte %zu, in row %" PRId64 ", is %s", (size_t)(line - f->bytes), row,
                         *line == '\r' ? "a CR without LF" : "a NUL");
}

/* Reads rows of `columns` numbers from p into `to`, or only checks them if `to` is NULL, and counts
 * them. first: the number of the first row, for messages. */
static tl_status rows(tl_arrays *f, const char *p, const char *end, int64_t first, int64_t columns,
                      tl_array *to, int64_t *count)
{
    char who[TL_QUOTED];
    double x;
    for (*count = 0; p < end; ++*count) {
        for (int64_t c = 0;; c++, p++) {
            size_t n;
            const char *s = field(&p, &n);
            if (c >= columns || (*p != ',' && c + 1 < columns))
                return tl_arrays_bad(f,
                                     "row %" PRId64 " has %s fields than the %" PRId64
                                     " of the first row",
                                     first + *count, c >= columns ? "more" : "fewer", columns);
            if (to == NULL && !number(s, n, &x))
                return tl_arrays_bad(f, "row %" PRId64 ", column %" PRId64 ": %s is not a number%s",
                                     first + *count, c + 1,
                                     tl_arrays_quoted(who, s, n, "an empty field"),
                                     first + *count > 1 ? ""
                                                        : " (names have no numbers among them)");
            if (to != NULL && number(s, n, &x))
                tl_array_put(to, *count * columns + c, to->dtype == TL_F64 ? x : odd_of_text(s));
            if (*p != ',')
                break;
        }
        TL_TRY(next_line(f, &p, end, first + *count));
    }
    return TL_OK;
}

tl_status tl_csv_read(tl_arrays *f, const char *p, size_t size)
{
    const char *end = p + size; /* a NUL stands there */
    int64_t columns = 1, names = 1, n;
    tl_arrays_entry *e;
    double x;
    p += size >= 3 && memcmp(p, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    while (end > p && end[-1] == '\n')
        end -= end - p > 1 && end[-2] == '\r' ? 2 : 1;
    const char *s = p;
    for (;; columns++, s++) {
        size_t length;
        const char *text = field(&s, &length);
        names &= !number(text, length, &x);
        if (*s != ',')
            break;
    }
    if (names)
        TL_TRY(next_line(f, &s, end, 1));
    p = names ? s : p;
    if (p >= end)
        return tl_arrays_bad(f, f->size == 0 ? "is empty"
                                : memchr(f->bytes, '"', f->size) != NULL
                                    ? "no rows of numbers; perhaps a quote is not closed"
                                    : "no rows of numbers");
    TL_TRY(rows(f, p, end, 1 + names, columns, NULL, &n));
    TL_TRY(tl_arrays_add(f, "", 0, &e));
    tl_shape shape = TL_DIMS(n, columns);
    e->array = tl_array_make(f->as != TL_DTYPE_DEFAULT ? f->as : TL_F64, &shape, NULL);
    size_t bytes = (size_t)(n * columns) * tl_dtype_size(e->array.dtype);
    TL_TRY(tl_arrays_take(f, "its table", bytes));
    e->own = e->array.data = tl_arrays_block(f, bytes);
    if (e->own == NULL)
        return TL_ENOMEM;
    return rows(f, p, end, 1 + names, columns, &e->array, &n);
}
