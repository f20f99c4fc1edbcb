/* attention.c: causal self-attention of decoders - where the tokens of a batch stand (padding, the
 * cache of keys and values), the tables of rotary positions, and grouped heads. */
#include "nn/layers.h"

#include <inttypes.h>

#include "tensor/threads.h"

/* ---- columns of a batch, and the cache ---- */

tl_kv_cache tl_kv_cache_new(tl_model *m, tl_dtype dtype, int64_t layers, int64_t b,
                            int64_t kv_heads, int64_t capacity, int64_t d)
{
    tl_shape s = TL_DIMS(layers, b, kv_heads, capacity, d);
    tl_kv_cache c = {0};
    const bool fits = layers >= 0 && b >= 0 && kv_heads >= 0 && capacity >= 0 && d >= 0;
    if (!fits && tl_error_begin(m) == TL_OK)
        tl_fail(tl_error_record(m), TL_ESHAPE,
                "tl_kv_cache_new: %" PRId64 " layers, %" PRId64 " samples, %" PRId64
                " heads, room for %" PRId64 " of %" PRId64 ": none can be below 0",
                layers, b, kv_heads, capacity, d);
    c.k = fits ? tl_zeros(m, dtype, s) : TL_NONE;
    c.v = tl_is_none(c.k) ? TL_NONE : tl_zeros(m, dtype, s);
    return tl_is_none(c.v) ? (tl_kv_cache){0} : c;
}

/* Checks that the cache, if there is one, has room for s further columns. */
static tl_status check_cache(tl_tape *t, const tl_columns *c, int64_t s)
{
    if (c->cache == NULL)
        return TL_OK;
    const tl_shape have = tl_shape_of(t, c->cache->k);
    const bool one_column = !tl_is_none(c->at);
    const int64_t n = c->cache->n;
    TL_TRY(tl_error_status(t));
    if (tl_traced(t))
        return tl_tape_fail(TL_AT(t), TL_ETRACED,
                            "a cache of keys and values has another length at each step: it cannot "
                            "be part of a trace");
    if (!(tl_mode(t) & TL_NO_GRAD))
        return tl_tape_fail(
            TL_AT(t), TL_ENOGRAD,
            "a cache of keys and values carries no gradient: record under TL_NO_GRAD");
    if (have.ndim != 5)
        return tl_tape_fail(TL_AT(t), TL_ESHAPE,
                            "a cache of shape %s: it was not made for this model, or never made",
                            TL_TEXT_OF(&have));
    if (one_column ? s != 1 : n < 0 || s > have.dim[3] - n)
        return tl_tape_fail(TL_AT(t), TL_ESHAPE,
                            "%lld columns more, where the cache holds %lld of at most %lld%s",
                            (long long)s, (long long)n, (long long)have.dim[3],
                            one_column ? "; `at` takes one at a time" : "");
    return TL_OK;
}

/* Checks that the cache can take x (b, kv_heads, s, d) as further columns. */
static tl_status check_keys(tl_tape *t, const tl_columns *c, int64_t layer, tl_tensor x)
{
    const tl_shape have = tl_shape_of(t, c->cache->k), s = tl_shape_of(t, x);
    TL_TRY(check_cache(t, c, s.dim[2]));
    if (layer < 0 || layer >= have.dim[0] || have.dim[1] != s.dim[0] || have.dim[2] != s.dim[1] ||
        have.dim[4] != s.dim[3])
        return tl_tape_fail(TL_AT(t), TL_ESHAPE,
                            "keys of shape %s for layer %lld of a cache of shape %s",
                            TL_TEXT_OF(&s), (long long)layer, TL_TEXT_OF(&have));
    return TL_OK;
}

/* The column of the cache that sample i is written to. */
static int64_t column_of(tl_tape *t, const tl_columns *c, int64_t i)
{
    int64_t at = -1;
    tl_keep(t, tl_select(t, c->at, 0, i), &at, sizeof at);
    return at;
}

/* Writes x after the columns held, or to column at[i] of each sample i. Returns the columns that a
 * query may see. */
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
    for (int64_t i = 0; i < s.dim[0] && !tl_failed(t); i++)
        tl_assign(t, tl_select(t, tl_select(t, all, 0, i), 1, column_of(t, c, i)),
                  tl_select(t, tl_select(t, x, 0, i), 1, 0));
    return all;
}

