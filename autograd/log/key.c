/* key.c: keys of results, packed and as text. */
#include "autograd/log/key.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { VJP = TL_KEY_SUB_MAX + 1 }; /* added to sub: the vjp comes after the adding */

uint64_t tl_log_key_pack(tl_log_key k)
{
    uint64_t at = k.backward ? TL_KEY_AT_MAX - k.at
                             : k.at; /* backward runs from the last to the first */
    uint64_t sub = k.backward && !k.adding ? (uint64_t)k.sub + VJP : k.sub;
    return (uint64_t)k.pass << 56 | (uint64_t)k.backward << 55 | at << 31 | sub << 8 |
           (uint64_t)k.out;
}

tl_log_key tl_log_key_unpack(uint64_t key)
{
    bool backward = key >> 55 & 1;
    uint32_t at = (uint32_t)(key >> 31 & TL_KEY_AT_MAX),
             sub = (uint32_t)(key >> 8 & (VJP | TL_KEY_SUB_MAX));
    return (tl_log_key){(int)(key >> 56),      backward,
                        backward && sub < VJP, backward ? TL_KEY_AT_MAX - at : at,
                        sub & TL_KEY_SUB_MAX,  (int)(key & 255)};
}

char *tl_log_key_text(char *buf, uint64_t key)
{
    tl_log_key k = tl_log_key_unpack(key);
    int n = 0;
    if (k.pass > 0 && k.pass < TL_KEY_UPDATE)
        n = snprintf(buf, TL_KEY_TEXT, "%d:", k.pass);
    char kind = k.pass == TL_KEY_UPDATE ? 'u' : k.adding ? 'c' : k.backward ? 'b' : 'f';
    n += snprintf(buf + n, TL_KEY_TEXT - (size_t)n, "%c%" PRIu32, kind, k.at);
    if (k.sub > 0)
        n += snprintf(buf + n, TL_KEY_TEXT - (size_t)n, ".%" PRIu32, k.sub);
    if (k.out > 0)
        snprintf(buf + n, TL_KEY_TEXT - (size_t)n, "/%d", k.out);
    return buf;
}

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
