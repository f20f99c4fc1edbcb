/* reveal_reduce.c: probes of sum, mean, sum_to, cumsum, scatter-adds and losses: NUMERICS
 * 4, 6.5, 6.10 and 9. */
#include "ops/list.h"
#include "ops/ops.h"
#include "tests/cases/cases.h"
#include "tests/support/reveal_probes.h"

static double sum_row(reveal_run *r, int64_t n, const void *x)
{
    return reveal_element(
        r, tl_sum(r->tape, reveal_laid(r, TL_DIMS(2, n), 1, n, x, n, 1), TL_DIMS(1), false), 1);
}

static double sum_axis0(reveal_run *r, int64_t n, const void *x)
{
    return reveal_element(
        r, tl_sum(r->tape, reveal_laid(r, TL_DIMS(n, 3), 1, n, x, 1, 3), TL_DIMS(0), false), 1);
}

static double sum_middle(reveal_run *r, int64_t n, const void *x)
{
    return reveal_element(r,
                          tl_sum(r->tape, reveal_laid(r, TL_DIMS(2, n, 3), 1, n, x, 3 * n + 2, 3),
                                 TL_DIMS(1), false),
                          5);
}

static double sum_all(reveal_run *r, int64_t n, const void *x)
{
    return reveal_element(
        r, tl_sum(r->tape, reveal_laid(r, TL_DIMS(5, n / 5), 1, n, x, 0, 1), TL_ALL, false), 0);
}

/* Over axes 0 and 2 of a view whose last dim is strided. */
static double sum_ends(reveal_run *r, int64_t n, const void *x)
{
    tl_tensor v = tl_transpose(r->tape, reveal_laid(r, TL_DIMS(5, n / 5, 3), 1, n, x, 1, 3), 1, 2);
    return reveal_element(r, tl_sum(r->tape, v, TL_DIMS(0, 2), false), 1);
}

static double mean_row(reveal_run *r, int64_t n, const void *x)
{
    return reveal_element(r,
                          tl_mean(r->tape, reveal_laid(r, TL_DIMS(2, n), 1, n, x, n, 1), TL_DIMS(1),
                                  false),
                          1) *
           (double)n;
}

static double mean_all(reveal_run *r, int64_t n, const void *x)
{
    return reveal_element(r,
                          tl_mean(r->tape, reveal_laid(r, TL_DIMS(5, n / 5), 1, n, x, 0, 1), TL_ALL,
                                  false),
                          0) *
           (double)n;
}

static double sum_to_row(reveal_run *r, int64_t n, const void *x)
{
    return reveal_element(r,
                          tl_sum_to(r->tape, reveal_laid(r, TL_DIMS(n, 3), 1, n, x, 1, 3),
                                    TL_DIMS(3), TL_NONE),
                          1);
}

static double sum_to_column(reveal_run *r, int64_t n, const void *x)
{
    return reveal_element(r,
                          tl_sum_to(r->tape, reveal_laid(r, TL_DIMS(3, n), 1, n, x, n, 1),
                                    TL_DIMS(3, 1), TL_NONE),
                          1);
}

/* Term 0 is what the accumulator holds. */
static double sum_to_continued(reveal_run *r, int64_t n, const void *x)
{
    double start[3] = {0, reveal_term(r, x, 0), 0};
    tl_tensor acc = tl_data(r->tape, start, TL_F64, TL_DIMS(3));
    tl_tensor v = reveal_laid(r, TL_DIMS(n - 1, 3), 1, n - 1, reveal_from(r, x, 1), 1, 3);
    return reveal_element(r, tl_sum_to(r->tape, v, TL_DIMS(3), acc), 1);
}

/* A bias, its rows in two micro-batches. */
static double bias(reveal_run *r, int64_t n, const void *x)
{
    tl_tensor b = reveal_leaf(r, reveal_full(r, TL_DIMS(3), 1));
    for (int part = 0; part < 2; part++) {
        tl_tensor y = tl_add(r->tape, reveal_full(r, TL_DIMS(n / 2, 3), 1), b);
        tl_backward(r->tape, y,
                    .cotangent = reveal_laid(r, TL_DIMS(n / 2, 3), 0, n / 2,
                                             reveal_from(r, x, part * (n / 2)), 1, 3));
    }
    return reveal_element(r, tl_grad(r->tape, b), 1);
}

static double cumsum_up(reveal_run *r, int64_t n, const void *x)
{
    return reveal_element(r,
                          tl_cumsum(r->tape, reveal_laid(r, TL_DIMS(2, n + 3), 1, n, x, n + 3, 1),
                                    1, false),
                          n + 3 + n - 1);
}

static double cumsum_down(reveal_run *r, int64_t n, const void *x)
{
    return reveal_element(r,
                          tl_cumsum(r->tape, reveal_laid(r, TL_DIMS(n, 2), 1, n, x, 1, 2), 0, true),
                          1);
}

static double cumsum_grad(reveal_run *r, int64_t n, const void *x)
{
    tl_tensor v = reveal_leaf(r, reveal_full(r, TL_DIMS(n), 1));
    tl_backward(r->tape, tl_cumsum(r->tape, v, 0, false),
                .cotangent = reveal_laid(r, TL_DIMS(n), 0, n, x, 0, 1));
    return reveal_element(r, tl_grad(r->tape, v), 0);
}

