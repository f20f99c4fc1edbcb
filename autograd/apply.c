/* apply.c: one op call - check, shape, allocate, run, record.
 *
 * Nothing is recorded unless the whole call succeeds. */
#include <string.h>

#include "autograd/internal.h"
#include "autograd/kernel.h"
#include "tensor/isa.h"
#include "tensor/threads.h"

enum { MAX_OUT = 8 };

/* The pieces of a call while it is being made. */
typedef struct {
    tl_at at;
    const tl_op *op;
    const void *attrs;
    const tl_tensor *in;
    int n_in;
    tl_value **value; /* of the inputs; NULL where absent */
    const tl_array **array;
    tl_array out[MAX_OUT];
    tl_storage *st[MAX_OUT];
    bool needs_grad;
    bool operand;       /* output 0 is made from an input's memory, which is there ... */
    bool mutates;       /* ... and by changing it where it lies */
    unsigned wanted;    /* inputs that need a gradient */
    uint32_t *versions; /* of the node being recorded */
    tl_change *change;  /* those that the call will make, to be noted */
    bool depends;       /* on the batch: some input does */
    tl_batch batch[MAX_OUT];
    tl_call call;
} maker;

tl_status tl_call_fail(tl_call *c, tl_status s, const char *fmt, ...)
{
    tl_err e = {.status = TL_OK};
    va_list ap;
    va_start(ap, fmt);
    tl_vfail(&e, s, fmt, ap);
    va_end(ap);
    return tl_fail(c->err, s, "%s: %.480s", c->op->name, e.message);
}

static tl_status find_inputs(maker *k)
{
    tl_tape *t = k->at.tape;
    const tl_op *op = k->op;
    if (k->in == NULL || k->n_in < 0)
        TL_TRY(tl_tape_need(k->at, op->name, "the list of inputs", k->in != NULL, k->n_in));
    if (op->n_in >= 0 && k->n_in != op->n_in)
        return tl_tape_fail(k->at, TL_EUSAGE, "%s: takes %d inputs, given %d", op->name, op->n_in,
                            k->n_in);
    k->value = tl_bump_get(&t->bump, (size_t)(k->n_in + 1) * (2 * sizeof *k->value + 1));
    if (k->value == NULL)
        return tl_tape_fail(k->at, TL_ENOMEM, "%s: no memory for %d inputs", op->name, k->n_in);
    k->array = (const tl_array **)(k->value + k->n_in + 1);
    for (int i = 0; i < k->n_in; i++) {
        if (tl_is_none(k->in[i]) && i < 32 && (op->optional & TL_BIT(i)))
            continue;
        k->value[i] = (op->traits & TL_VIEW ? tl_deref_view : tl_deref)(k->at, k->in[i], op->name);
        if (k->value[i] == NULL)
            return t->head.err.status;
        k->array[i] = &k->value[i]->a;
        k->needs_grad |= k->value[i]->needs_grad;
        k->depends |= k->value[i]->batch != TL_FREE;
        k->wanted |= k->value[i]->needs_grad && i < 32 ? TL_BIT(i) : 0;
        if (k->value[i]->dropped)
            return tl_tape_fail(k->at, TL_ESTALE,
                                "%s: input %d was dropped by a segment; list it in keep", op->name,
                                i);
        if (k->value[i]->st == NULL)
            k->call.mode |= TL_TRACE;
    }
    k->operand = op->traits & TL_MUTATES && k->value[op->mutates] != NULL;
    k->mutates = k->operand && !(k->call.mode & TL_APART);
    return TL_OK;
}

/* x is a leaf that needs a gradient, or a view of one: the memory is the leaf's. */
static bool on_leaf(const tl_tape *t, tl_tensor x)
{
    const tl_value *v = tl_peek(t, x);
    while (v->node >= 0 && t->node[v->node].op->traits & TL_VIEW)
        v = tl_peek(t, t->node[v->node].in[0]);
    return v->node < 0 && v->needs_grad;
}

