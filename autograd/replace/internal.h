/* internal.h: what the files of pattern replacement share. Private to autograd/replace/; README.md
 * says in which order to read them. */
#ifndef TL_PATTERN_INTERNAL_H
#define TL_PATTERN_INTERNAL_H

#include "autograd/graph/internal.h"
#include "autograd/replace/pattern.h"

/* Output `at` of a node, or argument `at`. */
enum { TL_REF_ARG = -1, TL_REF_NONE = -2 };
typedef struct {
    int node, at;
} tl_pattern_ref;
enum { TL_PATTERN_MOST = TL_PATTERN_ARGS + TL_PATTERN_OUTS }; /* with cotangents; with gradients */

typedef struct {
    const tl_op *op;
    void *attrs;
    int n_in;
    tl_pattern_ref in[TL_PATTERN_ARGS];
    signed char *scalar; /* by attribute of the schema: the scalar argument it is, or -1 */
} tl_pattern_node;

/* Nodes in post-order from the outputs. */
typedef struct {
    int n_nodes, n_out;
    tl_pattern_ref out[TL_PATTERN_MOST];
    tl_pattern_node node[];
} tl_pattern;

/* One form of a registered replacement: never changed, never freed. The forms of a replacement lie
 * one after another, the memory of all belongs to the first, and they share one name. */
typedef struct tl_rule {
    tl_replacement o;    /* with copies of all but ctx */
    tl_pattern *pattern; /* its search at the examples, without gradients */
    int form;
    bool shipped;
    _Atomic bool on;
    tl_bump bump;
    struct tl_rule *next;
} tl_rule;

/* A pattern laid over a graph: nodes by node of the pattern (-1: none yet), and the values of
 * arguments and scalars. */
typedef struct {
    int32_t node[TL_PATTERN_NODES];
    tl_tensor arg[TL_PATTERN_MOST];
    double scalar[TL_PATTERN_SCALARS];
    unsigned has_scalar;
} tl_binding;

/* A call of search or replace. Where: its arguments and, if seeded, each output's cotangent (of
 * another shape: contiguous); which arguments take a gradient, and to which outputs one comes (0:
 * forward alone). And what came of it: outputs, behind them the gradients of those that are seeded,
 * by each argument that takes one, and what they are gradients of. */
typedef struct {
    const tl_rule *rule;
    tl_array array[TL_PATTERN_MOST];
    bool grad[TL_PATTERN_ARGS];
    double scalar[TL_PATTERN_SCALARS];
    unsigned seeded;
    tl_tensor arg[TL_PATTERN_MOST], out[TL_PATTERN_MOST], seed;
    int n_out;
} tl_rule_call;

/* A match, while it is judged and when it is made. */
typedef struct tl_match {
    const tl_rule *rule;
    struct tl_pass *pass;
    const tl_pattern *search; /* looked for: the rule's, then one traced for this match */
    tl_rule_call call;
    tl_binding b;
    uint32_t root;                  /* the node where it was looked for */
    tl_tensor out[TL_PATTERN_MOST]; /* values that it replaces; TL_NONE: none, or an argument */
    tl_tensor put[TL_PATTERN_MOST]; /* what stands for them, recorded behind as nodes */
    uint32_t first, end;            /* first .. end-1 */
    bool blamed, rounds; /* what is read, or a gradient, changes by it: barred, or it may */
} tl_match;

/* A bar: why a replacement is not to match at a node: it has made that (in any form, at any place),
 * or this form was tried with its first output there. Or a line of the report: how often it was
 * made (why is ""), or missed in the last pass of its kind. */
typedef struct tl_remark {
    const tl_rule *rule;
    bool made;
    int times, rounds;
    struct tl_remark *next;
    char why[];
} tl_remark;

/* Nodes that read a value, or change a memory in place. */
typedef struct tl_user {
    uint32_t node; /* UINT32_MAX: no node */
    const struct tl_user *next;
} tl_user;

/* A slot for each value - the model's come first, then accumulators, then the tape's - and for the
 * memory that lies beneath some of them. */
typedef struct {
    const tl_user *users, *due; /* all that read the value; that are yet to change the memory, */
    uint32_t last;              /* and the last to have changed it (one more; 0: none) */
} tl_slot;

