/* Models and tokens in the files of other programs: what is saved comes back with every bit, what
 * transformers has saved gives its logits (models.py), and what does not fit is refused. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <tally_models.h>

#include "tensor/files/file.h"
#include "tensor/files/safetensors.h"
#include "tensor/memory.h"
#include "tests/support/skip.h"
#include "tests/temp_dir.h"

extern const struct CMUnitTest tl_tests_models[];
extern const size_t tl_tests_models_count;

enum { B = 2, S = 9, VOCAB = 37 };

static temp_dir dir;

static int begin(void **unused)
{
    (void)unused;
    return temp_dir_make(&dir) ? 0 : -1;
}

/* With the folders in it. */
static int end(void **unused)
{
    char command[1024];
    (void)unused;
    snprintf(command, sizeof command, "rm -r '%s'", dir.path);
    return system(command) == 0 ? 0 : -1;
}

static const tl_rotary_scaling llama3 = {8, 1, 4, 16};

static tl_decoder_config small(tl_family family, int way, tl_dtype d)
{
    if (family == TL_FAMILY_GPT2)
        return (tl_decoder_config){family,
                                   .gpt2 = {.vocab = VOCAB,
                                            .width = 12,
                                            .layers = 2,
                                            .heads = 3,
                                            .max_positions = 16,
                                            .dtype = d},
                                   .stop = {5}, .stops = 1};
    return (tl_decoder_config){family,
                               .llama = {.vocab = VOCAB,
                                         .width = 24,
                                         .layers = 2,
                                         .heads = 4,
                                         .kv_heads = way % 2 ? 2 : 0,
                                         .hidden = 40,
                                         .max_positions = 64,
                                         .rope_base = way == 2 ? 5e5 : 0,
                                         .pairing = TL_ROTARY_HALF,
                                         .tied = way % 3 == 1,
                                         .scaling = way == 1 ? llama3
                                                    : way == 2
                                                        ? (tl_rotary_scaling){4, 1, 2, 1e-300}
                                                        : (tl_rotary_scaling){0},
                                         .dtype = d},
                               .stop = {7, 9}, .stops = way};
}

/* (B, S, vocab) as f64. */
static void logits_of(tl_model *m, const tl_decoder_config *c, double *out)
{
    int64_t ids[B * S];
    static float row[B * S * VOCAB];
    tl_tape *t = tl_tape_new(m);
    tl_mode_push(t, TL_NO_GRAD);
    for (int i = 0; i < B * S; i++)
        ids[i] = i * 7 % VOCAB;
    tl_tensor z = tl_cast(t, tl_decoder(t, m, c, tl_data(t, ids, TL_I64, TL_DIMS(B, S))), TL_F32);
    if (tl_keep(t, z, row, sizeof row) != TL_OK)
        fail_msg("%s", tl_error(t));
    for (int i = 0; i < B * S * VOCAB; i++)
        out[i] = (double)row[i];
    tl_free(t);
}

static double apart(const double *a, const double *b)
{
    double off = 0, most = 0;
    for (int i = 0; i < B * S * VOCAB; i++) {
        off = fmax(off, fabs(a[i] - b[i]));
        most = fmax(most, fabs(b[i]));
    }
    return off / most;
}

static void same_hash(tl_model *a, tl_model *b)
{
    char x[65], y[65];
    assert_int_equal(tl_model_sha256(a, x), TL_OK);
    assert_int_equal(tl_model_sha256(b, y), TL_OK);
    assert_string_equal(x, y);
}

#define FINE(m, call)                    \
    do {                                 \
        if ((call) != TL_OK)             \
            fail_msg("%s", tl_error(m)); \
    } while (0)

