/* sum_tree.c: the order of addition of a sum, as a tree, and the tree as text. The children of a
 * node are a list, sorted by least term. */
#include "tensor/reveal/sum_tree.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>

typedef struct {
    int64_t parent, child, next; /* child: the first one; -1: none */
    int64_t size, least;         /* of the terms under it: how many, and the first */
} node;

struct tl_order {
    int64_t n, nodes; /* terms; terms and additions so far */
    node node[];      /* terms first; at most 2n - 1 */
};

tl_order *tl_order_new(int64_t n)
{
    if (n < 1 || n > INT64_MAX / 128)
        return NULL;
    tl_order *o = malloc(sizeof *o + (size_t)(2 * n - 1) * sizeof *o->node);
    if (o == NULL)
        return NULL;
    o->n = o->nodes = n;
    for (int64_t i = 0; i < n; i++)
        o->node[i] = (node){.parent = -1, .child = -1, .next = -1, .size = 1, .least = i};
    return o;
}

void tl_order_free(tl_order *o) { free(o); }

static bool there(const tl_order *o, int64_t v) { return o != NULL && v >= 0 && v < o->nodes; }

int64_t tl_order_size(const tl_order *o, int64_t v) { return there(o, v) ? o->node[v].size : 0; }

/* Puts v among the children of a node, where its least term belongs. */
static void hang(tl_order *o, int64_t parent, int64_t v)
{
    node *p = &o->node[parent], *c = &o->node[v];
    int64_t *at = &p->child;
    while (*at >= 0 && o->node[*at].least < c->least)
        at = &o->node[*at].next;
    c->next = *at;
    *at = v;
    c->parent = parent;
    p->size += c->size;
    if (c->least < p->least)
        p->least = c->least;
}

int64_t tl_order_add(tl_order *o, const int64_t *value, int k)
{
    if (o == NULL || value == NULL || k < 2 || o->nodes >= 2 * o->n - 1)
        return -1;
    for (int i = 0; i < k; i++) {
        if (!there(o, value[i]) || o->node[value[i]].parent >= 0)
            return -1;
        for (int j = 0; j < i; j++)
            if (value[j] == value[i])
                return -1;
    }
    const int64_t v = o->nodes++;
    o->node[v] = (node){.parent = -1, .child = -1, .next = -1, .size = 0, .least = o->n};
    for (int i = 0; i < k; i++)
        hang(o, v, value[i]);
    return v;
}

int64_t tl_order_child(const tl_order *o, int64_t v, int64_t i)
{
    int64_t c = there(o, v) ? o->node[v].child : -1;
    while (c >= 0 && i-- > 0)
        c = o->node[c].next;
    return c;
}

int64_t tl_order_root(const tl_order *o)
{
    return o != NULL && o->node[o->nodes - 1].size == o->n ? o->nodes - 1 : -1;
}

/* A parent always has a higher number than its children. */
int64_t tl_order_meeting(const tl_order *o, int64_t i, int64_t j)
{
    while (i != j && there(o, i) && there(o, j)) {
        int64_t *lower = i < j ? &i : &j;
        *lower = o->node[*lower].parent;
    }
    return i == j && there(o, i) ? i : -1;
}

/* Nodes correspond when they hold the same terms. It is enough to compare parents: those of the
 * terms first, and then those of the additions. */
bool tl_order_same(const tl_order *a, const tl_order *b)
{
    if (tl_order_root(a) < 0 || tl_order_root(b) < 0 || a->n != b->n || a->nodes != b->nodes)
        return false;
    int64_t *of = malloc((size_t)a->nodes * sizeof *of); /* the node of b for each of a */
    bool same = of != NULL;
    for (int64_t v = 0; same && v < a->nodes; v++)
        of[v] = v < a->n ? v : -1;
    for (int64_t v = 0; same && v < a->nodes - 1; v++) {
        int64_t p = a->node[v].parent, q = b->node[of[v]].parent;
        same = q >= 0 && (of[p] < 0 || of[p] == q) && a->node[p].size == b->node[q].size;
        of[p] = q;
    }
    free(of);
    return same;
}

