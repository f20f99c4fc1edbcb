/* tally-diff: where two runs part.
 *
 * Reads two logs that tl_log_open wrote (train_text --log FILE), names the first op whose
 * results differ, says whether its inputs still agreed, and shows what led there. With the
 * values of that step beside both logs (--log-keep STEP) it shows the elements, too.
 *
 * In order: describing results, the verdict, values, main.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tally.h>

#include "autograd/log_read.h"
#include "autograd/log_values.h"
#include "tensor/kernels/half.h"
#include "tensor/safetensors.h"

enum { EQUAL = 0, DIFFERENT = 1, TROUBLE = 2, PATH_SHOWN = 8 };

static struct {
    const char *path[2];
    tl_log_file *file[2];
} logs;

/* ---- describing results ---- */

static bool is_leaf(const tl_log_def *d) { return strcmp(d->op, "param") == 0 || strcmp(d->op, "buffer") == 0 || strcmp(d->op, "data") == 0; }

/* "[12, 64, 128]", and in how many parts it came. */
static const char *shape_text(const tl_log_def *d, bool parts, char buf[256])
{
    if (d->rows < 0)
        return snprintf(buf, 256, "%s", strcmp(d->tail, "scalar") == 0 ? "scalar" : d->shape), buf;
    int n = snprintf(buf, 256, "[%" PRId64, d->rows);
    for (const char *c = d->tail; *c != '\0' && n < 200; c++)
        n += snprintf(buf + n, 256 - (size_t)n, *c == ',' ? ", " : "%c", *c);
    snprintf(buf + n, 256 - (size_t)n, parts && d->parts > 1 ? "] in %d parts" : "]", d->parts);
    return buf;
}

/* What a result is, in words: "matmul in the backward of rms_norm (f5)". */
static const char *words(const tl_logged_step *s, const tl_log_def *d, char buf[512])
{
    tl_log_key k = tl_log_key_unpack(d->key);
    char key[TL_KEY_TEXT];
    int n;
    if (strcmp(d->op, "param") == 0)
        n = snprintf(buf, 512, "parameter %.200s", d->name);
    else if (is_leaf(d) || strcmp(d->op, "state") == 0)
        n = snprintf(buf, 512, "%s%s%.200s", d->op, *d->name ? " " : "", d->name);
    else
        n = snprintf(buf, 512, "%.100s", d->op);
    if (k.out > 0)
        n += snprintf(buf + n, 512 - (size_t)n, ", output %d", k.out);
    if (k.backward) {
        uint64_t forward = tl_log_key_pack((tl_log_key){.pass = k.pass, .at = k.at});
        const tl_log_result *f = tl_log_find(s, forward);
        n += snprintf(buf + n, 512 - (size_t)n, " in the backward of %.100s%s%s%s", f != NULL ? f->def->op : "",
                      f != NULL ? " (" : "", tl_log_key_text(key, forward), f != NULL ? ")" : "");
    }
    if (d->gradient && *d->name)
        snprintf(buf + n, 512 - (size_t)n, ": the gradient of %.150s", d->name);
    else if (k.pass == TL_KEY_UPDATE && !is_leaf(d) && strcmp(d->op, "state") != 0 && *d->name)
        snprintf(buf + n, 512 - (size_t)n, ": the update of %.150s", d->name);
    return buf;
}

static void line(const tl_logged_step *s, const tl_log_def *d, const char *remark)
{
    char key[TL_KEY_TEXT], shape[256], text[512];
    printf("    %-12s %-8s %-18s %s\n", remark, tl_log_key_text(key, d->key), shape_text(d, false, shape), words(s, d, text));
}

/* ---- the verdict ---- */

static const char *const verdict_words[] = {"same", "DIFFERS", "not known", "only in A", "another op"};

static tl_log_verdict verdict_of(const tl_log_comparison *c, uint64_t key)
{
    const tl_log_result *r = tl_log_find(c->a, key);
    return r == NULL ? TL_LOG_UNKNOWN : c->of_a[r - c->a->result];
}

