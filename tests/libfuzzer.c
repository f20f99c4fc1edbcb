/* libfuzzer.c: the judges of tests/fuzz_files.c under clang's fuzzer, which keeps those changes
 * that reach code no file reached before (make fuzz ENGINE=libfuzzer). TL_LOADER names the reader.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/judges.h"
#include "tests/support/steps.h"
#include "tests/temp_dir.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *b, size_t n);

int64_t steps_taken(void) { return 0; } /* -timeout bounds the work */

static temp_dir dir;
static char path[1024]; /* of the last file that was written */

static void need(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "libfuzzer: %s\n", what);
    abort();
}

static const char *written(const char *name, const void *b, size_t n)
{
    FILE *f = fopen(temp_dir_file(path, &dir, name), "wb");
    need(f != NULL && fwrite(b, 1, n, f) == n && fclose(f) == 0, path);
    return path;
}

static void folder(const char *changed, const void *b, size_t n)
{
    judge_folder(dir.path, "llama", changed, b, n);
    judge_folder(dir.path, "gpt2", changed, b, n);
}

static void safetensors(const void *b, size_t n) { judge_safetensors(b, n); }

static void checkpoint(const void *b, size_t n)
{
    written("checkpoint", b, n);
    for (int how = 0; how < 4; how++)
        judge_checkpoint(path, how);
}

static void arrays(const void *b, size_t n)
{
    judge_arrays(b, n, TL_DTYPE_DEFAULT);
    judge_arrays(b, n, TL_F32);
}

static void config(const void *b, size_t n) { folder("config.json", b, n); }
static void weights(const void *b, size_t n) { folder("model.safetensors", b, n); }
static void shards(const void *b, size_t n) { folder("model.safetensors.index.json", b, n); }
static void llmc(const void *b, size_t n) { judge_model(written("llmc", b, n), JUDGED_LLMC, n); }
static void tokens(const void *b, size_t n)
{
    judge_model(written("llmc", b, n), JUDGED_TOKENS, n);
}

static void tokenizer(const void *b, size_t n)
{
    static const char text[] = "  It's 1234 o'clock\n\t\u00e9e\u0301 \U0001f600 <|endoftext|>\xff";
    judge_tokenizer(b, n, text, sizeof text - 1);
}

static void logs(const void *b, size_t n)
{
    static const char other[] = TL_ROOT "/tests/corpus/called.log";
    written("log", b, n);
    judge_logs(other, path, true, n + 8192);
    judge_logs(path, other, false, n + 8192);
}

static const struct {
    const char *name;
    void (*judge)(const void *b, size_t n);
    void (*mend)(void *b, size_t n); /* so that what lies behind a sum of its own is met */
} loader[] = {{"safetensors", safetensors, judged_seal},
              {"checkpoint", checkpoint, judged_seal},
              {"arrays", arrays, judged_crc},
              {"config", config, NULL},
              {"weights", weights, judged_seal},
              {"index", shards, NULL},
              {"tokenizer", tokenizer, NULL},
              {"llmc", llmc, NULL},
              {"tokens", tokens, NULL},
              {"log", logs, NULL}};
static size_t chosen;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    const char *name = getenv("TL_LOADER");
    while (chosen < sizeof loader / sizeof *loader &&
           (name == NULL || strcmp(loader[chosen].name, name) != 0))
        chosen++;
    need(chosen < sizeof loader / sizeof *loader, "TL_LOADER names none of the loaders");
    need(temp_dir_make(&dir), "no folder for files");
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *b, size_t n)
{
    loader[chosen].judge(b, n);
    if (loader[chosen].mend == NULL || n == 0)
        return 0;
    uint8_t *mended = malloc(n);
    need(mended != NULL, "no memory");
    memcpy(mended, b, n);
    loader[chosen].mend(mended, n);
    if (memcmp(mended, b, n) != 0)
        loader[chosen].judge(mended, n);
    free(mended);
    return 0;
}
