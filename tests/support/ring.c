#include "tests/support/ring.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

struct ring_message {
    ring_message *next;
    const void *from;
    size_t n;
    char bytes[];
};

/* What this rank has sent and may not change yet. */
static _Thread_local ring_message *unsettled;

static ring_message *copy_of(const void *bytes, size_t n)
{
    ring_message *m = malloc(sizeof *m + n);
    if (m != NULL) {
        *m = (ring_message){NULL, bytes, n};
        memcpy(m->bytes, bytes, n);
    }
    return m;
}

static tl_status send(void *ctx, int to, const void *bytes, size_t n, tl_err *e)
{
    ring_rank *r = ctx;
    ring_queue *q = &r->of->q[r->rank][to];
    ring_message *m = copy_of(bytes, n), *kept = copy_of(bytes, n);
    if (m == NULL || kept == NULL) {
        free(m);
        free(kept);
        return tl_fail(e, TL_ENOMEM, "no memory");
    }
    kept->next = unsettled;
    unsettled = kept;
    pthread_mutex_lock(&q->lock);
    *q->last = m;
    q->last = &m->next;
    pthread_cond_signal(&q->more);
    pthread_mutex_unlock(&q->lock);
    return TL_OK;
}

static tl_status receive(void *ctx, int from, void *bytes, size_t n, tl_err *e)
{
    ring_rank *r = ctx;
    ring_queue *q = &r->of->q[from][r->rank];
    pthread_mutex_lock(&q->lock);
    while (q->first == NULL)
        pthread_cond_wait(&q->more, &q->lock);
    ring_message *m = q->first;
    q->first = m->next;
    if (q->first == NULL)
        q->last = &q->first;
    pthread_mutex_unlock(&q->lock);
    const size_t got = m->n;
    memcpy(bytes, m->bytes, got < n ? got : n);
    free(m);
    return got == n ? TL_OK : tl_fail(e, TL_EIO, "%zu bytes were sent as %zu", n, got);
}

/* Ends the sends of bytes, or all: they must be as they were when they began. */
static tl_status settle(void *ctx, const void *bytes, tl_err *e)
{
    bool same = true;
    (void)ctx;
    for (ring_message *m, **at = &unsettled; (m = *at) != NULL;)
        if (bytes != NULL && bytes != m->from) {
            at = &m->next;
        } else {
            same &= memcmp(m->bytes, m->from, m->n) == 0;
            *at = m->next;
            free(m);
        }
    return same ? TL_OK : tl_fail(e, TL_EIO, "a message changed before it was sent");
}
static bool comes(void *ctx)
{
    ring_rank *r = ctx;
    ring_queue *q = &r->of->q[(r->rank + r->of->size - 1) % r->of->size][r->rank];
    pthread_mutex_lock(&q->lock);
    const bool there = q->first != NULL;
    pthread_mutex_unlock(&q->lock);
    return there;
}
static void end(void *ctx, bool failed) { (void)ctx, (void)failed; }

static void *run(void *one)
{
    ring_rank *r = one;
    r->train(r->ctx, (tl_link){r, r->rank, r->of->size, send, receive, settle, comes, end}, r->out);
    for (ring_message *m; (m = unsettled) != NULL; free(m))
        unsettled = m->next;
    return NULL;
}

void train_all(ring *g, int size, trainer *train, void *ctx)
{
    pthread_t thread[RING_MOST];
    const int threads = tl_threads();
    tl_threads_set(1);
    g->size = size;
    for (int i = 0; i < size; i++) {
        g->r[i] = (ring_rank){g, i, train, ctx, ""};
        for (ring_queue *q = g->q[i]; q < g->q[i] + size; q++) {
            pthread_mutex_init(&q->lock, NULL);
            pthread_cond_init(&q->more, NULL);
            q->first = NULL;
            q->last = &q->first;
        }
    }
    for (int i = 0; i < size; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, run, &g->r[i]), 0);
    for (int i = 0; i < size; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < size; i++)
        for (ring_queue *q = g->q[i]; q < g->q[i] + size; q++) {
            for (ring_message *m; (m = q->first) != NULL; free(m))
                q->first = m->next;
            pthread_mutex_destroy(&q->lock);
            pthread_cond_destroy(&q->more);
        }
    tl_threads_set(threads);
}
