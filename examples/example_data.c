/* example_data.c: what several examples learn from - text as ids, and digits drawn by strokes. */
#include <ctype.h>
#include <errno.h>
#include <glob.h>
#include <math.h>

#include "examples/example.h"
#include "tensor/files/hash.h"

/* ---- text: bytes, numbered by the sorted vocabulary of those that occur ---- */

struct ex_text ex_text;

static void text_append(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL)
        ex_die(EX_FAILED, "cannot read %s: %s", path, strerror(errno));
    for (size_t got = 1, room = 1 << 16; got > 0; ex_text.n += (int64_t)got) {
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

/* The project's own files: the list sorted by bytes, so that no locale changes it. */
static void text_append_project(void)
{
    glob_t g;
    if (glob("{,{tensor,autograd,ops,nn,examples,tests}/{,*/,*/*/}}{*.c,*.h,*.md,Makefile}",
             GLOB_BRACE, NULL, &g) != 0)
        ex_die(EX_FAILED,
               "no sources or documents here; go to the project's folder, or name a text: "
               "--text FILE");
    qsort(g.gl_pathv, g.gl_pathc, sizeof *g.gl_pathv, by_bytes);
    for (size_t i = 0; i < g.gl_pathc; i++)
        text_append(g.gl_pathv[i]);
    globfree(&g);
}

void ex_text_read(const char *path, int64_t seq)
{
    tl_sha256_ctx hash;
    tl_err err = {.status = TL_OK};
    ex_text.name = path != NULL ? path : "the project's sources and documents";
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
    tl_sha256_begin(&hash, &err);
    tl_sha256_feed(&hash, ex_text.byte, (size_t)ex_text.n);
    if (tl_sha256_finish_hex(&hash, ex_text.sha256, &err) != TL_OK)
        ex_die(EX_FAILED, "%s", err.message);
}

void ex_text_window(int64_t at, int64_t seq, int64_t *ids, int64_t *targets)
{
    for (int64_t i = 0; i < seq; i++, at++) {
        ids[i] = at < ex_text.n ? ex_text.id_of[ex_text.byte[at]] : 0;
        targets[i] = at + 1 < ex_text.n ? ex_text.id_of[ex_text.byte[at + 1]] : EX_IGNORED;
    }
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

int64_t ex_text_write(tl_tensor logits, double temperature, int64_t i)
{
    float p[256];
    char stream[64];
    tl_tape *t = ex.t;
    int64_t next;
    logits = tl_cast(t, tl_reshape(t, logits, TL_DIMS(ex_text.vocab)), TL_F32);
    if (temperature > 0) {
        tl_keep(t, tl_softmax(t, tl_scale(t, logits, 1 / temperature), 0), p,
                (size_t)ex_text.vocab * sizeof *p);
        snprintf(stream, sizeof stream, "%s.sample", ex_name());
        next = draw(p, tl_rng_uniform64(tl_rng_stream((uint64_t)ex.seed, stream), 0, (uint64_t)i));
    } else {
        next = (int64_t)tl_item(t, tl_argmax(t, logits, 0, false));
    }
    ex_check(TL_OK);
    tl_tape_reset(t);
    unsigned char byte = ex_text.byte_of[next];
    putchar(iscntrl(byte) && !isspace(byte) ? '?' : byte);
    return next;
}
