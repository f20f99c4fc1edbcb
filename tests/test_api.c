/* test_api.c: no public function crashes, hangs or fails in silence, whatever it is given.
 *
 * tests/api_rows.t.h has a row for each, with a good call. The test makes that call, and then, for
 * every argument, the same call with something bad there: NULL, handles that are stale, foreign or
 * forged, shapes and numbers at their extremes. What can only be wrong must be said - an error with
 * a message - and leave model, tape and optimizer as they were. Calls run in children, so that a
 * crash has the name of its call. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/api_calls.h"
#include "tests/support/declared.h"

extern const struct CMUnitTest tl_tests_api[];
extern const size_t tl_tests_api_count;

/* ---- what there is, as text ---- */

static uint64_t bytes_of(tl_tape *t, tl_tensor x)
{
    char hex[65];
    return tl_sha256(t, x, hex) == TL_OK ? strtoull(hex + 48, NULL, 16) : 0;
}

static int accumulated(const api *a, char *buf, size_t cap)
{
    int n = tl_accumulating_count(a->t), used = snprintf(buf, cap, "gradients");
    for (int i = 0; i < n; i++) {
        tl_accumulating g = tl_accumulating_at(a->t, i);
        used += snprintf(buf + used, cap - (size_t)used, " %s:%d:%s", g.param, g.call, g.kind);
    }
    return used;
}

static void state_of(const api *a, bool layer, char *buf, size_t cap)
{
    int n = 0;
#define ADD(...) (n += snprintf(buf + n, cap - (size_t)n, __VA_ARGS__))
    ADD("mode %u steps %lld", tl_mode(a->t), (long long)tl_opt_steps(a->opt));
    for (int i = 0; i < TENSORS; i++)
        ADD(" %04x", (unsigned)bytes_of(a->t, a->x[i]) & 0xffff);
    for (int k = 0; k < 2; k++) {
        tl_model *m = k ? a->m2 : a->m;
        ADD("; model");
        for (int i = 0; i < tl_model_count(m); i++) {
            tl_named e = tl_model_at(m, i);
            if (layer && k == 0 && strcmp(e.name, "w") != 0)
                continue; /* a layer may have made a parameter: see the call that follows */
            ADD(" %.40s %d %d %04x", e.name, e.param, e.frozen,
                (unsigned)bytes_of(k ? a->t2 : a->t, e.tensor) & 0xffff);
        }
    }
#undef ADD
}

/* Each takes address space for arenas, of which there is as much as api_limit_memory says. */
enum { CALLS_A_CHILD = 60 };

/* How far a child has come with a function; shared with it. */
typedef struct {
    int bad, variant;
    bool done;
    int calls;
    int failures;
    char what[96];
} progress;

static bool heard(const char *message, char *out)
{
    if (message[0] == '\0')
        return false;
    snprintf(out, TL_MESSAGE_MAX, "%s", message);
    return true;
}

static void complain(progress *p, int row, const api *a, const char *why)
{
    p->failures++;
    if (a->bad < 0)
        print_error("%s: the good call: %s\n", api_rows[row].name, why);
    else
        print_error("%s, argument %d, %s: %s\n", api_rows[row].name, a->bad + 1, a->what, why);
}

static void judge(progress *p, int row, api *a, const char *before, const char *grads)
{
    char after[8192], grads_after[1024], text[TL_MESSAGE_MAX + 64];
    bool said = a->said[0] != '\0';
    void *speakers[] = {a->t,   a->t2,    a->clear,  a->m,        a->m2,
                        a->opt, a->graph, a->orphan, a->compiled, a->orphan_compiled};
    accumulated(a, grads_after, sizeof grads_after);
    if (!said && a->err.status != TL_OK)
        said = heard(a->err.message, a->said);
    for (size_t i = 0; i < sizeof speakers / sizeof *speakers; i++)
        if (speakers[i] != NULL && tl_failed(speakers[i])) {
            said |= heard(tl_error(speakers[i]), a->said);
            tl_error_clear(speakers[i]);
        }
    if (strstr(a->said, "(null)") != NULL) {
        snprintf(text, sizeof text, "a message with (null) in it: %s", a->said);
        complain(p, row, a, text);
    }
    bool fine = api_rows[row].kind == QUIET;
    if (a->bad < 0) {
        if (!fine && (said || a->failing)) {
            snprintf(text, sizeof text, "fails: %s", a->said);
            complain(p, row, a, text);
        }
        return;
    }
    if (!fine && a->must && !a->mute && !said)
        complain(p, row, a, "no message");
    if (!fine && a->must && !a->failing)
        complain(p, row, a, "what came back does not say that it has failed");
    state_of(a, api_rows[row].kind == LAYER, after, sizeof after);
    if (a->must || said) {
        if (strcmp(before, after) != 0) {
            complain(p, row, a, "has changed something");
            print_error("    said  : %s\n    before: %s\n    after : %s\n", a->said, before, after);
        }
        if (strcmp(grads, grads_after) != 0)
            complain(p, row, a, "has changed gradients");
    }
    if (a->must && !fine) { /* the good call still works */
        char what[sizeof a->what];
        memcpy(what, a->what, sizeof what);
        tl_err_clear(&a->err);
        int bad = a->bad;
        a->bad = -1;
        a->n_in = a->n_shapes = 0;
        if (row == api_find("tl_grad_at") || row == api_find("tl_step_at"))
            tl_backward(a->t, tl_sum(a->t, tl_square(a->t, a->x[P]), TL_ALL, false));
        api_rows[row].call(a);
        a->bad = bad;
        memcpy(a->what, what, sizeof what);
        if (a->failing) {
            snprintf(text, sizeof text, "the good call fails afterwards: %s",
                     a->err.message[0] ? a->err.message : tl_error(a->t));
            complain(p, row, a, text);
        }
    }
}

