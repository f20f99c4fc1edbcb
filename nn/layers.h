/* layers.h: small things that layers share. Private to nn/. */
#ifndef TL_NN_LAYERS_H
#define TL_NN_LAYERS_H

#include "autograd/author.h"
#include "nn/nn.h"
#include "tensor/memory.h"

/* "a.b" in buf; returns buf. Too long is an error on the tape (TL_ENAME). */
const char *tl_join(tl_tape *t, char buf[TL_NAME_MAX], const char *a, const char *b);
/* "tl_linear: 'first': 0 outputs; 1 is the least" on the tape, and false, where n is less. */
bool tl_one_or_more(tl_at at, const char *who, const char *name, int64_t n, const char *what);
/* The size of x's last dim; an x that has none is an error on the tape. */
int64_t tl_last_dim(tl_tape *t, tl_tensor x);
/* scale/sqrt(n), in the right floating-point environment whatever the caller's. */
double tl_inv_sqrt(double scale, int64_t n);
/* What an option says, or what it means by saying nothing. */
static inline tl_dtype tl_dtype_or(tl_dtype said, tl_dtype otherwise)
{
    return said != TL_DTYPE_DEFAULT ? said : otherwise;
}
/* What the hook, if there is one, makes of y = x W^T of the projection NAME. */
static inline tl_tensor tl_hooked(tl_tape *t, const tl_hook *h, const char *name, tl_tensor x,
                                  tl_tensor y)
{
    return h->call == NULL ? y : h->call(t, name, x, y, h->ctx);
}
/* A linear layer PREFIX.NAME without bias, drawn normal with deviation scale/sqrt(inputs). */
tl_tensor tl_project(tl_tape *t, tl_model *m, const char *prefix, const char *name, tl_tensor x,
                     int64_t outputs, double scale, const tl_hook *hook);

/* x (b, heads, s, d) of keys and values go to layer `layer` of the cache, if there is one; in their
 * place come the columns to attend to. *keys: the ranges for tl_attention. */
void tl_columns_keys(tl_tape *t, const tl_columns *c, int64_t layer, tl_tensor *k, tl_tensor *v,
                     tl_attention_options *keys);
/* The first column's position where all samples and columns count alike: *ids is TL_NONE then; else
 * *ids (b, s) are their positions. */
int64_t tl_columns_positions(tl_tape *t, const tl_columns *c, int64_t b, int64_t s, tl_tensor *ids);
/* Rotary positions of heads dim wide. */
typedef struct {
    int64_t dim, max_positions; /* 0: as many as x and the cache hold */
    double base;                /* 0: 10000 */
    tl_rotary_scaling scaling;  /* factor 0: none */
    tl_rotary_pairing pairing;
} tl_rotary_kind;
/* The rows of the model's table for the columns of x (b, s, width), cos and sin: (s, 1, dim), the
 * same for every sample and head; or (b, s, 1, dim). */
void tl_rotary_rows(tl_at at, tl_model *m, tl_tensor x, const tl_columns *c,
                    const tl_rotary_kind *k, tl_tensor r[2]);
/* The call has added s columns. */
void tl_columns_advance(tl_tape *t, const tl_columns *c, int64_t s);

/* The numbers that decoders of any kind have; name: of the function that took them. kv_heads and
 * max_positions may be 0. */
typedef struct {
    const char *name;
    int64_t vocab, width, layers, heads, hidden, kv_heads, max_positions;
    bool rotary;
    tl_rotary_pairing pairing;
} tl_decoder_numbers;
/* They fit one another and the batch; if not, the tape says in terms of the config which do not. */
bool tl_decoder_check(tl_tape *t, const tl_decoder_numbers *c, tl_tensor ids,
                      const tl_columns *columns);

#endif
