/* apply.c: one op call. tl_apply, at the end of the file, goes through its phases in order: check
 * the call, read its inputs, ask the op's shape rule, check what changes in place, allocate the
 * outputs, ask observers, run the kernel and record the node. If one fails, nothing is recorded. */
#include <string.h>

#include "autograd/batch.h"
#include "tensor/isa.h"

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
    bool fixed;             /* its results are made of parameters and constants, none repeated */
    bool operand;           /* the op changes an operand in place, and it is present */
    bool mutates;           /* this call does so, rather than change a copy */
    bool earlier;           /* the outputs were computed before, from the same parameters */
    unsigned changes;       /* inputs that this call changes */
    unsigned regions;  /* those in the tape's arena, where changes are tracked by region; tensors of
                        * the model and accumulators change as a whole */
    tl_value **made;   /* records of the outputs */
    tl_change *change; /* reserved notes of the changes to come */
} making;

/* ---- inputs ---- */

/* Looks the inputs up, and refuses those that cannot be read. Attributes, handles and records go
 * into memory that the node will keep, the attributes first: they may need its alignment. */
static tl_status read_inputs(making *k, const tl_tensor *in, const void *attrs)
{
    tl_call *c = &k->call;
    const tl_op *op = c->op;
    const size_t n = (size_t)c->n_in, all = n + (size_t)c->n_out,
                 pad = (op->attr_size + 15) / 16 * 16;
    tl_tape *t = k->at.tape;
    unsigned there = 0, own = 0;
    c->attrs = tl_bump_get(&t->bump, pad + (all + n) * sizeof *k->value + n * sizeof *in +
                                         all * sizeof *k->versions + n * sizeof *k->batch);
    if (c->attrs == NULL)
        return tl_tape_fail(k->at, TL_ENOMEM, "%s: no memory for %d inputs", op->name, c->n_in);
    k->value = (tl_value **)((char *)c->attrs + pad);
    k->made = k->value + n;
    c->in = k->array = (const tl_array **)(k->value + all);
    k->in = (tl_tensor *)(k->array + n);
    k->versions = (uint32_t *)(k->in + n);
    k->batch = (tl_batch *)(k->versions + all);
    if (op->attr_size > 0)
        memcpy(c->attrs, attrs, op->attr_size);
    if (n > 0)
        memcpy((tl_tensor *)k->in, in, n * sizeof *in);
    const bool mutates = op->traits & TL_MUTATES;
    k->fixed = !(op->traits & (TL_REPEATS | TL_RANDOM)) && op->changes == 0 &&
               (op->attr != NULL || op->attr_size == 0);
    for (int i = 0; i < c->n_in; i++) {
        const uint32_t bit = i < 32 ? TL_BIT(i) : 0;
        if (op->optional & bit && tl_is_none(k->in[i]))
            continue;
        const bool begins = mutates && op->traits & TL_BEGINS && i == op->mutates;
        const tl_value *v = k->value[i] = tl_look_up(k->at, k->in[i], op->name,
                                                     op->traits & TL_VIEW ? TL_VIEWS
                                                     : begins             ? TL_OVERWRITES
                                                                          : TL_READS);
        if (v == NULL)
            return TL_ESTALE;
        if (v->dropped)
            return tl_tape_fail(k->at, TL_ESTALE,
                                "%s: input %d was dropped by a segment; list it in keep", op->name,
                                i);
        if (v->st == NULL)
            c->mode |= TL_TRACE;
        k->needs_grad |= v->needs_grad;
        k->depends |= v->batch != TL_FREE;
        k->fixed &= v->fixed && !(mutates && i == op->mutates);
        k->wanted |= v->needs_grad ? bit : 0;
        there |= bit;
        own |= v->st != NULL && v->st->arena == t->arena ? bit : 0;
        c->plain &= v->plain;
        k->array[i] = &v->a;
    }
    k->needs_grad &= !(c->mode & TL_NO_GRAD);
    k->operand = mutates && k->value[op->mutates] != NULL;
    k->mutates = k->operand && !(c->mode & TL_APART) &&
                 !(k->value[op->mutates]->kept && op->changes == 0);
    k->changes = k->mutates ? there & (TL_BIT(op->mutates) | op->changes) : 0;
    k->regions = k->changes & own;
    /* A TL_NONDIFF op is not refused here; only a backward that reaches it is. */
    if (k->needs_grad && op->vjp == NULL && !(op->traits & TL_NONDIFF))
        return tl_tape_fail(k->at, TL_ENOGRAD,
                            "%s: has no derivative, but its input needs a gradient; tl_detach it, "
                            "or record under TL_NO_GRAD",
                            op->name);
    return TL_OK;
}

/* ---- what changes in place ---- */

