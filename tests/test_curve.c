/* The curve of a gradient check, error against step: text, CSV, SVG. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <tally.h>

#include "tests/support/functions.h"

extern const struct CMUnitTest tl_tests_curve[];
extern const size_t tl_tests_curve_count;

FUNCTION(f_product, tl_mul(on, in[0], tl_sin(on, in[1])))

static size_t curve_of(tl_curve_format format, int64_t element, char *buf, size_t room)
{
    tl_tensor in[] = {random_leaf(TL_F64, TL_DIMS(2, 4)), random_leaf(TL_F64, TL_DIMS(4))};
    FILE *f = tmpfile();
    assert_non_null(f);
    if (tl_gradcheck_curve(t, f_product, in, 2, NULL, 1, element, f, format) != TL_OK)
        fail_msg("%s", tl_error(t));
    rewind(f);
    size_t n = fread(buf, 1, room - 1, f);
    fclose(f);
    buf[n] = '\0';
    assert_in_range(n, 100, room - 2);
    assert_true(buf[n - 1] == '\n');
    return n;
}

static void the_curve_in_text_and_csv(void **unused)
{
    static char buf[1 << 16];
    (void)unused;
    for (int64_t element = -1; element < 4; element += 2) {
        curve_of(TL_CURVE_TEXT, element, buf, sizeof buf);
        assert_non_null(strstr(buf, "step"));
        assert_non_null(strstr(buf, "Ridders"));
        assert_non_null(strstr(buf, "analytic"));
        curve_of(TL_CURVE_CSV, element, buf, sizeof buf);
        assert_true(strncmp(buf, "step,central,error,one_sided_gap\n", 33) == 0);
        double last = HUGE_VAL, best = HUGE_VAL, first = -1;
        int rows = 0;
        for (char *line = strchr(buf, '\n') + 1; *line; line = strchr(line, '\n') + 1, rows++) {
            double h, central, error, gap;
            int used = 0;
            assert_int_equal(sscanf(line, "%lf,%lf,%lf,%lf%n", &h, &central, &error, &gap, &used),
                             4);
            assert_true(line[used] == '\n' && h > 0 && h < last && error >= 0 &&
                        isfinite(central) && isfinite(gap));
            first = first < 0 ? error : first;
            best = fmin(best, error);
            last = h;
        }
        assert_true(rows >= 10);
        assert_true(best < 1e-8 && best < first * 1e-4); /* it falls to a floor */
    }
}

/* Every tag is closed, every attribute quoted, and there is a point for every step. */
static void the_curve_in_svg(void **unused)
{
    static char buf[1 << 16];
    int depth = 0, points = 0;
    double top = 400, bottom = 0;
    (void)unused;
    curve_of(TL_CURVE_SVG, 2, buf, sizeof buf);
    assert_true(strncmp(buf, "<svg xmlns=\"http://www.w3.org/2000/svg\"", 39) == 0);
    assert_non_null(strstr(buf, "</svg>\n"));
    assert_non_null(strstr(buf, ">step</text>"));
    assert_non_null(strstr(buf, ">error</text>"));
    assert_non_null(strstr(buf, ">1e-14</text>"));              /* the smallest step */
    assert_null(strstr(buf, "1e-18"));                          /* no error is as small */
    for (char *p = buf; (p = strstr(p, "<line ")) != NULL; p++) /* not by a style alone */
        assert_true(strstr(p, "stroke=") < strchr(p, '>'));
    assert_null(strstr(buf, "nan"));
    assert_null(strstr(buf, "inf"));
    for (char *p = buf; (p = strchr(p, '<')) != NULL;) {
        char *stop = strchr(p, '>');
        int quotes = 0;
        assert_non_null(stop);
        for (char *q = p; q < stop; q++) {
            quotes += *q == '"';
            assert_true(q == p || *q != '<');
        }
        assert_int_equal(quotes % 2, 0);
        depth += p[1] == '/' ? -1 : stop[-1] == '/' ? 0 : 1;
        assert_true(depth >= 0 && (depth > 0 || stop[1] == '\n'));
        p = stop;
    }
    assert_int_equal(depth, 0);
    char *list = strstr(buf, "points=\"");
    assert_non_null(list);
    for (char *p = list + 8; *p != '"'; points++) {
        double x, y;
        int used = 0;
        assert_int_equal(sscanf(p, "%lf,%lf %n", &x, &y, &used), 2);
        assert_true(x >= 80 && x <= 610 && y >= 50 && y <= 330);
        top = fmin(top, y);
        bottom = fmax(bottom, y);
        p += used;
    }
    assert_true(points >= 10);
    assert_true(top < 110 && bottom > 270); /* the curve fills the picture */
}

