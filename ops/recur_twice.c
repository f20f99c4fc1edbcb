/* recur_twice.c: the derivative of recur_grad, in primitives and in the compute type. It makes the
 * steps of recur_grad again, from the last to the first. Then it takes the cotangents of
 * recur_grad's results through them, from the first to the last. */
#include "ops/build.h"

/* x, but the first state `before` (b, 1, n) up to each sample's first step. The two are equal
 * there, but through `before` gradients go on as they do without padding. */
static tl_tensor past_padding(tl_tape *t, tl_tensor x, tl_tensor before, tl_tensor edge,
                              bool reverse)
{
    const tl_shape s = tl_shape_of(t, x);
    const tl_tensor now = tl_reshape(t,
                                     tl_arange(t, TL_I64, reverse, (double)s.dim[1] + reverse, 1),
                                     TL_DIMS(1, s.dim[1], 1)),
                    at = tl_reshape(t, edge, TL_DIMS(s.dim[0], 1, 1));
    return tl_where(t, reverse ? tl_lt(t, now, at) : tl_gt(t, now, at), x, before);
}

tl_tensor tl_recur_before(tl_tape *t, tl_tensor x, tl_tensor h0, tl_tensor edge, bool reverse)
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
    if (tl_batch_of(t, *first) == TL_FREE)
        tl_batch_samples_of(t, *first, x, 0);
    const bool again = !tl_is_none(h0) && !tl_is_none(edge) && !(tl_mode(t) & TL_NO_GRAD);
    const tl_tensor before = *first;
    x = tl_concat(t, part, 2, 1);
    return again ? past_padding(t, x, before, edge, reverse) : x;
}

typedef struct {
    tl_tape *t;
    const tl_recur_attrs *at;
    tl_vjp *g;
    int64_t b, s, n;
    int gates;                        /* 4, 3 or 1, of n units each */
    tl_dtype dtype;                   /* the compute type */
    tl_tensor wt, in[BACK_IN], up[4]; /* w^T; recur_grad's inputs; its results' cotangents */
} twice;

/* One step of recur_grad: the values it reads and makes, each (b, n). TL_NONE counts as zeros. */
typedef struct {
    tl_tensor made;     /* bool (b, 1): which samples have the step; TL_NONE: all */
    tl_tensor act[4];   /* the gates' values; [0] is h in a cell without gates */
    tl_tensor slope[4]; /* of the function that made them */
    tl_tensor old;      /* the state before the step: an LSTM's c, a GRU's h */
    tl_tensor tc;       /* tanh of an LSTM's c after the step */
    tl_tensor dh, dc;   /* cotangents of h and c after the step */
    tl_tensor da[4];    /* added to the cotangents of the gates' values */
    tl_tensor dact[4];  /* the cotangents of the gates' values, with da */
    tl_tensor s;        /* the cotangents of the gates, side by side */
} moment;

static tl_tensor add(const twice *j, tl_tensor x, tl_tensor y) { return tl_plus(j->t, x, y); }
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
/* x; if absent, zeros for each sample. */
static tl_tensor some(const twice *j, tl_tensor x, int64_t width)
{
    return tl_is_none(x)
               ? tl_zeros_of(TL_AT(j->t), j->dtype, TL_DIMS(j->b, width), j->g->in[BACK_Y], 0)
               : x;
}
/* x where the step is made (or where it is not), else 0. */
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

/* The slope of tanh, from its result x. */
static tl_tensor slope_tanh(const twice *j, tl_tensor x) { return less(j, tl_square(j->t, x)); }

/* The slope of gate i, or of the cell if it has no gates, from its value x. The functions are tanh
 * for gate 2 and for the cell, or relu, and sigmoid for the other gates. */
static tl_tensor slope_of(const twice *j, int i, tl_tensor x)
{
    const int64_t cell = j->at->cell;
    if (cell == TL_RNN_RELU)
        return tl_cast(j->t, tl_gt(j->t, x, tl_scalar(j->t, j->dtype, 0)), j->dtype);
    return cell == TL_RNN_TANH || i == 2 ? slope_tanh(j, x) : tl_mul(j->t, x, less(j, x));
}

/* The derivative of that slope by x: -2x for tanh, 1 - 2x for sigmoid. */
static tl_tensor turn_tanh(const twice *j, tl_tensor x) { return tl_scale(j->t, x, -2); }
static tl_tensor turn(const twice *j, tl_tensor x) { return tl_shift(j->t, turn_tanh(j, x), 1); }

