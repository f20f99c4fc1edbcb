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
    TEST(a_curve_of_what_is_not_there),
};
const size_t tl_tests_curve_count = sizeof tl_tests_curve / sizeof tl_tests_curve[0];
