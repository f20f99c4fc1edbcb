/* example_data.c: what several examples learn from - text as ids, and digits drawn by strokes. */
#include <ctype.h>
#include <errno.h>
#include <glob.h>
#include <math.h>
#include <openssl/evp.h>
#include <unistd.h>

#include "examples/example.h"

/* ---- text: bytes, numbered by the sorted vocabulary of those that occur ---- */

struct ex_text ex_text = {.seq = 48, .sample = 300, .temperature = 0.8};

enum { TEXT_MOST = 1 << 30 }; /* bytes: a pipe may have no end */

static void text_append(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL)
        ex_die(EX_FAILED, "cannot read %s: %s", path, strerror(errno));
    for (size_t got = 1, room = 1 << 20; got > 0; ex_text.n += (int64_t)got) {
        if (ex_text.n > TEXT_MOST)
            ex_die(EX_FAILED, "with %s the text has more than %d bytes; give a part of it", path,
                   TEXT_MOST);
        room = ex_text.n > 1 << 22 ? (size_t)ex_text.n / 4 : room;
        ex_text.byte = ex_need(realloc(ex_text.byte, (size_t)ex_text.n + room));
        got = fread(ex_text.byte + ex_text.n, 1, room, f);
    }
    if (ferror(f))
        ex_die(EX_FAILED, "cannot read %s: %s", path, strerror(errno));
    fclose(f);
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The project's own headers and documents: the list sorted by bytes, so that no locale changes it.
 * Columns are aligned by more spaces than a window shows: of a run four stay. */
static void text_append_project(void)
{
    glob_t g;
    if (access("tally.h", R_OK) != 0 || /* else it would be any folder's files */
        glob("{,{tensor,autograd,ops,nn,examples,tests}/{,*/,*/*/}}{*.h,*.md}", GLOB_BRACE, NULL,
             &g) != 0)
        ex_die(EX_FAILED,
               "this is not the project's folder, whose files are the text; go there, or name one: "
               "--text FILE");
    qsort(g.gl_pathv, g.gl_pathc, sizeof *g.gl_pathv, by_bytes);
    for (size_t i = 0; i < g.gl_pathc; i++)
        text_append(g.gl_pathv[i]);
    globfree(&g);
    int64_t n = 0;
    for (int64_t i = 0, spaces = 0; i < ex_text.n; i++) {
        spaces = ex_text.byte[i] == ' ' ? spaces + 1 : 0;
        if (spaces <= 4)
            ex_text.byte[n++] = ex_text.byte[i];
    }
    ex_text.n = n;
}

void ex_text_read(void)
{
    const char *path = ex_text.path;
    const int64_t seq = ex_text.seq;
    ex_text.name = path != NULL ? path : "the project's headers and documents";
    if (path != NULL)
        text_append(path);
    else
        text_append_project();
    ex_text.train = ex_text.n - ex_text.n / 10;
    if (ex_text.train <= seq || ex_text.n / 10 < 2)
        ex_die(EX_WRONG_USE,
               "%s is too short: %" PRId64
               " bytes, of which a tenth is held out; with --seq %" PRId64 " at least %" PRId64
               " are needed",
               ex_text.name, ex_text.n, seq, seq < 18 ? 20 : seq + 1 + seq / 9);
    for (int64_t i = 0; i < ex_text.n; i++)
        ex_text.id_of[ex_text.byte[i]] = 1;
    for (int b = 0; b < 256; b++)
        if (ex_text.id_of[b] != 0) {
            ex_text.byte_of[ex_text.vocab] = (unsigned char)b;
            ex_text.id_of[b] = ex_text.vocab++;
        }
    unsigned char hash[EVP_MAX_MD_SIZE];
    if (EVP_Digest(ex_text.byte, (size_t)ex_text.n, hash, NULL, EVP_sha256(), NULL) != 1)
        ex_die(EX_FAILED, "%s: no memory for its hash", ex_text.name);
    for (int i = 0; i < 32; i++)
        snprintf(ex_text.sha256 + 2 * i, 3, "%02x", hash[i]);
    printf("text      %s: %" PRId64 " bytes of %d different values, the last %" PRId64
           " held out, sha256 %.16s\n",
           ex_text.name, ex_text.n, ex_text.vocab, ex_text.n - ex_text.train, ex_text.sha256);
}

