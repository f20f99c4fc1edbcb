/* recurrent.c: LSTM, GRU and RNN of several layers, in one direction or both. Parameters have
 * PyTorch's names and shapes: NAME.weight_ih_l0, NAME.weight_hh_l0, NAME.bias_ih_l0,
 * NAME.bias_hh_l0, then _l1 and so on, each also with _reverse. One product makes the gates of all
 * steps from x; the op tl_recur does the rest. */
#include "autograd/op.h"
#include "nn/layers.h"

/* What the layers and directions of one call share. */
typedef struct {
    tl_tape *t;
    tl_model *m;
    const char *who, *name;
    int64_t hidden, layers, directions;
    tl_cell cell;
    const tl_recurrent_options *o;
} net;

/* A parameter of one layer and direction, such as NAME.weight_ih_l0_reverse. */
static tl_tensor weight(const net *n, const char *what, int64_t layer, int reverse, tl_dtype dtype,
                        tl_shape shape)
{
    char own[64];
    tl_init init = {TL_INIT_UNIFORM, tl_inv_sqrt(1, n->hidden)};
    snprintf(own, sizeof own, "%s_l%lld%s", what, (long long)layer, reverse ? "_reverse" : "");
    return tl_weight(n->t, n->m, n->name, own, dtype, shape, init);
}

/* Row i of a state (layers * directions, b, hidden), if it is given. */
static tl_tensor state(const net *n, tl_tensor x, int64_t i)
{
    return tl_is_none(x) ? x : tl_select(n->t, x, 0, i);
}

/* Runs one layer in one direction. The states after the last step go to row i of last_h and last_c.
 */
static tl_tensor one_direction(const net *n, tl_tensor x, int64_t layer, int reverse,
                               tl_tensor *last_h, tl_tensor *last_c)
{
    tl_tape *t = n->t;
    const tl_recurrent_options *o = n->o;
    const int64_t gates = n->cell == TL_LSTM ? 4 : n->cell == TL_GRU ? 3 : 1;
    const int64_t rows = gates * n->hidden, i = layer * n->directions + reverse;
    const tl_dtype d = tl_dtype_of(t, x);
    tl_tensor wi = weight(n, "weight_ih", layer, reverse, d, TL_DIMS(rows, tl_last_dim(t, x))),
              wh = weight(n, "weight_hh", layer, reverse, d, TL_DIMS(rows, n->hidden)),
              bi = TL_NONE, bh = TL_NONE;
    if (!o->no_bias) {
        bi = weight(n, "bias_ih", layer, reverse, d, TL_DIMS(rows));
        bh = weight(n, "bias_hh", layer, reverse, d, TL_DIMS(rows));
    }
    return tl_recur(t, tl_affine(t, x, wi, bi), wh, n->cell, .bias = bh, .h = state(n, o->h, i),
                    .c = state(n, o->c, i), .start = o->start, .end = o->end, .reverse = reverse,
                    .last_h = &last_h[i], .last_c = &last_c[i]);
}

/* Sets y to zero in padding, where it repeats the state beside it. */
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

/* Dropout between two layers. */
static tl_tensor dropped(const net *n, tl_tensor x, int64_t layer)
{
    char own[32], buf[TL_NAME_MAX];
    if (n->o->dropout == 0)
        return x;
    snprintf(own, sizeof own, "dropout_l%lld", (long long)layer);
    return tl_dropout(n->t, x, n->o->dropout, .stream = tl_join(n->t, buf, n->name, own),
                      .sample = n->o->sample, .start = n->o->start);
}

enum { MOST = 1 << 24 }; /* layers; units */

