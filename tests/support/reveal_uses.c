/* reveal_uses.c: probes of a value used several times: cotangents add in canonical order:
 * NUMERICS 10.2, 10.3. */
#include "ops/ops.h"
#include "tests/support/reveal_probes.h"

/* y = v * x_0 + v * x_1 + ...; the products are recorded from the last to the first, which must not
 * count. */
static double many_uses(reveal_run *r, int64_t n, const void *x, bool leaf)
{
    tl_tensor use[128] = {TL_NONE}, v = reveal_leaf(r, reveal_full(r, TL_DIMS(1), 1)),
              u = leaf ? v : tl_neg(r->tape, v);
    for (int64_t i = n; i-- > 0;)
        use[i] = tl_mul(r->tape, u, reveal_laid(r, TL_DIMS(1), 0, 1, reveal_from(r, x, i), 0, 1));
    tl_tensor y = use[0];
    for (int64_t i = 1; i < n; i++)
        y = tl_add(r->tape, y, use[i]);
    tl_backward(r->tape, y);
    double g = reveal_element(r, tl_grad(r->tape, v), 0);
    return leaf ? g : -g;
}

static double of_value(reveal_run *r, int64_t n, const void *x)
{
    return many_uses(r, n, x, false);
}
static double of_leaf(reveal_run *r, int64_t n, const void *x) { return many_uses(r, n, x, true); }

const reveal_probe reveal_probes_uses[] = {
    {.op = "add",
     "cotangents of a value used often",
     of_value,
     stated_fold_of_all,
     .backward = true,
     .small = true},
    {.op = "add",
     "uses of a leaf, when its gradient is read",
     of_leaf,
     stated_fold_of_all,
     .backward = true,
     .small = true},
};
const int reveal_probes_uses_count = sizeof reveal_probes_uses / sizeof reveal_probes_uses[0];
