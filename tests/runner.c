/* runner.c: every test group in one program.
 *
 *   runner [GROUP ...]     runs all groups, or those named; the last line is
 *                          "N passed, N failed" and the exit status the verdict: 2, and nothing
 *                          has run, where a name is no group's.
 *
 * Groups run side by side in processes, as many as there are cores for this one, or TL_JOBS; what a
 * group prints is shown when it has ended. With one process (in a debugger: TL_JOBS=1) it is shown
 * at once. With TL_TEST_STOP=1 there is one, and it ends behind the first test that failed. */
#define _GNU_SOURCE /* processors given to this process */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "autograd/tape.h"
#include "tests/support/names.h"
#include "tests/support/skip.h"

/* clang-format off */
#define GROUPS(X)                                                                                 \
    X(math) X(math_half) X(gemm) X(half_rounding) X(attention) X(ref) X(ref_gradients)            \
    X(ref_training) X(hash) X(fingerprint) X(rng) X(file) X(safetensors)                          \
    X(safetensors_damage) X(safetensors_seal)                                                     \
    X(fuzz_files) X(fuzz_api) X(extremes) X(print) X(array) X(arena)                              \
    X(ranges) X(threads) X(environment) X(environment_ops) X(handles) X(tape) X(refusals)         \
    X(errors) X(out_of_memory) X(model) X(state_dict) X(checkpoint) X(training) X(shadow)         \
    X(memory) X(symbols) X(models) X(llmc) X(faults) X(segment) X(let_go) X(anomaly)              \
    X(explain) X(batch)                                                                           \
    X(batch_rules) X(folds) X(gradients) X(half) X(masters) X(optimizers) X(numerics)             \
    X(contract) X(messages) X(observer) X(train_addition) X(log) X(log_bad) X(log_diff)           \
    X(levels) X(graph_edges) X(graph_assign) X(examples) X(graph_parts) X(graph_before)           \
    X(graph_size) X(graph) X(graph_training) X(segment_outputs) X(graph_uses) X(small_stack)      \
    X(programs) X(simplify) X(fuse) X(cost) X(order) X(reveal) X(hidden_sums) X(change)           \
    X(culprit) X(rotary_table) X(rotary_halves) X(in_place) X(half_products) X(includes)          \
    X(elementary) X(faults_rows) X(faults_norm) X(faults_rotary) X(faults_checker)                \
    X(gradients_checker) X(bends) X(curve) X(gpt2) X(layers) X(recurrent) X(accumulate)           \
    X(splits) X(group) X(shard) X(handed_on)                                                      \
    X(registry) X(reference) X(invariance) X(rotary) X(walk) X(graph_ops) X(readme) X(golden)     \
    X(kernels) X(kernels_backward) X(kernels_promise) X(train_text) X(pattern) X(pattern_places)  \
    X(pattern_rules) X(pattern_registration) X(patterns_shipped) X(patterns_written)              \
    X(pattern_joint) X(pattern_outputs) X(checkpoint_step) X(decoding) X(invariant_training)      \
    X(forgotten) X(half_way) X(derived) X(f64) X(api) X(face) X(man) X(agree) X(python)           \
    X(arrays) X(loader) X(course) X(user_ops) X(kept) X(split_programs) X(two_optimizers)         \
    X(alternate)
/* clang-format on */

#define X(name)                                       \
    extern const struct CMUnitTest tl_tests_##name[]; \
    extern const size_t tl_tests_##name##_count;
GROUPS(X)
#undef X

#define X(name) +1
enum { N_GROUPS = GROUPS(X), MOST_JOBS = 64 };
#undef X

static struct {
    const char *name;
    const struct CMUnitTest *tests;
    size_t n;
} group[N_GROUPS];

/* What the processes share. */
static struct {
    pthread_mutex_t lock; /* whoever shows what a group has printed */
    _Atomic int next;     /* the next group that nobody runs */
    _Atomic size_t passed, failed, skipped;
    size_t bad[N_GROUPS]; /* how many tests of a group have failed */
    struct {
        int now;    /* the group that it runs; -1: none */
        FILE *said; /* what that has printed; NULL: shown at once */
    } job[MOST_JOBS];
} * all;
static pid_t process[MOST_JOBS];
size_t tl_tests_skipped;

static const char *group_at(int i) { return i < N_GROUPS ? group[i].name : NULL; }

static bool wanted(const char *name, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], name) == 0)
            return true;
    return argc < 2;
}

static void run(int g)
{
    const bool stop = getenv("TL_TEST_STOP") != NULL;
    const size_t n = group[g].n, step = stop ? 1 : n;
    const size_t before = tl_tests_skipped;
    for (size_t i = 0; i < n && !(stop && all->failed > 0); i += step) {
        int bad = _cmocka_run_group_tests(group[g].name, group[g].tests + i, step, NULL, NULL);
        size_t f = bad < 0 ? step : (size_t)bad;
        all->bad[g] += f;
        all->failed += f;
        all->passed += step - f;
    }
    all->skipped += tl_tests_skipped - before;
}

