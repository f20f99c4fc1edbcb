/* What backward puts off: folds run one parameter at a time, in any order, and continue
 * accumulators that came from another tape. Ranks - each a model and a tape of its own - train on
 * parts of each batch, and end with the weights of one tape that had all of it. TL_TEST_SEED
 * repeats. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tally.h>
#include <tally_extend.h>

#include "tests/support/fresh_dir.h"
#include "tests/support/grouped.h"

extern const struct CMUnitTest tl_tests_accumulate[];
extern const size_t tl_tests_accumulate_count;

enum { PARTS = 2, RANKS = 7, NAMES = 128 };

/* ---- ranks ---- */

/* What `from` has of a parameter, of all if NULL, goes to `to`. */
static void hand_on(const grouped_rank *from, grouped_rank *to, const char *name)
{
    for (int i = 0; from != to && i < tl_accumulating_count(from->t); i++) {
        tl_accumulating a = tl_accumulating_at(from->t, i);
        tl_array into = {.data = NULL};
        if (name != NULL && strcmp(a.param, name) != 0)
            continue;
        tl_shape shape = {.ndim = a.array.ndim};
        memcpy(shape.dim, a.array.dim, sizeof shape.dim);
        if (tl_accumulator_open(to->t, a.param, a.call, a.kind, a.array.dtype, shape, &into) ==
                TL_OK &&
            into.data != NULL)
            memcpy(into.data, a.array.data,
                   (size_t)tl_shape_count(&shape) * tl_dtype_size(a.array.dtype));
    }
}

static int add_name(char (*name)[64], int n, const char *new)
{
    for (int i = 0; i < n; i++)
        if (strcmp(name[i], new) == 0)
            return n;
    assert_true(n < NAMES);
    snprintf(name[n], 64, "%s", new);
    return n + 1;
}

static int in_parts; /* parameters that were added in parts */

/* Whole, or in as many parts as there can be, or fewer. */
static void accumulate(grouped_rank *r, const char *name, uint64_t *s)
{
    const int of = tl_accumulate_parts(r->t, name, 1 + (int64_t)(grouped_random(s) % 64));
    in_parts += of > 1;
    for (int i = 0; i < of; i++)
        if ((of == 1 ? tl_accumulate(r->t, name) : tl_accumulate_part(r->t, name, i, of)) != TL_OK)
            print_error("%s\n", tl_error(r->t));
}

/* A micro-batch: rank i has samples [cut[i], cut[i + 1]). Folds are a pipeline: parameters in a
 * random order, each from rank to rank. last: what the micro-batch before has left. */
static void micro_batch(grouped_rank *r, int ranks, const grouped_program *p, int step,
                        const int *cut, const grouped_rank *last, uint64_t *s)
{
    static char name[NAMES][64];
    int n = 0, next[NAMES] = {0}, left = 0;
    for (int i = 0; i < ranks; i++)
        if (cut[i] < cut[i + 1] || p->below)
            grouped_backward(&r[i], p, step, cut[i], cut[i + 1], true);
    for (int i = 0; i < ranks; i++) {
        for (int k = 0; tl_waiting_at(r[i].t, k) != NULL; k++)
            n = add_name(name, n, tl_waiting_at(r[i].t, k));
        for (int k = 0; k < tl_accumulating_count(r[i].t); k++)
            n = add_name(name, n, tl_accumulating_at(r[i].t, k).param);
    }
    for (left = n * ranks; left > 0; left--) {
        int k = (int)(grouped_random(s) % (uint64_t)n);
        while (next[k] == ranks)
            k = (k + 1) % n;
        const int to = next[k]++;
        if (to > 0 || last != NULL)
            hand_on(to > 0 ? &r[to - 1] : last, &r[to], name[k]);
        accumulate(&r[to], name[k], s);
    }
    for (int i = 0; i < ranks; i++) {
        assert_null(tl_waiting_at(r[i].t, 0));
        tl_tape_reset(r[i].t);
    }
}

static void train(const grouped_program *p, tl_dtype dtype, int ranks, uint64_t seed, char hex[512])
{
    grouped_rank r[RANKS];
    uint64_t s = seed;
    for (int i = 0; i < ranks; i++) {
        grouped_begin(&r[i], p, dtype);
        grouped_compile(&r[i], i % 2 == 1); /* called and compiled ones go on with each other */
    }
    for (int step = 0; step < GROUPED_STEPS; step++) {
        const int half = 1 + (int)(grouped_random(&s) % (GROUPED_SAMPLES - 1));
        for (int k = 0; k < PARTS; k++) {
            int cut[RANKS + 1];
            grouped_cut(cut, ranks, k ? half : 0, k ? GROUPED_SAMPLES : half, &s);
            micro_batch(r, ranks, p, step, cut, k ? &r[ranks - 1] : NULL, &s);
        }
        for (int i = 0; i < ranks; i++) {
            hand_on(&r[ranks - 1], &r[i], NULL);
            tl_step(r[i].opt, r[i].t);
            tl_tape_reset(r[i].t);
        }
    }
    grouped_end(&r[0], hex);
    for (int i = 1; i < ranks; i++) {
        char other[512];
        grouped_end(&r[i], other);
        assert_string_equal(other, hex);
    }
}

static void alone(const grouped_program *p, tl_dtype dtype, char hex[512])
{
    grouped_rank r;
    grouped_begin(&r, p, dtype);
    for (int step = 0; step < GROUPED_STEPS; step++) {
        grouped_backward(&r, p, step, 0, GROUPED_SAMPLES, false);
        tl_step(r.opt, r.t);
        tl_tape_reset(r.t);
    }
    grouped_end(&r, hex);
}

