/* nn.h: layers, models, optimizers, schedules and checkpoints. Public. */
#ifndef TL_NN_H
#define TL_NN_H

#include "autograd/model.h"
#include "autograd/tape.h"
#include "ops/ops.h"
TL_BEGIN

/* ---- layers ----
 *
 * A layer is a function. Its first call makes the parameters NAME.weight, NAME.bias, ... in m,
 * drawn by the model's seed and their names; later calls find them.
 * A name belongs to one layer. Two calls with the same name on different lines of a recording would
 * silently share weights, so they are TL_ENAME unless one of them says .shared = true. A call in a
 * loop, or in a function that is called again, is on one line and uses the layer again; so number
 * the names of layers that a loop makes. A module of your own calls tl_place_push (author.h) before
 * its layers and tl_place_pop after them, so that its caller's line counts. */

typedef struct {
    bool shared; /* with layers of the same name at other places of a recording */
} tl_layer_options;

/* For adapters: takes y, the projection of x by NAME.weight, and returns y or a replacement. */
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
/* y = x W^T + b: (..., inputs) -> (..., outputs). NAME.weight (outputs, inputs), .bias (outputs) */
#define tl_linear(t, m, name, x, outputs, ...) \
    tl_linear_at(TL_AT(t), m, name, x, outputs, TL_MAKE(tl_linear_options){__VA_ARGS__})
tl_tensor tl_linear_at(tl_at at, tl_model *m, const char *name, tl_tensor x, int64_t outputs,
                       tl_linear_options o);

/* The rows of NAME.weight (rows, width) at ids (i64). It starts normal with deviation `scale`. */
#define tl_embed(t, m, name, ids, rows, width, scale, ...)          \
    tl_embed_at(TL_AT(t), m, name, ids, rows, width, scale, TL_F32, \
                TL_MAKE(tl_layer_options){__VA_ARGS__})
tl_tensor tl_embed_at(tl_at at, tl_model *m, const char *name, tl_tensor ids, int64_t rows,
                      int64_t width, double scale, tl_dtype dtype, tl_layer_options o);

/* RMSNorm over the last dim. NAME.weight starts as ones. */
#define tl_norm(t, m, name, x, eps, ...) \
    tl_norm_at(TL_AT(t), m, name, x, eps, TL_MAKE(tl_layer_options){__VA_ARGS__})
tl_tensor tl_norm_at(tl_at at, tl_model *m, const char *name, tl_tensor x, double eps,
                     tl_layer_options o);

/* LayerNorm over the last dim. NAME.weight starts as ones, NAME.bias as zeros. */
#define tl_norm_layer(t, m, name, x, eps, ...) \
    tl_norm_layer_at(TL_AT(t), m, name, x, eps, TL_MAKE(tl_layer_options){__VA_ARGS__})
tl_tensor tl_norm_layer_at(tl_at at, tl_model *m, const char *name, tl_tensor x, double eps,
                           tl_layer_options o);

typedef struct {
    int64_t kernel[2];                          /* its size in each dim; must be given */
    int64_t stride[2], padding[2], dilation[2]; /* stride and dilation 0: 1 */
    int64_t groups;                             /* 0: 1 */
    bool no_bias;
    tl_init init;   /* of the weight; default: uniform in +-1/sqrt(inputs of one output) */
    tl_dtype dtype; /* of the parameters; default: x's */
    bool shared;
} tl_convolve_options;
/* convolve1d is tl_conv1d of x (n, c, l), convolve2d tl_conv2d of x (n, c, h, w): -> (n, outputs,
 * ...). NAME.weight (outputs, c/groups, kernel...), NAME.bias (outputs). */
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
    bool both;      /* both directions; the results of a step are the first's, then the second's */
    bool no_bias;
    double dropout;   /* between layers, so there must be two; needs .sample */
    tl_tensor sample; /* see tl_decoder_options */
    /* States before the first step, (layers * directions, b, hidden); absent: zeros. Only an LSTM
     * has c. Their samples are along axis 1: tl_batch_axis(t, h, 1). To carry one on, tl_keep
     * *last_h before tl_backward; tl_data makes it .h in the next recording. */
    tl_tensor h, c;
    /* i64 (b): sample i has the steps start[i] <= t < end[i]; absent: 0, s. Every bit of a sample
     * is as if it were alone. In the other steps y is 0, and x may be anything finite. */
    tl_tensor start, end;
    tl_tensor *last_h, *last_c; /* unless NULL: set to the states after the last step, as h and c */
    bool shared;
} tl_recurrent_options;
/* All steps of an LSTM, a GRU or an RNN (NUMERICS 6.18): x (b, s, inputs) -> y (b, s, hidden),
 * twice as wide for both directions. tl_recurrent(..., TL_RNN_RELU, ...) is an RNN with relu.
 * NAME.weight_ih_l0, .weight_hh_l0, .bias_ih_l0, .bias_hh_l0, then _l1, ..., each also with
 * _reverse: names, shapes and order of gates are PyTorch's. All start uniform in +-1/sqrt(hidden).
 * TL_ESHAPE (c without an LSTM), TL_EDTYPE; TL_EDOMAIN: cell; TL_EUSAGE: .dropout, no .sample */
