/* entry.c: the entries of a step: their results, and the bytes that they take.
 *
 * Values wait, with their storage retained, until there are enough to hash them on all threads.
 * Each belongs to an entry of its own, so it does not matter which thread hashes which. */
#include <string.h>

#include "autograd/kernel.h"
#include "autograd/log/internal.h"
#include "tensor/threads.h"

enum { WAITING_MAX = 4 << 20 }; /* bytes of waiting values */

tl_log_entry *tl_log_entry_get(tl_run_log *l, uint64_t key, bool *made)
{
    *made = false;
    if (l->failure.status != TL_OK)
        return NULL;
    const uint64_t *found = tl_key_map_find(&l->at, key);
    if (found != NULL)
        return &l->entry[*found];
    if (!tl_grow(&l->entry, &l->cap, (int)l->n, sizeof *l->entry) ||
        !tl_key_map_put(&l->at, key, l->n))
        return tl_fail(&l->failure, TL_ENOMEM, "no memory for the log of %u results", l->n), NULL;
    *made = true;
    l->entry[l->n] =
        (tl_log_entry){.key = key, .use = -1, .op = "", .name = "", .attrs = "", .alike = true};
    return &l->entry[l->n++];
}

const char *tl_log_text(tl_run_log *l, const char *s)
{
    const size_t n = strlen(s) + 1;
    char *copy = n > 1 ? tl_log_room(l, n, 1) : NULL;
    return copy != NULL ? memcpy(copy, s, n) : "";
}

void tl_log_take(tl_run_log *l, const tl_log_entry *e, const tl_array *a, tl_storage *st)
{
    if (!tl_grow(&l->job, &l->cap_jobs, l->n_jobs, sizeof *l->job)) {
        tl_fail(&l->failure, TL_ENOMEM, "no memory for the log of %d values", l->n_jobs);
        return;
    }
    tl_storage_retain(st);
    l->job[l->n_jobs++] = (tl_log_job){(uint32_t)(e - l->entry), *a, st};
    l->job_bytes += tl_array_room(a);
    if (l->job_bytes > WAITING_MAX)
        tl_log_settle(l);
}

static void take_part(tl_log_entry *e, const tl_array *a)
{
    unsigned char before[TL_FINGERPRINT_BYTES];
    const size_t tail = a->ndim < 2 ? 0 : (size_t)(a->ndim - 1) * sizeof *a->dim;
    if (e->parts == 1)
        tl_fingerprint_so_far(e->all, e->last);
    memcpy(before, e->last, sizeof before);
    tl_fingerprint_feed_array(e->all, a, e->parts > 0 ? e->last : NULL);
    e->alike &= (e->parts == 0 || memcmp(before, e->last, sizeof before) == 0) &&
                tl_array_count(a) == tl_shape_count(&e->shape);
    e->mixed |= a->ndim != e->shape.ndim || memcmp(a->dim + 1, e->shape.dim + 1, tail) != 0;
    if (a->ndim == 0)
        memcpy(e->scalar, a->data, tl_dtype_size(a->dtype));
    e->parts++;
}

typedef struct {
    tl_run_log *l;
    _Atomic int next;
} settling;

static void settle_some(void *ctx, int64_t begin, int64_t end, int thread)
{
    settling *s = ctx;
    (void)begin, (void)end, (void)thread;
    for (int i; (i = atomic_fetch_add(&s->next, 1)) < s->l->n_jobs;)
        take_part(&s->l->entry[s->l->job[i].entry], &s->l->job[i].a);
}

static void keep_part(tl_run_log *l, tl_log_entry *e, const tl_array *a)
{
    size_t bytes = tl_array_room(a);
    if (a->ndim == 0)
        e->kept_bytes = 0;
    unsigned char *grown = tl_realloc(e->kept, e->kept_bytes + bytes + 1);
    if (grown == NULL) {
        tl_fail(&l->failure, TL_ENOMEM, "no memory to keep %zu bytes of step %lld",
                e->kept_bytes + bytes, (long long)l->step);
        return;
    }
    tl_shape s = tl_array_shape(a);
    tl_array to = tl_array_make(a->dtype, &s, grown + e->kept_bytes);
    tl_array_copy(&to, a);
    e->kept = grown;
    e->kept_bytes += bytes;
}

