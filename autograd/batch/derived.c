/* derived.c: values made of parameters and constants alone (derived values) are differentiated once
 * a step, however many micro-batches it has (NUMERICS 10.4).
 *
 * A derived value that anything else uses has accumulators, as a parameter has. The lasting tape
 * notes how it was made: a tape inside the tape, of shapes alone, which outlives tl_tape_reset.
 * Values there are found by their prints: a print is one number for the whole expression. When a
 * gradient is read, settle.c sends the gradients of derived values back through these expressions
 * to the parameters.
 *
 * Derived values are computed once a step, too. While gradients wait, values of the lasting tape
 * keep the memory of their contents, and the same call on unchanged parameters takes it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/batch/internal.h"

/* ---- prints: equal for equal expressions, on every tape and in every process ---- */

/* Whether what is selected may bring in kernels of other bits. */
static bool rounds(const tl_choice *c)
{
    return c != NULL && !tl_choice_is_own(c) && (tl_choice_fast(c) != NULL || rounds(c->outer));
}

static uint64_t mix_call(const tl_node *n)
{
    uint64_t h = tl_mix(tl_mix_text(0, n->op->name), n->mode & (TL_FAST | TL_NO_GRAD));
    h = tl_mix_attrs(h, n->op, n->attrs);
    for (const tl_choice *c = rounds(n->choice) ? n->choice : NULL; c != NULL; c = c->outer)
        h = tl_mix_text(tl_mix_text(tl_mix(h, c->dtype), c->op == NULL ? "" : c->op), c->name);
    return h;
}

static uint64_t print_of(const tl_tape *t, tl_tensor x)
{
    const tl_value *v = tl_peek(t, x);
    return v == NULL                    ? 0
           : x.owner == t->values.owner ? v->print
                                        : tl_mix_text(1 + v->needs_grad, tl_leaf_name(t, x));
}

/* The print of output j of a call whose inputs have prints. */
static uint64_t print_out(const tl_tape *t, const tl_node *n, int j)
{
    uint64_t print = mix_call(n);
    for (int k = 0; k < n->n_in; k++)
        print = tl_mix(print, print_of(t, n->in[k]));
    return tl_mix(print, (uint64_t)j) | 1;
}

static void print_outputs(tl_tape *t, const tl_node *n)
{
    for (int j = 0; j < n->n_out; j++)
        n->made[j]->print = print_out(t, n, j);
}

static uint64_t print_detached(const tl_tape *t, tl_tensor from)
{
    return tl_mix(7, print_of(t, from)) | 1;
}

static uint64_t print_constant(const tl_array *a)
{
    tl_shape s = tl_array_shape(a);
    return tl_mix_elements(tl_mix_shape(tl_mix(3, a->dtype), &s), a->data,
                           (size_t)tl_array_count(a), tl_dtype_size(a->dtype)) |
           1;
}

/* ---- the lasting tape ---- */

/* The value on the lasting tape that stands for x of this tape; x itself if it is of the model. */
static tl_tensor twin(const tl_tape *t, tl_tensor x)
{
    return tl_is_none(x) || x.owner != t->values.owner ? x : tl_handle(tl_derived_made(t, x));
}

static bool made_earlier(tl_tape *, const tl_call *, const tl_tensor *, const tl_value **);

static tl_tape *lasting(tl_tape *t)
{
    if (t->lasting == NULL && (t->lasting = tl_tape_bare(t->model, t->head.destroy)) == NULL) {
        tl_fail(&t->head.err, TL_ENOMEM, "no memory for a tape");
        return NULL;
    }
    t->earlier = made_earlier;
    t->lasting->busy = 1;           /* its calls are parts of others */
    if (t->lasting->found.cap == 0) /* a checkpoint may name prints chosen to collide */
        t->lasting->found.salt = tl_mix(1, (uintptr_t)t->lasting);
    return t->lasting;
}

/* Moves an error of the lasting tape to the user's tape, where it can be read and cleared. */
static tl_status hand_up(tl_tape *t, tl_tape *l)
{
    tl_status s = tl_fail(&t->head.err, tl_error_status(l), "%s", tl_error(l));
    tl_err_clear(&l->head.err);
    return s;
}

uint64_t tl_derived_constant(tl_tape *t, const tl_array *a)
{
    tl_tape *l = lasting(t);
    tl_shape s = tl_array_shape(a);
    const size_t bytes = tl_array_room(a);
    const uint64_t print = print_constant(a);
    if (l == NULL || tl_lasting_find(l, print, true) != NULL)
        return print;
    tl_array own = tl_array_make(a->dtype, &s, tl_bump_get(&l->bump, bytes + 1));
    tl_value *y = own.data == NULL ? NULL : tl_tape_value(l, &own, NULL);
    if (y == NULL) {
        tl_fail(&t->head.err, TL_ENOMEM, "no memory for a constant of %zu bytes", bytes);
        tl_err_clear(&l->head.err);
        return print;
    }
    if (bytes > 0)
        memcpy(own.data, a->data, bytes);
    tl_value_fix(y);
    if (!tl_lasting_place(l, y, print))
        hand_up(t, l);
    return print;
}

