/* pattern_internal.h: what the files of pattern replacement share. Private to autograd/graph/.
 *
 *   pattern.c   a small program as plain data: made from a traced tape, or by hand
 *   pattern_attrs.c  attributes compared
 *   register.c  the table of replacements
 *   rule_make.c an entry for it
 *   match.c     a pattern found in a graph
 *   candidate.c, candidate_check.c   whether a match found is one that may be replaced
 *   match_ask.c what an extra_check may ask about a match
 *   splice.c    the graph with some matches replaced, seen without building it
 *   splice_order.c, splice_uses.c, splice_compare.c   ... its order, and the terms of its gradients
 *   settle.c    which of the matches found are made
 *   rule.c      a replacement checked when it is registered
 *   rule_trace.c  its programs traced, with gradients or without
 *   replace.c   the passes that rewrite a graph
 *   verify.c, verify_values.c   the property test of what a replacement claims
 *   report.c    what was replaced, and what was not and why */
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
    bool needs_grad;
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

/* A match, while it is judged and when it is accepted. */
struct tl_match {
    const tl_rule *rule;
    struct tl_pass *pass;
    const tl_pattern *search; /* traced for this match */
    tl_pattern *with;         /* the replacement, likewise */
    tl_tensor arg[TL_PATTERN_ARGS];
    tl_array array[TL_PATTERN_ARGS];
    double scalar[TL_PATTERN_SCALARS];
    int32_t node[TL_PATTERN_NODES];                  /* of the graph, by node of search */
    uint32_t out[TL_PATTERN_ARGS + TL_PATTERN_OUTS]; /* values of the graph that it replaces */
    uint32_t last;                                   /* the last of its nodes */
    uint32_t first; /* number of the first node of `with` in the spliced graph, less n_nodes */
    tl_tensor (*made)[TL_PATTERN_OUTS]; /* by node of `with`, while the graph is recorded */
    bool rounds;
    int rule_at; /* the rule's place in the pass's list; */
    uint32_t at; /* the node where it was looked for */
};

/* Every use of every value that takes a gradient, in the canonical order of one backward. A node of
 * the spliced graph is below n_nodes one of the tape, from there on one that a match puts. */
typedef struct tl_use_of {
    uint32_t node;
    int input;
    int kind; /* of a leaf's accumulator */
    struct tl_use_of *next;
} tl_use_of;

typedef struct {
    tl_use_of **head, **tail; /* by value of the tape, then of the model */
    unsigned char *leaf;      /* that list is a leaf's */
    unsigned char *seen;      /* by node: backward comes there */
    uint32_t n_slots;
} tl_use_table;

/* A node that comes before. */
typedef struct tl_dep {
    uint32_t node;
    struct tl_dep *next;
} tl_dep;

/* What to try again if a match is not made after all: rules from .. to - 1 at a node. */
typedef struct tl_retry {
    uint32_t node;
    int from, to;
    struct tl_retry *next;
} tl_retry;

/* One sweep over a graph. */
typedef struct tl_pass {
    tl_graph *g;
    tl_tape *t;
    bool joint;
    tl_bump bump;
    tl_tape *scratch; /* programs are traced here */
    tl_tracing *scratch_tracing;
    uint32_t n_values; /* of the tape; the model's are counted on from there */
    uint32_t *user_start,
        *user; /* by value of the tape, then of the model: the nodes that read it, in order (CSR) */
    unsigned char *held;  /* by value: read by something that is no node */
    struct tl_dep **dep;  /* by node: nodes that come before it */
    int32_t *owner;       /* by node: the match it belongs to, or -1 */
    tl_match **match;     /* the accepted ones; those tried stand behind them */
    int n_match, n_tried; /* accepted; with those tried */
    tl_match **found;     /* good by themselves, to be settled together */
    int n_found;
    tl_retry *retry;
    bool refused; /* one of those found, since */
    uint32_t *order,
        n_order;    /* nodes of the spliced graph (those that matches put from n_nodes on) */
    uint32_t *mark; /* the backwards */
    int n_marks;
    tl_use_table **uses, **uses_tried; /* of each, with the accepted matches; with those tried */
    tl_bump use_bump[2];               /* the accepted tables, and those being tried */
    int use_now;
    const tl_rule **rule; /* those that are on */
    int n_rules;
    bool near;     /* the attempt under way got so far that its failure is worth telling */
    bool overlaps; /* it met a node that is another match's */
    tl_err why;
} tl_pass;

