/* What a new user meets: settings that mean nothing, configs that do not fit, files before there is
 * a model. Each message says it in terms of what the user wrote. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include <tally_data.h>
#include <tally_extend.h>

#include "tensor/storage.h"
#include "tests/support/expect.h"
#include "tests/support/skip.h"
#include "tests/temp_dir.h"

#ifndef TL_BUILD
#define TL_BUILD "build"
#endif

extern const struct CMUnitTest tl_tests_messages[];
extern const size_t tl_tests_messages_count;

static void says(const void *object, tl_status status, const char *words)
{
    if (tl_error_status(object) != status || strstr(tl_error(object), words) == NULL)
        fail_msg("'%s' expected, not %s: '%s'", words, tl_status_name(tl_error_status(object)),
                 tl_error(object));
}

/* ---- the environment ---- */

/* Sets a variable, and puts back what it was. */
typedef struct {
    const char *name;
    char was[256];
    bool there;
} setting;

static setting set(const char *name, const char *value)
{
    setting s = {.name = name};
    const char *was = getenv(name);
    s.there = was != NULL;
    snprintf(s.was, sizeof s.was, "%s", was != NULL ? was : "");
    setenv(name, value, 1);
    return s;
}

static void put_back(const setting *s)
{
    if (s->there)
        setenv(s->name, s->was, 1);
    else
        unsetenv(s->name);
}

/* A level that the processor at hand cannot have. */
#if defined(__x86_64__)
#define foreign "neon"
#else
#define foreign "v2"
#endif

static void settings_that_mean_nothing(void **unused)
{
    static const struct {
        const char *name, *value, *words;
    } wrong[] = {
        {"TL_ISA", "foo",
         "TL_ISA=foo in the environment is not a vector level of this processor; it has scalar"},
        {"TL_ISA", "V3", "TL_ISA=V3"},
        {"TL_THREADS", "abc",
         "TL_THREADS=abc in the environment is not a number of threads; 1 to 256"},
        {"TL_THREADS", "-2", "TL_THREADS=-2"},
        {"TL_THREADS", "2x", "TL_THREADS=2x"},
        {"TL_THREADS", "257", "TL_THREADS=257"},
        {"TL_THREADS", "99999999999999999999", "TL_THREADS=99999"},
        {"TL_ISA", foreign, "of this processor; it has scalar"},
    };
    (void)unused;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        setting s = set(wrong[i].name, wrong[i].value);
        tl_tape *t = tl_tape_new(NULL);
        put_back(&s);
        assert_true(tl_is_none(tl_fill(t, TL_F32, TL_DIMS(2), 1)));
        says(t, TL_EUSAGE, wrong[i].words);
        tl_error_clear(t); /* whoever wants to go on with what is the default may */
        assert_false(tl_is_none(tl_fill(t, TL_F32, TL_DIMS(2), 1)));
        tl_free(t);
    }
}

static void settings_that_are_right(void **unused)
{
    static const char *const right[][2] = {{"TL_ISA", ""},      {"TL_ISA", "scalar"},
                                           {"TL_THREADS", ""},  {"TL_THREADS", "0"},
                                           {"TL_THREADS", "7"}, {"TL_THREADS", "256"}};
    (void)unused;
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        setting s = set(right[i][0], right[i][1]);
        tl_tape *t = tl_tape_new(NULL);
        put_back(&s);
        assert_string_equal(tl_error(t), "");
        tl_free(t);
    }
}

static void twice(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    (void)n, (void)n_out, (void)ctx;
    out[0] = tl_scale(t, in[0], 2);
}

static void replacements_that_are_not_there(void **unused)
{
    (void)unused;
    for (int k = 0; k < 2; k++) {
        setting s = set("TL_WITHOUT", k == 0 ? "swiglu,swig" : "");
        tl_tape *t = tl_tape_new(NULL);
        tl_tensor x = tl_fill(t, TL_F32, TL_DIMS(2), 1), y;
        tl_compiled *c = tl_compile(t, twice, 1, NULL, .without = k == 0 ? NULL : "nonsense");
        tl_run(c, &x, 1, &y);
        put_back(&s);
        says(t, TL_ENAME,
             k == 0
                 ? "TL_WITHOUT in the environment: there is no replacement 'swig'; there are: all, "
                 : "option .without: there is no replacement");
        assert_non_null(strstr(tl_error(t), k == 0 ? "swiglu" : "rms_norm_plus_one"));
        tl_free(c, t);
    }
}