static void check_of_samples(tl_tape *t, tl_tensor x, const char *name, int64_t b)
{
    const tl_shape s = tl_shape_of(t, x);
    const tl_dtype dtype = tl_dtype_of(t, x);
    if (tl_usable(TL_AT(t), x, name) && (dtype != TL_I64 || s.ndim != 1 || s.dim[0] != b))
        tl_tape_fail(TL_AT(t), dtype != TL_I64 ? TL_EDTYPE : TL_ESHAPE,
                     "`%s` has shape %s, %s; I64 (%lld), a column for each sample, is needed", name,
                     TL_TEXT_OF(&s), tl_dtype_name(dtype), (long long)b);
}

/* Checks that `at` names columns of the cache: tl_select would count one below 0 from the end. */
static tl_status check_at(tl_tape *t, const tl_columns *c, int64_t b)
{
    tl_shape have = c->cache != NULL ? tl_shape_of(t, c->cache->k) : (tl_shape){0};
    check_of_samples(t, c->at, "at", b);
    for (int64_t i = 0; i < b && have.ndim == 5 && !tl_failed(t); i++) {
        int64_t at = column_of(t, c, i);
        if (at < 0 || at >= have.dim[3])
            tl_tape_fail(TL_AT(t), TL_EINDEX,
                         "`at` is %lld for sample %lld; the cache has columns 0 to %lld",
                         (long long)at, (long long)i, (long long)have.dim[3] - 1);
    }
    return tl_error_status(t);
}

int64_t tl_columns_positions(tl_tape *t, const tl_columns *c, int64_t b, int64_t s, int64_t most,
                             tl_tensor *ids)
{
    const int64_t first = c->cache != NULL ? c->cache->n : 0;
    *ids = TL_NONE;
    if (c->cache == NULL && !tl_is_none(c->at))
        tl_tape_fail(TL_AT(t), TL_EUSAGE, "`at` names columns of a cache; there is none");
    if (!tl_is_none(c->at) && !tl_is_none(c->end))
        tl_tape_fail(TL_AT(t), TL_EUSAGE, "`at` says where a sample ends; `end` does, too");
    if (check_cache(t, c, s) != TL_OK)
        return 0;
    const bool beyond = tl_is_none(c->at) && !tl_is_none(c->end) && most > 0 && s > most - first;
    if (tl_is_none(c->at) ? tl_is_none(c->start) && !beyond : check_at(t, c, b) != TL_OK)
        return first;
    tl_tensor from = c->at;
    if (tl_is_none(from)) {
        from = tl_fill(t, TL_I64, TL_DIMS(b), (double)first);
        tl_batch_axis(t, from, 0);
    }
    *ids = tl_positions_at(TL_AT(t), from, c->start, s);
    if (beyond) { /* padding needs no row of a table */
        check_of_samples(t, c->end, "end", b);
        tl_tensor column = tl_arange(t, TL_I64, (double)first, (double)(first + s), 1);
        *ids = tl_masked_fill(t, *ids, tl_ge(t, column, tl_reshape(t, c->end, TL_DIMS(b, 1))), 0);
    }
    return first;
}

/* ---- rotary positions ---- */

typedef struct {
    tl_rotary_kind kind; /* max_positions: rows of the table */
    tl_dtype dtype;      /* f32 or f64 */
    bool sin;
} table_spec;

/* Fills a table with cosines or sines. The other half is computed too and dropped; that happens
 * once for each table of a model. */
static tl_status fill_table(void *ctx, void *data)
{
    const table_spec *s = ctx;
    const tl_rotary_kind *k = &s->kind;
    const tl_rotary_scaling *by = k->scaling.factor != 0 ? &k->scaling : NULL;
    const int64_t n = k->max_positions;
    void *other = tl_calloc((size_t)(n * k->dim) + 1, tl_dtype_size(s->dtype));
    void *cos = s->sin ? other : data, *sin = s->sin ? data : other;
    if (other == NULL)
        return TL_ENOMEM;
    tl_status st = s->dtype == TL_F64
                       ? tl_rotary_table64(0, n, k->dim, k->base, k->pairing, by, cos, sin)
                       : tl_rotary_table_scaled(0, n, k->dim, k->base, k->pairing, by, cos, sin);
    tl_free_raw(other);
    return st;
}

/* A config may allow far more positions than are ever used. So a table has 4096 rows at first, or
 * 64 where any number is allowed (0), and another of twice as many is made when more are needed. */
static int64_t table_rows(int64_t allowed, int64_t needed)
{
    int64_t n = allowed > 0 ? 4096 : 64;
    while (n < needed)
        n *= 2;
    return allowed > 0 && allowed < n ? allowed : n;
}

