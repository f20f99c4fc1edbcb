/* Files of the names that PyTorch's state_dict has: tl_load takes them, with the running statistics
 * of a BatchNorm, and tl_save writes such a file. test_agree.c has PyTorch itself do both. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include <tally.h>

#include "tensor/files/safetensors.h"
#include "tests/support/fresh_dir.h"

extern const struct CMUnitTest tl_tests_state_dict[];
extern const size_t tl_tests_state_dict_count;

/* What PyTorch writes of these modules: Conv2d(2, 4, (3, 2), groups=2), BatchNorm2d(4),
 * GroupNorm(2, 4), Conv1d(4, 3, 2), LayerNorm(3), LSTM(3, 2, 2, bidirectional=True), GRU(4, 2),
 * RNN(2, 3, bias=False), Linear(3, 5), Embedding(7, 3). The counter comes last. */
#define GATES(layer, way, rows, in, hidden)                                                       \
    {layer ".weight_ih_l" way, {2, {rows, in}}}, {layer ".weight_hh_l" way, {2, {rows, hidden}}}, \
        {layer ".bias_ih_l" way, {1, {rows}}},                                                    \
    {                                                                                             \
        layer ".bias_hh_l" way,                                                                   \
        {                                                                                         \
            1, { rows }                                                                           \
        }                                                                                         \
    }
static const struct {
    const char *name;
    tl_shape shape;
} entry[] = {
    {"conv2d.weight", {4, {4, 1, 3, 2}}},
    {"conv2d.bias", {1, {4}}},
    {"bn.weight", {1, {4}}},
    {"bn.bias", {1, {4}}},
    {"bn.running_mean", {1, {4}}},
    {"bn.running_var", {1, {4}}},
    {"gn.weight", {1, {4}}},
    {"gn.bias", {1, {4}}},
    {"conv1d.weight", {3, {3, 4, 2}}},
    {"conv1d.bias", {1, {3}}},
    {"ln.weight", {1, {3}}},
    {"ln.bias", {1, {3}}},
    GATES("lstm", "0", 8, 3, 2),
    GATES("lstm", "0_reverse", 8, 3, 2),
    GATES("lstm", "1", 8, 4, 2),
    GATES("lstm", "1_reverse", 8, 4, 2),
    GATES("gru", "0", 6, 4, 2),
    {"rnn.weight_ih_l0", {2, {3, 2}}},
    {"rnn.weight_hh_l0", {2, {3, 3}}},
    {"linear.weight", {2, {5, 3}}},
    {"linear.bias", {1, {5}}},
    {"embedding.weight", {2, {7, 3}}},
    {"bn.num_batches_tracked", {0, {0}}},
};
enum { ENTRIES = sizeof entry / sizeof *entry, MEAN = 4, COUNTER = ENTRIES - 1 };

static tl_model *net(void)
{
    static const int64_t id[4] = {0, 6, 1, 2};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_tensor x = tl_fill(t, TL_F32, TL_DIMS(2, 2, 5, 4), 1);
    x = tl_convolve2d(t, m, "conv2d", x, 4, .kernel = {3, 2}, .groups = 2);
    x = tl_group_norm(t, m, "gn", tl_batch_norm(t, m, "bn", x), 2);
    x = tl_convolve1d(t, m, "conv1d", tl_select(t, x, 2, 0), 3, .kernel = {2});
    x = tl_norm_layer(t, m, "ln", tl_transpose(t, x, 1, 2), 1e-5);
    x = tl_lstm(t, m, "lstm", x, 2, .layers = 2, .both = true);
    x = tl_rnn(t, m, "rnn", tl_gru(t, m, "gru", x, 2), 3, .no_bias = true);
    x = tl_linear(t, m, "linear", x, 5);
    tl_tensor e = tl_embed(t, m, "embedding", tl_data(t, id, TL_I64, TL_DIMS(4)), 7, 3, 1.0);
    tl_opt *opt = tl_adamw_new(m, .lr = 0.1); /* buffers that belong to no layer */
    tl_backward(t, tl_add(t, tl_sum(t, x, TL_ALL, false), tl_sum(t, e, TL_ALL, false)));
    if (tl_step(opt, t) != TL_OK)
        fail_msg("%s", tl_error(t));
    assert_false(tl_is_none(tl_model_find(m, "adamw.m.rnn.weight_hh_l0")));
    tl_free(opt, t);
    return m;
}

static float value(int i, int64_t k) { return (float)(100 * i + k) * 0.25f; }

