/* threads.c: how many threads a range is worth, and the pool that runs it.
 *
 * One thread computes alone in a forked child, which has no other threads, and inside a parallel
 * region, whether ours or one of the user's OpenMP.
 *
 * A job is cut into chunks beforehand. A thread first takes the chunk with its own number if that
 * is still free, so that data stay near their core, and then any other. The caller takes part. It
 * waits for chunks that were taken, never for threads that have not come: on a busy machine, where
 * another thread may not run for milliseconds, it does the work itself. (At the end of an OpenMP
 * region every thread must arrive.) Which thread computes a chunk changes no bit.
 *
 * `job` holds a generation and the number of chunks in one word; taken[i] is the generation in
 * which chunk i was last taken. A thread that comes late, with the word of a finished job, finds
 * every chunk taken in that generation or a later one, and touches nothing else of the pool. */
#define _GNU_SOURCE /* the cores that a thread may run on */
#include "tensor/threads.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tensor/environment.h"

/* OpenMP is the user's alone: its function is asked where the process has it when the library is
 * loaded. Linking a runtime would bring a second one into processes that have another. */
#if defined(__ELF__)
extern int omp_in_parallel(void) __attribute__((weak));
static bool in_region(void) { return omp_in_parallel != NULL && omp_in_parallel(); }
#else
static bool in_region(void) { return false; }
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#define PAUSE() _mm_pause()
#elif defined(__aarch64__)
#define PAUSE() __asm__ volatile("yield")
#else
#define PAUSE() ((void)0)
#endif

/* ---- how many ---- */

static _Atomic int threads; /* 0: not decided yet */
static _Atomic bool in_child;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void mark_child(void) { atomic_store(&in_child, true); }
static void install(void) { pthread_atfork(NULL, NULL, mark_child); }

/* This is a forked child, which has none of its parent's threads. */
static bool forked(void)
{
    pthread_once(&once, install);
    return atomic_load_explicit(&in_child, memory_order_relaxed);
}

/* The cores that the thread which asks first may run on. */
static long cores(void)
{
#if defined(__linux__)
    cpu_set_t mine;
    if (sched_getaffinity(0, sizeof mine, &mine) == 0)
        return CPU_COUNT(&mine);
#endif
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? n : 1;
}

static int clamp(long n)
{
    if (n <= 0)
        n = cores();
    return n > TL_THREADS_MOST ? TL_THREADS_MOST : (int)n;
}

void tl_threads_set(int n) { atomic_store(&threads, clamp(n)); }

int tl_threads(void)
{
    int n = atomic_load_explicit(&threads, memory_order_relaxed);
    if (n == 0) {
        const char *env = getenv("TL_THREADS");
        n = clamp(env != NULL ? strtol(env, NULL, 10) : 0);
        atomic_store(&threads, n);
    }
    return n;
}

/* ---- the pool ---- */

/* A thread that has to wait spins for about 20 microseconds, then yields its core for about as long
 * as the single-threaded ops of a step take, and only then sleeps. Waking a sleeping core takes
 * longer than most ops, and the thread that waits for it would fall asleep meanwhile: each op of a
 * step could cost both threads a wake-up. */
enum { CHUNK_BITS = 16, SPINS = 1000, OFFERS = 400 };

/* Waits a moment, for the i-th time; false when it is time to sleep. */
static bool wait_a_little(int i)
{
    if (i < SPINS)
        PAUSE();
    else
        sched_yield();
    return i < SPINS + OFFERS;
}

static struct {
    _Atomic uint64_t job;
    _Atomic uint64_t taken[TL_THREADS_MOST];
    _Atomic int done; /* finished chunks of the current job */
    /* The current job: written before `job`, read only after a chunk was taken. */
    int64_t n;
    int chunks;
    tl_range_fn *body;
    void *ctx;
    _Atomic int core; /* on which the caller ran when it started the job */
    _Atomic bool busy;
    int workers;          /* threads started so far */
    pthread_mutex_t lock; /* only for sleeping and waking */
    pthread_cond_t work, finished;
    _Atomic int sleepers;
    _Atomic bool caller_sleeps;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER,
          .work = PTHREAD_COND_INITIALIZER,
          .finished = PTHREAD_COND_INITIALIZER};

#if defined(__linux__)
static int this_core(void) { return sched_getcpu(); }

/* A thread is often woken on the core of the thread that wakes it, and has to wait there until the
 * scheduler moves it to an idle core after tens of milliseconds. So it leaves by itself; it may
 * return later. */
static void leave_core(int core)
{
    cpu_set_t all, others;
    if (sched_getaffinity(0, sizeof all, &all) != 0)
        return;
    others = all;
    CPU_CLR((size_t)core, &others);
    if (CPU_COUNT(&others) > 0 && sched_setaffinity(0, sizeof others, &others) == 0)
        sched_setaffinity(0, sizeof all, &all);
}
#else
static int this_core(void) { return -1; }
static void leave_core(int core) { (void)core; }
#endif

static _Thread_local bool inside;

static void run_chunk(int i)
{
    int64_t each = pool.n / pool.chunks, more = pool.n % pool.chunks;
    int64_t begin = each * i + (i < more ? i : more), end = begin + each + (i < more ? 1 : 0);
    tl_fpenv saved = tl_fpenv_enter();
    inside = true;
    if (begin < end)
        pool.body(pool.ctx, begin, end, i);
    inside = false;
    tl_fpenv_leave(saved);
    const int chunks =
        pool.chunks; /* read first: after the last chunk the next job may be written */
    if (atomic_fetch_add(&pool.done, 1) + 1 == chunks && atomic_load(&pool.caller_sleeps)) {
        pthread_mutex_lock(&pool.lock);
        pthread_cond_signal(&pool.finished);
        pthread_mutex_unlock(&pool.lock);
    }
}

