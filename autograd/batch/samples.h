/* samples.h: for ops that make tensors beside one that has samples. */
#ifndef TL_BATCH_SAMPLES_H
#define TL_BATCH_SAMPLES_H

#include "autograd/tape.h"

/* Declares that y, which was just made in a shape taken from x, has x's samples along that axis: as
 * many, even if a reshape has merged them with what follows. If x has none but is made of
 * parameters and constants alone, so is y, provided that y's inputs are, too. */
void tl_batch_samples_of(tl_tape *t, tl_tensor y, tl_tensor x, int axis);

#endif