static tl_status check_gradient(maker *k)
{
    const tl_op *op = k->op;
    if (k->call.mode & TL_NO_GRAD)
        k->needs_grad = false;
    if (!k->needs_grad || op->traits & TL_NONDIFF) /* a backward that comes to it is refused */
        return TL_OK;
    if (op->vjp == NULL)
        return tl_tape_fail(k->at, TL_ENOGRAD,
                            "%s: has no derivative, but its input needs a gradient; tl_detach it, "
                            "or record under TL_NO_GRAD",
                            op->name);
    if (k->mutates && on_leaf(k->at.tape, k->in[op->mutates]))
        return tl_tape_fail(k->at, TL_EINPLACE,
                            "%s: cannot change a leaf that needs a gradient in place", op->name);
    if (k->mutates && tl_op_reads(op, k->wanted) & TL_BIT(op->mutates))
        return tl_tape_fail(
            k->at, TL_EINPLACE,
            "%s: a gradient that is wanted reads input %d as it was before this call changes it",
            op->name, op->mutates);
    return TL_OK;
}

static tl_status give_storage(maker *k)
{
    tl_call *c = &k->call;
    for (int i = 0; i < c->n_out; i++) {
        tl_array *o = &k->out[i];
        if (i > 0 || (!(k->op->traits & TL_VIEW) && !k->mutates)) {
            tl_shape s = tl_array_shape(o);
            tl_err e = {.status = TL_OK};
            if (tl_shape_check(&s, o->dtype, &e) != TL_OK)
                return tl_tape_fail(k->at, e.status, "%s: %.300s", k->op->name, e.message);
            if (!c->strided)
                tl_array_set_contiguous(o);
            o->data = NULL;
            if (c->mode & TL_TRACE)
                continue;
            size_t bytes = (size_t)tl_array_count(o) * tl_dtype_size(o->dtype);
            k->st[i] = tl_storage_new(k->at.tape->arena, bytes, false);
            if (k->st[i] == NULL)
                return tl_tape_fail(k->at, TL_ENOMEM, "%s: no memory for %zu bytes of output",
                                    k->op->name, bytes);
            o->data = k->st[i]->data;
            if (i == 0 && k->operand) { /* a copy stands in for the operand */
                tl_array_copy(o, k->array[k->op->mutates]);
                k->array[k->op->mutates] = o;
            }
        } else if (!(c->mode & TL_TRACE)) {
            k->st[i] = k->value[k->op->traits & TL_VIEW ? 0 : k->op->mutates]->st;
            tl_storage_retain(k->st[i]);
        }
    }
    return TL_OK;
}

/* The call changes the memory of input i, which is there. */
static bool writes(const maker *k, int i)
{
    return k->mutates && k->value[i] != NULL && k->value[i]->st != NULL &&
           (i == k->op->mutates || (i < 32 && k->op->changes & TL_BIT(i)));
}

/* Regions are noted in the tape's own memory; what belongs to the model or to gradients changes as
 * a whole. */
static bool reserve_changes(maker *k)
{
    for (int i = 0; i < k->n_in; i++) {
        if (!writes(k, i) || k->value[i]->st->arena != k->at.tape->arena)
            continue;
        tl_change *c = tl_calloc(1, sizeof *c);
        if (c == NULL)
            return false;
        c->next = k->change;
        k->change = c;
    }
    return true;
}

static void note_changes(maker *k)
{
    for (int i = 0; i < k->n_in; i++) {
        if (!writes(k, i))
            continue;
        tl_change *c = k->value[i]->st->arena == k->at.tape->arena ? k->change : NULL;
        if (c != NULL) {
            k->change = c->next;
            *c = (tl_change){.where = k->value[i]->a,
                             .what = k->op->name,
                             .file = k->at.file,
                             .line = k->at.line};
        }
        tl_storage_note(k->value[i]->st, c);
    }
}