/* Whether what r was computed from is the same in both; prints each input. */
static bool inputs_agree(const tl_log_comparison *c, const tl_log_result *r, bool *all_known)
{
    bool agree = true;
    *all_known = true;
    for (int k = 0; k < r->def->n_in; k++) {
        const tl_log_result *in = tl_log_find(c->a, r->def->in[k]);
        if (in == NULL) {
            *all_known &= r->def->in[k] == 0; /* 0: absent, or the result's own memory */
            continue;
        }
        tl_log_verdict v = verdict_of(c, in->key);
        agree &= v != TL_LOG_DIFFERS && v != TL_LOG_OTHER;
        *all_known &= v == TL_LOG_SAME;
        line(c->a, in->def, verdict_words[v]);
    }
    return agree;
}

/* The input computed last, or the first if nothing went into any: the trunk of what was computed. */
static const tl_log_result *before(const tl_logged_step *s, const tl_log_result *r)
{
    const tl_log_result *leaf = NULL, *made = NULL;
    for (int k = 0; k < r->def->n_in; k++) {
        const tl_log_result *in = tl_log_find(s, r->def->in[k]);
        if (in != NULL && in->key < r->key && in->def->n_in > 0 && (made == NULL || in->key > made->key))
            made = in;
        leaf = leaf == NULL && in != NULL && in->key < r->key ? in : leaf;
    }
    return made != NULL ? made : leaf;
}

static void print_path(const tl_log_comparison *c, const tl_log_result *r)
{
    const tl_log_result *path[PATH_SHOWN], *first = r;
    int n = 0, more = 0;
    for (const tl_log_result *x = before(c->a, r); x != NULL; x = before(c->a, x)) {
        if (n < PATH_SHOWN)
            path[n++] = x;
        else
            more++;
        first = x;
    }
    if (n == 0)
        return;
    puts("\nThe path that led there:");
    if (more > 0) {
        line(c->a, first->def, verdict_words[verdict_of(c, first->key)]);
        if (more > 1)
            printf("    %-12s ... %d more\n", "", more - 1);
    }
    while (n-- > 0)
        line(c->a, path[n]->def, verdict_words[verdict_of(c, path[n]->key)]);
    line(c->a, r->def, "here ->");
}

static void print_consequences(const tl_log_comparison *c)
{
    int differ = 0, after = c->a->n - c->first - 1, updates = 0, spoiled = 0;
    for (int i = c->first + 1; i < c->a->n; i++)
        differ += c->of_a[i] == TL_LOG_DIFFERS;
    for (int i = 0; i < c->a->n; i++) {
        const tl_log_def *d = c->a->result[i].def;
        bool update = tl_log_key_unpack(d->key).pass == TL_KEY_UPDATE && !is_leaf(d) && strcmp(d->op, "state") != 0 && *d->name != '\0';
        updates += update;
        spoiled += update && c->of_a[i] == TL_LOG_DIFFERS;
    }
    printf("\nOf the %d results after it in this step %d differ, too", after, differ);
    if (updates > 0)
        printf("; so do %d of %d updated parameters", spoiled, updates);
    puts(".");
}

static void print_blame(const tl_log_comparison *c, const tl_log_result *r, int64_t agreed)
{
    const tl_log_result *other = tl_log_find(c->b, r->key);
    const tl_log_def *a = r->def, *b = other != NULL ? other->def : NULL;
    bool known, agree = true;
    if (b == NULL || c->of_a[c->first] == TL_LOG_OTHER) {
        char key[TL_KEY_TEXT], text[512];
        printf("\nThe programs are not the same: at %s A has %s (%s)", tl_log_key_text(key, r->key), words(c->a, a, text), a->dtype);
        if (b != NULL)
            printf(", B has %s (%s).\n", words(c->b, b, text), b->dtype);
        else
            puts(", B has nothing.");
        return;
    }
    if (is_leaf(a)) {
        printf("\nThis is an input of the step, so no op of it is to blame: ");
        if (strcmp(a->op, "data") == 0)
            puts(c->a->result[c->first].def->parts != b->parts ? "the runs read other data, or data whose batch is not their first axis."
                                                               : "the runs read other data.");
        else if (agreed > 0)
            printf("it changed after step %" PRId64 ", the last that was logged in both.\n", agreed);
        else
            puts("the runs began with other values.");
        return;
    }
    puts("\nIts inputs:");
    agree = inputs_agree(c, r, &known);
    if (!agree)
        puts("They did not agree any more: what made them is not in the log.");
    else if (known)
        puts("They still agreed, so this op is to blame.");
    else
        puts("Those that could be compared still agreed; the fault is in this op or in what made the others.");
    if (a->fast != b->fast)
        printf("%s recorded it under TL_FAST, where nothing is promised.\n", a->fast ? "A" : "B");
    else if (a->fast)
        puts("Both recorded it under TL_FAST, where nothing is promised.");
    if (strcmp(a->attrs, b->attrs) != 0 && a->parts == b->parts)
        printf("Its attributes differ: A %s, B %s.\n", a->attrs, b->attrs);
}

