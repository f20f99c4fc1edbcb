/* judges.c: readers of files, each called as its users do, and held to what it promises. */
#include "tests/support/judges.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <tally_extend.h>
#include <tally_models.h>
#include <unistd.h>
#define ZLIB_CONST
#include <zlib.h>

#include "autograd/log/read/read.h"
#include "tensor/storage.h"
#include "tensor/files/arrays.h"
#include "tensor/files/file.h"
#include "tensor/files/hash.h"
#include "tensor/files/safetensors_header.h"
#include "tensor/memory.h"
#include "tests/safetensors_check.h"
#include "tests/support/other_memory.h"
#include "tests/support/steps.h"
#include "tests/temp_dir.h"

enum { ROOM = JUDGED_MOST };

char judged[64] = "this file";

#define CHECK(ok, ...)                                      \
    do {                                                    \
        if (!(ok)) {                                        \
            print_error("%s repeats it at once: ", judged); \
            fail_msg(__VA_ARGS__);                          \
        }                                                   \
    } while (0)

static bool is_clean(const char *s)
{
    for (; *s != '\0'; s++)
        if (((unsigned char)*s < ' ' && *s != '\n') || *s == 0x7f)
            return false;
    return true;
}

/* b in memory of exactly n bytes: a sanitizer sees one read too many. For free. */
static unsigned char *exactly(const void *b, size_t n)
{
    unsigned char *p = malloc(n + (n == 0));
    assert_non_null(p);
    memcpy(p, b, n);
    return p;
}

static uint64_t number_at(const unsigned char *p, int size)
{
    return size == 0 ? 0 : number_at(p + 1, size - 1) << 8 | *p;
}

static void put_number(unsigned char *p, int size, uint64_t x)
{
    for (int k = 0; k < size; k++)
        p[k] = (unsigned char)(x >> 8 * k);
}

/* ---- safetensors ---- */

static bool numbers_of(const json_t *list, int64_t *v, size_t most, size_t *n)
{
    *n = json_array_size(list);
    if (!json_is_array(list) || *n > most)
        return false;
    for (size_t i = 0; i < *n; i++) {
        v[i] = json_integer_value(json_array_get(list, i));
        if (!json_is_integer(json_array_get(list, i)) || v[i] < 0)
            return false;
    }
    return true;
}

/* What a tensor's entry says, by jansson's tree; false: nonsense. */
static bool entry_by_tree(tl_st_tensor *t, const json_t *v)
{
    const char *dtype = json_string_value(json_object_get(v, "dtype"));
    int64_t at[2];
    size_t n;
    if (!json_is_object(v) || json_object_size(v) != 3 || dtype == NULL ||
        !numbers_of(json_object_get(v, "shape"), t->shape.dim, TL_MAX_DIMS, &n))
        return false;
    t->shape.ndim = (int)n;
    if (!numbers_of(json_object_get(v, "data_offsets"), at, 2, &n) || n != 2 || at[0] > at[1])
        return false;
    for (int d = 0; d < TL_DTYPE_COUNT; d++)
        if (tl_dtype_size((tl_dtype)d) > 0 && strcmp(dtype, tl_dtype_name((tl_dtype)d)) == 0) {
            t->dtype = (tl_dtype)d;
            t->begin = (uint64_t)at[0], t->end = (uint64_t)at[1];
            return tl_shape_check(&t->shape, t->dtype, NULL) == TL_OK &&
                   tl_shape_count(&t->shape) * (int64_t)tl_dtype_size(t->dtype) == at[1] - at[0];
        }
    return false;
}

static int by_begin(const void *a, const void *b)
{
    const tl_st_tensor *x = a, *y = b;
    return x->begin != y->begin ? (x->begin > y->begin) - (x->begin < y->begin)
                                : (x->end > y->end) - (x->end < y->end);
}