static void folders_come_back_with_every_bit(void **unused)
{
    static double want[B * S * VOCAB], got[B * S * VOCAB];
    const tl_dtype dtypes[] = {TL_F32, TL_BF16, TL_F64, TL_F16};
    (void)unused;
    for (int k = 0; k < 16; k++) {
        tl_family family = k % 4 == 3 ? TL_FAMILY_GPT2 : TL_FAMILY_LLAMA;
        tl_decoder_config c = small(family, k % 4, dtypes[k / 4]), back;
        tl_model *m = tl_model_new(.seed = 3), *n = tl_model_new(.seed = 4);
        char folder[1024];
        temp_dir_file(folder, &dir, "folder");
        logits_of(m, &c, want);
        FINE(m, tl_hf_save(m, folder, &c, .shard_bytes = k % 2 ? 4000 : 0));
        FINE(n, tl_hf_load(n, folder, &back));
        same_hash(m, n);
        logits_of(n, &back, got);
        assert_memory_equal(got, want, sizeof got);
        assert_int_equal(family == TL_FAMILY_LLAMA ? back.gpt2.dtype : back.llama.dtype, 0);
        assert_int_equal(back.stops, c.stops);
        assert_memory_equal(back.stop, c.stop, (size_t)c.stops * sizeof *c.stop);
        /* over what is there, and in another dtype */
        FINE(m, tl_hf_load(m, folder, &back));
        same_hash(m, n);
        tl_model *o = tl_model_new(.seed = 5);
        FINE(o, tl_hf_load(o, folder, &back, .dtype = TL_F64));
        logits_of(o, &back, got);
        assert_true(apart(got, want) < 0.1);
        assert_int_equal(family == TL_FAMILY_LLAMA ? back.llama.dtype : back.gpt2.dtype, TL_F64);
        tl_free(m, n, o);
    }
}

static void interleaved_pairs_are_saved_as_halves(void **unused)
{
    static double want[B * S * VOCAB], got[B * S * VOCAB];
    tl_decoder_config c = small(TL_FAMILY_LLAMA, 1, TL_F64), back;
    tl_model *m = tl_model_new(.seed = 3), *n = tl_model_new(.seed = 4);
    char folder[1024];
    (void)unused;
    c.llama.pairing = TL_ROTARY_INTERLEAVED;
    temp_dir_file(folder, &dir, "turned");
    logits_of(m, &c, want);
    FINE(m, tl_hf_save(m, folder, &c));
    FINE(n, tl_hf_load(n, folder, &back));
    assert_int_equal(back.llama.pairing, TL_ROTARY_HALF);
    logits_of(n, &back, got);
    assert_true(apart(got, want) < 1e-6); /* f32 of f64 results that differ in the last bits */
    tl_free(m, n);
}

static void checkpoints_of_llmc_come_back(void **unused)
{
    static double want[B * S * VOCAB], got[B * S * VOCAB];
    char path[1024], *bytes;
    size_t n_bytes;
    (void)unused;
    temp_dir_file(path, &dir, "gpt2.bin");
    for (int k = 0; k < 2; k++) {
        tl_decoder_config c = small(TL_FAMILY_GPT2, 0, k ? TL_BF16 : TL_F32), back;
        tl_model *m = tl_model_new(.seed = 3), *n = tl_model_new(.seed = 4);
        logits_of(m, &c, want);
        FINE(m, tl_llmc_save(m, path, &c));
        FINE(n, tl_llmc_load(n, path, &back));
        same_hash(m, n);
        logits_of(n, &back, got);
        assert_memory_equal(got, want, sizeof got);
        /* the header of llm.c: its numbers, little-endian, and a padded vocabulary */
        static const int32_t h[] = {20240326, 3, 16, VOCAB, 2, 3, 12, 128};
        assert_int_equal(tl_file_read(path, 1 << 20, &bytes, &n_bytes, NULL), TL_OK);
        for (int i = 0; i < 8; i++) {
            const unsigned char *b = (unsigned char *)bytes + 4 * i;
            int32_t x = (int32_t)(b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 |
                                  (uint32_t)b[3] << 24);
            assert_int_equal(x, i == 1 && k ? 5 : h[i]);
        }
        tl_free_raw(bytes);
        assert_int_equal(n_bytes,
                         1024 + (tl_model_parameters(m) + (128 - VOCAB) * 12) * (k ? 2 : 4));
        tl_free(m, n);
    }
}

static void tokens_of_llmc_come_back(void **unused)
{
    int64_t ids[3000], got[3000];
    char path[1024];
    tl_err err = {.status = TL_OK};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    (void)unused;
    for (int i = 0; i < 3000; i++)
        ids[i] = i * 40503 % 65536;
    temp_dir_file(path, &dir, "tokens.bin");
    assert_int_equal(tl_llmc_tokens_save(path, ids, 3000, &err), TL_OK);
    tl_tensor x = tl_llmc_tokens_load(m, path);
    FINE(t, tl_keep(t, x, got, sizeof got));
    assert_memory_equal(got, ids, sizeof ids);
    ids[7] = 65536;
    assert_int_equal(tl_llmc_tokens_save(path, ids, 3000, &err), TL_EDOMAIN);
    assert_non_null(strstr(err.message, "token 7 is 65536"));
    assert_int_equal(truncate(path, 5001), 0);
    assert_true(tl_is_none(tl_llmc_tokens_load(m, path)));
    assert_non_null(strstr(tl_error(m), "says 3000 tokens; its 5001 bytes hold 1988"));
    tl_free(t, m);
}

