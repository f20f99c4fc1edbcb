/* tl_loader: each epoch brings every sample once, in an order that the seed and the epoch decide
 * alone; its place goes with the checkpoint. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <tally_data.h>

#include "tests/temp_dir.h"

extern const struct CMUnitTest tl_tests_loader[];
extern const size_t tl_tests_loader_count;

enum { N = 23, BATCH = 5 };

static float xs[N][2];
static int64_t ys[N];
static tl_array data[2];

static int begin(void **unused)
{
    (void)unused;
    for (int i = 0; i < N; i++) {
        xs[i][0] = (float)(ys[i] = 100 + i);
        xs[i][1] = -(float)i;
    }
    tl_shape x = TL_DIMS(N, 2), y = TL_DIMS(N);
    data[0] = tl_array_make(TL_F32, &x, xs);
    data[1] = tl_array_make(TL_I64, &y, ys);
    return 0;
}

/* Writes the labels of `samples` samples, taken `most` at a time; both arrays go together. */
static void labels(tl_tape *t, tl_loader *l, int64_t most, int64_t samples, int64_t *out)
{
    for (int64_t got = 0; got < samples;) {
        tl_tensor in[2];
        float x[N][2];
        int64_t room = samples - got, rows = tl_loader_next(t, l, most < room ? most : room, in);
        if (rows < 1)
            fail_msg("%s", tl_error(t));
        tl_keep(t, in[1], out + got, (size_t)rows * sizeof *out);
        assert_int_equal(tl_keep(t, in[0], x, (size_t)rows * sizeof *x), TL_OK);
        for (int64_t i = 0; i < rows; i++, got++)
            assert_true(x[i][0] == (float)out[got] && x[i][1] == 100 - (float)out[got]);
        tl_tape_reset(t);
    }
}

static void of_seed(uint64_t seed, tl_loader_options o, int64_t most, int64_t samples, int64_t *out)
{
    tl_model *m = tl_model_new(.seed = seed);
    tl_tape *t = tl_tape_new(m);
    tl_loader l = tl_loader_new_at(TL_AT(t), "it", data, 2, o);
    labels(t, &l, most, samples, out);
    tl_free(t, m);
}

static void an_epoch_has_every_sample_once(void **unused)
{
    int64_t got[3][3 * N];
    (void)unused;
    for (uint64_t seed = 1; seed < 20; seed++) {
        of_seed(seed, (tl_loader_options){.batch = BATCH}, BATCH, 3 * N, got[0]);
        for (int epoch = 0; epoch < 3; epoch++) {
            int seen[N] = {0};
            for (int i = 0; i < N; i++)
                seen[got[0][epoch * N + i] - 100]++;
            for (int i = 0; i < N; i++)
                assert_int_equal(seen[i], 1);
        }
        assert_memory_not_equal(got[0], got[0] + N, N * sizeof **got);
        assert_memory_not_equal(got[0] + N, got[0] + 2 * N, N * sizeof **got);
        for (int64_t most = 1; most < 8; most++) { /* whatever is taken at a time */
            of_seed(seed, (tl_loader_options){.batch = BATCH}, most, 3 * N, got[1]);
            assert_memory_equal(got[0], got[1], sizeof *got);
        }
        of_seed(seed + 1, (tl_loader_options){.batch = BATCH}, BATCH, N, got[2]);
        assert_memory_not_equal(got[0], got[2], N * sizeof **got);
    }
}

/* As NUMERICS 11.5 says it. */
static void the_order_is_the_stated_one(void **unused)
{
    int64_t got[2 * N];
    (void)unused;
    of_seed(8, (tl_loader_options){.batch = BATCH}, BATCH, 2 * N, got);
    for (uint64_t epoch = 0; epoch < 2; epoch++) {
        int64_t want[N];
        for (int i = 0; i < N; i++)
            want[i] = 100 + i;
        for (uint64_t i = N - 1; i >= 1; i--) {
            uint64_t k = tl_rng_below(tl_rng_stream(8, "loader.it"), epoch, i, i + 1);
            int64_t was = want[i];
            want[i] = want[k];
            want[k] = was;
        }
        assert_memory_equal(want, got + epoch * N, sizeof want);
    }
}

