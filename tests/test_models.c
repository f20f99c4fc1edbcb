/* Models and tokens in the files of other programs: what is saved comes back with every bit, what
 * transformers has saved gives its logits (models.py), and what does not fit is refused. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <fenv.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <tally_models.h>

#include "tensor/storage.h"
#include "nn/files.h"
#include "tensor/files/file.h"
#include "tensor/files/safetensors.h"
#include "tensor/memory.h"
#include "tests/support/file_faults.h"
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

/* Files of other programs hold masks and angles, too, which follow from the config. */
static void masks_and_angles_in_a_file_are_left_out(void **unused)
{
    static double logits[B * S * VOCAB];
    static const char *const beside[2][3] = {{"model.layers.0.self_attn.rotary_emb.inv_freq",
                                              "lm_head.bias"},
                                             {"transformer.h.0.attn.bias",
                                              "transformer.h.1.attn.masked_bias", "lm_head.bias"}};
    static float numbers[4];
    char folder[1024], path[1056];
    (void)unused;
    for (int k = 0; k < 2; k++) {
        tl_decoder_config c = small(k ? TL_FAMILY_GPT2 : TL_FAMILY_LLAMA, 0, TL_F32), back;
        tl_model *m = tl_model_new(.seed = 3);
        logits_of(m, &c, logits);
        FINE(m, tl_hf_save(m, temp_dir_file(folder, &dir, k ? "masks" : "angles"), &c));
        snprintf(path, sizeof path, "%s/model.safetensors", folder);
        for (int more = 1; more <= 2 + k; more++) { /* the last one is no such tensor */
            tl_st_file *f;
            tl_st_entry e[64];
            FINE(m, tl_hf_save(m, folder, &c));
            assert_int_equal(tl_st_open(&f, path, NULL), TL_OK);
            int n = tl_st_count(f);
            assert_true(n < 60);
            for (int i = 0; i < n; i++)
                e[i] = tl_st_at(f, i);
            for (int i = 0; i < more; i++)
                e[n++] = (tl_st_entry){beside[k][i],
                                       tl_array_make(TL_F32, &TL_DIMS(1, 2, 2), numbers)};
            assert_int_equal(tl_st_write(path, e, n, NULL, 0, NULL), TL_OK);
            tl_st_close(f);
            tl_model *other = tl_model_new(.seed = 4);
            tl_status s = tl_hf_load(other, folder, &back);
            assert_int_equal(s, more < 2 + k ? TL_OK : TL_ENAME);
            if (s == TL_OK)
                same_hash(m, other);
            else
                assert_non_null(strstr(tl_error(other), "'lm_head.bias' is another"));
            tl_free(other);
        }
        tl_free(m);
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

/* A user's model may hold its tensors in several dtypes: those whose rows change places are wider
 * here than the first one. */
static void dtypes_may_differ_in_a_folder(void **unused)
{
    static double logits[B * S * VOCAB];
    tl_decoder_config c = small(TL_FAMILY_LLAMA, 1, TL_BF16), back;
    tl_model *m = tl_model_new(.seed = 3), *wide = tl_model_new(.seed = 4);
    tl_model *n = tl_model_new(.seed = 5), *of_wide = tl_model_new(.seed = 6);
    tl_model *again = tl_model_new(.seed = 7), *narrow = tl_model_new(.seed = 8);
    tl_tape *t = tl_tape_new(wide);
    char folder[1024];
    (void)unused;
    c.llama.pairing = TL_ROTARY_INTERLEAVED;
    logits_of(m, &c, logits);
    tl_mode_push(t, TL_NO_GRAD);
    for (int i = 0; i < tl_model_count(m); i++) {
        const tl_named e = tl_model_at(m, i);
        const bool turned = strstr(e.name, "attention.q") || strstr(e.name, "attention.k");
        tl_tensor x = tl_param(t, wide, e.name, turned ? TL_F64 : TL_BF16, tl_array_shape(&e.array),
                               .kind = TL_INIT_ZEROS);
        tl_array to;
        assert_true(tl_array_of(t, x, &to));
        for (int64_t k = 0; k < tl_array_count(&to); k++)
            tl_array_put(&to, k, tl_array_get(&e.array, k)); /* every bf16 is an f64 */
    }
    FINE(m, tl_hf_save(m, temp_dir_file(folder, &dir, "alike"), &c));
    FINE(n, tl_hf_load(n, folder, &back));
    FINE(wide, tl_hf_save(wide, temp_dir_file(folder, &dir, "mixed"), &c));
    FINE(of_wide, tl_hf_load(of_wide, folder, &back, .dtype = TL_BF16));
    same_hash(n, of_wide);
    FINE(again, tl_hf_load(again, folder, &back)); /* rounded nowhere */
    assert_int_equal(back.llama.dtype, TL_F64);
    FINE(again, tl_hf_save(again, temp_dir_file(folder, &dir, "narrow"), &back, .dtype = TL_BF16));
    FINE(narrow, tl_hf_load(narrow, folder, &back));
    assert_int_equal(back.llama.dtype, TL_BF16);
    same_hash(n, narrow);
    tl_free(t, m, wide, n, of_wide, again, narrow);
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
    /* Numbers that the header has no room for are llm.c's, said or not. */
    static const struct {
        int64_t hidden;
        double eps;
        tl_dtype dtype;
        tl_status s;
        const char *says;
    } of[] = {{48, 1e-5, TL_F32, TL_OK, ""},
              {47, 0, TL_F32, TL_EDOMAIN, "a hidden width of 47; llm.c's is four times"},
              {0, 1e-6, TL_F32, TL_EDOMAIN, "an eps of 1e-06"},
              {0, 0, TL_F16, TL_EDTYPE, "F32 or BF16, not F16"}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        tl_decoder_config c = small(TL_FAMILY_GPT2, 0, TL_F32);
        tl_model *m = tl_model_new(.seed = 3);
        c.gpt2.hidden = of[i].hidden;
        c.gpt2.eps = of[i].eps;
        logits_of(m, &c, want);
        tl_error_clear(m);
        if (tl_llmc_save(m, path, &c, .dtype = of[i].dtype) != of[i].s ||
            strstr(tl_error(m), of[i].says) == NULL)
            fail_msg("%zu: %s", i, tl_error(m));
        tl_error_clear(m);
        tl_free(m);
    }
}

/* 128 tokens need no padding. */
static void a_vocabulary_that_is_whole_is_not_padded(void **unused)
{
    tl_decoder_config c = small(TL_FAMILY_GPT2, 0, TL_F32);
    tl_model *m = tl_model_new(.seed = 3);
    tl_tape *t = tl_tape_new(m);
    char path[1024], *bytes;
    size_t n;
    (void)unused;
    c.gpt2.vocab = 128;
    temp_dir_file(path, &dir, "whole.bin");
    tl_decoder(t, m, &c, tl_zeros(t, TL_I64, TL_DIMS(1, 1)));
    FINE(m, tl_llmc_save(m, path, &c));
    assert_int_equal(tl_file_read(path, 1 << 20, &bytes, &n, NULL), TL_OK);
    assert_int_equal(n, 1024 + tl_model_parameters(m) * 4);
    tl_free_raw(bytes);
    tl_free(t, m);
}

/* A config of zeros is of no family. */
static void a_decoder_of_no_family_is_refused(void **unused)
{
    const tl_decoder_config c = {.stops = 0};
    tl_model *m = tl_model_new(.seed = 3);
    tl_tape *t = tl_tape_new(m);
    (void)unused;
    assert_true(tl_is_none(tl_decoder(t, m, &c, tl_zeros(t, TL_I64, TL_DIMS(1, 1)))));
    assert_int_equal(tl_error_status(t), TL_EDOMAIN);
    assert_non_null(strstr(tl_error(t), "tl_decoder: the config's family is 0"));
    tl_error_clear(t);
    assert_int_equal(tl_decoder_cache(m, &c, 1, 4).n, 0);
    assert_non_null(strstr(tl_error(m), "tl_decoder_cache: the config's family is 0"));
    tl_error_clear(m);
    tl_decoder_config deep = small(TL_FAMILY_GPT2, 0, TL_F32);
    deep.gpt2.layers = INT64_C(1) << 32;
    assert_true(tl_is_none(tl_decoder(t, m, &deep, tl_zeros(t, TL_I64, TL_DIMS(1, 1)))));
    assert_non_null(strstr(tl_error(t), "layers is 4294967296; 2147483647 is the most"));
    tl_error_clear(t);
    tl_free(t, m);
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

/* By its header: no more than that is read of a file that it does not fit. */
static void a_header_is_judged_before_the_rest_is_read(void **unused)
{
    static const struct {
        int32_t magic, version;
        const char *says;
    } head[] = {{7, 3, "begins with 7"},
                {20240326, 4, "version 4"},
                {20240326, 3, "33554432 bytes; 2 layers"},
                {20240520, 2, "version 2"},
                {20240520, 1, "says 16 tokens; its 33554432 bytes"}};
    char path[1024];
    (void)unused;
    temp_dir_file(path, &dir, "large.bin");
    for (size_t i = 0; i < sizeof head / sizeof *head; i++) {
        const int32_t h[] = {head[i].magic, head[i].version, 16, VOCAB, 2, 3, 12, 128};
        unsigned char bytes[32];
        for (int k = 0; k < 32; k++)
            bytes[k] = (unsigned char)((uint32_t)h[k / 4] >> 8 * (k % 4));
        tl_model *m = tl_model_new(.seed = 1);
        tl_decoder_config c;
        FILE *f = fopen(path, "wb");
        assert_int_equal(fwrite(bytes, 1, 32, f), 32);
        fclose(f);
        assert_int_equal(truncate(path, 1 << 25), 0); /* a hole */
        (void)tl_alloc_peak(true);
        if (i < 3)
            assert_int_equal(tl_llmc_load(m, path, &c), TL_EFORMAT);
        else
            assert_true(tl_is_none(tl_llmc_tokens_load(m, path)));
        assert_int_equal(tl_error_status(m), TL_EFORMAT);
        assert_non_null(strstr(tl_error(m), head[i].says));
        assert_true(tl_alloc_peak(false) < 1 << 16);
        tl_free(m);
    }
}

/* A header alone that claims more layers than any file of its size can hold. */
static void layers_that_cannot_be_there_take_no_memory(void **unused)
{
    const int32_t h[] = {20240326, 3, 16, VOCAB, 4096, 3, 12, 128};
    unsigned char bytes[1024] = {0};
    char path[1024];
    tl_model *m = tl_model_new(.seed = 1);
    tl_decoder_config c;
    (void)unused;
    for (int k = 0; k < 32; k++)
        bytes[k] = (unsigned char)((uint32_t)h[k / 4] >> 8 * (k % 4));
    FILE *f = fopen(temp_dir_file(path, &dir, "header.bin"), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, sizeof bytes, f), sizeof bytes);
    fclose(f);
    (void)tl_alloc_peak(true);
    assert_int_equal(tl_llmc_load(m, path, &c), TL_EFORMAT);
    assert_non_null(strstr(tl_error(m), "4096 layers of 1884 numbers each; 1024 bytes cannot"));
    assert_true(tl_alloc_peak(false) < 1 << 14);
    tl_free(m);
}

/* A config that allows millions of positions costs what is used of them, and changes no bit. */
static void positions_that_nobody_uses_take_no_memory(void **unused)
{
    static double few[B * S * VOCAB], many[B * S * VOCAB];
    tl_decoder_config c = small(TL_FAMILY_LLAMA, 1, TL_F32);
    tl_model *m = tl_model_new(.seed = 3), *n = tl_model_new(.seed = 3);
    (void)unused;
    logits_of(m, &c, few);
    c.llama.max_positions = 1 << 24;
    (void)tl_alloc_peak(true);
    logits_of(n, &c, many);
    assert_true(tl_alloc_peak(false) < 1 << 21);
    assert_memory_equal(few, many, sizeof few);
    /* more than the first table has */
    enum { LONG = 4200 };
    c.llama.layers = 1;
    int64_t *ids = calloc(LONG, sizeof *ids);
    float *z[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        c.llama.max_positions = i == 0 ? LONG : 1 << 24;
        tl_tape *t = tl_tape_new(m);
        tl_mode_push(t, TL_NO_GRAD);
        z[i] = calloc((size_t)LONG * VOCAB, sizeof(float));
        FINE(t, tl_keep(t, tl_decoder(t, m, &c, tl_data(t, ids, TL_I64, TL_DIMS(1, LONG))), z[i],
                        (size_t)LONG * VOCAB * sizeof(float)));
        tl_free(t);
    }
    assert_memory_equal(z[0], z[1], (size_t)LONG * VOCAB * sizeof(float));
    free(z[0]);
    free(z[1]);
    free(ids);
    tl_free(m, n);
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
        {"hidden_size", "null", TL_EFORMAT, "\"hidden_size\" is null; a number"},
        {"hidden_size", "\"24\"", TL_EFORMAT, "\"hidden_size\" is a string; a number"},
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
        {"num_hidden_layers", "4096", TL_EFORMAT, "4096 layers of 4656 numbers each"},
        {"rope_scaling", "\"llama3\"", TL_EFORMAT, "\"rope_scaling\" is a string; an object"},
        {"rope_scaling", "[]", TL_EFORMAT, "\"rope_scaling\" is an array"},
        {"rope_parameters", "true", TL_EFORMAT, "\"rope_parameters\" is a boolean"},
        {"rope_parameters", "null", TL_OK, ""},
        {"tie_word_embeddings", "\"true\"", TL_EFORMAT, "is a string; a boolean is needed"},
        {"tie_word_embeddings", "1", TL_EFORMAT, "is a number; a boolean is needed"},
        {"tie_word_embeddings", "null", TL_OK, ""},
        {"eos_token_id", "\"x\"", TL_EFORMAT, "\"eos_token_id\" is or holds a string"},
        {"eos_token_id", "1.5", TL_EFORMAT, "a fraction"},
        {"eos_token_id", "{}", TL_EFORMAT, "an object"},
        {"eos_token_id", "[1, null]", TL_EFORMAT, "null"},
        {"eos_token_id", "[1.5, 2]", TL_EFORMAT, "a fraction"},
        {"eos_token_id", "-7", TL_EDOMAIN, "has -7"},
        {"eos_token_id", "[2, 99999999999]", TL_EDOMAIN, "has 99999999999"},
        {"eos_token_id", "-1", TL_OK, ""}, /* none */
        {"eos_token_id", "50256", TL_OK, ""},
        {"model_type", "5", TL_EDOMAIN, "\"model_type\" is a number;"},
        {"eos_token_id", "null", TL_OK, ""},
        {"eos_token_id", "[1, 2, 3, 4, 5, 6, 7, 8, 9]", TL_EDOMAIN, "9 of \"eos_token_id\""},
        {"eos_token_id", "[1, 2, 3, 4, 5, 6, 7, 8]", TL_OK, ""},
        {"tie_word_embeddings", "true", TL_ENAME, "'lm_head.weight' is not the embedding"},
        {"is_causal", "false", TL_EDOMAIN, "\"is_causal\" is false"},
        {"is_causal", "true", TL_OK, ""},
        {"rope_scaling", "{\"type\": \"linear\", \"factor\": 2, \"rope_theta\": 7}", TL_EDOMAIN,
         "\"rope_theta\" and that of its rotary scaling say"},
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
        assert_true(temp_file_write(folder, "config.json", now, strlen(now)));
        (void)tl_alloc_peak(true);
        tl_status s = tl_hf_load(n, folder, &back);
        if (s != TL_OK) /* the tensors and the names of their layers, whatever is claimed */
            assert_true(tl_alloc_peak(false) < 1 << 18);
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
        assert_true(temp_file_write(folder, "config.json", text, cut));
        assert_int_equal(tl_hf_load(o, folder, &back), TL_EFORMAT);
        assert_true((strstr(tl_error(o), "not valid JSON: it is empty") != NULL) == (cut == 0));
        tl_error_clear(o);
        assert_int_equal(tl_hf_load(o, "", &back), TL_EIO); /* not /config.json */
        assert_string_equal(tl_error(o), "\"\" names no folder");
        tl_free(o);
    }
    /* An output that is the embedding may be there, and is not needed. */
    const tl_array e = tl_model_named(m, "embed.weight").array;
    FINE(m,
         tl_write(m, tl_model_find(m, "output.proj.weight"), e.data, VOCAB * 24 * sizeof(float)));
    FINE(m, tl_hf_save(m, folder, &c));
    json_t *tied = json_loadb(text, bytes, 0, NULL);
    json_object_set_new(tied, "tie_word_embeddings", json_true());
    char *now = json_dumps(tied, 0);
    assert_true(temp_file_write(folder, "config.json", now, strlen(now)));
    FINE(n, tl_hf_load(n, folder, &back));
    assert_true(back.llama.tied);
    free(now);
    /* Nor is there one that says a thing twice, in two ways. */
    static const char *const twice[] = {
        "\"rope_parameters\" and \"rope_scaling\" say different",
        "\"original_max_position_embeddings\" and that of its rotary"};
    for (int i = 0; i < 2; i++) {
        tl_model *o = tl_model_new(.seed = 4);
        json_object_set_new(tied, i == 0 ? "rope_parameters" : "original_max_position_embeddings",
                            i == 0 ? json_pack("{ss sf}", "rope_type", "linear", "factor", 2.)
                                   : json_integer(8));
        json_object_set_new(tied, "rope_scaling", json_loads(LLAMA3 "16}", 0, NULL));
        now = json_dumps(tied, 0);
        assert_true(temp_file_write(folder, "config.json", now, strlen(now)));
        assert_int_equal(tl_hf_load(o, folder, &back), TL_EDOMAIN);
        assert_non_null(strstr(tl_error(o), twice[i]));
        json_object_del(tied, "rope_parameters");
        free(now);
        tl_free(o);
    }
    /* The older name of the type says the same. */
    tl_model *o = tl_model_new(.seed = 4);
    json_object_del(tied, "original_max_position_embeddings");
    json_object_set_new(tied, "rope_parameters",
                        json_pack("{ss sf}", "rope_type", "linear", "factor", 2.));
    json_object_set_new(tied, "rope_scaling", json_pack("{ss sf}", "type", "linear", "factor", 2.));
    now = json_dumps(tied, 0);
    assert_true(temp_file_write(folder, "config.json", now, strlen(now)));
    FINE(o, tl_hf_load(o, folder, &back));
    assert_true(back.llama.scaling.factor == 2);
    free(now);
    json_decref(tied);
    tl_free_raw(text);
    tl_free(m, n, o);
}

/* Where transformers has two names for a number, or obeys what our decoder cannot. */
static void lies_in_a_gpt2_config_are_told(void **unused)
{
    static const struct {
        const char *key, *value, *says; /* NULL: it is fine */
    } lie[] = {{"num_hidden_layers", "7", "\"num_hidden_layers\" differs from \"n_layer\""},
               {"num_attention_heads", "1", "\"num_attention_heads\" differs"},
               {"hidden_size", "null", "\"hidden_size\" differs"},
               {"max_position_embeddings", "5", "\"max_position_embeddings\" differs"},
               {"num_hidden_layers", "2", NULL},
               {"is_causal", "false", "\"is_causal\" is false"}};
    tl_decoder_config c = small(TL_FAMILY_GPT2, 0, TL_F32), back;
    static double logits[B * S * VOCAB];
    tl_model *m = tl_model_new(.seed = 3);
    char folder[1024], path[1100], *text;
    size_t bytes;
    (void)unused;
    c.gpt2.layers = 2;
    temp_dir_file(folder, &dir, "lies2");
    logits_of(m, &c, logits);
    FINE(m, tl_hf_save(m, folder, &c));
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_int_equal(tl_file_read(path, 1 << 20, &text, &bytes, NULL), TL_OK);
    for (size_t i = 0; i < sizeof lie / sizeof *lie; i++) {
        tl_model *n = tl_model_new(.seed = 4);
        json_t *j = json_loadb(text, bytes, 0, NULL);
        json_object_set_new(j, lie[i].key, json_loads(lie[i].value, JSON_DECODE_ANY, NULL));
        char *now = json_dumps(j, 0);
        assert_true(temp_file_write(folder, "config.json", now, strlen(now)));
        const tl_status s = tl_hf_load(n, folder, &back);
        if (s != (lie[i].says == NULL ? TL_OK : TL_EDOMAIN) ||
            (lie[i].says != NULL && strstr(tl_error(n), lie[i].says) == NULL))
            fail_msg("%s %s: %s", lie[i].key, lie[i].value, tl_error(n));
        free(now);
        json_decref(j);
        tl_free(n);
    }
    tl_free_raw(text);
    tl_free(m);
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

/* Nor a config that says less than the model has, or what no reader takes. */
static void a_config_of_another_model_is_not_saved(void **unused)
{
    static double logits[B * S * VOCAB];
    tl_decoder_config c = small(TL_FAMILY_LLAMA, 1, TL_F32), odd[6];
    const char *const says[] = {"'layers.1.",
                                "token -5 ends a text",
                                "token 1099511627776",
                                "0.5 original positions",
                                "'output.proj.weight'",
                                "by factor 8, low 4, high 1, original 8192"};
    tl_model *m = tl_model_new(.seed = 3);
    char path[1024];
    (void)unused;
    temp_dir_file(path, &dir, "other");
    c.llama.tied = false;
    c.llama.layers = 2;
    logits_of(m, &c, logits);
    for (int i = 0; i < 6; i++)
        odd[i] = c;
    odd[0].llama.layers = 1;
    odd[1].stops = odd[2].stops = 1;
    odd[1].stop[0] = -5;
    odd[2].stop[0] = INT64_C(1) << 40;
    odd[3].llama.scaling = (tl_rotary_scaling){2, .01, .02, .5};
    odd[4].llama.tied = true;
    odd[5].llama.scaling = (tl_rotary_scaling){8, 4, 1, 8192};
    for (int i = 0; i < 6; i++) {
        tl_hf_save(m, path, &odd[i]);
        if (strstr(tl_error(m), says[i]) == NULL)
            fail_msg("%d: %s", i, tl_error(m));
        tl_error_clear(m);
        assert_int_equal(access(path, F_OK), -1);
    }
    assert_int_equal(tl_hf_save(m, path, &c, .shard_bytes = -1), TL_EDOMAIN);
    tl_error_clear(m);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(i == 0   ? tl_llmc_save(m, path, &c, .shard_bytes = 5000)
                         : i == 1 ? tl_llmc_load(m, path, &c, .shard_bytes = 5000)
                                  : tl_hf_load(m, path, &c, .shard_bytes = 5000),
                         TL_EDOMAIN);
        assert_non_null(strstr(tl_error(m), ".shard_bytes is 5000; only tl_hf_save writes shards"));
        tl_error_clear(m);
    }
    FINE(m, tl_hf_save(m, path, &c));
    tl_free(m);
}

static int files_in(const char *folder)
{
    int n = 0;
    DIR *d = opendir(folder);
    assert_non_null(d);
    while (readdir(d) != NULL)
        n++;
    closedir(d);
    return n;
}

/* The folder has that model, and so many entries. */
static void whole(tl_model *want, const char *folder, int entries)
{
    tl_decoder_config c;
    tl_model *m = tl_model_new(.seed = 5);
    FINE(m, tl_hf_load(m, folder, &c));
    same_hash(m, want);
    assert_int_equal(files_in(folder), entries);
    tl_free(m);
}

/* A folder of links, as a cache keeps models: they stay, and what they show is replaced. */
static void a_save_follows_links(void **unused)
{
    static double logits[B * S * VOCAB];
    static const char *const name[] = {"config.json", "model.safetensors"};
    tl_decoder_config c = small(TL_FAMILY_LLAMA, 1, TL_F32);
    tl_model *old = tl_model_new(.seed = 3), *new = tl_model_new(.seed = 4);
    char folder[1024], path[2048], blob[2][2048];
    struct stat st;
    (void)unused;
    logits_of(old, &c, logits);
    logits_of(new, &c, logits);
    temp_dir_file(folder, &dir, "links");
    FINE(old, tl_hf_save(old, folder, &c));
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, name[i]);
        snprintf(blob[i], sizeof blob[i], "%s.%s", folder, name[i]);
        assert_true(rename(path, blob[i]) == 0 && symlink(blob[i], path) == 0);
    }
    FINE(new, tl_hf_save(new, folder, &c));
    whole(new, folder, 4);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, name[i]);
        assert_true(lstat(path, &st) == 0 && S_ISLNK(st.st_mode));
    }
    /* A link to what the new model lacks goes; the file it shows may be another folder's, too. */
    FINE(old, tl_hf_save(old, folder, &c, .shard_bytes = 9000));
    assert_true(lstat(path, &st) != 0);
    assert_true(lstat(blob[1], &st) == 0 && st.st_size > 0);
    tl_free(old, new);
}

