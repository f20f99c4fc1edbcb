/* plan.h: the parts of a plan. Private to autograd/graph/. */
#ifndef TL_PLAN_H
#define TL_PLAN_H

#include "autograd/graph/internal.h"

/* steps.c */
tl_status tl_plan_steps(tl_graph *g);
tl_status tl_plan_step_of(tl_graph *g, uint32_t node, tl_plan_step *s);
/* Gives a the dims of x, and p the place where x lies. */
tl_status tl_plan_spot(tl_graph *g, tl_spot *p, tl_array *a, tl_tensor x, bool written);
/* s reads or writes that memory; or only: writes it. */
bool tl_step_touches(const tl_plan_step *s, uint32_t root, bool only_writes);
/* Two neighbours may change places: neither writes what the other touches. */
bool tl_steps_may_swap(const tl_plan_step *a, const tl_plan_step *b);
/* s does nothing but continue an accumulator. */
bool tl_step_folds(const tl_graph *g, const tl_plan_step *s);
void tl_plan_hoist_folds(tl_graph *g);

/* again.c: values kept for backward that are cheaper computed again. */
tl_status tl_plan_again(tl_graph *g);

/* slab.c: roots' lives, and a place in the slab for each. */
tl_status tl_plan_slab(tl_graph *g);

#endif
