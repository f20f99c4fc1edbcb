/* parts.h: a small network with two optimizers, for programs of several parts. */
#ifndef TL_TEST_PARTS_H
#define TL_TEST_PARTS_H

#include <tally.h>

enum { ROWS = 6, WIDE = 5 };

typedef struct {
    tl_model *m;
    tl_tape *t;
    tl_opt *a, *b;
    tl_dtype dtype;
} parts_fixture;

/* tanh(x w), w being the parameter of that name, (WIDE, WIDE), of f->dtype. */
tl_tensor parts_layer(tl_tape *t, parts_fixture *f, const char *name, tl_tensor x);
/* Parameters d.one, used twice, and d.two. */
tl_tensor parts_loss(tl_tape *t, parts_fixture *f, tl_tensor x);
/* a: AdamW with a schedule and clipping; b: SGD with momentum. */
parts_fixture parts_begin(tl_dtype dtype);
/* The two inputs of a step, (ROWS, WIDE). */
void parts_rows(parts_fixture *f, int step, tl_tensor in[2]);

#endif
