/* internal.h: what the table of kernels asks the probe. */
#ifndef TL_KERNELS_INTERNAL_H
#define TL_KERNELS_INTERNAL_H

#include "autograd/internal.h"

/* Something to compare it on exists: its own probe, the library's for its op, or the one of
 * pointwise ops without attributes. */
bool tl_kernel_has_probe(const tl_kernel *k);
/* Probes a kernel on dtype, or on every float it can do; as tl_kernel_check. */
int tl_kernel_probe(const tl_kernel *k, tl_dtype dtype, char *buf, size_t cap);

#endif
