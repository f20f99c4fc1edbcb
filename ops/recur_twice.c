/* recur_twice.c: the gradient of recur_grad, in primitives. The steps of recur_grad are made again,
 * from the last to the first; then cotangents go through them from the first to the last. All in
 * the compute type. */
#include "ops/recur.h"

tl_tensor tl_recur_before(tl_tape *t, tl_tensor x, tl_tensor h0, bool reverse)
{
    tl_shape s = tl_shape_of(t, x), one = TL_DIMS(s.dim[0], 1, s.dim[2]);
    if (s.dim[1] == 0)
        return x;
    tl_tensor part[2], *first = &part[reverse];
    part[!reverse] = tl_slice(t, x, 1, reverse, s.dim[1] - !reverse, 1);
    if (tl_is_none(h0))
        *first = tl_expand(t, tl_scalar(t, tl_dtype_of(t, x), 0), one);
    else
        *first = tl_shape_of(t, h0).ndim == 1 ? tl_expand(t, h0, one) : tl_reshape(t, h0, one);
    return tl_concat(t, part, 2, 1);
}

typedef struct {
    tl_tape *t;
    const tl_recur_attrs *at;
    tl_vjp *g;
    int64_t b, s, n, gates;
    tl_dtype dtype; /* the compute type */
    tl_tensor w, wt, in[BACK_IN], up[4];
} twice;

/* What a step has, and what comes to it, each (b, n); NONE counts as zeros where it is added. */
typedef struct {
    tl_tensor made; /* bool (b, 1); NONE: all samples */
    tl_tensor dh, dc, s, act[4], da[4], old, tc;
} moment;

static tl_tensor add(const twice *j, tl_tensor x, tl_tensor y)
{
    return tl_is_none(x) ? y : tl_is_none(y) ? x : tl_add(j->t, x, y);
}
static tl_tensor mul(const twice *j, tl_tensor x, tl_tensor y)
{
    return tl_is_none(x) || tl_is_none(y) ? TL_NONE : tl_mul(j->t, x, y);
}
static tl_tensor mul3(const twice *j, tl_tensor x, tl_tensor y, tl_tensor z)
{
    return mul(j, mul(j, x, y), z);
}
static tl_tensor less(const twice *j, tl_tensor x) /* 1 - x */
{
    return tl_shift(j->t, tl_neg(j->t, x), 1);
}
static tl_tensor some(const twice *j, tl_tensor x, int64_t width)
{
    return tl_is_none(x) ? tl_fill(j->t, j->dtype, TL_DIMS(j->b, width), 0) : x;
}
/* x where the step is made (or is not), else 0. */
static tl_tensor where(const twice *j, const moment *m, tl_tensor x, bool made)
{
    tl_tensor zero = tl_scalar(j->t, j->dtype, 0);
    if (tl_is_none(x) || tl_is_none(m->made))
        return made ? x : TL_NONE;
    return made ? tl_where(j->t, m->made, x, zero) : tl_where(j->t, m->made, zero, x);
}

static tl_tensor at_step(const twice *j, tl_tensor x, int64_t t)
{
    return tl_is_none(x) ? x : tl_select(j->t, x, 1, t);
}
static tl_tensor part(const twice *j, tl_tensor x, int64_t k)
{
    return tl_is_none(x) ? x : tl_slice(j->t, x, 1, k * j->n, (k + 1) * j->n, 1);
}
static int64_t time_of(const twice *j, int64_t k) { return j->at->reverse ? j->s - 1 - k : k; }

static tl_tensor joined(const twice *j, const tl_tensor *x, int n)
{
    tl_tensor all[4];
    for (int i = 0; i < n; i++)
        all[i] = some(j, x[i], j->n);
    return n == 1 ? all[0] : tl_concat(j->t, all, n, 1);
}