/* ---- text ----
 *
 * From an addition, a path leads down into the largest part, and on into the largest part of that.
 * What is added on the way is a left fold, and is written from the inside out. The path ends where
 * no part is twice as large as the others, so that balanced trees keep their brackets; what is left
 * is no deeper than a few times log2 of the terms. */

enum { COLUMNS = 100, SHOWN = 3 }; /* runs of more than SHOWN like steps are abbreviated */

/* Where text goes: a line to buf, or lines of a tree to file. */
typedef struct {
    const tl_order *o;
    char *buf;
    size_t cap, used; /* used also counts what did not fit */
    FILE *file;
    bool failed; /* out of memory, or the file did not take it */
} writer;

static void put(writer *w, const char *text)
{
    for (; *text != '\0'; text++, w->used++)
        if (w->used + 1 < w->cap)
            w->buf[w->used] = *text;
    if (w->cap > 0)
        w->buf[w->used < w->cap ? w->used : w->cap - 1] = '\0';
}

static bool leaf(const tl_order *o, int64_t v) { return o->node[v].child < 0; }
static bool pair(const tl_order *o, int64_t v) { return tl_order_child(o, v, 2) < 0; }

/* TL_EUSAGE unless all terms are added. */
static tl_status check_whole(const tl_order *o, tl_err *err)
{
    return tl_order_root(o) >= 0
               ? TL_OK
               : tl_fail(err, TL_EUSAGE, "order: some of the %" PRId64 " terms are not added yet",
                         o == NULL ? 0 : o->n);
}

/* The part that is at least twice as large as any other, or -1. */
static int64_t largest(const tl_order *o, int64_t v)
{
    int64_t best = -1, most = 0, second = 0;
    for (int64_t c = o->node[v].child; c >= 0; c = o->node[c].next) {
        const int64_t n = o->node[c].size;
        second = n > most ? most : n > second ? n : second;
        best = n > most ? c : best;
        most = n > most ? n : most;
    }
    return most >= 2 * second ? best : -1;
}

/* Whether b is a with every term moved by the same distance. The largest part is compared in the
 * loop, not by recursion, since folds are deep. */
static bool alike(const tl_order *o, int64_t a, int64_t b)
{
    const int64_t by = o->node[b].least - o->node[a].least;
    if (o->node[a].size != o->node[b].size)
        return false;
    while (!leaf(o, a) && !leaf(o, b)) {
        int64_t deep_a = -1, deep_b = -1, c = o->node[a].child, d = o->node[b].child;
        for (; c >= 0 && d >= 0; c = o->node[c].next, d = o->node[d].next) {
            if (o->node[d].least - o->node[c].least != by || o->node[c].size != o->node[d].size)
                return false;
            if (leaf(o, c) && leaf(o, d))
                continue;
            const bool deeper = deep_a < 0 || o->node[c].size > o->node[deep_a].size;
            if (deep_a >= 0 && !alike(o, deeper ? deep_a : c, deeper ? deep_b : d))
                return false;
            deep_a = deeper ? c : deep_a;
            deep_b = deeper ? d : deep_b;
        }
        if (c >= 0 || d >= 0)
            return false;
        if (deep_a < 0)
            return true;
        a = deep_a;
        b = deep_b;
    }
    return leaf(o, a) && leaf(o, b) && o->node[b].least - o->node[a].least == by;
}

/* A left fold: the value that it starts with, and the additions that follow, innermost first. */
typedef struct {
    int64_t start; /* -1: the innermost addition has several parts, none of them much the largest */
    int64_t steps, *step;
} fold;

/* The part of addition number k that was there before it, or -1. */
static int64_t before(const fold *f, int64_t k) { return k > 0 ? f->step[k - 1] : f->start; }

