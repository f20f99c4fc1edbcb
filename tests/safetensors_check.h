/* safetensors_check.h: what must hold of any file that opened, whatever its bytes. */
#ifndef TL_SAFETENSORS_CHECK_H
#define TL_SAFETENSORS_CHECK_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/files/safetensors.h"
#include "tensor/operands.h"

/* Opens n bytes; true when they are refused with a message, or open into
 * something well-formed, all of whose memory can be read. */
static inline bool safetensors_sound(const void *bytes, size_t n, tl_status *status)
{
    tl_err err = {0};
    tl_st_file *f = NULL;
    unsigned sum = 0;
    *status = tl_st_open_memory(&f, bytes, n, "memory", &err);
    if (*status != TL_OK)
        return f == NULL && err.status == *status && err.message[0] != '\0';
    bool sound = f != NULL && err.status == TL_OK;
    for (int i = 0; i < tl_st_count(f) && sound; i++) {
        tl_st_entry e = tl_st_at(f, i);
        tl_shape shape = tl_array_shape(&e.array);
        size_t size = tl_dtype_size(e.array.dtype);
        sound = e.name != NULL && tl_st_find(f, e.name) == i && size > 0 &&
                (i == 0 || strcmp(tl_st_at(f, i - 1).name, e.name) < 0) &&
                tl_shape_check(&shape, e.array.dtype, NULL) == TL_OK &&
                tl_array_contiguous(&e.array) && (uintptr_t)e.array.data % size == 0;
        size_t all = sound ? (size_t)tl_array_count(&e.array) * size : 0;
        sound = sound && all <= n;
        for (size_t k = 0; k < all && sound; k++)
            sum += ((const unsigned char *)e.array.data)[k];
    }
    for (int i = 0; i < tl_st_meta_count(f) && sound; i++) {
        tl_st_meta m = tl_st_meta_at(f, i);
        sound = m.key != NULL && m.value != NULL && tl_st_meta_get(f, m.key) == m.value;
    }
    tl_st_close(f);
    return sound && sum < UINT32_MAX;
}

#endif
