/* Logs of runs: what is in them, what two of them say about each other, and logs that are no good. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <tally.h>

#include "tests/support/skip.h"

#include "autograd/log_read.h"
#include "autograd/log_state.h"
#include "autograd/log_values.h"
#include "tensor/file.h"
#include "tensor/isa.h"
#include "tensor/safetensors.h"
#include "tests/temp_dir.h"

extern const struct CMUnitTest tl_tests_log[];
extern const size_t tl_tests_log_count;

#ifndef TL_BUILD
#define TL_BUILD "build"
#endif

static temp_dir dir;

static int begin(void **unused)
{
    (void)unused;
    return temp_dir_make(&dir) ? 0 : -1;
}

static int end(void **unused)
{
    (void)unused;
    temp_dir_remove(&dir);
    return 0;
}

/* ---- a run: a small Llama on 12 samples a step; its gradients may pass through an op that spoils one ---- */

enum { BATCH = 12, SEQ = 8, VOCAB = 11 };

typedef struct {
    int64_t steps, micro_batch, layers, flip_at; /* flip_at: the step whose gradient is spoilt; 0: none */
    const char *isa;
    int threads;
    uint64_t seed;
    bool segment, swapped;      /* swapped: arguments recorded in another order */
    bool anew;                  /* each micro-batch's loss begins anew */
    tl_log_options log;
} a_run;

static int64_t flip_at, step_now;
static char weights[65]; /* of the last run */

static tl_status same_shape(tl_call *c)
{
    c->out[0] = tl_array_make(c->in[0]->dtype, &(tl_shape){0}, NULL);
    tl_shape s = tl_array_shape(c->in[0]);
    c->out[0] = tl_array_make(c->in[0]->dtype, &s, NULL);
    return TL_OK;
}

static tl_status copy_forward(tl_call *c)
{
    tl_array_copy(&c->out[0], c->in[0]);
    return TL_OK;
}

/* Copies, but for one bit of one element at one step. */
static tl_status flip_forward(tl_call *c)
{
    tl_array_copy(&c->out[0], c->in[0]);
    if (step_now == flip_at)
        ((uint32_t *)c->out[0].data)[37] ^= 4;
    return TL_OK;
}

static const tl_op flip_op = {.name = "flip", .n_in = 1, .n_out = 1, .traits = TL_NONDIFF, .shape = same_shape, .forward = flip_forward};
static void pass_vjp(tl_vjp *g) { g->dx[0] = tl_apply1(TL_AT(g->t), &flip_op, NULL, g->dy, 1); }
static const tl_op pass_op = {.name = "pass", .n_in = 1, .n_out = 1, .shape = same_shape, .forward = copy_forward, .vjp = pass_vjp};

static tl_tensor network(tl_tape *t, tl_model *m, const a_run *r, tl_tensor ids)
{
    tl_tensor h = tl_embedding(t, tl_param(t, m, "embed", TL_F32, TL_DIMS(VOCAB, 16), TL_INIT_NORMAL, 1), ids);
    float table[SEQ * 16]; /* does not grow with the batch */
    for (int i = 0; i < SEQ * 16; i++)
        table[i] = (float)(i % 7) / 8;
    h = tl_add(t, h, tl_data(t, table, TL_F32, TL_DIMS(SEQ, 16)));
    for (int i = 0; i < r->layers; i++) {
        char name[32];
        snprintf(name, sizeof name, "layer%d", i);
        uint32_t from = tl_segment_begin(t);
        tl_tensor a, b;
        if (r->swapped) {
            b = tl_tanh(t, h);
            a = tl_linear(t, m, name, h, 16);
        } else {
            a = tl_linear(t, m, name, h, 16);
            b = tl_tanh(t, h);
        }
        h = tl_add(t, a, b);
        if (i == 0)
            h = tl_apply1(TL_AT(t), &pass_op, NULL, &h, 1);
        if (r->segment)
            tl_segment_end(t, from, &h, 1, false);
    }
    return tl_linear(t, m, "out", h, VOCAB);
}

