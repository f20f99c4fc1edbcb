/* fused.c: the loop of several pointwise ops - how it is made from nodes, and run (internal.h). */
#include "autograd/graph/internal.h"

#include <string.h>

#include "tensor/isa.h"
#include "tensor/threads.h"

bool tl_fusable(const tl_node *n)
{
    return n->op->traits & (TL_POINTWISE | TL_STORES) &&
           (n->op->slot != 0 || n->op->tile != NULL) && n->op->n_out == 1 && n->kernel == NULL &&
           !(n->op->traits & (TL_MUTATES | TL_RANDOM)) && !(n->mode & TL_WATCHED_MODES) &&
           n->n_in > 0 && n->n_in <= TL_TILE_MAX_IN;
}

tl_dtype tl_tile_dtype(const tl_graph *g, const tl_node *n, int k)
{
    tl_dtype own = tl_peek(g->t, n->in[k])->a.dtype;
    if (!tl_dtype_is_float(own))
        return own;
    for (int i = 0; i < n->n_in; i++)
        if (tl_peek(g->t, n->in[i])->a.dtype == TL_F64)
            return TL_F64;
    return TL_F32;
}

/* ---- making ---- */

/* Which of the first n ops of the loop makes x; -1: none. */
static int member_of(const tl_graph *g, const tl_fused *f, int n, tl_tensor x)
{
    const int32_t maker = tl_maker_at(g->t, tl_graph_whole(g, x));
    int i = n - 1;
    while (i >= 0 && (int64_t)f->op[i].node != maker)
        i--;
    return i;
}

/* Adds to nodes[0 .. n) the nodes that the loop storing node i computes, node i last. Returns how
 * many there are then. */
static int members(const tl_graph *g, uint32_t i, uint32_t *nodes, int n)
{
    const tl_node *node = &g->t->node[i];
    for (int k = 0; k < node->n_in; k++) {
        const int32_t below = tl_maker_at(g->t, tl_graph_whole(g, node->in[k]));
        bool listed = below < 0 || !tl_inlined(g, (uint32_t)below);
        for (int j = 0; j < n; j++)
            listed |= nodes[j] == (uint32_t)below;
        if (!listed)
            n = members(g, (uint32_t)below, nodes, n);
    }
    nodes[n] = i;
    return n + 1;
}

/* The operand for x, read in tiles of that dtype by an op of that shape: one that the loop has
 * already, if it reads x in the same way. */
static int operand_for(const tl_graph *g, tl_fused *f, tl_tensor x, tl_dtype tile, tl_shape shape)
{
    x = tl_graph_resolve(g, x);
    for (int i = 0; i < f->n_in; i++)
        if (tl_same_handle(f->in[i].value, x) && f->in[i].tile == tile &&
            tl_shape_equal(&f->in[i].shape, &shape))
            return i;
    f->in[f->n_in] = (tl_fused_in){.value = x, .tile = tile, .shape = shape};
    return f->n_in++;
}

/* Makes the op of the node op i of the loop. */
static void add_op(const tl_graph *g, tl_fused *f, int i, uint32_t node)
{
    const tl_node *n = &g->t->node[node];
    const tl_array *y = &tl_values_at(&g->t->values, n->out)->a;
    tl_fused_op *o = &f->op[i];
    *o = (tl_fused_op){.node = node,
                       .tile = n->op->tile,
                       .slot = n->op->slot,
                       .attrs = n->attrs,
                       .n_in = n->n_in,
                       .dtype = y->dtype,
                       .tile_dtype = tl_tile_dtype(g, n, n->n_in - 1),
                       .stores = n->op->traits & TL_STORES};
    for (int k = 0; k < n->n_in; k++) {
        const int m = member_of(g, f, i, n->in[k]);
        o->from[k] = m >= 0
                         ? ~m
                         : operand_for(g, f, n->in[k], tl_tile_dtype(g, n, k), tl_array_shape(y));
    }
    f->heavy |= (n->op->traits & TL_HEAVY) != 0;
}

/* Gives each op a tile, and returns how many there are. A tile is free again after the last op that
 * reads it. Tile 0 is for values that are rounded and widened again. */
static int give_buffers(tl_fused *f)
{
    int last[TL_FUSED_OPS], owner[TL_FUSED_OPS + 1];
    for (int i = 0; i < f->n_ops; i++) {
        last[i] = i;
        for (int k = 0; k < f->op[i].n_in; k++)
            if (f->op[i].from[k] < 0)
                last[~f->op[i].from[k]] = i;
    }
    int n = 1;
    for (int i = 0; i < f->n_ops; i++) {
        int b = 1;
        while (b < n && last[owner[b]] >= i)
            b++;
        n += b == n;
        owner[b] = i;
        f->op[i].buffer = b;
    }
    return n;
}

static size_t wider(size_t unit, tl_dtype d)
{
    return tl_dtype_size(d) > unit ? tl_dtype_size(d) : unit;
}

/* Says how the loop walks each operand. Gathered ones get the tiles behind those of the ops. n:
 * elements of the loop. */
