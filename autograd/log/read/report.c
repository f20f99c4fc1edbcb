/* report.c: tells people about the first step in which two logs differ: which result, what it was
 * computed from, how far the difference spread, and its values. */
#include "autograd/log/read/internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/memory.h"
#include "tensor/files/safetensors.h"
#include "tensor/files/bytes.h"

/* ---- results in words ---- */

enum { WORDS = 512, SHAPE = 256 };

static bool is(const tl_log_def *d, const char *op) { return strcmp(d->op, op) == 0; }

/* Computed by no op. */
static bool is_leaf(const tl_log_def *d)
{
    return is(d, "param") || is(d, "buffer") || is(d, "data");
}

/* "[12, 64, 128]", or "scalar"; parts: also in how many it came. Returns buf. */
static const char *shape_text(char buf[SHAPE], const tl_log_def *d, bool parts)
{
    if (d->rows < 0)
        return snprintf(buf, SHAPE, "%s", strcmp(d->tail, "scalar") == 0 ? "scalar" : d->shape),
               buf;
    int n = snprintf(buf, SHAPE, "[%" PRId64, d->rows);
    for (const char *c = d->tail; *c != '\0' && n < 200; c++)
        n += snprintf(buf + n, SHAPE - (size_t)n, *c == ',' ? ", " : "%c", *c);
    snprintf(buf + n, SHAPE - (size_t)n, parts && d->parts > 1 ? "] in %d parts" : "]", d->parts);
    return buf;
}

static int leaf_words(char *buf, const tl_log_def *d)
{
    if (is(d, "data"))
        return *d->name ? snprintf(buf, WORDS, "the %.200s", d->name)
                        : snprintf(buf, WORDS, "data");
    if (is(d, "state"))
        return snprintf(buf, WORDS, "%s%.200s after the update", *d->name ? "" : "state", d->name);
    return snprintf(buf, WORDS, "%s%s%.200s", is(d, "param") ? "parameter" : d->op,
                    *d->name ? " " : "", d->name);
}

/* "matmul in the backward of rms_norm (f5): the gradient of w"; s: the step that d is of. Returns
 * buf. */
static const char *words(char buf[WORDS], const tl_logged_step *s, const tl_log_def *d)
{
    tl_log_key k = tl_log_key_unpack(d->key);
    bool leaf = is_leaf(d) || is(d, "state");
    char key[TL_KEY_TEXT];
    int n = leaf ? leaf_words(buf, d) : snprintf(buf, WORDS, "%.100s", d->op);
    if (k.out > 0)
        n += snprintf(buf + n, WORDS - (size_t)n, ", output %d", k.out);
    if (k.backward && !leaf) {
        uint64_t forward = tl_log_key_pack((tl_log_key){.pass = k.pass, .at = k.at});
        const tl_log_result *f = tl_log_find(s, forward);
        n += snprintf(buf + n, WORDS - (size_t)n, "%s %.100s%s%s%s",
                      k.adding ? " of what came to" : " in the backward of",
                      f != NULL ? f->def->op : "", f != NULL ? " (" : "",
                      tl_log_key_text(key, forward), f != NULL ? ")" : "");
    }
    if (!leaf && *d->name)
        snprintf(buf + n, WORDS - (size_t)n, ": the %s%.150s",
                 d->gradient ? "gradient of "
                 : d->update ? "update of "
                             : "",
                 d->name);
    return buf;
}

/* ---- the inputs of a result, and how the two logs compare along the way ---- */

enum { PATH_SHOWN = 8 };

static tl_log_verdict verdict_of(const tl_log_comparison *c, const tl_log_result *r)
{
    return c->of_a[r - c->a->result];
}

/* Prints a result of a in a line. remark: NULL for how it compares with the other log. */
static void show_result(FILE *f, const tl_log_comparison *c, const tl_log_result *r,
                        const char *remark)
{
    static const char *const verdicts[] = {"same", "DIFFERS", "not known", "only in A",
                                           "another op"};
    char key[TL_KEY_TEXT], shape[SHAPE], text[WORDS];
    fprintf(f, "    %-12s %-8s %-18s %s\n", remark != NULL ? remark : verdicts[verdict_of(c, r)],
            tl_log_key_text(key, r->key), shape_text(shape, r->def, false),
            words(text, c->a, r->def));
}

