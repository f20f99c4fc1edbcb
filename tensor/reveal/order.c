/* order.c: the tree. Children hang on a list from their parent, sorted by least term. */
#include "tensor/reveal/order.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct tl_order {
    int64_t n, nodes;                              /* terms; terms and additions so far */
    int64_t *parent, *child, *next, *size, *least; /* -1: none. At most 2n - 1 nodes */
};

tl_order *tl_order_new(int64_t n)
{
    if (n < 1 || n > INT64_MAX / 128)
        return NULL;
    tl_order *o = calloc(1, sizeof *o);
    int64_t *room = malloc((size_t)(2 * n - 1) * 5 * sizeof *room);
    if (o == NULL || room == NULL) {
        free(o);
        free(room);
        return NULL;
    }
    int64_t most = 2 * n - 1;
    *o = (tl_order){n, n, room, room + most, room + 2 * most, room + 3 * most, room + 4 * most};
    for (int64_t i = 0; i < n; i++) {
        o->parent[i] = o->child[i] = o->next[i] = -1;
        o->size[i] = 1;
        o->least[i] = i;
    }
    return o;
}

void tl_order_free(tl_order *o)
{
    if (o != NULL)
        free(o->parent);
    free(o);
}

static bool there(const tl_order *o, int64_t v) { return o != NULL && v >= 0 && v < o->nodes; }
static bool is_free(const tl_order *o, int64_t v) { return there(o, v) && o->parent[v] < 0; }

static int64_t terms(const tl_order *o) { return o == NULL ? 0 : o->n; }
int64_t tl_order_size(const tl_order *o, int64_t node)
{
    return there(o, node) ? o->size[node] : 0;
}
static int64_t least(const tl_order *o, int64_t node)
{
    return there(o, node) ? o->least[node] : -1;
}

/* Puts v among the children of node, where its least term belongs. */
static void hang(tl_order *o, int64_t node, int64_t v)
{
    int64_t *at = &o->child[node];
    while (*at >= 0 && o->least[*at] < o->least[v])
        at = &o->next[*at];
    o->next[v] = *at;
    *at = v;
    o->parent[v] = node;
    o->size[node] += o->size[v];
    if (o->least[v] < o->least[node])
        o->least[node] = o->least[v];
}

int64_t tl_order_add(tl_order *o, const int64_t *value, int k)
{
    if (o == NULL || value == NULL || k < 2 || o->nodes >= 2 * o->n - 1)
        return -1;
    int64_t node = o->nodes;
    for (int i = 0; i < k; i++) {
        if (!is_free(o, value[i]))
            return -1;
        for (int j = 0; j < i; j++)
            if (value[j] == value[i])
                return -1;
    }
    o->nodes++;
    o->parent[node] = o->child[node] = o->next[node] = -1;
    o->size[node] = 0;
    o->least[node] = o->n;
    for (int i = 0; i < k; i++)
        hang(o, node, value[i]);
    return node;
}

int64_t tl_order_child(const tl_order *o, int64_t node, int64_t i)
{
    int64_t c = there(o, node) ? o->child[node] : -1;
    while (c >= 0 && i-- > 0)
        c = o->next[c];
    return c;
}

int64_t tl_order_root(const tl_order *o)
{
    int64_t last = o == NULL ? -1 : o->nodes - 1;
    return there(o, last) && o->size[last] == o->n ? last : -1;
}

/* A parent always has a higher number than its children. */
int64_t tl_order_meeting(const tl_order *o, int64_t i, int64_t j)
{
    while (i != j && there(o, i) && there(o, j)) {
        if (i < j)
            i = o->parent[i];
        else
            j = o->parent[j];
    }
    return i == j && there(o, i) ? i : -1;
}

/* Nodes stand for one another when they hold the same terms: it is enough that each term's, and
 * then each addition's, parent does. */
