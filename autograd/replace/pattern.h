/* pattern.h: replaces subgraphs by others when a graph is made. Public.
 *
 * A replacement is two programs with the same arguments and outputs: one to search for, and one to
 * put there. A match is first found by its ops alone. Then the search is traced again with the
 * graph's own shapes, strides, dtypes and scalars, and must agree field by field. It is replaced
 * only where every bit stays the same (NUMERICS 13), unless tl_graph_options.rounds is set. */
#ifndef TL_PATTERN_H
#define TL_PATTERN_H

#include "autograd/graph/graph.h"
#include "autograd/op.h"
TL_BEGIN

typedef struct tl_match tl_match;

enum { TL_PATTERN_ARGS = 16, TL_PATTERN_OUTS = 8, TL_PATTERN_JOINT_OUTS = 4 };
enum { TL_PATTERN_SCALARS = 8, TL_PATTERN_NODES = 128, TL_PATTERN_FORMS = 64 };

/* One argument, with an example, of at most 2^24 elements, to register and test it by. */
typedef struct {
    const char *name;
    tl_dtype dtype;
    tl_shape shape;
    bool fixed;     /* it always has this dtype; else it has that of the first argument */
    bool or_f32;    /* it may also be f32 (a norm's weight, a rotary table) */
    bool no_grad;   /* it takes no gradient (a mask, a table) */
    bool exclusive; /* it may not be the same value as another exclusive argument */
    int64_t below;  /* of i64: example values are 0 .. below - 1 */
} tl_pattern_arg;
#define TL_ARG(name_, dtype_, shape_, ...)                               \
    {                                                                    \
        .name = (name_), .dtype = (dtype_), .shape = shape_, __VA_ARGS__ \
    }

/* A constant that may differ, as eps may. No other attribute of search may have its value. */
typedef struct {
    const char *name; /* that of its attribute, if another scalar has the same value */
    double value;
} tl_pattern_scalar;

/* The ctx of search and replace. */
typedef struct {
    const double *scalar; /* in the order of tl_replacement.scalars */
    void *ctx;            /* tl_replacement.ctx */
    int form;             /* 0 .. tl_replacement.forms - 1 */
} tl_pattern_values;

typedef enum {
    TL_TRACE_FORWARD, /* match the program as written; the replacement is differentiated */
    /* match it with backward expanded: the cotangents of outputs are further inputs, the gradients
     * of arguments are further outputs */
    TL_TRACE_JOINT
} tl_trace_kind;

/* May refuse a match that is otherwise good. */
typedef bool tl_extra_check(const tl_match *m, void *ctx);

#define TL_ALL_FLOATS (TL_BIT(TL_F64) | TL_BIT(TL_F32) | TL_BIT(TL_F16) | TL_BIT(TL_BF16))

typedef struct {
    const char *name;             /* unique */
    tl_program *search, *replace; /* search may leave outputs TL_NONE */
    const tl_pattern_arg *example_inputs;
    int n_in, n_out;
    const tl_pattern_scalar *scalars;
    int n_scalars;
    int forms; /* ways to write search, told apart by tl_pattern_values.form; 0: one */
    const tl_shape *form_shapes; /* [forms][n_in]: of the examples, by form; NULL: those above */
    tl_trace_kind trace;
    tl_extra_check *extra_check;
    void *ctx;            /* borrowed for ever */
    bool skip_duplicates; /* a form whose pattern is known is left out, without an error */
    unsigned exact;       /* TL_BIT(dtype of the first argument): same bits, forward and backward */
    unsigned exact_forward;  /* same bits of values alone: made where no gradient passes */
    uint64_t rounding_forms; /* bit i: form i claims neither */
} tl_replacement;

/* Adds a replacement for all graphs made from now on, in any thread. It is tried after those added
 * before and ahead of the library's. Copies text and arrays. TL_EUSAGE: search does not use an
 * argument or scalar; a program cannot be traced, draws random numbers, opens a scope or changes
 * something in place; a duplicate (same pattern and extra_check). TL_ENAME: taken. TL_ESHAPE,
 * TL_EDTYPE: outputs of replace have another shape or dtype. TL_EDOMAIN: exact or exact_forward
 * does not hold; tested here, at two sizes. It is not made again in nodes that it has put. */
#define tl_register_replacement(err, ...) \
    tl_register_replacement_with(err, TL_MAKE(tl_replacement){__VA_ARGS__})
tl_status tl_register_replacement_with(tl_err *err, tl_replacement r);

/* Switches one off, or on again, for graphs made from now on; false if no replacement has the name.
 * TL_WITHOUT in the environment, names with commas or "all", does so from outside; an unknown name
 * there is an error of the first graph (TL_ENAME). */
bool tl_replacement_enable(const char *name, bool on);

/* The names in the order in which they are tried; NULL past the end. */
const char *tl_replacement_at(int i);

/* Compares the bits of both programs on `rounds` (0: 8) random inputs, then on extremes, of every
 * dtype claimed exact; gradients and accumulators, too. TL_EDOMAIN with the first difference. */
tl_status tl_replacement_check(const char *name, uint64_t seed, int rounds, tl_err *err);
/* The same for one form and dtype, claimed or not, with these shapes (NULL: the examples').
 * TL_ENAME: there is no such form. */
tl_status tl_replacement_compare(const char *name, int form, tl_dtype dtype, const tl_shape *shapes,
                                 bool backward, uint64_t seed, int rounds, tl_err *err);

/* ---- in an extra_check ---- */

/* Dims, strides and dtype of an argument (data NULL); NULL for an unknown name. */
const tl_array *tl_match_input(const tl_match *m, const char *name);
/* The same, with data, for an argument that is a tl_constant of the program; NULL for others. */
const tl_array *tl_match_constant(const tl_match *m, const char *name);
/* A scalar argument; NaN for an unknown name. */
double tl_match_scalar(const tl_match *m, const char *name);
/* The place of the call that gives the match's first output. */
const char *tl_match_place(const tl_match *m, int *line);

/* The library's, ended by NULL: ops/patterns/. */
extern const tl_replacement *const tl_shipped_replacements[];
TL_END
#endif
