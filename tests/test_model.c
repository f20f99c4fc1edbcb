/* Models: parameters keyed by name, files that are read whole or not at all, and hashes that tell
 * models apart. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <locale.h>
#include <math.h>
#include <string.h>

#include <tally_data.h>

#include "tensor/files/hash.h"
#include "tensor/files/safetensors.h"
#include "tensor/rng.h"
#include "tests/support/fresh_dir.h"
#include "tests/support/skip.h"

extern const struct CMUnitTest tl_tests_model[];
extern const size_t tl_tests_model_count;

static const char *const names[4] = {"a", "a.b", "b", "Z"};

/* Four parameters, created in the order that the digits of `order` say. */
static tl_model *make(uint64_t seed, int order)
{
    tl_model *m = tl_model_new(.seed = seed);
    tl_tape *t = tl_tape_new(m);
    for (int k = 0; k < 4; k++, order /= 10)
        switch (order % 10) {
        case 0: tl_param(t, m, names[0], TL_F32, TL_DIMS(3, 2), TL_INIT_NORMAL, 0.5); break;
        case 1: tl_param(t, m, names[1], TL_F64, TL_DIMS(4), TL_INIT_UNIFORM, 2); break;
        case 2: tl_param(t, m, names[2], TL_BF16, TL_DIMS(2), TL_INIT_NORMAL, 1); break;
        default: tl_param(t, m, names[3], TL_F16, TL_SCALAR, TL_INIT_ONES, 1);
        }
    tl_buffer(t, m, "buffer", TL_I64, TL_DIMS(2));
    assert_string_equal(tl_error(t), "");
    tl_free(t);
    return m;
}

static const char *hash(tl_model *m)
{
    static char hex[4][65];
    static int turn;
    char *h = hex[turn++ % 4];
    assert_int_equal(tl_model_sha256(m, h), TL_OK);
    return h;
}

/* ---- parameters ---- */

static void order_of_creation_decides_nothing(void **unused)
{
    static const int orders[] = {123, 132, 213, 231, 312, 321, 1023, 1032, 2013, 3210, 3021, 2301};
    tl_model *first = make(9, 3210);
    (void)unused;
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        tl_model *m = make(9, orders[i]);
        assert_string_equal(hash(m), hash(first));
        assert_int_equal(tl_model_count(m), 5);
        for (int k = 1; k < 5; k++) /* in order of bytes */
            assert_true(strcmp(tl_model_at(m, k - 1).name, tl_model_at(m, k).name) < 0);
        tl_free(m);
    }
    assert_int_equal(tl_model_parameters(first), 6 + 4 + 2 + 1);
    assert_int_equal(tl_model_seed(first), 9);
    tl_free(first);
}

static void draws_are_those_of_the_stream(void **unused)
{
    tl_model *m = make(9, 3210);
    tl_rng_key key = tl_rng_stream(9, "a"), other = tl_rng_stream(9, "a.b");
    const float *a = tl_model_at(m, 1).array.data;
    const double *ab = tl_model_at(m, 2).array.data;
    (void)unused;
    assert_string_equal(tl_model_at(m, 1).name, "a");
    for (int i = 0; i < 6; i++)
        assert_true(a[i] == (float)(tl_rng_normal64(key, 0, (uint64_t)i) * 0.5));
    for (int i = 0; i < 4; i++)
        assert_true(ab[i] == (2 * tl_rng_uniform64(other, 0, (uint64_t)i) - 1) * 2);
    tl_free(m);
}

