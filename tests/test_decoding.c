/* Decoding with a cache of keys and values gives every position the logits of the whole forward
 * pass, bit for bit: token by token, in pieces, in batches padded on the left, in batches padded on
 * the right whose samples go on each in its own column. And what the models refuse. TL_TEST_SEED
 * repeats a run. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nn/models.h"
#include "tests/cases/cases.h"
#include "tests/cases/run_model.h"

extern const struct CMUnitTest tl_tests_decoding[];
extern const size_t tl_tests_decoding_count;

enum { SAMPLES = 4, CAPACITY = 16 };

/* A model, its samples, and their logits as the whole forward pass of each alone gives them. */
typedef struct {
    run_way w;
    tl_model *m;
    tl_tape *t;
    int64_t ids[SAMPLES][RUN_LONGEST + 1], n[SAMPLES];
    ref_tensor want[SAMPLES]; /* (n, vocab) */
    uint64_t state;
} decoder;

static uint64_t seed0;
static int compared, wrong;

/* Rows [row, row + k) of sample i, from (b, s, vocab) of the batch's row b, column c on. */
static void same(decoder *d, const char *how, const ref_tensor *got, int64_t b, int64_t c,
                 int64_t i, int64_t row, int64_t k)
{
    compared++;
    for (int64_t j = 0; got->data != NULL && j < k * RUN_VOCAB; j++)
        if (memcmp(&(double){ref_get(got, (b * got->dim[1] + c) * RUN_VOCAB + j)},
                   &(double){ref_get(&d->want[i], row * RUN_VOCAB + j)}, sizeof(double)) != 0)
            goto differ;
    if (got->data != NULL)
        return;
differ:
    if (wrong++ < 10)
        fprintf(stderr, "[ seed %llu ] %s %s, %s: sample %lld, position %lld: %s\n",
                (unsigned long long)seed0, d->w.gpt2 ? "gpt2" : "llama", tl_dtype_name(d->w.dtype),
                how, (long long)i, (long long)row,
                got->data == NULL ? tl_error(d->t) : "other bits");
}

static ref_tensor logits(decoder *d, const int64_t *ids, int64_t b, int64_t s, tl_decoder_options o)
{
    ref_tensor x = tl_case_read(d->t, run_logits(d->t, d->m, &d->w,
                                                 tl_data(d->t, ids, TL_I64, TL_DIMS(b, s)), o));
    tl_tape_reset(d->t);
    return x;
}

static decoder begin(bool gpt2, bool rotary, tl_dtype dtype, uint64_t seed)
{
    decoder d = {.w = {.gpt2 = gpt2, .rotary = rotary, .dtype = dtype},
                 .m = tl_model_new(.seed = seed),
                 .state = seed};
    d.t = tl_tape_new(d.m);
    tl_mode_push(d.t, TL_NO_GRAD | TL_EVAL);
    for (int64_t i = 0; i < SAMPLES; i++) {
        d.n[i] = run_sample(i + (int64_t)(seed % 1000), d.ids[i]);
        d.want[i] = logits(&d, d.ids[i], 1, d.n[i], (tl_decoder_options){.sample = TL_NONE});
    }
    return d;
}

static void end(decoder *d)
{
    if (tl_failed(d->t))
        fprintf(stderr, "%s\n", tl_error(d->t));
    tl_case_free(SAMPLES, d->want);
    tl_free(d->t, d->m);
}

/* Pieces of at most `most` tokens, of one sample. */
static void in_pieces(decoder *d, int64_t most)
{
    char how[64];
    tl_kv_cache cache = run_cache(d->m, &d->w, 1, CAPACITY);
    snprintf(how, sizeof how, "pieces of up to %d", (int)most);
    for (int64_t i = 0; i < SAMPLES; i++) {
        cache.n = 0;
        while (cache.n < d->n[i]) {
            int64_t at = cache.n, left = d->n[i] - at,
                    k = 1 + (int64_t)(tl_case_random(&d->state) % (uint64_t)most);
            k = k < left ? k : left;
            ref_tensor got = logits(d, d->ids[i] + at, 1, k,
                                    (tl_decoder_options){.columns = {.cache = &cache}});
            same(d, how, &got, 0, 0, i, at, k);
            ref_free(&got);
            if (tl_failed(d->t))
                return;
        }
    }
}

