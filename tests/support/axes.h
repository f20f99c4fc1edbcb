/* axes.h: axes of invariance - what the property tests compared, op by op.
 *
 * A test runs a case twice in different circumstances and compares; every op on the tape then
 * counts as tested on that axis, the ops of its backward among them. tl_axes_finish wants an answer
 * for every listed op on every axis: tested, or a mark with a reason (axes_none.c). */
#ifndef TESTS_SUPPORT_AXES_H
#define TESTS_SUPPORT_AXES_H

#include "tests/cases/cases.h"

/* rows: any rows of the batch, in any order. micro-batch: a parameter's gradient over parts of the
 * batch. padding: rows without cotangent before (left) and after (right) the batch. terms: terms
 * that count for nothing before and after those of a row. layout: inputs off alignment, strided,
 * transposed. */
#define AXES(X)                 \
    X(rows, "rows")             \
    X(micro, "micro-batch")     \
    X(left, "padding-left")     \
    X(right, "padding-right")   \
    X(terms_left, "terms-left") \
    X(terms_right, "terms-right") X(threads, "threads") X(layout, "layout")
#define X(id, text) AXIS_##id,
typedef enum { AXES(X) AXIS_COUNT } test_axis;
#undef X

/* A test: reads and prints the seed; counts; asserts that all agreed. */
void tl_axes_begin(void);
uint64_t tl_axes_seed(void);
void tl_axes_end(void);

/* The ops on t were compared on an axis since the last call, and all agreed or not. */
void tl_axes_ran(const tl_tape *t, test_axis axis);
void tl_axes_ran_too(const tl_tape *t, test_axis axis); /* the same comparisons on one more axis */
/* Prints what lacks an answer, or has two; how many that are. */
int tl_axes_finish(void);

void tl_axes_complain(const char *label, const char *what, int k, const char *detail);
void tl_axes_same(const char *label, const char *what, int k, const ref_tensor *got,
                  const ref_tensor *want);
void tl_axes_same_results(const char *label, const case_result *got, const case_result *want);
bool tl_axes_failed(tl_tape *t, const char *label); /* and clears the error */

/* Bodies: one run of one case. */
typedef void axis_body(tl_tape *t, const case_run *r, uint64_t *state, case_kind kind);
axis_body tl_axis_padding, tl_axis_layout;
/* Ops whose rows have terms: sums, extremes, softmax, losses, products, attention. */
void tl_axis_terms(void);
void tl_axis_losses(void);

/* Marks: the reason why an axis is not claimed for an op, or NULL. */
const char *tl_axis_none(const char *op, test_axis axis);

#endif
