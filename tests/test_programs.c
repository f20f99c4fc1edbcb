/* Random programs - all ops, in four dtypes, with views, ops in place, several outputs, shared
 * parameters, gradients of gradients, micro-batches and updates - give the same bits called,
 * compiled, or by turns, cut into segments, with any number of threads, at every vector level.
 *
 * A program that does not is shrunk - whatever may go while it still differs goes - and printed.
 * TL_TEST_SEED is the first one's seed, TL_TEST_PROGRAMS how many there are: make programs. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "tests/support/expect.h"
#include "tests/support/program_ways.h"
#include "tests/support/rules.h"

extern const struct CMUnitTest tl_tests_programs[];
extern const size_t tl_tests_programs_count;

enum { PROGRAMS = 4000, WAYS = 3, SHOWN = 10 };

static unsigned long long seed; /* of the program being run */

/* The first fact that differs between the program called and run that way: -1 none. */
static int differs(const program *p, const program_way *w, FILE *f)
{
    program_result a, b;
    program_call(p, f, NULL, &a);
    program_run(p, w, &a, &b);
    int at = program_differs(&a, &b);
    if (f != NULL && at >= 0)
        fprintf(f, "  differs: %s: %s, and %s: %s\n", a.fact[at].what, a.fact[at].hash,
                at < b.n ? b.fact[at].what : "nothing", at < b.n ? b.fact[at].hash : "");
    if (f != NULL && (*a.error != '\0' || *b.error != '\0'))
        fprintf(f, "  called: %s\n  so:     %s\n", a.error, b.error);
    program_result_free(&a);
    program_result_free(&b);
    return at;
}

/* Keeps a change to the program or the way if they still differ. */
#define TRY(change)                     \
    do {                                \
        program q = *p;                 \
        program_way v = *w;             \
        change;                         \
        if (differs(&q, &v, NULL) >= 0) \
            *p = q, *w = v;             \
    } while (0)

static void leave_out_steps(program *p, program_way *w)
{
    for (int before = -1, left = 0; left != before;) {
        before = left;
        left = 0;
        for (int i = p->n - 1; i >= 0; i--) {
            if (!p->step[i].left_out)
                TRY(q.step[i].left_out = true);
            left += p->step[i].left_out;
        }
    }
}

static void shrink(program *p, program_way *w)
{
    leave_out_steps(p, w);
    TRY(q.loss = 0);
    TRY(q.parts = 1);
    TRY(q.updates = 1);
    TRY(q.updates = 0);
    TRY(q.second = 0);
    TRY(q.marked = 1);
    TRY(q.marked = 0);
    TRY(q.retain = false);
    TRY(q.reads = false);
    TRY(q.partial = true);
    TRY(q.eval = false);
    TRY(q.big = false; q.width = 8; q.rows[0] = q.rows[1] = q.rows[2] = 2);
    TRY(q.options = (tl_opt_options){.lr = 0.05});
    TRY(q.dtype = TL_F32);
    TRY(v.segments = false);
    TRY(v.verify = false);
    TRY(v.compiled = ~0u);
    TRY(v.compiled = 0);
    TRY(v.update = UPDATE_CALLED);
    TRY(v.options = (tl_graph_options){.no_fuse = false});
    TRY(v.options.no_fuse = true);
    TRY(v.options.no_replace = true);
    TRY(v.options.no_simplify = true);
    TRY(v.threads = 0);
    TRY(v.level = NULL);
    leave_out_steps(p, w);
}

static void shrink_and_print(program p, program_way w)
{
    shrink(&p, &w);
    fprintf(stderr, "[ seed %llu ] ", (unsigned long long)p.seed);
    program_print(stderr, &p);
    fprintf(stderr, "  ");
    program_way_print(stderr, &p, &w);
    differs(&p, &w, stderr);
}

static struct {
    int programs, runs, wrong, refused, errors, finite, second, cuts, replaced, reordered, fused;
    bool ran[256]; /* ops */
} sum;

