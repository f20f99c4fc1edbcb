/* Logs of runs: what is in them, and one run's log however it is run. test_log_diff.c: of runs that
 * differ; test_log_bad.c: logs that are no good. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tally_extend.h>

#include "autograd/log/read/internal.h"
#include "tensor/files/hash.h"
#include "tensor/isa.h"
#include "tensor/files/safetensors.h"
#include "tests/support/logged_run.h"

extern const struct CMUnitTest tl_tests_log[];
extern const size_t tl_tests_log_count;

/* ---- one run, logged however it is run ---- */

static void equal(const char *what, logged_run r)
{
    logged_train(logged_file("other"), r);
    if (logged_diff("plain", "other") != 0)
        fail_msg("%s: they differ", what);
    logged_says("No difference");
    logged_says_not("could not be compared");
}

static void one_run_has_one_log(void **unused)
{
    char what[64];
    (void)unused;
    logged_train(logged_file("plain"), (logged_run){0});
    for (int64_t n = 1; n <= 5; n += 4) { /* 5: 5 + 5 + 2 */
        snprintf(what, sizeof what, "micro-batches of %" PRId64, n);
        equal(what, (logged_run){.micro_batch = n});
    }
    equal("micro-batches of 4, 3 threads", (logged_run){.micro_batch = 4, .threads = 3});
    logged_train(logged_file("other"),
                 (logged_run){.micro_batch = 3,
                              .anew = true}); /* its losses are others; nothing else is */
    assert_int_equal(logged_diff("plain", "other"), 0);
    logged_says("No difference");
    logged_says("8 more results could not be compared"); /* loss and total of 4 steps */
    equal("1 thread", (logged_run){.threads = 1});
    equal("another order of recording", (logged_run){.swapped = true});
    equal("segments", (logged_run){.segment = true});
    equal("segments, micro-batches of 3", (logged_run){.segment = true, .micro_batch = 3});
    for (int i = 0; tl_isa_at(i) != NULL; i++)
        equal(tl_isa_at(i)->name, (logged_run){.isa = tl_isa_at(i)->name});
}

static void logging_changes_no_bit(void **unused)
{
    char bare[65];
    (void)unused;
    logged_train(NULL, (logged_run){.micro_batch = 5});
    memcpy(bare, logged_weights, sizeof bare);
    logged_train(logged_file("plain"), (logged_run){.micro_batch = 5, .log = {.keep = 2}});
    assert_string_equal(logged_weights, bare);
    logged_train(logged_file("plain"),
                 (logged_run){.micro_batch = 5, .segment = true, .log = {.every = 2}});
    assert_string_equal(logged_weights, bare);
}

/* What a result is stands where it comes first, and again only where it has changed. */
static void a_log_says_once_what_a_result_is(void **unused)
{
    char line[1024];
    int defined = 0, results = 0;
    (void)unused;
    logged_train(logged_file("plain"), (logged_run){0});
    FILE *f = fopen(logged_file("plain"), "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f) != NULL) {
        defined += strncmp(line, "d\tf1\t", 5) == 0;
        results += strncmp(line, "f1\t", 3) == 0;
    }
    fclose(f);
    assert_int_equal(defined, 1);
    assert_true(results > 1);
}

static void a_log_holds_the_hash_of_the_bytes(void **unused)
{
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_log_file *f;
    tl_err err = {.status = TL_OK};
    float x[3] = {1, 2, 3}, y[3] = {2, 4, 6};
    (void)unused;
    assert_int_equal(tl_log_open(t, logged_file("bytes"), .keep = 1), TL_OK);
    tl_tensor a = tl_data(t, x, TL_F32, TL_DIMS(3));
    tl_require_grad(t, a);
    tl_backward(t, tl_sum(t, tl_scale(t, a, 2), TL_ALL, false));
    tl_log_step(t);
    assert_int_equal(tl_log_close(t), TL_OK);
    assert_string_equal(tl_error(t), "");
    assert_int_equal(tl_log_read(&f, logged_file("bytes"), &err), TL_OK);
    const tl_logged_step *s = tl_log_step_at(f, 0);
    const tl_log_result *r = tl_log_find(s, tl_log_key_parse("f2", 2));
    assert_non_null(r);
    assert_string_equal(r->def->op, "scale");
    assert_string_equal(r->def->shape, "3");
    assert_non_null(strstr(r->def->place, "test_log.c:"));
    assert_string_equal(tl_log_hash(f), "XXH3-128");
    /* printf '\0\0\0\100\0\0\200\100\0\0\300\100' | xxh128sum */
    assert_string_equal(r->all, "d51f51aad78850af7d8c6e6c1ea40d7b");
    tl_log_file_close(f);
    char path[1024];
    tl_st_file *kept;
    assert_int_equal(tl_st_open(&kept,
                                tl_log_values_path(path, sizeof path, logged_file("bytes"), 1),
                                &err),
                     TL_OK);
    assert_memory_equal(tl_st_at(kept, tl_st_find(kept, "f2")).array.data, y, sizeof y);
    tl_st_close(kept);
    tl_free(t, m);
}

