/* generate: continues prompts with a language model in the files of other programs.
 *
 *     generate MODEL [--flag value]... [--] PROMPT...
 *
 * MODEL is a Hugging Face folder or a checkpoint of llm.c. A tokenizer.json in the folder is its
 * tokenizer; without any, prompts are token numbers, and so is what is written.
 * Several prompts make one batch, in which each gets the text that it gets alone: no bit of a
 * sample depends on the others, and no draw does.
 *
 * In order: flags, prompts, drawing a token, the loop. */
#include <sys/stat.h>
#include <tally_data.h>
#include <tally_models.h>

#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 64, TOKENS = 4096 };

static struct {
    const char *model, *tokenizer, *stop, *prompt[MOST];
    double temperature, top_k, top_p, tokens, seed, check;
    int prompts;
} opt = {.temperature = 0.8, .top_p = 1, .tokens = 64, .seed = 1};

static tl_model *m;
static tl_tape *t;
static tl_decoder_config config;
static tl_tokenizer *tokenizer;
static int64_t text[MOST][TOKENS], n_text[MOST], begun[MOST]; /* tokens; those of the prompt */
static bool done[MOST];

static _Noreturn void die(int status, const char *fmt, ...) TL_PRINTF(2, 3);
static _Noreturn void die(int status, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fflush(stdout);
    fputs("generate: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    exit(status);
}

static void written(void)
{
    errno = EIO; /* if a write has failed before this one, which may say more */
    if (fflush(stdout) != 0 || ferror(stdout))
        die(1, "cannot write the output: %s", strerror(errno));
}

static void *need(void *p)
{
    if (p == NULL)
        die(1, "out of memory");
    return p;
}

/* ---- flags ---- */

/* A word where there is one to name; a number from 0 to `most`, whole or not; else yes. */
static const struct {
    const char *flag, *word;
    void *field;
    double most;
    bool whole;
    const char *meaning;
} option[] = {
    {"--tokenizer", "FILE", &opt.tokenizer, 0, false, "a tokenizer.json; default: MODEL's own"},
    {"--temperature", NULL, &opt.temperature, 1e6, false,
     "how freely tokens are drawn; 0: always the likeliest"},
    {"--top-k", NULL, &opt.top_k, 1e9, true, "draw from this many of the likeliest tokens; 0: all"},
    {"--top-p", NULL, &opt.top_p, 1, false,
     "and of those from the fewest that have this probability"},
    {"--tokens", NULL, &opt.tokens, TOKENS, true,
     "at most this many tokens; the model's last position ends the text"},
    {"--seed", NULL, &opt.seed, 9e15, true, "of the random draws: the same seed, the same text"},
    {"--stop", "TEXT", &opt.stop, 0, false, "end with the token that completes this text"},
    {"--check", "", &opt.check, 0, false,
     "compare each token's logits with those of the whole text at once"},
    {"--", "", NULL, 0, false, "no flags from here on: a prompt may begin with --"},
};
enum { OPTIONS = sizeof option / sizeof *option };

static _Noreturn void help(void)
{
    puts("usage: generate MODEL [--flag value]... [--] PROMPT...\n\n"
         "Continues each prompt with a language model: writes the text that the model finds "
         "likely\nto follow. MODEL is a Hugging Face folder of a Llama or a GPT-2 (config.json and "
         ".safetensors)\nor a checkpoint of llm.c. A PROMPT is a text, in quotes. Without a "
         "tokenizer.json,\nprompts and what is written are token numbers, as in \"7 3\".\n\n"
         "Flags and their defaults:\n");
    for (int i = 0; i < OPTIONS; i++) {
        char preset[32];
        snprintf(preset, sizeof preset, "%g", option[i].word ? 0 : *(double *)option[i].field);
        printf("  %-14s %-6s %s\n", option[i].flag, option[i].word ? option[i].word : preset,
               option[i].meaning);
    }
    puts("\nexit status: 0 done, 1 failed, 2 wrong use");
    written();
    exit(0);
}

/* Takes in a flag, and returns how many words that were. */
static int flag(const char *name, const char *value)
{
    char *end;
    int i = 0;
    while (i < OPTIONS && strcmp(name, option[i].flag) != 0)
        i++;
    if (i == OPTIONS)
        die(2, "unknown flag '%s'; --help lists all", name);
    if (option[i].word != NULL && *option[i].word == '\0') {
        *(double *)option[i].field = 1;
        return 1;
    }
    if (value == NULL)
        die(2, "%s needs a value", name);
    if (option[i].word != NULL) {
        *(const char **)option[i].field = value;
        return 2;
    }
    double x = strtod(value, &end);
    if (end == value || *end != '\0' || !(x >= 0 && x <= option[i].most) ||
        (option[i].whole && x != (double)(int64_t)x))
        die(2, "%s %s: a %snumber from 0 to %.16g is needed", name, value,
            option[i].whole ? "whole " : "", option[i].most);
    *(double *)option[i].field = x;
    return 2;
}

static void flags(int argc, char **argv)
{
    for (int i = 1, ended = 0; i < argc;) {
        const char *f = argv[i];
        if (!ended && (strcmp(f, "-h") == 0 || strcmp(f, "--help") == 0))
            help();
        if (!ended && strcmp(f, "--") == 0)
            ended = i++;
        else if (!ended && strncmp(f, "--", 2) == 0)
            i += flag(f, i + 1 < argc ? argv[i + 1] : NULL);
        else if (i++, opt.model == NULL)
            opt.model = f;
        else if (opt.prompts < MOST)
            opt.prompt[opt.prompts++] = f;
        else
            die(2, "more than %d prompts", MOST);
    }
    if (opt.model == NULL || opt.prompts == 0)
        die(2, "usage: generate MODEL [--flag value]... [--] PROMPT...; --help says more");
}

/* ---- prompts ---- */

/* What tl_save and tl_checkpoint_save write holds parameters, but not what is computed of them. */
static void refuse_safetensors(void)
{
    char begin[9] = "";
    FILE *f = fopen(opt.model, "rb");
    size_t n = f != NULL ? fread(begin, 1, sizeof begin, f) : 0;
    if (f != NULL)
        fclose(f);
    if (n == sizeof begin && begin[8] == '{')
        die(1,
            "%s: a single .safetensors file, as Tally's checkpoints are: it does not say what kind "
            "of model its tensors make. Name a folder with such a file and its config.json; "
            "tl_hf_save writes one",
            opt.model);
}

static void load(void)
{
    static char path[4096];
    struct stat s;
    tl_err err = {.status = TL_OK};
    bool there = stat(opt.model, &s) == 0, folder = there && S_ISDIR(s.st_mode);
    if (there && S_ISREG(s.st_mode)) /* a pipe would be waited for */
        refuse_safetensors();
    m = tl_model_new(.seed = 1);
    t = tl_tape_new(m);
    if (m == NULL || t == NULL ||
        (folder ? tl_hf_load(m, opt.model, &config) : tl_llmc_load(m, opt.model, &config)) != TL_OK)
        die(1, "%s", tl_error(m));
    snprintf(path, sizeof path, "%s/tokenizer.json", opt.model);
    if (opt.tokenizer == NULL && folder && access(path, F_OK) == 0)
        opt.tokenizer = path;
    if (opt.tokenizer != NULL && tl_tokenizer_open(&tokenizer, opt.tokenizer, &err) != TL_OK)
        die(1, "%s", err.message);
    if (opt.stop != NULL && (tokenizer == NULL || *opt.stop == '\0'))
        die(2, "--stop '%s': a text and a tokenizer are needed", opt.stop);
}

static void read_prompt(int i, int64_t vocab)
{
    tl_err err = {.status = TL_OK};
    const char *s = opt.prompt[i];
    if (tokenizer != NULL)
        n_text[i] = tl_tokenizer_encode(tokenizer, s, strlen(s), true, text[i], TOKENS, &err);
    for (char *end; tokenizer == NULL && n_text[i] < TOKENS; s = end) {
        errno = 0;
        int64_t id = strtoll(s, &end, 10);
        if (end == s)
            break;
        s += strspn(s, " \t\n");
        if (errno == ERANGE)
            die(1, "prompt %d: token %" PRId64 " is %.*s; the model has 0 to %" PRId64, i + 1,
                n_text[i] + 1, (int)(end - s), s, vocab - 1);
        text[i][n_text[i]++] = id;
    }
    if (n_text[i] < 0)
        die(1, "%s", err.message);
    if (tokenizer == NULL && n_text[i] < TOKENS && s[strspn(s, " \t\n")] != '\0')
        die(1, "prompt %d: '%.40s' is not a token number; for text name a --tokenizer FILE", i + 1,
            s);
    if (n_text[i] == 0 || n_text[i] >= TOKENS)
        die(1, "prompt %d has %s%" PRId64 " tokens; 1 to %d are possible", i + 1,
            tokenizer == NULL && n_text[i] > 0 ? "at least " : "", n_text[i], TOKENS - 1);
    for (int64_t k = 0; k < n_text[i]; k++)
        if (text[i][k] < 0 || text[i][k] >= vocab)
            die(1, "prompt %d: token %" PRId64 " is %" PRId64 "; the model has 0 to %" PRId64,
                i + 1, k + 1, text[i][k], vocab - 1);
    begun[i] = n_text[i];
}

/* ---- drawing a token ---- */

static const float *logit; /* of the one that is drawn */

/* The likelier first; of equals the lower id. */
static int by_logit(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return logit[x] != logit[y] ? (logit[x] < logit[y]) - (logit[x] > logit[y]) : (x > y) - (x < y);
}

/* The token of step `step` of any text: its draw is a function of seed and step alone. */
static int64_t draw(const float *z, int64_t vocab, int64_t step)
{
    int64_t *id = need(malloc((size_t)vocab * sizeof *id)), n = vocab, next = 0;
    double *p = need(malloc((size_t)vocab * sizeof *p)), sum = 0, kept = 0;
    logit = z;
    for (int64_t i = 0; i < vocab; i++) {
        if (!(z[i] >= -FLT_MAX && z[i] <= FLT_MAX))
            die(1, "written token %" PRId64 ": the logit of token number %" PRId64 " is %g",
                step + 1, i, (double)z[i]);
        id[i] = i;
    }
    qsort(id, (size_t)vocab, sizeof *id, by_logit);
    n = opt.temperature == 0 ? 1 : opt.top_k > 0 && opt.top_k < (double)n ? (int64_t)opt.top_k : n;
    for (int64_t i = 0; i < n; i++) {
        double off = (double)z[id[i]] - (double)z[id[0]];
        sum += p[i] = n == 1 ? 1 : tl_f64_exp(off / opt.temperature);
    }
    for (int64_t i = 0; i < n; i++)
        if ((kept += p[i]) >= opt.top_p * sum)
            n = i + 1; /* the fewest that have top_p together */
    double at = kept *
                tl_rng_uniform64(tl_rng_stream((uint64_t)opt.seed, "generate"), (uint64_t)step, 0);
    while (next < n - 1 && at >= p[next])
        at -= p[next++];
    next = id[next];
    free(id);
    free(p);
    return next;
}

/* ---- the loop ---- */

/* Logits (b, s, vocab) of tokens as f32; the caller frees. */
static float *logits(const int64_t *ids, int64_t b, int64_t s, int64_t vocab, tl_columns columns)
{
    size_t bytes = (size_t)(b * s * vocab) * sizeof(float);
    float *z = need(malloc(bytes));
    tl_tensor x = tl_data(t, ids, TL_I64, TL_DIMS(b, s));
    tl_tensor y = tl_cast(t, tl_decoder(t, m, &config, x, .columns = columns), TL_F32);
    if (tl_keep(t, y, z, bytes) != TL_OK)
        die(1, "%s", tl_error(t));
    tl_tape_reset(t);
    return z;
}

static void show(int64_t id)
{
    size_t n;
    const char *bytes = tokenizer != NULL ? tl_tokenizer_bytes(tokenizer, id, &n) : NULL;
    if (bytes != NULL)
        fwrite(bytes, 1, n, stdout);
    else
        printf(tokenizer != NULL ? "<%" PRId64 ">" : "%" PRId64 " ", id);
    fflush(stdout);
}

/* The longest beginning of --stop, shorter than its first n bytes, that these end with. */
static size_t shorter(size_t n)
{
    size_t k = n - 1;
    while (memcmp(opt.stop, opt.stop + n - k, k) != 0)
        k--;
    return k;
}

/* The text ends with token id: one that ends all texts, or --stop has been written. */
static bool ends(int i, int64_t id)
{
    static size_t matched[MOST]; /* bytes of --stop that the text ends with */
    size_t n = 0, k = matched[i];
    for (int j = 0; j < config.stops; j++)
        if (config.stop[j] == id)
            return true;
    const char *bytes = opt.stop != NULL ? tl_tokenizer_bytes(tokenizer, id, &n) : NULL;
    if (bytes == NULL)
        k = n = 0;
    for (size_t at = 0; at < n; at++) {
        while (k > 0 && opt.stop[k] != bytes[at])
            k = shorter(k);
        k += opt.stop[k] == bytes[at];
        if (opt.stop[k] == '\0')
            return true;
    }
    matched[i] = k;
    return false;
}

/* Sample i's next token, by its logits. */
static void go_on(int i, const float *z, int64_t vocab, int64_t step)
{
    if (opt.check != 0) {
        float *whole = logits(text[i], 1, n_text[i], vocab, (tl_columns){0});
        if (memcmp(whole + (n_text[i] - 1) * vocab, z, (size_t)vocab * sizeof *z) != 0)
            die(1, "written token %" PRId64 ": the whole text at once has other logits", step + 1);
        free(whole);
    }
    int64_t id = draw(z, vocab, step);
    text[i][n_text[i]++] = id;
    done[i] = ends(i, id);
    if (opt.prompts == 1)
        show(id);
}

int main(int argc, char **argv)
{
    flags(argc, argv);
    load();
    const bool llama = config.family == TL_FAMILY_LLAMA;
    const int64_t vocab = llama ? config.llama.vocab : config.gpt2.vocab, b = opt.prompts;
    int64_t most = llama ? config.llama.max_positions : config.gpt2.max_positions, longest = 0,
            at[MOST], last[MOST], tokens = (int64_t)opt.tokens;
    most = most < TOKENS ? most : TOKENS;
    for (int i = 0; i < b; i++) {
        read_prompt(i, vocab);
        if (n_text[i] > most)
            die(1, "prompt %d has %" PRId64 " tokens; the model has %" PRId64 " positions", i + 1,
                n_text[i], most);
        longest = n_text[i] > longest ? n_text[i] : longest;
    }
    most = longest + tokens < most ? longest + tokens : most;
    tl_kv_cache cache = tl_decoder_cache(m, &config, b, most);
    tl_mode_push(t, TL_NO_GRAD | TL_EVAL);
    int64_t *ids = need(calloc((size_t)(b * longest), sizeof *ids));
    for (int i = 0; i < b; i++)
        memcpy(ids + i * longest, text[i], (size_t)n_text[i] * sizeof *ids);
    float *z = logits(ids, b, longest, vocab,
                      (tl_columns){.cache = &cache, .end = tl_data(t, n_text, TL_I64, TL_DIMS(b))});
    for (int64_t step = 0, left = b; step < tokens && left > 0; step++) {
        left = 0;
        for (int i = 0; i < b; i++) {
            int64_t row = step == 0 ? i * longest + n_text[i] - 1 : i;
            if (!done[i] && n_text[i] < most)
                go_on(i, z + row * vocab, vocab, step);
            else
                done[i] = true;
            /* one that is through writes where nobody looks any more */
            at[i] = n_text[i] - 1;
            last[i] = text[i][at[i]];
            left += !done[i] && n_text[i] < most;
        }
        free(z);
        z = left > 0 && step + 1 < tokens
                ? logits(last, b, 1, vocab,
                         (tl_columns){.cache = &cache, .at = tl_data(t, at, TL_I64, TL_DIMS(b))})
                : NULL;
    }
    for (int i = 0; i < b && b > 1; i++) {
        printf("%s", i > 0 ? "\n" : "");
        for (int64_t k = begun[i]; k < n_text[i]; k++)
            show(text[i][k]);
    }
    putchar('\n');
    written();
    free(z);
    free(ids);
    tl_tokenizer_close(tokenizer);
    tl_free(t, m);
    return 0;
}