static void one_hash_for_any_number_of_ranks(void **unused)
{
    static const int ranks[] = {1, 2, 3, 4, 7};
    const char *env = getenv("TL_TEST_SEED");
    const uint64_t seed = env != NULL ? strtoull(env, NULL, 0) : 1;
    int wrong = 0;
    (void)unused;
    for (int i = 0; i < 2 * grouped_count; i++) {
        const grouped_program *p = &grouped_programs[i / 2];
        const tl_dtype dtype = i % 2 ? TL_BF16 : TL_F32;
        char want[512], got[512];
        alone(p, dtype, want);
        assert_int_equal(strlen(want), 64);
        for (int k = 0; k < 5; k++) {
            train(p, dtype, ranks[k], seed * 100 + (uint64_t)(i * 5 + k), got);
            if (strcmp(got, want) == 0)
                continue;
            wrong++;
            print_error("TL_TEST_SEED=%llu: %s, %s, %d ranks: %s for %s\n",
                        (unsigned long long)seed, p->name, tl_dtype_name(dtype), ranks[k], got,
                        want);
        }
    }
    assert_int_equal(wrong, 0);
    assert_true(in_parts > 1000);
}

/* ---- what is refused ---- */

typedef struct {
    tl_model *m;
    tl_tape *t;
    tl_tensor x, w, v, fixed;
} small;

/* (x v) w + fixed w of four samples: its gradients wait. */
static void put_off(small *a)
{
    static const float x[4][2] = {{1, 2}, {3, 4}, {5, 6}, {7, 8}};
    tl_tape *t = a->t;
    tl_tape_reset(t);
    a->w = tl_param(t, a->m, "w", TL_F32, TL_DIMS(2, 2), TL_INIT_NORMAL, 1);
    a->v = tl_param(t, a->m, "v", TL_F32, TL_DIMS(2, 2), TL_INIT_NORMAL, 1);
    a->fixed = tl_buffer(t, a->m, "fixed", TL_F32, TL_DIMS(4, 2));
    a->x = tl_data(t, x, TL_F32, TL_DIMS(4, 2));
    tl_tensor y = tl_matmul(t, tl_matmul(t, a->x, a->v), a->w);
    y = tl_add(t, y, tl_matmul(t, a->fixed, a->w));
    assert_int_equal(tl_backward(t, tl_sum(t, y, TL_ALL, false), .put_off = true), TL_OK);
    assert_string_equal(tl_waiting_at(t, 1), "w");
    assert_string_equal(tl_waiting_at(t, 0), "v");
    assert_null(tl_waiting_at(t, 2));
    assert_null(tl_waiting_at(t, -1));
}

static void expect_error(tl_tape *t, tl_status s, const char *words)
{
    if (tl_error_status(t) != s || strstr(tl_error(t), words) == NULL)
        fail_msg("%s, where '%s' was expected", tl_error(t), words);
    tl_error_clear(t);
}

static void backward_again(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out,
                           void *put_off)
{
    tl_model *m = tl_tape_model(t);
    (void)in, (void)n, (void)n_out;
    out[0] = tl_sum(t, tl_mul(t, tl_model_find(m, "w"), tl_model_find(m, "v")), TL_ALL, false);
    if (!(tl_mode(t) & TL_NO_GRAD))
        tl_backward(t, out[0], .put_off = put_off != NULL);
}

static void what_waits_is_neither_read_nor_lost(void **unused)
{
    small a = {.m = tl_model_new(.seed = 1)};
    tl_tape *t = a.t = tl_tape_new(a.m);
    tl_opt *o = tl_sgd_new(a.m, .lr = 1);
    tl_compiled *c = tl_compile(t, backward_again, 1, NULL),
                *off = tl_compile(t, backward_again, 1, &a);
    char before[65], after[65];
    tl_tensor y;
    (void)unused;
    put_off(&a);
    tl_model_sha256(a.m, before);
    assert_true(tl_is_none(tl_grad(t, a.w)));
    expect_error(t, TL_EUSAGE, "tl_grad: what tl_backward put off for 'v' waits");
    put_off(&a);
    tl_step(o, t);
    expect_error(t, TL_EUSAGE, "what tl_backward put off for 'v' waits");
    put_off(&a);
    tl_run(c, NULL, 0, &y);
    expect_error(t, TL_EUSAGE, "tl_run: what tl_backward put off for 'v' waits");
    put_off(&a);
    assert_int_equal(tl_accumulate(t, "fixed"), TL_ENAME);
    expect_error(t, TL_ENAME, "'fixed' is not a parameter");
    assert_int_equal(tl_accumulate(t, NULL), TL_ENAME);
    expect_error(t, TL_ENAME, "'NULL' is not a parameter");
    put_off(&a);
    assert_int_equal(tl_checkpoint_save_tape(t, o, path, NULL, 0), TL_EUSAGE);
    assert_non_null(strstr(tl_error(a.m), "a gradient of 'v' waits"));
    tl_error_clear(a.m);
    assert_int_equal(tl_accumulate(t, "v"), TL_OK);
    assert_int_equal(tl_accumulate(t, "v"), TL_OK);
    tl_tape_reset(t);
    assert_null(tl_waiting_at(t, 0));
    expect_error(t, TL_EUSAGE, "tl_tape_reset: what tl_backward put off for 'w' waits");
    put_off(&a);
    tl_grad_clear(t);
    assert_null(tl_waiting_at(t, 0));
    tl_tape_reset(t);
    assert_int_equal(tl_run(off, NULL, 0, &y), TL_OK);
    tl_opt_group(o, "v", 1, 0); /* that graph cannot run again, but something waits for it */
    int mode = tl_mode_push(t, TL_NO_GRAD);
    assert_int_equal(tl_run(off, NULL, 0, &y), TL_OK);
    tl_mode_pop(t, mode);
    assert_int_equal(tl_compiled_count(off), 2);
    assert_int_equal(tl_accumulate(t, "v"), TL_OK);
    assert_int_equal(tl_accumulate(t, "w"), TL_OK);
    tl_grad_clear(t);
    tl_run(off, NULL, 0, &y);
    assert_string_equal(tl_waiting_at(t, 0), "v");
    tl_run(off, NULL, 0, &y);
    expect_error(t, TL_EUSAGE, "tl_run: what tl_backward put off for 'v' waits");
    tl_model_sha256(a.m, after);
    assert_string_equal(before, after);
    tl_free(c, off, o, t, a.m);
}

/* What a run has put off is added later, to what is there by then; without its graph it cannot be.
 */
