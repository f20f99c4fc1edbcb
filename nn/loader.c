/* loader.c: samples of arrays in a keyed order, batch by batch. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "autograd/author.h"
#include "nn/loader.h"
#include "tensor/operands.h"
#include "tensor/rng.h"

enum { EPOCH, AT, SAMPLES, BATCH, PLACE };
enum { OPTIONS, SEED, OF_EPOCH, OF_AT, HOW }; /* how the place OF_EPOCH, OF_AT was reached */

/* Strides of an array without dims that stands for data that do not fit: this, the bytes that are
 * there, and those that are needed. Its data is the name of their C type. */
static const char misfit;
#define MISFIT ((int64_t)(intptr_t)&misfit)

tl_array tl_samples_as(tl_dtype dtype, tl_shape shape, const void *data, tl_c_data c)
{
    tl_err e = {.status = TL_OK};
    tl_array a = tl_array_make(dtype, &shape, (void *)(uintptr_t)data); /* it is only read */
    const bool sound = tl_shape_check(&shape, dtype, &e) == TL_OK; /* else no loader takes it */
    const size_t bytes = sound ? (size_t)tl_array_count(&a) * tl_dtype_size(dtype) : 0;
    if (tl_c_data_check(c, dtype, bytes, &e) != TL_OK)
        a = (tl_array){.data = (void *)(uintptr_t)c.type,
                       .dtype = dtype,
                       .stride = {MISFIT, (int64_t)c.bytes, (int64_t)bytes}};
    return a;
}

static tl_status check(tl_at at, const char *name, const tl_array *a, int n, tl_loader_options o)
{
    if (strlen(name) > TL_PARAM_NAME_MAX)
        return tl_tape_fail(at, TL_ENAME,
                            "tl_loader_new: the name '%.60s...' has %zu bytes; %d are possible",
                            name, strlen(name), (int)TL_PARAM_NAME_MAX);
    if (n > TL_LOADER_MAX || n == 0)
        return tl_tape_fail(at, TL_EDOMAIN,
                            "tl_loader_new: '%.60s' has %d arrays; 1 to %d are possible", name, n,
                            (int)TL_LOADER_MAX);
    for (int i = 0; i < n; i++) {
        tl_err e = {.status = TL_OK};
        const tl_c_data c = {a[i].data, (size_t)a[i].stride[1]};
        if (a[i].ndim == 0 && a[i].stride[0] == MISFIT &&
            tl_c_data_check(c, a[i].dtype, (size_t)a[i].stride[2], &e) != TL_OK)
            return tl_tape_fail(at, e.status, "tl_loader_new: '%.60s': array %d: %s", name, i,
                                e.message);
        if (a[i].ndim < 1 || tl_dtype_size(a[i].dtype) == 0 ||
            (a[i].data == NULL && tl_array_count(&a[i]) > 0))
            return tl_tape_fail(
                at, TL_EUSAGE,
                "tl_loader_new: '%.60s': array %d has no samples: no data, or no dims", name, i);
        for (int64_t k = 0; a[i].dtype == TL_BOOL && k < tl_array_count(&a[i]); k++)
            if (*(const unsigned char *)tl_array_at(&a[i], k) > 1)
                return tl_tape_fail(at, TL_EDOMAIN,
                                    "tl_loader_new: '%.60s': element %" PRId64
                                    " of array %d is a BOOL of %d; 0 and 1 are possible",
                                    name, k, i, *(const unsigned char *)tl_array_at(&a[i], k));
        if (a[i].dim[0] != a[0].dim[0])
            return tl_tape_fail(at, TL_ESHAPE,
                                "tl_loader_new: '%.60s': array %d has %" PRId64
                                " samples, array 0 %" PRId64,
                                name, i, a[i].dim[0], a[0].dim[0]);
    }
    if (o.batch < 1)
        return tl_tape_fail(at, TL_EDOMAIN,
                            "tl_loader_new: '%.60s': .batch is %" PRId64 "; 1 is the least", name,
                            o.batch);
    if (a[0].dim[0] < (o.drop_last ? o.batch : 1))
        return tl_tape_fail(at, TL_EDOMAIN,
                            "tl_loader_new: '%.60s': batches of %" PRId64 " from %" PRId64
                            " samples",
                            name, o.batch, a[0].dim[0]);
    return TL_OK;
}

