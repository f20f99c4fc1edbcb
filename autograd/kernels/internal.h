/* internal.h: what table.c, probe.c and select.c share. */
#ifndef TL_KERNELS_INTERNAL_H
#define TL_KERNELS_INTERNAL_H

#include "autograd/internal.h"

/* ---- table.c ---- */

/* The probe's verdict on a kernel that declares the contract's bits. */
enum { TL_UNPROBED, TL_OBEYS, TL_REFUSED };

typedef struct {
    const tl_kernel *k;
    _Atomic int verdict;      /* written under a lock of select.c */
    char why[TL_MESSAGE_MAX]; /* if refused */
} tl_kernel_entry;

/* What this thread probes. It runs, though there is no verdict yet. */
extern _Thread_local const tl_kernel *tl_kernel_probed;
/* Row i; NULL past the end. The ops' own kernels, "invariant", have no rows here. */
tl_kernel_entry *tl_kernel_entry_at(int i);
/* Whether the kernel has that name, can do that op (NULL: any) on that dtype, and its vector level
 * runs now. "fast" names every shipped kernel with bits of its own. */
bool tl_kernel_matches(const tl_kernel *k, const char *op, tl_dtype dtype, const char *name);
/* The kernel that is probed, else that of the highest level; with `all` whatever a probe says.
 * NULL: there is none. */
const tl_kernel *tl_kernel_find(const char *op, tl_dtype dtype, const char *name, bool all);
/* The kernel's own probe, or the library's for its op; NULL: there is neither. */
tl_probe *tl_kernel_probe_of(const tl_kernel *k);
/* The dtype by which a node's kernel was selected (kernel.h). */
tl_dtype tl_node_dtype(const tl_node *n);
/* Whether there are calls to compare the kernel on: from its own probe, from the library's for its
 * op, or because the op is pointwise and has no attributes. */
bool tl_kernel_has_probe(const tl_kernel *k);

/* ---- probe.c ---- */

/* Probes a kernel on dtype, or on every float that it can do; returns what tl_kernel_check does, or
 * TL_NO_ROOM when out of memory, which is no verdict. */
enum { TL_NO_ROOM = -2 };
int tl_kernel_probe(const tl_kernel *k, tl_dtype dtype, char *buf, size_t cap);

#endif
