/* causal_mask(key_start, key_end): true where query i may see key j (NUMERICS 7)
 * Shape:  (queries, keys), or (b, queries, keys) with ranges (b)
 * Dtype:  bool; ranges i64
 * Bits:   none computed
 * VJP:    none
 * Errors: TL_ESHAPE TL_EDTYPE TL_EINDEX (a range that is not within the keys) TL_EUSAGE (an option
 *         that only attention takes)
 */
#include "ops/build.h"

tl_status tl_key_range(tl_call *c, int at, int64_t i, int64_t keys, int64_t *start, int64_t *end)
{
    *start = c->in[at] != NULL ? tl_i64_at(c->in[at], i) : 0;
    *end = c->in[at + 1] != NULL ? tl_i64_at(c->in[at + 1], i) : keys;
    if (*start >= 0 && *end <= keys && *start <= *end)
        return TL_OK;
    return tl_call_fail(c, TL_EINDEX,
                        "sample %lld may see the keys from %lld up to %lld, of %lld that there are",
                        (long long)i, (long long)*start, (long long)*end, (long long)keys);
}

typedef struct {
    int64_t queries, keys;
    bool full;
} causal_mask_attrs;

static const tl_attr causal_mask_schema[] = {TL_FIELD(causal_mask, queries, I64),
                                             TL_FIELD(causal_mask, keys, I64),
                                             TL_FIELD(causal_mask, full, BOOL),
                                             {0}};

static tl_status mask_shape(tl_call *c)
{
    const causal_mask_attrs *a = c->attrs;
    tl_shape s = TL_DIMS(a->queries, a->keys);
    for (int i = 0; i < 2; i++) {
        const tl_array *x = c->in[i], *first = c->in[0] != NULL ? c->in[0] : x;
        if (x == NULL)
            continue;
        if (x->dtype != TL_I64 || x->ndim != 1 || x->dim[0] != first->dim[0])
            return tl_call_fail(c, x->dtype != TL_I64 ? TL_EDTYPE : TL_ESHAPE,
                                "ranges of keys: one I64 for each sample is needed");
        s = TL_DIMS(x->dim[0], a->queries, a->keys);
    }
    c->out[0] = tl_array_make(TL_BOOL, &s, NULL);
    return TL_OK;
}

static tl_status mask_forward(tl_call *c)
{
    const causal_mask_attrs *a = c->attrs;
    unsigned char *y = c->out[0].data;
    int64_t samples = c->out[0].ndim == 3 ? c->out[0].dim[0] : 1;
    for (int64_t b = 0; b < samples; b++) {
        int64_t start, end;
        TL_TRY(tl_key_range(c, 0, b, a->keys, &start, &end));
        for (int64_t i = 0; i < a->queries; i++)
            for (int64_t j = 0; j < a->keys; j++)
                *y++ = j >= start && j < end && (a->full || j <= i + (a->keys - a->queries));
    }
    return TL_OK;
}

const tl_op tl_op_causal_mask = {TL_NAMED(causal_mask, 2, 1), .optional = 3,
                                 .traits = TL_NONDIFF,        .shape = mask_shape,
                                 .forward = mask_forward,     TL_ATTRS(causal_mask),
                                 .batch = tl_first_axis};

tl_tensor tl_causal_mask_at(tl_at at, int64_t queries, int64_t keys, tl_attention_options o)
{
    /* With offsets the op applies only the ranges; other ops make the diagonal of each sample. */
    bool moved = !o.full && !tl_is_none(o.offset);
    causal_mask_attrs a = {queries, keys, o.full || moved};
    const char *other = !tl_is_none(o.mask)   ? "mask"
                        : !tl_is_none(o.bias) ? "bias"
                        : o.softcap != 0      ? "softcap"
                        : o.scale != 0        ? "scale"
                        : o.lse != NULL       ? "lse"
                                              : NULL;
    if (other != NULL)
        return tl_reject(at, TL_EUSAGE,
                         "causal_mask: .%s is attention's alone; a mask has .full, .key_start, "
                         ".key_end and .offset",
                         other);
    tl_tensor mask = tl_apply1(at, &tl_op_causal_mask, &a, (tl_tensor[]){o.key_start, o.key_end},
                               2);
    if (!moved)
        return mask;
    tl_tensor last = tl_positions_at(at, o.offset, TL_NONE, queries),
              column = tl_arange_at(at, TL_I64, 0, (double)keys, 1);
    last = tl_reshape_at(at, last, TL_DIMS(tl_shape_of(at.tape, last).dim[0], queries, 1));
    return tl_logical_and_at(at, mask, tl_le_at(at, column, last));
}