tl_loader tl_loader_new_at(tl_at at, const char *name, const tl_array *arrays, int n,
                           tl_loader_options o)
{
    tl_loader l = {.model = tl_tape_model(at.tape), .o = o, .n = n, .ordered = -1};
    if (at.tape == NULL || tl_failed(at.tape) || TL_NEED_AT(at, name) != TL_OK ||
        TL_NEED_N_AT(at, arrays, n) != TL_OK || check(at, name, arrays, n, o) != TL_OK)
        return (tl_loader){0};
    memcpy(l.array, arrays, (size_t)n * sizeof *arrays);
    l.samples = arrays[0].dim[0];
    snprintf(l.name, sizeof l.name, "loader.%s", name);
    char how[TL_NAME_MAX];
    snprintf(how, sizeof how, "loading.%s", name);
    l.place = tl_buffer_at(at, l.model, l.name, TL_I64, TL_DIMS(PLACE));
    l.how = tl_buffer_at(at, l.model, how, TL_I64, TL_DIMS(HOW));
    if (!o.in_order && !tl_is_none(l.place))
        l.order = tl_zeros(l.model, TL_I64, TL_DIMS(l.samples));
    return tl_failed(at.tape) ? (tl_loader){0} : l;
}

/* Puts the samples of an epoch in order, by Fisher-Yates from the last place down. */
static void shuffle(tl_at at, tl_loader *l, int64_t epoch, uint64_t seed)
{
    tl_array a;
    if ((l->ordered == epoch && l->seed == seed) || !tl_array_of(at.tape, l->order, &a))
        return;
    tl_rng_key key = tl_rng_stream(seed, l->name);
    if (key.status != TL_OK) {
        tl_tape_fail(at, key.status, "tl_loader_next: no memory for a key");
        return;
    }
    int64_t *order = a.data;
    for (int64_t i = 0; i < l->samples; i++)
        order[i] = i;
    for (int64_t i = l->samples - 1; i > 0; i--) {
        const uint64_t drawn = tl_rng_below(key, (uint64_t)epoch, (uint64_t)i, (uint64_t)i + 1);
        const int64_t k = (int64_t)drawn, was = order[i];
        order[i] = order[k];
        order[k] = was;
    }
    l->ordered = epoch;
    l->seed = seed;
}

/* The next rows of one array, from place `first` of the order on. */
static tl_tensor gathered(tl_at at, const tl_loader *l, const tl_array *from, int64_t first,
                          int64_t rows)
{
    tl_shape s = tl_array_shape(from);
    tl_array order = {0}, to;
    s.dim[0] = rows;
    tl_tensor x = tl_zeros_tape_at(at.tape, from->dtype, s, at.file, at.line);
    if (!tl_array_of(at.tape, x, &to) ||
        (!l->o.in_order && !tl_array_of(at.tape, l->order, &order)))
        return TL_NONE;
    tl_array row = *from, out = to;
    row.dim[0] = out.dim[0] = 1;
    size_t size = tl_dtype_size(from->dtype);
    for (int64_t i = 0; i < rows; i++) {
        int64_t k = l->o.in_order ? first + i : ((int64_t *)order.data)[first + i];
        row.data = (char *)from->data + k * from->stride[0] * (int64_t)size;
        out.data = (char *)to.data + i * to.stride[0] * (int64_t)size;
        if (tl_array_count(&row) > 0)
            tl_array_copy(&out, &row);
    }
    return x;
}

static tl_status usable(tl_at at, const tl_loader *l, int64_t most)
{
    if (l->n == 0 || tl_tape_model(at.tape) != l->model)
        return tl_tape_fail(at, TL_EUSAGE,
                            "tl_loader_next: the loader was not made for this tape's model");
    if (most < 1)
        return tl_tape_fail(at, TL_EDOMAIN, "tl_loader_next: %" PRId64 " samples; 1 is the least",
                            most);
    if (tl_traced(at.tape))
        return tl_tape_fail(at, TL_ETRACED,
                            "tl_loader_next: samples come into a traced function as its inputs");
    return TL_OK;
}

