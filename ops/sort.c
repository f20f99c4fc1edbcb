/* argsort over a dim; sort, topk: gather by it
 * Shape:  as x; topk: k along the dim
 * Dtype:  x f16 bf16 f32 f64 i64 -> i64; values x's
 * Bits:   ascending with NaN last, descending with NaN first; +0 and -0 are equal, and so are NaNs:
 *         equals stay in their order (NUMERICS 4.7). Values are copied
 * VJP:    argsort none; values by gather's
 * Errors: TL_ESHAPE TL_EDTYPE TL_EDOMAIN (k)
 * The op runs over the last dim; a view brings another dim there.
 */
#include "ops/build.h"

typedef struct {
    bool descending;
} sort_attrs;

static const tl_attr sort_schema[] = {TL_FIELD(sort, descending, BOOL), {0}};

static tl_status argsort_shape(tl_call *c)
{
    const tl_array *x = c->in[0];
    if (x->dtype == TL_BOOL)
        return tl_call_fail(c, TL_EDTYPE, "x is BOOL; floats or i64 are needed");
    if (x->ndim == 0)
        return tl_call_fail(c, TL_ESHAPE, "a 0-d tensor has no dim to sort along");
    c->out[0] = *x;
    c->out[0].dtype = TL_I64;
    return TL_OK;
}

typedef struct {
    int64_t key, place;
} item;

typedef struct {
    const tl_array *x;
    int64_t *y, n;
    item *room; /* 2n for each thread */
    bool descending;
} job;

/* Element i as a number that is smaller the earlier the element comes in the result. */
static int64_t key_at(const job *j, int64_t i)
{
    int64_t k;
    if (j->x->dtype == TL_I64) {
        k = ((const int64_t *)j->x->data)[i];
    } else {
        double v = tl_number_at(j->x, i);
        memcpy(&k, &v, sizeof k);
        k = v != v ? INT64_MAX : k < 0 ? INT64_MIN - k : k; /* 0 for both zeros */
    }
    return j->descending ? ~k : k;
}

enum { MANY = 256, DIGIT = 256 }; /* elements that repay radix_sort; values of its digits */

/* 8 bits of a key; the highest such that negative keys come first. */
static unsigned digit(int64_t key, int shift)
{
    return (unsigned)(((uint64_t)key ^ (uint64_t)INT64_MIN) >> shift) % DIGIT;
}

/* Merges sorted runs, longer each time, from a to b and back. Returns the one with the result. */
static const item *merge_sort(item *a, item *b, int64_t n)
{
    for (int64_t run = 1; run < n; run *= 2) {
        for (int64_t at = 0; at < n; at += 2 * run) {
            int64_t mid = at + run < n ? at + run : n, end = mid + run < n ? mid + run : n;
            for (int64_t i = at, k = mid, w = at; w < end; w++)
                b[w] = i < mid && (k >= end || a[i].key <= a[k].key) ? a[i++] : a[k++];
        }
        item *t = a;
        a = b;
        b = t;
    }
    return a;
}

/* The same digit by digit, from the last, which is faster from MANY elements on. (Keys of f32 and
 * narrower have few digits that differ.) */
static const item *radix_sort(item *a, item *b, int64_t n)
{
    for (int shift = 0; shift < 64; shift += 8) {
        int64_t next[DIGIT] = {0};
        for (int64_t i = 0; i < n; i++)
            next[digit(a[i].key, shift)]++;
        if (next[digit(a[0].key, shift)] == n)
            continue;
        for (int64_t v = 0, at = 0, count; v < DIGIT; v++, at += count) {
            count = next[v];
            next[v] = at;
        }
        for (int64_t i = 0; i < n; i++)
            b[next[digit(a[i].key, shift)]++] = a[i];
        item *t = a;
        a = b;
        b = t;
    }
    return a;
}

static void sort_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const job *j = ctx;
    item *room = j->room + 2 * j->n * thread;
    for (int64_t r = begin; r < end; r++) {
        for (int64_t i = 0; i < j->n; i++)
            room[i] = (item){key_at(j, r * j->n + i), i};
        const item *sorted = (j->n < MANY ? merge_sort : radix_sort)(room, room + j->n, j->n);
        for (int64_t i = 0; i < j->n; i++)
            j->y[r * j->n + i] = sorted[i].place;
    }
}

static tl_status argsort_forward(tl_call *c)
{
    job j = {.x = c->in[0],
             .y = c->out[0].data,
             .n = c->in[0]->dim[c->in[0]->ndim - 1],
             .descending = ((const sort_attrs *)c->attrs)->descending};
    int64_t rows = tl_array_count(j.x) / j.n, grain = 1 + 4096 / j.n;
    j.room = tl_scratch(c, (size_t)(tl_parallel_width(rows, grain) * 2 * j.n) * sizeof(item),
                        false);
    if (j.room == NULL)
        return TL_ENOMEM;
    tl_parallel_for(rows, grain, sort_rows, &j);
    return TL_OK;
}

const tl_op tl_op_argsort = {TL_NAMED(argsort, 1, 1), .traits = TL_NONDIFF | TL_WIDENED,
                             .shape = argsort_shape,  .forward = argsort_forward,
                             TL_ATTRS(sort),          .batch = tl_batch_rows};

tl_tensor tl_argsort_at(tl_at at, tl_tensor x, int dim, bool descending)
{
    return tl_apply_along(at, &tl_op_argsort, &(sort_attrs){descending}, x, dim);
}

/* x sorted by its argsort, `places`; sets *ids to that, unless ids is NULL. */
static tl_tensor values(tl_at at, tl_tensor x, tl_tensor places, int dim, tl_tensor *ids)
{
    tl_give(ids, places);
    return tl_gather_at(at, x, places, dim);
}

tl_tensor tl_sort_at(tl_at at, tl_tensor x, int dim, bool descending, tl_tensor *ids)
{
    return values(at, x, tl_argsort_at(at, x, dim, descending), dim, ids);
}

tl_tensor tl_topk_at(tl_at at, tl_tensor x, int64_t k, int dim, bool smallest, tl_tensor *ids)
{
    tl_give(ids, TL_NONE);
    tl_shape s = tl_shape_of(at.tape, x);
    int d = tl_dim_from_front(dim, s.ndim);
    if (d >= 0 && d < s.ndim && (k < 0 || k > s.dim[d]))
        return tl_reject(at, TL_EDOMAIN, "topk: %lld of dim %d, which has %lld", (long long)k, d,
                         (long long)s.dim[d]);
    tl_tensor places = tl_argsort_at(at, x, dim, !smallest);
    return values(at, x, tl_slice_at(at, places, dim, 0, k, 1), dim, ids);
}
