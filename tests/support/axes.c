/* axes.c: see axes.h. */
#include "tests/support/axes.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>

#include "autograd/internal.h"
#include "tests/support/contract.h"

enum { OPS = 256 };

static const char *const names[] = {
#define X(id, text) text,
    AXES(X)
#undef X
};

static uint64_t seed;
static int wrong, compared, wrong_before,
    compared_before; /* before: when an axis was last recorded */
static bool any, good;
static bool ran[OPS][AXIS_COUNT];

void tl_axes_begin(void)
{
    const char *env = getenv("TL_TEST_SEED");
    seed = env != NULL ? strtoull(env, NULL, 0) : 1;
    printf("TL_TEST_SEED=%llu\n", (unsigned long long)seed);
    wrong = compared = wrong_before = compared_before = 0;
}

uint64_t tl_axes_seed(void) { return seed; }

void tl_axes_end(void)
{
    printf("%d comparisons, %d differ\n", compared, wrong);
    assert_int_equal(wrong, 0);
    assert_true(compared > 0);
}

static int index_of(const tl_op *op)
{
    for (int i = 0; i < tl_op_count() && i < OPS; i++)
        if (tl_op_at(i) == op)
            return i;
    return -1;
}

void tl_axes_ran(const tl_tape *t, test_axis axis)
{
    any = compared > compared_before;
    good = wrong == wrong_before;
    compared_before = compared;
    wrong_before = wrong;
    tl_axes_ran_too(t, axis);
}

void tl_axes_ran_too(const tl_tape *t, test_axis axis)
{
    for (uint32_t k = 0; any && k < t->n_nodes; k++) {
        int i = index_of(t->node[k].op);
        if (i < 0 || (ran[i][axis] && good))
            continue;
        ran[i][axis] = true;
        (good ? tl_ran : tl_ran_failed)(t->node[k].op->name, names[axis]);
    }
}

int tl_axes_finish(void)
{
    int bad = tl_op_count() > OPS;
    for (int i = 0; i < tl_op_count() && i < OPS; i++)
        for (int a = 0; a < AXIS_COUNT; a++) {
            const char *op = tl_op_at(i)->name, *none = tl_axis_none(op, (test_axis)a);
            bool terms = a == AXIS_terms_left || a == AXIS_terms_right;
            if (terms && tl_op_at(i)->traits & TL_POINTWISE && !ran[i][a])
                none = "element by element: nothing is summed";
            if (none != NULL && !ran[i][a])
                tl_ran_none(op, names[a], none);
            if ((none != NULL) != ran[i][a])
                continue;
            bad++;
            fprintf(stderr, "op %s, axis %s: %s\n", op, names[a],
                    none == NULL ? "no test ran; make cases, or say in tests/support/axes_none.c "
                                   "why it is not claimed"
                                 : "tested, and marked as not claimed");
        }
    return bad;
}

void tl_axes_complain(const char *label, const char *what, int k, const char *detail)
{
    if (wrong++ < 40)
        fprintf(stderr, "[ seed %llu ] %s: %s %d: %s\n", (unsigned long long)seed, label, what, k,
                detail);
}

void tl_axes_same(const char *label, const char *what, int k, const ref_tensor *got,
                  const ref_tensor *want)
{
    compared++;
    if (want->data == NULL || got->data == NULL || !ref_same_bits(got, want))
        tl_axes_complain(label, what, k,
                         want->data == NULL || got->data == NULL ? "nothing came out"
                                                                 : "other bits");
}

void tl_axes_same_results(const char *label, const case_result *got, const case_result *want)
{
    for (int i = 0; i < want->n_out; i++)
        tl_axes_same(label, "output", i, &got->out[i], &want->out[i]);
    for (int i = 0; i < CASE_INPUTS; i++)
        if (want->grad[i].data != NULL)
            tl_axes_same(label, "gradient of input", i, &got->grad[i], &want->grad[i]);
}

bool tl_axes_failed(tl_tape *t, const char *label)
{
    bool f = tl_failed(t);
    if (f)
        tl_axes_complain(label, "error", 0, tl_error(t));
    tl_error_clear(t);
    return f;
}
