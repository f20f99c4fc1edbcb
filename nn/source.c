/* source.c: messages about a file, which begin with its path, and JSON from a file. */
#include "nn/files.h"

#include "tensor/files/file.h"
#include "tensor/memory.h"
#include "tensor/threads.h"

tl_status tl_file_fail(const tl_source *file, tl_status s, const char *fmt, ...)
{
    tl_err e = {.status = TL_OK};
    va_list ap;
    va_start(ap, fmt);
    tl_vfail(&e, s, fmt, ap);
    va_end(ap);
    return tl_fail(file->err, s, "%.200s: %s", file->path, e.message);
}

tl_status tl_source_json(json_t **out, const tl_source *file, const char *text, size_t n)
{
    json_error_t e;
    tl_textenv saved = tl_textenv_enter();
    *out = json_loadb(text, n, JSON_REJECT_DUPLICATES, &e);
    tl_textenv_leave(saved);
    if (*out != NULL)
        return TL_OK;
    if (json_error_code(&e) == json_error_out_of_memory)
        return tl_file_fail(file, TL_ENOMEM, "no memory to read %zu bytes of JSON", n);
    return tl_file_fail(file, TL_EFORMAT, "not valid JSON: %s (line %d, byte %d)",
                        n == 0 ? "it is empty" : e.text, e.line, e.position);
}

tl_status tl_source_object(json_t **out, const tl_source *file, size_t most)
{
    char *text;
    size_t n;
    *out = NULL;
    TL_TRY(tl_file_read(file->path, most, &text, &n, file->err));
    tl_status s = tl_source_json(out, file, text, n);
    tl_free_raw(text);
    if (s != TL_OK || json_is_object(*out))
        return s;
    json_decref(*out);
    *out = NULL;
    return tl_file_fail(file, TL_EFORMAT, "a JSON object is expected");
}