/* r is the update of a parameter that has a state: what it reads of that is not logged. */
static bool reads_state(const tl_logged_step *s, const tl_log_result *r)
{
    const size_t n = strlen(r->def->name);
    for (int i = 0; r->def->update && i < s->n; i++) {
        const tl_log_def *d = s->result[i].def;
        const size_t all = strlen(d->name);
        if (is(d, "state") && all > n && strcmp(d->name + all - n, r->def->name) == 0)
            return true;
    }
    return false;
}

/* Shows the inputs of r. Returns whether none of them differs; *all_known: each could be compared.
 */
static bool show_inputs(FILE *f, const tl_log_comparison *c, const tl_log_result *r,
                        bool *all_known)
{
    bool agree = true;
    *all_known = !reads_state(c->a, r);
    for (int k = 0; k < r->def->n_in; k++) {
        const tl_log_result *in = tl_log_find(c->a, r->def->in[k]);
        if (in == NULL) {
            *all_known &= r->def->in[k] == 0; /* 0: absent, or the result's own memory */
            continue;
        }
        tl_log_verdict v = verdict_of(c, in);
        agree &= v != TL_LOG_DIFFERS && v != TL_LOG_OTHER;
        *all_known &= v == TL_LOG_SAME;
        show_result(f, c, in, NULL);
    }
    return agree;
}

/* The input that was computed last or, if all are leaves, the first: going back from one to the
 * next follows the trunk of the computation. */
static const tl_log_result *before(const tl_logged_step *s, const tl_log_result *r)
{
    const tl_log_result *leaf = NULL, *made = NULL;
    for (int k = 0; k < r->def->n_in; k++) {
        const tl_log_result *in = tl_log_find(s, r->def->in[k]);
        if (in != NULL && in->key < r->key && in->def->n_in > 0 &&
            (made == NULL || in->key > made->key))
            made = in;
        leaf = leaf == NULL && in != NULL && in->key < r->key ? in : leaf;
    }
    return made != NULL ? made : leaf;
}

/* Shows the results that led to r, each computed from the one before. */
static void show_path(FILE *f, const tl_log_comparison *c, const tl_log_result *r)
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
    fputs("\nThe path that led there:\n", f);
    if (more > 0) {
        show_result(f, c, first, NULL);
        if (more > 1)
            fprintf(f, "    %-12s ... %d more\n", "", more - 1);
    }
    while (n-- > 0)
        show_result(f, c, path[n], NULL);
    show_result(f, c, r, "here ->");
}

static void show_side(FILE *f, char which, const tl_logged_step *s, uint64_t key)
{
    char text[WORDS], shape[SHAPE];
    const tl_log_result *r = tl_log_find(s, key);
    if (r == NULL)
        fprintf(f, "    %c  nothing\n", which);
    else
        fprintf(f, "    %c  %s, %s %s%s%s\n", which, words(text, s, r->def), r->def->dtype,
                shape_text(shape, r->def, true), *r->def->place ? ", called at " : "",
                r->def->place);
}

static void show_parameters(FILE *f, const tl_log_comparison *c)
{
    char a[SHAPE], b[SHAPE];
    tl_log_names p;
    if (tl_log_match_names(&p, c->a, c->b, false) != TL_OK)
        fputs("\nNo memory to match the parameters.\n", f);
    if (p.reshaped + p.only[0] + p.only[1] == 0)
        return;
    fprintf(f, "\nNot the same model. Parameters of the same name, shape and dtype: %d\n", p.same);
    if (p.reshaped > 0)
        fprintf(f, "    of another shape or dtype: %d (%s: %s %s in A, %s %s in B%s)\n", p.reshaped,
                p.reshaped_def[0]->name, p.reshaped_def[0]->dtype,
                shape_text(a, p.reshaped_def[0], false), p.reshaped_def[1]->dtype,
                shape_text(b, p.reshaped_def[1], false), p.reshaped > 1 ? ", ..." : "");
    for (int k = 0; k < 2; k++)
        if (p.only[k] > 0)
            fprintf(f, "    only in %c: %d (%s%s)\n", 'A' + k, p.only[k], p.only_def[k]->name,
                    p.only[k] > 1 ? ", ..." : "");
}

