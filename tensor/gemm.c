/* gemm.c: matrix multiplication around the kernels: orientation, cache blocks, tasks.
 *
 * Nothing here computes a value. Blocks along k change no bit, because the kernels continue each
 * chain from C; neither do tasks, because they divide C. kernels/gemm.h has the contract.
 */
#include "tensor/kernels/gemm.h"

#include <stddef.h>

enum {
    DEPTH = 512,              /* k of a packed block: a strip of B stays in the first-level cache */
    ACROSS = 128,             /* k of a block where each k of A is a cache line of its own */
    BESIDE = 16,              /* rows of B in a block where they come from memory */
    BLOCK_BYTES = 384 << 10,  /* of a block of A, which stays in the second-level cache */
    PANEL_BYTES = 2 << 20,    /* of a block of B */
    BESIDE_COUNT = 512 << 10, /* elements: of more, B is taken to come from memory */
    BESIDE_BYTES = 64 << 10,  /* of a block of BESIDE rows */
    IN_PLACE_BYTES = 1 << 20, /* up to this size operands are not copied if their layout allows */
    TASK_WORK = 1 << 17,      /* fused multiply-adds that are worth a thread */
};

/* How one serial multiplication goes: which operands are packed, and the block sizes. */
typedef struct {
    const tl_gemm_kernel *kernel;
    int64_t size; /* bytes of an element of the compute type */
    bool pack_a, pack_b;
    bool copy_a; /* copied with its rows or columns kept contiguous, which is cheaper than panels */
    bool lines;  /* B is read along its columns */
    bool beside; /* B comes from memory for few rows of A, some rows of it at a time */
    int64_t strip, mc, nc, kc;
    int64_t a_bytes, b_bytes; /* of scratch */
} layout;

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

/* The size of blocks of n: at most `most`, nearly equal, a multiple of unit. */
static int64_t even_blocks(int64_t n, int64_t most, int64_t unit)
{
    most = most < unit ? unit : most / unit * unit;
    if (n <= most)
        return n;
    const int64_t count = (n + most - 1) / most;
    return round_up((n + count - 1) / count, unit);
}

/* Whether computing C^T = B^T A^T is faster: B is stored transposed, so packing it takes work, and
 * it is so much larger than A and C that packing A and transposing C costs less. A's rows become
 * the lanes of vectors and must fill them. With only one vector the tile is slower, so the gain
 * must be larger. */
static bool turning_pays(const tl_gemm_kernel *kernel, const tl_gemm_args *g)
{
    const int64_t lanes = kernel->lanes, spare = round_up(g->m, lanes) - g->m;
    return g->b.type == (g->f64 ? TL_GEMM_F64 : TL_GEMM_F32) && g->b.rs == 1 && g->b.cs != 1 &&
           g->csc == 1 && g->m >= lanes && 8 * spare <= g->m &&
           g->m * (g->n + g->k) <= g->n * g->k / (g->m < 2 * lanes ? 8 : 2);
}

/* The tile wants contiguous rows of C. Where C's columns are contiguous instead, where C is a
 * single column, and where it saves packing B, this turns the problem into C^T = B^T A^T. The
 * chains are the same, since the factors of a product commute. */
static tl_gemm_args oriented(const tl_gemm_table *t, const tl_gemm_args *g)
{
    tl_gemm_args o = *g;
    if (g->k <= 0) { /* A and B are empty: any address will do */
        o.k = 0;
        o.a = o.b = (tl_gemm_mat){g->c, g->f64 ? TL_GEMM_F64 : TL_GEMM_F32, 0, 1};
        return o;
    }
    if (g->b_row != NULL) /* only B can be gathered */
        return o;
    const bool column = g->n == 1 && g->m > 1;
    if (column || (g->m > 1 && g->csc != 1 && g->rsc == 1) ||
        turning_pays(&t->kernel[g->f64 ? TL_GEMM_IN_F64 : TL_GEMM_IN_F32], g)) {
        o.m = g->n;
        o.n = g->m;
        o.a = (tl_gemm_mat){g->b.data, g->b.type, g->b.cs, g->b.rs};
        o.b = (tl_gemm_mat){g->a.data, g->a.type, g->a.cs, g->a.rs};
        o.rsc = g->csc;
        o.csc = g->rsc;
    }
    return o;
}

