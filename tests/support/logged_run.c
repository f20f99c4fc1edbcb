/* logged_run.c: a small Llama-like model on 12 samples a step, logged. */
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

#include "autograd/op.h"
#include "tensor/isa.h"
#include "tensor/threads.h"
#include "tests/support/logged_run.h"
#include "tests/temp_dir.h"

#ifndef TL_BUILD
#define TL_BUILD "build"
#endif

static temp_dir dir;

int logged_begin(void **unused)
{
    (void)unused;
    return temp_dir_make(&dir) ? 0 : -1;
}

int logged_end(void **unused)
{
    (void)unused;
    temp_dir_remove(&dir);
    return 0;
}

const char *logged_file(const char *name)
{
    static char path[4][1024];
    static int k;
    k = (k + 1) % 4;
    return temp_dir_file(path[k], &dir, name);
}

/* ---- the run ---- */

enum { SEQ = 8, VOCAB = 11 };

static int64_t flip_at, step_now;
char logged_weights[65];

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

static const tl_op flip_op = {.name = "flip",
                              .n_in = 1,
                              .n_out = 1,
                              .traits = TL_NONDIFF,
                              .shape = same_shape,
                              .forward = flip_forward};
static void pass_vjp(tl_vjp *g) { g->dx[0] = tl_apply1(TL_AT(g->t), &flip_op, NULL, g->dy, 1); }
static const tl_op pass_op = {.name = "pass",
                              .n_in = 1,
                              .n_out = 1,
                              .shape = same_shape,
                              .forward = copy_forward,
                              .vjp = pass_vjp};

/* Places where a graph puts other ops: swiglu for the product, add_rms_norm for the sum and its
 * norm. */
static tl_tensor replaceable(tl_tape *t, tl_model *m, const char *name, tl_tensor a, tl_tensor b)
{
    char gamma[64];
    snprintf(gamma, sizeof gamma, "%s.gamma", name);
    tl_tensor h = tl_add(t, tl_mul(t, tl_silu(t, a), b), b);
    tl_tensor normed = tl_rms_norm(t, h,
                                   tl_param(t, m, gamma, TL_F32, TL_DIMS(16), TL_INIT_ONES, 1),
                                   1e-6);
    return tl_add(t, h, tl_tanh(t, normed));
}

static tl_tensor network(tl_tape *t, tl_model *m, const logged_run *r, tl_tensor ids)
{
    tl_tensor h = tl_embedding(
        t, tl_param(t, m, "embed", TL_F32, TL_DIMS(VOCAB, 16), TL_INIT_NORMAL, 1), ids);
    float table[SEQ * 16]; /* does not grow with the batch */
    for (int i = 0; i < SEQ * 16; i++)
        table[i] = (float)(i % 7) / 8;
    h = tl_add(t, h, tl_constant(t, table, TL_F32, TL_DIMS(SEQ, 16)));
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
        h = r->replaceable ? replaceable(t, m, name, a, b) : tl_add(t, a, b);
        if (i == 0)
            h = tl_apply1(TL_AT(t), &pass_op, NULL, &h, 1);
        if (r->segment)
            tl_segment_end(t, from, &h, 1, false);
    }
    return tl_linear(t, m, "out", h, VOCAB);
}

/* What a program is given beside its inputs. */
typedef struct {
    const logged_run *r;
    tl_model *m;
    tl_opt *o;
    tl_tensor total;
} setting;

static void micro_batch(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *result, int n_out,
                        void *ctx)
{
    const setting *s = ctx;
    (void)n_in, (void)n_out;
    result[0] = tl_cross_entropy(t, network(t, s->m, s->r, in[0]), in[0], TL_MEAN,
                                 .count = tl_scalar(t, TL_F64, LOGGED_BATCH * SEQ),
                                 .total = s->r->anew ? TL_NONE : s->total);
    tl_backward(t, result[0]);
}

static void last_micro_batch(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *result,
                             int n_out, void *ctx)
{
    micro_batch(t, in, n_in, result, n_out, ctx);
    tl_step(((setting *)ctx)->o, t);
}

static void train_step(const logged_run *r, tl_tape *t, setting *s, tl_compiled *micro,
                       tl_compiled *whole)
{
    tl_write(s->m, s->total, (double[]){0}, 8);
    for (int64_t first = 0; first < LOGGED_BATCH; first += r->micro_batch) {
        int64_t n = first + r->micro_batch < LOGGED_BATCH ? r->micro_batch : LOGGED_BATCH - first,
                ids[LOGGED_BATCH * SEQ];
        for (int64_t i = 0, at = first * SEQ; i < n * SEQ; i++, at++)
            ids[i] = (at * (7 + step_now) + at / (r->other_data ? 5 : 3)) % VOCAB;
        tl_tensor x = tl_data(t, ids, TL_I64, TL_DIMS(n, SEQ)), loss;
        bool last = first + n == LOGGED_BATCH;
        if (r->compile)
            tl_run(last ? whole : micro, &x, 1, &loss);
        else
            (last ? last_micro_batch : micro_batch)(t, &x, 1, &loss, 1, s);
        tl_tape_reset(t);
    }
    assert_string_equal(tl_error(t), "");
}

void logged_train(const char *path, logged_run r)
{
    r.steps = r.steps ? r.steps : 4;
    r.micro_batch = r.micro_batch ? r.micro_batch : LOGGED_BATCH;
    r.layers = r.layers ? r.layers : 2;
    flip_at = r.flip_at;
    tl_threads_set(r.threads);
    const char *was = tl_isa_now()->name;
    if (r.isa != NULL)
        assert_true(tl_isa_force(r.isa));
    tl_model *m = tl_model_new(.seed = r.seed ? r.seed : 1);
    tl_tape *t = tl_tape_new(m);
    setting s = {&r, m, tl_adamw_new(m, .lr = r.lr > 0 ? r.lr : 1e-2, .clip = 1),
                 tl_data(m, (double[]){0}, TL_F64, TL_SCALAR)};
    tl_compiled *micro = tl_compile(t, micro_batch, 1, &s),
                *whole = tl_compile(t, last_micro_batch, 1, &s);
    if (path != NULL)
        assert_int_equal(tl_log_open_at(TL_AT(t), path, r.log), TL_OK);
    for (step_now = r.log.first ? r.log.first : 1; r.steps-- > 0; step_now++)
        train_step(&r, t, &s, micro, whole);
    assert_int_equal(tl_log_close(t), TL_OK);
    tl_model_sha256(m, logged_weights);
    tl_free(micro, whole, s.o, t, m);
    tl_threads_set(0);
    assert_true(tl_isa_force(was));
}

/* ---- tally-diff ---- */

static char out[1 << 16];

int logged_tool(const char *arguments)
{
    char command[4096];
    snprintf(command, sizeof command, "cd '%s' && '%s/tally-diff' %s 2>&1", dir.path, TL_BUILD,
             arguments);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    size_t n = fread(out, 1, sizeof out - 1, f);
    out[n] = '\0';
    int status = pclose(f);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

int logged_diff(const char *a, const char *b)
{
    char arguments[2048];
    snprintf(arguments, sizeof arguments, "'%s' '%s'", a, b);
    return logged_tool(arguments);
}

void logged_says(const char *text)
{
    if (strstr(out, text) == NULL)
        fail_msg("'%s' is not in:\n%s", text, out);
}

void logged_says_not(const char *text)
{
    if (strstr(out, text) != NULL)
        fail_msg("'%s' is in:\n%s", text, out);
}
