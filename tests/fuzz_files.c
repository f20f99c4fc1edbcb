/* fuzz_files.c: whatever bytes a file has, it is refused with a message or read as what it says;
 * nothing else happens: no crash, no change of what was there, no work or memory out of proportion.
 *
 * The files of tests/corpus, changed at random or cut off, for each reader that there is:
 * safetensors, against a second reader made of jansson's tree; arrays; models and tokenizers of
 * other programs; checkpoints into a model; logs, as tally-diff reads them (tests/support/judges.h
 * says what must hold; tests/libfuzzer.c lets clang's fuzzer look for what does not). Round i of
 * seed s is round 0 of seed s + i: TL_SEED=N begins there. TL_FUZZ=SECONDS goes on for that much
 * processor time with each (make fuzz); without it a few rounds are made. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <tally_extend.h>
#include <time.h>

#include "tensor/files/file.h"
#include "tensor/memory.h"
#include "tests/support/judges.h"
#include "tests/temp_dir.h"

extern const struct CMUnitTest tl_tests_fuzz_files[];
extern const size_t tl_tests_fuzz_files_count;

enum { FILES_MAX = 64, ROOM = JUDGED_MOST };

static struct {
    char *bytes;
    size_t n;
    char name[256];
} corpus[FILES_MAX];
static int n_corpus;
static temp_dir dir;
static const char *subject; /* of a test that is made for several readers */
static int opened;          /* files that were read as good */

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
    for (struct dirent *e; fine && (e = readdir(d)) != NULL;) {
        if (strchr(e->d_name, '.') == NULL || *e->d_name == '.') /* a folder */
            continue;
        if (n_corpus == FILES_MAX) {
            fine = false; /* they would be left out unseen */
            break;
        }
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

static int begin(void **of)
{
    subject = *of;
    n_corpus = opened = 0;
    if (!temp_dir_make(&dir) || !take("") || !take("llama/") || !take("gpt2/"))
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
                                    "tally-log\t3\n",
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

/* A number of 1, 2, 4 or 8 bytes in either order that lies about a size: mostly among the first
 * bytes, where headers are. */
static void lie(char *b, size_t n, uint64_t *r)
{
    const uint64_t lies[] = {0,          1,          n,         n - 1,      n + 1,      INT32_MAX,
                             0x80000000, UINT32_MAX, INT64_MAX, 1ull << 63, UINT64_MAX, 0x7f,
                             0x80,       0xff,       0xffff,    1 << 24};
    const size_t size = (size_t)1 << below(r, 4), places = below(r, 4) != 0 && n > 64 ? 64 : n;
    const size_t at = below(r, places) / size * size;
    const uint64_t x = lies[below(r, sizeof lies / sizeof *lies)];
    const bool big = below(r, 4) == 0;
    for (size_t k = 0; k < size && at + k < n; k++)
        b[at + k] = (char)(x >> 8 * (big ? size - 1 - k : k));
}

static size_t change(char *b, size_t n, uint64_t *r)
{
    size_t at = below(r, n + 1), length = below(r, 1 + below(r, 200)), from = below(r, n);
    char copy[200];
    const char *word = words[below(r, sizeof words / sizeof *words)];
    length = length < n - at ? length : n - at;
    switch (below(r, 9)) {
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
    case 7: lie(b, n, r); return n;
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

typedef bool round_fn(uint64_t *r); /* a good file was read */

static void rounds(const char *what, round_fn *fn, int few)
{
    const char *given = getenv("TL_SEED"), *seconds = getenv("TL_FUZZ");
    uint64_t seed = given != NULL ? strtoull(given, NULL, 10) : 1, i = 0;
    clock_t began = clock(), most = seconds != NULL ? atoi(seconds) * CLOCKS_PER_SEC : 0;
    print_message("%s from TL_SEED=%" PRIu64 "\n", what, seed);
    for (; seconds != NULL ? clock() - began < most : i < (uint64_t)few; i++) {
        snprintf(judged, sizeof judged, "TL_SEED=%" PRIu64, seed + i);
        opened += fn(&(uint64_t){seed + i});
    }
    print_message("%s: %" PRIu64 " rounds, %d good files\n", what, i, opened);
}

/* ---- safetensors ---- */

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
    n = n < ROOM ? n : ROOM;
    const bool fits = header <= n - 8 && below(r, 8) != 0;
    for (int k = 0; fits && k < 8; k++)
        b[k] = (unsigned char)((uint64_t)header >> 8 * k);
    if (below(r, 2) == 0)
        judged_seal(b, n);
    return n;
}

static bool safetensors_round(uint64_t *r)
{
    static unsigned char b[ROOM + 1];
    size_t n = make_safetensors(b, r);
    return judge_safetensors(b, n);
}

static void safetensors_of_any_bytes(void **unused)
{
    (void)unused;
    rounds("safetensors", safetensors_round, 6000);
    assert_true(opened > 50); /* changes that leave a good file are among them */
}

/* Returns path, which it fills. */
static char *write_file(char path[1024], const char *name, const void *b, size_t n)
{
    FILE *f = fopen(temp_dir_file(path, &dir, name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(b, 1, n, f), n);
    fclose(f);
    return path;
}

/* ---- checkpoints ---- */

static bool checkpoint_round(uint64_t *r)
{
    static unsigned char b[ROOM + 1];
    char path[1024];
    size_t n = make_safetensors(b, r);
    return judge_checkpoint(write_file(path, "checkpoint", b, n), (int)below(r, 4));
}

static void checkpoints_of_any_bytes(void **unused)
{
    (void)unused;
    rounds("checkpoints", checkpoint_round, 1500);
    assert_true(opened > 20);
}

/* ---- logs ---- */

static bool log_round(uint64_t *r)
{
    static char b[ROOM + 1];
    char path[2][1024], other[1024], beside[1100];
    bool agreed = below(r, 2) == 1;
    size_t bytes = 0;
    for (int i = 0; i < 2; i++) {
        int k = pick(r, ".log");
        size_t n = corpus[k].n;
        memcpy(b, corpus[k].bytes, n);
        if (i == 1 || below(r, 2) == 0)
            n = changes(b, n, r);
        write_file(path[i], i == 0 ? "a.log" : "b.log", b, n);
        bytes += n;
        tl_log_values_path(beside, sizeof beside, path[i], 2);
        unlink(beside);
        if (below(r, 16) == 0) { /* values beside it */
            static unsigned char s[ROOM + 1];
            size_t m = make_safetensors(s, r);
            write_file(other, strrchr(beside, '/') + 1, s, m);
        }
    }
    return judge_logs(path[0], path[1], agreed, bytes);
}

static void logs_of_any_bytes(void **unused)
{
    (void)unused;
    rounds("logs", log_round, 800);
    assert_true(opened > 50); /* many have something to report */
}

/* ---- arrays of other programs ---- */

static bool array_round(uint64_t *r)
{
    static unsigned char b[ROOM + 1];
    int i = pick(r, subject);
    size_t n = corpus[i].n;
    memcpy(b, corpus[i].bytes, n);
    n = changes((char *)b, n, r);
    if (below(r, 4) != 0)
        judged_crc(b, n);
    return judge_arrays(b, n, below(r, 2) ? TL_F32 : TL_DTYPE_DEFAULT);
}

static void arrays_of_any_bytes(void **unused)
{
    (void)unused;
    rounds(subject + 1, array_round, 1500);
    assert_true(opened > 50);
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
static bool model_round(uint64_t *r)
{
    static char b[ROOM + 1];
    static const char *const file[] = {"config.json", "model.safetensors",
                                       "model.safetensors.index.json"};
    const bool folder = strcmp(subject, "folder") == 0;
    char path[1024];
    size_t n, bytes = 0, shards = below(r, 2);
    const char *family = below(r, 2) ? "llama" : "gpt2";
    for (size_t i = 0; i < 3 && folder; i++) {
        snprintf(path, sizeof path, "%s/%s", family, file[i]);
        change_text(b, &n, r, path);
        unlink(temp_dir_file(path, &dir, file[i]));
        if (i != 1 || shards == 0) /* without it, the index is read */
            write_file(path, file[i], b, n);
        bytes += n;
        if (i == 1)
            write_file(path, "shard.safetensors", b, n);
    }
    if (folder)
        return judge_model(dir.path, JUDGED_FOLDER, bytes);
    change_text(b, &n, r, subject);
    return judge_model(write_file(path, "llmc", b, n),
                       strcmp(subject, "gpt2.llmc") == 0 ? JUDGED_LLMC : JUDGED_TOKENS, n);
}

static void models_of_any_bytes(void **unused)
{
    (void)unused;
    rounds(subject, model_round, 500);
    assert_true(opened > 20);
}

static bool tokenizer_round(uint64_t *r)
{
    static char b[ROOM + 1];
    size_t n;
    change_text(b, &n, r, below(r, 2) ? "gpt2.tokenizer.json" : "llama3.tokenizer.json");
    int i = (int)below(r, (size_t)n_corpus);
    return judge_tokenizer(b, n, corpus[i].bytes, corpus[i].n < 1000 ? corpus[i].n : 1000);
}

static void tokenizers_of_any_bytes(void **unused)
{
    (void)unused;
    rounds("tokenizers", tokenizer_round, 600);
    assert_true(opened > 50);
}

/* ---- files that end early ---- */

/* By its name, as whatever reads such files. */
static void judge_any(const char *name, const char *b, size_t n)
{
    char path[2][1024];
    const char *end = strrchr(name, '.'), *in = strchr(name, '/');
    if (in != NULL) {
        char family[16];
        snprintf(family, sizeof family, "%.*s", (int)(in - name), name);
        judge_folder(dir.path, family, in + 1, b, n);
    } else if (strcmp(end, ".safetensors") == 0) {
        judge_safetensors(b, n);
        write_file(path[0], "checkpoint", b, n);
        for (int how = 0; how < 4; how++)
            judge_checkpoint(path[0], how);
    } else if (strcmp(end, ".json") == 0) {
        judge_tokenizer(b, n, "a text", 6);
    } else if (strcmp(end, ".llmc") == 0) {
        judge_model(write_file(path[0], "llmc", b, n),
                    strcmp(name, "tokens.llmc") == 0 ? JUDGED_TOKENS : JUDGED_LLMC, n);
    } else if (strcmp(end, ".log") == 0) {
        write_file(path[0], "a.log", b, n);
        judge_logs(path[0], path[0], false, 2 * n);
    } else if (strcmp(end, ".tokens") != 0) {
        judge_arrays(b, n, TL_DTYPE_DEFAULT);
    }
}

/* Every file of the corpus, cut off after each of its bytes in a minute of TL_FUZZ or more, else
 * after some. */
static void files_cut_off_anywhere(void **unused)
{
    const char *seconds = getenv("TL_FUZZ");
    const bool all = seconds != NULL && atoi(seconds) >= 60;
    int cuts = 0;
    (void)unused;
    for (int i = 0; i < n_corpus; i++)
        for (size_t n = 0; n <= corpus[i].n; cuts++) {
            snprintf(judged, sizeof judged, "%.40s cut after %zu", corpus[i].name, n);
            judge_any(corpus[i].name, corpus[i].bytes, n);
            n += all || n < 16 || corpus[i].n - n < 4 ? 1 : 1 + corpus[i].n / 40;
        }
    print_message("%d files that end early\n", cuts);
    assert_true(cuts > 1000);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
#define TEST_OF(what, test, subject)    \
    {                                   \
        what, test, begin, end, subject \
    }
const struct CMUnitTest tl_tests_fuzz_files[] = {
    TEST(safetensors_of_any_bytes),
    TEST_OF("npy_of_any_bytes", arrays_of_any_bytes, ".npy"),
    TEST_OF("npz_of_any_bytes", arrays_of_any_bytes, ".npz"),
    TEST_OF("idx_of_any_bytes", arrays_of_any_bytes, ".idx"),
    TEST_OF("csv_of_any_bytes", arrays_of_any_bytes, ".csv"),
    TEST_OF("folders_of_any_bytes", models_of_any_bytes, "folder"),
    TEST_OF("llmc_of_any_bytes", models_of_any_bytes, "gpt2.llmc"),
    TEST_OF("llmc_tokens_of_any_bytes", models_of_any_bytes, "tokens.llmc"),
    TEST(tokenizers_of_any_bytes),
    TEST(checkpoints_of_any_bytes),
    TEST(logs_of_any_bytes),
    TEST(files_cut_off_anywhere),
};
const size_t tl_tests_fuzz_files_count = sizeof tl_tests_fuzz_files / sizeof *tl_tests_fuzz_files;