/* Whether the header is good, by jansson's tree; *h: its tensors, whose names are the tree's. */
static bool read_by_tree(const json_t *tree, tl_st_tensor *tensor, int *count, uint64_t data)
{
    const char *key, *note_key;
    json_t *v, *note;
    uint64_t at = 0;
    *count = 0;
    json_object_foreach((json_t *)tree, key, v)
    {
        if (strcmp(key, TL_ST_METADATA) != 0) {
            tensor[*count] = (tl_st_tensor){.name = key};
            if (!entry_by_tree(&tensor[(*count)++], v))
                return false;
            continue;
        }
        if (!json_is_object(v))
            return false;
        json_object_foreach(v, note_key, note) if (!json_is_string(note)) return false;
    }
    qsort(tensor, (size_t)*count, sizeof *tensor, by_begin);
    for (int i = 0; i < *count; i++) {
        if (tensor[i].begin != at)
            return false;
        at = tensor[i].end;
    }
    return at == data;
}

static void readers_agree(const char *text, size_t n, uint64_t data)
{
    tl_st_header h;
    tl_err err = {.status = TL_OK};
    static tl_st_tensor tensor[ROOM / 4];
    int count = 0;
    size_t whole = n;
    while (n > 0 && text[n - 1] == ' ')
        n--;
    bool open = n > 0 && *text == '{' && text[n - 1] == '}' &&
                memchr(text, '\0', n) == NULL; /* which jansson loses behind a number */
    json_t *tree = open ? json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL) : NULL;
    bool want = json_is_object(tree) && read_by_tree(tree, tensor, &count, data);
    bool got = tl_st_header_parse(&h, text, whole, data, "file", &err) == TL_OK;
    CHECK(got == want, "%s, jansson's tree says otherwise: %.*s", got ? "read" : err.message,
          (int)n, text);
    for (int i = 0; got && i < count; i++) {
        int k = 0;
        while (k < h.n && strcmp(h.tensors[k].name, tensor[i].name) != 0)
            k++;
        CHECK(k < h.n && h.tensors[k].dtype == tensor[i].dtype &&
                  tl_shape_equal(&h.tensors[k].shape, &tensor[i].shape) &&
                  h.tensors[k].begin == tensor[i].begin && h.tensors[k].end == tensor[i].end,
              "'%s' is another tensor to jansson", tensor[i].name);
    }
    const json_t *meta = json_object_get(tree, TL_ST_METADATA);
    for (int i = 0; got && i < h.n_meta; i++) {
        const char *value = json_string_value(json_object_get(meta, h.meta[i].key));
        CHECK(value != NULL && strcmp(value, h.meta[i].value) == 0, "metadata '%s'", h.meta[i].key);
    }
    CHECK(!got || (h.n == count && h.n_meta == (int)json_object_size(meta)), "%d of %d", h.n,
          count);
    if (got)
        tl_st_header_free(&h);
    json_decref(tree);
}

bool judge_safetensors(const void *b, size_t n)
{
    unsigned char *exact = exactly(b, n);
    tl_status s;
    (void)tl_alloc_peak(true);
    bool sound = safetensors_sound(exact, n, &s);
    int64_t peak = tl_alloc_peak(false);
    CHECK(sound && (s == TL_OK || s == TL_EFORMAT), "%s", tl_status_name(s));
    CHECK(peak <= 25 * (int64_t)n + 4096, "%" PRId64 " bytes for a file of %zu", peak, n);
    const uint64_t header = n < 8 ? n : number_at(exact, 8);
    if (n >= 8 && header <= n - 8)
        readers_agree((char *)exact + 8, (size_t)header, n - 8 - header);
    free(exact);
    return s == TL_OK;
}

void judged_seal(void *bytes, size_t n)
{
    static const char key[] = "\"" TL_ST_SEAL "\":\"";
    unsigned char *b = bytes;
    tl_sha256_ctx h;
    char hex[TL_SHA256_HEX];
    if (n < 8 || number_at(b, 8) > n - 8)
        return;
    const size_t whole = sizeof key - 1 + TL_ST_DIGITS;
    unsigned char *digits = b + 8, *end = b + 8 + number_at(b, 8);
    while ((size_t)(end - digits) >= whole &&
           (memcmp(digits, key, sizeof key - 1) != 0 || digits[-1] == '\\'))
        digits++;
    if ((size_t)(end - digits) < whole)
        return;
    digits += sizeof key - 1;
    for (int i = 0; i < TL_ST_DIGITS; i++)
        if (memchr("0123456789abcdef", digits[i], 16) == NULL)
            return;
    memset(digits, '0', TL_ST_DIGITS);
    tl_sha256_begin(&h, NULL);
    tl_sha256_feed(&h, b, n);
    tl_sha256_finish_hex(&h, hex, NULL);
    memcpy(digits, hex, TL_ST_DIGITS);
}

