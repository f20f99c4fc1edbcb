/* How much of its stack a thread needs: little, whatever is called, compiled or run. Scratch lies
 * in arenas, or is as small as it must be. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <tally.h>

#include "tests/cases/cases.h"
#include "tests/support/expect.h"

extern const struct CMUnitTest tl_tests_small_stack[];
extern const size_t tl_tests_small_stack_count;

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifdef SANITIZED
enum { LIMIT = 512 << 10 }; /* room between variables */
#else
enum { LIMIT = 44 << 10 };
#endif
enum { STACK = 1 << 20, PAINT = 0xa5 };

static void *idle(void *ctx) { return ctx; }

/* The bytes of stack that a thread on painted memory takes, */
static size_t taken(void *f(void *), void *ctx)
{
    pthread_attr_t a;
    pthread_t id;
    unsigned char *stack = aligned_alloc(4096, STACK);
    size_t left = 0;
    assert_non_null(stack);
    memset(stack, PAINT, STACK);
    assert_int_equal(pthread_attr_init(&a), 0);
    assert_int_equal(pthread_attr_setstack(&a, stack, STACK), 0);
    assert_int_equal(pthread_create(&id, &a, f, ctx), 0);
    pthread_join(id, NULL);
    pthread_attr_destroy(&a);
    while (left < STACK && stack[left] == PAINT)
        left++;
    free(stack);
    return STACK - left;
}

/* and f beyond what every thread does, which is the C library's and the allocator's. */
static void takes_little(void *f(void *), void *ctx, const char *what)
{
    static size_t every;
    if (every == 0)
        every = taken(idle, NULL);
    size_t used = taken(f, ctx) - every;
    if (used > LIMIT)
        fail_msg("%s: %zu bytes of stack, more than %d", what, used, LIMIT);
}

/* ---- a training step: called; traced, planned and run; run ---- */

typedef struct {
    tl_model *m;
    tl_tape *t;
    tl_opt *o;
    tl_compiled *c;
    tl_llama_config config;
    tl_tensor in[2], loss;
} trainer;

static void step(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    trainer *k = ctx;
    (void)n_in, (void)n_out;
    out[0] = tl_cross_entropy(t, tl_llama(t, k->m, &k->config, in[0]), in[1], TL_MEAN);
    tl_backward(t, out[0]);
    tl_step(k->o, t);
}

static void *call_step(void *ctx)
{
    trainer *k = ctx;
    step(k->t, k->in, 2, &k->loss, 1, k);
    return NULL;
}

static void *run_step(void *ctx)
{
    trainer *k = ctx;
    tl_run(k->c, k->in, 2, &k->loss);
    return NULL;
}

static void a_training_step(void **unused)
{
    static const tl_dtype dtypes[] = {TL_F32, TL_F16, TL_BF16};
    static const int64_t ids[2][8] = {{1, 2, 3, 4, 5, 6, 7, 8}, {3, 1, 4, 1, 5, 9, 2, 6}};
    (void)unused;
    tl_threads_set(1);
    for (int d = 0; d < 3; d++) {
        trainer k = {.m = tl_model_new(.seed = 3)};
        k.t = tl_tape_new(k.m);
        k.o = tl_adamw_new(k.m, .lr = 1e-2, .weight_decay = 0.1, .clip = 0.5);
        k.config = (tl_llama_config){.vocab = 11,
                                     .width = 64,
                                     .layers = 2,
                                     .heads = 2,
                                     .kv_heads = 1,
                                     .hidden = 96,
                                     .max_positions = 8,
                                     .dtype = dtypes[d]};
        k.c = tl_compile(k.t, step, 1, &k);
        for (int i = 0; i < 6; i++) {
            k.in[0] = tl_data(k.t, ids, TL_I64, TL_DIMS(2, 8));
            k.in[1] = tl_data(k.t, ids, TL_I64, TL_DIMS(2, 8));
            takes_little(i % 3 == 0 ? call_step : run_step, &k, tl_dtype_name(dtypes[d]));
            expect_ok(k.t, "a step");
            tl_tape_reset(k.t);
        }
        tl_free(k.c, k.o, k.t, k.m);
    }
    tl_threads_set(0);
}

/* ---- every op, and its gradient ---- */

typedef struct {
    tl_tape *t;
    case_run r;
    ref_tensor leaf[CASE_INPUTS];
    case_result result;
} op_call;

static void *call_op(void *ctx)
{
    op_call *k = ctx;
    ref_tensor dy = {.data = NULL};
    uint64_t seed = 5;
    tl_case_result(k->t, &k->r, k->leaf, NULL, &k->result);
    if (!tl_failed(k->t) && tl_case_differentiable(k->r.c)) {
        dy = tl_case_cotangent(&k->result.out[0], &seed, CASE_PLAIN);
        tl_case_result_free(&k->result);
        tl_case_result(k->t, &k->r, k->leaf, &dy, &k->result);
        tl_case_free(1, &dy);
    }
    return NULL;
}

static void every_op(void **unused)
{
    op_call k = {.t = tl_tape_new(NULL)};
    tl_dtype d;
    (void)unused;
    tl_threads_set(1);
    for (int i = 0; i < tl_case_count(); i++)
        for (int at = 0; tl_case_dtype(tl_case_at(i), at, &d); at++) {
            uint64_t seed = 1;
            k.r = tl_case_run(tl_case_at(i), d);
            tl_case_fill(&k.r, &seed, CASE_PLAIN, k.leaf);
            takes_little(call_op, &k, k.r.label);
            expect_ok(k.t, k.r.label);
            tl_case_result_free(&k.result);
            tl_case_free(CASE_INPUTS, k.leaf);
        }
    tl_threads_set(0);
    tl_free(k.t);
}

const struct CMUnitTest tl_tests_small_stack[] = {
    cmocka_unit_test(a_training_step),
    cmocka_unit_test(every_op),
};
const size_t tl_tests_small_stack_count = sizeof tl_tests_small_stack /
                                          sizeof *tl_tests_small_stack;
