/* test_safetensors_seal.c: files that hold the digest of themselves - no changed bit goes
 * unnoticed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tally.h>

#include "tensor/files/file.h"
#include "tensor/files/hash.h"
#include "tensor/files/safetensors.h"
#include "tensor/memory.h"
#include "tests/support/write_file.h"
#include "tests/temp_dir.h"

static temp_dir dir;
static char path[1024], *bytes;
static size_t n_bytes;

static int begin(void **unused)
{
    (void)unused;
    bytes = NULL;
    return temp_dir_make(&dir) && temp_dir_file(path, &dir, "sealed.safetensors") != NULL ? 0 : -1;
}

static int end(void **unused)
{
    (void)unused;
    tl_free_raw(bytes);
    temp_dir_remove(&dir);
    return 0;
}

static void read_back(void)
{
    tl_err err = {0};
    tl_free_raw(bytes);
    assert_int_equal(tl_file_read(path, 1 << 20, &bytes, &n_bytes, &err), TL_OK);
}

/* Two tensors - one with the name of the seal - and notes that spell the seal inside strings, one
 * of them in a key that comes before the seal's. */
static void write_sealed(void)
{
    static const float x[6] = {1, 2, 3, 4, 5, 6};
    static const int64_t y[2] = {7, 8};
    tl_st_entry e[2] = {{"w", tl_array_make(TL_F32, &TL_DIMS(2, 3), (void *)(uintptr_t)x)},
                        {TL_ST_SEAL, tl_array_make(TL_I64, &TL_DIMS(2), (void *)(uintptr_t)y)}};
    tl_st_meta meta[3] = {{TL_ST_SEAL, NULL},
                          {"note", "\"tally.sha256\":\"0\""},
                          {"a\"tally.sha256", "v"}};
    tl_err err = {0};
    if (tl_st_write(path, e, 2, meta, 3, &err) != TL_OK)
        fail_msg("%s", err.message);
    read_back();
}

static tl_status open_bytes(tl_err *err)
{
    tl_st_file *f;
    *err = (tl_err){0};
    tl_status s = tl_st_open_memory(&f, bytes, n_bytes, "sealed", err);
    assert_true((s == TL_OK) == (f != NULL));
    tl_st_close(f);
    return s;
}

/* The digits' place, found the long way: behind the last key of that name that has a string. */
static char *digits(void)
{
    static const char key[] = "\"tally.sha256\":\"";
    for (size_t i = 0; i + 80 < n_bytes; i++)
        if (memcmp(bytes + i, key, sizeof key - 1) == 0 && bytes[i - 1] != '\\')
            return bytes + i + sizeof key - 1;
    fail();
    return NULL;
}

static void the_seal_is_the_hash_of_the_file(void **unused)
{
    char claim[65] = "", hex[65];
    tl_sha256_ctx h;
    tl_err err;
    (void)unused;
    write_sealed();
    assert_int_equal(open_bytes(&err), TL_OK);
    memcpy(claim, digits(), 64);
    memset(digits(), '0', 64);
    tl_sha256_begin(&h, NULL);
    tl_sha256_feed(&h, bytes, n_bytes);
    tl_sha256_finish_hex(&h, hex, NULL);
    assert_string_equal(hex, claim);
    tl_st_file *f;
    assert_int_equal(tl_st_open(&f, path, NULL), TL_OK);
    assert_string_equal(tl_st_meta_get(f, TL_ST_SEAL), claim);
    tl_st_close(f);
}

static void every_flipped_bit_is_noticed(void **unused)
{
    tl_err err;
    (void)unused;
    write_sealed();
    size_t key = (size_t)(digits() - bytes) -
                 15; /* "tally.sha256":" - under another key it is no seal */
    for (size_t k = 0; k < n_bytes; k++)
        for (int bit = 0; bit < 8; bit++) {
            bytes[k] = (char)(bytes[k] ^ 1 << bit);
            if (open_bytes(&err) == TL_OK && (k < key || k >= key + 12))
                fail_msg("byte %zu, bit %d: not noticed", k, bit);
            bytes[k] = (char)(bytes[k] ^ 1 << bit);
        }
    assert_int_equal(open_bytes(&err), TL_OK);
}

static void both_digests_are_named(void **unused)
{
    char claim[65] = "", hex[65];
    tl_err err;
    tl_sha256_ctx h;
    (void)unused;
    write_sealed();
    memcpy(claim, digits(), 64);
    bytes[n_bytes - 3] ^= 1;
    assert_int_equal(open_bytes(&err), TL_EFORMAT);
    memset(digits(), '0', 64);
    tl_sha256_begin(&h, NULL);
    tl_sha256_feed(&h, bytes, n_bytes);
    tl_sha256_finish_hex(&h, hex, NULL);
    assert_non_null(strstr(err.message, "sealed: is damaged, or was changed"));
    assert_non_null(strstr(err.message, claim));
    assert_non_null(strstr(err.message, hex));
    digits()[5] = 'g';
    assert_int_equal(open_bytes(&err), TL_EFORMAT);
    assert_non_null(strstr(err.message, "is not a SHA-256"));
}