/* Which samples have the step at that time, bool (b, 1); TL_NONE: all. */
static tl_tensor made_at(const twice *j, int64_t at)
{
    tl_tape *t = j->t;
    const tl_tensor start = j->g->in[BACK_START], end = j->g->in[BACK_END];
    tl_tensor now = tl_scalar(t, TL_I64, (double)at), made = TL_NONE;
    if (!tl_is_none(start))
        made = tl_le(t, start, now);
    if (!tl_is_none(end))
        made = tl_is_none(made) ? tl_gt(t, end, now) : tl_logical_and(t, made, tl_gt(t, end, now));
    return tl_is_none(made) ? made : tl_reshape(t, made, TL_DIMS(j->b, 1));
}

static moment moment_of(const twice *j, int64_t k)
{
    tl_tape *t = j->t;
    const int64_t at = time_of(j, k), cell = j->at->cell;
    moment m = {.made = made_at(j, at)};
    for (int i = 0; i < 4 && cell <= TL_GRU; i++) {
        m.act[i] = part(j, at_step(j, j->in[BACK_A], at), i);
        m.da[i] = part(j, at_step(j, j->in[BACK_DA], at), i);
    }
    tl_tensor states = cell == TL_LSTM ? j->in[BACK_C] : j->in[BACK_Y],
              first = j->in[cell == TL_LSTM ? BACK_C0 : BACK_H0];
    const tl_tensor before = k == 0 ? TL_NONE : made_at(j, time_of(j, k - 1));
    if (cell > TL_GRU) {
        m.act[0] = at_step(j, states, at);
    } else if (k > 0 && tl_is_none(before)) {
        m.old = at_step(j, states, time_of(j, k - 1));
    } else {
        m.old = tl_is_none(first) ? some(j, TL_NONE, j->n)
                                  : tl_expand(t, first, TL_DIMS(j->b, j->n));
        if (k > 0)
            m.old = tl_where(t, before, at_step(j, states, time_of(j, k - 1)), m.old);
    }
    if (cell == TL_LSTM)
        m.tc = tl_tanh(t, at_step(j, states, at));
    for (int i = 0; i < j->gates; i++)
        m.slope[i] = slope_of(j, i, m.act[i]);
    return m;
}

/* Makes the steps of recur_grad again, from the last to the first: fills in all moments. */
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
            x->dc = tl_add(t, q, tl_mul(t, tl_mul(t, x->dh, x->act[3]), slope_tanh(j, x->tc)));
            const tl_tensor by[4] = {x->act[2], x->old, x->act[0], x->tc};
            for (int i = 0; i < 4; i++) {
                x->dact[i] = add(j, tl_mul(t, i == 3 ? x->dh : x->dc, by[i]), x->da[i]);
                gate[i] = tl_mul(t, x->dact[i], x->slope[i]);
            }
            stay = tl_mul(t, x->dc, x->act[1]);
        } else if (cell == TL_GRU) {
            x->dact[2] = add(j, tl_mul(t, x->dh, less(j, x->act[1])), x->da[2]);
            x->dact[1] = add(j, tl_mul(t, x->dh, tl_sub(t, x->old, x->act[2])), x->da[1]);
            tl_tensor dm = tl_mul(t, x->dact[2], x->slope[2]);
            x->dact[0] = add(j, tl_mul(t, dm, x->act[3]), x->da[0]);
            gate[0] = tl_mul(t, x->dact[0], x->slope[0]);
            gate[1] = tl_mul(t, x->dact[1], x->slope[1]);
            gate[2] = add(j, tl_mul(t, dm, x->act[0]), x->da[3]);
            keep = tl_mul(t, x->dh, x->act[1]);
        } else
            gate[0] = tl_mul(t, x->dh, x->slope[0]);
        x->s = where(j, x, joined(j, gate, j->gates), true);
        p = add(j, add(j, where(j, x, keep, true), tl_matmul(t, x->s, j->in[BACK_W])),
                where(j, x, x->dh, false));
        q = add(j, where(j, x, stay, true), where(j, x, q, false));
    }
}

/* The cotangents of the values that one step reads, named as in moment. */
typedef struct {
    tl_tensor dh, q, act[4], da[4], old, c; /* q: of dc before the product with dh is added */
} given;