/* The value that x was detached from, however often; x itself if it was not. */
static tl_tensor made_of(const tl_tape *t, tl_tensor x)
{
    while (!tl_is_none(x) && x.owner == t->values.owner) {
        const tl_value *v = tl_values_at(&t->values, x.index);
        const tl_tensor from = tl_is_none(v->source) ? v->detached : v->source;
        if (v->node >= 0 || tl_is_none(from))
            break;
        x = from;
    }
    return x;
}

/* Whether the leaf has been overwritten since it was made. */
static bool has_changed(const tl_tape *t, const tl_value *v)
{
    return t->recorder == NULL && v->st != NULL && v->st->version != v->born;
}

/* Gives x a print and a place on the lasting tape, if it is a constant. */
static tl_status note_constant(tl_tape *t, tl_tensor x)
{
    tl_value *v = tl_peek(t, x);
    if (x.owner != t->values.owner || v->node >= 0)
        return TL_OK;
    if (has_changed(t, v))
        return tl_tape_fail(tl_nowhere(t), TL_EINPLACE,
                            "tl_backward: value %u, a tl_constant, has been changed in place, and "
                            "what was made of it and of parameters goes back through what it was",
                            x.index);
    if (v->print == 0 || tl_is_none(twin(t, x)))
        v->print = t->recorder == NULL ? tl_derived_constant(t, &v->a)
                                       : t->recorder->constant(t->recorder_ctx, t, x);
    return tl_error_status(t);
}

/* Does the same for a leaf that is a constant, or was detached from one or from what has both. */
static tl_status note_leaf(tl_tape *t, tl_tensor x)
{
    const tl_tensor from = made_of(t, x);
    TL_TRY(note_constant(t, from));
    if (tl_same_handle(from, x))
        return TL_OK;
    tl_tape *l = t->lasting;
    tl_value *v = tl_peek(t, x);
    v->print = print_detached(t, from);
    if (!tl_is_none(twin(t, x)))
        return TL_OK;
    tl_array a = v->a; /* with its strides */
    a.data = NULL;
    tl_value *y = tl_tape_value(l, &a, NULL);
    if (y == NULL)
        return hand_up(t, l);
    tl_value_fix(y);
    y->source = twin(t, from);
    return tl_lasting_place(l, y, v->print) ? TL_OK : hand_up(t, l);
}

/* Records n on the lasting tape, if it is new there. */
static tl_status note_node(tl_tape *t, const tl_node *n)
{
    tl_tape *l = t->lasting;
    tl_tensor out[TL_OUTS], *in = tl_tape_room(t, (size_t)n->n_in, sizeof *in);
    TL_TRY(tl_error_status(t));
    for (int k = 0; k < n->n_in; k++) {
        if (!tl_is_none(n->in[k]))
            TL_TRY(note_leaf(t, n->in[k]));
        in[k] = twin(t, n->in[k]);
    }
    print_outputs(t, n);
    const tl_value *before = tl_lasting_find(l, n->made[0]->print, true);
    if (before != NULL)
        return before->node >= 0 && l->node[before->node].op == n->op
                   ? TL_OK
                   : tl_tape_fail((tl_at){t, n->file, n->line, NULL}, TL_ENAME,
                                  "%s: another op of this name is used on parameters, too; what "
                                  "is made of parameters goes by the names of its ops",
                                  n->op->name);
    tl_again_apply(l, n, in, n->mode | TL_TRACE | TL_APART, out);
    if (!tl_failed(l))
        tl_again_fixed(l, in, out, n);
    for (int j = n->n_out; j-- > 0 && !tl_failed(l);) /* output 0 last: then all are there */
        tl_lasting_place(l, tl_peek(l, out[j]), n->made[j]->print);
    return tl_failed(l) ? hand_up(t, l) : TL_OK;
}

/* ---- the memory of derived values ---- */

/* Whether v, on the lasting tape, keeps its contents as of `last`, the last change below it. */
static bool there(const tl_value *v, uint64_t last)
{
    return last != TL_REMOVED && v->st != NULL && v->st->version == 0 && v->after == last;
}

/* Keeps the results of n in memory for later micro-batches, unless a gradient waits in one as it
 * was before the parameters changed. */