/* ---- what is refused ---- */

static void write_text(const char *folder, const char *name, const char *text, size_t n)
{
    char path[2048];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    fclose(f);
}

#define LLAMA3                                                            \
    "{\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, " \
    "\"high_freq_factor\": 4, \"original_max_position_embeddings\": "

/* In a config.json that is good otherwise. */
static void lies_in_a_config_are_told(void **unused)
{
    static const struct {
        const char *key, *value;
        tl_status s;
        const char *says;
    } lie[] = {
        {"hidden_size", "null", TL_EFORMAT, "\"hidden_size\" is no number"},
        {"hidden_size", "\"24\"", TL_EFORMAT, "\"hidden_size\" is no number"},
        {"hidden_size", "-24", TL_EFORMAT, "\"hidden_size\" is -24"},
        {"hidden_size", "24.5", TL_EFORMAT, "\"hidden_size\" is 24.5"},
        {"num_attention_heads", "8", TL_EDOMAIN, "8 heads of 6 numbers for a width of 24"},
        {"hidden_size", "1e300", TL_EFORMAT, "\"hidden_size\""},
        {"intermediate_size", "99999999999", TL_EDOMAIN, "hidden width 99999999999"},
        {"num_hidden_layers", "100000000", TL_EDOMAIN, "layers 100000000"},
        {"num_hidden_layers", "3", TL_ENAME, "model.layers.2.input_layernorm.weight"},
        {"num_hidden_layers", "1", TL_ENAME, "is another"},
        {"num_hidden_layers", "0", TL_EDOMAIN, "layers 0"},
        {"num_attention_heads", "0", TL_EDOMAIN, "heads 0"},
        {"num_key_value_heads", "3", TL_EDOMAIN, "4 heads, 3 of keys"},
        {"head_dim", "8", TL_EDOMAIN, "4 heads of 8 numbers for a width of 24"},
        {"vocab_size", "38", TL_ESHAPE, "[37, 24]"},
        {"model_type", "\"mistral\"", TL_EDOMAIN, "\"mistral\""},
        {"hidden_act", "\"gelu\"", TL_EDOMAIN, "\"gelu\""},
        {"attention_bias", "true", TL_EDOMAIN, "true"},
        {"rope_scaling", "{\"rope_type\": \"yarn\"}", TL_EDOMAIN, "\"yarn\""},
        {"rope_scaling", "{\"rope_type\": \"linear\"}", TL_EFORMAT, "\"factor\" is missing"},
        {"rope_scaling", "{\"type\": \"linear\", \"factor\": 0}", TL_EDOMAIN, "factor 0"},
        {"rope_scaling", LLAMA3 "16.5}", TL_EFORMAT, "is 16.5; a whole number"},
        {"rope_scaling", LLAMA3 "0}", TL_EDOMAIN, "original 0"},
        {"rms_norm_eps", "0", TL_EDOMAIN, "\"rms_norm_eps\" is 0"},
        {"rms_norm_eps", "0.0", TL_EDOMAIN, "\"rms_norm_eps\" is 0"},
        {"rope_theta", "0", TL_EDOMAIN, "\"rope_theta\" is 0"},
        {"num_key_value_heads", "0", TL_EDOMAIN, "\"num_key_value_heads\" is 0"},
        {"max_position_embeddings", "1e15", TL_EFORMAT, "whole"},
        {"max_position_embeddings", "1000000000000000", TL_EDOMAIN,
         "positions 1000000000000000; 1 to 16777216"},
        {"max_position_embeddings", "16777217", TL_EDOMAIN, "positions 16777217"},
        {"max_position_embeddings", "16777216", TL_OK, ""},
        {"eos_token_id", "[1, 2, 3, 4, 5, 6, 7, 8, 9]", TL_EDOMAIN, "9 of \"eos_token_id\""},
        {"eos_token_id", "[1, 2, 3, 4, 5, 6, 7, 8]", TL_OK, ""},
        {"tie_word_embeddings", "true", TL_OK, ""}, /* the output there is, is not needed */
    };
    tl_decoder_config c = small(TL_FAMILY_LLAMA, 3, TL_F32), back = {.stops = 77};
    tl_model *m = tl_model_new(.seed = 3), *n = tl_model_new(.seed = 4);
    static double logits[B * S * VOCAB];
    char folder[1024], path[1100], *text;
    size_t bytes;
    (void)unused;
    temp_dir_file(folder, &dir, "lies");
    logits_of(m, &c, logits);
    FINE(m, tl_hf_save(m, folder, &c));
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_int_equal(tl_file_read(path, 1 << 20, &text, &bytes, NULL), TL_OK);
    for (size_t i = 0; i < sizeof lie / sizeof *lie; i++) {
        json_t *j = json_loadb(text, bytes, 0, NULL);
        json_object_set_new(j, lie[i].key, json_loads(lie[i].value, JSON_DECODE_ANY, NULL));
        char *now = json_dumps(j, 0);
        write_text(folder, "config.json", now, strlen(now));
        tl_status s = tl_hf_load(n, folder, &back);
        if (s != lie[i].s || strstr(tl_error(n), lie[i].says) == NULL)
            fail_msg("%s %s: %s: %s", lie[i].key, lie[i].value, tl_status_name(s), tl_error(n));
        if (s != TL_OK && (back.stops != 77 || tl_model_count(n) != 0))
            fail_msg("%s: the model changed", lie[i].key);
        if (s == TL_OK) {
            tl_free(n);
            n = tl_model_new(.seed = 4);
            back.stops = 77;
        }
        free(now);
        json_decref(j);
    }
    for (size_t cut = 0; cut < bytes - 2; cut += 13) { /* the last brace is needed, the line not */
        tl_model *o = tl_model_new(.seed = 4);
        write_text(folder, "config.json", text, cut);
        assert_int_equal(tl_hf_load(o, folder, &back), TL_EFORMAT);
        tl_error(o);
        tl_free(o);
    }
    tl_free_raw(text);
    tl_free(m, n);
}

