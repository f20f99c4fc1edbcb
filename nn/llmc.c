/* llmc.c: what llm.c reads and writes - checkpoints of a GPT-2, and tokens. 256 little-endian i32
 * of header, then numbers without a gap. */
#include <stdio.h>
#include <string.h>

#include "autograd/author.h"
#include "nn/model_map.h"
#include "tensor/files/bytes.h"
#include "tensor/files/file.h"
#include "tensor/memory.h"

enum { CHECKPOINT = 20240326, TOKENS = 20240520, HEADER = 256, BYTES = 4 * HEADER, PADDED = 128 };
enum { MAGIC, VERSION, POSITIONS, VOCAB, LAYERS, HEADS, WIDTH, PADDED_VOCAB }; /* in the header */
enum { OF_F32 = 3, OF_BF16 = 5, OF_TOKENS = 1 };

/* A file of that magic, read up to the end of its header, which is in host order. */
static tl_status open_file(tl_reader *r, const char *path, int32_t magic, int32_t h[HEADER],
                           tl_err *err)
{
    TL_TRY(tl_reader_open(r, path, err));
    tl_status s = r->size < BYTES
                      ? tl_fail(err, TL_EFORMAT, "%.200s: %lld bytes; llm.c's header alone has %d",
                                path, (long long)r->size, (int)BYTES)
                      : tl_reader_read(r, h, BYTES, err);
    if (s == TL_OK) {
        tl_bytes_swap_host(h, HEADER, 4);
        if (h[MAGIC] != magic)
            s = tl_fail(err, TL_EFORMAT, "%.200s: begins with %d, not with llm.c's %d", path,
                        (int)h[MAGIC], (int)magic);
    }
    if (s != TL_OK)
        tl_reader_close(r);
    return s;
}

/* What follows the header, for tl_free_raw. */
static tl_status read_rest(tl_reader *r, char **out, tl_err *err)
{
    size_t n = (size_t)(r->size - BYTES);
    *out = tl_calloc(n + 1, 1);
    if (*out == NULL)
        return tl_fail(err, TL_ENOMEM, "%.200s: no memory for %zu bytes", r->path, n);
    tl_status s = tl_reader_read(r, *out, n, err);
    if (s != TL_OK) {
        tl_free_raw(*out);
        *out = NULL;
    }
    return s;
}

/* ---- checkpoints ---- */

/* The parameters, in *rest: read after their sizes have been compared with the file's. */
static tl_status parse(tl_reader *file, const int32_t h[HEADER], tl_decoder_config *c,
                       const char *path, tl_map_entry **e, int *parameters, char **rest,
                       tl_err *err)
{
    if (h[VERSION] != OF_F32 && h[VERSION] != OF_BF16)
        return tl_fail(err, TL_EFORMAT, "%.200s: version %d; 3 (f32) and 5 (bf16) are known", path,
                       (int)h[VERSION]);
    const tl_dtype d = h[VERSION] == OF_F32 ? TL_F32 : TL_BF16;
    *c = (tl_decoder_config){.family = TL_FAMILY_GPT2,
                             .gpt2 = {.vocab = h[VOCAB],
                                      .width = h[WIDTH],
                                      .layers = h[LAYERS],
                                      .heads = h[HEADS],
                                      .max_positions = h[POSITIONS]}};
    TL_TRY(tl_map_new(e, parameters, c, file->size, path, err));
    if (h[PADDED_VOCAB] < h[VOCAB])
        return tl_fail(err, TL_EFORMAT, "%.200s: a vocabulary of %d, padded to %d", path,
                       (int)h[VOCAB], (int)h[PADDED_VOCAB]);
    double elements = (double)(h[PADDED_VOCAB] - h[VOCAB]) * h[WIDTH]; /* exact, or far too many */
    for (int i = 0; i < *parameters; i++) {
        double of_one = 1;
        for (int k = 0; k < (*e)[i].shape.ndim; k++)
            of_one *= (double)(*e)[i].shape.dim[k];
        elements += of_one;
    }
    double bytes = BYTES + elements * (double)tl_dtype_size(d);
    if (bytes != (double)file->size)
        return tl_fail(err, TL_EFORMAT,
                       "%.200s: has %lld bytes; %d layers of width %d, %d positions and %d tokens "
                       "make %.0f",
                       path, (long long)file->size, (int)h[LAYERS], (int)h[WIDTH],
                       (int)h[POSITIONS], (int)h[PADDED_VOCAB], bytes);
    TL_TRY(read_rest(file, rest, err));
    char *at = *rest;
    tl_bytes_swap_host(at, (size_t)elements, tl_dtype_size(d));
    for (int i = 0; i < *parameters; i++) {
        (*e)[i].array = tl_array_make(d, &(*e)[i].shape, at);
        int64_t rows_more = i == 0 ? h[PADDED_VOCAB] - h[VOCAB] : 0;
        at += (size_t)(tl_shape_count(&(*e)[i].shape) + rows_more * h[WIDTH]) * tl_dtype_size(d);
    }
    return TL_OK;
}

