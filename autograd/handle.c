/* handle.c: what is behind what users hold: objects (tapes, models, optimizers, graphs) that live
 * or have failed, and the records of tensors: who made a value, what it shows, whose memory it
 * uses. */
#include <stdio.h>
#include <string.h>

#include "autograd/batch.h"

/* ---- objects ---- */

/* All objects that exist, newest first. Any other address has been freed, or never was one. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tl_object *living;

/* A cache for tl_lives, which every call asks: living objects, hashed by address. Written under the
 * lock, read without it. */
enum { MET_BITS = 6 };
static _Atomic(const void *) met[1 << MET_BITS];

/* The link that points to the object, or the list's last one, which is NULL. Needs the lock. */
static tl_object **link_to(const void *object)
{
    tl_object **at = &living;
    while (*at != NULL && *at != object)
        at = &(*at)->next;
    return at;
}

void tl_object_begin(tl_object *o, tl_kind kind, void (*destroy)(void *))
{
    if (o == NULL)
        return;
    o->kind = kind;
    o->destroy = destroy;
    pthread_mutex_lock(&lock);
    o->next = living;
    living = o;
    pthread_mutex_unlock(&lock);
}

static inline bool lives(const void *object)
{
    const uint64_t hash = (uint64_t)(uintptr_t)object * 0x9e3779b97f4a7c15u;
    _Atomic(const void *) *known = &met[hash >> (64 - MET_BITS)];
    if (object == NULL || atomic_load(known) == object)
        return object != NULL;
    pthread_mutex_lock(&lock);
    const bool found = *link_to(object) != NULL;
    if (found)
        atomic_store(known, object);
    pthread_mutex_unlock(&lock);
    return found;
}

bool tl_lives(const void *object) { return lives(object); }

static void end(tl_object *o)
{
    o->destroy(o);
    pthread_mutex_lock(&lock);
    tl_object **at = link_to(o);
    *at = o->next;
    for (int i = 0; i < 1 << MET_BITS; i++)
        if (atomic_load(&met[i]) == o)
            atomic_store(&met[i], NULL);
    pthread_mutex_unlock(&lock);
    tl_free_raw(o);
}

/* Sets whether the user owns the object; returns whether the user did before. */
static bool set_given(void *object, bool now)
{
    pthread_mutex_lock(&lock);
    tl_object *o = *link_to(object);
    const bool was = o != NULL && o->given;
    if (o != NULL)
        o->given = now;
    pthread_mutex_unlock(&lock);
    return was;
}

void tl_object_give(tl_object *o) { set_given(o, true); }

bool tl_object_take(void *object) { return set_given(object, false); }

bool tl_object_given(const void *object)
{
    return tl_lives(object) && ((const tl_object *)object)->given;
}

void tl_object_hold(void *object)
{
    if (tl_lives(object))
        __atomic_fetch_add(&((tl_object *)object)->held, 1, __ATOMIC_SEQ_CST);
}

void tl_object_release(void *object)
{
    tl_object *o = object;
    if (tl_lives(o) && __atomic_fetch_sub(&o->held, 1, __ATOMIC_SEQ_CST) == 0)
        end(o);
}

/* ---- errors ---- */

/* The object whose error counts: a tape without an error of its own reports its model's. */
static tl_object *speaker(const void *object)
{
    tl_object *o = (tl_object *)object;
    tl_model *m = o->kind == TL_KIND_TAPE ? ((tl_tape *)o)->model : NULL;
    return m != NULL && ((tl_tape *)o)->busy == 0 &&
                   __atomic_load_n(&o->err.status, __ATOMIC_ACQUIRE) == TL_OK
               ? &m->head
               : o;
}

tl_status tl_error_status(const void *object)
{
    if (!lives(object))
        return object == NULL ? TL_ENOMEM : TL_ESTALE;
    return __atomic_load_n(&speaker(object)->err.status, __ATOMIC_ACQUIRE);
}

bool tl_failed(const void *object) { return tl_error_status(object) != TL_OK; }

tl_err *tl_error_record(void *object)
{
    return tl_lives(object) ? &((tl_object *)object)->err : NULL;
}

tl_at tl_place(tl_at at)
{
    const tl_tape *t = at.tape;
    bool open = t != NULL && t->now.place_depth > t->now.place_base &&
                t->now.place_base < TL_PLACES;
    return open ? t->places[t->now.place_base].at : at;
}

/* Whether the message begins with "NAME:", "NAME " or "tl_NAME:". */
static bool begins_with_call(const char *message, const char *name)
{
    const size_t n = strlen(name);
    message += strncmp(message, "tl_", 3) == 0 ? 3 : 0;
    return strncmp(message, name, n) == 0 && (message[n] == ':' || message[n] == ' ');
}

