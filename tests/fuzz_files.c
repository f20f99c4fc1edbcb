/* fuzz_files.c: whatever bytes a file has, it is refused with a message or read as what it says;
 * nothing else happens: no crash, no change of what was there, no work or memory out of proportion.
 *
 * The files of tests/corpus, changed at random, for each reader that there is: safetensors, against
 * a second reader made of jansson's tree; checkpoints into a model; logs, as tally-diff reads them.
 * Round i of seed s is round 0 of seed s + i: TL_SEED=N begins there. TL_FUZZ=SECONDS goes on for
 * that long with each (make fuzz); without it a few rounds are made. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <jansson.h>
#include <tally_extend.h>
#include <tally_models.h>
#include <time.h>
#define ZLIB_CONST
#include <zlib.h>

#include "autograd/log/read/read.h"
#include "tensor/arena.h"
#include "tensor/files/arrays.h"
#include "tensor/files/file.h"
#include "tensor/files/hash.h"
#include "tensor/files/safetensors_header.h"
#include "tests/safetensors_check.h"
#include "tests/support/other_memory.h"
#include "tests/support/steps.h"
#include "tests/temp_dir.h"

extern const struct CMUnitTest tl_tests_fuzz_files[];
extern const size_t tl_tests_fuzz_files_count;

enum { FILES_MAX = 64, ROOM = 1 << 16 };
/* Names of the most layers that a config may claim, before its tensors are looked for. */
enum { MAP_MOST = 40 << 20 };

static struct {
    char *bytes;
    size_t n;
    char name[256];
} corpus[FILES_MAX];
static int n_corpus;
static temp_dir dir;

static int by_name(const void *a, const void *b)
{
    return strcmp((const char *)a + offsetof(__typeof__(*corpus), name),
                  (const char *)b + offsetof(__typeof__(*corpus), name));
}

/* The files of a folder of tests/corpus. */
static bool take(const char *folder)
{
    char path[1024];
    snprintf(path, sizeof path, TL_ROOT "/tests/corpus/%s", folder);
    DIR *d = opendir(path);
    bool fine = d != NULL;
    for (struct dirent *e; fine && (e = readdir(d)) != NULL && n_corpus < FILES_MAX;) {
        if (strchr(e->d_name, '.') == NULL || *e->d_name == '.') /* a folder */
            continue;
        snprintf(path, sizeof path, TL_ROOT "/tests/corpus/%s%.200s", folder, e->d_name);
        fine = tl_file_read(path, ROOM / 2, &corpus[n_corpus].bytes, &corpus[n_corpus].n, NULL) ==
               TL_OK;
        snprintf(corpus[n_corpus].name, sizeof corpus->name, "%s%.200s", folder, e->d_name);
        n_corpus += fine;
    }
    if (d != NULL)
        closedir(d);
    return fine;
}

static int begin(void **unused)
{
    (void)unused;
    n_corpus = 0;
    if (!temp_dir_make(&dir) || !take("") || !take("llama/"))
        return -1;
    qsort(corpus, (size_t)n_corpus, sizeof *corpus, by_name); /* the order of a folder is any */
    return n_corpus > 0 ? 0 : -1;
}

static int end(void **unused)
{
    (void)unused;
    for (int i = 0; i < n_corpus; i++)
        tl_free_raw(corpus[i].bytes);
    temp_dir_remove(&dir);
    return 0;
}

/* ---- changes ---- */

