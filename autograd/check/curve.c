/* curve.c: tl_gradcheck_curve, the error of a numeric derivative against the step that made it, as
 * text, CSV or a picture. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "autograd/check/shadow.h"
#include "tensor/threads.h"

enum { POINTS = 24 };

typedef struct {
    double h[POINTS];       /* the step */
    double central[POINTS]; /* the central difference */
    double gap[POINTS];     /* between the one-sided differences */
    double analytic;
    double value, error; /* by Ridders' method, with its estimate */
} curve;

/* ---- writing ---- */

static double log10_of(double x)
{
    return log10(x > 1e-300 ? fmin(x, 1e300) : 1e-300); /* bits do not matter here */
}

static void text(FILE *f, const curve *c)
{
    fprintf(f, "%12s %24s %12s %12s\n", "step", "central difference", "error", "one-sided gap");
    for (int i = 0; i < POINTS; i++)
        fprintf(f, "%12.3e %24.16e %12.3e %12.3e\n", c->h[i], c->central[i],
                fabs(c->central[i] - c->analytic), c->gap[i]);
    fprintf(f, "%12s %24.16e %12.3e  (estimated error %.3e)\n", "Ridders", c->value,
            fabs(c->value - c->analytic), c->error);
    fprintf(f, "%12s %24.16e\n", "analytic", c->analytic);
}

static void csv(FILE *f, const curve *c)
{
    fprintf(f, "step,central,error,one_sided_gap\n");
    for (int i = 0; i < POINTS; i++)
        fprintf(f, "%.17g,%.17g,%.17g,%.17g\n", c->h[i], c->central[i],
                fabs(c->central[i] - c->analytic), c->gap[i]);
}

enum { W = 640, H = 400, LEFT = 84, RIGHT = 610, ABOVE = 50, BELOW = 330 };

typedef struct {
    int low, high; /* decades */
    double from, to;
} axis;

static double place(const axis *a, double power)
{
    return a->from + (power - a->low) / (a->high - a->low) * (a->to - a->from);
}

/* A line across the picture and a label for every decade of an axis or, if there are more than 8,
 * for every second, fourth, ... */
static void ticks(FILE *f, const axis *a, bool vertical)
{
    int each = 1;
    while (a->high - a->low > 8 * each)
        each *= 2;
    for (int e = a->low; e <= a->high; e += each) {
        const double at = place(a, e);
        if (vertical)
            fprintf(f,
                    "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>"
                    "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">1e%d</text>\n",
                    LEFT, RIGHT, at, at, LEFT - 8, at + 4, e);
        else
            fprintf(f,
                    "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" stroke=\"#888\"/>"
                    "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">1e%d</text>\n",
                    at, at, BELOW, BELOW + 5, at, BELOW + 20, e);
    }
}

/* Colours are attributes: not every viewer reads styles, which only make it dark on request. An
 * error of 0 has no logarithm and stands at the bottom. */
static void svg(FILE *f, const curve *c)
{
    axis x = {(int)floor(log10_of(c->h[POINTS - 1])), (int)ceil(log10_of(c->h[0])), LEFT, RIGHT};
    axis y = {300, -300, BELOW, ABOVE};
    for (int i = 0; i < POINTS; i++) {
        const double error = fabs(c->central[i] - c->analytic);
        y.low = error > 0 ? (int)fmin(y.low, floor(log10_of(error))) : y.low;
        y.high = error > 0 ? (int)fmax(y.high, ceil(log10_of(error))) : y.high;
    }
    if (y.low >= y.high) /* no error at all, or one decade */
        y.low = y.low > y.high ? -17 : y.low, y.high = y.low + 1;
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
            "height=\"%d\" font-family=\"sans-serif\" font-size=\"12\">\n"
            "<style>@media (prefers-color-scheme: dark) { rect { fill: #16181c } text { fill: #ddd "
            "} line { stroke: #444 } }</style>\n"
            "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n",
            W, H, W, H, W, H);
    ticks(f, &y, true);
    ticks(f, &x, false);
    fprintf(f, "<polyline fill=\"none\" stroke=\"#3d7fd9\" stroke-width=\"2\" points=\"");
    for (int i = 0; i < POINTS; i++)
        fprintf(f, "%.1f,%.1f ", place(&x, log10_of(c->h[i])),
                place(&y, fmax(log10_of(fabs(c->central[i] - c->analytic)), y.low)));
    fprintf(f,
            "\"/>\n<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">step</text>\n"
            "<text transform=\"translate(24 %d) rotate(-90)\" text-anchor=\"middle\">error</text>\n"
            "<text x=\"%d\" y=\"24\">error of the central difference against the analytic "
            "derivative %.6g</text>\n</svg>\n",
            (LEFT + RIGHT) / 2, BELOW + 48, (ABOVE + BELOW) / 2, LEFT, c->analytic);
}

