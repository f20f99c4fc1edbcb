/* handle.c: from tensor handles to the records behind them: who made a value, what it shows, whose
 * memory it uses, and whether that has changed. */
#include <string.h>

#include "autograd/batch.h"

/* ---- tables of records ---- */

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

bool tl_values_push(tl_values *v, uint32_t generation, int n, tl_value **made, tl_tensor *handle)
{
    const uint32_t first = atomic_load_explicit(&v->count, memory_order_relaxed),
                   last = first + (uint32_t)n - 1; /* most chunks are there */
    if ((last / TL_CHUNK >= TL_CHUNKS || v->chunk[last / TL_CHUNK] == NULL) &&
        !tl_values_room(v, (uint32_t)n))
        return false;
    for (int k = 0; k < n; k++) {
        handle[k] = (tl_tensor){v->owner, first + (uint32_t)k, generation};
        made[k] = tl_values_at(v, handle[k].index);
        memset(made[k], 0, sizeof *made[k]);
        made[k]->node = -1;
        made[k]->generation = generation;
    }
    atomic_store_explicit(&v->count, first + (uint32_t)n, memory_order_release);
    return true;
}

void tl_values_drop(tl_values *v, uint32_t first)
{
    const uint32_t end = v->chunk == NULL ? first : atomic_load(&v->count);
    for (uint32_t i = first; i < end; i++) {
        const tl_value *x = tl_values_at(v, i);
        tl_storage_release(x->st);
    }
    atomic_store(&v->count, first);
}

bool tl_values_room(tl_values *v, uint32_t more)
{
    const uint32_t count = atomic_load(&v->count);
    if (more > (uint32_t)TL_CHUNK * TL_CHUNKS - count)
        return false;
    for (uint32_t c = count / TL_CHUNK; c * TL_CHUNK < count + more; c++)
        if (v->chunk[c] == NULL && (v->chunk[c] = tl_calloc(TL_CHUNK, sizeof(tl_value))) == NULL)
            return false;
    return true;
}

tl_status tl_nodes_room(tl_tape *t, uint32_t more)
{
    if (more > INT32_MAX - t->n_nodes) /* tl_value.node is an int32_t */
        return TL_ENOMEM;
    return tl_grow_to(&t->node, &t->cap_nodes, t->n_nodes + more, sizeof *t->node) ? TL_OK
                                                                                   : TL_ENOMEM;
}

void *tl_tape_scratch(tl_tape *t, size_t bytes)
{
    return !tl_lives(t) ? NULL : tl_bump_get(&t->bump, bytes);
}

void *tl_tape_room(tl_tape *t, size_t n, size_t size)
{
    void *p = tl_bump_get(&t->bump, n * size);
    if (p == NULL)
        tl_fail(&t->head.err, TL_ENOMEM, "no memory for %zu bytes beside a tape of %u nodes",
                n * size, t->n_nodes);
    return p;
}

/* ---- the record behind a handle ---- */

static tl_value *behind(const tl_values *v, tl_tensor x)
{
    if (x.owner != v->owner || x.index >= atomic_load_explicit(&v->count, memory_order_acquire))
        return NULL;
    tl_value *r = &v->chunk[x.index / TL_CHUNK][x.index % TL_CHUNK];
    return r->generation == x.generation ? r : NULL;
}

tl_value *tl_model_value(const tl_model *m, tl_tensor x)
{
    return m == NULL ? NULL : behind(&m->values, x);
}

tl_value *tl_peek(const tl_tape *t, tl_tensor x)
{
    const tl_values *v = x.owner == t->values.owner || t->model == NULL ? &t->values
                                                                        : &t->model->values;
    if (x.owner != v->owner && t->lasting != NULL)
        return tl_peek(t->lasting, x);
    return behind(v, x);
}

int32_t tl_maker_at(const tl_tape *t, tl_tensor x)
{
    return x.owner == t->values.owner ? tl_values_at(&t->values, x.index)->node : -1;
}

const tl_node *tl_maker(const tl_tape *t, tl_tensor x)
{
    const int32_t at = tl_maker_at(t, x);
    return at < 0 ? NULL : &t->node[at];
}

tl_tensor tl_behind(const tl_tape *t, tl_tensor x, unsigned traits, unsigned without)
{
    for (const tl_node *n;
         (n = tl_maker(t, x)) != NULL && n->op->traits & traits && !(n->op->traits & without);)
        x = n->in[0];
    return x;
}

