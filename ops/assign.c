/* assign(dst, x): dst = x, for tensors that a program writes itself (running means, averaged
 * weights)
 * Shape:  x as dst, whatever their strides; x may show elements of dst
 * Dtype:  any, the same
 * Bits:   copied
 * VJP:    none: x counts as a number, and dst is changed in place
 * Errors: TL_ESHAPE
 */
#include "autograd/op.h"
#include "tensor/change.h"

static tl_status assign_shape(tl_call *c)
{
    char a[TL_SHAPE_TEXT], b[TL_SHAPE_TEXT];
    if (!tl_array_same_shape(c->in[0], c->in[1]) || c->in[0]->dtype != c->in[1]->dtype)
        return tl_call_fail(c, TL_ESHAPE, "x is %s %s, the tensor %s %s",
                            tl_dtype_name(c->in[1]->dtype), tl_array_shape_text(a, c->in[1]),
                            tl_dtype_name(c->in[0]->dtype), tl_array_shape_text(b, c->in[0]));
    c->out[0] = *c->in[0];
    return TL_OK;
}

static tl_status assign_forward(tl_call *c)
{
    tl_array dst = *c->in[0], apart;
    const tl_array *x = c->in[1];
    if (!tl_arrays_overlap(&dst, x)) {
        tl_array_copy(&dst, x);
        return TL_OK;
    }
    tl_shape shape = tl_array_shape(x);
    tl_storage *st = tl_storage_new(c->arena, (size_t)tl_array_count(x) * tl_dtype_size(x->dtype),
                                    false);
    if (st == NULL)
        return tl_call_fail(c, TL_ENOMEM, "no memory for a copy of %s", tl_dtype_name(x->dtype));
    apart = tl_array_make(x->dtype, &shape, st->data);
    tl_array_copy(&apart, x);
    tl_array_copy(&dst, &apart);
    tl_storage_release(st);
    return TL_OK;
}

const tl_op tl_op_assign = {.name = "assign",
                            .n_in = 2,
                            .n_out = 1,
                            .traits = TL_MUTATES | TL_NONDIFF,
                            .mutates = 0,
                            .shape = assign_shape,
                            .forward = assign_forward};
