/* samples.h: for ops that make tensors beside one that has samples. */
#ifndef TL_BATCH_SAMPLES_H
#define TL_BATCH_SAMPLES_H

#include "autograd/tape.h"

/* y, which was just made for x, has the samples of x, along that axis: as many, even where a
 * reshape has merged them with what follows. Nothing happens if x has none. */
void tl_batch_samples_of(tl_tape *t, tl_tensor y, tl_tensor x, int axis);

#endif
