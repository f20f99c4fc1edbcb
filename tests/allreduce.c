/* allreduce: what a step costs a group of processes, beside the same step with MPI_Allreduce.
 *
 *   mpirun -n R allreduce [WIDTH [LAYERS [ROWS [ROUNDS [MICRO]]]]]
 *
 * An MLP's step on ROWS samples in all, in MICRO micro-batches of R parts: by the group; and with
 * called gradients, each added up by MPI_Allreduce, whose bits depend on R. Both in turn, in the
 * same processes. Wall clock, as ranks wait for each other: the middle of all rounds, and between
 * which two quarters of them lie. Then the bytes that a rank of the group sends, for each byte of
 * accumulators. */
#include <stdio.h>
#include <stdlib.h>

#include <tally.h>

#include "nn/group/group.h"

#if !TL_MPI
int main(void)
{
    fprintf(stderr, "allreduce: made without MPI: make TL_MPI=1\n");
    return 2;
}
#else
#include <mpi.h>

enum { MOST = 1000, OUTPUTS = 16 };

typedef struct {
    tl_model *m;
    tl_tape *t;
    tl_opt *opt;
    tl_group *g;
    int64_t width, layers, rows, micro;
} net;

static tl_tensor loss_of(const net *n, int64_t rows)
{
    tl_tape *t = n->t;
    char name[32];
    tl_tensor x = tl_fill(t, TL_F32, TL_DIMS(rows, n->width), 0.5);
    for (int64_t i = 0; i < n->layers; i++) {
        snprintf(name, sizeof name, "l%d", (int)i);
        x = tl_relu(t, tl_linear(t, n->m, name, x, n->width));
    }
    x = tl_square(t, tl_linear(t, n->m, "out", x, OUTPUTS));
    return tl_scale(t, tl_sum(t, x, TL_ALL, false), 1.0 / (double)n->rows);
}

static void by_group(const net *n)
{
    for (int64_t i = 0; i < n->micro; i++) {
        const tl_group_part p = tl_group_take(n->g, n->rows / n->micro);
        tl_group_backward(n->g, n->t, loss_of(n, p.n));
        tl_group_fold(n->g);
        tl_tape_reset(n->t);
    }
    tl_group_share(n->g);
}

static void by_allreduce(const net *n)
{
    const int64_t size = tl_group_size(n->g), rank = tl_group_rank(n->g), rows = n->rows / n->micro;
    tl_array dx;
    for (int64_t i = 0; i < n->micro; i++) {
        tl_backward(n->t, loss_of(n, rows * (rank + 1) / size - rows * rank / size));
        tl_tape_reset(n->t);
    }
    for (int i = 0; i < tl_model_count(n->m); i++) {
        const tl_named p = tl_model_at(n->m, i);
        if (p.param && tl_array_of(n->t, tl_grad(n->t, p.tensor), &dx))
            MPI_Allreduce(MPI_IN_PLACE, dx.data, (int)tl_array_count(&dx), MPI_FLOAT, MPI_SUM,
                          MPI_COMM_WORLD);
    }
}

static double step(const net *n, void (*gradients)(const net *n))
{
    MPI_Barrier(MPI_COMM_WORLD);
    const double began = MPI_Wtime();
    gradients(n);
    tl_step(n->opt, n->t);
    tl_tape_reset(n->t);
    MPI_Barrier(MPI_COMM_WORLD);
    return 1e3 * (MPI_Wtime() - began);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    static double ms[2][MOST], ratio[MOST];
    int64_t a[5] = {512, 4, 64, 21, 1};
    tl_err e = {.status = TL_OK};
    tl_link link;
    MPI_Init(&argc, &argv);
    for (int i = 0; i < 5 && i + 1 < argc; i++)
        a[i] = strtoll(argv[i + 1], NULL, 10);
    const int rounds = a[3] < 1 ? 1 : a[3] > MOST ? MOST : (int)a[3];
    if (tl_link_mpi(&link, 0, &e) != TL_OK) {
        fprintf(stderr, "allreduce: %s\n", e.message);
        return 1;
    }
    net n = {.m = tl_model_new(.seed = 1), .width = a[0], .layers = a[1], .rows = a[2]};
    n.micro = a[4] > 1 ? a[4] : 1;
    n.t = tl_tape_new(n.m);
    n.opt = tl_sgd_new(n.m, .lr = 1e-6);
    n.g = tl_group_new(n.t, link);
    tl_group_cost cost = {0};
    for (int i = -1; i < rounds && !tl_failed(n.t); i++) { /* the first makes parameters */
        const double group = step(&n, by_group),
                     all = (cost = tl_group_costs(n.g), step(&n, by_allreduce));
        if (i >= 0)
            ms[0][i] = group, ms[1][i] = all, ratio[i] = group / all;
    }
    if (tl_failed(n.t)) {
        fprintf(stderr, "allreduce: rank %d: %s\n", link.rank, tl_error(n.t));
        return 1;
    }
    for (int k = 0; k < 2; k++)
        qsort(ms[k], (size_t)rounds, sizeof **ms, by_value);
    qsort(ratio, (size_t)rounds, sizeof *ratio, by_value);
    double sent = cost.sums > 0 ? (double)cost.sent / (double)cost.sums : 0, most = sent;
    MPI_Reduce(&sent, &most, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (link.rank == 0)
        printf("%d ranks: group %.1f ms, MPI_Allreduce %.1f ms, ratio %.2f (%.2f to %.2f); a rank "
               "sends up to %.3f of accumulators\n",
               link.size, ms[0][rounds / 2], ms[1][rounds / 2], ratio[rounds / 2],
               ratio[rounds / 4], ratio[rounds - 1 - rounds / 4], most);
    tl_group_free(n.g);
    tl_free(n.opt, n.t, n.m);
    MPI_Finalize();
    return 0;
}
#endif