static void train(const char *path, a_run r)
{
    r.steps = r.steps ? r.steps : 4;
    r.micro_batch = r.micro_batch ? r.micro_batch : BATCH;
    r.layers = r.layers ? r.layers : 2;
    flip_at = r.flip_at;
    tl_threads_set(r.threads);
    const char *was = tl_isa_now()->name;
    if (r.isa != NULL)
        assert_true(tl_isa_force(r.isa));
    tl_model *m = tl_model_new(.seed = r.seed ? r.seed : 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_adamw_new(m, .lr = 1e-2, .clip = 1);
    tl_tensor total = tl_data(m, (double[]){0}, TL_F64, TL_SCALAR);
    if (path != NULL)
        assert_int_equal(tl_log_open_at(TL_AT(t), path, r.log), TL_OK);
    for (step_now = r.log.first ? r.log.first : 1; r.steps-- > 0; step_now++) {
        tl_write(m, total, (double[]){0}, 8);
        for (int64_t first = 0; first < BATCH; first += r.micro_batch) {
            int64_t n = first + r.micro_batch < BATCH ? r.micro_batch : BATCH - first, ids[BATCH * SEQ];
            for (int64_t i = 0, at = first * SEQ; i < n * SEQ; i++, at++)
                ids[i] = (at * (7 + step_now) + at / 3) % VOCAB;
            tl_tensor x = tl_data(t, ids, TL_I64, TL_DIMS(n, SEQ));
            tl_backward(t, tl_cross_entropy(t, network(t, m, &r, x), x, TL_MEAN, .count = tl_scalar(t, TL_F64, BATCH * SEQ), .total = r.anew ? TL_NONE : total));
            if (first + n == BATCH)
                tl_step(o, t);
            tl_tape_reset(t);
        }
        assert_string_equal(tl_error(t), "");
    }
    assert_int_equal(tl_log_close(t), TL_OK);
    tl_model_sha256(m, weights);
    tl_free(o, t, m);
    tl_threads_set(0);
    assert_true(tl_isa_force(was));
}

static char out[1 << 16];

/* What tally-diff prints about two logs of the directory; its exit status. */
static int diff(const char *a, const char *b)
{
    char command[4096];
    snprintf(command, sizeof command, "cd '%s' && '%s/tally-diff' '%s' '%s' 2>&1", dir.path, TL_BUILD, a, b);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    size_t n = fread(out, 1, sizeof out - 1, f);
    out[n] = '\0';
    int status = pclose(f);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void says(const char *text)
{
    if (strstr(out, text) == NULL)
        fail_msg("'%s' is not in:\n%s", text, out);
}

static const char *in_dir(const char *name)
{
    static char path[4][1024];
    static int k;
    k = (k + 1) % 4;
    return temp_dir_file(path[k], &dir, name);
}

/* ---- one run, logged however it is run ---- */

static void equal(const char *what, a_run r)
{
    train(in_dir("other"), r);
    if (diff("plain", "other") != 0)
        fail_msg("%s: %s", what, out);
    says("No difference");
    if (strstr(out, "could not be compared") != NULL)
        fail_msg("%s: %s", what, out);
}

static void one_run_has_one_log(void **unused)
{
    char what[64];
    (void)unused;
    train(in_dir("plain"), (a_run){0});
    for (int64_t n = 1; n <= 5; n += 4) { /* 5: 5 + 5 + 2 */
        snprintf(what, sizeof what, "micro-batches of %" PRId64, n);
        equal(what, (a_run){.micro_batch = n});
    }
    equal("micro-batches of 4, 3 threads", (a_run){.micro_batch = 4, .threads = 3});
    train(in_dir("other"), (a_run){.micro_batch = 3, .anew = true}); /* its losses are others; nothing else is */
    assert_int_equal(diff("plain", "other"), 0);
    says("No difference");
    says("8 more could not be compared"); /* loss and total of 4 steps */
    equal("1 thread", (a_run){.threads = 1});
    equal("another order of recording", (a_run){.swapped = true});
    equal("segments", (a_run){.segment = true});
    equal("segments, micro-batches of 3", (a_run){.segment = true, .micro_batch = 3});
    for (int i = 0; tl_isa_at(i) != NULL; i++)
        equal(tl_isa_at(i)->name, (a_run){.isa = tl_isa_at(i)->name});
}

static void logging_changes_no_bit(void **unused)
{
    char bare[65];
    (void)unused;
    train(NULL, (a_run){.micro_batch = 5});
    memcpy(bare, weights, sizeof bare);
    train(in_dir("plain"), (a_run){.micro_batch = 5, .log = {.keep = 2}});
    assert_string_equal(weights, bare);
    train(in_dir("plain"), (a_run){.micro_batch = 5, .segment = true, .log = {.every = 2}});
    assert_string_equal(weights, bare);
}

static void a_log_holds_the_hash_of_the_bytes(void **unused)
{
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_log_file *f;
    tl_err err = {.status = TL_OK};
    char hex[65];
    float x[3] = {1, 2, 3}, y[3] = {2, 4, 6};
    (void)unused;
    assert_int_equal(tl_log_open(t, in_dir("bytes"), .keep = 1), TL_OK);
    tl_tensor a = tl_data(t, x, TL_F32, TL_DIMS(3));
    tl_require_grad(t, a);
    tl_backward(t, tl_sum(t, tl_scale(t, a, 2), TL_ALL, false));
    tl_log_step(t);
    assert_int_equal(tl_log_close(t), TL_OK);
    assert_string_equal(tl_error(t), "");
    assert_int_equal(tl_log_read(&f, in_dir("bytes"), &err), TL_OK);
    const tl_logged_step *s = tl_log_step_at(f, 0);
    const tl_log_result *r = tl_log_find(s, tl_log_key_parse("f2", 2));
    assert_non_null(r);
    assert_string_equal(r->def->op, "scale");
    assert_string_equal(r->def->shape, "3");
    assert_non_null(strstr(r->def->place, "test_log.c:"));
    tl_sha256_ctx h;
    tl_sha256_begin(&h, &err);
    tl_sha256_feed(&h, y, sizeof y);
    tl_sha256_finish_hex(&h, hex, &err);
    assert_memory_equal(r->all, hex, 64);
    tl_log_file_close(f);
    char path[1024];
    tl_st_file *kept;
    assert_int_equal(tl_st_open(&kept, tl_log_values_path(path, sizeof path, in_dir("bytes"), 1), &err), TL_OK);
    assert_memory_equal(tl_st_at(kept, tl_st_find(kept, "f2")).array.data, y, sizeof y);
    tl_st_close(kept);
    tl_free(t, m);
}

/* ---- runs that differ ---- */

static void a_flipped_bit_is_found(void **unused)
{
    (void)unused;
    for (int64_t n = BATCH; n >= 4; n -= 8) { /* the same split, then another */
        train(in_dir("good"), (a_run){.steps = 40, .log = {.keep = 37}});
        train(in_dir("bad"), (a_run){.steps = 40, .micro_batch = n, .flip_at = 37, .log = {.keep = 37}});
        assert_int_equal(diff("good", "bad"), 1);
        says("They agree up to step 36 and part in step 37, at b");
        says("    flip in the backward of pass (f");
        says("They still agreed, so this op is to blame.");
        says("The path that led there:");
        says("more\n"); /* it goes down to where the program began: */
        says("    same         f1       [11, 16]           parameter embed\n");
        if (n == BATCH) {
            says("1 of 1536 elements differ, the first at [0, 2, 5]");
            says("   3 to 4         1  ####");
        }
    }
}

/* Two products of long rows; the second one under TL_FAST, or not. BLIS cuts rows this long into blocks. */
static void two_products(const char *path, bool fast)
{
    enum { ROWS = 64, LONG = 1500 };
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_sgd_new(m, .lr = 0.1);
    tl_log_open(t, path);
    tl_tensor x = tl_param(t, m, "x", TL_F32, TL_DIMS(ROWS, LONG), TL_INIT_NORMAL, 1);
    tl_tensor h = tl_linear(t, m, "first", x, LONG);
    int depth = tl_mode_push(t, fast ? TL_FAST : 0);
    h = tl_linear(t, m, "second", h, LONG);
    tl_mode_pop(t, depth);
    tl_backward(t, tl_mean(t, tl_square(t, h), TL_ALL, false));
    tl_step(o, t);
    assert_string_equal(tl_error(t), "");
    tl_log_close(t);
    tl_free(o, t, m);
}

static void the_first_fast_matmul_is_named(void **unused)
{
    (void)unused;
    two_products(in_dir("plain"), false);
    two_products(in_dir("fast"), true);
    int status = diff("plain", "fast");
#if TL_BLIS
    assert_int_equal(status, 1);
    says("    matmul\n");
    says("parameter second.weight");
    says("They still agreed, so this op is to blame.\nB recorded it under TL_FAST, where nothing is promised.");
#else
    assert_int_equal(status, 0); /* there is nothing faster */
#endif
}

static void other_programs_and_data(void **unused)
{
    (void)unused;
    train(in_dir("plain"), (a_run){0});
    train(in_dir("deep"), (a_run){.layers = 3});
    assert_int_equal(diff("plain", "deep"), 1);
    says("The programs are not the same");
    train(in_dir("seed"), (a_run){.seed = 2});
    assert_int_equal(diff("plain", "seed"), 1);
    says("part in step 1");
    says("parameter embed");
    says("the runs began with other values");
    train(in_dir("from3"), (a_run){.log = {.first = 3}, .steps = 2});
    assert_int_equal(diff("plain", "from3"), 1);
    says("part in step 3");
}

static void lengths_samples_and_appended_logs(void **unused)
{
    (void)unused;
    train(in_dir("plain"), (a_run){.steps = 6});
    train(in_dir("short"), (a_run){.steps = 4});
    assert_int_equal(diff("plain", "short"), 0);
    says("A goes on to step 6, which B does not have.");
    train(in_dir("every"), (a_run){.steps = 6, .log = {.every = 3}});
    assert_int_equal(diff("plain", "every"), 0);
    says("6 steps are the same");
    train(in_dir("spoilt"), (a_run){.steps = 6, .flip_at = 2, .log = {.every = 3}});
    assert_int_equal(diff("plain", "spoilt"), 1);
    says("Only scalars of this step were logged in B: the cause may lie before");
    train(in_dir("later"), (a_run){.steps = 2, .log = {.first = 7}});
    assert_int_equal(diff("plain", "later"), 2);
    says("no step is in both logs");
    train(in_dir("short"), (a_run){.steps = 2, .log = {.append = true, .first = 5}}); /* weights are new: a run that went astray */
    assert_int_equal(diff("plain", "short"), 1);
    says("part in step 5");
}

/* ---- logs that are no good ---- */

static void cut(const char *from, const char *to, size_t n)
{
    char *text;
    size_t bytes;
    tl_err err = {.status = TL_OK};
    assert_int_equal(tl_file_read(in_dir(from), 1 << 28, &text, &bytes, &err), TL_OK);
    FILE *f = fopen(in_dir(to), "wb");
    fwrite(text, 1, n < bytes ? n : bytes, f);
    fclose(f);
    tl_free_raw(text);
}

static void unreadable_logs(void **unused)
{
    (void)unused;
    train(in_dir("plain"), (a_run){0});
    cut("plain", "empty", 0);
    assert_int_equal(diff("plain", "empty"), 2);
    says("empty is empty");
    assert_int_equal(diff("plain", "nowhere"), 2);
    says("nowhere");
    assert_int_equal(diff("plain", "."), 2);
    cut("plain", "head", 12);
    assert_int_equal(diff("plain", "head"), 2);
    says("B  head: no step");
    FILE *f = fopen(in_dir("letter"), "w");
    fputs("Dear Sir,\nthis is no log.\n", f);
    fclose(f);
    assert_int_equal(diff("letter", "plain"), 2);
    says("letter is no log: it does not begin with 'tally-log'");
    f = fopen(in_dir("letter"), "w");
    fputs("tally-log\t2\n", f);
    fclose(f);
    assert_int_equal(diff("letter", "plain"), 2);
    says("of another version (2");
}

static void logs_cut_off_by_a_crash(void **unused)
{
    char *text;
    size_t bytes;
    tl_err err = {.status = TL_OK};
    (void)unused;
    train(in_dir("plain"), (a_run){0});
    assert_int_equal(tl_file_read(in_dir("plain"), 1 << 28, &text, &bytes, &err), TL_OK);
    const char *third = strstr(text, "step\t3");
    assert_non_null(third);
    cut("plain", "crash", (size_t)(third - text) + 1000);
    assert_int_equal(diff("plain", "crash"), 0);
    says("B  crash: steps 1 to 3, the last one cut off");
    says("A goes on to step 4");
    tl_free_raw(text);
    train(in_dir("crash"), (a_run){.steps = 1, .log = {.append = true, .first = 9}}); /* half a line does not spoil the next one */
    assert_int_equal(diff("crash", "crash"), 0);
    says("B  crash: steps 1 to 9\n");
}

/* Whatever is in a log, reading and comparing end, and touch no memory but their own. */
static void damaged_logs_are_read(void **unused)
{
    const char *given = getenv("TL_SEED");
    uint64_t seed = given != NULL ? strtoull(given, NULL, 10) : 20240611;
    tl_rng_key key = tl_rng_stream(seed, "test_log.damage");
    tl_err err = {.status = TL_OK};
    tl_log_file *good, *f;
    char *text;
    size_t bytes;
    (void)unused;
    train(in_dir("plain"), (a_run){.steps = 2, .micro_batch = 5});
    assert_int_equal(tl_file_read(in_dir("plain"), 1 << 28, &text, &bytes, &err), TL_OK);
    assert_int_equal(tl_log_read(&good, in_dir("plain"), &err), TL_OK);
    for (uint64_t round = 0; round < 300; round++) {
        char *copy = malloc(bytes);
        size_t n = round % 3 == 0 ? (size_t)tl_rng_below(key, round, 0, bytes) : bytes;
        memcpy(copy, text, bytes);
        for (uint64_t i = 0; i < 1 + round % 40; i++) {
            size_t at = 12 + (size_t)tl_rng_below(key, round, 3 * i + 1, bytes - 12), kind = (size_t)tl_rng_below(key, round, 3 * i + 2, 4);
            static const char usual[] = "\t\n*+,:/.-0f9b%";
            copy[at] = (char)(kind < 3 ? usual[tl_rng_below(key, round, 3 * i + 3, sizeof usual - 1)] : (int)tl_rng_below(key, round, 3 * i + 3, 256));
            if (kind == 2) /* a stretch of the file somewhere else */
                memcpy(copy + at, text + tl_rng_below(key, round, 3 * i + 3, bytes - 300), bytes - at < 300 ? bytes - at : 300);
        }
        FILE *file = fopen(in_dir("damaged"), "wb");
        fwrite(copy, 1, n, file);
        fclose(file);
        free(copy);
        err.status = TL_OK;
        if (tl_log_read(&f, in_dir("damaged"), &err) != TL_OK) {
            if (err.status != TL_EFORMAT)
                fail_msg("seed %" PRIu64 ", round %" PRIu64 ": %s", seed, round, err.message);
            continue;
        }
        for (int i = 0; i < tl_log_steps(f); i++)
            for (int k = 0; k < tl_log_steps(good); k++) {
                tl_log_comparison c;
                assert_int_equal(tl_log_compare(&c, tl_log_step_at(f, i), tl_log_step_at(good, k)), TL_OK);
                tl_log_comparison_free(&c);
            }
        tl_log_file_close(f);
        if (round < 12) /* and the program says something sensible */
            assert_in_range(diff("plain", "damaged"), 0, 2);
    }
    tl_log_file_close(good);
    tl_free_raw(text);
}

/* ---- what goes wrong while a log is written ---- */

static void a_full_disk_stops_the_log_not_the_run(void **unused)
{
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_sgd_new(m, .lr = 0.1);
    (void)unused;
    if (access("/dev/full", W_OK) != 0)
        TL_SKIP();
    tl_log_open(t, in_dir("x"));
    assert_int_equal(tl_log_close(t), TL_OK);
    if (tl_log_open(t, "/dev/full") == TL_OK) { /* the header is the first to meet it */
        tl_log_close(t);
        fail_msg("the full device took a log");
    }
    assert_non_null(strstr(tl_error(t), "No space left"));
    tl_error_clear(t);
    tl_log_open(t, in_dir("x"));
    assert_non_null(freopen("/dev/full", "w", t->log->f)); /* the disk fills up later */
    for (int i = 0; i < 3; i++) {
        tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(3000), TL_INIT_ONES, 1);
        tl_backward(t, tl_sum(t, tl_square(t, w), TL_ALL, false));
        assert_int_equal(tl_step(o, t), TL_OK);
        tl_tape_reset(t);
    }
    assert_int_equal(tl_opt_steps(o), 3);
    assert_non_null(strstr(tl_log_error(t), "cannot be written further (step 1): No space left"));
    assert_string_equal(tl_error(t), "");
    assert_int_equal(tl_log_close(t), TL_EIO);
    assert_non_null(strstr(tl_error(t), "cannot be written further"));
    tl_free(o, t, m);
}

static void wrong_use_is_refused(void **unused)
{
    tl_tape *t = tl_tape_new(NULL);
    (void)unused;
    assert_int_equal(tl_log_open(t, in_dir("no/such/folder")), TL_EIO);
    assert_non_null(strstr(tl_error(t), "No such file"));
    tl_error_clear(t);
    assert_int_equal(tl_log_open(t, in_dir("x"), .every = -1), TL_EDOMAIN);
    tl_error_clear(t);
    assert_int_equal(tl_log_open(t, in_dir("x")), TL_OK);
    assert_int_equal(tl_log_open(t, in_dir("y")), TL_EUSAGE);
    tl_error_clear(t);
    assert_int_equal(tl_log_close(t), TL_OK);
    assert_int_equal(tl_log_close(t), TL_OK);
    tl_log_open(t, in_dir("x"));
    tl_free(t);
}

/* Every allocation fails once: the run goes on without its log, or says why it cannot. */
static void out_of_memory(void **unused)
{
    (void)unused;
    for (int64_t n = 1; n < 400; n += 3) {
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_opt *o = tl_sgd_new(m, .lr = 0.1);
        tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(30, 30), TL_INIT_ONES, 1);
        tl_alloc_fail_after(n);
        tl_log_open(t, in_dir("x"), .keep = 1);
        tl_backward(t, tl_sum(t, tl_matmul(t, tl_tanh(t, w), w), TL_ALL, false));
        tl_step(o, t);
        tl_alloc_fail_after(0);
        tl_status s = tl_log_close(t);
        assert_true(s == TL_OK || (s == TL_ENOMEM && tl_failed(t)));
        tl_free(o, t, m);
    }
}

