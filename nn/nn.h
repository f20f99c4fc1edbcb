/* nn.h: layers, models, optimizers, schedules, checkpoints, made with the public headers of the
 * rooms below. Public. */
#ifndef TL_NN_H
#define TL_NN_H

#include "autograd/model.h"
#include "autograd/tape.h"
#include "ops/ops.h"
TL_BEGIN

/* ---- layers ----
 *
 * A layer is a function. Its first call makes its parameters NAME.weight, NAME.bias, ... in m,
 * drawn by the model's seed and their names; later calls find them.
 *
 * A name belongs to one layer: calls with the same name on two lines of a recording would share
 * weights without a word, so they are TL_ENAME unless either says .shared = true. A call in a loop,
 * or in a function that is called again, stands on one line and uses the layer again; so number the
 * names of layers that a loop makes. A module of your own brackets its layers with tl_place_push
 * (author.h), so that its caller's line counts. */

typedef struct {
    bool shared; /* with layers of that name at other places of a recording */
} tl_layer_options;

/* Called with each projection of a block or model, y = x W^T (+ b) of the weight NAME.weight:
 * returns what stands for y, or y itself. For adapters. */
typedef struct {
    tl_tensor (*call)(tl_tape *t, const char *name, tl_tensor x, tl_tensor y, void *ctx);
    void *ctx;
} tl_hook;

typedef struct {
    bool no_bias;
    tl_init init;   /* of the weight; default: uniform in +-1/sqrt(inputs) */
    tl_dtype dtype; /* of the parameters; default: x's */
    bool shared;
} tl_linear_options;
/* y = x W^T + b. x (..., inputs) -> (..., outputs); NAME.weight (outputs, inputs), NAME.bias
 * (outputs). */
#define tl_linear(t, m, name, x, outputs, ...) \
    tl_linear_at(TL_AT(t), m, name, x, outputs, TL_MAKE(tl_linear_options){__VA_ARGS__})
tl_tensor tl_linear_at(tl_at at, tl_model *m, const char *name, tl_tensor x, int64_t outputs,
                       tl_linear_options o);

/* Rows of NAME.weight (rows, width), normal with deviation `scale` at first, by ids (i64). */
#define tl_embed(t, m, name, ids, rows, width, scale, ...)          \
    tl_embed_at(TL_AT(t), m, name, ids, rows, width, scale, TL_F32, \
                TL_MAKE(tl_layer_options){__VA_ARGS__})
tl_tensor tl_embed_at(tl_at at, tl_model *m, const char *name, tl_tensor ids, int64_t rows,
                      int64_t width, double scale, tl_dtype dtype, tl_layer_options o);

/* RMSNorm over the last dim with NAME.weight, ones at first. */
#define tl_norm(t, m, name, x, eps, ...) \
    tl_norm_at(TL_AT(t), m, name, x, eps, TL_MAKE(tl_layer_options){__VA_ARGS__})
tl_tensor tl_norm_at(tl_at at, tl_model *m, const char *name, tl_tensor x, double eps,
                     tl_layer_options o);

/* LayerNorm over the last dim with NAME.weight, ones at first, and NAME.bias, zeros at first. */
#define tl_norm_layer(t, m, name, x, eps, ...) \
    tl_norm_layer_at(TL_AT(t), m, name, x, eps, TL_MAKE(tl_layer_options){__VA_ARGS__})
tl_tensor tl_norm_layer_at(tl_at at, tl_model *m, const char *name, tl_tensor x, double eps,
                           tl_layer_options o);

typedef struct {
    int64_t kernel[2];                          /* of each dim; must be given */
    int64_t stride[2], padding[2], dilation[2]; /* stride and dilation 0: 1 */
    int64_t groups;                             /* 0: 1 */
    bool no_bias;
    tl_init init;   /* of the weight; default: uniform in +-1/sqrt(inputs of one output) */
    tl_dtype dtype; /* of the parameters; default: x's */
    bool shared;
} tl_convolve_options;
/* Convolutions (tl_conv1d, tl_conv2d): x (n, c, l) -> (n, outputs, l') and x (n, c, h, w) -> (n,
 * outputs, h', w'). NAME.weight (outputs, c/groups, kernel...), NAME.bias (outputs). */