/* Micro-batches of a step are parts of one result: its shape counts their rows, and it says whether
 * all of them have the same bytes. */
static void parts_are_counted_and_compared(void **unused)
{
    static const int64_t rows[][3] = {{2, 2, 1}, {2, 2, 2}, {2, 2, 2}};
    static const float ones[6] = {1, 1, 1, 1, 1, 1}, other[6] = {1, 1, 1, 1, 1, 2};
    char line[1024];
    int shaped = 0, whole = 0, step = 0, alike[4] = {0};
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    assert_int_equal(tl_log_open(t, logged_file("parts")), TL_OK);
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 3; k++) {
            const float *x = i == 2 && k == 1 ? other : ones;
            tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(3), .kind = TL_INIT_ONES),
                      y = tl_mul(t, tl_data(t, x, TL_F32, TL_DIMS(rows[i][k], 3)), w);
            tl_backward(t, tl_sum(t, y, TL_ALL, false));
            tl_tape_reset(t);
        }
        tl_log_step(t);
        tl_grad_clear(t);
    }
    assert_int_equal(tl_log_close(t), TL_OK);
    FILE *f = fopen(logged_file("parts"), "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f) != NULL) {
        const bool product = strncmp(line, "d\tf3\tmul\t", 9) == 0;
        shaped += product && strstr(line, "\t2*2+1,3\t") != NULL;
        whole += product && strstr(line, "\t2*3,3\t") != NULL;
        step += strncmp(line, "step\t", 5) == 0;
        alike[step] += strncmp(line, "f3\t", 3) == 0 && strstr(line, "\t=") != NULL;
    }
    fclose(f);
    assert_int_equal(shaped, 1);
    assert_int_equal(whole, 1);
    assert_int_equal(step, 3);
    assert_int_equal(alike[1], 0); /* the last is shorter */
    assert_int_equal(alike[2], 1);
    assert_int_equal(alike[3], 0);
    tl_free(t, m);
}

/* Says how many elements of result `key` are kept of a step of log `name`, and the first; -1: none.
 */
static int64_t kept_of(const char *name, int64_t step, const char *key, float *first)
{
    char path[1024];
    tl_st_file *kept;
    tl_err err = {.status = TL_OK};
    tl_log_values_path(path, sizeof path, logged_file(name), step);
    assert_int_equal(tl_st_open(&kept, path, &err), TL_OK);
    const int i = tl_st_find(kept, key);
    int64_t n = -1;
    if (i >= 0) {
        const tl_array a = tl_st_at(kept, i).array;
        *first = *(const float *)a.data;
        n = tl_array_count(&a);
    }
    tl_st_close(kept);
    return n;
}

/* Parts that differ in more than their rows are counted, and not kept; of a 0-d value the last one
 * is. */
static void parts_that_do_not_join(void **unused)
{
    static const float x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    float first;
    (void)unused;
    tl_tape *t = tl_tape_new(NULL);
    tl_log_file *f;
    tl_err err = {.status = TL_OK};
    assert_int_equal(tl_log_open(t, logged_file("mixed"), .keep = 1), TL_OK);
    for (int i = 3; i <= 4; i++) {
        tl_tensor a = tl_data(t, x, TL_F32, TL_DIMS(2, i));
        tl_require_grad(t, a);
        assert_int_equal(tl_backward(t, tl_sum(t, tl_scale(t, a, 2), TL_ALL, false)), TL_OK);
        tl_tape_reset(t);
    }
    tl_log_step(t);
    assert_int_equal(tl_log_close(t), TL_OK);
    assert_int_equal(tl_log_read(&f, logged_file("mixed"), &err), TL_OK);
    const tl_log_result *r = tl_log_find(tl_log_step_at(f, 0), tl_log_key_parse("f2", 2));
    assert_non_null(r);
    assert_string_equal(r->def->shape, "mixed*2");
    assert_int_equal(r->def->rows, -1);
    r = tl_log_find(tl_log_step_at(f, 0), tl_log_key_parse("f3", 2));
    assert_string_equal(r->value, "72"); /* the last part's */
    tl_log_file_close(f);
    assert_int_equal(kept_of("mixed", 1, "f2", &first), -1);
    assert_int_equal(kept_of("mixed", 1, "f3", &first), 1);
    assert_true(first == 2 * 36);
    tl_free(t);
}

/* What has been changed in place by then has no bytes; the step whose values are kept has all
 * results. */