/* u: the cotangents of dgates, by gate; Q: the cotangent of the dc that the step hands on. */
static given lstm_gives(const twice *j, const moment *m, const tl_tensor *u, tl_tensor Q)
{
    given y = {.q = mul(j, Q, m->act[1])};
    const tl_tensor by[4] = {m->act[2], m->old, m->act[0], m->tc};
    for (int i = 0; i < 4; i++) {
        y.da[i] = mul(j, u[i], m->slope[i]);
        if (i < 3)
            y.q = add(j, y.q, mul(j, y.da[i], by[i]));
    }
    tl_tensor o = m->act[3], k = slope_tanh(j, m->tc);
    y.dh = add(j, mul(j, y.da[3], m->tc), mul3(j, y.q, o, k));
    for (int i = 0; i < 4; i++) /* by the slope's own derivative */
        y.act[i] = mul3(j, u[i], m->dact[i], (i == 2 ? turn_tanh : turn)(j, m->act[i]));
    y.act[0] = add(j, y.act[0], mul(j, y.da[2], m->dc));
    y.act[1] = add(j, y.act[1], mul(j, Q, m->dc));
    y.act[2] = add(j, y.act[2], mul(j, y.da[0], m->dc));
    y.act[3] = add(j, y.act[3], mul3(j, y.q, m->dh, k));
    y.old = mul(j, y.da[1], m->dc);
    y.c = add(j, mul(j, y.da[3], m->dh), mul(j, mul3(j, y.q, m->dh, o), turn_tanh(j, m->tc)));
    y.c = mul(j, y.c, k);
    return y;
}

/* u: the cotangents of r, z and n in dgates; v: of n in du; P: of the dh that the step hands on. */
static given gru_gives(const twice *j, const moment *m, const tl_tensor *u, tl_tensor v,
                       tl_tensor P)
{
    given y = {.da[3] = v};
    tl_tensor r = m->act[0], z = m->act[1], n = m->act[2],
              dm = tl_mul(j->t, m->dact[2], m->slope[2]), hn = tl_sub(j->t, m->old, n);
    y.da[0] = mul(j, u[0], m->slope[0]);
    y.da[1] = mul(j, u[1], m->slope[1]);
    tl_tensor to_m = add(j, add(j, u[2], mul(j, v, r)), mul(j, y.da[0], m->act[3]));
    y.da[2] = mul(j, to_m, m->slope[2]);
    y.act[0] = add(j, mul3(j, u[0], m->dact[0], turn(j, r)), mul(j, v, dm));
    y.act[1] = add(j, mul3(j, u[1], m->dact[1], turn(j, z)), mul(j, P, m->dh));
    y.act[1] = add(j, y.act[1], mul(j, tl_neg(j->t, some(j, y.da[2], j->n)), m->dh));
    y.old = mul(j, y.da[1], m->dh);
    y.act[2] = add(j, mul3(j, to_m, m->dact[2], turn_tanh(j, n)),
                   tl_neg(j->t, some(j, y.old, j->n)));
    y.act[3] = mul(j, y.da[0], dm);
    y.dh = add(j, add(j, mul(j, y.da[1], hn), mul(j, y.da[2], less(j, z))), mul(j, P, z));
    return y;
}

static given rnn_gives(const twice *j, const moment *m, tl_tensor u)
{
    given y = {.dh = mul(j, u, m->slope[0])};
    if (j->at->cell == TL_RNN_TANH)
        y.act[0] = mul3(j, u, m->dh, turn_tanh(j, m->act[0]));
    return y;
}

/* By time: the cotangents of dy, dc, da, a and the states (an LSTM's c, else y); s; and the P that
 * multiplies s in the gradient of w. */
enum { DY, DC, DA, ACT, STATE, S, P_OF_S, BY_TIME };
typedef struct {
    tl_tensor *at[BY_TIME];
    tl_tensor first, dhn, dcn; /* cotangents of the first state, of dhn and of dcn */
} sums;

/* Stacked along axis 1, with zeros for what is absent; TL_NONE if all are. */
static tl_tensor stacked(const twice *j, tl_tensor *x, int64_t width)
{
    bool any = false;
    for (int64_t i = 0; i < j->s; i++) {
        any |= !tl_is_none(x[i]);
        x[i] = some(j, x[i], width);
    }
    return any ? tl_stack(j->t, x, (int)j->s, 1) : TL_NONE;
}

/* Adds x to the cotangent of the state before step k: the state of the step before or, if the
 * sample does not have that step, the first state. So padding before a sample changes no bit. */
static void to_state_before(const twice *j, const moment *m, int64_t k, tl_tensor x, sums *o)
{
    if (k == 0) {
        o->first = add(j, o->first, x);
        return;
    }
    tl_tensor *state = &o->at[STATE][time_of(j, k - 1)];
    *state = add(j, *state, where(j, &m[k - 1], x, true));
    o->first = add(j, o->first, where(j, &m[k - 1], x, false));
}

