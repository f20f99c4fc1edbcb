/* walker.h: nodes of a backward or an update, numbered in canonical order for a log. Private to
 * autograd/.
 *
 * C may record its calls in any order: what was recorded is walked from its results, inputs first,
 * left to right. */
#ifndef TL_LOG_WALKER_H
#define TL_LOG_WALKER_H

#include "autograd/log/state.h"

/* The nodes from mark on, walked in post-order from roots. */
typedef struct {
    tl_tape *t;
    uint32_t mark;
    tl_postorder order;
    tl_log_key key; /* of the last result */
} tl_log_walker;

/* Of the nodes from mark on; of those of an update, if key says so. */
void tl_log_walker_begin(tl_log_walker *w, tl_tape *t, uint32_t mark, tl_log_key key);
/* The walk is about this node. */
bool tl_log_walker_has(const tl_log_walker *w, int32_t node);
/* Everything below root that has no key yet gets one, and an entry with its bytes. */
void tl_log_walker_walk(tl_log_walker *w, tl_tensor root);
#endif
