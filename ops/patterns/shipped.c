/* shipped.c: the replacements that every graph knows. */
#include "ops/patterns/patterns.h"

const tl_replacement *const tl_shipped_replacements[] = {
    &tl_replace_add_rms_norm,
    NULL,
};
