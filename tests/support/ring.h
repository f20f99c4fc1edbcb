/* ring.h: ranks that are threads, with a queue from each to each. */
#ifndef TESTS_SUPPORT_RING_H
#define TESTS_SUPPORT_RING_H

#include <pthread.h>

#include "tests/support/grouped.h"

enum { RING_MOST = 7 };
typedef void trainer(void *ctx, tl_link link, char out[GROUPED_HASH]);

typedef struct ring ring;
typedef struct ring_message ring_message;

/* What one rank sends to another. */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t more;
    ring_message *first, **last;
} ring_queue;

typedef struct {
    ring *of;
    int rank;
    trainer *train;
    void *ctx;
    char out[GROUPED_HASH];
} ring_rank;

struct ring {
    int size;
    ring_queue q[RING_MOST][RING_MOST]; /* from, to */
    ring_rank r[RING_MOST];
};

/* What each rank ends with, in r[i].out. */
void train_all(ring *g, int size, trainer *train, void *ctx);

#endif