/* Makes room for one more part in memory that all entries share, before several threads take the
 * bytes. */
static void make_room(tl_run_log *l, tl_log_entry *e, const tl_array *a)
{
    if ((e->parts & (e->parts - 1)) == 0) { /* rows have room for 1, 2, 4, ... parts */
        int64_t *rows = tl_log_room(l, (size_t)(2 * e->parts + 1), sizeof *rows);
        if (rows == NULL)
            return;
        if (e->parts > 0)
            memcpy(rows, e->rows, (size_t)e->parts * sizeof *rows);
        e->rows = rows;
    }
    if (e->all == NULL) {
        void *room = tl_log_room(l, 1, TL_FINGERPRINT_ROOM);
        if (room == NULL)
            return;
        e->all = tl_fingerprint_begin(room);
    }
    e->rows[e->parts] = a->ndim > 0 ? a->dim[0] : 1;
    if (e->parts == 0)
        e->shape = tl_array_shape(a);
    if (l->step == l->o.keep)
        keep_part(l, e, a);
}

static void forget_jobs(tl_run_log *l)
{
    for (int i = 0; i < l->n_jobs; i++)
        tl_storage_release(l->job[i].st);
    l->n_jobs = 0;
    l->job_bytes = 0;
}

void tl_log_settle(tl_run_log *l)
{
    for (int i = 0; i < l->n_jobs; i++)
        make_room(l, &l->entry[l->job[i].entry], &l->job[i].a);
    settling s = {.l = l};
    if (l->failure.status == TL_OK && l->n_jobs > 0)
        tl_parallel_for(tl_threads(), 1, settle_some, &s);
    forget_jobs(l);
}

void tl_log_drop_step(tl_run_log *l)
{
    forget_jobs(l);
    for (uint32_t i = 0; i < l->n; i++)
        tl_free_raw(l->entry[i].kept);
    l->n = 0;
    l->n_passes = 0;
    l->compiled = false;
    tl_key_map_clear(&l->at);
    tl_bump_rewind(&l->bump, 0);
}

/* ---- the results of entries: outputs of nodes, leaves ---- */

/* NULL: x is not the model's, or has no name there. */
static const char *name_in_model(const tl_tape *t, tl_tensor x)
{
    return x.owner == t->values.owner ? NULL : tl_model_name_of(t->model, x);
}

/* The entry of a node's output j, filled in from the node when it is made. NULL: stopped. */
static tl_log_entry *describe(tl_tape *t, uint64_t key, const tl_node *n, int j)
{
    tl_run_log *l = tl_log_of(t);
    const tl_value *v = tl_values_at(&t->values, n->out + (uint32_t)j);
    char text[TL_ATTRS_TEXT];
    bool made;
    tl_log_entry *e = tl_log_entry_get(l, key, &made);
    if (e == NULL || !made)
        return e;
    e->op = n->op->name;
    e->attrs = tl_log_text(l, tl_attrs_text(n->op, n->attrs, text));
    e->file = n->file;
    e->line = n->line;
    e->mode = n->kernel != NULL ? n->kernel->mode
                                : TL_INVARIANT; /* of the kernel that ran, not of a scope */
    e->dtype = v->a.dtype;
    if (l->of_trace)
        e->shape = tl_array_shape(&v->a);
    const char *name = tl_log_mark_of(t, n->out + (uint32_t)j).name;
    e->name = tl_log_text(l, name != NULL ? name : "");
    e->n_in = n->n_in;
    uint64_t *in = tl_log_room(l, (size_t)n->n_in, sizeof *in);
    for (int k = 0; in != NULL && k < n->n_in; k++)
        in[k] = tl_log_key_of(t, n->in[k]);
    e->in = in;
    return e;
}

