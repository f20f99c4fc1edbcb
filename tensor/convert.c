/* convert.c: the loops of convert.h, around the conversions of the running vector level. */
#include "tensor/convert.h"

#include "tensor/isa.h"
#include "tensor/operands.h"
#include "tensor/storage.h"
#include "tensor/threads.h"

tl_operand tl_operand_of(const tl_array *a, tl_dtype tile)
{
    tl_operand o = {.a = *a, .tile = tile};
    tl_array_collapse(&o.a, 1);
    o.direct = a->dtype == tile && tl_array_contiguous(&o.a);
    o.constant = o.a.ndim == 1 && o.a.stride[0] == 0;
    return o;
}

void tl_operand_move(const tl_operand *o, int64_t from, int64_t n, void *tile, bool store)
{
    const tl_array *a = &o->a;
    const tl_convert_table *cv = tl_isa_now()->convert;
    int64_t size = (int64_t)tl_dtype_size(a->dtype), unit = (int64_t)tl_dtype_size(o->tile);
    int last = a->ndim - 1;
    int64_t inner = last < 0 ? 1 : a->dim[last], step = last < 0 ? 1 : a->stride[last];
    const int64_t row = n == 0 ? 0 : from / inner;
    int64_t col = from - row * inner;
    tl_cursor at = tl_cursor_at(a, last, row);
    for (int64_t run; n > 0; n -= run, col = 0, tile = (char *)tile + run * unit) {
        char *x = (char *)a->data + (at.offset + col * step) * size;
        run = inner - col < n ? inner - col : n;
        if (store)
            cv->narrow(run, a->dtype, tile, x, step);
        else
            cv->widen(run, a->dtype, x, step, tile);
        tl_cursor_next(&at);
    }
}

/* Moves elements between an operand and a contiguous copy, in row-major order. */
typedef struct {
    tl_operand operand;
    char *copy;
    bool store; /* from the copy into the operand */
} mover;

static void move_range(void *ctx, int64_t begin, int64_t end, TL_UNUSED int thread)
{
    const mover *m = ctx;
    tl_operand_move(&m->operand, begin, end - begin,
                    m->copy + begin * (int64_t)tl_dtype_size(m->operand.tile), m->store);
}

void tl_operand_copy(const tl_array *a, tl_dtype tile, void *copy, bool store)
{
    mover m = {tl_operand_of(a, tile), copy, store};
    tl_parallel_for(tl_array_count(a), 16384, move_range, &m);
}