/* pattern.c */
/* The part of tape t that out depends on, as a pattern of args; NULL with *err. */
tl_pattern *tl_pattern_of_tape(tl_bump *mem, tl_tape *t, const tl_tensor *arg, int n_args,
                               const tl_tensor *out, int n_out, const tl_pattern_scalar *scalar,
                               int n_scalars, tl_err *err);
bool tl_pattern_same(const tl_pattern *a, const tl_pattern *b);
/* pattern_attrs.c */
/* Attributes agree field by field, but for those with skip[field] >= 0 (NULL: none); which: the
 * first that does not. rank, of input 0 (or 0: unknown): a "dim" may count from either end. */
bool tl_attrs_agree(const tl_op *op, const void *a, const void *b, int rank,
                    const signed char *skip, const tl_attr **which);
double tl_attr_number(const tl_attr *f, const void *attrs);
/* An attribute's value as text. */
const char *tl_attr_text(char *buf, size_t cap, const tl_attr *f, const void *attrs);

/* rule_trace.c: a tape for tracing rules on. NULL when out of memory. */
tl_tape *tl_rule_tape(tl_tracing **s);
/* Where a rule is traced. */
typedef struct {
    const tl_array *array; /* of arguments; if seeded, also of each output's cotangent (of another
                              shape: contiguous) */
    const bool *grad;      /* of arguments: takes a gradient */
    const double *scalar;
    unsigned seeded; /* the outputs that a gradient comes to; 0: forward alone */
} tl_rule_at;
/* Traces search or replace of a rule on t (in t's mode) at w: as a pattern in mem; if seeded, with
 * the gradients of these outputs, by each argument that takes one, as more outputs. NULL with *err.
 */
tl_pattern *tl_rule_trace(const tl_rule *r, bool search, tl_tape *t, tl_bump *mem,
                          const tl_rule_at *w, tl_err *err);
/* A number whose gradient by y[i] is c[i]; TL_NONE for n = 0. */
tl_tensor tl_rule_seed(tl_tape *t, const tl_tensor *y, const tl_tensor *c, int n);
/* rule_make.c: a rule for each form of o, checked; NULL with *err. */
tl_rule *tl_rules_make(const tl_replacement *o, bool ours, tl_err *err);
void tl_rules_free(tl_rule *all);
/* rule.c: makes r's patterns from the examples and checks the whole of r. */
tl_status tl_rule_prepare(tl_rule *r, tl_err *err);
/* An argument that gradients come to. */
static inline bool tl_rule_grad(const tl_rule *r, int i)
{
    return i < r->o.n_in && !r->o.example_inputs[i].no_grad &&
           tl_dtype_is_float(r->o.example_inputs[i].dtype);
}

/* verify.c */
tl_status tl_rule_verify(const tl_rule *r, uint64_t seed, int rounds, tl_err *err);

/* replace.c: what matching needs to know of a tape. */
tl_status tl_pass_index(tl_pass *p);
/* A value's number there. */
static inline uint32_t tl_pass_slot(const tl_pass *p, tl_tensor x)
{
    return x.owner == p->t->values.owner ? x.index : p->n_values + x.index;
}

/* register.c: the rules that are on for graph options o, into mem; -1 when out of memory, or
 * (TL_ENAME, in *err) for a name to be left out that no replacement has. */
int tl_rules_on(tl_bump *mem, const tl_graph_options *o, const tl_rule ***list, tl_err *err);
/* The first form of that number or a later one. */
const tl_rule *tl_rule_find(const char *name, int form);

/* match.c */
typedef struct {
    int32_t node[TL_PATTERN_NODES];
    tl_tensor arg[TL_PATTERN_ARGS];
    double scalar[TL_PATTERN_SCALARS];
    bool has_scalar[TL_PATTERN_SCALARS];
} tl_binding;
/* Every way to lay pattern q with its first output at node `at` is given to found() until that says
 * true. exact: attributes agree, but for scalars. begin: arguments bound beforehand, or NULL. */
