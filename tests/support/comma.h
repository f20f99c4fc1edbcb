/* comma.h: a locale in which the decimal point is a comma, on systems that have none, too. */
#ifndef TESTS_SUPPORT_COMMA_H
#define TESTS_SUPPORT_COMMA_H

#include <locale.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/temp_dir.h"

/* A glibc's LC_NUMERIC, as its localedef writes it: a number for the kind of file, that of the
 * fields, where each begins, and they: decimal point, separator of thousands, grouping, both signs
 * again as wide characters, the charset. */
static inline bool comma_make(const temp_dir *d)
{
    static const struct {
        uint32_t kind, n, begin[6];
        char point[2], thousands[2], grouping[4];
        uint32_t wide_point, wide_thousands;
        char charset[16];
    } file = {.kind = 0x20031114,
              .n = 6,
              .begin = {32, 34, 36, 40, 44, 48},
              .point = ",",
              .thousands = ".",
              .grouping = "\3\3",
              .wide_point = ',',
              .wide_thousands = '.',
              .charset = "ANSI_X3.4-1968"};
    char folder[1024];
    return mkdir(temp_dir_file(folder, d, "comma"), 0700) == 0 &&
           temp_file_write(folder, "LC_NUMERIC", &file, sizeof file - 1);
}

/* Sets it for the process; false: this system has no such locale. */
static inline bool comma_enter(void)
{
    const char *const installed[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "ru_RU.UTF-8"};
    temp_dir d, folder;
    const char *got = NULL, *users = getenv("LOCPATH");
    char path[1024];
    snprintf(path, sizeof path, "%s", users == NULL ? "" : users);
    if (temp_dir_make(&d)) {
        snprintf(folder.path, sizeof folder.path, "%.500s/comma", d.path);
        if (comma_make(&d) && setenv("LOCPATH", d.path, 1) == 0)
            got = setlocale(LC_NUMERIC, "comma");
        users == NULL ? unsetenv("LOCPATH") : setenv("LOCPATH", path, 1);
        temp_dir_remove(&folder);
        temp_dir_remove(&d);
    }
    for (size_t i = 0; got == NULL && i < sizeof installed / sizeof *installed; i++)
        got = setlocale(LC_NUMERIC, installed[i]);
    return got != NULL && strcmp(localeconv()->decimal_point, ",") == 0;
}

/* Back to C; whether it was still set. */
static inline bool comma_leave(void)
{
    const bool kept = strcmp(localeconv()->decimal_point, ",") == 0;
    setlocale(LC_NUMERIC, "C");
    return kept;
}

#endif
