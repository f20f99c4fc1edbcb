/* print_text.h: an array as text in a buffer, cut at cap. */
#ifndef TL_TESTS_PRINT_TEXT_H
#define TL_TESTS_PRINT_TEXT_H

#include <stdio.h>

#include "tensor/print.h"

static inline tl_status print_text(char *buf, size_t cap, const tl_array *a, tl_err *err)
{
    FILE *f = fmemopen(buf, cap, "w");
    tl_status s = f == NULL ? TL_EIO : tl_array_print(f, a, err);
    if (f != NULL)
        fclose(f);
    return s;
}

#endif