/* The buffer of cosines or sines. Its name tells all that its contents depend on, so that a model
 * has one table for each kind that it uses. */
static tl_tensor table_of(tl_tape *t, tl_model *m, table_spec s)
{
    const tl_rotary_kind *k = &s.kind;
    char table[TL_NAME_MAX], name[TL_NAME_MAX];
    tl_textenv saved = tl_textenv_enter();
    int n = snprintf(table, sizeof table, "rope.%lldx%lld.%.17g.%s%s", (long long)k->max_positions,
                     (long long)k->dim, k->base,
                     k->pairing == TL_ROTARY_HALF ? "half" : "interleaved",
                     s.dtype == TL_F64 ? ".f64" : "");
    if (k->scaling.factor != 0)
        snprintf(table + n, sizeof table - (size_t)n, ".%.17g.%.17g.%.17g.%.17g", k->scaling.factor,
                 k->scaling.low_freq_factor, k->scaling.high_freq_factor, k->scaling.original);
    tl_textenv_leave(saved);
    return tl_buffer_filled_at(TL_AT(t), m, tl_join(t, name, table, s.sin ? "sin" : "cos"), s.dtype,
                               TL_DIMS(k->max_positions, k->dim), fill_table, &s);
}

/* Checks that tables of this kind can exist. */
static tl_status check_kind(tl_at at, const tl_rotary_kind *k)
{
    const tl_rotary_scaling *by = &k->scaling;
    if (k->pairing != TL_ROTARY_HALF && k->pairing != TL_ROTARY_INTERLEAVED)
        return tl_tape_fail(at, TL_EDOMAIN,
                            "rotary positions: pairing %d; say TL_ROTARY_HALF or "
                            "TL_ROTARY_INTERLEAVED",
                            (int)k->pairing);
    if (k->max_positions < 0 || k->dim < 2 || !(k->base > 0 && k->base - k->base == 0))
        return tl_tape_fail(at, TL_EDOMAIN,
                            "rotary positions: at most %lld of them, heads of %lld, base %g; 0 or "
                            "more, 2 or more and a finite number above 0 are needed",
                            (long long)k->max_positions, (long long)k->dim, k->base);
    if (by->factor != 0 && !(by->factor > 0 && by->low_freq_factor > 0 && by->original > 0 &&
                             by->high_freq_factor > by->low_freq_factor))
        return tl_tape_fail(at, TL_EDOMAIN,
                            "rotary positions: scaling by %g from %g to %g of %g; numbers above 0, "
                            "the second factor above the first, are needed",
                            by->factor, by->low_freq_factor, by->high_freq_factor, by->original);
    return TL_OK;
}

tl_rotary_rows tl_rotary_rows_of(tl_at at, tl_model *m, tl_tensor x, const tl_columns *c,
                                 const tl_rotary_kind *k)
{
    tl_tape *t = at.tape;
    const tl_shape s = tl_shape_of(t, x), held = c->cache != NULL ? tl_shape_of(t, c->cache->k) : s;
    table_spec spec = {*k, tl_dtype_compute(tl_dtype_of(t, x)), false};
    tl_tensor ids;
    spec.kind.base = k->base != 0 ? k->base : 10000;
    if (check_kind(at, &spec.kind) != TL_OK)
        return (tl_rotary_rows){.pairing = k->pairing};
    const int64_t first = tl_columns_positions(t, c, s.dim[0], s.dim[1], k->max_positions, &ids);
    if (k->max_positions > 0 && tl_is_none(ids) && s.dim[1] > k->max_positions - first)
        tl_tape_fail(at, TL_ESHAPE, "rotary positions: %lld after %lld, of at most %lld",
                     (long long)s.dim[1], (long long)first, (long long)k->max_positions);
    spec.kind.max_positions = table_rows(k->max_positions, held.dim[held.ndim == 5 ? 3 : 1]);
    tl_tensor table[2] = {table_of(t, m, spec)};
    spec.sin = true;
    table[1] = table_of(t, m, spec);
    for (int i = 0; i < 2; i++)
        table[i] = tl_is_none(ids)
                       ? tl_reshape(t, tl_slice(t, table[i], 0, first, first + s.dim[1], 1),
                                    TL_DIMS(s.dim[1], 1, k->dim))
                       : tl_reshape(t, tl_embedding(t, table[i], ids),
                                    TL_DIMS(s.dim[0], s.dim[1], 1, k->dim));
    return (tl_rotary_rows){table[0], table[1], k->pairing};
}

