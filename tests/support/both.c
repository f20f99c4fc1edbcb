#include "tests/support/both.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/isa.h"

typedef struct {
    double *x;
    int64_t n;
    tl_dtype dtype;
} kept;

static kept keep(tl_tape *t, tl_tensor x)
{
    tl_array a;
    if (!tl_array_of(t, x, &a))
        fail_msg("%s", tl_error(t));
    kept k = {calloc((size_t)tl_array_count(&a) + 1, sizeof(double)), tl_array_count(&a), a.dtype};
    for (int64_t i = 0; i < k.n; i++) {
        float narrow;
        const void *from = tl_array_at(&a, i);
        bool half = a.dtype == TL_F16 || a.dtype == TL_BF16;
        if (half)
            tl_isa_now()->convert->widen(1, a.dtype, from, 1, &narrow);
        tl_isa_now()->convert->cast(1, half ? TL_F32 : a.dtype, half ? &narrow : from, TL_F64,
                                    &k.x[i]);
    }
    return k;
}

static void compare(both_result *r, kept a, kept b)
{
    assert_int_equal(a.n, b.n);
    assert_int_equal(a.dtype, b.dtype);
    for (int64_t i = 0; i < a.n; i++) {
        if (memcmp(&a.x[i], &b.x[i], 8) == 0 || (isnan(a.x[i]) && isnan(b.x[i])))
            continue;
        r->same = false;
        double far = fabs(a.x[i] - b.x[i]) / (1 + fabs(a.x[i]));
        r->far = far > r->far || isnan(far) ? far : r->far;
    }
    free(a.x);
    free(b.x);
}

static void read_report(both_result *r, const tl_graph *g)
{
    FILE *f = fmemopen(r->report, sizeof r->report, "w");
    tl_graph_report(g, f);
    fclose(f);
    for (const char *at = r->report; at != NULL && *at != 0;
         at = strchr(at, '\n') == NULL ? NULL : strchr(at, '\n') + 1) {
        size_t n = strcspn(at, "\n"), have = strlen(r->replaced);
        char line[512] = "";
        memcpy(line, at, n < 511 ? n : 511);
        if (strstr(line, ": replaced ") != NULL && have + n + 2 < sizeof r->replaced)
            memcpy(r->replaced + have, at, n + 1);
    }
}

both_result both_ways(tl_model *m, tl_program *f, const tl_tensor *in, int n_in, int n_out,
                      void *ctx, tl_graph_options o)
{
    both_result r = {.same = true};
    tl_tape *t = tl_tape_new(m);
    tl_tensor out[BOTH_OUTS];
    kept a[BOTH_OUTS];
    f(t, in, n_in, out, n_out, ctx);
    for (int i = 0; i < n_out; i++)
        a[i] = keep(t, out[i]);
    tl_tape_reset(t);
    tl_grad_clear(t);
    tl_graph *g = tl_trace_at(TL_AT(t), f, in, n_in, n_out, ctx, o);
    if (g == NULL || tl_graph_run(g, in, n_in, out, n_out) != TL_OK)
        fail_msg("%s", tl_error(t));
    for (int i = 0; i < n_out; i++)
        compare(&r, a[i], keep(t, out[i]));
    read_report(&r, g);
    tl_free(g, t);
    return r;
}

tl_tensor both_data(tl_model *m, tl_dtype d, tl_shape s, unsigned seed)
{
    int64_t n = tl_shape_count(&s);
    char *data = calloc((size_t)n + 1, 8);
    uint64_t z = seed * 0x9e3779b97f4a7c15u + 1;
    for (int64_t i = 0; i < n; i++) {
        z = z * 6364136223846793005u + 1442695040888963407u;
        double x = (double)(z >> 40) * 0x1p-22 - 2;
        tl_isa_now()->convert->cast(1, TL_F64, &x, d, data + (size_t)i * tl_dtype_size(d));
    }
    tl_tensor x = tl_data(m, data, d, s);
    free(data);
    return x;
}
