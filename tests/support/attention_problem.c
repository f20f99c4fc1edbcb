#include "tests/support/attention_problem.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

size_t attention_bytes(const attention_problem *p) { return p->f64 ? 8 : 4; }

double attention_get(const attention_problem *p, int x, int64_t b, int64_t h, int64_t s, int64_t d)
{
    const attention_tensor *t = &p->x[x];
    const int64_t at = b * t->sb + h * t->sh + s * t->ss + d;
    return p->f64 ? ((double *)(void *)t->data)[at] : (double)((float *)(void *)t->data)[at];
}

void attention_set(const attention_problem *p, int x, int64_t b, int64_t h, int64_t s, int64_t d,
                   double value)
{
    const attention_tensor *t = &p->x[x];
    const int64_t at = b * t->sb + h * t->sh + s * t->ss + d;
    if (p->f64)
        ((double *)(void *)t->data)[at] = value;
    else
        ((float *)(void *)t->data)[at] = (float)value;
}

static uint64_t state;

uint64_t attention_seed(void)
{
    const char *s = getenv("TL_TEST_SEED");
    return s ? strtoull(s, NULL, 0) : 20240607;
}

void attention_start(void) { state = attention_seed(); }

static uint32_t draw(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

static double value(int kind, bool f64)
{
    if (kind == TINY)
        return (draw() & 3 ? -1 : 1) * (f64 ? 0x1p-1074 : 0x1p-149);
    static const double special[] = {0.0,       -0.0,        1.0,      -1.0,      HUGE_VAL,
                                     -HUGE_VAL, (double)NAN, 0x1p-149, -0x1p-140, 0x1p-75,
                                     -0x1p-70,  0x1p127,     90,       -90};
    if (kind == SPECIAL && draw() % 64 == 0)
        return special[draw() % 14];
    return (draw() & 1 ? -1 : 1) * (double)(draw() >> 9) * 0x1p-22 *
           (kind == SPECIAL && draw() % 4 == 0 ? 0x1p-70 : 1);
}

static void place(const attention_problem *p, attention_tensor *t, bool keys)
{
    const int64_t heads = keys ? p->kv_heads : p->q_heads, len = keys ? p->kv_len : p->q_len,
                  gap = p->layout == GAPS ? 3 : 0;
    const int64_t row = p->dim + gap;
    t->ss = p->layout == BSHD ? heads * row : row;
    t->sh = p->layout == BSHD ? row : len * row + gap;
    t->sb = heads * len * row + heads * gap;
    t->count = p->batch * t->sb;
    t->data = malloc((size_t)t->count * attention_bytes(p) + 1);
    assert_non_null(t->data);
}

attention_problem attention_make(attention_problem p, int kind)
{
    p.scale = p.scale != 0 ? p.scale : 1 / sqrt((double)p.dim);
    for (int x = 0; x < TENSORS; x++) {
        place(&p, &p.x[x], x == K || x == V || x == DK || x == DV);
        const attention_tensor flat = {0, 0, 0, p.x[x].count, p.x[x].data};
        attention_problem q = p;
        q.x[x] = flat;
        for (int64_t i = 0; i < flat.count; i++)
            attention_set(&q, x, 0, 0, 0, i, x < O ? value(kind, p.f64) : -12345);
    }
    return p;
}

void attention_drop(attention_problem *p)
{
    for (int x = 0; x < TENSORS; x++)
        free(p->x[x].data);
}

attention_problem attention_twin(const attention_problem *p)
{
    attention_problem t = *p;
    for (int x = O; x < TENSORS; x++) {
        t.x[x].data = malloc((size_t)t.x[x].count * attention_bytes(p) + 1);
        memcpy(t.x[x].data, p->x[x].data, (size_t)t.x[x].count * attention_bytes(p));
    }
    return t;
}

void attention_drop_twin(attention_problem *t)
{
    for (int x = O; x < TENSORS; x++)
        free(t->x[x].data);
}

static tl_attention_array array(const attention_problem *p, int x)
{
    return (tl_attention_array){p->x[x].data, p->x[x].sb, p->x[x].sh, p->x[x].ss};
}

tl_attention_args attention_args_of(const attention_problem *p)
{
    return (tl_attention_args){
        .batch = p->batch,
        .q_heads = p->q_heads,
        .kv_heads = p->kv_heads,
        .q_len = p->q_len,
        .kv_len = p->kv_len,
        .dim = p->dim,
        .causal = p->causal,
        .f64 = p->f64,
        .scale = p->scale,
        .key_start = p->start,
        .key_end = p->end,
        .q = array(p, Q),
        .k = array(p, K),
        .v = array(p, V),
        .o = array(p, O),
        .dout = array(p, DOUT),
        .dq = array(p, DQ),
        .dk = array(p, DK),
        .dv = array(p, DV),
    };
}

void attention_run(const tl_attention_table *table, const tl_attention_args *a)
{
    table += a->f64;
    for (int backward = 0; backward < 2; backward++) {
        const size_t bytes = table->scratch_bytes(a, backward);
        void *scratch = aligned_alloc(64, bytes);
        assert_non_null(scratch);
        const int64_t tasks = backward ? tl_attention_backward_tasks(a)
                                       : tl_attention_forward_tasks(a);
        for (int64_t task = tasks - 1; task >= 0; task--) {
            memset(scratch, 0xff, bytes);
            (backward ? table->backward : table->forward)(a, task, scratch);
        }
        free(scratch);
    }
}
