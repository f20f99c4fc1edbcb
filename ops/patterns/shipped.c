/* shipped.c: the replacements that every graph knows. */
#include "ops/patterns/patterns.h"

const tl_replacement *const tl_shipped_replacements[] = {
#define X(name) &tl_replace_##name,
    TL_REPLACEMENT_LIST(X)
#undef X
        NULL,
};
