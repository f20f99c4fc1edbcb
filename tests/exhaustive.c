/* exhaustive: one f32 function over all 2^32 inputs against MPFR.
 *
 *     exhaustive FN|all [--level scalar|v2|v3|v4|neon] [--threads N] [--near BITS | --digest]
 *
 * Prints the number of inputs, of wrong results (not the correctly rounded ones;
 * any NaN is as good as another) and the digest: SHA-256 over the SHA-256 digests
 * of the 4096 consecutive blocks of 2^20 outputs, inputs in the order of their bits
 * as uint32, outputs as little-endian words, every NaN as 0x7fc00000. Exit status 0:
 * no wrong result, and the digest is the one in tests/golden/math32.txt. all: every
 * function at every level that the processor has. When none fails and v4 was among them, the hash
 * of the sources (tests/support/math_sources.h) is written there, so that the proof holds for them.
 * --near lists the hardest inputs: those whose exact value lies within 2^-BITS (relative) of the
 * middle between two floats. --digest leaves MPFR out: once the golden digest stands, another level
 * or compiler need only show the same one.
 */
#define _POSIX_C_SOURCE 200809L

#include "tests/math_run.h"
#include "tests/support/math_sources.h"

#include <openssl/evp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { BLOCK = 1 << 20, BLOCKS = 4096, PIECE = 1 << 14, DIGEST = 32, SHOWN = 40 };

typedef struct {
    const tl_judge *judge;
    const tl_math_table *table;
    const char *level;
    int threads, near_bits, digest_only, tty, one_level;
    atomic_int next, done;
    atomic_llong wrong, asked;
    unsigned char digest[BLOCKS][DIGEST];
} job;

/* List x if its exact value is close to the middle between its two neighbours among the floats. */
static void show_if_near(const job *j, float x, float right)
{
    double d = tl_judge_double(j->judge, (double)x);
    if (!isfinite(d) || d == 0 || !isfinite(right))
        return;
    double margin = fabs(d) * TL_JUDGE_MARGIN;
    if ((float)(d - margin) == (float)(d + margin))
        return;
    mpfr_t y, gap;
    mpfr_init2(y, TL_JUDGE_BITS);
    mpfr_init2(gap, TL_JUDGE_BITS);
    tl_judge_mpfr(j->judge, y, (double)x);
    int side = mpfr_cmp_d(y, (double)right);
    double next = (double)nextafterf(right, side > 0 ? INFINITY : -INFINITY);
    double middle = isfinite(next) ? ((double)right + next) / 2 : copysign(0x1.ffffffp127, next);
    mpfr_sub_d(gap, y, middle, MPFR_RNDN);
    mpfr_div(gap, gap, y, MPFR_RNDN);
    double g = fabs(mpfr_get_d(gap, MPFR_RNDN));
    if (side != 0 && g < ldexp(1, -j->near_bits))
        printf("near %s %08x %08x 2^%.2f\n", j->judge->name, tl_run_bits32(x), tl_run_bits32(right),
               log2(g));
    mpfr_clear(y);
    mpfr_clear(gap);
}

static void judge_all(job *j, const float *x, const float *y)
{
    int64_t asked = 0;
    for (int i = 0; i < PIECE; i++) {
        float right = tl_judge_float(j->judge, x[i], &asked);
        uint32_t got = tl_run_bits32(y[i]), want = tl_run_bits32(right);
        if (got != want && atomic_fetch_add(&j->wrong, 1) < SHOWN)
            printf("%swrong: %s(%08x) = %08x, should be %08x  (x = %a)\n", j->tty ? "\r" : "",
                   j->judge->name, tl_run_bits32(x[i]), got, want, (double)x[i]);
        if (j->near_bits)
            show_if_near(j, x[i], right);
    }
    atomic_fetch_add(&j->asked, asked);
}

/* In pieces that stay in the cache. */
static void run_block(job *j, int block, float *x, float *y, EVP_MD_CTX *digest)
{
    EVP_DigestInit_ex(digest, EVP_sha256(), NULL);
    for (uint32_t at = 0; at < BLOCK; at += PIECE) {
        for (uint32_t i = 0; i < PIECE; i++) {
            uint32_t u = (uint32_t)block * BLOCK + at + i;
            memcpy(&x[i], &u, 4);
        }
        tl_run32(j->table, j->judge, PIECE, x, y);
        if (!j->digest_only)
            judge_all(j, x, y);
        for (int i = 0; i < PIECE; i++) {
            uint32_t got = tl_run_bits32(y[i]);
            unsigned char bytes[4] = {(unsigned char)got, (unsigned char)(got >> 8),
                                      (unsigned char)(got >> 16), (unsigned char)(got >> 24)};
            memcpy(&y[i], bytes, 4);
        }
        EVP_DigestUpdate(digest, y, PIECE * 4);
    }
    EVP_DigestFinal_ex(digest, j->digest[block], NULL);
}

static void *worker(void *arg)
{
    job *j = arg;
    float *x = malloc(PIECE * sizeof *x), *y = malloc(PIECE * sizeof *y);
    EVP_MD_CTX *digest = EVP_MD_CTX_new();
    if (!x || !y || !digest)
        abort();
    for (int b; (b = atomic_fetch_add(&j->next, 1)) < BLOCKS;) {
        run_block(j, b, x, y, digest);
        int done = atomic_fetch_add(&j->done, 1) + 1;
        if (j->tty && done % 16 == 0) {
            fprintf(stderr, "\r%s %3d%%", j->judge->name, done * 100 / BLOCKS);
            fflush(stderr);
        }
    }
    free(x);
    free(y);
    EVP_MD_CTX_free(digest);
    mpfr_free_cache();
    return NULL;
}