/* Nothing is written, and what was there still loads. */
static void configs_that_no_file_can_hold_are_not_saved(void **unused)
{
    static double logits[B * S * VOCAB];
    static const struct {
        int stops;
        double eps, original, base;
        tl_status s, of_llmc;
        const char *says;
    } odd[] = {{1000000, 0, 16, 0, TL_EDOMAIN, TL_EDOMAIN, "1000000 tokens that end a text"},
               {TL_STOPS_MAX + 1, 0, 16, 0, TL_EDOMAIN, TL_EDOMAIN, "9 tokens that end a text"},
               {-1, 0, 16, 0, TL_EDOMAIN, TL_EDOMAIN, "-1 tokens that end a text"},
               {1, (double)NAN, 16, 0, TL_EDOMAIN, TL_EDOMAIN, "eps nan"},
               {1, (double)INFINITY, 16, 0, TL_EDOMAIN, TL_EDOMAIN, "eps inf"},
               {1, -1, 16, 0, TL_EDOMAIN, TL_EDOMAIN, "eps -1"},
               {1, 1e-6, 16, 0, TL_OK, TL_EDOMAIN, "an eps of 1e-06"},
               {1, 1e-5, 16, 0, TL_OK, TL_OK, ""},
               {1, 0, 16.5, 0, TL_EDOMAIN, TL_OK, "16.5 original positions"},
               {1, 0, (double)NAN, 0, TL_EDOMAIN, TL_OK, "original positions nan"},
               {1, 0, 16, (double)NAN, TL_EDOMAIN, TL_OK, "base of angles nan"}};
    (void)unused;
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
            tl_decoder_config c = small(k ? TL_FAMILY_GPT2 : TL_FAMILY_LLAMA, 1, TL_F32), back;
            tl_model *m = tl_model_new(.seed = 3), *n = tl_model_new(.seed = 4);
            char path[1024];
            temp_dir_file(path, &dir, k ? "odd.bin" : "odd");
            logits_of(m, &c, logits);
            FINE(m, k ? tl_llmc_save(m, path, &c) : tl_hf_save(m, path, &c));
            c.stops = odd[i].stops;
            c.llama.eps = c.gpt2.eps = odd[i].eps;
            c.llama.scaling.original = odd[i].original;
            c.llama.rope_base = odd[i].base;
            tl_status s = k ? tl_llmc_save(m, path, &c) : tl_hf_save(m, path, &c);
            if (s != (k ? odd[i].of_llmc : odd[i].s) ||
                (s != TL_OK && strstr(tl_error(m), odd[i].says) == NULL))
                fail_msg("%zu: %s: %s", i, tl_status_name(s), tl_error(m));
            FINE(n, k ? tl_llmc_load(n, path, &back) : tl_hf_load(n, path, &back));
            tl_free(m, n);
        }
}

