/* rotary, written out -> rotary(x, cos, sin, TL_ROTARY_HALF)
 * rotate_half:  x * cos + concat(-x2, x1) * sin, with x1, x2 the halves of x's last dim
 * halves:       concat(x1 * c - x2 * s, x2 * c + x1 * s), with tables of half the width
 * Exact:  the values alone, f32 and f64: in f16 and bf16 each product is rounded. In the gradient, zeros that the slices'
 *         gradients are padded with are added: where a sum is -0 the written form makes it +0.
 */
#include "ops/patterns/patterns.h"

typedef struct {
    bool from_front;   /* dims counted from the front */
} form;

static int last_dim(tl_tape *t, tl_tensor x, const form *f) { return f->from_front ? tl_shape_of(t, x).ndim - 1 : -1; }

static void halves(tl_tape *t, tl_tensor x, int dim, tl_tensor *x1, tl_tensor *x2)
{
    tl_shape s = tl_shape_of(t, x);
    int64_t d = s.ndim > 0 ? s.dim[s.ndim - 1] : 0;
    *x1 = tl_slice(t, x, dim, 0, d / 2, 1);
    *x2 = tl_slice(t, x, dim, d / 2, d, 1);
}

static void search(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    const tl_pattern_values *v = ctx;
    int dim = last_dim(t, in[0], v->ctx);
    tl_tensor x1, x2;
    (void)n, (void)n_out;
    halves(t, in[0], dim, &x1, &x2);
    tl_tensor turned = tl_concat(t, ((tl_tensor[]){tl_neg(t, x2), x1}), 2, dim);
    out[0] = tl_add(t, tl_mul(t, in[0], in[1]), tl_mul(t, turned, in[2]));
}

static void replace(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    (void)n, (void)n_out, (void)ctx;
    out[0] = tl_rotary(t, in[0], in[1], in[2], TL_ROTARY_HALF);
}

static void search_halves(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    const tl_pattern_values *v = ctx;
    int dim = last_dim(t, in[0], v->ctx);
    tl_tensor x1, x2, y[2];
    (void)n, (void)n_out;
    halves(t, in[0], dim, &x1, &x2);
    y[0] = tl_sub(t, tl_mul(t, x1, in[1]), tl_mul(t, x2, in[2]));
    y[1] = tl_add(t, tl_mul(t, x2, in[1]), tl_mul(t, x1, in[2]));
    out[0] = tl_concat(t, y, 2, dim);
}

static void replace_halves(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    (void)n, (void)n_out, (void)ctx;
    tl_tensor r1 = tl_rotary_widen(t, in[1], TL_ROTARY_HALF), r2 = tl_rotary_widen(t, in[2], TL_ROTARY_HALF);
    out[0] = tl_rotary(t, in[0], r1, r2, TL_ROTARY_HALF);
}

/* An odd last dim has no halves. */
static bool even(const tl_match *m, void *ctx)
{
    const tl_array *x = tl_match_input(m, "x");
    (void)ctx;
    return x->dim[x->ndim - 1] % 2 == 0;
}

static const tl_pattern_arg args[] = {TL_ARG("x", TL_F32, TL_DIMS(2, 3, 4, 10)), TL_ARG("cos", TL_F32, TL_DIMS(4, 10), .no_grad = true),
                                      TL_ARG("sin", TL_F32, TL_DIMS(4, 10), .no_grad = true)};
static const tl_pattern_arg half_args[] = {TL_ARG("x", TL_F32, TL_DIMS(2, 3, 4, 10)), TL_ARG("cos", TL_F32, TL_DIMS(4, 5), .no_grad = true),
                                           TL_ARG("sin", TL_F32, TL_DIMS(4, 5), .no_grad = true)};
static form back, front = {true};

enum { WIDE = TL_BIT(TL_F32) | TL_BIT(TL_F64) };

#define FORM(id, search_, replace_, args_, form_)                                                                                    \
    const tl_replacement tl_replace_##id = {.name = #id, .search = search_, .replace = replace_, .example_inputs = args_, .n_in = 3, \
                                            .n_out = 1, .extra_check = even, .ctx = &form_, .exact_forward = WIDE};
FORM(rotary_half, search, replace, args, back)
FORM(rotary_half_front, search, replace, args, front)
FORM(rotary_chunks, search_halves, replace_halves, half_args, back)
FORM(rotary_chunks_front, search_halves, replace_halves, half_args, front)