#define tl_convolve1d(t, m, name, x, outputs, ...) \
    tl_convolve1d_at(TL_AT(t), m, name, x, outputs, TL_MAKE(tl_convolve_options){__VA_ARGS__})
#define tl_convolve2d(t, m, name, x, outputs, ...) \
    tl_convolve2d_at(TL_AT(t), m, name, x, outputs, TL_MAKE(tl_convolve_options){__VA_ARGS__})
tl_tensor tl_convolve1d_at(tl_at at, tl_model *m, const char *name, tl_tensor x, int64_t outputs,
                           tl_convolve_options o);
tl_tensor tl_convolve2d_at(tl_at at, tl_model *m, const char *name, tl_tensor x, int64_t outputs,
                           tl_convolve_options o);

typedef struct {
    int64_t layers; /* 0: 1 */
    bool both;      /* directions: each step's results are those of the first, then the second */
    bool no_bias;
    bool relu;        /* tl_rnn: for tanh */
    double dropout;   /* between layers; needs .sample */
    tl_tensor sample; /* as tl_decoder_options has it */
    /* the states before the first step, (layers * directions, b, hidden), layer by layer; c is an
     * LSTM's. Absent: zeros. Their samples are along axis 1: tl_batch_axis(t, h, 1) says so of data
     */
    tl_tensor h, c;
    /* i64 (b): sample i has steps start[i] <= t < end[i]; absent: 0, s. Every bit of it is as
     * alone, and y is 0 in the others, where x may be anything finite */
    tl_tensor start, end;
    tl_tensor *last_h, *last_c; /* if not NULL: the states after the last step, as h and c */
    bool shared;
} tl_recurrent_options;
/* All steps of an LSTM, a GRU or an RNN (NUMERICS 6.18): x (b, s, inputs) -> y (b, s, hidden), or
 * twice as wide of both directions. For layer k NAME.weight_ih_lk (gates*hidden, inputs),
 * NAME.weight_hh_lk (gates*hidden, hidden), NAME.bias_ih_lk and NAME.bias_hh_lk (gates*hidden), and
 * the same with _reverse: names, layout and order of gates are PyTorch's, so its files load. All
 * are drawn uniform in +-1/sqrt(hidden). */
#define tl_lstm(t, m, name, x, hidden, ...) \
    tl_lstm_at(TL_AT(t), m, name, x, hidden, TL_MAKE(tl_recurrent_options){__VA_ARGS__})
#define tl_gru(t, m, name, x, hidden, ...) \
    tl_gru_at(TL_AT(t), m, name, x, hidden, TL_MAKE(tl_recurrent_options){__VA_ARGS__})
#define tl_rnn(t, m, name, x, hidden, ...) \
    tl_rnn_at(TL_AT(t), m, name, x, hidden, TL_MAKE(tl_recurrent_options){__VA_ARGS__})
tl_tensor tl_lstm_at(tl_at at, tl_model *m, const char *name, tl_tensor x, int64_t hidden,
                     tl_recurrent_options o);
tl_tensor tl_gru_at(tl_at at, tl_model *m, const char *name, tl_tensor x, int64_t hidden,
                    tl_recurrent_options o);
tl_tensor tl_rnn_at(tl_at at, tl_model *m, const char *name, tl_tensor x, int64_t hidden,
                    tl_recurrent_options o);

typedef struct {
    double eps;      /* 0: 1e-5 */
    double momentum; /* of the running statistics: their new part; 0: 0.1 */
    bool shared;
} tl_batch_norm_options;
/* BatchNorm of x (n, c, ...) by channel: (x - mean)/sqrt(var + eps) * NAME.weight + NAME.bias.
 *
 * Its statistics tie the samples of a batch together: each result depends on all of them, so it has
 * other bits, and other values, in another batch or micro-batch, and so has every gradient.
 * tl_explain_invariance says so and TL_STRICT refuses it. tl_group_norm has no such tie.
 *
 * Each call moves the buffers NAME.running_mean and NAME.running_var (the variance over n - 1)
 * towards the batch's. Under TL_EVAL these are the statistics, they stay as they are, and samples
 * are apart. */
#define tl_batch_norm(t, m, name, x, ...) \
    tl_batch_norm_at(TL_AT(t), m, name, x, TL_MAKE(tl_batch_norm_options){__VA_ARGS__})
