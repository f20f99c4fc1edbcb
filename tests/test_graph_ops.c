/* Every op, through its cases: traced, planned and run, it gives the bits it gives when it is
 * called - outputs and gradients, in every dtype and layout, at the first run and at later ones
 * with other values. TL_TEST_SEED repeats a run. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/graph/graph.h"
#include "autograd/model.h"
#include "tests/cases/cases.h"

extern const struct CMUnitTest tl_tests_graph_ops[];
extern const size_t tl_tests_graph_ops_count;

/* What the traced program needs to know: the case, and whether a cotangent follows its inputs. */
typedef struct {
    const case_run *r;
    bool backward;
} plan;

/* Inputs: those of the case that are present, then the cotangent. Outputs: those of the case, then
 * the gradients. */
static void program(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    const plan *p = ctx;
    tl_tensor leaf[CASE_INPUTS] = {TL_NONE},
              made[CASE_OUTPUTS]; /* a call may set more than it has */
    int at = 0;
    for (int i = 0; i < p->r->n; i++) {
        if (p->r->in[i].present)
            leaf[i] = in[at++];
        if (p->backward && tl_case_floating(&p->r->in[i]))
            tl_require_grad(t, leaf[i]);
    }
    int n = tl_case_call(t, p->r, leaf, made);
    for (int i = 0; i < n && i < n_out; i++)
        out[i] = made[i];
    if (!p->backward)
        return;
    tl_backward(t, out[0], .cotangent = in[n_in - 1]);
    for (int i = 0; i < p->r->n; i++)
        if (tl_case_floating(&p->r->in[i]))
            out[n++] = tl_grad(t, leaf[i]);
}

static int wrong, compared;
static unsigned long long seed0;

static void complain(const char *label, const char *what, int k, const char *why)
{
    if (wrong++ < 30)
        fprintf(stderr, "[ seed %llu ] %s: %s %d: %s\n", seed0, label, what, k, why);
}

static void compare(tl_tape *t, const case_run *r, const case_result *want, const tl_tensor *out)
{
    int n = 0;
    for (int i = 0; i < want->n_out + CASE_INPUTS; i++) {
        const ref_tensor *w = i < want->n_out ? &want->out[i] : &want->grad[i - want->n_out];
        if (w->data == NULL)
            continue;
        ref_tensor got = tl_case_read(t, out[n++]);
        compared++;
        if (got.data == NULL || !ref_same_bits(&got, w))
            complain(r->label, i < want->n_out ? "output" : "gradient",
                     i < want->n_out ? i : i - want->n_out,
                     got.data == NULL ? tl_error(t) : "other bits");
        ref_free(&got);
    }
}

/* One set of values: called on t, and run through the graph on u. */
static void once(tl_tape *t, tl_tape *u, tl_compiled **c, plan *p, uint64_t *seed, case_kind kind)
{
    ref_tensor leaf[CASE_INPUTS], dy = {0};
    case_result want;
    tl_tensor in[CASE_INPUTS + 1], out[CASE_OUTPUTS + CASE_INPUTS];
    int n = 0, n_out = 0;
    tl_case_fill(p->r, seed, kind, leaf);
    if (p->backward) {
        tl_case_result(t, p->r, leaf, NULL, &want);
        dy = tl_case_cotangent(&want.out[0], seed, kind);
        tl_case_result_free(&want);
    }
    tl_case_result(t, p->r, leaf, p->backward ? &dy : NULL, &want);
    for (int i = 0; i < want.n_out + CASE_INPUTS; i++)
        n_out += (i < want.n_out ? want.out[i] : want.grad[i - want.n_out]).data != NULL;
    for (int i = 0; i < p->r->n; i++)
        if (p->r->in[i].present)
            in[n++] = tl_case_rows(u, &p->r->in[i], &leaf[i]);
    if (p->backward)
        in[n++] = tl_case_leaf(u, &dy);
    if (*c == NULL)
        *c = tl_compile(u, program, n_out, p);
    if (tl_failed(t))
        complain(p->r->label, "call", 0, tl_error(t));
    else if (tl_run(*c, in, n, out) != TL_OK)
        complain(p->r->label, "graph", 0, tl_error(u));
    else
        compare(u, p->r, &want, out);
    tl_error_clear(t);
    tl_error_clear(u);
    tl_tape_reset(u);
    tl_case_result_free(&want);
    ref_free(&dy);
    tl_case_free(p->r->n, leaf);
}

static void every_op(bool backward)
{
    const char *env = getenv("TL_TEST_SEED");
    uint64_t seed = seed0 = env != NULL ? strtoull(env, NULL, 0) : 1;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m), *u = tl_tape_new(m);
    wrong = compared = 0;
    printf("TL_TEST_SEED=%llu\n", seed0);
    for (int i = 0; i < tl_case_count(); i++) {
        const tl_case *c = tl_case_at(i);
        tl_dtype dtype;
        if (backward && !tl_case_differentiable(c))
            continue;
        for (int d = 0; tl_case_dtype(c, d, &dtype); d++) {
            case_run r = tl_case_run(c, dtype);
            plan p = {&r, backward};
            tl_compiled *g = NULL;
            for (int k = 0; k < 3; k++)
                once(t, u, &g, &p, &seed, k == 0 ? CASE_PLAIN : CASE_HARD);
            tl_free(g);
        }
    }
    tl_free(t, u, m);
    printf("%d comparisons, %d differ\n", compared, wrong);
    assert_int_equal(wrong, 0);
    assert_true(compared > (backward ? 1000 : 2000));
}

static void every_op_forward(void **state) { (void)state, every_op(false); }
static void every_op_with_backward(void **state) { (void)state, every_op(true); }

const struct CMUnitTest tl_tests_graph_ops[] = {
    cmocka_unit_test(every_op_forward),
    cmocka_unit_test(every_op_with_backward),
};
const size_t tl_tests_graph_ops_count = sizeof tl_tests_graph_ops / sizeof *tl_tests_graph_ops;
