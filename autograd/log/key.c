/* key.c: keys of results, packed into a number and as text. */
#include "autograd/log/key.h"

#include <inttypes.h>
#include <stdio.h>

enum { VJP = TL_KEY_SUB_MAX + 1 }; /* added to sub: the vjp comes after the adding */

uint64_t tl_log_key_pack(tl_log_key k)
{
    uint64_t at = k.backward ? TL_KEY_AT_MAX - k.at
                             : k.at; /* backward runs from the last op to the first */
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
