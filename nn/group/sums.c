/* sums.c: the accumulators of a parameter on their way round the ring, whole or in parts.
 *
 * What lies together is sent from where it lies: accumulators do not change until the ring has
 * taken them. A part along another axis than the first is packed, piece by piece. */
#include <stdlib.h>
#include <string.h>

#include "nn/group/internal.h"

/* An accumulator in the text behind a parameter's name and the part; its kind follows. */
typedef struct {
    int32_t call, dtype, axis; /* of the part; TL_WHOLE: all of it comes with the last */
    tl_shape shape;
} sum;

/* ---- the bytes of a part: n runs, `step` bytes apart ---- */

typedef struct {
    char *at;
    size_t run, step, n;
} region;

static size_t bytes_of(const tl_array *a)
{
    return (size_t)tl_array_count(a) * tl_dtype_size(a->dtype);
}

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

/* Bytes [from, from + n) of a region, to or from a buffer. */
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

/* A buffer from which nothing is being sent. */
static char *buffer_of(tl_group *g)
{
    tl_err e = {.status = TL_OK};
    char **b = &g->buffer[g->next_buffer++ % TL_GROUP_BUFFERS];
    if (*b == NULL && (*b = malloc(TL_GROUP_PIECE)) == NULL)
        tl_tape_fail(tl_nowhere(g->t), TL_ENOMEM, "tl_group: no memory for %d bytes",
                     TL_GROUP_PIECE);
    else if (tl_group_check(g, g->link.settle(g->link.ctx, *b, &e), &e) == TL_OK)
        return *b;
    return NULL;
}

static tl_status send_region(tl_group *g, const region *r)
{
    const size_t all = r->n * r->run;
    if (r->n == 1)
        return tl_group_send_pieces(g, r->at, all);
    for (size_t at = 0; at < all; at += TL_GROUP_PIECE) {
        const size_t size = all - at < TL_GROUP_PIECE ? all - at : TL_GROUP_PIECE;
        char *b = buffer_of(g);
        if (b == NULL)
            return tl_error_status(g->t);
        copy_runs(r, at, size, b, false);
        TL_TRY(tl_group_send_bytes(g, b, size));
    }
    return TL_OK;
}

static tl_status receive_region(tl_group *g, const region *r)
{
    const size_t all = r->n * r->run;
    if (r->n == 1)
        return tl_group_receive_pieces(g, r->at, all, false);
    for (size_t at = 0; at < all; at += TL_GROUP_PIECE) {
        const size_t size = all - at < TL_GROUP_PIECE ? all - at : TL_GROUP_PIECE;
        char *b = buffer_of(g);
        TL_TRY(b == NULL ? tl_error_status(g->t) : tl_group_receive_bytes(g, b, size));
        copy_runs(r, at, size, b, true);
    }
    return TL_OK;
}

/* ---- what a tape has of a parameter ---- */

static bool is_of(const tl_group *g, int i, const char *name)
{
    const tl_accumulating x = tl_accumulating_at(g->t, i);
    return x.param != NULL && strcmp(x.param, name) == 0;
}

/* In order; *n of them, to be freed. NULL: nothing, or no memory. They stand together, most likely
 * behind those of the parameter before. */
static tl_accumulating *sums_of(tl_group *g, const char *name, int *n)
{
    int i = g->last_found, end, wrapped = 0;
    *n = 0;
    while (!is_of(g, i, name))
        if (tl_accumulating_at(g->t, i++).param == NULL) {
            if (wrapped++)
                return NULL;
            i = 0;
        }
    while (i > 0 && is_of(g, i - 1, name))
        i--;
    for (end = i; is_of(g, end, name);)
        end++;
    g->last_found = i;
    tl_accumulating *a = malloc((size_t)(end - i) * sizeof *a);
    if (a == NULL)
        tl_tape_fail(tl_nowhere(g->t), TL_ENOMEM, "tl_group: no memory for the sums of '%.100s'",
                     name);
    for (; a != NULL && i < end; i++)
        a[(*n)++] = tl_accumulating_at(g->t, i);
    return a;
}

/* The axis of its parts, from the first to the last: as they have come, or as what waits here
 * asks. */
static int axis_of(const tl_group *g, const char *name, const tl_accumulating *a,
                   tl_group_tile part)
{
    sum s;
    const char *at = part.i > 0 ? g->axes : part.came, *end = part.i > 0 ? g->axes_end : part.end;
    while (part.of > 1 && at != NULL && at < end) {
        memcpy(&s, at, sizeof s);
        const char *kind = at + sizeof s;
        if (s.call == a->call && strcmp(kind, a->kind) == 0)
            return s.axis;
        at = kind + strlen(kind) + 1;
    }
    int axis = TL_WHOLE;
    if (part.of > 1)
        tl_accumulator_axis(g->t, name, a->call, a->kind, &axis);
    return axis != TL_ANY_AXIS ? axis : a->array.ndim > 0 ? 0 : TL_WHOLE;
}

