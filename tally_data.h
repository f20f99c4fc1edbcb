/* tally_data.h: tally.h, and data to train on: arrays from files, batches of them, and random
 * numbers. */
#ifndef TALLY_DATA_H
#define TALLY_DATA_H

#include "tally.h"

#include "nn/loader.h"
#include "tensor/files/arrays.h"
#include "tensor/rng.h"

#endif