static void show_other_program(FILE *f, const tl_log_pair *p, const tl_log_comparison *c)
{
    char text[WORDS], key[TL_KEY_TEXT];
    fprintf(f, "\nNot the same program: the first difference is in step %" PRId64 ", at %s:\n\n",
            c->a->number, tl_log_key_text(key, c->other));
    show_side(f, 'A', c->a, c->other);
    show_side(f, 'B', c->b, c->other);
    if (c->first >= 0 && c->a->result[c->first].key < c->other) {
        const tl_log_def *d = c->a->result[c->first].def;
        fprintf(f, "\nBefore that they do the same, but the bytes part at %s: %s.\n",
                tl_log_key_text(key, d->key), words(text, c->a, d));
    }
    if (p->agreed == 0)
        show_parameters(f, c);
    else
        fprintf(f, "\nUp to step %" PRId64 " they were the same program and agreed.\n", p->agreed);
}

static void show_consequences(FILE *f, const tl_log_comparison *c)
{
    int after = c->a->n - c->first - 1;
    tl_log_names m;
    if (after == 0)
        return;
    if (tl_log_match_names(&m, c->a, c->b, true) != TL_OK)
        fputs("\nNo memory to match the updates.\n", f);
    const int updates = m.same + m.reshaped;
    fprintf(f, "\nOf the %d results after it in this step %d differ, too", after, c->differ - 1);
    if (updates > 0 && m.differ == 0)
        fprintf(f, "; none of the %d updated parameters does", updates);
    else if (updates > 0)
        fprintf(f, "; so do %d of %d updated parameters", m.differ, updates);
    fputs(".\n", f);
}

/* Says why a leaf differs. */
static void show_leaf(FILE *f, const tl_log_pair *p, const tl_log_comparison *c,
                      const tl_log_def *a, const tl_log_def *b)
{
    char x[SHAPE], y[SHAPE];
    tl_log_names m;
    if (strcmp(a->op, "data") == 0 && (a->rows != b->rows || strcmp(a->tail, b->tail) != 0))
        fprintf(f, "\nThe runs read data of another shape: %s in A, %s in B.\n",
                shape_text(x, a, true), shape_text(y, b, true));
    else if (strcmp(a->op, "data") == 0)
        fprintf(f, "\nThis is what the program was given: no op is to blame.%s\n",
                a->parts != b->parts ? " The splits differ, too: a batch that is not the first "
                                       "axis would look like this."
                                     : "");
    else if (p->agreed > 0)
        fprintf(f,
                "\nIt changed after step %" PRId64
                ", the last that was logged in both, and no op that was logged did it.\n",
                p->agreed);
    else if (tl_log_match_names(&m, c->a, c->b, false) != TL_OK)
        fputs("\nThe runs began with other values; no memory to match the parameters.\n", f);
    else
        fprintf(f,
                "\nThe runs began with other values (another seed?): %d of %d parameters differ.\n",
                m.differ, m.same);
}

/* Says so if the op has other inputs in B. */
static bool show_rewired(FILE *f, const tl_log_comparison *c, const tl_log_def *a,
                         const tl_log_def *b)
{
    char key[TL_KEY_TEXT];
    bool other = a->n_in != b->n_in;
    for (int k = 0; k < a->n_in && !other; k++)
        other = a->in[k] != b->in[k];
    if (!other || c->a->compiled != c->b->compiled)
        return false;
    fputs("In B it reads", f);
    for (int k = 0; k < b->n_in; k++)
        fprintf(f, "%s %s", k > 0 ? "," : "", b->in[k] ? tl_log_key_text(key, b->in[k]) : "-");
    fputs(": another program.\n", f);
    return true;
}