void ex_text_window(int64_t at, int64_t *ids, int64_t *targets)
{
    for (int64_t i = 0; i < ex_text.seq; i++, at++) {
        ids[i] = at < ex_text.n ? ex_text.id_of[ex_text.byte[at]] : 0;
        targets[i] = at + 1 < ex_text.n ? ex_text.id_of[ex_text.byte[at + 1]] : EX_IGNORED;
    }
}

void ex_text_batch(int64_t step, int64_t first, int64_t rows, tl_tensor *in)
{
    char stream[64];
    const int64_t seq = ex_text.seq;
    size_t bytes = (size_t)(rows * seq) * sizeof(int64_t);
    int64_t *ids = ex_need(malloc(bytes)), *targets = ex_need(malloc(bytes));
    snprintf(stream, sizeof stream, "%s.windows", ex_name());
    tl_rng_key windows = tl_rng_stream((uint64_t)ex.seed, stream);
    for (int64_t i = 0; i < rows; i++) {
        uint64_t at = tl_rng_below(windows, (uint64_t)step, (uint64_t)(first + i),
                                   (uint64_t)(ex_text.train - seq));
        ex_text_window((int64_t)at, ids + i * seq, targets + i * seq);
    }
    in[0] = tl_data(ex.t, ids, TL_I64, TL_DIMS(rows, seq));
    in[1] = tl_data(ex.t, targets, TL_I64, TL_DIMS(rows, seq));
    tl_log_name(ex.t, in[0], "text read");
    tl_log_name(ex.t, in[1], "bytes that follow");
    free(ids);
    free(targets);
}

/* The id at which the running sum of the probabilities p passes u, a number in [0, 1). */
static int64_t draw(const float *p, double u)
{
    double sum = 0;
    for (int i = 0; i < ex_text.vocab; i++)
        if ((sum += (double)p[i]) > u)
            return i;
    return ex_text.vocab - 1; /* p is rounded: its sum may stay below u */
}

/* The id of byte number i of the text written, by the logits of the last column, (1, len, vocab).
 */
static int64_t next_id(tl_tensor logits, int64_t i)
{
    const double temperature = ex_text.temperature;
    float p[256];
    char stream[64];
    tl_tape *t = ex.t;
    logits = tl_cast(t, tl_select(t, logits, 1, -1), TL_F32);
    if (temperature == 0)
        return (int64_t)tl_item(t, tl_argmax(t, logits, 1, false));
    tl_keep(t, tl_softmax(t, tl_scale(t, logits, 1 / temperature), 1), p,
            (size_t)ex_text.vocab * sizeof *p);
    snprintf(stream, sizeof stream, "%s.sample", ex_name());
    return draw(p, tl_rng_uniform64(tl_rng_stream((uint64_t)ex.seed, stream), 0, (uint64_t)i));
}

void ex_text_sample(tl_tensor (*logits)(tl_tape *t, tl_tensor ids))
{
    const int64_t seq = ex_text.seq;
    if (ex_text.sample == 0)
        return;
    int64_t *ids = ex_need(malloc((size_t)seq * sizeof *ids)), len = 1;
    int mode = tl_mode_push(ex.t, TL_NO_GRAD);
    ids[0] = ex_text.id_of['\n'];
    printf("\nwhat it writes now, %" PRId64 " bytes:\n\n", ex_text.sample);
    for (int64_t i = 0; i < ex_text.sample; i++) {
        tl_tensor x = tl_data(ex.t, ids, TL_I64, TL_DIMS(1, len));
        int64_t next = next_id(logits(ex.t, x), i);
        ex_check(TL_OK);
        tl_tape_reset(ex.t);
        if (len == seq)
            memmove(ids, ids + 1, (size_t)--len * sizeof *ids);
        ids[len++] = next;
        unsigned char byte = ex_text.byte_of[next];
        putchar(iscntrl(byte) && !isspace(byte) ? '?' : byte);
    }
    puts("\n");
    tl_mode_pop(ex.t, mode);
    free(ids);
}

