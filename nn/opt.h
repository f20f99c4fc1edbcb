/* opt.h: the inside of an optimizer. Private to nn/. */
#ifndef TL_NN_OPT_H
#define TL_NN_OPT_H

#include <string.h>

#include "autograd/author.h"
#include "nn/nn.h"
#include "ops/ops.h"
#include "ops/optimize.h"

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
    bool mine;       /* updated; others only count in the norm */
    bool half;       /* it is f16 or bf16, and in[0] its f32 master */
    bool found;      /* in[0] and its state are there */
    tl_tensor in[8]; /* parameter, gradient (TL_NONE: not reached), state, numbers */
} tl_opt_param;

/* What the next step takes that has the gradients of its own part alone (nn/group). */
typedef struct {
    const tl_tape *t; /* where; NULL: all gradients are there */
    double squares;   /* the sum of them of all gradients */
    int n;            /* parameters that have one */
    uint64_t state;   /* tl_model_state then */
} tl_opt_away;

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
    int64_t bytes; /* of all parameters, which are cut into parts */
    bool moved;    /* they were others before */
    bool stepping; /* tl_step is under way */
    tl_opt_away away;
};

/* NUMERICS 12.2: the sum of squares goes on to the next parameter, by its gradient, TL_NONE for
 * none. */
static inline tl_tensor tl_opt_add_squares(tl_tape *t, tl_tensor sum, tl_tensor grad)
{
    const tl_tensor q = tl_is_none(grad) ? TL_NONE : tl_square_sum_at(TL_AT(t), grad);
    return tl_is_none(sum) ? q : tl_is_none(q) ? sum : tl_add(t, sum, q);
}

/* The buffer of that name, if there is one, is o's state from now on. TL_EUSAGE: it is that of
 * another optimizer that lives. */
tl_status tl_opt_own(tl_opt *o, const char *state, tl_err *err);

/* The buffers KIND.NAME that updates keep of a parameter; NULL: no more. */
static inline const char *tl_opt_kind(int i)
{
    static const char *const kind[] = {"master.", "sgd.b.", "adamw.m.", "adamw.v.", NULL};
    return kind[i];
}

/* The parameter whose state a tensor of that name would be; "" for others. */
static inline const char *tl_opt_state_of(const char *name)
{
    for (int i = 0; tl_opt_kind(i) != NULL; i++)
        if (strncmp(name, tl_opt_kind(i), strlen(tl_opt_kind(i))) == 0)
            return name + strlen(tl_opt_kind(i));
    return "";
}

/* What a checkpoint calls it. */
static inline const char *tl_opt_name_of(const tl_opt *o)
{
    return !o->adamw ? "sgd" : o->coupled ? "adam" : "adamw";
}

/* Parameters in order of name, frozen or not, are cut into parts of about as many bytes. */
typedef struct {
    int64_t all, before;
    int parts;
} tl_opt_cut;

static inline int64_t tl_opt_bytes(const tl_named *p)
{
    return p->param ? tl_array_count(&p->array) * (int64_t)tl_dtype_size(p->array.dtype) : 0;
}

static inline tl_opt_cut tl_opt_cut_of(tl_model *m, int parts)
{
    tl_opt_cut c = {.parts = parts};
    for (int i = 0; i < tl_model_count(m); i++) {
        const tl_named p = tl_model_at(m, i);
        c.all += tl_opt_bytes(&p);
    }
    return c;
}

/* The part that the next tensor of the model is of. */
static inline int tl_opt_part(tl_opt_cut *c, const tl_named *p)
{
    const int64_t n = tl_opt_bytes(p), middle = c->before + n / 2;
    c->before += n;
    return c->all > 0 && c->parts > 1 ? (int)((double)middle / ((double)c->all + 1) * c->parts) : 0;
}

/* o updates the parameter of that name. */
bool tl_opt_updates(const tl_opt *o, const char *param);

#endif
