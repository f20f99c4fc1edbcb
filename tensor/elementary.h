/* elementary.h: the contract's f64 functions (NUMERICS 2.3) for numbers computed outside ops, such
 * as a schedule or a table of your own: the same bits everywhere, unlike libm's. Public. */
#ifndef TL_ELEMENTARY_H
#define TL_ELEMENTARY_H

#include "tensor/status.h"
TL_BEGIN

double tl_f64_exp(double x); /* e^x */
double tl_f64_log(double x); /* natural */
double tl_f64_sin(double x); /* of radians */
double tl_f64_cos(double x); /* of radians */
TL_END
#endif