static void what_a_run_puts_off_waits(void **unused)
{
    small a = {.m = tl_model_new(.seed = 1)};
    tl_tape *t = a.t = tl_tape_new(a.m);
    tl_compiled *off = tl_compile(t, backward_again, 1, &a);
    tl_tensor y;
    (void)unused;
    put_off(&a); /* w and v are made */
    tl_grad_clear(t);
    for (int i = 0; i < 2; i++) {
        tl_tape_reset(t);
        tl_run(off, NULL, 0, &y);
        assert_int_equal(tl_accumulating_count(t), 2);
        assert_int_equal(tl_accumulate(t, i ? "v" : "w"), TL_OK);
        assert_string_equal(tl_waiting_at(t, 0), i ? "w" : "v");
        assert_null(tl_waiting_at(t, 1));
        assert_int_equal(tl_accumulate(t, i ? "w" : "v"), TL_OK);
        assert_null(tl_waiting_at(t, 0));
    }
    tl_array dv, w;
    assert_true(tl_array_of(t, tl_grad(t, a.v), &dv) && tl_array_of(t, a.w, &w));
    for (int i = 0; i < 4; i++)
        assert_true(((float *)dv.data)[i] == 2 * ((float *)w.data)[i]);

    tl_tape_reset(t);
    tl_run(off, NULL, 0, &y);
    tl_assign(t, a.w, tl_fill(t, TL_F32, TL_DIMS(2, 2), 3));
    assert_int_equal(tl_accumulate(t, "w"), TL_OK);
    assert_int_equal(tl_accumulate(t, "v"), TL_EINPLACE);
    expect_error(t, TL_EINPLACE, "was changed meanwhile by assign");
    tl_tape_reset(t);
    tl_run(off, NULL, 0, &y);
    tl_free(off);
    assert_int_equal(tl_accumulate(t, "v"), TL_ESTALE);
    expect_error(t, TL_ESTALE, "has been freed");
    tl_free(t, a.m);
}

static float lent[4][2];

static void reads_lent(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out,
                       void *model)
{
    (void)in, (void)n, (void)n_out;
    tl_tensor x = tl_bound(t, lent, TL_F32, TL_DIMS(4, 2)),
              w = tl_param(t, model, "w", TL_F32, TL_DIMS(2, 2), TL_INIT_NORMAL, 1);
    out[0] = tl_sum(t, tl_matmul(t, x, w), TL_ALL, false);
    tl_backward(t, out[0], .put_off = true);
}

static void assigns_what_is_read(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out,
                                 void *model)
{
    (void)n, (void)n_out;
    tl_tensor b = tl_buffer(t, model, "b", TL_F32, TL_DIMS(4, 2)),
              w = tl_param(t, model, "w", TL_F32, TL_DIMS(2, 2), TL_INIT_NORMAL, 1);
    out[0] = tl_sum(t, tl_matmul(t, b, w), TL_ALL, false);
    tl_backward(t, out[0], .put_off = true);
    tl_assign(t, b, in[0]);
}

/* A program that changes what a gradient reads that it has put off is refused when it is compiled:
 * the gradient would read what came later. */
static void a_graph_does_not_change_what_waits(void **unused)
{
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_compiled *c = tl_compile(t, assigns_what_is_read, 1, m);
    tl_tensor x = tl_fill(t, TL_F32, TL_DIMS(4, 2), 1), y;
    assert_int_equal(tl_run(c, &x, 1, &y), TL_ETRACED);
    expect_error(t, TL_ETRACED, "assign changes what the gradient by matmul reads");
    tl_free(c, t, m);
}

static void assigns_and_reads(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out,
                              void *model)
{
    (void)n, (void)n_out;
    tl_tensor b = tl_buffer(t, model, "b", TL_F32, TL_DIMS(4, 2)),
              w = tl_param(t, model, "w", TL_F32, TL_DIMS(2, 2), TL_INIT_ONES, 0);
    tl_assign(t, b, in[0]);
    out[0] = tl_sum(t, tl_add(t, tl_matmul(t, b, w), tl_matmul(t, tl_scale(t, b, 2), w)), TL_ALL,
                    false);
    tl_backward(t, out[0], .put_off = true);
    out[1] = tl_matmul(t, w, w); /* after all that is put off has become ready */
}

/* What the program itself has changed before it read it counts as it is then; what is changed when
 * the run is over does not pass. */
static void a_graph_may_change_what_it_then_reads(void **unused)
{
    (void)unused;
    for (int compiled = 0; compiled < 2; compiled++) {
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_compiled *c = tl_compile(t, assigns_and_reads, 2, m);
        for (int i = 1; i < 4; i++) {
            tl_tensor x = tl_fill(t, TL_F32, TL_DIMS(4, 2), i), y[2];
            tl_array dw;
            if (compiled)
                assert_int_equal(tl_run(c, &x, 1, y), TL_OK);
            else
                assigns_and_reads(t, &x, 1, y, 2, m);
            if (i == 3)
                tl_assign(t, tl_model_find(m, "b"), tl_fill(t, TL_F32, TL_DIMS(4, 2), 9));
            assert_int_equal(tl_accumulate(t, "w"), i == 3 ? TL_EINPLACE : TL_OK);
            if (i == 3)
                break;
            assert_true(tl_array_of(t, tl_grad(t, tl_model_find(m, "w")), &dw));
            assert_true(((float *)dw.data)[0] == (float)(4 * i + 4 * 2 * i));
            tl_grad_clear(t);
            tl_tape_reset(t);
        }
        expect_error(t, TL_EINPLACE, "was changed");
        tl_free(c, t, m);
    }
}

