/* decoder.c: what decoders of any kind share - what the numbers of a config must be to one another
 * and to the batch; where the tokens of a batch stand: padding, positions, the cache of keys and
 * values.
 */
#include "nn/layers.h"

static bool refuse(tl_tape *t, const char *fmt, ...) TL_PRINTF(2, 3);
static bool refuse(tl_tape *t, const char *fmt, ...)
{
    tl_err e = {.status = TL_OK};
    va_list ap;
    va_start(ap, fmt);
    tl_vfail(&e, TL_ESHAPE, fmt, ap);
    va_end(ap);
    tl_tape_fail(TL_AT(t), TL_ESHAPE, "%s", e.message);
    return false;
}

static bool fits(tl_tape *t, const tl_decoder_numbers *c)
{
    const struct {
        const char *name;
        int64_t n;
    } least[] = {{"vocab", c->vocab},
                 {"width", c->width},
                 {"layers", c->layers},
                 {"heads", c->heads},
                 {"hidden", c->hidden}};
    for (size_t i = 0; i < sizeof least / sizeof *least; i++)
        if (least[i].n < 1)
            return refuse(t,
                          "%s: the config's %s is %lld; 1 is the least (vocab %lld, width %lld, "
                          "layers %lld, heads %lld, hidden %lld)",
                          c->name, least[i].name, (long long)least[i].n, (long long)c->vocab,
                          (long long)c->width, (long long)c->layers, (long long)c->heads,
                          (long long)c->hidden);
    if (c->width % c->heads != 0)
        return refuse(t, "%s: the config's width %lld is not a multiple of its heads %lld", c->name,
                      (long long)c->width, (long long)c->heads);
    if (c->kv_heads < 0 || (c->kv_heads > 0 && c->heads % c->kv_heads != 0))
        return refuse(t, "%s: the config's heads %lld are not a multiple of its kv_heads %lld",
                      c->name, (long long)c->heads, (long long)c->kv_heads);
    if (c->max_positions < 0)
        return refuse(t, "%s: the config's max_positions is %lld; 0 is the least", c->name,
                      (long long)c->max_positions);
    if (c->rotary && c->width / c->heads % 2 != 0)
        return refuse(t,
                      "%s: the config's width %lld with heads %lld makes heads of %lld numbers; "
                      "rotary positions turn pairs",
                      c->name, (long long)c->width, (long long)c->heads,
                      (long long)(c->width / c->heads));
    if ((unsigned)c->pairing > TL_ROTARY_INTERLEAVED)
        tl_tape_fail(TL_AT(t), TL_EDOMAIN,
                     "%s: the config's pairing is %d; say TL_ROTARY_HALF or TL_ROTARY_INTERLEAVED",
                     c->name, (int)c->pairing);
    return !tl_failed(t);
}

bool tl_decoder_check(tl_tape *t, const tl_decoder_numbers *c, tl_tensor ids,
                      const tl_columns *columns)
{
    tl_shape s = tl_shape_of(t, ids);
    char text[TL_SHAPE_TEXT];
    int64_t held = columns->cache != NULL && tl_is_none(columns->at) ? columns->cache->n : 0;
    if (tl_failed(t) || !fits(t, c))
        return false;
    if (s.ndim != 2)
        return refuse(t, "%s: ids have shape %s; (b, s) is needed", c->name,
                      tl_shape_text(text, &s));
    if (c->max_positions > 0 && tl_is_none(columns->start) && held + s.dim[1] > c->max_positions)
        return refuse(t, "%s: ids %s make %lld positions, but the config's max_positions is %lld",
                      c->name, tl_shape_text(text, &s), (long long)(held + s.dim[1]),
                      (long long)c->max_positions);
    return true;
}

/* ---- columns ---- */

tl_kv_cache tl_kv_cache_new(tl_model *m, tl_dtype dtype, int64_t layers, int64_t b,
                            int64_t kv_heads, int64_t capacity, int64_t d)
{
    tl_shape s = TL_DIMS(layers, b, kv_heads, capacity, d);
    tl_kv_cache c = {.n = 0};
    c.k = tl_zeros(m, dtype, s);
    c.v = tl_is_none(c.k) ? TL_NONE : tl_zeros(m, dtype, s);
    return c;
}