/* Of the shards some are new and some old then: no config.json says that they are a model. */
static void a_folder_half_saved_is_refused(void **unused)
{
    static double logits[B * S * VOCAB];
    tl_decoder_config c = small(TL_FAMILY_LLAMA, 1, TL_F32), back;
    tl_model *old = tl_model_new(.seed = 3), *new = tl_model_new(.seed = 4),
             *m = tl_model_new(.seed = 5);
    char folder[1024], way[2048];
    (void)unused;
    logits_of(old, &c, logits);
    logits_of(new, &c, logits);
    temp_dir_file(folder, &dir, "half");
    FINE(old, tl_hf_save(old, folder, &c, .shard_bytes = 4000));
    snprintf(way, sizeof way,
             "cd '%s' && mv model-00002* keep && mkdir $(ls model-00003* | "
             "sed s/00003/00002/)",
             folder);
    assert_int_equal(system(way), 0);
    assert_int_equal(tl_hf_save(new, folder, &c, .shard_bytes = 4000), TL_EIO);
    tl_error(new);
    snprintf(way, sizeof way, "cd '%s' && d=$(ls -d model-00002*) && rmdir $d && mv keep $d",
             folder);
    assert_int_equal(system(way), 0);
    assert_int_equal(tl_hf_load(m, folder, &back), TL_EIO);
    assert_non_null(strstr(tl_error(m), "config.json"));
    FINE(new, tl_hf_save(new, folder, &c, .shard_bytes = 4000));
    FINE(m, tl_hf_load(m, folder, &back));
    same_hash(m, new);
    tl_free(old, new, m);
}

/* ---- tokens ---- */

static int64_t compared;

/* A line of models.py: [text, its tokens, its tokens without those around it]. */
static void same_tokens(const tl_tokenizer *k, const json_t *line)
{
    enum { ROOM = 1 << 14 };
    static int64_t ids[ROOM];
    static char back[1 << 16];
    const json_t *text = json_array_get(line, 0);
    const char *s = json_string_value(text);
    size_t n = json_string_length(text), length = 0, part;
    for (size_t around = 0; around < 2; around++) {
        const json_t *want = json_array_get(line, around ? 1 : 2);
        int64_t count = tl_tokenizer_encode(k, s, n, around, ids, ROOM, NULL);
        if (count != (int64_t)json_array_size(want))
            fail_msg("%" PRId64 " tokens, %zu are right: %s", count, json_array_size(want), s);
        for (int64_t i = 0; i < count; i++, compared++)
            if (ids[i] != json_integer_value(json_array_get(want, (size_t)i)))
                fail_msg("token %" PRId64 " is %" PRId64 ", not %lld: %s", i, ids[i],
                         json_integer_value(json_array_get(want, (size_t)i)), s);
        for (int64_t i = 0; i < count && around == 0; i++, length += part) {
            const char *bytes = tl_tokenizer_bytes(k, ids[i], &part);
            memcpy(back + length, bytes, part);
        }
        for (int64_t i = 0; i < count; i++)
            assert_non_null(tl_tokenizer_bytes(k, ids[i], &part));
    }
    assert_true(length == n && memcmp(back, s, n) == 0); /* a text is the bytes of its tokens */
}

