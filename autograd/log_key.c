/* log_key.c: keys of results, packed and as text. */
#include "autograd/log_key.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

uint64_t tl_log_key_pack(tl_log_key k)
{
    uint64_t at = k.backward ? TL_KEY_AT_MAX - k.at : k.at; /* backward runs from the last to the first */
    return (uint64_t)k.pass << 56 | (uint64_t)k.backward << 55 | at << 31 | (uint64_t)k.sub << 8 | (uint64_t)k.out;
}

tl_log_key tl_log_key_unpack(uint64_t key)
{
    bool backward = key >> 55 & 1;
    uint32_t at = (uint32_t)(key >> 31 & TL_KEY_AT_MAX);
    return (tl_log_key){(int)(key >> 56), backward, backward ? TL_KEY_AT_MAX - at : at, (uint32_t)(key >> 8 & TL_KEY_SUB_MAX),
                        (int)(key & 255)};
}

char *tl_log_key_text(char *buf, uint64_t key)
{
    tl_log_key k = tl_log_key_unpack(key);
    int n = 0;
    if (k.pass > 0 && k.pass < TL_KEY_UPDATE)
        n = snprintf(buf, TL_KEY_TEXT, "%d:", k.pass);
    n += snprintf(buf + n, TL_KEY_TEXT - (size_t)n, "%c%" PRIu32, k.pass == TL_KEY_UPDATE ? 'u' : k.backward ? 'b' : 'f', k.at);
    if (k.backward)
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
    if ((kind != 'f' && kind != 'b' && kind != 'u') || (at = digits(&s, end, TL_KEY_AT_MAX)) < 1)
        return 0;
    if (kind == 'b' && (s == end || *s++ != '.' || (sub = digits(&s, end, TL_KEY_SUB_MAX)) < 1))
        return 0;
    if (s < end && (*s++ != '/' || (out = digits(&s, end, 255)) < 1))
        return 0;
    if (s != end || (kind == 'u' && pass != 0))
        return 0;
    return tl_log_key_pack((tl_log_key){kind == 'u' ? TL_KEY_UPDATE : (int)pass, kind == 'b', (uint32_t)at, (uint32_t)sub, (int)out});
}
