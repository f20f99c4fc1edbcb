/* shadow.h: a recorded function as a function of f64 leaves. Shared by gradcheck's files. */
#ifndef TL_SHADOW_H
#define TL_SHADOW_H

#include "autograd/check/curve.h"
#include "autograd/internal.h"

/* A floating leaf of the recorded function: its value in f64, which may be moved. */
typedef struct {
    tl_tensor handle; /* on the recording tape, or the model's */
    bool checked;     /* its gradient is in question */
    char name[96];
    tl_shape shape;
    int64_t n;
    double *x;       /* now */
    double *g64, *g; /* analytic gradients: of the f64 re-run, of the user's run */
    double
        *sway; /* how far g64 moves when every leaf moves by a rounding unit of the user's dtypes */
} tl_shadow_leaf;

typedef struct {
    tl_tape *rec; /* the user's function, recorded */
    tl_tape *run; /* where f64 re-runs happen */
    tl_tensor y;  /* on rec */
    double *cotangent;
    int64_t n_y;
    tl_shadow_leaf *leaf;
    int n_leaves;
    tl_tensor *now; /* the leaves' handles in the re-run under way */
    bool with_grad;
    tl_err err;
} tl_shadow;

/* <cotangent, y> at the leaves as they are now; NaN on failure (err). */
double tl_shadow_value(tl_shadow *s);
/* The f64 re-run with gradients: fills g64 of every checked leaf. */
tl_status tl_shadow_gradients(tl_shadow *s);
/* Fills sway: the f64 gradients once more with every leaf times 1 +- unit. */
tl_status tl_shadow_sway(tl_shadow *s, double unit);
/* Collects the leaves of y; params: those of the model too. */
tl_status tl_shadow_leaves(tl_shadow *s, const tl_tensor *in, int n, bool check_inputs,
                           bool check_params);
void tl_shadow_free(tl_shadow *s);
/* Element i as a double. Moves every element of a floating array by about 1e-3 of itself. */
double tl_shadow_element(const tl_array *a, int64_t i);
void tl_shadow_nudge(const tl_array *a, int seed);

typedef struct {
    double value, error; /* derivative and the estimate of its error */
    double bend;  /* one-sided derivatives differ by this at the smallest steps; 0 if smooth */
    double scale; /* largest |value of the function| met */
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

#endif