tl_status tl_llmc_load_with(tl_model *m, const char *path, tl_decoder_config *c, tl_model_files o)
{
    TL_TRY(tl_map_begin(m, path, c, o, "tl_llmc_load"));
    tl_err *err = tl_error_record(m);
    tl_decoder_config read;
    tl_map_entry *e = NULL;
    tl_reader file;
    int32_t h[HEADER];
    char *rest = NULL;
    int n;
    TL_TRY(open_file(&file, path, CHECKPOINT, h, err));
    tl_status s = parse(&file, h, &read, path, &e, &n, &rest, err);
    tl_reader_close(&file);
    if (s == TL_OK) {
        read.gpt2.dtype = o.dtype != TL_DTYPE_DEFAULT ? o.dtype : e[0].array.dtype;
        s = tl_map_take(m, e, n, read.gpt2.dtype, err);
    }
    tl_free_raw(e);
    tl_free_raw(rest);
    if (s == TL_OK)
        *c = read;
    return s;
}

/* One parameter, and so many rows of zeros. */
static tl_status append(tl_writer *w, const tl_array *a, tl_dtype d, int64_t zeros, tl_err *err)
{
    tl_shape s = tl_array_shape(a);
    size_t bytes = (size_t)tl_shape_count(&s) * tl_dtype_size(d),
           more = (size_t)(zeros * s.dim[s.ndim - 1]) * tl_dtype_size(d);
    void *room = tl_calloc(bytes + more, 1);
    if (room == NULL)
        return tl_fail(err, TL_ENOMEM, "no memory for %zu bytes", bytes + more);
    tl_array to = tl_array_make(d, &s, room);
    tl_map_convert(&to, a);
    tl_bytes_swap_host(room, (bytes + more) / tl_dtype_size(d), tl_dtype_size(d));
    tl_status st = tl_writer_append(w, room, bytes + more, err);
    tl_free_raw(room);
    return st;
}

static tl_status save(tl_model *m, const char *path, const tl_gpt2_config *c, tl_map_entry *e,
                      int n, tl_dtype d, tl_err *err)
{
    TL_TRY(tl_map_give(m, e, n, err));
    d = d != TL_DTYPE_DEFAULT ? d : e[0].array.dtype;
    if (d != TL_F32 && d != TL_BF16)
        return tl_fail(err, TL_EDTYPE, "%.200s: llm.c's files hold F32 or BF16, not %s; say .dtype",
                       path, tl_dtype_name(d));
    if (c->hidden != 0 && c->hidden != 4 * c->width)
        return tl_fail(err, TL_EDOMAIN,
                       "%.200s: a hidden width of %lld; llm.c's is four times the width %lld", path,
                       (long long)c->hidden, (long long)c->width);
    if (c->eps != 0 && c->eps != 1e-5)
        return tl_fail(err, TL_EDOMAIN, "%.200s: an eps of %g; llm.c's is 1e-05", path, c->eps);
    int64_t padded = (c->vocab + PADDED - 1) / PADDED * PADDED;
    int32_t h[HEADER] = {[MAGIC] = CHECKPOINT,
                         [VERSION] = d == TL_F32 ? OF_F32 : OF_BF16,
                         [POSITIONS] = (int32_t)c->max_positions,
                         [VOCAB] = (int32_t)c->vocab,
                         [LAYERS] = (int32_t)c->layers,
                         [HEADS] = (int32_t)c->heads,
                         [WIDTH] = (int32_t)c->width,
                         [PADDED_VOCAB] = (int32_t)padded};
    tl_writer *w;
    TL_TRY(tl_writer_begin(&w, path, err));
    tl_bytes_swap_host(h, HEADER, 4);
    tl_status s = tl_writer_append(w, h, sizeof h, err);
    for (int i = 0; i < n && s == TL_OK; i++)
        s = append(w, &e[i].array, d, i == 0 ? padded - c->vocab : 0, err);
    if (s == TL_OK)
        return tl_writer_commit(w, err);
    tl_writer_abort(w);
    return s;
}

