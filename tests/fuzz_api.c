/* fuzz_api.c: whatever is called in whatever order, nothing crashes, leaks or fails without a word.
 *
 * A round makes the objects of tests/support/api_calls.h and calls public functions at random,
 * right and wrong ones: their tensors are results of earlier calls, of this tape or another, alive
 * or not. In between tapes are reset, programs compiled and run, kernels and modes pushed, objects
 * freed in any order and made anew. Round i of seed s is round 0 of seed s + i: TL_SEED=N begins
 * there. TL_FUZZ=SECONDS goes on for that long (make fuzz). */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/api_calls.h"

extern const struct CMUnitTest tl_tests_fuzz_api[];
extern const size_t tl_tests_fuzz_api_count;

enum { CALLS = 120, FEW = 60, ROUNDS_A_CHILD = 20 };

/* Where a child is, and what it has done; shared with it. */
typedef struct {
    uint64_t seed, rounds, calls, failed, silent;
    uint64_t traced, ran, stepped, backward, segments; /* that went well */
    int call;
    char what[64];
} progress;

/* ---- programs: a chain of ops chosen by a number, the same whenever it is traced ---- */

typedef struct {
    api *a;
    uint64_t seed;
} chain;

/* Of x, and of w for certain. */
static tl_status back(tl_tape *t, tl_tensor x, tl_tensor w)
{
    tl_tensor loss = tl_add(t, tl_sum(t, x, TL_ALL, false),
                            tl_sum(t, tl_square(t, w), TL_ALL, false));
    return tl_backward(t, loss, .partial = true, .retain = true);
}

static void run_chain(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    const chain *k = ctx;
    uint64_t r = k->seed;
    tl_tensor x = n > 0 ? in[0] : tl_scalar(t, TL_F32, 1), y;
    tl_tensor w = tl_param(t, k->a->m, "w", TL_F32, TL_DIMS(2, 3), TL_INIT_ONES, 1);
    for (int i = (int)api_below(&r, 8); i >= 0; i--)
        switch (api_below(&r, 13)) {
        case 0: x = tl_tanh(t, x); break;
        case 1: x = tl_mul(t, x, w); break;
        case 2: x = tl_softmax(t, x, -1); break;
        case 3: x = tl_rms_norm(t, x, TL_NONE, 1e-5); break;
        case 4: x = tl_matmul(t, x, tl_transpose(t, x, -1, -2)); break;
        case 5: x = tl_sum(t, x, TL_DIMS(0), true); break;
        case 6: x = tl_detach(t, x); break;
        case 7: x = tl_add(t, x, n > 1 ? in[1] : x); break;
        case 8: tl_backward(t, tl_sum(t, x, TL_ALL, false), .partial = true, .retain = true); break;
        case 9: back(t, x, w), tl_step(k->a->opt, t); break;
        case 10:
            if (tl_gradients(t, tl_sum(t, x, TL_ALL, false), &w, 1, TL_NONE, &y) == TL_OK)
                x = y;
            break;
        case 11: tl_grad_clear(t); break;
        default: tl_assign(t, w, tl_scale(t, w, 0.5)); break;
        }
    for (int i = 0; i < n_out; i++)
        out[i] = x;
}

/* ---- what no row of the table does ---- */

static tl_tensor any(api *a)
{
    unsigned n = a->pooled < 8 ? a->pooled : 8; /* the latest */
    return n > 0 && api_below(a->random, 2) == 0
               ? a->pool[(a->pooled - 1 - api_below(a->random, n)) % 64]
               : a->x[api_below(a->random, 2) == 0 ? F : api_below(a->random, TENSORS)];
}

static void keep(api *a, tl_tensor x)
{
    if (!tl_is_none(x))
        a->pool[a->pooled++ % 64] = x;
}

/* The tensors of the tape have ended: mostly there are new ones, else what follows meets the old.
 */