/* These files have learned positions: a GPT-2 of rotary ones would come back as another model. */
static void rotary_positions_are_not_saved_as_learned(void **unused)
{
    static double logits[B * S * VOCAB];
    tl_decoder_config c = small(TL_FAMILY_GPT2, 0, TL_F32);
    tl_model *m = tl_model_new(.seed = 3);
    char path[1024];
    (void)unused;
    logits_of(m, &c, logits); /* makes learned ones, which the model keeps */
    c.gpt2.pairing = TL_ROTARY_HALF;
    temp_dir_file(path, &dir, "rotary");
    assert_int_equal(tl_hf_save(m, path, &c), TL_EDOMAIN);
    assert_non_null(strstr(tl_error(m), "rotary positions"));
    tl_error_clear(m);
    assert_int_equal(tl_llmc_save(m, path, &c), TL_EDOMAIN);
    tl_error_clear(m);
    assert_true(access(path, F_OK) != 0);
    tl_free(m);
}

/* Whatever keeps a save from ending - a folder in the way of one of its files, a disk that takes no
 * more, no memory - the old model is there, whole, and nothing else. */
/* An application's allocator for jansson: free() does not take its blocks. The n-th is refused. */
static long refused_block;
static void *block_of_its_own(size_t n)
{
    char *p = refused_block > 0 && --refused_block == 0 ? NULL : malloc(n + 16);
    return p == NULL ? NULL : p + 16;
}
static void free_own_block(void *p)
{
    if (p != NULL)
        free((char *)p - 16);
}

