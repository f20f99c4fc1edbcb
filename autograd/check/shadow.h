/* shadow.h: a recorded function that is run again with its leaves moved, and one check of its
 * gradients. Shared by the files of this room.
 *
 * The shadow of a function is the list of its recorded ops, run in f64. The checker moves the
 * leaves, runs the ops again and compares how the result changes with the gradients that backward
 * gives. Where a field or argument has two values or is an index `own`, [0] belongs to the runs in
 * f64 and [1] to runs in the user's own dtypes. */
#ifndef TL_SHADOW_H
#define TL_SHADOW_H

#include <math.h>

#include "autograd/check/gradcheck.h"
#include "autograd/internal.h"
#include "tensor/rng.h"

/* A function and the inputs at which it is checked, for a call at `at`. */
typedef struct {
    tl_at at;
    tl_function *f;
    const tl_tensor *in;
    int n;
    void *ctx;
} tl_subject;

/* How many fourth differences noise.c takes. */
enum { TL_NOISE_WINDOWS = 3 };

/* A floating leaf of the recorded function. The elements of all leaves are numbered through. */
typedef struct {
    tl_tensor handle;  /* on the recording tape, or the model's */
    const tl_value *v; /* its record there */
    bool checked;      /* its gradient is in question */
    char name[96];
    int64_t first, n; /* its elements */
    tl_tensor again;  /* its handle in the re-run under way */
} tl_shadow_leaf;

typedef struct {
    tl_tape *rec;      /* the user's function, recorded */
    tl_tape *run;      /* where it is run again */
    tl_tensor y;       /* its result, on rec */
    tl_tensor *copies; /* of the inputs: on rec, and as many for another run */
    double *cotangent; /* of y */
    int64_t n_y;
    tl_shadow_leaf *leaf;
    int n_leaves, cap_leaves;
    /* By element of the leaves. */
    int64_t n;
    double *x0;       /* as recorded; the block that holds all these arrays */
    double *x;        /* where the next re-run takes it; back at x0 after that */
    double *dir;      /* the direction along which it moves */
    double *found[2]; /* the gradients that the last re-run gave; 0 where none is in question */
    double *g[2];     /* the analytic gradients at x0 */
    double *sway;     /* change of g[0] when all leaves move by a rounding unit of the user's */
    double *terms;    /* size of the terms that add up to g[0], which may cancel */
    double *noise[2]; /* how far the roundings of its run move g, once measured */
    double *diff;     /* scratch of noise.c: 2 * TL_NOISE_WINDOWS arrays */
    double jumps;     /* noise of tl_shadow_value, once measured */
    double largest;   /* tl_shadow_largest, once it was asked for */
    tl_err err;
} tl_shadow;

/* ---- shadow.c ---- */

/* Runs f on tape `on` with copies of the inputs; floating copies take gradients if `grads`. Any
 * failure, such as an input that cannot be read, goes to err. */
tl_status tl_shadow_record(const tl_subject *f, const char *who, bool grads, tl_tape *on,
                           tl_tensor *copies, tl_tensor *y, tl_err *err);
/* Collects the leaves of y: the n inputs, parameters, and constants. */
tl_status tl_shadow_leaves(tl_shadow *s, const tl_tensor *in, int n, bool check_inputs);
/* Fills g. */
tl_status tl_shadow_analytic(tl_shadow *s);
/* <cotangent, y> of a run in f64 with the leaves at x; NaN on failure (s->err). */
double tl_shadow_value(tl_shadow *s);
/* Fills found[own] from a run with the leaves at x. roll > 0: every leaf and every result also
 * moves by a rounding unit, up or down as random stream number `roll` says. */
tl_status tl_shadow_gradients(tl_shadow *s, bool own, int roll);
void tl_shadow_free(tl_shadow *s);
/* Copies the error of tape t, if it has one, to s->err. */
tl_status tl_shadow_failed(tl_shadow *s, const tl_tape *t);
/* A leaf on tape `on` with the contents of a. */
tl_tensor tl_shadow_copy(tl_tape *on, const tl_array *a);
/* Index of the first element that is not finite; -1: there is none, or no floating data (a may be
 * NULL). */
int64_t tl_bad_element(const tl_array *a);

/* ---- numeric.c ---- */

/* The leaves that move along dir: one, or every checked leaf (leaf NULL). dir is 0 elsewhere.
 * element >= 0: it is 1 at that element of the leaf, and 0 at others. */
typedef struct {
    tl_shadow_leaf *leaf;
    int64_t element;
} tl_path;

static inline bool tl_path_moves(const tl_path *p, const tl_shadow_leaf *l)
{
    return p->leaf == NULL ? l->checked : l == p->leaf;
}

typedef struct {
    double value, error; /* derivative, and the estimate of its error */
    double step;         /* the smallest of the steps that went into value */
    double smallest;     /* of all steps */
    double below, above; /* one-sided derivatives by it ... */
    double bend;         /* ... and their difference where the function bends; 0: smooth */
} tl_numeric;

/* sqrt(a^2 + b^2); the squares may overflow. */
static inline double tl_hypotenuse(double a, double b)
{
    const double m = fmax(fabs(a), fabs(b));
    return m > 0 && isfinite(m) ? m * sqrt(a / m * (a / m) + b / m * (b / m)) : fabs(a) + fabs(b);
}

