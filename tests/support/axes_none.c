/* axes_none.c: which axes are not claimed for which ops, and why. A mark on what a test runs all
 * the same fails the test. */
#include <string.h>

#include "tests/support/axes.h"

#define ON(axis) (1u << AXIS_##axis)
#define BATCH (ON(rows) | ON(micro) | ON(left) | ON(right))
#define TERMS (ON(terms_left) | ON(terms_right))

static const struct {
    const char *ops, *reason;
    unsigned axes;
} none[] = {
    {"store assign master sgd adamw square_sum",
     "acts on a whole parameter or gradient, after the batch: there are no rows", BATCH},
    {"stack_samples", "part of a gradient's fold: it has no rows of its own", BATCH | TERMS},
    {"store master sgd adamw",
     "parameters and their state are contiguous; other operands are refused", ON(layout)},
    {"store assign master sgd adamw", "element by element: nothing is summed", TERMS},
    {"swiglu_grad cast floor_divide remainder", "element by element: nothing is summed", TERMS},
    {"select contiguous embedding gather one_hot positions causal_mask rotary rotary_ rotary_turn "
     "rotary_halves",
     "every element comes from one place: nothing is summed", TERMS},
    {"mean rms_norm rms_norm_grad add_rms_norm layer_norm layer_norm_grad",
     "divides by the number of a row's elements: with more of them it is another result", TERMS},
    {"draw", "its rows are an attribute, not an input: test_rng draws them in other batches",
     TERMS | BATCH},
    {"argmax argsort pool_places", "gives places: among other elements they are other numbers",
     TERMS},
    {"recur recur_grad", "its terms are the units of a state: with more of them it is another one",
     TERMS},
    {"scatter_add scatter_add_dim", "its terms are rows of the batch: see padding", TERMS},
};

static bool lists(const char *words, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = words; *p != '\0'; p += strcspn(p, " "), p += strspn(p, " "))
        if (strcspn(p, " ") == n && strncmp(p, word, n) == 0)
            return true;
    return false;
}

const char *tl_axis_none(const char *op, test_axis axis)
{
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        if (none[i].axes & 1u << axis && lists(none[i].ops, op))
            return none[i].reason;
    return NULL;
}
