"""unicode_classes.py > nn/unicode_classes.h: letters, numbers and white space, as byte-level BPE
splits text by them (\\p{L}, \\p{N}, \\s), asked of the tokenizers library (pip install tokenizers)."""

from tokenizers import Regex, normalizers

CODES = [x for x in range(0x110000) if not 0xD800 <= x < 0xE000]
VERSION = "16.0"  # of Unicode, that tokenizers 0.23.3 has: 141028 letters


def matched(pattern):
    without, found = normalizers.Replace(Regex(pattern), ""), set()
    for i in range(0, len(CODES), 4096):
        text = "".join(map(chr, CODES[i:i + 4096]))
        found |= {*map(ord, text)} - {*map(ord, without.normalize_str(text))}
    return found


letters, numbers, space = matched(r"\p{L}"), matched(r"\p{N}"), matched(r"\s")
was, starts = -1, []
for x in range(0x110000):
    now = 3 if x in space else 1 if x in letters else 2 if x in numbers else 0
    if now != was:
        was = now
        starts.append(f"0x{x << 2 | was:x}")
print(f"""/* unicode_classes.h: where runs of letters (1), numbers (2) and white space (3) begin, and of all
 * else (0): code << 2 | class, in ascending order. Unicode {VERSION}, written by
 * tests/support/unicode_classes.py. */
#ifndef TL_UNICODE_CLASSES_H
#define TL_UNICODE_CLASSES_H

#include <stdint.h>
""")
print("static const uint32_t tl_unicode_classes[] = {", ", ".join(starts), "};\n\n#endif")
