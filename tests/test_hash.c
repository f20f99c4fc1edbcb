/* test_hash.c: SHA-256 against published answers, and the canonical bytes of
 * arrays against element-by-element spelling. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tensor/files/bytes.h"
#include "tensor/files/hash.h"

static void hash_bytes(char hex[TL_SHA256_HEX], const void *p, size_t n, size_t piece)
{
    tl_sha256_ctx ctx;
    assert_int_equal(tl_sha256_begin(&ctx, NULL), TL_OK);
    for (size_t at = 0; at < n; at += piece)
        tl_sha256_feed(&ctx, (const char *)p + at, n - at < piece ? n - at : piece);
    assert_int_equal(tl_sha256_finish_hex(&ctx, hex, NULL), TL_OK);
}

static void hash_of(char hex[TL_SHA256_HEX], const tl_array *a)
{
    tl_sha256_ctx ctx;
    assert_int_equal(tl_sha256_begin(&ctx, NULL), TL_OK);
    tl_hash_array(&ctx, a);
    assert_int_equal(tl_sha256_finish_hex(&ctx, hex, NULL), TL_OK);
}

/* FIPS 180-4 examples (NIST). */
static void sha256_known_answers(void **state)
{
    (void)state;
    char hex[TL_SHA256_HEX];
    hash_bytes(hex, "", 0, 1);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    hash_bytes(hex, "abc", 3, 2);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    hash_bytes(hex, "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56, 9);
    assert_string_equal(hex, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    static char a[1000000];
    memset(a, 'a', sizeof a);
    size_t pieces[] = {1000000, 63, 64, 65, 4097};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        hash_bytes(hex, a, sizeof a, pieces[i]);
        assert_string_equal(hex,
                            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    }
}

static void raw_digest_is_the_hex_digest(void **state)
{
    (void)state;
    tl_sha256_ctx ctx;
    unsigned char raw[TL_SHA256_BYTES];
    assert_int_equal(tl_sha256_begin(&ctx, NULL), TL_OK);
    tl_sha256_feed(&ctx, "abc", 3);
    assert_int_equal(tl_sha256_finish(&ctx, raw, NULL), TL_OK);
    assert_int_equal(raw[0], 0xba);
    assert_int_equal(raw[31], 0xad);
    assert_int_equal(tl_sha256_begin(&ctx, NULL), TL_OK);
    tl_sha256_drop(&ctx);
}

static void array_is_name_dims_and_bytes(void **state)
{
    (void)state;
    float x[2] = {1.0f, -2.0f};
    static const unsigned char spelled[] = {
        'F', '3', '2', 2, 0, 0, 0, 0, 0, 0, 0, 1,    0,    0, 0, 0, 0,    0,
        0,   2,   0,   0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0,
    };
    char want[TL_SHA256_HEX], got[TL_SHA256_HEX];
    tl_array a = tl_array_make(TL_F32, &TL_DIMS(1, 2), x);
    hash_bytes(want, spelled, sizeof spelled, 100);
    hash_of(got, &a);
    assert_string_equal(want, got);
}

static void strings_are_delimited(void **state)
{
    (void)state;
    const char *pairs[2][2] = {{"ab", "c"}, {"a", "bc"}};
    char hex[2][TL_SHA256_HEX];
    for (int i = 0; i < 2; i++) {
        tl_sha256_ctx ctx;
        assert_int_equal(tl_sha256_begin(&ctx, NULL), TL_OK);
        tl_hash_string(&ctx, pairs[i][0]);
        tl_hash_string(&ctx, pairs[i][1]);
        assert_int_equal(tl_sha256_finish_hex(&ctx, hex[i], NULL), TL_OK);
    }
    assert_string_not_equal(hex[0], hex[1]);
}

static void shape_and_dtype_count(void **state)
{
    (void)state;
    double zeros[12] = {0};
    char hex[6][TL_SHA256_HEX];
    tl_array a[6] = {
        tl_array_make(TL_F64, &TL_DIMS(6), zeros),    tl_array_make(TL_F64, &TL_DIMS(2, 3), zeros),
        tl_array_make(TL_F64, &TL_DIMS(3, 2), zeros), tl_array_make(TL_I64, &TL_DIMS(6), zeros),
        tl_array_make(TL_F32, &TL_DIMS(12), zeros),   tl_array_make(TL_F64, &TL_DIMS(0), NULL),
    };
    for (int i = 0; i < 6; i++)
        hash_of(hex[i], &a[i]);
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < i; j++)
            assert_string_not_equal(hex[i], hex[j]);
}

/* What tl_array_bytes should give, spelled one element at a time. */
static size_t bytes_naive(unsigned char *out, const tl_array *a)
{
    size_t size = tl_dtype_size(a->dtype), at = 0;
    for (int64_t i = 0; i < tl_array_count(a); i++)
        for (size_t b = 0; b < size; b++) {
            uint64_t u = 0;
            const void *p = tl_array_at(a, i);
            if (size == 8) {
                uint64_t v;
                memcpy(&v, p, 8);
                u = v;
            }
            if (size == 4) {
                uint32_t v;
                memcpy(&v, p, 4);
                u = v;
            }
            if (size == 2) {
                uint16_t v;
                memcpy(&v, p, 2);
                u = v;
            }
            if (size == 1) {
                uint8_t v;
                memcpy(&v, p, 1);
                u = v != 0;
            }
            if (a->dtype == TL_F64 && (u << 1) > 0xffe0000000000000u)
                u = 0x7ff8000000000000u;
            if (a->dtype == TL_F32 && (u & 0x7fffffff) > 0x7f800000)
                u = 0x7fc00000;
            if (a->dtype == TL_F16 && (u & 0x7fff) > 0x7c00)
                u = 0x7e00;
            if (a->dtype == TL_BF16 && (u & 0x7fff) > 0x7f80)
                u = 0x7fc0;
            out[at++] = (unsigned char)(u >> 8 * b);
        }
    return at;
}

typedef struct {
    unsigned char *p;
    size_t n, most;
} collected;

static tl_status collect(void *ctx, const void *bytes, size_t n)
{
    collected *c = ctx;
    memcpy(c->p + c->n, bytes, n);
    c->n += n;
    c->most = n > c->most ? n : c->most;
    return TL_OK;
}

static void check_bytes(const tl_array *a)
{
    size_t room = (size_t)tl_array_count(a) * tl_dtype_size(a->dtype) + 1;
    unsigned char *want = malloc(room);
    collected got = {.p = malloc(room)};
    assert_non_null(want);
    assert_non_null(got.p);
    size_t n = bytes_naive(want, a);
    assert_int_equal(tl_array_bytes(a, collect, &got), TL_OK);
    assert_int_equal(got.n, n);
    assert_true(got.most <= TL_BYTES_BLOCK);
    assert_memory_equal(got.p, want, n);
    free(want);
    free(got.p);
}

/* Every pattern of 16 bits; in 32 and 64 bits the edges of the NaNs, at every
 * place in a word and in its tail. */
static void nans_are_one(void **state)
{
    (void)state;
    static uint16_t all[65536];
    for (uint32_t i = 0; i < 65536; i++)
        all[i] = (uint16_t)i;
    tl_dtype halves[] = {TL_F16, TL_BF16};
    for (int d = 0; d < 2; d++) {
        tl_array a = tl_array_make(halves[d], &TL_DIMS(65536), all);
        check_bytes(&a);
        for (int64_t i = 0; i < 65536; i++) {
            tl_array one = tl_array_make(halves[d], &TL_DIMS(1), &all[i]);
            check_bytes(&one);
        }
    }
    static const uint32_t e32[] = {0,           0x80000000u, 0x7f7fffff,  0x7f800000,
                                   0x7f800001,  0x7fffffff,  0xff800000u, 0xff800001u,
                                   0xffffffffu, 0x007fffff,  0x807fffffu, 1};
    static const uint64_t e64[] = {0,
                                   0x8000000000000000u,
                                   0x7fefffffffffffffu,
                                   0x7ff0000000000000u,
                                   0x7ff0000000000001u,
                                   0x7fffffffffffffffu,
                                   0xfff0000000000000u,
                                   0xfff0000000000001u,
                                   0xffffffffffffffffu};
    for (int len = 1; len <= 9; len++)
        for (int at = 0; at < len; at++) {
            for (size_t e = 0; e < sizeof e32 / sizeof *e32; e++) {
                uint32_t x[9] = {0};
                x[at] = e32[e];
                tl_array a = tl_array_make(TL_F32, &TL_DIMS(len), x);
                check_bytes(&a);
            }
            for (size_t e = 0; e < sizeof e64 / sizeof *e64; e++) {
                uint64_t x[9] = {0};
                x[at] = e64[e];
                tl_array a = tl_array_make(TL_F64, &TL_DIMS(len), x);
                check_bytes(&a);
            }
        }
}

static void bools_are_one_bit(void **state)
{
    (void)state;
    unsigned char b[256];
    for (int i = 0; i < 256; i++)
        b[i] = (unsigned char)i;
    for (int n = 0; n < 256; n++) {
        tl_array a = tl_array_make(TL_BOOL, &TL_DIMS(n), b);
        check_bytes(&a);
    }
}

/* Lengths on either side of a block, with a NaN at each end. */
static void blocks_join(void **state)
{
    (void)state;
    int64_t lengths[] = {0, 1, 2, 4095, 4096, 4097, 8191, 8192, 8193, 20000};
    float *x = malloc(20000 * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        for (int64_t k = 0; k < lengths[i]; k++)
            x[k] = k == 0 || k == lengths[i] - 1 ? -NAN : (float)k;
        tl_array a = tl_array_make(TL_F32, &TL_DIMS(lengths[i]), x);
        check_bytes(&a);
    }
    free(x);
}

static void strides_do_not_show(void **state)
{
    (void)state;
    enum { N = 64 * 3 * 700 };
    int64_t *x = malloc(N * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < N; i++)
        x[i] = (int64_t)((uint64_t)i * 0x9e3779b97f4a7c15u);
    for (int d = TL_F64; d < TL_DTYPE_COUNT; d++) {
        tl_array whole = tl_array_make((tl_dtype)d, &TL_DIMS(64, 3, 700), x);
        tl_array a = whole;
        check_bytes(&a);
        a.dim[0] = 700, a.dim[2] = 64, a.stride[0] = 1, a.stride[2] = 2100; /* transposed */
        check_bytes(&a);
        a = whole;
        a.dim[2] = 350, a.stride[2] = 2; /* every other column */
        check_bytes(&a);
        a = whole;
        a.stride[1] = 0; /* expanded */
        check_bytes(&a);
        a = whole;
        a.data = tl_array_at(&whole, tl_array_count(&whole) - 1); /* backwards */
        for (int i = 0; i < 3; i++)
            a.stride[i] = -a.stride[i];
        check_bytes(&a);
        a = whole;
        a.ndim = 0;
        check_bytes(&a);
    }
    free(x);
}

static void swapping_reverses_elements(void **state)
{
    (void)state;
    unsigned char b[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    tl_bytes_swap(b, 4, 2);
    assert_memory_equal(b, "\2\1\4\3\6\5\10\7", 8);
    tl_bytes_swap(b, 2, 4);
    assert_memory_equal(b, "\3\4\1\2\7\10\5\6", 8);
    tl_bytes_swap(b, 1, 8);
    assert_memory_equal(b, "\6\5\10\7\2\1\4\3", 8);
    tl_bytes_swap(b, 8, 1);
    assert_memory_equal(b, "\6\5\10\7\2\1\4\3", 8);
    tl_bytes_put64(b, 0x0123456789abcdefu);
    assert_memory_equal(b, "\xef\xcd\xab\x89\x67\x45\x23\x01", 8);
    assert_true(tl_bytes_get64(b) == 0x0123456789abcdefu);
}

static tl_status refuse(void *ctx, const void *bytes, size_t n)
{
    (void)bytes;
    (void)n;
    ++*(int *)ctx;
    return TL_EIO;
}

static void a_refused_block_ends_the_walk(void **state)
{
    (void)state;
    static float x[20000];
    int calls = 0;
    tl_array a = tl_array_make(TL_F32, &TL_DIMS(20000), x);
    assert_int_equal(tl_array_bytes(&a, refuse, &calls), TL_EIO);
    assert_int_equal(calls, 1);
}

const struct CMUnitTest tl_tests_hash[] = {
    cmocka_unit_test(sha256_known_answers),
    cmocka_unit_test(raw_digest_is_the_hex_digest),
    cmocka_unit_test(array_is_name_dims_and_bytes),
    cmocka_unit_test(strings_are_delimited),
    cmocka_unit_test(shape_and_dtype_count),
    cmocka_unit_test(nans_are_one),
    cmocka_unit_test(bools_are_one_bit),
    cmocka_unit_test(blocks_join),
    cmocka_unit_test(strides_do_not_show),
    cmocka_unit_test(swapping_reverses_elements),
    cmocka_unit_test(a_refused_block_ends_the_walk),
};
const size_t tl_tests_hash_count = sizeof tl_tests_hash / sizeof *tl_tests_hash;
