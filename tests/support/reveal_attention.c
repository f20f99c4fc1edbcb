/* reveal_attention.c: probes of attention, forward and backward: NUMERICS 7. With q = 0 all scores
 * are 0 and p = 1/keys, so that masks pass through v, k and the cotangent. Only the sum of the
 * exponentials is hidden; its lanes are those of D. */
#include <math.h>

#include "ops/ops.h"
#include "tests/support/reveal_probes.h"

typedef struct {
    tl_tensor q, k, v;
} operands;

/* Two columns, d, of which the terms take the second; s positions. */
static tl_tensor second(reveal_run *r, int64_t heads, int64_t s, int rest, int64_t n, const void *x)
{
    return reveal_laid(r, TL_DIMS(1, heads, s, 2), rest, n, x, 1, 2);
}

static tl_tensor zeros(reveal_run *r, int64_t heads, int64_t s, int64_t d)
{
    return reveal_full(r, TL_DIMS(1, heads, s, d), 0);
}

/* d values from the first element on, in a tensor of zeros. */
static tl_tensor starts_with(reveal_run *r, int64_t s, int64_t d, const double *value, int64_t n,
                             int64_t first, int64_t stride)
{
    tl_tensor y = tl_data(r->tape, value, TL_F64, TL_DIMS(n));
    union {
        double d[4];
        float f[4];
        uint16_t h[4];
    } v;
    if (tl_keep(r->tape, tl_cast(r->tape, y, r->dtype), &v, (size_t)n * tl_dtype_size(r->dtype)) !=
        TL_OK)
        return TL_NONE;
    return reveal_laid(r, TL_DIMS(1, 1, s, d), 0, n, &v, first, stride);
}

static tl_tensor output(reveal_run *r, operands o, double scale)
{
    return tl_attention(r->tape, o.q, o.k, o.v, .scale = scale, .full = true);
}

static double gradient(reveal_run *r, operands o, tl_tensor of, tl_tensor dout, int64_t i)
{
    reveal_leaf(r, of);
    tl_backward(r->tape, output(r, o, 1), .cotangent = dout);
    return reveal_element(r, tl_grad(r->tape, of), i);
}

static double over_keys(reveal_run *r, int64_t n, const void *x)
{
    operands o = {zeros(r, 1, 3, 2), zeros(r, 1, n, 2), second(r, 1, n, 1, n, x)};
    return reveal_element(r, output(r, o, 1), 3) * (double)n;
}

/* Two keys, (1, 1, ...) and 0; v = (1, 0, ...), (0, 1, ...). So the output is p, and log(p0 / p1)
 * the score. */
static double scores(reveal_run *r, int64_t n, const void *x)
{
    double unit = r->dtype == TL_F64 ? 0x1p-500 : 0x1p-100, one[2] = {1, 1};
    float ones[512];
    double ones64[512];
    uint16_t halves[512];
    for (int64_t i = 0; i < n; i++) {
        ones[i] = 1;
        ones64[i] = 1;
        halves[i] = 0x3f80;
    }
    const void *row = r->dtype == TL_F64   ? (const void *)ones64
                      : r->dtype == TL_F32 ? (const void *)ones
                                           : (const void *)halves;
    operands o = {reveal_laid(r, TL_DIMS(1, 1, 1, n), 0, n, x, 0, 1),
                  reveal_laid(r, TL_DIMS(1, 1, 2, n), 0, n, row, 0, 1),
                  starts_with(r, 2, n, one, 2, 0, n + 1)};
    tl_tensor p = output(r, o, 1 / (16 * unit));
    return log(reveal_element(r, p, 0) / reveal_element(r, p, 1)) * 16 * unit;
}