bool tl_order_same(const tl_order *a, const tl_order *b)
{
    if (tl_order_root(a) < 0 || tl_order_root(b) < 0 || a->n != b->n || a->nodes != b->nodes)
        return false;
    int64_t *of = malloc((size_t)a->nodes * sizeof *of); /* b's node for a's */
    bool same = of != NULL;
    for (int64_t v = 0; same && v < a->nodes; v++)
        of[v] = v < a->n ? v : -1;
    for (int64_t v = 0; same && v < a->nodes - 1; v++) {
        int64_t p = a->parent[v], q = b->parent[of[v]];
        same = q >= 0 && (of[p] < 0 || of[p] == q) && a->size[p] == b->size[q];
        of[p] = q;
    }
    free(of);
    return same;
}

/* ---- a tree of additions as text. A path is followed from an addition down through its
 * largest part: what is added to it on the way makes a left fold, written from the inside out.
 * Where no part is twice as large as the others the path ends, so that balanced trees keep their
 * brackets; what is left goes no deeper than a few times log2 of the terms. ---- */

enum { COLUMNS = 100, SHOWN = 3 }; /* runs of more than SHOWN like steps are folded */

typedef struct {
    char *buf;
    size_t cap, used; /* used counts what did not fit, too */
} sink;

static void put(sink *s, const char *text)
{
    for (; *text != '\0'; text++, s->used++)
        if (s->used + 1 < s->cap)
            s->buf[s->used] = *text;
    if (s->cap > 0)
        s->buf[s->used < s->cap ? s->used : s->cap - 1] = '\0';
}

static void put_number(sink *s, int64_t x)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, x);
    put(s, text);
}

static bool leaf(const tl_order *o, int64_t v) { return tl_order_child(o, v, 0) < 0; }

/* The part that is at least twice as large as any other, or -1. */
static int64_t largest(const tl_order *o, int64_t v)
{
    int64_t best = -1, most = 0, second = 0;
    for (int64_t i = 0, c; (c = tl_order_child(o, v, i)) >= 0; i++) {
        int64_t n = tl_order_size(o, c);
        second = n > most ? most : n > second ? n : second;
        best = n > most ? c : best;
        most = n > most ? n : most;
    }
    return most >= 2 * second ? best : -1;
}

/* b is a with every term moved by the same distance. */
static bool alike(const tl_order *o, int64_t a, int64_t b)
{
    int64_t by = least(o, b) - least(o, a);
    if (tl_order_size(o, a) != tl_order_size(o, b))
        return false;
    while (!leaf(o, a) && !leaf(o, b)) {
        int64_t i = 0, deep_a = -1, deep_b = -1, c, d;
        for (; (c = tl_order_child(o, a, i)) >= 0; i++) {
            d = tl_order_child(o, b, i);
            if (d < 0 || least(o, d) - least(o, c) != by)
                return false;
            if (leaf(o, c) && leaf(o, d))
                continue;
            if (deep_a >= 0 && !alike(o, deep_a, deep_b))
                return false;
            deep_a = c;
            deep_b = d;
        }
        if (tl_order_child(o, b, i) >= 0)
            return false;
        if (deep_a < 0)
            return true;
        a = deep_a;
        b = deep_b;
    }
    return leaf(o, a) && leaf(o, b) && least(o, b) - least(o, a) == by;
}

/* A left fold: where it starts, and the additions that follow, innermost first. */
typedef struct {
    int64_t start, steps, *step; /* step: the addition */
    bool at_once; /* no start: the innermost addition has more than two parts, none much the largest
                   */
} fold;

static bool pair(const tl_order *o, int64_t v) { return tl_order_child(o, v, 2) < 0; }

/* The part of addition v that was there before. */
static int64_t before(const fold *f, int64_t k)
{
    return k > 0 ? f->step[k - 1] : f->at_once ? -1 : f->start;
}

/* What addition number k adds, if it is one value: else -1. */
static int64_t added(const tl_order *o, const fold *f, int64_t k)
{
    int64_t v = f->step[k], b = before(f, k);
    if (!pair(o, v) || b < 0)
        return -1;
    int64_t first = tl_order_child(o, v, 0);
    return first == b ? tl_order_child(o, v, 1) : first;
}

/* Of the two terms that meet first, the one farther from the third starts: (3 + 2 + 1 + 0) goes
 * down. */