/* Shows what job j's group has printed, and empties that. */
static void show(int j, FILE *out)
{
    char buf[4096];
    FILE *said = all->job[j].said;
    if (pthread_mutex_lock(&all->lock) == EOWNERDEAD) /* one died while it showed its own */
        pthread_mutex_consistent(&all->lock);
    rewind(said);
    for (size_t n; (n = fread(buf, 1, sizeof buf, said)) > 0;)
        fwrite(buf, 1, n, out);
    fflush(out);
    pthread_mutex_unlock(&all->lock);
    rewind(said);
    if (ftruncate(fileno(said), 0) != 0)
        perror("runner");
}

/* Runs groups until none is left. */
static void work(int j, int argc, char **argv)
{
    FILE *out = all->job[j].said == NULL ? NULL : fdopen(dup(STDOUT_FILENO), "w");
    if (out != NULL) {
        dup2(fileno(all->job[j].said), STDOUT_FILENO);
        dup2(fileno(all->job[j].said), STDERR_FILENO);
        setvbuf(stdout, NULL, _IOLBF, 0);
    }
    for (int g; (g = all->next++) < N_GROUPS;) {
        if (!wanted(group[g].name, argc, argv))
            continue;
        all->job[j].now = g;
        run(g);
        fflush(stdout);
        if (out != NULL)
            show(j, out);
        all->job[j].now = -1;
    }
    if (out != NULL)
        fclose(out);
}

static void start(int j, int argc, char **argv)
{
    fflush(NULL);
    all->job[j].now = -1;
    process[j] = fork();
    if (process[j] == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a runner that is killed takes its groups with it */
        work(j, argc, argv);
        exit(0);
    }
    if (process[j] < 0) {
        perror("runner: fork");
        all->failed++;
    }
}

/* A process that dies takes its group with it, which has failed; another goes on. */
static void watch(int jobs, int argc, char **argv)
{
    int status;
    for (pid_t pid; (pid = wait(&status)) > 0;)
        for (int j = 0; j < jobs; j++) {
            const int g = all->job[j].now;
            if (process[j] != pid || (g < 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0))
                continue;
            show(j, stdout);
            printf("the process of the group %s has ended by %s %d\n",
                   g < 0 ? "(none)" : group[g].name, WIFSIGNALED(status) ? "signal" : "status",
                   WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
            all->failed++;
            if (g >= 0)
                all->bad[g]++;
            if (all->next < N_GROUPS)
                start(j, argc, argv);
        }
}

static int jobs_of(int argc)
{
    const char *set = getenv("TL_JOBS");
    cpu_set_t ours;
    const bool known = sched_getaffinity(0, sizeof ours, &ours) == 0;
    const long cores = set != NULL ? atol(set) : known ? CPU_COUNT(&ours) : 1;
    const int most = argc < 2 || argc - 1 > MOST_JOBS ? MOST_JOBS : argc - 1;
    return getenv("TL_TEST_STOP") != NULL || cores < 1 ? 1 : cores < most ? (int)cores : most;
}

int main(int argc, char **argv)
{
    const int jobs = jobs_of(argc);
    int g = 0;
    pthread_mutexattr_t shared;
#define X(id)                                                                                \
    group[g].name = #id, group[g].tests = tl_tests_##id, group[g].n = tl_tests_##id##_count; \
    g++;
    GROUPS(X)
#undef X
    if (!names_known("test group", argc - 1, argv + 1, group_at))
        return 2;
    all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED)
        return 2;
    pthread_mutexattr_init(&shared);
    pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&shared, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&all->lock, &shared);
    tl_warnings(false); /* tests let errors go unread; test_forgotten.c looks at what is said */
    for (int j = 0; j < jobs && jobs > 1; j++)
        if ((all->job[j].said = tmpfile()) == NULL) {
            perror("runner: a temporary file");
            return 2;
        }
    for (int j = 0; j < jobs && jobs > 1; j++)
        start(j, argc, argv);
    if (jobs == 1)
        work(0, argc, argv);
    else
        watch(jobs, argc, argv);
    if (getenv("TL_TEST_STOP") == NULL && all->next < N_GROUPS) {
        puts("not all groups have run");
        all->failed++;
    }
    const size_t passed = all->passed - all->skipped;
    for (int i = 0, n = 0; i < N_GROUPS; i++)
        if (all->bad[i] > 0)
            printf("%s%s (%zu)", n++ == 0 ? "failed, in groups: " : ", ", group[i].name,
                   all->bad[i]);
    if (all->failed > 0)
        putchar('\n');
    printf("%zu passed, %zu failed", passed, all->failed);
    if (all->skipped > 0)
        printf(", %zu skipped", all->skipped);
    putchar('\n');
    return all->failed > 0 || passed == 0;
}
