/* attention_problem.h: sizes and tensors of an attention, of any strides; kernels run on it, and
 * the reference. */
#ifndef TESTS_SUPPORT_ATTENTION_PROBLEM_H
#define TESTS_SUPPORT_ATTENTION_PROBLEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor/kernels/attention.h"

enum { Q, K, V, DOUT, O, DQ, DK, DV, TENSORS };
enum { BSHD, BHSD, GAPS, LAYOUTS };

typedef struct {
    int64_t sb, sh, ss, count;
    char *data;
} attention_tensor;

typedef struct {
    int64_t batch, q_heads, kv_heads, q_len, kv_len, dim;
    bool causal, f64;
    double scale;
    int64_t *start, *end;
    int layout;
    attention_tensor x[TENSORS];
} attention_problem;

/* PLAIN: between -2 and 2. SPECIAL: now and then zeros of both signs, tiny, huge, infinite, NaN.
 * TINY: the smallest magnitude there is, so that sums of products end in -0. */
enum { PLAIN, SPECIAL, TINY };

/* TL_TEST_SEED; a test starts from it. */
uint64_t attention_seed(void);
void attention_start(void);

/* Everything allocated; inputs drawn; outputs full of a value that must survive between their
 * elements. */
attention_problem attention_make(attention_problem p, int kind);
void attention_drop(attention_problem *p);
/* The same inputs (shared), outputs of its own as they were. */
attention_problem attention_twin(const attention_problem *p);
void attention_drop_twin(attention_problem *t);

size_t attention_bytes(const attention_problem *p); /* of an element */
double attention_get(const attention_problem *p, int x, int64_t b, int64_t h, int64_t s, int64_t d);
void attention_set(const attention_problem *p, int x, int64_t b, int64_t h, int64_t s, int64_t d,
                   double value);

/* Forward and backward: the reference; a kernel, last task first, in scratch full of NaNs. */
void attention_reference(const attention_problem *p);
tl_attention_args attention_args_of(const attention_problem *p);
void attention_run(const tl_attention_table *table, const tl_attention_args *a);

#endif
