/* sums.c: the accumulators of a parameter on their way round the ring, whole or in parts.
 *
 * Accumulators that lie together are sent from where they lie: they do not change until the link
 * has taken them. A part along another axis than the first is packed piece by piece. */
#include <stdlib.h>
#include <string.h>

#include "nn/group/internal.h"

/* An accumulator in the text of a message, behind the parameter's name and the part's number. Its
 * kind follows. */
typedef struct {
    int32_t call, dtype;
    int32_t axis; /* along which parts are cut; TL_WHOLE: all of it comes with the last part */
    tl_shape shape;
} sum;

/* ---- the bytes of a part ---- */

/* n runs of `run` bytes, each `step` bytes after the one before. */
typedef struct {
    char *at;
    size_t run, step, n;
} region;

static region region_of(const tl_array *a, int axis, tl_group_tile part)
{
    if (axis < 0 || part.of == 1)
        return (region){a->data, part.i < part.of - 1 ? 0 : bytes_of(a), 0, 1};
    size_t inner = tl_dtype_size(a->dtype), outer = 1;
    for (int i = 0; i < axis; i++)
        outer *= (size_t)a->dim[i];
    for (int i = axis + 1; i < a->ndim; i++)
        inner *= (size_t)a->dim[i];
    const size_t size = (size_t)a->dim[axis], of = (size_t)part.of,
                 from = size * (size_t)part.i / of, to = size * ((size_t)part.i + 1) / of;
    return (region){(char *)a->data + from * inner, (to - from) * inner, size * inner, outer};
}

/* Copies bytes [from, from + n) of a region to a buffer or (in) from it. */
static void copy_runs(const region *r, size_t from, size_t n, char *buffer, bool in)
{
    for (size_t k = from / r->run, skip = from % r->run; n > 0; k++, skip = 0) {
        const size_t size = n < r->run - skip ? n : r->run - skip;
        char *run = r->at + k * r->step + skip;
        memcpy(in ? run : buffer, in ? buffer : run, size);
        buffer += size;
        n -= size;
    }
}

/* A buffer from which nothing is being sent any more; NULL on an error. */
static char *buffer_of(tl_group *g)
{
    char **b = &g->buffer[g->next_buffer++ % TL_GROUP_BUFFERS];
    if (*b == NULL && (*b = tl_group_alloc(g, TL_GROUP_PIECE)) == NULL)
        return NULL;
    return tl_group_settle(g, *b) == TL_OK ? *b : NULL;
}

/* Packs a region into buffers that are sent, or unpacks those that come. */
static tl_status pack_region(tl_group *g, const region *r, bool in)
{
    const size_t all = r->n * r->run;
    for (size_t at = 0; at < all; at += TL_GROUP_PIECE) {
        const size_t size = all - at < TL_GROUP_PIECE ? all - at : TL_GROUP_PIECE;
        char *b = buffer_of(g);
        if (b == NULL)
            return tl_error_status(g->t);
        if (in)
            TL_TRY(tl_group_receive_bytes(g, b, size));
        copy_runs(r, at, size, b, in);
        if (!in)
            TL_TRY(tl_group_send_bytes(g, b, size));
    }
    return TL_OK;
}

/* ---- the accumulators of a parameter on a tape ---- */

static bool is_of(const tl_group *g, int i, const char *name)
{
    const tl_accumulating x = tl_accumulating_at(g->t, i);
    return x.param != NULL && strcmp(x.param, name) == 0;
}

/* The accumulators of a parameter, in order; *n of them, to be freed. NULL: there are none, or no
 * memory. They stand together, most likely behind those of the parameter before. */
static tl_accumulating *sums_of(tl_group *g, const char *name, int *n)
{
    int i = g->last_found, end;
    bool wrapped = false;
    *n = 0;
    while (!is_of(g, i, name))
        if (tl_accumulating_at(g->t, i++).param == NULL) {
            if (wrapped)
                return NULL;
            wrapped = true;
            i = 0;
        }
    while (i > 0 && is_of(g, i - 1, name))
        i--;
    for (end = i; is_of(g, end, name);)
        end++;
    g->last_found = i;
    tl_accumulating *a = tl_group_alloc(g, (size_t)(end - i) * sizeof *a);
    for (; a != NULL && i < end; i++)
        a[(*n)++] = tl_accumulating_at(g->t, i);
    return a;
}

