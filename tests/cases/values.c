/* values.c: what the inputs hold, how they lie in memory, and the way to the tape and back. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/model.h"
#include "tests/cases/cases.h"

uint64_t tl_case_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* FNV-1a of the label. */
uint64_t tl_case_seed(uint64_t seed, const case_run *r, case_kind kind)
{
    uint64_t h = 0xcbf29ce484222325u + seed;
    for (const char *p = r->label; *p != '\0'; p++)
        h = (h ^ (unsigned char)*p) * 0x100000001b3u;
    return h + (uint64_t)kind;
}

double tl_case_uniform(uint64_t *state) { return (double)(tl_case_random(state) >> 11) * 0x1p-53; }

/* Nearly normal: twelve uniforms. */
static double normal(uint64_t *state)
{
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += tl_case_uniform(state);
    return sum;
}

/* Any finite value: all exponents of the dtype, zeros of both signs, whole numbers, near copies of
 * the one before. */
static double hard(ref_dtype d, uint64_t *state, double before)
{
    static const int low[] = {-1074, -149, -24, -133}, high[] = {1023, 127, 15, 127};
    uint64_t r = tl_case_random(state);
    double x = normal(state);
    switch (r % 8) {
    case 0: return r & 64 ? 0.0 : -0.0;
    case 1: return (double)(int)(x * 4);
    case 2: return -before;
    case 3: return before * (1 + ldexp(x, -8));
    case 4: return ldexp(x < 0 ? -1.0 : 1.0, low[d] + (int)(r >> 8) % 12 * (int)(r >> 32 & 1));
    case 5:
        return ldexp(1 + tl_case_uniform(state), high[d] - (int)(r >> 8 & 3)) *
               (x < 0 ? -0.49 : 0.49);
    case 6: return ldexp(x, low[d] / 3 + (int)(r >> 8 & 0xffff) % (high[d] / 2 - low[d] / 3));
    default: return x;
    }
}

static double special(ref_dtype d, uint64_t *state, double before)
{
    switch (tl_case_random(state) % 24) {
    case 0: return (double)NAN;
    case 1: return (double)INFINITY;
    case 2: return -(double)INFINITY;
    default: return tl_case_random(state) & 1 ? normal(state) : hard(d, state, before);
    }
}

/* 0 .. n-1 in random order. */
static int64_t *shuffled(int64_t n, uint64_t *state)
{
    int64_t *p = malloc((size_t)(n + 1) * sizeof *p);
    ref_check(p != NULL, "out of memory");
    for (int64_t i = 0; i < n; i++) {
        int64_t j = (int64_t)(tl_case_random(state) % (uint64_t)(i + 1));
        p[i] = p[j];
        p[j] = i;
    }
    return p;
}

static double plain(const case_input *in, uint64_t *state, int64_t rank, int64_t count)
{
    double u = tl_case_uniform(state), x = normal(state);
    switch (in->domain) {
    case CASE_POS: return 0.5 + 2 * u;
    case CASE_AWAY: return (x < 0 ? -1 : 1) * (0.5 + 1.5 * u);
    case CASE_UNIT:
    case CASE_RATE: return 0.1 + 0.8 * u;
    case CASE_APART: return (double)(rank - count / 2) + 0.1 * u;
    case CASE_BETWEEN: return (double)(rank - count / 2) + 0.5 + 0.1 * u;
    case CASE_COUNT: return (double)in->n;
    default: return x;
    }
}

static void fill(const case_input *in, uint64_t *state, case_kind kind, ref_tensor *x)
{
    int64_t n = ref_numel(x), *rank = shuffled(n, state);
    double before = 1;
    for (int64_t i = 0; i < n; i++) {
        if (in->domain == CASE_BELOW)
            ref_set_i64(x, i, (int64_t)(tl_case_random(state) % (uint64_t)in->n));
        else if (in->domain == CASE_FROM)
            ref_set_i64(x, i, in->n + (int64_t)(tl_case_random(state) % 3));
        else if (in->domain == CASE_MASK)
            ref_set(x, i, (double)(tl_case_random(state) & 1));
        else if (x->dtype == REF_I64)
            ref_set_i64(x, i,
                        (int64_t)(tl_case_random(state) >>
                                  (kind == CASE_PLAIN ? 61 : tl_case_random(state) % 64)) -
                            4);
        else if (kind == CASE_PLAIN || in->domain >= CASE_BELOW)
            ref_set(x, i, plain(in, state, rank[i], n));
        else
            ref_set(x, i,
                    kind == CASE_HARD ? hard(x->dtype, state, before)
                                      : special(x->dtype, state, before));
        before = x->dtype == REF_I64 ? 0 : ref_get(x, i);
    }
    free(rank);
}

ref_dtype tl_case_ref_dtype(tl_dtype d)
{
    static const ref_dtype to[] = {[TL_F64] = REF_F64,   [TL_F32] = REF_F32, [TL_F16] = REF_F16,
                                   [TL_BF16] = REF_BF16, [TL_I64] = REF_I64, [TL_BOOL] = REF_BOOL};
    return to[d];
}

static tl_dtype tl_dtype_of_ref(ref_dtype d)
{
    static const tl_dtype to[] = {[REF_F64] = TL_F64,   [REF_F32] = TL_F32, [REF_F16] = TL_F16,
                                  [REF_BF16] = TL_BF16, [REF_I64] = TL_I64, [REF_BOOL] = TL_BOOL};
    return to[d];
}

