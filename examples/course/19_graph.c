/* Lesson 19: a graph, replaced and fused, in bytes.
 *
 * Operations called one by one pass their results on through memory: each writes an array, and the
 * next one reads it again. For simple operations that takes longer than the arithmetic.
 *
 * A program that is recorded before it is run - as a graph, whose nodes are operations - need not
 * do that. Operations that work element by element can be fused: one loop does them all while the
 * element is at hand, and what lies between them is never written. And patterns that are known can
 * be replaced: square, mean, shift, rsqrt and a product below are the RMSNorm of lesson 13, for
 * which there is one operation that reads each row once.
 *
 * Neither may change the result. So we count the bytes that are moved, and compare the bits with
 * those of the same function called without a graph.
 */
#include <string.h>
#include <tally_data.h>

#include "examples/course/course.h"

enum { ROWS = 64, N = 256 };
static float x[ROWS][N];

static void program(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    (void)n_in, (void)n_out, (void)ctx;
    tl_tensor mean = tl_mean(t, tl_square(t, in[0]), TL_DIMS(1), true);
    tl_tensor y = tl_mul(t, in[0], tl_rsqrt(t, tl_shift(t, mean, 1e-5)));
    tl_tensor gate = tl_mul(t, y, tl_sigmoid(t, y)); /* silu */
    out[0] = tl_add(t, in[0], tl_scale(t, tl_tanh(t, gate), 0.5));
}

int main(void)
{
    static const struct {
        const char *name;
        bool replace, fuse;
    } way[] = {{"as it is written", false, false},
               {"fused", false, true},
               {"replaced", true, false},
               {"replaced and fused", true, true}};
    char called[65], run[65];
    bool held = true;
    size_t first = 0, last = 0;
    for (int i = 0; i < ROWS * N; i++)
        x[i / N][i % N] = (float)tl_rng_normal64(tl_rng_stream(1, "rows"), 0, (uint64_t)i);

    tl_tape *t = tl_tape_new(NULL);
    tl_tensor in = tl_data(t, x, TL_F32, TL_DIMS(ROWS, N)), out;
    program(t, &in, 1, &out, 1, NULL);
    tl_sha256(t, out, called);

    printf("x has %zu bytes\n\n", sizeof x);
    printf(
        "graph                loops   bytes read   written   together in arrays like x   result\n");
    for (int k = 0; k < 4; k++) {
        tl_graph *g = tl_trace(t, program, &in, 1, 1, NULL, .no_fuse = !way[k].fuse,
                               .no_replace = !way[k].replace);
        if (tl_graph_run(g, &in, 1, &out, 1) != TL_OK || tl_sha256(t, out, run) != TL_OK) {
            tl_free(g, t);
            return course_end(false, "every graph can be made and run.");
        }
        bool same = strcmp(called, run) == 0;
        tl_graph_stats s = tl_graph_stats_of(g);
        char bar[33] = "";
        last = s.read + s.written;
        first = k == 0 ? last : first;
        memset(bar, '=', (last / sizeof x) % sizeof bar);
        printf("%-18s   %5d   %10zu   %7zu   %-25s   %s\n", way[k].name, s.steps, s.read, s.written,
               bar, same ? "the same bits" : "other bits");
        held &= same && tl_graph_replaced(g, "rms_norm_bare") == way[k].replace;
        if (k == 3) {
            printf("\nThe last one, where an inlined value is never written:\n\n");
            tl_graph_print(g, stdout);
            printf(
                "\n(slab: memory for values in between, but for inlined ones. The second result of "
                "rms_norm is rstd.\nAs for -, k=1 and plus_one=no: no weights; each row by itself; "
                "weights are not given as 1 less than\nthey are. After a #: the line of the source "
                "that made the call.)\n");
        }
        tl_free(g);
    }
    tl_free(t);
    return course_end(held && last < first / 3, "a graph moves fewer bytes, for the same bits.");
}