/* Whichever block jansson is refused, config.json is whole, and read whole or not at all. */
static void a_config_is_whole_whatever_json_lacks(void **unused)
{
    tl_decoder_config c = small(TL_FAMILY_LLAMA, 3, TL_F32), back;
    tl_model *m = tl_model_new(.seed = 3);
    static double logits[B * S * VOCAB];
    char folder[1024], path[1100], *want, *text;
    size_t bytes, n;
    int refusals = 0;
    (void)unused;
    json_set_alloc_funcs(block_of_its_own, free_own_block);
    temp_dir_file(folder, &dir, "refused");
    snprintf(path, sizeof path, "%s/config.json", folder);
    logits_of(m, &c, logits);
    FINE(m, tl_hf_save(m, folder, &c));
    FINE(m, tl_hf_load(m, folder, &back));
    assert_int_equal(tl_file_read(path, 1 << 20, &want, &bytes, NULL), TL_OK);
    for (long k = 1;; k += 6) {
        refused_block = k;
        const tl_status s = tl_hf_save(m, folder, &c);
        const bool all = refused_block > 0;
        refused_block = 0;
        assert_true(s == TL_ENOMEM || s == TL_OK);
        refusals += s == TL_ENOMEM;
        tl_error_clear(m);
        assert_int_equal(tl_file_read(path, 1 << 20, &text, &n, NULL), TL_OK);
        if (n != bytes || memcmp(text, want, n) != 0)
            fail_msg("block %ld: %s, and config.json is\n%.*s", k, tl_status_name(s), (int)n, text);
        tl_free_raw(text);
        if (all)
            break;
    }
    json_set_alloc_funcs(malloc, free);
    tl_free_raw(want);
    tl_free(m);
    assert_true(refusals > 50);
}

