/* llmc.c: what llm.c reads and writes - checkpoints of a GPT-2, and tokens. A file is a header of
 * 256 little-endian i32, followed by numbers without gaps. */
#include "autograd/author.h"
#include "nn/files.h"
#include "tensor/files/bytes.h"
#include "tensor/files/file.h"
#include "tensor/memory.h"

enum { CHECKPOINT = 20240326, TOKENS = 20240520, HEADER = 256, BYTES = 4 * HEADER, PADDED = 128 };
enum { MAGIC, VERSION, POSITIONS, VOCAB, LAYERS, HEADS, WIDTH, PADDED_VOCAB }; /* in the header */
enum { OF_F32 = 3, OF_BF16 = 5, OF_TOKENS = 1 };

/* Opens a file and reads its header, in host order, which must begin with the magic number. */
static tl_status open_file(tl_reader *r, const tl_source *file, int32_t magic, int32_t h[HEADER])
{
    TL_TRY(tl_reader_open(r, file->path, file->err));
    tl_status s = r->size < BYTES
                      ? tl_file_fail(file, TL_EFORMAT, "%lld bytes; llm.c's header alone has %d",
                                     (long long)r->size, (int)BYTES)
                      : tl_reader_read(r, h, BYTES, file->err);
    if (s == TL_OK) {
        tl_bytes_swap_host(h, HEADER, 4);
        if (h[MAGIC] != magic)
            s = tl_file_fail(file, TL_EFORMAT, "begins with %d, not with llm.c's %d", (int)h[MAGIC],
                             (int)magic);
    }
    if (s != TL_OK)
        tl_reader_close(r);
    return s;
}

/* Reads what follows the header into *out, for tl_free_raw even if that fails. */
static tl_status read_rest(tl_reader *r, const tl_source *file, char **out)
{
    size_t n = (size_t)(r->size - BYTES);
    *out = tl_calloc(n + 1, 1);
    if (*out == NULL)
        return tl_file_fail(file, TL_ENOMEM, "no memory for %zu bytes", n);
    return tl_reader_read(r, *out, n, file->err);
}

/* Begins a file with its header. */
static tl_status begin_file(tl_writer **w, const tl_source *file, int32_t h[HEADER])
{
    TL_TRY(tl_writer_begin(w, file->path, file->err));
    tl_bytes_swap_host(h, HEADER, 4);
    return tl_writer_append(*w, h, BYTES, file->err);
}

/* Puts the file into its place if all went well; otherwise leaves what was there. */
static tl_status end_file(tl_writer *w, tl_status s, const tl_source *file)
{
    if (s == TL_OK)
        return tl_writer_commit(w, file->err);
    tl_writer_abort(w);
    return s;
}

/* ---- checkpoints ---- */

/* Reads the config and, once the sizes that it implies have been compared with the file's, the
 * parameters, which borrow from *rest, for tl_free_raw. */
