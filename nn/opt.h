/* opt.h: the inside of an optimizer, for checkpoints and for groups of processes. Private to nn/.
 */
#ifndef TL_NN_OPT_H
#define TL_NN_OPT_H

#include <stdio.h>
#include <string.h>

#include "autograd/author.h"
#include "nn/nn.h"
#include "ops/ops.h"
#include "ops/optimize.h"
#include "tensor/threads.h"

typedef struct {
    char *pattern;
    double lr_scale, weight_decay;
    bool met; /* some parameter matches the pattern */
} tl_opt_group_t;

/* The numbers of one step that change from step to step. Ops read them in place. */
typedef struct tl_opt_numbers {
    tl_opt *o;
    uint32_t trace; /* the tape that the step was traced on; 0: none */
    int ahead;      /* steps before this one in the same traced program */
    double lr, c1, c2, pow1, pow2, norm;
    struct tl_opt_numbers *older; /* the traced step made before this one, of any program */
} tl_opt_numbers;

/* A trained parameter and what its update reads. */
typedef struct {
    tl_named param;
    double lr_scale, decay;
    bool mine;        /* this optimizer updates it; otherwise it only counts in the norm */
    bool half;        /* it is f16 or bf16 and has an f32 master */
    bool found;       /* weight, m and v have been looked up */
    tl_tensor weight; /* what the update changes: the parameter, or its master */
    tl_tensor grad;   /* TL_NONE: no backward has reached the parameter */
    tl_tensor m, v;   /* Adam's moments; SGD has its momentum buffer in m */
    tl_tensor lr;
} tl_opt_param;

/* What the next step needs to know if this process has only the gradients of its own part, because
 * the others have gone to other processes (nn/group). */
typedef struct {
    const tl_tape *t; /* the tape of that step; NULL: all gradients are there */
    double squares;   /* the sum of squares of all gradients */
    int n;            /* parameters that have a gradient */
    uint64_t state;   /* tl_model_state when the gradients were sent */
} tl_opt_away;

struct tl_opt {
    tl_object head;
    const char *name; /* "sgd", "adam" or "adamw", as in a checkpoint and in tl_NAME_new */
    tl_model *model;
    bool adam;    /* Adam or AdamW, otherwise SGD */
    bool coupled; /* Adam: the weight decay is added to the gradient */
    tl_opt_options o;
    int64_t steps;
    double pow1, pow2; /* beta1^steps and beta2^steps, by successive products */
    double grad_norm;
    tl_opt_numbers now;     /* of a step that is not traced */
    tl_opt_numbers *traced; /* of steps in graphs, newest first */
    tl_opt_group_t *group;
    int n_groups;
    tl_opt_param *param; /* in order of name */
    int n_params;
    uint64_t found; /* tl_model_state when they were looked up */
    int64_t bytes;  /* bytes of all parameters, by which they are cut into parts; 0: not known */
    bool moved;     /* bytes has changed, so the parts have */
    int64_t loaded; /* steps when it was made or loaded */
    bool behind;    /* since its last step, a checkpoint has been loaded without it */
    bool refused;   /* when it was made: its numbers make no sense */
    bool lr_set;    /* by tl_opt_lr_set: checkpoints hold it */
    double lr_made; /* the rate before that */
    bool stepping;  /* tl_step is under way */
    bool gathered;  /* while the model holds the state of all parts, to be saved */
    tl_opt_away away;
};

/* Adds the sum of squares of a gradient to sum; either may be TL_NONE (NUMERICS 12.2). */
static inline tl_tensor tl_opt_add_squares(tl_tape *t, tl_tensor sum, tl_tensor grad)
{
    const tl_tensor q = tl_is_none(grad) ? TL_NONE : tl_square_sum_at(TL_AT(t), grad);
    return tl_is_none(sum) ? q : tl_is_none(q) ? sum : tl_add(t, sum, q);
}

/* x with enough digits to read it back exactly, in any locale. */
enum { TL_OPT_NUMBER = 32 };
static inline const char *tl_opt_number(char text[TL_OPT_NUMBER], double x)
{
    tl_textenv saved = tl_textenv_enter();
    snprintf(text, TL_OPT_NUMBER, "%.17g", x);
    tl_textenv_leave(saved);
    return text;
}

/* An error if whose, the owner of the buffer `state`, is another optimizer or tl_opt_elsewhere. */
tl_status tl_opt_check_owner(const tl_opt *o, const char *state, const void *whose, tl_err *err);
/* Owns the state that a checkpoint held for optimizers other than the one that it was loaded for,
 * until theirs is loaded. */
extern const char tl_opt_elsewhere;

/* The prefixes of the buffers that hold an optimizer's state of a parameter; NULL after the last.
 */
static inline const char *tl_opt_kind(int i)
{
    static const char *const kind[] = {"master.", "sgd.b.", "adamw.m.", "adamw.v.", NULL};
    return kind[i];
}

/* The parameter whose state a tensor of that name would be; "" for other names. */
static inline const char *tl_opt_state_of(const char *name)
{
    for (int i = 0; tl_opt_kind(i) != NULL; i++)
        if (strncmp(name, tl_opt_kind(i), strlen(tl_opt_kind(i))) == 0)
            return name + strlen(tl_opt_kind(i));
    return "";
}
/* Whether x, a tensor of m, is an optimizer's state of a parameter, or its master. */
static inline bool tl_opt_is_state(tl_model *m, const tl_named *x)
{
    const char *of = x->name == NULL || x->param ? "" : tl_opt_state_of(x->name);
    return *of != '\0' && !tl_is_none(tl_model_find(m, of));
}
/* The owner of state; NULL of other tensors, and of masters. */
static inline const void *tl_opt_state_owner(tl_model *m, const tl_named *x)
{
    return tl_opt_is_state(m, x) ? tl_buffer_take(m, x->name, NULL) : NULL;
}

/* A walk over a model's tensors that cuts its parameters, frozen or not, into parts of about as
 * many bytes each, in order of name. */
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

/* The part of p, the next tensor of the model. */
static inline int tl_opt_part(tl_opt_cut *c, const tl_named *p)
{
    const int64_t n = tl_opt_bytes(p), middle = c->before + n / 2;
    c->before += n;
    return c->all > 0 && c->parts > 1 ? (int)((double)middle / ((double)c->all + 1) * c->parts) : 0;
}

/* The names of the n parameters that o leaves to other parts, in order; free it with tl_free_raw.
 * NULL: no memory. */
const char **tl_opt_others(const tl_opt *o, int *n);

/* ---- checkpoints ---- */

enum {
    TL_GRADIENT_DOT = '\x7f',
    TL_GRADIENT_KIND = 256,
    TL_GRADIENT_NAME = TL_NAME_MAX + TL_GRADIENT_KIND + 32
};

/* How every call of a checkpoint begins. t and opt may be NULL. */
tl_status tl_checkpoint_begin(tl_model *m, tl_tape *t, const tl_opt *opt, const char *who);

#endif
