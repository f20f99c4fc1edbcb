/* example_fit_line.c: see example.h. */
#include "tests/support/example.h"

#include <stdio.h>

static int example_main(int argc, char **argv);
static example seen;

#define main example_main
#define printf(...) (void)snprintf(NULL, 0, __VA_ARGS__)
#undef tl_free
#define tl_free(opt, t, m) example_end(&seen, opt, t, m, (tl_tensor[]){in, want})
#include "examples/fit_line.c"

static tl_opt *optimizer(tl_model *m) { return tl_sgd_new(m, .lr = 0.1, .momentum = 0.9); }

static void step(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    example_run *r = ctx;
    (void)n_in, (void)n_out;
    out[0] = error_of(t, r->m, in[0], in[1]);
    tl_backward(t, out[0]);
    tl_step(r->opt, t);
}

example example_fit_line(void)
{
    seen = (example){.name = "fit_line", .step = step, .optimizer = optimizer, .steps = STEPS};
    example_main(1, NULL);
    return seen;
}