/* What was computed for gradients that were dropped is no part of a step. */
static void dropped_gradients_leave_no_trace(void **unused)
{
    (void)unused;
    for (int drop = 0; drop < 2; drop++) {
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_opt *o = tl_sgd_new(m, .lr = 0.1);
        tl_log_open(t, in_dir(drop ? "dropped" : "plain"));
        for (int i = 0; i < 2 + drop; i++) {
            tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(30), TL_INIT_ONES, 1);
            tl_backward(t, tl_sum(t, tl_square(t, w), TL_ALL, false));
            if (i < drop)
                tl_grad_clear(t);
            else
                tl_step(o, t);
            tl_tape_reset(t);
        }
        assert_int_equal(tl_log_close(t), TL_OK);
        tl_free(o, t, m);
    }
    assert_int_equal(diff("plain", "dropped"), 0);
    says("2 steps are the same");
}

/* ---- batches that lie along another axis: said so, not guessed ---- */

static void second_axis(const char *path, int64_t micro)
{
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_sgd_new(m, .lr = 0.1);
    tl_log_open(t, path);
    for (int64_t first = 0; first < 4; first += micro) { /* [S, B, C]: columns first .. of a table of 3 x 4 x 2 */
        float x[24];
        for (int64_t i = 0; i < 3 * micro * 2; i++)
            x[i] = (float)((i / (micro * 2) * 4 + first + i / 2 % micro) * 2 + i % 2);
        tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(5, 2), TL_INIT_NORMAL, 1);
        tl_tensor flat = tl_reshape(t, tl_data(t, x, TL_F32, TL_DIMS(3, micro, 2)), TL_DIMS(3 * micro, 2));
        tl_backward(t, tl_sum(t, tl_tanh(t, tl_matmul(t, flat, tl_transpose(t, w, 0, 1))), TL_ALL, false));
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
    second_axis(in_dir("whole"), 4);
    second_axis(in_dir("halves"), 2);
    second_axis(in_dir("again"), 2);
    assert_int_equal(diff("again", "halves"), 0);
    assert_null(strstr(out, "could not be compared"));
    if (diff("whole", "halves") == 1) /* the gradient: the rows' order is another one, and its sum may round otherwise */
        says("the gradient of w");
    says(strstr(out, "No difference") != NULL ? "could not be compared" : "the fault is in this op or in what made the others");
}