static tl_status parse(tl_reader *r, const int32_t h[HEADER], tl_decoder_config *c,
                       const tl_source *file, tl_map *map, char **rest)
{
    if (h[VERSION] != OF_F32 && h[VERSION] != OF_BF16)
        return tl_file_fail(file, TL_EFORMAT, "version %d; 3 (f32) and 5 (bf16) are known",
                            (int)h[VERSION]);
    const tl_dtype d = h[VERSION] == OF_F32 ? TL_F32 : TL_BF16;
    *c = (tl_decoder_config){.family = TL_FAMILY_GPT2,
                             .gpt2 = {.vocab = h[VOCAB],
                                      .width = h[WIDTH],
                                      .layers = h[LAYERS],
                                      .heads = h[HEADS],
                                      .max_positions = h[POSITIONS]}};
    TL_TRY(tl_map_new(map, c, r->size, file));
    if (h[PADDED_VOCAB] < h[VOCAB])
        return tl_file_fail(file, TL_EFORMAT, "a vocabulary of %d, padded to %d", (int)h[VOCAB],
                            (int)h[PADDED_VOCAB]);
    double elements = (double)(h[PADDED_VOCAB] - h[VOCAB]) * h[WIDTH]; /* exact, or far too many */
    for (int i = 0; i < map->n; i++) {
        double of_one = 1;
        for (int k = 0; k < map->e[i].shape.ndim; k++)
            of_one *= (double)map->e[i].shape.dim[k];
        elements += of_one;
    }
    double bytes = BYTES + elements * (double)tl_dtype_size(d);
    if (bytes != (double)r->size)
        return tl_file_fail(
            file, TL_EFORMAT,
            "has %lld bytes; %d layers of width %d, %d positions and %d tokens make %.0f",
            (long long)r->size, (int)h[LAYERS], (int)h[WIDTH], (int)h[POSITIONS],
            (int)h[PADDED_VOCAB], bytes);
    TL_TRY(read_rest(r, file, rest));
    char *at = *rest;
    tl_bytes_swap_host(at, (size_t)elements, tl_dtype_size(d));
    for (int i = 0; i < map->n; i++) {
        const tl_shape *one = &map->e[i].shape;
        const int64_t padding = i == 0 ? (h[PADDED_VOCAB] - h[VOCAB]) * (int64_t)h[WIDTH] : 0;
        map->e[i].array = tl_array_make(d, one, at);
        at += (size_t)(tl_shape_count(one) + padding) * tl_dtype_size(d);
    }
    return TL_OK;
}

tl_status tl_llmc_load_with(tl_model *m, const char *path, tl_decoder_config *c, tl_model_files o)
{
    TL_TRY(tl_map_begin(m, path, c, o, "tl_llmc_load", false));
    const tl_source file = {path, tl_error_record(m)};
    tl_decoder_config read;
    tl_map map = {.e = NULL};
    tl_reader r;
    int32_t h[HEADER];
    char *rest = NULL;
    TL_TRY(open_file(&r, &file, CHECKPOINT, h));
    tl_status s = parse(&r, h, &read, &file, &map, &rest);
    tl_reader_close(&r);
    if (s == TL_OK) {
        read.gpt2.dtype = o.dtype != TL_DTYPE_DEFAULT ? o.dtype : map.e[0].array.dtype;
        s = tl_map_take(m, &map, read.gpt2.dtype, file.err);
    }
    tl_free_raw(map.e);
    tl_free_raw(rest);
    if (s == TL_OK)
        *c = read;
    return s;
}

/* Appends a parameter, rounded to d, and that many rows of zeros. */
static tl_status append(tl_writer *w, const tl_array *a, tl_dtype d, int64_t zeros, tl_err *err)
{
    tl_shape s = tl_array_shape(a);
    size_t n = (size_t)(tl_shape_count(&s) + zeros * s.dim[s.ndim - 1]);
    void *room = tl_calloc(n, tl_dtype_size(d));
    if (room == NULL)
        return tl_fail(err, TL_ENOMEM, "no memory for %zu bytes", n * tl_dtype_size(d));
    tl_array to = tl_array_make(d, &s, room);
    tl_map_convert(&to, a);
    tl_bytes_swap_host(room, n, tl_dtype_size(d));
    tl_status st = tl_writer_append(w, room, n * tl_dtype_size(d), err);
    tl_free_raw(room);
    return st;
}

static tl_status save(tl_model *m, const tl_source *file, const tl_decoder_config *of, tl_map *map,
                      tl_dtype d)
{
    const tl_gpt2_config *c = &of->gpt2;
    TL_TRY(tl_map_give(m, of, map, file->err));
    d = d != TL_DTYPE_DEFAULT ? d : map->e[0].array.dtype;
    if (d != TL_F32 && d != TL_BF16)
        return tl_file_fail(file, TL_EDTYPE, "llm.c's files hold F32 or BF16, not %s; say .dtype",
                            tl_dtype_name(d));
    if (c->hidden != 0 && c->hidden != 4 * c->width)
        return tl_file_fail(file, TL_EDOMAIN,
                            "a hidden width of %lld; llm.c's is four times the width %lld",
                            (long long)c->hidden, (long long)c->width);
    if (c->eps != 0 && c->eps != 1e-5)
        return tl_file_fail(file, TL_EDOMAIN, "an eps of %g; llm.c's is 1e-05", c->eps);
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
    tl_status s = begin_file(&w, file, h);
    for (int i = 0; i < map->n && s == TL_OK; i++)
        s = append(w, &map->e[i].array, d, i == 0 ? padded - c->vocab : 0, file->err);
    return end_file(w, s, file);
}