static tl_tensor (*net)(tl_tape *t, tl_tensor ids);

tl_tensor ex_text_loss(tl_tape *t, const tl_tensor *in)
{
    return tl_cross_entropy(t, net(t, in[0]), in[1], TL_MEAN, .total = ex.total,
                            .count = tl_scalar(t, TL_F64, ex.count));
}

int ex_text_learn(tl_tensor (*logits)(tl_tape *t, tl_tensor ids))
{
    net = logits;
    ex_text_read();
    ex_keep("text", ex_text.sha256, true);
    ex.units = ex_text.seq;
    ex.count = (double)(ex.batch * ex_text.seq);
    ex.opt = tl_adamw_new(ex.m, .lr = ex.lr, .beta2 = 0.99, .clip = 1,
                          .schedule = {TL_COSINE, .warmup = 20, .total = ex.steps,
                                       .min_ratio = 0.05});
    ex_ready();
    while (ex_step())
        if (ex_due())
            ex_say(ex.mean, "");
    ex_text_sample(logits);
    return ex_end();
}

/* ---- digits: polylines on a grid of 5 x 7 points, each vertex and stroke a little off ---- */

static const char *const strokes[10] = {
    "10 30 41 45 36 16 05 01 10",
    "02 20 26",
    "01 10 30 41 42 06 46",
    "01 10 30 41 42 33 13 33 44 45 36 16 05",
    "36 30 04 44",
    "40 00 02 32 43 45 36 16 05",
    "30 10 01 05 16 36 45 44 33 13 04",
    "00 40 16",
    "10 30 41 42 33 13 02 01 10 13 04 05 16 36 45 44 33",
    "42 33 13 02 01 10 30 41 44 36 16",
};

/* How far (x, y) is from the line between a and b, squared. */
static float distance2(float x, float y, const float a[2], const float b[2])
{
    float dx = b[0] - a[0], dy = b[1] - a[1], length2 = dx * dx + dy * dy;
    float along = length2 > 0 ? ((x - a[0]) * dx + (y - a[1]) * dy) / length2 : 0;
    along = along < 0 ? 0 : along > 1 ? 1 : along;
    float px = x - a[0] - along * dx, py = y - a[1] - along * dy;
    return px * px + py * py;
}

static void draw_digit(tl_rng_key key, uint64_t i, int64_t digit, float *pixel)
{
    float p[20][2], shift[2], by = (float)EX_SIDE / 10;
    float slant = 0.5f * tl_rng_uniform32(key, i, 0) - 0.2f,
          size = 0.85f + 0.25f * tl_rng_uniform32(key, i, 1),
          width = 0.45f + 0.35f * tl_rng_uniform32(key, i, 2);
    int n = 0;
    for (int k = 0; k < 2; k++)
        shift[k] = 1.4f * tl_rng_uniform32(key, i, 3 + (uint64_t)k) - 0.7f;
    for (const char *s = strokes[digit]; *s != '\0'; s += s[2] == ' ' ? 3 : 2, n++) {
        float x = (float)(s[0] - '0') - 2, y = (float)(s[1] - '0') - 3;
        p[n][0] = 5 + shift[0] + size * (1.3f * x - slant * y) +
                  0.4f * tl_rng_uniform32(key, i, 8 + 2 * (uint64_t)n) - 0.2f;
        p[n][1] = 5 + shift[1] + size * 1.2f * y +
                  0.4f * tl_rng_uniform32(key, i, 9 + 2 * (uint64_t)n) - 0.2f;
    }
    for (int at = 0; at < EX_SIDE * EX_SIDE; at++) {
        float x = ((float)(at % EX_SIDE) + 0.5f) / by, y = ((float)(at / EX_SIDE) + 0.5f) / by,
              least = 100;
        for (int k = 0; k + 1 < n; k++) {
            float d = distance2(x, y, p[k], p[k + 1]);
            least = d < least ? d : least;
        }
        float v = 1.5f - least / (width * width);
        pixel[at] = v < 0 ? 0 : v > 1 ? 1 : v;
    }
}