/* ---- checkpoints ---- */

static void tensors_of(tl_model *m, char hex[TL_SHA256_HEX])
{
    tl_sha256_ctx h;
    tl_sha256_begin(&h, NULL);
    for (int i = 0; i < tl_model_count(m); i++) {
        tl_named x = tl_model_at(m, i);
        tl_hash_string(&h, x.name);
        tl_hash_array(&h, &x.array);
    }
    assert_int_equal(tl_sha256_finish_hex(&h, hex, NULL), TL_OK);
}

static void state_of(tl_model *m, tl_opt *o, tl_tape *t, char hex[TL_SHA256_HEX])
{
    tl_sha256_ctx h;
    tensors_of(m, hex);
    tl_sha256_begin(&h, NULL);
    tl_hash_string(&h, hex);
    tl_sha256_feed_u64(&h, (uint64_t)tl_opt_steps(o));
    tl_sha256_feed_u64(&h, tl_model_seed(m));
    tl_sha256_feed_u64(&h, (uint64_t)tl_accumulating_count(t));
    assert_int_equal(tl_sha256_finish_hex(&h, hex, NULL), TL_OK);
}

/* The model and the optimizer that the corpus was saved from. */
bool judge_checkpoint(const char *path, int how)
{
    char before[TL_SHA256_HEX], after[TL_SHA256_HEX], value[1][TL_NOTE_MAX];
    static const char *const key[] = {"who"};
    tl_model *m = tl_model_new(.seed = 7);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_adamw_new(m, .lr = 0.01, .clip = 1);
    tl_param(t, m, "w", TL_F32, TL_DIMS(2, 2), TL_INIT_NORMAL, 1);
    tl_param(t, m, "b", TL_F32, TL_DIMS(2), TL_INIT_NORMAL, 1);
    state_of(m, o, t, before);
    tl_status s = how == 0   ? tl_checkpoint_load(m, o, path, key, value, 1)
                  : how == 1 ? tl_checkpoint_load_tape(t, o, path, key, value, 1)
                  : how == 2 ? tl_load(m, path)
                             : tl_checkpoint_notes(m, path, key, value, 1);
    state_of(m, o, t, after);
    CHECK(s == TL_OK || s == TL_EFORMAT || s == TL_ENAME || s == TL_ESHAPE || s == TL_EUSAGE ||
              s == TL_EDTYPE,
          "%s: %s", tl_status_name(s), tl_error(m));
    CHECK((s == TL_OK) == (*tl_error(m) == '\0'), "%s, but '%s'", tl_status_name(s), tl_error(m));
    CHECK(s == TL_OK || strcmp(before, after) == 0, "the model changed: %s", tl_error(m));
    tl_free(o, t, m);
    return s == TL_OK;
}

/* ---- logs ---- */

/* As tally-diff does; the text of it. */
static char *said_of(const tl_log_pair *p)
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    assert_non_null(f);
    for (int i = 0; i < tl_log_steps(p->file[0]); i++)
        for (int k = 0; k < tl_log_steps(p->file[1]); k++) {
            const tl_logged_step *a = tl_log_step_at(p->file[0], i),
                                 *b = tl_log_step_at(p->file[1], k);
            tl_log_comparison c;
            if (a->number != b->number && (i != 0 || k != 0)) /* unlike ones once, too */
                continue;
            assert_int_equal(tl_log_compare(&c, a, b), TL_OK);
            tl_log_report(f, p, &c);
            tl_log_comparison_free(&c);
        }
    assert_int_equal(fclose(f), 0);
    return text;
}

bool judge_logs(const char *a, const char *b, bool agreed, size_t bytes)
{
    tl_log_pair p = {.path = {a, b}, .agreed = agreed};
    int64_t began = steps_taken();
    tl_err err = {.status = TL_OK};
    tl_status s = TL_OK;
    for (int i = 0; s == TL_OK && i < 2; i++)
        s = tl_log_read(&p.file[i], p.path[i], &err);
    CHECK(s == TL_OK || (s == TL_EFORMAT && *err.message != '\0'), "%s: %s", tl_status_name(s),
          err.message);
    char *said = s == TL_OK ? said_of(&p) : NULL;
    CHECK(said == NULL || is_clean(said), "said: %s", said);
    CHECK(steps_taken() - began < 200 * (int64_t)bytes + 100000, "%" PRId64 " steps for %zu",
          steps_taken() - began, bytes);
    bool reports = said != NULL && *said != '\0';
    free(said);
    tl_log_file_close(p.file[0]);
    tl_log_file_close(p.file[1]);
    return reports;
}