static void keep(tl_tape *t, const tl_node *n)
{
    tl_tape *l = t->lasting;
    for (int j = 0; j < n->n_out && !(n->op->traits & TL_VIEW); j++) {
        const tl_value *v = n->made[j];
        tl_value *to = tl_lasting_find(l, v->print, true);
        const tl_leaf_grad *g = tl_leaf_grad_find(t, tl_lasting_find(l, v->print, false)->self);
        const uint64_t last = tl_derived_last_change(t, to);
        if (v->st == NULL || v->st->version != 0 || there(to, last) ||
            (g != NULL && g->live && g->born != 0 && g->born != last))
            continue;
        tl_derived_drop(to);
        tl_storage_retain(to->st = v->st);
        to->a = v->a;
        to->after = last;
    }
}

int64_t tl_derived_number(const tl_tape *t, uint64_t print)
{
    const tl_value *x = tl_lasting_find(t->lasting, print, true);
    return x == NULL || x->node < 0 ? -1 : (int64_t)x->self.index;
}

void *tl_derived_room(tl_tape *t, uint32_t number, const tl_array *a, bool *full)
{
    tl_value *v = tl_values_at(&t->lasting->values, number);
    const uint64_t last = tl_derived_last_change(t, v);
    const size_t bytes = tl_array_room(a);
    *full = there(v, last) && tl_array_laid_alike(&v->a, a);
    if (*full)
        return v->st->data;
    tl_derived_drop(v);
    v->st = tl_storage_new(t->arena, bytes, false);
    if (v->st == NULL) {
        tl_fail(&t->head.err, TL_ENOMEM, "no memory for %zu bytes made of parameters", bytes);
        return NULL;
    }
    v->a = *a;
    v->a.data = v->st->data;
    v->after = last;
    return v->st->data;
}

void tl_derived_forget(tl_tape *t)
{
    const tl_values *v = t->lasting == NULL ? NULL : &t->lasting->values;
    for (uint32_t i = 0; v != NULL && i < atomic_load(&v->count); i++)
        tl_derived_drop(tl_values_at(v, i));
}

/* Gives a leaf of the tape its print: one of its own, if it has changed since it was made. */
static void print_leaf(tl_tape *t, tl_tensor x)
{
    tl_value *v = tl_is_none(x) || x.owner != t->values.owner ? NULL : tl_peek(t, x);
    if (v == NULL || v->node >= 0 || v->print != 0)
        return;
    const tl_tensor from = made_of(t, x);
    const bool own = tl_same_handle(from, x); /* else it was detached */
    if (!own)
        print_leaf(t, from);
    v->print = has_changed(t, v) ? tl_mix(tl_mix(5, x.index), x.generation) | 1
               : own             ? print_constant(&v->a)
                                 : print_detached(t, from);
}

/* The node that made x, or what x was detached from, if that has no print yet; else -1. */
static int32_t unprinted(const tl_tape *t, tl_tensor x)
{
    const tl_tensor of = made_of(t, x);
    const int32_t node = tl_maker_at(t, of);
    return node < 0 || tl_values_at(&t->values, of.index)->print != 0 ? -1 : node;
}

static int32_t follow_unprinted(void *t, const tl_node *n, int k) { return unprinted(t, n->in[k]); }

/* Gives prints to x and to all values that it is made of. */
static void print_all(tl_tape *t, tl_tensor x)
{
    tl_postorder o;
    tl_postorder_begin(&o, t, follow_unprinted, t);
    tl_postorder_from(&o, unprinted(t, x));
    for (int32_t i; (i = tl_postorder_next(&o)) >= 0;) {
        for (int k = 0; k < t->node[i].n_in; k++)
            print_leaf(t, t->node[i].in[k]);
        print_outputs(t, &t->node[i]);
    }
    print_leaf(t, x);
}

static bool made_earlier(tl_tape *t, const tl_call *c, const tl_tensor *in, const tl_value **before)
{
    tl_tape *l = t->lasting;
    const tl_node n = {.op = c->op,
                       .attrs = c->attrs,
                       .mode = c->mode,
                       .n_in = c->n_in,
                       .in = in,
                       .choice = t->now.choice};
    for (int k = 0; k < c->n_in; k++)
        print_all(t, in[k]);
    for (int j = 0; j < c->n_out; j++) {
        const tl_value *v = before[j] = tl_lasting_find(l, print_out(t, &n, j), true);
        if (v == NULL || v->node < 0 || l->node[v->node].op != c->op ||
            v->a.dtype != c->out[j].dtype || !tl_array_same_shape(&v->a, &c->out[j]) ||
            !there(v, tl_derived_last_change(t, v)))
            return false;
    }
    return c->n_out > 0;
}

/* ---- what a backward asks ---- */

static bool is_variable(const tl_tape *t, tl_tensor x)
{
    return x.owner != t->values.owner || !tl_same_handle(made_of(t, x), x);
}

/* Fails if a tensor of the model, or one that was detached, has changed since the node read it:
 * gradients go back through what the lasting tape makes of it anew. */