/* x'(1 - x), the slope of sigmoid; 1 - x^2, that of tanh. */
static tl_tensor bend(const twice *j, tl_tensor x) { return tl_mul(j->t, x, less(j, x)); }
static tl_tensor bend_tanh(const twice *j, tl_tensor x) { return less(j, tl_square(j->t, x)); }
/* Their derivatives: 1 - 2x, by the slope; -2x. */
static tl_tensor turn(const twice *j, tl_tensor x)
{
    return tl_shift(j->t, tl_scale(j->t, x, -2), 1);
}
static tl_tensor turn_tanh(const twice *j, tl_tensor x) { return tl_scale(j->t, x, -2); }

static tl_tensor slope(const twice *j, const moment *m) /* of tanh or relu by its result */
{
    tl_tensor h = m->act[0];
    return j->at->cell == TL_RNN_TANH
               ? bend_tanh(j, h)
               : tl_cast(j->t, tl_gt(j->t, h, tl_scalar(j->t, j->dtype, 0)), j->dtype);
}

static moment moment_of(const twice *j, int64_t k)
{
    tl_tape *t = j->t;
    const int64_t at = time_of(j, k), cell = j->at->cell;
    moment m = {.made = TL_NONE};
    const tl_tensor start = j->g->in[BACK_START], end = j->g->in[BACK_END];
    tl_tensor now = tl_scalar(t, TL_I64, (double)at);
    if (!tl_is_none(start))
        m.made = tl_le(t, start, now);
    if (!tl_is_none(end))
        m.made = tl_is_none(m.made) ? tl_gt(t, end, now)
                                    : tl_logical_and(t, m.made, tl_gt(t, end, now));
    if (!tl_is_none(m.made))
        m.made = tl_reshape(t, m.made, TL_DIMS(j->b, 1));
    for (int i = 0; i < 4 && cell <= TL_GRU; i++) {
        m.act[i] = part(j, at_step(j, j->in[BACK_A], at), i);
        m.da[i] = part(j, at_step(j, j->in[BACK_DA], at), i);
    }
    tl_tensor states = cell == TL_LSTM ? j->in[BACK_C] : j->in[BACK_Y],
              first = j->in[cell == TL_LSTM ? BACK_C0 : BACK_H0];
    if (cell > TL_GRU)
        m.act[0] = at_step(j, states, at);
    else if (k > 0)
        m.old = at_step(j, states, time_of(j, k - 1));
    else if (!tl_is_none(first))
        m.old = tl_expand(t, first, TL_DIMS(j->b, j->n));
    else
        m.old = some(j, TL_NONE, j->n);
    if (cell == TL_LSTM)
        m.tc = tl_tanh(t, at_step(j, states, at));
    return m;
}

/* The gates' cotangents of an LSTM before their slopes. */
static tl_tensor lstm_of(const twice *j, const moment *m, int i)
{
    tl_tensor by[4] = {m->act[2], m->old, m->act[0], m->tc};
    return add(j, tl_mul(j->t, i == 3 ? m->dh : m->dc, by[i]), m->da[i]);
}
static tl_tensor slope_of(const twice *j, const moment *m, int i)
{
    return i == 2 ? bend_tanh(j, m->act[2]) : bend(j, m->act[i]);
}
/* Of a GRU: dm, that of n before its slope; of z; and of r, from m after it. */
static tl_tensor gru_n(const twice *j, const moment *m)
{
    return add(j, tl_mul(j->t, m->dh, less(j, m->act[1])), m->da[2]);
}
static tl_tensor gru_z(const twice *j, const moment *m)
{
    return add(j, tl_mul(j->t, m->dh, tl_sub(j->t, m->old, m->act[2])), m->da[1]);
}
static tl_tensor gru_r(const twice *j, const moment *m, tl_tensor dm)
{
    return add(j, tl_mul(j->t, dm, m->act[3]), m->da[0]);
}