/* ---- arrays of other programs ---- */

static uint32_t crc_of(const unsigned char *b, size_t n)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < 8 * n; i++)
        crc = crc >> 1 ^ (((crc ^ b[i / 8] >> i % 8) & 1) != 0 ? UINT32_C(0xedb88320) : 0);
    return ~crc;
}

/* What a member's deflated bytes hold, or as much of it as there is. */
static size_t inflated(unsigned char *to, size_t room, const unsigned char *from, size_t n)
{
    z_stream z = {.next_in = from,
                  .avail_in = (unsigned)n,
                  .next_out = to,
                  .avail_out = (unsigned)room};
    assert_int_equal(inflateInit2(&z, -MAX_WBITS), Z_OK);
    inflate(&z, Z_FINISH);
    inflateEnd(&z);
    return room - z.avail_out;
}

void judged_crc(void *bytes, size_t n)
{
    unsigned char *b = bytes;
    static unsigned char whole[1 << 18];
    for (size_t i = 0; i + 46 <= n; i++) {
        size_t stored = number_at(b + i + 20, 4), at = number_at(b + i + 42, 4);
        bool deflated = number_at(b + i + 10, 2) == 8;
        if (memcmp(b + i, "PK\1\2", 4) != 0 || at + 30 > n)
            continue;
        at += 30 + number_at(b + at + 26, 2) + number_at(b + at + 28, 2);
        if (at > n || stored > n - at)
            continue;
        size_t size = deflated ? inflated(whole, sizeof whole, b + at, stored) : stored;
        put_number(b + i + 24, 4, size);
        put_number(b + i + 16, 4, crc_of(deflated ? whole : b + at, size));
    }
}

bool judge_arrays(const void *b, size_t n, tl_dtype as)
{
    unsigned char *exact = exactly(b, n);
    tl_arrays *f;
    tl_err err = {.status = TL_OK};
    (void)tl_alloc_peak(true);
    tl_status s = tl_arrays_open_memory(&f, exact, n, "file", &err, (tl_arrays_options){.as = as});
    int64_t peak = tl_alloc_peak(false);
    free(exact); /* it was copied */
    CHECK(s == TL_OK || (s == TL_EFORMAT && f == NULL && *err.message != '\0'), "%s: %s",
          tl_status_name(s), err.message);
    CHECK(is_clean(err.message), "said: %s", err.message);
    int64_t most = 25 * (int64_t)n + 8192;
    if (n > 2 && memcmp(b, "PK", 2) == 0) /* zlib's window, and what deflate can make of a byte */
        most += 3 * 1032 * (int64_t)n + 50000;
    CHECK(peak <= most, "%" PRId64 " bytes for a file of %zu", peak, n);
    double sum = 0; /* every element can be read */
    for (int k = 0; k < tl_arrays_count(f); k++) {
        tl_array a = tl_arrays_at(f, k);
        CHECK(a.data != NULL && tl_array_contiguous(&a), "array %d", k);
        CHECK(tl_arrays_find(f, tl_arrays_name(f, k)) == k, "'%s'", tl_arrays_name(f, k));
        for (int64_t e = 0; e < tl_array_count(&a); e++)
            sum += tl_array_get(&a, e);
    }
    tl_arrays_close(f);
    return s == TL_OK && (sum != 0 || n > 0);
}

/* ---- models and tokenizers of other programs ---- */

static int64_t others; /* bytes of jansson's and libcrypto's before */

static void begin_counting(void)
{
    (void)tl_alloc_peak(true);
    (void)other_memory_peak();
    others = other_memory_peak();
}

/* The most bytes in use at once since then, jansson's with ours. */
static int64_t counted(void) { return tl_alloc_peak(false) + other_memory_peak() - others; }

