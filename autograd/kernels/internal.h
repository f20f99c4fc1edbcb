/* internal.h: what table.c asks probe.c. */
#ifndef TL_KERNELS_INTERNAL_H
#define TL_KERNELS_INTERNAL_H

#include "autograd/internal.h"

/* Whether there are calls to compare the kernel on: from its own probe, from the library's for its
 * op, or because the op is pointwise and has no attributes. */
bool tl_kernel_has_probe(const tl_kernel *k);
/* Probes a kernel on dtype, or on every float that it can do; returns what tl_kernel_check does. */
int tl_kernel_probe(const tl_kernel *k, tl_dtype dtype, char *buf, size_t cap);

#endif