static void what_there_is_to_keep(void **unused)
{
    float first;
    (void)unused;
    tl_tape *t = tl_tape_new(NULL);
    tl_log_file *f;
    tl_err err = {.status = TL_OK};
    assert_int_equal(tl_log_open(t, logged_file("kept"), .every = 9, .keep = 2), TL_OK);
    for (int i = 1; i <= 3; i++) {
        const float both[2] = {(float)i, (float)i};
        tl_tensor a = tl_data(t, both, TL_F32, TL_DIMS(1, 2)),
                  r = tl_fill(t, TL_F32, TL_DIMS(2), .5);
        tl_require_grad(t, a);
        tl_tensor y = tl_neg(t, tl_rotary_(t, tl_scale(t, a, 2), r, r, TL_ROTARY_HALF));
        assert_int_equal(tl_backward(t, tl_sum(t, y, TL_ALL, false)), TL_OK);
        tl_log_step(t);
        tl_tape_reset(t);
    }
    assert_int_equal(tl_log_close(t), TL_OK);
    assert_int_equal(tl_log_read(&f, logged_file("kept"), &err), TL_OK);
    for (int i = 0; i < 3; i++) {
        const tl_logged_step *s = tl_log_step_at(f, i);
        assert_int_equal(s->full, i < 2);
        for (int k = 0; k < s->n; k++)
            if (strcmp(s->result[k].def->op, "scale") == 0 &&
                !tl_log_key_unpack(s->result[k].key).backward)
                assert_null(s->result[k].all);
    }
    const tl_logged_step *s = tl_log_step_at(f, 1);
    char key[TL_KEY_TEXT] = "", scaled[TL_KEY_TEXT] = "";
    for (int k = 0; k < s->n; k++)
        if (!tl_log_key_unpack(s->result[k].key).backward) {
            const char *op = s->result[k].def->op;
            if (strcmp(op, "neg") == 0)
                tl_log_key_text(key, s->result[k].key);
            else if (strcmp(op, "scale") == 0)
                tl_log_key_text(scaled, s->result[k].key);
        }
    tl_log_file_close(f);
    assert_int_equal(kept_of("kept", 2, scaled, &first), -1);
    assert_int_equal(kept_of("kept", 2, key, &first), 2);
    assert_true(first == -(.5f * 4 - .5f * 4));
    tl_free(t);
}

static tl_status like_input(tl_call *c)
{
    c->out[0] = *c->in[0];
    c->out[0].data = NULL;
    return TL_OK;
}
static tl_status copy_input(tl_call *c)
{
    tl_array_copy(&c->out[0], c->in[0]);
    return TL_OK;
}
static void turn_in_place(tl_vjp *g)
{
    tl_tensor half = tl_constant(g->t, ((float[]){.5, .5}), TL_F32, TL_DIMS(2));
    g->dx[0] = tl_rotary_(g->t, g->dy[0], half, half, TL_ROTARY_HALF);
}

/* A vjp changes its cotangent in place: the vjp before it is logged with what it gave. */
static void what_a_vjp_changes_is_logged_before(void **unused)
{
    static const tl_op op = {.name = "turning",
                             .n_in = 1,
                             .n_out = 1,
                             .shape = like_input,
                             .forward = copy_input,
                             .vjp = turn_in_place};
    char key[TL_KEY_TEXT] = "";
    float first;
    (void)unused;
    tl_tape *t = tl_tape_new(NULL);
    tl_log_file *f;
    tl_err err = {.status = TL_OK};
    tl_tensor x = tl_data(t, ((float[]){1, 2}), TL_F32, TL_DIMS(1, 2)),
              k = tl_data(t, ((float[]){5, 3}), TL_F32, TL_DIMS(1, 2));
    tl_require_grad(t, x);
    assert_int_equal(tl_log_open(t, logged_file("turned"), .keep = 1), TL_OK);
    tl_tensor y = tl_mul(t, tl_apply1(TL_AT(t), &op, NULL, &x, 1), k);
    assert_int_equal(tl_backward(t, tl_sum(t, y, TL_ALL, false)), TL_OK);
    tl_log_step(t);
    assert_int_equal(tl_log_close(t), TL_OK);
    assert_int_equal(tl_log_read(&f, logged_file("turned"), &err), TL_OK);
    const tl_logged_step *s = tl_log_step_at(f, 0);
    for (int i = 0; i < s->n; i++)
        if (tl_log_key_unpack(s->result[i].key).backward &&
            strcmp(s->result[i].def->op, "mul") == 0)
            tl_log_key_text(key, s->result[i].key);
    tl_log_file_close(f);
    assert_int_equal(kept_of("turned", 1, key, &first), 2);
    assert_true(first == 5);
    tl_free(t);
}

/* Also if a later micro-batch has results that those before lack: the gradient of x. */
static void lines_are_in_order(void **unused)
{
    char line[1024];
    uint64_t last = 0;
    int lines = 0;
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    assert_int_equal(tl_log_open(t, logged_file("ordered")), TL_OK);
    for (int i = 0; i < 2; i++) {
        tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(3), .kind = TL_INIT_ONES),
                  x = tl_data(t, ((float[6]){1, 2, 3}), TL_F32, TL_DIMS(2, 3));
        if (i == 1)
            tl_require_grad(t, x);
        tl_tensor y = tl_sum(t, tl_mul(t, x, w), TL_ALL, false), z = tl_sum(t, x, TL_ALL, false);
        assert_int_equal(tl_backward(t, y, .ragged = true), TL_OK);
        tl_log_reached(t, tl_exp(t, z));
        tl_tape_reset(t);
    }
    tl_log_step(t);
    assert_int_equal(tl_log_close(t), TL_OK);
    FILE *f = fopen(logged_file("ordered"), "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f) != NULL) {
        const uint64_t key = tl_log_key_parse(line, strcspn(line, "\t"));
        if (key == 0)
            continue;
        assert_true(key > last);
        last = key;
        lines++;
    }
    fclose(f);
    assert_true(lines > 6);
    tl_free(t, m);
}

