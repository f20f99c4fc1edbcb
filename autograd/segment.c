/* segment.c: checkpointing - values dropped after forward and computed again.
 *
 * A segment is a run of nodes. Its nodes stay recorded; only storage goes. When
 * backward reaches the first of them, all are run again in recorded order, each
 * into fresh storage of the same layout: the same ops on the same inputs, so the
 * same bits. Source: Griewank & Walther 2000; Chen et al. 2016. */
#include <string.h>

#include "autograd/walk.h"
#include "tensor/files/hash.h"
#include "tensor/threads.h"

uint32_t tl_segment_begin(tl_tape *t) { return t == NULL ? 0 : t->n_nodes; }

static bool kept(const tl_tape *t, const tl_tensor *keep, int n, uint32_t value)
{
    for (int i = 0; i < n; i++) /* a view keeps its storage alive by itself */
        if (keep[i].owner == t->values.owner && keep[i].index == value)
            return true;
    return false;
}

static tl_status hash_value(const tl_value *v, unsigned char out[32], tl_err *err)
{
    tl_sha256_ctx h;
    TL_TRY(tl_sha256_begin(&h, err));
    tl_hash_array(&h, &v->a);
    return tl_sha256_finish(&h, out, err);
}

tl_status tl_segment_end_at(tl_at at, uint32_t begin, const tl_tensor *keep, int n, bool verify)
{
    tl_tape *t = at.tape;
    if (tl_failed(t))
        return tl_error_status(t);
    if (begin > t->n_nodes || (t->segments != NULL && begin < t->segments->end))
        return tl_tape_fail(at, TL_EUSAGE,
                            "tl_segment_end: segments do not nest (begun at node %u, now %u)",
                            begin, t->n_nodes);
    for (uint32_t i = begin; i < t->n_nodes; i++)
        if (t->node[i].op->traits & TL_MUTATES &&
            !tl_is_none(t->node[i].in[t->node[i].op->mutates]))
            return tl_tape_fail(
                at, TL_EUSAGE,
                "tl_segment_end: %s changes an operand in place and cannot be run again",
                t->node[i].op->name);
    if (begin == t->n_nodes || t->mode & TL_TRACE)
        return TL_OK;
    uint32_t first = t->node[begin].out, end = atomic_load(&t->values.count);
    tl_segment *s = tl_bump_get(&t->bump, sizeof *s);
    if (s != NULL && verify)
        s->hash = tl_bump_get(&t->bump, (end - first) * sizeof *s->hash);
    if (s == NULL || (verify && s->hash == NULL))
        return tl_tape_fail(at, TL_ENOMEM, "tl_segment_end: no memory");
    s->first = begin;
    s->end = t->n_nodes;
    for (uint32_t v = first; v < end; v++) {
        tl_value *val = tl_values_at(&t->values, v);
        if (verify && val->st != NULL)
            TL_TRY(hash_value(val, s->hash[v - first], &t->head.err));
        if (val->node < 0 || kept(t, keep, n, v))
            continue;
        tl_storage_release(val->st);
        val->st = NULL;
        val->dropped = true;
    }
    s->next = t->segments;
    t->segments = s;
    return TL_OK;
}