/* NUMERICS 11.2: how the layers' and models' first weights are drawn. */
static void assert_first(tl_model *m, const char *name, tl_init_kind kind, double scale)
{
    tl_rng_key key = tl_rng_stream(tl_model_seed(m), name);
    for (int i = 0; i < tl_model_count(m); i++) {
        const tl_named x = tl_model_at(m, i);
        if (strcmp(x.name, name) != 0)
            continue;
        for (uint64_t k = 0; k < (uint64_t)tl_array_count(&x.array); k++) {
            const double draw = kind == TL_INIT_NORMAL    ? tl_rng_normal64(key, 0, k)
                                : kind == TL_INIT_UNIFORM ? 2 * tl_rng_uniform64(key, 0, k) - 1
                                                          : 1;
            const bool wide = x.array.dtype == TL_F64;
            const double want = wide ? scale * draw : (double)(float)(scale * draw),
                         is = tl_array_get(&x.array, (int64_t)k);
            if (is != want)
                fail_msg("%s[%d] is %a, not %a", name, (int)k, is, want);
        }
        return;
    }
    fail_msg("no parameter %s", name);
}

static void first_weights(void **unused)
{
    enum { NORMAL = TL_INIT_NORMAL, UNIFORM = TL_INIT_UNIFORM, ONES = TL_INIT_ONES };
    tl_model *m = tl_model_new(.seed = 5), *l = tl_model_new(.seed = 6),
             *g = tl_model_new(.seed = 7);
    tl_tape *t = tl_tape_new(m), *tl = tl_tape_new(l), *tg = tl_tape_new(g);
    tl_llama_config llama = {.vocab = 5, .width = 6, .layers = 3, .heads = 1, .hidden = 7};
    tl_gpt2_config gpt2 = {.vocab = 5, .width = 6, .layers = 3, .heads = 1, .max_positions = 4};
    tl_tensor x = tl_zeros(t, TL_F32, TL_DIMS(2, 3, 6)), c = tl_zeros(t, TL_F32, TL_DIMS(2, 6, 9));
    const double six = 1 / sqrt(6), seven = 1 / sqrt(7), r = 1 / sqrt(2 * 3), half = 1 / sqrt(2);
    (void)unused;
    tl_linear(t, m, "linear", x, 4);
    tl_convolve1d(t, m, "conv", c, 4, .kernel = {3}, .groups = 2);
    tl_lstm(t, m, "lstm", x, 7);
    tl_mlp_swiglu(t, m, "swiglu", x, 7, .out_scale = 0.25);
    tl_mlp_gelu(t, m, "gelu", x, 7, .out_scale = 0.25);
    tl_self_attention(t, m, "self", x, .heads = 1, .out_scale = 0.25);
    tl_norm_layer(t, m, "norm", x, 1e-5);
    /* in f64 it shows that 1 / sqrt(n) is rounded first */
    tl_tensor wide = tl_zeros(t, TL_F64, TL_DIMS(2, 3, 10));
    tl_mlp_swiglu(t, m, "swiglu64", wide, 15, .out_scale = half);
    tl_self_attention(t, m, "self64", wide, .heads = 1, .out_scale = half);
    tl_llama(tl, l, &llama, tl_zeros(tl, TL_I64, TL_DIMS(1, 2)));
    tl_gpt2(tg, g, &gpt2, tl_zeros(tg, TL_I64, TL_DIMS(1, 2)));
    assert_string_equal(tl_error(t), "");
    assert_string_equal(tl_error(tl), "");
    assert_string_equal(tl_error(tg), "");
    const struct {
        tl_model *m;
        const char *name;
        int kind;
        double scale;
    } first[] = {{m, "linear.weight", UNIFORM, six},
                 {m, "linear.bias", UNIFORM, six},
                 {m, "conv.weight", UNIFORM, 1 / sqrt(3 * 3)},
                 {m, "conv.bias", UNIFORM, 1 / sqrt(3 * 3)},
                 {m, "lstm.weight_ih_l0", UNIFORM, seven},
                 {m, "lstm.bias_hh_l0", UNIFORM, seven},
                 {m, "swiglu.gate.weight", NORMAL, six},
                 {m, "swiglu.up.weight", NORMAL, six},
                 {m, "swiglu.down.weight", NORMAL, 0.25 / sqrt(7)},
                 {m, "gelu.up.weight", NORMAL, 0.02},
                 {m, "gelu.up.bias", ONES, 0},
                 {m, "gelu.down.weight", NORMAL, 0.02 * 0.25},
                 {m, "self.q.weight", NORMAL, six},
                 {m, "self.v.weight", NORMAL, six},
                 {m, "self.o.weight", NORMAL, 0.25 / sqrt(6)},
                 {m, "swiglu64.gate.weight", NORMAL, 1 / sqrt(10)},
                 {m, "swiglu64.down.weight", NORMAL, half * (1 / sqrt(15))},
                 {m, "self64.o.weight", NORMAL, half * (1 / sqrt(10))},
                 {m, "norm.weight", ONES, 1},
                 {m, "norm.bias", ONES, 0},
                 {l, "embed.weight", NORMAL, six},
                 {l, "output.proj.weight", NORMAL, six},
                 {l, "norm.weight", ONES, 1},
                 {l, "layers.2.attention.k.weight", NORMAL, six},
                 {l, "layers.2.attention.o.weight", NORMAL, r / sqrt(6)},
                 {l, "layers.1.mlp.up.weight", NORMAL, six},
                 {l, "layers.1.mlp.down.weight", NORMAL, r / sqrt(7)},
                 {g, "embed.weight", NORMAL, 0.02},
                 {g, "positions.weight", NORMAL, 0.01},
                 {g, "blocks.0.attention.qkv.weight", NORMAL, 0.02},
                 {g, "blocks.0.attention.qkv.bias", ONES, 0},
                 {g, "blocks.0.attention.out.weight", NORMAL, 0.02 * r},
                 {g, "blocks.2.mlp.up.weight", NORMAL, 0.02},
                 {g, "blocks.2.mlp.down.weight", NORMAL, 0.02 * r}};
    for (size_t i = 0; i < sizeof first / sizeof *first; i++)
        assert_first(first[i].m, first[i].name, (tl_init_kind)first[i].kind, first[i].scale);
    tl_free(t, tl, tg, m, l, g);
}

