/* safetensors_seal.c: where a header keeps the digest of its file.
 *
 * In JSON a quote inside a string has a backslash before it, so that the key with its own
 * quotes stands nowhere but where it is a key. */
#include "tensor/files/safetensors_seal.h"

#include <string.h>

#include "tensor/files/safetensors.h"

static const char *after(const char *s, const char *end, char c)
{
    while (s < end && (*s == ' ' || *s == '\t' || *s == '\n' || *s == '\r'))
        s++;
    return s < end && *s == c ? s + 1 : NULL;
}

static bool is_digest(const char *s, const char *end)
{
    for (int i = 0; i < TL_ST_DIGITS; i++, s++)
        if (s == end || !((*s >= '0' && *s <= '9') || (*s >= 'a' && *s <= 'f')))
            return false;
    return s < end && *s == '"';
}

char *tl_st_seal_digits(char *text, size_t n)
{
    static const char key[] = "\"" TL_ST_SEAL "\"";
    const char *end = text + n, *value;
    for (char *s = text; (size_t)(end - s) >= sizeof key - 1; s++) {
        if (memcmp(s, key, sizeof key - 1) != 0)
            continue;
        value = after(s + sizeof key - 1, end, ':');
        value = value == NULL ? NULL
                              : after(value, end, '"'); /* a tensor of that name has '{' here */
        if (value != NULL)
            return is_digest(value, end) ? text + (value - text) : NULL;
    }
    return NULL;
}

void tl_st_seal_clear(char *digits) { memset(digits, '0', TL_ST_DIGITS); }