typedef struct {
    tl_model *m;
    tl_opt *o;
    bool apart; /* w's gradient has two accumulators */
} updating;

/* v is used in the first backward alone, and exp(x) w in both. */
static void updates(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    const updating *u = ctx;
    (void)n, (void)n_out;
    tl_tensor w = tl_param(t, u->m, "w", TL_F32, TL_DIMS(3, 3), TL_INIT_NORMAL, 1),
              v = tl_param(t, u->m, "v", TL_F32, TL_DIMS(3, 3), TL_INIT_NORMAL, 1);
    tl_tensor h = tl_tanh(t, tl_matmul(t, in[0], w)),
              y = tl_sum(t, tl_matmul(t, h, v), TL_ALL, false), z;
    z = tl_mul(t, tl_exp(t, in[0]), u->apart ? tl_add(t, h, tl_select(t, w, 0, 0)) : h);
    out[0] = tl_sum(t, z, TL_ALL, false);
    tl_backward(t, y, .retain = true, .partial = true);
    tl_backward(t, out[0], .partial = true);
    tl_step(u->o, t);
}

static void log_updates(const char *name, bool apart, bool compiled)
{
    static const float x[6] = {1, 2, 3, -1, -2, .5f};
    updating u = {.m = tl_model_new(.seed = 1), .apart = apart};
    u.o = tl_sgd_new(u.m, .lr = 0.5);
    tl_tape *t = tl_tape_new(u.m);
    assert_int_equal(tl_log_open(t, logged_file(name)), TL_OK);
    tl_compiled *c = tl_compile(t, updates, 1, &u);
    for (int i = 0; i < 2; i++) {
        tl_tensor in = tl_data(t, x, TL_F32, TL_DIMS(2, 3)), out;
        if (compiled)
            assert_int_equal(tl_run(c, &in, 1, &out), TL_OK);
        else
            updates(t, &in, 1, &out, 1, &u);
        tl_tape_reset(t);
    }
    assert_string_equal(tl_error(t), "");
    assert_int_equal(tl_log_close(t), TL_OK);
    tl_free(c, u.o, t, u.m);
}

/* Two backwards share what leads to both. How a gradient is put together moves no update, and a
 * parameter that the last backward has not read is no state. */
static void updates_after_two_backwards(void **unused)
{
    uint64_t at[2] = {0, 0};
    (void)unused;
    for (int apart = 0; apart < 2; apart++) {
        tl_log_file *f;
        tl_err err = {.status = TL_OK};
        log_updates("called", apart, false);
        log_updates("compiled", apart, true);
        assert_int_equal(logged_diff("called", "compiled"), 0);
        assert_int_equal(tl_log_read(&f, logged_file("called"), &err), TL_OK);
        const tl_logged_step *s = tl_log_step_at(f, 1);
        for (int i = 0; i < s->n; i++) {
            const tl_log_def *d = s->result[i].def;
            assert_string_not_equal(d->op, "state");
            if (d->update && strcmp(d->name, "w") == 0)
                at[apart] = s->result[i].key;
        }
        tl_log_file_close(f);
    }
    assert_true(at[0] != 0 && at[0] == at[1]);
}

/* A value of an earlier recording leads to nothing, and is no pass of the step. */
static void what_is_stale_is_not_reached(void **unused)
{
    tl_tape *t = tl_tape_new(NULL);
    tl_log_file *f;
    tl_err err = {.status = TL_OK};
    tl_tensor y = tl_exp(t, tl_data(t, ((float[]){1, 2}), TL_F32, TL_DIMS(2)));
    (void)unused;
    assert_int_equal(tl_log_open(t, logged_file("stale")), TL_OK);
    tl_tape_reset(t);
    tl_tensor now = tl_exp(t, tl_exp(t, tl_data(t, ((float[]){1, 2}), TL_F32, TL_DIMS(2))));
    tl_log_reached(t, y);
    tl_log_reached(t, now);
    tl_log_step(t);
    assert_int_equal(tl_log_close(t), TL_OK);
    assert_int_equal(tl_log_read(&f, logged_file("stale"), &err), TL_OK);
    assert_non_null(tl_log_find(tl_log_step_at(f, 0), tl_log_key_parse("f3", 2)));
    assert_null(tl_log_find(tl_log_step_at(f, 0), tl_log_key_parse("1:f3", 4)));
    tl_log_file_close(f);
    tl_free(t);
}

/* Micro-batches of one step that run other programs are passes of their own: other ops on the same
 * values, or the same op on the same values the other way round. */