/* ---- values ---- */

static void element_text(const tl_array *a, int64_t i, char buf[96])
{
    const void *p = tl_array_at(a, i);
    uint64_t bits = 0;
    double x = 0;
    switch (a->dtype) {
    case TL_F64: memcpy(&bits, p, 8), x = *(const double *)p; break;
    case TL_F32: bits = *(const uint32_t *)p, x = (double)*(const float *)p; break;
    case TL_F16: bits = *(const uint16_t *)p, x = (double)tl_f16_to_f32(*(const uint16_t *)p); break;
    case TL_BF16: bits = *(const uint16_t *)p, x = (double)tl_bf16_to_f32(*(const uint16_t *)p); break;
    case TL_I64: snprintf(buf, 96, "%" PRId64, *(const int64_t *)p); return;
    default: snprintf(buf, 96, "%d", *(const unsigned char *)p); return;
    }
    snprintf(buf, 96, "%-24.17g 0x%0*" PRIx64, x, 2 * (int)tl_dtype_size(a->dtype), bits);
}

static void print_first(const tl_value_difference *d, const tl_array *a, const tl_array *b)
{
    char x[96], y[96];
    int64_t left = d->first, at[TL_MAX_DIMS] = {0};
    for (int i = a->ndim; i-- > 0; left /= a->dim[i])
        at[i] = left % a->dim[i];
    element_text(a, d->first, x);
    element_text(b, d->first, y);
    printf("  %" PRId64 " of %" PRId64 " elements differ, the first at [", d->differ, d->count);
    for (int i = 0; i < a->ndim; i++)
        printf(i > 0 ? ", %" PRId64 : "%" PRId64, at[i]);
    printf("]\n    A  %s\n    B  %s\n", x, y);
}

static void print_histogram(const tl_value_difference *d)
{
    int low = TL_ULP_BUCKETS, high = 0;
    int64_t most = 1;
    for (int k = 0; k < TL_ULP_BUCKETS; k++) {
        if (d->ulps[k] == 0)
            continue;
        most = d->ulps[k] > most ? d->ulps[k] : most;
        if (k > 0) {
            low = k < low ? k : low;
            high = k;
        }
    }
    puts("\n  units in the last place    elements");
    for (int k = low; k <= high; k++) {
        uint64_t to = (uint64_t)1 << (k - 1), from = k < 3 ? to : to / 2 + 1;
        char range[64];
        snprintf(range, sizeof range, from == to ? "%" PRIu64 : "%" PRIu64 " to %" PRIu64, from, to);
        printf("  %24s %9" PRId64 "  %.*s\n", range, d->ulps[k], (int)((d->ulps[k] * 40 + most - 1) / most),
               "########################################");
    }
    if (d->ulps[0] > 0)
        printf("  %24s %9" PRId64 "\n", "NaN, or no floats", d->ulps[0]);
}