static layout lay_out(const tl_gemm_table *t, const tl_gemm_args *g)
{
    layout y = {.size = g->f64 ? 8 : 4};
    const tl_gemm_type type = g->f64 ? TL_GEMM_F64 : TL_GEMM_F32;
    const bool wide = g->f64 && g->a.type != TL_GEMM_F64 && g->b.type != TL_GEMM_F64;
    const tl_gemm_kernel *kernel = &t->kernel[wide     ? TL_GEMM_WIDE
                                              : g->f64 ? TL_GEMM_IN_F64
                                                       : TL_GEMM_IN_F32];
    /* How many rows of C repay a copy of B: fewer where the rows of B share cache sets, or where a
     * strip has no more than a cache line of each. */
    const bool apart = g->b.rs * y.size % 4096 != 0 && kernel->nr * y.size > 64;
    const int64_t many = (apart ? 24 : 4) * kernel->mr;
    y.kernel = kernel;
    y.pack_b = g->b_row != NULL || g->b.type != type || (g->b.cs != 1 && g->n > 1) ||
               (g->m > many && g->k * g->n * y.size > IN_PLACE_BYTES);
    y.lines = kernel->lines != NULL && y.pack_b && g->b_row == NULL && g->b.rs == 1 &&
              (g->b.type == type || !g->f64) && g->csc == 1 && g->m <= TL_GEMM_LINES &&
              g->n >= kernel->lanes;
    y.pack_b &= !y.lines;
    /* What is read of one row at a time is short, and the next row lies in another page: more of
     * them at once are too many streams for the hardware prefetcher. */
    y.beside = g->b.cs == 1 && g->b_row == NULL && !y.lines &&
               (y.pack_b ? g->m <= 2 * kernel->mr : g->m > 1 && g->m <= 4 * kernel->mr) &&
               g->k * g->n > BESIDE_COUNT;
    /* Along k, columns of A touch a page each; rows are streams that the hardware prefetches. */
    y.pack_a = g->a.type != type || (!y.lines && g->a.cs != 1 && g->n > 2 * kernel->nr &&
                                     g->m * g->k * y.size > IN_PLACE_BYTES);
    y.strip = tl_gemm_strip(kernel, g->m, g->csc == 1 ? g->n : 0);
    if (y.pack_b && g->m <= kernel->few)
        y.strip /= 2;
    y.kc = g->k;
    y.mc = g->m;
    y.nc = g->n;
    y.copy_a = y.pack_a && (g->a.cs == 1 || g->a.rs == 1);
    if (y.beside) {
        y.kc = even_blocks(g->k, y.pack_b || g->m <= kernel->mr ? BESIDE : 2 * BESIDE, 1);
    } else if ((y.pack_a || y.pack_b) && !y.lines) {
        y.kc = even_blocks(g->k, DEPTH, 1);
        y.mc = even_blocks(g->m, BLOCK_BYTES / (y.kc * y.size + 1), kernel->mr);
    } else if (g->a.cs != 1) {
        y.kc = even_blocks(g->k, ACROSS, 1);
    }
    y.pack_a &= !y.copy_a;
    if (y.copy_a)
        y.a_bytes = round_up(y.size * (g->a.cs == 1 ? y.mc * round_up(y.kc, kernel->lanes)
                                                    : y.kc * round_up(y.mc, kernel->lanes)),
                             64);
    if (y.pack_a)
        y.a_bytes = round_up(y.mc * y.kc * y.size, 64);
    if (y.pack_b) {
        y.nc = even_blocks(g->n, (y.beside ? BESIDE_BYTES : PANEL_BYTES) / (y.kc * y.size + 1),
                           y.strip);
        if (!y.beside && y.a_bytes == 0 && g->m <= 2 * kernel->mr)
            y.nc = min64(y.nc, y.strip); /* uses each strip while it is in the first-level cache */
        y.b_bytes = round_up(round_up(y.nc, kernel->lanes) * y.kc * y.size, 64);
    }
    return y;
}

static tl_gemm_mat submatrix(const tl_gemm_mat *m, int64_t i, int64_t j)
{
    tl_gemm_mat s = *m;
    s.data = (const char *)m->data + (i * m->rs + j * m->cs) * tl_gemm_size(m->type);
    return s;
}

/* Multiplies one block of k (from p) into all rows and one block of columns (from j) of C: packs B,
 * then A block by block. */
static void columns_block(const tl_gemm_args *g, const layout *y, int64_t j, int64_t p,
                          char *scratch)
{
    const tl_gemm_kernel *kernel = y->kernel;
    const bool gathered = g->b_row != NULL;
    tl_gemm_mat b = gathered ? g->b : submatrix(&g->b, p, j);
    tl_gemm_block x = {.n = min64(y->nc, g->n - j),
                       .k = min64(y->kc, g->k - p),
                       .b = b.data,
                       .brs = b.rs,
                       .bcs = b.cs,
                       .b_type = b.type,
                       .a_packed = y->pack_a,
                       .b_packed = y->pack_b,
                       .b_beside = y->beside,
                       .accumulate = g->accumulate || p > 0,
                       .strip = y->strip,
                       .rsc = g->rsc,
                       .csc = g->csc};
    if (y->pack_b) {
        if (gathered)
            kernel->gather_b(b.data, g->b_row + p, g->b_col + j, x.n, x.k, y->strip,
                             scratch + y->a_bytes);
        else
            kernel->pack_b(&b, x.n, x.k, y->strip, scratch + y->a_bytes);
        x.b = scratch + y->a_bytes;
    }
    for (int64_t i = 0; i < g->m; i += y->mc) {
        tl_gemm_mat a = submatrix(&g->a, i, p);
        x.m = min64(y->mc, g->m - i);
        x.a = a.data;
        x.ars = a.rs;
        x.acs = a.cs;
        if (y->pack_a) {
            kernel->pack_a(&a, x.m, x.k, y->strip, scratch);
            x.a = scratch;
        } else if (y->copy_a && a.cs == 1) { /* pack_b copies the rows as one strip of a B */
            kernel->pack_b(&a, x.k, x.m, x.k, scratch);
            x.a = scratch;
            x.ars = round_up(x.k, kernel->lanes);
        } else if (y->copy_a) {
            const tl_gemm_mat turned = {a.data, a.type, a.cs, 1};
            kernel->pack_b(&turned, x.m, x.k, x.m, scratch);
            x.a = scratch;
            x.acs = round_up(x.m, kernel->lanes);
        }
        x.c = (char *)g->c + (i * g->rsc + j * g->csc) * y->size;
        (y->lines ? kernel->lines : kernel->block)(&x);
    }
}

