/* write.c: writes a step as text, which read/read.c reads.
 *
 * Fields are separated by tabs; in names, '%' and bytes below space are written %XX. A line of
 * definition says what a key stands for, and comes again only when that changes. A step is written
 * all at once when it ends, so that a crash can cut off the last step only. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/log/internal.h"
#include "tensor/print.h"

/* Where the next n bytes of text go; NULL when out of memory. */
static char *room(tl_run_log *l, size_t n)
{
    if (l->text_n + n > l->text_cap) {
        size_t cap = 2 * (l->text_cap + n) + 65536;
        char *grown = tl_realloc(l->text, cap);
        if (grown == NULL) {
            tl_log_stop(l, TL_ENOMEM, "no memory for %zu bytes of log", cap);
            return NULL;
        }
        l->text = grown;
        l->text_cap = cap;
    }
    return l->text + l->text_n;
}

static void put(tl_run_log *l, const char *s)
{
    size_t n = strlen(s);
    char *p = room(l, n);
    if (p != NULL)
        memcpy(p, s, n), l->text_n += n;
}

static char *put_hex(char *to, unsigned char c)
{
    static const char digit[] = "0123456789abcdef";
    *to++ = digit[c >> 4];
    *to++ = digit[c & 15];
    return to;
}

static void put_field(tl_run_log *l, const char *s)
{
    char *p = room(l, 3 * strlen(s) + 1);
    if (p == NULL)
        return;
    *p++ = '\t';
    for (; *s != '\0'; s++)
        if ((unsigned char)*s >= ' ' && *s != '%') {
            *p++ = *s;
        } else {
            *p++ = '%';
            p = put_hex(p, (unsigned char)*s);
        }
    l->text_n = (size_t)(p - l->text);
}

static void put_number(tl_run_log *l, const char *fmt, int64_t x)
{
    char text[64];
    snprintf(text, sizeof text, fmt, x);
    put(l, text);
}

static void put_digest(tl_run_log *l, const char *before,
                       const unsigned char d[TL_FINGERPRINT_BYTES])
{
    put(l, before);
    char *p = room(l, 2 * TL_FINGERPRINT_BYTES);
    for (int i = 0; p != NULL && i < TL_FINGERPRINT_BYTES; i++)
        p = put_hex(p, d[i]);
    l->text_n += p == NULL ? 0 : 2 * TL_FINGERPRINT_BYTES;
}

/* Axis 0 of each part, then the dims that they share: "4*2+3,64,128"; or "scalar*3", or "mixed*3"
 * if they share none. */
static void put_shape(tl_run_log *l, const tl_log_entry *e)
{
    put(l, "\t");
    if (e->mixed || e->shape.ndim == 0 || e->parts == 0) {
        put(l, e->parts == 0 ? "none" : e->mixed ? "mixed" : "scalar");
        put_number(l, e->parts > 1 ? "*%" PRId64 : "", e->parts);
        return;
    }
    for (int i = 0, k; i < e->parts; i = k) {
        for (k = i + 1; k < e->parts && e->rows[k] == e->rows[i]; k++)
            ;
        put_number(l, i > 0 ? "+%" PRId64 : "%" PRId64, e->rows[i]);
        if (k - i > 1)
            put_number(l, "*%" PRId64, k - i);
    }
    for (int i = 1; i < e->shape.ndim; i++)
        put_number(l, ",%" PRId64, e->shape.dim[i]);
}

static void put_definition(tl_run_log *l, const tl_log_entry *e)
{
    char key[TL_KEY_TEXT];
    put_field(l, tl_log_key_text(key, e->key));
    put_field(l, e->op);
    put_field(l, tl_dtype_name(e->dtype));
    put_shape(l, e);
    put(l, "\t");
    for (int i = 0; i < e->n_in; i++) {
        put(l, i == 0 ? "" : ",");
        put(l, e->in[i] != 0 ? tl_log_key_text(key, e->in[i]) : "-");
    }
    put_field(l, e->use >= 0 ? "gradient" : e->update ? "update" : "");
    put_field(l, e->mode & TL_FAST ? "fast" : "");
    put_field(l, e->name);
    put_field(l, *e->attrs == ' ' ? e->attrs + 1 : e->attrs);
    put_field(l, e->file != NULL ? e->file : "");
    put_number(l, e->file != NULL ? ":%" PRId64 "\n" : "\n", e->line);
}