static void show_op(FILE *f, const tl_log_comparison *c, const tl_log_result *r,
                    const tl_log_def *b)
{
    const tl_log_def *a = r->def;
    bool known;
    fputs(a->n_in > 0 ? "\nIts inputs:\n" : "\nIt has no inputs.\n", f);
    const bool agree = show_inputs(f, c, r, &known);
    const bool attributes = strcmp(a->attrs, b->attrs) != 0, splits = a->parts != b->parts;
    if (attributes)
        fprintf(f, "Its attributes differ: %s in A, %s in B%s.\n", a->attrs, b->attrs,
                splits ? "; so do the splits, which may be why" : "");
    const bool other = show_rewired(f, c, a, b) || attributes;
    if (!other && !agree)
        fputs("They did not agree any more: what made them is not in the log.\n", f);
    else if (!other && known)
        fputs("They still agreed, so this op is to blame.\n", f);
    else if (!other)
        fprintf(f, "Those that could be compared still agreed; the fault is in this op or in %s.\n",
                reads_state(c->a, r) ? "the optimizer's state, which is logged after the update"
                                     : "what made the others");
    if (a->fast != b->fast)
        fprintf(f, "%s recorded it under TL_FAST, where nothing is promised.\n",
                a->fast ? "A" : "B");
    else if (a->fast)
        fputs("Both recorded it under TL_FAST, where nothing is promised.\n", f);
    show_path(f, c, r);
}

/* For a step of which one log has only the scalars. */
static void show_sampled(FILE *f, const tl_log_pair *p, const tl_log_comparison *c)
{
    const char *who = c->a->full ? "in B" : c->b->full ? "in A" : "in both";
    fprintf(f, "\nOnly scalars of step %" PRId64 " were logged %s. ", c->a->number, who);
    if (p->agreed_whole > 0)
        fprintf(f, "The last step compared whole is %" PRId64 ": the cause lies after it. ",
                p->agreed_whole);
    fputs("Log every step up to here to find it.\n", f);
}

/* ---- values ---- */

/* The last part of a value that does not grow with the batch; all of others. */
static tl_array last_part(tl_array a, const tl_log_def *d, bool whole)
{
    if (whole || a.ndim == 0 || d->last < 0 || d->last > a.dim[0])
        return a;
    a.data = (char *)a.data + (size_t)((a.dim[0] - d->last) * a.stride[0]) * tl_dtype_size(a.dtype);
    a.dim[0] = d->last;
    return a;
}

static void compare_values(FILE *f, const tl_array *a, const tl_array *b)
{
    tl_err err = {.status = TL_OK};
    tl_value_difference d;
    if (tl_value_compare(&d, a, b, &err) != TL_OK)
        fprintf(f, "  cannot be compared: %s\n", err.message);
    else if (d.differ == 0)
        fputs("  are the same: they were kept by other runs than those logged here.\n", f);
    else
        tl_value_show(f, &d, a, b);
}

static void show_values(FILE *f, const tl_log_pair *p, int64_t step, const tl_log_result *r,
                        const tl_log_result *other)
{
    char path[2][TL_LOG_PATH], key[TL_KEY_TEXT];
    tl_st_file *kept[2] = {NULL, NULL};
    tl_err err = {.status = TL_OK};
    int at[2] = {-1, -1};
    for (int i = 0; i < 2; i++)
        if (tl_log_values_path(path[i], sizeof path[i], p->path[i], step) != NULL &&
            tl_st_open(&kept[i], path[i], &err) == TL_OK)
            at[i] = tl_st_find(kept[i], tl_log_key_text(key, r->key));
    if (err.status != TL_OK && err.status != TL_EIO) {
        fprintf(f, "\nThe values that were kept cannot be read: %s\n", err.message);
    } else if (kept[0] == NULL || kept[1] == NULL) {
        const char *who = kept[0] != NULL ? "B" : kept[1] != NULL ? "A" : "both";
        fprintf(f,
                "\nTo see the elements, run %s again with --log-keep %" PRId64
                " (in a program of yours: tl_log_open's .keep = %" PRId64 ").\n",
                who, step, step);
    } else if (at[0] < 0 || at[1] < 0) {
        fprintf(f, "\nIts values are not among those that were kept.\n");
    } else {
        bool whole = r->def->rows == other->def->rows;
        tl_array a = last_part(tl_st_at(kept[0], at[0]).array, r->def, whole),
                 b = last_part(tl_st_at(kept[1], at[1]).array, other->def, whole);
        fprintf(f, "\nIts values (%s, %s):\n", path[0], path[1]);
        compare_values(f, &a, &b);
    }
    tl_st_close(kept[0]);
    tl_st_close(kept[1]);
}

