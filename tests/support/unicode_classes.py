"""unicode_classes.py > nn/unicode_classes.h: letters, numbers and white space, as byte-level BPE
splits text by them (\\p{L}, \\p{N}, \\s), from Python's copy of the Unicode database."""

import unicodedata

SPACE = {*range(9, 14), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F}
SPACE |= {0x205F, 0x3000}


def kind(x):
    letter = unicodedata.category(chr(x))[0]
    return 3 if x in SPACE else 1 if letter == "L" else 2 if letter == "N" else 0


was, starts = -1, []
for x in range(0x110000):
    if kind(x) != was:
        was = kind(x)
        starts.append(f"0x{x << 2 | was:x}")
print(f"""/* unicode_classes.h: where runs of letters (1), numbers (2) and white space (3) begin, and of all
 * else (0): code << 2 | class, in ascending order. Unicode {unicodedata.unidata_version}, written by
 * tests/support/unicode_classes.py. */
#ifndef TL_UNICODE_CLASSES_H
#define TL_UNICODE_CLASSES_H

#include <stdint.h>
""")
print("static const uint32_t tl_unicode_classes[] = {", ", ".join(starts), "};\n\n#endif")