static void print_picture(const tl_value_difference *d)
{
    printf("\n  where: the last axis across, the others down; a character stands for %" PRId64 " x %" PRId64 " elements\n", d->cell_height, d->cell_width);
    printf("  (' ' none differs, '.' up to a tenth, ':' up to half, '+' more, '#' all)\n  +%.*s+\n", d->columns,
           "----------------------------------------------------------------");
    for (int i = 0; i < d->rows; i++) {
        printf("  |");
        for (int k = 0; k < d->columns; k++) {
            int64_t n = d->cell[i][k], of = d->of[i][k];
            putchar(n == 0 ? ' ' : n == of ? '#' : 10 * n <= of ? '.' : 2 * n <= of ? ':' : '+');
        }
        puts("|");
    }
    printf("  +%.*s+\n", d->columns, "----------------------------------------------------------------");
}

/* The last part alone, of a value that does not grow with the batch. */
static tl_array last_part(tl_array a, const tl_log_def *d, bool whole)
{
    if (whole || a.ndim == 0 || d->last < 0 || d->last > a.dim[0])
        return a;
    a.data = (char *)a.data + (size_t)((a.dim[0] - d->last) * a.stride[0]) * tl_dtype_size(a.dtype);
    a.dim[0] = d->last;
    return a;
}

static void print_values(int64_t step, const tl_log_result *r, const tl_log_result *other)
{
    char path[2][4096], key[TL_KEY_TEXT];
    tl_st_file *f[2] = {NULL, NULL};
    tl_err err = {.status = TL_OK};
    tl_value_difference d;
    int at[2] = {-1, -1};
    for (int i = 0; i < 2; i++) {
        tl_log_values_path(path[i], sizeof path[i], logs.path[i], step);
        if (tl_st_open(&f[i], path[i], &err) == TL_OK)
            at[i] = tl_st_find(f[i], tl_log_key_text(key, r->key));
    }
    if (f[0] == NULL || f[1] == NULL) {
        printf("\nTo see the values, run both again with the values of step %" PRId64 " kept (--log-keep %" PRId64 "; tl_log_open's .keep).\n", step, step);
    } else if (at[0] < 0 || at[1] < 0) {
        printf("\nThe value is not among those that were kept.\n");
    } else {
        bool whole = r->def->rows == other->def->rows;
        tl_array a = last_part(tl_st_at(f[0], at[0]).array, r->def, whole), b = last_part(tl_st_at(f[1], at[1]).array, other->def, whole);
        printf("\nIts values in step %" PRId64 " (%s, %s):\n", step, path[0], path[1]);
        if (tl_value_compare(&d, &a, &b, &err) != TL_OK) {
            printf("  cannot be compared: %s\n", err.message);
        } else if (d.differ == 0) {
            puts("  are the same: they were kept by other runs than those logged here.");
        } else {
            print_first(&d, &a, &b);
            print_histogram(&d);
            if (d.count > 1)
                print_picture(&d);
        }
    }
    tl_st_close(f[0]);
    tl_st_close(f[1]);
}

/* ---- main ---- */

static void print_difference(const tl_log_comparison *c, int64_t agreed)
{
    const tl_log_result *r = c->first >= 0 ? &c->a->result[c->first] : &c->b->result[c->first_missing_in_a];
    const tl_logged_step *in = c->first >= 0 ? c->a : c->b;
    char text[512], shape[256], key[TL_KEY_TEXT];
    if (agreed > 0)
        printf("\nThey agree up to step %" PRId64 " and part in ", agreed);
    else
        printf("\nThey part in ");
    printf("step %" PRId64 ", at %s:\n\n", c->a->number, tl_log_key_text(key, r->key));
    printf("    %s\n    %s %s%s%s%s%s\n", words(in, r->def, text), r->def->dtype, shape_text(r->def, true, shape), *r->def->attrs ? "  " : "",
           r->def->attrs, *r->def->place ? "  called at " : "", r->def->place);
    if (c->first < 0) {
        puts("\nThe programs are not the same: A has no such result.");
        return;
    }
    print_blame(c, r, agreed);
    if (!c->a->full || !c->b->full)
        printf("Only scalars of this step were logged%s: the cause may lie before, after step %" PRId64 ". Log every step there to find it.\n",
               c->a->full ? " in B" : c->b->full ? " in A" : "", agreed);
    if (c->of_a[c->first] != TL_LOG_DIFFERS)
        return;
    if (c->a->full && c->b->full)
        print_path(c, r);
    print_consequences(c);
    print_values(c->a->number, r, tl_log_find(c->b, r->key));
}

