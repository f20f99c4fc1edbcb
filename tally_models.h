/* tally_models.h: tally.h, and models and tokenizers in the files of other programs. */
#ifndef TALLY_MODELS_H
#define TALLY_MODELS_H

#include "tally.h"

#include "nn/models.h"

#endif