tl_tensor tl_batch_norm_at(tl_at at, tl_model *m, const char *name, tl_tensor x,
                           tl_batch_norm_options o);

typedef struct {
    double eps; /* 0: 1e-5 */
    bool shared;
} tl_group_norm_options;
/* GroupNorm of x (n, c, ...): LayerNorm of each sample over each of `groups` groups of channels and
 * all further dims, then * NAME.weight + NAME.bias by channel. */
#define tl_group_norm(t, m, name, x, groups, ...) \
    tl_group_norm_at(TL_AT(t), m, name, x, groups, TL_MAKE(tl_group_norm_options){__VA_ARGS__})
tl_tensor tl_group_norm_at(tl_at at, tl_model *m, const char *name, tl_tensor x, int64_t groups,
                           tl_group_norm_options o);

typedef struct {
    bool by_tanh;     /* gelu_tanh for gelu */
    double deviation; /* of the first draw of the weights; 0: 0.02 */
    double out_scale; /* factor on that of the output projection; 0: 1 */
    tl_hook project;
    bool shared;
} tl_mlp_gelu_options;
/* down(gelu(up x)): NAME.up (hidden, width), NAME.down (width, hidden), with biases, zeros at
 * first. */
#define tl_mlp_gelu(t, m, name, x, hidden, ...) \
    tl_mlp_gelu_at(TL_AT(t), m, name, x, hidden, TL_MAKE(tl_mlp_gelu_options){__VA_ARGS__})
tl_tensor tl_mlp_gelu_at(tl_at at, tl_model *m, const char *name, tl_tensor x, int64_t hidden,
                         tl_mlp_gelu_options o);

typedef struct {
    double out_scale; /* factor on the first draw of the output projection; 0: 1 */
    tl_hook project;
    bool shared;
} tl_mlp_swiglu_options;
/* down(silu(gate x) * up x): NAME.gate, NAME.up (hidden, width), NAME.down (width, hidden). */
#define tl_mlp_swiglu(t, m, name, x, hidden, ...) \
    tl_mlp_swiglu_at(TL_AT(t), m, name, x, hidden, TL_MAKE(tl_mlp_swiglu_options){__VA_ARGS__})
tl_tensor tl_mlp_swiglu_at(tl_at at, tl_model *m, const char *name, tl_tensor x, int64_t hidden,
                           tl_mlp_swiglu_options o);

/* The keys and values of tokens that a decoder has seen, which the next ones need not compute
 * again. They live as long as the model and are not saved with it. Setting n = 0 starts over. */
typedef struct {
    tl_tensor k, v; /* (layers, b, kv_heads, capacity, d) */
    int64_t n;      /* columns held */
} tl_kv_cache;
/* An empty cache in m for batches of b samples; on an error, which goes to m, k and v are zero. */
tl_kv_cache tl_kv_cache_new(tl_model *m, tl_dtype dtype, int64_t layers, int64_t b,
                            int64_t kv_heads, int64_t capacity, int64_t d);

/* Where the tokens of a batch stand. All fields may be absent. */
typedef struct {
    /* i64 (b): sample i's tokens are in columns start[i] <= c < end[i], the rest is padding;
     * absent: 0, all. Positions count from start. No token sees padding, and every bit of the
     * others is as without it; results in padding mean nothing, so let its targets be ignored.
     * Columns of the cache, where there is one, start at most as many as there are so far */
    tl_tensor start, end;
    /* x follows the columns that it holds, and is added to it; for decoding, under TL_NO_GRAD */
    tl_kv_cache *cache;
    /* with a cache, i64 (b): x is one column, written to column at[i] of sample i, its last */
    tl_tensor at;
} tl_columns;

typedef struct {
    int64_t heads, kv_heads;   /* kv_heads 0: as many as heads */
    int64_t max_positions;     /* of the rotary table; 0: the length of x */
    double rope_base;          /* 0: 10000 */
    double out_scale;          /* factor on the first draw of the output projection; 0: 1 */
    tl_rotary_pairing pairing; /* 0: half */
    tl_columns columns;
    int64_t layer; /* of columns.cache */
    tl_hook project;
    bool shared;
} tl_self_attention_options;
/* Causal self-attention with rotary positions. x (b, s, width) -> the same; NAME.q, .k, .v, .o */
#define tl_self_attention(t, m, name, x, ...) \
    tl_self_attention_at(TL_AT(t), m, name, x, TL_MAKE(tl_self_attention_options){__VA_ARGS__})