static tl_tensor same_ids(reveal_run *r, tl_shape shape, int64_t id)
{
    ref_tensor ids = ref_new(REF_I64, shape.ndim, shape.dim);
    for (int64_t i = 0; i < ref_numel(&ids); i++)
        ref_set_i64(&ids, i, id);
    tl_tensor y = tl_case_leaf(r->tape, &ids);
    ref_free(&ids);
    return y;
}

/* All of them ask for row 2; two micro-batches. */
static double embedding(reveal_run *r, int64_t n, const void *x)
{
    tl_tensor table = reveal_leaf(r, reveal_full(r, TL_DIMS(4, 3), 1));
    for (int part = 0; part < 2; part++) {
        tl_tensor y = tl_embedding(r->tape, table, same_ids(r, TL_DIMS(n / 2), 2));
        tl_backward(r->tape, y,
                    .cotangent = reveal_laid(r, TL_DIMS(n / 2, 3), 0, n / 2,
                                             reveal_from(r, x, part * (n / 2)), 1, 3));
    }
    return reveal_element(r, tl_grad(r->tape, table), 2 * 3 + 1);
}

static double scatter(reveal_run *r, int64_t n, const void *x)
{
    tl_tensor dy = reveal_laid(r, TL_DIMS(n, 3), 1, n, x, 1, 3);
    return reveal_element(
        r, tl_scatter_add_dim(r->tape, dy, same_ids(r, TL_DIMS(n, 3), 1), 0, TL_DIMS(2, 3)), 4);
}

static double nll_total(reveal_run *r, int64_t n, const void *x)
{
    tl_tensor logp = reveal_laid(r, TL_DIMS(n, 2), 1, n, x, 1, 2);
    return -reveal_element(r, tl_nll(r->tape, logp, same_ids(r, TL_DIMS(n), 1), TL_SUM), 0);
}

/* Term 0 is what the total held before; the mean by a count of 1. */
static double nll_continued(reveal_run *r, int64_t n, const void *x)
{
    double start = -reveal_term(r, x, 0), one = 1;
    case_attrs a = {.bytes = {0}};
    tl_tensor out[2], in[4];
    tl_case_attr(&tl_op_nll, &a, "reduction", TL_MEAN);
    in[0] = reveal_laid(r, TL_DIMS(n - 1, 2), 1, n - 1, reveal_from(r, x, 1), 1, 2);
    in[1] = same_ids(r, TL_DIMS(n - 1), 1);
    in[2] = tl_data(r->tape, &one, TL_F64, TL_SCALAR);
    in[3] = tl_data(r->tape, &start, TL_F64, TL_SCALAR);
    tl_apply(TL_AT(r->tape), &tl_op_nll, &a, in, 4, out);
    return -reveal_element(r, out[1], 0);
}

#define ROW stated_lanes_of_all
#define FOLD stated_fold_of_all

const reveal_probe reveal_probes_reduce[] = {
    {.op = "sum", "a row", sum_row, ROW, .f16 = true},
    {.op = "sum", "axis 0", sum_axis0, FOLD},
    {.op = "sum", "a middle dim", sum_middle, FOLD},
    {.op = "sum", "all dims: rows, then a fold", sum_all, stated_fold_of_5_lanes, .times = 5},
    {.op = "sum", "first and last dim of a view", sum_ends, stated_fold_of_5_lanes, .times = 5},
    {.op = "mean", "a row", mean_row, ROW},
    {.op = "mean",
     "all dims: rows, then a fold",
     mean_all,
     stated_fold_of_5_lanes,
     .times = 5,
     .small = true},
    {.op = "sum_to", "to a row", sum_to_row, FOLD},
    {.op = "sum_to", "to a column", sum_to_column, FOLD},
    {.op = "sum_to", "continued", sum_to_continued, FOLD},
    {.op = "sum_to",
     "gradient of a bias in two micro-batches",
     bias,
     FOLD,
     .times = 2,
     .backward = true},
    {.op = "cumsum", "forward", cumsum_up, FOLD},
    {.op = "cumsum", "reversed", cumsum_down, stated_fold_down},
    {.op = "cumsum", "gradient", cumsum_grad, stated_fold_down, .backward = true},
    {.op = "scatter_add",
     "gradient of an embedding in two micro-batches",
     embedding,
     FOLD,
     .times = 2,
     .backward = true,
     .f16 = true},
    {.op = "embedding",
     "its gradient in two micro-batches",
     embedding,
     FOLD,
     .times = 2,
     .backward = true,
     .f16 = true},
    {.op = "scatter_add_dim", "forward", scatter, FOLD, .f16 = true},
    {.op = "nll", "the total", nll_total, FOLD},
    {.op = "nll", "the total, continued", nll_continued, FOLD},
    {.op = "cross_entropy",
     "the total: made by the function that makes nll's",
     nll_total,
     FOLD,
     .hidden = "losses are not negative"},
};
const int reveal_probes_reduce_count = sizeof reveal_probes_reduce / sizeof reveal_probes_reduce[0];
