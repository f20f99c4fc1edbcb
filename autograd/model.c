/* model.c: a model's named tensors, made by the first call that names them and checked by later
 * ones; freezing parameters. */
#include "autograd/model.h"

#include <stdio.h>
#include <string.h>

#include "autograd/batch.h"
#include "tensor/files/safetensors.h"
#include "tensor/rng.h"
#include "tensor/threads.h"

static void model_destroy(void *object)
{
    tl_model *m = object;
    tl_values_drop(&m->values, 0);
    for (int i = 0; i < m->n_entries; i++)
        tl_free_raw(m->entry[i].name);
    tl_free_raw(m->entry);
    while (m->freezes != NULL) {
        tl_freeze *gone = m->freezes;
        m->freezes = gone->next;
        tl_free_raw(gone);
    }
    tl_values_free(&m->values);
    tl_arena_free(m->arena);
    pthread_mutex_destroy(&m->lock);
}

tl_model *tl_model_new_with(tl_model_options o)
{
    tl_model *m = tl_calloc(1, sizeof *m);
    if (m == NULL)
        return NULL;
    pthread_mutex_init(&m->lock, NULL);
    tl_object_begin(&m->head, TL_KIND_MODEL, model_destroy);
    m->seed = o.seed;
    m->arena = tl_arena_new();
    if (m->arena == NULL || tl_values_init(&m->values) != TL_OK) {
        tl_object_end(m);
        return NULL;
    }
    tl_object_give(&m->head);
    return m;
}

/* Whether m lives and is a model: another object may have been made where a freed model was. */
static bool is_model(const tl_model *m) { return tl_lives(m) && m->head.kind == TL_KIND_MODEL; }

uint64_t tl_model_seed(const tl_model *m) { return is_model(m) ? m->seed : 0; }

void tl_model_reseed(tl_model *m, uint64_t seed)
{
    if (is_model(m))
        m->seed = seed;
}

tl_tensor tl_model_handle(const tl_model *m, uint32_t i)
{
    return tl_values_at(&m->values, i)->self;
}

/* A zeroed value of the model; NULL with an error. */
static tl_value *add_value(tl_model *m, tl_dtype dtype, const tl_shape *shape, tl_err *err)
{
    if (tl_shape_check(shape, dtype, err) != TL_OK)
        return NULL;
    size_t bytes = (size_t)tl_shape_count(shape) * tl_dtype_size(dtype);
    tl_storage *st = tl_storage_new(m->arena, bytes, true);
    tl_value *v;
    const uint32_t generation = m->names + 1; /* no older handle names what lies there now */
    if (st == NULL || !tl_values_push(&m->values, generation, 1, &v)) {
        tl_storage_release(st);
        return tl_storage_lack(bytes, err), NULL;
    }
    v->a = tl_array_make(dtype, shape, st->data);
    v->st = st;
    v->plain = tl_array_plain(&v->a, false);
    tl_batch_set(v, shape->ndim > 0 ? 0 : TL_FREE);
    return v;
}

/* Adds a value without a name: a copy of data, of which the compiler knows c, or zeros. */
static tl_tensor unnamed(tl_model *m, const char *who, bool zeros, const void *data, tl_c_data c,
                         tl_dtype dtype, tl_shape shape, const char *file, int line)
{
    tl_err err = {.status = TL_OK};
    tl_array a;
    size_t bytes;
    if (tl_error_begin(m) != TL_OK)
        return TL_NONE;
    if (tl_shape_lay(&shape, dtype, &a, &bytes, &err) == TL_OK && !zeros)
        tl_data_check(data, c, &a, &err);
    pthread_mutex_lock(&m->lock);
    tl_value *v = err.status != TL_OK ? NULL : add_value(m, dtype, &shape, &err);
    if (v == NULL)
        tl_fail(&m->head.err, err.status, "%s: %.800s (%.90s:%d)", who, err.message,
                file == NULL ? "?" : file, line);
    pthread_mutex_unlock(&m->lock);
    if (v != NULL && data != NULL && v->st->bytes)
        memcpy(v->a.data, data, v->st->bytes);
    return tl_handle(v);
}

tl_tensor tl_data_model_at(tl_model *m, const void *data, tl_c_data c, tl_dtype dtype,
                           tl_shape shape, const char *file, int line)
{
    return unnamed(m, "tl_data", false, data, c, dtype, shape, file, line);
}

tl_tensor tl_zeros_model_at(tl_model *m, tl_dtype dtype, tl_shape shape, const char *file, int line)
{
    return unnamed(m, "tl_zeros", true, NULL, (tl_c_data){0}, dtype, shape, file, line);
}