/* A product reads a gradient that was lent; what a run has put off is added to that. */
static void what_is_added_to_was_read(void **unused)
{
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_compiled *c = tl_compile(t, reads_lent, 1, m);
    tl_tensor none;
    assert_int_equal(tl_run(c, NULL, 0, &none), TL_OK);
    assert_int_equal(tl_accumulate(t, "w"), TL_OK);
    tl_tape_reset(t); /* the next run is another micro-batch */
    tl_tensor w = tl_model_find(m, "w"), y = tl_matmul(t, tl_grad(t, w), w);
    assert_int_equal(tl_run(c, NULL, 0, &none), TL_OK);
    assert_int_equal(tl_accumulate(t, "w"), TL_OK);
    if (tl_backward(t, tl_sum(t, y, TL_ALL, false), .ragged = true) != TL_EINPLACE)
        fail_msg("%s", tl_error(t));
    expect_error(t, TL_EINPLACE, "input 0 of matmul");
    tl_free(c, t, m);
}

/* Host memory counts as it was when the run began, however late what read it is added. */
static void host_memory_may_change_meanwhile(void **unused)
{
    (void)unused;
    for (int k = 0; k < 4; k++) {
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_compiled *c = k & 1 ? tl_compile(t, reads_lent, 1, m) : NULL;
        for (int run = 1; run <= 2; run++) {
            tl_tensor y;
            tl_array dw;
            for (int i = 0; i < 8; i++)
                lent[i / 2][i % 2] = (float)(run * i);
            if (c != NULL)
                tl_run(c, NULL, 0, &y);
            else
                reads_lent(t, NULL, 0, &y, 1, m);
            for (int i = 0; i < 8 && k & 2; i++)
                lent[i / 2][i % 2] = 100;
            assert_int_equal(tl_accumulate(t, "w"), TL_OK);
            assert_true(tl_array_of(t, tl_grad(t, tl_model_find(m, "w")), &dw));
            assert_true(((float *)dw.data)[0] == (float)(12 * run) &&
                        ((float *)dw.data)[2] == (float)(16 * run));
            tl_grad_clear(t);
            tl_tape_reset(t);
        }
        tl_free(c, t, m);
    }
}

static void tabled(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *model)
{
    (void)n, (void)n_out;
    tl_tensor table = tl_param(t, model, "table", TL_F32, TL_DIMS(5, 6), TL_INIT_NORMAL, 1);
    tl_tensor x = tl_linear(t, model, "l", tl_embedding(t, table, in[0]), 8);
    x = tl_matmul(t, x, tl_model_find(model, "l.weight"));
    out[0] = tl_sum(t, tl_square(t, x), TL_ALL, false);
    tl_backward(t, out[0], .put_off = true);
}

/* The operands of products and tables are added in parts, in order, called or compiled; what reads
 * its own sum, and in a graph the sums of a bias, as a whole. */
static void parts_are_added_in_order(void **unused)
{
    static const int64_t ids[3] = {4, 0, 4};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_compiled *c = tl_compile(t, tabled, 1, m);
    (void)unused;
    for (int k = 0; k < 6; k++) {
        const int i = k / 2;
        tl_tape_reset(t);
        tl_tensor y, x = tl_data(t, ids, TL_I64, TL_DIMS(3));
        if (k % 2)
            tl_run(c, &x, 1, &y);
        else
            tabled(t, &x, 1, &y, 1, m);
        assert_int_equal(tl_accumulate_parts(t, "table", 5), 6);    /* columns */
        assert_int_equal(tl_accumulate_parts(t, "l.weight", 5), 8); /* rows */
        assert_int_equal(tl_accumulate_parts(t, "l.weight", 100), 1);
        assert_int_equal(tl_accumulate_parts(t, "l.bias", 3), k % 2 ? 1 : 3);
        assert_int_equal(tl_accumulate_part(t, "table", 0, 3), TL_OK);
        assert_string_equal(tl_accumulating_at(t, 0).param, "table");
        int axis;
        tl_accumulator_axis(t, "table", 0, tl_accumulating_at(t, 0).kind, &axis);
        assert_int_equal(axis, 1);
        if (i == 0)
            assert_int_equal(tl_accumulate_part(t, "table", 2, 3), TL_EUSAGE);
        else if (i == 1)
            assert_int_equal(tl_accumulate_part(t, "table", 1, 2), TL_EUSAGE);
        else
            assert_int_equal(tl_accumulate(t, "table"), TL_EUSAGE);
        expect_error(t, TL_EUSAGE, "where part 1 of 3 is next");
        tl_grad_clear(t);
    }
    assert_int_equal(tl_accumulate_part(t, "table", 2, 2), TL_EUSAGE);
    expect_error(t, TL_EUSAGE, "part 2 of 2");
    assert_int_equal(tl_accumulate_part(t, "none", 0, 2), TL_ENAME);
    expect_error(t, TL_ENAME, "'none' is not a parameter");
    tl_free(c, t, m);

    small a = {.m = tl_model_new(.seed = 1)};
    t = a.t = tl_tape_new(a.m);
    put_off(&a);
    tl_grad_clear(t);
    tl_compiled *off = tl_compile(t, backward_again, 1, &a);
    tl_tensor y;
    tl_run(off, NULL, 0, &y);
    assert_int_equal(tl_accumulate_parts(t, "w", 1), 1);
    assert_int_equal(tl_accumulate_part(t, "w", 0, 2), TL_EUSAGE);
    expect_error(t, TL_EUSAGE, "as a whole only");
    assert_int_equal(tl_accumulate(t, "w"), TL_OK);
    tl_free(off, t, a.m);
}

/* The axes along which what waits for a parameter may be cut: one of more than one element, and the
 * same for all views of it. */