#define tl_lstm(t, m, name, x, hidden, ...) \
    tl_recurrent(t, m, name, x, hidden, TL_LSTM, __VA_ARGS__)
#define tl_gru(t, m, name, x, hidden, ...) tl_recurrent(t, m, name, x, hidden, TL_GRU, __VA_ARGS__)
#define tl_rnn(t, m, name, x, hidden, ...) \
    tl_recurrent(t, m, name, x, hidden, TL_RNN_TANH, __VA_ARGS__)
#define tl_recurrent(t, m, name, x, hidden, cell, ...) \
    tl_recurrent_at(TL_AT(t), m, name, x, hidden, cell, TL_MAKE(tl_recurrent_options){__VA_ARGS__})
tl_tensor tl_recurrent_at(tl_at at, tl_model *m, const char *name, tl_tensor x, int64_t hidden,
                          tl_cell cell, tl_recurrent_options o);

typedef struct {
    double eps;      /* 0: 1e-5 */
    double momentum; /* of BatchNorm: the share of a batch in new running statistics; 0: 0.1 */
    bool shared;
} tl_channel_norm_options;
/* BatchNorm of x (n, c, ...) by channel: (x - mean)/sqrt(var + eps) * NAME.weight + NAME.bias. Its
 * statistics tie the samples of a batch together: results and gradients change with the batch and
 * the micro-batch. tl_explain_invariance says so, and TL_STRICT refuses it. Each call moves the
 * buffers NAME.running_mean and NAME.running_var (over n - 1) towards the batch's. Under TL_EVAL
 * they are used instead and stay, and samples are independent. tl_save and tl_load include them. */
#define tl_batch_norm(t, m, name, x, ...) \
    tl_batch_norm_at(TL_AT(t), m, name, x, TL_MAKE(tl_channel_norm_options){__VA_ARGS__})
tl_tensor tl_batch_norm_at(tl_at at, tl_model *m, const char *name, tl_tensor x,
                           tl_channel_norm_options o);

/* GroupNorm: the same by sample and group of channels, over all their dims, without buffers. */
#define tl_group_norm(t, m, name, x, groups, ...) \
    tl_group_norm_at(TL_AT(t), m, name, x, groups, TL_MAKE(tl_channel_norm_options){__VA_ARGS__})
tl_tensor tl_group_norm_at(tl_at at, tl_model *m, const char *name, tl_tensor x, int64_t groups,
                           tl_channel_norm_options o);

typedef struct {
    bool by_tanh;     /* gelu_tanh instead of gelu */
    double deviation; /* of the normal distribution of the weights; 0: 0.02 */
    double out_scale; /* factor on the deviation of the output projection; 0: 1 */
    tl_hook project;
    bool shared;
} tl_mlp_gelu_options;
/* down(gelu(up x)): NAME.up (hidden, width), NAME.down (width, hidden), biases that start at 0. */
#define tl_mlp_gelu(t, m, name, x, hidden, ...) \
    tl_mlp_gelu_at(TL_AT(t), m, name, x, hidden, TL_MAKE(tl_mlp_gelu_options){__VA_ARGS__})
