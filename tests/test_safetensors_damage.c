/* test_safetensors_damage.c: files that lie. Every one is refused with the reason,
 * or - where the damage happens to spell a valid file - opens well-formed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tensor/storage.h"
#include "tests/safetensors_check.h"
#include "tests/support/other_memory.h"
#include "tests/temp_dir.h"

enum { DATA_MAX = 64, FILE_MAX = 1 << 16 };

/* Length, header as given, data_bytes zero bytes; returns the size. */
static size_t spell(unsigned char *out, const char *header, size_t n, size_t data_bytes)
{
    memset(out, 0, 8);
    for (int i = 0; i < 4; i++)
        out[i] = (unsigned char)(n >> 8 * i);
    memcpy(out + 8, header, n);
    memset(out + 8 + n, 0, data_bytes);
    return 8 + n + data_bytes;
}

/* The bytes in a block of exactly their size, so that a sanitizer sees one read too many. */
static bool sound_exactly(const unsigned char *bytes, size_t n, tl_status *s)
{
    unsigned char *p = malloc(n ? n : 1);
    assert_non_null(p);
    memcpy(p, bytes, n);
    bool ok = safetensors_sound(p, n, s);
    free(p);
    return ok;
}

static const char *const small_header =
    "{\"__metadata__\":{\"k\":\"v\"},\"a\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,"
    "8]},"
    "\"b\":{\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[8,11]},"
    "\"c\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[11,19]}}  ";
enum { SMALL_DATA = 19 };

static void every_truncation_is_refused(void **state)
{
    (void)state;
    unsigned char file[512];
    tl_status s;
    size_t n = spell(file, small_header, strlen(small_header), SMALL_DATA);
    assert_true(sound_exactly(file, n, &s));
    assert_int_equal(s, TL_OK);
    for (size_t k = 0; k < n; k++) {
        assert_true(sound_exactly(file, k, &s));
        assert_int_equal(s, TL_EFORMAT);
    }
    file[n] = 0; /* and one byte more */
    assert_true(sound_exactly(file, n + 1, &s));
    assert_int_equal(s, TL_EFORMAT);
}

static void every_flipped_byte_is_refused_or_sound(void **state)
{
    (void)state;
    unsigned char file[512];
    int opened = 0;
    size_t n = spell(file, small_header, strlen(small_header), SMALL_DATA);
    for (size_t k = 0; k < n; k++)
        for (int x = 1; x < 256; x++) {
            tl_status s;
            file[k] ^= (unsigned char)x;
            assert_true(sound_exactly(file, n, &s));
            opened += s == TL_OK;
            file[k] ^= (unsigned char)x;
        }
    assert_true(opened > 16 * 255); /* at least every change to the numbers themselves */
}

static void refused(const char *header, size_t data_bytes, const char *reason)
{
    static unsigned char file[FILE_MAX];
    tl_err err = {0};
    tl_st_file *f;
    size_t n = spell(file, header, strlen(header), data_bytes);
    tl_status s = tl_st_open_memory(&f, file, n, "lie", &err);
    if (s != TL_EFORMAT || strstr(err.message, reason) == NULL ||
        strncmp(err.message, "lie: ", 5) != 0)
        fail_msg("%s\n  gave %s: %s\n  expected: %s", header, tl_status_name(s), err.message,
                 reason);
    assert_null(f);
}

