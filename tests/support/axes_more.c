/* axes_more.c: the axes padding, layout and terms. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/axes.h"

/* ---- padding: rows that get no cotangent, before and after the batch ---- */

static void no_cotangent(ref_tensor *dy, int64_t from, int64_t to)
{
    int64_t row = dy->data != NULL && dy->dim[0] > 0 ? ref_numel(dy) / dy->dim[0] : 0;
    for (int64_t i = from * row; i < to * row; i++)
        ref_set(dy, i, 0);
}

void tl_axis_padding(tl_tape *t, const case_run *r, uint64_t *state, case_kind kind)
{
    ref_tensor leaf[CASE_INPUTS];
    tl_case_fill(r, state, kind, leaf);
    case_problem p = tl_case_problem_of(t, r, leaf, state, kind);
    enum { PADDING = 40 };
    int64_t *row = calloc((size_t)p.batch + PADDING, sizeof *row),
            *own = calloc((size_t)p.batch + 1, sizeof *own);
    case_result want, got;
    for (int64_t i = 0; i < p.batch; i++)
        own[i] = i;
    case_problem whole = tl_case_rows_of(&p, (int)p.batch, own);
    tl_case_problem_run(t, &whole, &want);
    bool bad = tl_axes_failed(t, r->label);
    for (int right = 0; right < 2 && !bad; right++) {
        int64_t pad = 1 + (int64_t)(tl_case_random(state) % PADDING), first = right ? 0 : pad;
        for (int64_t i = 0; i < p.batch + pad; i++)
            row[i] = i >= first && i < first + p.batch
                         ? i - first
                         : (int64_t)(tl_case_random(state) % (uint64_t)p.batch);
        case_problem padded = tl_case_rows_of(&p, (int)(p.batch + pad), row);
        no_cotangent(&padded.dy, right ? p.batch : 0, right ? p.batch + pad : pad);
        for (int64_t i = 0; i < p.batch; i++)
            own[i] = first + i;
        tl_case_problem_run(t, &padded, &got);
        bad = tl_axes_failed(t, r->label);
        for (int i = 0; i < CASE_INPUTS && !bad; i++) {
            bool rows = i < r->n && r->c->rows[i] == 'b';
            ref_tensor o = i < want.n_out ? tl_case_gather(&got.out[i], (int)p.batch, own)
                                          : (ref_tensor){0};
            ref_tensor g = want.grad[i].data == NULL ? (ref_tensor){0}
                           : rows ? tl_case_gather(&got.grad[i], (int)p.batch, own)
                                  : ref_copy(&got.grad[i]);
            if (i < want.n_out)
                tl_axes_same(r->label, "output between padding", i, &o, &want.out[i]);
            if (want.grad[i].data != NULL &&
                (rows || kind == CASE_PLAIN)) /* zero times an infinity of the padding is NaN */
                tl_axes_same(r->label, "gradient between padding, of input", i, &g, &want.grad[i]);
            ref_free(&o);
            ref_free(&g);
        }
        tl_axes_ran(t, right ? AXIS_right : AXIS_left);
        tl_case_result_free(&got);
        tl_case_problem_free(&padded);
    }
    free(row);
    free(own);
    tl_case_free(r->n, leaf);
    tl_case_result_free(&want);
    tl_case_problem_free(&whole);
    tl_case_problem_free(&p);
}

/* ---- layout: the same inputs otherwise in memory ---- */

/* in as it would lie in the layout; false where it has too few dims. */
static bool relaid(case_input *in, case_layout layout)
{
    int n = in->shape.ndim;
    if (n < (layout == CASE_HEADS ? 3 : layout == CASE_TURNED ? 2 : layout == CASE_ROW ? 0 : 1))
        return false;
    in->layout = layout;
    in->leaf = in->shape;
    int a = layout == CASE_HEADS ? 1 : n - 1, b = layout == CASE_HEADS ? 2 : n - 2;
    if (layout == CASE_HEADS || layout == CASE_TURNED) {
        in->leaf.dim[a] = in->shape.dim[b];
        in->leaf.dim[b] = in->shape.dim[a];
    }
    if (layout == CASE_PADDED)
        in->leaf.dim[n - 1] += 3; /* rows begin one element off */
    if (layout == CASE_STRIDED)
        in->leaf.dim[n - 1] = 2 * in->leaf.dim[n - 1] + 1;
    return true;
}