/* One sweep over a graph. */
typedef struct tl_pass {
    tl_graph *g;
    tl_tape *t, *scratch; /* programs are traced on scratch */
    const tl_rule **rule; /* those that are on */
    int n_rules;
    bool joint, example; /* of a rule being registered: only the match itself is asked about */
    tl_bump bump;
    tl_err why;                    /* the attempt under way failed; OK: it never came near */
    uint32_t n_nodes, n_values;    /* of the tape, before replacements were recorded behind them */
    uint32_t n_others, *first_acc; /* slots before the tape's; by gradient record */
    tl_slot *at;
    bool *reached, *weight;    /* by node: a backward comes there; part of a weight */
    tl_remark **bars;          /* by node of the graph's tape */
    tl_match **found, **owner; /* good by themselves; by node that is part of one, or put */
    int n_found, n_barred;
    tl_tensor *stand_in; /* by value: as the matches on trial have it */
    tl_tape *now;        /* rebuilt with replacements, */
    tl_tensor *map;      /* by value of the pass's tape, */
    uint32_t *from;      /* by node, that which it is a copy of, */
    uint32_t *was;       /* by value, the slot of the first that it stands for */
} tl_pass;

/* pattern.c: argument i - behind them, output by output, cotangents - on t. */
typedef tl_tensor tl_rule_leaf(void *ctx, tl_tape *t, const tl_array *like, int i);
void tl_rule_run(tl_rule_call *c, bool search, tl_tape *t, tl_rule_leaf *leaf, void *ctx);
/* A tape for tracing rules on, which tl_rule_tape_end frees. NULL when out of memory. */
tl_tape *tl_rule_tape(void);
void tl_rule_tape_end(tl_tape *t);
/* The same on a tape of that kind (in its mode), as a pattern in mem; NULL with *err. */
tl_pattern *tl_rule_trace(tl_rule_call *c, bool search, tl_tape *t, tl_bump *mem, tl_err *err);
bool tl_pattern_same(const tl_pattern *a, const tl_pattern *b);
/* Calls q's ops on t. */
void tl_pattern_run(tl_at at, const tl_pattern *q, const tl_tensor *arg, tl_tensor *out);
/* Gradients come to argument i. */
bool tl_rule_grad(const tl_rule *r, int i);

/* rule.c: the call at the examples, each output seeded or none. */
tl_status tl_rule_example(const tl_rule *r, bool seeded, tl_rule_call *c, tl_err *err);
/* The n rules of that kind that are on for g; TL_ENAME for a name to be left out that no
 * replacement has. */
tl_status tl_rules_on(tl_graph *g, bool joint, const tl_rule ***list, int *n);
tl_rule *tl_rule_find(const char *name, int form, tl_err *err); /* or NULL */
/* It keeps the bits for that dtype of the first argument: with gradients, or of outputs. */
bool tl_rule_claims(const tl_rule *r, tl_dtype d, bool gradients);

/* match.c: the rule is found in its own example. */
tl_status tl_rule_found(const tl_rule *r, tl_err *err);
/* verify.c: that, and the test on random inputs, for every dtype claimed. */
tl_status tl_rule_verify(const tl_rule *r, uint64_t seed, int rounds, tl_err *err);
/* `what` i is of one shape and dtype by search (a) and replacement (b; NULL: none). */
bool tl_same_kind(const tl_array *a, const tl_array *b, const char *what, int i, tl_err *err);

/* match.c: notes why an attempt fails, if nothing is noted: with a node, what is wrong with that;
 * false. */
bool tl_refuse(tl_pass *p, const tl_node *n, const char *fmt, ...) TL_PRINTF(3, 4);
/* Every way to lay what m looks for with its first output at m->root, arguments as given (NULL:
 * any), is judged until one is good by itself. */
bool tl_match_at(tl_match *m, const tl_tensor *arg);

/* compare.c: what matching and comparing need to know of a tape; false: no memory. */
bool tl_pass_index(tl_pass *p);
/* n + 1 elements, for as long as the pass lasts; NULL, with p->why, without memory. */
void *tl_pass_room(tl_pass *p, size_t n, size_t size);
uint32_t tl_pass_slot(const tl_pass *p, tl_tensor x);
/* What m has put is like what it replaces: in shape, dtype and strides, in memory that is changed,
 * and in carrying a gradient; false, with p->why. */
bool tl_same_outputs(tl_pass *p, const tl_match *m);
/* Everything in the graph as rebuilt reads memory in the state in which it read it, and every
 * gradient has the same terms in the same order; a match by which that changes is blamed and
 * barred, or rounds where the graph may. False: out of memory, or nobody is to blame. */
bool tl_same_graph(tl_pass *p);

/* replace.c: m is not to be tried again, for the reason in p->why, which is cleared. */
void tl_match_bar(tl_pass *p, tl_match *m);

#endif
