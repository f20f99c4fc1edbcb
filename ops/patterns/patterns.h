/* patterns.h: the list of shipped replacements. Each is one constant struct in the file of its
 * family, whose card says what is exact; a new one is added here. They are tried in this order, so
 * a pattern that contains another comes before it. */
#ifndef TL_OPS_PATTERNS_H
#define TL_OPS_PATTERNS_H

#include "autograd/replace/pattern.h"
#include "ops/ops.h"
#include "tensor/memory.h"

/* clang-format off */
#define TL_REPLACEMENT_LIST(X)                                                                   \
    X(rms_norm_plus_one) X(rms_norm_plus_one_cast) X(rms_norm_plus_one_gamma) X(rms_norm)        \
    X(rms_norm_cast) X(rms_norm_cast_gamma) X(rms_norm_bare) X(rms_norm_bare_cast)               \
    X(add_rms_norm) X(add_rms_norm_bare) X(rotary_half) X(rotary_chunks) X(rotary_interleaved)   \
    X(rotary_pairs) X(silu) X(silu_exp) X(swiglu) X(attention_grouped)                           \
    X(attention_grouped_divided) X(attention_full) X(attention_divided) X(attention_scaled)      \
    X(attention_added) X(attention_chosen) X(attention_constant) X(attention_excluded)           \
    X(cross_entropy) X(cross_entropy_count) X(cross_entropy_gather)
/* Begins a function that writes a pattern, or what replaces it. */
#define TL_PATTERN(id)                                                                           \
    static void id(tl_tape *t, const tl_tensor *in, TL_UNUSED int n, tl_tensor *out,             \
                   TL_UNUSED int n_out, TL_UNUSED void *ctx)
/* Defines one; other fields of tl_replacement follow n_out. */
#define TL_REPLACE(id, search_, replace_, args, n_in_, n_out_, ...)                              \
    const tl_replacement tl_replace_##id = {                                                     \
        .name = #id, .search = search_, .replace = replace_,                                     \
        .example_inputs = args, .n_in = n_in_, .n_out = n_out_, __VA_ARGS__};
/* clang-format on */

/* Dtypes that are their own compute types. */
enum { TL_WIDE = TL_BIT(TL_F32) | TL_BIT(TL_F64) };

#define X(name) extern const tl_replacement tl_replace_##name;
TL_REPLACEMENT_LIST(X)
#undef X

#endif
