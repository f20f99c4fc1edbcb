/* accuracy: how much each form of sum errs, as the table in NUMERICS.md.
 *
 *     accuracy [SEED]
 *
 * f32 terms, 32 to 131,072 of them, in 64 trials: normal (mean 0, variance 1), positive (uniform in
 * [0, 1)), near-constant
 * ((1 + 2^-16 normal) / 10). The forms are Tally's own ops - chain (matmul with ones), lanes (a
 * row), fold (axis 0, an f64 accumulator rounded once) - and a blocked sum for comparison: chains
 * of 256, then a chain of their sums. An entry is the root mean square of (sum - exact) over that
 * of exact, where exact is the exact sum rounded once to f32 (MPFR): so a form that is always right
 * has 0. Exit status 0: the seed is not the default, or every line stands in NUMERICS.md (run it
 * from the root of the repository).
 */
#include "tally_data.h"

#include <math.h>
#include <mpfr.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TRIALS = 64, MOST = 131072, BLOCK = 256, EXACT_BITS = 256, SEED = 1 };
enum { CHAIN, BLOCKED, LANES, FOLD, FORMS };
enum { NORMAL, POSITIVE, NEAR_CONSTANT, KINDS };

static const char *const kinds[] = {"normal", "positive", "near-constant"};
static float x[MOST], ones[MOST];
static double wide[MOST];

/* Terms of one trial: a stream of its own for each kind, a counter for each trial. */
static void fill(uint64_t seed, int kind, int trial)
{
    tl_rng_key key = tl_rng_stream(seed, kinds[kind]);
    if (kind == POSITIVE)
        tl_rng_fill_uniform64(wide, MOST, key, (uint64_t)trial, 0);
    else
        tl_rng_fill_normal64(wide, MOST, key, (uint64_t)trial, 0);
    for (int i = 0; i < MOST; i++)
        x[i] = (float)(kind == NEAR_CONSTANT ? (1 + wide[i] * 0x1p-16) / 10 : wide[i]);
}

static double blocked(int n)
{
    float s = 0;
    for (int at = 0; at < n; at += BLOCK) {
        float b = 0;
        for (int i = at; i < n && i < at + BLOCK; i++)
            b += x[i];
        s += b;
    }
    return (double)s;
}

static double by_form(tl_tape *t, int form, int n)
{
    tl_tape_reset(t);
    switch (form) {
    case CHAIN:
        return tl_item(t, tl_matmul(t, tl_data(t, x, TL_F32, TL_DIMS(n)),
                                    tl_data(t, ones, TL_F32, TL_DIMS(n))));
    case LANES:
        return tl_item(t, tl_sum(t, tl_data(t, x, TL_F32, TL_DIMS(1, n)), TL_DIMS(1), false));
    case FOLD: return tl_item(t, tl_sum(t, tl_data(t, x, TL_F32, TL_DIMS(n)), TL_DIMS(0), false));
    default: return blocked(n);
    }
}

/* Terms lie between 2^-80 and 2^4, sums below 2^22: EXACT_BITS hold every partial sum. */
static int add_exactly(mpfr_t sum, int from, int to)
{
    int rounded = 0;
    for (int i = from; i < to; i++)
        rounded |= mpfr_add_d(sum, sum, (double)x[i], MPFR_RNDN);
    return rounded;
}

typedef struct {
    double exact, error[FORMS]; /* sums of squares */
} tally;

static int run_trial(tl_tape *t, tally *by_size)
{
    mpfr_t sum;
    int rounded = 0;
    mpfr_init2(sum, EXACT_BITS);
    mpfr_set_zero(sum, 1);
    for (int n = 32, from = 0; n <= MOST; from = n, n *= 4, by_size++) {
        rounded |= add_exactly(sum, from, n);
        double exact = (double)mpfr_get_flt(sum, MPFR_RNDN);
        by_size->exact += exact * exact;
        for (int f = 0; f < FORMS; f++) {
            double e = by_form(t, f, n) - exact;
            by_size->error[f] += e * e;
        }
    }
    mpfr_clear(sum);
    return rounded;
}

/* Whether NUMERICS.md has the line. */
static int stands(const char *line)
{
    char there[512];
    int found = 0;
    FILE *f = fopen("NUMERICS.md", "r");
    while (f && !found && fgets(there, sizeof there, f))
        found = strcmp(there, line) == 0;
    if (f)
        fclose(f);
    return found;
}

static int print_rows(int kind, const tally *by_size)
{
    int missing = 0;
    for (int n = 32; n <= MOST; n *= 4, by_size++) {
        char line[256], *p = line;
        p += snprintf(p, 64, "| %s | %d |", kinds[kind], n);
        for (int f = 0; f < FORMS; f++)
            p += snprintf(p, 32, by_size->error[f] > 0 ? " %.1e |" : " 0 |",
                          sqrt(by_size->error[f] / by_size->exact));
        snprintf(p, 4, "\n");
        fputs(line, stdout);
        missing += !stands(line);
    }
    return missing;
}

int main(int argc, char **argv)
{
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : SEED;
    int missing = 0;
    tl_tape *t = tl_tape_new(NULL);
    for (int i = 0; i < MOST; i++)
        ones[i] = 1;
    printf("seed %llu, %d trials\n\n| terms are | terms | chain | blocked by %d | lanes | fold "
           "(f64) |\n|---|---|---|---|---|---|\n",
           (unsigned long long)seed, TRIALS, BLOCK);
    for (int kind = 0; kind < KINDS; kind++) {
        tally by_size[16] = {{0}};
        for (int trial = 0; trial < TRIALS; trial++) {
            fill(seed, kind, trial);
            if (run_trial(t, by_size))
                return fprintf(stderr, "an exact sum was rounded\n"), 1;
        }
        missing += print_rows(kind, by_size);
    }
    if (tl_failed(t))
        return fprintf(stderr, "%s\n", tl_error(t)), 1;
    if (seed == SEED && missing > 0)
        printf("\n%d of these lines do not stand in NUMERICS.md\n", missing);
    tl_free(t);
    return seed == SEED && missing > 0;
}
