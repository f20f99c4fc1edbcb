/* attention.c: causal self-attention with rotary positions and grouped heads. */
#include "nn/layers.h"

#include <stdio.h>
#include <stdlib.h>

/* Buffers NAME.cos and NAME.sin (n, dim), filled when they are made. */
static void table(tl_tape *t, tl_model *m, const char *name, int64_t n, int64_t dim, double base, tl_rotary_pairing pairing,
                  tl_tensor r[2])
{
    char cos[TL_NAME_MAX], sin[TL_NAME_MAX];
    tl_join(t, cos, name, "cos");
    tl_join(t, sin, name, "sin");
    bool fresh = tl_is_none(tl_model_find(m, sin));
    r[0] = tl_buffer(t, m, cos, TL_F32, TL_DIMS(n, dim));
    r[1] = tl_buffer(t, m, sin, TL_F32, TL_DIMS(n, dim));
    if (!fresh || tl_failed(t))
        return;
    size_t bytes = (size_t)(n * dim) * sizeof(float);
    float *r1 = malloc(2 * bytes + 1), *r2 = r1 == NULL ? NULL : r1 + n * dim;
    if (r1 == NULL || tl_rotary_table(0, n, dim, base, pairing, r1, r2) != TL_OK || tl_write(m, r[0], r1, bytes) != TL_OK ||
        tl_write(m, r[1], r2, bytes) != TL_OK)
        r[0] = r[1] = TL_NONE; /* the next op reports it */
    free(r1);
}

/* x (b, s, heads*d) seen as (b, s, heads, d). */
static tl_tensor by_head(tl_tape *t, tl_tensor x, int64_t heads)
{
    tl_shape s = tl_shape_of(t, x);
    return tl_reshape(t, x, TL_DIMS(s.dim[0], s.dim[1], heads, heads > 0 ? s.dim[2] / heads : 0));
}

static tl_tensor heads_first(tl_tape *t, tl_tensor x) { return tl_permute(t, x, TL_DIMS(0, 2, 1, 3)); }

tl_tensor tl_self_attention_at(tl_at at, tl_model *m, const char *name, tl_tensor x, tl_self_attention_options o)
{
    tl_tape *t = at.tape;
    int place = tl_place_push(at);
    tl_shape s = tl_shape_of(t, x);
    int64_t width = s.dim[2], kv = o.kv_heads ? o.kv_heads : o.heads, d = o.heads > 0 ? width / o.heads : 0;
    int64_t positions = o.max_positions ? o.max_positions : s.dim[1];
    tl_rotary_pairing pairing = o.pairing ? o.pairing : TL_ROTARY_HALF;
    tl_tensor r[2];
    table(t, m, "rope", positions, d, o.rope_base != 0 ? o.rope_base : 10000, pairing, r);
    for (int i = 0; i < 2; i++) /* (s, 1, d): the same for every sample and head */
        r[i] = tl_reshape(t, tl_slice(t, r[i], 0, 0, s.dim[1], 1), TL_DIMS(s.dim[1], 1, d));
    tl_tensor q = by_head(t, tl_project(t, m, name, "q", x, width, 1), o.heads);
    tl_tensor k = by_head(t, tl_project(t, m, name, "k", x, kv * d, 1), kv);
    tl_tensor v = by_head(t, tl_project(t, m, name, "v", x, kv * d, 1), kv);
    q = heads_first(t, tl_rotary(t, q, r[0], r[1], pairing));
    k = heads_first(t, tl_rotary(t, k, r[0], r[1], pairing));
    tl_tensor y = heads_first(t, tl_attention(t, q, k, heads_first(t, v)));
    y = tl_project(t, m, name, "o", tl_reshape(t, y, s), width, o.out_scale != 0 ? o.out_scale : 1);
    tl_place_pop(t, place);
    return y;
}