/* The value that addition number k of a fold adds; for k = -1, the start. -1 if it adds several. */
static int64_t value(const tl_order *o, const fold *f, int64_t k)
{
    if (k < 0)
        return f->start;
    const int64_t v = f->step[k], b = before(f, k), first = o->node[v].child;
    if (!pair(o, v) || b < 0)
        return -1;
    return first == b ? o->node[first].next : first;
}

/* Of the two terms that meet first, the fold starts with the one that is farther from the third:
 * (3 + 2 + 1 + 0) runs down. */
static void choose_start(const tl_order *o, fold *f)
{
    const int64_t v = f->step[0], a = o->node[v].child, b = o->node[a].next;
    f->start = pair(o, v) ? a : -1;
    if (f->steps < 2 || f->start < 0 || !leaf(o, a) || !leaf(o, b))
        return;
    const int64_t third = value(o, f, 1);
    if (third >= 0 && leaf(o, third) && llabs(third - b) > llabs(third - a))
        f->start = b;
}

/* The fold that ends with addition v; its step is NULL, and w has failed, when out of memory. */
static fold make_fold(writer *w, int64_t v)
{
    const tl_order *o = w->o;
    fold f = {.steps = 1};
    for (int64_t u = largest(o, v); u >= 0 && !leaf(o, u); u = largest(o, u))
        f.steps++;
    f.step = malloc((size_t)f.steps * sizeof *f.step);
    if (f.step == NULL) {
        w->failed = true;
        return f;
    }
    for (int64_t u = v, k = f.steps; k-- > 0; u = largest(o, u))
        f.step[k] = u;
    choose_start(o, &f);
    return f;
}

/* How many values from number k on are alike and evenly spaced. */
static int64_t run_length(const tl_order *o, const fold *f, int64_t k)
{
    int64_t a = value(o, f, k), n = 1, by = 0;
    for (; a >= 0 && k + n < f->steps; n++) {
        const int64_t b = value(o, f, k + n);
        if (b < 0 || !alike(o, a, b) || (n > 1 && o->node[b].least - o->node[a].least != by))
            break;
        by = o->node[b].least - o->node[a].least;
        a = b;
    }
    return n;
}

/* ---- on one line ---- */

static void put_node(writer *w, int64_t v);

/* What addition number k adds: one value, or in braces all parts but the one before. */
static void put_value(writer *w, const fold *f, int64_t k)
{
    const int64_t one = value(w->o, f, k);
    const char *between = "{";
    if (one >= 0) {
        put_node(w, one);
        return;
    }
    for (int64_t c = w->o->node[f->step[k]].child; c >= 0; c = w->o->node[c].next)
        if (c != before(f, k)) {
            put(w, between);
            put_node(w, c);
            between = ", ";
        }
    put(w, "}");
}

/* The next of n like values to show after the i-th: shows all, or the first two and the last. */
static int64_t next_shown(int64_t n, int64_t i) { return n > SHOWN && i == 1 ? n - 1 : i + 1; }

/* Writes values k to k + n of a fold, which are alike. */
static void put_run(writer *w, const fold *f, int64_t k, int64_t n)
{
    put_value(w, f, k);
    for (int64_t i = 1; i < n; i = next_shown(n, i)) {
        put(w, n > SHOWN && i == n - 1 ? " + ... + " : " + ");
        put_value(w, f, k + i);
    }
}

static void put_node(writer *w, int64_t v)
{
    if (leaf(w->o, v)) {
        char text[32];
        snprintf(text, sizeof text, "%" PRId64, v);
        put(w, text);
        return;
    }
    const fold f = make_fold(w, v);
    if (f.step == NULL)
        return;
    const int64_t first = f.start < 0 ? 0 : -1;
    const bool brackets = first < 0 || f.steps > 1;
    put(w, brackets ? "(" : "");
    for (int64_t k = first, n; k < f.steps; k += n) {
        n = run_length(w->o, &f, k);
        n = n > SHOWN ? n : 1;
        put(w, k > first ? " + " : "");
        put_run(w, &f, k, n);
    }
    put(w, brackets ? ")" : "");
    free(f.step);
}

