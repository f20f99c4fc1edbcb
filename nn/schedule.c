/* schedule.c: learning rates as f64 formulas (NUMERICS 12.5). */
#include <math.h>

#include "nn/nn.h"
#include "tensor/elementary.h"
#include "tensor/threads.h"

/* a - b, or the nearest number that there is. */
static int64_t less(int64_t a, int64_t b)
{
    int64_t d;
    return __builtin_sub_overflow(a, b, &d) ? (b < 0 ? INT64_MAX : INT64_MIN) : d;
}

static __attribute__((noinline)) double rate(const tl_schedule *s, double lr, int64_t step)
{
    if (step < s->warmup)
        return (lr * (double)less(step, -1)) / (double)s->warmup;
    if (s->kind == TL_CONSTANT)
        return lr;
    double low = lr * s->min_ratio, u = 1;
    int64_t start = s->kind == TL_WARMUP_STABLE_DECAY ? less(s->total, s->decay) : s->warmup;
    if (step < start)
        return lr;
    if (s->kind != TL_COSINE) {
        if (step < s->total)
            u = (double)less(step, start) / (double)less(s->total, start);
        return low + (lr - low) * (1 - u);
    }
    if (step < s->total)
        u = (double)less(step, s->warmup) / (double)less(s->total, s->warmup);
    return low + (0.5 * (lr - low)) * (1 + tl_f64_cos(0x1.921fb54442d18p+1 * u)); /* pi, rounded */
}

double tl_schedule_lr(const tl_schedule *s, double lr, int64_t step)
{
    if (s == NULL)
        return (double)NAN;
    tl_fpenv saved = tl_fpenv_enter();
    double r = rate(s, lr, step);
    tl_fpenv_leave(saved);
    return r;
}
