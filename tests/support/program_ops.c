/* program_ops.c: the kinds of ops that random programs are made of, and what they are given. */
#include <math.h>

#include "autograd/internal.h"
#include "tests/cases/cases.h"
#include "tests/support/program_machine.h"

value program_value(machine *m, tl_tensor x)
{
    return (value){x, tl_shape_of(m->t, x), tl_dtype_of(m->t, x)};
}

value program_read(machine *m, int at, int out)
{
    if (m->w->learn)
        m->w->last[at][out] = m->now;
    return m->of[at].v[out];
}

/* Recent values are likelier, so that chains and diamonds come about. */
value program_pick(machine *m, uint32_t r)
{
    uint32_t near = m->n < 4 ? (uint32_t)m->n : 4;
    int at = r & 1 ? m->n - 1 - (int)((r >> 1) % near) : (int)((r >> 1) % (uint32_t)m->n);
    return program_read(m, at, (int)((r >> 16) % (uint32_t)m->of[at].n));
}

static bool mix(tl_dtype a, tl_dtype b) { return a == b || (a != TL_F64 && b != TL_F64); }

/* x in that dtype and shape, its elements again and again, or the first of them. */
static tl_tensor fit(machine *m, value x, tl_dtype d, const tl_shape *want)
{
    tl_tape *t = m->t;
    int64_t have = tl_shape_count(&x.s), n = tl_shape_count(want);
    if (!tl_shape_equal(&x.s, want)) {
        if (have < n) {
            int64_t times = (n + have - 1) / have;
            x.x = tl_expand(t, tl_reshape(t, x.x, TL_DIMS(1, have)), TL_DIMS(times, have));
            have *= times;
        }
        x.x = tl_slice(t, tl_reshape(t, x.x, TL_DIMS(have)), 0, 0, n, 1);
        x.x = tl_reshape(t, x.x, *want);
    }
    return x.d == d ? x.x : tl_cast(t, x.x, d);
}

/* Another value that meets a: broadcasts with it in a dtype that mixes with its own; or (alike) has
 * its shape and dtype. One that is made so if there is none. */
static tl_tensor mate(machine *m, value a, uint32_t r, bool alike)
{
    tl_array x = tl_array_make(a.d, &a.s, NULL);
    for (int i = 0; i < m->n; i++) {
        int at = (int)((r + (uint32_t)i) % (uint32_t)m->n), out = (int)(r % (uint32_t)m->of[at].n);
        const value *b = &m->of[at].v[out];
        tl_array y = tl_array_make(b->d, &b->s, NULL);
        tl_err e = {.status = TL_OK};
        tl_shape s;
        if (alike ? a.d == b->d && tl_shape_equal(&a.s, &b->s)
                  : mix(a.d, b->d) && tl_shape_broadcast(&s, &x, &y, &e) == TL_OK &&
                        tl_shape_count(&s) <= m->most)
            return program_read(m, at, out).x;
    }
    return fit(m, program_pick(m, r), a.d, &a.s);
}

/* A parameter for x: of a few by shape, shared by all who ask for the same; in f32 with values of
 * half the width (wide), or else in x's dtype. */
static tl_tensor param(machine *m, char kind, uint32_t r, tl_dtype d, bool wide, tl_shape s)
{
    tl_dtype own = wide && (d == TL_F16 || d == TL_BF16) ? TL_F32
                   : mix(m->p->dtype, d)                 ? d
                                                         : m->p->dtype;
    char shape[TL_SHAPE_TEXT], name[256];
    snprintf(name, sizeof name, "%c%u %s %s", kind, r % 3, tl_dtype_name(own),
             tl_shape_text(shape, &s));
    tl_tensor w = kind == 'g' ? tl_param(m->t, m->m, name, own, s, TL_INIT_UNIFORM, 1.2)
                              : tl_param(m->t, m->m, name, own, s, TL_INIT_NORMAL, 0.5);
    return own == d || (wide && own == TL_F32 && d != TL_F64) ? w : tl_cast(m->t, w, d);
}

static int64_t last_dim(value x) { return x.s.ndim > 0 ? x.s.dim[x.s.ndim - 1] : 1; }

/* x with at least that many dims. */
static value at_least(machine *m, value x, int dims)
{
    if (x.s.ndim >= dims)
        return x;
    tl_shape s = {.ndim = dims};
    for (int i = 0; i < dims; i++)
        s.dim[i] = i < dims - x.s.ndim ? 1 : x.s.dim[i - dims + x.s.ndim];
    return (value){tl_reshape(m->t, x.x, s), s, x.d};
}

