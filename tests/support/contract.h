/* contract.h: what a test has shown, written down for a table made from it.
 *
 * Where the environment variable TL_CONTRACT names a file, each call appends a line to it, once per
 * process: OP <tab> AXIS <tab> ran                 a comparison on this axis was made and agreed OP
 * <tab> AXIS <tab> failed              one did not; it outweighs any number of "ran" OP <tab> AXIS
 * <tab> none <tab> REASON   the axis is not claimed for the op OP <tab> AXIS <tab> only <tab> LIMIT
 * what ran on the axis holds within this limit and without it nothing happens. A line is one write,
 * so several processes may share a file. OP is the name in ops/list.h. AXIS: reference (the naive
 * reference, forward), reference-grad; level NAME (vector level NAME against the reference); and
 * from test_invariance: rows (position and size of the batch), micro-batch, padding-left and
 * padding-right (rows), terms-left and terms-right (within a row), threads, layout (misaligned,
 * strided and transposed inputs), all of forward and backward; all bf16, all f16, all f32 (every
 * input there is). More may be added by any test. */
#ifndef TESTS_SUPPORT_CONTRACT_H
#define TESTS_SUPPORT_CONTRACT_H

void tl_ran(const char *op, const char *axis);
void tl_ran_failed(const char *op, const char *axis);
void tl_ran_none(const char *op, const char *axis, const char *reason);
void tl_ran_only(const char *op, const char *axis, const char *limit);

#endif
