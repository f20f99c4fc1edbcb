/* reveal_products.c: probes of matmul, of what is made of it, and of its gradients: NUMERICS 5. */
#include "ops/ops.h"
#include "tests/support/reveal_probes.h"

#define DIMS TL_DIMS
#define FULL(r, ...) reveal_full(r, TL_DIMS(__VA_ARGS__), 1)

static double terms_left(reveal_run *r, int64_t n, const void *x)
{
    return reveal_element(
        r, tl_matmul(r->tape, reveal_laid(r, DIMS(3, n), 1, n, x, n, 1), FULL(r, n, 5)), 5 + 2);
}

static double terms_right(reveal_run *r, int64_t n, const void *x)
{
    return reveal_element(r,
                          tl_matmul(r->tape, FULL(r, 2, 3, n),
                                    reveal_laid(r, DIMS(2, n, 5), 1, n, x, 5 * n + 2, 5)),
                          15 + 2);
}

/* More rows and columns than a tile, operands turned. */
static double terms_turned(reveal_run *r, int64_t n, const void *x)
{
    tl_tensor a = tl_transpose(r->tape, reveal_laid(r, DIMS(n, 37), 1, n, x, 29, 37), 0, 1),
              b = tl_transpose(r->tape, FULL(r, 70, n), 0, 1);
    return reveal_element(r, tl_matmul(r->tape, a, b), 29 * 70 + 65);
}

static double vectors(reveal_run *r, int64_t n, const void *x)
{
    return reveal_element(r, tl_matmul(r->tape, reveal_laid(r, DIMS(n), 1, n, x, 0, 1), FULL(r, n)),
                          0);
}

/* da[i, k] runs over the columns of dy. */
static double gradient_left(reveal_run *r, int64_t n, const void *x)
{
    tl_tensor a = reveal_leaf(r, FULL(r, 3, 4));
    tl_tensor y = tl_matmul(r->tape, a, FULL(r, 4, n));
    tl_backward(r->tape, y, .cotangent = reveal_laid(r, DIMS(3, n), 1, n, x, n, 1));
    return reveal_element(r, tl_grad(r->tape, a), 4 + 2);
}

/* db[k, j] runs over the rows of dy; two micro-batches. */
static double gradient_right(reveal_run *r, int64_t n, const void *x)
{
    tl_tensor b = reveal_leaf(r, FULL(r, 4, 5));
    for (int part = 0; part < 2; part++) {
        tl_tensor y = tl_matmul(r->tape, FULL(r, n / 2, 4), b);
        tl_backward(r->tape, y,
                    .cotangent = reveal_laid(r, DIMS(n / 2, 5), 1, n / 2,
                                             reveal_from(r, x, part * (n / 2)), 3, 5));
    }
    return reveal_element(r, tl_grad(r->tape, b), 5 + 3);
}

/* A weight shared by a batch: the batch dim is the outer part of the chain. */
static double gradient_batched(reveal_run *r, int64_t n, const void *x)
{
    tl_tensor b = reveal_leaf(r, FULL(r, 4, 5));
    tl_tensor y = tl_matmul(r->tape, FULL(r, 5, n / 5, 4), b);
    tl_backward(r->tape, y, .cotangent = reveal_laid(r, DIMS(5, n / 5, 5), 1, n, x, 3, 5));
    return reveal_element(r, tl_grad(r->tape, b), 5 + 3);
}

static double in_f64(reveal_run *r, int64_t n, const void *x)
{
    return reveal_element(r,
                          tl_matmul_acc64(r->tape, reveal_laid(r, DIMS(3, n), 1, n, x, n, 1),
                                          FULL(r, n, 5)),
                          5 + 2);
}

static double to_compute(reveal_run *r, int64_t n, const void *x)
{
    tl_tensor a = reveal_laid(r, DIMS(3, n), 1, n, x, n, 1);
    return reveal_element(r, tl_matmul_to(r->tape, a, FULL(r, n, 5), tl_dtype_compute(r->dtype)),
                          5 + 2);
}

/* The last term is the summand. */
static double with_summand(reveal_run *r, int64_t n, const void *x)
{
    tl_tensor c = reveal_laid(r, DIMS(5), 1, 1, reveal_from(r, x, n - 1), 2, 1);
    return reveal_element(r,
                          tl_addmm(r->tape, c,
                                   reveal_laid(r, DIMS(3, n - 1), 1, n - 1, x, n - 1, 1),
                                   FULL(r, n - 1, 5), 1, 1),
                          5 + 2);
}

/* Channels are the outer part of the chain, places in the kernel the inner one. */
static double channels(reveal_run *r, int64_t n, const void *x)
{
    tl_tensor y = tl_conv1d(r->tape, reveal_laid(r, DIMS(2, n, 4), 1, n, x, n * 4 + 2, 4),
                            FULL(r, 3, n, 1));
    return reveal_element(r, y, (3 + 1) * 4 + 2);
}

static double kernel_places(reveal_run *r, int64_t n, const void *x)
{
    tl_tensor y = tl_conv2d(r->tape, reveal_laid(r, DIMS(1, n / 5, 5, 1), 1, n, x, 0, 1),
                            FULL(r, 2, n / 5, 5, 1));
    return reveal_element(r, y, 1);
}

