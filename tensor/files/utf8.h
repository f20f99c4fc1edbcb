/* utf8.h: the bytes of one character, believed in nothing. For all rooms. */
#ifndef TL_UTF8_H
#define TL_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* How many of the n bytes at s are the first character (RFC 3629: the shortest form, no surrogates,
 * nothing above U+10FFFF); 0: they begin none. n > 0. */
static inline size_t tl_utf8_length(const char *s, size_t n)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *b = (const unsigned char *)s;
    if (*b < 0x80)
        return 1;
    size_t length = *b >> 5 == 6 ? 2 : *b >> 4 == 14 ? 3 : *b >> 3 == 30 ? 4 : 0;
    if (length == 0 || length > n)
        return 0;
    uint32_t x = *b & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if (b[i] >> 6 != 2)
            return 0;
        x = x << 6 | (b[i] & 0x3fu);
    }
    return x < least[length] || x > 0x10ffff || (x >= 0xd800 && x <= 0xdfff) ? 0 : length;
}

#endif