static tl_status run(maker *k)
{
    if (k->call.mode & TL_TRACE || k->op->traits & TL_VIEW)
        return TL_OK;
    tl_tape *t = k->at.tape;
    const tl_seen seen = {&k->call, k->at.file, k->at.line, t->phase, t->n_nodes, 1};
    const bool watched = t->run_watched || k->call.mode & TL_WATCHED_MODES;
    if (watched)
        tl_tell_runs(t, &seen);
    tl_fpenv saved = tl_fpenv_enter();
    tl_status s = tl_op_run(&k->call);
    tl_fpenv_leave(saved);
    if (s != TL_OK && k->call.err->message[0] == 0)
        return tl_tape_fail(k->at, s, "%s: kernel '%.60s' has failed and does not say why",
                            k->op->name,
                            k->call.kernel == NULL ? "invariant" : k->call.kernel->name);
    if (s != TL_OK)
        return tl_tape_fail(k->at, s, "%.400s", k->call.err->message);
    if (k->mutates)
        note_changes(k);
    return watched ? tl_tell_ran(t, &seen) : TL_OK;
}

/* Of results without elements there is nothing to compute, however long their other dims are. */
static bool nothing(const tl_call *c)
{
    for (int i = 0; i < c->n_out; i++)
        if (tl_array_count(&c->out[i]) > 0)
            return false;
    return true;
}

tl_status tl_op_run(tl_call *c)
{
    if (nothing(c))
        return TL_OK;
    if (c->kernel != NULL && c->kernel->run != NULL)
        return c->kernel->run(c);
    if (c->kernel != NULL && !(c->op->traits & TL_POINTWISE))
        return tl_call_fail(c, TL_EUSAGE, "kernel '%.60s' is a tile, and this op is not pointwise",
                            c->kernel->name);
    return c->op->traits & TL_POINTWISE ? tl_pointwise_run(c) : c->op->forward(c);
}

/* Takes back the records from first on. */
static void drop_values(tl_tape *t, uint32_t first)
{
    uint32_t end = atomic_load(&t->values.count);
    for (uint32_t i = first; i < end; i++)
        tl_storage_release(tl_values_at(&t->values, i)->st);
    atomic_store(&t->values.count, first);
}

static tl_status node_room(tl_tape *t, uint32_t more)
{
    if (more > INT32_MAX - t->n_nodes) /* a value names its node by an int32_t */
        return TL_ENOMEM;
    if (t->n_nodes + more <= t->cap_nodes)
        return TL_OK;
    uint32_t cap = t->cap_nodes ? 2 * t->cap_nodes : 256;
    cap = cap < t->n_nodes + more ? t->n_nodes + more : cap;
    tl_node *n = tl_realloc(t->node, cap * sizeof *n);
    if (n == NULL)
        return TL_ENOMEM;
    t->node = n;
    t->cap_nodes = cap;
    return TL_OK;
}

/* All the memory that recording will take, before the kernel runs: a call that
 * changes something in place must not fail after it has. */
static tl_status reserve(maker *k, tl_tensor *out)
{
    tl_tape *t = k->at.tape;
    const tl_op *op = k->op;
    tl_status s = t->n_nodes < t->cap_nodes ? TL_OK : node_room(t, 1);
    const size_t n_in = (size_t)k->n_in, pad = (op->attr_size + 15) / 16 * 16;
    char *memory = tl_bump_get(&t->bump, pad + n_in * sizeof(tl_tensor) +
                                             (n_in + (size_t)op->n_out) * sizeof(uint32_t));
    uint32_t first = atomic_load(&t->values.count);
    if (!reserve_changes(k))
        s = TL_ENOMEM;
    for (int i = 0; i < op->n_out && s == TL_OK; i++) {
        out[i] = tl_tape_value(t, &k->out[i], k->st[i]);
        s = tl_is_none(out[i]) ? TL_ENOMEM : TL_OK;
    }
    if (s != TL_OK || memory == NULL) {
        drop_values(t, first);
        return tl_tape_fail(k->at, TL_ENOMEM, "%s: no memory to record node %u", op->name,
                            t->n_nodes);
    }
    void *attrs = memory;
    tl_tensor *in = (tl_tensor *)(memory + pad);
    k->versions = (uint32_t *)(in + n_in);
    if (k->n_in)
        memcpy(in, k->in, n_in * sizeof *in);
    if (op->attr_size)
        memcpy(attrs, k->attrs, op->attr_size);
    t->node[t->n_nodes] = (tl_node){.op = op,
                                    .attrs = attrs,
                                    .mode = k->call.mode,
                                    .phase = t->phase,
                                    .n_in = k->n_in,
                                    .n_out = op->n_out,
                                    .in = in,
                                    .out = first,
                                    .versions = k->versions,
                                    .needs_grad = k->needs_grad,
                                    .file = k->at.file,
                                    .line = k->at.line,
                                    .kernel = k->call.kernel,
                                    .level = tl_isa_now()->name,
                                    .choice = t->choice};
    return TL_OK;
}

