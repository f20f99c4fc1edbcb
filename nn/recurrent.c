/* recurrent.c: LSTM, GRU and RNN of several layers, in one direction or both: NAME.weight_ih_l0,
 * NAME.weight_hh_l0, NAME.bias_ih_l0, NAME.bias_hh_l0, then _l1, and _reverse behind that, as
 * PyTorch names and lays them out. One product makes the gates of all steps from x; tl_recur is the
 * rest. */
#include "autograd/op.h"
#include "nn/layers.h"

#include <stdio.h>

typedef struct {
    tl_tape *t;
    tl_model *m;
    const char *name;
    int64_t hidden;
    tl_cell cell;
    const tl_recurrent_options *o;
} net;

/* NAME.weight_ih_l0_reverse: one of a layer and direction. */
static tl_tensor weight(const net *n, const char *what, int64_t layer, bool reverse, tl_dtype dtype,
                        tl_shape shape)
{
    char own[64], buf[TL_NAME_MAX];
    tl_init init = {TL_INIT_UNIFORM, tl_inv_sqrt(1, n->hidden)};
    snprintf(own, sizeof own, "%s_l%lld%s", what, (long long)layer, reverse ? "_reverse" : "");
    return tl_param_at(TL_AT(n->t), n->m, tl_join(n->t, buf, n->name, own), dtype, shape, init);
}

/* Row `i` of a state (layers * directions, b, hidden). */
static tl_tensor state(const net *n, tl_tensor x, int64_t i)
{
    return tl_is_none(x) ? x : tl_select(n->t, x, 0, i);
}

static tl_tensor one_direction(const net *n, tl_tensor x, int64_t layer, bool reverse,
                               tl_tensor *last)
{
    tl_tape *t = n->t;
    const tl_recurrent_options *o = n->o;
    const int64_t gates = n->cell == TL_LSTM  ? 4
                          : n->cell == TL_GRU ? 3
                                              : 1,
                  rows = gates * n->hidden, i = layer * (1 + o->both) + reverse;
    const tl_dtype d = tl_dtype_of(t, x);
    tl_tensor wi = weight(n, "weight_ih", layer, reverse, d, TL_DIMS(rows, tl_last_dim(t, x))),
              wh = weight(n, "weight_hh", layer, reverse, d, TL_DIMS(rows, n->hidden)),
              bh = TL_NONE, product = tl_matmul(t, x, tl_transpose(t, wi, 0, 1)), g = product;
    if (!o->no_bias) {
        g = tl_add(t, product, weight(n, "bias_ih", layer, reverse, d, TL_DIMS(rows)));
        tl_let_go(t, product);
        bh = weight(n, "bias_hh", layer, reverse, d, TL_DIMS(rows));
    }
    tl_tensor y = tl_recur(t, g, wh, n->cell, .bias = bh, .h = state(n, o->h, i),
                           .c = state(n, o->c, i), .start = o->start, .end = o->end,
                           .reverse = reverse, .last_h = &last[0], .last_c = &last[1]);
    return y;
}

/* Zeros in padding, where y holds the state beside it. */
static tl_tensor cleared(const net *n, tl_tensor y)
{
    tl_tape *t = n->t;
    const tl_recurrent_options *o = n->o;
    tl_shape s = tl_shape_of(t, y);
    if (tl_is_none(o->start) && tl_is_none(o->end))
        return y;
    tl_tensor steps = tl_arange(t, TL_I64, 0, (double)s.dim[1], 1), in = TL_NONE;
    const tl_shape column = TL_DIMS(s.dim[0], 1);
    if (!tl_is_none(o->start))
        in = tl_ge(t, steps, tl_reshape(t, o->start, column));
    if (!tl_is_none(o->end)) {
        tl_tensor before = tl_lt(t, steps, tl_reshape(t, o->end, column));
        in = tl_is_none(in) ? before : tl_logical_and(t, in, before);
    }
    return tl_where(t, tl_reshape(t, in, TL_DIMS(s.dim[0], s.dim[1], 1)), y,
                    tl_scalar(t, tl_dtype_of(t, y), 0));
}

static tl_tensor between(const net *n, tl_tensor x, int64_t layer)
{
    char own[32], buf[TL_NAME_MAX];
    const tl_recurrent_options *o = n->o;
    if (o->dropout == 0 || tl_mode(n->t) & TL_EVAL)
        return x;
    snprintf(own, sizeof own, "dropout_l%lld", (long long)layer);
    return tl_dropout(n->t, x, o->dropout, .stream = tl_join(n->t, buf, n->name, own),
                      .sample = o->sample, .start = o->start);
}

enum { MOST = 1 << 24 }; /* layers, and units */