typedef bool tl_found(void *ctx, const tl_binding *b);
bool tl_match_pattern(tl_pass *p, const tl_rule *r, const tl_pattern *q, bool exact, uint32_t at,
                      const tl_binding *begin, tl_found *found, void *ctx);
/* Notes why an attempt fails, if nothing is noted; false. */
bool tl_refuse(tl_pass *p, const char *fmt, ...) TL_PRINTF(2, 3);

/* candidate_check.c: each refusal is noted. What lies around a match of the graph's own shapes; its
 * replacement has its outputs' shapes, dtypes and strides; values keep their memory where that
 * shows. */
bool tl_check_around(tl_pass *p, const tl_match *m);
bool tl_check_replacement(tl_pass *p, const tl_match *m);
bool tl_check_storage(tl_pass *p, const tl_match *m);

/* candidate.c: what rule r finds at that node is judged; true: it is good by itself. */
bool tl_candidate(tl_pass *p, const tl_rule *r, uint32_t node, tl_match *found);

/* settle.c: one that is good by itself waits for the others; then all are made together, or, where
 * that cannot be, as many as can. */
tl_status tl_settle_later(tl_pass *p, const tl_match *m);
tl_status tl_settle(tl_pass *p);
/* Rules from .. to - 1 may be tried again at a node. */
tl_status tl_settle_retry(tl_pass *p, uint32_t node, int from, int to);

/* splice.c: the graph as it is with the accepted matches and n tried ones in the place of their
 * nodes. */
tl_status tl_splice_prepare(tl_pass *p);
void tl_splice_try(tl_pass *p, tl_match **m, int n);
void tl_splice_drop(tl_pass *p);
bool tl_splice_accept(tl_pass *p); /* false: out of memory */
/* splice_order.c: it has an order: nothing comes before what it needs, or on the other side of a
 * change of memory. Into p->order. */
bool tl_splice_order(tl_pass *p);
/* splice_uses.c: a node of the spliced graph, seen from outside. */
typedef struct {
    int32_t node; /* -1: a leaf, or nothing */
    int out;
    tl_tensor x; /* the leaf */
} tl_splice_ref;
tl_splice_ref tl_splice_input(const tl_pass *p, uint32_t node, int k);
tl_splice_ref tl_splice_follow(const tl_pass *p, tl_tensor x);
int tl_splice_inputs(const tl_pass *p, uint32_t node);
int tl_splice_index(const tl_pass *p, uint32_t node); /* of the match that puts it */
static inline const tl_match *tl_splice_match(const tl_pass *p, uint32_t node)
{
    return p->match[tl_splice_index(p, node)];
}
uint32_t tl_splice_count(const tl_pass *p);
/* A table for each backward, in mem; NULL when out of memory. */
tl_use_table **tl_splice_tables(tl_pass *p, tl_bump *mem);
/* How input k of an op adds to a leaf's accumulator: through the engine, by a fold in the compute
 * type, or in f64. */
int tl_accumulator_kind(const tl_op *op, const void *attrs, int k);
/* splice_compare.c: a gradient comes to a match. */
bool tl_splice_passes(const tl_pass *p, const tl_match *m);
/* At a glance: false, if it is clear that the terms of an output's gradient would change their
 * order. */
bool tl_splice_glance(tl_pass *p, const tl_match *m);
/* Every gradient has the same terms in the same order with the matches tried as without; if one
 * alone is tried, it is told why not. */
bool tl_splice_uses(tl_pass *p);

/* report.c */
tl_status tl_report_made(tl_graph *g, const tl_match *m);
tl_status tl_report_missed(tl_graph *g, const tl_rule *r, const char *why);
/* A new pass: what was missed in the last one may be found now. */
void tl_report_begin(tl_graph *g, bool joint);

/* What rules have made a node: a replacement does not match what it made itself. */
typedef struct tl_origin {
    const tl_rule *rule;
    struct tl_origin *next;
} tl_origin;

#endif