static void renew_tensors(api *a)
{
    if (api_below(a->random, 8) > 0) {
        api_tensors(a);
        api_loss(a);
    }
}

static void renew_tape(api *a)
{
    tl_free(a->t);
    a->t = tl_tape_new(a->m);
    renew_tensors(a);
}

static void renew_optimizer(api *a)
{
    tl_free(a->opt);
    a->opt = api_below(a->random, 4) == 0 ? NULL : tl_adamw_new(a->m, .lr = 0.1, .clip = 1);
}

static void free_one(api *a)
{
    switch (api_below(a->random, 5)) {
    case 0: tl_free(a->graph), a->graph = NULL; break;
    case 1: tl_free(a->compiled), a->compiled = NULL; break;
    case 2: renew_optimizer(a); break;
    case 3: renew_tape(a); break;
    default: /* what is left of it belongs to tape and optimizer */
        tl_free(a->m);
        a->m = tl_model_new(.seed = 3);
        renew_tape(a);
        tl_free(a->opt, a->compiled);
        a->opt = tl_sgd_new(a->m, .lr = 0.1, .momentum = 0.5);
        a->compiled = NULL;
        break;
    }
}

static bool segment(api *a)
{
    uint32_t begin = tl_segment_begin(a->t);
    tl_tensor x = any(a), y[3];
    for (int i = 0; i < 3; i++)
        keep(a, y[i] = x = i % 2 ? tl_square(a->t, x) : tl_mul(a->t, x, any(a)));
    return tl_segment_end(a->t, begin, y, (int)api_below(a->random, 4),
                          api_below(a->random, 2) == 0) == TL_OK;
}

static void special(progress *p, api *a, chain *k)
{
    tl_tensor in[2] = {any(a), any(a)}, out[2] = {TL_NONE, TL_NONE};
    switch (api_below(a->random, 12)) {
    case 0:
        tl_tape_reset(a->t);
        renew_tensors(a);
        break;
    case 1: free_one(a); break;
    case 2: p->segments += segment(a); break;
    case 3:
        tl_free(a->compiled);
        k->seed = api_below(a->random, UINT64_MAX);
        a->compiled = tl_compile(a->t, run_chain, (int)api_below(a->random, 3), k);
        break;
    case 4:
    case 5: /* again and again: what it holds may end in between */
        for (int n = (int)api_below(a->random, 3), more = 3; more-- > 0;) {
            p->ran += tl_run(a->compiled, in, n, out) == TL_OK;
            if (api_below(a->random, 4) == 0)
                renew_optimizer(a);
        }
        break;
    case 6:
        tl_free(a->graph);
        a->graph = tl_trace(a->t, run_chain, in, (int)api_below(a->random, 3), 1, k);
        p->traced += a->graph != NULL;
        break;
    case 7:
        p->ran += tl_graph_run(a->graph, in, (int)api_below(a->random, 3), out, 1) == TL_OK;
        break;
    case 8: p->backward += back(a->t, in[0], a->x[P]) == TL_OK; break;
    case 9: p->stepped += tl_step(a->opt, a->t) == TL_OK; break;
    case 10: tl_kernel_push(a->t, NULL, TL_ANY_DTYPE, "fast"); break;
    default: tl_mode_pop(a->t, (int)api_below(a->random, 2)); break;
    }
    keep(a, out[0]);
    keep(a, out[1]);
}

/* Rows whose calls change the process (tables, limits), or cannot be taken back. */
static bool excluded(int row)
{
    const api_row *r = &api_rows[row];
    return r->kind == NOT || r->kind == ALONE ||
           (row >= api_find("tl_register_replacement_with") && row < api_find("tl_model_seed")) ||
           row >= api_find("tl_st_close");
}

