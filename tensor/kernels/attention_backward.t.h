/* attention_backward.t.h: the gradients of attention, of one compute type.
 *
 * Parameters: those of attention.t.h, which includes this file at its end.
 *
 * A task is one key head of one sample. It takes the query heads one after the other, each in
 * blocks of rows. For a block it computes, tile by tile, the probabilities p (as in forward) and
 * the gradients t of the scaled scores. Then dk and dv of every key continue with the whole block.
 */

/* A tile of keys. */
typedef struct {
    int64_t key, keys;       /* the first key, and how many there are */
    int64_t begin;           /* the first row of queries that allows `key` */
    int64_t rows;            /* how many rows of queries there are */
    const A(elem) *const *w; /* by row: weights of all keys */
    const int64_t *n;        /* by row: how many keys it allows */
    const A(elem) * b;       /* rows to be added, with these weights */
    int64_t ldb;
    A(elem) * out; /* gradients of the keys */
    int64_t ld_out;
} A(fold);

#define T(name) A(name##_keys2)
#define VECS 2
#include "tensor/kernels/attention_fold.t.h"
#define T(name) A(name##_keys1)
#define VECS 1
#include "tensor/kernels/attention_fold.t.h"

/* What all blocks of a backward task share. */
typedef struct {
    const tl_attention_args *a;
    int64_t b, h; /* sample, key head */
    key_range range;
    A(room) room;
    const A(elem) * k;
    int64_t ldk;
} A(job);

/* Rows of probabilities and of their gradients, and how many keys each allows. */
typedef struct {
    const A(elem) * p[ATTN_BLOCK_MOST], *t[ATTN_BLOCK_MOST];
    int64_t n[ATTN_BLOCK_MOST];
} A(block);

static void A(zero_rows)(const tl_attention_array *x, int64_t b, int64_t h,
                         const tl_attention_args *a)
{
    for (int64_t s = 0; x->data != NULL && s < a->kv_len; s++) {
        A(elem) *row = A(at)(x, b, h, s);
        for (int64_t d = 0; d < a->dim; d++)
            row[d] = 0;
    }
}

/* Computes p, t and dq of one tile of queries, from query i of head. */
static void A(backward_tile)(const A(job) * job, A(tile) * t, int64_t head, int64_t i, A(elem) * p,
                             A(elem) * dp)
{
    const tl_attention_args *a = job->a;
    for (int64_t r = 0; r < t->rows; r++) {
        t->a[r] = A(at)(&a->q, job->b, head, i + r);
        t->out[r] = A(at)(&a->dq, job->b, head, i + r);
        t->n[r] = keys_seen(a, job->range, i + r);
    }
    A(repeat_last)(t);
    t->ld = A(row_elements)(t->n[t->rows - 1]);
    t->scale = (A(elem))a->scale;
    A(scores)(t, a->dim, job->room.kt, p);
    A(softmax)(t, p);
    if (a->dq.data == NULL && a->dk.data == NULL)
        return;
    for (int64_t r = 0; r < t->rows; r++)
        t->a[r] = A(at)(&a->dout, job->b, head, i + r);
    A(repeat_last)(t);
    t->scale = 1;
    A(scores)(t, a->dim, job->room.vt, dp);
    A(softmax_grad)(t, p, dp, (A(elem))a->scale);
    if (a->dq.data != NULL)
        A(mix)(t, a->dim, dp, job->k, job->ldk);
}

/* Continues the gradient of every key j with a block of rows i: w[i][j] * b[i]. */
static void A(fold_block)(const A(job) * job, const tl_attention_array *grad, A(fold) f)
{
    const int64_t seen = f.rows > 0 ? f.n[f.rows - 1] : 0, dim = job->a->dim;
    f.begin = 0;
    f.ld_out = grad->ss;
    for (f.key = 0; f.key < seen; f.key += ATTN_ROWS) {
        while (f.n[f.begin] <= f.key)
            f.begin++;
        f.keys = seen - f.key < ATTN_ROWS ? seen - f.key : ATTN_ROWS;
        f.out = A(at)(grad, job->b, job->h, job->range.start + f.key);
        int64_t c = 0;
        for (; dim - c > LANES; c += 2 * LANES)
            A(fold_keys2)(&f, c, dim - c > 2 * LANES ? LANES : dim - c - LANES);
        for (; c < dim; c += LANES)
            A(fold_keys1)(&f, c, dim - c);
    }
}

/* Takes rows i to i + rows of one head. */
static void A(backward_block)(const A(job) * job, int64_t head, int64_t i, int64_t rows)
{
    const tl_attention_args *a = job->a;
    A(block) block;
    A(elem) *p = job->room.p, *dp = job->room.t;
    A(tile) t;
    for (int64_t f = 0; f < rows; f += t.rows) {
        t.rows = rows - f < ATTN_ROWS ? rows - f : ATTN_ROWS;
        A(backward_tile)(job, &t, head, i + f, p, dp);
        for (int64_t r = 0; r < t.rows; r++) {
            block.p[f + r] = p + r * t.ld;
            block.t[f + r] = dp + r * t.ld;
            block.n[f + r] = t.n[r];
        }
        p += ATTN_ROWS * t.ld;
        dp += ATTN_ROWS * t.ld;
    }
    if (a->dk.data != NULL) {
        A(fold) f = {.rows = rows, .w = block.t, .n = block.n, .ldb = a->q.ss};
        f.b = A(pad_rows)(A(at)(&a->q, job->b, head, i), &f.ldb, rows, a->dim, job->room.q);
        A(fold_block)(job, &a->dk, f);
    }
    if (a->dv.data != NULL) {
        A(fold) f = {.rows = rows, .w = block.p, .n = block.n, .ldb = a->dout.ss};
        f.b = A(pad_rows)(A(at)(&a->dout, job->b, head, i), &f.ldb, rows, a->dim, job->room.dout);
        A(fold_block)(job, &a->dv, f);
    }
}

static void A(backward)(const tl_attention_args *a, int64_t task, void *scratch)
{
    A(job) job = {.a = a, .b = task / a->kv_heads, .h = task % a->kv_heads, .ldk = a->k.ss};
    A(furnish)(a, true, scratch, &job.room);
    A(zero_rows)(&a->dk, job.b, job.h, a);
    A(zero_rows)(&a->dv, job.b, job.h, a);
    job.range = keys_of(a, job.b);
    const int64_t seen = keys_seen(a, job.range, a->q_len - 1), rows = A(block_rows)(a),
                  group = a->q_heads / a->kv_heads;
    const A(elem) *k = A(at)(&a->k, job.b, job.h, job.range.start),
                  *v = A(at)(&a->v, job.b, job.h, job.range.start);
    A(pack_panels)(k, a->k.ss, seen, a->dim, job.room.kt);
    if (a->dq.data != NULL || a->dk.data != NULL)
        A(pack_panels)(v, a->v.ss, seen, a->dim, job.room.vt);
    job.k = a->dq.data != NULL ? A(pad_rows)(k, &job.ldk, seen, a->dim, job.room.k) : NULL;
    for (int64_t head = job.h * group; head < (job.h + 1) * group; head++)
        for (int64_t i = 0; i < a->q_len; i += rows)
            A(backward_block)(&job, head, i, rows < a->q_len - i ? rows : a->q_len - i);
}