/* The text of a message; at the first part its axes are those of the others, too. */
static char *text_of(tl_group *g, const char *name, const tl_accumulating *a, int n,
                     tl_group_tile part, size_t *bytes)
{
    const int32_t tile[2] = {part.i, part.of};
    *bytes = strlen(name) + 1 + sizeof tile;
    for (int i = 0; i < n; i++)
        *bytes += sizeof(sum) + strlen(a[i].kind) + 1;
    char *text = malloc(*bytes), *to = text;
    if (text == NULL)
        return tl_tape_fail(tl_nowhere(g->t), TL_ENOMEM, "tl_group: no memory for %zu bytes",
                            *bytes),
               NULL;
    to = stpcpy(to, name) + 1;
    memcpy(to, tile, sizeof tile);
    const char *first = to += sizeof tile;
    for (int i = 0; i < n; i++) {
        sum s = {.call = a[i].call, .dtype = (int32_t)a[i].array.dtype};
        s.axis = axis_of(g, name, &a[i], part);
        s.shape = tl_array_shape(&a[i].array);
        memcpy(to, &s, sizeof s);
        to = stpcpy(to + sizeof s, a[i].kind) + 1;
    }
    if (part.i == 0) {
        free(g->text_of_first);
        g->text_of_first = text;
        g->axes = first;
        g->axes_end = to;
    }
    return text;
}

static tl_status send_sums(tl_group *g, what w, const char *name, const tl_accumulating *a, int n,
                           tl_group_tile part)
{
    size_t bytes;
    char *text = text_of(g, name, a, n, part, &bytes);
    tl_status s = text == NULL ? tl_error_status(g->t) : tl_group_send(g, w, n, text, bytes);
    for (int i = 0; i < n && s == TL_OK; i++) {
        const region r = region_of(&a[i].array, axis_of(g, name, &a[i], part), part);
        s = *a[i].kind == '\0' ? TL_OK : send_region(g, &r);
    }
    if (part.i > 0)
        free(text);
    return s;
}

tl_status tl_group_send_sums(tl_group *g, what w, const char *name, int *n)
{
    tl_accumulating *a = sums_of(g, name, n);
    if (a != NULL)
        send_sums(g, w, name, a, *n, (tl_group_tile){0, 1, NULL, NULL});
    free(a);
    return tl_error_status(g->t);
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

/* ---- what comes ---- */

/* What lies there may be written: it has been sent. */
static tl_status settle(tl_group *g, const tl_array *a)
{
    tl_err e = {.status = TL_OK};
    for (size_t at = 0; at < bytes_of(a); at += TL_GROUP_PIECE)
        TL_TRY(tl_group_check(g, g->link.settle(g->link.ctx, (const char *)a->data + at, &e), &e));
    return TL_OK;
}

tl_status tl_group_receive_sums(tl_group *g, const head *h, bool on, tl_group_tile *part,
                                bool *alike)
{
    const char *name = g->text, *at = name + strlen(name) + 1, *end = g->text + h->bytes;
    int32_t tile[2] = {0, 0};
    if (end - at >= (int64_t)sizeof tile)
        memcpy(tile, at, sizeof tile);
    at += sizeof tile;
    *part = (tl_group_tile){tile[0], tile[1], at, end};
    *alike = tile[1] > 1 && tl_accumulate_parts(g->t, name, 1) > 1;
    if (tile[0] < 0 || tile[0] >= tile[1] || (g->within ? tile[0] != g->within : tile[0] > 0))
        return tl_tape_fail(tl_nowhere(g->t), TL_EFORMAT,
                            "tl_group: part %d of %d of the sums of '%.100s', where part %d comes",
                            tile[0], tile[1], name, g->within);
    /* Twice: a rank that cannot take them all says so before it hands on the first. */
    for (int i = 0; i < 2 * h->n; i++) {
        const bool takes = i >= h->n;
        sum s;
        if (i == h->n) {
            at = part->came;
            TL_TRY(on ? tl_group_send(g, (what)h->what, h->n, g->text, (size_t)h->bytes) : TL_OK);
        }
        tl_array a;
        if (end - at < (int64_t)sizeof s + 1)
            return tl_tape_fail(tl_nowhere(g->t), TL_EFORMAT,
                                "tl_group: the sums of '%.100s' are cut", name);
        memcpy(&s, at, sizeof s);
        const char *kind = at + sizeof s;
        at = kind + strlen(kind) + 1;
        TL_TRY(tl_accumulator_open(g->t, name, s.call, kind, (tl_dtype)s.dtype, s.shape, &a));
        if (*kind == '\0')
            continue;
        tl_shape mine = tl_array_shape(&a);
        if (mine.ndim != s.shape.ndim || s.axis >= mine.ndim ||
            memcmp(mine.dim, s.shape.dim, (size_t)mine.ndim * sizeof *mine.dim) != 0)
            return tl_tape_fail(tl_nowhere(g->t), TL_ESHAPE,
                                "tl_group: '%.100s' has another shape in rank %d than in rank %d",
                                name, rank_before(g), g->link.rank);
        int axis = TL_WHOLE;
        if (*alike)
            TL_TRY(tl_accumulator_axis(g->t, name, s.call, kind, &axis));
        *alike &= axis == TL_ANY_AXIS || (axis >= 0 && axis == s.axis);
        const region r = region_of(&a, s.axis, *part);
        if (takes && part->of > 1 && part->i == 0)
            TL_TRY(settle(g, &a));
        if (takes)
            TL_TRY(on ? tl_group_receive_pieces(g, r.at, r.run, true) : receive_region(g, &r));
    }
    g->within = part->i < part->of - 1 ? part->i + 1 : 0;
    return TL_OK;
}
