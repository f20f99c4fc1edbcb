/* internal.h: shared by the files of pattern replacement. Private to autograd/replace/. */
#ifndef TL_PATTERN_INTERNAL_H
#define TL_PATTERN_INTERNAL_H

#include "autograd/graph/internal.h"
#include "autograd/replace/pattern.h"

/* A value in a pattern: output `at` of a node, or argument `at`. */
enum { TL_REF_ARG = -1, TL_REF_NONE = -2 };
typedef struct {
    int node, at;
} tl_pattern_ref;
/* The most arguments with the cotangents behind them, or outputs with the gradients behind them. */
enum { TL_PATTERN_MOST = TL_PATTERN_ARGS + TL_PATTERN_OUTS };

typedef struct {
    const tl_op *op;
    void *attrs;
    int n_in;
    tl_pattern_ref in[TL_PATTERN_ARGS];
    signed char *scalar; /* by attribute of the schema: the scalar argument it is, or -1 */
} tl_pattern_node;

/* A traced program as data: its nodes, in post-order from the outputs. */
typedef struct {
    int n_nodes, n_out;
    tl_pattern_ref out[TL_PATTERN_MOST];
    tl_pattern_node node[];
} tl_pattern;

/* One form of a replacement. Its forms are an array; only the first uses the last four fields. */
typedef struct tl_rule {
    tl_replacement o;    /* with copies of all but ctx */
    tl_pattern *pattern; /* its search at the examples, without gradients */
    int form;
    bool duplicate; /* there is another rule like it: it is left out */
    bool shipped;
    _Atomic bool on;
    tl_bump bump;
    struct tl_rule *next; /* in the table */
} tl_rule;

/* A pattern laid over a graph. */
typedef struct {
    int32_t node[TL_PATTERN_NODES]; /* of the graph, by node of the pattern; -1: none yet */
    tl_tensor arg[TL_PATTERN_MOST];
    double scalar[TL_PATTERN_SCALARS];
    unsigned has_scalar;
} tl_binding;

/* A call of search or replace. */
typedef struct {
    const tl_rule *rule;
    tl_array array[TL_PATTERN_MOST]; /* arguments, then cotangents for outputs of their shape */
    double scalar[TL_PATTERN_SCALARS];
    bool grad[TL_PATTERN_ARGS];     /* it takes a gradient */
    unsigned seeded;                /* bit i: output i is differentiated; 0: forward alone */
    tl_tensor arg[TL_PATTERN_MOST]; /* the call's arguments, then cotangents */
    tl_tensor out[TL_PATTERN_MOST]; /* outputs, then gradients by each argument that takes one */
    int n_out;
    tl_tensor seed; /* the number whose gradients these are */
} tl_rule_call;

/* A match, while it is judged and when it is made. */
typedef struct tl_match {
    const tl_rule *rule;
    struct tl_pass *pass;
    const tl_pattern *search; /* to be found: the rule's own, then one traced for this place */
    tl_rule_call call;
    tl_binding b;
    uint32_t root;                  /* the graph's node for output 0 */
    tl_tensor out[TL_PATTERN_MOST]; /* values that it replaces; TL_NONE: none, or an argument */
    tl_tensor put[TL_PATTERN_MOST]; /* the values that stand for them */
    uint32_t first, end;            /* the replacement is recorded as nodes first .. end-1 */
    bool blamed;                    /* memory or a gradient would change by it: it is barred */
    bool rounds;                    /* bits may change by it, which is allowed */
} tl_match;

/* A line of the report: how often a replacement (its first form) was made (why is "") or missed. Or
 * a bar of a node: the replacement made it or, if times is 0, was tried with it as first output. */
typedef struct tl_remark {
    const tl_rule *rule;
    int times, rounds;
    struct tl_remark *next;
    char why[];
} tl_remark;

typedef struct tl_user {
    uint32_t node; /* the one that reads a value or changes a memory; UINT32_MAX: a result does */
    const struct tl_user *next;
} tl_user;

/* A value, and the memory at the bottom of it. Values of the model come first, then accumulators,
 * then values of the tape. */
typedef struct {
    const tl_user *users; /* all that read the value */
    const tl_user *due;   /* those that have yet to change the memory */
    uint32_t last;        /* 1 + the node that changed the memory last; 0: none has */
} tl_slot;