/* All samples end in the last column. */
static void left_padded(decoder *d)
{
    int64_t ids[SAMPLES * CAPACITY], start[SAMPLES],
        columns = RUN_LONGEST + (int64_t)(tl_case_random(&d->state) % 4);
    tl_kv_cache cache = run_cache(d->m, &d->w, SAMPLES, CAPACITY);
    for (int64_t i = 0; i < SAMPLES; i++)
        start[i] = columns - d->n[i];
    while (cache.n < columns && !tl_failed(d->t)) {
        int64_t at = cache.n, left = columns - at, k = 1 + (int64_t)(tl_case_random(&d->state) % 5);
        k = k < left ? k : left;
        for (int64_t i = 0; i < SAMPLES; i++)
            for (int64_t c = 0; c < k; c++)
                ids[i * k + c] = at + c < start[i]
                                     ? (int64_t)(tl_case_random(&d->state) % RUN_VOCAB)
                                     : d->ids[i][at + c - start[i]];
        /* sample i's keys begin in column start[i], which may be still to come */
        int64_t now[SAMPLES];
        for (int64_t i = 0; i < SAMPLES; i++)
            now[i] = start[i] < at + k ? start[i] : at + k;
        ref_tensor got = logits(d, ids, SAMPLES, k,
                                (tl_decoder_options){
                                    .columns = {.cache = &cache,
                                                .start = tl_data(d->t, now, TL_I64,
                                                                 TL_DIMS(SAMPLES))}});
        for (int64_t i = 0; i < SAMPLES; i++)
            for (int64_t c = 0; c < k; c++)
                if (at + c >= start[i])
                    same(d, "padded on the left", &got, i, c, i, at + c - start[i], 1);
        ref_free(&got);
    }
}

/* Prompts of different lengths, padded on the right; then each sample goes on in its own column. */
static void right_padded(decoder *d)
{
    int64_t ids[SAMPLES * CAPACITY], prompt[SAMPLES], at[SAMPLES], longest = 1;
    tl_kv_cache cache = run_cache(d->m, &d->w, SAMPLES, CAPACITY);
    for (int64_t i = 0; i < SAMPLES; i++) {
        prompt[i] = 1 + (int64_t)(tl_case_random(&d->state) % (uint64_t)d->n[i]);
        longest = prompt[i] > longest ? prompt[i] : longest;
    }
    for (int64_t i = 0; i < SAMPLES; i++)
        for (int64_t c = 0; c < longest; c++)
            ids[i * longest + c] = c < prompt[i] ? d->ids[i][c]
                                                 : (int64_t)(tl_case_random(&d->state) % RUN_VOCAB);
    ref_tensor got = logits(d, ids, SAMPLES, longest,
                            (tl_decoder_options){.columns = {.cache = &cache,
                                                             .end = tl_data(d->t, prompt, TL_I64,
                                                                            TL_DIMS(SAMPLES))}});
    for (int64_t i = 0; i < SAMPLES; i++)
        same(d, "prompts padded on the right", &got, i, 0, i, 0, prompt[i]);
    ref_free(&got);
    for (int64_t k = 0; k < RUN_LONGEST && !tl_failed(d->t); k++) {
        for (int64_t i = 0; i < SAMPLES;
             i++) { /* a sample that is through writes where nobody looks */
            bool more = prompt[i] + k < d->n[i];
            at[i] = more ? prompt[i] + k : CAPACITY - 1;
            ids[i] = more ? d->ids[i][at[i]] : 0;
        }
        got = logits(d, ids, SAMPLES, 1,
                     (tl_decoder_options){
                         .columns = {.cache = &cache,
                                     .at = tl_data(d->t, at, TL_I64, TL_DIMS(SAMPLES))}});
        for (int64_t i = 0; i < SAMPLES; i++)
            if (prompt[i] + k < d->n[i])
                same(d, "each in its own column", &got, i, 0, i, at[i], 1);
        ref_free(&got);
    }
}

