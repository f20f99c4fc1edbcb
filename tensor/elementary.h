/* elementary.h: the f64 functions of the contract (NUMERICS 2.3) for numbers that are computed
 * outside ops - a schedule of your own, a table. Public. The same bits everywhere, as no libm
 * promises. */
#ifndef TL_ELEMENTARY_H
#define TL_ELEMENTARY_H

#include "tensor/status.h"
TL_BEGIN

double tl_f64_exp(double x);
double tl_f64_log(double x);
double tl_f64_sin(double x);
double tl_f64_cos(double x);
TL_END
#endif
