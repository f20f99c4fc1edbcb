/* reveal_probes.h: every op that sums, reached so that masks of huge and unit values pass through
 * its sum.
 *
 * A probe is one line: the op, which of its sums, a function that lays n terms into an input and
 * reads their sum from a result or a gradient, and the tree that NUMERICS states. Sums of terms
 * that cannot be masks (exponentials, squares) stand here by the reducer that makes them: `hidden`
 * says what is summed. */
#ifndef TL_TESTS_REVEAL_PROBES_H
#define TL_TESTS_REVEAL_PROBES_H

#include "autograd/tape.h"
#include "tensor/reveal/reveal.h"

typedef struct reveal_probe reveal_probe;

typedef struct {
    const reveal_probe *probe;
    tl_dtype dtype;
    tl_tape *tape; /* reset before each sum */
} reveal_run;

typedef double reveal_sum(reveal_run *r, int64_t n, const void *x);

struct reveal_probe {
    const char *op, *what;
    reveal_sum *sum;
    void (*stated)(tl_order *o, int64_t n);
    const char *hidden; /* the terms that masks cannot be; NULL: the sum is seen from outside */
    int times;          /* n is a multiple of this; 0 means 1 */
    bool backward;      /* seen in a gradient, as tl_backward gives it */
    bool small;         /* n at most 70 */
    bool f16; /* f16 too: the accumulator is no wider than f32, and the result is the sum itself */
};

int reveal_probe_count(void);
const reveal_probe *reveal_probe_at(int i);

/* A tl_sum_fn; ctx is a reveal_run. */
double reveal_probe_sum(void *ctx, int64_t n, const void *x);

/* ---- for the tables ---- */

/* A tensor of ones (or zeros: rest) with x[i] at element first + i * stride. */
tl_tensor reveal_laid(reveal_run *r, tl_shape shape, int rest, int64_t n, const void *x,
                      int64_t first, int64_t stride);
tl_tensor reveal_full(reveal_run *r, tl_shape shape, int value);
tl_tensor reveal_leaf(reveal_run *r, tl_tensor x); /* marked as wanting a gradient; returns x */
double reveal_element(reveal_run *r, tl_tensor y, int64_t i);
/* x[i] as a double; x from i on. */
double reveal_term(const reveal_run *r, const void *x, int64_t i);
const void *reveal_from(const reveal_run *r, const void *x, int64_t i);

/* The trees of NUMERICS 3 over terms 0 .. n-1, and made of them. */
void stated_lanes_of_all(tl_order *o, int64_t n);
void stated_fold_of_all(tl_order *o, int64_t n);
void stated_fold_down(tl_order *o, int64_t n);
void stated_fold_of_5_lanes(tl_order *o, int64_t n);

#endif