tl_tensor tl_mlp_gelu_at(tl_at at, tl_model *m, const char *name, tl_tensor x, int64_t hidden,
                         tl_mlp_gelu_options o);

typedef struct {
    double out_scale; /* factor on the deviation of the output projection; 0: 1 */
    tl_hook project;
    bool shared;
} tl_mlp_swiglu_options;
/* down(swiglu(gate x, up x)): NAME.gate, NAME.up (hidden, width), NAME.down (width, hidden). */
#define tl_mlp_swiglu(t, m, name, x, hidden, ...) \
    tl_mlp_swiglu_at(TL_AT(t), m, name, x, hidden, TL_MAKE(tl_mlp_swiglu_options){__VA_ARGS__})
tl_tensor tl_mlp_swiglu_at(tl_at at, tl_model *m, const char *name, tl_tensor x, int64_t hidden,
                           tl_mlp_swiglu_options o);

/* The keys and values of tokens that a decoder has seen, for the tokens that follow. They live as
 * long as the model and are not saved with it. Set n = 0 to start over. */
typedef struct {
    tl_tensor k, v; /* (layers, b, kv_heads, capacity, d) */
    int64_t n;      /* columns held */
} tl_kv_cache;
/* An empty cache in m for batches of b samples. On an error, which goes to m, k and v are zero. */
tl_kv_cache tl_kv_cache_new(tl_model *m, tl_dtype dtype, int64_t layers, int64_t b,
                            int64_t kv_heads, int64_t capacity, int64_t d);

/* Where the tokens of a batch stand. All fields may be absent. */
typedef struct {
    /* i64 (b): sample i's tokens are in columns start[i] <= c < end[i], the rest is padding;
     * absent: 0, all. Positions count from start. Padding whose numbers are finite changes no bit
     * of the tokens. Its own results mean nothing: let its targets be ignored. With a cache, start
     * is at most the columns so far. */
    tl_tensor start, end;
    /* Without `at`, x goes behind its n columns, and models then move n on. Needs TL_NO_GRAD. */
    tl_kv_cache *cache;
    /* With a cache, i64 (b): x is one column, written to at[i] of sample i, its last; no `end`. */
    tl_tensor at;
} tl_columns;

typedef struct {
    int64_t heads, kv_heads;     /* kv_heads 0: as many as heads */
    int64_t max_positions;       /* most rows of the rotary table; 0: any number */
    double rope_base, out_scale; /* 0: 10000, 1; out_scale as in tl_mlp_swiglu_options */
    tl_rotary_scaling scaling;   /* of rotary frequencies; factor 0: none */
    tl_rotary_pairing pairing;   /* 0: interleaved, as in RoFormer; see tl_llama_config */
    tl_columns columns;
    int64_t layer; /* of columns.cache */
    tl_hook project;
    bool shared;
} tl_self_attention_options;
/* Causal self-attention of x (b, s, width) with rotary positions. NAME.q, .k, .v, .o */
#define tl_self_attention(t, m, name, x, ...) \
    tl_self_attention_at(TL_AT(t), m, name, x, TL_MAKE(tl_self_attention_options){__VA_ARGS__})
tl_tensor tl_self_attention_at(tl_at at, tl_model *m, const char *name, tl_tensor x,
                               tl_self_attention_options o);

/* ---- models ---- */

/* What a decoder can be told about a batch besides its ids. All fields may be absent. */
typedef struct {
    tl_columns columns; /* padding and decoding; without `at` the cache's n moves on */
    /* For dropout, i64: the number of sample 0 (0-d; the others follow), or of each sample (b). Use
     * numbers that grow from step to step, so that each step has fresh draws. */
    tl_tensor sample;
    tl_hook project; /* for every projection but an output projection that is the embedding */
    bool shared;     /* another place of the recording uses the model with the same weights */
} tl_decoder_options;

