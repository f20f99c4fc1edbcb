/* loss.h: what cross_entropy and nll share. Private to ops/. */
#ifndef TL_OPS_LOSS_H
#define TL_OPS_LOSS_H

#include "ops/build.h"

typedef struct {
    int64_t reduction, ignore_index;
    bool ignore;
    double smoothing; /* cross_entropy's; 0 for nll */
} tl_loss_attrs;

static inline bool tl_loss_ignored(const tl_loss_attrs *a, int64_t target)
{
    return a->ignore && target == a->ignore_index;
}

/* Values (..., classes) of that name, targets (...) and a count (or NULL) fit together. */
tl_status tl_loss_check(tl_call *c, const tl_loss_attrs *a, const char *name, const tl_array *z,
                        const tl_array *targets, const tl_array *count);
/* out[0] is the running total (continued, if given), out[1] the loss. */
tl_status tl_loss_outputs(tl_call *c, const tl_array *total, tl_dtype dtype);
/* Every target is a class or ignored; *counted is how many are not. */
tl_status tl_loss_targets(tl_call *c, const tl_loss_attrs *a, const tl_array *targets,
                          int64_t classes, int64_t *counted);
/* Adds the rows' losses in order to the total, and divides by a count (NULL: counted) for a mean.
 */
void tl_loss_total(tl_call *c, const tl_loss_attrs *a, const double *loss, const tl_array *targets,
                   int64_t counted, const tl_array *count, const tl_array *total);

#endif
