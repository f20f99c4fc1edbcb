/* rotary, written out -> rotary(x, cos, sin, pairing)
 *   rotary_half         x * cos + R(x) * sin with tables of the full width, R(x) = concat(-x2,
 *                       x1), x1 and x2 the halves of the last dim
 *   rotary_chunks       concat(x1 * c - x2 * s, x2 * c + x1 * s) with tables of half the width
 *   rotary_interleaved  x * cos + R(x) * sin, R(x) = stack(-x2, x1) along a new last dim,
 *                       flattened, x1 and x2 every other element
 *   rotary_pairs        stack(x1 * c - x2 * s, x2 * c + x1 * s), flattened, with tables of half
 *                       the width
 * Forms:  interleaved, x1 and x2 are slices with step 2, or selected from x reshaped to
 *         (..., d/2, 2).
 * Exact:  the values alone, f32 and f64: in f16 and bf16 each product is rounded. In its gradient
 *         the written form adds the zeros that pad the slices' gradients: where a sum is -0 it
 *         makes it +0.
 */
#include "ops/patterns/patterns.h"

typedef struct {
    tl_rotary_pairing pairing;
    bool full; /* tables of the full width */
} style;

/* The two parts of x that are rotated with each other. */
static void parts(tl_tape *t, tl_tensor x, const tl_pattern_values *v, tl_tensor *x1, tl_tensor *x2)
{
    tl_shape s = tl_shape_of(t, x);
    int64_t d = s.ndim > 0 ? s.dim[s.ndim - 1] : 0;
    if (((const style *)v->ctx)->pairing == TL_ROTARY_HALF) {
        *x1 = tl_slice(t, x, -1, 0, d / 2, 1);
        *x2 = tl_slice(t, x, -1, d / 2, d, 1);
    } else if (v->form == 0) {
        *x1 = tl_slice(t, x, -1, 0, d, 2);
        *x2 = tl_slice(t, x, -1, 1, d, 2);
    } else {
        if (s.ndim > 0 && s.ndim < TL_MAX_DIMS) {
            s.dim[s.ndim - 1] = d / 2;
            s.dim[s.ndim++] = 2;
        }
        tl_tensor pairs = tl_reshape(t, x, s);
        *x1 = tl_select(t, pairs, -1, 0);
        *x2 = tl_select(t, pairs, -1, 1);
    }
}

/* The opposite of parts(). */
static tl_tensor joined(tl_tape *t, tl_tensor x, const style *f, tl_tensor y1, tl_tensor y2)
{
    tl_tensor y[2] = {y1, y2};
    return f->pairing == TL_ROTARY_HALF ? tl_concat(t, y, 2, -1)
                                        : tl_reshape(t, tl_stack(t, y, 2, -1), tl_shape_of(t, x));
}

TL_PATTERN(search)
{
    const tl_pattern_values *v = ctx;
    const style *f = v->ctx;
    tl_tensor x1, x2;
    parts(t, in[0], v, &x1, &x2);
    if (f->full) {
        out[0] = tl_add(t, tl_mul(t, in[0], in[1]),
                        tl_mul(t, joined(t, in[0], f, tl_neg(t, x2), x1), in[2]));
        return;
    }
    tl_tensor y1 = tl_sub(t, tl_mul(t, x1, in[1]), tl_mul(t, x2, in[2])),
              y2 = tl_add(t, tl_mul(t, x2, in[1]), tl_mul(t, x1, in[2]));
    out[0] = joined(t, in[0], f, y1, y2);
}

TL_PATTERN(replace)
{
    const style *f = ((const tl_pattern_values *)ctx)->ctx;
    tl_tensor r1 = f->full ? in[1] : tl_rotary_widen(t, in[1], f->pairing),
              r2 = f->full ? in[2] : tl_rotary_widen(t, in[2], f->pairing);
    out[0] = tl_rotary(t, in[0], r1, r2, f->pairing);
}

/* An odd last dim has no halves. A table of one column would be another rotation. */
static bool fits(const tl_match *m, void *ctx)
{
    const tl_array *x = tl_match_input(m, "x"), *c = tl_match_input(m, "cos"),
                   *s = tl_match_input(m, "sin");
    const int64_t d = x->dim[x->ndim - 1], n = ((const style *)ctx)->full ? d : d / 2;
    return d % 2 == 0 && c->ndim > 0 && s->ndim > 0 && c->dim[c->ndim - 1] == n &&
           s->dim[s->ndim - 1] == n;
}

static const tl_pattern_arg full[] = {TL_ARG("x", TL_F32, TL_DIMS(2, 3, 4, 10)),
                                      TL_ARG("cos", TL_F32, TL_DIMS(4, 10), .no_grad = true),
                                      TL_ARG("sin", TL_F32, TL_DIMS(4, 10), .no_grad = true)};
static const tl_pattern_arg half[] = {TL_ARG("x", TL_F32, TL_DIMS(2, 3, 4, 10)),
                                      TL_ARG("cos", TL_F32, TL_DIMS(4, 5), .no_grad = true),
                                      TL_ARG("sin", TL_F32, TL_DIMS(4, 5), .no_grad = true)};

#define RULE(id, pairing, full_tables, args, forms_)                                  \
    static style style_##id = {pairing, full_tables};                                 \
    TL_REPLACE(id, search, replace, args, 3, 1, .forms = forms_, .extra_check = fits, \
               .ctx = &style_##id, .exact_forward = TL_WIDE)
RULE(rotary_half, TL_ROTARY_HALF, true, full, 1)
RULE(rotary_chunks, TL_ROTARY_HALF, false, half, 1)
RULE(rotary_interleaved, TL_ROTARY_INTERLEAVED, true, full, 2)
RULE(rotary_pairs, TL_ROTARY_INTERLEAVED, false, half, 2)
