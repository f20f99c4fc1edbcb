/* config.c: what the numbers of a decoder's config must be to one another, and to the batch. */
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
    if (c->rotary && c->width / c->heads % 2 != 0)
        return refuse(t,
                      "%s: the config's width %lld with heads %lld makes heads of %lld numbers; "
                      "rotary positions turn pairs",
                      c->name, (long long)c->width, (long long)c->heads,
                      (long long)(c->width / c->heads));
    return true;
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
