/* example_gradcheck.c: see example.h. */
#include "tests/support/both.h"
#include "tests/support/example.h"

static int example_main(int argc, char **argv);

#define main example_main
#include "examples/gradcheck.c"

static void program(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    (void)n_in, (void)n_out;
    tl_tensor x = tl_param(t, tl_tape_model(t), "x", TL_F32, TL_DIMS(2, 3), .kind = TL_INIT_UNIFORM,
                           .scale = 2);
    out[0] = f(t, &x, 1, ctx);
    tl_backward(t, out[0], .cotangent = in[0]);
    out[1] = tl_grad(t, x);
}

bool example_gradcheck(int op)
{
    const tl_op *which = op == 0 ? &softsign : &wrong;
    (void)example_main; /* runs a checker, which reads values: nothing to compile */
    tl_model *m = tl_model_new(.seed = 1);
    tl_tensor dy = both_data(m, TL_F32, TL_DIMS(2, 3), 5);
    both_result r = both_ways(m, program, &dy, 1, 2, &which, (tl_graph_options){0});
    tl_free(m);
    return r.same;
}