/* A file of one tensor "x", its entry as given. */
static void refused_entry(const char *entry, size_t data_bytes, const char *reason)
{
    char header[2048];
    snprintf(header, sizeof header, "{\"x\":%s}", entry);
    refused(header, data_bytes, reason);
}
#define ENTRY(dtype, shape, offsets) \
    "{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void lengths_that_lie(void **state)
{
    (void)state;
    static const struct {
        uint64_t n;
        const char *reason;
    } cases[] = {
        {0, "does not start with '{'"},
        {9, "only 8 follow"},
        {16777216, "only 8 follow"},
        {16777217, "at most 16777216 are accepted, unless tl_st_header_limit says otherwise"},
        {100000000, "at most 16777216"},
        {100000001, "at most 100000000"},
        {UINT64_MAX, "18446744073709551615 bytes"},
        {1, "last byte"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        unsigned char file[16] = "________{}      ";
        tl_err err = {0};
        tl_st_file *f;
        for (int k = 0; k < 8; k++)
            file[k] = (unsigned char)(cases[i].n >> 8 * k);
        assert_int_equal(tl_st_open_memory(&f, file, sizeof file, "lie", &err), TL_EFORMAT);
        if (strstr(err.message, cases[i].reason) == NULL)
            fail_msg("%s; expected: %s", err.message, cases[i].reason);
    }
}

static void headers_that_are_not_json(void **state)
{
    (void)state;
    refused("[]", 0, "does not start with '{'");
    refused(" {}", 0, "does not start with '{'");
    refused("{}\n", 0, "0x0a");
    refused("{} x", 0, "0x78");
    refused("{}}", 0, "end of file expected");
    refused("{}{}", 0, "end of file expected");
    refused("{,}", 0, "not valid JSON");
#define NOTE(text) "{\"__metadata__\":{\"k\":\"" text "\"}}"
    refused(NOTE("\xff"), 0, "invalid UTF-8 (byte 22 of it)");
    refused(NOTE("\xed\xa0\x80"), 0, "invalid UTF-8");
    refused(NOTE("\\u0000"), 0, "\\u0000 is not allowed");
    refused(NOTE("\\ud834"), 0, "half a surrogate pair");
    refused(NOTE("\\ud834\\u0041"), 0, "half a surrogate pair");
    refused(NOTE("\\udd1e"), 0, "half a surrogate pair");
    refused(NOTE("\\x41"), 0, "invalid escape");
    refused(NOTE("\\u12g4"), 0, "invalid escape");
    refused(NOTE("\t"), 0, "control character");
    refused("{\"__metadata__\":{\"k\":\"v}}", 0, "a string without end");
    refused("{\"a\\u0000b\":1}", 0, "\\u0000 is not allowed");
    refused("{\"__metadata__\":{\"k\":\"v\",\"j\":\"\",\"k\":\"v\"}}", 0,
            "duplicate metadata \"k\"");
    refused("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "duplicate \"__metadata__\"");
    refused("{\"x\":" ENTRY("\"BOOL\"", "[0]", "[0,0]") ",\"y\":" ENTRY(
                "\"BOOL\"", "[0]", "[0,0]") ",\"x\":" ENTRY("\"BOOL\"", "[0]", "[0,0]") "}",
            0, "duplicate tensor \"x\"");
    refused("{\"__metadata__\":{\"k\":\"v\",}}", 0, "a string is expected");
    refused("{\"__metadata__\":{\"k\" \"v\"}}", 0, "':' is expected");
    refused("{\"__metadata__\":{\"k\":\"v\" \"j\":\"\"}}", 0, "',' or an end is expected");
    refused("{\"x\":" ENTRY("\"BOOL\",\"dtype\":\"BOOL\"", "[0]", "[0,0]") "}", 0, "duplicate");
    refused("{\"__metadata__\":[]}", 0, "not an object");
    refused("{\"__metadata__\":{\"k\":1}}", 0, "\"k\" is not a string");
    char *deep = malloc(60001);
    assert_non_null(deep);
    memset(deep, '[', 60000);
    memcpy(deep, "{\"x\":", 5);
    deep[59999] = '}';
    deep[60000] = '\0';
    refused(deep, 0, "its entry is not an object");
    free(deep);
}

static void entries_that_lie(void **state)
{
    (void)state;
    refused_entry("1", 0, "not an object");
    refused_entry("{}", 0, "\"dtype\" is missing");
    refused_entry(ENTRY("7", "[]", "[0,4]"), 4, "\"dtype\" is missing or not a string");
    refused_entry(ENTRY("\"F8_E4M3\"", "[4]", "[0,4]"), 4, "dtype \"F8_E4M3\" is not known");
    refused_entry(ENTRY("\"f32\"", "[1]", "[0,4]"), 4, "dtype \"f32\" is not known");
    refused_entry("{\"dtype\":\"F32\",\"data_offsets\":[0,4]}", 4, "\"shape\" is missing");
    refused_entry(ENTRY("\"F32\"", "{}", "[0,4]"), 4, "\"shape\" is missing or not a list");
    refused_entry(ENTRY("\"F32\"", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, "has 9 dims");
    refused_entry(ENTRY("\"F32\"", "[-1]", "[0,4]"), 4, "\"shape\"[0] is -1");
    refused_entry(ENTRY("\"F32\"", "[1,1.0]", "[0,4]"), 4, "\"shape\"[1] is not an integer");
    refused_entry(ENTRY("\"F32\"", "[\"1\"]", "[0,4]"), 4, "\"shape\"[0] is not an integer");
    refused_entry(ENTRY("\"F32\"", "[9223372036854775808]", "[0,4]"), 4,
                  "\"shape\"[0] is too large");
    refused_entry(ENTRY("\"F32\"", "[1e999]", "[0,4]"), 4, "\"shape\"[0] is not an integer");
    refused_entry(ENTRY("\"F32\"", "[9223372036854775807]", "[0,4]"), 4, "more bytes than");
    refused_entry(ENTRY("\"F32\"", "[4294967296,4294967296]", "[0,0]"), 0, "more bytes than");
    refused_entry(ENTRY("\"BOOL\"", "[0,9223372036854775807,3]", "[0,0]"), 0, "more bytes than");
    refused_entry("{\"dtype\":\"F32\",\"shape\":[1]}", 4, "\"data_offsets\" is missing");
    refused_entry(ENTRY("\"F32\"", "[1]", "[0]"), 4, "not a list of two");
    refused_entry(ENTRY("\"F32\"", "[1]", "[0,4,4]"), 4, "not a list of two");
    refused_entry(ENTRY("\"F32\"", "[01]", "[0,4]"), 4, "\"shape\"[0] is not an integer");
    refused_entry(ENTRY("\"F32\"", "[1,]", "[0,4]"), 4, "\"shape\"[1] is not an integer");
    refused_entry(ENTRY("\"F32\"", "[1 1]", "[0,4]"), 4, "',' or an end is expected");
    refused_entry(ENTRY("\"F32\"", "[1]", "[-4,0]"), 4, "\"data_offsets\"[0] is -4");
    refused_entry(ENTRY("\"F32\"", "[1]", "[0,4.0]"), 4, "\"data_offsets\"[1] is not an integer");
    refused_entry(ENTRY("\"F32\"", "[1]", "[4,0]"), 4, "bytes 4 to 0 do not lie in order");
    refused_entry(ENTRY("\"F32\"", "[1]", "[4,8]"), 4, "ends after 4 bytes of data");
    refused_entry(ENTRY("\"F32\"", "[1]", "[0,9223372036854775807]"), 4,
                  "ends after 4 bytes of data");
    refused_entry(ENTRY("\"F32\"", "[2]", "[0,4]"), 4,
                  "[2] of F32 takes 8 bytes, but 0 to 4 are 4");
    refused_entry(ENTRY("\"F32\"", "[1]", "[0,4],\"more\":1"), 4, "has a key \"more\"");
}

static void tensors_that_do_not_cover_the_data(void **state)
{
    (void)state;
#define TWO(a, b) "{\"p\":" ENTRY("\"BOOL\"", "[4]", a) ",\"q\":" ENTRY("\"BOOL\"", "[4]", b) "}"
    refused(TWO("[0,4]", "[2,6]"), 6, "tensor \"q\": begins at byte 2, but \"p\" reaches to 4");
    refused(TWO("[0,4]", "[0,4]"), 4, "tensor \"q\": begins at byte 0, but \"p\" reaches to 4");
    refused(TWO("[0,4]", "[5,9]"), 9, "begins at byte 5; bytes from 4 belong to no tensor");
    refused(TWO("[5,9]", "[1,5]"), 9, "begins at byte 1; bytes from 0 belong to no tensor");
    refused(TWO("[0,4]", "[4,8]"), 9, "end at byte 8 of 9");
    refused("{}", 1, "end at byte 0 of 1");
    refused("{\"p\":" ENTRY("\"BOOL\"", "[4]", "[0,4]") ",\"q\":" ENTRY("\"F64\"", "[0]",
                                                                        "[2,2]") "}",
            4, "begins at byte 2, but \"p\" reaches to 4");
    unsigned char file[256];
    tl_status s;
    const char *good = TWO("[4,8]", "[0,4]");
    size_t n = spell(file, good, strlen(good), 8);
    assert_true(safetensors_sound(file, n, &s) && s == TL_OK);
    file[n - 1] = 2;
    assert_true(safetensors_sound(file, n, &s) && s == TL_EFORMAT); /* a BOOL that is neither */
}

/* ---- headers that want memory ---- */

/* `first`, then `piece` again and again - %s in it: a number - up to about n bytes, then `last`. */
static char *long_header(const char *first, const char *piece, const char *last, size_t n)
{
    char *out = malloc(n + 1000), number[32];
    assert_non_null(out);
    size_t at = (size_t)sprintf(out, "%s", first);
    const char *hole = strstr(piece, "%s");
    size_t before = hole != NULL ? (size_t)(hole - piece) : strlen(piece);
    for (uint64_t i = 0; at + strlen(piece) + 32 < n; i++) {
        int digits = 0;
        for (uint64_t x = i; digits == 0 || x > 0; x /= 64) /* as short as can be */
            number[digits++] =
                "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"[x % 64];
        number[hole != NULL ? digits : 0] = '\0';
        at += (size_t)sprintf(out + at, "%.*s%s%s", (int)before, piece, number,
                              hole != NULL ? hole + 2 : "");
    }
    strcpy(out + at, last);
    return out;
}

/* Whatever the header, at most 20 bytes of memory for each of its bytes. */
static void a_header_takes_little_memory(void **state)
{
    enum { BYTES = 2000000 };
    static const struct {
        const char *first, *piece, *last;
        bool opens;
    } cases[] = {
        {"{", "{},", "}", false},
        {"{\"x\":[", "{},", "{}]}", false},
        {"{\"x\":[", "[],", "[]]}", false},
        {"{\"x\":", "[", "}", false},
        {"{\"x\":", "{\"\":", "}", false},
        {"{", "\"%s\":{},", "\"\":{}}", false},
        {"{", "\"%s\":0,", "\"\":0}", false},
        {"{\"x\":{", "\"%s\":[],", "\"\":[]}}", false},
        {"{\"x\":{\"shape\":[", "1,", "1]}}", false},
        {"{\"x\":{\"data_offsets\":[", "0,", "0]}}", false},
        {"{\"x\":{\"dtype\":\"", "\\u00e9", "\"}}", false},
        {"{\"x\":{\"dtype\":\"", "\\n", "\"}}", false},
        {"{\"__metadata__\":{", "\"%s\":\"\",", "\"\":\"\"}}", true},
        {"{\"__metadata__\":{", "\"\":\"\",", "\"\":\"\"}}", false},
        {"{\"__metadata__\":{\"", "\\ud834\\udd1e", "\":\"\"}}", true},
        {"{", "\"%s\":{\"dtype\":\"F64\",\"shape\":[0],\"data_offsets\":[0,0]},",
         "\"\":{\"dtype\":\"F64\",\"shape\":[0],\"data_offsets\":[0,0]}}", true},
        {"{", "\"\":{\"dtype\":\"F64\",\"shape\":[0],\"data_offsets\":[0,0]},",
         "\"\":{\"dtype\":\"F64\",\"shape\":[0],\"data_offsets\":[0,0]}}", false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *header = long_header(cases[i].first, cases[i].piece, cases[i].last, BYTES);
        size_t n = strlen(header);
        unsigned char *file = malloc(n + 8);
        assert_non_null(file);
        spell(file, header, n, 0);
        free(header);
        tl_st_file *f;
        tl_err err = {0};
        int64_t others = other_memory_blocks();
        (void)other_memory_peak();
        (void)tl_alloc_peak(true);
        tl_status s = tl_st_open_memory(&f, file, n + 8, "lie", &err);
        double each = (double)(tl_alloc_peak(false) + other_memory_peak()) / (double)n;
        tl_st_close(f);
        free(file);
        if (each > 20 || (s == TL_OK) != cases[i].opens || (s != TL_OK && s != TL_EFORMAT))
            fail_msg("%s%s...: %.1f bytes a byte; %s: %s", cases[i].first, cases[i].piece, each,
                     tl_status_name(s), err.message);
        assert_true(each > 1); /* it is counted at all */
        assert_int_equal(other_memory_blocks(), others);
    }
}

/* Neither read nor written, unless the limit is raised. */
static void long_headers_are_refused_unless_allowed(void **state)
{
    temp_dir dir;
    char path[1024];
    assert_true(temp_dir_make(&dir));
    temp_dir_file(path, &dir, "long");
    char *key = malloc((16 << 20) + 1);
    tl_st_file *f;
    tl_err err = {0};
    (void)state;
    assert_non_null(key);
    memset(key, 'k', 16 << 20);
    key[16 << 20] = '\0';
    tl_st_meta meta = {key, "v"};
    assert_int_equal(tl_st_header_limit(0), 16 << 20);
    assert_int_equal(tl_st_write(path, NULL, 0, &meta, 1, &err), TL_EDOMAIN);
    assert_non_null(strstr(err.message, "readers accept 16777216, unless tl_st_header_limit"));
    assert_int_equal(tl_st_header_limit((size_t)1 << 40), 16 << 20);
    assert_int_equal(tl_st_header_limit(17 << 20), TL_ST_HEADER_MAX);
    assert_int_equal(tl_st_write(path, NULL, 0, &meta, 1, NULL), TL_OK);
    assert_int_equal(tl_st_open(&f, path, NULL), TL_OK);
    assert_string_equal(tl_st_meta_get(f, key), "v");
    tl_st_close(f);
    assert_int_equal(tl_st_header_limit(16 << 20), 17 << 20);
    err.status = TL_OK;
    assert_int_equal(tl_st_open(&f, path, &err), TL_EFORMAT);
    assert_non_null(
        strstr(err.message, "at most 16777216 are accepted, unless tl_st_header_limit"));
    temp_dir_remove(&dir);
    free(key);
}

/* Pieces of headers put together and mutated; the seed is printed if one fails. */

static uint64_t next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = *state ^ *state >> 33;
    return x * 0xff51afd7ed558ccdu >> 16;
}

static const char *const names[] = {
    "a", "b", "c", "", "__metadata__", "a\\u0041", "\\ud834\\udd1e", "x\xc3\xa9"};
static const char *const dtypes[] = {"\"F32\"",  "\"F64\"", "\"BOOL\"", "\"I64\"",
                                     "\"BF16\"", "\"F16\"", "\"Q\"",    "1"};
static const char *const numbers[] = {"0",
                                      "1",
                                      "2",
                                      "4",
                                      "8",
                                      "16",
                                      "3",
                                      "64",
                                      "-1",
                                      "1e3",
                                      "9223372036854775807",
                                      "4294967296",
                                      "99999999999999999999",
                                      "null",
                                      "[[[[[[[[0]]]]]]]]",
                                      "\"8\""};
#define PICK(list, r) list[next(r) % (sizeof list / sizeof *list)]
/* Mostly honest numbers, so that many cases get past the first check. */
static const char *number(uint64_t *r) { return numbers[next(r) % (next(r) % 4 ? 8 : 16)]; }

static size_t make_header(char *out, size_t cap, uint64_t *r)
{
    size_t at = (size_t)snprintf(out, cap, "{");
    int n = (int)(next(r) % 5), offset = 0;
    for (int i = 0; i < n; i++) {
        int bytes = (int)(next(r) % 9);
        const char *name = next(r) % 3 ? names[i] : PICK(names, r);
        at += (size_t)snprintf(out + at, cap - at, "%s\"%s\":", i ? "," : "", name);
        if (strcmp(name, "__metadata__") == 0 && next(r) % 4)
            at += (size_t)snprintf(out + at, cap - at, "{\"k\":\"v\"}");
        else if (next(r) % 3) /* an honest entry */
            at += (size_t)snprintf(out + at, cap - at, ENTRY("\"BOOL\"", "[%d]", "[%d,%d]"), bytes,
                                   offset, offset + bytes);
        else
            at += (size_t)snprintf(out + at, cap - at, ENTRY("%s", "[%s,%s]", "[%s,%s]"),
                                   PICK(dtypes, r), number(r), number(r), number(r), number(r));
        offset += bytes;
    }
    at += (size_t)snprintf(out + at, cap - at, "}");
    while (at % 8 != 0 && at + 1 < cap)
        out[at++] = ' ';
    return at;
}

/* Copies a piece of the text over another place, or changes, drops or repeats bytes. */
static size_t mutate(char *text, size_t n, uint64_t *r)
{
    static const char likely[] = "{}[]\",:0123456789-+.eE \\u\0\xff";
    for (uint64_t k = next(r) % 4; k > 0 && n > 2; k--) {
        size_t from = next(r) % n, to = next(r) % n, len = next(r) % 20;
        len = len < n - from ? len : n - from;
        len = len < n - to ? len : n - to;
        switch (next(r) % 4) {
        case 0: memmove(text + to, text + from, len); break;
        case 1: text[to] = likely[next(r) % sizeof likely]; break;
        case 2:
            memmove(text + to, text + to + len, n - to - len);
            n -= len;
            break;
        default: text[to] = (char)next(r); break;
        }
    }
    return n;
}

static void structural_fuzz(void **state)
{
    (void)state;
    enum { ROUNDS = 20000 };
    const char *given = getenv("TL_SEED");
    uint64_t seed = given != NULL ? strtoull(given, NULL, 10) : 1;
    char header[2048];
    unsigned char file[2048 + 8 + DATA_MAX];
    int opened = 0;
    for (uint64_t i = 0; i < ROUNDS; i++) {
        uint64_t r = seed + i * 0x9e3779b97f4a7c15u;
        size_t n = make_header(header, sizeof header, &r);
        if (i % 2)
            n = mutate(header, n, &r);
        size_t total = spell(file, header, n, next(&r) % DATA_MAX);
        for (size_t want = 0; want < DATA_MAX; want++) { /* also with each amount of data */
            tl_status s;
            size_t size = i % 32 ? total : 8 + n + want;
            memset(file + 8 + n, 0, DATA_MAX);
            if (!sound_exactly(file, size, &s))
                fail_msg("TL_SEED=%llu, round %llu: %.*s", (unsigned long long)seed,
                         (unsigned long long)i, (int)n, header);
            opened += s == TL_OK;
            if (i % 32)
                break;
        }
    }
    assert_true(opened > ROUNDS / 50); /* the fuzz reaches past the parser */
}

const struct CMUnitTest tl_tests_safetensors_damage[] = {
    cmocka_unit_test(every_truncation_is_refused),
    cmocka_unit_test(every_flipped_byte_is_refused_or_sound),
    cmocka_unit_test(lengths_that_lie),
    cmocka_unit_test(headers_that_are_not_json),
    cmocka_unit_test(entries_that_lie),
    cmocka_unit_test(tensors_that_do_not_cover_the_data),
    cmocka_unit_test(a_header_takes_little_memory),
    cmocka_unit_test(long_headers_are_refused_unless_allowed),
    cmocka_unit_test(structural_fuzz),
};
const size_t tl_tests_safetensors_damage_count = sizeof tl_tests_safetensors_damage /
                                                 sizeof *tl_tests_safetensors_damage;