static void distances_and_pictures(void **unused)
{
    float a[8] = {0, 1, 1, 2, -1, 5, 0, 3}, b[8] = {-0.0f, 1, 1.0000001f, 2, -1, 5, 0, 3};
    tl_shape s = TL_DIMS(2, 4);
    tl_array x = tl_array_make(TL_F32, &s, a), y = tl_array_make(TL_F32, &s, b);
    tl_value_difference d;
    tl_err err = {.status = TL_OK};
    uint32_t nan1 = 0x7fc00001u, nan2 = 0xffc00000u, tiny = 1, minus = 0x80000001u;
    (void)unused;
    assert_int_equal(tl_value_compare(&d, &x, &y, &err), TL_OK);
    assert_int_equal(d.differ, 2);
    assert_int_equal(d.first, 0);
    assert_int_equal(d.ulps[1], 2);
    assert_int_equal(d.rows, 2);
    assert_int_equal(d.columns, 4);
    assert_int_equal(d.cell[0][0], 1);
    assert_int_equal(d.cell[1][0], 0);
    assert_true(tl_ulp_distance(TL_F32, &nan1, &nan2) == 0);
    assert_true(tl_ulp_distance(TL_F32, &nan1, &tiny) == UINT64_MAX);
    assert_true(tl_ulp_distance(TL_F32, &tiny, &minus) == 3); /* -tiny, -0, +0, tiny */
    double p = 1.7976931348623157e308, q = -p;
    assert_true(tl_ulp_distance(TL_F64, &p, &q) > (uint64_t)1 << 63);
    tl_shape none = TL_DIMS(0, 4);
    x = tl_array_make(TL_F32, &none, a);
    assert_int_equal(tl_value_compare(&d, &x, &x, &err), TL_OK);
    assert_int_equal(d.first, -1);
    assert_int_equal(tl_value_compare(&d, &x, &y, &err), TL_ESHAPE);
}