static void compare_relaid(tl_tape *t, const case_problem *p, const case_result *want,
                           uint64_t *state)
{
    static const case_layout layouts[] = {CASE_PADDED, CASE_STRIDED, CASE_TURNED, CASE_HEADS,
                                          CASE_ROW};
    case_run r = p->r;
    ref_tensor leaf[CASE_INPUTS];
    case_result got;
    for (int i = 0; i < r.n; i++) {
        do
            leaf[i] = (ref_tensor){0};
        while (r.in[i].present && !relaid(&r.in[i], layouts[tl_case_random(state) % 5]));
        if (r.in[i].present)
            leaf[i] = tl_case_unseen(&r.in[i], &p->in[i]);
    }
    tl_case_result(t, &r, leaf, p->dy.data ? &p->dy : NULL, &got);
    if (!tl_axes_failed(t, r.label)) {
        case_result seen = {.n_out = got.n_out};
        for (int i = 0; i < got.n_out; i++)
            seen.out[i] = got.out[i];
        for (int i = 0; i < r.n; i++)
            seen.grad[i] = got.grad[i].data == NULL ? (ref_tensor){0}
                                                    : tl_case_seen(&r.in[i], &got.grad[i]);
        tl_axes_same_results(r.label, &seen, want);
        tl_axes_ran(t, AXIS_layout);
        tl_case_free(r.n, seen.grad);
    }
    tl_case_result_free(&got);
    tl_case_free(r.n, leaf);
}

void tl_axis_layout(tl_tape *t, const case_run *r, uint64_t *state, case_kind kind)
{
    ref_tensor leaf[CASE_INPUTS];
    tl_case_fill(r, state, kind, leaf);
    case_problem p = tl_case_problem_of(t, r, leaf, state, kind);
    case_result want;
    for (int i = 0; i < r->n; i++)
        p.r.in[i].leaf = p.r.in[i].shape;
    tl_case_problem_run(t, &p, &want);
    if (!tl_axes_failed(t, r->label))
        for (int trial = 0; trial < 3; trial++)
            compare_relaid(t, &p, &want, state);
    tl_case_result_free(&want);
    tl_case_free(r->n, leaf);
    tl_case_problem_free(&p);
}

/* ---- terms: what counts for nothing before and after a row's own ---- */

/* A row's n elements between `before` and `after` others. */
typedef struct {
    tl_tape *t;
    int64_t n, before, after;
} place;

static tl_tensor around(const place *p, tl_tensor x, int dim, double pad)
{
    tl_shape a = tl_shape_of(p->t, x), b = a;
    a.dim[dim] = p->before;
    b.dim[dim] = p->after;
    tl_dtype d = tl_dtype_of(p->t, x);
    return tl_concat(p->t, ((tl_tensor[]){tl_fill(p->t, d, a, pad), x, tl_fill(p->t, d, b, pad)}),
                     3, dim);
}

static tl_tensor own(const place *p, tl_tensor y, int dim)
{
    return tl_slice(p->t, y, dim, p->before, p->before + p->n, 1);
}

static tl_tensor per_sample(const place *p, int64_t value)
{
    return tl_data(p->t, ((int64_t[]){value, value}), TL_I64, TL_DIMS(2));
}

/* x (2, n), or (2, 2, n, 4) for attention. */
typedef tl_tensor terms(const place *p, tl_tensor x);

