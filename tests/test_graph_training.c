/* Graphs: a training step replayed is the step called - also when both kinds are mixed, in
 * micro-batches, with half precision, and over many steps; it needs less memory, asks nobody for
 * any, and stands its running out. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include <tally.h>

#include "tensor/memory.h"

extern const struct CMUnitTest tl_tests_graph_training[];
extern const size_t tl_tests_graph_training_count;

/* ---- a small model, trained in both ways ---- */

enum { BATCH = 6, SEQ = 8 };

typedef struct {
    tl_model *m;
    tl_tape *t;
    tl_opt *o;
    tl_llama_config c;
    double count;
    bool tied_norm;
} fixture;

static fixture begin(tl_dtype dtype, bool tied)
{
    fixture f = {.m = tl_model_new(.seed = 3), .count = BATCH * SEQ};
    f.c = (tl_llama_config){.vocab = 11,
                            .width = 16,
                            .layers = 2,
                            .heads = 2,
                            .kv_heads = 1,
                            .hidden = 32,
                            .max_positions = SEQ,
                            .tied = tied,
                            .dtype = dtype};
    f.t = tl_tape_new(f.m);
    f.o = tl_adamw_new(f.m, .lr = 1e-2, .weight_decay = 0.1, .clip = 0.5,
                       .schedule = {TL_COSINE, .warmup = 3, .total = 20});
    return f;
}

static void end(fixture *f) { tl_free(f->o, f->t, f->m); }

static void part(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    fixture *f = ctx;
    (void)n_in, (void)n_out;
    out[0] = tl_cross_entropy(t, tl_llama(t, f->m, &f->c, in[0]), in[1], TL_MEAN,
                              .count = tl_scalar(t, TL_F64, f->count));
    tl_backward(t, out[0]);
}

static void last(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    part(t, in, n_in, out, n_out, ctx);
    tl_step(((fixture *)ctx)->o, t);
}

static void rows_of(tl_tape *t, int step, int first, int n, tl_tensor in[2])
{
    int64_t ids[BATCH * SEQ], targets[BATCH * SEQ];
    for (int i = 0; i < n * SEQ; i++) {
        ids[i] = (i + first * SEQ) * 7 % 11 + step % 3 -
                 ((i + first * SEQ) * 7 % 11 + step % 3 > 10 ? 11 : 0);
        targets[i] = (ids[i] * 3 + 1) % 11;
    }
    in[0] = tl_data(t, ids, TL_I64, TL_DIMS(n, SEQ));
    in[1] = tl_data(t, targets, TL_I64, TL_DIMS(n, SEQ));
}

typedef enum { EAGER, COMPILED, MIXED } way;

/* Steps with the batch in parts of the given sizes; the weights' hash. */
static void train(tl_dtype dtype, bool tied, way how, const int *sizes, int steps, char hash[65])
{
    fixture f = begin(dtype, tied);
    tl_compiled *one = tl_compile(f.t, part, 1, &f), *two = tl_compile(f.t, last, 1, &f);
    for (int s = 0; s < steps; s++) {
        for (int first = 0, k = 0; first < BATCH; first += sizes[k++]) {
            bool is_last = first + sizes[k] == BATCH,
                 graph = how == COMPILED || (how == MIXED && (s + k) % 2 == 0);
            tl_tensor in[2], loss;
            rows_of(f.t, s, first, sizes[k], in);
            if (graph)
                tl_run(is_last ? two : one, in, 2, &loss);
            else
                (is_last ? last : part)(f.t, in, 2, &loss, 1, &f);
            if (tl_failed(f.t))
                fail_msg("step %d: %s", s, tl_error(f.t));
            tl_tape_reset(f.t);
        }
    }
    assert_int_equal(tl_opt_steps(f.o), steps);
    assert_int_equal(tl_model_sha256(f.m, hash), TL_OK);
    tl_free(one, two);
    end(&f);
}

static void a_replayed_step_is_the_step(void **state)
{
    (void)state;
    static const int whole[] = {6}, parts[] = {1, 3, 2};
    static const tl_dtype dtypes[] = {TL_F64, TL_F32, TL_BF16, TL_F16};
    for (size_t d = 0; d < 4; d++)
        for (int tied = 0; tied < 2; tied++) {
            char want[65], got[65];
            train(dtypes[d], tied, EAGER, whole, 8, want);
            const struct {
                way how;
                const int *sizes;
            } list[] = {{COMPILED, whole}, {COMPILED, parts}, {MIXED, whole}, {MIXED, parts}};
            for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
                train(dtypes[d], tied, list[i].how, list[i].sizes, 8, got);
                if (strcmp(got, want) != 0)
                    fail_msg("%s, tied %d, way %d, %d parts: %s, want %s", tl_dtype_name(dtypes[d]),
                             tied, list[i].how, list[i].sizes == whole ? 1 : 3, got, want);
            }
        }
}

