/* elementary.c: see elementary.h. Each call runs in the floating-point environment of the contract.
 * The functions are not inlined, so that none of their operations can move out of it. */
#include "tensor/elementary.h"

#include "tensor/kernels/math64.h"
#include "tensor/threads.h"

static __attribute__((noinline)) double exp_of(double x) { return tl_exp64(x); }
static __attribute__((noinline)) double log_of(double x) { return tl_log64(x); }
static __attribute__((noinline)) double sin_of(double x) { return tl_sin64(x); }
static __attribute__((noinline)) double cos_of(double x) { return tl_cos64(x); }

static double call(double (*f)(double), double x)
{
    tl_fpenv saved = tl_fpenv_enter();
    double y = f(x);
    tl_fpenv_leave(saved);
    return y;
}

double tl_f64_exp(double x) { return call(exp_of, x); }
double tl_f64_log(double x) { return call(log_of, x); }
double tl_f64_sin(double x) { return call(sin_of, x); }
double tl_f64_cos(double x) { return call(cos_of, x); }
