/* apply.c: one op call. tl_apply, at the end of the file, goes through its phases in order: check
 * the inputs, infer the outputs by the op's rules, allocate them, run the kernel, record the node.
 * If any phase fails nothing is recorded. */
#include <string.h>

#include "autograd/batch.h"
#include "autograd/pointwise.h"
#include "tensor/isa.h"
#include "tensor/threads.h"

enum { MAX_OUT = 8 };

/* A call while it is being made. Sets of inputs are bit masks. */
typedef struct {
    tl_at at;
    tl_call call;
    const tl_tensor *in;
    tl_value **value;       /* records of the inputs; NULL where absent */
    const tl_array **array; /* their arrays */
    uint32_t *versions;     /* of storages, for the node */
    tl_batch *batch;        /* how the inputs depend on the batch */
    unsigned wanted;        /* inputs that need a gradient */
    bool needs_grad;        /* one of them does, and gradients are recorded */
    bool depends;           /* some input depends on the batch */
    bool operand;           /* the op changes an operand in place, and it is present */
    bool mutates;           /* this call does so, rather than change a copy */
    bool blank;             /* some input's memory is yet to be filled with zeros */
    bool there;             /* the outputs were computed earlier, from the same parameters */
    unsigned changes;       /* inputs whose memory this call changes */
    unsigned regions; /* those in the tape's arena, where changes are tracked by region; tensors of
                       * the model and accumulators change as a whole */
    tl_value *made[MAX_OUT]; /* records of the outputs */
    uint32_t first;          /* index of made[0]; the others follow */
    tl_change *change;       /* reserved notes of the changes to come */
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

/* ---- inputs ---- */

/* Checks the attributes, and copies them and the handles into memory that the node will keep. */
static tl_status copy_arguments(maker *k, const tl_tensor *in, const void *attrs)
{
    tl_call *c = &k->call;
    const tl_op *op = c->op;
    for (const tl_attr *a = op->attr; a != NULL && a->name != NULL; a++) {
        const tl_shape *s = (const void *)((const char *)attrs + a->offset);
        if (a->kind == TL_ATTR_SHAPE && (s->ndim < 0 || s->ndim > TL_MAX_DIMS))
            return tl_tape_fail(k->at, TL_ESHAPE, "%s: %s of %d dims; 0 to %d are possible",
                                op->name, a->name, s->ndim, TL_MAX_DIMS);
    }
    if (op->n_in >= 0 && c->n_in != op->n_in)
        return tl_tape_fail(k->at, TL_EUSAGE, "%s: takes %d input%s, given %d", op->name, op->n_in,
                            op->n_in == 1 ? "" : "s", c->n_in);
    const size_t n = (size_t)c->n_in, pad = (op->attr_size + 15) / 16 * 16;
    k->value = tl_bump_get(&k->at.tape->bump, 2 * n * sizeof *k->value + pad + n * sizeof *in +
                                                  (n + (size_t)c->n_out) * sizeof *k->versions +
                                                  n * sizeof *k->batch);
    if (k->value == NULL)
        return tl_tape_fail(k->at, TL_ENOMEM, "%s: no memory for %d inputs", op->name, c->n_in);
    c->in = k->array = (const tl_array **)(k->value + n);
    c->attrs = k->array + n;
    k->in = (tl_tensor *)((char *)c->attrs + pad);
    k->versions = (uint32_t *)(k->in + n);
    k->batch = (tl_batch *)(k->versions + n + (size_t)c->n_out);
    if (op->attr_size > 0)
        memcpy(c->attrs, attrs, op->attr_size);
    if (n > 0)
        memcpy((tl_tensor *)k->in, in, n * sizeof *in);
    return TL_OK;
}

/* Fills blank inputs with zeros, except the accumulator that this call is the first to add to. */
static void fill_blanks(maker *k)
{
    tl_call *c = &k->call;
    const tl_tape *t = k->at.tape;
    for (int i = 0; i < c->n_in; i++) {
        tl_value *v = k->value[i];
        if (v == NULL || v->st == NULL || !v->st->blank)
            continue;
        if (k->mutates && i == c->op->mutates && !(c->mode & TL_TRACE) && t->choice == NULL &&
            !t->run_watched && tl_may_begin(c->op, &v->a, v->st))
            c->begins = true;
        else
            tl_storage_settle(v->st);
    }
}

/* Finds the inputs' records, and derives the facts of `maker` from them. */
static tl_status find_records(maker *k)
{
    tl_call *c = &k->call;
    const tl_op *op = c->op;
    unsigned there = 0, own = 0;
    tl_look l = {.in = k->in,
                 .n_in = c->n_in,
                 .optional = op->optional,
                 .view = op->traits & TL_VIEW,
                 .found = k->value};
    if (!tl_look_up(k->at, op->name, &l))
        return TL_ESTALE;
    for (int i = 0; i < c->n_in; i++) {
        const uint32_t bit = i < 32 ? TL_BIT(i) : 0;
        const tl_value *v = k->value[i];
        if (v == NULL)
            continue;
        if (v->dropped)
            return tl_tape_fail(k->at, TL_ESTALE,
                                "%s: input %d was dropped by a segment; list it in keep", op->name,
                                i);
        if (v->st == NULL)
            c->mode |= TL_TRACE;
        k->needs_grad |= v->needs_grad;
        k->depends |= v->batch != TL_FREE;
        k->wanted |= v->needs_grad ? bit : 0;
        there |= v->st != NULL ? bit : 0;
        own |= v->st != NULL && v->st->arena == k->at.tape->arena ? bit : 0;
        k->blank |= v->st != NULL && v->st->blank;
        c->plain &= v->plain;
        k->array[i] = &v->a;
    }
    k->needs_grad &= !(c->mode & TL_NO_GRAD);
    k->operand = op->traits & TL_MUTATES && k->value[op->mutates] != NULL;
    k->mutates = k->operand && !(c->mode & TL_APART);
    k->changes = k->mutates ? there & (TL_BIT(op->mutates) | op->changes) : 0;
    k->regions = k->changes & own;
    if (k->blank && !(op->traits & TL_VIEW))
        fill_blanks(k);
    return TL_OK;
}

/* x is a leaf that needs a gradient, or a view of one. */
static bool on_leaf(const tl_tape *t, tl_tensor x)
{
    const tl_value *v = tl_peek(t, tl_behind(t, x, TL_VIEW, 0));
    return v->node < 0 && v->needs_grad;
}

/* A gradient is needed through an op that has no vjp or changes an operand: is that possible? */
static tl_status check_gradient(const maker *k)
{
    const tl_op *op = k->call.op;
    if (op->traits & TL_NONDIFF) /* only a backward that reaches it is refused */
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

/* An in-place call must not overwrite another of its inputs while it reads it. */
static tl_status check_overlap(const maker *k)
{
    const tl_op *op = k->call.op;
    const tl_value *x = k->value[op->mutates];
    for (int i = 0; i < k->call.n_in; i++)
        if (k->value[i] != NULL && k->value[i]->st == x->st &&
            !(i < 32 && k->changes & TL_BIT(i)) && tl_arrays_overlap(&k->value[i]->a, &x->a))
            return tl_tape_fail(k->at, TL_EINPLACE,
                                "%s: input %d lies in memory of input %d, which the call changes",
                                op->name, i, op->mutates);
    return TL_OK;
}

/* ---- outputs ---- */

/* Output v uses the memory of another value: the input that it views or changes in place, or the
 * same value as computed earlier. */
static void share_storage(const maker *k, tl_value *v, tl_array *out, const tl_value *from)
{
    if (k->mutates || k->there) /* with its strides */
        *out = from->a;
    out->dtype = from->a.dtype;
    if (!(k->call.mode & TL_TRACE))
        tl_storage_retain(v->st = from->st);
    v->plain = tl_array_plain(out);
    v->a = *out;
}

/* An in-place call must not fail for want of memory once it has begun: notes are made before. */
static bool reserve_changes(maker *k)
{
    for (unsigned left = k->regions; left != 0; left &= left - 1) {
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
    for (unsigned left = k->changes; left != 0; left &= left - 1) {
        const int i = __builtin_ctz(left);
        const tl_value *v = k->value[i];
        tl_change *c = k->change;
        if (!(k->regions & TL_BIT(i))) {
            tl_storage_note_whole(v->st, k->call.op->name, k->at.file, k->at.line);
            continue;
        }
        k->change = c->next;
        *c = (tl_change){.where = v->a, .by = {k->call.op->name, k->at.file, k->at.line}};
        tl_storage_note(v->st, c);
    }
}

/* Fills in the outputs' records and the node, with all the memory that the rest of the call needs.
 * The node counts only once the call has succeeded. */
static tl_status allocate(maker *k, tl_tensor *out)
{
    tl_tape *t = k->at.tape;
    tl_call *c = &k->call;
    bool carries = !(c->op->traits & TL_NONDIFF); /* some output carries a gradient */
    const bool room = tl_values_push(&t->values, c->n_out, k->made, &k->first) &&
                      (t->n_nodes < t->cap_nodes || tl_nodes_room(t, 1) == TL_OK);
    const bool fixed = !k->depends && tl_batch_fixed(c->op, k->value, c->n_in) &&
                       (c->op != &tl_op_fill || c->out[0].ndim == 0); /* else it is repeated */
    const int first = c->n_out > 0 && (c->op->traits & TL_VIEW || k->mutates); /* with new memory */
    const tl_value *before[MAX_OUT];
    tl_storage *st[MAX_OUT];
    k->there = fixed && k->needs_grad && t->earlier != NULL && !(c->op->traits & TL_VIEW) &&
               !(c->mode & (TL_TRACE | TL_SHADOW | TL_WATCHED_MODES)) &&
               t->earlier(t, c, k->in, before);
    tl_arena *fresh = !room || k->there || c->mode & TL_TRACE ? NULL : t->arena;
    if (tl_arrays_new(fresh, c->out + first, c->n_out - first, c->strided, st + first, c->err) !=
        TL_OK)
        return tl_tape_fail(k->at, c->err->status, "%s: %.300s", c->op->name, c->err->message);
    for (int i = 0; i < c->n_out && room; i++) {
        tl_value *v = k->made[i];
        out[i] = (tl_tensor){t->values.owner, k->first + (uint32_t)i, t->generation};
        v->generation = t->generation;
        v->node = (int32_t)t->n_nodes;
        v->out = (uint8_t)i;
        v->fixed = fixed;
        v->batch = TL_FREE;
        v->samples = -1;
        if (k->there || i < first) {
            const tl_value *in = k->value[k->mutates ? c->op->mutates : 0];
            share_storage(k, v, &c->out[i], k->there ? before[i] : in);
        } else {
            v->st = st[i];
            v->a = c->out[i];
            v->plain = !c->strided && v->a.dtype != TL_F16 && v->a.dtype != TL_BF16;
        }
        c->plain &= v->plain;
        v->needs_grad = k->needs_grad && tl_dtype_is_float(v->a.dtype);
        carries |= v->needs_grad;
    }
    if (!room || (k->regions != 0 && !(c->mode & TL_TRACE) && !reserve_changes(k)))
        return tl_tape_fail(k->at, TL_ENOMEM, "%s: no memory to record node %u", c->op->name,
                            t->n_nodes);
    if (first == 0 && k->operand && st[0] != NULL) { /* TL_APART: the op changes a copy instead */
        tl_array_copy(&c->out[0], k->array[c->op->mutates]);
        k->array[c->op->mutates] = &c->out[0];
    }
    if (k->depends || (c->op->traits & TL_RANDOM && k->needs_grad))
        tl_batch_infer(c, k->value, k->batch, k->made);
    k->needs_grad &= carries;
    if (t->choice != NULL)
        c->kernel = tl_kernel_for(t->choice, c);
    const bool strict = c->mode & TL_STRICT;
    if (strict && tl_batch_strict(k->at, c, k->in, k->value, k->made, k->needs_grad) != TL_OK)
        return TL_EUSAGE;
    t->node[t->n_nodes] = (tl_node){.op = c->op,
                                    .attrs = c->attrs,
                                    .mode = c->mode,
                                    .phase = t->phase,
                                    .n_in = c->n_in,
                                    .n_out = c->n_out,
                                    .in = k->in,
                                    .out = k->first,
                                    .versions = k->versions,
                                    .needs_grad = k->needs_grad,
                                    .file = k->at.file,
                                    .line = k->at.line,
                                    .kernel = c->kernel,
                                    .level = tl_isa_now()->name,
                                    .choice = t->choice};
    return TL_OK;
}

/* ---- the kernel ---- */

int64_t tl_row_dims(const tl_call *c)
{
    const size_t at = c->op->row_dims;
    return at == 0 ? 1 : *(const int64_t *)(const void *)((const char *)c->attrs + at);
}

/* The loop of an op by rows, once its operands are row-major and in the compute type. */
tl_status tl_rows_run(tl_call *c)
{
    const tl_array *x = c->in[0];
    const tl_row_table *k = tl_isa_now()->row;
    const int64_t first = x->ndim - tl_row_dims(c);
    tl_rows j = {.n = 1, .rows = 1, .attrs = c->attrs};
    for (int i = 0; i < x->ndim; i++)
        *(i < first ? &j.rows : &j.n) *= x->dim[i];
    for (int i = 0; i < c->n_in; i++)
        j.in[i] = c->in[i] == NULL ? NULL : c->in[i]->data;
    for (int i = 0; i < c->n_out; i++)
        j.out[i] = c->out[i].data;
    tl_parallel_for(j.rows, 1 + 8192 / (j.n + 1),
                    (x->dtype == TL_F64 ? k->rows64 : k->rows32)[c->op->slot], &j);
    return TL_OK;
}

static tl_status no_tiles(tl_call *c)
{
    return tl_call_fail(c, TL_EUSAGE, "kernel '%.60s' is a tile, and this op is not pointwise",
                        c->kernel->name);
}

typedef tl_status forward(tl_call *c);

/* What computes the call: the selected kernel, the loop over tiles, or the op's forward, as it is
 * or between conversions of operands that it would not take. */
static forward *way_of(const tl_call *c)
{
    const tl_op *op = c->op;
    const bool tiles = op->traits & TL_POINTWISE;
    if (c->kernel != NULL && c->kernel->run != NULL)
        return c->kernel->run;
    if (tiles || c->kernel != NULL)
        return tiles ? tl_pointwise_run : no_tiles;
    const bool look = !c->plain && op->traits & (TL_WIDENED | TL_ROWS);
    for (int i = 0; look && i < c->n_in + c->n_out; i++) {
        const tl_array *a = i < c->n_in ? c->in[i] : &c->out[i - c->n_in];
        if (a != NULL && !tl_operand_fits(op, a))
            return tl_widened_run;
    }
    return op->forward;
}

/* tl_parallel_for sets the floating-point environment for the loop over tiles; for other kernels it
 * is set here. */
tl_status tl_op_run(tl_call *c)
{
    forward *way = way_of(c);
    if (tl_arrays_empty(c->out, c->n_out))
        return TL_OK;
    if (way == tl_pointwise_run)
        return way(c);
    tl_storage *scratch = NULL, *next;
    c->scratch = &scratch;
    const tl_fpenv saved = tl_fpenv_enter();
    const tl_status s = way(c);
    tl_fpenv_leave(saved);
    for (; scratch != NULL; scratch = next) {
        next = scratch->next_free;
        tl_storage_release(scratch);
    }
    c->scratch = NULL;
    return s;
}

static tl_status run(maker *k)
{
    tl_tape *t = k->at.tape;
    tl_call *c = &k->call;
    if (c->mode & TL_TRACE || c->op->traits & TL_VIEW || k->there)
        return TL_OK;
    const tl_seen seen = {c, k->at.file, k->at.line, t->phase, t->n_nodes, 1};
    const bool watched = t->run_watched || c->mode & TL_WATCHED_MODES;
    if (watched)
        tl_tell_runs(t, &seen);
    tl_status s = tl_op_run(c);
    if (s != TL_OK && c->err->message[0] == 0)
        return tl_tape_fail(k->at, s, "%s: kernel '%.60s' has failed and does not say why",
                            c->op->name, c->kernel == NULL ? "invariant" : c->kernel->name);
    if (s != TL_OK)
        return tl_tape_fail(k->at, s, "%.400s", c->err->message);
    if (k->mutates)
        note_changes(k);
    return watched ? tl_tell_ran(t, &seen) : TL_OK;
}

/* ---- the call ---- */

/* The call has succeeded: notes the versions of what it read and made, and counts the node. */
static void record(maker *k)
{
    tl_tape *t = k->at.tape;
    const tl_call *c = &k->call;
    const tl_op *op = c->op;
    for (int i = 0; i < c->n_in; i++)
        k->versions[i] = k->value[i] != NULL && k->value[i]->st != NULL ? k->value[i]->st->version
                                                                        : 0;
    for (int i = 0; i < c->n_out; i++) {
        tl_value *v = k->made[i];
        k->versions[c->n_in + i] = v->st != NULL ? v->st->version : 0;
        const bool shown = i == 0 && op->traits & TL_VIEW && k->in[0].owner == t->values.owner;
        v->born = v->st == NULL ? 0 : shown ? k->value[0]->born : v->st->version;
    }
    if (c->begins)
        k->value[op->mutates]->st->blank = false;
    if (k->mutates && k->in[op->mutates].owner == t->values.owner)
        k->value[op->mutates]->consumed = true;
    t->n_nodes++;
    if (t->n_watchers > 0)
        TL_TELL(t, recorded, t, t->n_nodes - 1);
}

/* Nothing is missing. An op may be a user's: something computes it (of views nothing does, nor of
 * what a trace notes), and where that is a loop of the engine there are not too many operands. */
static tl_status check_call(tl_at at, const tl_op *op, const void *attrs, const tl_tensor *in,
                            int n_in, const tl_tensor *out)
{
    if (op == NULL)
        return tl_tape_need(at, "tl_apply", "op", false, 1);
    if (op->n_out < 0 || (out == NULL && op->n_out > 0))
        return tl_tape_need(at, "tl_apply", "out", out != NULL, op->n_out);
    if (op->name == NULL || op->shape == NULL)
        return tl_tape_fail(at, TL_EUSAGE, "%s: an op needs a name and a shape rule",
                            op->name == NULL ? "(no name)" : op->name);
    if (attrs == NULL && op->attr_size > 0)
        return tl_tape_need(at, op->name, "its attributes", false, 1);
    if (n_in < 0 || (in == NULL && n_in > 0))
        return tl_tape_need(at, op->name, "the list of inputs", in != NULL, n_in);
    const bool tiles = op->traits & TL_POINTWISE;
    const bool loops = tiles || op->traits & (TL_WIDENED | TL_ROWS);
    const int most_out = tiles ? 1 : MAX_OUT;
    n_in = op->n_in >= 0 ? op->n_in : n_in; /* copy_arguments compares it with what was given */
    const int most_in = loops ? TL_TILE_MAX_IN : n_in;
    if ((tiles && n_in == 0) || n_in > most_in || op->n_out > most_out)
        return tl_tape_fail(at, TL_EUSAGE,
                            "%s: has %d inputs and %d outputs; %d to %d and at most %d are "
                            "possible%s",
                            op->name, n_in, op->n_out, tiles, most_in, most_out,
                            tiles ? " of a pointwise op (others have a forward)" : "");
    if (op->traits & TL_MUTATES && (op->mutates < 0 || op->mutates >= n_in))
        return tl_tape_fail(at, TL_EUSAGE, "%s: changes input %d of %d", op->name, op->mutates,
                            n_in);
    if (tiles ? op->tile == NULL && (op->slot <= 0 || op->slot >= TL_TILE_COUNT)
              : op->forward == NULL && !(op->traits & TL_VIEW) &&
                    !(op->traits & TL_NONDIFF && at.tape->recorder != NULL))
        return tl_tape_fail(at, TL_EUSAGE, "%s: has neither a forward nor a kernel%s", op->name,
                            tiles ? " for tiles, as a pointwise op" : "");
    return TL_OK;
}

void tl_apply(tl_at at, const tl_op *op, const void *attrs, const tl_tensor *in, int n_in,
              tl_tensor *out)
{
    tl_tape *t = at.tape;
    for (int i = 0; op != NULL && out != NULL && i < op->n_out && i < MAX_OUT; i++)
        out[i] = TL_NONE;
    if (tl_error_status(t) != TL_OK || check_call(at, op, attrs, in, n_in, out) != TL_OK)
        return;
    tl_array arrays[MAX_OUT];
    tl_err err;
    err.status = TL_OK;
    err.message[0] = '\0';
    memset(arrays, 0, (size_t)op->n_out * sizeof *arrays);
    maker k = {.at = t->place_depth > 0 ? tl_place(at) : at,
               .call = {.op = op,
                        .n_in = n_in,
                        .n_out = op->n_out,
                        .out = arrays,
                        .mode = t->mode,
                        .plain = true,
                        .arena = t->arena,
                        .err = &err}};
    const uint32_t first = t->values.count;
    if (copy_arguments(&k, in, attrs) == TL_OK && find_records(&k) == TL_OK &&
        (!k.needs_grad || (op->vjp != NULL && !k.mutates) || check_gradient(&k) == TL_OK)) {
        const tl_status s = op->shape(&k.call);
        if (s != TL_OK)
            tl_tape_fail(k.at, s, "%.60s%.400s", *err.message == '\0' ? op->name : "",
                         *err.message == '\0' ? ": its shape rule refuses the inputs"
                                              : err.message);
        else if ((!(k.regions & TL_BIT(op->mutates)) || check_overlap(&k) == TL_OK) &&
                 allocate(&k, out) == TL_OK && run(&k) == TL_OK) {
            record(&k);
            return;
        }
    }
    tl_values_drop(&t->values, first);
    tl_changes_free(k.change);
    for (int i = 0; i < op->n_out; i++)
        out[i] = TL_NONE;
}

tl_tensor tl_apply1(tl_at at, const tl_op *op, const void *attrs, const tl_tensor *in, int n_in)
{
    tl_tensor out[MAX_OUT];
    out[0] = TL_NONE; /* in case the call is refused before outputs are touched */
    tl_apply(at, op, attrs, in, n_in, out);
    return out[0];
}
