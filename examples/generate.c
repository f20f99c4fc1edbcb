/* generate: a decoder from a file of others writes on from prompts.
 *
 *     generate MODEL [--tokenizer FILE] [--temperature X] [--top-k N] [--top-p X] [--tokens N]
 *              [--seed N] [--stop TEXT] [--check] PROMPT ...
 *
 * MODEL is a folder of Hugging Face's or a checkpoint of llm.c's; the folder's tokenizer.json is
 * the tokenizer, if it has one. Without any, prompts and what is written are numbers of tokens.
 * Several prompts make one batch, in which each gets the text that it gets alone: no bit of a
 * sample depends on the others, and no draw does. --check computes the whole forward pass at each
 * step as well, and ends with 1 if a bit of the logits is another than with the cache.
 *
 * In order: flags, prompts, drawing a token, the loop. */
#include <sys/stat.h>
#include <tally_data.h>
#include <tally_models.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 64, TOKENS = 4096 };

static struct {
    const char *model, *tokenizer, *stop, *prompt[MOST];
    double temperature, top_p;
    int64_t top_k, tokens, seed;
    bool check;
    int prompts;
} opt = {.temperature = 0.8, .top_p = 1, .tokens = 64, .seed = 1};

static tl_model *m;
static tl_tape *t;
static tl_decoder_config config;
static tl_tokenizer *tokenizer;
static int64_t text[MOST][TOKENS], n_text[MOST], begun[MOST]; /* tokens; those of the prompt */
static bool done[MOST];

static _Noreturn void die(const char *why)
{
    fprintf(stderr, "generate: %s\n", why);
    exit(1);
}

/* ---- flags ---- */

static double number(const char *flag, const char *value)
{
    char *end = NULL;
    double x = value != NULL ? strtod(value, &end) : 0;
    if (value == NULL || end == value || *end != '\0' || !(x >= 0 && x < 1e15)) {
        fprintf(stderr, "generate: %s takes a number from 0 on, not '%s'\n", flag,
                value != NULL ? value : "");
        exit(2);
    }
    return x;
}

static _Noreturn void usage(FILE *to, int status)
{
    fprintf(to, "usage: generate MODEL [--tokenizer FILE] [--temperature X] [--top-k N] "
                "[--top-p X] [--tokens N] [--seed N] [--stop TEXT] [--check] PROMPT ...\n");
    exit(status);
}

static void flags(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *f = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(f, "--help") == 0)
            usage(stdout, 0);
        else if (strcmp(f, "--check") == 0)
            opt.check = true;
        else if (strncmp(f, "--", 2) != 0 && opt.model == NULL)
            opt.model = f;
        else if (strncmp(f, "--", 2) != 0 && opt.prompts < MOST)
            opt.prompt[opt.prompts++] = f;
        else {
            if (strcmp(f, "--tokenizer") == 0)
                opt.tokenizer = value;
            else if (strcmp(f, "--stop") == 0)
                opt.stop = value;
            else if (strcmp(f, "--temperature") == 0)
                opt.temperature = number(f, value);
            else if (strcmp(f, "--top-p") == 0)
                opt.top_p = number(f, value);
            else if (strcmp(f, "--top-k") == 0)
                opt.top_k = (int64_t)number(f, value);
            else if (strcmp(f, "--tokens") == 0)
                opt.tokens = (int64_t)number(f, value);
            else if (strcmp(f, "--seed") == 0)
                opt.seed = (int64_t)number(f, value);
            else
                usage(stderr, 2);
            i++;
        }
    }
    if (opt.model == NULL || opt.prompts == 0)
        usage(stderr, 2);
}

/* ---- prompts ---- */

static void load(void)
{
    static char path[4096];
    struct stat s;
    tl_err err = {.status = TL_OK};
    bool folder = stat(opt.model, &s) == 0 && S_ISDIR(s.st_mode);
    m = tl_model_new(.seed = 1);
    t = tl_tape_new(m);
    if (m == NULL || t == NULL ||
        (folder ? tl_hf_load(m, opt.model, &config) : tl_llmc_load(m, opt.model, &config)) != TL_OK)
        die(tl_error(m));
    snprintf(path, sizeof path, "%s/tokenizer.json", opt.model);
    if (opt.tokenizer == NULL && folder && access(path, F_OK) == 0)
        opt.tokenizer = path;
    if (opt.tokenizer != NULL && tl_tokenizer_open(&tokenizer, opt.tokenizer, &err) != TL_OK)
        die(err.message);
}

