/* run_model.c: see run_model.h. AdamW, clipped, its loss a sum over tokens divided by their count.
 */
#include "tests/cases/run_model.h"

#include <stdio.h>
#include <string.h>

#include "tensor/rng.h"
#include "tensor/threads.h"
#include "tests/cases/cases.h"
#include "tests/temp_dir.h"

enum { WIDTH = 32, MORE = 8, ROWS = RUN_SAMPLES + MORE, COLUMNS = RUN_LONGEST + MORE, FILLER = -1 };

static tl_gpt2_config gpt2_of(const run_way *w)
{
    return (tl_gpt2_config){.vocab = RUN_VOCAB,
                            .width = WIDTH,
                            .layers = 2,
                            .heads = 4,
                            .max_positions = COLUMNS,
                            .dropout = 0.2,
                            .dtype = w->dtype,
                            .pairing = w->rotary ? TL_ROTARY_HALF : 0};
}

static tl_llama_config llama_of(const run_way *w)
{
    return (tl_llama_config){.vocab = RUN_VOCAB,
                             .width = WIDTH,
                             .layers = 2,
                             .heads = 4,
                             .kv_heads = 2,
                             .hidden = 48,
                             .max_positions = COLUMNS,
                             .pairing = TL_ROTARY_HALF,
                             .dtype = w->dtype};
}

tl_tensor run_logits(tl_tape *t, tl_model *m, const run_way *w, tl_tensor ids, tl_decoder_options o)
{
    tl_gpt2_config g = gpt2_of(w);
    tl_llama_config l = llama_of(w);
    return w->gpt2 ? tl_gpt2_at(TL_AT(t), m, &g, ids, o) : tl_llama_at(TL_AT(t), m, &l, ids, o);
}

tl_kv_cache run_cache(tl_model *m, const run_way *w, int64_t b, int64_t capacity)
{
    tl_gpt2_config g = gpt2_of(w);
    tl_llama_config l = llama_of(w);
    return w->gpt2 ? tl_gpt2_cache(m, &g, b, capacity) : tl_llama_cache(m, &l, b, capacity);
}

int64_t run_sample(int64_t number, int64_t ids[RUN_LONGEST + 1])
{
    tl_rng_key key = tl_rng_stream(3, "samples");
    int64_t n = 2 + (int64_t)tl_rng_below(key, (uint64_t)number, 1000, RUN_LONGEST - 1);
    for (int64_t i = 0; i <= n; i++)
        ids[i] = (int64_t)tl_rng_below(key, (uint64_t)number, (uint64_t)i, RUN_VOCAB);
    return n;
}

/* Some rows of a step as a batch; a filler has neither start nor end. */
typedef struct {
    int64_t ids[ROWS * COLUMNS], targets[ROWS * COLUMNS], start[ROWS], end[ROWS], number[ROWS];
    int64_t rows, columns;
} batch;

static void lay_out(batch *b, const run_way *w, const int64_t *number, int64_t rows,
                    uint64_t *state)
{
    int64_t text[RUN_LONGEST + 1], longest = 1;
    for (int64_t i = 0; i < rows; i++) {
        int64_t n = number[i] == FILLER ? 0 : run_sample(number[i], text);
        longest = n > longest ? n : longest;
    }
    b->rows = rows;
    b->columns = longest + w->more;
    for (int64_t i = 0; i < rows; i++) {
        int64_t n = number[i] == FILLER ? 0 : run_sample(number[i], text), room = b->columns - n;
        b->number[i] = number[i] == FILLER ? (int64_t)(tl_case_random(state) % 1000) : number[i];
        b->start[i] = w->padding == RUN_LEFT ? room
                      : w->padding == RUN_ANYWHERE
                          ? (int64_t)(tl_case_random(state) % (uint64_t)(room + 1))
                          : 0;
        b->end[i] = b->start[i] + n;
        for (int64_t c = 0; c < b->columns; c++) {
            int64_t at = c - b->start[i];
            bool real = at >= 0 && at < n;
            b->ids[i * b->columns + c] = real ? text[at]
                                              : (int64_t)(tl_case_random(state) % RUN_VOCAB);
            b->targets[i * b->columns + c] = real ? text[at + 1] : RUN_IGNORED;
        }
    }
}

static tl_tensor loss_of(tl_tape *t, tl_model *m, const run_way *w, const batch *b, double count)
{
    tl_decoder_options o = {.sample = tl_data(t, b->number, TL_I64, TL_DIMS(b->rows))};
    tl_shape s = TL_DIMS(b->rows, b->columns);
    if (w->padding == RUN_LEFT || w->padding == RUN_ANYWHERE)
        o.columns.start = tl_data(t, b->start, TL_I64, TL_DIMS(b->rows));
    if (w->padding == RUN_RIGHT || w->padding == RUN_ANYWHERE)
        o.columns.end = tl_data(t, b->end, TL_I64, TL_DIMS(b->rows));
    tl_tensor z = run_logits(t, m, w, tl_data(t, b->ids, TL_I64, s), o);
    return tl_cross_entropy(t, z, tl_data(t, b->targets, TL_I64, s), TL_MEAN, .ignore = true,
                            .ignore_index = RUN_IGNORED, .count = tl_scalar(t, TL_F64, count));
}