static void commit(maker *k)
{
    tl_tape *t = k->at.tape;
    const tl_op *op = k->op;
    for (int i = 0; i < k->n_in; i++)
        k->versions[i] = k->value[i] != NULL && k->value[i]->st != NULL ? k->value[i]->st->version
                                                                        : 0;
    for (int i = 0; i < op->n_out; i++) {
        k->versions[k->n_in + i] = k->st[i] != NULL ? k->st[i]->version : 0;
        tl_value *v = tl_values_at(&t->values, t->node[t->n_nodes].out + (uint32_t)i);
        v->node = (int32_t)t->n_nodes;
        v->out = (uint8_t)i;
        if (v->st != NULL)
            v->born = i == 0 && op->traits & TL_VIEW && k->in[0].owner == t->values.owner
                          ? k->value[0]->born
                          : v->st->version;
        v->batch = k->batch[i];
        v->needs_grad = k->needs_grad && tl_dtype_is_float(v->a.dtype);
    }
    if (k->mutates && k->in[op->mutates].owner == t->values.owner)
        k->value[op->mutates]->consumed = true;
    t->n_nodes++;
    TL_TELL(t, recorded, t, t->n_nodes - 1);
}

/* What reads a shape among the attributes may count on 0 to 8 dims. */
static tl_status check_attrs(const maker *k)
{
    if (k->attrs == NULL)
        TL_TRY(tl_tape_need(k->at, k->op->name, "its attributes", false, k->op->attr_size > 0));
    for (const tl_attr *a = k->op->attr; a != NULL && a->name != NULL; a++) {
        const tl_shape *s = (const void *)((const char *)k->attrs + a->offset);
        if (a->kind == TL_ATTR_SHAPE && (s->ndim < 0 || s->ndim > TL_MAX_DIMS))
            return tl_tape_fail(k->at, TL_ESHAPE, "%s: %s of %d dims; 0 to %d are possible",
                                k->op->name, a->name, s->ndim, TL_MAX_DIMS);
    }
    return TL_OK;
}

/* How the outputs depend on the batch. */
static void find_batch(maker *k)
{
    if (k->depends)
        tl_batch_infer(&k->call, k->value, (tl_batch *)(k->array + k->n_in + 1), k->batch);
    else
        memset(k->batch, TL_FREE, sizeof k->batch);
}

static tl_status make(maker *k, tl_tensor *out)
{
    tl_err err = {.status = TL_OK};
    TL_TRY(check_attrs(k));
    TL_TRY(find_inputs(k));
    TL_TRY(check_gradient(k));
    k->call = (tl_call){.op = k->op,
                        .attrs = k->attrs,
                        .n_in = k->n_in,
                        .n_out = k->op->n_out,
                        .in = k->array,
                        .out = k->out,
                        .mode = k->call.mode,
                        .arena = k->at.tape->arena,
                        .err = &err};
    tl_status s = k->op->shape(&k->call);
    if (s != TL_OK)
        return tl_tape_fail(k->at, s, "%.400s", err.message);
    bool floats = !(k->op->traits & TL_NONDIFF); /* numbers of classes have no derivative to miss */
    for (int i = 0; i < k->op->n_out; i++)
        floats |= tl_dtype_is_float(k->out[i].dtype);
    k->needs_grad &= floats;
    find_batch(k);
    if (k->mutates) /* the operand's own memory, whatever its strides */
        k->out[0] = k->value[k->op->mutates]->a;
    TL_TRY(give_storage(k));
    if (k->at.tape->choice != NULL)
        k->call.kernel = tl_kernel_for(k->at.tape->choice, &k->call);
    TL_TRY(reserve(k, out));
    s = run(k);
    if (s != TL_OK) {
        drop_values(k->at.tape, k->at.tape->node[k->at.tape->n_nodes].out);
        return s;
    }
    commit(k);
    return TL_OK;
}

