/* cases.h: op cases - for every op, ways to call it, and what must come out.
 *
 * A case is one line of a table: the op, a name, its inputs in words, a function
 * that calls the op and one that computes the same with tests/ref. Reference,
 * registry, invariance and gradient tests all walk the same tables. A new op wants
 * a line here, else test_registry fails.
 *
 * Inputs in words, one a token:  DTYPE[dims]:word:word ...   or  -  (absent)
 *   dtype   f64 f32 f16 bf16 i64 bool; * the dtype under test; c its compute type
 *   values  (none) normal; pos in [0.5, 2.5); away from 0; unit in (0.1, 0.9); apart: distinct, 1
 * apart; between: the same, shifted by 1/2; belowN: ids below N, some repeated; fromN: N, N+1 or
 * N+2; mask: bool; rate: f64 in (0, 1), countN: N itself memory  (none) row-major; turned: last two
 * dims swapped; padded: rows with a gap; strided: every second element of a row; heads: dims 1 and
 * 2 swapped; expanded: dim 0 is one element shown often fixed   takes no gradient (so do belowN,
 * fromN, mask, rate, countN)
 */
#ifndef TESTS_CASES_H
#define TESTS_CASES_H

#include "autograd/check/gradcheck.h"
#include "ops/list.h"
#include "ops/ops.h"
#include "tests/ref/ref.h"

enum { CASE_INPUTS = 14, CASE_OUTPUTS = 6, CASE_PARAMS = 8 };

typedef enum {
    CASE_NORMAL,
    CASE_POS,
    CASE_AWAY,
    CASE_UNIT,
    CASE_APART,
    CASE_BETWEEN,
    CASE_BELOW,
    CASE_FROM,
    CASE_MASK,
    CASE_RATE,
    CASE_COUNT
} case_domain;
typedef enum {
    CASE_ROW,
    CASE_TURNED,
    CASE_PADDED,
    CASE_STRIDED,
    CASE_HEADS,
    CASE_EXPANDED
} case_layout;

/* One input, read from its words. */
typedef struct {
    bool present, fixed;
    tl_dtype dtype;
    tl_shape shape; /* as the op sees it */
    tl_shape leaf;  /* as it lies in memory */
    case_domain domain;
    int64_t n; /* of belowN, fromN and countN */
    case_layout layout;
} case_input;

typedef struct tl_case tl_case;

/* Calls the op; fills out[], the c->diff (or 1) differentiable outputs first; returns how many. */
typedef int case_build(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out);
/* The same outputs; absent inputs have no data. */
typedef void case_reference(const tl_case *c, const ref_tensor *in, ref_tensor *out);
/* Continues acc[i] by the gradient of input i; acc[i].data is NULL where none is wanted. */
typedef void case_gradient(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                           const ref_tensor *dy, ref_tensor *acc);

enum {
    CASE_BIG = 1u << 0, /* enough work to be divided between threads: f32 only, no gradient check */
    CASE_F32 = 1u << 1, /* f32 only */
    CASE_NO_CHECK = 1u << 2 /* no gradient check; the comment at the case says why */
};

struct tl_case {
    const char *op, *name, *in;
    case_build *build;
    case_reference *reference;
    double p[CASE_PARAMS]; /* attributes, as build and reference read them */
    unsigned flags;
    int diff;         /* differentiable outputs, 0 means 1 */
    const char *rows; /* by input: b has the batch as axis 0, as the output has; p a parameter
                         shared by all rows whose gradient folds; - shared. NULL: no batch */
    case_gradient *gradient; /* NULL: the formula is held by the gradient check alone */
    const char *acc; /* accumulator of each input's gradient: c compute type, d f64, - none */
};

int tl_case_count(void);
const tl_case *tl_case_at(int i);

/* A case with its dtype: what tests run. */
typedef struct {
    const tl_case *c;
    tl_dtype dtype;
    int n;
    case_input in[CASE_INPUTS];
    char label[96];
} case_run;
/* The dtypes a case runs in: i from 0; false past the end. */
bool tl_case_dtype(const tl_case *c, int i, tl_dtype *dtype);
case_run tl_case_run(const tl_case *c, tl_dtype dtype);

/* Values of the inputs as they lie in memory. */
typedef enum {
    CASE_PLAIN,
    CASE_HARD,
    CASE_SPECIAL,
    CASE_KINDS
} case_kind; /* within the domain; any finite; with NaN and inf */
void tl_case_fill(const case_run *r, uint64_t *seed, case_kind kind, ref_tensor *leaf);
ref_tensor tl_case_values(ref_dtype dtype, const tl_shape *shape, uint64_t *seed,
                          case_kind kind); /* normal domain */
/* What the op sees of a leaf, and a tensor of the op's view put back into the leaf's places (zeros
 * elsewhere). */
ref_tensor tl_case_seen(const case_input *in, const ref_tensor *leaf);
ref_tensor tl_case_unseen(const case_input *in, const ref_tensor *seen);
void tl_case_free(int n, ref_tensor *x);