static void seeds_differ(void **unused)
{
    tl_model *a = make(1, 3210), *b = make(2, 3210), *c = make(1, 123);
    (void)unused;
    assert_string_not_equal(hash(a), hash(b));
    assert_string_equal(hash(a), hash(c));
    tl_free(a, b, c);
}

static void refused(tl_tape *t, tl_tensor x, tl_status want, const char *word)
{
    if (!tl_is_none(x) || tl_error_status(t) != want || strstr(tl_error(t), word) == NULL)
        fail_msg("%s with '%s' wanted, got %s: %s", tl_status_name(want), word,
                 tl_status_name(tl_error_status(t)), tl_error(t));
    tl_error_clear(t);
}

static void later_calls_are_checked(void **unused)
{
    tl_model *m = make(1, 3210);
    tl_tape *t = tl_tape_new(m);
    char before[65];
    (void)unused;
    strcpy(before, hash(m));
    tl_tensor a = tl_param(t, m, "a", TL_F32, TL_DIMS(3, 2), TL_INIT_ZEROS, 0);
    tl_tensor found = tl_model_find(m, "a");
    assert_memory_equal(&a, &found, sizeof a);
    refused(t, tl_param(t, m, "a", TL_F32, TL_DIMS(2, 3), TL_INIT_ONES, 1), TL_ESHAPE,
            "'a' has shape [3, 2], but shape [2, 3]");
    refused(t, tl_param(t, m, "a", TL_F64, TL_DIMS(3, 2), TL_INIT_ONES, 1), TL_EDTYPE,
            "'a' is F32, but F64");
    refused(t, tl_buffer(t, m, "a", TL_F32, TL_DIMS(3, 2)), TL_ENAME, "'a' is a parameter");
    refused(t, tl_param(t, m, "buffer", TL_F32, TL_DIMS(2), TL_INIT_ONES, 1), TL_ENAME,
            "'buffer' is a buffer");
    refused(t, tl_param(t, m, "", TL_F32, TL_DIMS(2), TL_INIT_ONES, 1), TL_ENAME, "name");
    refused(t, tl_param(t, m, "whole", TL_I64, TL_DIMS(2), TL_INIT_ONES, 1), TL_EDTYPE, "I64");
    refused(t, tl_param(t, m, "negative", TL_F32, TL_DIMS(2, -2), TL_INIT_ONES, 1), TL_ESHAPE,
            "-2");
    refused(t, tl_param(t, m, "large", TL_F32, TL_DIMS((int64_t)1 << 61, 8), TL_INIT_ONES, 1),
            TL_ESHAPE, "[2305843009213693952, 8]");
    refused(t, tl_param(t, m, "larger", TL_F32, TL_DIMS((int64_t)1 << 60), TL_INIT_ONES, 1),
            TL_ENOMEM, "4611686018427387904");
    assert_int_equal(tl_model_count(m), 5);
    assert_string_equal(hash(m), before);
    assert_true(tl_is_none(tl_model_find(m, "large")) && !tl_is_none(tl_model_find(m, "a.b")));
    assert_null(tl_model_at(m, 5).name);
    assert_null(tl_model_at(m, -1).name);
    tl_free(t, m);
}