static uint64_t next(uint64_t *r)
{
    uint64_t x = *r += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static size_t below(uint64_t *r, size_t n) { return n > 0 ? (size_t)(next(r) % n) : 0; }

/* A file of the corpus whose name ends so. */
static int pick(uint64_t *r, const char *suffix)
{
    for (;;) {
        int i = (int)below(r, (size_t)n_corpus);
        size_t n = strlen(corpus[i].name), m = strlen(suffix);
        if (n >= m && strcmp(corpus[i].name + n - m, suffix) == 0)
            return i;
    }
}

/* Puts `with` in the place of `old` bytes at `at`. */
static size_t put(char *b, size_t n, size_t at, size_t old, const char *with, size_t m)
{
    if (n - old + m > ROOM)
        return n;
    memmove(b + at + m, b + at + old, n - at - old);
    memcpy(b + at, with, m);
    return n - old + m;
}

static const char *const words[] = {"0",
                                    "-1",
                                    "1",
                                    "8",
                                    "9223372036854775807",
                                    "9223372036854775808",
                                    "18446744073709551615",
                                    "1e9",
                                    "-0",
                                    "0.5",
                                    "\"",
                                    "\\\"",
                                    "\\u0000",
                                    "\\ud834",
                                    "\\udd1e",
                                    "\\u0041",
                                    "{",
                                    "}",
                                    "[",
                                    "]",
                                    "{},",
                                    ",",
                                    ":",
                                    "\"dtype\":\"F64\"",
                                    "\"shape\":[0]",
                                    "\"data_offsets\":[0,0]",
                                    "\"__metadata__\":{}",
                                    "\"x\":",
                                    "\t",
                                    "\n",
                                    "f1",
                                    "b3.1",
                                    "u1",
                                    "1:f2",
                                    "c7.1",
                                    "-",
                                    "=",
                                    "none",
                                    "scalar",
                                    "mixed",
                                    "*2",
                                    "+3",
                                    "full",
                                    "part",
                                    "compiled",
                                    "d\t",
                                    "step\t",
                                    "end\t",
                                    "tally-log\t2\n",
                                    "gradient",
                                    "update",
                                    "fast",
                                    "%1b",
                                    "%",
                                    "\x1b[2J",
                                    "\xff",
                                    "\xc2\x9b",
                                    "\xed\xa0\x80",
                                    " "};

static size_t change(char *b, size_t n, uint64_t *r)
{
    size_t at = below(r, n + 1), length = below(r, 1 + below(r, 200)), from = below(r, n);
    char copy[200];
    const char *word = words[below(r, sizeof words / sizeof *words)];
    length = length < n - at ? length : n - at;
    switch (below(r, 8)) {
    case 0:
        if (at < n)
            b[at] = (char)(b[at] ^ 1 << below(r, 8));
        return n;
    case 1:
        if (at < n)
            b[at] = (char)next(r);
        return n;
    case 2: return put(b, n, at, 0, word, strlen(word));
    case 3: return put(b, n, at, length < 8 ? length : 8, word, strlen(word));
    case 4: return put(b, n, at, length, "", 0);
    case 5: /* a stretch once more */
        length = length < n - from ? length : n - from;
        memcpy(copy, b + from, length);
        return put(b, n, at, below(r, 2) ? 0 : length < n - at ? length : 0, copy, length);
    case 6: { /* or of another file */
        int i = (int)below(r, (size_t)n_corpus);
        from = below(r, corpus[i].n);
        length = length < corpus[i].n - from ? length : corpus[i].n - from;
        return put(b, n, at, 0, corpus[i].bytes + from, length);
    }
    default: { /* a number */
        while (at < n && (b[at] < '0' || b[at] > '9'))
            at++;
        size_t digits = at < n ? strspn(b + at, "0123456789") : 0;
        return put(b, n, at, digits < n - at ? digits : n - at, word, strlen(word));
    }
    }
}

/* Mostly one change or two, sometimes cut off. b has room for ROOM + 1 bytes. */
static size_t changes(char *b, size_t n, uint64_t *r)
{
    for (size_t k = below(r, 8) == 0 ? below(r, 30) : below(r, 4); k > 0; k--) {
        b[n] = '\0';
        n = change(b, n, r);
    }
    return below(r, 16) == 0 ? below(r, n + 1) : n;
}

/* ---- rounds ---- */

typedef void round_fn(uint64_t seed);

static void rounds(const char *what, round_fn *fn, int few)
{
    const char *given = getenv("TL_SEED"), *seconds = getenv("TL_FUZZ");
    uint64_t seed = given != NULL ? strtoull(given, NULL, 10) : 1, i = 0;
    time_t stop = seconds != NULL ? time(NULL) + atoi(seconds) : 0;
    print_message("%s from TL_SEED=%" PRIu64 "\n", what, seed);
    for (; seconds != NULL ? time(NULL) < stop : i < (uint64_t)few; i++)
        fn(seed + i);
    print_message("%s: %" PRIu64 " rounds\n", what, i);
}

#define CHECK(ok, seed, ...)                                               \
    do {                                                                   \
        if (!(ok)) {                                                       \
            print_error("TL_SEED=%" PRIu64 " repeats it at once: ", seed); \
            fail_msg(__VA_ARGS__);                                         \
        }                                                                  \
    } while (0)

/* ---- safetensors ---- */

/* The length of the header made right, and the digest, as often as not: what lies deeper is met. */
static size_t mend(unsigned char *b, size_t n, size_t header, uint64_t *r)
{
    tl_sha256_ctx h;
    char hex[TL_SHA256_HEX];
    if (below(r, 8) == 0 || header > n - 8)
        return n;
    for (int i = 0; i < 8; i++)
        b[i] = (unsigned char)((uint64_t)header >> 8 * i);
    char *digits = tl_st_seal_digits((char *)b + 8, header);
    if (digits == NULL || below(r, 2) == 0)
        return n;
    tl_st_seal_clear(digits);
    tl_sha256_begin(&h, NULL);
    tl_sha256_feed(&h, b, n);
    tl_sha256_finish_hex(&h, hex, NULL);
    memcpy(digits, hex, TL_ST_DIGITS);
    return n;
}

/* A file of the corpus with changes: of its header, of its data, or of both. */
static size_t make_safetensors(unsigned char b[ROOM + 1], uint64_t *r)
{
    int i = pick(r, ".safetensors");
    size_t n = corpus[i].n, header = 0;
    memcpy(b, corpus[i].bytes, n);
    for (int k = 7; n >= 8 && k >= 0; k--)
        header = header << 8 | b[k];
    if (below(r, 8) == 0 || n < 8 || header > n - 8)
        return changes((char *)b, n, r);
    size_t data = n - 8 - header;
    static char text[ROOM + 1];
    memcpy(text, b + 8, header);
    header = changes(text, header, r);
    header = header < ROOM - 8 - data ? header : 0;
    memcpy(b + 8, text, header);
    memcpy(b + 8 + header, corpus[i].bytes + n - data, data);
    n = 8 + header + data;
    if (below(r, 4) == 0 && data > 0)
        n = 8 + header + changes((char *)b + 8 + header, data, r);
    return mend(b, n < ROOM ? n : ROOM, header, r);
}

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

static void readers_agree(const char *text, size_t n, uint64_t data, uint64_t seed)
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
    CHECK(got == want, seed, "%s, jansson's tree says otherwise: %.*s", got ? "read" : err.message,
          (int)n, text);
    for (int i = 0; got && i < count; i++) {
        int k = 0;
        while (k < h.n && strcmp(h.tensors[k].name, tensor[i].name) != 0)
            k++;
        CHECK(k < h.n && h.tensors[k].dtype == tensor[i].dtype &&
                  tl_shape_equal(&h.tensors[k].shape, &tensor[i].shape) &&
                  h.tensors[k].begin == tensor[i].begin && h.tensors[k].end == tensor[i].end,
              seed, "'%s' is another tensor to jansson", tensor[i].name);
    }
    const json_t *meta = json_object_get(tree, TL_ST_METADATA);
    for (int i = 0; got && i < h.n_meta; i++) {
        const char *value = json_string_value(json_object_get(meta, h.meta[i].key));
        CHECK(value != NULL && strcmp(value, h.meta[i].value) == 0, seed, "metadata '%s'",
              h.meta[i].key);
    }
    CHECK(!got || (h.n == count && h.n_meta == (int)json_object_size(meta)), seed, "%d of %d", h.n,
          count);
    if (got)
        tl_st_header_free(&h);
    json_decref(tree);
}