static void axes_that_parts_can_have(void **unused)
{
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(2, 4, 4), TL_INIT_ONES, 0),
              row = tl_param(t, m, "row", TL_F32, TL_DIMS(1, 8), TL_INIT_ONES, 0),
              x = tl_fill(t, TL_F32, TL_DIMS(3, 4), 2),
              first = tl_slice(t, tl_select(t, w, 0, 0), 1, 0, 3, 1),
              second = tl_slice(t, tl_select(t, w, 0, 1), 0, 0, 3, 1);
    for (int mixed = 0; mixed < 2; mixed++) {
        tl_tensor y = tl_sum(t, tl_matmul(t, x, first), TL_ALL, false), z;
        z = tl_matmul(t, tl_slice(t, x, 1, 0, 1, 1), row);
        y = tl_add(t, y, tl_sum(t, z, TL_ALL, false));
        z = tl_matmul(t, tl_slice(t, x, 1, 0, 3, 1), second);
        y = mixed ? tl_add(t, y, tl_sum(t, z, TL_ALL, false)) : y;
        assert_int_equal(tl_backward(t, y, .put_off = true), TL_OK);
        assert_int_equal(tl_accumulate_parts(t, "row", 2), 4);
        assert_int_equal(tl_accumulate_parts(t, "w", 1), mixed ? 1 : 4);
        int axis;
        assert_int_equal(tl_accumulator_axis(t, "w", 0, "matmul:1+slice+select", &axis), TL_OK);
        assert_int_equal(axis, mixed ? TL_WHOLE : 1);
        assert_int_equal(tl_accumulate(t, "row"), TL_OK);
        assert_int_equal(tl_accumulate(t, "w"), TL_OK);
        tl_grad_clear(t);
    }
    assert_string_equal(tl_error(t), "");
    tl_free(t, m);
}

/* A weight for each of three batches, whose other operand may have them, too, repeat, or have none:
 * parts are as the whole. */
static void batched(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *model)
{
    (void)n, (void)n_out;
    tl_tensor w = tl_param(t, model, "w", TL_F32, TL_DIMS(3, 4, 5), TL_INIT_NORMAL, 1);
    out[0] = tl_sum(t, tl_square(t, tl_matmul(t, in[0], w)), TL_ALL, false);
    tl_backward(t, out[0], .put_off = true);
}

static void batches_of_a_product_are_cut_together(void **unused)
{
    static const float x[3 * 2 * 4] = {1, 2, -3, 0.5f, 4, 1e-3f, 7, -2, 3};
    const tl_shape shape[] = {TL_DIMS(3, 2, 4), TL_DIMS(1, 2, 4), TL_DIMS(2, 4), TL_DIMS(3, 1, 4)};
    (void)unused;
    for (int i = 0; i < 5; i++) {
        char hex[4][65];
        for (int k = 0; k < 4; k++) {
            tl_model *m = tl_model_new(.seed = 1);
            tl_tape *t = tl_tape_new(m);
            tl_compiled *c = tl_compile(t, batched, 1, m);
            tl_tensor y, in = tl_data(t, x, TL_F32, shape[i % 4]);
            if (i == 4)
                in = tl_expand(t, tl_data(t, x, TL_F32, shape[1]), shape[0]);
            if (k & 1)
                tl_run(c, &in, 1, &y);
            else
                batched(t, &in, 1, &y, 1, m);
            const int of = k & 2 ? tl_accumulate_parts(t, "w", 1) : 1;
            assert_true(k < 2 || of > 1);
            for (int part = 0; part < of; part++)
                assert_int_equal(tl_accumulate_part(t, "w", part, of), TL_OK);
            tl_sha256(t, tl_grad(t, tl_model_find(m, "w")), hex[k]);
            if (strcmp(hex[k], hex[0]) != 0)
                fail_msg("operand %d, %s, %d parts", i, k & 1 ? "compiled" : "called", of);
            tl_free(c, t, m);
        }
    }
}

typedef struct {
    char told[64]; /* the parameters, in order */
    bool adds;     /* each at once */
} listener;

static void hear(void *ctx, tl_tape *t, const char *param)
{
    listener *l = ctx;
    snprintf(l->told + strlen(l->told), sizeof l->told - strlen(l->told), "%s ", param);
    if (l->adds)
        tl_accumulate(t, param);
}

/* Called or compiled, a backward tells of each parameter once, when all of its uses have been
 * visited: the bias, then the weights, used twice, before the table below them. */
static void what_is_put_off_is_told(void **unused)
{
    static const int64_t ids[3] = {4, 0, 4};
    static const tl_observer o = {.put_off = hear};
    static listener l;
    char hex[4][65];
    (void)unused;
    for (int k = 0; k < 4; k++) {
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_compiled *c = tl_compile(t, tabled, 1, m);
        tl_tensor y, x = tl_data(t, ids, TL_I64, TL_DIMS(3));
        tl_observe(t, &o, &l);
        l = (listener){.adds = k & 1};
        if (k & 2)
            tl_run(c, &x, 1, &y);
        else
            tabled(t, &x, 1, &y, 1, m);
        assert_int_equal(tl_error_status(t), TL_OK);
        assert_string_equal(l.told, "l.bias l.weight table ");
        assert_true(l.adds == (tl_waiting_at(t, 0) == NULL));
        for (const char *name; (name = tl_waiting_at(t, 0)) != NULL;)
            tl_accumulate(t, name);
        tl_sha256(t, tl_grad(t, tl_model_find(m, "l.weight")), hex[k]);
        assert_string_equal(hex[k], hex[0]);
        tl_free(c, t, m);
    }
}

static float seen;

static void counts(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *model)
{
    (void)n, (void)n_out;
    tl_tensor w = tl_param(t, model, "w", TL_F32, TL_DIMS(4), TL_INIT_NORMAL, 1),
              steps = tl_buffer(t, model, "steps", TL_F32, TL_SCALAR);
    out[0] = tl_sum(t, tl_mul(t, w, in[0]), TL_ALL, false);
    tl_backward(t, out[0], .put_off = true);
    tl_assign(t, steps, tl_add(t, steps, tl_fill(t, TL_F32, TL_SCALAR, 1)));
}

static void read_steps(void *steps, tl_tape *t, const char *param)
{
    (void)t;
    assert_string_equal(param, "w");
    seen = *(const float *)steps;
}

/* Whoever hears, in a run, of what is put off finds all that the run changes of the model. */
static void the_model_has_changed_when_that_is_told(void **unused)
{
    static const float x[4] = {1, 2, 3, 4};
    static const tl_observer o = {.put_off = read_steps};
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_compiled *c = tl_compile(t, counts, 1, m);
    for (int run = 1; run <= 3; run++) {
        tl_tensor y, in = tl_data(t, x, TL_F32, TL_DIMS(4));
        if (run == 2) {
            tl_array steps;
            assert_true(tl_array_of(t, tl_model_find(m, "steps"), &steps));
            tl_observe(t, &o, steps.data);
        }
        seen = 0;
        assert_int_equal(tl_run(c, &in, 1, &y), TL_OK);
        assert_true(seen == (float)(run > 1 ? run : 0));
        assert_int_equal(tl_accumulate(t, "w"), TL_OK);
        tl_grad_clear(t);
        tl_tape_reset(t);
    }
    tl_free(c, t, m);
}

