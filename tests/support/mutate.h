/* mutate.h: damages what one op's vjp gives, so that a test can show that the damage is noticed. */
#ifndef TESTS_SUPPORT_MUTATE_H
#define TESTS_SUPPORT_MUTATE_H

#include "autograd/observer.h"

typedef enum {
    TL_MUTATE_SIGN,
    TL_MUTATE_FACTOR,
    TL_MUTATE_DROP,
    TL_MUTATE_SWAP,
    TL_MUTATE_UNBROADCAST,
    TL_MUTATE_COUNT
} tl_mutation_kind;
typedef struct {
    const tl_op *op;
    int input;
    tl_mutation_kind kind;
    int applied; /* changes made */
    int equal;   /* and those that would have left the bits as they were */
} tl_mutation;

/* To be attached with a tl_mutation as context. */
extern const tl_observer tl_mutator;

#endif
