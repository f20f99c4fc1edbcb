/* stated_order.h: the three forms of NUMERICS 3, and what is made of them, as trees of additions.
 * Terms are numbered as the caller likes: a form takes values (terms or results) by a list. */
#ifndef TL_TESTS_STATED_ORDER_H
#define TL_TESTS_STATED_ORDER_H

#include <stddef.h>

#include "tensor/reveal/sum_tree.h"

/* a + b, where -1 stands for nothing. */
static inline int64_t stated_add(tl_order *o, int64_t a, int64_t b)
{
    if (a < 0 || b < 0)
        return a < 0 ? b : a;
    return tl_order_add(o, (int64_t[]){a, b}, 2);
}

/* 3.2, 3.3: acc + value[0] + value[1] + ..., acc -1 for none. */
static inline int64_t stated_fold(tl_order *o, int64_t acc, const int64_t *value, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        acc = stated_add(o, acc, value[i]);
    return acc;
}

/* 3.1: value[i] to lane i mod 32, lanes met by halves. A lane without terms is +0. */
static inline int64_t stated_lanes(tl_order *o, const int64_t *value, int64_t n)
{
    int64_t lane[32];
    for (int l = 0; l < 32; l++)
        lane[l] = -1;
    for (int64_t i = 0; i < n; i++)
        lane[i % 32] = stated_add(o, lane[i % 32], value[i]);
    for (int w = 16; w >= 1; w /= 2)
        for (int l = 0; l < w; l++)
            lane[l] = stated_add(o, lane[l], lane[l + w]);
    return lane[0];
}

#endif
