/* environment.h: the variables of the environment that the library reads. */
#ifndef TL_ENVIRONMENT_H
#define TL_ENVIRONMENT_H

#include "tensor/status.h"

enum { TL_THREADS_MOST = 256 };

/* TL_EUSAGE if TL_ISA is the name of no level that this processor has, or TL_THREADS no whole
 * number from 0 to TL_THREADS_MOST. */
tl_status tl_environment_check(tl_err *err);

#endif