static void choose_start(const tl_order *o, fold *f)
{
    int64_t v = f->step[0], a = tl_order_child(o, v, 0), b = tl_order_child(o, v, 1);
    f->at_once = !pair(o, v);
    f->start = a;
    if (f->steps < 2 || f->at_once || !leaf(o, a) || !leaf(o, b))
        return;
    int64_t third = added(o, f, 1);
    if (third >= 0 && leaf(o, third) && llabs(third - b) > llabs(third - a))
        f->start = b;
}

static bool make_fold(const tl_order *o, int64_t v, fold *f)
{
    int64_t steps = 0;
    for (int64_t u = v; u >= 0 && !leaf(o, u); u = largest(o, u))
        steps++;
    *f = (fold){.steps = steps, .step = malloc((size_t)steps * sizeof *f->step)};
    if (f->step == NULL)
        return false;
    for (int64_t u = v, k = steps; k-- > 0; u = largest(o, u))
        f->step[k] = u;
    choose_start(o, f);
    return true;
}

static bool put_node(sink *s, const tl_order *o, int64_t v);

/* The parts of addition number k but the one before it, in braces. */
static bool put_at_once(sink *s, const tl_order *o, const fold *f, int64_t k)
{
    bool ok = true, first = true;
    put(s, "{");
    for (int64_t i = 0, c; (c = tl_order_child(o, f->step[k], i)) >= 0; i++) {
        if (c == before(f, k))
            continue;
        put(s, first ? "" : ", ");
        first = false;
        ok = ok && put_node(s, o, c);
    }
    put(s, "}");
    return ok;
}

/* Number -1 is the start. */
static int64_t value(const tl_order *o, const fold *f, int64_t k)
{
    return k < 0 ? (f->at_once ? -1 : f->start) : added(o, f, k);
}

/* How many values from k on are alike and evenly spaced. */
static int64_t run_length(const tl_order *o, const fold *f, int64_t k)
{
    int64_t a = value(o, f, k), n = 1, by = 0;
    for (; a >= 0 && k + n < f->steps; n++) {
        int64_t b = value(o, f, k + n);
        if (b < 0 || !alike(o, a, b) || (n > 1 && least(o, b) - least(o, a) != by))
            break;
        by = least(o, b) - least(o, a);
        a = b;
    }
    return n;
}

static bool put_value(sink *s, const tl_order *o, const fold *f, int64_t k)
{
    return value(o, f, k) >= 0 ? put_node(s, o, value(o, f, k)) : put_at_once(s, o, f, k);
}

/* Values number k and on, n alike: all of them, or the first two and the last. */
static bool put_run(sink *s, const tl_order *o, const fold *f, int64_t k, int64_t n)
{
    bool ok = put_value(s, o, f, k);
    for (int64_t i = 1; ok && i<n; i = n> SHOWN && i == 1 ? n - 1 : i + 1) {
        put(s, n > SHOWN && i == n - 1 ? " + ... + " : " + ");
        ok = put_value(s, o, f, k + i);
    }
    return ok;
}

static bool put_fold(sink *s, const tl_order *o, const fold *f)
{
    bool ok = true, alone = f->at_once && f->steps == 1;
    put(s, alone ? "" : "(");
    for (int64_t k = f->at_once ? 0 : -1, first = k, n; ok && k < f->steps; k += n) {
        n = run_length(o, f, k);
        n = n > SHOWN ? n : 1;
        put(s, k > first ? " + " : "");
        ok = put_run(s, o, f, k, n);
    }
    put(s, alone ? "" : ")");
    return ok;
}

static bool put_node(sink *s, const tl_order *o, int64_t v)
{
    fold f;
    if (leaf(o, v)) {
        put_number(s, v);
        return true;
    }
    bool ok = make_fold(o, v, &f) && put_fold(s, o, &f);
    free(f.step);
    return ok;
}

