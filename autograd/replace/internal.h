/* internal.h: what the files of pattern replacement share. Private to autograd/replace/.
 *
 *   pattern.c   a small program as plain data: made from a traced tape, or by hand
 *   rule.c      a replacement's programs called and traced; the table of them
 *   verify.c    the test of what it says and claims
 *   match.c     a pattern found in a graph, and whether it may be replaced there
 *   replace.c   the passes that rewrite a graph: replace, rebuild, compare, roll back; the report
 *   compare.c   the graph rebuilt, beside the graph before */
#ifndef TL_PATTERN_INTERNAL_H
#define TL_PATTERN_INTERNAL_H

#include "autograd/graph/internal.h"
#include "autograd/replace/pattern.h"

enum { TL_REF_ARG = -1, TL_REF_NONE = -2 };                   /* tl_pattern_ref.node */
enum { TL_PATTERN_MOST = TL_PATTERN_ARGS + TL_PATTERN_OUTS }; /* with cotangents; with gradients */

typedef struct {
    const tl_op *op;
    void *attrs;
    int n_in;
    tl_pattern_ref *in;
    signed char *scalar; /* by attribute of the schema: the scalar argument it is, or -1 */
} tl_pattern_node;

/* Nodes in post-order from the outputs. */
struct tl_pattern {
    tl_bump *mem, own;
    int n_args, n_nodes, n_out, room;
    tl_pattern_node *node; /* [room] */
    tl_pattern_ref out[TL_PATTERN_MOST];
    tl_err err;
};

/* One spelling of a rule's search. */
typedef struct tl_form {
    struct tl_rule *rule;
    int at;              /* of rule->form */
    tl_pattern *pattern; /* at the examples, without gradients */
    struct tl_form *next;
} tl_form;

/* A registered replacement: never changed, never freed. */
typedef struct tl_rule {
    tl_replacement o; /* with copies of all but ctx */
    tl_form *form;
    int n_forms;
    bool shipped;
    _Atomic bool on;
    tl_bump bump;
} tl_rule;

/* A pattern laid over a graph: nodes by node of the pattern (-1: none yet), those whose inputs are
 * still to be looked at, and the values of arguments and scalars. */
typedef struct {
    int32_t node[TL_PATTERN_NODES];
    bool open[TL_PATTERN_NODES];
    tl_tensor arg[TL_PATTERN_MOST];
    double scalar[TL_PATTERN_SCALARS];
    unsigned has_scalar;
} tl_binding;

/* Where a rule is traced: its arguments and, if seeded, each output's cotangent (of another shape:
 * contiguous); which arguments take a gradient, and to which outputs one comes (0: forward alone).
 */
typedef struct {
    tl_array array[TL_PATTERN_MOST];
    bool grad[TL_PATTERN_ARGS];
    double scalar[TL_PATTERN_SCALARS];
    unsigned seeded;
} tl_rule_at;

/* A match, while it is judged and when it is made. */
typedef struct tl_match {
    const tl_form *form;
    struct tl_pass *pass;
    const tl_pattern *search; /* traced for this match */
    tl_rule_at at;
    tl_binding b;
    uint32_t root;                  /* the node where it was looked for */
    tl_tensor out[TL_PATTERN_MOST]; /* values that it replaces; TL_NONE: none, or an argument */
    tl_tensor put[TL_PATTERN_MOST]; /* what stands for them, recorded behind as nodes */
    uint32_t first, end;            /* first .. end-1 */
    uint64_t sum;                   /* the last one that it gave a term of */
    bool blamed;                    /* what is read, or a gradient, changes by it: barred, */
    bool rounds;                    /* or it may change bits */
} tl_match;

/* A bar: what is not to be matched at a node, and why - a rule that has made it, or what it was
 * made from; or one form of it with its first output there, which was tried. Or a line of the
 * report: how often a rule was made (why is ""), or missed in the last pass of its kind. */
typedef struct tl_remark {
    const tl_rule *rule;
    const tl_form *form; /* NULL: all of them, in any place */
    int times, rounds;
    struct tl_remark *next;
    char why[];
} tl_remark;

/* Nodes that read a value, or change a memory in place. */
typedef struct tl_user {
    uint32_t node; /* UINT32_MAX: no node */
    const struct tl_user *next;
} tl_user;

/* One sweep over a graph. Values have slots: the model's come first, then accumulators, then the
 * tape's. */