typedef struct {
    int64_t vocab, width, layers, heads; /* these and hidden must be given */
    int64_t hidden;                  /* width of the MLP; in the paper 8/3 of width, rounded up */
    int64_t kv_heads, max_positions; /* 0: heads; any number */
    double rope_base, eps;           /* 0: 10000, 1e-5 */
    tl_rotary_pairing pairing; /* 0: interleaved, the paper's; Hugging Face's files need half */
    bool tied;                 /* the output projection is the embedding */
    tl_rotary_scaling scaling; /* of rotary frequencies, for long contexts; factor 0: none */
    tl_dtype dtype;            /* of the parameters and activations; default: TL_F32 */
} tl_llama_config;
/* A Llama: embedding, `layers` blocks of x += attention(norm x), x += mlp(norm x), norm, output
 * projection. ids i64 (b, s) -> logits (b, s, vocab). Sources: Touvron et al. 2023; positions: Su
 * et al. 2021 (RoFormer). tl_llama_cache makes an empty cache for it. */
#define tl_llama(t, m, config, ids, ...) \
    tl_llama_at(TL_AT(t), m, config, ids, TL_MAKE(tl_decoder_options){__VA_ARGS__})
tl_tensor tl_llama_at(tl_at at, tl_model *m, const tl_llama_config *c, tl_tensor ids,
                      tl_decoder_options o);
tl_kv_cache tl_llama_cache(tl_model *m, const tl_llama_config *c, int64_t b, int64_t capacity);

typedef struct {
    int64_t vocab, width, layers, heads, hidden; /* hidden 0: 4*width */
    int64_t max_positions;                       /* 0, with a pairing: any number */
    double eps, dropout; /* 0: 1e-5, none; after embedding, attention and MLP; needs .sample */
    tl_dtype dtype;      /* of the parameters and activations; default: TL_F32 */
    tl_rotary_pairing pairing; /* 0: learned positions, as in the paper; else rotary (base 10000) */
} tl_gpt2_config;
/* A GPT-2: embedding and learned positions, `layers` blocks of x += attention(norm x), x +=
 * mlp(norm x) with LayerNorm, GELU (tanh) and biases, norm, and the embedding again as projection.
 * ids i64 (b, s) -> logits (b, s, vocab); an empty cache as above. Source: Radford et al. 2019. */
#define tl_gpt2(t, m, config, ids, ...) \
    tl_gpt2_at(TL_AT(t), m, config, ids, TL_MAKE(tl_decoder_options){__VA_ARGS__})
tl_tensor tl_gpt2_at(tl_at at, tl_model *m, const tl_gpt2_config *c, tl_tensor ids,
                     tl_decoder_options o);
tl_kv_cache tl_gpt2_cache(tl_model *m, const tl_gpt2_config *c, int64_t b, int64_t capacity);

/* ---- schedules (NUMERICS 12.5): the rate of a step, from 0 on; a step below 0 counts as 0 ---- */
typedef enum { TL_CONSTANT, TL_COSINE, TL_LINEAR, TL_WARMUP_STABLE_DECAY } tl_schedule_kind;
typedef struct {
    tl_schedule_kind kind;
    int64_t warmup, total; /* steps */
    double min_ratio;      /* all kinds but TL_CONSTANT end at lr * min_ratio, and stay there */
    int64_t decay; /* TL_WARMUP_STABLE_DECAY: last steps, with falling lr; at most total - warmup */
} tl_schedule;
double tl_schedule_lr(const tl_schedule *s, double lr, int64_t step);

/* ---- optimizers ---- */
typedef struct tl_opt tl_opt;
typedef struct {
    double lr;
    double momentum;          /* sgd */
    bool nesterov;            /* sgd with momentum */
    double weight_decay;      /* sgd and adam: added to the gradient; adamw: beside it */
    bool decoupled;           /* sgd: the decay beside the gradient, as in adamw */
    double beta1, beta2, eps; /* adam, adamw; 0: 0.9, 0.999, 1e-8 */
    double clip;              /* limit of the global norm; 0: none */
    tl_schedule schedule;
    int part, parts; /* parts > 0: updates only part 0 <= part < parts of the parameters */
} tl_opt_options;
/* An optimizer of all parameters that are not frozen: f32, f64, and f16 and bf16 by f32 masters
 * (master.NAME). Its state is kept in m, which it holds, from the first step on, in buffers that
 * start at zero (adamw.m.NAME, adamw.v.NAME, sgd.b.NAME). tl_step: TL_EUSAGE if two that live would
 * share one, TL_EDOMAIN for an lr of 0 and the like. NULL: no memory or model. NUMERICS 12.10. */