static void keys_round_trip(void **unused)
{
    static const char *const good[] = {"f1", "f12/1", "b12.3", "b12.3/255", "u5", "3:f7", "254:b1.1", "f16777215"};
    static const char *const bad[] = {"", "f", "f0", "g1", "b3", "b3.", "b3.0", "f1/0", "f1/256", "f16777216", "1:", "1:u4", "255:f1", "f1x", "f1/"};
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
    assert_true(tl_log_key_parse("1:b1.1", 6) < tl_log_key_parse("u1", 2));
}

const struct CMUnitTest tl_tests_log[] = {
    cmocka_unit_test(keys_round_trip),
    cmocka_unit_test(distances_and_pictures),
    cmocka_unit_test_setup_teardown(a_log_holds_the_hash_of_the_bytes, begin, end),
    cmocka_unit_test_setup_teardown(logging_changes_no_bit, begin, end),
    cmocka_unit_test_setup_teardown(one_run_has_one_log, begin, end),
    cmocka_unit_test_setup_teardown(a_flipped_bit_is_found, begin, end),
    cmocka_unit_test_setup_teardown(the_first_fast_matmul_is_named, begin, end),
    cmocka_unit_test_setup_teardown(other_programs_and_data, begin, end),
    cmocka_unit_test_setup_teardown(lengths_samples_and_appended_logs, begin, end),
    cmocka_unit_test_setup_teardown(unreadable_logs, begin, end),
    cmocka_unit_test_setup_teardown(logs_cut_off_by_a_crash, begin, end),
    cmocka_unit_test_setup_teardown(damaged_logs_are_read, begin, end),
    cmocka_unit_test_setup_teardown(a_full_disk_stops_the_log_not_the_run, begin, end),
    cmocka_unit_test_setup_teardown(wrong_use_is_refused, begin, end),
    cmocka_unit_test_setup_teardown(out_of_memory, begin, end),
    cmocka_unit_test_setup_teardown(dropped_gradients_leave_no_trace, begin, end),
    cmocka_unit_test_setup_teardown(a_batch_on_another_axis_is_not_guessed, begin, end),
};
const size_t tl_tests_log_count = sizeof tl_tests_log / sizeof *tl_tests_log;
