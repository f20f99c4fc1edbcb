/* grouped: trains the programs of tests/support/grouped.c as one rank of those that mpirun has
 * started, or alone, and prints what each ends with.
 *
 *   grouped [SEED]     of how batches are cut: no line may depend on it, nor on the number of ranks
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/grouped.h"

static void no_end(void *ctx, bool failed) { (void)ctx, (void)failed; }

int main(int argc, char **argv)
{
    tl_link link, each;
    tl_err e = {.status = TL_OK};
    const uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    int bad = 0;
    if (tl_link_mpi(&link, 0, &e) != TL_OK) {
        fprintf(stderr, "grouped: %s\n", e.message);
        return 2;
    }
    each = link;
    each.end = no_end;
    for (int i = 0; i < 4 * grouped_count && !bad; i++) {
        const grouped_program *p = &grouped_programs[i / 4];
        const bool compiled = i % 4 > 1;
        const tl_dtype dtype = i % 2 ? TL_BF16 : TL_F32;
        char out[GROUPED_HASH];
        grouped_train(p, dtype, compiled, each, seed + (uint64_t)i, out);
        bad = strchr(out, ' ') != out + 64;
        if (link.rank == 0 || bad)
            printf("%-16s %-5s %-8s %s\n", p->name, tl_dtype_name(dtype),
                   compiled ? "compiled" : "called", out);
    }
    fflush(stdout);
    if (link.end != NULL)
        link.end(link.ctx, bad);
    return bad;
}
