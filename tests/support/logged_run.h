/* logged_run.h: a small training run that writes a log, in as many ways as it can be run, and what
 * tally-diff says about two of them. Its gradients pass through an op that spoils one when asked
 * to. */
#ifndef TESTS_SUPPORT_LOGGED_RUN_H
#define TESTS_SUPPORT_LOGGED_RUN_H

#include <stdbool.h>
#include <stdint.h>

#include <tally.h>

enum { LOGGED_BATCH = 12 }; /* samples a step */

typedef struct {
    int64_t steps, micro_batch, layers,
        flip_at; /* flip_at: the step whose gradient is spoilt; 0: none */
    const char *isa;
    int threads;
    uint64_t seed;
    double lr;             /* 0: 0.01 */
    bool segment, swapped; /* swapped: arguments recorded in another order */
    bool anew;             /* each micro-batch's loss begins anew */
    bool other_data;
    bool compile;     /* its steps are traced and run as graphs */
    bool replaceable; /* in each layer things that a graph puts other ops for */
    tl_log_options log;
} logged_run;

/* Runs it, with a log at path unless that is NULL; the model's hash is in logged_weights. */
void logged_train(const char *path, logged_run r);
extern char logged_weights[65];

/* setup and teardown of a test: a directory of its own, and a file's path in it (four stay good).
 */
int logged_begin(void **unused);
int logged_end(void **unused);
const char *logged_file(const char *name);

/* Runs tally-diff with these arguments in the directory; its exit status. */
int logged_diff(const char *a, const char *b);
int logged_tool(const char *arguments);
/* The test fails unless the last output has, or has not, this text. */
void logged_says(const char *text);
void logged_says_not(const char *text);

#endif
