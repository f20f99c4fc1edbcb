/* attention.h: softmax(scale q k^T) v with grouped heads, causal or full, forward and backward.
 *
 * The bits are those of NUMERICS 7 at every vector level, whatever the batch, the number of queries
 * and keys, the strides and the order of tasks. Keys that a query may not see are skipped: NaN or
 * infinity in them does not reach the query or its gradients.
 *
 * Query i of q_len is at position i + (kv_len - q_len). It may see key j if key_start <= j <
 * key_end of its sample and, when causal, j <= its position. A query that sees no key gives +0 and
 * has zero gradients; a key that no query sees has zero gradients.
 *
 * Parallel use:  tasks = tl_attention_forward_tasks(&args);
 *                for each task (in any order, on any thread): table->forward(&args, task, scratch);
 * and the same with backward. scratch is table->scratch_bytes(&args, backward?) bytes (a multiple
 * of 64, never 0) of the thread's own memory, 64-byte aligned. It grows with kv_len, not with q_len
 * * kv_len. Tasks with low numbers take longest, so that handing them out in order balances the
 * load.
 */
#ifndef TL_KERNELS_ATTENTION_H
#define TL_KERNELS_ATTENTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Element (sample b, head h, position s, d) is element b*sb + h*sh + s*ss + d of data, which holds
 * the compute type. Strides of an input may be 0 (broadcast) or negative; an output addresses each
 * element once, and overlaps no input. */
typedef struct {
    void *data;
    int64_t sb, sh, ss;
} tl_attention_array;

typedef struct {
    /* kv_heads divides q_heads; query head h reads key head h / (q_heads/kv_heads). */
    int64_t batch, q_heads, kv_heads;
    int64_t q_len, kv_len, dim;
    bool causal;
    bool f64;                           /* compute type f64, else f32 */
    double scale;                       /* rounded to the compute type */
    const int64_t *key_start, *key_end; /* [batch] each, or NULL: 0, kv_len */
    tl_attention_array q, k, v;
    tl_attention_array o;          /* forward writes it; backward does not read it */
    tl_attention_array dout;       /* backward only */
    tl_attention_array dq, dk, dv; /* backward only; data NULL: not wanted */
} tl_attention_args;

enum { TL_ATTENTION_QUERIES = 128 }; /* of each head, in a forward task */

static inline int64_t tl_attention_forward_tasks(const tl_attention_args *a)
{
    return a->batch * a->kv_heads * ((a->q_len + TL_ATTENTION_QUERIES - 1) / TL_ATTENTION_QUERIES);
}

static inline int64_t tl_attention_backward_tasks(const tl_attention_args *a)
{
    return a->batch * a->kv_heads;
}

typedef struct {
    size_t (*scratch_bytes)(const tl_attention_args *a, bool backward);
    void (*forward)(const tl_attention_args *a, int64_t task, void *scratch);
    void (*backward)(const tl_attention_args *a, int64_t task, void *scratch);
} tl_attention_table;

/* Of f32, then of f64. Only those levels exist that the build compiled. */
extern const tl_attention_table tl_attention_table_scalar[2], tl_attention_table_v2[2],
    tl_attention_table_v3[2], tl_attention_table_v4[2], tl_attention_table_neon[2];

#endif