tl_tensor program_constant(machine *m, uint32_t r, tl_dtype d, tl_shape s)
{
    uint64_t seed = r;
    ref_tensor x = tl_case_values(tl_case_ref_dtype(d), &s, &seed, CASE_PLAIN);
    tl_tensor c = tl_constant(m->t, x.data, d, s);
    ref_free(&x);
    return c;
}

static tl_tensor ids(machine *m, uint32_t r, int64_t rows, tl_shape s)
{
    int64_t id[64], n = tl_shape_count(&s);
    for (int64_t i = 0; i < n && i < 64; i++)
        id[i] = (int64_t)((r + (uint32_t)i * (r % 7 + 1)) % (uint32_t)rows);
    return tl_constant(m->t, id, TL_I64, s);
}

/* ---- kinds ---- */

/* x where f is defined and tame. */
typedef enum { ANY, SMALL, POSITIVE } domain;

static tl_tensor within(tl_tape *t, tl_tensor x, domain d)
{
    return d == SMALL ? tl_tanh(t, x) : d == POSITIVE ? tl_shift(t, tl_square(t, x), 0.5) : x;
}

static int unary(machine *m, const program_step *s, value x, tl_tensor *out)
{
    static const struct {
        tl_tensor (*f)(tl_at at, tl_tensor x);
        domain d;
    } list[] = {{tl_neg_at, ANY},
                {tl_abs_at, ANY},
                {tl_square_at, SMALL},
                {tl_square_at, ANY},
                {tl_reciprocal_at, POSITIVE},
                {tl_sqrt_at, POSITIVE},
                {tl_rsqrt_at, POSITIVE},
                {tl_exp_at, SMALL},
                {tl_log_at, POSITIVE},
                {tl_sin_at, ANY},
                {tl_cos_at, ANY},
                {tl_tanh_at, ANY},
                {tl_sigmoid_at, ANY},
                {tl_relu_at, ANY},
                {tl_silu_at, ANY},
                {tl_erf_at, ANY},
                {tl_log1p_at, POSITIVE},
                {tl_expm1_at, SMALL},
                {tl_exp2_at, SMALL},
                {tl_log2_at, POSITIVE},
                {tl_softplus_at, ANY},
                {tl_gelu_at, ANY},
                {tl_gelu_tanh_at, ANY}};
    uint32_t i = s->c % (sizeof list / sizeof *list);
    out[0] = list[i].f(TL_AT(m->t), within(m->t, x.x, list[i].d));
    return 1;
}

/* With a number; some change nothing, and are cleared away. */
static int number(machine *m, const program_step *s, value x, tl_tensor *out)
{
    tl_tape *t = m->t;
    uint32_t r = s->c / 16;
    switch (s->c % 10) {
    case 0: *out = tl_scale(t, x.x, r % 3 == 0 ? 1 : r % 3 == 1 ? 2 : 0.5); break;
    case 1: *out = tl_shift(t, x.x, r % 3 == 0 ? 0 : 0.25); break;
    case 2: *out = tl_clamp(t, x.x, -1, r % 2 ? 1 : (double)INFINITY); break;
    case 3: *out = tl_pow(t, within(t, x.x, POSITIVE), r % 5 * 0.5 - 1); break;
    case 4: *out = tl_neg(t, tl_neg(t, x.x)); break;
    case 5: *out = tl_mul(t, x.x, tl_scalar(t, x.d, 1)); break;
    case 6: *out = tl_add(t, x.x, tl_scalar(t, x.d, 0)); break;
    case 7: *out = tl_masked_fill(t, x.x, tl_gt(t, x.x, tl_scalar(t, x.d, 1)), 0.5); break;
    case 8: *out = tl_mul(t, x.x, program_constant(m, r, x.d, x.s)); break;
    default: *out = tl_sub(t, x.x, tl_fill(t, x.d, x.s, 0.125)); break;
    }
    return 1;
}

