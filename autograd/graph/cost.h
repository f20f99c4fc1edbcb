/* cost.h: is a value with several users kept in memory, or computed again by each? Private to
 * autograd/graph/.
 *
 * Rules in this order, as Inductor and vLLM have them on a CPU: at most one user, or no pointwise
 * op or reduction: no. A body with exp, sigmoid, ...: kept. A large body: kept. A fan-out over
 * inputs alone: not kept. Then bytes: with T read and O written, each of u users computing it reads
 * T*u; keeping it costs T + O*(1+u). Kept if T*(u-1) >= O*(1+u): a tie is kept. With sizes unknown,
 * kept if it reads more than a few values. */
#ifndef TL_COST_H
#define TL_COST_H

#include "autograd/graph/graph.h"

typedef struct {
    bool counts;      /* a pointwise op or a reduction */
    bool heavy;       /* exp, log, ... somewhere in its body */
    bool inputs_only; /* reads nothing that the graph computes */
    bool sizes_known;
    int users, body, reads; /* ops in the body; values read, scalars not counted */
    int64_t read, written;  /* T and O, bytes */
} tl_cost_question;

typedef struct {
    bool keep;
    const char *rule;      /* that decided */
    int64_t inlined, kept; /* bytes that either would move */
} tl_cost_answer;

tl_cost_answer tl_cost_decide(tl_cost_question q, tl_cost_limits limits);

#endif
