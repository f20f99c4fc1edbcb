/* shadow.h: a recorded function as a function of f64 leaves. Shared by gradcheck's files. */
#ifndef TL_SHADOW_H
#define TL_SHADOW_H

#include "autograd/check/gradcheck.h"
#include "autograd/internal.h"
#include "tensor/rng.h"

/* Error against step, as gradcheck measures and curve.c writes it. */
enum { TL_CURVE_POINTS = 24 };

typedef struct {
    double h[TL_CURVE_POINTS], central[TL_CURVE_POINTS], gap[TL_CURVE_POINTS];
    double analytic, value, error; /* value and error: Ridders' */
} tl_curve;

tl_status tl_curve_write(FILE *f, const tl_curve *c, tl_curve_format format, tl_err *err);

/* A floating leaf of the recorded function: its value in f64, which may be moved. */
typedef struct {
    tl_tensor handle; /* on the recording tape, or the model's */
    bool checked;     /* its gradient is in question */
    char name[96];
    tl_shape shape;
    int64_t n;
    double *x;       /* now */
    double *g64, *g; /* analytic gradients: of the f64 re-run, of the user's run */
    double *sway;    /* how far g64 moves when every leaf moves by a rounding unit of the user's */
    double *noise, *noise64; /* what the roundings of its run do to g and g64, once looked for */
} tl_shadow_leaf;

typedef struct {
    tl_tape *rec;      /* the user's function, recorded */
    tl_tape *run;      /* where f64 re-runs happen */
    tl_tensor y;       /* on rec */
    tl_tensor *copies; /* of the inputs: on rec, and as many for another run */
    double *cotangent;
    int64_t n_y;
    tl_shadow_leaf *leaf;
    int n_leaves;
    tl_tensor *now; /* the leaves' handles in the re-run under way */
    bool with_grad;
    bool own;        /* the re-run is in the user's dtypes, and its gradients go into g */
    int roll;        /* > 0: leaves and results move by a rounding unit of what they were */
    uint64_t rolled; /* recorded in, up or down, as this many draws have it */
    double jumps;    /* of the value computed in f64 from point to point, once looked for */
    tl_err err;
} tl_shadow;

/* An error on the tape unless it traces nothing and there are a function and n inputs. */
tl_status tl_shadow_usable(tl_at at, const char *who, tl_function *f, const tl_tensor *in, int n);
/* f run on tape `on` with copies of the inputs, of which floats take gradients there if asked. err
 * has what goes wrong, an input that cannot be read among it. */
tl_status tl_shadow_record(tl_at at, const char *who, tl_function *f, const tl_tensor *in, int n,
                           void *ctx, bool grads, tl_tape *on, tl_tensor *copies, tl_tensor *y,
                           tl_err *err);
/* <cotangent, y> at the leaves as they are now; NaN on failure (err). */
double tl_shadow_value(tl_shadow *s);
/* The f64 re-run with gradients: fills g64 of every checked leaf. */
tl_status tl_shadow_gradients(tl_shadow *s);
double tl_unit_of(tl_dtype d); /* half the distance from 1 to the next number */
/* Fill noise, or noise64 and s->jumps, of every checked leaf; x, g and g64 stay. */
tl_status tl_shadow_noise(tl_shadow *s);
tl_status tl_shadow_noise64(tl_shadow *s);
/* Fills sway: the f64 gradients once more with every leaf times 1 +- unit. */
tl_status tl_shadow_sway(tl_shadow *s, double unit);
/* Collects the leaves of y: the inputs, and what else is the model's or a constant. */
tl_status tl_shadow_leaves(tl_shadow *s, const tl_tensor *in, int n, bool check_inputs);
void tl_shadow_free(tl_shadow *s);
/* Moves every element of a floating array by 1e-3 or 2e-3 of itself, towards 0: what lies in [0, 1]
 * stays there. */
void tl_shadow_nudge(const tl_array *a, int seed);

typedef struct {
    double value, error; /* derivative and the estimate of its error */
    double bend;  /* one-sided derivatives differ by this at the smallest steps; 0 if smooth */
    double scale; /* largest |value of the function| met */
    double step;  /* the smallest that went into value */
} tl_numeric;
/* d/dh of the shadow's value as leaf moves along dir (n elements, or one element if dir is NULL).
 */
tl_numeric tl_shadow_derivative(tl_shadow *s, tl_shadow_leaf *leaf, const double *dir,
                                int64_t element);
/* The same with every checked leaf moved along its own dir. */
tl_numeric tl_shadow_derivative_all(tl_shadow *s, double *const *dir);

/* The differences themselves over steps from 1 downwards; analytic is left alone. */
void tl_shadow_curve(tl_shadow *s, tl_shadow_leaf *leaf, const double *dir, int64_t element,
                     tl_curve *c);

/* An element that was compared. */
typedef struct {
    int64_t element;
    double numeric, analytic;
    bool wrong;
} tl_compared;

enum { TL_SEEN = 33 };

/* One check under way. */
typedef struct {
    tl_shadow s;
    tl_gradcheck_options o;
    tl_gradcheck_report *r;
    const char *who; /* is asked */
    tl_rng_key key;
    uint64_t draws;
    tl_dtype dtype;             /* the user's, the narrowest; */
    double unit;                /* its rounding unit */
    double largest;             /* root mean square gradient of the leaf where it is largest */
    bool signal;                /* some leaf had one */
    bool noised[2];             /* the leaves' noise is there, in f64 and in the user's dtypes */
    bool lost[2];               /* a comparison fails by no more than what roundings do there */
    bool in_f64;                /* one is wrong in f64 */
    double worst;               /* how far over its tolerance the worst comparison is, */
    const tl_shadow_leaf *leaf; /* and in which leaf */
    int only; /* > 0: leaf only - 1 alone is compared, and what was seen of it is kept */
    tl_compared seen[TL_SEEN];
    int n_seen;
} tl_checker;

/* Records f and compares; the verdict is in c->r, what went wrong besides in c->s.err. c->o, c->r,
 * c->who and c->only are given, the rest zero. To be ended in any case. */
tl_status tl_check_run(tl_checker *c, tl_at at, tl_function *f, const tl_tensor *in, int n,
                       void *ctx);
/* The function must repeat its result, do the same ops a little beside its inputs, and leave these
 * as they are. */
tl_status tl_check_sanity(tl_checker *c, tl_at at, tl_function *f, const tl_tensor *in, int n,
                          void *ctx);
/* The same for the gradient of f by each floating input in turn, until one is not right: *by. It is
 * -1 before, or the one input to look at. */
tl_status tl_check_second(tl_checker *c, tl_at at, tl_function *f, const tl_tensor *in, int n,
                          void *ctx, int *by);
/* After a verdict of wrong: which op on the tape that leads to y has a wrong gradient (order 1) or
 * second derivative (order 2) by itself. The culprit is written into the report. */
void tl_culprit_find(tl_tape *rec, tl_tensor y, int order, tl_gradcheck_options o,
                     tl_gradcheck_report *r);
/* It in words, or that there is none: in f64, or in the user's dtypes alone; returns buf. */
const char *tl_culprit_text(const tl_culprit *c, const char *none, char *buf, size_t cap);
/* Says it in the report, frees the check and, unless the verdict is right, fails the tape. */
tl_verdict tl_check_end(tl_checker *c, tl_at at);

#endif