static void test_decoding(void **unused)
{
    static const tl_dtype dtypes[] = {TL_F32, TL_BF16, TL_F16, TL_F64};
    const char *env = getenv("TL_TEST_SEED");
    (void)unused;
    seed0 = env != NULL ? strtoull(env, NULL, 0) : 1;
    printf("TL_TEST_SEED=%llu\n", (unsigned long long)seed0);
    compared = wrong = 0;
    for (int k = 0; k < 8; k++)
        for (uint64_t trial = 0; trial < 3; trial++) {
            decoder d = begin(k & 1, trial == 2, dtypes[k / 2], seed0 + trial);
            in_pieces(&d, 1);
            in_pieces(&d, 4);
            left_padded(&d);
            right_padded(&d);
            end(&d);
        }
    printf("%d comparisons, %d differ\n", compared, wrong);
    assert_int_equal(wrong, 0);
    assert_true(compared > 500);
}

/* ---- refusals ---- */

static void refuses(decoder *d, tl_status want, const char *word, tl_tensor ids,
                    tl_decoder_options o)
{
    int64_t held = o.columns.cache != NULL ? o.columns.cache->n : 0;
    tl_tensor z = run_logits(d->t, d->m, &d->w, ids, o);
    if (!tl_is_none(z) || tl_error_status(d->t) != want || strstr(tl_error(d->t), word) == NULL ||
        strstr(tl_error(d->t), "run_model.c") == NULL)
        fail_msg("%s with '%s' wanted, got: %s", tl_status_name(want), word, tl_error(d->t));
    if (o.columns.cache != NULL)
        assert_int_equal(o.columns.cache->n, held);
    tl_error_clear(d->t);
}

static void test_refusals(void **unused)
{
    (void)unused;
    for (int gpt2 = 0; gpt2 < 2; gpt2++) {
        decoder d = begin(gpt2, false, TL_F32, 5);
        tl_kv_cache cache = run_cache(d.m, &d.w, 2, 4), none = {.n = 0};
        tl_tensor two = tl_zeros(d.t, TL_I64, TL_DIMS(2, 2)),
                  one = tl_zeros(d.t, TL_I64, TL_DIMS(2, 1)),
                  zeros = tl_zeros(d.t, TL_I64, TL_DIMS(2));
        tl_tensor three = tl_zeros(d.t, TL_I64, TL_DIMS(3, 1)),
                  four = tl_data(d.t, ((int64_t[]){0, 4}), TL_I64, TL_DIMS(2));
        cache.n = 3;
        refuses(&d, TL_ESHAPE, "2 columns more, where the cache holds 3 of at most 4", two,
                (tl_decoder_options){.columns = {.cache = &cache}});
        refuses(&d, TL_ESHAPE, "for layer 0 of a cache of shape [2, 2,", three,
                (tl_decoder_options){.columns = {.cache = &cache}});
        refuses(&d, TL_ESHAPE,
                "2 columns more, where the cache holds 3 of at most 4; `at` takes one at a time",
                two, (tl_decoder_options){.columns = {.cache = &cache, .at = zeros}});
        refuses(&d, TL_ESHAPE, "`at` has shape [2, 1], I64; I64 (2), a column for each", one,
                (tl_decoder_options){.columns = {.cache = &cache, .at = one}});
        refuses(&d, TL_EDTYPE, "`at` has shape [2], F32; I64 (2), a column for each", one,
                (tl_decoder_options){
                    .columns = {.cache = &cache, .at = tl_zeros(d.t, TL_F32, TL_DIMS(2))}});
        refuses(&d, TL_EINDEX, "`at` is 4 for sample 1; the cache has columns 0 to 3", one,
                (tl_decoder_options){.columns = {.cache = &cache, .at = four}});
        static const int64_t below[] = {-1, -4, -5, INT64_MIN}; /* not counted from the end */
        tl_array k;
        assert_true(tl_array_of(d.t, cache.k, &k));
        size_t bytes = (size_t)tl_array_count(&k) * tl_dtype_size(k.dtype);
        memset(k.data, 0x55, bytes);
        for (int i = 0; i < 4; i++) {
            char word[64];
            snprintf(word, sizeof word, "`at` is %lld for sample 1", (long long)below[i]);
            refuses(&d, TL_EINDEX, word, one,
                    (tl_decoder_options){.columns = {.cache = &cache,
                                                     .at = tl_data(d.t, ((int64_t[]){0, below[i]}),
                                                                   TL_I64, TL_DIMS(2))}});
        }
        for (size_t i = 0; i < bytes; i++) /* nor is anything written for sample 0 */
            assert_int_equal(((unsigned char *)k.data)[i], 0x55);
        refuses(&d, TL_EUSAGE, "there is none", one,
                (tl_decoder_options){.columns = {.at = zeros}});
        refuses(&d, TL_EUSAGE, "`at` says where a sample ends; `end` does, too", one,
                (tl_decoder_options){.columns = {.cache = &cache, .at = zeros, .end = zeros}});
        refuses(&d, TL_EINDEX, "up to 4, of 2", two,
                (tl_decoder_options){.columns = {.end = four}});
        refuses(&d, TL_ESHAPE, "was not made for this model", one,
                (tl_decoder_options){.columns = {.cache = &none}});
        tl_mode_pop(d.t, 0);
        refuses(&d, gpt2 ? TL_EUSAGE : TL_ENOGRAD, gpt2 ? "push the mode TL_EVAL" : "TL_NO_GRAD",
                one, (tl_decoder_options){.sample = zeros, .columns = {.cache = &cache}});
        if (gpt2)
            refuses(&d, TL_EUSAGE, "dropout 0.2 draws by the samples' numbers", one,
                    (tl_decoder_options){.sample = TL_NONE});
        tl_mode_push(d.t, TL_EVAL);
        refuses(&d, TL_ENOGRAD, "TL_NO_GRAD", one,
                (tl_decoder_options){.columns = {.cache = &cache}});
        end(&d);
    }
}

