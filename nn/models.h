/* models.h: decoders in the files of other programs - Hugging Face's folders, llm.c's checkpoints
 * and tokens - and the tokenizers that go with them. Public. */
#ifndef TL_MODELS_H
#define TL_MODELS_H

#include "nn/nn.h"
TL_BEGIN

/* ---- a decoder of either kind ---- */

typedef enum { TL_FAMILY_LLAMA = 1, TL_FAMILY_GPT2 } tl_family;
enum { TL_STOPS_MAX = 8 };
typedef struct {
    tl_family family;
    tl_llama_config llama;      /* all zeros if it is a GPT-2 */
    tl_gpt2_config gpt2;        /* all zeros if it is a Llama */
    int64_t stop[TL_STOPS_MAX]; /* tokens that end a text */
    int stops;                  /* number of them */
} tl_decoder_config;
/* Calls tl_llama or tl_gpt2, or tl_llama_cache or tl_gpt2_cache, as the config says. */
#define tl_decoder(t, m, config, ids, ...) \
    tl_decoder_at(TL_AT(t), m, config, ids, TL_MAKE(tl_decoder_options){__VA_ARGS__})
tl_tensor tl_decoder_at(tl_at at, tl_model *m, const tl_decoder_config *c, tl_tensor ids,
                        tl_decoder_options o);
tl_kv_cache tl_decoder_cache(tl_model *m, const tl_decoder_config *c, int64_t b, int64_t capacity);

/* ---- models of other programs ----
 *
 * Loading fills *c and makes or overwrites the parameters that such a decoder has; other parameters
 * stay. On an error, which goes to m, model and *c are as they were. The sizes that a header claims
 * are compared with the bytes that are there before anything is made. TL_EFORMAT (damaged),
 * TL_ENAME (a tensor missing, or one too many), TL_ESHAPE, TL_EDTYPE, TL_EDOMAIN (a model of
 * another kind), TL_EIO, TL_ENOMEM. */

typedef struct {
    /* Of the parameters or, when saving, of the file; each number is rounded once. Default:
     * loading, the file's, or one that holds all of several; saving, each parameter's own. */
    tl_dtype dtype;
    int64_t shard_bytes; /* tl_hf_save alone: most bytes of a file of several tensors; 0: any */
} tl_model_files;
/* Loads a folder of config.json and model.safetensors, or the shards that
 * model.safetensors.index.json names. Llama: rope_scaling of the kinds llama3 and linear, tied or
 * not, no biases. GPT-2: with or without "transformer." before its names. Rotary pairs are halves
 * (c->llama.pairing). */
#define tl_hf_load(m, folder, c, ...) \
    tl_hf_load_with(m, folder, c, TL_MAKE(tl_model_files){__VA_ARGS__})
tl_status tl_hf_load_with(tl_model *m, const char *folder, tl_decoder_config *c, tl_model_files o);
/* Writes such a folder, and makes it if it is not there; transformers loads it. Shards that only
 * the model before had are removed. All files are written before the first takes its place, and the
 * old files are kept until the last has, so a save that fails leaves the model that was there. If
 * the process is killed in between, config.json is missing, and the old files are config.json.old
 * and so on (or .old1, ...: nothing else is overwritten, nor removed by a later save). If the
 * rotary pairs of a model are interleaved, the rows of q and k are reordered. Dropout is not kept;
 * .max_positions 0 becomes 2048. A GPT-2 with rotary positions is TL_EDOMAIN, here and below, as
 * other programs know only learned ones; TL_ENAME: a decoder that has more than the config says. */
#define tl_hf_save(m, folder, c, ...) \
    tl_hf_save_with(m, folder, c, TL_MAKE(tl_model_files){__VA_ARGS__})
tl_status tl_hf_save_with(tl_model *m, const char *folder, const tl_decoder_config *c,
                          tl_model_files o);

/* llm.c's checkpoint of a GPT-2 (magic 20240326): version 3 holds f32, 5 bf16. llmc_save writes
 * the dtype of the parameters, or .dtype, and pads the vocabulary with rows of zeros to a multiple
 * of 128, as llm.c needs it. Source: github.com/karpathy/llm.c, train_gpt2.py and train_gpt2.c. */
#define tl_llmc_load(m, path, c, ...) \
    tl_llmc_load_with(m, path, c, TL_MAKE(tl_model_files){__VA_ARGS__})
tl_status tl_llmc_load_with(tl_model *m, const char *path, tl_decoder_config *c, tl_model_files o);
#define tl_llmc_save(m, path, c, ...) \
    tl_llmc_save_with(m, path, c, TL_MAKE(tl_model_files){__VA_ARGS__})
tl_status tl_llmc_save_with(tl_model *m, const char *path, const tl_decoder_config *c,
                            tl_model_files o);
/* llm.c's tokens (magic 20240520, version 1: u16). tl_llmc_tokens_load returns an i64 (n) of m, or
 * TL_NONE on an error, which goes to m. tl_llmc_tokens_save refuses an id outside 0 .. 65535
 * (TL_EDOMAIN). */
tl_tensor tl_llmc_tokens_load(tl_model *m, const char *path);
tl_status tl_llmc_tokens_save(const char *path, const int64_t *ids, int64_t n, tl_err *err);

/* ---- text as tokens ---- */

/* Byte-level BPE from a tokenizer.json like those of GPT-2 and Llama 3: their two ways to split
 * text, merges, added tokens, and tokens put around a text. Anything else - a normalizer, another
 * pattern, a byte without a token - is TL_EDOMAIN; truncation and padding are the caller's. */
typedef struct tl_tokenizer tl_tokenizer;
tl_status tl_tokenizer_open(tl_tokenizer **out, const char *path, tl_err *err);
/* The same from n bytes in memory, copied; name stands for the path in messages. */
tl_status tl_tokenizer_open_memory(tl_tokenizer **out, const void *bytes, size_t n,
                                   const char *name, tl_err *err);
void tl_tokenizer_close(tl_tokenizer *k);         /* NULL is fine */
int64_t tl_tokenizer_size(const tl_tokenizer *k); /* every id is below it */
/* Turns n bytes of text into tokens. Returns the number of ids, of which the first `room` go to
 * ids; -1 with err's TL_ENOMEM. around: with the tokens that begin and end a text (Llama 3's
 * <|begin_of_text|>). Added tokens in the text are found. A byte that is not UTF-8 counts as a
 * symbol. */
int64_t tl_tokenizer_encode(const tl_tokenizer *k, const char *text, size_t n, bool around,
                            int64_t *ids, int64_t room, tl_err *err);
/* The bytes that a token stands for, *n of them, borrowed; NULL if there is no such token. A text
 * is the bytes of its tokens, one after another. A character may be spread over several tokens. */
const char *tl_tokenizer_bytes(const tl_tokenizer *k, int64_t id, size_t *n);
int64_t tl_tokenizer_find(const tl_tokenizer *k,
                          const char *content); /* id of an added token; or -1 */
TL_END
#endif