/* Makes the steps of recur_grad: dh, dc and s of each moment, from the last on. */
static void again(const twice *j, moment *m)
{
    tl_tape *t = j->t;
    tl_tensor p = some(j, j->in[BACK_DHN], j->n), q = some(j, j->in[BACK_DCN], j->n);
    for (int64_t k = j->s; k-- > 0;) {
        const int64_t at = time_of(j, k), cell = j->at->cell;
        m[k] = moment_of(j, k);
        moment *x = &m[k];
        tl_tensor gate[4] = {TL_NONE, TL_NONE, TL_NONE, TL_NONE}, keep = TL_NONE;
        x->dh = add(j, p, at_step(j, j->in[BACK_DY], at));
        tl_tensor stay = q = add(j, q, at_step(j, j->in[BACK_DC], at));
        if (cell == TL_LSTM) {
            x->dc = tl_add(t, q, tl_mul(t, tl_mul(t, x->dh, x->act[3]), bend_tanh(j, x->tc)));
            for (int i = 0; i < 4; i++)
                gate[i] = tl_mul(t, lstm_of(j, x, i), slope_of(j, x, i));
            stay = tl_mul(t, x->dc, x->act[1]);
        } else if (cell == TL_GRU) {
            tl_tensor dm = tl_mul(t, gru_n(j, x), bend_tanh(j, x->act[2]));
            gate[0] = tl_mul(t, gru_r(j, x, dm), bend(j, x->act[0]));
            gate[1] = tl_mul(t, gru_z(j, x), bend(j, x->act[1]));
            gate[2] = add(j, tl_mul(t, dm, x->act[0]), x->da[3]);
            keep = tl_mul(t, x->dh, x->act[1]);
        } else
            gate[0] = tl_mul(t, x->dh, slope(j, x));
        x->s = where(j, x, joined(j, gate, (int)(j->gates / j->n)), true);
        p = add(j, add(j, where(j, x, keep, true), tl_matmul(t, x->s, j->w)),
                where(j, x, x->dh, false));
        q = add(j, where(j, x, stay, true), where(j, x, q, false));
    }
}

/* What a step gives: cotangents of its own inputs. */
typedef struct {
    tl_tensor dh, q, act[4], da[4], old, c;
} given;

/* sum: of dgates, and of du alone (the others': NONE); P, Q: of what the step hands on. */
static given lstm_gives(const twice *j, const moment *m, const tl_tensor *u, tl_tensor Q)
{
    given y = {.q = mul(j, Q, m->act[1])};
    const tl_tensor by[4] = {m->act[2], m->old, m->act[0], m->tc};
    for (int i = 0; i < 4; i++) {
        y.da[i] = mul(j, u[i], slope_of(j, m, i));
        if (i < 3)
            y.q = add(j, y.q, mul(j, y.da[i], by[i]));
    }
    tl_tensor o = m->act[3], k = bend_tanh(j, m->tc);
    y.dh = add(j, mul(j, y.da[3], m->tc), mul3(j, y.q, o, k));
    for (int i = 0; i < 4; i++) /* by the slope's own derivative */
        y.act[i] = i == 2 ? mul3(j, u[2], lstm_of(j, m, 2), turn_tanh(j, m->act[2]))
                          : mul3(j, u[i], lstm_of(j, m, i), turn(j, m->act[i]));
    y.act[0] = add(j, y.act[0], mul(j, y.da[2], m->dc));
    y.act[1] = add(j, y.act[1], mul(j, Q, m->dc));
    y.act[2] = add(j, y.act[2], mul(j, y.da[0], m->dc));
    y.act[3] = add(j, y.act[3], mul3(j, y.q, m->dh, k));
    y.old = mul(j, y.da[1], m->dc);
    y.c = add(j, mul(j, y.da[3], m->dh), mul(j, mul3(j, y.q, m->dh, o), turn_tanh(j, m->tc)));
    y.c = mul(j, y.c, k);
    return y;
}