static void other_programs_are_other_passes(void **unused)
{
    static const float x[4] = {1, 2, 3, -1};
    (void)unused;
    for (int kind = 0; kind < 3; kind++) {
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_opt *o = tl_sgd_new(m, .lr = 0.5);
        tl_log_file *f;
        tl_err err = {.status = TL_OK};
        assert_int_equal(tl_log_open(t, logged_file("programs")), TL_OK);
        for (int micro = 0; micro < 2; micro++) {
            tl_tape_reset(t);
            tl_tensor in = tl_data(t, x, TL_F32, TL_DIMS(2, 2)),
                      w = tl_param(t, m, "w", TL_F32, TL_DIMS(2, 2), TL_INIT_NORMAL, 1),
                      h = tl_matmul(t, in, w);
            if (kind == 0)
                h = micro ? tl_sin(t, h) : tl_exp(t, h);
            else if (kind == 1)
                h = micro ? tl_sub(t, in, h) : tl_sub(t, h, in);
            else
                h = tl_exp(t, h);
            tl_backward(t, tl_sum(t, h, TL_ALL, false), .ragged = true);
        }
        assert_int_equal(tl_step(o, t), TL_OK);
        assert_int_equal(tl_log_close(t), TL_OK);
        assert_int_equal(tl_log_read(&f, logged_file("programs"), &err), TL_OK);
        assert_non_null(tl_log_find(tl_log_step_at(f, 0), tl_log_key_parse("f4", 2)));
        const bool other = tl_log_find(tl_log_step_at(f, 0), tl_log_key_parse("1:f4", 4)) != NULL;
        if (other != (kind < 2))
            fail_msg("programs %d: %s", kind, other ? "two passes" : "one pass");
        tl_log_file_close(f);
        tl_free(o, t, m);
    }
}

/* ---- graphs ---- */

static void a_graph_logs_what_the_called_program_does(void **unused)
{
    (void)unused;
    for (int replaceable = 0; replaceable < 2; replaceable++) {
        char called[65];
        logged_train(logged_file("called"), (logged_run){.replaceable = replaceable});
        memcpy(called, logged_weights, sizeof called);
        for (int64_t n = LOGGED_BATCH; n >= 5; n -= 7) { /* 5: 5 + 5 + 2, a graph for each size */
            logged_train(logged_file("compiled"), (logged_run){.compile = true,
                                                               .replaceable = replaceable,
                                                               .micro_batch = n});
            assert_string_equal(called, logged_weights);
            if (logged_diff("called", "compiled") != 0)
                logged_says("(no difference)");
            logged_says("No difference");
            logged_says("more have no record in the run that was compiled");
            logged_says_not("could not be compared");
            assert_int_equal(logged_diff("compiled", "called"), 0);
        }
        logged_train(logged_file("segments"), (logged_run){.compile = true,
                                                           .replaceable = replaceable,
                                                           .segment = true,
                                                           .threads = 3});
        assert_int_equal(logged_diff("called", "segments"), 0);
        logged_train(logged_file("every"), (logged_run){.compile = true,
                                                        .replaceable = replaceable,
                                                        .steps = 7,
                                                        .log = {.every = 3}});
        assert_int_equal(logged_diff("compiled", "every"), 0);
    }
}

static void half_loss(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                      void *ctx)
{
    (void)n_in, (void)n_out;
    tl_tensor h = tl_tanh(t, tl_linear(t, ctx, "a", tl_cast(t, in[0], TL_F16), 3));
    tl_tensor y = tl_sum(t, tl_cast(t, tl_linear(t, ctx, "b", h, 2), TL_F32), TL_ALL, false);
    tl_backward(t, y);
    out[0] = tl_detach(t, y);
}

/* An update that is called reads what a graph has read before it: here, parameters that get f32
 * masters. */
static void an_update_is_called_after_a_graph(void **unused)
{
    static const char *const name[] = {"called", "compiled"};
    static const float x[2][2] = {{1, 2}, {3, -4}};
    (void)unused;
    for (int compile = 0; compile < 2; compile++) {
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_opt *o = tl_sgd_new(m, .lr = 0.1, .clip = 1);
        tl_compiled *c = tl_compile(t, half_loss, 1, m);
        tl_tensor in = tl_data(m, x, TL_F32, TL_DIMS(2, 2)), out;
        assert_int_equal(tl_log_open(t, logged_file(name[compile])), TL_OK);
        for (int step = 0; step < 3; step++) {
            if (compile)
                tl_run(c, &in, 1, &out);
            else
                half_loss(t, &in, 1, &out, 1, m);
            assert_int_equal(tl_step(o, t), TL_OK);
            tl_tape_reset(t);
        }
        assert_int_equal(tl_log_close(t), TL_OK);
        tl_free(c, o, t, m);
    }
    assert_int_equal(logged_diff("called", "compiled"), 0);
}

static void max_loss(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                     void *ctx)
{
    (void)n_in, (void)n_out;
    tl_tensor w = tl_param(t, ctx, "w", TL_F32, TL_DIMS(3, 4), TL_INIT_NORMAL, 1),
              h = tl_tanh(t, tl_matmul(t, in[0], w)), most = tl_max(t, h, TL_DIMS(1), true),
              y = tl_sum(t, tl_square(t, tl_sub(t, h, most)), TL_ALL, false);
    tl_backward(t, y);
    out[0] = tl_detach(t, y);
}

