/* internal.h: what the files of pattern replacement share. Private to autograd/replace/.
 *
 *   pattern.c   a small program as plain data: made from a traced tape, or by hand
 *   rule.c      a replacement checked when it is registered, its programs traced
 *   verify.c    the property test of what it claims
 *   register.c  the table of replacements
 *   match.c     a pattern found in a graph
 *   candidate.c whether a match found is one that may be replaced
 *   replace.c   the passes that rewrite a graph: replace, rebuild, compare, roll back; the report
 *   compare.c   the graph rebuilt, beside the graph before */
#ifndef TL_PATTERN_INTERNAL_H
#define TL_PATTERN_INTERNAL_H

#include "autograd/graph/internal.h"
#include "autograd/replace/pattern.h"

enum { TL_REF_ARG = -1, TL_REF_NONE = -2 }; /* tl_pattern_ref.node */

typedef struct {
    const tl_op *op;
    const void *attrs;
    int n_in;
    tl_pattern_ref *in;
    signed char *scalar; /* by attribute of the schema: the scalar argument it is, or -1 */
    unsigned used;       /* outputs that this pattern reads or gives */
    unsigned grad_out;   /* outputs that carry a gradient, as traced */
} tl_pattern_node;

/* Nodes in post-order from the outputs. */
struct tl_pattern {
    tl_bump *mem, own;
    int n_args, n_nodes, n_out, room;
    tl_pattern_node *node; /* [room] */
    tl_pattern_ref out[TL_PATTERN_ARGS + TL_PATTERN_OUTS];
    tl_array *out_array; /* by output; NULL for a pattern built by hand */
    tl_err err;
};

/* A registered replacement, or one form of it: never changed, never freed. Forms of one have its
 * name and stand together. */
typedef struct tl_rule {
    tl_replacement o;
    tl_pattern *pattern, *with; /* search and replacement, at the examples; if joint with the
                                   gradients of every output */
    tl_pattern *first; /* what the first stage looks for: pattern, or, if joint, its part without
                          gradients */
    const tl_op *root; /* that first's output 0 comes from */
    int n_args;        /* with a cotangent for each output, if joint */
    int form;          /* of o.forms */
    bool shipped;
    _Atomic bool on;
    tl_bump bump;
    struct tl_rule *next;
} tl_rule;

/* A pattern laid over a graph: nodes by node of the pattern (-1: none yet), those whose inputs are
 * still to be looked at, and the values of arguments and scalars. */
typedef struct {
    int32_t node[TL_PATTERN_NODES];
    bool open[TL_PATTERN_NODES];
    tl_tensor arg[TL_PATTERN_ARGS];
    double scalar[TL_PATTERN_SCALARS];
    unsigned has_scalar;
} tl_binding;

/* Where a rule is traced. */
typedef struct {
    tl_array array[TL_PATTERN_ARGS]; /* of arguments; if seeded, also of each output's cotangent (of
                                        another shape: contiguous) */
    bool grad[TL_PATTERN_ARGS];      /* the argument takes a gradient */
    double scalar[TL_PATTERN_SCALARS];
    unsigned seeded; /* the outputs that a gradient comes to; 0: forward alone */
} tl_rule_at;

/* A match, while it is judged and when it is made. */
struct tl_match {
    const tl_rule *rule;
    struct tl_pass *pass;
    const tl_pattern *search; /* traced for this match */
    tl_pattern *with;         /* the replacement, likewise */
    tl_rule_at at;
    tl_binding b;
    uint32_t out[TL_PATTERN_ARGS + TL_PATTERN_OUTS];  /* values of the graph that it replaces;
                                                         UINT32_MAX: none, or an argument */
    tl_tensor put[TL_PATTERN_ARGS + TL_PATTERN_OUTS]; /* what stands for them, recorded behind */
    bool *origin;                   /* the rules that have made it, as in tl_pass */
    bool in_place, settled, blamed; /* its values stand in now; for good; gradients change by it */
    bool rounds;
    int rule_at;   /* the rule's place in the pass's list; */
    uint32_t root; /* the node where it was looked for */
};

