/* order.c: the canonical order of nodes; what a node reads.
 *
 * C does not fix the order in which arguments are evaluated, so compilers record the same program
 * in different orders. The post-order from the outputs, inputs from left to right, is the same for
 * all of them; everything that could show in a bit follows it.
 *
 * This order respects what a node reads, but not who still needs the memory that an in-place op
 * overwrites. It need not: a value is what its memory held when it was made (reading it after a
 * change is an error), so a re-run gives each in-place op a copy of its operand and gets the same
 * values in any order. */
#include "autograd/batch.h"

/* ---- what a node reads ---- */

const tl_node *tl_view_at(const tl_tape *t, const tl_value *x)
{
    const tl_node *n = x->node < 0 ? NULL : &t->node[x->node];
    return n != NULL && (n->op->traits & (TL_VIEW | TL_REPEATS)) == TL_VIEW ? n : NULL;
}

tl_status tl_view_offset(const tl_node *n, const tl_array *of, int64_t *offset, tl_err *err)
{
    tl_array in = *of, out = {0};
    const tl_array *ins = &in;
    tl_err e = {.status = TL_OK};
    tl_call c = {
        .op = n->op, .attrs = n->attrs, .n_in = 1, .n_out = 1, .in = &ins, .out = &out, .err = &e};
    in.data = &c; /* any address but NULL */
    tl_status s = n->op->shape(&c);
    const char *again = s == TL_OK ? "" : "its shape rule fails when it is asked again: ";
    s = s == TL_OK ? tl_view_check(&out, &in, !(n->op->traits & TL_REPEATS), &e) : s;
    if (s != TL_OK)
        return tl_fail(err, s, "%s: %s%s", n->op->name, again, e.message);
    *offset += (int64_t)((uintptr_t)out.data - (uintptr_t)in.data);
    return TL_OK;
}

tl_tensor tl_leaf_under(const tl_tape *t, tl_tensor x)
{
    x = tl_behind(t, x, TL_VIEW, TL_REPEATS);
    return tl_maker_at(t, x) < 0 ? x : TL_NONE;
}

tl_tensor tl_accumulates(const tl_tape *t, const tl_node *n, int k)
{
    const tl_tensor x = tl_behind(t, n->in[k], TL_VIEW, TL_REPEATS);
    const tl_value *v = tl_peek(t, x);
    const bool ends = v == NULL || v->node < 0 || (v->fixed && v->needs_grad && !n->made[0]->fixed);
    return ends ? x : TL_NONE;
}

bool tl_changed_since(tl_tape *t, uint32_t node, int k, tl_changer *by)
{
    const tl_node *n = &t->node[node];
    const tl_value *v = k < n->n_in ? tl_input(n, k) : n->made[k - n->n_in];
    if (v == NULL)
        return false;
    const tl_tensor below = t->recorder == NULL ? TL_NONE : tl_bottom(t, v->self);
    if (tl_is_none(below) || below.owner == t->values.owner)
        return v->st != NULL &&
               tl_storage_changed(v->st, v->restored ? v->born : n->versions[k], &v->a, by);
    const int64_t last = t->recorder->last_change(t->recorder_ctx, t, below);
    if (last > (int64_t)node)
        *by = (tl_changer){t->node[last].op->name, t->node[last].file, t->node[last].line};
    return last > (int64_t)node;
}

tl_status tl_input_unchanged(tl_tape *t, uint32_t node, int k, tl_tape *on, const char *who,
                             const char *why)
{
    const tl_node *n = &t->node[node];
    tl_changer by;
    char text[TL_CHANGER_TEXT], name[TL_SHOWN_TEXT];
    if (!tl_changed_since(t, node, k, &by))
        return TL_OK;
    return tl_tape_fail((tl_at){on, n->file, n->line, NULL}, TL_EINPLACE,
                        "%sinput %d of %s%s was changed in place by %s: %s", who, k, n->op->name,
                        tl_shown_text(name, t, n->in[k]), tl_changer_text(text, by), why);
}

/* ---- the order ---- */

/* The node of this tape that made x; -1 for leaves and other owners. Follows what a vjp has
 * detached to its source only if asked: a re-run depends on the source, gradients do not. */
static int32_t producer(const tl_tape *t, tl_tensor x, bool through_detached)
{
    if (x.generation != t->generation)
        return -1;
    return tl_maker_at(t, through_detached ? tl_attached(t, x) : x);
}

void tl_postorder_begin(tl_postorder *o, tl_tape *t, tl_follow *follow, void *ctx)
{
    *o = (tl_postorder){.t = t, .visit = ++t->visits, .at = -1, .follow = follow, .ctx = ctx};
}

void tl_postorder_from(tl_postorder *o, int32_t node)
{
    if (node < 0 || o->t->node[node].visit == o->visit)
        return;
    tl_node *n = &o->t->node[node];
    n->visit = o->visit;
    n->link = o->at;
    n->next = 0;
    o->at = node;
}

int32_t tl_postorder_next(tl_postorder *o)
{
    while (o->at >= 0) {
        tl_node *n = &o->t->node[o->at];
        if (n->next == n->n_in) {
            int32_t done = o->at;
            o->at = n->link;
            return done;
        }
        int k = n->next++;
        tl_postorder_from(o, o->follow(o->ctx, n, k));
    }
    return -1;
}

/* What an order takes in. */
typedef struct {
    const tl_tape *t;
    tl_order_end end;
    uint32_t first; /* below the root only what made values from this number on */
} extent;

static int32_t follow(void *ctx, const tl_node *n, int k)
{
    const extent *e = ctx;
    const int32_t to = producer(e->t, n->in[k], e->end == TL_TO_ALL);
    if (to < 0 || e->end == TL_TO_ALL)
        return to;
    const tl_node *below = &e->t->node[to];
    const bool on = below->needs_grad && below->out + (uint32_t)below->n_out > e->first &&
                    (e->end != TL_TO_LEAVES || tl_is_none(tl_accumulates(e->t, n, k)));
    return on ? to : -1;
}

static tl_status collect(tl_tape *t, tl_tensor y, extent e, uint32_t **order, uint32_t *n)
{
    tl_postorder o;
    int32_t last = -1;
    const int32_t root = producer(t, y, e.end == TL_TO_ALL);
    *n = 0;
    tl_postorder_begin(&o, t, follow, &e);
    if (root >= 0 && (e.end == TL_TO_ALL || t->node[root].needs_grad))
        tl_postorder_from(&o, root);
    for (int32_t i; (i = tl_postorder_next(&o)) >= 0; ++*n) { /* their number is not known yet */
        t->node[i].link = last;
        last = i;
    }
    *order = tl_tape_room(t, *n, sizeof **order);
    if (*order == NULL)
        return tl_error_status(t);
    for (uint32_t i = *n; i-- > 0; last = t->node[last].link)
        (*order)[i] = (uint32_t)last;
    return TL_OK;
}

tl_status tl_canonical_order(tl_tape *t, tl_tensor y, tl_order_end end, uint32_t **order,
                             uint32_t *n)
{
    return collect(t, y, (extent){t, end, 0}, order, n);
}

tl_status tl_order_since(tl_tape *t, tl_tensor y, uint32_t first, uint32_t **order, uint32_t *n)
{
    return collect(t, y, (extent){t, TL_TO_GRAD, first}, order, n);
}
