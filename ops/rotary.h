/* rotary.h: what rotary, its in-place form and that on halves share. Private to ops/. */
#ifndef TL_OPS_ROTARY_H
#define TL_OPS_ROTARY_H

#include "ops/build.h"

typedef struct {
    int64_t pairing;
    bool turned; /* y = r1*x - R(r2*x) */
} tl_rotary_attrs;

/* Runs body over rows of n elements, with four of scratch for each of its threads; *scratch,
 * a field of ctx, holds them while it runs. */
tl_status tl_rotary_run(tl_call *c, int64_t rows, int64_t n, tl_range_fn *body, void *ctx,
                        void **scratch);
/* Row i of a thread's own. */
static inline void *tl_rotary_row(void *scratch, int thread, int64_t n, int i)
{
    return (double *)scratch + (4 * (int64_t)thread + i) * n;
}

/* A table of n last elements fits x. */
tl_status tl_rotary_check_table(tl_call *c, const tl_array *x, const tl_array *r, int64_t n);

#endif
