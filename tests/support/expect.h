/* expect.h: what tests of ops say again and again. Each fails the running test with a message. */
#ifndef TESTS_SUPPORT_EXPECT_H
#define TESTS_SUPPORT_EXPECT_H

#include "tests/cases/cases.h"

/* TL_TEST_SEED, which repeats a run; 1 without it. */
uint64_t expect_seed(void);
/* The tape has not failed. */
void expect_no_error(tl_tape *t);
/* The call before failed so, with these words in its message; the tape is fit again afterwards. */
void expect_failure(tl_tape *t, tl_status s, const char *words);
/* dtype, shape and bits. */
void expect_bits(tl_tape *t, tl_tensor got, const ref_tensor *want);
/* A leaf of t that wants a gradient. */
tl_tensor trained_leaf(tl_tape *t, const ref_tensor *x);

#endif