static int binary(machine *m, const program_step *s, value x, tl_tensor *out)
{
    static tl_tensor (*const compare[])(tl_at at, tl_tensor a, tl_tensor b) = {tl_eq_at, tl_ne_at,
                                                                               tl_lt_at, tl_le_at,
                                                                               tl_gt_at, tl_ge_at};
    tl_tape *t = m->t;
    tl_tensor b = mate(m, x, s->b, s->c & 1), a = x.x;
    if (s->c & 2) {
        a = b;
        b = x.x;
    }
    uint32_t r = s->c / 4;
    switch (r % 13) {
    case 0:
    case 1:
    case 2: *out = tl_add(t, a, b); break;
    case 3: *out = tl_sub(t, a, b); break;
    case 4:
    case 5: *out = tl_mul(t, a, b); break;
    case 6: *out = tl_maximum(t, a, b); break;
    case 7: *out = tl_minimum(t, a, b); break;
    case 8: *out = tl_div(t, a, within(t, b, POSITIVE)); break;
    case 9: *out = tl_swiglu(t, a, b); break;
    case 10: *out = tl_mul(t, tl_silu(t, a), b); break;
    case 11: *out = tl_silu_grad(t, a, b); break;
    default: *out = tl_where(t, compare[r / 13 % 6](TL_AT(t), a, b), a, b); break;
    }
    return 1;
}

static int moved(machine *m, const program_step *s, value x, tl_tensor *out)
{
    tl_tape *t = m->t;
    x = at_least(m, x, 1);
    int n = x.s.ndim, d = (int)(s->c / 16 % (uint32_t)n);
    int64_t size = x.s.dim[d], half = size / 2, count = tl_shape_count(&x.s);
    switch (s->c % 12) {
    case 0: *out = tl_reshape(t, x.x, TL_DIMS(count)); break;
    case 1: *out = tl_transpose(t, x.x, 0, n - 1); break;
    case 2: *out = tl_slice(t, x.x, d, half, size, 1); break;
    case 3: *out = tl_slice(t, x.x, d, 0, size, 2); break;
    case 4:
        *out = count <= m->most / 2 ? tl_concat(t, ((tl_tensor[]){x.x, x.x}), 2, d) : x.x;
        break;
    case 5: *out = tl_reshape(t, tl_transpose(t, x.x, 0, n - 1), TL_DIMS(-1, 1)); break;
    case 6: *out = tl_contiguous(t, tl_transpose(t, x.x, 0, n - 1)); break;
    case 7: *out = tl_select(t, x.x, d, size - 1); break;
    case 8: *out = tl_slice_grad(t, x.x, size + 2, d, 1, 1); break;
    case 9: *out = n < 4 ? tl_stack(t, ((tl_tensor[]){x.x, tl_neg(t, x.x)}), 2, d) : x.x; break;
    case 10:
        if (half == 0)
            return out[0] = x.x, 1;
        tl_split_sizes(t, x.x, ((int64_t[]){half, size - half}), 2, d, out);
        return 2;
    default:
        x = at_least(m, x, 2);
        *out = x.s.dim[0] == 1 && 3 * count <= m->most
                   ? (x.s.dim[0] = 3, tl_expand(t, x.x, x.s))
                   : tl_permute(t, x.x,
                                x.s.ndim == 2   ? TL_DIMS(1, 0)
                                : x.s.ndim == 3 ? TL_DIMS(1, 2, 0)
                                                : TL_DIMS(0, 2, 1, 3));
    }
    return 1;
}

static int reduced(machine *m, const program_step *s, value x, tl_tensor *out)
{
    tl_tape *t = m->t;
    x = at_least(m, x, 1);
    int n = x.s.ndim, d = (int)(s->c / 16 % (uint32_t)n);
    bool keep = s->c / 64 & 1;
    tl_shape dims = n > 1 && s->c & 128 ? TL_DIMS(0, n - 1) : TL_DIMS(d);
    switch (s->c % 16) {
    case 11: *out = tl_logsumexp(t, x.x, dims, keep); break;
    case 12: *out = tl_sort(t, x.x, d, keep, NULL); break;
    case 13: *out = tl_topk(t, x.x, (x.s.dim[d] + 1) / 2, d, keep, NULL); break;
    case 14: *out = n > 1 ? tl_tril(t, x.x, d) : tl_rms_norm_dims(t, x.x, 1, 1e-3); break;
    case 15:
        *out = tl_bce_with_logits(t, x.x, tl_sigmoid(t, x.x), keep ? TL_EACH : TL_MEAN,
                                  .weight = tl_uniform(t, x.d, x.s, "weights"));
        break;
    case 0: *out = tl_sum(t, x.x, dims, keep); break;
    case 1: *out = tl_mean(t, x.x, dims, keep); break;
    case 2: *out = tl_softmax(t, x.x, d); break;
    case 3: *out = tl_log_softmax(t, x.x, d); break;
    case 4: *out = tl_max(t, x.x, dims, keep); break;
    case 5: *out = tl_min(t, x.x, dims, keep); break;
    case 6: *out = tl_cumsum(t, x.x, d, keep); break;
    case 7: *out = tl_var(t, x.x, dims, 0, keep); break;
    case 8: *out = tl_cast(t, tl_argmax(t, x.x, d, keep), x.d); break;
    case 9: *out = tl_sum_to(t, x.x, TL_DIMS(last_dim(x)), TL_NONE); break;
    default: *out = tl_mse(t, x.x, mate(m, x, s->b, true)); break;
    }
    return 1;
}

