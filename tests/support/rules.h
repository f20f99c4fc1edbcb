/* rules.h: for tests of pattern replacement - reading reports, switching rules, a small model, and
 * the programs and rules that several files use. */
#ifndef TESTS_SUPPORT_RULES_H
#define TESTS_SUPPORT_RULES_H

#include "tests/support/both.h"

#define PROGRAM(name)                                                                      \
    static void name(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, \
                     void *ctx)
#define UNUSED (void)n_in, (void)n_out, (void)ctx

/* The text has that part, or has it not. */
void expect_text(const char *text, const char *part);
void expect_no_text(const char *text, const char *part);
/* f, whose context is m, is not replaced, for that reason, and gives its bits. */
void expect_refused(tl_model *m, tl_program *f, const tl_tensor *in, int n_in, int n_out,
                    const char *why);

/* Adds a rule, or switches it on again when the group runs twice. */
void rule_on(const tl_replacement *o);
void rule_off(const tl_replacement *o);
bool rule_yes(const tl_match *m, void *ctx); /* an extra_check that agrees */

/* Parameters: any name [8], "w" [8, 8], both f32. */
tl_tensor rule_gamma(tl_tape *t, tl_model *m, const char *name);
tl_tensor rule_weight(tl_tape *t, tl_model *m);
/* A loss of y with backward; out: loss, the gradients of gamma and w. */
void rule_trained(tl_tape *t, tl_model *m, tl_tensor y, tl_tensor *out);

tl_program rule_written_swiglu;       /* silu(a) * b */
tl_program rule_turned_swiglu;        /* b * silu(a) */
tl_program rule_swiglu;               /* swiglu(a, b) */
tl_program rule_twice_used;           /* x * y - x */
tl_program rule_twice_used_otherwise; /* -(x - x * y) */
tl_program rule_scale_by_2;           /* 2 * x */
tl_program rule_add_itself;           /* x + x */

extern const tl_pattern_arg rule_one_arg[1];
extern const tl_replacement rule_doubled; /* "test_double": 2 * x becomes x + x, exact */

#endif
