/* test_fingerprint.c: XXH3-128 against published answers, in pieces, and over arrays' canonical
 * bytes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tensor/files/hash.h"

enum { LONGEST = 40000 };

static unsigned char bytes[LONGEST];

/* The bytes that the authors of xxHash take for their answers. */
static int fill_bytes(void **state)
{
    uint64_t x = 2654435761u;
    (void)state;
    for (int i = 0; i < LONGEST; i++, x *= 11400714785074694797u)
        bytes[i] = (unsigned char)(x >> 56);
    return 0;
}

static const char *hex_of(char hex[33], const tl_fingerprint *f)
{
    unsigned char raw[TL_FINGERPRINT_BYTES];
    tl_fingerprint_so_far(f, raw);
    for (int i = 0; i < TL_FINGERPRINT_BYTES; i++)
        snprintf(hex + 2 * i, 3, "%02x", raw[i]);
    return hex;
}

/* Of n bytes, given in pieces, with the state anywhere in memory. */
static const char *hex_of_bytes(char hex[33], const void *p, size_t n, size_t piece)
{
    static unsigned char room[TL_FINGERPRINT_ROOM + 64];
    tl_fingerprint *f = tl_fingerprint_begin(room + piece % 64);
    for (size_t at = 0; at < n; at += piece)
        tl_fingerprint_feed(f, (const char *)p + at, n - at < piece ? n - at : piece);
    return hex_of(hex, f);
}

/* Published with xxHash (cli/xsum_sanity_check.c, seed 0): one of each way that lengths go. */
static void published_answers(void **state)
{
    static const struct {
        size_t n;
        const char *hex;
    } known[] = {
        {0, "99aa06d3014798d86001c324468d497f"},    {1, "a6cd5e9392000f6ac44bdff4074eecdb"},
        {6, "082afe0b8162d12a3e7039bdda43cfc6"},    {12, "6e3efd8fc7802b18061a192713f69ad9"},
        {24, "0ce966e4678d37611e7044d28b1b901d"},   {48, "a002ac4e5478227ef942219aed80f67b"},
        {81, "4952f58181ab00425e8bafb9f95fb803"},   {222, "337e09641b948717f1aebd597cec6b3a"},
        {403, "1b6de21e332dd73dcdeb804d65c6dea4"},  {512, "18d2d110dcc9bca1617e49599013cb6b"},
        {2048, "f736557fd47073a5dd59e2c3a5f038e0"}, {2240, "ccb134fbfa7ce49d6e73a90539cf2948"},
        {2367, "e89c0f6ff369b427cb37aeb9e5d361ed"},
    };
    char hex[33];
    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        for (size_t piece = 1; piece <= known[i].n + 1; piece += piece < 70 ? 1 : 61)
            assert_string_equal(hex_of_bytes(hex, bytes, known[i].n, piece), known[i].hex);
}

static void what_was_fed_may_be_fed_on(void **state)
{
    unsigned char room[TL_FINGERPRINT_ROOM];
    char got[33], want[33];
    tl_fingerprint *f = tl_fingerprint_begin(room);
    (void)state;
    for (size_t at = 0; at < LONGEST; at += 1000) {
        assert_string_equal(hex_of(got, f), hex_of_bytes(want, bytes, at, 16384));
        tl_fingerprint_feed(f, bytes + at, 1000);
    }
}

/* Little-endian, row-major, all NaNs as one; longer than a block of tensor/files/bytes.h. */
static void of_an_array(void **state)
{
    enum { ROWS = 90, COLUMNS = 101 };
    static float x[COLUMNS][ROWS];
    static unsigned char spelled[4 * ROWS * COLUMNS], *to = spelled;
    unsigned char room[TL_FINGERPRINT_ROOM], part[TL_FINGERPRINT_BYTES], one[TL_FINGERPRINT_BYTES];
    char got[33], want[33];
    (void)state;
    for (int i = 0; i < ROWS; i++)
        for (int k = 0; k < COLUMNS; k++) {
            uint32_t u = (uint32_t)(i * COLUMNS + k) * 2654435761u;
            bool nan = (u & 0x7fffffffu) > 0x7f800000u;
            memcpy(&x[k][i], &u, 4);
            for (int b = 0; b < 4; b++)
                *to++ = (unsigned char)((nan ? 0x7fc00000u : u) >> 8 * b);
        }
    tl_array a = tl_array_make(TL_F32, &TL_DIMS(ROWS, COLUMNS), x);
    a.stride[0] = 1;
    a.stride[1] = ROWS;
    tl_fingerprint *f = tl_fingerprint_begin(room);
    tl_fingerprint_feed(f, "before", 6);
    tl_fingerprint_feed_array(f, &a, part);
    tl_fingerprint_feed_array(f, &a, NULL);
    hex_of(got, f);
    f = tl_fingerprint_begin(room);
    tl_fingerprint_feed(f, spelled, sizeof spelled);
    tl_fingerprint_so_far(f, one);
    assert_memory_equal(part, one, sizeof one); /* the part knows nothing of what came before */
    f = tl_fingerprint_begin(room);
    tl_fingerprint_feed(f, "before", 6);
    for (int i = 0; i < 2; i++)
        tl_fingerprint_feed(f, spelled, sizeof spelled);
    assert_string_equal(got, hex_of(want, f));
}

const struct CMUnitTest tl_tests_fingerprint[] = {
    cmocka_unit_test_setup(published_answers, fill_bytes),
    cmocka_unit_test_setup(what_was_fed_may_be_fed_on, fill_bytes),
    cmocka_unit_test(of_an_array),
};
const size_t tl_tests_fingerprint_count = sizeof tl_tests_fingerprint /
                                          sizeof *tl_tests_fingerprint;