/* u: of r, z and n of dgates; v: of du; r and z are given in u. */
static given gru_gives(const twice *j, const moment *m, const tl_tensor *u, tl_tensor v,
                       tl_tensor P)
{
    given y = {.da[3] = v};
    tl_tensor r = m->act[0], z = m->act[1], n = m->act[2], dn = gru_n(j, m),
              dm = tl_mul(j->t, dn, bend_tanh(j, n)), hn = tl_sub(j->t, m->old, n);
    y.da[0] = mul(j, u[0], bend(j, r));
    y.da[1] = mul(j, u[1], bend(j, z));
    tl_tensor to_m = add(j, add(j, u[2], mul(j, v, r)), mul(j, y.da[0], m->act[3]));
    y.da[2] = mul(j, to_m, bend_tanh(j, n));
    y.act[0] = add(j, mul3(j, u[0], gru_r(j, m, dm), turn(j, r)), mul(j, v, dm));
    y.act[1] = add(j, mul3(j, u[1], gru_z(j, m), turn(j, z)), mul(j, P, m->dh));
    y.act[1] = add(j, y.act[1], mul(j, tl_neg(j->t, some(j, y.da[2], j->n)), m->dh));
    y.old = mul(j, y.da[1], m->dh);
    y.act[2] = add(j, mul3(j, to_m, dn, turn_tanh(j, n)), tl_neg(j->t, some(j, y.old, j->n)));
    y.act[3] = mul(j, y.da[0], dm);
    y.dh = add(j, add(j, mul(j, y.da[1], hn), mul(j, y.da[2], less(j, z))), mul(j, P, z));
    return y;
}

static given rnn_gives(const twice *j, const moment *m, tl_tensor u)
{
    given y = {.dh = mul(j, u, slope(j, m))};
    if (j->at->cell == TL_RNN_TANH)
        y.act[0] = mul3(j, u, m->dh, turn_tanh(j, m->act[0]));
    return y;
}

static tl_tensor stacked(const twice *j, tl_tensor *x, int64_t width)
{
    bool any = false;
    for (int64_t i = 0; i < j->s; i++)
        any |= !tl_is_none(x[i]);
    for (int64_t i = 0; i < j->s; i++)
        x[i] = some(j, x[i], width);
    return any ? tl_stack(j->t, x, (int)j->s, 1) : TL_NONE;
}

/* Cotangents of each step's inputs, by time, and of w. */
typedef struct {
    tl_tensor *dy, *dc, *da, *act, *state, *s, *p; /* of (b, n), (b, 4n), ..., s of them */
    tl_tensor first, dhn, dcn;                     /* of c0 or h0, from old; of the last states */
} sums;

static void through(const twice *j, const moment *m, sums *o)
{
    const int64_t cell = j->at->cell;
    tl_tensor P = j->up[2], Q = j->up[3];
    for (int64_t k = 0; k < j->s; k++) {
        const int64_t at = time_of(j, k);
        const moment *x = &m[k];
        tl_tensor Pm = where(j, x, P, true), Qm = where(j, x, Q, true), u[4], v = TL_NONE;
        tl_tensor of_s = tl_is_none(Pm) ? TL_NONE : tl_matmul(j->t, Pm, j->wt),
                  ug = where(j, x, at_step(j, j->up[0], at), true),
                  uu = where(j, x, at_step(j, j->up[1], at), true);
        of_s = add(j, of_s, uu);
        for (int i = 0; i < j->gates / j->n; i++)
            u[i] = cell == TL_GRU && i == 2 ? part(j, ug, 2)
                                            : add(j, part(j, ug, i), part(j, of_s, i));
        if (cell == TL_GRU)
            v = part(j, of_s, 2);
        given y = cell == TL_LSTM  ? lstm_gives(j, x, u, Qm)
                  : cell == TL_GRU ? gru_gives(j, x, u, v, Pm)
                                   : rnn_gives(j, x, u[0]);
        o->s[at] = x->s;
        o->p[at] = Pm;
        if (cell <= TL_GRU) {
            o->act[at] = joined(j, y.act, 4);
            o->da[at] = joined(j, y.da, 4);
            if (k == 0)
                o->first = y.old;
            else
                o->state[time_of(j, k - 1)] = add(j, o->state[time_of(j, k - 1)], y.old);
        }
        o->state[at] = add(j, o->state[at], cell > TL_GRU ? y.act[0] : y.c);
        o->dy[at] = P = add(j, y.dh, where(j, x, P, false));
        o->dc[at] = Q = add(j, y.q, where(j, x, Q, false));
    }
    o->dhn = P;
    o->dcn = Q;
}

