/* attention.t.h: attention of one compute type: what both passes share, and the forward pass.
 *
 * Parameters: ATTN_BITS (32 or 64); A(name) gives names their suffix; ATTN_EXP is the level's array
 * exp; see attention.k.c. NUMERICS 7 is the specification, attention.h the interface.
 *
 * Both passes work on tiles of up to ATTN_ROWS rows of queries. The allowed keys of row r are the
 * first n[r] of the sample's keys, and n ascends with r. key_start is added to the pointers: lanes
 * meet in the same way whichever lane the first key is in. The scores of a tile are computed from
 * transposed keys (panels), its outputs from rows of values. Only its ragged end (the diagonal)
 * treats the rows one by one.
 */
#include "tensor/kernels/attention_vec.t.h"

enum { A(PANEL) = 2 * LANES }; /* keys in a panel */

/* A tile of queries. */
typedef struct {
    int64_t rows;                 /* in use */
    int64_t ld;                   /* elements from one row of scores to the next */
    const A(elem) * a[ATTN_ROWS]; /* all readable: unused ones repeat the last row */
    A(elem) * out[ATTN_ROWS];
    int64_t n[ATTN_ROWS];
    A(elem) scale;
} A(tile);

#include "tensor/kernels/attention_rows.t.h"

#define T(name) A(name##_many2)
#define ROWS ATTN_ROWS
#define VECS 2
#include "tensor/kernels/attention_tile.t.h"
#define T(name) A(name##_many1)
#define ROWS ATTN_ROWS
#define VECS 1
#include "tensor/kernels/attention_tile.t.h"
#define T(name) A(name##_few2)
#define ROWS ATTN_FEW
#define VECS 2
#include "tensor/kernels/attention_tile.t.h"
#define T(name) A(name##_few1)
#define ROWS ATTN_FEW
#define VECS 1
#include "tensor/kernels/attention_tile.t.h"

/* ---- packing: nothing is computed here ---- */

#define G(name) A(name)
#include "tensor/kernels/transpose.t.h"
#undef G

/* Packs the first n keys. A panel holds PANEL consecutive keys, transposed: panel[d * PANEL + key].
 * Zeros fill the vector of the last key; a second vector after it is not written. dst has n,
 * rounded up to PANEL, times dim elements. */
static void A(pack_panels)(const A(elem) * src, int64_t stride, int64_t n, int64_t dim,
                           A(elem) * dst)
{
    for (int64_t j = 0; j < n; j += A(PANEL), dst += A(PANEL) * dim) {
        const int64_t keys = n - j < A(PANEL) ? n - j : A(PANEL);
        A(transpose)(dst, A(PANEL), src + j * stride, stride, keys, dim);
        for (int64_t d = 0; d < dim && keys % LANES != 0; d++)
            for (int64_t i = keys; i % LANES != 0; i++)
                dst[d * A(PANEL) + i] = 0;
    }
}

