/* values.c: the tables of tensor records and the record behind a handle; in whose memory a value
 * lies. */
#include <string.h>

#include "autograd/internal.h"

static _Atomic uint32_t next_owner = 1;

tl_status tl_values_init(tl_values *v)
{
    v->chunk = tl_calloc(TL_CHUNKS, sizeof *v->chunk);
    if (v->chunk == NULL)
        return TL_ENOMEM;
    v->owner = atomic_fetch_add(&next_owner, 1);
    if (v->owner == 0) /* after 2^32 objects: 0 means failure, take the next */
        v->owner = atomic_fetch_add(&next_owner, 1);
    return TL_OK;
}

void tl_values_free(tl_values *v)
{
    for (int i = 0; v->chunk != NULL && i < TL_CHUNKS && v->chunk[i] != NULL; i++)
        tl_free_raw(v->chunk[i]);
    tl_free_raw(v->chunk);
    v->chunk = NULL;
}

tl_value *tl_values_at(const tl_values *v, uint32_t i)
{
    return &v->chunk[i / TL_CHUNK][i % TL_CHUNK];
}

tl_value *tl_values_push(tl_values *v, uint32_t *index)
{
    uint32_t i = atomic_load_explicit(&v->count, memory_order_relaxed);
    if (i / TL_CHUNK >= TL_CHUNKS)
        return NULL;
    tl_value **c = &v->chunk[i / TL_CHUNK];
    if (*c == NULL && (*c = tl_calloc(TL_CHUNK, sizeof **c)) == NULL)
        return NULL;
    tl_value *val = &(*c)[i % TL_CHUNK];
    memset(val, 0, sizeof *val);
    val->node = -1;
    *index = i;
    atomic_store_explicit(&v->count, i + 1, memory_order_release);
    return val;
}

void tl_values_drop(tl_values *v, uint32_t first)
{
    const uint32_t end = v->chunk == NULL ? first : atomic_load(&v->count);
    for (uint32_t i = first; i < end; i++)
        tl_storage_release(tl_values_at(v, i)->st);
    atomic_store(&v->count, first);
}

bool tl_values_room(tl_values *v, uint32_t more)
{
    uint32_t count = atomic_load(&v->count);
    if (more > (uint32_t)TL_CHUNK * TL_CHUNKS - count)
        return false;
    uint32_t last = count + more;
    for (uint32_t c = count / TL_CHUNK; c <= last / TL_CHUNK; c++)
        if (c >= TL_CHUNKS ||
            (v->chunk[c] == NULL && (v->chunk[c] = tl_calloc(TL_CHUNK, sizeof **v->chunk)) == NULL))
            return false;
    return true;
}

void *tl_tape_scratch(tl_tape *t, size_t bytes)
{
    return !tl_lives(t) ? NULL : tl_bump_get(&t->bump, bytes);
}

/* ---- the record behind a handle ---- */

tl_value *tl_model_value(const tl_model *m, tl_tensor x)
{
    if (m == NULL || x.owner != m->values.owner ||
        x.index >= atomic_load_explicit(&m->values.count, memory_order_acquire))
        return NULL;
    return &m->values.chunk[x.index / TL_CHUNK][x.index % TL_CHUNK];
}

tl_value *tl_peek(const tl_tape *t, tl_tensor x)
{
    const bool own = x.owner == t->values.owner;
    const tl_values *v = own || t->model == NULL ? &t->values : &t->model->values;
    if (x.owner != v->owner && t->lasting != NULL)
        return tl_peek(t->lasting, x);
    if (x.owner != v->owner || (own && x.generation != t->generation) ||
        x.index >= atomic_load_explicit(&v->count, memory_order_acquire))
        return NULL;
    return &v->chunk[x.index / TL_CHUNK][x.index % TL_CHUNK];
}

/* Says why x, of the record v, cannot be an input; NULL. */
static tl_value *refuse(tl_at at, tl_tensor x, const tl_value *v, const char *who)
{
    const tl_tape *t = at.tape;
    if (tl_is_none(x))
        tl_tape_fail(at, TL_ESTALE, "%s: given the handle of a call that failed or never happened",
                     who);
    else if (v == NULL && x.owner == t->values.owner)
        tl_tape_fail(
            at, TL_ESTALE,
            "%s: value %u was made before the tape was reset (its generation is %u, the tape's %u)",
            who, x.index, x.generation, t->generation);
    else if (v == NULL)
        tl_tape_fail(at, TL_ESTALE,
                     "%s: value %u belongs to another tape or model (owner %u; this tape is %u)",
                     who, x.index, x.owner, t->values.owner);
    else if (v->consumed)
        tl_tape_fail(at, TL_ESTALE,
                     "%s: value %u was changed in place; use the handle that call returned", who,
                     x.index);
    else
        tl_tape_fail(at, TL_ESTALE,
                     "%s: value %u was freed by backward; copy it out before (tl_keep), or pass "
                     ".retain = true",
                     who, x.index);
    return NULL;
}

tl_value *tl_deref_view(tl_at at, tl_tensor x, const char *who)
{
    tl_value *v = tl_peek(at.tape, x);
    return v != NULL && !v->consumed && !v->freed ? v : refuse(at, x, v, who);
}

/* A value is what its memory held when it was made: where that is gone, so is the value. The
 * model's tensors and accumulators of gradients are variables: what shows them shows what they hold
 * now. */
tl_value *tl_deref(tl_at at, tl_tensor x, const char *who)
{
    tl_value *v = tl_peek(at.tape, x);
    if (v == NULL || v->consumed || v->freed)
        return refuse(at, x, v, who);
    if (v->st == NULL || v->st->version == v->born || v->st->arena != at.tape->arena)
        return v;
    tl_changer by;
    char text[TL_CHANGER_TEXT];
    if (!tl_storage_changed(v->st, v->born, &v->a, &by))
        return v;
    tl_tape_fail(at, TL_EINPLACE,
                 "%s: value %u was changed in place through another view of its memory, by %s; use "
                 "what that call returned",
                 who, x.index, tl_changer_text(text, by));
    return NULL;
}

tl_tensor tl_tape_value(tl_tape *t, const tl_array *a, tl_storage *st)
{
    uint32_t i;
    tl_value *v = tl_values_push(&t->values, &i);
    if (v == NULL) {
        tl_fail(&t->head.err, TL_ENOMEM, "no memory for the record of tensor %u",
                (unsigned)atomic_load(&t->values.count));
        return TL_NONE;
    }
    v->a = *a;
    v->plain = tl_array_plain(a);
    v->st = st;
    if (st != NULL) {
        tl_storage_retain(st);
        v->born = st->version;
    }
    tl_batch_set(v, a->ndim > 0 ? 0 : TL_FREE);
    v->generation = t->generation;
    return (tl_tensor){t->values.owner, i, t->generation};
}

/* ---- in whose memory a value lies ---- */

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