/* What no file can hold is refused where it is given, not when the run is saved. */
static void names_that_cannot_be_saved(void **unused)
{
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    char longest[TL_NAME_MAX + 1];
    static const struct {
        const char *name, *why;
    } bad[] = {{"", "a name is empty"},
               {"__metadata__", "reserved"},
               {"\xff", "not valid UTF-8 at byte 0"},
               {"a.\xc3(", "not valid UTF-8 at byte 2"},
               {"\xed\xa0\x80", "not valid UTF-8"},
               {"\xc0\x80", "not valid UTF-8"},
               {"\xf4\x90\x80\x80", "not valid UTF-8"},
               {"x\xe2\x82", "not valid UTF-8 at byte 1"}};
    (void)unused;
    memset(longest, 'n', sizeof longest);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        for (int kind = 0; kind < 3; kind++) {
            if (kind == 0)
                tl_param(t, m, bad[i].name, TL_F32, TL_DIMS(2), TL_INIT_ONES, 1);
            else if (kind == 1)
                tl_buffer(t, m, bad[i].name, TL_F32, TL_DIMS(2));
            else if (strchr(bad[i].name, '\xff') != NULL) /* others make a name with ".weight" */
                tl_linear(t, m, bad[i].name, tl_fill(t, TL_F32, TL_DIMS(1, 2), 0), 2);
            else
                continue;
            assert_int_equal(tl_error_status(t), TL_ENAME);
            if (strstr(tl_error(t), bad[i].why) == NULL)
                fail_msg("%s: %s", bad[i].name, tl_error(t));
            tl_error_clear(t);
        }
    assert_int_equal(tl_model_count(m), 0);
    longest[TL_PARAM_NAME_MAX] = '\0';
    tl_param(t, m, longest, TL_F32, TL_DIMS(2), TL_INIT_ONES, 1);
    assert_non_null(strstr(tl_error(t), "has 180 bytes; at most 179 are possible"));
    tl_error_clear(t);
    tl_param(t, m, longest + 1, TL_F32, TL_DIMS(2), TL_INIT_ONES, 1);
    tl_param(t, m, "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\n", TL_F32, TL_DIMS(2), TL_INIT_ONES, 1);
    assert_string_equal(tl_error(t), "");
    tl_free(t, m);
}