/* ---- models ---- */

static void llama_says(tl_llama_config c, tl_shape ids, const char *words)
{
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    assert_true(tl_is_none(tl_llama(t, m, &c, tl_fill(t, TL_I64, ids, 0))));
    says(t, TL_ESHAPE, words);
    assert_non_null(strstr(tl_error(t), "test_messages.c"));
    assert_int_equal(tl_model_count(m), 0); /* nothing was begun */
    tl_free(t, m);
}

static void configs_that_do_not_fit(void **unused)
{
    tl_llama_config c = {.vocab = 5,
                         .width = 16,
                         .layers = 1,
                         .heads = 4,
                         .kv_heads = 2,
                         .hidden = 8,
                         .max_positions = 4},
                    d;
    (void)unused;
    d = c, d.width = 18;
    llama_says(d, TL_DIMS(1, 3),
               "tl_llama: the config's width 18 is not a multiple of its heads 4");
    d = c, d.width = 12;
    llama_says(d, TL_DIMS(1, 3), "width 12 with heads 4 makes heads of 3 numbers");
    d = c, d.kv_heads = 3;
    llama_says(d, TL_DIMS(1, 3), "heads 4 are not a multiple of its kv_heads 3");
    d = c, d.heads = 0;
    llama_says(d, TL_DIMS(1, 3), "heads is 0; 1 is the least (vocab 5, width 16, layers 1");
    llama_says(c, TL_DIMS(2, 6),
               "tl_llama: ids [2, 6] make 6 positions, but the config's max_positions is 4");
    llama_says(c, TL_DIMS(6), "tl_llama: ids have shape [6]; (b, s) is needed");

    tl_gpt2_config g = {.vocab = 5, .width = 10, .layers = 1, .heads = 4, .max_positions = 4};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_gpt2(t, m, &g, tl_fill(t, TL_I64, TL_DIMS(1, 3), 0));
    expect_failure(t, TL_ESHAPE, "tl_gpt2: the config's width 10 is not a multiple of its heads 4");
    g.width = 16;
    tl_gpt2(t, m, &g, tl_fill(t, TL_I64, TL_DIMS(1, 5), 0));
    expect_failure(t, TL_ESHAPE,
                   "tl_gpt2: ids [1, 5] make 5 positions, but the config's max_positions is 4");
    g.max_positions = 0;
    tl_gpt2(t, m, &g, tl_fill(t, TL_I64, TL_DIMS(1, 5), 0));
    expect_failure(t, TL_ESHAPE, "tl_gpt2: the config's max_positions is 0");
    tl_free(t, m);
}

/* The programs that `make programs` asks for: a word is not a number, and none is no test. */
static void numbers_of_programs(void **unused)
{
    static const char *const wrong[] = {"abc", "0", "-1", "20x"};
    char command[2048];
    (void)unused;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const char *run = getenv("TL_RUN");
        snprintf(command, sizeof command,
                 "TL_TEST_PROGRAMS=%s %.900s " TL_BUILD "/tests/runner splits > /dev/null 2>&1",
                 wrong[i], run != NULL ? run : "");
        assert_int_not_equal(system(command), 0);
    }
}