/* Runs node n again; outputs that still have storage keep it. */
static tl_status run_again(tl_tape *t, const tl_node *n)
{
    const tl_array **in = tl_bump_get(&t->bump, (size_t)(n->n_in + 1) * sizeof *in);
    tl_array *out = tl_bump_get(&t->bump, (size_t)(n->n_out + 1) * sizeof *out);
    bool missing = false;
    if (in == NULL || out == NULL)
        return tl_fail(&t->head.err, TL_ENOMEM, "no memory to run %s again", n->op->name);
    for (int i = 0; i < n->n_in; i++)
        in[i] = tl_is_none(n->in[i]) ? NULL : &tl_peek(t, n->in[i])->a;
    for (int j = 0; j < n->n_out; j++)
        missing |= tl_values_at(&t->values, n->out + (uint32_t)j)->dropped;
    for (int i = 0; i < n->n_in;
         i++) /* an input is gone: this node led nowhere, and nobody asks for its output */
        missing &= tl_is_none(n->in[i]) || tl_peek(t, n->in[i])->st != NULL;
    if (!missing)
        return TL_OK;
    for (int i = 0; i < n->n_in; i++) {
        const tl_value *v = tl_is_none(n->in[i]) ? NULL : tl_peek(t, n->in[i]);
        const tl_change *by = v == NULL ? NULL
                                        : tl_storage_changed(v->st,
                                                             v->restored ? v->born : n->versions[i],
                                                             &v->a);
        if (by != NULL)
            return tl_tape_fail((tl_at){t, n->file, n->line}, TL_EINPLACE,
                                "tl_backward: input %d of %s was changed in place by %s "
                                "(%.90s:%d): its segment cannot be run again",
                                i, n->op->name, by->what, by->file == NULL ? "?" : by->file,
                                by->line);
    }
    tl_call c = {.op = n->op,
                 .attrs = n->attrs,
                 .n_in = n->n_in,
                 .n_out = n->n_out,
                 .in = in,
                 .out = out,
                 .mode = n->mode,
                 .arena = t->arena,
                 .err = &t->head.err,
                 .kernel = n->kernel};
    TL_TRY(n->op->shape(&c));
    for (int j = 0; j < n->n_out; j++) {
        tl_value *v = tl_values_at(&t->values, n->out + (uint32_t)j);
        bool view = n->op->traits & TL_VIEW;
        tl_storage *st = view ? tl_peek(t, n->in[0])->st : NULL;
        if (view)
            tl_storage_retain(st);
        else
            st = tl_storage_new(t->arena, (size_t)tl_array_count(&v->a) * tl_dtype_size(v->a.dtype),
                                false);
        if (st == NULL)
            return tl_fail(&t->head.err, TL_ENOMEM, "no memory to run %s again", n->op->name);
        if (!view) {
            out[j] = v->a;
            out[j].data = st->data;
        }
        if (v->dropped) { /* a value that was kept is computed beside itself, and that copy goes */
            v->a = out[j];
            v->st = st;
            v->dropped = false;
            v->restored = true;
            v->born = view && n->in[0].owner == t->values.owner ? tl_peek(t, n->in[0])->born
                                                                : st->version;
        } else {
            tl_storage_release(st);
            out[j] = v->a;
        }
    }
    if (n->op->traits & TL_VIEW)
        return TL_OK;
    const tl_seen seen = {&c, n->file, n->line, n->phase, (uint32_t)(n - t->node), 1};
    tl_tell_runs(t, &seen);
    tl_fpenv saved = tl_fpenv_enter();
    tl_status s = tl_op_run(&c);
    tl_fpenv_leave(saved);
    return s == TL_OK ? tl_tell_ran(t, &seen) : s;
}

static tl_status compare(tl_tape *t, const tl_segment *s, const tl_node *n)
{
    uint32_t first = t->node[s->first].out;
    for (int j = 0; j < n->n_out; j++) {
        unsigned char now[32];
        tl_value *v = tl_values_at(&t->values, n->out + (uint32_t)j);
        if (v->st == NULL)
            continue;
        TL_TRY(hash_value(v, now, &t->head.err));
        if (memcmp(now, s->hash[n->out + (uint32_t)j - first], 32) != 0)
            return tl_tape_fail((tl_at){t, n->file, n->line}, TL_EINPLACE,
                                "tl_backward: %s computed again differs from what the segment "
                                "dropped: an input was changed in between",
                                n->op->name);
    }
    return TL_OK;
}

tl_status tl_segment_restore(tl_tape *t, uint32_t n)
{
    tl_segment *s = t->segments;
    while (s != NULL && n < s->first)
        s = s->next;
    if (s == NULL || n >= s->end || s->there)
        return TL_OK;
    s->there = true;
    for (uint32_t i = s->first; i < s->end; i++) {
        TL_TRY(run_again(t, &t->node[i]));
        if (s->hash != NULL)
            TL_TRY(compare(t, s, &t->node[i]));
    }
    TL_TELL(t, segment_restored, t, s->first, s->end);
    return TL_OK;
}