/* Whether `how` tells how the place was reached. A checkpoint may bring a place without it. */
static bool is_of(const int64_t *how, const int64_t *place)
{
    return place[SAMPLES] != 0 && how[OF_EPOCH] == place[EPOCH] && how[OF_AT] == place[AT];
}

/* Checks that the place, perhaps a checkpoint's, is one of these data, batches and options. */
static tl_status check_place(tl_at at, const tl_loader *l, const int64_t *place, const int64_t *how)
{
    const int64_t options = l->o.in_order + 2 * l->o.drop_last;
    const int64_t epoch = place[EPOCH], first = place[AT];
    if ((place[SAMPLES] != 0 && (place[SAMPLES] != l->samples || place[BATCH] != l->o.batch)) ||
        epoch < 0 || epoch >= INT64_MAX / l->samples - 1 || first < 0 || first > l->samples)
        return tl_tape_fail(at, TL_EFORMAT,
                            "tl_loader_next: the place is epoch %" PRId64 ", sample %" PRId64
                            " of %" PRId64 " in batches of %" PRId64 ", but there are %" PRId64
                            " in batches of %" PRId64,
                            epoch, first, place[SAMPLES], place[BATCH], l->samples, l->o.batch);
    if (is_of(how, place) && how[OPTIONS] != options)
        return tl_tape_fail(at, TL_EFORMAT,
                            "tl_loader_next: the place is one of .in_order %d and .drop_last %d, "
                            "the loader has %d and %d",
                            (int)how[OPTIONS] & 1, (int)how[OPTIONS] >> 1 & 1, l->o.in_order,
                            l->o.drop_last);
    return TL_OK;
}

static int64_t next(tl_at at, tl_loader *l, int64_t most, tl_tensor *in)
{
    tl_array a, b;
    if (tl_failed(at.tape) || tl_tape_need(at, "tl_loader_next", "l", l != NULL, 1) != TL_OK ||
        tl_tape_need(at, "tl_loader_next", "in", in != NULL, 1) != TL_OK ||
        usable(at, l, most) != TL_OK || !tl_array_of(at.tape, l->place, &a) ||
        !tl_array_of(at.tape, l->how, &b) || check_place(at, l, a.data, b.data) != TL_OK)
        return 0;
    const int64_t *place = a.data, *how = b.data;
    const int64_t kept = l->samples - (l->o.drop_last ? l->samples % l->o.batch : 0);
    int64_t epoch = place[EPOCH], first = place[AT];
    uint64_t seed = is_of(how, place) ? (uint64_t)how[SEED] : tl_model_seed(l->model);
    if (first >= kept) {
        epoch++;
        first = 0;
    }
    if (first == 0)
        seed = tl_model_seed(l->model);
    int64_t begin = first - first % l->o.batch,
            end = kept - begin < l->o.batch ? kept : begin + l->o.batch;
    int64_t rows = end - first < most ? end - first : most;
    if (!l->o.in_order)
        shuffle(at, l, epoch, seed);
    for (int i = 0; i < l->n; i++)
        in[i] = gathered(at, l, &l->array[i], first, rows);
    const int64_t now[PLACE] = {epoch, first + rows, l->samples, l->o.batch},
                  with[HOW] = {l->o.in_order + 2 * l->o.drop_last, (int64_t)seed, epoch,
                               first + rows};
    if (tl_failed(at.tape) || tl_write(l->model, l->how, with, sizeof with) != TL_OK ||
        tl_write(l->model, l->place, now, sizeof now) != TL_OK)
        return 0;
    l->epoch = epoch;
    l->number = epoch * kept + first;
    l->size = end - begin;
    l->left = end - first - rows;
    return rows;
}

int64_t tl_loader_next_at(tl_at at, tl_loader *l, int64_t most, tl_tensor *in)
{
    const int64_t rows = next(at, l, most, in);
    if (rows == 0 && l != NULL)
        l->left = 0; /* ends a loop over a batch */
    return rows;
}