/* ---- attention ---- */

static tl_tensor heads_first(tl_tape *t, tl_tensor x)
{
    return tl_permute(t, x, TL_DIMS(0, 2, 1, 3));
}

/* x (b, s, heads*d) as (b, heads, s, d), rotated by r unless that is NULL. */
static tl_tensor by_head(tl_tape *t, tl_tensor x, int64_t heads, const tl_rotary_rows *r)
{
    tl_shape s = tl_shape_of(t, x);
    x = tl_reshape(t, x, TL_DIMS(s.dim[0], s.dim[1], heads, heads > 0 ? s.dim[2] / heads : 0));
    return heads_first(t, r == NULL ? x : tl_rotary(t, x, r->cos, r->sin, r->pairing));
}

tl_tensor tl_attend(tl_tape *t, tl_tensor q, tl_tensor k, tl_tensor v, int64_t heads,
                    int64_t kv_heads, const tl_rotary_rows *r, const tl_columns *c, int64_t layer)
{
    const tl_shape s = tl_shape_of(t, q);
    tl_attention_options keys = {.key_start = c->start, .key_end = c->end};
    q = by_head(t, q, heads, r);
    k = by_head(t, k, kv_heads, r);
    v = by_head(t, v, kv_heads, NULL);
    if (c->cache != NULL && check_keys(t, c, layer, k) == TL_OK) {
        k = append(t, c, c->cache->k, layer, k);
        v = append(t, c, c->cache->v, layer, v);
        if (!tl_is_none(c->at)) /* each query sees the columns up to its own */
            keys.key_end = tl_select(t, tl_positions(t, c->at, 2), 1, 1);
    }
    return tl_reshape(t, heads_first(t, tl_attention_at(TL_AT(t), q, k, v, keys)), s);
}

tl_tensor tl_self_attention_at(tl_at at, tl_model *m, const char *name, tl_tensor x,
                               tl_self_attention_options o)
{
    tl_tape *t = at.tape;
    int place = tl_share_push(at, o.shared);
    const tl_shape s = tl_shape_of(t, x);
    const int64_t width = s.dim[2], kv_heads = o.kv_heads != 0 ? o.kv_heads : o.heads;
    if (o.heads < 1)
        tl_tape_fail(at, TL_ESHAPE, "tl_self_attention: '%.100s' has .heads = %lld; 1 is the least",
                     tl_title(name), (long long)o.heads);
    else if (!tl_usable(TL_AT(t), x, "self_attention") || s.ndim != 3 || kv_heads < 1 ||
             width % o.heads != 0 || o.heads % kv_heads != 0)
        tl_tape_fail(TL_AT(t), TL_ESHAPE,
                     "self_attention: x %s in %lld heads, %lld of keys; x must be (b, s, width), "
                     "width a multiple of .heads, and .heads of .kv_heads",
                     TL_TEXT_OF(&s), (long long)o.heads, (long long)kv_heads);
    else if (width / o.heads % 2 != 0)
        tl_tape_fail(at, TL_ESHAPE,
                     "tl_self_attention: '%.100s': width %lld in %lld heads gives heads of %lld; "
                     "rotary positions need an even number",
                     tl_title(name), (long long)width, (long long)o.heads,
                     (long long)(width / o.heads));
    if (tl_failed(t))
        return tl_leave(t, place, TL_NONE);
    const int64_t d = width / o.heads;
    const tl_rotary_kind kind = {d, o.max_positions, o.rope_base, o.scaling,
                                 o.pairing != 0 ? o.pairing : TL_ROTARY_INTERLEAVED};
    const double in = tl_inv_sqrt(1, width),
                 out = tl_inv_sqrt(o.out_scale != 0 ? o.out_scale : 1, width);
    const tl_rotary_rows r = tl_rotary_rows_of(at, m, x, &o.columns, &kind);
    tl_tensor q = tl_project(t, m, name, "q", x, width, in, false, &o.project);
    tl_tensor k = tl_project(t, m, name, "k", x, kv_heads * d, in, false, &o.project);
    tl_tensor v = tl_project(t, m, name, "v", x, kv_heads * d, in, false, &o.project);
    tl_tensor y = tl_attend(t, q, k, v, o.heads, kv_heads, &r, &o.columns, o.layer);
    y = tl_project(t, m, name, "o", y, width, out, false, &o.project);
    return tl_leave(t, place, y);
}