void tl_log_take_output(tl_tape *t, const tl_log_entry *e, const tl_node *n, int j)
{
    const tl_value *v = tl_values_at(&t->values, n->out + (uint32_t)j);
    uint32_t was = v->restored ? v->born : n->versions[n->n_in + j];
    tl_changer by;
    if (v->st != NULL && !tl_storage_changed(v->st, was, &v->a, &by))
        tl_log_take(tl_log_of(t), e, &v->a, v->st);
}

/* An accumulator takes its bytes when the step ends: here its entry only notes which it is. */
static void name_accumulator(tl_tape *t, tl_log_entry *e, const tl_leaf_grad *g, int use)
{
    const char *name = name_in_model(t, g->leaf);
    e->leaf = g->leaf;
    e->use = use;
    if (name != NULL && strcmp(e->name, name) != 0) /* else a micro-batch before has named it */
        e->name = tl_log_text(tl_log_of(t), name);
    e->dtype = g->acc[use].sum.dtype;
}

bool tl_log_in_accumulator(const tl_tape *t, tl_tensor x, uint32_t *leaf, uint32_t *use)
{
    const tl_storage *st = tl_peek(t, x)->st;
    if (t->recorder != NULL)
        return t->recorder->accumulator_of(t->recorder_ctx, t, x, leaf, use);
    if (st == NULL || st->arena != t->grad_arena)
        return false;
    for (*leaf = 0; *leaf < (uint32_t)t->n_grads; ++*leaf)
        for (*use = 0; *use < (uint32_t)t->grad[*leaf].n_accs; ++*use)
            if (t->grad[*leaf].acc[*use].st == st)
                return true;
    return false;
}

void tl_log_node(tl_tape *t, const tl_node *n, uint64_t key, bool logged)
{
    const bool none = !logged || n->op->traits & TL_VIEW;
    for (int j = 0; j < n->n_out; j++, key++) {
        const tl_tensor x = tl_node_out(t, n, j);
        uint32_t leaf, use;
        tl_log_set_key(t, x, key);
        tl_log_entry *e = none || !tl_log_wants(tl_log_of(t), tl_peek(t, x)->a.ndim)
                              ? NULL
                              : describe(t, key, n, j);
        if (e == NULL)
            continue;
        if (tl_log_in_accumulator(t, x, &leaf, &use))
            name_accumulator(t, e, &t->grad[leaf], (int)use);
        else
            tl_log_take_output(t, e, n, j);
        /* an update is known by the parameter that it changes */
        const char *name = j == 0 && tl_node_mutates(n) ? name_in_model(t, n->in[n->op->mutates])
                                                        : NULL;
        if (name != NULL && tl_log_key_unpack(key).pass == TL_KEY_UPDATE) {
            e->name = tl_log_text(tl_log_of(t), name);
            e->update = true;
        }
    }
}

/* Leaves of the model are the same in every micro-batch, and are taken once a step. */
tl_log_entry *tl_log_entry_of_leaf(tl_tape *t, uint64_t key, tl_tensor x)
{
    tl_run_log *l = tl_log_of(t);
    const tl_value *v = tl_peek(t, x);
    bool made, own = x.owner == t->values.owner;
    tl_log_entry *e = v == NULL ? NULL : tl_log_entry_get(l, key, &made);
    if (e == NULL)
        return NULL;
    if (made) {
        const char *name = own ? tl_log_mark_of(t, x.index).name : name_in_model(t, x);
        e->op = own || name == NULL ? "data" : v->needs_grad ? "param" : "buffer";
        e->name = tl_log_text(l, name != NULL ? name : "");
        e->dtype = v->a.dtype;
    }
    if (l->of_trace) {
        e->from = x;
        e->origin = t->recorder->origin(t->recorder_ctx, t, x);
        e->shape = tl_array_shape(&v->a);
    } else if ((own || made) && v->st != NULL) {
        tl_log_take(l, e, &v->a, v->st);
    }
    return e;
}

void tl_log_leaf(tl_tape *t, tl_tensor x, uint64_t key, bool logged)
{
    tl_log_set_key(t, x, key);
    if (logged && tl_log_wants(tl_log_of(t), tl_peek(t, x)->a.ndim))
        tl_log_entry_of_leaf(t, key, x);
}