/* Names that differ only far from their beginning are different names, or too long. */
static void long_names_do_not_meet(void **unused)
{
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_adamw_new(m, .lr = 0.1);
    char name[2][301];
    tl_tensor x = tl_zeros(t, TL_F32, TL_DIMS(2, 2)), p[2];
    (void)unused;
    for (int length = 150; length <= 300; length += 5) {
        for (int k = 0; k < 2; k++) {
            memset(name[k], 'n', sizeof name[k]);
            name[k][length - 1] = (char)('a' + k);
            name[k][length] = '\0';
            tl_linear(t, m, name[k], x, 2 + k,
                      .no_bias = true); /* the same name would have another shape */
        }
        if (tl_failed(t)) {
            assert_int_equal(tl_error_status(t), TL_ENAME);
            tl_error_clear(t);
        }
    }
    for (int length = 150; length <= 300; length += 5) { /* nor do the optimizer's states */
        tl_tape_reset(t);
        for (int k = 0; k < 2; k++) {
            memset(name[k], 's', sizeof name[k]);
            name[k][length - 1] = (char)('a' + k);
            name[k][length] = '\0';
            p[k] = tl_param(t, m, name[k], TL_F32, TL_SCALAR, TL_INIT_ONES, 1);
        }
        tl_backward(t, tl_sub(t, tl_scale(t, p[0], 100), p[1]), .partial = true);
        if (tl_step(o, t) ==
            TL_OK) { /* each has a state of its own: up by lr, down by lr (.9^t drift as it is) */
            assert_true(tl_item(t, p[0]) < 1 && tl_item(t, p[1]) > 1);
        } else {
            assert_int_equal(tl_error_status(t), TL_ENAME);
            assert_non_null(strstr(tl_error(t), "ssss"));
            tl_error_clear(t);
        }
    }
    tl_free(o, t, m);
}

static void freezing(void **unused)
{
    tl_model *m = make(1, 3210);
    (void)unused;
    assert_int_equal(tl_model_freeze(m, "a", true), 2);
    assert_true(tl_model_at(m, 1).frozen && tl_model_at(m, 2).frozen && !tl_model_at(m, 3).frozen);
    assert_int_equal(tl_model_freeze(m, "a.", false), 1);
    assert_true(tl_model_at(m, 1).frozen && !tl_model_at(m, 2).frozen);
    assert_int_equal(tl_model_freeze(m, "none", true), 0);
    assert_int_equal(tl_model_freeze(m, "buf", true), 0); /* buffers are not trained anyway */
    assert_int_equal(tl_model_freeze(m, "", false), 4);
    tl_write(m, TL_NONE, &m, 1); /* an error that nobody has read */
    assert_int_equal(tl_model_freeze(m, "", true), 0);
    assert_false(tl_model_at(m, 1).frozen);
    tl_error_clear(m);
    tl_free(m);
}

/* ---- hashes ---- */

static void one_bit_shows_in_the_hash(void **unused)
{
    tl_model *m = make(1, 3210);
    char was[65];
    (void)unused;
    strcpy(was, hash(m));
    for (int k = 0; k < 5; k++) {
        tl_named p = tl_model_at(m, k);
        unsigned char *bytes = p.array.data;
        size_t n = (size_t)tl_array_count(&p.array) * tl_dtype_size(p.array.dtype);
        for (size_t i = 0; i < n; i++) {
            bytes[i] ^= 1;
            assert_int_equal(strcmp(hash(m), was) != 0, p.param); /* buffers are no weights */
            bytes[i] ^= 1;
        }
    }
    assert_string_equal(hash(m), was);
    tl_free(m);
}

/* NUMERICS 12.7, written out for one parameter: its name, then what tl_sha256 hashes. */
static void the_hash_is_of_these_bytes(void **unused)
{
    static const unsigned char bytes[] = {
        2,   0,   0,    0,    0, 0, 0, 0,    'a', 'b', /* name */
        'F', '3', '2',                                 /* dtype */
        2,   0,   0,    0,    0, 0, 0, 0,    1,   0,   0,    0,
        0,   0,   0,    0,    3, 0, 0, 0,    0,   0,   0,    0,    /* dims */
        0,   0,   0x80, 0x3f, 0, 0, 0, 0x80, 0,   0,   0xc0, 0x7f, /* 1, -0, NaN */
    };
    const float value[] = {1, -0.f, -NAN};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_tensor x = tl_param(t, m, "ab", TL_F32, TL_DIMS(1, 3), TL_INIT_ZEROS, 0);
    char hex[65], whole[65], tensor[65];
    (void)unused;
    assert_int_equal(tl_write(m, x, value, sizeof value), TL_OK);
    assert_int_equal(tl_sha256(t, x, tensor), TL_OK);
    for (int from = 0; from < 11; from += 10) {
        tl_sha256_ctx h;
        assert_int_equal(tl_sha256_begin(&h, NULL), TL_OK);
        tl_sha256_feed(&h, bytes + from, sizeof bytes - (size_t)from);
        assert_int_equal(tl_sha256_finish_hex(&h, from == 0 ? whole : hex, NULL), TL_OK);
    }
    assert_string_equal(hash(m), whole);
    assert_string_equal(tensor, hex);
    tl_free(t, m);
}

