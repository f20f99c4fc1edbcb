/* level_rows.t.h: calls of all row kernels of one compute type, included twice by test_levels.c.
 * Parameters: T the type, S its bits, P(name) the suffixed name. Each call reads a, b, c, continues
 * y and acc, writes y, z, acc and s; scalars between are fixed. Undefined at the end. */

typedef struct {
    int64_t n;
    const T *a, *b, *c;
    T *y, *z, s[2];
    double *acc;
} P(row_call);

typedef void P(row_fn)(const tl_row_table *k, P(row_call) * r);
#define ROW_(name, S) k->name##S
#define ROW__(name, S) ROW_(name, S)
#define ROW(name) ROW__(name, S)

static void P(lanes)(const tl_row_table *k, P(row_call) * r) { r->s[0] = ROW(lanes)(r->n, r->a); }
static void P(max)(const tl_row_table *k, P(row_call) * r) { r->s[0] = ROW(max)(r->n, r->a); }
static void P(min)(const tl_row_table *k, P(row_call) * r) { r->s[0] = ROW(min)(r->n, r->a); }
static void P(square_sum)(const tl_row_table *k, P(row_call) * r)
{
    r->acc[0] = ROW(square_sum)(r->n, r->a);
}
/* One row, by the kernel of that slot. */
static void P(row)(const tl_row_table *k, int slot, P(row_call) * r, const T *a, const T *b,
                   const T *c, bool plus_one)
{
    const tl_norm_attrs attrs = {1e-5, 1, plus_one};
    const bool mean = slot == TL_ROW_layer_norm;
    ROW(rows)
    [slot](&(tl_rows){.n = r->n,
                      .rows = 1,
                      .in = {a, b, c},
                      .out = {r->y, &r->s[mean ? 1 : 0], &r->s[mean ? 0 : 1]},
                      .attrs = &attrs},
           0, 1, 0);
}
/* The gradient of a norm of one row, or a fold of one into n columns. */
static void P(norm)(tl_range_fn *f, int64_t end, P(row_call) * r, const T *x, const T *dy,
                    const T *gamma, const T *mean)
{
    f(&(tl_norm_rows){.n = r->n,
                      .rows = 1,
                      .x = x,
                      .dy = dy,
                      .gamma = gamma,
                      .mean = mean,
                      .rstd = &r->s[0],
                      .dx = r->y,
                      .fold = r->acc},
      0, end, 0);
}
static void P(rms)(const tl_row_table *k, P(row_call) * r)
{
    P(row)(k, TL_ROW_rms_norm, r, r->a, r->b, NULL, false);
}
static void P(rms_plus_one)(const tl_row_table *k, P(row_call) * r)
{
    P(row)(k, TL_ROW_rms_norm, r, r->a, r->b, NULL, true);
}
static void P(rms_plain)(const tl_row_table *k, P(row_call) * r)
{
    P(row)(k, TL_ROW_rms_norm, r, r->a, NULL, NULL, false);
}
static void P(rms_grad)(const tl_row_table *k, P(row_call) * r)
{
    r->s[0] = (T)0.7;
    P(norm)(ROW(norm_grad), 1, r, r->b, r->a, r->c, NULL);
}
static void P(rms_grad_plain)(const tl_row_table *k, P(row_call) * r)
{
    r->s[0] = (T)0.7;
    P(norm)(ROW(norm_grad), 1, r, r->b, r->a, NULL, NULL);
}
static void P(rms_fold)(const tl_row_table *k, P(row_call) * r)
{
    r->s[0] = (T)0.7;
    P(norm)(ROW(norm_fold), r->n, r, r->b, r->a, NULL, NULL);
}
static void P(fold)(const tl_row_table *k, P(row_call) * r)
{
    P(norm)(ROW(fold), r->n, r, r->a, NULL, NULL, NULL);
}
static void P(softmax)(const tl_row_table *k, P(row_call) * r)
{
    P(row)(k, TL_ROW_softmax, r, r->a, NULL, NULL, false);
}
static void P(softmax_grad)(const tl_row_table *k, P(row_call) * r)
{
    P(row)(k, TL_ROW_softmax_grad, r, r->b, r->a, NULL, false);
}
static void P(log_softmax)(const tl_row_table *k, P(row_call) * r)
{
    P(row)(k, TL_ROW_log_softmax, r, r->a, NULL, NULL, false);
}
static void P(log_softmax_grad)(const tl_row_table *k, P(row_call) * r)
{
    P(row)(k, TL_ROW_log_softmax_grad, r, r->b, r->a, NULL, false);
}
static void P(entropy)(const tl_row_table *k, P(row_call) * r)
{
    r->s[0] = (T)ROW(cross_entropy)(r->n, r->a, r->n / 2, 0);
}
static void P(entropy_grad)(const tl_row_table *k, P(row_call) * r)
{
    ROW(cross_entropy_grad)(r->n, r->a, r->n / 2, 0, 0.3, r->y);
}
static void P(smooth)(const tl_row_table *k, P(row_call) * r)
{
    r->s[0] = (T)ROW(cross_entropy)(r->n, r->a, r->n / 2, 0.1);
}
static void P(smooth_grad)(const tl_row_table *k, P(row_call) * r)
{
    ROW(cross_entropy_grad)(r->n, r->a, r->n / 2, 0.1, 0.3, r->y);
}
static void P(rotary)(const tl_row_table *k, P(row_call) * r)
{
    ROW(rotary)(r->n & ~1, r->a, r->b, r->c, false, false, r->y);
}
static void P(rotary_turned)(const tl_row_table *k, P(row_call) * r)
{
    ROW(rotary)(r->n & ~1, r->a, r->b, r->c, false, true, r->y);
}
static void P(rotary_pairs)(const tl_row_table *k, P(row_call) * r)
{
    ROW(rotary)(r->n & ~1, r->a, r->b, r->c, true, false, r->y);
}
static void P(rotary_pairs_turned)(const tl_row_table *k, P(row_call) * r)
{
    ROW(rotary)(r->n & ~1, r->a, r->b, r->c, true, true, r->y);
}
static void P(accumulate)(const tl_row_table *k, P(row_call) * r)
{
    ROW(accumulate)(r->n, r->a, r->y);
}
static void P(layer)(const tl_row_table *k, P(row_call) * r)
{
    P(row)(k, TL_ROW_layer_norm, r, r->a, r->b, r->c, false);
}
static void P(layer_plain)(const tl_row_table *k, P(row_call) * r)
{
    P(row)(k, TL_ROW_layer_norm, r, r->a, NULL, NULL, false);
}
static void P(layer_grad)(const tl_row_table *k, P(row_call) * r)
{
    r->s[0] = (T)0.7, r->s[1] = (T)0.1;
    P(norm)(ROW(norm_grad), 1, r, r->b, r->a, r->c, &r->s[1]);
}
static void P(layer_grad_plain)(const tl_row_table *k, P(row_call) * r)
{
    r->s[0] = (T)0.7, r->s[1] = (T)0.1;
    P(norm)(ROW(norm_grad), 1, r, r->b, r->a, NULL, &r->s[1]);
}
static void P(layer_fold)(const tl_row_table *k, P(row_call) * r)
{
    r->s[0] = (T)0.7, r->s[1] = (T)0.1;
    P(norm)(ROW(norm_fold), r->n, r, r->b, r->a, NULL, &r->s[1]);
}
static void P(swiglu)(const tl_row_table *k, P(row_call) * r)
{
    ROW(swiglu_grad)(r->n, r->a, r->b, r->c, r->y, r->z, NULL);
}
/* Of n/4 units. */
static void P(lstm)(const tl_row_table *k, P(row_call) * r)
{
    ROW(lstm)(r->n / 4, r->a, r->b, r->c, r->y, r->z);
}
static void P(lstm_plain)(const tl_row_table *k, P(row_call) * r)
{
    ROW(lstm)(r->n / 4, r->a, r->b, NULL, r->y, r->z);
}
static void P(lstm_out)(const tl_row_table *k, P(row_call) * r)
{
    ROW(lstm_out)(r->n / 4, r->a, r->b, r->y);
}
static void P(gru)(const tl_row_table *k, P(row_call) * r)
{
    ROW(gru)(r->n / 4, r->a, r->b, r->c, r->y, r->z);
}
static void P(gru_plain)(const tl_row_table *k, P(row_call) * r)
{
    ROW(gru)(r->n / 4, r->a, r->b, NULL, r->y, r->z);
}
static void P(rnn)(const tl_row_table *k, P(row_call) * r)
{
    ROW(rnn)(r->n, r->a, r->b, r->c, false, r->y);
}
static void P(rnn_relu)(const tl_row_table *k, P(row_call) * r)
{
    ROW(rnn)(r->n, r->a, r->b, r->c, true, r->y);
}
static void P(lstm_grad)(const tl_row_table *k, P(row_call) * r)
{
    ROW(lstm_grad)(r->n / 4, r->a, r->y, r->b, r->a, r->c, NULL, r->z);
}
static void P(lstm_grad_more)(const tl_row_table *k, P(row_call) * r)
{
    ROW(lstm_grad)(r->n / 4, r->a, r->y, r->b, r->a, r->c, r->c, r->z);
}
static void P(gru_grad)(const tl_row_table *k, P(row_call) * r)
{
    T ds[ROOM];
    ROW(gru_grad)(r->n / 4, r->y, r->b, r->c, NULL, r->z, ds);
}
static void P(gru_grad_more)(const tl_row_table *k, P(row_call) * r)
{
    T dg[ROOM];
    ROW(gru_grad)(r->n / 4, r->y, r->b, r->c, r->a, dg, r->z);
}
static void P(rnn_grad)(const tl_row_table *k, P(row_call) * r)
{
    ROW(rnn_grad)(r->n, r->a, r->b, false, r->y);
}
static void P(rnn_grad_relu)(const tl_row_table *k, P(row_call) * r)
{
    ROW(rnn_grad)(r->n, r->a, r->b, true, r->y);
}