tl_status tl_tape_fail(tl_at at, tl_status s, const char *fmt, ...)
{
    if (tl_failed(at.tape)) /* perhaps its model has, and says why */
        return s;
    va_list ap;
    va_start(ap, fmt);
    tl_err e = {.status = TL_OK};
    tl_vfail(&e, s, fmt, ap);
    va_end(ap);
    at = tl_place(at);
    const char *call = at.call == NULL || begins_with_call(e.message, at.call) ? "" : at.call;
    char where[112] = "";
    if (at.file != NULL)
        snprintf(where, sizeof where, " (%.90s:%d)", at.file, at.line);
    const size_t n = strlen(e.message), w = strlen(where);
    if (w <= n && strcmp(e.message + n - w, where) == 0) /* the message ends with it */
        where[0] = '\0';
    return tl_fail(&at.tape->head.err, s, "%s%s%.*s%s", call, *call == '\0' ? "" : ": ",
                   TL_MESSAGE_MAX - 128 - (int)strlen(call), e.message, where);
}

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

bool tl_values_push(tl_values *v, uint32_t generation, int n, tl_value **made)
{
    const uint32_t first = atomic_load_explicit(&v->count, memory_order_relaxed),
                   last = first + (uint32_t)n - 1; /* most chunks are there */
    if ((last / TL_CHUNK >= TL_CHUNKS || v->chunk[last / TL_CHUNK] == NULL) &&
        !tl_values_room(v, (uint32_t)n))
        return false;
    for (int k = 0; k < n; k++) {
        made[k] = tl_values_at(v, first + (uint32_t)k);
        memset(made[k], 0, sizeof *made[k]);
        made[k]->self = (tl_tensor){v->owner, first + (uint32_t)k, generation};
        made[k]->node = -1;
    }
    atomic_store_explicit(&v->count, first + (uint32_t)n, memory_order_release);
    return true;
}

void tl_values_drop(tl_values *v, uint32_t first)
{
    const uint32_t end = v->chunk == NULL ? first : atomic_load(&v->count);
    for (uint32_t i = first; i < end; i++) {
        tl_value *x = tl_values_at(v, i);
        x->self = TL_NONE;
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
    return r->self.generation == x.generation ? r : NULL;
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

tl_tensor tl_bottom(const tl_tape *t, tl_tensor x)
{
    const tl_value *v = own(t, x);
    return v == NULL || tl_is_none(v->bottom) ? x : v->bottom;
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

/* Reports why x, whose record is v, cannot be an input; returns NULL. */
static tl_value *refuse(tl_at at, tl_tensor x, const tl_value *v, const char *who)
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
                     "%s: value %u belongs to another tape or model (owner %u; this tape is %u)%s",
                     who, x.index, x.owner, t->values.owner,
                     t->recorder == NULL ? "" : "; give it to the traced function as an input");
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
    return NULL;
}

/* A value of the tape is what its memory held when it was made: once that has been overwritten the
 * value cannot be read any more. Tensors of the model and accumulators are variables instead: a
 * view of one shows what it holds now. */
tl_value *tl_look_up(tl_at at, tl_tensor x, const char *who, tl_access how)
{
    tl_changer by;
    char text[TL_CHANGER_TEXT];
    tl_value *r = tl_peek(at.tape, x);
    if (r == NULL || r->consumed || r->freed)
        return refuse(at, x, r, who);
    if (how == TL_VIEWS || r->st == NULL)
        return r;
    if (r->st->blank && how != TL_OVERWRITES)
        tl_storage_settle(r->st);
    if (r->st->version == r->born || r->st->arena != at.tape->arena ||
        !tl_storage_changed(r->st, r->born, &r->a, &by))
        return r;
    tl_tape_fail(
        at, TL_EINPLACE,
        "%s: value %u was changed in place, perhaps through another view of its memory, by %s; "
        "use what that call returned",
        who, x.index, tl_changer_text(text, by));
    return NULL;
}

tl_value *tl_tape_value(tl_tape *t, const tl_array *a, tl_storage *st)
{
    tl_value *v;
    if (!tl_values_push(&t->values, t->generation, 1, &v)) {
        tl_fail(&t->head.err, TL_ENOMEM, "no memory for the record of tensor %u",
                (unsigned)atomic_load(&t->values.count));
        return NULL;
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
    return v;
}

void tl_value_give_back(tl_value *v)
{
    if (v->st == NULL) /* in a trace */
        return;
    tl_storage_release(v->st);
    v->st = NULL;
    v->freed = true;
}