/* The same values under exchanged names, and under names that only join to the same letters. */
static void names_show_in_the_hash(void **unused)
{
    static const char *const pair[4][2] = {{"ab", "c"}, {"c", "ab"}, {"a", "bc"}, {"ab", "d"}};
    char hex[4][65];
    const float v[2] = {1, 2};
    (void)unused;
    for (int i = 0; i < 4; i++) {
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        for (int k = 0; k < 2; k++)
            tl_write(m, tl_param(t, m, pair[i][k], TL_F32, TL_SCALAR, TL_INIT_ZEROS, 0), &v[k], 4);
        strcpy(hex[i], hash(m));
        for (int k = 0; k < i; k++)
            assert_string_not_equal(hex[i], hex[k]);
        tl_free(t, m);
    }
}

/* ---- files ---- */

static void save_and_load(void **unused)
{
    tl_model *a = make(1, 3210), *b = make(2, 123);
    char want[65];
    (void)unused;
    strcpy(want, hash(a));
    assert_int_equal(tl_save(a, path), TL_OK);
    assert_string_not_equal(hash(b), want);
    assert_int_equal(tl_load(b, path), TL_OK);
    assert_string_equal(hash(b), want);
    assert_string_equal(tl_error(b), "");
    tl_free(a, b);
}

/* A part goes to a file of its own and comes back; the others stay as they are. */
static void a_part_of_a_model(void **unused)
{
    tl_model *a = tl_model_new(.seed = 1), *b = tl_model_new(.seed = 2);
    const char *const name[] = {"layer.weight", "layer.lora_a", "other.lora_b"};
    char hex[2][3][65];
    (void)unused;
    for (int i = 0; i < 2; i++) {
        tl_tape *t = tl_tape_new(i ? b : a);
        for (int k = 0; k < 3; k++)
            tl_sha256(t, tl_param(t, i ? b : a, name[k], TL_F32, TL_DIMS(3), TL_INIT_NORMAL, 1),
                      hex[i][k]);
        tl_free(t);
    }
    assert_int_equal(tl_save(a, path, .only = "*.lora_*"), TL_OK);
    assert_int_equal(tl_load(b, path), TL_ENAME); /* that is not all of it */
    assert_non_null(strstr(tl_error(b), "has no tensor 'layer.weight'"));
    assert_int_equal(tl_load(b, path, .only = "*.lora_a"), TL_ENAME); /* nor is it less */
    assert_non_null(strstr(tl_error(b), "has 2 tensors, the model 1 of them"));
    assert_int_equal(tl_load(b, path, .only = "*.lora_*"), TL_OK);
    tl_tape *t = tl_tape_new(b);
    for (int k = 0; k < 3; k++) {
        char got[65];
        tl_sha256(t, tl_model_find(b, name[k]), got);
        assert_string_equal(got, hex[k == 0][k]); /* the weight is its own, the others a's */
    }
    tl_free(t);
    t = tl_tape_new(b);
    tl_param(t, b, "w0", TL_F32, TL_DIMS(3), TL_INIT_ZEROS, 0); /* which w[0] would be elsewhere */
    assert_int_equal(tl_save(b, path, .only = "w[0]"), TL_ENAME);
    tl_error_clear(b);
    assert_int_equal(tl_save(b, path, .only = "\\w0"), TL_ENAME);
    tl_error_clear(b);
    assert_int_equal(tl_save(b, path, .only = "**w?*"), TL_OK);
    tl_free(t);
    assert_int_equal(tl_save(a, path, .only = "*.none"), TL_ENAME);
    assert_non_null(strstr(tl_error(a), "name like '*.none'"));
    tl_free(a, b);
}

