/* names.h: names given on a command line are among those that there are, or the nearest is said. */
#ifndef TESTS_SUPPORT_NAMES_H
#define TESTS_SUPPORT_NAMES_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* How many letters must be put in, left out or changed; of long names the first 63 count. */
static inline int names_apart(const char *a, const char *b)
{
    int row[64], n = (int)strnlen(b, 63);
    for (int k = 0; k <= n; k++)
        row[k] = k;
    for (int i = 1; *a != '\0' && i < 64; i++, a++)
        for (int k = 1, before = row[0]++; k <= n; k++) {
            int change = before + (*a != b[k - 1]),
                least = row[k - 1] < row[k] ? row[k - 1] : row[k];
            before = row[k];
            row[k] = change <= least ? change : least + 1;
        }
    return row[n];
}

/* at(i) is name i, NULL behind the last. */
static inline bool names_known(const char *what, int n, char *const *given,
                               const char *(*at)(int i))
{
    bool all = true;
    for (int k = 0; k < n; k++) {
        const char *nearest = "";
        int least = 1 << 20;
        for (int i = 0; at(i) != NULL && least > 0; i++)
            if (names_apart(at(i), given[k]) < least) {
                least = names_apart(at(i), given[k]);
                nearest = at(i);
            }
        if (least > 0)
            fprintf(stderr, "there is no %s '%s'", what, given[k]);
        if (least > 0 && 2 * least <= (int)strlen(given[k]))
            fprintf(stderr, "; the nearest is '%s'", nearest);
        if (least > 0)
            fputc('\n', stderr);
        all &= least == 0;
    }
    return all;
}

#endif
