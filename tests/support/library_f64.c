#include "tests/support/library_f64.h"

#include "tensor/isa.h"

static double exp_f64(double x)
{
    tl_isa_at(0)->math->exp64(1, &x, &x);
    return x;
}

static double log_f64(double x)
{
    tl_isa_at(0)->math->log64(1, &x, &x);
    return x;
}

static double sin_f64(double x)
{
    tl_isa_at(0)->math->sin64(1, &x, &x);
    return x;
}

static double cos_f64(double x)
{
    tl_isa_at(0)->math->cos64(1, &x, &x);
    return x;
}

static double tanh_f64(double x)
{
    tl_isa_at(0)->math->tanh64(1, &x, &x);
    return x;
}

static double sigmoid_f64(double x)
{
    tl_isa_at(0)->math->sigmoid64(1, &x, &x);
    return x;
}

static double rsqrt_f64(double x)
{
    tl_isa_at(0)->math->rsqrt64(1, &x, &x);
    return x;
}

static double pow_f64(double x, double e)
{
    tl_isa_at(0)->math->pow64(1, &x, e, &x);
    return x;
}

const ref_f64_table library_f64 = {exp_f64,  log_f64,     sin_f64,   cos_f64,
                                   tanh_f64, sigmoid_f64, rsqrt_f64, pow_f64};