/* An é is a character of C.UTF-8, and two bytes. */
static void a_pattern_means_the_same_in_every_locale(void **unused)
{
    static const char *const name[] = {"e.w", "\xc3\xa9.w"};
    char hex[2][65];
    (void)unused;
    for (int utf8 = 0; utf8 < 2; utf8++) {
        tl_st_file *file;
        tl_err err = {.status = TL_OK};
        if (utf8 && setlocale(LC_CTYPE, "C.UTF-8") == NULL)
            TL_SKIP();
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_opt *o = tl_sgd_new(m, .lr = 0.1);
        assert_int_equal(tl_opt_group(o, "?.w", 0.5, 0), TL_OK);
        tl_tensor w[2];
        for (int i = 0; i < 2; i++)
            w[i] = tl_square(t, tl_param(t, m, name[i], TL_F32, TL_DIMS(3), TL_INIT_ONES, 1));
        tl_backward(t, tl_sum(t, tl_add(t, w[0], w[1]), TL_ALL, false));
        assert_int_equal(tl_step(o, t), TL_OK);
        assert_int_equal(tl_model_sha256(m, hex[utf8]), TL_OK);
        assert_int_equal(tl_save(m, path, .only = "?.w"), TL_OK);
        setlocale(LC_CTYPE, "C");
        assert_int_equal(tl_st_open(&file, path, &err), TL_OK);
        assert_int_equal(tl_st_count(file), 1);
        tl_st_close(file);
        tl_free(o, t, m);
    }
    assert_string_equal(hex[1], hex[0]);
}

/* Whether the test has passed or not. */
static int as_before(void **state)
{
    setlocale(LC_CTYPE, "C");
    return remove_dir(state);
}

static void keep_file(const char *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static size_t read_file(char *bytes, size_t room)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t n = fread(bytes, 1, room, f);
    fclose(f);
    return n;
}

static void load_refuses(tl_model *m, tl_status want, const char *word)
{
    char was[65];
    strcpy(was, hash(m));
    tl_status s = tl_load(m, path);
    if (s != want || !tl_failed(m) || strstr(tl_error(m), word) == NULL ||
        strncmp(tl_error(m), "tl_load: ", 9) != 0 || strstr(tl_error(m), path) != tl_error(m) + 9)
        fail_msg("%s with '%s' wanted, got %s: %s", tl_status_name(want), word, tl_status_name(s),
                 tl_error(m));
    assert_string_equal(hash(m), was);
}

static void a_file_cut_anywhere(void **unused)
{
    static char bytes[4096];
    tl_model *a = make(1, 3210), *b = make(2, 3210);
    (void)unused;
    assert_int_equal(tl_save(a, path), TL_OK);
    size_t n = read_file(bytes, sizeof bytes);
    assert_in_range(n, 100, 2000);
    for (size_t k = 0; k < n; k++) {
        keep_file(bytes, k);
        load_refuses(b, TL_EFORMAT, "");
    }
    bytes[n] = 0; /* a byte too many */
    keep_file(bytes, n + 1);
    load_refuses(b, TL_EFORMAT, "");
    keep_file(bytes, n);
    assert_int_equal(tl_load(b, path), TL_OK);
    assert_string_equal(hash(b), hash(a));
    remove(path);
    load_refuses(b, TL_EIO, "No such file");
    tl_free(a, b);
}

/* A file with the tensors of `make`, tensor k left out, or of another shape or dtype, or one more.
 */