/* tl_shadow_value at x0 + h * dir. */
double tl_shadow_value_at(tl_shadow *s, double h);
/* Its derivative by h at h = 0. */
tl_numeric tl_shadow_derivative(tl_shadow *s, const tl_path *p);
/* The same along s->dir, by steps from that one on down. */
tl_numeric tl_shadow_derivative_from(tl_shadow *s, double step);
/* The derivative along s->dir that gradients g give, an array by element. */
double tl_shadow_along(const tl_shadow *s, const double *g);
/* How large the numbers are that move. */
double tl_shadow_size(const tl_shadow *s, const tl_path *p);
/* Whether d is off from the f64 gradient, by that much, because of a bend at x0 or near it. */
bool tl_shadow_bends(tl_shadow *s, const tl_numeric *d, double off);

/* ---- noise.c ---- */

double tl_unit_of(tl_dtype d); /* half the distance from 1 to the next number */
/* The number nearest to x that d holds. */
static inline double tl_rounded_to(tl_dtype d, double x)
{
    double bits;
    tl_element_put(d, &bits, x);
    return tl_element_get(d, &bits);
}
/* Fills sway: the f64 gradients are taken once more with every leaf times 1 +- unit. */
tl_status tl_shadow_sway(tl_shadow *s, double unit);
/* Fills terms: the f64 gradients are taken once more with every cotangent on the way moved. */
tl_status tl_shadow_terms(tl_shadow *s);
/* The size of the largest element that the recorded function has read or made. */
double tl_shadow_largest(tl_shadow *s);
/* What some units of 1 in the largest cotangent make of the derivative along s->dir. A factor of a
 * gradient may be 1 plus or minus something far smaller (softmax's p - 1), computed in the user's
 * dtypes, whose unit is given. */
double tl_shadow_units(const tl_shadow *s, double unit);
/* Whether the derivative along s->dir by the user's gradients, over that in f64, is this ratio at
 * points nearby as well, and not 0: then it is off by a factor, and roundings make none. unit: as
 * above. */
bool tl_shadow_scaled(tl_shadow *s, double ratio, double unit);
/* Fills noise[own] and, in f64, s->jumps. */
tl_status tl_shadow_noise(tl_shadow *s, bool own);

/* ---- one check ---- */

/* An element that was compared. */
typedef struct {
    int64_t element;
    double numeric, analytic;
    bool wrong;
} tl_compared;

enum { TL_SEEN = 33 };

typedef struct {
    tl_shadow s;
    tl_gradcheck_options o;
    tl_gradcheck_report *r;
    const char *who; /* the public function that was called */
    tl_rng_key key;
    uint64_t draws;
    tl_dtype dtype;      /* the narrowest that gradients pass through */
    double unit;         /* its rounding unit */
    double largest;      /* the largest of the leaves' root mean square gradients */
    bool signal;         /* some leaf has a gradient other than zero */
    bool noised[2];      /* the leaves' noise has been measured */
    bool lost;           /* a comparison failed by no more than roundings explain */
    bool in_f64;         /* a comparison in f64 is wrong */
    bool empty;          /* the result depends on nothing */
    double below, above; /* one-sided derivatives of the comparison that is reported */
    double worst;        /* how far over its tolerance the worst comparison is ... */
    int worst_leaf;      /* ... the index of its leaf (-1: all at once) ... */
    const char *why;     /* ... and the text for it where every op is right by itself */
    int only;            /* > 0: only leaf only - 1 is compared, and `seen` is kept */
    tl_compared seen[TL_SEEN];
    int n_seen;
} tl_checker;

/* ---- judge.c ---- */

/* TL_OK if a check can begin: the tape has not failed and traces nothing, and there are a function,
 * n inputs and sensible options. */
tl_status tl_check_begin(tl_checker *c, const tl_subject *f);
/* Records f, and finds its leaves and their analytic gradients. */
tl_status tl_check_record(tl_checker *c, const tl_subject *f);
/* Records f and compares its gradients. The verdict is in c->r; any other error, in c->s.err. The
 * caller sets o, r, who and only of c, the rest to zero, and frees c->s in any case. */
tl_status tl_check_run(tl_checker *c, const tl_subject *f);
/* After TL_WRONG where every op is right by itself: TL_KINK if the whole is right at points beside
 * the leaves. Composed ops may each give one of several slopes and together one that is none. */
void tl_check_beside(tl_checker *c);
/* Sets dir: to 1 at the path's element, or at random for all leaves that move. */
void tl_check_aim(tl_checker *c, const tl_path *p);

/* ---- sanity.c ---- */

/* f must leave its inputs as they are, repeat its result, and do the same ops nearby. */
tl_status tl_check_sanity(tl_checker *c, const tl_subject *f);

/* ---- gradgrad.c ---- */

/* tl_check_run for the gradient of f by each floating input in turn, until one is not right; *by is
 * its number. *by is -1 before, or the only input to look at. */
tl_status tl_check_second(tl_checker *c, const tl_subject *f, int *by);

/* ---- culprit.c ---- */

/* Finds the op below y on tape rec whose gradient (order 1) or second derivative (order 2) is wrong
 * by itself, and writes it into the report. */
void tl_culprit_find(tl_tape *rec, tl_tensor y, int order, tl_gradcheck_options o,
                     tl_gradcheck_report *r);
/* The same with order 2 for f. */
void tl_culprit_find_second(tl_checker *c, const tl_subject *f);

/* ---- explain.c ---- */

/* Refuses nodes outside the promise. */
extern const tl_observer tl_strict;

#endif