static void a_save_that_fails_leaves_the_old_model(void **unused)
{
    static double logits[B * S * VOCAB];
    static const char *const in_the_way[] = {"model-00002-of-%05d.safetensors", "config.json",
                                             "model.safetensors.index.json", "model.safetensors"};
    tl_decoder_config c = small(TL_FAMILY_LLAMA, 1, TL_F32), back;
    tl_model *old = tl_model_new(.seed = 3), *new = tl_model_new(.seed = 4);
    char folder[1024], path[2048], keep[2048], name[64];
    (void)unused;
    logits_of(old, &c, logits);
    logits_of(new, &c, logits);
    temp_dir_file(folder, &dir, "half");
    snprintf(keep, sizeof keep, "%s.keep", folder);
    for (int64_t bytes = 0; bytes <= 4000; bytes += 4000) {
        FINE(old, tl_hf_save(old, folder, &c, .shard_bytes = bytes));
        const int before = files_in(folder), shards = before - 4; /* . .. config index */
        for (int i = 0; i < 4; i++) {
            snprintf(name, sizeof name, in_the_way[i], shards);
            snprintf(path, sizeof path, "%s/%s", folder, name);
            if (access(path, F_OK) != 0)
                continue;
            assert_true(rename(path, keep) == 0 && mkdir(path, 0777) == 0);
            assert_int_equal(tl_hf_save(new, folder, &c, .shard_bytes = bytes), TL_EIO);
            assert_non_null(strstr(tl_error(new), name));
            assert_true(rmdir(path) == 0 && rename(keep, path) == 0);
            whole(old, folder, before);
        }
        struct rlimit had, limit;
        void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
        assert_int_equal(getrlimit(RLIMIT_FSIZE, &had), 0);
        for (rlim_t most = 100; most < 10000; most += 700) {
            limit = (struct rlimit){most, had.rlim_max};
            assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
            tl_status s = tl_hf_save(new, folder, &c, .shard_bytes = bytes);
            assert_int_equal(setrlimit(RLIMIT_FSIZE, &had), 0);
            if (s == TL_OK)
                FINE(old, tl_hf_save(old, folder, &c, .shard_bytes = bytes));
            else
                assert_int_equal(s, TL_EIO);
            tl_error(new);
            whole(old, folder, before);
        }
        signal(SIGXFSZ, handler);
        tl_status s = TL_ENOMEM;
        for (int64_t n = 1; s != TL_OK; n++) {
            tl_alloc_fail_after(n);
            s = tl_hf_save(new, folder, &c, .shard_bytes = bytes);
            tl_alloc_fail_after(0);
            assert_true(s == TL_OK || s == TL_ENOMEM);
            tl_error(new);
            if (s != TL_OK)
                whole(old, folder, before);
        }
        whole(new, folder, before);
    }
    snprintf(path, sizeof path, "%s/config.json", folder); /* as one that is killed leaves it */
    assert_int_equal(unlink(path), 0);
    assert_int_equal(tl_hf_load(old, folder, &back), TL_EIO);
    assert_non_null(strstr(tl_error(old), "config.json"));
    tl_free(old, new);
}

/* A save of which one rename fails is as if it had not been; one of which the flush of the folder
 * behind a file fails is all there. What else is in the folder stays. */
static void a_save_that_fails_in_between_shows_no_mixture(void **unused)
{
    static double logits[B * S * VOCAB];
    tl_decoder_config c = small(TL_FAMILY_LLAMA, 1, TL_F32);
    tl_model *old = tl_model_new(.seed = 3), *new = tl_model_new(.seed = 4);
    char folder[1024], aside[1100], *mine;
    size_t n;
    (void)unused;
    logits_of(old, &c, logits);
    logits_of(new, &c, logits);
    temp_dir_file(folder, &dir, "between");
    snprintf(aside, sizeof aside, "%s/config.json.old", folder);
    for (int way = 0; way < 8; way++) {
        const int64_t had = way / 2 % 2 * 4000, bytes = way < 4 ? had : 4000 - had;
        const char what = way % 2 ? 'd' : 'r';
        tl_status s = TL_EIO;
        int failed = 0;
        for (int k = 1; s != TL_OK; k++) {
            FINE(old, tl_hf_save(old, folder, &c, .shard_bytes = had));
            assert_true(temp_file_write(folder, "config.json.old", "mine", 4));
            const int before = files_in(folder);
            file_fail_after(what, k);
            s = tl_hf_save(new, folder, &c, .shard_bytes = bytes);
            file_fail_after(what, 0);
            assert_true(s == TL_OK || s == TL_EIO);
            const char *said = tl_error(new);
            assert_int_equal(*said == '\0', s == TL_OK);
            if (what == 'd' || s == TL_OK) { /* in place */
                assert_true(s == TL_OK || strstr(said, "is written and in place") != NULL);
                whole(new, folder, had == bytes ? before : files_in(folder));
            } else { /* whichever could not be set aside or put in its place */
                whole(old, folder, before);
                failed++;
            }
            assert_int_equal(tl_file_read(aside, 99, &mine, &n, NULL), TL_OK);
            assert_string_equal(mine, "mine");
            tl_free_raw(mine);
        }
        assert_true(what == 'd' || failed >= 3); /* config.json away, and two into their places */
    }
    tl_free(old, new);
}