/* The cache can take x (b, heads, s, d) as further columns. */
static bool cache_fits(tl_tape *t, const tl_columns *c, int64_t layer, tl_tensor x)
{
    tl_shape have = tl_shape_of(t, c->cache->k), s = tl_shape_of(t, x);
    char a[TL_SHAPE_TEXT], b[TL_SHAPE_TEXT];
    int64_t n = tl_is_none(c->at) ? c->cache->n : 0;
    if (tl_failed(t))
        return false;
    if (tl_traced(t)) {
        tl_tape_fail(TL_AT(t), TL_ETRACED,
                     "a cache of keys and values has another length at each step: it cannot be "
                     "part of a trace");
        return false;
    }
    if (!(tl_mode(t) & TL_NO_GRAD)) {
        tl_tape_fail(TL_AT(t), TL_ENOGRAD,
                     "a cache of keys and values carries no gradient: record under TL_NO_GRAD");
        return false;
    }
    if (have.ndim != 5 || layer >= have.dim[0] || have.dim[1] != s.dim[0] ||
        have.dim[2] != s.dim[1] || have.dim[4] != s.dim[3]) {
        tl_tape_fail(TL_AT(t), TL_ESHAPE, "keys of shape %s for layer %lld of a cache of shape %s",
                     tl_shape_text(a, &s), (long long)layer, tl_shape_text(b, &have));
        return false;
    }
    if (n < 0 || n + s.dim[2] > have.dim[3] || (!tl_is_none(c->at) && s.dim[2] != 1)) {
        tl_tape_fail(TL_AT(t), TL_ESHAPE,
                     "%lld columns more, where the cache holds %lld of at most %lld%s",
                     (long long)s.dim[2], (long long)n, (long long)have.dim[3],
                     tl_is_none(c->at) ? "" : "; `at` takes one at a time");
        return false;
    }
    return true;
}

/* Writes x after the columns held, or in column at[i] of sample i; returns the columns that may be
 * seen. */
static tl_tensor append(tl_tape *t, const tl_columns *c, tl_tensor cache, int64_t layer,
                        tl_tensor x)
{
    tl_shape s = tl_shape_of(t, x);
    tl_tensor all = tl_select(t, cache, 0, layer);
    if (tl_is_none(c->at)) {
        int64_t n = c->cache->n, end = n + s.dim[2];
        tl_assign(t, tl_slice(t, all, 2, n, end, 1), x);
        return tl_slice(t, all, 2, 0, end, 1);
    }
    for (int64_t i = 0; i < s.dim[0] && !tl_failed(t); i++) {
        int64_t at = 0;
        tl_keep(t, tl_select(t, c->at, 0, i), &at, sizeof at);
        tl_assign(t, tl_select(t, tl_select(t, all, 0, i), 1, at),
                  tl_select(t, tl_select(t, x, 0, i), 1, 0));
    }
    return all;
}

void tl_columns_keys(tl_tape *t, const tl_columns *c, int64_t layer, tl_tensor *k, tl_tensor *v,
                     tl_attention_options *keys)
{
    keys->key_start = c->start;
    keys->key_end = c->end;
    if (c->cache == NULL) {
        if (!tl_is_none(c->at))
            tl_tape_fail(TL_AT(t), TL_EUSAGE, "`at` names columns of a cache; there is none");
        return;
    }
    if (!cache_fits(t, c, layer, *k))
        return;
    *k = append(t, c, c->cache->k, layer, *k);
    *v = append(t, c, c->cache->v, layer, *v);
    if (!tl_is_none(c->at)) /* up to the column itself */
        keys->key_end = tl_select(t, tl_positions(t, c->at, 2), 1, 1);
}

/* `at` names columns that the cache has: one below 0 would count from its end. */
static bool at_fits(tl_tape *t, const tl_columns *c, int64_t b)
{
    tl_shape have = c->cache != NULL ? tl_shape_of(t, c->cache->k) : (tl_shape){0};
    for (int64_t i = 0; i < b && have.ndim == 5 && !tl_failed(t); i++) {
        int64_t at = -1;
        if (tl_keep(t, tl_select(t, c->at, 0, i), &at, sizeof at) == TL_OK &&
            (at < 0 || at >= have.dim[3]))
            tl_tape_fail(TL_AT(t), TL_EINDEX,
                         "`at` is %lld for sample %lld; the cache has columns 0 to %lld",
                         (long long)at, (long long)i, (long long)have.dim[3] - 1);
    }
    return !tl_failed(t);
}

int64_t tl_columns_positions(tl_tape *t, const tl_columns *c, int64_t b, int64_t s, tl_tensor *ids)
{
    int64_t first = c->cache != NULL ? c->cache->n : 0;
    *ids = TL_NONE;
    if ((tl_is_none(c->start) && tl_is_none(c->at)) || (!tl_is_none(c->at) && !at_fits(t, c, b)))
        return first;
    tl_tensor from = tl_is_none(c->at) ? tl_fill(t, TL_I64, TL_DIMS(b), (double)first) : c->at;
    *ids = tl_is_none(c->start) ? tl_positions(t, from, s)
                                : tl_positions_after(t, c->start, from, s);
    return first;
}

void tl_columns_advance(tl_tape *t, const tl_columns *c, int64_t s)
{
    if (c->cache != NULL && tl_is_none(c->at) && !tl_failed(t))
        c->cache->n += s;
}