/* More than the machine has is refused, not handed out as addresses and killed when written. */
static void more_memory_than_there_is(void **unused)
{
    char words[128];
    const size_t most = tl_machine_memory();
    if (most > SIZE_MAX / 4)
        TL_SKIP();
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    const int64_t n = (int64_t)(most / sizeof(float)) + 1;
    (void)unused;
    snprintf(words, sizeof words,
             "no memory for %zu bytes: memory and swap of this machine are %zu",
             (size_t)n * sizeof(float), most);
    assert_true(tl_is_none(tl_zeros(t, TL_F32, TL_DIMS(n))));
    says(t, TL_ENOMEM, words);
    tl_error_clear(t);
    assert_true(tl_is_none(tl_fill(t, TL_F32, TL_DIMS(n), 1)));
    says(t, TL_ENOMEM, words);
    tl_error_clear(t);
    assert_true(tl_is_none(tl_param(t, m, "w", TL_F32, TL_DIMS(n), .kind = TL_INIT_ZEROS)));
    says(t, TL_ENOMEM, words);
    tl_error_clear(t);
    assert_true(tl_is_none(tl_zeros(m, TL_F32, TL_DIMS(n))));
    says(m, TL_ENOMEM, words);
    tl_free(t, m);
}

/* ---- layers ---- */

typedef struct {
    tl_tape *t;
    tl_model *m;
    tl_tensor x, image, ids; /* (1, 2, 6), (1, 4, 3, 3), 3 of i64 */
} layers;

static layers layers_begin(void)
{
    layers l = {.m = tl_model_new(.seed = 1)};
    l.t = tl_tape_new(l.m);
    l.x = tl_fill(l.t, TL_F32, TL_DIMS(1, 2, 6), 1);
    l.image = tl_fill(l.t, TL_F32, TL_DIMS(1, 4, 3, 3), 1);
    l.ids = tl_fill(l.t, TL_I64, TL_DIMS(3), 0);
    return l;
}

/* The call has failed so, at a line of this file, and left nothing in the model. */
static void refused(const layers *l, tl_tensor y, tl_status status, const char *words)
{
    says(l->t, status, words);
    assert_true(tl_is_none(y));
    assert_non_null(strstr(tl_error(l->t), "(tests/test_messages.c:"));
    assert_int_equal(tl_model_count(l->m), 0);
    tl_error_clear(l->t);
}

static void sizes_of_layers(void **unused)
{
    layers l = layers_begin();
    tl_tape *t = l.t;
    tl_model *m = l.m;
    (void)unused;
    refused(&l, tl_linear(t, m, "l", l.x, 0), TL_ESHAPE,
            "tl_linear: 'l': 0 outputs; 1 is the least");
    refused(&l, tl_linear(t, m, "l", l.x, -3), TL_ESHAPE,
            "tl_linear: 'l': -3 outputs; 1 is the least");
    refused(&l, tl_embed(t, m, "e", l.ids, 0, 2, 1), TL_ESHAPE, "tl_embed: 'e': 0 rows");
    refused(&l, tl_embed(t, m, "e", l.ids, 2, -1, 1), TL_ESHAPE, "tl_embed: 'e': -1 columns");
    refused(&l, tl_mlp_swiglu(t, m, "s", l.x, 0), TL_ESHAPE, "tl_mlp_swiglu: 's': 0 hidden");
    refused(&l, tl_mlp_gelu(t, m, "g", l.x, 0), TL_ESHAPE, "tl_mlp_gelu: 'g': 0 hidden");
    refused(&l, tl_convolve2d(t, m, "c", l.image, 0, .kernel = {1, 1}), TL_ESHAPE,
            "tl_convolve2d: 'c': 0 outputs");
    refused(&l, tl_convolve2d(t, m, "c", l.image, 2), TL_ESHAPE,
            "tl_convolve2d: 'c': .kernel must be given (it is 0 0)");
    refused(&l, tl_convolve2d(t, m, "c", l.image, 2, .kernel = {3}), TL_ESHAPE, "(it is 3 0)");
    refused(&l, tl_convolve1d(t, m, "c", l.image, 2, .kernel = {3}), TL_ESHAPE,
            "tl_convolve1d: 'c': x has shape [1, 4, 3, 3]; (n, c, w) is needed");
    refused(&l, tl_convolve1d(t, m, "c", l.image, 2, .kernel = {3, 7}), TL_EUSAGE,
            "tl_convolve1d: 'c': one dim, and a second .kernel (7)");
    refused(&l,
            tl_convolve1d(t, m, "d", tl_zeros(t, TL_F32, TL_DIMS(1, 4, 9)), 2, .kernel = {3},
                          .stride = {1, 2}),
            TL_EUSAGE,
            "tl_convolve1d: 'd': one dim, and a second .kernel (0), .stride (2), .padding (0)");
    refused(&l, tl_convolve2d(t, m, "c", l.image, 2, .kernel = {1, 1}, .groups = 3), TL_ESHAPE,
            "'c': 4 channels to 2 by .groups = 3, which must divide both");
    refused(&l, tl_self_attention(t, m, "a", l.x, .heads = 2), TL_ESHAPE,
            "tl_self_attention: 'a': width 6 in 2 heads gives heads of 3; rotary positions need an "
            "even number");
    refused(&l, tl_self_attention(t, m, "a", l.x), TL_ESHAPE, "'a' has .heads = 0; 1");
    tl_free(t, m);
}