typedef struct tl_pass {
    tl_graph *g;
    tl_tape *t;
    tl_tape *scratch;     /* programs are traced on it */
    const tl_rule **rule; /* those that are on */
    int n_rules;
    bool joint;   /* after backward has been expanded */
    bool example; /* the graph is the example of a rule: only the match itself is checked */
    tl_bump bump;
    tl_err why;                 /* why the attempt under way failed; OK: not even a near miss */
    uint32_t n_nodes, n_values; /* of the tape, before replacements were recorded behind them */
    uint32_t n_others, n_known; /* slots before the tape's values; all slots without replacements */
    uint32_t *first_acc;        /* by gradient record: the slot of its first accumulator */
    tl_slot *at;
    bool *reached, *weight; /* by node: a backward reaches it; it makes part of a weight */
    tl_remark **bars;       /* by node of the graph's tape */
    tl_match **found;       /* matches that are good by themselves */
    tl_match **owner;       /* by node: the match that replaces or has put it */
    int n_found, n_barred;
    tl_tensor *stand_in; /* by value: the one that stands for it in the matches found */
    tl_tape *now;        /* the graph rebuilt with the matches found */
    tl_tensor *map;      /* by value of t: the value of now */
    uint32_t *from;      /* by node of now: the node of t that it is a copy of */
    uint32_t *was;       /* by value of now: the slot of the first value that it stands for */
} tl_pass;

/* pattern.c: makes argument i on t, of an array like that. Cotangents follow the arguments. */
typedef tl_tensor tl_rule_leaf(void *ctx, tl_tape *t, const tl_array *like, int i);
void tl_rule_run(tl_rule_call *c, bool search, tl_tape *t, tl_rule_leaf *leaf, void *ctx);
/* A tape to trace rules on, which tl_rule_tape_end frees; NULL with *err. */
tl_tape *tl_rule_tape(tl_err *err);
void tl_rule_tape_end(tl_tape *t);
/* Runs the call on such a tape, in its mode, and returns it as a pattern in mem; NULL with *err. */
tl_pattern *tl_rule_trace(tl_rule_call *c, bool search, tl_tape *t, tl_bump *mem, tl_err *err);
bool tl_pattern_same(const tl_pattern *a, const tl_pattern *b);

/* rule.c: the call on the example inputs, with these shapes (NULL: their own). */
tl_status tl_rule_example(const tl_rule *r, const tl_shape *shapes, tl_rule_call *c, tl_err *err);
/* The n rules of that kind that are on for g; TL_ENAME if a name to be left out is unknown. */
tl_status tl_rules_on(tl_graph *g, bool joint, const tl_rule ***list, int *n);
tl_rule *tl_rule_find(const char *name, int form, tl_err *err); /* NULL: there is none */
/* A rule for each form of o; NULL with *err. add: to the table; frees them if *err is set. */
tl_rule *tl_rules_make(tl_replacement o, bool shipped, tl_err *err);
void tl_rules_add(tl_rule *r, tl_err *err);
/* The rule claims the bits of outputs, with `gradients` of those too, for dtype d of argument 0. */
bool tl_rule_claims(const tl_rule *r, tl_dtype d, bool gradients);

/* match.c: lays m->search over the graph in every way, with its first output at m->root and the
 * arguments of that binding (NULL: any), until one is good by itself. */
bool tl_match_at(tl_match *m, const tl_binding *like);

/* compare.c: notes why an attempt fails, and at which node (n), unless that is known. False. */
bool tl_refuse(tl_pass *p, const tl_node *n, const char *fmt, ...) TL_PRINTF(3, 4);
/* Bars m from being tried again, for the reason in p->why, which it clears. */
void tl_match_bar(tl_pass *p, tl_match *m);
/* Adds one in front of that list; NULL, with g's error, if there is no memory. */
tl_remark *tl_remark_add(tl_graph *g, tl_remark **list, const tl_rule *r, const char *why);
/* `what` number i has one shape and dtype by search (a) and by replacement (b; NULL: not set). */
tl_status tl_same_kind(const tl_array *a, const tl_array *b, const char *what, int i, tl_err *err);
/* Collects what matching and comparing need to know; false: out of memory. */
bool tl_pass_index(tl_pass *p);
/* n zeroed elements that last as long as the pass; NULL, with p->why, without memory. */
void *tl_pass_room(tl_pass *p, size_t n, size_t size);
uint32_t tl_pass_slot(const tl_pass *p, tl_tensor x);
/* The values that m has put are like those they replace in shape, dtype, strides and carrying a
 * gradient, and lie in the same memory if that is changed; else false, with p->why. */
bool tl_same_outputs(tl_pass *p, const tl_match *m);
/* The rebuilt graph reads every memory in the state in which it was read before, and has the terms
 * of every gradient in their order. Matches that change this are barred, or round if they may.
 * False: out of memory, or no match can be blamed. */
bool tl_same_graph(tl_pass *p);

#endif
