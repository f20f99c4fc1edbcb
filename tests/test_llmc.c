/* llm.c's own losses over 40 steps, from its checkpoint and its tokens: tests/golden/llmc.txt,
 * whose figures llm.c's train_gpt2.c has printed. The two files are made here, of whole numbers;
 * their hashes stand beside the figures. TL_LLMC=FOLDER leaves the files there, to repeat it. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tally_models.h>

#include "tensor/files/file.h"
#include "tensor/files/hash.h"
#include "tensor/memory.h"
#include "tests/temp_dir.h"

extern const struct CMUnitTest tl_tests_llmc[];
extern const size_t tl_tests_llmc_count;

/* B and T are train_gpt2.c's. The last step's targets end a token later. */
enum { B = 4, T = 64, STEPS = 40, VOCAB = 200, N = (STEPS + 1) * B * T + 1 };

static int64_t tokens[N];

/* -1 to 1 - 2^-23, each a whole number of 2^-23: the i-th of a generator of its own. */
static float uniform(uint64_t i)
{
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (float)((int64_t)((x ^ x >> 31) >> 40) - (1 << 23)) / (1 << 23);
}

/* A GPT-2: matrices of up to an eighth, biases too, weights of norms round 1. */
static void make_checkpoint(const char *path)
{
    const tl_decoder_config c = {
        TL_FAMILY_GPT2,
        .gpt2 = {.vocab = VOCAB, .width = 32, .layers = 2, .heads = 4, .max_positions = T}};
    static float x[VOCAB * 32];
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    uint64_t at = 0;
    tl_decoder(t, m, &c, tl_data(t, tokens, TL_I64, TL_DIMS(1, 1)));
    for (int i = 0; i < tl_model_count(m); i++) {
        tl_named p = tl_model_at(m, i);
        int64_t n = tl_array_count(&p.array);
        bool norm = strstr(p.name, "norm") != NULL && strstr(p.name, "weight") != NULL;
        assert_true(n <= VOCAB * 32);
        for (int64_t k = 0; k < n; k++)
            x[k] = (norm ? 1.f : 0.f) + uniform(at++) / 8;
        assert_int_equal(tl_write(m, tl_model_find(m, p.name), x, (size_t)n * sizeof *x), TL_OK);
    }
    if (tl_llmc_save(m, path, &c) != TL_OK)
        fail_msg("%s", tl_error(m));
    tl_free(t, m);
}

/* A text that can be learnt: 16 of the tokens, of which each has a few that follow it. */
static void make_tokens(const char *path)
{
    for (int i = 1; i < N; i++)
        tokens[i] = (tokens[i - 1] * 7 + (int64_t)(uniform((uint64_t)i) * 4) + 9) % 16 * 12;
    assert_int_equal(tl_llmc_tokens_save(path, tokens, N, NULL), TL_OK);
}

static void hash_file(const char *path, char hex[TL_SHA256_HEX])
{
    char *bytes;
    size_t n;
    tl_sha256_ctx h;
    assert_int_equal(tl_file_read(path, 1 << 20, &bytes, &n, NULL), TL_OK);
    tl_sha256_begin(&h, NULL);
    tl_sha256_feed(&h, bytes, n);
    assert_int_equal(tl_sha256_finish_hex(&h, hex, NULL), TL_OK);
    tl_free_raw(bytes);
}

/* Of each step, in llm.c's order: batches one after another, AdamW with its numbers. */
static void train(const char *checkpoint, const char *data, double losses[STEPS])
{
    static int64_t text[N];
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_decoder_config c;
    if (tl_llmc_load(m, checkpoint, &c) != TL_OK ||
        tl_keep(t, tl_llmc_tokens_load(m, data), text, sizeof text) != TL_OK)
        fail_msg("%s", tl_error(m));
    tl_opt *o = tl_adamw_new(m, .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8);
    for (int s = 0; s < STEPS; s++) {
        const int64_t *at = text + s * B * T;
        tl_tensor x = tl_data(t, at, TL_I64, TL_DIMS(B, T)),
                  y = tl_data(t, at + 1, TL_I64, TL_DIMS(B, T)),
                  loss = tl_cross_entropy(t, tl_decoder(t, m, &c, x), y, TL_MEAN);
        losses[s] = tl_item(t, loss);
        tl_backward(t, loss);
        if (tl_step(o, t) != TL_OK)
            fail_msg("step %d: %s", s, tl_error(t));
        tl_tape_reset(t);
    }
    tl_free(o, t, m);
}

static void losses_are_those_of_llm_c(void **unused)
{
    char path[2][1024], hex[2][TL_SHA256_HEX], line[256], name[64], value[128];
    const char *keep = getenv("TL_LLMC");
    double losses[STEPS], most = 0;
    int step = 0, hashes = 0;
    temp_dir dir;
    (void)unused;
    assert_true(temp_dir_make(&dir));
    snprintf(path[0], 1024, "%s/gpt2_124M.bin", keep != NULL ? keep : dir.path);
    snprintf(path[1], 1024, "%s/tokens.bin", keep != NULL ? keep : dir.path);
    make_tokens(path[1]);
    make_checkpoint(path[0]);
    hash_file(path[0], hex[0]);
    hash_file(path[1], hex[1]);
    print_message("checkpoint %s\ntokens %s\n", hex[0], hex[1]);
    train(path[0], path[1], losses);
    FILE *f = fopen(TL_ROOT "/tests/golden/llmc.txt", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f) != NULL) {
        if (*line == '#' || sscanf(line, "%63s %127s", name, value) != 2)
            continue;
        for (int i = 0; i < 2; i++)
            if (strcmp(name, i == 0 ? "checkpoint" : "tokens") == 0) {
                assert_string_equal(value, hex[i]);
                hashes++;
            }
        if (*name < '0' || *name > '9')
            continue;
        assert_int_equal(atoi(name), step);
        double off = fabs(losses[step++] - atof(value));
        most = off > most ? off : most;
    }
    fclose(f);
    print_message("losses from %.6f to %.6f differ by %.1e at most\n", losses[0], losses[STEPS - 1],
                  most);
    assert_true(hashes == 2 && step == STEPS && losses[STEPS - 1] < losses[0] - 0.1);
    assert_true(most < 1e-5); /* llm.c prints six places */
    temp_dir_remove(&dir);
}

const struct CMUnitTest tl_tests_llmc[] = {cmocka_unit_test(losses_are_those_of_llm_c)};
const size_t tl_tests_llmc_count = sizeof tl_tests_llmc / sizeof *tl_tests_llmc;
