/* environment.h: checks the environment variables that the library reads. */
#ifndef TL_ENVIRONMENT_H
#define TL_ENVIRONMENT_H

#include "tensor/status.h"

enum { TL_THREADS_MOST = 256 };

/* TL_EUSAGE if TL_ISA names a level that this build or processor lacks (isa.c), or if TL_THREADS is
 * not a whole number from 0 to TL_THREADS_MOST (threads.c). */
tl_status tl_isa_check(tl_err *err);
tl_status tl_threads_check(tl_err *err);

#endif
