/* layers.h: what layers and decoders share. Private to nn/. */
#ifndef TL_NN_LAYERS_H
#define TL_NN_LAYERS_H

#include <stdio.h>
#include <string.h>

#include "autograd/author.h"
#include "nn/nn.h"
#include "tensor/memory.h"

/* ---- layers.c ---- */

/* Writes "a.b" into buf and returns buf. A missing or empty a, or a name that is too long, is
 * TL_ENAME on the tape. */
const char *tl_join(tl_tape *t, char buf[TL_NAME_MAX], const char *a, const char *b);
/* Ends a layer that tl_share_push has opened; returns y. */
static inline tl_tensor tl_leave(tl_tape *t, int place, tl_tensor y)
{
    tl_place_pop(t, place);
    return y;
}
/* The name of a layer in a message. */
static inline const char *tl_title(const char *name) { return name == NULL ? "" : name; }
/* The size of x's last dim. An x that has none is an error on the tape. */
int64_t tl_last_dim(tl_tape *t, tl_tensor x);
/* scale / sqrt(n), computed in the library's own floating-point environment. */
double tl_inv_sqrt(double scale, int64_t n);
static inline tl_dtype tl_dtype_or(tl_dtype given, tl_dtype otherwise)
{
    return given != TL_DTYPE_DEFAULT ? given : otherwise;
}
/* The parameter NAME.WHAT of a layer. */
tl_tensor tl_weight(tl_tape *t, tl_model *m, const char *name, const char *what, tl_dtype dtype,
                    tl_shape shape, tl_init init);
/* y = x W^T + b; b may be TL_NONE. */
tl_tensor tl_affine(tl_tape *t, tl_tensor x, tl_tensor w, tl_tensor b);
/* The projection PREFIX.NAME of a model, as the hook leaves it. Its weight is drawn from a normal
 * distribution of that deviation; its bias, if it has one, starts at zero. */
tl_tensor tl_project(tl_tape *t, tl_model *m, const char *prefix, const char *name, tl_tensor x,
                     int64_t outputs, double deviation, bool bias, const tl_hook *hook);

/* ---- attention.c ---- */

/* How heads of width dim are rotated. */
typedef struct {
    int64_t dim, max_positions; /* max_positions 0: as many as x and the cache hold */
    double base;                /* 0: 10000 */
    tl_rotary_scaling scaling;  /* factor 0: none */
    tl_rotary_pairing pairing;  /* 0: no rotary positions */
} tl_rotary_kind;
/* The rows of the rotary table that belong to the columns of a batch. */
typedef struct {
    tl_tensor cos, sin; /* (s, 1, dim), or (b, s, 1, dim) where samples have different positions */
    tl_rotary_pairing pairing;
} tl_rotary_rows;
/* The rows for x (b, s, width). The table is a buffer of the model. */
tl_rotary_rows tl_rotary_rows_of(tl_at at, tl_model *m, tl_tensor x, const tl_columns *c,
                                 const tl_rotary_kind *k);
/* Whether a buffer is one of a loader's, which are zeros before its first batch. */
static inline bool tl_is_loader_place(const char *name, const tl_array *a)
{
    return a->dtype == TL_I64 && a->ndim == 1 && a->dim[0] == 4 &&
           (strncmp(name, "loader.", 7) == 0 || strncmp(name, "loading.", 8) == 0);
}

/* Whether a buffer is a rotary table. Its name tells its contents. (Inline: the library of groups
 * asks, too.) */
static inline bool tl_is_rotary_table(const char *name, const tl_array *a)
{
    static const char number[] = "0123456789.e+-";
    char shape[64];
    if (a->ndim != 2)
        return false;
    snprintf(shape, sizeof shape, "rope.%lldx%lld.", (long long)a->dim[0], (long long)a->dim[1]);
    if (strncmp(name, shape, strlen(shape)) != 0)
        return false;
    const char *base = name + strlen(shape), *kind = base + strspn(base, number);
    const size_t pairing = strncmp(kind, "half.", 5) == 0           ? 4
                           : strncmp(kind, "interleaved.", 12) == 0 ? 11
                                                                    : 0;
    const char *rest = kind + pairing;
    const bool wide = strncmp(rest, ".f64.", 5) == 0;
    rest += wide ? 4 : 0;
    rest += strspn(rest, number);
    return kind > base && pairing > 0 && a->dtype == (wide ? TL_F64 : TL_F32) &&
           (strcmp(rest, "cos") == 0 || strcmp(rest, "sin") == 0);
}
/* Causal attention of q (b, s, heads*d) to k and v (b, s, kv_heads*d) and to what layer `layer` of
 * the cache holds, if there is a cache; k and v are appended to it. Returns (b, s, heads*d). */
tl_tensor tl_attend(tl_tape *t, tl_tensor q, tl_tensor k, tl_tensor v, int64_t heads,
                    int64_t kv_heads, const tl_rotary_rows *r, const tl_columns *c, int64_t layer);
/* The positions of s new columns. Where all samples have the same ones, *ids is TL_NONE and the
 * result is the first of them; otherwise *ids (b, s) holds them. most: rows of the table that they
 * are looked up in, 0 for any number. If it is too short, columns behind the ends have position
 * 0. */
int64_t tl_columns_positions(tl_tape *t, const tl_columns *c, int64_t b, int64_t s, int64_t most,
                             tl_tensor *ids);

/* ---- decoder.c ---- */

/* A config of either kind, with its defaults filled in. */
typedef struct {
    const char *name; /* of the public function, for messages */
    bool llama;       /* else a GPT-2 */
    int64_t vocab, width, layers, heads, kv_heads, hidden;
    int64_t max_positions; /* may be 0 */
    double eps, dropout;
    bool tied;                 /* the output projection is the embedding */
    tl_rotary_pairing pairing; /* 0: a Llama's default, a GPT-2's learned positions */
    double rope_base;
    tl_rotary_scaling scaling;
    tl_dtype dtype;
} tl_decoder_numbers;
tl_decoder_numbers tl_llama_numbers(const tl_llama_config *c);
tl_decoder_numbers tl_gpt2_numbers(const tl_gpt2_config *c);

#endif
