/* tally_data.h: tally.h, and data to train on - arrays from files, and batches of them. */
#ifndef TALLY_DATA_H
#define TALLY_DATA_H

#include "tally.h"

#include "nn/loader.h"
#include "tensor/files/arrays.h"

#endif
