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
    return n->op->traits & TL_VIEW ? n->in[0] : tl_node_mutates(n) ? n->in[n->op->mutates] : TL_NONE;
}

tl_tensor tl_bottom(const tl_tape *t, tl_tensor x)
{
    for (tl_tensor y = tl_below(t, x); !tl_is_none(y); y = tl_below(t, x))
        x = y;
    return x;
}
