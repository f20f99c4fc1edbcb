/* simplify.h: what simplify.c and constants.c share. Private to autograd/graph/. */
#ifndef TL_SIMPLIFY_H
#define TL_SIMPLIFY_H

#include "autograd/graph/internal.h"

typedef struct {
    tl_graph *g;
    bool *written;   /* by root: some node changes it in place */
    bool *given;     /* by root: handed out after a run; it stays a memory of its own */
    int64_t *change; /* by root: the last node so far that changed it, -1 */
    tl_array *known; /* by value: its contents, while the graph is made; data NULL: not known */
    uint32_t cap;    /* values there is room for */
    uint32_t *bucket, *next, mask; /* nodes by hash, ended by UINT32_MAX */
} tl_simplifier;

/* y is never changed nor handed out: another value may stand for it. */
bool tl_simplify_free(tl_simplifier *s, tl_tensor y);
/* From now on x stands for y. */
void tl_simplify_same(tl_simplifier *s, tl_tensor y, tl_tensor x);

/* constants.c: node n's results are computed now, if all it reads is known; true if they are. */
bool tl_simplify_fold(tl_simplifier *s, const tl_node *n);
/* The one number that all of x holds, if that is known. */
bool tl_simplify_uniform(const tl_simplifier *s, tl_tensor x, double *value);

#endif
