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
#include "tensor/files/safetensors.h"
#include "tensor/print.h"

static void put_field(FILE *f, const char *s)
{
    fputc('\t', f);
    for (; *s != '\0'; s++)
        if ((unsigned char)*s >= ' ' && *s != '%')
            fputc(*s, f);
        else
            fprintf(f, "%%%02x", (unsigned)(unsigned char)*s);
}

static void put_digest(FILE *f, const unsigned char d[TL_FINGERPRINT_BYTES])
{
    char hex[2 * TL_FINGERPRINT_BYTES + 1];
    fputs(tl_hex(hex, d, TL_FINGERPRINT_BYTES), f);
}

/* Axis 0 of each part, then the dims that they share: "4*2+3,64,128"; or "scalar*3", or "mixed*3"
 * if they share none. */
static void put_shape(FILE *f, const tl_log_entry *e)
{
    fputc('\t', f);
    if (e->mixed || e->shape.ndim == 0 || e->parts == 0) {
        fputs(e->parts == 0 ? "none" : e->mixed ? "mixed" : "scalar", f);
        if (e->parts > 1)
            fprintf(f, "*%d", e->parts);
        return;
    }
    for (int i = 0, k; i < e->parts; i = k) {
        for (k = i + 1; k < e->parts && e->rows[k] == e->rows[i]; k++)
            ;
        fprintf(f, i > 0 ? "+%" PRId64 : "%" PRId64, e->rows[i]);
        if (k - i > 1)
            fprintf(f, "*%d", k - i);
    }
    for (int i = 1; i < e->shape.ndim; i++)
        fprintf(f, ",%" PRId64, e->shape.dim[i]);
}

static void put_definition(FILE *f, const tl_log_entry *e)
{
    char key[TL_KEY_TEXT];
    fputc('d', f);
    put_field(f, tl_log_key_text(key, e->key));
    put_field(f, e->op);
    put_field(f, tl_dtype_name(e->dtype));
    put_shape(f, e);
    fputc('\t', f);
    for (int i = 0; i < e->n_in; i++)
        fprintf(f, "%s%s", i == 0 ? "" : ",", e->in[i] != 0 ? tl_log_key_text(key, e->in[i]) : "-");
    put_field(f, e->use >= 0 ? "gradient" : e->update ? "update" : "");
    put_field(f, e->mode & TL_FAST ? "fast" : "");
    put_field(f, e->name);
    put_field(f, *e->attrs == ' ' ? e->attrs + 1 : e->attrs);
    put_field(f, e->file != NULL ? e->file : "");
    if (e->file != NULL)
        fprintf(f, ":%d", e->line);
    fputc('\n', f);
}

static void put_result(FILE *f, const tl_log_entry *e)
{
    char key[TL_KEY_TEXT], text[TL_ELEMENT_TEXT];
    unsigned char all[TL_FINGERPRINT_BYTES];
    const bool scalar = e->shape.ndim == 0 && !e->mixed;
    fputs(tl_log_key_text(key, e->key), f);
    if (e->parts == 0) {
        fputs("\t-\n", f);
        return;
    }
    tl_fingerprint_so_far(e->all, all);
    fputc('\t', f);
    put_digest(f, all);
    if (e->parts > 1) {
        fputs(e->alike ? "\t=" : "\t", f);
        put_digest(f, e->last);
    } else if (scalar) {
        fputs("\t-", f);
    }
    if (scalar)
        put_field(f, tl_element_text(text, e->dtype, e->scalar));
    fputc('\n', f);
}

/* Writes the definition of e, unless the log has it already; *text: the contents of f so far.
 * False: out of memory. */
static bool define(tl_run_log *l, const tl_log_entry *e, FILE *f, char *const *text)
{
    const long from = ftell(f);
    put_definition(f, e);
    if (fflush(f) != 0)
        return false;
    const uint64_t h = tl_mix_elements(1, *text + from, (size_t)(ftell(f) - from), 1);
    const uint64_t *was = tl_key_map_find(&l->defined, e->key);
    if (was != NULL && *was == h)
        return fseek(f, from, SEEK_SET) == 0;
    return tl_key_map_put(&l->defined, e->key, h);
}

