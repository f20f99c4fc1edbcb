/* gradcheck.h: whether gradients are right. Public.
 *
 * The function is called as it was written, three times: it must repeat itself and take no number
 * of its inputs through the host (tl_item); buffers keep what it writes. Its nodes are run again in
 * f64, with every floating leaf widened. That run is differentiated numerically, along random
 * directions and at single elements, with a random cotangent on every output. It is compared
 *   - tightly, with the analytic gradient of the f64 run: is the vjp right?
 *   - to the precision of the user's dtypes, with the gradient in them: are its kernels right?
 * (Values are not compared.) Values that are detached, or counts to an op, are held constant on
 * both sides. Only a check that had something to compare can be "right". After "wrong" each op is
 * checked alone, and the culprit is named. */
#ifndef TL_GRADCHECK_H
#define TL_GRADCHECK_H

#include "autograd/handle.h"
#include "autograd/tape.h"
TL_BEGIN

/* A mode: the first op that makes a NaN or an infinity from finite inputs is an error (TL_EDOMAIN)
 * with its place; in backward, with that of the op whose gradient it is. It ends before tl_step. */
enum { TL_ANOMALY = 1u << 16 };

typedef enum {
    TL_RIGHT,             /* every element compared agrees */
    TL_WRONG,             /* numeric and analytic differ by more than errors, or f has failed */
    TL_KINK,              /* f bends here or nearby: numeric is the mean of both sides' slopes */
    TL_PRECISION_LIMITED, /* roundings hide it, or the numeric side is too uncertain */
    TL_NO_SIGNAL          /* nothing to compare: no gradient, or zero on both sides everywhere */
} tl_verdict;
const char *tl_verdict_name(tl_verdict v); /* "right"; never NULL */

/* A function of n inputs, which records on t and returns its output. */
typedef tl_tensor tl_function(tl_tape *t, const tl_tensor *in, int n, void *ctx);

typedef struct {
    uint64_t seed;    /* of cotangents and directions; 0: a fixed one */
    int directions;   /* random directions per leaf; 0: 2 */
    int elements;     /* single elements per leaf, spread over it; 0: 8 (all of a smaller leaf) */
    bool skip_inputs; /* check the parameters only */
    bool constant_ok; /* a leaf of zero gradient on both sides is right if another has a signal */
    bool all;         /* every element of every leaf: the whole Jacobian, by the random cotangent */
    bool fast;        /* for big models: one direction through all leaves at once, no elements */
} tl_gradcheck_options;

/* After TL_WRONG, the op whose gradient is wrong by itself at the values of the run. */
typedef struct {
    const char *op, *file; /* its name and the place of its call; op is NULL if none was found */
    int line;
    int input;            /* the one by which its gradient is wrong; -1: by its cotangent */
    int by;               /* >= 0: the second derivative is wrong, of the gradient by this input */
    double ratio;         /* analytic/numeric if that is one number; else NaN */
    const char *kind;     /* in words: "has the wrong sign" */
    int compared, wrong;  /* elements of that input, and how many of them are wrong */
    int calls, others;    /* calls that are wrong: of this op, this one included, and of others */
    int judged, unjudged; /* calls that were judged, and that could not be, as at a bend */
    int n_worst;
    struct {
        int64_t element;
        double numeric, analytic;
    } worst[3];
} tl_culprit;

/* The result of a check, at the worst place. */
typedef struct {
    tl_verdict verdict;
    char leaf[96];   /* "input 0", or the parameter's name */
    int64_t element; /* -1: a random direction */
    double numeric, analytic, analytic_f64;
    double error;              /* of numeric, estimated */
    double relative, ulps;     /* between numeric and analytic; in last places of its dtype */
    int leaves, compared;      /* how many leaves and comparisons */
    tl_culprit culprit;        /* TL_WRONG */
    char text[TL_MESSAGE_MAX]; /* all of it as a sentence */
} tl_gradcheck_report;

/* Checks the gradients of f by every floating input and every parameter of the tape's model that f
 * uses. in: tensors of the model or the tape, whose values stay. Any verdict but TL_RIGHT is also
 * an error on the tape (TL_ENOGRAD, or what has stopped the check) with the report's text. */
#define tl_gradcheck(t, f, ...) /* in, n, ctx */ \
    tl_gradcheck_at(TL_AT(t), f, __VA_ARGS__, TL_MAKE(tl_gradcheck_options){0}, NULL)
#define tl_gradcheck_with(t, f, in, n, ctx, report, ...) \
    tl_gradcheck_at(TL_AT(t), f, in, n, ctx, TL_MAKE(tl_gradcheck_options){__VA_ARGS__}, report)
tl_verdict tl_gradcheck_at(tl_at at, tl_function *f, const tl_tensor *in, int n, void *ctx,
                           tl_gradcheck_options o, tl_gradcheck_report *report);

/* The same for second derivatives: of the function that gives the gradient of f by each input, with
 * the cotangent as one more input. Inputs that this does not depend on are no failure. */
#define tl_gradgradcheck(t, f, ...) /* in, n, ctx */ \
    tl_gradgradcheck_at(TL_AT(t), f, __VA_ARGS__, TL_MAKE(tl_gradcheck_options){0}, NULL)
#define tl_gradgradcheck_with(t, f, in, n, ctx, report, ...) \
    tl_gradgradcheck_at(TL_AT(t), f, in, n, ctx, TL_MAKE(tl_gradcheck_options){__VA_ARGS__}, report)
tl_verdict tl_gradgradcheck_at(tl_at at, tl_function *f, const tl_tensor *in, int n, void *ctx,
                               tl_gradcheck_options o, tl_gradcheck_report *report);

/* Writes how the error of the numeric derivative by input `input` depends on the step, a row for
 * each. The input moves at one element, or along a random direction (element < 0). */
typedef enum { TL_CURVE_TEXT, TL_CURVE_CSV, TL_CURVE_SVG } tl_curve_format;
#define tl_gradcheck_curve(t, f, in, n, ctx, input, element, file, format) \
    tl_gradcheck_curve_at(TL_AT(t), f, in, n, ctx, input, element, file, format)
tl_status tl_gradcheck_curve_at(tl_at at, tl_function *f, const tl_tensor *in, int n, void *ctx,
                                int input, int64_t element, FILE *file, tl_curve_format format);
TL_END
#endif