static tl_tensor of_sum(const place *p, tl_tensor x)
{
    return tl_sum(p->t, around(p, x, 1, 0), TL_DIMS(1), false);
}
static tl_tensor of_max(const place *p, tl_tensor x)
{
    return tl_max(p->t, around(p, x, 1, -(double)INFINITY), TL_DIMS(1), false);
}
static tl_tensor of_min(const place *p, tl_tensor x)
{
    return tl_min(p->t, around(p, x, 1, (double)INFINITY), TL_DIMS(1), false);
}
static tl_tensor of_softmax(const place *p, tl_tensor x)
{
    return own(p, tl_softmax(p->t, around(p, x, 1, -(double)INFINITY), 1), 1);
}
static tl_tensor of_log_softmax(const place *p, tl_tensor x)
{
    return own(p, tl_log_softmax(p->t, around(p, x, 1, -(double)INFINITY), 1), 1);
}
static tl_tensor of_cumsum(const place *p, tl_tensor x)
{
    return own(p, tl_cumsum(p->t, around(p, x, 1, 0), 1, false), 1);
}
static tl_tensor of_cumsum_back(const place *p, tl_tensor x)
{
    return own(p, tl_cumsum(p->t, around(p, x, 1, 0), 1, true), 1);
}

static tl_tensor of_cross_entropy(const place *p, tl_tensor x)
{
    return tl_cross_entropy(p->t, around(p, x, 1, -(double)INFINITY),
                            per_sample(p, p->before + p->n / 2), TL_SUM);
}

static tl_tensor of_nll(const place *p, tl_tensor x)
{
    return tl_nll(p->t, around(p, x, 1, 2.5), per_sample(p, p->before + p->n / 3), TL_SUM);
}

/* A chain: the other operand's rows that meet the zeros hold anything. */
static tl_tensor of_matmul(const place *p, tl_tensor x)
{
    tl_tensor y = tl_tanh(p->t, tl_transpose(p->t, x, 0, 1));
    return tl_matmul(p->t, around(p, x, 1, 0), around(p, y, 0, -3.5));
}

/* Channels of zeros, whose weights hold anything. */
static tl_tensor of_conv(const place *p, tl_tensor x)
{
    const tl_shape s = TL_DIMS(2, p->before + p->n + p->after, 1);
    tl_tensor w = around(p, tl_tanh(p->t, x), 1, -3.5);
    return tl_conv1d(p->t, tl_reshape(p->t, around(p, x, 1, 0), s), tl_reshape(p->t, w, s));
}

static tl_tensor of_fold(const place *p, tl_tensor x) /* over axis 0, in f64 */
{
    return tl_sum(p->t, around(p, tl_transpose(p->t, x, 0, 1), 0, 0), TL_DIMS(0), false);
}

static tl_tensor of_attention(const place *p, tl_tensor x)
{
    tl_tensor q = around(p, x, 2, 1.5), k = around(p, tl_tanh(p->t, x), 2, -2),
              v = around(p, tl_sin(p->t, x), 2, 7);
    return own(p,
               tl_attention(p->t, q, k, v, .key_start = per_sample(p, p->before),
                            .key_end = per_sample(p, p->before + p->n)),
               2);
}

static tl_tensor of_attention_full(const place *p, tl_tensor x)
{
    tl_tensor q = around(p, x, 2, 1.5), k = around(p, tl_tanh(p->t, x), 2, -2),
              v = around(p, tl_sin(p->t, x), 2, 7);
    return own(p,
               tl_attention(p->t, q, k, v, .full = true, .key_start = per_sample(p, p->before),
                            .key_end = per_sample(p, p->before + p->n)),
               2);
}

static tl_tensor of_dropout(const place *p, tl_tensor x)
{
    case_attrs a = {.bytes = {0}};
    tl_case_attr(&tl_op_dropout, &a, "p", 0.4);
    tl_case_attr(&tl_op_dropout, &a, "key", 77);
    tl_tensor in[3] = {around(p, x, 1, 9), per_sample(p, 5), per_sample(p, p->before)};
    return own(p, tl_apply1(TL_AT(p->t), &tl_op_dropout, &a, in, 3), 1);
}

