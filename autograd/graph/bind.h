/* bind.h: what a run takes from outside and leaves there. Private to autograd/graph/. */
#ifndef TL_BIND_H
#define TL_BIND_H

#include "autograd/graph/internal.h"

/* The program asked for gradients when as many waited on the user's tape as do now. Else *which is
 * one of which that is not so. */
bool tl_bind_gradients_fit(const tl_graph *g, tl_tensor *which);
/* The gradients that wait on the user's tape are those the graph goes on with. */
tl_status tl_bind_check_gradients(tl_graph *g, tl_at at);
/* Every root outside the slab gets its memory, and every array there its address. */
tl_status tl_bind_all(tl_graph *g, const tl_tensor *in);
/* The steps have run: gradients are left on the user's tape, or consumed. */
tl_status tl_bind_gradients_over(tl_graph *g);
/* The storage of an accumulator. */
tl_storage *tl_bind_accumulated(tl_graph *g, const tl_root *r);

#endif
