#include "tests/support/half.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "tests/ref/ref.h"

const tl_dtype half_dtypes[2] = {TL_BF16, TL_F16};

void half_read(tl_tape *t, tl_tensor x, void *to, size_t bytes)
{
    if (tl_keep(t, x, to, bytes) != TL_OK)
        fail_msg("%s", tl_error(t));
}

void half_master(tl_tape *t, tl_model *m, const char *name, float *to)
{
    for (int i = 0; i < tl_model_count(m); i++) {
        tl_named p = tl_model_at(m, i);
        size_t n = strlen(p.name), k = strlen(name);
        if (!p.param && strstr(p.name, "master") != NULL && n > k &&
            strcmp(p.name + n - k, name) == 0) {
            assert_int_equal(p.array.dtype, TL_F32);
            half_read(t, p.tensor, to, (size_t)tl_array_count(&p.array) * sizeof *to);
            return;
        }
    }
    fail_msg("no master of '%s'", name);
}

uint16_t half_of(tl_dtype d, float x)
{
    uint16_t h;
    ref_tensor r = ref_new(d == TL_F16 ? REF_F16 : REF_BF16, 1, (int64_t[]){1});
    ref_set(&r, 0, ref_round(r.dtype, (double)x));
    memcpy(&h, r.data, 2);
    ref_free(&r);
    return h;
}

float half_value(tl_dtype d, uint16_t h)
{
    ref_tensor r = ref_new(d == TL_F16 ? REF_F16 : REF_BF16, 1, (int64_t[]){1});
    memcpy(r.data, &h, 2);
    float x = (float)ref_get(&r, 0);
    ref_free(&r);
    return x;
}
