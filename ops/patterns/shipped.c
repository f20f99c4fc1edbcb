/* shipped.c: the table of the replacements that every graph tries. */
#include "ops/patterns/patterns.h"

const tl_replacement *const tl_shipped_replacements[] = {
#define X(name) &tl_replace_##name,
    TL_REPLACEMENT_LIST(X)
#undef X
        NULL,
};