static int opened;

static void safetensors_round(uint64_t seed)
{
    static unsigned char b[ROOM + 1];
    uint64_t r = seed, header = 0;
    size_t n = make_safetensors(b, &r);
    unsigned char *exact = malloc(n + (n == 0)); /* a sanitizer sees one read too many */
    tl_status s;
    assert_non_null(exact);
    memcpy(exact, b, n);
    (void)tl_alloc_peak(true);
    bool sound = safetensors_sound(exact, n, &s);
    int64_t peak = tl_alloc_peak(false);
    CHECK(sound && (s == TL_OK || s == TL_EFORMAT), seed, "%s", tl_status_name(s));
    CHECK(peak <= 25 * (int64_t)n + 4096, seed, "%" PRId64 " bytes for a file of %zu", peak, n);
    opened += s == TL_OK;
    for (int k = 7; n >= 8 && k >= 0; k--)
        header = header << 8 | exact[k];
    if (n >= 8 && header <= n - 8)
        readers_agree((char *)exact + 8, (size_t)header, n - 8 - header, seed);
    free(exact);
}

static void safetensors_of_any_bytes(void **unused)
{
    (void)unused;
    opened = 0;
    rounds("safetensors", safetensors_round, 6000);
    assert_true(opened > 50); /* changes that leave a good file are among them */
}

