/* grouped.h: programs that are trained on parts of batches, by tapes or processes that go on with
 * each other's sums. */
#ifndef TESTS_SUPPORT_GROUPED_H
#define TESTS_SUPPORT_GROUPED_H

#include <tally.h>

#include "nn/group/group.h"

enum { GROUPED_SAMPLES = 11, GROUPED_STEPS = 2, GROUPED_HASH = 512 };

/* What a program is given: ids (b, ...) and how long each sample is. */
typedef struct {
    tl_tape *t;
    tl_model *m;
    tl_dtype dtype;
    tl_tensor ids, end, number, total;
} grouped_input;

typedef struct {
    const char *name;
    tl_tensor (*f)(const grouped_input *in);
    bool two;   /* backwards */
    bool below; /* has derived values: who has no samples runs the program on none */
} grouped_program;
extern const grouped_program grouped_programs[];
extern const int grouped_count;

/* A model, tape and optimizer, with parameters. */
typedef struct {
    tl_model *m;
    tl_tape *t;
    tl_opt *opt;
    tl_compiled *c; /* NULL: the program is called */
    const grouped_program *p;
    bool put_off;
    tl_group *g; /* folds while backward is under way; NULL: after it */
    grouped_input in;
} grouped_rank;
void grouped_begin(grouped_rank *r, const grouped_program *p, tl_dtype dtype);
/* From now on it is compiled, if so asked. */
void grouped_compile(grouped_rank *r, bool compiled);
/* Its optimizer's state is cut over the ranks; before the first step. */
void grouped_shard(grouped_rank *r, tl_group *g);
/* Gradients of samples [from, to) of the step's batch. */
void grouped_backward(grouped_rank *r, const grouped_program *p, int step, int from, int to,
                      bool put_off);
/* The hash of the weights, or the error; all is freed. */
void grouped_end(grouped_rank *r, char hash[GROUPED_HASH]);

/* Uneven contiguous parts of [from, to), cut[0] to cut[ranks]; from two ranks on, one of them is
 * empty. */
void grouped_cut(int *cut, int ranks, int from, int to, uint64_t *seed);
uint64_t grouped_random(uint64_t *seed);

/* All of it as rank link.rank of a tl_group: steps of two micro-batches, cut at random by the seed;
 * with the optimizer's state cut, if its second bit is set, folds while backward is under way, if
 * the third is, and sums in small parts, if the fourth is. out: the hash of the weights and the
 * total of what was lost; or the error. */
void grouped_train(const grouped_program *p, tl_dtype dtype, bool compiled, tl_link link,
                   uint64_t seed, char out[GROUPED_HASH]);
tl_link grouped_alone(void);

#endif