static void names_of_layers(void **unused)
{
    layers l = layers_begin();
    tl_tape *t = l.t;
    tl_model *m = l.m;
    (void)unused;
    refused(&l, tl_linear(t, m, "", l.x, 2), TL_ENAME, "a layer needs a name; it is empty");
    refused(&l, tl_linear(t, m, NULL, l.x, 2), TL_ENAME, "a layer needs a name; it is NULL");
    refused(&l, tl_embed(t, m, "", l.ids, 2, 2, 1), TL_ENAME, "it is empty");
    refused(&l, tl_norm(t, m, "", l.x, 1e-5), TL_ENAME, "it is empty");
    refused(&l, tl_lstm(t, m, "", l.x, 2), TL_ENAME, "it is empty");
    refused(&l, tl_batch_norm(t, m, "", l.image), TL_ENAME, "it is empty");
    refused(&l, tl_convolve2d(t, m, "", l.image, 2, .kernel = {1, 1}), TL_ENAME, "it is empty");
    refused(&l, tl_mlp_swiglu(t, m, "", l.x, 3), TL_ENAME, "it is empty");
    tl_free(t, m);
}

static void draws_of_no_width(void **unused)
{
    layers l = layers_begin();
    tl_tape *t = l.t;
    tl_model *m = l.m;
    (void)unused;
    refused(&l, tl_param(t, m, "w", TL_F32, TL_DIMS(2), .kind = TL_INIT_NORMAL), TL_EDOMAIN,
            "tl_param: TL_INIT_NORMAL with a scale of 0; a number above 0 is needed");
    refused(&l, tl_param(t, m, "w", TL_F32, TL_DIMS(2), TL_INIT_UNIFORM, -1), TL_EDOMAIN,
            "tl_param: TL_INIT_UNIFORM with a scale of -1;");
    refused(&l, tl_param(t, m, "w", TL_F32, TL_DIMS(2), TL_INIT_NORMAL, (double)INFINITY),
            TL_EDOMAIN, "with a scale of inf;");
    refused(&l, tl_param(t, m, "w", TL_F32, TL_DIMS(2), (tl_init_kind)77, 1), TL_EDOMAIN,
            "tl_param: init kind 77 is unknown");
    refused(&l, tl_linear(t, m, "l", l.x, 2, .init.kind = TL_INIT_NORMAL), TL_EDOMAIN,
            "with a scale of 0;");
    assert_false(tl_is_none(tl_param(t, m, "w", TL_F32, TL_DIMS(2), .kind = TL_INIT_ONES)));
    tl_free(t, m);
}

static void values_a_channel(void **unused)
{
    layers l = layers_begin();
    tl_tape *t = l.t;
    (void)unused;
    tl_batch_norm(t, l.m, "b", tl_fill(t, TL_F32, TL_DIMS(1, 3), 1));
    says(t, TL_ESHAPE, "tl_batch_norm: 'b' has one value a channel; at least 2 are needed");
    tl_error_clear(t);
    tl_batch_norm(t, l.m, "b", tl_fill(t, TL_F32, TL_DIMS(0, 3), 1));
    says(t, TL_ESHAPE, "'b' has no value a channel;");
    tl_free(t, l.m);
}

/* ---- ops: numbers as they were given, by the name that was called ---- */

