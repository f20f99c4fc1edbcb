/* fresh_dir.h: a directory dir, new for each test that is set up by make_dir, and the path of a
 * file in it. */
#ifndef TESTS_SUPPORT_FRESH_DIR_H
#define TESTS_SUPPORT_FRESH_DIR_H

#include "tests/temp_dir.h"

static temp_dir dir;
static char path[1024];

static inline int make_dir(void **unused)
{
    (void)unused;
    if (!temp_dir_make(&dir))
        return -1;
    temp_dir_file(path, &dir, "file");
    return 0;
}

static inline int remove_dir(void **unused)
{
    (void)unused;
    temp_dir_remove(&dir);
    return 0;
}

#endif