static inline int64_t A(round_up)(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* n rows of whole vectors: the rows themselves if their length allows it, else a copy padded with
 * zeros, whose stride becomes *stride. */
static const A(elem) *
    A(pad_rows)(const A(elem) * src, int64_t *stride, int64_t n, int64_t dim, A(elem) * copy)
{
    const int64_t wide = A(round_up)(dim, LANES), from = *stride;
    if (wide == dim)
        return src;
    for (int64_t j = 0; j < n; j++) {
        memcpy(copy + j * wide, src + j * from, (size_t)dim * sizeof *copy);
        memset(copy + j * wide + dim, 0, (size_t)(wide - dim) * sizeof *copy);
    }
    *stride = wide;
    return copy;
}

/* ---- scratch ---- */

/* The parts of a task's scratch. */
typedef struct {
    A(elem) * kt, *vt;          /* panels */
    A(elem) * k, *v, *q, *dout; /* padded rows, where dim is not a whole number of vectors */
    A(elem) * p, *t;            /* rows of scores, and of their gradients */
} A(room);

static A(elem) * A(take)(char *scratch, size_t *used, int64_t count)
{
    char *at = scratch ? scratch + *used : NULL;
    *used += ((size_t)count * sizeof(A(elem)) + 63) / 64 * 64;
    return (A(elem) *)(void *)at;
}

/* Elements from one row of scores of n keys to the next: whole vectors, of a length that keeps rows
 * from all sharing one cache set. */
static inline int64_t A(row_elements)(int64_t n)
{
    const int64_t ld = A(round_up)(n, 16);
    return ld > 0 && ld % 256 == 0 ? ld + 16 : ld;
}

/* Rows of scores that backward holds at a time: whole tiles, in blocks of about equal size. */
static inline int64_t A(block_rows)(const tl_attention_args *a)
{
    const int64_t fit = ATTN_BLOCK_BYTES /
                        (A(row_elements)(a->kv_len + 1) * (int64_t)sizeof(A(elem))) / ATTN_ROWS *
                        ATTN_ROWS;
    const int64_t most = fit > ATTN_BLOCK_MOST ? ATTN_BLOCK_MOST
                         : fit < 2 * ATTN_ROWS ? 2 * ATTN_ROWS
                                               : fit;
    const int64_t blocks = a->q_len > most ? (a->q_len + most - 1) / most : 1;
    return A(round_up)((a->q_len + blocks - 1) / blocks, ATTN_ROWS);
}

/* Divides the scratch, which may be NULL, and returns the bytes that it takes. */
static size_t A(furnish)(const tl_attention_args *a, bool backward, char *scratch, A(room) * room)
{
    const int64_t rows = backward ? A(block_rows)(a) : ATTN_ROWS, wide = A(round_up)(a->dim, LANES);
    const int64_t panels = A(round_up)(a->kv_len, A(PANEL)) * a->dim,
                  scores = rows * A(row_elements)(a->kv_len);
    const int64_t pad_keys = wide != a->dim ? a->kv_len * wide : 0,
                  pad_rows = wide != a->dim ? rows * wide : 0;
    size_t used = 0;
    *room = (A(room)){0};
    room->kt = A(take)(scratch, &used, panels);
    room->p = A(take)(scratch, &used, scores);
    if (!backward) {
        room->v = A(take)(scratch, &used, pad_keys);
        return used;
    }
    room->vt = A(take)(scratch, &used, panels);
    room->t = A(take)(scratch, &used, scores);
    room->k = A(take)(scratch, &used, pad_keys);
    room->q = A(take)(scratch, &used, pad_rows);
    room->dout = A(take)(scratch, &used, pad_rows);
    return used;
}

static size_t A(scratch_bytes)(const tl_attention_args *a, bool backward)
{
    A(room) room;
    const size_t bytes = A(furnish)(a, backward, NULL, &room);
    return bytes > 0 ? bytes : 64;
}

/* ---- tiles ---- */

static inline A(elem) * A(at)(const tl_attention_array *x, int64_t b, int64_t h, int64_t s)
{
    return x->data ? (A(elem) *)x->data + b * x->sb + h * x->sh + s * x->ss : NULL;
}

/* Sets s to the scaled products of the rows a[r] with the keys of the panels. */
static void A(scores)(const A(tile) * t, int64_t dim, const A(elem) * panels, A(elem) * s)
{
    const bool few = t->rows <= ATTN_FEW;
    const int64_t n = t->n[t->rows - 1];
    for (int64_t j = 0; j < n; j += A(PANEL), panels += A(PANEL) * dim, s += A(PANEL))
        if (n - j > LANES)
            (few ? A(scores_few2) : A(scores_many2))(t, dim, panels, s);
        else
            (few ? A(scores_few1) : A(scores_many1))(t, dim, panels, s);
}

/* Sets out[r] to the sum of the rows of b over the allowed keys, weighted by s. */
static void A(mix)(const A(tile) * t, int64_t dim, const A(elem) * s, const A(elem) * b,
                   int64_t ldb)
{
    const bool few = t->rows <= ATTN_FEW;
    int64_t c = 0;
    for (; dim - c > LANES; c += 2 * LANES)
        (few ? A(mix_few2) : A(mix_many2))(t, s, b, ldb, c,
                                           dim - c > 2 * LANES ? LANES : dim - c - LANES);
    for (; c < dim; c += LANES)
        (few ? A(mix_few1) : A(mix_many1))(t, s, b, ldb, c, dim - c);
}

/* Fills the unused rows of a tile. */
static inline void A(repeat_last)(A(tile) * t)
{
    for (int64_t r = t->rows; r < ATTN_ROWS; r++) {
        t->a[r] = t->a[t->rows - 1];
        t->n[r] = t->n[t->rows - 1];
    }
}

/* ---- forward ---- */

/* Takes rows position by position, with the heads of a group side by side, because these see the
 * same keys. */
static void A(forward)(const tl_attention_args *a, int64_t task, void *scratch)
{
    const int64_t tasks = a->batch * a->kv_heads, group = a->q_heads / a->kv_heads;
    const int64_t blocks = tl_attention_forward_tasks(a) / tasks;
    const int64_t pair = task % tasks, b = pair / a->kv_heads, h = pair % a->kv_heads;
    const int64_t i0 = (blocks - 1 - task / tasks) * TL_ATTENTION_QUERIES;
    const int64_t end = i0 + TL_ATTENTION_QUERIES < a->q_len ? i0 + TL_ATTENTION_QUERIES : a->q_len;
    const key_range range = keys_of(a, b);
    const int64_t seen = keys_seen(a, range, end - 1);

    A(room) room;
    A(furnish)(a, false, scratch, &room);
    int64_t ldv = a->v.ss;
    A(pack_panels)(A(at)(&a->k, b, h, range.start), a->k.ss, seen, a->dim, room.kt);
    const A(elem) *v = A(pad_rows)(A(at)(&a->v, b, h, range.start), &ldv, seen, a->dim, room.v);

    const int64_t rows = (end - i0) * group;
    int64_t i = i0, head = h * group;
    for (int64_t f = 0; f < rows; f += ATTN_ROWS) {
        A(tile)
        t = {.rows = rows - f < ATTN_ROWS ? rows - f : ATTN_ROWS, .scale = (A(elem))a->scale};
        for (int64_t r = 0; r < t.rows; r++) {
            t.a[r] = A(at)(&a->q, b, head, i);
            t.out[r] = A(at)(&a->o, b, head, i);
            t.n[r] = keys_seen(a, range, i);
            if (++head == (h + 1) * group) {
                head = h * group;
                i++;
            }
        }
        A(repeat_last)(&t);
        t.ld = A(row_elements)(t.n[t.rows - 1]);
        A(scores)(&t, a->dim, room.kt, room.p);
        A(softmax)(&t, room.p);
        A(mix)(&t, a->dim, room.p, v, ldv);
    }
}

#include "tensor/kernels/attention_backward.t.h"
#undef LANES