/* One call with argument `bad` spoiled; how many ways there are to do it, -1: no such argument. */
static int one_call(progress *p, int row, api *a, int bad, int variant)
{
    static char before[8192], grads[1024];
    unsigned needs = a->needs;
    temp_dir dir = a->dir;
    memset(a, 0, sizeof *a);
    a->needs = needs;
    a->dir = dir;
    api_paths(a);
    api_set_up(a);
    if (tl_failed(a->t) || tl_failed(a->m))
        complain(p, row, a, tl_error(a->t));
    a->bad = bad;
    a->variant = variant;
    accumulated(a, grads, sizeof grads);
    state_of(a, api_rows[row].kind == LAYER, before, sizeof before);
    p->bad = bad;
    p->variant = variant;
    alarm(20);
    api_rows[row].call(a);
    alarm(0);
    memcpy(p->what, a->what, sizeof p->what);
    p->calls++;
    bool there = bad < a->place, made = bad < 0 || variant < a->variants;
    if (made)
        judge(p, row, a, before, grads);
    api_tear_down(a);
    return !there ? -1 : bad < 0 ? 0 : a->variants;
}

/* Where the walk goes on after argument bad in that variant, of so many. */
static void next_call(progress *p, int variants)
{
    if (variants < 0) {
        p->done = true;
    } else if (p->variant + 1 < variants) {
        p->variant++;
    } else {
        p->bad++;
        p->variant = 0;
    }
}

static void child(progress *p, int row, const temp_dir *dir)
{
    static api a;
    static const int crash[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    for (size_t i = 0; i < sizeof crash / sizeof *crash; i++)
        signal(crash[i], SIG_DFL); /* cmocka's handlers would go on with the tests in here */
    a.dir = *dir;
    api_limit_memory();
    int bad = p->bad, variant = p->variant;
    if (bad >= 0 && api_rows[row].kind != ALONE) { /* so that what it needs is known */
        one_call(p, row, &a, -1, 0);
        p->bad = bad, p->variant = variant;
    }
    for (int n = 0; n < CALLS_A_CHILD && !p->done; n++) {
        next_call(p, one_call(p, row, &a, p->bad, p->variant));
        if (api_rows[row].kind == ALONE)
            break;
    }
    fflush(NULL);
    _exit(0);
}

static int check(progress *p, int row, const temp_dir *dir)
{
    memset(p, 0, sizeof *p);
    p->bad = -1;
    for (int crashes = 0; !p->done && crashes < 100;) {
        int status = 0;
        fflush(NULL);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0)
            child(p, row, dir);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (status == 0)
            continue;
        print_error("%s, argument %d, variant %d (after %s): %s %d\n", api_rows[row].name,
                    p->bad + 1, p->variant, p->what, WIFSIGNALED(status) ? "signal" : "exit",
                    WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        p->failures++;
        crashes++;
        next_call(p, 1 << 20); /* go on behind it: the next variant; too far is noticed there */
    }
    return p->failures;
}

/* TL_TEST_API names functions to try, with commas between; all without it. */
static void bad_arguments_are_errors(void **unused)
{
    progress *p = mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    temp_dir dir;
    int failures = 0, calls = 0;
    const char *only = getenv("TL_TEST_API");
    (void)unused;
    assert_true(p != MAP_FAILED && temp_dir_make(&dir));
    assert_true(api_files(&dir));
    for (int i = 0; i < api_row_count; i++) {
        if (api_rows[i].kind == NOT || (only != NULL && strstr(only, api_rows[i].name) == NULL))
            continue;
        failures += check(p, i, &dir);
        calls += p->calls;
    }
    temp_dir_remove(&dir);
    munmap(p, sizeof *p);
    print_message("%d rows, %d calls\n", api_row_count, calls);
    assert_int_equal(failures, 0);
}

/* ---- objects that end before what needs them ---- */

static void a_model_outlives_its_tapes_and_optimizers(void **unused)
{
    static const float ones[6] = {1, 1, 1, 1, 1, 1};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_sgd_new(m, .lr = 0.5);
    tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(2, 3), TL_INIT_ONES, 1);
    tl_tensor row = tl_select(t, w, 0, 1), x = tl_data(m, ones, TL_F32, TL_DIMS(2, 3));
    (void)unused;
    tl_free(m);
    assert_true(tl_item(t, tl_select(t, row, 0, 2)) == 1); /* a view of it */
    assert_int_equal(tl_backward(t, tl_sum(t, tl_mul(t, w, x), TL_ALL, false)), TL_OK);
    assert_int_equal(tl_step(o, t), TL_OK);
    assert_true(tl_item(t, tl_select(t, row, 0, 2)) == 0.5);
    tl_free(t, o);
}