/* An object that has failed says why. */
static void listen(progress *p, api *a)
{
    void *speakers[] = {a->t, a->t2, a->clear, a->m, a->m2, a->opt};
    for (size_t i = 0; i < sizeof speakers / sizeof *speakers; i++)
        if (speakers[i] != NULL && tl_failed(speakers[i])) {
            p->failed++;
            p->silent += *tl_error(speakers[i]) == '\0';
            if (api_below(a->random, 8) > 0)
                tl_error_clear(speakers[i]);
        }
}

static void one_round(progress *p, uint64_t seed, const temp_dir *dir)
{
    static api a;
    uint64_t r = seed;
    chain k = {&a, seed};
    int last = api_find("tl_st_close");
    memset(&a, 0, sizeof a);
    a.dir = *dir;
    api_paths(&a);
    api_set_up(&a);
    a.opt = tl_adamw_new(a.m, .lr = 0.1, .clip = 1);
    a.bad = -1;
    a.random = &r;
    for (int i = 0; i < CALLS; i++) {
        int row = (int)api_below(&r, (uint64_t)last);
        p->call = i;
        a.result = TL_NONE;
        if (api_below(&r, 3) == 0) {
            snprintf(p->what, sizeof p->what, "between");
            special(p, &a, &k);
        } else if (!excluded(row)) {
            snprintf(p->what, sizeof p->what, "%s", api_rows[row].name);
            api_rows[row].call(&a);
        }
        p->calls++;
        keep(&a, a.result);
        listen(p, &a);
        api_take_back(&a);
    }
    a.random = NULL;
    if (api_below(&r, 2) == 0) { /* the model first, or last */
        tl_free(a.m);
        a.m = NULL;
    }
    api_tear_down(&a);
    p->rounds++;
}

static void calls_in_any_order(void **unused)
{
    const char *given = getenv("TL_SEED"), *seconds = getenv("TL_FUZZ");
    uint64_t seed = given != NULL ? strtoull(given, NULL, 10) : 1;
    time_t stop = seconds != NULL ? time(NULL) + atoi(seconds) : 0;
    progress *p = mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    temp_dir dir;
    int status = 0;
    (void)unused;
    assert_true(p != MAP_FAILED && temp_dir_make(&dir) && api_files(&dir));
    print_message("calls from TL_SEED=%" PRIu64 "\n", seed);
    while (status == 0 && (seconds != NULL ? time(NULL) < stop : p->rounds < FEW)) {
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0) {
            api_limit_memory();
            for (int i = 0; i < ROUNDS_A_CHILD; i++) {
                p->seed = seed + p->rounds;
                alarm(60);
                one_round(p, p->seed, &dir);
            }
            exit(0); /* where a leak of these rounds is found, too */
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
    }
    temp_dir_remove(&dir);
    print_message("%" PRIu64 " rounds, %" PRIu64 " calls, %" PRIu64 " errors; %" PRIu64
                  " graphs, %" PRIu64 " runs, %" PRIu64 " steps, %" PRIu64 " backwards, %" PRIu64
                  " segments\n",
                  p->rounds, p->calls, p->failed, p->traced, p->ran, p->stepped, p->backward,
                  p->segments);
    if (status != 0)
        print_error("TL_SEED=%" PRIu64 " repeats it at once: call %d, %s: %s %d\n", p->seed,
                    p->call, p->what, WIFSIGNALED(status) ? "signal" : "exit",
                    WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    assert_int_equal(status, 0);
    assert_int_equal(p->silent, 0);
    /* most calls mean something, and those that take several objects go well, too */
    assert_true(p->rounds > 0 && p->failed < p->calls / 2);
    assert_true(given != NULL || (p->traced > 0 && p->ran > 0 && p->stepped > 0 &&
                                  p->backward > 0 && p->segments > 0));
    munmap(p, sizeof *p);
}

const struct CMUnitTest tl_tests_fuzz_api[] = {
    cmocka_unit_test(calls_in_any_order),
};
const size_t tl_tests_fuzz_api_count = sizeof tl_tests_fuzz_api / sizeof *tl_tests_fuzz_api;
