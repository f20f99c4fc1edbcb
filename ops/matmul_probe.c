/* matmul_probe.c: calls on which a matmul that adds in another order, rounds otherwise or
 * forgets an edge shows itself: sizes around vectors, tiles and cache blocks, operands
 * of every orientation, sums that end in -0, an accumulator, batches. */
#include "ops/matmul.h"

typedef struct {
    int m, k, n;
    bool at, bt, acc; /* A or B transposed in memory; an accumulator continued */
} shape;

static const shape shapes[] = {
    {1, 1, 1, 0, 0, 0},     {33, 1, 17, 0, 0, 0},     {5, 2, 40, 0, 1, 0},
    {1, 64, 65, 0, 1, 0},   {64, 65, 1, 0, 0, 0},     {4, 31, 33, 0, 0, 0},
    {12, 32, 32, 1, 0, 0},  {13, 33, 31, 0, 1, 0},    {7, 255, 48, 0, 0, 0},
    {47, 256, 16, 0, 1, 0}, {64, 256, 96, 0, 0, 0},   {15, 257, 65, 1, 0, 0},
    {25, 384, 33, 0, 1, 0}, {3, 1000, 257, 0, 0, 0},  {97, 256, 129, 1, 1, 0},
    {9, 0, 5, 0, 0, 0},     {0, 7, 5, 0, 0, 0},       {11, 40, 19, 0, 0, 1},
    {30, 300, 70, 1, 0, 1}, {300, 200, 130, 0, 1, 0},
};
enum { SHAPES = sizeof shapes / sizeof *shapes, BATCHES = 3 };

static tl_tensor operand(tl_tape *t, tl_dtype dtype, int rows, int cols, bool turned, int k)
{
    tl_tensor x = tl_probe_numbers(t, dtype, turned ? TL_DIMS(cols, rows) : TL_DIMS(rows, cols), k,
                                   false);
    return turned ? tl_transpose(t, x, 0, 1) : x;
}

/* Batches that stay, that broadcast, that fold into the chain. */
static tl_tensor batched(tl_tape *t, tl_dtype dtype, int i)
{
    tl_tensor a = tl_probe_numbers(t, dtype, TL_DIMS(3, 14, 20), 0, false);
    tl_tensor b = tl_probe_numbers(t, dtype, i == 1 ? TL_DIMS(20, 33) : TL_DIMS(3, 20, 33), 1,
                                   false);
    return tl_matmul_into_at(TL_AT(t), a, b, TL_NONE,
                             (tl_matmul_attrs){.batch = i == 2 ? TL_SCALAR : TL_DIMS(3)});
}

tl_tensor tl_matmul_probe(tl_tape *t, tl_dtype dtype, int i)
{
    if (i >= SHAPES)
        return i < SHAPES + BATCHES ? batched(t, dtype, i - SHAPES) : TL_NONE;
    const shape *s = &shapes[i];
    tl_tensor a = operand(t, dtype, s->m, s->k, s->at, 0),
              b = operand(t, dtype, s->k, s->n, s->bt, 1);
    tl_tensor acc = s->acc ? tl_probe_numbers(t, tl_dtype_compute(dtype), TL_DIMS(s->m, s->n), 2,
                                              false)
                           : TL_NONE;
    return tl_matmul_into_at(TL_AT(t), a, b, acc, (tl_matmul_attrs){.batch = TL_SCALAR});
}