tl_tensor tl_self_attention_at(tl_at at, tl_model *m, const char *name, tl_tensor x,
                               tl_self_attention_options o);

/* ---- models ---- */

/* What may be said of a batch besides its ids. All fields may be absent. */
typedef struct {
    tl_columns columns; /* padding and decoding; the model advances the cache's n */
    /* for dropout, i64: the number of sample 0 (0-d, the others follow), or of each (b). Numbers
     * that grow from step to step make fresh draws */
    tl_tensor sample;
    tl_hook project; /* of every projection but an output that is the embedding */
    bool shared;     /* another place of the recording uses the model with the same weights */
} tl_decoder_options;

typedef struct {
    int64_t vocab, width, layers, heads; /* these and hidden must be given */
    int64_t hidden;                  /* of the mlp; the paper has 8/3 of the width, rounded up */
    int64_t kv_heads, max_positions; /* 0: heads; the length of ids */
    double rope_base, eps;           /* 0: 10000, 1e-5 */
    tl_rotary_pairing pairing; /* 0: half, as in Hugging Face's files; the paper's: interleaved */
    bool tied;                 /* the output projection is the embedding */
    tl_dtype dtype;            /* of the parameters and activations; default: TL_F32 */
} tl_llama_config;
/* A Llama: embedding, `layers` blocks of x += attention(norm x), x += mlp(norm x), norm, output
 * projection. ids i64 (b, s) -> logits (b, s, vocab). Source: Touvron et al. 2023. */
#define tl_llama(t, m, config, ids, ...) \
    tl_llama_at(TL_AT(t), m, config, ids, TL_MAKE(tl_decoder_options){__VA_ARGS__})
tl_tensor tl_llama_at(tl_at at, tl_model *m, const tl_llama_config *c, tl_tensor ids,
                      tl_decoder_options o);
tl_kv_cache tl_llama_cache(tl_model *m, const tl_llama_config *c, int64_t b, int64_t capacity);

typedef struct {
    int64_t vocab, width, layers, heads, hidden, max_positions; /* hidden 0: 4*width */
    double eps;                                                 /* 0: 1e-5 */
    double dropout; /* of the embedded tokens, and of what attention and mlp add; needs .sample */
    tl_dtype dtype; /* of the parameters and activations; default: TL_F32 */
} tl_gpt2_config;
/* A GPT-2: embedding and learned positions, `layers` blocks of x += attention(norm x), x +=
 * mlp(norm x) with LayerNorm, GELU (tanh) and biases, norm, and the embedding again as the output
 * projection. ids i64 (b, s) -> logits (b, s, vocab). Source: Radford et al. 2019. */
#define tl_gpt2(t, m, config, ids, ...) \
    tl_gpt2_at(TL_AT(t), m, config, ids, TL_MAKE(tl_decoder_options){__VA_ARGS__})
tl_tensor tl_gpt2_at(tl_at at, tl_model *m, const tl_gpt2_config *c, tl_tensor ids,
                     tl_decoder_options o);
tl_kv_cache tl_gpt2_cache(tl_model *m, const tl_gpt2_config *c, int64_t b, int64_t capacity);

/* ---- schedules (NUMERICS 12.5): the learning rate of a step, counted from 0 ---- */
typedef enum { TL_CONSTANT, TL_COSINE, TL_LINEAR, TL_WARMUP_STABLE_DECAY } tl_schedule_kind;
typedef struct {
    tl_schedule_kind kind;
    int64_t warmup, total; /* steps */
    double min_ratio;      /* cosine, linear and decay end at lr * min_ratio, and stay there */
    int64_t decay;         /* TL_WARMUP_STABLE_DECAY: falls linearly in the last so many steps */
} tl_schedule;
double tl_schedule_lr(const tl_schedule *s, double lr, int64_t step);

