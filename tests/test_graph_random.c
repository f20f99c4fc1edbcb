/* Random programs: each one called and compiled, forward and joint, under random options, gives the
 * same bits. A program that does not is shrunk - steps are left out as long as it still differs -
 * and printed. TL_TEST_SEED repeats a run, TL_TEST_PROGRAMS says how many. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tally.h>

extern const struct CMUnitTest tl_tests_graph_random[];
extern const size_t tl_tests_graph_random_count;

enum { STEPS = 24, POOL = STEPS * 3 + 8, OUTS = 8, INS = 3 };

/* One step: a kind of op, and numbers that choose its operands and attributes among what is
 * possible. */
typedef struct {
    uint32_t kind, a, b, c;
    bool left_out;
} step;

typedef struct {
    step s[STEPS];
    int n;
    tl_dtype dtype;
    bool joint, second; /* gradients; gradients of gradients */
    tl_graph_options o;
    FILE *log; /* NULL, or where the steps are written as they are taken */
} program;

typedef struct {
    tl_tape *t;
    const program *p;
    tl_tensor v[POOL];
    int n;
} machine;

static uint64_t next(uint64_t *s) /* splitmix64 */
{
    uint64_t z = *s += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static tl_tensor pick(const machine *m, uint32_t r) { return m->v[r % (uint32_t)m->n]; }

static bool is_float(const machine *m, tl_tensor x)
{
    return tl_dtype_is_float(tl_dtype_of(m->t, x));
}

/* Another value that meets a: broadcasts with it, in a dtype that mixes with its own; a itself if
 * there is none. */
static tl_tensor mate(const machine *m, tl_tensor a, uint32_t r)
{
    for (int i = 0; i < m->n; i++) {
        tl_tensor b = pick(m, r + (uint32_t)i);
        tl_array x, y;
        tl_shape s;
        tl_err e = {.status = TL_OK};
        tl_array_of(m->t, a, &x);
        tl_array_of(m->t, b, &y);
        bool mixes = x.dtype == y.dtype ||
                     (is_float(m, a) && is_float(m, b) && x.dtype != TL_F64 && y.dtype != TL_F64);
        if (mixes && tl_shape_broadcast(&s, &x, &y, &e) == TL_OK && tl_shape_count(&s) <= 512)
            return b;
    }
    return a;
}

static tl_tensor unary(tl_tape *t, tl_tensor x, uint32_t r)
{
    switch (r % 20) {
    case 0: return tl_neg(t, x);
    case 1: return tl_exp(t, tl_tanh(t, x));
    case 2: return tl_tanh(t, x);
    case 3: return tl_sigmoid(t, x);
    case 4: return tl_silu(t, x);
    case 5: return tl_relu(t, x);
    case 6: return tl_square(t, x);
    case 7: return tl_scale(t, x, r % 3 == 0 ? 1 : 0.5);
    case 8: return tl_shift(t, x, r % 3 == 0 ? 0 : 0.25);
    case 9: return tl_abs(t, x);
    case 10: return tl_sin(t, x);
    case 11: return tl_gelu(t, x);
    case 12: return tl_clamp(t, x, -1, 1);
    case 13: return tl_rsqrt(t, tl_shift(t, tl_square(t, x), 1));
    case 14: return tl_neg(t, tl_neg(t, x));
    case 15: return tl_log1p(t, tl_abs(t, x));
    case 16: return tl_softplus(t, x);
    case 17: return tl_mul(t, x, tl_scalar(t, tl_dtype_of(t, x), 1));
    case 18: return tl_add(t, x, tl_scalar(t, tl_dtype_of(t, x), 0));
    default: return tl_detach(t, x);
    }
}

static tl_tensor binary(tl_tape *t, tl_tensor a, tl_tensor b, uint32_t r)
{
    switch (r % 9) {
    case 0:
    case 1: return tl_add(t, a, b);
    case 2: return tl_sub(t, a, b);
    case 3:
    case 4: return tl_mul(t, a, b);
    case 5: return tl_maximum(t, a, b);
    case 6: return tl_div(t, a, tl_shift(t, tl_square(t, b), 0.5));
    case 7: return tl_swiglu(t, a, b);
    default: return tl_where(t, tl_gt(t, a, b), a, b);
    }
}

static tl_tensor moved(tl_tape *t, tl_tensor x, uint32_t r)
{
    tl_shape s = tl_shape_of(t, x);
    int d = s.ndim > 0 ? (int)(r / 8 % (uint32_t)s.ndim) : 0;
    int64_t half = s.ndim > 0 ? s.dim[d] / 2 : 0;
    switch (r % 7) {
    case 0: return tl_reshape(t, x, TL_DIMS(tl_shape_count(&s)));
    case 1: return s.ndim > 1 ? tl_transpose(t, x, 0, s.ndim - 1) : tl_contiguous(t, x);
    case 2: return s.ndim > 0 ? tl_slice(t, x, d, half, s.dim[d], 1) : x;
    case 3: return s.ndim > 0 && half > 0 ? tl_slice(t, x, d, 0, s.dim[d], 2) : x;
    case 4:
        return s.ndim > 0 && tl_shape_count(&s) <= 256 ? tl_concat(t, ((tl_tensor[]){x, x}), 2, d)
                                                       : x;
    case 5:
        return s.ndim > 0 && s.ndim < 4
                   ? tl_reshape(t, tl_transpose(t, x, 0, s.ndim - 1), TL_DIMS(-1, 1))
                   : x;
    default: return tl_contiguous(t, s.ndim > 1 ? tl_transpose(t, x, 0, 1) : x);
    }
}

static tl_tensor reduced(tl_tape *t, tl_tensor x, uint32_t r)
{
    tl_shape s = tl_shape_of(t, x);
    int d = s.ndim > 0 ? (int)(r / 8 % (uint32_t)s.ndim) : 0;
    if (s.ndim == 0)
        return tl_sum(t, x, TL_ALL, false);
    switch (r % 7) {
    case 0: return tl_sum(t, x, TL_DIMS(d), true);
    case 1: return tl_mean(t, x, TL_DIMS(d), r & 64);
    case 2: return tl_softmax(t, x, d);
    case 3: return tl_log_softmax(t, x, d);
    case 4: return tl_rms_norm_at(TL_AT(t), x, TL_NONE, 1e-3, NULL);
    case 5: return tl_max(t, x, TL_DIMS(d), true);
    default: return tl_cumsum(t, x, d, false);
    }
}

static tl_tensor product(tl_tape *t, tl_tensor x)
{
    tl_shape s = tl_shape_of(t, x);
    if (s.ndim < 2 || s.dim[s.ndim - 2] > 16)
        return tl_square(t, x);
    return tl_matmul(t, x, tl_transpose(t, x, s.ndim - 2, s.ndim - 1));
}

static const tl_dtype dtypes[] = {TL_F32, TL_F64, TL_F16, TL_BF16};

static tl_tensor take(machine *m, const step *s)
{
    tl_tape *t = m->t;
    tl_tensor x = pick(m, s->a);
    switch (s->kind % 12) {
    case 0:
    case 1:
    case 2: return unary(t, x, s->c);
    case 3:
    case 4:
    case 5:
    case 6: return binary(t, x, mate(m, x, s->b), s->c);
    case 7: return moved(t, x, s->c);
    case 8: return reduced(t, x, s->c);
    case 9: return tl_cast(t, x, dtypes[s->c % 4]);
    case 10: return product(t, x);
    default:
        return s->c % 2 && tl_shape_of(t, x).ndim > 0 ? tl_dropout(t, x, 0.25, .stream = "random")
                                                      : tl_tanh(t, pick(m, s->b));
    }
}

/* Inputs [4,6], [6] and [4,1] and a parameter [6]; outputs: the loss, some values, and gradients.
 */
static void run_program(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                        void *ctx)
{
    const program *p = ctx;
    machine m = {.t = t, .p = p};
    char shape[TL_SHAPE_TEXT];
    tl_tensor w = tl_param(t, tl_tape_model(t), "w", TL_F32, TL_DIMS(6), .kind = TL_INIT_NORMAL,
                           .scale = 1);
    for (int i = 0; i < n_in; i++) {
        if (p->joint)
            tl_require_grad(t, in[i]);
        m.v[m.n++] = in[i];
    }
    m.v[m.n++] = w;
    for (int i = 0; i < p->n && !tl_failed(t); i++) {
        tl_tensor y = p->s[i].left_out ? pick(&m, p->s[i].a)
                                       : take(&m, &p->s[i]); /* left out: its operand goes by */
        tl_shape s = tl_shape_of(t, y);
        if (p->log != NULL && !p->s[i].left_out)
            fprintf(p->log, "  step %d kind %u: value %d, %s %s\n", i, p->s[i].kind % 12, m.n,
                    tl_dtype_name(tl_dtype_of(t, y)), tl_shape_text(shape, &s));
        m.v[m.n++] = y;
    }
    tl_tensor loss = tl_sum(t, w, TL_ALL, false);
    for (int i = n_in; i < m.n; i += 2)
        loss = tl_add(t, loss, tl_sum(t, tl_cast(t, m.v[i], TL_F32), TL_ALL, false));
    for (int i = 0; i < n_in; i++)
        loss = tl_add(t, loss, tl_sum(t, tl_cast(t, in[i], TL_F32), TL_ALL, false));
    int k = 0;
    out[k++] = loss;
    out[k++] = m.v[m.n - 1];
    out[k++] = m.v[m.n / 2];
    if (p->second) {
        tl_tensor g[INS];
        tl_gradients(t, loss, in, n_in, TL_NONE, g);
        loss = tl_sum(t, tl_square(t, tl_cast(t, g[0], TL_F32)), TL_ALL, false);
        for (int i = 1; i < n_in; i++)
            loss = tl_add(t, loss,
                          tl_sum(t, tl_square(t, tl_cast(t, g[i], TL_F32)), TL_ALL, false));
        for (int i = 0; i < n_in; i++)
            out[k++] = g[i];
        loss = tl_add(t, loss, tl_sum(t, tl_mul(t, w, w), TL_ALL, false));
        for (int i = 0; i < n_in; i++)
            loss = tl_add(t, loss, tl_sum(t, tl_cast(t, in[i], TL_F32), TL_ALL, false));
    }
    if (p->joint) {
        tl_backward(t, loss, .retain = true);
        for (int i = 0; i < n_in && k < n_out; i++)
            out[k++] = tl_grad(t, in[i]);
        if (k < n_out)
            out[k++] = tl_grad(t, w);
    }
    while (k < n_out)
        out[k++] = w;
}

/* ---- one program, both ways ---- */

static void inputs(tl_tape *t, const program *p, uint64_t seed, tl_tensor in[INS])
{
    static const tl_shape shape[INS] = {{2, {4, 6}}, {1, {6}}, {2, {4, 1}}};
    for (int i = 0; i < INS; i++) {
        double x[24];
        tl_rng_fill_normal64(x, (size_t)tl_shape_count(&shape[i]), tl_rng_stream(seed, "inputs"),
                             (uint64_t)i, 0);
        tl_tensor wide = tl_data(t, x, TL_F64, shape[i]);
        tl_tensor narrow = tl_cast(t, wide, p->dtype);
        in[i] = tl_detach(t, narrow);
    }
}

/* What the eager call gives: hashes; false if the program itself has failed. */
static bool eager(const program *p, uint64_t seed, char hash[OUTS][65], tl_model *m)
{
    tl_tape *t = tl_tape_new(m);
    tl_tensor in[INS], out[OUTS];
    inputs(t, p, seed, in);
    run_program(t, in, INS, out, OUTS, (void *)(uintptr_t)p);
    for (int i = 0; i < OUTS; i++)
        tl_sha256(t, out[i], hash[i]);
    bool ok = !tl_failed(t);
    if (!ok && p->log != NULL)
        fprintf(p->log, "called: %s\n", tl_error(t));
    tl_free(t);
    return ok;
}

/* The first output that differs; -1 if none does; OUTS for an error. */
static int differs(const program *p, uint64_t seed)
{
    tl_model *m = tl_model_new(.seed = 5);
    char want[OUTS][65], got[65];
    int bad = -1;
    if (eager(p, seed, want, m)) {
        tl_tape *t = tl_tape_new(m);
        tl_tensor in[INS], out[OUTS];
        tl_compiled *c = tl_compile_with(t, run_program, OUTS, (void *)(uintptr_t)p, p->o);
        int mode = tl_mode_push(t, p->joint ? 0 : TL_NO_GRAD);
        for (int round = 0; round < 2 && bad < 0; round++) {
            inputs(t, p, seed, in);
            if (tl_run(c, in, INS, out) != TL_OK)
                bad = OUTS;
            for (int i = 0; i < OUTS && bad < 0; i++)
                if (tl_sha256(t, out[i], got) != TL_OK || strcmp(got, want[i]) != 0)
                    bad = i;
            if (tl_failed(t) && p->log != NULL)
                fprintf(p->log, "compiled: %s\n", tl_error(t));
            tl_grad_clear(t);
            tl_tape_reset(t);
        }
        tl_mode_pop(t, mode);
        tl_free(c, t);
    }
    tl_free(m);
    return bad;
}

/* Leaves out steps as long as the program still goes wrong; prints what remains. */
static void shrink(program *p, uint64_t seed)
{
    for (bool again = true; again;) {
        again = false;
        for (int i = p->n - 1; i >= 0; i--) {
            if (p->s[i].left_out)
                continue;
            p->s[i].left_out = true;
            if (differs(p, seed) >= 0)
                again = true;
            else
                p->s[i].left_out = false;
        }
    }
    p->log = stderr;
    fprintf(stderr,
            "[ seed %llu ] %s%s%s, fuse %d, replace %d, simplify %d, keep all %d, body %d:\n",
            (unsigned long long)seed, tl_dtype_name(p->dtype), p->joint ? ", joint" : "",
            p->second ? ", second order" : "", !p->o.no_fuse, !p->o.no_replace, !p->o.no_simplify,
            p->o.limits.never_inline, (int)p->o.limits.body);
    fprintf(stderr, "  output %d\n", differs(p, seed));
}

static program random_program(uint64_t *s)
{
    program p = {.n = 1 + (int)(next(s) % STEPS),
                 .dtype = dtypes[next(s) % 4],
                 .joint = next(s) % 3 != 0};
    p.second = p.joint && next(s) % 4 == 0;
    p.o.no_fuse = next(s) % 4 == 0;
    p.o.no_replace = next(s) % 4 == 0;
    p.o.copy_inputs = next(s) % 4 == 0;
    p.o.limits = (tl_cost_limits){.body = (int64_t)(next(s) % 3 == 0 ? 1 + next(s) % 8 : 0),
                                  .never_inline = next(s) % 6 == 0,
                                  .heavy_inline = next(s) % 3 == 0};
    p.o.no_simplify = next(s) % 4 == 0;
    if (next(s) % 2)
        p.o.limits.again_bytes = p.o.limits.again_steps = 1;
    for (int i = 0; i < p.n; i++)
        p.s[i] = (step){(uint32_t)next(s), (uint32_t)next(s), (uint32_t)next(s), (uint32_t)next(s),
                        false};
    for (int i = 1; i < p.n; i++) /* the same work twice, now and then */
        if (next(s) % 8 == 0)
            p.s[i] = p.s[i - 1];
    return p;
}

static void compiled_programs_give_the_bits_of_called_ones(void **state)
{
    const char *env = getenv("TL_TEST_SEED"), *count = getenv("TL_TEST_PROGRAMS");
    uint64_t first = env != NULL ? strtoull(env, NULL, 0) : 1;
    int n = count != NULL ? atoi(count) : 2000, wrong = 0, joint = 0;
    (void)state;
    printf("TL_TEST_SEED=%llu\n", (unsigned long long)first);
    for (int i = 0; i < n && wrong < 3; i++) {
        uint64_t seed = first + (uint64_t)i, s = seed * 0x9e3779b97f4a7c15u;
        program p = random_program(&s);
        char hash[OUTS][65];
        tl_model *m = tl_model_new(.seed = 5);
        if (!eager(&p, seed, hash, m)) {
            p.log = stderr;
            eager(&p, seed, hash, m);
            fail_msg("seed %llu: the program itself is wrong", (unsigned long long)seed);
        }
        tl_free(m);
        joint += p.joint;
        if (differs(&p, seed) >= 0) {
            wrong++;
            shrink(&p, seed);
        }
    }
    printf("%d programs, %d of them joint\n", n, joint);
    assert_int_equal(wrong, 0);
    assert_true(joint > n / 3);
}

const struct CMUnitTest tl_tests_graph_random[] = {
    cmocka_unit_test(compiled_programs_give_the_bits_of_called_ones),
};
const size_t tl_tests_graph_random_count = sizeof tl_tests_graph_random /
                                           sizeof *tl_tests_graph_random;
