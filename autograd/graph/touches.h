/* touches.h: which steps read and write a memory, while steps are added and moved. Private to
 * autograd/graph/. */
#ifndef TL_TOUCHES_H
#define TL_TOUCHES_H

#include "autograd/graph/internal.h"

typedef struct tl_touch {
    const uint32_t *step; /* where the step stands now */
    bool written;
    struct tl_touch *next;
} tl_touch;

typedef struct {
    tl_graph *g;
    tl_touch **of;    /* by root, in any order */
    bool *written;    /* by root: ever */
    uint32_t **place; /* by step: holds its number, wherever it goes */
    struct {
        uint32_t to;
        const uint32_t *since; /* a step */
    } * moved; /* by root: who reads it after that step finds it in `to`; since NULL: nowhere else
                */
    uint32_t *sorted, cap; /* room for a list of steps */
} tl_touches;

/* Of g's steps as they stand; false when out of memory. */
bool tl_touches_begin(tl_touches *t, tl_graph *g);
/* Step s at number `at`, the others after it; false when out of memory. */
bool tl_touches_insert(tl_touches *t, uint32_t at, const tl_plan_step *s);
/* Step `from` goes to number `to`, behind it; those between move up. */
void tl_touches_sink(tl_touches *t, uint32_t from, uint32_t to);
/* Step `at` has another array, its last; false when out of memory. */
bool tl_touches_add(tl_touches *t, uint32_t at, const tl_spot *p);
/* Steps after `since` that read r find it in `to`. */
void tl_touches_move(tl_touches *t, uint32_t since, uint32_t r, uint32_t to);
/* Where what lay in r lies for step `at`. */
uint32_t tl_touches_root(const tl_touches *t, uint32_t r, uint32_t at);

/* A step behind `from` and before `to` writes r; one from `from` on reads or writes it. */
bool tl_touches_written(const tl_touches *t, uint32_t r, uint32_t from, uint32_t to);
bool tl_touches_used(const tl_touches *t, uint32_t r, uint32_t from);
/* The longest stretch after step `from` in which r is not touched: the steps on both sides. False:
 * no memory. */
bool tl_touches_rest(tl_touches *t, uint32_t r, uint32_t from, uint32_t *before, uint32_t *after);

#endif
