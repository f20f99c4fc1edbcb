/* norm.h: what rms_norm, layer_norm and their gradients share - row lengths, checks,
 * operands in the compute type, and the fold that makes dgamma. Private to ops/. */
#ifndef TL_OPS_NORM_H
#define TL_OPS_NORM_H

#include "ops/build.h"

typedef struct {
    double eps;    /* NaN: the compute type's epsilon */
    int64_t k;     /* normalized dims, from the last */
    bool plus_one; /* the weight is 1 + gamma */
} tl_norm_attrs;

typedef struct {
    int64_t k;
    bool want_dx, want_dgamma, plus_one;
} tl_norm_grad_attrs;

extern const tl_attr tl_norm_schema[], tl_norm_grad_schema[];

/* Rules for `batch`: samples are rows; of a norm, and of its gradient, where dgamma adds up. */
void tl_norm_batch(const tl_call *c, const tl_batch *in, tl_batch *out);
void tl_norm_grad_batch(const tl_call *c, const tl_batch *in, tl_batch *out);

/* Elements of a row. */
int64_t tl_norm_length(const tl_array *x, int64_t k);
/* x, k and the weight (NULL: none) of that name fit together. */
tl_status tl_norm_check(tl_call *c, const tl_array *x, const char *name, const tl_array *weight,
                        int64_t k);
tl_status tl_norm_check_eps(tl_call *c, double eps);
/* mean and rstd: x's rank, the k dims as 1, the compute type. */
tl_array tl_norm_stat(const tl_array *x, int64_t k);
/* Outputs of a gradient: dgamma in the accumulator or the compute type, dx in x's. What is not
 * wanted is empty. */
tl_status tl_norm_grad_outputs(tl_call *c, const tl_array *dy, const tl_array *x,
                               const tl_array *gamma, const tl_array *acc);
/* How many dims a weight normalizes over: its own, or 1. */
int64_t tl_norm_dims(tl_tape *t, tl_tensor gamma, tl_tensor beta);

/* Operands of a run over rows; all contiguous, of the compute type. */
typedef struct {
    tl_array x, gamma, beta, y, dy, mean, rstd;
    const void *g, *b; /* data of gamma and beta, or NULL */
    int64_t n, rows;
    double eps;
    double *fold; /* dgamma's accumulator, a row */
} tl_norm_job;

/* gamma, or 1 + gamma, in the compute type. */
tl_status tl_norm_weight(tl_call *c, const tl_array *gamma, bool plus_one, tl_array *out,
                         tl_storage **held);

/* The forward of a gradient (dy, x, gamma?, ...) -> dgamma, dx: rows(job) makes dx over rows
 * [begin, end), columns(job) folds dgamma over columns [begin, end), continuing acc if there is
 * one. mean may be NULL. */
typedef void tl_norm_part(void *job, int64_t begin, int64_t end, int thread);
tl_status tl_norm_grad_run(tl_call *c, const tl_array *mean, const tl_array *rstd,
                           const tl_array *acc, tl_norm_part *rows, tl_norm_part *columns);
/* What the vjps of both gradients end with: of dy, cg*weight + w*h (weight, w: NONE without), and
 * of gamma, cg*dy. */
void tl_norm_grad_ends(tl_vjp *v, tl_tensor cg, tl_tensor weight, tl_tensor w, tl_tensor h);

/* x summed over its last k dims, kept as 1. */
tl_tensor tl_norm_row_sum(tl_tape *t, tl_tensor x, int64_t k);
/* 1 / the elements of a row of x. */
double tl_norm_inverse(tl_tape *t, tl_tensor x, int64_t k);

/* dx plus what the cotangents of the mean and of rstd bring to x (NUMERICS 6.12); dx, dmean, drstd
 * and, without a mean, mean may be NONE. */
tl_tensor tl_norm_stats_grad(tl_vjp *g, tl_tensor x, tl_tensor mean, tl_tensor rstd,
                             tl_tensor dmean, tl_tensor drstd, tl_tensor dx);
/* The gradient of input i where nothing comes to it: its accumulator as it stands, or zeros. */
tl_tensor tl_norm_nothing(tl_vjp *g, int i);

#endif
