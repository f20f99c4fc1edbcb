/* The registry of ops is complete: every op has a well-formed schema, a case with a reference, and
 * a case whose gradient is checked or the mark that it has none. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "autograd/pointwise.h"
#include "tests/cases/cases.h"

extern const struct CMUnitTest tl_tests_registry[];
extern const size_t tl_tests_registry_count;

/* Ops without a vjp and without TL_NONDIFF, each with its reason. At present none. */
static const struct {
    const char *op, *reason;
} no_vjp[] = {
    {NULL, NULL},
};

static bool excused(const tl_op *op)
{
    for (size_t i = 0; no_vjp[i].op != NULL; i++)
        if (strcmp(no_vjp[i].op, op->name) == 0)
            return true;
    return false;
}

static int missing;

static void lacks(const char *op, const char *what)
{
    missing++;
    fprintf(stderr, "op %s: %s\n", op, what);
}

static void test_names(void **unused)
{
    (void)unused;
    missing = 0;
    assert_true(tl_op_count() > 50);
    assert_null(tl_op_at(-1));
    assert_null(tl_op_at(tl_op_count()));
    assert_null(tl_op_find("no such op"));
    for (int i = 0; i < tl_op_count(); i++) {
        const tl_op *op = tl_op_at(i);
        if (op->name == NULL || op->name[0] == '\0')
            lacks("(unnamed)", "has no name");
        else if (tl_op_find(op->name) != op)
            lacks(op->name, "another op has the same name");
    }
    assert_int_equal(missing, 0);
}

static size_t size_of(tl_attr_kind k)
{
    switch (k) {
    case TL_ATTR_I64: return sizeof(int64_t);
    case TL_ATTR_INT: return sizeof(int);
    case TL_ATTR_F64: return sizeof(double);
    case TL_ATTR_BOOL: return sizeof(bool);
    case TL_ATTR_SHAPE: return sizeof(tl_shape);
    case TL_ATTR_DTYPE: return sizeof(tl_dtype);
    case TL_ATTR_DIM: return sizeof(int64_t);
    }
    return 0;
}

static void check_field(const tl_op *op, const tl_attr *f)
{
    size_t size = size_of(f->kind);
    if (size == 0)
        lacks(op->name, "an attribute is of no known kind");
    else if (f->offset % (size < 8 ? size : 8) != 0 || f->offset + size > op->attr_size)
        lacks(op->name, "an attribute lies outside its struct, or crooked");
    for (const tl_attr *g = op->attr; g != f; g++)
        if (strcmp(g->name, f->name) == 0 ||
            (f->offset < g->offset + size_of(g->kind) && g->offset < f->offset + size))
            lacks(op->name, "two attributes share a name or bytes");
}

static void test_schemas(void **unused)
{
    (void)unused;
    missing = 0;
    for (int i = 0; i < tl_op_count(); i++) {
        const tl_op *op = tl_op_at(i);
        if ((op->attr == NULL) != (op->attr_size == 0))
            lacks(op->name, "has attributes without a schema, or a schema without a size");
        int fields = 0;
        for (const tl_attr *f = op->attr; f != NULL && f->name != NULL && fields < 64;
             f++, fields++)
            check_field(op, f);
        if (op->attr != NULL && (fields == 0 || fields == 64))
            lacks(op->name, "the schema is empty or has no end");
    }
    assert_int_equal(missing, 0);
}

/* What an op's struct says of itself fits together. */
static void test_structs(void **unused)
{
    (void)unused;
    missing = 0;
    for (int i = 0; i < tl_op_count(); i++) {
        const tl_op *op = tl_op_at(i);
        unsigned in = op->n_in < 0 ? ~0u : (1u << op->n_in) - 1, out = (1u << op->n_out) - 1;
        if (op->n_out < 1 || op->n_out > 8 || op->n_in > 31)
            lacks(op->name, "too many inputs or outputs, or no output");
        if ((op->optional | op->saves_in | op->folds | op->nodiff_in) & ~in ||
            (op->saves_out | op->nodiff_out) & ~out)
            lacks(op->name, "a bit names an input or output that it does not have");
        if (op->folds_f64 & ~op->folds)
            lacks(op->name, "an f64 fold is not among the folds");
        if (op->shape == NULL)
            lacks(op->name, "has no shape()");
        bool runs = op->forward != NULL || op->traits & TL_VIEW ||
                    (op->traits & TL_POINTWISE && (op->slot != 0 || op->tile != NULL));
        if (op->forward == tl_rows_run && op->slot == 0)
            lacks(op->name, "has no loop over rows");
        if (!runs)
            lacks(op->name, "has nothing that computes it");
        if (op->traits & TL_MUTATES && (op->n_in < 0 || op->mutates >= op->n_in))
            lacks(op->name, "changes an input that it does not have");
        if (op->changes & ~in || (op->changes && !(op->traits & TL_MUTATES)))
            lacks(op->name, "changes more inputs than it has, or without TL_MUTATES");
        if (op->traits & TL_NONDIFF && op->vjp != NULL)
            lacks(op->name, "has a vjp and says that it has no derivative");
        if (op->vjp == NULL && !(op->traits & TL_NONDIFF) && !excused(op))
            lacks(op->name, "has neither a vjp nor TL_NONDIFF");
        if (op->vjp != NULL && excused(op))
            lacks(op->name, "is excused from having a vjp, but has one: take it off the list");
    }
    assert_int_equal(missing, 0);
}