static tl_status check_read(tl_tape *t, uint32_t node)
{
    const tl_node *n = &t->node[node];
    for (int k = 0; k < n->n_in; k++)
        if (is_variable(t, n->in[k]))
            TL_TRY(tl_input_unchanged(t, node, k, t, "tl_backward: ",
                                      "what is made of parameters alone goes back through what "
                                      "they are; record it again after the change"));
    return TL_OK;
}

/* y, if it has that shape; else an error. (A checkpoint may name a value of another shape.) */
static tl_tensor of_shape(tl_tape *t, const tl_value *y, const tl_shape *s, const char *name)
{
    const tl_shape has = tl_array_shape(&y->a);
    if (tl_shape_equal(&has, s))
        return y->self;
    tl_fail(&t->head.err, TL_ESHAPE,
            "a gradient was loaded for %s of shape %s, which has shape %s here", name,
            TL_TEXT_OF(&has), TL_TEXT_OF(s));
    return TL_NONE;
}

/* Whether the lasting tape notes how x was made, and keeps x's memory, computed from the parameters
 * as they are now. */
static bool is_noted(tl_tape *t, tl_tensor x)
{
    const tl_value *v = tl_peek(t, x);
    const tl_value *kept = v->print == 0 ? NULL : tl_peek(t, twin(t, x));
    if (kept == NULL || v->node < 0)
        return kept != NULL;
    return v->st == kept->st && there(kept, tl_derived_last_change(t, kept));
}

static int32_t follow_made(void *t, const tl_node *n, int k)
{
    return tl_maker_at(t, made_of(t, n->in[k]));
}

tl_tensor tl_derived_leaf(tl_tape *t, tl_tensor x)
{
    tl_postorder o;
    if (lasting(t) == NULL)
        return TL_NONE;
    tl_postorder_begin(&o, t, follow_made, t);
    tl_postorder_from(&o, is_noted(t, x) ? -1 : tl_maker_at(t, made_of(t, x)));
    for (int32_t i; (i = tl_postorder_next(&o)) >= 0;) {
        if (check_read(t, (uint32_t)i) != TL_OK || note_node(t, &t->node[i]) != TL_OK)
            return TL_NONE;
        if (t->recorder == NULL)
            keep(t, &t->node[i]);
    }
    if (note_leaf(t, x) != TL_OK)
        return TL_NONE;
    const tl_value *v = tl_peek(t, x);
    const tl_shape s = tl_array_shape(&v->a);
    return of_shape(t, tl_lasting_find(t->lasting, v->print, false), &s, tl_leaf_name(t, x));
}

tl_tensor tl_derived_named(tl_tape *t, const char *name, tl_dtype dtype, const tl_shape *shape)
{
    char *end;
    const uint64_t print = *name == '=' ? strtoull(name + 1, &end, 16) : 0;
    tl_tape *l = print == 0 || *end != '\0' ? NULL : lasting(t);
    tl_value *x = l == NULL ? NULL : tl_lasting_find(l, print, false);
    if (shape == NULL || l == NULL)
        return tl_handle(x);
    if (x != NULL)
        return of_shape(t, x, shape, name);
    const tl_array a = tl_array_make(dtype, shape, NULL);
    x = tl_tape_value(l, &a, NULL);
    if (x != NULL && tl_lasting_place(l, x, print))
        return x->self;
    hand_up(t, l);
    return TL_NONE;
}

bool tl_derived_share(tl_tape *trace, tl_tape *user)
{
    tl_object_hold(trace->lasting = lasting(user));
    return trace->lasting != NULL && (trace->lasting->shared = true);
}

void tl_derived_reset(tl_tape *t)
{
    bool waits = t->lasting == NULL;
    for (int i = 0; i < t->n_grads; i++)
        waits |= tl_derived(t, t->grad[i].leaf) && t->grad[i].live;
    if (waits)
        return;
    tl_derived_forget(t);
    tl_tape *l = t->lasting;
    if (__atomic_load_n(&l->head.held, __ATOMIC_SEQ_CST) == 0) /* by graphs */
        l->traced = (tl_tape_mark){0};
    else if (l->shared)
        l->traced = (tl_tape_mark){atomic_load(&l->values.count), l->n_nodes,
                                   tl_bump_used(&l->bump)};
    l->shared = false;
    tl_leaf_grads_drop(t, l->values.owner, l->traced.values);
    if (atomic_load(&l->values.count) > l->traced.values) {
        tl_values_drop(&l->values, l->traced.values);
        tl_key_map_clear(&l->found);
        for (uint32_t i = 0; i < l->traced.values; i++) { /* there is room: there were more */
            tl_value *v = tl_values_at(&l->values, i);
            if (v->print != 0)
                tl_lasting_place(l, v, v->print);
        }
    }
    l->n_nodes = l->traced.nodes;
    tl_bump_rewind(&l->bump, l->traced.bump);
}