tl_status tl_order_format(char *buf, size_t cap, const tl_order *o, tl_err *err)
{
    writer w = {.o = o, .buf = buf, .cap = cap};
    TL_TRY(TL_NEED_N(err, buf, cap > 0));
    TL_TRY(check_whole(o, err));
    put_node(&w, tl_order_root(o));
    if (w.failed)
        return tl_fail(err, TL_ENOMEM, "order: no memory for the text of %" PRId64 " terms", o->n);
    if (w.used >= cap)
        return tl_fail(err, TL_EDOMAIN, "order: the text takes %zu bytes, not %zu", w.used + 1,
                       cap);
    return TL_OK;
}

/* ---- as a tree, an addition a line ---- */

static void print_node(writer *w, int64_t v, int depth);

static void TL_PRINTF(3, 4) print_line(writer *w, int depth, const char *form, ...)
{
    va_list ap;
    if (w->failed)
        return;
    va_start(ap, form);
    w->failed |= fprintf(w->file, "%*s", 4 * depth, "") < 0 || vfprintf(w->file, form, ap) < 0 ||
                 fputc('\n', w->file) == EOF;
    va_end(ap);
}

/* Prints values k to k + n of a fold, or node v if f is NULL, if that fits a line; false if not. */
static bool print_short(writer *w, const fold *f, int64_t k, int64_t n, int64_t v, int depth)
{
    char line[COLUMNS + 1];
    writer s = {.o = w->o, .buf = line, .cap = sizeof line};
    if (f != NULL)
        put_run(&s, f, k, n);
    else
        put_node(&s, v);
    w->failed |= s.failed;
    if (s.failed)
        return true; /* nothing more is printed */
    if (s.used + 4 * (size_t)depth >= sizeof line && (f != NULL || !leaf(w->o, v)))
        return false;
    print_line(w, depth, "%s", line);
    return true;
}

/* Prints the parts of addition v, except `without`. */
static void print_parts(writer *w, int64_t v, int64_t without, int depth)
{
    for (int64_t c = w->o->node[v].child; c >= 0; c = w->o->node[c].next)
        if (c != without)
            print_node(w, c, depth);
}

/* Prints n like values of a fold: on one line if they fit, else each of those shown. */
static void print_run(writer *w, const fold *f, int64_t k, int64_t n, int depth)
{
    if (print_short(w, f, k, n, -1, depth))
        return;
    for (int64_t i = 0; i < n; i = next_shown(n, i)) {
        const int64_t one = value(w->o, f, k + i);
        if (n > SHOWN && i == n - 1)
            print_line(w, depth, "... %" PRId64 " more like it", n - SHOWN);
        if (one >= 0) {
            print_node(w, one, depth);
        } else {
            print_line(w, depth, "+ at once");
            print_parts(w, f->step[k + i], before(f, k + i), depth + 1);
        }
    }
}

static void print_node(writer *w, int64_t v, int depth)
{
    const int64_t size = w->o->node[v].size;
    if (w->failed || print_short(w, NULL, 0, 0, v, depth))
        return;
    const fold f = make_fold(w, v);
    if (f.step != NULL && f.steps > 1) {
        print_line(w, depth, "+ in turn, %" PRId64 " terms", size);
        for (int64_t k = f.start < 0 ? 0 : -1, n; k < f.steps; k += n) {
            n = run_length(w->o, &f, k);
            print_run(w, &f, k, n, depth + 1);
        }
    } else if (f.step != NULL) {
        print_line(w, depth, "+ of %s, %" PRId64 " terms",
                   pair(w->o, v) ? "two" : "several at once", size);
        print_parts(w, v, -1, depth + 1);
    }
    free(f.step);
}

tl_status tl_order_print(FILE *f, const tl_order *o, tl_err *err)
{
    writer w = {.o = o, .file = f};
    TL_TRY(TL_NEED(err, f));
    TL_TRY(check_whole(o, err));
    print_node(&w, tl_order_root(o), 0);
    return w.failed ? tl_fail(err, TL_EIO, "order: could not be written") : TL_OK;
}
