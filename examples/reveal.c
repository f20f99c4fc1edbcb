/* reveal: in which order do functions add? Found from outside, by masks of huge and unit values.
 *
 *     reveal [K] [blis]      sums of K terms (default 600); blis: only BLIS's
 *
 * First Tally's own sums, whose order the number of terms alone decides; then its matmul under
 * TL_FAST, that is BLIS as it comes, whose order depends on the shape around the sum and on the
 * kernels it chooses for the processor. BLIS_ARCH_TYPE forces others (BLIS 0.9: 0 is skx, 3
 * haswell). Source: see tensor/reveal/reveal.h. */
#include <tally_extend.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT = 600, MOST = 5000 }; /* terms: the work grows with their square */

/* A sum of n terms: row 0 of an (m, n) matrix. */
typedef struct {
    tl_tape *tape;
    const char *what;
    int64_t m, columns; /* of the product around it */
    unsigned mode;
} subject;

static double plain_loop(void *ctx, int64_t n, const void *x)
{
    float s = 0;
    (void)ctx;
    for (int64_t i = 0; i < n; i++)
        s += ((const float *)x)[i];
    return (double)s;
}

static double row(void *ctx, int64_t n, const void *x)
{
    tl_tape *t = ((subject *)ctx)->tape;
    tl_tape_reset(t);
    return tl_item(t, tl_sum(t, tl_data(t, x, TL_F32, TL_DIMS(1, n)), TL_DIMS(1), false));
}

static double batch(void *ctx, int64_t n, const void *x)
{
    tl_tape *t = ((subject *)ctx)->tape;
    tl_tape_reset(t);
    return tl_item(t, tl_sum(t, tl_data(t, x, TL_F32, TL_DIMS(n)), TL_DIMS(0), false));
}

/* The first element of (m, n) @ (n, columns): the terms are the first row, all else is 1. */
static double product(void *ctx, int64_t n, const void *x)
{
    subject *s = ctx;
    tl_tape *t = s->tape;
    tl_tape_reset(t);
    int depth = tl_mode_push(t, s->mode);
    tl_tensor first = tl_data(t, x, TL_F32, TL_DIMS(1, n)), a = first;
    if (s->m > 1) {
        tl_tensor rest = tl_fill(t, TL_F32, TL_DIMS(s->m - 1, n), 1);
        a = tl_concat(t, ((tl_tensor[]){first, rest}), 2, 0);
    }
    tl_tensor y = tl_matmul(t, a, tl_fill(t, TL_F32, TL_DIMS(n, s->columns), 1));
    tl_mode_pop(t, depth);
    return tl_item(t, tl_select(t, tl_select(t, y, 0, 0), 0, 0));
}

static int lost; /* why an order could not be written */

/* Each order is written when it is found, into a pipe too. */
static void written(void)
{
    errno = EIO; /* if a write has failed before this one, which may say more */
    if ((fflush(stdout) != 0 || ferror(stdout)) && lost == 0)
        lost = errno;
}

static int show(tl_sum_fn *sum, subject *s, int64_t n)
{
    tl_order *order;
    tl_err err = {0};
    printf("\n%s, %lld terms\n", s->what, (long long)n);
    if (tl_reveal_order(sum, s, TL_F32, n, &order, &err) != TL_OK) {
        printf("  %s %s\n", err.message, tl_error(s->tape));
        written();
        return 1;
    }
    tl_order_print(stdout, order, NULL);
    written();
    tl_order_free(order);
    return 0;
}

static int show_tally(tl_tape *t, int64_t k)
{
    int bad = show(plain_loop, &(subject){t, "a plain loop", 0, 0, 0}, k);
    bad |= show(row,
                &(subject){t, "tl_sum within a row: 32 lanes that meet by halves (NUMERICS 3.1)", 0,
                           0, 0},
                k);
    bad |= show(batch, &(subject){t, "tl_sum over axis 0: a fold (NUMERICS 3.2)", 0, 0, 0}, k);
    return bad | show(product,
                      &(subject){t, "tl_matmul: one chain (NUMERICS 3.3), in any shape", 64, 64,
                                 TL_INVARIANT},
                      k);
}

static int show_blis(tl_tape *t, int64_t k)
{
    static const int64_t shapes[][2] = {{1, 1}, {1, 64}, {4, 4}, {64, 64}};
    const char *kernels = getenv("BLIS_ARCH_TYPE");
    int bad = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        char what[128];
        snprintf(what, sizeof what,
                 "TL_FAST matmul (BLIS, if built with it)%s%s in a product of %lld by %lld",
                 kernels ? " with BLIS_ARCH_TYPE=" : "", kernels ? kernels : "",
                 (long long)shapes[i][0], (long long)shapes[i][1]);
        bad |= show(product, &(subject){t, what, shapes[i][0], shapes[i][1], TL_FAST}, k);
    }
    return bad;
}

static int usage(FILE *f)
{
    fprintf(f,
            "usage: reveal [K] [blis]      the orders of sums of K terms, 1 to %d (default %d); "
            "blis: only BLIS's\n",
            MOST, DEFAULT);
    return f == stdout ? 0 : 2;
}

int main(int argc, char **argv)
{
    long k = DEFAULT;
    char *end = "";
    if (argc > 1 && (strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "--help") == 0))
        return usage(stdout);
    int only_blis = argc > 1 && strcmp(argv[argc - 1], "blis") == 0;
    if (argc - only_blis > 1)
        k = strtol(argv[1], &end, 10);
    if (argc - only_blis > 2 || *end != '\0' || k < 1 || k > MOST)
        return usage(stderr);
    tl_tape *t = tl_tape_new(NULL);
    int bad = only_blis ? 0 : show_tally(t, k);
    bad |= show_blis(t, k);
    if (lost != 0)
        fprintf(stderr, "reveal: cannot write the output: %s\n", strerror(lost));
    tl_free(t);
    return bad || lost != 0;
}