/* ---- the numbers ---- */

FUNCTION(f_exp, tl_exp(on, in[0]))
FUNCTION(f_abs, tl_abs(on, in[0]))
FUNCTION(f_sqrt, tl_sqrt(on, in[0]))
FUNCTION(f_twice, tl_scale(on, in[0], 2))
FUNCTION(f_counted, tl_cross_entropy(on, in[0], in[1], TL_MEAN, .count = in[2]))

/* The curve by element of x, the only input of f. */
static void curve_by(tl_function *f, tl_tensor x, int64_t element, tl_curve_format format,
                     char *buf, size_t room)
{
    FILE *file = tmpfile();
    assert_non_null(file);
    if (tl_gradcheck_curve(t, f, &x, 1, NULL, 0, element, file, format) != TL_OK)
        fail_msg("%s", tl_error(t));
    rewind(file);
    buf[fread(buf, 1, room - 1, file)] = '\0';
    fclose(file);
}

/* What the last two lines of the text say. */
typedef struct {
    double value, off, error, analytic;
} answer;

static answer answer_of(tl_function *f, tl_tensor x, int64_t element)
{
    static char buf[1 << 14];
    answer a;
    curve_by(f, x, element, TL_CURVE_TEXT, buf, sizeof buf);
    const char *line = strstr(buf, "Ridders");
    assert_non_null(line);
    assert_int_equal(sscanf(line, "Ridders %lf %lf (estimated error %lf) analytic %lf", &a.value,
                            &a.off, &a.error, &a.analytic),
                     4);
    return a;
}

/* Of exp all of it is known: the difference by step h is sinh(h)/h of the slope, and the slopes on
 * both sides are 2(cosh(h) - 1)/h of it apart. */
static void each_number_is_what_its_column_says(void **unused)
{
    static char buf[1 << 14];
    (void)unused;
    for (int d = 0; d < 2; d++) {
        tl_tensor x = tl_data(t, ((double[]){0.7}), TL_F64, TL_DIMS(1));
        x = d ? tl_cast(t, x, TL_F32) : x;
        const answer a = answer_of(f_exp, x, 0);
        const double slope = fabs(a.analytic);
        double step = 1;
        assert_true(slope > 0.9 && fabs(a.value - a.analytic) < 1e-10 * slope);
        assert_true(fabs(a.off - fabs(a.value - a.analytic)) < 1e-15 * slope);
        assert_true(a.error > 0 && a.error < 1e-9 * slope && a.off <= a.error);
        curve_by(f_exp, x, 0, TL_CURVE_CSV, buf, sizeof buf);
        const char *line = strchr(buf, '\n') + 1;
        for (int row = 0; row < 5; row++, step /= 4, line = strchr(line, '\n') + 1) {
            double h, central, error, gap;
            assert_int_equal(sscanf(line, "%lf,%lf,%lf,%lf", &h, &central, &error, &gap), 4);
            assert_true(h == step);
            assert_true(fabs(central / a.analytic - sinh(h) / h) < 1e-9);
            assert_true(fabs(error - fabs(central - a.analytic)) < 1e-14 * slope);
            assert_true(fabs(gap / slope - 2 * (cosh(h) - 1) / h) < 1e-9);
        }
    }
}

/* At a bend the slopes on both sides stay apart, however small the step. */
static void the_gap_at_a_bend_stays(void **unused)
{
    static char buf[1 << 14];
    double slope = 0;
    (void)unused;
    curve_by(f_abs, tl_zeros(t, TL_F64, TL_DIMS(1)), 0, TL_CURVE_CSV, buf, sizeof buf);
    for (char *line = strchr(buf, '\n') + 1; *line; line = strchr(line, '\n') + 1) {
        double gap;
        assert_int_equal(sscanf(line, "%*f,%*f,%*f,%lf", &gap), 1);
        slope = slope > 0 ? slope : gap / 2;
        assert_true(slope >= 0.5 && fabs(gap - 2 * slope) < 1e-12);
    }
}

/* A gradient that is infinite elsewhere is no part of this element's. */
static void an_infinite_slope_beside_it_does_not_count(void **unused)
{
    (void)unused;
    const answer a = answer_of(f_sqrt, tl_data(t, ((double[]){0, 1}), TL_F64, TL_DIMS(2)), 1);
    assert_true(isfinite(a.analytic) && fabs(a.value - a.analytic) < 1e-9 * fabs(a.analytic));
}

/* Of a line every difference is exact: no error has a logarithm. All points stand at the bottom,
 * and there are labels, few enough to be read. */