/* What a graph alone refuses, by its message: a whole gradient of which earlier micro-batches have
 * left more uses than the graph has. */
static bool is_limit(const program_result *called, const program_result *r)
{
    return *called->error == '\0' &&
           strstr(r->error, "tl_graph_run: the graph adds up the gradient of parameter") != NULL;
}

static void run_ways(const program *p, const program_result *called)
{
    for (int k = 0; k < WAYS; k++) {
        program_result r;
        program_way w = program_way_random(p, (uint64_t)k);
        program_run(p, &w, called, &r);
        int at = program_differs(called, &r);
        program_result_free(&r);
        sum.runs++;
        sum.cuts += r.cuts;
        sum.replaced += r.replaced;
        sum.reordered += r.reordered;
        sum.fused += r.fused;
        sum.refused += is_limit(called, &r);
        if (at < 0 || is_limit(called, &r))
            continue;
        fprintf(stderr, "seed %llu, way %d: %s differs\n", seed, k, called->fact[at].what);
        if (sum.wrong++ < SHOWN)
            shrink_and_print(*p, w);
        return;
    }
}

static void run_program(void)
{
    program p = program_random(seed);
    program_result called;
    program_call(&p, NULL, sum.ran, &called);
    sum.programs++;
    sum.errors += *called.error != '\0';
    sum.finite += called.finite;
    sum.second += p.second > 0;
    if (*called.error != '\0' && getenv("TL_TEST_ERRORS") != NULL)
        fprintf(stderr, "seed %llu: %s\n", seed, called.error);
    run_ways(&p, &called);
    program_result_free(&called);
}

/* The programs were about something: every op is among them, most run to their end in numbers. */
static void expect_much(void)
{
    int missing = 0, n = sum.programs;
    for (int i = 0; i < tl_op_count(); i++)
        if (!sum.ran[i]) {
            fprintf(stderr, "no program has the op %s\n", tl_op_at(i)->name);
            missing++;
        }
    assert_int_equal(missing, 0);
    assert_true(sum.refused < n / 100 && sum.errors < n / 10 && sum.finite > n / 4 * 3 &&
                sum.second > n / 5);
    assert_true(sum.cuts > 5 * n && sum.replaced > n / 3 && sum.reordered > n / 6);
    assert_true(sum.fused > n / 2);
}

static void no_way_changes_a_bit(void **state)
{
    unsigned long long first = expect_seed(), n = expect_programs(PROGRAMS);
    (void)state;
    memset(&sum, 0, sizeof sum);
    assert_in_range(tl_op_count(), 1, sizeof sum.ran);
    printf("TL_TEST_SEED=%llu\n", first);
    rule_on(&rule_doubled); /* a value used twice where it was used once */
    for (seed = first; seed < first + n; seed++) {
        run_program();
        if (sum.programs % 1000 == 0)
            printf("%d programs, %d wrong\n", sum.programs, sum.wrong), fflush(stdout);
    }
    rule_off(&rule_doubled);
    printf("%d programs, each called and run in other ways, %d runs: %d programs wrong, %d runs "
           "refused\n"
           "%d end in an error, %d in a finite loss, %d are of second order; %d segments, %d "
           "replacements, %d in another order, %d graphs fused\n",
           sum.programs, sum.runs, sum.wrong, sum.refused, sum.errors, sum.finite, sum.second,
           sum.cuts, sum.replaced, sum.reordered, sum.fused);
    assert_int_equal(sum.wrong, 0);
    if (n >= PROGRAMS)
        expect_much();
}

static int tell_seed(void **state)
{
    (void)state;
    printf("the last program was TL_TEST_SEED=%llu\n", seed); /* after a crash, too */
    return 0;
}

const struct CMUnitTest tl_tests_programs[] = {
    cmocka_unit_test_teardown(no_way_changes_a_bit, tell_seed),
};
const size_t tl_tests_programs_count = sizeof tl_tests_programs / sizeof *tl_tests_programs;