typedef struct {
    tl_model *m;
    tl_tape *t;
    tl_opt *o;
} trainer;

static void make_parameters(const trainer *r, const run_way *w)
{
    batch b = {.rows = 1, .columns = 1};
    loss_of(r->t, r->m, &(run_way){.gpt2 = w->gpt2, .dtype = w->dtype}, &b, 1);
    tl_tape_reset(r->t);
}

static trainer begin(uint64_t seed)
{
    trainer r = {.m = tl_model_new(.seed = seed)};
    r.t = tl_tape_new(r.m);
    r.o = tl_adamw_new(r.m, .lr = 1e-2, .beta2 = 0.99, .weight_decay = 0.1, .clip = 0.5);
    return r;
}

/* The parameters that the model would make, made in reverse order. */
static void make_reversed(const trainer *r, const run_way *w, uint64_t seed)
{
    trainer donor = begin(seed);
    make_parameters(&donor, w);
    for (int i = tl_model_count(donor.m) - 1; i >= 0; i--) {
        tl_named p = tl_model_at(donor.m, i);
        if (!p.param)
            continue;
        tl_tensor mine = tl_param(r->t, r->m, p.name, p.array.dtype, tl_array_shape(&p.array),
                                  TL_INIT_ZEROS, 0);
        tl_write(r->m, mine, p.array.data,
                 (size_t)tl_array_count(&p.array) * tl_dtype_size(p.array.dtype));
    }
    tl_free(donor.o, donor.t, donor.m);
}

/* Saves, and goes on with a model, tape and optimizer of their own. */
static void stop_and_resume(trainer *r, const run_way *w)
{
    temp_dir dir;
    char path[1024];
    trainer fresh = begin(99); /* its own first draws do not matter */
    make_parameters(&fresh, w);
    temp_dir_make(&dir);
    temp_dir_file(path, &dir, "checkpoint");
    if (tl_checkpoint_save_tape(r->t, r->o, path, NULL, 0) != TL_OK)
        fprintf(stderr, "saving: %s\n", tl_error(r->t));
    if (tl_checkpoint_load_tape(fresh.t, fresh.o, path, NULL, NULL, 0) != TL_OK)
        fprintf(stderr, "loading: %s\n", tl_error(fresh.t));
    temp_dir_remove(&dir);
    tl_free(r->o, r->t, r->m);
    *r = fresh;
}

/* The samples of a step in order, fillers anywhere among them. */
static int64_t strewn(const run_way *w, int64_t step, int64_t number[ROWS], uint64_t *state)
{
    int64_t n = 0, fillers = w->fillers;
    for (int64_t i = 0; i < RUN_SAMPLES || fillers > 0;) {
        bool filler = fillers > 0 && (i == RUN_SAMPLES || tl_case_random(state) % 2);
        number[n++] = filler ? FILLER : step * RUN_SAMPLES + i++;
        fillers -= filler;
    }
    return n;
}

static void step_of(trainer *r, const run_way *w, int64_t step, uint64_t *state)
{
    int64_t number[ROWS], text[RUN_LONGEST + 1], rows = strewn(w, step, number, state),
                                                 micro = w->padding == RUN_ALONE ? 1 : w->micro;
    double count = 0;
    batch b;
    for (int64_t i = 0; i < RUN_SAMPLES; i++)
        count += (double)run_sample(step * RUN_SAMPLES + i, text);
    for (int64_t at = 0, part = 0; at < rows; at += micro, part++) {
        if (step == w->stop_step && part == w->stop_part)
            stop_and_resume(r, w);
        lay_out(&b, w, number + at, rows - at < micro ? rows - at : micro, state);
        tl_backward(r->t, loss_of(r->t, r->m, w, &b, count));
        tl_tape_reset(r->t);
    }
    tl_step(r->o, r->t);
    tl_tape_reset(r->t);
}

void run_train(const run_way *w, char hex[512])
{
    uint64_t state = w->seed;
    trainer r = begin(11);
    int before = tl_threads();
    tl_threads_set(w->threads);
    if (w->reversed)
        make_reversed(&r, w, 11);
    for (int64_t step = 0; step < RUN_STEPS; step++)
        step_of(&r, w, step, &state);
    if (tl_failed(r.t) || tl_model_sha256(r.m, hex) != TL_OK)
        snprintf(hex, 512, "%s", tl_error(r.t));
    tl_free(r.o, r.t, r.m);
    tl_threads_set(before);
}
