/* own_kernels.h: kernels such as a user registers - products right and spoilt in several ways,
 * pointwise ones - and which ran. */
#ifndef TESTS_SUPPORT_OWN_KERNELS_H
#define TESTS_SUPPORT_OWN_KERNELS_H

#include <tally_extend.h>

#include "tests/support/expect.h"

/* The chain of NUMERICS 5, as naively as it stands there, spoilt in one of several ways. */
typedef enum {
    RIGHT,
    HALVES,
    TWO_ROUNDINGS,
    MINUS_ZERO,
    FORGETS,
    IN_F64,
    BACKWARDS,
    FAULTS
} own_fault;

/* "test-right", "test-halves" ... of matmul in f32: all declare the contract's bits. */
extern const tl_kernel own_declared[FAULTS];
/* "test-own": HALVES again, with bits of its own. */
extern const tl_kernel own_bits;
tl_status own_matmul(tl_call *c);   /* the one that is RIGHT */
void own_doubled(const tl_tile *k); /* twice its input */

/* Products and doublings that ran. */
extern int own_calls;
/* Registers all, once, for the table belongs to the process; own_calls is 0 afterwards. */
void own_kernels(tl_tape *t);

/* x was computed by: "OP DTYPE KERNEL"; the library's kernel at the level that runs now: "OP
 * DTYPE". */
void expect_kernel(tl_tape *t, tl_tensor x, const char *want);
void expect_library(tl_tape *t, tl_tensor x, const char *op_and_dtype);

tl_tensor own_numbers(tl_tape *t, tl_dtype d, int64_t rows, int64_t cols, int k); /* [rows, cols] */
tl_tensor own_weight(tl_tape *t, tl_model *m, const char *name, int64_t rows,
                     int64_t cols); /* a parameter, f32 */
tl_tensor own_total(tl_tape *t, tl_tensor x);
tl_tensor own_product(tl_tape *t, tl_dtype d); /* [5, 300] times [300, 6] */
void own_hash(tl_tape *t, tl_tensor x, char hex[65]);

#endif