static void run(const tl_gemm_table *t, const tl_gemm_args *g, void *scratch)
{
    const layout y = lay_out(t, g);
    if (g->m <= 0 || g->n <= 0)
        return;
    for (int64_t j = 0; j < g->n; j += y.nc) {
        int64_t p = 0;
        do { /* once even for k = 0, because C is stored all the same */
            columns_block(g, &y, j, p, scratch);
            p += y.kc;
        } while (p < g->k);
    }
}

static int64_t scratch_bytes(const tl_gemm_table *t, const tl_gemm_args *g)
{
    const layout y = lay_out(t, g);
    return y.a_bytes + y.b_bytes;
}

void tl_gemm_serial(const tl_gemm_table *t, const tl_gemm_args *g, void *scratch)
{
    const tl_gemm_args o = oriented(t, g);
    run(t, &o, scratch);
}

int64_t tl_gemm_scratch_bytes(const tl_gemm_table *t, const tl_gemm_args *g)
{
    const tl_gemm_args o = oriented(t, g);
    return scratch_bytes(t, &o);
}

/* The arguments of a task: its rows of A, columns of B and block of C. */
static tl_gemm_args task_args(const tl_gemm_plan *plan, int64_t task)
{
    tl_gemm_args part = plan->args;
    const int64_t i = task / plan->across * plan->rows, j = task % plan->across * plan->cols;
    part.m = min64(plan->rows, part.m - i);
    part.n = min64(plan->cols, part.n - j);
    part.a = submatrix(&part.a, i, 0);
    if (part.b_row != NULL)
        part.b_col += j;
    else
        part.b = submatrix(&part.b, 0, j);
    part.c = (char *)part.c + (i * part.rsc + j * part.csc) * (part.f64 ? 8 : 4);
    return part;
}

void tl_gemm_plan_split(tl_gemm_plan *plan, int64_t rows, int64_t cols)
{
    plan->rows = rows;
    plan->cols = cols;
    plan->across = (plan->args.n + cols - 1) / cols;
    plan->tasks = plan->across * ((plan->args.m + rows - 1) / rows);
    plan->scratch_bytes = 0;
    for (int64_t task = 0; task < plan->tasks; task++) {
        const tl_gemm_args part = task_args(plan, task);
        const int64_t bytes = scratch_bytes(plan->table, &part);
        if (bytes > plan->scratch_bytes)
            plan->scratch_bytes = bytes;
    }
}

/* Splits C into a grid of at most `threads` blocks: the grid whose largest block costs least,
 * counting its packing (per row and column). */
static void divide(tl_gemm_plan *plan, const tl_gemm_kernel *kernel, int64_t threads)
{
    const tl_gemm_args *g = &plan->args;
    double best = -1;
    int64_t best_rows = 0, best_cols = 0;
    for (int64_t down = 1; down <= threads; down++) {
        const int64_t across = threads / down;
        const int64_t rows = min64(g->m, round_up((g->m + down - 1) / down, kernel->mr));
        const int64_t cols = min64(g->n, round_up((g->n + across - 1) / across, kernel->nr));
        const double cost = (double)rows * (double)cols + 8 * (double)(rows + cols);
        if (best < 0 || cost < best) {
            best = cost;
            best_rows = rows;
            best_cols = cols;
        }
    }
    tl_gemm_plan_split(plan, best_rows, best_cols);
}

int64_t tl_gemm_plan_make(const tl_gemm_table *t, const tl_gemm_args *g, int threads,
                          tl_gemm_plan *plan)
{
    *plan = (tl_gemm_plan){.table = t, .args = oriented(t, g)};
    g = &plan->args;
    if (g->m <= 0 || g->n <= 0)
        return 0;
    const double work = (double)g->m * (double)g->n * (double)g->k / TASK_WORK;
    const layout whole = lay_out(t, g);
    divide(plan, whole.kernel, work < 1 ? 1 : work < threads ? (int64_t)work : threads);
    return plan->tasks;
}

void tl_gemm_task(const tl_gemm_plan *plan, int64_t task, void *scratch)
{
    const tl_gemm_args part = task_args(plan, task);
    run(plan->table, &part, scratch);
}