/* By the ops, and as people write them out. */
static int normed(machine *m, const program_step *s, value x, tl_tensor *out)
{
    tl_tape *t = m->t;
    x = at_least(m, x, 1);
    uint32_t r = s->c / 16;
    bool two = x.s.ndim > 1 && r % 5 == 0;
    tl_shape row = two ? TL_DIMS(x.s.dim[x.s.ndim - 2], last_dim(x)) : TL_DIMS(last_dim(x));
    tl_tensor g = r % 6 ? param(m, 'g', r, x.d, r & 64, row) : TL_NONE;
    tl_tensor b = r % 7 ? param(m, 'b', r, x.d, r & 64, row) : TL_NONE;
    tl_tensor y = s->c % 12 < 6 ? mate(m, x, s->b, true) : TL_NONE;
    switch (s->c % 12) {
    case 0:
    case 1: *out = tl_add_rms_norm(t, x.x, y, g, 1e-3, &out[1], &out[2]); return 3;
    case 2: *out = tl_add_rms_norm(t, x.x, y, g, 1e-3, NULL, NULL); return 1;
    case 3:
    case 4:
    case 5:
        out[1] = tl_add(t, x.x, y);
        *out = tl_rms_norm(t, out[1], g, 1e-3);
        return 2;
    case 6: *out = tl_rms_norm(t, x.x, g, (double)NAN); return 1;
    case 7: *out = tl_rms_norm_rstd(t, x.x, g, 1e-3, &out[1]); return 2;
    case 8: *out = tl_rms_norm_plus_one(t, x.x, param(m, 'g', r, x.d, false, row), 1e-3); return 1;
    case 9: *out = tl_layer_norm(t, x.x, g, b, 1e-3); return 1;
    case 10: *out = tl_layer_norm_stats(t, x.x, g, b, 1e-3, &out[1], &out[2]); return 3;
    default:
        y = tl_rsqrt(t, tl_shift(t, tl_mean(t, tl_square(t, x.x), TL_DIMS(-1), true), 1e-3));
        *out = tl_mul(t, tl_mul(t, x.x, y), param(m, 'g', r, x.d, false, TL_DIMS(last_dim(x))));
        return 1;
    }
}

static int product(machine *m, const program_step *s, value x, tl_tensor *out)
{
    tl_tape *t = m->t;
    uint32_t r = s->c / 16;
    int64_t k = last_dim(x), n = r % 2 ? k : 4;
    if (k > 64)
        return unary(m, s, x, out);
    x = at_least(m, x, 2);
    tl_tensor w = param(m, 'w', r, x.d, false, TL_DIMS(k, n)), y = x.x;
    value flat = program_value(m, tl_reshape(t, x.x, TL_DIMS(-1, k)));
    switch (s->c % 12) {
    case 10:
        y = tl_conv1d(t, tl_reshape(t, x.x, TL_DIMS(-1, 1, k)),
                      param(m, 'k', r, x.d, false, TL_DIMS(2, 1, 3)), .padding = {1},
                      .stride = {1 + r % 2}, .bias = param(m, 'b', r, x.d, false, TL_DIMS(2)));
        break;
    case 11:
        y = tl_max_pool1d(t, tl_reshape(t, x.x, TL_DIMS(1, -1, k)), .kernel = {k > 1 ? 2 : 1},
                          .stride = {1});
        break;
    case 0:
    case 1:
    case 2: y = tl_matmul(t, y, w); break;
    case 3:
        y = tl_matmul(t, y, tl_transpose(t, param(m, 'w', r, x.d, false, TL_DIMS(n, k)), 0, 1));
        break;
    case 4: y = tl_add(t, tl_matmul(t, y, w), param(m, 'b', r, x.d, false, TL_DIMS(n))); break;
    case 5: y = tl_matmul_acc64(t, y, w); break;
    case 6: y = tl_matmul_to(t, y, w, x.d == TL_F64 ? TL_F64 : TL_F32); break;
    case 7:
        y = tl_addmm(t, param(m, 'b', r, x.d, false, TL_DIMS(n)), flat.x, w, r % 3 ? 1 : 0.5,
                     r % 5 ? 1 : 2);
        break;
    case 8:
        y = tl_linear(t, m->m, r % 2 ? "one" : "two",
                      fit(m, x, m->p->dtype, &(tl_shape){2, {2, 8}}), 6);
        break;
    default:
        if (flat.s.dim[0] <= 16)
            y = tl_matmul(t, flat.x, tl_transpose(t, flat.x, 0, 1));
    }
    *out = r & 16 ? tl_tanh(t, y) : y;
    return 1;
}

