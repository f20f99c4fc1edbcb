/* fresh.h: a tape t over a model m, new for each TEST of the file that includes this, as the last
 * of its headers. */
#ifndef TESTS_SUPPORT_FRESH_H
#define TESTS_SUPPORT_FRESH_H

#include <tally.h>

static tl_tape *t;
static tl_model *m;

static inline int fresh_begin(void **unused)
{
    (void)unused;
    m = tl_model_new(.seed = 5);
    t = tl_tape_new(m);
    return t == NULL;
}

static inline int fresh_end(void **unused)
{
    (void)unused;
    tl_free(t, m);
    return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fresh_begin, fresh_end)

#endif
