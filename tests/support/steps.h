/* steps.h: how much work some files have done, such as the readers of logs. The runner's copies of
 * them (COUNTED in the Makefile) count each block of code that they enter, and each byte that they
 * set. */
#ifndef TL_STEPS_H
#define TL_STEPS_H

#include <stdint.h>

int64_t steps_taken(void);

#endif