/* A traced program puts off all or nothing, and reads no gradient. */
static void strays(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *how)
{
    const int which = *(const int *)how;
    if (which == 4)
        tl_grad_clear(t);
    backward_again(t, in, n, out, n_out, which < 3 || which == 4 ? how : NULL);
    if (which == 4)
        return;
    if (which == 0)
        tl_grad(t, tl_model_find(tl_tape_model(t), "w"));
    else if (which == 1)
        tl_grad_clear(t);
    else
        backward_again(t, in, n, out, n_out, which < 3 ? NULL : how);
}

static void a_trace_puts_off_all_or_nothing(void **unused)
{
    static const char *const says[] = {"tl_grad: what tl_backward puts off",
                                       "tl_grad_clear: what tl_backward puts off",
                                       "without .put_off, unlike one before",
                                       "with .put_off, unlike one before",
                                       ".put_off in a trace that has read or dropped gradients"};
    small a = {.m = tl_model_new(.seed = 1)};
    tl_tape *t = a.t = tl_tape_new(a.m);
    (void)unused;
    put_off(&a);
    tl_grad_clear(t);
    for (int i = 0; i < 5; i++) {
        tl_tensor y;
        tl_compiled *c = tl_compile(t, strays, 1, &i);
        tl_run(c, NULL, 0, &y);
        expect_error(t, TL_ETRACED, says[i]);
        tl_free(c);
    }
    tl_free(t, a.m);
}

/* What the gradients read, that is. */
static void what_waits_does_not_change(void **unused)
{
    small a = {.m = tl_model_new(.seed = 1)};
    tl_tape *t = a.t = tl_tape_new(a.m);
    (void)unused;
    put_off(&a);
    tl_tensor r = tl_fill(t, TL_F32, TL_DIMS(4, 1, 2), 0.5);
    tl_rotary_(t, tl_reshape(t, a.x, TL_DIMS(1, 4, 1, 2)), r, r, TL_ROTARY_HALF);
    assert_int_equal(tl_accumulate(t, "w"), TL_OK);
    assert_int_equal(tl_accumulate(t, "v"), TL_EINPLACE);
    expect_error(t, TL_EINPLACE, "was changed in place");
    put_off(&a);
    tl_assign(t, a.fixed, tl_fill(t, TL_F32, TL_DIMS(4, 2), 3));
    assert_int_equal(tl_accumulate(t, "w"), TL_EINPLACE);
    expect_error(t, TL_EINPLACE, "input 0 of matmul ('fixed') was changed meanwhile by assign");
    put_off(&a);
    tl_assign(t, a.w, tl_fill(t, TL_F32, TL_DIMS(2, 2), 3));
    assert_int_equal(tl_accumulate(t, "w"), TL_OK);
    assert_int_equal(tl_accumulate(t, "v"), TL_OK);
    tl_free(t, a.m);
}

/* ---- where an accumulator begins: after gradients are cleared it counts as +0, whatever the step
 * before has left in its memory ---- */

enum { USES = 7 };

/* Use i of w (6, 7) beside x (b, 6): as a whole, in part from place `at` on, turned, twice, cast,
 * broadcast, by a product in f64. */
static tl_tensor used(tl_tape *t, tl_model *m, tl_tensor x, int i, int at)
{
    tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(6, 7), TL_INIT_NORMAL, 0.4);
    switch (i) {
    case 0: return tl_matmul(t, x, w);
    case 1: return tl_matmul(t, tl_slice(t, x, 1, 0, 4, 1), tl_slice(t, w, 0, at, at + 4, 1));
    case 2: return tl_matmul(t, tl_slice(t, x, 1, 0, 3, 1), tl_slice(t, w, 0, at, 6, 2));
    case 3: return tl_matmul(t, tl_matmul(t, x, w), tl_transpose(t, w, 0, 1));
    case 4: return tl_matmul(t, x, tl_cast(t, tl_cast(t, w, TL_BF16), TL_F32));
    case 5: return tl_mul(t, tl_reshape(t, x, TL_DIMS(-1, 6, 1)), w);
    default:
        x = tl_matmul_acc64(t, tl_matmul(t, x, w), tl_reshape(t, w, TL_DIMS(7, 6)));
        return tl_matmul(t, tl_cast(t, x, TL_F32), w);
    }
}

typedef struct {
    tl_model *m;
    int use, at;
} begun;

static void step_of(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    const begun *b = ctx;
    (void)n_in, (void)n_out;
    out[0] = tl_sum(t, tl_square(t, used(t, b->m, in[0], b->use, b->at)), TL_ALL, false);
    tl_backward(t, out[0]);
}

/* The gradient of rows numbers from `first` on: by the program called, or compiled. */
static void gradient_of(tl_tape *t, tl_compiled *c, begun *b, int64_t rows, int first, char hex[65])
{
    float x[8 * 6] = {0};
    tl_tensor out, in;
    for (int i = 0; i < rows * 6; i++)
        x[i] = (float)((first + i) * 7 % 11 - 5);
    in = tl_data(t, x, TL_F32, TL_DIMS(rows, 6));
    if (c != NULL)
        tl_run(c, &in, 1, &out);
    else
        step_of(t, &in, 1, &out, 1, b);
    tl_sha256(t, tl_grad(t, tl_model_find(b->m, "w")), hex);
    if (tl_failed(t))
        snprintf(hex, 65, "%.64s", tl_error(t));
    tl_grad_clear(t);
    tl_tape_reset(t);
}