static const struct {
    const char *name;
    P(row_fn) * call;
    int64_t least; /* elements */
} P(rows)[] = {
    {"lanes", P(lanes), 0},
    {"max", P(max), 1},
    {"min", P(min), 1},
    {"square_sum", P(square_sum), 0},
    {"rms_norm", P(rms), 1},
    {"rms_norm with 1 + gamma", P(rms_plus_one), 1},
    {"rms_norm without gamma", P(rms_plain), 1},
    {"rms_norm_grad", P(rms_grad), 1},
    {"rms_norm_grad without gamma", P(rms_grad_plain), 1},
    {"rms_norm_fold", P(rms_fold), 0},
    {"fold", P(fold), 0},
    {"softmax", P(softmax), 1},
    {"softmax_grad", P(softmax_grad), 1},
    {"log_softmax", P(log_softmax), 1},
    {"log_softmax_grad", P(log_softmax_grad), 1},
    {"cross_entropy", P(entropy), 1},
    {"cross_entropy_grad", P(entropy_grad), 1},
    {"smooth_entropy", P(smooth), 1},
    {"smooth_entropy_grad", P(smooth_grad), 1},
    {"rotary", P(rotary), 0},
    {"rotary turned", P(rotary_turned), 0},
    {"rotary of pairs", P(rotary_pairs), 0},
    {"rotary of pairs turned", P(rotary_pairs_turned), 0},
    {"accumulate", P(accumulate), 0},
    {"layer_norm", P(layer), 1},
    {"layer_norm without weights", P(layer_plain), 1},
    {"layer_norm_grad", P(layer_grad), 1},
    {"layer_norm_grad without gamma", P(layer_grad_plain), 1},
    {"layer_norm_fold", P(layer_fold), 0},
    {"swiglu_grad", P(swiglu), 0},
    {"lstm", P(lstm), 0},
    {"lstm without bias", P(lstm_plain), 0},
    {"lstm_out", P(lstm_out), 0},
    {"gru", P(gru), 0},
    {"gru without bias", P(gru_plain), 0},
    {"rnn", P(rnn), 0},
    {"rnn of relu", P(rnn_relu), 0},
    {"lstm_grad", P(lstm_grad), 0},
    {"lstm_grad with da", P(lstm_grad_more), 0},
    {"gru_grad", P(gru_grad), 0},
    {"gru_grad with da", P(gru_grad_more), 0},
    {"rnn_grad", P(rnn_grad), 0},
    {"rnn_grad of relu", P(rnn_grad_relu), 0},
};