tl_status tl_llmc_save_with(tl_model *m, const char *path, const tl_decoder_config *c,
                            tl_model_files o)
{
    TL_TRY(tl_map_begin(m, path, c, o, "tl_llmc_save"));
    tl_err *err = tl_error_record(m);
    if (c->family != TL_FAMILY_GPT2)
        return tl_fail(err, TL_EDOMAIN,
                       "%.200s: llm.c's files hold a GPT-2; the config's family is "
                       "%d",
                       path, (int)c->family);
    tl_map_entry *e;
    int n;
    TL_TRY(tl_map_new(&e, &n, c, INT64_MAX, path, err));
    tl_status s = save(m, path, &c->gpt2, e, n, o.dtype, err);
    tl_free_raw(e);
    return s;
}

/* ---- tokens ---- */

tl_tensor tl_llmc_tokens_load(tl_model *m, const char *path)
{
    tl_reader file;
    char *rest = NULL;
    int32_t h[HEADER];
    tl_err *err = tl_error_record(m);
    if (tl_error_begin(m) != TL_OK || TL_NEED(err, path) != TL_OK ||
        open_file(&file, path, TOKENS, h, err) != TL_OK)
        return TL_NONE;
    const int64_t n = file.size, count = (n - BYTES) / 2;
    int64_t *ids = NULL;
    if (h[VERSION] != OF_TOKENS)
        tl_fail(err, TL_EFORMAT, "%.200s: version %d of tokens; 1 is known", path, (int)h[VERSION]);
    else if (h[2] != count || n % 2 != 0)
        tl_fail(err, TL_EFORMAT, "%.200s: says %d tokens; its %lld bytes hold %lld of two bytes",
                path, (int)h[2], (long long)n, (long long)count);
    else if (read_rest(&file, &rest, err) == TL_OK &&
             (ids = tl_calloc((size_t)count + 1, sizeof *ids)) == NULL)
        tl_fail(err, TL_ENOMEM, "%.200s: no memory for %lld tokens", path, (long long)count);
    tl_reader_close(&file);
    const unsigned char *in = (const unsigned char *)rest;
    for (int64_t i = 0; ids != NULL && i < count; i++)
        ids[i] = in[2 * i] | in[2 * i + 1] << 8;
    tl_free_raw(rest);
    tl_tensor x = err->status == TL_OK ? tl_data(m, ids, TL_I64, TL_DIMS(count)) : TL_NONE;
    tl_free_raw(ids);
    return x;
}

tl_status tl_llmc_tokens_save(const char *path, const int64_t *ids, int64_t n, tl_err *err)
{
    TL_TRY(TL_NEED(err, path));
    TL_TRY(TL_NEED_N(err, ids, n));
    if (n > INT32_MAX)
        return tl_fail(err, TL_EDOMAIN, "%.200s: %lld tokens; the header counts to %d", path,
                       (long long)n, INT32_MAX);
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] > UINT16_MAX)
            return tl_fail(err, TL_EDOMAIN, "%.200s: token %lld is %lld; 0 to 65535 are possible",
                           path, (long long)i, (long long)ids[i]);
    int32_t h[HEADER] = {TOKENS, OF_TOKENS, (int32_t)n};
    tl_writer *w;
    TL_TRY(tl_writer_begin(&w, path, err));
    tl_bytes_swap_host(h, HEADER, 4);
    tl_status s = tl_writer_append(w, h, sizeof h, err);
    for (int64_t i = 0; i < n && s == TL_OK;) {
        unsigned char some[4096];
        size_t k = 0;
        for (; i < n && k < sizeof some; i++, k += 2)
            some[k] = (unsigned char)ids[i], some[k + 1] = (unsigned char)(ids[i] >> 8);
        s = tl_writer_append(w, some, k, err);
    }
    if (s == TL_OK)
        return tl_writer_commit(w, err);
    tl_writer_abort(w);
    return s;
}