/* ---- optimizers ---- */
typedef struct tl_opt tl_opt;
typedef struct {
    double lr;
    double momentum;          /* sgd */
    bool nesterov;            /* sgd with momentum */
    double weight_decay;      /* sgd and adam: added to the gradient; adamw: beside it */
    bool decoupled;           /* sgd: the decay beside the gradient, as adamw's */
    double beta1, beta2, eps; /* adam, adamw; 0: 0.9, 0.999, 1e-8 */
    double clip;              /* of the global norm; 0: none */
    tl_schedule schedule;
} tl_opt_options;
/* An optimizer of all parameters that are not frozen: f32 and f64, or f16 and bf16 through f32
 * masters. Borrows m, where it keeps its state as buffers from the first step on (adamw.m.NAME,
 * adamw.v.NAME, sgd.b.NAME): its own, from zero; two that live and would share one are TL_EUSAGE in
 * tl_step. NULL when out of memory. Numbers that make no sense (an lr of 0, a schedule other than
 * TL_CONSTANT without a total, ...) are TL_EDOMAIN, reported by tl_step. NUMERICS 12.10 compares
 * with PyTorch's. */
#define tl_sgd_new(m, ...) tl_sgd_new_with(m, TL_MAKE(tl_opt_options){__VA_ARGS__})
#define tl_adam_new(m, ...) tl_adam_new_with(m, TL_MAKE(tl_opt_options){__VA_ARGS__})
#define tl_adamw_new(m, ...) tl_adamw_new_with(m, TL_MAKE(tl_opt_options){__VA_ARGS__})
tl_opt *tl_sgd_new_with(tl_model *m, tl_opt_options o);
tl_opt *tl_adam_new_with(tl_model *m, tl_opt_options o);
tl_opt *tl_adamw_new_with(tl_model *m, tl_opt_options o);

/* For parameters whose names match the pattern (* and ? as in file names): lr times lr_scale, and
 * this weight decay; the last matching group wins. TL_ENAME, at the next tl_step, if none does. */
tl_status tl_opt_group(tl_opt *o, const char *pattern, double lr_scale, double weight_decay);

/* One update with the tape's gradients, which it consumes; nothing if it has failed or has none. */
#define tl_step(opt, t) tl_step_at(opt, TL_AT(t))
tl_status tl_step_at(tl_opt *o, tl_at at);
int64_t tl_opt_steps(const tl_opt *o);    /* updates made */
double tl_opt_lr(const tl_opt *o);        /* of the next update */
double tl_opt_grad_norm(const tl_opt *o); /* of the last, before clipping; NaN without clipping */

/* ---- checkpoints: parameters, buffers (with the optimizer's state), step, the model's seed, and
 * notes of the caller's, in one safetensors file that is written whole or not at all ----
 *
 * opt may be NULL. Errors go to m or t. Loading wants a model that has the same parameters already,
 * from a forward call; on an error model and optimizer are as they were. */
typedef struct {
    const char *key, *value;
} tl_note;
tl_status tl_checkpoint_save(tl_model *m, const tl_opt *opt, const char *path, const tl_note *notes,
                             int n);
/* The value of each of the n keys goes into values[i], "" if the file lacks it. */
enum { TL_NOTE_MAX = 256 };
tl_status tl_checkpoint_load(tl_model *m, tl_opt *opt, const char *path, const char *const *keys,
                             char (*values)[TL_NOTE_MAX], int n);
/* Reads only the notes, to compare them with what is wanted before loading. */
tl_status tl_checkpoint_notes(tl_model *m, const char *path, const char *const *keys,
                              char (*values)[TL_NOTE_MAX], int n);
/* The same of the tape's model, with the gradients that micro-batches have left on the tape, so
 * that a run can stop between any two of them. The file has an accumulator grad.CALL.KIND.NAME for
 * each backward, kind of use and parameter (grad.0..NAME where nothing has come to one that was
 * reached). Loading needs a tape without gradients (TL_EUSAGE). */
tl_status tl_checkpoint_save_tape(tl_tape *t, const tl_opt *opt, const char *path,
                                  const tl_note *notes, int n);
tl_status tl_checkpoint_load_tape(tl_tape *t, tl_opt *opt, const char *path,
                                  const char *const *keys, char (*values)[TL_NOTE_MAX], int n);
/* Whether path can be written, to hear of it before training; TL_EIO with the reason. */
tl_status tl_checkpoint_writable(tl_model *m, const char *path);
TL_END
#endif
