/* kernel_table.h: the inside of the table of kernels, shared by autograd/ only. */
#ifndef TL_AUTOGRAD_KERNEL_TABLE_H
#define TL_AUTOGRAD_KERNEL_TABLE_H

#include <stdatomic.h>

#include "autograd/internal.h"
#include "autograd/kernel.h"

/* What a probe said of a kernel that declares the contract's bits. */
typedef enum { TL_UNPROBED, TL_OBEYS, TL_REFUSED } tl_probed;

typedef struct {
    const tl_kernel *k;
    _Atomic int verdict;
    char why[TL_MESSAGE_MAX]; /* it was refused */
} tl_kernel_record;

/* One open or remembered selection. Equal ones of a tape are one record, which lives as long
 * as the tape, so that nodes may point to it. */
struct tl_choice {
    const char *op;   /* NULL: all */
    const char *name; /* "invariant", "fast" or a kernel's */
    tl_dtype dtype;
    const tl_choice *outer;
    tl_choice *next; /* of the tape's records */
};

/* Rows that are not the library's own kernels; NULL past the end. */
tl_kernel_record *tl_kernel_record_at(int i);
/* It can do that op and dtype (NULL and TL_ANY_DTYPE: some) and this processor has its level; name
 * "fast" is any kernel that the library ships with bits of its own. */
bool tl_kernel_matches(const tl_kernel *k, const char *op, tl_dtype dtype, const char *name);
/* The one with the highest level of those that match; NULL if there is none. */
const tl_kernel *tl_kernel_find(const char *op, tl_dtype dtype, const char *name);

/* Opens a scope without probing: name must outlive the tape. False, with an error, if it cannot. */
bool tl_choice_open(tl_at at, const char *op, tl_dtype dtype, const char *name);

/* Something to compare it on exists: its own probe, its op's, or the one of pointwise ops without
 * attributes. */
bool tl_kernel_has_probe(const tl_kernel *k);
/* Probes a kernel on dtype, or on every float it can do; as tl_kernel_check. */
int tl_kernel_probe(const tl_kernel *k, tl_dtype dtype, char *buf, size_t cap);

#endif
