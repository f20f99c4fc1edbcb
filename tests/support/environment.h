/* environment.h: floating-point environments that a caller may have. */
#ifndef TESTS_SUPPORT_ENVIRONMENT_H
#define TESTS_SUPPORT_ENVIRONMENT_H

#include <stdbool.h>

/* How many there are; the first is the usual one. */
int environments(void);
const char *environment_name(int e);
void environment_enter(int e);
/* Back to the usual one; whether e was still as it should be. */
bool environment_leave(int e);

#endif