static tl_status check(const net *n, tl_tensor x)
{
    tl_tape *t = n->t;
    const char *who = n->who;
    const tl_recurrent_options *o = n->o;
    tl_shape s = tl_shape_of(t, x);
    const tl_tensor given[] = {o->h, o->c, o->start, o->end, o->sample}; /* even if not used */
    TL_TRY(tl_error_status(t));
    tl_usable(TL_AT(t), x, who);
    for (int i = 0; i < 5; i++)
        if (!tl_is_none(given[i]))
            tl_usable(TL_AT(t), given[i], who);
    if (n->cell < TL_LSTM || n->cell > TL_RNN_RELU)
        tl_tape_fail(TL_AT(t), TL_EDOMAIN, "%s: '%.100s': cell %d is none", who, tl_title(n->name),
                     (int)n->cell);
    if (s.ndim != 3 || s.dim[1] < 1 || n->hidden < 1 || o->layers < 0 || n->hidden > MOST ||
        o->layers > MOST)
        tl_tape_fail(TL_AT(t), TL_ESHAPE,
                     "%s: '%.100s': x %s, %lld units, %lld layers; (b, s, inputs) of a step or "
                     "more and 1 to %d of the others are needed",
                     who, tl_title(n->name), TL_TEXT_OF(&s), (long long)n->hidden,
                     (long long)(o->layers != 0 ? o->layers : 1), (int)MOST);
    TL_TRY(tl_error_status(t));
    if (o->dropout != 0 && o->layers < 2)
        tl_tape_fail(TL_AT(t), TL_EUSAGE,
                     "%s: '%.100s': dropout %g is between layers, and there is one", who,
                     tl_title(n->name), o->dropout);
    else if (o->dropout != 0 && !(tl_mode(t) & TL_EVAL) && tl_is_none(o->sample))
        tl_tape_fail(
            TL_AT(t), TL_EUSAGE,
            "%s: dropout %g draws by the samples' numbers; give .sample, or push the mode TL_EVAL",
            who, o->dropout);
    const tl_shape want = TL_DIMS(n->layers * n->directions, s.dim[0], n->hidden);
    for (int i = 0; i < 2; i++) {
        tl_shape is = tl_shape_of(t, given[i]);
        if (!tl_is_none(given[i]) && !tl_shape_equal(&is, &want))
            tl_tape_fail(TL_AT(t), TL_ESHAPE,
                         "%s: .%s is %s; (layers and directions, b, units) is needed", who,
                         i ? "c" : "h", TL_TEXT_OF(&is));
    }
    return tl_error_status(t);
}

tl_tensor tl_recurrent_at(tl_at at, tl_model *m, const char *name, tl_tensor x, int64_t hidden,
                          tl_cell cell, tl_recurrent_options o)
{
    static const char *const made_by[] = {"tl_lstm", "tl_gru", "tl_rnn", "tl_rnn"};
    tl_tape *t = at.tape;
    int place = tl_share_push(at, o.shared);
    const net n = {.t = t,
                   .m = m,
                   .who = cell >= TL_LSTM && cell <= TL_RNN_RELU ? made_by[cell - 1]
                                                                 : "tl_recurrent",
                   .name = name,
                   .hidden = hidden,
                   .layers = o.layers != 0 ? o.layers : 1,
                   .directions = o.both ? 2 : 1,
                   .cell = cell,
                   .o = &o};
    if (o.last_h != NULL)
        *o.last_h = TL_NONE;
    if (o.last_c != NULL)
        *o.last_c = TL_NONE;
    if (check(&n, x) != TL_OK)
        return tl_leave(t, place, TL_NONE);
    const int64_t states = n.layers * n.directions;
    tl_tensor *h = tl_tape_scratch(t, (size_t)(2 * states) * sizeof *h);
    if (h == NULL) {
        tl_tape_fail(TL_AT(t), TL_ENOMEM, "%s: no memory for %lld states", n.who,
                     (long long)states);
        return tl_leave(t, place, TL_NONE);
    }
    tl_tensor *c = h + states, y[2];
    for (int64_t layer = 0; layer < n.layers && !tl_failed(t); layer++) {
        if (layer > 0)
            x = dropped(&n, x, layer - 1);
        for (int r = 0; r < n.directions; r++)
            y[r] = one_direction(&n, x, layer, r, h, c);
        x = cleared(&n, o.both ? tl_concat(t, y, 2, 2) : y[0]);
    }
    if (o.last_h != NULL && !tl_failed(t))
        *o.last_h = tl_stack(t, h, (int)states, 0);
    if (o.last_c != NULL && cell == TL_LSTM && !tl_failed(t))
        *o.last_c = tl_stack(t, c, (int)states, 0);
    return tl_leave(t, place, tl_failed(t) ? TL_NONE : x);
}