/* The name that a program has given an input of its graph is that of a called one's. */
static void the_name_of_an_input_is_logged(void **unused)
{
    static const float x[6] = {1, 2, 3, -1, 0.5f, 2};
    (void)unused;
    for (int compile = 0; compile < 2; compile++) {
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_opt *o = tl_sgd_new(m, .lr = 0.05);
        tl_compiled *c = tl_compile(t, max_loss, 1, m);
        tl_log_file *f;
        tl_err err = {.status = TL_OK};
        int named = 0;
        assert_int_equal(tl_log_open(t, logged_file("named")), TL_OK);
        tl_tensor in = tl_data(t, x, TL_F32, TL_DIMS(2, 3)), out;
        tl_log_name(t, in, "the batch");
        if (compile)
            tl_run(c, &in, 1, &out);
        else
            max_loss(t, &in, 1, &out, 1, m);
        assert_int_equal(tl_step(o, t), TL_OK);
        assert_int_equal(tl_log_close(t), TL_OK);
        assert_int_equal(tl_log_read(&f, logged_file("named"), &err), TL_OK);
        const tl_logged_step *s = tl_log_step_at(f, 0);
        for (int i = 0; i < s->n; i++)
            named += s->result[i].def->name != NULL &&
                     strcmp(s->result[i].def->name, "the batch") == 0;
        if (named == 0)
            fail_msg("%s: no result has the name", compile ? "compiled" : "called");
        tl_log_file_close(f);
        tl_free(c, o, t, m);
    }
}

/* A step whose micro-batches are run and called in turns: what a graph fuses lacks parts, and is
 * not taken for the whole. */
static void parts_that_a_graph_has_fused(void **unused)
{
    static const int whole[] = {6, 0}, cut[] = {1, 3, 2, 0};
    (void)unused;
    for (int way = 0; way < 3; way++) {
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_opt *o = tl_sgd_new(m, .lr = 0.05);
        tl_compiled *c = tl_compile(t, max_loss, 1, m, .copy_inputs = false);
        assert_int_equal(tl_log_open(t, logged_file(way == 0 ? "whole" : "turns")), TL_OK);
        for (int step = 0; step < 2; step++) {
            float x[18];
            for (int i = 0; i < 18; i++)
                x[i] = (float)((i * 7 + step * 5) % 11) / 11 - 0.4f;
            const float *at = x;
            for (const int *n = way == 0 ? whole : cut; *n > 0; at += 3 * *n++) {
                tl_tensor in = tl_data(t, at, TL_F32, TL_DIMS(*n, 3)), out;
                if (way > 0 && (*n == 3) == (way == 2))
                    tl_run(c, &in, 1, &out);
                else
                    max_loss(t, &in, 1, &out, 1, m);
                tl_tape_reset(t);
            }
            assert_int_equal(tl_step(o, t), TL_OK);
            tl_tape_reset(t);
        }
        assert_int_equal(tl_log_close(t), TL_OK);
        tl_free(c, o, t, m);
        if (way > 0)
            assert_int_equal(logged_diff("whole", "turns"), 0);
    }
}

/* Most of what is computed is there, gradients and updates among it. */
static void a_graph_leaves_out_little(void **unused)
{
    tl_log_file *f[2];
    tl_err err = {.status = TL_OK};
    int with_bytes[2] = {0}, gradients[2] = {0}, updates[2] = {0};
    (void)unused;
    for (int k = 0; k < 2; k++) {
        logged_train(logged_file("log"), (logged_run){.compile = k == 1, .steps = 1});
        assert_int_equal(tl_log_read(&f[k], logged_file("log"), &err), TL_OK);
        const tl_logged_step *s = tl_log_step_at(f[k], 0);
        assert_int_equal(s->compiled, k == 1);
        for (int i = 0; i < s->n; i++) {
            with_bytes[k] += s->result[i].all != NULL;
            gradients[k] += s->result[i].def->gradient && s->result[i].all != NULL;
            updates[k] += s->result[i].def->update && s->result[i].all != NULL;
        }
        tl_log_file_close(f[k]);
    }
    assert_int_equal(gradients[0], gradients[1]);
    assert_int_equal(updates[0], updates[1]);
    assert_int_equal(updates[1], 7);
    assert_true(
        10 * with_bytes[1] >=
        7 * with_bytes[0]); /* the rest: sums of the norm, the masks and sums that loops take in */
}

static void gated(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    tl_model *m = tl_tape_model(t);
    tl_tensor x = in[0];
    (void)n_in, (void)n_out;
    for (int i = 0; i < 2; i++) {
        char name[3][8] = {"gate0", "up0", "down0"};
        for (int k = 0; k < 3; k++)
            name[k][strlen(name[k]) - 1] += (char)i;
        x = tl_swiglu(t, tl_linear(t, m, name[0], x, 8), tl_linear(t, m, name[1], x, 8));
        x = tl_linear(t, m, name[2], x, 8);
    }
    out[0] = tl_sum(t, tl_square(t, x), TL_ALL, false);
    tl_backward(t, out[0]);
    tl_step(ctx, t);
}

