/* process.h: settings of the process: its threads, and where memory comes from. Public. */
#ifndef TL_PROCESS_H
#define TL_PROCESS_H

#include <stddef.h>

#include "tensor/status.h"
TL_BEGIN

/* Threads for kernels; they change no bit. At most 256 (more counts as 256); 0 or less: one per
 * core. Default: TL_THREADS in the environment, 0 to 256. Set them while no other thread works. */
void tl_threads_set(int n);
int tl_threads(void);

/* Where memory comes from: "jemalloc", or "aligned_alloc" where the process has none. */
const char *tl_allocator(void);
typedef struct {
    size_t used, peak; /* bytes in use now, and the most so far */
    size_t blocks;     /* in use */
    size_t mapped;     /* bytes that jemalloc holds for them; 0 without it */
    size_t asked;      /* how often no free block was at hand and a new one was allocated */
} tl_memory_stats_t;
TL_END
#endif
