/* both.h: a program called, and compiled with replacements: the same bits? What was replaced, and
 * why not? */
#ifndef TL_TEST_BOTH_H
#define TL_TEST_BOTH_H

#include <tally_extend.h>

enum { BOTH_OUTS = 8 };

typedef struct {
    bool same;          /* every output, bit for bit (NaNs as one) */
    double far;         /* the largest difference, relative to 1 + the value */
    char report[8192];  /* tl_graph_report's text */
    char replaced[512]; /* its lines of what was replaced */
} both_result;

/* Runs f twice on a tape over m. Fails the test on an error. */
both_result both_ways(tl_model *m, tl_program *f, const tl_tensor *in, int n_in, int n_out,
                      void *ctx, tl_graph_options o);

/* data(m, dtype, shape, seed): random values in [-2, 2) of the model. */
tl_tensor both_data(tl_model *m, tl_dtype d, tl_shape s, unsigned seed);

#endif