/* ---- checkpoints ---- */

static void write_file(const char *path, const void *b, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(b, 1, n, f), n);
    fclose(f);
}

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
static void checkpoint_round(uint64_t seed)
{
    static unsigned char b[ROOM + 1];
    char path[1024], before[TL_SHA256_HEX], after[TL_SHA256_HEX], value[1][TL_NOTE_MAX];
    static const char *const key[] = {"who"};
    uint64_t r = seed;
    size_t n = make_safetensors(b, &r);
    write_file(temp_dir_file(path, &dir, "checkpoint"), b, n);
    tl_model *m = tl_model_new(.seed = 7);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_adamw_new(m, .lr = 0.01, .clip = 1);
    tl_param(t, m, "w", TL_F32, TL_DIMS(2, 2), TL_INIT_NORMAL, 1);
    tl_param(t, m, "b", TL_F32, TL_DIMS(2), TL_INIT_NORMAL, 1);
    state_of(m, o, t, before);
    int how = (int)below(&r, 4);
    tl_status s = how == 0   ? tl_checkpoint_load(m, o, path, key, value, 1)
                  : how == 1 ? tl_checkpoint_load_tape(t, o, path, key, value, 1)
                  : how == 2 ? tl_load(m, path)
                             : tl_checkpoint_notes(m, path, key, value, 1);
    state_of(m, o, t, after);
    CHECK(s == TL_OK || s == TL_EFORMAT || s == TL_ENAME || s == TL_ESHAPE || s == TL_EUSAGE ||
              s == TL_EDTYPE,
          seed, "%s: %s", tl_status_name(s), tl_error(m));
    CHECK((s == TL_OK) == (*tl_error(m) == '\0'), seed, "%s, but '%s'", tl_status_name(s),
          tl_error(m));
    CHECK(s == TL_OK || strcmp(before, after) == 0, seed, "the model changed: %s", tl_error(m));
    opened += s == TL_OK;
    tl_free(o, t, m);
}

static void checkpoints_of_any_bytes(void **unused)
{
    (void)unused;
    opened = 0;
    rounds("checkpoints", checkpoint_round, 1500);
    assert_true(opened > 20);
}