/* Takes the cotangents of recur_grad's results through the steps, from the first to the last. */
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
        for (int i = 0; i < j->gates; i++)
            u[i] = cell == TL_GRU && i == 2 ? part(j, ug, 2)
                                            : add(j, part(j, ug, i), part(j, of_s, i));
        if (cell == TL_GRU)
            v = part(j, of_s, 2);
        given y = cell == TL_LSTM  ? lstm_gives(j, x, u, Qm)
                  : cell == TL_GRU ? gru_gives(j, x, u, v, Pm)
                                   : rnn_gives(j, x, u[0]);
        o->at[S][at] = x->s;
        o->at[P_OF_S][at] = Pm;
        if (cell <= TL_GRU) {
            o->at[ACT][at] = joined(j, y.act, 4);
            o->at[DA][at] = joined(j, y.da, 4);
            to_state_before(j, m, k, y.old, o);
        }
        o->at[STATE][at] = add(j, o->at[STATE][at], cell > TL_GRU ? y.act[0] : y.c);
        o->at[DY][at] = P = add(j, y.dh, where(j, x, P, false));
        o->at[DC][at] = Q = add(j, y.q, where(j, x, Q, false));
    }
    o->dhn = P;
    o->dcn = Q;
}

/* Sets the gradient of an input, if it is wanted, to x, or to zeros if x is absent. */
static void give(const twice *j, int input, tl_tensor x)
{
    tl_tape *t = j->t;
    tl_vjp *g = j->g;
    if (!g->wants[input])
        return;
    if (tl_is_none(x) && (input == BACK_H0 || input == BACK_C0))
        x = some(j, x, j->n); /* for each sample, as when x is there */
    g->dx[input] = tl_is_none(x) ? tl_filled_like(t, g->in[input], 0)
                                 : tl_in_dtype(TL_AT(t), x, tl_dtype_of(t, g->in[input]));
}

void tl_recur_grad_vjp(tl_vjp *g)
{
    tl_tape *t = g->t;
    tl_shape y = tl_shape_of(t, g->in[BACK_Y]);
    twice j = {.t = t, .at = g->attrs, .g = g, .b = y.dim[0], .s = y.dim[1], .n = y.dim[2]};
    j.gates = tl_recur_gates(j.at->cell);
    j.dtype = tl_dtype_compute(tl_dtype_of(t, g->in[BACK_Y]));
    for (int i = 0; i < BACK_IN; i++)
        j.in[i] = i == BACK_START || i == BACK_END ? g->in[i]
                                                   : tl_in_dtype(TL_AT(t), g->in[i], j.dtype);
    for (int i = 0; i < 4; i++)
        j.up[i] = tl_in_dtype(TL_AT(t), g->dy[i], j.dtype);
    j.wt = tl_transpose(t, j.in[BACK_W], 0, 1);
    moment *m = tl_tape_scratch(t, (size_t)(j.s + 1) * sizeof *m);
    tl_tensor *all = tl_tape_scratch(t, (size_t)(BY_TIME * j.s + 1) * sizeof *all);
    if (m == NULL || all == NULL) {
        tl_tape_fail(TL_AT(t), TL_ENOMEM, "recur_grad: no memory for %lld steps", (long long)j.s);
        return;
    }
    sums o = {.first = TL_NONE};
    for (int i = 0; i < BY_TIME; i++)
        o.at[i] = all + i * j.s;
    again(&j, m);
    through(&j, m, &o);
    const bool lstm = j.at->cell == TL_LSTM;
    give(&j, BACK_DY, stacked(&j, o.at[DY], j.n));
    give(&j, BACK_DC, stacked(&j, o.at[DC], j.n));
    give(&j, BACK_DA, stacked(&j, o.at[DA], 4 * j.n));
    give(&j, BACK_A, stacked(&j, o.at[ACT], 4 * j.n));
    give(&j, lstm ? BACK_C : BACK_Y, stacked(&j, o.at[STATE], j.n));
    give(&j, lstm ? BACK_Y : BACK_C, TL_NONE);
    give(&j, lstm ? BACK_C0 : BACK_H0, o.first);
    give(&j, lstm ? BACK_H0 : BACK_C0, TL_NONE);
    give(&j, BACK_DHN, o.dhn);
    give(&j, BACK_DCN, o.dcn);
    if (g->wants[BACK_W]) { /* of each sample: the engine adds them up */
        tl_tensor p = stacked(&j, o.at[P_OF_S], j.n), ds = stacked(&j, o.at[S], j.gates * j.n);
        if (tl_is_none(p) || tl_is_none(ds))
            give(&j, BACK_W, TL_NONE);
        else
            g->dx[BACK_W] = tl_matmul(t, tl_transpose(t, ds, 1, 2), p);
    }
}
