/* segment.c: values whose memory is released before backward: for good (tl_let_go), or to be
 * recomputed (checkpointing).
 *
 * A segment is a range of nodes. They stay recorded, but the memory of their outputs is released.
 * When backward first reaches one of them, those whose outputs are gone are called again in order
 * on the same inputs, which gives the same bits.
 * Source: Griewank & Walther 2000; Chen et al. 2016. */
#include <string.h>

#include "autograd/batch.h"
#include "tensor/files/hash.h"
#include "tensor/threads.h"

/* Whether some vjp would read v: its node's, or that of a node that uses it. */
static bool gradient_reads(const tl_tape *t, const tl_value *v)
{
    const tl_node *n = &t->node[v->node];
    bool reads = n->needs_grad && n->op->saves_out & TL_BIT(v->out);
    while (++n < t->node + t->n_nodes && !reads) {
        unsigned takes = 0, holds = 0;
        for (int k = 0; k < n->n_in && k < 32; k++) {
            const tl_value *in = tl_input(n, k);
            takes |= in != NULL && in->needs_grad ? TL_BIT(k) : 0;
            holds |= in == v ? TL_BIT(k) : 0;
        }
        reads = holds != 0 && n->needs_grad && tl_op_reads(n->op, takes) & holds;
    }
    return reads;
}

/* Leaves stay, since re-runs need them, and so do values made of parameters alone, for the next
 * micro-batch; and everything stays for an observer that reads values when backward begins. */
tl_status tl_let_go_at(tl_at at, tl_tensor x)
{
    tl_tape *t = at.tape;
    TL_TRY(tl_error_status(t));
    tl_value *v = tl_look_up(at, x, "tl_let_go", TL_VIEWS);
    if (v == NULL)
        return tl_error_status(t);
    if (x.owner != t->values.owner || v->node < 0 || v->st == NULL || v->fixed ||
        t->values_watched || gradient_reads(t, v) || tl_segment_awaits(t, v))
        return TL_OK;
    tl_value_give_back(v);
    v->let_go = true;
    return TL_OK;
}

uint32_t tl_segment_begin(tl_tape *t) { return tl_lives(t) ? t->n_nodes : 0; }

static bool kept(const tl_tape *t, const tl_tensor *keep, int n, uint32_t value)
{
    for (int i = 0; i < n; i++) /* a kept view holds its storage by itself */
        if (keep[i].owner == t->values.owner && keep[i].index == value)
            return true;
    return false;
}

static tl_status hash_array(const tl_array *a, unsigned char out[32], tl_err *err)
{
    tl_sha256_ctx h;
    TL_TRY(tl_sha256_begin(&h, err));
    tl_hash_array(&h, a);
    return tl_sha256_finish(&h, out, err);
}

/* Whether n can be run again: its inputs are there, or will have been recomputed. */
static bool repeatable(const tl_node *n)
{
    bool all = true;
    for (int i = 0; i < n->n_in; i++) {
        const tl_value *v = tl_input(n, i);
        all &= v == NULL || v->st != NULL || v->dropped;
    }
    return all;
}

tl_status tl_segment_end_at(tl_at at, uint32_t begin, const tl_tensor *keep, int n, bool verify)
{
    tl_tape *t = at.tape;
    TL_TRY(tl_error_status(t));
    if (begin > t->n_nodes || (t->segments != NULL && begin < t->segments->end))
        return tl_tape_fail(at, TL_EUSAGE,
                            "tl_segment_end: segments do not nest (begun at node %u, now %u)",
                            begin, t->n_nodes);
    for (uint32_t i = begin; i < t->n_nodes; i++)
        if (tl_node_mutates(&t->node[i]))
            return tl_tape_fail(
                at, TL_EUSAGE,
                "tl_segment_end: %s changes an operand in place and cannot be run again",
                t->node[i].op->name);
    TL_TRY(TL_NEED_N_AT(at, keep, n));
    for (int i = 0; i < n; i++)
        if (tl_deref(at, keep[i], "tl_segment_end") == NULL)
            return tl_error_status(t);
    if (begin == t->n_nodes || t->now.mode & TL_TRACE)
        return TL_OK;
    uint32_t first = t->node[begin].out, end = atomic_load(&t->values.count);
    tl_segment *s = tl_bump_get(&t->bump, sizeof *s);
    if (s != NULL && verify)
        s->hash = tl_bump_get(&t->bump, (end - first) * sizeof *s->hash);
    if (s == NULL || (verify && s->hash == NULL))
        return tl_tape_fail(at, TL_ENOMEM, "tl_segment_end: no memory");
    s->first = begin;
    s->end = t->n_nodes;
    for (uint32_t v = first; v < end && verify; v++)
        if (tl_values_at(&t->values, v)->st != NULL)
            TL_TRY(hash_array(&tl_values_at(&t->values, v)->a, s->hash[v - first], &t->head.err));
    for (uint32_t v = first; v < end; v++) {
        tl_value *val = tl_values_at(&t->values, v);
        if (val->node < 0 || kept(t, keep, n, v) || !repeatable(&t->node[val->node]))
            continue;
        tl_storage_release(val->st);
        val->st = NULL;
        val->dropped = true;
    }
    s->next = t->segments;
    t->segments = s;
    return TL_OK;
}

