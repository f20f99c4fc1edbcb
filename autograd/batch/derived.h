/* derived.h: derived values as derived.c keeps them and settle.c finds them. Private to
 * autograd/batch/. */
#ifndef TL_DERIVED_H
#define TL_DERIVED_H

#include "autograd/batch.h"

/* The value of the lasting tape that shows how `leaf` was made; TL_NONE: none does. */
tl_tensor tl_derived_made(const tl_tape *t, tl_tensor leaf);
/* 1 + the versions of all parameters that x of the lasting tape is made of. Versions only grow, so
 * an equal sum tells that nothing has changed. reach: t's records of these are marked as reached.
 */
uint32_t tl_derived_versions(tl_tape *t, tl_tensor x, bool reach);
/* A tl_follow (walk.h) that stays on the lasting tape l. */
int32_t tl_derived_inside(void *l, const tl_node *n, int k);
/* Gives back the memory that v of the lasting tape keeps. */
void tl_derived_drop(tl_value *v);
/* The print of x; 0 for an absent one. */
uint64_t tl_print_of(const tl_tape *t, tl_tensor x);
uint64_t tl_mix_text(uint64_t h, const char *text);

#endif