/* q, k and v of any values, by the op and written out. */
static int attended(machine *m, const program_step *s, value x, tl_tensor *out)
{
    tl_tape *t = m->t;
    uint32_t r = s->c / 8;
    int64_t h = r % 3 ? 2 : 1, sk = r % 5 ? 4 : 3;
    tl_shape sq = TL_DIMS(2, 2, 4, 4), skv = TL_DIMS(2, h, sk, 4);
    tl_tensor q = fit(m, x, x.d, &sq), k, v, a;
    switch (s->c % 4) {
    case 0:
    case 1:
        k = fit(m, program_pick(m, s->b), x.d, &skv);
        v = fit(m, program_pick(m, s->b / 3), x.d, &skv);
        *out = tl_attention(t, q, k, v, .full = r & 16,
                            .key_start = r & 32 ? ids(m, r, 3, TL_DIMS(2)) : TL_NONE);
        break;
    case 2:
        k = fit(m, program_pick(m, s->b), x.d, &sq);
        a = tl_scale(t, tl_matmul(t, q, tl_transpose(t, k, -1, -2)), 0.5);
        *out = tl_matmul(t, tl_softmax(t, a, -1), fit(m, program_pick(m, s->b / 3), x.d, &sq));
        break;
    default:
        *out = m->p->dtype == x.d
                   ? tl_self_attention(t, m->m, "attention",
                                       fit(m, x, x.d, &(tl_shape){3, {2, 3, 8}}), .heads = 2)
                   : q;
    }
    return 1;
}

static int turned(machine *m, const program_step *s, value x, tl_tensor *out)
{
    tl_tape *t = m->t;
    uint32_t r = s->c / 8;
    tl_rotary_pairing pairing = r & 1 ? TL_ROTARY_HALF : TL_ROTARY_INTERLEAVED;
    tl_shape sx = TL_DIMS(2, 3, 2, 4), st = TL_DIMS(1, 3, 1, 4), sh = TL_DIMS(2, 3, 2),
             table = TL_DIMS(6, 4);
    tl_tensor y = fit(m, x, x.d, &sx);
    bool learned = r & 2;
    tl_tensor c = learned ? param(m, 'c', r, x.d, false, st) : program_constant(m, r, x.d, st);
    tl_tensor d = learned ? param(m, 'c', r + 1, x.d, false, st)
                          : program_constant(m, r + 1, x.d, st);
    switch (s->c % 6) {
    case 0: *out = tl_rotary(t, y, c, d, pairing); break;
    case 1: *out = tl_rotary_turned(t, y, c, d, pairing); break;
    case 2: /* in place, on what nobody else reads */
        y = tl_scale(t, y, 0.75);
        *out = tl_rotary_(t, r & 4 ? tl_transpose(t, y, 0, 2) : y,
                          program_constant(m, r, x.d, TL_DIMS(4)),
                          program_constant(m, r + 1, x.d, TL_DIMS(4)), pairing);
        break;
    case 3:
        *out = tl_rotary_ids(t, y, program_constant(m, r, x.d, table),
                             program_constant(m, r + 1, x.d, table), ids(m, r, 6, TL_DIMS(2, 3)), 1,
                             pairing);
        break;
    default:
        *out = tl_rotary_halves(t, fit(m, x, x.d, &sh), fit(m, program_pick(m, s->b), x.d, &sh),
                                learned ? param(m, 'c', r, x.d, false, TL_DIMS(3, 2))
                                        : program_constant(m, r, x.d, TL_DIMS(3, 2)),
                                program_constant(m, r + 1, x.d, TL_DIMS(3, 2)), r & 4, &out[1]);
        return 2;
    }
    return 1;
}