/* Checks that the call may change its operand and the other inputs that it changes: neither a
 * gradient nor the call itself reads them as they were, and nothing else relies on their memory.
 * Reserves notes of the changes: once the kernel has begun it must not fail for want of memory. */
static tl_status check_change(making *k)
{
    const tl_op *op = k->call.op;
    const tl_tape *t = k->at.tape;
    const tl_array *x = &k->value[op->mutates]->a;
    const tl_storage *st = k->value[op->mutates]->st;
    const bool follows = k->needs_grad && !(op->traits & TL_NONDIFF);
    const unsigned reads = follows ? tl_op_reads(op, k->wanted) : 0;
    /* Storage can stay blank if the op's own kernel overwrites all of it and nobody watches. */
    k->call.begins = st != NULL && st->blank && k->mutates && t->now.choice == NULL &&
                     !t->run_watched && !(k->call.mode & TL_TRACE) && tl_op_begins(op, x, st);
    if (!tl_array_same_shape(&k->call.out[0], x))
        return tl_tape_fail(k->at, TL_ESHAPE,
                            "%s: changes input %d of shape %s, and its shape rule makes %s of it",
                            op->name, op->mutates, TL_TEXT(x), TL_TEXT(&k->call.out[0]));
    for (unsigned left = k->changes; left != 0; left &= left - 1) {
        const int m = __builtin_ctz(left);
        x = &k->value[m]->a;
        if (tl_array_repeats(x))
            return tl_tape_fail(k->at, TL_EINPLACE,
                                "%s: input %d, %s, shows elements more than once; it cannot be "
                                "changed in place",
                                op->name, m, TL_TEXT(x));
        const tl_value *base = tl_peek(t, tl_behind(t, k->in[m], TL_VIEW, 0));
        if (base == NULL)
            return tl_tape_fail(k->at, TL_ESTALE,
                                "%s: what input %d shows was removed from the model", op->name, m);
        if (follows && base->node < 0 && base->needs_grad)
            return tl_tape_fail(
                k->at, TL_EINPLACE,
                "%s: cannot change a leaf that needs a gradient in place (input %d)", op->name, m);
        if (reads & TL_BIT(m))
            return tl_tape_fail(k->at, TL_EINPLACE,
                                "%s: a gradient that is wanted reads input %d as it was before "
                                "this call changes it",
                                op->name, m);
        const tl_tensor under = tl_bottom(t, k->in[m]);
        const tl_value *lent = t->now.phase == 0 ? tl_peek(t, under) : NULL;
        if (lent != NULL && lent->lent)
            return tl_tape_fail(k->at, TL_EINPLACE,
                                "%s: cannot change the gradient that tl_grad has lent (input %d)",
                                op->name, m);
        for (int i = 0; i < k->call.n_in && op != &tl_op_assign; i++) /* copies before it writes */
            if (k->value[i] != NULL && i != m && tl_same_memory(t, k->in[i], k->in[m]) &&
                tl_arrays_overlap(&k->value[i]->a, x))
                return tl_tape_fail(
                    k->at, TL_EINPLACE,
                    "%s: input %d lies in memory of input %d, which the call changes", op->name, i,
                    m);
    }
    for (unsigned left = k->call.mode & TL_TRACE ? 0 : k->regions; left != 0; left &= left - 1) {
        tl_change *c = tl_calloc(1, sizeof *c);
        if (c == NULL)
            return tl_tape_fail(k->at, TL_ENOMEM, "%s: no memory to note a change", op->name);
        c->next = k->change;
        k->change = c;
    }
    return TL_OK;
}

/* ---- outputs ---- */

/* Checks that a view shows elements of its input, each once unless it is TL_REPEATS; and that all
 * inputs of a pointwise op broadcast to what its shape rule, perhaps a user's, says. */
static tl_status check_shape(const tl_call *c)
{
    const unsigned traits = c->op->traits;
    const tl_array *y = c->out;
    if (traits & TL_VIEW)
        return tl_view_check(c->out, c->in[0], !(traits & TL_REPEATS), c->err);
    for (int i = 0; traits & TL_POINTWISE && c->op->tile != NULL && i < c->n_in; i++)
        if (!tl_dims_expand(c->in[i]->ndim, c->in[i]->dim, y->ndim, y->dim))
            return tl_fail(c->err, TL_ESHAPE, "input %d does not broadcast to the output", i);
    return TL_OK;
}

/* Fills in the outputs' records and the node, with all the memory that the rest of the call needs.
 * The node counts only once the call has succeeded. */