/* The record of a value of the tape itself; NULL: x is none. */
static tl_value *own(const tl_tape *t, tl_tensor x)
{
    return x.owner == t->values.owner ? tl_values_at(&t->values, x.index) : NULL;
}

tl_tensor tl_below(const tl_tape *t, tl_tensor x)
{
    const tl_value *v = own(t, x);
    if (v == NULL || v->node < 0)
        return v == NULL ? TL_NONE : v->source;
    const tl_node *n = &t->node[v->node];
    const unsigned traits = v->out == 0 ? n->op->traits : 0;
    return traits & TL_VIEW ? n->in[0] : traits & TL_MUTATES ? n->in[n->op->mutates] : TL_NONE;
}

tl_tensor tl_attached(const tl_tape *t, tl_tensor x)
{
    for (const tl_value *v; (v = own(t, x)) != NULL && v->node < 0 && !tl_is_none(v->source);)
        x = v->source;
    return x;
}

/* x's bottom if it is cached, else the value one step down. */
static tl_tensor lower(const tl_tape *t, tl_tensor x)
{
    const tl_value *v = own(t, x);
    return v != NULL && !tl_is_none(v->bottom) ? v->bottom : tl_below(t, x);
}

/* Chains of views and of in-place changes can be long, so every value on the way caches it. */
tl_tensor tl_bottom(const tl_tape *t, tl_tensor x)
{
    tl_tensor bottom = x;
    for (tl_tensor y = lower(t, x); !tl_is_none(y); y = lower(t, y))
        bottom = y;
    for (tl_tensor y; !tl_is_none(y = lower(t, x)); x = y)
        own(t, x)->bottom = bottom;
    return bottom;
}

const tl_node *tl_view_at(const tl_tape *t, tl_tensor x)
{
    const tl_node *n = tl_maker(t, x);
    return n != NULL && (n->op->traits & (TL_VIEW | TL_REPEATS)) == TL_VIEW ? n : NULL;
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
    const bool ends = v == NULL || v->node < 0 ||
                      (v->fixed && v->needs_grad && !tl_values_at(&t->values, n->out)->fixed);
    return ends ? x : TL_NONE;
}

bool tl_same_memory(const tl_tape *t, tl_tensor x, tl_tensor y)
{
    const tl_value *a = tl_peek(t, x), *b = tl_peek(t, y);
    if (a->st != NULL && b->st != NULL)
        return a->st == b->st;
    a = tl_model_value(t->model, tl_bottom(t, x));
    return a != NULL && a == tl_model_value(t->model, tl_bottom(t, y));
}

const char *tl_model_name_of(tl_model *m, tl_tensor x)
{
    const char *name = NULL;
    if (tl_model_value(m, x) == NULL)
        return NULL;
    pthread_mutex_lock(&m->lock);
    for (int i = 0; name == NULL && i < m->n_entries; i++)
        if (m->entry[i].value == x.index)
            name = m->entry[i].name;
    pthread_mutex_unlock(&m->lock);
    return name;
}

const char *tl_leaf_name(const tl_tape *t, tl_tensor leaf)
{
    const char *name = t->model == NULL ? NULL : tl_model_name_of(t->model, leaf);
    const tl_tape *on = tl_derived(t, leaf) ? t->lasting : t;
    const tl_value *v = leaf.owner == on->values.owner ? tl_peek(on, leaf) : NULL;
    if (v != NULL && v->node >= 0)
        return on->node[v->node].op->name;
    return name != NULL ? name : "(a leaf of the tape)";
}

/* Reports why x, whose record is v, cannot be an input; returns false. */
static bool refuse(tl_at at, tl_tensor x, const tl_value *v, const char *who)
{
    const tl_tape *t = at.tape;
    if (tl_is_none(x))
        tl_tape_fail(at, TL_ESTALE,
                     "%s: given no tensor: of a call that failed or never happened, of a name that "
                     "the model does not have, or of a gradient that is not there",
                     who);
    else if (v == NULL && x.owner == t->values.owner)
        tl_tape_fail(
            at, TL_ESTALE,
            "%s: value %u was made before the tape was reset (its generation is %u, the tape's %u)",
            who, x.index, x.generation, t->generation);
    else if (v == NULL && t->model != NULL && x.owner == t->model->values.owner)
        tl_tape_fail(at, TL_ESTALE, "%s: value %u was removed from the model", who, x.index);
    else if (v == NULL)
        tl_tape_fail(at, TL_ESTALE,
                     "%s: value %u belongs to another tape or model (owner %u; this tape is %u)",
                     who, x.index, x.owner, t->values.owner);
    else if (v->consumed)
        tl_tape_fail(at, TL_ESTALE,
                     "%s: value %u was changed in place; use the handle that call returned", who,
                     x.index);
    else if (v->let_go)
        tl_tape_fail(at, TL_ESTALE, "%s: value %u was let go (tl_let_go)", who, x.index);
    else
        tl_tape_fail(at, TL_ESTALE, "%s: value %u was freed by backward; %s", who, x.index,
                     t->now.phase & TL_PHASE_BACKWARD
                         ? "a vjp reads what .saves_in or .saves_out of its op names"
                         : "copy it out before (tl_keep), or pass .retain = true");
    return false;
}

