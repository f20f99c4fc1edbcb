/* Lesson 8: threads, atomic additions, and a tree that does not care.
 *
 * Several threads add to one total. An atomic addition makes sure that no term is lost, but not in
 * which order the terms arrive: that is up to the scheduler, and so is the rounding. The same
 * program on the same numbers gives another answer when it is run again, or with more threads.
 *
 * The cure is not to add in a fixed sequence, which would make the threads wait. It is to fix the
 * tree: cut the terms into blocks whatever the number of threads, let any thread take any block,
 * and put each block's sum where it belongs. Add these, in order, when all are there.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <tally_data.h>

#include "examples/course/course.h"

enum { N = 1 << 20, BLOCK = 256, BLOCKS = N / BLOCK, RUNS = 4, MOST = 8 };
static float x[N], slot[BLOCKS];
static _Atomic uint32_t total; /* the bits of a float */
static atomic_int next_block;
static int threads;

/* Adds to the total: looks, adds, and writes only if nobody else has written in between. */
static void atomic_add(float term)
{
    uint32_t seen = atomic_load(&total), wanted;
    float sum;
    do {
        memcpy(&sum, &seen, sizeof sum);
        sum += term;
        memcpy(&wanted, &sum, sizeof sum);
    } while (!atomic_compare_exchange_weak(&total, &seen, wanted));
}

/* Thread k takes every so many-th term and adds it to the common total. */
static void *by_atomics(void *k)
{
    for (int i = *(int *)k; i < N; i += threads)
        atomic_add(x[i]);
    return NULL;
}

/* A thread takes the next block that nobody has; its sum goes into the block's own slot. */
static void *by_blocks(void *unused)
{
    (void)unused;
    for (int b; (b = atomic_fetch_add(&next_block, 1)) < BLOCKS;) {
        float sum = 0;
        for (int i = b * BLOCK; i < (b + 1) * BLOCK; i++)
            sum += x[i];
        slot[b] = sum;
    }
    return NULL;
}

static float run(void *work(void *), int n)
{
    pthread_t thread[MOST];
    int number[MOST], started = 0;
    threads = n;
    atomic_store(&total, 0);
    atomic_store(&next_block, 0);
    memset(slot, 0, sizeof slot);
    for (; started < n; started++) {
        number[started] = started;
        if (pthread_create(&thread[started], NULL, work, &number[started]) != 0)
            break;
    }
    for (int i = started; i < n; i++) /* no thread could be had: do its work here */
        work(&i);
    for (int i = 0; i < started; i++)
        pthread_join(thread[i], NULL);

    float sum = 0;
    uint32_t bits = atomic_load(&total);
    memcpy(&sum, &bits, sizeof sum);
    if (work == by_blocks)
        for (int b = 0; b < BLOCKS; b++)
            sum += slot[b];
    return sum;
}

int main(void)
{
    static const int count[] = {1, 2, 3, 4, 8};
    float first = 0, tally = 0;
    bool differ = false, same = true;
    tl_rng_fill_uniform32(x, N, tl_rng_stream(1, "lesson 8"), 0, 0);

    printf("threads   blocks with slots   Tally's tl_sum\n");
    for (int k = 0; k < 5; k++) {
        /* 1. Blocks: the same bits, however many threads there are. */
        float blocks = run(by_blocks, count[k]);
        tl_threads_set(count[k]);
        tl_tape *t = tl_tape_new(NULL);
        float ours = (float)tl_item(t, tl_sum(t, tl_data(t, x, TL_F32, TL_DIMS(N)), TL_ALL, false));
        tl_free(t);
        first = k == 0 ? blocks : first;
        tally = k == 0 ? ours : tally;
        same &= blocks == first && ours == tally;
        printf("%7d   %17.4f   %14.4f\n", count[k], (double)blocks, (double)ours);

        /* 2. Atomic additions, several times over. Enough terms that the threads do meet. */
        float atomics = 0;
        printf("here: %d threads, atomic, four runs:", count[k]);
        for (int r = 0; r < RUNS; r++) {
            float sum = run(by_atomics, count[k]);
            atomics = r == 0 ? sum : atomics;
            differ |= sum != atomics;
            same &= sum > blocks - 50 && sum < blocks + 50; /* another sum, but of all terms */
            printf(" %.4f", (double)sum);
        }
        printf("\n");
    }
    if (!differ)
        return course_not_shown(same, "the threads happened to take turns on this machine.");
    return course_end(same, "atomics fix what is added; a fixed tree also fixes the order.");
}