/* The step of a gradient that gives the value of its op again, too. */
static void what_comes_with_a_value_again_is_there(void **unused)
{
    static const float x[24] = {1, -2, 3};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_sgd_new(m, .lr = 0.1);
    tl_compiled *c = tl_compile(t, gated, 1, o, .limits = {.again_bytes = 1, .again_steps = 1});
    tl_tensor in = tl_data(t, x, TL_F32, TL_DIMS(3, 8)), out;
    tl_log_file *f;
    tl_err err = {.status = TL_OK};
    int gradients = 0;
    (void)unused;
    assert_int_equal(tl_log_open(t, logged_file("again")), TL_OK);
    assert_int_equal(tl_run(c, &in, 1, &out), TL_OK);
    assert_int_equal(tl_log_close(t), TL_OK);
    assert_int_equal(tl_log_read(&f, logged_file("again"), &err), TL_OK);
    const tl_logged_step *s = tl_log_step_at(f, 0);
    for (int i = 0; i < s->n; i++)
        gradients += strcmp(s->result[i].def->op, "swiglu_grad") == 0 && s->result[i].all != NULL;
    assert_int_equal(gradients, 4);
    tl_log_file_close(f);
    tl_free(c, o, t, m);
}

static void program_of_two_steps(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out,
                                 int n_out, void *ctx)
{
    (void)n_in, (void)n_out;
    for (int i = 0; i < 2; i++) {
        out[0] = tl_sum(t,
                        tl_square(t, tl_mul(t,
                                            tl_param(t, tl_tape_model(t), "w", TL_F32, TL_DIMS(3),
                                                     TL_INIT_ONES, 1),
                                            in[0])),
                        TL_ALL, false);
        tl_backward(t, out[0]);
        tl_step(ctx, t);
    }
}

/* What cannot be logged stops the log with the reason, and not the run. */
static void graphs_that_cannot_be_logged(void **unused)
{
    (void)unused;
    for (int early = 0; early < 2; early++) {
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_opt *o = tl_sgd_new(m, .lr = 0.1);
        tl_tensor x = tl_data(t, ((float[]){1, 2, 3}), TL_F32, TL_DIMS(3)), out;
        if (!early)
            tl_log_open(t, logged_file("x"));
        tl_graph *g = tl_trace(t, program_of_two_steps, &x, 1, 1, o);
        if (early)
            tl_log_open(t, logged_file("x"));
        assert_int_equal(tl_graph_run(g, &x, 1, &out, 1), TL_OK);
        assert_int_equal(tl_opt_steps(o), 2);
        assert_non_null(
            strstr(tl_log_error(t), early ? "was traced before tl_log_open: open the log first"
                                          : "a graph of 2 optimizer steps cannot be logged"));
        assert_int_equal(tl_log_close(t), TL_EUSAGE);
        tl_free(g, o, t, m);
    }
}

static bool spoils;
static void may_fail(tl_vjp *g)
{
    if (spoils)
        tl_tape_fail(TL_AT(g->t), TL_EIO, "half way");
    g->dx[0] = g->dy[0];
}
static const tl_op failing = {.name = "failing",
                              .n_in = 1,
                              .n_out = 1,
                              .shape = like_input,
                              .forward = copy_input,
                              .vjp = may_fail};

static int most_parts(const char *name)
{
    tl_log_file *f;
    tl_err err = {.status = TL_OK};
    int most = 0;
    assert_int_equal(tl_log_read(&f, logged_file(name), &err), TL_OK);
    for (int i = 0; i < tl_log_steps(f); i++)
        for (int k = 0; k < tl_log_step_at(f, i)->n; k++) {
            const int parts = tl_log_step_at(f, i)->result[k].def->parts;
            most = parts > most ? parts : most;
        }
    tl_log_file_close(f);
    return most;
}

/* What was computed for gradients that were dropped, by a call or by an error half way, is no part
 * of a step. */
static void dropped_gradients_leave_no_trace(void **unused)
{
    (void)unused;
    for (int drop = 0; drop < 3; drop++) {
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_opt *o = tl_sgd_new(m, .lr = 0.1);
        tl_log_open(t, logged_file(drop ? "dropped" : "plain"));
        for (int i = 0; i < 2 + (drop > 0); i++) {
            const bool dropped = drop > 0 && i == 0;
            tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(30), TL_INIT_ONES, 1),
                      x = tl_fill(t, TL_F32, TL_DIMS(30), dropped ? 7 : 2);
            spoils = dropped && drop == 2;
            w = tl_apply1(TL_AT(t), &failing, NULL, (tl_tensor[]){tl_mul(t, x, w)}, 1);
            for (int k = 0; k < 8 && !spoils; k++) /* more results than there were by then */
                w = tl_neg(t, w);
            assert_int_equal(tl_backward(t, tl_sum(t, tl_square(t, w), TL_ALL, false)),
                             spoils ? TL_EIO : TL_OK);
            if (spoils)
                tl_error_clear(t);
            else if (dropped)
                tl_grad_clear(t);
            else
                tl_step(o, t);
            tl_tape_reset(t);
        }
        assert_int_equal(tl_log_close(t), TL_OK);
        tl_free(o, t, m);
        if (drop > 0) {
            assert_int_equal(logged_diff("plain", "dropped"), 0);
            logged_says("2 steps are the same");
            assert_int_equal(most_parts("dropped"), 1);
        }
    }
}