static void what_was_cleared_begins_at_zero(void **unused)
{
    (void)unused;
    for (int i = 0; i < 2 * USES; i++)
        for (int64_t rows = 0; rows <= 8; rows += rows == 0 ? 1 : 7) {
            char fresh[65], after[65];
            for (int k = 0; k < 2; k++) {
                begun b = {.m = tl_model_new(.seed = 1), .use = i % USES};
                tl_tape *t = tl_tape_new(b.m);
                tl_compiled *c = k > 0 && i >= USES ? tl_compile(t, step_of, 1, &b) : NULL;
                b.at = 1;
                if (k > 0)
                    gradient_of(t, NULL, &b, 5, 100, after);
                b.at = 0;
                gradient_of(t, c, &b, rows, 0, k > 0 ? after : fresh);
                tl_error_clear(t);
                tl_free(c, t, b.m);
            }
            if (strcmp(fresh, after) != 0)
                fail_msg("use %d, %lld rows: %s, not %s", i, (long long)rows, after, fresh);
            assert_int_equal(strlen(fresh), 64);
        }
}

/* ---- who looks at an accumulator that has just begun - a kernel of the user's, an observer - sees
 * zeros, whatever the step before has left there; called and compiled ---- */

static int looked, seen_old;

static void look(const tl_call *c)
{
    const bool there = strcmp(c->op->name, "matmul") == 0 && c->in[2] != NULL;
    looked += there;
    for (int64_t i = 0; there && i < tl_array_count(c->in[2]); i++)
        seen_old += tl_array_get(c->in[2], i) != 0;
}

static tl_status look_and_run(tl_call *c)
{
    look(c);
    return tl_matmul_with(c, NULL);
}
static const tl_kernel looker = {
    .op = "matmul", .name = "test-looker", .dtype = TL_F32, .mode = TL_FAST, .run = look_and_run};

static void look_before(void *ctx, tl_tape *t, const tl_seen *c)
{
    (void)ctx, (void)t;
    look(c->call);
}
static const tl_observer watcher = {.runs = look_before};

static void what_begins_looks_like_zero(void **unused)
{
    (void)unused;
    for (int i = 0; i < 4; i++) {
        char hex[65];
        begun b = {.m = tl_model_new(.seed = 1)};
        tl_tape *t = tl_tape_new(b.m);
        if (i < 2)
            tl_kernel_register(t, &looker);
        tl_error_clear(t); /* the name is taken the second time */
        if (i < 2)
            tl_kernel_push(t, "matmul", TL_F32, "test-looker");
        tl_compiled *c = i % 2 ? tl_compile(t, step_of, 1, &b) : NULL;
        gradient_of(t, NULL, &b, 5, 100, hex); /* leaves its sums there */
        if (i >= 2)
            tl_observe(t, &watcher, NULL);
        looked = seen_old = 0;
        gradient_of(t, c, &b, 3, 0, hex);
        if (i >= 2)
            tl_observe_end(t, &watcher);
        assert_int_equal(strlen(hex), 64);
        assert_int_equal(looked, 1);
        assert_int_equal(seen_old, 0);
        tl_free(c, t, b.m);
    }
}

/* ---- a kernel that does not fit a part leaves it to the op's own ---- */

static int misfits, fitted;

static bool fits_whole(const tl_call *c)
{
    return c->in[2] == NULL || tl_array_count(&c->out[0]) == 48;
}
static tl_status run_whole(tl_call *c)
{
    misfits += !fits_whole(c);
    fitted++;
    return tl_matmul_with(c, NULL);
}
static const tl_kernel whole_only = {.op = "matmul",
                                     .name = "test-whole-only",
                                     .dtype = TL_F32,
                                     .mode = TL_FAST,
                                     .run = run_whole,
                                     .fits = fits_whole};

static void kernels_are_asked_of_each_part(void **unused)
{
    static const int64_t ids[3] = {4, 0, 4};
    char hex[4][65];
    (void)unused;
    for (int k = 0; k < 4; k++) {
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_compiled *c = tl_compile(t, tabled, 1, m);
        tl_tensor y, x = tl_data(t, ids, TL_I64, TL_DIMS(3));
        tl_kernel_register(t, &whole_only);
        tl_error_clear(t); /* the name is taken the second time */
        const int depth = tl_kernel_push(t, "matmul", TL_F32, "test-whole-only");
        fitted = misfits = 0;
        if (k & 1)
            tl_run(c, &x, 1, &y);
        else
            tabled(t, &x, 1, &y, 1, m);
        tl_mode_pop(t, depth);
        assert_true(fitted > 0);
        const int of = k & 2 ? tl_accumulate_parts(t, "l.weight", 20) : 1;
        assert_int_equal(of, k & 2 ? 3 : 1);
        for (int i = 0; i < of; i++)
            assert_int_equal(tl_accumulate_part(t, "l.weight", i, of), TL_OK);
        tl_accumulate(t, "l.bias");
        tl_accumulate(t, "table");
        tl_sha256(t, tl_grad(t, tl_model_find(m, "l.weight")), hex[k]);
        assert_string_equal(hex[k], hex[0]);
        assert_int_equal(misfits, 0);
        tl_free(c, t, m);
    }
}

/* ---- a leaf that has the samples' axis itself: rows of its gradient are the samples', whatever
 * the number of uses that are folded together; 1 and 10 are the cotangents of its two rows ---- */