static void ops_by_their_own_words(void **unused)
{
    layers l = layers_begin();
    tl_tape *t = l.t;
    (void)unused;
    tl_tensor ids = tl_data(t, ((int64_t[]){1, -1}), TL_I64, TL_DIMS(2)),
              all = tl_data(t, ((int64_t[]){0, 1, 0, 7}), TL_I64, TL_DIMS(2, 2)),
              square = tl_fill(t, TL_F32, TL_DIMS(2, 2), 1), y;
    refused(&l, tl_index_select(t, l.x, 2, ids), TL_EINDEX, "id -1 at position 1; dim 2");
    refused(&l, tl_index_select(t, l.x, 1, ids), TL_EINDEX, "id -1 at position 1; dim 1");
    refused(&l, tl_gather(t, square, all, 1), TL_EINDEX, "id 7 at position 3; dim 1");
    refused(&l, tl_gather(t, square, tl_transpose(t, all, 0, 1), 0), TL_EINDEX,
            "id 7 at position 3; dim 0");
    refused(&l, tl_gather(t, tl_slice(t, square, 0, 0, 1, 1), all, 1), TL_ESHAPE,
            "ids have shape [2, 2] for values of [1, 2] along dim 1");
    refused(&l,
            tl_gather(t, tl_fill(t, TL_F32, TL_DIMS(1, 2, 2), 1),
                      tl_fill(t, TL_I64, TL_DIMS(2, 1, 2), 0), 1),
            TL_ESHAPE, "ids have shape [2, 1, 2] for values of [1, 2, 2] along dim 1");
    refused(&l, tl_max_pool2d(t, l.image), TL_EDOMAIN, "max_pool2d: .kernel must be given (");
    refused(&l, tl_max_pool1d(t, l.x), TL_EDOMAIN, "max_pool1d: .kernel must be given (");
    refused(&l, tl_avg_pool1d(t, l.x), TL_EDOMAIN, "avg_pool1d: .kernel must be given (");
    refused(&l, tl_avg_pool2d(t, l.image, .kernel = {2}), TL_EDOMAIN,
            "avg_pool2d: .kernel must be given for both dims");
    refused(&l, tl_arange(t, TL_F32, 0, 3, 0), TL_EDOMAIN, "by 0; the step must not be 0");
    refused(&l, tl_slice(t, l.x, 2, 0, 3, 0), TL_EINDEX, "; the step must be above 0");
    refused(&l, tl_slice(t, l.x, 2, 0, 3, -1), TL_EINDEX, "; the step must be above 0");
    tl_compiled *c = tl_compile(t, twice, 1, NULL);
    tl_run(c, NULL, 1, &y);
    says(t, TL_EDOMAIN, "tl_run: in is NULL (tests/test_messages.c:");
    tl_error_clear(t);
    tl_run(c, &l.x, 1, NULL);
    says(t, TL_EDOMAIN, "tl_run: out is NULL (tests/test_messages.c:");
    tl_error_clear(t);
    tl_keep(t, l.x, (float *)NULL, 48);
    says(t, TL_EDOMAIN, "tl_keep: out is NULL (tests/test_messages.c:");
    tl_error_clear(t);
    tl_print(t, NULL, l.x);
    says(t, TL_EDOMAIN, "tl_print: f is NULL (tests/test_messages.c:");
    tl_error_clear(t);
    tl_sha256(t, l.x, NULL);
    says(t, TL_EDOMAIN, "tl_sha256: hex is NULL (tests/test_messages.c:");
    tl_error_clear(t);
    assert_int_equal(tl_loader_next(t, NULL, 1, &y), 0);
    says(t, TL_EDOMAIN, "tl_loader_next: l is NULL (tests/test_messages.c:");
    tl_free(c, t, l.m);
}