#define TL_OPT(make, m, ...) make(m, TL_MAKE(tl_opt_options){__VA_ARGS__}, __FILE__, __LINE__)
#define tl_sgd_new(m, ...) TL_OPT(tl_sgd_new_at, m, __VA_ARGS__)
#define tl_adam_new(m, ...) TL_OPT(tl_adam_new_at, m, __VA_ARGS__)
#define tl_adamw_new(m, ...) TL_OPT(tl_adamw_new_at, m, __VA_ARGS__)
tl_opt *tl_sgd_new_at(tl_model *m, tl_opt_options o, const char *file, int line);
tl_opt *tl_adam_new_at(tl_model *m, tl_opt_options o, const char *file, int line);
tl_opt *tl_adamw_new_at(tl_model *m, tl_opt_options o, const char *file, int line);

/* Parameters whose names match the pattern (* any bytes, ? one byte, no other signs) have lr times
 * lr_scale, and this weight decay. The last match wins; if none matches, tl_step is TL_ENAME. */
tl_status tl_opt_group(tl_opt *o, const char *pattern, double lr_scale, double weight_decay);

/* One update with the tape's gradients; TL_EUSAGE, on t, without any or under TL_ANOMALY. It
 * consumes all, those of frozen parameters, too: one backward serves one optimizer. */
#define tl_step(opt, t) tl_step_at(opt, TL_AT(t))
tl_status tl_step_at(tl_opt *o, tl_at at);
int64_t tl_opt_steps(const tl_opt *o);         /* updates made */
double tl_opt_lr(const tl_opt *o);             /* of the next update */
tl_status tl_opt_lr_set(tl_opt *o, double lr); /* the schedule's; a checkpoint brings its own */
double tl_opt_grad_norm(const tl_opt *o); /* of the last update, unclipped; NaN without .clip */

/* ---- checkpoints ----
 *
 * A checkpoint is one safetensors file, written whole or not at all: parameters (not: which are
 * frozen), buffers (with the optimizer's state), steps made, a rate that was set, the model's seed,
 * and notes. What options opt had it does not say: give the same. opt may be NULL; several save a
 * file each, and do not step before each has loaded its own (TL_EUSAGE). Errors go to m or t.
 * Loading needs the program's parameters and buffers, from a forward call; TL_ENAME: the file lacks
 * a buffer that was written. A failure changes nothing. */
typedef struct {
    const char *key, *value; /* no key begins with "tally." */
} tl_note;
tl_status tl_checkpoint_save(tl_model *m, const tl_opt *opt, const char *path, const tl_note *notes,
                             int n);
/* Sets values[i] to the note of each of the n keys, "" if the file does not have it. */
enum { TL_NOTE_MAX = 256 };
tl_status tl_checkpoint_load(tl_model *m, tl_opt *opt, const char *path, const char *const *keys,
                             char (*values)[TL_NOTE_MAX], int n);
/* Reads only the notes, so that a program can look at them before it loads the rest. */
tl_status tl_checkpoint_notes(tl_model *m, const char *path, const char *const *keys,
                              char (*values)[TL_NOTE_MAX], int n);
/* The same for the tape's model and the gradients that micro-batches have left on the tape, to stop
 * between any two of them: an accumulator grad.CALL.KIND.NAME for each backward, kind of use and
 * parameter (grad.0..NAME: reached, but given nothing). TL_EUSAGE: save: a parameter with one was
 * frozen since; load: the tape has some already. */
tl_status tl_checkpoint_save_tape(tl_tape *t, const tl_opt *opt, const char *path,
                                  const tl_note *notes, int n);
tl_status tl_checkpoint_load_tape(tl_tape *t, tl_opt *opt, const char *path,
                                  const char *const *keys, char (*values)[TL_NOTE_MAX], int n);
/* Whether path can be written, to know before training. TL_EIO with the reason. */
tl_status tl_checkpoint_writable(tl_model *m, const char *path);
TL_END
#endif