/* ---- a run asks for nothing ---- */

#if TL_JEMALLOC
static void a_run_asks_nobody_for_memory(void **state)
{
    (void)state;
    static const tl_dtype dtypes[] = {TL_F32, TL_BF16};
    for (int d = 0; d < 2; d++) {
        fixture f = begin(dtypes[d], false);
        tl_compiled *c = tl_compile(f.t, last, 1, &f);
        tl_tensor in[2], loss;
        for (int s = 0; s < 3; s++) {
            rows_of(f.t, s, 0, BATCH, in);
            assert_int_equal(tl_run(c, in, 2, &loss), TL_OK);
            tl_tape_reset(f.t);
        }
        tl_tape_memory before = tl_memory_stats(f.t), after;
        for (int s = 0; s < 10; s++) {
            rows_of(f.t, s, 0, BATCH, in);
            size_t nodes = tl_memory_stats(f.t).nodes;
            assert_int_equal(tl_run(c, in, 2, &loss), TL_OK);
            assert_int_equal(tl_memory_stats(f.t).nodes, nodes); /* nothing is recorded */
            tl_tape_reset(f.t);
        }
        after = tl_memory_stats(f.t);
        assert_int_equal(after.tape.asked, before.tape.asked);
        assert_int_equal(after.gradients.asked, before.gradients.asked);
        assert_int_equal(after.model.asked, before.model.asked);
        tl_free(c);
        end(&f);
    }
}

#endif

/* What the plan is for: the peak of a compiled step is at most 0.7 of the called one's. */
static void a_compiled_step_needs_less_memory(void **state)
{
    (void)state;
    size_t peak[2];
    for (int compiled = 0; compiled < 2; compiled++) {
        fixture f = begin(TL_F32, false);
        f.c.layers = 4;
        f.c.width = 64;
        f.c.hidden = 176;
        tl_compiled *c = tl_compile(f.t, last, 1, &f);
        for (int s = 0; s < 3; s++) {
            tl_tensor in[2], loss;
            rows_of(f.t, s, 0, BATCH, in);
            if (compiled)
                tl_run(c, in, 2, &loss);
            else
                last(f.t, in, 2, &loss, 1, &f);
            assert_false(tl_failed(f.t));
            tl_tape_reset(f.t);
        }
        peak[compiled] = tl_memory_stats(f.t).tape.peak;
        tl_free(c);
        end(&f);
    }
    printf("peak %zu bytes called, %zu compiled: %.2f\n", peak[0], peak[1],
           (double)peak[1] / (double)peak[0]);
    assert_true(10 * peak[1] <= 7 * peak[0]);
}

/* Tracing and running with memory running out anywhere: an error, and the tape works on. */
static void memory_may_run_out_anywhere(void **state)
{
    (void)state;
    fixture f = begin(TL_F32, false);
    tl_tensor in[2], loss;
    rows_of(f.t, 0, 0, BATCH, in);
    part(f.t, in, 2, &loss, 1, &f); /* makes the parameters */
    tl_grad_clear(f.t);
    tl_tape_reset(f.t);
    int failures = 0;
    for (int64_t n = 1; n < 100000; n += 1 + n / 40) {
        rows_of(f.t, 0, 0, BATCH, in);
        tl_alloc_fail_after(n);
        tl_compiled *c = tl_compile(f.t, part, 1, &f);
        tl_status s = tl_run(c, in, 2, &loss);
        tl_alloc_fail_after(0);
        tl_free(c);
        if (c != NULL && s == TL_OK)
            break;
        if (c != NULL)
            assert_int_equal(s, TL_ENOMEM);
        failures++;
        tl_error_clear(f.t);
        tl_tape_reset(f.t);
    }
    assert_false(tl_failed(f.t));
    assert_true(failures > 10);
    end(&f);
}

const struct CMUnitTest tl_tests_graph_training[] = {
    cmocka_unit_test(a_replayed_step_is_the_step),
#if TL_JEMALLOC /* without it no block is kept: sanitizers see each by itself */
    cmocka_unit_test(a_run_asks_nobody_for_memory),
#endif
    cmocka_unit_test(a_compiled_step_needs_less_memory),
    cmocka_unit_test(memory_may_run_out_anywhere),
};
const size_t tl_tests_graph_training_count = sizeof tl_tests_graph_training /
                                             sizeof *tl_tests_graph_training;