/* ---- logs ---- */

static bool is_clean(const char *s)
{
    for (; *s != '\0'; s++)
        if (((unsigned char)*s < ' ' && *s != '\n') || *s == 0x7f)
            return false;
    return true;
}

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

static void log_round(uint64_t seed)
{
    static char b[ROOM + 1];
    char path[2][1024];
    uint64_t r = seed;
    tl_log_pair p = {.agreed = (int64_t)below(&r, 2)};
    size_t bytes = 0;
    for (int i = 0; i < 2; i++) {
        int k = pick(&r, ".log");
        size_t n = corpus[k].n;
        memcpy(b, corpus[k].bytes, n);
        if (i == 1 || below(&r, 2) == 0)
            n = changes(b, n, &r);
        p.path[i] = temp_dir_file(path[i], &dir, i == 0 ? "a.log" : "b.log");
        write_file(path[i], b, n);
        bytes += n;
        if (below(&r, 16) == 0) { /* values beside it */
            char values[1100];
            static unsigned char s[ROOM + 1];
            size_t m = make_safetensors(s, &r);
            write_file(tl_log_values_path(values, sizeof values, path[i], 2), s, m);
        }
    }
    int64_t began = steps_taken();
    tl_err err = {.status = TL_OK};
    tl_status s = TL_OK;
    for (int i = 0; s == TL_OK && i < 2; i++)
        s = tl_log_read(&p.file[i], p.path[i], &err);
    CHECK(s == TL_OK || (s == TL_EFORMAT && *err.message != '\0'), seed, "%s: %s",
          tl_status_name(s), err.message);
    char *said = s == TL_OK ? said_of(&p) : NULL;
    CHECK(said == NULL || is_clean(said), seed, "said: %s", said);
    CHECK(steps_taken() - began < 200 * (int64_t)bytes + 100000, seed, "%" PRId64 " steps for %zu",
          steps_taken() - began, bytes);
    opened += said != NULL && *said != '\0';
    free(said);
    tl_log_file_close(p.file[0]);
    tl_log_file_close(p.file[1]);
}

static void logs_of_any_bytes(void **unused)
{
    (void)unused;
    opened = 0;
    rounds("logs", log_round, 800);
    assert_true(opened > 50); /* many have something to report */
}

/* ---- arrays of other programs ---- */

static uint32_t crc_of(const unsigned char *b, size_t n)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < 8 * n; i++)
        crc = crc >> 1 ^ (((crc ^ b[i / 8] >> i % 8) & 1) != 0 ? UINT32_C(0xedb88320) : 0);
    return ~crc;
}

