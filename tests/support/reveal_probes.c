/* reveal_probes.c: what the tables of probes share, and the list of tables. */
#include "tests/support/reveal_probes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cases/cases.h"
#include "tests/stated_order.h"

#define TABLES(X) X(reduce) X(products) X(rows) X(attention) X(uses)
#define X(f)                                       \
    extern const reveal_probe reveal_probes_##f[]; \
    extern const int reveal_probes_##f##_count;
TABLES(X)
#undef X

int reveal_probe_count(void)
{
    int n = 0;
#define X(f) n += reveal_probes_##f##_count;
    TABLES(X)
#undef X
    return n;
}

const reveal_probe *reveal_probe_at(int i)
{
#define X(f)                           \
    if (i < reveal_probes_##f##_count) \
        return &reveal_probes_##f[i];  \
    i -= reveal_probes_##f##_count;
    TABLES(X)
#undef X
    return NULL;
}

double reveal_probe_sum(void *ctx, int64_t n, const void *x)
{
    reveal_run *r = ctx;
    tl_tape_reset(r->tape);
    tl_grad_clear(r->tape);
    double y = r->probe->sum(r, n, x);
    return tl_failed(r->tape) ? (double)NAN : y;
}

const void *reveal_from(const reveal_run *r, const void *x, int64_t i)
{
    return (const char *)x + (size_t)i * tl_dtype_size(r->dtype);
}

double reveal_term(const reveal_run *r, const void *x, int64_t i)
{
    ref_tensor view = {.dtype = tl_case_ref_dtype(r->dtype), .ndim = 1, .dim = {i + 1}};
    memcpy(&view.data, &x, sizeof x);
    return ref_get(&view, i);
}

tl_tensor reveal_laid(reveal_run *r, tl_shape shape, int rest, int64_t n, const void *x,
                      int64_t first, int64_t stride)
{
    ref_tensor all = ref_new(tl_case_ref_dtype(r->dtype), shape.ndim, shape.dim);
    size_t size = tl_dtype_size(r->dtype);
    for (int64_t i = 0; i < ref_numel(&all); i++)
        ref_set(&all, i, rest);
    for (int64_t i = 0; i < n; i++)
        memcpy((char *)all.data + (size_t)(first + i * stride) * size, reveal_from(r, x, i), size);
    tl_tensor y = tl_case_leaf(r->tape, &all);
    ref_free(&all);
    return y;
}

tl_tensor reveal_full(reveal_run *r, tl_shape shape, int value)
{
    return reveal_laid(r, shape, value, 0, NULL, 0, 0);
}

tl_tensor reveal_leaf(reveal_run *r, tl_tensor x)
{
    tl_require_grad(r->tape, x);
    return x;
}

double reveal_element(reveal_run *r, tl_tensor y, int64_t i)
{
    ref_tensor got = tl_case_read(r->tape, y);
    double v = got.data != NULL && i < ref_numel(&got) ? ref_get(&got, i) : (double)NAN;
    ref_free(&got);
    return v;
}

static int64_t *numbers(int64_t n)
{
    int64_t *v = malloc((size_t)n * sizeof *v);
    ref_check(v != NULL, "out of memory");
    for (int64_t i = 0; i < n; i++)
        v[i] = i;
    return v;
}

void stated_lanes_of_all(tl_order *o, int64_t n)
{
    int64_t *v = numbers(n);
    stated_lanes(o, v, n);
    free(v);
}

void stated_fold_of_all(tl_order *o, int64_t n)
{
    int64_t *v = numbers(n);
    stated_fold(o, -1, v, n);
    free(v);
}

void stated_fold_down(tl_order *o, int64_t n)
{
    int64_t acc = -1;
    for (int64_t i = n; i-- > 0;)
        acc = stated_add(o, acc, i);
}

void stated_fold_of_5_lanes(tl_order *o, int64_t n)
{
    int64_t *v = numbers(n), acc = -1;
    for (int64_t row = 0; row < 5; row++)
        acc = stated_add(o, acc, stated_lanes(o, v + row * (n / 5), n / 5));
    free(v);
}