/* Room for n elements of each operand, `off` elements from an aligned place, with guards; the same
 * values each time. */
typedef struct {
    _Alignas(64) T a[ROOM], b[ROOM], c[ROOM], y[ROOM], z[ROOM];
    _Alignas(64) double acc[ROOM];
} P(memory);

static void P(prepare)(P(memory) * m, const double *value)
{
    for (int i = 0; i < ROOM; i++) {
        m->a[i] = (T)value[i];
        m->b[i] = (T)value[ROOM + i];
        m->c[i] = (T)value[2 * ROOM + i];
        m->y[i] = m->z[i] = (T)value[3 * ROOM + i];
        m->acc[i] = value[4 * ROOM + i];
    }
}

static P(row_call) P(run)(const tl_row_table *k, P(row_fn) * f, P(memory) * m, const double *value,
                          int64_t n, int off)
{
    P(prepare)(m, value);
    P(row_call)
    r = {n, m->a + off, m->b + off, m->c + off, m->y + off, m->z + off, {0, 0}, m->acc + off};
    f(k, &r);
    return r;
}

/* All of memory, outputs and guards, and the scalars; any NaN is as good as another. */
static bool P(alike)(const T *x, const T *y, int n)
{
    for (int i = 0; i < n; i++)
        if (memcmp(&x[i], &y[i], sizeof *x) != 0 && !(x[i] != x[i] && y[i] != y[i]))
            return false;
    return true;
}

static int P(compare_rows)(const double *value, int64_t n, int off)
{
    static P(memory) want, got;
    int calls = 0;
    for (size_t f = 0; f < sizeof P(rows) / sizeof P(rows)[0]; f++) {
        if (n < P(rows)[f].least)
            continue;
        P(row_call) w = P(run)(tl_isa_at(0)->row, P(rows)[f].call, &want, value, n, off);
        for (int l = 1; tl_isa_at(l) != NULL; l++, calls++) {
            P(row_call) g = P(run)(tl_isa_at(l)->row, P(rows)[f].call, &got, value, n, off);
            if (!P(alike)(want.y, got.y, ROOM) || !P(alike)(want.z, got.z, ROOM) ||
                !P(alike)(w.s, g.s, 2) || !alike_f64(want.acc, got.acc, ROOM))
                fail_msg("%s of %d bits, %lld elements from place %d: %s and %s differ",
                         P(rows)[f].name, (int)sizeof(T) * 8, (long long)n, off, tl_isa_at(0)->name,
                         tl_isa_at(l)->name);
        }
    }
    return calls;
}

#undef ROW
#undef ROW_
#undef ROW__
#undef T
#undef S
#undef P