/* Whether n has a dropped output to recompute. If an input is gone as well, this backward does not
 * pass n, and nobody needs it. */
static bool missing(const tl_node *n)
{
    bool any = false;
    for (int j = 0; j < n->n_out; j++)
        any |= n->made[j]->dropped;
    for (int i = 0; i < n->n_in && any; i++) {
        const tl_value *v = tl_input(n, i);
        any = tl_is_none(n->in[i]) || (v != NULL && v->st != NULL);
    }
    return any;
}

/* Fails unless the recomputed outputs have the hashes of the first ones. */
static tl_status compare(tl_tape *t, const tl_segment *s, const tl_node *n, const tl_tensor *out)
{
    const uint32_t at = n->out - t->node[s->first].out;
    for (int j = 0; j < n->n_out && s->hash != NULL; j++) {
        unsigned char now[32];
        if (n->made[j]->let_go) /* it was not hashed */
            continue;
        TL_TRY(hash_array(&tl_peek(t, out[j])->a, now, &t->head.err));
        if (memcmp(now, s->hash[at + (uint32_t)j], 32) != 0)
            return tl_tape_fail((tl_at){t, n->file, n->line, NULL}, TL_EINPLACE,
                                "%s computed again differs from what the segment "
                                "dropped: an input was changed in between",
                                n->op->name);
    }
    return TL_OK;
}

/* Calls node i again. New outputs take the places of those that were dropped, but not of one that
 * was kept, and may have been changed or released since. Nothing is overwritten. */
static tl_status run_again(tl_tape *t, const tl_segment *s, uint32_t i)
{
    const tl_node n = t->node[i]; /* a copy: nodes may move */
    const uint32_t nodes = t->n_nodes, values = atomic_load(&t->values.count);
    tl_tensor out[TL_OUTS] = {TL_NONE};
    for (int k = 0; k < n.n_in; k++)
        TL_TRY(tl_input_unchanged(t, i, k, t, "", "its segment cannot be run again"));
    tl_again_apply(t, &n, n.in, n.mode | TL_NO_GRAD, out);
    if (!tl_failed(t))
        compare(t, s, &n, out);
    for (int j = 0; j < n.n_out && !tl_failed(t); j++) {
        tl_value *v = n.made[j], *made = tl_peek(t, out[j]);
        if (!v->dropped)
            continue;
        tl_storage_retain(v->st = made->st);
        v->a = made->a;
        v->plain = made->plain;
        v->born = made->born;
        v->dropped = v->freed = false;
        v->restored = true;
    }
    t->n_nodes = nodes; /* forget the second recording */
    tl_values_drop(&t->values, values);
    return tl_error_status(t);
}

tl_status tl_segment_restore(tl_tape *t, uint32_t n)
{
    tl_segment *s = t->segments;
    while (s != NULL && n < s->first)
        s = s->next;
    if (s == NULL || n >= s->end || s->there)
        return TL_OK;
    for (uint32_t i = s->first; i < s->end; i++)
        if (missing(&t->node[i]))
            TL_TRY(run_again(t, s, i));
    s->there = true;
    TL_TELL(t, segment_restored, t, s->first, s->end);
    return TL_OK;
}

bool tl_segment_awaits(const tl_tape *t, const tl_value *v)
{
    for (const tl_segment *s = t->segments; s != NULL && (int64_t)s->end > v->node; s = s->next)
        for (uint32_t i = s->first; i < s->end && !s->there; i++)
            for (int k = 0; k < t->node[i].n_in; k++)
                if (t->node[i].value[k] == v)
                    return true;
    return false;
}