/* One more key has v = 0 and k = (1, 0): dq_0 = t of that key = p * (0 - D). */
static double lanes_of_d(reveal_run *r, int64_t n, const void *x)
{
    double one[1] = {1};
    operands o = {zeros(r, 1, 1, 2), starts_with(r, n + 1, 2, one, 1, 2 * n, 1),
                  second(r, 1, n + 1, 0, n, x)};
    return -gradient(r, o, o.q, starts_with(r, 1, 2, one, 1, 1, 1), 0) * (double)(n + 1) *
           (double)(n + 1);
}

/* dv of key 1 over the queries of two heads that share it. */
static double over_queries(reveal_run *r, int64_t n, const void *x)
{
    operands o = {zeros(r, 2, n / 2, 2), zeros(r, 1, 3, 2), zeros(r, 1, 3, 2)};
    return gradient(r, o, o.v, second(r, 2, n / 2, 0, n, x), 3) * 3;
}

/* v = (1, 0), (-1, 0) and do = (1, 1): t = 1/2 for key 0; q's second column is seen by no key. */
static double over_queries_dk(reveal_run *r, int64_t n, const void *x)
{
    double v[2] = {1, -1};
    operands o = {second(r, 2, n / 2, 0, n, x), zeros(r, 1, 2, 2),
                  starts_with(r, 2, 2, v, 2, 0, 2)};
    return gradient(r, o, o.k, reveal_full(r, TL_DIMS(1, 2, n / 2, 2), 1), 1) * 2;
}

/* v = (1, 0) for n keys and -n for one more, so that t = 1/(n + 1) for the n. */
static double over_keys_dq(reveal_run *r, int64_t n, const void *x)
{
    double last[1] = {-(double)n}, one[1] = {1};
    tl_tensor v = tl_concat(r->tape,
                            ((tl_tensor[]){reveal_full(r, TL_DIMS(1, 1, n, 2), 1),
                                           starts_with(r, 1, 2, last, 1, 0, 1)}),
                            2, 2);
    operands o = {zeros(r, 1, 1, 2), second(r, 1, n + 1, 0, n, x), v};
    return gradient(r, o, o.q, starts_with(r, 1, 2, one, 1, 0, 1), 1) * (double)(n + 1);
}

/* Two keys with v = (1, 1, ...) and 0: p = 1/2, D = dp / 2, t = dp / 4. */
static double over_dims_dp(reveal_run *r, int64_t n, const void *x)
{
    double one[1] = {1};
    tl_tensor v = tl_concat(
        r->tape, ((tl_tensor[]){reveal_full(r, TL_DIMS(1, 1, 1, n), 1), zeros(r, 1, 1, n)}), 2, 2);
    operands o = {zeros(r, 1, 1, n), starts_with(r, 2, n, one, 1, 0, 1), v};
    return gradient(r, o, o.q, reveal_laid(r, TL_DIMS(1, 1, 1, n), 0, n, x, 0, 1), 0) * 4;
}

#define CHAIN stated_fold_of_all

const reveal_probe reveal_probes_attention[] = {
    {.op = "attention", "o over keys", over_keys, CHAIN},
    {.op = "attention", "scores over d", scores, CHAIN},
    {.op = "attention",
     "lanes of D, which the sum of exponentials shares",
     lanes_of_d,
     stated_lanes_of_all,
     .hidden = "exponentials"},
    {.op = "attention_grad", "D over keys", lanes_of_d, stated_lanes_of_all, .backward = true},
    {.op = "attention_grad", "dp over d", over_dims_dp, CHAIN, .backward = true},
    {.op = "attention_grad", "dq over keys", over_keys_dq, CHAIN, .backward = true},
    {.op = "attention_grad",
     "dk over heads, then queries",
     over_queries_dk,
     CHAIN,
     .times = 2,
     .backward = true},
    {.op = "attention_grad",
     "dv over heads, then queries",
     over_queries,
     CHAIN,
     .times = 2,
     .backward = true},
};
const int reveal_probes_attention_count = sizeof reveal_probes_attention /
                                          sizeof reveal_probes_attention[0];