/* Takes and runs the free chunks of a job, chunk `first` before the others. */
static void take_chunks(uint64_t job, int first)
{
    const uint64_t generation = job >> CHUNK_BITS;
    const int chunks = (int)(job & ((1u << CHUNK_BITS) - 1));
    for (int k = 0; k < chunks; k++) {
        int i = first < chunks ? (first + k) % chunks : k;
        uint64_t last = atomic_load_explicit(&pool.taken[i], memory_order_relaxed);
        if (last < generation && atomic_compare_exchange_strong(&pool.taken[i], &last, generation))
            run_chunk(i);
    }
}

/* Waits for a job other than `seen`, and returns its word. */
static uint64_t next_job(uint64_t seen)
{
    uint64_t job = atomic_load(&pool.job);
    for (int i = 0; job == seen && wait_a_little(i); i++)
        job = atomic_load_explicit(&pool.job, memory_order_acquire);
    if (job != seen)
        return job;
    pthread_mutex_lock(&pool.lock);
    atomic_fetch_add(&pool.sleepers, 1);
    while ((job = atomic_load(&pool.job)) == seen)
        pthread_cond_wait(&pool.work, &pool.lock);
    atomic_fetch_sub(&pool.sleepers, 1);
    pthread_mutex_unlock(&pool.lock);
    return job;
}

static void *work(void *number)
{
    uint64_t seen = 0;
    for (;;) {
        seen = next_job(seen);
        const int core = atomic_load_explicit(&pool.core, memory_order_relaxed);
        if (core >= 0 && core == this_core())
            leave_core(core);
        take_chunks(seen, (int)(intptr_t)number);
    }
    return NULL;
}

/* Starts workers up to `wanted`, and goes on without those that cannot be started. Workers block
 * all signals, which are meant for the program's own threads. */
static void start_workers(int wanted)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (pool.workers < wanted) {
        pthread_t id;
        if (pthread_create(&id, NULL, work, (void *)(intptr_t)(pool.workers + 1)) != 0)
            break;
        pthread_detach(id);
        pool.workers++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void wait_until_done(int chunks)
{
    for (int i = 0; atomic_load_explicit(&pool.done, memory_order_acquire) < chunks; i++)
        if (!wait_a_little(i))
            break;
    if (atomic_load(&pool.done) == chunks)
        return;
    pthread_mutex_lock(&pool.lock);
    atomic_store(&pool.caller_sleeps, true);
    while (atomic_load(&pool.done) < chunks)
        pthread_cond_wait(&pool.finished, &pool.lock);
    atomic_store(&pool.caller_sleeps, false);
    pthread_mutex_unlock(&pool.lock);
}

/* Runs body over [0, n) in `chunks` chunks (2 .. TL_THREADS_MOST), chunk i as thread number i, on
 * this thread and on whichever others come in time. Returns false, and runs nothing, while another
 * thread uses the pool. */
static bool run_in_pool(int64_t n, int chunks, tl_range_fn *body, void *ctx)
{
    if (atomic_exchange(&pool.busy, true))
        return false;
    if (pool.workers < chunks - 1)
        start_workers(chunks - 1);
    pool.n = n;
    pool.chunks = chunks;
    pool.body = body;
    pool.ctx = ctx;
    atomic_store_explicit(&pool.core, this_core(), memory_order_relaxed);
    atomic_store(&pool.done, 0);
    const uint64_t job = ((atomic_load(&pool.job) >> CHUNK_BITS) + 1) << CHUNK_BITS |
                         (uint64_t)chunks;
    atomic_store(&pool.job, job);
    if (atomic_load(&pool.sleepers) > 0) {
        pthread_mutex_lock(&pool.lock);
        pthread_cond_broadcast(&pool.work);
        pthread_mutex_unlock(&pool.lock);
    }
    take_chunks(job, 0);
    wait_until_done(chunks);
    atomic_store(&pool.busy, false);
    return true;
}

/* ---- loops ---- */

int tl_parallel_width(int64_t n, int64_t grain)
{
    const int64_t most = grain > 0 ? n / grain : n;
    if (most < 2)
        return 1;
    const int width = most < tl_threads() ? (int)most : tl_threads();
    const bool alone = width < 2 || forked() || inside || in_region();
    return alone ? 1 : width;
}

void tl_parallel_for(int64_t n, int64_t grain, tl_range_fn *body, void *ctx)
{
    if (n <= 0 || body == NULL)
        return;
    int width = tl_parallel_width(n, grain);
    if (width > 1 && run_in_pool(n, width, body, ctx))
        return;
    tl_fpenv saved = tl_fpenv_enter();
    body(ctx, 0, n, 0);
    tl_fpenv_leave(saved);
}

tl_status tl_threads_check(tl_err *err)
{
    const char *env = getenv("TL_THREADS");
    if (env == NULL ||
        (strspn(env, "0123456789") == strlen(env) && strtol(env, NULL, 10) <= TL_THREADS_MOST))
        return TL_OK;
    return tl_fail(err, TL_EUSAGE,
                   "TL_THREADS=%.60s in the environment is not a number of threads; 1 to %d are "
                   "possible, 0 means one a core",
                   env, TL_THREADS_MOST);
}