static void give_tiles(const tl_graph *g, tl_fused *f, int64_t n)
{
    int n_tiles = give_buffers(f);
    size_t unit = 1;
    for (int i = 0; i < f->n_ops; i++)
        unit = wider(wider(unit, f->op[i].tile_dtype), tl_dtype_compute(f->op[i].dtype));
    for (int i = 0; i < f->n_in; i++) {
        tl_fused_in *x = &f->in[i];
        const tl_array *a = tl_graph_array(g, x->value);
        const bool whole = tl_array_count(a) == n; /* the loop's elements in its order */
        const tl_array walked = whole ? *a : tl_array_expand(a, &x->shape);
        x->walk = tl_operand_of(&walked, x->tile);
        x->buffer = x->walk.direct ? 0 : n_tiles++;
        unit = wider(unit, x->tile);
    }
    f->tiles = tl_tiles_of(n_tiles, unit);
}

tl_fused *tl_fused_new(tl_graph *g, uint32_t node)
{
    uint32_t nodes[TL_FUSED_OPS];
    const tl_node *last = &g->t->node[node];
    const int n = tl_fusable(last) ? members(g, node, nodes, 0) : 1;
    size_t most = 0;
    if (n == 1)
        return NULL;
    for (int i = 0; i < n; i++)
        most += (size_t)g->t->node[nodes[i]].n_in;
    tl_fused *f = tl_graph_room(g, 1, sizeof *f);
    tl_fused_op *op = tl_graph_room(g, (size_t)n, sizeof *op);
    tl_fused_in *in = tl_graph_room(g, most, sizeof *in);
    if (g->head.err.status != TL_OK)
        return NULL;
    *f = (tl_fused){.n_ops = n, .op = op, .in = in};
    for (int i = 0; i < n; i++)
        add_op(g, f, i, nodes[i]);
    give_tiles(g, f, tl_array_count(tl_graph_array(g, tl_node_out(g->t, last, 0))));
    return f;
}

/* ---- running ---- */

/* Rounds what an op of a narrow dtype made, and stores it, or widens it again for later ops. */
static void settle(const tl_fused_op *o, int64_t n, void *tile, void *stored, void *narrow)
{
    const tl_convert_table *cv = tl_isa_now()->convert;
    size_t bytes = (size_t)n * tl_dtype_size(o->dtype);
    void *to = stored != NULL ? stored : narrow;
    if (o->stores)
        memcpy(to, tile, bytes);
    else
        cv->narrow(n, o->dtype, tile, to, 1);
    if (stored == NULL)
        cv->widen(n, o->dtype, to, 1, tile);
}

static void run_tiles(void *ctx, int64_t begin, int64_t end, TL_UNUSED int thread)
{
    const tl_fused *f = ctx;
    tl_tile_fn *const *const table = tl_isa_now()->tile;
    _Alignas(64) unsigned char tile[TL_TILES_BYTES];
    const size_t bytes = f->tiles.bytes;
    void *const narrow = tile; /* buffer 0, if there is an op that needs it */
    /* operands, and before them the ops' values, by tl_fused_op.from */
    const void *values[TL_FUSED_OPS + TL_FUSED_INS], **const value = values + TL_FUSED_OPS;
    for (int64_t at = begin; at < end; at += f->tiles.len) {
        int64_t n = end - at < f->tiles.len ? end - at : f->tiles.len;
        for (int i = 0; i < f->n_in; i++) {
            const tl_operand *o = &f->in[i].walk;
            void *gathered = tile + (size_t)f->in[i].buffer * bytes;
            value[i] = gathered;
            if (o->direct)
                value[i] = (const char *)o->a.data + at * (int64_t)tl_dtype_size(o->tile);
            else if (at == begin || !o->constant)
                tl_operand_move(o, at, n, gathered, false);
        }
        for (int i = 0; i < f->n_ops; i++) {
            const tl_fused_op *o = &f->op[i];
            bool last = i == f->n_ops - 1, half = o->dtype == TL_F16 || o->dtype == TL_BF16;
            void *stored = last ? f->out + at * (int64_t)tl_dtype_size(o->dtype) : NULL;
            tl_tile t; /* kernels read no more of `in` than their op has */
            t.n = n;
            t.dtype = o->tile_dtype;
            t.attrs = o->attrs;
            t.out = last && !half ? stored : tile + (size_t)o->buffer * bytes;
            for (int k = 0; k < o->n_in; k++)
                t.in[k] = value[o->from[k]];
            value[~i] = t.out;
            (o->slot != 0 ? table[o->slot] : o->tile)(&t);
            if (half)
                settle(o, n, t.out, stored, narrow);
        }
    }
}

void tl_fused_run(tl_fused *f, const tl_call *call)
{
    f->out = call->out[0].data;
    for (int i = 0; i < f->n_in; i++)
        f->in[i].walk.a.data = call->in[i]->data;
    tl_parallel_for(tl_array_count(&call->out[0]), f->heavy ? 4096 : 16384, run_tiles, f);
}