/* Each sample comes at each place about as often as any other. */
static void orders_are_fair(void **unused)
{
    enum { EPOCHS = 4600 };
    static int64_t got[EPOCHS * N];
    static int count[N][N];
    double chi = 0, want = (double)EPOCHS / N;
    (void)unused;
    of_seed(5, (tl_loader_options){.batch = N}, N, EPOCHS * N, got);
    for (int i = 0; i < EPOCHS * N; i++)
        count[got[i] - 100][i % N]++;
    for (int i = 0; i < N * N; i++)
        chi += (count[i / N][i % N] - want) * (count[i / N][i % N] - want) / want;
    assert_true(chi > 372 && chi < 610); /* 22 * 22 degrees of freedom, within 4 deviations */
}

static void order_and_ends(void **unused)
{
    int64_t got[2 * N];
    tl_tensor in[2];
    (void)unused;
    of_seed(1, (tl_loader_options){.batch = BATCH, .in_order = true}, 7, N, got);
    for (int i = 0; i < N; i++)
        assert_int_equal(got[i], 100 + i);
    for (int drop = 0; drop < 2; drop++) {
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_loader l = tl_loader_new(t, "it", data, 2, .batch = BATCH, .drop_last = drop == 1);
        int64_t number = 0;
        for (int epoch = 0; epoch < 3; epoch++)
            for (int batch = 0; batch < (drop ? 4 : 5); batch++) {
                int64_t size = batch < 4 ? BATCH : N % BATCH, left = size;
                do { /* two at a time: 2 2 1, or 2 1 of the short one */
                    int64_t rows = tl_loader_next(t, &l, 2, in);
                    assert_int_equal(rows, left < 2 ? left : 2);
                    left -= rows;
                    assert_true(l.epoch == epoch && l.number == number && l.size == size &&
                                l.left == left);
                    number += rows;
                    tl_tape_reset(t);
                } while (l.left > 0);
                assert_int_equal(left, 0);
            }
        tl_free(t, m);
    }
}

static void any_arrays(void **unused)
{
    static double wide[3][4][N];
    (void)unused;
    for (int i = 0; i < 3 * 4 * N; i++)
        (&wide[0][0][0])[i] = i;
    tl_array turned = {TL_F64, 2, {N, 4}, {1, N}, wide[1]};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_loader l = tl_loader_new(t, "turned", &turned, 1, .batch = 3, .in_order = true);
    tl_tensor x;
    double got[3][4];
    assert_int_equal(tl_loader_next(t, &l, 3, &x), 3);
    assert_int_equal(tl_keep(t, x, got, sizeof got), TL_OK);
    for (int i = 0; i < 12; i++)
        assert_true(got[i / 4][i % 4] == wide[1][i % 4][i / 4]);
    assert_int_equal(tl_batch_of(t, x), 0);
    tl_free(t, m);
}

/* A step on each batch, two samples at a time; stops after `stop` micro-batches, goes on from the
 * file with another model, and ends with the same weights. */
static void hash_of_run(int stop, const char *path, char hex[65])
{
    bool resumed = false;
    tl_model *m = NULL;
    tl_tape *t = NULL;
    tl_opt *opt = NULL;
    tl_loader l;
    for (int i = 0; i < 41; i++) {
        if (i == stop && i > 0) {
            assert_int_equal(tl_checkpoint_save_tape(t, opt, path, NULL, 0), TL_OK);
            tl_free(opt, t, m);
            m = NULL;
            resumed = true;
        }
        if (m == NULL) {
            m = tl_model_new(.seed = resumed ? 99 : 3);
            t = tl_tape_new(m);
            opt = tl_adamw_new(m, .lr = 0.01);
            tl_param(t, m, "w", TL_F32, TL_DIMS(2), TL_INIT_NORMAL, 1);
            l = tl_loader_new(t, "it", data, 2, .batch = BATCH);
            if (resumed)
                assert_int_equal(tl_checkpoint_load_tape(t, opt, path, NULL, NULL, 0), TL_OK);
        }
        tl_tensor in[2];
        tl_loader_next(t, &l, 2, in);
        tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(2), TL_INIT_NORMAL, 1);
        tl_tensor y = tl_sum(t, tl_mul(t, in[0], w), TL_DIMS(1), false);
        tl_backward(t, tl_sum(t, tl_square(t, tl_tanh(t, y)), TL_ALL, false));
        if (l.left == 0)
            tl_step(opt, t);
        tl_tape_reset(t);
    }
    if (tl_failed(t))
        fail_msg("%s", tl_error(t));
    assert_int_equal(tl_model_sha256(m, hex), TL_OK);
    tl_free(opt, t, m);
}