bool judge_model(const char *path, judged_kind kind, size_t bytes)
{
    char before[TL_SHA256_HEX], after[TL_SHA256_HEX];
    tl_model *m = tl_model_new(.seed = 7);
    tl_tape *t = tl_tape_new(m);
    tl_param(t, m, "w", TL_F32, TL_DIMS(2, 2), TL_INIT_NORMAL, 1);
    tl_decoder_config c = {.stops = 77};
    tensors_of(m, before);
    begin_counting();
    tl_status s = TL_OK;
    if (kind == JUDGED_FOLDER)
        s = tl_hf_load(m, path, &c);
    else if (kind == JUDGED_LLMC)
        s = tl_llmc_load(m, path, &c);
    else if (tl_is_none(tl_llmc_tokens_load(m, path)))
        s = *tl_error(m) != '\0' ? TL_EFORMAT : TL_OK;
    int64_t peak = counted();
    CHECK(s == TL_OK || s == TL_EFORMAT || s == TL_ENAME || s == TL_ESHAPE || s == TL_EDOMAIN ||
              s == TL_EDTYPE || s == TL_EIO,
          "%s: %s", tl_status_name(s), tl_error(m));
    CHECK((s == TL_OK) == (*tl_error(m) == '\0'), "%s, but '%s'", tl_status_name(s), tl_error(m));
    CHECK(is_clean(tl_error(m)), "said: %s", tl_error(m));
    tensors_of(m, after);
    CHECK(s == TL_OK || (strcmp(before, after) == 0 && c.stops == 77), "the model changed: %s",
          tl_error(m));
    CHECK(peak <= 400 * (int64_t)bytes + (1 << 16), /* the names of small layers are the most */
          "%" PRId64 " bytes for files of %zu", peak, bytes);
    tl_free(t, m);
    return s == TL_OK;
}

bool judge_folder(const char *folder, const char *family, const char *name, const void *b, size_t n)
{
    static const char *const file[] = {"config.json", "model.safetensors",
                                       "model.safetensors.index.json"};
    const bool index = strcmp(name, file[2]) == 0; /* which leads to a shard */
    char path[1024], *other;
    size_t bytes = n, length;
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%.500s/%s", folder, file[i]);
        unlink(path);
        snprintf(path, sizeof path, TL_ROOT "/tests/corpus/%.100s/%s", family, file[i]);
        if (i == 2 || strcmp(name, file[i]) == 0)
            continue;
        assert_int_equal(tl_file_read(path, 1 << 20, &other, &length, NULL), TL_OK);
        assert_true(temp_file_write(folder, index && i == 1 ? "shard.safetensors" : file[i], other,
                                    length));
        tl_free_raw(other);
        bytes += length;
    }
    assert_true(temp_file_write(folder, name, b, n));
    return judge_model(folder, JUDGED_FOLDER, bytes);
}

bool judge_tokenizer(const void *b, size_t n, const char *text, size_t length)
{
    static int64_t ids[4096];
    unsigned char *exact = exactly(b, n);
    tl_tokenizer *k;
    tl_err err = {.status = TL_OK};
    begin_counting();
    tl_status s = tl_tokenizer_open_memory(&k, exact, n, "file", &err);
    int64_t peak = counted();
    free(exact);
    CHECK(s == TL_OK || ((s == TL_EFORMAT || s == TL_EDOMAIN || s == TL_EUSAGE) && k == NULL &&
                         *err.message != '\0'),
          "%s: %s", tl_status_name(s), err.message);
    CHECK(peak <= 200 * (int64_t)n + 16384, "%" PRId64 " bytes for a file of %zu", peak, n);
    if (s == TL_OK) { /* any text is the bytes of its tokens */
        size_t at = 0, part;
        int64_t count = tl_tokenizer_encode(k, text, length, false, ids, 4096, &err);
        CHECK(count >= 0 && count <= (int64_t)length, "%" PRId64 " tokens of %zu bytes", count,
              length);
        for (int64_t j = 0; j < count; j++, at += part) {
            const char *bytes = tl_tokenizer_bytes(k, ids[j], &part);
            CHECK(bytes != NULL && part <= length - at && memcmp(bytes, text + at, part) == 0,
                  "token %" PRId64 " is %" PRId64, j, ids[j]);
        }
        CHECK(at == length, "%zu bytes of %zu", at, length);
    }
    tl_tokenizer_close(k);
    return s == TL_OK;
}