/* Who loads a folder waits for who is saving to it, and the other way round. */
static void saves_and_loads_take_turns(void **unused)
{
    tl_decoder_config c = small(TL_FAMILY_LLAMA, 1, TL_F32), back;
    tl_model *m = tl_model_new(.seed = 3), *n = tl_model_new(.seed = 4);
    static double logits[B * S * VOCAB];
    char folder[1024], done[1100];
    (void)unused;
    temp_dir_file(folder, &dir, "turns");
    logits_of(m, &c, logits);
    FINE(m, tl_hf_save(m, folder, &c));
    snprintf(done, sizeof done, "%s/done", folder);
    for (int saves = 0; saves < 2; saves++) {
        int locked[2];
        char byte = 0;
        assert_int_equal(pipe(locked), 0);
        const pid_t other = fork();
        if (other == 0) { /* it holds the folder for a while */
            const int lock = tl_folder_lock(folder, !saves);
            const bool told = lock >= 0 && write(locked[1], &byte, 1) == 1;
            usleep(300 * 1000);
            const bool made = told && temp_file_write(folder, "done", "", 0);
            tl_folder_unlock(lock);
            _exit(!made);
        }
        assert_int_equal(read(locked[0], &byte, 1), 1);
        if (saves)
            FINE(m, tl_hf_save(m, folder, &c));
        else
            FINE(n, tl_hf_load(n, folder, &back));
        assert_int_equal(access(done, F_OK), 0);
        assert_int_equal(unlink(done), 0);
        int status;
        assert_int_equal(waitpid(other, &status, 0), other);
        assert_int_equal(status, 0);
        close(locked[0]), close(locked[1]);
    }
    tl_free(m, n);
}

/* If not even config.json comes back its place is told. */
static void an_old_config_that_cannot_come_back_is_named(void **unused)
{
    static double logits[B * S * VOCAB];
    tl_decoder_config c = small(TL_FAMILY_LLAMA, 1, TL_F32);
    tl_model *m = tl_model_new(.seed = 3);
    char folder[1024];
    (void)unused;
    logits_of(m, &c, logits);
    temp_dir_file(folder, &dir, "lost");
    FINE(m, tl_hf_save(m, folder, &c));
    file_fail_after('R', 2); /* and all that follow */
    assert_int_equal(tl_hf_save(m, folder, &c), TL_EIO);
    file_fail_after('R', 0);
    assert_non_null(strstr(tl_error(m), "cannot be put back"));
    assert_non_null(strstr(tl_error(m), "config.json.old now"));
    tl_free(m);
}

/* Takes NAME.old back to NAME, each of which the message must name, and returns how many. */
static int put_back_by_hand(const char *folder, const char *said)
{
    int n = 0;
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        char from[2048], to[2048];
        const size_t length = strlen(e->d_name), stem = length - 4;
        if (length < 4 || strcmp(e->d_name + stem, ".old") != 0)
            continue;
        if (strstr(said, e->d_name) == NULL)
            fail_msg("%s is not named: %s", e->d_name, said);
        snprintf(from, sizeof from, "%s/%s", folder, e->d_name);
        snprintf(to, sizeof to, "%s/%.*s", folder, (int)stem, e->d_name);
        assert_int_equal(rename(from, to), 0);
        n++;
    }
    closedir(d);
    return n;
}

/* Files that cannot come back keep none but config.json from coming back, and all are named. */
static void an_old_file_that_cannot_come_back_keeps_no_other_away(void **unused)
{
    static double logits[B * S * VOCAB];
    tl_decoder_config c = small(TL_FAMILY_LLAMA, 1, TL_F32);
    tl_model *old = tl_model_new(.seed = 3), *new = tl_model_new(.seed = 4);
    char folder[1024], path[1100];
    int most = 0;
    (void)unused;
    logits_of(old, &c, logits);
    logits_of(new, &c, logits);
    temp_dir_file(folder, &dir, "some");
    snprintf(path, sizeof path, "%s/config.json", folder);
    FINE(old, tl_hf_save(old, folder, &c, .shard_bytes = 4000));
    const int before = files_in(folder);
    tl_status s = TL_EIO;
    for (int k = 1; s != TL_OK; k++) {
        file_fail_after('T', k);
        s = tl_hf_save(new, folder, &c, .shard_bytes = 4000);
        file_fail_after('T', 0);
        if (s == TL_OK)
            break;
        assert_int_equal(s, TL_EIO);
        const bool config = access(path, F_OK) == 0;
        const int lost = put_back_by_hand(folder, tl_error(new));
        assert_int_equal(config, lost == 0);
        most = lost > most ? lost : most;
        tl_error_clear(new);
        whole(old, folder, before);
    }
    assert_int_equal(most, 3); /* two that fail, and config.json */
    assert_true(before - 2 > most);
    tl_free(old, new);
}

/* A folder that is saved again with fewer shards, or with none, keeps none of the old ones; of
 * other files, whatever an index says of them, it keeps all. */
static void shards_of_an_earlier_save_go(void **unused)
{
    static double logits[B * S * VOCAB];
    static const int64_t bytes[] = {2500, 9000, 0, 9000, 2500, 9000};
    tl_decoder_config c = small(TL_FAMILY_LLAMA, 1, TL_F32);
    tl_model *m = tl_model_new(.seed = 3), *n = tl_model_new(.seed = 4);
    char folder[1024], path[1100];
    int files[6];
    (void)unused;
    logits_of(m, &c, logits);
    for (int i = 0; i < 6; i++) {
        temp_dir_file(folder, &dir, "alone");
        FINE(m, tl_hf_save(m, folder, &c, .shard_bytes = bytes[i]));
        files[i] = files_in(folder); /* . .. config.json and shards */
        snprintf(path, sizeof path, "rm -r '%.1000s'", folder);
        assert_int_equal(system(path), 0);
        temp_dir_file(folder, &dir, "again");
        FINE(m, tl_hf_save(m, folder, &c, .shard_bytes = bytes[i]));
        whole(m, folder, files[i]);
    }
    assert_true(files[0] > files[1] && files[1] > files[2] && files[2] == 4);
    assert_true(
        temp_file_write(folder, "model.safetensors.index.json",
                        "{\"weight_map\": {\"a\": \"mine.txt\", \"b\": 7, "
                        "\"c\": \"model-1-of-1.safetensors/../mine.txt\", \"d\": \"../alone\"}}",
                        98));
    assert_true(temp_file_write(folder, "mine.txt", "mine", 4));
    FINE(m, tl_hf_save(m, folder, &c));
    snprintf(path, sizeof path, "%s/mine.txt", folder);
    assert_int_equal(access(path, F_OK), 0);
    tl_free(m, n);
}

/* What a reader would prefer to the new shards cannot be removed: that is no success. */
static void an_older_whole_that_stays_is_an_error(void **unused)
{
    static double logits[B * S * VOCAB];
    tl_decoder_config c = small(TL_FAMILY_LLAMA, 1, TL_F32);
    tl_model *m = tl_model_new(.seed = 3);
    char folder[1024], path[1100];
    (void)unused;
    temp_dir_file(folder, &dir, "stays");
    logits_of(m, &c, logits);
    FINE(m, tl_hf_save(m, folder, &c, .shard_bytes = 9000));
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(tl_hf_save(m, folder, &c, .shard_bytes = 9000), TL_EIO);
    assert_non_null(strstr(tl_error(m), "model.safetensors: is there still"));
    assert_int_equal(rmdir(path), 0);
    tl_error_clear(m);
    tl_free(m);
}

