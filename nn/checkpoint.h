/* checkpoint.h: what saving and loading share. Private to nn/. */
#ifndef TL_NN_CHECKPOINT_H
#define TL_NN_CHECKPOINT_H

#include "nn/layers.h"
#include "nn/opt.h"
#include "tensor/files/safetensors.h"

static inline const char *tl_opt_kind(const tl_opt *o)
{
    return !o->adamw ? "sgd" : o->coupled ? "adam" : "adamw";
}

#endif
