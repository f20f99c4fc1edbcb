/* fields.c: the fields of a log's lines: keys, shapes, lists of inputs, %XX. Nothing in them is
 * trusted. */
#include "autograd/log/read/internal.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* Digits at *s, before end, up to limit; -1 if there are none or they are too many. */
static int64_t digits(const char **s, const char *end, int64_t limit)
{
    int64_t x = 0;
    const char *from = *s;
    for (; *s < end && **s >= '0' && **s <= '9' && x <= limit; ++*s)
        x = 10 * x + (**s - '0');
    return *s == from || x > limit ? -1 : x;
}

uint64_t tl_log_key_parse(const char *s, size_t n)
{
    const char *end = s + n;
    int64_t pass = 0, at, sub = 0, out = 0;
    if (n > 0 && *s >= '0' && *s <= '9') {
        pass = digits(&s, end, TL_KEY_UPDATE - 1);
        if (pass < 0 || s == end || *s++ != ':')
            return 0;
    }
    char kind = s < end ? *s++ : '\0';
    bool backward = kind == 'b' || kind == 'c';
    if ((kind != 'f' && !backward && kind != 'u') ||
        (at = digits(&s, end, TL_KEY_AT_MAX)) < (kind == 'u' ? 0 : 1))
        return 0;
    if (backward && (s == end || *s != '.'))
        return 0;
    if (kind != 'f' && s < end && *s == '.' && (s++, (sub = digits(&s, end, TL_KEY_SUB_MAX)) < 1))
        return 0;
    if (s < end && (*s++ != '/' || (out = digits(&s, end, 255)) < 1))
        return 0;
    if (s != end || (kind == 'u' && pass != 0) || at + sub == 0)
        return 0;
    return tl_log_key_pack((tl_log_key){kind == 'u' ? TL_KEY_UPDATE : (int)pass, backward,
                                        kind == 'c', (uint32_t)at, (uint32_t)sub, (int)out});
}

static int hex_value(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

void tl_log_decode(char *s)
{
    char *to = s;
    for (; *s != '\0'; s++, to++) {
        bool coded = *s == '%' && hex_value(s[1]) >= 0 && hex_value(s[2]) >= 0;
        *to = coded ? (char)(16 * hex_value(s[1]) + hex_value(s[2])) : *s;
        s += coded ? 2 : 0;
    }
    *to = '\0';
}

bool tl_log_whole(const char **s, int64_t *x)
{
    char *end;
    if (**s < '0' || **s > '9')
        return false;
    errno = 0;
    *x = strtoll(*s, &end, 10);
    *s = end;
    return errno == 0;
}

/* "4*2+3,64,128", "scalar*3", "mixed*2", "none". */
bool tl_log_shape_parse(tl_log_def *d)
{
    const char *s = d->shape;
    int64_t rows, times = 1, total = 0;
    d->rows = d->last = -1;
    d->tail = "";
    if (strncmp(s, "none", 4) == 0)
        return d->parts = 0, true;
    bool scalar = strncmp(s, "scalar", 6) == 0;
    if (scalar || strncmp(s, "mixed", 5) == 0) {
        s += scalar ? 6 : 5;
        if (*s == '*' && (s++, !tl_log_whole(&s, &times) || times > INT_MAX))
            return false;
        d->parts = (int)times;
        d->tail = scalar ? "scalar" : "mixed";
        return *s == '\0';
    }
    for (;; s++) {
        if (!tl_log_whole(&s, &rows) || (*s == '*' && (s++, !tl_log_whole(&s, &times))) ||
            times < 1 || times > INT_MAX - d->parts)
            return false;
        if (rows > 0 && times > (INT64_MAX - total) / rows)
            return false;
        total += rows * times;
        d->parts += (int)times;
        times = 1;
        if (*s != '+')
            break;
    }
    d->rows = total;
    d->last = rows;
    d->tail = s;
    return *s == ',' || *s == '\0';
}

int tl_log_inputs_parse(const char *s, uint64_t *in, int room)
{
    int n = 0;
    for (const char *from = s; n < room; n++) {
        size_t length = strcspn(from, ",");
        in[n] = tl_log_key_parse(from, length);
        if (in[n] == 0 && !(length == 1 && *from == '-'))
            return -1;
        if (from[length] == '\0')
            return n + 1;
        from += length + 1;
    }
    return -1;
}