static void test_cases(void **unused)
{
    (void)unused;
    missing = 0;
    for (int i = 0; i < tl_op_count(); i++) {
        const tl_op *op = tl_op_at(i);
        int references = 0, checks = 0;
        for (int k = 0; k < tl_case_count(); k++) {
            const tl_case *c = tl_case_at(k);
            if (strcmp(c->op, op->name) != 0)
                continue;
            references += c->build != NULL && c->reference != NULL;
            checks += !(c->flags & (CASE_NO_CHECK | CASE_BIG));
        }
        if (references == 0)
            lacks(op->name, "no case in tests/cases has a reference");
        if (checks == 0 && !(op->traits & TL_NONDIFF) && !excused(op))
            lacks(op->name, "no case in tests/cases has its gradient checked");
    }
    for (int k = 0; k < tl_case_count(); k++) {
        const tl_case *c = tl_case_at(k);
        if (tl_op_find(c->op) == NULL)
            lacks(c->op, "has cases, but is not in ops/list.h");
        for (int m = 0; m < k; m++)
            if (strcmp(tl_case_at(m)->op, c->op) == 0 &&
                strcmp(tl_case_at(m)->name, c->name) == 0) {
                fprintf(stderr, "case '%s': ", c->name);
                lacks(c->op, "two cases have one name");
            }
        if ((c->gradient != NULL) != (c->acc != NULL))
            lacks(c->op, "a case has a gradient's reference without its accumulators");
    }
    assert_int_equal(missing, 0);
}

/* A case exercises the op that it names: the op stands among the nodes that the call leaves on the
 * tape. */
static void test_cases_call_their_op(void **unused)
{
    (void)unused;
    missing = 0;
    for (int k = 0; k < tl_case_count(); k++) {
        const tl_case *c = tl_case_at(k);
        tl_dtype d;
        if (c->flags & CASE_BIG || !tl_case_dtype(c, 0, &d))
            continue;
        case_run r = tl_case_run(c, d);
        ref_tensor leaf[CASE_INPUTS];
        tl_tensor in[CASE_INPUTS], out[CASE_OUTPUTS];
        uint64_t state = 1;
        tl_tape *t = tl_tape_new(NULL);
        tl_case_fill(&r, &state, CASE_PLAIN, leaf);
        for (int i = 0; i < r.n; i++)
            in[i] = tl_case_leaf(t, &leaf[i]);
        tl_case_call(t, &r, in, out);
        if (!tl_failed(t) && !tl_case_calls(t, c->op)) {
            fprintf(stderr, "case '%s': ", c->name);
            lacks(c->op, "the case does not call it");
        }
        tl_case_free(r.n, leaf);
        tl_free(t);
    }
    assert_int_equal(missing, 0);
}

/* Every output that carries a gradient is differentiated by some case, all of an op's at once. */
static void test_gradients_of_all_outputs(void **unused)
{
    static int carriers[512], checked[512];
    (void)unused;
    missing = 0;
    assert_true(tl_op_count() <= 512);
    for (int i = 0; i < tl_op_count(); i++)
        for (int k = 0; k < tl_case_count(); k++) {
            const tl_case *c = tl_case_at(k);
            ref_tensor leaf[CASE_INPUTS];
            tl_tensor in[CASE_INPUTS], out[CASE_OUTPUTS];
            uint64_t state = 1;
            tl_dtype d;
            if (strcmp(c->op, tl_op_at(i)->name) != 0 || tl_op_at(i)->vjp == NULL ||
                c->flags & CASE_BIG || !tl_case_dtype(c, 0, &d))
                continue;
            case_run r = tl_case_run(c, d);
            tl_tape *t = tl_tape_new(NULL);
            tl_case_fill(&r, &state, CASE_PLAIN, leaf);
            for (int n = 0; n < r.n; n++)
                in[n] = tl_case_leaf(t, &leaf[n]);
            tl_case_call(t, &r, in, out);
            int n = tl_case_carriers(t, c->op), diff = c->diff > 1 ? c->diff : 1;
            carriers[i] = n > carriers[i] ? n : carriers[i];
            if (!(c->flags & CASE_NO_CHECK) && diff > checked[i])
                checked[i] = diff;
            tl_case_free(r.n, leaf);
            tl_free(t);
        }
    for (int i = 0; i < tl_op_count(); i++)
        if (checked[i] < carriers[i]) {
            fprintf(stderr, "%d of %d outputs: ", checked[i], carriers[i]);
            lacks(tl_op_at(i)->name, "no case checks the gradients of all outputs at once");
        }
    assert_int_equal(missing, 0);
}

const struct CMUnitTest tl_tests_registry[] = {cmocka_unit_test(test_names),
                                               cmocka_unit_test(test_schemas),
                                               cmocka_unit_test(test_structs),
                                               cmocka_unit_test(test_cases),
                                               cmocka_unit_test(test_cases_call_their_op),
                                               cmocka_unit_test(test_gradients_of_all_outputs)};
const size_t tl_tests_registry_count = sizeof tl_tests_registry / sizeof tl_tests_registry[0];