/* A use of a value, by input `input` of a node; all those of a tape, by the value's slot. */
enum { TL_USE_OF_VALUE = -1 }; /* no leaf's */
typedef struct {
    uint32_t slot, node;
    int input, kind; /* of a leaf's accumulator */
} tl_use_of;
typedef struct {
    tl_use_of *use;
    uint32_t *start, n_slots;
} tl_uses;
typedef struct {
    const tl_use_of *use;
    int n;
} tl_uses_of;

static inline tl_uses_of tl_uses_at(const tl_uses *u, uint32_t slot)
{
    return slot >= u->n_slots
               ? (tl_uses_of){NULL, 0}
               : (tl_uses_of){u->use + u->start[slot], (int)(u->start[slot + 1] - u->start[slot])};
}

/* What a node reads: a value, its memory, the last node to change that (one more, 0: none) and
 * whether a gradient comes to it. All reads of a tape: those of node i from first[i] on; and by
 * memory, the last node to change it. */
typedef struct {
    uint32_t slot, memory, writer;
    bool grad;
} tl_read;
typedef struct {
    tl_read *read;
    uint32_t *first, *changer;
} tl_reads;

/* The tape of a pass, or one that was rebuilt from it with replacements. */
typedef struct {
    tl_tape *t;
    tl_tensor *map;        /* by value of the pass's tape; of the others, in terms of that: */
    uint32_t *from, *back; /* by node; by value. NULL: it is that tape */
    tl_uses *uses;         /* by backward: those that take a gradient, in canonical order */
} tl_side;

/* What to try again if a match is not made after all: rules from .. to - 1 at a node. */
typedef struct tl_retry {
    uint32_t node;
    int from, to;
    struct tl_retry *next;
} tl_retry;

/* One sweep over a graph. Values have slots: the model's come first, then accumulators, then the
 * tape's. */
typedef struct tl_pass {
    tl_graph *g;
    tl_tape *t;
    bool joint;
    tl_bump bump;
    tl_tape *scratch;              /* programs are traced here */
    uint32_t n_nodes, n_values;    /* of the tape, before replacements were recorded behind them */
    uint32_t n_others, *first_acc; /* slots before the tape's; by gradient record */
    tl_uses users;                 /* every use of every value, as recorded */
    bool *held;                    /* by value: read by something that is no node */
    tl_match **owner; /* by node: the match that it is part of, or that has put it there */
    bool **origin; /* by node: the rules, by their place in the list, that have made it and do not
                      match there again; NULL: none */
    bool *gone;    /* by node, and */
    tl_tensor *stand_in; /* by value: as the matches in place have it */
    tl_match **found;    /* good by themselves, to be settled together */
    int n_found, n_made;
    tl_retry *retry;
    bool refused;         /* one of those found, since */
    tl_side was, now;     /* the pass's tape; with the replacements made, if any is */
    tl_reads reads;       /* of the pass's tape */
    bool *reached;        /* by node: a backward comes there */
    int n_marks;          /* backwards */
    const tl_rule **rule; /* those that are on */
    int n_rules;
    bool overlaps; /* the attempt under way met a node that is another match's */
    tl_err why;    /* it failed; OK: it never came near */
} tl_pass;

/* pattern.c */
/* The part of tape t that out depends on, as a pattern of args; NULL with *err. */
tl_pattern *tl_pattern_of_tape(tl_bump *mem, tl_tape *t, const tl_tensor *arg, int n_args,
                               const tl_tensor *out, int n_out, const tl_pattern_scalar *scalar,
                               int n_scalars, tl_err *err);
bool tl_pattern_same(const tl_pattern *a, const tl_pattern *b);
static inline bool tl_same_ref(tl_pattern_ref a, tl_pattern_ref b)
{
    return a.node == b.node && a.at == b.at;
}
/* Calls q's ops on t. */
void tl_pattern_run(tl_at at, const tl_pattern *q, const tl_tensor *arg, tl_tensor *out);

/* rule.c: a tape for tracing rules on. NULL when out of memory. */
tl_tape *tl_rule_tape(void);
void tl_rule_tape_end(tl_tape *t);
/* Traces search or replace of a rule on t (in t's mode) at w: as a pattern in mem; if seeded, with
 * the gradients of these outputs, by each argument that takes one, as more outputs. NULL with *err.
 */