static void read_prompt(int i, int64_t vocab)
{
    tl_err err = {.status = TL_OK};
    const char *s = opt.prompt[i];
    if (tokenizer != NULL)
        n_text[i] = tl_tokenizer_encode(tokenizer, s, strlen(s), true, text[i], TOKENS, &err);
    for (char *end; tokenizer == NULL && n_text[i] < TOKENS; s = end) {
        int64_t id = strtoll(s, &end, 10);
        if (end == s)
            break;
        text[i][n_text[i]++] = id;
    }
    if (n_text[i] < 0)
        die(err.message);
    if (n_text[i] == 0 || n_text[i] > TOKENS)
        die("a prompt has no token, or too many");
    for (int64_t k = 0; k < n_text[i]; k++)
        if (text[i][k] < 0 || text[i][k] >= vocab)
            die("a prompt's token is none of the model's");
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
    int64_t *id = malloc((size_t)vocab * sizeof *id), n = vocab, next = 0;
    double *p = malloc((size_t)vocab * sizeof *p), sum = 0, kept = 0;
    if (id == NULL || p == NULL)
        die("out of memory");
    logit = z;
    for (int64_t i = 0; i < vocab; i++)
        id[i] = i;
    qsort(id, (size_t)vocab, sizeof *id, by_logit);
    n = opt.temperature == 0 ? 1 : opt.top_k > 0 && opt.top_k < n ? opt.top_k : n;
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
    float *z = malloc(bytes);
    tl_tensor x = tl_data(t, ids, TL_I64, TL_DIMS(b, s));
    tl_tensor y = tl_cast(t, tl_decoder(t, m, &config, x, .columns = columns), TL_F32);
    if (z == NULL || tl_keep(t, y, z, bytes) != TL_OK)
        die(tl_error(t));
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

/* The text ends with token id: one that ends all texts, or --stop has been written. */
static bool ends(int i, int64_t id)
{
    char tail[1024] = "";
    size_t n, length = 0, want = opt.stop != NULL ? strlen(opt.stop) : 0;
    for (int k = 0; k < config.stops; k++)
        if (config.stop[k] == id)
            return true;
    for (int64_t k = begun[i]; k < n_text[i] && want > 0 && tokenizer != NULL; k++) {
        const char *bytes = tl_tokenizer_bytes(tokenizer, text[i][k], &n);
        if (bytes == NULL || length + n >= sizeof tail) {
            length = 0;
            n = n < sizeof tail ? n : 0;
        }
        memcpy(tail + length, bytes != NULL ? bytes : "", n);
        tail[length += n] = '\0';
    }
    return want > 0 && strstr(tail, opt.stop) != NULL;
}

/* Sample i's next token, by its logits. */
static void go_on(int i, const float *z, int64_t vocab, int64_t step)
{
    if (opt.check) {
        float *whole = logits(text[i], 1, n_text[i], vocab, (tl_columns){0});
        if (memcmp(whole + (n_text[i] - 1) * vocab, z, (size_t)vocab * sizeof *z) != 0)
            die("the whole forward pass has other logits than the cache");
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
    int64_t *positions = llama ? &config.llama.max_positions : &config.gpt2.max_positions,
            longest = 0, most = *positions < TOKENS ? *positions : TOKENS, at[MOST], last[MOST];
    for (int i = 0; i < b; i++) {
        read_prompt(i, vocab);
        longest = n_text[i] > longest ? n_text[i] : longest;
    }
    if (longest > most)
        die("a prompt is longer than what the model has positions for");
    most = longest + opt.tokens < most ? longest + opt.tokens : most;
    if (llama)
        *positions = most; /* a table of no more rows than are used */
    tl_kv_cache cache = tl_decoder_cache(m, &config, b, most);
    tl_mode_push(t, TL_NO_GRAD | TL_EVAL);
    int64_t *ids = calloc((size_t)(b * longest), sizeof *ids);
    if (ids == NULL)
        die("out of memory");
    for (int i = 0; i < b; i++)
        memcpy(ids + i * longest, text[i], (size_t)n_text[i] * sizeof *ids);
    float *z = logits(ids, b, longest, vocab,
                      (tl_columns){.cache = &cache, .end = tl_data(t, n_text, TL_I64, TL_DIMS(b))});
    for (int64_t step = 0, left = b; step < opt.tokens && left > 0; step++) {
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
        z = left > 0 && step + 1 < opt.tokens
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
    free(z);
    free(ids);
    tl_tokenizer_close(tokenizer);
    tl_free(t, m);
    return 0;
}