static void same_tokens_of(const char *folder)
{
    static const char *const kind[] = {"gpt2", "llama3"};
    for (int i = 0; i < 2; i++) {
        char path[1100], *text, *rest = NULL;
        size_t bytes;
        tl_err err = {.status = TL_OK};
        tl_tokenizer *k;
        snprintf(path, sizeof path, "%s/%s.tokenizer.json", folder, kind[i]);
        if (tl_tokenizer_open(&k, path, &err) != TL_OK)
            fail_msg("%s", err.message);
        snprintf(path, sizeof path, "%s/%s.tokens", folder, kind[i]);
        assert_int_equal(tl_file_read(path, 1 << 26, &text, &bytes, NULL), TL_OK);
        compared = 0;
        for (char *l = strtok_r(text, "\n", &rest); l != NULL; l = strtok_r(NULL, "\n", &rest)) {
            json_t *line = json_loads(l, 0, NULL);
            assert_int_equal(json_array_size(line), 3);
            same_tokens(k, line);
            json_decref(line);
        }
        print_message("%s: %" PRId64 " tokens are the same\n", kind[i], compared);
        assert_true(compared > 1000);
        assert_true(tl_tokenizer_find(k, "<|begin|>") > 0 && tl_tokenizer_find(k, "none") == -1);
        tl_free_raw(text);
        tl_tokenizer_close(k);
    }
}

static void tokens_are_those_that_are_written_down(void **unused)
{
    (void)unused;
    same_tokens_of(TL_ROOT "/tests/corpus");
}

/* Whatever the bytes, the tokens give them back; a long word takes no time that grows by its
 * square. */
static void any_bytes_come_back(void **unused)
{
    enum { N = 1 << 17 };
    static char text[N];
    static int64_t ids[N];
    tl_tokenizer *k;
    tl_err err = {.status = TL_OK};
    (void)unused;
    assert_int_equal(tl_tokenizer_open(&k, TL_ROOT "/tests/corpus/llama3.tokenizer.json", &err),
                     TL_OK);
    for (int way = 0; way < 3; way++) {
        uint32_t x = 1;
        for (int i = 0; i < N; i++) {
            x = x * 1664525 + 1013904223;
            text[i] = (char)(way == 0 ? x >> 24 : way == 1 ? 'a' + (x >> 31) : ' ');
        }
        int64_t n = tl_tokenizer_encode(k, text, N, false, ids, N, &err);
        assert_true(n > 0 && n <= N);
        size_t at = 0, part;
        for (int64_t i = 0; i < n; i++, at += part) {
            const char *bytes = tl_tokenizer_bytes(k, ids[i], &part);
            assert_true(part <= N - at && memcmp(text + at, bytes, part) == 0);
        }
        assert_true(at == N);
        assert_int_equal(tl_tokenizer_encode(k, text, N, false, NULL, 0, &err), n);
    }
    tl_tokenizer_close(k);
}

/* ---- the program generate ---- */

/* What it writes; it must end with 0. */
static char *generated(const char *args)
{
    static char out[1 << 16];
    char command[4096];
    const char *run = getenv("TL_RUN");
    snprintf(command, sizeof command, "%s '" TL_BUILD "/generate' --check --tokens 12 %s",
             run != NULL ? run : "", args);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    out[fread(out, 1, sizeof out - 1, f)] = '\0';
    if (pclose(f) != 0)
        fail_msg("%s", command);
    return out;
}

/* Each step's logits are those of the whole forward pass (--check ends with 1 if not), and a text
 * is the same alone and in a batch. */
static void a_text_is_the_same_alone_and_in_a_batch(void **unused)
{
    static const char *const prompt[] = {"'The quick'", "''\\''s, then'",
                                         "'나는 유리를 먹을 수 있어요'"},
                             *const way[] = {"--temperature 0", "--top-k 5 --seed 3",
                                             "--top-p 0.7 --temperature 1.5 --stop ox"};
    char path[1024], args[3000], alone[3][4096];
    (void)unused;
    for (int k = 0; k < 6; k++) {
        tl_decoder_config c = small(k % 2 ? TL_FAMILY_LLAMA : TL_FAMILY_GPT2, 1, TL_F32);
        int64_t one = 0;
        tl_model *m = tl_model_new(.seed = 3);
        tl_tape *t = tl_tape_new(m);
        c.llama.vocab = c.gpt2.vocab = 410;
        c.gpt2.max_positions = 64;
        tl_mode_push(t, TL_NO_GRAD);
        tl_decoder(t, m, &c, tl_data(t, &one, TL_I64, TL_DIMS(1, 1)));
        temp_dir_file(path, &dir, k % 2 ? "folder" : "gpt2.bin");
        FINE(m, k % 2 ? tl_hf_save(m, path, &c) : tl_llmc_save(m, path, &c));
        tl_free(t, m);
        size_t n = 0;
        for (int i = 0; i < 4; i++) {
            snprintf(args, sizeof args,
                     "'%s' --tokenizer " TL_ROOT "/tests/corpus/llama3.tokenizer.json %s %s", path,
                     way[k / 2], i < 3 ? prompt[i] : prompt[0]);
            for (int j = 1; i == 3 && j < 3; j++) {
                strcat(args, " ");
                strcat(args, prompt[j]);
            }
            const char *out = generated(args);
            assert_true(i == 3 || strlen(out) > 1);
            if (i < 3)
                snprintf(alone[i], sizeof alone[i], "%.4000s", out);
            for (int j = 0; i == 3 && j < 3; n += strlen(alone[j++]))
                if (strncmp(out + n, alone[j], strlen(alone[j])) != 0)
                    fail_msg("alone: %sin a batch: %s", alone[j], out + n);
            assert_true(i < 3 || out[n] == '\0');
        }
    }
}