static size_t number_at(const unsigned char *p, int size)
{
    return size == 0 ? 0 : number_at(p + 1, size - 1) << 8 | *p;
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

static void put_number(unsigned char *p, int size, size_t x)
{
    for (int k = 0; k < size; k++)
        p[k] = (unsigned char)(x >> 8 * k);
}

/* The CRC of each member that lies in the file made right; of a deflated one, its size, too. */
static void mend_crc(unsigned char *b, size_t n)
{
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

static void array_round(uint64_t seed)
{
    static const char *const suffix[] = {".npy", ".npz", ".idx", ".csv"};
    static unsigned char b[ROOM + 1];
    uint64_t r = seed;
    size_t kind = below(&r, 4);
    int i = pick(&r, suffix[kind]);
    size_t n = corpus[i].n;
    memcpy(b, corpus[i].bytes, n);
    n = changes((char *)b, n, &r);
    if (below(&r, 4) != 0)
        mend_crc(b, n);
    unsigned char *exact = malloc(n + (n == 0));
    assert_non_null(exact);
    memcpy(exact, b, n);
    tl_arrays *f;
    tl_err err = {.status = TL_OK};
    (void)tl_alloc_peak(true);
    tl_status s = tl_arrays_open_memory(&f, exact, n, "file", &err,
                                        (tl_arrays_options){.as = below(&r, 2) ? TL_F32 : 0});
    int64_t peak = tl_alloc_peak(false);
    free(exact); /* it was copied */
    CHECK(s == TL_OK || (s == TL_EFORMAT && f == NULL && *err.message != '\0'), seed, "%s: %s",
          tl_status_name(s), err.message);
    CHECK(is_clean(err.message), seed, "said: %s", err.message);
    int64_t most = 25 * (int64_t)n + 8192;
    if (kind == 1) /* zlib's window, and what deflate can make of a byte */
        most += 3 * 1032 * (int64_t)n + 50000;
    CHECK(peak <= most, seed, "%" PRId64 " bytes for a file of %zu", peak, n);
    double sum = 0; /* every element can be read */
    for (int k = 0; k < tl_arrays_count(f); k++) {
        tl_array a = tl_arrays_at(f, k);
        CHECK(a.data != NULL && tl_array_contiguous(&a), seed, "array %d", k);
        CHECK(tl_arrays_find(f, tl_arrays_name(f, k)) == k, seed, "'%s'", tl_arrays_name(f, k));
        for (int64_t e = 0; e < tl_array_count(&a); e++)
            sum += tl_array_get(&a, e);
    }
    opened += s == TL_OK && (sum != 0 || n > 0);
    tl_arrays_close(f);
}

static void arrays_of_any_bytes(void **unused)
{
    (void)unused;
    opened = 0;
    rounds("arrays", array_round, 6000);
    assert_true(opened > 200);
}

/* ---- models and tokenizers of other programs ---- */

static void change_text(char *b, size_t *n, uint64_t *r, const char *name)
{
    int i = 0;
    while (strcmp(corpus[i].name, name) != 0)
        i++;
    memcpy(b, corpus[i].bytes, *n = corpus[i].n);
    if (below(r, 4) != 0)
        *n = changes(b, *n, r);
}

/* A folder, whose config.json and tensors are changed, or one of llm.c's two files. */
static void model_round(uint64_t seed)
{
    static char b[ROOM + 1];
    static const char *const file[] = {"config.json", "model.safetensors",
                                       "model.safetensors.index.json"};
    char path[1024], before[TL_SHA256_HEX], after[TL_SHA256_HEX];
    uint64_t r = seed;
    size_t how = below(&r, 4), n, bytes = 0;
    tl_model *m = tl_model_new(.seed = 7);
    tl_tape *t = tl_tape_new(m);
    tl_param(t, m, "w", TL_F32, TL_DIMS(2, 2), TL_INIT_NORMAL, 1);
    for (size_t i = 0; i < 3 && how < 2; i++) {
        change_text(b, &n, &r,
                    i == 2   ? "llama/model.safetensors.index.json"
                    : i == 1 ? "llama/model.safetensors"
                             : "llama/config.json");
        temp_dir_file(path, &dir, file[i]);
        unlink(path);
        if (i != 1 || how == 0) /* without it, the index is read */
            write_file(path, b, n);
        bytes += n;
        if (i == 1)
            write_file(temp_dir_file(path, &dir, "shard.safetensors"), b, n);
    }
    if (how >= 2) {
        change_text(b, &n, &r, how == 2 ? "gpt2.llmc" : "tokens.llmc");
        write_file(temp_dir_file(path, &dir, "llmc"), b, bytes = n);
    }
    tl_decoder_config c = {.stops = 77};
    tensors_of(m, before);
    (void)tl_alloc_peak(true);
    tl_status s = TL_OK;
    if (how < 2)
        s = tl_hf_load(m, dir.path, &c);
    else if (how == 2)
        s = tl_llmc_load(m, path, &c);
    else if (tl_is_none(tl_llmc_tokens_load(m, path)))
        s = *tl_error(m) != '\0' ? TL_EFORMAT : TL_OK;
    int64_t peak = tl_alloc_peak(false);
    CHECK(s == TL_OK || s == TL_EFORMAT || s == TL_ENAME || s == TL_ESHAPE || s == TL_EDOMAIN ||
              s == TL_EDTYPE || s == TL_EIO,
          seed, "%s: %s", tl_status_name(s), tl_error(m));
    CHECK((s == TL_OK) == (*tl_error(m) == '\0'), seed, "%s, but '%s'", tl_status_name(s),
          tl_error(m));
    CHECK(is_clean(tl_error(m)), seed, "said: %s", tl_error(m));
    tensors_of(m, after);
    CHECK(s == TL_OK || (strcmp(before, after) == 0 && c.stops == 77), seed,
          "the model changed: %s", tl_error(m));
    CHECK(peak <= 100 * (int64_t)bytes + MAP_MOST, seed, "%" PRId64 " bytes for files of %zu", peak,
          bytes);
    opened += s == TL_OK;
    tl_free(t, m);
}

static void models_of_any_bytes(void **unused)
{
    (void)unused;
    opened = 0;
    rounds("models", model_round, 1500);
    assert_true(opened > 50);
}

static void tokenizer_round(uint64_t seed)
{
    static char b[ROOM + 1];
    static int64_t ids[4096];
    uint64_t r = seed;
    size_t n;
    change_text(b, &n, &r, below(&r, 2) ? "gpt2.tokenizer.json" : "llama3.tokenizer.json");
    char *exact = malloc(n + (n == 0));
    assert_non_null(exact);
    memcpy(exact, b, n);
    tl_tokenizer *k;
    tl_err err = {.status = TL_OK};
    (void)tl_alloc_peak(true);
    tl_status s = tl_tokenizer_open_memory(&k, exact, n, "file", &err);
    int64_t peak = tl_alloc_peak(false);
    free(exact);
    CHECK(s == TL_OK || ((s == TL_EFORMAT || s == TL_EDOMAIN || s == TL_EUSAGE) && k == NULL &&
                         *err.message != '\0'),
          seed, "%s: %s", tl_status_name(s), err.message);
    CHECK(peak <= 200 * (int64_t)n + 16384, seed, "%" PRId64 " bytes for a file of %zu", peak, n);
    if (s == TL_OK) { /* any text is the bytes of its tokens */
        size_t at = 0, part;
        int i = (int)below(&r, (size_t)n_corpus);
        size_t length = corpus[i].n < 1000 ? corpus[i].n : 1000;
        int64_t count = tl_tokenizer_encode(k, corpus[i].bytes, length, false, ids, 4096, &err);
        CHECK(count >= 0 && count <= 1000, seed, "%" PRId64 " tokens of %zu bytes", count, length);
        for (int64_t j = 0; j < count; j++, at += part) {
            const char *bytes = tl_tokenizer_bytes(k, ids[j], &part);
            CHECK(bytes != NULL && part <= length - at &&
                      memcmp(bytes, corpus[i].bytes + at, part) == 0,
                  seed, "token %" PRId64 " is %" PRId64, j, ids[j]);
        }
        CHECK(at == length, seed, "%zu bytes of %zu", at, length);
    }
    opened += s == TL_OK;
    tl_tokenizer_close(k);
}

static void tokenizers_of_any_bytes(void **unused)
{
    (void)unused;
    opened = 0;
    rounds("tokenizers", tokenizer_round, 600);
    assert_true(opened > 50);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
const struct CMUnitTest tl_tests_fuzz_files[] = {
    TEST(safetensors_of_any_bytes), TEST(checkpoints_of_any_bytes), TEST(logs_of_any_bytes),
    TEST(arrays_of_any_bytes),      TEST(models_of_any_bytes),      TEST(tokenizers_of_any_bytes),
};
const size_t tl_tests_fuzz_files_count = sizeof tl_tests_fuzz_files / sizeof *tl_tests_fuzz_files;
