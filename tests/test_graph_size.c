/* What tracing and planning take grows with the program: chains of changes in place, of views, of
 * values that backward finds again, and of what is replaced or cannot be, eight times as long, do
 * not take sixty-four times as long.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <time.h>

#include <tally.h>

extern const struct CMUnitTest tl_tests_graph_size[];
extern const size_t tl_tests_graph_size_count;

enum { SHORT = 1000, LONG = 8 * SHORT, TRIES = 5 };

static tl_tensor rotations(tl_tape *t, tl_tensor x, int n)
{
    tl_tensor table = tl_cos(t, x);
    x = tl_neg(t, x);
    for (int i = 0; i < n; i++)
        x = tl_rotary_(t, x, table, table, TL_ROTARY_HALF);
    return x;
}

static tl_tensor transpositions(tl_tape *t, tl_tensor x, int n)
{
    for (int i = 0; i < n; i++)
        x = tl_transpose(t, x, 0, 1);
    return tl_neg(t, x);
}

static tl_tensor layers(tl_tape *t, tl_tensor x, int n)
{
    for (int i = 0; i < n / 4; i++)
        x = tl_tanh(t, tl_add(t, x,
                              tl_param(t, tl_tape_model(t), "w", TL_F32, TL_DIMS(32, 32),
                                       .kind = TL_INIT_ONES)));
    tl_tensor y = tl_sum(t, x, TL_ALL, false);
    tl_backward(t, y);
    return y;
}

enum { OPS_A_NORM = 8 };

/* A norm of a sum that `more` others read. */
static tl_tensor norms(tl_tape *t, tl_tensor x, int n, int more)
{
    for (int i = 0; i < n / OPS_A_NORM; i++) {
        tl_tensor w = tl_param(t, tl_tape_model(t), "w", TL_F32, TL_DIMS(32, 32),
                               .kind = TL_INIT_ONES),
                  s = tl_add(t, x, w), y = tl_rms_norm(t, s, TL_NONE, 1e-5);
        for (int k = 0; k < more; k++)
            y = tl_add(t, y, tl_sin(t, s));
        x = tl_tanh(t, y);
    }
    tl_tensor y = tl_sum(t, x, TL_ALL, false);
    tl_backward(t, y);
    return y;
}

static tl_tensor norms_of_sums(tl_tape *t, tl_tensor x, int n) { return norms(t, x, n, 1); }
static tl_tensor norms_of_shared_sums(tl_tape *t, tl_tensor x, int n) { return norms(t, x, n, 2); }

/* Each second one's weight is made of the sum: its outputs lead back to its inputs. */
static tl_tensor norms_that_lead_back(tl_tape *t, tl_tensor x, int n)
{
    for (int i = 0; i < n / OPS_A_NORM; i++) {
        tl_tensor s = tl_add(t, x, x), g = tl_select(t, tl_tanh(t, i % 2 ? s : x), 0, 1);
        x = tl_tanh(t, tl_rms_norm(t, s, g, 1e-5));
    }
    return x;
}

typedef struct {
    const char *name;
    tl_tensor (*f)(tl_tape *t, tl_tensor x, int n);
    int replaced; /* one for so many ops; 0: none */
    int n;
} chain;

static void program(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    const chain *c = ctx;
    (void)n_in, (void)n_out;
    out[0] = c->f(t, in[0], c->n);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The least of several tries: other programs only add. */
static double time_of(const chain *c)
{
    double best = 1e9;
    for (int i = 0; i < TRIES; i++) {
        tl_model *m = tl_model_new(.seed = 1);
        tl_tape *t = tl_tape_new(m);
        tl_tensor x = tl_fill(t, TL_F32, TL_DIMS(32, 32), 0.5);
        double began = seconds();
        tl_graph *g = tl_trace(t, program, &x, 1, 1, (void *)(uintptr_t)c);
        double took = seconds() - began;
        if (g == NULL)
            fail_msg("%s: %s", c->name, tl_error(t));
        best = took < best ? took : best;
        assert_int_equal(tl_graph_replaced(g, "add_rms_norm_bare"),
                         c->replaced == 0 ? 0 : c->n / c->replaced);
        tl_free(g, t, m);
    }
    return best;
}

static void long_chains_take_their_length(void **state)
{
    (void)state;
    static const chain list[] = {{"changes in place", rotations, 0, 0},
                                 {"views", transpositions, 0, 0},
                                 {"layers and their backward", layers, 0, 0},
                                 {"norms that are replaced", norms_of_sums, OPS_A_NORM, 0},
                                 {"norms that cannot be", norms_of_shared_sums, 0, 0},
                                 {"norms that lead back", norms_that_lead_back, 0, 0}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        chain c = list[i];
        c.n = SHORT;
        double small = time_of(&c);
        c.n = LONG;
        double large = time_of(&c);
        printf("%s: %d traced and planned in %.2f ms, %d in %.2f ms: %.1f times\n", c.name, SHORT,
               small * 1e3, LONG, large * 1e3, large / small);
        assert_true(large < 24 * small);
    }
}

const struct CMUnitTest tl_tests_graph_size[] = {
    cmocka_unit_test(long_chains_take_their_length),
};
const size_t tl_tests_graph_size_count = sizeof tl_tests_graph_size / sizeof *tl_tests_graph_size;