/* The axis along which an accumulator is cut into parts: that of the first part that has come, or
 * one that suits what waits here. */
static int choose_axis(const tl_group *g, const char *name, const tl_accumulating *a,
                       tl_group_tile part)
{
    for (const char *at = part.came; at != NULL && at < part.end;) {
        sum s;
        memcpy(&s, at, sizeof s);
        const char *kind = at + sizeof s;
        if (s.call == a->call && strcmp(kind, a->kind) == 0)
            return s.axis;
        at = kind + strlen(kind) + 1;
    }
    int axis = TL_WHOLE;
    tl_accumulator_axis(g->t, name, a->call, a->kind, &axis);
    return axis != TL_ANY_AXIS ? axis : a->array.ndim > 0 ? 0 : TL_WHOLE;
}

/* Chooses all axes with the first part: when the last is sent, nothing waits any more. */
static tl_status choose_axes(tl_group *g, const char *name, const tl_accumulating *a, int n,
                             tl_group_tile part)
{
    if (part.i > 0)
        return n == g->n_axes
                   ? TL_OK
                   : tl_group_fail(g, TL_EUSAGE, "tl_group: '%.100s' had %d sums, and has %d now",
                                   name, g->n_axes, n);
    free(g->axis);
    g->axis = tl_group_alloc(g, (size_t)n * sizeof *g->axis);
    g->n_axes = g->axis == NULL ? 0 : n;
    for (int i = 0; i < g->n_axes; i++)
        g->axis[i] = part.of == 1 ? TL_WHOLE : choose_axis(g, name, &a[i], part);
    return tl_error_status(g->t);
}

static tl_status send_sums(tl_group *g, what w, const char *name, const tl_accumulating *a, int n,
                           tl_group_tile part)
{
    const int32_t tile[2] = {part.i, part.of};
    size_t bytes = strlen(name) + 1 + sizeof tile;
    for (int i = 0; i < n; i++)
        bytes += sizeof(sum) + strlen(a[i].kind) + 1;
    TL_TRY(choose_axes(g, name, a, n, part));
    char *text = tl_group_alloc(g, bytes), *to = text;
    if (text == NULL)
        return TL_ENOMEM;
    to = stpcpy(to, name) + 1;
    memcpy(to, tile, sizeof tile);
    to += sizeof tile;
    for (int i = 0; i < n; i++) {
        sum s;
        memset(&s, 0, sizeof s); /* its padding is sent, too */
        s.call = a[i].call;
        s.dtype = (int32_t)a[i].array.dtype;
        s.axis = g->axis[i];
        s.shape = tl_array_shape(&a[i].array);
        memcpy(to, &s, sizeof s);
        to = stpcpy(to + sizeof s, a[i].kind) + 1;
    }
    tl_status s = tl_group_send(g, w, n, text, bytes);
    free(text);
    for (int i = 0; i < n && s == TL_OK; i++) {
        const region r = region_of(&a[i].array, g->axis[i], part);
        if (*a[i].kind != '\0')
            s = r.n == 1 ? tl_group_send_pieces(g, r.at, r.run) : pack_region(g, &r, false);
    }
    return s;
}

tl_status tl_group_hand_on(tl_group *g, const char *name, tl_group_tile part)
{
    int n;
    tl_accumulating *a = sums_of(g, name, &n);
    if (n > 0 && !is_last(g) && !tl_failed(g->t))
        send_sums(g, SUMS, name, a, n, part);
    for (int i = 0; i < n && part.i == part.of - 1; i++) {
        const int64_t bytes = *a[i].kind == '\0' ? 0 : (int64_t)bytes_of(&a[i].array);
        g->cost.sums += bytes;
        g->cost.early += g->backward ? bytes : 0;
    }
    free(a);
    return tl_error_status(g->t);
}

/* ---- receiving ---- */

/* Takes the sum that the text describes at *at: opens its accumulator, a. (A sum of no kind has
 * none: it stands for a parameter that was reached without a gradient.) */
