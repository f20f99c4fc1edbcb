/* functions.h: functions to be differentiated, and leaves for them, on the tape of fresh.h. */
#ifndef TESTS_SUPPORT_FUNCTIONS_H
#define TESTS_SUPPORT_FUNCTIONS_H

#include <math.h>

#include "tests/support/expect.h"
#include "tests/support/fresh.h"

/* A function of tensors in[] on the tape `on`, as tl_gradcheck takes it. */
#define FUNCTION(name, call)                                                  \
    static tl_tensor name(tl_tape *on, const tl_tensor *in, int n, void *ctx) \
    {                                                                         \
        (void)on, (void)n, (void)ctx;                                         \
        return call;                                                          \
    }

static inline tl_tensor sum(tl_tensor x) { return tl_sum(t, x, TL_ALL, false); }

/* F32 or F64; its values differ from one another and from 0. */
static inline tl_tensor random_leaf(tl_dtype d, tl_shape s)
{
    tl_tensor x = tl_zeros(t, d, s);
    tl_array a;
    assert_true(tl_array_of(t, x, &a));
    for (int64_t i = 0; i < tl_array_count(&a); i++) {
        double v = sin((double)i * 1.3 + 0.4);
        if (d == TL_F64)
            ((double *)a.data)[i] = v;
        else
            ((float *)a.data)[i] = (float)v;
    }
    return x;
}

#endif