static void a_resumed_run_goes_on_with_the_next_sample(void **unused)
{
    char want[65], got[65], path[1024];
    temp_dir dir;
    (void)unused;
    assert_true(temp_dir_make(&dir));
    temp_dir_file(path, &dir, "saved");
    hash_of_run(-1, path, want);
    for (int stop = 1; stop < 41; stop += 3) {
        hash_of_run(stop, path, got);
        assert_string_equal(want, got);
    }
    temp_dir_remove(&dir);
}

static void refused(tl_tape *t, tl_status s, const char *words, int line)
{
    if (tl_error_status(t) != s || strstr(tl_error(t), words) == NULL)
        fail_msg("line %d: '%s' wanted: %s", line, words, tl_error(t));
    tl_error_clear(t);
}

static void traced(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    (void)in, (void)n, (void)n_out;
    tl_loader_next(t, ctx, 1, out);
}

static void what_is_refused(void **unused)
{
    tl_tensor in[2];
    tl_model *m = tl_model_new(.seed = 1), *other = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m), *t2 = tl_tape_new(other);
    tl_array uneven[2] = {data[0], data[1]}, scalar = {.dtype = TL_F32, .data = xs};
    (void)unused;
    uneven[1].dim[0]--;
#define REFUSED(s, words) refused(t, s, words, __LINE__)
    assert_int_equal(tl_loader_new(t, "it", data, 2).n, 0);
    REFUSED(TL_EDOMAIN, ".batch is 0; 1 is the least");
    tl_loader_new(t, "it", uneven, 2, .batch = 1);
    REFUSED(TL_ESHAPE, "array 1 has 22 samples, array 0 23");
    tl_loader_new(t, "it", data, 2, .batch = 24, .drop_last = true);
    REFUSED(TL_EDOMAIN, "batches of 24 from 23");
    tl_loader_new(t, "it", &scalar, 1, .batch = 1);
    REFUSED(TL_EUSAGE, "array 0 has no samples");
    tl_loader_new(t, "it", data, 9, .batch = 1);
    REFUSED(TL_EDOMAIN, "has 9 arrays; 1 to 8");
    static const int words[23];
    tl_array typed[2] = {data[0], tl_samples(TL_I64, TL_DIMS(23), words)};
    tl_loader_new(t, "it", typed, 2, .batch = 1);
    REFUSED(TL_EDTYPE, "'it': array 1: the data are of the C type int, but I64 is stored as");
    unsigned char flags[2][2] = {{1, 0}, {255, 1}};
    const tl_array bools = tl_samples(TL_BOOL, TL_DIMS(2, 2), flags);
    tl_loader_new(t, "it", &bools, 1, .batch = 2);
    REFUSED(TL_EDOMAIN, "'it': element 2 of array 0 is a BOOL of 255");
    assert_int_equal(tl_model_count(m), 0);

    tl_loader l = tl_loader_new(t, "it", data, 2, .batch = BATCH), none = {0};
    assert_int_equal(tl_loader_next(t, &none, 1, in), 0);
    REFUSED(TL_EUSAGE, "was not made for this tape's model");
    assert_int_equal(tl_loader_next(t2, &l, 1, in), 0);
    assert_int_equal(tl_error_status(t2), TL_EUSAGE);
    tl_error_clear(t2);
    assert_int_equal(tl_loader_next(t, &l, 0, in), 0);
    REFUSED(TL_EDOMAIN, "0 samples; 1 is the least");
    assert_null(tl_trace(t, traced, NULL, 0, 1, &l));
    REFUSED(TL_ETRACED, "come into a traced function as its inputs");
    assert_int_equal(tl_loader_next(t, &l, 2, in), 2);
    assert_int_equal(l.number, 0); /* nothing was taken before */

    char name[200] = "";
    memset(name, 'n', 181);
    assert_int_equal(tl_loader_new(t, name, data, 2, .batch = BATCH).n, 0);
    REFUSED(TL_ENAME, "has 181 bytes; 180 are possible");
    name[180] = '\0';
    assert_int_equal(tl_loader_new(t, name, data, 2, .batch = BATCH).n, 2);
    tl_loader fewer = tl_loader_new(t, "it", uneven + 1, 1, .batch = BATCH);
    assert_int_equal(tl_loader_next(t, &fewer, 2, in), 0);
    REFUSED(TL_EFORMAT, "sample 2 of 23 in batches of 5, but there are 22 in batches of 5");
    tl_loader smaller = tl_loader_new(t, "it", uneven, 1, .batch = BATCH - 1);
    assert_int_equal(tl_loader_next(t, &smaller, 2, in), 0);
    REFUSED(TL_EFORMAT, "sample 2 of 23 in batches of 5, but there are 23 in batches of 4");
    tl_free(t, t2, m, other);
}