static void rows_of_a_leaf_stay_apart(void **unused)
{
    (void)unused;
    for (int i = 0; i < 8; i++)
        for (int64_t n = 3; n <= 100000; n += 99997) { /* few and many terms */
            float *rows = malloc((size_t)n * 2 * sizeof *rows);
            for (int64_t k = 0; k < 2 * n; k++)
                rows[k] = k < n ? 1 : 10;
            tl_model *m = tl_model_new(.seed = 1);
            tl_tape *t = tl_tape_new(m);
            tl_tensor x = tl_data(t, rows, TL_F32, TL_DIMS(2, n));
            tl_tensor a = tl_param(t, m, "a", TL_F32, TL_DIMS(2, n)), e = a;
            if (i % 4 == 1)
                e = tl_constant(t, rows, TL_F32, TL_DIMS(2, n));
            if (i % 4 == 2)
                e = tl_detach(t, a);
            if (i % 4 == 1 || i % 4 == 2)
                tl_require_grad(t, e);
            tl_tensor u = i % 4 == 3 ? tl_reshape(t, a, TL_DIMS(2 * n)) : e,
                      v = i % 4 == 3 ? tl_reshape(t, a, TL_DIMS(2 * n)) : e;
            tl_tensor y = tl_reshape(t, tl_add(t, u, v), TL_DIMS(2, n));
            if (i < 4)
                tl_backward(t, tl_sum(t, tl_mul(t, y, x), TL_ALL, false), .partial = true);
            else
                tl_backward(t, y, .cotangent = x, .partial = true);
            tl_keep(t, tl_grad(t, e), rows, (size_t)n * 2 * sizeof *rows);
            if (tl_failed(t) || rows[0] != 2 || rows[n] != 20)
                fail_msg("case %d of %lld: rows %g, %g, not 2, 20: %s", i, (long long)n,
                         (double)rows[0], (double)rows[n], tl_error(t));
            free(rows);
            tl_free(t, m);
        }
}

/* ---- accumulators that no tape can have ---- */

static void opens_one(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                      void *ctx)
{
    tl_array a;
    (void)n_in, (void)n_out, (void)ctx;
    out[0] = tl_mul(t, in[0], in[0]);
    tl_accumulator_open(t, "w", 0, "sum", TL_F64, TL_DIMS(4), &a);
}

static void no_accumulator_is_opened_in_a_trace_or_out_of_range(void **unused)
{
    static const int calls[] = {-1, 1 << 30, INT32_MAX};
    static const float x[4] = {1, 2, 3, 4};
    tl_array a;
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_param(t, m, "w", TL_F32, TL_DIMS(4), TL_INIT_ZEROS, 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(tl_accumulator_open(t, "w", calls[i], "sum", TL_F64, TL_DIMS(4), &a),
                         TL_EUSAGE);
        tl_error_clear(t);
    }
    assert_int_equal(tl_accumulator_open(t, "=1234", 0, "", TL_F64, (tl_shape){100, {0}}, &a),
                     TL_ENAME);
    tl_error_clear(t);
    assert_int_equal(tl_accumulator_open(t, "=1234", 0, "a", TL_F64, TL_DIMS(4), &a), TL_OK);
    assert_int_equal(tl_accumulator_open(t, "=1234", 0, "b", TL_F64, TL_DIMS(5), &a), TL_ESHAPE);
    tl_error_clear(t);
    tl_compiled *c = tl_compile(t, opens_one, 1, NULL);
    tl_tensor in = tl_data(t, x, TL_F32, TL_DIMS(4)), out;
    assert_int_equal(tl_run(c, &in, 1, &out), TL_ETRACED);
    assert_non_null(strstr(tl_error(t), "tl_accumulator_open: not inside a trace"));
    tl_free(c, t, m);
}

/* What only reads drops nothing when it fails: the batch goes on. After a backward that is not made
 * because of the error, or an op that fails itself, the batch begins anew. */
static void a_failed_read_drops_no_gradient(void **unused)
{
    (void)unused;
    for (int way = 0; way < 8; way++) {
        tl_tape *t = tl_tape_new(NULL);
        tl_tensor x = tl_data(t, ((double[]){1, 2}), TL_F64, TL_DIMS(2));
        tl_require_grad(t, x);
        tl_backward(t, tl_sum(t, tl_square(t, x), TL_ALL, false));
        double room[2];
        char hex[65];
        switch (way % 5) {
        case 0: tl_item(t, x); break;
        case 1: tl_keep(t, x, room, 8); break;
        case 2: tl_print(t, NULL, x); break;
        case 3: tl_sha256(t, TL_NONE, hex); break;
        case 4: tl_matmul(t, x, tl_scalar(t, TL_F32, 1)); break;
        }
        assert_true(tl_failed(t));
        if (way >= 5)
            assert_int_not_equal(tl_backward(t, tl_sum(t, x, TL_ALL, false)), TL_OK);
        tl_error_clear(t);
        assert_false(tl_failed(t));
        const bool kept = !tl_is_none(tl_grad(t, x));
        if (kept != (way < 4))
            fail_msg("way %d: kept %d", way, kept);
        tl_item(t, x); /* the next error is judged by itself */
        tl_error_clear(t);
        assert_int_equal(!tl_is_none(tl_grad(t, x)), kept);
        tl_cast(t, x, (tl_dtype)99);
        tl_error_clear(t);
        assert_true(tl_is_none(tl_grad(t, x)));
        tl_free(t);
    }
}

const struct CMUnitTest tl_tests_accumulate[] = {
    cmocka_unit_test(rows_of_a_leaf_stay_apart),
    cmocka_unit_test(what_begins_looks_like_zero),
    cmocka_unit_test(what_was_cleared_begins_at_zero),
    cmocka_unit_test(one_hash_for_any_number_of_ranks),
    cmocka_unit_test_setup_teardown(what_waits_is_neither_read_nor_lost, make_dir, remove_dir),
    cmocka_unit_test(what_waits_does_not_change),
    cmocka_unit_test(a_graph_does_not_change_what_waits),
    cmocka_unit_test(a_graph_may_change_what_it_then_reads),
    cmocka_unit_test(what_is_added_to_was_read),
    cmocka_unit_test(what_a_run_puts_off_waits),
    cmocka_unit_test(host_memory_may_change_meanwhile),
    cmocka_unit_test(parts_are_added_in_order),
    cmocka_unit_test(axes_that_parts_can_have),
    cmocka_unit_test(batches_of_a_product_are_cut_together),
    cmocka_unit_test(kernels_are_asked_of_each_part),
    cmocka_unit_test(what_is_put_off_is_told),
    cmocka_unit_test(the_model_has_changed_when_that_is_told),
    cmocka_unit_test(a_trace_puts_off_all_or_nothing),
    cmocka_unit_test(no_accumulator_is_opened_in_a_trace_or_out_of_range),
    cmocka_unit_test(a_failed_read_drops_no_gradient),
};
const size_t tl_tests_accumulate_count = sizeof tl_tests_accumulate / sizeof *tl_tests_accumulate;