/* A loader rounds to nearest, whatever the caller's direction is. */
static void numbers_are_rounded_as_anywhere(void **unused)
{
    static double logits[B * S * VOCAB];
    char folder[1024], hash[4][65];
    volatile double one = 1, sum;
    (void)unused;
    for (int k = 0; k < 2; k++) { /* as it is there, and transposed */
        tl_decoder_config c = small(k ? TL_FAMILY_GPT2 : TL_FAMILY_LLAMA, 1, TL_F64), back;
        tl_model *m = tl_model_new(.seed = 3);
        logits_of(m, &c, logits);
        FINE(m, tl_hf_save(m, temp_dir_file(folder, &dir, "wide"), &c));
        tl_free(m);
        for (int i = 0; i < 4; i++) {
            m = tl_model_new(.seed = 4);
            fesetround(i % 2 ? FE_UPWARD : FE_TONEAREST);
            FINE(m, tl_hf_load(m, folder, &back, .dtype = i < 2 ? TL_F32 : TL_BF16));
            sum = one + 1e-30;
            fesetround(FE_TONEAREST);
            assert_int_equal(sum > 1, i % 2);
            assert_int_equal(tl_model_sha256(m, hash[i]), TL_OK);
            tl_free(m);
        }
        assert_string_equal(hash[0], hash[1]);
        assert_string_equal(hash[2], hash[3]);
    }
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
    assert_int_equal(tl_tokenizer_encode(k, text, N, false, NULL, 5, &err), -1);
    assert_string_equal(err.message, "tl_tokenizer_encode: ids is NULL");
    tl_tokenizer_close(k);
}

/* Sets what lies at a path of keys, which may be numbers in arrays, or, without a value, takes it
 * away. */
static void put(json_t *j, const char *path, const char *value)
{
    char copy[128], *rest = NULL;
    snprintf(copy, sizeof copy, "%s", path);
    char *key = strtok_r(copy, "/", &rest), *next = strtok_r(NULL, "/", &rest);
    for (; next != NULL; key = next, next = strtok_r(NULL, "/", &rest))
        j = json_is_array(j) ? json_array_get(j, (size_t)atoi(key)) : json_object_get(j, key);
    assert_non_null(j);
    if (value == NULL)
        assert_int_equal(json_object_del(j, key), 0);
    else if (json_is_array(j))
        json_array_set_new(j, (size_t)atoi(key), json_loads(value, JSON_DECODE_ANY, NULL));
    else
        json_object_set_new(j, key, json_loads(value, JSON_DECODE_ANY, NULL));
}

/* What a tokenizer.json asks for is done or refused, whatever kind of value asks for it. */
static void what_a_tokenizer_may_not_ask_for(void **unused)
{
#define TEMPLATE "post_processor/processors/1"
#define TOKEN "{\"SpecialToken\": {\"id\": \"<|begin|>\", \"type_id\": 0}}"
#define PIECE(id) "{\"Sequence\": {\"id\": \"" id "\", \"type_id\": 0}}"
    static const struct {
        const char *path, *value;
        tl_status status; /* TL_OK: it is fine */
        const char *says;
    } other[] = {
        {"truncation", "null", TL_OK, ""},
        {"truncation", NULL, TL_OK, ""},
        {"added_tokens/0/lstrip", "null", TL_OK, ""},
        {"model/dropout", "0.0", TL_OK, ""},
        {"model/end_of_word_suffix", "\"\"", TL_OK, ""},
        {TEMPLATE "/single", "[" PIECE("A") ", " TOKEN "]", TL_OK, ""},
        {TEMPLATE "/special_tokens/<|begin|>/ids", "[\"5\"]", TL_EFORMAT,
         "'<|begin|>' is no whole"},
        {TEMPLATE "/special_tokens/<|begin|>/ids", "[5.5]", TL_EFORMAT, "'<|begin|>' is no whole"},
        {TEMPLATE "/special_tokens/<|begin|>/ids", "5", TL_EFORMAT, "no ids of '<|begin|>'"},
        {TEMPLATE "/special_tokens/<|begin|>/ids", "[-1]", TL_EFORMAT, "token -1 is none of"},
        {TEMPLATE "/special_tokens/<|begin|>", NULL, TL_EFORMAT, "no ids of '<|begin|>'"},
        {TEMPLATE "/special_tokens", NULL, TL_EFORMAT, "no ids of '<|begin|>'"},
        {TEMPLATE "/single", NULL, TL_EFORMAT, "no array \"single\""},
        {TEMPLATE "/single", "\"$A\"", TL_EFORMAT, "no array \"single\""},
        {TEMPLATE "/single", "[]", TL_EDOMAIN, "leaves the text out"},
        {TEMPLATE "/single", "[" TOKEN "]", TL_EDOMAIN, "leaves the text out"},
        {TEMPLATE "/single", "[" PIECE("A") ", " PIECE("A") "]", TL_EDOMAIN, "one text"},
        {TEMPLATE "/single/1", PIECE("B"), TL_EDOMAIN, "one text"},
        {TEMPLATE "/single/0", "{\"Junk\": 1}", TL_EDOMAIN, "one text"},
        {TEMPLATE "/single/0", "\"$A\"", TL_EDOMAIN, "one text"},
        {TEMPLATE "/single/0/SpecialToken/id", "7", TL_EFORMAT, "no ids of ''"},
        {"post_processor/processors", "{}", TL_EFORMAT, "no array of processors"},
        {"post_processor/processors/0",
         "{\"type\": \"TemplateProcessing\", \"single\": [" TOKEN
         ", " PIECE("A") "], \"special_tokens\": {\"<|begin|>\": {\"ids\": [5]}}}",
         TL_EDOMAIN, "two templates"},
        {"post_processor/processors/0",
         "{\"type\": \"TemplateProcessing\", \"single\": [" PIECE("A") "]}", TL_EDOMAIN,
         "two templates"},
        {"decoder", "null", TL_OK, ""},
        {"decoder", "{\"type\": \"WordPiece\"}", TL_EDOMAIN, "its decoder is not ByteLevel"},
        {"decoder", "{\"type\": \"ByteLevel\"}", TL_OK, ""},
        {"truncation", "{\"max_length\": 2}", TL_OK, ""}, /* the caller's */
        {"padding", "{\"strategy\": \"BatchLongest\"}", TL_OK, ""},
        {"normalizer", "\"NFC\"", TL_EDOMAIN, "normalizer"},
        {"normalizer", "{\"type\": \"NFC\"}", TL_EDOMAIN, "normalizer"},
        {"model/dropout", "\"0.5\"", TL_EFORMAT, "\"dropout\" is a string; a number"},
        {"model/dropout", "0.5", TL_EDOMAIN, "dropout"},
        {"model/byte_fallback", "1", TL_EFORMAT, "\"byte_fallback\" is a number; a boolean"},
        {"model/byte_fallback", "true", TL_EDOMAIN, "byte_fallback"},
        {"model/ignore_merges", "\"yes\"", TL_EFORMAT, "\"ignore_merges\" is a string"},
        {"model/end_of_word_suffix", "1", TL_EFORMAT, "\"end_of_word_suffix\" is a number"},
        {"model/continuing_subword_prefix", "\"##\"", TL_EDOMAIN, "parts of words"},
        {"added_tokens", "\"x\"", TL_EFORMAT, "\"added_tokens\" is a string; an array"},
        {"added_tokens/0/lstrip", "1", TL_EFORMAT, "\"lstrip\" is a number"},
        {"added_tokens/0/rstrip", "true", TL_EDOMAIN, "token 0 has \"rstrip\""},
        {"added_tokens/0/single_word", "\"no\"", TL_EFORMAT, "\"single_word\" is a string"},
        {"added_tokens/0/normalized", "0", TL_EFORMAT, "\"normalized\" is a number"},
        {"pre_tokenizer/pretokenizers/0/invert", "1", TL_EFORMAT, "\"invert\" is a number"},
        {"pre_tokenizer/pretokenizers/1/use_regex", "\"no\"", TL_EFORMAT, "\"use_regex\""},
        {"pre_tokenizer/pretokenizers/1/add_prefix_space", "1", TL_EFORMAT, "\"add_prefix_space\""},
        {"pre_tokenizer/pretokenizers/1/add_prefix_space", "true", TL_EDOMAIN, "add_prefix_space"},
        {"pre_tokenizer/pretokenizers/1/type", "\"Metaspace\"", TL_EDOMAIN, "not ByteLevel"},
        {"pre_tokenizer/pretokenizers/1/use_regex", NULL, TL_EDOMAIN, "by another pattern"},
        {"pre_tokenizer/pretokenizers/0/type", "\"Digits\"", TL_EDOMAIN, "by another pattern"},
        {"pre_tokenizer/pretokenizers/0/behavior", "\"Removed\"", TL_EDOMAIN, "another pattern"},
        {"pre_tokenizer/pretokenizers/0/invert", "true", TL_EDOMAIN, "by another pattern"},
        {"pre_tokenizer/pretokenizers/0/pattern/Regex", "\" +\"", TL_EDOMAIN, "another pattern"},
        {"pre_tokenizer", "{\"type\": \"ByteLevel\", \"use_regex\": false}", TL_EDOMAIN,
         "by another pattern"},
        {"pre_tokenizer", "{\"type\": \"ByteLevel\"}", TL_OK, ""},
        {"post_processor", "{\"type\": \"RobertaProcessing\"}", TL_EDOMAIN, "of another type"},
        {"post_processor", "null", TL_OK, ""},
        {"model/type", "\"WordPiece\"", TL_EDOMAIN, "its model is of another type"},
        {"model/type", NULL, TL_OK, ""},
        {"model/vocab", "[]", TL_EFORMAT, "the model has no vocab, or no merges"},
        {"model/merges", NULL, TL_EFORMAT, "the model has no vocab, or no merges"},
        {"model/vocab/Q", NULL, TL_EDOMAIN, "has no token for the byte 81"},
        {"model/merges", "{}", TL_EFORMAT, "the model has no vocab, or no merges"},
    };
    (void)unused;
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        json_t *j = json_load_file(TL_ROOT "/tests/corpus/llama3.tokenizer.json", 0, NULL);
        assert_non_null(j);
        put(j, other[i].path, other[i].value);
        char *text = json_dumps(j, 0);
        tl_tokenizer *k;
        tl_err err = {.status = TL_OK};
        tl_tokenizer_open_memory(&k, text, strlen(text), "it", &err);
        if (err.status != other[i].status || strstr(err.message, other[i].says) == NULL)
            fail_msg("%s as %s is status %d: '%s'", other[i].path, other[i].value, (int)err.status,
                     err.message);
        tl_tokenizer_close(k);
        free(text);
        json_decref(j);
    }
    /* A template's tokens stand on their sides of the text. */
    static const struct {
        const char *single;
        int64_t n, want[5];
    } side[] = {{"[" PIECE("A") ", " TOKEN "]", 2, {0, 401}},
                {"[" TOKEN ", " PIECE("A") ", " TOKEN ", " TOKEN "]", 4, {401, 0, 401, 401}}};
    for (int i = 0; i < 2; i++) {
        json_t *j = json_load_file(TL_ROOT "/tests/corpus/llama3.tokenizer.json", 0, NULL);
        put(j, TEMPLATE "/single", side[i].single);
        char *text = json_dumps(j, 0);
        tl_tokenizer *k;
        int64_t ids[5];
        assert_int_equal(tl_tokenizer_open_memory(&k, text, strlen(text), "it", NULL), TL_OK);
        assert_int_equal(tl_tokenizer_encode(k, "!", 1, true, ids, 5, NULL), side[i].n);
        assert_memory_equal(ids, side[i].want, (size_t)side[i].n * sizeof *ids);
        tl_tokenizer_close(k);
        free(text);
        json_decref(j);
    }