/* ---- batches that lie along another axis: said so, not guessed ---- */

static void second_axis(const char *path, int64_t micro)
{
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_sgd_new(m, .lr = 0.1);
    tl_log_open(t, path);
    for (int64_t first = 0; first < 4;
         first += micro) { /* [S, B, C]: columns first .. of a table of 3 x 4 x 2 */
        float x[24];
        for (int64_t i = 0; i < 3 * micro * 2; i++)
            x[i] = (float)((i / (micro * 2) * 4 + first + i / 2 % micro) * 2 + i % 2);
        tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(5, 2), TL_INIT_NORMAL, 1);
        tl_tensor flat = tl_reshape(t, tl_data(t, x, TL_F32, TL_DIMS(3, micro, 2)),
                                    TL_DIMS(3 * micro, 2));
        tl_backward(t, tl_sum(t, tl_tanh(t, tl_matmul(t, flat, tl_transpose(t, w, 0, 1))), TL_ALL,
                              false));
        if (first + micro == 4)
            tl_step(o, t);
        tl_tape_reset(t);
    }
    assert_string_equal(tl_error(t), "");
    tl_log_close(t);
    tl_free(o, t, m);
}

static void a_batch_on_another_axis_is_not_guessed(void **unused)
{
    (void)unused;
    second_axis(logged_file("whole"), 4);
    second_axis(logged_file("halves"), 2);
    second_axis(logged_file("again"), 2);
    assert_int_equal(logged_diff("again", "halves"), 0);
    logged_says_not("could not be compared");
    if (logged_diff("whole", "halves") == 0) {
        logged_says("could not be compared");
        return;
    }
    logged_says(
        "the gradient of w"); /* the rows' order is another one, and its sum may round otherwise */
    logged_says("the fault is in this op or in what made the others");
}

static void keys_round_trip(void **unused)
{
    static const char *const good[] = {"f1",       "f12/1",      "b12.3", "b12.3/255",
                                       "c12.1",    "1:c7.2/1",   "u5",    "u5.3",
                                       "u0.1",     "b1.4194303", "3:f7",  "254:b1.1",
                                       "f16777215"};
    static const char *const bad[] = {"",           "f",    "f0",     "g1",        "b3", "b3.",
                                      "b3.0",       "c3",   "u5.",    "u5.0",      "u0", "f1.1",
                                      "b1.4194304", "f1/0", "f1/256", "f16777216", "1:", "1:u4",
                                      "255:f1",     "f1x",  "f1/"};
    char text[TL_KEY_TEXT];
    (void)unused;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        uint64_t k = tl_log_key_parse(good[i], strlen(good[i]));
        assert_true(k != 0);
        assert_string_equal(tl_log_key_text(text, k), good[i]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_true(tl_log_key_parse(bad[i], strlen(bad[i])) == 0);
    assert_true(tl_log_key_parse("f9", 2) < tl_log_key_parse("b9.1", 4));
    assert_true(tl_log_key_parse("b9.1", 4) < tl_log_key_parse("b8.1", 4));
    assert_true(tl_log_key_parse("b9.9", 4) < tl_log_key_parse("c8.1", 4));
    assert_true(tl_log_key_parse("c8.9", 4) < tl_log_key_parse("b8.1", 4));
    assert_true(tl_log_key_parse("u1.9", 4) < tl_log_key_parse("u2", 2));
    assert_true(tl_log_key_parse("1:b1.1", 6) < tl_log_key_parse("u1", 2));
}

const struct CMUnitTest tl_tests_log[] = {
    cmocka_unit_test(keys_round_trip),
    cmocka_unit_test_setup_teardown(a_log_holds_the_hash_of_the_bytes, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(a_log_says_once_what_a_result_is, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(parts_are_counted_and_compared, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(parts_that_do_not_join, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(what_there_is_to_keep, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(what_a_vjp_changes_is_logged_before, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(updates_after_two_backwards, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(lines_are_in_order, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(what_is_stale_is_not_reached, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(other_programs_are_other_passes, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(logging_changes_no_bit, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(one_run_has_one_log, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(a_graph_logs_what_the_called_program_does, logged_begin,
                                    logged_end),
    cmocka_unit_test_setup_teardown(the_name_of_an_input_is_logged, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(parts_that_a_graph_has_fused, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(an_update_is_called_after_a_graph, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(what_comes_with_a_value_again_is_there, logged_begin,
                                    logged_end),
    cmocka_unit_test_setup_teardown(a_graph_leaves_out_little, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(graphs_that_cannot_be_logged, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(dropped_gradients_leave_no_trace, logged_begin, logged_end),
    cmocka_unit_test_setup_teardown(a_batch_on_another_axis_is_not_guessed, logged_begin,
                                    logged_end),
};
const size_t tl_tests_log_count = sizeof tl_tests_log / sizeof *tl_tests_log;