tl_status tl_order_format(char *buf, size_t cap, const tl_order *o, tl_err *err)
{
    sink s = {buf, cap, 0};
    TL_TRY(TL_NEED_N(err, buf, cap > 0));
    if (tl_order_root(o) < 0)
        return tl_fail(err, TL_EUSAGE, "order: some of the %" PRId64 " terms are not added yet",
                       terms(o));
    if (!put_node(&s, o, tl_order_root(o)))
        return tl_fail(err, TL_ENOMEM, "order: no memory for the text of %" PRId64 " terms",
                       terms(o));
    if (s.used >= cap)
        return tl_fail(err, TL_EDOMAIN, "order: the text takes %zu bytes, not %zu", s.used + 1,
                       cap);
    return TL_OK;
}

static bool print_node(FILE *f, const tl_order *o, int64_t v, int depth);

/* The parts of addition v on lines of their own, `without` excepted. */
static bool print_parts(FILE *f, const tl_order *o, int64_t v, int64_t without, int depth)
{
    bool ok = true;
    for (int64_t i = 0, c; ok && (c = tl_order_child(o, v, i)) >= 0; i++)
        ok = c == without || print_node(f, o, c, depth);
    return ok;
}

/* Value number k of a fold, where it takes several lines. */
static bool print_value(FILE *f, const tl_order *o, const fold *way, int64_t k, int depth)
{
    if (value(o, way, k) >= 0)
        return print_node(f, o, value(o, way, k), depth);
    return fprintf(f, "%*s+ at once\n", 4 * depth, "") > 0 &&
           print_parts(f, o, way->step[k], before(way, k), depth + 1);
}

/* n like values of a fold: a line if they fit, else each of those shown. */
static bool print_run(FILE *f, const tl_order *o, const fold *way, int64_t k, int64_t n, int depth)
{
    char line[COLUMNS + 1];
    sink s = {line, sizeof line, 0};
    bool ok = put_run(&s, o, way, k, n);
    if (ok && s.used + 4 * (size_t)depth < sizeof line)
        return fprintf(f, "%*s%s\n", 4 * depth, "", line) > 0;
    for (int64_t i = 0; ok && i<n; i = n> SHOWN && i == 1 ? n - 1 : i + 1) {
        if (n > SHOWN && i == n - 1)
            ok = fprintf(f, "%*s... %" PRId64 " more like it\n", 4 * depth, "", n - SHOWN) > 0;
        ok = ok && print_value(f, o, way, k + i, depth);
    }
    return ok;
}

static bool print_fold(FILE *f, const tl_order *o, const fold *way, int64_t v, int depth)
{
    bool ok = fprintf(f, "%*s+ in turn, %" PRId64 " terms\n", 4 * depth, "", tl_order_size(o, v)) >
              0;
    for (int64_t k = way->at_once ? 0 : -1, n; ok && k < way->steps; k += n) {
        n = run_length(o, way, k);
        ok = print_run(f, o, way, k, n, depth + 1);
    }
    return ok;
}

/* A line for v: whole if it fits, else what it adds, each on lines of their own below. */
static bool print_node(FILE *f, const tl_order *o, int64_t v, int depth)
{
    char line[COLUMNS + 1];
    sink s = {line, sizeof line, 0};
    fold way;
    if (!put_node(&s, o, v))
        return false;
    if (s.used + 4 * (size_t)depth < sizeof line || leaf(o, v))
        return fprintf(f, "%*s%s\n", 4 * depth, "", line) > 0;
    if (!make_fold(o, v, &way))
        return false;
    bool ok = way.steps > 1
                  ? print_fold(f, o, &way, v, depth)
                  : fprintf(f, "%*s+ of %s, %" PRId64 " terms\n", 4 * depth, "",
                            pair(o, v) ? "two" : "several at once", tl_order_size(o, v)) > 0 &&
                        print_parts(f, o, v, -1, depth + 1);
    free(way.step);
    return ok;
}

tl_status tl_order_print(FILE *f, const tl_order *o, tl_err *err)
{
    TL_TRY(TL_NEED(err, f));
    if (tl_order_root(o) < 0)
        return tl_fail(err, TL_EUSAGE, "order: some of the %" PRId64 " terms are not added yet",
                       terms(o));
    if (!print_node(f, o, tl_order_root(o), 0))
        return tl_fail(err, TL_EIO, "order: could not be written");
    return TL_OK;
}