/* ---- measuring ---- */

/* The leaf that is input number `input`, if it takes a gradient and has that element. */
static tl_shadow_leaf *leaf_of_input(tl_shadow *s, int input, int64_t element)
{
    char want[32];
    snprintf(want, sizeof want, "input %d", input);
    for (int i = 0; i < s->n_leaves; i++)
        if (strcmp(s->leaf[i].name, want) == 0 && s->leaf[i].checked && element < s->leaf[i].n)
            return &s->leaf[i];
    tl_fail(&s->err, TL_EINDEX, "%s has no element %lld that takes a gradient", want,
            (long long)element);
    return NULL;
}

static tl_status measure(tl_checker *c, const tl_subject *f, int input, int64_t element, curve *k)
{
    tl_shadow *s = &c->s;
    TL_TRY(tl_check_begin(c, f));
    TL_TRY(tl_check_record(c, f));
    const tl_path path = {leaf_of_input(s, input, element), element < 0 ? -1 : element};
    if (path.leaf == NULL)
        return s->err.status;
    tl_check_aim(c, &path);
    k->analytic = tl_shadow_along(s, s->g[0]);
    tl_numeric best = tl_shadow_derivative(s, &path);
    k->value = best.value;
    k->error = best.error;
    double middle = tl_shadow_value(s), h = 1;
    for (int i = 0; i < POINTS; i++, h /= 4) {
        double plus = tl_shadow_value_at(s, h), minus = tl_shadow_value_at(s, -h);
        k->h[i] = h;
        k->central[i] = (plus - minus) / (2 * h);
        k->gap[i] = fabs(plus - 2 * middle + minus) / h;
    }
    return s->err.status;
}

tl_status tl_gradcheck_curve_at(tl_at at, tl_function *f, const tl_tensor *in, int n, void *ctx,
                                int input, int64_t element, FILE *file, tl_curve_format format)
{
    static void (*const write[])(FILE *, const curve *) = {text, csv, svg};
    const tl_subject of = {at, f, in, n, ctx};
    curve k;
    tl_checker c = {.who = "tl_gradcheck_curve"};
    tl_err *err = &c.s.err;
    tl_fpenv saved = tl_fpenv_enter();
    tl_status s = tl_error_status(at.tape);
    if (s == TL_OK && (file == NULL || format > TL_CURVE_SVG))
        s = tl_fail(err, TL_EUSAGE, file == NULL ? "the file is NULL" : "format %d is none",
                    (int)format);
    if (s == TL_OK)
        s = measure(&c, &of, input, element, &k);
    if (s == TL_OK) {
        tl_textenv plain = tl_textenv_enter();
        write[format](file, &k);
        tl_textenv_leave(plain);
        if (ferror(file))
            s = tl_fail(err, TL_EIO, "tl_gradcheck_curve: the file cannot be written");
    }
    if (s != TL_OK)
        tl_tape_fail(at, s, "tl_gradcheck_curve: %s", err->message);
    tl_shadow_free(&c.s);
    tl_fpenv_leave(saved);
    return s;
}