void tl_case_fill(const case_run *r, uint64_t *seed, case_kind kind, ref_tensor *leaf)
{
    for (int i = 0; i < r->n; i++) {
        leaf[i] = (ref_tensor){0};
        if (!r->in[i].present)
            continue;
        leaf[i] = ref_new(tl_case_ref_dtype(r->in[i].dtype), r->in[i].leaf.ndim, r->in[i].leaf.dim);
        fill(&r->in[i], seed, kind, &leaf[i]);
    }
}

ref_tensor tl_case_values(ref_dtype dtype, const tl_shape *shape, uint64_t *seed, case_kind kind)
{
    case_input in = {.domain = CASE_NORMAL};
    ref_tensor x = ref_new(dtype, shape->ndim, shape->dim);
    fill(&in, seed, kind, &x);
    return x;
}

void tl_case_free(int n, ref_tensor *x)
{
    for (int i = 0; i < n; i++)
        ref_free(&x[i]);
}

/* ---- memory layouts ---- */

static void swapped_order(const case_input *in, int *order)
{
    int n = in->shape.ndim, a = in->layout == CASE_HEADS ? 1 : n - 1,
        b = in->layout == CASE_HEADS ? 2 : n - 2;
    for (int i = 0; i < n; i++)
        order[i] = i == a ? b : i == b ? a : i;
}

ref_tensor tl_case_seen(const case_input *in, const ref_tensor *leaf)
{
    int order[8], last = in->shape.ndim - 1;
    if (!in->present)
        return (ref_tensor){0};
    switch (in->layout) {
    case CASE_TURNED:
    case CASE_HEADS: swapped_order(in, order); return ref_permute(leaf, order);
    case CASE_PADDED: return ref_slice(leaf, last, 1, 1 + in->shape.dim[last], 1);
    case CASE_STRIDED: return ref_slice(leaf, last, 1, 2 * in->shape.dim[last] + 1, 2);
    case CASE_EXPANDED: {
        ref_tensor zeros = ref_new(REF_BOOL, in->shape.ndim, in->shape.dim),
                   y = ref_where(&zeros, leaf, leaf);
        ref_free(&zeros);
        return y;
    }
    default: return ref_copy(leaf);
    }
}

ref_tensor tl_case_unseen(const case_input *in, const ref_tensor *seen)
{
    int order[8], last = in->shape.ndim - 1;
    switch (in->layout) {
    case CASE_TURNED:
    case CASE_HEADS:
        swapped_order(in, order);
        return ref_permute(seen, order); /* its own inverse */
    case CASE_PADDED: return ref_slice_grad(seen, last, in->leaf.dim[last], 1, 1);
    case CASE_STRIDED: return ref_slice_grad(seen, last, in->leaf.dim[last], 1, 2);
    default: return ref_copy(seen);
    }
}

tl_tensor tl_case_leaf(tl_tape *t, const ref_tensor *x)
{
    tl_shape s = {.ndim = x->ndim};
    memcpy(s.dim, x->dim, sizeof s.dim);
    return x->data == NULL ? TL_NONE : tl_data(t, x->data, tl_dtype_of_ref(x->dtype), s);
}

tl_tensor tl_case_rows(tl_tape *t, const case_input *in, const ref_tensor *leaf)
{
    tl_tensor x = tl_case_leaf(t, leaf);
    if (in->layout == CASE_TURNED && leaf->ndim == 2)
        tl_batch_axis(t, x, 1);
    return x;
}

tl_tensor tl_case_view(tl_tape *t, const case_input *in, tl_tensor leaf)
{
    int64_t n = in->shape.ndim ? in->shape.dim[in->shape.ndim - 1] : 0;
    switch (in->layout) {
    case CASE_TURNED: return tl_transpose(t, leaf, -1, -2);
    case CASE_HEADS: return tl_transpose(t, leaf, 1, 2);
    case CASE_PADDED: return tl_slice(t, leaf, -1, 1, 1 + n, 1);
    case CASE_STRIDED: return tl_slice(t, leaf, -1, 1, 2 * n + 1, 2);
    case CASE_EXPANDED: return tl_expand(t, leaf, in->shape);
    default: return leaf;
    }
}

ref_tensor tl_case_read(tl_tape *t, tl_tensor x)
{
    tl_array a;
    if (tl_failed(t) || !tl_array_of(t, x, &a))
        return (ref_tensor){0};
    ref_tensor y = ref_new(tl_case_ref_dtype(a.dtype), a.ndim, a.dim);
    if (tl_keep(t, x, y.data, (size_t)ref_numel(&y) * (size_t)ref_itemsize(y.dtype)) != TL_OK)
        ref_free(&y);
    return y;
}

case_state tl_case_state(tl_tape *t, const char *name, tl_tensor x)
{
    case_state s = {.x = x};
    char full[TL_NAME_MAX], shape[TL_SHAPE_TEXT];
    tl_shape dims = tl_shape_of(t, x);
    if (tl_is_none(x) || tl_failed(t))
        return s;
    if (tl_tape_model(t) == NULL) {
        tl_array_of(t, x, &s.a);
        return s;
    }
    snprintf(full, sizeof full, "%s %s %s", name, tl_dtype_name(tl_dtype_of(t, x)),
             tl_shape_text(shape, &dims));
    s.x = tl_buffer(t, tl_tape_model(t), full, tl_dtype_of(t, x), dims);
    tl_assign(t, s.x, x);
    return s;
}

tl_tensor tl_case_changed(tl_tape *t, const case_state *s)
{
    return tl_tape_model(t) != NULL ? tl_scale(t, s->x, 1)
                                    : tl_data(t, s->a.data, s->a.dtype, tl_array_shape(&s->a));
}
