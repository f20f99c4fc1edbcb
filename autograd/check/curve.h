/* curve.h: error against step, as gradcheck measures and curve.c writes it. */
#ifndef TL_CURVE_H
#define TL_CURVE_H

#include "autograd/check/gradcheck.h"

enum { TL_CURVE_POINTS = 24 };

typedef struct {
    double h[TL_CURVE_POINTS], central[TL_CURVE_POINTS], gap[TL_CURVE_POINTS];
    double analytic, value, error; /* value and error: Ridders' */
} tl_curve;

tl_status tl_curve_write(FILE *f, const tl_curve *c, tl_curve_format format, tl_err *err);

#endif