/* Rows by ids, of parameters (one of them a weight, too) and of values. */
static int looked_up(machine *m, const program_step *s, value x, tl_tensor *out)
{
    tl_tape *t = m->t;
    uint32_t r = s->c / 8;
    tl_shape table = TL_DIMS(5, 8), rows = TL_DIMS(6, 3);
    tl_tensor w = param(m, 'w', r, m->p->dtype, false, r & 1 ? TL_DIMS(8, 8) : table);
    tl_tensor id = r & 2 ? m->in[PROGRAM_INPUTS - 1] : ids(m, r, 5, TL_DIMS(2, 3));
    switch (s->c % 6) {
    case 0:
    case 1: *out = tl_embedding(t, w, id); break;
    case 2: *out = tl_embedding_acc64(t, w, id); break;
    case 3: *out = tl_gather(t, fit(m, x, x.d, &rows), ids(m, r, 6, TL_DIMS(2, 3)), 0); break;
    case 4:
        *out = tl_matmul(t, tl_one_hot(t, id, 5, m->p->dtype),
                         param(m, 'w', r, m->p->dtype, false, table));
        break;
    default: *out = tl_embedding(t, fit(m, x, x.d, &rows), ids(m, r, 6, TL_DIMS(4))); break;
    }
    return 1;
}

static int lost(machine *m, const program_step *s, value x, tl_tensor *out)
{
    tl_tape *t = m->t;
    uint32_t r = s->c / 8;
    tl_shape logits = TL_DIMS(6, 4);
    tl_tensor y = fit(m, x, x.d, &logits), id = ids(m, r, 4, TL_DIMS(6));
    tl_tensor count = r & 16 ? tl_scalar(t, TL_F64, 11) : TL_NONE;
    if (s->c % 3 == 0)
        *out = tl_cross_entropy(t, y, id, r & 1 ? TL_MEAN : TL_SUM, .smoothing = r & 2 ? 0.1 : 0,
                                .count = r & 1 ? count : TL_NONE, .ignore = r & 8,
                                .ignore_index = 2);
    else if (s->c % 3 == 1)
        *out = tl_nll(t, tl_log_softmax(t, y, -1), id, r & 1 ? TL_MEAN : TL_SUM);
    else
        *out = tl_neg(t, tl_mean(t,
                                 tl_gather(t, tl_log_softmax(t, y, -1),
                                           tl_reshape(t, id, TL_DIMS(6, 1)), 1),
                                 TL_ALL, false));
    return 1;
}

static int other(machine *m, const program_step *s, value x, tl_tensor *out)
{
    static const tl_dtype dtypes[] = {TL_F32, TL_F64, TL_F16, TL_BF16};
    tl_tape *t = m->t;
    uint32_t r = s->c / 16;
    tl_tensor b;
    switch (s->c % 9) {
    case 0:
    case 1:
    case 2: *out = tl_cast(t, x.x, dtypes[r % 4]); break;
    case 3: *out = tl_detach(t, x.x); break;
    case 4:
    case 5:
        *out = x.s.ndim > 0 ? tl_dropout(t, x.x, 0.25, .stream = r & 1 ? "one" : "two",
                                         .sample = r & 2 ? m->in[PROGRAM_FLOATS] : TL_NONE)
                            : x.x;
        break;
    case 6: /* the gradient of a part, as a value */
        b = tl_sum(t, tl_mul(t, tl_sin(t, x.x), x.x), TL_ALL, false);
        if (m->p->backward && tl_peek(t, x.x) != NULL && tl_peek(t, x.x)->needs_grad)
            tl_gradients(t, b, &x.x, 1, TL_NONE, out);
        else
            *out = b;
        break;
    case 7: /* through a buffer, which has no gradient */
        b = tl_buffer(t, m->m, r & 1 ? "buffer one" : "buffer two", TL_F32, TL_DIMS(2, 3));
        *out = tl_add(t, b, tl_scalar(t, TL_F32, 1));
        m->open = false; /* a segment with what was read could not be computed again */
        tl_assign(t, b, tl_detach(t, tl_tanh(t, fit(m, x, TL_F32, &(tl_shape){2, {2, 3}}))));
        break;
    default: *out = program_constant(m, r, m->p->dtype, TL_DIMS(m->p->width)); break;
    }
    return 1;
}

