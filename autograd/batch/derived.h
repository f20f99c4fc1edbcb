/* derived.h: values made of parameters and constants alone, as derived.c keeps them and settle.c
 * finds them. Private to autograd/batch/. */
#ifndef TL_DERIVED_H
#define TL_DERIVED_H

#include "autograd/batch.h"

/* The value of the lasting tape that shows how `leaf` was made; TL_NONE: none does. */
tl_tensor tl_derived_made(const tl_tape *t, tl_tensor leaf);
/* 1 + all versions of what x of the lasting tape is made of: they only grow. reach: t's records of
 * that are told so. */
uint32_t tl_derived_versions(tl_tape *t, tl_tensor x, bool reach);
/* Follows inputs that were made on the lasting tape l. */
int32_t tl_derived_inside(void *l, const tl_node *n, int k);
void tl_derived_drop(tl_value *v); /* its memory */
/* The print of x; 0 for what is absent. */
uint64_t tl_print_of(const tl_tape *t, tl_tensor x);
uint64_t tl_mix_text(uint64_t h, const char *text);

#endif
