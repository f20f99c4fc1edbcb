/* opt.h: the inside of an optimizer. Private to nn/. */
#ifndef TL_NN_OPT_H
#define TL_NN_OPT_H

#include "autograd/author.h"
#include "nn/nn.h"

typedef struct {
    char *pattern;
    double lr_scale, weight_decay;
    bool met; /* a parameter has such a name */
} tl_opt_group_t;

/* What changes from step to step: ops read it where it lies. */
typedef struct tl_opt_numbers {
    tl_opt *o;
    struct tl_opt_numbers
        *before; /* the step before it in the same traced program; NULL: the last one made */
    int ahead;   /* how many of those there are */
    double lr, c1, c2, pow1, pow2, norm;
    uint32_t trace; /* the tape it was traced on */
    struct tl_opt_numbers *older;
} tl_opt_numbers;

/* A trained parameter and what its update takes. */
typedef struct {
    const char *name;
    tl_tensor x;
    tl_array array;
    double lr_scale, decay;
    bool half;       /* it is f16 or bf16, and in[0] its f32 master */
    bool found;      /* in[0] and its state are there */
    tl_tensor in[8]; /* parameter, gradient (TL_NONE: not reached), state, numbers */
} tl_opt_param;

struct tl_opt {
    tl_object head;
    const char *name; /* of the function that made it */
    tl_model *model;
    bool adamw;   /* else sgd */
    bool coupled; /* Adam: weight decay goes through the gradient */
    tl_opt_options o;
    int64_t steps;
    double pow1, pow2; /* beta1^steps, beta2^steps by successive products */
    double grad_norm;
    tl_opt_numbers now;     /* of a step under way */
    tl_opt_numbers *traced; /* of steps in graphs, newest first */
    tl_opt_group_t *group;
    int n_groups;
    tl_opt_param *param; /* in order of name, found when tl_model_state was that */
    int n_params;
    uint64_t found;
};

/* The buffer of that name, if there is one, is o's state from now on. TL_EUSAGE: it is that of
 * another optimizer that lives. */
tl_status tl_opt_own(tl_opt *o, const char *state, tl_err *err);

#endif
