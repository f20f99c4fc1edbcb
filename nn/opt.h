/* opt.h: the inside of an optimizer. Private to nn/. */
#ifndef TL_NN_OPT_H
#define TL_NN_OPT_H

#include "autograd/object.h"
#include "nn/nn.h"

typedef struct {
    char *pattern;
    double lr_scale, weight_decay;
} tl_opt_group_t;

struct tl_opt {
    tl_object head;
    tl_model *model;
    bool adamw;               /* else sgd */
    bool coupled;             /* Adam: weight decay goes through the gradient */
    tl_opt_options o;
    int64_t steps;
    double pow1, pow2;        /* beta1^steps, beta2^steps by successive products */
    double grad_norm;
    struct {
        double lr, c1, c2, pow1, pow2, norm;
    } now;                    /* of the step under way; ops read it where it lies */
    tl_opt_group_t *group;
    int n_groups;
};

#endif
