/* network.h: a small transformer for tests of whole training steps. */
#ifndef TESTS_CASES_NETWORK_H
#define TESTS_CASES_NETWORK_H

#include "autograd/model.h"
#include "tests/cases/cases.h"

enum {
    NET_VOCABULARY = 11,
    NET_WIDTH = 12,
    NET_HIDDEN = 20,
    NET_HEADS = 3,
    NET_SAMPLES = 5,
    NET_LENGTH = 7,
    NET_IGNORED = -1,
    NET_TOKENS = 128
};

typedef struct {
    tl_tape *t;
    tl_model *m;
    tl_dtype dtype; /* of the parameters */
} net;

/* ids and targets (samples, length), row-major */
typedef struct {
    int64_t ids[NET_TOKENS], targets[NET_TOKENS];
    int64_t samples, length;
} net_text;

/* Gradients of all parameters in order of name, among them the model's buffer with the sum of
 * losses. */
typedef struct {
    ref_tensor x[16];
    int n;
} net_gradients;

net_text tl_net_text(uint64_t *state);
/* The same samples, each longer by `more` ignored positions, with `extra` ignored samples strewn
 * in. */
net_text tl_net_padded(const net_text *x, int64_t more, int64_t extra, uint64_t *state);
/* The text in micro-batches of at most `part` samples; the loss is divided by count. */
net_gradients tl_net_train(const net *n, const net_text *x, int64_t part, double count);

#endif