static int parse(int argc, char **argv, job *j)
{
    const char *level_name = NULL;
    j->threads = (int)sysconf(_SC_NPROCESSORS_ONLN);
    j->judge = argc > 1 ? tl_judge_named(strcmp(argv[1], "all") ? argv[1] : tl_judges[0].name)
                        : NULL;
    for (int i = 2; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--digest")) {
            j->digest_only = 1;
            continue;
        }
        if (!strcmp(argv[i], "--level"))
            level_name = value, j->one_level = 1;
        else if (!strcmp(argv[i], "--threads"))
            j->threads = atoi(value);
        else if (!strcmp(argv[i], "--near"))
            j->near_bits = atoi(value);
        else
            return 0;
        i++;
    }
    for (int i = 0; i < TL_RUN_LEVELS; i++)
        if ((!level_name || !strcmp(tl_run_levels[i].name, level_name)) &&
            tl_run_here(tl_run_levels[i].name)) {
            j->table = tl_run_levels[i].table;
            j->level = tl_run_levels[i].name;
        }
    return j->judge && j->table && j->threads >= 1 && j->threads <= 256;
}

/* One function over all inputs; true when none is wrong and the digest is the golden one. */
static int run(job *j)
{
    static pthread_t thread[256];
    for (int i = 0; i < j->threads; i++)
        if (pthread_create(&thread[i], NULL, worker, j))
            abort();
    for (int i = 0; i < j->threads; i++)
        pthread_join(thread[i], NULL);

    unsigned char all[DIGEST];
    char hex[2 * DIGEST + 1];
    EVP_Digest(j->digest, sizeof j->digest, all, NULL, EVP_sha256(), NULL);
    for (int i = 0; i < DIGEST; i++)
        snprintf(hex + 2 * i, 3, "%02x", all[i]);
    int agrees = tl_math_golden(j->judge->name, hex);
    printf("%s%s, level %s: %lld inputs, ", j->tty ? "\r" : "", j->judge->name, j->level,
           (long long)BLOCKS * BLOCK);
    if (j->digest_only)
        printf("digest only\n");
    else
        printf("%lld wrong, %lld decided by MPFR\n", (long long)j->wrong, (long long)j->asked);
    printf("%s %s%s\n", j->judge->name, hex, agrees ? "" : "  (not the golden digest)");
    fflush(stdout);
    return !j->wrong && agrees;
}

/* The golden file's line of the sources becomes these. */
static int renew(const char *hex)
{
    static char text[1 << 16];
    const char *path = TL_ROOT "/tests/golden/math32.txt";
    FILE *f = fopen(path, "r+");
    if (!f)
        return 0;
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    char *line = strstr(text, "\nsources ");
    int good = line && strlen(line) > 9 + 64 && fseek(f, line + 9 - text, SEEK_SET) == 0 &&
               fputs(hex, f) >= 0;
    return fclose(f) == 0 && good;
}

#if TL_HAVE_V4 && !defined(TL_NO_TRIALS)
enum { EVERY_WAY = 1 };
#else
enum { EVERY_WAY = 0 }; /* the code of another level's trials is not in this program */
#endif

static int run_level(job *j, const tl_run_level *level)
{
    int good = 1;
    j->level = level->name;
    j->table = level->table;
    for (int i = 0; i < TL_JUDGES; i++) {
        j->judge = &tl_judges[i];
        j->next = j->done = 0;
        j->wrong = j->asked = 0;
        good &= run(j);
    }
    return good;
}

/* Every function at the level asked for, or at all: each is code of its own, so only all of them
 * renew the proof. The sources are hashed before the runs and after: they are those that were run
 * only if the program was built from them. */
static int run_all(job *j)
{
    char before[TL_SHA256_HEX], after[TL_SHA256_HEX];
    int good = tl_math_sources(before), whole = EVERY_WAY && !j->one_level;
    const char *only = j->one_level ? j->level : NULL;
    for (int l = 0; l < TL_RUN_LEVELS; l++) {
        if (only && strcmp(tl_run_levels[l].name, only) != 0)
            continue;
        if (tl_run_here(tl_run_levels[l].name))
            good &= run_level(j, &tl_run_levels[l]);
        else
            whole = 0;
    }
    if (!good || (whole && !(tl_math_sources(after) && !strcmp(before, after) && renew(after)))) {
        printf("FAILED: the proof is not renewed\n");
        return 0;
    }
    printf(whole
               ? "every function at every level: the proof holds for these sources\n"
               : "no function fails; only all levels up to v4 in one run, built with trials, renew "
                 "the proof\n");
    return 1;
}

int main(int argc, char **argv)
{
    static job j;
    if (!parse(argc, argv, &j)) {
        fprintf(stderr, "usage: exhaustive FN|all [--level scalar|v2|v3|v4|neon] [--threads N] "
                        "[--near BITS | --digest]\nFN:");
        for (int i = 0; i < TL_JUDGES; i++)
            fprintf(stderr, " %s", tl_judges[i].name);
        fprintf(stderr, "\n");
        return 2;
    }
    j.tty = isatty(2);
    return !(strcmp(argv[1], "all") ? run(&j) : run_all(&j));
}
