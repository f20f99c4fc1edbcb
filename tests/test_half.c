/* A small Llama trained in f16 and bf16 through f32 masters: it learns, and has one hash however it
 * is run. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "tensor/isa.h"
#include "tests/support/half.h"
#include "tests/temp_dir.h"

extern const struct CMUnitTest tl_tests_half[];
extern const size_t tl_tests_half_count;

enum { BATCH = 6, SEQ = 8, VOCAB = 11 };

typedef struct {
    tl_model *m;
    tl_tape *t;
    tl_opt *o;
} setup;

static void free_setup(setup *s) { tl_free(s->o, s->t, s->m); }

typedef struct {
    tl_dtype dtype;
    bool tied;
    int micro, threads, steps, stop; /* stop: save and go on with a fresh model; 0: never */
    const char *isa;
} way;

static tl_tensor loss_of(tl_tape *t, tl_model *m, const way *w, int64_t rows, int64_t step,
                         int64_t first)
{
    tl_llama_config c = {.vocab = VOCAB,
                         .width = 16,
                         .layers = 2,
                         .heads = 4,
                         .kv_heads = 2,
                         .hidden = 24,
                         .max_positions = SEQ,
                         .tied = w->tied,
                         .dtype = w->dtype};
    static int64_t ids[BATCH * SEQ], next[BATCH * SEQ];
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < SEQ;
             i++) { /* counting by a step of the sample's own: to be learnt */
            int64_t sample = step * BATCH + first + r;
            ids[r * SEQ + i] = (sample + i * (1 + sample % 2)) % VOCAB;
            next[r * SEQ + i] = (sample + (i + 1) * (1 + sample % 2)) % VOCAB;
        }
    tl_tensor z = tl_llama(t, m, &c, tl_data(t, ids, TL_I64, TL_DIMS(rows, SEQ)));
    return tl_cross_entropy(t, z, tl_data(t, next, TL_I64, TL_DIMS(rows, SEQ)), TL_MEAN,
                            .count = tl_scalar(t, TL_F64, (double)(BATCH * SEQ)));
}

static tl_opt *new_optimizer(tl_model *m)
{
    return tl_adamw_new(
        m, .lr = 1e-2, .weight_decay = 0.01, .clip = 1,
        .schedule = {.kind = TL_WARMUP_STABLE_DECAY, .warmup = 2, .total = 200, .decay = 50});
}

/* The loss of the first and of the last step. */
static void train(const way *w, char hex[65], double loss[2])
{
    const char *isa = tl_isa_now()->name;
    setup s = {.m = tl_model_new(.seed = 11)};
    s.t = tl_tape_new(s.m);
    s.o = new_optimizer(s.m);
    tl_threads_set(w->threads);
    if (w->isa != NULL)
        assert_true(tl_isa_force(w->isa));
    for (int64_t step = 0; step < w->steps; step++) {
        if (w->stop > 0 && step == w->stop) {
            temp_dir dir;
            char path[1024];
            assert_true(temp_dir_make(&dir));
            assert_int_equal(tl_checkpoint_save(s.m, s.o, temp_dir_file(path, &dir, "half"), NULL,
                                                0),
                             TL_OK);
            free_setup(&s);
            s.m = tl_model_new(.seed = 12);
            s.t = tl_tape_new(s.m);
            s.o = new_optimizer(s.m);
            loss_of(s.t, s.m, w, 1, 0, 0);
            tl_tape_reset(s.t);
            if (tl_checkpoint_load(s.m, s.o, path, NULL, NULL, 0) != TL_OK)
                fail_msg("%s", tl_error(s.m));
            temp_dir_remove(&dir);
        }
        double total = 0;
        for (int64_t first = 0; first < BATCH; first += w->micro) {
            tl_tensor l = loss_of(s.t, s.m, w, w->micro, step, first);
            total += tl_item(s.t, l);
            tl_backward(s.t, l);
            if (first + w->micro == BATCH)
                tl_step(s.o, s.t);
            tl_tape_reset(s.t);
        }
        if (step == 0 || step == w->steps - 1)
            loss[step > 0] = total;
    }
    assert_string_equal(tl_error(s.t), "");
    assert_int_equal(tl_model_sha256(s.m, hex), TL_OK);
    for (int i = 0; i < tl_model_count(s.m); i++) { /* the parameters stay what they are */
        tl_named p = tl_model_at(s.m, i);
        assert_true(!p.param || p.array.dtype == w->dtype);
    }
    free_setup(&s);
    tl_isa_force(isa);
    tl_threads_set(0);
}

static void a_llama_trains_in_halves(void **unused)
{
    (void)unused;
    for (int d = 0; d < 2; d++)
        for (int tied = 0; tied < 2; tied++) {
            double loss[2];
            char hex[65];
            way w = {
                .dtype = half_dtypes[d], .tied = tied, .micro = BATCH, .threads = 1, .steps = 100};
            train(&w, hex, loss);
            if (!(loss[0] > 2 && loss[1] < 0.6 * loss[0]))
                fail_msg("%s, tied %d: loss %g, then %g", tl_dtype_name(half_dtypes[d]), tied,
                         loss[0], loss[1]);
        }
}

static void assert_hash(const way *w, const char *want)
{
    char got[65];
    double loss[2];
    train(w, got, loss);
    if (strcmp(got, want) != 0)
        fail_msg("other weights: %s, %s, micro-batch %d, %d threads, %s, stopped at %d",
                 tl_dtype_name(w->dtype), w->tied ? "tied" : "untied", w->micro, w->threads,
                 w->isa ? w->isa : "own level", w->stop);
}

static void one_hash_however_it_is_run(void **unused)
{
    static const int micros[] = {1, 2, 3};
    (void)unused;
    for (int d = 0; d < 2; d++)
        for (int tied = 0; tied < 2; tied++) {
            double loss[2];
            char hex[65];
            const way base = {
                .dtype = half_dtypes[d], .tied = tied, .micro = BATCH, .threads = 1, .steps = 6};
            train(&base, hex, loss);
            for (int i = 0; i < 3; i++) {
                way w = base;
                w.micro = micros[i];
                assert_hash(&w, hex);
                w.threads = i + 2;
                w.stop = i + 1;
                assert_hash(&w, hex);
            }
            for (int i = 0; tl_isa_at(i) != NULL; i++) {
                way w = base;
                w.isa = tl_isa_at(i)->name;
                assert_hash(&w, hex);
                w.micro = 2;
                w.stop = 3;
                assert_hash(&w, hex);
            }
        }
}

const struct CMUnitTest tl_tests_half[] = {
    cmocka_unit_test(a_llama_trains_in_halves),
    cmocka_unit_test(one_hash_however_it_is_run),
};
const size_t tl_tests_half_count = sizeof tl_tests_half / sizeof *tl_tests_half;