/* All entries but one (-1: but none), and perhaps another. */
static void write_state(int without, const char *more)
{
    static float data[ENTRIES][32];
    static int64_t batches = 12;
    tl_st_entry e[ENTRIES + 1];
    int n = 0;
    for (int i = 0; i < ENTRIES; i++) {
        for (int64_t k = 0; k < tl_shape_count(&entry[i].shape); k++)
            data[i][k] = value(i, k);
        if (i != without)
            e[n++] = (tl_st_entry){entry[i].name,
                                   i == COUNTER ? tl_array_make(TL_I64, &TL_SCALAR, &batches)
                                                : tl_array_make(TL_F32, &entry[i].shape, data[i])};
    }
    if (more != NULL)
        e[n++] = (tl_st_entry){more, tl_array_make(TL_I64, &TL_SCALAR, &batches)};
    const tl_st_meta meta = {"format", "pt"};
    assert_int_equal(tl_st_write(path, e, n, &meta, 1, NULL), TL_OK);
}

static void holds(tl_model *m)
{
    tl_tape *t = tl_tape_new(m);
    for (int i = 0; i < COUNTER; i++) {
        float got[32];
        tl_tensor x = tl_model_find(m, entry[i].name);
        tl_shape s = tl_shape_of(t, x);
        assert_true(tl_shape_equal(&s, &entry[i].shape));
        assert_int_equal(tl_keep(t, x, got, (size_t)tl_shape_count(&s) * sizeof *got), TL_OK);
        for (int64_t k = 0; k < tl_shape_count(&s); k++)
            if (got[k] != value(i, k))
                fail_msg("%s, element %d: %g", entry[i].name, (int)k, (double)got[k]);
    }
    tl_free(t);
}

static void files_of_pytorch_s_names_load(void **unused)
{
    tl_model *m = net();
    (void)unused;
    write_state(-1, NULL);
    if (tl_load(m, path) != TL_OK)
        fail_msg("%s", tl_error(m));
    holds(m);
    write_state(COUNTER, NULL); /* nothing depends on it */
    assert_int_equal(tl_load(m, path), TL_OK);
    tl_free(m);
}

/* All of these and nothing else: no optimizer's state, no counter. */
static void what_is_saved_has_these_names(void **unused)
{
    tl_model *m = net(), *other = net();
    tl_st_file *f;
    (void)unused;
    write_state(-1, NULL);
    assert_int_equal(tl_load(m, path), TL_OK);
    assert_int_equal(tl_save(m, path), TL_OK);
    assert_int_equal(tl_st_open(&f, path, NULL), TL_OK);
    assert_int_equal(tl_st_count(f), COUNTER);
    for (int i = 0; i < COUNTER; i++)
        assert_in_range(tl_st_find(f, entry[i].name), 0, COUNTER - 1);
    tl_st_close(f);
    assert_int_equal(tl_load(other, path), TL_OK);
    holds(other);
    tl_free(m, other);
}

static void refuses(tl_model *m, tl_status s, const char *words)
{
    char was[65], is[65];
    tl_tape *t = tl_tape_new(m);
    tl_sha256(t, tl_model_find(m, "bn.running_mean"), was);
    tl_status got = tl_load(m, path);
    if (got != s || strstr(tl_error(m), words) == NULL)
        fail_msg("'%s' was expected: %s: %s", words, tl_status_name(got), tl_error(m));
    tl_error_clear(m);
    tl_sha256(t, tl_model_find(m, "bn.running_mean"), is);
    assert_string_equal(was, is);
    tl_free(t);
}

static void what_does_not_fit_is_named(void **unused)
{
    tl_model *m = net();
    FILE *f;
    (void)unused;
    write_state(MEAN, NULL);
    refuses(m, TL_ENAME, "has no tensor 'bn.running_mean', which the model has");
    write_state(-1, "lstm.weight_hr_l0");
    refuses(m, TL_ENAME, "'lstm.weight_hr_l0' is another");
    write_state(-1, "gn.num_batches_tracked"); /* of a layer without statistics */
    refuses(m, TL_ENAME, "'gn.num_batches_tracked' is another");
    write_state(-1, ".num_batches_tracked");
    refuses(m, TL_ENAME, "'.num_batches_tracked' is another");
    f = fopen(path, "wb"); /* as torch.save begins */
    assert_non_null(f);
    assert_int_equal(fwrite("PK\3\4\0\0\10\10\0\0\0\0\0\0", 1, 14, f), 14);
    fclose(f);
    refuses(m, TL_EFORMAT, "is a zip archive, as torch.save and numpy.savez write");
    tl_free(m);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_dir, remove_dir)
const struct CMUnitTest tl_tests_state_dict[] = {
    TEST(files_of_pytorch_s_names_load),
    TEST(what_is_saved_has_these_names),
    TEST(what_does_not_fit_is_named),
};
const size_t tl_tests_state_dict_count = sizeof tl_tests_state_dict / sizeof *tl_tests_state_dict;