static tl_status open_sum(tl_group *g, const char *name, const char **at, const char *end, sum *s,
                          tl_array *a, const char **kind)
{
    if (end - *at < (int64_t)sizeof *s + 1)
        return tl_group_fail(g, TL_EFORMAT, "tl_group: the sums of '%.100s' are cut", name);
    memcpy(s, *at, sizeof *s);
    *kind = *at + sizeof *s;
    *at = *kind + strlen(*kind) + 1;
    TL_TRY(tl_accumulator_open(g->t, name, s->call, *kind, (tl_dtype)s->dtype, s->shape, a));
    if (**kind == '\0')
        return TL_OK;
    const tl_shape mine = tl_array_shape(a);
    if (!tl_shape_equal(&mine, &s->shape) || s->axis >= mine.ndim)
        return tl_group_fail(g, TL_ESHAPE,
                             "tl_group: '%.100s' has another shape in rank %d than in rank %d",
                             name, rank_before(g), g->link.rank);
    return TL_OK;
}

tl_status tl_group_receive_sums(tl_group *g, const head *h, bool on, tl_group_tile *part,
                                bool *alike)
{
    const char *name = g->text, *at = name + strlen(name) + 1, *end = g->text + h->bytes, *kind;
    int32_t tile[2] = {0, 0};
    sum s;
    tl_array a;
    if (end - at >= (int64_t)sizeof tile)
        memcpy(tile, at, sizeof tile);
    at += sizeof tile;
    *part = (tl_group_tile){tile[0], tile[1], at, end};
    if (tile[0] < 0 || tile[0] >= tile[1] || tile[0] != g->next_part)
        return tl_group_fail(g, TL_EFORMAT,
                             "tl_group: part %d of %d of the sums of '%.100s', where part %d comes",
                             tile[0], tile[1], name, g->next_part);
    /* First all are opened: a rank that cannot take them says so before it hands on the first. */
    *alike = tile[1] > 1 && tl_accumulate_parts(g->t, name, 1) > 1;
    for (int i = 0; i < h->n; i++) {
        int axis = TL_WHOLE;
        TL_TRY(open_sum(g, name, &at, end, &s, &a, &kind));
        if (*alike && *kind != '\0') {
            TL_TRY(tl_accumulator_axis(g->t, name, s.call, kind, &axis));
            *alike = axis == TL_ANY_AXIS || (axis >= 0 && axis == s.axis);
        }
    }
    TL_TRY(on ? tl_group_send(g, (what)h->what, h->n, g->text, (size_t)h->bytes) : TL_OK);
    at = part->came;
    for (int i = 0; i < h->n; i++) {
        TL_TRY(open_sum(g, name, &at, end, &s, &a, &kind));
        if (*kind == '\0')
            continue;
        /* Sends from the accumulator must have ended before parts of it are overwritten. */
        for (size_t k = 0; part->of > 1 && part->i == 0 && k < bytes_of(&a); k += TL_GROUP_PIECE)
            TL_TRY(tl_group_settle(g, (const char *)a.data + k));
        const region r = region_of(&a, s.axis, *part);
        TL_TRY(r.n == 1 ? tl_group_receive_pieces(g, r.at, r.run, on) : pack_region(g, &r, true));
    }
    g->next_part = part->i < part->of - 1 ? part->i + 1 : 0;
    return TL_OK;
}

tl_status tl_group_send_all(tl_group *g, what w)
{
    for (int i = 0, n;; i += n) {
        const tl_accumulating first = tl_accumulating_at(g->t, i);
        if (first.param == NULL)
            return tl_group_send(g, w + 1, 0, NULL, 0);
        g->last_found = i;
        tl_accumulating *a = sums_of(g, first.param, &n);
        if (a != NULL)
            send_sums(g, w, first.param, a, n, (tl_group_tile){0, 1, NULL, NULL});
        free(a);
        TL_TRY(tl_error_status(g->t));
    }
}

tl_status tl_group_receive_all(tl_group *g)
{
    const bool on = hands_on(g);
    head h = {.what = GRADIENT};
    tl_group_tile part;
    bool alike;
    while (h.what == GRADIENT) {
        TL_TRY(tl_group_expect_some(g, &h, GRADIENT));
        if (h.what == GRADIENT)
            TL_TRY(tl_group_receive_sums(g, &h, on, &part, &alike));
    }
    return on ? tl_group_send(g, SHARED, 0, NULL, 0) : TL_OK;
}