/* ---- the report ---- */

static void show_difference(FILE *f, const tl_log_pair *p, const tl_log_comparison *c)
{
    const tl_log_result *r = &c->a->result[c->first], *other = tl_log_find(c->b, r->key);
    const tl_log_def *a = r->def, *b = other->def;
    char key[TL_KEY_TEXT], text[WORDS], x[SHAPE], y[SHAPE];
    bool scalar = *r->value != '\0' && *other->value != '\0',
         reshaped = strcmp(a->shape, b->shape) != 0;
    if (p->agreed > 0)
        fprintf(f, "\nThey agree up to step %" PRId64 " and part in ", p->agreed);
    else
        fputs("\nThey part in ", f);
    fprintf(f, "step %" PRId64 ", at %s:\n\n    %s\n    %s %s", c->a->number,
            tl_log_key_text(key, r->key), words(text, c->a, a), a->dtype, shape_text(x, a, true));
    if (reshaped)
        fprintf(f, " in A, %s in B", shape_text(y, b, true));
    else if (*a->attrs && strcmp(a->attrs, b->attrs) == 0)
        fprintf(f, "  %s", a->attrs);
    fprintf(f, "%s%s\n", *a->place ? "  called at " : "", a->place);
    if (scalar)
        fprintf(f, "    A  %s\n    B  %s\n", r->value, other->value);
    if (is_leaf(a))
        show_leaf(f, p, c, a, b);
    else if (c->a->full && c->b->full)
        show_op(f, c, r, b);
    if (!c->a->full || !c->b->full)
        show_sampled(f, p, c);
    show_consequences(f, c);
    if (c->other != 0)
        fputs("Further on in this step they are not the same program.\n", f);
    if (!scalar && !is_leaf(a))
        show_values(f, p, c->a->number, r, other);
}

static void report(FILE *f, const tl_log_pair *p, const tl_log_comparison *c)
{
    /* a run may take another program after a difference, because of it */
    bool before = c->first >= 0 && (c->other == 0 || c->a->result[c->first].key < c->other);
    if (c->other != 0 && (p->agreed == 0 || !before))
        show_other_program(f, p, c);
    else if (c->first >= 0)
        show_difference(f, p, c);
}

void tl_log_print(FILE *f, const char *text)
{
    for (size_t n = strlen(text), step; n > 0; text += step, n -= step) {
        const unsigned char *b = (const unsigned char *)text;
        step = tl_utf8_length(text, n);
        bool plain = step > 1 ? !(b[0] == 0xc2 && b[1] < 0xa0)
                              : step == 1 && (*b == '\n' || (*b >= ' ' && *b != 0x7f));
        step = step == 0 ? 1 : step;
        for (size_t i = 0; i < step; i++)
            fprintf(f, plain ? "%c" : "%%%02x", b[i]);
    }
}

/* The report is put together first and then printed, so that all of it goes through tl_log_print.
 */
void tl_log_report(FILE *f, const tl_log_pair *p, const tl_log_comparison *c)
{
    char *text = NULL;
    size_t n;
    FILE *whole = open_memstream(&text, &n);
    if (whole != NULL)
        report(whole, p, c);
    tl_log_print(f, tl_text_close(whole, &text) ? text : "\nNo memory to say how they differ.\n");
    free(text);
}
