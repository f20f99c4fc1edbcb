/* network.c: see network.h. Embedding, attention and a gated unit with residuals, norms, a bias,
 * and the embedding once more as the output's weights. */
#include "tests/cases/network.h"

static tl_tensor weight(const net *n, const char *name, int64_t rows, int64_t columns)
{
    return tl_param(n->t, n->m, name, n->dtype, TL_DIMS(rows, columns), .kind = TL_INIT_NORMAL,
                    .scale = 0.3);
}

static tl_tensor norm(const net *n, tl_tensor x, const char *name)
{
    return tl_rms_norm(n->t, x,
                       tl_param(n->t, n->m, name, n->dtype, TL_DIMS(NET_WIDTH),
                                .kind = TL_INIT_UNIFORM, .scale = 1),
                       1e-5);
}

static tl_tensor heads(const net *n, tl_tensor x, const char *name, int64_t samples, int64_t length)
{
    tl_tensor y = tl_matmul(n->t, x,
                            tl_transpose(n->t, weight(n, name, NET_WIDTH, NET_WIDTH), 0, 1));
    return tl_transpose(n->t,
                        tl_reshape(n->t, y,
                                   TL_DIMS(samples, length, NET_HEADS, NET_WIDTH / NET_HEADS)),
                        1, 2);
}

/* Ids and targets (samples, length) -> backward of the summed loss over count; the embedding serves
 * as output weights too. */
static void step(const net *n, const int64_t *ids, const int64_t *targets, int64_t samples,
                 int64_t length, double count)
{
    tl_tape *t = n->t;
    tl_tape_reset(t);
    tl_tensor table = weight(n, "table", NET_VOCABULARY, NET_WIDTH),
              i = tl_data(t, ids, TL_I64, TL_DIMS(samples, length));
    tl_tensor x = tl_embedding(t, table, i), h = norm(n, x, "norm1");
    tl_tensor o = tl_attention(t, heads(n, h, "q", samples, length),
                               heads(n, h, "k", samples, length),
                               heads(n, h, "v", samples, length));
    o = tl_reshape(t, tl_transpose(t, o, 1, 2), TL_DIMS(samples, length, NET_WIDTH));
    x = tl_add(t, x, tl_matmul(t, o, weight(n, "o", NET_WIDTH, NET_WIDTH)));
    h = norm(n, x, "norm2");
    h = tl_swiglu(t, tl_matmul(t, h, weight(n, "gate", NET_WIDTH, NET_HIDDEN)),
                  tl_matmul(t, h, weight(n, "up", NET_WIDTH, NET_HIDDEN)));
    x = tl_add(t, x, tl_matmul(t, h, weight(n, "down", NET_HIDDEN, NET_WIDTH)));
    x = tl_add(t, x,
               tl_param(t, n->m, "bias", n->dtype, TL_DIMS(NET_WIDTH), .kind = TL_INIT_UNIFORM,
                        .scale = 1));
    tl_tensor z = tl_matmul(t, norm(n, x, "norm3"), tl_transpose(t, table, 0, 1));
    tl_tensor loss = tl_cross_entropy(t, z, tl_data(t, targets, TL_I64, TL_DIMS(samples, length)),
                                      TL_MEAN, .ignore = true, .ignore_index = NET_IGNORED,
                                      .count = tl_scalar(t, TL_F64, count),
                                      .total = tl_buffer(t, n->m, "total", TL_F64, TL_SCALAR));
    tl_backward(t, loss);
}

/* The gradient of every parameter, and the total of the losses. */
static net_gradients all_gradients(const net *n)
{
    net_gradients g = {.n = tl_model_count(n->m)};
    for (int i = 0; i < g.n; i++) {
        tl_named p = tl_model_at(n->m, i);
        g.x[i] = tl_case_read(n->t, p.param ? tl_grad(n->t, p.tensor) : p.tensor);
    }
    return g;
}

net_text tl_net_padded(const net_text *x, int64_t more, int64_t extra, uint64_t *state)
{
    net_text y = {.length = x->length + more};
    for (int64_t s = 0; s < x->samples || extra > 0; y.samples++) {
        bool filler = extra > 0 && (s == x->samples || tl_case_random(state) % 2);
        for (int64_t i = 0; i < y.length; i++) {
            bool real = !filler && i < x->length;
            int64_t at = y.samples * y.length + i;
            y.ids[at] = real ? x->ids[s * x->length + i]
                             : (int64_t)(tl_case_random(state) % NET_VOCABULARY);
            y.targets[at] = real ? x->targets[s * x->length + i] : NET_IGNORED;
        }
        extra -= filler;
        s += !filler;
    }
    return y;
}

net_gradients tl_net_train(const net *n, const net_text *x, int64_t part, double count)
{
    double zero = 0;
    tl_grad_clear(n->t);
    tl_tensor total = tl_model_find(n->m, "total");
    if (!tl_is_none(total))
        tl_write(n->m, total, &zero, sizeof zero);
    for (int64_t at = 0; at < x->samples; at += part) {
        int64_t k = x->samples - at < part ? x->samples - at : part;
        step(n, x->ids + at * x->length, x->targets + at * x->length, k, x->length, count);
    }
    return all_gradients(n);
}

net_text tl_net_text(uint64_t *state)
{
    net_text x = {.samples = NET_SAMPLES, .length = NET_LENGTH};
    for (int i = 0; i < NET_SAMPLES * NET_LENGTH; i++) {
        x.ids[i] = (int64_t)(tl_case_random(state) % NET_VOCABULARY);
        x.targets[i] = tl_case_random(state) % 5 == 0
                           ? NET_IGNORED
                           : (int64_t)(tl_case_random(state) % NET_VOCABULARY);
    }
    return x;
}
