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
    size_t n;
    char bytes[];
};

static tl_status send(void *ctx, int to, const void *bytes, size_t n, tl_err *e)
{
    ring_rank *r = ctx;
    ring_queue *q = &r->of->q[r->rank][to];
    ring_message *m = malloc(sizeof *m + n);
    if (m == NULL)
        return tl_fail(e, TL_ENOMEM, "no memory");
    m->next = NULL;
    m->n = n;
    memcpy(m->bytes, bytes, n);
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

static tl_status settle(void *ctx, const void *bytes, tl_err *e)
{
    (void)ctx, (void)bytes, (void)e;
    return TL_OK;
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
