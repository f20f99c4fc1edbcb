/* cost.c: the decision, as a function of numbers alone. */
#include "autograd/graph/cost.h"

tl_cost_answer tl_cost_decide(tl_cost_question q, tl_cost_limits limits)
{
    int64_t body = limits.body > 0 ? limits.body : 30, reads = limits.reads > 0 ? limits.reads : 4,
            u = q.users;
    tl_cost_answer a = {.inlined = q.read * u, .kept = q.read + q.written * (1 + u)};
    if (limits.never_inline)
        a.keep = true, a.rule = "all are kept";
    else if (u <= 1)
        a.rule = "one user";
    else if (!q.counts)
        a.rule = "another kind of op";
    else if (q.heavy && !limits.heavy_inline)
        a.keep = true, a.rule = "heavy";
    else if (q.body > body)
        a.keep = true, a.rule = "large body";
    else if (q.inputs_only)
        a.rule = "inputs only";
    else if (!q.sizes_known)
        a.keep = q.reads > reads, a.rule = "reads";
    else
        a.keep = q.read * (u - 1) >= q.written * (1 + u), a.rule = "bytes";
    return a;
}