/* dw runs over samples and places; two micro-batches. */
static double conv_weight(reveal_run *r, int64_t n, const void *x)
{
    tl_tensor w = reveal_leaf(r, FULL(r, 1, 1, 1));
    for (int part = 0; part < 2; part++) {
        tl_tensor y = tl_conv1d(r->tape, FULL(r, n / 10, 1, 5), w);
        tl_backward(r->tape, y,
                    .cotangent = reveal_laid(r, DIMS(n / 10, 1, 5), 1, n / 2,
                                             reveal_from(r, x, part * (n / 2)), 0, 1));
    }
    return reveal_element(r, tl_grad(r->tape, w), 0);
}

/* dx runs over the outputs. */
static double conv_input(reveal_run *r, int64_t n, const void *x)
{
    tl_tensor in = reveal_leaf(r, FULL(r, 1, 1, 3));
    tl_tensor y = tl_conv1d(r->tape, in, FULL(r, n, 1, 1));
    tl_backward(r->tape, y, .cotangent = reveal_laid(r, DIMS(1, n, 3), 1, n, x, 1, 3));
    return reveal_element(r, tl_grad(r->tape, in), 1);
}

#define CHAIN stated_fold_of_all

/* One step of relu, whose state before it are ones. */
static double from_state(reveal_run *r, int64_t n, const void *x)
{
    tl_tensor w = reveal_laid(r, DIMS(n, n), 1, n, x, n > 1 ? n : 0, 1);
    return reveal_element(r,
                          tl_recur(r->tape, reveal_full(r, DIMS(2, 1, n), 0), w, TL_RNN_RELU,
                                   .h = FULL(r, n)),
                          n > 1);
}

/* Steps whose states are ones, of weights 0, in two micro-batches: dw over (sample, step). */
static double recur_weight(reveal_run *r, int64_t n, const void *x)
{
    tl_tensor w = reveal_leaf(r, reveal_full(r, DIMS(3, 3), 0));
    for (int part = 0; part < 2; part++) {
        tl_tensor y = tl_recur(r->tape, FULL(r, n / 10, 5, 3), w, TL_RNN_RELU, .h = FULL(r, 3));
        tl_backward(r->tape, y,
                    .cotangent = reveal_laid(r, DIMS(n / 10, 5, 3), 1, n / 2,
                                             reveal_from(r, x, part * (n / 2)), 1, 3));
    }
    return reveal_element(r, tl_grad(r->tape, w), 3 + 2);
}

/* dh0 over the gates. */
static double recur_back(reveal_run *r, int64_t n, const void *x)
{
    tl_tensor h = reveal_leaf(r, reveal_full(r, DIMS(1, n), 0));
    tl_tensor y = tl_recur(r->tape, FULL(r, 1, 1, n), FULL(r, n, n), TL_RNN_RELU, .h = h);
    tl_backward(r->tape, y, .cotangent = reveal_laid(r, DIMS(1, 1, n), 1, n, x, 0, 1));
    return reveal_element(r, tl_grad(r->tape, h), n / 2);
}

const reveal_probe reveal_probes_products[] = {
    {.op = "matmul", "terms on the left", terms_left, CHAIN, .f16 = true},
    {.op = "matmul", "terms on the right, batched", terms_right, CHAIN, .f16 = true},
    {.op = "matmul", "operands turned, several tiles", terms_turned, CHAIN, .small = true},
    {.op = "matmul", "two vectors", vectors, CHAIN, .f16 = true},
    {.op = "matmul", "gradient of the left operand", gradient_left, CHAIN, .backward = true},
    {.op = "matmul",
     "gradient of the right operand in two micro-batches",
     gradient_right,
     CHAIN,
     .times = 2,
     .backward = true},
    {.op = "matmul",
     "gradient of a weight shared by a batch",
     gradient_batched,
     CHAIN,
     .times = 5,
     .backward = true},
    {.op = "matmul", "matmul_acc64", in_f64, CHAIN},
    {.op = "matmul", "matmul_to", to_compute, CHAIN, .f16 = true},
    {.op = "matmul", "addmm", with_summand, CHAIN},
    {.op = "conv", "channels", channels, CHAIN, .f16 = true},
    {.op = "conv", "places in the kernel", kernel_places, CHAIN, .times = 5, .f16 = true},
    {.op = "conv",
     "gradient of the weight in two micro-batches",
     conv_weight,
     CHAIN,
     .times = 10,
     .backward = true},
    {.op = "conv", "gradient of x", conv_input, CHAIN, .backward = true},
    {.op = "recur", "from the state", from_state, CHAIN, .small = true, .f16 = true},
    {.op = "recur",
     "gradient of the weight in two micro-batches",
     recur_weight,
     CHAIN,
     .times = 10,
     .backward = true},
    {.op = "recur_grad", "to the state", recur_back, CHAIN, .small = true},
};
const int reveal_probes_products_count = sizeof reveal_probes_products /
                                         sizeof reveal_probes_products[0];