static tl_status allocate(making *k, tl_tensor *out)
{
    tl_tape *t = k->at.tape;
    tl_call *c = &k->call;
    const tl_op *op = c->op;
    bool carries = !(op->traits & TL_NONDIFF); /* some output carries a gradient */
    const bool fits = check_shape(c) == TL_OK;
    const uint32_t first_value = t->values.count;
    const bool room = tl_values_push(&t->values, t->generation, c->n_out, k->made) &&
                      (t->n_nodes < t->cap_nodes || tl_nodes_room(t, 1) == TL_OK);
    const bool fixed = k->fixed && !k->depends &&
                       (op != &tl_op_fill || c->out[0].ndim == 0); /* else it is repeated */
    /* Output 0 may use the memory of the input that it views or changes in place; all outputs may
     * use that of the same values as computed earlier. first: the first with new memory. */
    const int first = c->n_out > 0 && (op->traits & TL_VIEW || k->mutates);
    const tl_value *before[TL_OUTS], *operand = k->operand ? k->value[op->mutates] : NULL;
    tl_storage *st[TL_OUTS];
    k->earlier = fixed && k->needs_grad && t->earlier != NULL && !(op->traits & TL_VIEW) &&
                 !(c->mode & (TL_TRACE | TL_SHADOW | TL_WATCHED_MODES)) &&
                 t->earlier(t, c, k->in, before);
    const int shared = k->earlier ? c->n_out : first; /* how many use memory of other values */
    if (first && !k->earlier)
        before[0] = k->mutates ? operand : k->value[0];
    tl_arena *fresh = !room || k->earlier || c->mode & TL_TRACE ? NULL : t->arena;
    if (!fits || tl_arrays_new(fresh, c->out + first, c->n_out - first, c->strided, st + first,
                               c->err) != TL_OK)
        return tl_tape_fail(k->at, c->err->status, "%s: %s", op->name, c->err->message);
    if (!room)
        return tl_tape_fail(k->at, TL_ENOMEM,
                            first_value + (uint32_t)c->n_out > (uint32_t)TL_CHUNK * TL_CHUNKS
                                ? "%s: the tape has %u values, and room for no more; reset it"
                                : "%s: no memory beside %u values",
                            op->name, first_value);
    for (int i = 0; i < shared; i++)
        if ((st[i] = c->mode & TL_TRACE ? NULL : before[i]->st) != NULL)
            tl_storage_retain(st[i]);
    if (operand != NULL && operand->st != NULL && !c->begins)
        tl_storage_settle(operand->st);
    const int shows = op->traits & TL_VIEW ? 0 : k->operand ? op->mutates : -1;
    if (shows >= 0) { /* as tl_below says */
        const tl_tensor below = k->in[shows], bottom = k->value[shows]->bottom;
        k->made[0]->bottom = below.owner != t->values.owner || tl_is_none(bottom) ? below : bottom;
    }
    for (int i = 0; i < c->n_out; i++) {
        tl_value *v = k->made[i];
        out[i] = v->self;
        v->node = (int32_t)t->n_nodes;
        v->out = (uint8_t)i;
        v->fixed = fixed;
        v->batch = TL_FREE;
        v->samples = -1;
        v->st = st[i];
        if (i < shared) {
            if (k->mutates || k->earlier) /* with its strides */
                c->out[i] = before[i]->a;
            c->out[i].dtype = before[i]->a.dtype;
            v->kept = k->earlier || before[i]->kept;
            v->plain = tl_array_plain(&c->out[i], false);
        } else {
            v->plain = !c->strided && c->out[i].dtype != TL_F16 && c->out[i].dtype != TL_BF16;
        }
        v->a = c->out[i];
        c->plain &= v->plain;
        v->needs_grad = k->needs_grad && tl_dtype_is_float(v->a.dtype);
        carries |= v->needs_grad;
    }
    if (t->now.choice != NULL)
        c->kernel = tl_kernel_for(t->now.choice, c);
    if (k->depends || (op->traits & TL_RANDOM && k->needs_grad))
        tl_batch_infer(c, k->value, k->batch, k->made);
    k->needs_grad &= carries;
    t->node[t->n_nodes] = (tl_node){.op = op,
                                    .attrs = c->attrs,
                                    .mode = c->mode,
                                    .phase = t->now.phase,
                                    .n_in = c->n_in,
                                    .n_out = c->n_out,
                                    .in = k->in,
                                    .out = first_value,
                                    .value = k->value,
                                    .made = k->made,
                                    .versions = k->versions,
                                    .needs_grad = k->needs_grad,
                                    .file = k->at.file,
                                    .call = k->at.call,
                                    .line = k->at.line,
                                    .kernel = c->kernel,
                                    .level = tl_isa_now()->name,
                                    .choice = t->now.choice};
    return TL_OK;
}

/* ---- the kernel ---- */

/* Asks observers, runs the kernel if there is anything to compute, and notes what it has changed.
 * Then notes the versions of what it read and made, and counts the node. */