static bool check(const net *n, const char *who, tl_tensor x)
{
    tl_tape *t = n->t;
    const tl_recurrent_options *o = n->o;
    tl_shape s = tl_shape_of(t, x);
    char text[TL_SHAPE_TEXT];
    if (tl_failed(t) || !tl_usable(TL_AT(t), x, who))
        return false;
    const tl_tensor beside[] = {o->h, o->c, o->start, o->end, o->sample}; /* also if not used */
    for (int i = 0; i < 5; i++)
        if (!tl_is_none(beside[i]) && !tl_usable(TL_AT(t), beside[i], who))
            return false;
    if (n->cell < TL_LSTM || n->cell > TL_RNN_RELU)
        tl_tape_fail(TL_AT(t), TL_EDOMAIN, "%s: '%.100s': cell %d is none", who,
                     n->name == NULL ? "" : n->name, (int)n->cell);
    else if (s.ndim != 3 || s.dim[1] < 1 || n->hidden < 1 || o->layers < 0 || n->hidden > MOST ||
             o->layers > MOST)
        tl_tape_fail(TL_AT(t), TL_ESHAPE,
                     "%s: '%.100s': x %s, %lld units, %lld layers; (b, s, inputs) of a step or "
                     "more and 1 to %d of the others are needed",
                     who, n->name == NULL ? "" : n->name, tl_shape_text(text, &s),
                     (long long)n->hidden, (long long)o->layers, (int)MOST);
    if (tl_failed(t))
        return false;
    if (o->dropout != 0 && o->layers > 1 && !(tl_mode(t) & TL_EVAL) && tl_is_none(o->sample))
        tl_tape_fail(
            TL_AT(t), TL_EUSAGE,
            "%s: dropout %g draws by the samples' numbers; give .sample, or push the mode TL_EVAL",
            who, o->dropout);
    const tl_shape want = TL_DIMS((1 + o->both) * (o->layers + (o->layers == 0)), s.dim[0],
                                  n->hidden);
    for (int i = 0; i < 2 && !tl_failed(t); i++) {
        const tl_tensor given = i ? o->c : o->h;
        tl_shape is = tl_shape_of(t, given);
        if (!tl_is_none(given) && !tl_shape_equal(&is, &want))
            tl_tape_fail(TL_AT(t), TL_ESHAPE,
                         "%s: .%s is %s; (layers and directions, b, units) is needed", who,
                         i ? "c" : "h", tl_shape_text(text, &is));
    }
    return !tl_failed(t);
}

static tl_tensor recurrent(tl_at at, const char *who, const net *n, tl_tensor x)
{
    tl_tape *t = at.tape;
    const tl_recurrent_options *o = n->o;
    const int64_t layers = o->layers + (o->layers == 0), count = layers * (1 + o->both);
    tl_tensor *h = NULL, *c = NULL;
    if (o->last_h != NULL)
        *o->last_h = TL_NONE;
    if (o->last_c != NULL)
        *o->last_c = TL_NONE;
    if (!check(n, who, x))
        return TL_NONE;
    h = tl_tape_scratch(t, (size_t)(2 * count) * sizeof *h);
    if (h == NULL) {
        tl_tape_fail(TL_AT(t), TL_ENOMEM, "%s: no memory for %lld states", who, (long long)count);
        return TL_NONE;
    }
    c = h + count;
    for (int64_t l = 0; l < layers && !tl_failed(t); l++) {
        tl_tensor y[2], last[2] = {TL_NONE, TL_NONE};
        x = l > 0 ? between(n, x, l - 1) : x;
        for (int r = 0; r <= o->both; r++) {
            y[r] = one_direction(n, x, l, r, last);
            h[l * (1 + o->both) + r] = last[0];
            c[l * (1 + o->both) + r] = last[1];
        }
        x = cleared(n, o->both ? tl_concat(t, y, 2, 2) : y[0]);
    }
    if (o->last_h != NULL && !tl_failed(t))
        *o->last_h = tl_stack(t, h, (int)count, 0);
    if (o->last_c != NULL && n->cell == TL_LSTM && !tl_failed(t))
        *o->last_c = tl_stack(t, c, (int)count, 0);
    return tl_failed(t) ? TL_NONE : x;
}

tl_tensor tl_recurrent_at(tl_at at, tl_model *m, const char *name, tl_tensor x, int64_t hidden,
                          tl_cell cell, tl_recurrent_options o)
{
    static const char *const who[] = {"tl_lstm", "tl_gru", "tl_rnn", "tl_rnn"};
    int place = tl_share_push(at, o.shared);
    const net n = {at.tape, m, name, hidden, cell, &o};
    tl_tensor y = recurrent(at,
                            cell >= TL_LSTM && cell <= TL_RNN_RELU ? who[cell - 1] : "tl_recurrent",
                            &n, x);
    tl_place_pop(at.tape, place);
    return y;
}
