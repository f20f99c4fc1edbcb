/* programs.h: a random program as data - ops one after another, each on values made before, with
 * what it reads, trains and gives out - and the function over tensors that carries it out.
 *
 * An op is a kind and numbers that choose its operands, attributes and parameters among what there
 * is, so that any op may be left out and the rest still stands. Kinds are the library's ops, the
 * ways in which people write them out, and every case of tests/cases. */
#ifndef TESTS_SUPPORT_PROGRAMS_H
#define TESTS_SUPPORT_PROGRAMS_H

#include <stdio.h>

#include <tally_extend.h>

enum {
    PROGRAM_STEPS = 24,
    PROGRAM_PARTS = 3,
    PROGRAM_INPUTS = 5, /* [rows, width], [width] and [rows, 1] floats, a sample's number, ids */
    PROGRAM_FLOATS = 3, /* of these */
    PROGRAM_OUTS = 12,
    PROGRAM_WIDE = 3, /* outputs of one op that later ones may read */
    PROGRAM_VALUES = PROGRAM_FLOATS + 1 + PROGRAM_STEPS
};

typedef struct {
    uint32_t kind, a, b, c;
    bool left_out; /* its operand goes by */
} program_step;

typedef struct {
    uint64_t seed;
    tl_dtype dtype; /* of inputs and parameters */
    int64_t width, rows[PROGRAM_PARTS];
    int parts, updates; /* micro-batches of an update; updates, 0: gradients alone */
    int optimizer;
    tl_opt_options options;
    unsigned marked; /* bit i: input i wants a gradient */
    bool backward, retain, partial, reads, eval;
    bool freezes; /* some parameters, after the first update */
    int second;   /* gradients of gradients: 0 no, 1 added to the loss, 2 in its place */
    bool big;     /* sizes that are divided between threads */
    uint32_t loss;
    int n;
    program_step step[PROGRAM_STEPS];
} program;

program program_random(uint64_t seed);

/* How one call of the program is watched, or cut into segments. All may be 0. */
typedef struct {
    FILE *log;                 /* the ops, a line each, as they are recorded */
    int (*last)[PROGRAM_WIDE]; /* of PROGRAM_VALUES: the last step that reads a value; */
    bool learn;                /* written, else read by the segments */
    bool segments, verify;
    uint64_t cuts; /* where they lie, and what they keep besides what is read later */
    int *cut;      /* counts them */
    bool *ran;     /* by tl_op_at: ops that were recorded */
} program_watch;

/* The inputs of a part of an update, on t. */
void program_inputs(tl_tape *t, const program *p, int update, int part, tl_tensor *in);
/* Forward and, where p has one, backward: out[0] is the loss, the others are values, where p
 * retains them, and gradients. */
void program_part(tl_tape *t, const tl_tensor *in, const program *p, tl_tensor *out,
                  const program_watch *w);
tl_opt *program_optimizer(const program *p, tl_model *m);
/* The program in a line, without its ops. */
void program_print(FILE *f, const program *p);

#endif