/* Where name is in the sorted entries, or would be inserted; *found: it is there. */
static int lookup(const tl_model *m, const char *name, bool *found)
{
    int lo = 0, hi = m->n_entries;
    *found = false;
    while (lo < hi) {
        int mid = (lo + hi) / 2, c = strcmp(m->entry[mid].name, name);
        *found |= c == 0;
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Element i is drawn at coordinate i of the stream of that name (NUMERICS 11.2). */
static tl_status fill(const tl_model *m, const char *name, const tl_array *a, tl_init init)
{
    tl_rng_key key = tl_rng_stream(m->seed, name);
    if (key.status != TL_OK)
        return key.status;
    if (init.kind == TL_INIT_UNIFORM || init.kind == TL_INIT_NORMAL)
        tl_rng_fill_array(a, key, init.kind == TL_INIT_NORMAL, init.scale);
    for (int64_t i = 0; init.kind == TL_INIT_ONES && i < tl_array_count(a); i++)
        tl_array_put(a, i, 1);
    return TL_OK; /* fresh storage is zero */
}

static tl_status insert(tl_model *m, int at, const char *name, uint32_t value, bool param,
                        tl_err *err)
{
    if (!tl_grow(&m->entry, &m->cap_entries, m->n_entries, sizeof *m->entry))
        return tl_fail(err, TL_ENOMEM, "no memory for named tensor %d", m->n_entries);
    char *copy = tl_strdup(name);
    if (copy == NULL)
        return tl_fail(err, TL_ENOMEM, "no memory for the name '%.100s'", name);
    memmove(m->entry + at + 1, m->entry + at, (size_t)(m->n_entries - at) * sizeof *m->entry);
    m->entry[at] = (tl_entry){copy, value, param, false, NULL};
    m->n_entries++;
    return TL_OK;
}

static tl_status check_same(const tl_value *v, const char *name, tl_dtype dtype,
                            const tl_shape *shape, tl_err *err)
{
    tl_shape have = tl_array_shape(&v->a);
    if (!tl_shape_equal(&have, shape))
        return tl_fail(
            err, TL_ESHAPE,
            "'%.100s' has shape %s, but shape %s is asked for: does another layer have this name?",
            name, TL_TEXT_OF(&have), TL_TEXT_OF(shape));
    if (v->a.dtype != dtype)
        return tl_fail(err, TL_EDTYPE, "'%.100s' is %s, but %s is asked for", name,
                       tl_dtype_name(v->a.dtype), tl_dtype_name(dtype));
    return TL_OK;
}

/* A name that no file can hold is refused at once, not when the model is saved. */
static tl_status check_name(const char *name, bool param, tl_err *err)
{
    size_t n = strlen(name), most = (param ? TL_PARAM_NAME_MAX : TL_NAME_MAX) - 1;
    if (n == 0)
        return tl_fail(err, TL_ENAME, "a name is empty");
    if (n > most)
        return tl_fail(err, TL_ENAME, "the name '%.60s...' has %zu bytes; at most %zu are possible",
                       name, n, most);
    return tl_st_name_check(name, err);
}

/* What to make if there is no tensor of that name yet. */
typedef struct {
    bool param;
    tl_init init;
    tl_filler *fill;
    void *ctx;
} maker;

static tl_status first_contents(const tl_model *m, const char *name, const tl_array *a,
                                const maker *k)
{
    tl_fpenv saved = tl_fpenv_enter();
    tl_status s = k->fill != NULL ? k->fill(k->ctx, a->data) : fill(m, name, a, k->init);
    tl_fpenv_leave(saved);
    return s;
}

static void rollback(tl_model *m, uint32_t mark)
{
    int kept = 0;
    for (int i = 0; i < m->n_entries; i++)
        if (m->entry[i].value < mark)
            m->entry[kept++] = m->entry[i];
        else
            tl_free_raw(m->entry[i].name);
    m->n_entries = kept;
    m->names++;
    tl_values_drop(&m->values, mark);
}

uint32_t tl_model_mark(tl_model *m) { return is_model(m) ? atomic_load(&m->values.count) : 0; }

void tl_model_rollback(tl_model *m, uint32_t mark)
{
    if (!is_model(m) || mark >= atomic_load(&m->values.count))
        return;
    pthread_mutex_lock(&m->lock);
    rollback(m, mark);
    pthread_mutex_unlock(&m->lock);
}

static bool covers(const tl_freeze *f, const char *name)
{
    return strncmp(name, f->prefix, strlen(f->prefix)) == 0;
}

/* The newest tl_model_freeze that covers a new parameter decides. */
static bool frozen_at_birth(tl_model *m, const char *name)
{
    bool frozen = false, decided = false;
    for (tl_freeze *f = m->freezes; f != NULL; f = f->next)
        if (covers(f, name)) {
            frozen = decided ? frozen : f->frozen;
            decided = f->met = true;
        }
    return frozen;
}

static tl_status find_or_make(tl_model *m, const char *name, tl_dtype dtype, const tl_shape *shape,
                              const maker *k, uint32_t *index, tl_err *err)
{
    bool found, param = k->param;
    int at = lookup(m, name, &found);
    if (found) {
        const tl_entry *e = &m->entry[at];
        if (e->param != param)
            return tl_fail(err, TL_ENAME, "'%.100s' is a %s already", name,
                           e->param ? "parameter" : "buffer");
        *index = e->value;
        return check_same(tl_values_at(&m->values, e->value), name, dtype, shape, err);
    }
    TL_TRY(check_name(name, param, err));
    if (param && !tl_dtype_is_float(dtype))
        return tl_fail(err, TL_EDTYPE,
                       "parameter '%.100s' cannot be of dtype %s; floats can be trained", name,
                       tl_dtype_name(dtype));
    tl_value *v = add_value(m, dtype, shape, err);
    if (v == NULL)
        return err->status;
    tl_status s = first_contents(m, name, &v->a, k);
    if (s == TL_OK)
        s = insert(m, at, name, *index = v->self.index, param, err);
    if (s != TL_OK) { /* leave no trace of the attempt */
        rollback(m, v->self.index);
        return tl_fail(err, s, "'%.100s' could not be initialised%s", name,
                       s == TL_ENOMEM ? ": no memory" : "");
    }
    m->names += param;
    m->entry[at].frozen = param && frozen_at_birth(m, name);
    v->needs_grad = param && !m->entry[at].frozen;
    tl_batch_set(v, TL_FREE);
    v->fixed = param; /* a buffer may change at any time */
    v->print = tl_mix_text(0, name);
    return TL_OK;
}

static tl_tensor named(tl_at at, tl_model *m, const char *name, tl_dtype dtype, tl_shape shape,
                       maker k)
{
    if (tl_failed(at.tape))
        return TL_NONE;
    if (name == NULL)
        return tl_tape_fail(at, TL_ENAME, "a tensor of the model needs a name; it is NULL"),
               TL_NONE;
    if (m == NULL || at.tape->model != m) {
        tl_tape_fail(at, TL_EUSAGE, "'%.100s': %s", name,
                     m == NULL ? "the model is NULL" : "the tape was made over another model");
        return TL_NONE;
    }
    uint32_t index = 0;
    tl_err err = {.status = TL_OK};
    pthread_mutex_lock(&m->lock);
    tl_status s = find_or_make(m, name, dtype, &shape, &k, &index, &err);
    pthread_mutex_unlock(&m->lock);
    if (s != TL_OK)
        return tl_tape_fail(at, s, "%s", err.message), TL_NONE;
    if (k.param && tl_site_check(at, name, index) != TL_OK)
        return TL_NONE;
    return tl_model_handle(m, index);
}

tl_tensor tl_param_at(tl_at at, tl_model *m, const char *name, tl_dtype dtype, tl_shape shape,
                      tl_init init)
{
    if ((unsigned)init.kind > TL_INIT_NORMAL)
        tl_tape_fail(at, TL_EDOMAIN, "tl_param: init kind %d is unknown", (int)init.kind);
    else if (init.kind >= TL_INIT_UNIFORM && !(init.scale > 0 && init.scale - init.scale == 0))
        tl_tape_fail(at, TL_EDOMAIN, "tl_param: %s with a scale of %g; a number above 0 is needed",
                     init.kind == TL_INIT_NORMAL ? "TL_INIT_NORMAL" : "TL_INIT_UNIFORM",
                     init.scale);
    return named(at, m, name, dtype, shape, (maker){.param = true, .init = init});
}

tl_tensor tl_buffer_at(tl_at at, tl_model *m, const char *name, tl_dtype dtype, tl_shape shape)
{
    return named(at, m, name, dtype, shape, (maker){.init = {TL_INIT_ZEROS, 0}});
}

tl_tensor tl_buffer_filled_at(tl_at at, tl_model *m, const char *name, tl_dtype dtype,
                              tl_shape shape, tl_filler *filler, void *ctx)
{
    if (TL_NEED_AT(at, filler) != TL_OK)
        return TL_NONE;
    return named(at, m, name, dtype, shape, (maker){.fill = filler, .ctx = ctx});
}

int tl_model_count(tl_model *m)
{
    if (!is_model(m))
        return 0;
    pthread_mutex_lock(&m->lock);
    const int n = m->n_entries;
    pthread_mutex_unlock(&m->lock);
    return n;
}

tl_named tl_model_at(tl_model *m, int i)
{
    tl_named named = {0};
    if (!is_model(m))
        return named;
    pthread_mutex_lock(&m->lock);
    if (i >= 0 && i < m->n_entries) {
        const tl_entry *e = &m->entry[i];
        const tl_value *v = tl_values_at(&m->values, e->value);
        named = (tl_named){e->name,   tl_model_handle(m, e->value), v->a, e->param,
                           e->frozen, v->st->version != 0};
    }
    pthread_mutex_unlock(&m->lock);
    return named;
}

tl_tensor tl_model_find(tl_model *m, const char *name)
{
    bool found = false;
    if (!is_model(m) || name == NULL)
        return TL_NONE;
    pthread_mutex_lock(&m->lock);
    int i = lookup(m, name, &found);
    tl_tensor x = found ? tl_model_handle(m, m->entry[i].value) : TL_NONE;
    pthread_mutex_unlock(&m->lock);
    return x;
}

const void *tl_buffer_take(tl_model *m, const char *name, const void *owner)
{
    bool found = false;
    if (!is_model(m) || name == NULL)
        return NULL;
    pthread_mutex_lock(&m->lock);
    const int at = lookup(m, name, &found);
    tl_entry *e = found ? &m->entry[at] : NULL;
    if (found && e->owner == NULL && owner != NULL) {
        tl_storage *st = tl_values_at(&m->values, e->value)->st;
        memset(st->data, 0, st->bytes);
        tl_storage_note(st, (tl_changer){.what = "tl_step"}, NULL);
        e->owner = owner;
    }
    const void *whose = found ? e->owner : NULL;
    pthread_mutex_unlock(&m->lock);
    return whose;
}

void tl_buffer_give(tl_model *m, const char *name, const void *from, const void *to)
{
    bool found = true;
    if (!is_model(m))
        return;
    pthread_mutex_lock(&m->lock);
    const int first = name == NULL ? 0 : lookup(m, name, &found);
    const int end = name == NULL ? m->n_entries : first + found;
    for (int i = first; i < end; i++)
        if (m->entry[i].owner == from)
            m->entry[i].owner = to;
    pthread_mutex_unlock(&m->lock);
}

/* Puts a freeze at the head of the list, in place of an older one with the same prefix. */
static tl_freeze *freeze_put(tl_model *m, const char *prefix, bool frozen)
{
    size_t bytes = strlen(prefix) + 1;
    tl_freeze **at = &m->freezes, *f;
    while (*at != NULL && strcmp((*at)->prefix, prefix) != 0)
        at = &(*at)->next;
    f = *at;
    if (f != NULL) {
        *at = f->next;
        f->met |= f->frozen && !frozen; /* taken back */
    } else {
        f = tl_calloc(1, sizeof *f + bytes);
        if (f == NULL) {
            tl_fail(&m->head.err, TL_ENOMEM, "tl_model_freeze: no memory for '%.100s'", prefix);
            return NULL;
        }
        memcpy(f->prefix, prefix, bytes);
    }
    f->frozen = frozen;
    f->next = m->freezes;
    return m->freezes = f;
}

int tl_model_freeze(tl_model *m, const char *prefix, bool frozen)
{
    int n = 0;
    if (!is_model(m) || tl_error_renew(m) != TL_OK || TL_NEED(&m->head.err, prefix) != TL_OK)
        return 0;
    pthread_mutex_lock(&m->lock);
    tl_freeze *f = freeze_put(m, prefix, frozen);
    for (int i = 0; f != NULL && i < m->n_entries; i++) {
        tl_entry *e = &m->entry[i];
        if (!e->param || !covers(f, e->name))
            continue;
        if (e->frozen != frozen) {
            m->names++;
            m->thaws += !frozen;
            m->frozen ^= tl_mix(tl_mix(1, e->value), e->value);
        }
        tl_values_at(&m->values, e->value)->needs_grad = !(e->frozen = frozen);
        f->met = true;
        n++;
    }
    for (tl_freeze *g = m->freezes; f != NULL && !frozen && g != NULL; g = g->next)
        g->met |= g->frozen && covers(f, g->prefix); /* what met nothing is taken back */
    if (f != NULL && n == 0)
        m->settings++; /* compiled programs trace again, and their backward reports it */
    pthread_mutex_unlock(&m->lock);
    return n;
}

void tl_model_changed(tl_model *m)
{
    if (is_model(m))
        m->settings++;
}

uint64_t tl_model_state(const tl_model *m)
{
    return is_model(m) ? ((uint64_t)m->names << 32 | m->settings) + 1 : 0;
}
