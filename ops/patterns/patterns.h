/* patterns.h: the shipped replacements, each once. One constant struct each, in the file of its name; see the cards there
 * for what is exact. A new one is added here. Tried in this order. */
#ifndef TL_OPS_PATTERNS_H
#define TL_OPS_PATTERNS_H

#include "autograd/graph/pattern.h"
#include "ops/ops.h"

#define TL_REPLACEMENT_LIST(X)                                                                                     \
    X(rms_norm_square) X(rms_norm_times) X(rms_norm_power) X(rms_norm_square_cast) X(rms_norm_times_cast)         \
    X(rms_norm_power_cast) X(rms_norm_square_cast_gamma) X(rms_norm_times_cast_gamma)                              \
    X(rms_norm_power_cast_gamma) X(rms_norm_bare_square) X(rms_norm_bare_times) X(rms_norm_bare_power)             \
    X(rms_norm_bare_square_cast) X(rms_norm_bare_times_cast) X(rms_norm_bare_power_cast)                           \
    X(add_rms_norm) X(rotary_half) X(rotary_half_front) X(rotary_chunks)              \
    X(rotary_chunks_front) X(swiglu) X(attention_full) X(attention_added_mask) X(attention_causal_mask)            \
    X(cross_entropy) X(cross_entropy_count)

#define X(name) extern const tl_replacement tl_replace_##name;
TL_REPLACEMENT_LIST(X)
#undef X

#endif
