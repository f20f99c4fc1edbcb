/* run_model.h: small decoders trained on ragged samples, however the batches are made. */
#ifndef TESTS_CASES_RUN_MODEL_H
#define TESTS_CASES_RUN_MODEL_H

#include <tally.h>

enum { RUN_SAMPLES = 6, RUN_STEPS = 4, RUN_LONGEST = 9, RUN_VOCAB = 17, RUN_IGNORED = -1 };

typedef enum {
    RUN_ALONE,
    RUN_LEFT,
    RUN_RIGHT,
    RUN_ANYWHERE
} run_padding; /* one sample at a time and no padding; where padding is */

/* A way to make the same training run. All zero but micro, threads: padded batches of nothing but
 * what there is. */
typedef struct {
    bool gpt2, rotary; /* with dropout, and with rotary positions; else a Llama */
    tl_dtype dtype;
    run_padding padding;
    int64_t more; /* columns beyond the longest sample */
    int fillers;  /* samples of padding alone, strewn into each step */
    int micro;    /* samples at a time */
    int threads;
    bool reversed;            /* parameters made before, in reverse order of name */
    int stop_step, stop_part; /* before this micro-batch of that step: save, begin afresh, load;
                                 step < 0: never */
    uint64_t seed;            /* of where things are strewn */
} run_way;

/* The model's logits for ids (b, s). */
tl_tensor run_logits(tl_tape *t, tl_model *m, const run_way *w, tl_tensor ids,
                     tl_decoder_options o);
tl_kv_cache run_cache(tl_model *m, const run_way *w, int64_t b, int64_t capacity);
/* Sample `number` of all the samples: its length; ids[0 .. length] with the token that follows
 * last. */
int64_t run_sample(int64_t number, int64_t ids[RUN_LONGEST + 1]);
/* Trains; the hash of the weights, or an error's text in hex. */
void run_train(const run_way *w, char hex[512]);

#endif
