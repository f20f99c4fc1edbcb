/* below.c: in whose memory a value lies. */
#include "autograd/internal.h"

tl_tensor tl_below(const tl_tape *t, tl_tensor x)
{
    const tl_value *v = x.owner == t->values.owner ? tl_values_at(&t->values, x.index) : NULL;
    if (v == NULL)
        return TL_NONE;
    if (v->node < 0)
        return v->source;
    const tl_node *n = &t->node[v->node];
    if (v->out != 0)
        return TL_NONE;
    return n->op->traits & TL_VIEW ? n->in[0]
           : tl_node_mutates(n)    ? n->in[n->op->mutates]
                                   : TL_NONE;
}

tl_tensor tl_attached(const tl_tape *t, tl_tensor x)
{
    while (x.owner == t->values.owner && tl_values_at(&t->values, x.index)->node < 0 &&
           !tl_is_none(tl_values_at(&t->values, x.index)->source))
        x = tl_values_at(&t->values, x.index)->source;
    return x;
}

/* Where x's own bottom is known, or one step down. */
static tl_tensor lower(const tl_tape *t, tl_tensor x)
{
    bool known = x.owner == t->values.owner &&
                 !tl_is_none(tl_values_at(&t->values, x.index)->bottom);
    return known ? tl_values_at(&t->values, x.index)->bottom : tl_below(t, x);
}

/* Chains of views and of changes in place are long: all on the way remember the bottom. */
tl_tensor tl_bottom(const tl_tape *t, tl_tensor x)
{
    tl_tensor bottom = x;
    for (tl_tensor y = lower(t, x); !tl_is_none(y); y = lower(t, y))
        bottom = y;
    for (tl_tensor y; !tl_is_none(y = lower(t, x)); x = y)
        tl_values_at(&t->values, x.index)->bottom = bottom;
    return bottom;
}