tl_pattern *tl_rule_trace(const tl_rule *r, bool search, tl_tape *t, tl_bump *mem,
                          const tl_rule_at *w, tl_err *err);
/* b gives what a does, by output of that shape and dtype, and perhaps of those strides. */
tl_status tl_outputs_agree(const tl_pattern *a, const tl_array *was, const tl_pattern *b,
                           bool strides, tl_err *err);
/* A number whose gradient by y[i] is c[i]; TL_NONE for n = 0. */
tl_tensor tl_rule_seed(tl_tape *t, const tl_tensor *y, const tl_tensor *c, int n);
/* A rule for each form of o, checked; NULL with *err. */
tl_rule *tl_rules_make(const tl_replacement *o, bool ours, tl_err *err);
void tl_rules_free(tl_rule *all);
/* An argument that gradients come to. */
static inline bool tl_rule_grad(const tl_rule *r, int i)
{
    return i < r->o.n_in && !r->o.example_inputs[i].no_grad &&
           tl_dtype_is_float(r->o.example_inputs[i].dtype);
}

/* verify.c: search and replacement on random inputs, for every dtype claimed. */
tl_status tl_rule_verify(const tl_rule *r, uint64_t seed, int rounds, tl_err *err);

/* register.c: the n rules of that kind that are on for graph options o, into mem; TL_ENAME for a
 * name to be left out that no replacement has. */
tl_status tl_rules_on(tl_bump *mem, const tl_graph_options *o, bool joint, const tl_rule ***list,
                      int *n, tl_err *err);
/* The first form of that number or a later one. */
const tl_rule *tl_rule_find(const char *name, int form);

/* match.c: every way to lay pattern q with its first output at node `at` is given to found() until
 * that says true. exact: attributes agree, but for scalars. begin: arguments bound beforehand, or
 * NULL. */
typedef bool tl_found(void *ctx, const tl_binding *b);
bool tl_match_pattern(tl_pass *p, const tl_rule *r, const tl_pattern *q, bool exact, uint32_t at,
                      const tl_binding *begin, tl_found *found, void *ctx);
/* Notes why an attempt fails, if nothing is noted; false. */
bool tl_refuse(tl_pass *p, const char *fmt, ...) TL_PRINTF(2, 3);
static inline bool tl_match_holds(const tl_match *m, uint32_t node)
{
    for (int k = 0; k < m->search->n_nodes; k++)
        if (m->b.node[k] == (int32_t)node)
            return true;
    return false;
}

/* Which output of the match that value of the graph is, or -1. */
static inline int tl_match_output(const tl_match *m, uint32_t value)
{
    for (int i = 0; i < m->search->n_out; i++)
        if (m->out[i] == value)
            return i;
    return -1;
}

/* candidate.c: what rule r finds at that node is judged; true: it is good by itself. */
bool tl_candidate(tl_pass *p, const tl_rule *r, uint32_t node, tl_match *found);

/* compare.c: what matching and comparing need to know of a tape. */
tl_status tl_pass_index(tl_pass *p);
static inline uint32_t tl_pass_slot(const tl_pass *p, tl_tensor x)
{
    return x.owner == p->t->values.owner ? p->n_others + x.index : x.index;
}
/* The same of what is compared; false: no memory. */
bool tl_compare_prepare(tl_pass *p);
/* Nothing on s reads other memory than on the pass's tape, or the same in another state; false,
 * with p->why. */
bool tl_same_memory(tl_pass *p, tl_side *s);
/* Every gradient has the same terms in the same order; a match by which that changes is blamed and
 * reported, or rounds where the graph may. False: out of memory, or nobody is to blame. */
bool tl_compare_uses(tl_pass *p, tl_side *s);
/* How input k of an op adds to a leaf's accumulator: 0 through the engine, 1 by a fold in the
 * compute type, 2 in f64. */
int tl_accumulator_kind(const tl_op *op, const void *attrs, int k);

/* replace.c */
void tl_report_missed(tl_graph *g, const tl_rule *r, const char *why);

#endif