static tl_status run(making *k)
{
    tl_tape *t = k->at.tape;
    tl_call *c = &k->call;
    const tl_op *op = c->op;
    const bool runs = !(c->mode & TL_TRACE || op->traits & TL_VIEW || k->earlier);
    const bool heard = c->mode & t->heard_modes;
    const bool watched = runs && (t->run_watched || heard);
    const tl_seen seen = {c, k->at.file, k->at.line, t->now.phase, t->n_nodes, 1, k->at.call};
    tl_status s = t->records_watched || heard ? tl_tell(t, &seen, false) : TL_OK;
    if (s != TL_OK)
        return s;
    if (watched)
        tl_tell_runs(t, &seen);
    s = runs ? tl_op_run(c) : TL_OK;
    /* A kernel that had no memory has not begun; any other failure may have come half way. */
    for (unsigned left = runs && s != TL_ENOMEM ? k->changes : 0; left != 0; left &= left - 1) {
        const int i = __builtin_ctz(left);
        const tl_value *v = k->value[i];
        const tl_changer by = {op->name, k->at.file, k->at.line};
        tl_change *note = k->regions & TL_BIT(i) ? k->change : NULL;
        if (note != NULL) {
            k->change = note->next;
            *note = (tl_change){.where = v->a};
        }
        tl_storage_note(v->st, by, note);
    }
    if (s != TL_OK)
        return tl_tape_fail(k->at, s, "%s", c->err->message);
    if (watched && (s = tl_tell(t, &seen, true)) != TL_OK)
        return s;
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
    if (k->operand && !(c->mode & TL_APART) && k->in[op->mutates].owner == t->values.owner)
        k->value[op->mutates]->consumed = true;
    t->n_nodes++;
    s = tl_tell_recorded(t);
    t->n_nodes -= s != TL_OK;
    return s;
}

/* ---- the call ---- */

void tl_apply(tl_at at, const tl_op *op, const void *attrs, const tl_tensor *in, int n_in,
              tl_tensor *out)
{
    tl_tape *t = at.tape;
    const int n_out = op == NULL || out == NULL ? 0 : op->n_out < TL_OUTS ? op->n_out : TL_OUTS;
    const bool failed = tl_failed(t);
    making k = {.at = failed ? at : tl_place(at)};
    if (failed || tl_op_check(at, op, attrs, in, n_in, out) != TL_OK) {
        for (int i = 0; i < n_out; i++)
            out[i] = TL_NONE;
        return;
    }
    tl_array arrays[TL_OUTS];
    tl_err err;
    err.status = TL_OK;
    err.message[0] = '\0';
    memset(arrays, 0, (size_t)op->n_out * sizeof *arrays);
    k.call = (tl_call){.op = op,
                       .n_in = n_in,
                       .n_out = op->n_out,
                       .out = arrays,
                       .mode = t->now.mode,
                       .plain = true,
                       .arena = t->arena,
                       .err = &err};
    const uint32_t first = t->values.count;
    bool made = false;
    t->inside = op->name;
    if (read_inputs(&k, in, attrs) == TL_OK) {
        tl_status s = op->shape(&k.call);
        s = s == TL_OK ? err.status : s;
        if (s != TL_OK)
            tl_tape_fail(k.at, s, "%.60s%s", *err.message == '\0' ? op->name : "",
                         *err.message == '\0' ? ": its shape rule refuses the inputs"
                                              : err.message);
        else
            made = (!k.operand || check_change(&k) == TL_OK) && allocate(&k, out) == TL_OK &&
                   run(&k) == TL_OK;
    }
    t->inside = NULL;
    if (made)
        return;
    tl_values_drop(&t->values, first);
    tl_changes_free(k.change);
    for (int i = 0; i < op->n_out; i++)
        out[i] = TL_NONE;
}

tl_tensor tl_filled(tl_at at, const tl_array *a, tl_dtype dtype, double value)
{
    return tl_apply1(at, &tl_op_fill, &(tl_fill_attrs){tl_array_shape(a), dtype, value}, NULL, 0);
}

tl_tensor tl_folded(tl_at at, tl_tensor x, tl_tensor acc, const tl_array *a, tl_dtype dtype)
{
    const tl_sum_to_attrs to = {tl_array_shape(a), dtype};
    return tl_apply1(at, &tl_op_sum_to, &to, (tl_tensor[]){x, acc}, 2);
}

tl_tensor tl_apply1(tl_at at, const tl_op *op, const void *attrs, const tl_tensor *in, int n_in)
{
    tl_tensor out[TL_OUTS];
    out[0] = TL_NONE; /* in case the call is refused before outputs are touched */
    tl_apply(at, op, attrs, in, n_in, out);
    return out[0];
}