static tl_tensor of_square_sum(const place *p, tl_tensor x)
{
    tl_shape s = tl_shape_of(p->t, x);
    tl_tensor y = around(p, tl_reshape(p->t, tl_detach(p->t, x), TL_DIMS(s.dim[0] * s.dim[1])), 0,
                         0);
    return tl_apply1(TL_AT(p->t), tl_op_find("square_sum"), NULL, &y, 1);
}

static const struct {
    const char *name;
    terms *f;
    bool attention, forward_only;
} with_terms[] = {
    {"sum", of_sum, false, false},
    {"max", of_max, false, false},
    {"min", of_min, false, false},
    {"softmax", of_softmax, false, false},
    {"log_softmax", of_log_softmax, false, false},
    {"cumsum", of_cumsum, false, false},
    {"cumsum reversed", of_cumsum_back, false, false},
    {"cross_entropy", of_cross_entropy, false, false},
    {"nll", of_nll, false, false},
    {"matmul", of_matmul, false, false},
    {"conv", of_conv, false, false},
    {"fold", of_fold, false, false},
    {"attention", of_attention, true, false},
    {"attention, full", of_attention_full, true, false},
    {"dropout", of_dropout, false, false},
    {"square_sum", of_square_sum, false, true},
};

static void run_terms(const place *p, int k, const ref_tensor *x, const ref_tensor *dy,
                      case_result *res)
{
    *res = (case_result){.n_out = 1};
    tl_tape_reset(p->t);
    tl_tensor leaf = tl_case_leaf(p->t, x);
    tl_require_grad(p->t, leaf);
    tl_tensor y = with_terms[k].f(p, leaf);
    res->out[0] = tl_case_read(p->t, y);
    if (dy == NULL || with_terms[k].forward_only)
        return;
    tl_backward(p->t, y, .cotangent = tl_case_leaf(p->t, dy));
    res->grad[0] = tl_case_read(p->t, tl_grad(p->t, leaf));
}

static void terms_of(tl_tape *t, int k, int64_t n, tl_dtype dtype, uint64_t *state)
{
    char label[80];
    snprintf(label, sizeof label, "terms of %s, %s, %d of its own", with_terms[k].name,
             tl_dtype_name(dtype), (int)n);
    tl_shape s = with_terms[k].attention ? TL_DIMS(2, 2, n, 4) : TL_DIMS(2, n);
    ref_tensor x = tl_case_values(tl_case_ref_dtype(dtype), &s, state, CASE_PLAIN), dy;
    case_result first, want, got;
    place p = {t, n, 0, 0};
    run_terms(&p, k, &x, NULL, &first);
    dy = tl_case_cotangent(&first.out[0], state, CASE_PLAIN);
    run_terms(&p, k, &x, &dy, &want);
    for (int trial = 0; trial < 4 && !tl_axes_failed(t, label); trial++) {
        int64_t more = 1 + (int64_t)(tl_case_random(state) % 70);
        p.before = trial & 1 ? 0 : more;
        p.after = trial & 1 ? more : 0;
        run_terms(&p, k, &x, &dy, &got);
        if (tl_axes_failed(t, label))
            break;
        tl_axes_same_results(label, &got, &want);
        tl_axes_ran(t, trial & 1 ? AXIS_terms_right : AXIS_terms_left);
        tl_case_result_free(&got);
    }
    tl_case_result_free(&first);
    tl_case_result_free(&want);
    ref_free(&x);
    ref_free(&dy);
}

void tl_axis_terms(void)
{
    static const int64_t lengths[] = {1, 5, 31, 32, 33, 70};
    uint64_t state = tl_axes_seed();
    tl_tape *t = tl_tape_new(NULL);
    for (int k = 0; k < (int)(sizeof with_terms / sizeof with_terms[0]); k++)
        for (int i = 0; i < 6 * 4; i++)
            terms_of(t, k, lengths[i / 4], (tl_dtype)(TL_F64 + i % 4), &state);
    tl_free(t);
}