/* So many calls of ops that need no memory for outputs will not fail for want of it. */
tl_status tl_tape_reserve(tl_tape *t, uint32_t calls, int inputs)
{
    if (tl_failed(t))
        return tl_error_status(t);
    TL_TRY(tl_need(&t->head.err, __func__, "inputs", true, inputs));
    size_t each = ((size_t)inputs + 2) * 64 + 512;
    bool ok = calls <= SIZE_MAX / 2 / each && node_room(t, calls) == TL_OK &&
              tl_bump_room(&t->bump, calls * each) && tl_values_room(&t->values, calls);
    return ok ? TL_OK : tl_fail(&t->head.err, TL_ENOMEM, "no memory to record %u calls", calls);
}

void tl_apply(tl_at at, const tl_op *op, const void *attrs, const tl_tensor *in, int n_in,
              tl_tensor *out)
{
    if (TL_NEED_AT(at, op) != TL_OK || TL_NEED_N_AT(at, out, op->n_out) != TL_OK)
        return;
    const int room = op->n_out < MAX_OUT ? op->n_out : MAX_OUT;
    for (int i = 0; i < room; i++)
        out[i] = TL_NONE;
    if (tl_failed(at.tape))
        return;
    if (op->n_out > MAX_OUT) {
        tl_tape_fail(at, TL_EUSAGE, "%s: has %d outputs; at most %d are possible", op->name,
                     op->n_out, MAX_OUT);
        return;
    }
    maker k = {.at = at.tape->place_depth > 0 ? tl_place(at) : at,
               .op = op,
               .attrs = attrs,
               .in = in,
               .n_in = n_in};
    k.call.mode = at.tape->mode;
    if (make(&k, out) != TL_OK)
        for (int i = 0; i < op->n_out; i++)
            out[i] = TL_NONE;
    for (int i = 0; i < op->n_out; i++)
        tl_storage_release(k.st[i]); /* the value holds its own reference */
    tl_changes_free(k.change);
}

tl_tensor tl_apply1(tl_at at, const tl_op *op, const void *attrs, const tl_tensor *in, int n_in)
{
    tl_tensor out[MAX_OUT] = {TL_NONE};
    tl_apply(at, op, attrs, in, n_in, out);
    return out[0];
}

tl_tensor tl_detach_at(tl_at at, tl_tensor x)
{
    if (tl_failed(at.tape))
        return TL_NONE;
    tl_value *v = tl_deref_view(at, x, "tl_detach");
    if (v != NULL && v->dropped)
        tl_tape_fail(at, TL_ESTALE, "tl_detach: value %u was dropped by a segment; list it in keep",
                     x.index);
    tl_tensor leaf = v == NULL || v->dropped ? TL_NONE : tl_tape_value(at.tape, &v->a, v->st);
    if (!tl_is_none(leaf) && x.owner == at.tape->values.owner) /* else a variable, as it is now */
        tl_peek(at.tape, leaf)->born = v->born;
    if (!tl_is_none(leaf))
        tl_peek(at.tape, leaf)->batch = v->batch;
    if (!tl_is_none(leaf) && (at.tape->phase & TL_PHASE_BACKWARD || at.tape->recorder != NULL))
        tl_peek(at.tape, leaf)->source = x;
    return leaf;
}