static void probabilities(void **unused)
{
    layers l = layers_begin();
    tl_tape *t = l.t;
    (void)unused;
    const float p[][3] = {{0, 1, 1.5f}, {-0.25f, 0, 0}, {0, NAN, 0}}, right[] = {0, 1, 0.5f};
    static const char *const words[] = {"bernoulli: p is 1.5 at position 2; 0 to 1 is needed",
                                        "p is -0.25 at position 0;", "nan at position 1;"};
    for (int i = 0; i < 3; i++)
        for (int d = 0; d < 2; d++) {
            tl_tensor x = tl_data(t, p[i], TL_F32, TL_DIMS(3));
            x = d == 0 ? x : tl_cast(t, x, TL_BF16);
            refused(&l, tl_bernoulli(t, x, "draw"), TL_EDOMAIN, words[i]);
        }
    assert_false(tl_is_none(tl_bernoulli(t, tl_data(t, right, TL_F32, TL_DIMS(3)), "draw")));
    tl_free(t, l.m);
}

static void learning_rates(void **unused)
{
    tl_model *m = tl_model_new(.seed = 1);
    tl_opt *none = tl_sgd_new(m, .momentum = 0.9), *less = tl_adamw_new(m, .lr = -1),
           *nan = tl_adam_new(m, .lr = (double)NAN);
    (void)unused;
    says(none, TL_EDOMAIN,
         "tl_sgd_new: lr is 0; a number above 0 is needed; tl_opt_group's lr_scale may be 0");
    says(less, TL_EDOMAIN,
         "tl_adamw_new: lr is -1; a number above 0 is needed; tl_opt_group's lr_scale may be 0");
    says(nan, TL_EDOMAIN,
         "tl_adam_new: lr is nan; a number above 0 is needed; tl_opt_group's lr_scale may be 0");
    tl_free(none, less, nan, m);
}

/* ---- files ---- */

static void files_and_models_without_parameters(void **unused)
{
    temp_dir dir;
    char path[1024];
    (void)unused;
    assert_true(temp_dir_make(&dir));
    temp_dir_file(path, &dir, "model.safetensors");
    tl_model *m = tl_model_new(.seed = 1), *empty = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    assert_int_equal(tl_save(m, path), TL_EUSAGE);
    says(m, TL_EUSAGE, "tl_save: the model has no parameter yet; the first forward pass makes");
    assert_int_not_equal(access(path, F_OK), 0);
    tl_error_clear(m);
    tl_linear(t, m, "l", tl_fill(t, TL_F32, TL_DIMS(1, 2), 1), 2);
    assert_int_equal(tl_save(m, NULL), TL_EDOMAIN);
    says(m, TL_EDOMAIN, "tl_save: path is NULL");
    assert_int_equal(tl_checkpoint_save(m, NULL, NULL, NULL, 0), TL_EDOMAIN);
    says(m, TL_EDOMAIN, "tl_checkpoint_save: path is NULL");
    assert_int_equal(tl_checkpoint_writable(m, NULL), TL_EDOMAIN);
    says(m, TL_EDOMAIN, "tl_checkpoint_writable: path is NULL");
    assert_int_equal(tl_save(m, path), TL_OK);
    assert_int_equal(tl_load(empty, path), TL_ENAME);
    says(empty, TL_ENAME,
         "model.safetensors: has 2 tensors, the model no parameter yet; the first forward pass "
         "makes them");
    assert_int_equal(tl_checkpoint_save(m, NULL, path, NULL, 0), TL_OK);
    assert_int_equal(tl_checkpoint_load(empty, NULL, path, NULL, NULL, 0), TL_ENAME);
    says(empty, TL_ENAME, "the first forward pass makes them");

    temp_dir_file(path, &dir,
                  "none/model.safetensors"); /* the user's name, not that of the file beside it */
    assert_int_equal(tl_save(m, path), TL_EIO);
    says(m, TL_EIO, "/none/model.safetensors: cannot be written: No such file");
    assert_null(strstr(tl_error(m), ".tmp"));
    tl_free(t, m, empty);
    temp_dir_remove(&dir);
}

/* ---- tapes ---- */

static void a_second_backward_has_its_own_place(void **unused)
{
    char place[64];
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = tl_data(t, ((float[]){1, 2, 3}), TL_F32, TL_DIMS(3));
    (void)unused;
    tl_require_grad(t, x);
    tl_tensor y = tl_sum(t, tl_square(t, tl_tanh(t, x)), TL_ALL, false);
    assert_int_equal(tl_backward(t, y), TL_OK);
    snprintf(place, sizeof place, "test_messages.c:%d)", __LINE__ + 1);
    assert_int_equal(tl_backward(t, y), TL_ESTALE);
    expect_failure_both(t, TL_ESTALE, place, "freed by an earlier backward");
    tl_free(t);
}

