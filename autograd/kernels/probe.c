/* probe.c: checks whether a kernel gives the same bits as the op's own. The calls of a probe are
 * made with both, and the results are compared. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "autograd/kernels/internal.h"
#include "tensor/threads.h"

/* Lengths around the number of lanes, a tile and the blocks of vector levels; one for several
 * threads. */
static const int64_t lengths[] = {0, 1, 2, 31, 32, 33, 255, 256, 257, 511, 512, 513, 40000};

static const double edge[] = {
    0.0,        -0.0,      0x1p-149,        -0x1p-149,        0x1p-126,
    -0x1p-130,  0x1p-1074, 0x1.fffffep+127, -0x1p127,         0x1p-24,
    88.8,       -104.1,    65504,           (double)INFINITY, -(double)INFINITY,
    (double)NAN};

/* Element i of input k. */
static double number(int64_t i, int k, bool special)
{
    uint64_t z = ((uint64_t)i * 8 + (uint64_t)k + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    if (special && z % 7 == 0)
        return edge[z / 7 % (sizeof edge / sizeof *edge)];
    double x = (double)(z >> 40) * 0x1p-23 - 1;
    return z % 8 == 1 ? x * 0x1p-80 : x * (double)(1u << (z / 8 % 6));
}

tl_tensor tl_probe_numbers(tl_tape *t, tl_dtype dtype, tl_shape shape, int k, bool special)
{
    tl_tensor x = tl_zeros(t, dtype, shape);
    if (tl_is_none(x))
        return x;
    const tl_array *a = &tl_peek(t, x)->a;
    for (int64_t i = 0; i < tl_array_count(a); i++)
        tl_array_put(a, i, number(i, k, special));
    return x;
}

/* Exchanges the two dims of a leaf, not its elements. */
static void turn(tl_value *v)
{
    const tl_array was = v->a;
    for (int d = 0; d < 2; d++) {
        v->a.dim[d] = was.dim[1 - d];
        v->a.stride[d] = was.stride[1 - d];
    }
    v->plain = false;
}

/* The probe of pointwise ops without attributes: inputs of one length; one that is spread out or
 * turned in memory, or broadcast to the others in its first or last dim. */
static tl_tensor probe_pointwise(tl_tape *t, const tl_op *op, tl_dtype dtype, int i)
{
    enum { LENGTHS = sizeof lengths / sizeof *lengths };
    enum { SPREAD, TURNED, FIRST, LAST, FORMS };
    static const tl_slice_attrs odd = {1, 0, 66, 2};
    const tl_shape forms[] = {TL_DIMS(5, 66), TL_DIMS(33, 5), TL_DIMS(33), TL_DIMS(5, 1)};
    tl_tensor in[TL_TILE_MAX_IN] = {TL_NONE};
    const int odd_one = i < LENGTHS ? -1 : (i - LENGTHS) / FORMS, form = (i - LENGTHS) % FORMS;
    if (odd_one >= op->n_in)
        return TL_NONE;
    for (int k = 0; k < op->n_in; k++)
        in[k] = tl_probe_numbers(t, dtype,
                                 i < LENGTHS    ? TL_DIMS(lengths[i])
                                 : k != odd_one ? TL_DIMS(5, 33)
                                                : forms[form],
                                 k, true);
    if (odd_one >= 0 && form == SPREAD)
        in[odd_one] = tl_apply1(TL_AT(t), &tl_op_slice, &odd, &in[odd_one], 1);
    if (odd_one >= 0 && form == TURNED && !tl_is_none(in[odd_one]))
        turn(tl_peek(t, in[odd_one]));
    return tl_apply1(TL_AT(t), op, NULL, in, op->n_in);
}

/* Call i of k's probe, made with the kernel of that name. */
static tl_tensor call(tl_tape *t, const tl_kernel *k, const char *name, tl_dtype dtype, int i)
{
    tl_probe *probe = tl_kernel_probe_of(k);
    tl_tensor y = TL_NONE;
    int depth = tl_mode_push(t, TL_NO_GRAD);
    if (tl_choice_open(TL_AT(t), k->op, TL_ANY_DTYPE, name))
        y = probe != NULL ? probe(t, dtype, i) : probe_pointwise(t, tl_op_find(k->op), dtype, i);
    tl_mode_pop(t, depth);
    return y;
}

/* Writes the line that says where the two calls differ. */
static void describe(const tl_node *n, int out, const tl_array *a, const tl_array *b, int64_t at,
                     char *buf, size_t cap)
{
    char shapes[400] = "", what[120];
    tl_textenv saved = tl_textenv_enter();
    for (int k = 0; k < n->n_in; k++)
        if (n->value[k] != NULL)
            snprintf(shapes + strlen(shapes), sizeof shapes - strlen(shapes), "%s%.60s",
                     k ? ", " : "", TL_TEXT(&n->value[k]->a));
    if (a->dtype != b->dtype || !tl_array_same_shape(a, b))
        snprintf(what, sizeof what, "output %d has another shape or dtype", out);
    else
        snprintf(what, sizeof what, "element %lld is %a, the contract's %a", (long long)at,
                 tl_dtype_is_float(a->dtype) ? tl_array_get(b, at) : 0.0,
                 tl_dtype_is_float(a->dtype) ? tl_array_get(a, at) : 0.0);
    snprintf(buf, cap, "%s %s on %s: %s", n->op->name, tl_dtype_name(tl_node_dtype(n)), shapes,
             what);
    tl_textenv_leave(saved);
}

/* Whether the two calls differ. The first difference is described, unless one is known already. */
static bool differ(tl_tape *t, tl_tensor x, tl_tensor y, bool known, char *buf, size_t cap)
{
    const tl_node *a = &t->node[tl_peek(t, x)->node], *b = &t->node[tl_peek(t, y)->node];
    for (int j = 0; j < a->n_out; j++) {
        const tl_array *u = &a->made[j]->a, *v = &b->made[j]->a;
        int64_t at = tl_arrays_differ(u, v);
        if (at < 0)
            continue;
        if (!known)
            describe(a, j, u, v, at, buf, cap);
        return true;
    }
    return false;
}

/* Adds to *ran the number of calls with elements that the kernel has done. Returns how many of them
 * differ, or -1 if one has failed. */
static int probe_dtype(tl_tape *t, const tl_kernel *k, tl_dtype dtype, int *ran, char *buf,
                       size_t cap)
{
    int bad = 0;
    for (int i = 0;; i++) {
        tl_tape_reset(t);
        tl_tensor x = call(t, k, "invariant", dtype, i);
        if (tl_is_none(x) && !tl_failed(t))
            return bad;
        tl_tensor y = call(t, k, k->name, dtype, i);
        if (tl_failed(t) && bad > 0)
            return bad;
        if (tl_failed(t)) {
            snprintf(buf, cap, "call %d of the probe failed: %s", i, tl_error(t));
            return -1;
        }
        const tl_value *u = tl_peek(t, x), *v = tl_peek(t, y);
        if (u == NULL || v == NULL) {
            snprintf(buf, cap, "call %d of the probe gives no value of its tape, or resets it", i);
            return -1;
        }
        if (u->node < 0 || v->node < 0 || t->node[v->node].kernel != k)
            continue;
        *ran += tl_array_count(&u->a) > 0; /* an empty result proves nothing */
        bad += differ(t, x, y, bad > 0, buf, cap);
    }
}

int tl_kernel_probe(const tl_kernel *k, tl_dtype dtype, char *buf, size_t cap)
{
    tl_tape *t = tl_tape_new(NULL);
    const tl_kernel *outer = tl_kernel_probed;
    int ran = 0, bad = 0;
    tl_kernel_probed = k;
    tl_fpenv saved = tl_fpenv_enter(); /* subnormals are made and compared here, too */
    for (int d = 0; d < TL_DTYPE_COUNT && bad == 0 && t != NULL; d++)
        if (tl_dtype_is_float((tl_dtype)d) &&
            (k->dtype == TL_ANY_DTYPE || k->dtype == (tl_dtype)d) &&
            (dtype == TL_ANY_DTYPE || dtype == (tl_dtype)d))
            bad = probe_dtype(t, k, (tl_dtype)d, &ran, buf, cap);
    tl_fpenv_leave(saved);
    tl_kernel_probed = outer;
    const bool full = t == NULL || tl_error_status(t) == TL_ENOMEM;
    tl_object_end(t);
    if (bad > 0 || (!full && (bad < 0 || ran > 0)))
        return bad;
    snprintf(buf, cap, "%s",
             full ? "no memory" : "the probe makes no call with elements that it can do");
    return full ? TL_NO_ROOM : -1;
}

int tl_kernel_check(const char *op, tl_dtype dtype, const char *name, char *buf, size_t cap)
{
    const tl_kernel *k = op == NULL || name == NULL ? NULL : tl_kernel_find(op, dtype, name, true);
    cap = buf == NULL ? 0 : cap;
    if (cap > 0)
        buf[0] = '\0';
    if (k != NULL && tl_kernel_has_probe(k)) {
        const int n = tl_kernel_probe(k, dtype, buf, cap);
        return n < 0 ? -1 : n;
    }
    snprintf(buf, cap, "%s",
             k == NULL ? "there is no such kernel at this vector level"
                       : "there is no probe for this op; the kernel must bring one");
    return -1;
}