/* A value of the tape is what its memory held when it was made: once that has been overwritten the
 * value cannot be read any more. Tensors of the model and accumulators are variables instead: a
 * view of one shows what it holds now. */
bool tl_look_up(tl_at at, const char *who, tl_look *l)
{
    for (int i = 0; i < l->n_in; i++) {
        tl_changer by;
        char text[TL_CHANGER_TEXT];
        const tl_tensor x = l->in[i];
        const unsigned bit = i < 32 ? TL_BIT(i) : 0;
        if (l->optional & bit && x.owner == 0) {
            l->found[i] = NULL;
            continue;
        }
        const tl_value *r = l->found[i] = tl_peek(at.tape, x);
        if (r == NULL || r->consumed || r->freed)
            return refuse(at, x, r, who);
        if (l->view || r->st == NULL)
            continue;
        if (r->st->blank && !(l->begins & bit))
            tl_storage_settle(r->st);
        if (r->st->version == r->born || r->st->arena != at.tape->arena ||
            !tl_storage_changed(r->st, r->born, &r->a, &by))
            continue;
        tl_tape_fail(
            at, TL_EINPLACE,
            "%s: value %u was changed in place, perhaps through another view of its memory, by %s; "
            "use what that call returned",
            who, x.index, tl_changer_text(text, by));
        return false;
    }
    return true;
}

static tl_value *deref(tl_at at, tl_tensor x, const char *who, bool view)
{
    tl_value *v;
    tl_look l = {.in = &x, .n_in = 1, .found = &v, .view = view};
    return tl_look_up(at, who, &l) ? v : NULL;
}

tl_value *tl_deref(tl_at at, tl_tensor x, const char *w) { return deref(at, x, w, false); }
tl_value *tl_deref_view(tl_at at, tl_tensor x, const char *w) { return deref(at, x, w, true); }

tl_tensor tl_tape_value(tl_tape *t, const tl_array *a, tl_storage *st)
{
    tl_tensor x;
    tl_value *v;
    if (!tl_values_push(&t->values, t->generation, 1, &v, &x)) {
        tl_fail(&t->head.err, TL_ENOMEM, "no memory for the record of tensor %u",
                (unsigned)atomic_load(&t->values.count));
        return TL_NONE;
    }
    v->a = *a;
    v->plain = tl_array_plain(a, false);
    v->st = st;
    if (st != NULL) {
        tl_storage_retain(st);
        v->born = st->version;
        v->lent = st->arena == t->grad_arena;
    }
    tl_batch_set(v, a->ndim > 0 && !v->lent ? 0 : TL_FREE);
    return x;
}

/* ---- memory that has changed, or is given back ---- */

bool tl_changed_since(tl_tape *t, uint32_t node, int k, tl_changer *by)
{
    const tl_node *n = &t->node[node];
    const tl_tensor x = k < n->n_in ? n->in[k] : tl_node_out(t, n, k - n->n_in);
    const tl_value *v = tl_peek(t, x);
    if (v == NULL)
        return false;
    const tl_tensor below = t->recorder == NULL ? TL_NONE : tl_bottom(t, x);
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

void tl_value_give_back(tl_value *v)
{
    if (v->st == NULL) /* in a trace */
        return;
    tl_storage_release(v->st);
    v->st = NULL;
    v->freed = true;
}

tl_tensor tl_hold(tl_tape *t, tl_tensor x)
{
    const tl_value *v = tl_peek(t, x);
    if (v == NULL || v->st == NULL || x.owner != t->values.owner)
        return x;
    tl_tensor y = tl_tape_value(t, &v->a, v->st);
    tl_value *h = tl_peek(t, y);
    if (h != NULL) {
        h->held = true;
        h->source = x;
        tl_batch_like(h, v);
    }
    return y;
}