typedef struct {
    tl_model *m;
    tl_opt *o;
} trained;

static void training(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    const trained *k = ctx;
    tl_tensor w = tl_param(t, k->m, "w", TL_F32, TL_DIMS(2, 3), TL_INIT_ONES, 1);
    (void)n, (void)n_out;
    out[0] = tl_sum(t, tl_mul(t, w, in[0]), TL_ALL, false);
    tl_backward(t, out[0]);
    tl_step(k->o, t);
}

/* The optimizer goes first, then the model: the program's graph holds them. */
static void an_optimizer_outlives_the_graphs_of_its_steps(void **unused)
{
    static const float ones[6] = {1, 1, 1, 1, 1, 1};
    trained k = {.m = tl_model_new(.seed = 1)};
    (void)unused;
    k.o = tl_adamw_new(k.m, .lr = 0.5, .clip = 1);
    tl_tape *t = tl_tape_new(k.m);
    tl_compiled *c = tl_compile(t, training, 1, &k);
    tl_tensor x = tl_data(k.m, ones, TL_F32, TL_DIMS(2, 3)), loss;
    assert_int_equal(tl_run(c, &x, 1, &loss), TL_OK);
    double first = tl_item(t, loss);
    tl_free(k.o, k.m);
    assert_int_equal(tl_run(c, &x, 1, &loss), TL_OK);
    assert_true(tl_item(t, loss) < first);
    tl_free(t, c);
}

static void resets(tl_tape *t, void *ctx)
{
    (void)t;
    tl_tape_reset(ctx);
}
static void resetting(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    (void)n, (void)n_out;
    tl_host(t, TL_BEFORE, resets, ctx);
    out[0] = tl_tanh(t, in[0]);
}

static void a_hook_that_resets_the_tape_makes_the_inputs_stale(void **unused)
{
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = tl_fill(t, TL_F32, TL_DIMS(3), 1), y;
    tl_compiled *c = tl_compile(t, resetting, 1, t);
    (void)unused;
    assert_int_equal(tl_run(c, &x, 1, &y), TL_ESTALE);
    assert_true(tl_is_none(y) && strstr(tl_error(t), "before the tape was reset") != NULL);
    tl_free(c, t);
}

static void summing(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    (void)n, (void)n_out, (void)ctx;
    tl_require_grad(t, in[0]);
    out[0] = tl_sum(t, tl_square(t, in[0]), TL_ALL, false);
    tl_backward(t, out[0]);
}

static void a_log_needs_no_model(void **unused)
{
    temp_dir dir;
    char log[1024];
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = tl_fill(t, TL_F32, TL_DIMS(3), 1), y;
    tl_compiled *c = tl_compile(t, summing, 1, NULL);
    (void)unused;
    assert_true(temp_dir_make(&dir));
    assert_int_equal(tl_log_open(t, temp_dir_file(log, &dir, "log")), TL_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tl_run(c, &x, 1, &y), TL_OK);
        tl_log_step(t);
    }
    assert_true(tl_item(t, y) == 3);
    assert_int_equal(tl_log_close(t), TL_OK);
    tl_free(c, t);
    temp_dir_remove(&dir);
}

/* ---- the table is whole ---- */

static bool has_row(const char *word)
{
    for (int i = 0; i < api_row_count; i++)
        if (strcmp(api_rows[i].name, word) == 0)
            return true;
    return false;
}

static void every_public_function_has_a_row(void **unused)
{
    static name_list declared;
    int functions = 0, missing = 0;
    (void)unused;
    add_declared(&declared, "tally_extend.h");
    for (int i = 0; i < declared.n; i++) {
        functions += declared.name[i].function;
        if (declared.name[i].function && !has_row(declared.name[i].text)) {
            print_error("%s has no row in tests/api_rows.t.h\n", declared.name[i].text);
            missing++;
        }
    }
    print_message("%d functions\n", functions);
    assert_true(functions > 250);
    assert_int_equal(missing, 0);
}

const struct CMUnitTest tl_tests_api[] = {
    cmocka_unit_test(every_public_function_has_a_row),
    cmocka_unit_test(bad_arguments_are_errors),
    cmocka_unit_test(a_model_outlives_its_tapes_and_optimizers),
    cmocka_unit_test(an_optimizer_outlives_the_graphs_of_its_steps),
    cmocka_unit_test(a_hook_that_resets_the_tape_makes_the_inputs_stale),
    cmocka_unit_test(a_log_needs_no_model),
};
const size_t tl_tests_api_count = sizeof tl_tests_api / sizeof *tl_tests_api;
