/* test_extremes.c: tensors without elements whose other dims are huge take no work, and numbers in
 * tensors of ids may be any: each call in a child of its own, with an alarm and little memory. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "autograd/internal.h"
#include "tests/support/api_calls.h"

extern const struct CMUnitTest tl_tests_extremes[];
extern const size_t tl_tests_extremes_count;

/* Shared with the children. */
typedef struct {
    int through;   /* calls without an error, */
    int compiled;  /* and runs */
    bool ran[256]; /* by tl_op_at: with a tensor without elements */
    char said[TL_MESSAGE_MAX];
} findings;

static findings *found;

static int begin(void **unused)
{
    (void)unused;
    found = mmap(NULL, sizeof *found, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return found == MAP_FAILED ? -1 : 0;
}
static int end(void **unused)
{
    (void)unused;
    return munmap(found, sizeof *found);
}

/* In a child that is ended after 20 seconds: its exit status. */
typedef void child_fn(const void *ctx, int i);
static int in_child(child_fn *f, const void *ctx, int i)
{
    int status = 0;
    fflush(NULL);
    found->said[0] = '\0';
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        api_limit_memory();
        alarm(20);
        f(ctx, i);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static bool empty(const tl_tape *t, tl_tensor x)
{
    const tl_value *v = tl_is_none(x) ? NULL : tl_peek(t, x);
    return v != NULL && tl_array_count(&v->a) == 0;
}

static bool wants_grad(const tl_tape *t, tl_tensor x)
{
    return !tl_is_none(x) && tl_peek(t, x)->needs_grad;
}

static void note_ops(const tl_tape *t)
{
    for (uint32_t i = 0; i < t->n_nodes; i++) {
        const tl_node *n = &t->node[i];
        bool any = tl_array_count(&tl_values_at(&t->values, n->out)->a) == 0;
        for (int k = 0; k < n->n_in; k++)
            any |= empty(t, n->in[k]);
        for (int k = 0; any && k < tl_op_count(); k++)
            found->ran[k] |= tl_op_at(k) == n->op;
    }
}

/* ---- the calls of the table, with sizes of nothing ---- */

static const int64_t far = (int64_t)1 << 40;

/* The tensors that a call may differentiate by, or its ids. */
enum { GIVEN = LONGTABLE + 1, INPUTS = ONE + 1 };

typedef struct {
    api a;
    int row;
    bool grad;
} empty_job;

static void want_gradients(api *a)
{
    for (int i = F; i < GIVEN; i++) {
        tl_require_grad(a->t, a->x[i]);
        tl_error_clear(a->t); /* it may be too large to be there at all */
    }
}

/* The row's call, its gradients, and those of their squares. */
static void call_twice_differentiated(empty_job *j)
{
    api *a = &j->a;
    tl_tensor dx[GIVEN], sum = TL_NONE;
    api_rows[j->row].call(a);
    if (!j->grad || tl_failed(a->t))
        return;
    for (int i = F; i < GIVEN; i++) {
        tl_tensor y = tl_sum(a->t, a->result, TL_ALL, false);
        if (tl_gradients(a->t, y, &a->x[i], 1, TL_NONE, &dx[i]) != TL_OK) {
            tl_error_clear(a->t); /* not reached */
            continue;
        }
        y = tl_sum(a->t, tl_square(a->t, dx[i]), TL_ALL, false);
        sum = tl_is_none(sum) ? y : tl_add(a->t, sum, y);
    }
    if (!tl_is_none(sum))
        tl_backward(a->t, sum, .partial = true, .retain = true);
    tl_error_clear(a->t); /* of ints, say: nothing to differentiate */
}

/* The same in a trace. */
static void empty_program(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out,
                          void *ctx)
{
    empty_job *j = ctx, own = *j;
    (void)n_out;
    own.a.t = t;
    memcpy(own.a.x, in, (size_t)n * sizeof *in);
    if (j->grad)
        want_gradients(&own.a);
    call_twice_differentiated(&own);
    out[0] = tl_is_none(own.a.result) ? own.a.out[0] : own.a.result;
    if (wants_grad(t, out[0]))
        out[0] = tl_detach(t, out[0]);
}

static void empty_call(const void *ctx, int row)
{
    const int64_t *size = ctx;
    static empty_job j;
    api *a = &j.a;
    tl_tensor out;
    a->A = size[0], a->B = size[1], a->H = size[2], a->D = size[3];
    api_set_up(a);
    tl_error_clear(a->t);
    a->bad = -1;
    j.row = row;
    j.grad = size[4];
    tl_compiled *c = tl_compile(a->t, empty_program, 1, &j);
    for (int i = 0; i < 2; i++) /* traced and run, run again */
        found->compiled += tl_run(c, a->x, INPUTS, &out) == TL_OK;
    tl_error_clear(a->t);
    if (j.grad)
        want_gradients(a);
    api_rows[row].call(a);
    found->through += !tl_failed(a->t);
    if (!tl_failed(a->t))
        tl_backward(a->t, tl_sum(a->t, a->result, TL_ALL, false), .partial = true, .retain = true);
    tl_error_clear(a->t);
    call_twice_differentiated(&j);
    note_ops(a->t);
}

static int calls_of_the_table(void)
{
    const int64_t sizes[][5] = {/* A, B, H, D, and whether they take gradients */
                                {far, 0, 2, 4, 1}, {0, far, 2, 4, 1}, {2, 0, far, 4, 1},
                                {2, 3, 0, far, 1}, {2, 3, far, 0, 1}, {2, far, 2, 0, 1},
                                {2, 0, 2, far, 1}, {0, 3, 2, 4, 1},   {2, 0, 2, 4, 1},
                                {far, 0, 2, 4, 0}, {0, far, 2, 4, 0}, {2, 0, 2, far, 0}};
    int bad = 0, last = api_find("tl_apply1");
    for (int i = 0; i < last; i++) {
        found->through = found->compiled = 0;
        for (size_t k = 0; api_rows[i].kind == SAYS && k < sizeof sizes / sizeof *sizes; k++) {
            int status = in_child(empty_call, sizes[k], i);
            if (status != 0)
                print_error("%s, sizes %lld %lld %lld %lld: status %d\n", api_rows[i].name,
                            (long long)sizes[k][0], (long long)sizes[k][1], (long long)sizes[k][2],
                            (long long)sizes[k][3], status);
            bad += status != 0;
        }
        if (api_rows[i].kind == SAYS && (found->through == 0 || found->compiled == 0)) {
            print_error("%s: %d calls and %d runs went well\n", api_rows[i].name, found->through,
                        found->compiled);
            bad++;
        }
    }
    return bad;
}

/* ---- calls that must go well, forward and backward ---- */

static tl_tensor leaf(tl_tape *t, tl_shape s)
{
    tl_tensor x = tl_zeros(t, TL_F32, s);
    tl_require_grad(t, x);
    return x;
}
static tl_tensor ids(tl_tape *t, tl_shape s) { return tl_zeros(t, TL_I64, s); }

#define L(...) leaf(t, TL_DIMS(__VA_ARGS__))
#define I(...) ids(t, TL_DIMS(__VA_ARGS__))
#define EMPTY_CALLS(X)                                                                           \
    X(tl_matmul(t, L(far, 0, 4), L(4, 5)))                                                       \
    X(tl_matmul(t, L(4, 0), L(0, 5)))                                                            \
    X(tl_matmul(t, L(0, far, 3, 4), L(4, 5)))                                                    \
    X(tl_matmul(t, L(far, 0, 3, 4), L(4, 5)))                                                    \
    X(tl_matmul(t, L(2, 3, 4), L(far, 0, 1, 4, 5)))                                              \
    X(tl_matmul_acc64(t, L(far, 0, 4), L(4, 5)))                                                 \
    X(tl_addmm(t, L(5), L(3, 0), L(0, 5), 1, 1))                                                 \
    X(tl_apply1(TL_AT(t), &tl_op_stack_samples, ((int64_t[]){1, 0, 0, far, 1}),                  \
                (tl_tensor[]){L(0, far, 3)}, 1))                                                 \
    X(tl_attention(t, L(1, far, 0, 4), L(1, 1, 2, 4), L(1, 1, 2, 4)))                            \
    X(tl_attention(t, L(1, 2, far, 0), L(1, 1, far, 0), L(1, 1, far, 0)))                        \
    X(tl_attention(t, L(1, far, 0, 4), L(1, far, 0, 4), L(1, far, 0, 4), .full = true))          \
    X(tl_attention(t, L(0, far, 3, 4), L(0, far, 3, 4), L(0, far, 3, 4)))                        \
    X(tl_add(t, L(far, 0, 3), L(3)))                                                             \
    X(tl_mul(t, L(0, far, 3), L(3)))                                                             \
    X(tl_swiglu(t, L(far, 0, 3), L(3)))                                                          \
    X(tl_where(t, tl_zeros(t, TL_BOOL, TL_DIMS(far, 0, 3)), L(3), L(1)))                         \
    X(tl_rms_norm(t, L(far, 0, 3), L(3), 1e-5))                                                  \
    X(tl_layer_norm(t, L(far, 0, 3), L(3), L(3), 1e-5))                                          \
    X(tl_layer_norm(t, L(1, far, 0), L(far, 0), TL_NONE, 1e-5))                                  \
    X(tl_rotary(t, L(far, 0, 3, 4), L(3, 4), L(3, 4), TL_ROTARY_HALF))                           \
    X(tl_embedding(t, L(4, 3), I(far, 0)))                                                       \
    X(tl_gather(t, L(4, 3), I(0, 3), 0))                                                         \
    X(tl_sum(t, L(far, 0, 3), TL_DIMS(0, 1), false))                                             \
    X(tl_sum(t, L(3, far, 0), TL_DIMS(1, 2), false))                                             \
    X(tl_mean(t, L(3, far, 0), TL_DIMS(1), false))                                               \
    X(tl_sum_to(t, L(far, 0, 3), TL_DIMS(3), TL_NONE))                                           \
    X(tl_sum_to(t, L(3, far, 0), TL_DIMS(3, 1, 1), TL_NONE))                                     \
    X(tl_var(t, L(3, far, 0), TL_DIMS(1, 2), 0, false))                                          \
    X(tl_mse(t, L(3, far, 0), L(3, far, 0)))                                                     \
    X(tl_square_sum_at(TL_AT(t), L(far, 0, 3)))                                                  \
    X(tl_cross_entropy(t, L(0, far), I(0), TL_SUM))                                              \
    X(tl_cross_entropy(t, L(far, 0, 5), I(far, 0), TL_SUM))                                      \
    X(tl_nll(t, L(far, 0, 5), I(far, 0), TL_SUM))                                                \
    X(tl_expand(t, L(1, 3), TL_DIMS(far, 0, 1, 3)))                                              \
    X(tl_slice(t, L(far, 0), 0, 0, far, 1))                                                      \
    X(tl_concat(t, ((tl_tensor[]){L(far, 0), L(far, 0)}), 2, 0))                                 \
    X(tl_recur(t, L(0, far, 4), L(4, 1), TL_LSTM))                                               \
    X(tl_recur(t, L(0, far, 3), L(3, 1), TL_GRU, .bias = L(3)))                                  \
    X(tl_swiglu(t, L(far, 0, 3), L(far, 0, 3)))                                                  \
    X(tl_apply1(TL_AT(t), tl_op_find("contiguous"), NULL, (tl_tensor[]){L(far, 0)}, 1))          \
    X(tl_apply1(TL_AT(t), tl_op_find("assign"), NULL, ((tl_tensor[]){I(far, 0), I(far, 0)}), 2)) \
    X(tl_causal_mask(t, far, 0))                                                                 \
    X(tl_causal_mask(t, 0, far))                                                                 \
    X(tl_one_hot(t, I(0), far, TL_F32))

static const char *const text_of[] = {
#define X(call) #call,
    EMPTY_CALLS(X)
#undef X
};
enum { CALLS = sizeof text_of / sizeof *text_of };

static void one_empty(const void *ctx, int i)
{
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor y = TL_NONE;
    int k = 0;
    (void)ctx;
#define X(call)   \
    if (k++ == i) \
        y = call;
    EMPTY_CALLS(X)
#undef X
    if (!tl_failed(t) && wants_grad(t, y) && strstr(text_of[i], "stack_samples") == NULL)
        tl_backward(t, tl_sum(t, y, TL_ALL, false), .partial = true);
    snprintf(found->said, sizeof found->said, "%s", tl_error(t));
    note_ops(t);
    tl_error_clear(t);
    tl_free(t);
}

static void no_elements_take_no_work(void **unused)
{
    int bad = calls_of_the_table();
    (void)unused;
    for (int i = 0; i < CALLS; i++) {
        int status = in_child(one_empty, NULL, i);
        if (status != 0 || found->said[0] != '\0')
            print_error("%s: status %d, %s\n", text_of[i], status, found->said);
        bad += status != 0 || found->said[0] != '\0';
    }
    for (int k = 0; k < tl_op_count(); k++)
        if (!found->ran[k]) {
            print_error("%s has not run on a tensor without elements\n", tl_op_at(k)->name);
            bad++;
        }
    assert_int_equal(bad, 0);
}

/* ---- ids ---- */

static void extreme_call(const void *ctx, int row)
{
    static api a;
    a.ids = ctx;
    api_set_up(&a);
    a.bad = -1;
    api_rows[row].call(&a);
    found->through += !tl_failed(a.t);
    if (tl_failed(a.t) && *tl_error(a.t) == '\0')
        _exit(1);
    if (!tl_failed(a.t))
        tl_backward(a.t, tl_sum(a.t, a.result, TL_ALL, false), .partial = true);
}

/* Ids, positions, offsets, targets, samples and ranges: an error, or a result. */
static void ids_may_be_any_numbers(void **unused)
{
    static const int64_t sets[][6] = {{INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN,
                                       INT64_MIN},
                                      {INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX,
                                       INT64_MAX},
                                      {INT64_MAX, INT64_MIN, INT64_MAX - 1, INT64_MIN + 1, 0, 1},
                                      {INT64_MIN, INT64_MAX, 1, 0, INT64_MIN + 2, INT64_MAX - 2},
                                      {-1, -1, -1, -1, -1, -1},
                                      {3, 4, 6, 7, INT32_MAX, INT32_MIN}};
    int bad = 0;
    (void)unused;
    for (int i = 0; i < api_row_count; i++) {
        bool called = api_rows[i].kind == LAYER ||
                      (api_rows[i].kind == SAYS && i < api_find("tl_apply1"));
        for (size_t k = 0; called && k < sizeof sets / sizeof *sets; k++) {
            int status = in_child(extreme_call, sets[k], i);
            if (status != 0)
                print_error("%s, ids %zu: status %d\n", api_rows[i].name, k, status);
            bad += status != 0;
        }
    }
    assert_int_equal(bad, 0);
}

/* The least number by -1, which overflows, and by itself. */
static void the_least_number_is_divided(void **unused)
{
    static const int64_t least[] = {INT64_MIN, INT64_MIN, INT64_MIN, 7, -7},
                         by[] = {-1, INT64_MIN, INT64_MAX, INT64_MIN, 2};
    static const int64_t quotient[] = {INT64_MIN, 1, -2, -1, -4},
                         rest[] = {0, 0, INT64_MAX - 1, INT64_MIN + 7, 1};
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor a = tl_data(t, least, TL_I64, TL_DIMS(5)), b = tl_data(t, by, TL_I64, TL_DIMS(5));
    int64_t got[5];
    (void)unused;
    assert_int_equal(tl_keep(t, tl_floor_divide(t, a, b), got, sizeof got), TL_OK);
    assert_memory_equal(got, quotient, sizeof got);
    assert_int_equal(tl_keep(t, tl_remainder(t, a, b), got, sizeof got), TL_OK);
    assert_memory_equal(got, rest, sizeof got);
    tl_free(t);
}

/* Casts to i64 end at its ends, and 0 is for NaN. */
static void integers_have_ends(void **unused)
{
    static const double x[] = {0x1p63, -0x1p63,          0x1.fffffffffffffp62, 0x1p70,
                               -1e30,  (double)INFINITY, -(double)INFINITY,    (double)NAN};
    static const int64_t want[] = {INT64_MAX, INT64_MIN, INT64_MAX - 1023, INT64_MAX,
                                   INT64_MIN, INT64_MAX, INT64_MIN,        0};
    tl_tape *t = tl_tape_new(NULL);
    int64_t got[8];
    (void)unused;
    tl_tensor y = tl_cast(t, tl_data(t, x, TL_F64, TL_DIMS(8)), TL_I64);
    assert_int_equal(tl_keep(t, y, got, sizeof got), TL_OK);
    assert_memory_equal(got, want, sizeof got);
    tl_free(t);
}

static void integers_are_sorted_to_their_ends(void **unused)
{
    static const int64_t x[] = {0, INT64_MIN, INT64_MAX, -1, INT64_MIN};
    static const int64_t up[] = {1, 4, 3, 0, 2}, down[] = {2, 0, 3, 1, 4};
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor in = tl_data(t, x, TL_I64, TL_DIMS(5)), ids;
    int64_t got[5], from[5];
    (void)unused;
    for (int d = 0; d < 2; d++) {
        const int64_t *want = d ? down : up;
        assert_int_equal(tl_keep(t, tl_sort(t, in, 0, d, &ids), got, sizeof got), TL_OK);
        assert_int_equal(tl_keep(t, ids, from, sizeof from), TL_OK);
        assert_memory_equal(from, want, sizeof from);
        for (int i = 0; i < 5; i++)
            assert_int_equal(got[i], x[want[i]]);
    }
    ids = in;
    assert_true(tl_is_none(tl_topk(t, in, 6, 0, false, &ids)) && tl_is_none(ids));
    tl_error_clear(t);
    assert_true(tl_is_none(tl_topk(t, in, 1, 7, false, NULL)));
    assert_non_null(strstr(tl_error(t), "dim 7 does not exist in [5], which has 1"));
    tl_free(t);
}

/* A diagonal as far out as numbers go leaves all of x, or nothing. */
static void diagonals_may_be_anywhere(void **unused)
{
    static const float x[6] = {1, 2, 3, 4, 5, 6}, none[6];
    static const int64_t away[] = {7, INT64_MAX, INT64_MIN, INT64_MIN + 1};
    tl_tape *t = tl_tape_new(NULL);
    float got[6];
    (void)unused;
    for (int i = 0; i < 4; i++)
        for (int upper = 0; upper < 2; upper++) {
            tl_tensor a = tl_data(t, x, TL_F32, TL_DIMS(2, 3));
            tl_tensor y = upper ? tl_triu(t, a, away[i]) : tl_tril(t, a, away[i]);
            assert_int_equal(tl_keep(t, y, got, sizeof got), TL_OK);
            assert_memory_equal(got, upper == (away[i] < 0) ? x : none, sizeof got);
        }
    tl_free(t);
}

/* A NaN wins in a window whatever its sign, as in max. */
static void any_nan_wins_in_a_window(void **unused)
{
    (void)unused;
    for (int d = 0; d < 2; d++)
        for (int sign = 0; sign < 2; sign++) {
            const double nan = copysign((double)NAN, sign ? -1.0 : 1.0), x[] = {1, nan, 2};
            const float narrow[] = {1, copysignf(NAN, sign ? -1.f : 1.f), 2};
            tl_tape *t = tl_tape_new(NULL);
            tl_tensor a = d ? tl_data(t, x, TL_F64, TL_DIMS(1, 1, 3))
                            : tl_data(t, narrow, TL_F32, TL_DIMS(1, 1, 3));
            assert_true(isnan(tl_item(t, tl_max_pool1d(t, a, .kernel = {3}))));
            tl_free(t);
        }
}

/* Pieces of one of what is empty are one piece, as pieces of more are. */
static void nothing_is_one_piece(void **unused)
{
    (void)unused;
    for (int64_t each = 1; each < 4; each++) {
        tl_tape *t = tl_tape_new(NULL);
        tl_tensor piece;
        assert_int_equal(tl_split(t, tl_zeros(t, TL_F32, TL_DIMS(2, 0)), each, 1, &piece, 1),
                         TL_OK);
        assert_int_equal(tl_shape_of(t, piece).dim[1], 0);
        tl_free(t);
    }
}

/* Bounds as in Python. */
static void slices_stay_within(void **unused)
{
    static const int64_t bounds[][4] = {{1, 4, 1, 2},          {-1, 2, 2, 0},  {2, 1, 2, 0},
                                        {-2, INT64_MAX, 1, 2}, {-9, -1, 0, 2}, {5, 9, 3, 0},
                                        {INT64_MIN, 2, 0, 2},  {0, -3, 0, 0}};
    static const float x[3] = {0, 1, 2};
    tl_tape *t = tl_tape_new(NULL);
    (void)unused;
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
        tl_tensor y = tl_slice(t, tl_data(t, x, TL_F32, TL_DIMS(3)), 0, bounds[i][0], bounds[i][1],
                               1);
        float got[3] = {-1};
        assert_int_equal(tl_shape_of(t, y).dim[0], bounds[i][3]);
        assert_int_equal(tl_keep(t, y, got, (size_t)bounds[i][3] * 4), TL_OK);
        assert_true(bounds[i][3] == 0 || got[0] == (float)bounds[i][2]);
    }
    tl_free(t);
}

/* Loss i, its gradient and the gradient of that, of targets of which the one ignored is so. */
enum { LOSSES = 5, NUMBERS = 19 };
static tl_status ignoring(int i, int64_t target, int64_t ignored, double to[NUMBERS])
{
    static const float x[9] = {1, -2, 0.5f, 0.25f, 3, -1, 2, 0.125f, -0.75f}, w[3] = {1, 2, 0.5f};
    const int64_t ids[3] = {1, target, 2};
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor z = tl_data(t, x, TL_F32, TL_DIMS(3, 3)), y = tl_data(t, ids, TL_I64, TL_DIMS(3)),
              loss, dz, ddz;
    tl_cross_entropy_options o = {.reduction = i == 4 ? TL_EACH : TL_MEAN,
                                  .ignore = true,
                                  .ignore_index = ignored,
                                  .smoothing = i == 1 ? 0.1 : 0};
    if (i == 3)
        o.weight = tl_data(t, w, TL_F32, TL_DIMS(3));
    tl_require_grad(t, z);
    loss = i == 2 ? tl_nll_at(TL_AT(t), tl_log_softmax(t, z, 1), y, o)
                  : tl_cross_entropy_at(TL_AT(t), z, y, o);
    loss = tl_sum(t, loss, TL_ALL, false);
    tl_gradients(t, loss, &z, 1, TL_NONE, &dz);
    tl_gradients(t, tl_sum(t, tl_square(t, dz), TL_ALL, false), &z, 1, TL_NONE, &ddz);
    memset(to, 0, NUMBERS * sizeof *to);
    tl_keep(t, tl_cast(t, loss, TL_F64), to, 8);
    tl_keep(t, tl_cast(t, dz, TL_F64), to + 1, 72);
    tl_keep(t, tl_cast(t, ddz, TL_F64), to + 10, 72);
    tl_status s = tl_error_status(t);
    (void)tl_error(t);
    tl_free(t);
    return s;
}

/* Doubles cannot tell some of them apart. */
static void any_target_is_ignored_alone(void **unused)
{
    static const int64_t far_off[] = {INT64_MIN,
                                      INT64_MIN + 1,
                                      -(INT64_C(1) << 53) - 1,
                                      INT64_MAX - 1,
                                      INT64_MAX,
                                      (INT64_C(1) << 53) + 1,
                                      -1,
                                      INT64_C(1) << 53,
                                      (INT64_C(1) << 62) + 3};
    double want[NUMBERS], got[NUMBERS];
    (void)unused;
    for (int i = 0; i < LOSSES; i++) {
        assert_int_equal(ignoring(i, -100, -100, want), TL_OK);
        for (size_t k = 0; k < sizeof far_off / sizeof *far_off; k++) {
            assert_int_equal(ignoring(i, far_off[k], far_off[k], got), TL_OK);
            assert_memory_equal(got, want, sizeof want);
            assert_int_equal(ignoring(i, far_off[k], far_off[k] ^ 1, got), TL_EINDEX);
        }
    }
}

/* Ignored rows may hold no numbers at all, in every form of the loss: its bits are those with zeros
 * there, and their gradient is +0. */
enum { FORMS = 24, GOT = 10 };
static void loss_of_form(int form, float row, float got[GOT])
{
    static const int64_t ids[3] = {1, 9, 2};
    static const float w[3] = {1, 2, 0.5f};
    static const tl_reduction reduction[] = {TL_SUM, TL_MEAN, TL_EACH};
    const float x[3][3] = {{1, -2, 0.5f}, {row, row, 1}, {2, 0.125f, -0.75f}};
    const bool nll = form & 2;
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor z = tl_data(t, x, TL_F32, TL_DIMS(3, 3)), y = tl_data(t, ids, TL_I64, TL_DIMS(3)), g;
    tl_cross_entropy_options o = {.reduction = reduction[form / 8],
                                  .ignore = true,
                                  .ignore_index = 9,
                                  .smoothing = form & 4 && !nll ? 0.1 : 0};
    if (form & 1)
        o.weight = tl_data(t, w, TL_F32, TL_DIMS(3));
    tl_require_grad(t, z);
    tl_tensor loss = nll ? tl_nll_at(TL_AT(t), z, y, o) : tl_cross_entropy_at(TL_AT(t), z, y, o);
    loss = tl_sum(t, loss, TL_ALL, false);
    assert_int_equal(tl_gradients(t, loss, &z, 1, TL_NONE, &g), TL_OK);
    assert_int_equal(tl_keep(t, g, got, 9 * sizeof *got), TL_OK);
    got[9] = (float)tl_item(t, loss);
    tl_free(t);
}

static void ignored_rows_may_hold_anything(void **unused)
{
    static const float fill[] = {NAN, INFINITY, -INFINITY};
    (void)unused;
    for (int form = 0; form < FORMS; form++) {
        float want[GOT], got[GOT];
        loss_of_form(form, 0, want);
        assert_true(isfinite(want[9]) && want[1] != 0);
        for (int c = 3; c < 6; c++)
            assert_true(want[c] == 0 && !signbit(want[c]));
        for (int k = 0; k < 3; k++) {
            loss_of_form(form, fill[k], got);
            assert_memory_equal(got, want, sizeof want);
        }
    }
}

/* Gradients where operands are equal, zeros or no numbers: NUMERICS 2.14. */
static void gradients_of_ties(void **unused)
{
    static const float a[] = {2, 0, -0.0f, NAN, 3}, b[] = {2, -0.0f, 0, 1, NAN};
    static const float dy[] = {3, 5, 7, 9, 11}, half[] = {1.5f, 2.5f, 3.5f, 0, 0};
    static const float one_side[] = {3, 0, 0, 0, 11}; /* abs and relu of a */
    (void)unused;
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x[2] = {tl_data(t, a, TL_F32, TL_DIMS(5)), tl_data(t, b, TL_F32, TL_DIMS(5))},
              g = tl_data(t, dy, TL_F32, TL_DIMS(5)), dx[2];
    float got[5];
    for (int i = 0; i < 2; i++)
        tl_require_grad(t, x[i]);
    for (int op = 0; op < 4; op++) {
        const int n = op < 2 ? 2 : 1;
        tl_tensor y = op == 0   ? tl_maximum(t, x[0], x[1])
                      : op == 1 ? tl_minimum(t, x[0], x[1])
                      : op == 2 ? tl_abs(t, x[0])
                                : tl_relu(t, x[0]);
        assert_int_equal(tl_gradients(t, y, x, n, g, dx), TL_OK);
        for (int i = 0; i < n; i++) {
            assert_int_equal(tl_keep(t, dx[i], got, sizeof got), TL_OK);
            assert_memory_equal(got, op < 2 ? half : one_side, sizeof got);
        }
    }
    const float first[6] = {3, 0, 0, 5, 0, 0}; /* of a window */
    for (int d = 0; d < 2; d++) {
        const tl_dtype own = d ? TL_F64 : TL_F32;
        tl_tensor flat = tl_zeros(t, own, TL_DIMS(1, 1, 6)),
                  down = tl_cast(t, tl_reshape(t, tl_slice(t, g, 0, 0, 2, 1), TL_DIMS(1, 1, 2)),
                                 own);
        float by[6];
        tl_require_grad(t, flat);
        tl_tensor y = tl_max_pool1d(t, flat, .kernel = {3});
        if (tl_gradients(t, y, &flat, 1, down, dx) != TL_OK)
            fail_msg("%s", tl_error(t));
        assert_int_equal(tl_keep(t, tl_cast(t, dx[0], TL_F32), by, sizeof by), TL_OK);
        assert_memory_equal(by, first, sizeof by);
    }
    tl_free(t);
}

/* Where a gelu is straight its second derivative is 0, however large x is. */
static void gelus_end_straight(void **unused)
{
    static const double at[] = {60, -45, 300, -6e4, 1e18, -1e150};
    static const tl_dtype dtypes[] = {TL_F16, TL_BF16, TL_F32, TL_F64};
    (void)unused;
    for (int k = 0; k < 8; k++) {
        const tl_dtype d = dtypes[k / 2];
        const int n = d == TL_F16 ? 4 : d == TL_F64 ? 6 : 5;
        tl_tape *t = tl_tape_new(NULL);
        tl_tensor x = tl_detach(t, tl_cast(t, tl_data(t, at, TL_F64, TL_DIMS(n)), d)), dx, slope;
        tl_require_grad(t, x);
        tl_tensor y = k % 2 ? tl_gelu_tanh(t, x) : tl_gelu(t, x);
        assert_int_equal(tl_gradients(t, tl_sum(t, y, TL_ALL, false), &x, 1, TL_NONE, &dx), TL_OK);
        dx = tl_sum(t, dx, TL_ALL, false);
        assert_int_equal(tl_gradients(t, dx, &x, 1, TL_NONE, &slope), TL_OK);
        for (int i = 0; i < n; i++)
            if (tl_item(t, tl_select(t, slope, 0, i)) != 0)
                fail_msg("%s, %g: %g", tl_dtype_name(d), at[i],
                         tl_item(t, tl_select(t, slope, 0, i)));
        tl_free(t);
    }
}

/* No variance of fewer terms than are taken off, no factor of scores without width. */
static void too_few_terms(void **unused)
{
    static const float one[] = {3, 5};
    (void)unused;
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = tl_data(t, one, TL_F32, TL_DIMS(2, 1)), none = tl_zeros(t, TL_F32, TL_DIMS(0, 3)),
              y = tl_var(t, x, TL_DIMS(1), 1, false);
    float v[3];
    assert_int_equal(tl_keep(t, y, v, 8), TL_OK);
    assert_true(isnan(v[0]) && isnan(v[1]));
    assert_int_equal(tl_keep(t, tl_var(t, none, TL_DIMS(0), 1, false), v, 12), TL_OK);
    assert_true(isnan(v[0]) && isnan(v[1]) && isnan(v[2]));
    tl_tensor q = tl_zeros(t, TL_F32, TL_DIMS(1, 1, 2, 0)),
              two = tl_reshape(t, x, TL_DIMS(1, 1, 2, 1));
    assert_int_equal(tl_keep(t, tl_attention(t, q, q, two), v, 8), TL_OK);
    assert_true(v[0] == 3 && v[1] == 4);
    tl_free(t);
}

/* More tapes than the allocator has arenas for, two each; in a child, which takes them along. */
static void thousands_of_tapes_live_at_once(void **unused)
{
    enum { TAPES = 2200 };
    int status = 0;
    (void)unused;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        for (int i = 0; i < TAPES; i++) {
            tl_tape *t = tl_tape_new(NULL);
            if (tl_item(t, tl_scalar(t, TL_F32, i)) != i)
                _exit(1);
        }
        _exit(0);
    }
    assert_true(pid > 0 && waitpid(pid, &status, 0) == pid);
    assert_int_equal(status, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
const struct CMUnitTest tl_tests_extremes[] = {
    cmocka_unit_test(the_least_number_is_divided),
    cmocka_unit_test(slices_stay_within),
    cmocka_unit_test(integers_have_ends),
    cmocka_unit_test(integers_are_sorted_to_their_ends),
    cmocka_unit_test(diagonals_may_be_anywhere),
    cmocka_unit_test(any_nan_wins_in_a_window),
    cmocka_unit_test(nothing_is_one_piece),
    cmocka_unit_test(any_target_is_ignored_alone),
    cmocka_unit_test(ignored_rows_may_hold_anything),
    cmocka_unit_test(gradients_of_ties),
    cmocka_unit_test(too_few_terms),
    cmocka_unit_test(gelus_end_straight),
    cmocka_unit_test(thousands_of_tapes_live_at_once),
    TEST(no_elements_take_no_work),
    TEST(ids_may_be_any_numbers),
};
const size_t tl_tests_extremes_count = sizeof tl_tests_extremes / sizeof *tl_tests_extremes;
