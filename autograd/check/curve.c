/* curve.c: the error of a numeric derivative against the step that made it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "autograd/check/shadow.h"

static double log10_of(double x)
{
    return log10(x > 1e-300 ? x : 1e-300);
} /* a picture, not a bit */

static void text(FILE *f, const tl_curve *c)
{
    fprintf(f, "%12s %24s %12s %12s\n", "step", "central difference", "error", "one-sided gap");
    for (int i = 0; i < TL_CURVE_POINTS; i++)
        fprintf(f, "%12.3e %24.16e %12.3e %12.3e\n", c->h[i], c->central[i],
                fabs(c->central[i] - c->analytic), c->gap[i]);
    fprintf(f, "%12s %24.16e %12.3e  (estimated error %.3e)\n", "Ridders", c->value,
            fabs(c->value - c->analytic), c->error);
    fprintf(f, "%12s %24.16e\n", "analytic", c->analytic);
}

static void csv(FILE *f, const tl_curve *c)
{
    fprintf(f, "step,central,error,one_sided_gap\n");
    for (int i = 0; i < TL_CURVE_POINTS; i++)
        fprintf(f, "%.17g,%.17g,%.17g,%.17g\n", c->h[i], c->central[i],
                fabs(c->central[i] - c->analytic), c->gap[i]);
}

enum { W = 640, H = 400, PAD = 60 };

static void svg(FILE *f, const tl_curve *c)
{
    double x0 = log10_of(c->h[TL_CURVE_POINTS - 1]), x1 = log10_of(c->h[0]), y0 = -18, y1 = 2;
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "font-family=\"sans-serif\" font-size=\"12\">\n",
            W, H);
    fprintf(f, "<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n", W, H);
    for (int e = -18; e <= 2; e += 4) {
        double y = H - PAD - (e - y0) / (y1 - y0) * (H - 2 * PAD);
        fprintf(f,
                "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/><text x=\"8\" "
                "y=\"%.1f\">1e%d</text>\n",
                PAD, W - PAD, y, y, y + 4, e);
    }
    fprintf(f, "<polyline fill=\"none\" stroke=\"#0a58ca\" stroke-width=\"2\" points=\"");
    for (int i = 0; i < TL_CURVE_POINTS; i++) {
        double x = PAD + (log10_of(c->h[i]) - x0) / (x1 - x0) * (W - 2 * PAD),
               e = log10_of(fabs(c->central[i] - c->analytic));
        fprintf(f, "%.1f,%.1f ", x, H - PAD - (fmax(e, y0) - y0) / (y1 - y0) * (H - 2 * PAD));
    }
    fprintf(f, "\"/>\n<text x=\"%d\" y=\"%d\">step, %.1e to %.1e</text>\n", W / 2 - 60, H - 20,
            c->h[TL_CURVE_POINTS - 1], c->h[0]);
    fprintf(f,
            "<text x=\"%d\" y=\"24\">error of the central difference against the analytic "
            "derivative %.6g</text>\n</svg>\n",
            PAD, c->analytic);
}

tl_status tl_curve_write(FILE *f, const tl_curve *c, tl_curve_format format, tl_err *err)
{
    if (format == TL_CURVE_SVG)
        svg(f, c);
    else if (format == TL_CURVE_CSV)
        csv(f, c);
    else
        text(f, c);
    return ferror(f) ? tl_fail(err, TL_EIO, "tl_gradcheck_curve: the file cannot be written")
                     : TL_OK;
}