static void a_curve_without_errors(void **unused)
{
    static char buf[1 << 16];
    int points = 0, labels = 0;
    (void)unused;
    curve_by(f_twice, tl_zeros(t, TL_F64, TL_DIMS(1)), 0, TL_CURVE_SVG, buf, sizeof buf);
    assert_null(strstr(buf, "nan"));
    assert_null(strstr(buf, "inf"));
    assert_non_null(strstr(buf, ">1e-17</text>"));
    for (char *p = buf; (p = strstr(p, ">1e")) != NULL; p++)
        labels++;
    assert_in_range(labels, 4, 18); /* of both axes */
    for (char *p = strstr(buf, "points=\"") + 8; *p != '"'; points++) {
        double x, y;
        int used = 0;
        assert_int_equal(sscanf(p, "%lf,%lf %n", &x, &y, &used), 2);
        assert_true(y == 330);
        p += used;
    }
    assert_int_equal(points, 24);
}

/* An error of 0 among others makes no room for itself. */
static void an_error_of_zero_takes_no_decades(void **unused)
{
    static char buf[1 << 16];
    int zeros = 0, others = 0;
    (void)unused;
    tl_tensor x = tl_data(t, ((double[]){1.1}), TL_F64, TL_DIMS(1));
    curve_by(f_twice, x, 0, TL_CURVE_CSV, buf, sizeof buf);
    for (char *line = strchr(buf, '\n') + 1; *line; line = strchr(line, '\n') + 1) {
        double error;
        assert_int_equal(sscanf(line, "%*f,%*f,%lf", &error), 1);
        zeros += error == 0;
        others += error > 0;
    }
    assert_true(zeros > 0 && others > 0);
    curve_by(f_twice, x, 0, TL_CURVE_SVG, buf, sizeof buf);
    assert_null(strstr(buf, ">1e-3")); /* what stands for the logarithm of 0 */
    for (char *p = strstr(buf, "points=\"") + 8; *p != '"';) {
        double at, y;
        int used = 0;
        assert_int_equal(sscanf(p, "%lf,%lf %n", &at, &y, &used), 2);
        assert_true(y >= 50 && y <= 330);
        p += used;
    }
}

static void a_curve_of_what_is_not_there(void **unused)
{
    (void)unused;
    tl_tensor in[] = {random_leaf(TL_F64, TL_DIMS(2, 4)), random_leaf(TL_F64, TL_DIMS(4))};
    static const struct {
        int input;
        int64_t element;
    } bad[] = {{2, 0}, {-1, 0}, {1, 4}, {1, INT64_MAX}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        FILE *f = tmpfile();
        assert_non_null(f);
        assert_int_not_equal(tl_gradcheck_curve(t, f_product, in, 2, NULL, bad[i].input,
                                                bad[i].element, f, TL_CURVE_TEXT),
                             TL_OK);
        assert_true(tl_failed(t));
        tl_error_clear(t);
        assert_int_equal(ftell(f), 0);
        fclose(f);
    }
    tl_tensor count[] = {random_leaf(TL_F64, TL_DIMS(2, 3)),
                         tl_data(t, ((int64_t[]){0, 2}), TL_I64, TL_DIMS(2)),
                         tl_data(t, ((double[]){2}), TL_F64, TL_SCALAR)};
    for (int input = 0; input < 3; input++) /* what is held constant has no gradient to compare */
        for (int64_t element = -1; element < 1; element++) {
            FILE *f = tmpfile();
            assert_non_null(f);
            assert_int_equal(tl_gradcheck_curve(t, f_counted, count, 3, NULL, input, element, f,
                                                TL_CURVE_CSV),
                             input == 0 ? TL_OK : TL_EINDEX);
            tl_error_clear(t);
            fclose(f);
        }
    FILE *full = fopen("/dev/full", "w");
    if (full == NULL)
        return;
    setvbuf(full, NULL, _IONBF, 0);
    assert_int_equal(tl_gradcheck_curve(t, f_product, in, 2, NULL, 0, -1, full, TL_CURVE_CSV),
                     TL_EIO);
    fclose(full);
}

const struct CMUnitTest tl_tests_curve[] = {
    TEST(the_curve_in_text_and_csv),
    TEST(the_curve_in_svg),
    TEST(each_number_is_what_its_column_says),
    TEST(the_gap_at_a_bend_stays),
    TEST(an_infinite_slope_beside_it_does_not_count),
    TEST(a_curve_without_errors),
    TEST(an_error_of_zero_takes_no_decades),
    TEST(a_curve_of_what_is_not_there),
};
const size_t tl_tests_curve_count = sizeof tl_tests_curve / sizeof tl_tests_curve[0];
