/* skip.h: a test that cannot run here says so, and is counted neither as passed nor as failed. */
#ifndef TESTS_SUPPORT_SKIP_H
#define TESTS_SUPPORT_SKIP_H

#include <stddef.h>

extern size_t tl_tests_skipped; /* runner.c */

#define TL_SKIP() (tl_tests_skipped++, skip())

#endif