/* Columns of padding need no place among max_positions, whichever side they are on. */
static void test_padding_beyond_the_positions(void **unused)
{
    enum { COLUMNS = 8, MOST = 6, VOCAB = 20 };
    static const int64_t n[] = {6, 4}, longer[] = {7, 4}, row[] = {1, 5, 9, 2, 7, 3, 0, 0};
    int64_t left[2][COLUMNS] = {{0}}, right[2][COLUMNS] = {{0}}, starts[2];
    (void)unused;
    for (int i = 0; i < 2; i++) {
        starts[i] = COLUMNS - n[i];
        memcpy(right[i], row, (size_t)n[i] * sizeof *row);
        memcpy(left[i] + starts[i], row, (size_t)n[i] * sizeof *row);
    }
    for (int k = 0; k < 3; k++) { /* learned and rotary positions, a Llama */
        tl_decoder_config c = {.family = k < 2 ? TL_FAMILY_GPT2 : TL_FAMILY_LLAMA};
        c.gpt2 = (tl_gpt2_config){VOCAB, 8, 2, 2, .max_positions = MOST};
        c.gpt2.pairing = k == 1 ? TL_ROTARY_HALF : 0;
        c.llama = (tl_llama_config){VOCAB, 8, 2, 2, .hidden = 12, .max_positions = MOST};
        tl_model *m = tl_model_new(.seed = 3);
        tl_tape *t = tl_tape_new(m);
        tl_mode_push(t, TL_NO_GRAD | TL_EVAL);
        tl_tensor start = tl_data(t, starts, TL_I64, TL_DIMS(2)),
                  end = tl_data(t, n, TL_I64, TL_DIMS(2)),
                  far = tl_data(t, longer, TL_I64, TL_DIMS(2)),
                  ids = tl_data(t, right, TL_I64, TL_DIMS(2, COLUMNS));
        ref_tensor z[3] = {
            tl_case_read(t, tl_decoder(t, m, &c, tl_data(t, row, TL_I64, TL_DIMS(1, MOST)))),
            tl_case_read(t, tl_decoder(t, m, &c, tl_data(t, left, TL_I64, TL_DIMS(2, COLUMNS)),
                                       .columns.start = start)),
            tl_case_read(t, tl_decoder(t, m, &c, ids, .columns.end = end))};
        for (int side = 1; side < 3; side++) {
            if (z[side].data == NULL)
                fail_msg("decoder %d, side %d: %s", k, side, tl_error(t));
            for (int64_t i = 0; i < 2; i++)
                for (int64_t j = 0; j < n[i] * VOCAB; j++)
                    assert_true(
                        ref_get(&z[0], j) ==
                        ref_get(&z[side], (i * COLUMNS + (side == 1 ? starts[i] : 0)) * VOCAB + j));
        }
        tl_case_free(3, z);
        assert_true(tl_is_none(tl_decoder(t, m, &c, ids, .columns.end = far)));
        assert_non_null(strstr(tl_error(t), "id 6 at position 6; the table has 6 rows"));
        tl_error_clear(t);
        assert_true(tl_is_none(tl_decoder(t, m, &c, ids, .columns.end = ids)));
        assert_non_null(strstr(tl_error(t), "`end` has shape [2, 8], I64; I64 (2)"));
        tl_free(t, m);
    }
}

