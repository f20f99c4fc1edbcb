/* example_files.c: what a run writes beside its checkpoint: rows of numbers, and a curve. A file
 * that cannot be written stops neither the run nor its checkpoint; the run has failed at its end.
 */
#include "examples/example.h"

#include <errno.h>
#include <libgen.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

static const ex_program *program;
static int64_t first_step;
static double *curve;            /* --svg: the loss of each step */
static int csv_error, svg_error; /* why it could not be written; 0: it could */

/* Better to hear before training than after it that nothing can be written there. */
static void check_folder(const char *path)
{
    char *copy = ex_need(strdup(path != NULL ? path : "."));
    if (path != NULL && access(dirname(copy), W_OK) != 0)
        ex_die(EX_FAILED, "cannot write %s: %s", path, strerror(errno));
    free(copy);
}

void ex_files_check(void)
{
    check_folder(ex.csv);
    check_folder(ex.svg);
    check_folder(ex.log);
}

/* 0, or why f could not be written. */
static int close_file(FILE *f)
{
    const bool bad = ferror(f);
    errno = EIO; /* if a write has failed before this one, which may say more */
    return fclose(f) != 0 || bad ? errno : 0;
}

/* ---- rows ---- */

/* A run that was killed has rows beyond its checkpoint, which come again, and may have part of one.
 * Returns whether any are left, or the line above them. */
static bool cut_csv(const char *head)
{
    char row[1024];
    struct stat s;
    long end = 0;
    if (stat(ex.csv, &s) != 0 || !S_ISREG(s.st_mode))
        return false;
    FILE *f = fopen(ex.csv, "r+");
    if (f == NULL)
        ex_die(EX_FAILED, "cannot write %s: %s", ex.csv, strerror(errno));
    while (fgets(row, sizeof row, f) != NULL) {
        const size_t n = strcspn(row, "\n");
        if (end == 0 && (strncmp(row, head, n) != 0 || (row[n] != '\0' && head[n] != '\0')))
            ex_die(EX_WRONG_USE, "%s has other columns: nothing is added to it", ex.csv);
        if (row[n] == '\0' || strtoll(row, NULL, 10) > ex.step)
            break;
        end = ftell(f);
    }
    if (ferror(f) || ftruncate(fileno(f), end) != 0)
        ex_die(EX_FAILED, "cannot write %s: %s", ex.csv, strerror(errno));
    fclose(f);
    return end > 0;
}

static void open_csv(void)
{
    const char *head = program->columns != NULL ? program->columns : "step,loss";
    const bool more = ex.resume != NULL && cut_csv(head); /* a resumed run adds its rows */
    ex.csv_file = fopen(ex.csv, more ? "a" : "w");
    if (ex.csv_file == NULL)
        ex_die(EX_FAILED, "cannot write %s: %s", ex.csv, strerror(errno));
    if (!more)
        fprintf(ex.csv_file, "%s\n", head);
}

void ex_files_flush(void)
{
    if (ex.csv_file == NULL || fflush(ex.csv_file) == 0)
        return;
    csv_error = errno;
    fclose(ex.csv_file);
    ex.csv_file = NULL; /* no more rows: one would be missing between them */
}

/* ---- the curve ---- */

/* The losses of the steps of this run, highest above; by their logarithms, if they fall far.
 * Returns what close_file does. */
static int draw_curve(void)
{
    enum { WIDTH = 640, HEIGHT = 320 };
    double least = HUGE_VAL, most = -HUGE_VAL;
    int64_t steps = ex.step - first_step;
    for (int64_t i = 1; i <= steps; i++)
        if (isfinite(curve[first_step + i])) {
            least = fmin(least, curve[first_step + i]);
            most = fmax(most, curve[first_step + i]);
        }
    if (least > most) {
        printf("%s: there is no loss to draw\n", ex.svg);
        return 0;
    }
    FILE *f = fopen(ex.svg, "w");
    if (f == NULL)
        return errno;
    bool far = least > 0 && most > 100 * least;
    fprintf(
        f,
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='-70 -30 %d %d' "
        "font-family='sans-serif' font-size='12'>\n<style>svg { background: #fff } @media "
        "(prefers-color-scheme: dark) { svg { background: #16181c } text { fill: #ddd } }"
        "</style>\n<path d='M0 0V%dH%d' fill='none' "
        "stroke='gray'/>\n<text x='-8' y='5' text-anchor='end'>%.4g</text>\n<text x='-8' "
        "y='%d' text-anchor='end'>%.4g</text>\n<text y='%d'>%" PRId64 "</text>\n<text x='%d' "
        "y='%d' text-anchor='middle'>step</text>\n<text x='%d' y='%d' text-anchor='end'>%" PRId64
        "</text>\n<text transform='translate(-12 %d) rotate(-90)' text-anchor='middle'>loss%s"
        "</text>\n<text x='%d' y='-12' text-anchor='middle'>%s: loss of each step</text>\n"
        "<polyline fill='none' stroke='steelblue' points='",
        WIDTH + 90, HEIGHT + 60, HEIGHT, WIDTH, most, HEIGHT, least, HEIGHT + 20, first_step + 1,
        WIDTH / 2, HEIGHT + 20, WIDTH, HEIGHT + 20, ex.step, HEIGHT / 2, far ? ", logarithmic" : "",
        WIDTH / 2, program->name);
    for (int64_t i = 1; i <= steps; i++) {
        double x = curve[first_step + i], span = far ? log(most / least) : most - least;
        if (isfinite(x) && span > 0)
            fprintf(f, "%.1f,%.1f ", (double)(i - 1) / (double)(steps - 1) * WIDTH,
                    HEIGHT * (far ? log(most / x) : most - x) / span);
    }
    fprintf(f, "'/>\n</svg>\n");
    return close_file(f);
}

/* ---- both ---- */

void ex_files_begin(const ex_program *p)
{
    program = p;
    first_step = ex.step;
    if (ex.csv != NULL && (ex.resume == NULL || ex.step < ex.last))
        open_csv();
    curve = ex.svg != NULL ? ex_need(calloc((size_t)ex.last + 1, sizeof *curve)) : NULL;
}

void ex_files_step(void)
{
    if (curve != NULL)
        curve[ex.step] = ex.loss;
    if (ex.csv_file != NULL && program->columns == NULL)
        fprintf(ex.csv_file, "%" PRId64 ",%.6f\n", ex.step, ex.loss);
}

void ex_files_end(void)
{
    if (ex.csv_file != NULL)
        csv_error = close_file(ex.csv_file);
    ex.csv_file = NULL;
    if (curve != NULL)
        svg_error = draw_curve();
    free(curve);
    curve = NULL;
}

bool ex_files_whole(void)
{
    if (csv_error != 0)
        ex_warn("cannot write %s: %s", ex.csv, strerror(csv_error));
    if (svg_error != 0)
        ex_warn("cannot write %s: %s", ex.svg, strerror(svg_error));
    return csv_error == 0 && svg_error == 0;
}
