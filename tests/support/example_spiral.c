/* example_spiral.c: see example.h. */
#include "tests/support/example.h"

#include <stdio.h>

static int example_main(int argc, char **argv);
static example seen;

#define main example_main
#define printf(...) (void)snprintf(NULL, 0, __VA_ARGS__)
#undef tl_free
#define tl_free(opt, t, m) example_end(&seen, opt, t, m, (tl_tensor[]){in, want})
#include "examples/spiral.c"

static tl_opt *optimizer(tl_model *m)
{
    return tl_adamw_new(m, .lr = 1e-2, .schedule = {TL_COSINE, .warmup = 20, .total = STEPS});
}

static void step(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    example_run *r = ctx;
    (void)n_in, (void)n_out;
    out[0] = tl_cross_entropy(t, network(t, r->m, in[0]), in[1], TL_MEAN);
    tl_backward(t, out[0]);
    tl_step(r->opt, t);
}

example example_spiral(void)
{
    seen = (example){.name = "spiral", .step = step, .optimizer = optimizer, .steps = STEPS};
    example_main(1, NULL);
    return seen;
}