#undef TEMPLATE
#undef TOKEN
#undef PIECE
}

/* ---- the program generate ---- */

static char out[1 << 16];
static size_t n_out;
static int writes; /* how many the program made of it */

/* Runs it with the words up to the first NULL: to out, what it writes, stderr as well. */
#define GENERATE(status, ...) generate(status, (const char *[]){__VA_ARGS__, NULL})
static void generate(int status, const char *const *word)
{
    const char *argv[64] = {"sh", "-c", "exec $TL_RUN " TL_BUILD "/generate \"$@\"", "generate"};
    int n = 4, ends[2], ended;
    while ((argv[n++] = *word++) != NULL)
        assert_true(n < 64);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0); /* reads are the writes */
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 1);
        dup2(ends[1], 2);
        close(ends[0]);
        close(ends[1]);
        execv("/bin/sh", (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    close(ends[1]);
    ssize_t got;
    for (n_out = 0, writes = 0; (got = read(ends[0], out + n_out, sizeof out - 1 - n_out)) > 0;
         writes++)
        n_out += (size_t)got;
    out[n_out] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(child, &ended, 0), child);
    if (!WIFEXITED(ended) || WEXITSTATUS(ended) != status)
        fail_msg("%s %s: %s", argv[4], argv[5], out);
}

/* A model at random that can write the tokens of tests/corpus/llama3.tokenizer.json. */
#define TOKENIZER TL_ROOT "/tests/corpus/llama3.tokenizer.json"
static void save_writer(char path[1024], bool folder, int64_t vocab)
{
    tl_decoder_config c = small(folder ? TL_FAMILY_LLAMA : TL_FAMILY_GPT2, 1, TL_F32);
    int64_t one = 0;
    tl_model *m = tl_model_new(.seed = 3);
    tl_tape *t = tl_tape_new(m);
    c.llama.vocab = c.gpt2.vocab = vocab;
    c.gpt2.max_positions = 1024;
    tl_mode_push(t, TL_NO_GRAD);
    tl_decoder(t, m, &c, tl_data(t, &one, TL_I64, TL_DIMS(1, 1)));
    temp_dir_file(path, &dir, folder ? "folder" : "gpt2.bin");
    FINE(m, folder ? tl_hf_save(m, path, &c) : tl_llmc_save(m, path, &c));
    tl_free(t, m);
}

/* Each step's logits are those of the whole forward pass (--check ends with 1 if not), and a text
 * is the same alone and in a batch. */
static void a_text_is_the_same_alone_and_in_a_batch(void **unused)
{
    static const char *const prompt[] = {
        "The quick",
        "'s, then",
        "나는 유리를 먹을 수 있어요",
    };
    static const char *const way[][4] = {{"--temperature", "0", "--top-k", "0"},
                                         {"--top-k", "5", "--seed", "3"},
                                         {"--top-p", "0.7", "--stop", "ox"}};
    char path[1024], alone[4096];
    (void)unused;
    for (int k = 0; k < 6; k++) {
        const char *const *w = way[k / 2];
        size_t n = 0;
        save_writer(path, k % 2, 410);
        for (int i = 0; i < 3; i++, n += n_out) {
            GENERATE(0, path, "--check", "--tokens", "12", "--tokenizer", TOKENIZER, w[0], w[1],
                     w[2], w[3], prompt[i]);
            assert_true(n_out > 1 && n + n_out < sizeof alone);
            memcpy(alone + n, out, n_out);
        }
        GENERATE(0, path, "--check", "--tokens", "12", "--tokenizer", TOKENIZER, w[0], w[1], w[2],
                 w[3], prompt[0], prompt[1], prompt[2]);
        if (n_out != n || memcmp(out, alone, n) != 0)
            fail_msg("alone: %.*s\nin a batch: %s", (int)n, alone, out);
    }
}

enum { WRITTEN = 900 };
#define SEED "15" /* of a text without the byte 0, which no word of a command can have */