/* Drawn pictures are EX_SIDE x EX_SIDE. */
static void draw_digits(int64_t n, tl_array out[2])
{
    tl_rng_key key = tl_rng_stream((uint64_t)ex.seed, "digits");
    float *x = ex_need(malloc((size_t)(n * EX_SIDE * EX_SIDE) * sizeof *x));
    int64_t *y = ex_need(malloc((size_t)n * sizeof *y));
    for (int64_t i = 0; i < n; i++) {
        y[i] = (int64_t)tl_rng_below(key, (uint64_t)i, 100, 10);
        draw_digit(key, (uint64_t)i, y[i], x + i * EX_SIDE * EX_SIDE);
    }
    out[0] = tl_samples(TL_F32, TL_DIMS(n, 1, EX_SIDE, EX_SIDE), x);
    out[1] = tl_samples(TL_I64, TL_DIMS(n), y);
}

static tl_array read_array(const char *path, tl_dtype as)
{
    static tl_arrays *file[2]; /* open for the time of the program */
    static int n;
    tl_err err = {.status = TL_OK};
    if (tl_arrays_open(&file[n], path, &err, .as = as) != TL_OK)
        ex_die(EX_FAILED, "%s", err.message);
    return tl_arrays_at(file[n++], 0);
}

static void digits(const char *images, const char *labels, int64_t n, tl_array out[2])
{
    if (images == NULL) {
        draw_digits(n, out);
        return;
    }
    char have[2][TL_SHAPE_TEXT];
    tl_array x = read_array(images, TL_F32), y = read_array(labels != NULL ? labels : images, 0);
    if (x.ndim != 3 ||
        (labels != NULL && (y.ndim != 1 || y.dtype != TL_I64 || y.dim[0] != x.dim[0])))
        ex_die(
            EX_WRONG_USE,
            "--images %s is %s, --labels %s: (n, rows, columns) and (n) whole numbers are needed",
            images, tl_array_shape_text(have[0], &x),
            labels != NULL ? tl_array_shape_text(have[1], &y) : "none");
    for (int64_t i = 0; i < tl_array_count(&x); i++)
        ((float *)x.data)[i] /= 255;
    for (int64_t i = 0; labels != NULL && i < x.dim[0]; i++)
        if (((int64_t *)y.data)[i] < 0 || ((int64_t *)y.data)[i] > 9)
            ex_die(EX_WRONG_USE, "--labels %s: number %" PRId64 " is not a digit", labels, i);
    out[0] = tl_samples(TL_F32, TL_DIMS(x.dim[0], 1, x.dim[1], x.dim[2]), x.data);
    out[1] = y;
}

void ex_digits(const char *images, const char *labels, int64_t n, tl_array out[2])
{
    static const char *const key[] = {"pictures", "digits"};
    static char hash[2][65];
    digits(images, labels, n, out);
    for (int i = 0; i < 1 + (images == NULL || labels != NULL); i++) {
        ex_check(tl_sha256(ex.t, tl_data(ex.t, out[i].data, out[i].dtype, tl_array_shape(&out[i])),
                           hash[i]));
        ex_keep(key[i], hash[i], true);
        tl_tape_reset(ex.t);
    }
}

void ex_enough(int64_t held, int64_t trained)
{
    if (held < 1 || trained < ex.batch)
        ex_die(EX_WRONG_USE,
               "%" PRId64 " are held out and %" PRId64 " trained on: one and --batch %" PRId64
               " are needed; give more (--samples, or files) or a smaller batch",
               held, trained, ex.batch);
}