/* Without a seal, a note whose key ends like it is left as it is. */
static void a_key_that_ends_like_the_seal_is_none(void **unused)
{
    tl_st_file *f;
    (void)unused;
    assert_int_equal(tl_st_write(path, NULL, 0, &(tl_st_meta){"a\"tally.sha256", "v"}, 1, NULL),
                     TL_OK);
    assert_int_equal(tl_st_open(&f, path, NULL), TL_OK);
    assert_string_equal(tl_st_meta_get(f, "a\"tally.sha256"), "v");
    assert_null(tl_st_meta_get(f, TL_ST_SEAL));
    tl_st_close(f);
}

/* Written by others: with spaces, with an escape in the key, or without a seal. */
static void files_from_elsewhere_are_read(void **unused)
{
    static const char *const header[] = {"{\"x\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":["
                                         "0,8]},\"__metadata__\":{\"tally.sha256\" :\n \"%s\"}}",
                                         "{\"x\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":["
                                         "0,8]},\"__metadata__\":{\"tally\\u002esha256\":\"%s\"}}",
                                         "{\"x\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":["
                                         "0,8]},\"__metadata__\":{\"other\":\"%s\"}}"};
    static const char zeros[] = "0000000000000000000000000000000000000000000000000000000000000000";
    char file[512] = {0}, hex[65];
    tl_sha256_ctx h;
    tl_st_file *f;
    (void)unused;
    for (int i = 0; i < 3; i++) {
        int n = snprintf(file + 8, sizeof file - 8, header[i], zeros);
        file[0] = (char)(unsigned char)n;
        memcpy(file + 8 + n, "\1\2\3\4\5\6\7\10", 8);
        tl_sha256_begin(&h, NULL);
        tl_sha256_feed(&h, file, (size_t)n + 16);
        tl_sha256_finish_hex(&h, hex, NULL);
        snprintf(file + 8, sizeof file - 8, header[i], hex);
        memcpy(file + 8 + n, "\1\2\3\4\5\6\7\10", 8);
        assert_int_equal(tl_st_open_memory(&f, file, (size_t)n + 16, "theirs", NULL), TL_OK);
        tl_st_close(f);
        file[8 + n] = 2;
        assert_int_equal(tl_st_open_memory(&f, file, (size_t)n + 16, "theirs", NULL),
                         i < 2 ? TL_EFORMAT : TL_OK);
        tl_st_close(f);
    }
}

/* A model's weights and a checkpoint: damaged, they are refused and nothing has changed. */
static void a_damaged_checkpoint_is_refused(void **unused)
{
    char before[65], after[65];
    (void)unused;
    for (int checkpoint = 0; checkpoint < 2; checkpoint++) {
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_opt *o = tl_adamw_new(m, .lr = 0.1);
        tl_backward(t, tl_sum(t,
                              tl_square(t, tl_param(t, m, "w", TL_F32, TL_DIMS(5, 7),
                                                    TL_INIT_NORMAL, 1)),
                              TL_ALL, false));
        assert_int_equal(tl_step(o, t), TL_OK);
        assert_int_equal(checkpoint ? tl_checkpoint_save(m, o, path, NULL, 0) : tl_save(m, path),
                         TL_OK);
        read_back();
        bytes[n_bytes - 40] ^= 16;
        assert_int_equal(write_file(path, bytes, n_bytes, NULL), TL_OK);
        tl_model_sha256(m, before);
        assert_int_equal(checkpoint ? tl_checkpoint_load(m, o, path, NULL, NULL, 0)
                                    : tl_load(m, path),
                         TL_EFORMAT);
        assert_non_null(strstr(tl_error(m), "is damaged, or was changed"));
        tl_model_sha256(m, after);
        assert_string_equal(before, after);
        bytes[n_bytes - 40] ^= 16;
        assert_int_equal(write_file(path, bytes, n_bytes, NULL), TL_OK);
        assert_int_equal(checkpoint ? tl_checkpoint_load(m, o, path, NULL, NULL, 0)
                                    : tl_load(m, path),
                         TL_OK);
        tl_model_sha256(m, after); /* of the weights: the file's notes are no part of it */
        assert_string_equal(before, after);
        tl_free(o, t, m);
    }
}

extern const struct CMUnitTest tl_tests_safetensors_seal[];
extern const size_t tl_tests_safetensors_seal_count;

const struct CMUnitTest tl_tests_safetensors_seal[] = {
    cmocka_unit_test_setup_teardown(the_seal_is_the_hash_of_the_file, begin, end),
    cmocka_unit_test_setup_teardown(every_flipped_bit_is_noticed, begin, end),
    cmocka_unit_test_setup_teardown(both_digests_are_named, begin, end),
    cmocka_unit_test_setup_teardown(a_key_that_ends_like_the_seal_is_none, begin, end),
    cmocka_unit_test_setup_teardown(files_from_elsewhere_are_read, begin, end),
    cmocka_unit_test_setup_teardown(a_damaged_checkpoint_is_refused, begin, end),
};
const size_t tl_tests_safetensors_seal_count = sizeof tl_tests_safetensors_seal /
                                               sizeof *tl_tests_safetensors_seal;
