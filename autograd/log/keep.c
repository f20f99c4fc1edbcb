/* keep.c: the values of one step, as they were hashed, in a safetensors file beside the log.
 *
 * A tensor's name is its key. Axis 0 holds the parts one after the other; of a 0-d value
 * the last part is there; parts that differ in other axes are left out. */
#include <string.h>

#include "autograd/log/state.h"
#include "tensor/files/safetensors.h"

void tl_log_keep_part(tl_log_entry *e, const tl_array *a, tl_run_log *l)
{
    size_t bytes = (size_t)tl_array_count(a) * tl_dtype_size(a->dtype);
    if (a->ndim == 0)
        e->kept_bytes = 0;
    unsigned char *grown = tl_realloc(e->kept, e->kept_bytes + bytes + 1);
    if (grown == NULL) {
        tl_log_stop(l, TL_ENOMEM, "no memory to keep %zu bytes of step %lld", e->kept_bytes + bytes,
                    (long long)l->step);
        return;
    }
    tl_shape s = tl_array_shape(a);
    tl_array to = tl_array_make(a->dtype, &s, grown + e->kept_bytes);
    tl_array_copy(&to, a);
    e->kept = grown;
    e->kept_bytes += bytes;
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

void tl_log_write_values(tl_run_log *l)
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
        tl_log_stop(l, TL_ENOMEM, "no memory to write %u values", l->n);
    else
        tl_st_write(tl_log_values_path(path, sizeof path, l->path, l->step), st, n,
                    &(tl_st_meta){TL_ST_SEAL, ""}, 1, &l->failure);
    tl_free_raw(st);
    tl_free_raw(name);
}