/* ---- beside transformers ---- */

#define PYTHON TL_BUILD "/peers/bin/python"

/* false: the package is missing. */
static bool python(const char *what)
{
    char command[2048];
    snprintf(command, sizeof command,
             PYTHON " -W ignore " TL_ROOT "/tests/models.py %s '%s' >&2 2>/dev/null", what,
             dir.path);
    int status = access(PYTHON, X_OK) == 0 ? system(command) : 77 << 8;
    if (status != 0 && status != 77 << 8)
        fail_msg("%s", command);
    return status == 0;
}

static void logits_are_those_of_transformers(void **unused)
{
    static const char *const cases[] = {"llama3", "linear", "plain", "gpt2"};
    (void)unused;
    if (!python("make"))
        TL_SKIP();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char folder[1024], path[1100], ours[1100];
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_decoder_config c;
        tl_st_file *f;
        temp_dir_file(folder, &dir, cases[i]);
        snprintf(path, sizeof path, "%s/check.safetensors", folder);
        snprintf(ours, sizeof ours, "%s.ours", folder);
        FINE(m, tl_hf_load(m, folder, &c));
        assert_int_equal(tl_st_open(&f, path, NULL), TL_OK);
        tl_array ids = tl_st_at(f, tl_st_find(f, "ids")).array,
                 want = tl_st_at(f, tl_st_find(f, "logits")).array;
        tl_mode_push(t, TL_NO_GRAD | TL_EVAL);
        tl_tensor z = tl_decoder(t, m, &c,
                                 tl_data(t, (int64_t *)ids.data, TL_I64,
                                         TL_DIMS(ids.dim[0], ids.dim[1])));
        size_t n = (size_t)tl_array_count(&want);
        float *got = calloc(n, sizeof *got);
        FINE(t, tl_keep(t, z, got, n * sizeof *got));
        double off = 0, most = 0;
        for (size_t k = 0; k < n; k++) {
            off = fmax(off, fabs((double)got[k] - tl_array_get(&want, (int64_t)k)));
            most = fmax(most, fabs(tl_array_get(&want, (int64_t)k)));
        }
        print_message("%s: loaded by Tally: logits up to %.3g differ by %.1e of that\n", cases[i],
                      most, off / most);
        assert_true(off / most < 1e-5 && most > 0.1);
        FINE(m, tl_hf_save(m, ours, &c, .shard_bytes = i % 2 ? 50000 : 0));
        free(got);
        tl_st_close(f);
        tl_free(t, m);
    }
    assert_true(python("load"));
}

static void tokens_are_those_of_tokenizers(void **unused)
{
    (void)unused;
    if (!python("tokens"))
        TL_SKIP();
    same_tokens_of(dir.path);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
const struct CMUnitTest tl_tests_models[] = {
    TEST(folders_come_back_with_every_bit),
    TEST(interleaved_pairs_are_saved_as_halves),
    TEST(checkpoints_of_llmc_come_back),
    TEST(tokens_of_llmc_come_back),
    TEST(tokens_are_those_that_are_written_down),
    TEST(any_bytes_come_back),
    TEST(a_text_is_the_same_alone_and_in_a_batch),
    TEST(tokens_are_those_of_tokenizers),
    TEST(lies_in_a_config_are_told),
    TEST(configs_that_no_file_can_hold_are_not_saved),
    TEST(a_folder_half_saved_is_refused),
    TEST(logits_are_those_of_transformers),
};
const size_t tl_tests_models_count = sizeof tl_tests_models / sizeof *tl_tests_models;
