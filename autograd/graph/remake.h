/* remake.h: a value computed a second time, later in the plan. Private to autograd/graph/. */
#ifndef TL_REMAKE_H
#define TL_REMAKE_H

#include "autograd/graph/touches.h"

/* How many values computing result 0 of s again reads, and which; NULL for an absent one. */
int tl_remake_sources(const tl_plan_step *s);
const tl_spot *tl_remake_source(const tl_graph *g, const tl_plan_step *s, int k);
/* Step i once more, just before step `at`: from there on its value is found in the memory of that.
 */
tl_status tl_remake_before(tl_touches *t, uint32_t i, uint32_t at);
/* The uses of step i's value from step `after` on take it from the step of its gradient, if there
 * is one that can give it, and they can all come behind that; else nothing changes. */
tl_status tl_remake_in_gradient(tl_touches *t, uint32_t i, uint32_t after);
tl_status tl_remake_no_memory(tl_graph *g, const tl_plan_step *s);

#endif