/* A place goes on with the options and the seed that it was taken with. An error ends a loop over a
 * batch. */
static void what_a_place_needs(void **unused)
{
    (void)unused;
    char path[1024];
    temp_dir dir;
    tl_tensor in[2];
    int64_t want[N], got[N];
    assert_true(temp_dir_make(&dir));
    temp_dir_file(path, &dir, "saved");
    of_seed(3, (tl_loader_options){.batch = BATCH}, 2, N, want);
    tl_model *m = tl_model_new(.seed = 3), *n = tl_model_new(.seed = 4);
    tl_tape *t = tl_tape_new(m), *u = tl_tape_new(n);
    tl_loader l = tl_loader_new(t, "it", data, 2, .batch = BATCH);
    tl_param(t, m, "w", TL_F32, TL_DIMS(2), TL_INIT_ZEROS, 0);
    tl_param(u, n, "w", TL_F32, TL_DIMS(2), TL_INIT_ZEROS, 0);
    labels(t, &l, 2, 7, got);
    assert_int_equal(tl_checkpoint_save(m, NULL, path, NULL, 0), TL_OK); /* within a batch */
    tl_model_reseed(m, 9);
    labels(t, &l, 2, N - 7, got + 7);
    assert_memory_equal(got, want, sizeof want);

    const tl_loader_options o[] = {{.batch = BATCH, .in_order = true},
                                   {.batch = BATCH, .drop_last = true}};
    const char *const says[] = {"of .in_order 0 and .drop_last 0, the loader has 1 and 0",
                                "of .in_order 0 and .drop_last 0, the loader has 0 and 1"};
    for (int i = 0; i < 2; i++) {
        tl_loader k = tl_loader_new_at(TL_AT(u), "it", data, 2, o[i]);
        assert_int_equal(tl_checkpoint_load(n, NULL, path, NULL, NULL, 0), TL_OK);
        k.left = 1;
        assert_int_equal(tl_loader_next(u, &k, 2, in), 0);
        assert_int_equal(k.left, 0);
        refused(u, TL_EFORMAT, says[i], __LINE__);
    }
    tl_loader again = tl_loader_new(u, "it", data, 2, .batch = BATCH);
    labels(u, &again, 2, N - 7, got);
    assert_memory_equal(got, want + 7, (N - 7) * sizeof *want);
    /* A place that comes alone, as files of before have it, goes on by the seed of the model. */
    const int64_t place[] = {0, 7, N, BATCH};
    assert_int_equal(tl_write(n, tl_model_find(n, "loader.it"), place, sizeof place), TL_OK);
    tl_model_reseed(n, 5);
    of_seed(5, (tl_loader_options){.batch = BATCH}, 2, N, want);
    labels(u, &again, 2, N - 7, got);
    assert_memory_equal(got, want + 7, (N - 7) * sizeof *want);
    tl_exp(t, TL_NONE);
    l.left = 1;
    assert_int_equal(tl_loader_next(t, &l, 2, in), 0);
    assert_int_equal(l.left, 0);
    tl_error_clear(t);
    tl_free(t, u, m, n);
    temp_dir_remove(&dir);
}

