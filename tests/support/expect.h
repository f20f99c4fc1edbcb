/* expect.h: what tests of ops say again and again. Each fails the running test with a message. */
#ifndef TESTS_SUPPORT_EXPECT_H
#define TESTS_SUPPORT_EXPECT_H

#include "tests/cases/cases.h"

/* The number in the environment, or another where there is none; a word is a failure. */
uint64_t expect_number(const char *name, uint64_t otherwise);
/* TL_TEST_SEED, which repeats a run; 1 without it. */
uint64_t expect_seed(void);
/* How many programs TL_TEST_PROGRAMS asks for: at least one. */
uint64_t expect_programs(uint64_t otherwise);
/* The tape has not failed. */
void expect_no_error(tl_tape *t);
void expect_ok(tl_tape *t, const char *what); /* the same, with a name */
/* The call before failed so, with these words in its message; the tape is fit again afterwards. */
void expect_failure(tl_tape *t, tl_status s, const char *words);
void expect_failure_both(tl_tape *t, tl_status s, const char *first,
                         const char *second); /* with both in it */
/* dtype, shape and bits. */
void expect_bits(tl_tape *t, tl_tensor got, const ref_tensor *want);
/* x and y have one SHA-256. */
void expect_same(tl_tape *t, tl_tensor x, tl_tensor y, const char *what);
/* Element i of x, widened. */
double element_of(tl_tape *t, tl_tensor x, int64_t i);
bool has_shape(tl_tape *t, tl_tensor x, tl_shape want);
/* A leaf of that dtype with the values of a f64 tensor; one of normal values, drawn by name. */
tl_tensor leaf_of(tl_tape *t, tl_tensor wide, tl_dtype d);
tl_tensor noise_leaf(tl_tape *t, const char *name, tl_dtype d, tl_shape s);
/* A leaf of t that wants a gradient. */
tl_tensor trained_leaf(tl_tape *t, const ref_tensor *x);

#endif
