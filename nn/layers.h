/* layers.h: small things that layers share. Private to nn/. */
#ifndef TL_NN_LAYERS_H
#define TL_NN_LAYERS_H

#include "nn/nn.h"

enum { TL_NAME_MAX = 192 };

/* "a.b" in buf; returns buf. Too long is an error on the tape (TL_ENAME). */
const char *tl_join(tl_tape *t, char buf[TL_NAME_MAX], const char *a, const char *b);
/* scale/sqrt(n), in the right floating-point environment whatever the caller's. */
double tl_inv_sqrt(double scale, int64_t n);
/* A linear layer PREFIX.NAME without bias, drawn normal with deviation scale/sqrt(inputs). */
tl_tensor tl_project(tl_tape *t, tl_model *m, const char *prefix, const char *name, tl_tensor x, int64_t outputs, double scale);

#endif
