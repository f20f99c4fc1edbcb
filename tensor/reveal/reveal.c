/* reveal.c: recovers the tree of a sum. It takes one term, asks for every other term how large the
 * part is in which the two meet, and repeats this within each group of equal answers. */
#include "tensor/reveal/reveal.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

enum { CHECKS = 64 }; /* pairs that are asked again when the tree is complete */

/* A term, and the size of the part in which it meets the term taken. */
typedef struct {
    int64_t size, term;
} meeting;

typedef struct {
    tl_sum_fn *sum;
    void *ctx;
    int64_t n;
    tl_array x; /* the terms: units, except for two during a question */
    meeting *set;
    int64_t *part, parts; /* the values that are not added yet */
    tl_order *order;
    tl_err *err;
} search;

/* The unit and the huge value. In any accumulator that can swallow units, half of the huge value's
 * last place is more than all units together. */
static const struct {
    double unit, huge;
} values[] = {[TL_F64] = {0x1p-500, 0x1p500},
              [TL_F32] = {0x1p-100, 0x1p100},
              [TL_F16] = {0x1p-24, 0x1p15},
              [TL_BF16] = {0x1p-100, 0x1p100}};

/* Sets *units to how many units the sum holds. */
static tl_status count_units(const search *s, int64_t *units)
{
    double y = s->sum(s->ctx, s->n, s->x.data) / values[s->x.dtype].unit, whole = nearbyint(y);
    if (!(fabs(y - whole) <= 0.25) || whole < 0 || whole > (double)s->n)
        return tl_fail(s->err, TL_EDOMAIN,
                       "reveal_order: the sum of %" PRId64
                       " terms gives %g units; a whole number from 0 on is due",
                       s->n, y);
    *units = (int64_t)whole;
    return TL_OK;
}

/* Sets *size to the size of the part in which i and j meet. */
static tl_status meet(const search *s, int64_t i, int64_t j, int64_t *size)
{
    tl_array_put(&s->x, i, values[s->x.dtype].huge);
    tl_array_put(&s->x, j, -values[s->x.dtype].huge);
    tl_status status = count_units(s, size);
    tl_array_put(&s->x, i, values[s->x.dtype].unit);
    tl_array_put(&s->x, j, values[s->x.dtype].unit);
    *size = s->n - *size;
    if (status == TL_OK && *size < 2)
        return tl_fail(s->err, TL_EDOMAIN,
                       "reveal_order: huge terms %" PRId64 " and %" PRId64
                       " swallow nothing, and leave a unit too many",
                       i, j);
    return status;
}

static int by_size(const void *a, const void *b)
{
    const meeting *x = a, *y = b;
    return x->size != y->size ? (x->size > y->size) - (x->size < y->size)
                              : (x->term > y->term) - (x->term < y->term);
}

static tl_status no_tree(const search *s, int64_t term, int64_t size, int64_t held)
{
    return tl_fail(s->err, TL_EDOMAIN,
                   "reveal_order: no tree: term %" PRId64 " meets others in a part of %" PRId64
                   " terms, in which %" PRId64 " are found",
                   term, size, held);
}

/* Builds the tree over set[0 .. m), sorted by term, and leaves it as one part. If all of it belongs
 * to an addition of `limit` terms that has other parts as well, it leaves several parts, for the
 * caller to add. With from_end it starts from the last term, so that a fold that runs down takes no
 * longer than one that runs up. */
static tl_status build(search *s, meeting *set, int64_t m, int64_t limit, bool from_end)
{
    int64_t base = s->parts, held = 1, taken = set[from_end ? m - 1 : 0].term;
    meeting *rest = from_end ? set : set + 1;
    s->part[s->parts++] = taken;
    for (int64_t k = 0; k < m - 1; k++)
        TL_TRY(meet(s, taken, rest[k].term, &rest[k].size));
    qsort(rest, (size_t)(m - 1), sizeof *rest, by_size);
    for (int64_t k = 0, end; k < m - 1; k = end) {
        int64_t size = rest[k].size;
        for (end = k; end < m - 1 && rest[end].size == size;)
            end++;
        TL_TRY(build(s, rest + k, end - k, size, !from_end && end - k == m - 1));
        held += end - k;
        if (held != size && (size != limit || end < m - 1))
            return no_tree(s, taken, size, held);
        if (held != size)
            break;
        int64_t sum = tl_order_add(s->order, s->part + base, (int)(s->parts - base));
        if (sum < 0)
            return no_tree(s, taken, size, held);
        s->part[base] = sum;
        s->parts = base + 1;
    }
    return TL_OK;
}

/* Asks for pairs spread over all terms, in the other direction, and compares with the tree. */
static tl_status check(const search *s)
{
    for (int64_t k = 0; k < CHECKS && s->n > 1; k++) {
        int64_t i = k * 0x9e3779b9 % s->n, j = (i + 1 + k * 0x85ebca6b % (s->n - 1)) % s->n,
                size = 0;
        TL_TRY(meet(s, i, j, &size));
        int64_t due = tl_order_size(s->order, tl_order_meeting(s->order, i, j));
        if (size != due)
            return tl_fail(s->err, TL_EDOMAIN,
                           "reveal_order: no tree: terms %" PRId64 " and %" PRId64
                           " meet in a part of %" PRId64 " terms, by others' meetings %" PRId64,
                           i, j, size, due);
    }
    return TL_OK;
}

static tl_status search_order(search *s)
{
    int64_t units = 0;
    for (int64_t i = 0; i < s->n; i++) {
        tl_array_put(&s->x, i, values[s->x.dtype].unit);
        s->set[i].term = i;
    }
    TL_TRY(count_units(s, &units));
    if (units != s->n)
        return tl_fail(s->err, TL_EDOMAIN,
                       "reveal_order: %" PRId64 " terms of one unit add up to %" PRId64, s->n,
                       units);
    TL_TRY(build(s, s->set, s->n, 0, false));
    return check(s);
}

tl_status tl_reveal_order(tl_sum_fn *sum, void *ctx, tl_dtype dtype, int64_t n, tl_order **order,
                          tl_err *err)
{
    TL_TRY(TL_NEED(err, order));
    *order = NULL;
    TL_TRY(TL_NEED(err, sum));
    if (!tl_dtype_is_float(dtype))
        return tl_fail(err, TL_EDTYPE, "reveal_order: the terms are %s; floats are needed",
                       tl_dtype_name(dtype));
    if (n < 1)
        return tl_fail(err, TL_EDOMAIN, "reveal_order: %" PRId64 " terms; at least 1 is needed", n);
    search s = {.sum = sum,
                .ctx = ctx,
                .n = n,
                .x = tl_array_make(dtype, &TL_DIMS(n), NULL),
                .order = tl_order_new(n),
                .err = err};
    tl_status status = TL_ENOMEM;
    s.x.data = s.order ? malloc((size_t)n * tl_dtype_size(dtype)) : NULL;
    s.set = s.order ? malloc((size_t)n * sizeof *s.set) : NULL;
    s.part = s.order ? malloc((size_t)n * sizeof *s.part) : NULL;
    if (s.x.data == NULL || s.set == NULL || s.part == NULL)
        tl_fail(err, status, "reveal_order: no memory for %" PRId64 " terms", n);
    else
        status = search_order(&s);
    free(s.x.data);
    free(s.set);
    free(s.part);
    if (status == TL_OK)
        *order = s.order;
    else
        tl_order_free(s.order);
    return status;
}