static void write_variant(int k, tl_dtype dtype, int64_t last, bool more)
{
    static const double zeros[8];
    tl_st_entry e[5];
    int n = 0;
    tl_model *m = make(1, 3210);
    for (int i = 0; i < 4; i++) {
        tl_named p = tl_model_at(m, i);
        if (strcmp(p.name, names[0]) == 0 && k == 0)
            continue;
        if (strcmp(p.name, names[0]) == 0 && k == 1) {
            tl_shape s = TL_DIMS(3, last);
            p.array = tl_array_make(dtype, &s, (void *)(uintptr_t)zeros);
        }
        e[n++] = (tl_st_entry){p.name, p.array};
    }
    if (more)
        e[n++] = (tl_st_entry){"zzz", tl_array_make(TL_F64, &TL_DIMS(1), (void *)(uintptr_t)zeros)};
    assert_int_equal(tl_st_write(path, e, n, NULL, 0, NULL), TL_OK);
    tl_free(m);
}

static void a_file_of_another_model(void **unused)
{
    tl_model *b = make(2, 3210);
    (void)unused;
    write_variant(0, TL_F32, 2, false);
    load_refuses(b, TL_ENAME, "has no tensor 'a'");
    write_variant(1, TL_F32, 1, false);
    load_refuses(b, TL_ESHAPE, "'a' is [3, 1] F32 there; the model needs [3, 2] F32");
    write_variant(1, TL_F16, 2, false);
    load_refuses(b, TL_ESHAPE, "'a' is [3, 2] F16 there; the model needs [3, 2] F32");
    write_variant(2, TL_F32, 2, true);
    load_refuses(b, TL_ENAME, "has 5 tensors, the model 4 of them; 'zzz' is another");
    write_variant(2, TL_F32, 2, false);
    assert_int_equal(tl_load(b, path), TL_OK);
    tl_free(b);
}

static void places_that_cannot_be_written(void **unused)
{
    tl_model *a = make(1, 3210);
    char there[1100];
    (void)unused;
    snprintf(there, sizeof there, "%s/no/such/folder", dir.path);
    assert_int_equal(tl_save(a, there), TL_EIO);
    assert_memory_equal(tl_error(a), "tl_save: ", 9);
    assert_non_null(strstr(tl_error(a), there));
    if (strstr(tl_error(a), "/no/such/") == NULL || strstr(tl_error(a), "No such file") == NULL)
        fail_msg("path and reason are wanted in: %s", tl_error(a));
    assert_int_equal(tl_save(a, dir.path), TL_EIO);
    assert_int_equal(tl_save(a, path), TL_EIO); /* nobody has read what went wrong */
    tl_error_clear(a);
    assert_int_equal(tl_load(a, dir.path), TL_EIO);
    assert_true(strlen(tl_error(a)) > 0);
    assert_int_equal(tl_save(a, path), TL_OK);
    assert_string_equal(tl_error(a), "");
    tl_free(a);
}

const struct CMUnitTest tl_tests_model[] = {
    cmocka_unit_test(order_of_creation_decides_nothing),
    cmocka_unit_test(draws_are_those_of_the_stream),
    cmocka_unit_test(first_weights),
    cmocka_unit_test(seeds_differ),
    cmocka_unit_test(the_hash_is_of_these_bytes),
    cmocka_unit_test(later_calls_are_checked),
    cmocka_unit_test(names_that_cannot_be_saved),
    cmocka_unit_test(long_names_do_not_meet),
    cmocka_unit_test(freezing),
    cmocka_unit_test(one_bit_shows_in_the_hash),
    cmocka_unit_test(names_show_in_the_hash),
    cmocka_unit_test_setup_teardown(save_and_load, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(a_part_of_a_model, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(a_pattern_means_the_same_in_every_locale, make_dir, as_before),
    cmocka_unit_test_setup_teardown(a_file_cut_anywhere, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(a_file_of_another_model, make_dir, remove_dir),
    cmocka_unit_test_setup_teardown(places_that_cannot_be_written, make_dir, remove_dir),
};
const size_t tl_tests_model_count = sizeof tl_tests_model / sizeof tl_tests_model[0];