typedef struct tl_pass {
    tl_graph *g;
    tl_tape *t, *scratch;       /* programs are traced on scratch */
    const tl_form *const *form; /* those that are on */
    int n_forms;
    bool joint;
    bool example; /* of a rule being registered: only the match itself is asked about */
    tl_bump bump;
    uint32_t n_nodes, n_values;    /* of the tape, before replacements were recorded behind them */
    uint32_t n_others, *first_acc; /* slots before the tape's; by gradient record */
    const tl_user **users;         /* by slot: all readers of a value, as recorded */
    tl_match **owner; /* by node: the match on trial that it is part of, or that has put it there */
    tl_remark **bars; /* by node of the graph's tape */
    tl_match **found; /* good by themselves */
    int n_found, n_barred;
    bool *reached;       /* by node: a backward comes there */
    bool *gone;          /* by node, and */
    tl_tensor *stand_in; /* by value: as the matches on trial have it */
    const tl_user **due; /* by slot: how that memory is yet to be changed, */
    uint32_t *last;      /* and the last node to change it (one more, 0: none) */
    uint32_t *number;    /* by value that is put: the first that it stands for (one more) */
    tl_tape *now;        /* rebuilt with replacements, */
    tl_tensor *map;      /* by value of the pass's tape, */
    uint32_t *from;      /* by node, that which it is a copy of */
    uint64_t sums;       /* compared so far */
    tl_err why;          /* the attempt under way failed; OK: it never came near */
} tl_pass;

/* What came of calling search or replace: outputs, behind them the gradients of those that are
 * seeded, by each argument that takes one, and what they are gradients of. */
typedef struct {
    tl_tensor arg[TL_PATTERN_MOST], out[TL_PATTERN_MOST], seed;
    int n_out;
    uint32_t n_nodes; /* of the tape, without gradients */
} tl_rule_run;

/* pattern.c: what the run's outputs depend on, as a pattern of its arguments; NULL with *err. */
tl_pattern *tl_pattern_of_tape(tl_bump *mem, tl_tape *t, const tl_rule_run *run,
                               const tl_pattern_scalar *scalar, int n_scalars, tl_err *err);
bool tl_pattern_same(const tl_pattern *a, const tl_pattern *b);
/* Calls q's ops on t. */
void tl_pattern_run(tl_at at, const tl_pattern *q, const tl_tensor *arg, tl_tensor *out);

/* rule.c */
/* Argument i - behind them, output by output, cotangents - on t. */
typedef tl_tensor tl_rule_leaf(void *ctx, tl_tape *t, const tl_array *like, int i);
void tl_rule_call(const tl_form *f, bool search, tl_tape *t, const tl_rule_at *w,
                  tl_rule_leaf *leaf, void *ctx, tl_rule_run *r);
/* A tape for tracing rules on, which tl_rule_tape_end frees. NULL when out of memory. */
tl_tape *tl_rule_tape(void);
void tl_rule_tape_end(tl_tape *t);
/* Calls search or replace on t (in t's mode) at w: as a pattern in mem, with how it ran. NULL with
 * *err. */
tl_pattern *tl_rule_trace(const tl_form *f, bool search, tl_tape *t, tl_bump *mem, tl_rule_at *w,
                          tl_rule_run *run, tl_err *err);
/* The n forms of that kind of rule that are on for g; TL_ENAME for a name to be left out that no
 * replacement has. */
tl_status tl_forms_on(tl_graph *g, bool joint, const tl_form ***list, int *n);
const tl_form *tl_form_find(const char *name, int form, tl_err *err); /* or NULL */
/* The form in its example. */
tl_status tl_form_example(const tl_form *f, tl_rule_at *w, tl_err *err);
/* It keeps the bits for that dtype of the first argument: with gradients, or of outputs. */
bool tl_form_claims(const tl_form *f, tl_dtype d, bool gradients);
/* Gradients come to argument i. */
bool tl_rule_grad(const tl_rule *r, int i);

/* verify.c: the form in its example; and on random inputs, for every dtype claimed. */
tl_status tl_form_verify(const tl_form *f, uint64_t seed, int rounds, tl_err *err);

/* match.c: every way to lay pattern q with its first output at node `at` is given to found() until
 * that says true. exact: attributes agree, but for scalars. begin: arguments bound beforehand, or
 * NULL. */
typedef bool tl_found(void *ctx, const tl_binding *b);
bool tl_match_pattern(tl_pass *p, const tl_form *f, const tl_pattern *q, bool exact, uint32_t at,
                      const tl_binding *begin, tl_found *found, void *ctx);
/* Notes why an attempt fails, if nothing is noted: with a node, what is wrong with that; false. */
bool tl_refuse(tl_pass *p, const tl_node *n, const char *fmt, ...) TL_PRINTF(3, 4);
/* Which output of the match's search x is; -1: none. */
int tl_match_output(const tl_match *m, tl_tensor x);
/* What form f finds at that node is judged; true: it is good by itself. */
bool tl_candidate(tl_pass *p, const tl_form *f, uint32_t node, tl_match *found);

/* compare.c: what matching needs to know of a tape; what comparing needs when all that was found
 * stands in; or no memory. */
tl_status tl_pass_index(tl_pass *p);
tl_status tl_compare_prepare(tl_pass *p);
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