uint64_t tl_log_hash_bytes(uint64_t h, const void *p, size_t n)
{
    const unsigned char *s = p;
    for (size_t i = 0; i < n; i++)
        h = (h ^ s[i]) * 0x100000001b3u;
    return h;
}

/* Writes the definition, unless that is what the log says already. */
static void define(tl_run_log *l, const tl_log_entry *e)
{
    size_t from = l->text_n;
    put(l, "d");
    put_definition(l, e);
    if (l->failure.status != TL_OK)
        return;
    uint64_t h = tl_log_hash_bytes(TL_LOG_HASH_BEGIN, l->text + from, l->text_n - from);
    const uint64_t *was = tl_key_map_find(&l->defined, e->key);
    if (was != NULL && *was == h)
        l->text_n = from;
    else if (!tl_key_map_put(&l->defined, e->key, h))
        tl_log_stop(l, TL_ENOMEM, "no memory for the log's definitions");
}

static void put_result(tl_run_log *l, const tl_log_entry *e)
{
    char key[TL_KEY_TEXT], text[TL_ELEMENT_TEXT];
    unsigned char all[TL_FINGERPRINT_BYTES];
    put(l, tl_log_key_text(key, e->key));
    if (e->parts == 0) {
        put(l, "\t-\n");
        return;
    }
    tl_fingerprint_so_far(e->all, all);
    put_digest(l, "\t", all);
    bool scalar = e->shape.ndim == 0 && !e->mixed;
    if (e->parts > 1)
        put_digest(l, e->alike ? "\t=" : "\t", e->last);
    else if (scalar)
        put(l, "\t-");
    if (scalar)
        put_field(l, tl_element_text(text, e->dtype, e->scalar));
    put(l, "\n");
}

static int by_key(const void *a, const void *b)
{
    uint64_t x = ((const tl_log_entry *)a)->key, y = ((const tl_log_entry *)b)->key;
    return (x > y) - (x < y);
}

static void flush_text(tl_run_log *l)
{
    if (l->failure.status == TL_OK &&
        (fwrite(l->text, 1, l->text_n, l->f) != l->text_n || fflush(l->f) != 0))
        tl_log_stop(l, TL_EIO, "%.300s: the log cannot be written further (step %" PRId64 "): %s",
                    l->path, l->step, strerror(errno));
    l->text_n = 0;
}

void tl_log_write_header(tl_run_log *l)
{
    put_number(l, TL_LOG_HEAD "%" PRId64 "\n", TL_LOG_VERSION);
    put(l,
        "# d KEY OP DTYPE SHAPE INPUTS KIND MODE NAME ATTRIBUTES PLACE: what a key stands for. "
        "Results: KEY XXH3-128 [of the last part; = if all parts are alike [value of a scalar]]\n");
    flush_text(l);
}

void tl_log_write_step(tl_run_log *l)
{
    if (l->n > 0)
        qsort(l->entry, l->n, sizeof *l->entry, by_key);
    for (uint32_t i = 0; i < l->n; i++)
        define(l, &l->entry[i]);
    put_number(l, "step\t%" PRId64, l->step);
    put(l, tl_log_full(l) ? "\tfull" : "\tpart");
    put(l, l->compiled ? "\tcompiled\n" : "\n");
    for (uint32_t i = 0; i < l->n; i++)
        put_result(l, &l->entry[i]);
    put_number(l, "end\t%" PRId64 "\n", l->step);
    flush_text(l);
    if (l->step == l->o.keep && l->failure.status == TL_OK)
        tl_log_write_values(l);
}