static void introduce(int i)
{
    const tl_log_file *f = logs.file[i];
    const tl_logged_step *first = tl_log_step_at(f, 0), *last = tl_log_step_at(f, tl_log_steps(f) - 1);
    int64_t line_number, damaged = tl_log_damaged(f, &line_number);
    printf("%c  %s: ", 'A' + i, logs.path[i]);
    if (last == NULL)
        puts("no step");
    else
        printf("steps %" PRId64 " to %" PRId64 "%s\n", first->number, last->number, last->complete ? "" : ", the last one cut off");
    if (damaged > 0)
        printf("   %" PRId64 " damaged line%s passed over, the first in line %" PRId64 "\n", damaged, damaged > 1 ? "s" : "", line_number);
}

/* How far the logs go beyond what they share. */
static void print_rest(int64_t last)
{
    for (int i = 0; i < 2; i++) {
        const tl_logged_step *s = tl_log_step_at(logs.file[i], tl_log_steps(logs.file[i]) - 1);
        if (s->number > last)
            printf("%c goes on to step %" PRId64 ", which %c does not have.\n", 'A' + i, s->number, 'B' - i);
    }
}

static int compare(void)
{
    int64_t compared = 0, agreed = 0, results = 0, unknown = 0;
    for (int i = 0, k = 0; i < tl_log_steps(logs.file[0]) && k < tl_log_steps(logs.file[1]);) {
        const tl_logged_step *a = tl_log_step_at(logs.file[0], i), *b = tl_log_step_at(logs.file[1], k);
        i += a->number <= b->number;
        k += b->number <= a->number;
        if (a->number != b->number)
            continue;
        tl_log_comparison c;
        if (tl_log_compare(&c, a, b) != TL_OK) {
            fputs("tally-diff: out of memory\n", stderr);
            return TROUBLE;
        }
        if (c.first >= 0 || c.first_missing_in_a >= 0) {
            print_difference(&c, agreed);
            tl_log_comparison_free(&c);
            return DIFFERENT;
        }
        results += c.same;
        unknown += c.unknown;
        compared += c.same > 0;
        agreed = c.same > 0 ? a->number : agreed;
        tl_log_comparison_free(&c);
    }
    if (compared == 0) {
        puts("\nThere is nothing to compare: no step is in both logs.");
        return TROUBLE;
    }
    printf("\nNo difference: %" PRId64 " results of %" PRId64 " step%s are the same.\n", results, compared, compared > 1 ? "s" : "");
    if (unknown > 0)
        printf("%" PRId64 " more could not be compared: sums that each micro-batch begins anew, or a batch along another axis than the first.\n", unknown);
    print_rest(agreed);
    return EQUAL;
}

int main(int argc, char **argv)
{
    tl_err err = {.status = TL_OK};
    bool help = argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);
    if (argc != 3) {
        fputs("usage: tally-diff LOG_A LOG_B\n\nNames the first op in which two logged runs differ. Logs are written by tl_log_open,\n"
              "train_text --log FILE and train_addition --log FILE.\n\nexit status: 0 no difference, 1 the runs differ, 2 trouble\n",
              help ? stdout : stderr);
        return help ? EQUAL : TROUBLE;
    }
    for (int i = 0; i < 2; i++) {
        logs.path[i] = argv[1 + i];
        if (tl_log_read(&logs.file[i], logs.path[i], &err) != TL_OK) {
            fprintf(stderr, "tally-diff: %s\n", err.message);
            tl_log_file_close(logs.file[0]);
            return TROUBLE;
        }
    }
    introduce(0);
    introduce(1);
    int status = compare();
    tl_log_file_close(logs.file[0]);
    tl_log_file_close(logs.file[1]);
    return fflush(stdout) != 0 || ferror(stdout) ? TROUBLE : status;
}