/* The text of the step; false: out of memory. */
static bool put_step(tl_run_log *l, char **text, size_t *n)
{
    FILE *f = open_memstream(text, n);
    bool room = f != NULL;
    for (uint32_t i = 0; room && i < l->n; i++)
        room = define(l, &l->entry[i], f, text);
    if (f == NULL)
        return false;
    fprintf(f, "step\t%" PRId64 "\t%s%s\n", l->step, tl_log_full(l) ? "full" : "part",
            l->compiled ? "\tcompiled" : "");
    for (uint32_t i = 0; i < l->n; i++)
        put_result(f, &l->entry[i]);
    fprintf(f, "end\t%" PRId64 "\n", l->step);
    return tl_text_close(f, text) && room;
}

/* ---- the values of one step, in a safetensors file beside the log
 *
 * A tensor is named by its key. Its parts follow one another along axis 0; of a 0-d value only the
 * last part is kept, and parts that differ in other axes are left out. ---- */

char *tl_log_values_path(char *buf, size_t n, const char *path, int64_t step)
{
    int length = snprintf(buf, buf == NULL ? 0 : n, "%s.step%" PRId64 ".safetensors",
                          path == NULL ? "" : path, step);
    return length >= 0 && (size_t)length < n ? buf : NULL;
}

static tl_array kept_array(const tl_log_entry *e)
{
    tl_shape s = e->shape;
    int64_t row = (int64_t)tl_dtype_size(e->dtype);
    for (int i = 1; i < s.ndim; i++)
        row *= s.dim[i];
    if (s.ndim > 0)
        s.dim[0] = row > 0 ? (int64_t)e->kept_bytes / row : 0;
    return tl_array_make(e->dtype, &s, e->kept);
}

static void write_values(tl_run_log *l)
{
    char path[TL_LOG_PATH];
    tl_st_entry *st = tl_calloc(l->n + 1, sizeof *st);
    char(*name)[TL_KEY_TEXT] = tl_calloc(l->n + 1, sizeof *name);
    int n = 0;
    for (uint32_t i = 0; st != NULL && name != NULL && i < l->n; i++)
        if (l->entry[i].kept != NULL && !l->entry[i].mixed)
            st[n] = (tl_st_entry){tl_log_key_text(name[n], l->entry[i].key),
                                  kept_array(&l->entry[i])},
            n++;
    if (st == NULL || name == NULL)
        tl_fail(&l->failure, TL_ENOMEM, "no memory to write %u values", l->n);
    else
        tl_st_write(tl_log_values_path(path, sizeof path, l->path, l->step), st, n,
                    &(tl_st_meta){TL_ST_SEAL, ""}, 1, &l->failure);
    tl_free_raw(st);
    tl_free_raw(name);
}

static void stop_writing(tl_run_log *l)
{
    tl_fail(&l->failure, TL_EIO, "%.300s: the log cannot be written further (step %" PRId64 "): %s",
            l->path, l->step, strerror(errno));
}

void tl_log_write_header(tl_run_log *l)
{
    fprintf(l->f,
            TL_LOG_HEAD "%d\n# d KEY OP DTYPE SHAPE INPUTS KIND MODE NAME ATTRIBUTES PLACE: what a "
                        "key stands for. Results: KEY XXH3-128 [of the last part; = if all parts "
                        "are alike [value of a scalar]]\n",
            TL_LOG_VERSION);
    if (fflush(l->f) != 0)
        stop_writing(l);
}

void tl_log_write_step(tl_run_log *l)
{
    char *text = NULL;
    size_t n = 0;
    if (l->n > 0)
        qsort(l->entry, l->n, sizeof *l->entry, tl_log_by_key);
    if (!put_step(l, &text, &n))
        tl_fail(&l->failure, TL_ENOMEM, "no memory for %zu bytes of log", n);
    else if (fwrite(text, 1, n, l->f) != n || fflush(l->f) != 0)
        stop_writing(l);
    free(text);
    if (l->step == l->o.keep && l->failure.status == TL_OK)
        write_values(l);
}