/* What --temperature 2 writes after "The quick": ids, where the bytes of each end, and these. */
static void written(const char *path, const tl_tokenizer *k, size_t end[WRITTEN], char *text)
{
    int64_t ids[16];
    char prompt[256] = "", *at = out, *behind;
    tl_err err = {.status = TL_OK};
    int64_t n = tl_tokenizer_encode(k, "The quick", 9, true, ids, 16, &err);
    for (int64_t i = 0; i < n; i++)
        snprintf(prompt + strlen(prompt), 16, "%d ", (int)ids[i]);
    GENERATE(0, path, "--tokens", "900", "--temperature", "2", "--seed", SEED,
             prompt);                      /* in numbers */
    assert_int_equal(writes, WRITTEN + 1); /* each as it comes */
    for (int i = 0; i < WRITTEN; i++, at = behind) {
        size_t more, from = i > 0 ? end[i - 1] : 0;
        const char *bytes = tl_tokenizer_bytes(k, strtoll(at, &behind, 10), &more);
        assert_non_null(bytes);
        memcpy(text + from, bytes, more);
        end[i] = from + more;
    }
    assert_string_equal(at, " \n");
}

/* Any piece of a text, short or long, wherever tokens meet in it, ends the text with the token in
 * which it is whole for the first time. */
static void a_text_ends_with_the_stop(void **unused)
{
    static char text[WRITTEN * 64], piece[4096];
    static size_t end[WRITTEN];
    char path[1024];
    tl_tokenizer *k;
    (void)unused;
    assert_int_equal(tl_tokenizer_open(&k, TOKENIZER, NULL), TL_OK);
    save_writer(path, false, tl_tokenizer_size(k));
    written(path, k, end, text);
    const size_t all = end[WRITTEN - 1];
    assert_true(all > 1500 && strlen(text) == all);
    for (size_t i = 0; i < 14; i++) { /* some of them round byte 1024 */
        static const size_t lengths[] = {1, 2, 3, 5, 17, 130, 1100};
        size_t length = lengths[i % 7], from = i < 7 || i == 13 ? i * 30 : 1024 - length / 2;
        memcpy(piece, text + from, length);
        piece[length] = '\0';
        size_t whole = length; /* bytes of the text up to the first */
        int last = 0;
        while (memcmp(text + whole - length, piece, length) != 0)
            whole++;
        while (end[last] < whole)
            last++;
        GENERATE(0, path, "--tokenizer", TOKENIZER, "--tokens", "900", "--temperature", "2",
                 "--seed", SEED, "--stop", piece, "The quick");
        if (n_out != end[last] + 1 || memcmp(out, text, n_out - 1) != 0)
            fail_msg("--stop of %zu bytes from byte %zu on: ends after %zu bytes, not %zu", length,
                     from, n_out - 1, end[last]);
        assert_int_equal(writes, last + 2); /* and the line's end */
    }
    tl_tokenizer_close(k);
}

static void what_generate_refuses(void **unused)
{
    char path[1024];
    (void)unused;
    save_writer(path, false, 410);
#define REFUSED(status, says, ...)                  \
    do {                                            \
        GENERATE(status, __VA_ARGS__);              \
        if (strstr(out, "generate: " says) == NULL) \
            fail_msg("not '%s': %s", says, out);    \
    } while (0)
    REFUSED(2, "usage: ", path);
    REFUSED(2, "unknown flag '--stops'", path, "--stops", "x", "1");
    REFUSED(2, "--stop needs a value", path, "1", "--stop");
    REFUSED(2, "--stop 'x': a text and a tokenizer are needed", path, "--stop", "x", "1");
    REFUSED(2, "--stop '': a text", path, "--tokenizer", TOKENIZER, "--stop", "", "x");
    REFUSED(2, "--top-k 1.5: a whole number from 0 to 1000000000", path, "--top-k", "1.5", "1");
    REFUSED(2, "--top-p 1.5: a number from 0 to 1 is", path, "--top-p", "1.5", "1");
    REFUSED(2, "--tokens -1: a whole number from 0 to 4096", path, "--tokens", "-1", "1");
    REFUSED(2, "--seed nan: a whole", path, "--seed", "nan", "1");
    REFUSED(1, "prompt 2: ' x 3' is not a token number", path, "1", "2 x 3");
    REFUSED(1, "prompt 1: token 2 is 99999999999999999999; the model has 0 to", path,
            "1 99999999999999999999 2");
    REFUSED(1, "prompt 1 has 0 tokens; 1 to 4095", path, " ");
    REFUSED(1, "prompt 1: token 2 is 410; the model has 0 to 409", path, "1 410");
    REFUSED(1, "prompt 1: token 1 is -1", path, "-1");
    REFUSED(1, "", "/nowhere/model.bin", "1");
    REFUSED(1, TL_ROOT "/tests/corpus/adamw.safetensors: a single .safetensors file",
            TL_ROOT "/tests/corpus/adamw.safetensors", "1");
    assert_non_null(strstr(out, "tl_hf_save"));
    char pipe[1024];
    assert_int_equal(mkfifo(temp_dir_file(pipe, &dir, "pipe"), 0600), 0);
    REFUSED(1, "", pipe, "1"); /* and not waited for */
    save_writer(path, true, 410);
    REFUSED(1, "prompt 2 has 65 tokens; the model has 64 positions", path, "1",
            "1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 "
            "1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1");
}

/* Behind -- all words are prompts. */
static void a_prompt_may_begin_with_hyphens(void **unused)
{
    char path[1024];
    (void)unused;
    save_writer(path, false, 410);
    GENERATE(0, path, "--tokens", "3", "--tokenizer", TOKENIZER, "--", "--stop", "--help");
    GENERATE(0, path, "--tokenizer", TOKENIZER, "--tokens", "3", "a", "--", "--");
    REFUSED(2, "usage: ", path, "--");
}

/* What cannot be written is no success, in the help neither. */
static void a_full_disk_is_told(void **unused)
{
    char path[1024], command[4096];
    (void)unused;
    save_writer(path, false, 410);
    for (int i = 0; i < 3; i++) {
        snprintf(command, sizeof command,
                 "$TL_RUN " TL_BUILD "/generate %s 2>&1 >/dev/full | "
                 "grep -q 'generate: cannot write the output: No space left'",
                 i == 0 ? "--help" : "");
        if (i > 0)
            snprintf(command, sizeof command,
                     "$TL_RUN " TL_BUILD "/generate '%s' --tokens 2 1 %s 2>&1 >/dev/full | "
                     "grep -q 'generate: cannot write the output: No space left'",
                     path, i == 1 ? "" : "2");
        assert_int_equal(system(command), 0);
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
    TEST(masks_and_angles_in_a_file_are_left_out),
    TEST(interleaved_pairs_are_saved_as_halves),
    TEST(dtypes_may_differ_in_a_folder),
    TEST(checkpoints_of_llmc_come_back),
    TEST(a_vocabulary_that_is_whole_is_not_padded),
    TEST(a_decoder_of_no_family_is_refused),
    TEST(tokens_of_llmc_come_back),
    TEST(tokens_are_those_that_are_written_down),
    TEST(any_bytes_come_back),
    TEST(what_a_tokenizer_may_not_ask_for),
    TEST(a_text_is_the_same_alone_and_in_a_batch),
    TEST(a_text_ends_with_the_stop),
    TEST(what_generate_refuses),
    TEST(a_prompt_may_begin_with_hyphens),
    TEST(a_full_disk_is_told),
    TEST(tokens_are_those_of_tokenizers),
    TEST(a_header_is_judged_before_the_rest_is_read),
    TEST(layers_that_cannot_be_there_take_no_memory),
    TEST(positions_that_nobody_uses_take_no_memory),
    TEST(lies_in_a_config_are_told),
    TEST(lies_in_a_gpt2_config_are_told),
    TEST(configs_that_no_file_can_hold_are_not_saved),
    TEST(a_save_follows_links),
    TEST(rotary_positions_are_not_saved_as_learned),
    TEST(a_config_of_another_model_is_not_saved),
    TEST(a_config_is_whole_whatever_json_lacks),
    TEST(a_save_that_fails_leaves_the_old_model),
    TEST(a_save_that_fails_in_between_shows_no_mixture),
    TEST(saves_and_loads_take_turns),
    TEST(an_old_config_that_cannot_come_back_is_named),
    TEST(an_old_file_that_cannot_come_back_keeps_no_other_away),
    TEST(shards_of_an_earlier_save_go),
    TEST(an_older_whole_that_stays_is_an_error),
    TEST(numbers_are_rounded_as_anywhere),
    TEST(logits_are_those_of_transformers),
};
const size_t tl_tests_models_count = sizeof tl_tests_models / sizeof *tl_tests_models;
