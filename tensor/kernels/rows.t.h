/* rows.t.h: all row kernels of one compute type; rows.k.c explains the parameters. */
#include "tensor/kernels/sums.t.h"
#include "tensor/kernels/folds.t.h"
#include "tensor/kernels/norm.t.h"
#include "tensor/kernels/softmax.t.h"
#include "tensor/kernels/rotary.t.h"
#include "tensor/kernels/swiglu.t.h"
#include "tensor/kernels/recur.t.h"
#include "tensor/kernels/optimize.t.h"
#undef T
#undef I
#undef V
#undef H
#undef F
#undef M
#undef SQRT
#undef RSQRT
#undef LOG
