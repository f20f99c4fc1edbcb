/* example_signs.c: see example.h. */
#include "tests/support/example.h"

#include <stdio.h>

static int example_main(void);
static example seen;

#define main example_main
#define printf(...) (void)snprintf(NULL, 0, __VA_ARGS__)
#undef tl_free
#define tl_free(opt, t, m) example_end(&seen, opt, t, m, in)
#undef tl_save
#define tl_save(m, path) TL_OK                /* no file here */
#pragma GCC diagnostic ignored "-Wconversion" /* as the Makefile does for the program as printed \
                                               */
#include "examples/signs.c"

static tl_opt *optimizer(tl_model *m) { return tl_adamw_new(m, .lr = 1e-2); }

static void step(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    example_run *r = ctx;
    (void)n_in, (void)n_out;
    out[0] = mlp(t, in, 2, r->m);
    tl_backward(t, out[0]);
    tl_step(r->opt, t);
}

example example_signs(void)
{
    seen = (example){.name = "signs", .step = step, .optimizer = optimizer, .steps = 500};
    example_main();
    return seen;
}