ref_dtype tl_case_ref_dtype(tl_dtype d);
tl_tensor tl_case_leaf(tl_tape *t, const ref_tensor *x); /* TL_NONE for an absent one */
/* The same, of samples that are the rows of its view. */
tl_tensor tl_case_rows(tl_tape *t, const case_input *in, const ref_tensor *leaf);
tl_tensor tl_case_view(tl_tape *t, const case_input *in, tl_tensor leaf);
ref_tensor tl_case_read(tl_tape *t, tl_tensor x); /* no data if the tape has failed */

/* What an update changes beside its parameter has no handle afterwards, unless it is a variable: a
 * buffer that holds x, or x itself where the tape has no model and is none of a trace. */
typedef struct {
    tl_tensor x;
    tl_array a;
} case_state;
case_state tl_case_state(tl_tape *t, const char *name, tl_tensor x);
tl_tensor tl_case_changed(tl_tape *t, const case_state *s); /* what it holds now, as a value */

/* Leaves to views to the op: fills out[] and returns how many. */
int tl_case_call(tl_tape *t, const case_run *r, const tl_tensor *leaf, tl_tensor *out);

/* An op of that name was recorded on t. */
bool tl_case_calls(const tl_tape *t, const char *op);
/* How many outputs of the last of them say that they carry a gradient; empty ones aside. */
int tl_case_carriers(const tl_tape *t, const char *op);

/* For tl_gradcheck: the inputs are the leaves that are not fixed, in order; several differentiable
 * outputs come joined into one. ctx is a case_call. inside: the op's inputs are not leaves but
 * results of a node before it, so that gradients are handed on and not accumulated, and there is a
 * node after it. */
typedef struct {
    const case_run *run;
    const ref_tensor *leaf;
    bool inside;
} case_call;
tl_tensor tl_case_function(tl_tape *t, const tl_tensor *in, int n, void *ctx);
int tl_case_floats(tl_tape *t, const case_call *k,
                   tl_tensor *in); /* those inputs, as leaves of t */

/* Outputs and, with a cotangent of output 0, the gradients of all floating inputs that are not
 * fixed. */
typedef struct {
    int n_out;
    ref_tensor out[CASE_OUTPUTS], grad[CASE_INPUTS];
} case_result;
/* One run on t, which is reset first. dy may be NULL. On failure the tape has an error. */
void tl_case_result(tl_tape *t, const case_run *r, const ref_tensor *leaf, const ref_tensor *dy,
                    case_result *out);
void tl_case_result_free(case_result *x);
/* The case's op has a derivative that output 0 alone carries. */
bool tl_case_differentiable(const tl_case *c);
bool tl_case_floating(const case_input *in); /* takes a gradient */
/* A random cotangent of output 0. */
ref_tensor tl_case_cotangent(const ref_tensor *out, uint64_t *seed, case_kind kind);

/* A case as the op sees it, row-major, with a cotangent where it has a gradient: its batch can be
 * cut and mixed. */
typedef struct {
    case_run r;
    ref_tensor in[CASE_INPUTS], dy; /* dy without data: forward only */
    int64_t batch;
} case_problem;
int64_t tl_case_batch(const tl_case *c); /* size of axis 0 of its b inputs; 0 without any */
case_problem tl_case_problem_of(tl_tape *t, const case_run *r, const ref_tensor *leaf,
                                uint64_t *seed, case_kind kind);
case_problem tl_case_rows_of(const case_problem *p, int n,
                             const int64_t *row); /* rows row[0 .. n) of its batch */
void tl_case_problem_run(tl_tape *t, const case_problem *p, case_result *out);
void tl_case_problem_free(case_problem *p);
/* Backward over the rows [at, at + n): p inputs are parameters of m, laid out as in r, the others
 * rows of p. */
void tl_case_micro_batch(tl_tape *t, tl_model *m, const case_run *r, const case_problem *p,
                         const ref_tensor *leaf, int64_t at, int n);
void tl_case_parameter_gradients(tl_tape *t, tl_model *m, const case_run *r, case_result *out);
ref_tensor tl_case_gather(const ref_tensor *x, int n, const int64_t *row); /* along axis 0 */

/* A seed of its own for each run: of the test's seed, the label and the kind of values, not of the
 * place in the tables. */
uint64_t tl_case_seed(uint64_t seed, const case_run *r, case_kind kind);
/* splitmix64 */
uint64_t tl_case_random(uint64_t *state);
double tl_case_uniform(uint64_t *state); /* [0, 1) */

/* ---- for the tables ---- */

/* Attributes by name, so that a private struct need not be known here. */
typedef union {
    double align;
    unsigned char bytes[256];
} case_attrs;
void tl_case_attr(const tl_op *op, case_attrs *a, const char *name, double value);

/* NULL for an absent input. */
const ref_tensor *tl_case_opt(const ref_tensor *x);
/* x seen as shape; borrows x's data. */
ref_tensor tl_case_shaped(const ref_tensor *x, int ndim, const int64_t *dim);
/* a and b in the dtype in which they meet; the caller frees both. */
void tl_case_meet(const ref_tensor *a, const ref_tensor *b, ref_tensor both[2]);
/* The shape listed in p: a count, then sizes. */
tl_shape tl_case_shape(const double *p);
/* acc += x, element by element or folded down, in acc's dtype; +0 at the end (NUMERICS 1.6). Frees
 * x. */
void tl_case_continue(ref_tensor *acc, ref_tensor x);
#define CASE_REF_DIMS(...) \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]) { __VA_ARGS__ }

#endif
