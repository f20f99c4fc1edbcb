/* write_file.h: a whole file by the library's writer. */
#ifndef TL_TESTS_WRITE_FILE_H
#define TL_TESTS_WRITE_FILE_H

#include "tensor/files/file.h"

static inline tl_status write_file(const char *path, const void *data, size_t n, tl_err *err)
{
    tl_writer *w;
    TL_TRY(tl_writer_begin(&w, path, err));
    (void)tl_writer_append(w, data, n, NULL); /* a failure sticks until commit */
    return tl_writer_commit(w, err);
}

#endif