/* What tl_save writes is of the model alone, even where a layer has the loaders' name. */
static void a_place_is_no_part_of_a_layer(void **unused)
{
    (void)unused;
    temp_dir dir;
    char path[1024];
    assert_true(temp_dir_make(&dir));
    temp_dir_file(path, &dir, "m.safetensors");
    for (int with = 1; with >= 0; with--) {
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_linear(t, m, "loader", tl_zeros(t, TL_F32, TL_DIMS(2, 3)), 2);
        if (with)
            tl_loader_new(t, "train", data, 2, .batch = BATCH);
        assert_int_equal(with ? tl_save(m, path) : tl_load(m, path), TL_OK);
        tl_free(t, m);
    }
    temp_dir_remove(&dir);
}

/* Of a loader that the checkpoint does not know yet: it begins. */
static void a_place_that_a_file_lacks(void **unused)
{
    (void)unused;
    temp_dir dir;
    char path[1024];
    assert_true(temp_dir_make(&dir));
    temp_dir_file(path, &dir, "m.safetensors");
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_param(t, m, "w", TL_F32, TL_DIMS(1), TL_INIT_ONES, 0);
    assert_int_equal(tl_checkpoint_save(m, NULL, path, NULL, 0), TL_OK);
    tl_loader l = tl_loader_new(t, "it", data, 2, .batch = BATCH);
    int64_t first[3 * BATCH], again[3 * BATCH];
    labels(t, &l, BATCH, 3 * BATCH, first);
    assert_int_equal(tl_checkpoint_load(m, NULL, path, NULL, NULL, 0), TL_OK);
    labels(t, &l, BATCH, 3 * BATCH, again);
    assert_memory_equal(first, again, sizeof first);
    tl_free(t, m);
    temp_dir_remove(&dir);
}

/* Another seed changes no epoch that has begun: the next one has it. */
static void a_seed_that_is_set_meanwhile(void **unused)
{
    int64_t old[2 * N], new[2 * N], got[2 * N];
    (void)unused;
    of_seed(1, (tl_loader_options){.batch = BATCH}, BATCH, 2 * N, old);
    of_seed(2, (tl_loader_options){.batch = BATCH}, BATCH, 2 * N, new);
    assert_memory_not_equal(old, new, sizeof old);
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_loader l = tl_loader_new(t, "it", data, 2, .batch = BATCH);
    labels(t, &l, BATCH, 2 * BATCH, got);
    tl_model_reseed(m, 2);
    labels(t, &l, BATCH, 2 * N - 2 * BATCH, got + 2 * BATCH);
    assert_memory_equal(got, old, N * sizeof *got);
    assert_memory_equal(got + N, new + N, N * sizeof *got);
    tl_free(t, m);
}

/* Places that no loader has written. */
static void places_out_of_range(void **unused)
{
    static const int64_t places[][4] = {{0, N + 1, N, BATCH},
                                        {0, -1, N, BATCH},
                                        {-1, 0, N, BATCH},
                                        {INT64_MAX / N - 1, 0, N, BATCH}};
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_loader l = tl_loader_new(t, "it", data, 2, .batch = BATCH);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        tl_tensor in[2];
        assert_int_equal(tl_write(m, tl_model_find(m, "loader.it"), places[i], sizeof places[i]),
                         TL_OK);
        assert_int_equal(tl_loader_next(t, &l, BATCH, in), 0);
        assert_int_equal(tl_error_status(t), TL_EFORMAT);
        tl_error_clear(t);
    }
    tl_free(t, m);
}

const struct CMUnitTest tl_tests_loader[] = {
    cmocka_unit_test_setup(a_seed_that_is_set_meanwhile, begin),
    cmocka_unit_test_setup(places_out_of_range, begin),
    cmocka_unit_test_setup(an_epoch_has_every_sample_once, begin),
    cmocka_unit_test_setup(the_order_is_the_stated_one, begin),
    cmocka_unit_test_setup(orders_are_fair, begin),
    cmocka_unit_test_setup(order_and_ends, begin),
    cmocka_unit_test_setup(any_arrays, begin),
    cmocka_unit_test_setup(a_resumed_run_goes_on_with_the_next_sample, begin),
    cmocka_unit_test_setup(what_is_refused, begin),
    cmocka_unit_test_setup(a_place_is_no_part_of_a_layer, begin),
    cmocka_unit_test_setup(what_a_place_needs, begin),
    cmocka_unit_test_setup(a_place_that_a_file_lacks, begin),
};
const size_t tl_tests_loader_count = sizeof tl_tests_loader / sizeof *tl_tests_loader;