/* No number of steps, no mode; a depth that is not open closes nothing. */
static void limits_and_modes(void **unused)
{
    tl_tape *t = tl_tape_new(NULL);
    (void)unused;
    tl_tape_limit(t, -3);
    expect_failure(t, TL_EDOMAIN, "tl_tape_limit: -3 steps; 0 is no limit");
    const int outer = tl_mode_push(t, TL_EVAL), none = tl_mode_push(t, TL_NO_GRAD | 1u << 7);
    expect_failure(t, TL_EDOMAIN, "tl_mode_push: no mode 0x82");
    assert_int_equal(tl_mode(t), TL_EVAL);
    tl_mode_pop(t, none);
    tl_mode_pop(t, TL_EVAL);
    assert_int_equal(tl_mode(t), TL_EVAL);
    tl_mode_pop(t, outer);
    assert_int_equal(tl_mode(t), 0);
    assert_false(tl_failed(t));
    tl_free(t);
}

/* A call that is not told its place shows none, rather than the library's own line. */
static void a_place_is_the_callers_or_none(void **unused)
{
    char buf[64];
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    (void)unused;
    for (int i = 0; i < 6; i++) {
        switch (i) {
        case 0: tl_accumulate(t, "none"); break;
        case 1: tl_explain_invariance(t, TL_NONE, buf, sizeof buf); break;
        case 2: tl_explain_invariance(t, tl_fill(t, TL_F32, TL_DIMS(1), 0), NULL, 1); break;
        case 3: tl_host(t, TL_BEFORE, NULL, NULL); break;
        case 4: tl_tape_limit(t, -1); break;
        default: tl_mode_push(t, 1u << 8); break;
        }
        assert_true(tl_failed(t));
        if (strstr(tl_error(t), ".c:") != NULL || strchr(tl_error(t), '?') != NULL)
            fail_msg("call %d: %s", i, tl_error(t));
        tl_error_clear(t);
    }
    tl_free(t, m);
}

static void clearing_no_error_clears_nothing(void **unused)
{
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = tl_data(t, ((float[]){3}), TL_F32, TL_SCALAR);
    (void)unused;
    tl_require_grad(t, x);
    assert_int_equal(tl_backward(t, tl_square(t, x)), TL_OK);
    tl_error_clear(t);
    assert_true(tl_item(t, tl_grad(t, x)) == 6);
    tl_matmul(t, x, x);
    assert_true(tl_failed(t));
    tl_error_clear(t); /* what failed may have been part of a batch */
    assert_true(tl_is_none(tl_grad(t, x)));
    tl_free(t);
}

const struct CMUnitTest tl_tests_messages[] = {
    cmocka_unit_test(settings_that_mean_nothing),
    cmocka_unit_test(settings_that_are_right),
    cmocka_unit_test(replacements_that_are_not_there),
    cmocka_unit_test(configs_that_do_not_fit),
    cmocka_unit_test(numbers_of_programs),
    cmocka_unit_test(more_memory_than_there_is),
    cmocka_unit_test(sizes_of_layers),
    cmocka_unit_test(names_of_layers),
    cmocka_unit_test(draws_of_no_width),
    cmocka_unit_test(values_a_channel),
    cmocka_unit_test(ops_by_their_own_words),
    cmocka_unit_test(probabilities),
    cmocka_unit_test(learning_rates),
    cmocka_unit_test(files_and_models_without_parameters),
    cmocka_unit_test(a_second_backward_has_its_own_place),
    cmocka_unit_test(limits_and_modes),
    cmocka_unit_test(a_place_is_the_callers_or_none),
    cmocka_unit_test(clearing_no_error_clears_nothing),
};
const size_t tl_tests_messages_count = sizeof tl_tests_messages / sizeof tl_tests_messages[0];
