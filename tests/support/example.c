/* example.c: the second half of an example's run. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/support/example.h"

static tl_tensor copied(tl_tape *from, tl_tensor x, tl_model *to)
{
    tl_array a;
    if (!tl_array_of(from, x, &a))
        fail_msg("%s", tl_error(from));
    return tl_data(to, a.data, a.dtype, tl_array_shape(&a));
}

static void train_compiled(example *e, tl_tape *from, const tl_tensor data[2])
{
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    example_run r = {m, e->optimizer(m)};
    tl_compiled *c = tl_compile(t, e->step, 1, &r);
    tl_tensor in[2] = {copied(from, data[0], m), copied(from, data[1], m)}, loss;
    for (int i = 0; i < e->steps && !tl_failed(t); i++) {
        tl_run(c, in, 2, &loss);
        tl_tape_reset(t);
    }
    if (tl_failed(t))
        fail_msg("%s", tl_error(t));
    assert_int_equal(tl_compiled_count(c), 1);
    assert_int_equal(tl_model_sha256(m, e->compiled), TL_OK);
    tl_free(c, r.opt, t, m);
}

void example_end(example *e, tl_opt *opt, tl_tape *t, tl_model *m, const tl_tensor in[2])
{
    if (tl_failed(t))
        fail_msg("%s", tl_error(t));
    assert_int_equal(tl_opt_steps(opt), e->steps);
    assert_int_equal(tl_model_sha256(m, e->called), TL_OK);
    train_compiled(e, t, in);
    tl_free(opt, t, m);
}
