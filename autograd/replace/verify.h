/* verify.h: one trial of a replacement's claim. Private to verify.c and verify_values.c. */
#ifndef TL_VERIFY_H
#define TL_VERIFY_H

#include "autograd/replace/internal.h"

typedef struct {
    double *x; /* widened exactly */
    int64_t n;
} tl_trial_bits;

typedef struct {
    const tl_rule *r;
    tl_dtype dtype;
    const tl_shape *shapes;
    bool backward;
    uint64_t seed, state;
    tl_err *err;
    tl_bump mem;
    tl_dtype arg_dtype[TL_PATTERN_ARGS];
    void *arg[TL_PATTERN_ARGS], *cotangent[TL_PATTERN_OUTS];
    bool grad[TL_PATTERN_ARGS], seeded[TL_PATTERN_OUTS];
    bool whole; /* every output that carries a gradient is seeded */
    int style, n_bits, at;
    tl_trial_bits *first; /* what search gave, in order */
    int uses[TL_PATTERN_ARGS];
} tl_trial;

enum { MAX_BITS = 256, MAX_USES = 32 };

/* Random contents of an array, in k's memory. */
void *tl_trial_array(tl_trial *k, tl_dtype d, int64_t n, int64_t below);
/* Arguments, which of them take gradients, and which outputs get cotangents. */
void tl_trial_draw(tl_trial *k, int round);
const tl_shape *tl_trial_shape(const tl_trial *k, int i);
/* search: keeps a's elements; else compares them with what search gave in this turn. */
tl_status tl_trial_take(tl_trial *k, bool search, const tl_array *a, const char *what, int i);

#endif