static void give(const twice *j, int input, tl_tensor x)
{
    tl_tape *t = j->t;
    tl_vjp *g = j->g;
    if (!g->wants[input])
        return;
    tl_shape s = tl_shape_of(t, g->in[input]);
    tl_dtype d = tl_dtype_of(t, g->in[input]);
    g->dx[input] = tl_is_none(x) ? tl_fill(t, d, s, 0) : d == j->dtype ? x : tl_cast(t, x, d);
}

void tl_recur_grad_vjp(tl_vjp *g)
{
    tl_tape *t = g->t;
    tl_shape y = tl_shape_of(t, g->in[BACK_Y]);
    twice j = {.t = t, .at = g->attrs, .g = g, .b = y.dim[0], .s = y.dim[1], .n = y.dim[2]};
    j.dtype = tl_dtype_compute(tl_dtype_of(t, g->in[BACK_Y]));
    j.gates = tl_shape_of(t, g->in[BACK_W]).dim[0];
    for (int i = 0; i < BACK_IN; i++)
        j.in[i] = tl_is_none(g->in[i]) || i == BACK_START || i == BACK_END ||
                          tl_dtype_of(t, g->in[i]) == j.dtype
                      ? g->in[i]
                      : tl_cast(t, g->in[i], j.dtype);
    for (int i = 0; i < 4; i++)
        j.up[i] = tl_is_none(g->dy[i]) || tl_dtype_of(t, g->dy[i]) == j.dtype
                      ? g->dy[i]
                      : tl_cast(t, g->dy[i], j.dtype);
    j.w = j.in[BACK_W];
    j.wt = tl_transpose(t, j.w, 0, 1);
    moment *m = tl_tape_scratch(t, (size_t)(j.s + 1) * sizeof *m);
    tl_tensor *all = tl_tape_scratch(t, (size_t)(7 * j.s + 1) * sizeof *all);
    if (m == NULL || all == NULL) {
        tl_tape_fail(TL_AT(t), TL_ENOMEM, "recur_grad: no memory for %lld steps", (long long)j.s);
        return;
    }
    sums o = {all,           all + j.s,     all + 2 * j.s, all + 3 * j.s, all + 4 * j.s,
              all + 5 * j.s, all + 6 * j.s, TL_NONE,       TL_NONE,       TL_NONE};
    again(&j, m);
    through(&j, m, &o);
    const bool lstm = j.at->cell == TL_LSTM;
    give(&j, BACK_DY, stacked(&j, o.dy, j.n));
    give(&j, BACK_DC, stacked(&j, o.dc, j.n));
    give(&j, BACK_DA, stacked(&j, o.da, 4 * j.n));
    give(&j, BACK_A, stacked(&j, o.act, 4 * j.n));
    give(&j, BACK_Y, lstm ? TL_NONE : stacked(&j, o.state, j.n));
    give(&j, BACK_C, lstm ? stacked(&j, o.state, j.n) : TL_NONE);
    give(&j, BACK_H0, lstm ? TL_NONE : o.first);
    give(&j, BACK_C0, lstm ? o.first : TL_NONE);
    give(&j, BACK_DHN, o.dhn);
    give(&j, BACK_DCN, o.dcn);
    if (g->wants[BACK_W]) { /* of each sample: the engine adds them up */
        tl_tensor p = stacked(&j, o.p, j.n), s = stacked(&j, o.s, j.gates);
        if (tl_is_none(p) || tl_is_none(s))
            give(&j, BACK_W, TL_NONE);
        else
            g->dx[BACK_W] = tl_matmul(t, tl_transpose(t, s, 1, 2), p);
    }
}