tl_status tl_llmc_save_with(tl_model *m, const char *path, const tl_decoder_config *c,
                            tl_model_files o)
{
    TL_TRY(tl_map_begin(m, path, c, o, "tl_llmc_save", false));
    const tl_source file = {path, tl_error_record(m)};
    tl_map map;
    if (c->family != TL_FAMILY_GPT2)
        return tl_file_fail(&file, TL_EDOMAIN,
                            "llm.c's files hold a GPT-2; the config's family is %d",
                            (int)c->family);
    TL_TRY(tl_map_new(&map, c, INT64_MAX, &file));
    tl_status s = save(m, &file, c, &map, o.dtype);
    tl_free_raw(map.e);
    return s;
}

/* ---- tokens ---- */

tl_tensor tl_llmc_tokens_load(tl_model *m, const char *path)
{
    const tl_source file = {path, tl_error_record(m)};
    tl_reader r;
    char *rest = NULL;
    int32_t h[HEADER];
    if (tl_error_begin(m) != TL_OK || TL_NEED(file.err, path) != TL_OK ||
        open_file(&r, &file, TOKENS, h) != TL_OK)
        return TL_NONE;
    const int64_t n = r.size, count = (n - BYTES) / 2;
    int64_t *ids = NULL;
    if (h[VERSION] != OF_TOKENS)
        tl_file_fail(&file, TL_EFORMAT, "version %d of tokens; 1 is known", (int)h[VERSION]);
    else if (h[2] != count || n % 2 != 0)
        tl_file_fail(&file, TL_EFORMAT, "says %d tokens; its %lld bytes hold %lld of two bytes",
                     (int)h[2], (long long)n, (long long)count);
    else if (read_rest(&r, &file, &rest) == TL_OK &&
             (ids = tl_calloc((size_t)count + 1, sizeof *ids)) == NULL)
        tl_file_fail(&file, TL_ENOMEM, "no memory for %lld tokens", (long long)count);
    tl_reader_close(&r);
    const unsigned char *in = (const unsigned char *)rest;
    for (int64_t i = 0; ids != NULL && i < count; i++)
        ids[i] = in[2 * i] | in[2 * i + 1] << 8;
    tl_free_raw(rest);
    tl_tensor x = file.err->status == TL_OK ? tl_data(m, ids, TL_I64, TL_DIMS(count)) : TL_NONE;
    tl_free_raw(ids);
    return x;
}

tl_status tl_llmc_tokens_save(const char *path, const int64_t *ids, int64_t n, tl_err *err)
{
    const tl_source file = {path, err};
    TL_TRY(TL_NEED(err, path));
    TL_TRY(TL_NEED_N(err, ids, n));
    if (n > INT32_MAX)
        return tl_file_fail(&file, TL_EDOMAIN, "%lld tokens; the header counts to %d", (long long)n,
                            INT32_MAX);
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] > UINT16_MAX)
            return tl_file_fail(&file, TL_EDOMAIN, "token %lld is %lld; 0 to 65535 are possible",
                                (long long)i, (long long)ids[i]);
    int32_t h[HEADER] = {TOKENS, OF_TOKENS, (int32_t)n};
    tl_writer *w;
    tl_status s = begin_file(&w, &file, h);
    for (int64_t i = 0; i < n && s == TL_OK;) {
        unsigned char some[4096];
        size_t k = 0;
        for (; i < n && k < sizeof some; i++, k += 2) {
            some[k] = (unsigned char)ids[i];
            some[k + 1] = (unsigned char)(ids[i] >> 8);
        }
        s = tl_writer_append(w, some, k, err);
    }
    return end_file(w, s, &file);
}