/* An input of a case: from values where it takes a gradient, else data. Ops without a gradient take
 * what carries none, and ops in place what nobody else reads. */
static tl_tensor case_operand(machine *m, const case_input *in, const ref_tensor *data,
                              const tl_op *op, uint32_t r)
{
    tl_tape *t = m->t;
    tl_tensor x;
    if (!in->present)
        return TL_NONE;
    if (tl_case_floating(in)) {
        x = fit(m, program_pick(m, r), in->dtype, &in->leaf);
        if (in->domain == CASE_POS || in->domain == CASE_AWAY)
            x = tl_shift(t, tl_scale(t, tl_sigmoid(t, x), 2), 0.5);
        else if (in->domain == CASE_UNIT)
            x = tl_shift(t, tl_scale(t, tl_sigmoid(t, x), 0.8), 0.1);
    } else
        x = tl_constant(t, data->data, in->dtype, in->leaf);
    if (op->vjp == NULL && tl_dtype_is_float(in->dtype))
        x = tl_detach(t, x);
    if (op->traits & TL_MUTATES && tl_dtype_is_float(in->dtype))
        x = tl_scale(t, x, 0.75);
    return tl_case_view(t, in, x);
}

static int listed(machine *m, const program_step *s, value x, tl_tensor *out)
{
    const tl_case *c = tl_case_at((int)(s->c % (uint32_t)tl_case_count()));
    if (c->flags & CASE_BIG && !m->p->big)
        c = tl_case_at(0);
    tl_tape *t = m->t;
    case_run r = tl_case_run(c, x.d);
    ref_tensor leaf[CASE_INPUTS];
    tl_tensor in[CASE_INPUTS] = {TL_NONE}, all[CASE_OUTPUTS];
    uint64_t seed = s->b;
    const tl_op *op = tl_op_find(c->op);
    tl_case_fill(&r, &seed, CASE_PLAIN, leaf);
    for (int i = 0; i < r.n; i++)
        in[i] = case_operand(m, &r.in[i], &leaf[i], op, i == 0 ? s->a : s->b + (uint32_t)i * 7919);
    tl_case_free(r.n, leaf);
    int n = c->build(t, in, c, all), k = 0;
    for (int i = 0; i < n && i < PROGRAM_WIDE; i++) {
        value y = program_value(m, all[i]);
        if (tl_shape_count(&y.s) == 0 || tl_shape_count(&y.s) > m->most)
            y.x = tl_sum(t, tl_dtype_is_float(y.d) ? y.x : tl_cast(t, y.x, TL_F32), TL_ALL, false);
        out[k++] = tl_dtype_is_float(y.d) ? y.x : tl_cast(t, y.x, x.d);
    }
    return k;
}

static const struct {
    const char *name;
    int weight;
    int (*take)(machine *m, const program_step *s, value x, tl_tensor *out);
} kinds[] = {{"unary", 5, unary},       {"number", 3, number},      {"binary", 7, binary},
             {"move", 4, moved},        {"reduce", 3, reduced},     {"norm", 5, normed},
             {"product", 4, product},   {"attention", 1, attended}, {"rotary", 1, turned},
             {"look up", 1, looked_up}, {"loss", 1, lost},          {"other", 3, other},
             {"case", 5, listed}};
enum { KINDS = sizeof kinds / sizeof *kinds };

int program_take(machine *m, const program_step *s, value x, tl_tensor out[PROGRAM_WIDE])
{
    return kinds[s->kind % KINDS].take(m, s, x, out);
}

const char *program_kind(const program_step *s) { return kinds[s->kind % KINDS].name; }

uint32_t program_random_kind(uint64_t *state)
{
    int all = 0, i = 0;
    for (int k = 0; k < KINDS; k++)
        all += kinds[k].weight;
    for (int at = (int)(tl_case_random(state) % (uint64_t)all); at >= kinds[i].weight; i++)
        at -= kinds[i].weight;
    return (uint32_t)i;
}