/* Dropout: draws while training, is the identity under TL_EVAL, says what is wrong. */
static void test_dropout_mode(void **unused)
{
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    char a[65], b[65];
    tl_tensor x = tl_fill(t, TL_F32, TL_DIMS(3, 40), 1),
              late = tl_data(t, ((int64_t[]){0, 41, 0}), TL_I64, TL_DIMS(3));
    tl_tensor y = tl_dropout(t, x, 0.5, .stream = "s");
    tl_sha256(t, x, a);
    tl_sha256(t, y, b);
    assert_string_not_equal(a, b);
    int depth = tl_mode_push(t, TL_EVAL);
    tl_sha256(t, tl_dropout(t, x, 0.5, .stream = "s"), b);
    assert_string_equal(a, b);
    tl_mode_pop(t, depth);
    tl_sha256(t, y, a);
    tl_sha256(t, tl_dropout(t, x, 0.5, .stream = "s"), b);
    assert_string_equal(a, b);
    assert_true(tl_is_none(tl_dropout(t, x, 0.5, .stream = "s", .start = late)));
    assert_non_null(strstr(tl_error(t), "row 1 starts at index 41 of 40"));
    tl_error_clear(t);
    assert_true(tl_is_none(tl_dropout(t, x, 0.5, .stream = "s", .start = x)));
    assert_non_null(strstr(tl_error(t), "start [3, 40], F32"));
    tl_error_clear(t);
    for (int n = 2; n <= 4; n += 2) { /* x has 3 rows */
        tl_tensor few = tl_data(t, ((int64_t[]){0, 0, 0, 0}), TL_I64, TL_DIMS(n));
        assert_true(tl_is_none(tl_dropout(t, x, 0.5, .stream = "s", .start = few)));
        assert_non_null(strstr(tl_error(t), "I64 for each row of x"));
        tl_error_clear(t);
        assert_true(tl_is_none(tl_normal(t, TL_F32, TL_DIMS(3, 40), "s", .start = few)));
        assert_non_null(strstr(tl_error(t), "I64 for each row of the result"));
        tl_error_clear(t);
    }
    tl_tensor one = tl_scalar(t, TL_F32, 1);
    for (int i = 0; i < 2; i++) {
        assert_true(tl_is_none(i ? tl_dropout(t, one, 0.5, .stream = "s")
                                 : tl_uniform(t, TL_F32, TL_SCALAR, "s")));
        assert_non_null(strstr(tl_error(t), "shape [] has no rows"));
        tl_error_clear(t);
    }
    tl_free(t, m);
}

/* One below 0 would be counted from the last. */
static void layers_that_a_cache_lacks(void **unused)
{
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_kv_cache cache = tl_kv_cache_new(m, TL_F32, 2, 1, 2, 4, 4);
    const int mode = tl_mode_push(t, TL_NO_GRAD);
    (void)unused;
    for (int64_t layer = -1; layer <= 2; layer++) {
        const bool there = layer == 0 || layer == 1;
        tl_tensor y = tl_self_attention(t, m, "a", tl_zeros(t, TL_F32, TL_DIMS(1, 1, 8)),
                                        .heads = 2, .columns.cache = &cache, .layer = layer);
        assert_true(tl_is_none(y) != there);
        assert_int_equal(tl_error_status(t), there ? TL_OK : TL_ESHAPE);
        assert_true(there || strstr(tl_error(t), "of a cache of shape [2, 1, 2, 4, 4]") != NULL);
        tl_error_clear(t);
        tl_tape_reset(t);
    }
    tl_mode_pop(t, mode);
    tl_free(t, m);
}

const struct CMUnitTest tl_tests_decoding[] = {cmocka_unit_test(test_decoding),
                                               cmocka_unit_test(layers_that_a_cache_lacks),
                                               cmocka_unit_test(test_refusals),
                                               cmocka_unit_test(test_padding_beyond_the_positions),
                                               cmocka_unit_test(test_dropout_mode)};
const size_t tl_tests_decoding_count = sizeof tl_tests_decoding / sizeof tl_tests_decoding[0];
